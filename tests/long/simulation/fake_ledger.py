"""The fake database: the ledger in memory behind a machine that loses commits, responses and power, on command.

`FakeMachine` is the disk and its server, `FakeGateway` one gateway process over it. The model (`tests.model.ledger`),
and so `tollway.ledger`, decides the claims; this module has only the state that a process loses in a crash: its open
calls, its commits of unknown outcome, and its unwritten closes.
"""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Any

from tests.kit.ledger_records import PROVIDER
from tests.model.gas import MemoryGas
from tests.model.ledger import MemoryLedger
from tests.model.rows import MemoryRows
from tests.model.settling import Dropped
from tests.model.stored_responses import MemoryAnswers
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId
from tollway.ledger.ledger import (
    Claim,
    Claimed,
    ClaimOutcome,
    Close,
    Closed,
    Fenced,
    Finish,
    NonceUnavailable,
    NonceUsed,
    StoredResponse,
)
from tollway.ledger.records import (
    AuthorizationKey,
    AuthorizedCall,
    CallState,
    Interruption,
    NewPayment,
    OpenCall,
    SettledTransfer,
    SettlementAttempt,
    Usage,
)
from tollway.limits import Limits
from tollway.spending_policy import SpendingPolicy


class Fate(Enum):
    """The outcome of the next commit. After either the database is unavailable until it is restored."""

    LOST = auto()  # nothing was written
    UNHEARD = auto()  # it was written, and its response was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedContext:
    """The settings of all gateways of one history."""

    limits: Limits
    unfinal_max_nano: dict[str, int]
    has_power_cuts: bool


class FakeMachine:
    """`life` ends with a power cut; what was written since the last flushed commit may end with it."""

    def __init__(
        self, context: SharedContext, *, now_ms: int, gateway: "type[FakeGateway] | None" = None
    ) -> None:
        self.context = context
        self.now_ms = now_ms
        self.rows = MemoryRows()
        self.is_away = False
        self.fate: Fate | None = None
        # Commits before the one that has the fate.
        self.spared = 0
        self._gateway = gateway or FakeGateway
        self._images: list[MemoryRows] = []

    def clock(self) -> int:
        return self.now_ms

    async def start(self, owner_id: str) -> "FakeGateway":
        gateway = self._gateway(self, owner_id)
        await gateway.renew_ownership(now_ms=self.now_ms)
        await gateway.recover(now_ms=self.now_ms)
        return gateway

    async def kill(self, gateway: Any) -> None:
        """Drops the memory of the process."""

    async def cut_power(self, *, loses_all: bool) -> None:
        """The newest unflushed commit is lost, or all of them."""
        self.is_away = False
        if self._images:
            image = self._images[0 if loses_all else -1]
            for field in fields(MemoryRows):
                setattr(self.rows, field.name, getattr(image, field.name))
            self._images.clear()
        self.rows.life += 1

    async def close(self) -> None: ...

    def enter(self, *, flush: bool) -> Fate | None:
        """A commit begins."""
        if self.is_away:
            raise StorageUnavailable
        fate = None
        if self.fate is not None and self.spared > 0:
            self.spared -= 1
        else:
            fate, self.fate = self.fate, None
        if fate is Fate.LOST:
            self.is_away = True
            raise StorageUnavailable
        if self.context.has_power_cuts:
            if flush:
                self._images.clear()
            else:
                self._images.append(_copy(self.rows))
        return fate

    def leave(self, fate: Fate | None) -> None:
        if fate is Fate.UNHEARD:
            self.is_away = True
            raise StorageUnavailable


class FakeGateway(MemoryLedger):
    """One gateway process: the model, and the state that `storage.ledger.group_commit` keeps in memory."""

    def __init__(self, machine: FakeMachine, owner_id: str) -> None:
        context = machine.context
        super().__init__(
            now_ms=machine.clock,
            owner_id=owner_id,
            limits=context.limits,
            unfinal_max_nano=context.unfinal_max_nano,
        )
        self.owner_id = owner_id
        self._machine = machine
        self._rows = machine.rows
        self.gas = MemoryGas(machine.rows)
        self._answers = MemoryAnswers(machine.rows, limits=context.limits)
        self._open: set[tuple[CallId, int]] = set()
        self._doubtful: set[tuple[CallId, int]] = set()
        self._reopened: set[tuple[CallId, int]] = set()
        self._late: dict[CallId, Close | Dropped | Finish] = {}

    def _answer(self) -> None:
        if self._machine.is_away:
            raise StorageUnavailable

    # ---- Ends of calls that could not be written: they go before everything else in the next batch.

    def _begin(self, call_id: CallId, *, flush: bool) -> Fate | None:
        """The batch of an entry. One of the same call goes with the batch after that of its end."""
        if call_id in self._late:
            self._write_late()
        fate = self._machine.enter(flush=flush or self._has_durable())
        self._move_late()
        return fate

    def _end(self, fate: Fate | None) -> None:
        self._machine.leave(fate)
        for call_id, end in self._late.items():
            self._open.discard((call_id, end.epoch))
        self._late.clear()

    def _write_late(self) -> None:
        if self._late:
            fate = self._machine.enter(flush=self._has_durable())
            self._move_late()
            self._end(fate)

    def _has_durable(self) -> bool:
        return any(isinstance(end, Dropped | Finish) for end in self._late.values())

    def _move_late(self) -> None:
        for call_id, end in self._late.items():
            if isinstance(end, Dropped):
                self._drop(call_id, end)
            elif isinstance(end, Finish):
                super().finish(end)
            else:
                self._close_late(end)

    def _close_late(self, close: Close) -> None:
        with contextlib.suppress(StopIteration):
            super().close(close).send(None)  # it never waits

    async def find_open_call(self, payment_id: int, digest: bytes) -> OpenCall | None:
        found = await super().find_open_call(payment_id, digest)
        if found is not None and found.call_id in self._late:
            self._write_late()
        return await super().find_open_call(payment_id, digest)

    async def find_authorized_call(self, key: AuthorizationKey) -> AuthorizedCall | None:
        found = await super().find_authorized_call(key)
        if found is not None and found.call_id in self._late:
            self._write_late()
        return await super().find_authorized_call(key)

    # ---- Through the queue: claims, reopens, closes, what settles.

    async def _decide(self, claim: Claim) -> ClaimOutcome:
        key = (claim.call_id, 1)
        try:
            fate = self._begin(claim.call_id, flush=True)
            outcome = await super()._decide(claim)
            self._end(fate)
        except StorageUnavailable:
            self._doubtful.add(key)
            raise
        if isinstance(outcome, Claimed):
            self._open.add(key)
        return outcome

    async def reopen(
        self,
        call_id: CallId,
        *,
        epoch: int,
        now_ms: int,
        is_plain: bool = False,
        nonce: bytes | None = None,
    ) -> Claimed | Fenced | NonceUsed:
        key = (call_id, epoch + 1)
        try:
            fate = self._begin(call_id, flush=True)
            outcome = await super().reopen(
                call_id, epoch=epoch, now_ms=now_ms, is_plain=is_plain, nonce=nonce
            )
            self._end(fate)
        except StorageUnavailable:
            if key not in self._reopened:
                self._doubtful.add(key)
            raise
        if isinstance(outcome, Claimed):
            self._open.add(key)
            self._reopened.add(key)
            self._doubtful.discard(key)
        return outcome

    async def close(self, close: Close) -> Closed | Fenced:
        try:
            fate = self._begin(close.call_id, flush=False)
            outcome = await super().close(close)
            self._end(fate)
        except StorageUnavailable:
            has_stored_response = close.after is CallState.CONSUMED and close.upstream_status is not None
            # Still open: written when the database is back.
            self._late[close.call_id] = Dropped(close.epoch, close) if has_stored_response else close
            raise
        self._open.discard((close.call_id, close.epoch))
        return outcome

    def finish(self, finish: Finish) -> None:
        if not self._machine.is_away:
            fate = self._begin(finish.call_id, flush=False)
            super().finish(finish)
            self._end(fate)

    async def finish_cut(self, finish: Finish) -> None:
        try:
            fate = self._begin(finish.call_id, flush=True)
            super().finish(finish)
            self._end(fate)
        except StorageUnavailable:
            self._late[finish.call_id] = finish

    async def settle(
        self, close: Close, *, attempt: SettlementAttempt | None, digest: bytes | None
    ) -> Closed | Fenced | NonceUnavailable:
        try:
            fate = self._begin(close.call_id, flush=True)
            outcome = await super().settle(close, attempt=attempt, digest=digest)
            self._end(fate)
        except StorageUnavailable:
            self._late[close.call_id] = Dropped(close.epoch, close)
            raise
        if isinstance(outcome, Fenced):
            self._open.discard((close.call_id, close.epoch))
        return outcome

    async def _conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        try:
            fate = self._begin(call_id, flush=True)
            outcome = await super()._conclude(
                call_id, epoch=epoch, transfer=transfer, is_orphaned=is_orphaned, now_ms=now_ms
            )
            self._end(fate)
        except StorageUnavailable:
            if not is_orphaned:
                self._late[call_id] = Dropped(epoch, None)
            raise
        self._open.discard((call_id, epoch))
        return outcome

    async def mark_orphaned(self, call_id: CallId, *, epoch: int, usage: Usage | None = None) -> bool:
        self._open.discard((call_id, epoch))
        self._machine.enter(flush=True)
        return await super().mark_orphaned(call_id, epoch=epoch, usage=usage)

    # ---- Transactions of their own.

    async def renew_ownership(self, *, now_ms: int) -> None:
        self._machine.enter(flush=True)
        await super().renew_ownership(now_ms=now_ms)

    @contextlib.contextmanager
    def _commit(self) -> Iterator[None]:
        fate = self._machine.enter(flush=True)
        yield
        self._machine.leave(fate)

    async def store_policy(self, policy: SpendingPolicy, signature: str, **options: Any) -> Any:
        with self._commit():
            return await super().store_policy(policy, signature, **options)

    async def accept_owner(self, agent: Address, owner: Address, **options: Any) -> Any:
        with self._commit():
            return await super().accept_owner(agent, owner, **options)

    async def revoke_policy(self, owner: Address, agent: Address, **options: Any) -> Any:
        with self._commit():
            return await super().revoke_policy(owner, agent, **options)

    async def keep_answer(self, call_id: CallId, payer: Address, answer: StoredResponse) -> None:
        self._machine.enter(flush=True)
        await self._answers.keep(call_id, answer, payer=payer, provider=PROVIDER, now_ms=self._now_ms())

    async def recover(self, *, now_ms: int) -> int:
        self._machine.enter(flush=True)
        self._write_late()
        moved = 0
        for call in list(self._rows.calls.values()):
            if call.owner_id == self.owner_id and (call.claim.call_id, call.epoch) not in self._open:
                moved += self._move_lost(call.claim.call_id, now_ms)
        return moved + await super().recover(now_ms=now_ms)

    def _move_lost(self, call_id: CallId, now_ms: int) -> int:
        """A call of this gateway that no task will close (`storage.ledger.ledger_store`, `_plan_lost_call`)."""
        call = self._rows.calls[call_id]
        if call.state is CallState.SETTLING:
            held = self._held_by(call)
            if held is None or held.is_orphaned:
                return 0
            held.is_orphaned, held.looked_ms = True, 0
            return 1
        if call.state is not CallState.FORWARDING:
            return 0
        is_doubtful = (call_id, call.epoch) in self._doubtful
        after = CallState.UNKNOWN
        if not is_doubtful:
            call.error = Interruption.OUTCOME_LOST.value
        if is_doubtful and call.epoch == 1:
            after, call.error = CallState.RELEASED, Interruption.NEVER_SENT.value
        elif is_doubtful and call.cut == "repeated":
            after = CallState.CONSUMED
        self._move(call, after)
        call.clock_releases = call.clock_releases and is_doubtful
        call.completed_ms = now_ms
        return 1

    async def recorded(self, new: NewPayment) -> Any:
        """That payment as it is in the ledger, for the report."""
        found = await self.find_payments(new.tx_hash)
        return next((one for one in found if one.payer == new.payer), None)


_MUTABLE = ("calls", "authorizations", "attempts")


def _copy(rows: MemoryRows) -> MemoryRows:
    image = MemoryRows()
    for field in fields(MemoryRows):
        value = getattr(rows, field.name)
        if field.name in _MUTABLE:
            value = {key: copy.copy(one) for key, one in value.items()}
        elif isinstance(value, dict | set | list):
            value = value.copy()
        setattr(image, field.name, value)
    return image
