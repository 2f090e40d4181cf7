"""Calls paid by transactions (`X-Payment-Tx`) and the credit that they leave."""

from tests.transcripts.signing import TOKEN, Account, bound, checksum, keccak256, plain
from tests.transcripts.stage import SECOND_CHAIN, SECOND_TOKEN, Stage

PROVIDER, OTHER, ALICE, BOB, CAROL = (
    Account(name) for name in ("provider", "other", "alice", "bob", "carol")
)
PRICE = 10_000
DAY_BLOCKS = 43_200


def play(stage: Stage) -> None:
    play_credit(stage)
    play_verdicts(stage)
    play_chains(stage)
    play_bound(stage)
    play_prices(stage)


def pay(stage: Stage, account: Account = ALICE, calls: float = 1, to: Account = PROVIDER) -> str:
    return stage.node.pay(account.address, to.address, int(calls * PRICE))


def play_credit(stage: Stage) -> None:
    api = stage.publish(PROVIDER)
    with stage.scene("a payment worth three calls"):
        stage.call("unpaid", api, "/echo?x=1")
        tx = pay(stage, calls=3)
        stage.call("paid", api, "/echo?x=1", plain(ALICE, tx))
        stage.call("credit", api, "/echo?x=1", plain(ALICE, tx))
        stage.call("credit, HEAD", api, "/echo", plain(ALICE, tx), method="HEAD")
        stage.call("all is spent", api, "/echo", plain(ALICE, tx))
        stage.call("by somebody else", api, "/echo", plain(BOB, tx))

    with stage.scene("spellings of one proof"):
        tx = pay(stage, calls=6)
        stage.call("upper case", api, "/echo", [("X-Payment-Tx", "0X" + tx[2:].upper()), plain(ALICE, tx)[1]])
        raw = ALICE.sign_text(bytes.fromhex(tx[2:]))
        stage.call("signed as bytes", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", raw)])
        text = plain(ALICE, tx)[1][1]
        low = text[:-2] + f"{int(text[-2:], 16) - 27:02x}"
        stage.call("v of 0 or 1", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", low)])
        stage.call(
            "signature in upper case",
            api,
            "/echo",
            [("X-Payment-Tx", tx), ("X-Signature", "0x" + text[2:].upper())],
        )
        network = [*plain(ALICE, tx), ("X-Payment-Network", "eip155:84532")]
        stage.call("network named", api, "/echo", network)
        stage.call(
            "another network named",
            api,
            "/echo",
            [*plain(ALICE, tx), ("X-Payment-Network", f"eip155:{SECOND_CHAIN}")],
        )

    with stage.scene("less than the price, then the difference"):
        tx = pay(stage, CAROL, 0.4)
        stage.call("too little", api, "/echo", plain(CAROL, tx))
        again = pay(stage, CAROL, 0.6)
        stage.call("the difference", api, "/echo", plain(CAROL, again))
        stage.call("the first one again", api, "/echo", plain(CAROL, tx))

    with stage.scene("several transfers in one transaction"):
        node = stage.node
        logs = [node.transfer_log(ALICE.address, PROVIDER.address, PRICE) for _ in range(2)]
        logs += [node.transfer_log(BOB.address, PROVIDER.address, PRICE)]
        logs += [node.transfer_log(PROVIDER.address, BOB.address, PRICE // 2)]
        tx = node.transact(CAROL.address, TOKEN, logs=logs)
        stage.call("first payer", api, "/echo", plain(ALICE, tx))
        stage.call("first payer again", api, "/echo", plain(ALICE, tx))
        stage.call("second payer, who got half of it back", api, "/echo", plain(BOB, tx))
        stage.call("the sender, who paid nothing", api, "/echo", plain(CAROL, tx))

    with stage.scene("two listings of one payee, and one of another"):
        second = stage.publish(PROVIDER, name="Second", pricePerRequest="0.02")
        foreign = stage.publish(OTHER, name="Foreign")
        tx = pay(stage, calls=3)
        stage.call("the dear one", second, "/echo", plain(ALICE, tx))
        stage.call("the cheap one", api, "/echo", plain(ALICE, tx))
        stage.call("of another payee", foreign, "/echo", plain(ALICE, tx))


def play_verdicts(stage: Stage) -> None:
    api, node = stage.publish(PROVIDER, name="Verdicts"), stage.node
    to, payer = PROVIDER.address, ALICE.address
    with stage.scene("transactions that pay nothing"):
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
            stage.call(title, api, "/echo", plain(ALICE, tx))
        stage.call("signed by somebody else", api, "/echo", plain(BOB, pay(stage)))

    with stage.scene("before its time, after its time"):
        old = node.pay(payer, to, PRICE, height=node.head - DAY_BLOCKS - 10)
        stage.call("a day old", api, "/echo", plain(ALICE, old))
        early = node.pay(payer, to, PRICE, height=node.head - DAY_BLOCKS + 10)
        stage.call("not a day old, and before the listing", api, "/echo", plain(ALICE, early))
        stage.call("not a day old, admitted by the operator?", api, "/echo", plain(ALICE, early))

    with stage.scene("transactions that are not mined yet"):
        unknown = "0x" + keccak256(b"unknown").hex()
        stage.call("unknown", api, "/echo", plain(ALICE, unknown))
        waiting = node.pay(payer, to, PRICE, is_mined=False)
        stage.call("in the pool", api, "/echo", plain(ALICE, waiting))
        node.mine(waiting)
        stage.call("mined", api, "/echo", plain(ALICE, waiting))

    with stage.scene("a contract wallet pays"):
        wallet = checksum(keccak256(b"wallet")[:20])
        node.wallets[wallet] = BOB.address
        tx = node.pay(wallet, to, 2 * PRICE)
        signature = plain(BOB, tx)[1][1]
        stage.call(
            "signed by its owner", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", signature + "01")]
        )
        stage.call("again", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", signature + "01")])
        wrong = plain(ALICE, tx)[1][1]
        stage.call("signed by another", api, "/echo", [("X-Payment-Tx", tx), ("X-Signature", wrong + "01")])

    with stage.scene("native currency"):
        ether = stage.publish(PROVIDER, name="Ether", pricePerRequest="0.001", currency="ETH")
        stage.call("unpaid", ether, "/echo")
        tx = node.pay_native(payer, to, 2 * 10**15)
        stage.call("paid", ether, "/echo", plain(ALICE, tx))
        stage.call("credit", ether, "/echo", plain(ALICE, tx))
        stage.call("spent", ether, "/echo", plain(ALICE, tx))
        stage.call("shown for dollars", api, "/echo", plain(ALICE, tx))


def _with_topic(log: dict[str, object]) -> dict[str, object]:
    topics = log["topics"]
    assert isinstance(topics, list)
    return {**log, "topics": [*topics, "0x" + "00" * 32]}


def play_chains(stage: Stage) -> None:
    node, second = stage.node, stage.second
    api = stage.publish(PROVIDER, name="Both", networks=["eip155:84532", f"eip155:{SECOND_CHAIN}"])
    to = PROVIDER.address
    with stage.scene("a network that wants three confirmations"):
        stage.call("unpaid", api, "/echo")
        tx = second.pay(ALICE.address, to, 3 * PRICE)
        stage.call("one", api, "/echo", plain(ALICE, tx))
        stage.clock.advance(6)
        stage.call("three", api, "/echo", plain(ALICE, tx))
        stage.call(
            "credit", api, "/echo", [*plain(ALICE, tx), ("X-Payment-Network", f"eip155:{SECOND_CHAIN}")]
        )
        stage.call(
            "the wrong network named",
            api,
            "/echo",
            [*plain(ALICE, tx), ("X-Payment-Network", "eip155:84532")],
        )

    with stage.scene("nodes that do not answer"):
        known = pay(stage, calls=2)
        stage.call("all is well", api, "/echo", plain(ALICE, known))
        elsewhere = second.pay(ALICE.address, to, PRICE)
        fresh = pay(stage)
        node.is_away = True
        stage.call("known credit", api, "/echo", plain(ALICE, known))
        stage.call("a payment that nobody has seen", api, "/echo", plain(ALICE, fresh))
        stage.clock.advance(6)
        stage.call("one network is away, the other one has it", api, "/echo", plain(ALICE, elsewhere))
        stage.call("unpaid", api, "/echo")
        node.is_away = False
        stage.clock.advance(10)
        stage.call("it is back", api, "/echo", plain(ALICE, fresh))

    with stage.scene("a token of the second network"):
        assert SECOND_TOKEN != TOKEN
        logs = [second.transfer_log(ALICE.address, to, PRICE, token=TOKEN)]
        tx = second.transact(ALICE.address, TOKEN, logs=logs)
        stage.clock.advance(6)
        stage.call("the first network's token there", api, "/echo", plain(ALICE, tx))


def play_bound(stage: Stage) -> None:
    api = stage.publish(PROVIDER, name="Bound")
    strict = stage.publish(PROVIDER, name="Strict", signature="bound")

    def sign(tx: str, rest: str, **options: object) -> list[tuple[str, str]]:
        now_s = int(options.pop("now_s", stage.clock.now_s + 1))  # type: ignore[call-overload]
        label = str(options.pop("label", stage.next_label()))
        return bound(ALICE, tx, str(options.pop("api", api)), rest, now_s=now_s, label=label, **options)  # type: ignore[arg-type]

    with stage.scene("signatures bound to one request"):
        tx = pay(stage, calls=20)
        stage.call("the plain form", api, "/echo", plain(ALICE, tx))
        first = sign(tx, "/echo?x=1")
        stage.call("bound", api, "/echo?x=1", first)
        stage.call("the same again", api, "/echo?x=1", first)
        stage.call("the plain form, ended", api, "/echo", plain(ALICE, tx))
        stage.call("for another path", api, "/other", sign(tx, "/echo"))
        stage.call(
            "for another method", api, "/echo", sign(tx, "/echo", method="PUT"), method="POST", body=b"x"
        )
        stage.call("for another API", api, "/echo", sign(tx, "/echo", api=strict))
        stage.call("expired", api, "/echo", sign(tx, "/echo", now_s=stage.clock.now_s - 400))
        stage.call("valid for too long", api, "/echo", sign(tx, "/echo", valid_s=900))
        stage.call(
            "a body",
            api,
            "/echo",
            sign(tx, "/echo", method="POST", body=b'{"a":1}'),
            method="POST",
            body=b'{"a":1}',
        )
        unread = sign(tx, "/echo", method="POST", body=b"read first", names_body=False)
        stage.call("a body that is read first", api, "/echo", unread, method="POST", body=b"read first")
        other = sign(tx, "/echo", method="POST", body=b"promised body")
        stage.call("another body than signed", api, "/echo", other, method="POST", body=b"another body!")
        other = sign(tx, "/echo", method="POST", body=b"promised", names_body=False)
        stage.call("another body, read first", api, "/echo", other, method="POST", body=b"another!")
        large = sign(tx, "/echo", method="POST", body=b"l" * 1_100_000, names_body=False)
        stage.call(
            "a body too large to be read first", api, "/echo", large, method="POST", body=b"l" * 1_100_000
        )
        chunked = [*sign(tx, "/echo", method="POST", body=b"chunked"), ("Transfer-Encoding", "chunked")]
        stage.call(
            "a body in chunks",
            api,
            "/echo",
            chunked,
            method="POST",
            body=b"3\r\nchu\r\n4\r\nnked\r\n0\r\n\r\n",
        )
        failing = sign(tx, "/status/500")
        stage.call("a call that is not charged", api, "/status/500", failing)
        stage.call("its nonce may be used again", api, "/status/500", failing)

    with stage.scene("a listing that wants the bound form"):
        tx = pay(stage, calls=2)
        stage.call("unpaid", strict, "/echo")
        stage.call("plain", strict, "/echo", plain(ALICE, tx))
        stage.call("bound", strict, "/echo", sign(tx, "/echo", api=strict))


def play_prices(stage: Stage) -> None:
    api = stage.publish(PROVIDER, name="Prices")

    def edit(title: str, **changes: object) -> None:
        fields = {
            "name": "Prices",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": stage.upstream.url,
        }
        fields |= {"networks": ["eip155:84532"], **changes}
        stage.control(title, PROVIDER, "PUT", f"/apis/{api}", fields)

    with stage.scene("the most that a call may cost"):
        tx = pay(stage, calls=3)
        for most in ("0.01", "0.009", "1", "0.0100", "01", "-1", ""):
            stage.call(f"at most {most!r}", api, "/echo", [*plain(ALICE, tx), ("Tollway-Max-Price", most)])

    with stage.scene("a price that changes"):
        tx = pay(stage, calls=10)
        edit("dearer", pricePerRequest="0.03")
        stage.call("the price of before still counts", api, "/echo", plain(ALICE, tx))
        stage.call("a quote tells the new one", api, "/echo")
        stage.clock.advance(601)
        stage.call("ten minutes later", api, "/echo", plain(ALICE, tx))
        edit("cheaper", pricePerRequest="0.02")
        stage.call("at once", api, "/echo", plain(ALICE, tx))
        edit("another payee", pricePerRequest="0.02", payTo=OTHER.address)
        stage.call("credit with the payee of before", api, "/echo", plain(ALICE, tx))
        late = pay(stage, calls=4)
        stage.call("a payment to the payee of before", api, "/echo", plain(ALICE, late))
        stage.call("a payment to the new one", api, "/echo", plain(ALICE, pay(stage, calls=2, to=OTHER)))
        edit("another currency", pricePerRequest="0.001", currency="ETH", payTo=OTHER.address)
        stage.call("dollars for a listing that asks for ether", api, "/echo", plain(ALICE, late))
