"""The entry point of the `tollway` command, with three command lines: the operator's, the MCP server's, and all commands. Exit codes: 0 done,
1 refused or failed, 2 wrong usage, 3 try again later, 130 interrupted.

Importing this module loads no command: they take a second to load, and Ctrl-C in that second must end the process as it does later. A gateway loads
the operator's commands alone, which start faster and take less memory.
"""

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
    try:
        if sys.argv[1:2] == ["serve"]:
            app = make_operator_app()
        elif sys.argv[1:2] == ["mcp"]:
            app = make_agent_app()
        else:
            app = make_app()
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def make_app() -> "typer.Typer":
    """All commands: of the operator, of providers and callers, of the demo."""
    from tollway.cli import caller, demo, mcp

    app, wallet = _make_apps_of_operator()
    caller.register_caller(app, wallet=wallet)
    caller.register_verify(app)
    caller.register_search(app)
    mcp.register(app)
    demo.register(app)
    return app


def make_operator_app() -> "typer.Typer":
    """The operator's commands alone; `tollway serve` runs from them."""
    return _make_apps_of_operator()[0]


def make_agent_app() -> "typer.Typer":
    """`tollway mcp` alone, which starts faster: the program that starts it waits for its tools."""
    from tollway.cli import mcp

    app = _make_typer()
    app.callback()(_agent)
    mcp.register(app)
    return app


def _agent() -> None:
    """Typer gives an app with one command no command name, unless it has a callback."""


def _make_apps_of_operator() -> "tuple[typer.Typer, typer.Typer]":
    """The command line, and its group `wallet`, which also gets the callers' wallet commands."""
    import typer

    from tollway.cli import operator, secrets

    app = _make_typer()
    wallet = typer.Typer(no_args_is_help=True, help="Wallets: new, block, unblock.")
    listing = typer.Typer(no_args_is_help=True, help="Moderate listings: suspend, restore.")
    app.add_typer(wallet, name="wallet")
    app.add_typer(listing, name="listing")
    operator.register_operator(app, wallet=wallet, listing=listing)
    operator.register_backups(app)
    secrets.register_secrets(app)
    return app, wallet


def _make_typer() -> "typer.Typer":
    import typer

    return typer.Typer(
        name="tollway", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
    )


def _print_traceback(kind: type[BaseException], exc: BaseException, trace: TracebackType | None, /) -> None:
    """Prints a traceback as the interpreter does, without control characters: a message may quote a gateway."""
    from tollway.client.safe_text import (
        plain,  # loads the client, which no command may have loaded yet
    )

    sys.stderr.write(plain("".join(traceback.format_exception(kind, exc, trace))))
