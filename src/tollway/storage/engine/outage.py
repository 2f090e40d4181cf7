"""Classifies errors of the database and logs outages: one line when an outage begins and one when it ends, not one for each request.

The log never contains the values of a statement: they may be secret.
"""

import time
from collections.abc import Callable
from typing import Literal

import structlog
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tollway.errors import StorageUnavailable

_log = structlog.get_logger(__name__)

Use = Literal["read", "write"]


class ValueRefused(StorageUnavailable):
    """A column cannot hold a value of the statement. The transaction is rolled back; the database is available."""


class RowsChanged(StorageUnavailable):
    """Rows that a transaction looked up have changed while it waited for their locks. It is rolled back, and may run again."""


class CommitInDoubt(ConnectionError):
    """The server committed without its standby, because the wait for the standby was cancelled."""


LOG_INTERVAL_S = 10.0
"""The shortest time between two lines with the same cause, for a database of which only some writes fail (a nearly full disk)."""

READ_ONLY = "25006"
SESSION_ENDED = ("08", "57P", "25P03")
"""Prefixes of the SQLSTATE after which the session is closed by the server."""
_ROLLED_BACK = ("40001", "40P01")
_DATA_EXCEPTION = "22"
"""The class of SQLSTATEs for a bad value (PostgreSQL manual, appendix A)."""
_BY_STATE = {
    READ_ONLY: "read_only",
    "53100": "disk_full",
    "53200": "out_of_memory",
    "53300": "too_many_connections",
    "53400": "limit_of_the_server",
    "55P03": "lock_not_available",
    "57014": "statement_cancelled",
    "57P01": "server_stopping",
    "57P02": "server_crashed",
    "57P03": "server_starting_or_stopping",
    "58030": "disk_error",
    "42501": "permission_denied",
    "25P03": "transaction_idle_too_long",
}
_BY_SQLITE = (
    ("SQLITE_FULL", "disk_full"),
    ("SQLITE_READONLY", "read_only"),
    ("SQLITE_IOERR", "disk_error"),
    ("SQLITE_CANTOPEN", "file_cannot_be_opened"),
    ("SQLITE_PERM", "permission_denied"),
    ("SQLITE_BUSY", "locked_by_another_process"),
    ("SQLITE_LOCKED", "locked_by_another_process"),
    ("SQLITE_CORRUPT", "corrupt"),
    ("SQLITE_NOTADB", "not_a_database"),
)


def name_state(exc: BaseException) -> str | None:
    source = exc.orig if isinstance(exc, DBAPIError) else exc
    state = getattr(source, "sqlstate", None)
    return state if isinstance(state, str) else None


def is_value_refused(exc: BaseException) -> bool:
    """True when a value caused the error, not the database: SQLSTATE class 22; on SQLite a number over 64 bits, a text that is not UTF-8,
    a value over the maximum of bytes."""
    if isinstance(exc, OverflowError | UnicodeEncodeError | DataError):
        return True
    return (name_state(exc) or "").startswith(_DATA_EXCEPTION)


def name_cause(exc: BaseException) -> str:
    """The cause of an outage as a word for the log; `failed` for an unknown error."""
    state = name_state(exc)
    if state is not None:
        return _BY_STATE.get(state, "connection_lost" if state.startswith("08") else "failed")
    if isinstance(exc, DBAPIError):
        name = getattr(exc.orig, "sqlite_errorname", None) or ""
        for start, cause in _BY_SQLITE:
            if name.startswith(start):
                return cause
        return "connection_lost" if exc.connection_invalidated else "failed"
    if isinstance(exc, CommitInDoubt):
        return "standby_not_waited_for"
    if isinstance(exc, PoolTimeout):
        return "no_connection_free"
    if isinstance(exc, TimeoutError):
        return "no_response_in_time"
    return "unreachable" if isinstance(exc, OSError) else "failed"


class OutageLog:
    """A log of the outages of one database. Reads and writes have separate outages: a full disk can still be read. For one event loop or thread at a
    time. `ongoing`: the cause and the begin of each outage that lasts."""

    def __init__(self, where: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._clock = clock
        self.ongoing: dict[Use, tuple[str, float]] = {}
        self._away_s: dict[str, float] = {}
        self._counted_s = clock()
        self._logged_s: dict[tuple[Use, str], float] = {}

    @property
    def is_away(self) -> bool:
        return bool(self.ongoing)

    def read_away_s(self) -> dict[str, float]:
        """The time of all outages so far, in seconds, by cause. The time of an outage of both uses with one cause counts once."""
        now_s = self._clock()
        for cause in {cause for cause, _ in self.ongoing.values()}:
            self._away_s[cause] = self._away_s.get(cause, 0.0) + now_s - self._counted_s
        self._counted_s = now_s
        return dict(self._away_s)

    def record_failure(self, use: Use, exc: BaseException) -> None:
        if name_state(exc) in _ROLLED_BACK:
            return
        cause, now_s = name_cause(exc), self._clock()
        before = self.ongoing.get(use)
        if before is not None and before[0] == cause:
            return
        self.read_away_s()  # the time until now belongs to the causes until now
        self.ongoing[use] = (cause, before[1] if before else now_s)
        logged_s = self._logged_s.get((use, cause))
        if logged_s is not None and now_s - logged_s < LOG_INTERVAL_S:
            return
        self._logged_s[use, cause] = now_s
        # The message of a server or a disk contains files and addresses, never the values of a statement.
        detail = str(exc.orig if isinstance(exc, DBAPIError) else exc)[:300]
        _log.error("storage_away", use=use, cause=cause, detail=detail, database=self._where)

    def record_success(self, use: Use) -> None:
        """Ends the outage of this use, if there is one."""
        if use not in self.ongoing:
            return
        self.read_away_s()
        cause, since_s = self.ongoing.pop(use)
        away_s = round(self._clock() - since_s, 1)
        _log.info("storage_back", use=use, cause=cause, away_s=away_s, database=self._where)
