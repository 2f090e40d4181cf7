"""The teller: takes a call that is paid by a transaction, from the proof to the claim.

    read -> its form -> its key opens no record? till (facts, verdict) -> its body -> its key? answer from the record -> may this
      wallet? -> price -> (dial) -> claim

A key is asked for before money, a budget or a chain is: the call may be paid. A call that it has named and that may run
again is sold at the price that it had, whatever its listing asks by now. Nothing here sends anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tollway.errors import Code, Problem
from tollway.gateway.cargo import (
    EMPTY_BODY_HASH,
    ForwardBody,
    check_size,
    load_declared,
    load_hashed,
    load_plain,
)
from tollway.gateway.cashier import CheckAccess, PendingClaim
from tollway.gateway.counter import LoadedTransactionRequest, TransactionClaims, TransactionRequest
from tollway.gateway.exchange import IncomingCall, ProblemResponse, ProxyResponse, Quote
from tollway.gateway.refusals import (
    BOUND_REQUIRED,
    OTHER_CURRENCY,
    check_idempotency_key,
    check_rails,
    find_idempotency_key,
    may_quote,
    refuse_call,
)
from tollway.gateway.replays import Idempotency, explain_key_used, is_deliverable
from tollway.identifiers import Address
from tollway.ledger.keyed_calls import KeyedCall
from tollway.limits import Limits
from tollway.money import Price
from tollway.payments.payers import BoundRequest, recover_wallets
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.terms import OperationPrice
from tollway.payments.till import SpendablePayment, TransactionVerifier
from tollway.registry.listing import CatalogEntry, Listing

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
