"""`tollway mcp` as a command line of its own: a program that starts it waits for its tools, and not for what the operator's
commands and the demo load.
"""

import typer

from tollway.cli import desktop

app = typer.Typer(name="tollway", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


@app.callback()
def tollway() -> None:
    """With one command alone there would be no word for it."""


desktop.register(app)
