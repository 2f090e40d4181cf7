"""The DID document: what the gateway writes and what a verifier of receipts reads."""

from typing import Any

import pytest

from tollway.identity.did_document import KEYS_MAX, PublishedSigners, describe_signers, key_id, read_signers
from tollway.ids import Address

SIGNER, OLD = Address(b"\x11" * 20), Address(b"\x22" * 20)


@pytest.mark.parametrize("authority", ["gw.example.com", "127.0.0.1:8402", "[::1]:8402"])
def test_a_written_document_is_read(authority: str) -> None:
    document = describe_signers(authority=authority, signers=[SIGNER, OLD])
    assert read_signers(document) == PublishedSigners(authority=authority, addresses=frozenset({SIGNER, OLD}))
    assert document["verificationMethod"][0]["id"] == key_id(authority)


def test_an_address_is_listed_once() -> None:
    document = describe_signers(authority="gw.example.com", signers=[SIGNER, OLD, SIGNER])
    assert [one["blockchainAccountId"] for one in document["verificationMethod"]] == [
        f"eip155:1:{SIGNER}",
        f"eip155:1:{OLD}",
    ]


def test_a_key_of_another_kind_is_ignored() -> None:
    document = describe_signers(authority="gw.example.com", signers=[SIGNER])
    document["verificationMethod"] += [
        7,
        {},
        {"publicKeyJwk": {"kty": "OKP"}},
        {"blockchainAccountId": 7},
        {"blockchainAccountId": "eip155:1:0x12"},
        {"blockchainAccountId": f"solana:1:{OLD}"},
    ]
    assert read_signers(document).addresses == {SIGNER}


def without(member: str) -> dict[str, Any]:
    document = describe_signers(authority="gw.example.com", signers=[SIGNER])
    del document[member]
    return document


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (None, "no id"),
        ([], "no id"),
        (without("id"), "no id"),
        ({**without("id"), "id": "did:key:z6Mk"}, "no id"),
        ({**without("id"), "id": "did:web:gw.example.com:path"}, "no id"),
        (without("verificationMethod"), "no list"),
        ({**without("verificationMethod"), "verificationMethod": []}, "lists no key"),
        ({**without("verificationMethod"), "verificationMethod": [{}] * (KEYS_MAX + 1)}, "no list"),
    ],
)
def test_another_document_is_refused_with_a_sentence(document: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_signers(document)
