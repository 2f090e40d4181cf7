"""The one function that a paid call walks through.

    find listing -> closed? say so -> free? pass -> no proof? answer terms -> till (facts, verdict) -> price
      -> dial -> claim, committed -> send -> close, written -> stream

Every exit is a named outcome. The default refuses. Nothing is asked of the chain, and nothing taken, before all that
can be refused for free has been checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from tollway.errors import Code, FieldError, Problem
from tollway.gateway.cargo import EMPTY_BODY_HASH, Cargo, check_size, load_plain, load_promised
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
from tollway.gateway.forward import ClaimRefused, Passage, Ticket
from tollway.gateway.headers import check_control_headers, is_loop
from tollway.gateway.meters import Meters
from tollway.gateway.target import match_operation
from tollway.identifiers import Address, CallId, format_id, keccak256
from tollway.ledger.book import (
    Book,
    Claim,
    Claimed,
    ClaimOutcome,
    Exhausted,
    NonceUsed,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.call import CallState
from tollway.limits import Limits
from tollway.money import Price
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.terms import Due, Tariff, find_due
from tollway.payments.till import Request, Tender, Till
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing, Shelf, Terms

OTHER_RAILS = frozenset({b"payment-signature", b"x-payment"})
PATH_LENGTH_MAX = 2_048
CALL_IDS_SHOWN = 10
CLOCK_SLACK_S = 5  # callers' clocks run a little ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What a gateway says of itself. `origin` of the public URL; `name` in Via, CDN-Loop and Proxy-Status."""

    public_url: str
    origin: str
    name: str
    allow_private: bool
    is_bound_required: bool


class Gateway:
    """Serves calls. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        house: House,
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
        self._house = house
        self._catalog = catalog
        self._book = book
        self._till = till
        self._passage = passage
        self._meters = meters
        self._limits = limits
        self._is_blocked = is_blocked
        self._now_ms = now_ms
        self._entropy = entropy
        self._endpoints: dict[str, Endpoint | EndpointRefused] = {}

    async def serve(self, call: IncomingCall) -> Outcome:
        """One call, from its headers to its outcome. Raises StorageUnavailable and ChainUnavailable: nothing taken."""
        problem = check_control_headers(call.headers, limits=self._limits)
        if problem is None and is_loop(call.headers, self._house.name):
            problem = Problem(
                code=Code.LOOP_DETECTED, detail="This call has passed through this gateway already."
            )
        if problem is not None:
            return Declined(problem=problem)
        shelf = await self._catalog.find(call.listing_id)
        problem = _find_closed(shelf, call)
        if shelf is None or problem is not None:
            return Declined(problem=problem or _NOT_FOUND)
        tariffs = _find_tariffs(shelf, call)
        if isinstance(tariffs, Problem):
            return Declined(problem=tariffs)
        endpoint = self._endpoint_of(shelf.listing)
        if isinstance(endpoint, EndpointRefused):
            return Declined(problem=_UNREACHABLE)
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
            return Declined(problem=_ask(offer), offer=offer)
        problem = (
            _find_other_rail(call)
            or check_size(call.body, self._limits)
            or self._check_form(proof, shelf.listing)
        )
        if problem is not None:
            return Declined(problem=problem)
        cargo = await self._load(call, proof)
        if isinstance(cargo, Problem):
            return Declined(problem=cargo)
        request = Request(
            gateway=self._house.origin,
            method=call.method,
            target=call.target.signed.encode(),
            body_hash=cargo.body_hash or EMPTY_BODY_HASH,  # a plain signature covers no body
            client_address=call.client_address,
        )
        tenders = await self._till.tender(proof, shelf, request)
        if isinstance(tenders, Problem):
            return _decline(tenders, offer)
        purchases = self._price(tenders, tariffs)
        problem = await self._check_payer(call, shelf.listing, tenders, purchases)
        if problem is not None:
            return _decline(problem, offer)
        order = _Order(call=call, listing=shelf.listing, proof=proof, offer=offer, cargo=cargo)
        outcome = await self._passage.carry(
            call, shelf.listing, endpoint, cargo, lambda: self._take(order, purchases)
        )
        self._note_failure(call, shelf.listing, purchases[0].tender.payment.payer, outcome)
        return outcome

    def _check_form(self, proof: Proof, listing: Listing) -> Problem | None:
        """The plain form where a bound one is asked for; a bound one outside its time."""
        if proof.binding is None:
            if listing.signature == "bound" or self._house.is_bound_required:
                return _BOUND_REQUIRED
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

    def _price(self, tenders: Sequence[Tender], tariffs: Sequence[Tariff]) -> "list[_Purchase]":
        """What this call costs with each payment, by the terms rule."""
        purchases: list[_Purchase] = []
        for tender in tenders:
            due = find_due(
                tariffs,
                tender.asset,
                now_ms=self._now_ms(),
                limits=self._limits,
                first_block_s=tender.payment.block_time if tender.is_first else None,
            )
            if due is not None:
                purchases.append(_Purchase(tender=tender, due=due))
        return sorted(purchases, key=lambda p: p.tender.payment.rest_units < p.due.units)

    async def _check_payer(
        self,
        call: IncomingCall,
        listing: Listing,
        tenders: Sequence[Tender],
        purchases: "Sequence[_Purchase]",
    ) -> Problem | None:
        if not purchases:
            return _OTHER_CURRENCY
        payer = tenders[0].payment.payer
        if self._is_blocked(payer):
            return Problem(
                code=Code.WALLET_BLOCKED,
                detail="The operator of this gateway has blocked this wallet.",
                payment_state="none",
            )
        problem = _check_price_max(call, purchases[0].due) or await self._check_debt(purchases[0].tender)
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

    # ---- The claim: called by the passage once a connection is held.

    async def _take(self, order: "_Order", purchases: "Sequence[_Purchase]") -> Ticket:
        """Takes the price from the first payment that can give it. Raises ClaimRefused; then nothing was taken."""
        refusals: list[ClaimOutcome] = []
        for purchase in purchases:
            claim = self._claim_of(order, purchase)
            outcome = await self._book.claim(claim)
            if isinstance(outcome, Claimed):
                payment = replace(purchase.tender.payment, taken_units=max(1, purchase.due.units))
                self._till.note_spent(payment)
                return _ticket(claim.call_id, outcome, purchase)
            self._till.forget(order.proof.tx_hash)
            refusals.append(outcome)
            if not isinstance(outcome, Exhausted):
                break
        raise ClaimRefused(await self._explain(order, purchases[0], refusals[-1]))

    def _claim_of(self, order: "_Order", purchase: "_Purchase") -> Claim:
        call, listing, payment = order.call, order.listing, purchase.tender.payment
        binding = order.proof.binding
        return Claim(
            call_id=self._new_call_id(),
            listing_id=listing.id,
            listing_name=listing.name,
            provider=listing.provider,
            payer=payment.payer,
            method=call.method,
            path=call.target.rest[:PATH_LENGTH_MAX],
            digest=self._digest_of(order, payment.payer),
            price=purchase.due.price.text,
            price_units=purchase.due.units,
            currency=purchase.tender.asset.symbol,
            payment_id=payment.id,
            chain_id=payment.chain_id,
            asset=payment.asset,
            decimals=purchase.tender.asset.ledger_decimals,
            tx_hash=payment.tx_hash,
            pay_to=payment.payee,
            nonce=None if binding is None else binding.nonce,
            ends_plain=binding is not None,
            is_plain=binding is None,
            idempotency_key=_find_idempotency_key(call),
            request_id=call.request_id,
            created_ms=call.received_ms,
        )

    def _digest_of(self, order: "_Order", payer: Address) -> bytes:
        """What makes two requests the same. A streamed body that nobody promised is never the same as another."""
        body_hash = order.cargo.body_hash or self._entropy(32)
        parts = (order.listing.id.encode(), order.call.method.encode(), order.call.target.signed.encode())
        return keccak256(payer + body_hash + b"".join(len(p).to_bytes(4, "big") + p for p in parts))

    def _new_call_id(self) -> CallId:
        return CallId(format_id("call", now_ms=self._now_ms(), entropy=self._entropy(10)))

    async def _explain(self, order: "_Order", purchase: "_Purchase", outcome: ClaimOutcome) -> Declined:
        """Why the books did not grant a claim."""
        payment, asset, due = purchase.tender.payment, purchase.tender.asset, purchase.due
        match outcome:
            case Exhausted(rest_units=rest) if rest > 0:
                missing = asset.format_units(due.units - rest)
                there = asset.format_units(rest)
                problem = Problem(
                    code=Code.PAYMENT_INSUFFICIENT,
                    detail=f"{there} {asset.symbol} of this payment is left and the call costs {due.price.text}; "
                    f"send the missing {missing} {asset.symbol} to {payment.payee} and show either transaction.",
                    payment_state="released",
                    members={"available": there, "missing": missing, "currency": asset.symbol},
                )
                return Declined(problem=problem, offer=order.offer)
            case Exhausted():
                calls = await self._book.spending_calls(payment.id, limit=CALL_IDS_SHOWN)
                return Declined(
                    problem=Problem(
                        code=Code.PAYMENT_ALREADY_USED,
                        detail="All of this payment's value is spent.",
                        call_id=calls[0] if calls else None,
                        payment_state="charged",
                        members={"callIds": list(calls)},
                    )
                )
            case NonceUsed(call_id=call_id, state=state):
                return Declined(problem=_nonce_used(call_id, state))
            case PlainEnded():
                return Declined(problem=_BOUND_REQUIRED)
            case Unspendable(is_held=is_held):
                return Declined(problem=_HELD if is_held else _GONE)
            case UnfinalLimit():
                return Declined(problem=_UNFINAL_LIMIT)
            case Claimed():
                raise AssertionError("a granted claim is no refusal")
            case _:
                assert_never(outcome)

    def _note_failure(self, call: IncomingCall, listing: Listing, payer: Address, outcome: Outcome) -> None:
        """Runs that ended unbilled or unknown count against a budget: they cost the provider and pay nobody."""
        headers: Headers = [] if isinstance(outcome, Abandoned) else outcome.headers
        state = next((value for name, value in headers if name == b"tollway-payment-state"), None)
        if isinstance(outcome, Abandoned) or state in (b"released", b"held"):
            self._meters.note_failed(payer=payer, client_address=call.client_address, listing_id=listing.id)

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
            claim = self._free_claim(call, listing, tariff)
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

    def _free_claim(self, call: IncomingCall, listing: Listing, tariff: Tariff) -> Claim:
        return Claim(
            call_id=self._new_call_id(),
            listing_id=listing.id,
            listing_name=listing.name,
            provider=listing.provider,
            payer=None,
            method=call.method,
            path=call.target.rest[:PATH_LENGTH_MAX],
            digest=self._entropy(32),
            price=tariff.price.text,
            price_units=0,
            currency=tariff.terms.currency,
            payment_id=None,
            chain_id=None,
            asset=None,
            decimals=0,
            tx_hash=None,
            pay_to=None,
            nonce=None,
            ends_plain=False,
            is_plain=False,
            idempotency_key=_find_idempotency_key(call),
            request_id=call.request_id,
            created_ms=call.received_ms,
        )

    def _endpoint_of(self, listing: Listing) -> Endpoint | EndpointRefused:
        """Parsed once per URL; the policy was checked when it was listed and is checked again at every socket."""
        endpoint = self._endpoints.get(listing.endpoint)
        if endpoint is None:
            if len(self._endpoints) > 10_000:
                self._endpoints.clear()
            endpoint = parse_endpoint(listing.endpoint, allow_private=self._house.allow_private)
            self._endpoints[listing.endpoint] = endpoint
        return endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    call: IncomingCall
    listing: Listing
    proof: Proof
    offer: Offer
    cargo: Cargo


@dataclass(frozen=True, slots=True, kw_only=True)
class _Purchase:
    tender: Tender
    due: Due


def _find_closed(shelf: Shelf | None, call: IncomingCall) -> Problem | None:
    """In the order of the contract: 404, 410, 503, 405; before any question of money."""
    if shelf is None:
        return _NOT_FOUND
    listing = shelf.listing
    if listing.retired_ms is not None:
        return Problem(
            code=Code.API_RETIRED, detail="The provider has retired this API.", payment_state="none"
        )
    if listing.suspended_ms is not None:
        return Problem(
            code=Code.API_PAUSED,
            detail="The operator has suspended this API.",
            reason="suspended",
            retry_after_s=3600,
            payment_state="none",
        )
    if listing.status == "paused":
        return Problem(
            code=Code.API_PAUSED,
            detail="The provider has paused this API.",
            retry_after_s=60,
            payment_state="none",
        )
    if (
        listing.methods
        and _priced_method(call.method) not in listing.methods
        and call.method not in listing.methods
    ):
        return Problem(
            code=Code.METHOD_NOT_ALLOWED,
            detail=f"This API takes {', '.join(listing.methods)}.",
            payment_state="none",
            members={"allow": list(listing.methods)},
        )
    return None


def _priced_method(method: str) -> str:
    """HEAD costs what GET costs."""
    return "GET" if method == "HEAD" else method


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


def _find_other_rail(call: IncomingCall) -> Problem | None:
    for name, value in call.headers:
        if name in OTHER_RAILS or (name == b"authorization" and value[:8].lower() == b"payment "):
            return Problem(
                code=Code.INVALID_REQUEST,
                detail="The request shows more than one kind of payment; send one.",
                reason="more_than_one_rail",
                payment_state="none",
            )
    return None


def _check_price_max(call: IncomingCall, due: Due) -> Problem | None:
    text = call.find_header(b"tollway-max-price")
    if text is None:
        return None
    try:
        price_max = Price.parse(text.decode("ascii"))
    except ValueError:
        detail = "must be a decimal string such as 0.01"
        return Problem(
            code=Code.INVALID_REQUEST,
            detail=f"Tollway-Max-Price {detail}.",
            errors=(FieldError(code="malformed", detail=detail, parameter="Tollway-Max-Price"),),
            payment_state="none",
        )
    if due.price.nano <= price_max.nano:
        return None
    return Problem(
        code=Code.PRICE_ABOVE_MAX,
        detail=f"The call costs {due.price.text} {due.asset.symbol}, more than the {price_max.text} that was allowed.",
        payment_state="released",
    )


def _find_idempotency_key(call: IncomingCall) -> str | None:
    value = call.find_header(b"idempotency-key")
    return None if value is None else value.decode("utf-8", "replace").strip('"')[:255]


def _ticket(call_id: CallId, claimed: Claimed, purchase: _Purchase) -> Ticket:
    payment = purchase.tender.payment
    return Ticket(
        call_id=call_id,
        claimed=claimed,
        price=purchase.due.price,
        currency=purchase.tender.asset.symbol,
        charge_on=purchase.due.charge_on,
        asset=purchase.tender.asset,
        units=purchase.due.units,
        payer=payment.payer,
        transaction=str(payment.tx_hash),
    )


def _ask(offer: Offer) -> Problem:
    listing = offer.shelf.listing
    return Problem(
        code=Code.PAYMENT_REQUIRED,
        detail=f"This call costs {offer.price.text} {listing.currency}. Send the amount to payTo on one of the networks "
        "in payment.options, then repeat the call with X-Payment-Tx and X-Signature.",
        payment_state="none",
    )


def _decline(problem: Problem, offer: Offer) -> Declined:
    """Terms ride along only with refusals that may ask for money."""
    if problem.code in _ASKING:
        return Declined(problem=problem, offer=offer)
    return Declined(problem=problem)


def _nonce_used(call_id: CallId, state: CallState) -> Problem:
    if state in (CallState.FORWARDING, CallState.SETTLING):
        return Problem(
            code=Code.IDEMPOTENCY_IN_PROGRESS,
            detail="A call with this very signature is still running.",
            retry_after_s=1,
            call_id=call_id,
            payment_state="held",
        )
    return Problem(
        code=Code.NONCE_REUSED,
        detail="This signature has bought a call already; sign the next one with a nonce of its own.",
        call_id=call_id,
        payment_state="held" if state is CallState.UNKNOWN else "charged",
    )


_ASKING = frozenset({Code.PAYMENT_REQUIRED, Code.PAYMENT_INSUFFICIENT, Code.PAYMENT_VERIFICATION_FAILED})
_NOT_FOUND = Problem(code=Code.API_NOT_FOUND, detail="There is no API of this id.", payment_state="none")
_UNREACHABLE = Problem(
    code=Code.UPSTREAM_UNREACHABLE,
    detail="The provider's API could not be reached; nothing was sent.",
    payment_state="released",
)
_BOUND_REQUIRED = Problem(
    code=Code.INVALID_REQUEST,
    detail="This payment or API counts only with a signature bound to the request: X-Signature-Params is missing.",
    reason="bound_signature_required",
    errors=(FieldError(code="missing", detail="is required here", parameter="X-Signature-Params"),),
    payment_state="released",
)
_OTHER_CURRENCY = Problem(
    code=Code.PAYMENT_VERIFICATION_FAILED,
    detail="The payment is in a currency that this listing no longer asks for.",
    reason="wrong_token",
    payment_state="none",
)
_HELD = Problem(
    code=Code.PAYMENT_HELD,
    detail="The payment is held since this gateway's books were restored, until the operator releases it.",
    payment_state="held",
)
_GONE = Problem(
    code=Code.PAYMENT_PENDING,
    detail="The transaction has left the chain; it counts again once it is mined again.",
    reason="reorged",
    retry_after_s=10,
    payment_state="none",
)
_UNFINAL_LIMIT = Problem(
    code=Code.PAYMENT_PENDING,
    detail="This wallet has spent as much value as may be spent before it is final on the chain.",
    reason="not_final",
    retry_after_s=30,
    payment_state="released",
)
