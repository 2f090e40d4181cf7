"""Random histories of budgets: the ledgers in SQL equal the model, which has no counters, after each step; and no limit is exceeded at the moment of a grant."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.conftest import Ledgers
from tests.kit.budget_history import KINDS, BudgetHistory
from tests.kit.clocks import Clock
from tests.kit.ledger_history import Step, draw_steps
from tests.kit.ledger_records import NOW_MS

HISTORIES = 8
LENGTH = 80

STEPS = st.lists(st.builds(Step, st.sampled_from(KINDS), st.integers(0, 999)), max_size=LENGTH)


async def run_in_memory(steps: list[Step]) -> None:
    ledgers = Ledgers(None, Clock(NOW_MS))
    both = [await ledgers.gateway("one"), await ledgers.gateway("two")]
    await BudgetHistory(ledgers=[both], clocks=[ledgers], name="budget").run(steps)


@given(STEPS)
@settings(max_examples=50)
def test_no_limit_is_exceeded_in_any_history(steps: list[Step]) -> None:
    asyncio.run(run_in_memory(steps))


async def test_each_ledger_equals_the_model(ledgers: Ledgers) -> None:
    granted = refused = 0
    for seed in range(HISTORIES):
        model = Ledgers(None, Clock(NOW_MS))
        both = (model, ledgers)
        gateways = [[await one.gateway(f"{name} {seed}") for name in ("one", "two")] for one in both]
        await ledgers.set_clocks(NOW_MS, *gateways[1])
        history = BudgetHistory(ledgers=gateways, clocks=both, name=f"history {seed}")
        await history.run(draw_steps(seed, KINDS, length=LENGTH))
        granted, refused = granted + history.granted, refused + history.refused
    assert granted > HISTORIES
    assert refused > HISTORIES
