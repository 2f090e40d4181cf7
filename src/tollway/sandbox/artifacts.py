"""Compiled contracts: what their artifact files say, parsed, and calls to them encoded and decoded.

Must never compile: an artifact is a file of the package, and a test proves that its source still gives it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Self

from eth_abi.abi import decode, encode

from tollway.identifiers import Address, keccak256


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
        """Selector and arguments, as calldata. Raises `eth_abi` errors on arguments of the wrong type."""
        return keccak256(self.signature.encode())[:4] + encode(self.inputs, list(arguments))

    def decode(self, answer: bytes) -> Any:
        """The single output as it is, several as a tuple, none as None."""
        values = decode(self.outputs, answer)
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
                Function(name=e["name"], inputs=_types(e["inputs"]), outputs=_types(e["outputs"]))
                for e in entries
                if e["type"] == "function"
            ),
            constructor_inputs=next((_types(e["inputs"]) for e in entries if e["type"] == "constructor"), ()),
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
        return self.creation_code + encode(self.constructor_inputs, list(arguments))


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


def _types(parameters: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(parameter["type"] for parameter in parameters)
