"""The entry point of the `tollway` command, and its command lines: of a gateway, of an agent's MCP server, of everything. Exit codes: 0 done,
1 refused or failed, 2 wrong usage, 3 try again later, 130 interrupted.

Importing this module loads nothing: the commands take a second to load, and Ctrl-C in that second ends as it does later. A gateway loads
the operator's commands alone: it does not wait for what the other commands load, nor keep it in memory.
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
            stream.reconfigure(
                errors="backslashreplace"
            )  # what a terminal has no character for is shown all the same
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
    """`tollway mcp` alone: the program that starts it waits for its tools, and not for the other commands."""
    from tollway.cli import mcp

    app = _make_typer()
    app.callback()(_agent)
    mcp.register(app)
    return app


def _agent() -> None:
    """With one command alone there would be no word for it."""


def _make_apps_of_operator() -> "tuple[typer.Typer, typer.Typer]":
    """The command line, and its group `wallet`, to which callers' commands are added."""
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
    """As the interpreter does, without what a gateway may have hidden in a message."""
    from tollway.client.safe_text import (
        plain,  # loads the client, which only a command that fails may not have
    )

    sys.stderr.write(plain("".join(traceback.format_exception(kind, exc, trace))))
