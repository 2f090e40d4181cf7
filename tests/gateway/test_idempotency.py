"""Repeats with the same proof or the same idempotency key: the original caller gets the stored response without a charge, any other
caller gets nothing. A settled authorisation is public on the chain, so it alone opens nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, InProcessGateway, open_gateway
from tests.kit.payer import Edit, KeyWallet, Payer, has_terms, is_replayed, read_receipt
from tests.kit.upstream import hang_up, held, plain, raw, stalled
from tests.kit.waits import until
from tests.model.ledger import MemoryLedger
from tollway.ids import ListingId
from tollway.ledger.ledger import Claim, ClaimOutcome
from tollway.ledger.records import CallState, Dialect
from tollway.money import Price

PRICE = 10_000
TARGET = "/quote?x=1"
NONCE = b"\x42" * 32
NAME = "pay_0123456789abcdef"
KEY = [("Idempotency-Key", "one")]
THIRD_PARTY = KeyWallet.named("stranger")


@pytest.fixture
def settle_wait_s() -> float:
    """Short: many settlements here are to stay undecided."""
    return 0.05


@pytest.fixture
async def gateway(settle_wait_s: float) -> AsyncIterator[InProcessGateway]:
    async with open_gateway(settle_wait_s=settle_wait_s, bound_body_bytes_max=150_000) as small:
        await small.publish()
        yield small


WAITING = pytest.mark.parametrize("settle_wait_s", [600.0], ids=["waiting"])
"""Of tests whose settlement is decided: on a busy machine that takes longer than the short wait."""


def naming(name: str = NAME) -> Edit:
    """x402's own way to name a payment."""

    def edit(content: dict[str, Any]) -> None:
        content["extensions"] = {
            "payment-identifier": {"info": {"required": False, "id": name}, "schema": {}}
        }

    return edit


def told(answer: Exchange) -> tuple[int, str]:
    assert not has_terms(answer)
    return answer.status, answer.problem["code"]


# ---------------------------------------------------------------------- the same key


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_a_key_gets_the_stored_answer_with_the_same_and_with_another_authorisation(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect
) -> None:
    gateway.upstream.answer = plain(b"rare", headers=("X-Kind: rare",))
    asked = await payer.quote()
    shown = payer.show(asked, dialect)
    first = await gateway.ask("GET", TARGET, [*shown, *KEY])
    again = await gateway.ask("GET", TARGET, [*shown, *KEY])
    gateway.now_ms += 1_000  # MPP: a challenge of its own
    fresh = payer.show(await payer.quote(), dialect)
    other = await gateway.ask("GET", TARGET, [*fresh, *KEY])
    for answer in (again, other):
        assert is_replayed(answer)
        assert (answer.body, answer.headers["x-kind"]) == (b"rare", "rare")
        assert answer.headers["tollway-call-id"] == first.headers["tollway-call-id"]
    assert read_receipt(again, dialect)
    assert (gateway.served, gateway.earned, gateway.transfers) == (1, PRICE, 1)
    # The other one is unused, and buys a call of its own.
    bought = await gateway.ask("GET", TARGET, fresh)
    assert (bought.status, "idempotency-replayed" in bought.headers) == (200, False)
    assert (gateway.served, gateway.earned) == (2, 2 * PRICE)
    await gateway.check_balanced()


async def test_a_payment_identifier_is_a_key_in_the_same_store(
    gateway: InProcessGateway, payer: Payer
) -> None:
    asked = await payer.quote()
    assert (await gateway.ask("GET", TARGET, payer.show(asked, edit=naming()))).status == 200
    assert is_replayed(await gateway.ask("GET", TARGET, payer.show(asked, edit=naming())))
    header = [("Idempotency-Key", NAME)]
    assert is_replayed(await gateway.ask("GET", TARGET, [*payer.show(asked), *header]))
    other = naming("pay_other_0123456789")
    assert (await gateway.ask("GET", TARGET, payer.show(asked, edit=other))).status == 200
    assert gateway.served == 2
    assert [call.idempotency_key for call in await payer.history()] == ["pay_other_0123456789", NAME]


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [("GET", "/quote?x=2", b""), ("POST", TARGET, b"one"), ("POST", TARGET, b"")],
)
async def test_a_key_stands_for_one_request(
    gateway: InProcessGateway, payer: Payer, method: str, target: str, body: bytes
) -> None:
    assert (await payer.buy(headers=KEY)).status == 200
    answer = await payer.buy(method, target, headers=KEY, chunks=[body] if body else [])
    assert told(answer) == (422, "idempotency_key_reused")
    assert (gateway.served, gateway.earned) == (1, PRICE)


async def test_a_key_at_another_listing_is_another_request(gateway: InProcessGateway, payer: Payer) -> None:
    await gateway.publish("api_others")
    assert (await payer.buy(headers=KEY)).status == 200
    shown = payer.show(await payer.quote(listing="api_others"))
    answer = await gateway.ask("GET", TARGET, [*shown, *KEY], listing="api_others")
    assert told(answer) == (422, "idempotency_key_reused")


async def test_a_key_of_a_call_that_runs_is_in_progress(gateway: InProcessGateway, payer: Payer) -> None:
    may_answer = asyncio.Event()

    gateway.upstream.answer = held(may_answer)
    asked = await payer.quote()
    shown = payer.show(asked)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(gateway.ask("GET", TARGET, [*shown, *KEY]))
        await until(lambda: gateway.served == 1)
        same = await gateway.ask("GET", TARGET, [*shown, *KEY])
        fresh = await gateway.ask("GET", TARGET, [*payer.show(asked), *KEY])
        may_answer.set()
    assert told(same) == told(fresh) == (409, "idempotency_in_progress")
    assert same.headers["retry-after"]
    assert first.result().status == 200
    assert gateway.served == 1


@WAITING
async def test_ten_fresh_authorisations_with_one_key_at_once_make_one_call(
    gateway: InProcessGateway, payer: Payer
) -> None:
    asked = await payer.quote()
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(gateway.ask("GET", TARGET, [*payer.show(asked), *KEY])) for _ in range(10)
        ]
    answers = [task.result() for task in asking]
    bought = [answer for answer in answers if answer.status == 200 and not is_replayed(answer)]
    assert len(bought) == 1
    assert {told(answer) for answer in answers if answer.status != 200} <= {(409, "idempotency_in_progress")}
    assert (gateway.served, gateway.earned, gateway.transfers) == (1, PRICE, 1)


class SlowLedger(MemoryLedger):
    """A commit takes a while, as it does on a disk."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        await asyncio.sleep(0)
        return await super().claim(claim)


async def test_a_key_is_claimed_once_while_its_commit_is_on_its_way(gateway: InProcessGateway) -> None:
    before = InProcessGateway(gateway.upstream, limits=gateway.limits)
    before.ledger = SlowLedger(now_ms=lambda: NOW_MS, limits=gateway.limits)
    slow = InProcessGateway(gateway.upstream, limits=gateway.limits, before=before)
    await slow.publish()
    payer = Payer.funded(slow, 10 * PRICE)
    async with slow.settlement.running():
        asked = await payer.quote()
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(slow.ask("GET", TARGET, [*payer.show(asked), *KEY])) for _ in range(10)
            ]
    await slow.http_client.close()
    answers = [task.result() for task in asking]
    assert {told(answer) for answer in answers if answer.status != 200} <= {(409, "idempotency_in_progress")}
    assert (slow.served, slow.earned, slow.transfers) == (1, PRICE, 1)


async def test_a_key_whose_call_cost_nothing_is_free_again(gateway: InProcessGateway, payer: Payer) -> None:
    gateway.upstream.answer = plain(status=500)
    assert (await payer.buy(headers=KEY)).status == 500
    gateway.upstream.answer = plain()
    answer = await payer.buy(headers=KEY)
    assert (answer.status, is_replayed(answer)) == (200, False)


async def test_a_key_with_an_undecided_settlement_is_held_and_then_gets_the_response(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.stop_mining()
    asked = await payer.quote("POST")
    assert (await gateway.ask("POST", TARGET, [*payer.show(asked), *KEY], [b"{}"])).status == 503
    held = await gateway.ask("POST", TARGET, [*payer.show(asked), *KEY], [b"{}"])
    assert told(held) == (503, "payment_outcome_unknown")
    assert (held.problem["paymentState"], held.problem["retryable"]) == ("held", True)
    await gateway.recover_chain()
    assert is_replayed(await gateway.ask("POST", TARGET, [*payer.show(asked), *KEY], [b"{}"]))
    assert (gateway.served, gateway.earned) == (1, PRICE)


async def test_a_replay_under_a_key_has_the_paid_price(gateway: InProcessGateway, payer: Payer) -> None:
    first = await payer.buy(headers=KEY)
    again = await payer.buy(headers=KEY)
    assert is_replayed(again)
    assert read_receipt(again, Dialect.X402_V2) == read_receipt(first, Dialect.X402_V2)
    assert again.headers["tollway-price"] == first.headers["tollway-price"] == "0.01 USDC"
    assert again.headers["tollway-call-id"] == first.headers["tollway-call-id"]


# ---------------------------------------------------------------------- the same key beside a transaction


@pytest.mark.parametrize("is_bound", [False, True])
async def test_a_key_beside_a_transaction_is_charged_once(gateway: InProcessGateway, is_bound: bool) -> None:
    payment = await gateway.pay(3 * PRICE)

    def proof() -> Any:
        if is_bound:
            return gateway.bound_proof(payment.tx_hash, method="POST", target=TARGET, body=b"{}")
        return gateway.plain_proof(payment.tx_hash)

    first = await gateway.ask("POST", TARGET, [*proof(), *KEY], [b"{}"])
    again = await gateway.ask("POST", TARGET, [*proof(), *KEY], [b"{}"])
    assert (first.status, first.body) == (again.status, again.body)
    assert is_replayed(again)
    assert not is_replayed(first)
    assert again.headers["payment-response"] == first.headers["payment-response"]
    assert await gateway.remaining_units(payment) == 2 * PRICE
    assert gateway.served == 1


async def test_a_key_beside_a_transaction_is_for_one_request(gateway: InProcessGateway) -> None:
    payment = await gateway.pay(3 * PRICE)
    assert (await gateway.ask("GET", TARGET, [*gateway.plain_proof(payment.tx_hash), *KEY])).status == 200
    other = await gateway.ask("GET", "/quote?x=2", [*gateway.plain_proof(payment.tx_hash), *KEY])
    assert told(other) == (422, "idempotency_key_reused")
    assert await gateway.remaining_units(payment) == 2 * PRICE


async def test_a_key_stands_for_one_call_on_all_rails(gateway: InProcessGateway, payer: Payer) -> None:
    assert (await gateway.ask("GET", TARGET, [*await gateway.plain_payment(3 * PRICE), *KEY])).status == 200
    assert is_replayed(await payer.buy(headers=KEY))
    assert (gateway.served, gateway.transfers) == (1, 0)


async def test_two_with_one_key_beside_a_transaction_at_once_are_one_call(gateway: InProcessGateway) -> None:
    payment = await gateway.pay(30 * PRICE)
    proof = [*gateway.plain_proof(payment.tx_hash), *KEY]
    answers = await asyncio.gather(*(gateway.ask("GET", TARGET, proof) for _ in range(20)))
    statuses = sorted({answer.status for answer in answers})
    assert statuses in ([200], [200, 409])
    assert gateway.served == 1
    assert await gateway.remaining_units(payment) == 29 * PRICE


async def test_an_unbilled_answer_is_not_kept_under_its_key(gateway: InProcessGateway) -> None:
    proof = [*await gateway.plain_payment(3 * PRICE), *KEY]
    gateway.upstream.answer = plain(b"broken", status=500)
    assert (await gateway.ask("GET", TARGET, proof)).status == 500
    gateway.upstream.answer = plain(b"whole")
    again = await gateway.ask("GET", TARGET, proof)
    assert (again.status, again.body, is_replayed(again)) == (200, b"whole", False)


async def test_a_key_is_its_wallets_own(gateway: InProcessGateway, payer: Payer) -> None:
    other = Payer(wallet=THIRD_PARTY, gateway=gateway)
    other.fund(PRICE)
    gateway.upstream.answer = plain(b"for the first")
    assert (await payer.buy(headers=KEY)).status == 200
    gateway.upstream.answer = plain(b"for the second")
    answer = await other.buy(headers=KEY)
    assert (answer.body, is_replayed(answer)) == (b"for the second", False)


async def test_a_key_in_another_wallets_name_opens_nothing(gateway: InProcessGateway, payer: Payer) -> None:
    assert (await payer.buy(headers=KEY)).status == 200
    thief = Payer(wallet=THIRD_PARTY, gateway=gateway)

    def in_the_payers_name(content: dict[str, Any]) -> None:
        content["payload"]["authorization"]["from"] = str(payer.address)

    answer = await thief.buy(headers=KEY, edit=in_the_payers_name)
    assert (answer.status, answer.problem["code"]) == (402, "payment_verification_failed")
    assert b"ok" not in answer.body.split()
    assert gateway.served == 1


# ---------------------------------------------------------------------- the same proof


async def undecided(gateway: InProcessGateway, payer: Payer, *headers: Any, **signed: Any) -> list[Any]:
    """A call whose answer waits in the store."""
    gateway.stop_mining()
    shown = payer.show(await payer.quote(), **signed)
    assert (await gateway.ask("GET", TARGET, [*shown, *headers])).status == 503
    await gateway.recover_chain()
    return shown


async def test_another_request_gets_nothing_of_the_record(gateway: InProcessGateway, payer: Payer) -> None:
    await gateway.publish("api_others")
    shown = await undecided(gateway, payer)
    for method, target, body, listing in [
        ("GET", "/quote?x=2", b"", "api_quotes"),
        ("GET", "/quote?x=1&", b"", "api_quotes"),
        ("HEAD", TARGET, b"", "api_quotes"),
        ("POST", TARGET, b"", "api_quotes"),
        ("GET", TARGET, b"body", "api_quotes"),
        ("GET", TARGET, b"", "api_others"),
    ]:
        answer = await gateway.ask(method, target, shown, [body] if body else [], listing=listing)
        assert answer.status == 409
        assert "idempotency-replayed" not in answer.headers
        assert "payment-required" not in answer.headers
    assert is_replayed(await gateway.ask("GET", TARGET, shown))
    assert gateway.served == 1


@pytest.mark.parametrize("last", [0, 1, 27, 28])
async def test_another_signature_over_the_same_nonce_learns_nothing(
    gateway: InProcessGateway, payer: Payer, last: int
) -> None:
    await undecided(gateway, payer, nonce=NONCE)

    def forge(content: dict[str, Any]) -> None:
        content["payload"]["signature"] = "0x" + "11" * 64 + f"{last:02x}"

    answer = await gateway.ask("GET", TARGET, payer.show(await payer.quote(), nonce=NONCE, edit=forge))
    assert told(answer) == (409, "payment_already_used")
    assert not has_terms(answer)  # a contract wallet signs anew each time, and its money may be moving
    assert "callId" not in answer.problem
    assert answer.problem["callIds"] == []
    assert "tollway-call-id" not in answer.headers


async def test_another_signature_of_the_payer_over_a_nonce_gets_no_402(
    gateway: InProcessGateway, payer: Payer
) -> None:
    """Some wallets sign differently each time, and MPP sets the nonce: their retry must get no 402."""
    asked = await payer.quote()
    now_s = gateway.now_ms // 1000
    gateway.stop_mining()
    shown = payer.show(asked, Dialect.MPP, valid_before=now_s + 65)
    other = payer.show(asked, Dialect.MPP, valid_before=now_s + 64)
    assert (await gateway.ask("GET", TARGET, shown)).status == 503
    assert told(await gateway.ask("GET", TARGET, other)) == (409, "payment_already_used")
    await gateway.recover_chain()
    gateway.now_ms += 600_000
    await gateway.settlement.gas_budget.refresh()
    assert told(await gateway.ask("GET", TARGET, other)) == (409, "payment_already_used")
    assert is_replayed(await gateway.ask("GET", TARGET, shown))


@pytest.mark.parametrize("dialect", [Dialect.X402_V2, Dialect.X402_V1])
async def test_what_stands_on_the_chain_in_another_dress_opens_nothing(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect
) -> None:
    """An MPP authorisation is bound to a challenge that only its payer has seen."""
    asked = await payer.quote()
    shown = payer.show(asked, Dialect.MPP)
    gateway.stop_mining()
    assert (await gateway.ask("GET", TARGET, shown)).status == 503
    await gateway.recover_chain()
    (held,) = gateway.ledger._rows.authorizations.values()  # public on the chain
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
    assert told(await gateway.ask("GET", TARGET, stolen)) == (409, "payment_already_used")

    def other_challenge(content: dict[str, Any]) -> None:
        content["challenge"]["id"] = "x" * 43

    as_mpp = payer.show(asked, Dialect.MPP, edit=other_challenge)
    assert told(await gateway.ask("GET", TARGET, as_mpp)) == (409, "payment_already_used")
    assert is_replayed(await gateway.ask("GET", TARGET, shown))
    assert gateway.served == 1


async def test_what_came_with_a_key_is_given_out_with_it_only(
    gateway: InProcessGateway, payer: Payer
) -> None:
    shown = payer.show(await payer.quote())
    assert (await gateway.ask("GET", TARGET, [*shown, *KEY])).status == 200
    for headers in ([], [("Idempotency-Key", "two")]):
        answer = await gateway.ask("GET", TARGET, [*shown, *headers])
        assert told(answer) == (409, "payment_already_used")
    assert is_replayed(await gateway.ask("GET", TARGET, [*shown, *KEY]))


async def test_a_stored_response_expires_after_a_day_and_no_request_gets_a_402(
    gateway: InProcessGateway, payer: Payer
) -> None:
    shown = await undecided(gateway, payer)
    gateway.now_ms += 86_400_000
    await gateway.settlement.gas_budget.refresh()
    answer = await gateway.ask("GET", TARGET, shown)
    assert told(answer) == (409, "payment_already_used")
    assert answer.problem["paymentState"] == "charged"
    assert gateway.served == 1


async def test_a_stored_answer_survives_edits_of_the_listing(gateway: InProcessGateway, payer: Payer) -> None:
    shown = await undecided(gateway, payer)
    listing = gateway.sample("api_quotes")
    await gateway.revise(listing, pay_to=THIRD_PARTY.address, networks=())
    assert is_replayed(await gateway.ask("GET", TARGET, shown))


@WAITING
async def test_a_reorged_transfer_is_a_debt_and_no_new_price(gateway: InProcessGateway, payer: Payer) -> None:
    shown = payer.show(await payer.quote())
    assert (await gateway.ask("GET", TARGET, shown)).status == 200
    (call,) = await payer.history()
    assert call.tx_hash is not None
    (payment,) = await gateway.ledger.find_payments(call.tx_hash)
    await gateway.ledger.mark_gone(payment.id, now_ms=gateway.now_ms)
    answer = await gateway.ask("GET", TARGET, shown)
    assert told(answer) == (409, "payment_already_used")


# ---------------------------------------------------------------------- bodies


BODY = [b"x" * 70_000, b"y" * 30_000]
LONG = [b"x" * 70_000, b"y" * 100_000]


@pytest.mark.parametrize("body", [BODY, LONG], ids=["within memory", "longer"])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_streamed_body_is_recognised_by_its_hash(
    gateway: InProcessGateway, payer: Payer, body: list[bytes], is_chunked: bool
) -> None:
    shown = payer.show(await payer.quote("POST"))
    gateway.stop_mining()
    unknown = await gateway.ask("POST", TARGET, shown, body, is_chunked=is_chunked)
    assert unknown.status == 503
    assert bytes(gateway.upstream.arrived[0].body) == b"".join(body)
    await gateway.recover_chain()
    for other in ([*body[:-1], b"z" * len(body[-1])], [b""], body[:1]):
        answer = await gateway.ask("POST", TARGET, shown, other)
        assert told(answer) == (409, "payment_already_used")
    assert is_replayed(await gateway.ask("POST", TARGET, shown, body))
    assert is_replayed(await gateway.ask("POST", TARGET, shown, body, is_chunked=True))
    assert (gateway.served, gateway.earned) == (1, PRICE)


async def test_a_repeat_that_would_run_again_must_fit(gateway: InProcessGateway, payer: Payer) -> None:
    """A safe method with a body that is too long to keep: the call is held, and the response has that state."""

    gateway.upstream.answer = hang_up
    shown = payer.show(await payer.quote())
    assert (await gateway.ask("GET", TARGET, shown, LONG)).status == 504
    answer = await gateway.ask("GET", TARGET, shown, LONG)
    assert told(answer) == (409, "payment_already_used")  # its hash was never known: no request is the same
    assert gateway.served == 1


async def test_a_long_body_is_recognised_where_it_cannot_be_sent_again(
    gateway: InProcessGateway, payer: Payer
) -> None:
    """Paid, and its answer lost: a safe method would run once more, if its body were still there."""
    gateway.upstream.answer = plain(b"x" * 300_000)
    shown = payer.show(await payer.quote())
    gateway.stop_mining()
    assert (await gateway.ask("GET", TARGET, shown, LONG)).status == 503
    await gateway.recover_chain()
    assert told(await gateway.ask("GET", TARGET, shown, LONG)) == (413, "payload_too_large")
    assert (gateway.served, gateway.earned) == (1, PRICE)


async def test_a_body_under_a_key_has_a_limit(gateway: InProcessGateway, payer: Payer) -> None:
    shown = payer.show(await payer.quote("POST"))
    assert told(await gateway.ask("POST", TARGET, [*shown, *KEY], LONG)) == (413, "payload_too_large")
    assert (await gateway.ask("POST", TARGET, [*shown, *KEY], BODY)).status == 200
    assert is_replayed(await gateway.ask("POST", TARGET, [*shown, *KEY], BODY))


# ---------------------------------------------------------------------- a caller that leaves


async def test_under_a_key_an_answer_is_read_on_and_kept_when_its_caller_leaves(
    gateway: InProcessGateway, payer: Payer
) -> None:
    may_go_on = asyncio.Event()

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    gateway.upstream.answer = held(may_go_on, head + b"x" * 50_000, b"y" * 50_000)
    shown = payer.show(await payer.quote())
    exchange = gateway.open("GET", TARGET, [*shown, *KEY])
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.run(exchange))
        await until(lambda: len(exchange.body) >= 50_000)
        exchange.leave()
        may_go_on.set()
        await asking
    assert not exchange.is_ended
    again = await gateway.ask("GET", TARGET, [*shown, *KEY])
    assert is_replayed(again)
    assert again.body == b"x" * 50_000 + b"y" * 50_000
    (call,) = await payer.history()
    assert (call.state, str(call.delivery)) == (CallState.CONSUMED, "partial")


async def test_without_a_key_a_caller_that_leaves_ends_the_call(
    gateway: InProcessGateway, payer: Payer
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    gateway.upstream.answer = stalled(head + b"x" * 50_000)
    exchange = gateway.open("GET", TARGET, payer.show(await payer.quote()))
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.run(exchange))
        await until(lambda: len(exchange.body) >= 50_000)
        exchange.leave()
        await asking
    await until(lambda: gateway.upstream.ended == gateway.upstream.accepted)
    (call,) = await payer.history()
    assert (call.state, gateway.earned) == (CallState.CONSUMED, PRICE)


async def test_a_call_with_a_cut_response_may_run_once_more(gateway: InProcessGateway, payer: Payer) -> None:
    gateway.upstream.answer = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf", close=True)
    shown = payer.show(await payer.quote())
    first = await gateway.ask("GET", TARGET, shown)
    assert (first.status, first.is_ended) == (200, False)
    gateway.upstream.answer = plain()
    again = await gateway.ask("GET", TARGET, shown)
    assert (again.status, again.body) == (200, b"ok")
    assert again.headers["tollway-payment-state"] == "charged"
    assert told(await gateway.ask("GET", TARGET, shown)) == (409, "payment_already_used")
    assert (gateway.served, gateway.earned, gateway.transfers) == (2, PRICE, 1)
    await gateway.check_balanced()


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


async def buy_undecided(
    gateway: InProcessGateway, payer: Payer, method: str = "POST"
) -> list[tuple[str, str]]:
    """A call that is settled after its caller has left."""
    gateway.upstream.answer = plain(b"precious")
    shown = payer.show(await payer.quote(method))
    gateway.stop_mining()
    assert told(await gateway.ask(method, TARGET, shown)) == (503, "payment_outcome_unknown")
    return shown


async def close(gateway: InProcessGateway, **changes: Any) -> None:
    entry = await gateway.catalog.find(ListingId("api_quotes"))
    assert entry is not None
    await gateway.revise(entry.listing, **changes)


@pytest.mark.parametrize("changes", [*CLOSED, {"openapi": REQUIRES_MORE}, {"price": FREE}])
async def test_a_paid_and_stored_response_is_delivered_in_every_state_of_its_listing(
    gateway: InProcessGateway, payer: Payer, changes: dict[str, Any]
) -> None:
    shown = await buy_undecided(gateway, payer)
    await close(gateway, **changes)
    assert told(await gateway.ask("POST", TARGET, shown)) == (
        503,
        "payment_outcome_unknown",
    )  # and not: go away
    await gateway.recover_chain()
    answer = await gateway.ask("POST", TARGET, shown)
    assert is_replayed(answer)
    assert answer.body == b"precious"
    assert (gateway.served, gateway.transfers, gateway.earned) == (1, 1, PRICE)


@pytest.mark.parametrize("changes", CLOSED)
async def test_a_closed_listing_takes_nothing_new(
    gateway: InProcessGateway, payer: Payer, changes: dict[str, Any]
) -> None:
    asked = await payer.quote("POST")
    used = payer.show(asked)
    assert (await gateway.ask("POST", TARGET, used)).status == 200
    stored = await buy_undecided(gateway, payer)
    await gateway.recover_chain()
    await close(gateway, **changes)
    closed = told(await gateway.ask("POST", TARGET))
    for shown, target in ((payer.show(asked), TARGET), (used, TARGET), (stored, "/quote?x=2")):
        assert told(await gateway.ask("POST", target, shown)) == closed
    assert (gateway.served, gateway.transfers) == (2, 2)


async def test_a_used_payment_is_reported_before_a_missing_parameter(
    gateway: InProcessGateway, payer: Payer
) -> None:
    shown = payer.show(await payer.quote("POST"))
    assert (await gateway.ask("POST", TARGET, shown)).status == 200
    await close(gateway, openapi=REQUIRES_MORE)
    assert told(await gateway.ask("POST", TARGET, shown)) == (409, "payment_already_used")
    fresh = payer.show(await payer.quote("POST"))
    assert told(await gateway.ask("POST", TARGET, fresh)) == (422, "validation_failed")


@pytest.mark.parametrize("changes", [{"status": "paused"}, {"retired_ms": NOW_MS}])
async def test_a_closed_listing_runs_nothing_again(
    gateway: InProcessGateway, payer: Payer, changes: dict[str, Any]
) -> None:
    gateway.upstream.answer = hang_up
    shown = payer.show(await payer.quote())
    assert (await gateway.ask("GET", TARGET, shown)).status == 504
    gateway.upstream.answer = plain()
    await close(gateway, **changes)
    assert (await gateway.ask("GET", TARGET, shown)).status in (410, 503)
    assert (gateway.served, gateway.transfers) == (1, 0)
    await close(gateway, status="active", retired_ms=None)
    assert (await gateway.ask("GET", TARGET, shown)).status == 200


async def test_what_the_operator_has_suspended_gives_out_nothing(
    gateway: InProcessGateway, payer: Payer
) -> None:
    shown = await buy_undecided(gateway, payer)
    await gateway.recover_chain()
    await close(gateway, suspended_ms=NOW_MS)
    answer = await gateway.ask("POST", TARGET, shown)
    assert (told(answer), answer.problem["reason"]) == ((503, "api_paused"), "suspended")


# ---------------------------------------------------------------------- how old it is


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000, 86_400_001])
async def test_the_age_of_a_call_is_of_the_shared_clock(gateway: InProcessGateway, ahead_ms: int) -> None:
    """The one that all share does: that of the first."""
    shown = [*gateway.plain_proof((await gateway.pay(PRICE)).tx_hash), *KEY]
    other = InProcessGateway(gateway.upstream, limits=gateway.limits, before=gateway)
    other.now_ms += ahead_ms
    assert (await gateway.ask("POST", TARGET, shown)).status == 200
    assert is_replayed(await other.ask("POST", TARGET, shown))
    (call,) = gateway.ledger.rows.calls.values()
    call.finish = None  # it may still be read
    gateway.ledger.rows.answers.clear()
    assert told(await other.ask("POST", TARGET, shown)) == (409, "idempotency_in_progress")
    gateway.now_ms += 60_000
    assert told(await other.ask("POST", TARGET, shown)) == (409, "payment_already_used")
    await other.http_client.close()


async def test_an_answer_is_stored_at_the_time_that_all_gateways_share(gateway: InProcessGateway) -> None:
    other = InProcessGateway(gateway.upstream, limits=gateway.limits, before=gateway)
    other.now_ms -= 3_600_000
    shown = [*gateway.plain_proof((await gateway.pay(PRICE)).tx_hash), *KEY]
    assert (await other.ask("POST", TARGET, shown)).status == 200
    (kept,) = gateway.ledger.rows.answers.values()
    assert kept.created_ms == NOW_MS
    await other.http_client.close()
