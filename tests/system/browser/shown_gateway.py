"""The gateway that the screenshots show: five APIs, and a wallet that calls three of them and sells two, with thirty days of books.

Past calls are written into the database of a gateway that is stopped, as rows; the calls of today are real ones, paid on the chain. Wallets, names, prices and times of day are the
same in every run; the days count back from today.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import coincurve
from sqlalchemy import delete

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.forkserver import Forkserver
from tests.kit.gateway_cluster import GatewayCluster, plain, run_cluster
from tests.kit.gateway_process import GatewayProcess
from tests.kit.ports import find_low_port
from tollway.identity.admin_sessions import create_code
from tollway.identity.signatures import derive_address
from tollway.ids import ListingId
from tollway.money import Price
from tollway.registry.quality import FAILED, bucket_of, day_of
from tollway.sandbox.chain import (
    FundedAccount,
    fund_accounts,
    run_anvil,
)
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.storage.catalog.reputation_store import QualityStore
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.ledger_tables import owner_table
from tollway.storage.operator.operator_reads import gateway_build_table
from tollway.storage.operator.operator_writes import SqlAdminSessions

DAY_MS, MINUTE_MS = 86_400_000, 60_000
DAYS = 30
HOST = "gateway-1"
"""The name that a picture has in the place of the name of this machine."""


def make_wallet(number: int) -> FundedAccount:
    """A wallet whose key is the same in every run."""
    key = bytes([number]) * 32
    return FundedAccount(role="caller", address=derive_address(coincurve.PrivateKey(key)), key=key)


READER, PROVIDER, AGENT, VISITOR, GAS = map(make_wallet, range(0x41, 0x46))
"""The wallet whose books are shown, the provider of what it calls, the caller of what it sells, the wallet of the panel "Try it", and the gas key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownApi:
    """`paths`: of its past calls. `calls`: in the thirty days before, for its quality. `latency_ms`: of most of them. `is_proved`: its endpoint."""

    seller: FundedAccount
    fields: dict[str, Any]
    paths: tuple[str, ...]
    calls: int
    latency_ms: int
    is_proved: bool = True

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    @property
    def price(self) -> str:
        return str(self.fields["pricePerRequest"])

    @property
    def units(self) -> int:
        return Price.parse(self.price).nano // 1_000  # USDC has six decimals


QUOTES = ShownApi(
    seller=PROVIDER,
    fields={
        "name": "Sample quotes",
        "pricePerRequest": "0.01",
        "description": "The price of a coin in dollars, an echo, and a stream of events.",
        "tags": ["prices", "sample"],
        "openapi": SAMPLE_DOCUMENT,
        "timeoutSeconds": 1,
    },
    paths=("/quote/ETH", "/quote/BTC", "/quote/SOL"),
    calls=4_120,
    latency_ms=41,
)
TRANSLATE = ShownApi(
    seller=PROVIDER,
    fields={
        "name": "Translate",
        "pricePerRequest": "0.002",
        "description": "Eighty languages, one call. Text in, text out.",
        "tags": ["language"],
    },
    paths=("/de/en", "/en/ja"),
    calls=1_860,
    latency_ms=230,
)
RANDOM = ShownApi(
    seller=PROVIDER,
    fields={
        "name": "Random numbers",
        "pricePerRequest": "0",
        "description": "From the noise of a diode.",
        "tags": ["science"],
    },
    paths=("/bytes/32",),
    calls=0,
    latency_ms=9,
    is_proved=False,
)
WEATHER = ShownApi(
    seller=READER,
    fields={
        "name": "Weather of the open sea",
        "pricePerRequest": "0.02",
        "description": "Hourly forecasts for every square of the sea: wind, waves, rain, and how sure the model is of each.",
        "tags": ["weather"],
        "timeoutSeconds": 1,
    },
    paths=("/hourly/58.2,-3.1", "/hourly/36.0,14.4"),
    calls=2_430,
    latency_ms=120,
)
TIDES = ShownApi(
    seller=READER,
    fields={
        "name": "Tides and currents",
        "pricePerRequest": "0.005",
        "description": "High and low water of 4,000 harbours, and the currents between them.",
        "tags": ["weather", "harbours"],
    },
    paths=("/harbours/tallinn", "/harbours/tromso"),
    calls=610,
    latency_ms=64,
    is_proved=False,
)
APIS = (RANDOM, TRANSLATE, TIDES, WEATHER, QUOTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGateway:
    """A gateway with its books. `ids`: of the APIs, by name."""

    cluster: GatewayCluster
    gateway: GatewayProcess
    ids: dict[str, str]
    admin_url: str

    async def make_link(self) -> str:
        """The address that signs an operator in, whose name is not that of the user of this machine."""
        database = connect_database(self.gateway.env["TOLLWAY_DATABASE_URL"])
        try:
            code = await create_code(
                SqlAdminSessions(database),
                actor=f"alice@{HOST}",
                now_ms=int(time.time() * 1000),
                entropy=os.urandom,
            )
        finally:
            await database.close()
        return f"{self.admin_url}/enter?code={code}"


@contextlib.asynccontextmanager
async def run_shown_gateway() -> AsyncIterator[ShownGateway]:
    forkserver = Forkserver()
    memory = (
        "/dev/shm" if os.path.isdir("/dev/shm") else None
    )  # a disk under load is a finding of the operator's page
    with contextlib.closing(forkserver), tempfile.TemporaryDirectory(dir=memory) as folder:
        async with (
            run_anvil() as anvil,
            run_cluster(anvil, folder=Path(folder), forkserver=forkserver) as cluster,
        ):
            wallets = (READER, PROVIDER, AGENT, VISITOR, GAS)
            await fund_accounts(cluster.driver, cluster.playground.token, wallets)
            settings = _write_settings(cluster)
            url = f"sqlite:///{folder}/shown.sqlite3"
            async with cluster.gateway(database_url=url, settings=settings) as gateway:
                ids = {api.name: await _publish(cluster, gateway, api) for api in APIS}
                await gateway.stop()
            await _write_books(cluster, url, ids)
            port = find_low_port()
            settings |= {"TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{port}"}
            async with cluster.gateway(database_url=url, settings=settings) as gateway:
                await _call_today(cluster, gateway, ids)
                yield ShownGateway(
                    cluster=cluster, gateway=gateway, ids=ids, admin_url=f"http://127.0.0.1:{port}"
                )


def _write_settings(cluster: GatewayCluster) -> dict[str, str]:
    config = cluster.folder / "shown.toml"
    config.write_text(
        f'[[networks]]\npreset = "sandbox"\nrpc_urls = ["{cluster.driver.rpc_url}"]\n'
        f'gas_keys = ["{GAS.private_key}"]\nname = "Sandbox"\nwallet_rpc_url = "https://rpc.example.com"\n'
        'explorer_url = "https://explorer.example.com"\n'
    )
    config.chmod(0o600)
    return {"TOLLWAY_CONFIG": str(config), "TOLLWAY_RPC_SANDBOX": ""}


async def _publish(cluster: GatewayCluster, gateway: GatewayProcess, api: ShownApi) -> str:
    """Publishes the API, and proves its endpoint by a file. The id."""
    api_id = await cluster.publish(gateway, api.seller, **api.fields)
    if api.is_proved:
        path = f"/apis/{api_id}/ownership"
        asked = await cluster.control(gateway, api.seller, "GET", path)
        file = asked.json["challenge"]["wellKnown"]
        cluster.provider.put_file(urlsplit(file["url"]).path, file["content"] + "\n")
        proved = await cluster.control(gateway, api.seller, "POST", path)
        assert proved.json["state"] == "verified", proved.body
    return api_id


# ---- The past.


async def _write_books(cluster: GatewayCluster, url: str, ids: dict[str, str]) -> None:
    midnight_ms = int(time.time() * 1000) // DAY_MS * DAY_MS
    rows = [
        call_record_row(number, **row)
        for number, row in enumerate(_list_past_calls(cluster, ids, midnight_ms))
    ]
    database = connect_database(url)
    try:
        await database.write(lambda connection: insert_calls(connection, rows))
        # Else the operator's page would name the gateway that published as silent, for a day.
        await database.write(lambda connection: connection.execute(delete(gateway_build_table)))
        await database.write(lambda connection: connection.execute(delete(owner_table)))
        quality, today = QualityStore(database), day_of(midnight_ms)
        for api in APIS:
            api_id = ListingId(ids[api.name])
            for day in range(1, DAYS if api.calls else 1):
                calls = api.calls // DAYS * (8 + day % 5) // 10
                quick, failed = bucket_of(api.latency_ms), calls // 90
                slow = bucket_of(3 * api.latency_ms)
                counts = {(api_id, quick): calls - failed - calls // 12, (api_id, slow): calls // 12}
                await quality.add(counts | {(api_id, FAILED): failed}, day=today - day)
        await quality.update_sums([ListingId(one) for one in ids.values()], today=today)
    finally:
        await database.close()


def _list_past_calls(
    cluster: GatewayCluster, ids: dict[str, str], midnight_ms: int
) -> Iterator[dict[str, Any]]:
    """The calls of the days before today, the oldest first: between two and five a day that the wallet pays, and between four and nine that it is paid for."""
    for day in range(DAYS - 1, 0, -1):
        paid = [(QUOTES, TRANSLATE)[number % 2] for number in range(2 + day * 5 % 4)]
        sold = [(WEATHER, WEATHER, TIDES)[number % 3] for number in range(4 + day * 7 % 6)]
        for number, api in enumerate((*paid, *sold)):
            is_released = (day * 11 + number * 5) % 23 == 0
            failed = {"state": "released", "taken_units": 0, "http_status": 502, "upstream_status": 502}
            yield {
                "created_ms": midnight_ms - day * DAY_MS + (7 * 60 + number * 71 + day * 13) * MINUTE_MS,
                **_describe_call(cluster, api, api_id=ids[api.name], path=api.paths[(day + number) % 2]),
                **(failed if is_released else {}),
            }


def _describe_call(cluster: GatewayCluster, api: ShownApi, *, api_id: str, path: str) -> dict[str, Any]:
    """A call that was served and paid."""
    return {
        "listing_id": api_id,
        "listing_name": api.name,
        "path": path,
        "price": api.price,
        "price_units": api.units,
        "taken_units": api.units,
        "chain_id": cluster.driver.chain_id,
        "asset": cluster.playground.usdc.key,
        "provider": api.seller.address,
        "pay_to": api.seller.address,
        "payer": (AGENT if api.seller is READER else READER).address,
        "http_status": 200,
        "upstream_status": 200,
        "latency_ms": api.latency_ms,
    }


# ---- Today.


async def _call_today(cluster: GatewayCluster, gateway: GatewayProcess, ids: dict[str, str]) -> None:
    """Real calls: some charged, one released and one held, in the calls of the wallet and in its sales."""
    for payer, api in ((AGENT, WEATHER), (READER, QUOTES)):
        tx_hash = await cluster.send_tokens(payer, api.seller.address, 25 * api.units)
        paid = plain(payer, tx_hash)
        for path in ("/slow?seconds=9", "/status/500", "/quote/BTC", "/quote/ETH"):
            await cluster.call(gateway, ids[api.name], path, headers=paid)
