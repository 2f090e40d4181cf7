"""Debian without a registry: file trees made by mmdebstrap (as root), kept as archives in `.stamps`. Nothing of Tollway is in them."""

import os
import subprocess
from pathlib import Path

from tests.kit.deploy_programs import ROOT

RELEASE = "bookworm"
MAKE_DEADLINE_S = 900


def make_base_tar(name: str, packages: str) -> Path:
    """The archive `.stamps/NAME` of a minimal Debian with these packages. An archive that exists is taken as it is."""
    archive = ROOT / ".stamps" / name
    if archive.exists():
        return archive
    draft = archive.with_suffix(f".{os.getpid()}.tar")
    done = subprocess.run(
        [
            *("mmdebstrap", "--mode=root", "--variant=minbase"),
            *(f"--include={packages}", RELEASE, str(draft)),
        ],
        capture_output=True,
        text=True,
        timeout=MAKE_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    draft.replace(archive)
    return archive
