"""`tollway demo`: its options. The demo itself (`demo_run`) loads the server and the sandbox, so it is imported when the command runs."""

from pathlib import Path
from typing import Annotated

import typer

INTERRUPTED = 130
"""The exit code of a command that SIGINT ended before it was done."""


def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after the walk-through.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="The gateway's port; 0: any free one. Default: 8402 if free."
        ),
    ] = None,
    chain_port: Annotated[
        int, typer.Option("--chain-port", min=0, max=65_535, help="The chain's port; 0: any free one.")
    ] = 0,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every request and response of the walk-through.")
    ] = False,
    sandbox_file: Annotated[
        Path | None,
        typer.Option(
            "--sandbox-file",
            metavar="PATH",
            help="Write URLs, accounts and the listing to this file as JSON, once the demo is ready. Ctrl-C removes it.",
        ),
    ] = None,
) -> None:
    """Starts a chain, an API and a gateway, and shows each step of paid calls."""
    try:
        from tollway.cli.demo_run import (  # loads the server and the sandbox
            DemoOptions,
            run_demo,
        )

        code = run_demo(
            DemoOptions(
                is_once=once,
                port=port,
                chain_port=chain_port,
                sandbox_file=sandbox_file,
                is_verbose=verbose,
            )
        )
    except KeyboardInterrupt:  # before the demo handles signals
        code = INTERRUPTED
    raise typer.Exit(code)
