"""The one function that a paid call walks through.

    find listing -> paid for and stored? give it out -> closed? say so -> free, and no repeat? pass -> no proof? answer terms
      -> teller (record, facts, verdict, price) -> dial -> claim, committed -> send -> close, written -> stream
    a signed authorisation instead of a proof? cashier (record, our own terms, facts, verdict) -> dial -> claim -> send
      -> settle -> stream

Every exit is a named outcome. The default refuses. Nothing is asked of the chain, and nothing taken, before all that
can be refused for free has been checked.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from tollway.errors import Code, Problem
from tollway.gateway.cargo import Cargo, check_size, load_compared, load_hashed, load_plain, too_large
from tollway.gateway.cashier import Admission, Cashier
from tollway.gateway.counter import Counter, Order, PaidRequest
from tollway.gateway.customers import Customers, Visit
from tollway.gateway.exchange import (
    Abandoned,
    Answer,
    BodyRefused,
    CallerGone,
    Declined,
    IncomingCall,
    Offer,
    Outcome,
)
from tollway.gateway.forward import Passage
from tollway.gateway.headers import check_control_headers, is_loop
from tollway.gateway.meters import Meters
from tollway.gateway.opening import Opening, Openings
from tollway.gateway.parameters import Manuals
from tollway.gateway.refusals import (
    LOOP,
    NOT_FOUND,
    ask_payment,
    check_idempotency_key,
    decline,
    find_closed,
    find_idempotency_key,
)
from tollway.gateway.replays import Known, Shown, Unread, is_coming
from tollway.gateway.sale import Sale
from tollway.gateway.teller import Teller
from tollway.gateway.trip import Shipment
from tollway.identifiers import Address, ListingId
from tollway.ledger.book import Book
from tollway.limits import Limits
from tollway.payments.authorization_verdict import is_late
from tollway.payments.junk_meter import AuthorizationLookup
from tollway.payments.presented import Presented
from tollway.payments.proof import TX_HEADER
from tollway.payments.till import Till
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing, Shelf
from tollway.registry.ownership import UNVERIFIED

_Seen = Shown | Presented | Problem | None
"""What a call shows on the rails of authorisations. `Shown`: the books know it, and its body is read to be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayName:
    """What a gateway says of itself. `origin`: that of the public URL; `host`: its name in Via and CDN-Loop."""

    origin: str
    host: str
    allow_private: bool
    is_bound_required: bool


class Gateway:
    """Serves calls. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        name: GatewayName,
        catalog: Catalog,
        book: Book,
        till: Till,
        cashier: Cashier,
        passage: Passage,
        meters: Meters,
        limits: Limits,
        is_blocked: Callable[[Address], bool],
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
        is_verified: Callable[[ListingId], Awaitable[bool]] | None = None,
    ) -> None:
        """`is_verified`: whose ownership is proved, where only those are served."""
        self._name = name
        self._is_verified = is_verified
        self._catalog = catalog
        self._cashier = cashier
        self._passage = passage
        self._limits = limits
        self._manuals = Manuals()
        self._openings = Openings(
            wait_s=passage.wait_s, allow_private=name.allow_private, manuals=self._manuals
        )
        self._customers = Customers(meters, limits=limits, is_blocked=is_blocked, now_ms=now_ms)
        self._now_ms = now_ms
        self._counter = Counter(
            book=book,
            till=till,
            replays=cashier.replays,
            limits=limits,
            now_ms=now_ms,
            entropy=entropy,
        )
        self._teller = Teller(
            till=till,
            counter=self._counter,
            replays=cashier.replays,
            limits=limits,
            origin=name.origin,
            is_bound_required=name.is_bound_required,
            now_ms=now_ms,
        )

    async def serve(self, call: IncomingCall) -> Outcome:
        """One call, from its headers to its outcome. Raises StorageUnavailable and ChainUnavailable: nothing taken."""
        problem = check_control_headers(call.headers, limits=self._limits)
        if problem is not None:
            return Declined(problem=problem)
        if is_loop(call.headers, self._name.host):
            return Declined(problem=LOOP)
        shelf = await self._catalog.find(call.listing_id)
        if shelf is None or shelf.listing.suspended_ms is not None:
            return Declined(problem=find_closed(shelf, call) or NOT_FOUND)
        try:
            return await self._serve_from(shelf, call)
        except CallerGone:
            return Abandoned()
        except BodyRefused as refused:
            return Declined(problem=refused.problem)

    async def _serve_from(self, shelf: Shelf, call: IncomingCall) -> Outcome:
        """What was paid for and is stored is given out whatever its listing has become; everything else is for an open
        one."""
        shown = await self._look_up(call)
        told = await self._cashier.replays.answer(shown) if isinstance(shown, Shown) else None
        if told is not None and is_coming(told):
            return told
        opening = self._openings.find(shelf, call)
        if self._is_verified is not None and isinstance(opening, Opening):
            opening = opening if await self._is_verified(opening.listing.id) else UNVERIFIED
        if isinstance(opening, Problem):
            return await self._teller.recall(call, shelf) or Declined(problem=opening)
        if isinstance(shown, Unread):
            # A free call is served all the same, unless its key names the paid call that it shows.
            key = _find_key(call, shown.presented)
            if not opening.is_free or (key is not None and key == shown.known.call.idempotency_key):
                return shown.told
            shown = shown.presented
        if opening.is_free:
            return await self._serve_free(call, opening, shown)
        return told or await self._serve_paid(call, opening, shown)

    async def _look_up(self, call: IncomingCall) -> _Seen | Unread:
        if call.find_header(TX_HEADER) is not None:
            return None  # on another rail; or on two, which is told in its turn
        presented = self._cashier.read(call)
        if not isinstance(presented, Presented):
            return presented
        known = await self._cashier.find_known(presented)
        if known is None or check_size(call.body, self._limits) is not None:
            return presented
        told = self._cashier.replays.answer_unread(call, presented, known, key=_find_key(call, presented))
        if told is not None:
            return Unread(presented=presented, known=known, told=told)
        cargo = await load_compared(call.body, limits=self._limits)
        shown = _show(call, presented, cargo, known)
        return replace(shown, is_entitled=await self._cashier.replays.is_entitled(shown))

    # ---- Paid.

    async def _serve_paid(self, call: IncomingCall, opening: Opening, shown: _Seen) -> Outcome:
        proof = self._teller.read(call)
        if isinstance(proof, Problem):
            return Declined(problem=proof)
        if proof is None:
            return await self._serve_authorized(call, opening, shown)
        problem = self._check_request(call, opening.listing)
        if problem is not None:
            return await self._teller.recall(call, opening.shelf) or Declined(problem=problem)
        problem = self._teller.check_form(proof, opening.listing)
        if problem is not None:
            return Declined(problem=problem)
        listing, offer = opening.listing, self._offer(call, opening)
        proved = await self._teller.prove(PaidRequest(call=call, listing=listing, proof=proof, offer=offer))
        if isinstance(proved, Declined):
            return proved
        cargo = await self._teller.load(call, proof)
        if isinstance(cargo, Problem):
            return Declined(problem=cargo)
        order = Order(call=call, listing=listing, proof=proof, offer=offer, cargo=cargo)
        with self._customers.receive(call, listing) as visit:
            admitted = await self._teller.admit(order, proved, opening.tariffs, visit.check)
            return await self._carry(call, opening, cargo, admitted, visit)

    def _offer(self, call: IncomingCall, opening: Opening) -> Offer:
        tariff = opening.tariffs[0]
        return Offer(
            shelf=opening.shelf,
            price=tariff.price,
            expires_ms=call.received_ms + self._limits.price_memory_s * 1000,
            quote=partial(self._cashier.quote, tariff, opening.listing),
        )

    async def _carry(
        self,
        call: IncomingCall,
        opening: Opening,
        cargo: Cargo,
        admitted: Answer | Declined | Admission,
        visit: Visit,
    ) -> Outcome:
        if not isinstance(admitted, Admission):
            return admitted
        if cargo.is_spent:  # a repeat that would have to run again
            return Declined(problem=too_large(self._limits.bound_body_bytes_max))
        shipment = _ship(call, opening, cargo, is_paid=True)
        outcome = await self._passage.carry(shipment, admitted.take)
        visit.note(admitted.payer, outcome)
        return outcome

    # ---- Paid by an authorisation.

    async def _serve_authorized(self, call: IncomingCall, opening: Opening, shown: _Seen) -> Outcome:
        offer = self._offer(call, opening)
        if shown is None:
            return Declined(problem=ask_payment(offer), offer=offer)
        if isinstance(shown, Problem):
            return decline(shown, offer, call)
        problem = self._check_request(call, opening.listing)
        if problem is not None:
            return Declined(problem=problem)
        if isinstance(shown, Presented) and call.body.is_present:
            key = _find_key(call, shown)
            declined = self._cashier.check_unread(call, shown, offer, opening.tariffs, key=key)
            if declined is not None:
                return declined
        sale = await self._read_sale(call, opening, shown)
        if isinstance(sale, Problem):
            return Declined(problem=sale)
        with (
            self._customers.receive(call, opening.listing, is_settled_here=True) as visit,
            self._cashier.open_lookup(call) as lookup,
        ):
            admitted = await self._cashier.admit(sale, opening.tariffs, visit.check, lookup)
            outcome = await self._carry(call, opening, sale.cargo, admitted, visit)
            _end_lookup(lookup, outcome)
            return outcome

    async def _read_sale(
        self, call: IncomingCall, opening: Opening, shown: Shown | Presented
    ) -> Sale | Problem:
        if isinstance(shown, Presented):
            cargo = await load_hashed(
                call.body,
                is_whole=_find_key(call, shown) is not None,
                limits=self._limits,
                is_late=partial(self._is_late, shown, opening.listing),
            )
            if isinstance(cargo, Problem):
                return cargo
            shown = _show(call, shown, cargo, None)
        return Sale(
            call=call,
            presented=shown.presented,
            cargo=shown.cargo,
            key=shown.key,
            known=shown.known,
            is_entitled=shown.is_entitled,
            listing=opening.listing,
            offer=self._offer(call, opening),
        )

    def _is_late(self, presented: Presented, listing: Listing) -> bool:
        now_s = self._now_ms() / 1000
        return is_late(presented.valid_before, now_s=now_s, timeout_s=listing.timeout_s)

    # ---- What is checked before money is looked at.

    def _check_request(self, call: IncomingCall, listing: Listing) -> Problem | None:
        return (
            check_size(call.body, self._limits)
            or check_idempotency_key(call)
            or self._check_parameters(call, listing)
        )

    def _check_parameters(self, call: IncomingCall, listing: Listing) -> Problem | None:
        manual = self._manuals.find(listing)
        if manual is None:
            return None
        return manual.check(
            method=call.method,
            rest=call.target.rest,
            query=call.target.query,
            headers=call.headers,
            has_body=call.body.is_present and call.body.length != 0,
        )

    # ---- Free.

    async def _serve_free(self, call: IncomingCall, opening: Opening, shown: _Seen) -> Outcome:
        deal = await self._read_repeat(call, opening, shown)
        if isinstance(deal, Problem):
            return Declined(problem=deal)
        told = None if deal is None else await self._serve_repeat(deal, opening)
        if told is not None:
            return told
        listing = opening.listing
        problem = await self._customers.check_free(call, listing)
        if problem is not None:
            return Declined(problem=problem)
        problem = check_size(call.body, self._limits) or check_idempotency_key(call)
        if problem is not None:
            return Declined(problem=problem)
        loaded = deal or (shown if isinstance(shown, Shown) else None)
        cargo = await load_plain(call.body, limits=self._limits) if loaded is None else loaded.cargo
        if cargo.is_spent:
            return Declined(problem=too_large(self._limits.bound_body_bytes_max))
        shipment = _ship(call, opening, cargo, is_paid=False)
        take = partial(self._counter.take_free, call, listing, opening.tariffs[0])
        return await self._passage.carry(shipment, take)

    async def _read_repeat(
        self, call: IncomingCall, opening: Opening, shown: _Seen
    ) -> Order | Sale | Problem | None:
        """A free call that may repeat a paid one, from before: its key says so, and a payment says whose key it is."""
        if not isinstance(shown, Shown | Presented):
            return await self._teller.read_repeat(call, opening.shelf)
        presented = shown.presented if isinstance(shown, Shown) else shown
        length = call.body.length or 0
        if _find_key(call, presented) is None or check_idempotency_key(call) is not None:
            return None
        if isinstance(shown, Presented) and length > self._limits.bound_body_bytes_max:
            return None  # no such call was ever granted under a key
        sale = await self._read_sale(call, opening, shown)
        if isinstance(sale, Sale) and sale.known is not None and sale.known.call.idempotency_key != sale.key:
            return replace(sale, known=None)  # of another call; the key may be of this one
        return sale

    async def _serve_repeat(self, deal: Order | Sale, opening: Opening) -> Outcome | None:
        is_settled_here = isinstance(deal, Sale)
        with (
            self._customers.receive(deal.call, opening.listing, is_settled_here=is_settled_here) as visit,
            self._cashier.open_lookup(deal.call) as lookup,
        ):
            if isinstance(deal, Sale):
                told = await self._cashier.find_repeat_outcome(deal, opening.tariffs, lookup)
            else:
                told = await self._teller.find_repeat_outcome(deal, opening.tariffs, visit.check)
            if told is None:
                return None
            outcome = await self._carry(deal.call, opening, deal.cargo, told, visit)
            _end_lookup(lookup, outcome)
            return outcome


def _ship(call: IncomingCall, opening: Opening, cargo: Cargo, *, is_paid: bool) -> Shipment:
    return Shipment(
        call=call,
        listing=opening.listing,
        endpoint=opening.endpoint,
        target=opening.target,
        cargo=cargo,
        is_paid=is_paid,
    )


def _end_lookup(lookup: AuthorizationLookup, outcome: Outcome) -> None:
    """A look-up counts, unless its call was charged now: a stored answer was charged before."""
    if isinstance(outcome, Declined) and outcome.problem.code in _UNRESOLVED:
        lookup.leave_unresolved()
    elif isinstance(outcome, Abandoned):
        if outcome.payment_state == "charged":
            lookup.give_back()
    else:
        told = dict(outcome.headers)
        if told.get(b"tollway-payment-state") == b"charged" and b"idempotency-replayed" not in told:
            lookup.give_back()


_UNRESOLVED = frozenset({Code.CHAIN_UNAVAILABLE, Code.STORAGE_UNAVAILABLE})


def _find_key(call: IncomingCall, presented: Presented) -> str | None:
    return find_idempotency_key(call) or presented.identifier


def _show(call: IncomingCall, presented: Presented, cargo: Cargo, known: Known | None) -> Shown:
    return Shown(call=call, presented=presented, cargo=cargo, key=_find_key(call, presented), known=known)
