"""`tollway wallet channels`, `refund` and `withdraw`: the payment channels of this wallet, and the two ways to get back what is left in one."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from tollway.chain.networks import describe_network
from tollway.cli.inputs import (
    REFUSED,
    Caller,
    MaxFee,
    Rpc,
    StoreFile,
    Wait,
    caller_command,
    split_nodes,
)
from tollway.cli.output import is_for_people, print_entry, print_foot, print_json, print_text
from tollway.client.channel_exit import WithdrawalPlan
from tollway.client.fee_limit import format_fee
from tollway.client.own_channel import OwnChannel
from tollway.client.safe_text import plain_line
from tollway.money import format_decimal

ChannelText = Annotated[
    str, typer.Argument(metavar="CHANNEL", help="The id of the channel, or the beginning of it.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask on a terminal.")]


@caller_command()
def list_channels(caller: Caller, store: StoreFile = None) -> None:
    with caller.open(store=store) as client:
        channels = client.channels()
    if not is_for_people(as_json=caller.as_json):
        print_json([describe_channel(channel) for channel in channels])
        return
    for channel in channels:
        _print_channel(channel)
    print_foot(f"{len(channels)} in all; --json has every field")


@caller_command()
def refund(
    caller: Caller, channel: ChannelText, store: StoreFile = None, rpc: Rpc = "", wait_s: Wait = 180.0
) -> None:
    with caller.open(store=store, rpc=split_nodes(rpc), wait_s=wait_s) as client:
        done = client.refund_channel(channel)
    asset = done.channel.asset
    amount = None if done.amount is None else format_decimal(done.amount, decimals=asset.decimals)
    if not caller.is_for_people:
        hash_text = None if done.transaction is None else str(done.transaction)
        described = {"refunded": amount, "transaction": hash_text, "seenOnChain": done.is_seen}
        print_json({**describe_channel(done.channel), **described})
        return
    print_text(f"The gateway has refunded {amount or 'the rest'} {asset.symbol}.")
    if done.transaction is not None:
        print_text(f"Transaction {done.transaction}")
    if not done.is_seen:
        print_text(
            "No node of yours shows it (--rpc), so the deposit still counts against a budget.", is_error=True
        )


@caller_command()
def withdraw(
    caller: Caller,
    channel: ChannelText,
    store: StoreFile = None,
    rpc: Rpc = "",
    max_fee: MaxFee = None,
    wait_s: Wait = 180.0,
    yes: Yes = False,
) -> None:
    with caller.open(store=store, rpc=split_nodes(rpc), max_fee=max_fee, wait_s=wait_s) as client:
        plan = client.plan_withdrawal(channel)
        if caller.is_for_people:
            print_text(describe_plan(plan), is_error=True)
            _confirm(yes=yes)
        done = client.send_withdrawal(plan)
    if not caller.is_for_people:
        described = {"transaction": str(done.transaction), "ended": plan.is_end}
        print_json({**describe_channel(done.channel), **described})
        return
    print_text(f"Transaction {done.transaction}")
    begun = done.channel.withdrawal
    if begun is not None:
        print_text(f"The delay ends {_format_time(begun.ready_s)}. Run the same command after that.")


def _confirm(*, yes: bool) -> None:
    """Asks on a terminal. Ends the command where the answer is no."""
    if yes or not sys.stdin.isatty():
        return
    if not typer.confirm("Send the transaction?", err=True):
        print_text("Nothing was sent.", is_error=True)
        raise typer.Exit(REFUSED)


def describe_plan(plan: WithdrawalPlan) -> str:
    """What the next transaction does, with its amounts."""
    asset, delay_s = plan.channel.asset, plan.channel.config.withdraw_delay
    amount = f"{format_decimal(plan.amount, decimals=asset.decimals)} {asset.symbol}"
    fee = f"network fee at most {format_fee(asset.chain_id, plan.fee.max_wei)}"
    where = f"from the channel {plan.channel.id} on {describe_network(asset.chain_id)}"
    if plan.is_end:
        return f"Pays {amount} {where} out to {plan.channel.config.payer}; {fee}."
    return f"Begins the withdrawal of {amount} {where}; a second transaction pays it out after {delay_s} seconds; {fee}."


def _print_channel(channel: OwnChannel) -> None:
    """Two lines: the whole id; then what was deposited, charged and is left, network, payee and withdrawal."""
    asset, payee = channel.asset, str(channel.config.receiver)
    balance, charged, left = (
        format_decimal(units, decimals=asset.decimals)
        for units in (channel.balance, channel.charged, channel.left)
    )
    words = [f"{left} {asset.symbol} left", f"{balance} deposited", f"{charged} charged"]
    words += [describe_network(asset.chain_id), f"to {payee[:6]}…{payee[-4:]}"]
    words += [] if channel.is_certain else ["a call without an outcome"]
    if channel.withdrawal is not None:
        ready_s = channel.withdrawal.ready_s
        words.append(f"withdrawal ready {_format_time(ready_s)}" if ready_s else "withdrawal begun")
    print_entry(str(channel.id), tuple(plain_line(word) for word in words))


def describe_channel(channel: OwnChannel) -> dict[str, object]:
    """A channel of the wallet as JSON."""
    asset, begun = channel.asset, channel.withdrawal
    balance, charged, left = (
        format_decimal(units, decimals=asset.decimals)
        for units in (channel.balance, channel.charged, channel.left)
    )
    return {
        "channel": str(channel.id),
        "network": asset.network,
        "gateway": channel.gateway,
        "payTo": str(channel.config.receiver),
        "token": str(channel.config.token),
        "currency": asset.symbol,
        "balance": balance,
        "charged": charged,
        "left": left,
        "calls": channel.calls,
        "inFlight": not channel.is_certain,
        "withdrawal": None
        if begun is None
        else {
            "amount": format_decimal(begun.amount, decimals=asset.decimals),
            "readyAt": _format_time(begun.ready_s) if begun.ready_s else None,
        },
    }


def _format_time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
