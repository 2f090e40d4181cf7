"""Settlements that end without a payment: the time of an authorisation passes and it was never used."""

from tests.system.transcripts import adapter
from tests.system.transcripts.harness import Harness
from tests.system.transcripts.payer import DIALECTS, quote, show
from tests.system.transcripts.signing import Account

PROVIDER, ALICE = Account("provider"), Account("alice")
SETTINGS = adapter.GIVES_UP_SOON | {"TEST_LIMIT_SWEEP_INTERVAL_S": "0.2"}


def play(harness: Harness) -> None:
    node = harness.node
    for dialect in DIALECTS:
        api = harness.publish(PROVIDER, name=f"Never by {dialect}")
        with harness.section(f"{dialect}: never mined, and its time is over"):
            headers = show(harness, ALICE, quote(harness, api, "/echo"), dialect)
            node.is_mining = False
            harness.call("not mined", api, "/echo", headers, counts_rpc=False)
            harness.clock.advance(400)
            harness.wait_row("released")
            node.is_mining = True
            harness.note("the sweeper has looked twice")
            harness.call("again", api, "/echo", headers, counts_rpc=False)
            harness.control("its record", ALICE, "GET", "/history?limit=1", counts_rpc=False)
