"""Rails that are withdrawn: each reason is seen, told once when it comes and once when it goes, and counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.authorizations import CHAIN, USDC
from tests.kit.chain_tokens import authorizing_token
from tests.kit.settlement_scene import (
    LISTING,
    TOKEN,
    ScriptedLine,
    SettlingScene,
    facilitator_at,
    make_gas_key,
    settlement_rules,
)
from tollway.limits import DEFAULT_LIMITS
from tollway.money import TokenDomain
from tollway.payments.gas_tank import LOOKS_UNTIL_STALE
from tollway.payments.remote_facilitator import RemoteFacilitator
from tollway.payments.settlement import Settled
from tollway.payments.settling_notes import SettlingNotes, WithdrawalReason
from tollway.payments.withdrawals import Withdrawal, Withdrawals

KEY = make_gas_key().address
NETWORK = {"chain_id": CHAIN}


def withdrawn(scene: SettlingScene) -> set[object]:
    """The reasons that the latest look counted at least once."""
    counts = {note[2]: note[3] for note in scene.told if note[0] == "withdrawn"}
    return {reason for reason, count in counts.items() if count}


def lose_sight(scene: SettlingScene) -> None:
    scene.chain.take_away(CHAIN)
    scene.pass_time(LOOKS_UNTIL_STALE * DEFAULT_LIMITS.gas_refresh_s + 1)


CAUSES: list[tuple[WithdrawalReason, Callable[[SettlingScene], None], Callable[[SettlingScene], None]]] = [
    (WithdrawalReason.GAS_UNKNOWN, lose_sight, lambda scene: scene.chain.bring_back(CHAIN)),
    (
        WithdrawalReason.GAS_TOO_DEAR,
        lambda scene: scene.chain.set_fees(CHAIN, base_fee_wei=10**9, tip_wei=1),
        lambda scene: scene.chain.set_fees(CHAIN, base_fee_wei=10**6, tip_wei=1),
    ),
    (
        WithdrawalReason.GAS_KEYS_LOW,
        lambda scene: scene.chain.fill_tank(CHAIN, KEY, 10**15 - 1),
        lambda scene: scene.chain.fill_tank(CHAIN, KEY, 10**15),
    ),
]


@pytest.mark.parametrize(("reason", "cause", "cure"), CAUSES, ids=[reason.value for reason, _, _ in CAUSES])
async def test_a_network_that_cannot_be_settled_on_is_told_once_and_when_it_is_back(
    reason: WithdrawalReason,
    cause: Callable[[SettlingScene], None],
    cure: Callable[[SettlingScene], None],
) -> None:
    async with SettlingScene() as scene:
        assert withdrawn(scene) == set()
        cause(scene)
        with capture_logs() as lines:
            await scene.tank.refresh()
            await scene.tank.refresh()
        assert not scene.tank.is_offered(USDC, 10_000, LISTING)
        assert withdrawn(scene) == {reason}
        told = {"log_level": "warning", "event": "rail_withdrawn", **NETWORK, "reason": reason.value}
        assert [line for line in lines if line["event"] == "rail_withdrawn"] == [told]
        cure(scene)
        with capture_logs() as lines:
            await scene.tank.refresh()
            await scene.tank.refresh()
        assert scene.tank.is_offered(USDC, 10_000, LISTING)
        assert withdrawn(scene) == set()
        told = {"log_level": "info", "event": "rail_is_back", **NETWORK, "reason": reason.value}
        assert [line for line in lines if line["event"] == "rail_is_back"] == [told]


async def test_a_low_key_is_told_once() -> None:
    async with SettlingScene() as scene:
        scene.chain.fill_tank(CHAIN, KEY, 1)
        with capture_logs() as lines:
            for _ in range(3):
                await scene.tank.refresh()
        assert [line["event"] for line in lines].count("gas_key_low") == 1


async def test_a_token_that_is_another_than_the_settings_say_is_named() -> None:
    scene = SettlingScene()
    domain = TokenDomain(name="Another", version="9")
    scene.chain.deploy(CHAIN, TOKEN, authorizing_token(replace(USDC, domain=domain)))
    with capture_logs() as lines:
        async with scene:
            pass
    assert withdrawn(scene) == {WithdrawalReason.TOKEN}
    (line,) = [line for line in lines if line["event"] == "rail_withdrawn"]
    assert line["subject"] == str(TOKEN)


async def test_a_listing_whose_budget_is_spent_is_named_and_its_network_is_not() -> None:
    async with SettlingScene(rules=settlement_rules(listing_budget_wei=1)) as scene:
        assert scene.tank.is_offered(USDC, 10_000, LISTING)
        assert isinstance(await scene.settlement.settle((await scene.claim()).order()), Settled)
        with capture_logs() as lines:
            await scene.tank.refresh()
        assert withdrawn(scene) == {WithdrawalReason.LISTING_BUDGET}
        (line,) = [line for line in lines if line["event"] == "rail_withdrawn"]
        assert (line["reason"], line["subject"]) == ("listing_gas_budget", LISTING)


async def test_a_network_whose_budget_is_spent_is_told() -> None:
    async with SettlingScene(rules=settlement_rules(network_budget_wei=1)) as scene:
        assert isinstance(await scene.settlement.settle((await scene.claim()).order()), Settled)
        await scene.tank.refresh()
        assert withdrawn(scene) == {WithdrawalReason.NETWORK_BUDGET}


async def test_where_a_facilitator_settles_gas_is_its_own_business() -> None:
    rules, line = settlement_rules(gas_keys=(), facilitator=facilitator_at()), ScriptedLine()
    facilitators = {CHAIN: RemoteFacilitator(facilitator_at(), line)}
    async with SettlingScene(rules=rules, facilitators=facilitators) as scene:
        scene.chain.set_fees(CHAIN, base_fee_wei=10**15, tip_wei=1)
        await scene.tank.refresh()
        assert withdrawn(scene) == set()
        lose_sight(scene)
        await scene.tank.refresh()
        assert withdrawn(scene) == {WithdrawalReason.GAS_UNKNOWN}


async def test_a_facilitator_that_does_not_answer_withdraws_its_network() -> None:
    rules, line = settlement_rules(gas_keys=(), facilitator=facilitator_at()), ScriptedLine()
    facilitators = {CHAIN: RemoteFacilitator(facilitator_at(), line)}
    line.status = None
    async with SettlingScene(rules=rules, facilitators=facilitators) as scene:
        assert withdrawn(scene) == {WithdrawalReason.FACILITATOR_AWAY}
        line.status = 200
        await scene.tank.refresh()
        assert withdrawn(scene) == set()


def test_each_reason_of_each_network_has_a_count_from_the_beginning() -> None:
    counted: dict[tuple[Any, Any], int] = {}
    withdrawals = Withdrawals(
        [CHAIN],
        SettlingNotes(withdrawn=lambda chain_id, reason, count: counted.update({(chain_id, reason): count})),
    )
    withdrawals.update([])
    assert counted == {(CHAIN, reason): 0 for reason in WithdrawalReason}
    withdrawals.update([Withdrawal(CHAIN, WithdrawalReason.LISTING_BUDGET, name) for name in "ab"])
    assert counted[CHAIN, WithdrawalReason.LISTING_BUDGET] == 2
