"""Verifies a payment by transaction: returns the payments that the caller may spend, or the problem.

A payment in the ledger is verified from its row. A new transaction is looked up on its chain, verified by the pure rules, and
recorded. The ledger's claim takes the money, not this module.

The verifier never reads the chain for a payment that is in the ledger, and never refuses a payment because a chain does not
respond: an unreachable chain is `ChainUnavailable`, and a transaction that is not mined yet is pending.

The signer must be one of the payers: keys are checked first, then at most four contract wallets.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tollway.bounded_cache import BoundedDict
from tollway.chain.networks import ChainRules, find_asset
from tollway.chain.port import ChainFacts, ChainReader, LookupQuota, NotMined, Quorum
from tollway.errors import ChainUnavailable, Code, Problem, Refusal, StorageUnavailable, TollwayError
from tollway.identity.signatures import SignatureVerifier, paid_call_digest, recover, transaction_digests
from tollway.ids import ZERO_ADDRESS, Address, ChainId, ListingId, TxHash, format_network
from tollway.ledger.ledger import PaymentLedger, Readiness
from tollway.ledger.records import Payment, PaymentState, RecordedTransaction
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.pricing import (
    begin_by_heads,
    does_credit_count,
    find_assets,
    find_chains,
    find_payees,
)
from tollway.payments.proof import Proof
from tollway.payments.transaction_lookup import LookupCharge, TransactionLookup
from tollway.payments.transaction_rules import (
    Accepted,
    BeforeListing,
    BlockInFuture,
    HeldByRestore,
    NotThePayer,
    Pending,
    Refused,
    TooOld,
    TransactionReason,
    VerificationInput,
    VerificationResult,
    explain_result,
    find_movements,
    is_before,
    not_mined,
    other_network,
    refuse_transaction,
    verify_transaction,
)
from tollway.registry.catalog import TERMS_RETENTION_S
from tollway.registry.listing import CatalogEntry

CONTRACT_PAYERS_MAX = 4
WALLETS_MAX = 10_000
FindPayeeHeads = Callable[[CatalogEntry, ChainId], Awaitable[Mapping[Address, int]]]
"""The time of the network's head as each payee of the entry's versions began, where it is known: the earliest of each."""
VerifyFacts = Callable[[ChainFacts], Awaitable[VerificationResult]]
UNCLAIMED_MAX = 300
"""Signature checks of one contract wallet, beyond those of its claims, that cost no look-up. More than one client address can have
in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRequest:
    """The parts of a request that a bound signature covers, and its client address. `body_hash`: keccak-256 of the body."""

    gateway: str
    method: str
    target: bytes
    body_hash: bytes
    client_address: str


class PresentedProof:
    """The proof of one request. Caches the results of contract wallets, so that each is called once."""

    def __init__(
        self,
        proof: Proof,
        request: BoundRequest,
        listing_id: ListingId,
        *,
        chain_id: ChainId,
        quota: LookupQuota,
    ) -> None:
        """`chain_id`: the most likely network; only the signer's name for the quota depends on it."""
        self.proof = proof
        self.request = request
        self.listing_id = listing_id
        self.wallet_results: dict[tuple[ChainId, Address], bool] = {}
        self._keys: dict[ChainId, frozenset[Address]] = {}
        self.charge = LookupCharge(
            quota, client_address=request.client_address, signer=self._name_signer(chain_id)
        )

    def digests(self, chain_id: ChainId) -> tuple[bytes, ...]:
        return _digests(self.proof, self.request, self.listing_id, chain_id)

    def keys(self, chain_id: ChainId) -> frozenset[Address]:
        """The wallets whose keys may have made the signature. Of the two plain forms at most one recovers the signer."""
        known = self._keys.get(chain_id)
        if known is None:
            recovered = _recover_all(self.proof, self.digests(chain_id))
            known = self._keys[chain_id] = frozenset(recovered)
        return known

    def _name_signer(self, chain_id: ChainId) -> str:
        """The signer's name for the quota, before the payer is known. Contract wallets must not share one name, and a caller with a
        public hash and a worthless signature must not use the look-ups of the hash's payer."""
        signer = recover(self.digests(chain_id)[0], self.proof.signature)
        if signer is not None:
            return str(signer)
        return f"transaction {self.proof.tx_hash} from {self.request.client_address}"


class SignerCheck:
    """Finds the payers that signed a proof: by key, or by a call of a contract wallet."""

    def __init__(self, verifier: SignatureVerifier) -> None:
        self._verifier = verifier
        # Contract wallets that accepted a signature lately are not charged: otherwise each of their calls would cost a look-up.
        self._wallets: BoundedDict[tuple[ChainId, Address], None] = BoundedDict(entries_max=WALLETS_MAX)
        # The calls of each wallet, less two for each claim. It limits a wallet that accepts every signature and buys
        # nothing.
        self._unclaimed: BoundedDict[tuple[ChainId, Address], int] = BoundedDict(entries_max=WALLETS_MAX)

    async def find_signers(
        self, presented: PresentedProof, chain_id: ChainId, payers: Iterable[Address]
    ) -> tuple[Address, ...]:
        """Raises `ChainUnavailable`, and `Refusal` (`rate_limited`)."""
        known = tuple(dict.fromkeys(payer for payer in payers if payer != ZERO_ADDRESS))
        signed = tuple(payer for payer in known if payer in presented.keys(chain_id))
        if signed:
            return signed
        for payer in known:
            if await self._is_contract_signer(presented, chain_id, payer):
                return (payer,)
        return ()

    def mark_spent(self, chain_id: ChainId, payer: Address) -> None:
        count = self._unclaimed.get((chain_id, payer))
        if count is not None:
            self._unclaimed[(chain_id, payer)] = max(0, count - 2)

    def _count_unclaimed(self, key: tuple[ChainId, Address]) -> int:
        """Counts one check more. The count stops one above the maximum, so that one claim brings it below."""
        count = self._unclaimed[key] = min(self._unclaimed.get(key, 0), UNCLAIMED_MAX) + 1
        return count

    async def _is_contract_signer(self, presented: PresentedProof, chain_id: ChainId, payer: Address) -> bool:
        key = (chain_id, payer)
        if key in presented.wallet_results:
            return presented.wallet_results[key]
        if sum(called == chain_id for called, _ in presented.wallet_results) >= CONTRACT_PAYERS_MAX:
            return False
        presented.wallet_results[key] = is_signer = await self._call_wallet(presented, chain_id, payer)
        if is_signer:
            if self._count_unclaimed(key) > UNCLAIMED_MAX:
                presented.charge.keep()
            self._wallets[key] = None
        else:
            self._wallets.pop(key, None)
        return is_signer

    async def _call_wallet(self, presented: PresentedProof, chain_id: ChainId, payer: Address) -> bool:
        signature = presented.proof.signature
        for digest in presented.digests(chain_id):
            key = (chain_id, payer)
            if key not in self._wallets or self._unclaimed.get(key, 0) >= UNCLAIMED_MAX:
                await presented.charge.take()
            if await self._verifier.is_signed_by(payer, digest, signature, (chain_id,)):
                return True
        return False


async def pass_on() -> None:
    """Does nothing before the chain is read."""


def recover_wallets(
    proof: Proof, request: BoundRequest, listing_id: ListingId, chain_ids: Iterable[ChainId]
) -> tuple[Address, ...]:
    """The wallets whose keys may have made the signature, on any of these networks. Calls no contract, so no contract wallet is
    among them. Of the two plain forms at most one recovers the signer."""
    digests = (digest for chain_id in chain_ids for digest in _digests(proof, request, listing_id, chain_id))
    return tuple(dict.fromkeys(_recover_all(proof, dict.fromkeys(digests))))


def _recover_all(proof: Proof, digests: Iterable[bytes]) -> Iterator[Address]:
    recovered = (recover(digest, proof.signature) for digest in digests)
    return (address for address in recovered if address is not None)


def _digests(
    proof: Proof, request: BoundRequest, listing_id: ListingId, chain_id: ChainId
) -> tuple[bytes, ...]:
    """The digests that the payer may have signed: one in the bound form, two spellings in the plain form."""
    if proof.binding is None:
        return transaction_digests(proof.tx_hash)
    return (
        paid_call_digest(
            chain_id=chain_id,
            gateway=request.gateway,
            api_id=listing_id,
            method=request.method,
            target=request.target,
            body_hash=request.body_hash,
            transaction=proof.tx_hash,
            valid_until=proof.binding.valid_until,
            nonce=proof.binding.nonce,
        ),
    )


KNOWN_PAYMENTS_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendablePayment:
    """A payment that its payer may spend on this listing. `is_first`: it has bought nothing yet, by the ledger and not by a cache."""

    payment: Payment
    asset: Asset
    is_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verification:
    presented: PresentedProof
    entry: CatalogEntry
    recorded: RecordedTransaction


class TransactionVerifier:
    """Verifies transactions; look-ups of one transaction share one request."""

    def __init__(
        self,
        *,
        payments: PaymentLedger,
        readiness: Readiness,
        chains: ChainReader,
        rules: Mapping[ChainId, ChainRules],
        signature_verifier: SignatureVerifier,
        quota: LookupQuota,
        limits: Limits,
        now_ms: Callable[[], int],
        find_older_terms: Callable[[CatalogEntry, int], Awaitable[CatalogEntry]],
        find_payee_heads: FindPayeeHeads,
        on_outcome: Callable[[str, str], None] = lambda network, outcome: None,
    ) -> None:
        """`on_outcome` receives the outcome of each look-up: the network, and `accepted` or the code."""
        self._payments = payments
        self._readiness = readiness
        self._chains = chains
        self._rules = rules
        self._quota = quota
        self._limits = limits
        self._now_ms = now_ms
        self._find_older_terms = find_older_terms
        self._find_payee_heads = find_payee_heads
        self._on_outcome = on_outcome
        self._signer_check = SignerCheck(signature_verifier)
        self.lookup = TransactionLookup(chains)
        # Only payments that have bought something: the ledger decides whether a call is the first of its payment.
        self._known: BoundedDict[TxHash, tuple[SpendablePayment, ...]] = BoundedDict(
            entries_max=KNOWN_PAYMENTS_MAX
        )

    async def find_spendable(
        self,
        proof: Proof,
        entry: CatalogEntry,
        request: BoundRequest,
        *,
        on_chain: Callable[[], Awaitable[None]] = pass_on,
    ) -> tuple[SpendablePayment, ...] | Problem:
        """The payments of the transaction that this caller may spend on this listing, or the problem. `on_chain` is called before the chain is read
        for the first presentation of a transaction; its Refusal is the problem."""
        remembered = await self._list_counting(self._known.get(proof.tx_hash, ()), proof, entry)
        if found := match_keys(remembered, proof, request, entry.listing.id):
            return found  # the usual case: no contract and no chain is called, so no look-up can be charged
        most_likely = proof.chain_id or next(iter(entry.versions[0].networks), ChainId(0))
        presented = PresentedProof(proof, request, entry.listing.id, chain_id=most_likely, quota=self._quota)
        try:
            outcome = await self._find_spendable(presented, entry, remembered, on_chain)
        except (ChainUnavailable, StorageUnavailable):
            presented.charge.count_unresolved()
            raise
        if not isinstance(outcome, Problem):
            presented.charge.give_back()
        return outcome

    def is_known(self, tx_hash: TxHash, payments: Sequence[SpendablePayment]) -> bool:
        """Whether the cache still holds these very objects for the transaction."""
        known = set(map(id, self._known.get(tx_hash, ())))
        return bool(payments) and known.issuperset(map(id, payments))

    async def _find_spendable(
        self,
        presented: PresentedProof,
        entry: CatalogEntry,
        remembered: Sequence[SpendablePayment],
        on_chain: Callable[[], Awaitable[None]],
    ) -> tuple[SpendablePayment, ...] | Problem:
        proof = presented.proof
        try:
            if found := await self._match_wallets(remembered, presented):
                return found
            recorded = await self._payments.find_transaction(proof.tx_hash)
            if found := await self._find_known(recorded.payments, presented, entry):
                return found
            verification = _Verification(presented=presented, entry=entry, recorded=recorded)
            await on_chain()
            return await self._check_network(await self._look_up(verification), proof, entry)
        except Refusal as refusal:
            return refusal.problem

    async def find_key_wallets(
        self, proof: Proof, entry: CatalogEntry, signers: Sequence[Address]
    ) -> tuple[Address, ...]:
        """The signers whose idempotency keys the signature opens. Reads no chain.

        A bound signature covers this request. A plain signature never changes and may come from a log, so it opens no more than it
        can buy: it needs a payment of its wallet that counts for this listing and whose plain form has not ended."""
        if proof.binding is not None or not signers:
            return tuple(signers)
        recorded = await self._payments.find_payments(proof.tx_hash)
        key_wallets = [
            payment.payer
            for payment in recorded
            if payment.payer in signers
            and not payment.is_plain_ended
            and proof.chain_id in (None, payment.chain_id)
            and await self._is_credit_here(payment, entry)
        ]
        return tuple(dict.fromkeys(key_wallets))

    def forget(self, tx_hash: TxHash) -> None:
        """Drops a transaction from the cache, because its payment could not be spent: the next call reads the ledger."""
        self._known.pop(tx_hash, None)

    def forget_payer(self, payer: Address) -> None:
        """Drops all payments of a wallet from the cache: one of them has left the chain, so the wallet may be in debt."""
        for tx_hash, remembered in list(self._known.items()):
            if any(one.payment.payer == payer for one in remembered):
                del self._known[tx_hash]

    def mark_spent(self, payment: Payment) -> None:
        """Records that a payment has bought something: the cache drops it last."""
        self._signer_check.mark_spent(payment.chain_id, payment.payer)
        if payment.tx_hash in self._known:
            self._known.move_to_end(payment.tx_hash)

    # ---- Known payments: no chain is read, except a contract wallet for its own signature.

    async def _find_known(
        self, recorded: tuple[Payment, ...], presented: PresentedProof, entry: CatalogEntry
    ) -> tuple[SpendablePayment, ...]:
        tx_hash = presented.proof.tx_hash
        spendables = self._to_spendable(recorded)
        found = await self._match(spendables, presented, entry)
        if found and all(one.payment.taken_units > 0 for one in found):
            self._known[tx_hash] = tuple(
                replace(one, is_first=False) if one.is_first else one for one in spendables
            )
        return found

    async def _match(
        self, spendables: Sequence[SpendablePayment], presented: PresentedProof, entry: CatalogEntry
    ) -> tuple[SpendablePayment, ...]:
        proof = presented.proof
        counting = await self._list_counting(spendables, proof, entry)
        mine = match_keys(counting, proof, presented.request, presented.listing_id)
        return mine or await self._match_wallets(counting, presented)

    async def _list_counting(
        self, spendables: Sequence[SpendablePayment], proof: Proof, entry: CatalogEntry
    ) -> list[SpendablePayment]:
        """The payments that count for this listing. A payment that is gone does not: its transaction is verified again."""
        return [
            one
            for one in spendables
            if one.payment.state is not PaymentState.GONE
            and proof.chain_id in (None, one.payment.chain_id)
            and await self._is_credit_here(one.payment, entry)
        ]

    async def _match_wallets(
        self, spendables: Sequence[SpendablePayment], presented: PresentedProof
    ) -> tuple[SpendablePayment, ...]:
        for chain_id in dict.fromkeys(one.payment.chain_id for one in spendables):
            here = [one for one in spendables if one.payment.chain_id == chain_id]
            signers = await self._signer_check.find_signers(
                presented, chain_id, [one.payment.payer for one in here]
            )
            if signers:
                return tuple(one for one in here if one.payment.payer in signers)
        return ()

    async def _is_credit_here(self, payment: Payment, entry: CatalogEntry) -> bool:
        if payment.is_refund:
            return False
        rules = self._rules.get(payment.chain_id)
        if rules is None or find_asset(self._rules, payment.chain_id, payment.asset) is None:
            return False
        if not any(rules.kind == self._rules[c].kind for c in entry.versions[0].networks if c in self._rules):
            return False  # money of a test network never buys calls that are sold on a main network
        if self._counts(payment, entry):
            return True
        older = await self._load_older_terms(entry, payment.block_time)
        return older is not entry and self._counts(payment, older)

    async def _check_network(
        self, outcome: tuple[SpendablePayment, ...] | Problem, proof: Proof, entry: CatalogEntry
    ) -> tuple[SpendablePayment, ...] | Problem:
        """The refusal where the ledger has the payment on another network than the request names: it must not request another payment."""
        if (
            not isinstance(outcome, Problem)
            or outcome.code is not Code.PAYMENT_VERIFICATION_FAILED
            or proof.chain_id is None
        ):
            return outcome
        for payment in await self._payments.find_payments(proof.tx_hash):
            if payment.state is not PaymentState.GONE and await self._is_credit_here(payment, entry):
                return other_network(format_network(payment.chain_id))
        return outcome

    def _counts(self, payment: Payment, entry: CatalogEntry) -> bool:
        return does_credit_count(
            entry.versions,
            payee=payment.payee,
            chain_id=payment.chain_id,
            block_time_s=payment.block_time,
            limits=self._limits,
        )

    async def _load_older_terms(self, entry: CatalogEntry, block_time_s: int) -> CatalogEntry:
        """The catalog entry with all versions that count for a payment of that time: an entry in memory has no old versions."""
        moment_s = block_time_s - self._limits.payee_memory_s
        if moment_s >= self._now_ms() // 1000 - TERMS_RETENTION_S:
            return entry
        return await self._find_older_terms(entry, moment_s * 1000)

    def _to_spendable(self, payments: Iterable[Payment]) -> tuple[SpendablePayment, ...]:
        """Spendable payments. A refund buys nothing, and so does a payment in an asset that is no longer configured: both are left out."""
        return tuple(
            SpendablePayment(payment=payment, asset=asset, is_first=payment.taken_units == 0)
            for payment in payments
            if not payment.is_refund
            and (asset := find_asset(self._rules, payment.chain_id, payment.asset)) is not None
        )

    # ---- First presentation: the chain is read once.

    async def _look_up(self, verification: "_Verification") -> tuple[SpendablePayment, ...] | Problem:
        proof = verification.presented.proof
        chain_ids = self._candidate_chains(proof, verification.entry)
        if not chain_ids:
            return refuse_transaction(TransactionReason.WRONG_CHAIN)
        results = await self._verify_on_all(chain_ids, verification)
        accepted = next((result for result in results if isinstance(result, Accepted)), None)
        if accepted is not None:
            spendable = await self._record(accepted, verification.recorded)
            if not spendable:
                return refuse_transaction(TransactionReason.REFUND)
            self._on_outcome(spendable[0].asset.network, "accepted")
            return spendable
        problem = _combine_results(proof.tx_hash, results)
        self._on_outcome("none", problem.code.value)
        return problem

    def _candidate_chains(self, proof: Proof, entry: CatalogEntry) -> tuple[ChainId, ...]:
        """The networks of all terms that may still count, in the listing's order."""
        configured = find_chains(entry.versions, self._rules)
        wanted = configured if proof.chain_id is None else tuple(c for c in configured if c == proof.chain_id)
        named = {chain_id for version in entry.versions for chain_id in version.networks}
        away = sorted((named if proof.chain_id is None else named & {proof.chain_id}) - set(self._rules))
        if not wanted and away:
            raise ChainUnavailable(f"no node of {format_network(away[0])} is configured")
        return wanted

    async def _verify_on_all(
        self, chain_ids: Sequence[ChainId], verification: "_Verification"
    ) -> list["_NetworkResult"]:
        """Verifies on all networks at once. The first accepted result ends the others; otherwise every network is read."""
        if len(chain_ids) == 1:
            return [await self._verify_on(chain_ids[0], verification)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._verify_on(c, verification)) for c in chain_ids]
                for next_result in asyncio.as_completed(tasks):
                    if isinstance(result := await next_result, Accepted):
                        for task in tasks:
                            task.cancel()
                        return [result]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _verify_on(self, chain_id: ChainId, verification: "_Verification") -> "_NetworkResult":
        """Returns a failure as a result, because another network may have the payment."""
        presented = verification.presented
        try:
            return await self.read_verified(
                chain_id,
                presented.proof.tx_hash,
                presented.charge,
                partial(self._apply_rules, verification=verification),
            )
        except TollwayError as exc:
            return exc

    async def read_verified(
        self, chain_id: ChainId, tx_hash: TxHash, charge: LookupCharge, verify: VerifyFacts
    ) -> VerificationResult | NotMined:
        """The result of `verify` for the facts of one network. The value is known only after one node has responded; then more nodes may have to agree.
        Raises `ChainUnavailable`, and `Refusal` (`rate_limited`)."""

        async def verify_by(quorum: Quorum) -> VerificationResult | NotMined:
            facts = await self.lookup.fetch(chain_id, tx_hash, charge, quorum=quorum)
            return facts if isinstance(facts, NotMined) else await verify(facts)

        quorum = self._rules[chain_id].first_quorum
        result = await verify_by(quorum)
        if quorum is Quorum.ONE and not _is_one_enough(result, self._rules[chain_id]):
            quorum = Quorum.AGREED
            result = await verify_by(quorum)
        return _keep_unfinal(result) if quorum is Quorum.ONE else result

    async def _apply_rules(self, facts: ChainFacts, *, verification: "_Verification") -> VerificationResult:
        now_ms = self._now_ms()
        entry = await self._load_older_terms(verification.entry, facts.block_time)
        held_before_ms = verification.recorded.held_before_ms
        rules, block_time_s = self._rules[facts.chain_id], facts.block_time
        given = VerificationInput(
            rules=rules,
            assets=find_assets(entry.versions, rules, block_time_s=block_time_s, limits=self._limits),
            payees=find_payees(entry.versions, block_time_s=block_time_s, limits=self._limits),
            now_s=now_ms // 1000,
            age_credit_s=await self.read_age_credit_s(facts, now_ms),
            is_admitted=verification.recorded.is_admitted,
            held_before_s=None if held_before_ms is None else held_before_ms // 1000,
        )
        movements = find_movements(facts, given)
        if any(is_before(facts, movement.payee) for movement in movements):  # read only when it decides
            heads = await self._find_payee_heads(entry, facts.chain_id)
            given = replace(given, payees=begin_by_heads(given.payees, heads))
        payers = [movement.payer for movement in movements]
        signers = await self._signer_check.find_signers(verification.presented, facts.chain_id, payers)
        result = verify_transaction(facts, given, signers, limits=self._limits)
        return await self._name_internal_transfer(result, facts, given)

    async def read_age_credit_s(self, facts: ChainFacts, now_ms: int) -> int:
        """The time in which no gateway was ready does not count as age. It is read only when it decides."""
        block_ms = facts.block_time * 1000
        if now_ms - block_ms <= self._limits.payment_age_s * 1000:
            return 0
        return await self._readiness.downtime_ms(since_ms=block_ms, now_ms=now_ms) // 1000

    async def _name_internal_transfer(
        self, result: VerificationResult, facts: ChainFacts, given: VerificationInput
    ) -> VerificationResult:
        """A transfer through a contract has its own reason: the value may have reached the payee, but no log proves it."""
        if (
            result != Refused(reason=TransactionReason.WRONG_RECIPIENT)
            or facts.value == 0
            or facts.recipient is None
            or all(asset.token is not None for asset in given.assets)
        ):
            return result
        code_size = await self._chains.fetch_code_size(facts.chain_id, facts.recipient)
        return Refused(reason=TransactionReason.INTERNAL_TRANSFER) if code_size else result

    async def _record(
        self, accepted: Accepted, based_on: RecordedTransaction
    ) -> tuple[SpendablePayment, ...]:
        recorded = await self._payments.record_payments(
            accepted.payments, now_ms=self._now_ms(), based_on=based_on
        )
        return self._to_spendable(recorded)


def match_keys(
    spendables: Sequence[SpendablePayment], proof: Proof, request: BoundRequest, listing_id: ListingId
) -> tuple[SpendablePayment, ...]:
    """The payments whose payer's key made the signature. Calls no contract, so no payment of a contract wallet is among them."""
    signers: dict[ChainId, frozenset[Address]] = {}
    for chain_id in dict.fromkeys(one.payment.chain_id for one in spendables):
        digests = _digests(proof, request, listing_id, chain_id)
        signers[chain_id] = frozenset(_recover_all(proof, digests))
    return tuple(one for one in spendables if one.payment.payer in signers[one.payment.chain_id])


def _is_one_enough(result: VerificationResult | NotMined, rules: ChainRules) -> bool:
    """Whether one node's response is enough: for a pending payment always, for a refusal never, because the payment may be large."""
    match result:
        case Accepted(payments=payments):
            worth = {
                asset: sum(payment.value_units for payment in payments if payment.asset == asset.key)
                for asset in rules.assets
            }
            return all(
                rules.quorum_for(asset, units) is Quorum.ONE for asset, units in worth.items() if units
            )
        case NotMined() | Pending() | BlockInFuture():
            return True
        case _:
            return False


def _keep_unfinal(result: VerificationResult | NotMined) -> VerificationResult | NotMined:
    """A payment by one node's response is not final, also when that node reports it final: the watcher reads it again from other nodes."""
    if not isinstance(result, Accepted):
        return result
    return Accepted(payments=tuple(replace(payment, is_final=False) for payment in result.payments))


_NetworkResult = VerificationResult | NotMined | TollwayError

_URGENCY = (Pending, BlockInFuture, HeldByRestore, TooOld, BeforeListing, NotThePayer, Refused)
"""The order in which results are reported. A result that can still become a payment comes before a refusal with status 402."""


def _combine_results(tx_hash: TxHash, results: Sequence[_NetworkResult]) -> Problem:
    """The problem of all networks together. Raises the failure of a network: pending and refused need every network's result."""
    for result in results:
        if isinstance(result, TollwayError):
            raise result
    if any(isinstance(result, NotMined) and result.is_pending for result in results):
        return not_mined(tx_hash)
    for kind in _URGENCY:
        for result in results:
            if isinstance(result, kind):
                return explain_result(result)
    return not_mined(tx_hash)
