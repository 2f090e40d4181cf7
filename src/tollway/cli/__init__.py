"""The command line: a table of commands, and one module for each group of them. Importing this loads nothing (`cli/main.py`)."""

from tollway.cli.main import INTERRUPTED, main

__all__ = ["INTERRUPTED", "main"]
