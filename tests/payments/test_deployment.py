"""The wrapper of a wallet that is not deployed (ERC-6492), which factories count, and the transaction that deploys it."""

import pytest
from eth_abi.abi import encode

from tests.kit.payer import DEPLOY_CALL, FACTORY, AuthorizationSigner, wrap
from tests.kit.settlement import TOKEN
from tollway.chain.multicall import MULTICALL3, ContractCall, parse_calls
from tollway.chain.tokens import encode_is_valid_signature
from tollway.ids import Address
from tollway.payments.deployment import (
    Deployment,
    choose_deployment,
    choose_signature,
    encode_deployed_check,
    encode_deploying_transfer,
    explain_factory,
    is_wrapped,
    unwrap,
)

SUFFIX = bytes.fromhex("6492" * 16)
ELSEWHERE = Address(b"\xee" * 20)
MADE = Deployment(factory=FACTORY, calldata=DEPLOY_CALL)


def test_a_wrapped_signature_is_recognised_by_its_suffix() -> None:
    assert is_wrapped(b"anything" + SUFFIX)
    assert not is_wrapped(AuthorizationSigner().signature)


@pytest.mark.parametrize("inner", [b"s", b"k" * 65, b"w" * 1_000])
def test_a_wrapper_names_the_deployment_and_the_signature(inner: bytes) -> None:
    assert unwrap(wrap(inner)) == (MADE, inner)
    assert choose_signature(wrap(inner)) == inner


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


def wrap_fields(calldata: bytes, inner: bytes) -> bytes:
    return encode(["address", "bytes", "bytes"], [str(FACTORY), calldata, inner]) + SUFFIX


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        AuthorizationSigner().signature,
        SUFFIX,
        b"x" + SUFFIX,
        wrap(b"sig")[1:],
        b"\x01" + wrap(b"sig")[1:],
        wrap(b"sig")[:96] + SUFFIX,
        wrap(b"sig")[:-64] + SUFFIX,
        words(1, 96, 2**255) + SUFFIX,
        words(1, 2**255, 96) + SUFFIX,
        words(1, 0, 0) + SUFFIX,
        words(1, 96, 96, 2**255) + SUFFIX,
        wrap_fields(b"", b"sig"),
        wrap_fields(b"abc", b"sig"),
        wrap_fields(DEPLOY_CALL, b""),
        wrap_fields(DEPLOY_CALL, wrap(b"sig")),
    ],
)
def test_other_bytes_are_no_wrapper_and_their_wallet_gets_them_whole(signature: bytes) -> None:
    with pytest.raises(ValueError, match="ERC-6492"):
        unwrap(signature)
    assert choose_signature(signature) == signature
    assert choose_deployment(signature, code_size=0, factories=(FACTORY,)) is None


@pytest.mark.parametrize(
    ("code_size", "factories", "expected"),
    [
        (0, (FACTORY,), MADE),
        (0, (ELSEWHERE, FACTORY), MADE),
        (0, (ELSEWHERE,), None),
        (0, (), None),
        (1, (FACTORY,), None),
        (23, (FACTORY,), None),
    ],
)
def test_only_a_wallet_without_code_is_deployed_and_only_by_an_allowed_factory(
    code_size: int, factories: tuple[Address, ...], expected: Deployment | None
) -> None:
    assert choose_deployment(wrap(b"sig"), code_size=code_size, factories=factories) == expected


def test_the_transaction_deploys_and_pays_or_does_neither() -> None:
    to, calldata = encode_deploying_transfer(MADE, token=TOKEN, calldata=b"the transfer")
    assert to == MULTICALL3
    assert parse_calls(calldata) == (
        ContractCall(to=FACTORY, calldata=DEPLOY_CALL, may_fail=False),
        ContractCall(to=TOKEN, calldata=b"the transfer", may_fail=False),
    )


def test_the_check_asks_the_deployed_wallet() -> None:
    to, calldata = encode_deployed_check(MADE, wallet=ELSEWHERE, digest=bytes(32), signature=b"sig")
    asked = encode_is_valid_signature(digest=bytes(32), signature=b"sig")
    assert to == MULTICALL3
    assert parse_calls(calldata) == (
        ContractCall(to=FACTORY, calldata=DEPLOY_CALL, may_fail=False),
        ContractCall(to=ELSEWHERE, calldata=asked, may_fail=True),
    )


def test_gas_counts_under_the_factory() -> None:
    """No code has a hash with twelve zeros at its beginning."""
    assert MADE.code_hash == bytes(12) + FACTORY


def test_the_refusal_names_the_factory_and_what_to_do() -> None:
    text = explain_factory(wrap(b"sig"), (ELSEWHERE,))
    assert str(FACTORY) in text
    assert str(ELSEWHERE) in text
    assert "Deploy the wallet first" in text
    assert "pay by transaction" in text
    assert "none" in explain_factory(wrap(b"sig"), ())
