"""The data plane: raw ASGI in front of `Gateway.serve`, so that nothing stands between a caller and an upstream.

Parses what the server hands in, streams what the gateway hands out, under deadlines both ways. Decides nothing about
money; an answer that breaks off is cut visibly, never ended as if it were whole.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import structlog
from starlette.types import Message, Receive, Scope, Send

from tollway.chain.rules import ChainRules
from tollway.errors import Code, Problem, TollwayError, UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.exchange import (
    Abandoned,
    Answer,
    AnswerBody,
    BodyRefused,
    CallerGone,
    Declined,
    IncomingCall,
    Offer,
    Outcome,
)
from tollway.gateway.serve import Gateway
from tollway.gateway.target import split_target
from tollway.identifiers import ChainId, ListingId
from tollway.ledger.call import Delivery
from tollway.limits import Limits
from tollway.registry.pricing import tx_options
from tollway.web.listing_wire import option_json
from tollway.web.problems import render_problem
from tollway.web.wire import format_time

_log = structlog.get_logger(__name__)



class CallRoutes:
    """The ASGI application of `/api/v2/gateway/…`."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        rules: dict[ChainId, ChainRules],
        limits: Limits,
        public_url: str,
        now_ms: Callable[[], int],
        request_id_of: Callable[[Scope], str],
        client_address_of: Callable[[Scope], str],
        note_outcome: Callable[[str], None],
    ) -> None:
        self._gateway = gateway
        self._rules = rules
        self._limits = limits
        self._public_url = public_url
        self._now_ms = now_ms
        self._request_id_of = request_id_of
        self._client_address_of = client_address_of
        self._note_outcome = note_outcome
        self._in_flight: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._request_id_of(scope)
        client_address = self._client_address_of(scope)
        running = self._in_flight.get(client_address, 0)
        if running >= self._limits.in_flight_per_address_max:
            await self._decline(scope, send, request_id, Declined(problem=_CROWDED))
            return
        self._in_flight[client_address] = running + 1
        try:
            await self._handle(scope, receive, send, request_id, client_address)
        finally:
            left = self._in_flight[client_address] - 1
            if left:
                self._in_flight[client_address] = left
            else:
                del self._in_flight[client_address]

    async def _handle(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, client_address: str
    ) -> None:
        body = IncomingBody(receive, scope["headers"], self._limits)
        outcome = await self._serve(scope, body, request_id, client_address)
        self._note_outcome(_name_outcome(outcome))
        if isinstance(outcome, Answer):
            outcome.headers.append((b"x-request-id", request_id.encode()))
            await self._answer(outcome, body, send)
        elif isinstance(outcome, Declined):
            await self._decline(scope, send, request_id, outcome)
        # Abandoned: nobody is there to be answered; returning closes the exchange.

    async def _serve(
        self, scope: Scope, body: "IncomingBody", request_id: str, client_address: str
    ) -> Outcome:
        target = split_target(scope["raw_path"], scope["query_string"])
        if isinstance(target, Problem):
            return Declined(problem=target)
        if target is None:
            return Declined(problem=_NO_ROUTE)
        call = IncomingCall(
            method=scope["method"],
            listing_id=ListingId(target.api_id),
            target=target,
            headers=scope["headers"],
            body=body,
            client_address=client_address,
            request_id=request_id,
            received_ms=self._now_ms(),
        )
        try:
            return await self._gateway.serve(call)
        except TollwayError as exc:
            return Declined(problem=exc.problem)
        except Exception:  # noqa: BLE001 - the door: logged once, answered honestly
            _log.exception("call_failed", request_id=request_id, api_id=target.api_id)
            return Declined(problem=_INTERNAL)

    # ---- Answers.

    async def _answer(self, answer: Answer, body: "IncomingBody", send: Send) -> None:
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        if answer.rest is None:
            await send({"type": "http.response.body", "body": answer.first})
            return
        sent = 0
        try:
            # An empty message brings the head to the caller before the first byte of the body is there.
            await self._send_chunk(send, answer.first)
            sent = len(answer.first)
            delivery, sent = await self._pump(answer.rest, body, send, sent)
        except BaseException:
            answer.rest.end(Delivery.PARTIAL, sent)
            raise
        answer.rest.end(delivery, sent)
        if delivery is Delivery.COMPLETE:
            await send({"type": "http.response.body", "body": b""})
        # Else: no final message, so that the server cuts the connection and the caller sees that it is not whole.

    async def _pump(
        self, rest: AnswerBody, body: "IncomingBody", send: Send, sent: int
    ) -> tuple[Delivery, int]:
        """Streams until the end, the upstream's failure, the caller's leaving, or a caller that takes nothing."""
        pump = _Pump(sent=sent)
        async with asyncio.TaskGroup() as group:
            flow = group.create_task(self._flow(rest, send, pump))
            if body.is_finished:
                watcher = group.create_task(body.wait_gone())
                watcher.add_done_callback(lambda _: flow.cancel())
                flow.add_done_callback(lambda _: watcher.cancel())
        return pump.delivery, pump.sent

    async def _flow(self, rest: AnswerBody, send: Send, pump: "_Pump") -> None:
        try:
            while chunk := await rest.read_chunk():
                await self._send_chunk(send, chunk)
                pump.sent += len(chunk)
        except (UpstreamBadResponse, UpstreamTimeout, TimeoutError):
            return
        pump.delivery = Delivery.COMPLETE

    async def _send_chunk(self, send: Send, chunk: bytes) -> None:
        async with asyncio.timeout(self._limits.write_stall_s):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _decline(self, scope: Scope, send: Send, request_id: str, declined: Declined) -> None:
        problem = declined.problem
        if declined.offer is not None:
            problem = _with_members(problem, {"payment": self._terms_json(declined.offer)})
        instance = scope["raw_path"].decode("latin-1")
        status, headers, content = render_problem(
            problem, public_url=self._public_url, request_id=request_id, instance=instance
        )
        headers += declined.headers
        if not any(name == b"tollway-payment-state" for name, _ in declined.headers):
            headers.append((b"tollway-payment-state", (problem.payment_state or "none").encode()))
        if problem.code is Code.METHOD_NOT_ALLOWED:
            allow = problem.members.get("allow", ())
            assert isinstance(allow, Iterable)
            headers.append((b"allow", ", ".join(str(method) for method in allow).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})

    def _terms_json(self, offer: Offer) -> dict[str, Any]:
        """Every number that a client needs in order to pay."""
        listing = offer.shelf.listing
        options = [
            option_json(option)
            for chain_id in listing.networks
            if chain_id in self._rules
            for option in tx_options(
                listing,
                offer.price,
                assets=self._rules[chain_id].assets,
                confirmations_for=self._rules[chain_id].confirmations_for,
            )
        ]
        return {
            "amount": offer.price.text,
            "currency": listing.currency,
            "expiresAt": format_time(offer.expires_ms),
            "options": options,
        }


class _Pump:
    """How far a stream came."""

    __slots__ = ("delivery", "sent")

    def __init__(self, *, sent: int) -> None:
        self.sent = sent
        self.delivery = Delivery.PARTIAL


class IncomingBody:
    """The request's body as ASGI brings it. See `RequestBody`.

    The server has no deadline for bodies, so this has: 1 KiB a second on average once five seconds have passed, of
    the time spent waiting for the caller alone.
    """

    __slots__ = ("_limits", "_receive", "_waited_s", "bytes_read", "is_finished", "is_present", "length")

    def __init__(self, receive: Receive, headers: Iterable[tuple[bytes, bytes]], limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._waited_s = 0.0
        self.bytes_read = 0
        self.length: int | None = 0
        for name, value in headers:
            if name == b"content-length" and value.isdigit():
                self.length = int(value)
            elif name == b"transfer-encoding":
                self.length = None
                break
        self.is_present = self.length != 0
        self.is_finished = not self.is_present

    async def read_chunk(self) -> bytes:
        while not self.is_finished:
            message = await self._next_message()
            if message["type"] == "http.disconnect":
                raise CallerGone
            chunk: bytes = message.get("body", b"")
            if not message.get("more_body", False):
                self.is_finished = True
            if chunk:
                self.bytes_read += len(chunk)
                return chunk
        return b""

    async def wait_gone(self) -> None:
        """Returns when the caller has left. Only once the whole body is here."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def _next_message(self) -> Message:
        limits = self._limits
        patience_s = limits.body_rate_grace_s + self.bytes_read / limits.body_rate_bytes_min - self._waited_s
        started = time.monotonic()
        try:
            async with asyncio.timeout(max(patience_s, 0.001)):
                return await self._receive()
        except TimeoutError as exc:
            raise BodyRefused(_TOO_SLOW) from exc
        finally:
            self._waited_s += time.monotonic() - started


def _with_members(problem: Problem, members: dict[str, Any]) -> Problem:
    return replace(problem, members={**problem.members, **members})


def _name_outcome(outcome: Outcome) -> str:
    """For the metric: few values."""
    if isinstance(outcome, Declined):
        return outcome.problem.code.value
    if isinstance(outcome, Abandoned):
        return "abandoned"
    state = next((value for name, value in outcome.headers if name == b"tollway-payment-state"), b"none")
    return state.decode()


_NO_ROUTE = Problem(code=Code.ROUTE_NOT_FOUND, detail="There is nothing at this path.")
_CROWDED = Problem(
    code=Code.OVERLOADED,
    detail="Too many calls from this address are running.",
    retry_after_s=1,
    payment_state="none",
)
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
