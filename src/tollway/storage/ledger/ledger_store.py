"""The ledger of one gateway in SQL: the port `Ledger` over SQLite or PostgreSQL.

Claims, closes, reopens, finishes, settles and concludes are written in batches (`group_commit`), so `run` must run while they are
used; each other write is one transaction. Times of this gateway's clock are translated into the shared time (`ClusterClock`). The other
ports have their own stores: `PaymentLedgerStore`, `FinalityStore`, `GasStore`, `OperatorStore`, `HistoryStore`, `ResponseStore`. The rules
about money are in `ledger/`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import structlog

from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, ChainId
from tollway.ledger.claims import CreditAccount, check_claim, find_account
from tollway.ledger.ledger import (
    Claim,
    Claimed,
    ClaimOutcome,
    Close,
    Closed,
    Exhausted,
    Fenced,
    Finish,
    InDebt,
    NonceUnavailable,
    NonceUsed,
)
from tollway.ledger.records import (
    AuthorizationKey,
    AuthorizedCall,
    CallState,
    Interruption,
    KeyedCall,
    OpenCall,
    SettledTransfer,
    SettlementAttempt,
    Usage,
    is_move_allowed,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.observability.background import BackgroundTask
from tollway.observability.call_trace import TraceSampler
from tollway.observability.metric_table import COMMIT_KINDS, CommitKind
from tollway.observability.plain_metrics import PlainHistogram
from tollway.storage.engine.batch_loader import BatchLoader
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.statements import Work
from tollway.storage.ledger import authorizations, history, idempotency, payments, recovery
from tollway.storage.ledger.batch_wait import BATCH_WAIT_S
from tollway.storage.ledger.commit_traces import CommitTraces
from tollway.storage.ledger.debts import pay_debts
from tollway.storage.ledger.group_commit import FINISH_DELAY_S, RETRY_S, GroupCommit
from tollway.storage.ledger.history import count_batch
from tollway.storage.ledger.ledger_batch import BatchRules, Reopen, Reopened
from tollway.storage.ledger.ledger_tables import authorization_table
from tollway.storage.ledger.recovery import (
    AbandonedCall,
    BootMark,
    ClusterClock,
    Lease,
    OwnOpenCall,
    SharedClock,
    read_boot_mark,
    read_shared_clock,
)
from tollway.storage.ledger.settlement import Conclude, Settle
from tollway.storage.operator.restore_detection import RestoreDetected, RestoreDetector
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog


class _RepeatQuery(NamedTuple):
    payment_id: int
    digest: bytes


class _NewestQuery(NamedTuple):
    payment_id: int
    limit: int


_log = structlog.get_logger(__name__)

_FoundCall = TypeVar("_FoundCall", AuthorizedCall, KeyedCall, OpenCall)

RECOVERY_BATCH_MAX = 500
RENEW_TIMEOUT_S = 5.0
"""The deadline of a renewal: short, so that several tries fit into one lease."""


class LedgerStore:
    """`owner_id` is new at each start."""

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
        commit_seconds: Mapping[CommitKind, PlainHistogram] | None = None,
        on_lapse: Callable[[], None] = lambda: None,
        on_restore: Callable[[], None] = lambda: None,
        writer: BackgroundTask | None = None,
        events: EventLog = NO_EVENTS,
        traces: TraceSampler | None = None,
        close_retry_s: float = RETRY_S,
        batch_wait_s: float = BATCH_WAIT_S,
        finish_delay_s: float = FINISH_DELAY_S,
    ) -> None:
        """`commit_seconds`: the seconds of each written batch, by the entry that matters most in it. `on_lapse`: called when this gateway
        renewed later than its lease, so that other gateways may have recovered its calls. `on_restore`: called when a restore was detected and the
        balances are held. `ticks_ms`: a monotonic clock that detects jumps of the other clocks. `writer`: the background task that reports `run`.
        `close_retry_s`: the pause between two tries of a close while the database is unavailable. `batch_wait_s`, `finish_delay_s`: as in
        `GroupCommit`."""
        self._database, self._limits = database, limits
        self._events, self._traces = events, traces
        self._own_ms = now_ms
        self._clock = ClusterClock(own_ms=now_ms, ticks_ms=ticks_ms)
        # Many callers with the proof of one payment read these at the same time.
        self._open_calls: BatchLoader[_RepeatQuery, OpenCall | None] = BatchLoader(self._find_open_calls)
        self._exhausted: BatchLoader[Claim, Exhausted | NonceUsed | None] = BatchLoader(self._find_exhausted)
        self._spending: BatchLoader[_NewestQuery, tuple[CallId, ...]] = BatchLoader(self._find_spending)
        self._debt_payers: dict[CreditAccount, BatchLoader[CreditAccount, int]] = {}
        self.owner_id, self._on_lapse = owner_id, on_lapse
        self._boot_mark, self._shared_clock = boot_mark, shared_clock
        self._lease = Lease(length_ms=int(limits.owner_lease_s * 1000))
        self._restore_detector = RestoreDetector(
            database,
            owner_id,
            now_ms=self._clock.read,
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
                response_ttl_ms=limits.response_ttl_s * 1000,
            ),
            clock=self._clock,
            batch_max=limits.claim_batch_max,
            restore_detector=self._restore_detector,
            ticks_ms=ticks_ms or now_ms,
            grant_ms_max=int(limits.owner_lease_s * 500),
            patience_s=limits.close_patience_s,
            retry_s=close_retry_s,
            batch_wait_s=batch_wait_s,
            finish_delay_s=finish_delay_s,
            on_batch=on_batch,
            commit_seconds=commit_seconds or {kind: PlainHistogram(()) for kind in COMMIT_KINDS},
            task=writer,
            events=events,
            traces=None if traces is None else CommitTraces(),
        )

    async def open(self) -> None:
        """Renews the ownership, detects a restore and recovers the open calls of dead gateways. Call it before the first claim."""
        now_ms = self._own_ms()
        await self.renew_ownership(now_ms=now_ms)
        await self.recover(now_ms=now_ms)

    def run(self) -> Coroutine[Any, Any, None]:
        """Writes the batches until `stop`. Run it as a background task while calls are made."""
        return self._group_commit.run()

    def stop(self) -> None:
        self._group_commit.stop()

    async def wait_closed(self, *, timeout_s: float) -> None:
        """Returns when no call of this gateway is open, after `timeout_s` at the latest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._group_commit.wait_closed()

    async def claim(self, claim: Claim) -> ClaimOutcome:
        check_claim(claim)
        while True:
            outcome = await self._group_commit.submit(claim)
            assert not isinstance(outcome, Closed | Fenced | Reopened | NonceUnavailable | CallState | None)
            if not isinstance(outcome, InDebt) or await self._pay_debts(find_account(claim)) == outcome.units:
                return outcome

    async def _pay_debts(self, account: CreditAccount) -> int:
        """Pays the debt of an account from its unspent credit, in transactions beside the batches: they delay no other claim. Callers of one account
        share them. Returns the debt that is left."""
        payer = self._debt_payers.setdefault(account, BatchLoader(self._pay_each))
        try:
            return await payer.load(account)
        finally:
            self._debt_payers.pop(account, None)

    async def _pay_each(self, accounts: Sequence[CreditAccount]) -> list[int]:
        return [
            await pay_debts(
                self._database,
                account,
                calls_max=self._limits.moved_calls_max,
                now_ms=self._clock.read(),
            )
            for account in accounts
        ]

    async def close(self, close: Close) -> Closed | Fenced:
        if not is_move_allowed(CallState.FORWARDING, close.after):
            raise ValueError(f"a forwarding never ends in {close.after}")
        outcome = await self._group_commit.submit(close)
        assert isinstance(outcome, Closed | Fenced)
        return outcome

    def finish(self, finish: Finish) -> None:
        self._group_commit.submit_nowait(finish)

    async def finish_cut(self, finish: Finish) -> None:
        # Past the deadline the writer keeps the entry.
        with contextlib.suppress(StorageUnavailable, TimeoutError):
            async with asyncio.timeout(self._limits.cut_wait_s):
                await self._group_commit.submit(finish)

    async def reopen(
        self,
        call_id: CallId,
        *,
        epoch: int,
        now_ms: int,
        is_plain: bool = False,
        nonce: bytes | None = None,
    ) -> Claimed | Fenced | NonceUsed:
        outcome = await self._group_commit.submit(
            Reopen(call_id=call_id, epoch=epoch, is_plain=is_plain, nonce=nonce)
        )
        if isinstance(outcome, Reopened):
            return outcome.claimed
        assert isinstance(outcome, Fenced | NonceUsed)
        return outcome

    async def resolve(self, call_id: CallId, outcome: CallState, *, now_ms: int) -> CallState | None:
        work = partial(
            recovery.resolve,
            call_id=call_id,
            outcome=outcome,
            now_ms=self._clock.translate(now_ms),
            events=self._events,
        )
        return await write_retried(self._database, work)

    # ---- Settlements.

    async def settle(
        self, close: Close, *, attempt: SettlementAttempt | None, digest: bytes | None
    ) -> Closed | Fenced | NonceUnavailable:
        if close.after is not CallState.SETTLING:
            raise ValueError("to settle is to go to settling")
        outcome = await self._group_commit.submit(Settle(close=close, attempt=attempt, digest=digest))
        assert isinstance(outcome, Closed | Fenced | NonceUnavailable)
        return outcome

    async def conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        outcome = await self._group_commit.submit(
            Conclude(call_id=call_id, epoch=epoch, transfer=transfer, is_orphaned=is_orphaned, now_ms=now_ms)
        )
        assert outcome is None or isinstance(outcome, CallState)
        if outcome is CallState.RELEASED and transfer is not None:
            # The transfer is credit. A debt that stays here is met by the next claim, or by `Finality.continue_moves`.
            with contextlib.suppress(StorageUnavailable):
                await self._pay_debts(
                    await self._database.read(partial(authorizations.find_account, call_id=call_id))
                )
        return outcome

    async def mark_orphaned(self, call_id: CallId, *, epoch: int, usage: Usage | None = None) -> bool:
        work = partial(
            authorizations.mark_orphaned, call_id=call_id, epoch=epoch, owner_id=self.owner_id, usage=usage
        )
        try:
            return await write_retried(self._database, work)
        finally:
            # No task here waits for this call. When the write failed, recovery marks the call.
            self._group_commit.forget((call_id, epoch))

    async def unsettled(self, *, limit: int) -> tuple[AuthorizedCall, ...]:
        work = partial(
            authorizations.take_unsettled,
            limit=limit,
            now_ms=self._clock.read(),
            hold_ms=self._hold_ms(),
            responded_since_ms=self._responded_since_ms(),
        )
        return await write_retried(self._database, work, flush=False)

    async def postpone(self, call_id: CallId, *, until_ms: int) -> None:
        due_ms = self._clock.translate(until_ms)
        work = partial(authorizations.postpone, call_id=call_id, until_ms=due_ms)
        await write_retried(self._database, work, flush=False)

    # ---- Look-ups of a call. A late end of that call is written first.

    async def find_open_call(self, payment_id: int, digest: bytes) -> OpenCall | None:
        query = _RepeatQuery(payment_id, digest)
        return await self._find_written(lambda: self._open_calls.load(query))

    async def find_keyed_call(
        self, payer: Address, idempotency_key: str, *, since_ms: int
    ) -> KeyedCall | None:
        work = partial(
            idempotency.find_keyed_call,
            payer=payer,
            idempotency_key=idempotency_key,
            since_ms=since_ms,
            responded_since_ms=self._responded_since_ms(),
        )
        return await self._find_written(partial(self._database.read, work))

    async def find_authorized_call(self, key: AuthorizationKey) -> AuthorizedCall | None:
        work = partial(
            authorizations.find_authorized_call, key=key, responded_since_ms=self._responded_since_ms()
        )
        return await self._find_written(partial(self._database.read, work))

    async def has_open_deployment(self, call: CallId, *, chain_id: ChainId, payer: Address) -> bool:
        return await self._database.read(
            partial(authorizations.has_open_deployment, call_id=call, chain_id=chain_id, payer=payer)
        )

    async def find_call_authorization(self, call_id: CallId) -> AuthorizedCall | None:
        work = partial(
            authorizations.read_authorized,
            which=authorization_table.c.call_id == call_id,
            limit=1,
            responded_since_ms=self._responded_since_ms(),
        )
        found = await self._database.read(work)
        return found[0] if found else None

    async def find_exhausted(self, claim: Claim) -> Exhausted | NonceUsed | None:
        # A late end may belong to the call that holds or has spent the payment.
        if self._group_commit.has_late():
            await self._group_commit.write_late()
        if self._group_commit.has_late():
            raise StorageUnavailable
        return await self._exhausted.load(claim)

    async def spending_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        return await self._spending.load(_NewestQuery(payment_id, limit))

    async def _find_written(self, find: Callable[[], Awaitable[_FoundCall | None]]) -> _FoundCall | None:
        found = await find()
        if found is None or not self._group_commit.is_late(found.call_id):
            return found
        await self._group_commit.write_late(found.call_id)
        if self._group_commit.is_late(found.call_id):
            raise StorageUnavailable
        return await find()

    async def _find_open_calls(self, requests: Sequence[_RepeatQuery]) -> list[OpenCall | None]:
        return await self._database.read(
            lambda connection: [
                idempotency.find_open_call(connection, one.payment_id, one.digest) for one in requests
            ]
        )

    async def _find_exhausted(self, claims: Sequence[Claim]) -> list[Exhausted | NonceUsed | None]:
        return await self._database.read(partial(payments.find_exhausted, claims=claims))

    async def _find_spending(self, queries: Sequence[_NewestQuery]) -> list[tuple[CallId, ...]]:
        return await self._database.read(
            lambda connection: [
                history.spending_calls(connection, one.payment_id, limit=one.limit) for one in queries
            ]
        )

    def _responded_since_ms(self) -> int:
        return self._clock.read() - self._limits.response_ttl_s * 1000

    # ---- Ownership: the renewal of this gateway's lease, and recovery for gateways whose lease has ended.

    async def renew_ownership(self, *, now_ms: int) -> None:
        work = partial(
            recovery.renew_owner,
            owner_id=self.owner_id,
            now_ms=now_ms,
            shared_clock=self._shared_clock,
            boot_mark=self._boot_mark,
            restore_detector=self._restore_detector,
        )
        try:
            seen_ms = await self._renew(work)
        except RestoreDetected:
            await self._restore_detector.hold_balances()
            seen_ms = await self._renew(work)
        self._restore_detector.note_renewed(seen_ms)
        self._clock.set_shared_ms(seen_ms)
        silent_ms = self._lease.note_renewed(seen_ms)
        if silent_ms is not None and self._database.dialect == "postgresql":
            _log.warning("owner_lease_lapsed", silent_s=silent_ms / 1000)
            self._on_lapse()
        if self._database.dialect == "sqlite":
            while await self._database.write(count_batch, flush=False):
                pass

    async def follow_clock(self) -> None:
        """Reads the shared time, for a process that owns no calls and hence renews nothing."""
        seen_ms = await self._database.read(lambda connection: self._shared_clock(connection, self._own_ms()))
        self._clock.set_shared_ms(seen_ms)

    async def _renew(self, work: Work[int]) -> int:
        try:
            async with asyncio.timeout(RENEW_TIMEOUT_S):
                return await write_retried(self._database, work)
        except TimeoutError as exc:
            raise StorageUnavailable from exc

    async def recover(self, *, now_ms: int) -> int:
        """Moves calls of dead owners from `forwarding` to `unknown`, and calls that were `unknown` for `unknown_hold_s` to `released`, except
        those that a power loss may have caused or that an authorisation may have paid. Returns how many calls moved. Any gateway
        may call it."""
        self._group_commit.retry_late()
        await self._group_commit.write_late()
        shared_ms = self._clock.translate(now_ms)
        abandoned = await self._find_lost_calls()
        abandoned += await self._database.read(
            partial(
                recovery.find_abandoned,
                owner_id=self.owner_id,
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
            moved += await self._move_abandoned(some, shared_ms=shared_ms)
        await write_retried(
            self._database,
            partial(recovery.renew_boot_mark, owner_id=self.owner_id, boot_mark=self._boot_mark),
        )
        await write_retried(
            self._database,
            partial(
                recovery.prune_owners,
                owner_id=self.owner_id,
                now_ms=now_ms,
                shared_clock=self._shared_clock,
            ),
        )
        await self._restore_detector.check_file(now_ms=now_ms)
        return moved

    async def _move_abandoned(self, abandoned: Sequence[AbandonedCall], *, shared_ms: int) -> int:
        """Moves calls in one transaction, and returns how many moved. A trace of its own has those that are sampled."""
        trace = None if self._traces is None else self._traces.start_linked("tollway.recovery")
        moved = await write_retried(
            self._database,
            partial(recovery.recover_calls, abandoned=abandoned, now_ms=shared_ms, events=self._events),
        )
        if trace is not None:
            for one in moved:
                error = None if one.error is None else one.error.value
                trace.add_call(one.call_id, one.after.value, error=error)
            trace.finish()
        return len(moved)

    def shared_ms(self) -> int:
        return self._clock.read()

    def _hold_ms(self) -> int:
        """How long an unknown call is held. A clock that was set forward makes it longer, so that no call is released early."""
        return self._limits.unknown_hold_s * 1000 + self._clock.ahead_ms

    async def _find_lost_calls(self) -> list[AbandonedCall]:
        """Finds calls of this gateway that no task here will close: claims whose answer was lost, closes that a crash of the database
        server undid. Reads the rows first and compares them with the open runs after that, because a new claim is counted as open
        before it is written."""
        found = await self._database.read(partial(recovery.find_own_open, owner_id=self.owner_id))
        return [
            self._plan_lost_call(one)
            for one in found
            if not self._group_commit.is_open((one.call_id, one.epoch))
        ]

    def _plan_lost_call(self, call: OwnOpenCall) -> AbandonedCall:
        """Plans the recovery of an own call. Nothing was sent for a claim or a reopen of unknown outcome: it returns to its state before."""
        if call.state is not CallState.FORWARDING:
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
