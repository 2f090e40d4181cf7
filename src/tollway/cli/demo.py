"""`tollway demo`: its options, and the chain node, which it fetches once where the user agrees. The demo itself (`demo_run`) loads the server and the
sandbox, so it is imported when the command runs.
"""

import sys
import time
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

FAILED, INTERRUPTED = 1, 130
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
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Fetch the chain node without a question, if it is missing.")
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
    try:
        _provide_anvil(is_agreed=yes)
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


def _provide_anvil(*, is_agreed: bool) -> None:
    """Fetches the chain node if there is none and the user agrees. Ends the command with a sentence otherwise."""
    from tollway.sandbox.anvil_binary import (  # loads the HTTP client
        AnvilMissing,
        AnvilUnavailable,
        cached_binary,
        fetch_anvil,
        find_anvil,
        read_registry,
    )

    try:
        try:
            find_anvil()
            return
        except AnvilMissing as missing:
            package = missing.package
        registry, target = read_registry(), cached_binary(package)
        print(
            f"The demo needs a chain node: {package.describe()}, from {urlsplit(registry).hostname}, kept in {target.parent}."
        )
        if not is_agreed and not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise AnvilUnavailable(
                "nothing was fetched: run `tollway demo --yes`, or name a binary with TOLLWAY_ANVIL"
            )
        if not is_agreed and not typer.confirm("Fetch it?", default=True):
            raise AnvilUnavailable("nothing was fetched; TOLLWAY_ANVIL can name a binary")
        started = time.monotonic()
        fetch_anvil(package, registry=registry, target=target)
        print(f"Fetched and compared with its SHA-512 in {time.monotonic() - started:.0f} s.", flush=True)
    except AnvilUnavailable as exc:
        print(f"error: {exc}", file=sys.stderr)
        raise typer.Exit(FAILED) from exc
