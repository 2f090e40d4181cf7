"""Headers are untrusted: every content is parsed or refused, and raises nothing else."""

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.payer import AuthorizationSigner, wrap
from tollway.errors import Code, Refusal
from tollway.payments.wire import (
    AuthorizationReason,
    decode_object,
    encode_object,
    encode_object_urlsafe,
    explain_authorization,
    parse_transfer,
)

BYTES_MAX = 16 * 1024

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def refusal_of(value: bytes) -> tuple[Code, str | None] | None:
    try:
        decode_object(value, bytes_max=BYTES_MAX)
    except Refusal as exc:
        return exc.problem.code, exc.problem.reason
    return None


UNREADABLE = (Code.PAYMENT_MALFORMED, "invalid_payload")


@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_decodes_what_it_encodes(content: dict[str, Any]) -> None:
    assert decode_object(encode_object(content), bytes_max=BYTES_MAX) == content
    assert decode_object(encode_object_urlsafe(content).encode(), bytes_max=BYTES_MAX) == content


@given(st.binary(max_size=200))
def test_no_header_raises_anything_but_a_refusal(value: bytes) -> None:
    for header in (value, base64.b64encode(value), base64.b64encode(b'{"a":' + value + b"}")):
        assert refusal_of(header) in (None, UNREADABLE)


@pytest.mark.parametrize("padding", [b"", b"=", b"=="])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_either_alphabet_is_read_with_and_without_padding(encode: Any, padding: bytes) -> None:
    value = encode(json.dumps({"a": "ÿ~~~>>>???"}, ensure_ascii=False).encode()).rstrip(b"=")
    assert decode_object(b" " + value + padding, bytes_max=BYTES_MAX) == {"a": "ÿ~~~>>>???"}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"=",
        b"!",
        b"A",
        b"e30 e30",
        b"\xff\xfe",
        base64.b64encode(b"[]"),
        base64.b64encode(b"null"),
        base64.b64encode(b'"text"'),
        base64.b64encode(b"{"),
        base64.b64encode(b"{} {}"),
        base64.b64encode(b'{"a":NaN}'),
        base64.b64encode(b'{"a":"\xff"}'),
        base64.b64encode(b'{"a":"\\ud800"}'),
        base64.b64encode(b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
        base64.b64encode(b'{"a":' + b'{"a":' * 1_000 + b"1" + b"}" * 1_001),
        base64.b64encode(b'{"a":' + b"9" * 5_000 + b"}"),
        base64.b64encode(b'{"a":"' + b"x" * BYTES_MAX + b'"}'),
    ],
)
def test_refuses_other_content_than_a_small_json_object(value: bytes) -> None:
    assert refusal_of(value) == UNREADABLE


def test_the_size_is_bounded_before_anything_is_decoded() -> None:
    value = base64.b64encode(b'{"a":"' + b"x" * 100 + b'"}')
    assert decode_object(value, bytes_max=len(value))
    with pytest.raises(Refusal, match="longer than"):
        decode_object(value, bytes_max=len(value) - 1)


def test_parses_every_field_of_a_transfer() -> None:
    payer = AuthorizationSigner(valid_after=17)
    transfer = parse_transfer({**payer.fields, "extra": 1}, "0x" + payer.signature.hex())
    assert (transfer["payer"], transfer["payee"]) == (payer.address, payer.payee)
    assert (transfer["base_units"], transfer["valid_after"], transfer["valid_before"]) == (
        10_000,
        17,
        payer.valid_before,
    )
    assert (transfer["nonce"], transfer["signature"]) == (payer.nonce, payer.signature)


def test_an_address_counts_in_any_case() -> None:
    fields = AuthorizationSigner().fields
    for spelled in (fields["from"].lower(), "0x" + fields["from"][2:].upper()):
        assert parse_transfer({**fields, "from": spelled}, "0x00")["payer"] == AuthorizationSigner().address


GOOD = AuthorizationSigner().fields
BROKEN: list[tuple[str, Any]] = [
    ("from", None),
    ("from", 5),
    ("from", "0x"),
    ("from", "0x" + "1" * 39),
    ("from", "vitalik.eth"),
    ("from", GOOD["from"].swapcase().replace("0X", "0x")),  # mixed case with a wrong checksum
    ("to", ""),
    ("to", ["0x" + "11" * 20]),
    ("value", 10_000),
    ("value", 10_000.0),
    ("value", "1e4"),
    ("value", "-1"),
    ("value", "+1"),
    ("value", "1.0"),
    ("value", "0x10"),
    ("value", ""),
    ("value", "１０"),
    ("value", "1_000"),
    ("value", str(2**256)),
    ("value", "9" * 79),
    ("value", True),
    ("validAfter", None),
    ("validBefore", "soon"),
    ("validBefore", str(2**256)),
    ("nonce", "0x" + "0" * 62),
    ("nonce", "0x" + "0" * 63),
    ("nonce", "0x" + "0" * 66),
    ("nonce", "0" * 64),
    ("nonce", 7),
]


@pytest.mark.parametrize(("name", "value"), BROKEN)
def test_a_field_of_another_shape_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        parse_transfer({**GOOD, name: value}, "0x00")
    assert (caught.value.problem.code, caught.value.problem.reason) == (
        Code.PAYMENT_MALFORMED,
        "invalid_payload",
    )
    assert name in caught.value.problem.detail


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_missing_field_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match=name):
        parse_transfer({key: value for key, value in GOOD.items() if key != name}, "0x00")


@pytest.mark.parametrize("signature", [None, "", "0x", "0x0", "00", "0xzz", 5, "0x" + "00" * 4_097])
def test_a_signature_is_one_byte_to_four_kibibytes_of_hex(signature: Any) -> None:
    with pytest.raises(Refusal, match="signature"):
        parse_transfer(GOOD, signature)


def test_a_wrapper_is_kept_whole_and_one_that_is_cut_is_refused() -> None:
    """ERC-6492: the claim stores the wrapper, and the transaction is built from it."""
    whole = wrap(b"of the owner")
    assert parse_transfer(GOOD, "0x" + whole.hex())["signature"] == whole
    for other in (whole[32:], whole[:96] + whole[-32:], whole[-32:]):
        with pytest.raises(Refusal, match="ERC-6492"):
            parse_transfer(GOOD, "0x" + other.hex())


def test_a_long_signature_of_a_contract_wallet_is_kept_as_it_is() -> None:
    assert parse_transfer(GOOD, "0X" + "Ab" * 4_096)["signature"] == b"\xab" * 4_096


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON), JSON)
def test_no_fields_raise_anything_but_a_refusal(fields: dict[str, Any], signature: Any) -> None:
    with contextlib.suppress(Refusal):
        parse_transfer({**GOOD, **fields}, signature)


# ---- Every reason has its code, a sentence and a payment state.


ASKING = {
    Code.PAYMENT_MALFORMED,
    Code.PAYMENT_EXPIRED,
    Code.PAYMENT_METHOD_UNSUPPORTED,
    Code.PAYMENT_VERIFICATION_FAILED,
}


NOT_ASKING = {
    AuthorizationReason.ALREADY_USED: Code.PAYMENT_ALREADY_USED,
    AuthorizationReason.BAD_IDENTIFIER: Code.INVALID_REQUEST,
    AuthorizationReason.MORE_THAN_ONE: Code.INVALID_REQUEST,
}


def test_each_reason_has_a_code_and_a_sentence() -> None:
    problems = {reason: explain_authorization(reason) for reason in AuthorizationReason}
    assert [reason for reason, problem in problems.items() if problem.reason != reason.value] == []
    assert [reason for reason, problem in problems.items() if not problem.detail.endswith(".")] == []
    assert [reason for reason, problem in problems.items() if problem.payment_state != "none"] == []
    not_asking = {reason: problem.code for reason, problem in problems.items() if problem.code not in ASKING}
    assert not_asking == NOT_ASKING


def test_a_detail_replaces_the_general_sentence() -> None:
    assert explain_authorization(AuthorizationReason.AMOUNT, "Exactly 5.").detail == "Exactly 5."
