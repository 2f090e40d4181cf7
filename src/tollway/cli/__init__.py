"""The command line. Each module registers the commands of one kind of person: the operator, the trader, the visitor
of the demo. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 try again later, 130 interrupted.

Importing this loads nothing: the commands take a second to load, and Ctrl-C in that second ends as it does later.
"""

import io
import sys
import traceback
from types import TracebackType

INTERRUPTED = 130


def main() -> None:
    """The entry point of the `tollway` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # what a terminal has no character for is shown all the same
    sys.excepthook = _print_traceback
    try:
        if sys.argv[1:2] == ["serve"]:
            from tollway.cli.operator_line import app
        elif sys.argv[1:2] == ["mcp"]:
            from tollway.cli.agent_line import app
        else:
            from tollway.cli.command_line import app

        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _print_traceback(kind: type[BaseException], exc: BaseException, trace: TracebackType | None, /) -> None:
    """As the interpreter does, without what a gateway may have hidden in a message."""
    from tollway.client.shown_text import (
        plain,
    )  # loads the client, which only a command that fails may not have

    sys.stderr.write(plain("".join(traceback.format_exception(kind, exc, trace))))
