"""Who may buy now, whatever they pay with, as tables. The meters are the real ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tollway.errors import Code, Problem
from tollway.gateway.customers import Customers
from tollway.gateway.exchange import Abandoned, Answer, Declined, IncomingCall, Outcome
from tollway.gateway.meters import Meters
from tollway.gateway.target import Target
from tollway.identifiers import Address, ListingId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.registry.listing import Listing, RateLimit
from tollway.testing.loopback import LoopbackUpstream
from tollway.testing.small_gateway import NOW_MS, USDC, Buyer, SmallGateway

LIMITS = replace(DEFAULT_LIMITS, failed_calls_per_window=2, free_calls_per_minute=2)
LISTING = SmallGateway(LoopbackUpstream(), limits=LIMITS).sample("api_quotes")
PAYER, OTHER = Buyer.named("payer").address, Buyer.named("other").address
PRICE = Price.parse("0.01")


def call(client: str = "203.0.113.5", **headers: str) -> IncomingCall:
    return IncomingCall(
        method="GET",
        listing_id=ListingId("api_quotes"),
        target=Target(api_id="api_quotes", rest="", query=""),
        headers=[(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        body=None,  # type: ignore[arg-type]
        client_address=client,
        request_id="req_1",
        received_ms=NOW_MS,
    )


def customers(*blocked: Address) -> Customers:
    return Customers(Meters(limits=LIMITS), limits=LIMITS, is_blocked=blocked.__contains__)


def check(
    desk: Customers, asked: IncomingCall | None = None, listing: Listing = LISTING, payer: Address = PAYER
) -> Problem | None:
    return desk.check(asked or call(), listing, payer, PRICE, USDC)


def told(state: str) -> Outcome:
    return Answer(status=200, headers=[(b"tollway-payment-state", state.encode())])


def refused(state: str) -> Outcome:
    problem = Problem(code=Code.PAYMENT_SETTLEMENT_FAILED, detail="")
    return Declined(problem=problem, headers=[(b"tollway-payment-state", state.encode())])


def test_whoever_is_not_blocked_may_buy() -> None:
    assert check(customers()) is None
    assert check(customers(OTHER)) is None


def test_a_blocked_wallet_may_not_whatever_else_is_wrong() -> None:
    problem = check(customers(PAYER), call(tollway_max_price="0.001"))
    assert problem is not None
    assert problem.code is Code.WALLET_BLOCKED


def test_a_caller_may_say_what_is_too_dear() -> None:
    problem = check(customers(), call(tollway_max_price="0.009"))
    assert problem is not None
    assert (problem.code, problem.payment_state) == (Code.PRICE_ABOVE_MAX, "released")


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (told("charged"), False),
        (told("none"), False),
        (told("released"), True),
        (told("held"), True),
        (refused("released"), True),
        (refused("held"), True),
        (Abandoned(), True),
        (Declined(problem=Problem(code=Code.UPSTREAM_UNREACHABLE, detail="", payment_state="released")), False),
    ],
)  # fmt: skip
def test_what_ended_unbilled_or_unknown_after_a_claim_counts(outcome: Outcome, counts: bool) -> None:
    desk = customers()
    for _ in range(2):
        desk.note_outcome(call(), LISTING, PAYER, outcome)
    problem = check(desk)
    assert (problem is not None) == counts
    if problem is not None:
        assert (problem.code, problem.payment_state) == (Code.FAILED_CALL_BUDGET_EXHAUSTED, "released")
        assert problem.retry_after_s is not None


@pytest.mark.parametrize(
    ("asks", "is_refused"),
    [
        (lambda desk: check(desk), True),
        (lambda desk: check(desk, payer=OTHER), True),  # from the same address
        (lambda desk: check(desk, call("198.51.100.9")), True),  # the same wallet
        (lambda desk: check(desk, call("198.51.100.9"), payer=OTHER), False),
        (lambda desk: check(desk, listing=replace(LISTING, id=ListingId("api_others"))), False),
    ],
)
def test_failures_count_for_the_wallet_and_the_address_at_one_listing(
    asks: Callable[[Customers], Problem | None], is_refused: bool
) -> None:
    desk = customers()
    for _ in range(2):
        desk.note_outcome(call(), LISTING, PAYER, told("released"))
    assert (asks(desk) is not None) == is_refused


def test_a_listings_rate_is_counted_by_payer_when_all_else_is_well() -> None:
    limited = replace(LISTING, rate_limit=RateLimit(calls=1, per_s=60))
    desk = customers()
    assert check(desk, call(tollway_max_price="0.001"), limited) is not None  # counts for nothing
    assert check(desk, listing=limited) is None
    problem = check(desk, listing=limited)
    assert problem is not None
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "released")
    assert check(desk, listing=limited, payer=OTHER) is None


def test_free_calls_have_a_rate_by_address_and_listing() -> None:
    desk = customers()
    others: list[Any] = [desk.check_free(call(), LISTING) for _ in range(2)]
    assert others == [None, None]
    problem = desk.check_free(call(), LISTING)
    assert problem is not None
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "none")
    assert desk.check_free(call("198.51.100.9"), LISTING) is None
    assert desk.check_free(call(), replace(LISTING, id=ListingId("api_others"))) is None
