"""A gateway that is killed (SIGKILL) at a point of a call, and the next one on the same database."""

from collections.abc import Callable

from tests.transcripts.payer import MPP, V2, quote, show
from tests.transcripts.signing import Account, plain
from tests.transcripts.stage import Headers, Pending, Stage, wait_for

PROVIDER, ALICE = Account("provider"), Account("alice")
PRICE = 10_000
DAY_S = 86_400
SETTINGS = {
    "TOLLWAY_LIMIT_RECOVERY_INTERVAL_S": "0.05",
    "TOLLWAY_LIMIT_SWEEP_INTERVAL_S": "0.1",
}
OUTLIVES = True
COUNTS_RPC = False
"""Those who look for calls left behind ask the chain whenever they like."""


def play(stage: Stage) -> None:
    for method, key in (("GET", ""), ("POST", ""), ("POST", "killed")):
        play_transaction(stage, method, key)
    for dialect in (V2, MPP):
        play_authorization(stage, dialect)
    play_free(stage)


def ask(stage: Stage, title: str, api: str, path: str, headers: Headers, method: str = "GET") -> Pending:
    body = b"body" if method == "POST" else b""
    return stage.begin(title, method, f"/api/v2/gateway/{api}{path}", headers, body)


def die(stage: Stage, pending: Pending, at: Callable[[], object]) -> None:
    """Kills once `at` has returned, and records what the caller has heard by then."""
    at()
    stage.kill()
    stage.upstream.release()
    pending.finish_lost()


def play_transaction(stage: Stage, method: str, key: str) -> None:
    api = stage.publish(PROVIDER, name=f"Killed {method} {key}")
    named = f"{method} {'with a key' if key else 'without a key'}"

    def proof(calls: int = 2) -> Headers:
        headers = plain(ALICE, stage.node.pay(ALICE.address, PROVIDER.address, calls * PRICE))
        return [*headers, *([("Idempotency-Key", f"{key} {stage.next_label()}")] if key else [])]

    def again(title: str, path: str, headers: Headers) -> None:
        body = b"body" if method == "POST" else b""
        stage.call(title, api, path, headers, method=method, body=body)

    with stage.scene(f"{named}: killed while the chain is asked"):
        headers, gate = proof(), stage.node.hold("eth_getTransactionReceipt")
        pending = ask(stage, "killed", api, "/echo?a", headers, method)
        die(stage, pending, lambda: wait_for(stage.node.held.is_set, what="the question"))
        gate.set()
        stage.revive()
        again("again", "/echo?a", headers)

    with stage.scene(f"{named}: killed between claim and head"):
        headers = proof()
        die(stage, ask(stage, "killed", api, "/hold?b", headers, method), stage.upstream.wait_arrival)
        stage.revive(until="unknown")
        stage.control("its record", ALICE, "GET", "/history?limit=1")
        stage.upstream.release_next()
        again("again", "/hold?b", headers)
        again("another call of the payment", "/echo?b", headers[:2])
        stage.upstream.holds_again()

    with stage.scene(f"{named}: killed in the middle of the body"):
        headers = proof()
        pending = ask(stage, "killed", api, "/half?c", headers, method)

        def reach() -> None:
            stage.upstream.wait_arrival()
            pending.connection.read_head()

        die(stage, pending, reach)
        stage.revive()
        stage.upstream.release_next()
        again("again", "/half?c", headers)
        stage.upstream.holds_again()

    if method == "POST" and not key:
        with stage.scene(f"{named}: killed, and a day goes by"):
            headers = proof(1)
            die(stage, ask(stage, "killed", api, "/hold?d", headers, method), stage.upstream.wait_arrival)
            stage.revive(until="unknown")
            again("held", "/echo?d", headers)
            stage.restart(after_s=DAY_S + 60, until="released")
            again("credit again", "/echo?d", headers)

        with stage.scene(f"{named}: killed, and the provider decides"):
            for outcome in ("released", "consumed"):
                headers = proof(1)
                die(stage, ask(stage, "killed", api, "/hold?e", headers, method), stage.upstream.wait_arrival)
                stage.revive(until="unknown")
                call = stage.control("its id", ALICE, "GET", "/history?limit=1", is_recorded=False).json[
                    "calls"
                ][0]["id"]
                path = f"/history/{call}/resolution"
                stage.control("by its payer", ALICE, "POST", path, {"outcome": outcome})
                stage.control("to nothing known", PROVIDER, "POST", path, {"outcome": "forgotten"})
                stage.control(f"{outcome} by the provider", PROVIDER, "POST", path, {"outcome": outcome})
                stage.control("twice", PROVIDER, "POST", path, {"outcome": outcome})
                again("afterwards", "/echo?e", headers)


def play_authorization(stage: Stage, dialect: str) -> None:
    api, node = stage.publish(PROVIDER, name=f"Killed {dialect}"), stage.node

    def sign(path: str) -> Headers:
        return show(stage, ALICE, quote(stage, api, path), dialect, valid_s=80_000)

    with stage.scene(f"{dialect}: killed between claim and head"):
        headers = sign("/hold?a")
        die(stage, ask(stage, "killed", api, "/hold?a", headers), stage.upstream.wait_arrival)
        stage.revive(until="unknown")
        stage.upstream.release_next()
        stage.call("again", api, "/hold?a", headers)
        stage.upstream.holds_again()

    with stage.scene(f"{dialect}: killed with a transaction signed and not sent"):
        headers, gate = sign("/echo?b"), node.hold("eth_sendRawTransaction")
        node.loses_held = True
        pending = ask(stage, "killed", api, "/echo?b", headers)
        die(stage, pending, lambda: wait_for(node.held.is_set, what="the transaction"))
        gate.set()
        stage.revive(until="adrift=yes")
        stage.call("again", api, "/echo?b", headers)
        node.loses_held = False
        stage.wait_row("consumed")
        stage.note("a node takes the transaction at last")
        stage.call("later", api, "/echo?b", headers, delivers=True)

    with stage.scene(f"{dialect}: killed with a transaction sent and not mined"):
        headers = sign("/echo?c")
        node.is_mining = False
        pending = ask(stage, "killed", api, "/echo?c", headers)
        die(stage, pending, lambda: wait_for(lambda: bool(node.pooled), what="the transaction"))
        node.mine_all()
        node.is_mining = True
        stage.revive(until="consumed")
        stage.call("again", api, "/echo?c", headers, delivers=True)


def play_free(stage: Stage) -> None:
    api = stage.publish(PROVIDER, name="Killed free", pricePerRequest="0")
    with stage.scene("free: killed between claim and head"):
        die(stage, ask(stage, "killed", api, "/hold?f", []), stage.upstream.wait_arrival)
        stage.revive(until="unknown")
        stage.call("again", api, "/echo?f")
