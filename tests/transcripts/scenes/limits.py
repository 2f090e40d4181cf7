"""Limits, and what the operator and the chain take back: rates, budgets, blocked wallets, reorganisations, keys."""

from tests.transcripts.payer import DIALECTS, quote, show
from tests.transcripts.signing import Account, bound, keccak256, plain
from tests.transcripts.stage import API, Stage

PROVIDER, ALICE, BOB, CAROL, DAVE = (Account(name) for name in ("provider", "alice", "bob", "carol", "dave"))
PRICE = 10_000
SETTINGS = {
    "TOLLWAY_LIMIT_FREE_CALLS_PER_MINUTE": "3",
    "TOLLWAY_LIMIT_FAILED_CALLS_PER_WINDOW": "4",
    "TOLLWAY_LIMIT_FAILED_CALLS_WAIT_S": "0.1",
    "TOLLWAY_LIMIT_LOOKUPS_PER_MINUTE": "6",
    "TOLLWAY_LIMIT_REGISTRATIONS_PER_HOUR": "40",
    "TOLLWAY_LIMIT_EDITS_PER_HOUR": "4",
    "TOLLWAY_LIMIT_PAYMENT_AGE_S": "150",
    "TOLLWAY_LIMIT_NONCES_PER_MINUTE": "3",
    "TOLLWAY_LIMIT_OWNERSHIP_CHECKS_PER_HOUR": "2",
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ORIGIN_MAX": "1",
}


def play(stage: Stage) -> None:
    play_rates(stage)
    play_failures(stage)
    play_crowd(stage)
    play_operator(stage)
    play_age(stage)
    play_restored(stage)
    play_key(stage)


def pay(stage: Stage, calls: int, account: Account = ALICE) -> list[tuple[str, str]]:
    return plain(account, stage.node.pay(account.address, PROVIDER.address, calls * PRICE))


def play_rates(stage: Stage) -> None:
    with stage.scene("rates"):
        free = stage.publish(PROVIDER, name="Free", pricePerRequest="0")
        for number in range(1, 5):
            stage.call(f"free {number}", free, "/echo")
        rated = stage.publish(PROVIDER, name="Rated", rateLimit={"calls": 2, "perSeconds": 60})
        proof = pay(stage, 5)
        for number in range(1, 4):
            stage.call(f"rated {number}", rated, "/echo", proof)
        stage.call(
            "rated, by an authorisation", rated, "/echo", show(stage, ALICE, quote(stage, rated), "x402 v2")
        )
        stage.clock.advance(61)
        stage.call("a minute later", rated, "/echo", proof)
        for number in range(1, 9):
            junk = plain(BOB, "0x" + keccak256(b"junk %d" % number).hex())
            stage.call(f"look-up {number}", rated, "/echo", junk)
        for number in range(1, 5):
            stage.ask(f"nonce {number}", "POST", f"{API}/auth/nonce", [], b"", learns="nonce")
        draft = {
            "name": "Rated",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": stage.upstream.url,
        }
        for number in range(1, 6):
            stage.control(f"edit {number}", PROVIDER, "PUT", f"/apis/{rated}", draft)
        for number in range(1, 4):
            stage.control(f"ownership {number}", PROVIDER, "POST", f"/apis/{rated}/ownership")


def play_failures(stage: Stage) -> None:
    stage.clock.advance(61)
    with stage.scene("the budget of failed calls"):
        api = stage.publish(PROVIDER, name="Failing")
        proof = pay(stage, 2)
        for number in range(1, 7):
            stage.call(f"{number}", api, "/status/500", proof)
        stage.call("an answer that would be good", api, "/echo", proof)
        stage.call("another payer at the same address", api, "/echo", pay(stage, 1, BOB))
        for dialect in DIALECTS:
            stage.call(f"{dialect}", api, "/echo", show(stage, CAROL, quote(stage, api), dialect))
        stage.clock.advance(601)
        stage.call("ten minutes later", api, "/echo", proof)


def play_crowd(stage: Stage) -> None:
    with stage.scene("more calls than an upstream is given at once"):
        api = stage.publish(PROVIDER, name="Crowd")
        proof = pay(stage, 3)
        now_s = stage.clock.now_s
        first = stage.begin(
            "first",
            "GET",
            f"{API}/gateway/{api}/hold",
            bound(ALICE, proof[0][1], api, "/hold", now_s=now_s, label="crowd"),
        )
        stage.upstream.wait_arrival()
        stage.call(
            "second", api, "/echo", bound(ALICE, proof[0][1], api, "/echo", now_s=now_s, label="crowd 2")
        )
        stage.call("by an authorisation", api, "/echo", show(stage, CAROL, quote(stage, api), "x402 v2"))
        stage.upstream.release()
        first.finish()
        stage.call(
            "afterwards", api, "/echo", bound(ALICE, proof[0][1], api, "/echo", now_s=now_s, label="crowd 3")
        )


def play_operator(stage: Stage) -> None:
    api = stage.publish(PROVIDER, name="Moderated")
    proof = pay(stage, 4, DAVE)
    with stage.scene("a wallet that the operator blocks"):
        stage.call("before", api, "/echo", proof)
        stage.operate("wallet", "block", DAVE.address)
        stage.restart()
        stage.call("blocked", api, "/echo", proof)
        for dialect in DIALECTS:
            stage.call(f"blocked, {dialect}", api, "/echo", show(stage, DAVE, quote(stage, api), dialect))
        stage.control("its history", DAVE, "GET", "/history?limit=1")
        draft = {
            "name": "Blocked",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": stage.upstream.url,
        }
        stage.control("publishing", DAVE, "POST", "/apis", draft)
        stage.operate("wallet", "unblock", DAVE.address)
        stage.restart()
        stage.call("after", api, "/echo", proof)

    with stage.scene("a listing that the operator suspends"):
        stage.operate("listing", "suspend", api)
        stage.restart()
        stage.call("unpaid", api, "/echo")
        stage.call("paid", api, "/echo", proof)
        stage.call("by an authorisation", api, "/echo", [("PAYMENT-SIGNATURE", "e30=")])
        stage.ask("read", "GET", f"{API}/apis/{api}")
        stage.ask("its documents", "GET", f"{API}/apis/{api}/agent")
        stage.control("changed by its provider", ALICE, "PUT", f"/apis/{api}", {})
        stage.operate("listing", "restore", api)
        stage.restart()
        stage.call("restored", api, "/echo", proof)


def play_age(stage: Stage) -> None:
    with stage.scene("a payment shown too late"):
        api = stage.publish(PROVIDER, name="Late")
        late = pay(stage, 1, CAROL)
        for _ in range(4):  # less than a minute between two notes of readiness, else the time does not count
            stage.restart(after_s=50)
        stage.call("too late", api, "/echo", late)
        stage.operate("admit", late[0][1])
        stage.call("admitted by the operator", api, "/echo", late)


def play_restored(stage: Stage) -> None:
    with stage.scene("a database that was restored"):
        api = stage.publish(PROVIDER, name="Restored")
        held, unseen = pay(stage, 3, DAVE), pay(stage, 3, DAVE)
        stage.call("before", api, "/echo", held)
        stage.operate("audit", "--restored")
        stage.restart()
        stage.call("credit of before", api, "/echo", held)
        stage.call("a payment of before that was not shown", api, "/echo", unseen)
        stage.control("its state", DAVE, "GET", f"/payments/{held[0][1]}")
        stage.call("a payment of after", api, "/echo", pay(stage, 1, DAVE))
        stage.operate("audit", "--release")
        stage.call("credit, released", api, "/echo", held)
        stage.operate("admit", unseen[0][1])
        stage.call("the other one, admitted", api, "/echo", unseen)


def play_key(stage: Stage) -> None:
    with stage.scene("a secret that no key opens"):
        auth = {"in": "header", "name": "X-Key", "value": "secret"}
        api = stage.publish(PROVIDER, name="Sealed", upstreamAuth=auth)
        proof = pay(stage, 1, BOB)
        stage.set("TOLLWAY_SECRET_KEY", keccak256(b"another secret").hex())
        stage.restart()
        stage.call("unpaid", api, "/echo")
        stage.call("paid", api, "/echo", proof)
