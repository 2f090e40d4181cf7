"""A request starts in the callback of the server where Python can do that (3.12), and ends as it does elsewhere."""

import asyncio
import contextlib
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

import pytest
from granian import _futures
from starlette.types import Receive, Scope, Send

from tests.kit.gateway import serve_app
from tests.kit.waits import until
from tollway.limits import DEFAULT_LIMITS
from tollway.web.http import server

CAN_START_EAGERLY = sys.version_info >= (3, 12)
REQUEST = b"GET / HTTP/1.1\r\nHost: gw.example.com\r\n\r\n"
GRANIANS_OWN = """
def _cbsched_aioschedule(loop, ctx, cb):
    def _run(coro, watcher):
        task = loop.create_task(coro)
        watcher.taskref(task)

    def _schedule(watcher):
        loop.call_soon_threadsafe(_run, cb(watcher), watcher, context=ctx)

    return _schedule
"""

App = Callable[[Scope, Receive, Send], Awaitable[None]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connected(app: App) -> AsyncIterator[Connection]:
    """A connection to the real server with this application."""

    async def serve_requests(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    async with serve_app(serve_requests, limits=DEFAULT_LIMITS) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def ask(connection: Connection) -> tuple[int, bytes]:
    reader, writer = connection
    writer.write(REQUEST)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split(b" ")[1]), await reader.readexactly(length)


async def respond(send: Send, body: bytes = b"ok") -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def suspend() -> None:
    """Gives the loop one iteration."""
    await asyncio.sleep(0)


async def test_a_request_starts_in_the_callback_that_creates_its_task() -> None:
    files: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != "future_watcher":
            frame = frame.f_back
        assert frame is not None
        files.append(frame.f_back.f_code.co_filename if frame.f_back is not None else "")
        await respond(send)

    async with connected(app) as connection:
        assert await ask(connection) == (200, b"ok")
    assert [file == _futures.__file__ for file in files] == [CAN_START_EAGERLY]


def test_granian_does_not_start_requests_eagerly_itself() -> None:
    """If this fails, granian has changed: remove `start_requests_eagerly` where granian starts them so, else check that
    it still creates the task by the loop that it is given."""
    text = Path(_futures.__file__).read_text()
    assert GRANIANS_OWN in text
    assert "eager" not in text


def test_python_3_11_keeps_the_function_of_granian() -> None:
    server.start_requests_eagerly()
    is_granians = _futures._cbsched_aioschedule.__module__ == _futures.__name__
    assert is_granians != CAN_START_EAGERLY


async def fail_at_once(send: Send) -> None:
    raise LookupError("in the first step")


async def fail_later(send: Send) -> None:
    await suspend()
    raise LookupError("in the second step")


async def end_without_a_response(send: Send) -> None:
    pass


async def cancel_at_once(send: Send) -> None:
    raise asyncio.CancelledError


async def cancel_at_the_next_wait(send: Send) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await suspend()
    await respond(send, b"not cancelled")


async def respond_at_once(send: Send) -> None:
    await respond(send)


async def respond_later(send: Send) -> None:
    await suspend()
    await respond(send)


async def time_out(send: Send) -> None:
    """A deadline of the first step cancels this request and no other task."""
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        await respond(send, b"timed out")


async def start_tasks(send: Send) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(suspend()) for _ in range(3)]
        assert not any(task.done() for task in tasks), "only requests start eagerly"
    await respond(send)


ENDS = [
    (respond_at_once, (200, b"ok")),
    (respond_later, (200, b"ok")),
    (fail_at_once, (500, b"Internal server error")),
    (fail_later, (500, b"Internal server error")),
    (end_without_a_response, (500, b"Internal server error")),
    (cancel_at_once, (500, b"Internal server error")),
    (cancel_at_the_next_wait, (500, b"Internal server error")),
    (time_out, (200, b"timed out")),
    (start_tasks, (200, b"ok")),
]


@pytest.mark.parametrize(("handle", "response"), ENDS, ids=[handle.__name__ for handle, _ in ENDS])
async def test_a_request_ends_equally_in_its_first_step_and_later(
    handle: Callable[[Send], Awaitable[None]], response: tuple[int, bytes]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await handle(send)

    async with connected(app) as connection:
        assert [await ask(connection) for _ in range(2)] == [response] * 2


async def test_a_request_has_its_own_context() -> None:
    seen = ContextVar("seen", default=b"nothing")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        before = seen.get()
        seen.set(b"this request")
        await suspend()
        await respond(send, before + b", then " + seen.get())

    async with connected(app) as connection:
        assert [await ask(connection) for _ in range(2)] == [(200, b"nothing, then this request")] * 2
    assert seen.get() == b"nothing"


async def test_the_loop_knows_a_request_in_its_first_step_and_later() -> None:
    """At its end the loop cancels all tasks that it knows."""
    known: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        known.append(asyncio.current_task() in asyncio.all_tasks())
        await suspend()
        known.append(asyncio.current_task() in asyncio.all_tasks())
        await respond(send)

    async with connected(app) as connection:
        await ask(connection)
    assert known == [True, True]


async def test_a_waiting_request_can_be_cancelled() -> None:
    waiting: list[asyncio.Task[None]] = []
    ends: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        waiting.append(task)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async with connected(app) as connection, asyncio.TaskGroup() as group:
        response = group.create_task(ask(connection))
        await until(lambda: len(waiting) == 1)
        waiting[0].cancel()
    assert response.result()[0] == 500
    assert ends == ["cancelled"]


async def test_a_client_that_leaves_is_reported_to_its_request() -> None:
    received: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received.append((await receive())["type"])
        received.append((await receive())["type"])

    async with connected(app) as (_, writer):
        writer.write(REQUEST)
        await until(lambda: received == ["http.request"])
        writer.transport.abort()
        await until(lambda: received == ["http.request", "http.disconnect"])


@pytest.mark.parametrize("handle", [respond_at_once, respond_later, fail_at_once])
async def test_a_request_that_has_ended_leaves_no_task(handle: Callable[[Send], Awaitable[None]]) -> None:
    tasks: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        del task
        await handle(send)

    gc.disable()  # by reference counts alone
    try:
        async with connected(app) as connection:
            for _ in range(3):
                await ask(connection)
            await until(lambda: not tasks)
    finally:
        gc.enable()
