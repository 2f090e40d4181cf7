"""The metrics: each end once, seconds since the signature, balances and sequences at each refresh."""

from tests.kit.chain_blocks import REVERTED
from tests.kit.payer import CHAIN
from tests.kit.settlement import HASTY, SettlementHarness, make_gas_key
from tollway.ledger.records import CallState
from tollway.payments.gas import NO_METRICS, OutcomeLabel, WithdrawalReason
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.payments.settlement_recovery import EXPIRY_SLACK_S

KEY = make_gas_key().address


def metrics(harness: SettlementHarness, name: str) -> list[tuple[object, ...]]:
    """Of that name, and from here on."""
    found = [note[1:] for note in harness.metrics if note[0] == name]
    harness.metrics.clear()
    return found


async def test_a_settlement_is_counted_once_with_its_duration() -> None:
    async with SettlementHarness() as harness:
        harness.metrics.clear()
        assert isinstance(await (await harness.claim()).settle(), Settled)
        assert [note for note in harness.metrics if note[0] in ("end", "mined")] == [
            ("mined", CHAIN, 0.0),
            ("end", CHAIN, OutcomeLabel.SETTLED),
        ]


async def test_a_refused_settlement_is_counted_as_failed() -> None:
    async with SettlementHarness() as harness:
        call = await harness.claim()
        harness.chain.refuse_transfer(CHAIN, call.authorization.payer, call.authorization.nonce, REVERTED)
        assert isinstance(await call.settle(), NotSettled)
        assert metrics(harness, "end") == [(CHAIN, OutcomeLabel.FAILED)]


async def test_an_undecided_settlement_is_counted_again_when_recovery_finds_it_paid() -> None:
    async with SettlementHarness(limits=HASTY) as harness:
        harness.chain.is_automining = False
        call = await harness.leave_orphaned()
        assert metrics(harness, "end") == [(CHAIN, OutcomeLabel.UNDECIDED)]
        harness.pass_time(7)
        harness.chain.mine_sent(CHAIN)
        await harness.settlement_recovery.run_once()
        assert await call.read_state() is CallState.CONSUMED
        assert [note for note in harness.metrics if note[0] in ("orphaned", "end", "mined")] == [
            ("orphaned", 1),
            ("end", CHAIN, OutcomeLabel.SWEPT),
            ("mined", CHAIN, 7.0),
        ]
        await harness.settlement_recovery.run_once()
        assert metrics(harness, "orphaned")[-1] == (0,)


async def test_a_settlement_that_never_pays_is_counted_as_released() -> None:
    async with SettlementHarness(limits=HASTY) as harness:
        call = await harness.claim()
        harness.chain.disconnect(CHAIN)
        assert await call.settle() == Undecided()
        await call.mark_orphaned()
        harness.chain.reconnect(CHAIN)
        harness.chain.mine(CHAIN, time=call.authorization.valid_before + EXPIRY_SLACK_S)
        harness.metrics.clear()
        for _ in range(2):
            await harness.settlement_recovery.run_once()
            harness.chain.bury(CHAIN, 1)
        assert await call.read_state() is CallState.RELEASED
        assert metrics(harness, "end") == [(CHAIN, OutcomeLabel.RELEASED)]


async def test_each_refresh_reports_the_balance_and_the_unmined_transactions_of_a_key() -> None:
    async with SettlementHarness(limits=HASTY) as harness:
        harness.chain.is_automining = False
        await harness.leave_orphaned()
        harness.metrics.clear()
        await harness.gas_budget.refresh()
        assert [note for note in harness.metrics if note[0] in ("balance", "unmined")] == [
            ("balance", CHAIN, KEY, 10**18),
            ("unmined", CHAIN, KEY, 1),
        ]
        harness.chain.mine_sent(CHAIN)
        await harness.gas_budget.refresh()
        assert metrics(harness, "unmined")[-1] == (CHAIN, KEY, 0)


def test_metrics_are_optional() -> None:
    NO_METRICS.end(CHAIN, OutcomeLabel.SETTLED)
    NO_METRICS.withdrawn(CHAIN, WithdrawalReason.GAS_UNKNOWN, 1)
    NO_METRICS.orphaned(3)
