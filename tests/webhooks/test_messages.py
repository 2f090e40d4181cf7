"""Bodies and batches of messages, the echo of a challenge, and the signature `v1` with the published library as the oracle."""

import json
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tollway.ids import Address
from tollway.webhooks.messages import (
    BODY_BYTES_MAX,
    Echo,
    Recipient,
    StoredEvent,
    batch_body,
    challenge_body,
    event_body,
    format_secret,
    read_echo,
    sign_standard,
    take_batch,
)

SEED = bytes(range(32))
BODY = b'{"type":"call.charged","timestamp":"2026-11-22T14:00:00.000Z","data":{"callId":"call_01"}}'
AT = "2026-11-22T14:00:00.000Z"
WALLET = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
TO = Recipient(endpoint_id="wh_1", wallet=Address.parse(WALLET))


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


def test_the_body_of_one_event_is_that_of_the_vector_with_its_recipient() -> None:
    named = b'"data":{"endpointId":"wh_1","wallet":"%s",' % WALLET.encode()
    assert event_body(event(1), to=TO).encode() == BODY.replace(b'"data":{', named)


def test_an_event_without_data_names_its_recipient() -> None:
    body = json.loads(event_body(event(1, "{}"), to=TO))
    assert body["data"] == {"endpointId": "wh_1", "wallet": WALLET}


def test_a_batch_has_its_members_in_order() -> None:
    body = json.loads(batch_body([event(1), event(2)], to=TO, at=AT))
    assert (body["type"], body["timestamp"]) == ("batch", AT)
    assert (body["data"]["endpointId"], body["data"]["wallet"]) == ("wh_1", WALLET)
    assert body["data"]["events"] == [
        {"id": f"evt_{number:02}", **json.loads(event_body(event(number), to=TO))} for number in (1, 2)
    ]


@pytest.mark.parametrize("length", [1, 100, 1_000, 9_000, 19_700, 50_000])
def test_a_batch_takes_what_fits_and_one_event_at_least(length: int) -> None:
    events = [event(number, json.dumps({"text": "x" * length})) for number in range(400)]
    count = take_batch(events, to=TO, at=AT)
    assert count >= 1
    if count > 1:
        assert len(batch_body(events[:count], to=TO, at=AT).encode()) < BODY_BYTES_MAX
    assert (
        count == len(events) or len(batch_body(events[: count + 1], to=TO, at=AT).encode()) >= BODY_BYTES_MAX
    )


def test_a_batch_of_few_events_takes_all() -> None:
    assert take_batch([event(1)], to=TO, at=AT) == 1
    assert take_batch([event(1), event(2)], to=TO, at=AT) == 2


def test_a_challenge_names_its_endpoint_and_its_wallet() -> None:
    body = json.loads(challenge_body(to=TO, challenge="abc", at=AT))
    assert body == {
        "type": "webhook.challenge",
        "timestamp": AT,
        "data": {"endpointId": "wh_1", "wallet": WALLET, "challenge": "abc"},
    }


ECHOES = [
    (b"abc", Echo.CHALLENGE),
    (b" abc\n", Echo.CHALLENGE),
    (b'{"challenge": "abc"}', Echo.CHALLENGE),
    (b'{"challenge": "abc", "more": 1}', Echo.CHALLENGE),
    (b'"abc"', Echo.CHALLENGE),
    (f'{{"challenge": "abc", "wallet": "{WALLET}"}}'.encode(), Echo.WALLET),
    (f'{{"challenge": "abc", "wallet": "{WALLET.lower()}"}}'.encode(), Echo.WALLET),
    (f'{{"challenge": "abc", "wallet": "{WALLET.replace("f39F", "f39f")}"}}'.encode(), Echo.CHALLENGE),
    (f'{{"challenge": "abc", "wallet": "0x{"99" * 20}"}}'.encode(), Echo.CHALLENGE),
    (f'{{"challenge": "abc", "wallet": ["{WALLET}"]}}'.encode(), Echo.CHALLENGE),
    (f'{{"wallet": "{WALLET}"}}'.encode(), Echo.NONE),
    (b"", Echo.NONE),
    (b"ab", Echo.NONE),
    (b"abcd", Echo.NONE),
    (b"xabc", Echo.NONE),
    (b'{"challenge": "ab"}', Echo.NONE),
    (b'{"challenge": ["abc"]}', Echo.NONE),
    (b'{"type":"webhook.challenge","data":{"challenge":"abc"}}', Echo.NONE),
    (b"[" * 4_000, Echo.NONE),
    (b"\xff\xfe", Echo.NONE),
    (b"<html>abc</html>", Echo.NONE),
]


def test_an_echo_is_the_text_or_the_member_of_an_object() -> None:
    """A server that reflects every request body does not confirm: the challenge is deeper there."""
    for body, echo in ECHOES:
        assert read_echo(body, challenge="abc", wallet=TO.wallet) is echo
