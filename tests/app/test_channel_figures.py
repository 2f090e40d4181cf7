"""The figures of channels for the metrics: by network and token, without the dust of withdrawals, and at most once a minute."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from tests.kit.payer import CHAIN, USDC
from tests.kit.settlement import TOKEN
from tollway.app.channel_figures import READ_INTERVAL_S, ChannelFiguresReader
from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId, ChannelId, format_network
from tollway.ledger.channel_totals import ChannelTotal, ChannelWithdrawal
from tollway.ledger.channels import ChannelState
from tollway.observability.telemetry import ChannelFigures
from tollway.payments.channel_claims import COST_GAS
from tollway.payments.channel_terms import ChannelRules
from tollway.web.operator.chains import NetworkChannels

NOW_S = 1_800_000_000
AUTHORIZER = Address(b"\x0a" * 20)
NETWORK = format_network(CHAIN)
GWEI = 10**9
CLAIM_UNITS = COST_GAS  # at one gwei and a coin of 1,000 dollars
TOTAL = ChannelTotal(
    chain_id=CHAIN,
    token=TOKEN,
    authorizer=AUTHORIZER,
    state=ChannelState.OPEN,
    channels=3,
    held=2,
    unclaimed_channels=2,
    unclaimed_units=3_000_000,
    unclaimed_units_max=2_500_000,
)
WITHDRAWAL = ChannelWithdrawal(
    chain_id=CHAIN,
    token=TOKEN,
    channel_id=ChannelId(b"c" * 32),
    unclaimed_units=CLAIM_UNITS + 1,
    since_s=NOW_S - 600,
    delay_s=900,
)


@dataclass
class Totals:
    """The sums of a ledger. `reads`: how often they were read."""

    totals: list[ChannelTotal] = field(default_factory=list)
    withdrawals: list[ChannelWithdrawal] = field(default_factory=list)
    since_ms: dict[ChainId, int] = field(default_factory=dict)
    reads: int = 0

    async def list_totals(self) -> tuple[ChannelTotal, ...]:
        self.reads += 1
        return tuple(self.totals)

    async def list_withdrawals(self, *, limit: int) -> tuple[ChannelWithdrawal, ...]:
        return tuple(self.withdrawals)

    async def find_unclaimed_since_ms(self) -> dict[ChainId, int]:
        return self.since_ms


class Networks:
    """The rules of channels, and the price of gas."""

    def __init__(self) -> None:
        self.rules = {
            CHAIN: ChannelRules(chain_id=CHAIN, withdraw_delay=900, native_price_nano=1_000 * 10**9)
        }

    def find_look_age_s(self, chain_id: ChainId) -> float | None:
        return 7.0

    def gas_price_wei(self, chain_id: ChainId) -> int | None:
        return GWEI


def make_reader(totals: Totals, moments_s: list[float] | None = None) -> ChannelFiguresReader:
    moments = iter(moments_s or [0.0] * 9)
    rules = ChainRules(chain_id=CHAIN, kind="test", confirmations=((0, 1),), assets=(USDC,))
    return ChannelFiguresReader(
        cast("Any", totals),
        cast("Any", Networks()),
        rules={CHAIN: rules},
        claim_reserve_wei=lambda _: 5,
        now_ms=lambda: NOW_S * 1000,
        clock=lambda: next(moments),
    )


async def read(totals: Totals) -> ChannelFigures:
    return (await make_reader(totals).read())[NETWORK]


async def test_a_network_without_channels_has_zeros() -> None:
    assert await read(Totals()) == ChannelFigures(
        counts={"open": 0, "withdrawing": 0, "draining": 0},
        unclaimed={"USDC": 0.0},
        unclaimed_ratio=0.0,
        unclaimed_s=0.0,
        withdrawals=0,
        withdrawal_s=0.0,
    )


async def test_the_sums_of_all_authorizers_are_in_units_of_the_currency() -> None:
    older = replace(TOTAL, authorizer=Address(b"\x0b" * 20), state=ChannelState.DRAINING, channels=1)
    elsewhere = replace(TOTAL, chain_id=ChainId(1))
    found = await read(Totals(totals=[TOTAL, older, elsewhere], since_ms={CHAIN: (NOW_S - 90) * 1000}))
    assert found.counts == {"open": 3, "withdrawing": 0, "draining": 1}
    assert found.unclaimed == {"USDC": 6.0}
    assert found.unclaimed_ratio == 0.5  # of five units of the currency
    assert found.unclaimed_s == 90


@pytest.mark.parametrize(
    ("unclaimed_units", "age_s"),
    [
        pytest.param(CLAIM_UNITS + 1, 600, id="more than the gas of its claim"),
        pytest.param(CLAIM_UNITS, 0, id="the gas of its claim"),
        pytest.param(0, 0, id="nothing"),
    ],
)
async def test_a_withdrawal_of_a_channel_that_owes_no_more_than_its_gas_is_no_risk(
    unclaimed_units: int, age_s: float
) -> None:
    found = await read(Totals(withdrawals=[replace(WITHDRAWAL, unclaimed_units=unclaimed_units)]))
    assert (found.withdrawals, found.withdrawal_s) == (1, age_s)


async def test_the_oldest_withdrawal_counts() -> None:
    older = replace(WITHDRAWAL, since_s=NOW_S - 700)
    found = await read(Totals(withdrawals=[older, WITHDRAWAL]))
    assert (found.withdrawals, found.withdrawal_s) == (2, 700)


async def test_the_channels_are_read_once_in_an_interval() -> None:
    totals = Totals()
    # A read asks the clock, and once more after it has read.
    reader = make_reader(
        totals, [0.0, 1.0, READ_INTERVAL_S + 0.9, READ_INTERVAL_S + 1.0, READ_INTERVAL_S + 2]
    )
    counts = []
    for _ in range(3):
        await reader.read()
        counts.append(totals.reads)
    assert counts == [1, 1, 2]


async def test_the_operator_reads_the_same_figures_with_what_this_gateway_knows() -> None:
    reader = make_reader(Totals(totals=[TOTAL]))
    (found,) = await reader.list_networks()
    assert found == NetworkChannels(
        network=NETWORK,
        figures=(await reader.read())[NETWORK],
        withdraw_delay_s=900,
        look_age_s=7.0,
        gas_reserve_wei=5,
    )
