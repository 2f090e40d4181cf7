"""Compiled contracts: what their artifact files say, parsed, and calls to them encoded and decoded.

Must never compile: an artifact is a file of the package, and a test proves that its source still gives it.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Self

from tollway.ids import Address, keccak256


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function of a contract. `signature` is its canonical text, such as `transfer(address,uint256)`."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def signature(self) -> str:
        return f"{self.name}({','.join(self.inputs)})"

    def encode(self, arguments: Iterable[Any]) -> bytes:
        """Selector and arguments, as calldata. Raises ValueError or TypeError on arguments of the wrong type."""
        return keccak256(self.signature.encode())[:4] + encode_values(self.inputs, list(arguments))

    def decode(self, answer: bytes) -> Any:
        """The single output as it is, several as a tuple, none as None. Raises ValueError on anything else."""
        values = decode_values(self.outputs, answer)
        return values[0] if len(values) == 1 else values or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A compiled contract. `creation_code` makes it, `runtime_code` is what then stands at its address."""

    name: str
    functions: tuple[Function, ...]
    constructor_inputs: tuple[str, ...]
    creation_code: bytes
    runtime_code: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises KeyError or ValueError when `text` is not an artifact of ours."""
        raw = json.loads(text)
        entries = raw["abi"]
        return cls(
            name=raw["contractName"],
            functions=tuple(
                Function(name=e["name"], inputs=_read_types(e["inputs"]), outputs=_read_types(e["outputs"]))
                for e in entries
                if e["type"] == "function"
            ),
            constructor_inputs=next(
                (_read_types(e["inputs"]) for e in entries if e["type"] == "constructor"), ()
            ),
            creation_code=bytes.fromhex(raw["bytecode"][2:]),
            runtime_code=bytes.fromhex(raw["deployedBytecode"][2:]),
        )

    def function(self, name: str) -> Function:
        """By name, or by signature where a name has several forms. Raises LookupError unless exactly one fits."""
        found = [f for f in self.functions if name in (f.name, f.signature)]
        if len(found) != 1:
            raise LookupError(f"{self.name} has {len(found)} functions called {name}")
        return found[0]

    def encode_creation(self, arguments: Iterable[Any] = ()) -> bytes:
        return self.creation_code + encode_values(self.constructor_inputs, list(arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """An artifact that stands at an address."""

    artifact: Artifact
    address: Address


def load_artifact(path: Traversable) -> Artifact:
    return Artifact.parse(path.read_text(encoding="utf-8"))


def load_test_usdc() -> Artifact:
    """The test token: ERC-20 and EIP-3009, name `USDC`, version `2`, 6 decimals, minted by anybody."""
    return load_artifact(files("tollway.sandbox") / "contracts" / "TestUSDC.json")


_WORD, _ADDRESS_BYTES = 32, 20
_SIZED = re.compile(r"(uint|bytes)([1-9][0-9]*)")


def encode_values(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """Contract ABI encoding of `uintN`, `bytesN`, `bool`, `address` (bytes or text), `bytes`, `string`, and arrays of them without
    a fixed length. Shorter values of `bytesN` are filled up with zeros. Raises ValueError or TypeError on anything else."""
    heads, tail = b"", b""
    for kind, value in zip(types, values, strict=True):
        encoded = _encode(kind, value)
        if _is_dynamic(kind):
            heads += (_WORD * len(types) + len(tail)).to_bytes(_WORD, "big")
            tail += encoded
        else:
            heads += encoded
    return heads + tail


def decode_values(types: Sequence[str], payload: bytes) -> tuple[Any, ...]:
    """The values of `encode_values`, without arrays. Raises ValueError on a payload that is too short or not of these types."""
    return tuple(_decode(kind, payload, _WORD * place) for place, kind in enumerate(types))


def _is_dynamic(kind: str) -> bool:
    return kind in ("bytes", "string") or kind.endswith("[]")


def _encode(kind: str, value: Any) -> bytes:
    if kind.endswith("[]"):
        return len(value).to_bytes(_WORD, "big") + encode_values([kind[:-2]] * len(value), value)
    if kind in ("bytes", "string"):
        raw = value.encode() if kind == "string" else bytes(value)
        return len(raw).to_bytes(_WORD, "big") + raw + bytes(-len(raw) % _WORD)
    if kind == "address":
        address = value if isinstance(value, bytes) else Address.parse(value)
        if len(address) != _ADDRESS_BYTES:
            raise ValueError("an address has 20 bytes")
        return address.rjust(_WORD, b"\0")
    if kind == "bool":
        return bool(value).to_bytes(_WORD, "big")
    name, size = _parse_sized(kind)
    if name == "bytes":
        if len(value) > size:
            raise ValueError(f"{len(value)} bytes do not fit into {kind}")
        return bytes(value).ljust(_WORD, b"\0")
    if not 0 <= value < 1 << size:
        raise ValueError(f"{value} does not fit into {kind}")
    return int(value).to_bytes(_WORD, "big")


def _decode(kind: str, payload: bytes, start: int) -> Any:
    word = _slice(payload, start, _WORD)
    number = int.from_bytes(word, "big")
    if kind in ("bytes", "string"):
        length = int.from_bytes(_slice(payload, number, _WORD), "big")
        raw = _slice(payload, number + _WORD, length)
        return raw.decode() if kind == "string" else raw
    if kind == "address":
        if any(word[:-_ADDRESS_BYTES]):
            raise ValueError("an address has 20 bytes")
        return str(Address(word[-_ADDRESS_BYTES:]))
    if kind == "bool":
        if number > 1:
            raise ValueError("a bool is 0 or 1")
        return number == 1
    name, size = _parse_sized(kind)
    if name == "bytes":
        if any(word[size:]):
            raise ValueError(f"more bytes than {kind} has")
        return word[:size]
    if number >> size:
        raise ValueError(f"{number} does not fit into {kind}")
    return number


def _slice(payload: bytes, start: int, length: int) -> bytes:
    if start + length > len(payload):
        raise ValueError("the answer is shorter than it says")
    return payload[start : start + length]


def _parse_sized(kind: str) -> tuple[str, int]:
    """`uint` and its bits, or `bytes` and their number."""
    found = _SIZED.fullmatch(kind)
    if found is None:
        raise ValueError(f"{kind} is not encoded here")
    return found[1], int(found[2])


def _read_types(parameters: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(parameter["type"] for parameter in parameters)
