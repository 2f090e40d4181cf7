"""The entry point of the `tollway` command. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 try again later, 130 interrupted.

Importing this module loads no command: Ctrl-C while the command loads must end the process as it does later.
"""

import gc
import io
import sys
import traceback
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

INTERRUPTED = 130


def main() -> None:
    """Runs the command that `sys.argv` names."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the encoding of a terminal may lack a character
    sys.excepthook = _print_traceback
    gc.disable()  # imports leave no garbage, and a tenth of their time is the search for it; the command enables it
    try:
        make_app()()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        gc.enable()


def make_app() -> "typer.Typer":
    """The command line with every command (`cli/commands.py`)."""
    from tollway.cli.command_group import build_app  # loads the parser of arguments

    return build_app()


def _print_traceback(kind: type[BaseException], exc: BaseException, trace: TracebackType | None, /) -> None:
    """Prints a traceback as the interpreter does, without control characters: a message may quote a gateway."""
    from tollway.client.safe_text import (
        plain,  # loads the client, which no command may have loaded yet
    )

    sys.stderr.write(plain("".join(traceback.format_exception(kind, exc, trace))))
