"""The panel of a listing's page that calls and pays, over a gateway with listings, and a wallet of the sandbox: what the tests of pay and try have in common."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.kit.upstream import raw, run_upstream
from tests.system.browser.wallet_double import WalletDouble
from tests.system.browser.watched_page import WatchedPage, watch_page
from tollway.sandbox.chain import ChainDriver
from tollway.sandbox.provider import SAMPLE_DOCUMENT

OTHER_CHAIN, CHAIN = 1, 84532
BLOCK_S = 0.1
LOST_AFTER = timedelta(minutes=6)
"""Longer than a page waits before it offers to give a transfer up."""


ORDER = {
    "to": "string",
    "empty": "string",
    "list": "array",
    "joined": "array",
    "deep": "object",
    "object": "object",
    "meta": "array",
}
"""The fields of a form by their types."""
UPLOADS = {
    "openapi": "3.1.0",
    "info": {"title": "Sample pages", "version": "1"},
    "paths": {
        "/echo": {
            "post": {
                "operationId": "readPage",
                "requestBody": {
                    "required": True,
                    "content": {"multipart/form-data": {"schema": {"$ref": "#/components/schemas/Page"}}},
                },
                "responses": {"200": {"description": "What arrived"}},
            }
        },
        "/echo/orders": {
            "post": {
                "operationId": "order",
                "requestBody": {
                    "content": {
                        "application/x-www-form-urlencoded": {
                            "schema": {"properties": {name: {"type": kind} for name, kind in ORDER.items()}},
                            "encoding": {
                                "deep": {"style": "deepObject"},
                                "joined": {"style": "form", "explode": False},
                                "meta": {"contentType": "application/json"},
                            },
                        }
                    }
                },
                "responses": {"200": {"description": "What arrived"}},
            }
        },
    },
    "components": {
        "schemas": {
            "Page": {
                "type": "object",
                "required": ["file", "language"],
                "properties": {
                    "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                    "more": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    "language": {"type": "string", "enum": ["de", "en"]},
                    "pages": {"type": "array", "items": {"type": "integer"}},
                },
            }
        }
    },
}
"""A form with files behind a reference, as FastAPI writes it, for the echo of the sample provider."""


class BlockClock:
    """Mines a block ten times a second, so that confirmations come by themselves. `stop`: transactions stay in the pool until `start`."""

    def __init__(self, driver: ChainDriver) -> None:
        self._driver = driver
        self._is_on = asyncio.Event()
        self._mining = asyncio.Lock()

    def start(self) -> None:
        self._is_on.set()

    async def stop(self) -> None:
        """Also waits for the block that is being mined: a transaction that is sent after this is in none."""
        self._is_on.clear()
        async with self._mining:
            return

    async def run(self) -> None:
        while True:
            await self._is_on.wait()
            async with self._mining:
                await self._driver.rpc("evm_mine")
            await asyncio.sleep(BLOCK_S)


@contextlib.asynccontextmanager
async def run_blocks(driver: ChainDriver) -> AsyncIterator[BlockClock]:
    """The only miner of the chain while it is open."""
    blocks = BlockClock(driver)
    await driver.rpc("evm_setAutomine", False)
    try:
        async with asyncio.TaskGroup() as group:
            blocks.start()
            running = group.create_task(blocks.run())
            try:
                yield blocks
            finally:
                running.cancel()
    finally:
        await driver.rpc("evm_setAutomine", True)


@dataclass(kw_only=True)
class Site:
    cluster: Any
    blocks: BlockClock
    gateway: Any
    provider: Any
    apis: dict[str, str]

    async def wallet(self, **changes: Any) -> WalletDouble:
        """A wallet on another chain, which does not know the one of the gateway."""
        given = {"accounts": [await self.cluster.wallet()], "chain_id": OTHER_CHAIN, **changes}
        return WalletDouble(driver=self.cluster.driver, **given)

    async def calls(self, wallet: WalletDouble) -> list[Any]:
        return list(await self.cluster.history(self.gateway, wallet.accounts[0]))

    async def check_books(self) -> None:
        report = await self.cluster.audit(self.gateway)
        assert report.wrong == ()


BY_BYTES = {"base": "0.001", "parts": [{"unit": "byte", "unitPrice": "0.00001", "quantity": {"bytes": True}}]}


@contextlib.asynccontextmanager
async def run_site(cluster: Any, blocks: BlockClock, **settings: str) -> AsyncIterator[Site]:
    """A gateway of its own, with seven listings. A paid call of `garbled` is held, because its provider answers with bytes that are no HTTP."""
    gas, provider = await cluster.wallets(2)
    config = cluster.folder / f"pages-{gas.address}.toml"
    config.write_text(
        f'[[networks]]\npreset = "sandbox"\nrpc_urls = ["{cluster.driver.rpc_url}"]\nconfirmations = 2\n'
        f'gas_keys = ["{gas.private_key}"]\nname = "Sandbox"\nwallet_rpc_url = "https://rpc.example.com"\n'
        'explorer_url = "https://explorer.example.com"\n'
    )
    config.chmod(0o600)
    given = {"TOLLWAY_CONFIG": str(config), "TOLLWAY_RPC_SANDBOX": "", **settings}
    async with run_upstream() as garbled, cluster.gateway(settings=given) as gateway:
        garbled.answer = raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", close=True)
        quotes = {"name": "Sample quotes", "openapi": SAMPLE_DOCUMENT}
        apis = {
            "paid": await cluster.publish(gateway, provider, **quotes),
            "free": await cluster.publish(gateway, provider, **quotes, pricePerRequest="0"),
            "edited": await cluster.publish(gateway, provider, **quotes),
            "uploads": await cluster.publish(gateway, provider, name="Sample pages", openapi=UPLOADS),
            "any path": await cluster.publish(gateway, provider, name="Any path"),
            "metered": await cluster.publish(gateway, provider, **quotes, metering=BY_BYTES),
            "garbled": await cluster.publish(gateway, provider, name="Garbled", endpoint=garbled.url),
        }
        yield Site(cluster=cluster, blocks=blocks, gateway=gateway, provider=provider, apis=apis)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Any) -> AsyncIterator[Site]:
    async with run_blocks(cluster.driver) as blocks, run_site(cluster, blocks) as site:
        yield site


@contextlib.asynccontextmanager
async def open_panel(
    browser: Browser,
    site: Site,
    wallet: WalletDouble | None,
    api: str = "paid",
    *,
    operation: str = "get_quote",
    **more: Any,
) -> AsyncIterator[WatchedPage]:
    async with watch_page(browser, site.gateway.base_url, **more) as watched:
        if wallet is not None:
            await wallet.install(watched.context)
        await watched.goto(f"/apis/{site.apis[api]}?operation={operation}")
        yield watched
        await watched.check()
        assert wallet is None or wallet.wrong == []


async def edit(site: Site, **changes: Any) -> None:
    """Writes the listing `edited` anew."""
    draft = site.cluster.draft(name="Sample quotes", openapi=SAMPLE_DOCUMENT, **changes)
    path = f"/apis/{site.apis['edited']}"
    reply = await site.cluster.control(site.gateway, site.provider, "PUT", path, draft)
    assert reply.status == 200, reply.body


async def set_clock_back(page: Page) -> None:
    """The clock of the page is slow, so that `let_minutes_pass` brings it to the present: what is signed then is valid."""
    await page.clock.install(time=datetime.now(UTC) - LOST_AFTER)


async def let_minutes_pass(page: Page) -> None:
    await page.clock.fast_forward(int(LOST_AFTER.total_seconds()) * 1000)


def pay_button(page: Page) -> Any:
    return page.locator("[data-pay]")


def slip(page: Page) -> Any:
    return page.locator("[data-slip]")


def stamp(page: Page) -> Any:
    return page.locator(".ticket .stamp")
