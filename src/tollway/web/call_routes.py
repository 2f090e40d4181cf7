"""The data plane: raw ASGI in front of `CallPipeline.handle`, so that nothing stands between a caller and an upstream.

Parses what the server hands in, streams what the gateway hands out, under deadlines both ways. Decides nothing about
money; an answer that breaks off is cut visibly, never ended as if it were whole.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from urllib.parse import urlsplit

import structlog
from starlette.types import Message, Receive, Scope, Send

from tollway.errors import Code, Problem, TollwayError
from tollway.gateway.exchange import (
    BodyRefused,
    ClientGone,
    Disconnected,
    IncomingCall,
    Outcome,
    ProblemResponse,
    ProxyResponse,
)
from tollway.gateway.headers import is_chunked_alone, proxy_status
from tollway.gateway.refusals import name_proxy_error
from tollway.gateway.serve import CallPipeline
from tollway.gateway.target import split_target
from tollway.identifiers import ListingId
from tollway.ledger.call import Delivery
from tollway.limits import Limits
from tollway.web.answer_stream import ResponseStream
from tollway.web.body_room import BodyReservation
from tollway.web.caller_lines import ClientSockets
from tollway.web.load_gauge import LoadShedder
from tollway.web.middleware import BODY_INCOMPLETE, check_request_line
from tollway.web.problems import instance_of, render_problem, status_of
from tollway.web.terms_wire import PaymentRequiredRenderer, RenderedQuote

_log = structlog.get_logger(__name__)

DISCONNECT_CHECK_S = 0.1
"""So long the server may take to say that a caller has left."""


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
        request_id_of: Callable[[Scope], str],
        client_address_of: Callable[[Scope], str],
        count_outcome: Callable[[str], None],
        shedder: LoadShedder,
    ) -> None:
        self._gateway = gateway
        self._payment_required = payment_required
        self._limits = limits
        self._public_url = public_url
        self._name = urlsplit(public_url).netloc
        self._now_ms = now_ms
        self._request_id_of = request_id_of
        self._client_address_of = client_address_of
        self._count_outcome = count_outcome
        self._shedder = shedder
        self.client_sockets = ClientSockets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._request_id_of(scope)
        client_address = self._client_address_of(scope)
        reservation = self._shedder.bodies.open(client_address)
        body = IncomingBody(receive, scope["headers"], self._limits, reservation)
        problem = self._shedder.enter(client_address)
        if problem is not None:
            await self._send_problem(scope, body, send, request_id, ProblemResponse(problem=problem))
            return
        try:
            await self._handle(scope, body, send, request_id, client_address)
        finally:
            self._shedder.leave(client_address)
            reservation.close()

    async def _handle(
        self, scope: Scope, body: "IncomingBody", send: Send, request_id: str, client_address: str
    ) -> None:
        call = self._read_call(scope, body, request_id, client_address)
        outcome: Outcome = (
            await self._run_pipeline(call)
            if isinstance(call, IncomingCall)
            else ProblemResponse(problem=call)
        )
        self._count_outcome(_name_outcome(outcome))
        if isinstance(outcome, ProxyResponse):
            outcome.headers.append((b"x-request-id", request_id.encode()))
            await self._send_response(scope, outcome, body, send)
        elif isinstance(outcome, ProblemResponse):
            await self._send_problem(
                scope, body, send, request_id, outcome, self._render_quote(outcome, call)
            )
        else:
            state = outcome.payment_state
            told = ProblemResponse(problem=replace(BODY_INCOMPLETE, payment_state=state))
            await self._send_problem(scope, body, send, request_id, told)

    def _read_call(
        self, scope: Scope, body: "IncomingBody", request_id: str, client_address: str
    ) -> IncomingCall | Problem:
        problem = check_request_line(scope, limits=self._limits)
        if problem is not None:
            return problem
        target = split_target(scope["raw_path"], scope["query_string"])
        if isinstance(target, Problem):
            return target
        if target is None:
            return _NO_ROUTE
        return IncomingCall(
            method=scope["method"],
            listing_id=ListingId(target.api_id),
            target=target,
            headers=scope["headers"],
            body=body,
            client_address=client_address,
            request_id=request_id,
            received_ms=self._now_ms(),
        )

    async def _run_pipeline(self, call: IncomingCall) -> Outcome:
        try:
            return await self._gateway.handle(call)
        except TollwayError as exc:
            return ProblemResponse(problem=exc.problem)
        except Exception:  # noqa: BLE001 - the outermost handler: logged once, answered with a problem
            _log.exception("call_failed", request_id=call.request_id, api_id=call.listing_id)
            return ProblemResponse(problem=_INTERNAL_ERROR)

    def _render_quote(self, refusal: ProblemResponse, call: IncomingCall | Problem) -> RenderedQuote | None:
        """Of a 402, in all its dialects."""
        if refusal.quote is None or not isinstance(call, IncomingCall):
            return None
        return self._payment_required.render(refusal.quote, call, refusal.problem)

    # ---- Answers.

    async def _send_response(
        self, scope: Scope, answer: ProxyResponse, body: "IncomingBody", send: Send
    ) -> None:
        head: Message = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        if answer.rest is None:
            await send(head)
            await send({"type": "http.response.body", "body": answer.first})
            return
        stream = ResponseStream(
            answer.rest, send, client_socket=self.client_sockets.find_socket(scope), limits=self._limits
        )
        try:
            await send(head)
            await stream.pump(answer.first, body.wait_disconnect if body.is_finished else None)
        finally:
            answer.rest.end(stream.delivery, stream.sent)
        if stream.delivery is Delivery.COMPLETE:
            await send({"type": "http.response.body", "body": b""})
        # Else: no final message, so that the server cuts the connection and the caller sees that it is not whole.

    async def _send_problem(
        self,
        scope: Scope,
        body: "IncomingBody",
        send: Send,
        request_id: str,
        refusal: ProblemResponse,
        payment_required: RenderedQuote | None = None,
    ) -> None:
        problem = refusal.problem
        status, headers, content = render_problem(
            problem,
            public_url=self._public_url,
            request_id=request_id,
            instance=instance_of(scope),
            status=None
            if payment_required is None
            else status_of(Code.PAYMENT_REQUIRED),  # MPP: also an unreadable one
            encoded=b"" if payment_required is None else payment_required.members,
        )
        headers += refusal.headers
        if payment_required is not None:
            headers += payment_required.headers
        told = {name for name, _ in refusal.headers}
        if b"tollway-payment-state" not in told:
            headers.append((b"tollway-payment-state", (problem.payment_state or "none").encode()))
        if b"proxy-status" not in told:
            headers.append(proxy_status(self._name, f"error={name_proxy_error(problem)}"))
        if problem.code is Code.METHOD_NOT_ALLOWED:
            allow = problem.members.get("allow", ())
            assert isinstance(allow, Iterable)
            headers.append((b"allow", ", ".join(str(method) for method in allow).encode()))
        if not await body.drop_rest():
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})


class IncomingBody:
    """The request's body as ASGI brings it. See `RequestBody`.

    The server has no deadline for bodies, so this has: 1 KiB a second on average once five seconds have passed, of
    the time spent waiting for the caller alone.
    """

    __slots__ = (
        "_awaits_continue",
        "_is_reading",
        "_limits",
        "_receive",
        "_reservation",
        "_waited_s",
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
        reservation: BodyReservation,
    ) -> None:
        self._receive = receive
        self._reservation = reservation
        self._limits = limits
        self._waited_s = 0.0
        self._awaits_continue = False
        self._is_reading = False
        self.bytes_read = 0
        self.is_broken = False
        self.length: int | None = 0
        for name, value in headers:
            if name == b"content-length" and value.isdigit():
                self.length = int(value)
            elif name == b"transfer-encoding":
                # Where it ends is the server's reading of a coding that is refused: nothing may be read behind it.
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
            # The last promised byte is the end: whoever leaves after it has sent the whole request.
            if not message.get("more_body", False) or self.bytes_read == self.length:
                self.is_finished = True
            if chunk:
                return chunk
        return b""

    def reserve(self, size: int) -> None:
        if problem := self._reservation.reserve(size):
            raise BodyRefused(problem)

    async def drop_rest(self) -> bool:
        """Reads what is left of a refused body and drops it, so that the refusal is not lost to a reset.

        False when the connection cannot be used again: the rest is too long, too slow, or not to come at all.
        """
        if self.is_finished:
            return True
        most = self.bytes_read + self._limits.refused_body_bytes_max
        is_unasked = self._awaits_continue and self.bytes_read == 0
        if self.is_broken or self._is_reading or is_unasked or (self.length or 0) > most:
            return False
        try:
            while await self.read_chunk():
                if self.bytes_read > most:
                    return False
        except (ClientGone, BodyRefused):
            return False
        return True

    async def wait_disconnect(self) -> None:
        """Returns when the caller has left. Only once the whole body is here."""
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
            await asyncio.sleep(0)  # where the loop was late, what the server has said is still to be heard
            has_disconnected = watcher.done()
            watcher.cancel()
        return has_disconnected

    async def _next_message(self) -> Message:
        limits = self._limits
        patience_s = limits.body_rate_grace_s + self.bytes_read / limits.body_rate_bytes_min - self._waited_s
        started = time.monotonic()
        self._is_reading = True
        try:
            async with asyncio.timeout(max(patience_s, 0.001)):
                message = await self._receive()
        except TimeoutError as exc:
            self.is_broken = True
            raise BodyRefused(_TOO_SLOW) from exc
        finally:
            self._waited_s += time.monotonic() - started
        self._is_reading = False  # not after a read that was cut off: what it would have brought is nobody's
        return message


def _name_outcome(outcome: Outcome) -> str:
    """For the metric: few values."""
    if isinstance(outcome, ProblemResponse):
        return outcome.problem.code.value
    if isinstance(outcome, Disconnected):
        return "abandoned"
    return dict(outcome.headers).get(b"tollway-payment-state", b"none").decode()


_NO_ROUTE = Problem(code=Code.ROUTE_NOT_FOUND, detail="There is nothing at this path.")
_TOO_SLOW = Problem(
    code=Code.INVALID_REQUEST,
    detail="The request's body came too slowly.",
    reason="body_too_slow",
    payment_state="none",
)
_INTERNAL_ERROR = Problem(
    code=Code.INTERNAL_ERROR,
    detail="The gateway failed. If a payment was shown, ask for its record before anything else.",
    payment_state="held",
)
