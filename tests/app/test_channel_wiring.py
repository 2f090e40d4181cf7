"""The objects of channels: when they are claimed, and which keys their offers name."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kit.payer import CHAIN, USDC
from tollway.app.channel_wiring import ChannelParts, ChannelServices
from tollway.identity.signatures import ChannelAuthorizer
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.channel_terms import ChannelRules

KEYS = (b"a key of this gateway".ljust(32), b"the key before it".ljust(32))
ORIGIN = "https://t.example"
RULES = ChannelRules(chain_id=CHAIN, withdraw_delay=900, native_price_nano=10**12)


class Restores:
    """The part of the store of channels that is read here: how often the database was restored."""

    def __init__(self) -> None:
        self.count = 0

    async def count_restores(self) -> int:
        return self.count

    async def list_refused(self) -> frozenset[Any]:
        return frozenset()

    async def read_look_ms(self, _chain_id: Any) -> int | None:
        return None


class Rounds:
    """Counts its rounds."""

    def __init__(self) -> None:
        self.count = 0

    async def run_once(self) -> None:
        self.count += 1


def make_services(restores: Restores) -> ChannelServices:
    nothing = cast("Any", None)
    return ChannelServices(
        ChannelParts(
            ledger=cast("Any", restores),
            totals=nothing,
            rules={},
            keys=KEYS,
            origin=ORIGIN,
            find_payee_terms=nothing,
        ),
        gas_ledger=nothing,
        chains=nothing,
        rules={},
        gas_budget=nothing,
        receipt_poller=nothing,
        limits=replace(DEFAULT_LIMITS, channel_claim_interval_s=60),
        now_ms=lambda: 0,
    )


def authorizer(key: bytes, *, restores: int, origin: str = ORIGIN) -> Address:
    return ChannelAuthorizer.derive(key, origin=origin, restores=restores).address


async def test_channels_are_watched_in_each_round_and_claimed_once_in_an_interval() -> None:
    services, moments = make_services(Restores()), [1.0, 60.9, 61.0, 120.0, 121.0]
    watch, claims, drain = Rounds(), Rounds(), Rounds()
    vars(services).update(
        _watch=watch, _claims=claims, _drain=drain, _clock=moments.copy().__iter__().__next__
    )
    counts = []
    for _ in moments:
        await services.run_once()
        counts.append(claims.count)
    assert (watch.count, drain.count) == (len(moments), counts[-1])
    assert counts == [1, 1, 2, 2, 3]


async def test_the_channels_are_counted_once_in_an_interval_and_by_the_keys_that_sign() -> None:
    services, moments = make_services(Restores()), iter([1.0, 2.0, 61.0, 61.9, 62.0])
    counted: list[Any] = []
    budget = SimpleNamespace(reserve_claims=lambda chain_id, gas: None)
    prices: dict[Any, int | None] = {CHAIN: None}

    async def count_unclaimed(*_args: Any, authorizers: Any, **_more: Any) -> tuple[int, int]:
        counted.append(tuple(authorizers))
        return 0, 0

    vars(services).update(
        _clock=moments.__next__,
        _gas_budget=budget,
        _rules={CHAIN: SimpleNamespace(assets=[USDC])},
        totals=SimpleNamespace(count_unclaimed=count_unclaimed),
    )
    vars(services.networks).update(rules={CHAIN: RULES}, gas_price_wei=prices.get, _deployed={CHAIN})
    counts = []
    for price in (None, 10**9, 10**9, 10**9, 10**9):
        prices[CHAIN] = price
        await services.refresh()
        counts.append(len(counted))
    assert counts == [0, 1, 1, 1, 2]
    assert set(counted) == {tuple(authorizer(key, restores=0) for key in KEYS)}


async def test_a_restore_makes_new_authorizers_and_signs_for_the_old_channels() -> None:
    restores = Restores()
    services = make_services(restores)
    for count in (0, 1):
        restores.count = count
        await services.refresh()
        serving = [authorizer(key, restores=count) for key in KEYS]
        assert services.networks.authorizers == tuple(serving)
        older = [authorizer(key, restores=earlier) for key in KEYS for earlier in range(count + 1)]
        assert all(services.refunds.knows(one) for one in older)
    assert not services.refunds.knows(authorizer(KEYS[0], restores=2))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(authorizer(KEYS[1], restores=0), id="another key"),
        pytest.param(authorizer(KEYS[0], restores=1), id="after a restore"),
        pytest.param(authorizer(KEYS[0], restores=0, origin="https://u.example"), id="another gateway"),
    ],
)
def test_two_installations_never_share_an_authorizer(other: Address) -> None:
    assert authorizer(KEYS[0], restores=0) == authorizer(KEYS[0], restores=0) != other
