"""Builds wheel and source distribution, byte for byte the same for the same sources: `make wheel`.

setuptools builds them. Then each archive is written again with its entries in order, one moment (`SOURCE_DATE_EPOCH`, else that of the last commit), no owner
and no rights but read, write and execute: what differs between two machines is the umask, the owner and the time of a checkout.
"""

import argparse
import contextlib
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src", "docs/package.md", "requirements", "pyproject.toml", "LICENSE")
"""What a build reads. It runs on a copy, so that nothing of the checkout beside it is packed. `src/tollway/web/pages/runbooks` is a link to
`docs/runbooks`, and a folder in the copy."""
ZIP_EPOCH_MIN = 315_532_800
"""1980: the first moment that a zip file can hold."""
FILE_MODE, PROGRAM_MODE = 0o644, 0o755
BUILD = """
import contextlib, io, sys
import setuptools.build_meta as backend
with contextlib.redirect_stdout(io.StringIO()):
    getattr(backend, sys.argv[1])(sys.argv[2])
"""


def build(source: Path, target: Path, *, epoch_s: int) -> list[Path]:
    """Builds from a folder with `SOURCES` into `target`. Returns wheel and source distribution."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tollway-build-") as name:
        copy, built = Path(name) / "source", Path(name) / "built"
        built.mkdir()
        copy_sources(source, copy)
        for step in ("build_wheel", "build_sdist"):
            _run_backend(step, copy, built, epoch_s=epoch_s)
        (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
        write_wheel(wheel, target / wheel.name, epoch_s=epoch_s)
        write_sdist(sdist, target / sdist.name, epoch_s=epoch_s)
    return [target / wheel.name, target / sdist.name]


def _run_backend(step: str, source: Path, target: Path, *, epoch_s: int) -> None:
    """In a process of its own. What it prints is shown when it fails."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", BUILD, step, str(target)]
    ran = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.stderr.write(ran.stdout + ran.stderr)
        raise SystemExit(f"error: {step} failed")


def copy_sources(source: Path, copy: Path) -> None:
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
    for name in SOURCES:
        place = copy / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, place, ignore=left_out)
        else:
            shutil.copy(source / name, place)


def write_wheel(wheel: Path, target: Path, *, epoch_s: int) -> None:
    """The same files in the same order, `RECORD` last, as the format recommends."""
    moment = time.gmtime(max(epoch_s, ZIP_EPOCH_MIN))[:6]
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in sorted(old.namelist(), key=lambda name: (name.endswith(".dist-info/RECORD"), name)):
            entry = zipfile.ZipInfo(name, date_time=moment)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100000 | FILE_MODE) << 16
            new.writestr(entry, old.read(name), compresslevel=9)


def write_sdist(sdist: Path, target: Path, *, epoch_s: int) -> None:
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for entry in sorted(old.getmembers(), key=lambda entry: entry.name):
            plain = tarfile.TarInfo(entry.name)
            plain.type, plain.size, plain.mtime = entry.type, entry.size, epoch_s
            plain.mode = PROGRAM_MODE if entry.isdir() or entry.mode & 0o100 else FILE_MODE
            new.addfile(plain, old.extractfile(entry) if entry.isfile() else None)
    with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch_s) as output:
        output.write(packed.getvalue())


def read_epoch() -> int:
    """`SOURCE_DATE_EPOCH`, else the moment of the last commit, else that of the first zip file."""
    if named := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(named)
    with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError):
        told = subprocess.run(
            ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        return int(told.stdout)
    return ZIP_EPOCH_MIN


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds wheel and source distribution, reproducibly.")
    parser.add_argument("--target", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    epoch_s = read_epoch()
    for path in build(ROOT, options.target, epoch_s=epoch_s):
        print(f"{path} (SOURCE_DATE_EPOCH={epoch_s})")


if __name__ == "__main__":
    main()
