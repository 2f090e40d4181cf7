"""A call that is paid by a transaction, from the proof to the claim.

    read the proof -> its form -> does its key open a record? else verify (facts, rules) -> its body -> its key? respond from the record
      -> may this wallet? -> price -> (connect) -> claim

The key is looked up before money, a budget or a chain is: the call may be paid. A call that the key has named and that may run
again costs what it did, whatever its listing asks now. `TransactionClaims` prices a call with the payments that were presented and claims it
in the ledger once a connection is held. Nothing here sends anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from tollway.errors import Code, Problem
from tollway.gateway.authorization_payment import CheckAccess, PendingClaim
from tollway.gateway.body import (
    EMPTY_BODY_HASH,
    ForwardBody,
    check_size,
    load_declared,
    load_hashed,
    load_plain,
)
from tollway.gateway.idempotency import Idempotency, explain_key_used, is_deliverable
from tollway.gateway.messages import IncomingCall, ProblemResponse, ProxyResponse, Quote
from tollway.gateway.problems import (
    BOUND_REQUIRED,
    HELD,
    OTHER_CURRENCY,
    REORGED,
    UNFINAL_LIMIT,
    already_used,
    check_held_price_max,
    check_idempotency_key,
    check_price_max,
    check_rails,
    find_idempotency_key,
    in_debt_to,
    insufficient,
    may_quote,
    nonce_used,
    refuse_call,
)
from tollway.gateway.proxy import ClaimedCall, ClaimRefused
from tollway.gateway.receipts import write_plain_receipt
from tollway.ids import Address, CallId, format_id
from tollway.ledger.ledger import (
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
from tollway.ledger.records import SAFE_METHODS, CallState, KeyedCall, KeyTaken, OpenCall, RepeatsOpenCall
from tollway.limits import Limits
from tollway.money import Price
from tollway.payments.pricing import AmountDue, OperationPrice, find_amount_due
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.transaction_verifier import (
    BoundRequest,
    SpendablePayment,
    TransactionVerifier,
    recover_wallets,
)
from tollway.registry.listing import CatalogEntry, Listing

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


CLOCK_SLACK_S = 5  # callers' clocks run a little ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedProof:
    """What is known of a proof before the body is read. `key_wallets`: the wallets whose idempotency keys it opens; `spendables`:
    the payments that it may spend. None: not looked for yet."""

    key_wallets: tuple[Address, ...] | None = None
    spendables: tuple[SpendablePayment, ...] | None = None


class TransactionPayment:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        transaction_verifier: TransactionVerifier,
        claims: TransactionClaims,
        idempotency: Idempotency,
        limits: Limits,
        origin: str,
        is_bound_required: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """`origin`: that of the public URL, which a bound signature names."""
        self._transaction_verifier = transaction_verifier
        self._claims = claims
        self._idempotency = idempotency
        self._limits = limits
        self._origin = origin
        self._is_bound_required = is_bound_required
        self._now_ms = now_ms

    # ---- What is shown.

    def read(self, call: IncomingCall) -> Proof | Problem | None:
        """What the call shows on this rail; None when it shows nothing there."""
        proof = parse_proof(call.headers)
        if isinstance(proof, Problem):
            return proof
        return check_rails(call, has_proof=proof is not None) or proof

    def check_form(self, proof: Proof, listing: Listing) -> Problem | None:
        """The plain form where a bound one is asked for; a bound one outside its time."""
        if proof.binding is None:
            if listing.signature == "bound" or self._is_bound_required:
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

    async def check_proof(self, request: TransactionRequest) -> CheckedProof | ProblemResponse:
        """Everything about the proof that the body does not decide. Declined: the proof does not hold, whatever the body is.
        A signature over a body without its promised hash is judged by `verify`, and a key of its wallet opens the record
        first. Raises `ChainUnavailable` and `StorageUnavailable`: nothing was taken."""
        if _needs_body(request):
            return CheckedProof()
        key_wallets: tuple[Address, ...] = ()
        if find_idempotency_key(request.call) is not None:
            key_wallets = await self._find_key_wallets(request)
        if key_wallets:
            return CheckedProof(key_wallets=key_wallets)
        signed_request = self._build_signed_request(request.call, request.proof, None)
        spendables = await self._transaction_verifier.find_spendable(
            request.proof, request.quote.entry, signed_request
        )
        if isinstance(spendables, Problem):
            return refuse_call(spendables, request.quote, request.call)
        return CheckedProof(key_wallets=key_wallets, spendables=spendables)

    async def load_body(self, call: IncomingCall, proof: Proof) -> ForwardBody | Problem:
        if proof.binding is None and find_idempotency_key(call) is not None:
            return await load_hashed(call.body, is_whole=True, limits=self._limits)
        if proof.binding is None:
            return await load_plain(call.body, limits=self._limits)
        return await load_declared(call.body, proof.binding.body_hash, limits=self._limits)

    async def read_repeat(
        self, call: IncomingCall, entry: CatalogEntry
    ) -> LoadedTransactionRequest | Problem | None:
        """A call that may repeat one, where it is not asked to pay. None: it does not, and nothing of its body is read.
        A problem: its body is spent."""
        proof = None if find_idempotency_key(call) is None else self.read(call)
        if (
            not isinstance(proof, Proof)
            or check_size(call.body, self._limits) is not None
            or check_idempotency_key(call) is not None
            or self.check_form(proof, entry.listing) is not None
            or self._is_too_long(call, proof)
        ):
            return None
        quote = Quote(entry=entry, price=entry.listing.price, expires_ms=call.received_ms)  # asks for nothing
        request = TransactionRequest(call=call, listing=entry.listing, proof=proof, quote=quote)
        if not _needs_body(request) and not await self._find_key_wallets(request):
            return None
        body = await self.load_body(call, proof)
        if isinstance(body, Problem):
            return body
        return LoadedTransactionRequest(call=call, listing=entry.listing, proof=proof, quote=quote, body=body)

    # ---- What it gets.

    async def find_paid_response(
        self, call: IncomingCall, entry: CatalogEntry
    ) -> ProxyResponse | ProblemResponse | None:
        """Of a call that its listing does not take any more: the answer that was paid for, or that it is coming."""
        request = await self.read_repeat(call, entry)
        if not isinstance(request, LoadedTransactionRequest):
            return None
        recorded, _ = await self._find_keyed_by_signers(request)
        return (
            recorded
            if isinstance(recorded, ProxyResponse | ProblemResponse) and is_deliverable(recorded)
            else None
        )

    async def find_repeat_outcome(
        self,
        request: LoadedTransactionRequest,
        operation_prices: Sequence[OperationPrice],
        check_access: CheckAccess,
    ) -> ProxyResponse | ProblemResponse | PendingClaim | None:
        """What its idempotency key brings. None: that has named no call yet, as far as wallets with a key go."""
        recorded, _ = await self._find_keyed_by_signers(request)
        if isinstance(recorded, KeyedCall):
            return await self._verify_repeat(request, recorded, operation_prices, check_access)
        return recorded

    async def verify(
        self,
        request: LoadedTransactionRequest,
        checked: CheckedProof,
        operation_prices: Sequence[OperationPrice],
        check_access: CheckAccess,
    ) -> ProxyResponse | ProblemResponse | PendingClaim:
        """Everything up to the claim. Raises `ChainUnavailable` and `StorageUnavailable`: nothing was taken."""
        recorded, key_wallets = await self._find_keyed_by_signers(request, checked.key_wallets)
        if recorded is None:
            checked = CheckedProof(key_wallets=key_wallets, spendables=checked.spendables)
            return await self._verify_new(request, checked, operation_prices, check_access)
        if isinstance(recorded, KeyedCall):
            return await self._verify_repeat(request, recorded, operation_prices, check_access)
        return recorded

    async def _verify_new(
        self,
        request: LoadedTransactionRequest,
        checked: CheckedProof,
        operation_prices: Sequence[OperationPrice],
        check_access: CheckAccess,
    ) -> ProxyResponse | ProblemResponse | PendingClaim:
        """`checked.key_wallets`: the wallets whose keys were looked for already."""
        spendables: tuple[SpendablePayment, ...] | Problem | None = checked.spendables
        if spendables is None:
            spendables = await self._find_spendable(request)
        if isinstance(spendables, Problem):
            return refuse_call(spendables, request.quote, request.call)
        payer = spendables[0].payment.payer
        if payer not in (
            checked.key_wallets or ()
        ):  # a contract's wallet, or a new payment: whose it is turns out only now
            recorded, _ = await self._find_keyed(request, (payer,))
            if isinstance(recorded, KeyedCall):
                return await self._verify_repeat(request, recorded, operation_prices, check_access)
            if recorded is not None:
                return recorded
        candidates = self._claims.price(spendables, operation_prices)
        if not candidates:
            return refuse_call(OTHER_CURRENCY, request.quote, request.call)
        exhausted = await self._claims.check_exhausted(request, candidates)
        if exhausted is not None:
            return exhausted
        held = await self._claims.find_held(request, candidates)
        if isinstance(held, ProblemResponse):
            return held
        due = candidates[0].due
        price = due.price if held is None else Price.parse(held.price)
        problem = await check_access(payer, price, due.asset)
        if problem is not None:
            return refuse_call(problem, request.quote, request.call)
        return PendingClaim(payer=payer, claim=partial(self._claims.claim, request, candidates))

    async def _verify_repeat(
        self,
        request: LoadedTransactionRequest,
        earlier: KeyedCall,
        operation_prices: Sequence[OperationPrice],
        check_access: CheckAccess,
    ) -> ProblemResponse | PendingClaim:
        """Under the claim that it has. Nobody is asked to pay for it: it holds a price."""
        spendables = await self._find_spendable(request)
        if isinstance(spendables, Problem):
            return explain_key_used(earlier) if may_quote(spendables) else ProblemResponse(problem=spendables)
        spendable = next((one for one in spendables if one.payment.id == earlier.payment_id), None)
        if spendable is None:  # another payment of that wallet is for another call
            return explain_key_used(earlier)
        candidate = self._claims.price_repeat(earlier, spendable, operation_prices)
        problem = await check_access(spendable.payment.payer, candidate.due.price, candidate.due.asset)
        if problem is not None:
            held = explain_key_used(earlier).problem
            problem = replace(problem, call_id=held.call_id, payment_state=held.payment_state)
            return ProblemResponse(problem=problem)
        claim = partial(self._claims.reopen_keyed, request, candidate, earlier)
        return PendingClaim(payer=spendable.payment.payer, claim=claim)

    # ---- Whose key it is.

    async def _find_keyed_by_signers(
        self, request: LoadedTransactionRequest, key_wallets: tuple[Address, ...] | None = None
    ) -> tuple[ProxyResponse | ProblemResponse | KeyedCall | None, tuple[Address, ...]]:
        """What the wallets get whose keys made the signature, and which of them open the record. Asks no chain. `key_wallets`:
        where they are known already."""
        key = find_idempotency_key(request.call)
        if key is None:
            return None, ()
        if key_wallets is None:
            key_wallets = await self._find_key_wallets(request)
        return await self._idempotency.find_response_by_key(
            request.call, request.body, key_wallets, key
        ), key_wallets

    async def _find_key_wallets(self, request: TransactionRequest) -> tuple[Address, ...]:
        """The wallets whose keys made the signature and whose idempotency keys it opens. Asks no chain."""
        named, entry = request.proof.chain_id, request.quote.entry
        chain_ids = (
            (named,)
            if named is not None
            else dict.fromkeys(chain_id for version in entry.versions for chain_id in version.networks)
        )
        body = request.body if isinstance(request, LoadedTransactionRequest) else None
        signed_request = self._build_signed_request(request.call, request.proof, body)
        wallets = recover_wallets(request.proof, signed_request, entry.listing.id, chain_ids)
        return await self._transaction_verifier.find_key_wallets(request.proof, entry, wallets)

    async def _find_keyed(
        self, request: LoadedTransactionRequest, signers: Sequence[Address]
    ) -> tuple[ProxyResponse | ProblemResponse | KeyedCall | None, tuple[Address, ...]]:
        key = find_idempotency_key(request.call)
        if key is None:
            return None, ()
        key_wallets = await self._transaction_verifier.find_key_wallets(
            request.proof, request.quote.entry, signers
        )
        return await self._idempotency.find_response_by_key(
            request.call, request.body, key_wallets, key
        ), key_wallets

    async def _find_spendable(
        self, request: LoadedTransactionRequest
    ) -> tuple[SpendablePayment, ...] | Problem:
        signed_request = self._build_signed_request(request.call, request.proof, request.body)
        return await self._transaction_verifier.find_spendable(
            request.proof, request.quote.entry, signed_request
        )

    def _build_signed_request(
        self, call: IncomingCall, proof: Proof, body: ForwardBody | None
    ) -> BoundRequest:
        """`body` None: the body is not read, and the signature covers none, or its promised hash."""
        body_hash = None if proof.binding is None else proof.binding.body_hash
        if body is not None:
            body_hash = body.body_hash
        return BoundRequest(
            gateway=self._origin,
            method=call.method,
            target=call.target.signed.encode(),
            body_hash=body_hash or EMPTY_BODY_HASH,  # a plain signature covers no body
            client_address=call.client_address,
        )

    def _is_too_long(self, call: IncomingCall, proof: Proof) -> bool:
        """By its own word, to be read first. No such call was ever granted under a key."""
        is_hash_declared = proof.binding is not None and proof.binding.body_hash is not None
        length = call.body.length
        return not is_hash_declared and length is not None and length > self._limits.bound_body_bytes_max


def _needs_body(request: TransactionRequest) -> bool:
    """Whether the signature covers a body whose hash is not promised: its signer is known only once that is read."""
    binding = request.proof.binding
    return binding is not None and binding.body_hash is None and request.call.body.is_present
