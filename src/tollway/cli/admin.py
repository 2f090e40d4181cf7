"""`tollway gateway admin`: the link to the operator's pages, and the operators' audit log."""

import os
import time
from typing import Annotated

import typer

from tollway.audit_log import RecordedAuditEntry
from tollway.cli.operator import (
    AsJson,
    CommandFailed,
    Config,
    OperatorServices,
    describe_actor,
    print_result,
    run_with_services,
)
from tollway.config.settings import Settings
from tollway.identity.admin_sessions import CODE_TTL_S, ENTRY_PATH, create_code
from tollway.storage.operator.operator_writes import SqlAdminSessions
from tollway.web.http.query import format_time

LOG_LIMIT_DEFAULT, LOG_LIMIT_MAX = 50, 1_000


def make_link(ctx: typer.Context, config: Config = None, as_json: AsJson = False) -> None:
    async def work(services: OperatorServices) -> None:
        origin = find_admin_origin(services.settings)
        now_ms = time.time_ns() // 1_000_000
        store = SqlAdminSessions(services.database)
        code = await create_code(store, actor=describe_actor(), now_ms=now_ms, entropy=os.urandom)
        link = f"{origin}{ENTRY_PATH}?code={code}"
        answer = {"link": link, "expiresAt": format_time(now_ms + CODE_TTL_S * 1000)}
        print_result(answer, [link, "It counts once, within five minutes."], as_json)

    run_with_services(ctx, work, config, as_json=as_json, access="write")


def open_group(ctx: typer.Context, config: Config = None, as_json: AsJson = False) -> None:
    """The operator's pages and record. Alone it prints a link, as `link` does."""
    if ctx.invoked_subcommand is None:
        make_link(ctx, config=config, as_json=as_json)


def find_admin_origin(settings: Settings) -> str:
    """The origin at which an operator opens the pages. A name of `admin_hosts` is served by a proxy with TLS, because the cookie needs it."""
    if settings.admin_listen is None or not settings.web_pages:
        raise CommandFailed(
            "the operator's pages are off; set admin_listen to 127.0.0.1:9402 and web_pages to true, then restart the gateway"
        )
    if settings.admin_listen.is_loopback:
        return f"http://{settings.admin_listen}"
    return f"https://{min(settings.admin_hosts)}"


def list_audit_entries(
    ctx: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LOG_LIMIT_MAX, help="At most so many entries.")
    ] = LOG_LIMIT_DEFAULT,
    before: Annotated[
        int | None, typer.Option("--before", min=1, help="Only entries with a smaller number.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only entries about this listing, wallet or transaction.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    async def work(services: OperatorServices) -> None:
        # One more than asked for shows whether older entries follow.
        found = await services.audit_log.list_audit_entries(limit=limit + 1, before_id=before, target=target)
        entries = found[:limit]
        older_before = entries[-1].id if len(found) > limit else None
        lines = [_format_entry(entry) for entry in entries] or ["the audit log is empty"]
        if older_before is not None:
            lines.append(f"older entries: tollway gateway admin log --before {older_before}")
        answer = {"entries": [_entry_json(entry) for entry in entries], "olderBefore": older_before}
        print_result(answer, lines, as_json)

    run_with_services(ctx, work, config, as_json=as_json, access="read")


def _entry_json(entry: RecordedAuditEntry) -> dict[str, object]:
    return {
        "id": entry.id,
        "at": format_time(entry.origin.at_ms),
        "actor": entry.origin.actor,
        "action": entry.kind,
        "target": entry.target,
        "reason": entry.origin.reason or None,
    }


def _format_entry(entry: RecordedAuditEntry) -> str:
    reason = f"  ({entry.origin.reason})" if entry.origin.reason else ""
    return f"{entry.id}  {format_time(entry.origin.at_ms)}  {entry.origin.actor}  {entry.kind} {entry.target}{reason}"
