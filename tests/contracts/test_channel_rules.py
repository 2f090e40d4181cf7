"""The rules of money of payment channels, in memory and on a real EVM: each call, each error, and what the port reads afterwards."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import aiohttp
import coincurve
import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount

from tests.kit.chain import MemoryChain
from tests.kit.channel_payer import ChannelPayer
from tests.kit.payer import USDC
from tollway.chain import channel_contract as contract
from tollway.chain.channel_contract import (
    SETTLEMENT_CONTRACT,
    ChannelClaimed,
    ChannelConfig,
    ChannelDeposited,
    ChannelEvent,
    ChannelRefunded,
    ClaimRow,
    ContractError,
    ReceiverSettled,
    WithdrawFinalized,
    WithdrawInitiated,
    has_channel_contracts,
    parse_channel_events,
    parse_contract_error,
)
from tollway.chain.port import ChainFacts, ContractResult, EscrowState, WatchedChain
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.chain.signer import GasKey
from tollway.errors import ChainUnavailable
from tollway.ids import ZERO_ADDRESS, Address, ChainId, ChannelId, TxHash, keccak256
from tollway.limits import Limits
from tollway.payments.channels import claim_batch_digest
from tollway.sandbox.chain import (
    ChainDriver,
    Contract,
    RpcRefused,
    load_channel_contracts,
    load_test_usdc,
    run_anvil,
)

CHAIN = ChainId(84532)
assert USDC.token is not None
TOKEN: Address = USDC.token
FAR = 2**40
WALLET_UNITS = 10_000

PAYER = ChannelPayer(valid_before=FAR)
OTHER = replace(PAYER, receiver=Address(b"\xcc" * 20))  # another receiver, the same authorizer
FOREIGN = replace(PAYER, authorizer=Account.from_key(keccak256(b"another authorizer")))
STRANGER_RECEIVER = Address(b"\xdd" * 20)
STRANGER: LocalAccount = Account.from_key(keccak256(b"a stranger"))


class Call(NamedTuple):
    calldata: bytes
    sender: Literal["gas", "payer", "stranger"] = "gas"


# ---- The calls.


def deposit(base_units: int = 1_000, *, n: int = 1, of: ChannelPayer = PAYER, **changes: Any) -> Call:
    """`n`: the salt. `changes`: of the config, after the payer signed; of the times, before."""
    times = {name: changes.pop(name) for name in ("valid_after", "valid_before") if name in changes}
    payer = replace(of, deposit_salt=n.to_bytes(32, "big"), **times)
    config: ChannelConfig = replace(payer.config, **changes)
    return Call(
        contract.encode_deposit(
            config,
            base_units=base_units,
            valid_after=payer.valid_after,
            valid_before=payer.valid_before,
            salt=payer.deposit_salt,
            signature=payer.sign_deposit(base_units),
        )
    )


def row(ceiling: int, total: int, *, of: ChannelPayer = PAYER, signature: bytes | None = None) -> ClaimRow:
    signed = of.sign_voucher(ceiling) if signature is None else signature
    return ClaimRow(config=of.config, ceiling=ceiling, signature=signed, total_claimed=total)


def sign_batch(rows: Sequence[ClaimRow], authorizer: LocalAccount = PAYER.authorizer) -> bytes:
    key = coincurve.PrivateKey(bytes(authorizer.key))
    raw = key.sign_recoverable(claim_batch_digest(CHAIN, rows), hasher=None)
    return raw[:64] + bytes([27 + raw[64]])


def claim(*rows: ClaimRow, signature: bytes | None = None) -> Call:
    return Call(contract.encode_claim(rows, signature=sign_batch(rows) if signature is None else signature))


def settle(of: ChannelPayer = PAYER) -> Call:
    return Call(contract.encode_settle(receiver=of.receiver, token=TOKEN))


def refund(base_units: int, *, nonce: int = 0, of: ChannelPayer = PAYER) -> Call:
    signature = of.sign_refund(base_units, nonce=nonce)
    return Call(contract.encode_refund(PAYER.config, base_units=base_units, nonce=nonce, signature=signature))


def withdraw(base_units: int, sender: Literal["payer", "stranger"] = "payer") -> Call:
    return Call(contract.encode_initiate_withdraw(PAYER.config, base_units=base_units), sender)


def finalize(sender: Literal["payer", "stranger"] = "payer") -> Call:
    return Call(contract.encode_finalize_withdraw(PAYER.config), sender)


def together(*calls: Call) -> Call:
    return Call(contract.encode_multicall([call.calldata for call in calls]))


# ---- The events.


def deposited(base_units: int, balance: int, of: ChannelPayer = PAYER) -> ChannelEvent:
    return ChannelDeposited(channel_id=of.channel_id, base_units=base_units, balance=balance)


def claimed(base_units: int, total: int, of: ChannelPayer = PAYER) -> ChannelEvent:
    return ChannelClaimed(channel_id=of.channel_id, base_units=base_units, total_claimed=total)


def settled(base_units: int, of: ChannelPayer = PAYER) -> ChannelEvent:
    return ReceiverSettled(receiver=of.receiver, token=TOKEN, base_units=base_units)


def refunded(base_units: int) -> ChannelEvent:
    return ChannelRefunded(channel_id=PAYER.channel_id, base_units=base_units)


def begun(base_units: int) -> ChannelEvent:
    return WithdrawInitiated(channel_id=PAYER.channel_id, base_units=base_units, finalize_after=0)


def withdrawn(base_units: int) -> ChannelEvent:
    return WithdrawFinalized(channel_id=PAYER.channel_id, base_units=base_units)


# ---- The chains.

ACCOUNTS = {"payer": PAYER.account, "stranger": STRANGER, "gas": Account.from_key(keccak256(b"a gas key"))}
GAS = 400_000


class World(Protocol):
    """A chain with the contracts of channels, where the payer has 10,000 base units."""

    @property
    def chains(self) -> WatchedChain: ...

    async def simulate(self, calldata: bytes, sender: Address) -> ContractResult: ...

    async def pass_time(self, seconds: int) -> None: ...

    async def read_balance(self, owner: Address) -> int: ...

    async def wait_mined(self, tx_hash: TxHash) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWorld:
    chains: MemoryChain

    async def simulate(self, calldata: bytes, sender: Address) -> ContractResult:
        return self.chains.simulate_channels(CHAIN, calldata, sender=sender)

    async def pass_time(self, seconds: int) -> None:
        self.chains.mine(CHAIN, time=self.chains.head(CHAIN).time + seconds)

    async def read_balance(self, owner: Address) -> int:
        return self.chains.balance(CHAIN, TOKEN, owner)

    async def wait_mined(self, tx_hash: TxHash) -> None:
        """A transaction is mined when it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnvilWorld:
    chains: RpcReader
    driver: ChainDriver
    token: Contract

    async def simulate(self, calldata: bytes, sender: Address) -> ContractResult:
        request = {"from": str(sender), "to": str(SETTLEMENT_CONTRACT), "data": "0x" + calldata.hex()}
        try:
            returned = await self.driver.rpc("eth_call", request, "latest")
        except RpcRefused as exc:
            return ContractResult(reverted=True, payload=exc.payload)
        return ContractResult(reverted=False, payload=bytes.fromhex(returned[2:]))

    async def pass_time(self, seconds: int) -> None:
        await self.driver.rpc("evm_increaseTime", seconds)
        await self.driver.mine()

    async def read_balance(self, owner: Address) -> int:
        held: int = await self.driver.call(self.token, "balanceOf", str(owner))
        return held

    async def wait_mined(self, tx_hash: TxHash) -> None:
        await self.driver.wait_receipt(tx_hash)


@pytest.fixture(params=["memory", pytest.param("anvil", marks=pytest.mark.live)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A chain of its own for each test, because a test may move its time."""
    if request.param == "memory":
        chain = MemoryChain(CHAIN)
        chain.fund(CHAIN, TOKEN, PAYER.address, WALLET_UNITS)
        yield MemoryWorld(chains=chain)
        return
    async with (
        run_anvil(chain_id=CHAIN) as anvil,
        aiohttp.ClientSession() as session,
        RpcReader(
            {CHAIN: ChainEndpoints(urls=(anvil.rpc_url,))}, limits=Limits(rpc_deadline_s=20.0)
        ) as reader,
    ):
        driver = ChainDriver(session, anvil.rpc_url, CHAIN)
        token = Contract(artifact=load_test_usdc(), address=TOKEN)
        for one in (token, *load_channel_contracts()):
            await driver.set_code(one.address, one.artifact.runtime_code)
        for account in ACCOUNTS.values():
            await driver.set_native_balance(Address.parse(account.address), 10**18)
        gas_key = bytes(ACCOUNTS["gas"].key)
        minted = await driver.transact(token, "mint", str(PAYER.address), WALLET_UNITS, key=gas_key)
        await driver.wait_receipt(minted)
        yield AnvilWorld(chains=reader, driver=driver, token=token)


Outcome = ContractError | Literal["token"] | list[ChannelEvent]


async def perform(world: World, call: Call) -> Outcome:
    """The events of the call, or why it reverts. The simulation and the transaction must agree."""
    key = GasKey.parse(bytes(ACCOUNTS[call.sender].key).hex())
    simulated = await world.simulate(call.calldata, key.address)
    account = await world.chains.fetch_account(CHAIN, key.address)
    signed = key.sign(
        chain_id=CHAIN,
        nonce=account.mined_nonce,
        to=SETTLEMENT_CONTRACT,
        calldata=call.calldata,
        gas=GAS,
        max_fee_wei=100 * 10**9,
        tip_wei=10**9,
    )
    assert await world.chains.send_transaction(CHAIN, signed.raw) is None
    await world.wait_mined(signed.tx_hash)
    facts = await world.chains.fetch_facts(CHAIN, signed.tx_hash)
    assert isinstance(facts, ChainFacts)
    assert facts.succeeded is not simulated.reverted
    if simulated.reverted:
        assert facts.logs == ()
        return parse_contract_error(simulated.payload) or "token"
    events = parse_channel_events(facts.logs)
    return [replace(one, finalize_after=0) if isinstance(one, WithdrawInitiated) else one for one in events]


async def perform_all(world: World, *calls: Call) -> None:
    for call in calls:
        assert isinstance(await perform(world, call), list)


async def read_state(world: World, of: ChannelPayer = PAYER) -> EscrowState:
    state = (await world.chains.fetch_channel(CHAIN, of.channel_id)).state
    return replace(state, withdrawal_initiated_at=int(state.withdrawal_initiated_at > 0))


# ---- The rules.

LOW, HIGH = PAYER.sign_voucher(600), 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
UNCHECKED_V = LOW[:64] + bytes([LOW[64] - 27])
HIGH_S = LOW[:32] + (HIGH - int.from_bytes(LOW[32:64], "big")).to_bytes(32, "big") + bytes([55 - LOW[64]])
E = ContractError

RULES: dict[str, tuple[list[Call], Call, Outcome]] = {
    # Deposits.
    "a deposit counts": ([], deposit(1_000), [deposited(1_000, 1_000)]),
    "a second deposit adds to it": ([deposit(1_000)], deposit(500, n=2), [deposited(500, 1_500)]),
    "another receiver is another channel": ([deposit()], deposit(of=OTHER), [deposited(1_000, 1_000, OTHER)]),
    "an authorisation deposits once": ([deposit()], deposit(), "token"),
    "a wallet has no more than it has": ([], deposit(WALLET_UNITS + 1), "token"),
    "an expired authorisation": ([], deposit(valid_before=1), "token"),
    "an authorisation not yet valid": ([], deposit(valid_after=FAR - 1), "token"),
    "a deposit of nothing": ([], deposit(0), E.ZERO_DEPOSIT),
    "a delay too short": ([], deposit(withdraw_delay=899), E.WITHDRAW_DELAY_OUT_OF_RANGE),
    "a delay too long": ([], deposit(withdraw_delay=2_592_001), E.WITHDRAW_DELAY_OUT_OF_RANGE),
    "no payer": ([], deposit(payer=ZERO_ADDRESS), E.INVALID_CHANNEL),
    "no receiver": ([], deposit(receiver=ZERO_ADDRESS), E.INVALID_CHANNEL),
    "no authorizer": ([], deposit(receiver_authorizer=ZERO_ADDRESS), E.INVALID_CHANNEL),
    "no token": ([], deposit(token=ZERO_ADDRESS), E.INVALID_CHANNEL),
    # Claims.
    "a claim counts": ([deposit()], claim(row(600, 600)), [claimed(600, 600)]),
    "a claim below the ceiling": ([deposit()], claim(row(600, 200)), [claimed(200, 200)]),
    "a ceiling above the balance": ([deposit()], claim(row(9_000, 200)), [claimed(200, 200)]),
    "a claim adds to the one before": ([deposit(), claim(row(600, 600))], claim(row(900, 700)), [claimed(100, 700)]),
    "the same claim again": ([deposit(), claim(row(600, 600))], claim(row(600, 600)), []),
    "a smaller claim": ([deposit(), claim(row(600, 600))], claim(row(600, 599)), []),
    "a smaller claim is not verified": ([deposit(), claim(row(600, 600))], claim(row(600, 1, signature=b"")), []),
    "two channels in one claim": ([deposit(), deposit(of=OTHER)], claim(row(9, 5), row(7, 7, of=OTHER)), [claimed(5, 5), claimed(7, 7, OTHER)]),
    "a channel twice in one claim": ([deposit()], claim(row(9, 5), row(7, 7)), [claimed(5, 5), claimed(2, 7)]),
    "above the ceiling": ([deposit()], claim(row(600, 601)), E.CLAIM_EXCEEDS_CEILING),
    "above the balance": ([deposit()], claim(row(2_000, 1_001)), E.CLAIM_EXCEEDS_BALANCE),
    "without a deposit": ([], claim(row(600, 1)), E.CLAIM_EXCEEDS_BALANCE),
    "a voucher of another channel": ([deposit()], claim(row(600, 600, signature=OTHER.sign_voucher(600))), E.INVALID_SIGNATURE),
    "a voucher of another ceiling": ([deposit()], claim(row(600, 600, signature=PAYER.sign_voucher(599))), E.INVALID_SIGNATURE),
    "a voucher that ends with 0 or 1": ([deposit()], claim(row(600, 600, signature=UNCHECKED_V)), E.ECDSA_INVALID_SIGNATURE),
    "a voucher with a high s": ([deposit()], claim(row(600, 600, signature=HIGH_S)), E.ECDSA_INVALID_S),
    "a voucher cut short": ([deposit()], claim(row(600, 600, signature=LOW[:64])), E.ECDSA_INVALID_LENGTH),
    "a batch of another signer": ([deposit()], claim(row(600, 600), signature=sign_batch([row(600, 600)], STRANGER)), E.INVALID_SIGNATURE),
    "a batch of other rows": ([deposit()], claim(row(600, 600), signature=sign_batch([row(600, 599)])), E.INVALID_SIGNATURE),
    "a batch without rows": ([], claim(), E.EMPTY_BATCH),
    "a batch of two authorizers": ([deposit(), deposit(of=FOREIGN)], claim(row(9, 9), row(9, 9, of=FOREIGN)), E.NOT_RECEIVER_AUTHORIZER),
    "one bad row reverts all": ([deposit(), deposit(of=OTHER)], claim(row(9, 5), row(2_000, 1_001, of=OTHER)), E.CLAIM_EXCEEDS_BALANCE),
    # Settlements.
    "nothing to settle": ([deposit()], settle(), []),
    "claims are settled": ([deposit(), claim(row(600, 600))], settle(), [settled(600)]),
    "claims are settled once": ([deposit(), claim(row(600, 600)), settle()], settle(), []),
    "a receiver gets only his claims": ([deposit(), deposit(of=OTHER), claim(row(9, 5), row(7, 7, of=OTHER))], settle(OTHER), [settled(7, OTHER)]),
    # Refunds.
    "a refund": ([deposit()], refund(400), [refunded(400)]),
    "a refund is capped to what is free": ([deposit(), claim(row(600, 600))], refund(1_000), [refunded(400)]),
    "a refund of nothing is silent": ([deposit(), claim(row(1_000, 1_000))], refund(1), []),
    "and uses its nonce": ([deposit(), claim(row(1_000, 1_000)), refund(1)], refund(1), E.INVALID_REFUND_NONCE),
    "a second refund": ([deposit(), refund(400)], refund(600, nonce=1), [refunded(600)]),
    "a later nonce": ([deposit()], refund(400, nonce=1), E.INVALID_REFUND_NONCE),
    "a refund of zero": ([deposit()], refund(0), E.ZERO_REFUND),
    "a refund that another key signs": ([deposit()], refund(400, of=FOREIGN), E.INVALID_SIGNATURE),
    # Withdrawals.
    "a withdrawal begins": ([deposit()], withdraw(400), [begun(400)]),
    "a withdrawal of claimed money": ([deposit(), claim(row(600, 600))], withdraw(401), E.WITHDRAW_AMOUNT_EXCEEDS_AVAILABLE),
    "a second withdrawal": ([deposit(), withdraw(400)], withdraw(1), E.WITHDRAWAL_ALREADY_PENDING),
    "a withdrawal of nothing": ([deposit()], withdraw(0), E.NOTHING_TO_WITHDRAW),
    "a withdrawal of another wallet": ([deposit()], withdraw(400, "stranger"), E.INVALID_CHANNEL),
    "no withdrawal to finalize": ([deposit()], finalize(), E.WITHDRAWAL_NOT_PENDING),
    "a withdrawal before its delay": ([deposit(), withdraw(400)], finalize(), E.WITHDRAW_DELAY_NOT_ELAPSED),
    "another wallet finalizes": ([deposit(), withdraw(400)], finalize("stranger"), E.NOT_AUTHORIZED_TO_FINALIZE),
    "a refund of as much cancels a withdrawal": ([deposit(), withdraw(400), refund(400)], finalize(), E.WITHDRAWAL_NOT_PENDING),
    # All or nothing.
    "claim and settle for two receivers": (
        [deposit(), deposit(of=OTHER)],
        together(claim(row(9, 5), row(7, 7, of=OTHER)), settle(), settle(OTHER)),
        [claimed(5, 5), claimed(7, 7, OTHER), settled(5), settled(7, OTHER)],
    ),
    "claim and refund": ([deposit()], together(claim(row(600, 600)), refund(400)), [claimed(600, 600), refunded(400)]),
    "a batch with a fault does nothing": ([deposit()], together(claim(row(600, 600)), refund(400, nonce=1)), E.INVALID_REFUND_NONCE),
    "the count goes on after a full refund": ([deposit(), claim(row(600, 600)), refund(400), deposit(500, n=2)], claim(row(900, 900)), [claimed(300, 900)]),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
async def test_rule(world: World, name: str) -> None:
    before, call, outcome = RULES[name]
    await perform_all(world, *before)
    state = await read_state(world)
    assert await perform(world, call) == outcome
    if not isinstance(outcome, list):
        assert await read_state(world) == state


def state_of(balance: int, claimed: int, *, withdrawal: int = 0, nonce: int = 0) -> EscrowState:
    return EscrowState(
        balance=balance,
        total_claimed=claimed,
        withdrawal=withdrawal,
        withdrawal_initiated_at=int(withdrawal > 0),
        refund_nonce=nonce,
    )


@pytest.mark.parametrize(
    ("calls", "state", "totals", "left", "paid"),
    [
        ([], state_of(0, 0), (0, 0), WALLET_UNITS, 0),
        ([deposit()], state_of(1_000, 0), (0, 0), 9_000, 0),
        ([deposit(), claim(row(600, 600))], state_of(1_000, 600), (600, 0), 9_000, 0),
        ([deposit(), claim(row(600, 600)), settle()], state_of(1_000, 600), (600, 600), 9_000, 600),
        ([deposit(), claim(row(600, 600)), refund(1_000)], state_of(600, 600, nonce=1), (600, 0), 9_400, 0),
        (
            [deposit(), withdraw(400), refund(100)],
            state_of(900, 0, withdrawal=300, nonce=1),
            (0, 0),
            9_100,
            0,
        ),
        ([deposit(), withdraw(400), refund(400)], state_of(600, 0, nonce=1), (0, 0), 9_400, 0),
        ([deposit(), refund(1_000)], state_of(0, 0, nonce=1), (0, 0), 10_000, 0),
    ],
)
async def test_the_port_reads_what_the_calls_leave(
    world: World,
    calls: list[Call],
    state: EscrowState,
    totals: tuple[int, int],
    left: int,
    paid: int,
) -> None:
    await perform_all(world, *calls)
    assert await read_state(world) == state
    assert await read_state(world, OTHER) == state_of(0, 0)
    read = await world.simulate(
        contract.encode_receiver_totals(receiver=PAYER.receiver, token=TOKEN), ZERO_ADDRESS
    )
    assert contract.parse_receiver_totals(read.payload) == totals
    assert await world.read_balance(PAYER.address) == left
    assert await world.read_balance(PAYER.receiver) == paid
    assert await world.read_balance(SETTLEMENT_CONTRACT) == WALLET_UNITS - left - paid


async def test_one_read_has_the_sums_of_many_channels_and_receivers(world: World) -> None:
    await perform_all(
        world, deposit(), deposit(300, n=2, of=OTHER), claim(row(600, 600), row(200, 200, of=OTHER)), settle()
    )
    channels = [PAYER.channel_id, FOREIGN.channel_id, OTHER.channel_id]
    read = await world.simulate(contract.encode_channel_sums(channels), ZERO_ADDRESS)
    assert contract.parse_channel_sums(read.payload, 3) == [600, 0, 200]
    receivers = [(PAYER.receiver, TOKEN), (OTHER.receiver, TOKEN), (STRANGER_RECEIVER, TOKEN)]
    read = await world.simulate(contract.encode_receiver_sums(receivers), ZERO_ADDRESS)
    assert contract.parse_receiver_sums(read.payload, 3) == [(600, 600), (200, 0), (0, 0)]


async def test_a_withdrawal_that_wins_takes_what_was_not_claimed(world: World) -> None:
    await perform_all(world, deposit(), withdraw(1_000), claim(row(600, 600)))
    await world.pass_time(850)
    assert await perform(world, finalize()) is E.WITHDRAW_DELAY_NOT_ELAPSED
    await world.pass_time(50)
    assert await perform(world, finalize()) == [withdrawn(400)]
    assert await perform(world, claim(row(900, 900))) is E.CLAIM_EXCEEDS_BALANCE
    assert await read_state(world) == state_of(600, 600)
    assert await world.read_balance(PAYER.address) == WALLET_UNITS - 600


async def test_the_event_of_a_withdrawal_names_its_end(world: World) -> None:
    await perform_all(world, deposit(), withdraw(400))
    facts = await world.chains.fetch_channel(CHAIN, PAYER.channel_id)
    assert facts.state.withdrawal_initiated_at == facts.head_time


async def test_a_balance_is_confirmed_when_it_is_deep_enough(world: World) -> None:
    async def read(confirmations: int) -> tuple[int, int]:
        facts = await world.chains.fetch_channel(CHAIN, PAYER.channel_id, confirmations=confirmations)
        return facts.state.balance, facts.confirmed_balance

    await perform_all(world, deposit(), deposit(500, n=2))
    assert [await read(depth) for depth in (1, 2, 3, 99)] == [
        (1_500, 1_500),
        (1_500, 1_000),
        (1_500, 0),
        (1_500, 0),
    ]
    await perform_all(world, refund(900))
    assert await read(2) == (600, 600)


async def test_blocks_name_the_channels_that_changed(world: World) -> None:
    async def read(from_block: int) -> set[ChannelId]:
        head = (await world.chains.fetch_tip(CHAIN)).head_number
        return set(await world.chains.fetch_changed_channels(CHAIN, from_block=from_block, to_block=head))

    async def read_after(*calls: Call) -> set[ChannelId]:
        head = (await world.chains.fetch_tip(CHAIN)).head_number
        await perform_all(world, *calls)
        return await read(head + 1)

    assert await read(0) == set()
    assert await read_after(deposit()) == {PAYER.channel_id}
    assert await read_after(claim(row(600, 600))) == {PAYER.channel_id}
    assert await read_after(settle()) == set()
    assert await read_after(withdraw(100), deposit(of=OTHER)) == {PAYER.channel_id, OTHER.channel_id}
    assert await read_after(refund(200)) == {PAYER.channel_id}
    head = (await world.chains.fetch_tip(CHAIN)).head_number
    with pytest.raises(ChainUnavailable):
        await world.chains.fetch_changed_channels(CHAIN, from_block=0, to_block=head + 1)


async def test_one_read_tells_whether_a_deposit_would_pass(world: World) -> None:
    """The read of an authorisation before its settlement, with the settlement contract in the place of the token."""
    call = deposit()

    async def read() -> tuple[int, bool, bool, bool]:
        facts = await world.chains.fetch_authorization(
            CHAIN,
            token=TOKEN,
            payer=PAYER.address,
            nonce=replace(PAYER, deposit_salt=(1).to_bytes(32, "big")).deposit_nonce,
            sender=Address.parse(ACCOUNTS["gas"].address),
            calldata=call.calldata,
            gas=GAS,
            to=SETTLEMENT_CONTRACT,
        )
        return facts.balance, facts.is_used, facts.simulation.reverted, facts.gas_estimate is None

    assert await read() == (WALLET_UNITS, False, False, False)
    await perform_all(world, call)
    assert await read() == (WALLET_UNITS - 1_000, True, True, True)


async def test_both_contracts_are_checked(world: World) -> None:
    assert await has_channel_contracts(world.chains, CHAIN, deadline_s=20.0)


@pytest.mark.parametrize("missing", [0, 1], ids=["settlement contract", "collector"])
@pytest.mark.parametrize("code", [b"", b"\x60\x00\x60\x00\xfd"], ids=["no code", "other code"])
@pytest.mark.live
async def test_a_missing_contract_is_seen(missing: int, code: bytes) -> None:
    async with (
        run_anvil(chain_id=CHAIN) as anvil,
        aiohttp.ClientSession() as session,
        RpcReader(
            {CHAIN: ChainEndpoints(urls=(anvil.rpc_url,))}, limits=Limits(rpc_deadline_s=20.0)
        ) as reader,
    ):
        driver = ChainDriver(session, anvil.rpc_url, CHAIN)
        for position, one in enumerate(load_channel_contracts()):
            await driver.set_code(one.address, code if position == missing else one.artifact.runtime_code)
        assert not await has_channel_contracts(reader, CHAIN, deadline_s=20.0)
        if missing == 0:
            with pytest.raises(ChainUnavailable):
                await reader.fetch_channel(CHAIN, PAYER.channel_id)


async def test_the_chain_in_memory_can_have_no_contracts() -> None:
    chain = MemoryChain(CHAIN)
    chain.remove_channel_contracts(CHAIN)
    assert not await has_channel_contracts(chain, CHAIN, deadline_s=20.0)
    with pytest.raises(ChainUnavailable):
        await chain.fetch_channel(CHAIN, PAYER.channel_id)
