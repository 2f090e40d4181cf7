"""`tollway gateway admin`: the link to the operator's pages, and the record of the operator's acts."""

import os
import time
from typing import Annotated

import typer

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
from tollway.operator_acts import RecordedAct
from tollway.storage.operator.operator_acts import SqlAdminSessions
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


def list_acts(
    ctx: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LOG_LIMIT_MAX, help="At most so many acts.")
    ] = LOG_LIMIT_DEFAULT,
    before: Annotated[
        int | None, typer.Option("--before", min=1, help="Only acts with a smaller number.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only acts on this listing, wallet or transaction.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    async def work(services: OperatorServices) -> None:
        # One more than asked for shows whether older acts follow.
        found = await services.operator_acts.list_acts(limit=limit + 1, before_id=before, target=target)
        acts = found[:limit]
        older_before = acts[-1].id if len(found) > limit else None
        lines = [_format_act(act) for act in acts] or ["no act is recorded"]
        if older_before is not None:
            lines.append(f"older acts: tollway gateway admin log --before {older_before}")
        answer = {"acts": [_act_json(act) for act in acts], "olderBefore": older_before}
        print_result(answer, lines, as_json)

    run_with_services(ctx, work, config, as_json=as_json, access="read")


def _act_json(act: RecordedAct) -> dict[str, object]:
    return {
        "id": act.id,
        "at": format_time(act.origin.at_ms),
        "actor": act.origin.actor,
        "act": act.kind,
        "target": act.target,
        "reason": act.origin.reason or None,
    }


def _format_act(act: RecordedAct) -> str:
    reason = f"  ({act.origin.reason})" if act.origin.reason else ""
    return f"{act.id}  {format_time(act.origin.at_ms)}  {act.origin.actor}  {act.kind} {act.target}{reason}"
