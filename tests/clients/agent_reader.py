"""A caller that knows an agent document and nothing else: it fills in the form of a rail and signs what it says. For a rail whose form is not in the document it
needs the payment guide that the document links to.

It must never import anything of the gateway: that these documents are enough is what it is there to show.
"""

import base64
import json
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from eth_account import Account
from eth_account.messages import encode_defunct, encode_typed_data
from eth_utils import keccak

_BLANK = re.compile(r"\{([A-Za-z.]+)\}")
_FUNCTION = re.compile(r"([A-Za-z]+)\((.*)\)")

Headers = dict[str, str]


def find_rail(document: Mapping[str, Any], rail: str) -> dict[str, Any]:
    """The rail of an agent document or of the payment guide."""
    rails = document["payment"]["rails"] if "payment" in document else document["rails"]
    return next(one for one in rails if one["rail"] == rail)


def find_option(agent: Mapping[str, Any], rail: str) -> dict[str, Any]:
    return next(one for one in agent["payment"]["options"] if one["rail"] == rail)


def fill(form: Any, values: Mapping[str, Any]) -> Any:
    """The form with its blanks filled in; a text that is nothing but a blank becomes the value itself."""
    if isinstance(form, dict):
        return {name: fill(one, values) for name, one in form.items()}
    if isinstance(form, list):
        return [fill(one, values) for one in form]
    if not isinstance(form, str):
        return form
    whole = _BLANK.fullmatch(form)
    return look_up(values, whole[1]) if whole else _BLANK.sub(lambda one: str(look_up(values, one[1])), form)


def look_up(values: Mapping[str, Any], name: str) -> Any:
    found: Any = values
    for part in name.split("."):
        found = found[part]
    return found


def sign(eip712: Mapping[str, Any], values: Mapping[str, Any], key: str) -> tuple[str, dict[str, Any]]:
    """The signature and the message that it is of."""
    said = _FUNCTION.fullmatch(eip712["type"])
    assert said is not None
    fields = [dict(zip(("type", "name"), one.split(" "), strict=True)) for one in said[2].split(",")]
    domain, message = fill(eip712["domain"], values), fill(eip712["message"], values)
    signable = encode_typed_data(domain, {said[1]: fields}, message)
    return "0x" + Account.sign_message(signable, key).signature.hex(), message


def pay_by_x402(agent: Mapping[str, Any], key: str) -> Headers:
    """Headers that pay one call by a signed authorisation."""
    rail, option = find_rail(agent, "x402"), find_option(agent, "x402")
    values = {
        **option,
        "from": Account.from_key(key).address,
        "validBefore": str(int(time.time()) + option["maxTimeoutSeconds"]),
        "nonce": "0x" + secrets.token_hex(32),
    }
    signature, message = sign(rail["eip712"], values, key)
    payload = fill(rail["payload"], {**values, "signature": signature, "message": message})
    return {rail["header"]: base64.b64encode(json.dumps(payload).encode()).decode()}


def show_transaction(
    agent: Mapping[str, Any],
    key: str,
    transaction: str,
    *,
    method: str,
    url: str,
    body: bytes = b"",
    guide: Mapping[str, Any] | None = None,
) -> Headers:
    """Headers that show a transfer for one request. `guide`: for a document without the form of this rail."""
    rail, option = find_rail(agent if guide is None else guide, "tx"), find_option(agent, "tx")
    values = {
        **option,
        "id": agent["id"],
        "origin": agent["origin"],
        "transaction": transaction,
        "method": method,
        "target": url.removeprefix(agent["interfaces"]["http"]["url"]),
        "bodyHash": "0x" + keccak(body).hex(),
        "validUntil": str(int(time.time()) + 240),
        "nonce": "0x" + secrets.token_hex(32),
    }
    signature, _ = sign(rail["eip712"], values, key)
    headers: Headers = fill(rail["headers"], {**values, "signature": signature})
    return headers


def sign_text(key: str, text: str) -> str:
    """personal_sign."""
    return "0x" + Account.sign_message(encode_defunct(text=text), key).signature.hex()
