"""Limits, and what the operator and the chain take back: rates, budgets, blocked wallets, reorganisations, keys."""

from tests.system.transcripts.harness import API, Harness
from tests.system.transcripts.payer import DIALECTS, quote, show
from tests.system.transcripts.signing import Account, bound, keccak256, plain

PROVIDER, ALICE, BOB, CAROL, DAVE = (Account(name) for name in ("provider", "alice", "bob", "carol", "dave"))
PRICE = 10_000
SETTINGS = {
    "TOLLWAY_LIMIT_FREE_CALLS_PER_MINUTE": "3",
    "TOLLWAY_LIMIT_FAILED_CALLS_PER_WINDOW": "4",
    "TEST_LIMIT_FAILED_CALLS_WAIT_S": "0.1",
    "TOLLWAY_LIMIT_LOOKUPS_PER_MINUTE": "6",
    "TOLLWAY_LIMIT_REGISTRATIONS_PER_HOUR": "40",
    "TOLLWAY_LIMIT_EDITS_PER_HOUR": "4",
    "TOLLWAY_LIMIT_PAYMENT_AGE_S": "150",
    "TOLLWAY_LIMIT_NONCES_PER_MINUTE": "3",
    "TEST_LIMIT_OWNERSHIP_CHECKS_PER_HOUR": "2",
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ORIGIN_MAX": "1",
}


def play(harness: Harness) -> None:
    play_rates(harness)
    play_failures(harness)
    play_crowd(harness)
    play_operator(harness)
    play_age(harness)
    play_restored(harness)
    play_key(harness)


def pay(harness: Harness, calls: int, account: Account = ALICE) -> list[tuple[str, str]]:
    return plain(account, harness.node.pay(account.address, PROVIDER.address, calls * PRICE))


def play_rates(harness: Harness) -> None:
    with harness.section("rates"):
        free = harness.publish(PROVIDER, name="Free", pricePerRequest="0")
        for number in range(1, 5):
            harness.call(f"free {number}", free, "/echo")
        rated = harness.publish(PROVIDER, name="Rated", rateLimit={"calls": 2, "perSeconds": 60})
        proof = pay(harness, 5)
        for number in range(1, 4):
            harness.call(f"rated {number}", rated, "/echo", proof)
        harness.call(
            "rated, by an authorisation",
            rated,
            "/echo",
            show(harness, ALICE, quote(harness, rated), "x402 v2"),
        )
        harness.clock.advance(61)
        harness.call("a minute later", rated, "/echo", proof)
        for number in range(1, 9):
            junk = plain(BOB, "0x" + keccak256(b"junk %d" % number).hex())
            harness.call(f"look-up {number}", rated, "/echo", junk)
        for number in range(1, 5):
            harness.ask(f"nonce {number}", "POST", f"{API}/auth/nonce", [], b"", learns="nonce")
        draft = {
            "name": "Rated",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": harness.upstream.url,
        }
        for number in range(1, 6):
            harness.control(f"edit {number}", PROVIDER, "PUT", f"/apis/{rated}", draft)
        for number in range(1, 4):
            harness.control(f"ownership {number}", PROVIDER, "POST", f"/apis/{rated}/ownership")


def play_failures(harness: Harness) -> None:
    harness.clock.advance(61)
    with harness.section("the budget of failed calls"):
        api = harness.publish(PROVIDER, name="Failing")
        proof = pay(harness, 2)
        for number in range(1, 7):
            harness.call(f"{number}", api, "/status/500", proof)
        harness.call("an answer that would be good", api, "/echo", proof)
        harness.call("another payer at the same address", api, "/echo", pay(harness, 1, BOB))
        for dialect in DIALECTS:
            harness.call(f"{dialect}", api, "/echo", show(harness, CAROL, quote(harness, api), dialect))
        harness.clock.advance(601)
        harness.call("ten minutes later", api, "/echo", proof)


def play_crowd(harness: Harness) -> None:
    with harness.section("more calls than an upstream is given at once"):
        api = harness.publish(PROVIDER, name="Crowd")
        proof = pay(harness, 3)
        now_s = harness.clock.now_s
        first = harness.begin(
            "first",
            "GET",
            f"{API}/gateway/{api}/hold",
            bound(ALICE, proof[0][1], api, "/hold", now_s=now_s, label="crowd"),
        )
        harness.upstream.wait_arrival()
        harness.call(
            "second", api, "/echo", bound(ALICE, proof[0][1], api, "/echo", now_s=now_s, label="crowd 2")
        )
        harness.call(
            "by an authorisation", api, "/echo", show(harness, CAROL, quote(harness, api), "x402 v2")
        )
        harness.upstream.release()
        first.finish()
        harness.call(
            "afterwards", api, "/echo", bound(ALICE, proof[0][1], api, "/echo", now_s=now_s, label="crowd 3")
        )


def play_operator(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Moderated")
    proof = pay(harness, 4, DAVE)
    with harness.section("a wallet that the operator blocks"):
        harness.call("before", api, "/echo", proof)
        harness.operate("wallets", "block", DAVE.address)
        harness.restart()
        harness.call("blocked", api, "/echo", proof)
        for dialect in DIALECTS:
            harness.call(
                f"blocked, {dialect}", api, "/echo", show(harness, DAVE, quote(harness, api), dialect)
            )
        harness.control("its history", DAVE, "GET", "/history?limit=1")
        draft = {
            "name": "Blocked",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": harness.upstream.url,
        }
        harness.control("publishing", DAVE, "POST", "/apis", draft)
        harness.operate("wallets", "unblock", DAVE.address)
        harness.restart()
        harness.call("after", api, "/echo", proof)

    with harness.section("a listing that the operator suspends"):
        harness.operate("listings", "suspend", api)
        harness.restart()
        harness.call("unpaid", api, "/echo")
        harness.call("paid", api, "/echo", proof)
        harness.call("by an authorisation", api, "/echo", [("PAYMENT-SIGNATURE", "e30=")])
        harness.ask("read", "GET", f"{API}/apis/{api}")
        harness.ask("its documents", "GET", f"{API}/apis/{api}/agent")
        harness.control("changed by its provider", ALICE, "PUT", f"/apis/{api}", {})
        harness.operate("listings", "restore", api)
        harness.restart()
        harness.call("restored", api, "/echo", proof)


def play_age(harness: Harness) -> None:
    with harness.section("a payment shown too late"):
        api = harness.publish(PROVIDER, name="Late")
        late = pay(harness, 1, CAROL)
        for _ in range(4):  # less than a minute between two notes of readiness, else the time does not count
            harness.restart(after_s=50)
        harness.call("too late", api, "/echo", late)
        harness.operate("admit", late[0][1])
        harness.call("admitted by the operator", api, "/echo", late)


def play_restored(harness: Harness) -> None:
    with harness.section("a database that was restored"):
        api = harness.publish(PROVIDER, name="Restored")
        held, unseen = pay(harness, 3, DAVE), pay(harness, 3, DAVE)
        harness.call("before", api, "/echo", held)
        harness.operate("audit", "--restored")
        harness.restart()
        harness.call("credit of before", api, "/echo", held)
        harness.call("a payment of before that was not shown", api, "/echo", unseen)
        harness.control("its state", DAVE, "GET", f"/payments/{held[0][1]}")
        harness.call("a payment of after", api, "/echo", pay(harness, 1, DAVE))
        harness.operate("audit", "--release")
        harness.call("credit, released", api, "/echo", held)
        harness.operate("admit", unseen[0][1])
        harness.call("the other one, admitted", api, "/echo", unseen)


def play_key(harness: Harness) -> None:
    with harness.section("a secret that no key opens"):
        auth = {"in": "header", "name": "X-Key", "value": "secret"}
        api = harness.publish(PROVIDER, name="Sealed", upstreamAuth=auth)
        proof = pay(harness, 1, BOB)
        harness.set("TOLLWAY_SECRET_KEY", keccak256(b"another secret").hex())
        harness.restart()
        harness.call("unpaid", api, "/echo")
        harness.call("paid", api, "/echo", proof)
