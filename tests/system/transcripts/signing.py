"""Keys and signatures of the transcripts: fixed keys, deterministic ECDSA (RFC 6979), digests built by hand.

Sources: EIP-191, EIP-712, EIP-3009, EIP-4361, RFC 9421 (ERC-8128). Imports nothing of Tollway.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import coincurve
from Crypto.Hash import keccak

CHAIN_ID = 84532
TOKEN = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
ORIGIN = "https://gateway.example"
AUTHORITY = "gateway.example"


def keccak256(message: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=message).digest()


def checksum(raw: bytes) -> str:
    """EIP-55."""
    digits = raw.hex()
    nibbles = keccak256(digits.encode()).hex()
    return "0x" + "".join(c.upper() if n > "7" else c for c, n in zip(digits, nibbles, strict=False))


def word(value: int | bytes | str) -> bytes:
    """One ABI word of 32 bytes. A text is hex with 0x."""
    if isinstance(value, str):
        value = bytes.fromhex(value[2:])
    if isinstance(value, bytes):
        return value.rjust(32, b"\0")
    return value.to_bytes(32, "big")


@dataclass(frozen=True)
class Account:
    """A wallet by its name; its key is the hash of that name."""

    name: str

    @property
    def key(self) -> coincurve.PrivateKey:
        return _key(self.name)

    @property
    def address(self) -> str:
        return _address(self.name)

    @property
    def raw(self) -> bytes:
        return bytes.fromhex(self.address[2:])

    def sign_digest(self, digest: bytes) -> bytes:
        """65 bytes: r, s, v (27 or 28)."""
        signature = self.key.sign_recoverable(digest, hasher=None)
        return signature[:64] + bytes([signature[64] + 27])

    def sign_text(self, message: bytes) -> str:
        """`personal_sign`, as hex."""
        return "0x" + self.sign_digest(eip191(message)).hex()


@lru_cache
def _key(name: str) -> coincurve.PrivateKey:
    return coincurve.PrivateKey(keccak256(b"transcript " + name.encode()))


@lru_cache
def _address(name: str) -> str:
    return checksum(keccak256(_key(name).public_key.format(compressed=False)[1:])[12:])


def recover(digest: bytes, signature: bytes) -> bytes | None:
    """The 20 bytes of the signer; None for anything that is no signature."""
    if len(signature) != 65:
        return None
    try:
        key = coincurve.PublicKey.from_signature_and_message(
            signature[:64] + bytes([(signature[64] - 27) % 256 if signature[64] >= 27 else signature[64]]),
            digest,
            hasher=None,
        )
    except ValueError:
        return None
    return keccak256(key.format(compressed=False)[1:])[12:]


def eip191(message: bytes) -> bytes:
    return keccak256(b"\x19Ethereum Signed Message:\n%d" % len(message) + message)


def nonce(label: str) -> bytes:
    """32 bytes that are the same in every run."""
    return keccak256(b"nonce " + label.encode())


# ---- Showing a transaction.


def plain(account: Account, tx_hash: str, **more: str) -> list[tuple[str, str]]:
    return [("X-Payment-Tx", tx_hash), ("X-Signature", account.sign_text(tx_hash.lower().encode()))]


def bound(
    account: Account,
    tx_hash: str,
    api_id: str,
    target: str,
    *,
    now_s: int,
    label: str,
    method: str = "GET",
    body: bytes = b"",
    chain_id: int = CHAIN_ID,
    names_body: bool = True,
    valid_s: int = 240,
) -> list[tuple[str, str]]:
    """The bound form (EIP-712 `PaidCall`)."""
    valid_until, body_hash, once = now_s + valid_s, keccak256(body), nonce(label)
    domain = keccak256(
        keccak256(b"EIP712Domain(string name,string version,uint256 chainId)")
        + keccak256(b"Tollway")
        + keccak256(b"1")
        + word(chain_id)
    )
    struct = keccak256(
        keccak256(
            b"PaidCall(string gateway,string apiId,string method,string target,bytes32 bodyHash,"
            b"bytes32 transaction,uint256 validUntil,bytes32 nonce)"
        )
        + keccak256(ORIGIN.encode())
        + keccak256(api_id.encode())
        + keccak256(method.encode())
        + keccak256(target.encode())
        + body_hash
        + word(tx_hash.lower())
        + word(valid_until)
        + once
    )
    signature = account.sign_digest(keccak256(b"\x19\x01" + domain + struct))
    params = f"v=1;validUntil={valid_until};nonce=0x{once.hex()}"
    if names_body:
        params += f";bodyHash=0x{body_hash.hex()}"
    return [
        ("X-Payment-Tx", tx_hash),
        ("X-Signature", "0x" + signature.hex()),
        ("X-Signature-Params", params),
    ]


# ---- Authorisations (EIP-3009).

_TRANSFER_TYPE = keccak256(
    b"TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,"
    b"uint256 validBefore,bytes32 nonce)"
)


def token_separator(chain_id: int, token: str, *, name: str = "USDC", version: str = "2") -> bytes:
    return keccak256(
        keccak256(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")
        + keccak256(name.encode())
        + keccak256(version.encode())
        + word(chain_id)
        + word(token)
    )


def authorization_digest(separator: bytes, fields: dict[str, str]) -> bytes:
    struct = keccak256(
        _TRANSFER_TYPE
        + word(fields["from"])
        + word(fields["to"])
        + word(int(fields["value"]))
        + word(int(fields["validAfter"]))
        + word(int(fields["validBefore"]))
        + word(fields["nonce"])
    )
    return keccak256(b"\x19\x01" + separator + struct)


def sign_authorization(
    account: Account, fields: dict[str, str], *, chain_id: int = CHAIN_ID, token: str = TOKEN
) -> str:
    digest = authorization_digest(token_separator(chain_id, token), fields)
    return "0x" + account.sign_digest(digest).hex()


# ---- Signing requests of the control plane.


def sign_request(
    account: Account,
    method: str,
    target: str,
    body: bytes,
    *,
    now_s: int,
    label: str,
    chain_id: int = CHAIN_ID,
    valid_s: int = 60,
    alter: dict[str, str] | None = None,
) -> list[tuple[str, str]]:
    """The headers of a request that its wallet signed (ERC-8128). `alter`: components with another value than sent."""
    path, mark, query = target.partition("?")
    values = {"@authority": AUTHORITY, "@method": method, "@path": path}
    headers: list[tuple[str, str]] = []
    if mark:
        values["@query"] = "?" + query
    if body:
        digest = f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"
        headers.append(("Content-Digest", digest))
        values["content-digest"] = digest
    names = " ".join(f'"{name}"' for name in values)
    once = nonce(label).hex()[:32]
    params = (
        f'({names});created={now_s};expires={now_s + valid_s};nonce="{once}";'
        f'keyid="erc8128:{chain_id}:{account.address}"'
    )
    values |= alter or {}
    base = "\n".join(f'"{name}": {value}' for name, value in values.items())
    signature = account.sign_digest(eip191((base + f'\n"@signature-params": {params}').encode()))
    headers.append(("Signature-Input", f"eth={params}"))
    headers.append(("Signature", f"eth=:{base64.b64encode(signature).decode()}:"))
    return headers


def encode(content: Any, *, is_urlsafe: bool = False) -> str:
    """Base64 of compact JSON; base64url without padding where `is_urlsafe`."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return (
        base64.urlsafe_b64encode(text).decode().rstrip("=") if is_urlsafe else base64.b64encode(text).decode()
    )


def decode(text: str) -> Any:
    return json.loads(
        base64.urlsafe_b64decode(text.replace("+", "-").replace("/", "_") + "=" * (-len(text) % 4))
    )
