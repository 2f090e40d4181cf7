"""Random histories of channels: the laws of `ledger.channels` hold after each step, and the ledgers in SQL equal the model."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.conftest import Ledgers
from tests.kit.channel_history import KINDS, ChannelHistory
from tests.kit.clocks import Clock
from tests.kit.ledger_history import Step, draw_steps
from tests.kit.ledger_records import NOW_MS

HISTORIES = 10
LENGTH = 60

STEPS = st.lists(st.builds(Step, st.sampled_from(KINDS), st.integers(0, 999)), max_size=LENGTH)


async def run_in_memory(steps: list[Step]) -> None:
    ledgers = Ledgers(None, Clock(NOW_MS))
    both = [await ledgers.gateway("one"), await ledgers.gateway("two")]
    await ChannelHistory(ledgers=[both], name="channel").run(steps)


@given(STEPS)
@settings(max_examples=100)
def test_the_laws_hold_in_every_history(steps: list[Step]) -> None:
    asyncio.run(run_in_memory(steps))


async def test_each_ledger_equals_the_model(ledgers: Ledgers) -> None:
    model = Ledgers(None, ledgers.clock)
    gateways = [[await one.gateway("one"), await one.gateway("two")] for one in (model, ledgers)]
    for seed in range(HISTORIES):
        history = ChannelHistory(ledgers=gateways, name=f"history {seed}")
        await history.run(draw_steps(seed, KINDS, length=LENGTH))
