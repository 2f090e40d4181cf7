"""The identity of an x402 payment channel, and the EIP-712 digests of its vouchers, claims, refunds and deposits. Pure.

All but a deposit are typed data in the domain of the settlement contract, so no signature is valid on another chain. A deposit is an
authorisation in the domain of the token. Amounts are base units of the token, below 2^128.
Source: x402 `batch-settlement` on EVM, "EIP-712". The tests compare every digest with the stock packages.
"""

from collections.abc import Iterable
from functools import lru_cache
from types import MappingProxyType

from tollway.chain.abi_words import word
from tollway.chain.channel_contract import (
    CHANNEL_DOMAIN,
    DEPOSIT_COLLECTOR,
    SETTLEMENT_CONTRACT,
    ChannelConfig,
    ClaimRow,
    encode_config,
)
from tollway.chain.networks import NetworkKind
from tollway.chain.tokens import compute_domain_separator
from tollway.ids import Address, ChainId, ChannelId, keccak256
from tollway.money import TokenDomain
from tollway.payments.eip3009 import receive_digest

__all__ = [
    "DEPOSIT_COLLECTOR",
    "SETTLEMENT_CONTRACT",
    "WITHDRAW_DELAY_S",
    "ChannelConfig",
    "ClaimRow",
    "channel_id",
    "claim_batch_digest",
    "deposit_digest",
    "deposit_nonce",
    "refund_digest",
    "voucher_digest",
]

WITHDRAW_DELAY_S = MappingProxyType[NetworkKind, int]({"main": 86_400, "test": 900})
"""By the kind of a chain: how long a withdrawal of the payer waits. One constant, because the delay is part of every channel's id."""

_CONFIG_TYPE = keccak256(
    b"ChannelConfig(address payer,address payerAuthorizer,address receiver,address receiverAuthorizer,address token,"
    b"uint40 withdrawDelay,bytes32 salt)"
)
_VOUCHER_TYPE = keccak256(b"Voucher(bytes32 channelId,uint128 maxClaimableAmount)")
_ENTRY = b"ClaimEntry(bytes32 channelId,uint128 maxClaimableAmount,uint128 totalClaimed)"
_ENTRY_TYPE = keccak256(_ENTRY)
_CLAIM_BATCH_TYPE = keccak256(b"ClaimBatch(ClaimEntry[] claims)" + _ENTRY)
_REFUND_TYPE = keccak256(b"Refund(bytes32 channelId,uint256 nonce,uint128 amount)")


def channel_id(config: ChannelConfig, chain_id: ChainId) -> ChannelId:
    """The id of a channel: the whole typed-data hash of its config, not `keccak256(abi.encode(config))`."""
    return ChannelId(_typed_digest(chain_id, _CONFIG_TYPE, encode_config(config)))


def voucher_digest(chain_id: ChainId, channel: ChannelId, ceiling: int) -> bytes:
    """Signed by `payer_authorizer`: the receiver may claim at most `ceiling` of the channel, over its whole life."""
    return _typed_digest(chain_id, _VOUCHER_TYPE, word(channel), word(ceiling))


def claim_batch_digest(chain_id: ChainId, rows: Iterable[ClaimRow]) -> bytes:
    """Signed by the `receiver_authorizer` of all rows."""
    entries = [
        keccak256(
            b"".join(
                (
                    _ENTRY_TYPE,
                    channel_id(row.config, chain_id),
                    word(row.ceiling),
                    word(row.total_claimed),
                )
            )
        )
        for row in rows
    ]
    return _typed_digest(chain_id, _CLAIM_BATCH_TYPE, keccak256(b"".join(entries)))


def refund_digest(chain_id: ChainId, channel: ChannelId, *, nonce: int, amount: int) -> bytes:
    """Signed by `receiver_authorizer`. `nonce`: the contract's `refundNonce` of the channel."""
    return _typed_digest(chain_id, _REFUND_TYPE, word(channel), word(nonce), word(amount))


def deposit_nonce(channel: ChannelId, salt: bytes) -> bytes:
    """The nonce of a deposit's authorisation, which binds it to its channel. `salt`: 32 bytes, other than the salt of the config."""
    return keccak256(word(channel) + word(salt))


def deposit_digest(
    domain: TokenDomain,
    *,
    chain_id: ChainId,
    token: Address,
    payer: Address,
    base_units: int,
    valid_after: int,
    valid_before: int,
    nonce: bytes,
) -> bytes:
    """Signed by the payer: `ReceiveWithAuthorization` (EIP-3009) in the domain of the token, to the deposit collector."""
    return receive_digest(
        domain,
        chain_id=chain_id,
        token=token,
        payer=payer,
        payee=DEPOSIT_COLLECTOR,
        base_units=base_units,
        valid_after=valid_after,
        valid_before=valid_before,
        nonce=nonce,
    )


def _typed_digest(chain_id: ChainId, *struct: bytes) -> bytes:
    return keccak256(b"\x19\x01" + _domain_separator(chain_id) + keccak256(b"".join(struct)))


@lru_cache(maxsize=64)
def _domain_separator(chain_id: ChainId) -> bytes:
    return compute_domain_separator(CHANNEL_DOMAIN, chain_id=chain_id, contract=SETTLEMENT_CONTRACT)
