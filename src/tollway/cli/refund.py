"""`tollway history refund CALL…`: the provider of calls gives their price back, by a transfer that is sent already, by one that it sends, or as credit."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tollway.chain.networks import describe_network
from tollway.cli.inputs import REFUSED, Caller, OneNode, read_nodes, read_wallet, split_nodes
from tollway.cli.output import list_objects, print_foot, print_line, print_text, quote_word, read_object
from tollway.client import TollwayClient, requests
from tollway.client.call_io import Transfer, TransferState
from tollway.client.errors import CallerFailure
from tollway.client.exchange import run_blocking
from tollway.client.fee_limit import format_fee
from tollway.client.refund_transfer import (
    RefundTransfer,
    check_refund_calls,
    find_signed_refund,
    is_refund_alive,
    plan_refund,
    read_refund_due,
    send_refund,
    sign_refund,
)
from tollway.client.requests import GatewayDocument
from tollway.client.safe_text import format_value, plain_line
from tollway.ids import ChainId
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
    store: Path | None,
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
    with caller.open(store=store) as client:
        refund = _send(caller, client, call_ids, rpc=rpc, yes=yes) if how.is_sent else None
        if refund is not None:
            # The order of the first command: the gateway divides a transfer in the order of its request.
            call_ids, how = refund.refunds, RefundChoice(transaction=str(refund.tx_hash))
        request = requests.refund_calls(call_ids, how.transaction)
        command = (
            f"tollway history refund {' '.join(map(quote_word, call_ids))} --transaction {how.transaction}"
        )
        found = _post(lambda: client.fetch_document(request), wait_s=wait_s, command=command, sleep=sleep)
        if refund is not None:
            client.store.record_state(refund.tx_hash, TransferState.CONFIRMED, None)
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


def _send(caller: Caller, client: TollwayClient, call_ids: Sequence[str], *, rpc: str, yes: bool) -> Transfer:
    """Sends the refund of these calls that is signed already; without one it shows the transfer, asks, and signs, stores and sends it. Prints its hash before."""
    wallet, store = read_wallet(caller.session.key_file), client.store
    refund = find_signed_refund(store, call_ids)
    if refund is not None:
        node = _open_node(caller, rpc, refund.chain_id)
        if run_blocking(is_refund_alive(node, store, refund)):
            print_text(describe_signed(refund), is_error=True)
            return _broadcast(client, node, refund)
    calls = [client.fetch_document(requests.find_call(call_id, None)) for call_id in call_ids]
    due = read_refund_due(calls, sender=wallet.address)
    node = _open_node(caller, rpc, due.asset.chain_id)
    planned = run_blocking(plan_refund(node, due, sender=wallet.address))
    print_text(describe_transfer(planned, calls=len(calls)), is_error=True)
    _confirm(yes=yes)
    signed = sign_refund(store, wallet, planned, call_ids=call_ids, gateway=client.gateway)
    return _broadcast(client, node, signed)


def _open_node(caller: Caller, rpc: str, chain_id: ChainId) -> OneNode:
    url = read_nodes(split_nodes(rpc), allow_http=caller.session.allow_http).get(chain_id)
    if url is None:
        raise ValueError(f"name a node of {describe_network(chain_id)}: --rpc URL, or TOLLWAY_RPC")
    return OneNode(url)


def _broadcast(client: TollwayClient, node: OneNode, refund: Transfer) -> Transfer:
    print_text(f"Transaction {refund.tx_hash}", is_error=True)
    refusal = run_blocking(send_refund(node, client.store, refund))
    if refusal is not None:
        print_text(plain_line(f"The node says: {refusal}"), is_error=True)
    return refund


def describe_signed(refund: Transfer) -> str:
    """What an earlier command has signed, before it is sent again."""
    return plain_line(
        f"Refunded already, by {refund.describe()} to {refund.pay_to}: the same transaction is sent again, and no second one."
    )


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
