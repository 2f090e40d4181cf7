"""Commands of the operator: serve, migrate, audit, admit, moderate, doctor; backup and restore of a SQLite database.

The output is sentences on a terminal, and JSON in a pipe or with `--json`. A command writes to the database of a running gateway only where two
processes may write. `backup` and `restore` refuse PostgreSQL, which has backups of its own.

A backup never contains the secret key, which would open every secret of the listings.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TextIO

import typer
from pydantic import Secret

from tollway.chain.port import SettlementChain
from tollway.config.settings import Settings, load_settings
from tollway.errors import ChainUnavailable, SettingsInvalid, StorageUnavailable, TollwayError
from tollway.ids import Address, ListingId, TxHash
from tollway.ledger.ledger import OperatorLedger
from tollway.registry.catalog import Catalog, Moderation, Revised
from tollway.registry.listing import Listing
from tollway.storage.backup import BackupCopy, BackupUnusable, RestoredBackup, back_up, restore_backup
from tollway.storage.database import (
    Database,
    ProcessLock,
    SqliteDatabase,
    connect_database,
    is_shared_write_safe,
)
from tollway.storage.migrate import TOO_OLD, schema_state, upgrade
from tollway.telemetry import configure_logging
from tollway.web.query import format_time

DONE, FAILED, USAGE, LATER = 0, 1, 2, 3
"""Exit codes."""

REVISE_ATTEMPTS = 5
FETCH_DEADLINE_S, FETCHED_BYTES_MAX = 5.0, 4 * 1024 * 1024

Config = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file; default: TOLLWAY_CONFIG, then tollway.toml."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, also on a terminal.")]
ListingArgument = Annotated[str, typer.Argument(metavar="ID", help="The listing's id.")]
WalletArgument = Annotated[str, typer.Argument(metavar="ADDRESS", help="The wallet.")]


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
    def chains(self) -> SettlementChain: ...


Access = Literal["look", "read", "write"]
"""`look` needs no database, `read` an existing one; `write` makes one where there is none."""

MakeServices = Callable[[Settings], OperatorServices]


class CommandFailed(Exception):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, detail: str, *, exit_code: int = FAILED) -> None:
        self.exit_code = exit_code
        super().__init__(detail)


def wire_services(settings: Settings) -> OperatorServices:
    """The app, wired but not opened."""
    from tollway.app.lifecycle import App  # loads the server, which other commands do not need

    return App(settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEnvironment:
    """How the commands make the app, and whether two processes may write to one SQLite file."""

    make_services: MakeServices = wire_services
    is_write_safe: Callable[[], bool] = is_shared_write_safe


def read_environment(ctx: typer.Context) -> OperatorEnvironment:
    """The environment that the tests give as the context's object; else the real one."""
    return ctx.find_object(OperatorEnvironment) or OperatorEnvironment()


def serve(config: Config = None) -> None:
    """Runs the gateway until SIGINT or SIGTERM."""
    with explained_failures(as_json=False):
        settings = load_settings(os.environ, config=config)
        configure_logging(level=settings.log_level, style=settings.log_format)
        import uvloop

        from tollway.app import lifecycle

        uvloop.run(lifecycle.run(settings))


def migrate(ctx: typer.Context, config: Config = None, as_json: AsJson = False) -> None:
    """Brings the database to this version. Safe to run again."""

    async def work(services: OperatorServices) -> None:
        state = await schema_state(services.database)
        now = await upgrade(services.database)
        if now == "foreign":
            raise CommandFailed("the database needs a newer version of Tollway than this one")
        if now == "too_old":
            raise CommandFailed(TOO_OLD)
        print_result({"before": state, "now": now}, [f"database: {state} -> {now}"], as_json)

    _run_with_services(ctx, work, config, as_json=as_json, access="write")


def doctor(ctx: typer.Context, config: Config = None, as_json: AsJson = False) -> None:
    """Checks settings, database, chains and clock, and changes nothing."""

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
        # Where there is no key yet, the app gets a temporary one, so that it makes no key file.
        wired = given.model_copy(update={"secret_keys": given.secret_keys or (Secret(os.urandom(32)),)})
        asyncio.run(_use_services(read_environment(ctx), wired, work, access="look"))


def audit(
    ctx: typer.Context,
    release: Annotated[
        bool,
        typer.Option("--release", help="Make balances that are held after a restore spendable again."),
    ] = False,
    restored: Annotated[
        bool, typer.Option("--restored", help="Hold all balances, because the database was restored.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Checks that every balance equals the sum of its calls, and lists held calls and payments."""
    if release and restored:
        raise typer.BadParameter("--restored holds balances and --release frees them; give one of the two")

    async def work(services: OperatorServices) -> None:
        if restored:
            await services.operator_ledger.mark_restored(now_ms=_now_ms())
        report = await services.operator_ledger.audit()
        if release and not report.is_balanced:
            raise CommandFailed(
                "the ledger does not balance, so nothing was released. Keep the database and report this: "
                + "; ".join(report.wrong)
            )
        released = await services.operator_ledger.release_held() if release else 0
        answer = {
            "balanced": report.is_balanced,
            "payments": report.payments,
            "calls": report.calls,
            "wrong": list(report.wrong),
            "heldCalls": list(report.held_calls),
            "heldPayments": list(report.held_payments),
            "released": released,
        }
        verdict = "the ledger balances" if report.is_balanced else "THE LEDGER DOES NOT BALANCE"
        lines = [f"{verdict}: {report.payments} payments, {report.calls} calls"]
        lines += [f"wrong: {line}" for line in report.wrong]
        lines += [f"held call: {call_id}" for call_id in report.held_calls]
        lines += [f"held payment: {payment}" for payment in report.held_payments]
        lines += [f"released: {released}"] if release else []
        print_result(answer, lines, as_json)
        if not report.is_balanced:
            raise typer.Exit(FAILED)

    _run_with_services(ctx, work, config, as_json=as_json, access="write" if release or restored else "read")


def admit(
    ctx: typer.Context,
    transaction: Annotated[str, typer.Argument(metavar="TX", help="The transaction hash.")],
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Accepts a transaction that is too old, or that was mined before a restore."""
    tx_hash = _parse(TxHash.parse, transaction)

    async def work(services: OperatorServices) -> None:
        await services.operator_ledger.admit(tx_hash, now_ms=_now_ms())
        print_result(
            {"transaction": str(tx_hash), "admitted": True}, [f"callers may pay with {tx_hash}"], as_json
        )

    _run_with_services(ctx, work, config, as_json=as_json, access="write")


def suspend_listing(
    ctx: typer.Context, listing_id: ListingArgument, config: Config = None, as_json: AsJson = False
) -> None:
    """Hides a listing and refuses its calls. Credit for it stays."""
    work = _moderate_listing(listing_id, suspended_ms=_now_ms(), as_json=as_json)
    _run_with_services(ctx, work, config, as_json=as_json, access="write")


def restore_listing(
    ctx: typer.Context, listing_id: ListingArgument, config: Config = None, as_json: AsJson = False
) -> None:
    """Ends the suspension of a listing."""
    work = _moderate_listing(listing_id, suspended_ms=None, as_json=as_json)
    _run_with_services(ctx, work, config, as_json=as_json, access="write")


def block_wallet(
    ctx: typer.Context,
    address: WalletArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="A note for operators; callers do not see it.")
    ] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Refuses a wallet, as a caller and as a provider."""
    blocked = _parse(Address.parse, address)

    async def work(services: OperatorServices) -> None:
        is_new = await services.moderation.block(blocked, reason=reason, now_ms=_now_ms())
        line = f"{blocked} is blocked" + ("" if is_new else " already")
        print_result({"wallet": str(blocked), "blocked": True, "changed": is_new}, [line], as_json)

    _run_with_services(ctx, work, config, as_json=as_json, access="write")


def unblock_wallet(
    ctx: typer.Context, address: WalletArgument, config: Config = None, as_json: AsJson = False
) -> None:
    """Ends the block of a wallet."""
    unblocked = _parse(Address.parse, address)

    async def work(services: OperatorServices) -> None:
        was_blocked = await services.moderation.unblock(unblocked)
        line = f"{unblocked} is served again" if was_blocked else f"{unblocked} was not blocked"
        print_result({"wallet": str(unblocked), "blocked": False, "changed": was_blocked}, [line], as_json)

    _run_with_services(ctx, work, config, as_json=as_json, access="write")


def list_suspended(
    ctx: typer.Context,
    suspended: Annotated[
        bool, typer.Option("--suspended", help="List the suspended listings, the latest suspension first.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Moderation of listings."""

    async def work(services: OperatorServices) -> None:
        found = await services.catalog.list_suspended()
        answer = [
            {
                "id": listing.id,
                "name": listing.name,
                "provider": str(listing.provider),
                "suspendedAt": format_time(listing.suspended_ms),
            }
            for listing in found
        ]
        lines = [
            f"{each['id']}  {each['suspendedAt']}  {each['provider']}  {each['name']}" for each in answer
        ]
        print_result({"suspended": answer}, lines or ["no listing is suspended"], as_json)

    _run_group_option(ctx, work, config, as_json=as_json, is_given=suspended)


def list_blocked(
    ctx: typer.Context,
    blocked: Annotated[
        bool, typer.Option("--blocked", help="List the blocked wallets, the oldest block first.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Moderation of wallets."""

    async def work(services: OperatorServices) -> None:
        answer = [
            {"wallet": str(each.wallet), "reason": each.reason, "blockedAt": format_time(each.since_ms)}
            for each in await services.moderation.list_blocked()
        ]
        lines = [f"{each['wallet']}  {each['blockedAt']}  {each['reason']}" for each in answer]
        print_result({"blocked": answer}, lines or ["no wallet is blocked"], as_json)

    _run_group_option(ctx, work, config, as_json=as_json, is_given=blocked)


def _run_group_option(
    ctx: typer.Context,
    work: Callable[[OperatorServices], Awaitable[None]],
    config: Path | None,
    *,
    as_json: bool,
    is_given: bool,
) -> None:
    """Runs the option of a group; before a command of the group it does nothing."""
    if ctx.invoked_subcommand is not None:
        return
    if not is_given:
        print(ctx.get_help())
        raise typer.Exit(USAGE)
    _run_with_services(ctx, work, config, as_json=as_json, access="read")


def _moderate_listing(
    listing_id: str, *, suspended_ms: int | None, as_json: bool
) -> Callable[[OperatorServices], Awaitable[None]]:
    async def work(services: OperatorServices) -> None:
        listing = await _revise_suspension(services.catalog, ListingId(listing_id), suspended_ms)
        is_suspended = listing.suspended_ms is not None
        line = f"{listing.id} ({listing.name}) is {'suspended' if is_suspended else 'served'}"
        print_result({"id": listing.id, "suspended": is_suspended}, [line], as_json)

    return work


async def _revise_suspension(catalog: Catalog, listing_id: ListingId, suspended_ms: int | None) -> Listing:
    for _ in range(REVISE_ATTEMPTS):
        entry = await catalog.find(listing_id)
        if entry is None or entry.listing.retired_ms is not None:
            raise CommandFailed(f"there is no active listing {listing_id}; tollway search lists them")
        if (entry.listing.suspended_ms is None) == (suspended_ms is None):
            return entry.listing
        # A version of the terms ends here, at this time: a suspended listing sells nothing.
        changed = replace(entry.listing, suspended_ms=suspended_ms, updated_ms=_now_ms())
        outcome = await catalog.revise(changed, expected_revision=entry.listing.revision)
        if isinstance(outcome, Revised):
            return outcome.listing
    raise CommandFailed(
        "the listing changed during each of five attempts; run the command again", exit_code=LATER
    )


def _run_with_services(
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
        asyncio.run(run(load_settings(os.environ, config=config)))


async def _use_services(
    environment: OperatorEnvironment,
    settings: Settings,
    work: Callable[[OperatorServices], Awaitable[None]],
    *,
    access: Access,
) -> None:
    services = environment.make_services(settings)
    async with opened_database(services.database, access, environment):
        await work(services)


@contextlib.asynccontextmanager
async def opened_database(
    database: Database, access: Access, environment: OperatorEnvironment
) -> AsyncIterator[None]:
    """Opens the database for a command, and closes it."""
    with _guard_database(database, access, environment):
        if access == "write":
            await database.open()  # on SQLite this opens the writer, which reading does without
        try:
            yield
        finally:
            await database.close()


@contextlib.contextmanager
def _guard_database(database: Database, access: Access, environment: OperatorEnvironment) -> Iterator[None]:
    """Refuses a second writer of a SQLite file where the library does not support two, and keeps a reader from making a file."""
    if not isinstance(database, SqliteDatabase) or access == "look":
        yield
        return
    if access == "read":
        if not database.path.exists():
            raise CommandFailed(
                f"there is no database at {database.path} yet; run tollway gateway migrate or serve"
            )
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
async def _opened_chains(chains: SettlementChain) -> AsyncIterator[None]:
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


def _parse(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc


async def _fetch_status(url: str) -> int | None:
    import httpx

    try:
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            return (await client.get(url)).status_code
    except httpx.HTTPError:
        return None


async def _fetch_text(url: str) -> str | None:
    import httpx

    body = bytearray()
    try:
        async with (
            asyncio.timeout(FETCH_DEADLINE_S),
            httpx.AsyncClient(timeout=FETCH_DEADLINE_S, trust_env=False) as client,
            client.stream("GET", url) as answer,
        ):
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > FETCHED_BYTES_MAX:
                    return None
    except (httpx.HTTPError, TimeoutError):
        return None
    return body.decode(errors="replace") if answer.status_code == httpx.codes.OK else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


POSTGRES_NOTICE = (
    "this database is PostgreSQL: use its base backups and archived log, restore to a point in time,"
    " and then run `tollway gateway audit --restored` (docs/operators.md, Backups)"
)
HELD_NOTICE = "every balance in it is held; `tollway gateway audit` lists them and `tollway gateway audit --release` frees them"

File = Annotated[Path, typer.Argument(metavar="FILE", help="The copy.")]


def backup(
    file: File,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Copies a SQLite database to FILE, also while a gateway uses it."""
    with explained_failures(as_json=as_json):
        settings = load_settings(os.environ, config=config)
        copy = _back_up(_find_database(settings), file, force=force)
        key_file = _name_key_file(settings)
        lines = [f"{file}: {copy.size_bytes} bytes, generation {copy.generation}", *_describe_audit(copy)]
        lines.append(f"the secret key is not in it: keep a copy of {key_file or 'your settings'} elsewhere")
        print_result({"file": str(file), **_report(copy), "secretKeyFile": key_file}, lines, as_json)
        _fail_unbalanced(copy)


def restore(file: File, config: Config = None, as_json: AsJson = False) -> None:
    """Replaces the SQLite database with FILE and holds every balance in it. Stop the gateway first."""
    with explained_failures(as_json=as_json):
        settings = load_settings(os.environ, config=config)
        database = _find_database(settings)
        done = _restore(database, file)
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


def _restore(database: SqliteDatabase, file: Path) -> RestoredBackup:
    if not file.is_file():
        raise CommandFailed(f"there is no file {file}")
    database.path.parent.mkdir(parents=True, exist_ok=True)
    lock = ProcessLock(Path(f"{database.path}.lock"))
    try:
        if not lock.acquire():
            detail = f"a gateway uses {database.path}; stop it first"
            raise CommandFailed(detail, exit_code=LATER)
        return asyncio.run(restore_backup(file, database.path, now_ms=time.time_ns() // 1_000_000))
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
        return ["not audited: its tables are of an older version"]
    verdict = (
        "the ledger balances"
        if copy.report.is_balanced
        else "THE LEDGER DOES NOT BALANCE; run `tollway gateway audit`"
    )
    return [f"{verdict}: {copy.report.payments} payments, {copy.report.calls} calls"]


def _fail_unbalanced(copy: BackupCopy) -> None:
    if copy.report is not None and not copy.report.is_balanced:
        raise typer.Exit(FAILED)
