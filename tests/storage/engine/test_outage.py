"""The log of an outage: one line with its cause when it begins, one when it ends."""

import sqlite3
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from structlog.testing import capture_logs

from tollway.storage.engine.outage import (
    LOG_INTERVAL_S,
    CommitInDoubt,
    OutageLog,
    is_value_refused,
    name_cause,
)


def server_error(state: str) -> DBAPIError:
    orig = Exception("could not extend file")
    orig.sqlstate = state  # type: ignore[attr-defined]
    return DBAPIError("INSERT secret", {}, orig)


def file_error(name: str) -> DBAPIError:
    orig = sqlite3.OperationalError("disk")
    orig.sqlite_errorname = name
    return DBAPIError("INSERT secret", {}, orig)


@pytest.mark.parametrize(
    ("exc", "cause"),
    [
        (server_error("25006"), "read_only"),
        (server_error("53100"), "disk_full"),
        (server_error("53300"), "too_many_connections"),
        (server_error("57P01"), "server_stopping"),
        (server_error("08006"), "connection_lost"),
        (server_error("42703"), "failed"),
        (file_error("SQLITE_FULL"), "disk_full"),
        (file_error("SQLITE_READONLY_DBMOVED"), "read_only"),
        (file_error("SQLITE_IOERR_WRITE"), "disk_error"),
        (file_error("SQLITE_CANTOPEN"), "file_cannot_be_opened"),
        (file_error("SQLITE_BUSY"), "locked_by_another_process"),
        (file_error("SQLITE_ERROR"), "failed"),
        (DBAPIError("x", {}, Exception(), connection_invalidated=True), "connection_lost"),
        (PoolTimeout(), "no_connection_free"),
        (TimeoutError(), "no_response_in_time"),
        (ConnectionRefusedError(), "unreachable"),
        (CommitInDoubt(), "standby_not_waited_for"),
        (ValueError(), "failed"),
    ],
)
def test_names_the_cause(exc: BaseException, cause: str) -> None:
    assert name_cause(exc) == cause


@pytest.mark.parametrize(
    ("exc", "is_own_fault"),
    [
        (server_error("22001"), True),  # a text that is too long
        (server_error("22003"), True),  # a number out of range
        (server_error("22021"), True),  # a NUL
        (server_error("53100"), False),
        (file_error("SQLITE_FULL"), False),
        (OverflowError(), True),
        (ConnectionRefusedError(), False),
    ],
)
def test_distinguishes_a_bad_value_from_an_outage(exc: BaseException, is_own_fault: bool) -> None:
    assert is_value_refused(exc) is is_own_fault


class Log:
    def __init__(self) -> None:
        self.s = 100.0
        self.it = OutageLog("postgresql:h1/books", clock=lambda: self.s)


def logged(job: Any) -> list[tuple[str, str, str]]:
    with capture_logs() as lines:
        job()
    return [(line["event"], line["use"], line["cause"]) for line in lines]


def test_logs_the_begin_and_the_end_of_an_outage_once() -> None:
    log = Log()

    def outage() -> None:
        for _ in range(5):
            log.it.record_failure("write", server_error("53100"))
            log.it.record_success("read")  # a full disk can still be read
        log.it.record_success("write")
        log.it.record_success("write")

    assert logged(outage) == [("storage_away", "write", "disk_full"), ("storage_back", "write", "disk_full")]


def test_logs_a_new_cause_at_once_and_the_same_cause_after_an_interval() -> None:
    log = Log()

    def flapping() -> None:
        for _ in range(5):
            log.it.record_failure("write", server_error("53100"))
            log.it.record_failure("write", server_error("25006"))

    assert logged(flapping) == [
        ("storage_away", "write", "disk_full"),
        ("storage_away", "write", "read_only"),
    ]
    log.s += LOG_INTERVAL_S
    assert len(logged(flapping)) == 2


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_rollback_by_the_database_is_no_outage(state: str) -> None:
    assert logged(lambda: Log().it.record_failure("write", server_error(state))) == []


def test_the_log_contains_no_statement() -> None:
    with capture_logs() as lines:
        Log().it.record_failure("write", server_error("53100"))
    assert "secret" not in str(lines)
    assert lines[0]["detail"] == "could not extend file"


def test_the_time_of_an_outage_counts_once_by_its_cause() -> None:
    moments = [0.0]
    log = OutageLog("here", clock=lambda: moments[0])
    moments[0] = 10.0
    assert (log.is_away, log.read_away_s()) == (False, {})
    log.record_failure("write", file_error("SQLITE_FULL"))
    moments[0] = 13.0
    assert (log.is_away, log.read_away_s()) == (True, {"disk_full": 3.0})
    log.record_failure("read", file_error("SQLITE_FULL"))  # both uses, one cause
    moments[0] = 15.0
    log.record_failure("write", file_error("SQLITE_IOERR_WRITE"))
    moments[0] = 16.0
    log.record_success("read")
    log.record_success("write")
    moments[0] = 99.0
    assert (log.is_away, log.read_away_s()) == (False, {"disk_full": 6.0, "disk_error": 1.0})
