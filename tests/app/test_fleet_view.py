"""What one gateway knows of all gateways of its database: their release, their leases, and what each leads; and its own risks."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.kit.waits import until
from tollway import __version__
from tollway.app.lifecycle import App
from tollway.config.settings import load_settings
from tollway.storage.engine.leadership import Duty
from tollway.storage.engine.migrate import list_revisions


def make_app(url: str, *, port: int) -> App:
    return App(
        load_settings(
            {
                "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
                "TOLLWAY_DATABASE_URL": url,
                "TOLLWAY_SECRET_KEY": "00112233445566778899aabbccddeeff" * 2,
                "TOLLWAY_LISTEN": f"127.0.0.1:{port}",
            }
        )
    )


async def knows_all(app: App, count: int) -> bool:
    gateways, leaders = await app.fleet_view.list_gateways(), await app.fleet_view.find_leaders()
    return sum(one.build is not None for one in gateways) == count and all(
        leader.is_led and leader.owner_id is not None for leader in leaders
    )


@pytest.mark.parametrize(
    ("url_of", "count"),
    [("sqlite_url", 1), pytest.param("postgres_url", 2, marks=pytest.mark.postgres)],
    ids=("sqlite", "two gateways on postgresql"),
)
async def test_a_gateway_knows_the_release_and_the_duties_of_all(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url_of: str,
    count: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    url = request.getfixturevalue(url_of)
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(make_app(url, port=8402 + number)) for number in range(count)]
        for app in apps:
            await until(partial(knows_all, app, count))
        for app in apps:
            gateways = {one.owner_id: one for one in await app.fleet_view.list_gateways()}
            assert gateways.keys() == {one.ledger.owner_id for one in apps}
            builds = [one.build for one in gateways.values() if one.build is not None]
            assert sorted(build.name.rpartition(":")[2] for build in builds) == [
                str(8402 + number) for number in range(count)
            ]
            assert {(build.version, build.schema) for build in builds} == {(__version__, list_revisions()[0])}
            assert all(one.is_alive for one in gateways.values())
            leaders = await app.fleet_view.find_leaders()
            assert [leader.duty for leader in leaders] == [duty.label for duty in Duty]
            assert {leader.owner_id for leader in leaders} <= gateways.keys()


async def test_the_risks_of_a_gateway_are_the_warnings_of_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with make_app(f"sqlite:///{tmp_path}/books.db", port=8402) as app:
        before = await app.fleet_view.find_risks()
        repeated = (task for task in app.background if task.is_running and task.interval_s is not None)
        late = max(repeated, key=lambda task: task.interval_s or 0.0)  # it does not run again during the test
        late.succeeded_s -= 10_000_000
        after = await app.fleet_view.find_risks()
        assert len(after) == len(before) + 1
        assert any(risk.startswith(f"background task {late.name.value} ran well") for risk in after)
        assert all("redis" not in risk for risk in after)
