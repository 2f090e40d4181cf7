"""The same request again: idempotency keys, stored answers, calls in flight, and callers that leave."""

from tests.system.transcripts.harness import Harness, Headers, wait_for
from tests.system.transcripts.payer import DIALECTS, quote, show
from tests.system.transcripts.signing import Account, bound, plain

PROVIDER, ALICE, BOB = Account("provider"), Account("alice"), Account("bob")
PRICE = 10_000


def play(harness: Harness) -> None:
    play_keys(harness)
    play_cut(harness)
    play_running(harness)
    play_closed(harness)
    for dialect in DIALECTS:
        play_authorized(harness, dialect)


def pay(harness: Harness, calls: int, account: Account = ALICE) -> str:
    return harness.node.pay(account.address, PROVIDER.address, calls * PRICE)


def keyed(headers: Headers, key: str) -> Headers:
    return [*headers, ("Idempotency-Key", key)]


def play_keys(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Keys")
    with harness.section("an idempotency key"):
        proof = plain(ALICE, pay(harness, 20))
        harness.call("first", api, "/echo?x=1", keyed(proof, "one"))
        harness.call("again", api, "/echo?x=1", keyed(proof, "one"))
        harness.call("again, in quotes", api, "/echo?x=1", keyed(proof, '"one"'))
        harness.call("another query", api, "/echo?x=2", keyed(proof, "one"))
        harness.call("another method", api, "/echo?x=1", keyed(proof, "one"), method="DELETE")
        harness.call("HEAD", api, "/echo?x=1", keyed(proof, "one"), method="HEAD")
        harness.call("another key", api, "/echo?x=1", keyed(proof, "two"))
        harness.call(
            "another payment of the wallet", api, "/echo?x=1", keyed(plain(ALICE, pay(harness, 1)), "one")
        )
        harness.call("another wallet", api, "/echo?x=1", keyed(plain(BOB, pay(harness, 1, BOB)), "one"))
        harness.call("without a payment", api, "/echo?x=1", keyed([], "one"))
        harness.call("POST", api, "/echo", keyed(proof, "post"), method="POST", body=b"body")
        harness.call("POST again", api, "/echo", keyed(proof, "post"), method="POST", body=b"body")
        harness.call("POST of another body", api, "/echo", keyed(proof, "post"), method="POST", body=b"else")
        signed = bound(ALICE, proof[0][1], api, "/echo", now_s=harness.clock.now_s, label="keyed")
        harness.call("bound", api, "/echo", keyed(signed, "bound"))
        harness.call("bound again", api, "/echo", keyed(signed, "bound"))
        anew = bound(ALICE, proof[0][1], api, "/echo", now_s=harness.clock.now_s, label="keyed anew")
        harness.call("bound anew", api, "/echo", keyed(anew, "bound"))

    with harness.section("answers that are not stored"):
        proof = plain(ALICE, pay(harness, 20))
        strict = bound(ALICE, proof[0][1], api, "/big", now_s=harness.clock.now_s, label="big")
        harness.call("too big", api, "/big", keyed(strict, "big"))
        strict = bound(ALICE, proof[0][1], api, "/big", now_s=harness.clock.now_s, label="big again")
        harness.call("too big, again", api, "/big", keyed(strict, "big"))
        for path in ("/status/500", "/status/404", "/empty", "/headers"):
            for title in ("first", "again"):
                once = bound(
                    ALICE, proof[0][1], api, path, now_s=harness.clock.now_s, label=harness.next_label()
                )
                harness.call(f"{path} {title}", api, path, keyed(once, path))

    with harness.section("a day later"):
        proof = plain(BOB, pay(harness, 2, BOB))
        harness.call("first", api, "/echo", keyed(proof, "day"))
        harness.restart(after_s=86_400 - 60)
        harness.call("just before", api, "/echo", keyed(proof, "day"))
        harness.restart(after_s=120)
        harness.call("after", api, "/echo", keyed(proof, "day"))


def play_cut(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Cut")
    with harness.section("a body that the upstream cuts"):
        proof = plain(ALICE, pay(harness, 5))
        harness.call("cut", api, "/cut", proof)
        harness.call("one repeat", api, "/cut", proof)
        harness.call("a second repeat", api, "/cut", proof)
        harness.call("POST", api, "/cut?post", proof, method="POST", body=b"x")
        harness.call("POST again", api, "/cut?post", proof, method="POST", body=b"x")

    with harness.section("no head within the listing's time"):
        slow = harness.publish(PROVIDER, name="Slow", timeoutSeconds=1)
        proof = plain(ALICE, pay(harness, 4))
        harness.call("GET", slow, "/never", proof)
        harness.call("GET again", slow, "/never", proof)
        harness.call("GET a third time", slow, "/never", proof)
        harness.call("GET a fourth time", slow, "/never", proof)
        harness.call("POST", slow, "/never", proof, method="POST", body=b"x")
        harness.call("POST again", slow, "/never", proof, method="POST", body=b"x")
        harness.restart(after_s=86_400 + 60)
        harness.call("a day later its value is credit again", api, "/echo", proof)

    with harness.section("a connection that ends without a head"):
        proof = plain(ALICE, pay(harness, 4))
        harness.call("GET", api, "/close", proof)
        harness.call("again", api, "/close", proof)
        harness.call("no HTTP", api, "/bad", proof)


def play_running(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Running")
    with harness.section("the same request while the first one runs"):
        tx = pay(harness, 4)
        signed = bound(ALICE, tx, api, "/hold", now_s=harness.clock.now_s, label="running")
        first = harness.begin("first", "GET", f"/api/v2/gateway/{api}/hold", keyed(signed, "run"))
        harness.upstream.wait_arrival()
        harness.call("second", api, "/hold", keyed(signed, "run"))
        anew = bound(ALICE, tx, api, "/hold", now_s=harness.clock.now_s, label="running anew")
        harness.call("second, signed anew", api, "/hold", keyed(anew, "run"))
        harness.call("without its key", api, "/hold", signed)
        other = bound(ALICE, tx, api, "/echo", now_s=harness.clock.now_s, label="running other")
        harness.call("the key of another request", api, "/echo", keyed(other, "run"))
        harness.control("its record", ALICE, "GET", "/history")
        harness.upstream.release()
        first.finish()
        harness.call("afterwards", api, "/hold", keyed(signed, "run"))

    with harness.section("all of a payment held by a call that runs"):
        proof = plain(ALICE, pay(harness, 1))
        first = harness.begin("first", "GET", f"/api/v2/gateway/{api}/hold?all", proof)
        harness.upstream.wait_arrival()
        harness.call("the same", api, "/hold?all", proof)
        harness.call("another", api, "/echo", proof)
        harness.upstream.release()
        first.finish()

    with harness.section("callers that leave"):
        proof = plain(ALICE, pay(harness, 6))
        target = f"/api/v2/gateway/{api}/hold"
        first = harness.begin("before the head", "GET", target + "?gone", proof)
        harness.upstream.wait_arrival()
        first.leave()
        harness.upstream.release()
        harness.wait_row("delivery")
        harness.note("the upstream answers")
        first = harness.begin("before the head, with a key", "GET", target + "?gone=2", keyed(proof, "gone"))
        harness.upstream.wait_arrival()
        first.leave()
        harness.upstream.release()
        harness.wait_row("storedAnswer")
        harness.wait_row("delivery")  # the end of the call, written behind the stored answer
        harness.note("the upstream answers")
        harness.call("the answer waits", api, "/hold?gone=2", keyed(proof, "gone"))
        half = harness.begin("in the middle of the body", "GET", f"/api/v2/gateway/{api}/half", proof)
        harness.upstream.wait_arrival()
        half.connection.read_head()
        half.leave(until=lambda: harness.has_row("delivery=partial"))
        harness.upstream.release()
        whole = b"u" * 200_000
        signed = bound(
            ALICE,
            proof[0][1],
            api,
            "/echo",
            now_s=harness.clock.now_s,
            label="upload",
            method="POST",
            body=whole,
        )
        upload = [*signed, ("Content-Length", "200000")]
        part = harness.begin(
            "in the middle of its own body", "POST", f"/api/v2/gateway/{api}/echo", upload, whole[:100]
        )
        wait_for(lambda: harness.has_row("+ call"), what="the claim")
        part.leave(until=lambda: harness.has_row("state=released"), with_upstream=False)


def play_closed(harness: Harness) -> None:
    with harness.section("stored answers of a listing that closes"):
        api = harness.publish(PROVIDER, name="Closing")
        proof = plain(ALICE, pay(harness, 5))
        harness.call("first", api, "/echo", keyed(proof, "closing"))
        harness.control("paused", PROVIDER, "PUT", f"/apis/{api}", draft(harness, "Closing", status="paused"))
        harness.call("stored", api, "/echo", keyed(proof, "closing"))
        harness.call("not stored", api, "/other", keyed(proof, "other"))
        harness.call("unpaid", api, "/other")
        harness.control(
            "free", PROVIDER, "PUT", f"/apis/{api}", draft(harness, "Closing", pricePerRequest="0")
        )
        harness.call("stored", api, "/echo", keyed(proof, "closing"))
        harness.call("not stored, and free now", api, "/echo?new", keyed(proof, "new"))
        harness.operate("listings", "suspend", api)
        harness.clock.advance(2)
        harness.call("stored, suspended", api, "/echo", keyed(proof, "closing"), until=None)
        harness.operate("listings", "restore", api)
        harness.control("retired", PROVIDER, "DELETE", f"/apis/{api}")
        harness.call("stored, retired", api, "/echo", keyed(proof, "closing"))
        harness.call("unpaid, retired", api, "/echo")
        harness.call("paid, retired", api, "/echo", proof)


def draft(harness: Harness, name: str, **fields: object) -> dict[str, object]:
    plainly = {"name": name, "pricePerRequest": "0.01", "currency": "USDC", "endpoint": harness.upstream.url}
    return {**plainly, "networks": ["eip155:84532"], **fields}


def play_authorized(harness: Harness, dialect: str) -> None:
    api = harness.publish(PROVIDER, name=f"Repeats of {dialect}")
    with harness.section(f"{dialect}: the same authorisation again"):
        asked = quote(harness, api, "/echo")
        proof = show(harness, ALICE, asked, dialect)
        harness.call("first", api, "/echo", proof)
        harness.call("again", api, "/echo", proof)
        harness.call("another path", api, "/other", proof)
        harness.call("with a key, too late", api, "/echo", keyed(proof, "late"))

    with harness.section(f"{dialect}: an idempotency key"):
        asked = quote(harness, api, "/echo?k")
        proof = show(harness, ALICE, asked, dialect)
        harness.call("first", api, "/echo?k", keyed(proof, f"{dialect} key"))
        harness.call("again", api, "/echo?k", keyed(proof, f"{dialect} key"))
        anew = show(harness, ALICE, quote(harness, api, "/echo?k"), dialect)
        harness.call("by a new authorisation", api, "/echo?k", keyed(anew, f"{dialect} key"))
        harness.call(
            "of another request",
            api,
            "/echo?other",
            keyed(show(harness, ALICE, quote(harness, api, "/echo?other"), dialect), f"{dialect} key"),
        )
        harness.call(
            "of another wallet",
            api,
            "/echo?k",
            keyed(show(harness, BOB, quote(harness, api, "/echo?k"), dialect), f"{dialect} key"),
        )
        harness.call(
            "a transaction under the same key",
            api,
            "/echo?k",
            keyed(plain(ALICE, pay(harness, 1)), f"{dialect} key"),
        )

    with harness.section(f"{dialect}: while the first one runs"):
        proof = show(harness, ALICE, quote(harness, api, "/hold"), dialect)
        first = harness.begin("first", "GET", f"/api/v2/gateway/{api}/hold", proof)
        harness.upstream.wait_arrival()
        harness.call("second", api, "/hold", proof)
        harness.upstream.release()
        first.finish()
