"""Real gateways in processes of their own, on one chain: how live tests start them, pay them and call them.

The sample provider runs in the test's process: its own log is the counter of truth.
"""

import asyncio
import contextlib
import io
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from eth_account import Account
from eth_account.messages import encode_defunct
from multidict import CIMultiDict
from sqlalchemy import Connection, select
from typer.testing import CliRunner
from yarl import URL

from tests.kit.csv_exports import Sums, assert_exports_equal_ledger
from tests.kit.forkserver import Forkserver
from tests.kit.gateway_process import GatewayProcess, clean_environment, sign_control
from tests.kit.ports import find_low_ports
from tests.kit.stranded_transactions import resend_stranded
from tests.kit.waits import DEADLINE_S
from tollway.cli.main import make_app
from tollway.client.wallet import Wallet
from tollway.ids import Address, TxHash
from tollway.ledger.ledger import AuditReport
from tollway.ledger.records import CallState
from tollway.ledger.sales import HOUR_MS, SUM_STATES, SalesQuery, SpendingQuery, ceil_to, floor_to
from tollway.limits import DEFAULT_LIMITS
from tollway.sandbox.chain import (
    Anvil,
    ChainDriver,
    FundedAccount,
    Playground,
    fund_accounts,
    make_account,
    prepare_playground,
)
from tollway.sandbox.provider import SampleProvider, run_provider
from tollway.storage.engine.database import connect_database, is_shared_write_safe
from tollway.storage.ledger.closed_periods import ClosedPeriods
from tollway.storage.ledger.ledger_audit import audit
from tollway.storage.ledger.period_books import read_sales, read_spending
from tollway.storage.ledger.sales_tables import sales_mark_table

API = "/api/v2"
PAGE_ROWS = 200
"""Calls in a page of the history."""
PRICE_UNITS = 10_000
"""Base units of a call at 0.01 USDC."""

Headers = Sequence[tuple[str, str]]

END_OF_TIME_MS = 4_000_000_000_000
"""Later than every call."""
_TRANSFER_GAS = 100_000
_SECRET_KEY = secrets.token_hex(32)
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of a problem; None for any other answer."""
        if self.headers.get("Content-Type") != "application/problem+json":
            return None
        code: str | None = self.json.get("code")
        return code

    @property
    def state(self) -> str | None:
        state: str | None = self.headers.get("Tollway-Payment-State")
        return state

    @property
    def asks_for_money(self) -> bool:
        return self.status == 402 or "payment" in (self.json if self.code else {})


async def _refuse_postgres() -> str:
    raise NotImplementedError


class GatewayAddress(Protocol):
    """A gateway that serves. `base_url`: where it listens; `public_url`: what its settings say."""

    @property
    def base_url(self) -> str: ...
    @property
    def public_url(self) -> str: ...


class GatewayCluster:
    """Real gateways on one chain, with one sample provider, and the wallets and requests of their callers."""

    def __init__(
        self,
        *,
        driver: ChainDriver,
        playground: Playground,
        provider: SampleProvider,
        session: aiohttp.ClientSession,
        folder: Path,
        forkserver: Forkserver,
        make_postgres: Callable[[], Awaitable[str]],
    ) -> None:
        self.driver = driver
        self.playground = playground
        self.provider = provider
        self.session = session
        self.folder = folder
        self.forkserver = forkserver
        self.make_postgres = make_postgres

    # ---- Gateways.

    @contextlib.asynccontextmanager
    async def gateway(
        self,
        *,
        database_url: str | None = None,
        public_url: str | None = None,
        settings: dict[str, str] | None = None,
    ) -> AsyncIterator[GatewayProcess]:
        """A gateway that is ready, with a database of its own unless a URL is given; killed on the way out if it still
        runs. Its log is printed when the test fails."""
        url = database_url or f"sqlite:///{self.folder}/gateway-{next(_NUMBERS)}.sqlite3"
        async with self.gateways(1, database_url=url, public_url=public_url, settings=settings) as (gateway,):
            yield gateway

    @contextlib.asynccontextmanager
    async def gateways(
        self,
        count: int,
        *,
        database_url: str,
        public_url: str | None = None,
        settings: dict[str, str] | None = None,
        own_settings: Sequence[dict[str, str]] = (),
    ) -> AsyncIterator[list[GatewayProcess]]:
        """The same for gateways on one database that have one public URL: that of the first, unless one is given.
        `own_settings`: of each of them, beside those of all."""
        ports = find_low_ports(count)
        given = {"database_url": database_url, "public_url": public_url or f"http://127.0.0.1:{ports[0]}"}
        started: list[GatewayProcess] = []
        try:
            for port, own in zip(ports, own_settings or [{}] * count, strict=True):
                env = self.environment(**given, port=port, settings={**(settings or {}), **own})
                name = f"gateway-{next(_NUMBERS)}"
                started.append(
                    GatewayProcess(env=env, folder=self.folder, name=name, forkserver=self.forkserver)
                )
            for gateway in started:
                await gateway.wait_ready()
            yield started
        except BaseException:
            for gateway in started:
                gateway.print_log()
            raise
        finally:
            for gateway in started:
                gateway.kill()

    def environment(
        self, *, database_url: str, public_url: str, port: int, settings: dict[str, str] | None = None
    ) -> dict[str, str]:
        """The environment of a gateway of this cluster."""
        return clean_environment(
            {
                "TOLLWAY_RPC_SANDBOX": self.driver.rpc_url,
                "TOLLWAY_DATABASE_URL": database_url,
                "TOLLWAY_SECRET_KEY": _SECRET_KEY,
                "TOLLWAY_PUBLIC_URL": public_url,
                "TOLLWAY_LISTEN": f"127.0.0.1:{port}",
                "TOLLWAY_ADMIN_LISTEN": "off",
                "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
                # Longer than a busy machine takes.
                "TOLLWAY_LIMIT_RPC_DEADLINE_S": "20",
                "TOLLWAY_LIMIT_ERC1271_DEADLINE_S": "20",
                "TOLLWAY_LIMIT_LOOKUPS_PER_MINUTE": "100000",
                "TOLLWAY_LIMIT_FAILED_CALLS_PER_WINDOW": "100000",
                "TOLLWAY_LIMIT_EDITS_PER_HOUR": "100000",
                "TOLLWAY_LIMIT_SIGNED_REQUESTS_PER_MINUTE": "100000",
                "TOLLWAY_LIMIT_AUTHENTICATED_REQUESTS_PER_MINUTE": "100000",
                **(settings or {}),
            }
        )

    async def audit(self, gateway: GatewayProcess) -> AuditReport:
        """The balance equation, checked on the gateway's database from outside. In the same snapshot the sums of sales and of spending must equal
        the calls."""
        database = connect_database(gateway.env["TOLLWAY_DATABASE_URL"])
        try:
            return await database.read(audit_with_sums, is_long=True)
        finally:
            await database.close()

    async def prove_closed_hours(self, gateway: GatewayProcess) -> int:
        """Closes every hour of the gateway's database, as a leader with a clock three hours ahead does, and compares with the calls. Returns the number of
        closed hours, and opens them again. Only where nothing else moves calls."""
        database = connect_database(gateway.env["TOLLWAY_DATABASE_URL"])
        assert database.dialect == "postgresql" or is_shared_write_safe()
        present_ms = int(time.time() * 1000)
        try:
            for now_ms in (present_ms + 3 * HOUR_MS, present_ms):
                await ClosedPeriods(
                    database, read_clock=partial(_answer, now_ms), ledger_ms=partial(_answer, now_ms)
                ).write_due()
                report = await database.read(audit_with_sums, is_long=True)
                assert report.wrong_periods == ()
                if now_ms > present_ms:
                    closed = report.closed_periods
            return closed
        finally:
            await database.close()

    async def check_exports(self, gateway: GatewayProcess) -> Sums:
        """The exports of every wallet add up to the ledger and its audit, once nothing changes any more."""
        database = connect_database(gateway.env["TOLLWAY_DATABASE_URL"])
        try:
            return await assert_exports_equal_ledger(database, now_ms=END_OF_TIME_MS)
        finally:
            await database.close()

    async def operate(self, gateway: GatewayProcess, *arguments: str) -> tuple[int, Any]:
        """A command of `tollway gateway` with the settings of that gateway: exit code, and what it printed as JSON. Runs in this
        process, which has everything imported."""
        runner = CliRunner(env={name: value for name, value in gateway.env.items() if name[:8] == "TOLLWAY_"})
        outcome = await asyncio.to_thread(runner.invoke, make_app(), ["gateway", *arguments, "--json"])
        return outcome.exit_code, json.loads(outcome.stdout or outcome.stderr)

    # ---- Wallets.

    async def wallets(self, count: int) -> list[FundedAccount]:
        """New wallets with 10 ETH and 1,000 USDC each."""
        accounts = [make_account("caller") for _ in range(count)]
        await fund_accounts(self.driver, self.playground.token, accounts)
        return accounts

    async def wallet(self) -> FundedAccount:
        (account,) = await self.wallets(1)
        return account

    async def send_tokens(self, payer: FundedAccount, to: Address, amount: int) -> TxHash:
        """Broadcast, and mined when this returns."""
        tx_hash = await self.driver.send_token(
            key=payer.key, token=self.playground.token, to=to, amount=amount
        )
        await self.driver.wait_receipt(tx_hash)
        return tx_hash

    async def pay_in_bulk(self, payers: list[FundedAccount], to: Address, *, each: int = 1) -> list[TxHash]:
        """A payment worth `each` calls by each of these new wallets, all in a block or two."""
        driver, token = self.driver, self.playground.token
        payload = token.artifact.function("transfer").encode((str(to), each * PRICE_UNITS))
        await driver.rpc("evm_setAutomine", False)
        try:
            sent = await asyncio.gather(
                *(
                    driver.send(key=payer.key, to=token.address, payload=payload, gas=_TRANSFER_GAS, nonce=0)
                    for payer in payers
                )
            )
        finally:
            await driver.rpc("evm_setAutomine", True)
            await driver.mine(1)
        for tx_hash in sent:
            assert (await driver.wait_receipt(tx_hash)).succeeded
        return list(sent)

    # ---- Requests.

    async def send(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Any = (),
        content: Any = None,
        deadline_s: float = DEADLINE_S,
    ) -> Reply:
        """The URL goes out byte for byte."""
        async with self.session.request(
            method,
            URL(url, encoded=True),
            headers=CIMultiDict(headers),
            data=io.BytesIO(content) if isinstance(content, bytes) else content,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=deadline_s),
        ) as response:
            return Reply(status=response.status, headers=response.headers, body=await response.read())

    async def call(self, gateway: GatewayAddress, api_id: str, rest: str = "", **options: Any) -> Reply:
        return await self.send(f"{gateway.base_url}{API}/gateway/{api_id}{rest}", **options)

    async def control(
        self,
        gateway: GatewayAddress,
        account: FundedAccount,
        method: str,
        path: str,
        body: Any = None,
        *,
        more: Headers = (),
    ) -> Reply:
        """A request of the control plane, signed by a wallet (ERC-8128)."""
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = self.sign_control(gateway, account, method, path, content)
        return await self.send(
            gateway.base_url + API + path, method=method, headers=[*headers, *more], content=content or None
        )

    def sign_control(
        self, gateway: GatewayAddress, account: FundedAccount, method: str, path: str, content: bytes = b""
    ) -> list[tuple[str, str]]:
        """The headers of such a request, good for one time."""
        return sign_control(
            Wallet.from_key(account.key),
            public_url=gateway.public_url,
            chain_id=self.driver.chain_id,
            method=method,
            path=API + path,
            body=content,
        )

    @contextlib.asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Inside, the sample provider gets requests, and responds to them at the end."""
        route, is_over = self.provider._route, asyncio.Event()

        async def hold(*request: Any) -> Any:
            await is_over.wait()
            return await route(*request)

        vars(self.provider)["_route"] = hold
        try:
            yield
        finally:
            del vars(self.provider)["_route"]
            is_over.set()

    async def publish(self, gateway: GatewayAddress, provider: FundedAccount, **fields: Any) -> str:
        """The id of a new listing; 0.01 USDC a call at the sample provider unless `fields` say otherwise."""
        reply = await self.control(gateway, provider, "POST", "/apis", self.draft(**fields))
        assert reply.status == 201, reply.body
        return str(reply.json["id"])

    def draft(self, **fields: Any) -> dict[str, Any]:
        return {
            "name": "Quotes",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": self.provider.base_url,
            **fields,
        }

    async def history(self, gateway: GatewayAddress, account: FundedAccount, query: str = "") -> list[Any]:
        """All calls of the account, newest first."""
        calls: list[Any] = []
        while True:
            before = f"&before={calls[-1]['id']}" if calls else ""
            reply = await self.control(gateway, account, "GET", f"/history?limit={PAGE_ROWS}{query}{before}")
            assert reply.status == 200, reply.body
            calls += reply.json["calls"]
            if len(reply.json["calls"]) < PAGE_ROWS:
                return calls

    async def payment(self, gateway: GatewayAddress, account: FundedAccount, tx_hash: TxHash) -> Any:
        reply = await self.control(gateway, account, "GET", f"/payments/{tx_hash}")
        assert reply.status == 200, reply.body
        return reply.json


@contextlib.asynccontextmanager
async def run_cluster(
    anvil: Anvil,
    playground: Playground | None = None,
    *,
    folder: Path,
    forkserver: Forkserver,
    make_postgres: Callable[[], Awaitable[str]] = _refuse_postgres,
) -> AsyncIterator[GatewayCluster]:
    """A cluster on that chain, with a sample provider of its own. `playground`: what the chain has already, else it is made."""
    # An idle connection is closed long before a gateway does (10 s), so that no request meets the close.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    async with aiohttp.ClientSession(connector=connector) as session, run_provider() as provider:
        session._retry_connection = False  # aiohttp would repeat a GET by itself when a gateway is killed
        driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
        async with resend_stranded(driver):
            yield GatewayCluster(
                driver=driver,
                playground=playground or await prepare_playground(driver),
                provider=provider,
                session=session,
                folder=folder,
                forkserver=forkserver,
                make_postgres=make_postgres,
            )


def plain(account: FundedAccount, tx_hash: TxHash) -> list[tuple[str, str]]:
    """The headers that show a payment in the plain form."""
    return [("X-Payment-Tx", str(tx_hash)), ("X-Signature", sign_text(account, str(tx_hash)))]


def sign_text(account: FundedAccount, text: str) -> str:
    return "0x" + bytes(Account.sign_message(encode_defunct(text=text), account.key).signature).hex()


def bound(
    account: FundedAccount,
    tx_hash: TxHash,
    gateway: GatewayProcess,
    api_id: str,
    rest: str,
    *,
    chain_id: Any,
    method: str = "GET",
    body: bytes = b"",
    nonce: bytes | None = None,
) -> list[tuple[str, str]]:
    """The headers that show a payment for one request and no other."""
    return list(
        Wallet.from_key(account.key).sign_call(
            chain_id=chain_id,
            tx_hash=tx_hash,
            gateway=gateway.public_url,
            api_id=api_id,
            method=method,
            target=rest.encode(),
            body=body,
            now_s=int(time.time()),
            nonce=nonce or secrets.token_bytes(32),
        )
    )


WHOLE = replace(DEFAULT_LIMITS, live_calls_max=10**9, spending_calls_max=10**9)
"""The limits with which sums have every call of a wallet."""


def audit_with_sums(connection: Connection) -> AuditReport:
    """The audit; asserts that `/sales` and `/spending` have every call of every wallet once, with its price and state. Hours that wait for their late calls are left out: where a
    test moves the clock, an hour is closed before its calls end. Read it as `tollway audit` does, `is_long`: on PostgreSQL
    the server ends any other transaction that a busy machine leaves idle for two seconds."""
    report = audit(connection)
    late = set(connection.execute(select(sales_mark_table.c.hour_ms)).scalars())
    for side, read in (("provider", read_sales), ("payer", read_spending)):
        counted = f"SELECT {side} AS wallet, state, count(*), sum(coalesce(actual_units, price_units)), min(created_ms), max(created_ms) FROM call WHERE {side} IS NOT NULL GROUP BY 1, 2, created_ms / {HOUR_MS}"
        expected: dict[bytes, dict[str, tuple[int, int]]] = {}
        rows = [row for row in connection.exec_driver_sql(counted) if floor_to(HOUR_MS, row[4]) not in late]
        for wallet, state, calls, units, *_ in rows:
            sums = expected.setdefault(bytes(wallet), {})
            name = SUM_STATES[CallState(state)]
            before = sums.get(name, (0, 0))
            sums[name] = (before[0] + calls, before[1] + int(units))
        if not rows:
            continue
        from_ms, to_ms = min(row[4] for row in rows), max(row[5] for row in rows) + 1
        shared = {"step": "hour", "from_ms": floor_to(HOUR_MS, from_ms), "to_ms": ceil_to(HOUR_MS, to_ms)}
        for wallet_bytes, sums in expected.items():
            kind = SalesQuery if side == "provider" else SpendingQuery
            query: Any = kind(wallet=Address(wallet_bytes), **shared)  # type: ignore[arg-type]  # of the table above
            found: dict[str, tuple[int, int]] = {}
            for row in read(connection, query=query, limits=WHOLE).rows:
                if row.start_ms in late:
                    continue
                for name, one in row.by_state.items():
                    before = found.get(name, (0, 0))
                    found[name] = (before[0] + one.calls, before[1] + one.units)
            assert found == sums, f"{side} {Address(wallet_bytes)}"
    return report


def _answer(now_ms: int, _connection: Connection | None = None) -> int:
    return now_ms
