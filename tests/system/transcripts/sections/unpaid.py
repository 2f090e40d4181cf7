"""What a call without a payment gets, and what is refused before any payment is looked at."""

from tests.system.transcripts.harness import API, Harness
from tests.system.transcripts.signing import ORIGIN, Account, plain

PROVIDER, ALICE = Account("provider"), Account("alice")
NO_TX = "0x" + "ab" * 32


def play(harness: Harness) -> None:
    api = harness.publish(PROVIDER)
    with harness.section("terms for every method"):
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            harness.call(method, api, "/echo?x=1", method=method, body=b"{}" if method[0] == "P" else b"")
        harness.call("the endpoint itself", api, "")
        harness.call("its slash", api, "/")
        harness.call("accepts HTML", api, "/echo", [("Accept", "text/html")])
        harness.call("with a request id", api, "/echo", [("X-Request-Id", "my-own-id-1")])
        harness.call("with another origin", api, "/echo", [("Origin", "https://page.example")])
        preflight = [("Origin", "https://page.example"), ("Access-Control-Request-Method", "POST")]
        harness.call("preflight", api, "/echo", preflight, method="OPTIONS")
        asked = [*preflight, ("Access-Control-Request-Headers", "x-payment-tx, x-signature")]
        harness.call("preflight with headers", api, "/echo", asked, method="OPTIONS")

    with harness.section("no such API, no such method"):
        harness.call("unknown id", "api_00000000000000000000000000", "/echo")
        harness.call("no id at all", "nonsense", "/echo")
        harness.ask("no id", "GET", f"{API}/gateway/")
        harness.ask("no slash", "GET", f"{API}/gateway")
        harness.call("TRACE", api, "/echo", method="TRACE")
        harness.call("lower case", api, "/echo", method="get")
        harness.call("unknown method", api, "/echo", method="PURGE")
        some = harness.publish(PROVIDER, name="Some", methods=["GET", "POST"])
        harness.call("not among the listing's methods", some, "/echo", method="DELETE")
        harness.call("HEAD where GET is", some, "/echo", method="HEAD")

    with harness.section("loops"):
        harness.call("CDN-Loop", api, "/echo", [("CDN-Loop", "gateway.example")])
        harness.call("CDN-Loop of another", api, "/echo", [("CDN-Loop", "cdn.example; a=b")])
        harness.call("Via of this gateway", api, "/echo", [("Via", "1.1 gateway.example")])

    with harness.section("operations with prices of their own"):
        operations = [
            {"method": "GET", "path": "/v1/cities/{city}", "pricePerRequest": "0.05"},
            {"method": "POST", "path": "/v1/orders", "pricePerRequest": "0.2"},
            {"method": "GET", "path": "/v1/free", "pricePerRequest": "0"},
        ]
        listed = harness.publish(PROVIDER, name="Listed", operations=operations, otherPaths="refuse")
        open_ = harness.publish(PROVIDER, name="Open", operations=operations)
        for rest in (
            "/v1/cities/Wien",
            "/v1/cities/Wien/",
            "/v1//cities/Wien;a=b",
            "/v1/cities/W%69en",
            "/v1/cities/a%2Fb",
            "/V1/cities/Wien",
            "/v1/%63ities/Wien",
            "/v1/%2563ities/Wien",
            "/v1/orders",
            "/other",
            "/v1/free",
        ):
            harness.call(f"listed {rest}", listed, rest)
        harness.call("listed, POST", listed, "/v1/orders", method="POST")
        harness.call("open, other path", open_, "/other")
        harness.call("open, priced path", open_, "/v1/cities/Wien")
        harness.call("open, HEAD of a priced path", open_, "/v1/cities/Wien", method="HEAD")

    with harness.section("paths"):
        for rest in (
            "/../secret",
            "/a/../b",
            "/%2e%2e/secret",
            "/%252e%252e/secret",
            "/a%00b",
            "/%zz",
            "//double",
            "/ä",
            "/a?b#c",
        ):
            target = rest if rest.isascii() else rest.encode().decode("latin-1")
            harness.call(f"path {rest.encode('ascii', 'backslashreplace').decode()}", api, target)
        harness.ask("absolute form", "GET", f"{ORIGIN}{API}/gateway/{api}/echo")
        harness.call("a long path", api, "/" + "p" * 3_000)

    with harness.section("control headers that cannot be read"):
        signed = plain(ALICE, NO_TX)
        good = dict(signed)
        rows: tuple[tuple[str, list[tuple[str, str]]], ...] = (
            ("hash too short", [("X-Payment-Tx", "0x12"), signed[1]]),
            ("hash without 0x", [("X-Payment-Tx", NO_TX[2:]), signed[1]]),
            ("hash without signature", [signed[0]]),
            ("signature without hash", [signed[1]]),
            ("signature no hex", [signed[0], ("X-Signature", "0xzz")]),
            ("signature empty", [signed[0], ("X-Signature", "")]),
            ("signature with another v", [signed[0], ("X-Signature", good["X-Signature"][:-2] + "05")]),
            ("two hashes", [signed[0], *signed]),
            ("two signatures", [*signed, signed[1]]),
            ("parameters malformed", [*signed, ("X-Signature-Params", "v=2")]),
            ("parameters without nonce", [*signed, ("X-Signature-Params", "v=1;validUntil=1800000100")]),
            ("network malformed", [*signed, ("X-Payment-Network", "base")]),
            ("network not configured", [*signed, ("X-Payment-Network", "eip155:1")]),
            ("two rails", [*signed, ("PAYMENT-SIGNATURE", "e30=")]),
            ("three rails", [*signed, ("X-PAYMENT", "e30="), ("Authorization", "Payment e30")]),
            ("named in Connection", [*signed, ("Connection", "X-Payment-Tx")]),
            ("a name with an underscore", [*signed, ("X_Payment_Tx", NO_TX)]),
            ("a header too large", [("X-Large", "l" * 9_000)]),
            ("headers too large", [(f"X-Large-{number}", "l" * 7_000) for number in range(6)]),
            ("key too long", [*signed, ("Idempotency-Key", "k" * 256)]),
            ("key empty", [*signed, ("Idempotency-Key", "")]),
            ("two keys", [*signed, ("Idempotency-Key", "a"), ("Idempotency-Key", "b")]),
            ("price no number", [*signed, ("Tollway-Max-Price", "cheap")]),
            ("x402 v2 no base64", [("PAYMENT-SIGNATURE", "%%%")]),
            ("x402 v2 no JSON", [("PAYMENT-SIGNATURE", "bm90IGpzb24=")]),
            ("x402 v1 empty object", [("X-PAYMENT", "e30=")]),
            ("MPP no base64", [("Authorization", "Payment %%%")]),
            ("MPP empty object", [("Authorization", "Payment e30")]),
            ("a Bearer token", [("Authorization", "Bearer secret")]),
        )
        for title, headers in rows:
            harness.call(title, api, "/echo", headers)

    with harness.section("framing"):
        harness.call("two hosts", api, "/echo", [("Host", "gateway.example"), ("Host", "other.example")])
        harness.call("another host", api, "/echo", [("Host", "other.example")])
        large = [("Content-Length", str(40 * 1024 * 1024)), *plain(ALICE, NO_TX)]
        harness.call("body announced too large", api, "/echo", large, method="POST")
        harness.call("unpaid body announced too large", api, "/echo", large[:1], method="POST")
        harness.call("upgrade", api, "/echo", [("Connection", "Upgrade"), ("Upgrade", "websocket")])
