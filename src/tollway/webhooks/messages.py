"""The messages of webhooks: bodies, batches, and the signature `v1` of Standard Webhooks 1.0. Pure.

A message has the body of one event, or a batch of several. Its id and its body are stored before the first attempt and never change; timestamp and
signatures are new in every attempt. The signature of RFC 9421 is `gateway/request_signing.py`.
"""

import base64
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from tollway.webhooks.events import BATCH, CHALLENGE

BODY_BYTES_MAX = 20_000
"""Standard Webhooks asks for bodies of less than 20 kB."""
CONTENT_TYPE = "application/json"
ID_FIELD, TIMESTAMP_FIELD, SIGNATURE_FIELD = "webhook-id", "webhook-timestamp", "webhook-signature"

SECRET_BYTES = 32
_SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of every secret


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event of one endpoint, as stored. `data`: the JSON text of its data. `at`: RFC 3339."""

    id: str
    type: str
    at: str
    data: str


def encode_json(content: Mapping[str, Any]) -> str:
    """Compact JSON in ASCII: one text has one encoding in bytes."""
    return json.dumps(content, separators=(",", ":"))


def event_body(event: StoredEvent) -> str:
    return f'{{"type":{json.dumps(event.type)},"timestamp":{json.dumps(event.at)},"data":{event.data}}}'


def batch_body(events: Sequence[StoredEvent], *, at: str) -> str:
    return f"{_batch_head(at)}{','.join(map(_member, events))}]}}}}"


def _batch_head(at: str) -> str:
    return f'{{"type":{json.dumps(BATCH)},"timestamp":{json.dumps(at)},"data":{{"events":['


def _member(event: StoredEvent) -> str:
    return f'{{"id":{json.dumps(event.id)},{event_body(event)[1:]}'


def take_batch(events: Sequence[StoredEvent], *, at: str) -> int:
    """How many of the first events fit into one batch; 1 at least, as an event alone has a body of its own."""
    size = len(_batch_head(at)) + len("]}}")
    for count, event in enumerate(events):
        size += len(_member(event)) + (1 if count else 0)
        if size >= BODY_BYTES_MAX:
            return max(1, count)
    return len(events)


def challenge_body(*, endpoint_id: str, challenge: str, at: str) -> str:
    data = {"endpointId": endpoint_id, "challenge": challenge}
    return encode_json({"type": CHALLENGE, "timestamp": at, "data": data})


def is_echo(body: bytes, challenge: str) -> bool:
    """True for a response that echoes the challenge: as the member `challenge` of a JSON object, or as the whole text."""
    text = body.decode("utf-8", "replace").strip()
    if hmac.compare_digest(text.encode(), challenge.encode()):
        return True
    try:
        echoed = from_json(body)
    except ValueError:
        return False
    found = echoed.get("challenge") if isinstance(echoed, dict) else echoed
    return isinstance(found, str) and found == challenge


def format_secret(secret: bytes) -> str:
    """`whsec_` and base64 with padding."""
    return _SECRET_PREFIX + base64.b64encode(secret).decode()


def sign_standard(secret: bytes, *, message_id: str, timestamp_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: `v1` and HMAC-SHA256 over id, timestamp and body."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
