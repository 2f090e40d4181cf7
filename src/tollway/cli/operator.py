"""Commands of the operator: serve, migrate, audit, admit, doctor; backup and restore of a SQLite database.

The output is sentences on a terminal, and JSON in a pipe or with `--json`. A command writes to the database of a running gateway only where two
processes may write. `backup` and `restore` refuse PostgreSQL, which has backups of its own.

A backup never contains the secret key, which would open every secret of the listings.
"""

import asyncio
import contextlib
import json
import os
import pwd
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TextIO, cast

import structlog
import typer
from pydantic import Secret

from tollway.audit_log import AuditLog, AuditOrigin
from tollway.chain.nodes import ChainsWithNodes
from tollway.cli.audit_report import describe_held, describe_report, describe_rewrite
from tollway.cli.run_records import note_audit, note_backup
from tollway.config.settings import Settings, load_settings
from tollway.errors import ChainUnavailable, SettingsInvalid, StorageUnavailable, TollwayError
from tollway.ids import TxHash
from tollway.ledger.ledger import OperatorLedger
from tollway.observability.telemetry import configure_logging, redact_entry
from tollway.registry.catalog import Catalog
from tollway.registry.moderation import Moderation, parse_reason
from tollway.storage.engine.database import (
    Database,
    ProcessLock,
    SqliteDatabase,
    connect_database,
    is_shared_write_safe,
)
from tollway.storage.engine.migrate import explain_refusal, schema_state, upgrade
from tollway.storage.operator.backup import (
    BackupCopy,
    BackupUnusable,
    RestoredBackup,
    back_up,
    restore_backup,
)

DONE, FAILED, USAGE, LATER = 0, 1, 2, 3
"""Exit codes."""

ACTOR_LENGTH_MAX = 200
FETCH_DEADLINE_S, FETCHED_BYTES_MAX = 5.0, 4 * 1024 * 1024

Config = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file; default: TOLLWAY_CONFIG, then tollway.toml."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, also on a terminal.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Why: one line for the audit log (`gateway admin log`).")
]


class OperatorServices(Protocol):
    """The parts of the gateway that the operator's commands use; an `App` that is not opened provides them."""

    @property
    def settings(self) -> Settings: ...
    @property
    def database(self) -> Database: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def operator_ledger(self) -> OperatorLedger: ...
    @property
    def moderation(self) -> Moderation: ...
    @property
    def audit_log(self) -> AuditLog: ...
    @property
    def chains(self) -> ChainsWithNodes: ...


Access = Literal["look", "read", "write", "make"]
"""`look` needs no database; `read` and `write` need an existing one; `make` makes one where there is none."""

MakeServices = Callable[[Settings], OperatorServices]


class CommandFailed(Exception):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, detail: str, *, exit_code: int = FAILED) -> None:
        self.exit_code = exit_code
        super().__init__(detail)


def wire_services(settings: Settings) -> OperatorServices:
    """The app, wired but not opened. What it logs goes to standard error: standard output is the result of the command."""
    from tollway.app.lifecycle import App  # loads the server, which other commands do not need

    if not structlog.is_configured():
        processors: list[structlog.typing.Processor] = [
            structlog.processors.add_log_level,
            redact_entry,
            structlog.processors.JSONRenderer(),
        ]
        factory = structlog.PrintLoggerFactory(cast(TextIO, _StandardError()))
        structlog.configure(processors=processors, logger_factory=factory, cache_logger_on_first_use=False)
    return App(settings)


class _StandardError:
    """Standard error at the moment of a write: a test runner replaces it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEnvironment:
    """How the commands make the app, and whether two processes may write to one SQLite file."""

    make_services: MakeServices = wire_services
    is_write_safe: Callable[[], bool] = is_shared_write_safe


def read_environment(ctx: typer.Context) -> OperatorEnvironment:
    """The environment that the tests give as the context's object; else the real one."""
    return ctx.find_object(OperatorEnvironment) or OperatorEnvironment()


def serve(config: Config = None) -> None:
    with explained_failures(as_json=False):
        settings = load_settings(os.environ, config=config)
        configure_logging(
            level=settings.log_level, style=settings.log_format, journal=os.environ.get("JOURNAL_STREAM")
        )
        import uvloop

        from tollway.app import lifecycle

        uvloop.run(lifecycle.run(settings))


def migrate(ctx: typer.Context, config: Config = None, as_json: AsJson = False) -> None:
    async def work(services: OperatorServices) -> None:
        state = await schema_state(services.database)
        now = await upgrade(services.database)
        if (refusal := explain_refusal(now)) is not None:
            raise CommandFailed(refusal)
        print_result({"before": state, "now": now}, [f"database: {state} -> {now}"], as_json)

    run_with_services(ctx, work, config, as_json=as_json, access="make")


def doctor(ctx: typer.Context, config: Config = None, as_json: AsJson = False) -> None:
    async def work(services: OperatorServices) -> None:
        from tollway.cli.doctor import examine  # loads PostgreSQL's driver

        async with _opened_chains(services.chains):
            found = await examine(
                given,
                database=services.database,
                chains=services.chains,
                fetch_status=_fetch_status,
                fetch_text=_fetch_text,
                now_s=time.time(),
            )
        lines = [f"{finding.level:8} {finding.check}: {finding.detail}" for finding in found]
        print_result({"findings": [asdict(finding) for finding in found]}, lines, as_json)
        if any(finding.level == "failed" for finding in found):
            raise typer.Exit(FAILED)

    with explained_failures(as_json=as_json):
        given = load_settings(os.environ, config=config)
        asyncio.run(_use_services(read_environment(ctx), given, work, access="look"))


def audit(
    ctx: typer.Context,
    release: Annotated[
        bool,
        typer.Option("--release", help="Make balances that are held after a restore spendable again."),
    ] = False,
    restored: Annotated[
        bool, typer.Option("--restored", help="Hold all balances, because the database was restored.")
    ] = False,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite", help="Let closed hours and days that differ from their calls be written again."
        ),
    ] = False,
    reason: Reason = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    if release + restored + rewrite > 1:
        raise typer.BadParameter(
            "--restored holds balances, --release frees them, --rewrite repairs sums; give one of the three"
        )
    is_change = release or restored or rewrite
    origin = make_origin(reason)

    async def work(services: OperatorServices) -> None:
        if restored:
            await services.operator_ledger.mark_restored(origin=origin)
        report = await services.operator_ledger.audit()
        note = await note_audit(
            services.database,
            report,
            is_write_safe=None if is_change else read_environment(ctx).is_write_safe,
        )
        if release and not report.is_balanced:
            raise CommandFailed(
                "the ledger does not balance, so nothing was released. Keep the database and report this: "
                + "; ".join(report.wrong)
            )
        released = await services.operator_ledger.release_held(origin=origin) if release else 0
        starts = report.wrong_period_starts
        rewritten = await services.operator_ledger.rewrite_periods(starts, origin=origin) if rewrite else 0
        held = () if release else report.held_payments
        answer = {
            "balanced": report.is_balanced,
            "payments": report.payments,
            "calls": report.calls,
            "wrong": list(report.wrong),
            "closedPeriods": report.closed_periods,
            "markedPeriods": report.marked_periods,
            "wrongPeriods": list(report.wrong_periods),
            "heldCalls": list(report.held_calls),
            "heldPayments": list(held),
            "releasedPayments": list(report.held_payments) if release else [],
            "released": released,
            "rewrittenPeriods": rewritten,
            "recorded": note is None,
        }
        details = describe_held(report, services.settings.networks, now_ms=time.time_ns() // 1_000_000)
        answer["held"] = [one for one in details if one["kind"] == "call" or not release]
        lines = list(describe_report(report, details, payments_are="released" if release else "held"))
        lines += [f"released: {released}"] if release else []
        lines += [describe_rewrite(rewritten)] if rewrite else []
        lines += [note] if note else []
        print_result(answer, lines, as_json)
        if not (report.is_balanced if rewrite else report.is_right):
            raise typer.Exit(FAILED)

    run_with_services(ctx, work, config, as_json=as_json, access="write" if is_change else "read")


def admit(
    ctx: typer.Context,
    transaction: Annotated[str, typer.Argument(metavar="TX", help="The transaction hash.")],
    reason: Reason = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    tx_hash, origin = parse_argument(TxHash.parse, transaction), make_origin(reason)

    async def work(services: OperatorServices) -> None:
        await services.operator_ledger.admit(tx_hash, origin=origin)
        print_result(
            {"transaction": str(tx_hash), "admitted": True}, [f"callers may pay with {tx_hash}"], as_json
        )

    run_with_services(ctx, work, config, as_json=as_json, access="write")


def run_with_services(
    ctx: typer.Context,
    work: Callable[[OperatorServices], Awaitable[None]],
    config: Path | None,
    *,
    as_json: bool,
    access: Access,
) -> None:
    run_with_settings(
        lambda settings: _use_services(read_environment(ctx), settings, work, access=access),
        config,
        as_json=as_json,
    )


def run_with_settings(
    run: Callable[[Settings], Coroutine[Any, Any, None]], config: Path | None, *, as_json: bool
) -> None:
    """Runs a command with the settings, in an event loop of its own."""
    with explained_failures(as_json=as_json):
        asyncio.run(run(_load_settings(config)))


def _load_settings(config: Path | None) -> Settings:
    """The settings of a command that neither signs nor names gas keys."""
    return load_settings(os.environ, config=config, gas_key_files="leave_out")


async def _use_services(
    environment: OperatorEnvironment,
    settings: Settings,
    work: Callable[[OperatorServices], Awaitable[None]],
    *,
    access: Access,
) -> None:
    if access != "make":
        # Where there is no key yet, the app gets a temporary one: only what makes a database makes its key file.
        settings = settings.model_copy(
            update={"secret_keys": settings.secret_keys or (Secret(os.urandom(32)),)}
        )
    services = environment.make_services(settings)
    async with opened_database(services.database, access, environment):
        await work(services)


@contextlib.asynccontextmanager
async def opened_database(
    database: Database, access: Access, environment: OperatorEnvironment
) -> AsyncIterator[None]:
    """Opens the database for a command, and closes it. Raises `CommandFailed` where `read` or `write` meets tables that this version must not use."""
    with _guard_database(database, access, environment):
        if access in ("write", "make"):
            await database.open()  # on SQLite this opens the writer, which reading does without
        try:
            if access in ("read", "write"):
                refusal = explain_refusal(await schema_state(database))
                if refusal is not None:
                    raise CommandFailed(refusal)
            yield
        finally:
            await database.close()


@contextlib.contextmanager
def _guard_database(database: Database, access: Access, environment: OperatorEnvironment) -> Iterator[None]:
    """Refuses a second writer of a SQLite file where the library does not support two, and keeps every command but `migrate` from making a file."""
    if not isinstance(database, SqliteDatabase) or access == "look":
        yield
        return
    if access != "make" and not database.path.exists():
        raise CommandFailed(
            f"there is no database at {database.path} yet; run tollway gateway migrate or serve"
        )
    if access == "read":
        yield
        return
    database.path.parent.mkdir(parents=True, exist_ok=True)
    lock = ProcessLock(Path(f"{database.path}.lock"))
    try:
        if not lock.acquire() and not environment.is_write_safe():
            raise CommandFailed(
                "a gateway has this file open, and this SQLite does not support two writers; stop the gateway first",
                exit_code=LATER,
            )
        yield
    finally:
        lock.release()


@contextlib.asynccontextmanager
async def _opened_chains(chains: ChainsWithNodes) -> AsyncIterator[None]:
    """Opens a reader of real nodes in the event loop that uses it; a reader in memory needs no opening."""
    if isinstance(chains, contextlib.AbstractAsyncContextManager):
        async with chains:
            yield
    else:
        yield


@contextlib.contextmanager
def explained_failures(*, as_json: bool) -> Iterator[None]:
    """Prints a failure as sentences or as JSON, and sets the exit code."""
    try:
        yield
    except SettingsInvalid as exc:
        _print_problems(exc.problems, "settings_invalid", as_json=as_json)
        raise typer.Exit(USAGE) from exc
    except CommandFailed as exc:
        _print_problems([str(exc)], "command_failed", as_json=as_json)
        raise typer.Exit(exc.exit_code) from exc
    except TollwayError as exc:
        _print_problems([exc.problem.detail], exc.problem.code.value, as_json=as_json)
        is_passing = isinstance(exc, StorageUnavailable | ChainUnavailable)
        raise typer.Exit(LATER if is_passing else FAILED) from exc


def _print_problems(problems: list[str], code: str, *, as_json: bool) -> None:
    if as_json or not sys.stderr.isatty():
        print(json.dumps({"error": {"code": code, "problems": problems}}), file=sys.stderr)
        return
    _print_lines([f"error: {problem}" for problem in problems], file=sys.stderr)


def print_result(answer: Mapping[str, Any], lines: list[str], as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        print(json.dumps(answer, indent=2))
    else:
        _print_lines(lines, file=sys.stdout)


def _print_lines(lines: list[str], *, file: TextIO) -> None:
    """Removes control characters, which a chain node or a listing may have sent."""
    from tollway.client.safe_text import (
        plain,
    )  # loads the client, which `tollway gateway serve` does not need

    for line in lines:
        print(plain(line), file=file)


def parse_argument(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc


def make_origin(reason: str) -> AuditOrigin:
    """Author, time and reason of the audit entry of this command."""
    return AuditOrigin(
        actor=describe_actor(),
        at_ms=time.time_ns() // 1_000_000,
        reason=parse_argument(parse_reason, reason),
    )


def describe_actor() -> str:
    """The user of this process and its host: `alice@host`. A user without a name is a number, as in a container; `sudo` gives the user that called it.
    Every part is what the operating system says; the record is for operators, and is no proof against root."""
    number = os.getuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:
        user = f"uid {number}"
    behind = os.environ.get("SUDO_USER", "") if number == 0 else ""
    name = f"{behind} as {user}" if behind else user
    text = f"{name}@{socket.gethostname()}"
    return "".join(character if character.isprintable() else "?" for character in text)[:ACTOR_LENGTH_MAX]


def _choose_issuers(url: str) -> ssl.SSLContext | bool:
    """Raises IssuersUnusable for https."""
    from tollway.client.issuers import open_tls

    return open_tls() if url.startswith("https:") else False


async def _fetch_status(url: str) -> int | None:
    import httpx

    try:
        async with httpx.AsyncClient(timeout=5.0, verify=_choose_issuers(url), trust_env=False) as client:
            return (await client.get(url)).status_code
    except httpx.HTTPError:
        return None


async def _fetch_text(url: str) -> str | None:
    import httpx

    body = bytearray()
    try:
        async with (
            asyncio.timeout(FETCH_DEADLINE_S),
            httpx.AsyncClient(
                timeout=FETCH_DEADLINE_S, verify=_choose_issuers(url), trust_env=False
            ) as client,
            client.stream("GET", url) as answer,
        ):
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > FETCHED_BYTES_MAX:
                    return None
    except (httpx.HTTPError, TimeoutError):
        return None
    return body.decode(errors="replace") if answer.status_code == httpx.codes.OK else None


POSTGRES_NOTICE = (
    "this database is PostgreSQL: use its base backups and archived log, restore to a point in time,"
    " and then run `tollway gateway audit --restored` (docs/operators.md, Backups)"
)
HELD_NOTICE = "every balance in it is held; `tollway gateway audit` lists them and `tollway gateway audit --release` frees them"

File = Annotated[Path, typer.Argument(metavar="FILE", help="The copy.")]


def backup(
    ctx: typer.Context,
    file: File,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    with explained_failures(as_json=as_json):
        settings = _load_settings(config)
        copy = _back_up(_find_database(settings), file, force=force)
        note = asyncio.run(
            note_backup(
                _find_database(settings),
                copy,
                is_write_safe=read_environment(ctx).is_write_safe,
            )
        )
        key_file = _name_key_file(settings)
        lines = [f"{file}: {copy.size_bytes} bytes, generation {copy.generation}", *_describe_audit(copy)]
        lines += [note] if note else []
        lines.append(f"the secret key is not in it: keep a copy of {key_file or 'your settings'} elsewhere")
        print_result(
            {"file": str(file), **_report(copy), "secretKeyFile": key_file, "recorded": note is None},
            lines,
            as_json,
        )
        _fail_unbalanced(copy)


def restore(file: File, reason: Reason = "", config: Config = None, as_json: AsJson = False) -> None:
    origin = make_origin(reason)
    with explained_failures(as_json=as_json):
        settings = _load_settings(config)
        database = _find_database(settings)
        done = _restore(database, file, origin=origin)
        kept, key_file = None if done.kept is None else str(done.kept), _name_key_file(settings)
        lines = [f"{database.path} is now the copy", *_describe_audit(done.copy)]
        lines += [f"what it replaced: {kept}"] if kept else []
        lines += (
            [
                f"restore {key_file} too before you start a gateway: a new key cannot decrypt the secrets of listings"
            ]
            if (key_file and not Path(key_file).exists())
            else []
        )
        answer = {"database": str(database.path), **_report(done.copy), "replaced": kept}
        print_result(answer, [*lines, HELD_NOTICE], as_json)
        _fail_unbalanced(done.copy)


def _find_database(settings: Settings) -> SqliteDatabase:
    """Does not build the app, because that would make a secret key where there is none."""
    database = connect_database(settings.database_url.get_secret_value())
    if not isinstance(database, SqliteDatabase):
        raise CommandFailed(POSTGRES_NOTICE)
    return database


def _back_up(database: SqliteDatabase, file: Path, *, force: bool) -> BackupCopy:
    if not database.path.exists():
        raise CommandFailed(f"there is no database at {database.path} yet")
    _check_target(database, file, force=force)
    try:
        return asyncio.run(back_up(database.path, file))
    except (BackupUnusable, OSError) as exc:
        raise CommandFailed(f"nothing was backed up: {exc}") from exc


def _restore(database: SqliteDatabase, file: Path, *, origin: AuditOrigin) -> RestoredBackup:
    if not file.is_file():
        raise CommandFailed(f"there is no file {file}")
    database.path.parent.mkdir(parents=True, exist_ok=True)
    lock = ProcessLock(Path(f"{database.path}.lock"))
    try:
        if not lock.acquire():
            detail = f"a gateway uses {database.path}; stop it first"
            raise CommandFailed(detail, exit_code=LATER)
        return asyncio.run(restore_backup(file.absolute(), database.path, origin=origin))
    except (BackupUnusable, OSError) as exc:
        raise CommandFailed(f"nothing was restored: {exc}") from exc
    finally:
        lock.release()


def _check_target(database: SqliteDatabase, file: Path, *, force: bool) -> None:
    endings = ("", "-wal", "-shm", "-journal", ".lock", ".generation", ".key")
    if file.resolve() in {Path(f"{database.path}{ending}").resolve() for ending in endings}:
        raise CommandFailed(f"{file} belongs to the database; name another file")
    if file.exists() and not force:
        raise CommandFailed(f"{file} is there already; --force replaces it")


def _name_key_file(settings: Settings) -> str | None:
    """None when the key is in the settings."""
    return None if settings.secret_key_file is None else str(settings.secret_key_file)


def _report(copy: BackupCopy) -> dict[str, object]:
    report = copy.report
    return {
        "bytes": copy.size_bytes,
        "generation": copy.generation,
        "payments": None if report is None else report.payments,
        "calls": None if report is None else report.calls,
        "balanced": None if report is None else report.is_balanced,
    }


def _describe_audit(copy: BackupCopy) -> list[str]:
    if copy.report is None:
        return ["not audited: its tables are of an older version, run `tollway gateway migrate`"]
    verdict = (
        "the ledger balances"
        if copy.report.is_balanced
        else "THE LEDGER DOES NOT BALANCE; run `tollway gateway audit`"
    )
    return [f"{verdict}: {copy.report.payments} payments, {copy.report.calls} calls"]


def _fail_unbalanced(copy: BackupCopy) -> None:
    if copy.report is not None and not copy.report.is_balanced:
        raise typer.Exit(FAILED)
