"""Checks the types of the pages' modules (JSDoc) with the TypeScript compiler: `python -m tests.browser.check_modules`. Nothing is compiled."""

import subprocess
import sys

from tests.browser.chromium import ROOT, find_node
from tollway.web.page_assets import UI_FOLDER

TSC = ROOT / "node_modules" / "typescript" / "bin" / "tsc"
OPTIONS = (
    *("--checkJs", "--allowJs", "--noEmit", "--strict"),
    *("--target", "es2022", "--module", "es2022", "--lib", "es2023,dom,dom.iterable"),
)


def main() -> int:
    modules = [str(path) for path in sorted(UI_FOLDER.glob("*.js"))]
    return subprocess.run([find_node(), str(TSC), *OPTIONS, *modules]).returncode


if __name__ == "__main__":
    sys.exit(main())
