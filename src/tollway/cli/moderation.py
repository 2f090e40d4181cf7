"""Moderation by the operator: commands that suspend and restore listings, block and unblock wallets, and list both.

Each change is recorded with its author and reason (`gateway admin log`). The refusals of calls repeat the reason.
"""

from typing import Annotated

import typer

from tollway.cli.operator import (
    LATER,
    USAGE,
    CommandFailed,
    Operator,
    Reason,
    make_origin,
    operator_command,
    parse_argument,
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


@operator_command
async def suspend(operator: Operator, listing_id: ListingArgument, reason: ShownReason = "") -> None:
    origin = make_origin(reason)
    async with operator.open("write") as gateway:
        changed = await suspend_listing(gateway.catalog, ListingId(listing_id), origin=origin)
    _print_listing(operator, changed, listing_id)


@operator_command
async def restore(operator: Operator, listing_id: ListingArgument, reason: Reason = "") -> None:
    origin = make_origin(reason)
    async with operator.open("write") as gateway:
        changed = await restore_listing(gateway.catalog, ListingId(listing_id), origin=origin)
    _print_listing(operator, changed, listing_id)


def _print_listing(
    operator: Operator, changed: Listing | NoActiveListing | AlwaysEdited, listing_id: str
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
            operator.print(answer, [line])


@operator_command
async def block(operator: Operator, address: WalletArgument, reason: ShownReason = "") -> None:
    blocked, origin = parse_argument(Address.parse, address), make_origin(reason)
    async with operator.open("write") as gateway:
        is_new = await gateway.moderation.block(blocked, origin=origin)
    line = f"{blocked} is blocked" + ("" if is_new else " already")
    operator.print({"wallet": str(blocked), "blocked": True, "changed": is_new}, [line])


@operator_command
async def unblock(operator: Operator, address: WalletArgument, reason: Reason = "") -> None:
    unblocked, origin = parse_argument(Address.parse, address), make_origin(reason)
    async with operator.open("write") as gateway:
        was_blocked = await gateway.moderation.unblock(unblocked, origin=origin)
    line = f"{unblocked} is served again" if was_blocked else f"{unblocked} was not blocked"
    operator.print({"wallet": str(unblocked), "blocked": False, "changed": was_blocked}, [line])


@operator_command
async def unbind(operator: Operator, address: WalletArgument, reason: Reason = "") -> None:
    unbound, origin = parse_argument(Address.parse, address), make_origin(reason)
    async with operator.open("write") as gateway:
        owner = await gateway.operator_ledger.unbind_wallet(unbound, origin=origin)
    line = f"{unbound} had no owner" if owner is None else f"{unbound} is not bound to {owner} any more"
    answer = {
        "wallet": str(unbound),
        "owner": None if owner is None else str(owner),
        "changed": owner is not None,
    }
    operator.print(answer, [line])


@operator_command
async def list_suspended(
    operator: Operator,
    suspended: Annotated[
        bool, typer.Option("--suspended", help="List the suspended listings, the latest suspension first.")
    ] = False,
) -> None:
    """Moderation of listings."""
    if not _is_run(operator, is_given=suspended):
        return
    async with operator.open("read") as gateway:
        found = await gateway.catalog.list_suspended()
    answer = [
        {
            "id": listing.id,
            "name": listing.name,
            "provider": str(listing.provider),
            "suspendedAt": format_time(listing.suspended_ms),
            "reason": listing.reason,
        }
        for listing in found
    ]
    lines = [
        f"{each['id']}  {each['suspendedAt']}  {each['provider']}  {each['name']}"
        + (f"  ({each['reason']})" if each["reason"] else "")
        for each in answer
    ]
    operator.print({"suspended": answer}, lines or ["no listing is suspended"])


@operator_command
async def list_blocked(
    operator: Operator,
    blocked: Annotated[
        bool, typer.Option("--blocked", help="List the blocked wallets, the oldest block first.")
    ] = False,
) -> None:
    """Moderation of wallets."""
    if not _is_run(operator, is_given=blocked):
        return
    async with operator.open("read") as gateway:
        found = await gateway.moderation.list_blocked()
    answer = [
        {"wallet": str(each.wallet), "reason": each.reason, "blockedAt": format_time(each.since_ms)}
        for each in found
    ]
    lines = [f"{each['wallet']}  {each['blockedAt']}  {each['reason']}" for each in answer]
    operator.print({"blocked": answer}, lines or ["no wallet is blocked"])


def _is_run(operator: Operator, *, is_given: bool) -> bool:
    """Whether the option of a group runs; not before a command of the group. Prints the help and exits without both."""
    if operator.ctx.invoked_subcommand is not None:
        return False
    if not is_given:
        print(operator.ctx.get_help())
        raise typer.Exit(USAGE)
    return True
