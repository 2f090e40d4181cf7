"""Windows that gateways share, on a real server: the counts, the stored keys, and every outage."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from limits import RateLimitItemPerMinute
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from tests.kit.fixed_limits import load_with_fixed_limits
from tests.kit.valkey import run_valkey
from tests.kit.waits import DEADLINE_S, bounded, until
from tollway.app.lifecycle import App
from tollway.rate_limits.redis_windows import PENDING_MAX, RedisWindows

TWICE = RateLimitItemPerMinute(2, namespace="twice")
MANY = RateLimitItemPerMinute(1_000, namespace="many")
WALLET = "0x" + "a1" * 20
_NAMES = itertools.count(1)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with run_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A server that the test may stop."""
    with run_valkey(tmp_path) as server:
        yield server


@pytest.fixture
def namespace() -> str:
    """A public URL of this test only."""
    return f"https://gw-{next(_NAMES)}.example.com"


@asynccontextmanager
async def windows(url: str, namespace: str, **more: Any) -> AsyncIterator[RedisWindows]:
    """Windows with a long deadline: only the test of the deadline lets it pass."""
    told = {"secret": b"s" * 32, "deadline_s": DEADLINE_S, "retry_s": 1.0, **more}
    shared = RedisWindows(url, namespace=namespace, **told)
    await shared.open()
    try:
        yield shared
    finally:
        await shared.close()


@pytest.mark.parametrize("door", ["url", "socket_url"])
async def test_gateways_of_one_name_count_together(standing: Any, namespace: str, door: str) -> None:
    url = getattr(standing, door)
    async with windows(url, namespace) as one, windows(url, namespace) as two:
        assert [await one.hit(TWICE, "a"), await two.hit(TWICE, "a")] == [True, True]
        assert [await one.hit(TWICE, "a"), await two.hit(TWICE, "a")] == [False, False]
        assert await one.hit(TWICE, "b") is True
        async with windows(url, namespace + ".other") as other:
            assert await other.hit(TWICE, "a") is True


async def test_a_peek_counts_nothing(standing: Any, namespace: str) -> None:
    async with windows(standing.url, namespace) as shared:
        for _ in range(3):
            assert (await shared.peek(TWICE, "a")).left == 2  # type: ignore[union-attr]
        await shared.hit(TWICE, "a")
        assert (await shared.peek(TWICE, "a")).left == 1  # type: ignore[union-attr]


async def test_a_crowd_gets_no_more_than_the_limit(standing: Any, namespace: str) -> None:
    async with windows(standing.url, namespace) as one, windows(standing.url, namespace) as two:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(shared.hit(TWICE, "a")) for shared in (one, two) for _ in range(100)]
        assert [task.result() for task in tasks].count(True) == 2


async def test_keys_at_the_server_contain_no_identity_and_expire(standing: Any, namespace: str) -> None:
    async with windows(standing.url, namespace) as shared:
        await shared.hit(TWICE, "192.0.2.7", WALLET)
    keys = [key for key in standing.client.scan_iter() if namespace.encode() in key and b"probe" not in key]
    (key,) = keys
    assert key.startswith(f"tollway:{namespace}:twice/".encode())
    assert WALLET.encode() not in key
    assert b"192.0.2.7" not in key
    assert 0 < standing.client.ttl(key) <= 60


async def test_without_the_secret_a_key_cannot_be_computed(standing: Any, namespace: str) -> None:
    async with (
        windows(standing.url, namespace) as one,
        windows(standing.url, namespace, secret=b"t" * 32) as two,
    ):
        await one.hit(TWICE, "a")
        assert (await two.peek(TWICE, "a")).left == 2  # type: ignore[union-attr]


async def test_a_recorded_hit_is_counted_soon(standing: Any, namespace: str) -> None:
    async with (
        windows(standing.url, namespace) as one,
        windows(standing.url, namespace) as two,
        asyncio.timeout(DEADLINE_S),
        asyncio.TaskGroup() as group,
    ):
        chore = group.create_task(one.send_pending())
        for _ in range(2):
            one.count_hit(TWICE, "a")
        while (await two.peek(TWICE, "a")).left:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        chore.cancel()


async def test_a_returned_hit_counts_at_no_gateway(standing: Any, namespace: str) -> None:
    async with windows(standing.url, namespace) as one, windows(standing.url, namespace) as two:
        for _ in range(2):
            await one.hit(TWICE, "a")
        one.undo_hit(TWICE, "a")
        one.count_hit(TWICE, "b")
        await one.send_pending()
        assert [await two.hit(TWICE, "a"), await two.hit(TWICE, "a")] == [True, False]
        assert (await two.peek(TWICE, "b")).left == 1  # type: ignore[union-attr]


async def test_at_most_the_counted_hits_are_returned(standing: Any, namespace: str) -> None:
    async with windows(standing.url, namespace) as shared:
        shared.undo_hit(TWICE, "a")
        await shared.send_pending()
        assert [await shared.hit(TWICE, "a") for _ in range(3)] == [True, True, False]


# ---- Outages.


async def test_an_outage_of_the_server_and_its_end_are_reported_once(server: Any, namespace: str) -> None:
    told: list[bool] = []
    with capture_logs() as lines:
        async with windows(server.url, namespace, on_change=told.append) as shared:
            assert await shared.hit(MANY, "a") is True
            server.kill()
            assert [await shared.hit(MANY, "a") for _ in range(20)] == [None] * 20
            await shared.check_server()
            assert await shared.peek(MANY, "a") is None
            assert shared.is_up is False
            server.start()
            await shared.check_server()
            assert await shared.hit(MANY, "a") is True
    assert told == [True, False, True]
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("info", "shared_rates_up"),
        ("warning", "shared_rates_away"),
        ("info", "shared_rates_up"),
    ]


async def test_a_gateway_may_start_before_its_server(server: Any, namespace: str) -> None:
    server.kill()
    told: list[bool] = []
    async with windows(server.url, namespace, on_change=told.append) as shared:
        assert await shared.hit(MANY, "a") is None
        server.start()
        await shared.check_server()
        assert await shared.hit(MANY, "a") is True
    assert told == [False, True]


async def test_a_server_that_hangs_causes_one_wait(server: Any, namespace: str) -> None:
    async with windows(server.url, namespace, deadline_s=0.2) as shared:
        await until_up(shared)
        server.halt()
        assert await shared.hit(MANY, "a") is None
        with pytest.raises(StopIteration) as answered:
            shared.hit(MANY, "a").send(None)  # it does not wait
        assert answered.value.value is None
        await shared.check_server()
        assert shared.is_up is False
        server.go_on()
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await shared.hit(TWICE, "a")) is None:  # down, or a pause of the machine
                await shared.check_server()
        assert answer is True


async def until_up(shared: RedisWindows) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not shared.is_up:
            await shared.check_server()


async def test_a_read_only_server_is_an_outage(server: Any, namespace: str) -> None:
    async with windows(server.url, namespace) as shared:
        server.client.replicaof("127.0.0.1", server.port + 1)
        await shared.check_server()
        assert shared.is_up is False
        server.client.replicaof("NO", "ONE")
        await shared.check_server()
        assert shared.is_up is True


async def test_a_full_server_is_an_outage(server: Any, namespace: str) -> None:
    async with windows(server.url, namespace) as shared:
        server.client.config_set("maxmemory", "1")
        assert await shared.hit(TWICE, "a") is None
        await shared.check_server()
        assert shared.is_up is False
        server.client.config_set("maxmemory", "0")
        await shared.check_server()
        assert await shared.hit(TWICE, "a") is True


async def test_a_wrong_password_is_an_outage_and_is_not_logged(server: Any, namespace: str) -> None:
    server.kill()
    server.start("--requirepass", "right")
    url = server.url.replace("//", "//:hush-hush@")
    with capture_logs() as lines:
        async with windows(url, namespace) as shared:
            assert await shared.hit(MANY, "a") is None
        async with windows(url.replace("hush-hush", "right"), namespace) as shared:
            assert await shared.hit(MANY, "a") is True
    assert "hush" not in str(lines)
    assert "hush" not in repr(shared)
    assert lines[0]["cause"] == "AuthenticationError"


async def test_a_user_with_the_documented_rights_is_enough(server: Any, namespace: str) -> None:
    commands = ["+evalsha", "+script|load", "+lindex", "+lpush", "+ltrim", "+expire"]
    server.client.acl_setuser("gate", enabled=True, passwords="+pw", keys=["tollway:*"], commands=commands)
    async with windows(server.url.replace("//", "//gate:pw@"), namespace) as shared:
        assert [await shared.hit(TWICE, "a") for _ in range(3)] == [True, True, False]
        assert (await shared.peek(TWICE, "a")).left == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 30])
async def test_a_cancelled_request_leaves_no_response_for_the_next(
    standing: Any, namespace: str, turns: int
) -> None:
    async with windows(standing.url, namespace) as shared:
        standing.halt()
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(shared.hit(MANY, "a")) for _ in range(5)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in asking:
                task.cancel()
            standing.go_on()
        assert all(task.cancelled() for task in asking)
        assert (await shared.peek(TWICE, "b")).left == 2  # type: ignore[union-attr]
        assert [await shared.hit(TWICE, "b") for _ in range(3)] == [True, True, False]


async def test_a_cancellation_that_redis_py_loses_still_takes_effect(standing: Any, namespace: str) -> None:
    """redis-py can lose a cancellation while it checks an idle connection (Python 3.11)."""
    has_begun = asyncio.Event()

    async def lose_it() -> bool:
        has_begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return True

    async with windows(standing.url, namespace) as shared, asyncio.TaskGroup() as group:
        asking = group.create_task(shared._send(lose_it))
        await bounded(has_begun.wait())
        asking.cancel()
    assert asking.cancelled()


async def test_waiting_records_have_a_maximum(standing: Any, namespace: str) -> None:
    async with windows(standing.url, namespace) as shared:
        for _ in range(PENDING_MAX + 100):
            shared.count_hit(MANY, "a")  # the event loop does not run the sender
        assert shared._pending.qsize() == PENDING_MAX


async def test_records_are_not_kept_during_an_outage(server: Any, namespace: str) -> None:
    server.kill()
    async with windows(server.url, namespace) as shared:
        shared.count_hit(MANY, "a")
        assert shared._pending.empty()


# ---- Settings, and a gateway.


async def test_a_gateway_checks_periodically_whether_its_server_is_back(server: Any, tmp_path: Path) -> None:
    told = {
        "RPC_SANDBOX": "http://127.0.0.1:1",
        "DATABASE_URL": f"sqlite:///{tmp_path}/books.sqlite3",
        "RATE_LIMIT_URL": server.url,
    }
    quick = {"TEST_LIMIT_SHARED_RATES_DEADLINE_S": "10", "TEST_LIMIT_SHARED_RATES_RETRY_S": "0.01"}
    settings = load_with_fixed_limits({**{f"TOLLWAY_{name}": value for name, value in told.items()}, **quick})
    assert server.url not in repr(settings)
    async with App(settings) as app:

        def is_told(value: int) -> bool:
            return f"tollway_shared_rates_up {value}.0" in generate_latest(app.metrics.registry).decode()

        assert is_told(1)
        server.kill()
        await until(lambda: is_told(0))
        server.start()
        await until(lambda: is_told(1))
