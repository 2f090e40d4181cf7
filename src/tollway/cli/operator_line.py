"""The operator's commands as a command line. `tollway serve` is run from it alone: a gateway does not wait for what the
trader's commands and the demo load, nor keep it in memory.
"""

import typer

from tollway.cli import backups, key_change, operate

app = typer.Typer(name="tollway", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
wallet = typer.Typer(no_args_is_help=True, help="Wallets: new, block, unblock.")
listing = typer.Typer(no_args_is_help=True, help="Moderate listings: suspend, restore.")
secrets = typer.Typer(no_args_is_help=True, help="A change of secret_key: status, reseal.")
app.add_typer(wallet, name="wallet")
app.add_typer(listing, name="listing")
app.add_typer(secrets, name="secrets")
operate.register(app, wallet=wallet, listing=listing)
backups.register(app)
key_change.register(secrets)
