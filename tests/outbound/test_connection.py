"""One connection on a pair of sockets: when it can be used, in which order it carries exchanges, and that no reader waits forever."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.kit.waits import until
from tollway.outbound.connection import (
    FIRST_READ_BYTES,
    HEAD_READ_BYTES,
    LARGE_BUFFERS,
    Connection,
    ReadBuffer,
)
from tollway.outbound.http1 import HeadLimits, ResponseMalformed

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ASKED = b"GET / HTTP/1.1\r\n\r\n"
BUFFER_BYTES = 64 * 1024
LONG_S = 5.0


@dataclass
class Wire:
    """A connection and its far end. `lost`: how often it was notified of its loss."""

    connection: Connection
    far: socket.socket
    lost: list[Connection] = field(default_factory=list)

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.far, data)

    async def hear(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.far, 65_536)

    async def ask(self, answer: bytes) -> None:
        """One exchange up to its last byte."""
        self.connection.begin("GET", ASKED)
        assert await self.hear() == ASKED
        await self.say(answer)
        await self.connection.read_head(LONG_S)
        while not self.connection.is_read:
            await self.connection.read_chunk(LONG_S)


@contextlib.asynccontextmanager
async def wired(*, is_tls: bool = False, read_buffer: ReadBuffer | None = None) -> AsyncIterator[Wire]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    lost: list[Connection] = []
    connection = Connection(
        origin="http://a.example",
        is_tls=is_tls,
        handle=near,
        head_limits=HeadLimits(head_bytes=65_536, line_bytes=8_192, headers=100),
        read_buffer=read_buffer or ReadBuffer(BUFFER_BYTES),
        on_lost=lost.append,
    )
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=near)
    try:
        yield Wire(connection, far, lost)
    finally:
        connection.cut()
        await until(lambda: lost == [connection])
        far.close()


# ---------------------------------------------------------------------- may it be used?


async def test_begins_one_exchange_at_a_time() -> None:
    async with wired() as wire:
        wire.connection.begin("GET", ASKED)
        with pytest.raises(AssertionError):
            wire.connection.begin("GET", ASKED)
        assert await wire.hear() == ASKED
        with pytest.raises(BlockingIOError):
            wire.far.recv(1)


@pytest.mark.parametrize("exchanges", [0, 1])
async def test_unexpected_bytes_end_the_connection_at_once(exchanges: int) -> None:
    async with wired() as wire:
        for _ in range(exchanges):
            await wire.ask(OK)
            assert wire.connection.finish()
        assert wire.connection.is_open
        await wire.say(b"H")
        await until(lambda: not wire.connection.is_open)


async def test_a_close_of_the_upstream_ends_the_connection_at_once() -> None:
    async with wired() as wire:
        wire.far.close()
        await until(lambda: not wire.connection.is_open)
        assert not wire.connection.has_no_unread_bytes()


async def test_the_last_look_sees_what_the_loop_has_not() -> None:
    async with wired() as wire:
        assert wire.connection.has_no_unread_bytes()
        wire.far.send(b"H")
        assert (wire.connection.is_open, wire.connection.has_no_unread_bytes()) == (True, False)
    async with wired() as wire:
        wire.far.close()
        assert (wire.connection.is_open, wire.connection.has_no_unread_bytes()) == (True, False)


async def test_session_tickets_of_a_new_tls_connection_are_not_unexpected_bytes() -> None:
    async with wired(is_tls=True) as wire:
        wire.far.send(b"ticket")
        assert wire.connection.has_no_unread_bytes()
    async with wired(is_tls=True) as wire:
        await wire.ask(OK)
        assert wire.connection.finish()
        wire.far.send(b"stray")
        assert not wire.connection.has_no_unread_bytes()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "is_reusable"),
    [
        (OK, True),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 204 No\r\n\r\n", True),
        (b"HTTP/1.1 100 C\r\n\r\n" + OK, True),
        (OK + b"\r\n", False),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nH", False),
        (b"HTTP/1.1 204 No\r\n\r\n\r\n", False),
        (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
    ],
)
async def test_carries_another_exchange_only_after_a_clean_one(answer: bytes, is_reusable: bool) -> None:
    async with wired() as wire:
        await wire.ask(answer)
        assert wire.connection.finish() is is_reusable
        assert wire.connection.is_open is is_reusable
        if is_reusable:
            await wire.ask(OK)
            assert wire.connection.finish()


@pytest.mark.parametrize(
    "answer", [b"", HEAD, OK[:-1], HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0"]
)
async def test_an_exchange_that_is_given_up_cuts_it(answer: bytes) -> None:
    async with wired() as wire:
        wire.connection.begin("GET", ASKED)
        await wire.hear()
        await wire.say(answer)
        assert not wire.connection.finish()
        with contextlib.suppress(ConnectionResetError):  # what it had not read yet makes a reset of it
            assert await wire.hear() == b""


async def test_an_unread_whole_response_leaves_nothing_behind() -> None:
    async with wired() as wire:
        wire.connection.begin("GET", ASKED)
        await wire.hear()
        await wire.say(OK)
        await wire.connection.read_head(LONG_S)
        assert wire.connection.finish()
        wire.connection.begin("GET", ASKED)
        await wire.hear()
        await wire.say(OK.replace(b"ok", b"no"))
        await wire.connection.read_head(LONG_S)
        assert await wire.connection.read_chunk(LONG_S) == b"no"


# ---------------------------------------------------------------------- reading


async def test_a_head_that_comes_in_drops_is_late_all_the_same() -> None:
    async with wired() as wire:
        wire.connection.begin("GET", ASKED)

        async def drip() -> None:
            with contextlib.suppress(OSError):
                for byte in HEAD + b"X: 1\r\n" * 10_000:
                    await wire.say(bytes([byte]))
                    await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as group:
            dripping = group.create_task(drip())
            with pytest.raises(TimeoutError):
                await wire.connection.read_head(0.05)
            dripping.cancel()
        assert not wire.connection.is_open


async def test_a_head_that_is_none_is_known_at_once() -> None:
    async with wired() as wire:
        wire.connection.begin("GET", ASKED)
        await wire.say(b"SSH-2.0-OpenSSH_9.9\r\n")
        with pytest.raises(ResponseMalformed):
            await wire.connection.read_head(LONG_S)
        assert not wire.connection.is_open


@pytest.mark.parametrize("said", [b"", HEAD, HEAD[:5]])
async def test_a_close_instead_of_a_head_is_a_loss(said: bytes) -> None:
    async with wired() as wire:
        wire.connection.begin("GET", ASKED)
        await wire.hear()
        await wire.say(said)
        wire.far.close()
        with pytest.raises(OSError, match="closed the connection"):
            await wire.connection.read_head(LONG_S)


async def test_bytes_before_the_loss_are_read_first() -> None:
    async with wired() as wire:
        wire.connection.begin("GET", ASKED)
        await wire.hear()
        await wire.say(HEAD + b"Content-Length: 9\r\n\r\nshort")
        await wire.connection.read_head(LONG_S)
        wire.far.close()
        assert await wire.connection.read_chunk(LONG_S) == b"short"
        with pytest.raises(OSError, match="closed the connection"):
            await wire.connection.read_chunk(LONG_S)
        assert not wire.connection.is_read


async def test_a_waiting_reader_gets_the_failure_of_a_cut() -> None:
    async with wired() as wire:
        wire.connection.begin("GET", ASKED)

        async def read() -> None:
            with pytest.raises(OSError, match="cut"):
                await wire.connection.read_head(LONG_S)

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            await wire.hear()
            wire.connection.cut()


@pytest.mark.parametrize("said", [b"", HEAD[:5], b"HTTP/9 ?\r\n\r\n"], ids=["closed", "cut", "malformed"])
async def test_a_failed_connection_is_freed_without_the_collector(said: bytes) -> None:
    """What is raised refers to the connection by its traceback. Referred to by it, each failed call would stay with its buffers until the collector looks at its oldest objects."""

    def count() -> int:
        return sum(type(one) is Connection for one in gc.get_objects())

    async def fail() -> None:
        async with wired() as wire:
            wire.connection.begin("GET", ASKED)
            await wire.hear()
            await wire.say(said)
            wire.far.close()
            with contextlib.suppress(OSError, ResponseMalformed):
                await wire.connection.read_head(LONG_S)
        wire.lost.clear()  # it refers to the connection, which refers to it

    gc.collect()
    gc.disable()
    before = count()
    try:
        await fail()
        await until(lambda: count() == before)
    finally:
        gc.enable()


@pytest.mark.parametrize(("large_max", "buffers"), [(0, 1), (1, LARGE_BUFFERS)])
async def test_holds_no_more_of_an_answer_than_its_limit(large_max: int, buffers: int) -> None:
    """A reader as fast as this one may get the large limit, where it is free."""
    whole = 32 * 1024 * 1024
    async with wired(read_buffer=ReadBuffer(BUFFER_BYTES, large_max=large_max)) as wire:
        wire.connection.begin("GET", ASKED)
        await wire.hear()
        await wire.say(HEAD + b"Content-Length: %d\r\n\r\n" % whole)
        await wire.connection.read_head(LONG_S)

        async def flood() -> None:
            await wire.say(b"x" * whole)

        async with asyncio.TaskGroup() as group:
            flooding = group.create_task(flood())
            for _ in range(200):
                await asyncio.sleep(0)
            assert not flooding.done()
            count = 0
            while not wire.connection.is_read:
                chunk = await wire.connection.read_chunk(LONG_S)
                assert len(chunk) <= max(buffers * BUFFER_BYTES, HEAD_READ_BYTES + FIRST_READ_BYTES)
                count += len(chunk)
        assert count == whole
        assert wire.connection.finish()


# ---------------------------------------------------------------------- writing


async def test_a_writer_waits_for_an_upstream_that_takes_nothing_until_it_is_cut() -> None:
    async with wired() as wire:
        wire.connection.begin("POST", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        written = 0

        async def write() -> None:
            nonlocal written
            while await wire.connection.write(b"x" * 65_536):
                written += 1

        async with asyncio.TaskGroup() as group:
            writing = group.create_task(write())
            for _ in range(200):
                await asyncio.sleep(0)
            assert not writing.done()
            assert written < 100
            wire.connection.cut()
        assert not await wire.connection.write(b"x")


async def test_an_answer_before_the_end_of_the_request_is_the_last() -> None:
    """Its upstream may take the rest of the body for the next request."""
    async with wired() as wire:
        wire.connection.begin("POST", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        never = asyncio.Event()

        async def upload() -> None:
            await never.wait()

        async with asyncio.TaskGroup() as group:
            uploading = group.create_task(upload())
            wire.connection.upload(uploading)
            await wire.hear()
            await wire.say(OK)
            await wire.connection.read_head(LONG_S)
            assert await wire.connection.read_chunk(LONG_S) == b"ok"
            assert not wire.connection.finish()
        assert uploading.cancelled()


# ---- The read size of a connection: larger for fast readers, very large for a few of them.


def grow_fully(read_buffer: ReadBuffer) -> int:
    size = read_buffer.first_size
    while (more := read_buffer.grow(size)) != size:
        size = more
    return size


def test_a_fast_reader_gets_twice_the_size_each_time() -> None:
    read_buffer, measures = ReadBuffer(BUFFER_BYTES), [FIRST_READ_BYTES]
    for _ in range(6):
        measures.append(read_buffer.grow(measures[-1]))
    assert [size // 1024 for size in measures] == [16, 32, 64, 128, 256, 256, 256]
    assert len(read_buffer.view) == LARGE_BUFFERS * BUFFER_BYTES
    assert len(read_buffer.head) == HEAD_READ_BYTES + FIRST_READ_BYTES


def test_only_so_many_have_more_than_a_buffer_until_one_gives_it_back() -> None:
    read_buffer = ReadBuffer(BUFFER_BYTES, large_max=2)
    large = [grow_fully(read_buffer) for _ in range(2)]
    assert large == [LARGE_BUFFERS * BUFFER_BYTES] * 2
    assert [grow_fully(read_buffer) for _ in range(3)] == [BUFFER_BYTES] * 3

    assert read_buffer.release_size(BUFFER_BYTES) == FIRST_READ_BYTES
    assert grow_fully(read_buffer) == BUFFER_BYTES, "that one had no large measure to give"

    assert read_buffer.release_size(large[0]) == FIRST_READ_BYTES
    assert grow_fully(read_buffer) == LARGE_BUFFERS * BUFFER_BYTES
    assert grow_fully(read_buffer) == BUFFER_BYTES


def test_a_measure_is_never_more_than_a_small_buffer() -> None:
    assert ReadBuffer(1_000).first_size == 1_000
