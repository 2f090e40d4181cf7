"""The one function that a paid call walks through.

    find listing -> closed? say so -> free? pass -> no proof? answer terms -> till (facts, verdict) -> price
      -> dial -> claim, committed -> send -> close, written -> stream

Every exit is a named outcome. The default refuses. Nothing is asked of the chain, and nothing taken, before all that
can be refused for free has been checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tollway.errors import Code, Problem, describe_rate
from tollway.gateway.cargo import EMPTY_BODY_HASH, Cargo, check_size, load_plain, load_promised
from tollway.gateway.counter import Counter, Order, Purchase
from tollway.gateway.exchange import (
    Abandoned,
    BodyRefused,
    CallerGone,
    Declined,
    Headers,
    IncomingCall,
    Offer,
    Outcome,
)
from tollway.gateway.forward import Passage, build_target
from tollway.gateway.headers import check_control_headers, is_loop
from tollway.gateway.meters import Meters
from tollway.gateway.parameters import Manual
from tollway.gateway.refusals import (
    BLOCKED,
    BOUND_REQUIRED,
    LOOP,
    NO_OPERATION,
    NOT_FOUND,
    OTHER_CURRENCY,
    UNREACHABLE,
    ask_payment,
    check_idempotency_key,
    check_price_max,
    check_rails,
    decline,
    find_closed,
)
from tollway.gateway.target import match_operation
from tollway.gateway.trip import Shipment
from tollway.identifiers import Address, ListingId
from tollway.ledger.book import Book
from tollway.ledger.call import Payment
from tollway.limits import Limits
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.payments.payers import Request
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.terms import Tariff
from tollway.payments.till import Tender, Till
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
        self._passage = passage
        self._meters = meters
        self._limits = limits
        self._is_blocked = is_blocked
        self._now_ms = now_ms
        self._counter = Counter(book=book, till=till, limits=limits, now_ms=now_ms, entropy=entropy)
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
        offer = Offer(
            shelf=shelf,
            price=tariffs[0].price,
            expires_ms=call.received_ms + self._limits.price_memory_s * 1000,
        )
        problem = check_rails(call, has_proof=proof is not None)
        if problem is not None:
            return Declined(problem=problem)
        if proof is None:
            return Declined(problem=ask_payment(offer), offer=offer)
        problem = (
            check_size(call.body, self._limits)
            or check_idempotency_key(call)
            or self._check_parameters(call, shelf.listing)
            or self._check_form(proof, shelf.listing)
        )
        if problem is not None:
            return Declined(problem=problem)
        cargo = await self._load(call, proof)
        if isinstance(cargo, Problem):
            return Declined(problem=cargo)
        order = Order(call=call, listing=shelf.listing, proof=proof, offer=offer, cargo=cargo)
        return await self._sell(order, way, tariffs)

    async def _sell(self, order: Order, way: _Way, tariffs: Sequence[Tariff]) -> Outcome:
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
        problem = self._check_payer(call, listing, tenders, purchases)
        if problem is not None:
            return decline(problem, order.offer)
        shipment = _ship(call, listing, way, cargo, is_paid=True)
        outcome = await self._passage.carry(shipment, partial(self._counter.take, order, purchases))
        self._note_failure(call, listing, tenders[0].payment, outcome)
        return outcome

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
        if proof.binding is None:
            return await load_plain(call.body, limits=self._limits)
        return await load_promised(call.body, proof.binding.body_hash, limits=self._limits)

    def _check_payer(
        self,
        call: IncomingCall,
        listing: Listing,
        tenders: Sequence[Tender],
        purchases: Sequence[Purchase],
    ) -> Problem | None:
        if not purchases:
            return OTHER_CURRENCY
        payer = tenders[0].payment.payer
        if self._is_blocked(payer):
            return BLOCKED
        problem = check_price_max(call, purchases[0].due)
        if problem is not None:
            return problem
        wait_s = self._meters.failed_budget_wait_s(
            payer=payer, client_address=call.client_address, listing_id=listing.id
        )
        if wait_s is not None:
            return Problem(
                code=Code.FAILED_CALL_BUDGET_EXHAUSTED,
                detail="Too many calls of this wallet or address to this listing failed lately. The payment is untouched.",
                retry_after_s=wait_s,
                payment_state="released",
                members=describe_rate(
                    "failed-calls",
                    limit=self._limits.failed_calls_per_window,
                    window_s=self._limits.failed_calls_window_s,
                ),
            )
        return self._charge_rate(listing, payer)

    def _charge_rate(self, listing: Listing, payer: Address) -> Problem | None:
        rate = listing.rate_limit
        wait_s = None if rate is None else self._meters.charge_listing(rate, listing.id, payer)
        if rate is None or wait_s is None:
            return None
        return Problem(
            code=Code.RATE_LIMITED,
            detail=f"The provider allows {rate.calls} calls in {rate.per_s} seconds.",
            retry_after_s=wait_s,
            payment_state="released",
            members=describe_rate("listing", limit=rate.calls, window_s=rate.per_s),
        )

    def _note_failure(self, call: IncomingCall, listing: Listing, payment: Payment, outcome: Outcome) -> None:
        """Runs that ended unbilled or unknown count against a budget: they cost the provider and pay nobody."""
        headers: Headers = [] if isinstance(outcome, Abandoned) else outcome.headers
        state = next((value for name, value in headers if name == b"tollway-payment-state"), None)
        if isinstance(outcome, Abandoned) or state in (b"released", b"held"):
            self._meters.note_failed(
                payer=payment.payer, client_address=call.client_address, listing_id=listing.id
            )

    # ---- Free.

    async def _serve_free(self, call: IncomingCall, listing: Listing, way: _Way, tariff: Tariff) -> Outcome:
        wait_s = self._meters.charge_free_call(call.client_address, listing.id)
        if wait_s is not None:
            most = self._limits.free_calls_per_minute
            problem = Problem(
                code=Code.RATE_LIMITED,
                detail=f"Free calls are limited to {most} a minute.",
                retry_after_s=wait_s,
                payment_state="none",
                members=describe_rate("free-calls", limit=most, window_s=60),
            )
            return Declined(problem=problem)
        problem_of_size = check_size(call.body, self._limits) or check_idempotency_key(call)
        if problem_of_size is not None:
            return Declined(problem=problem_of_size)
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
