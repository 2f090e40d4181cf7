"""The digest of an EIP-3009 authorisation, and the key that signed it. Pure.

Contract wallets have no key: the token calls them itself.
"""

from functools import lru_cache

from tollway.chain.tokens import compute_domain_separator
from tollway.identity.signatures import recover
from tollway.ids import Address, ChainId, keccak256
from tollway.ledger.records import Authorization
from tollway.money import TokenDomain

_TRANSFER_TYPE = keccak256(
    b"TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,"
    b"bytes32 nonce)"
)
_WRAPPED = bytes.fromhex("6492" * 16)


def authorization_digest(authorization: Authorization, domain: TokenDomain) -> bytes:
    """The 32 bytes that the payer signs (EIP-3009; EIP-712 under the token's domain)."""
    struct = b"".join(
        (
            _TRANSFER_TYPE,
            bytes(authorization.payer).rjust(32, b"\0"),
            bytes(authorization.payee).rjust(32, b"\0"),
            authorization.base_units.to_bytes(32, "big"),
            authorization.valid_after.to_bytes(32, "big"),
            authorization.valid_before.to_bytes(32, "big"),
            authorization.nonce,
        )
    )
    separator = _domain_separator(domain, authorization.chain_id, authorization.token)
    return keccak256(b"\x19\x01" + separator + keccak256(struct))


def recover_signer(authorization: Authorization, domain: TokenDomain) -> Address | None:
    """The wallet whose key made the signature; None for another length, a high s or a bad v, which no key makes."""
    return recover(authorization_digest(authorization, domain), authorization.signature)


def is_wrapped(signature: bytes) -> bool:
    """Whether the signature is in the ERC-6492 wrapper: its wallet is a contract that may not be deployed yet."""
    return signature.endswith(_WRAPPED)


@lru_cache(maxsize=256)
def _domain_separator(domain: TokenDomain, chain_id: ChainId, token: Address) -> bytes:
    return compute_domain_separator(domain, chain_id=chain_id, token=token)
