"""Commands of providers and callers."""

import typer


def register(app: typer.Typer, *, wallet: typer.Typer) -> None:
    """Adds the commands of providers and callers."""
