"""The digest equals that of wallets: compared with eth-account here, and with stock clients in other tests."""

from dataclasses import replace

import pytest
from eth_account.messages import _hash_eip191_message, encode_typed_data
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.payer import USDC, AuthorizationSigner
from tollway.ids import Address, ChainId
from tollway.ledger.records import Authorization
from tollway.money import TokenDomain
from tollway.payments.eip3009 import authorization_digest, recover_signer

DOMAIN = TokenDomain(name="USDC", version="2")
UINT256 = st.integers(0, 2**256 - 1)
ADDRESS = st.binary(min_size=20, max_size=20).map(Address)


def reference_digest(authorization: Authorization, domain: TokenDomain) -> bytes:
    names = ("from", "to", "value", "validAfter", "validBefore", "nonce")
    kinds = ("address", "address", "uint256", "uint256", "uint256", "bytes32")
    signable = encode_typed_data(
        domain_data={
            "name": domain.name,
            "version": domain.version,
            "chainId": authorization.chain_id,
            "verifyingContract": str(authorization.token),
        },
        message_types={
            "TransferWithAuthorization": [
                {"name": name, "type": kind} for name, kind in zip(names, kinds, strict=True)
            ]
        },
        message_data={
            "from": str(authorization.payer),
            "to": str(authorization.payee),
            "value": authorization.base_units,
            "validAfter": authorization.valid_after,
            "validBefore": authorization.valid_before,
            "nonce": authorization.nonce,
        },
    )
    return bytes(_hash_eip191_message(signable))


@given(
    st.builds(
        lambda **fields: replace(AuthorizationSigner().authorize(signature=b"\0" * 65), **fields),
        chain_id=st.integers(1, 10**12).map(ChainId),
        token=ADDRESS,
        payer=ADDRESS,
        payee=ADDRESS,
        base_units=UINT256,
        valid_after=UINT256,
        valid_before=UINT256,
        nonce=st.binary(min_size=32, max_size=32),
    ),
    st.builds(
        TokenDomain, name=st.sampled_from(["USDC", "USD Coin", "USD₮0"]), version=st.sampled_from(["1", "2"])
    ),
)
def test_the_digest_is_that_of_the_typed_data(authorization: Authorization, domain: TokenDomain) -> None:
    assert authorization_digest(authorization, domain) == reference_digest(authorization, domain)


def test_recovers_the_signer() -> None:
    payer = AuthorizationSigner()
    assert recover_signer(payer.authorize(), DOMAIN) == payer.address


def test_accepts_both_encodings_of_v() -> None:
    signature = AuthorizationSigner().signature
    low = signature[:64] + bytes([signature[64] - 27])
    assert (
        recover_signer(AuthorizationSigner().authorize(signature=low), DOMAIN)
        == AuthorizationSigner().address
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"base_units": 9_999},
        {"payee": Address(b"\x01" * 20)},
        {"valid_after": 1},
        {"valid_before": 2**40},
        {"nonce": b"\x08" * 32},
        {"token": Address(b"\x02" * 20)},
        {"chain_id": ChainId(1)},
    ],
)
def test_the_signature_covers_every_field(changes: dict[str, object]) -> None:
    changed = replace(AuthorizationSigner().authorize(), **changes)  # type: ignore[arg-type] # a field of the record each
    assert recover_signer(changed, DOMAIN) != AuthorizationSigner().address


def test_the_signature_covers_the_domain() -> None:
    assert (
        recover_signer(AuthorizationSigner().authorize(), TokenDomain(name="USD Coin", version="2"))
        != AuthorizationSigner().address
    )
    assert (
        recover_signer(AuthorizationSigner().authorize(), TokenDomain(name="USDC", version="1"))
        != AuthorizationSigner().address
    )


def test_other_shapes_recover_no_key() -> None:
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    signature = AuthorizationSigner().signature
    s = int.from_bytes(signature[32:64], "big")
    high = signature[:32] + (order - s).to_bytes(32, "big") + bytes([55 - signature[64]])
    for other in (high, signature[:64], signature + b"\0", b"\0" * 65, signature[:64] + b"\x1d"):
        assert recover_signer(AuthorizationSigner().authorize(signature=other), DOMAIN) is None
    assert USDC.domain == DOMAIN
