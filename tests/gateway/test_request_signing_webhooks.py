"""The signature of a message of a webhook: the vector, and an independent verifier."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import (
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    algorithms,
)

from tests.gateway.test_request_signing import public_key
from tollway.gateway.request_signing import TAG, WEBHOOK_TAG, SigningKey, UpstreamSigner

URL = "https://owner.example/hooks"
BODY = b'{"type":"call.charged","timestamp":"2026-11-22T14:00:00.000Z","data":{"callId":"call_01"}}'
CREATED_S = 1795356000
NONCE = "AAECAwQFBgcICQoLDA0ODw"
SIGNER = UpstreamSigner([SigningKey(bytes(range(32)))])
HEADERS = {"Content-Type": "application/json", "webhook-id": "evt_01", "webhook-timestamp": str(CREATED_S)}


def sign(signer: UpstreamSigner = SIGNER, **changes: Any) -> dict[str, str]:
    nonces = [NONCE] * len(signer.keys)
    message = {"url": URL, "headers": HEADERS, "body": BODY, "created_s": CREATED_S, "nonces": nonces}
    return dict(signer.sign_webhook(**{**message, **changes}))


def test_the_vector() -> None:
    assert sign() == {
        "Content-Digest": "sha-256=:qMDwL4MimCb/153yG2uKOoKNldEot3QTkpMNz5x8H6Q=:",
        "Signature-Input": (
            'tollway=("@method" "@target-uri" "content-digest" "content-type" "webhook-id" "webhook-timestamp")'
            f';created={CREATED_S};expires=1795356300;nonce="{NONCE}"'
            ';keyid="1IG2tMH7J2wbJZnOf8LJzQitKf7LMvoAElsuDMVM54Y";alg="ed25519";tag="tollway-webhook"'
        ),
        "Signature": (
            "tollway=:xXDw5D0FW9vOKC/E/no/sZLs/HAEc2ezVrq6ylxGSZyY0P1006vzHnKgH1XejZ9hA45Jhs6o6oaaD50RgQofAQ==:"
        ),
    }


class Keys(HTTPSignatureKeyResolver):
    """The keys of a directory."""

    def __init__(self, keys: list[dict[str, str]]) -> None:
        self._keys = keys

    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey:
        return next(public_key(key["x"]) for key in self._keys if key["kid"] == key_id)


class Message:
    """A request as the receiver sees it, in the form that the library reads."""

    def __init__(self, signed: dict[str, str], **changes: Any) -> None:
        self.method = changes.get("method", "POST")
        self.url = changes.get("url", URL)
        self.headers = {**HEADERS, **signed, **changes.get("headers", {})}
        self.body = BODY


def verify(message: Message, signer: UpstreamSigner = SIGNER) -> list[Any]:
    verifier = HTTPMessageVerifier(
        signature_algorithm=algorithms.ED25519, key_resolver=Keys(signer.describe()["keys"])
    )
    verifier.validate_created_and_expires = lambda *args, **options: None
    return verifier.verify(message)


def test_an_independent_verifier_accepts_it() -> None:
    (result,) = verify(Message(sign()))
    assert result.parameters["tag"] == WEBHOOK_TAG != TAG
    assert {'"@target-uri"', '"content-digest"', '"webhook-id"', '"webhook-timestamp"'} <= set(
        result.covered_components
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "https://owner.example/hooks?to=other"},
        {"url": "https://other.example/hooks"},
        {"method": "PUT"},
        {"headers": {"webhook-id": "evt_02"}},
        {"headers": {"webhook-timestamp": "1795356001"}},
        {"headers": {"Content-Digest": "sha-256=:AAAA:"}},
        {"headers": {"Content-Type": "text/plain"}},
    ],
    ids=repr,
)
def test_a_changed_message_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidSignature):
        verify(Message(sign(), **changes))


def test_every_key_signs_while_keys_change() -> None:
    both = UpstreamSigner.derive([b"\x07" * 32, b"\x08" * 32])
    signed = sign(both)
    assert signed["Signature-Input"].count("tollway=") == 1
    assert ", tollway2=" in signed["Signature-Input"]
    for key in both.keys:
        alone = UpstreamSigner([key])
        label = "tollway" if key is both.keys[0] else "tollway2"
        parts = {name: dict(_split(signed[name]))[label] for name in ("Signature-Input", "Signature")}
        own = {**signed, **{name: f"tollway={value}" for name, value in parts.items()}}
        assert verify(Message(own), alone)


def _split(value: str) -> list[tuple[str, str]]:
    members = [one.split("=", 1) for one in value.split(", ")]
    return [(label, text) for label, text in members]
