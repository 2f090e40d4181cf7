"""`tollway history refund CALL…`: the provider of calls gives their price back, by a transfer that is sent already, by one that it sends, or as credit."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tollway.chain.networks import describe_network
from tollway.cli.inputs import REFUSED, Caller, OneNode, read_nodes, read_wallet, split_nodes
from tollway.cli.output import list_objects, print_foot, print_line, print_text, quote_word, read_object
from tollway.client import requests
from tollway.client.errors import CallerFailure
from tollway.client.exchange import run_blocking
from tollway.client.fee_limit import format_fee
from tollway.client.refund_transfer import (
    RefundTransfer,
    check_refund_calls,
    plan_refund,
    read_refund_due,
    send_raw,
)
from tollway.client.requests import GatewayDocument
from tollway.client.safe_text import format_value, plain_line
from tollway.money import format_decimal

REFUND = "refund"
"""The word before calls that their provider refunds."""
POLL_S = 2.0

NamedCalls = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[resolve CALL | refund CALL…]",
        help="As their provider, decide this held call, or give the price of these calls back.",
    ),
]
SentTransfer = Annotated[
    str | None,
    typer.Option("--transaction", metavar="0x…", help="With refund: the transfer that you have sent."),
]
Send = Annotated[
    bool, typer.Option("--send", help="With refund: send the price from your wallet, after a question.")
]
GivesCredit = Annotated[
    bool, typer.Option("--credit", help="With refund: as credit at your listings, without a transfer.")
]
Unasked = Annotated[bool, typer.Option("--yes", "-y", help="With --send: do not ask.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundChoice:
    """How the price comes back; one of the three is given."""

    transaction: str | None = None
    is_sent: bool = False
    is_credit: bool = False


def refund_calls(
    caller: Caller,
    word: str | None,
    call_ids: Sequence[str] | None,
    how: RefundChoice,
    *,
    rpc: str,
    wait_s: float,
    yes: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Raises ValueError without calls and for options that contradict each other, and `CallerFailure`."""
    if word != REFUND or not call_ids:
        raise ValueError("name the calls: tollway history refund CALL… --send, --transaction 0x… or --credit")
    if [how.transaction is not None, how.is_credit, how.is_sent].count(True) != 1:
        raise ValueError(
            "say how: tollway history refund CALL --send sends the price from your wallet, --transaction 0x… names a transfer that is sent, --credit gives credit"
        )
    if how.is_credit and len(call_ids) > 1:
        raise ValueError("--credit is for one call at a time")
    check_refund_calls(call_ids)
    transaction = _send(caller, call_ids, rpc=rpc, yes=yes) if how.is_sent else how.transaction
    request = requests.refund_calls(call_ids, transaction)
    command = f"tollway history refund {' '.join(map(quote_word, call_ids))} --transaction {transaction}"
    with caller.open() as client:
        found = _post(lambda: client.fetch_document(request), wait_s=wait_s, command=command, sleep=sleep)
    caller.print(found, print_refunds)


def _post(
    post: Callable[[], GatewayDocument], *, wait_s: float, command: str, sleep: Callable[[float], None]
) -> GatewayDocument:
    """Sends the request until the gateway has seen the transfer deep enough, for `wait_s` of pauses at most."""
    left_s = wait_s
    while True:
        try:
            return post()
        except CallerFailure as exc:
            if exc.is_retryable and (exc.code != "payment_pending" or left_s <= 0):
                print_text(f"Not recorded yet. Send it again later: {command}", is_error=True)
            if exc.code != "payment_pending" or left_s <= 0:
                raise
        left_s -= POLL_S
        sleep(POLL_S)


def _send(caller: Caller, call_ids: Sequence[str], *, rpc: str, yes: bool) -> str:
    """Shows the transfer, asks, and sends it. Returns its hash, which is printed before it is sent."""
    session = caller.session
    wallet = read_wallet(session.key_file)
    with caller.open() as client:
        calls = [client.fetch_document(requests.find_call(call_id, None)) for call_id in call_ids]
    due = read_refund_due(calls, sender=wallet.address)
    chain_id = due.asset.chain_id
    url = read_nodes(split_nodes(rpc), allow_http=session.allow_http).get(chain_id)
    if url is None:
        raise ValueError(f"name a node of {describe_network(chain_id)}: --rpc URL, or TOLLWAY_RPC")
    node = OneNode(url)
    planned = run_blocking(plan_refund(node, due, sender=wallet.address))
    print_text(describe_transfer(planned, calls=len(calls)), is_error=True)
    _confirm(yes=yes)
    signed = wallet.sign_transfer(planned.unsigned)
    print_text(f"Transaction {signed.tx_hash}", is_error=True)
    refusal = run_blocking(send_raw(node, chain_id, signed.raw))
    if refusal is not None:
        print_text(plain_line(f"The node says: {refusal}"), is_error=True)
    return str(signed.tx_hash)


def describe_transfer(planned: RefundTransfer, *, calls: int) -> str:
    """What is sent to whom, before it is."""
    due = planned.due
    amount = f"{format_decimal(due.amount, decimals=due.asset.decimals)} {due.asset.symbol}"
    fee = format_fee(due.asset.chain_id, planned.fee.max_wei)
    token = "" if due.asset.token is None else f" (token {due.asset.token})"
    named = "1 call" if calls == 1 else f"{calls} calls"
    return plain_line(
        f"Sends {amount}{token} on {describe_network(due.asset.chain_id)} to {due.payer}, who paid for {named}; network fee at most {fee}."
    )


def _confirm(*, yes: bool) -> None:
    """Asks on a terminal. A program says --yes. Ends the command where the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("nothing was sent: add --yes to send the transfer without a question")
    if not typer.confirm("Send the transaction?", err=True):
        print_text("Nothing was sent.", is_error=True)
        raise typer.Exit(REFUSED)


def print_refunds(found: Mapping[str, Any]) -> None:
    """One line for each refunded call."""
    for call in list_objects(found.get("calls")):
        print_line(f"{format_value(call.get('id'))}: {describe_refund(call)}")
    print_foot(
        "The payer sees it in its history. The receipt of the call has a signed credit note: tollway history CALL --receipt FILE"
    )


def describe_refund(call: Mapping[str, Any]) -> str:
    """What came back of a call and how; empty where nothing did."""
    refund = read_object(call.get("refund"))
    if not refund:
        return ""
    amount = f"{format_value(refund.get('value'))} {format_value(call.get('currency'))}"
    if refund.get("kind") == "credit":
        return f"refunded {amount} as credit {format_value(refund.get('transaction'))}"
    return f"refunded {amount} by {format_value(refund.get('transaction'))}"
