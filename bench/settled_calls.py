"""What a settled call costs on anvil: the latency that it adds to a call on credit, and settlements per second of one
gas key, through a whole gateway and by Settlement alone in the same run.

One JSON line. Gateway on one core; chain, upstream and load on another. Latencies are of one call after another, the
three kinds in turn; authorisations are signed before the timing.
"""

import argparse
import asyncio
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.kit`

import aiohttp
import settlements
import upstream
import uvloop
from children import running
from eth_account import Account
from eth_account.messages import encode_defunct
from machine import GATEWAY_CORE, LOAD_CORE, pin

from tests.kit.payer import AuthorizationSigner, encode_header
from tollway.client.client import AsyncTollwayClient
from tollway.client.wallet import Wallet
from tollway.ids import Address
from tollway.sandbox.chain import ChainDriver, FundedAccount, Playground, prepare_playground, run_anvil

GATEWAY_URL, UPSTREAM_URL = "http://127.0.0.1:18504", "http://127.0.0.1:18505"
PRICE, PRICE_UNITS = "0.001", 1_000
VALID_S = 3_600
Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledListing:
    """A listing on a running gateway, and its payers."""

    session: aiohttp.ClientSession
    driver: ChainDriver
    playground: Playground
    caller: FundedAccount
    payee: Address
    call_url: str
    on_credit: Headers

    def sign(self) -> Headers:
        """The headers of one x402 payment that was not presented before."""
        payer = AuthorizationSigner(
            account=Account.from_key(self.caller.key),
            asset=self.playground.usdc,
            payee=self.payee,
            base_units=PRICE_UNITS,
            valid_before=int(time.time()) + VALID_S,
            nonce=secrets.token_bytes(32),
        )
        return {"PAYMENT-SIGNATURE": encode_header(payer.payment()).decode()}

    async def ask(self, url: str, headers: Headers) -> float:
        """The milliseconds until the whole response."""
        start = time.perf_counter()
        async with self.session.get(url, headers=headers) as answer:
            body = await answer.read()
            if answer.status != 200:
                raise RuntimeError(body.decode())
        return (time.perf_counter() - start) * 1000


@asynccontextmanager
async def open_stand(folder: str) -> AsyncIterator[SettledListing]:
    async with (
        run_anvil() as anvil,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
        playground = await prepare_playground(driver)
        environment = {
            "TOLLWAY_RPC_SANDBOX": anvil.rpc_url,
            "TOLLWAY_DATABASE_URL": f"sqlite:///{folder}/gateway.sqlite3",
            "TOLLWAY_PUBLIC_URL": GATEWAY_URL,
            "TOLLWAY_LISTEN": urlsplit(GATEWAY_URL).netloc,
            "TOLLWAY_ADMIN_LISTEN": "off",
            "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
            "TOLLWAY_GAS_KEYS_SANDBOX": playground.account("gas").private_key,
        }
        answering = (sys.executable, upstream.__file__, str(urlsplit(UPSTREAM_URL).port))
        serving = (str(Path(sys.executable).with_name("tollway")), "serve")
        async with (
            running("upstream", answering, core=LOAD_CORE, folder=Path(folder)) as source,
            running(
                "gateway", serving, core=GATEWAY_CORE, folder=Path(folder), environment=environment
            ) as gateway,
        ):
            await source.wait_up(UPSTREAM_URL)
            await gateway.wait_up(GATEWAY_URL + "/healthz")
            yield await furnish_stand(driver, session, playground)


async def furnish_stand(
    driver: ChainDriver, session: aiohttp.ClientSession, playground: Playground
) -> SettledListing:
    provider, caller = playground.account("provider"), playground.account("caller")
    async with AsyncTollwayClient(GATEWAY_URL, wallet=Wallet.from_key(provider.key)) as client:
        listing = await client.publish(
            {"name": "Bench", "pricePerRequest": PRICE, "currency": "USDC", "endpoint": UPSTREAM_URL}
        )
    tx_hash = await driver.send_token(
        key=caller.key, token=playground.token, to=provider.address, amount=10**8
    )
    await driver.wait_receipt(tx_hash)
    signed = Account.sign_message(encode_defunct(text=str(tx_hash)), caller.private_key)
    return SettledListing(
        session=session,
        driver=driver,
        playground=playground,
        caller=caller,
        payee=provider.address,
        call_url=f"{GATEWAY_URL}/api/v2/gateway/{listing.id}/quote/ETH",
        on_credit={"X-Payment-Tx": str(tx_hash), "X-Signature": "0x" + bytes(signed.signature).hex()},
    )


async def time_alone(settled_listing: SettledListing, count: int) -> dict[str, object]:
    """One call after another: direct, on credit and settled in turn."""
    payments = [settled_listing.sign() for _ in range(count)]
    kinds: dict[str, list[float]] = {"direct": [], "credit": [], "settled": []}
    for payment in payments:
        kinds["direct"].append(await settled_listing.ask(UPSTREAM_URL + "/quote/ETH", {}))
        kinds["credit"].append(await settled_listing.ask(settled_listing.call_url, settled_listing.on_credit))
        kinds["settled"].append(await settled_listing.ask(settled_listing.call_url, payment))
    told: dict[str, object] = {f"{kind}Ms": summarise(latencies) for kind, latencies in kinds.items()}
    added = [settled - credit for settled, credit in zip(kinds["settled"], kinds["credit"], strict=True)]
    return {**told, "settlingAddsMs": summarise(added)}


async def count_per_second(settled_listing: SettledListing, count: int, *, at_once: int) -> float:
    payments = iter([settled_listing.sign() for _ in range(count)])

    async def work() -> None:
        for payment in payments:
            await settled_listing.ask(settled_listing.call_url, payment)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    return count / (time.perf_counter() - start)


def summarise(latencies: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(latencies, n=20)
    return {"p50": round(statistics.median(latencies), 2), "p95": round(cuts[-1], 2)}


async def compare(options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        async with open_stand(folder) as settled_listing:
            await time_alone(settled_listing, 10)  # warm
            told = await time_alone(settled_listing, options.alone)
            rates = []
            async with asyncio.TaskGroup() as group:
                mining = group.create_task(
                    settlements.mine_often(settled_listing.driver, options.block_ms / 1000)
                )
                for _ in range(options.rounds):
                    rates.append(
                        await count_per_second(settled_listing, options.count, at_once=options.at_once)
                    )
                mining.cancel()
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # as settlements.py runs by itself
    alone = await settlements.measure(options)
    return {
        **told,
        "settledCallsPerSecond": round(statistics.median(rates)),
        "rounds": [round(rate) for rate in rates],
        "settlementAlone": alone,
        "atOnce": options.at_once,
        "gasKeys": 1,
        "chain": f"anvil; latencies: a block for each transaction, rates: a block every {options.block_ms} ms",
        "database": "sqlite, synchronous=FULL",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", type=int, default=200, help="calls of each kind, one after another")
    parser.add_argument("--count", type=int, default=500, help="settled calls a round")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block-ms", type=int, default=100, help="as in settlements.py")
    options = parser.parse_args()
    pin(LOAD_CORE)
    print(json.dumps(uvloop.run(compare(options))))


if __name__ == "__main__":
    main()
