"""The programs that check and run what `deploy/` holds: wheels of `.venv-deploy` (`make check` installs it), and Debian packages.

A Debian program that is not on PATH is unpacked into `.stamps/debian`: nothing is installed into the system. A program that cannot be had skips its test by
name; with `CI` in the environment a missing wheel fails it.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / ".venv-deploy"
UNPACKED = ROOT / ".stamps" / "debian"
PACKAGES = {
    "nginx": ("nginx",),
    "caddy": ("caddy",),
    "buildah": ("buildah", "libgpgme11", "libassuan0", "libdevmapper1.02.1"),
    "mmdebstrap": ("mmdebstrap",),
    "promtool": ("prometheus",),
    "prometheus": ("prometheus",),
}
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
UNPACK_DEADLINE_S = 120


def need_wheel(name: str) -> Path:
    """A program of `.venv-deploy`."""
    found = [
        WHEELS / "bin" / name,
        *WHEELS.glob(f"lib/python3*/site-packages/{name}/_bin/{name}"),
    ]
    for path in found:
        if path.is_file():
            return path
    reason = f"{name} is not in {WHEELS.name}: run `make deploy-tools`"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def need_debian(name: str) -> list[str]:
    """The command that runs a program of the system, else of its unpacked Debian package."""
    try:
        return find_debian(name)
    except ProgramMissing as exc:
        pytest.skip(str(exc))


class ProgramMissing(Exception):
    """A program is neither on PATH nor in a package that this machine can fetch."""


def find_debian(name: str) -> list[str]:
    """Raises ProgramMissing."""
    on_path = shutil.which(name, path=PATH)
    if on_path is not None:
        return [on_path]
    folder = UNPACKED / name
    if not folder.exists():
        _unpack(name, folder)
    binary = next(path for path in (folder / "usr/sbin" / name, folder / "usr/bin" / name) if path.exists())
    libraries = ":".join(sorted({str(path.parent) for path in folder.glob("usr/lib/*/*.so*")}))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(binary)] if libraries else [str(binary)]


def _unpack(name: str, folder: Path) -> None:
    draft = folder.with_name(f".{name}-{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        for package in PACKAGES[name]:
            _run("apt-get", "download", "-q", package, folder=draft)
        for archive in draft.glob("*.deb"):
            _run("dpkg-deb", "-x", str(archive), str(draft), folder=draft)
            archive.unlink()
        draft.replace(folder)
    except (OSError, subprocess.SubprocessError) as exc:
        if folder.exists():  # another process was faster
            return
        raise ProgramMissing(
            f"{name} is not on PATH, and its Debian package cannot be fetched: {type(exc).__name__}"
        ) from exc
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _run(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=UNPACK_DEADLINE_S)


def run_check(*command: str | Path, folder: Path | None = None) -> str:
    """The output of a check that must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=UNPACK_DEADLINE_S,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{output}"
    return output
