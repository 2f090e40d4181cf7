"""A gateway that serves only listings whose provider has proved to own their origin, and that lets few wallets publish."""

from tests.transcripts.payer import DIALECTS, quote, show
from tests.transcripts.signing import Account, plain
from tests.transcripts.stage import API, Stage

PROVIDER, OTHER, STRANGER, ALICE = (Account(name) for name in ("provider", "other", "stranger", "alice"))
PRICE = 10_000
SETTINGS = {
    "TOLLWAY_REQUIRE_OWNERSHIP": "true",
    "TOLLWAY_REGISTRATION": "allowlist",
    "TOLLWAY_ALLOWLIST": f"{PROVIDER.address},{OTHER.address}",
    "TOLLWAY_REQUIRE_BOUND_SIGNATURE": "true",
}


def play(stage: Stage) -> None:
    with stage.scene("an origin that nobody has proved"):
        draft = {
            "name": "Stranger",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": stage.upstream.url,
        }
        stage.control("a wallet that may not publish", STRANGER, "POST", "/apis", draft)
        api = stage.publish(PROVIDER, name="Mine")
        theirs = stage.publish(OTHER, name="Theirs")
        proof = plain(ALICE, stage.node.pay(ALICE.address, PROVIDER.address, 3 * PRICE))
        stage.call("unpaid", api, "/echo")
        stage.call("paid", api, "/echo", proof)
        stage.ask("read", "GET", f"{API}/apis/{api}")
        stage.ask("listed", "GET", f"{API}/apis")

    with stage.scene("proved"):
        asked = stage.ask("what to do", "GET", f"{API}/apis/{api}/ownership")
        line = asked.json["challenge"]["wellKnown"]["content"]
        stage.recorder.learn("ownership", line.partition("=")[2])
        stage.upstream.files["/.well-known/tollway-verification"] = ("text/plain", line.encode())
        stage.control("proved", PROVIDER, "POST", f"/apis/{api}/ownership")
        stage.call("unpaid", api, "/echo")
        stage.call("paid, in the plain form", api, "/echo", proof)
        for dialect in DIALECTS:
            stage.call(dialect, api, "/echo", show(stage, ALICE, quote(stage, api), dialect))
        stage.call("of the other wallet", theirs, "/echo")
        stage.control("the other wallet proves it", OTHER, "POST", f"/apis/{theirs}/ownership")
        stage.control("published by the other wallet", OTHER, "POST", "/apis", {**draft, "name": "Late"})
        stage.ask("listed", "GET", f"{API}/apis")
