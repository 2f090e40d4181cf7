"""`tollway gateway admin`: the link to the operator's pages, and the operators' audit log."""

import os
import time
from typing import Annotated

import typer

from tollway.audit_log import RecordedAuditEntry
from tollway.cli.operator import CommandFailed, Operator, describe_actor, operator_command
from tollway.config.settings import Settings
from tollway.identity.admin_sessions import CODE_TTL_S, ENTRY_PATH, create_code
from tollway.storage.operator.operator_writes import SqlAdminSessions
from tollway.web.http.query import format_time

LOG_LIMIT_DEFAULT, LOG_LIMIT_MAX = 50, 1_000


@operator_command
async def make_link(operator: Operator) -> None:
    await _print_link(operator)


@operator_command
async def open_group(operator: Operator) -> None:
    """The operator's pages and record. Alone it prints a link, as `link` does."""
    if operator.ctx.invoked_subcommand is None:
        await _print_link(operator)


async def _print_link(operator: Operator) -> None:
    async with operator.open("write") as gateway:
        origin = find_admin_origin(gateway.settings)
        now_ms = time.time_ns() // 1_000_000
        store = SqlAdminSessions(gateway.database)
        code = await create_code(store, actor=describe_actor(), now_ms=now_ms, entropy=os.urandom)
    link = f"{origin}{ENTRY_PATH}?code={code}"
    answer = {"link": link, "expiresAt": format_time(now_ms + CODE_TTL_S * 1000)}
    operator.print(answer, [link, "It counts once, within five minutes."])


def find_admin_origin(settings: Settings) -> str:
    """The origin at which an operator opens the pages. A name of `admin_hosts` is served by a proxy with TLS, because the cookie needs it."""
    if settings.admin_listen is None or not settings.web_pages:
        raise CommandFailed(
            "the operator's pages are off; set admin_listen to 127.0.0.1:9402 and web_pages to true, then restart the gateway"
        )
    if settings.admin_listen.is_loopback:
        return f"http://{settings.admin_listen}"
    return f"https://{min(settings.admin_hosts)}"


@operator_command
async def list_audit_entries(
    operator: Operator,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LOG_LIMIT_MAX, help="At most so many entries.")
    ] = LOG_LIMIT_DEFAULT,
    before: Annotated[
        int | None, typer.Option("--before", min=1, help="Only entries with a smaller number.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only entries about this listing, wallet or transaction.")
    ] = None,
) -> None:
    async with operator.open("read") as gateway:
        # One more than asked for shows whether older entries follow.
        found = await gateway.audit_log.list_audit_entries(limit=limit + 1, before_id=before, target=target)
    entries = found[:limit]
    older_before = entries[-1].id if len(found) > limit else None
    lines = [_format_entry(entry) for entry in entries] or ["the audit log is empty"]
    if older_before is not None:
        lines.append(f"older entries: tollway gateway admin log --before {older_before}")
    operator.print({"entries": [_entry_json(entry) for entry in entries], "olderBefore": older_before}, lines)


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
