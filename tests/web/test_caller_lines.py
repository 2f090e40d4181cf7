"""The callers' sockets: found by their far end, asked for room, and never touched."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.upstream import until
from tollway.web.caller_lines import AHEAD_BYTES_MAX, ALL_AHEAD_BYTES_MAX, CallerLine, CallerLines

LITTLE = 64 * 1024
pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel tells nothing here")


class Pair:
    """A caller and the server's end of it."""

    def __init__(self, listener: socket.socket) -> None:
        self.caller = socket.create_connection(listener.getsockname())
        self.server, _ = listener.accept()
        self.server.setblocking(False)

    @property
    def scope(self) -> dict[str, Any]:
        """Ports as the server tells them: as text."""
        host, port = self.caller.getsockname()
        return {"client": (host, str(port)), "server": (host, str(self.caller.getpeername()[1]))}

    def fill(self) -> int:
        """Until the kernel takes no more."""
        count = 0
        try:
            while True:
                count += self.server.send(b"x" * LITTLE)
        except BlockingIOError:
            return count

    def close(self) -> None:
        self.caller.close()
        self.server.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pair = Pair(listener)
        yield pair
        pair.close()


@pytest.fixture
def lines() -> CallerLines:
    return CallerLines()


def find(lines: CallerLines, pair: Pair) -> CallerLine:
    line = lines.find(pair.scope)
    assert line is not None
    return line


async def test_finds_a_socket_by_its_far_end_and_leaves_it_open(lines: CallerLines, pair: Pair) -> None:
    find(lines, pair)
    find(lines, pair)
    pair.server.send(b"still here")
    assert pair.caller.recv(100) == b"still here"


@pytest.mark.parametrize(
    "scope",
    [
        {},
        {"client": None, "server": ("127.0.0.1", 80)},
        {"client": ("testclient", 50_000), "server": ("127.0.0.1", 80)},
        {"client": ("127.0.0.1", "x"), "server": ("127.0.0.1", 80)},
        {"client": ("127.0.0.1",), "server": ("127.0.0.1", 80)},
    ],
)
async def test_whoever_has_no_socket_here_has_no_line(lines: CallerLines, scope: dict[str, Any]) -> None:
    assert lines.find(scope) is None


async def test_a_socket_that_another_caller_has_now_is_not_taken_for_the_first_ones(
    lines: CallerLines,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = Pair(listener)
        scope, number = first.scope, first.server.fileno()
        find(lines, first)
        first.close()
        second = Pair(listener)
        assert number in (second.caller.fileno(), second.server.fileno())
        assert lines.find(scope) is None
        find(lines, second)
        second.close()


async def test_a_little_may_wait_in_the_server(lines: CallerLines, pair: Pair) -> None:
    line = find(lines, pair)
    pair.fill()
    async with asyncio.timeout(5):
        await line.wait_room(LITTLE)


async def test_what_the_kernel_took_is_counted_out_again(lines: CallerLines, pair: Pair) -> None:
    line = find(lines, pair)
    line.note_sent(AHEAD_BYTES_MAX)
    assert lines.ahead == AHEAD_BYTES_MAX
    count = 0
    while count < AHEAD_BYTES_MAX:
        count += pair.server.send(b"x" * LITTLE)
        pair.caller.recv(LITTLE)
    async with asyncio.timeout(5):
        await line.wait_room(LITTLE)
    assert lines.ahead == 0


async def test_no_more_is_given_for_a_caller_who_stands_still_until_he_reads(
    lines: CallerLines, pair: Pair
) -> None:
    line = find(lines, pair)
    line.note_sent(pair.fill() + AHEAD_BYTES_MAX)  # the kernel is full, and the server has more
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(line.wait_room(LITTLE))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        pair.caller.setblocking(False)
        while not waiting.done():
            with contextlib.suppress(BlockingIOError):
                pair.caller.recv(LITTLE)
            await asyncio.sleep(0.001)
    line.close()
    assert lines.ahead == 0


async def test_nobody_waits_for_a_caller_who_has_left(lines: CallerLines, pair: Pair) -> None:
    line = find(lines, pair)
    line.note_sent(pair.fill() + AHEAD_BYTES_MAX)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(line.wait_room(LITTLE))
        await asyncio.sleep(0)
        assert not waiting.done()
        line.release()


async def test_nobody_waits_on_a_line_that_is_gone(lines: CallerLines, pair: Pair) -> None:
    line = find(lines, pair)
    line.note_sent(pair.fill() + AHEAD_BYTES_MAX)
    pair.close()
    async with asyncio.timeout(5):
        await line.wait_room(LITTLE)


async def test_those_who_stand_still_never_have_all_of_what_may_wait(lines: CallerLines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = [Pair(listener) for _ in range(60)]
        for pair in pairs:
            line = find(lines, pair)
            line.note_sent(max(0, lines.find_most(0)))
            assert lines.ahead <= ALL_AHEAD_BYTES_MAX
            pair.close()
    assert 0 < lines.find_most(0) < LITTLE  # whoever comes now is given what the kernel takes, and no more
    await until(lambda: lines.ahead > ALL_AHEAD_BYTES_MAX * 3 // 4)
