"""What is told to whoever counts: each end once, seconds from the signature on, gas and lanes at each look."""

from tests.kit.authorizations import CHAIN
from tests.kit.chain_blocks import REVERTED
from tests.kit.settlement_scene import HASTY, ClaimedCall, SettlingScene, make_gas_key
from tollway.ledger.call import CallState
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.payments.settling_notes import SILENT, SettlementEnd, WithdrawalReason
from tollway.payments.sweeper import EXPIRY_SLACK_S

KEY = make_gas_key().address


def notes(scene: SettlingScene, name: str) -> list[tuple[object, ...]]:
    """Of that name, and from here on."""
    found = [note[1:] for note in scene.told if note[0] == name]
    scene.told.clear()
    return found


async def leave_adrift(scene: SettlingScene) -> ClaimedCall:
    call = await scene.claim()
    assert await scene.settlement.settle(call.order()) == Undecided()
    assert await call.set_adrift()
    return call


async def test_a_settlement_is_told_once_and_how_long_it_took() -> None:
    async with SettlingScene() as scene:
        scene.told.clear()
        assert isinstance(await scene.settlement.settle((await scene.claim()).order()), Settled)
        assert [note for note in scene.told if note[0] in ("end", "mined")] == [
            ("mined", CHAIN, 0.0),
            ("end", CHAIN, SettlementEnd.SETTLED),
        ]


async def test_a_refused_one_is_told_as_failed() -> None:
    async with SettlingScene() as scene:
        call = await scene.claim()
        scene.chain.refuse_transfer(CHAIN, call.authorization.payer, call.authorization.nonce, REVERTED)
        assert isinstance(await scene.settlement.settle(call.order()), NotSettled)
        assert notes(scene, "end") == [(CHAIN, SettlementEnd.FAILED)]


async def test_an_undecided_one_is_told_again_when_the_sweeper_finds_it_paid() -> None:
    async with SettlingScene(limits=HASTY) as scene:
        scene.chain.is_automining = False
        call = await leave_adrift(scene)
        assert notes(scene, "end") == [(CHAIN, SettlementEnd.UNDECIDED)]
        scene.pass_time(7)
        scene.chain.mine_sent(CHAIN)
        await scene.sweeper.run_once()
        assert await call.read_state() is CallState.CONSUMED
        assert [note for note in scene.told if note[0] in ("adrift", "end", "mined")] == [
            ("adrift", 1),
            ("end", CHAIN, SettlementEnd.SWEPT),
            ("mined", CHAIN, 7.0),
        ]
        await scene.sweeper.run_once()
        assert notes(scene, "adrift")[-1] == (0,)


async def test_one_that_never_pays_is_told_as_released() -> None:
    async with SettlingScene(limits=HASTY) as scene:
        call = await scene.claim()
        scene.chain.take_away(CHAIN)
        assert await scene.settlement.settle(call.order()) == Undecided()
        await call.set_adrift()
        scene.chain.bring_back(CHAIN)
        scene.chain.mine(CHAIN, time=call.authorization.valid_before + EXPIRY_SLACK_S)
        scene.told.clear()
        for _ in range(2):
            await scene.sweeper.run_once()
            scene.chain.bury(CHAIN, 1)
        assert await call.read_state() is CallState.RELEASED
        assert notes(scene, "end") == [(CHAIN, SettlementEnd.RELEASED)]


async def test_each_look_tells_what_a_key_has_and_what_waits_in_its_lane() -> None:
    async with SettlingScene(limits=HASTY) as scene:
        scene.chain.is_automining = False
        await leave_adrift(scene)
        scene.told.clear()
        await scene.tank.refresh()
        assert [note for note in scene.told if note[0] in ("balance", "lane")] == [
            ("balance", CHAIN, KEY, 10**18),
            ("lane", CHAIN, KEY, 1),
        ]
        scene.chain.mine_sent(CHAIN)
        await scene.tank.refresh()
        assert notes(scene, "lane")[-1] == (CHAIN, KEY, 0)


def test_nobody_need_listen() -> None:
    SILENT.end(CHAIN, SettlementEnd.SETTLED)
    SILENT.withdrawn(CHAIN, WithdrawalReason.GAS_UNKNOWN, 1)
    SILENT.adrift(3)
