"""Tables of calls that a transaction pays: the price with each payment, the claims, and the reported refusal."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, PUBLIC_URL, USDC, InProcessGateway
from tests.kit.proxy_requests import sample_request
from tests.kit.upstream import LoopbackUpstream
from tests.model.ledger import MemoryLedger
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.access import ActiveCall
from tollway.gateway.body import EMPTY_BODY, ForwardBody
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.rail import ClockAndEntropy
from tollway.gateway.routing import Route
from tollway.gateway.transaction_payment import TransactionPayment, TransactionRail
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
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.payments.pricing import OperationPrice
from tollway.payments.proof import Binding, Proof
from tollway.payments.transaction_verifier import SpendablePayment
from tollway.registry.listing import CatalogEntry, Listing

TX = TxHash(keccak256(b"tx"))
BLOCK_S = NOW_MS // 1000 - 3_600


class GivenVerifier:
    """Stands for the transaction verifier: every proof may spend `spendables`. Records which look-ups are to be forgotten."""

    def __init__(self) -> None:
        self.spendables: tuple[SpendablePayment, ...] = ()
        self.forgotten: list[TxHash] = []

    async def find_spendable(self, *given: Any, **_: Any) -> tuple[SpendablePayment, ...]:
        return self.spendables

    def mark_spent(self, payment: Payment) -> None:
        pass

    def forget(self, tx_hash: TxHash) -> None:
        self.forgotten.append(tx_hash)


class RecordingLedger:
    """The ledger's model: records each claim. `outcomes`: of the next claims, which the model does not see. `is_overtaken`:
    another request runs a call again before each one that would."""

    def __init__(self, model: MemoryLedger) -> None:
        self._model = model
        self.claims: list[Claim] = []
        self.outcomes: list[ClaimOutcome] = []
        self.is_overtaken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def claim(self, claim: Claim) -> ClaimOutcome:
        self.claims.append(claim)
        return self.outcomes.pop(0) if self.outcomes else await self._model.claim(claim)

    async def reopen(self, call_id: CallId, **given: Any) -> Any:
        if self.is_overtaken:
            await self._model.reopen(call_id, **given)
        return await self._model.reopen(call_id, **given)


class Harness:
    """A rail over the ledger's model; `before`: another gateway, whose ledger it shares."""

    def __init__(self, before: "Harness | None" = None) -> None:
        self.gateway = (
            before.gateway if before else InProcessGateway(LoopbackUpstream(), limits=DEFAULT_LIMITS)
        )
        self.ledger: Any = RecordingLedger(self.gateway.ledger)
        self.verifier = GivenVerifier()
        numbers = itertools.count(1_000 if before else 1)
        self.rail = TransactionRail(
            ledger=self.ledger,
            transaction_verifier=self.verifier,  # type: ignore[arg-type]
            idempotency=self.gateway.idempotency,
            limits=DEFAULT_LIMITS,
            origin=PUBLIC_URL,
            is_bound_required=False,
            clock=ClockAndEntropy(
                now_ms=lambda: NOW_MS, entropy=lambda size: keccak256(str(next(numbers)).encode())[:size]
            ),
        )
        self.listing: Listing = self.gateway.sample("api_quotes")

    async def pay(self, units: int = 30_000, *, is_first: bool = True, **changes: Any) -> SpendablePayment:
        """A payment of the ledger, which every proof may spend beside those of before."""
        new = self.gateway.sample_payment(**{"tx_hash": TX, "value_units": units, **changes})
        (payment,) = await self.ledger.record_payments([new], now_ms=NOW_MS)
        spendable = SpendablePayment(payment=payment, asset=USDC, is_first=is_first)
        self.verifier.spendables = (*self.verifier.spendables, spendable)
        return spendable

    def operation_price(self, price: str = "0.01", **terms: Any) -> OperationPrice:
        current = self.listing.current_terms(since_ms=NOW_MS - 86_400_000)
        return OperationPrice(terms=replace(current, **terms), price=Price.parse(price))

    def dearer_since_the_block(self, price: str = "0.04") -> list[OperationPrice]:
        """0.01 until the block at `BLOCK_S`, long enough ago to count for a first call only."""
        edit_ms = BLOCK_S * 1000
        return [
            self.operation_price(price, since_ms=edit_ms),
            self.operation_price("0.01", until_ms=edit_ms),
        ]

    def open(
        self,
        method: str = "GET",
        *,
        rest: str = "/q",
        query: str = "x=1",
        listing_id: str = "api_quotes",
        nonce: bytes | None = None,
        body: ForwardBody = EMPTY_BODY,
        prices: Sequence[OperationPrice] = (),
        **headers: str,
    ) -> TransactionPayment:
        """The payment of one call, whose body is here. `prices`: of each version, the current one first; else 0.01."""
        request = replace(sample_request(method, rest, query, **headers), listing_id=ListingId(listing_id))
        binding = None if nonce is None else Binding(valid_until=NOW_MS // 1000, nonce=nonce, body_hash=None)
        proof = Proof(tx_hash=TX, signature=b"", binding=binding, chain_id=None)
        active = ActiveCall(self.gateway.access, request, self.listing)
        payment = self.rail.open(request, self.build_route(request, prices), proof, None, active)
        payment.body = body
        return payment

    def build_route(self, request: ProxyRequest, prices: Sequence[OperationPrice]) -> Route:
        operation_prices = tuple(prices) or (self.operation_price(),)
        endpoint = parse_endpoint("https://api.example.com", allow_private=False)
        assert isinstance(endpoint, Endpoint)
        entry = CatalogEntry(listing=self.listing, versions=tuple(one.terms for one in operation_prices))
        return Route(
            entry=entry,
            listing=self.listing,
            endpoint=endpoint,
            target=request.target.signed,
            operation_prices=operation_prices,
            is_free=False,
        )

    async def claim(self, method: str = "GET", **given: Any) -> TransactionPayment:
        """A call that is claimed. Takes what `open` takes."""
        payment = self.open(method, **given)
        await payment.identify()
        await payment.verify()
        assert await payment.claim() is None
        return payment

    async def refuse(self, outcomes: Sequence[ClaimOutcome] = (), **given: Any) -> Problem:
        """Why a call is not granted. `outcomes`: of its claims, each of which is made."""
        self.ledger.outcomes = list(outcomes)
        with pytest.raises(Refusal) as refused:
            await self.claim(**given)
        assert self.ledger.outcomes == []
        return refused.value.problem

    async def leave_unknown(self, payment: TransactionPayment) -> None:
        """The call ends without an outcome."""
        assert payment.call_id is not None
        assert payment.claimed is not None
        close = Close(
            call_id=payment.call_id,
            epoch=payment.claimed.epoch,
            after=CallState.UNKNOWN,
            http_status=None,
            upstream_status=None,
            latency_ms=0,
            upstream_latency_ms=None,
            error=None,
        )
        await self.ledger.close(close)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def granted(payment: TransactionPayment) -> tuple[int, int | None]:
    """The run of the call, and what the payment has left."""
    assert payment.claimed is not None
    return payment.claimed.epoch, payment.claimed.remaining_units


# ---------------------------------------------------------------------- prices


async def test_a_granted_claim_takes_the_price_and_returns_the_remaining_credit(harness: Harness) -> None:
    await harness.pay()
    payment = await harness.claim()
    assert (payment.units, granted(payment)) == (10_000, (1, 20_000))
    assert (payment.price.text, payment.currency, payment.transaction) == ("0.01", "USDC", TX)
    assert harness.verifier.forgotten == []


async def test_a_call_is_priced_with_each_payment_and_those_that_can_give_it_come_first(
    harness: Harness,
) -> None:
    small, large = await harness.pay(4_000), await harness.pay(50_000, tx_hash=TxHash(keccak256(b"large")))
    await harness.refuse([Exhausted(remaining_units=0), Exhausted(remaining_units=0)])
    assert [claim.payment_id for claim in harness.ledger.claims] == [large.payment.id, small.payment.id]


async def test_a_payment_in_a_currency_that_was_never_offered_pays_for_nothing(harness: Harness) -> None:
    await harness.pay()
    problem = await harness.refuse(prices=[harness.operation_price(currency="ETH")])
    assert (problem.code, problem.reason) == (Code.PAYMENT_VERIFICATION_FAILED, "wrong_token")
    assert harness.ledger.claims == []


async def test_the_price_of_before_the_block_is_for_one_call_and_the_others_pay_that_of_now(
    harness: Harness,
) -> None:
    await harness.pay(90_000, block_time=BLOCK_S)
    payments = [await harness.claim(prices=harness.dearer_since_the_block()) for _ in range(3)]
    assert [payment.units for payment in payments] == [10_000, 40_000, 40_000]
    tried = [(claim.price, claim.is_first_price) for claim in harness.ledger.claims]
    assert tried == [("0.01", True), *[("0.01", True), ("0.04", False)] * 2]


async def test_the_price_of_now_is_not_taken_beyond_what_the_caller_allows(harness: Harness) -> None:
    await harness.pay(90_000, block_time=BLOCK_S)
    capped: Any = {"prices": harness.dearer_since_the_block(), "tollway_max_price": "0.02"}
    await harness.claim(**capped)
    problem = await harness.refuse(**capped)
    assert problem.code is Code.PRICE_ABOVE_MAX
    (payment,) = await harness.ledger.find_payments(TX)
    assert payment.taken_units == 10_000


async def test_the_second_payment_is_claimed_when_the_first_is_empty(harness: Harness) -> None:
    await harness.pay(0)
    full = await harness.pay(10_000, tx_hash=TxHash(keccak256(b"full")))
    payment = await harness.claim()
    assert payment.transaction == full.payment.tx_hash


# ---------------------------------------------------------------------- refusals: the words are `explain_claim`'s


GRANTED_ELSEWHERE = CallId("call_other")


@pytest.mark.parametrize(
    "outcome",
    [
        Exhausted(remaining_units=4_000),
        Exhausted(remaining_units=0, held_units=1),
        InDebt(units=10_000),
        NonceUsed(call_id=GRANTED_ELSEWHERE, state=CallState.CONSUMED),
        NonceUsed(call_id=GRANTED_ELSEWHERE, state=CallState.FORWARDING),
        PlainEnded(),
        Unspendable(is_held=True),
        UnfinalLimit(),
    ],
    ids=repr,
)
async def test_a_claim_that_is_not_granted_takes_nothing_and_the_next_proof_reads_the_ledger_again(
    harness: Harness, outcome: ClaimOutcome
) -> None:
    await harness.pay()
    await harness.refuse([outcome], nonce=b"n" * 32)
    assert harness.verifier.forgotten == [TX]
    assert (await harness.ledger.audit()).calls == 0


async def test_only_an_empty_payment_leads_to_a_claim_on_the_next_one(harness: Harness) -> None:
    await harness.pay()
    await harness.pay()
    await harness.refuse([PlainEnded()])
    assert len(harness.ledger.claims) == 1


async def test_a_missing_sum_counts_from_what_the_payment_could_give(harness: Harness) -> None:
    await harness.pay(4_000)
    problem = await harness.refuse()
    assert (problem.members["available"], problem.members["missing"]) == ("0.004", "0.006")


async def test_the_missing_amount_is_that_of_the_refused_price(harness: Harness) -> None:
    """Another call has taken the price of a first call; the price of now is what was short."""
    await harness.pay(500_000, block_time=BLOCK_S)
    outcomes = [NotFirst(), Exhausted(remaining_units=490_000)]
    problem = await harness.refuse(outcomes, prices=harness.dearer_since_the_block("1"))
    assert problem.members["missing"] == "0.51"


NEAREST: tuple[tuple[list[ClaimOutcome], Code], ...] = (
    ([Exhausted(remaining_units=4_000), Exhausted(remaining_units=0)], Code.PAYMENT_INSUFFICIENT),
    ([Exhausted(remaining_units=4_000), Exhausted(remaining_units=0, held_units=1)], Code.PAYMENT_ALREADY_USED),
    ([InDebt(units=1), Exhausted(remaining_units=4_000)], Code.PAYER_IN_DEBT),
    ([Exhausted(remaining_units=4_000), Unspendable(is_held=True)], Code.PAYMENT_HELD),
)  # fmt: skip


@pytest.mark.parametrize(("outcomes", "code"), NEAREST)
async def test_of_several_payments_the_refusal_with_the_smallest_difference_is_reported(
    harness: Harness, outcomes: list[ClaimOutcome], code: Code
) -> None:
    await harness.pay()
    await harness.pay()
    assert (await harness.refuse(outcomes)).code is code


# ---------------------------------------------------------------------- repeats


async def test_a_repeat_is_priced_as_it_was_claimed(harness: Harness) -> None:
    await harness.pay()
    first = await harness.claim()
    await harness.leave_unknown(first)
    second = await harness.claim(prices=[harness.operation_price("0.005")])
    assert (second.call_id, second.price.text, second.units) == (first.call_id, "0.01", 10_000)


STREAMED = ForwardBody(content=None, length=None, body_hash=None)
"""Its hash is not promised."""


@pytest.mark.parametrize(
    ("method", "body", "is_same"),
    [
        ("GET", EMPTY_BODY, True),
        ("HEAD", EMPTY_BODY, True),
        *[(method, EMPTY_BODY, False) for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS")],
        ("GET", STREAMED, False),
    ],
)
async def test_only_a_safe_request_without_an_outcome_runs_again_under_its_claim(
    harness: Harness, method: str, body: ForwardBody, is_same: bool
) -> None:
    await harness.pay()
    first = await harness.claim(method, body=body)
    await harness.leave_unknown(first)
    second = await harness.claim(method, body=body)
    assert (second.call_id == first.call_id) == is_same
    assert granted(second) == ((2, 20_000) if is_same else (1, 10_000))


async def test_while_it_runs_the_same_request_is_another_call(harness: Harness) -> None:
    await harness.pay()
    first, second = await harness.claim(), await harness.claim()
    assert first.call_id != second.call_id


async def test_what_another_gateway_left_without_an_outcome_runs_again_under_its_claim(
    harness: Harness,
) -> None:
    elsewhere = Harness(harness)
    spendable = await harness.pay()
    elsewhere.verifier.spendables = (spendable,)
    first = await elsewhere.claim()
    await elsewhere.leave_unknown(first)
    harness.verifier.spendables = (replace(spendable, is_first=False),)  # known here for long
    second = await harness.claim()
    assert (second.call_id, granted(second)) == (first.call_id, (2, 20_000))


async def test_a_request_that_comes_too_late_to_run_it_again_has_a_call_of_its_own(harness: Harness) -> None:
    await harness.pay()
    first = await harness.claim()
    await harness.leave_unknown(first)
    harness.ledger.is_overtaken = True
    second = await harness.claim()
    assert (second.call_id != first.call_id, granted(second)) == (True, (1, 10_000))


async def test_a_request_that_was_attempted_often_enough_is_another_call(harness: Harness) -> None:
    await harness.pay()
    payments = []
    for _ in range(DEFAULT_LIMITS.attempts_max + 1):
        payments.append(await harness.claim())
        await harness.leave_unknown(payments[-1])
    assert [granted(payment)[0] for payment in payments] == [1, 2, 3, 1]
    assert len({payment.call_id for payment in payments}) == 2


# ---------------------------------------------------------------------- what is written


@pytest.mark.parametrize(
    "difference",
    [
        {"method": "HEAD"},
        {"rest": "/Q"},
        {"query": ""},
        {"listing_id": "api_2"},
        {"body": replace(EMPTY_BODY, body_hash=keccak256(b"other"))},
    ],
    ids=lambda difference: next(iter(difference)),
)
async def test_a_request_is_the_same_only_in_all_of_its_parts(
    harness: Harness, difference: dict[str, Any]
) -> None:
    first, second, other = await write(harness, {}, {}, difference)
    assert first.digest == second.digest != other.digest
    assert first.call_id != second.call_id


async def test_a_claim_carries_no_query_and_a_short_path(harness: Harness) -> None:
    plain, shortened = await write(harness, {}, {"rest": "/" + "a" * 5_000})
    assert plain.path == "/q"
    assert len(shortened.path) == 2_048


async def test_a_bound_claim_carries_its_nonce_and_ends_the_plain_form(harness: Harness) -> None:
    plain, bound = await write(harness, {}, {"nonce": b"n" * 32})
    assert (plain.nonce, plain.is_plain, plain.ends_plain) == (None, True, False)
    assert (bound.nonce, bound.is_plain, bound.ends_plain) == (b"n" * 32, False, True)


async def write(harness: Harness, *calls: dict[str, Any]) -> list[Claim]:
    """The claims of calls that take what `open` takes."""
    await harness.pay(1_000_000)
    for given in calls:
        await harness.claim(**given)
    return list(harness.ledger.claims)


async def test_a_call_remembers_the_decimals_of_the_asset_itself(harness: Harness) -> None:
    """A record outlives the configuration, and ledger units alone do not tell what the contract counts."""
    spendable = await harness.pay(10**9)
    harness.verifier.spendables = (replace(spendable, asset=replace(USDC, decimals=18)),)
    await harness.claim()
    query = HistoryQuery(wallet=spendable.payment.payer, role="payer", limit=1, offset=0)
    page = await harness.ledger.history(query)
    assert page.calls[0].decimals == 18
