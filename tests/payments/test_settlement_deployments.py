"""Payments of contract wallets that are not deployed yet (ERC-6492), on the memory chain: the check before the call, the
transaction that deploys and pays, its recovery, and everything that is refused."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import MemoryChain
from tests.kit.chain_blocks import (
    CONFIRMED,
    DEPLOYMENT_GAS,
    NO_ANSWER,
    REVERTED,
    authorizing_token,
    parse_sent,
)
from tests.kit.narrowing import of_type
from tests.kit.payer import (
    CHAIN,
    DEPLOY_CALL,
    FACTORY,
    USDC,
    WALLET,
    UndeployedSigner,
    wrap,
)
from tests.kit.settlement import (
    HASTY,
    LISTING,
    TOKEN,
    ScriptedFacilitator,
    SettlementHarness,
    facilitator_at,
    settlement_rules,
)
from tests.kit.waits import bounded, until
from tollway.chain.multicall import MULTICALL3, parse_calls
from tollway.chain.port import ContractResult
from tollway.chain.tokens import ERC1271_MAGIC
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.ids import Address, keccak256
from tollway.ledger.ledger import CodeRecord
from tollway.ledger.records import Authorization, CallState, Cover
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.payments.settlement_rules import CODE_REVERTS_MAX, WALLET_BUDGET_DIVISOR
from tollway.payments.transactions import (
    TransactionFees,
    encode_transfer_call,
    read_valid_before,
    sign_replacement,
)
from tollway.payments.wire import AuthorizationReason

OTHER_FACTORY = Address(b"\xfb" * 20)
COUNTED_AS = bytes(12) + FACTORY
RULES = settlement_rules(wallet_factories=(FACTORY,))


def open_harness(**given: Any) -> SettlementHarness:
    return SettlementHarness(**{"rules": RULES, **given})


@pytest.fixture
async def harness() -> AsyncIterator[SettlementHarness]:
    async with open_harness() as harness:
        yield harness


@pytest.fixture
async def slow() -> AsyncIterator[SettlementHarness]:
    """Nothing is mined until the test says so, and no call waits for it."""
    async with open_harness(limits=HASTY) as harness:
        harness.chain.is_automining = False
        yield harness


def newcomer(harness: SettlementHarness, number: int = 0, **given: Any) -> UndeployedSigner:
    """A funded wallet without code that an allowed factory makes."""
    wallet = Address(bytes([0x5A + number]) * 20)
    payer = UndeployedSigner(wallet=wallet, calldata=DEPLOY_CALL + bytes([number]))
    harness.chain.fund(CHAIN, TOKEN, wallet, 10**9)
    harness.chain.add_factory(CHAIN, FACTORY, payer.calldata, **{"wallet": wallet, **given})
    return payer


# ---- Paid.


async def test_one_transaction_deploys_the_wallet_and_pays(harness: SettlementHarness) -> None:
    payer = newcomer(harness)
    assert isinstance(await harness.check(payer.authorize()), Cover)
    assert harness.chain.broadcasts == []

    call = await harness.claim(payer)
    assert isinstance(await call.settle(), Settled)

    (raw,) = harness.chain.broadcasts
    sent = parse_sent(raw)
    deploying, paying = parse_calls(sent.calldata)
    assert (sent.recipient, sent.gas) == (MULTICALL3, DEPLOYMENT_GAS * 5 // 4 + 15_000)
    assert (deploying.to, deploying.calldata, deploying.may_fail) == (FACTORY, payer.calldata, False)
    assert (paying.to, paying.may_fail) == (TOKEN, False)
    assert paying.calldata == encode_transfer_call(payer.authorize(signature=payer.inner))
    assert harness.chain.balance(CHAIN, TOKEN, payer.payee) == payer.base_units
    assert await call.read_state() is CallState.CONSUMED
    assert (await harness.ledger.audit()).is_balanced


@pytest.mark.parametrize("factory", [FACTORY, OTHER_FACTORY])
async def test_a_wallet_with_code_pays_by_the_signature_in_the_wrapper(
    harness: SettlementHarness, factory: Address
) -> None:
    """Whatever factory the wrapper names: it is not called."""
    payer = replace(newcomer(harness), factory=factory)
    harness.chain.deploy(CHAIN, payer.wallet, lambda calldata: CONFIRMED)
    assert isinstance(await harness.check(payer.authorize()), Cover)
    assert isinstance(await (await harness.claim(payer)).settle(), Settled)
    sent = parse_sent(harness.chain.broadcasts[0])
    assert sent.recipient == TOKEN
    assert sent.calldata == encode_transfer_call(payer.authorize(signature=payer.inner))


async def test_calls_at_once_deploy_the_wallet_once(harness: SettlementHarness) -> None:
    payer = newcomer(harness)
    calls = [await harness.claim(replace(payer, nonce=keccak256(b"%d" % number))) for number in range(5)]
    harness.chain.is_automining = False
    async with asyncio.TaskGroup() as group:
        settling = [group.create_task(call.settle()) for call in calls]
        await until(lambda: harness.chain.requests["fetch_authorization", CHAIN] >= 2 * len(calls))
        harness.chain.is_automining = True
        harness.chain.mine_sent(CHAIN)
    outcomes = [task.result() for task in settling]
    assert all(isinstance(outcome, Settled) for outcome in outcomes), outcomes
    recipients = [parse_sent(raw).recipient for raw in harness.chain.broadcasts]
    assert sorted(recipients) == sorted([MULTICALL3, TOKEN, TOKEN, TOKEN, TOKEN])


async def test_a_call_waits_for_the_deployment_of_another_no_longer_than_for_its_own_end(
    slow: SettlementHarness,
) -> None:
    """The other one has not even sent it by then."""
    payer = newcomer(slow)
    first, second = await slow.claim(payer), await slow.claim(replace(payer, nonce=b"\x08" * 32))
    send, is_sending, is_over = slow.chain.send_transaction, asyncio.Event(), asyncio.Event()

    async def hold(chain_id: Any, raw: bytes) -> Any:
        is_sending.set()
        await is_over.wait()
        return await send(chain_id, raw)

    slow.chain.send_transaction = hold  # type: ignore[method-assign]  # the fake's own hook
    async with asyncio.TaskGroup() as group:
        deploying = group.create_task(first.settle())
        await bounded(is_sending.wait())
        assert await second.settle() == Undecided()
        assert slow.chain.broadcasts == []
        is_over.set()
    assert deploying.result() == Undecided()
    assert len(set(slow.chain.broadcasts)) == 1
    assert await second.read_state() is CallState.SETTLING


async def test_a_call_waits_for_a_deployment_whose_outcome_is_not_known(slow: SettlementHarness) -> None:
    """Its own transaction would revert, or burn its gas where the factory meets the wallet."""
    payer = newcomer(slow)
    first, second = await slow.claim(payer), await slow.claim(replace(payer, nonce=b"\x08" * 32))
    assert isinstance(await first.settle(), Undecided)
    assert await second.settle() == Undecided()
    for one in (first, second):
        assert await one.mark_orphaned()
    await slow.sweep(times=3)  # nor does recovery send it
    assert len(set(slow.chain.broadcasts)) == 1
    assert await second.read_state() is CallState.SETTLING
    slow.chain.mine_sent(CHAIN)
    slow.chain.is_automining = True
    await slow.sweep(times=3)
    assert [await one.read_state() for one in (first, second)] == [CallState.CONSUMED] * 2


@pytest.mark.parametrize("is_ended", [False, True])
async def test_a_deployment_that_begins_while_the_ledger_is_asked_for_one_is_waited_for(
    harness: SettlementHarness, is_ended: bool
) -> None:
    """Its outcome becomes known: it runs here. `is_ended`: by then it has even ended."""
    payer = newcomer(harness)
    first, second = await harness.claim(payer), await harness.claim(replace(payer, nonce=b"\x08" * 32))
    find, is_asking, is_to_answer = harness.ledger.has_open_deployment, asyncio.Event(), asyncio.Event()

    async def answer_late(call: Any, **wallet: Any) -> bool:
        if call != second.claim.call_id:
            return await find(call, **wallet)
        is_asking.set()
        await is_to_answer.wait()
        return True  # that of the first call

    harness.ledger.has_open_deployment = answer_late  # type: ignore[method-assign]
    harness.chain.is_automining = is_ended
    async with asyncio.TaskGroup() as group:
        following = group.create_task(second.settle())
        await bounded(is_asking.wait())
        deploying = group.create_task(first.settle())
        await until(lambda: harness.chain.broadcasts)
        if is_ended:
            await bounded(asyncio.wait([deploying]))
        is_to_answer.set()
        if not is_ended:
            await asyncio.sleep(0)  # the second call has its answer before the block
            harness.chain.is_automining = True
            harness.chain.mine_sent(CHAIN)
    assert isinstance(deploying.result(), Settled)
    assert isinstance(following.result(), Settled)


async def test_the_end_of_another_wallets_deployment_repeats_no_simulation() -> None:
    chain, count = WatchedMemoryChain(), 4
    async with open_harness(chain=chain) as harness:
        calls = [await harness.claim(newcomer(harness, number)) for number in range(2 * count)]
        early, late = calls[:count], calls[count:]
        held = asyncio.Event()
        chain.held = {call.authorization.payer: held for call in late}
        async with asyncio.TaskGroup() as group:
            settling = [group.create_task(call.settle()) for call in late]
            outcomes = [await call.settle() for call in early]
            held.set()
        outcomes += [task.result() for task in settling]
        assert all(isinstance(outcome, Settled) for outcome in outcomes), outcomes
        assert chain.looks == (2 * 2 * count, 2 * count)


async def test_deployments_of_many_wallets_in_one_block_look_at_the_chain_once_each() -> None:
    """Two calls of each wallet: one deploys it, the other waits for that and simulates once more."""
    chain, count = WatchedMemoryChain(), 4
    async with open_harness(chain=chain) as harness:
        chain.is_automining = False
        payers = [newcomer(harness, number) for number in range(count)]
        calls = [await harness.claim(payer) for payer in payers]
        followers = [await harness.claim(replace(payer, nonce=b"\x08" * 32)) for payer in payers]
        async with asyncio.TaskGroup() as group:
            settling = [group.create_task(call.settle()) for call in calls]
            await until(lambda: len(chain.broadcasts) >= count)
            settling += [group.create_task(call.settle()) for call in followers]
            await until(lambda: chain.looks[0] >= 4 * count)
            assert len(harness.settlement._wallet_turns) == count
            chain.is_automining = True
            chain.mine_sent(CHAIN)
        outcomes = [task.result() for task in settling]
        assert all(isinstance(outcome, Settled) for outcome in outcomes), outcomes
        assert chain.looks == ((2 + 3) * count, count)
        assert harness.settlement._wallet_turns == {}


async def test_a_call_that_leaves_while_it_waits_leaves_no_entry_of_its_wallet(
    harness: SettlementHarness,
) -> None:
    payer = newcomer(harness)
    harness.chain.is_automining = False
    first, *others = [
        await harness.claim(replace(payer, nonce=keccak256(b"%d" % number))) for number in range(3)
    ]
    turns = harness.settlement._wallet_turns
    async with asyncio.TaskGroup() as group:
        deploying = group.create_task(first.settle())
        await until(lambda: harness.chain.broadcasts)
        waiting = [group.create_task(call.settle()) for call in others]
        await until(lambda: harness.chain.requests["fetch_authorization", CHAIN] >= 6)
        (turn,) = turns.values()
        assert turn.calls == 3
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert turn.calls == 1
        harness.chain.mine_sent(CHAIN)
    assert isinstance(deploying.result(), Settled)
    assert turns == {}


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_call_that_deploys_nothing_leaves_no_entry_of_its_wallet(
    harness: SettlementHarness, is_away: bool
) -> None:
    call = await harness.claim(newcomer(harness))
    if is_away:
        harness.chain.disconnect(CHAIN)
    else:
        harness.chain.refuse_transfer(CHAIN, call.authorization.payer, call.authorization.nonce)
    assert not isinstance(await call.settle(), Settled)
    assert harness.settlement._wallet_turns == {}


# ---- Refused.


def claimed_by(reason: AuthorizationReason) -> tuple[Code, str]:
    return Code.PAYMENT_VERIFICATION_FAILED, reason.value


FACTORY_REFUSED = AuthorizationReason.FACTORY
SIGNATURE_REFUSED = AuthorizationReason.SIGNATURE
SIMULATION_FAILED = AuthorizationReason.SIMULATION_FAILED


async def assert_refused(
    harness: SettlementHarness, authorization: Authorization, reason: AuthorizationReason
) -> Problem:
    refused = of_type(Problem, await harness.check(authorization))
    assert (refused.code, refused.reason) == (Code.PAYMENT_VERIFICATION_FAILED, reason.value)
    assert harness.chain.broadcasts == []
    return refused


@pytest.mark.parametrize("factory", [OTHER_FACTORY, TOKEN, MULTICALL3, WALLET, Address(bytes(20))])
async def test_no_other_factory_is_called(harness: SettlementHarness, factory: Address) -> None:
    payer = replace(newcomer(harness), factory=factory)
    harness.chain.add_factory(CHAIN, factory, payer.calldata, wallet=payer.wallet)
    asked = harness.chain.requests.copy()
    refused = await assert_refused(harness, payer.authorize(), FACTORY_REFUSED)
    assert refused.detail is not None
    assert str(factory) in refused.detail
    assert str(FACTORY) in refused.detail
    assert "Deploy the wallet first" in refused.detail
    asked["fetch_authorization", CHAIN] += 1
    assert harness.chain.requests == asked, "its call is not even simulated"


async def test_an_empty_list_allows_no_factory() -> None:
    async with open_harness(rules=settlement_rules()) as harness:
        await assert_refused(harness, newcomer(harness).authorize(), FACTORY_REFUSED)


@pytest.mark.parametrize(
    "answer",
    [
        NO_ANSWER,
        REVERTED,
        ContractResult(reverted=False, payload=bytes(32)),
        ContractResult(reverted=False, payload=ERC1271_MAGIC),
        ContractResult(reverted=False, payload=CONFIRMED.payload.ljust(5_000, b"\0")),
    ],
)
async def test_the_deployed_wallet_must_confirm_the_signature_within_the_limits(
    harness: SettlementHarness, answer: ContractResult
) -> None:
    payer = newcomer(harness, answer=lambda calldata: answer)
    refused = await assert_refused(harness, payer.authorize(), SIGNATURE_REFUSED)
    assert refused.detail is not None
    assert "does not deploy the paying wallet" in refused.detail


async def test_a_factory_deploys_no_wallet_but_the_payers(harness: SettlementHarness) -> None:
    """A plain wallet wraps its own signature, so that its transfer passes, and names a call that deploys another wallet."""
    newcomer(harness)
    plain = harness.payer()
    authorization = plain.authorize(signature=wrap(plain.signature, calldata=DEPLOY_CALL + b"\0"))
    await assert_refused(harness, authorization, SIGNATURE_REFUSED)


async def test_a_call_that_deploys_nothing_is_refused(harness: SettlementHarness) -> None:
    payer = replace(newcomer(harness), calldata=b"another call of the factory")
    await assert_refused(harness, payer.authorize(), SIMULATION_FAILED)


async def test_a_transaction_that_fails_in_simulation_is_refused(harness: SettlementHarness) -> None:
    payer = newcomer(harness)
    harness.chain.refuse_transfer(CHAIN, payer.wallet, payer.nonce)
    refused = await assert_refused(harness, payer.authorize(), SIMULATION_FAILED)
    assert refused.detail is not None
    assert "deploys the paying wallet" in refused.detail


async def test_a_chain_without_multicall_refuses(harness: SettlementHarness) -> None:
    """A call to an address without code succeeds and does nothing: it is no payment."""
    harness.chain.remove_multicall(CHAIN)
    await assert_refused(harness, newcomer(harness).authorize(), SIMULATION_FAILED)


async def test_a_signature_for_a_contract_without_a_wrapper_is_explained(harness: SettlementHarness) -> None:
    payer = newcomer(harness)
    authorization = payer.authorize(signature=b"in the format of a wallet" * 3)
    await assert_refused(harness, authorization, AuthorizationReason.UNDEPLOYED_WALLET)


async def test_the_simulation_has_the_gas_of_a_deployment() -> None:
    limits = replace(DEFAULT_LIMITS, deployment_gas_max=300_001)
    chain = WatchedMemoryChain()
    async with open_harness(limits=limits, chain=chain) as harness:
        payer = newcomer(harness)
        assert isinstance(await harness.check(payer.authorize()), Cover)
        assert chain.gas == [limits.settlement_gas_max, 300_001, 300_001]
        assert isinstance(await (await harness.claim(payer)).settle(), Settled)
        assert parse_sent(chain.broadcasts[0]).gas == 300_001


class WatchedMemoryChain(MemoryChain):
    """Records the gas of each simulation and of each call. `on_multicall`: runs before the simulation of a deployment, `on_called` within
    it, between the wallet's code and the transfer, `on_check` before the check of its wallet. `held`: the simulation of a deployment of these wallets waits for the event."""

    def __init__(self) -> None:
        super().__init__(CHAIN)
        self.deploy(CHAIN, TOKEN, authorizing_token(USDC))
        self.gas: list[int] = []
        self.checks = 0
        self.on_multicall: Any = None
        self.on_called: Any = None
        self.on_check: Any = None
        self.held: dict[Address, asyncio.Event] = {}

    async def fetch_authorization(self, *arguments: Any, **options: Any) -> Any:
        self.gas.append(options["gas"])
        if options["to"] == MULTICALL3:
            if self.on_multicall is not None:
                self.on_multicall()
            if (held := self.held.get(options["payer"])) is not None:
                await held.wait()
            if self.on_called is not None:
                before = await super().fetch_authorization(*arguments, **options)
                self.on_called()
                after = await super().fetch_authorization(*arguments, **options)
                return replace(after, code_hash=before.code_hash, code_size=before.code_size)
        return await super().fetch_authorization(*arguments, **options)

    async def call_contract(self, *arguments: Any, **options: Any) -> Any:
        if options["to"] == MULTICALL3:
            self.gas.append(options["gas"])
            self.checks += 1
            if self.on_check is not None:
                self.on_check()
        return await super().call_contract(*arguments, **options)

    @property
    def looks(self) -> tuple[int, int]:
        """How many simulations, and how many checks of a wallet."""
        return self.requests["fetch_authorization", CHAIN], self.checks


async def test_a_facilitator_gets_the_wrapped_signature_of_an_allowed_factory_only() -> None:
    """It deploys the wallet by its own rules and at its own cost."""
    line = ScriptedFacilitator()
    rules = settlement_rules(gas_keys=(), facilitator=facilitator_at(), wallet_factories=(FACTORY,))
    facilitators = {CHAIN: FacilitatorClient(facilitator_at(), line)}
    async with SettlementHarness(rules=rules, facilitators=facilitators) as harness:
        payer = newcomer(harness)
        foreign = replace(payer, factory=OTHER_FACTORY)
        await assert_refused(harness, foreign.authorize(), FACTORY_REFUSED)
        assert line.requests == []
        assert isinstance(await harness.check(payer.authorize()), Cover)
        line.settling = await harness.claim(payer)
        assert isinstance(await line.settling.settle(), Settled)
    shown = [content["paymentPayload"]["payload"]["signature"] for _, content, _ in line.requests]
    assert shown == ["0x" + line.settling.authorization.signature.hex()] * 2
    assert harness.chain.broadcasts == []


# ---- Gas budgets.


async def test_the_gas_counts_as_that_of_wallets_with_code(harness: SettlementHarness) -> None:
    assert isinstance(await (await harness.claim(newcomer(harness))).settle(), Settled)
    spent = await harness.gas.wallet_gas_wei(CHAIN, since_ms=0)
    assert spent[LISTING] > 0


@pytest.mark.parametrize("budget", ["listing_budget_wei", "network_budget_wei"])
async def test_a_spent_budget_of_wallets_with_code_refuses(budget: str) -> None:
    rules = settlement_rules(wallet_factories=(FACTORY,), **{budget: WALLET_BUDGET_DIVISOR})
    async with open_harness(rules=rules) as harness:
        call = await harness.claim(newcomer(harness))
        assert isinstance(await call.settle(), Settled)
        refused = of_type(Problem, await harness.check(newcomer(harness, 1).authorize()))
        assert refused.reason == AuthorizationReason.WALLET_GAS.value
        assert isinstance(await harness.check(harness.payer().authorize()), Cover), "a plain wallet"


async def test_a_factory_whose_deployments_revert_is_not_called_any_more(harness: SettlementHarness) -> None:
    harness.limits = HASTY
    for number in range(CODE_REVERTS_MAX):
        payer = newcomer(harness, number)
        harness.chain.revert_transfer(CHAIN, payer.wallet, payer.nonce)
        assert isinstance(await (await harness.claim(payer)).settle(), Undecided)
    record = (await harness.gas.reverting_codes(CHAIN, since_ms=0)).get(COUNTED_AS)
    await harness.gas_budget.refresh()
    record = (await harness.gas.reverting_codes(CHAIN, since_ms=0))[COUNTED_AS]
    assert record == CodeRecord(signed=CODE_REVERTS_MAX, reverted=CODE_REVERTS_MAX)
    refused = of_type(Problem, await harness.check(newcomer(harness, CODE_REVERTS_MAX).authorize()))
    assert refused.reason == AuthorizationReason.WALLET_GAS.value


# ---- What changes between the check and the transaction.


async def test_a_wallet_deployed_since_its_check_pays_without_a_deployment(
    harness: SettlementHarness,
) -> None:
    payer = newcomer(harness)
    assert isinstance(await harness.check(payer.authorize()), Cover)
    call = await harness.claim(payer)
    harness.chain.deploy(CHAIN, payer.wallet, lambda calldata: CONFIRMED)
    assert isinstance(await call.settle(), Settled)
    assert parse_sent(harness.chain.broadcasts[0]).recipient == TOKEN


MOMENTS = ("on_multicall", "on_called", "on_check")


@pytest.mark.parametrize(
    ("moment", "is_lenient"), [("on_multicall", True), *((one, False) for one in MOMENTS)]
)
async def test_a_wallet_deployed_during_its_settlement_pays_without_a_deployment(
    moment: str, is_lenient: bool
) -> None:
    """By another gateway or account: the factory reverts from then on, or makes nothing, and the wallet can pay."""
    chain = WatchedMemoryChain()
    async with open_harness(chain=chain) as harness:
        payer = newcomer(harness, is_lenient=is_lenient)
        call = await harness.claim(payer)
        setattr(chain, moment, lambda: chain.deploy(CHAIN, payer.wallet, lambda calldata: CONFIRMED))
        assert isinstance(await call.settle(), Settled)
        assert parse_sent(chain.broadcasts[0]).recipient == TOKEN


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_wallet_deployed_during_its_check_is_judged_as_it_is_then(moment: str) -> None:
    chain = WatchedMemoryChain()
    async with open_harness(chain=chain) as harness:
        good, bad = newcomer(harness), newcomer(harness, 1)
        setattr(chain, moment, lambda: chain.deploy(CHAIN, good.wallet, lambda calldata: CONFIRMED))
        assert isinstance(await harness.check(good.authorize()), Cover)
        setattr(chain, moment, lambda: chain.deploy(CHAIN, bad.wallet, lambda calldata: NO_ANSWER))
        assert isinstance(await harness.check(bad.authorize()), Problem)


async def test_a_transaction_that_fails_since_its_check_is_not_sent(harness: SettlementHarness) -> None:
    payer = newcomer(harness)
    assert isinstance(await harness.check(payer.authorize()), Cover)
    call = await harness.claim(payer)
    harness.chain.refuse_transfer(CHAIN, payer.wallet, payer.nonce)
    assert await call.settle() == NotSettled(reason=SIMULATION_FAILED.value)
    assert harness.chain.broadcasts == []
    assert await call.read_state() is CallState.RELEASED


def delegating_payer(harness: SettlementHarness) -> UndeployedSigner:
    """An account with a key, which delegates to a wallet's code (EIP-7702). Its signature names a call that deploys another wallet."""
    other, plain = newcomer(harness), harness.payer()
    harness.chain.deploy(CHAIN, plain.address, lambda calldata: CONFIRMED)
    return UndeployedSigner(account=plain.account, wallet=plain.address, calldata=other.calldata)


async def test_an_account_that_ends_its_delegation_since_its_check_has_no_other_wallet_deployed(
    harness: SettlementHarness,
) -> None:
    payer = delegating_payer(harness)
    assert isinstance(await harness.check(payer.authorize()), Cover)
    call = await harness.claim(payer)
    harness.chain.remove_code(CHAIN, payer.address)
    assert await call.settle() == NotSettled(reason=SIMULATION_FAILED.value)
    assert harness.chain.broadcasts == []
    assert await call.read_state() is CallState.RELEASED


async def test_an_outage_between_the_simulation_and_the_check_before_the_signature_decides_nothing() -> None:
    chain = WatchedMemoryChain()
    async with open_harness(chain=chain, limits=HASTY) as harness:
        payer = newcomer(harness)
        call = await harness.claim(payer)
        chain.on_check = lambda: chain.disconnect(CHAIN)
        assert await call.settle() == Undecided()
        assert await call.read_state() is CallState.SETTLING
        assert await call.mark_orphaned()
        chain.reconnect(CHAIN)
        await harness.sweep()
        assert await call.read_state() is CallState.SETTLING
        assert chain.broadcasts == []
        chain.reconnect(CHAIN)
        chain.on_check = None
        await harness.sweep(times=2)
        assert await call.read_state() is CallState.CONSUMED
        assert chain.balance(CHAIN, TOKEN, payer.payee) == payer.base_units
        assert [parse_sent(raw).recipient for raw in chain.broadcasts] == [MULTICALL3]


async def test_a_factory_that_is_not_allowed_any_more_is_not_called(harness: SettlementHarness) -> None:
    """A gateway restarts with another list between the claim and the transaction."""
    call = await harness.claim(newcomer(harness))
    strict = SettlementHarness(rules=settlement_rules(), chain=harness.chain, ledger=harness.ledger)
    async with strict:
        assert isinstance(await strict.settlement.settle(call.order()), NotSettled)
    assert harness.chain.broadcasts == []


# ---- Recovery.


async def test_after_a_crash_the_transaction_is_built_again_from_the_wrapped_signature(
    slow: SettlementHarness,
) -> None:
    """The claim stores the signature as it was presented; nothing else is needed."""
    payer = newcomer(slow)
    call = await slow.claim(payer)
    slow.chain.disconnect(CHAIN)  # the gateway stops before it signs
    await call.leave_orphaned()
    slow.chain.reconnect(CHAIN)
    async with slow.another() as other:
        await other.sweep()
        slow.chain.mine_sent(CHAIN)
        await other.sweep()
    assert [parse_sent(raw).recipient for raw in slow.chain.broadcasts] == [MULTICALL3]
    assert await call.read_state() is CallState.CONSUMED
    assert slow.chain.balance(CHAIN, TOKEN, payer.payee) == payer.base_units


async def test_a_stored_transaction_is_sent_again_and_replaced_unchanged_but_for_its_price(
    slow: SettlementHarness,
) -> None:
    call = await slow.leave_orphaned(newcomer(slow))
    (attempt,) = await slow.ledger.attempts_of(call.claim.call_id)
    assert read_valid_before(attempt) == call.authorization.valid_before
    replaced = sign_replacement(
        attempt,
        slow.settlement_rules.gas_keys[0],
        tx_fees=TransactionFees(max_fee_wei=10**9, tip_wei=10**6),
        now_ms=1,
    )
    assert read_valid_before(replaced) == call.authorization.valid_before
    before, after = parse_sent(attempt.raw), parse_sent(replaced.raw)
    assert (after.recipient, after.calldata, after.gas) == (before.recipient, before.calldata, before.gas)
    slow.chain.drop_sent(CHAIN)
    await slow.sweep()
    slow.pass_time(slow.limits.fee_bump_after_s + 1)
    await slow.sweep()
    (bumped,) = slow.chain.sent(CHAIN)
    assert bumped.calldata == before.calldata
    assert bumped.max_fee_wei > before.max_fee_wei
    await slow.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED


@pytest.mark.parametrize(
    ("is_lenient", "expected"), [(False, [MULTICALL3, TOKEN]), (True, [MULTICALL3])], ids=["Safe", "Coinbase"]
)
async def test_a_wallet_that_another_account_deploys_first_pays_once(
    slow: SettlementHarness, is_lenient: bool, expected: list[Address]
) -> None:
    """Where the factory reverts for a wallet that exists, the transaction reverts whole, and the next one only pays."""
    payer = newcomer(slow, is_lenient=is_lenient)
    call = await slow.leave_orphaned(payer)
    slow.chain.deploy(CHAIN, payer.wallet, lambda calldata: CONFIRMED)
    await slow.mine_and_sweep()
    await slow.mine_and_sweep()
    recipients = [parse_sent(raw).recipient for raw in dict.fromkeys(slow.chain.broadcasts)]
    assert recipients == expected
    assert await call.read_state() is CallState.CONSUMED
    assert slow.chain.balance(CHAIN, TOKEN, payer.payee) == payer.base_units


async def test_a_reorganisation_undoes_deployment_and_transfer_together(slow: SettlementHarness) -> None:
    payer = newcomer(slow)
    call = await slow.leave_orphaned(payer)
    slow.chain.mine_sent(CHAIN)
    slow.chain.reorg(CHAIN, 1)
    await slow.sweep()  # the transaction is sent again
    assert await call.read_state() is CallState.SETTLING
    await slow.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED
    assert slow.chain.balance(CHAIN, TOKEN, payer.payee) == payer.base_units
    assert {parse_sent(raw).recipient for raw in slow.chain.broadcasts} == {MULTICALL3}


async def test_of_the_orphaned_calls_of_one_wallet_one_deploys_it(slow: SettlementHarness) -> None:
    payer = newcomer(slow)
    slow.chain.disconnect(CHAIN)
    calls = []
    for number in range(3):
        call = await slow.leave_orphaned(replace(payer, nonce=keccak256(b"%d" % number)))
        calls.append(call)
    slow.chain.reconnect(CHAIN)
    await slow.sweep(times=3)
    assert [sent.recipient for sent in slow.chain.sent(CHAIN)] == [MULTICALL3]
    slow.chain.mine_sent(CHAIN)
    await slow.sweep(times=2)
    await slow.mine_and_sweep()
    assert [await call.read_state() for call in calls] == [CallState.CONSUMED] * 3
    recipients = [parse_sent(raw).recipient for raw in dict.fromkeys(slow.chain.broadcasts)]
    assert recipients == [MULTICALL3, TOKEN, TOKEN]


async def test_the_next_call_deploys_the_wallet_when_the_first_never_pays(slow: SettlementHarness) -> None:
    payer = newcomer(slow)
    slow.chain.disconnect(CHAIN)
    calls = []
    for nonce in (payer.nonce, b"\x08" * 32):
        call = await slow.leave_orphaned(replace(payer, nonce=nonce))
        calls.append(call)
    slow.chain.reconnect(CHAIN)
    await slow.sweep()
    slow.chain.drop_sent(CHAIN)
    slow.chain.cancel_authorization(CHAIN, TOKEN, payer=payer.wallet, nonce=payer.nonce)
    await slow.sweep(times=3)
    assert [await call.read_state() for call in calls] == [CallState.RELEASED, CallState.SETTLING]
    (attempt,) = await slow.ledger.attempts_of(calls[1].claim.call_id)
    assert parse_sent(attempt.raw).recipient == MULTICALL3


async def test_recovery_calls_no_factory_that_is_not_allowed(slow: SettlementHarness) -> None:
    """The call waits until its authorisation has expired, or until the wallet has code."""
    payer = newcomer(slow)
    slow.chain.disconnect(CHAIN)
    call = await slow.leave_orphaned(payer)
    slow.chain.reconnect(CHAIN)
    strict = SettlementHarness(
        rules=settlement_rules(), chain=slow.chain, ledger=slow.ledger.another("strict"), limits=HASTY
    )
    async with strict:
        await strict.sweep(times=2)
        assert slow.chain.broadcasts == []
        assert await call.read_state() is CallState.SETTLING
        slow.chain.deploy(CHAIN, payer.wallet, lambda calldata: CONFIRMED)
        await strict.sweep()
        slow.chain.mine_sent(CHAIN)
        await strict.sweep()
    assert await call.read_state() is CallState.CONSUMED


async def test_recovery_has_no_other_wallet_deployed_for_an_account_that_ends_its_delegation(
    slow: SettlementHarness,
) -> None:
    payer = delegating_payer(slow)
    slow.chain.disconnect(CHAIN)
    call = await slow.leave_orphaned(payer)
    slow.chain.reconnect(CHAIN)
    slow.chain.remove_code(CHAIN, payer.address)
    await slow.sweep(times=2)
    assert slow.chain.broadcasts == []
    assert await call.read_state() is CallState.SETTLING
    slow.chain.deploy(CHAIN, payer.address, lambda calldata: CONFIRMED)
    await slow.sweep()
    await slow.mine_and_sweep()
    assert [parse_sent(raw).recipient for raw in slow.chain.broadcasts] == [TOKEN]
    assert await call.read_state() is CallState.CONSUMED


async def test_an_orphaned_call_whose_deployment_is_refused_does_not_delay_the_others_of_its_wallet(
    slow: SettlementHarness,
) -> None:
    payer = newcomer(slow)
    refused = replace(payer, calldata=DEPLOY_CALL + b" of other owners", nonce=b"\x08" * 32)
    slow.chain.add_factory(
        CHAIN, FACTORY, refused.calldata, wallet=payer.wallet, answer=lambda calldata: REVERTED
    )
    slow.chain.disconnect(CHAIN)
    calls = []
    for signer in (refused, payer):
        call = await slow.leave_orphaned(signer)
        calls.append(call)
    slow.chain.reconnect(CHAIN)
    await slow.sweep(times=2)
    (sent,) = slow.chain.sent(CHAIN)
    assert parse_calls(sent.calldata)[0].calldata == payer.calldata
    await slow.mine_and_sweep()
    assert await calls[1].read_state() is CallState.CONSUMED


async def test_an_unavailable_chain_is_no_refusal(harness: SettlementHarness) -> None:
    payer = newcomer(harness)
    harness.chain.disconnect(CHAIN)
    with pytest.raises(ChainUnavailable):
        await harness.check(payer.authorize())


async def test_a_network_without_a_key_signs_nothing() -> None:
    """The operator has taken the keys away since the claim."""
    async with SettlementHarness(rules=settlement_rules(gas_keys=())) as harness:
        for payer in (harness.payer(), newcomer(harness)):
            call = await harness.claim(payer)
            assert not isinstance(await call.settle(), Settled)
        assert harness.chain.broadcasts == []
