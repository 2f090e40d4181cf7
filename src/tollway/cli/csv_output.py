"""The output of `--csv`: to stdout as it arrives, or to a file that appears when it is complete.

A file that is not complete has no name of its own: it is written beside the final one and renamed at the end, so that no accountant takes half of it for the whole.
"""

import contextlib
import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path

PRIVATE_MODE = 0o600
STDOUT = Path("-")


def write_csv(parts: Iterable[bytes], output: Path | None) -> None:
    """Writes all parts. `output` None or `-`: stdout. Raises ValueError when the file cannot be written, and what the parts raise; then no file is there that
    was not there before. The file has payers, prices and paths: its owner alone can read it."""
    if output is None or output == STDOUT:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    try:
        write_private(parts, output)
    except OSError as exc:
        raise ValueError(f"{output} cannot be written: {exc.strerror}") from exc


def write_private(parts: Iterable[bytes], output: Path) -> None:
    """Writes a file that its owner alone can read, and that appears when it is complete. Raises OSError, and what the parts raise."""
    partial = output.with_name(f".{output.name}.{secrets.token_hex(4)}.part")
    try:
        _write_whole(parts, partial)
        partial.replace(output)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _write_whole(parts: Iterable[bytes], path: Path) -> None:
    """Writes and flushes a new file of mode `PRIVATE_MODE`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def check_output(*, is_csv: bool, output: Path | None, as_json: bool) -> None:
    """Raises ValueError for options that do not go together."""
    if output is not None and not is_csv:
        raise ValueError("-o writes the file of --csv; add --csv")
    if is_csv and as_json:
        raise ValueError("choose --csv or --json")
