"""What upstreams answer, and what becomes of it and of the price."""

import socket

from tests.transcripts.payer import DIALECTS, quote, show
from tests.transcripts.signing import Account, plain
from tests.transcripts.stage import Stage

PROVIDER, ALICE = Account("provider"), Account("alice")
PRICE = 10_000


def play(stage: Stage) -> None:
    play_statuses(stage)
    play_bodies(stage)
    play_headers(stage)
    play_unreachable(stage)
    play_free(stage)


def pay(stage: Stage, calls: int = 50) -> list[tuple[str, str]]:
    return plain(ALICE, stage.node.pay(ALICE.address, PROVIDER.address, calls * PRICE))


def play_statuses(stage: Stage) -> None:
    proof = pay(stage)
    for charge_on, statuses in (
        ("success", (200, 201, 206, 301, 304, 400, 401, 402, 403, 404, 410, 422, 429, 500, 503)),
        ("answered", (200, 304, 400, 401, 402, 403, 404, 407, 408, 422, 425, 429, 500)),
    ):
        api = stage.publish(PROVIDER, name=f"Charged on {charge_on}", chargeOn=charge_on)
        with stage.scene(f"statuses, charged on {charge_on}"):
            for status in statuses:
                stage.call(f"{status}", api, f"/status/{status}", proof)

    for dialect in DIALECTS:
        api = stage.publish(
            PROVIDER,
            name=f"Statuses by {dialect}",
        )
        slow = stage.publish(PROVIDER, name=f"Slow by {dialect}", timeoutSeconds=1)
        stage.clock.advance(61)  # the limit of look-ups counts by the minute
        with stage.scene(f"{dialect}: answers that do not cost, and answers that never come"):
            for path in ("/status/500", "/status/404", "/status/402", "/close", "/bad", "/never"):
                one = slow if path == "/never" else api
                headers = show(stage, ALICE, quote(stage, one, path), dialect)
                stage.call(path, one, path, headers)
                stage.call(path + " again", one, path, headers)


def play_bodies(stage: Stage) -> None:
    api, proof = stage.publish(PROVIDER, name="Bodies"), pay(stage)
    with stage.scene("bodies both ways"):
        stage.call("chunks", api, "/stream", proof)
        stage.call("none", api, "/empty", proof)
        stage.call("big", api, "/big", proof)
        stage.call("cut", api, "/cut", proof)
        stage.call("HEAD of a big one", api, "/big", proof, method="HEAD")
        stage.call(
            "POST of JSON",
            api,
            "/echo",
            [*proof, ("Content-Type", "application/json")],
            method="POST",
            body=b'{"q":1}',
        )
        chunked = [*proof, ("Transfer-Encoding", "chunked"), ("Trailer", "X-Sum")]
        stage.call("PUT in chunks", api, "/echo", chunked, method="PUT", body=b"5\r\nhello\r\n0\r\n\r\n")
        stage.call("PATCH without a body", api, "/echo", [*proof, ("Content-Length", "0")], method="PATCH")
        stage.call("DELETE with a body", api, "/echo", proof, method="DELETE", body=b"why")
        stage.call("OPTIONS", api, "/echo", proof, method="OPTIONS")
        stage.call("a method of its own", api, "/echo", proof, method="PURGE")
        stage.call(
            "expects 100-continue",
            api,
            "/echo",
            [*proof, ("Expect", "100-continue")],
            method="POST",
            body=b"sent anyway",
        )
        stage.call(
            "both lengths",
            api,
            "/echo",
            [*proof, ("Content-Length", "3"), ("Transfer-Encoding", "chunked")],
            method="POST",
            body=b"0\r\n\r\n",
        )

    with stage.scene("paths as they were sent"):
        for rest in (
            "",
            "/",
            "/echo/%41b%2fc?q=%20a+b&q=2",
            "/echo//x/",
            "/echo;v=1",
            "/echo?",
            "/echo/a/../b",
            "/echo/%zz",
        ):
            stage.call(f"path {rest!r}", api, rest, proof)
        based = stage.publish(PROVIDER, name="Based", endpoint=stage.upstream.url + "/echo/base/")
        for rest in ("", "/", "/one", "?q=1", "/../up", "/%2e%2e/up"):
            stage.call(f"under a base, {rest!r}", based, rest, proof)


def play_headers(stage: Stage) -> None:
    proof = pay(stage)
    api = stage.publish(PROVIDER, name="Headers")
    wide = stage.publish(
        PROVIDER,
        name="Wide",
        forwardHeaders=["X-Mine", "Authorization", "Accept-Encoding"],
        upstreamAuth={"in": "header", "name": "X-Key", "value": "the secret"},
    )
    query = stage.publish(
        PROVIDER,
        name="In the query",
        upstreamAuth={"in": "query", "name": "key", "value": "the secret"},
    )
    many = [
        ("Accept", "application/json"),
        ("Accept-Language", "de"),
        ("Accept-Encoding", "gzip"),
        ("User-Agent", "agent/1"),
        ("Cookie", "a=b"),
        ("Authorization", "Bearer mine"),
        ("If-None-Match", '"x"'),
        ("Range", "bytes=0-1"),
        ("Referer", "https://page.example/"),
        ("X-Forwarded-For", "203.0.113.9"),
        ("X-Mine", "one"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("TE", "trailers"),
        ("Connection", "X-Hop"),
        ("X-Hop", "hop"),
        ("Via", "1.1 other"),
        ("X-Request-Id", "mine-1"),
        ("Tollway-Payer", "forged"),
    ]
    with stage.scene("request headers"):
        stage.call("the standard set", api, "/echo", [*proof, *many])
        stage.call("more of them, and a secret", wide, "/echo", [*proof, *many])
        stage.call("a secret in the query", query, "/echo?a=1", [*proof, *many])
        stage.call("a secret in the query that is there", query, "/echo?key=mine", proof)

    with stage.scene("response headers"):
        stage.call("unusual ones", api, "/headers", proof)
        stage.call(
            "for a page of another origin", api, "/headers", [*proof, ("Origin", "https://page.example")]
        )
        stage.call("a redirect under the endpoint", api, "/redirect", proof)
        stage.call("a redirect elsewhere", api, "/redirect?to=https://other.example/x", proof)
        stage.call("a relative redirect", api, "/redirect?to=/echo", proof)
        based = stage.publish(PROVIDER, name="Redirects", endpoint=stage.upstream.url + "/redirect")
        stage.call("a redirect out of the base", based, f"?to={stage.upstream.url}/echo", proof)


def play_unreachable(stage: Stage) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        stage.recorder.learn_literal(f"127.0.0.1:{port}", "<nothing>")
        proof = pay(stage)
        with stage.scene("an upstream that nobody listens at"):
            api = stage.publish(PROVIDER, name="Nothing", endpoint=f"http://127.0.0.1:{port}")
            stage.call("unpaid", api, "/echo")
            shown = {one: show(stage, ALICE, quote(stage, api, "/echo"), one) for one in DIALECTS}
            for number in range(1, 7):
                stage.call(f"paid, {number}", api, "/echo", proof)
            # Less than the pause until a probe is due: when that comes is real time.
            stage.call("unpaid, known to be down", api, "/echo")
            for dialect, headers in shown.items():
                stage.call(dialect, api, "/echo", headers)


def play_free(stage: Stage) -> None:
    proof = pay(stage)
    with stage.scene("a free listing"):
        api = stage.publish(PROVIDER, name="Free", pricePerRequest="0")
        stage.call("free", api, "/echo")
        stage.call("HEAD", api, "/echo", method="HEAD")
        stage.call("POST", api, "/echo", method="POST", body=b"body")
        stage.call("with a payment", api, "/echo", proof)
        stage.call("with a payment that cannot be read", api, "/echo", [("X-Payment-Tx", "0x12")])
        stage.call("with x402 that cannot be read", api, "/echo", [("PAYMENT-SIGNATURE", "%%%")])
        stage.call("with a key", api, "/echo", [("Idempotency-Key", "free")])
        stage.call("with a key again", api, "/echo", [("Idempotency-Key", "free")])
        stage.call("with a payment and a key", api, "/echo", [*proof, ("Idempotency-Key", "free")])
        stage.call("with a bad key", api, "/echo", [("Idempotency-Key", "k" * 300)])
        stage.call("with a maximum", api, "/echo", [("Tollway-Max-Price", "0")])
        for path in ("/status/500", "/status/402", "/close", "/cut", "/empty"):
            stage.call(path, api, path)
        stage.call("too much", api, "/echo", [("Content-Length", str(40 * 1024 * 1024))], method="POST")

    with stage.scene("a free operation of a listing that costs"):
        operations = [{"method": "GET", "path": "/echo/free", "pricePerRequest": "0"}]
        api = stage.publish(PROVIDER, name="Half free", operations=operations)
        stage.call("free", api, "/echo/free")
        stage.call("paid", api, "/echo/paid")
        stage.call("paid", api, "/echo/paid", proof)
        stage.call("free, with a payment", api, "/echo/free", proof)
