"""The fixtures of browser tests: a Chromium, gateways in processes of their own on a chain, and pages whose errors are collected.

A machine without the locked Chromium skips these tests by name, unless CI is set: there they must run.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.system.browser.chromium import BrowserBuild, NoBrowser, find_browser, find_node
from tests.system.live.conftest import anvil, cluster, forkserver, furnished

__all__ = ["anvil", "cluster", "forkserver", "furnished"]

HERE = Path(__file__).parent
expect.set_options(timeout=30_000)  # milliseconds; a busy machine draws a page late


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder: it needs the chain and a browser."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="session")
def browser_build() -> BrowserBuild:
    try:
        return find_browser()
    except NoBrowser as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(exc))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(browser_build: BrowserBuild) -> AsyncIterator[Browser]:
    before = os.environ.get("PLAYWRIGHT_NODEJS_PATH")
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = before or find_node()  # its own Node needs libatomic
    try:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(**browser_build.launch_options())
            try:
                yield browser
            finally:
                await browser.close()
    finally:
        with contextlib.suppress(KeyError):
            if before is None:
                del os.environ["PLAYWRIGHT_NODEJS_PATH"]
