"""An answer on its way to its caller, piece by piece: what is sent, under which deadlines, and how it ended.

Nothing is asked of the upstream before the caller has room for it, so that a caller who stands still holds no memory of
ours. Nothing is decided about money here, and nothing sent after the caller has left.
"""

import asyncio
from collections.abc import Callable, Coroutine

from starlette.types import Send

from tollway.errors import UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.exchange import AnswerBody
from tollway.ledger.call import Delivery
from tollway.limits import Limits
from tollway.web.caller_lines import CallerLine


class AnswerStream:
    """How far an answer came. `is_left`: its caller is gone. `line`: of its caller, where it is known."""

    __slots__ = ("_limits", "_line", "_rest", "_send", "delivery", "is_left", "sent")

    def __init__(self, rest: AnswerBody, send: Send, *, line: CallerLine | None, limits: Limits) -> None:
        self._rest = rest
        self._send = send
        self._line = line
        self._limits = limits
        self.is_left = False
        self.sent = 0
        self.delivery = Delivery.PARTIAL

    async def pump(self, first: bytes, wait_gone: Callable[[], Coroutine[None, None, None]] | None) -> None:
        """Streams until the end, the upstream's failure, the caller's leaving, or a caller that takes nothing.

        `wait_gone` returns when the caller has left; None while that cannot be heard.
        """
        try:
            async with asyncio.TaskGroup() as group:
                flow = group.create_task(self._flow(first))
                if wait_gone is not None:
                    watcher = group.create_task(wait_gone())
                    watcher.add_done_callback(lambda _: self._note_left(flow))
                    flow.add_done_callback(lambda _: watcher.cancel())
        finally:
            if self._line is not None:
                self._line.close()

    def _note_left(self, flow: asyncio.Task[None]) -> None:
        """Nobody listens any more; what is kept for a repeat is read on for a while."""
        self.is_left = True
        if self._line is not None:
            self._line.release()
        if self._rest.is_kept and not flow.done():
            asyncio.get_running_loop().call_later(self._limits.answer_collect_s, flow.cancel)
        else:
            flow.cancel()

    async def _flow(self, first: bytes) -> None:
        try:
            # An empty message brings the head to the caller before the first byte of the body is there.
            await self._send_chunk(first)
            del first
            while await self._pass_on():
                if self.is_left and not self._rest.is_kept:
                    return
        except (UpstreamBadResponse, UpstreamTimeout, TimeoutError):
            return
        if not self.is_left:
            self.delivery = Delivery.COMPLETE

    async def _pass_on(self) -> bool:
        """One chunk; False at the end. Nothing of it is here any more when the next is waited for."""
        await self._wait_room()
        chunk = await self._rest.read_chunk()
        if chunk and not self.is_left:
            await self._send_chunk(chunk)
        return bool(chunk)

    async def _send_chunk(self, chunk: bytes) -> None:
        # The server queues five messages or so for a caller who is slow, whatever their size: each of them is small.
        most = self._limits.buffer_bytes
        for start in range(0, len(chunk) or 1, most):
            piece = chunk if len(chunk) <= most else chunk[start : start + most]
            if start:
                await self._wait_room()
            async with asyncio.timeout(self._limits.write_stall_s):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            self.sent += len(piece)
            if self._line is not None:
                self._line.note_sent(len(piece))

    async def _wait_room(self) -> None:
        if self._line is not None and not self.is_left:
            async with asyncio.timeout(self._limits.write_stall_s):
                await self._line.wait_room(self._limits.buffer_bytes)
