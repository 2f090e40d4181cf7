"""Pages for people at a real `tollway gateway serve`: what 1,000 views a minute cost the paid calls beside them, and how soon a page is there in a browser.

    python bench/pages.py [--stages views paint] [--views 1000] [--rounds 6] [--seconds 10] [--loads 5] [--cpu-slower 4]

`views`: paid calls with a plain signature at one connection, alone and with page views beside them, in turn; percentiles, and CPU of the gateway. The viewers are a
process of their own, and view the search, a listing, its provider and the status in turn. `paint`: the Largest Contentful Paint of `/` and of `/apis/{apiId}` in
Chromium with an empty cache, 150 ms for each request, 1.6 Mbit/s, and a CPU four times slower. JSON on standard output.

`bench/pages.py --view PORT …` is the process of the viewers.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.system.browser` and `tests.kit`

import aiohttp
import uvloop
from children import running
from gateways import Gateway, furnish_callers, serving_gateway
from load import LoadGenerator, Outcome, write_requests
from machine import LOAD_CORE, describe_commit, describe_machine, pin
from playwright.async_api import Browser, async_playwright
from throughput import summarise
from upstream import serving_upstream

from tests.kit.pages import BROWSER
from tests.system.browser.chromium import find_browser, find_node
from tollway.client.client import AsyncTollwayClient
from tollway.client.wallet import Wallet
from tollway.sandbox.chain import ChainDriver, make_account, prepare_playground, run_anvil
from tollway.sandbox.provider import SAMPLE_DOCUMENT

LISTINGS = 25
"""More than the search shows on a page."""
PAYERS = 4
STAGES = ("views", "paint")
NETWORK = {"latency": 150, "downloadThroughput": 1_600_000 / 8, "uploadThroughput": 1_600_000 / 8}
PAINT = """new Promise(resolve => new PerformanceObserver(list => resolve(list.getEntries().at(-1).startTime))
  .observe({type: "largest-contentful-paint", buffered: true}))"""


async def run(options: argparse.Namespace) -> dict[str, Any]:
    pin(LOAD_CORE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            run_anvil() as anvil,
            aiohttp.ClientSession() as session,
            serving_upstream(folder, None) as upstream,
        ):
            driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
            playground = await prepare_playground(driver)
            bench = await furnish_callers(driver, playground, folder, count=PAYERS)
            url = f"sqlite:///{folder}/pages.sqlite3"
            async with serving_gateway(
                "pages", bench, database_url=url, upstream_url=upstream.url
            ) as gateway:
                paths = await publish(gateway, upstream.url)
                found: dict[str, Any] = {"commit": describe_commit(), "machine": describe_machine(folder)}
                if "views" in options.stages:
                    found["views"] = await measure_views(gateway, paths, folder, options)
                if "paint" in options.stages:
                    found["paint"] = await measure_paint(gateway, paths, options)
                return found


async def publish(gateway: Gateway, upstream_url: str) -> dict[str, str]:
    """Publishes listings with a document. Gives the paths of the pages, by their names."""
    provider = make_account("seller")
    async with AsyncTollwayClient(gateway.url, wallet=Wallet.from_key(provider.key)) as client:
        for number in range(LISTINGS):
            listing = await client.publish(
                {
                    "name": f"Sample quotes {number}",
                    "description": "The price of a coin in a currency, fresh to the second.",
                    "pricePerRequest": "0.01",
                    "currency": "USDC",
                    "endpoint": upstream_url,
                    "openapi": dict(SAMPLE_DOCUMENT),
                }
            )
    return {
        "search": "/",
        "listing": f"/apis/{listing.id}",
        "provider": f"/providers/{provider.address}",
        "status": "/status",
    }


# ---- Views beside paid calls.


async def measure_views(
    gateway: Gateway, paths: dict[str, str], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    requests = write_requests(folder / "paid.requests", gateway.sign_plainly())
    command = (sys.executable, __file__, "--view", str(gateway.port), "--views", str(options.views))
    samples: dict[str, list[dict[str, float]]] = {"alone": [], "beside views": []}
    for number in range(options.rounds):
        for kind in sorted(samples, reverse=number % 2 == 1):
            async with AsyncExitStack() as stack:
                if kind != "alone":
                    log = folder / f"viewers-{number}"
                    log.mkdir()
                    viewers = await stack.enter_async_context(
                        running("viewers", (*command, "--paths", *paths.values()), core=LOAD_CORE, folder=log)
                    )
                    await wait_until_written(viewers.log)
                samples[kind].append(await measure_calls(gateway, requests, options.seconds))
                print(f"{kind}: {samples[kind][-1]}", file=sys.stderr)
    return {
        "viewsPerMinute": options.views,
        "cpuOfOneViewMs": await measure_one_view(gateway, paths),
        **{
            kind: {key: summarise([one[key] for one in rows]) for key in rows[0]}
            for kind, rows in samples.items()
        },
    }


async def wait_until_written(log: Path) -> None:
    """Waits until the viewers have seen every page once."""
    async with asyncio.timeout(30):
        while b"viewing" not in log.read_bytes():
            await asyncio.sleep(0.05)


async def measure_calls(gateway: Gateway, requests: Path, seconds: int) -> dict[str, float]:
    generator, before_s = LoadGenerator(wrk=None), gateway.child.count_cpu_s()
    outcome: Outcome = await asyncio.to_thread(
        generator.run, gateway.port, requests, connections=1, seconds=seconds, is_once=False
    )
    if outcome.refused or outcome.broken:
        raise SystemExit(f"{outcome.refused} calls were refused, {outcome.broken} connections broke")
    return {
        "p50Ms": round(outcome.p50_us / 1000, 3),
        "p99Ms": round(outcome.p99_us / 1000, 3),
        "callsPerS": round(outcome.in_time / outcome.seconds, 1),
        "gatewayCpuShare": round((gateway.child.count_cpu_s() - before_s) / outcome.seconds, 3),
    }


async def measure_one_view(gateway: Gateway, paths: dict[str, str], *, count: int = 100) -> dict[str, float]:
    """CPU of the gateway for one view of each page, with nothing beside it."""
    found = {}
    async with aiohttp.ClientSession(headers=BROWSER) as session:
        for name, path in paths.items():
            before_s = gateway.child.count_cpu_s()
            for _ in range(count):
                await view(session, gateway.port, path)
            found[name] = round((gateway.child.count_cpu_s() - before_s) / count * 1000, 2)
    return found


async def view_pages(port: int, paths: Sequence[str], *, per_minute: int) -> None:
    """Views the pages in turn, at a constant rate, until it is stopped."""
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(headers=BROWSER) as session, asyncio.TaskGroup() as group:
        for path in paths:
            await view(session, port, path)
        print("viewing", flush=True)
        start_s, number = loop.time(), 0
        while True:
            group.create_task(view(session, port, paths[number % len(paths)]))
            number += 1
            await asyncio.sleep(max(0.0, start_s + number * 60 / per_minute - loop.time()))


async def view(session: aiohttp.ClientSession, port: int, path: str) -> None:
    async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
        await answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path} answers {answer.status}")


# ---- How soon a page is there.


async def measure_paint(
    gateway: Gateway, paths: dict[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", find_node())
    found: dict[str, Any] = {"cpuSlower": options.cpu_slower}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**find_browser().launch_options())
        for name in ("search", "listing"):
            url = gateway.url + paths[name]
            times = [
                await load_once(browser, url, cpu_slower=options.cpu_slower) for _ in range(options.loads)
            ]
            found[name] = {
                "medianMs": round(statistics.median(times)),
                "minMs": round(min(times)),
                "maxMs": round(max(times)),
            }
        await browser.close()
    return found


async def load_once(browser: Browser, url: str, *, cpu_slower: int) -> float:
    """The Largest Contentful Paint of one load with an empty cache, in ms."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = await context.new_page()
        devtools = await context.new_cdp_session(page)
        await devtools.send("Network.enable")
        await devtools.send("Network.emulateNetworkConditions", {"offline": False, **NETWORK})
        await devtools.send("Emulation.setCPUThrottlingRate", {"rate": cpu_slower})
        await page.goto(url, wait_until="networkidle")
        answer = await devtools.send(
            "Runtime.evaluate", {"expression": PAINT, "awaitPromise": True, "returnByValue": True}
        )
        return float(answer["result"]["value"])
    finally:
        await context.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--views", type=int, default=1000, help="a minute")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--cpu-slower", type=int, default=4, help="1: the CPU as it is")
    parser.add_argument("--view", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--paths", nargs="+", default=(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        uvloop.run(view_pages(options.view, options.paths, per_minute=options.views))
        return
    print(json.dumps(uvloop.run(run(options)), indent=2))


if __name__ == "__main__":
    main()
