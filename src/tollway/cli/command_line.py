"""The whole command line: the commands of the operator, the trader and the visitor of the demo, put together."""

from tollway.cli import browse, demo, desktop, trade, verify
from tollway.cli.operator_line import app, wallet

__all__ = ["app"]

trade.register(app, wallet=wallet)
verify.register(app)
browse.register(app)
desktop.register(app)
demo.register(app)
