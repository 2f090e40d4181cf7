"""A gateway that serves only listings whose provider has proved to own their origin, and that lets few wallets publish."""

from tests.system.transcripts.harness import API, Harness
from tests.system.transcripts.payer import DIALECTS, quote, show
from tests.system.transcripts.signing import Account, plain

PROVIDER, OTHER, STRANGER, ALICE = (Account(name) for name in ("provider", "other", "stranger", "alice"))
PRICE = 10_000
SETTINGS = {
    "TOLLWAY_REQUIRE_OWNERSHIP": "true",
    "TOLLWAY_REGISTRATION": "allowlist",
    "TOLLWAY_ALLOWLIST": f"{PROVIDER.address},{OTHER.address}",
    "TOLLWAY_REQUIRE_BOUND_SIGNATURE": "true",
}


def play(harness: Harness) -> None:
    with harness.section("an origin that nobody has proved"):
        draft = {
            "name": "Stranger",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": harness.upstream.url,
        }
        harness.control("a wallet that may not publish", STRANGER, "POST", "/apis", draft)
        api = harness.publish(PROVIDER, name="Mine")
        theirs = harness.publish(OTHER, name="Theirs")
        proof = plain(ALICE, harness.node.pay(ALICE.address, PROVIDER.address, 3 * PRICE))
        harness.call("unpaid", api, "/echo")
        harness.call("paid", api, "/echo", proof)
        harness.ask("read", "GET", f"{API}/apis/{api}")
        harness.ask("listed", "GET", f"{API}/apis")

    with harness.section("proved"):
        asked = harness.ask("what to do", "GET", f"{API}/apis/{api}/ownership")
        line = asked.json["challenge"]["wellKnown"]["content"]
        harness.recorder.learn("ownership", line.partition("=")[2])
        harness.upstream.files["/.well-known/tollway-verification"] = ("text/plain", line.encode())
        harness.control("proved", PROVIDER, "POST", f"/apis/{api}/ownership")
        harness.call("unpaid", api, "/echo")
        harness.call("paid, in the plain form", api, "/echo", proof)
        for dialect in DIALECTS:
            harness.call(dialect, api, "/echo", show(harness, ALICE, quote(harness, api), dialect))
        harness.call("of the other wallet", theirs, "/echo")
        harness.control("the other wallet proves it", OTHER, "POST", f"/apis/{theirs}/ownership")
        harness.control("published by the other wallet", OTHER, "POST", "/apis", {**draft, "name": "Late"})
        harness.ask("listed", "GET", f"{API}/apis")
