"""The whole command line: the commands of the operator, the trader and the visitor of the demo, put together."""

import typer

from tollway.cli import backups, demo, operate, trade

app = typer.Typer(name="tollway", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
wallet = typer.Typer(no_args_is_help=True, help="Wallets: new, block, unblock.")
listing = typer.Typer(no_args_is_help=True, help="Moderate listings: suspend, restore.")
app.add_typer(wallet, name="wallet")
app.add_typer(listing, name="listing")
operate.register(app, wallet=wallet, listing=listing)
backups.register(app)
trade.register(app, wallet=wallet)
demo.register(app)
