"""The data plane: raw ASGI in front of the call pipeline.

Parses the request, streams the response under deadlines in both directions, and closes the connection when a response body is incomplete. It writes a
response only as fast as the client's socket accepts it: `ClientSockets` asks the kernel for the bytes that each socket has accepted. Decides nothing about money.
"""

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Coroutine, Iterable, MutableMapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import structlog
from starlette.types import Message, Receive, Scope, Send

from tollway.discovery.safe_text import clean_line
from tollway.errors import Code, Problem, Refusal, UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.headers import is_chunked_alone, proxy_status
from tollway.gateway.messages import (
    ClientGone,
    Outcome,
    ProblemResponse,
    ProxyRequest,
    ProxyResponse,
    ResponseBody,
)
from tollway.gateway.pipeline import CallPipeline
from tollway.gateway.problems import name_proxy_error
from tollway.gateway.target import GATEWAY_PREFIX, split_target
from tollway.ids import ListingId
from tollway.ledger.records import Delivery
from tollway.limits import Limits
from tollway.observability.call_trace import CallTrace, replace_traceparent
from tollway.web.calls.gateway_traces import (
    StartTrace,
    describe_outcome,
    trace_stream,
    traced_call,
)
from tollway.web.calls.payment_required import PaymentRequiredRenderer
from tollway.web.http.admission import BodyBudget, BodyPace, BodyReservation, LoadShedder
from tollway.web.http.middleware import BODY_INCOMPLETE, check_request_line
from tollway.web.http.page_response import is_navigation
from tollway.web.http.problems import instance_of, render_problem, status_of
from tollway.web.pages.kept_call import keep_call
from tollway.web.pages.page_problems import NAME_LENGTH_MAX, SHOWN_STATUSES, ProblemPages, QuotedApi

_FD_FOLDER = "/proc/self/fd"
_SocketAddresses = tuple[str, int, int]
_ACKED = struct.Struct("=120xQ")
"""tcpi_bytes_acked in Linux's tcp_info."""
_POLL_PAUSES_S = (0, 0, 0, 0, 0.001, 0.002, 0.004, *[0.01] * 50)
"""The pauses between checks that the server has written its last message. Its thread may be late when many responses start at once."""
AHEAD_BYTES_MAX = 1024 * 1024
"""The most bytes in the server's queue for one client: what a fast client reads while the gateway fetches more."""
ALL_AHEAD_BYTES_MAX = 8 * 1024 * 1024
"""The same for all clients together. Each may use an eighth of the free part, so that stalled clients never use all of it."""


class ClientSocket:
    """The socket of one client for the duration of its call."""

    __slots__ = ("_addresses", "_ahead", "_base", "_fd", "_sent", "_sockets", "_waiting")

    def __init__(self, sockets: "ClientSockets", addresses: _SocketAddresses, fd: int) -> None:
        self._sockets = sockets
        self._addresses = addresses
        self._fd = fd
        self._base = _count_accepted(fd)
        self._sent = self._ahead = 0
        self._waiting: asyncio.Future[bool] | None = None

    def add_sent(self, count: int) -> None:
        """Counts bytes that the server has received for this client."""
        self._sent += count
        self._ahead += count
        self._sockets.ahead += count

    def close(self) -> None:
        self._sockets.ahead -= self._ahead
        self._ahead = 0

    async def wait_writable(self, count: int) -> None:
        """Waits until the server may receive `count` more bytes: its queue for this client has room, or it has written everything and the
        kernel accepts more. Also returns when the connection is gone."""
        if self._ahead + count <= self._sockets.limit_ahead(self._ahead):
            return  # even if nothing was written since the last count
        pauses_s = iter(_POLL_PAUSES_S)
        while True:
            ahead = self._count_ahead()
            if ahead + count <= self._sockets.limit_ahead(ahead):
                return
            if not _is_writable(self._fd):
                if _read_addresses(self._fd) != self._addresses or not await self._wait_event():
                    return
            elif not ahead or (pause_s := next(pauses_s, None)) is None:
                return
            else:
                await asyncio.sleep(pause_s)

    async def _wait_event(self) -> bool:
        """Waits for a writable socket. False: `release` ended the wait."""
        waiting = self._waiting = self._sockets.watch(self._fd)
        try:
            return await waiting
        finally:
            self._sockets.unwatch(self._fd, waiting)
            self._waiting = None

    def _count_ahead(self) -> int:
        """The bytes that were sent and that the kernel has not accepted. The kernel also counts heads and chunk framing; the base of the count
        moves by those once the kernel has everything."""
        taken = _count_accepted(self._fd)
        ahead = -1 if taken < 0 else self._sent - (taken - self._base)
        if ahead < 0:
            self._base = taken - self._sent
            ahead = 0
        self._sockets.ahead += ahead - self._ahead
        self._ahead = ahead
        return ahead

    def release(self) -> None:
        """The client is gone: ends the wait for a writable socket."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(False)


class ClientSockets:
    """The client sockets of one event loop. `ahead`: bytes that the server has and the kernel has not."""

    def __init__(self) -> None:
        self.ahead = 0
        self._fds: dict[_SocketAddresses, int] = {}
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._poll: select.epoll | None = None

    def find_socket(self, scope: MutableMapping[str, Any]) -> ClientSocket | None:
        """The socket of this request; None if it cannot be identified."""
        addresses = _read_scope(scope)
        if addresses is None:
            return None
        fd = self._fds.get(addresses)
        if fd is None or _read_addresses(fd) != addresses:
            self._scan_sockets()
            fd = self._fds.get(addresses)
        return None if fd is None else ClientSocket(self, addresses, fd)

    def limit_ahead(self, ahead: int) -> int:
        """The most bytes in the server's queue for a client that has `ahead` bytes there."""
        return min(AHEAD_BYTES_MAX, (ALL_AHEAD_BYTES_MAX - self.ahead + ahead) // 8)

    def watch(self, fd: int) -> asyncio.Future[bool]:
        """A future that completes when the descriptor is writable. It never completes if the server closes the descriptor meanwhile."""
        loop = asyncio.get_running_loop()
        if self._poll is None:
            self._poll = select.epoll()
        if not self._waiting:
            loop.add_reader(self._poll.fileno(), self._wake)
        events = select.EPOLLOUT | select.EPOLLONESHOT
        try:
            self._poll.register(fd, events)
        except FileExistsError:
            self._poll.modify(fd, events)
        waiting = self._waiting[fd] = loop.create_future()
        return waiting

    def unwatch(self, fd: int, waiting: asyncio.Future[bool]) -> None:
        if self._waiting.get(fd) is waiting:
            del self._waiting[fd]
            if not self._waiting and self._poll is not None:
                asyncio.get_running_loop().remove_reader(self._poll.fileno())

    def _wake(self) -> None:
        if self._poll is not None:
            for fd, _ in self._poll.poll(0):
                waiting = self._waiting.get(fd)
                if waiting is not None and not waiting.done():
                    waiting.set_result(True)

    def _scan_sockets(self) -> None:
        """Finds every socket of this process by its addresses. Scans are rare, because a connection lasts for many calls."""
        self._fds.clear()
        with contextlib.suppress(OSError):
            for entry in os.listdir(_FD_FOLDER):
                fd = int(entry)
                addresses = _read_addresses(fd)
                if addresses is not None:
                    self._fds[addresses] = fd


def _is_writable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(0))


def _count_accepted(fd: int) -> int:
    """The bytes that the kernel has accepted for the socket in all: acknowledged and unacknowledged ones; -1 if unknown.

    The order of the two reads matters: bytes acknowledged between them are missing until the next count; in the other order they would count twice for good.
    """
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return -1
    try:
        (acked,) = _ACKED.unpack(borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.size))
        waiting = fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, struct.error):
        return -1
    finally:
        borrowed.detach()
    return int(acked) + int.from_bytes(waiting, "little")


def _read_addresses(fd: int) -> _SocketAddresses | None:
    """The address and port of the peer of a TCP socket, and the local port; None for another descriptor. The descriptor stays open."""
    try:
        if not os.readlink(f"{_FD_FOLDER}/{fd}").startswith("socket:"):
            return None
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        host, port = borrowed.getpeername()[:2]
        return _plain_host(host), port, borrowed.getsockname()[1]
    except OSError:
        return None
    finally:
        borrowed.detach()


def _read_scope(scope: MutableMapping[str, Any]) -> _SocketAddresses | None:
    client, server = scope.get("client"), scope.get("server")
    try:
        return _plain_host(client[0]), int(client[1]), int(server[1])  # type: ignore[index]  # None raises TypeError, which is handled
    except (TypeError, ValueError, IndexError):
        return None


def _plain_host(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]


class ResponseStream:
    """The stream of one response body. `sent`: its bytes so far. `client_socket`: None if the socket is unknown."""

    __slots__ = (
        "_client_socket",
        "_limits",
        "_rest",
        "_send",
        "_unsent",
        "delivery",
        "is_client_gone",
        "sent",
    )

    def __init__(
        self, rest: ResponseBody, send: Send, *, client_socket: ClientSocket | None, limits: Limits
    ) -> None:
        self._rest = rest
        self._send = send
        self._client_socket = client_socket
        self._limits = limits
        self._unsent = 0  # bytes read after the caller has left
        self.is_client_gone = False
        self.sent = 0
        self.delivery = Delivery.PARTIAL

    async def pump(
        self, first: bytes, wait_disconnect: Callable[[], Coroutine[None, None, None]] | None
    ) -> None:
        """Streams until the end, a failure of the upstream, a disconnect of the client, or a client that reads nothing.

        `wait_disconnect` returns when the client disconnects; None while the request body is not complete.
        """
        try:
            async with asyncio.TaskGroup() as group:
                flow = group.create_task(self._flow(first))
                if wait_disconnect is not None:
                    watcher = group.create_task(wait_disconnect())
                    watcher.add_done_callback(lambda watched: self._on_watched(watched, flow))
                    flow.add_done_callback(lambda _: watcher.cancel())
        finally:
            if self._client_socket is not None:
                self._client_socket.close()

    def _on_watched(self, watcher: asyncio.Task[None], flow: asyncio.Task[None]) -> None:
        if not watcher.cancelled():  # cancelled: the stream has ended
            self._on_client_gone(flow)

    def _on_client_gone(self, flow: asyncio.Task[None]) -> None:
        """Stops the stream. A response that is stored for a repeat, or whose end decides its price, is read further (`ResponseBody.read_on_s`)."""
        self.is_client_gone = True
        if self._client_socket is not None:
            self._client_socket.release()
        read_on_s = self._rest.read_on_s
        if read_on_s and not flow.done():
            asyncio.get_running_loop().call_later(read_on_s, flow.cancel)
        else:
            flow.cancel()

    async def _flow(self, first: bytes) -> None:
        try:
            # An empty message makes the server send the head before the first byte of the body.
            await self._send_chunk(first)
            del first
            while await self._relay_chunk():
                if self.is_client_gone and not self._is_read_on:
                    return
        except (UpstreamBadResponse, UpstreamTimeout):
            return
        except TimeoutError:  # the client takes no byte
            await self._read_on()
            return
        if not self.is_client_gone:
            self.delivery = Delivery.COMPLETE

    async def _read_on(self) -> None:
        """Reads what is left for a client that takes no byte, as for one that has left."""
        self.is_client_gone = self.is_client_gone or self._is_read_on
        with contextlib.suppress(UpstreamBadResponse, UpstreamTimeout, TimeoutError):
            async with asyncio.timeout(self._rest.read_on_s):
                while self._is_read_on and await self._relay_chunk():
                    pass

    @property
    def _is_read_on(self) -> bool:
        return self._rest.read_on_s > 0 and self._unsent <= self._limits.metered_rest_bytes_max

    async def _relay_chunk(self) -> bool:
        """Relays one chunk; False at the end. No reference to the chunk remains during the wait for the next one."""
        await self._wait_writable()
        chunk = await self._rest.read_chunk()
        if self.is_client_gone:
            self._unsent += len(chunk)
        elif chunk:
            await self._send_chunk(chunk)
        return bool(chunk)

    async def _send_chunk(self, chunk: bytes) -> None:
        # The server queues about five messages for a slow client, of any size; so each message is small.
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


_log = structlog.get_logger(__name__)

DISCONNECT_CHECK_S = 0.1
"""The time for the server to report a disconnect."""


class GatewayApp:
    """The ASGI application of `/api/v2/gateway/…`."""

    def __init__(
        self,
        gateway: CallPipeline,
        *,
        payment_required: PaymentRequiredRenderer,
        limits: Limits,
        public_url: str,
        now_ms: Callable[[], int],
        read_request_id: Callable[[Scope], str],
        read_client_address: Callable[[Scope], str],
        count_outcome: Callable[[str], None],
        count_refusal: Callable[[str], None] = lambda code: None,
        shedder: LoadShedder,
        problem_pages: ProblemPages | None = None,
        start_trace: StartTrace | None = None,
    ) -> None:
        """`start_trace`: decides for each call whether it is traced; None where no call is."""
        self._gateway = gateway
        self._start_trace = start_trace
        self._payment_required = payment_required
        self._limits = limits
        self._public_url = public_url
        self._name = urlsplit(public_url).netloc
        self._now_ms = now_ms
        self._read_request_id = read_request_id
        self._read_client_address = read_client_address
        self._count_outcome = count_outcome
        self._count_refusal = count_refusal
        self._shedder = shedder
        self._loop_share = shedder.loop
        self._problem_pages = problem_pages
        self.client_sockets = ClientSockets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._read_request_id(scope)
        client_address = self._read_client_address(scope)
        body = IncomingBody(
            receive,
            scope["headers"],
            self._limits,
            budget=self._shedder.bodies,
            client_address=client_address,
        )
        problem = self._shedder.enter(client_address)
        if problem is not None:
            self._count_refusal(problem.code.value)
            self._count_outcome(problem.code.value)
            await self._send_problem(scope, body, send, request_id, ProblemResponse(problem=problem))
            return
        trace = None if self._start_trace is None else self._start_trace(scope)
        try:
            if trace is None:
                await self._handle(scope, body, send, request_id, client_address)
            else:
                with traced_call(trace):
                    await self._handle(scope, body, send, request_id, client_address, trace)
        finally:
            self._shedder.leave(client_address)
            if body.is_present:
                body.close()

    async def _handle(
        self,
        scope: Scope,
        body: "IncomingBody",
        send: Send,
        request_id: str,
        client_address: str,
        trace: CallTrace | None = None,
    ) -> None:
        self._loop_share.calls += 1
        call = self._read_call(scope, body, request_id, client_address, trace)
        outcome: Outcome
        if isinstance(call, Problem):
            outcome = ProblemResponse(problem=call)
        else:
            try:
                outcome = await self._gateway.handle(call)
            except Exception:  # noqa: BLE001 - the outermost handler: one log event and a problem response
                _log.exception("call_failed", request_id=request_id, api_id=call.listing_id)
                outcome = ProblemResponse(problem=_INTERNAL_ERROR)
        if trace is not None:
            describe_outcome(trace, scope["method"], call, outcome)
        # The label of the metric is one of few values.
        if isinstance(outcome, ProxyResponse):
            self._count_outcome(outcome.payment_state or _find_payment_state(outcome))
            outcome.headers.append((b"x-request-id", request_id.encode()))
            await self._send_response(scope, outcome, body, send)
        elif isinstance(outcome, ProblemResponse):
            self._count_outcome(outcome.problem.code.value)
            self._count_refusal(outcome.problem.code.value)
            if outcome.problem.code in PACED_CODES and is_paced(outcome):
                body.close()  # nothing that waits holds room for bodies
                await self._loop_share.wait_refused()
            await self._send_problem(scope, body, send, request_id, outcome, call)
        else:
            self._count_outcome("abandoned")
            state = outcome.payment_state
            incomplete = ProblemResponse(problem=replace(BODY_INCOMPLETE, payment_state=state))
            await self._send_problem(scope, body, send, request_id, incomplete)

    def _read_call(
        self,
        scope: Scope,
        body: "IncomingBody",
        request_id: str,
        client_address: str,
        trace: CallTrace | None,
    ) -> ProxyRequest | Problem:
        problem = check_request_line(scope, limits=self._limits)
        if problem is not None:
            return problem
        target = split_target(scope["raw_path"], scope["query_string"])
        if isinstance(target, Problem):
            return target
        if target is None:
            return _NO_ROUTE
        return ProxyRequest(
            method=scope["method"],
            listing_id=ListingId(target.api_id),
            target=target,
            headers=scope["headers"] if trace is None else replace_traceparent(scope["headers"], trace),
            body=body,
            client_address=client_address,
            request_id=request_id,
            received_ms=self._now_ms(),
            trace=trace,
        )

    # ---- Responses.

    async def _send_response(
        self, scope: Scope, response: ProxyResponse, body: "IncomingBody", send: Send
    ) -> None:
        head: Message = {
            "type": "http.response.start",
            "status": response.status,
            "headers": response.headers,
        }
        if response.rest is None:
            await send(head)
            await send({"type": "http.response.body", "body": response.first})
            return
        traced = None if self._start_trace is None else trace_stream(response.rest, send)
        stream = ResponseStream(
            response.rest if traced is None else traced,
            send if traced is None else traced.send,
            client_socket=self.client_sockets.find_socket(scope),
            limits=self._limits,
        )
        is_interrupted = True
        try:
            await send(head)
            await stream.pump(response.first, body.wait_disconnect if body.is_finished else None)
            is_interrupted = False
        finally:
            if traced is not None:
                traced.describe(stream.sent, stream.delivery, is_client_gone=stream.is_client_gone)
            await response.rest.end(stream.delivery, stream.sent, is_interrupted=is_interrupted)
        if stream.delivery is Delivery.COMPLETE:
            await send({"type": "http.response.body", "body": b""})
        # Otherwise no final message: the server closes the connection, so that the client detects the incomplete body.

    async def _send_problem(
        self,
        scope: Scope,
        body: "IncomingBody",
        send: Send,
        request_id: str,
        refusal: ProblemResponse,
        call: ProxyRequest | Problem | None = None,
    ) -> None:
        problem = refusal.problem
        payment_required = None  # the quote of a 402 in all protocols
        if refusal.quote is not None and isinstance(call, ProxyRequest):
            payment_required = self._payment_required.render(refusal.quote, call, problem)
        status, headers, content = render_problem(
            problem,
            public_url=self._public_url,
            request_id=request_id,
            instance=instance_of(scope),
            # MPP: also for a malformed credential.
            status=None if payment_required is None else _PAYMENT_REQUIRED_STATUS,
            encoded=b"" if payment_required is None else payment_required.members,
        )
        headers += refusal.headers
        if payment_required is not None:
            headers += payment_required.headers
        given = {name for name, _ in refusal.headers}
        if b"tollway-payment-state" not in given:
            headers.append((b"tollway-payment-state", (problem.payment_state or "none").encode()))
        if b"proxy-status" not in given:
            proxy_error = name_proxy_error(problem.code, problem.reason)
            headers.append(proxy_status(self._name, f"error={proxy_error}"))
        if problem.code is Code.METHOD_NOT_ALLOWED:
            allow = problem.members.get("allow", ())
            assert isinstance(allow, Iterable)
            headers.append((b"allow", ", ".join(str(method) for method in allow).encode()))
        if not body.is_finished and not await body.drop_rest():
            headers.append((b"connection", b"close"))
        if self._problem_pages is not None and status in SHOWN_STATUSES and is_navigation(scope):
            page = self._problem_pages.render(
                problem,
                scope,
                status=status,
                headers=headers,
                request_id=request_id,
                quoted=_find_quoted(refusal, scope),
            )
            headers, content = page or (headers, content)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})


class IncomingBody:
    """The body of a request from ASGI messages (a `RequestBody`).

    The server has no deadline for bodies; this class has the least rate of a `BodyPace`. `clock`: monotonic, in seconds.
    """

    __slots__ = (
        "_awaits_continue",
        "_budget",
        "_client_address",
        "_clock",
        "_is_reading",
        "_limits",
        "_pace",
        "_receive",
        "_reservation",
        "bytes_read",
        "is_broken",
        "is_finished",
        "is_present",
        "length",
    )

    def __init__(
        self,
        receive: Receive,
        headers: Iterable[tuple[bytes, bytes]],
        limits: Limits,
        *,
        budget: BodyBudget,
        client_address: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._receive = receive
        self._budget = budget
        self._client_address = client_address
        self._clock = clock
        self._reservation: BodyReservation | None = None  # from the proof, or the first buffered byte
        self._limits = limits
        self._pace: BodyPace | None = None  # from the first read
        self._awaits_continue = False
        self._is_reading = False
        self.bytes_read = 0
        self.is_broken = False
        self.length: int | None = 0
        for name, value in headers:
            if name == b"content-length" and value.isdigit():
                self.length = int(value)
            elif name == b"transfer-encoding":
                # The end of a body with a refused coding is the server's guess: no further request may be read from the connection.
                self.is_broken = self.length is None or not is_chunked_alone(value)
                self.length = None
            elif name == b"expect":
                self._awaits_continue = True
        self.is_present = self.length != 0
        self.is_finished = not self.is_present

    async def read_chunk(self) -> bytes:
        while not self.is_finished:
            message = await self._next_message()
            if message["type"] == "http.disconnect":
                self.is_broken = True
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            self.bytes_read += len(chunk)
            # The last byte of Content-Length is the end: a client that disconnects after it has sent the whole request.
            if not message.get("more_body", False) or self.bytes_read == self.length:
                self.is_finished = True
            if chunk:
                return chunk
        return b""

    def prove(self) -> None:
        if self.is_present:
            self._open_reservation().prove()

    def reserve(self, size: int) -> None:
        if problem := self._open_reservation().reserve(size):
            raise Refusal(problem)

    def _open_reservation(self) -> BodyReservation:
        if self._reservation is None:
            self._reservation = self._budget.open(self._client_address)
        return self._reservation

    def close(self) -> None:
        """Releases the reservation of buffered bytes."""
        if self._reservation is not None:
            self._reservation.close()

    async def drop_rest(self) -> bool:
        """Reads and discards the rest of a refused body, because a reset of the connection would lose the refusal.

        False if the connection cannot be used again: the rest is too long, too slow, or waits for `100 Continue`.
        """
        most = self.bytes_read + self._limits.refused_body_bytes_max
        awaits_continue = self._awaits_continue and self.bytes_read == 0
        if self.is_broken or self._is_reading or awaits_continue or (self.length or 0) > most:
            return False
        try:
            while await self.read_chunk():
                if self.bytes_read > most:
                    return False
        except (ClientGone, Refusal):
            return False
        return True

    async def wait_disconnect(self) -> None:
        """Returns when the client disconnects. Call it only after the whole body was read."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def has_disconnected(self) -> bool:
        if not self.is_finished:
            return False
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self.wait_disconnect())
            await asyncio.wait((watcher,), timeout=DISCONNECT_CHECK_S)
            await asyncio.sleep(0)  # a late event loop may still have the server's message in its queue
            has_disconnected = watcher.done()
            watcher.cancel()
        return has_disconnected

    async def _next_message(self) -> Message:
        pace = self._pace = self._pace or BodyPace(self._limits)
        started = self._clock()
        self._is_reading = True
        try:
            if pace.left_s <= 0:
                raise TimeoutError
            async with asyncio.timeout(pace.left_s):
                message = await self._receive()
        except TimeoutError as exc:
            self.is_broken = True
            raise Refusal(_TOO_SLOW) from exc
        pace.record(len(message.get("body", b"")), waited_s=self._clock() - started)
        self._is_reading = False  # stays true after a cancelled read: its message may be lost, so no further read is possible
        return message


def is_paced(refusal: ProblemResponse) -> bool:
    """Whether an answer with one of `PACED_CODES` waits for its share of the event loop: the request itself is at fault, and no money is involved."""
    return refusal.quote is None and refusal.problem.payment_state in (None, "none")


def _find_quoted(refusal: ProblemResponse, scope: Scope) -> QuotedApi | None:
    if refusal.quote is None:
        return None
    listing = refusal.quote.entry.listing
    rest = instance_of(scope).removeprefix(f"{GATEWAY_PREFIX}{listing.id}")
    query = scope["query_string"].decode("latin-1")
    return QuotedApi(
        id=listing.id,
        name=clean_line(listing.name, NAME_LENGTH_MAX) or listing.id,
        price=refusal.quote.price.text,
        is_metered=refusal.quote.metering is not None,
        currency=listing.currency,
        call=keep_call(scope["method"], f"{rest}?{query}" if query else rest),
    )


def _find_payment_state(stored: ProxyResponse) -> str:
    return dict(stored.headers).get(b"tollway-payment-state", b"none").decode()


_PAYMENT_REQUIRED_STATUS = status_of(Code.PAYMENT_REQUIRED)
PACED_CODES = frozenset(code for code in Code if status_of(code) in (400, 401, 403, 429))
_NO_ROUTE = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="No API has this path. The path of a gateway call begins with /api/v2/gateway/{apiId}.",
)
_TOO_SLOW = Problem(
    code=Code.INVALID_REQUEST,
    detail="The request body arrived too slowly. Send it again over a faster connection.",
    reason="body_too_slow",
    payment_state="none",
)
_INTERNAL_ERROR = Problem(
    code=Code.INTERNAL_ERROR,
    detail="The gateway failed. If the request had a payment, read its record (/api/v2/payments/{transaction}) before another payment.",
    payment_state="held",
)
