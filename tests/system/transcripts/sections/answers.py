"""What upstreams answer, and what becomes of it and of the price."""

import socket

from tests.system.transcripts.harness import Harness
from tests.system.transcripts.payer import DIALECTS, quote, show
from tests.system.transcripts.signing import Account, plain

PROVIDER, ALICE = Account("provider"), Account("alice")
PRICE = 10_000


def play(harness: Harness) -> None:
    play_statuses(harness)
    play_bodies(harness)
    play_headers(harness)
    play_unreachable(harness)
    play_free(harness)
    play_unsigned(harness)


def pay(harness: Harness, calls: int = 50) -> list[tuple[str, str]]:
    return plain(ALICE, harness.node.pay(ALICE.address, PROVIDER.address, calls * PRICE))


def play_statuses(harness: Harness) -> None:
    proof = pay(harness)
    for charge_on, statuses in (
        ("success", (200, 201, 206, 301, 304, 400, 401, 402, 403, 404, 410, 422, 429, 500, 503)),
        ("answered", (200, 304, 400, 401, 402, 403, 404, 407, 408, 422, 425, 429, 500)),
    ):
        api = harness.publish(PROVIDER, name=f"Charged on {charge_on}", chargeOn=charge_on)
        with harness.section(f"statuses, charged on {charge_on}"):
            for status in statuses:
                harness.call(f"{status}", api, f"/status/{status}", proof)

    for dialect in DIALECTS:
        api = harness.publish(
            PROVIDER,
            name=f"Statuses by {dialect}",
        )
        slow = harness.publish(PROVIDER, name=f"Slow by {dialect}", timeoutSeconds=1)
        harness.clock.advance(61)  # the limit of look-ups counts by the minute
        with harness.section(f"{dialect}: answers that do not cost, and answers that never come"):
            for path in ("/status/500", "/status/404", "/status/402", "/close", "/bad", "/never"):
                one = slow if path == "/never" else api
                headers = show(harness, ALICE, quote(harness, one, path), dialect)
                harness.call(path, one, path, headers)
                harness.call(path + " again", one, path, headers)


def play_bodies(harness: Harness) -> None:
    api, proof = harness.publish(PROVIDER, name="Bodies"), pay(harness)
    with harness.section("bodies both ways"):
        harness.call("chunks", api, "/stream", proof)
        harness.call("none", api, "/empty", proof)
        harness.call("big", api, "/big", proof)
        harness.call("cut", api, "/cut", proof)
        harness.call("HEAD of a big one", api, "/big", proof, method="HEAD")
        harness.call(
            "POST of JSON",
            api,
            "/echo",
            [*proof, ("Content-Type", "application/json")],
            method="POST",
            body=b'{"q":1}',
        )
        chunked = [*proof, ("Transfer-Encoding", "chunked"), ("Trailer", "X-Sum")]
        harness.call("PUT in chunks", api, "/echo", chunked, method="PUT", body=b"5\r\nhello\r\n0\r\n\r\n")
        harness.call("PATCH without a body", api, "/echo", [*proof, ("Content-Length", "0")], method="PATCH")
        harness.call("DELETE with a body", api, "/echo", proof, method="DELETE", body=b"why")
        harness.call("OPTIONS", api, "/echo", proof, method="OPTIONS")
        harness.call("a method of its own", api, "/echo", proof, method="PURGE")
        harness.call(
            "expects 100-continue",
            api,
            "/echo",
            [*proof, ("Expect", "100-continue")],
            method="POST",
            body=b"sent anyway",
        )
        harness.call(
            "both lengths",
            api,
            "/echo",
            [*proof, ("Content-Length", "3"), ("Transfer-Encoding", "chunked")],
            method="POST",
            body=b"0\r\n\r\n",
        )

    with harness.section("paths as they were sent"):
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
            harness.call(f"path {rest!r}", api, rest, proof)
        based = harness.publish(PROVIDER, name="Based", endpoint=harness.upstream.url + "/echo/base/")
        for rest in ("", "/", "/one", "?q=1", "/../up", "/%2e%2e/up"):
            harness.call(f"under a base, {rest!r}", based, rest, proof)


def play_headers(harness: Harness) -> None:
    proof = pay(harness)
    api = harness.publish(PROVIDER, name="Headers")
    wide = harness.publish(
        PROVIDER,
        name="Wide",
        forwardHeaders=["X-Mine", "Authorization", "Accept-Encoding"],
        upstreamAuth={"in": "header", "name": "X-Key", "value": "the secret"},
    )
    query = harness.publish(
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
    with harness.section("request headers"):
        harness.call("the standard set", api, "/echo", [*proof, *many])
        harness.call("more of them, and a secret", wide, "/echo", [*proof, *many])
        harness.call("a secret in the query", query, "/echo?a=1", [*proof, *many])
        harness.call("a secret in the query that is there", query, "/echo?key=mine", proof)

    with harness.section("response headers"):
        harness.call("unusual ones", api, "/headers", proof)
        harness.call(
            "for a page of another origin", api, "/headers", [*proof, ("Origin", "https://page.example")]
        )
        harness.call("a redirect under the endpoint", api, "/redirect", proof)
        harness.call("a redirect elsewhere", api, "/redirect?to=https://other.example/x", proof)
        harness.call("a relative redirect", api, "/redirect?to=/echo", proof)
        based = harness.publish(PROVIDER, name="Redirects", endpoint=harness.upstream.url + "/redirect")
        harness.call("a redirect out of the base", based, f"?to={harness.upstream.url}/echo", proof)


def play_unreachable(harness: Harness) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        harness.recorder.learn_literal(f"127.0.0.1:{port}", "<nothing>")
        proof = pay(harness)
        with harness.section("an upstream that nobody listens at"):
            api = harness.publish(PROVIDER, name="Nothing", endpoint=f"http://127.0.0.1:{port}")
            harness.call("unpaid", api, "/echo")
            shown = {one: show(harness, ALICE, quote(harness, api, "/echo"), one) for one in DIALECTS}
            for number in range(1, 7):
                harness.call(f"paid, {number}", api, "/echo", proof)
            # Less than the pause until a probe is due: when that comes is real time.
            harness.call("unpaid, known to be down", api, "/echo")
            for dialect, headers in shown.items():
                harness.call(dialect, api, "/echo", headers)


def play_free(harness: Harness) -> None:
    proof = pay(harness)
    with harness.section("a free listing"):
        api = harness.publish(PROVIDER, name="Free", pricePerRequest="0")
        harness.call("free", api, "/echo")
        harness.call("HEAD", api, "/echo", method="HEAD")
        harness.call("POST", api, "/echo", method="POST", body=b"body")
        harness.call("with a payment", api, "/echo", proof)
        harness.call("with a payment that cannot be read", api, "/echo", [("X-Payment-Tx", "0x12")])
        harness.call("with x402 that cannot be read", api, "/echo", [("PAYMENT-SIGNATURE", "%%%")])
        harness.call("with a key", api, "/echo", [("Idempotency-Key", "free")])
        harness.call("with a key again", api, "/echo", [("Idempotency-Key", "free")])
        harness.call("with a payment and a key", api, "/echo", [*proof, ("Idempotency-Key", "free")])
        harness.call("with a bad key", api, "/echo", [("Idempotency-Key", "k" * 300)])
        harness.call("with a maximum", api, "/echo", [("Tollway-Max-Price", "0")])
        for path in ("/status/500", "/status/402", "/close", "/cut", "/empty"):
            harness.call(path, api, path)
        harness.call("too much", api, "/echo", [("Content-Length", str(40 * 1024 * 1024))], method="POST")

    with harness.section("a free operation of a listing that costs"):
        operations = [{"method": "GET", "path": "/echo/free", "pricePerRequest": "0"}]
        api = harness.publish(PROVIDER, name="Half free", operations=operations)
        harness.call("free", api, "/echo/free")
        harness.call("paid", api, "/echo/paid")
        harness.call("paid", api, "/echo/paid", proof)
        harness.call("free, with a payment", api, "/echo/free", proof)


def play_unsigned(harness: Harness) -> None:
    proof = pay(harness)
    api = harness.publish(PROVIDER, name="Unsigned", forwardSignature="none")
    with harness.section("a listing whose forwarded calls are not signed"):
        harness.call("GET", api, "/echo", proof)
        harness.call("POST", api, "/echo", proof, method="POST", body=b"body")
        forged = [
            ("Signature-Input", 'tollway=("@method")'),
            ("Signature", "tollway=:AAAA:"),
            ("Tollway-Payer", "x"),
        ]
        harness.call("with a signature of the caller", api, "/echo", [*proof, *forged])
