"""Payments until they are final: how much may be spent before, and what becomes of calls whose payment leaves the chain."""

from tests.transcripts.payer import quote, show
from tests.transcripts.signing import Account, plain
from tests.transcripts.stage import Stage

PROVIDER = Account("provider")
PRICE = 10_000
SETTINGS = {"TOLLWAY_LIMIT_WATCH_INTERVAL_S": "0.2", "TOLLWAY_UNFINAL_SPEND_MAX": "USDC:0.1"}
COUNTS_RPC = False
"""The watcher asks the chain whenever it likes."""


def play(stage: Stage) -> None:
    stage.node.final_depth = 1_000
    play_unfinal(stage)
    play_reorganised(stage)


def pay(stage: Stage, calls: int, account: Account) -> list[tuple[str, str]]:
    return plain(account, stage.node.pay(account.address, PROVIDER.address, calls * PRICE))


def play_unfinal(stage: Stage) -> None:
    with stage.scene("more than one may spend before it is final"):
        rich = Account("hurried")
        api = stage.publish(PROVIDER, name="Dear", pricePerRequest="0.06")
        proof = pay(stage, 20, rich)
        stage.call("first", api, "/echo", proof)
        stage.call("second", api, "/echo", proof)
        stage.call("by an authorisation", api, "/echo", show(stage, rich, quote(stage, api), "x402 v2"))
        stage.restart(after_s=2_400, until="unfinal->final")
        stage.call("once it is final", api, "/echo", proof)


def play_reorganised(stage: Stage) -> None:
    payer = Account("reorganised")
    api = stage.publish(PROVIDER, name="Reorganised")
    with stage.scene("a payment that leaves the chain"):
        proof = pay(stage, 3, payer)
        tx = proof[0][1]
        stage.call("paid", api, "/echo", proof)
        stage.node.reorganise(tx)
        stage.restart(after_s=4, until="gone")
        stage.call("its credit", api, "/echo", proof)
        stage.control("the payment", payer, "GET", f"/payments/{tx}")
        stage.control("the call", payer, "GET", "/history?limit=1")
        stage.call(
            "by an authorisation, in debt", api, "/echo", show(stage, payer, quote(stage, api), "x402 v2")
        )
        other = pay(stage, 1, payer)
        stage.call("the next payment pays the debt", api, "/echo", other)
        more = pay(stage, 1, payer)
        stage.call("and one more", api, "/echo", more)
        stage.node.mine(tx)
        stage.restart(after_s=4, until="gone->unfinal")
        stage.call("mined again", api, "/echo", proof)
