"""Decisions of providers about held calls, on the chain in memory: which can be charged, and how a charge ends."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from tests.kit.ledger_records import close_of
from tests.kit.payer import CHAIN, NOW_S
from tests.kit.settlement import HASTY, TOKEN, ClaimedCall, SettlementHarness, settlement_rules
from tollway.ids import Address
from tollway.ledger.records import CallRecord, CallState, Rail
from tollway.payments.held_calls import ChargeFault
from tollway.payments.settlement_recovery import EXPIRY_SLACK_S

ELSEWHERE = Address(b"\xee" * 20)
CLIENT = "203.0.113.9"
CHARGE, RELEASE = CallState.CONSUMED, CallState.RELEASED


@pytest.fixture
async def harness() -> AsyncIterator[SettlementHarness]:
    async with SettlementHarness(limits=HASTY) as harness:
        yield harness


async def hold(harness: SettlementHarness, **given: object) -> ClaimedCall:
    """A call by authorisation whose upstream sent no response in time."""
    call = await harness.claim(**given)  # type: ignore[arg-type]  # fields of a claim
    await harness.ledger.close(close_of(call.claim, CallState.UNKNOWN, upstream_status=None))
    return call


async def record_of(call: ClaimedCall) -> CallRecord:
    found = await call.harness.ledger.find_call(call.claim.call_id)
    assert found is not None
    return found


async def decide(call: ClaimedCall, outcome: CallState = CHARGE) -> CallState | ChargeFault | None:
    return await call.harness.services.held_calls.resolve(
        await record_of(call), outcome, client_address=CLIENT
    )


def pass_validity(call: ClaimedCall, *, more_s: int = 0) -> None:
    """The clock and the chain reach the end of the authorisation."""
    end = call.authorization.valid_before + more_s
    call.harness.now_ms = end * 1000
    call.harness.chain.mine(CHAIN, time=end)


async def test_a_charge_moves_the_money_and_only_then_consumes_the_call(harness: SettlementHarness) -> None:
    harness.chain.is_automining = False
    call = await hold(harness, method="POST")
    assert await decide(call) is CallState.SETTLING
    assert harness.chain.broadcasts == []
    await harness.services.sweep()
    assert await call.read_state() is CallState.SETTLING
    harness.chain.mine_sent(CHAIN)
    await harness.services.sweep()
    assert await call.read_state() is CallState.CONSUMED
    assert harness.chain.balance(CHAIN, TOKEN, call.authorization.payee) == call.authorization.base_units
    assert (await harness.ledger.audit()).is_balanced


async def test_a_charge_that_cannot_settle_before_its_end_is_released(harness: SettlementHarness) -> None:
    call = await hold(harness)
    harness.chain.refuse_transfer(CHAIN, call.authorization.payer, call.authorization.nonce)
    assert await decide(call) is CallState.SETTLING
    await harness.services.sweep()
    assert await call.read_state() is CallState.SETTLING
    pass_validity(call, more_s=EXPIRY_SLACK_S)
    for _ in range(2):
        await harness.services.sweep()
        harness.chain.bury(CHAIN, 2)
    assert await call.read_state() is CallState.RELEASED
    assert harness.chain.broadcasts == []


def land_for_another(call: ClaimedCall) -> None:
    call.land(payee=ELSEWHERE)


def cancel(call: ClaimedCall) -> None:
    authorization = call.authorization
    call.harness.chain.cancel_authorization(
        CHAIN, TOKEN, payer=authorization.payer, nonce=authorization.nonce
    )


def pass_on_the_chain_only(call: ClaimedCall) -> None:
    call.harness.chain.mine(CHAIN, time=call.authorization.valid_before)


def pass_while_the_chain_is_away(call: ClaimedCall) -> None:
    pass_validity(call)
    call.harness.chain.disconnect(CHAIN)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (pass_validity, ChargeFault.EXPIRED),
        (pass_on_the_chain_only, ChargeFault.EXPIRED),
        (pass_while_the_chain_is_away, ChargeFault.EXPIRED),
        (cancel, ChargeFault.USED),
        (land_for_another, ChargeFault.USED),
    ],
)
async def test_what_cannot_be_charged_is_refused_with_the_reason_and_can_be_released(
    harness: SettlementHarness, change: Callable[[ClaimedCall], None], fault: ChargeFault
) -> None:
    call = await hold(harness)
    change(call)
    assert await decide(call) is fault
    assert await call.read_state() is CallState.UNKNOWN
    assert await decide(call, RELEASE) is CallState.RELEASED
    assert harness.chain.broadcasts == []


async def test_a_network_without_gas_keys_charges_nothing() -> None:
    async with SettlementHarness(rules=settlement_rules(gas_keys=())) as harness:
        call = await hold(harness)
        assert await decide(call) is ChargeFault.NOT_SETTLED
        assert await decide(call, RELEASE) is CallState.RELEASED


async def test_a_currency_that_is_no_longer_configured_charges_nothing(harness: SettlementHarness) -> None:
    call = await hold(harness)
    harness.rules[CHAIN] = replace(harness.rules[CHAIN], assets=())
    assert await decide(call) is ChargeFault.NOT_SETTLED


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_transfer_that_another_sender_made_is_charged_without_a_transaction(
    harness: SettlementHarness, is_over: bool
) -> None:
    call = await hold(harness)
    call.land()
    if is_over:
        pass_validity(call)
    assert await decide(call) is CallState.SETTLING
    await harness.services.sweep()
    assert await call.read_state() is CallState.CONSUMED
    assert harness.chain.broadcasts == []


async def test_while_the_chain_is_away_a_valid_authorisation_is_charged_later(
    harness: SettlementHarness,
) -> None:
    call = await hold(harness)
    harness.chain.disconnect(CHAIN)
    assert await decide(call) is CallState.SETTLING
    await harness.services.sweep()
    assert await call.read_state() is CallState.SETTLING
    harness.chain.reconnect(CHAIN)
    await harness.services.sweep()
    await harness.services.sweep()
    assert await call.read_state() is CallState.CONSUMED


async def test_questions_about_one_call_have_a_quota_on_the_chain(harness: SettlementHarness) -> None:
    call = await hold(harness)
    cancel(call)
    record = await record_of(call)
    before = harness.chain.request_count
    ask = harness.services.held_calls.find_charge_fault
    for _ in range(HASTY.lookups_per_minute):
        assert await ask(record, client_address=CLIENT) is ChargeFault.USED
    asked = harness.chain.request_count
    assert asked > before
    assert (
        await ask(record, client_address=CLIENT) is None
    )  # by the clock it is valid; recovery reads the chain
    assert harness.chain.request_count == asked
    assert await decide(call) is CallState.SETTLING
    await harness.services.sweep()
    assert await call.read_state() is CallState.RELEASED


@pytest.mark.parametrize("rail", [Rail.TX, Rail.CREDIT])
async def test_a_call_that_a_payment_holds_needs_no_chain(harness: SettlementHarness, rail: Rail) -> None:
    call = await hold(harness)
    record = replace(await record_of(call), rail=rail)
    harness.chain.disconnect(CHAIN)
    harness.now_ms = (NOW_S + 90_000) * 1000
    found = await harness.services.held_calls.find_charge_fault(record, client_address=CLIENT)
    assert found is None


async def test_a_call_that_is_not_held_is_not_decided(harness: SettlementHarness) -> None:
    call = await hold(harness)
    await decide(call)
    for outcome in (CHARGE, RELEASE):
        assert await decide(call, outcome) is None
    assert await call.read_state() is CallState.SETTLING


async def test_a_call_on_a_channel_cannot_be_charged_by_its_provider(harness: SettlementHarness) -> None:
    record = replace(await record_of(await hold(harness)), rail=Rail.CHANNEL)
    held_calls = harness.services.held_calls
    assert await held_calls.find_charge_fault(record, client_address=CLIENT) is ChargeFault.ON_CHANNEL
    ended = replace(record, state=CallState.CONSUMED)
    assert await held_calls.find_charge_fault(ended, client_address=CLIENT) is None
