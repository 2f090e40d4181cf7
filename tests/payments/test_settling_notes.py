"""What is told to whoever counts: each end once, seconds from the signature on, gas and lanes at each look."""

from tests.kit.chain_blocks import REVERTED
from tests.kit.payer import CHAIN
from tests.kit.settlement import HASTY, ClaimedCall, SettlementHarness, make_gas_key
from tollway.ledger.call import CallState
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.payments.settling_notes import SILENT, SettlementEnd, WithdrawalReason
from tollway.payments.sweeper import EXPIRY_SLACK_S

KEY = make_gas_key().address


def notes(harness: SettlementHarness, name: str) -> list[tuple[object, ...]]:
    """Of that name, and from here on."""
    found = [note[1:] for note in harness.notes if note[0] == name]
    harness.notes.clear()
    return found


async def leave_adrift(harness: SettlementHarness) -> ClaimedCall:
    call = await harness.claim()
    assert await harness.settlement.settle(call.order()) == Undecided()
    assert await call.set_adrift()
    return call


async def test_a_settlement_is_told_once_and_how_long_it_took() -> None:
    async with SettlementHarness() as harness:
        harness.notes.clear()
        assert isinstance(await harness.settlement.settle((await harness.claim()).order()), Settled)
        assert [note for note in harness.notes if note[0] in ("end", "mined")] == [
            ("mined", CHAIN, 0.0),
            ("end", CHAIN, SettlementEnd.SETTLED),
        ]


async def test_a_refused_one_is_told_as_failed() -> None:
    async with SettlementHarness() as harness:
        call = await harness.claim()
        harness.chain.refuse_transfer(CHAIN, call.authorization.payer, call.authorization.nonce, REVERTED)
        assert isinstance(await harness.settlement.settle(call.order()), NotSettled)
        assert notes(harness, "end") == [(CHAIN, SettlementEnd.FAILED)]


async def test_an_undecided_one_is_told_again_when_the_sweeper_finds_it_paid() -> None:
    async with SettlementHarness(limits=HASTY) as harness:
        harness.chain.is_automining = False
        call = await leave_adrift(harness)
        assert notes(harness, "end") == [(CHAIN, SettlementEnd.UNDECIDED)]
        harness.pass_time(7)
        harness.chain.mine_sent(CHAIN)
        await harness.sweeper.run_once()
        assert await call.read_state() is CallState.CONSUMED
        assert [note for note in harness.notes if note[0] in ("adrift", "end", "mined")] == [
            ("adrift", 1),
            ("end", CHAIN, SettlementEnd.SWEPT),
            ("mined", CHAIN, 7.0),
        ]
        await harness.sweeper.run_once()
        assert notes(harness, "adrift")[-1] == (0,)


async def test_one_that_never_pays_is_told_as_released() -> None:
    async with SettlementHarness(limits=HASTY) as harness:
        call = await harness.claim()
        harness.chain.disconnect(CHAIN)
        assert await harness.settlement.settle(call.order()) == Undecided()
        await call.set_adrift()
        harness.chain.reconnect(CHAIN)
        harness.chain.mine(CHAIN, time=call.authorization.valid_before + EXPIRY_SLACK_S)
        harness.notes.clear()
        for _ in range(2):
            await harness.sweeper.run_once()
            harness.chain.bury(CHAIN, 1)
        assert await call.read_state() is CallState.RELEASED
        assert notes(harness, "end") == [(CHAIN, SettlementEnd.RELEASED)]


async def test_each_look_tells_what_a_key_has_and_what_waits_in_its_lane() -> None:
    async with SettlementHarness(limits=HASTY) as harness:
        harness.chain.is_automining = False
        await leave_adrift(harness)
        harness.notes.clear()
        await harness.tank.refresh()
        assert [note for note in harness.notes if note[0] in ("balance", "lane")] == [
            ("balance", CHAIN, KEY, 10**18),
            ("lane", CHAIN, KEY, 1),
        ]
        harness.chain.mine_sent(CHAIN)
        await harness.tank.refresh()
        assert notes(harness, "lane")[-1] == (CHAIN, KEY, 0)


def test_nobody_need_listen() -> None:
    SILENT.end(CHAIN, SettlementEnd.SETTLED)
    SILENT.withdrawn(CHAIN, WithdrawalReason.GAS_UNKNOWN, 1)
    SILENT.adrift(3)
