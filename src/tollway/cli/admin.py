"""`tollway gateway admin`: the record of the operator's acts."""

from typing import Annotated

import typer

from tollway.cli.operator import (
    AsJson,
    Config,
    OperatorServices,
    print_result,
    run_with_services,
)
from tollway.operator_acts import RecordedAct
from tollway.web.query import format_time

LOG_LIMIT_DEFAULT, LOG_LIMIT_MAX = 50, 1_000


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
    """Lists the acts of the operators, newest first: suspensions, blocks, admissions, releases, key changes, restores."""

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
