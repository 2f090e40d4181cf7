"""`tollway demo`: the whole thing, running."""

import typer


def register(app: typer.Typer) -> None:
    """Adds `tollway demo`."""
