"""A gateway that is killed (SIGKILL) at a point of a call, and the next one on the same database."""

from collections.abc import Callable

from tests.system.transcripts.harness import Harness, Headers, Pending, wait_for
from tests.system.transcripts.payer import MPP, V2, quote, show
from tests.system.transcripts.signing import Account, plain

PROVIDER, ALICE = Account("provider"), Account("alice")
PRICE = 10_000
DAY_S = 86_400
SETTINGS = {
    "TEST_LIMIT_RECOVERY_INTERVAL_S": "0.05",
    "TEST_LIMIT_SWEEP_INTERVAL_S": "0.1",
}
OUTLIVES = True
COUNTS_RPC = False
"""Those who look for calls left behind ask the chain whenever they like."""


def play(harness: Harness) -> None:
    for method, key in (("GET", ""), ("POST", ""), ("POST", "killed")):
        play_transaction(harness, method, key)
    for dialect in (V2, MPP):
        play_authorization(harness, dialect)
    play_free(harness)


def ask(harness: Harness, title: str, api: str, path: str, headers: Headers, method: str = "GET") -> Pending:
    body = b"body" if method == "POST" else b""
    return harness.begin(title, method, f"/api/v2/gateway/{api}{path}", headers, body)


def die(harness: Harness, pending: Pending, at: Callable[[], object]) -> None:
    """Kills once `at` has returned, and records what the caller has heard by then."""
    at()
    harness.kill()
    harness.upstream.release()
    pending.finish_lost()


def play_transaction(harness: Harness, method: str, key: str) -> None:
    api = harness.publish(PROVIDER, name=f"Killed {method} {key}")
    named = f"{method} {'with a key' if key else 'without a key'}"

    def proof(calls: int = 2) -> Headers:
        headers = plain(ALICE, harness.node.pay(ALICE.address, PROVIDER.address, calls * PRICE))
        return [*headers, *([("Idempotency-Key", f"{key} {harness.next_label()}")] if key else [])]

    def again(title: str, path: str, headers: Headers) -> None:
        body = b"body" if method == "POST" else b""
        harness.call(title, api, path, headers, method=method, body=body)

    with harness.section(f"{named}: killed while the chain is asked"):
        headers, gate = proof(), harness.node.hold("eth_getTransactionReceipt")
        pending = ask(harness, "killed", api, "/echo?a", headers, method)
        die(harness, pending, lambda: wait_for(harness.node.held.is_set, what="the question"))
        gate.set()
        harness.revive()
        again("again", "/echo?a", headers)

    with harness.section(f"{named}: killed between claim and head"):
        headers = proof()
        die(harness, ask(harness, "killed", api, "/hold?b", headers, method), harness.upstream.wait_arrival)
        harness.revive(until="unknown")
        harness.control("its record", ALICE, "GET", "/history?limit=1")
        harness.upstream.release_next()
        again("again", "/hold?b", headers)
        again("another call of the payment", "/echo?b", headers[:2])
        harness.upstream.holds_again()

    with harness.section(f"{named}: killed in the middle of the body"):
        headers = proof()
        pending = ask(harness, "killed", api, "/half?c", headers, method)

        def reach() -> None:
            harness.upstream.wait_arrival()
            pending.connection.read_head()

        die(harness, pending, reach)
        harness.revive()
        harness.upstream.release_next()
        again("again", "/half?c", headers)
        harness.upstream.holds_again()

    if method == "POST" and not key:
        with harness.section(f"{named}: killed, and a day goes by"):
            headers = proof(1)
            die(
                harness,
                ask(harness, "killed", api, "/hold?d", headers, method),
                harness.upstream.wait_arrival,
            )
            harness.revive(until="unknown")
            again("held", "/echo?d", headers)
            harness.restart(after_s=DAY_S + 60, until="released")
            again("credit again", "/echo?d", headers)

        with harness.section(f"{named}: killed, and the provider decides"):
            for outcome in ("released", "consumed"):
                headers = proof(1)
                die(
                    harness,
                    ask(harness, "killed", api, "/hold?e", headers, method),
                    harness.upstream.wait_arrival,
                )
                harness.revive(until="unknown")
                call = harness.control("its id", ALICE, "GET", "/history?limit=1", is_recorded=False).json[
                    "calls"
                ][0]["id"]
                path = f"/history/{call}/resolution"
                harness.control("by its payer", ALICE, "POST", path, {"outcome": outcome})
                harness.control("to nothing known", PROVIDER, "POST", path, {"outcome": "forgotten"})
                harness.control(f"{outcome} by the provider", PROVIDER, "POST", path, {"outcome": outcome})
                harness.control("twice", PROVIDER, "POST", path, {"outcome": outcome})
                again("afterwards", "/echo?e", headers)


def play_authorization(harness: Harness, dialect: str) -> None:
    api, node = harness.publish(PROVIDER, name=f"Killed {dialect}"), harness.node

    def sign(path: str) -> Headers:
        return show(harness, ALICE, quote(harness, api, path), dialect, valid_s=80_000)

    with harness.section(f"{dialect}: killed between claim and head"):
        headers = sign("/hold?a")
        die(harness, ask(harness, "killed", api, "/hold?a", headers), harness.upstream.wait_arrival)
        harness.revive(until="unknown")
        harness.upstream.release_next()
        harness.call("again", api, "/hold?a", headers)
        harness.upstream.holds_again()

    with harness.section(f"{dialect}: killed with a transaction signed and not sent"):
        headers, gate = sign("/echo?b"), node.hold("eth_sendRawTransaction")
        node.loses_held = True
        pending = ask(harness, "killed", api, "/echo?b", headers)
        die(harness, pending, lambda: wait_for(node.held.is_set, what="the transaction"))
        gate.set()
        harness.revive(until="adrift=yes")
        harness.call("again", api, "/echo?b", headers)
        node.loses_held = False
        harness.wait_row("consumed")
        harness.note("a node takes the transaction at last")
        harness.call("later", api, "/echo?b", headers, delivers=True)

    with harness.section(f"{dialect}: killed with a transaction sent and not mined"):
        headers = sign("/echo?c")
        node.is_mining = False
        pending = ask(harness, "killed", api, "/echo?c", headers)
        die(harness, pending, lambda: wait_for(lambda: bool(node.pooled), what="the transaction"))
        node.mine_all()
        node.is_mining = True
        harness.revive(until="consumed")
        harness.call("again", api, "/echo?c", headers, delivers=True)


def play_free(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Killed free", pricePerRequest="0")
    with harness.section("free: killed between claim and head"):
        die(harness, ask(harness, "killed", api, "/hold?f", []), harness.upstream.wait_arrival)
        harness.revive(until="unknown")
        harness.call("again", api, "/echo?f")
