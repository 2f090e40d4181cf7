"""The wheel has all that it needs: unpacked in a folder of its own, without the checkout, it shows the main job."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tollway.sandbox.anvil_binary import find_anvil

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120
RUN = """
import sys
sys.path[:] = [{site!r}, *(path for path in sys.path if path not in ("", {source!r}))]
import tollway
assert tollway.__file__.startswith({site!r}), tollway.__file__
sys.argv = ["tollway", {arguments}]
from tollway.cli import main
main()
"""

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("wheel")
    build = (
        "import contextlib, io, setuptools.build_meta as backend\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    name = backend.build_wheel({str(folder)!r}, {{'--build-option': []}})\n"
        "print(name)"
    )
    source = folder / "source"
    source.mkdir()
    for name in ("src", "docs", "requirements", "pyproject.toml", "LICENSE"):
        copy = ["cp", "-R", str(ROOT / name), str(source / name)]
        subprocess.run(copy, check=True, timeout=DEADLINE_S)
    ran = subprocess.run(
        [sys.executable, "-c", build],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    with zipfile.ZipFile(folder / ran.stdout.strip()) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def run(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    source = str(ROOT / "src")
    code = RUN.format(site=str(site), source=source, arguments=", ".join(map(repr, arguments)))
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"HOME": str(folder), "PATH": os.defpath, "TOLLWAY_ANVIL": str(find_anvil())},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_demo_runs_from_the_wheel(site: Path, tmp_path: Path) -> None:
    done = run(site, tmp_path, "demo", "--once", "--port", "0", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_says_the_version_of_the_wheel(site: Path, tmp_path: Path) -> None:
    (metadata,) = site.glob("tollway-*.dist-info/METADATA")
    version = next(line for line in metadata.read_text().splitlines() if line.startswith("Version: "))
    assert run(site, tmp_path, "--version").stdout == f"tollway {version.removeprefix('Version: ')}\n"


def test_every_file_of_the_package_is_in_the_wheel(site: Path) -> None:
    left_out = {"__pycache__"}
    expected = {
        path.relative_to(ROOT / "src")
        for path in (ROOT / "src" / "tollway").rglob("*")
        if path.is_file() and not left_out & set(path.parts)
    }
    assert expected - {path.relative_to(site) for path in site.rglob("*") if path.is_file()} == set()
