"""The messages of webhooks: bodies, batches, and the signature `v1` of Standard Webhooks 1.0. Pure.

A message has the body of one event, or a batch of several. Its id and what its body is made of are stored before the first attempt and never change;
timestamp and signatures are new in every attempt. The signature of RFC 9421 is `gateway/request_signing.py`.
"""

import base64
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic_core import from_json

from tollway.ids import Address
from tollway.webhooks.events import BATCH, CHALLENGE

BODY_BYTES_MAX = 20_000
"""Standard Webhooks asks for bodies of less than 20 kB."""
CONTENT_TYPE = "application/json"
ID_FIELD, TIMESTAMP_FIELD, SIGNATURE_FIELD = "webhook-id", "webhook-timestamp", "webhook-signature"

SECRET_BYTES = 32
_SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of every secret


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event, as stored for all its endpoints. `data`: the JSON text of its data, an object. `at`: RFC 3339."""

    id: str
    type: str
    at: str
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """The endpoint of a message and the wallet that registered it. Both stand in the data of every message."""

    endpoint_id: str
    wallet: Address

    @property
    def members(self) -> dict[str, str]:
        """As on the wire; the wallet by EIP-55."""
        return {"endpointId": self.endpoint_id, "wallet": str(self.wallet)}


class Echo(StrEnum):
    """What a response to a challenge has of it: nothing, the challenge, or the challenge and the wallet of its endpoint."""

    NONE = "none"
    CHALLENGE = "challenge"
    WALLET = "wallet"


def encode_json(content: Mapping[str, Any]) -> str:
    """Compact JSON in ASCII: one text has one encoding in bytes."""
    return json.dumps(content, separators=(",", ":"))


def event_body(event: StoredEvent, *, to: Recipient) -> str:
    head = encode_json(to.members)[:-1]
    rest = event.data[1:] if event.data == "{}" else "," + event.data[1:]
    return f'{{"type":{json.dumps(event.type)},"timestamp":{json.dumps(event.at)},"data":{head}{rest}}}'


def batch_body(events: Sequence[StoredEvent], *, to: Recipient, at: str) -> str:
    return f"{_batch_head(to, at)}{','.join(_member(event, to) for event in events)}]}}}}"


def _batch_head(to: Recipient, at: str) -> str:
    data = encode_json(to.members)[:-1]
    return f'{{"type":{json.dumps(BATCH)},"timestamp":{json.dumps(at)},"data":{data},"events":['


def _member(event: StoredEvent, to: Recipient) -> str:
    return f'{{"id":{json.dumps(event.id)},{event_body(event, to=to)[1:]}'


def take_batch(events: Sequence[StoredEvent], *, to: Recipient, at: str) -> int:
    """How many of the first events fit into one batch; 1 at least, as an event alone has a body of its own."""
    size = len(_batch_head(to, at)) + len("]}}")
    for count, event in enumerate(events):
        size += len(_member(event, to)) + (1 if count else 0)
        if size >= BODY_BYTES_MAX:
            return max(1, count)
    return len(events)


def challenge_body(*, to: Recipient, challenge: str, at: str) -> str:
    data = {**to.members, "challenge": challenge}
    return encode_json({"type": CHALLENGE, "timestamp": at, "data": data})


def read_echo(body: bytes, *, challenge: str, wallet: Address) -> Echo:
    """What a response echoes. The challenge: as the member `challenge` of a JSON object, or as the whole text. The wallet: beside it, as the member
    `wallet`."""
    text = body.decode("utf-8", "replace").strip()
    if hmac.compare_digest(text.encode(), challenge.encode()):
        return Echo.CHALLENGE
    try:
        echoed = from_json(body)
    except ValueError:
        return Echo.NONE
    members = echoed if isinstance(echoed, dict) else {"challenge": echoed}
    if members.get("challenge") != challenge:
        return Echo.NONE
    return Echo.WALLET if _is_wallet(members.get("wallet"), wallet) else Echo.CHALLENGE


def _is_wallet(text: object, wallet: Address) -> bool:
    try:
        return isinstance(text, str) and Address.parse(text) == wallet
    except ValueError:
        return False


def format_secret(secret: bytes) -> str:
    return _SECRET_PREFIX + base64.b64encode(secret).decode()


def sign_standard(secret: bytes, *, message_id: str, timestamp_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: `v1` and HMAC-SHA256 over id, timestamp and body."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
