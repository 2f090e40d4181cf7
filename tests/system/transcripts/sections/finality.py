"""Payments until they are final: how much may be spent before, and what becomes of calls whose payment leaves the chain."""

from tests.system.transcripts.harness import Harness
from tests.system.transcripts.payer import quote, show
from tests.system.transcripts.signing import Account, plain

PROVIDER = Account("provider")
PRICE = 10_000
SETTINGS = {"TEST_LIMIT_WATCH_INTERVAL_S": "0.2", "TOLLWAY_UNFINAL_SPEND_MAX": "USDC:0.1"}
COUNTS_RPC = False
"""The watcher asks the chain whenever it likes."""


def play(harness: Harness) -> None:
    harness.node.final_depth = 1_000
    play_unfinal(harness)
    play_reorganised(harness)


def pay(harness: Harness, calls: int, account: Account) -> list[tuple[str, str]]:
    return plain(account, harness.node.pay(account.address, PROVIDER.address, calls * PRICE))


def play_unfinal(harness: Harness) -> None:
    with harness.section("more than one may spend before it is final"):
        rich = Account("hurried")
        api = harness.publish(PROVIDER, name="Dear", pricePerRequest="0.06")
        proof = pay(harness, 20, rich)
        harness.call("first", api, "/echo", proof)
        harness.call("second", api, "/echo", proof)
        harness.call("by an authorisation", api, "/echo", show(harness, rich, quote(harness, api), "x402 v2"))
        harness.restart(after_s=2_400, until="unfinal->final")
        harness.call("once it is final", api, "/echo", proof)


def play_reorganised(harness: Harness) -> None:
    payer = Account("reorganised")
    api = harness.publish(PROVIDER, name="Reorganised")
    with harness.section("a payment that leaves the chain"):
        proof = pay(harness, 3, payer)
        tx = proof[0][1]
        harness.call("paid", api, "/echo", proof)
        harness.node.reorganise(tx)
        harness.restart(after_s=4, until="consumed->reorged")
        harness.call("its credit", api, "/echo", proof)
        harness.control("the payment", payer, "GET", f"/payments/{tx}")
        harness.control("the call", payer, "GET", "/history?limit=1")
        harness.call(
            "by an authorisation, in debt", api, "/echo", show(harness, payer, quote(harness, api), "x402 v2")
        )
        other = pay(harness, 1, payer)
        harness.call("the next payment pays the debt", api, "/echo", other)
        more = pay(harness, 1, payer)
        harness.call("and one more", api, "/echo", more)
        harness.node.mine(tx)
        harness.restart(after_s=4, until="gone->unfinal")
        harness.call("mined again", api, "/echo", proof)
