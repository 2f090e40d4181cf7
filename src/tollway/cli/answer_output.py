"""Where `tollway call` writes an answer: a terminal, a pipe, or the file of `-o`.

A place that cannot be written is found before anything is sent, because the answer is paid for. An answer that cannot be
written after all goes into a file of its own, and the command says which.
"""

import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tollway.cli.showing import describe_response, is_for_people, print_json, print_response, print_text
from tollway.client import CallerFailure, CallResponse


class ResponseNotWritten(CallerFailure):
    """The call is done, and its answer could not be written where it should go."""

    code = "answer_not_written"


class ResponseOutput:
    """One answer, written once. `output` None: shown as text or JSON; `-`: its bytes to stdout, or
    to a terminal its text; else a file, which keeps
    what it holds until the answer is whole. Raises ValueError on entry for a file that cannot be written."""

    def __init__(self, output: str | None, *, as_json: bool) -> None:
        self._output = output
        self._as_json = as_json
        self._target: Path | None = None
        self._file: IO[bytes] | None = None
        self._new_file: Path | None = None

    def __enter__(self) -> Self:
        if self._output is not None and self._output != "-":
            try:
                self._open(Path(self._output).resolve())
            except (OSError, RuntimeError) as exc:
                reason = exc.strerror if isinstance(exc, OSError) else "it leads to itself"
                raise ValueError(f"{self._output} cannot be written: {reason}; nothing was sent") from exc
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        if self._new_file is not None:
            self._new_file.unlink(missing_ok=True)

    def write(self, response: CallResponse) -> None:
        """Raises `ResponseNotWritten` once the answer is in a file of its own."""
        try:
            self._write(response)
        except BrokenPipeError:
            raise ResponseNotWritten("The reader of this command closed its pipe.") from None
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise ResponseNotWritten(
                f"The answer cannot be written ({reason}). {_save_response(response.content)}"
            ) from exc

    def _open(self, target: Path) -> None:
        self._target = target
        mode = target.stat().st_mode if target.exists() else None
        if mode is None or stat.S_ISREG(mode):
            if mode is not None and not os.access(target, os.W_OK):
                raise PermissionError(13, "Permission denied")
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".tollway-", delete=False) as made:
                self._new_file = Path(made.name)
            self._new_file.chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_read_umask())
            self._file = self._new_file.open("wb")
        else:
            self._file = target.open("wb")  # a device or a pipe; a folder fails here

    def _write(self, response: CallResponse) -> None:
        if self._file is not None:
            self._file.write(response.content)
            self._file.close()
            if self._new_file is not None and self._target is not None:
                os.replace(self._new_file, self._target)
                self._new_file = None
        elif self._output == "-" and sys.stdout.isatty():
            print_text(response.content.decode(response.encoding or "utf-8", "replace"))
        elif self._output == "-":
            sys.stdout.buffer.write(response.content)
            sys.stdout.buffer.flush()
        elif is_for_people(as_json=self._as_json):
            print_response(response)
        else:
            print_json(describe_response(response))
            sys.stdout.flush()


def _save_response(content: bytes) -> str:
    try:
        with tempfile.NamedTemporaryFile(prefix="tollway-answer-", delete=False) as file:
            file.write(content)
    except OSError:
        return "It cannot be kept in a temporary file either; the gateway has stored it where the call had an Idempotency-Key."
    return f"It is kept in {file.name}."


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
