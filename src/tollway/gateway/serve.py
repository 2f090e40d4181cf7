"""The one function that a paid call walks through.

    find listing -> closed? say so -> free? pass -> no proof? answer terms -> till (facts, verdict) -> price
      -> dial -> claim, committed -> send -> close, written -> stream

Every exit is a named outcome. The default refuses. Nothing is asked of the chain, and nothing taken, before all that
can be refused for free has been checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tollway.errors import Code, Problem
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
from tollway.gateway.forward import Passage, Ticket
from tollway.gateway.headers import check_control_headers, is_loop
from tollway.gateway.meters import Meters
from tollway.gateway.refusals import (
    BOUND_REQUIRED,
    NOT_FOUND,
    OTHER_CURRENCY,
    UNREACHABLE,
    ask_payment,
    check_price_max,
    decline,
    find_closed,
    find_other_rail,
)
from tollway.gateway.target import match_operation
from tollway.identifiers import Address
from tollway.ledger.book import (
    Book,
    Claimed,
)
from tollway.ledger.call import Payment
from tollway.limits import Limits
from tollway.money import Price
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.terms import Tariff
from tollway.payments.till import Request, Tender, Till
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing, Shelf, Terms

OTHER_RAILS = frozenset({b"payment-signature", b"x-payment"})
PATH_LENGTH_MAX = 2_048
CALL_IDS_SHOWN = 10
UNSETTLED_MAX = 10_000
SAFE_METHODS = frozenset({"GET", "HEAD"})
CLOCK_SLACK_S = 5  # callers' clocks run a little ahead


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
        self._book = book
        self._till = till
        self._passage = passage
        self._meters = meters
        self._limits = limits
        self._is_blocked = is_blocked
        self._now_ms = now_ms
        self._counter = Counter(book=book, till=till, limits=limits, now_ms=now_ms, entropy=entropy)
        self._endpoints: dict[str, Endpoint | EndpointRefused] = {}

    async def serve(self, call: IncomingCall) -> Outcome:
        """One call, from its headers to its outcome. Raises StorageUnavailable and ChainUnavailable: nothing taken."""
        problem = check_control_headers(call.headers, limits=self._limits)
        if problem is None and is_loop(call.headers, self._name.host):
            problem = Problem(
                code=Code.LOOP_DETECTED, detail="This call has passed through this gateway already."
            )
        if problem is not None:
            return Declined(problem=problem)
        shelf = await self._catalog.find(call.listing_id)
        problem = find_closed(shelf, call)
        if shelf is None or problem is not None:
            return Declined(problem=problem or NOT_FOUND)
        tariffs = _find_tariffs(shelf, call)
        if isinstance(tariffs, Problem):
            return Declined(problem=tariffs)
        endpoint = self._endpoint_of(shelf.listing)
        if isinstance(endpoint, EndpointRefused):
            return Declined(problem=UNREACHABLE)
        try:
            if tariffs[0].price.is_free:
                return await self._serve_free(call, shelf.listing, endpoint, tariffs[0])
            return await self._serve_paid(call, shelf, endpoint, tariffs)
        except CallerGone:
            return Abandoned()
        except BodyRefused as refused:
            return Declined(problem=refused.problem)

    # ---- Paid.

    async def _serve_paid(
        self, call: IncomingCall, shelf: Shelf, endpoint: Endpoint, tariffs: Sequence[Tariff]
    ) -> Outcome:
        proof = parse_proof(call.headers)
        offer = Offer(
            shelf=shelf,
            price=tariffs[0].price,
            expires_ms=call.received_ms + self._limits.price_memory_s * 1000,
        )
        if isinstance(proof, Problem):
            return Declined(problem=proof)
        if proof is None:
            return Declined(problem=ask_payment(offer), offer=offer)
        problem = (
            find_other_rail(call)
            or check_size(call.body, self._limits)
            or self._check_form(proof, shelf.listing)
        )
        if problem is not None:
            return Declined(problem=problem)
        cargo = await self._load(call, proof)
        if isinstance(cargo, Problem):
            return Declined(problem=cargo)
        request = Request(
            gateway=self._name.origin,
            method=call.method,
            target=call.target.signed.encode(),
            body_hash=cargo.body_hash or EMPTY_BODY_HASH,  # a plain signature covers no body
            client_address=call.client_address,
        )
        tenders = await self._till.tender(proof, shelf, request)
        if isinstance(tenders, Problem):
            return decline(tenders, offer)
        purchases = self._counter.price(tenders, tariffs)
        problem = await self._check_payer(call, shelf.listing, tenders, purchases)
        if problem is not None:
            return decline(problem, offer)
        order = Order(call=call, listing=shelf.listing, proof=proof, offer=offer, cargo=cargo)
        outcome = await self._passage.carry(
            call, shelf.listing, endpoint, cargo, lambda: self._counter.take(order, purchases)
        )
        self._note_failure(call, shelf.listing, purchases[0].tender.payment, outcome)
        return outcome

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

    async def _check_payer(
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
            return Problem(
                code=Code.WALLET_BLOCKED,
                detail="The operator of this gateway has blocked this wallet.",
                payment_state="none",
            )
        problem = check_price_max(call, purchases[0].due) or await self._check_debt(purchases[0].tender)
        if problem is not None:
            return problem
        wait_s = self._meters.failed_budget_wait_s(
            payer=payer, client_address=call.client_address, listing_id=listing.id
        )
        if wait_s is not None:
            return Problem(
                code=Code.FAILED_CALL_BUDGET_EXHAUSTED,
                detail="Too many calls of this wallet, address or listing failed lately. The payment is untouched.",
                retry_after_s=wait_s,
                payment_state="released",
            )
        if listing.rate_limit is None:
            return None
        wait_s = self._meters.charge_listing(listing.rate_limit, listing.id, payer)
        if wait_s is None:
            return None
        return Problem(
            code=Code.RATE_LIMITED,
            detail=f"The provider allows {listing.rate_limit.calls} calls in {listing.rate_limit.per_s} seconds.",
            retry_after_s=wait_s,
            payment_state="released",
        )

    async def _check_debt(self, tender: Tender) -> Problem | None:
        """Asked where the books were read anyway; the watcher makes the till forget a payer who fell into debt."""
        if not tender.is_fresh:
            return None
        payment = tender.payment
        debts = await self._book.debts(payment.payer)
        owed = [debt for debt in debts if (debt.payee, debt.asset) == (payment.payee, payment.asset)]
        if not owed:
            return None
        return Problem(
            code=Code.PAYER_IN_DEBT,
            detail="A payment of this wallet left the chain after it had bought calls; pay what is owed first.",
            payment_state="none",
            members={
                "debt": tender.asset.format_units(sum(debt.units for debt in owed)),
                "payTo": str(payment.payee),
            },
        )

    def _note_failure(self, call: IncomingCall, listing: Listing, payment: Payment, outcome: Outcome) -> None:
        """Runs that ended unbilled or unknown count against a budget: they cost the provider and pay nobody."""
        headers: Headers = [] if isinstance(outcome, Abandoned) else outcome.headers
        state = next((value for name, value in headers if name == b"tollway-payment-state"), None)
        if state == b"held":
            self._counter.note_unsettled(payment)
        if isinstance(outcome, Abandoned) or state in (b"released", b"held"):
            self._meters.note_failed(
                payer=payment.payer, client_address=call.client_address, listing_id=listing.id
            )

    # ---- Free.

    async def _serve_free(
        self, call: IncomingCall, listing: Listing, endpoint: Endpoint, tariff: Tariff
    ) -> Outcome:
        wait_s = self._meters.charge_free_call(call.client_address, listing.id)
        if wait_s is not None:
            return Declined(
                problem=Problem(
                    code=Code.RATE_LIMITED,
                    detail=f"Free calls are limited to {self._limits.free_calls_per_minute} a minute.",
                    retry_after_s=wait_s,
                    payment_state="none",
                )
            )
        problem = check_size(call.body, self._limits)
        if problem is not None:
            return Declined(problem=problem)
        cargo = await load_plain(call.body, limits=self._limits)

        async def take() -> Ticket:
            claim = self._counter.free_claim(call, listing, tariff)
            outcome = await self._book.claim(claim)
            assert isinstance(outcome, Claimed)  # a free call takes nothing that could run out
            return Ticket(
                call_id=claim.call_id,
                claimed=outcome,
                price=tariff.price,
                currency=tariff.terms.currency,
                charge_on=tariff.terms.charge_on,
                asset=None,
                units=0,
                payer=None,
                transaction=None,
            )

        return await self._passage.carry(call, listing, endpoint, cargo, take)

    def _endpoint_of(self, listing: Listing) -> Endpoint | EndpointRefused:
        """Parsed once per URL; the policy was checked when it was listed and is checked again at every socket."""
        endpoint = self._endpoints.get(listing.endpoint)
        if endpoint is None:
            if len(self._endpoints) > 10_000:
                self._endpoints.clear()
            endpoint = parse_endpoint(listing.endpoint, allow_private=self._name.allow_private)
            self._endpoints[listing.endpoint] = endpoint
        return endpoint


def _find_tariffs(shelf: Shelf, call: IncomingCall) -> list[Tariff] | Problem:
    """What each version of the terms asks for this very operation, the current one first."""
    tariffs: list[Tariff] = []
    for version in shelf.versions:
        price = _find_price(version, call)
        if isinstance(price, Problem):
            return price
        if price is not None:
            tariffs.append(Tariff(terms=version, price=price))
    current = shelf.versions[0]
    listing = shelf.listing
    if (
        listing.other_paths == "refuse"
        and match_operation(current.operations, call.method, call.target.rest) is None
    ):
        return Problem(
            code=Code.ROUTE_NOT_FOUND,
            detail="This API serves its listed operations only.",
            payment_state="none",
        )
    return tariffs


def _find_price(version: Terms, call: IncomingCall) -> Price | Problem | None:
    operation = match_operation(version.operations, call.method, call.target.rest)
    if isinstance(operation, Problem):
        return operation
    return version.price if operation is None else operation.price
