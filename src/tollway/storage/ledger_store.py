"""The ledger in SQL: `Ledger` and `CallHistory` over one database, SQLite or PostgreSQL.

Claims, closes, reopens and finishes go through one queue and are written in batches (`group_commit`), so `run` must be running
while they are used; every other write is a transaction of its own. `LedgerReader` only reads. The rules about money are in
`ledger/`, not here.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import structlog
from sqlalchemy.exc import IntegrityError

from tollway.background import BackgroundTask
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, ChainId, TxHash
from tollway.ledger.claims import check_claim, check_units
from tollway.ledger.history import HistoryPage, HistoryQuery
from tollway.ledger.ledger import (
    AuditReport,
    Claim,
    Claimed,
    ClaimOutcome,
    Close,
    Closed,
    Debt,
    Exhausted,
    Fenced,
    Finish,
    NonceUnavailable,
    NonceUsed,
    UnfinalBlock,
)
from tollway.ledger.records import (
    AuthorizationKey,
    AuthorizedCall,
    CallRecord,
    CallState,
    Interruption,
    KeyedCall,
    NewPayment,
    OpenCall,
    Payment,
    RecordedTransaction,
    SettledTransfer,
    SettlementAttempt,
    is_move_allowed,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage import authorizations, history, idempotency, payments, recovery, settlement
from tollway.storage.database import Database, Work, is_retryable
from tollway.storage.group_commit import RETRY_S, BatchLoader, GroupCommit
from tollway.storage.history import audit, count_batch
from tollway.storage.ledger_batch import BatchRules, Reopen, Reopened
from tollway.storage.outage import ValueRefused
from tollway.storage.payments import Recording, record_each
from tollway.storage.recovery import (
    AbandonedCall,
    BootMark,
    ClusterClock,
    Lease,
    OwnOpenCall,
    RestoreDetected,
    RestoreDetector,
    SharedClock,
    read_boot_mark,
    read_shared_clock,
)
from tollway.storage.settlement import Conclude, Settle

T = TypeVar("T")


class _RepeatQuery(NamedTuple):
    payment_id: int
    digest: bytes


class _NewestQuery(NamedTuple):
    payment_id: int
    limit: int


class LedgerReader:
    """Keeps the promises of `CallHistory`, and those of `Ledger` that only read."""

    def __init__(
        self, database: Database, *, now_ms: Callable[[], int], limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._database = database
        self._now_ms = now_ms
        self._limits = limits
        # What many callers ask at once with the proof of one payment.
        self._payments: BatchLoader[TxHash, tuple[Payment, ...]] = BatchLoader(self._find_payments)
        self._open_calls: BatchLoader[_RepeatQuery, OpenCall | None] = BatchLoader(self._find_open_calls)
        self._exhausted: BatchLoader[Claim, Exhausted | NonceUsed | None] = BatchLoader(self._find_exhausted)
        self._transactions: BatchLoader[TxHash, RecordedTransaction] = BatchLoader(self._find_transactions)
        self._spending: BatchLoader[_NewestQuery, tuple[CallId, ...]] = BatchLoader(self._spending_calls)

    async def find_payments(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        return await self._payments.load(tx_hash)

    async def find_open_call(self, payment_id: int, digest: bytes) -> OpenCall | None:
        return await self._open_calls.load(_RepeatQuery(payment_id, digest))

    async def find_exhausted(self, claim: Claim) -> Exhausted | NonceUsed | None:
        return await self._exhausted.load(claim)

    async def spending_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        return await self._spending.load(_NewestQuery(payment_id, limit))

    async def find_transaction(self, tx_hash: TxHash) -> RecordedTransaction:
        return await self._transactions.load(tx_hash)

    async def downtime_ms(self, *, since_ms: int, now_ms: int) -> int:
        work = partial(recovery.downtime_ms, since_ms=since_ms, now_ms=now_ms)
        return await self._database.read(work)

    async def debts(self, payer: Address) -> tuple[Debt, ...]:
        return await self._database.read(partial(payments.debts, payer=payer))

    async def history(self, query: HistoryQuery) -> HistoryPage:
        return await self._database.read(partial(history.history, query=query))

    async def find_call(self, call_id: CallId) -> CallRecord | None:
        return await self._database.read(partial(history.find_call, call_id=call_id))

    async def payments_of(self, payer: Address, *, limit: int, offset: int) -> tuple[Payment, ...]:
        work = partial(history.payments_of, payer=payer, limit=limit, offset=offset)
        return await self._database.read(work)

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]:
        return await self._database.read(partial(history.payments_in, payer=payer, tx_hash=tx_hash))

    async def calls_of(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        work = partial(history.calls_of, payment_id=payment_id, limit=limit)
        return await self._database.read(work)

    async def unknown_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        work = partial(history.unknown_calls, payment_id=payment_id, limit=limit)
        return await self._database.read(work)

    async def find_authorized_call(self, key: AuthorizationKey) -> AuthorizedCall | None:
        since_ms = self._answered_since_ms()
        work = partial(authorizations.find_authorized_call, key=key, answered_since_ms=since_ms)
        return await self._database.read(work)

    async def attempts_of(self, call_id: CallId) -> tuple[SettlementAttempt, ...]:
        return await self._database.read(partial(authorizations.attempts_of, call_id=call_id))

    async def authorizations_in(self, payment_id: int, *, limit: int) -> tuple[AuthorizedCall, ...]:
        work = partial(
            settlement.authorizations_in,
            payment_id=payment_id,
            limit=limit,
            answered_since_ms=self._answered_since_ms(),
        )
        return await self._database.read(work)

    async def find_keyed_call(
        self, payer: Address, idempotency_key: str, *, since_ms: int
    ) -> KeyedCall | None:
        work = partial(
            idempotency.find_keyed_call,
            payer=payer,
            idempotency_key=idempotency_key,
            since_ms=since_ms,
            answered_since_ms=self._answered_since_ms(),
        )
        return await self._database.read(work)

    # ---- What is asked together.

    async def _read_each(self, works: Sequence[Work[T]]) -> list[T]:
        return await self._database.read(lambda connection: [work(connection) for work in works])

    async def _find_payments(self, tx_hashes: Sequence[TxHash]) -> list[tuple[Payment, ...]]:
        return await self._read_each([partial(payments.find_payments, tx_hash=one) for one in tx_hashes])

    async def _find_open_calls(self, requests: Sequence[_RepeatQuery]) -> list[OpenCall | None]:
        return await self._read_each(
            [partial(idempotency.find_open_call, **one._asdict()) for one in requests]
        )

    async def _find_exhausted(self, claims: Sequence[Claim]) -> list[Exhausted | NonceUsed | None]:
        return await self._database.read(partial(payments.find_exhausted, claims=claims))

    async def _find_transactions(self, tx_hashes: Sequence[TxHash]) -> list[RecordedTransaction]:
        return await self._read_each([partial(payments.find_transaction, tx_hash=one) for one in tx_hashes])

    async def _spending_calls(self, queries: Sequence[_NewestQuery]) -> list[tuple[CallId, ...]]:
        return await self._read_each([partial(history.spending_calls, **one._asdict()) for one in queries])

    def _answered_since_ms(self) -> int:
        """Answers stored after that are still kept."""
        return self._now_ms() - self._limits.answer_ttl_s * 1000


_log = structlog.get_logger(__name__)

_FoundCall = TypeVar("_FoundCall", AuthorizedCall, KeyedCall, OpenCall)

ROLLBACKS_MAX = 8
"""How often a transaction that the database rolled back (deadlock) is tried again."""
RECOVERY_BATCH_MAX = 500
"""Calls that one transaction of recovery moves."""
RENEW_TIMEOUT_S = 5.0
"""A renewal that hangs is given up so early that several more fit into the lease."""


class LedgerStore(LedgerReader):
    """Keeps the promises of `Ledger` and `CallHistory`. One for each gateway process; `owner_id` is new at each start."""

    def __init__(
        self,
        database: Database,
        *,
        owner_id: str,
        now_ms: Callable[[], int],
        limits: Limits = DEFAULT_LIMITS,
        unfinal_max_nano: Mapping[str, int] = MappingProxyType({}),
        boot_mark: BootMark = read_boot_mark,
        shared_clock: SharedClock = read_shared_clock,
        ticks_ms: Callable[[], int] | None = None,
        on_batch: Callable[[int], None] = lambda size: None,
        on_lapse: Callable[[], None] = lambda: None,
        on_restore: Callable[[], None] = lambda: None,
        writer: BackgroundTask | None = None,
        close_retry_s: float = RETRY_S,
    ) -> None:
        """`on_lapse`: this gateway was silent for longer than its lease, and others may have settled its calls.
        `on_restore`: the database was found to have gone back in time; its balances are held.
        `ticks_ms`: a monotonic clock, by which jumps of the others are seen. `writer`: the background task that `run` is.
        `close_retry_s`: between two tries of a close that found no database."""
        self._own_ms = now_ms
        self._clock = ClusterClock(own_ms=now_ms, ticks_ms=ticks_ms)
        super().__init__(database, now_ms=self._clock.read, limits=limits)
        self._recordings: BatchLoader[Recording, tuple[Payment, ...]] = BatchLoader(self._record_each)
        self._owner_id = owner_id
        self._boot_mark = boot_mark
        self._shared_clock = shared_clock
        self._on_lapse = on_lapse
        self._lease = Lease(length_ms=int(limits.owner_lease_s * 1000))
        self._restore_detector = RestoreDetector(
            database,
            owner_id,
            now_ms=self._now_ms,
            shared_clock=shared_clock,
            kept_ms=recovery.OWNER_KEPT_MS,
            on_restore=on_restore,
        )
        self._group_commit = GroupCommit(
            database,
            rules=BatchRules(
                owner_id=owner_id,
                attempts_max=limits.attempts_max,
                unfinal_max_nano=unfinal_max_nano,
                answer_ttl_ms=limits.answer_ttl_s * 1000,
            ),
            clock=self._clock,
            batch_max=limits.claim_batch_max,
            acknowledged=self._restore_detector.acknowledged,
            on_restore_detected=self._restore_detector.hold_balances,
            ticks_ms=ticks_ms or now_ms,
            grant_ms_max=int(limits.owner_lease_s * 500),
            patience_s=limits.close_patience_s,
            retry_s=close_retry_s,
            on_batch=on_batch,
            task=writer,
        )

    async def open(self) -> None:
        """Once at start, before the first claim: says that this gateway lives, finds out about a restore, and
        settles what others left behind."""
        now_ms = self._own_ms()
        await self.renew_ownership(now_ms=now_ms)
        await self.recover(now_ms=now_ms)

    async def run(self) -> None:
        """Writes the batches until `stop`. A background task of the gateway, for as long as calls are made."""
        await self._group_commit.run()

    def stop(self) -> None:
        """Lets `run` return when all that waits is written."""
        self._group_commit.stop()

    async def wait_closed(self, *, timeout_s: float) -> None:
        """Returns when no call of this gateway is left open, at the latest after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._group_commit.wait_closed()

    async def claim(self, claim: Claim) -> ClaimOutcome:
        check_claim(claim)
        outcome = await self._group_commit.submit(claim)
        assert not isinstance(outcome, Closed | Fenced | Reopened | NonceUnavailable | CallState | None)
        return outcome

    async def close(self, close: Close) -> Closed | Fenced:
        if not is_move_allowed(CallState.FORWARDING, close.after):
            raise ValueError(f"a forwarding never ends in {close.after}")
        outcome = await self._group_commit.submit(close)
        assert isinstance(outcome, Closed | Fenced)
        return outcome

    def finish(self, finish: Finish) -> None:
        self._group_commit.submit_nowait(finish)

    # ---- What is asked of a call whose end is not written yet: it is written first.

    async def find_open_call(self, payment_id: int, digest: bytes) -> OpenCall | None:
        return await self._find_written(partial(super().find_open_call, payment_id, digest))

    async def find_keyed_call(
        self, payer: Address, idempotency_key: str, *, since_ms: int
    ) -> KeyedCall | None:
        return await self._find_written(
            partial(super().find_keyed_call, payer, idempotency_key, since_ms=since_ms)
        )

    async def find_authorized_call(self, key: AuthorizationKey) -> AuthorizedCall | None:
        return await self._find_written(partial(super().find_authorized_call, key))

    async def find_exhausted(self, claim: Claim) -> Exhausted | NonceUsed | None:
        if self._group_commit.has_late():  # perhaps that of the call that holds the payment, or has spent it
            await self._group_commit.write_late()
        if self._group_commit.has_late():
            raise StorageUnavailable
        return await super().find_exhausted(claim)

    async def _find_written(self, find: Callable[[], Awaitable[_FoundCall | None]]) -> _FoundCall | None:
        found = await find()
        if found is None or not self._group_commit.is_late(found.call_id):
            return found
        await self._group_commit.write_late(found.call_id)
        if self._group_commit.is_late(found.call_id):
            raise StorageUnavailable
        return await find()

    async def reopen(
        self, call_id: CallId, *, epoch: int, now_ms: int, is_plain: bool = False
    ) -> Claimed | Fenced:
        outcome = await self._group_commit.submit(Reopen(call_id=call_id, epoch=epoch, is_plain=is_plain))
        if isinstance(outcome, Reopened):
            return outcome.claimed
        assert isinstance(outcome, Fenced)
        return outcome

    async def settle(
        self, close: Close, *, attempt: SettlementAttempt | None, digest: bytes | None
    ) -> Closed | Fenced | NonceUnavailable:
        if close.after is not CallState.SETTLING:
            raise ValueError("to settle is to go to settling")
        outcome = await self._group_commit.submit(Settle(close=close, attempt=attempt, digest=digest))
        assert isinstance(outcome, Closed | Fenced | NonceUnavailable)
        return outcome

    async def add_attempt(
        self, attempt: SettlementAttempt, *, is_filling: bool = False
    ) -> bool | NonceUnavailable:
        work = partial(settlement.add_attempt, attempt=attempt, is_filling=is_filling)
        return await self._write(work)

    async def conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        shared_ms = self._clock.translate(now_ms)
        outcome = await self._group_commit.submit(
            Conclude(
                call_id=call_id, epoch=epoch, transfer=transfer, is_orphaned=is_orphaned, now_ms=shared_ms
            )
        )
        assert outcome is None or isinstance(outcome, CallState)
        return outcome

    async def mark_orphaned(self, call_id: CallId, *, epoch: int) -> bool:
        work = partial(authorizations.mark_orphaned, call_id=call_id, epoch=epoch, owner_id=self._owner_id)
        try:
            return await self._write(work)
        finally:
            # Where it failed, recovery does it: nobody here waits for this call.
            self._group_commit.forget((call_id, epoch))

    async def unsettled(self, *, limit: int) -> tuple[AuthorizedCall, ...]:
        work = partial(
            authorizations.take_unsettled,
            limit=limit,
            now_ms=self._now_ms(),
            hold_ms=self._hold_ms(),
            answered_since_ms=self._answered_since_ms(),
        )
        return await self._write(work, flush=False)

    async def postpone(self, call_id: CallId, *, until_ms: int) -> None:
        due_ms = self._clock.translate(until_ms)
        work = partial(authorizations.postpone, call_id=call_id, until_ms=due_ms)
        await self._write(work, flush=False)

    async def record_payments(
        self, payments: Sequence[NewPayment], *, now_ms: int, based_on: RecordedTransaction | None = None
    ) -> tuple[Payment, ...]:
        for payment in payments:
            check_units(payment.value_units)
        if not payments:
            return ()
        return await self._recordings.load(Recording(tuple(payments), based_on, now_ms))

    async def _record_each(self, recordings: Sequence[Recording]) -> list[tuple[Payment, ...] | Exception]:
        """In one transaction; where a value of one is at fault, in halves, so that only that one fails."""
        try:
            return [*await self._write(partial(record_each, recordings=recordings))]
        except (IntegrityError, ValueRefused) as exc:
            if len(recordings) == 1:
                return [exc]
        middle = len(recordings) // 2
        return [*await self._record_each(recordings[:middle]), *await self._record_each(recordings[middle:])]

    async def resolve(self, call_id: CallId, after: CallState, *, now_ms: int) -> bool:
        if after not in (CallState.RELEASED, CallState.CONSUMED):
            raise ValueError("an unknown call is resolved to released or consumed")
        return await self._write(partial(recovery.resolve, call_id=call_id, after=after, now_ms=now_ms))

    async def renew_ownership(self, *, now_ms: int) -> None:
        work = partial(
            recovery.renew_owner,
            owner_id=self._owner_id,
            now_ms=now_ms,
            shared_clock=self._shared_clock,
            boot_mark=self._boot_mark,
            acknowledged=self._restore_detector.acknowledged,
        )
        try:
            seen_ms = await self._renew(work)
        except RestoreDetected:
            await self._restore_detector.hold_balances()
            seen_ms = await self._renew(work)
        self._restore_detector.acknowledged.note_renewed(seen_ms)
        self._clock.set_shared_ms(seen_ms)
        silent_ms = self._lease.note_renewed(seen_ms)
        if silent_ms is not None and self._database.dialect == "postgresql":
            _log.warning("owner_lease_lapsed", silent_s=silent_ms / 1000)
            self._on_lapse()
        if self._database.dialect == "sqlite":
            while await self._database.write(count_batch, flush=False):
                pass

    async def _renew(self, work: Work[int]) -> int:
        try:
            async with asyncio.timeout(RENEW_TIMEOUT_S):
                return await self._write(work)
        except TimeoutError as exc:
            raise StorageUnavailable from exc

    async def recover(self, *, now_ms: int) -> int:
        self._group_commit.retry_late()
        await self._group_commit.write_late()
        shared_ms = self._clock.translate(now_ms)
        abandoned = await self._find_lost_calls()
        abandoned += await self._database.read(
            partial(
                recovery.find_abandoned,
                owner_id=self._owner_id,
                now_ms=shared_ms,
                lease=self._lease,
                hold_ms=self._hold_ms(),
                shared_clock=self._shared_clock,
                boot_mark=self._boot_mark,
            )
        )
        moved = 0
        for start in range(0, len(abandoned), RECOVERY_BATCH_MAX):
            some = abandoned[start : start + RECOVERY_BATCH_MAX]
            moved += await self._write(partial(recovery.recover_calls, abandoned=some, now_ms=shared_ms))
        await self._write(
            partial(recovery.renew_boot_mark, owner_id=self._owner_id, boot_mark=self._boot_mark)
        )
        await self._write(
            partial(
                recovery.prune_owners,
                owner_id=self._owner_id,
                now_ms=now_ms,
                shared_clock=self._shared_clock,
            )
        )
        await self._restore_detector.check_file(now_ms=now_ms)
        return moved

    def shared_ms(self) -> int:
        """The time that all gateways of this database go by, as of the last renewal."""
        return self._clock.read()

    def _hold_ms(self) -> int:
        """A clock that was set forward must not free a call early: nobody knows what became of it."""
        return self._limits.unknown_hold_s * 1000 + self._clock.ahead_ms

    async def _find_lost_calls(self) -> list[AbandonedCall]:
        """Calls of this gateway that nobody here will close: claims whose answer was lost, closes that a crash of
        the database server undid. Looked up first and compared after, because a new claim is noted as open before
        it is written."""
        found = await self._database.read(partial(recovery.find_own_open, owner_id=self._owner_id))
        return [
            self._plan_lost_call(one)
            for one in found
            if not self._group_commit.is_open((one.call_id, one.epoch))
        ]

    def _plan_lost_call(self, call: OwnOpenCall) -> AbandonedCall:
        """Nothing was sent for a claim or a repeat of unknown outcome: it goes back to where it was."""
        if call.state is CallState.SETTLING:
            return AbandonedCall(call_id=call.call_id, epoch=call.epoch, before=call.state, after=call.state)
        is_in_doubt = (call.call_id, call.epoch) in self._group_commit.in_doubt
        after, error = CallState.UNKNOWN, None if is_in_doubt else Interruption.OUTCOME_LOST
        if is_in_doubt and call.epoch == 1:
            after, error = CallState.RELEASED, Interruption.NEVER_SENT
        elif is_in_doubt and call.was_consumed:
            after = CallState.CONSUMED
        return AbandonedCall(
            call_id=call.call_id,
            epoch=call.epoch,
            before=CallState.FORWARDING,
            after=after,
            clock_releases=is_in_doubt,
            error=error,
        )

    async def audit(self) -> AuditReport:
        return await self._database.read(audit, is_long=True)

    async def release_held(self) -> int:
        work = partial(recovery.release_held, now_ms=self._now_ms())
        return await self._write(work, is_long=True)

    async def unfinal_blocks(
        self, chain_id: ChainId, *, after: UnfinalBlock | None, limit: int
    ) -> tuple[UnfinalBlock, ...]:
        work = partial(payments.unfinal_blocks, chain_id=chain_id, after=after, limit=limit)
        return await self._database.read(work)

    async def unfinal_in(
        self, block: UnfinalBlock, *, after_id: int, limit: int, is_unchecked_only: bool = False
    ) -> tuple[Payment, ...]:
        return await self._database.read(
            partial(
                payments.unfinal_in,
                block=block,
                after_id=after_id,
                limit=limit,
                is_unchecked_only=is_unchecked_only,
            )
        )

    async def gone_payments(
        self, chain_id: ChainId, *, after_id: int, limit: int, now_ms: int
    ) -> tuple[Payment, ...]:
        return await self._database.read(
            partial(payments.gone_payments, chain_id=chain_id, after_id=after_id, limit=limit, now_ms=now_ms)
        )

    async def finish_block(self, block: UnfinalBlock, *, is_checked_only: bool, now_ms: int) -> int:
        work = partial(payments.finish_block, block=block, is_checked_only=is_checked_only, now_ms=now_ms)
        return await self._write(work, flush=False)

    async def mark_checked(
        self, payment_ids: Sequence[int], *, block_number: int, block_hash: bytes, now_ms: int
    ) -> None:
        work = partial(
            payments.mark_checked,
            payment_ids=payment_ids,
            block_number=block_number,
            block_hash=block_hash,
            now_ms=now_ms,
        )
        await self._write(work, flush=False)

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        return await self._write(partial(payments.mark_gone, payment_id=payment_id, now_ms=now_ms))

    async def hold_disputed(self, payment_ids: Sequence[int]) -> int:
        return await self._write(partial(payments.hold_disputed, payment_ids=payment_ids))

    async def held_unfinal(self, chain_id: ChainId, *, limit: int) -> tuple[Payment, ...]:
        work = partial(payments.held_unfinal, chain_id=chain_id, limit=limit)
        return await self._database.read(work)

    async def free_disputed(self, payment_ids: Sequence[int]) -> int:
        return await self._write(partial(payments.free_disputed, payment_ids=payment_ids))

    async def move_transfer(
        self, call_id: CallId, *, before: TxHash, transfer: SettledTransfer, now_ms: int
    ) -> bool:
        work = partial(
            settlement.move_transfer, call_id=call_id, before=before, transfer=transfer, now_ms=now_ms
        )
        return await self._write(work)

    async def admit(self, tx_hash: TxHash, *, now_ms: int) -> None:
        await self._write(partial(recovery.admit, tx_hash=tx_hash, now_ms=now_ms))

    async def mark_ready(self, *, now_ms: int) -> None:
        await self._write(partial(recovery.mark_ready, now_ms=now_ms))

    async def mark_restored(self, *, now_ms: int) -> None:
        """The operator says that the database was restored to an older moment. On SQLite it is found out."""
        await self._write(partial(recovery.mark_restored, now_ms=now_ms), is_long=True)

    async def _write(self, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
        for _ in range(ROLLBACKS_MAX - 1):
            try:
                return await self._database.write(work, flush=flush, is_long=is_long)
            except StorageUnavailable as exc:
                if not is_retryable(exc):
                    raise
        return await self._database.write(work, flush=flush, is_long=is_long)
