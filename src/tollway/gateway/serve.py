"""The one function that a paid call walks through.

    find listing -> paid for and stored? give it out -> closed? say so -> free? pass -> no proof? answer terms
      -> till (facts, verdict) -> price -> dial -> claim, committed -> send -> close, written -> stream
    a signed authorisation instead of a proof? cashier (our own terms, facts, verdict) -> dial -> claim -> send
      -> settle -> stream

Every exit is a named outcome. The default refuses. Nothing is asked of the chain, and nothing taken, before all that
can be refused for free has been checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tollway.errors import Code, Problem
from tollway.gateway.cargo import (
    EMPTY_BODY_HASH,
    Cargo,
    check_size,
    load_compared,
    load_hashed,
    load_plain,
    load_promised,
    too_large,
)
from tollway.gateway.cashier import Admission, Cashier
from tollway.gateway.counter import Counter, Order
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
from tollway.gateway.parameters import Manual
from tollway.gateway.refusals import (
    BOUND_REQUIRED,
    LOOP,
    NOT_FOUND,
    OTHER_CURRENCY,
    ask_payment,
    check_idempotency_key,
    check_rails,
    decline,
    find_closed,
    find_idempotency_key,
    may_ask,
)
from tollway.gateway.replays import say_key_used
from tollway.gateway.sale import Known, Sale, Shown
from tollway.gateway.trip import Shipment
from tollway.identifiers import Address, ListingId
from tollway.ledger.book import Book
from tollway.ledger.keyed_calls import KeyedCall
from tollway.limits import Limits
from tollway.payments.authorization_verdict import is_late
from tollway.payments.payers import Request, recover_wallets
from tollway.payments.presented import Presented
from tollway.payments.proof import TX_HEADER, Proof, parse_proof
from tollway.payments.till import Till
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing, Shelf

_Seen = Shown | Presented | Problem | None
"""What a call shows on the rails of authorisations. `Shown`: the books know it, and its body is read to be compared."""

CLOCK_SLACK_S = 5  # callers' clocks run a little ahead
MANUALS_KEPT = 1_000


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
    ) -> None:
        self._name = name
        self._catalog = catalog
        self._till = till
        self._cashier = cashier
        self._passage = passage
        self._limits = limits
        self._openings = Openings(wait_s=passage.wait_s, allow_private=name.allow_private)
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
        self._manuals: dict[tuple[ListingId, int], Manual] = {}

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
        if isinstance(told, Answer) or (told is not None and told.problem.code in _COMING):
            return told
        opening = self._openings.find(shelf, call)
        if isinstance(opening, Problem):
            return Declined(problem=opening)
        if opening.is_free:
            return await self._serve_free(call, opening, shown)
        return told or await self._serve_paid(call, opening, shown)

    async def _look_up(self, call: IncomingCall) -> _Seen:
        if call.find_header(TX_HEADER) is not None:
            return None  # on another rail; or on two, which is told in its turn
        presented = self._cashier.read(call)
        if not isinstance(presented, Presented):
            return presented
        known = await self._cashier.find_known(presented)
        if known is None or check_size(call.body, self._limits) is not None:
            return presented
        cargo = await load_compared(call.body, limits=self._limits)
        return _show(call, presented, cargo, known)

    # ---- Paid.

    async def _serve_paid(self, call: IncomingCall, opening: Opening, shown: _Seen) -> Outcome:
        proof = parse_proof(call.headers)
        if isinstance(proof, Problem):
            return Declined(problem=proof)
        problem = check_rails(call, has_proof=proof is not None)
        if problem is not None:
            return Declined(problem=problem)
        listing, tariff = opening.listing, opening.tariffs[0]
        offer = Offer(
            shelf=opening.shelf,
            price=tariff.price,
            expires_ms=call.received_ms + self._limits.price_memory_s * 1000,
            quote=partial(self._cashier.quote, tariff, listing),
        )
        if proof is None:
            return await self._serve_authorized(call, opening, offer, shown)
        problem = self._check_request(call, listing) or self._check_form(proof, listing)
        if problem is not None:
            return Declined(problem=problem)
        cargo = await self._load(call, proof)
        if isinstance(cargo, Problem):
            return Declined(problem=cargo)
        order = Order(call=call, listing=listing, proof=proof, offer=offer, cargo=cargo)
        with self._customers.receive(call, listing) as visit:
            return await self._sell(order, opening, visit)

    async def _sell(self, order: Order, opening: Opening, visit: Visit) -> Outcome:
        """From here on money is looked at; what the caller sent is known to be well-formed."""
        call, cargo = order.call, order.cargo
        request = Request(
            gateway=self._name.origin,
            method=call.method,
            target=call.target.signed.encode(),
            body_hash=cargo.body_hash or EMPTY_BODY_HASH,  # a plain signature covers no body
            client_address=call.client_address,
        )
        key = find_idempotency_key(call)
        wallets = () if key is None else self._recover_wallets(order, request)
        told = None if key is None else await self._find_keyed(order, wallets, key)
        if told is not None and not isinstance(told, KeyedCall):
            return told
        tenders = await self._till.tender(order.proof, order.offer.shelf, request)
        if isinstance(tenders, Problem):
            return _decline(tenders, order.offer, told)
        payer = tenders[0].payment.payer
        if key is not None and payer not in wallets:  # a contract's wallet is known to have signed only now
            told = await self._find_keyed(order, (payer,), key)
            if told is not None and not isinstance(told, KeyedCall):
                return told
        purchases = self._counter.price(tenders, opening.tariffs)
        if not purchases:
            return _decline(OTHER_CURRENCY, order.offer, told)
        spent = None if told else await self._counter.check_spent(order, purchases)
        if spent is not None:
            return spent
        due = purchases[0].due
        problem = await visit.check(payer, due.price, due.asset)
        if problem is not None:
            return decline(problem, order.offer)
        shipment = _ship(call, opening, cargo, is_paid=True)
        outcome = await self._passage.carry(shipment, partial(self._counter.take, order, purchases))
        visit.note(payer, outcome)
        return outcome

    def _recover_wallets(self, order: Order, request: Request) -> tuple[Address, ...]:
        named = order.proof.chain_id
        shelf = order.offer.shelf
        chain_ids = (
            (named,)
            if named is not None
            else dict.fromkeys(chain_id for version in shelf.versions for chain_id in version.networks)
        )
        return recover_wallets(order.proof, request, shelf.listing.id, chain_ids)

    async def _find_keyed(
        self, order: Order, wallets: Sequence[Address], key: str
    ) -> Answer | Declined | KeyedCall | None:
        """Before money, a budget or a chain is looked at: the call may be paid."""
        return await self._cashier.replays.find_keyed(order.call, order.cargo, wallets, key)

    # ---- Paid by an authorisation.

    async def _serve_authorized(
        self, call: IncomingCall, opening: Opening, offer: Offer, shown: _Seen
    ) -> Outcome:
        if shown is None:
            return Declined(problem=ask_payment(offer), offer=offer)
        if isinstance(shown, Problem):
            return decline(shown, offer)
        problem = self._check_request(call, opening.listing)
        if problem is not None:
            return Declined(problem=problem)
        if isinstance(shown, Presented):
            cargo = await load_hashed(
                call.body,
                is_whole=_find_key(call, shown) is not None,
                limits=self._limits,
                is_late=partial(self._is_late, shown, opening.listing),
            )
            if isinstance(cargo, Problem):
                return Declined(problem=cargo)
            shown = _show(call, shown, cargo, None)
        sale = Sale(
            call=call,
            presented=shown.presented,
            cargo=shown.cargo,
            key=shown.key,
            known=shown.known,
            listing=opening.listing,
            offer=offer,
        )
        with self._customers.receive(call, opening.listing, is_settled_here=True) as visit:
            return await self._sell_authorized(sale, opening, visit)

    async def _sell_authorized(self, sale: Sale, opening: Opening, visit: Visit) -> Outcome:
        admitted = await self._cashier.admit(sale, opening.tariffs, visit.check)
        if not isinstance(admitted, Admission):
            return admitted
        if sale.cargo.is_spent:  # a repeat that would have to run again
            return Declined(problem=too_large(self._limits.bound_body_bytes_max))
        shipment = _ship(sale.call, opening, sale.cargo, is_paid=True)
        outcome = await self._passage.carry(shipment, admitted.take)
        visit.note(admitted.payer, outcome)
        return outcome

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
        """The provider's document is read once per revision of a listing."""
        if listing.openapi is None:
            return None
        key = (listing.id, listing.revision)
        manual = self._manuals.get(key)
        if manual is None:
            if len(self._manuals) >= MANUALS_KEPT:
                self._manuals.clear()
            auth = listing.upstream_auth
            manual = Manual(listing.openapi, given=() if auth is None else (auth.name,))
            self._manuals[key] = manual
        return manual.check(
            method=call.method, rest=call.target.rest, query=call.target.query, headers=call.headers
        )

    def _check_form(self, proof: Proof, listing: Listing) -> Problem | None:
        """The plain form where a bound one is asked for; a bound one outside its time."""
        if proof.binding is None:
            if listing.signature == "bound" or self._name.is_bound_required:
                return BOUND_REQUIRED
            return None
        now_s = self._now_ms() // 1000
        if proof.binding.valid_until < now_s:
            return Problem(
                code=Code.SIGNATURE_EXPIRED,
                detail="validUntil of X-Signature-Params has passed; sign the same call again.",
                payment_state="none",
            )
        if proof.binding.valid_until > now_s + self._limits.bound_validity_s + CLOCK_SLACK_S:
            return Problem(
                code=Code.SIGNATURE_EXPIRED,
                detail=f"validUntil lies more than {self._limits.bound_validity_s} seconds ahead.",
                reason="valid_until_too_far",
                payment_state="none",
            )
        return None

    async def _load(self, call: IncomingCall, proof: Proof) -> Cargo | Problem:
        if proof.binding is None and find_idempotency_key(call) is not None:
            return await load_hashed(call.body, is_whole=True, limits=self._limits)
        if proof.binding is None:
            return await load_plain(call.body, limits=self._limits)
        return await load_promised(call.body, proof.binding.body_hash, limits=self._limits)

    # ---- Free.

    async def _serve_free(self, call: IncomingCall, opening: Opening, shown: _Seen) -> Outcome:
        listing = opening.listing
        problem = await self._customers.check_free(call, listing)
        if problem is not None:
            return Declined(problem=problem)
        problem = check_size(call.body, self._limits) or check_idempotency_key(call)
        if problem is not None:
            return Declined(problem=problem)
        cargo = shown.cargo if isinstance(shown, Shown) else await load_plain(call.body, limits=self._limits)
        if cargo.is_spent:
            return Declined(problem=too_large(self._limits.bound_body_bytes_max))
        shipment = _ship(call, opening, cargo, is_paid=False)
        take = partial(self._counter.take_free, call, listing, opening.tariffs[0])
        return await self._passage.carry(shipment, take)


def _ship(call: IncomingCall, opening: Opening, cargo: Cargo, *, is_paid: bool) -> Shipment:
    return Shipment(
        call=call,
        listing=opening.listing,
        endpoint=opening.endpoint,
        target=opening.target,
        cargo=cargo,
        is_paid=is_paid,
    )


def _decline(problem: Problem, offer: Offer, open_call: KeyedCall | None) -> Declined:
    """Nobody is asked to pay for a call that an earlier run holds a price for."""
    if open_call is not None and may_ask(problem):
        return say_key_used(open_call)
    return decline(problem, offer)


def _find_key(call: IncomingCall, presented: Presented) -> str | None:
    return find_idempotency_key(call) or presented.identifier


def _show(call: IncomingCall, presented: Presented, cargo: Cargo, known: Known | None) -> Shown:
    return Shown(call=call, presented=presented, cargo=cargo, key=_find_key(call, presented), known=known)


# The answer that was paid for is not there yet: asking again brings it.
_COMING = frozenset({Code.IDEMPOTENCY_IN_PROGRESS, Code.PAYMENT_OUTCOME_UNKNOWN})
