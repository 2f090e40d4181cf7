"""One call on its way: what was granted for it, how far it came, what its answer says about the payment, and the rest
of that answer while it streams. Nothing here decides an outcome.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from tollway.errors import UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.cargo import Cargo
from tollway.gateway.exchange import Answer, AnswerBody, Declined, Headers, IncomingCall
from tollway.identifiers import Address, CallId, TxHash
from tollway.ledger.book import Book, Claimed, Close, Finish
from tollway.ledger.call import Delivery
from tollway.ledger.kept_answers import StoredAnswer
from tollway.money import Asset, Price
from tollway.outbound.policy import Endpoint
from tollway.outbound.upstream import Progress, UpstreamResponse
from tollway.payments.settlement import SettlementOutcome
from tollway.registry.listing import ChargeOn, Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """A call that nothing speaks against. `target`: path and query for the upstream, the listing's secret included."""

    call: IncomingCall
    listing: Listing
    endpoint: Endpoint
    target: str
    cargo: Cargo
    is_paid: bool


class Settling(Protocol):
    """The payment of a call whose money moves only when its upstream has answered."""

    async def settle(self, close: Close) -> SettlementOutcome:
        """Lets the money move. `close`: what the upstream's head said, on its way into `settling`."""
        ...

    async def leave(self, answer: StoredAnswer | None) -> None:
        """Nobody can wait any longer for the settlement: keeps the answer for whoever shows the same proof again."""
        ...

    def refuse(self, reason: str) -> Declined:
        """The money surely did not move."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A granted claim: which call this is, and what it may say about its payment. `asset` None: a free call.

    `settling`: the price is paid by an authorisation that still has to be settled. `keep` stores the whole answer under
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
    settling: Settling | None = None
    keep: Callable[[StoredAnswer], Awaitable[None]] | None = None


class ClaimRefused(Exception):
    """The books did not grant the claim; nothing was sent. `outcome`: what the caller gets instead."""

    def __init__(self, outcome: Answer | Declined) -> None:
        self.outcome = outcome
        super().__init__(outcome.problem.detail if isinstance(outcome, Declined) else "answered already")


@dataclass(slots=True, kw_only=True)
class Trip:
    """How far one shipment came. `ticket` is there once the claim was granted, `sent_ms` when bytes began to leave."""

    shipment: Shipment
    progress: Progress = field(default_factory=Progress)
    ticket: Ticket | None = None
    sent_ms: int | None = None


class UpstreamBody:
    """The rest of an answer. See `AnswerBody`. `keeper` gets the whole body before its end is told."""

    __slots__ = ("_book", "_call", "_is_cut", "_is_ended", "_keeper", "_now_ms", "_response", "_ticket")

    def __init__(
        self,
        response: UpstreamResponse,
        *,
        book: Book,
        call: IncomingCall,
        ticket: Ticket,
        now_ms: Callable[[], int],
        keeper: "Keeper | None" = None,
    ) -> None:
        self._response = response
        self._book = book
        self._call = call
        self._ticket = ticket
        self._now_ms = now_ms
        self._keeper = keeper
        self._is_cut = False
        self._is_ended = False

    async def read_chunk(self) -> bytes:
        try:
            chunk = await self._response.read_chunk()
        except (UpstreamBadResponse, UpstreamTimeout):
            # A caller that breaks its own upload off breaks the connection too; that earns no repeat.
            self._is_cut = not self._call.body.is_broken
            raise
        if self._keeper is not None:
            await self._keeper.take(chunk)
        return chunk

    @property
    def is_kept(self) -> bool:
        return self._keeper is not None and self._keeper.is_open

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
                request_bytes=self._call.body.bytes_read,
                response_bytes=response_bytes,
                completed_ms=self._now_ms(),
            )
        )


class Keeper:
    """Collects an answer while it streams, and keeps it when it is whole and not too large."""

    __slots__ = ("_body", "_bytes_max", "_headers", "_keep", "_status")

    def __init__(
        self,
        keep: Callable[[StoredAnswer], Awaitable[None]],
        *,
        status: int,
        headers: Headers,
        bytes_max: int,
    ) -> None:
        self._keep = keep
        self._status = status
        self._headers = tuple(headers)
        self._bytes_max = bytes_max
        self._body: bytearray | None = bytearray()

    @property
    def is_open(self) -> bool:
        """More is wanted, or the whole is being stored."""
        return self._body is not None

    async def take(self, chunk: bytes) -> None:
        """The next bytes; b"" at the true end, once."""
        if self._body is None:
            return
        if chunk:
            self._body += chunk
            if len(self._body) > self._bytes_max:
                self._body = None
            return
        try:
            await self._keep(StoredAnswer(status=self._status, headers=self._headers, body=bytes(self._body)))
        finally:
            self._body = None


_: type[AnswerBody] = UpstreamBody


def call_headers(ticket: Ticket, state: str, *, rest_units: int | None) -> Headers:
    """What every answer to a claimed call says. `state`: `none`, `charged`, `released` or `held`."""
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
    if state == "charged" and ticket.transaction is not None and ticket.write_receipt is not None:
        headers.append(ticket.write_receipt(ticket.transaction))
    return headers


LASTING = frozenset({b"tollway-price", b"payment-response", b"x-payment-response", b"payment-receipt"})
"""What a stored answer says of its call for ever."""
