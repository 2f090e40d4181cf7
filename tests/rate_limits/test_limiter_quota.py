"""Quotas per wallet over all addresses, and per address over all wallets; a refusal names the quota."""

import pytest

from tollway.errors import Code, Problem, Refusal
from tollway.ids import Address
from tollway.rate_limits.limiter import WALLETS_PER_ADDRESS, Quota, RateLimiter

AMOUNT = 2
HERE, ELSEWHERE = "192.0.2.7", "192.0.2.8"


def wallet(number: int) -> Address:
    return Address(number.to_bytes(20, "big"))


def make(rate_limiter: RateLimiter | None = None, policy: str = "looks") -> Quota:
    return Quota(
        policy, "looks at it", amount=AMOUNT, per="minute", rate_limiter=rate_limiter or RateLimiter()
    )


async def refusal_of(share: Quota, number: int, address: str) -> Problem:
    with pytest.raises(Refusal) as refused:
        await share.charge(wallet(number), client_address=address)
    return refused.value.problem


async def test_a_wallet_has_one_quota_for_all_addresses() -> None:
    share = make()
    for address in (HERE, ELSEWHERE):
        await share.charge(wallet(1), client_address=address)
    problem = await refusal_of(share, 1, "192.0.2.9")
    assert problem.code is Code.RATE_LIMITED
    assert problem.detail == "A wallet may have 2 looks at it a minute."
    assert problem.retry_after_s is not None
    assert 0 < problem.retry_after_s <= 60
    assert problem.members["rateLimit"] == {"policy": "looks", "limit": AMOUNT, "windowSeconds": 60}
    await share.charge(wallet(2), client_address=HERE)


async def test_an_address_has_one_quota_for_all_wallets() -> None:
    share, most = make(), AMOUNT * WALLETS_PER_ADDRESS
    for number in range(most):
        await share.charge(wallet(number), client_address=f"2001:db8::{number + 1:x}")
    problem = await refusal_of(share, 1_000, "2001:db8::ffff")
    assert problem.detail == f"One address may have {most} looks at it a minute."
    assert problem.members["rateLimit"] == {"policy": "looks-address", "limit": most, "windowSeconds": 60}
    for _ in range(AMOUNT):  # a hit refused for the address does not count for the wallet
        await share.charge(wallet(1_000), client_address=ELSEWHERE)


async def test_a_hit_refused_for_the_wallet_does_not_count_for_the_address() -> None:
    share = make()
    for _ in range(AMOUNT):
        await share.charge(wallet(1), client_address=HERE)
    for _ in range(AMOUNT * WALLETS_PER_ADDRESS):
        await refusal_of(share, 1, HERE)
    await share.charge(wallet(2), client_address=HERE)


async def test_quotas_of_different_subjects_do_not_mix() -> None:
    rate_limiter = RateLimiter()
    one, other = make(rate_limiter), make(rate_limiter, "others")
    for _ in range(AMOUNT):
        await one.charge(wallet(1), client_address=HERE)
    await other.charge(wallet(1), client_address=HERE)


async def test_a_peek_counts_nothing_and_a_recorded_hit_counts_for_both() -> None:
    share = make()
    for _ in range(20):
        await share.check(wallet(1), client_address=HERE)
    for number in range(AMOUNT * WALLETS_PER_ADDRESS):
        share.count(wallet(number // AMOUNT), client_address=HERE)
    for number, address, policy in ((1, ELSEWHERE, "looks"), (1_000, HERE, "looks-address")):
        with pytest.raises(Refusal) as refused:
            await share.check(wallet(number), client_address=address)
        rate = refused.value.problem.members["rateLimit"]
        assert isinstance(rate, dict)
        assert rate["policy"] == policy
        assert refused.value.problem.retry_after_s is not None
    await share.check(wallet(1_000), client_address=ELSEWHERE)
