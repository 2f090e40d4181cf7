"""Verifies saved receipts: reads a receipt and a DID document from their bytes, and fetches the DID document of a gateway.

`verify_receipt` needs no network: an accountant keeps the receipts and `did.json` with the books.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
from pydantic_core import from_json

from tollway.client.deadline import fetch_bounded
from tollway.client.provider import check_origin
from tollway.client.safe_text import plain_line
from tollway.identity.did_document import DID_PATH, PublishedSigners, read_signers
from tollway.payments.call_receipt import Mismatch, ReceiptVerdict, find_gateway, verify_call_receipt

RECEIPT_BYTES_MAX = 65_536
KEYS_BYTES_MAX = 65_536
FETCH_DEADLINE_S = 10.0


class RepeatedMember(ValueError):
    """An object of the document has a member twice. Readers would differ in which of the two counts (RFC 8259 §4)."""


class SignersUnavailable(Exception):
    """The DID document of the gateway could not be fetched. The same command can succeed later, or with a saved document."""


def verify_receipt(receipt: str | bytes, did_document: str | bytes) -> ReceiptVerdict:
    """Verifies a receipt with the saved DID document of its gateway (`{gateway}/.well-known/did.json`), both as JSON text.

    `is_valid` proves that the gateway of the DID document stated these fields, nothing about a chain. Raises ValueError where the DID document
    is none; a receipt that is no JSON is not valid.
    """
    signers = parse_signers(did_document)
    try:
        document: object = parse_document(receipt, "the receipt", bytes_max=RECEIPT_BYTES_MAX)
    except RepeatedMember as exc:
        return ReceiptVerdict(signer=None, mismatches=(Mismatch(code="malformed", detail=f"{exc}."),))
    except ValueError:
        document = None
    return verify_call_receipt(document, signers)


def parse_document(text: str | bytes, what: str, *, bytes_max: int) -> Mapping[str, Any]:
    """Raises ValueError with a sentence that begins with `what`; `RepeatedMember` for an object with a member twice."""
    if len(text) > bytes_max:
        raise ValueError(f"{what} is larger than {bytes_max} bytes")
    try:
        document = from_json(text)  # bounds the depth, too
        repeated: list[str] = []
        json.loads(text, object_pairs_hook=partial(_note_repeated, repeated))
    except ValueError as exc:
        raise ValueError(f"{what} is no JSON: {exc}") from exc
    if repeated:
        raise RepeatedMember(f"{what} has the member {plain_line(repeated[0])[:64]} twice")
    if isinstance(document, dict):
        return document
    raise ValueError(f"{what} is no JSON object")


def _note_repeated(repeated: list[str], pairs: list[tuple[str, object]]) -> None:
    names = [name for name, _ in pairs]
    repeated += [name for name in names if names.count(name) > 1][:1]


def parse_signers(did_document: str | bytes) -> PublishedSigners:
    """Raises ValueError with a sentence."""
    return read_signers(parse_document(did_document, "the DID document", bytes_max=KEYS_BYTES_MAX))


def find_keys_url(receipt: object) -> str:
    """The URL of the DID document of the gateway that a receipt names. Raises ValueError unless it is https or on loopback."""
    gateway = find_gateway(receipt)
    if gateway is None:
        raise ValueError(
            "the receipt names no gateway (payload.gateway), so its keys are unknown; give --keys FILE"
        )
    return check_origin(gateway) + DID_PATH


def fetch_signers(url: str) -> PublishedSigners:
    """Fetches a DID document, without redirects. Raises `SignersUnavailable`, and ValueError where the response is no DID document."""
    try:
        status, body = fetch_bounded("GET", url, deadline_s=FETCH_DEADLINE_S, bytes_max=KEYS_BYTES_MAX)
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as exc:
        raise SignersUnavailable(f"{url} cannot be read: {exc}") from exc
    if not 200 <= status <= 299:
        raise SignersUnavailable(f"{url} responds with status {status}")
    return parse_signers(body)
