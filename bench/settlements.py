"""Settlements per second of one gas key: a real ledger, a real node, everything but the gateway.

One JSON line. Claims are made before the timing, which covers simulate, sign, store, broadcast, follow and conclude.
`latency_ms` is of one settlement after another, without other load.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.kit`

import aiohttp
import uvloop

from tests.kit.settlement import NodeCall, NodeSettlement
from tollway.chain.signer import GasKey
from tollway.ids import Address
from tollway.payments.settlement import Settled
from tollway.sandbox.chain import ChainDriver, prepare_playground, run_anvil

PAYEE = Address(b"\x71" * 20)
BASE_UNITS = 10_000


async def settle_all(desk: NodeSettlement, calls: list[NodeCall], *, at_once: int) -> float:
    """Settlements per second with so many at the same time."""
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            outcome = await desk.settle(call)
            if not isinstance(outcome, Settled):
                raise RuntimeError(outcome)  # noqa: TRY004 - the outcome is wrong, not a type

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    return len(calls) / (time.perf_counter() - start)


async def mine_often(driver: ChainDriver, pause_s: float) -> None:
    """Makes blocks at an interval instead of one for each transaction."""
    await driver.rpc("evm_setAutomine", False)
    while True:
        await driver.mine(1)
        await asyncio.sleep(pause_s)


async def measure(options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        async with run_anvil() as anvil, aiohttp.ClientSession() as session:
            driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
            playground = await prepare_playground(driver)
            caller = playground.account("caller").key
            async with NodeSettlement(
                rpc_url=anvil.rpc_url,
                asset=playground.usdc,
                path=Path(folder) / "books.sqlite3",
                gas_keys=(GasKey.parse(playground.account("gas").key.hex()),),
            ) as desk:
                latencies = []
                for _ in range(options.alone):
                    call = await desk.claim(caller, PAYEE, base_units=BASE_UNITS)
                    start = time.perf_counter()
                    await settle_all(desk, [call], at_once=1)
                    latencies.append((time.perf_counter() - start) * 1000)
                rates = []
                async with asyncio.TaskGroup() as group:
                    mining = group.create_task(mine_often(driver, options.block_ms / 1000))
                    for _ in range(options.rounds):
                        calls = [
                            await desk.claim(caller, PAYEE, base_units=BASE_UNITS)
                            for _ in range(options.count)
                        ]
                        await desk.gas_budget.refresh()  # its gas prices would be too old after a minute
                        rates.append(await settle_all(desk, calls, at_once=options.at_once))
                    mining.cancel()
    return {
        "settlements_per_s": round(statistics.median(rates)),
        "rounds": [round(rate) for rate in rates],
        "at_once": options.at_once,
        "block_ms": options.block_ms,
        "latency_ms_p50": round(statistics.median(latencies), 1),
        "latency_ms_max": round(max(latencies), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=128)
    parser.add_argument("--block-ms", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, default=50)
    print(json.dumps(uvloop.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
