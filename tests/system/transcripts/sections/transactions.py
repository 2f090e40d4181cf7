"""Calls paid by transactions (`X-Payment-Tx`) and the credit that they leave."""

from tests.system.transcripts.harness import SECOND_CHAIN, SECOND_TOKEN, Harness
from tests.system.transcripts.signing import TOKEN, Account, bound, checksum, keccak256, plain

PROVIDER, OTHER, ALICE, BOB, CAROL = (
    Account(name) for name in ("provider", "other", "alice", "bob", "carol")
)
PRICE = 10_000
DAY_BLOCKS = 43_200


def play(harness: Harness) -> None:
    play_credit(harness)
    play_verdicts(harness)
    play_chains(harness)
    play_bound(harness)
    play_prices(harness)


def pay(harness: Harness, account: Account = ALICE, calls: float = 1, to: Account = PROVIDER) -> str:
    return harness.node.pay(account.address, to.address, int(calls * PRICE))


def play_credit(harness: Harness) -> None:
    api = harness.publish(PROVIDER)
    with harness.section("a payment worth three calls"):
        harness.call("unpaid", api, "/echo?x=1")
        tx = pay(harness, calls=3)
        harness.call("paid", api, "/echo?x=1", plain(ALICE, tx))
        harness.call("credit", api, "/echo?x=1", plain(ALICE, tx))
        harness.call("credit, HEAD", api, "/echo", plain(ALICE, tx), method="HEAD")
        harness.call("all is spent", api, "/echo", plain(ALICE, tx))
        harness.call("by somebody else", api, "/echo", plain(BOB, tx))

    with harness.section("spellings of one proof"):
        tx = pay(harness, calls=6)
        harness.call(
            "upper case", api, "/echo", [("X-Payment-Tx", "0X" + tx[2:].upper()), plain(ALICE, tx)[1]]
        )
        raw = ALICE.sign_text(bytes.fromhex(tx[2:]))
        harness.call("signed as bytes", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", raw)])
        text = plain(ALICE, tx)[1][1]
        low = text[:-2] + f"{int(text[-2:], 16) - 27:02x}"
        harness.call("v of 0 or 1", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", low)])
        harness.call(
            "signature in upper case",
            api,
            "/echo",
            [("X-Payment-Tx", tx), ("X-Signature", "0x" + text[2:].upper())],
        )
        network = [*plain(ALICE, tx), ("X-Payment-Network", "eip155:84532")]
        harness.call("network named", api, "/echo", network)
        harness.call(
            "another network named",
            api,
            "/echo",
            [*plain(ALICE, tx), ("X-Payment-Network", f"eip155:{SECOND_CHAIN}")],
        )

    with harness.section("less than the price, then the difference"):
        tx = pay(harness, CAROL, 0.4)
        harness.call("too little", api, "/echo", plain(CAROL, tx))
        again = pay(harness, CAROL, 0.6)
        harness.call("the difference", api, "/echo", plain(CAROL, again))
        harness.call("the first one again", api, "/echo", plain(CAROL, tx))

    with harness.section("several transfers in one transaction"):
        node = harness.node
        logs = [node.transfer_log(ALICE.address, PROVIDER.address, PRICE) for _ in range(2)]
        logs += [node.transfer_log(BOB.address, PROVIDER.address, PRICE)]
        logs += [node.transfer_log(PROVIDER.address, BOB.address, PRICE // 2)]
        tx = node.transact(CAROL.address, TOKEN, logs=logs)
        harness.call("first payer", api, "/echo", plain(ALICE, tx))
        harness.call("first payer again", api, "/echo", plain(ALICE, tx))
        harness.call("second payer, who got half of it back", api, "/echo", plain(BOB, tx))
        harness.call("the sender, who paid nothing", api, "/echo", plain(CAROL, tx))

    with harness.section("two listings of one payee, and one of another"):
        second = harness.publish(PROVIDER, name="Second", pricePerRequest="0.02")
        foreign = harness.publish(OTHER, name="Foreign")
        tx = pay(harness, calls=3)
        harness.call("the dear one", second, "/echo", plain(ALICE, tx))
        harness.call("the cheap one", api, "/echo", plain(ALICE, tx))
        harness.call("of another payee", foreign, "/echo", plain(ALICE, tx))


def play_verdicts(harness: Harness) -> None:
    api, node = harness.publish(PROVIDER, name="Verdicts"), harness.node
    to, payer = PROVIDER.address, ALICE.address
    with harness.section("transactions that pay nothing"):
        other = checksum(keccak256(b"other token")[:20])
        rows = {
            "paid to another": node.pay(payer, OTHER.address, PRICE),
            "another token": node.transact(
                payer, other, logs=[node.transfer_log(payer, to, PRICE, token=other)]
            ),
            "failed": node.transact(payer, TOKEN, succeeds=False),
            "no logs": node.transact(payer, TOKEN),
            "nothing moved": node.pay(payer, to, 0),
            "paid to itself": node.pay(payer, payer, PRICE),
            "native, for a token's listing": node.pay_native(payer, to, 10**16),
            "by an authorisation": node.transact(
                BOB.address,
                TOKEN,
                logs=[node.used_log(payer, "0x" + "11" * 32), node.transfer_log(payer, to, PRICE)],
            ),
            "a transfer with four topics": node.transact(
                payer, TOKEN, logs=[_with_topic(node.transfer_log(payer, to, PRICE))]
            ),
            "less than a ledger unit of another": node.pay(payer, to, 1),
        }
        for title, tx in rows.items():
            harness.call(title, api, "/echo", plain(ALICE, tx))
        harness.call("signed by somebody else", api, "/echo", plain(BOB, pay(harness)))

    with harness.section("before its time, after its time"):
        old = node.pay(payer, to, PRICE, height=node.head - DAY_BLOCKS - 10)
        harness.call("a day old", api, "/echo", plain(ALICE, old))
        early = node.pay(payer, to, PRICE, height=node.head - DAY_BLOCKS + 10)
        harness.call("not a day old, and before the listing", api, "/echo", plain(ALICE, early))
        harness.call("not a day old, admitted by the operator?", api, "/echo", plain(ALICE, early))

    with harness.section("transactions that are not mined yet"):
        unknown = "0x" + keccak256(b"unknown").hex()
        harness.call("unknown", api, "/echo", plain(ALICE, unknown))
        waiting = node.pay(payer, to, PRICE, is_mined=False)
        harness.call("in the pool", api, "/echo", plain(ALICE, waiting))
        node.mine(waiting)
        harness.call("mined", api, "/echo", plain(ALICE, waiting))

    with harness.section("a contract wallet pays"):
        wallet = checksum(keccak256(b"wallet")[:20])
        node.wallets[wallet] = BOB.address
        tx = node.pay(wallet, to, 2 * PRICE)
        signature = plain(BOB, tx)[1][1]
        harness.call(
            "signed by its owner", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", signature + "01")]
        )
        harness.call("again", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", signature + "01")])
        wrong = plain(ALICE, tx)[1][1]
        harness.call("signed by another", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", wrong + "01")])

    with harness.section("native currency"):
        ether = harness.publish(PROVIDER, name="Ether", pricePerRequest="0.001", currency="ETH")
        harness.call("unpaid", ether, "/echo")
        tx = node.pay_native(payer, to, 2 * 10**15)
        harness.call("paid", ether, "/echo", plain(ALICE, tx))
        harness.call("credit", ether, "/echo", plain(ALICE, tx))
        harness.call("spent", ether, "/echo", plain(ALICE, tx))
        harness.call("shown for dollars", api, "/echo", plain(ALICE, tx))


def _with_topic(log: dict[str, object]) -> dict[str, object]:
    topics = log["topics"]
    assert isinstance(topics, list)
    return {**log, "topics": [*topics, "0x" + "00" * 32]}


def play_chains(harness: Harness) -> None:
    node, second = harness.node, harness.second
    api = harness.publish(PROVIDER, name="Both", networks=["eip155:84532", f"eip155:{SECOND_CHAIN}"])
    to = PROVIDER.address
    with harness.section("a network that wants three confirmations"):
        harness.call("unpaid", api, "/echo")
        tx = second.pay(ALICE.address, to, 3 * PRICE)
        harness.call("one", api, "/echo", plain(ALICE, tx))
        harness.clock.advance(6)
        harness.call("three", api, "/echo", plain(ALICE, tx))
        harness.call(
            "credit", api, "/echo", [*plain(ALICE, tx), ("X-Payment-Network", f"eip155:{SECOND_CHAIN}")]
        )
        harness.call(
            "the wrong network named",
            api,
            "/echo",
            [*plain(ALICE, tx), ("X-Payment-Network", "eip155:84532")],
        )

    with harness.section("nodes that do not answer"):
        known = pay(harness, calls=2)
        harness.call("all is well", api, "/echo", plain(ALICE, known))
        elsewhere = second.pay(ALICE.address, to, PRICE)
        fresh = pay(harness)
        node.is_away = True
        harness.call("known credit", api, "/echo", plain(ALICE, known))
        harness.call("a payment that nobody has seen", api, "/echo", plain(ALICE, fresh))
        harness.clock.advance(6)
        harness.call("one network is away, the other one has it", api, "/echo", plain(ALICE, elsewhere))
        harness.call("unpaid", api, "/echo")
        node.is_away = False
        harness.clock.advance(10)
        harness.call("it is back", api, "/echo", plain(ALICE, fresh))

    with harness.section("a token of the second network"):
        assert SECOND_TOKEN != TOKEN
        logs = [second.transfer_log(ALICE.address, to, PRICE, token=TOKEN)]
        tx = second.transact(ALICE.address, TOKEN, logs=logs)
        harness.clock.advance(6)
        harness.call("the first network's token there", api, "/echo", plain(ALICE, tx))


def play_bound(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Bound")
    strict = harness.publish(PROVIDER, name="Strict", signature="bound")

    def sign(tx: str, rest: str, **options: object) -> list[tuple[str, str]]:
        now_s = int(options.pop("now_s", harness.clock.now_s + 1))  # type: ignore[call-overload]
        label = str(options.pop("label", harness.next_label()))
        return bound(ALICE, tx, str(options.pop("api", api)), rest, now_s=now_s, label=label, **options)  # type: ignore[arg-type]

    with harness.section("signatures bound to one request"):
        tx = pay(harness, calls=20)
        harness.call("the plain form", api, "/echo", plain(ALICE, tx))
        first = sign(tx, "/echo?x=1")
        harness.call("bound", api, "/echo?x=1", first)
        harness.call("the same again", api, "/echo?x=1", first)
        harness.call("the plain form, ended", api, "/echo", plain(ALICE, tx))
        harness.call("for another path", api, "/other", sign(tx, "/echo"))
        harness.call(
            "for another method", api, "/echo", sign(tx, "/echo", method="PUT"), method="POST", body=b"x"
        )
        harness.call("for another API", api, "/echo", sign(tx, "/echo", api=strict))
        harness.call("expired", api, "/echo", sign(tx, "/echo", now_s=harness.clock.now_s - 400))
        harness.call("valid for too long", api, "/echo", sign(tx, "/echo", valid_s=900))
        harness.call(
            "a body",
            api,
            "/echo",
            sign(tx, "/echo", method="POST", body=b'{"a":1}'),
            method="POST",
            body=b'{"a":1}',
        )
        unread = sign(tx, "/echo", method="POST", body=b"read first", names_body=False)
        harness.call("a body that is read first", api, "/echo", unread, method="POST", body=b"read first")
        other = sign(tx, "/echo", method="POST", body=b"promised body")
        harness.call("another body than signed", api, "/echo", other, method="POST", body=b"another body!")
        other = sign(tx, "/echo", method="POST", body=b"promised", names_body=False)
        harness.call("another body, read first", api, "/echo", other, method="POST", body=b"another!")
        large = sign(tx, "/echo", method="POST", body=b"l" * 1_100_000, names_body=False)
        harness.call(
            "a body too large to be read first", api, "/echo", large, method="POST", body=b"l" * 1_100_000
        )
        chunked = [*sign(tx, "/echo", method="POST", body=b"chunked"), ("Transfer-Encoding", "chunked")]
        harness.call(
            "a body in chunks",
            api,
            "/echo",
            chunked,
            method="POST",
            body=b"3\r\nchu\r\n4\r\nnked\r\n0\r\n\r\n",
        )
        failing = sign(tx, "/status/500")
        harness.call("a call that is not charged", api, "/status/500", failing)
        harness.call("its nonce may be used again", api, "/status/500", failing)

    with harness.section("a listing that wants the bound form"):
        tx = pay(harness, calls=2)
        harness.call("unpaid", strict, "/echo")
        harness.call("plain", strict, "/echo", plain(ALICE, tx))
        harness.call("bound", strict, "/echo", sign(tx, "/echo", api=strict))


def play_prices(harness: Harness) -> None:
    api = harness.publish(PROVIDER, name="Prices")

    def edit(title: str, **changes: object) -> None:
        fields = {
            "name": "Prices",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": harness.upstream.url,
        }
        fields |= {"networks": ["eip155:84532"], **changes}
        harness.control(title, PROVIDER, "PUT", f"/apis/{api}", fields)

    with harness.section("the most that a call may cost"):
        tx = pay(harness, calls=3)
        for most in ("0.01", "0.009", "1", "0.0100", "01", "-1", ""):
            harness.call(f"at most {most!r}", api, "/echo", [*plain(ALICE, tx), ("Tollway-Max-Price", most)])

    with harness.section("a price that changes"):
        tx = pay(harness, calls=10)
        edit("dearer", pricePerRequest="0.03")
        harness.call("the price of before still counts", api, "/echo", plain(ALICE, tx))
        harness.call("a quote tells the new one", api, "/echo")
        harness.clock.advance(601)
        harness.call("ten minutes later", api, "/echo", plain(ALICE, tx))
        edit("cheaper", pricePerRequest="0.02")
        harness.call("at once", api, "/echo", plain(ALICE, tx))
        edit("another payee", pricePerRequest="0.02", payTo=OTHER.address)
        harness.call("credit with the payee of before", api, "/echo", plain(ALICE, tx))
        late = pay(harness, calls=4)
        harness.call("a payment to the payee of before", api, "/echo", plain(ALICE, late))
        harness.call("a payment to the new one", api, "/echo", plain(ALICE, pay(harness, calls=2, to=OTHER)))
        edit("another currency", pricePerRequest="0.001", currency="ETH", payTo=OTHER.address)
        harness.call("dollars for a listing that asks for ether", api, "/echo", plain(ALICE, late))
