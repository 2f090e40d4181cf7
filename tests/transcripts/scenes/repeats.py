"""The same request again: idempotency keys, stored answers, calls in flight, and callers that leave."""

from tests.transcripts.payer import DIALECTS, quote, show
from tests.transcripts.signing import Account, bound, plain
from tests.transcripts.stage import Headers, Stage, wait_for

PROVIDER, ALICE, BOB = Account("provider"), Account("alice"), Account("bob")
PRICE = 10_000


def play(stage: Stage) -> None:
    play_keys(stage)
    play_cut(stage)
    play_running(stage)
    play_closed(stage)
    for dialect in DIALECTS:
        play_authorized(stage, dialect)


def pay(stage: Stage, calls: int, account: Account = ALICE) -> str:
    return stage.node.pay(account.address, PROVIDER.address, calls * PRICE)


def keyed(headers: Headers, key: str) -> Headers:
    return [*headers, ("Idempotency-Key", key)]


def play_keys(stage: Stage) -> None:
    api = stage.publish(PROVIDER, name="Keys")
    with stage.scene("an idempotency key"):
        proof = plain(ALICE, pay(stage, 20))
        stage.call("first", api, "/echo?x=1", keyed(proof, "one"))
        stage.call("again", api, "/echo?x=1", keyed(proof, "one"))
        stage.call("again, in quotes", api, "/echo?x=1", keyed(proof, '"one"'))
        stage.call("another query", api, "/echo?x=2", keyed(proof, "one"))
        stage.call("another method", api, "/echo?x=1", keyed(proof, "one"), method="DELETE")
        stage.call("HEAD", api, "/echo?x=1", keyed(proof, "one"), method="HEAD")
        stage.call("another key", api, "/echo?x=1", keyed(proof, "two"))
        stage.call(
            "another payment of the wallet", api, "/echo?x=1", keyed(plain(ALICE, pay(stage, 1)), "one")
        )
        stage.call("another wallet", api, "/echo?x=1", keyed(plain(BOB, pay(stage, 1, BOB)), "one"))
        stage.call("without a payment", api, "/echo?x=1", keyed([], "one"))
        stage.call("POST", api, "/echo", keyed(proof, "post"), method="POST", body=b"body")
        stage.call("POST again", api, "/echo", keyed(proof, "post"), method="POST", body=b"body")
        stage.call("POST of another body", api, "/echo", keyed(proof, "post"), method="POST", body=b"else")
        signed = bound(ALICE, proof[0][1], api, "/echo", now_s=stage.clock.now_s, label="keyed")
        stage.call("bound", api, "/echo", keyed(signed, "bound"))
        stage.call("bound again", api, "/echo", keyed(signed, "bound"))
        anew = bound(ALICE, proof[0][1], api, "/echo", now_s=stage.clock.now_s, label="keyed anew")
        stage.call("bound anew", api, "/echo", keyed(anew, "bound"))

    with stage.scene("answers that are not stored"):
        proof = plain(ALICE, pay(stage, 20))
        strict = bound(ALICE, proof[0][1], api, "/big", now_s=stage.clock.now_s, label="big")
        stage.call("too big", api, "/big", keyed(strict, "big"))
        strict = bound(ALICE, proof[0][1], api, "/big", now_s=stage.clock.now_s, label="big again")
        stage.call("too big, again", api, "/big", keyed(strict, "big"))
        for path in ("/status/500", "/status/404", "/empty", "/headers"):
            for title in ("first", "again"):
                once = bound(ALICE, proof[0][1], api, path, now_s=stage.clock.now_s, label=stage.next_label())
                stage.call(f"{path} {title}", api, path, keyed(once, path))

    with stage.scene("a day later"):
        proof = plain(BOB, pay(stage, 2, BOB))
        stage.call("first", api, "/echo", keyed(proof, "day"))
        stage.restart(after_s=86_400 - 60)
        stage.call("just before", api, "/echo", keyed(proof, "day"))
        stage.restart(after_s=120)
        stage.call("after", api, "/echo", keyed(proof, "day"))


def play_cut(stage: Stage) -> None:
    api = stage.publish(PROVIDER, name="Cut")
    with stage.scene("a body that the upstream cuts"):
        proof = plain(ALICE, pay(stage, 5))
        stage.call("cut", api, "/cut", proof)
        stage.call("one repeat", api, "/cut", proof)
        stage.call("a second repeat", api, "/cut", proof)
        stage.call("POST", api, "/cut?post", proof, method="POST", body=b"x")
        stage.call("POST again", api, "/cut?post", proof, method="POST", body=b"x")

    with stage.scene("no head within the listing's time"):
        slow = stage.publish(PROVIDER, name="Slow", timeoutSeconds=1)
        proof = plain(ALICE, pay(stage, 4))
        stage.call("GET", slow, "/never", proof)
        stage.call("GET again", slow, "/never", proof)
        stage.call("GET a third time", slow, "/never", proof)
        stage.call("GET a fourth time", slow, "/never", proof)
        stage.call("POST", slow, "/never", proof, method="POST", body=b"x")
        stage.call("POST again", slow, "/never", proof, method="POST", body=b"x")
        stage.restart(after_s=86_400 + 60)
        stage.call("a day later its value is credit again", api, "/echo", proof)

    with stage.scene("a connection that ends without a head"):
        proof = plain(ALICE, pay(stage, 4))
        stage.call("GET", api, "/close", proof)
        stage.call("again", api, "/close", proof)
        stage.call("no HTTP", api, "/bad", proof)


def play_running(stage: Stage) -> None:
    api = stage.publish(PROVIDER, name="Running")
    with stage.scene("the same request while the first one runs"):
        tx = pay(stage, 4)
        signed = bound(ALICE, tx, api, "/hold", now_s=stage.clock.now_s, label="running")
        first = stage.begin("first", "GET", f"/api/v2/gateway/{api}/hold", keyed(signed, "run"))
        stage.upstream.wait_arrival()
        stage.call("second", api, "/hold", keyed(signed, "run"))
        anew = bound(ALICE, tx, api, "/hold", now_s=stage.clock.now_s, label="running anew")
        stage.call("second, signed anew", api, "/hold", keyed(anew, "run"))
        stage.call("without its key", api, "/hold", signed)
        other = bound(ALICE, tx, api, "/echo", now_s=stage.clock.now_s, label="running other")
        stage.call("the key of another request", api, "/echo", keyed(other, "run"))
        stage.control("its record", ALICE, "GET", "/history")
        stage.upstream.release()
        first.finish()
        stage.call("afterwards", api, "/hold", keyed(signed, "run"))

    with stage.scene("all of a payment held by a call that runs"):
        proof = plain(ALICE, pay(stage, 1))
        first = stage.begin("first", "GET", f"/api/v2/gateway/{api}/hold?all", proof)
        stage.upstream.wait_arrival()
        stage.call("the same", api, "/hold?all", proof)
        stage.call("another", api, "/echo", proof)
        stage.upstream.release()
        first.finish()

    with stage.scene("callers that leave"):
        proof = plain(ALICE, pay(stage, 6))
        target = f"/api/v2/gateway/{api}/hold"
        first = stage.begin("before the head", "GET", target + "?gone", proof)
        stage.upstream.wait_arrival()
        first.leave()
        stage.upstream.release()
        stage.wait_row("delivery")
        stage.note("the upstream answers")
        first = stage.begin("before the head, with a key", "GET", target + "?gone=2", keyed(proof, "gone"))
        stage.upstream.wait_arrival()
        first.leave()
        stage.upstream.release()
        stage.wait_row("storedAnswer")
        stage.note("the upstream answers")
        stage.call("the answer waits", api, "/hold?gone=2", keyed(proof, "gone"))
        half = stage.begin("in the middle of the body", "GET", f"/api/v2/gateway/{api}/half", proof)
        stage.upstream.wait_arrival()
        half.connection.read_head()
        half.leave(until=lambda: stage.has_row("delivery=partial"))
        stage.upstream.release()
        whole = b"u" * 200_000
        signed = bound(
            ALICE,
            proof[0][1],
            api,
            "/echo",
            now_s=stage.clock.now_s,
            label="upload",
            method="POST",
            body=whole,
        )
        upload = [*signed, ("Content-Length", "200000")]
        part = stage.begin(
            "in the middle of its own body", "POST", f"/api/v2/gateway/{api}/echo", upload, whole[:100]
        )
        wait_for(lambda: stage.has_row("+ call"), what="the claim")
        part.leave(until=lambda: stage.has_row("state=released"), with_upstream=False)


def play_closed(stage: Stage) -> None:
    with stage.scene("stored answers of a listing that closes"):
        api = stage.publish(PROVIDER, name="Closing")
        proof = plain(ALICE, pay(stage, 5))
        stage.call("first", api, "/echo", keyed(proof, "closing"))
        stage.control("paused", PROVIDER, "PUT", f"/apis/{api}", draft(stage, "Closing", status="paused"))
        stage.call("stored", api, "/echo", keyed(proof, "closing"))
        stage.call("not stored", api, "/other", keyed(proof, "other"))
        stage.call("unpaid", api, "/other")
        stage.control("free", PROVIDER, "PUT", f"/apis/{api}", draft(stage, "Closing", pricePerRequest="0"))
        stage.call("stored", api, "/echo", keyed(proof, "closing"))
        stage.call("not stored, and free now", api, "/echo?new", keyed(proof, "new"))
        stage.operate("listing", "suspend", api)
        stage.clock.advance(2)
        stage.call("stored, suspended", api, "/echo", keyed(proof, "closing"), until=None)
        stage.operate("listing", "restore", api)
        stage.control("retired", PROVIDER, "DELETE", f"/apis/{api}")
        stage.call("stored, retired", api, "/echo", keyed(proof, "closing"))
        stage.call("unpaid, retired", api, "/echo")
        stage.call("paid, retired", api, "/echo", proof)


def draft(stage: Stage, name: str, **fields: object) -> dict[str, object]:
    plainly = {"name": name, "pricePerRequest": "0.01", "currency": "USDC", "endpoint": stage.upstream.url}
    return {**plainly, "networks": ["eip155:84532"], **fields}


def play_authorized(stage: Stage, dialect: str) -> None:
    api = stage.publish(PROVIDER, name=f"Repeats of {dialect}")
    with stage.scene(f"{dialect}: the same authorisation again"):
        asked = quote(stage, api, "/echo")
        proof = show(stage, ALICE, asked, dialect)
        stage.call("first", api, "/echo", proof)
        stage.call("again", api, "/echo", proof)
        stage.call("another path", api, "/other", proof)
        stage.call("with a key, too late", api, "/echo", keyed(proof, "late"))

    with stage.scene(f"{dialect}: an idempotency key"):
        asked = quote(stage, api, "/echo?k")
        proof = show(stage, ALICE, asked, dialect)
        stage.call("first", api, "/echo?k", keyed(proof, f"{dialect} key"))
        stage.call("again", api, "/echo?k", keyed(proof, f"{dialect} key"))
        anew = show(stage, ALICE, quote(stage, api, "/echo?k"), dialect)
        stage.call("by a new authorisation", api, "/echo?k", keyed(anew, f"{dialect} key"))
        stage.call(
            "of another request",
            api,
            "/echo?other",
            keyed(show(stage, ALICE, quote(stage, api, "/echo?other"), dialect), f"{dialect} key"),
        )
        stage.call(
            "of another wallet",
            api,
            "/echo?k",
            keyed(show(stage, BOB, quote(stage, api, "/echo?k"), dialect), f"{dialect} key"),
        )
        stage.call(
            "a transaction under the same key",
            api,
            "/echo?k",
            keyed(plain(ALICE, pay(stage, 1)), f"{dialect} key"),
        )

    with stage.scene(f"{dialect}: while the first one runs"):
        proof = show(stage, ALICE, quote(stage, api, "/hold"), dialect)
        first = stage.begin("first", "GET", f"/api/v2/gateway/{api}/hold", proof)
        stage.upstream.wait_arrival()
        stage.call("second", api, "/hold", proof)
        stage.upstream.release()
        first.finish()
