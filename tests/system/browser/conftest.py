"""The fixtures of browser tests: gateways in processes of their own on a chain, in the event loop of the browser, which is that of the session.

A machine without the locked Chromium skips these tests by name, unless CI is set: there they must run.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.kit.forkserver import Forkserver
from tests.system.live.conftest import open_cluster
from tollway.sandbox.chain import Anvil, Playground

HERE = Path(__file__).parent
expect.set_options(timeout=30_000)  # milliseconds; a busy machine draws a page late


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder: it needs the chain and a browser."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(
    anvil: Anvil,
    furnished: Playground,
    forkserver: Forkserver,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> AsyncIterator[object]:
    """Chain, sample provider and gateways in processes of their own, for all tests of one file."""
    folder = tmp_path_factory.mktemp("cluster")
    async with open_cluster(anvil, furnished, forkserver, folder=folder, request=request) as cluster:
        yield cluster
