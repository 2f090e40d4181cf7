"""Channels that no listing can use, over SQLite and a chain in memory: what marks them, when they are refunded, and how a refund recovers."""

from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Any

import pytest

from tests.contracts.test_metered_calls import METERING, usage_of
from tests.kit.channel_refunds import DEPOSIT, FUNDS, RefundHarness
from tests.kit.databases import open_database
from tests.kit.ledger_channels import end_call
from tests.kit.ledger_records import finish_of
from tests.kit.payer import CHAIN, USDC
from tollway.ids import Address, ChainId
from tollway.ledger.channels import ChannelState
from tollway.payments.channel_drain import REVIEW_INTERVAL_MS, UNUSED_MS, ChannelDrain
from tollway.registry.catalog import PayeeTerms


class DrainHarness(RefundHarness):
    """`terms`: of the listings that are not retired; at first one of them can use the channel."""

    def __init__(self, database: Any) -> None:
        super().__init__(database)
        self.listed = PayeeTerms(self.payer.receiver, CHAIN, USDC.symbol)
        self.terms = {self.listed}
        self.networks.authorizers = (self.payer.config.receiver_authorizer,)
        self.drain = self.restart()

    def restart(self) -> ChannelDrain:
        """The drain of a gateway that begins."""
        self.drain = ChannelDrain(
            ledger=self.ledger,
            refunds=self.refunds,
            networks=self.networks,
            rules=self.rules,
            find_payee_terms=self._find_payee_terms,
            now_ms=self.read_clock,
        )
        return self.drain

    async def _find_payee_terms(self, payees: Collection[Address]) -> frozenset[PayeeTerms]:
        return frozenset(one for one in self.terms if one.pay_to in payees)

    async def pass_day(self) -> None:
        """A review marks the channel, and a day goes by."""
        await self.drain.run_once()
        await self.pass_time(UNUSED_MS)

    async def run_round(self) -> None:
        await self.claims.run_once()
        await self.drain.run_once()


@pytest.fixture
async def harness(sqlite_url: str) -> AsyncIterator[DrainHarness]:
    async with open_database(sqlite_url) as database:
        harness = DrainHarness(database)
        async with harness.running():
            yield harness
            assert (await harness.ledger.audit()).wrong == ()


UNUSABLE = ["the payee", "the network", "the currency", "the key", "the delay", "a failed refund"]


async def make_unusable(harness: DrainHarness, what: str) -> None:
    other = Address(b"\xee" * 20)
    match what:
        case "the payee":
            harness.terms = {harness.listed._replace(pay_to=other)}
        case "the network":
            harness.terms = {harness.listed._replace(chain_id=ChainId(1))}
        case "the currency":
            harness.terms = {harness.listed._replace(currency="EURC")}
        case "the key":
            harness.networks.authorizers = (other,)
        case "the delay":
            rules = harness.networks.rules[CHAIN]
            harness.networks.rules = {CHAIN: replace(rules, withdraw_delay=86_400)}
        case _:
            await harness.ledger.drain_channel((await harness.read()).key)


@pytest.mark.parametrize("what", UNUSABLE)
async def test_a_channel_that_no_listing_can_use_is_claimed_and_refunded_after_a_day(
    harness: DrainHarness, what: str
) -> None:
    await harness.buy(300)
    await make_unusable(harness, what)
    await harness.drain.run_once()
    await harness.pass_time(UNUSED_MS - 1)
    await harness.drain.run_once()
    assert harness.sent_count == 0
    await harness.pass_time(1)
    await harness.drain.run_once()
    assert harness.sent_count == 1
    facts = await harness.fetch_facts()
    assert (facts.balance, facts.total_claimed, harness.wallet_units) == (300, 300, FUNDS - 300)
    await harness.run_round()
    assert (await harness.list_open(), harness.sent_count) == ((), 1)


async def test_a_channel_that_a_listing_can_use_keeps_its_money(harness: DrainHarness) -> None:
    await harness.pass_day()
    await harness.drain.run_once()
    assert (harness.sent_count, (await harness.read()).unused_since_ms) == (0, None)


async def test_a_channel_that_can_be_used_again_begins_a_day_anew(harness: DrainHarness) -> None:
    harness.terms = set()
    await harness.drain.run_once()
    assert (await harness.read()).unused_since_ms == harness.now_ms
    harness.terms = {harness.listed}
    await harness.pass_time(REVIEW_INTERVAL_MS)
    await harness.drain.run_once()
    assert (await harness.read()).unused_since_ms is None
    harness.terms = set()
    await harness.pass_time(UNUSED_MS)
    await harness.drain.run_once()
    assert harness.sent_count == 0


async def test_the_mark_outlives_the_gateway(harness: DrainHarness) -> None:
    harness.terms = set()
    await harness.pass_day()
    harness.restart()
    await harness.drain.run_once()
    assert harness.wallet_units == FUNDS


async def test_a_metered_channel_is_claimed_whole_by_its_newest_voucher(harness: DrainHarness) -> None:
    claim = await harness.open_call(20, price="0.00002", metering=METERING)
    await end_call(harness.ledger, claim, finish=finish_of(claim, usage=usage_of(5)))
    harness.terms = set()
    await harness.pass_day()
    await harness.drain.run_once()
    facts = await harness.fetch_facts()
    assert (facts.total_claimed, harness.wallet_units) == (8, FUNDS - 8)
    assert (await harness.read()).announced == 20  # the voucher is public


async def test_a_channel_that_is_worth_less_than_its_gas_waits(harness: DrainHarness) -> None:
    harness.terms = set()
    await harness.buy(DEPOSIT - 10)
    await harness.claims.run_once()
    sent = harness.sent_count
    await harness.pass_day()
    await harness.run_round()
    await harness.run_round()
    assert harness.sent_count == sent


@pytest.mark.parametrize("fault", ["gas", "signer", "token"])
async def test_a_refund_that_cannot_be_sent_is_tried_again(harness: DrainHarness, fault: str) -> None:
    harness.terms = set()
    await harness.pass_day()
    signers = harness.claims.find_signer(await harness.read())
    assert signers is not None
    token = USDC.token
    assert token is not None
    if fault == "gas":
        harness.chain.set_fees(CHAIN, base_fee_wei=10**12, tip_wei=0)
    elif fault == "signer":
        harness.claims.set_signers([])
    else:
        harness.chain.block_owner(CHAIN, token, harness.payer.address)
    await harness.services.gas_budget.refresh()
    await harness.drain.run_once()
    assert (harness.sent_count, (await harness.read()).reserved_call) == (0, None)
    harness.chain.set_fees(CHAIN, base_fee_wei=10**9, tip_wei=0)
    harness.claims.set_signers([signers])
    harness.chain.unblock_owner(CHAIN, token, harness.payer.address)
    await harness.services.gas_budget.refresh()
    await harness.drain.run_once()
    assert harness.wallet_units == FUNDS


async def test_a_refund_that_is_not_mined_is_sent_once_and_ends_by_itself(harness: DrainHarness) -> None:
    harness.terms = set()
    await harness.pass_day()
    harness.chain.is_automining = False
    for _ in range(3):
        await harness.run_round()
    (claim,) = await harness.list_open()
    assert (harness.sent_count, (await harness.read()).reserved_call) == (1, claim.id)
    harness.chain.mine_sent(CHAIN)
    harness.restart()
    await harness.run_round()
    channel = await harness.read()
    assert (await harness.list_open(), channel.reserved_call, channel.balance_units) == ((), None, 0)
    assert channel.state is ChannelState.OPEN
