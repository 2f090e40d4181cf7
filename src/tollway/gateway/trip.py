"""One call on its way: what was granted for it, how far it came, what its answer says about the payment, and the rest
of that answer while it streams. Nothing here decides an outcome.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tollway.errors import UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.cargo import Cargo
from tollway.gateway.exchange import AnswerBody, Declined, Headers, IncomingCall
from tollway.identifiers import Address, CallId
from tollway.ledger.book import Book, Claimed, Finish
from tollway.ledger.call import Delivery
from tollway.money import Asset, Price
from tollway.outbound.policy import Endpoint
from tollway.outbound.upstream import Progress, UpstreamResponse
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A granted claim: which call this is, and what it may say about its payment. `asset` None: a free call.

    `note_unsettled` is called when the same request may run again under this claim.
    """

    call_id: CallId
    claimed: Claimed
    price: Price
    currency: str
    charge_on: ChargeOn
    asset: Asset | None
    units: int
    payer: Address | None
    transaction: str | None
    note_unsettled: Callable[[], None]


class ClaimRefused(Exception):
    """The books did not grant the claim; nothing was sent."""

    def __init__(self, declined: Declined) -> None:
        self.declined = declined
        super().__init__(declined.problem.detail)


@dataclass(slots=True, kw_only=True)
class Trip:
    """How far one shipment came. `ticket` is there once the claim was granted, `sent_ms` when bytes began to leave."""

    shipment: Shipment
    progress: Progress = field(default_factory=Progress)
    ticket: Ticket | None = None
    sent_ms: int | None = None


class UpstreamBody:
    """The rest of an answer. See `AnswerBody`."""

    __slots__ = ("_book", "_call", "_is_cut", "_is_ended", "_now_ms", "_response", "_ticket")

    def __init__(
        self,
        response: UpstreamResponse,
        *,
        book: Book,
        call: IncomingCall,
        ticket: Ticket,
        now_ms: Callable[[], int],
    ) -> None:
        self._response = response
        self._book = book
        self._call = call
        self._ticket = ticket
        self._now_ms = now_ms
        self._is_cut = False
        self._is_ended = False

    async def read_chunk(self) -> bytes:
        try:
            return await self._response.read_chunk()
        except (UpstreamBadResponse, UpstreamTimeout):
            # A caller that breaks its own upload off breaks the connection too; that earns no repeat.
            self._is_cut = not self._call.body.is_broken
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
                request_bytes=self._call.body.bytes_read,
                response_bytes=response_bytes,
                completed_ms=self._now_ms(),
            )
        )
        if self._is_cut:
            self._ticket.note_unsettled()


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
    if state == "charged":
        headers.append((b"payment-response", _receipt(ticket, ticket.asset)))
    return headers


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
