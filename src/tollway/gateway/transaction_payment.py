"""Payment by a transaction, and by the credit that remains of one: from the proof to the claim.

    check: form of the proof -> signer and payments, from the ledger or the chain -> (body) -> identify: the payer -> (look up the key)
      -> verify: price -> access of the wallet -> (connect) -> claim: the candidates in order

For credit in memory nothing is read before the claim, which is the first database statement. A call that runs again, by its key or as
the same request, costs the price of its claim, although the listing may have another price now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tollway.bounded_cache import BoundedCache
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.access import ActiveCall
from tollway.gateway.body import (
    EMPTY_BODY,
    EMPTY_BODY_HASH,
    ForwardBody,
    load_declared,
    load_hashed,
    load_plain,
)
from tollway.gateway.idempotency import Idempotency, Repeat, explain_key_used
from tollway.gateway.messages import ProxyRequest, ProxyResponse
from tollway.gateway.problems import (
    KEY_HEADER,
    OTHER_CURRENCY,
    PRICE_MAX_HEADER,
    check_held_price_max,
    check_price_max,
    explain_other_host,
    find_idempotency_key,
    may_quote,
    nonce_used,
)
from tollway.gateway.rail import (
    CallPayment,
    ClockAndEntropy,
    build_claim,
    explain_claim,
    name_signer,
    require,
)
from tollway.gateway.receipts import write_plain_receipt
from tollway.gateway.routing import Route
from tollway.ids import Address
from tollway.ledger.ledger import (
    Claim,
    Claimed,
    ClaimOutcome,
    Exhausted,
    InDebt,
    Ledger,
    NonceUsed,
    NotFirst,
)
from tollway.ledger.records import (
    SAFE_METHODS,
    AuthorizationKey,
    CallState,
    KeyedCall,
    KeyTaken,
    OpenCall,
    Rail,
    RepeatsOpenCall,
)
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.payments.pricing import OperationPrice, find_lowest_price, find_price_end_ms
from tollway.payments.proof import (
    BOUND_REQUIRED,
    BOUND_VALIDITY_S,
    KnownProofs,
    Proof,
    check_validity,
    parse_proof,
)
from tollway.payments.transaction_verifier import (
    BoundRequest,
    SpendablePayment,
    TransactionVerifier,
    match_keys,
    recover_wallets,
)
from tollway.registry.listing import CatalogEntry, Listing
from tollway.registry.metering import read_formulas

_Candidate = tuple[SpendablePayment, OperationPrice, bool]
"""A payment that the proof may spend, the price of the call in its asset, and whether that price is only for the first call of the payment."""


PROOFS_KEPT = 8_192


class TransactionRail:
    """The rail of transactions. One per process; safe to use from many tasks at once."""

    is_settled_here = False

    def __init__(
        self,
        *,
        ledger: Ledger,
        transaction_verifier: TransactionVerifier,
        idempotency: Idempotency,
        limits: Limits,
        origin: str,
        is_bound_required: bool,
        clock: ClockAndEntropy,
    ) -> None:
        """`origin`: the origin of the public URL, which a bound signature covers."""
        self.ledger = ledger
        self.transaction_verifier = transaction_verifier
        self.idempotency = idempotency
        self.limits = limits
        self.clock = clock
        self._origin = origin
        self._is_bound_required = is_bound_required
        self._known_proofs: KnownProofs = BoundedCache(
            entries_max=PROOFS_KEPT,
            bytes_max=limits.proofs_bytes_max,
            entry_bytes_max=limits.remembered_bytes_max,
        )

    def read(self, request: ProxyRequest) -> Proof | Problem | None:
        return parse_proof(request.headers, self._known_proofs)

    def name_signature(self, proof: object) -> str:
        assert isinstance(proof, Proof)  # as `read` has parsed it
        return f"{'plain' if proof.binding is None else 'bound'}_{name_signer(proof.signature)}"

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> "TransactionPayment":
        assert isinstance(proof, Proof)  # as `read` has parsed it
        return TransactionPayment(self, request, route, proof, repeat, active)

    def find_deposit(self, proof: Proof) -> AuthorizationKey | None:
        return None

    def find_key(self, request: ProxyRequest, proof: Proof) -> str | None:
        return find_idempotency_key(request)

    async def load_body(self, request: ProxyRequest, proof: Proof, listing: Listing) -> ForwardBody:
        if proof.binding is not None:
            return await load_declared(request.body, proof.binding.body_hash, limits=self.limits)
        if not request.body.is_present:
            return EMPTY_BODY
        if KEY_HEADER in request.header_names:
            return await load_hashed(request.body, is_whole=True, limits=self.limits)
        return await load_plain(request.body, limits=self.limits)

    def check_form(self, proof: Proof, entry: CatalogEntry) -> Problem | None:
        """Refuses the plain form where the bound form is required, and a bound form that is not valid now."""
        if proof.binding is None:
            is_bound_required = self._is_bound_required or entry.listing.signature == "bound"
            return BOUND_REQUIRED if is_bound_required else None
        now_s = self.clock.now_ms() // 1000
        return check_validity(proof.binding, now_s=now_s, validity_s_max=BOUND_VALIDITY_S)

    async def find_key_wallets(
        self, request: ProxyRequest, entry: CatalogEntry, proof: Proof, body: ForwardBody | None
    ) -> tuple[Address, ...] | None:
        """See `KeyReader`. A body over the limit opens no key: no call with a key was granted with such a body."""
        is_hash_declared = proof.binding is not None and proof.binding.body_hash is not None
        is_too_long = (request.body.length or 0) > self.limits.bound_body_bytes_max and not is_hash_declared
        if is_too_long or self.check_form(proof, entry) is not None:
            return ()
        if body is None and needs_body(request, proof):
            return None
        chain_ids = (
            (proof.chain_id,)
            if proof.chain_id is not None
            else dict.fromkeys(chain_id for version in entry.versions for chain_id in version.networks)
        )
        bound = self.bind(request, proof, body)
        wallets = recover_wallets(proof, bound, entry.listing.id, chain_ids)
        return await self.transaction_verifier.find_key_wallets(proof, entry, wallets)

    def bind(self, request: ProxyRequest, proof: Proof, body: ForwardBody | None) -> BoundRequest:
        """The request in the form that a signature covers. `body` None: not read yet; the signature then covers the declared hash, or no
        body."""
        body_hash = None if proof.binding is None else proof.binding.body_hash
        if body is not None:
            body_hash = body.body_hash
        return BoundRequest(
            gateway=self._origin,
            method=request.method,
            target=request.target.signed.encode(),
            body_hash=body_hash or EMPTY_BODY_HASH,  # a plain signature covers no body
            client_address=request.client_address,
        )


def needs_body(request: ProxyRequest, proof: Proof) -> bool:
    """Whether the signature covers a body without a declared hash. Its signer is known only after the body is read."""
    return proof.binding is not None and proof.binding.body_hash is None and request.body.is_present


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTransaction:
    """The payments that a request spends, and the price of its call with each, valid until `expires_ms`. The key of their payer signed."""

    spendables: tuple[SpendablePayment, ...]
    candidates: Sequence[_Candidate]
    expires_ms: float


class TransactionPayment(CallPayment):
    """The payment of one call by a transaction."""

    __slots__ = ("_candidates", "_earlier", "_rail", "_spendables", "proof")

    def __init__(
        self,
        rail: TransactionRail,
        request: ProxyRequest,
        route: Route,
        proof: Proof,
        repeat: Repeat | None,
        active: ActiveCall,
    ) -> None:
        key = find_idempotency_key(request) if KEY_HEADER in request.header_names else None
        super().__init__(rail.ledger, request, route, repeat, active, key=key)
        self.proof = proof
        self._rail = rail
        self._spendables: tuple[SpendablePayment, ...] | None = None
        self._candidates: Sequence[_Candidate] = ()
        self._earlier: KeyedCall | None = None

    async def check(self) -> None:
        problem = self._rail.check_form(self.proof, self.route.entry)
        if problem is not None:
            raise Refusal(problem)
        repeat = self.repeat
        is_present = self.request.body.is_present
        is_readable = repeat is not None or not (is_present and needs_body(self.request, self.proof))
        if is_readable and not (repeat is not None and isinstance(repeat.call, KeyedCall)):
            await self._find_spendables(None if repeat is None else repeat.body)
            if is_present:
                self.request.body.prove()

    @property
    def default_rail(self) -> Rail:
        spendables = self._spendables
        return Rail.CREDIT if spendables and not spendables[0].is_first else Rail.TX

    async def _find_spendables(self, body: ForwardBody | None) -> tuple[SpendablePayment, ...]:
        """Finds the payments that the proof may spend at this listing. Raises Refusal where there is none."""
        if self._is_verified_again(body):
            assert isinstance(self.verified, VerifiedTransaction)
            found = self.verified.spendables
        else:
            self.verified = None
            looked_up = await self._look_up(body)
            if isinstance(looked_up, Problem):
                raise Refusal(looked_up)
            found = looked_up
        self._spendables = found
        return found

    async def _look_up(self, body: ForwardBody | None) -> tuple[SpendablePayment, ...] | Problem:
        bound = self._rail.bind(self.request, self.proof, body)
        found = await self._rail.transaction_verifier.find_spendable(
            self.proof, self.route.entry, bound, on_chain=partial(self._begin_chain, bound)
        )
        self.active.begin("read_head")
        if isinstance(found, Problem) and self.proof.binding is not None:
            return explain_other_host(found, self.request, origin=bound.gateway)
        return found

    async def _begin_chain(self, bound: BoundRequest) -> None:
        """Before the first look at a transaction: a wallet whose key signed is refused by its owner's policy without that look. Raises Refusal."""
        self.active.begin("chain")
        cheapest = min(self.route.operation_prices, key=lambda one: one.price.nano)
        chain_ids = (
            self.route.entry.versions[0].networks if self.proof.chain_id is None else (self.proof.chain_id,)
        )
        for wallet in recover_wallets(self.proof, bound, self.route.listing.id, chain_ids):
            problem = await self.active.check_budget(
                wallet, currency=cheapest.terms.currency, cost_nano=cheapest.price.nano
            )
            if problem is not None:
                raise Refusal(problem)

    def _is_verified_again(self, body: ForwardBody | None) -> bool:
        """Whether the cached result of an earlier call of the same request is valid for this one. The recorded payments must be unchanged.
        A plain signature is the same by the key of the decision; a bound signature is recovered for each request."""
        verified, rail = self.verified, self._rail
        if not isinstance(verified, VerifiedTransaction):
            return False
        if not rail.transaction_verifier.is_known(self.proof.tx_hash, verified.spendables):
            return False
        if self.proof.binding is None:
            return True
        bound = rail.bind(self.request, self.proof, body)
        return (
            match_keys(verified.spendables, self.proof, bound, self.route.listing.id) == verified.spendables
        )

    def remember(self) -> VerifiedTransaction | None:
        """See `CallPayment`. Only for known payments whose payer's key signed: the signature of a contract wallet is checked on the chain
        for each call, and a first price is valid once."""
        spendables, rail = self._spendables, self._rail
        if self.verified is not None or self._earlier is not None or not spendables:
            return None
        if not rail.transaction_verifier.is_known(self.proof.tx_hash, spendables):
            return None
        bound = rail.bind(self.request, self.proof, self.body)
        if match_keys(spendables, self.proof, bound, self.route.listing.id) != spendables:
            return None
        expires_ms = find_price_end_ms(
            self.route.operation_prices, now_ms=self.request.received_ms, limits=rail.limits
        )
        return VerifiedTransaction(spendables=spendables, candidates=self._candidates, expires_ms=expires_ms)

    # ---- Verify: the payments and their prices.

    async def identify(self) -> tuple[Address, ...]:
        repeat = self.repeat
        if repeat is not None and isinstance(repeat.call, KeyedCall):
            return ()
        spendables = self._spendables or await self._find_spendables(self.body)
        payer = self.payer = spendables[0].payment.payer
        if self.key is None or (repeat is not None and payer in repeat.key_wallets):
            return ()
        return await self._rail.transaction_verifier.find_key_wallets(self.proof, self.route.entry, (payer,))

    async def verify(self) -> None:
        repeat = self.repeat
        if repeat is not None and isinstance(repeat.call, KeyedCall):
            await self._verify_repeat(repeat.call)
            return
        payer, spendables, verified = self.payer, self._spendables, self.verified
        assert payer is not None  # `identify` sets both
        assert spendables is not None
        if isinstance(verified, VerifiedTransaction) and verified.spendables is spendables:
            self._candidates = verified.candidates
        else:
            self._candidates = self._price(spendables)
        candidates = self._candidates
        if not candidates:
            raise Refusal(OTHER_CURRENCY)
        if all(spendable.payment.remaining_units <= 0 for spendable, _, _ in candidates):
            await self._check_exhausted()
        may_hold = self.key is None and PRICE_MAX_HEADER in self.request.header_names
        held = await self._find_held() if may_hold else None
        self._choose(candidates[0])
        price = self.price if held is None else Price.parse(held.price)
        problem = await self.active.check(
            payer, price, candidates[0][0].asset, is_metered=bool(self.formulas)
        )
        if problem is None and self.formulas and any(formula.base.is_free for formula in self.formulas):
            problem = await self.active.check_free_rate()
        if problem is not None:
            raise Refusal(problem)

    def _price(self, spendables: Sequence[SpendablePayment]) -> Sequence[_Candidate]:
        """The price of the call with each payment, by the rule of the terms. Payments that cover their price come first.

        A payment that has paid no call yet may have a lower price for its first call. Many requests may present it at once: the ledger
        grants that price to one of them, and the current price follows as the next candidate for the others.
        """
        candidates: list[_Candidate] = []
        for spendable in spendables:
            now = self._find_price(spendable.asset, first_call_block_s=None)
            if spendable.is_first:
                first = self._find_price(spendable.asset, first_call_block_s=spendable.payment.block_time)
                if first is not None and (now is None or not _is_same_price(first, now)):
                    candidates.append((spendable, first, True))
            if now is not None:
                candidates.append((spendable, now, False))
        if len(candidates) > 1:
            candidates.sort(key=_is_below_price)
        return candidates

    def _find_price(self, asset: Asset, *, first_call_block_s: int | None) -> OperationPrice | None:
        return find_lowest_price(
            self.route.operation_prices,
            asset,
            now_ms=self._rail.clock.now_ms(),
            limits=self._rail.limits,
            first_call_block_s=first_call_block_s,
        )

    async def _check_exhausted(self) -> None:
        """Refuses early when every presented payment has no credit left, before the gateway connects to the upstream. The ledger decides."""
        refused: list[tuple[_Candidate, Claim, ClaimOutcome]] = []
        for candidate in self._candidates:
            claim = self._build_claim(candidate)
            outcome = await self._rail.ledger.find_exhausted(claim)
            if outcome is None:
                return
            refused.append((candidate, claim, outcome))
        raise await self._explain(refused)

    async def _find_held(self) -> OpenCall | None:
        """The earlier call that this request without a key would run again, at the price of its claim. Reads the ledger only where the
        current price is above `Tollway-Max-Price`, because only then does the held price decide."""
        for candidate in self._candidates:
            asset = candidate[0].asset
            problem = check_price_max(
                self.request, candidate[1].price, asset, is_metered=bool(candidate[1].formulas)
            )
            if problem is None or problem.code is not Code.PRICE_ABOVE_MAX:
                return None
            held = await self._find_open(self._build_claim(candidate))
            if held is not None:
                self._check_held_price(held, asset)
                return held
        return None

    def _check_held_price(self, held: OpenCall | KeyedCall, asset: Asset) -> None:
        problem = check_held_price_max(
            self.request,
            asset,
            call_id=held.call_id,
            price=held.price,
            state=held.state,
            is_metered=held.metering is not None,
        )
        if problem is not None:
            raise Refusal(problem)

    async def _verify_repeat(self, earlier: KeyedCall) -> None:
        """Verifies a call that runs again under its own claim. It holds a price already, so no problem here asks for a payment."""
        found = await self._look_up(self.body)
        if isinstance(found, Problem):
            raise Refusal(explain_key_used(earlier) if may_quote(found) else found)
        spendable = next((one for one in found if one.payment.id == earlier.payment_id), None)
        if spendable is None:  # the proof is of another payment than the claim
            raise Refusal(explain_key_used(earlier))
        price, payer = Price.parse(earlier.price), spendable.payment.payer
        candidate = (spendable, self.route.operation_prices[0], False)
        problem = await self.active.check(
            payer, price, spendable.asset, is_metered=earlier.metering is not None
        )
        if problem is not None:
            held = explain_key_used(earlier)
            raise Refusal(replace(problem, call_id=held.call_id, payment_state=held.payment_state))
        self._earlier, self._candidates = earlier, (candidate,)
        self._choose(candidate)

    # ---- Claim: the first payment that covers its price.

    async def claim(self) -> ProxyResponse | None:
        if self._earlier is not None:
            return await self._reopen_keyed(self._earlier, self._candidates[0])
        rail = self._rail
        refused: list[tuple[_Candidate, Claim, ClaimOutcome]] = []
        last_price_problem: Problem | None = None
        for candidate in self._candidates:
            claim = self._build_claim(candidate)
            price_problem = None
            if PRICE_MAX_HEADER in self.request.header_names:
                price_problem = check_price_max(
                    self.request, self.price, candidate[0].asset, is_metered=bool(self.formulas)
                )
            if price_problem is not None:
                # An open call may hold a lower price. After `NotFirst` the next candidate has the current, higher price.
                if self.key is None and await self._run_again(claim, candidate):
                    return None
                last_price_problem = price_problem
                continue
            outcome = await rail.ledger.claim(claim)
            if isinstance(outcome, RepeatsOpenCall):
                if await self._run_open(outcome.call, candidate):
                    return None
                # The earlier call is running, or may not run again, so this request is a new call.
                outcome = await rail.ledger.claim(replace(claim, is_separate_call=True))
            if isinstance(outcome, Claimed):
                rail.transaction_verifier.mark_spent(candidate[0].payment)
                self.call_id, self.claimed, self.transaction = claim.call_id, outcome, claim.tx_hash
                return None
            rail.transaction_verifier.forget(self.proof.tx_hash)
            if isinstance(outcome, KeyTaken):
                return await self._run_keyed(outcome.call)
            # A request with a key runs no call that its key does not name.
            may_repeat = self.key is None and isinstance(outcome, Exhausted | NonceUsed)
            if may_repeat and await self._run_again(claim, candidate):
                return None
            refused.append((candidate, claim, outcome))
            if not isinstance(outcome, Exhausted | NotFirst | InDebt):
                break
        if last_price_problem is not None and all(isinstance(outcome, NotFirst) for _, _, outcome in refused):
            raise Refusal(last_price_problem)
        raise await self._explain(refused)

    async def _explain(self, refused: Sequence[tuple[_Candidate, Claim, ClaimOutcome]]) -> Refusal:
        candidate, claim, outcome = max(refused, key=lambda one: _rank_refusal(one[2]))
        return Refusal(await explain_claim(outcome, claim, candidate[0].asset, self._rail.ledger))

    def _build_claim(self, candidate: _Candidate) -> Claim:
        self._choose(candidate)
        assert self.payer is not None  # `_choose` sets it
        body_hash, binding = self.body.body_hash, self.proof.binding
        # Without a declared hash a streamed body has no digest, so no other request repeats this one.
        digest = None if body_hash is None else self.request.digest_for(self.payer, body_hash)
        return build_claim(
            self,
            self._rail.clock,
            digest=digest,
            payment=candidate[0].payment,
            nonce=None if binding is None else binding.nonce,
            is_plain=binding is None,
            is_first_price=candidate[2],
        )

    def _choose(self, candidate: _Candidate) -> None:
        spendable, lowest, _ = candidate
        asset = spendable.asset
        self.asset, self.currency, self.payer = asset, asset.symbol, spendable.payment.payer
        self.price, self.units = lowest.price, lowest.price.units_in(asset)
        self.charge_on, self.formulas = lowest.terms.charge_on, lowest.formulas

    # ---- Claim: an earlier call runs again, under its claim and at its price.

    async def _run_again(self, claim: Claim, candidate: _Candidate) -> bool:
        """Runs the earlier call of the same request again where it has no outcome. Only for safe methods."""
        open_call = await self._find_open(claim)
        return open_call is not None and await self._run_open(open_call, candidate)

    async def _find_open(self, claim: Claim) -> OpenCall | None:
        if claim.method not in SAFE_METHODS or claim.payment_id is None:
            return None
        open_call = await self._rail.ledger.find_open_call(claim.payment_id, claim.digest)
        return None if open_call is None or open_call.state is CallState.FORWARDING else open_call

    async def _run_open(self, open_call: OpenCall, candidate: _Candidate) -> bool:
        """Reopens an earlier call. Raises Refusal where its price is above the request's maximum."""
        self._check_held_price(open_call, candidate[0].asset)
        return await self._reopen(open_call, candidate)

    async def _run_keyed(self, earlier: KeyedCall) -> ProxyResponse | None:
        """Handles a key that has named a call since `verify`: returns its response, or runs the call again where it may."""
        rail, payer = self._rail, self._candidates[0][0].payment.payer
        if not await rail.transaction_verifier.find_key_wallets(self.proof, self.route.entry, (payer,)):
            raise Refusal(BOUND_REQUIRED)
        recorded = await rail.idempotency.find_keyed_response(self.request, self.body, payer, earlier)
        if not isinstance(recorded, KeyedCall):
            return require(recorded)
        matching = (one for one in self._candidates if one[0].payment.id == recorded.payment_id)
        candidate = next(matching, None)
        if candidate is None:  # the proof is of another payment than the claim
            raise Refusal(explain_key_used(recorded))
        return await self._reopen_keyed(recorded, candidate)

    async def _reopen_keyed(self, earlier: KeyedCall, candidate: _Candidate) -> ProxyResponse | None:
        if await self._reopen(earlier, candidate):
            return None
        overtaken = await self._rail.idempotency.find_overtaken_response(
            self.request, self.body, candidate[0].payment.payer, self.key, earlier
        )
        return require(overtaken)

    async def _reopen(self, open_call: OpenCall | KeyedCall, candidate: _Candidate) -> bool:
        """Reopens an earlier call at the price of its claim. False where another request was faster, or it may not run again. Raises Refusal
        where the signature belongs to another call."""
        binding = self.proof.binding
        outcome = await self._rail.ledger.reopen(
            open_call.call_id,
            epoch=open_call.epoch,
            now_ms=self._rail.clock.now_ms(),
            is_plain=binding is None,
            nonce=None if binding is None else binding.nonce,
        )
        if isinstance(outcome, NonceUsed):
            raise Refusal(nonce_used(outcome.call_id, outcome.state))
        if not isinstance(outcome, Claimed):
            return False
        self._choose(candidate)
        self.price, self.units = Price.parse(open_call.price), open_call.price_units
        self.formulas = () if open_call.metering is None else read_formulas(open_call.metering)
        self.actual_units = open_call.actual_units
        self.call_id, self.claimed = open_call.call_id, outcome
        self.transaction = candidate[0].payment.tx_hash
        return True

    def write_receipt(self) -> tuple[bytes, bytes] | None:
        transaction, payer, asset = self.transaction, self.payer, self.asset
        if transaction is None or payer is None or asset is None:
            return None
        base_units = asset.to_base_units(self.units if self.actual_units is None else self.actual_units)
        return write_plain_receipt(transaction, payer=payer, chain_id=asset.chain_id, base_units=base_units)


def _is_below_price(candidate: _Candidate) -> bool:
    spendable, lowest, _ = candidate
    return spendable.payment.remaining_units < lowest.price.units_in(spendable.asset)


def _is_same_price(one: OperationPrice, other: OperationPrice) -> bool:
    return (one.price, one.formulas, one.terms.charge_on) == (
        other.price,
        other.formulas,
        other.terms.charge_on,
    )


def _rank_refusal(outcome: ClaimOutcome) -> tuple[int, bool, int]:
    """The rank of a refusal; the highest is reported. Refusals that only the payer can resolve come first, then the payment with the most
    credit. A held payment ranks above a short one: only the latter may ask for money."""
    match outcome:
        case NotFirst():
            return (0, False, 0)
        case Exhausted(remaining_units=remaining, held_units=held):
            return (1, held > 0, remaining)
        case _:
            return (2, False, 0)
