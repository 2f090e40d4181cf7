"""The measured gateways: the real `tollway gateway serve`, each with a listing and payers with credit there.

Every setting is the default except URLs, ports, keys and `allow_private_endpoints` (the upstream is on loopback).
Each payer has two payments, one for each form of signature: after a bound signature a payment does not accept the
plain form. All payments are presented once before the measurement, from several loopback addresses, because one
address may look up 30 a minute.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import coincurve
from bound_calls import BoundCalls
from children import Child, running
from eth_account import Account
from eth_account.messages import encode_defunct
from load import format_request
from machine import GATEWAY_CORE, find_free_port
from variety import PATH, vary_headers, vary_path

from tollway.client.client import AsyncTollwayClient
from tollway.client.wallet import Wallet
from tollway.ids import ChainId, TxHash
from tollway.sandbox.chain import ChainDriver, FundedAccount, Playground, fund_accounts, make_account

PAYMENT_UNITS = 100 * 10**6
PRICE = "0.000001"
"""One unit of USDC: a payment buys a hundred million calls."""
SHOWN_FROM_ONE_ADDRESS = 15
VARIED = 20_000
"""So many requests of a load differ from each other before the first of them is sent again."""
FINAL_AFTER_BLOCKS = 4

Headers = tuple[tuple[str, str], ...]
TOLLWAY = str(Path(sys.executable).with_name("tollway"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """A transaction on the chain, and the key of its payer."""

    tx_hash: TxHash
    key: bytes

    def sign(self) -> Headers:
        """Signs the plain form."""
        signed = Account.sign_message(encode_defunct(text=str(self.tx_hash)), self.key)
        return (("X-Payment-Tx", str(self.tx_hash)), ("X-Signature", "0x" + bytes(signed.signature).hex()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The chain, its tokens, and the wallets that pay."""

    driver: ChainDriver
    playground: Playground
    callers: Sequence[FundedAccount]
    folder: Path

    async def pay(self, provider: FundedAccount) -> list[Payment]:
        """Makes one payment of each caller; returns when all are final."""
        payments = []
        for caller in self.callers:
            tx_hash = await self.driver.send_token(
                key=caller.key, token=self.playground.token, to=provider.address, amount=PAYMENT_UNITS
            )
            payments.append(Payment(tx_hash=tx_hash, key=caller.key))
        for payment in payments:
            await self.driver.wait_receipt(payment.tx_hash)
        await self.driver.mine(FINAL_AFTER_BLOCKS)
        return payments


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A running gateway with one listing."""

    name: str
    port: int
    child: Child
    api_id: str
    payments: Sequence[Payment]
    bound_payments: Sequence[Payment]
    chain_id: ChainId

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def path(self) -> str:
        return f"/api/v2/gateway/{self.api_id}"

    def sign_plainly(self, *, heads: str = "same", paths: str = "same") -> list[bytes]:
        """Requests of all payers in turn, which may be sent repeatedly. One of each payer where nothing differs, else
        `VARIED`. `heads`, `paths`: what differs, in the words of `variety`."""
        count = len(self.payments) if heads in ("same", "full") and paths == "same" else VARIED
        signed = [payment.sign() for payment in self.payments]
        return [
            format_request(
                self.port,
                self.path + vary_path(paths, number),
                (*signed[number % len(signed)], *vary_headers(heads, number)),
            )
            for number in range(count)
        ]

    def sign_bound(self, count: int, *, heads: str = "same", paths: str = "same") -> list[bytes]:
        """So many requests, the payers in turn, each with its own nonce and signature; valid for five minutes."""
        parts = os.cpu_count() or 1
        each = count // parts + 1
        tickets = [
            Ticket(
                chain_id=int(self.chain_id),
                port=self.port,
                api_id=self.api_id,
                payments=tuple(self.bound_payments),
                heads=heads,
                paths=paths,
                first=part * each,
            )
            for part in range(parts)
        ]
        with ProcessPoolExecutor(parts, initializer=spread) as pool:
            written = list(pool.map(sign_part, tickets, [each] * parts))
        return [request for part in written for request in part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The input of a process that signs."""

    chain_id: int
    port: int
    api_id: str
    payments: tuple[Payment, ...]
    heads: str = "same"
    paths: str = "same"
    first: int = 0


def spread() -> None:
    """Signs in every core: it is preparation, and nothing is measured at that time."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def sign_part(ticket: Ticket, count: int) -> list[bytes]:
    """The requests from number `first` on."""
    payers = [
        BoundCalls(
            chain_id=ticket.chain_id,
            origin=f"http://127.0.0.1:{ticket.port}",
            api_id=ticket.api_id,
            tx_hash=payment.tx_hash,
            key=coincurve.PrivateKey(payment.key),
        )
        for payment in ticket.payments
    ]
    requests = []
    for number in range(ticket.first, ticket.first + count):
        target = vary_path(ticket.paths, number)
        headers = (*payers[number % len(payers)].sign(target), *vary_headers(ticket.heads, number))
        requests.append(format_request(ticket.port, f"/api/v2/gateway/{ticket.api_id}{target}", headers))
    return requests


async def furnish_callers(driver: ChainDriver, playground: Playground, folder: Path, *, count: int) -> Bench:
    callers = [make_account("caller") for _ in range(count)]
    await fund_accounts(driver, playground.token, callers)
    return Bench(driver=driver, playground=playground, callers=callers, folder=folder)


def settings_of(*, port: int, rpc_url: str, database_url: str, gas_key: str) -> dict[str, str]:
    """The settings with a gas key, so that a 402 has all four dialects, as in production."""
    return {
        "TOLLWAY_RPC_SANDBOX": rpc_url,
        "TOLLWAY_DATABASE_URL": database_url,
        "TOLLWAY_SECRET_KEY": secrets.token_hex(32),
        "TOLLWAY_PUBLIC_URL": f"http://127.0.0.1:{port}",
        "TOLLWAY_LISTEN": f"127.0.0.1:{port}",
        "TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{find_free_port()}",
        "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
        "TOLLWAY_GAS_KEYS_SANDBOX": gas_key,
    }


@asynccontextmanager
async def serving_gateway(
    name: str,
    bench: Bench,
    *,
    database_url: str,
    upstream_url: str,
    rpc_url: str | None = None,
    is_known: bool = True,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Gateway]:
    """Runs a gateway. `is_known`: each payment is presented once. `rpc_url`: the URL of the chain node, if not the
    node itself. `settings`: added to those of every gateway."""
    port = find_free_port()
    provider = make_account("provider")
    own = settings_of(
        port=port,
        rpc_url=rpc_url or bench.driver.rpc_url,
        database_url=database_url,
        gas_key=bench.playground.account("gas").private_key,
    )
    own |= settings or {}
    if not database_url.startswith("sqlite"):
        migrate(own, bench.folder)
    async with running(
        name, (TOLLWAY, "serve"), core=GATEWAY_CORE, folder=bench.folder, environment=own
    ) as child:
        url = f"http://127.0.0.1:{port}"
        await child.wait_up(url + "/readyz", status=200)
        async with AsyncTollwayClient(url, wallet=Wallet.from_key(provider.key)) as client:
            listing = await client.publish(
                {"name": "Bench", "pricePerRequest": PRICE, "currency": "USDC", "endpoint": upstream_url}
            )
        gateway = Gateway(
            name=name,
            port=port,
            child=child,
            api_id=listing.id,
            payments=await bench.pay(provider),
            bound_payments=await bench.pay(provider) if is_known else (),
            chain_id=bench.driver.chain_id,
        )
        if is_known:
            await show_all(gateway)
        yield gateway


def migrate(settings: dict[str, str], folder: Path) -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith("TOLLWAY_")}
    command = (TOLLWAY, "migrate")
    subprocess.run(command, cwd=folder, env={**own, **settings}, check=True, stdout=subprocess.DEVNULL)


async def show_all(gateway: Gateway) -> None:
    """Presents each payment once, so that it is credit afterwards."""
    payments = [*gateway.payments, *gateway.bound_payments]
    for number in range(0, len(payments), SHOWN_FROM_ONE_ADDRESS):
        async with open_session(number // SHOWN_FROM_ONE_ADDRESS) as session:
            for payment in payments[number : number + SHOWN_FROM_ONE_ADDRESS]:
                async with session.get(gateway.url + gateway.path + PATH, headers=payment.sign()) as answer:
                    if answer.status != 200:
                        raise RuntimeError(f"{gateway.name} answers {answer.status}: {await answer.text()}")


def open_session(number: int) -> aiohttp.ClientSession:
    """A client with its own loopback address."""
    connector = aiohttp.TCPConnector(local_addr=(f"127.0.0.{2 + number}", 0))
    return aiohttp.ClientSession(connector=connector)
