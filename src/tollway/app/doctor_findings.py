"""The findings of `tollway gateway doctor` about the settings and the database. The operator's pages have them too.

They send no request to a chain node, a name server or a gateway, and make no table, no file and no key.
"""

import asyncio
import platform
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tollway.app.search_extra import load_extra
from tollway.config.settings import Settings
from tollway.errors import StorageUnavailable
from tollway.observability.telemetry import BackgroundTaskStatus
from tollway.registry.meaning import WeightsUnusable
from tollway.storage.engine.advisory_locks import find_exclusion_fault
from tollway.storage.engine.database import Database, SqliteDatabase, is_postgres, is_shared_write_safe
from tollway.storage.engine.migrate import TOO_OLD, schema_state
from tollway.storage.operator.operator_reads import find_risks, read_server_settings

if TYPE_CHECKING:
    from tollway.storage.engine.postgres import PostgresDatabase

FindingLevel = Literal["ok", "note", "warning", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. `check`: a stable name for scripts."""

    check: str
    level: FindingLevel
    detail: str


LATE_INTERVALS, LATE_S_MIN = 10, 60.0
"""A background task is late when its last successful run is older than this number of its intervals and than this number of seconds."""


def describe_late_tasks(tasks: Iterable[BackgroundTaskStatus]) -> list[str]:
    """A line for each background task of a gateway that is late."""
    return [
        f"{task.name} ran well {task.age_s:.0f} s ago, {task.failures} failure(s) since"
        for task in sorted(tasks, key=lambda task: task.name)
        if task.is_running and task.interval_s is not None
        if task.age_s > max(LATE_INTERVALS * task.interval_s, LATE_S_MIN)
    ]


SHARED_RATES_DOWN = (
    "the server at rate_limit_url does not answer or takes no writes; each gateway counts alone: "
    "repair it, or remove rate_limit_url and run one gateway"
)


async def find_local_risks(settings: Settings, database: Database) -> tuple[Finding, ...]:
    found = [finding async for finding in examine_local(settings, database)]
    return tuple(finding for finding in found if finding.level in ("warning", "failed"))


async def examine_local(settings: Settings, database: Database) -> AsyncIterator[Finding]:
    for finding in examine_settings(settings):
        yield finding
    yield await examine_database(settings, database)
    for finding in examine_sqlite(database):
        yield finding
    yield examine_python()
    yield await asyncio.to_thread(examine_search)
    if is_postgres(database):
        yield await examine_durability(database)


def examine_settings(settings: Settings) -> Iterator[Finding]:
    names = ", ".join(network.name for network in settings.networks)
    yield Finding(check="settings", level="ok", detail=f"{settings.public_url}; networks: {names}")
    has_main = any(network.rules.kind == "main" for network in settings.networks)
    if settings.secret_key is None:
        detail = f"a key will be made at {settings.secret_key_file} when the gateway first starts"
        yield Finding(check="secret_key", level="note", detail=detail)
    if settings.allow_private_endpoints:
        yield Finding(
            check="private_endpoints",
            level="warning",
            detail="listings can make the gateway call private addresses; turn allow_private_endpoints off "
            "outside of development",
        )
    if settings.allow_mixed_networks:
        detail = "main and test networks are configured together; listings use the main ones by default"
        yield Finding(check="mixed_networks", level="warning", detail=detail)
    if settings.admin_listen is not None and not settings.admin_listen.is_loopback:
        detail = f"every host that reaches {settings.admin_listen} can read the metrics"
        yield Finding(check="admin_listen", level="warning", detail=detail)
    if settings.operators:
        wallets = ", ".join(sorted(map(str, settings.operators)))
        detail = (
            f"these wallets may sign in to the operator's pages and change listings and balances: {wallets}"
        )
        yield Finding(check="operators", level="note", detail=detail)
    if has_main and settings.public_url.startswith("http://"):
        detail = "public_url is not https: signatures and sessions can be read in transit"
        yield Finding(check="public_url", level="warning", detail=detail)
    if settings.registration == "open":
        detail = "every wallet may publish; a listing makes this gateway call its endpoint for every caller that pays"
        yield Finding(check="registration", level="note", detail=detail)
    yield Finding(
        check="payees",
        level="note",
        detail="a caller can use one transfer at two gateways that share a payTo; a provider should use another wallet "
        "at each gateway",
    )


async def examine_database(settings: Settings, database: Database) -> Finding:
    where = database.describe_location()
    if isinstance(database, SqliteDatabase) and not database.path.exists():
        return Finding(check="database", level="note", detail=f"{where} will be made when the gateway starts")
    try:
        state = await schema_state(database)
        fault = await find_exclusion_fault(database)
    except StorageUnavailable:
        return Finding(check="database", level="failed", detail=f"{where} does not answer")
    if fault is not None:
        return Finding(check="database", level="failed", detail=f"{where}: {fault}")
    if state == "current":
        return Finding(check="database", level="ok", detail=f"{where}, up to date")
    if state == "foreign":
        detail = f"{where} needs a newer version than this one"
        return Finding(check="database", level="failed", detail=detail)
    if state == "ahead":
        detail = f"{where} is from a newer version; this one can serve from it"
        return Finding(check="database", level="warning", detail=detail)
    if state == "too_old":
        return Finding(check="database", level="failed", detail=f"{where}: {TOO_OLD}")
    if settings.is_sqlite:
        return Finding(
            check="database", level="note", detail=f"{where} will be migrated when the gateway starts"
        )
    if state == "serviceable":
        detail = (
            f"{where} is from the release before; this one can serve from it, but run tollway gateway migrate"
        )
        return Finding(check="database", level="warning", detail=detail)
    return Finding(
        check="database", level="failed", detail=f"{where} is {state}; run tollway gateway migrate"
    )


def examine_sqlite(database: Database) -> Iterator[Finding]:
    if database.dialect == "sqlite" and not is_shared_write_safe():
        yield Finding(
            check="sqlite_version",
            level="warning",
            detail="this SQLite can lose pages when two processes write; stop the gateway before you moderate, "
            "or use SQLite 3.51.3 or newer",
        )


def is_optimised_build() -> bool:
    """Whether this interpreter was built with profile-guided optimisation. Those of distributions are, and do not record it."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "--enable-optimizations" in arguments or sys.base_prefix == "/usr"


def examine_python() -> Finding:
    check, version = "python", platform.python_version()
    if is_optimised_build():
        return Finding(check=check, level="ok", detail=f"{version}, an optimised build")
    return Finding(
        check=check,
        level="note",
        detail=f"{version}, built without profile-guided optimisation: a call takes about a tenth more CPU. Use Python 3.13 of a "
        "distribution or of the image, or build it with --enable-optimizations --with-lto",
    )


def examine_search() -> Finding:
    """Reads the files of the extra, which takes a third of a second the first time."""
    check = "search"
    try:
        is_by_meaning = load_extra()
    except WeightsUnusable as exc:
        return Finding(check=check, level="warning", detail=f"by words only: {exc}")
    if is_by_meaning:
        return Finding(check=check, level="ok", detail="by words and by meaning")
    return Finding(
        check=check, level="note", detail="by words; with pip install 'tollway[search]' also by meaning"
    )


async def examine_durability(database: "PostgresDatabase") -> Finding:
    check = "durability"
    try:
        server = await read_server_settings(database)
    except StorageUnavailable:
        return Finding(
            check=check, level="failed", detail="the database does not answer; repair it and run doctor again"
        )
    risks = list(find_risks(server))
    if risks:
        level: FindingLevel = "failed" if server.is_read_only else "warning"
        return Finding(check=check, level=level, detail="; ".join(risks))
    waits = (
        f"waits for {server.standbys}"
        if server.standbys
        else "is on one server alone, and is lost with its disk"
    )
    return Finding(check=check, level="ok", detail=f"a claim is on disk before it is served; it {waits}")
