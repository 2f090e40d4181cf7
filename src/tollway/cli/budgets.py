"""`tollway budget set`, `show`, `revoke` and `accept`: what an owner lets the wallet of an agent spend at a gateway, and what is left of it."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tollway.cli.inputs import Caller, caller_command, read_moment, read_wallet
from tollway.cli.output import print_foot, print_line
from tollway.client import requests
from tollway.client.record_reader import read_record
from tollway.client.records import BudgetList, WalletBudget
from tollway.client.safe_text import format_value
from tollway.identity.siwe import parse_origin
from tollway.ids import Address
from tollway.spending_policy import (
    LIMITS,
    SpendingPolicy,
    acceptance_digest,
    check_target,
    parse_limit,
    policy_digest,
    policy_members,
    revocation_digest,
    unbinding_digest,
)

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The wallet of the agent.")]
Limit = Annotated[str, typer.Option(help="An amount such as 0.05.")]
Targets = Annotated[list[str] | None, typer.Option(help="api:ID, provider:0x… or tag:TAG; repeatable.")]


@caller_command()
def set_budget(
    caller: Caller,
    agent: Agent,
    until: Annotated[
        str, typer.Option("--until", help="The end: 2027-07-01 (UTC), or a time with its zone.")
    ],
    currency: Annotated[str, typer.Option("--currency")] = "USDC",
    max_per_call: Limit = "",
    max_per_hour: Limit = "",
    max_per_day: Limit = "",
    max_per_month: Limit = "",
    max_total: Limit = "",
    allow: Targets = None,
    deny: Targets = None,
) -> None:
    end, wallet = read_moment(until), read_wallet(caller.session.key_file)
    assert end is not None
    given = (max_per_call, max_per_hour, max_per_day, max_per_month, max_total)
    for text in filter(None, given):
        parse_limit(text)
    policy = SpendingPolicy(
        owner=wallet.address,
        agent=Address.parse(agent),
        network="",
        gateway=_origin_of(caller),
        currency=currency,
        limits=dict(zip(LIMITS, given, strict=True)),
        allow=_read_targets(allow),
        deny=_read_targets(deny),
        not_before=0,
        not_after=int(end.timestamp()),
        nonce=_make_nonce(),
    )
    signature = "0x" + wallet.sign_digest(policy_digest(policy)).hex()
    caller.sent.update(policy=policy_members(policy))
    stored = caller.fetch(requests.put_budget(agent, policy_members(policy), signature))
    caller.print(stored, _print_budget)


@caller_command()
def show(
    caller: Caller,
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="Without it: every agent of yours.")
    ] = None,
) -> None:
    caller.print(caller.fetch(requests.show_budgets(agent)), _print_budgets)


@caller_command()
def revoke(
    caller: Caller,
    agent: Agent,
    unbind: Annotated[
        bool, typer.Option("--unbind", help="The wallet has no owner any more: it spends without a limit.")
    ] = False,
) -> None:
    wallet, nonce = read_wallet(caller.session.key_file), _make_nonce()
    write_digest = unbinding_digest if unbind else revocation_digest
    digest = write_digest(
        owner=wallet.address, agent=Address.parse(agent), gateway=_origin_of(caller), nonce=nonce
    )
    signature = "0x" + wallet.sign_digest(digest).hex()
    caller.print(
        caller.fetch(requests.delete_budget(agent, nonce, signature, is_unbinding=unbind)), _print_budget
    )


@caller_command()
def accept(
    caller: Caller,
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="The wallet that signed the policy.")],
) -> None:
    wallet, nonce = read_wallet(caller.session.key_file), _make_nonce()
    digest = acceptance_digest(
        agent=wallet.address, owner=Address.parse(owner), gateway=_origin_of(caller), nonce=nonce
    )
    signature = "0x" + wallet.sign_digest(digest).hex()
    caller.print(
        caller.fetch(requests.accept_owner(str(wallet.address), owner, nonce, signature)), _print_budget
    )


def _origin_of(caller: Caller) -> str:
    return str(parse_origin(caller.session.gateway))


def _make_nonce() -> int:
    """A nonce must be above every earlier one of the wallet."""
    return time.time_ns() // 1_000_000


def _read_targets(given: list[str] | None) -> tuple[str, ...]:
    return tuple(sorted({check_target(text) for text in given or ()}))


def _print_budgets(found: Mapping[str, Any]) -> None:
    budgets = read_record(BudgetList, found).budgets
    for budget in budgets:
        _print_record(budget)
    if not budgets:
        print_foot("You have signed no policy; tollway budget set AGENT --max-per-day 5 --until DAY.")


def _print_budget(found: Mapping[str, Any]) -> None:
    _print_record(read_record(WalletBudget, found))


def _print_record(budget: WalletBudget) -> None:
    print_line(f"{format_value(budget.agent)} {format_value(budget.state)}", style="bold")
    end = budget.describe_end()
    print_line(f"  owner {format_value(budget.owner)}")
    if end is not None:
        print_line(f"  policy until {end}")
    for text in budget.describe_left():
        print_line(f"  {format_value(text)}")
    if budget.state == "pending":
        print_foot("It counts once the agent accepts: tollway budget accept OWNER, with the agent's key.")
