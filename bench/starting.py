"""The time from the start of the process to its first ready response, and its memory when it is idle."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from children import running
from gateways import TOLLWAY, settings_of
from machine import GATEWAY_CORE, find_free_port, read_memory_kib
from throughput import summarise


async def time_starts(
    folder: Path, *, rpc_url: str, gas_key: str, rounds: int, idle_s: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Each round starts once without a database, which is then created, and once with the existing one."""
    found: dict[str, list[float]] = {"freshS": [], "againS": [], "idleMiB": []}
    for number in range(rounds):
        port = find_free_port()
        settings = settings_of(
            port=port,
            rpc_url=rpc_url,
            database_url=f"sqlite:///{folder}/start-{number}.sqlite3",
            gas_key=gas_key,
        )
        for kind in ("freshS", "againS"):
            start = time.perf_counter()
            async with running(
                "starting", (TOLLWAY, "serve"), core=GATEWAY_CORE, folder=folder, environment=settings
            ) as child:
                await child.wait_up(f"http://127.0.0.1:{port}/readyz", status=200)
                found[kind].append(time.perf_counter() - start)
                if kind == "againS":
                    await asyncio.sleep(idle_s)
                    found["idleMiB"].append(read_memory_kib(child.pid) / 1024)
    told = {name: summarise(numbers, 2) for name, numbers in found.items()}
    tell(f"start: {told}")
    return told
