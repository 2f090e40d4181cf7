"""Settlement with a real node and a real ledger: concurrency, crashes, front-running, reorganisations."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway_process import poll
from tests.kit.payer import UndeployedSigner
from tests.kit.settlement import NodeCall, NodeSettlement
from tests.kit.undeployed_wallets import CONTRACTS, install_multicall, plan_owned_wallet
from tests.kit.waits import until
from tollway.chain.port import ChainFacts
from tollway.chain.signer import GasKey
from tollway.ids import Address
from tollway.ledger.ledger import Claimed
from tollway.ledger.records import CallState, PaymentState
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.payments.settlement_recovery import EXPIRY_SLACK_S
from tollway.payments.transactions import encode_transfer_call
from tollway.sandbox.chain import ChainDriver, Playground, load_artifact

PATIENT = replace(DEFAULT_LIMITS, rpc_deadline_s=20.0, settle_wait_s=60.0)
HASTY = replace(PATIENT, settle_wait_s=0.3)
PRICE = 10_000


class Bench:
    """Settlements over one database file and one node, and the state of the token."""

    def __init__(self, chain: ChainDriver, playground: Playground, path: Path) -> None:
        self.chain = chain
        self.playground = playground
        self.path = path
        self.gas_key = GasKey.parse(playground.account("gas").key.hex())
        self.payee = Address(b"\x71" * 20)

    def desk(self, **given: Any) -> NodeSettlement:
        fields = {"limits": PATIENT, "gas_keys": (self.gas_key,), **given}
        return NodeSettlement(
            rpc_url=self.chain.rpc_url, asset=self.playground.usdc, path=self.path, **fields
        )

    async def claim(self, desk: NodeSettlement, **given: Any) -> NodeCall:
        return await desk.claim(self.playground.account("caller").key, self.payee, **given)

    async def open_undeployed(self) -> tuple[Callable[..., NodeSettlement], dict[str, Any]]:
        """A funded wallet of the caller that is not deployed: desks that allow its factory, and what a claim of it needs."""
        gas, caller = self.playground.account("stranger").key, self.playground.account("caller")
        await install_multicall(self.chain, key=gas)
        artifact = load_artifact(CONTRACTS / "OwnedWalletFactory.json")
        factory = await self.chain.deploy(artifact, key=gas)
        wallet = await plan_owned_wallet(self.chain, factory, caller.address)
        minted = await self.chain.transact(self.playground.token, "mint", wallet.address, 10**9, key=gas)
        assert (await self.chain.wait_receipt(minted)).succeeded
        signer = partial(
            UndeployedSigner, wallet=wallet.address, factory=wallet.factory, calldata=wallet.calldata
        )
        return partial(self.desk, wallet_factories=(wallet.factory,)), {"make_signer": signer}

    async def received(self) -> int:
        return int(await self.chain.call(self.playground.token, "balanceOf", str(self.payee)))

    async def land(self, call: NodeCall) -> None:
        """Another account sends the caller's authorisation."""
        key = self.playground.account("stranger").key
        token = self.playground.token.address
        raw, tx_hash = await self.chain.sign(
            key=key, to=token, payload=encode_transfer_call(call.authorization)
        )
        await self.chain.rpc("eth_sendRawTransaction", "0x" + raw.hex())
        assert (await self.chain.wait_receipt(tx_hash)).succeeded


@pytest.fixture
def bench(chain: ChainDriver, playground: Playground, tmp_path: Path) -> Bench:
    return Bench(chain, playground, tmp_path / "books.sqlite3")


@pytest.fixture
async def held(chain: ChainDriver) -> AsyncIterator[ChainDriver]:
    """Stops automatic mining."""
    await chain.rpc("evm_setAutomine", False)
    yield chain
    await chain.rpc("evm_setAutomine", True)


async def test_fifty_at_once_on_one_key_are_fifty_transfers(bench: Bench) -> None:
    async with bench.desk() as desk:
        calls = [await bench.claim(desk) for _ in range(50)]
        outcomes = await asyncio.gather(*map(desk.settle, calls))
        assert all(isinstance(outcome, Settled) for outcome in outcomes)
        assert len({outcome.transfer.tx_hash for outcome in outcomes if isinstance(outcome, Settled)}) == 50
        assert (await desk.ledger.audit()).is_balanced
    assert await bench.received() == 50 * PRICE


async def test_two_gateways_on_one_key_at_once_leave_no_hole(bench: Bench) -> None:
    async with bench.desk() as one, bench.desk() as two:
        desks = [one, two] * 10
        calls = [await bench.claim(desk) for desk in desks]
        outcomes = await asyncio.gather(*(d.settle(c) for d, c in zip(desks, calls, strict=True)))
        assert [outcome for outcome in outcomes if not isinstance(outcome, Settled)] == []
    assert await bench.received() == 20 * PRICE


async def test_what_the_token_refuses_is_never_sent(bench: Bench) -> None:
    async with bench.desk() as desk:
        call = await bench.claim(desk, base_units=10**15)
        assert isinstance(await desk.settle(call), NotSettled)
        assert await desk.read_state(call) is CallState.RELEASED
        forged = NodeCall(replace(call.authorization, nonce=b"\x01" * 32), call.claim)
        forged.claim = replace(call.claim, call_id="call_forged", authorization=forged.authorization)  # type: ignore[arg-type]  # an id
        forged.close = replace(call.close, call_id=forged.claim.call_id)
        assert isinstance(await desk.ledger.claim(forged.claim), Claimed)
        assert isinstance(await desk.settle(forged), NotSettled)
    assert await bench.received() == 0


async def test_a_front_run_before_the_first_check_is_paid(bench: Bench) -> None:
    async with bench.desk() as desk:
        call = await bench.claim(desk)
        await bench.land(call)
        assert isinstance(await desk.settle(call), Settled)
        assert await desk.ledger.attempts_of(call.claim.call_id) == ()
    assert await bench.received() == PRICE


async def test_front_run_in_the_same_block_is_paid(bench: Bench, held: ChainDriver) -> None:
    async with bench.desk() as desk:
        call = await bench.claim(desk)
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(desk.settle(call))
            await until(lambda: desk.ledger.attempts_of(call.claim.call_id))
            await _send_dearly(bench, call)
            await _wait_pending(held, 2)
            await held.mine(1)
        outcome = settling.result()
        assert isinstance(outcome, Settled)
        (attempt,) = await desk.ledger.attempts_of(call.claim.call_id)
        assert outcome.transfer.tx_hash != attempt.tx_hash
        ours = await desk.chains.fetch_facts(desk.asset.chain_id, attempt.tx_hash)
        assert isinstance(ours, ChainFacts)
        assert not ours.succeeded
    assert await bench.received() == PRICE


STEPS: list[tuple[str, Callable[[NodeSettlement], tuple[object, str]]]] = [
    ("before the simulation", lambda desk: (desk.chains, "fetch_authorization")),
    ("after storing", lambda desk: (desk.ledger, "settle")),
    ("before broadcast", lambda desk: (desk.chains, "send_transaction")),
    ("after broadcast", lambda desk: (desk.chains, "send_transaction")),
    ("at the receipt", lambda desk: (desk.chains, "fetch_receipts")),
]


@pytest.mark.parametrize("is_deployed", [True, False], ids=["with a key", "not deployed"])
@pytest.mark.parametrize(("step", "find"), STEPS, ids=[step for step, _ in STEPS])
async def test_an_end_at_any_step_is_one_transfer_and_one_outcome(
    bench: Bench, step: str, find: Callable[[NodeSettlement], tuple[object, str]], is_deployed: bool
) -> None:
    """Another gateway recovers the calls of the first one, which was stopped. A wallet that is not deployed pays by the wrapped
    signature in the ledger alone."""
    desk: Callable[..., NodeSettlement] = bench.desk
    given: dict[str, Any] = {}
    if not is_deployed:
        desk, given = await bench.open_undeployed()
    async with desk() as first:
        call = await bench.claim(first, **given)
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(first.settle(call))
            _end_at(settling, *find(first), is_before=step.startswith("before"))
        assert settling.cancelled()
    before = await bench.received()
    async with desk(skew_s=120) as second:
        await second.ledger.recover(now_ms=second.read_clock())
        state = await second.read_state(call)
        if step == "before the simulation":
            assert (state, before) == (CallState.UNKNOWN, 0)
            return
        assert state is CallState.SETTLING
        for _ in range(2):
            await second.settlement_recovery.run_once()
        assert await second.read_state(call) is CallState.CONSUMED
        (attempt,) = await second.ledger.attempts_of(call.claim.call_id)
        (payment,) = await second.ledger.find_payments(attempt.tx_hash)
        assert payment.value_units == payment.taken_units == PRICE
        assert (await second.ledger.audit()).is_balanced
    assert await bench.received() == PRICE


async def test_what_waits_too_long_is_offered_more(bench: Bench, held: ChainDriver) -> None:
    async with bench.desk(limits=HASTY) as desk:
        call = await bench.claim(desk)
        assert await desk.settle(call) == Undecided()
        assert await desk.ledger.mark_orphaned(call.claim.call_id, epoch=1)
        desk.skew_s = HASTY.fee_bump_after_s + 1
        await desk.settlement_recovery.run_once()
        first, second = await desk.ledger.attempts_of(call.claim.call_id)
        assert first.nonce == second.nonce
        await held.mine(1)
        await desk.settlement_recovery.run_once()
        assert await desk.read_state(call) is CallState.CONSUMED
        (payment,) = await desk.ledger.find_payments(second.tx_hash)
        assert payment.value_units == PRICE
    assert await bench.received() == PRICE


async def test_a_reorganisation_takes_a_settlement_back_and_the_sender_lands_it_again(bench: Bench) -> None:
    async with bench.desk() as desk:
        call = await bench.claim(desk)
        outcome = await desk.settle(call)
        assert isinstance(outcome, Settled)
        await bench.chain.reorg(1)
        assert await bench.received() == 0
        desk.skew_s = 60  # the replacer waits this long for a transaction to arrive
        await desk.settlement_recovery.run_once()
        await bench.chain.wait_receipt(outcome.transfer.tx_hash)
        (payment,) = await desk.ledger.find_payments(outcome.transfer.tx_hash)
        assert payment.state is not PaymentState.GONE
    assert await bench.received() == PRICE


async def test_an_unused_authorisation_is_released_once_it_is_over(bench: Bench, held: ChainDriver) -> None:
    head = await held.rpc("eth_getBlockByNumber", "latest", False)
    valid_before = int(head["timestamp"], 16) + 300
    async with bench.desk(limits=HASTY, gas_keys=()) as desk:
        call = await bench.claim(desk, valid_before=valid_before)
        assert await desk.settle(call) == Undecided()  # there is no key to sign it
        assert await desk.ledger.mark_orphaned(call.claim.call_id, epoch=1)
        for _ in range(2):
            await desk.settlement_recovery.run_once()
        assert await desk.read_state(call) is CallState.SETTLING
        await held.rpc("evm_setNextBlockTimestamp", valid_before + EXPIRY_SLACK_S)
        await held.mine(1)
        for _ in range(2):
            await desk.settlement_recovery.run_once()
        assert await desk.read_state(call) is CallState.RELEASED
    assert await bench.received() == 0


def _end_at(settling: "asyncio.Task[Any]", room: object, method: str, *, is_before: bool) -> None:
    """Cancels the settling task when it enters that method, or right after that method."""
    ask = getattr(room, method)

    async def end(*arguments: Any, **options: Any) -> Any:
        if is_before:
            settling.cancel()
            await asyncio.sleep(0)
        answer = await ask(*arguments, **options)
        settling.cancel()
        return answer

    setattr(room, method, end)


async def _send_dearly(bench: Bench, call: NodeCall) -> None:
    """Sends the same authorisation from another account with a high fee, so that it comes first in its block."""
    stranger = GasKey.parse(bench.playground.account("stranger").key.hex())
    count = await bench.chain.rpc("eth_getTransactionCount", str(stranger.address), "latest")
    signed = stranger.sign(
        chain_id=bench.chain.chain_id,
        nonce=int(count, 16),
        to=call.authorization.token,
        calldata=encode_transfer_call(call.authorization),
        gas=200_000,
        max_fee_wei=500 * 10**9,
        tip_wei=400 * 10**9,
    )
    await bench.chain.rpc("eth_sendRawTransaction", "0x" + signed.raw.hex())


async def _wait_pending(chain: ChainDriver, count: int) -> None:
    async def is_there() -> bool:
        return int((await chain.rpc("txpool_status"))["pending"], 16) >= count

    await poll(is_there, what=f"{count} transactions in the pool")
