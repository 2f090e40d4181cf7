"""Bodies and batches of messages, the echo of a challenge, and the signature `v1` with the published library as the oracle."""

import json
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tollway.webhooks.messages import (
    BODY_BYTES_MAX,
    StoredEvent,
    batch_body,
    challenge_body,
    event_body,
    format_secret,
    is_echo,
    sign_standard,
    take_batch,
)

SEED = bytes(range(32))
BODY = b'{"type":"call.charged","timestamp":"2026-11-22T14:00:00.000Z","data":{"callId":"call_01"}}'
AT = "2026-11-22T14:00:00.000Z"


def event(number: int, data: str = '{"callId":"call_01"}') -> StoredEvent:
    return StoredEvent(id=f"evt_{number:02}", type="call.charged", at=AT, data=data)


def test_the_vector_of_the_secret_and_of_the_signature() -> None:
    assert format_secret(SEED) == "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    signed = sign_standard(SEED, message_id="evt_01", timestamp_s=1795356000, body=BODY)
    assert signed == "v1,L+HA2e5lVz3BNFBwDmzUyvUBXxRSLVAkR7GoAh1t4Qo="


def test_the_published_library_verifies_a_signature_of_now() -> None:
    verifier = Webhook(format_secret(SEED))
    now_s = int(time.time())
    headers = {
        "webhook-id": "evt_01",
        "webhook-timestamp": str(now_s),
        "webhook-signature": sign_standard(SEED, message_id="evt_01", timestamp_s=now_s, body=BODY),
    }
    assert verifier.verify(BODY, headers) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        verifier.verify(BODY + b" ", headers)


def test_the_body_of_one_event_is_that_of_the_vector() -> None:
    assert event_body(event(1)).encode() == BODY


def test_a_batch_has_its_members_in_order() -> None:
    body = json.loads(batch_body([event(1), event(2)], at=AT))
    assert (body["type"], body["timestamp"]) == ("batch", AT)
    assert body["data"]["events"] == [
        {"id": f"evt_{number:02}", **json.loads(event_body(event(number)))} for number in (1, 2)
    ]


@pytest.mark.parametrize("length", [1, 100, 1_000, 9_000, 19_700, 50_000])
def test_a_batch_takes_what_fits_and_one_event_at_least(length: int) -> None:
    events = [event(number, json.dumps({"text": "x" * length})) for number in range(400)]
    count = take_batch(events, at=AT)
    assert count >= 1
    if count > 1:
        assert len(batch_body(events[:count], at=AT).encode()) < BODY_BYTES_MAX
    assert count == len(events) or len(batch_body(events[: count + 1], at=AT).encode()) >= BODY_BYTES_MAX


def test_a_batch_of_few_events_takes_all() -> None:
    assert take_batch([event(1)], at=AT) == 1
    assert take_batch([event(1), event(2)], at=AT) == 2


def test_a_challenge_names_its_endpoint() -> None:
    body = json.loads(challenge_body(endpoint_id="wh_1", challenge="abc", at=AT))
    assert body == {
        "type": "webhook.challenge",
        "timestamp": AT,
        "data": {"endpointId": "wh_1", "challenge": "abc"},
    }


@pytest.mark.parametrize(
    ("body", "is_echoed"),
    [
        (b"abc", True),
        (b" abc\n", True),
        (b'{"challenge": "abc"}', True),
        (b'{"challenge": "abc", "more": 1}', True),
        (b'"abc"', True),
        (b"", False),
        (b"ab", False),
        (b"abcd", False),
        (b"xabc", False),
        (b'{"challenge": "ab"}', False),
        (b'{"challenge": ["abc"]}', False),
        (b'{"type":"webhook.challenge","data":{"challenge":"abc"}}', False),
        (b"[" * 4_000, False),
        (b"\xff\xfe", False),
        (b"<html>abc</html>", False),
    ],
)
def test_an_echo_is_the_text_or_the_member_of_an_object(body: bytes, is_echoed: bool) -> None:
    """A server that reflects every request body does not confirm: the challenge is deeper there."""
    assert is_echo(body, "abc") is is_echoed
