"""Commands of the operator."""

import typer


def register(app: typer.Typer, *, wallet: typer.Typer, listing: typer.Typer) -> None:
    """Adds the operator's commands."""
