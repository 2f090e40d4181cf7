"""Encodes and parses the token standards of payments: ERC-20, EIP-3009, EIP-712 domains, ERC-1271. Pure.

It parses the logs of a receipt; the rules of payments decide whether they are a payment. The shape of a log alone proves nothing:
the emitting contract must be the token that the caller names.

`find_domain_fault` reads through the port whether a token accepts authorisations under the configured domain.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tollway.chain.abi_words import encode_arguments, encode_bytes
from tollway.chain.port import ChainReader, Log
from tollway.ids import ZERO_ADDRESS, Address, ChainId, keccak256
from tollway.money import Asset, TokenDomain

TRANSFER_TOPIC = keccak256(b"Transfer(address,address,uint256)")
AUTHORIZATION_USED_TOPIC = keccak256(b"AuthorizationUsed(address,bytes32)")
AUTHORIZATION_CANCELED_TOPIC = keccak256(b"AuthorizationCanceled(address,bytes32)")

ERC1271_MAGIC = keccak256(b"isValidSignature(bytes32,bytes)")[:4]
"""The selector of ERC-1271's only function, which is also its return value for a valid signature."""

_BALANCE_OF_SELECTOR = keccak256(b"balanceOf(address)")[:4]
_AUTHORIZATION_FIELDS = b"address,address,uint256,uint256,uint256,bytes32"
TRANSFER_BY_VRS_SELECTOR = keccak256(
    b"transferWithAuthorization(" + _AUTHORIZATION_FIELDS + b",uint8,bytes32,bytes32)"
)[:4]
TRANSFER_BY_BYTES_SELECTOR = keccak256(b"transferWithAuthorization(" + _AUTHORIZATION_FIELDS + b",bytes)")[:4]
_AUTHORIZATION_STATE_SELECTOR = keccak256(b"authorizationState(address,bytes32)")[:4]
_NAME_SELECTOR = keccak256(b"name()")[:4]
_VERSION_SELECTOR = keccak256(b"version()")[:4]
_DOMAIN_SEPARATOR_SELECTOR = keccak256(b"DOMAIN_SEPARATOR()")[:4]
_DOMAIN_TYPE = keccak256(
    b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
)
_WORD = 32
_PAD = bytes(12)
_ECDSA_BYTES = 65
_TEXT_BYTES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTransfer:
    """An ERC-20 transfer, in base units of the token."""

    sender: Address
    recipient: Address
    base_units: int


def parse_transfers(logs: Iterable[Log], *, token: Address) -> tuple[TokenTransfer, ...]:
    """The ERC-20 transfers that `token` itself logged, in the order of the receipt.

    Strict, because each transfer is worth money: three topics (ERC-721 has four), one word of payload, zero-padded address words,
    not removed. Other logs are left out, never repaired.
    """
    return tuple(
        TokenTransfer(sender=sender, recipient=recipient, base_units=base_units)
        for sender, recipient, base_units in _list_movements(logs, token)
    )


def _list_movements(logs: Iterable[Log], token: Address) -> list[tuple[Address, Address, int]]:
    return [
        (Address(log.topics[1][12:]), Address(log.topics[2][12:]), int.from_bytes(log.payload, "big"))
        for log in logs
        if log.address == token and not log.removed and _is_transfer(log)
    ]


def _is_transfer(log: Log) -> bool:
    return (
        len(log.topics) == 3
        and log.topics[0] == TRANSFER_TOPIC
        and all(len(topic) == _WORD and topic[:12] == _PAD for topic in log.topics[1:])
        and len(log.payload) == _WORD
    )


def find_authorizers(logs: Iterable[Log], token: Address) -> frozenset[Address]:
    """The wallets whose signed authorisations moved `token` in this receipt (EIP-3009 `AuthorizationUsed`).

    Lenient where `parse_transfers` is strict: the transfers of these wallets are refused, so an unusual payload or a missing nonce
    must not hide the event.
    """
    return frozenset(
        Address(log.topics[1][-20:])
        for log in logs
        if log.address == token
        and len(log.topics) >= 2
        and log.topics[0] == AUTHORIZATION_USED_TOPIC
        and len(log.topics[1]) == _WORD
    )


def parse_authorizations_used(logs: Iterable[Log], *, token: Address) -> tuple[tuple[Address, bytes], ...]:
    """The (payer, nonce) of every authorisation that `token` itself logged as used, in the order of the receipt.

    Strict where `find_authorizers` is lenient: each event proves that a call was paid.
    """
    return tuple(
        (Address(log.topics[1][12:]), log.topics[2])
        for log in logs
        if log.address == token
        and not log.removed
        and _is_end(log)
        and log.topics[0] == AUTHORIZATION_USED_TOPIC
    )


def has_settled(
    logs: Iterable[Log], *, token: Address, payer: Address, payee: Address, base_units: int, nonce: bytes
) -> bool:
    """Whether this receipt contains the transfer of exactly that authorisation, sent by any account.

    A payer may sign one nonce twice, also for other payees, and bundle its use with a transfer that pays for something else. So
    where a payer used several authorisations in one receipt, only the transfer directly after the event of this nonce counts (the
    order of Circle's FiatToken). The only authorisation of a payer may have its transfer before or after the event.
    """
    reported = [log for log in logs if log.address == token and not log.removed]
    used = parse_authorizations_used(reported, token=token)
    if used.count((payer, nonce)) != 1:
        return False
    if sum(other == payer for other, _ in used) == 1:
        return (payer, payee, base_units) in _list_movements(reported, token)
    event = next(
        position
        for position, log in enumerate(reported)
        if parse_authorizations_used((log,), token=token) == ((payer, nonce),)
    )
    return _list_movements(reported[event + 1 : event + 2], token) == [(payer, payee, base_units)]


def has_ended(logs: Iterable[Log], *, token: Address, payer: Address, nonce: bytes) -> bool:
    """Whether `token` logged in this receipt that the authorisation was used or cancelled: it can never make a transfer again."""
    return any(
        log.address == token and not log.removed and _is_end(log) and log.topics[1:] == (_PAD + payer, nonce)
        for log in logs
    )


def _is_end(log: Log) -> bool:
    return (
        len(log.topics) == 3
        and log.topics[0] in (AUTHORIZATION_USED_TOPIC, AUTHORIZATION_CANCELED_TOPIC)
        and all(len(topic) == _WORD for topic in log.topics)
        and log.topics[1][:12] == _PAD
        and log.payload == b""
    )


def encode_balance_of(owner: Address) -> bytes:
    """Calldata of ERC-20 `balanceOf(address)`; `parse_uint256` parses its result."""
    return _BALANCE_OF_SELECTOR + _PAD + owner


def encode_transfer_with_authorization(
    *,
    payer: Address,
    payee: Address,
    base_units: int,
    valid_after: int,
    valid_before: int,
    nonce: bytes,
    signature: bytes,
) -> bytes:
    """Calldata of EIP-3009 `transferWithAuthorization`, in the form that fits the signature.

    An ECDSA signature of 65 bytes is passed as v, r, s, the form that every such token has; v of 0 or 1 becomes 27 or 28, because
    tokens accept no other. Every other signature is a contract wallet's and is passed as `bytes`. Raises ValueError or
    OverflowError for a field that does not fit its word.
    """
    if len(nonce) != _WORD:
        raise ValueError("a nonce is 32 bytes")
    numbers = (base_units, valid_after, valid_before)
    fields = _PAD + payer + _PAD + payee + b"".join(n.to_bytes(_WORD, "big") for n in numbers) + nonce
    recovery = signature[64] if len(signature) == _ECDSA_BYTES else None
    if recovery in (0, 1, 27, 28):
        v = recovery + 27 if recovery < 27 else recovery
        return TRANSFER_BY_VRS_SELECTOR + fields + v.to_bytes(_WORD, "big") + signature[:64]
    return TRANSFER_BY_BYTES_SELECTOR + encode_arguments(fields, encode_bytes(signature))


def encode_authorization_state(*, payer: Address, nonce: bytes) -> bytes:
    """Calldata of EIP-3009 `authorizationState(address,bytes32)`; `parse_bool` parses its result."""
    if len(nonce) != _WORD:
        raise ValueError("a nonce is 32 bytes")
    return _AUTHORIZATION_STATE_SELECTOR + _PAD + payer + nonce


def encode_name() -> bytes:
    """Calldata of `name()`; `parse_text` parses its result."""
    return _NAME_SELECTOR


def encode_version() -> bytes:
    """Calldata of `version()`; `parse_text` parses its result."""
    return _VERSION_SELECTOR


def encode_domain_separator() -> bytes:
    """Calldata of `DOMAIN_SEPARATOR()`, which returns one word, comparable with `compute_domain_separator`."""
    return _DOMAIN_SEPARATOR_SELECTOR


def compute_domain_separator(domain: TokenDomain, *, chain_id: ChainId, contract: Address) -> bytes:
    """The EIP-712 domain separator of `contract`, such as a token: four members, no salt."""
    return keccak256(
        _DOMAIN_TYPE
        + keccak256(domain.name.encode())
        + keccak256(domain.version.encode())
        + chain_id.to_bytes(_WORD, "big")
        + _PAD
        + contract
    )


def parse_bool(payload: bytes) -> bool:
    """The one word that a `bool` getter returns: 0 or 1. Raises ValueError for other payloads."""
    number = parse_uint256(payload)
    if number > 1:
        raise ValueError("a bool is 0 or 1")
    return number == 1


def parse_text(payload: bytes) -> str:
    """The `string` that a getter returns, at most 256 bytes of UTF-8. Raises ValueError for other payloads."""
    if len(payload) < 2 * _WORD or int.from_bytes(payload[:_WORD], "big") != _WORD:
        raise ValueError("a string is an offset, a length and its bytes")
    length = int.from_bytes(payload[_WORD : 2 * _WORD], "big")
    if length > min(_TEXT_BYTES_MAX, len(payload) - 2 * _WORD):
        raise ValueError("the string is longer than the payload")
    return payload[2 * _WORD : 2 * _WORD + length].decode()


def parse_uint256(payload: bytes) -> int:
    """The one word that a `uint256` getter returns. Raises ValueError on any other length."""
    if len(payload) != _WORD:
        raise ValueError("a uint256 is one word of 32 bytes")
    return int.from_bytes(payload, "big")


def encode_is_valid_signature(*, digest: bytes, signature: bytes) -> bytes:
    """Calldata of ERC-1271 `isValidSignature(bytes32,bytes)`; `is_signature_valid` parses its result."""
    if len(digest) != _WORD:
        raise ValueError("a digest is 32 bytes")
    return ERC1271_MAGIC + encode_arguments(digest, encode_bytes(signature))


def is_signature_valid(payload: bytes) -> bool:
    """Whether an ERC-1271 result confirms the signature: its first word is the magic value, left-aligned and padded with zeros.

    Four bytes alone, a word with other padding and an empty result (no code at the address) do not confirm it.
    """
    return payload[:_WORD] == ERC1271_MAGIC + bytes(_WORD - len(ERC1271_MAGIC))


_GETTER_GAS = 100_000
_GETTER_BYTES_MAX = 512


class DomainFault(StrEnum):
    """Why a token does not accept authorisations under the configured domain. In the log."""

    NO_AUTHORIZATIONS = "no_authorizations"  # no code there, or a token without EIP-3009
    OTHER_DOMAIN = "other_domain"


async def find_domain_fault(chains: ChainReader, asset: Asset, *, deadline_s: float) -> DomainFault | None:
    """The fault of `asset.domain`; None when it is correct, or when the asset has none.

    A token without `DOMAIN_SEPARATOR` is compared by name and version; a token without these too is accepted as configured.
    """
    if asset.token is None or asset.domain is None:
        return None
    token = asset.token

    async def read_getter(calldata: bytes) -> bytes | None:
        result = await chains.call_contract(
            asset.chain_id,
            to=token,
            calldata=calldata,
            gas=_GETTER_GAS,
            bytes_max=_GETTER_BYTES_MAX,
            deadline_s=deadline_s,
        )
        return None if result.reverted else result.payload

    if not _is_bool(await read_getter(encode_authorization_state(payer=ZERO_ADDRESS, nonce=bytes(32)))):
        return DomainFault.NO_AUTHORIZATIONS
    separator = await read_getter(encode_domain_separator())
    if separator is not None and len(separator) == 32:
        expected = compute_domain_separator(asset.domain, chain_id=asset.chain_id, contract=token)
        return None if separator == expected else DomainFault.OTHER_DOMAIN
    getters = [(encode_name(), asset.domain.name), (encode_version(), asset.domain.version)]
    for getter, claimed in getters:
        text = _read_text(await read_getter(getter))
        if text is not None and text != claimed:
            return DomainFault.OTHER_DOMAIN
    return None


def _is_bool(payload: bytes | None) -> bool:
    try:
        parse_bool(payload or b"")
    except ValueError:
        return False
    return True


def _read_text(payload: bytes | None) -> str | None:
    try:
        return parse_text(payload or b"")
    except ValueError:
        return None
