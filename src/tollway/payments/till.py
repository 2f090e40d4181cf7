"""The till: from a shown proof to a payment that may be spent, or to the reason why not.

Known payments are answered from the books; a transaction seen for the first time is looked up on its chain, judged
by the pure verdict, and recorded. Nothing here takes money: that is the claim, in the books.

It never asks a chain for a payment that the books already know, and never turns "I could not find out" into a
refusal: an unreachable chain is `ChainUnavailable`, a transaction not mined yet is pending.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from tollway.chain.reader import ChainFacts, ChainReader, NotMined
from tollway.chain.rules import ChainRules
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.identifiers import Address, ChainId, TxHash
from tollway.identity.signatures import SignatureJudge, paid_call_digest, recover, transaction_digests
from tollway.ledger.book import Book
from tollway.ledger.call import Payment
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.proof import Proof
from tollway.payments.terms import find_assets, find_payees
from tollway.payments.verdict import (
    Accepted,
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
from tollway.registry.listing import Shelf

CONTRACT_PAYERS_MAX = 4
KNOWN_PAYMENTS_MAX = 50_000
PENDING_RETRY_S = 2
CHAIN_RETRY_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The parts of a request that a bound signature covers. `body_hash` is keccak-256."""

    gateway: str
    method: str
    target: bytes
    body_hash: bytes
    client_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tender:
    """A payment that its payer may spend here.

    `is_first`: it has bought nothing yet. `is_fresh`: read from the books or the chain just now, not remembered.
    """

    payment: Payment
    asset: Asset
    is_first: bool
    is_fresh: bool


class LookupMeter(Protocol):
    """Counts chain look-ups. Answers None when one more is allowed, else the seconds to wait."""

    def charge(self, *, client_address: str, signer: str) -> int | None: ...


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
    ) -> None:
        self._book = book
        self._chains = chains
        self._rules = rules
        self._signatures = judge_of_signatures
        self._meter = meter
        self._limits = limits
        self._now_ms = now_ms
        self._find_older_terms = find_older_terms
        self._known: OrderedDict[TxHash, tuple[Payment, ...]] = OrderedDict()
        self._flights: dict[tuple[ChainId, TxHash], asyncio.Future[ChainFacts | NotMined]] = {}

    async def tender(self, proof: Proof, shelf: Shelf, request: Request) -> tuple[Tender, ...] | Problem:
        """The payments of the shown transaction that this caller may spend on this listing, best first; or why none.

        Raises `ChainUnavailable` and `StorageUnavailable`.
        """
        chain_ids = self._candidate_chains(proof, shelf)
        if not chain_ids:
            return _refused(Reason.WRONG_CHAIN)
        known = await self._find_known(proof, shelf, request, chain_ids)
        if known:
            return known
        return await self._look_up(proof, shelf, request, chain_ids)

    def forget(self, tx_hash: TxHash) -> None:
        """Read this transaction from the books again next time (its payment turned out unspendable)."""
        self._known.pop(tx_hash, None)

    def forget_payer(self, payer: Address) -> None:
        """The same for all payments of a wallet: one of them has left the chain, so it may be in debt."""
        for tx_hash, payments in list(self._known.items()):
            if any(payment.payer == payer for payment in payments):
                del self._known[tx_hash]

    def note_spent(self, payment: Payment) -> None:
        """A payment has bought something: its later calls need not be asked from the books whether they are first."""
        kept = self._known.get(payment.tx_hash, ())
        others = tuple(p for p in kept if p.id != payment.id)
        self._known[payment.tx_hash] = (payment, *others)
        self._known.move_to_end(payment.tx_hash)
        if len(self._known) > KNOWN_PAYMENTS_MAX:
            self._known.popitem(last=False)

    def _candidate_chains(self, proof: Proof, shelf: Shelf) -> tuple[ChainId, ...]:
        """The networks of all terms that may still count, the listing's own order first."""
        networks = dict.fromkeys(chain for version in shelf.versions for chain in version.networks)
        configured = tuple(chain for chain in networks if chain in self._rules)
        if proof.chain_id is None:
            return configured
        return (proof.chain_id,) if proof.chain_id in configured else ()

    # ---- Known payments: no chain is asked.

    async def _find_known(
        self, proof: Proof, shelf: Shelf, request: Request, chain_ids: tuple[ChainId, ...]
    ) -> tuple[Tender, ...]:
        cached = self._known.get(proof.tx_hash, ())
        found = await self._match(cached, proof, shelf, request, chain_ids, is_fresh=False)
        if found:
            return found
        recorded = await self._book.find_payments(proof.tx_hash)
        return await self._match(recorded, proof, shelf, request, chain_ids, is_fresh=True)

    async def _match(
        self,
        payments: Sequence[Payment],
        proof: Proof,
        shelf: Shelf,
        request: Request,
        chain_ids: tuple[ChainId, ...],
        *,
        is_fresh: bool,
    ) -> tuple[Tender, ...]:
        """The given payments that count for this listing and whose payer signed."""
        tenders: list[Tender] = []
        for payment in payments:
            asset = self._asset_of(payment, shelf) if payment.chain_id in chain_ids else None
            if asset is None or not self._is_payee(payment, shelf):
                continue
            if await self._is_signer(payment.payer, proof, shelf, request, payment.chain_id):
                tenders.append(
                    Tender(
                        payment=payment,
                        asset=asset,
                        is_first=is_fresh and payment.taken_units == 0,
                        is_fresh=is_fresh,
                    )
                )
        return tuple(tenders)

    def _asset_of(self, payment: Payment, shelf: Shelf) -> Asset | None:
        rules = self._rules[payment.chain_id]
        accepted = find_assets(shelf.versions, rules, now_ms=self._now_ms(), limits=self._limits)
        return next((asset for asset in accepted if asset.key == payment.asset), None)

    def _is_payee(self, payment: Payment, shelf: Shelf) -> bool:
        payees = find_payees(shelf.versions, block_time_s=payment.block_time, limits=self._limits)
        slack_s = self._limits.payee_slack_s
        return any(
            payee.address == payment.payee and payment.block_time >= payee.since_s - slack_s
            for payee in payees
        )

    async def _is_signer(
        self, payer: Address, proof: Proof, shelf: Shelf, request: Request, chain_id: ChainId
    ) -> bool:
        digests = _digests(proof, shelf, request, chain_id)
        if any(recover(digest, proof.signature) == payer for digest in digests):
            return True
        return await self._is_contract_signer(payer, digests, proof, chain_id)

    async def _is_contract_signer(
        self, payer: Address, digests: tuple[bytes, ...], proof: Proof, chain_id: ChainId
    ) -> bool:
        for digest in digests:
            if await self._signatures.is_signed_by(payer, digest, proof.signature, (chain_id,)):
                return True
        return False

    # ---- First presentation: the chain is asked once.

    async def _look_up(
        self, proof: Proof, shelf: Shelf, request: Request, chain_ids: tuple[ChainId, ...]
    ) -> tuple[Tender, ...] | Problem:
        signer = recover(_digests(proof, shelf, request, chain_ids[0])[0], proof.signature)
        wait_s = self._meter.charge(client_address=request.client_address, signer=str(signer))
        if wait_s is not None:
            return Problem(
                code=Code.RATE_LIMITED,
                detail="Too many transactions were looked up on the chain for this address or wallet.",
                retry_after_s=wait_s,
                payment_state="none",
            )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._judge_on(chain_id, proof, shelf, request)) for chain_id in chain_ids
            ]
        return await self._conclude(proof, shelf, [task.result() for task in tasks])

    async def _judge_on(
        self, chain_id: ChainId, proof: Proof, shelf: Shelf, request: Request
    ) -> "Verdict | NotMined | ChainUnavailable":
        try:
            facts = await self._fetch_once(chain_id, proof.tx_hash)
            if isinstance(facts, NotMined):
                return facts
            return await self._judge(facts, proof, shelf, request)
        except ChainUnavailable as exc:
            return exc

    async def _fetch_once(self, chain_id: ChainId, tx_hash: TxHash) -> ChainFacts | NotMined:
        """Single flight: many callers of one hash wait for one look-up."""
        key = (chain_id, tx_hash)
        flight = self._flights.get(key)
        if flight is not None:
            return await asyncio.shield(flight)
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        try:
            facts = await self._chains.fetch_facts(chain_id, tx_hash)
        except BaseException as exc:
            failure = exc if isinstance(exc, ChainUnavailable) else ChainUnavailable("The look-up broke off.")
            flight.set_exception(failure)
            flight.exception()  # seen here: nobody else may be waiting
            raise
        finally:
            self._flights.pop(key, None)
        flight.set_result(facts)
        return facts

    async def _judge(self, facts: ChainFacts, proof: Proof, shelf: Shelf, request: Request) -> Verdict:
        rules = self._rules[facts.chain_id]
        now_ms = self._now_ms()
        is_admitted = await self._book.is_admitted(proof.tx_hash)
        if is_admitted:  # a payment of long ago is judged by the terms of long ago
            moment_ms = (facts.block_time - self._limits.payee_memory_s) * 1000
            shelf = await self._find_older_terms(shelf, moment_ms)
        held_before_ms = await self._book.restored_before_ms()
        question = Question(
            rules=rules,
            assets=find_assets(
                shelf.versions,
                rules,
                now_ms=facts.block_time * 1000 if is_admitted else now_ms,
                limits=self._limits,
            ),
            payees=find_payees(shelf.versions, block_time_s=facts.block_time, limits=self._limits),
            now_s=now_ms // 1000,
            age_credit_s=await self._age_credit_s(facts, now_ms),
            is_admitted=is_admitted,
            held_before_s=None if held_before_ms is None else held_before_ms // 1000,
        )
        signers = await self._find_signers(facts, question, proof, shelf, request)
        verdict = judge(facts, question, signers, limits=self._limits)
        return await self._name_internal_transfer(verdict, facts, question)

    async def _age_credit_s(self, facts: ChainFacts, now_ms: int) -> int:
        """The clock of a payment's age stands still while no gateway was ready; asked only when it decides."""
        block_ms = facts.block_time * 1000
        if now_ms - block_ms <= self._limits.payment_age_s * 1000:
            return 0
        return await self._book.downtime_ms(since_ms=block_ms, now_ms=now_ms) // 1000

    async def _find_signers(
        self, facts: ChainFacts, question: Question, proof: Proof, shelf: Shelf, request: Request
    ) -> list[Address]:
        digests = _digests(proof, shelf, request, facts.chain_id)
        signers = [address for digest in digests if (address := recover(digest, proof.signature)) is not None]
        payers = list(dict.fromkeys(movement.payer for movement in find_movements(facts, question)))
        if any(payer in signers for payer in payers):
            return signers
        for payer in payers[:CONTRACT_PAYERS_MAX]:
            if await self._is_contract_signer(payer, digests, proof, facts.chain_id):
                return [payer]
        return signers

    async def _name_internal_transfer(
        self, verdict: Verdict, facts: ChainFacts, question: Question
    ) -> Verdict:
        """Value sent to a contract may have reached the payee inside it; no log proves that, so it has its own reason."""
        is_candidate = (
            isinstance(verdict, Refused)
            and verdict.reason is Reason.WRONG_RECIPIENT
            and facts.value > 0
            and facts.recipient is not None
            and any(asset.token is None for asset in question.assets)
        )
        if not is_candidate or facts.recipient is None:
            return verdict
        code_size = await self._chains.fetch_code_size(facts.chain_id, facts.recipient)
        return Refused(reason=Reason.INTERNAL_TRANSFER) if code_size else verdict

    async def _conclude(
        self, proof: Proof, shelf: Shelf, answers: "Sequence[Verdict | NotMined | ChainUnavailable]"
    ) -> tuple[Tender, ...] | Problem:
        """A match decides; *pending* and *refused* only when every network has answered."""
        accepted = next((a for a in answers if isinstance(a, Accepted)), None)
        if accepted is not None:
            return await self._record(accepted, shelf)
        away = next((a for a in answers if isinstance(a, ChainUnavailable)), None)
        if away is not None:
            raise away
        mined = [a for a in answers if not isinstance(a, NotMined)]
        if not mined:
            return Problem(
                code=Code.PAYMENT_PENDING,
                detail=f"Transaction {proof.tx_hash} is not mined yet on any network of this listing.",
                reason="not_mined",
                retry_after_s=PENDING_RETRY_S,
                payment_state="none",
            )
        verdict = mined[0]
        assert not isinstance(verdict, ChainUnavailable | Accepted | NotMined)
        return _explain(verdict)

    async def _record(self, accepted: Accepted, shelf: Shelf) -> tuple[Tender, ...]:
        recorded = await self._book.record_payments(accepted.payments, now_ms=self._now_ms())
        tenders: list[Tender] = []
        for payment in recorded:
            assets = self._rules[payment.chain_id].assets
            asset = next(asset for asset in assets if asset.key == payment.asset)
            tenders.append(
                Tender(payment=payment, asset=asset, is_first=payment.taken_units == 0, is_fresh=True)
            )
        return tuple(tenders)


def _digests(proof: Proof, shelf: Shelf, request: Request, chain_id: ChainId) -> tuple[bytes, ...]:
    """What the payer may have signed: one digest in the bound form, two spellings in the plain one."""
    if proof.binding is None:
        return transaction_digests(proof.tx_hash)
    return (
        paid_call_digest(
            chain_id=chain_id,
            gateway=request.gateway,
            api_id=shelf.listing.id,
            method=request.method,
            target=request.target,
            body_hash=request.body_hash,
            transaction=proof.tx_hash,
            valid_until=proof.binding.valid_until,
            nonce=proof.binding.nonce,
        ),
    )


def _explain(verdict: Pending | NotThePayer | TooOld | HeldByRestore | Refused) -> Problem:
    match verdict:
        case Pending():
            return Problem(
                code=Code.PAYMENT_PENDING,
                detail=f"The payment has {verdict.confirmations} of {verdict.needed} confirmations.",
                reason="confirmations",
                retry_after_s=PENDING_RETRY_S,
                payment_state="none",
            )
        case NotThePayer():
            return Problem(
                code=Code.PAYER_MISMATCH,
                detail="X-Signature is not by the wallet that paid this transaction.",
                payment_state="none",
            )
        case TooOld():
            return Problem(
                code=Code.PAYMENT_TOO_OLD,
                detail=f"The payment was mined {verdict.age_s} seconds ago and never shown until now. "
                "The operator or the provider can admit it.",
                payment_state="none",
            )
        case HeldByRestore():
            return Problem(
                code=Code.PAYMENT_HELD,
                detail="The payment was mined before this gateway's books were restored; the operator must admit it.",
                payment_state="held",
            )
        case Refused():
            return _refused(verdict.reason)
        case _:
            assert_never(verdict)


_REASONS = {
    Reason.TRANSACTION_FAILED: "The transaction failed on the chain; it moved nothing.",
    Reason.WRONG_CHAIN: "This listing is not sold on that network.",
    Reason.WRONG_TOKEN: "The transaction moved another token than this listing accepts.",
    Reason.WRONG_RECIPIENT: "The transaction paid another wallet than this listing's payTo.",
    Reason.INTERNAL_TRANSFER: "Native currency counts only when the transaction itself pays payTo, "
    "not when a contract passes it on.",
    Reason.AUTHORIZATION_TRANSFER: "The transfer was made by a signed authorisation (EIP-3009); it counts on the "
    "rail of that authorisation, not as X-Payment-Tx.",
    Reason.NO_TRANSFER: "The transaction transferred nothing that this listing accepts.",
    Reason.RETURNED: "The payee sent the value back in the same transaction.",
    Reason.BELOW_LEDGER_UNIT: "The amount is below the smallest unit that the books keep.",
    Reason.AMOUNT_TOO_LARGE: "The amount is larger than the books can keep in one payment.",
    Reason.BEFORE_LISTING: "The transaction is older than the listing's payTo.",
    Reason.BLOCK_IN_FUTURE: "The transaction's block lies in the future.",
}


def _refused(reason: Reason) -> Problem:
    return Problem(
        code=Code.PAYMENT_VERIFICATION_FAILED,
        detail=_REASONS[reason],
        reason=reason.value,
        payment_state="none",
    )
