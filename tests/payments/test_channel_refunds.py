"""Refunds of channels over SQLite and a chain in memory: what is paid back, when it is refused, and how a transaction that fails ends."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.kit.channel_refunds import DEPOSIT, DUE, FUNDS, TOKEN, RefundHarness
from tests.kit.databases import open_database
from tests.kit.payer import CHAIN, PAY_TO
from tollway.chain.signer import read_transaction
from tollway.errors import ChainUnavailable, Code, Problem, Refusal, describe_rate
from tollway.ledger.channels import ChannelState, OpenClaim
from tollway.ledger.records import CallRecord, CallState, SettlementAttempt
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.channel_refunds import (
    AWAY,
    BUSY,
    IDLE_MS,
    REFUND_INTERVAL_MS,
    REFUNDED_BY_ANOTHER,
    UNDECIDED,
)
from tollway.payments.channel_wire import ChannelReason

HASTY = replace(DEFAULT_LIMITS, settle_wait_s=0.02)


@pytest.fixture
async def harness(sqlite_url: str) -> AsyncIterator[RefundHarness]:
    async with open_database(sqlite_url) as database, RefundHarness(database, limits=HASTY).running() as it:
        yield it
        assert (await it.ledger.audit()).wrong == ()


async def refused(harness: RefundHarness, *, ceiling: int | None = None) -> Problem:
    """The refusal of a refund for which nothing was sent."""
    sent, open_claims = harness.sent_count, await harness.list_open()
    with pytest.raises(Refusal) as caught:
        await harness.refund(ceiling=ceiling)
    assert (harness.sent_count, await harness.list_open()) == (sent, open_claims)
    return caught.value.problem


# ---- What is paid back.


async def test_one_transaction_claims_what_calls_owe_and_pays_back_the_rest(harness: RefundHarness) -> None:
    await harness.buy(300)
    refunded = await harness.refund()
    assert refunded.base_units == DEPOSIT - 300
    assert harness.wallet_units == FUNDS - 300
    facts = await harness.fetch_facts()
    assert (facts.balance, facts.total_claimed, facts.refund_nonce) == (300, 300, 1)
    assert harness.sent_count == 1
    channel = await harness.read()
    assert channel == refunded.channel
    assert (channel.balance_units, channel.taken_units, channel.announced) == (300, 300, 300)
    assert (channel.reserved_call, channel.published, await harness.list_open()) == (None, 300, ())


async def test_a_channel_without_a_call_is_paid_back_whole(harness: RefundHarness) -> None:
    assert (await harness.refund(ceiling=0)).base_units == DEPOSIT
    assert harness.wallet_units == FUNDS


async def test_what_is_claimed_already_is_not_claimed_again(harness: RefundHarness) -> None:
    last = await claim_in_background(harness)
    await harness.pass_time(last.created_ms + IDLE_MS - harness.now_ms)
    assert (await harness.refund()).base_units == DEPOSIT - DUE
    assert harness.chain.balance(CHAIN, TOKEN, PAY_TO) == DUE


async def claim_in_background(harness: RefundHarness) -> CallRecord:
    """The voucher of the channel stands in a claim of the gateway then. Returns the last call."""
    call: CallRecord = await harness.ledger.find_call((await harness.buy(DUE)).call_id)
    await harness.claims.run_once()
    await harness.claims.run_once()
    channel = await harness.read()
    assert (channel.published, channel.facts.total_claimed) == (DUE, DUE)
    return call


async def test_a_refunded_channel_takes_calls_again_after_a_deposit(harness: RefundHarness) -> None:
    await harness.buy(300)
    await harness.refund()
    harness.deposit(500, salt=b"\x02" * 32)
    await harness.renew()
    await harness.buy(500)
    channel = await harness.read()
    assert (channel.balance_units, channel.taken_units) == (800, 800)


async def test_nothing_is_paid_back_where_calls_owe_everything(harness: RefundHarness) -> None:
    await harness.buy(DEPOSIT)
    problem = await refused(harness)
    assert (problem.code, problem.reason) == (
        Code.PAYMENT_VERIFICATION_FAILED,
        ChannelReason.REFUND_NO_BALANCE,
    )


# ---- When.


async def test_a_channel_is_refunded_once_a_day(harness: RefundHarness) -> None:
    await harness.buy(300)
    await harness.refund()
    harness.deposit(salt=b"\x02" * 32)
    await harness.renew()
    await harness.buy(7)
    await harness.pass_time(REFUND_INTERVAL_MS - 1_500)
    problem = await refused(harness)
    assert (problem.code, problem.retry_after_s) == (Code.RATE_LIMITED, 2)
    assert problem.members == describe_rate("refunds", limit=1, window_s=86_400)
    await harness.pass_time(1_500)
    assert (await harness.refund()).base_units == DEPOSIT - 7


async def test_a_public_voucher_refunds_only_after_an_hour_without_a_call(harness: RefundHarness) -> None:
    """A stranger has read it in the claim."""
    last = await claim_in_background(harness)
    await harness.pass_time(last.created_ms + IDLE_MS - 500 - harness.now_ms)
    problem = await refused(harness)
    assert (problem.code, problem.retry_after_s) == (Code.RATE_LIMITED, 1)
    await harness.pass_time(500)
    await harness.refund()


@pytest.mark.parametrize("state", [CallState.FORWARDING, CallState.UNKNOWN])
async def test_a_refund_waits_for_the_call_of_the_channel(harness: RefundHarness, state: CallState) -> None:
    running = await harness.open_call()
    if state is CallState.UNKNOWN:
        await harness.end(running, state)
    assert await refused(harness) == BUSY
    assert (BUSY.code, BUSY.retry_after_s) == (Code.CHANNEL_BUSY, 5)
    if state is CallState.UNKNOWN:
        await harness.ledger.resolve(running.call_id, CallState.RELEASED, now_ms=harness.now_ms)
    else:
        await harness.end(running, CallState.RELEASED)
    await harness.refund()  # a voucher over 0 is never public


async def test_a_refund_waits_for_an_open_claim(harness: RefundHarness) -> None:
    await harness.buy(DUE)
    harness.chain.is_automining = False
    await harness.claims.run_once()
    assert len(await harness.list_open()) == 1
    assert await refused(harness) == BUSY


async def test_a_voucher_over_less_than_the_announced_sum_pays_nothing_back(harness: RefundHarness) -> None:
    """A call ended while the refund waited for it: the contract would revert, and the channel would wait a day."""
    await harness.buy(300)
    assert await refused(harness, ceiling=200) == BUSY


async def test_a_call_between_the_sum_and_the_commit_keeps_its_money(harness: RefundHarness) -> None:
    await harness.buy(300)
    harness.before_send(lambda: harness.buy(200))
    assert await refused(harness) == BUSY
    channel = await harness.read()
    assert (channel.taken_units, channel.balance_units, channel.reserved_call) == (500, DEPOSIT, None)


# ---- A transaction that is not mined, reverts, or leaves the chain.


async def test_a_refund_that_is_not_mined_in_time_keeps_its_channel_and_ends_by_itself(
    harness: RefundHarness,
) -> None:
    await harness.buy(300)
    harness.chain.is_automining = False
    with pytest.raises(Refusal) as caught:
        await harness.refund()
    assert caught.value.problem == UNDECIDED
    (claim,) = await harness.list_open()
    assert (await harness.read()).reserved_call == claim.id
    assert await refused(harness) == BUSY
    await harness.claims.run_once()
    assert await harness.list_open() == (claim,)
    harness.chain.mine_sent(CHAIN)
    await harness.claims.run_once()
    channel = await harness.read()
    assert (channel.reserved_call, channel.balance_units, await harness.list_open()) == (None, 300, ())
    assert harness.wallet_units == FUNDS - 300


async def test_what_would_revert_is_not_sent(harness: RefundHarness) -> None:
    await harness.buy(300)
    harness.chain.block_owner(CHAIN, TOKEN, harness.payer.address)
    problem = await refused(harness)
    assert (problem.code, problem.reason) == (Code.PAYMENT_SETTLEMENT_FAILED, ChannelReason.REFUND_FAILED)
    assert (await harness.read()).reserved_call is None


async def test_a_refund_that_reverts_moves_no_money_and_frees_its_channel(harness: RefundHarness) -> None:
    await harness.buy(300)

    async def block_payer() -> None:
        harness.chain.block_owner(CHAIN, TOKEN, harness.payer.address)

    harness.before_send(block_payer)
    with pytest.raises(Refusal) as caught:
        await harness.refund()
    assert caught.value.problem.reason == ChannelReason.REFUND_FAILED
    channel = await harness.read()
    assert (channel.reserved_call, await harness.list_open()) == (None, ())
    assert (channel.balance_units, channel.taken_units, harness.wallet_units) == (
        DEPOSIT,
        300,
        FUNDS - DEPOSIT,
    )
    assert (await refused(harness)).code is Code.RATE_LIMITED  # it has cost gas


async def test_a_channel_whose_refund_reverted_takes_no_call(harness: RefundHarness) -> None:
    """The signature of the refund is public, and its nonce is not used: the payer may take that much later, before the next claim."""
    await harness.buy(300)

    async def block_payer() -> None:
        harness.chain.block_owner(CHAIN, TOKEN, harness.payer.address)

    harness.before_send(block_payer)
    with pytest.raises(Refusal):
        await harness.refund()
    await harness.renew()
    assert (await harness.read()).state is ChannelState.DRAINING


async def test_a_channel_whose_refund_was_paid_takes_calls(harness: RefundHarness) -> None:
    await harness.refund(ceiling=0)
    assert (await harness.read()).state is ChannelState.OPEN


async def test_a_refund_that_a_stranger_has_copied_has_paid_the_payer(harness: RefundHarness) -> None:
    """The stranger's transaction is mined first, and ours reverts: the nonce of the refund is used, so that no more can leave."""
    await harness.buy(300)
    add_claim = harness.ledger.add_claim

    async def copy(claim: OpenClaim, attempt: SettlementAttempt) -> object:
        stored = await add_claim(claim, attempt)
        harness.chain.call_channels(CHAIN, read_transaction(attempt.raw).calldata)
        return stored

    harness.ledger.add_claim = copy
    with pytest.raises(Refusal) as caught:
        await harness.refund()
    problem, channel = caught.value.problem, await harness.read()
    assert (problem.reason, harness.wallet_units) == (ChannelReason.REFUND_FAILED, FUNDS - 300)
    assert problem.detail == REFUNDED_BY_ANOTHER
    assert (channel.state, channel.balance_units, channel.reserved_call) == (ChannelState.OPEN, 300, None)


async def test_a_refund_that_reverts_where_its_node_lags_has_no_outcome_yet(harness: RefundHarness) -> None:
    await harness.buy(300)

    async def block_payer() -> None:
        harness.chain.block_owner(CHAIN, TOKEN, harness.payer.address)
        harness.chain.channels_lag = 1

    harness.before_send(block_payer)
    with pytest.raises(Refusal) as caught:
        await harness.refund()
    assert caught.value.problem == UNDECIDED
    assert len(await harness.list_open()) == 1


async def test_a_channel_keeps_its_refund_until_the_ledger_has_its_new_balance(
    harness: RefundHarness,
) -> None:
    """A deposit of a young block was counted: what the chain says at the depth of deposits is older, and the ledger does not take it."""
    await harness.buy(300)
    key, head = (await harness.read()).key, harness.chain.head(CHAIN).number

    async def count_later_block() -> None:
        facts = replace(await harness.fetch_facts(), block_number=head + 3)
        await harness.ledger.renew_channel(key, facts, now_ms=harness.now_ms)

    harness.before_send(count_later_block)
    await harness.refund()
    channel = await harness.read()
    (claim,) = await harness.list_open()
    assert (channel.balance_units, channel.reserved_call) == (DEPOSIT, claim.id)
    harness.chain.bury(CHAIN, 3)
    await harness.claims.run_once()
    channel = await harness.read()
    assert (channel.balance_units, channel.reserved_call, await harness.list_open()) == (300, None, ())


async def test_a_channel_keeps_its_refund_until_a_node_has_seen_its_block(harness: RefundHarness) -> None:
    """A node that lags says the old balance, of which calls could buy."""
    await harness.buy(300)

    async def lag() -> None:
        harness.chain.channels_lag = 1

    harness.before_send(lag)
    await harness.refund()
    channel = await harness.read()
    (claim,) = await harness.list_open()
    assert (channel.balance_units, channel.reserved_call, harness.wallet_units) == (
        DEPOSIT,
        claim.id,
        FUNDS - 300,
    )
    await harness.claims.run_once()
    assert await harness.list_open() == (claim,)
    harness.chain.channels_lag = 0
    await harness.claims.run_once()
    channel = await harness.read()
    assert (channel.balance_units, channel.reserved_call, await harness.list_open()) == (300, None, ())


async def test_a_channel_whose_deposit_is_young_is_not_refunded_yet(harness: RefundHarness) -> None:
    await harness.buy(300)
    facts = replace(
        await harness.fetch_facts(), balance=DEPOSIT + 5, block_number=harness.chain.head(CHAIN).number + 1
    )
    await harness.ledger.renew_channel((await harness.read()).key, facts, now_ms=harness.now_ms)
    assert await refused(harness) == BUSY


async def test_a_refund_that_a_reorganisation_takes_back_gives_its_money_back_to_the_channel(
    harness: RefundHarness,
) -> None:
    await harness.buy(300)
    await harness.refund()
    harness.chain.reorg(CHAIN, 1)
    harness.chain.bury(CHAIN, 2)
    await harness.renew()
    channel = await harness.read()
    assert (channel.balance_units, channel.taken_units) == (DEPOSIT, 300)


@pytest.mark.parametrize("fault", ["gas", "signer"])
async def test_without_gas_or_its_key_nothing_is_refunded(harness: RefundHarness, fault: str) -> None:
    await harness.buy(300)
    if fault == "gas":
        harness.chain.set_fees(CHAIN, base_fee_wei=10**12, tip_wei=0)
        await harness.services.gas_budget.refresh()
    else:
        harness.claims.set_signers([])
    assert await refused(harness) == AWAY


async def test_a_chain_that_is_away_refunds_nothing(harness: RefundHarness) -> None:
    await harness.buy(300)
    harness.chain.disconnect(CHAIN)
    with pytest.raises(ChainUnavailable):
        await harness.refund()
    assert (harness.sent_count, (await harness.read()).reserved_call) == (0, None)
    harness.chain.reconnect(CHAIN)
