"""The counter: what a call costs with which payment, what is claimed, and every reason not to be granted one."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, USDC, InProcessGateway
from tests.kit.upstream import LoopbackUpstream
from tests.model.ledger import MemoryLedger
from tollway.errors import Code
from tollway.gateway.body import EMPTY_BODY, ForwardBody
from tollway.gateway.messages import IncomingCall, ProblemResponse, Quote
from tollway.gateway.proxy import ClaimedCall, ClaimRefused
from tollway.gateway.target import Target
from tollway.gateway.transaction_payment import LoadedTransactionRequest, PaymentCandidate, TransactionClaims
from tollway.ids import CallId, ListingId, TxHash, keccak256
from tollway.ledger.history import HistoryQuery
from tollway.ledger.ledger import (
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
from tollway.ledger.records import CallState, Payment
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.payments.pricing import OperationPrice
from tollway.payments.proof import Binding, Proof
from tollway.payments.transaction_verifier import SpendablePayment
from tollway.registry.listing import CatalogEntry, Listing

TX = TxHash(keccak256(b"tx"))


class RecordingVerifier:
    """Stands for the transaction verifier: records which look-ups are to be forgotten."""

    def __init__(self) -> None:
        self.forgotten: list[TxHash] = []

    def mark_spent(self, payment: Payment) -> None:
        pass

    def forget(self, tx_hash: TxHash) -> None:
        self.forgotten.append(tx_hash)


class Harness:
    """`TransactionClaims` over the ledger's model; `before`: another gateway, whose ledger it shares."""

    def __init__(self, before: "Harness | None" = None) -> None:
        self.small = before.small if before else InProcessGateway(LoopbackUpstream(), limits=DEFAULT_LIMITS)
        self.ledger: MemoryLedger = self.small.ledger
        self.transaction_verifier = RecordingVerifier()
        numbers = itertools.count(1_000 if before else 1)
        self.claims = TransactionClaims(
            ledger=self.ledger,
            transaction_verifier=self.transaction_verifier,  # type: ignore[arg-type]
            idempotency=self.small.authorizations.idempotency,
            limits=DEFAULT_LIMITS,
            now_ms=lambda: NOW_MS,
            entropy=lambda size: keccak256(str(next(numbers)).encode())[:size],
        )
        self.listing: Listing = self.small.sample("api_quotes")

    async def spendable(
        self, units: int = 30_000, *, is_first: bool = True, **changes: Any
    ) -> SpendablePayment:
        new = self.small.sample_payment(tx_hash=TX, value_units=units, **changes)
        (payment,) = await self.ledger.record_payments([new], now_ms=NOW_MS)
        return SpendablePayment(payment=payment, asset=USDC, is_first=is_first)

    def operation_price(self, price: str = "0.01") -> OperationPrice:
        return OperationPrice(
            terms=self.listing.current_terms(since_ms=NOW_MS - 86_400_000), price=Price.parse(price)
        )

    def candidate(self, spendable: SpendablePayment, price: str = "0.01") -> PaymentCandidate:
        (candidate,) = self.claims.price([spendable], [self.operation_price(price)])
        return candidate

    def request(
        self, method: str = "GET", *, nonce: bytes | None = None, body: ForwardBody = EMPTY_BODY
    ) -> LoadedTransactionRequest:
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
        entry = CatalogEntry(listing=self.listing, versions=(self.operation_price().terms,))
        quote = Quote(entry=entry, price=self.listing.price, expires_ms=NOW_MS)
        return LoadedTransactionRequest(call=call, listing=self.listing, proof=proof, quote=quote, body=body)

    async def close(self, claimed_call: ClaimedCall, after: CallState) -> None:
        await self.ledger.close(
            Close(
                call_id=claimed_call.call_id,
                epoch=claimed_call.claimed.epoch,
                after=after,
                http_status=None,
                upstream_status=None,
                latency_ms=0,
                upstream_latency_ms=None,
                error=None,
            )
        )


@pytest.fixture
def harness() -> Harness:
    return Harness()


async def test_a_granted_claim_takes_the_price_and_says_what_is_left(harness: Harness) -> None:
    spendable = await harness.spendable()
    claimed_call = await harness.claims.claim(harness.request(), [harness.candidate(spendable)])
    assert (claimed_call.units, claimed_call.claimed.remaining_units, claimed_call.claimed.epoch) == (
        10_000,
        20_000,
        1,
    )
    assert (claimed_call.price.text, claimed_call.currency, claimed_call.transaction) == ("0.01", "USDC", TX)
    assert harness.transaction_verifier.forgotten == []


async def test_a_purchase_is_priced_with_each_payment_and_the_able_ones_come_first(harness: Harness) -> None:
    small = await harness.spendable(4_000)
    other = harness.small.sample_payment(value_units=50_000)
    (payment,) = await harness.ledger.record_payments([other], now_ms=NOW_MS)
    large = replace(small, payment=payment)
    candidates = harness.claims.price([small, large], [harness.operation_price()])
    assert [candidate.spendable.payment.value_units for candidate in candidates] == [50_000, 4_000]


async def test_a_payment_in_a_currency_that_was_never_asked_buys_nothing(harness: Harness) -> None:
    spendable = await harness.spendable()
    operation_price = replace(
        harness.operation_price(), terms=replace(harness.operation_price().terms, currency="ETH")
    )
    assert harness.claims.price([spendable], [operation_price]) == []


def dearer_since(harness: Harness, spendable: SpendablePayment) -> list[OperationPrice]:
    """0.04 now; 0.01 until shortly before the payment's block, long enough ago to count for a first call only."""
    block_ms = spendable.payment.block_time * 1000
    now, before = harness.operation_price("0.04"), harness.operation_price("0.01")
    edit_ms = min(block_ms, NOW_MS - 3_600_000)
    return [
        replace(now, terms=replace(now.terms, since_ms=edit_ms)),
        replace(before, terms=replace(before.terms, until_ms=edit_ms)),
    ]


async def test_the_price_of_before_the_block_is_for_one_call_and_the_others_pay_that_of_now(
    harness: Harness,
) -> None:
    spendable = await harness.spendable(90_000, block_time=NOW_MS // 1000 - 3_600)
    candidates = harness.claims.price([spendable], dearer_since(harness, spendable))
    assert [(one.due.price.text, one.is_first_price) for one in candidates] == [
        ("0.01", True),
        ("0.04", False),
    ]
    tickets = [await harness.claims.claim(harness.request(), candidates) for _ in range(3)]
    assert [claimed_call.units for claimed_call in tickets] == [10_000, 40_000, 40_000]


async def test_the_price_of_now_is_not_taken_beyond_what_the_caller_allows(harness: Harness) -> None:
    spendable = await harness.spendable(90_000, block_time=NOW_MS // 1000 - 3_600)
    candidates = harness.claims.price([spendable], dearer_since(harness, spendable))
    request = harness.request()
    capped = replace(request, call=replace(request.call, headers=[(b"tollway-max-price", b"0.02")]))
    await harness.claims.claim(capped, candidates)
    with pytest.raises(ClaimRefused) as refused:
        await harness.claims.claim(capped, candidates)
    assert refused.value.outcome.problem.code is Code.PRICE_ABOVE_MAX
    (payment,) = await harness.ledger.find_payments(TX)
    assert payment.taken_units == 10_000


async def test_the_second_payment_is_asked_when_the_first_is_empty(harness: Harness) -> None:
    empty = await harness.spendable(0)
    (payment,) = await harness.ledger.record_payments([harness.small.sample_payment()], now_ms=NOW_MS)
    full = replace(empty, payment=payment)
    claimed_call = await harness.claims.claim(
        harness.request(), [harness.candidate(empty), harness.candidate(full)]
    )
    assert claimed_call.transaction == payment.tx_hash


GRANTED_ELSEWHERE = CallId("call_other")
REFUSALS: tuple[tuple[ClaimOutcome, Code, str, bool], ...] = (
    (Exhausted(remaining_units=4_000), Code.PAYMENT_INSUFFICIENT, "released", True),
    (Exhausted(remaining_units=0), Code.PAYMENT_ALREADY_USED, "charged", False),
    (Exhausted(remaining_units=0, held_units=1), Code.PAYMENT_ALREADY_USED, "held", False),
    (Exhausted(remaining_units=4_000, held_units=1), Code.PAYMENT_ALREADY_USED, "held", False),
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
    harness: Harness, row: tuple[ClaimOutcome, Code, str, bool]
) -> None:
    outcome, code, payment_state, has_terms = row
    spendable = await harness.spendable()

    async def refuse(claim: Claim) -> ClaimOutcome:
        return outcome

    harness.ledger.claim = refuse  # type: ignore[method-assign]
    with pytest.raises(ClaimRefused) as refused:
        await harness.claims.claim(harness.request(nonce=b"n" * 32), [harness.candidate(spendable)])
    refusal = refused.value.outcome
    assert (refusal.problem.code, refusal.problem.payment_state) == (code, payment_state)
    assert (refusal.quote is not None) == has_terms
    assert harness.transaction_verifier.forgotten == [
        TX
    ]  # so that the next presentation reads the ledger again
    assert (await harness.ledger.audit()).calls == 0


async def test_only_an_empty_payment_lets_the_next_one_be_asked(harness: Harness) -> None:
    spendable = await harness.spendable()
    asked: list[Claim] = []

    async def refuse(claim: Claim) -> ClaimOutcome:
        asked.append(claim)
        return PlainEnded()

    harness.ledger.claim = refuse  # type: ignore[method-assign]
    with pytest.raises(ClaimRefused):
        await harness.claims.claim(harness.request(), [harness.candidate(spendable)] * 2)
    assert len(asked) == 1


async def test_a_missing_sum_counts_from_what_all_payments_could_give(harness: Harness) -> None:
    spendable = await harness.spendable(4_000)
    with pytest.raises(ClaimRefused) as refused:
        await harness.claims.claim(harness.request(), [harness.candidate(spendable)])
    members = refused.value.outcome.problem.members
    assert (members["available"], members["missing"]) == ("0.004", "0.006")


async def refuse_each(
    harness: Harness, outcomes: list[ClaimOutcome], candidates: list[PaymentCandidate]
) -> ProblemResponse:
    left = iter(outcomes)

    async def refuse(claim: Claim) -> ClaimOutcome:
        return next(left)

    harness.ledger.claim = refuse  # type: ignore[method-assign]
    with pytest.raises(ClaimRefused) as refused:
        await harness.claims.claim(harness.request(), candidates)
    assert list(left) == []
    return refused.value.outcome


async def test_what_is_missing_is_told_of_the_purchase_that_was_refused(harness: Harness) -> None:
    """The price of a first call was not to be had; the price of now is what was short."""
    spendable = await harness.spendable(500_000)
    candidates = [harness.candidate(spendable), harness.candidate(spendable, "1")]
    refusal = await refuse_each(harness, [NotFirst(), Exhausted(remaining_units=490_000)], candidates)
    assert refusal.problem.members["missing"] == "0.51"


NEAREST: tuple[tuple[list[ClaimOutcome], Code], ...] = (
    ([Exhausted(remaining_units=4_000), Exhausted(remaining_units=0)], Code.PAYMENT_INSUFFICIENT),
    (
        [Exhausted(remaining_units=4_000), Exhausted(remaining_units=0, held_units=1)],
        Code.PAYMENT_ALREADY_USED,
    ),
    ([InDebt(units=1), Exhausted(remaining_units=4_000)], Code.PAYER_IN_DEBT),
    ([Exhausted(remaining_units=4_000), Unspendable(is_held=True)], Code.PAYMENT_HELD),
)


@pytest.mark.parametrize(("outcomes", "code"), NEAREST)
async def test_of_several_payments_the_refusal_is_told_that_asks_for_the_least(
    harness: Harness, outcomes: list[ClaimOutcome], code: Code
) -> None:
    candidate = harness.candidate(await harness.spendable())
    refusal = await refuse_each(harness, outcomes, [candidate, candidate])
    assert refusal.problem.code is code


# ---------------------------------------------------------------------- repeats


async def test_a_repeat_is_priced_as_it_was_claimed(harness: Harness) -> None:
    spendable = await harness.spendable()
    first = await harness.claims.claim(harness.request(), [harness.candidate(spendable)])
    await harness.close(first, CallState.UNKNOWN)
    second = await harness.claims.claim(harness.request(), [harness.candidate(spendable, "0.005")])
    assert (second.call_id, second.price.text, second.units) == (first.call_id, "0.01", 10_000)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_safe_request_without_an_outcome_runs_again_under_its_claim(
    harness: Harness, method: str
) -> None:
    spendable = await harness.spendable()
    first = await harness.claims.claim(harness.request(method), [harness.candidate(spendable)])
    await harness.close(first, CallState.UNKNOWN)
    second = await harness.claims.claim(harness.request(method), [harness.candidate(spendable)])
    assert (second.call_id, second.claimed.epoch) == (first.call_id, 2)
    assert second.claimed.remaining_units == 20_000


async def test_while_it_runs_the_same_request_is_another_call(harness: Harness) -> None:
    spendable = await harness.spendable()
    first = await harness.claims.claim(harness.request(), [harness.candidate(spendable)])
    second = await harness.claims.claim(harness.request(), [harness.candidate(spendable)])
    assert first.call_id != second.call_id


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_no_other_method_runs_again(harness: Harness, method: str) -> None:
    spendable = await harness.spendable()
    first = await harness.claims.claim(harness.request(method), [harness.candidate(spendable)])
    await harness.close(first, CallState.UNKNOWN)
    second = await harness.claims.claim(harness.request(method), [harness.candidate(spendable)])
    assert first.call_id != second.call_id


async def test_what_another_gateway_left_without_an_outcome_runs_again_under_its_claim(
    harness: Harness,
) -> None:
    elsewhere = Harness(harness)
    spendable = await harness.spendable()
    first = await elsewhere.claims.claim(elsewhere.request(), [elsewhere.candidate(spendable)])
    await elsewhere.close(first, CallState.UNKNOWN)
    again = replace(spendable, is_first=False)  # known here for long
    second = await harness.claims.claim(harness.request(), [harness.candidate(again)])
    assert (second.call_id, second.claimed.epoch) == (first.call_id, 2)
    assert second.claimed.remaining_units == 20_000


async def test_whoever_comes_too_late_to_run_it_again_has_a_call_of_its_own(harness: Harness) -> None:
    spendable = await harness.spendable()
    first = await harness.claims.claim(harness.request(), [harness.candidate(spendable)])
    await harness.close(first, CallState.UNKNOWN)
    reopen = harness.ledger.reopen

    async def reopen_second(call_id: CallId, *, epoch: int, **options: Any) -> Any:
        await reopen(call_id, epoch=epoch, **options)
        return await reopen(call_id, epoch=epoch, **options)

    harness.ledger.reopen = reopen_second  # type: ignore[method-assign]
    second = await harness.claims.claim(harness.request(), [harness.candidate(spendable)])
    assert (second.call_id != first.call_id, second.claimed.epoch) == (True, 1)
    assert second.claimed.remaining_units == 10_000


async def test_a_request_that_was_attempted_often_enough_is_another_call(harness: Harness) -> None:
    spendable = await harness.spendable()
    tickets = []
    for _ in range(DEFAULT_LIMITS.attempts_max + 1):
        tickets.append(await harness.claims.claim(harness.request(), [harness.candidate(spendable)]))
        await harness.close(tickets[-1], CallState.UNKNOWN)
    assert [claimed_call.claimed.epoch for claimed_call in tickets] == [1, 2, 3, 1]
    assert len({claimed_call.call_id for claimed_call in tickets}) == 2


async def test_a_streamed_body_that_nobody_promised_is_never_the_same_request(harness: Harness) -> None:
    spendable = await harness.spendable()
    streamed = ForwardBody(content=None, length=None, body_hash=None)
    first = await harness.claims.claim(harness.request(body=streamed), [harness.candidate(spendable)])
    await harness.close(first, CallState.UNKNOWN)
    second = await harness.claims.claim(harness.request(body=streamed), [harness.candidate(spendable)])
    assert first.call_id != second.call_id


# ---------------------------------------------------------------------- what is written


Change = Callable[[LoadedTransactionRequest], LoadedTransactionRequest]
DIFFERENT: tuple[Change, ...] = (
    lambda request: replace(request, call=replace(request.call, method="HEAD")),
    lambda request: replace(
        request, call=replace(request.call, target=replace(request.call.target, rest="/Q"))
    ),
    lambda request: replace(
        request, call=replace(request.call, target=replace(request.call.target, query=""))
    ),
    lambda request: replace(request, call=replace(request.call, listing_id=ListingId("api_2"))),
    lambda request: replace(request, body=replace(request.body, body_hash=keccak256(b"other"))),
)


@pytest.mark.parametrize("change", DIFFERENT)
async def test_a_request_is_the_same_only_in_all_of_its_parts(harness: Harness, change: Change) -> None:
    claims = await written(harness, [harness.request(), harness.request(), change(harness.request())])
    assert claims[0].digest == claims[1].digest != claims[2].digest
    assert claims[0].call_id != claims[1].call_id


async def test_a_claim_carries_no_query_and_a_short_path(harness: Harness) -> None:
    request = harness.request()
    long = replace(
        request, call=replace(request.call, target=replace(request.call.target, rest="/" + "a" * 5_000))
    )
    plain, shortened = await written(harness, [request, long])
    assert plain.path == "/q"
    assert len(shortened.path) == 2_048


async def test_a_bound_claim_carries_its_nonce_and_ends_the_plain_form(harness: Harness) -> None:
    plain, bound = await written(harness, [harness.request(), harness.request(nonce=b"n" * 32)])
    assert (plain.nonce, plain.is_plain, plain.ends_plain) == (None, True, False)
    assert (bound.nonce, bound.is_plain, bound.ends_plain) == (b"n" * 32, False, True)


async def test_a_free_call_is_written_and_takes_nothing(harness: Harness) -> None:
    claimed_call = await harness.claims.claim_free(
        harness.request().call, harness.listing, harness.operation_price("0")
    )
    assert (claimed_call.asset, claimed_call.units, claimed_call.claimed.remaining_units) == (None, 0, 0)
    report = await harness.ledger.audit()
    assert (report.calls, report.is_balanced) == (1, True)


async def written(harness: Harness, orders: list[LoadedTransactionRequest]) -> list[Claim]:
    spendable = await harness.spendable(1_000_000)
    claims: list[Claim] = []
    claim_in_ledger = harness.ledger.claim

    async def claim_and_keep(claim: Claim) -> ClaimOutcome:
        claims.append(claim)
        return await claim_in_ledger(claim)

    harness.ledger.claim = claim_and_keep  # type: ignore[method-assign]
    for request in orders:
        await harness.claims.claim(request, [harness.candidate(spendable)])
    return claims


async def test_a_call_remembers_the_decimals_of_the_asset_itself(harness: Harness) -> None:
    """A record outlives the configuration, and ledger units alone do not tell what the contract counts."""
    ether = replace(USDC, symbol="USDC", decimals=18)
    spendable = replace(await harness.spendable(10**9), asset=ether)
    await harness.claims.claim(harness.request(), [harness.candidate(spendable)])
    page = await harness.ledger.history(
        HistoryQuery(wallet=spendable.payment.payer, role="payer", limit=1, offset=0)
    )
    assert page.calls[0].decimals == 18
