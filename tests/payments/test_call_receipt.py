"""Signed receipts of calls: the vectors of the format, verified by eth-account and by viem, and every way in which one is not valid."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from tests.kit.receipts import CALL_RECEIPT, KEYS, SIGNER, X402_RECEIPT, signed_receipt
from tollway.identity.did_document import PublishedSigners
from tollway.identity.signatures import ReceiptSigner
from tollway.ids import Address
from tollway.payments.call_receipt import (
    CALL_FIELDS,
    DOMAIN,
    NOTE_FIELDS,
    X402_FIELDS,
    MismatchCode,
    call_receipt_digest,
    find_gateway,
    hash_type,
    sign_call_receipt,
    sign_credit_note,
    verify_call_receipt,
    x402_receipt_digest,
)

CALL_TYPE_HASH = "ad8eeea48445b89c69978923b64f9f690ed1beb812e15225e535ed7c81c37e93"
X402_TYPE_HASH = "616944bc4bb51b3d5fcbba8c559f76d57a93ac1e0d6659f1abbe95f92300c06f"
CALL_DIGEST = "c700e78c8ef708673612771beefd2deb6073ccfbc591bd3584e7755959214995"
CALL_SIGNATURE = (
    "0xac8d05b169b6bf97bf8537224280f6e6717beee922dceccef0b86f431c97a672"
    "1ed5049b92d286118fad90f06009883f17a87d1366ff10fb18f4530d7fa8730b1b"
)
X402_DIGEST = "f51a23e9f931f50a8a4e1ba666a9f8f23aa4fb78a681357b45b097e5b19ea9a4"
X402_SIGNATURE = (
    "0x16d0123de9c0f9fd01a7f03b5b117050958a716d50cfaaad74801833961f70db"
    "693fdc812131f4f06c80d37cc4b89ca4d3ea8fbc576896bcca919e016938fced1c"
)
NODE_MODULES = Path(__file__).parents[2] / "node_modules"

VIEM = """
import { recoverTypedDataAddress, hashTypedData } from "viem";
const [receipt, call, x402] = JSON.parse(process.argv[1]);
const types = (fields) => Object.entries(fields).map(([name, type]) => ({ name, type }));
const whole = { domain: receipt.domain, types: { CallReceipt: types(call) }, primaryType: "CallReceipt", message: receipt.payload };
const part = { domain: { name: "x402 receipt", version: "1", chainId: 1 }, types: { Receipt: types(x402) }, primaryType: "Receipt",
               message: receipt.x402.payload };
console.log(JSON.stringify({
  digests: [hashTypedData(whole), hashTypedData(part)],
  signers: [await recoverTypedDataAddress({ ...whole, signature: receipt.signature }),
            await recoverTypedDataAddress({ ...part, signature: receipt.x402.signature })] }));
"""


def test_the_types_and_the_digests_are_those_of_the_format() -> None:
    assert hash_type("CallReceipt", CALL_FIELDS).hex() == CALL_TYPE_HASH
    assert hash_type("Receipt", X402_FIELDS).hex() == X402_TYPE_HASH
    assert call_receipt_digest(CALL_RECEIPT).hex() == CALL_DIGEST
    assert x402_receipt_digest(CALL_RECEIPT).hex() == X402_DIGEST
    assert len(CALL_FIELDS) == 23
    assert list(CALL_FIELDS)[:6] == list(X402_FIELDS)


def test_the_document_has_both_signatures_and_is_the_same_twice() -> None:
    receipt = signed_receipt()
    assert receipt == {
        "format": "eip712",
        "primaryType": "CallReceipt",
        "domain": {"name": "Tollway", "version": "1"},
        "payload": CALL_RECEIPT,
        "signature": CALL_SIGNATURE,
        "kid": "did:web:127.0.0.1%3A8402#offers-and-receipts",
        "x402": {"format": "eip712", "payload": X402_RECEIPT, "signature": X402_SIGNATURE},
    }
    assert list(receipt["payload"]) == list(CALL_FIELDS)
    assert json.dumps(signed_receipt()) == json.dumps(receipt)


def test_eth_account_recovers_the_signer_of_both_parts() -> None:
    receipt = signed_receipt()
    for signed, domain, name, fields in (
        (receipt, dict(DOMAIN), "CallReceipt", CALL_FIELDS),
        (receipt["x402"], {"name": "x402 receipt", "version": "1", "chainId": 1}, "Receipt", X402_FIELDS),
    ):
        types = {name: [{"name": field, "type": kind} for field, kind in fields.items()]}
        signable = encode_typed_data(domain, types, signed["payload"])
        assert Account.recover_message(signable, signature=signed["signature"]) == str(SIGNER.address)


@pytest.mark.process
def test_viem_computes_the_same_digests_and_recovers_the_same_signers() -> None:
    given = json.dumps([signed_receipt(), dict(CALL_FIELDS), dict(X402_FIELDS)])
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", VIEM, given],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=NODE_MODULES.parent,
    )
    assert json.loads(ran.stdout) == {
        "digests": ["0x" + CALL_DIGEST, "0x" + X402_DIGEST],
        "signers": [str(SIGNER.address)] * 2,
    }


# ---- Verification.


def codes_of(receipt: object, keys: PublishedSigners = KEYS) -> list[MismatchCode]:
    return [one.code for one in verify_call_receipt(receipt, keys).mismatches]


@pytest.mark.parametrize("has_x402", [True, False])
def test_a_receipt_of_a_listed_key_is_valid(has_x402: bool) -> None:
    verdict = verify_call_receipt(signed_receipt(has_x402=has_x402), KEYS)
    assert verdict.is_valid
    assert verdict.signer == SIGNER.address
    assert verify_call_receipt({**signed_receipt(), "kid": "x", "alsoFrom": []}, KEYS).is_valid


def test_any_listed_key_counts() -> None:
    other = Address(b"\x22" * 20)
    keys = PublishedSigners(authority=KEYS.authority, addresses=frozenset({other, SIGNER.address}))
    assert verify_call_receipt(signed_receipt(), keys).is_valid
    unlisted = PublishedSigners(authority=KEYS.authority, addresses=frozenset({other}))
    assert codes_of(signed_receipt(), unlisted) == ["unknown_key", "x402_changed"]


def changed(value: str | int) -> str | int:
    return value + 1 if isinstance(value, int) else value + "0"


def codes_of_change(field: str, *, has_x402: bool) -> list[MismatchCode]:
    receipt = signed_receipt(has_x402=has_x402)
    receipt["payload"][field] = changed(receipt["payload"][field])
    return codes_of(receipt)


@pytest.mark.parametrize(("has_x402", "code"), [(True, "changed"), (False, "unknown_key")])
def test_a_change_of_any_field_is_found(code: str, *, has_x402: bool) -> None:
    found = {field: codes_of_change(field, has_x402=has_x402) for field in CALL_FIELDS}
    assert found.pop("version") == ["unsupported"]
    assert [(field, codes) for field, codes in found.items() if codes[:1] != [code]] == []
    if has_x402:
        shared = found.keys() & X402_FIELDS
        assert [field for field in shared if "x402_contradicts" not in found[field]] == []


def test_a_change_of_any_field_of_the_part_of_x402_is_found() -> None:
    missed = []
    for field in X402_FIELDS:
        receipt = signed_receipt()
        receipt["x402"]["payload"][field] = changed(receipt["x402"]["payload"][field])
        if codes_of(receipt) != ["x402_contradicts", "x402_changed"]:
            missed.append(field)
    assert missed == []


def resign(**fields: str | int) -> dict[str, Any]:
    """A receipt with other fields, signed by the gateway's key: the books contradict themselves, and no byte was changed after signing."""
    return sign_call_receipt(
        {**CALL_RECEIPT, **fields}, kid=signed_receipt()["kid"], has_x402=True, sign=SIGNER.sign
    )


@pytest.mark.parametrize("state", ["released", "held", "reorged", "none"])
def test_a_part_of_x402_contradicts_a_call_that_is_not_charged(state: str) -> None:
    assert codes_of(resign(state=state)) == ["x402_contradicts"]
    del (receipt := resign(state=state))["x402"]
    assert verify_call_receipt(receipt, KEYS).is_valid


def test_a_part_of_x402_about_another_payment_contradicts() -> None:
    receipt = signed_receipt()
    receipt["x402"] = resign(transaction="0x" + "22" * 32)["x402"]
    (mismatch,) = verify_call_receipt(receipt, KEYS).mismatches
    assert (mismatch.code, mismatch.field) == ("x402_contradicts", "x402.payload.transaction")


def test_a_part_of_x402_by_a_stranger_is_found() -> None:
    receipt = signed_receipt()
    stranger = ReceiptSigner.derive(b"s" * 32)
    receipt["x402"] = sign_call_receipt(CALL_RECEIPT, kid="", has_x402=True, sign=stranger.sign)["x402"]
    assert codes_of(receipt) == ["x402_changed"]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"gateway": "http://127.0.0.1:8403"}, "payload.gateway"),
        ({"gateway": "https://gw.example.com"}, "payload.gateway"),
        ({"gateway": "127.0.0.1:8402"}, "payload.gateway"),
        ({"gateway": "http://user@127.0.0.1:8402"}, "payload.gateway"),
        ({"gateway": "http://127.0.0.1:8402/"}, "payload.gateway"),
        ({"gateway": "http://[127.0.0.1:8402"}, "payload.gateway"),
        ({"resourceUrl": "http://127.0.0.1:8402.evil.example/api"}, "payload.resourceUrl"),
    ],
)
def test_a_receipt_of_another_gateway_is_refused_though_its_key_is_listed(
    fields: dict[str, str | int], place: str
) -> None:
    (mismatch,) = verify_call_receipt(resign(**fields), KEYS).mismatches
    assert (mismatch.code, mismatch.field) == ("other_gateway", place)


Damage = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda it: it.clear(), "unsupported"),
        (lambda it: it.update(format="jws"), "unsupported"),
        (lambda it: it.update(primaryType="Receipt"), "unsupported"),
        (lambda it: it.update(domain={"name": "Tollway", "version": "2"}), "unsupported"),
        (lambda it: it.update(domain={"name": "Tollway", "version": "1", "chainId": 1}), "unsupported"),
        (lambda it: it.update(payload=None), "malformed"),
        (lambda it: it["payload"].pop("amount"), "malformed"),
        (lambda it: it["payload"].update(tip="1"), "malformed"),
        (lambda it: it["payload"].update(amount=10000), "malformed"),
        (lambda it: it["payload"].update(decimals="6"), "malformed"),
        (lambda it: it["payload"].update(decimals=True), "malformed"),
        (lambda it: it["payload"].update(decimals=6.0), "malformed"),
        (lambda it: it["payload"].update(httpStatus=-1), "malformed"),
        (lambda it: it["payload"].update(httpStatus=1 << 256), "malformed"),
        (lambda it: it["payload"].update(currency="\ud800"), "malformed"),
        (lambda it: it.pop("signature"), "changed"),
        (lambda it: it.update(signature=7), "changed"),
        (lambda it: it.update(signature="0x"), "changed"),
        (lambda it: it.update(signature="0x" + "00" * 65), "changed"),
        (lambda it: it.update(signature=it["signature"] + "00"), "changed"),
        (lambda it: it.update(x402=7), "malformed"),
        (lambda it: it.update(x402={}), "malformed"),
        (lambda it: it["x402"].update(format="jws"), "malformed"),
        (lambda it: it["x402"]["payload"].update(amount="10000"), "malformed"),
        (lambda it: it["x402"].pop("signature"), "x402_changed"),
    ],
)
def test_whatever_is_no_receipt_is_refused_and_never_fails(damage: Damage, code: MismatchCode) -> None:
    receipt: Any = signed_receipt()
    damage(receipt)
    assert codes_of(receipt) == [code]


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda text: text[:-2] + {"1b": "00", "1c": "01"}[text[-2:]],
        str.upper,
        lambda text: "0X" + text[2:],
        lambda text: "0x" + text[2:].upper(),
        lambda text: text + "\n",
    ],
    ids=["v of 0 or 1", "all upper", "0X", "upper digits", "line end"],
)
@pytest.mark.parametrize("is_x402", [False, True])
def test_a_signature_in_another_text_is_refused(rewrite: Callable[[str], str], is_x402: bool) -> None:
    receipt: Any = signed_receipt()
    part = receipt["x402"] if is_x402 else receipt
    part["signature"] = rewrite(part["signature"])
    assert codes_of(receipt) == ["x402_changed" if is_x402 else "changed"]


@pytest.mark.parametrize("document", [None, [], 7, "receipt"])
def test_a_document_that_is_no_object_is_malformed(document: object) -> None:
    verdict = verify_call_receipt(document, KEYS)
    assert (verdict.signer, codes_of(document)) == (None, ["malformed"])


def test_the_gateway_of_a_receipt_is_read_without_a_check() -> None:
    assert find_gateway(signed_receipt()) == "http://127.0.0.1:8402"
    for nothing in (None, [], {}, {"payload": None}, {"payload": {"gateway": 7}}):
        assert find_gateway(nothing) is None


# ---- Credit notes.

NOTE: dict[str, str | int] = {
    **{field: CALL_RECEIPT[field] for field in NOTE_FIELDS if field in CALL_RECEIPT},
    "amount": "4000",
    "kind": "transfer",
    "transaction": "0x" + "22" * 32,
    "issuedAt": 1795360000,
}


def with_note(note: dict[str, str | int] = NOTE, **changed: str | int) -> dict[str, Any]:
    """A receipt with the signed credit note; `changed`: after the signature."""
    signed = sign_credit_note(note, sign=SIGNER.sign)
    signed["payload"] |= changed
    return {**signed_receipt(), "creditNote": signed}


def test_eth_account_recovers_the_signer_of_a_credit_note() -> None:
    signed = with_note()["creditNote"]
    kinds = [{"name": field, "type": kind} for field, kind in NOTE_FIELDS.items()]
    message = encode_typed_data(dict(DOMAIN), {"CreditNote": kinds}, signed["payload"])
    assert Account.recover_message(message, signature=signed["signature"]) == str(SIGNER.address)


def test_a_receipt_with_a_credit_note_of_a_listed_key_is_valid() -> None:
    assert codes_of(with_note()) == []


@pytest.mark.parametrize("field", NOTE_FIELDS)
def test_a_change_of_any_field_of_a_credit_note_is_found(field: str) -> None:
    assert "credit_note_changed" in codes_of(with_note(**{field: changed(NOTE[field])}))


@pytest.mark.parametrize(
    "other",
    [
        {"callId": "call_02"},
        {"payer": "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"},
        {"network": "eip155:1"},
        {"amount": "10001"},
        {"amount": "99999"},
        {"amount": "100000"},
        {"amount": "-1"},
    ],
)
def test_a_credit_note_of_another_call_or_above_its_amount_contradicts(other: dict[str, str]) -> None:
    assert codes_of(with_note({**NOTE, **other})) == ["credit_note_contradicts"]


@pytest.mark.parametrize("note", [7, {}, {"payload": {}}, {"payload": NOTE, "signature": "0x"}])
def test_what_is_no_credit_note_is_not_valid(note: object) -> None:
    assert codes_of({**signed_receipt(), "creditNote": note})
