"""An answer on its way to its caller, piece by piece: what is sent, under which deadlines, and how it ended.

Nothing is asked of the upstream before the caller has room for it, so that a caller who stands still holds no memory of
ours. Nothing is decided about money here, and nothing sent after the caller has left.
"""

import asyncio
from collections.abc import Callable, Coroutine

from starlette.types import Send

from tollway.errors import UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.exchange import ResponseBody
from tollway.ledger.call import Delivery
from tollway.limits import Limits
from tollway.web.caller_lines import ClientSocket


class ResponseStream:
    """How far an answer came. `is_client_gone`: its caller is gone. `client_socket`: of its caller, where it is known."""

    __slots__ = ("_client_socket", "_limits", "_rest", "_send", "delivery", "is_client_gone", "sent")

    def __init__(
        self, rest: ResponseBody, send: Send, *, client_socket: ClientSocket | None, limits: Limits
    ) -> None:
        self._rest = rest
        self._send = send
        self._client_socket = client_socket
        self._limits = limits
        self.is_client_gone = False
        self.sent = 0
        self.delivery = Delivery.PARTIAL

    async def pump(
        self, first: bytes, wait_disconnect: Callable[[], Coroutine[None, None, None]] | None
    ) -> None:
        """Streams until the end, the upstream's failure, the caller's leaving, or a caller that takes nothing.

        `wait_disconnect` returns when the caller has left; None while that cannot be heard.
        """
        try:
            async with asyncio.TaskGroup() as group:
                flow = group.create_task(self._flow(first))
                if wait_disconnect is not None:
                    watcher = group.create_task(wait_disconnect())
                    watcher.add_done_callback(lambda _: self._on_client_gone(flow))
                    flow.add_done_callback(lambda _: watcher.cancel())
        finally:
            if self._client_socket is not None:
                self._client_socket.close()

    def _on_client_gone(self, flow: asyncio.Task[None]) -> None:
        """Nobody listens any more; what is kept for a repeat is read on for a while."""
        self.is_client_gone = True
        if self._client_socket is not None:
            self._client_socket.release()
        if self._rest.is_recorded and not flow.done():
            asyncio.get_running_loop().call_later(self._limits.answer_collect_s, flow.cancel)
        else:
            flow.cancel()

    async def _flow(self, first: bytes) -> None:
        try:
            # An empty message brings the head to the caller before the first byte of the body is there.
            await self._send_chunk(first)
            del first
            while await self._relay_chunk():
                if self.is_client_gone and not self._rest.is_recorded:
                    return
        except (UpstreamBadResponse, UpstreamTimeout, TimeoutError):
            return
        if not self.is_client_gone:
            self.delivery = Delivery.COMPLETE

    async def _relay_chunk(self) -> bool:
        """One chunk; False at the end. Nothing of it is here any more when the next is waited for."""
        await self._wait_writable()
        chunk = await self._rest.read_chunk()
        if chunk and not self.is_client_gone:
            await self._send_chunk(chunk)
        return bool(chunk)

    async def _send_chunk(self, chunk: bytes) -> None:
        # The server queues five messages or so for a caller who is slow, whatever their size: each of them is small.
        most = self._limits.buffer_bytes
        for start in range(0, len(chunk) or 1, most):
            piece = chunk if len(chunk) <= most else chunk[start : start + most]
            if start:
                await self._wait_writable()
            async with asyncio.timeout(self._limits.write_stall_s):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            self.sent += len(piece)
            if self._client_socket is not None:
                self._client_socket.add_sent(len(piece))

    async def _wait_writable(self) -> None:
        if self._client_socket is not None and not self.is_client_gone:
            async with asyncio.timeout(self._limits.write_stall_s):
                await self._client_socket.wait_writable(self._limits.buffer_bytes)
