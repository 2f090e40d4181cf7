"""How the commands of providers and callers show things: tables for people, JSON for programs.

What providers and upstreams wrote is untrusted: it reaches a terminal without control characters and without markup.
"""

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tollway.client import CallerFailure, CallHeld, CallResponse, GatewayRefused, PaymentQuote, PaymentRefused
from tollway.client.fee_limit import format_fee
from tollway.client.shown_text import plain, plain_line
from tollway.client.steps import SignedAuthorization, Transfer
from tollway.client.whole_answer import read_json
from tollway.client.x402_offer import Receipt
from tollway.money import format_decimal

Document = Mapping[str, Any]
SHOWN_BYTES_MAX = 200_000
"""Of an answer that is text, on a terminal."""
_TEXT_TYPES = ("text/", "application/json", "application/problem+json", "application/xml", "application/yaml")


def is_for_people(*, as_json: bool) -> bool:
    """A terminal gets tables, unless JSON is asked for; a pipe gets JSON."""
    return sys.stdout.isatty() and not as_json


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def print_listings(page: Document) -> None:
    """The registry, one line a listing."""
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "name", "price", "provider", "description"):
        table.add_column(heading, no_wrap=heading in ("id", "price"))
    for api in page.get("apis", ()):
        price = f"{api.get('pricePerRequest')} {api.get('currency')}"
        words = (api.get("id"), api.get("name"), price, api.get("provider"), api.get("description") or "")
        table.add_row(*_plain_texts(words))
    Console().print(table)
    Console().print(Text(f"page {page.get('page', 1)}, {page.get('total', 0)} in all", style="dim"))


def print_found(page: Document, details: Sequence[Document]) -> None:
    """What a search found, in its order. `details`: of each; empty where there are none any more."""
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "name", "price", "networks", "quality", "verified", "found in"):
        table.add_column(heading, no_wrap=heading in ("id", "price"), overflow="fold")
    for api, more in zip(page.get("apis", ()), details, strict=False):
        words = (
            api.get("id"),
            plain_line(str(api.get("name") or "")),
            f"{api.get('pricePerRequest')} {api.get('currency')}",
            "\n".join(str(network) for network in more.get("networks") or ()),
            _tell_quality(more.get("quality")),
            "yes" if more.get("verified") is True else "no",
            ", ".join(str(field) for field in api.get("match") or ()),
        )
        table.add_row(*_plain_texts(words))
    Console().print(table)
    more_than = "more than " if page.get("totalIsLowerBound") else ""
    Console().print(
        Text(f"page {page.get('page', 1)}, {more_than}{page.get('total', 0)} in all", style="dim")
    )


def _tell_quality(quality: object) -> str:
    """`99.81 % of 12034, 120 ms`: successes of the paid calls of 30 days, and their median latency."""
    if not isinstance(quality, Mapping) or quality.get("successRate30d") is None:
        return "not measured"
    try:
        percent = Decimal(str(quality["successRate30d"])) * 100
    except InvalidOperation:
        return "not measured"
    told = f"{percent.normalize():f} % of {quality.get('calls30d')}"
    return told if quality.get("p50Ms") is None else f"{told}, {quality['p50Ms']} ms"


def print_calls(page: Document) -> None:
    """A history, newest first."""
    table = Table(box=None, pad_edge=False)
    for heading in ("time", "api", "request", "status", "price", "payment", "call"):
        table.add_column(heading)
    for call in page.get("calls", ()):
        payment = call.get("payment") or {}
        words = (
            call.get("createdAt"),
            call.get("apiName"),
            f"{call.get('method')} {call.get('path')}",
            f"{call.get('status')} {call.get('httpStatus') or ''}",
            f"{call.get('price')} {call.get('currency')}",
            payment.get("state"),
            call.get("id"),
        )
        table.add_row(*_plain_texts(words))
    Console().print(table)
    Console().print(Text(f"{page.get('total', 0)} in all", style="dim"))


def print_members(document: Document) -> None:
    """One object, a member a line; what is nested as JSON."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in document.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        table.add_row(*_plain_texts((name, shown)))
    Console().print(table)


def print_document(document: Document, *, as_json: bool) -> None:
    """One object: a table for people, JSON for programs."""
    if is_for_people(as_json=as_json):
        print_members(document)
    else:
        print_json(document)


def print_answer(answer: CallResponse) -> None:
    """The body on the terminal, what it cost below, where a pipe would not see it."""
    kind = answer.headers.get("content-type", "")
    if kind.startswith(_TEXT_TYPES):
        text = answer.content[:SHOWN_BYTES_MAX].decode(answer.encoding or "utf-8", "replace")
        rest_bytes = len(answer.content) - SHOWN_BYTES_MAX
        more = f"\n({rest_bytes} bytes more; -o FILE keeps them)" if rest_bytes > 0 else ""
        sys.stdout.write(f"{plain(text)}{more}\n")
    elif answer.content:
        sys.stdout.write(
            f"({len(answer.content)} bytes of {plain(kind) or 'unknown type'}; -o FILE keeps them)\n"
        )
    payment = answer.payment
    words = [f"HTTP {answer.status_code}", f"payment {payment.state}"]
    words += [f"price {payment.price}"] if payment.price else []
    words += [f"credit left {payment.credit_remaining}"] if payment.credit_remaining else []
    words += [f"rail {payment.rail}"] if payment.rail else []
    words += [f"network fee at most {payment.fee_max}"] if payment.fee_max else []
    words += [f"paid by {payment.transaction}"] if payment.transaction else []
    words += [f"call {payment.call_id}"] if payment.call_id else []
    Console(stderr=True).print(Text(plain(" · ".join(words)), style="dim"))


def describe_answer(answer: CallResponse) -> dict[str, Any]:
    """An answer as JSON. `body` is JSON where the answer is, else text; other bytes are in `bodyBase64`."""
    kind = answer.headers.get("content-type", "")
    receipt = answer.payment.receipt
    payment = {_camel(name): value for name, value in asdict(answer.payment).items()}
    described: dict[str, Any] = {
        "status": answer.status_code,
        "headers": dict(answer.headers),
        "payment": {**payment, "receipt": None if receipt is None else _describe_receipt(receipt)},
    }
    if kind.partition(";")[0].endswith("json"):
        try:
            return {**described, "body": read_json(answer.content)}
        except ValueError:
            pass
    if not answer.content or kind.startswith(_TEXT_TYPES):
        return {**described, "body": answer.text}
    return {**described, "bodyBase64": base64.b64encode(answer.content).decode()}


def _describe_receipt(receipt: Receipt) -> dict[str, Any]:
    """As x402 names its members; what the gateway left out is left out."""
    told = {
        "success": receipt.is_success,
        "transaction": None if receipt.transaction is None else str(receipt.transaction),
        "network": receipt.network,
        "payer": receipt.payer,
        "amount": receipt.amount,
        "errorReason": receipt.reason,
    }
    return {name: value for name, value in told.items() if value is not None}


def describe_payment(payment: Transfer) -> dict[str, str | None]:
    """A payment of the wallet's own books."""
    decimals = payment.asset.decimals
    return {
        "rail": "tx",
        "transaction": str(payment.tx_hash),
        "network": payment.asset.network,
        "gateway": payment.gateway,
        "payTo": str(payment.pay_to),
        "amount": format_decimal(payment.amount, decimals=decimals),
        "left": format_decimal(payment.rest, decimals=decimals),
        "currency": payment.asset.symbol,
        "feeMax": None if payment.fee_max_wei is None else format_fee(payment.chain_id, payment.fee_max_wei),
        "state": payment.state.value,
    }


def describe_authorization(signed: SignedAuthorization) -> dict[str, str | None]:
    """An authorisation of the wallet's own books; never its proof."""
    return {
        "rail": "x402",
        "authorization": signed.name(),
        "transaction": None if signed.tx_hash is None else str(signed.tx_hash),
        "network": signed.asset.network,
        "gateway": signed.gateway,
        "payTo": str(signed.pay_to),
        "amount": format_decimal(signed.amount, decimals=signed.asset.decimals),
        "currency": signed.asset.symbol,
        "state": signed.state.value,
    }


def print_quote(quote: PaymentQuote) -> None:
    """On stderr, before the payment is signed."""
    Console(stderr=True).print(Text(plain(quote.describe()), style="dim"))


def print_failure(failure: Exception, *, as_json: bool) -> None:
    """On stderr: a sentence for people, an object for programs."""
    described = _describe_failure(failure)
    if is_for_people(as_json=as_json):
        console = Console(stderr=True)
        console.print(Text(plain(str(described["detail"])), style="red"))
        for name in ("transaction", "callUrl", "reason"):
            if described.get(name):
                console.print(Text(plain(f"{name}: {described[name]}"), style="dim"))
    else:
        sys.stderr.write(json.dumps({"error": described}, ensure_ascii=False) + "\n")


def _describe_failure(failure: Exception) -> dict[str, Any]:
    described: dict[str, Any] = {"code": "usage", "detail": str(failure), "retryable": False}
    if isinstance(failure, CallerFailure):
        described = {"code": failure.code, "detail": failure.detail, "retryable": failure.is_retryable}
        if failure.transaction is not None:
            described["transaction"] = str(failure.transaction)
    if isinstance(failure, GatewayRefused):
        described["problem"] = dict(failure.problem)
    if isinstance(failure, PaymentRefused):
        described["reason"] = failure.reason
    if isinstance(failure, CallHeld):
        described |= {"callId": failure.call_id, "callUrl": failure.call_url}
    return described


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _plain_texts(words: Sequence[object] | Iterable[object]) -> list[Text]:
    return [Text(plain("" if word is None else str(word))) for word in words]
