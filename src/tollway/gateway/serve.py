"""The one function that a paid call walks through.

    find listing -> closed? say so -> free? pass -> no proof? answer terms -> till (facts, verdict) -> price
      -> dial -> claim, committed -> send -> close, written -> stream
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
    BodyRefused,
    CallerGone,
    Declined,
    IncomingCall,
    Offer,
    Outcome,
)
from tollway.gateway.forward import Passage, build_target
from tollway.gateway.headers import check_control_headers, is_loop
from tollway.gateway.meters import Meters
from tollway.gateway.parameters import Manual
from tollway.gateway.refusals import (
    BOUND_REQUIRED,
    LOOP,
    NO_OPERATION,
    NOT_FOUND,
    OTHER_CURRENCY,
    UNREACHABLE,
    ask_payment,
    check_idempotency_key,
    check_rails,
    decline,
    find_closed,
    find_idempotency_key,
)
from tollway.gateway.sale import Sale
from tollway.gateway.target import match_operation
from tollway.gateway.trip import Shipment
from tollway.identifiers import Address, ListingId
from tollway.ledger.book import Book
from tollway.limits import Limits
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.payments.authorization_verdict import is_late
from tollway.payments.payers import Request
from tollway.payments.presented import Presented
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.terms import Tariff
from tollway.payments.till import Till
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing, Operation, Shelf, Terms

CLOCK_SLACK_S = 5  # callers' clocks run a little ahead
ENDPOINTS_KEPT = 10_000
MANUALS_KEPT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """Where a call leads: the listing's endpoint, and path and query there."""

    endpoint: Endpoint
    target: str


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
        self._endpoints: dict[str, Endpoint | EndpointRefused] = {}
        self._manuals: dict[tuple[ListingId, int], Manual] = {}

    async def serve(self, call: IncomingCall) -> Outcome:
        """One call, from its headers to its outcome. Raises StorageUnavailable and ChainUnavailable: nothing taken."""
        problem = check_control_headers(call.headers, limits=self._limits)
        if problem is not None:
            return Declined(problem=problem)
        if is_loop(call.headers, self._name.host):
            return Declined(problem=LOOP)
        shelf = await self._catalog.find(call.listing_id)
        problem = find_closed(shelf, call, find_wait_s=self._find_wait_s)
        if shelf is None or problem is not None:
            return Declined(problem=problem or NOT_FOUND)
        tariffs = _find_tariffs(shelf, call)
        if isinstance(tariffs, Problem):
            return Declined(problem=tariffs)
        way = self._find_way(call, shelf.listing)
        if isinstance(way, Problem):
            return Declined(problem=way)
        try:
            if tariffs[0].price.is_free:
                return await self._serve_free(call, shelf.listing, way, tariffs[0])
            return await self._serve_paid(call, shelf, way, tariffs)
        except CallerGone:
            return Abandoned()
        except BodyRefused as refused:
            return Declined(problem=refused.problem)

    def _find_wait_s(self, listing: Listing) -> int | None:
        endpoint = self._find_endpoint(listing)
        return None if isinstance(endpoint, EndpointRefused) else self._passage.wait_s(endpoint)

    def _find_way(self, call: IncomingCall, listing: Listing) -> _Way | Problem:
        endpoint = self._find_endpoint(listing)
        if isinstance(endpoint, EndpointRefused):
            return UNREACHABLE
        target = build_target(call, listing, endpoint)
        return target if isinstance(target, Problem) else _Way(endpoint=endpoint, target=target)

    def _find_endpoint(self, listing: Listing) -> Endpoint | EndpointRefused:
        """Parsed once per URL; policy was checked when it was listed, and is again at every socket."""
        endpoint = self._endpoints.get(listing.endpoint)
        if endpoint is None:
            if len(self._endpoints) >= ENDPOINTS_KEPT:
                self._endpoints.clear()
            endpoint = parse_endpoint(listing.endpoint, allow_private=self._name.allow_private)
            self._endpoints[listing.endpoint] = endpoint
        return endpoint

    # ---- Paid.

    async def _serve_paid(
        self, call: IncomingCall, shelf: Shelf, way: _Way, tariffs: Sequence[Tariff]
    ) -> Outcome:
        proof = parse_proof(call.headers)
        if isinstance(proof, Problem):
            return Declined(problem=proof)
        problem = check_rails(call, has_proof=proof is not None)
        if problem is not None:
            return Declined(problem=problem)
        offer = Offer(
            shelf=shelf,
            price=tariffs[0].price,
            expires_ms=call.received_ms + self._limits.price_memory_s * 1000,
            requirements=self._cashier.quote(tariffs[0], shelf.listing),
        )
        if proof is None:
            return await self._serve_authorized(call, offer, way, tariffs)
        problem = self._check_request(call, shelf.listing) or self._check_form(proof, shelf.listing)
        if problem is not None:
            return Declined(problem=problem)
        cargo = await self._load(call, proof)
        if isinstance(cargo, Problem):
            return Declined(problem=cargo)
        order = Order(call=call, listing=shelf.listing, proof=proof, offer=offer, cargo=cargo)
        with self._customers.receive(call, shelf.listing) as visit:
            return await self._sell(order, way, tariffs, visit)

    async def _sell(self, order: Order, way: _Way, tariffs: Sequence[Tariff], visit: Visit) -> Outcome:
        """From here on money is looked at; what the caller sent is known to be well-formed."""
        call, listing, cargo = order.call, order.listing, order.cargo
        request = Request(
            gateway=self._name.origin,
            method=call.method,
            target=call.target.signed.encode(),
            body_hash=cargo.body_hash or EMPTY_BODY_HASH,  # a plain signature covers no body
            client_address=call.client_address,
        )
        tenders = await self._till.tender(order.proof, order.offer.shelf, request)
        if isinstance(tenders, Problem):
            return decline(tenders, order.offer)
        purchases = self._counter.price(tenders, tariffs)
        if not purchases:
            return decline(OTHER_CURRENCY, order.offer)
        payer, due = tenders[0].payment.payer, purchases[0].due
        problem = await visit.check(payer, due.price, due.asset)
        if problem is not None:
            return decline(problem, order.offer)
        key = find_idempotency_key(call)
        if key is not None:
            earlier = await self._cashier.replays.find_keyed(call, cargo, payer, key, may_run_again=True)
            if earlier is not None:
                return earlier
        shipment = _ship(call, listing, way, cargo, is_paid=True)
        outcome = await self._passage.carry(shipment, partial(self._counter.take, order, purchases))
        visit.note(payer, outcome)
        return outcome

    # ---- Paid by an authorisation.

    async def _serve_authorized(
        self, call: IncomingCall, offer: Offer, way: _Way, tariffs: Sequence[Tariff]
    ) -> Outcome:
        presented = self._cashier.read(call)
        if presented is None:
            return Declined(problem=ask_payment(offer), offer=offer)
        if isinstance(presented, Problem):
            return decline(presented, offer)
        listing = offer.shelf.listing
        problem = self._check_request(call, listing)
        if problem is not None:
            return Declined(problem=problem)
        key = find_idempotency_key(call) or presented.identifier
        known = await self._cashier.find_known(presented)
        if known is not None:
            cargo: Cargo | Problem = await load_compared(call.body, limits=self._limits)
        else:
            cargo = await load_hashed(
                call.body,
                is_whole=key is not None,
                limits=self._limits,
                is_late=partial(self._is_late, presented, listing),
            )
        if isinstance(cargo, Problem):
            return Declined(problem=cargo)
        sale = Sale(
            call=call,
            listing=listing,
            presented=presented,
            offer=offer,
            cargo=cargo,
            key=key,
            known=known,
        )
        with self._customers.receive(call, listing, is_settled_here=True) as visit:
            return await self._sell_authorized(sale, way, tariffs, visit)

    async def _sell_authorized(
        self, sale: Sale, way: _Way, tariffs: Sequence[Tariff], visit: Visit
    ) -> Outcome:
        admitted = await self._cashier.admit(sale, tariffs, visit.check)
        if not isinstance(admitted, Admission):
            return admitted
        if sale.cargo.is_spent:  # a repeat that would have to run again
            return Declined(problem=too_large(self._limits.bound_body_bytes_max))
        shipment = _ship(sale.call, sale.listing, way, sale.cargo, is_paid=True)
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

    async def _serve_free(self, call: IncomingCall, listing: Listing, way: _Way, tariff: Tariff) -> Outcome:
        problem = self._customers.check_free(call, listing)
        if problem is not None:
            return Declined(problem=problem)
        problem = check_size(call.body, self._limits) or check_idempotency_key(call)
        if problem is not None:
            return Declined(problem=problem)
        cargo = await load_plain(call.body, limits=self._limits)
        shipment = _ship(call, listing, way, cargo, is_paid=False)
        return await self._passage.carry(shipment, partial(self._counter.take_free, call, listing, tariff))


def _ship(call: IncomingCall, listing: Listing, way: _Way, cargo: Cargo, *, is_paid: bool) -> Shipment:
    return Shipment(
        call=call, listing=listing, endpoint=way.endpoint, target=way.target, cargo=cargo, is_paid=is_paid
    )


def _find_tariffs(shelf: Shelf, call: IncomingCall) -> list[Tariff] | Problem:
    """What each version of the terms asks for this very operation, the current one first."""
    current, *older = shelf.versions
    operation = match_operation(current.operations, call.method, call.target.rest)
    if isinstance(operation, Problem):
        return operation
    if operation is None and shelf.listing.other_paths == "refuse":
        return NO_OPERATION
    tariffs = [_tariff(current, operation)]
    for version in older:
        operation = match_operation(version.operations, call.method, call.target.rest)
        if not isinstance(operation, Problem):  # else it would not have been sold then
            tariffs.append(_tariff(version, operation))
    return tariffs


def _tariff(version: Terms, operation: Operation | None) -> Tariff:
    return Tariff(terms=version, price=version.price if operation is None else operation.price)
