"""The limit of concurrent reads of the catalog, which no other request waits for."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from tollway.web.http.admission import CatalogReadLimit

LIST = "/api/v2/apis"


class SlowApp:
    """Handles each request until `finish` is set, then starts its response, and ends it when `is_read` is set."""

    def __init__(self) -> None:
        self.working = 0
        self.begun = 0
        self.finish = asyncio.Event()
        self.is_read = asyncio.Event()
        self.fails = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.working += 1
        self.begun += 1
        await self.finish.wait()
        self.working -= 1
        if self.fails:
            raise OSError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.is_read.wait()
        await send({"type": "http.response.body", "body": b""})


async def ask(turns: CatalogReadLimit, path: str = LIST, method: str = "GET") -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise NotImplementedError

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
    await turns(scope, receive, send)
    return sent


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "path", [LIST, f"{LIST}/api_1", f"{LIST}/api_1/discovery", "/x402/discovery/search", "/"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_limits_concurrent_reads_of_the_catalog(path: str, method: str) -> None:
    app = SlowApp()
    turns = CatalogReadLimit(app, at_once=2)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(turns, path, method)) for _ in range(5)]
        await settle()
        assert app.working == 2
        app.is_read.set()
        app.finish.set()
    assert all(len(task.result()) == 2 for task in tasks)


async def test_a_slow_client_does_not_delay_other_reads() -> None:
    app = SlowApp()
    app.finish.set()
    turns = CatalogReadLimit(app, at_once=1)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(ask(turns))
        await settle()
        assert app.begun == 3, "each answer has begun, none has ended"
        app.is_read.set()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", LIST),
        ("PUT", f"{LIST}/api_1"),
        ("POST", f"{LIST}/api_1/ownership"),
        ("GET", "/api/v2/payments/0x01"),
        ("GET", "/healthz"),
    ],
)
async def test_other_requests_do_not_wait(method: str, path: str) -> None:
    app = SlowApp()
    turns = CatalogReadLimit(app, at_once=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(ask(turns))
        await settle()
        group.create_task(ask(turns, path, method))
        await settle()
        assert app.working == 2
        app.is_read.set()
        app.finish.set()


async def test_a_failed_and_a_cancelled_read_release_their_slots() -> None:
    app = SlowApp()
    app.fails = True
    turns = CatalogReadLimit(app, at_once=1)
    async with asyncio.TaskGroup() as group:
        gone = group.create_task(ask(turns))
        await settle()
        gone.cancel()
    app.finish.set()
    with pytest.raises(OSError):
        await ask(turns)
    app.fails = False
    app.is_read.set()
    assert len(await ask(turns)) == 2
