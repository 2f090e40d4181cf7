"""One call on its way: what was granted for it, how far it came, what its answer says about the payment, and the rest
of that answer while it streams. Nothing here decides an outcome.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from tollway.errors import UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.cargo import ForwardBody
from tollway.gateway.exchange import Headers, IncomingCall, ProblemResponse, ProxyResponse, ResponseBody
from tollway.identifiers import Address, CallId, TxHash
from tollway.ledger.book import Claimed, Close, Finish, Ledger
from tollway.ledger.call import Delivery
from tollway.ledger.kept_answers import StoredResponse
from tollway.money import Asset, Price
from tollway.outbound.policy import Endpoint
from tollway.outbound.upstream import Progress, UpstreamResponse
from tollway.payments.settlement import SettlementOutcome
from tollway.registry.listing import ChargeOn, Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCall:
    """A call that nothing speaks against. `target`: path and query for the upstream, the listing's secret included."""

    call: IncomingCall
    listing: Listing
    endpoint: Endpoint
    target: str
    body: ForwardBody
    is_paid: bool


class PaymentCapture(Protocol):
    """The payment of a call whose money moves only when its upstream has answered."""

    async def settle(self, close: Close) -> SettlementOutcome:
        """Lets the money move. `close`: what the upstream's head said, on its way into `capture`."""
        ...

    async def leave_orphaned(self, answer: StoredResponse | None) -> None:
        """Nobody can wait any longer for the settlement: keeps the answer for whoever shows the same proof again."""
        ...

    def refuse(self, reason: str) -> ProblemResponse:
        """The money surely did not move."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedCall:
    """A granted claim: which call this is, and what it may say about its payment. `asset` None: a free call.

    `capture`: the price is paid by an authorisation that still has to be settled. `store_response` stores the whole answer under
    the caller's idempotency key.
    """

    call_id: CallId
    claimed: Claimed
    price: Price
    currency: str
    charge_on: ChargeOn
    asset: Asset | None
    units: int
    payer: Address | None
    transaction: TxHash | None
    write_receipt: Callable[[TxHash], tuple[bytes, bytes]] | None = None
    capture: PaymentCapture | None = None
    store_response: Callable[[StoredResponse], Awaitable[None]] | None = None


class ClaimRefused(Exception):
    """The ledger did not grant the claim; nothing was sent. `outcome`: what the caller gets instead."""

    def __init__(self, outcome: ProxyResponse | ProblemResponse) -> None:
        self.outcome = outcome
        super().__init__(
            outcome.problem.detail if isinstance(outcome, ProblemResponse) else "answered already"
        )


@dataclass(slots=True, kw_only=True)
class UpstreamAttempt:
    """How far one upstream call came. `claimed_call` is there once the claim was granted, `sent_ms` when bytes began to leave."""

    upstream_call: UpstreamCall
    progress: Progress = field(default_factory=Progress)
    claimed_call: ClaimedCall | None = None
    sent_ms: int | None = None


class UpstreamResponseBody:
    """The rest of an answer. See `ResponseBody`. `recorder` gets the whole body before its end is told."""

    __slots__ = (
        "_call",
        "_claimed_call",
        "_is_cut",
        "_is_ended",
        "_ledger",
        "_now_ms",
        "_recorder",
        "_response",
    )

    def __init__(
        self,
        response: UpstreamResponse,
        *,
        ledger: Ledger,
        call: IncomingCall,
        claimed_call: ClaimedCall,
        now_ms: Callable[[], int],
        recorder: "ResponseRecorder | None" = None,
    ) -> None:
        self._response = response
        self._ledger = ledger
        self._call = call
        self._claimed_call = claimed_call
        self._now_ms = now_ms
        self._recorder = recorder
        self._is_cut = False
        self._is_ended = False

    async def read_chunk(self) -> bytes:
        try:
            chunk = await self._response.read_chunk()
        except (UpstreamBadResponse, UpstreamTimeout):
            # A caller that breaks its own upload off breaks the connection too; that earns no repeat.
            self._is_cut = not self._call.body.is_broken
            raise
        if self._recorder is not None:
            await self._recorder.add_chunk(chunk)
        return chunk

    @property
    def is_recorded(self) -> bool:
        return self._recorder is not None and self._recorder.is_open

    def end(self, delivery: Delivery, response_bytes: int) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._response.close()
        self._ledger.finish(
            Finish(
                call_id=self._claimed_call.call_id,
                epoch=self._claimed_call.claimed.epoch,
                delivery=delivery,
                is_cut=self._is_cut,
                request_bytes=self._call.body.bytes_read,
                response_bytes=response_bytes,
                completed_ms=self._now_ms(),
            )
        )


class ResponseRecorder:
    """Collects an answer while it streams, and keeps it when it is whole and not too large."""

    __slots__ = ("_body", "_bytes_max", "_headers", "_status", "_store_response")

    def __init__(
        self,
        store_response: Callable[[StoredResponse], Awaitable[None]],
        *,
        status: int,
        headers: Headers,
        bytes_max: int,
    ) -> None:
        self._store_response = store_response
        self._status = status
        self._headers = tuple(headers)
        self._bytes_max = bytes_max
        self._body: bytearray | None = bytearray()

    @property
    def is_open(self) -> bool:
        """More is wanted, or the whole is being stored."""
        return self._body is not None

    async def add_chunk(self, chunk: bytes) -> None:
        """The next bytes; b"" at the true end, once."""
        if self._body is None:
            return
        if chunk:
            self._body += chunk
            if len(self._body) > self._bytes_max:
                self._body = None
            return
        try:
            await self._store_response(
                StoredResponse(status=self._status, headers=self._headers, body=bytes(self._body))
            )
        finally:
            self._body = None


_: type[ResponseBody] = UpstreamResponseBody


def call_headers(claimed_call: ClaimedCall, state: str, *, remaining_units: int | None) -> Headers:
    """What every answer to a claimed call says. `state`: `none`, `charged`, `released` or `held`."""
    headers: Headers = [
        (b"tollway-call-id", claimed_call.call_id.encode()),
        (b"tollway-payment-state", state.encode()),
        (b"tollway-price", f"{claimed_call.price.text} {claimed_call.currency}".encode()),
    ]
    if claimed_call.asset is None:
        return headers
    if remaining_units is not None:
        rest = claimed_call.asset.format_units(remaining_units)
        headers.append((b"tollway-credit-remaining", f"{rest} {claimed_call.currency}".encode()))
    if state == "charged" and claimed_call.transaction is not None and claimed_call.write_receipt is not None:
        headers.append(claimed_call.write_receipt(claimed_call.transaction))
    return headers


STORED_HEADERS = frozenset({b"tollway-price", b"payment-response", b"x-payment-response", b"payment-receipt"})
"""What a stored answer says of its call for ever."""
