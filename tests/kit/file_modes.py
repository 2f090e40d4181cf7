"""The permissions of files that a test makes, under a given umask."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UMASKS = (0o022, 0o000)
"""The usual mask, and one that takes no permission away."""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Sets the mask of this process for the body."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def read_modes(folder: Path) -> dict[str, int]:
    """The permissions of the files of a folder, by name."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()}
