"""The deployment of a paying wallet: a contract wallet can sign before it has code (ERC-6492), and its first payment deploys it. Pure.

The wrapped signature names a factory and the calldata that deploys the wallet. The payer composes that calldata and the gateway's
key pays its gas, so four rules hold. The call goes only to a factory of the operator's list. Multicall3 makes it, without value and
without rights. The transfer is in the same transaction, which reverts when one of the two calls fails. And the wallet must have
code after the call and confirm the signature, before the claim and again before each signature, so that a factory is called only where
it deploys the payer. What else its call does is limited by its gas alone.

The deployment is not stored: it is read from the wrapped signature, and the code of the wallet at that moment decides whether the
transaction contains it. A wallet that has code pays with the inner signature alone, also where the wrapper names a factory that is not allowed.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from tollway.chain.multicall import MULTICALL3, ContractCall, encode_calls
from tollway.chain.tokens import encode_is_valid_signature
from tollway.ids import Address

_WRAPPED = bytes.fromhex("6492" * 16)
_WORD = 32
_SELECTOR_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    factory: Address
    calldata: bytes = field(repr=False)

    @property
    def code_hash(self) -> bytes:
        """What the gas of this deployment counts under, in place of the hash of a code that does not exist yet: 32 bytes, the
        factory's address at their end. All wallets of one factory count together, as all proxies of one code do."""
        return bytes(self.factory).rjust(_WORD, b"\0")


def is_wrapped(signature: bytes) -> bool:
    """Whether the signature is in the ERC-6492 wrapper: its wallet is a contract that may not be deployed yet."""
    return signature.endswith(_WRAPPED)


def unwrap(signature: bytes) -> tuple[Deployment, bytes]:
    """The deployment in an ERC-6492 wrapper, and the signature for the wallet. The wrapper is the ABI encoding of
    `(address factory, bytes calldata, bytes signature)` before 32 bytes of suffix. Raises ValueError for other bytes."""
    if not is_wrapped(signature):
        raise ValueError("not an ERC-6492 wrapper")
    content = signature[: -len(_WRAPPED)]
    if len(content) < 3 * _WORD or any(content[: _WORD - 20]):
        raise ValueError("the ERC-6492 wrapper does not begin with the factory's address")
    factory = Address(content[_WORD - 20 : _WORD])
    calldata, inner = (_read_bytes(content, place) for place in (_WORD, 2 * _WORD))
    if len(calldata) < _SELECTOR_BYTES or not inner or is_wrapped(inner):
        raise ValueError("the ERC-6492 wrapper names no call of the factory, or no signature for the wallet")
    return Deployment(factory=factory, calldata=calldata), inner


def choose_signature(signature: bytes) -> bytes:
    """The signature that the wallet itself checks: the one in the wrapper, or `signature` where it has none."""
    if not is_wrapped(signature):
        return signature
    try:
        return unwrap(signature)[1]
    except ValueError:
        return signature


def choose_deployment(
    signature: bytes, *, code_size: int, factories: Collection[Address]
) -> Deployment | None:
    """None: the wallet has code, the signature names no deployment, or its factory is not allowed."""
    if code_size > 0:
        return None
    if not is_wrapped(signature):
        return None
    try:
        deployment, _ = unwrap(signature)
    except ValueError:
        return None
    return deployment if deployment.factory in factories else None


def explain_factory(signature: bytes, factories: Collection[Address]) -> str:
    """Why the wallet of a wrapped signature is not deployed, and what its owner can do."""
    deployment, _ = unwrap(signature)
    allowed = ", ".join(str(factory) for factory in factories) or "none"
    return (
        f"The paying wallet is not deployed, and this gateway does not deploy wallets by the factory {deployment.factory} "
        f"(allowed on this network: {allowed}). Deploy the wallet first, with any transaction of it, or pay by transaction."
    )


def encode_deploying_transfer(
    deployment: Deployment, *, token: Address, calldata: bytes
) -> tuple[Address, bytes]:
    """Both the deployment and the transfer are made, or neither. Returns the recipient and the calldata. `calldata`: of the transfer."""
    calls = (_encode_factory_call(deployment), ContractCall(to=token, calldata=calldata))
    return MULTICALL3, encode_calls(calls)


def encode_deployed_check(
    deployment: Deployment, *, wallet: Address, digest: bytes, signature: bytes
) -> tuple[Address, bytes]:
    """The `eth_call` that deploys the wallet and calls its ERC-1271 check: its recipient and its calldata. Its second result decides."""
    check = encode_is_valid_signature(digest=digest, signature=signature)
    calls = (_encode_factory_call(deployment), ContractCall(to=wallet, calldata=check, may_fail=True))
    return MULTICALL3, encode_calls(calls)


def _encode_factory_call(deployment: Deployment) -> ContractCall:
    return ContractCall(to=deployment.factory, calldata=deployment.calldata)


def _read_bytes(content: bytes, place: int) -> bytes:
    start = int.from_bytes(content[place : place + _WORD], "big")
    length = int.from_bytes(content[start : start + _WORD], "big")
    end = start + _WORD + length
    if start < 3 * _WORD or end > len(content):
        raise ValueError("the ERC-6492 wrapper is cut")
    return content[start + _WORD : end]
