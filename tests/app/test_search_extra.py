"""The extra for search by meaning, as a gateway loads it."""

import secrets
import sys
from pathlib import Path

import pytest

from tests.kit.listings import PROVIDER, sample_listing
from tests.kit.stores import InlineDatabase
from tollway.app.doctor_findings import examine_local
from tollway.app.lifecycle import App
from tollway.app.search_extra import load_extra, make_meaning_search
from tollway.config.settings import load_settings
from tollway.observability.background import TaskName
from tollway.registry.catalog import ListingQuery
from tollway.registry.meaning import EXTRA_PACKAGES

AIRCRAFT = sample_listing(provider=PROVIDER, name="Aircraft", description="Live positions of aircraft.")


def make_app(folder: Path) -> App:
    return App(
        load_settings(
            {
                "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
                "TOLLWAY_DATABASE_URL": f"sqlite:///{folder}/books.sqlite3",
                "TOLLWAY_SECRET_KEY": secrets.token_hex(32),
                "TOLLWAY_GAS_KEYS_SANDBOX": "11" * 32,
            }
        )
    )


@pytest.mark.parametrize("missing", EXTRA_PACKAGES)
def test_without_one_of_its_packages_the_extra_is_not_there(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    assert make_meaning_search(InlineDatabase()) is None
    assert load_extra() is False


def test_with_its_packages_it_can_be_read() -> None:
    assert load_extra() is True


@pytest.mark.parametrize(
    ("missing", "level", "words"),
    [
        (None, "ok", "by words and by meaning"),
        ("numpy", "note", "by words; with pip install 'tollway[search]' also by meaning"),
    ],
)
async def test_doctor_says_whether_the_extra_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str | None, level: str, words: str
) -> None:
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    app = make_app(tmp_path)
    found = {one.check: one async for one in examine_local(app.settings, app.database)}
    assert (found["search"].level, found["search"].detail) == (level, words)


@pytest.mark.parametrize("missing", [*EXTRA_PACKAGES, None])
async def test_a_gateway_searches_by_meaning_where_the_extra_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str | None
) -> None:
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    async with make_app(tmp_path) as app:
        await app.catalog.publish(AIRCRAFT)
        if app.meaning_search is not None:
            assert await app.background[TaskName.SEARCH_VECTORS].attempt(app.meaning_search.refresh)
        page = await app.catalog.search(ListingQuery(words="airplanes overhead"))
    assert page.total == (1 if missing is None else 0)
