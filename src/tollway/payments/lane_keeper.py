"""Keeps the sequences of our gas keys moving: a nonce that is not mined keeps everything behind it waiting, whatever became of
its own call.

What no node knows is broadcast again, to all nodes, and what a sequence waits for is replaced at a higher price, up to the
operator's ceiling. A nonce that is missing below what waits is filled; a sequence that has passed nonces which the chain never
counted, with nothing waiting there, goes back. One gateway keeps them for all, and two at once do no harm: of all that
have one nonce one is mined. No call is judged or moved here, and nothing is broadcast that was not stored before.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import structlog

from tollway.background import describe_failure, run_all
from tollway.chain.reader import ChainFacts, NotMined, SendFault, SendRefused, SettlementChain
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.identifiers import TxHash
from tollway.ledger.authorization import SettlementAttempt
from tollway.ledger.book import Ledger
from tollway.ledger.gas import GasLedger
from tollway.limits import Limits
from tollway.payments.gas_lane import NonceSequence
from tollway.payments.gas_tank import GasBudget
from tollway.payments.settlement_signing import (
    TransactionFees,
    bump_fees,
    choose_fees,
    read_fees,
    read_valid_before,
    sign_filler,
    sign_replacement,
)

OPEN_MAX = 64
FILL_AFTER_MS = 5_000
"""A transaction gets this long to reach the node that is asked about it."""
FILLS_MAX = 16
"""So many missing nonces are filled at one look."""
GAP_MAX = 1_000
"""More are not filled: each costs gas, and how many there are rests on a node's word."""

_log = structlog.get_logger(__name__)


class TransactionReplacer:
    """Used from one event loop: settlement recovery's `run_once` for all sequences, and `resend_before` by any call that waits."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        gas: GasLedger,
        chains: SettlementChain,
        gas_budget: GasBudget,
        limits: Limits,
        now_ms: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._gas = gas
        self._chains = chains
        self._gas_budget = gas_budget
        self._limits = limits
        self._now_ms = now_ms
        self._capped: dict[
            NonceSequence, TxHash
        ] = {}  # of which it was told that gas costs more than is allowed
        self._resending: set[NonceSequence] = set()

    async def run_once(self) -> None:
        """One look at every sequence, those of keys without gas too. Raises StorageUnavailable."""
        sequences = [
            sequence
            for chain_id in self._gas_budget.chain_ids
            for sequence in self._gas_budget.sequences(chain_id)
        ]
        await run_all([partial(self._check_sequence, sequence) for sequence in sequences])

    async def resend_before(self, attempt: SettlementAttempt) -> None:
        """Broadcasts again what an attempt waits behind and no node knows: the gateway that stored it may stand still. One
        such round a sequence at a time; a chain or a database that is away only ends it."""
        sequences = self._gas_budget.sequences(attempt.chain_id)
        sequence = next((sequence for sequence in sequences if sequence.key.address == attempt.sender), None)
        if sequence is None or sequence in self._resending:
            return
        self._resending.add(sequence)
        try:
            attempts = await self._gas.open_attempts(sequence.chain_id, sequence.key.address, limit=OPEN_MAX)
            newest = {one.nonce: one for one in attempts if one.nonce < attempt.nonce}
            account = await self._chains.fetch_account(sequence.chain_id, sequence.key.address)
            waiting = [one for nonce, one in newest.items() if nonce >= account.mined_nonce]
            pending, mined = await self._find_pending_and_mined(sequence, waiting)
            for one in waiting:
                if one.nonce not in pending | mined:
                    await self._send(one)
        except (ChainUnavailable, StorageUnavailable) as exc:
            address = str(sequence.key.address)
            _log.warning("lane_unseen", chain_id=sequence.chain_id, address=address, detail=str(exc))
        finally:
            self._resending.discard(sequence)

    async def _check_sequence(self, sequence: NonceSequence) -> None:
        try:
            await self._replace_unmined(sequence)
        except ChainUnavailable as exc:
            _log.warning(
                "lane_unseen", chain_id=sequence.chain_id, address=str(sequence.key.address), detail=str(exc)
            )
        except StorageUnavailable:
            raise  # one line for all of them
        except Exception as exc:  # noqa: BLE001 - a task root: one bad sequence must not stop the others
            where = {"chain_id": sequence.chain_id, "address": str(sequence.key.address)}
            _log.error("lane_failed", **where, **describe_failure(exc))

    async def _replace_unmined(self, sequence: NonceSequence) -> None:
        attempts = await self._gas.open_attempts(sequence.chain_id, sequence.key.address, limit=OPEN_MAX)
        newest = {attempt.nonce: attempt for attempt in attempts}
        is_stuck = sequence.progress.is_stuck
        if all(self._is_younger(attempt, FILL_AFTER_MS) for attempt in newest.values()) and not is_stuck:
            return
        account = await self._chains.fetch_account(sequence.chain_id, sequence.key.address)
        waiting = [attempt for attempt in attempts if attempt.nonce >= account.mined_nonce]
        if is_stuck:
            await self._repair_gap(sequence, account.mined_nonce, waiting)
        pending, mined = await self._find_pending_and_mined(sequence, waiting)
        for nonce, attempt in newest.items():
            if nonce < account.mined_nonce or nonce in mined or self._is_younger(attempt, FILL_AFTER_MS):
                continue
            is_first, is_to_replace = (
                nonce == account.mined_nonce,
                nonce in pending,
            )  # a pool has it, and no block
            if not is_to_replace or (is_first and is_stuck):
                refused = await self._send(attempt)
                is_to_replace |= refused is not None and self._is_unminable(attempt, refused.fault)
            if is_to_replace and is_first:
                await self._replace(sequence, attempt)

    async def _repair_gap(
        self, sequence: NonceSequence, mined_nonce: int, waiting: Sequence[SettlementAttempt]
    ) -> None:
        """A sequence that does not move may wait for nonces that nothing was ever signed with."""
        receipts = {"chain_id": sequence.chain_id, "address": str(sequence.key.address)}
        if not waiting:
            now_at = await self._gas.lower_nonce(sequence.chain_id, sequence.key.address, mined_nonce)
            if now_at == mined_nonce:
                _log.warning("lane_went_back", nonce=mined_nonce, **receipts)
            return
        taken = {attempt.nonce for attempt in waiting}
        if min(taken) - mined_nonce > GAP_MAX:
            _log.error("lane_gap_too_wide", nonce=mined_nonce, waiting=min(taken), **receipts)
            return
        missing = (nonce for nonce in range(mined_nonce, max(taken)) if nonce not in taken)
        for nonce in islice(missing, FILLS_MAX):
            await self._fill(sequence, nonce, waiting[0])

    async def _fill(self, sequence: NonceSequence, nonce: int, above: SettlementAttempt) -> None:
        """With nothing, on behalf of the call of an attempt that waits above."""
        fees = self._gas_budget.latest_fees(sequence.chain_id)
        if fees is None:
            return
        tx_fees = choose_fees(fees, price_max_wei=self._gas_budget.price_max_wei(sequence.chain_id))
        filler = sign_filler(
            replace(above, nonce=nonce), sequence.key, tx_fees=tx_fees, now_ms=self._now_ms()
        )
        if await self._ledger.add_attempt(filler, is_filling=True) is True:
            _log.warning(
                "lane_nonce_filled",
                chain_id=sequence.chain_id,
                address=str(sequence.key.address),
                nonce=nonce,
            )
            await self._send(filler)

    def _is_unminable(self, attempt: SettlementAttempt, fault: SendFault) -> bool:
        """Whether it will not do as it is. For what no node takes for whatever reason the filler is there, once nothing
        is lost by it."""
        return fault is SendFault.UNDERPRICED or (fault is SendFault.OTHER and self._is_expired(attempt))

    def _is_younger(self, attempt: SettlementAttempt, age_ms: int) -> bool:
        """What was signed in the future is not: the clock was set back, or another gateway's is ahead."""
        return 0 <= self._now_ms() - attempt.created_ms < age_ms

    def _is_expired(self, attempt: SettlementAttempt) -> bool:
        return read_valid_before(attempt) * 1000 <= self._now_ms()

    async def _find_pending_and_mined(
        self, sequence: NonceSequence, attempts: Sequence[SettlementAttempt]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """The nonces of which a pool has a transaction, and those of which a block has one."""
        if not attempts:
            return frozenset(), frozenset()
        receipts = await self._chains.fetch_receipts(
            sequence.chain_id, [attempt.tx_hash for attempt in attempts]
        )
        answers = [(attempt.nonce, receipts.get(attempt.tx_hash)) for attempt in attempts]
        return (
            frozenset(n for n, answer in answers if isinstance(answer, NotMined) and answer.is_pending),
            frozenset(n for n, answer in answers if isinstance(answer, ChainFacts)),
        )

    async def _replace(self, sequence: NonceSequence, attempt: SettlementAttempt) -> None:
        """By the same for more, however often it takes: only the ceiling ends that. Where its call has ended and its
        authorisation is over, by nothing at all."""
        last = await self._find_last(attempt)
        if self._is_younger(last, round(self._limits.fee_bump_after_s * 1000)):
            return
        tx_fees = self._raise_fees(sequence, last)
        if tx_fees is None:
            return
        replacement = sign_replacement(last, sequence.key, tx_fees=tx_fees, now_ms=self._now_ms())
        is_stored = await self._ledger.add_attempt(replacement)
        if is_stored is False:
            if self._is_expired(last):
                replacement = sign_filler(last, sequence.key, tx_fees=tx_fees, now_ms=self._now_ms())
            is_stored = await self._ledger.add_attempt(replacement, is_filling=True)
        if is_stored is True:
            _log.info("settlement_fee_bumped", call_id=last.call_id, transaction=str(replacement.tx_hash))
            await self._send(replacement)

    async def _find_last(self, attempt: SettlementAttempt) -> SettlementAttempt:
        """The newest of that nonce: there may be more than were listed."""
        attempts = await self._ledger.attempts_of(attempt.call_id)
        place = (attempt.chain_id, attempt.sender, attempt.nonce)
        return next(one for one in reversed(attempts) if (one.chain_id, one.sender, one.nonce) == place)

    def _raise_fees(self, sequence: NonceSequence, last: SettlementAttempt) -> TransactionFees | None:
        fees = self._gas_budget.latest_fees(sequence.chain_id)
        if fees is None:
            return None
        price_max_wei = self._gas_budget.price_max_wei(sequence.chain_id)
        tx_fees = bump_fees(read_fees(last), fees, price_max_wei=price_max_wei)
        if tx_fees is None and self._capped.get(sequence) != last.tx_hash:
            self._capped[sequence] = last.tx_hash
            _log.warning(
                "lane_waits_at_ceiling",
                chain_id=sequence.chain_id,
                address=str(sequence.key.address),
                nonce=last.nonce,
                transaction=str(last.tx_hash),
            )
        return tx_fees

    async def _send(self, attempt: SettlementAttempt) -> SendRefused | None:
        refused = await self._chains.resend_transaction(attempt.chain_id, attempt.raw)
        if refused is not None:
            _log.warning(
                "settlement_send_refused",
                call_id=attempt.call_id,
                transaction=str(attempt.tx_hash),
                fault=refused.fault.value,
            )
        return refused
