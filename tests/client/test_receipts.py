"""Receipts in a program: read from the gateway, verified with a saved DID document."""

import json

import pytest

from tests.kit.receipts import CALL_RECEIPT, DID_DOCUMENT, SIGNER, signed_receipt
from tollway.client import GatewayResponseInvalid, verify_receipt
from tollway.client.receipts import RECEIPT_BYTES_MAX, find_keys_url
from tollway.client.records import read_receipt

DID = json.dumps(DID_DOCUMENT)


def test_a_saved_receipt_is_verified_from_text_and_from_bytes() -> None:
    text = json.dumps(signed_receipt())
    for receipt, did in ((text, DID), (text.encode(), DID.encode())):
        verdict = verify_receipt(receipt, did)
        assert (verdict.is_valid, verdict.signer) == (True, SIGNER.address)


@pytest.mark.parametrize("receipt", ["", "{", "[]", b"\xff", "[" * 5_000, " " * (RECEIPT_BYTES_MAX + 1)])
def test_a_receipt_that_is_no_json_is_not_valid(receipt: str | bytes) -> None:
    assert [one.code for one in verify_receipt(receipt, DID).mismatches] == ["malformed"]


@pytest.mark.parametrize(
    ("before", "twice", "name"),
    [
        ('"amount": "10000"', '"amount": "99999", "amount": "10000"', "amount"),
        ('"amount": "10000"', '"amount": "10000", "amount": "10000"', "amount"),
        ('"amount": "10000"', '"\\u0061mount": "99999", "amount": "10000"', "amount"),
        ('"domain": {', '"domain": {"name": "Other", ', "name"),
        ('"format": "eip712"', '"payload": {}, "format": "eip712"', "payload"),
    ],
)
def test_a_receipt_with_a_member_twice_is_not_valid(before: str, twice: str, name: str) -> None:
    """A reader that takes the other one of the two would see what no key has signed."""
    text = json.dumps(signed_receipt())
    assert before in text
    verdict = verify_receipt(text.replace(before, twice, 1), DID)
    (mismatch,) = verdict.mismatches
    assert (mismatch.code, verdict.signer) == ("malformed", None)
    assert mismatch.detail == f"the receipt has the member {name} twice."


def test_a_did_document_with_a_member_twice_is_none() -> None:
    twice = DID.replace('"id": ', '"id": "did:web:other.example", "id": ', 1)
    assert twice != DID
    with pytest.raises(ValueError, match="the DID document has the member id twice"):
        verify_receipt(json.dumps(signed_receipt()), twice)


@pytest.mark.parametrize("did", ["", "[]", "{}", json.dumps({**DID_DOCUMENT, "verificationMethod": []})])
def test_without_keys_nothing_is_verified(did: str) -> None:
    with pytest.raises(ValueError, match="the DID document"):
        verify_receipt(json.dumps(signed_receipt()), did)


def test_the_record_has_the_signed_fields_and_the_whole_document() -> None:
    document = {**signed_receipt(), "alsoFrom": [{"transaction": "0x" + "22" * 32, "amount": "4000"}]}
    receipt = read_receipt(document)
    fields = receipt.fields
    assert (fields.call_id, fields.state, fields.amount) == ("call_01", "charged", 10_000)
    assert (fields.issued_at, fields.completed_at, fields.http_status) == (1795356000, 1795356000, 200)
    assert [(one.transaction, one.amount) for one in receipt.also_from] == [("0x" + "22" * 32, 4_000)]
    assert json.loads(receipt.document) == document
    assert verify_receipt(receipt.document, DID).is_valid


@pytest.mark.parametrize("field", ["callId", "issuedAt", "amount", "state"])
def test_a_receipt_without_a_field_is_no_answer(field: str) -> None:
    document = signed_receipt()
    del document["payload"][field]
    with pytest.raises(GatewayResponseInvalid, match=field):
        read_receipt(document)


def test_the_keys_are_at_the_gateway_that_the_receipt_names() -> None:
    assert find_keys_url(signed_receipt()) == f"{CALL_RECEIPT['gateway']}/.well-known/did.json"
