"""Settlements that nothing has decided when the caller gets its answer, and how they end."""

from tests.transcripts import adapter
from tests.transcripts.payer import MPP, V2, quote, show
from tests.transcripts.signing import Account
from tests.transcripts.stage import Stage

PROVIDER, ALICE, BOB = Account("provider"), Account("alice"), Account("bob")
SETTINGS = adapter.GIVES_UP_SOON


def play(stage: Stage) -> None:
    for dialect in (V2, MPP):  # version 1 of x402 differs in what it reads and writes, and no more
        play_undecided(stage, dialect)


def play_undecided(stage: Stage, dialect: str) -> None:
    api, node = stage.publish(PROVIDER, name=f"Undecided by {dialect}"), stage.node
    with stage.scene(f"{dialect}: a settlement that is not mined in time"):
        headers = show(stage, ALICE, quote(stage, api, "/echo"), dialect)
        node.is_mining = False
        stage.call("not mined", api, "/echo", headers, counts_rpc=False)
        stage.call("again, not mined", api, "/echo", headers, counts_rpc=False)
        stage.call(
            "paid by another authorisation meanwhile",
            api,
            "/echo",
            show(stage, BOB, quote(stage, api), dialect),
            counts_rpc=False,
        )
        node.is_mining = True
        node.mine_all()
        stage.restart(until="consumed")
        stage.call("the stored answer", api, "/echo", headers)
        stage.control("its record", ALICE, "GET", "/history?limit=1")

    with stage.scene(f"{dialect}: a settlement that reverts"):
        headers = show(stage, ALICE, quote(stage, api, "/echo?r"), dialect)
        node.reverts = True
        stage.call("mined and failed", api, "/echo?r", headers, counts_rpc=False)
        node.reverts = False
        stage.call("again", api, "/echo?r", headers, counts_rpc=False)
        stage.restart(until="+ settlement")
        stage.restart(until="consumed")
        stage.call("again, carried by another transaction", api, "/echo?r", headers, counts_rpc=False)

    with stage.scene(f"{dialect}: a node that does not take the transaction"):
        headers = show(stage, BOB, quote(stage, api, "/echo?n"), dialect)
        node.refuses_sends = "internal error"
        stage.call("not taken", api, "/echo?n", headers, counts_rpc=False)
        node.refuses_sends = None
        stage.restart()
        stage.restart(until="consumed")
        stage.call("again", api, "/echo?n", headers, counts_rpc=False)
