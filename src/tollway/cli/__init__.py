"""The command line: one module for each group of commands. Importing this loads nothing (`cli/main.py`)."""

from tollway.cli.main import INTERRUPTED, main

__all__ = ["INTERRUPTED", "main"]
