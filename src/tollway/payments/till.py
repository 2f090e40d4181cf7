"""The till: from a shown proof to a payment that may be spent, or to the reason why not.

Known payments are answered from the books; a transaction seen for the first time is looked up on its chain, judged
by the pure verdict, and recorded. Nothing here takes money: that is the claim, in the books.

It never asks a chain for a payment that the books already know, and never turns "I could not find out" into a
refusal: an unreachable chain is `ChainUnavailable`, a transaction not mined yet is pending.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tollway.chain.lookup_meter import LookupMeter
from tollway.chain.reader import ChainFacts, ChainReader, NotMined, Trust
from tollway.chain.rules import ChainRules
from tollway.errors import ChainUnavailable, Code, Problem, Refusal, StorageUnavailable, TollwayError
from tollway.identifiers import Address, ChainId, TxHash, format_network
from tollway.identity.signatures import SignatureJudge
from tollway.ledger.book import Book
from tollway.ledger.call import Payment, PaymentState, Recorded
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.lookups import Lookups
from tollway.payments.payers import Payers, Request, Showing
from tollway.payments.proof import Proof
from tollway.payments.reasons import explain, not_mined, other_network, refuse
from tollway.payments.terms import does_credit_count, find_assets, find_chains, find_payees
from tollway.payments.verdict import (
    Accepted,
    Ahead,
    HeldByRestore,
    NotThePayer,
    Pending,
    Question,
    Reason,
    Refused,
    TooOld,
    Verdict,
    find_movements,
    judge,
)
from tollway.registry.catalog import TERMS_MEMORY_S
from tollway.registry.listing import Shelf

KNOWN_PAYMENTS_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tender:
    """A payment that its payer may spend here. `is_first`: it has bought nothing yet, and that is not just remembered."""

    payment: Payment
    asset: Asset
    is_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What a chain is asked about: one showing, where it was shown, and what the books said before."""

    showing: Showing
    shelf: Shelf
    recorded: Recorded


class Till:
    """Safe to use from many tasks at once; look-ups of one transaction are a single flight."""

    def __init__(
        self,
        *,
        book: Book,
        chains: ChainReader,
        rules: Mapping[ChainId, ChainRules],
        judge_of_signatures: SignatureJudge,
        meter: LookupMeter,
        limits: Limits,
        now_ms: Callable[[], int],
        find_older_terms: Callable[[Shelf, int], Awaitable[Shelf]],
        note_shown: Callable[[str, str], None] = lambda network, outcome: None,
    ) -> None:
        """`note_shown` hears of each payment that a chain was asked about: the network, and `accepted` or the code."""
        self._book = book
        self._chains = chains
        self._rules = rules
        self._meter = meter
        self._limits = limits
        self._now_ms = now_ms
        self._find_older_terms = find_older_terms
        self._note_shown = note_shown
        self._payers = Payers(judge_of_signatures)
        self._lookups = Lookups(chains)
        # Only payments that have bought something: whether a payment is at its first call is read from the books.
        self._known: OrderedDict[TxHash, tuple[Payment, ...]] = OrderedDict()

    async def tender(self, proof: Proof, shelf: Shelf, request: Request) -> tuple[Tender, ...] | Problem:
        """The payments of the shown transaction that this caller may spend on this listing; or why none.

        Raises `ChainUnavailable` and `StorageUnavailable`.
        """
        likeliest = proof.chain_id or next(iter(shelf.versions[0].networks), ChainId(0))
        showing = Showing(proof, request, shelf.listing.id, chain_id=likeliest, meter=self._meter)
        try:
            found = await self._tender(proof, shelf, showing)
        except (ChainUnavailable, StorageUnavailable):
            showing.charge.note_unresolved()
            raise
        if not isinstance(found, Problem):
            showing.charge.give_back()
        return found

    async def _tender(self, proof: Proof, shelf: Shelf, showing: Showing) -> tuple[Tender, ...] | Problem:
        try:
            remembered = self._known.get(proof.tx_hash, ())
            if found := await self._match(remembered, showing, shelf, is_fresh=False):
                return found
            recorded = await self._book.find_recorded(proof.tx_hash)
            if found := await self._find_known(recorded.payments, showing, shelf):
                return found
            case = _Case(showing=showing, shelf=shelf, recorded=recorded)
            return await self._check_network(await self._look_up(case), proof, shelf)
        except Refusal as refusal:
            return refusal.problem

    async def find_openers(
        self, proof: Proof, shelf: Shelf, signers: Sequence[Address]
    ) -> tuple[Address, ...]:
        """Those of these wallets, who made the signature, whose idempotency keys it opens. A bound one is of this very
        request. A plain one is the same for ever and may have been read in a log, so it opens no more than it might
        buy: it takes a payment of its wallet's that counts here and whose plain form has not ended. Asks no chain."""
        if proof.binding is not None or not signers:
            return tuple(signers)
        recorded = await self._book.find_payments(proof.tx_hash)
        openers = [
            payment.payer
            for payment in recorded
            if payment.payer in signers
            and not payment.is_plain_ended
            and proof.chain_id in (None, payment.chain_id)
            and await self._is_credit_here(payment, shelf)
        ]
        return tuple(dict.fromkeys(openers))

    def forget(self, tx_hash: TxHash) -> None:
        """Read this transaction from the books again next time (its payment turned out unspendable)."""
        self._known.pop(tx_hash, None)

    def forget_payer(self, payer: Address) -> None:
        """The same for all payments of a wallet: one of them has left the chain, so it may be in debt."""
        for tx_hash, payments in list(self._known.items()):
            if any(payment.payer == payer for payment in payments):
                del self._known[tx_hash]

    def note_spent(self, payment: Payment) -> None:
        """A payment has bought something: of the remembered ones it is the last to be dropped."""
        self._payers.note_spent(payment.chain_id, payment.payer)
        if payment.tx_hash in self._known:
            self._known.move_to_end(payment.tx_hash)

    # ---- Known payments: no chain is asked, except a contract wallet for its own signature.

    async def _find_known(
        self, recorded: tuple[Payment, ...], showing: Showing, shelf: Shelf
    ) -> tuple[Tender, ...]:
        tx_hash = showing.proof.tx_hash
        found = await self._match(recorded, showing, shelf, is_fresh=True)
        if found and all(tender.payment.taken_units > 0 for tender in found):
            self._known[tx_hash] = recorded
            self._known.move_to_end(tx_hash)
            if len(self._known) > KNOWN_PAYMENTS_MAX:
                self._known.popitem(last=False)
        return found

    async def _match(
        self, payments: Sequence[Payment], showing: Showing, shelf: Shelf, *, is_fresh: bool
    ) -> tuple[Tender, ...]:
        """The given payments that count for this listing and whose payer signed.

        One that is gone is not known any more: it has to pass the verdict again.
        """
        counting = [
            payment
            for payment in payments
            if payment.state is not PaymentState.GONE
            and showing.proof.chain_id in (None, payment.chain_id)
            and await self._is_credit_here(payment, shelf)
        ]
        mine = [payment for payment in counting if payment.payer in showing.keys(payment.chain_id)]
        if not mine:
            mine = await self._match_wallets(counting, showing)
        return tuple(
            Tender(
                payment=payment,
                asset=self._asset_of(payment),
                is_first=is_fresh and payment.taken_units == 0,
            )
            for payment in mine
        )

    async def _match_wallets(self, payments: Sequence[Payment], showing: Showing) -> list[Payment]:
        for chain_id in dict.fromkeys(payment.chain_id for payment in payments):
            here = [payment for payment in payments if payment.chain_id == chain_id]
            signers = await self._payers.find_signers(showing, chain_id, [payment.payer for payment in here])
            if signers:
                return [payment for payment in here if payment.payer in signers]
        return []

    async def _is_credit_here(self, payment: Payment, shelf: Shelf) -> bool:
        rules = self._rules.get(payment.chain_id)
        if rules is None or all(asset.key != payment.asset for asset in rules.assets):
            return False
        if not any(rules.kind == self._rules[c].kind for c in shelf.versions[0].networks if c in self._rules):
            return False  # play money never buys what is sold for real money
        if self._counts(payment, shelf):
            return True
        older = await self._reach_back(shelf, payment.block_time)
        return older is not shelf and self._counts(payment, older)

    async def _check_network(
        self, outcome: tuple[Tender, ...] | Problem, proof: Proof, shelf: Shelf
    ) -> tuple[Tender, ...] | Problem:
        """Where the named network says that nothing was paid, but the books know the payment on another one: the
        name is wrong, and asking for money would be too."""
        if (
            not isinstance(outcome, Problem)
            or outcome.code is not Code.PAYMENT_VERIFICATION_FAILED
            or proof.chain_id is None
        ):
            return outcome
        for payment in await self._book.find_payments(proof.tx_hash):
            if payment.state is not PaymentState.GONE and await self._is_credit_here(payment, shelf):
                return other_network(format_network(payment.chain_id))
        return outcome

    def _counts(self, payment: Payment, shelf: Shelf) -> bool:
        return does_credit_count(
            shelf.versions,
            payee=payment.payee,
            chain_id=payment.chain_id,
            block_time_s=payment.block_time,
            limits=self._limits,
        )

    async def _reach_back(self, shelf: Shelf, block_time_s: int) -> Shelf:
        """The shelf with all versions that count for a payment of that time: a shelf forgets old ones."""
        moment_s = block_time_s - self._limits.payee_memory_s
        if moment_s >= self._now_ms() // 1000 - TERMS_MEMORY_S:
            return shelf
        return await self._find_older_terms(shelf, moment_s * 1000)

    def _asset_of(self, payment: Payment) -> Asset:
        return next(asset for asset in self._rules[payment.chain_id].assets if asset.key == payment.asset)

    # ---- First presentation: the chain is asked once.

    async def _look_up(self, case: "_Case") -> tuple[Tender, ...] | Problem:
        proof = case.showing.proof
        chain_ids = self._candidate_chains(proof, case.shelf)
        if not chain_ids:
            return refuse(Reason.WRONG_CHAIN)
        answers = await self._ask_all(chain_ids, case)
        accepted = next((answer for answer in answers if isinstance(answer, Accepted)), None)
        if accepted is not None:
            tenders = await self._record(accepted, case.recorded)
            self._note_shown(tenders[0].asset.network, "accepted")
            return tenders
        problem = _conclude(proof.tx_hash, answers)
        self._note_shown("none", problem.code.value)
        return problem

    def _candidate_chains(self, proof: Proof, shelf: Shelf) -> tuple[ChainId, ...]:
        """The networks of all terms that may still count, the listing's own order first."""
        configured = find_chains(shelf.versions, self._rules)
        wanted = configured if proof.chain_id is None else tuple(c for c in configured if c == proof.chain_id)
        named = {chain_id for version in shelf.versions for chain_id in version.networks}
        away = sorted((named if proof.chain_id is None else named & {proof.chain_id}) - set(self._rules))
        if not wanted and away:
            raise ChainUnavailable(f"no node of {format_network(away[0])} is configured")
        return wanted

    async def _ask_all(self, chain_ids: Sequence[ChainId], case: "_Case") -> list["_Answer"]:
        """All networks at once. A match decides at once; otherwise everybody is heard."""
        if len(chain_ids) == 1:
            return [await self._judge_on(chain_ids[0], case)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._judge_on(c, case)) for c in chain_ids]
                for next_answer in asyncio.as_completed(tasks):
                    if isinstance(answer := await next_answer, Accepted):
                        for task in tasks:
                            task.cancel()
                        return [answer]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _judge_on(self, chain_id: ChainId, case: "_Case") -> "_Answer":
        """Its failures are answers too: another network may know better. What it is worth is known only once a node was
        asked, and then more nodes may have to say the same."""
        trust = self._rules[chain_id].first_trust
        try:
            answer = await self._judge_by(trust, chain_id, case)
            if trust is Trust.ONE and not _is_one_enough(answer, self._rules[chain_id]):
                trust = Trust.AGREED
                answer = await self._judge_by(trust, chain_id, case)
            return _leave_open(answer) if trust is Trust.ONE else answer
        except TollwayError as exc:
            return exc

    async def _judge_by(self, trust: Trust, chain_id: ChainId, case: "_Case") -> "Verdict | NotMined":
        showing = case.showing
        facts = await self._lookups.fetch(chain_id, showing.proof.tx_hash, showing.charge, trust=trust)
        return facts if isinstance(facts, NotMined) else await self._judge(facts, case)

    async def _judge(self, facts: ChainFacts, case: "_Case") -> Verdict:
        now_ms = self._now_ms()
        shelf = await self._reach_back(case.shelf, facts.block_time)
        held_before_ms = case.recorded.held_before_ms
        rules, block_time_s = self._rules[facts.chain_id], facts.block_time
        question = Question(
            rules=rules,
            assets=find_assets(shelf.versions, rules, block_time_s=block_time_s, limits=self._limits),
            payees=find_payees(shelf.versions, block_time_s=block_time_s, limits=self._limits),
            now_s=now_ms // 1000,
            age_credit_s=await self._age_credit_s(facts, now_ms),
            is_admitted=case.recorded.is_admitted,
            held_before_s=None if held_before_ms is None else held_before_ms // 1000,
        )
        payers = [movement.payer for movement in find_movements(facts, question)]
        signers = await self._payers.find_signers(case.showing, facts.chain_id, payers)
        verdict = judge(facts, question, signers, limits=self._limits)
        return await self._name_internal_transfer(verdict, facts, question)

    async def _age_credit_s(self, facts: ChainFacts, now_ms: int) -> int:
        """The clock of a payment's age stands still while no gateway was ready; asked only when it decides."""
        block_ms = facts.block_time * 1000
        if now_ms - block_ms <= self._limits.payment_age_s * 1000:
            return 0
        return await self._book.downtime_ms(since_ms=block_ms, now_ms=now_ms) // 1000

    async def _name_internal_transfer(
        self, verdict: Verdict, facts: ChainFacts, question: Question
    ) -> Verdict:
        """Value sent to a contract may have reached the payee inside it; no log proves that, so it has its own reason."""
        if (
            verdict != Refused(reason=Reason.WRONG_RECIPIENT)
            or facts.value == 0
            or facts.recipient is None
            or all(asset.token is not None for asset in question.assets)
        ):
            return verdict
        code_size = await self._chains.fetch_code_size(facts.chain_id, facts.recipient)
        return Refused(reason=Reason.INTERNAL_TRANSFER) if code_size else verdict

    async def _record(self, accepted: Accepted, judged_by: Recorded) -> tuple[Tender, ...]:
        recorded = await self._book.record_payments(
            accepted.payments, now_ms=self._now_ms(), judged_by=judged_by
        )
        return tuple(
            Tender(
                payment=payment,
                asset=self._asset_of(payment),
                is_first=payment.taken_units == 0,
            )
            for payment in recorded
        )


def _is_one_enough(answer: Verdict | NotMined, rules: ChainRules) -> bool:
    """Whether one node's word may stand. What only asks for patience may; a refusal never: for all we know it is about a
    large payment."""
    match answer:
        case Accepted(payments=payments):
            worth = {
                asset: sum(payment.value_units for payment in payments if payment.asset == asset.key)
                for asset in rules.assets
            }
            return all(rules.trust_for(asset, units) is Trust.ONE for asset, units in worth.items() if units)
        case NotMined() | Pending() | Ahead():
            return True
        case _:
            return False


def _leave_open(answer: Verdict | NotMined) -> Verdict | NotMined:
    """What rests on one node's word can still leave its chain, whatever that node says: so others are asked about it."""
    if not isinstance(answer, Accepted):
        return answer
    return Accepted(payments=tuple(replace(payment, is_final=False) for payment in answer.payments))


_Answer = Verdict | NotMined | TollwayError

_URGENCY = (Pending, Ahead, HeldByRestore, TooOld, NotThePayer, Refused)
"""What may still become a payment is told before what never will: the law about 402."""


def _conclude(tx_hash: TxHash, answers: Sequence[_Answer]) -> Problem:
    """*Pending* and *refused* only when every network has answered. Raises what kept one from answering."""
    for answer in answers:
        if isinstance(answer, TollwayError):
            raise answer
    if any(isinstance(answer, NotMined) and answer.is_pending for answer in answers):
        return not_mined(tx_hash)
    for kind in _URGENCY:
        for answer in answers:
            if isinstance(answer, kind):
                return explain(answer)
    return not_mined(tx_hash)
