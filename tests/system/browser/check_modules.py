"""Checks the types of the pages' modules (JSDoc) with the TypeScript compiler: `python -m tests.system.browser.check_modules`. Nothing is compiled.

The types of what the gateway answers are made from the contract and live as long as the check: a module imports them from `tollway:contract`, so a field that the contract
renames is an error here.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.kit.waits import DEADLINE_S
from tests.system.browser.chromium import ROOT, find_node
from tollway.web.http.contract import Site, SiteContract
from tollway.web.pages.assets import UI_FOLDER

NODE_MODULES = ROOT / "node_modules"
COMPILER = NODE_MODULES / "typescript" / "bin" / "tsc"
TYPE_WRITER = NODE_MODULES / "openapi-typescript" / "bin" / "cli.js"
MODULE = "tollway:contract"
OPTIONS = (
    *("--checkJs", "--allowJs", "--noEmit", "--strict"),
    *("--target", "es2022", "--module", "es2022", "--lib", "es2023,dom,dom.iterable"),
)


def check_modules(contract: bytes, modules: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    """Runs the compiler over the modules. `contract`: the OpenAPI document whose types they import."""
    with tempfile.TemporaryDirectory() as name:
        types = write_types(contract, Path(name))
        return _run_node(COMPILER, *OPTIONS, types, *modules)


def write_types(contract: bytes, folder: Path) -> Path:
    """Writes the types of the document as a module that has a name instead of a place."""
    document, plain, types = (folder / name for name in ("openapi.json", "plain.d.ts", "contract.d.ts"))
    document.write_bytes(contract)
    _run_node(TYPE_WRITER, document, "-o", plain).check_returncode()
    types.write_text(f'declare module "{MODULE}" {{\n{plain.read_text("utf-8")}}}\n', "utf-8")
    return types


def build_contract() -> bytes:
    return SiteContract(Site(public_url="https://gw.example.com", version="0")).build()


def _run_node(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_node(), *map(str, command)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE_S,
    )


def main() -> int:
    found = check_modules(build_contract(), sorted(UI_FOLDER.glob("*.js")))
    print(found.stdout, end="")
    return found.returncode


if __name__ == "__main__":
    sys.exit(main())
