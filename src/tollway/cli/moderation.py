"""Moderation by the operator: commands that suspend and restore listings, block and unblock wallets, and list both.

Each change is recorded with its author and reason (`gateway admin log`). The refusals of calls repeat the reason.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from tollway.cli.operator import (
    LATER,
    USAGE,
    AsJson,
    CommandFailed,
    Config,
    OperatorServices,
    Reason,
    make_origin,
    parse_argument,
    print_result,
    run_with_services,
)
from tollway.ids import Address, ListingId
from tollway.registry.listing import Listing
from tollway.registry.moderation import AlwaysEdited, NoActiveListing, restore_listing, suspend_listing
from tollway.web.http.query import format_time

ListingArgument = Annotated[str, typer.Argument(metavar="ID", help="The listing's id.")]
WalletArgument = Annotated[str, typer.Argument(metavar="ADDRESS", help="The wallet.")]
ShownReason = Annotated[
    str, typer.Option("--reason", help="Why: one line, which the refusals repeat to callers and provider.")
]


def suspend(
    ctx: typer.Context,
    listing_id: ListingArgument,
    reason: ShownReason = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    origin = make_origin(reason)

    async def work(services: OperatorServices) -> None:
        changed = await suspend_listing(services.catalog, ListingId(listing_id), origin=origin)
        _print_listing(changed, listing_id, as_json=as_json)

    run_with_services(ctx, work, config, as_json=as_json, access="write")


def restore(
    ctx: typer.Context,
    listing_id: ListingArgument,
    reason: Reason = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    origin = make_origin(reason)

    async def work(services: OperatorServices) -> None:
        changed = await restore_listing(services.catalog, ListingId(listing_id), origin=origin)
        _print_listing(changed, listing_id, as_json=as_json)

    run_with_services(ctx, work, config, as_json=as_json, access="write")


def _print_listing(
    changed: Listing | NoActiveListing | AlwaysEdited, listing_id: str, *, as_json: bool
) -> None:
    match changed:
        case NoActiveListing():
            raise CommandFailed(f"there is no active listing {listing_id}; tollway search lists them")
        case AlwaysEdited():
            raise CommandFailed(
                "the listing changed during each of five attempts; run the command again", exit_code=LATER
            )
        case Listing():
            is_suspended = changed.suspended_ms is not None
            line = f"{changed.id} ({changed.name}) is {'suspended' if is_suspended else 'served'}"
            answer = {"id": changed.id, "suspended": is_suspended, "reason": changed.suspended_reason or None}
            print_result(answer, [line], as_json)


def block(
    ctx: typer.Context,
    address: WalletArgument,
    reason: ShownReason = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    blocked, origin = parse_argument(Address.parse, address), make_origin(reason)

    async def work(services: OperatorServices) -> None:
        is_new = await services.moderation.block(blocked, origin=origin)
        line = f"{blocked} is blocked" + ("" if is_new else " already")
        print_result({"wallet": str(blocked), "blocked": True, "changed": is_new}, [line], as_json)

    run_with_services(ctx, work, config, as_json=as_json, access="write")


def unblock(
    ctx: typer.Context,
    address: WalletArgument,
    reason: Reason = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    unblocked, origin = parse_argument(Address.parse, address), make_origin(reason)

    async def work(services: OperatorServices) -> None:
        was_blocked = await services.moderation.unblock(unblocked, origin=origin)
        line = f"{unblocked} is served again" if was_blocked else f"{unblocked} was not blocked"
        print_result({"wallet": str(unblocked), "blocked": False, "changed": was_blocked}, [line], as_json)

    run_with_services(ctx, work, config, as_json=as_json, access="write")


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
        answer = [
            {
                "id": listing.id,
                "name": listing.name,
                "provider": str(listing.provider),
                "suspendedAt": format_time(listing.suspended_ms),
                "reason": listing.reason,
            }
            for listing in await services.catalog.list_suspended()
        ]
        lines = [
            f"{each['id']}  {each['suspendedAt']}  {each['provider']}  {each['name']}"
            + (f"  ({each['reason']})" if each["reason"] else "")
            for each in answer
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
    run_with_services(ctx, work, config, as_json=as_json, access="read")
