"""Calls paid by signed authorisations: x402 v2, x402 v1 and MPP."""

from collections.abc import Callable
from typing import Any

from tests.transcripts.payer import DIALECTS, MPP, V1, V2, dress, quote, show
from tests.transcripts.signing import Account, checksum, decode, encode, keccak256, plain
from tests.transcripts.stage import Stage

PROVIDER, OTHER, ALICE, BOB, POOR = (Account(name) for name in ("provider", "other", "alice", "bob", "poor"))
PRICE = 10_000


def play(stage: Stage) -> None:
    for dialect in DIALECTS:
        stage.clock.advance(61)  # the limit of look-ups counts by the minute
        play_paid(stage, dialect)
        play_refused(stage, dialect)
        if dialect != V1:  # differs from v2 in what it reads and writes, and no more
            play_late(stage, dialect)
    play_wallets(stage)
    play_mpp(stage)


def play_paid(stage: Stage, dialect: str) -> None:
    api = stage.publish(PROVIDER, name=f"Paid by {dialect}")
    with stage.scene(f"{dialect}: paid"):
        stage.call("unpaid", api, "/echo?x=1")
        stage.call("GET", api, "/echo?x=1", show(stage, ALICE, quote(stage, api, "/echo?x=1"), dialect))
        asked = quote(stage, api, "/echo")
        stage.call(
            "POST",
            api,
            "/echo",
            show(stage, ALICE, quote(stage, api, "/echo", method="POST"), dialect),
            method="POST",
            body=b"body",
        )
        stage.call("chunks", api, "/stream", show(stage, ALICE, quote(stage, api, "/stream"), dialect))
        stage.call("big", api, "/big", show(stage, ALICE, quote(stage, api, "/big"), dialect))
        stage.call("cut", api, "/cut", show(stage, ALICE, quote(stage, api, "/cut"), dialect))
        stage.call(
            "the least price allowed",
            api,
            "/echo",
            [*show(stage, ALICE, asked, dialect), ("Tollway-Max-Price", "0.001")],
        )
        asked = quote(stage, api, "/echo")
        stage.call(
            "enough allowed",
            api,
            "/echo",
            [*show(stage, ALICE, asked, dialect), ("Tollway-Max-Price", "0.01")],
        )


def play_refused(stage: Stage, dialect: str) -> None:
    api = stage.publish(PROVIDER, name=f"Refused by {dialect}")
    foreign = stage.publish(OTHER, name=f"Foreign to {dialect}")
    node = stage.node
    node.balances[POOR.address] = PRICE - 1
    asked = quote(stage, api)

    def shown(account: Account = ALICE, **options: Any) -> list[tuple[str, str]]:
        return show(stage, account, quote(stage, api), dialect, **options)

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
        ("expired", shown(validBefore=str(stage.clock.now_s - 1))),
        ("ends too soon", shown(valid_s=20)),
        ("valid for ever", shown(validBefore=str(2**48))),
        ("not yet valid", shown(validAfter=str(stage.clock.now_s + 500))),
        ("a value that is no number", shown(edit=_field(dialect, "value", "ten"))),
        ("a nonce too short", shown(edit=_field(dialect, "nonce", "0x12"))),
        ("no signature", shown(edit=lambda content: content["payload"].pop("signature"))),
        ("no payload", shown(edit=lambda content: content.pop("payload"))),
        ("a payer without the money", shown(POOR)),
        ("a listing of another payee", show(stage, ALICE, quote(stage, foreign), dialect)),
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
    with stage.scene(f"{dialect}: refused"):
        for title, headers in rows:
            stage.call(title, api, "/echo", headers)
        headers = shown()
        stage.call("no such listing", "api_00000000000000000000000000", "/echo", headers)
        stage.call("a list", api, "/echo", dress(dialect, encode([], is_urlsafe=dialect == MPP)))
        stage.call("two of them", api, "/echo", headers + headers)
        stage.call("a key that cannot be read", api, "/echo", [*headers, ("Idempotency-Key", "")])
        dear = stage.publish(PROVIDER, name=f"Tiny {dialect}", pricePerRequest="0.0001")
        stage.call("too small to settle", dear, "/echo")
        stage.call("an authorisation for it", dear, "/echo", show(stage, ALICE, asked, dialect))

    with stage.scene(f"{dialect}: what the chain says"):
        headers = shown(BOB)
        used = _nonce_of(headers, dialect)
        node.use_authorization(BOB.address, PROVIDER.address, PRICE, used, BOB.address)
        stage.call("used by another transaction", api, "/echo", headers)
        tx = node.used[BOB.address, used]
        stage.call("that transaction as a payment", api, "/echo", plain(BOB, tx))
        headers = shown(BOB)
        node.is_away = True
        stage.call("no node answers", api, "/echo", headers, counts_rpc=False)
        node.is_away = False
        stage.clock.advance(10)
        stage.call("it answers again", api, "/echo", headers)


def _field(dialect: str, name: str, value: str) -> Callable[[Any], None]:
    def edit(content: Any) -> None:
        payload = content["payload"]
        (payload if dialect == MPP else payload["authorization"])[name] = value

    return edit


def _nonce_of(headers: list[tuple[str, str]], dialect: str) -> str:
    payload = decode(headers[0][1].removeprefix("Payment "))["payload"]
    return str((payload if dialect == MPP else payload["authorization"])["nonce"])


def play_late(stage: Stage, dialect: str) -> None:
    api, node = stage.publish(PROVIDER, name=f"Too late by {dialect}"), stage.node
    with stage.scene(f"{dialect}: the money goes while the upstream works"):
        headers = show(stage, POOR, quote(stage, api, "/hold"), dialect)
        node.balances[POOR.address] = PRICE
        first = stage.begin("simulation fails at the end", "GET", f"/api/v2/gateway/{api}/hold", headers)
        stage.upstream.wait_arrival()
        node.balances[POOR.address] = 0
        stage.upstream.release()
        first.finish()
        stage.call("again", api, "/hold?not", headers)


def play_wallets(stage: Stage) -> None:
    wallet = checksum(keccak256(b"paying wallet")[:20])
    stage.node.wallets[wallet] = BOB.address
    api = stage.publish(PROVIDER, name="Wallets")
    for dialect in DIALECTS:
        with stage.scene(f"{dialect}: a contract wallet"):
            good = show(stage, BOB, quote(stage, api), dialect, payer=wallet)
            stage.call("signed by its owner", api, "/echo", good)
            stage.call("again", api, "/echo", good)
            stage.call(
                "signed by another",
                api,
                "/echo",
                show(stage, ALICE, quote(stage, api), dialect, payer=wallet),
            )
            keyed = [
                *show(stage, BOB, quote(stage, api), dialect, payer=wallet),
                ("Idempotency-Key", f"w {dialect}"),
            ]
            stage.call("with a key", api, "/echo", keyed)
            stage.call("with a key again", api, "/echo", keyed)


def play_mpp(stage: Stage) -> None:
    api = stage.publish(PROVIDER, name="Challenges")
    with stage.scene("challenges of MPP"):
        asked = quote(stage, api, "/echo")
        stage.call("for another path", api, "/other", show(stage, ALICE, asked, MPP))
        stage.call(
            "for another method", api, "/echo", show(stage, ALICE, asked, MPP), method="POST", body=b"x"
        )
        stage.clock.advance(700)
        stage.call("an old one", api, "/echo", show(stage, ALICE, asked, MPP))
        stage.call("an old quote of x402", api, "/echo", show(stage, ALICE, asked, V2))
        stage.call("two schemes", api, "/echo", [("Authorization", "Payment e30, Bearer x")])
