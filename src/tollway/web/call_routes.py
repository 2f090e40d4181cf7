"""The data plane: raw ASGI in front of `Gateway.serve`, so that nothing stands between a caller and an upstream.

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
    Abandoned,
    Answer,
    BodyRefused,
    CallerGone,
    Declined,
    IncomingCall,
    Outcome,
)
from tollway.gateway.headers import is_chunked_alone, proxy_status
from tollway.gateway.refusals import name_proxy_error
from tollway.gateway.serve import Gateway
from tollway.gateway.target import split_target
from tollway.identifiers import ListingId
from tollway.ledger.call import Delivery
from tollway.limits import Limits
from tollway.web.answer_stream import AnswerStream
from tollway.web.body_room import HeldBody
from tollway.web.caller_lines import CallerLines
from tollway.web.load_gauge import LoadGauge
from tollway.web.middleware import BROKEN_OFF, check_request_line
from tollway.web.problems import instance_of, render_problem, status_of
from tollway.web.terms_wire import Terms, TermsWire

_log = structlog.get_logger(__name__)

LOOK_S = 0.1
"""So long the server may take to say that a caller has left."""


class CallRoutes:
    """The ASGI application of `/api/v2/gateway/…`."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        terms: TermsWire,
        limits: Limits,
        public_url: str,
        now_ms: Callable[[], int],
        request_id_of: Callable[[Scope], str],
        client_address_of: Callable[[Scope], str],
        note_outcome: Callable[[str], None],
        gauge: LoadGauge,
    ) -> None:
        self._gateway = gateway
        self._terms = terms
        self._limits = limits
        self._public_url = public_url
        self._name = urlsplit(public_url).netloc
        self._now_ms = now_ms
        self._request_id_of = request_id_of
        self._client_address_of = client_address_of
        self._note_outcome = note_outcome
        self._gauge = gauge
        self.lines = CallerLines()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._request_id_of(scope)
        client_address = self._client_address_of(scope)
        held = self._gauge.bodies.open(client_address)
        body = IncomingBody(receive, scope["headers"], self._limits, held)
        problem = self._gauge.enter(client_address)
        if problem is not None:
            await self._decline(scope, body, send, request_id, Declined(problem=problem))
            return
        try:
            await self._handle(scope, body, send, request_id, client_address)
        finally:
            self._gauge.leave(client_address)
            held.close()

    async def _handle(
        self, scope: Scope, body: "IncomingBody", send: Send, request_id: str, client_address: str
    ) -> None:
        call = self._read_call(scope, body, request_id, client_address)
        outcome: Outcome = (
            await self._serve(call) if isinstance(call, IncomingCall) else Declined(problem=call)
        )
        self._note_outcome(_name_outcome(outcome))
        if isinstance(outcome, Answer):
            outcome.headers.append((b"x-request-id", request_id.encode()))
            await self._answer(scope, outcome, body, send)
        elif isinstance(outcome, Declined):
            await self._decline(scope, body, send, request_id, outcome, self._find_terms(outcome, call))
        else:
            state = outcome.payment_state
            told = Declined(problem=replace(BROKEN_OFF, payment_state=state))
            await self._decline(scope, body, send, request_id, told)

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

    async def _serve(self, call: IncomingCall) -> Outcome:
        try:
            return await self._gateway.serve(call)
        except TollwayError as exc:
            return Declined(problem=exc.problem)
        except Exception:  # noqa: BLE001 - the door: logged once, answered honestly
            _log.exception("call_failed", request_id=call.request_id, api_id=call.listing_id)
            return Declined(problem=_INTERNAL)

    def _find_terms(self, declined: Declined, call: IncomingCall | Problem) -> Terms | None:
        """Of a 402, in all its dialects."""
        if declined.offer is None or not isinstance(call, IncomingCall):
            return None
        return self._terms.tell(declined.offer, call, declined.problem)

    # ---- Answers.

    async def _answer(self, scope: Scope, answer: Answer, body: "IncomingBody", send: Send) -> None:
        head: Message = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        if answer.rest is None:
            await send(head)
            await send({"type": "http.response.body", "body": answer.first})
            return
        stream = AnswerStream(answer.rest, send, line=self.lines.find(scope), limits=self._limits)
        try:
            await send(head)
            await stream.pump(answer.first, body.wait_gone if body.is_finished else None)
        finally:
            answer.rest.end(stream.delivery, stream.sent)
        if stream.delivery is Delivery.COMPLETE:
            await send({"type": "http.response.body", "body": b""})
        # Else: no final message, so that the server cuts the connection and the caller sees that it is not whole.

    async def _decline(
        self,
        scope: Scope,
        body: "IncomingBody",
        send: Send,
        request_id: str,
        declined: Declined,
        terms: Terms | None = None,
    ) -> None:
        problem = declined.problem
        status, headers, content = render_problem(
            problem,
            public_url=self._public_url,
            request_id=request_id,
            instance=instance_of(scope),
            status=None if terms is None else status_of(Code.PAYMENT_REQUIRED),  # MPP: also an unreadable one
            encoded=b"" if terms is None else terms.members,
        )
        headers += declined.headers
        if terms is not None:
            headers += terms.headers
        told = {name for name, _ in declined.headers}
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
        "_held",
        "_is_reading",
        "_limits",
        "_receive",
        "_waited_s",
        "bytes_read",
        "is_broken",
        "is_finished",
        "is_present",
        "length",
    )

    def __init__(
        self, receive: Receive, headers: Iterable[tuple[bytes, bytes]], limits: Limits, held: HeldBody
    ) -> None:
        self._receive = receive
        self._held = held
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
                raise CallerGone
            chunk: bytes = message.get("body", b"")
            self.bytes_read += len(chunk)
            # The last promised byte is the end: whoever leaves after it has sent the whole request.
            if not message.get("more_body", False) or self.bytes_read == self.length:
                self.is_finished = True
            if chunk:
                return chunk
        return b""

    def hold(self, size: int) -> None:
        if problem := self._held.hold(size):
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
        except (CallerGone, BodyRefused):
            return False
        return True

    async def wait_gone(self) -> None:
        """Returns when the caller has left. Only once the whole body is here."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def has_left(self) -> bool:
        if not self.is_finished:
            return False
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self.wait_gone())
            await asyncio.wait((watcher,), timeout=LOOK_S)
            await asyncio.sleep(0)  # where the loop was late, what the server has said is still to be heard
            has_left = watcher.done()
            watcher.cancel()
        return has_left

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
    if isinstance(outcome, Declined):
        return outcome.problem.code.value
    if isinstance(outcome, Abandoned):
        return "abandoned"
    return dict(outcome.headers).get(b"tollway-payment-state", b"none").decode()


_NO_ROUTE = Problem(code=Code.ROUTE_NOT_FOUND, detail="There is nothing at this path.")
_TOO_SLOW = Problem(
    code=Code.INVALID_REQUEST,
    detail="The request's body came too slowly.",
    reason="body_too_slow",
    payment_state="none",
)
_INTERNAL = Problem(
    code=Code.INTERNAL_ERROR,
    detail="The gateway failed. If a payment was shown, ask for its record before anything else.",
    payment_state="held",
)
