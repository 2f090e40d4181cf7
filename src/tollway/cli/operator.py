"""Commands of the operator: serve, migrate, audit, admit, doctor; backup and restore of a SQLite database.

The output is sentences on a terminal, and JSON in a pipe or with `--json`. A command writes to the database of a running gateway only where two
processes may write. `backup` and `restore` refuse PostgreSQL, which has backups of its own.

A backup never contains the secret key, which would open every secret of the listings.
"""

import asyncio
import contextlib
import inspect
import json
import os
import pwd
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast

import structlog
import typer
from pydantic import Secret

from tollway.audit_log import AuditOrigin
from tollway.cli.audit_report import describe_held, describe_report, describe_rewrite
from tollway.cli.run_records import note_audit, note_backup
from tollway.config.settings import Settings, load_settings
from tollway.errors import ChainUnavailable, SettingsInvalid, StorageUnavailable, TollwayError
from tollway.ids import TxHash
from tollway.ledger.ledger import AuditReport
from tollway.observability.telemetry import configure_logging, redact_entry
from tollway.payments.channel_audit import compare_with_chains
from tollway.registry.moderation import parse_reason
from tollway.storage.engine.advisory_locks import require_exclusion
from tollway.storage.engine.database import (
    Database,
    ProcessLock,
    SqliteDatabase,
    connect_database,
    is_shared_write_safe,
)
from tollway.storage.engine.migrate import explain_refusal, schema_state, upgrade
from tollway.storage.ledger.channel_totals import ChannelTotalsStore
from tollway.storage.operator.backup import (
    BackupCopy,
    BackupUnusable,
    back_up,
    restore_backup,
)

if TYPE_CHECKING:
    from tollway.app.lifecycle import App

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


Access = Literal["look", "read", "write", "make"]
"""`look` needs no database; `read` and `write` need an existing one; `make` makes one where there is none."""


class CommandFailed(Exception):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, detail: str, *, exit_code: int = FAILED) -> None:
        self.exit_code = exit_code
        super().__init__(detail)


def wire_gateway(settings: Settings) -> "App":
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

    wire_gateway: Callable[[Settings], "App"] = wire_gateway
    is_write_safe: Callable[[], bool] = is_shared_write_safe


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The shared options of a command, and what it opens with them."""

    ctx: typer.Context
    config: Path | None
    as_json: bool

    @property
    def environment(self) -> OperatorEnvironment:
        """The environment that the tests give as the context's object; else the real one."""
        return self.ctx.find_object(OperatorEnvironment) or OperatorEnvironment()

    def load_settings(self) -> Settings:
        """The settings of a command that neither signs nor names gas keys."""
        return load_settings(os.environ, config=self.config, gas_key_files="leave_out")

    @contextlib.asynccontextmanager
    async def open(self, access: Access, settings: Settings | None = None) -> "AsyncIterator[App]":
        """The gateway of the settings, with its database open. Raises as `open_database` does."""
        settings = settings or self.load_settings()
        if access != "make":
            # Where there is no key yet, the app gets a temporary one: only what makes a database makes its key file.
            settings = settings.model_copy(
                update={"secret_keys": settings.secret_keys or (Secret(os.urandom(32)),)}
            )
        gateway = self.environment.wire_gateway(settings)
        async with self.open_database(gateway.database, access):
            yield gateway

    @contextlib.asynccontextmanager
    async def open_database(self, database: Database, access: Access) -> AsyncIterator[None]:
        """Opens the database for a command, and closes it. Raises `CommandFailed` where `read` or `write` meets tables that this version must not use."""
        with _guard_database(database, access, self.environment):
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

    def print(self, answer: Mapping[str, Any], lines: list[str]) -> None:
        """Prints the result: `lines` for people, `answer` as JSON otherwise."""
        if self.as_json or not sys.stdout.isatty():
            print(json.dumps(answer, indent=2))
        else:
            _print_lines(lines, file=sys.stdout)


def operator_command(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a command of a coroutine of an `Operator`: it gets `--config` and `--json` after its own options, and explains failures."""

    @wraps(function)
    def command(ctx: typer.Context, config: Path | None, as_json: bool, **given: Any) -> None:
        with explained_failures(as_json=as_json):
            asyncio.run(function(Operator(ctx=ctx, config=config, as_json=as_json), **given))

    _, *own = inspect.signature(function).parameters.values()
    command.__signature__ = inspect.Signature([_CONTEXT, *own, *_SHARED])  # type: ignore[attr-defined]  # typer reads it
    return command


_CONTEXT = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
_SHARED = [
    _CONTEXT.replace(name=name, annotation=annotation, default=default)
    for name, annotation, default in (("config", Config, None), ("as_json", AsJson, False))
]


def serve(
    config: Config = None,
    control_workers: Annotated[
        int | None,
        typer.Option(
            help="So many processes serve the control plane at control_listen; PostgreSQL only. Wins over the setting control_workers.",
        ),
    ] = None,
    abandon_channels: Annotated[
        bool,
        typer.Option(
            "--abandon-channels",
            help="Start although no key can claim what some payment channels still owe. The audit log records what is given up.",
        ),
    ] = False,
) -> None:
    with explained_failures(as_json=False):
        given = {} if control_workers is None else {"TOLLWAY_CONTROL_WORKERS": str(control_workers)}
        settings = load_settings({**os.environ, **given}, config=config)
        configure_logging(
            level=settings.log_level, style=settings.log_format, journal=os.environ.get("JOURNAL_STREAM")
        )
        import uvloop

        from tollway.app import lifecycle

        origin = make_origin("") if abandon_channels else None
        uvloop.run(lifecycle.run(settings, abandon_channels=origin, config=config))


@operator_command
async def migrate(operator: Operator) -> None:
    async with operator.open("make") as gateway:
        await require_exclusion(gateway.database)
        state = await schema_state(gateway.database)
        now = await upgrade(gateway.database)
        if (refusal := explain_refusal(now)) is not None:
            raise CommandFailed(refusal)
        operator.print({"before": state, "now": now}, [f"database: {state} -> {now}"])


@operator_command
async def doctor(operator: Operator) -> None:
    from tollway.cli.doctor import examine  # loads PostgreSQL's driver

    given = load_settings(os.environ, config=operator.config)
    async with operator.open("look", given) as gateway, gateway.chains:
        found = await examine(
            given, database=gateway.database, chains=gateway.chains, fetch=_fetch, now_s=time.time()
        )
    lines = [f"{finding.level:8} {finding.check}: {finding.detail}" for finding in found]
    operator.print({"findings": [asdict(finding) for finding in found]}, lines)
    if any(finding.level == "failed" for finding in found):
        raise typer.Exit(FAILED)


@operator_command
async def audit(
    operator: Operator,
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
    chain: Annotated[
        bool,
        typer.Option("--chain", help="Compare what payment channels have claimed with their chains too."),
    ] = False,
    reason: Reason = "",
) -> None:
    if release + restored + rewrite > 1:
        raise typer.BadParameter(
            "--restored holds balances, --release frees them, --rewrite repairs sums; give one of the three"
        )
    is_change = release or restored or rewrite
    origin = make_origin(reason)
    async with operator.open("write" if is_change else "read") as gateway:
        ledger = gateway.operator_ledger
        if restored:
            await ledger.mark_restored(origin=origin)
        report, compared = await ledger.audit(), None
        if chain:
            report, compared = await _add_chains(gateway, report)
        is_write_safe = None if is_change else operator.environment.is_write_safe
        note = await note_audit(gateway.database, report, is_write_safe=is_write_safe)
        if release and not report.is_balanced:
            raise CommandFailed(
                "the ledger does not balance, so nothing was released. Keep the database and report this: "
                + "; ".join(report.wrong)
            )
        released = await ledger.release_held(origin=origin) if release else 0
        starts = report.wrong_period_starts
        rewritten = await ledger.rewrite_periods(starts, origin=origin) if rewrite else 0
    details = describe_held(report, gateway.settings.networks, now_ms=time.time_ns() // 1_000_000)
    answer = {
        "balanced": report.is_balanced,
        "payments": report.payments,
        "calls": report.calls,
        "wrong": list(report.wrong),
        "closedPeriods": report.closed_periods,
        "markedPeriods": report.marked_periods,
        "wrongPeriods": list(report.wrong_periods),
        "heldCalls": list(report.held_calls),
        "heldPayments": [] if release else list(report.held_payments),
        "releasedPayments": list(report.held_payments) if release else [],
        "released": released,
        "rewrittenPeriods": rewritten,
        "recorded": note is None,
        "comparedChannels": compared,
        "held": [one for one in details if one["kind"] == "call" or not release],
    }
    lines = list(describe_report(report, details, payments_are="released" if release else "held"))
    lines += [] if compared is None else [f"compared with their chains: {compared} payment channels"]
    lines += [f"released: {released}"] if release else []
    lines += [describe_rewrite(rewritten)] if rewrite else []
    lines += [note] if note else []
    operator.print(answer, lines)
    if not (report.is_balanced if rewrite else report.is_right):
        raise typer.Exit(FAILED)


async def _add_chains(gateway: "App", report: AuditReport) -> tuple[AuditReport, int]:
    """The report with what the chains say of payment channels, and how many of these were compared. Raises ChainUnavailable."""
    totals = ChannelTotalsStore(gateway.database)
    chain_ids = sorted({one.chain_id for one in await totals.list_totals()})
    async with gateway.chains as chains:
        found = await compare_with_chains(totals, chains, chain_ids, deadline_s=FETCH_DEADLINE_S)
    return replace(report, wrong=(*report.wrong, *found.differences)), found.channels


@operator_command
async def admit(
    operator: Operator,
    transaction: Annotated[str, typer.Argument(metavar="TX", help="The transaction hash.")],
    reason: Reason = "",
) -> None:
    tx_hash, origin = parse_argument(TxHash.parse, transaction), make_origin(reason)
    async with operator.open("write") as gateway:
        await gateway.operator_ledger.admit(tx_hash, origin=origin)
    operator.print({"transaction": str(tx_hash), "admitted": True}, [f"callers may pay with {tx_hash}"])


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


async def _fetch(url: str) -> tuple[int, str] | None:
    """GET a URL: status and body; None without a response in time, or for a longer one. Raises IssuersUnusable for https."""
    import httpx

    from tollway.client.issuers import open_tls

    tls, body = open_tls() if url.startswith("https:") else False, bytearray()
    try:
        async with (
            asyncio.timeout(FETCH_DEADLINE_S),
            httpx.AsyncClient(timeout=FETCH_DEADLINE_S, verify=tls, trust_env=False) as client,
            client.stream("GET", url) as answer,
        ):
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > FETCHED_BYTES_MAX:
                    return None
    except (httpx.HTTPError, TimeoutError):
        return None
    return answer.status_code, body.decode(errors="replace")


POSTGRES_NOTICE = (
    "this database is PostgreSQL: use its base backups and archived log, restore to a point in time,"
    " and then run `tollway gateway audit --restored` (docs/operators.md, Backups)"
)
HELD_NOTICE = "every balance in it is held; `tollway gateway audit` lists them and `tollway gateway audit --release` frees them"

File = Annotated[Path, typer.Argument(metavar="FILE", help="The copy.")]


@operator_command
async def backup(
    operator: Operator,
    file: File,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    settings = operator.load_settings()
    copy = await _back_up(_find_database(settings), file, force=force)
    is_write_safe = operator.environment.is_write_safe
    note = await note_backup(_find_database(settings), copy, is_write_safe=is_write_safe)
    key_file = None if settings.secret_key_file is None else str(settings.secret_key_file)
    lines = [f"{file}: {copy.size_bytes} bytes, generation {copy.generation}", *_describe_audit(copy)]
    lines += [note] if note else []
    lines.append(f"the secret key is not in it: keep a copy of {key_file or 'your settings'} elsewhere")
    answer = {"file": str(file), **_report(copy), "secretKeyFile": key_file, "recorded": note is None}
    operator.print(answer, lines)
    _fail_unbalanced(copy)


@operator_command
async def restore(operator: Operator, file: File, reason: Reason = "") -> None:
    origin, settings = make_origin(reason), operator.load_settings()
    database = _find_database(settings)
    with _stopped_gateway(database, file) as copy:
        done = await restore_backup(copy, database.path, origin=origin)
    kept = None if done.kept is None else str(done.kept)
    lines = [f"{database.path} is now the copy", *_describe_audit(done.copy)]
    lines += [f"what it replaced: {kept}"] if kept else []
    lines += _advise_about_key(settings.secret_key_file)
    answer = {"database": str(database.path), **_report(done.copy), "replaced": kept}
    operator.print(answer, [*lines, HELD_NOTICE])
    _fail_unbalanced(done.copy)


def _find_database(settings: Settings) -> SqliteDatabase:
    """Does not build the app, because that would make a secret key where there is none."""
    database = connect_database(settings.database_url.get_secret_value())
    if not isinstance(database, SqliteDatabase):
        raise CommandFailed(POSTGRES_NOTICE)
    return database


async def _back_up(database: SqliteDatabase, file: Path, *, force: bool) -> BackupCopy:
    if not database.path.exists():
        raise CommandFailed(f"there is no database at {database.path} yet")
    _check_target(database, file, force=force)
    try:
        return await back_up(database.path, file)
    except (BackupUnusable, OSError) as exc:
        raise CommandFailed(f"nothing was backed up: {exc}") from exc


@contextlib.contextmanager
def _stopped_gateway(database: SqliteDatabase, file: Path) -> Iterator[Path]:
    """Holds the lock of the gateway while the copy replaces its database. Gives the absolute path of the copy."""
    if not file.is_file():
        raise CommandFailed(f"there is no file {file}")
    database.path.parent.mkdir(parents=True, exist_ok=True)
    lock = ProcessLock(Path(f"{database.path}.lock"))
    try:
        if not lock.acquire():
            detail = f"a gateway uses {database.path}; stop it first"
            raise CommandFailed(detail, exit_code=LATER)
        yield file.absolute()
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


def _advise_about_key(key_file: Path | None) -> list[str]:
    if key_file is None or key_file.exists():
        return []
    return [
        f"restore {key_file} too before you start a gateway: a new key cannot decrypt the secrets of listings"
    ]


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
