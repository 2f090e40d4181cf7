"""The same proof again, and the same idempotency key: answered from the record, free, to whoever made the call and to nobody
else. Settled authorisations can be read on the chain by anybody, so that alone opens nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.accounts import Buyer
from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, SmallGateway, open_gateway
from tests.kit.payer import (
    Edit,
    SmallPayer,
    come_back,
    earned,
    has_terms,
    read_receipt,
    served,
    stop_mining,
    transfers,
)
from tests.kit.upstream import Arrived, hang_up, plain, until
from tests.model.ledger import MemoryBook
from tollway.identifiers import ListingId
from tollway.ledger.authorization import Dialect
from tollway.ledger.book import Claim, ClaimOutcome
from tollway.ledger.call import CallState
from tollway.money import Price

PRICE = 10_000
TARGET = "/quote?x=1"
NONCE = b"\x42" * 32
NAME = "pay_0123456789abcdef"
KEY = [("Idempotency-Key", "one")]
STRANGER = Buyer.named("stranger")


@pytest.fixture
async def gate() -> AsyncIterator[SmallGateway]:
    async with open_gateway(settle_wait_s=0.05, bound_body_bytes_max=150_000) as small:
        await small.publish()
        yield small


def naming(name: str = NAME) -> Edit:
    """x402's own way to name a payment."""

    def edit(content: dict[str, Any]) -> None:
        content["extensions"] = {
            "payment-identifier": {"info": {"required": False, "id": name}, "schema": {}}
        }

    return edit


def is_replayed(answer: Exchange) -> bool:
    return answer.status == 200 and answer.headers.get("idempotency-replayed") == "true"


def told(answer: Exchange) -> tuple[int, str]:
    assert not has_terms(answer)
    return answer.status, answer.problem["code"]


# ---------------------------------------------------------------------- the same key


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_a_key_gets_the_stored_answer_with_the_same_and_with_another_authorisation(
    gate: SmallGateway, payer: SmallPayer, dialect: Dialect
) -> None:
    gate.upstream.answer = plain(b"rare", headers=("X-Kind: rare",))
    asked = await payer.quote()
    shown = payer.show(asked, dialect)
    first = await gate.ask("GET", TARGET, [*shown, *KEY])
    again = await gate.ask("GET", TARGET, [*shown, *KEY])
    gate.now_ms += 1_000  # MPP: a challenge of its own
    fresh = payer.show(await payer.quote(), dialect)
    other = await gate.ask("GET", TARGET, [*fresh, *KEY])
    for answer in (again, other):
        assert is_replayed(answer)
        assert (answer.body, answer.headers["x-kind"]) == (b"rare", "rare")
        assert answer.headers["tollway-call-id"] == first.headers["tollway-call-id"]
    assert read_receipt(again, dialect)
    assert (served(gate), earned(gate), transfers(gate)) == (1, PRICE, 1)
    # The other one is unused, and buys a call of its own.
    bought = await gate.ask("GET", TARGET, fresh)
    assert (bought.status, "idempotency-replayed" in bought.headers) == (200, False)
    assert (served(gate), earned(gate)) == (2, 2 * PRICE)
    await gate.check_balanced()


async def test_a_payment_identifier_is_a_key_in_the_same_store(gate: SmallGateway, payer: SmallPayer) -> None:
    asked = await payer.quote()
    assert (await gate.ask("GET", TARGET, payer.show(asked, edit=naming()))).status == 200
    assert is_replayed(await gate.ask("GET", TARGET, payer.show(asked, edit=naming())))
    header = [("Idempotency-Key", NAME)]
    assert is_replayed(await gate.ask("GET", TARGET, [*payer.show(asked), *header]))
    other = naming("pay_other_0123456789")
    assert (await gate.ask("GET", TARGET, payer.show(asked, edit=other))).status == 200
    assert served(gate) == 2
    assert [call.idempotency_key for call in await payer.history()] == ["pay_other_0123456789", NAME]


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [("GET", "/quote?x=2", b""), ("POST", TARGET, b"one"), ("POST", TARGET, b"")],
)
async def test_a_key_stands_for_one_request(
    gate: SmallGateway, payer: SmallPayer, method: str, target: str, body: bytes
) -> None:
    assert (await payer.buy(headers=KEY)).status == 200
    answer = await payer.buy(method, target, headers=KEY, chunks=[body] if body else [])
    assert told(answer) == (422, "idempotency_key_reused")
    assert (served(gate), earned(gate)) == (1, PRICE)


async def test_a_key_at_another_listing_is_another_request(gate: SmallGateway, payer: SmallPayer) -> None:
    await gate.publish("api_others")
    assert (await payer.buy(headers=KEY)).status == 200
    shown = payer.show(await payer.quote(listing="api_others"))
    answer = await gate.ask("GET", TARGET, [*shown, *KEY], listing="api_others")
    assert told(answer) == (422, "idempotency_key_reused")


async def test_a_key_of_a_call_that_runs_is_in_progress(gate: SmallGateway, payer: SmallPayer) -> None:
    may_answer = asyncio.Event()

    async def held(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        await plain()(arrived, writer)

    gate.upstream.answer = held
    asked = await payer.quote()
    shown = payer.show(asked)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(gate.ask("GET", TARGET, [*shown, *KEY]))
        await until(lambda: served(gate) == 1)
        same = await gate.ask("GET", TARGET, [*shown, *KEY])
        fresh = await gate.ask("GET", TARGET, [*payer.show(asked), *KEY])
        may_answer.set()
    assert told(same) == told(fresh) == (409, "idempotency_in_progress")
    assert same.headers["retry-after"]
    assert first.result().status == 200
    assert served(gate) == 1


async def test_ten_fresh_authorisations_with_one_key_at_once_make_one_call(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    asked = await payer.quote()
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(gate.ask("GET", TARGET, [*payer.show(asked), *KEY])) for _ in range(10)]
    answers = [task.result() for task in asking]
    bought = [answer for answer in answers if answer.status == 200 and not is_replayed(answer)]
    assert len(bought) == 1
    assert {told(answer) for answer in answers if answer.status != 200} <= {(409, "idempotency_in_progress")}
    assert (served(gate), earned(gate), transfers(gate)) == (1, PRICE, 1)


class SlowBook(MemoryBook):
    """A commit takes a while, as it does on a disk."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        await asyncio.sleep(0)
        return await super().claim(claim)


async def test_a_key_is_claimed_once_while_its_commit_is_on_its_way(gate: SmallGateway) -> None:
    before = SmallGateway(gate.upstream, limits=gate.limits)
    before.book = SlowBook(now_ms=lambda: NOW_MS, limits=gate.limits)
    slow = SmallGateway(gate.upstream, limits=gate.limits, before=before)
    await slow.publish()
    payer = SmallPayer(buyer=slow.buyer, gate=slow)
    payer.fund(10 * PRICE)
    async with slow.settling.running():
        asked = await payer.quote()
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(slow.ask("GET", TARGET, [*payer.show(asked), *KEY])) for _ in range(10)
            ]
    await slow.dialer.close()
    answers = [task.result() for task in asking]
    assert {told(answer) for answer in answers if answer.status != 200} <= {(409, "idempotency_in_progress")}
    assert (served(slow), earned(slow), transfers(slow)) == (1, PRICE, 1)


async def test_a_key_whose_call_cost_nothing_is_free_again(gate: SmallGateway, payer: SmallPayer) -> None:
    gate.upstream.answer = plain(status=500)
    assert (await payer.buy(headers=KEY)).status == 500
    gate.upstream.answer = plain()
    answer = await payer.buy(headers=KEY)
    assert (answer.status, is_replayed(answer)) == (200, False)


async def test_a_key_whose_settlement_is_undecided_is_held_and_then_answers(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    stop_mining(gate)
    asked = await payer.quote("POST")
    assert (await gate.ask("POST", TARGET, [*payer.show(asked), *KEY], [b"{}"])).status == 503
    held = await gate.ask("POST", TARGET, [*payer.show(asked), *KEY], [b"{}"])
    assert told(held) == (503, "payment_outcome_unknown")
    assert (held.problem["paymentState"], held.problem["retryable"]) == ("held", True)
    await come_back(gate)
    assert is_replayed(await gate.ask("POST", TARGET, [*payer.show(asked), *KEY], [b"{}"]))
    assert (served(gate), earned(gate)) == (1, PRICE)


async def test_a_replay_under_a_key_says_what_was_paid(gate: SmallGateway, payer: SmallPayer) -> None:
    first = await payer.buy(headers=KEY)
    again = await payer.buy(headers=KEY)
    assert is_replayed(again)
    assert read_receipt(again, Dialect.X402_V2) == read_receipt(first, Dialect.X402_V2)
    assert again.headers["tollway-price"] == first.headers["tollway-price"] == "0.01 USDC"
    assert again.headers["tollway-call-id"] == first.headers["tollway-call-id"]


# ---------------------------------------------------------------------- the same key beside a transaction


@pytest.mark.parametrize("is_bound", [False, True])
async def test_a_key_beside_a_transaction_is_charged_once(gate: SmallGateway, is_bound: bool) -> None:
    payment = await gate.pay(3 * PRICE)

    def proof() -> Any:
        if is_bound:
            return gate.bound_proof(payment.tx_hash, method="POST", target=TARGET, body=b"{}")
        return gate.plain_proof(payment.tx_hash)

    first = await gate.ask("POST", TARGET, [*proof(), *KEY], [b"{}"])
    again = await gate.ask("POST", TARGET, [*proof(), *KEY], [b"{}"])
    assert (first.status, first.body) == (again.status, again.body)
    assert is_replayed(again)
    assert not is_replayed(first)
    assert again.headers["payment-response"] == first.headers["payment-response"]
    assert await gate.rest_units(payment) == 2 * PRICE
    assert served(gate) == 1


async def test_a_key_beside_a_transaction_is_for_one_request(gate: SmallGateway) -> None:
    payment = await gate.pay(3 * PRICE)
    assert (await gate.ask("GET", TARGET, [*gate.plain_proof(payment.tx_hash), *KEY])).status == 200
    other = await gate.ask("GET", "/quote?x=2", [*gate.plain_proof(payment.tx_hash), *KEY])
    assert told(other) == (422, "idempotency_key_reused")
    assert await gate.rest_units(payment) == 2 * PRICE


async def test_a_key_stands_for_one_call_on_all_rails(gate: SmallGateway, payer: SmallPayer) -> None:
    payment = await gate.pay(3 * PRICE)
    assert (await gate.ask("GET", TARGET, [*gate.plain_proof(payment.tx_hash), *KEY])).status == 200
    assert is_replayed(await payer.buy(headers=KEY))
    assert (served(gate), transfers(gate)) == (1, 0)


async def test_two_with_one_key_beside_a_transaction_at_once_are_one_call(gate: SmallGateway) -> None:
    payment = await gate.pay(30 * PRICE)
    proof = [*gate.plain_proof(payment.tx_hash), *KEY]
    answers = await asyncio.gather(*(gate.ask("GET", TARGET, proof) for _ in range(20)))
    statuses = sorted({answer.status for answer in answers})
    assert statuses in ([200], [200, 409])
    assert served(gate) == 1
    assert await gate.rest_units(payment) == 29 * PRICE


async def test_an_unbilled_answer_is_not_kept_under_its_key(gate: SmallGateway) -> None:
    payment = await gate.pay(3 * PRICE)
    proof = [*gate.plain_proof(payment.tx_hash), *KEY]
    gate.upstream.answer = plain(b"broken", status=500)
    assert (await gate.ask("GET", TARGET, proof)).status == 500
    gate.upstream.answer = plain(b"whole")
    again = await gate.ask("GET", TARGET, proof)
    assert (again.status, again.body, is_replayed(again)) == (200, b"whole", False)


async def test_a_key_is_its_wallets_own(gate: SmallGateway, payer: SmallPayer) -> None:
    other = SmallPayer(buyer=STRANGER, gate=gate)
    other.fund(PRICE)
    gate.upstream.answer = plain(b"for the first")
    assert (await payer.buy(headers=KEY)).status == 200
    gate.upstream.answer = plain(b"for the second")
    answer = await other.buy(headers=KEY)
    assert (answer.body, is_replayed(answer)) == (b"for the second", False)


async def test_a_key_in_another_wallets_name_opens_nothing(gate: SmallGateway, payer: SmallPayer) -> None:
    assert (await payer.buy(headers=KEY)).status == 200
    thief = SmallPayer(buyer=STRANGER, gate=gate)

    def in_the_payers_name(content: dict[str, Any]) -> None:
        content["payload"]["authorization"]["from"] = str(payer.address)

    answer = await thief.buy(headers=KEY, edit=in_the_payers_name)
    assert (answer.status, answer.problem["code"]) == (402, "payment_verification_failed")
    assert b"ok" not in answer.body.split()
    assert served(gate) == 1


# ---------------------------------------------------------------------- the same proof


async def undecided(gate: SmallGateway, payer: SmallPayer, *headers: Any, **signed: Any) -> list[Any]:
    """A call whose answer waits in the store."""
    stop_mining(gate)
    shown = payer.show(await payer.quote(), **signed)
    assert (await gate.ask("GET", TARGET, [*shown, *headers])).status == 503
    await come_back(gate)
    return shown


async def test_another_request_gets_nothing_of_the_record(gate: SmallGateway, payer: SmallPayer) -> None:
    await gate.publish("api_others")
    shown = await undecided(gate, payer)
    for method, target, body, listing in [
        ("GET", "/quote?x=2", b"", "api_quotes"),
        ("GET", "/quote?x=1&", b"", "api_quotes"),
        ("HEAD", TARGET, b"", "api_quotes"),
        ("POST", TARGET, b"", "api_quotes"),
        ("GET", TARGET, b"body", "api_quotes"),
        ("GET", TARGET, b"", "api_others"),
    ]:
        answer = await gate.ask(method, target, shown, [body] if body else [], listing=listing)
        assert answer.status == 409
        assert "idempotency-replayed" not in answer.headers
        assert "payment-required" not in answer.headers
    assert is_replayed(await gate.ask("GET", TARGET, shown))
    assert served(gate) == 1


@pytest.mark.parametrize("last", [0, 1, 27, 28])
async def test_another_signature_over_the_same_nonce_learns_nothing(
    gate: SmallGateway, payer: SmallPayer, last: int
) -> None:
    await undecided(gate, payer, nonce=NONCE)

    def forge(content: dict[str, Any]) -> None:
        content["payload"]["signature"] = "0x" + "11" * 64 + f"{last:02x}"

    answer = await gate.ask("GET", TARGET, payer.show(await payer.quote(), nonce=NONCE, edit=forge))
    assert told(answer) == (409, "payment_already_used")
    assert not has_terms(answer)  # a contract wallet signs anew each time, and its money may be moving
    assert "callId" not in answer.problem
    assert answer.problem["callIds"] == []
    assert "tollway-call-id" not in answer.headers


async def test_the_payers_own_other_signature_over_a_nonce_is_never_asked_to_pay(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    """Some wallets sign otherwise each time, and MPP gives them the nonce: their retry must not be asked for more."""
    asked = await payer.quote()
    now_s = gate.now_ms // 1000
    stop_mining(gate)
    shown = payer.show(asked, Dialect.MPP, valid_before=now_s + 65)
    other = payer.show(asked, Dialect.MPP, valid_before=now_s + 64)
    assert (await gate.ask("GET", TARGET, shown)).status == 503
    assert told(await gate.ask("GET", TARGET, other)) == (409, "payment_already_used")
    await come_back(gate)
    gate.now_ms += 600_000
    await gate.settling.tank.refresh()
    assert told(await gate.ask("GET", TARGET, other)) == (409, "payment_already_used")
    assert is_replayed(await gate.ask("GET", TARGET, shown))


@pytest.mark.parametrize("dialect", [Dialect.X402_V2, Dialect.X402_V1])
async def test_what_stands_on_the_chain_in_another_dress_opens_nothing(
    gate: SmallGateway, payer: SmallPayer, dialect: Dialect
) -> None:
    """An MPP authorisation is bound to a challenge that only its payer has seen."""
    asked = await payer.quote()
    shown = payer.show(asked, Dialect.MPP)
    stop_mining(gate)
    assert (await gate.ask("GET", TARGET, shown)).status == 503
    await come_back(gate)
    (held,) = gate.book._rows.authorizations.values()  # what anybody can read on the chain
    claimed = held.authorization

    def copy(content: dict[str, Any]) -> None:
        content["payload"]["signature"] = "0x" + claimed.signature.hex()

    stolen = payer.show(
        asked,
        dialect,
        edit=copy,
        nonce=claimed.nonce,
        valid_before=claimed.valid_before,
        valid_after=claimed.valid_after,
    )
    assert told(await gate.ask("GET", TARGET, stolen)) == (409, "payment_already_used")

    def other_challenge(content: dict[str, Any]) -> None:
        content["challenge"]["id"] = "x" * 43

    as_mpp = payer.show(asked, Dialect.MPP, edit=other_challenge)
    assert told(await gate.ask("GET", TARGET, as_mpp)) == (409, "payment_already_used")
    assert is_replayed(await gate.ask("GET", TARGET, shown))
    assert served(gate) == 1


async def test_what_came_with_a_key_is_given_out_with_it_only(gate: SmallGateway, payer: SmallPayer) -> None:
    shown = payer.show(await payer.quote())
    assert (await gate.ask("GET", TARGET, [*shown, *KEY])).status == 200
    for headers in ([], [("Idempotency-Key", "two")]):
        answer = await gate.ask("GET", TARGET, [*shown, *headers])
        assert told(answer) == (409, "payment_already_used")
    assert is_replayed(await gate.ask("GET", TARGET, [*shown, *KEY]))


async def test_a_stored_answer_is_gone_after_a_day_and_nobody_is_asked_to_pay(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    shown = await undecided(gate, payer)
    gate.now_ms += 86_400_000
    await gate.settling.tank.refresh()
    answer = await gate.ask("GET", TARGET, shown)
    assert told(answer) == (409, "payment_already_used")
    assert answer.problem["paymentState"] == "charged"
    assert served(gate) == 1


async def test_a_stored_answer_survives_edits_of_the_listing(gate: SmallGateway, payer: SmallPayer) -> None:
    shown = await undecided(gate, payer)
    listing = gate.sample("api_quotes")
    await gate.revise(listing, pay_to=STRANGER.address, networks=())
    assert is_replayed(await gate.ask("GET", TARGET, shown))


async def test_a_reorged_transfer_is_a_debt_and_no_new_price(gate: SmallGateway, payer: SmallPayer) -> None:
    shown = payer.show(await payer.quote())
    assert (await gate.ask("GET", TARGET, shown)).status == 200
    (call,) = await payer.history()
    assert call.tx_hash is not None
    (payment,) = await gate.book.find_payments(call.tx_hash)
    await gate.book.mark_gone(payment.id, now_ms=gate.now_ms)
    answer = await gate.ask("GET", TARGET, shown)
    assert told(answer) == (409, "payment_already_used")


# ---------------------------------------------------------------------- bodies


BODY = [b"x" * 70_000, b"y" * 30_000]
LONG = [b"x" * 70_000, b"y" * 100_000]


@pytest.mark.parametrize("body", [BODY, LONG], ids=["within memory", "longer"])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_streamed_body_is_recognised_by_its_hash(
    gate: SmallGateway, payer: SmallPayer, body: list[bytes], is_chunked: bool
) -> None:
    shown = payer.show(await payer.quote("POST"))
    stop_mining(gate)
    unknown = await gate.ask("POST", TARGET, shown, body, is_chunked=is_chunked)
    assert unknown.status == 503
    assert bytes(gate.upstream.arrived[0].body) == b"".join(body)
    await come_back(gate)
    for other in ([*body[:-1], b"z" * len(body[-1])], [b""], body[:1]):
        answer = await gate.ask("POST", TARGET, shown, other)
        assert told(answer) == (409, "payment_already_used")
    assert is_replayed(await gate.ask("POST", TARGET, shown, body))
    assert is_replayed(await gate.ask("POST", TARGET, shown, body, is_chunked=True))
    assert (served(gate), earned(gate)) == (1, PRICE)


async def test_a_repeat_that_would_run_again_must_fit(gate: SmallGateway, payer: SmallPayer) -> None:
    """A safe method with a body that cannot be kept: it is held, and told so."""

    async def hang(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        raise ConnectionAbortedError

    gate.upstream.answer = hang
    shown = payer.show(await payer.quote())
    assert (await gate.ask("GET", TARGET, shown, LONG)).status == 504
    answer = await gate.ask("GET", TARGET, shown, LONG)
    assert told(answer) == (409, "payment_already_used")  # its hash was never known: no request is the same
    assert served(gate) == 1


async def test_a_long_body_is_recognised_where_it_cannot_be_sent_again(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    """Paid, and its answer lost: a safe method would run once more, if its body were still there."""
    gate.upstream.answer = plain(b"x" * 300_000)
    shown = payer.show(await payer.quote())
    stop_mining(gate)
    assert (await gate.ask("GET", TARGET, shown, LONG)).status == 503
    await come_back(gate)
    assert told(await gate.ask("GET", TARGET, shown, LONG)) == (413, "payload_too_large")
    assert (served(gate), earned(gate)) == (1, PRICE)


async def test_a_body_under_a_key_has_a_limit(gate: SmallGateway, payer: SmallPayer) -> None:
    shown = payer.show(await payer.quote("POST"))
    assert told(await gate.ask("POST", TARGET, [*shown, *KEY], LONG)) == (413, "payload_too_large")
    assert (await gate.ask("POST", TARGET, [*shown, *KEY], BODY)).status == 200
    assert is_replayed(await gate.ask("POST", TARGET, [*shown, *KEY], BODY))


# ---------------------------------------------------------------------- a caller that leaves


async def test_under_a_key_an_answer_is_read_on_and_kept_when_its_caller_leaves(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    may_go_on = asyncio.Event()

    async def slow(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
        await writer.drain()
        await may_go_on.wait()
        writer.write(b"y" * 50_000)

    gate.upstream.answer = slow
    shown = payer.show(await payer.quote())
    exchange = gate.open("GET", TARGET, [*shown, *KEY])
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gate.run(exchange))
        await until(lambda: len(exchange.body) >= 50_000)
        exchange.leave()
        may_go_on.set()
        await asking
    assert not exchange.is_ended
    again = await gate.ask("GET", TARGET, [*shown, *KEY])
    assert is_replayed(again)
    assert again.body == b"x" * 50_000 + b"y" * 50_000
    (call,) = await payer.history()
    assert (call.state, str(call.delivery)) == (CallState.CONSUMED, "partial")


async def test_without_a_key_a_caller_that_leaves_ends_the_call(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    async def endless(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
        await writer.drain()
        await asyncio.Event().wait()

    gate.upstream.answer = endless
    exchange = gate.open("GET", TARGET, payer.show(await payer.quote()))
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gate.run(exchange))
        await until(lambda: len(exchange.body) >= 50_000)
        exchange.leave()
        await asking
    await until(lambda: gate.upstream.ended == gate.upstream.accepted)
    (call,) = await payer.history()
    assert (call.state, earned(gate)) == (CallState.CONSUMED, PRICE)


async def test_an_answer_that_is_cut_by_its_upstream_may_be_asked_for_once_more(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    async def half(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf")
        await writer.drain()
        raise ConnectionAbortedError

    gate.upstream.answer = half
    shown = payer.show(await payer.quote())
    first = await gate.ask("GET", TARGET, shown)
    assert (first.status, first.is_ended) == (200, False)
    gate.upstream.answer = plain()
    again = await gate.ask("GET", TARGET, shown)
    assert (again.status, again.body) == (200, b"ok")
    assert again.headers["tollway-payment-state"] == "charged"
    assert told(await gate.ask("GET", TARGET, shown)) == (409, "payment_already_used")
    assert (served(gate), earned(gate), transfers(gate)) == (2, PRICE, 1)
    await gate.check_balanced()


# ---------------------------------------------------------------------- the listing is not what it was

CLOSED: list[dict[str, Any]] = [
    {"status": "paused"},
    {"retired_ms": NOW_MS},
    {"methods": ("GET",)},
    {"other_paths": "refuse"},
    {"endpoint": "http://169.254.169.254/latest"},
]
REQUIRES_MORE = {
    "openapi": "3.1.0",
    "paths": {
        "/quote": {
            "post": {
                "parameters": [{"name": "y", "in": "query", "required": True, "schema": {"type": "string"}}]
            }
        }
    },
}
FREE = Price.parse("0")


async def buy_undecided(gate: SmallGateway, payer: SmallPayer, method: str = "POST") -> list[tuple[str, str]]:
    """A call whose answer is paid for while nobody waits for it any more."""
    gate.upstream.answer = plain(b"precious")
    shown = payer.show(await payer.quote(method))
    stop_mining(gate)
    assert told(await gate.ask(method, TARGET, shown)) == (503, "payment_outcome_unknown")
    return shown


async def close(gate: SmallGateway, **changes: Any) -> None:
    shelf = await gate.catalog.find(ListingId("api_quotes"))
    assert shelf is not None
    await gate.revise(shelf.listing, **changes)


@pytest.mark.parametrize("changes", [*CLOSED, {"openapi": REQUIRES_MORE}, {"price": FREE}])
async def test_what_was_paid_and_stored_is_given_out_whatever_its_listing_has_become(
    gate: SmallGateway, payer: SmallPayer, changes: dict[str, Any]
) -> None:
    shown = await buy_undecided(gate, payer)
    await close(gate, **changes)
    assert told(await gate.ask("POST", TARGET, shown)) == (503, "payment_outcome_unknown")  # and not: go away
    await come_back(gate)
    answer = await gate.ask("POST", TARGET, shown)
    assert is_replayed(answer)
    assert answer.body == b"precious"
    assert (served(gate), transfers(gate), earned(gate)) == (1, 1, PRICE)


@pytest.mark.parametrize("changes", CLOSED)
async def test_a_closed_listing_takes_nothing_new(
    gate: SmallGateway, payer: SmallPayer, changes: dict[str, Any]
) -> None:
    asked = await payer.quote("POST")
    used = payer.show(asked)
    assert (await gate.ask("POST", TARGET, used)).status == 200
    stored = await buy_undecided(gate, payer)
    await come_back(gate)
    await close(gate, **changes)
    closed = told(await gate.ask("POST", TARGET))
    for shown, target in ((payer.show(asked), TARGET), (used, TARGET), (stored, "/quote?x=2")):
        assert told(await gate.ask("POST", target, shown)) == closed
    assert (served(gate), transfers(gate)) == (2, 2)


async def test_what_is_used_is_told_so_before_what_the_call_lacks_by_now(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    shown = payer.show(await payer.quote("POST"))
    assert (await gate.ask("POST", TARGET, shown)).status == 200
    await close(gate, openapi=REQUIRES_MORE)
    assert told(await gate.ask("POST", TARGET, shown)) == (409, "payment_already_used")
    fresh = payer.show(await payer.quote("POST"))
    assert told(await gate.ask("POST", TARGET, fresh)) == (422, "validation_failed")


@pytest.mark.parametrize("changes", [{"status": "paused"}, {"retired_ms": NOW_MS}])
async def test_a_closed_listing_runs_nothing_again(
    gate: SmallGateway, payer: SmallPayer, changes: dict[str, Any]
) -> None:
    gate.upstream.answer = hang_up
    shown = payer.show(await payer.quote())
    assert (await gate.ask("GET", TARGET, shown)).status == 504
    gate.upstream.answer = plain()
    await close(gate, **changes)
    assert (await gate.ask("GET", TARGET, shown)).status in (410, 503)
    assert (served(gate), transfers(gate)) == (1, 0)
    await close(gate, status="active", retired_ms=None)
    assert (await gate.ask("GET", TARGET, shown)).status == 200


async def test_what_the_operator_has_suspended_gives_out_nothing(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    shown = await buy_undecided(gate, payer)
    await come_back(gate)
    await close(gate, suspended_ms=NOW_MS)
    answer = await gate.ask("POST", TARGET, shown)
    assert (told(answer), answer.problem["reason"]) == ((503, "api_paused"), "suspended")


# ---------------------------------------------------------------------- how old it is


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000, 86_400_001])
async def test_how_old_a_call_is_no_gateways_own_clock_says(gate: SmallGateway, ahead_ms: int) -> None:
    """The one that all share does: that of the first."""
    shown = [*gate.plain_proof((await gate.pay(PRICE)).tx_hash), *KEY]
    other = SmallGateway(gate.upstream, limits=gate.limits, before=gate)
    other.now_ms += ahead_ms
    assert (await gate.ask("POST", TARGET, shown)).status == 200
    assert is_replayed(await other.ask("POST", TARGET, shown))
    (call,) = gate.book.rows.calls.values()
    call.finish = None  # it may still be read
    gate.book.rows.answers.clear()
    assert told(await other.ask("POST", TARGET, shown)) == (409, "idempotency_in_progress")
    gate.now_ms += 60_000
    assert told(await other.ask("POST", TARGET, shown)) == (409, "payment_already_used")
    await other.dialer.close()


async def test_an_answer_is_stored_at_the_time_that_all_gateways_share(gate: SmallGateway) -> None:
    other = SmallGateway(gate.upstream, limits=gate.limits, before=gate)
    other.now_ms -= 3_600_000
    shown = [*gate.plain_proof((await gate.pay(PRICE)).tx_hash), *KEY]
    assert (await other.ask("POST", TARGET, shown)).status == 200
    (kept,) = gate.book.rows.answers.values()
    assert kept.created_ms == NOW_MS
    await other.dialer.close()
