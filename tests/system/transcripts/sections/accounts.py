"""Who asks, and what a wallet sees of its calls and payments: authentication, history, payments."""

import json
from datetime import UTC, datetime

from tests.system.transcripts.harness import API, SECOND_CHAIN, Harness
from tests.system.transcripts.payer import V1, V2, quote, show
from tests.system.transcripts.signing import CHAIN_ID, ORIGIN, Account, encode, keccak256, plain, sign_request

PROVIDER, ALICE, BOB = Account("provider"), Account("alice"), Account("bob")
PRICE = 10_000


def play(harness: Harness) -> None:
    play_sessions(harness)
    play_signatures(harness)
    play_siwx(harness)
    play_history(harness)
    play_refunds(harness)
    play_payments(harness)  # at its end no node answers


def post(harness: Harness, title: str, path: str, content: object, **options: object):  # type: ignore[no-untyped-def]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = [("Content-Type", "application/json")] if body else []
    return harness.ask(title, "POST", API + path, headers, body, **options)


def play_sessions(harness: Harness) -> None:
    me = {"address": ALICE.address, "chainId": CHAIN_ID}

    def create_challenge(title: str, content: object = me):  # type: ignore[no-untyped-def]
        answer = post(harness, title, "/auth/nonce", content, is_recorded=False)
        harness.recorder.learn("sign-in nonce", answer.json["nonce"])
        return answer.json

    def sign(message: str, account: Account = ALICE) -> dict[str, str]:
        return {"message": message, "signature": account.sign_text(message.encode())}

    with harness.section("signing in"):
        told = create_challenge("")
        post(harness, "a nonce for a wallet", "/auth/nonce", me, learns="nonce")
        post(harness, "a nonce alone", "/auth/nonce", b"", learns="nonce")
        post(harness, "a nonce for a URI", "/auth/nonce", {"uri": f"{ORIGIN}{API}/apis"}, learns="nonce")
        post(harness, "a nonce for a URI elsewhere", "/auth/nonce", {"uri": "https://other.example/"})
        post(harness, "a nonce for no wallet", "/auth/nonce", {"address": "0x12", "chainId": 0})
        post(harness, "a nonce with more", "/auth/nonce", {"colour": "red"})
        opened = post(harness, "a session", "/auth/session", sign(told["message"]), learns="accessToken")
        post(harness, "the nonce again", "/auth/session", sign(told["message"]))
        bearer = [("Authorization", f"Bearer {opened.json['accessToken']}")]
        harness.ask("used", "GET", f"{API}/history", bearer)
        harness.ask("another token", "GET", f"{API}/history", [("Authorization", "Bearer nonsense")])
        harness.ask("no token", "GET", f"{API}/history")
        harness.ask("another scheme", "GET", f"{API}/history", [("Authorization", "Basic YTpi")])
        conflict = sign_request(
            BOB, "GET", f"{API}/history", b"", now_s=harness.clock.now_s, label="conflict"
        )
        harness.ask("two wallets", "GET", f"{API}/history", [*bearer, *conflict])
        agree = sign_request(ALICE, "GET", f"{API}/history", b"", now_s=harness.clock.now_s, label="agree")
        harness.ask("one wallet twice", "GET", f"{API}/history", [*bearer, *agree])
        harness.clock.advance(86_300 - 60)
        harness.ask("almost a day later", "GET", f"{API}/history", bearer, counts_rpc=False)
        harness.clock.advance(300)
        harness.ask("a day later", "GET", f"{API}/history", bearer, counts_rpc=False)

    with harness.section("sign-in messages that are refused"):
        told = create_challenge("")
        message = told["message"]
        rows = {
            "signed by another": sign(message, BOB),
            "for another domain": sign(message.replace("gateway.example wants", "other.example wants")),
            "for another URI": sign(message.replace(f"URI: {ORIGIN}", "URI: https://other.example")),
            "with another nonce": sign(message.replace(told["nonce"], "0" * 32)),
            "from long ago": sign(message.replace("Issued At: 20", "Issued At: 19")),
            "of another kind": sign("hello"),
            "signature of no hex": {"message": message, "signature": "0xzz"},
            "without a signature": {"message": message},
            "without anything": {},
        }
        for title, content in rows.items():
            post(harness, title, "/auth/session", content)
        harness.clock.advance(310)
        post(harness, "too late", "/auth/session", sign(message))
        opened = post(harness, "", "/auth/session", sign(create_challenge("")["message"]), is_recorded=False)
        harness.recorder.learn("token", opened.json["accessToken"])
        bearer = [("Authorization", f"Bearer {opened.json['accessToken']}")]
        harness.ask("signing out", "DELETE", f"{API}/auth/session", bearer)
        harness.ask("signing out twice", "DELETE", f"{API}/auth/session", bearer)
        harness.ask("signing out of nothing", "DELETE", f"{API}/auth/session")
        harness.ask("GET", "GET", f"{API}/auth/session")


def play_signatures(harness: Harness) -> None:
    target = f"{API}/history"

    def sign(
        label: str, *, account: Account = ALICE, method: str = "GET", path: str = target, **options: object
    ):  # type: ignore[no-untyped-def]
        body = options.pop("body", b"")
        now_s = options.pop("now_s", harness.clock.now_s + 1)
        return sign_request(account, method, path, body, now_s=now_s, label=label, **options)  # type: ignore[arg-type]

    with harness.section("signed requests"):
        good = sign("good")
        harness.ask("good", "GET", target, good)
        harness.ask("the same again", "GET", target, good)
        harness.ask("for another path", "GET", f"{API}/payments", sign("path"))
        harness.ask("for another query", "GET", target + "?limit=1", sign("query", path=target + "?limit=2"))
        harness.ask("without its query", "GET", target + "?limit=1", sign("no query"))
        harness.ask("for another method", "DELETE", target, sign("method"))
        harness.ask(
            "for another authority", "GET", target, sign("authority", alter={"@authority": "other.example"})
        )
        harness.ask("expired", "GET", target, sign("expired", now_s=harness.clock.now_s - 400))
        harness.ask("from the future", "GET", target, sign("future", now_s=harness.clock.now_s + 400))
        harness.ask("for too long", "GET", target, sign("long", valid_s=900))
        harness.ask("on a chain that is not configured", "GET", target, sign("chain", chain_id=1))
        harness.ask("on the second chain", "GET", target, sign("second", chain_id=SECOND_CHAIN))
        broken = sign("broken")
        harness.ask("without the signature", "GET", target, broken[:-1])
        harness.ask("malformed", "GET", target, [("Signature-Input", "eth=("), broken[-1]])
        other = [broken[0], ("Signature", sign("another", account=BOB)[-1][1])]
        harness.ask("signed by another", "GET", target, other)
        unknown = [("Signature-Input", 'sig=("@method");keyid="ed25519"'), ("Signature", "sig=:AAAA:")]
        harness.ask("of another kind", "GET", target, unknown)
        wrong = sign_request(
            PROVIDER, "POST", f"{API}/apis", b'{"a":1}', now_s=harness.clock.now_s, label="body"
        )
        harness.ask(
            "another body", "POST", f"{API}/apis", [("Content-Type", "application/json"), *wrong], b'{"a":2}'
        )
        wallet = Account("wallet of a chain")
        harness.ask("by a wallet that only a chain knows", "GET", target, _contract(harness, wallet))


def _contract(harness: Harness, wallet: Account) -> list[tuple[str, str]]:
    """ERC-1271: the wallet is a contract, and its owner signs with one byte more."""
    import base64

    harness.node.wallets[wallet.address] = BOB.address
    headers = sign_request(
        wallet, "GET", f"{API}/history", b"", now_s=harness.clock.now_s + 1, label="contract"
    )
    base = {"@authority": "gateway.example", "@method": "GET", "@path": f"{API}/history"}
    params = headers[0][1].removeprefix("eth=")
    from tests.system.transcripts.signing import eip191

    text = (
        "\n".join(f'"{name}": {value}' for name, value in base.items()) + f'\n"@signature-params": {params}'
    )
    signature = BOB.sign_digest(eip191(text.encode())) + b"\x01"
    return [headers[0], ("Signature", f"eth=:{base64.b64encode(signature).decode()}:")]


def play_siwx(harness: Harness) -> None:
    def sign(uri: str, account: Account = ALICE) -> list[tuple[str, str]]:
        told = post(
            harness,
            "",
            "/auth/nonce",
            {"address": account.address, "chainId": CHAIN_ID, "uri": uri},
            is_recorded=False,
        ).json
        harness.recorder.learn("sign-in nonce", told["nonce"])
        lines = told["message"].split("\n")
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        content = {
            "domain": "gateway.example",
            "address": account.address,
            "statement": lines[3],
            "uri": fields["URI"],
            "version": "1",
            "chainId": f"eip155:{CHAIN_ID}",
            "type": "eip191",
            "nonce": fields["Nonce"],
            "issuedAt": fields["Issued At"],
            "expirationTime": fields["Expiration Time"],
            "signature": account.sign_text(told["message"].encode()),
        }
        return [("SIGN-IN-WITH-X", encode(content))]

    with harness.section("SIGN-IN-WITH-X"):
        good = sign(f"{ORIGIN}{API}/history")
        harness.ask("a read", "GET", f"{API}/history", good)
        harness.ask("the same again", "GET", f"{API}/history", good)
        harness.ask("for another URI", "GET", f"{API}/payments", sign(f"{ORIGIN}{API}/history"))
        made = {
            "name": "By SIWX",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": harness.upstream.url,
        }
        body, kind = json.dumps(made).encode(), ("Content-Type", "application/json")
        answer = harness.ask("a create", "POST", f"{API}/apis", [kind, *sign(f"{ORIGIN}{API}/apis")], body)
        api = answer.json.get("id", "none")
        harness.ask("a change", "PUT", f"{API}/apis/{api}", [kind, *sign(f"{ORIGIN}{API}/apis/{api}")], body)
        harness.ask("no base64", "GET", f"{API}/history", [("SIGN-IN-WITH-X", "%%%")])
        harness.ask("an empty object", "GET", f"{API}/history", [("SIGN-IN-WITH-X", "e30=")])


def play_history(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="History")
    other = harness.publish(ALICE, name="Of Alice")
    proof = plain(ALICE, harness.node.pay(ALICE.address, PROVIDER.address, 10 * PRICE))
    for path in ("/echo?q=secret", "/status/500", "/status/404", "/close", "/empty"):
        harness.call("", api, path, proof, is_recorded=False)
    harness.call(
        "", api, "/echo", [*proof, ("Idempotency-Key", "h"), ("X-Request-Id", "mine")], is_recorded=False
    )
    harness.call(
        "", other, "/echo", plain(BOB, harness.node.pay(BOB.address, ALICE.address, PRICE)), is_recorded=False
    )
    for dialect in (V2, V1):
        headers = show(harness, ALICE, quote(harness, api, "/echo"), dialect)
        harness.call("", api, "/echo", headers, is_recorded=False)
    with harness.section("history"):
        first = harness.control("all", ALICE, "GET", "/history").json["calls"]
        queries = (
            "?limit=2",
            "?limit=2&offset=2",
            f"?apiId={api}&limit=1",
            "?status=succeeded",
            "?status=failed",
            "?status=unknown",
            "?status=pending",
            "?role=provider",
            "?role=payer&limit=1",
            f"?from={first[3]['createdAt']}",
            f"?to={first[3]['createdAt']}",
            f"?before={first[2]['id']}&limit=2",
            "?limit=0",
            "?limit=1001",
            "?offset=10001",
            "?status=lost",
            "?role=owner",
            "?from=yesterday",
            "?colour=red",
            "?before=call_x",
            "?apiId=api_00000000000000000000000000",
        )
        for query in queries:
            harness.control(f"history {query}", ALICE, "GET", f"/history{query}")
        harness.control("nothing", Account("nobody"), "GET", "/history")
        one = first[0]["id"]
        harness.control("one call, by its payer", ALICE, "GET", f"/history/{one}")
        harness.control("one call, by its provider", PROVIDER, "GET", f"/history/{one}")
        harness.control("one call, by another", BOB, "GET", f"/history/{one}")
        harness.control("no such call", ALICE, "GET", "/history/call_00000000000000000000000000")
        harness.control(
            "a call that is decided", PROVIDER, "POST", f"/history/{one}/resolution", {"outcome": "released"}
        )
        harness.control(
            "a call of another", BOB, "POST", f"/history/{one}/resolution", {"outcome": "released"}
        )
        harness.control("without an outcome", PROVIDER, "POST", f"/history/{one}/resolution", {})
        harness.ask("unsigned", "GET", f"{API}/history/{one}")
    with harness.section("receipts"):
        for call in first:
            paid = call["payment"]
            title = f"{call['path']} {call['httpStatus']}, {paid['state']} by {paid['rail']}"
            harness.control(title, ALICE, "GET", f"/history/{call['id']}/receipt")
        harness.control("by its provider", PROVIDER, "GET", f"/history/{one}/receipt")
        harness.control("by another", BOB, "GET", f"/history/{one}/receipt")
        harness.control("no such call", ALICE, "GET", "/history/call_00000000000000000000000000/receipt")
        harness.control("with a parameter", ALICE, "GET", f"/history/{one}/receipt?format=pdf")
        harness.ask("unsigned", "GET", f"{API}/history/{one}/receipt")


def play_payments(harness: Harness) -> None:
    api, node = harness.publish(PROVIDER, name="Payments"), harness.node
    credited = node.pay(BOB.address, PROVIDER.address, 3 * PRICE)
    harness.call("", api, "/echo", plain(BOB, credited), is_recorded=False)
    spent = node.pay(BOB.address, PROVIDER.address, PRICE)
    harness.call("", api, "/echo", plain(BOB, spent), is_recorded=False)
    with harness.section("payments"):
        harness.control("all", BOB, "GET", "/payments")
        harness.control("a page", BOB, "GET", "/payments?limit=1&offset=1")
        harness.control("a bad page", BOB, "GET", "/payments?limit=x")
        harness.control("with credit", BOB, "GET", f"/payments/{credited}")
        harness.control("spent", BOB, "GET", f"/payments/{spent}")
        harness.control("of another", ALICE, "GET", f"/payments/{spent}")
        fresh = node.pay(BOB.address, PROVIDER.address, PRICE)
        harness.control("not shown yet", BOB, "GET", f"/payments/{fresh}")
        waiting = node.pay(BOB.address, PROVIDER.address, PRICE, is_mined=False)
        harness.control("in the pool", BOB, "GET", f"/payments/{waiting}")
        harness.control("unknown", BOB, "GET", "/payments/0x" + "cd" * 32)
        failed = node.transact(BOB.address, node.token, succeeds=False)
        harness.control("failed", BOB, "GET", f"/payments/{failed}")
        harness.control("no hash", BOB, "GET", "/payments/0x12")
        harness.ask("unsigned", "GET", f"{API}/payments")

    with harness.section("books as files, and who may read them"):
        for query in (
            "",
            "?limit=1",
            "?limit=1&role=provider",
            "?offset=1",
            "?limit=100001",
            "?before=call_x",
        ):
            harness.control(f"history.csv {query}", BOB, "GET", f"/history.csv{query}")
        for query in ("", "?limit=1", f"?before={credited}", f"?before={credited}.9", "?before=0x12"):
            harness.control(f"payments.csv {query}", BOB, "GET", f"/payments.csv{query}")
        harness.ask("unsigned", "GET", f"{API}/history.csv")
        mine = f"wallet={BOB.address}"
        reads = ("/history.csv", "/payments", "/history", "/payments.csv", f"/payments/{spent}")
        for path in reads:
            harness.control(f"{path} of another", ALICE, "GET", f"{path}?{mine}")
        permission = f"/viewers/{ALICE.address}"
        harness.control("a viewer without an end", BOB, "PUT", permission, {})
        harness.control("for ever", BOB, "PUT", permission, {"until": "2099-01-01T00:00:00.000Z"})
        until = f"{datetime.fromtimestamp(harness.clock.now_s + 86_400, UTC):%Y-%m-%dT%H:%M:%S}.000Z"
        harness.control("until tomorrow", BOB, "PUT", permission, {"until": until})
        harness.control("whom it reads", ALICE, "GET", "/viewers")
        for path in reads:
            harness.control(f"{path} as a viewer", ALICE, "GET", f"{path}?{mine}")
        harness.control("deleted", BOB, "DELETE", permission)
        harness.control("no longer", ALICE, "GET", f"/history?{mine}")

    with harness.section("history for clients of x402"):
        harness.ask("without a proof", "GET", "/x402/history")
        signed = sign_request(
            BOB, "GET", "/x402/history", b"", now_s=harness.clock.now_s + 1, label="x402 history"
        )
        harness.ask("signed", "GET", "/x402/history", signed)

    with harness.section("a payment that is not recorded, while no node answers"):
        node.is_away = True
        harness.control("unknown", BOB, "GET", "/payments/0x" + "cd" * 32, counts_rpc=False)


def play_refunds(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Refunded")
    paid = harness.node.pay(ALICE.address, PROVIDER.address, 3 * PRICE)
    for path in ("/echo?first", "/echo?second", "/status/500"):
        harness.call("", api, path, plain(ALICE, paid), is_recorded=False)
    back = harness.node.pay(PROVIDER.address, ALICE.address, PRICE)

    def refund(title: str, call: str, content: object, *, account: Account = PROVIDER) -> None:
        harness.control(title, account, "POST", f"/history/{call}/refund", content)

    with harness.section("refunds"):
        calls = harness.control("the calls", ALICE, "GET", f"/history?apiId={api}").json["calls"]
        failed, second, first = (call["id"] for call in calls)
        refund("of a call that was not charged", failed, {"transaction": back})
        refund("by another wallet", first, {"transaction": back}, account=BOB)
        refund("by a transfer to another wallet", first, {"transaction": paid})
        refund("without a transfer", first, {})
        refund("by a transfer", first, {"transaction": back})
        refund("the same again", first, {"transaction": back})
        refund("of another call by that transfer", second, {"transaction": back})
        credit = keccak256(f"tollway refund credit {second}".encode())
        harness.recorder.learn("credit", "0x" + credit.hex())
        refund("as credit", second, {"credit": True})
        refund("of a call that is refunded", first, {"credit": True})
        harness.control("a refunded call, by its payer", ALICE, "GET", f"/history/{first}")
