"""The counter: what a call costs with which payment, what is claimed, and every reason not to be granted one."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, USDC, InProcessGateway
from tests.kit.upstream import LoopbackUpstream
from tests.model.ledger import MemoryBook
from tollway.errors import Code
from tollway.gateway.cargo import NO_CARGO, Cargo
from tollway.gateway.counter import Counter, Order, Purchase
from tollway.gateway.exchange import Declined, IncomingCall, Offer
from tollway.gateway.target import Target
from tollway.gateway.trip import ClaimRefused, Ticket
from tollway.identifiers import CallId, ListingId, TxHash, keccak256
from tollway.ledger.book import (
    Claim,
    ClaimOutcome,
    Close,
    Exhausted,
    InDebt,
    NonceUsed,
    NotFirst,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.call import CallState, Payment
from tollway.ledger.statement import HistoryQuery
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.payments.proof import Binding, Proof
from tollway.payments.terms import Tariff
from tollway.payments.till import Tender
from tollway.registry.listing import Listing, Shelf

TX = TxHash(keccak256(b"tx"))


class QuietTill:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.forgotten: list[TxHash] = []

    def note_spent(self, payment: Payment) -> None:
        pass

    def forget(self, tx_hash: TxHash) -> None:
        self.forgotten.append(tx_hash)


class Desk:
    """A counter over books in memory; `before`: another gateway's, which it shares."""

    def __init__(self, before: "Desk | None" = None) -> None:
        self.small = before.small if before else InProcessGateway(LoopbackUpstream(), limits=DEFAULT_LIMITS)
        self.book: MemoryBook = self.small.book
        self.till = QuietTill()
        numbers = itertools.count(1_000 if before else 1)
        self.counter = Counter(
            book=self.book,
            till=self.till,  # type: ignore[arg-type]
            replays=self.small.cashier.replays,
            limits=DEFAULT_LIMITS,
            now_ms=lambda: NOW_MS,
            entropy=lambda size: keccak256(str(next(numbers)).encode())[:size],
        )
        self.listing: Listing = self.small.sample("api_quotes")

    async def tender(self, units: int = 30_000, *, is_first: bool = True, **changes: Any) -> Tender:
        new = self.small.sample_payment(tx_hash=TX, value_units=units, **changes)
        (payment,) = await self.book.record_payments([new], now_ms=NOW_MS)
        return Tender(payment=payment, asset=USDC, is_first=is_first)

    def tariff(self, price: str = "0.01") -> Tariff:
        return Tariff(
            terms=self.listing.current_terms(since_ms=NOW_MS - 86_400_000), price=Price.parse(price)
        )

    def purchase(self, tender: Tender, price: str = "0.01") -> Purchase:
        (purchase,) = self.counter.price([tender], [self.tariff(price)])
        return purchase

    def order(self, method: str = "GET", *, nonce: bytes | None = None, cargo: Cargo = NO_CARGO) -> Order:
        call = IncomingCall(
            method=method,
            listing_id=ListingId("api_quotes"),
            target=Target(api_id="api_quotes", rest="/q", query="x=1"),
            headers=[],
            body=None,  # type: ignore[arg-type]
            client_address="203.0.113.5",
            request_id="req_1",
            received_ms=NOW_MS,
        )
        binding = None if nonce is None else Binding(valid_until=NOW_MS // 1000, nonce=nonce, body_hash=None)
        proof = Proof(tx_hash=TX, signature=b"", binding=binding, chain_id=None)
        shelf = Shelf(listing=self.listing, versions=(self.tariff().terms,))
        offer = Offer(shelf=shelf, price=self.listing.price, expires_ms=NOW_MS)
        return Order(call=call, listing=self.listing, proof=proof, offer=offer, cargo=cargo)

    async def close(self, ticket: Ticket, after: CallState) -> None:
        await self.book.close(
            Close(
                call_id=ticket.call_id,
                epoch=ticket.claimed.epoch,
                after=after,
                http_status=None,
                upstream_status=None,
                latency_ms=0,
                upstream_latency_ms=None,
                error=None,
            )
        )


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_a_granted_claim_takes_the_price_and_says_what_is_left(desk: Desk) -> None:
    tender = await desk.tender()
    ticket = await desk.counter.take(desk.order(), [desk.purchase(tender)])
    assert (ticket.units, ticket.claimed.rest_units, ticket.claimed.epoch) == (10_000, 20_000, 1)
    assert (ticket.price.text, ticket.currency, ticket.transaction) == ("0.01", "USDC", TX)
    assert desk.till.forgotten == []


async def test_a_purchase_is_priced_with_each_payment_and_the_able_ones_come_first(desk: Desk) -> None:
    small = await desk.tender(4_000)
    other = desk.small.sample_payment(value_units=50_000)
    (payment,) = await desk.book.record_payments([other], now_ms=NOW_MS)
    large = replace(small, payment=payment)
    purchases = desk.counter.price([small, large], [desk.tariff()])
    assert [purchase.tender.payment.value_units for purchase in purchases] == [50_000, 4_000]


async def test_a_payment_in_a_currency_that_was_never_asked_buys_nothing(desk: Desk) -> None:
    tender = await desk.tender()
    tariff = replace(desk.tariff(), terms=replace(desk.tariff().terms, currency="ETH"))
    assert desk.counter.price([tender], [tariff]) == []


def dearer_since(desk: Desk, tender: Tender) -> list[Tariff]:
    """0.04 now; 0.01 until shortly before the payment's block, long enough ago to count for a first call only."""
    block_ms = tender.payment.block_time * 1000
    now, before = desk.tariff("0.04"), desk.tariff("0.01")
    edit_ms = min(block_ms, NOW_MS - 3_600_000)
    return [
        replace(now, terms=replace(now.terms, since_ms=edit_ms)),
        replace(before, terms=replace(before.terms, until_ms=edit_ms)),
    ]


async def test_the_price_of_before_the_block_is_for_one_call_and_the_others_pay_that_of_now(
    desk: Desk,
) -> None:
    tender = await desk.tender(90_000, block_time=NOW_MS // 1000 - 3_600)
    purchases = desk.counter.price([tender], dearer_since(desk, tender))
    assert [(one.due.price.text, one.is_first_price) for one in purchases] == [
        ("0.01", True),
        ("0.04", False),
    ]
    tickets = [await desk.counter.take(desk.order(), purchases) for _ in range(3)]
    assert [ticket.units for ticket in tickets] == [10_000, 40_000, 40_000]


async def test_the_price_of_now_is_not_taken_beyond_what_the_caller_allows(desk: Desk) -> None:
    tender = await desk.tender(90_000, block_time=NOW_MS // 1000 - 3_600)
    purchases = desk.counter.price([tender], dearer_since(desk, tender))
    order = desk.order()
    capped = replace(order, call=replace(order.call, headers=[(b"tollway-max-price", b"0.02")]))
    await desk.counter.take(capped, purchases)
    with pytest.raises(ClaimRefused) as refused:
        await desk.counter.take(capped, purchases)
    assert refused.value.outcome.problem.code is Code.PRICE_ABOVE_MAX
    (payment,) = await desk.book.find_payments(TX)
    assert payment.taken_units == 10_000


async def test_the_second_payment_is_asked_when_the_first_is_empty(desk: Desk) -> None:
    empty = await desk.tender(0)
    (payment,) = await desk.book.record_payments([desk.small.sample_payment()], now_ms=NOW_MS)
    full = replace(empty, payment=payment)
    ticket = await desk.counter.take(desk.order(), [desk.purchase(empty), desk.purchase(full)])
    assert ticket.transaction == payment.tx_hash


GRANTED_ELSEWHERE = CallId("call_other")
REFUSALS: tuple[tuple[ClaimOutcome, Code, str, bool], ...] = (
    (Exhausted(rest_units=4_000), Code.PAYMENT_INSUFFICIENT, "released", True),
    (Exhausted(rest_units=0), Code.PAYMENT_ALREADY_USED, "charged", False),
    (Exhausted(rest_units=0, held_units=1), Code.PAYMENT_ALREADY_USED, "held", False),
    (Exhausted(rest_units=4_000, held_units=1), Code.PAYMENT_ALREADY_USED, "held", False),
    (InDebt(units=10_000), Code.PAYER_IN_DEBT, "none", False),
    (NonceUsed(call_id=GRANTED_ELSEWHERE, state=CallState.CONSUMED), Code.NONCE_REUSED, "charged", False),
    (NonceUsed(call_id=GRANTED_ELSEWHERE, state=CallState.REORGED), Code.NONCE_REUSED, "charged", False),
    (NonceUsed(call_id=GRANTED_ELSEWHERE, state=CallState.UNKNOWN), Code.NONCE_REUSED, "held", False),
    (NonceUsed(call_id=GRANTED_ELSEWHERE, state=CallState.FORWARDING), Code.IDEMPOTENCY_IN_PROGRESS, "held", False),
    (NonceUsed(call_id=GRANTED_ELSEWHERE, state=CallState.SETTLING), Code.IDEMPOTENCY_IN_PROGRESS, "held", False),
    (PlainEnded(), Code.INVALID_REQUEST, "released", False),
    (Unspendable(is_held=True), Code.PAYMENT_HELD, "held", False),
    (Unspendable(is_held=False), Code.PAYMENT_PENDING, "none", False),
    (UnfinalLimit(), Code.PAYMENT_PENDING, "released", False),
)  # fmt: skip


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{type(row[0]).__name__}-{row[1]}")
async def test_every_refusal_of_the_books_has_its_words_and_only_an_insufficient_one_has_terms(
    desk: Desk, row: tuple[ClaimOutcome, Code, str, bool]
) -> None:
    outcome, code, payment_state, has_terms = row
    tender = await desk.tender()

    async def refuse(claim: Claim) -> ClaimOutcome:
        return outcome

    desk.book.claim = refuse  # type: ignore[method-assign]
    with pytest.raises(ClaimRefused) as refused:
        await desk.counter.take(desk.order(nonce=b"n" * 32), [desk.purchase(tender)])
    declined = refused.value.outcome
    assert (declined.problem.code, declined.problem.payment_state) == (code, payment_state)
    assert (declined.offer is not None) == has_terms
    assert desk.till.forgotten == [TX]  # so that the next presentation reads the books again
    assert (await desk.book.audit()).calls == 0


async def test_only_an_empty_payment_lets_the_next_one_be_asked(desk: Desk) -> None:
    tender = await desk.tender()
    asked: list[Claim] = []

    async def refuse(claim: Claim) -> ClaimOutcome:
        asked.append(claim)
        return PlainEnded()

    desk.book.claim = refuse  # type: ignore[method-assign]
    with pytest.raises(ClaimRefused):
        await desk.counter.take(desk.order(), [desk.purchase(tender)] * 2)
    assert len(asked) == 1


async def test_a_missing_sum_counts_from_what_all_payments_could_give(desk: Desk) -> None:
    tender = await desk.tender(4_000)
    with pytest.raises(ClaimRefused) as refused:
        await desk.counter.take(desk.order(), [desk.purchase(tender)])
    members = refused.value.outcome.problem.members
    assert (members["available"], members["missing"]) == ("0.004", "0.006")


async def refuse_each(desk: Desk, outcomes: list[ClaimOutcome], purchases: list[Purchase]) -> Declined:
    left = iter(outcomes)

    async def refuse(claim: Claim) -> ClaimOutcome:
        return next(left)

    desk.book.claim = refuse  # type: ignore[method-assign]
    with pytest.raises(ClaimRefused) as refused:
        await desk.counter.take(desk.order(), purchases)
    assert list(left) == []
    return refused.value.outcome


async def test_what_is_missing_is_told_of_the_purchase_that_was_refused(desk: Desk) -> None:
    """The price of a first call was not to be had; the price of now is what was short."""
    tender = await desk.tender(500_000)
    purchases = [desk.purchase(tender), desk.purchase(tender, "1")]
    declined = await refuse_each(desk, [NotFirst(), Exhausted(rest_units=490_000)], purchases)
    assert declined.problem.members["missing"] == "0.51"


NEAREST: tuple[tuple[list[ClaimOutcome], Code], ...] = (
    ([Exhausted(rest_units=4_000), Exhausted(rest_units=0)], Code.PAYMENT_INSUFFICIENT),
    ([Exhausted(rest_units=4_000), Exhausted(rest_units=0, held_units=1)], Code.PAYMENT_ALREADY_USED),
    ([InDebt(units=1), Exhausted(rest_units=4_000)], Code.PAYER_IN_DEBT),
    ([Exhausted(rest_units=4_000), Unspendable(is_held=True)], Code.PAYMENT_HELD),
)


@pytest.mark.parametrize(("outcomes", "code"), NEAREST)
async def test_of_several_payments_the_refusal_is_told_that_asks_for_the_least(
    desk: Desk, outcomes: list[ClaimOutcome], code: Code
) -> None:
    purchase = desk.purchase(await desk.tender())
    declined = await refuse_each(desk, outcomes, [purchase, purchase])
    assert declined.problem.code is code


# ---------------------------------------------------------------------- repeats


async def test_a_repeat_is_priced_as_it_was_claimed(desk: Desk) -> None:
    tender = await desk.tender()
    first = await desk.counter.take(desk.order(), [desk.purchase(tender)])
    await desk.close(first, CallState.UNKNOWN)
    second = await desk.counter.take(desk.order(), [desk.purchase(tender, "0.005")])
    assert (second.call_id, second.price.text, second.units) == (first.call_id, "0.01", 10_000)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_safe_request_without_an_outcome_runs_again_under_its_claim(desk: Desk, method: str) -> None:
    tender = await desk.tender()
    first = await desk.counter.take(desk.order(method), [desk.purchase(tender)])
    await desk.close(first, CallState.UNKNOWN)
    second = await desk.counter.take(desk.order(method), [desk.purchase(tender)])
    assert (second.call_id, second.claimed.epoch) == (first.call_id, 2)
    assert second.claimed.rest_units == 20_000


async def test_while_it_runs_the_same_request_is_another_call(desk: Desk) -> None:
    tender = await desk.tender()
    first = await desk.counter.take(desk.order(), [desk.purchase(tender)])
    second = await desk.counter.take(desk.order(), [desk.purchase(tender)])
    assert first.call_id != second.call_id


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_no_other_method_runs_again(desk: Desk, method: str) -> None:
    tender = await desk.tender()
    first = await desk.counter.take(desk.order(method), [desk.purchase(tender)])
    await desk.close(first, CallState.UNKNOWN)
    second = await desk.counter.take(desk.order(method), [desk.purchase(tender)])
    assert first.call_id != second.call_id


async def test_what_another_gateway_left_without_an_outcome_runs_again_under_its_claim(desk: Desk) -> None:
    elsewhere = Desk(desk)
    tender = await desk.tender()
    first = await elsewhere.counter.take(elsewhere.order(), [elsewhere.purchase(tender)])
    await elsewhere.close(first, CallState.UNKNOWN)
    again = replace(tender, is_first=False)  # known here for long
    second = await desk.counter.take(desk.order(), [desk.purchase(again)])
    assert (second.call_id, second.claimed.epoch) == (first.call_id, 2)
    assert second.claimed.rest_units == 20_000


async def test_whoever_comes_too_late_to_run_it_again_has_a_call_of_its_own(desk: Desk) -> None:
    tender = await desk.tender()
    first = await desk.counter.take(desk.order(), [desk.purchase(tender)])
    await desk.close(first, CallState.UNKNOWN)
    reopen = desk.book.reopen

    async def reopen_second(call_id: CallId, *, epoch: int, **options: Any) -> Any:
        await reopen(call_id, epoch=epoch, **options)
        return await reopen(call_id, epoch=epoch, **options)

    desk.book.reopen = reopen_second  # type: ignore[method-assign]
    second = await desk.counter.take(desk.order(), [desk.purchase(tender)])
    assert (second.call_id != first.call_id, second.claimed.epoch) == (True, 1)
    assert second.claimed.rest_units == 10_000


async def test_a_request_that_was_attempted_often_enough_is_another_call(desk: Desk) -> None:
    tender = await desk.tender()
    tickets = []
    for _ in range(DEFAULT_LIMITS.attempts_max + 1):
        tickets.append(await desk.counter.take(desk.order(), [desk.purchase(tender)]))
        await desk.close(tickets[-1], CallState.UNKNOWN)
    assert [ticket.claimed.epoch for ticket in tickets] == [1, 2, 3, 1]
    assert len({ticket.call_id for ticket in tickets}) == 2


async def test_a_streamed_body_that_nobody_promised_is_never_the_same_request(desk: Desk) -> None:
    tender = await desk.tender()
    streamed = Cargo(content=None, length=None, body_hash=None)
    first = await desk.counter.take(desk.order(cargo=streamed), [desk.purchase(tender)])
    await desk.close(first, CallState.UNKNOWN)
    second = await desk.counter.take(desk.order(cargo=streamed), [desk.purchase(tender)])
    assert first.call_id != second.call_id


# ---------------------------------------------------------------------- what is written


Change = Callable[[Order], Order]
DIFFERENT: tuple[Change, ...] = (
    lambda order: replace(order, call=replace(order.call, method="HEAD")),
    lambda order: replace(order, call=replace(order.call, target=replace(order.call.target, rest="/Q"))),
    lambda order: replace(order, call=replace(order.call, target=replace(order.call.target, query=""))),
    lambda order: replace(order, call=replace(order.call, listing_id=ListingId("api_2"))),
    lambda order: replace(order, cargo=replace(order.cargo, body_hash=keccak256(b"other"))),
)


@pytest.mark.parametrize("change", DIFFERENT)
async def test_a_request_is_the_same_only_in_all_of_its_parts(desk: Desk, change: Change) -> None:
    claims = await written(desk, [desk.order(), desk.order(), change(desk.order())])
    assert claims[0].digest == claims[1].digest != claims[2].digest
    assert claims[0].call_id != claims[1].call_id


async def test_a_claim_carries_no_query_and_a_short_path(desk: Desk) -> None:
    order = desk.order()
    long = replace(order, call=replace(order.call, target=replace(order.call.target, rest="/" + "a" * 5_000)))
    plain, shortened = await written(desk, [order, long])
    assert plain.path == "/q"
    assert len(shortened.path) == 2_048


async def test_a_bound_claim_carries_its_nonce_and_ends_the_plain_form(desk: Desk) -> None:
    plain, bound = await written(desk, [desk.order(), desk.order(nonce=b"n" * 32)])
    assert (plain.nonce, plain.is_plain, plain.ends_plain) == (None, True, False)
    assert (bound.nonce, bound.is_plain, bound.ends_plain) == (b"n" * 32, False, True)


async def test_a_free_call_is_written_and_takes_nothing(desk: Desk) -> None:
    ticket = await desk.counter.take_free(desk.order().call, desk.listing, desk.tariff("0"))
    assert (ticket.asset, ticket.units, ticket.claimed.rest_units) == (None, 0, 0)
    report = await desk.book.audit()
    assert (report.calls, report.is_balanced) == (1, True)


async def written(desk: Desk, orders: list[Order]) -> list[Claim]:
    tender = await desk.tender(1_000_000)
    claims: list[Claim] = []
    claim_in_book = desk.book.claim

    async def claim_and_keep(claim: Claim) -> ClaimOutcome:
        claims.append(claim)
        return await claim_in_book(claim)

    desk.book.claim = claim_and_keep  # type: ignore[method-assign]
    for order in orders:
        await desk.counter.take(order, [desk.purchase(tender)])
    return claims


async def test_a_call_remembers_the_decimals_of_the_asset_itself(desk: Desk) -> None:
    """A record outlives the configuration, and ledger units alone do not tell what the contract counts."""
    ether = replace(USDC, symbol="USDC", decimals=18)
    tender = replace(await desk.tender(10**9), asset=ether)
    await desk.counter.take(desk.order(), [desk.purchase(tender)])
    page = await desk.book.history(HistoryQuery(wallet=tender.payment.payer, role="payer", limit=1, offset=0))
    assert page.calls[0].decimals == 18
