"""`tollway gateway doctor`: one finding for each fault and each risk, and no change."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import Secret

from tests.kit.chain import MemoryChain
from tests.kit.chain_blocks import authorizing_token
from tests.kit.listings import sample_listing
from tests.kit.payer import USDC
from tests.kit.settlement import facilitator_at
from tollway.app.doctor_findings import Finding
from tollway.chain.nodes import NodeStatus
from tollway.chain.port import ContractResult
from tollway.chain.signer import GasKey
from tollway.cli.doctor import examine
from tollway.config.settings import Settings, load_settings
from tollway.config.values import Listen
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, ListingId
from tollway.money import TokenDomain
from tollway.observability.alert_limits import GAS_FLOORS_MIN
from tollway.observability.telemetry import BackgroundTaskStatus, Metrics
from tollway.outbound.dns import NameServer
from tollway.registry.listing import UpstreamAuth
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.engine.database import connect_database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.migrate import upgrade

NOW_S = 1_800_000_000.0
CHAIN = ChainId(84532)


class OneBlock:
    """A chain of which one may ask the time."""

    chain_ids = (ChainId(84532),)

    def __init__(
        self,
        *,
        block_time: float = NOW_S,
        is_away: bool = False,
        payload: bytes | None = None,
        batch_max: int | None = None,
    ) -> None:
        self.batch_max = batch_max
        self._is_away = is_away
        self._payload = int(block_time).to_bytes(32, "big") if payload is None else payload

    async def check_chain(self, chain_id: ChainId) -> None:
        if self._is_away:
            away = ChainUnavailable(
                "No node gave a usable response. Send the same request again after Retry-After."
            )
            away.add_note("node 1 of eip155:84532 at node.example: the node returned HTTP status 401")
            raise away

    def list_nodes(self, chain_id: ChainId) -> tuple[NodeStatus, ...]:
        return (
            NodeStatus(
                position=1,
                host="node.example",
                head_number=None,
                head_time_s=None,
                failure="",
                failed_s=None,
                is_deferred=False,
                batch_max=self.batch_max,
            ),
        )

    async def call_contract(
        self,
        chain_id: ChainId,
        *,
        to: Address | None,
        calldata: bytes,
        gas: int,
        bytes_max: int,
        deadline_s: float,
    ) -> ContractResult:
        return ContractResult(reverted=False, payload=self._payload)


def make_settings(folder: Path, **changes: object) -> Settings:
    settings = load_settings(
        {
            "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
            "TOLLWAY_DATABASE_URL": f"sqlite:///{folder}/tollway.sqlite3",
            "TOLLWAY_SECRET_KEY": "00112233445566778899aabbccddeeff" * 2,
        }
    )
    return settings.model_copy(update=changes)


async def look(
    settings: Settings,
    chains: OneBlock | MemoryChain | None = None,
    *,
    status: int | None = None,
    facilitator_status: int | None = None,
    metrics: str | None = None,
    migrated: bool = False,
) -> dict[str, Finding]:
    async def fetch(url: str) -> tuple[int, str] | None:
        if url.endswith(":9402/metrics"):
            return None if metrics is None else (200, metrics)
        if url.endswith(":8403/readyz?for=traffic"):
            return None if status is None else (status, "")
        assert url == "https://facilitator.example/x402/supported" or url.endswith("/readyz")
        answered = status if url.endswith("/readyz") else facilitator_status
        return None if answered is None else (answered, "")

    database = connect_database(settings.database_url.get_secret_value())
    if migrated:
        await database.open()
        await upgrade(database)
    found = await examine(
        settings,
        database=database,
        chains=chains or OneBlock(),  # type: ignore[arg-type]  # asked for two things only
        fetch=fetch,
        now_s=NOW_S,
    )
    await database.close()
    return {finding.check: finding for finding in found}


@pytest.mark.parametrize(
    ("chains", "level", "words"),
    [
        (OneBlock(), "ok", "agree"),
        (OneBlock(block_time=NOW_S + 59), "ok", "agree"),
        (OneBlock(block_time=NOW_S + 61), "failed", "clock is behind"),
        (OneBlock(block_time=NOW_S - 500), "warning", "lags"),
        (
            OneBlock(is_away=True),
            "failed",
            "no node gave a usable response; node 1 of eip155:84532 at node.example: the node returned HTTP status 401",
        ),
        (OneBlock(batch_max=1), "note", "node 1 at node.example (1); each payment takes more requests"),
        (OneBlock(payload=b""), "note", "does not return the time"),
    ],
)
async def test_the_id_and_the_time_of_a_chain_are_checked(
    tmp_path: Path, chains: OneBlock, level: str, words: str
) -> None:
    finding = (await look(make_settings(tmp_path), chains))["chain_84532"]
    assert finding.level == level
    assert words in finding.detail


async def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert (await look(make_settings(tmp_path)))["database"].level == "note"
    assert list(tmp_path.iterdir()) == []


async def test_a_migrated_database_is_well(tmp_path: Path) -> None:
    assert (await look(make_settings(tmp_path), migrated=True))["database"].level == "ok"


@pytest.mark.parametrize(
    ("floor", "level", "words"),
    [
        ("0007_gas_by_network", "warning", "is from a newer version; this one can serve"),
        ("9001_newer", "failed", "needs a newer version"),
    ],
)
async def test_newer_tables_are_served_from_down_to_their_floor(
    tmp_path: Path, floor: str, level: str, words: str
) -> None:
    settings = make_settings(tmp_path)
    await look(settings, migrated=True)
    with sqlite3.connect(tmp_path / "tollway.sqlite3") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9001_newer'")
        connection.execute("UPDATE schema_floor SET revision = ?", (floor,))
    connection.close()
    finding = (await look(settings))["database"]
    assert finding.level == level
    assert words in finding.detail


async def test_tables_from_before_the_baseline_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    await look(settings, migrated=True)
    path = tmp_path / "tollway.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0009_scale'")
    connection.close()
    before = path.read_bytes()
    finding = (await look(settings))["database"]
    assert finding.level == "failed"
    assert "made by an older version" in finding.detail
    assert path.read_bytes() == before


@pytest.mark.parametrize(("status", "level"), [(None, "note"), (200, "ok"), (503, "failed")])
async def test_a_running_gateway_must_be_ready(tmp_path: Path, status: int | None, level: str) -> None:
    assert (await look(make_settings(tmp_path), status=status))["gateway"].level == level


@pytest.mark.parametrize(("status", "level"), [(None, "note"), (200, "ok"), (503, "failed")])
async def test_control_workers_are_looked_at_where_there_are_some(
    tmp_path: Path, status: int | None, level: str
) -> None:
    found = await look(make_settings(tmp_path, control_workers=2), status=status)
    assert found["control_workers"].level == level
    assert "control_workers" not in await look(make_settings(tmp_path), status=status)


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"allow_private_endpoints": True}, "private_endpoints", "warning"),
        ({"allow_mixed_networks": True}, "mixed_networks", "warning"),
        ({"admin_listen": Listen(host="0.0.0.0", port=9402)}, "admin_listen", "warning"),
        ({"operators": frozenset({Address(b"o" * 20)})}, "operators", "note"),
        ({"secret_keys": ()}, "secret_key", "note"),
        ({}, "registration", "note"),
        ({}, "payees", "note"),
        ({}, "settings", "ok"),
    ],
)
async def test_risky_settings_are_named(
    tmp_path: Path, changes: dict[str, object], check: str, level: str
) -> None:
    assert (await look(make_settings(tmp_path, **changes)))[check].level == level


@pytest.mark.parametrize(
    ("configured", "prefix", "level", "words"),
    [
        ("'--enable-shared' '--enable-optimizations'", "/opt/python", "ok", "an optimised build"),
        ("'--enable-shared'", "/usr", "ok", "an optimised build"),
        ("'--enable-shared'", "/opt/python", "note", "a call takes about a tenth more CPU"),
        (None, "/opt/python", "note", "--enable-optimizations"),
    ],
    ids=["configured so", "of a distribution", "neither", "unknown"],
)
async def test_a_python_without_profile_guided_optimisation_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configured: str | None,
    prefix: str,
    level: str,
    words: str,
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": configured}.get)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    finding = (await look(make_settings(tmp_path)))["python"]
    assert (finding.level, words in finding.detail) == (level, True)


KEY = bytes.fromhex("00112233445566778899aabbccddeeff" * 2)
OLD_KEY, NEW_KEY = b"o" * 32, b"n" * 32


@pytest.mark.parametrize(
    ("sealed_with", "known", "level", "words"),
    [
        ((), (KEY,), "ok", "all 0 secret(s)"),
        ((KEY,), (KEY,), "ok", "all 1 secret(s)"),
        ((KEY,), (KEY, OLD_KEY), "note", "1 more key(s) are configured"),
        ((OLD_KEY, KEY), (KEY, OLD_KEY), "note", "1 secret(s) of listings and 0 stored response(s)"),
        (
            (OLD_KEY, KEY),
            (KEY, NEW_KEY),
            "failed",
            "no key opens 1 secret(s) of listings, and their calls fail",
        ),
        ((OLD_KEY,), (KEY,), "failed", "set the secrets again: api_0"),
    ],
)
async def test_the_keys_must_open_every_stored_secret(
    tmp_path: Path, sealed_with: tuple[bytes, ...], known: tuple[bytes, ...], level: str, words: str
) -> None:
    keys = [Secret(key) for key in known]
    settings = make_settings(tmp_path, secret_keys=tuple(keys))
    database = connect_database(settings.database_url.get_secret_value())
    await database.open()
    await upgrade(database)
    for number, key in enumerate(sealed_with):
        auth = UpstreamAuth(location="header", name="X-Key", value="hush")
        listing = sample_listing(
            provider=Address(b"p" * 20), id=ListingId(f"api_{number}"), upstream_auth=auth
        )
        sealer = Sealer(key, entropy=os.urandom)
        await CatalogStore(database, sealer=sealer, now_ms=lambda: 1).publish(listing)
    await database.close()
    finding = (await look(settings))["secrets"]
    assert (finding.level, words in finding.detail) == (level, True), finding
    assert "hush" not in finding.detail


GAS_KEY = "4d" * 32


def chain_with_fees(**fees: int) -> MemoryChain:
    chain = MemoryChain(CHAIN)
    chain.mine(CHAIN, time=int(NOW_S))
    assert USDC.token is not None
    chain.deploy(CHAIN, USDC.token, authorizing_token(USDC))
    if fees:
        chain.set_fees(CHAIN, **fees)
    return chain


def settling(folder: Path, **changes: object) -> Settings:
    settings = make_settings(folder, **changes)
    (network,) = settings.networks
    rules = replace(network.settlement, gas_keys=(GasKey.parse(GAS_KEY),))
    return settings.model_copy(update={"networks": (replace(network, settlement=rules),)})


async def settlement_of(settings: Settings, chain: MemoryChain) -> Finding:
    return (await look(settings, chain))["settlement_84532"]


async def test_a_network_that_can_settle_is_ok(tmp_path: Path) -> None:
    finding = await settlement_of(settling(tmp_path), chain_with_fees())
    assert finding.level == "ok"
    assert "USDC" in finding.detail


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, "ok", "from 27; a settlement costs 2.7 now"),
        ({"min_nano": 10**6, "is_min_own": True}, "warning", "settlement_min = 0.001 is less than the 2.7"),
        ({"min_nano": 5 * 10**9, "is_min_own": True}, "ok", "from 5; a settlement costs 2.7 now"),
        ({"native_price_nano": None}, "note", "native_price is not set"),
    ],
    ids=["default", "below cost", "own", "unknown"],
)
async def test_the_lowest_price_is_compared_with_the_cost_of_a_settlement(
    tmp_path: Path, changes: dict[str, Any], level: str, words: str
) -> None:
    settings = settling(tmp_path)
    (network,) = settings.networks
    rules = replace(network.settlement, **{"native_price_nano": 3_000 * 10**9, **changes})
    settings = settings.model_copy(update={"networks": (replace(network, settlement=rules),)})
    chain = chain_with_fees(base_fee_wei=10**10 - 1, tip_wei=1)
    finding = (await look(settings, chain))["settlement_min_84532"]
    assert (finding.level, words in finding.detail) == (level, True), finding
    chain.disconnect(CHAIN)
    gone = (await look(settings, chain))["settlement_min_84532"]
    assert gone.level == ("note" if level == "note" else "failed")


@pytest.mark.parametrize(
    ("floors", "level", "is_low"),
    [(3, "ok", False), (2.9, "warning", True), (0.5, "warning", True)],
)
async def test_every_gas_key_is_named_with_its_balance(
    tmp_path: Path, floors: float, level: str, is_low: bool
) -> None:
    settings = settling(tmp_path)
    (network,) = settings.networks
    rules = replace(
        network.settlement,
        gas_keys=(GasKey.parse(GAS_KEY), GasKey.parse("0x" + "6a" * 32)),
        gas_floor_wei=10**15,
    )
    settings = settings.model_copy(update={"networks": (replace(network, settlement=rules),)})
    chain = chain_with_fees()
    first, second = (key.address for key in rules.gas_keys)
    chain.fund_gas(CHAIN, first, 10**18)
    chain.fund_gas(CHAIN, second, int(floors * 10**15))
    finding = (await look(settings, chain))["gas_keys_84532"]
    assert (finding.level, "(low)" in finding.detail) == (level, is_low)
    assert f"{first} has 1; {second} has 0.00" in finding.detail
    assert "gas_floor = 0.001" in finding.detail
    chain.disconnect(CHAIN)
    assert (await look(settings, chain))["gas_keys_84532"].level == "failed"


def test_doctor_and_the_alerts_call_the_same_balance_low() -> None:
    rules = (Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml").read_text()
    assert f"< {GAS_FLOORS_MIN} * max by (network) (tollway_gas_floor_wei)" in rules


async def test_a_network_without_a_rail_has_a_reason(tmp_path: Path) -> None:
    chain = chain_with_fees()
    bare = await settlement_of(make_settings(tmp_path), chain)
    assert (bare.level, "neither a gas key" in bare.detail) == ("note", True)
    off = await settlement_of(settling(tmp_path, x402=False, mpp=False), chain)
    assert (off.level, "both off" in off.detail) == ("note", True)


async def test_a_withdrawn_rail_has_a_reason_without_a_key(tmp_path: Path) -> None:
    settings = settling(tmp_path)
    key = settings.networks[0].settlement.gas_keys[0].address
    poor = chain_with_fees()
    poor.fund_gas(CHAIN, key, 1)
    finding = await settlement_of(settings, poor)
    assert (finding.level, f"{key} has 0.000000000000000001" in finding.detail) == ("warning", True)
    assert GAS_KEY not in finding.detail
    dear = await settlement_of(settings, chain_with_fees(base_fee_wei=10**12, tip_wei=0))
    assert (dear.level, "gas costs 1000 gwei" in dear.detail) == ("warning", True)
    strange = chain_with_fees()
    assert USDC.token is not None
    strange.deploy(CHAIN, USDC.token, authorizing_token(USDC, TokenDomain(name="Other", version="2")))
    finding = await settlement_of(settings, strange)
    assert (finding.level, "another EIP-712" in finding.detail) == ("warning", True)
    strange.deploy(CHAIN, USDC.token)
    assert "takes no authorisations" in (await settlement_of(settings, strange)).detail
    away = chain_with_fees()
    away.disconnect(CHAIN)
    assert (await settlement_of(settings, away)).level == "failed"


@pytest.mark.parametrize(
    ("has_factories", "has_multicall", "level"),
    [(True, True, "ok"), (True, False, "warning"), (False, False, "ok")],
)
async def test_a_chain_without_multicall_deploys_no_wallets(
    tmp_path: Path, has_factories: bool, has_multicall: bool, level: str
) -> None:
    settings = settling(tmp_path)
    (network,) = settings.networks
    factories = (Address(b"\xfa" * 20),) if has_factories else ()
    rules = replace(network.settlement, wallet_factories=factories)
    settings = settings.model_copy(update={"networks": (replace(network, settlement=rules),)})
    chain = chain_with_fees()
    if not has_multicall:
        chain.remove_multicall(CHAIN)
    finding = await settlement_of(settings, chain)
    assert (finding.level, "wallet_factories = []" in finding.detail) == (level, level == "warning")


@pytest.mark.parametrize(
    ("status", "level", "words"),
    [
        (200, "ok", "settled by a facilitator"),
        (401, "ok", "settled by a facilitator"),
        (None, "warning", "does not answer"),
        (502, "warning", "answers 502"),
    ],
)
async def test_a_facilitator_must_answer(tmp_path: Path, status: int | None, level: str, words: str) -> None:
    settings = make_settings(tmp_path)
    (network,) = settings.networks
    rules = replace(network.settlement, facilitator=facilitator_at("https://facilitator.example/x402/"))
    settings = settings.model_copy(update={"networks": (replace(network, settlement=rules),)})
    found = await look(settings, chain_with_fees(), facilitator_status=status)
    finding = found["settlement_84532"]
    assert (finding.level, words in finding.detail) == (level, True)


@pytest.mark.parametrize(
    ("url", "rate_limit_url", "level"),
    [
        ("sqlite:///books.sqlite3", None, None),
        ("postgresql://127.0.0.1:1/books", None, "note"),
        ("sqlite:///books.sqlite3", "redis://:hush-hush@127.0.0.1:1", "warning"),
    ],
)
async def test_gateways_without_shared_rates_are_reported(
    tmp_path: Path, url: str, rate_limit_url: str | None, level: str | None
) -> None:
    settings = make_settings(
        tmp_path,
        database_url=Secret(url),
        rate_limit_url=None if rate_limit_url is None else Secret(rate_limit_url),
    )
    finding = (await look(settings)).get("shared_rates")
    assert (None if finding is None else finding.level) == level
    assert "hush" not in str(finding)


async def test_plain_settings_raise_no_warning(tmp_path: Path) -> None:
    found = await look(make_settings(tmp_path), status=200, migrated=True)
    assert [
        f.check for f in found.values() if f.level in ("warning", "failed") and f.check != "sqlite_version"
    ] == []


@pytest.mark.parametrize(
    ("flags", "level"), [(b"\x81\x83", "ok"), (b"\x81\x82", "warning")], ids=("no such name", "failure")
)
async def test_required_ownership_needs_a_name_server(tmp_path: Path, flags: bytes, level: str) -> None:
    """One on loopback, that knows no name, or is of no use."""

    class NoName(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            answer = data[:2] + flags + data[4:]  # the question again
            self.transport.sendto(answer, addr)  # type: ignore[attr-defined] # a datagram transport

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(NoName, ("127.0.0.1", 0))
    server = NameServer(ip="127.0.0.1", port=transport.get_extra_info("sockname")[1])
    found = await look(make_settings(tmp_path, require_ownership=True, name_servers=(server,)))
    transport.close()
    assert found["ownership"].level == level
    assert "ownership" not in await look(make_settings(tmp_path))


def background_metrics(*tasks: BackgroundTaskStatus) -> str:
    metrics = Metrics(CollectorRegistry())
    metrics.add_background(lambda: tasks)
    return generate_latest(metrics.registry).decode()


def figures(name: str, age_s: float, **fields: Any) -> BackgroundTaskStatus:
    defaults: dict[str, Any] = {"is_running": True, "has_ended": False, "interval_s": 1.0, "failures": 0}
    return BackgroundTaskStatus(name=name, age_s=age_s, **{**defaults, **fields})


WELL = figures("lease_renewal", 2.4)


@pytest.mark.parametrize(
    ("metrics", "level", "words"),
    [
        (background_metrics(WELL), "ok", "since the last good run of each task: lease_renewal 2 s"),
        (background_metrics(WELL, figures("gas_check", 60, failures=7)), "ok", "gas_check 60 s, lease_renewal 2 s"),
        (
            background_metrics(WELL, figures("gas_check", 61, failures=7)),
            "warning",
            "gas_check ran well 61 s ago, 7 failure(s) since",
        ),
        (background_metrics(WELL, figures("gas_check", 149, interval_s=15.0)), "ok", "gas_check 149 s"),
        (background_metrics(WELL, figures("gas_check", 151, interval_s=15.0)), "warning", "ran well 151 s ago"),
        (background_metrics(WELL, figures("ledger_writer", 9999, interval_s=None)), "ok", "task: lease_renewal 2 s"),
        (background_metrics(WELL, figures("gas_check", 9, is_running=False)), "ok", "task: lease_renewal 2 s"),
        (
            background_metrics(WELL, figures("gas_check", 9, is_running=False, has_ended=True)),
            "failed",
            "1 background task(s) ended by themselves",
        ),
        (background_metrics(), "note", "contain no background tasks"),
        ("{ what is this", "note", "cannot be read"),
        (None, "note", "no gateway answers at http://127.0.0.1:9402/metrics now"),
    ],
)  # fmt: skip
async def test_the_age_of_each_last_good_run_is_shown(
    tmp_path: Path, metrics: str | None, level: str, words: str
) -> None:
    finding = (await look(make_settings(tmp_path), metrics=metrics))["background"]
    assert finding.level == level
    assert words in finding.detail


async def test_without_an_admin_address_no_age_can_be_read(tmp_path: Path) -> None:
    finding = (await look(make_settings(tmp_path, admin_listen=None)))["background"]
    assert (finding.level, finding.detail.partition(":")[0]) == ("note", "admin_listen is off")


@pytest.mark.process
def test_the_output_of_doctor_is_json_although_a_node_is_away(tmp_path: Path) -> None:
    """What the gateway's parts log in a command goes to standard error."""
    ran = subprocess.run(
        [sys.executable, "-c", "from tollway.cli import main; main()", "gateway", "doctor", "--json"],
        env={"PATH": os.defpath, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "chain" in json.dumps(json.loads(ran.stdout))
    assert all(json.loads(line)["event"] for line in ran.stderr.splitlines())
    assert "rpc_node_failed" in ran.stderr
