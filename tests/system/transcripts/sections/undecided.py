"""Settlements that nothing has decided when the caller gets its answer, and how they end."""

from tests.system.transcripts import adapter
from tests.system.transcripts.harness import Harness
from tests.system.transcripts.payer import MPP, V2, quote, show
from tests.system.transcripts.signing import Account

PROVIDER, ALICE, BOB = Account("provider"), Account("alice"), Account("bob")
SETTINGS = adapter.GIVES_UP_SOON


def play(harness: Harness) -> None:
    for dialect in (V2, MPP):  # version 1 of x402 differs in what it reads and writes, and no more
        play_undecided(harness, dialect)


def play_undecided(harness: Harness, dialect: str) -> None:
    api, node = harness.publish(PROVIDER, name=f"Undecided by {dialect}"), harness.node
    with harness.section(f"{dialect}: a settlement that is not mined in time"):
        headers = show(harness, ALICE, quote(harness, api, "/echo"), dialect)
        node.is_mining = False
        harness.call("not mined", api, "/echo", headers, counts_rpc=False)
        harness.call("again, not mined", api, "/echo", headers, counts_rpc=False)
        harness.call(
            "paid by another authorisation meanwhile",
            api,
            "/echo",
            show(harness, BOB, quote(harness, api), dialect),
            counts_rpc=False,
        )
        node.is_mining = True
        node.mine_all()
        harness.restart(until="consumed")
        harness.call("the stored answer", api, "/echo", headers)
        harness.control("its record", ALICE, "GET", "/history?limit=1")

    with harness.section(f"{dialect}: a settlement that reverts"):
        headers = show(harness, ALICE, quote(harness, api, "/echo?r"), dialect)
        node.reverts = True
        harness.call("mined and failed", api, "/echo?r", headers, counts_rpc=False)
        node.reverts = False
        harness.call("again", api, "/echo?r", headers, counts_rpc=False)
        harness.restart(until="+ settlement")
        harness.restart(until="consumed")
        harness.call("again, carried by another transaction", api, "/echo?r", headers, counts_rpc=False)

    with harness.section(f"{dialect}: a node that does not take the transaction"):
        headers = show(harness, BOB, quote(harness, api, "/echo?n"), dialect)
        node.refuses_sends = "internal error"
        harness.call("not taken", api, "/echo?n", headers, counts_rpc=False)
        node.refuses_sends = None
        harness.restart()
        harness.restart(until="consumed")
        harness.call("again", api, "/echo?n", headers, counts_rpc=False)
