"""The command line. Each module registers the commands of one kind of person: the operator, the trader, the visitor
of the demo. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 try again later.
"""

import typer

from tollway.cli import demo, operate, trade

app = typer.Typer(name="tollway", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
wallet = typer.Typer(no_args_is_help=True, help="Wallets: new, block, unblock.")
listing = typer.Typer(no_args_is_help=True, help="Moderate listings: suspend, restore.")
app.add_typer(wallet, name="wallet")
app.add_typer(listing, name="listing")
operate.register(app, wallet=wallet, listing=listing)
trade.register(app, wallet=wallet)
demo.register(app)


def main() -> None:
    """The entry point of the `tollway` command."""
    app()
