"""Who may buy now, whatever they pay with, as tables. The meters are the real ones."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, USDC, gateway_listing
from tests.kit.payer import KeyWallet
from tollway.errors import Code, Problem
from tollway.gateway.access import AccessControl, CallRateLimits
from tollway.gateway.messages import Disconnected, IncomingCall, Outcome, ProblemResponse, ProxyResponse
from tollway.gateway.target import Target
from tollway.ids import Address, ListingId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.listing import Listing, RateLimit

LIMITS = replace(DEFAULT_LIMITS, failed_calls_per_window=2, failed_calls_wait_s=0.0, free_calls_per_minute=2)
LISTING = gateway_listing()
PAYER, OTHER = KeyWallet.named("payer").address, KeyWallet.named("other").address
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


def access(*blocked: Address) -> AccessControl:
    return AccessControl(
        CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter()),
        limits=LIMITS,
        is_blocked=blocked.__contains__,
        now_ms=lambda: NOW_MS,
    )


async def check(
    harness: AccessControl,
    asked: IncomingCall | None = None,
    listing: Listing = LISTING,
    payer: Address = PAYER,
) -> Problem | None:
    """A visit that is over at once."""
    with harness.enter(asked or call(), listing) as active:
        return await active.check(payer, PRICE, USDC)


def record_outcome(
    harness: AccessControl, outcome: Outcome, *, listing: Listing = LISTING, is_settled_here: bool = False
) -> None:
    with harness.enter(call(), listing, is_settled_here=is_settled_here) as active:
        active.record_outcome(PAYER, outcome)


def code_of(problem: Problem | None) -> Code | None:
    return None if problem is None else problem.code


def told(state: str) -> Outcome:
    return ProxyResponse(status=200, headers=[(b"tollway-payment-state", state.encode())])


def refused(state: str) -> Outcome:
    problem = Problem(code=Code.PAYMENT_SETTLEMENT_FAILED, detail="")
    return ProblemResponse(problem=problem, headers=[(b"tollway-payment-state", state.encode())])


async def test_whoever_is_not_blocked_may_buy() -> None:
    assert await check(access()) is None
    assert await check(access(OTHER)) is None


async def test_a_blocked_wallet_may_not_whatever_else_is_wrong() -> None:
    problem = await check(access(PAYER), call(tollway_max_price="0.001"))
    assert problem is not None
    assert problem.code is Code.WALLET_BLOCKED


async def test_a_caller_may_say_what_is_too_dear() -> None:
    problem = await check(access(), call(tollway_max_price="0.009"))
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
        (Disconnected(), True),
        (ProblemResponse(problem=Problem(code=Code.UPSTREAM_UNREACHABLE, detail="", payment_state="released")), False),
    ],
)  # fmt: skip
async def test_what_ended_unbilled_or_unknown_after_a_claim_counts(outcome: Outcome, counts: bool) -> None:
    harness = access()
    for _ in range(2):
        record_outcome(harness, outcome)
    problem = await check(harness)
    assert (problem is not None) == counts
    if problem is not None:
        assert (problem.code, problem.payment_state) == (Code.FAILED_CALL_BUDGET_EXHAUSTED, "released")
        assert problem.retry_after_s is not None


@pytest.mark.parametrize(
    ("asks", "is_refused"),
    [
        (lambda harness: check(harness), True),
        (lambda harness: check(harness, payer=OTHER), True),  # from the same address
        (lambda harness: check(harness, call("198.51.100.9")), True),  # the same wallet
        (lambda harness: check(harness, call("198.51.100.9"), payer=OTHER), False),
        (lambda harness: check(harness, listing=replace(LISTING, id=ListingId("api_others"))), False),
    ],
)
async def test_failures_count_for_the_wallet_and_the_address_at_one_listing(
    asks: Callable[[AccessControl], Awaitable[Problem | None]], is_refused: bool
) -> None:
    harness = access()
    for _ in range(2):
        record_outcome(harness, told("released"))
    assert (await asks(harness) is not None) == is_refused


@pytest.mark.parametrize(
    ("asked", "payer", "is_refused"),
    [
        (call(), PAYER, True),
        (call(), OTHER, True),  # from the same address
        (call("198.51.100.9"), PAYER, True),  # the same wallet
        (call("198.51.100.9"), OTHER, False),
    ],
)
async def test_failures_count_for_the_wallet_and_the_address_over_all_listings(
    asked: IncomingCall, payer: Address, is_refused: bool
) -> None:
    """Each leaves a row, and listings cost nothing to make: five times as many as at one."""
    harness = access()
    for number in range(9):
        record_outcome(harness, told("released"), listing=replace(LISTING, id=ListingId(f"api_{number}")))
    assert await check(harness, asked, payer=payer) is None
    record_outcome(harness, told("held"), listing=replace(LISTING, id=ListingId("api_9")))
    problem = await check(harness, asked, payer=payer)
    assert code_of(problem) == (Code.FAILED_CALL_BUDGET_EXHAUSTED if is_refused else None)


async def test_a_listings_rate_is_counted_by_payer_when_all_else_is_well() -> None:
    limited = replace(LISTING, rate_limit=RateLimit(calls=1, per_s=60))
    harness = access()
    assert await check(harness, call(tollway_max_price="0.001"), limited) is not None  # counts for nothing
    assert await check(harness, listing=limited) is None
    problem = await check(harness, listing=limited)
    assert problem is not None
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "released")
    assert await check(harness, listing=limited, payer=OTHER) is None


async def test_free_calls_have_a_rate_by_address_and_listing() -> None:
    harness = access()
    others: list[Any] = [await harness.check_free(call(), LISTING) for _ in range(2)]
    assert others == [None, None]
    problem = await harness.check_free(call(), LISTING)
    assert problem is not None
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "none")
    assert await harness.check_free(call("198.51.100.9"), LISTING) is None
    assert await harness.check_free(call(), replace(LISTING, id=ListingId("api_others"))) is None


async def test_an_address_makes_five_listings_free_calls_over_all_of_them() -> None:
    """Each writes a row, and listings cost nothing to make."""
    harness = access()
    listings = [replace(LISTING, id=ListingId(f"api_{number}")) for number in range(20)]
    outcomes = [await harness.check_free(call(), listing) for listing in listings for _ in range(2)]
    assert outcomes[:10] == [None] * 10  # two a minute for each listing, of five listings
    assert None not in outcomes[10:]
    (problem, *_) = outcomes[10:]
    assert problem is not None
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "none")
    assert problem.members["rateLimit"] == {"policy": "free-calls-address", "limit": 10, "windowSeconds": 60}
    assert await harness.check_free(call("198.51.100.9"), LISTING) is None


async def test_a_free_call_that_is_refused_counts_for_no_other_rate() -> None:
    call_limits, rate = (
        CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter()),
        RateLimit(calls=4, per_s=3_600),
    )
    harness = AccessControl(
        call_limits, limits=LIMITS, is_blocked=lambda wallet: False, now_ms=lambda: NOW_MS
    )
    limited = replace(LISTING, rate_limit=rate)
    told = [code_of(await harness.check_free(call(), limited)) for _ in range(10)]
    assert told == [
        None,
        None,
        *[Code.RATE_LIMITED] * 8,
    ]  # by the rate of the address, which allows two a minute
    waits = [await call_limits.charge_free_listing(rate, LISTING.id, call().client_address) for _ in range(3)]
    assert [wait_s is None for wait_s in waits] == [True, True, False]


async def test_a_free_call_that_is_refused_over_all_listings_counts_at_none() -> None:
    call_limits, rate = (
        CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter()),
        RateLimit(calls=1, per_s=3_600),
    )
    harness = AccessControl(
        call_limits, limits=LIMITS, is_blocked=lambda wallet: False, now_ms=lambda: NOW_MS
    )
    for number in range(10):
        assert await harness.check_free(call(), replace(LISTING, id=ListingId(f"api_{number}"))) is None
    for _ in range(5):
        problem = await harness.check_free(call(), replace(LISTING, rate_limit=rate))
        assert problem is not None
        assert problem.members["rateLimit"]["policy"] == "free-calls-address"  # type: ignore[index] # JSON
    client = call().client_address
    waits = [await call_limits.charge_free_call(client, LISTING.id) for _ in range(3)]
    assert [wait_s is None for wait_s in waits] == [True, True, False]


async def test_a_providers_own_rate_holds_for_free_calls_by_address() -> None:
    harness, limited = access(), replace(LISTING, rate_limit=RateLimit(calls=1, per_s=3_600))
    assert await harness.check_free(call("2001:db8::1"), limited) is None
    problem = await harness.check_free(call("2001:db8::2"), limited)
    assert problem is not None
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "none")
    assert problem.members["rateLimit"] == {"policy": "listing", "limit": 1, "windowSeconds": 3_600}
    assert problem.retry_after_s is not None
    assert 60 < problem.retry_after_s <= 3_600
    assert await harness.check_free(call(), limited) is None
    assert await check(harness, listing=limited) is None  # whoever pays is counted by himself


async def test_a_call_that_runs_counts_until_its_visit_ends() -> None:
    harness = access()
    record_outcome(harness, told("released"))
    with harness.enter(call(), LISTING) as one, harness.enter(call(), LISTING) as two:
        assert [await active.check(PAYER, PRICE, USDC) for active in (one, two)] == [None, None]
        assert code_of(await check(harness)) is Code.FAILED_CALL_BUDGET_EXHAUSTED
        assert code_of(await check(harness, payer=OTHER)) is Code.FAILED_CALL_BUDGET_EXHAUSTED  # this address
        assert await check(harness, call("198.51.100.9"), payer=OTHER) is None
    assert await check(harness) is None


async def test_what_was_refused_runs_not() -> None:
    harness = access(OTHER)
    refused = [harness.enter(call(), LISTING) for _ in range(3)]
    for active in refused:
        assert await active.check(OTHER, PRICE, USDC) is not None
    assert await check(harness) is None


async def test_a_paid_call_lets_one_more_run() -> None:
    harness = access()
    record_outcome(harness, told("released"))
    record_outcome(harness, told("charged"))
    visits = [harness.enter(call(), LISTING) for _ in range(4)]
    codes = [code_of(await active.check(PAYER, PRICE, USDC)) for active in visits]
    assert codes == [None, None, None, Code.FAILED_CALL_BUDGET_EXHAUSTED]


@pytest.mark.parametrize(
    ("code", "is_settled_here", "counts"),
    [
        (Code.PAYMENT_SETTLEMENT_FAILED, True, True),
        (Code.PAYMENT_OUTCOME_UNKNOWN, True, True),
        (Code.PAYMENT_OUTCOME_UNKNOWN, False, False),
        (Code.UPSTREAM_TIMEOUT, True, False),  # it costs the provider alone
    ],
)
async def test_what_was_not_settled_counts_for_its_wallet_at_every_listing(
    code: Code, is_settled_here: bool, counts: bool
) -> None:
    harness = access()
    outcome = ProblemResponse(
        problem=Problem(code=code, detail=""), headers=[(b"tollway-payment-state", b"held")]
    )
    for number in range(2):
        listing = replace(LISTING, id=ListingId(f"api_{number}"))
        record_outcome(harness, outcome, listing=listing, is_settled_here=is_settled_here)
    elsewhere = harness.enter(call("198.51.100.9"), LISTING, is_settled_here=True)
    assert (await elsewhere.check(PAYER, PRICE, USDC) is not None) == counts
    assert await harness.enter(call(), LISTING, is_settled_here=True).check(OTHER, PRICE, USDC) is None
    assert await check(harness) is None  # its own money has moved before: it costs this gateway nothing
