"""What a gateway loads: what it serves with, and nothing that only others need. Each MiB of it stays for as long as the
gateway does, and each second delays the first request.
"""

import asyncio
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.databases import write_newer_migrations
from tollway.storage.engine.database import connect_database
from tollway.storage.engine.migrate import upgrade

NEVER = {
    "alembic",
    "dns",
    "mako",
    "eth_abi",
    "eth_account",
    "eth_utils",
    "fastapi",
    "py_ecc",
    "httpx",
    "jsonschema",
    "mcp",
    "opentelemetry",
    "redis",
    "rlp",
    "snowballstemmer",
    "web3",
    "x402",
    "yaml",
}
SERVED_WITH = {"aiohttp", "granian", "limits", "pydantic", "rich", "sqlalchemy", "starlette", "typer"}

COMMAND_LINE = "from tollway.cli import main"
SERVE = """
import asyncio
import os
import sys
from tollway.app.lifecycle import App
from tollway.cli import operator
from tollway.cli.main import make_app
from tollway.config.settings import load_settings

make_app()

async def start():
    async with App(load_settings(os.environ)) as app:
        await use(app)

async def use(app):
    pass
"""
START = "\nasyncio.run(start())\n"
REFRESH = """
async def use(app):
    await app.meaning_search.refresh()
"""
SEARCH_ONCE = """
from tollway.registry.catalog import ListingQuery

async def use(app):
    await app.catalog.search(ListingQuery(words="airplanes"))
"""
TELL = (
    "\nimport sys; print(*sorted({name.partition('.')[0] for name, found in sys.modules.items() if found}))"
)
SEARCH = {"numpy", "wordllama"}
"""What the extra for search by meaning brings. Of `wordllama` only files are read."""
WITHOUT_SEARCH = f"import sys; sys.modules.update(dict.fromkeys({sorted(SEARCH)!r}))\n"
"""Python does as if these packages were not installed."""


def load(code: str, **env: str) -> set[str]:
    """The packages that a process has loaded in the end."""
    output = subprocess.run(
        [sys.executable, "-c", code + TELL], env=env, capture_output=True, timeout=60, check=True, text=True
    )
    return set(output.stdout.splitlines()[-1].split())


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {
        "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
        "TOLLWAY_DATABASE_URL": f"sqlite:///{folder}/books.sqlite3",
        "TOLLWAY_SECRET_KEY": secrets.token_hex(32),
        "TOLLWAY_GAS_KEYS_SANDBOX": "11" * 32,
        **more,
    }


RINGS = """
import gc
from tollway.app.lifecycle import freeze_objects

freeze_objects()
freed = []
gc.callbacks.append(lambda phase, info: freed.append(info.get("collected", 0)))
for _ in range(100_000):
    ring = []
    ring.append(ring)
print(max(freed))
"""


@pytest.mark.process
def test_one_collection_of_a_gateway_frees_few_objects() -> None:
    """It stops every thread: 20,000 objects in cycles, which a flood of searches leaves in a second, took up to 40 ms."""
    output = subprocess.run(
        [sys.executable, "-c", RINGS], capture_output=True, timeout=60, check=True, text=True
    )
    assert 0 < int(output.stdout) <= 2_500


@pytest.mark.process
def test_the_entry_point_loads_nothing() -> None:
    assert not load(COMMAND_LINE) & (NEVER | SERVED_WITH | SEARCH)


def make_tables(folder: Path) -> None:
    async def make() -> None:
        database = connect_database(settings(folder)["TOLLWAY_DATABASE_URL"])
        await database.open()
        await upgrade(database)
        await database.close()

    asyncio.run(make())


@pytest.mark.process
def test_a_gateway_that_starts_loads_only_what_it_serves_with(tmp_path: Path) -> None:
    make_tables(tmp_path)
    assert load(SERVE + START, **settings(tmp_path)) & NEVER == set()


@pytest.mark.process
def test_a_gateway_serves_without_the_extra_for_search(tmp_path: Path) -> None:
    assert load(WITHOUT_SEARCH + SERVE + START, **settings(tmp_path)) & SEARCH == set()


@pytest.mark.process
def test_a_gateway_with_the_extra_for_search_loads_nothing_of_it_before_it_is_used(tmp_path: Path) -> None:
    """Its background task runs once a second, and finds no listing to embed."""
    assert load(SERVE + REFRESH + START, **settings(tmp_path)) & SEARCH == set()


@pytest.mark.process
def test_the_first_search_of_a_gateway_with_the_extra_loads_numpy_alone(tmp_path: Path) -> None:
    loaders = {"wordllama", "tokenizers", "safetensors", "huggingface_hub", "requests"}
    loaded = load(SERVE + SEARCH_ONCE + START, **settings(tmp_path))
    assert {"numpy", "snowballstemmer"} <= loaded
    assert loaded & loaders == set()


@pytest.mark.process
def test_a_gateway_that_starts_for_the_first_time_loads_no_more(tmp_path: Path) -> None:
    assert load(SERVE + START, **settings(tmp_path)) & NEVER == set()


@pytest.mark.process
def test_what_only_some_gateways_need_is_loaded_by_those(tmp_path: Path) -> None:
    """Tables are changed where they are old, and windows shared where a server is named."""
    make_tables(tmp_path)
    newer = f"from tests.kit.fault_injection import use_migrations; use_migrations({write_newer_migrations(tmp_path)!r})"
    serve = f"from pathlib import PosixPath; {newer}\n{SERVE}{START}"
    loaded = load(serve, **settings(tmp_path, TOLLWAY_RATE_LIMIT_URL="redis://127.0.0.1:1"))
    assert {"alembic", "redis"} <= loaded
