"""Signatures of wallets: recovers the signer of a digest, builds the digests that wallets sign, and signs the gateway's offers and receipts.

Signers are recovered locally. `SignatureVerifier` calls contract wallets (ERC-1271, ERC-6492) on their chain.
HTTP, nonces, times and permissions are handled elsewhere.

The key of `ReceiptSigner` is derived from the gateway's secret key: all gateways of one public URL sign with one key, and no other key has to be stored.
"""

import hmac
import json
import string
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Self

import coincurve

from tollway.chain.abi_words import encode_arguments, encode_bytes, word
from tollway.chain.port import ChainReader
from tollway.chain.signer import derive_address, sign_digest
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, TxHash, keccak256

if TYPE_CHECKING:  # the callers' client loads this module, and nothing of the gateway's limits and ledger
    from tollway.limits import Limits

KEY_SIGNATURE_BYTES = 65
SIGNATURE_BYTES_MAX = 4 * 1024
RECOVERIES_MAX = 8_192
NAMES_MAX = 4_096

ERC6492_GAS = 3_000_000
"""The check deploys the wallet inside the call: a constructor beside the one question of ERC-1271."""

_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
_HEX = frozenset(string.hexdigits)
_RECOVERY_IDS = {0: 0, 1: 1, 27: 0, 28: 1}
_MAGIC = bytes.fromhex("1626ba7e")
_MAGIC_WORD = _MAGIC.ljust(32, b"\0")
_WRAPPED = bytes.fromhex("6492" * 16)
_YES = b"\x01"

_DOMAIN_TYPE = keccak256(b"EIP712Domain(string name,string version,uint256 chainId)")
_PAID_CALL_TYPE = keccak256(
    b"PaidCall(string gateway,string apiId,string method,string target,bytes32 bodyHash,bytes32 transaction,"
    b"uint256 validUntil,bytes32 nonce)"
)


def parse_signature(text: str) -> bytes:
    """Parses `0x` + hex, any case, 1 byte to 4 KiB. 65 bytes are ECDSA: r || s || v, low s, v in {0, 1, 27, 28}. Every other
    length is a signature for a contract wallet, whose format only that contract defines.

    Raises ValueError on other text, and on 65 bytes with a high s or another v.
    """
    digits = text[2:]
    if text[:2] not in ("0x", "0X") or len(digits) % 2 or not _HEX.issuperset(digits):
        raise ValueError("must be 0x followed by an even number of hex digits")
    if not digits or len(digits) > 2 * SIGNATURE_BYTES_MAX:
        raise ValueError("must have 65 bytes, or up to 4096 for a contract wallet")
    raw = bytes.fromhex(digits)
    if len(raw) != KEY_SIGNATURE_BYTES:
        return raw
    if raw[64] not in _RECOVERY_IDS:
        raise ValueError("must end with 0, 1, 27 or 28 when it has 65 bytes")
    if int.from_bytes(raw[32:64], "big") > _HALF_ORDER:
        raise ValueError("must have a low s when it has 65 bytes")
    return raw


def recover(digest: bytes, signature: bytes) -> Address | None:
    """The wallet whose key signed the 32-byte `digest`; None for a wrong length, a high s, a bad v, or no such key.

    About 35 µs; results are cached.
    """
    if len(digest) != 32 or len(signature) != KEY_SIGNATURE_BYTES:
        return None
    return _recover(digest, signature)


@lru_cache(maxsize=RECOVERIES_MAX)
def _recover(digest: bytes, signature: bytes) -> Address | None:
    recovery_id = _RECOVERY_IDS.get(signature[64])
    # libsecp256k1 recovers from a high s as well: the same signature would have two forms.
    if recovery_id is None or int.from_bytes(signature[32:64], "big") > _HALF_ORDER:
        return None
    try:
        key = coincurve.PublicKey.from_signature_and_message(
            signature[:64] + bytes([recovery_id]), digest, hasher=None
        )
    except ValueError:
        return None
    return Address(keccak256(key.format(compressed=False)[1:])[12:])


def eip191_digest(message: bytes) -> bytes:
    """The digest that `personal_sign` signs (ERC-191, version 0x45)."""
    return keccak256(b"\x19Ethereum Signed Message:\n%d" % len(message) + message)


@lru_cache(maxsize=RECOVERIES_MAX)
def transaction_digests(tx_hash: TxHash) -> tuple[bytes, bytes]:
    """The digests that the plain form of `X-Signature` may sign: of the hash as 66 lower-case characters, and of its 32 raw bytes."""
    return eip191_digest(str(tx_hash).encode()), eip191_digest(bytes(tx_hash))


def paid_call_digest(
    *,
    chain_id: ChainId,
    gateway: str,
    api_id: str,
    method: str,
    target: bytes,
    body_hash: bytes,
    transaction: TxHash,
    valid_until: int,
    nonce: bytes,
) -> bytes:
    """The digest that the bound form of `X-Signature` signs: EIP-712 `PaidCall` in the domain Tollway, version 1, chain id.

    `gateway`: the origin of the public URL. `target`: the raw path and query as sent, after `/gateway/{apiId}`.
    `body_hash` (keccak-256) and `nonce`: 32 bytes. `valid_until`: unix seconds. Raises ValueError on other sizes.
    """
    if len(body_hash) != 32 or len(nonce) != 32 or len(transaction) != 32:
        raise ValueError("bodyHash, transaction and nonce are 32 bytes each")
    if not 0 <= valid_until < 1 << 256:
        raise ValueError("validUntil is an unsigned 256-bit number")
    struct = b"".join(
        (
            _PAID_CALL_TYPE,
            _hash_name(gateway),
            _hash_name(api_id),
            _hash_name(method),
            keccak256(target),
            body_hash,
            transaction,
            valid_until.to_bytes(32, "big"),
            nonce,
        )
    )
    return keccak256(b"\x19\x01" + _domain_separator(chain_id) + keccak256(struct))


@lru_cache(maxsize=NAMES_MAX)
def _hash_name(text: str) -> bytes:
    """Cached: the same gateway, listing and method occur in many calls."""
    return keccak256(text.encode())


@lru_cache(maxsize=64)
def _domain_separator(chain_id: ChainId) -> bytes:
    return keccak256(
        _DOMAIN_TYPE + keccak256(b"Tollway") + keccak256(b"1") + int(chain_id).to_bytes(32, "big")
    )


class SignatureVerifier:
    """Verifies that an address signed a digest, by its key, by its contract, or as an account delegated by EIP-7702.

    A valid signature of the key or of the contract is enough. The key is checked first, because it needs no look-up; an EOA needs no chain.
    """

    def __init__(self, chains: ChainReader, *, limits: "Limits") -> None:
        self._chains = chains
        self._limits = limits
        artifact = resources.files("tollway.identity.contracts").joinpath("SignatureValidator.json")
        self._validator = bytes.fromhex(json.loads(artifact.read_bytes())["bytecode"][2:])

    def is_chain_needed(
        self, address: Address, digest: bytes, signature: bytes, chain_ids: Sequence[ChainId]
    ) -> bool:
        """Whether the key alone does not verify the signature, so that a configured chain must be read."""
        is_askable = any(chain_id in self._chains.chain_ids for chain_id in chain_ids)
        return is_askable and recover(digest, signature) != address

    async def is_signed_by(
        self, address: Address, digest: bytes, signature: bytes, chain_ids: Sequence[ChainId]
    ) -> bool:
        """Verifies a payer's signature: ECDSA, or ERC-1271 on one of `chain_ids` (a chain that is not configured does not count).

        Raises `ChainUnavailable` where no chain confirms it and at least one chain was unavailable.
        """
        if recover(digest, signature) == address:
            return True
        if not 0 < len(signature) <= self._limits.erc1271_bytes_max:
            return False
        return await self._any_chain(
            chain_ids, lambda chain_id: self._call_wallet(chain_id, address, digest, signature)
        )

    async def is_signed_for_authentication(
        self, address: Address, digest: bytes, signature: bytes, chain_ids: Sequence[ChainId]
    ) -> bool:
        """As `is_signed_by`, and a signature wrapped by ERC-6492 counts too, so that the wallet need not be deployed yet."""
        if not signature.endswith(_WRAPPED):
            return await self.is_signed_by(address, digest, signature, chain_ids)
        if len(signature) > self._limits.erc1271_bytes_max:
            return False
        return await self._any_chain(
            chain_ids, lambda chain_id: self._call_validator(chain_id, address, digest, signature)
        )

    async def _any_chain(
        self, chain_ids: Sequence[ChainId], call_chain: Callable[[ChainId], Awaitable[bool]]
    ) -> bool:
        away: ChainUnavailable | None = None
        for chain_id in chain_ids:
            if chain_id not in self._chains.chain_ids:
                continue
            try:
                if await call_chain(chain_id):
                    return True
            except ChainUnavailable as exc:
                away = exc
        if away is not None:
            raise away
        return False

    async def _call_wallet(
        self, chain_id: ChainId, address: Address, digest: bytes, signature: bytes
    ) -> bool:
        """ERC-1271. An address without code returns no data, which is a refusal; its code need not be read."""
        result = await self._chains.call_contract(
            chain_id,
            to=address,
            calldata=_MAGIC + encode_arguments(digest, encode_bytes(signature)),
            gas=self._limits.erc1271_gas,
            bytes_max=self._limits.erc1271_bytes_max,
            deadline_s=self._limits.erc1271_deadline_s,
        )
        return not result.reverted and result.payload == _MAGIC_WORD

    async def _call_validator(
        self, chain_id: ChainId, address: Address, digest: bytes, signature: bytes
    ) -> bool:
        """ERC-6492: a validator contract deploys the wallet inside an `eth_call`, which changes no state, and then calls it."""
        arguments = encode_arguments(word(address), digest, encode_bytes(signature))
        result = await self._chains.call_contract(
            chain_id,
            to=None,
            calldata=self._validator + arguments,
            gas=ERC6492_GAS,
            bytes_max=self._limits.erc1271_bytes_max,
            deadline_s=self._limits.erc1271_deadline_s,
        )
        return not result.reverted and result.payload == _YES


_PURPOSE = b"tollway offers and receipts"


class DerivedSigner:
    """A key that is derived from the gateway's secret key. `address` is published."""

    __slots__ = ("_key", "address")

    def __init__(self, key: coincurve.PrivateKey) -> None:
        self._key = key
        self.address = derive_address(key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    def sign(self, digest: bytes) -> bytes:
        """65 bytes r || s || v over a 32-byte digest, s low, v 27 or 28."""
        return sign_digest(self._key, digest)


class ReceiptSigner(DerivedSigner):
    """Signs offers and receipts."""

    __slots__ = ()

    @classmethod
    def derive(cls, secret: bytes) -> Self:
        """The same secret always gives the same signer."""
        return cls(coincurve.PrivateKey(hmac.digest(secret, _PURPOSE, "sha256")))


class ChannelAuthorizer(DerivedSigner):
    """Signs the claims and the refunds of channels (`receiverAuthorizer`). It can pay only the receiver or the payer of a channel."""

    __slots__ = ()

    @classmethod
    def derive(cls, secret: bytes, *, origin: str, restores: int) -> Self:
        """Two gateways with other public URLs never sign for one channel; nor does a restored database for the channels from before: it does not know
        which of their vouchers it has counted. `restores`: how often the database was restored."""
        purpose = b"tollway channel authorizer\0%d\0" % restores + origin.encode()
        return cls(coincurve.PrivateKey(hmac.digest(secret, purpose, "sha256")))
