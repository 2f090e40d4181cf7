"""A pytest plugin: what a test process starts once, at the first test that needs it, and ends at its end.

`tests/conftest.py` registers it. A conftest that imports a fixture of a session registers another one, and so starts its process again. The modules
are imported by the fixtures: a run of quick tests needs no PostgreSQL, no chain and no browser, and does not load them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.kit.forkserver import Forkserver

if TYPE_CHECKING:
    import psutil
    from playwright.async_api import Browser

    from tests.system.browser.chromium import BrowserBuild
    from tollway.sandbox.chain import Anvil, Playground

PAUSE_S = 60
"""How long the machine may pause within a statement, a connection or a transaction of a test. A gateway has seconds for each of them, less
than the pauses of a busy machine. A test of one of these deadlines sets it itself."""

BROWSER_STOP_DEADLINE_S = 30.0

_NUMBERS = count(1)


# ---- Databases.


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server."""
    from tests.kit.databases import run_postgres

    with run_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """The name of a migrated, empty database."""
    from tests.kit.databases import TEMPLATE, create_database, database_url, migrate_database, run_in_thread

    run_in_thread(create_database(postgres_server, TEMPLATE, template=None))
    run_in_thread(migrate_database(database_url(postgres_server, TEMPLATE)))
    return TEMPLATE


@pytest.fixture
def postgres_url(
    postgres_server: str, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a fresh, migrated PostgreSQL database."""
    from tests.kit.databases import (
        add_unlocked,
        choose_session,
        create_database,
        database_url,
        drop_database,
        run_in_thread,
    )
    from tollway.storage.engine import postgres
    from tollway.storage.ledger import ledger_store

    monkeypatch.setitem(postgres._SESSION, "idle_in_transaction_session_timeout", f"{PAUSE_S}s")
    chosen = choose_session(os.environ)
    for setting, value in chosen.items():
        monkeypatch.setitem(postgres._SESSION, setting, value)
    for deadline in ("COMMAND_TIMEOUT_S", "CONNECT_DEADLINE_S", "POOL_TIMEOUT_S"):
        monkeypatch.setattr(postgres, deadline, float(PAUSE_S))
    monkeypatch.setattr(ledger_store, "RENEW_TIMEOUT_S", float(PAUSE_S))
    name = f"books_{next(_NUMBERS)}"
    run_in_thread(create_database(postgres_server, name, template=postgres_template))
    if "search_path" in chosen:
        run_in_thread(add_unlocked(database_url(postgres_server, name)))
    yield database_url(postgres_server, name)
    run_in_thread(drop_database(postgres_server, name))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.kit.databases import migrate_database, run_in_thread

    path = tmp_path_factory.mktemp("template") / "template.sqlite3"
    run_in_thread(migrate_database(f"sqlite:///{path}"))
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a fresh, migrated SQLite database."""
    path = tmp_path / "tollway.sqlite3"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


# ---- The chain and gateways.


@pytest.fixture(scope="session")
def anvil() -> Iterator[Anvil]:
    from tollway.sandbox.chain import run_anvil

    with asyncio.Runner() as runner:
        running = run_anvil()
        anvil = runner.run(running.__aenter__())
        try:
            yield anvil
        finally:
            runner.run(running.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def furnished(anvil: Anvil) -> Playground:
    """Token, assets and funded accounts of the chain."""
    import aiohttp

    from tollway.sandbox.chain import ChainDriver, prepare_playground

    async def furnish() -> Playground:
        async with aiohttp.ClientSession() as session:
            return await prepare_playground(ChainDriver(session, anvil.rpc_url, anvil.chain_id))

    with asyncio.Runner() as runner:
        return runner.run(furnish())


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Forkserver]:
    """A server that forks gateways."""
    with contextlib.closing(Forkserver()) as running:
        yield running


# ---- The browser.


@pytest.fixture(scope="session")
def browser_build() -> BrowserBuild:
    from tests.system.browser.chromium import NoBrowser, find_browser

    try:
        return find_browser()
    except NoBrowser as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(exc))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(browser_build: BrowserBuild) -> AsyncIterator[Browser]:
    """A Chromium, whose pages are used in the event loop of the session. What does not stop in time is killed."""
    import psutil
    from playwright.async_api import async_playwright

    from tests.system.browser.chromium import find_node

    children = set(psutil.Process().children())
    with pytest.MonkeyPatch.context() as patch:
        if "PLAYWRIGHT_NODEJS_PATH" not in os.environ:
            patch.setenv("PLAYWRIGHT_NODEJS_PATH", find_node())  # its own Node needs libatomic
        playwright = await async_playwright().start()
    browser = await playwright.chromium.launch(**browser_build.launch_options())
    started = [process for one in set(psutil.Process().children()) - children for process in find_family(one)]
    yield browser
    try:
        async with asyncio.timeout(BROWSER_STOP_DEADLINE_S):
            await browser.close()
            await playwright.stop()
    finally:
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def find_family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]
