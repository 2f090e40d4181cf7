"""A street for the live tests: a chain, a sample provider, and real gateways in processes of their own.

Loaded by `conftest.py` and handed out as the fixture `street`. The provider runs in the test's process: its own log is
the counter of truth.
"""

import asyncio
import contextlib
import io
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from eth_account import Account
from eth_account.messages import encode_defunct
from multidict import CIMultiDict
from typer.testing import CliRunner
from yarl import URL

from tollway.cli.main import make_app
from tollway.client.wallet import Wallet
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, TxHash
from tollway.ledger.ledger import AuditReport
from tollway.sandbox.chain import ChainDriver, FundedAccount, Playground, fund_accounts, make_account
from tollway.sandbox.provider import SampleProvider
from tollway.storage.database import connect_database
from tollway.storage.history import audit

API = "/api/v2"
PRICE_UNITS = 10_000
"""Base units of a call at 0.01 USDC."""
SERVE = (sys.executable, "-c", "from tollway.cli import main; main()", "serve")
READY_DEADLINE_S = 30.0
STOP_DEADLINE_S = 20.0
POLL_S = 0.01

Headers = Sequence[tuple[str, str]]

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
        return self.json.get("code")

    @property
    def state(self) -> str | None:
        return self.headers.get("Tollway-Payment-State")

    @property
    def asks_for_money(self) -> bool:
        return self.status == 402 or "payment" in (self.json if self.code else {})


class Gateway:
    """A gateway process. `base_url` is where it listens; `public_url` what it believes to be."""

    def __init__(
        self, process: subprocess.Popen[bytes], *, port: int, public_url: str, env: dict[str, str], log: Path
    ) -> None:
        self.process = process
        self.base_url = f"http://127.0.0.1:{port}"
        self.public_url = public_url
        self.env = env
        self.log = log

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    async def wait_ended(self) -> int:
        """Its exit code; minus the signal's number when one ended it."""
        await poll(lambda: not self.is_running, deadline_s=STOP_DEADLINE_S, what="the gateway's end")
        return self.process.returncode

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.wait_ended()

    def memory_kib(self, kind: str = "VmHWM") -> int:
        """Resident memory: now (`VmRSS`) or at most so far (`VmHWM`)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(kind + ":"):
                return int(line.split()[1])
        raise LookupError(kind)


class Street:
    """Everything that a test with real processes needs."""

    def __init__(
        self,
        *,
        driver: ChainDriver,
        playground: Playground,
        provider: SampleProvider,
        session: aiohttp.ClientSession,
        folder: Path,
        make_postgres: Callable[[], Awaitable[str]],
    ) -> None:
        self.driver = driver
        self.playground = playground
        self.provider = provider
        self.session = session
        self.folder = folder
        self.make_postgres = make_postgres

    # ---- Gateways.

    @contextlib.asynccontextmanager
    async def gateway(
        self,
        *,
        database_url: str | None = None,
        public_url: str | None = None,
        command: tuple[str, ...] = SERVE,
        settings: dict[str, str] | None = None,
    ) -> AsyncIterator[Gateway]:
        """A gateway that is ready; killed on the way out if it still runs. Its log is shown when the test fails."""
        number, port = next(_NUMBERS), find_free_port()
        public_url = public_url or f"http://127.0.0.1:{port}"
        url = database_url or f"sqlite:///{self.folder}/gateway-{number}.sqlite3"
        env = self.environment(database_url=url, public_url=public_url, port=port, settings=settings)
        log = self.folder / f"gateway-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        gateway = Gateway(process, port=port, public_url=public_url, env=env, log=log)
        try:
            await self.wait_ready(gateway)
            yield gateway
        except BaseException:
            print(f"---- log of {gateway.base_url}, exit code {process.poll()}\n{gateway.read_log()[-8000:]}")
            raise
        finally:
            if gateway.is_running:
                process.kill()
            process.wait(STOP_DEADLINE_S)

    def environment(
        self, *, database_url: str, public_url: str, port: int, settings: dict[str, str] | None = None
    ) -> dict[str, str]:
        """The settings of a gateway on this street, as its process gets them."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOLLWAY_")},
            "PYTHONFAULTHANDLER": "1",
            "TOLLWAY_RPC_LOCAL": self.driver.rpc_url,
            "TOLLWAY_DATABASE_URL": database_url,
            "TOLLWAY_SECRET_KEY": _SECRET_KEY,
            "TOLLWAY_PUBLIC_URL": public_url,
            "TOLLWAY_LISTEN": f"127.0.0.1:{port}",
            "TOLLWAY_ADMIN_LISTEN": "off",
            "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
            "TOLLWAY_LIMIT_LOOKUPS_PER_MINUTE": "100000",
            "TOLLWAY_LIMIT_FAILED_CALLS_PER_WINDOW": "100000",
            "TOLLWAY_LIMIT_EDITS_PER_HOUR": "100000",
            "TOLLWAY_LIMIT_SIGNED_REQUESTS_PER_MINUTE": "100000",
            **(settings or {}),
        }

    async def wait_ready(self, gateway: Gateway) -> None:
        async def is_ready() -> bool:
            assert gateway.is_running, "the gateway stopped at once"
            try:
                async with self.session.get(gateway.base_url + "/readyz") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        await poll(is_ready, deadline_s=READY_DEADLINE_S, what="readiness")

    async def audit(self, gateway: Gateway) -> AuditReport:
        """The balance equation, checked on the gateway's database from outside."""
        database = connect_database(gateway.env["TOLLWAY_DATABASE_URL"])
        try:
            return await database.read(audit)
        finally:
            await database.close()

    async def operate(
        self, gateway: Gateway, *arguments: str, command: tuple[str, ...] = SERVE[:-1]
    ) -> tuple[int, Any]:
        """An operator's command with the settings of that gateway: exit code, and what it printed as JSON."""
        process = await asyncio.create_subprocess_exec(
            *command,
            *arguments,
            "--json",
            env=gateway.env,
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(STOP_DEADLINE_S):
            told, complaint = await process.communicate()
        assert process.returncode is not None
        return process.returncode, json.loads(told or complaint)

    async def operate_here(self, gateway: Gateway, *arguments: str) -> tuple[int, Any]:
        """The same inside this process, which has everything loaded: a second for each command less."""
        runner = CliRunner(env={name: value for name, value in gateway.env.items() if name[:8] == "TOLLWAY_"})
        outcome = await asyncio.to_thread(runner.invoke, make_app(), [*arguments, "--json"])
        return outcome.exit_code, json.loads(outcome.stdout or outcome.stderr)

    # ---- People.

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

    # ---- Requests.

    async def send(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Any = (),
        content: Any = None,
        deadline_s: float = 30.0,
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

    async def call(self, gateway: Gateway, api_id: str, rest: str = "", **options: Any) -> Reply:
        return await self.send(f"{gateway.base_url}{API}/gateway/{api_id}{rest}", **options)

    async def control(
        self,
        gateway: Gateway,
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
        self, gateway: Gateway, account: FundedAccount, method: str, path: str, content: bytes = b""
    ) -> list[tuple[str, str]]:
        """The headers of such a request, good for one time."""
        headers = [("Content-Type", "application/json")] if content else []
        raw_path, _, query = (API + path).encode().partition(b"?")
        shown = SignedRequest(
            method=method,
            raw_path=raw_path,
            query=query,
            headers=[(name.lower().encode(), value.encode()) for name, value in headers],
            body=content,
        )
        return headers + list(
            Wallet.from_key(account.key).sign_request(
                shown,
                origin=parse_origin(gateway.public_url),
                chain_id=self.driver.chain_id,
                now_s=int(time.time()),
                nonce=secrets.token_hex(16),
            )
        )

    async def publish(self, gateway: Gateway, provider: FundedAccount, **fields: Any) -> str:
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

    async def history(self, gateway: Gateway, account: FundedAccount, query: str = "") -> list[Any]:
        reply = await self.control(gateway, account, "GET", f"/history?limit=1000{query}")
        assert reply.status == 200, reply.body
        return list(reply.json["calls"])

    async def payment(self, gateway: Gateway, account: FundedAccount, tx_hash: TxHash) -> Any:
        reply = await self.control(gateway, account, "GET", f"/payments/{tx_hash}")
        assert reply.status == 200, reply.body
        return reply.json


def plain(account: FundedAccount, tx_hash: TxHash) -> list[tuple[str, str]]:
    """The headers that show a payment in the plain form."""
    return [("X-Payment-Tx", str(tx_hash)), ("X-Signature", sign_text(account, str(tx_hash)))]


def sign_text(account: FundedAccount, text: str) -> str:
    return "0x" + bytes(Account.sign_message(encode_defunct(text=text), account.key).signature).hex()


def bound(
    account: FundedAccount,
    tx_hash: TxHash,
    gateway: Gateway,
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


async def poll(test: Callable[[], Any], *, deadline_s: float, what: str) -> Any:
    """What `test` gives once it gives something; a failed assertion after the deadline."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = test()
        found = await found if asyncio.iscoroutine(found) else found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come within {deadline_s} s"
        await asyncio.sleep(POLL_S)


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
