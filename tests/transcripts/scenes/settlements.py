"""Settlements that end without a payment: the time of an authorisation passes and it was never used."""

from tests.transcripts import adapter
from tests.transcripts.payer import DIALECTS, quote, show
from tests.transcripts.signing import Account
from tests.transcripts.stage import Stage

PROVIDER, ALICE = Account("provider"), Account("alice")
SETTINGS = adapter.GIVES_UP_SOON | {"TOLLWAY_LIMIT_SWEEP_INTERVAL_S": "0.2"}


def play(stage: Stage) -> None:
    node = stage.node
    for dialect in DIALECTS:
        api = stage.publish(PROVIDER, name=f"Never by {dialect}")
        with stage.scene(f"{dialect}: never mined, and its time is over"):
            headers = show(stage, ALICE, quote(stage, api, "/echo"), dialect)
            node.is_mining = False
            stage.call("not mined", api, "/echo", headers, counts_rpc=False)
            stage.clock.advance(400)
            stage.wait_row("released")
            node.is_mining = True
            stage.note("the sweeper has looked twice")
            stage.call("again", api, "/echo", headers, counts_rpc=False)
            stage.control("its record", ALICE, "GET", "/history?limit=1", counts_rpc=False)
