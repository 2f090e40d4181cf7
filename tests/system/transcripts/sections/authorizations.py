"""Calls paid by signed authorisations: x402 v2, x402 v1 and MPP."""

from collections.abc import Callable
from typing import Any

from tests.system.transcripts.harness import Harness
from tests.system.transcripts.payer import DIALECTS, MPP, V1, V2, dress, quote, show
from tests.system.transcripts.signing import Account, checksum, decode, encode, keccak256, plain

PROVIDER, OTHER, ALICE, BOB, POOR = (Account(name) for name in ("provider", "other", "alice", "bob", "poor"))
PRICE = 10_000


def play(harness: Harness) -> None:
    for dialect in DIALECTS:
        harness.clock.advance(61)  # the limit of look-ups counts by the minute
        play_paid(harness, dialect)
        play_refused(harness, dialect)
        if dialect != V1:  # differs from v2 in what it reads and writes, and no more
            play_late(harness, dialect)
    play_wallets(harness)
    play_mpp(harness)


def play_paid(harness: Harness, dialect: str) -> None:
    api = harness.publish(PROVIDER, name=f"Paid by {dialect}")
    with harness.section(f"{dialect}: paid"):
        harness.call("unpaid", api, "/echo?x=1")
        harness.call("GET", api, "/echo?x=1", show(harness, ALICE, quote(harness, api, "/echo?x=1"), dialect))
        asked = quote(harness, api, "/echo")
        harness.call(
            "POST",
            api,
            "/echo",
            show(harness, ALICE, quote(harness, api, "/echo", method="POST"), dialect),
            method="POST",
            body=b"body",
        )
        harness.call("chunks", api, "/stream", show(harness, ALICE, quote(harness, api, "/stream"), dialect))
        harness.call("big", api, "/big", show(harness, ALICE, quote(harness, api, "/big"), dialect))
        harness.call("cut", api, "/cut", show(harness, ALICE, quote(harness, api, "/cut"), dialect))
        harness.call(
            "the least price allowed",
            api,
            "/echo",
            [*show(harness, ALICE, asked, dialect), ("Tollway-Max-Price", "0.001")],
        )
        asked = quote(harness, api, "/echo")
        harness.call(
            "enough allowed",
            api,
            "/echo",
            [*show(harness, ALICE, asked, dialect), ("Tollway-Max-Price", "0.01")],
        )


def play_refused(harness: Harness, dialect: str) -> None:
    api = harness.publish(PROVIDER, name=f"Refused by {dialect}")
    foreign = harness.publish(OTHER, name=f"Foreign to {dialect}")
    node = harness.node
    node.balances[POOR.address] = PRICE - 1
    asked = quote(harness, api)

    def shown(account: Account = ALICE, **options: Any) -> list[tuple[str, str]]:
        return show(harness, account, quote(harness, api), dialect, **options)

    def at(*path: str) -> Callable[[Any], None]:
        """Sets a member after signing: the last of the names is the value."""

        def edit(content: Any) -> None:
            *way, name, value = path
            for one in way:
                content = content[one]
            content[name] = value

        return edit

    rows: list[tuple[str, list[tuple[str, str]]]] = [
        ("less than the price", shown(value=str(PRICE - 1))),
        ("more than the price", shown(value=str(PRICE + 1))),
        ("to another payee", shown(to=OTHER.address)),
        ("to itself", shown(to=ALICE.address)),
        ("signature of something else", shown(spoil=True)),
        ("expired", shown(validBefore=str(harness.clock.now_s - 1))),
        ("ends too soon", shown(valid_s=20)),
        ("valid for ever", shown(validBefore=str(2**48))),
        ("not yet valid", shown(validAfter=str(harness.clock.now_s + 500))),
        ("a value that is no number", shown(edit=_field(dialect, "value", "ten"))),
        ("a nonce too short", shown(edit=_field(dialect, "nonce", "0x12"))),
        ("no signature", shown(edit=lambda content: content["payload"].pop("signature"))),
        ("no payload", shown(edit=lambda content: content.pop("payload"))),
        ("a payer without the money", shown(POOR)),
        ("a listing of another payee", show(harness, ALICE, quote(harness, foreign), dialect)),
    ]
    if dialect == V2:
        rows += [
            ("another scheme", shown(edit=at("accepted", "scheme", "upto"))),
            ("another network", shown(edit=at("accepted", "network", "eip155:1"))),
            ("another version", shown(edit=lambda content: content.update(x402Version=3))),
            ("another amount accepted", shown(edit=at("accepted", "amount", "1"))),
            ("another resource", shown(edit=at("resource", "url", "https://other.example/"))),
        ]
    if dialect == V1:
        rows += [
            ("another scheme", shown(edit=at("scheme", "upto"))),
            ("another network", shown(edit=at("network", "base"))),
        ]
    if dialect == MPP:
        rows += [
            ("another challenge id", shown(edit=at("challenge", "id", "A" * 43))),
            ("another request", shown(edit=at("challenge", "request", encode({}, is_urlsafe=True)))),
            ("another realm", shown(edit=at("challenge", "realm", "other.example"))),
            ("another method", shown(edit=at("challenge", "method", "tempo"))),
            ("another nonce", shown(nonce="0x" + "22" * 32)),
            ("a later end", shown(edit=at("challenge", "expires", "2030-01-01T00:00:00.000Z"))),
        ]
    with harness.section(f"{dialect}: refused"):
        for title, headers in rows:
            harness.call(title, api, "/echo", headers)
        headers = shown()
        harness.call("no such listing", "api_00000000000000000000000000", "/echo", headers)
        harness.call("a list", api, "/echo", dress(dialect, encode([], is_urlsafe=dialect == MPP)))
        harness.call("two of them", api, "/echo", headers + headers)
        harness.call("a key that cannot be read", api, "/echo", [*headers, ("Idempotency-Key", "")])
        dear = harness.publish(PROVIDER, name=f"Tiny {dialect}", pricePerRequest="0.0001")
        harness.call("too small to settle", dear, "/echo")
        harness.call("an authorisation for it", dear, "/echo", show(harness, ALICE, asked, dialect))

    with harness.section(f"{dialect}: what the chain says"):
        headers = shown(BOB)
        used = _nonce_of(headers, dialect)
        node.use_authorization(BOB.address, PROVIDER.address, PRICE, used, BOB.address)
        harness.call("used by another transaction", api, "/echo", headers)
        tx = node.used[BOB.address, used]
        harness.call("that transaction as a payment", api, "/echo", plain(BOB, tx))
        headers = shown(BOB)
        node.is_away = True
        harness.call("no node answers", api, "/echo", headers, counts_rpc=False)
        node.is_away = False
        harness.clock.advance(10)
        harness.call("it answers again", api, "/echo", headers)


def _field(dialect: str, name: str, value: str) -> Callable[[Any], None]:
    def edit(content: Any) -> None:
        payload = content["payload"]
        (payload if dialect == MPP else payload["authorization"])[name] = value

    return edit


def _nonce_of(headers: list[tuple[str, str]], dialect: str) -> str:
    payload = decode(headers[0][1].removeprefix("Payment "))["payload"]
    return str((payload if dialect == MPP else payload["authorization"])["nonce"])


def play_late(harness: Harness, dialect: str) -> None:
    api, node = harness.publish(PROVIDER, name=f"Too late by {dialect}"), harness.node
    with harness.section(f"{dialect}: the money goes while the upstream works"):
        headers = show(harness, POOR, quote(harness, api, "/hold"), dialect)
        node.balances[POOR.address] = PRICE
        first = harness.begin("simulation fails at the end", "GET", f"/api/v2/gateway/{api}/hold", headers)
        harness.upstream.wait_arrival()
        node.balances[POOR.address] = 0
        harness.upstream.release()
        first.finish()
        harness.call("again", api, "/hold?not", headers)


def play_wallets(harness: Harness) -> None:
    wallet = checksum(keccak256(b"paying wallet")[:20])
    harness.node.wallets[wallet] = BOB.address
    api = harness.publish(PROVIDER, name="Wallets")
    for dialect in DIALECTS:
        with harness.section(f"{dialect}: a contract wallet"):
            good = show(harness, BOB, quote(harness, api), dialect, payer=wallet)
            harness.call("signed by its owner", api, "/echo", good)
            harness.call("again", api, "/echo", good)
            harness.call(
                "signed by another",
                api,
                "/echo",
                show(harness, ALICE, quote(harness, api), dialect, payer=wallet),
            )
            keyed = [
                *show(harness, BOB, quote(harness, api), dialect, payer=wallet),
                ("Idempotency-Key", f"w {dialect}"),
            ]
            harness.call("with a key", api, "/echo", keyed)
            harness.call("with a key again", api, "/echo", keyed)


def play_mpp(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Challenges")
    with harness.section("challenges of MPP"):
        asked = quote(harness, api, "/echo")
        harness.call("for another path", api, "/other", show(harness, ALICE, asked, MPP))
        harness.call(
            "for another method", api, "/echo", show(harness, ALICE, asked, MPP), method="POST", body=b"x"
        )
        harness.clock.advance(700)
        harness.call("an old one", api, "/echo", show(harness, ALICE, asked, MPP))
        harness.call("an old quote of x402", api, "/echo", show(harness, ALICE, asked, V2))
        harness.call("two schemes", api, "/echo", [("Authorization", "Payment e30, Bearer x")])
