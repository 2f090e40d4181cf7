"""A look-up counts per address and per wallet, unless its call was charged; a running one counts only up to the unpaid ones."""

from contextlib import ExitStack

import pytest

from tollway.errors import ChainUnavailable, Code, Problem, StorageUnavailable
from tollway.limits import Limits
from tollway.payments.lookup_quota import AuthorizationQuota
from tollway.rate_limits.limiter import RateLimiter

HERE = "192.0.2.1"


def make_meter(most: int = 2) -> AuthorizationQuota:
    return AuthorizationQuota(limits=Limits(lookups_per_minute=most), rate_limiter=RateLimiter())


async def look_up(
    quota: AuthorizationQuota, address: str, signer: str, *, is_charged: bool = False
) -> Problem | None:
    """One call, from its look-up to its end."""
    with quota.open(address) as lookup:
        problem = await lookup.take(signer)
        if is_charged:
            lookup.give_back()
    return problem


@pytest.mark.parametrize(
    ("address", "signer", "is_refused"),
    [
        (HERE, "0xa", True),
        (HERE, "0xb", True),
        ("192.0.2.2", "0xa", True),
        ("192.0.2.2", "0xb", False),
    ],
)
async def test_counts_per_address_and_per_wallet(address: str, signer: str, is_refused: bool) -> None:
    quota = make_meter()
    for _ in range(2):
        assert await look_up(quota, HERE, "0xa") is None
    refusal = await look_up(quota, address, signer)
    assert (refusal is not None) is is_refused
    if refusal is not None:
        assert refusal.code is Code.RATE_LIMITED
        assert refusal.payment_state == "none"
        assert 0 < (refusal.retry_after_s or 0) <= 60


async def test_a_charged_call_does_not_count() -> None:
    quota = make_meter(1)
    assert [await look_up(quota, HERE, "0xa", is_charged=True) for _ in range(5)] == [None] * 5
    assert await look_up(quota, HERE, "0xa") is None
    assert await look_up(quota, HERE, "0xa", is_charged=True) is not None


async def test_a_call_without_a_chain_request_does_not_count() -> None:
    quota = make_meter(1)
    for _ in range(5):
        with quota.open(HERE):
            pass
    assert await look_up(quota, HERE, "0xa") is None


async def test_a_call_counts_one_look_up() -> None:
    quota = make_meter(1)
    with quota.open(HERE) as lookup:
        assert [await lookup.take("0xa") for _ in range(5)] == [None] * 5


async def test_a_refused_call_does_not_count_again() -> None:
    quota = make_meter(1)
    await look_up(quota, HERE, "0xa")
    assert await look_up(quota, HERE, "0xb") is not None
    assert await look_up(quota, "192.0.2.2", "0xb") is None


async def test_running_calls_of_a_caller_without_failed_look_ups_are_not_limited() -> None:
    quota = make_meter(2)
    with ExitStack() as running:
        for _ in range(50):
            lookup = running.enter_context(quota.open(HERE))
            assert await lookup.take("0xa") is None
            lookup.give_back()
    assert await look_up(quota, HERE, "0xa") is None


async def test_running_calls_count_up_to_the_number_of_failed_look_ups() -> None:
    quota = make_meter(10)
    for _ in range(6):
        await look_up(quota, HERE, "0xa")
    with ExitStack() as running:
        told = [await running.enter_context(quota.open(HERE)).take("0xa") for _ in range(20)]
        assert [problem is None for problem in told].count(True) == 4
        refusal = next(problem for problem in told if problem is not None)
        assert refusal.retry_after_s == 1  # until one of them has ended
    assert await look_up(quota, HERE, "0xa") is not None  # the four came to nothing


@pytest.mark.parametrize("outage", [ChainUnavailable, StorageUnavailable])
async def test_an_unresolved_look_up_has_its_own_limit(
    outage: type[Exception],
) -> None:
    quota = make_meter(2)

    async def fail() -> Problem | None:
        with quota.open(HERE) as lookup:
            problem = await lookup.take("0xa")
            if problem is None:
                raise outage
        return problem

    for _ in range(2):
        with pytest.raises(outage):
            await fail()
    refusal = await fail()
    assert refusal is not None
    assert 0 < (refusal.retry_after_s or 0) <= 10
