"""The digest of an EIP-3009 authorisation, and the key that signed it. Pure.

Contract wallets have no key: the token calls them itself.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, TypedDict, Unpack

from tollway.chain.tokens import compute_domain_separator
from tollway.identity.signatures import recover
from tollway.ids import Address, ChainId, keccak256
from tollway.money import TokenDomain

if TYPE_CHECKING:  # the callers' client loads this module, and nothing of the gateway's limits and ledger
    from tollway.ledger.records import Authorization

_FIELDS = b"(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
_TRANSFER_TYPE = keccak256(b"TransferWithAuthorization" + _FIELDS)
_RECEIVE_TYPE = keccak256(b"ReceiveWithAuthorization" + _FIELDS)


def authorization_digest(authorization: "Authorization", domain: TokenDomain) -> bytes:
    """The 32 bytes that the payer signs (EIP-3009; EIP-712 under the token's domain). A deposit is an authorisation that only its payee may send."""
    digest = transfer_digest if authorization.deposit is None else receive_digest
    return digest(
        domain,
        chain_id=authorization.chain_id,
        token=authorization.token,
        payer=authorization.payer,
        payee=authorization.payee,
        base_units=authorization.base_units,
        valid_after=authorization.valid_after,
        valid_before=authorization.valid_before,
        nonce=authorization.nonce,
    )


class SignedFields(TypedDict):
    """The values that a payer signs. `nonce`: 32 bytes; times in unix seconds."""

    chain_id: ChainId
    token: Address
    payer: Address
    payee: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes


def transfer_digest(domain: TokenDomain, **fields: Unpack[SignedFields]) -> bytes:
    """The digest of `TransferWithAuthorization`, which any account may send."""
    return _digest(_TRANSFER_TYPE, domain, fields)


def receive_digest(domain: TokenDomain, **fields: Unpack[SignedFields]) -> bytes:
    """The digest of `ReceiveWithAuthorization`, which only the payee may send."""
    return _digest(_RECEIVE_TYPE, domain, fields)


def _digest(kind: bytes, domain: TokenDomain, fields: SignedFields) -> bytes:
    struct = b"".join(
        (
            kind,
            fields["payer"].rjust(32, b"\0"),
            fields["payee"].rjust(32, b"\0"),
            fields["base_units"].to_bytes(32, "big"),
            fields["valid_after"].to_bytes(32, "big"),
            fields["valid_before"].to_bytes(32, "big"),
            fields["nonce"],
        )
    )
    separator = _domain_separator(domain, fields["chain_id"], fields["token"])
    return keccak256(b"\x19\x01" + separator + keccak256(struct))


def recover_signer(authorization: "Authorization", domain: TokenDomain) -> Address | None:
    """The wallet whose key made the signature; None for another length, a high s or a bad v, which no key makes."""
    return recover(authorization_digest(authorization, domain), authorization.signature)


@lru_cache(maxsize=256)
def _domain_separator(domain: TokenDomain, chain_id: ChainId, token: Address) -> bytes:
    return compute_domain_separator(domain, chain_id=chain_id, contract=token)
