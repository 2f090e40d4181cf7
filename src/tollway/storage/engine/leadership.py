"""Leader election: one of many gateways does a duty while its session with PostgreSQL holds a lock.

A lock of a session ends with the session: at once when its process dies, after `leader_lease_s` when the process or the machine is silent
(the server closes an idle session). On SQLite the only gateway leads.

A gateway has a handicap: the number of networks that it cannot read. Each duty has a lock for each handicap. A leader leads until another
gateway holds the lock of a smaller handicap. So a leader without its nodes goes on until a better gateway has begun, no duty is left
before another gateway took it, and equal gateways do not alternate.

Two leaders at a time are possible: a paused leader goes on for a moment after another one has taken over. So the ledger guards the work
of leaders, each move by its expected state. Leadership saves work; it decides nothing.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import func, select, text

from tollway.errors import StorageUnavailable
from tollway.limits import Limits
from tollway.observability.background import BackgroundTask, TaskName
from tollway.storage.engine.database import Database, is_postgres
from tollway.storage.engine.statements import FetchScalar

if TYPE_CHECKING:
    from tollway.storage.engine.postgres import PostgresDatabase

_SPACE = 0x746F6C6D
"""The upper half of the numbers of these locks. Migrations and claims have other numbers."""
_HANDICAP_SHIFT = 8
"""The lower half: the handicap, shifted by these bits, and the duty in the last byte."""

_log = structlog.get_logger(__name__)


class Duty(IntEnum):
    """Work that one gateway does for all. The value is the last byte of its locks' numbers."""

    SWEEPER = 1
    WATCHER = 2
    REPUTATION = 3
    WEBHOOKS = 4

    @property
    def label(self) -> str:
        return self.name.lower()

    def lock_of(self, handicap: int) -> int:
        return _SPACE << 32 | handicap << _HANDICAP_SHIFT | self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A gateway that leads. `address`: as PostgreSQL sees it; None for a socket of the same machine. `server_process`: the process id of its session.
    `handicap`: how many networks it cannot read. `owner_id`: of its lease; None where its session names none."""

    address: str | None
    server_process: int
    handicap: int = 0
    owner_id: str | None = None


def choose_lock(held: int, *, wanted: int, others: Collection[int]) -> int | None:
    """Decides which lock a leader holds next, by its handicap; None when it must give way. `held`: the handicap of its lock. `wanted`: its current
    handicap. `others`: the handicaps of the locks of other gateways."""
    if any(other < held for other in others):
        return None
    return held if wanted in others else wanted


class Leadership:
    """The candidature of one gateway for one duty. `on_change`: called at each change, with the duty and whether this gateway leads.
    `count_lost`: returns how many networks this gateway cannot read now. `owner_id`: of its lease; the server shows it beside the session."""

    def __init__(
        self,
        database: Database,
        *,
        duty: Duty,
        limits: Limits,
        on_change: Callable[[Duty, bool], None],
        count_lost: Callable[[], int] = lambda: 0,
        owner_id: str = "",
        task: BackgroundTask | None = None,
    ) -> None:
        self._owner_id = owner_id
        self._task = task or BackgroundTask(TaskName(f"{duty.label}_election"))
        self._database = database
        self._duty = duty
        self._limits = limits
        self._on_change = on_change
        self._count_lost = count_lost
        self.is_leading = False

    async def lead(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Runs `work` while this gateway leads, until this task is cancelled. `work` is cancelled when the lead is lost or given to a better gateway,
        and started again with the next lead. It must not return or raise before."""
        if not is_postgres(self._database):
            self._set_leading(is_leading=True)
            try:
                await work()
            finally:
                self._set_leading(is_leading=False)
            return
        await self._task.repeat(
            self._limits.leader_poll_s, partial(self._lead_if_vacant, self._database, work)
        )

    async def _lead_if_vacant(
        self, database: "PostgresDatabase", work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        if await self._is_vacant():
            await self._lead_until_lost(database, work)

    async def _is_vacant(self) -> bool:
        """No gateway leads with this handicap or a smaller one. A connection of the pool: a waiting gateway has no session of its own."""
        locks = [self._duty.lock_of(handicap) for handicap in range(self._count_lost() + 1)]
        query = select(*(func.pg_try_advisory_xact_lock_shared(lock) for lock in locks))
        row = await self._database.read(lambda connection: connection.execute(query).one())
        return all(row)

    async def _lead_until_lost(
        self, database: "PostgresDatabase", work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        async with database.open_session() as fetch_scalar:
            held = self._count_lost()
            session = await self._take_lock(fetch_scalar, held)
            if session is None:
                return
            self._set_leading(is_leading=True)
            try:
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(work())
                    await self._keep_lock(fetch_scalar, session, held)
                    working.cancel()
            finally:
                self._set_leading(is_leading=False)

    async def _take_lock(self, fetch_scalar: FetchScalar, handicap: int) -> int | None:
        """Takes the lock of a handicap. Returns the process id of the session; None when another gateway has the lock.

        The statement that keeps the lock is prepared before: the driver prepares and executes in two messages, and a server that waits for the second one
        counts a session as busy. A leader that freezes in between would keep its lock, because nothing ends such a session.
        """
        lease_ms = round(self._limits.leader_lease_s * 1000)
        await fetch_scalar(
            _PREPARE.bindparams(
                lease_ms=str(lease_ms),
                lease_s=str(max(1, lease_ms // 3000)),
                name=_SESSION_PREFIX + self._owner_id,
            )
        )
        await fetch_scalar(_FIND_SESSION)
        taken: int | None = await fetch_scalar(_TAKE_LOCK.bindparams(lock=self._duty.lock_of(handicap)))
        return taken

    async def _keep_lock(self, fetch_scalar: FetchScalar, session: int, handicap: int) -> None:
        """Returns when the lock is or may be lost, or when another gateway is to lead."""
        held: int | None = handicap
        while held is not None:
            await asyncio.sleep(self._limits.leader_poll_s)
            try:
                async with asyncio.timeout(self._limits.leader_lease_s / 2):
                    found = await fetch_scalar(_FIND_SESSION)
                    if found == session:
                        self._task.record_success()
                        held = await self._change_lock(fetch_scalar, held)
            except (StorageUnavailable, TimeoutError) as exc:
                _log.warning("leadership_lost", duty=self._duty.label, detail=str(exc.__cause__ or exc))
                return
            if found != session:
                # A pooler gave this connection another session, or the server is not the primary any more.
                _log.error("leadership_lost", duty=self._duty.label, detail="the session is another one")
                return
        _log.info("leadership_given_way", duty=self._duty.label, networks_away=self._count_lost())

    async def _change_lock(self, fetch_scalar: FetchScalar, held: int) -> int | None:
        """Changes the lock to the current handicap. Returns the handicap of the lock; None when another gateway is better."""
        wanted = self._count_lost()
        if wanted == held == 0:
            # The usual case without a further query: no gateway can be better.
            return held
        others = await fetch_scalar(
            _OTHER_HANDICAPS.bindparams(space=_SPACE, shift=_HANDICAP_SHIFT, duty=self._duty.value)
        )
        chosen = choose_lock(held, wanted=wanted, others=others)
        if chosen is None or chosen == held:
            return chosen
        if await fetch_scalar(_TAKE_LOCK.bindparams(lock=self._duty.lock_of(chosen))) is None:
            # Another gateway took the lock first.
            return held
        await fetch_scalar(select(func.pg_advisory_unlock(self._duty.lock_of(held))))
        _log.info("leadership_handicap", duty=self._duty.label, networks_away=chosen)
        return chosen

    def _set_leading(self, *, is_leading: bool) -> None:
        self.is_leading = is_leading
        _log.info("leadership_gained" if is_leading else "leadership_ended", duty=self._duty.label)
        self._on_change(self._duty, is_leading)


_SESSION_PREFIX = "tollway leader "
"""Before the owner id, in the `application_name` of the session of a leader. The server cuts the name at 63 bytes."""
# Sets only the settings that the server has: `idle_session_timeout` came with version 14.
_PREPARE = text(
    "SELECT count(set_config(wish.name, wish.value, false)) FROM (VALUES ('idle_session_timeout', :lease_ms), "
    "('tcp_user_timeout', :lease_ms), ('tcp_keepalives_idle', :lease_s), ('tcp_keepalives_interval', :lease_s), "
    "('tcp_keepalives_count', '2'), ('application_name', :name)) AS wish (name, value) JOIN pg_settings USING (name)"
)
_TAKE_LOCK = text(
    "SELECT CASE WHEN NOT pg_is_in_recovery() AND pg_try_advisory_lock(:lock) THEN pg_backend_pid() END"
)
_FIND_SESSION = text("SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_backend_pid() END")
_OTHER_HANDICAPS = text(
    "SELECT coalesce(array_agg(CAST(objid AS bigint) >> :shift), '{}') FROM pg_locks WHERE locktype = 'advisory' "
    "AND mode = 'ExclusiveLock' AND granted AND classid = :space AND objsubid = 1 "
    "AND CAST(objid AS bigint) & ((1 << :shift) - 1) = :duty AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_LEADERS = text(
    "SELECT objid, host(client_addr) AS address, pid, application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND classid = :space AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


async def find_leaders(database: Database) -> Mapping[Duty, Leader]:
    """Returns nothing on SQLite. During a change of leaders, names the gateway that will stay."""
    if not is_postgres(database):
        return {}
    rows = await database.read(lambda connection: connection.execute(_LEADERS.bindparams(space=_SPACE)).all())
    known = {duty.value: duty for duty in Duty}
    leaders: dict[Duty, Leader] = {}
    for row in sorted(rows, key=lambda row: int(row.objid), reverse=True):
        handicap, number = divmod(row.objid, 1 << _HANDICAP_SHIFT)
        if number in known:
            leaders[known[number]] = Leader(
                address=row.address,
                server_process=row.pid,
                handicap=handicap,
                owner_id=_parse_owner(row.application_name),
            )
    return leaders


def _parse_owner(session_name: str | None) -> str | None:
    """The owner id in the name of a session; None for the session of a release that sets no name."""
    name = session_name or ""
    return name.removeprefix(_SESSION_PREFIX) or None if name.startswith(_SESSION_PREFIX) else None


async def are_sessions_shared(database: "PostgresDatabase") -> bool:
    """True when a pooler before the server assigns a session for one transaction only: then locks of a session have no owner."""
    process = select(func.pg_backend_pid())
    async with database.open_session() as fetch_scalar:
        before = await fetch_scalar(process)
        # A pooler would give the session of the last statement to this transaction.
        return bool(await database.read(lambda connection: connection.scalar(process)) == before)
