"""`tollway receipt verify`: verifies a saved receipt offline, and says what it proves."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tollway.cli.inputs import LATER, REFUSED, USAGE, AsJson, read_file
from tollway.cli.output import (
    is_for_people,
    print_failure,
    print_filled_members,
    print_foot,
    print_json,
    print_line,
)
from tollway.client.receipts import (
    KEYS_BYTES_MAX,
    RECEIPT_BYTES_MAX,
    RepeatedMember,
    SignersUnavailable,
    fetch_signers,
    find_keys_url,
    parse_document,
    parse_signers,
)
from tollway.identity.did_document import PublishedSigners
from tollway.money import format_decimal
from tollway.payments.call_receipt import ReceiptVerdict, verify_call_receipt

SIGNED = frozenset({"format", "primaryType", "domain", "payload", "signature", "x402", "creditNote"})
"""The members of the document that the signatures cover, or that a verification compares."""
DECIMALS_MAX = 78

PROVED = "Proved: the gateway {gateway} signed this statement about its books with a key of its DID document."
NOT_PROVED = (
    "Not proved: that money moved on a chain. For that, look up the transaction on its network. A later receipt of the same call counts "
    "before this one."
)
FETCHED = (
    "The keys were fetched from {url} now, and the receipt itself names that gateway. Check that it is the gateway you called, and save the "
    "document: tollway receipt verify FILE --keys did.json works without a network."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """The keys of a verification. `url`: where they were fetched; None for a file."""

    signers: PublishedSigners
    url: str | None


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The receipt, as JSON; - reads stdin.")],
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", help="The gateway's did.json, saved. Without it: fetched."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    try:
        receipt = parse_document(_read_file(file, RECEIPT_BYTES_MAX), str(file), bytes_max=RECEIPT_BYTES_MAX)
        source = _find_keys(keys, receipt)
    except SignersUnavailable as exc:
        print_failure(ValueError(f"{exc}; give a saved one with --keys FILE"), as_json=as_json)
        raise typer.Exit(LATER) from exc
    except RepeatedMember as exc:
        print_failure(exc, as_json=as_json)
        raise typer.Exit(REFUSED) from exc
    except ValueError as exc:
        print_failure(exc, as_json=as_json)
        raise typer.Exit(USAGE) from exc
    verdict = verify_call_receipt(receipt, source.signers)
    if is_for_people(as_json=as_json):
        _print_verdict(receipt, verdict, source)
    else:
        print_json(describe_verdict(receipt, verdict, source))
    if not verdict.is_valid:
        raise typer.Exit(REFUSED)


def _read_file(file: Path, bytes_max: int) -> bytes:
    """One byte more than `bytes_max` at most, so that a longer file is refused and not cut."""
    if str(file) == "-":
        return sys.stdin.buffer.read(bytes_max + 1)
    return read_file(file, bytes_max + 1)


def _find_keys(keys: Path | None, receipt: Mapping[str, Any]) -> KeySource:
    if keys is not None:
        try:
            return KeySource(signers=parse_signers(_read_file(keys, KEYS_BYTES_MAX)), url=None)
        except ValueError as exc:
            raise ValueError(f"{keys}: {exc}") from exc
    url = find_keys_url(receipt)
    return KeySource(signers=fetch_signers(url), url=url)


def describe_verdict(
    receipt: Mapping[str, Any], verdict: ReceiptVerdict, source: KeySource
) -> dict[str, Any]:
    """The result as JSON. Pure."""
    return {
        "valid": verdict.is_valid,
        "signer": None if verdict.signer is None else str(verdict.signer),
        "keys": {"authority": source.signers.authority, "fetchedFrom": source.url},
        "mismatches": [
            {"code": one.code, "field": one.field, "detail": one.detail} for one in verdict.mismatches
        ],
        "says": list(explain_verdict(receipt, verdict, source)),
        "notSigned": _list_unsigned(receipt),
        "receipt": receipt.get("payload"),
        "creditNote": _find_note(receipt) if verdict.is_valid else None,
    }


def explain_verdict(receipt: Mapping[str, Any], verdict: ReceiptVerdict, source: KeySource) -> Iterator[str]:
    """Sentences about what a valid receipt proves, and where its keys are from. Pure."""
    if verdict.is_valid:
        yield PROVED.format(gateway=receipt["payload"]["gateway"])
        yield NOT_PROVED
    if source.url is not None:
        yield FETCHED.format(url=source.url)


def _list_unsigned(receipt: Mapping[str, Any]) -> list[str]:
    return sorted(str(name) for name in receipt if name not in SIGNED)


def _print_verdict(receipt: Mapping[str, Any], verdict: ReceiptVerdict, source: KeySource) -> None:
    if verdict.is_valid:
        print_line(f"Valid. Signed by {verdict.signer}.", style="green")
        print_filled_members({**_list_members(receipt["payload"]), **_list_refund(_find_note(receipt))})
    else:
        print_line("Not valid. Do not book this receipt.", style="red")
        for one in verdict.mismatches:
            print_line(f"{one.code}: {one.detail}")
    unsigned = _list_unsigned(receipt)
    if unsigned:
        print_foot("Not signed, so not checked: " + ", ".join(unsigned) + ".")
    for line in explain_verdict(receipt, verdict, source):
        print_line(line)


def _list_members(payload: Mapping[str, Any]) -> dict[str, object]:
    """The fields in reading order."""
    return {
        "call": payload["callId"],
        "state": payload["state"],
        "amount": format_amount(payload),
        "price": f"{payload['price']} {payload['currency']}",
        "listing": payload["apiId"],
        "request": payload["operation"],
        "response": payload["httpStatus"] or None,
        "payer": payload["payer"],
        "payee": payload["payee"],
        "rail": payload["rail"],
        "network": payload["network"],
        "asset": payload["asset"],
        "transaction": payload["transaction"],
        "gateway": payload["gateway"],
        "began": format_second(payload["createdAt"]),
        "ended": format_second(payload["completedAt"]) or None,
        "stated": format_second(payload["issuedAt"]),
    }


def _find_note(receipt: Mapping[str, Any]) -> Mapping[str, Any] | None:
    note = receipt.get("creditNote")
    return note.get("payload") if isinstance(note, Mapping) else None


def _list_refund(note: Mapping[str, Any] | None) -> dict[str, object]:
    """The fields of a verified credit note; nothing without one."""
    if note is None:
        return {}
    return {
        "refunded": format_amount(note),
        "refund by": note["kind"],
        "refund transaction": note["transaction"],
        "refund stated": format_second(note["issuedAt"]),
    }


def format_amount(payload: Mapping[str, Any]) -> str:
    """`0.01 USDC (10000 base units)`; the text of the receipt where it is no amount."""
    amount, decimals = str(payload["amount"]), payload["decimals"]
    if not (
        amount.isascii() and amount.isdigit() and len(amount) <= DECIMALS_MAX and decimals <= DECIMALS_MAX
    ):
        return f"{amount} base units"
    shown = format_decimal(int(amount), decimals=decimals)
    return f"{shown} {payload['currency']} ({amount} base units)"


def format_second(second: int) -> str:
    """Unix seconds as `2026-11-23 19:53:11 UTC`; empty for 0, and the number itself where it is no time."""
    if second == 0:
        return ""
    try:
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(second)
