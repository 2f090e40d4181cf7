"""The quotas of publishing: of a wallet, of an address with many wallets, and of an address that only causes probes."""

import pytest

from tollway.errors import Code, Problem, Refusal
from tollway.ids import Address
from tollway.limits import Limits
from tollway.rate_limits.limiter import WALLETS_PER_ADDRESS, RateLimiter
from tollway.web.http.admission import PROBES_PER_LISTING, PublishingLimits

PER_HOUR = 2
HERE, ELSEWHERE = "192.0.2.7", "192.0.2.8"


def wallet(number: int) -> Address:
    return Address(number.to_bytes(20, "big"))


@pytest.fixture
def limits_of_publishing() -> PublishingLimits:
    return PublishingLimits(
        limits=Limits(registrations_per_hour=PER_HOUR, edits_per_hour=1), rate_limiter=RateLimiter()
    )


async def refusal_of(limits_of_publishing: PublishingLimits, number: int, address: str) -> Problem:
    with pytest.raises(Refusal) as refused:
        await limits_of_publishing.charge(wallet(number), client_address=address)
    return refused.value.problem


def rate_of(problem: Problem) -> object:
    assert problem.code is Code.RATE_LIMITED
    assert problem.retry_after_s is not None
    assert 0 < problem.retry_after_s <= 3600
    return problem.members["rateLimit"]


async def test_a_wallet_has_one_quota_from_all_addresses(limits_of_publishing: PublishingLimits) -> None:
    for _ in range(PER_HOUR):
        await limits_of_publishing.charge(wallet(1), client_address=HERE)
    rate = rate_of(await refusal_of(limits_of_publishing, 1, ELSEWHERE))
    assert rate == {"policy": "registrations", "limit": PER_HOUR, "windowSeconds": 3600}
    await limits_of_publishing.charge(wallet(2), client_address=HERE)


async def test_an_address_has_one_quota_for_all_wallets(
    limits_of_publishing: PublishingLimits,
) -> None:
    most = PER_HOUR * WALLETS_PER_ADDRESS
    for number in range(most):
        await limits_of_publishing.charge(wallet(number), client_address=HERE)
    rate = rate_of(await refusal_of(limits_of_publishing, 1_000, HERE))
    assert rate == {"policy": "registrations-address", "limit": most, "windowSeconds": 3600}
    for _ in range(PER_HOUR):  # refusals of the address did not use the quota of the wallet
        await limits_of_publishing.charge(wallet(1_000), client_address=ELSEWHERE)


async def test_a_whole_ipv6_network_has_one_quota(limits_of_publishing: PublishingLimits) -> None:
    for number in range(PER_HOUR * WALLETS_PER_ADDRESS):
        await limits_of_publishing.charge(wallet(number), client_address=f"2001:db8::{number + 1:x}")
    await refusal_of(limits_of_publishing, 1_000, "2001:db8::ffff")
    await limits_of_publishing.charge(wallet(1_000), client_address="2001:db8:0:1::1")


async def test_a_refused_wallet_does_not_use_the_quota_of_its_address(
    limits_of_publishing: PublishingLimits,
) -> None:
    for _ in range(PER_HOUR):
        await limits_of_publishing.charge(wallet(1), client_address=HERE)
    for _ in range(PER_HOUR * WALLETS_PER_ADDRESS):
        await refusal_of(limits_of_publishing, 1, HERE)
    await limits_of_publishing.charge(wallet(2), client_address=HERE)


async def test_probes_are_counted_per_address(limits_of_publishing: PublishingLimits) -> None:
    most = PER_HOUR * PROBES_PER_LISTING
    for _ in range(most):
        await limits_of_publishing.charge_probe(HERE)
    with pytest.raises(Refusal) as refused:
        await limits_of_publishing.charge_probe(HERE)
    rate = rate_of(refused.value.problem)
    assert rate == {"policy": "endpoint-probes", "limit": most, "windowSeconds": 3600}
    await limits_of_publishing.charge_probe(ELSEWHERE)


async def test_edits_have_a_quota_of_their_own(limits_of_publishing: PublishingLimits) -> None:
    await limits_of_publishing.charge_edit(wallet(1), client_address=HERE)
    with pytest.raises(Refusal) as refused:
        await limits_of_publishing.charge_edit(wallet(1), client_address=ELSEWHERE)
    assert rate_of(refused.value.problem) == {"policy": "edits", "limit": 1, "windowSeconds": 3600}
    await limits_of_publishing.charge(wallet(1), client_address=HERE)
