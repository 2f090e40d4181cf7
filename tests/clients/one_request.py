"""What the Python client scripts share: the request to make, and the one line of JSON that tells what came of it.

Usage: PAYER_KEY=0x... python <script>.py URL [METHOD [BODY]]; further headers as JSON in REQUEST_HEADERS.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from eth_account import Account
from eth_account.signers.local import LocalAccount
from x402.http import decode_payment_response_header


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    url: str
    method: str
    body: str | None
    headers: dict[str, str]


def read_request() -> tuple[Request, LocalAccount]:
    url, *rest = sys.argv[1:]
    method = rest[0] if rest else "GET"
    body = rest[1] if len(rest) > 1 else None
    headers = {} if body is None else {"Content-Type": "application/json"}
    headers |= json.loads(os.environ.get("REQUEST_HEADERS", "{}"))
    request = Request(url=url, method=method, body=body, headers=headers)
    return request, Account.from_key(os.environ["PAYER_KEY"])


def tell_answer(status: int, headers: Mapping[str, str], body: str) -> None:
    shown = {name.lower(): value for name, value in headers.items()}
    receipt = None
    if "payment-response" in shown:
        settled = decode_payment_response_header(shown["payment-response"])
        receipt = settled.model_dump(mode="json", by_alias=True, exclude_none=True)
    _say({"status": status, "headers": shown, "body": body, "receipt": receipt, "error": None})


def tell_error(error: Exception) -> None:
    told = f"{type(error).__name__}: {error}"
    _say({"status": None, "headers": {}, "body": "", "receipt": None, "error": told})


def _say(told: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
