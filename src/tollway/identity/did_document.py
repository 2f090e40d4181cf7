"""The DID document of a gateway (`/.well-known/did.json`): the addresses of the keys that sign its offers and receipts. Pure.

The gateway writes it; a verifier of receipts reads it, also one that an accountant saved years ago. Every listed key counts: a key that is
not in use any more stays listed, so that what it signed can be verified.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from tollway.ids import Address

DID_PATH = "/.well-known/did.json"
DID_TYPE = "application/did+json"
KEYS_MAX = 64
"""A document with more verification methods is refused."""

_CONTEXT = ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/suites/secp256k1recovery-2020/v2"]
_DID_WEB = "did:web:"
_FRAGMENT = "offers-and-receipts"
_ACCOUNT = "eip155:"


def describe_signers(*, authority: str, signers: Sequence[Address]) -> dict[str, Any]:
    """The DID document. `authority`: host and port of the public URL. `signers`: the key in use first; an address that stands twice is listed once.

    did:web §3.2: the colon of a port is percent-encoded. An account id needs a chain; the signer is the same wallet on each, so it is chain 1.
    """
    did = f"{_DID_WEB}{quote(authority, safe='')}"
    methods = [
        {
            "id": key_id(authority) + (f"-{number}" if number > 1 else ""),
            "type": "EcdsaSecp256k1RecoveryMethod2020",
            "controller": did,
            "blockchainAccountId": f"eip155:1:{signer}",
        }
        for number, signer in enumerate(dict.fromkeys(signers), 1)
    ]
    return {
        "@context": _CONTEXT,
        "id": did,
        "verificationMethod": methods,
        "assertionMethod": [method["id"] for method in methods],
    }


def key_id(authority: str) -> str:
    return f"{_DID_WEB}{quote(authority, safe='')}#{_FRAGMENT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSigners:
    """`authority`: host and port of the gateway."""

    authority: str
    addresses: frozenset[Address]


def read_signers(document: object) -> PublishedSigners:
    """Reads a DID document. A verification method of another kind is ignored. Raises ValueError with a sentence for any other document."""
    members = document if isinstance(document, Mapping) else {}
    did, methods = members.get("id"), members.get("verificationMethod")
    if not isinstance(did, str) or not did.startswith(_DID_WEB) or ":" in did.removeprefix(_DID_WEB):
        raise ValueError("the DID document has no id of the form did:web:HOST")
    if not isinstance(methods, list) or len(methods) > KEYS_MAX:
        raise ValueError(f"the DID document has no list of at most {KEYS_MAX} keys (verificationMethod)")
    found = [_read_address(method) for method in methods]
    addresses = frozenset(address for address in found if address is not None)
    if not addresses:
        raise ValueError("the DID document lists no key with a blockchainAccountId of the form eip155:1:0x…")
    return PublishedSigners(authority=unquote(did.removeprefix(_DID_WEB)), addresses=addresses)


def _read_address(method: object) -> Address | None:
    account = method.get("blockchainAccountId") if isinstance(method, Mapping) else None
    if not isinstance(account, str) or not account.startswith(_ACCOUNT):
        return None
    try:
        return Address.parse(account.rpartition(":")[2])
    except ValueError:
        return None
