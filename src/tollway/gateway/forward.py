"""Carrying one claimed call to its upstream and the answer back. Where a call's outcome becomes a row in the books.

The order is the law: dial, claim (durable), send, head, close (written), stream. Whatever goes wrong between two of
these steps is named here once, in the words of the table of outcomes. No body is ever held whole.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import assert_never

from tollway.errors import (
    Code,
    Problem,
    Refusal,
    StorageUnavailable,
    TollwayError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.gateway.appraisal import appraise
from tollway.gateway.breaker import Breaker
from tollway.gateway.exchange import (
    Abandoned,
    BodyRefused,
    CallerGone,
    Declined,
    Outcome,
)
from tollway.gateway.headers import proxy_status, upstream_headers
from tollway.gateway.refusals import OUTCOME_UNKNOWN, UPSTREAM_ASKS_PAYMENT, explain_failure, name_proxy_error
from tollway.gateway.relay import Relay
from tollway.gateway.trip import (
    ClaimRefused,
    Settling,
    Shipment,
    Ticket,
    Trip,
    call_headers,
)
from tollway.gateway.upstream_signature import NONCE_BYTES, UpstreamSigner, cover_body
from tollway.ledger.book import Book, Close, Closed
from tollway.ledger.call import CallState
from tollway.limits import Limits
from tollway.outbound.dialer import Dialer
from tollway.outbound.policy import Endpoint
from tollway.outbound.request_writer import format_host
from tollway.outbound.upstream import UpstreamRequest, UpstreamResponse
from tollway.payments.settlement import FencedOff, NotSettled, Settled, Undecided
from tollway.registry.listing import is_charged
from tollway.registry.quality_tally import QualityTally

_WIRE_STATES = {
    CallState.CONSUMED: "charged",
    CallState.RELEASED: "released",
    CallState.UNKNOWN: "held",
}
_PAYMENT_ASKED = 402  # of the upstream's own answers, the one that is never passed on
_BODILESS = frozenset({204, 304})
PATIENCE_S = 0.25
"""Who waits for longer than that until a connection is held may have left, and is asked before anything is taken."""


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
        signer: UpstreamSigner,
        entropy: Callable[[int], bytes],
        note_upstream_s: Callable[[float], None] = lambda seconds: None,
        tally: QualityTally | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        """`note_upstream_s` hears how long each upstream took, from the first byte sent until its head; `tally`, how paid
        calls ended."""
        self._dialer = dialer
        self._book = book
        self._limits = limits
        self._now_ms = now_ms
        self._public_url = public_url
        self._name = name
        self._signer = signer
        self._entropy = entropy
        self._note_upstream_s = note_upstream_s
        self._tally = tally or QualityTally()
        self._relay = Relay(book=book, limits=limits, now_ms=now_ms)
        self._breaker = breaker or Breaker(limits=limits)

    def wait_s(self, endpoint: Endpoint) -> int | None:
        """Seconds until an upstream that is known to be down is tried again; None when it may be dialled."""
        return self._breaker.wait_s(endpoint.origin)

    async def carry(self, shipment: Shipment, take: Callable[[], Awaitable[Ticket]]) -> Outcome:
        """Dials, takes the price through `take` once a connection is held, sends, and answers with what came back.

        `take` raises ClaimRefused when the books say no. Every exit has written its state: released, consumed or
        unknown; a call that never got a row says so.
        """
        trip, request = Trip(shipment=shipment), self._build_request(shipment)
        elapsed_s = asyncio.get_running_loop().time
        started_s = elapsed_s()

        async def before_send() -> None:
            if elapsed_s() - started_s > PATIENCE_S and await shipment.call.body.has_left():
                raise CallerGone
            trip.ticket = await take()
            trip.sent_ms = self._now_ms()
            request.headers.extend(self._sign(shipment, trip.ticket, trip.sent_ms))

        try:
            response = await self._dialer.send(
                request,
                before_send=before_send,
                head_deadline_s=shipment.listing.timeout_s,
                progress=trip.progress,
            )
        except ClaimRefused as refused:
            self._breaker.note_reached(shipment.endpoint.origin)
            return refused.outcome
        except (TollwayError, CallerGone, BodyRefused) as exc:
            return await self._fail(trip, exc)
        except BaseException as exc:
            await self._close_aborted(trip, exc)
            raise
        self._breaker.note_reached(shipment.endpoint.origin)
        return await self._answer(trip, response)

    def _build_request(self, shipment: Shipment) -> UpstreamRequest:
        listing, auth = shipment.listing, shipment.listing.upstream_auth
        headers = upstream_headers(
            shipment.call.headers,
            gateway_name=self._name,
            forward_headers=listing.forward_headers,
            secret=(auth.name, auth.reveal()) if auth is not None and auth.location == "header" else None,
        )
        return UpstreamRequest(
            method=shipment.call.method,
            endpoint=shipment.endpoint,
            target=shipment.target,
            headers=headers,
            body=shipment.cargo.content,
            content_length=shipment.cargo.length,
        )

    def _sign(self, shipment: Shipment, ticket: Ticket, now_ms: int) -> list[tuple[str, str]]:
        """What tells the provider that this call is the gateway's. Only now is it known which call it is."""
        cargo = shipment.cargo
        given = shipment.call.find_header(b"content-digest")
        return self._signer.sign(
            method=shipment.call.method,
            authority=format_host(shipment.endpoint),
            target=shipment.target,
            api_id=shipment.listing.id,
            call_id=ticket.call_id,
            payer=ticket.payer,
            body=cover_body(cargo.content, length=cargo.length, given=given),
            created_s=now_ms // 1000,
            nonce=self._entropy(NONCE_BYTES).hex(),
        )

    # ---- No answer: what that means for the payment.

    async def _fail(self, trip: Trip, exc: TollwayError | CallerGone | BodyRefused) -> Outcome:
        """Provably not wholly sent -> released, or what it was before its repeat. Sent, and no head came -> unknown,
        which is never asked to pay again."""
        if isinstance(exc, UpstreamUnreachable):
            self._breaker.note_failed(trip.shipment.endpoint.origin)
        problem = explain_failure(exc)
        told = proxy_status(self._name, f"error={name_proxy_error(problem)}")
        ticket = trip.ticket
        if ticket is None:
            return self._fail_untaken(trip, problem, told)
        is_unsent = not trip.progress.sent or isinstance(exc, CallerGone | BodyRefused | Refusal)
        if isinstance(exc, UpstreamTimeout) and not trip.progress.body_handed_over:
            is_unsent = True
        # A repeat of a call that was charged already has nothing to lose: without a head it stays charged.
        was_charged = ticket.claimed.before is CallState.CONSUMED
        after = _give_back(ticket) if is_unsent or was_charged else CallState.UNKNOWN
        error = "caller_gone" if isinstance(exc, CallerGone) else problem.code.value
        closed = await self._close(trip, ticket, after, error=error, http_status=None, upstream_status=None)
        if isinstance(exc, CallerGone):
            written = after if isinstance(closed, Closed) else CallState.UNKNOWN
            return Abandoned(payment_state=_name_state(written, ticket))
        if after is not CallState.UNKNOWN and isinstance(closed, Declined):
            return closed  # "released" would be a promise that the books do not keep
        state = _name_state(after, ticket)
        rest_units = closed.rest_units if isinstance(closed, Closed) else None
        return Declined(
            problem=replace(
                problem,
                payment_state=state,
                call_id=ticket.call_id,
                members=self._locate(ticket) if after is CallState.UNKNOWN else {},
            ),
            headers=[told, *call_headers(ticket, state, rest_units=rest_units)],
        )

    def _fail_untaken(self, trip: Trip, problem: Problem, told: tuple[bytes, bytes]) -> Declined:
        """No row, and nothing was sent. Only when the books themselves broke off may the price be taken for a while."""
        if not trip.shipment.is_paid:
            state = "none"
        elif problem.code is Code.STORAGE_UNAVAILABLE:
            return Declined(problem=replace(problem, payment_state="held", retry_after_s=1))
        else:
            state = "released"
        return Declined(problem=replace(problem, payment_state=state), headers=[told])

    def _locate(self, ticket: Ticket) -> dict[str, object]:
        return {"call": f"{self._public_url}/api/v2/history/{ticket.call_id}"}

    async def _close_aborted(self, trip: Trip, exc: BaseException) -> None:
        """The process is stopping, or has a bug. What was sent is unknown; what was not is given back."""
        if trip.ticket is None:
            return
        after = CallState.UNKNOWN if trip.progress.sent else _give_back(trip.ticket)
        error = "shutdown" if isinstance(exc, asyncio.CancelledError) else Code.INTERNAL_ERROR.value
        closing = self._close(trip, trip.ticket, after, error=error, http_status=None, upstream_status=None)
        await asyncio.shield(closing)

    # ---- An answer: close by its head, then stream.

    async def _answer(self, trip: Trip, response: UpstreamResponse) -> Outcome:
        ticket, status = trip.ticket, response.status
        assert ticket is not None  # the dialer sends nothing without its hook
        after = CallState.CONSUMED if is_charged(ticket.charge_on, status) else CallState.RELEASED
        is_foreign_402 = status == _PAYMENT_ASKED
        # A repeat of a call whose money has moved already has nothing to settle.
        if after is CallState.CONSUMED and ticket.settling and ticket.transaction is None:
            return await self._settle(trip, ticket, ticket.settling, response)
        try:
            closed = await self._close(
                trip,
                ticket,
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
        state = _name_state(after, ticket)
        own = call_headers(ticket, state, rest_units=closed.rest_units)
        own.append(proxy_status(self._name, f"received-status={status}"))
        if is_foreign_402:
            response.close()
            problem = replace(UPSTREAM_ASKS_PAYMENT, call_id=ticket.call_id, payment_state=state)
            return Declined(problem=problem, headers=own)
        if after is CallState.RELEASED:
            ticket = replace(ticket, keep=None)  # a repeat of what cost nothing is a call of its own
        return await self._relay.begin(trip.shipment, ticket, response, own)

    async def _settle(
        self, trip: Trip, ticket: Ticket, settling: Settling, response: UpstreamResponse
    ) -> Outcome:
        """The head costs: the money moves now, while the body waits at the upstream."""
        close = self._describe(
            trip,
            ticket,
            CallState.SETTLING,
            error=None,
            http_status=response.status,
            upstream_status=response.status,
        )
        is_kept = False
        try:
            outcome = await settling.settle(close)
            match outcome:
                case Settled(transfer=transfer):
                    is_kept = True
                    self._count(trip, ticket, close, CallState.CONSUMED)
                    paid = replace(ticket, transaction=transfer.tx_hash)
                    own = call_headers(paid, "charged", rest_units=None)
                    own.append(proxy_status(self._name, f"received-status={response.status}"))
                    return await self._relay.begin(trip.shipment, paid, response, own)
                case NotSettled(reason=reason):
                    declined = settling.refuse(reason)
                    told = [*call_headers(ticket, "released", rest_units=None), *declined.headers]
                    problem = replace(declined.problem, call_id=ticket.call_id)
                    return replace(declined, problem=problem, headers=told)
                case Undecided():
                    await settling.leave(await self._relay.collect(trip.shipment, ticket, response))
                case FencedOff():
                    pass
                case _:
                    assert_never(outcome)
        except StorageUnavailable:
            pass  # the books cannot say; whoever comes back for it asks them again
        finally:
            if not is_kept:  # also when this very task is cancelled: the sweeper finishes what the books say
                response.close()
        return self._say_unknown(ticket)

    async def _close(
        self,
        trip: Trip,
        ticket: Ticket,
        after: CallState,
        *,
        error: str | None,
        http_status: int | None,
        upstream_status: int | None,
    ) -> Closed | Declined:
        """Writes the outcome. Declined: the books could not say, or somebody else moved the call on."""
        close = self._describe(
            trip, ticket, after, error=error, http_status=http_status, upstream_status=upstream_status
        )
        try:
            closed = await self._book.close(close)
            if isinstance(closed, Closed):
                self._count(trip, ticket, close, after)
                return closed
        except StorageUnavailable:
            pass  # told below: the price stays taken until recovery finds the call
        return self._say_unknown(ticket)

    def _count(self, trip: Trip, ticket: Ticket, close: Close, after: CallState) -> None:
        """`after`: where the call has ended; for one that was settled, that is not what `close` says."""
        listing = trip.shipment.listing
        bucket = appraise(
            listing,
            ticket.payer if ticket.claimed.before is None else None,
            payment_state=_name_state(after, ticket),
            upstream_status=close.upstream_status,
            upstream_latency_ms=close.upstream_latency_ms,
            error=close.error,
        )
        if bucket is not None:
            self._tally.note(listing.id, bucket)

    def _describe(
        self,
        trip: Trip,
        ticket: Ticket,
        after: CallState,
        *,
        error: str | None,
        http_status: int | None,
        upstream_status: int | None,
    ) -> Close:
        now_ms, upstream_ms = self._now_ms(), None
        if upstream_status is not None and trip.sent_ms is not None:
            upstream_ms = now_ms - trip.sent_ms
            self._note_upstream_s(upstream_ms / 1000)
        return Close(
            call_id=ticket.call_id,
            epoch=ticket.claimed.epoch,
            after=after,
            http_status=http_status,
            upstream_status=upstream_status,
            latency_ms=now_ms - trip.shipment.call.received_ms,
            upstream_latency_ms=upstream_ms,
            error=error,
        )

    def _say_unknown(self, ticket: Ticket) -> Declined:
        """Never with terms: nobody is asked to pay again for what may be paid."""
        state = _name_state(CallState.UNKNOWN, ticket)
        problem = replace(
            OUTCOME_UNKNOWN, call_id=ticket.call_id, members=self._locate(ticket), payment_state=state
        )
        return Declined(problem=problem, headers=call_headers(ticket, state, rest_units=None))


def _give_back(ticket: Ticket) -> CallState:
    """Where a run that was not wholly sent ends. The run before a repeat was sent: its price is not given back."""
    return ticket.claimed.before or CallState.RELEASED


def _name_state(state: CallState, ticket: Ticket) -> str:
    return "none" if ticket.asset is None else _WIRE_STATES[state]
