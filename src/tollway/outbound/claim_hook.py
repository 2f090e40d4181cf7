"""The way out, the step between "a connection is held" and "the first byte leaves": check it, claim, mark, send.

This is where a paid call becomes irrevocable. Nothing is written to a connection that is not clean, nothing before
the claim is durable or after it has grown old, and nothing twice.
"""

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientResponse
from aiohttp.connector import Connection

from tollway.errors import Code, Problem, Refusal
from tollway.outbound.upstream import Progress, stream_body

_READABLE = select.POLLIN | select.POLLERR | select.POLLHUP


STOOD_STILL = Problem(
    code=Code.OVERLOADED,
    detail="The gateway stood still for too long to send this call. Nothing was sent.",
    retry_after_s=1,
)


class ConnectionUnusable(aiohttp.ClientError):
    """A connection turned out stale, poisoned or too long idle before anything was written to it."""


class NothingSent(aiohttp.ClientError):
    """The hook stopped the request. Not an OSError, so that aiohttp neither wraps nor repeats it."""


@dataclass(slots=True, kw_only=True)
class Sending:
    """One request on its way; the hook finds it in `SENDING`."""

    before_send: Callable[[], Awaitable[None]]
    progress: Progress
    ticks_ms: Callable[[], int]
    claim_ms_max: int
    head_deadline_s: float
    idle_s_max: float
    is_streamed: bool
    scope: asyncio.Timeout | None = None
    protocol: ResponseHandler | None = None
    transport: asyncio.WriteTransport | None = None
    refusal: Exception | None = None  # what before_send raised, or that it came too late
    asked_ms: int = 0  # when before_send began
    body_failure: Exception | None = None  # what the request body's iterator raised

    async def watch_body(
        self, body: AsyncIterator[bytes], *, content_length: int | None
    ) -> AsyncIterator[bytes]:
        """The body, with its failure remembered: aiohttp would show it as a broken connection. The head deadline
        begins anew with each piece, so that it counts from the last one."""
        count = 0
        try:
            async for chunk in stream_body(body, content_length=content_length):
                count += len(chunk)
                if count == content_length:
                    self.progress.body_handed_over = True
                self.restart_deadline()
                yield chunk
            self.progress.body_handed_over = True
            self.restart_deadline()
        except Exception as exc:
            self.body_failure = exc
            raise

    def is_late(self) -> bool:
        """The claim is so old that the other gateways may take this one for dead, and run its call themselves."""
        return self.ticks_ms() - self.asked_ms > self.claim_ms_max

    def restart_deadline(self) -> None:
        """Nothing to restart once the head is here, or the deadline has passed."""
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(asyncio.get_running_loop().time() + self.head_deadline_s)


SENDING: ContextVar[Sending] = ContextVar("tollway_sending")


class ClaimingRequest(aiohttp.ClientRequest):
    """aiohttp's request with our step in it; aiohttp calls `send` once it holds a connection."""

    async def send(self, conn: Connection) -> ClientResponse:
        sending = SENDING.get()
        progress = sending.progress
        protocol = conn.protocol
        if progress.sent:  # a second send of one request, whoever asks for it
            raise NothingSent
        if protocol is None or not is_usable(protocol, idle_s_max=sending.idle_s_max):
            raise ConnectionUnusable
        if not progress.claimed:
            sending.asked_ms = sending.ticks_ms()
            try:
                await sending.before_send()
            except Exception as exc:
                sending.refusal = exc
                conn.release()  # untouched, so good for the next caller
                raise NothingSent from exc
            progress.claimed = True
            if not is_usable(protocol, idle_s_max=sending.idle_s_max):
                raise ConnectionUnusable
        if sending.is_late():  # the last look before the first byte
            sending.refusal = Refusal(STOOD_STILL)
            conn.release()
            raise NothingSent
        progress.sent = True
        progress.body_handed_over = not sending.is_streamed
        sending.protocol, sending.transport = protocol, conn.transport
        sending.restart_deadline()
        conn.add_callback(partial(_mark_used, protocol))
        response = await super().send(conn)
        if not self.body:
            progress.body_wholly_sent = True
        return response

    async def write_bytes(self, writer: Any, conn: Connection, content_length: int | None = None) -> None:
        sending = SENDING.get()
        await super().write_bytes(writer, conn, content_length)
        # aiohttp keeps a failed write to itself and leaves it on the protocol.
        if conn.protocol is not None and conn.protocol.exception() is None:
            sending.progress.body_wholly_sent = True


def _mark_used(protocol: ResponseHandler) -> None:
    protocol.__dict__["tollway_used_at"] = monotonic()


def is_usable(protocol: ResponseHandler, *, idle_s_max: float) -> bool:
    """False for a connection that is closed, holds bytes nobody asked for, or was idle for too long.

    Unread bytes on an idle connection would become the answer to the next request on it.
    """
    if protocol.should_close or not protocol.is_connected():
        return False
    used_at = protocol.__dict__.get("tollway_used_at")
    if used_at is None:
        return True
    if monotonic() - used_at >= idle_s_max:
        return False
    # What the event loop has not seen yet: a FIN, a reset or stray bytes in the kernel's buffer.
    handle = protocol.transport.get_extra_info("socket") if protocol.transport is not None else None
    if handle is None or handle.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(handle.fileno(), _READABLE)
    return not poll.poll(0)
