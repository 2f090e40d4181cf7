"""Tables of the access checks: which wallet may make a call now, independent of the rail. The rate limiters are the real ones."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, USDC, gateway_listing
from tests.kit.listings import find_block_in
from tests.kit.narrowing import existing
from tests.kit.payer import KeyWallet
from tests.kit.proxy_requests import sample_request
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.access import AccessControl, ActiveCall
from tollway.gateway.call_rates import CallRateLimits
from tollway.gateway.failure_budget import build_failure_keys
from tollway.gateway.messages import CallRefused, ClientGone, ProxyRequest, ProxyResponse
from tollway.gateway.problems import check_listing, explain_block
from tollway.ids import Address, ListingId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.listing import CatalogEntry, Listing, RateLimit
from tollway.registry.moderation import BlockedWallet

LIMITS = replace(DEFAULT_LIMITS, failed_calls_per_window=2, failed_calls_wait_s=0.0, free_calls_per_minute=2)
LISTING = gateway_listing()
PAYER, OTHER = KeyWallet.named("payer").address, KeyWallet.named("other").address
PRICE = Price.parse("0.01")


def access(*blocked: Address) -> AccessControl:
    return AccessControl(
        CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter()),
        limits=LIMITS,
        find_block=find_block_in(blocked),
        now_ms=lambda: NOW_MS,
    )


async def check(
    harness: AccessControl,
    asked: ProxyRequest | None = None,
    listing: Listing = LISTING,
    payer: Address = PAYER,
) -> Problem | None:
    """A call that is over at once."""
    with ActiveCall(harness, asked or sample_request(), listing) as active:
        return await active.check(payer, PRICE, USDC)


Ending = ProxyResponse | Exception
"""How a call ends: with a response, or with what is raised instead of one."""


def end(
    harness: AccessControl, ending: Ending, *, listing: Listing = LISTING, is_settled_here: bool = False
) -> None:
    """A call of the payer that ends so."""
    entered = ActiveCall(harness, sample_request(), listing, is_settled_here=is_settled_here)
    with contextlib.suppress(Refusal, ClientGone), entered as active:
        active.name_payer(PAYER)
        if isinstance(ending, Exception):
            raise ending
        active.count(ending.payment_state)


def code_of(problem: Problem | None) -> Code | None:
    return None if problem is None else problem.code


def responded(state: str | None) -> Ending:
    """`state` None: a stored response, of another run."""
    return ProxyResponse(status=200, headers=[], payment_state=state)


def refused(state: str | None, code: Code = Code.PAYMENT_SETTLEMENT_FAILED) -> Ending:
    """`state`: of the call, in the headers; None: no call was claimed."""
    headers = [] if state is None else [(b"tollway-payment-state", state.encode())]
    return CallRefused(Problem(code=code, detail="", payment_state="released"), headers=headers)


async def test_a_wallet_that_is_not_blocked_may_call() -> None:
    assert await check(access()) is None
    assert await check(access(OTHER)) is None


async def test_a_blocked_wallet_is_refused_before_other_errors() -> None:
    problem = existing(await check(access(PAYER), sample_request(tollway_max_price="0.001")))
    assert problem.code is Code.WALLET_BLOCKED
    assert problem.detail == (
        "The operator of this gateway has blocked this wallet. Ask the operator, or use another wallet."
    )


def test_a_block_and_a_suspension_repeat_the_reason_of_the_operator() -> None:
    block = BlockedWallet(wallet=PAYER, reason="stolen key", since_ms=1)
    assert explain_block(block).detail == (
        'The operator of this gateway has blocked this wallet. The reason of the operator: "stolen key". '
        "Ask the operator, or use another wallet."
    )
    listing = replace(gateway_listing(), suspended_ms=1, suspended_reason="under review")
    problem = existing(check_listing(CatalogEntry(listing=listing, versions=()), sample_request()))
    assert problem.detail == (
        'The operator has suspended this API. The reason of the operator: "under review". '
        "Choose another API; do not pay for this one."
    )
    assert (problem.is_lasting, problem.retry_after_s) == (True, None)


async def test_a_caller_may_say_what_is_too_dear() -> None:
    problem = existing(await check(access(), sample_request(tollway_max_price="0.009")))
    assert (problem.code, problem.payment_state) == (Code.PRICE_ABOVE_MAX, "released")


@pytest.mark.parametrize(
    ("ending", "counts"),
    [
        (responded("charged"), False),
        (responded("none"), False),
        (responded("released"), True),
        (responded("held"), True),
        (responded(None), False),
        (refused("charged"), False),
        (refused("released"), True),
        (refused("held"), True),
        (refused(None, Code.UPSTREAM_UNREACHABLE), False),
        (Refusal(Problem(code=Code.PAYMENT_INSUFFICIENT, detail="", payment_state="released")), False),
        (ClientGone(), False),  # before the claim
        (ClientGone("released"), True),
        (ClientGone("held"), True),
        (ClientGone("charged"), True),  # a repeat of a charged call
    ],
)
async def test_what_ended_unbilled_or_unknown_after_a_claim_counts(ending: Ending, counts: bool) -> None:
    harness = access()
    for _ in range(2):
        end(harness, ending)
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
        (lambda harness: check(harness, sample_request(client="198.51.100.9")), True),  # the same wallet
        (lambda harness: check(harness, sample_request(client="198.51.100.9"), payer=OTHER), False),
        (lambda harness: check(harness, listing=replace(LISTING, id=ListingId("api_others"))), False),
    ],
)
async def test_failures_count_for_the_wallet_and_the_address_at_one_listing(
    asks: Callable[[AccessControl], Awaitable[Problem | None]], is_refused: bool
) -> None:
    harness = access()
    for _ in range(2):
        end(harness, responded("released"))
    assert (await asks(harness) is not None) == is_refused


@pytest.mark.parametrize(
    ("asked", "payer", "is_refused"),
    [
        (sample_request(), PAYER, True),
        (sample_request(), OTHER, True),  # from the same address
        (sample_request(client="198.51.100.9"), PAYER, True),  # the same wallet
        (sample_request(client="198.51.100.9"), OTHER, False),
    ],
)
async def test_failures_count_for_the_wallet_and_the_address_over_all_listings(
    asked: ProxyRequest, payer: Address, is_refused: bool
) -> None:
    """Each leaves a row, and listings cost nothing to make: five times as many as at one."""
    harness = access()
    for number in range(9):
        end(harness, responded("released"), listing=replace(LISTING, id=ListingId(f"api_{number}")))
    assert await check(harness, asked, payer=payer) is None
    end(harness, responded("held"), listing=replace(LISTING, id=ListingId("api_9")))
    problem = await check(harness, asked, payer=payer)
    assert code_of(problem) == (Code.FAILED_CALL_BUDGET_EXHAUSTED if is_refused else None)


async def test_a_listings_rate_is_counted_by_payer_when_all_else_is_well() -> None:
    limited = replace(LISTING, rate_limit=RateLimit(calls=1, per_s=60))
    harness = access()
    assert (
        await check(harness, sample_request(tollway_max_price="0.001"), limited) is not None
    )  # counts for nothing
    assert await check(harness, listing=limited) is None
    problem = existing(await check(harness, listing=limited))
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "released")
    assert await check(harness, listing=limited, payer=OTHER) is None


async def test_free_calls_have_a_rate_by_address_and_listing() -> None:
    harness = access()
    others: list[Any] = [await harness.check_free(sample_request(), LISTING) for _ in range(2)]
    assert others == [None, None]
    problem = existing(await harness.check_free(sample_request(), LISTING))
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "none")
    assert await harness.check_free(sample_request(client="198.51.100.9"), LISTING) is None
    assert await harness.check_free(sample_request(), replace(LISTING, id=ListingId("api_others"))) is None


async def test_an_address_makes_five_listings_free_calls_over_all_of_them() -> None:
    """Each writes a row, and listings cost nothing to make."""
    harness = access()
    listings = [replace(LISTING, id=ListingId(f"api_{number}")) for number in range(20)]
    outcomes = [await harness.check_free(sample_request(), listing) for listing in listings for _ in range(2)]
    assert outcomes[:10] == [None] * 10  # two a minute for each listing, of five listings
    assert None not in outcomes[10:]
    (problem, *_) = outcomes[10:]
    assert problem is not None
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "none")
    assert problem.members["rateLimit"] == {"policy": "free-calls-address", "limit": 10, "windowSeconds": 60}
    assert await harness.check_free(sample_request(client="198.51.100.9"), LISTING) is None


async def test_a_free_call_that_is_refused_counts_for_no_other_rate() -> None:
    call_limits, rate = (
        CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter()),
        RateLimit(calls=4, per_s=3_600),
    )
    harness = AccessControl(call_limits, limits=LIMITS, find_block=find_block_in(()), now_ms=lambda: NOW_MS)
    limited = replace(LISTING, rate_limit=rate)
    codes = [code_of(await harness.check_free(sample_request(), limited)) for _ in range(10)]
    assert codes == [
        None,
        None,
        *[Code.RATE_LIMITED] * 8,
    ]  # by the rate of the address, which allows two a minute
    waits = [
        await call_limits.charge_free_listing(rate, LISTING.id, sample_request().client_address)
        for _ in range(3)
    ]
    assert [wait_s is None for wait_s in waits] == [True, True, False]


async def test_a_free_call_that_is_refused_over_all_listings_counts_at_none() -> None:
    call_limits, rate = (
        CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter()),
        RateLimit(calls=1, per_s=3_600),
    )
    harness = AccessControl(call_limits, limits=LIMITS, find_block=find_block_in(()), now_ms=lambda: NOW_MS)
    for number in range(10):
        assert (
            await harness.check_free(sample_request(), replace(LISTING, id=ListingId(f"api_{number}")))
            is None
        )
    for _ in range(5):
        problem = existing(await harness.check_free(sample_request(), replace(LISTING, rate_limit=rate)))
        assert problem.members["rateLimit"]["policy"] == "free-calls-address"  # type: ignore[index] # JSON
    client = sample_request().client_address
    waits = [await call_limits.charge_free_call(client, LISTING.id) for _ in range(3)]
    assert [wait_s is None for wait_s in waits] == [True, True, False]


async def test_a_providers_own_rate_holds_for_free_calls_by_address() -> None:
    harness, limited = access(), replace(LISTING, rate_limit=RateLimit(calls=1, per_s=3_600))
    assert await harness.check_free(sample_request(client="2001:db8::1"), limited) is None
    problem = existing(await harness.check_free(sample_request(client="2001:db8::2"), limited))
    assert (problem.code, problem.payment_state) == (Code.RATE_LIMITED, "none")
    assert problem.members["rateLimit"] == {"policy": "listing", "limit": 1, "windowSeconds": 3_600}
    assert problem.retry_after_s is not None
    assert 60 < problem.retry_after_s <= 3_600
    assert await harness.check_free(sample_request(), limited) is None
    assert await check(harness, listing=limited) is None  # paid calls count per payer


async def test_a_call_that_runs_counts_until_it_ends() -> None:
    harness = access()
    end(harness, responded("released"))
    with (
        ActiveCall(harness, sample_request(), LISTING) as one,
        ActiveCall(harness, sample_request(), LISTING) as two,
    ):
        assert [await active.check(PAYER, PRICE, USDC) for active in (one, two)] == [None, None]
        assert code_of(await check(harness)) is Code.FAILED_CALL_BUDGET_EXHAUSTED
        assert code_of(await check(harness, payer=OTHER)) is Code.FAILED_CALL_BUDGET_EXHAUSTED  # this address
        assert await check(harness, sample_request(client="198.51.100.9"), payer=OTHER) is None
    assert await check(harness) is None


async def test_what_was_refused_runs_not() -> None:
    harness = access(OTHER)
    refused = [ActiveCall(harness, sample_request(), LISTING) for _ in range(3)]
    for active in refused:
        assert await active.check(OTHER, PRICE, USDC) is not None
    assert await check(harness) is None


async def test_a_paid_call_lets_one_more_run() -> None:
    harness = access()
    end(harness, responded("released"))
    end(harness, responded("charged"))
    entered = [ActiveCall(harness, sample_request(), LISTING) for _ in range(4)]
    codes = [code_of(await active.check(PAYER, PRICE, USDC)) for active in entered]
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
    for number in range(2):
        listing = replace(LISTING, id=ListingId(f"api_{number}"))
        end(harness, refused("held", code), listing=listing, is_settled_here=is_settled_here)
    elsewhere = ActiveCall(harness, sample_request(client="198.51.100.9"), LISTING, is_settled_here=True)
    assert (await elsewhere.check(PAYER, PRICE, USDC) is not None) == counts
    assert (
        await ActiveCall(harness, sample_request(), LISTING, is_settled_here=True).check(OTHER, PRICE, USDC)
        is None
    )
    assert await check(harness) is None  # its own money has moved before: it costs this gateway nothing


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ((OTHER, "203.0.113.5", "api_1"), 2),  # the address, at this listing and over all
        ((PAYER, "203.0.113.6", "api_1"), 2),  # the wallet
        ((PAYER, "203.0.113.5", "api_2"), 2),  # both over all listings
        ((OTHER, "203.0.113.6", "api_2"), 0),
    ],
)
def test_the_keys_of_a_caller_follow_all_that_they_are_made_of(
    changed: tuple[Address, str, str], kept: int
) -> None:
    keys = build_failure_keys(PAYER, "203.0.113.5", ListingId("api_1"))
    wallet, address, listing_id = changed
    others = build_failure_keys(wallet, address, ListingId(listing_id))
    assert len(set(keys)) == len(set(others)) == 4
    assert len(set(keys) & set(others)) == kept
