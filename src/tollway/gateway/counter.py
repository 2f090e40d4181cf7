"""The counter: prices a call with the payments that were shown, and claims it in the ledger once a connection is held.

It takes a price or says why not. It sends nothing, and asks no chain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from tollway.errors import Code, Problem
from tollway.gateway.cargo import ForwardBody
from tollway.gateway.exchange import IncomingCall, ProblemResponse, Quote
from tollway.gateway.receipt_writer import write_plain_receipt
from tollway.gateway.refusals import (
    BOUND_REQUIRED,
    HELD,
    OTHER_CURRENCY,
    REORGED,
    UNFINAL_LIMIT,
    already_used,
    check_held_price_max,
    check_price_max,
    find_idempotency_key,
    in_debt_to,
    insufficient,
    nonce_used,
    refuse_call,
)
from tollway.gateway.replays import Idempotency, explain_key_used
from tollway.gateway.trip import ClaimedCall, ClaimRefused
from tollway.identifiers import Address, CallId, format_id
from tollway.ledger.book import (
    AuthorizationTaken,
    Claim,
    Claimed,
    ClaimOutcome,
    Exhausted,
    InDebt,
    Ledger,
    NonceUsed,
    NotCovered,
    NotFirst,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.call import CallState
from tollway.ledger.keyed_calls import KeyedCall, KeyTaken
from tollway.ledger.open_calls import OpenCall, RepeatsOpenCall
from tollway.ledger.settled import SAFE_METHODS
from tollway.limits import Limits
from tollway.money import Price
from tollway.payments.proof import Proof
from tollway.payments.terms import AmountDue, OperationPrice, find_amount_due
from tollway.payments.till import SpendablePayment, TransactionVerifier
from tollway.registry.listing import Listing

PATH_LENGTH_MAX = 2_048
CALL_IDS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRequest:
    """One call that shows a transaction. Its body is not read."""

    call: IncomingCall
    listing: Listing
    proof: Proof
    quote: Quote


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTransactionRequest(TransactionRequest):
    """The same with its body, ready to be claimed."""

    body: ForwardBody


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentCandidate:
    """A call priced with one of the payments that were shown. `is_first_price`: only while it has bought nothing."""

    spendable: SpendablePayment
    due: AmountDue
    is_first_price: bool = False


class TransactionClaims:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        transaction_verifier: TransactionVerifier,
        idempotency: Idempotency,
        limits: Limits,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._ledger = ledger
        self._transaction_verifier = transaction_verifier
        self._idempotency = idempotency
        self._limits = limits
        self._now_ms = now_ms
        self._entropy = entropy

    def price(
        self, spendables: Sequence[SpendablePayment], operation_prices: Sequence[OperationPrice]
    ) -> list[PaymentCandidate]:
        """What the call costs with each payment, by the terms rule; those that can give it first.

        A payment that has bought nothing yet may have a lower price for its first call. Many callers may show it at
        once, so the ledger grants that price to one of them, and the price of now stands behind it for the others.
        """
        candidates: list[PaymentCandidate] = []
        for spendable in spendables:
            now = self._find_due(operation_prices, spendable, first_block_s=None)
            if spendable.is_first:
                first = self._find_due(
                    operation_prices, spendable, first_block_s=spendable.payment.block_time
                )
                if first is not None and first != now:
                    candidates.append(PaymentCandidate(spendable=spendable, due=first, is_first_price=True))
            if now is not None:
                candidates.append(PaymentCandidate(spendable=spendable, due=now))
        return sorted(candidates, key=lambda one: one.spendable.payment.remaining_units < one.due.units)

    def _find_due(
        self,
        operation_prices: Sequence[OperationPrice],
        spendable: SpendablePayment,
        *,
        first_block_s: int | None,
    ) -> AmountDue | None:
        return find_amount_due(
            operation_prices,
            spendable.asset,
            now_ms=self._now_ms(),
            limits=self._limits,
            first_block_s=first_block_s,
        )

    def price_repeat(
        self, earlier: KeyedCall, spendable: SpendablePayment, operation_prices: Sequence[OperationPrice]
    ) -> PaymentCandidate:
        """A call that runs again costs what it did, whatever is asked by now."""
        due = AmountDue(
            asset=spendable.asset,
            price=Price.parse(earlier.price),
            units=earlier.price_units,
            charge_on=operation_prices[0].terms.charge_on,
        )
        return PaymentCandidate(spendable=spendable, due=due)

    async def check_exhausted(
        self, request: LoadedTransactionRequest, candidates: Sequence[PaymentCandidate]
    ) -> ProblemResponse | None:
        """Refuses what payments without any rest surely cannot buy, before their upstream is dialled for nothing."""
        if any(candidate.spendable.payment.remaining_units > 0 for candidate in candidates):
            return None
        refused: list[tuple[PaymentCandidate, ClaimOutcome]] = []
        for candidate in candidates:
            claim = self._build_claim(request, candidate)
            outcome = await self._ledger.find_exhausted(claim)
            if outcome is None:
                return None
            refused.append((candidate, outcome))
        return await self._explain(request, *max(refused, key=_rank_refusal))

    async def find_held(
        self, request: LoadedTransactionRequest, candidates: Sequence[PaymentCandidate]
    ) -> OpenCall | ProblemResponse | None:
        """The call that this request without a key runs again, where its price decides whether `Tollway-Max-Price` allows
        the request: it costs what it did. Reads the ledger only for a request whose current price is above that maximum."""
        if find_idempotency_key(request.call) is not None:
            return None
        for candidate in candidates:
            due = candidate.due
            price_problem = check_price_max(request.call, due.price, due.asset)
            if price_problem is None or price_problem.code is not Code.PRICE_ABOVE_MAX:
                return None
            held = await self._find_open(self._build_claim(request, candidate))
            if held is not None:
                return self._check_held(request, candidate, held) or held
        return None

    def _check_held(
        self, request: LoadedTransactionRequest, candidate: PaymentCandidate, held: OpenCall | KeyedCall
    ) -> ProblemResponse | None:
        problem = check_held_price_max(
            request.call, candidate.due.asset, call_id=held.call_id, price=held.price, state=held.state
        )
        return None if problem is None else ProblemResponse(problem=problem)

    async def claim(
        self, request: LoadedTransactionRequest, candidates: Sequence[PaymentCandidate]
    ) -> ClaimedCall:
        """Takes the price from the first payment that can give it. Raises ClaimRefused; then nothing was taken."""
        refused: list[tuple[PaymentCandidate, ClaimOutcome]] = []
        last_price_problem: Problem | None = None
        for candidate in candidates:
            claim = self._build_claim(request, candidate)
            price_problem = check_price_max(request.call, candidate.due.price, candidate.due.asset)
            if (
                price_problem is not None
            ):  # a held call may cost less; or a first price was not to be had any more
                claimed_call = None
                if claim.idempotency_key is None:
                    claimed_call = await self._run_again(request, claim, candidate)
                if claimed_call is not None:
                    return claimed_call
                last_price_problem = price_problem
                continue
            payment = candidate.spendable.payment
            outcome = await self._ledger.claim(claim)
            if isinstance(outcome, RepeatsOpenCall):
                claimed_call = await self._run_open(request, outcome.call, candidate, is_plain=claim.is_plain)
                if claimed_call is not None:
                    return claimed_call
                # Somebody runs it already, or it will not run any more: this is another call.
                outcome = await self._ledger.claim(replace(claim, is_separate_call=True))
            if isinstance(outcome, Claimed):
                self._transaction_verifier.mark_spent(payment)
                is_keyed = claim.idempotency_key is not None
                return self._build_claimed_call(claim.call_id, outcome, candidate, is_keyed=is_keyed)
            self._transaction_verifier.forget(request.proof.tx_hash)
            if isinstance(outcome, KeyTaken):
                return await self._run_keyed(request, candidates, outcome.call)
            if isinstance(outcome, Exhausted | NonceUsed):
                claimed_call = await self._run_again(request, claim, candidate)
                if claimed_call is not None:
                    return claimed_call
            refused.append((candidate, outcome))
            if not isinstance(outcome, Exhausted | NotFirst | InDebt):
                break
        if last_price_problem is not None and all(isinstance(outcome, NotFirst) for _, outcome in refused):
            raise ClaimRefused(ProblemResponse(problem=last_price_problem))
        raise ClaimRefused(await self._explain(request, *max(refused, key=_rank_refusal)))

    async def _run_again(
        self, request: LoadedTransactionRequest, claim: Claim, candidate: PaymentCandidate
    ) -> ClaimedCall | None:
        """The same request as one without an outcome runs under the claim that it has; only a safe method may."""
        open_call = await self._find_open(claim)
        if open_call is None:
            return None
        return await self._run_open(request, open_call, candidate, is_plain=claim.is_plain)

    async def _find_open(self, claim: Claim) -> OpenCall | None:
        if claim.method not in SAFE_METHODS or claim.payment_id is None:
            return None
        open_call = await self._ledger.find_open_call(claim.payment_id, claim.digest)
        return None if open_call is None or open_call.state is CallState.FORWARDING else open_call

    async def _run_open(
        self,
        request: LoadedTransactionRequest,
        open_call: OpenCall,
        candidate: PaymentCandidate,
        *,
        is_plain: bool,
    ) -> ClaimedCall | None:
        """Raises ClaimRefused where the call holds a price above the request's maximum."""
        price_problem = self._check_held(request, candidate, open_call)
        if price_problem is not None:
            raise ClaimRefused(price_problem)
        return await self._reopen(open_call, candidate, is_plain=is_plain, is_keyed=False)

    async def _run_keyed(
        self, request: LoadedTransactionRequest, candidates: Sequence[PaymentCandidate], earlier: KeyedCall
    ) -> ClaimedCall:
        """The call that the key has named runs under the claim that it has, where it may; else what it says. Raises
        ClaimRefused."""
        payer = candidates[0].spendable.payment.payer
        if not await self._transaction_verifier.find_key_wallets(
            request.proof, request.quote.entry, (payer,)
        ):
            raise ClaimRefused(ProblemResponse(problem=BOUND_REQUIRED))
        recorded = await self._idempotency.find_keyed_response(request.call, request.body, payer, earlier)
        if not isinstance(recorded, KeyedCall):
            raise ClaimRefused(recorded)
        matching = next((one for one in candidates if one.spendable.payment.id == recorded.payment_id), None)
        if matching is None:  # another payment of that wallet is for another call
            raise ClaimRefused(explain_key_used(recorded))
        return await self.reopen_keyed(request, matching, recorded)

    async def reopen_keyed(
        self, request: LoadedTransactionRequest, candidate: PaymentCandidate, earlier: KeyedCall
    ) -> ClaimedCall:
        """Runs the call that a key has named under the claim that it has. Raises ClaimRefused."""
        is_plain = request.proof.binding is None
        claimed_call = await self._reopen(earlier, candidate, is_plain=is_plain, is_keyed=True)
        if claimed_call is None:
            payer, key = candidate.spendable.payment.payer, find_idempotency_key(request.call)
            raise ClaimRefused(
                await self._idempotency.find_overtaken_response(
                    request.call, request.body, payer, key, earlier
                )
            )
        return claimed_call

    async def _reopen(
        self, open_call: OpenCall | KeyedCall, candidate: PaymentCandidate, *, is_plain: bool, is_keyed: bool
    ) -> ClaimedCall | None:
        """At the price that it had."""
        outcome = await self._ledger.reopen(
            open_call.call_id, epoch=open_call.epoch, now_ms=self._now_ms(), is_plain=is_plain
        )
        if not isinstance(outcome, Claimed):
            return None
        claimed_call = self._build_claimed_call(open_call.call_id, outcome, candidate, is_keyed=is_keyed)
        units = open_call.price_units
        receipt = partial(
            write_plain_receipt, payer=candidate.spendable.payment.payer, asset=candidate.spendable.asset
        )
        return replace(
            claimed_call,
            price=Price.parse(open_call.price),
            units=units,
            write_receipt=partial(receipt, units=units),
        )

    def _build_claimed_call(
        self, call_id: CallId, claimed: Claimed, candidate: PaymentCandidate, *, is_keyed: bool
    ) -> ClaimedCall:
        payment, asset, units = candidate.spendable.payment, candidate.spendable.asset, candidate.due.units
        return ClaimedCall(
            call_id=call_id,
            claimed=claimed,
            price=candidate.due.price,
            currency=candidate.spendable.asset.symbol,
            charge_on=candidate.due.charge_on,
            asset=candidate.spendable.asset,
            units=candidate.due.units,
            payer=payment.payer,
            transaction=payment.tx_hash,
            write_receipt=partial(write_plain_receipt, payer=payment.payer, asset=asset, units=units),
            store_response=partial(self._idempotency.store_response, call_id, payment.payer)
            if is_keyed
            else None,
        )

    def _build_claim(self, request: LoadedTransactionRequest, candidate: PaymentCandidate) -> Claim:
        call, listing, payment = request.call, request.listing, candidate.spendable.payment
        binding = request.proof.binding
        return Claim(
            call_id=self._new_call_id(),
            listing_id=listing.id,
            listing_name=listing.name,
            provider=listing.provider,
            payer=payment.payer,
            method=call.method,
            path=call.target.rest[:PATH_LENGTH_MAX],
            digest=self._build_digest(request, payment.payer),
            price=candidate.due.price.text,
            price_units=candidate.due.units,
            currency=candidate.spendable.asset.symbol,
            payment_id=payment.id,
            chain_id=payment.chain_id,
            asset=payment.asset,
            decimals=candidate.spendable.asset.decimals,
            tx_hash=payment.tx_hash,
            pay_to=payment.payee,
            nonce=None if binding is None else binding.nonce,
            ends_plain=binding is not None,
            is_plain=binding is None,
            is_first_price=candidate.is_first_price,
            idempotency_key=find_idempotency_key(call),
            request_id=call.request_id,
            created_ms=call.received_ms,
        )

    async def claim_free(
        self, call: IncomingCall, listing: Listing, operation_price: OperationPrice
    ) -> ClaimedCall:
        """A call that takes nothing is recorded all the same."""
        claim = self._build_free_claim(call, listing, operation_price)
        outcome = await self._ledger.claim(claim)
        assert isinstance(outcome, Claimed)  # it takes nothing that could run out
        return ClaimedCall(
            call_id=claim.call_id,
            claimed=outcome,
            price=operation_price.price,
            currency=operation_price.terms.currency,
            charge_on=operation_price.terms.charge_on,
            asset=None,
            units=0,
            payer=None,
            transaction=None,
        )

    def _build_free_claim(
        self, call: IncomingCall, listing: Listing, operation_price: OperationPrice
    ) -> Claim:
        return Claim(
            call_id=self._new_call_id(),
            listing_id=listing.id,
            listing_name=listing.name,
            provider=listing.provider,
            payer=None,
            method=call.method,
            path=call.target.rest[:PATH_LENGTH_MAX],
            digest=self._entropy(32),
            price=operation_price.price.text,
            price_units=0,
            currency=operation_price.terms.currency,
            payment_id=None,
            chain_id=None,
            asset=None,
            decimals=0,
            tx_hash=None,
            pay_to=None,
            nonce=None,
            ends_plain=False,
            is_plain=False,
            idempotency_key=find_idempotency_key(call),
            request_id=call.request_id,
            created_ms=call.received_ms,
        )

    def _build_digest(self, request: LoadedTransactionRequest, payer: Address) -> bytes:
        """A streamed body that nobody promised is never the same as another."""
        return request.call.digest_for(payer, request.body.body_hash or self._entropy(32))

    def _new_call_id(self) -> CallId:
        return CallId(format_id("call", now_ms=self._now_ms(), entropy=self._entropy(10)))

    async def _explain(
        self, request: LoadedTransactionRequest, candidate: PaymentCandidate, outcome: ClaimOutcome
    ) -> ProblemResponse:
        """Why the ledger did not grant a claim."""
        payment, asset, due = candidate.spendable.payment, candidate.spendable.asset, candidate.due
        match outcome:
            case Exhausted(remaining_units=rest, held_units=0) if rest > 0:
                return ProblemResponse(
                    problem=insufficient(payment, asset, due, remaining_units=rest), quote=request.quote
                )
            case Exhausted(held_units=held):
                calls = await self._ledger.spending_calls(payment.id, limit=CALL_IDS_MAX)
                return ProblemResponse(problem=already_used(calls, is_unsettled=held > 0))
            case NonceUsed(call_id=call_id, state=state):
                return ProblemResponse(problem=nonce_used(call_id, state))
            case PlainEnded():
                return ProblemResponse(problem=BOUND_REQUIRED)
            case Unspendable(is_held=is_held):
                return ProblemResponse(problem=HELD if is_held else REORGED)
            case InDebt(units=units):
                return ProblemResponse(problem=in_debt_to(payment.payee, asset, units))
            case UnfinalLimit():
                return ProblemResponse(problem=UNFINAL_LIMIT)
            case NotFirst():
                return refuse_call(OTHER_CURRENCY, request.quote, request.call)
            case Claimed() | AuthorizationTaken() | NotCovered() | KeyTaken() | RepeatsOpenCall():
                raise AssertionError("no refusal of a claim on a payment")
            case _:
                assert_never(outcome)


def _rank_refusal(refused: tuple[PaymentCandidate, ClaimOutcome]) -> tuple[int, bool, int]:
    """Which of several refusals is told: what only the payer can mend, then the payment that comes nearest. One that
    is held goes before one that is short, because only the latter may ask for money."""
    match refused[1]:
        case NotFirst():
            return (0, False, 0)
        case Exhausted(remaining_units=rest, held_units=held):
            return (1, held > 0, rest)
        case _:
            return (2, False, 0)
