"""Carrying one claimed call to its upstream and the answer back. Where a call's outcome becomes a row in the books.

The order is the law: dial, claim (durable), send, head, close (written), stream. Whatever goes wrong between two of
these steps is named here once, in the words of the table of outcomes. No body is ever held whole.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from aiohttp import ServerDisconnectedError

from tollway.errors import (
    Code,
    Problem,
    Refusal,
    StorageUnavailable,
    TollwayError,
    UpstreamBadResponse,
    UpstreamTimeout,
)
from tollway.gateway.cargo import Cargo
from tollway.gateway.exchange import (
    Abandoned,
    Answer,
    AnswerBody,
    BodyRefused,
    CallerGone,
    Declined,
    Headers,
    IncomingCall,
    Outcome,
)
from tollway.gateway.headers import caller_headers, upstream_headers
from tollway.gateway.target import add_query_secret, build_upstream_target
from tollway.identifiers import Address, CallId
from tollway.ledger.book import Book, Claimed, Close, Fenced, Finish
from tollway.ledger.call import CallState, Delivery
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.outbound.dialer import Dialer
from tollway.outbound.policy import Endpoint
from tollway.outbound.upstream import Progress, UpstreamRequest, UpstreamResponse
from tollway.registry.listing import ChargeOn, Listing, is_charged


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A granted claim: which call this is, and what it may say about its payment. `asset` None: a free call."""

    call_id: CallId
    claimed: Claimed
    price: Price
    currency: str
    charge_on: ChargeOn
    asset: Asset | None
    units: int
    payer: Address | None
    transaction: str | None


class ClaimRefused(Exception):
    """The books did not grant the claim; nothing was sent."""

    def __init__(self, declined: Declined) -> None:
        self.declined = declined
        super().__init__(declined.problem.detail)


class Passage:
    """Carries calls. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        dialer: Dialer,
        book: Book,
        limits: Limits,
        now_ms: Callable[[], int],
        public_url: str,
        name: str,
    ) -> None:
        self._dialer = dialer
        self._book = book
        self._limits = limits
        self._now_ms = now_ms
        self._public_url = public_url
        self._name = name

    async def carry(
        self,
        call: IncomingCall,
        listing: Listing,
        endpoint: Endpoint,
        cargo: Cargo,
        take: Callable[[], Awaitable[Ticket]],
    ) -> Outcome:
        """Dials, takes the price through `take` once a connection is held, sends, and answers with what came back.

        `take` raises ClaimRefused when the books say no. Every exit has written its state: released, consumed or
        unknown; a call that never got a row says so.
        """
        request = self._build_request(call, listing, endpoint, cargo)
        if isinstance(request, Problem):
            return Declined(problem=request)
        trip = _Trip(call=call, target=request.target, progress=Progress(), started_ms=self._now_ms())

        async def before_send() -> None:
            trip.ticket = await take()

        try:
            response = await self._dialer.send(
                request,
                before_send=before_send,
                head_deadline_s=listing.timeout_s,
                progress=trip.progress,
            )
        except ClaimRefused as refused:
            return refused.declined
        except asyncio.CancelledError:
            await self._close_cancelled(trip)
            raise
        except (TollwayError, CallerGone, BodyRefused) as exc:
            return await self._fail(trip, exc)
        return await self._answer(call, listing, endpoint, trip, response)

    def _build_request(
        self, call: IncomingCall, listing: Listing, endpoint: Endpoint, cargo: Cargo
    ) -> UpstreamRequest | Problem:
        auth = listing.upstream_auth
        query = call.target.query
        if auth is not None and auth.location == "query":
            query = add_query_secret(query, name=auth.name, value=auth.value)
        target = build_upstream_target(endpoint, call.target.rest, query)
        if isinstance(target, Problem):
            return target
        headers = upstream_headers(
            call.headers,
            gateway_name=self._name,
            forward_headers=listing.forward_headers,
            secret=(auth.name, auth.value) if auth is not None and auth.location == "header" else None,
        )
        return UpstreamRequest(
            method=call.method,
            endpoint=endpoint,
            target=target,
            headers=headers,
            body=cargo.content,
            content_length=cargo.length,
        )

    # ---- No answer: what that means for the payment.

    async def _fail(self, trip: "_Trip", exc: Exception) -> Outcome:
        """Provably not wholly sent -> released. Sent, and no head came -> unknown, which is never asked to pay again."""
        if isinstance(exc, StorageUnavailable) and trip.ticket is None:
            return Declined(problem=replace(exc.problem, payment_state="held", retry_after_s=1))
        is_unsent = not trip.progress.sent or isinstance(exc, CallerGone | BodyRefused | Refusal)
        after = CallState.RELEASED if is_unsent else CallState.UNKNOWN
        problem = _explain(exc)
        if trip.ticket is not None:
            await self._close(trip, after, error=problem.code.value, http_status=None, upstream_status=None)
        if isinstance(exc, CallerGone):
            return Abandoned()
        state = "none" if trip.ticket is None or trip.ticket.asset is None else _WIRE_STATES[after]
        if trip.ticket is None:
            state = "released"  # nothing was taken, so all of the payment is still there
        headers: Headers = [(b"proxy-status", f"{self._name}; error={_proxy_error(problem.code)}".encode())]
        if trip.ticket is not None:
            headers += self._call_headers(trip.ticket, state, rest_units=None)
        return Declined(
            problem=replace(
                problem,
                payment_state=state,
                call_id=None if trip.ticket is None else trip.ticket.call_id,
                members=self._locate(trip.ticket) if after is CallState.UNKNOWN else {},
            ),
            headers=headers,
        )

    def _locate(self, ticket: Ticket | None) -> dict[str, object]:
        return {} if ticket is None else {"call": f"{self._public_url}/api/v2/history/{ticket.call_id}"}

    async def _close_cancelled(self, trip: "_Trip") -> None:
        """The process is stopping. What was sent is unknown; what was not is given back."""
        if trip.ticket is None:
            return
        after = CallState.UNKNOWN if trip.progress.sent else CallState.RELEASED
        await asyncio.shield(
            self._close(trip, after, error="shutdown", http_status=None, upstream_status=None)
        )

    # ---- An answer: close by its head, then stream.

    async def _answer(
        self,
        call: IncomingCall,
        listing: Listing,
        endpoint: Endpoint,
        trip: "_Trip",
        response: UpstreamResponse,
    ) -> Outcome:
        ticket = trip.ticket
        assert ticket is not None  # the dialer sends nothing without its hook
        status = response.status
        costs = is_charged(ticket.charge_on, status)
        after = CallState.CONSUMED if costs else CallState.RELEASED
        is_foreign_402 = status == 402
        try:
            closed = await self._close(
                trip,
                after,
                error=Code.UPSTREAM_PAYMENT_REQUIRED.value if is_foreign_402 else None,
                http_status=None if is_foreign_402 else status,
                upstream_status=status,
            )
        except BaseException:
            response.close()
            raise
        if isinstance(closed, Declined):
            response.close()
            return closed
        state = _WIRE_STATES[after] if ticket.asset is not None else "none"
        own = self._call_headers(ticket, state, rest_units=closed)
        own.append((b"proxy-status", f"{self._name}; received-status={status}".encode()))
        if is_foreign_402:
            response.close()
            return Declined(
                problem=Problem(
                    code=Code.UPSTREAM_PAYMENT_REQUIRED,
                    detail="The provider's API asked for a payment of its own; nothing was charged.",
                    call_id=ticket.call_id,
                    payment_state=state,
                ),
                headers=own,
            )
        auth = listing.upstream_auth
        headers = caller_headers(
            response.headers,
            keep_length=True,  # taken off again below where the body fits one message
            endpoint=endpoint,
            target=trip.target,
            gateway_path=f"/api/v2/gateway/{listing.id}",
            secret=auth.name if auth is not None and auth.location == "query" else "",
        )
        return await self._begin_stream(call, trip, response, headers + own)

    async def _begin_stream(
        self, call: IncomingCall, trip: "_Trip", response: UpstreamResponse, headers: Headers
    ) -> Answer:
        """The head, with the body's first piece where it is short and whole already."""
        ticket = trip.ticket
        assert ticket is not None
        body = _UpstreamBody(response, self._book, ticket, trip, self._now_ms)
        if call.method == "HEAD" or response.status in (204, 304):
            body.end(Delivery.COMPLETE, 0)
            return Answer(status=response.status, headers=headers)
        length = _find_length(headers)
        if length is None or length > self._limits.buffer_bytes:
            return Answer(status=response.status, headers=headers, rest=body)
        try:
            first = await body.read_chunk() if length else b""
            if len(first) == length:
                await body.read_chunk()  # the end, which frees the connection for the next call
                body.end(Delivery.COMPLETE, length)
                short = [header for header in headers if header[0] != b"content-length"]
                return Answer(status=response.status, headers=short, first=first)
        except (UpstreamBadResponse, UpstreamTimeout):
            first = b""  # the stream below meets the same failure and cuts the answer visibly
        return Answer(status=response.status, headers=headers, first=first, rest=body)

    async def _close(
        self,
        trip: "_Trip",
        after: CallState,
        *,
        error: str | None,
        http_status: int | None,
        upstream_status: int | None,
    ) -> int | Declined | None:
        """Writes the outcome. What the shown payment has left; or, when the books could not say, what to answer."""
        ticket = trip.ticket
        assert ticket is not None
        elapsed_ms = self._now_ms() - trip.started_ms
        held = replace(
            _OUTCOME_UNKNOWN, call_id=ticket.call_id, members=self._locate(ticket), payment_state="held"
        )
        try:
            closed = await self._book.close(
                Close(
                    call_id=ticket.call_id,
                    epoch=ticket.claimed.epoch,
                    after=after,
                    http_status=http_status,
                    upstream_status=upstream_status,
                    latency_ms=elapsed_ms,
                    upstream_latency_ms=elapsed_ms,
                    error=error,
                )
            )
        except StorageUnavailable:
            return Declined(problem=held)
        if isinstance(closed, Fenced):
            return Declined(problem=held)
        return closed.rest_units

    def _call_headers(self, ticket: Ticket, state: str, *, rest_units: int | None) -> Headers:
        headers: Headers = [
            (b"tollway-call-id", ticket.call_id.encode()),
            (b"tollway-payment-state", state.encode()),
            (b"tollway-price", f"{ticket.price.text} {ticket.currency}".encode()),
        ]
        if ticket.asset is None:
            return headers
        if rest_units is not None:
            rest = ticket.asset.format_units(rest_units)
            headers.append((b"tollway-credit-remaining", f"{rest} {ticket.currency}".encode()))
        if state == "charged":
            headers.append((b"payment-response", _receipt(ticket, ticket.asset)))
        return headers


@dataclass(slots=True, kw_only=True)
class _Trip:
    call: IncomingCall
    target: str
    progress: Progress
    started_ms: int
    ticket: Ticket | None = None


class _UpstreamBody:
    """The rest of an answer. See `AnswerBody`."""

    __slots__ = ("_book", "_is_cut", "_is_ended", "_now_ms", "_response", "_ticket", "_trip")

    def __init__(
        self,
        response: UpstreamResponse,
        book: Book,
        ticket: Ticket,
        trip: _Trip,
        now_ms: Callable[[], int],
    ) -> None:
        self._response = response
        self._book = book
        self._ticket = ticket
        self._trip = trip
        self._now_ms = now_ms
        self._is_cut = False
        self._is_ended = False

    async def read_chunk(self) -> bytes:
        try:
            return await self._response.read_chunk()
        except (UpstreamBadResponse, UpstreamTimeout):
            self._is_cut = True
            raise

    def end(self, delivery: Delivery, response_bytes: int) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._response.close()
        self._book.finish(
            Finish(
                call_id=self._ticket.call_id,
                epoch=self._ticket.claimed.epoch,
                delivery=delivery,
                is_cut=self._is_cut,
                request_bytes=self._trip.call.body.bytes_read,
                response_bytes=response_bytes,
                completed_ms=self._now_ms(),
            )
        )


_: type[AnswerBody] = _UpstreamBody

_WIRE_STATES = {
    CallState.CONSUMED: "charged",
    CallState.RELEASED: "released",
    CallState.UNKNOWN: "held",
}
_OUTCOME_UNKNOWN = Problem(
    code=Code.PAYMENT_OUTCOME_UNKNOWN,
    detail="The call was carried out, but the books cannot say yet what became of its payment. Ask for the call's "
    "record; do not pay again.",
    retry_after_s=5,
)


def _explain(exc: Exception) -> Problem:
    """What the asker may read about a call without an answer. All dial failures look alike."""
    if isinstance(exc, BodyRefused):
        return exc.problem
    if isinstance(exc, UpstreamBadResponse) and isinstance(exc.__cause__, ServerDisconnectedError | OSError):
        return Problem(
            code=Code.UPSTREAM_TIMEOUT,
            detail="The provider's API broke the connection before it answered.",
            reason="connection_lost",
        )
    if isinstance(exc, TollwayError):
        return exc.problem
    return Problem(code=Code.INVALID_REQUEST, detail="The caller left before the request was whole.")


def _proxy_error(code: Code) -> str:
    """RFC 9209 §2.3: the registered error types."""
    return {
        Code.UPSTREAM_UNREACHABLE: "destination_unavailable",
        Code.UPSTREAM_TIMEOUT: "http_response_timeout",
        Code.UPSTREAM_BAD_RESPONSE: "http_protocol_error",
        Code.OVERLOADED: "connection_limit_reached",
    }.get(code, "http_request_denied")


def _receipt(ticket: Ticket, asset: Asset) -> bytes:
    """`PAYMENT-RESPONSE` in the shape of x402 v2's settlement response."""
    receipt = {
        "success": True,
        "transaction": ticket.transaction,
        "network": asset.network,
        "payer": str(ticket.payer),
        "amount": str(asset.to_base_units(ticket.units)),
    }
    return base64.b64encode(json.dumps(receipt, separators=(",", ":")).encode())


def _find_length(headers: Headers) -> int | None:
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None
