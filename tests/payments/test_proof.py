"""Parses a proof: every header in every wrong form, and the valid forms."""

import pytest

from tests.kit.narrowing import of_type
from tollway.bounded_cache import BoundedCache
from tollway.errors import Code, Problem
from tollway.ids import TxHash
from tollway.payments.proof import Binding, KnownProofs, Proof, format_binding, parse_binding, parse_proof

TX = "0x" + "ab" * 32
LOW_S = "11" * 32 + "22" * 32
SIGNATURE = "0x" + LOW_S + "1b"
NONCE = "0x" + "0c" * 32
BODY_HASH = "0x" + "0d" * 32
PARAMS = f"v=1;validUntil=1800000000;nonce={NONCE}"


def headers(**values: str | bytes | None) -> list[tuple[bytes, bytes]]:
    """The two good headers, with some replaced (None: left out)."""
    shown: dict[str, str | bytes | None] = {"x_payment_tx": TX, "x_signature": SIGNATURE, **values}
    return [
        (name.replace("_", "-").encode(), value.encode() if isinstance(value, str) else value)
        for name, value in shown.items()
        if value is not None
    ]


def test_parses_the_plain_form() -> None:
    assert parse_proof([(b"accept", b"*/*"), *headers()]) == Proof(
        tx_hash=TxHash.parse(TX), signature=bytes.fromhex(SIGNATURE[2:]), binding=None, chain_id=None
    )


def test_parsed_proofs_are_kept_within_their_bytes() -> None:
    kept: KnownProofs = BoundedCache(entries_max=8_192, bytes_max=1_000_000, entry_bytes_max=2_048)
    assert parse_proof(headers(), kept) is parse_proof(headers(), kept)
    for number in range(3_000):  # well-formed for a contract wallet; nothing is paid
        parse_proof(headers(x_signature=f"0x{number:04x}" + "00" * 900), kept)
    assert kept.total_bytes <= 1_000_000
    assert len(kept) < 3_000
    long = headers(x_signature="0x" + "00" * 1_000)
    assert isinstance(parse_proof(long, kept), Proof)
    assert parse_proof(long, kept) is not parse_proof(long, kept)
    for garbage in (headers(x_signature="0x" + "zz" * 65), headers(x_payment_network="x" * 1_000)):
        assert isinstance(parse_proof(garbage, kept), Problem)
        assert parse_proof(garbage, kept) is not parse_proof(garbage, kept)


def test_parses_the_bound_form_and_the_network() -> None:
    proof = of_type(Proof, parse_proof(headers(x_signature_params=PARAMS, x_payment_network="eip155:8453")))
    assert proof.binding == Binding(valid_until=1_800_000_000, nonce=b"\x0c" * 32, body_hash=None)
    assert proof.chain_id == 8453


@pytest.mark.parametrize(
    "spelling",
    [TX, "0X" + "AB" * 32, "0x" + "aB" * 32, "0x" + "Ab" * 32],
    ids=["lower", "upper", "mixed", "other"],
)
def test_every_spelling_of_a_hash_is_one_payment(spelling: str) -> None:
    proof = of_type(Proof, parse_proof(headers(x_payment_tx=spelling)))
    assert proof.tx_hash == TxHash.parse(TX)
    assert str(proof.tx_hash) == TX


@pytest.mark.parametrize(
    "shown",
    [
        [],
        [(b"accept", b"*/*")],
        [(b"x-payment-network", b"eip155:1")],
        [(b"x-payment-network", b"nonsense")],
    ],
    ids=["nothing", "other headers", "a network alone", "a bad network alone"],
)
def test_requests_without_proof_give_none(shown: list[tuple[bytes, bytes]]) -> None:
    assert parse_proof(shown) is None


@pytest.mark.parametrize("v", ["00", "01", "1b", "1c"])
def test_takes_every_recovery_id_of_the_contract(v: str) -> None:
    assert isinstance(parse_proof(headers(x_signature="0x" + LOW_S + v)), Proof)


@pytest.mark.parametrize("length", [1, 64, 66, 130, 4096])
def test_takes_other_lengths_for_contract_payers(length: int) -> None:
    proof = of_type(Proof, parse_proof(headers(x_signature="0x" + "77" * length)))
    assert len(proof.signature) == length


REFUSED = {
    "no hash": ("X-Payment-Tx", "missing", {"x_payment_tx": None}),
    "no signature": ("X-Signature", "missing", {"x_signature": None}),
    "only params": (
        "X-Payment-Tx",
        "missing",
        {"x_payment_tx": None, "x_signature": None, "x_signature_params": PARAMS},
    ),
    "empty hash": ("X-Payment-Tx", "malformed", {"x_payment_tx": ""}),
    "short hash": ("X-Payment-Tx", "malformed", {"x_payment_tx": TX[:-1]}),
    "long hash": ("X-Payment-Tx", "malformed", {"x_payment_tx": TX + "0"}),
    "unprefixed hash": ("X-Payment-Tx", "malformed", {"x_payment_tx": TX[2:]}),
    "hash that is not hex": ("X-Payment-Tx", "malformed", {"x_payment_tx": "0x" + "zz" * 32}),
    "hash with a blank": ("X-Payment-Tx", "malformed", {"x_payment_tx": " " + TX}),
    "hash with a line end": ("X-Payment-Tx", "malformed", {"x_payment_tx": TX + "\n"}),
    "two hashes in one line": ("X-Payment-Tx", "malformed", {"x_payment_tx": f"{TX}, {TX}"}),
    "full-width digits": ("X-Payment-Tx", "malformed", {"x_payment_tx": "0x" + "１" * 64}),
    "hash of foreign bytes": ("X-Payment-Tx", "malformed", {"x_payment_tx": b"\xff\xfe"}),
    "empty signature": ("X-Signature", "malformed", {"x_signature": ""}),
    "signature of nothing": ("X-Signature", "malformed", {"x_signature": "0x"}),
    "unprefixed signature": ("X-Signature", "malformed", {"x_signature": SIGNATURE[2:]}),
    "odd signature": ("X-Signature", "malformed", {"x_signature": SIGNATURE + "0"}),
    "signature that is not hex": ("X-Signature", "malformed", {"x_signature": "0x" + "zz" * 65}),
    "signature with a blank inside": ("X-Signature", "malformed", {"x_signature": "0x11 1" + SIGNATURE[6:]}),
    "signature of foreign bytes": ("X-Signature", "malformed", {"x_signature": b"0x\xff\xff"}),
    "signature over 4 KiB": ("X-Signature", "malformed", {"x_signature": "0x" + "77" * 4097}),
    "high s": ("X-Signature", "malformed", {"x_signature": "0x" + "11" * 32 + "ff" * 32 + "1b"}),
    "v of 29": ("X-Signature", "malformed", {"x_signature": "0x" + LOW_S + "1d"}),
    "v of a chain": ("X-Signature", "malformed", {"x_signature": "0x" + LOW_S + "25"}),
    "empty params": ("X-Signature-Params", "malformed", {"x_signature_params": ""}),
    "params of foreign bytes": ("X-Signature-Params", "malformed", {"x_signature_params": b"v=1;\xff=1"}),
    "network by name": ("X-Payment-Network", "malformed", {"x_payment_network": "base"}),
    "network of another kind": ("X-Payment-Network", "malformed", {"x_payment_network": "solana:8453"}),
    "network with a leading zero": ("X-Payment-Network", "malformed", {"x_payment_network": "eip155:08453"}),
    "network without end": ("X-Payment-Network", "malformed", {"x_payment_network": "eip155:" + "9" * 40}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_is_no_proof(case: str) -> None:
    parameter, code, change = REFUSED[case]
    problem = of_type(Problem, parse_proof(headers(**change)))
    assert (problem.code, problem.payment_state) == (Code.INVALID_REQUEST, "none")
    assert [(error.parameter, error.code) for error in problem.errors] == [(parameter, code)]
    assert problem.reason == f"{code}_header"


@pytest.mark.parametrize("name", ["x-payment-tx", "x-signature", "x-signature-params", "x-payment-network"])
def test_refuses_a_repeated_header_even_with_the_same_value(name: str) -> None:
    line = (name.encode(), b"whatever")
    problem = of_type(Problem, parse_proof([line, *headers(), line]))
    assert [error.code for error in problem.errors] == ["duplicated"]
    assert problem.errors[0].parameter is not None
    assert problem.errors[0].parameter.lower() == name


def test_a_refusal_never_repeats_the_signature() -> None:
    secret = "0x" + "5e" * 64 + "zz"
    problem = parse_proof(headers(x_signature=secret))
    assert "5e5e" not in repr(problem)
    assert "5e5e" not in repr(parse_proof(headers(x_signature="0x" + "5e" * 66)))


@pytest.mark.parametrize("body_hash", [None, b"\x0d" * 32])
def test_a_formatted_binding_is_parsed_back(body_hash: bytes | None) -> None:
    binding = Binding(valid_until=1_800_000_000, nonce=b"\x0c" * 32, body_hash=body_hash)
    assert parse_binding(format_binding(binding)) == binding


@pytest.mark.parametrize(
    "text",
    [
        f"v=1; validUntil=1800000000; nonce={NONCE}",
        f"nonce={NONCE};validUntil=1800000000;v=1",
        f"v=1;validUntil=1800000000;nonce=0X{NONCE[2:].upper()}",
    ],
    ids=["blanks", "another order", "upper case"],
)
def test_accepts_harmless_variants_of_a_binding(text: str) -> None:
    assert parse_binding(text) == parse_binding(PARAMS)


@pytest.mark.parametrize(
    "text",
    [
        f"validUntil=1800000000;nonce={NONCE}",
        f"v=2;validUntil=1800000000;nonce={NONCE}",
        f"v=1;v=1;validUntil=1800000000;nonce={NONCE}",
        f"v=1;nonce={NONCE}",
        f"v=1;validUntil=;nonce={NONCE}",
        f"v=1;validUntil=-1;nonce={NONCE}",
        f"v=1;validUntil=1e9;nonce={NONCE}",
        f"v=1;validUntil=1800000000.5;nonce={NONCE}",
        f"v=1;validUntil=01800000000;nonce={NONCE}",
        f"v=1;validUntil=1_800_000_000;nonce={NONCE}",
        f"v=1;validUntil=１８００００００００;nonce={NONCE}",
        f"v=1;validUntil={'9' * 13};nonce={NONCE}",
        "v=1;validUntil=1800000000",
        "v=1;validUntil=1800000000;nonce=",
        f"v=1;validUntil=1800000000;nonce={NONCE[:-1]}",
        f"v=1;validUntil=1800000000;nonce={NONCE[2:]}",
        f"v=1;validUntil=1800000000;nonce={NONCE};nonce={NONCE}",
        f"v=1;validUntil=1800000000;nonce={NONCE};bodyHash=",
        f"v=1;validUntil=1800000000;nonce={NONCE};bodyHash=0x00",
        f"v=1;validUntil=1800000000;nonce={NONCE};bodyHash={BODY_HASH};bodyHash={BODY_HASH}",
        f"v=1;validUntil=1800000000;nonce={NONCE};",
        f"v=1;validUntil=1800000000;nonce={NONCE};chainId=1",
        f"v=1,validUntil=1800000000,nonce={NONCE}",
    ],
)
def test_refuses_a_binding(text: str) -> None:
    with pytest.raises(ValueError, match=r"v=1|validUntil|nonce|bodyHash|members"):
        parse_binding(text)


def test_params_with_other_bytes_are_refused_without_repeating_them() -> None:
    problem = of_type(Problem, parse_proof(headers(x_signature_params=b"\xff")))
    assert "codec" not in problem.detail
    problem = of_type(Problem, parse_proof(headers(x_signature=b"0x\xff\xff")))
    assert "codec" not in problem.detail
