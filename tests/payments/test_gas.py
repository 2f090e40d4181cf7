"""The gas budget: minimum price, maximum gas price, balance floor, budgets, token domain, and their refresh."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain_blocks import REVERTED, Wallet, authorizing_token
from tests.kit.payer import CHAIN, USDC, AuthorizationSigner
from tests.kit.settlement import (
    HASTY,
    LISTING,
    TOKEN,
    ScriptedFacilitator,
    SettlementHarness,
    facilitator_at,
    make_gas_key,
    settlement_rules,
)
from tests.kit.waits import until
from tollway.errors import Code, Problem
from tollway.ids import ListingId, keccak256
from tollway.ledger.records import CallState, Cover
from tollway.limits import DEFAULT_LIMITS
from tollway.money import TokenDomain
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.gas import (
    BUDGET_PAUSE_FACTOR,
    CHECKS_UNTIL_STALE,
    NO_METRICS,
    OutcomeLabel,
    WithdrawalReason,
)
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.payments.settlement_recovery import EXPIRY_SLACK_S
from tollway.payments.settlement_rules import CODE_REVERTS_MAX, WALLET_BUDGET_DIVISOR

KEY = make_gas_key().address


async def test_offers_a_price_that_can_be_settled() -> None:
    async with SettlementHarness() as harness:
        assert harness.is_offered()


@pytest.mark.parametrize(("units", "offered"), [(1_000, True), (999, False)])
async def test_a_price_below_the_minimum_is_not_offered(units: int, offered: bool) -> None:
    async with SettlementHarness() as harness:
        assert harness.is_offered(units) is offered


async def test_the_minimum_price_follows_the_gas_price() -> None:
    rules = settlement_rules(native_price_nano=3_000 * 10**9)  # a token costs 10 settlements at 0.37 gwei
    async with SettlementHarness(rules=rules) as harness:
        for gas_price_wei, units in ((10**7, 27_000), (4 * 10**7, 108_000), (10**6, 2_700)):
            harness.chain.set_fees(CHAIN, base_fee_wei=gas_price_wei - 10**5, tip_wei=10**5)
            await harness.gas_budget.refresh()
            assert harness.is_offered(units)
            assert not harness.is_offered(units - 1)


async def test_only_tokens_that_take_authorisations_on_networks_with_a_key() -> None:
    async with SettlementHarness() as harness:
        assert not harness.is_offered(domain=None)
        assert not harness.is_offered(token=None)
        assert not harness.is_offered(chain_id=1)
    async with SettlementHarness(rules=settlement_rules(gas_keys=())) as harness:
        assert not harness.is_offered()


@pytest.mark.parametrize(("base_fee_wei", "offered"), [(10**9 - 10**6, True), (10**9, False)])
async def test_a_gas_price_above_the_maximum_withdraws_the_rail(base_fee_wei: int, offered: bool) -> None:
    async with SettlementHarness() as harness:
        harness.chain.set_fees(CHAIN, base_fee_wei=base_fee_wei, tip_wei=10**6)
        await harness.gas_budget.refresh()
        assert harness.is_offered() is offered


async def test_a_key_below_its_floor_withdraws_the_rail_and_settles_claimed_calls() -> None:
    async with SettlementHarness() as harness:
        call = await harness.claim()
        harness.chain.fund_gas(CHAIN, KEY, 10**15 - 1)
        await harness.gas_budget.refresh()
        assert not harness.is_offered()
        assert isinstance(await call.settle(), Settled)
        harness.chain.fund_gas(CHAIN, KEY, 10**16)
        await harness.gas_budget.refresh()
        assert harness.is_offered()


async def test_a_listing_has_a_budget_of_its_own_for_a_day() -> None:
    gas_price = 2 * 10**7 + 10**6
    async with SettlementHarness(rules=settlement_rules(listing_budget_wei=60_000 * gas_price)) as harness:
        assert harness.is_offered()
        assert isinstance(await (await harness.claim()).settle(), Settled)
        assert not harness.is_offered()  # by what it may cost at most
        assert harness.gas_budget.is_offered(USDC, 10_000, ListingId("api_2"))
        await harness.gas_budget.refresh()
        assert harness.is_offered()  # by what it did cost
        assert await harness.gas.gas_spent_wei(CHAIN, since_ms=0) == {LISTING: 60_000 * (10**7 + 10**6)}


async def test_a_budget_spent_by_another_gateway_counts_at_the_next_refresh() -> None:
    async with (
        SettlementHarness(rules=settlement_rules(listing_budget_wei=1)) as harness,
        harness.another() as other,
    ):
        assert other.is_offered()
        assert isinstance(await (await harness.claim()).settle(), Settled)
        await other.gas_budget.refresh()
        assert not other.is_offered()
        other.pass_time(86_401)
        await other.gas_budget.refresh()
        assert other.is_offered()


async def test_many_listings_of_one_provider_do_not_drain_the_gas_keys() -> None:
    """A wallet whose transfers pass each simulation and revert in each block, and a new listing each time."""
    gas_price, gas = 10**7 + 10**6, 60_000
    rules = settlement_rules(network_budget_wei=5 * gas * gas_price)
    async with SettlementHarness(rules=rules) as harness:
        for number in range(30):
            await harness.gas_budget.refresh()
            listing = ListingId(f"api_{number}")
            if not harness.settlement.is_offered(USDC, 10_000, listing):
                break
            payer = harness.payer(nonce=keccak256(b"%d" % number), valid_before=2**31)
            harness.chain.revert_transfer(CHAIN, payer.address, payer.nonce)
            call = await harness.claim(payer)
            assert await call.settle(listing_id=listing) == Undecided()
        assert number == 5
        assert sum((await harness.gas.gas_spent_wei(CHAIN, since_ms=0)).values()) == 5 * gas * gas_price
        harness.pass_time(86_401)
        await harness.gas_budget.refresh()
        assert harness.is_offered()


GAS_WEI = 60_000 * (10**7 + 10**6)
"""What one transfer costs, mined or reverted."""


def proxy(harness: SettlementHarness, number: int, *, code_hash: bytes | None = None) -> AuthorizationSigner:
    """A wallet with code, that passes each simulation and reverts in each block."""
    payer = harness.payer(
        f"proxy {number}", nonce=keccak256(b"%d" % number), valid_before=harness.now_ms // 1000 + 80_000
    )
    given = {} if code_hash is None else {"code_hash": code_hash}
    harness.chain.deploy(CHAIN, payer.address, **given)
    harness.chain.revert_transfer(CHAIN, payer.address, payer.nonce)
    return payer


async def settle_until_refused(harness: SettlementHarness, payers: Iterable[AuthorizationSigner]) -> int:
    """The number of transactions on the chain before one was refused because its part of the gas was used."""
    for number, payer in enumerate(payers):
        refused = await harness.check(payer.authorize())
        if isinstance(refused, Problem):
            assert (refused.code, refused.reason) == (Code.PAYMENT_METHOD_UNSUPPORTED, "wallet_gas_budget")
            return number
        assert await (await harness.claim(payer)).settle() == Undecided()
        await harness.gas_budget.refresh()
    raise AssertionError("none was refused")


async def test_proxies_of_one_reverting_code_are_refused_without_effect_on_other_payers() -> None:
    async with SettlementHarness() as harness:
        many = (proxy(harness, number) for number in range(60))
        assert await settle_until_refused(harness, many) == CODE_REVERTS_MAX
        assert harness.is_offered()
        other = proxy(harness, 5_000, code_hash=keccak256(b"another code"))
        assert isinstance(await harness.check(other.authorize()), Cover)
        plain = harness.payer("a plain wallet", valid_before=harness.now_ms // 1000 + 80_000)
        assert isinstance(await harness.check(plain.authorize()), Cover)
        assert isinstance(await (await harness.claim(plain)).settle(), Settled)
        async with harness.another() as other_gateway:
            assert isinstance(await other_gateway.check(proxy(harness, 6_000).authorize()), Problem)
        harness.pass_time(86_401)
        await harness.gas_budget.refresh()
        assert harness.gas_budget.is_wallet_served(CHAIN, LISTING, bytes(32))


@pytest.mark.parametrize("budget", ["listing_budget_wei", "network_budget_wei"])
async def test_wallets_of_many_codes_use_at_most_their_part_of_the_budget(budget: str) -> None:
    async with SettlementHarness(rules=settlement_rules(**{budget: 40 * GAS_WEI})) as harness:
        many = (proxy(harness, number, code_hash=keccak256(b"code %d" % number)) for number in range(60))
        assert await settle_until_refused(harness, many) == 40 // WALLET_BUDGET_DIVISOR
        assert harness.is_offered()
        plain = harness.payer("a plain wallet", valid_before=harness.now_ms // 1000 + 80_000)
        assert isinstance(await (await harness.claim(plain)).settle(), Settled)


async def test_concurrent_wallets_with_code_sign_at_most_their_part() -> None:
    """All calls are claimed before the first is settled. The others wait for settlement recovery and for the budget."""
    most_wei = 2 * 60_000 * (2 * 10**7 + 10**6)  # as it is offered: a transaction may cost so much
    async with SettlementHarness(rules=settlement_rules(listing_budget_wei=10 * most_wei)) as harness:
        calls = [await harness.claim(proxy(harness, number)) for number in range(20)]
        outcomes = await asyncio.gather(*(call.settle() for call in calls))
        assert set(outcomes) == {Undecided()}
        signed = len(harness.chain.broadcasts)
        assert 0 < signed < 10
        for call in calls:
            await call.mark_orphaned()
        await harness.settlement_recovery.run_once()
        spent_wei = (await harness.gas.wallet_gas_wei(CHAIN, since_ms=0))[LISTING]
        assert spent_wei <= 10 * most_wei // WALLET_BUDGET_DIVISOR + most_wei


async def test_while_costs_of_wallets_with_code_are_unknown_only_plain_wallets_are_served() -> None:
    fresh = SettlementHarness()
    fresh.gas.is_away_for_code = True
    async with fresh:
        assert fresh.is_offered()
        assert not fresh.gas_budget.is_wallet_served(CHAIN, LISTING, bytes(32))
        assert isinstance(await (await fresh.claim()).settle(), Settled)


async def test_a_facilitator_pays_for_wallets_with_code_too() -> None:
    rules = settlement_rules(gas_keys=(), facilitator=facilitator_at(), network_budget_wei=0)
    facilitator = FacilitatorClient(facilitator_at(), ScriptedFacilitator())
    async with SettlementHarness(rules=rules, facilitators={CHAIN: facilitator}) as harness:
        assert harness.gas_budget.is_wallet_served(CHAIN, LISTING, bytes(32))


async def test_a_network_budget_counts_the_maximum_cost_of_a_signed_transaction() -> None:
    async with SettlementHarness(rules=settlement_rules(network_budget_wei=10**12)) as harness:
        assert isinstance(await (await harness.claim()).settle(), Settled)
        assert not harness.gas_budget.is_offered(USDC, 10_000, ListingId("api_2"))


async def test_price_requests_do_not_change_a_spent_budget() -> None:
    async with SettlementHarness(rules=settlement_rules(listing_budget_wei=1)) as harness:
        assert isinstance(await (await harness.claim()).settle(), Settled)
        await harness.gas_budget.refresh()
        assert not harness.is_offered()
        for number in range(10_001):  # a client requests the 402 of each listing
            assert harness.gas_budget.is_offered(USDC, 10_000, ListingId(f"other_{number}"))
        assert not harness.is_offered()
        asked: list[Any] = []
        gas_spent_wei = harness.gas.gas_spent_wei

        async def count(chain_id: Any, *, since_ms: int) -> Any:
            asked.append(chain_id)
            return await gas_spent_wei(chain_id, since_ms=since_ms)

        harness.gas.gas_spent_wei = count  # type: ignore[method-assign]  # the fake's own hook
        await harness.gas_budget.refresh()
        assert asked == [CHAIN]
        assert not harness.is_offered()


async def test_a_cost_noted_during_the_read_of_the_ledger_counts() -> None:
    async with SettlementHarness(rules=settlement_rules(listing_budget_wei=1)) as harness:
        gas_spent_wei = harness.gas.gas_spent_wei

        async def be_overtaken(chain_id: Any, *, since_ms: int) -> Any:
            spent = await gas_spent_wei(chain_id, since_ms=since_ms)
            assert isinstance(await (await harness.claim()).settle(), Settled)
            return spent

        harness.gas.gas_spent_wei = be_overtaken  # type: ignore[method-assign]  # the fake's own hook
        await harness.gas_budget.refresh()
        assert not harness.is_offered()


async def test_slow_sums_of_the_ledger_are_read_less_often() -> None:
    async with SettlementHarness() as harness:
        asked = 0

        async def take_long(chain_id: Any, *, since_ms: int) -> dict[ListingId, int]:
            nonlocal asked
            asked += 1
            harness.pass_time(1)
            return {}

        harness.gas.gas_spent_wei = take_long  # type: ignore[method-assign]  # the fake's own hook
        for _ in range(3):
            await harness.gas_budget.refresh()
        assert asked == 1
        harness.pass_time(BUDGET_PAUSE_FACTOR)
        await harness.gas_budget.refresh()
        assert asked == 2


async def test_nothing_is_offered_from_a_stale_state() -> None:
    async with SettlementHarness() as harness:
        harness.chain.disconnect(CHAIN)
        harness.pass_time(CHECKS_UNTIL_STALE * harness.limits.gas_refresh_s)
        await harness.gas_budget.refresh()
        assert harness.is_offered()
        harness.pass_time(1)
        assert not harness.is_offered()
        assert harness.gas_budget.latest_fees(CHAIN) is None
        harness.chain.reconnect(CHAIN)
        await harness.gas_budget.refresh()
        assert harness.is_offered()


async def test_nothing_is_offered_before_the_first_refresh() -> None:
    assert not SettlementHarness().is_offered()


async def test_a_failing_key_is_not_used_until_the_next_refresh() -> None:
    async with SettlementHarness() as harness:
        harness.gas_budget.mark_failing(CHAIN, KEY)
        assert not harness.is_offered()
        assert harness.gas_budget.choose_sequence(CHAIN, is_claimed=True) is None
        await harness.gas_budget.refresh()
        assert harness.is_offered()


@pytest.mark.parametrize(
    ("token", "offered"),
    [
        (authorizing_token(USDC), True),
        (authorizing_token(USDC, TokenDomain(name="USD Coin", version="2")), False),
        (authorizing_token(replace(USDC, domain=None)), False),
    ],
    ids=["ours", "another domain", "none"],
)
async def test_a_token_with_another_domain_is_not_offered(token: Wallet, offered: bool) -> None:
    harness = SettlementHarness()
    harness.chain.deploy(CHAIN, TOKEN, token)
    async with harness:
        assert harness.is_offered() is offered


async def test_a_token_is_checked_until_its_domain_is_correct() -> None:
    harness = SettlementHarness()
    harness.chain.deploy(CHAIN, TOKEN, authorizing_token(replace(USDC, domain=None)))
    async with harness:
        harness.chain.deploy(CHAIN, TOKEN, authorizing_token(USDC))
        await harness.gas_budget.refresh()
        assert harness.is_offered()
        asked = harness.chain.requests["call_contract", CHAIN]
        await harness.gas_budget.refresh()
        assert harness.chain.requests["call_contract", CHAIN] == asked


async def test_the_sequence_starts_at_the_chains_nonce() -> None:
    async with SettlementHarness() as used:
        assert isinstance(await (await used.claim()).settle(), Settled)
        async with SettlementHarness(chain=used.chain) as harness:  # a new ledger, an old key
            call = await harness.claim(harness.payer(nonce=b"\x09" * 32))
            assert isinstance(await call.settle(), Settled)
            (attempt,) = await harness.ledger.attempts_of(call.claim.call_id)
            assert attempt.nonce == 1


async def test_mined_nonces_are_closed_when_a_reorganisation_is_unlikely() -> None:
    async with SettlementHarness() as harness:
        assert isinstance(await (await harness.claim()).settle(), Settled)
        await harness.gas_budget.refresh()
        assert len(await harness.gas.open_attempts(CHAIN, KEY, limit=9)) == 1
        for _ in range(4):
            await harness.gas_budget.refresh()
        assert await harness.gas.open_attempts(CHAIN, KEY, limit=9) == ()


async def test_a_deep_reorganisation_reopens_transactions() -> None:
    async with SettlementHarness() as harness:
        assert isinstance(await (await harness.claim()).settle(), Settled)
        for _ in range(5):
            await harness.gas_budget.refresh()
        assert await harness.gas.open_attempts(CHAIN, KEY, limit=9) == ()
        harness.chain.reorg(CHAIN, 1)
        await harness.gas_budget.refresh()
        assert len(await harness.gas.open_attempts(CHAIN, KEY, limit=9)) == 1


async def test_the_first_check_reopens_transactions_of_an_unseen_reorganisation() -> None:
    async with SettlementHarness() as harness:
        assert isinstance(await (await harness.claim()).settle(), Settled)
        for _ in range(5):
            await harness.gas_budget.refresh()
        harness.chain.reorg(CHAIN, 1)
        async with harness.another():
            assert len(await harness.gas.open_attempts(CHAIN, KEY, limit=9)) == 1


async def test_a_lagging_node_closes_and_reopens_nothing() -> None:
    async with SettlementHarness() as harness:
        for number in range(3):
            payer = harness.payer(nonce=bytes([number + 1]) * 32)
            assert isinstance(await (await harness.claim(payer)).settle(), Settled)
        fetch_account, lag, reopened = harness.chain.fetch_account, 0, []

        async def fetch(chain_id: Any, address: Any) -> Any:
            account = await fetch_account(chain_id, address)
            return replace(account, mined_nonce=account.mined_nonce - lag)

        async def reopen(*_: Any, **given: Any) -> None:
            reopened.append(given)

        harness.chain.fetch_account = fetch  # type: ignore[method-assign]  # the fake's own hook
        harness.gas.reopen = reopen  # type: ignore[method-assign]  # the fake's own hook
        for number in range(8):
            lag = number % 2
            await harness.gas_budget.refresh()
        assert [one.nonce for one in await harness.gas.open_attempts(CHAIN, KEY, limit=9)] == [2]
        assert reopened == []


async def test_a_key_can_be_excluded_from_the_choice() -> None:
    keys = (make_gas_key("one"), make_gas_key("two"))
    async with SettlementHarness(rules=settlement_rules(gas_keys=keys)) as harness:
        for key, other in (keys, reversed(keys)):
            sequence = harness.gas_budget.choose_sequence(CHAIN, is_claimed=True, without={key.address})
            assert sequence is not None
            assert sequence.key.address == other.address
        everybody = {key.address for key in keys}
        assert harness.gas_budget.choose_sequence(CHAIN, is_claimed=True, without=everybody) is None


FLOOR_WEI = 10**15
RICH = 10**18


@pytest.mark.parametrize(
    ("balances_wei", "in_flight", "stuck", "chosen", "chosen_for_claimed"),
    [
        pytest.param((RICH, RICH), (0, 0), (), 0, 0, id="the first of two idle keys"),
        pytest.param((RICH, RICH), (40, 39), (), 1, 1, id="the key with fewer transactions in flight"),
        pytest.param((RICH, RICH), (0, 40), (), 0, 0, id="not the busy key"),
        pytest.param((FLOOR_WEI, RICH), (0, 1), (), 0, 0, id="a balance at the floor"),
        pytest.param((FLOOR_WEI - 1, RICH), (0, 40), (), 1, 1, id="a balance below the floor"),
        pytest.param((FLOOR_WEI, FLOOR_WEI + 1), (2, 1), (), 1, 1, id="the larger balance does not count"),
        pytest.param((FLOOR_WEI - 1, 1), (1, 0), (), None, 1, id="the floor is the reserve of claimed calls"),
        pytest.param((0, FLOOR_WEI - 1), (0, 40), (), None, 1, id="no balance, a claimed call"),
        pytest.param((0, 0), (0, 0), (), None, None, id="no balance"),
        pytest.param((RICH, RICH), (0, 40), (0,), 1, 1, id="nonces that are not mined"),
        pytest.param((RICH, 1), (0, 0), (0,), None, 1, id="nonces that are not mined, and the reserve"),
        pytest.param((RICH, RICH), (0, 0), (0, 1), None, None, id="no key moves"),
    ],
)
async def test_the_funded_key_with_the_fewest_transactions_in_flight_is_chosen(
    balances_wei: tuple[int, int],
    in_flight: tuple[int, int],
    stuck: tuple[int, ...],
    chosen: int | None,
    chosen_for_claimed: int | None,
) -> None:
    keys = (make_gas_key("one"), make_gas_key("two"))
    rules = settlement_rules(gas_keys=keys, gas_floor_wei=FLOOR_WEI)
    async with SettlementHarness(rules=rules) as harness:
        for key, balance_wei in zip(keys, balances_wei, strict=True):
            harness.chain.fund_gas(CHAIN, key.address, balance_wei)
        await harness.gas_budget.refresh()
        sequences = harness.gas_budget.sequences(CHAIN)
        for number, sequence in enumerate(sequences):
            sequence.in_flight = in_flight[number]
            sequence.progress.is_stuck = number in stuck
        for is_claimed, index in ((False, chosen), (True, chosen_for_claimed)):
            found = harness.gas_budget.choose_sequence(CHAIN, is_claimed=is_claimed)
            assert found is (None if index is None else sequences[index])


async def test_a_facilitator_pays_its_own_gas() -> None:
    rules = settlement_rules(gas_keys=(), facilitator=facilitator_at())
    facilitator = FacilitatorClient(facilitator_at(), ScriptedFacilitator())
    async with SettlementHarness(rules=rules, facilitators={CHAIN: facilitator}) as harness:
        assert harness.is_offered()
        assert not harness.is_offered(999)


async def test_a_failure_causes_an_early_refresh() -> None:
    async with SettlementHarness() as harness:
        harness.gas.away = True
        looks = harness.chain.requests["fetch_fees", CHAIN]
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.gas_budget.run())
            await until(lambda: harness.chain.requests["fetch_fees", CHAIN] != looks)
            running.cancel()
        harness.gas.away = False
        await harness.gas_budget.refresh()
        assert harness.is_offered()


@pytest.mark.parametrize("outage", ["storage", "chain"])
async def test_refreshing_continues_after_an_outage(outage: str) -> None:
    """On Python 3.11 and 3.12 a task group whose task failed leaves `cancelling()` at 1 in its task. The loop took that
    for its own end, and x402 was off until a restart."""
    async with SettlementHarness(limits=replace(DEFAULT_LIMITS, gas_refresh_s=0.001)) as harness:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.gas_budget.run())
            for is_away in (True, False, True, False):
                harness.gas.away = is_away and outage == "storage"
                (harness.chain.disconnect if is_away and outage == "chain" else harness.chain.reconnect)(
                    CHAIN
                )
                looks = harness.chain.requests["fetch_fees", CHAIN]
                while harness.chain.requests["fetch_fees", CHAIN] < looks + 3:
                    assert not running.done()
                    await asyncio.sleep(0.001)
            running.cancel()
        assert harness.is_offered()


# ---- The metrics: each end once, seconds since the signature, balances and sequences at each refresh.


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
        await call.leave_orphaned()
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
