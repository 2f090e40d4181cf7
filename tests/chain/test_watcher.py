"""Payments that can still leave their chain: taken away only by what a node says twice, and brought back by the verdict."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tollway.chain.reader import Trust
from tollway.chain.rules import ChainRules
from tollway.chain.watcher import LOOKS_UNTIL_GONE, Watcher
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.identifiers import Address, ChainId, TxHash, keccak256
from tollway.ledger.authorization import Authorization, SettledTransfer
from tollway.ledger.book import Claimed
from tollway.ledger.call import CallState, NewPayment, Payment, PaymentState
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import Asset
from tollway.testing.book_samples import attempt_of, authorization_of, authorized_claim, claim_on, close_of
from tollway.testing.memory_book import MemoryBook
from tollway.testing.memory_chain import MemoryChain, Transaction, authorization_log, transfer_log

CHAIN, OTHER, UNKNOWN = ChainId(84532), ChainId(10), ChainId(5)
PAYER, PAYEE, TOKEN = (Address(bytes([n]) * 20) for n in (1, 2, 3))


def rules_of(chain_id: ChainId) -> ChainRules:
    usdc = Asset(chain_id=chain_id, token=TOKEN, symbol="USDC", decimals=6)
    return ChainRules(chain_id=chain_id, kind="test", confirmations=((0, 2),), assets=(usdc,))


class Watch:
    """A watcher over scripted chains. Finality follows three blocks behind the head."""

    def __init__(self, kind: type[MemoryChain] = MemoryChain, **limits: Any) -> None:
        self.now_s = 1_800_000_000
        self.chain = kind(CHAIN, OTHER, finality_depth=3)
        self.book = MemoryBook(now_ms=self.now_ms)
        self.gone: list[Payment] = []
        self.watcher = self.make(**limits)

    def make(self, sleep: Any = asyncio.sleep, *, rules: ChainRules | None = None, **limits: Any) -> Watcher:
        return Watcher(
            self.book,
            self.chain,
            {CHAIN: rules or rules_of(CHAIN), OTHER: rules_of(OTHER)},
            limits=replace(DEFAULT_LIMITS, **limits) if limits else Limits(),
            now_ms=self.now_ms,
            on_gone=self.gone.append,
            sleep=sleep,
        )

    def now_ms(self) -> int:
        return self.now_s * 1000

    def transaction(self, name: str, units: int = 10, **fields: Any) -> Transaction:
        logs = (transfer_log(TOKEN, PAYER, PAYEE, units),)
        tx_hash = TxHash(keccak256(name.encode()))
        return Transaction(
            **{"tx_hash": tx_hash, "sender": PAYER, "recipient": TOKEN, "logs": logs, **fields}
        )

    async def record(self, name: str = "tx", chain_id: ChainId = CHAIN, units: int = 10) -> Payment:
        """Mined, one block deep, and in the books."""
        transaction = self.transaction(name, units)
        number, block_hash, block_time = 1, b"\x01" * 32, self.now_s
        if chain_id in self.chain.chain_ids:
            block = self.chain.mine(chain_id, transaction)
            number, block_hash, block_time = block.number, block.block_hash, block.time
        new = NewPayment(
            chain_id=chain_id,
            tx_hash=transaction.tx_hash,
            asset=rules_of(chain_id).assets[0].key,
            payer=PAYER,
            payee=PAYEE,
            value_units=units,
            block_number=number,
            block_hash=block_hash,
            block_time=block_time,
            is_final=False,
        )
        (payment,) = await self.book.record_payments((new,), now_ms=self.now_ms())
        return payment

    async def check(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += 10
            await self.watcher.check_once()

    async def read(self, payment: Payment) -> Payment:
        (found,) = [p for p in await self.book.find_payments(payment.tx_hash) if p.id == payment.id]
        return found

    async def state(self, payment: Payment) -> PaymentState:
        return (await self.read(payment)).state

    async def consume(self, payment: Payment, units: int) -> None:
        claim = claim_on(payment, units)
        claimed = await self.book.claim(claim)
        assert isinstance(claimed, Claimed)
        await self.book.close(close_of(claim, CallState.CONSUMED))

    def settlement(self, authorization: Authorization, name: str = "settled", **fields: Any) -> Transaction:
        used = authorization_log(TOKEN, PAYER, authorization.nonce)
        logs = (used, transfer_log(TOKEN, PAYER, PAYEE, authorization.base_units))
        return self.transaction(name, **{"logs": logs, "sender": PAYEE, **fields})

    async def settle(self, units: int = 10, **fields: Any) -> tuple[Payment, Authorization]:
        """A call paid by an authorisation that was settled one block deep."""
        authorization = authorization_of(units, token=TOKEN, payer=PAYER, payee=PAYEE)
        claim = authorized_claim(authorization, **fields)
        assert isinstance(await self.book.claim(claim), Claimed)
        closing = close_of(claim, CallState.SETTLING)
        await self.book.settle(closing, attempt=attempt_of(claim), digest=None)
        transaction = self.settlement(authorization)
        block = self.chain.mine(CHAIN, transaction)
        transfer = SettledTransfer(
            tx_hash=transaction.tx_hash,
            block_number=block.number,
            block_hash=block.block_hash,
            block_time=block.time,
        )
        await self.book.conclude(
            claim.call_id, epoch=1, transfer=transfer, is_adrift=False, now_ms=self.now_ms()
        )
        (payment,) = await self.book.find_payments(transaction.tx_hash)
        return payment, authorization


@pytest.fixture
def watch() -> Watch:
    return Watch()


async def test_a_settled_payment_becomes_final_like_any_other(watch) -> None:
    payment, _ = await watch.settle()
    assert payment.is_authorized
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert await watch.state(payment) is PaymentState.FINAL


async def test_a_settled_payment_that_leaves_the_chain_is_a_debt_until_it_is_mined_again(watch) -> None:
    payment, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    await watch.check(2)
    assert await watch.state(payment) is PaymentState.GONE
    assert [debt.units for debt in await watch.book.debts(PAYER)] == [10]
    watch.chain.mine(CHAIN, watch.settlement(authorization))
    watch.chain.bury(CHAIN, 1)
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units, found.taken_units) == (PaymentState.UNFINAL, 10, 10)
    assert await watch.book.debts(PAYER) == ()
    assert (await watch.book.audit()).is_balanced


def land(watch: Watch, authorization: Authorization, payee: Address = PAYEE) -> TxHash:
    """The authorisation makes its transfer in a transaction that the books do not know."""
    return watch.chain.front_run(
        CHAIN,
        TOKEN,
        payer=PAYER,
        payee=payee,
        base_units=authorization.base_units,
        nonce=authorization.nonce,
    )


async def test_money_that_moved_again_in_another_transaction_is_never_a_debt(watch) -> None:
    """Ours was replaced at a higher price, or somebody was faster: it was paid once, and is owed by nobody."""
    payment, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    elsewhere = land(watch, authorization)
    await watch.check(2)
    assert [gone.id for gone in watch.gone] == [payment.id]
    for _ in range(2):
        await watch.check()
        assert await watch.book.debts(PAYER) == ()
    (there,) = await watch.book.find_payments(elsewhere)
    assert (there.state, there.value_units, there.taken_units) == (PaymentState.UNFINAL, 10, 10)
    held = await watch.book.find_authorized(authorization.key)
    assert (held.state, held.transfer) == (CallState.CONSUMED, elsewhere)
    assert (await watch.read(payment)).value_units == 0
    watch.chain.bury(CHAIN, 3)
    await watch.check(2)
    assert await watch.state(there) is PaymentState.FINAL
    assert (await watch.book.audit()).is_balanced


async def test_a_transaction_that_came_too_late_and_failed_is_no_debt_either(watch) -> None:
    _, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    land(watch, authorization)
    watch.chain.mine(CHAIN, watch.settlement(authorization, succeeded=False, logs=()))
    await watch.check(4)
    assert await watch.book.debts(PAYER) == ()


async def test_a_debt_ends_when_the_money_lies_deep_enough_in_another_transaction(watch) -> None:
    payment, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    await watch.check(2)
    assert [debt.units for debt in await watch.book.debts(PAYER)] == [10]
    elsewhere = land(watch, authorization)
    await watch.check()
    assert await watch.state(payment) is PaymentState.GONE
    assert await watch.book.debts(PAYER) != ()
    watch.chain.bury(CHAIN, 1)
    await watch.check()
    held = await watch.book.find_authorized(authorization.key)
    assert (held.state, held.transfer) == (CallState.CONSUMED, elsewhere)
    assert await watch.book.debts(PAYER) == ()
    assert (await watch.book.audit()).is_balanced


async def test_money_that_goes_back_and_forth_is_followed(watch) -> None:
    payment, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    land(watch, authorization)
    await watch.check(4)
    watch.chain.reorg(CHAIN, 1, watch.settlement(authorization))
    await watch.check(4)
    found = await watch.read(payment)
    assert (found.state, found.value_units, found.taken_units) == (PaymentState.UNFINAL, 10, 10)
    assert await watch.book.debts(PAYER) == ()
    assert (await watch.book.audit()).is_balanced


async def test_an_authorisation_that_ended_otherwise_leaves_the_debt(watch) -> None:
    _, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    land(watch, authorization, payee=Address(b"\x09" * 20))
    await watch.check(4)
    assert [debt.units for debt in await watch.book.debts(PAYER)] == [10]


class Logless(MemoryChain):
    """Nodes that tell of transactions, and of no logs."""

    async def find_authorization_use(self, chain_id: ChainId, **_: Any) -> TxHash | None:
        raise ChainUnavailable("no logs here")


async def test_nodes_that_tell_no_logs_put_a_debt_off_and_not_away() -> None:
    watch = Watch(Logless)
    payment, _ = await watch.settle()
    other = await watch.record("other")
    watch.chain.reorg(CHAIN, 2, watch.transaction("other"))
    await watch.check(LOOKS_UNTIL_GONE - 1)
    assert await watch.state(payment) is PaymentState.UNFINAL
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert await watch.state(payment) is PaymentState.GONE
    assert await watch.state(other) is PaymentState.FINAL
    await watch.check()
    assert [debt.units for debt in await watch.book.debts(PAYER)] == [10]


async def test_nobody_looks_for_the_authorisation_of_a_transfer_payment(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1)
    await watch.check(3)
    assert await watch.state(payment) is PaymentState.GONE
    assert watch.chain.asked["find_authorization_use", CHAIN] == 0


async def test_a_lower_block_than_that_of_the_claim_is_looked_at_too(watch) -> None:
    """The claim was made at a head that has gone with the settlement."""
    watch.chain.bury(CHAIN, 5)
    _, authorization = await watch.settle(block_number=watch.chain.head(CHAIN).number)
    watch.chain.reorg(CHAIN, 4, watch.settlement(authorization, "elsewhere"))
    await watch.check(4)
    assert await watch.book.debts(PAYER) == ()


async def test_a_settled_payment_does_not_stand_by_a_transfer_that_nobody_authorised(watch) -> None:
    payment, _ = await watch.settle()
    watch.chain.reorg(CHAIN, 1, watch.transaction("settled"))
    await watch.check(2)
    assert await watch.state(payment) is PaymentState.GONE


async def test_a_transfer_payment_does_not_stand_by_an_authorised_one(watch) -> None:
    payment = await watch.record("tx")
    logs = (authorization_log(TOKEN, PAYER), transfer_log(TOKEN, PAYER, PAYEE, 10))
    watch.chain.reorg(CHAIN, 1, watch.transaction("tx", logs=logs))
    await watch.check(2)
    assert await watch.state(payment) is PaymentState.GONE


async def test_a_payment_becomes_final_when_its_block_is(watch) -> None:
    payment = await watch.record()
    watch.chain.bury(CHAIN, 2)
    await watch.check(3)
    assert await watch.state(payment) is PaymentState.UNFINAL
    watch.chain.bury(CHAIN, 1)
    await watch.check()
    assert await watch.state(payment) is PaymentState.FINAL
    asked = watch.chain.questions
    await watch.check()
    assert watch.chain.questions == asked  # final payments are left alone


async def test_gone_is_what_the_chain_says_twice(watch) -> None:
    payment = await watch.record()
    await watch.consume(payment, 4)
    watch.chain.reorg(CHAIN, 1)
    await watch.check()
    assert await watch.state(payment) is PaymentState.UNFINAL
    assert watch.gone == []
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units) == (PaymentState.GONE, 0)
    assert [gone.id for gone in watch.gone] == [payment.id]
    assert [debt.units for debt in await watch.book.debts(PAYER)] == [4]
    await watch.check(3)
    assert len(watch.gone) == 1


async def test_two_watchers_at_once_make_one_debt(watch) -> None:
    """A leader that was stalled goes on for a moment beside its successor."""
    payment = await watch.record()
    await watch.consume(payment, 7)
    successor = watch.make()
    watch.chain.reorg(CHAIN, 1)
    for _ in range(3):
        await asyncio.gather(watch.watcher.check_once(), successor.check_once())
    assert await watch.state(payment) is PaymentState.GONE
    assert [debt.units for debt in await watch.book.debts(PAYER)] == [7]
    assert (await watch.book.audit()).is_balanced


async def test_back_in_the_pool_is_not_mined(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1)
    watch.chain.pend(CHAIN, watch.transaction("tx"))
    await watch.check(2)
    assert await watch.state(payment) is PaymentState.GONE


async def test_the_two_must_follow_each_other(watch) -> None:
    payment = await watch.record()
    for _ in range(3):
        watch.chain.reorg(CHAIN, 1)
        await watch.check()
        watch.chain.mine(CHAIN, watch.transaction("tx"))
        await watch.check()
    assert await watch.state(payment) is PaymentState.UNFINAL


async def test_mined_in_another_block_is_noted_silently(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1)
    block = watch.chain.mine(CHAIN, watch.transaction("tx"))
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units) == (PaymentState.UNFINAL, 10)
    assert (found.block_number, found.block_hash) == (block.number, block.block_hash)
    assert watch.gone == []


@pytest.mark.parametrize(
    "changed",
    [
        {"succeeded": False},
        {"logs": ()},
        {"logs": (transfer_log(TOKEN, PAYER, PAYEE, 9),)},
        {"logs": (transfer_log(PAYEE, PAYER, PAYEE, 10),)},
        {"logs": (transfer_log(TOKEN, PAYER, PAYEE, 10), transfer_log(TOKEN, PAYEE, PAYER, 10))},
    ],
    ids=["failed", "moved nothing", "moved less", "another token", "returned"],
)
async def test_mined_again_it_has_to_pay_again(watch, changed) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1, watch.transaction("tx", **changed))
    await watch.check()
    assert await watch.state(payment) is PaymentState.UNFINAL
    await watch.check()
    assert await watch.state(payment) is PaymentState.GONE
    assert len(watch.gone) == 1


async def test_what_a_node_had_kept_back_is_added(watch) -> None:
    """It told of some of the logs when the payment was shown; more nodes, or the same one later, tell of all."""
    payment = await watch.record()
    more = (transfer_log(TOKEN, PAYER, PAYEE, 10), transfer_log(TOKEN, PAYER, PAYEE, 15))
    watch.chain.lies[payment.tx_hash] = lambda facts: replace(facts, logs=more)
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units) == (PaymentState.UNFINAL, 10)  # its block is not deep enough yet
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units) == (PaymentState.FINAL, 25)


async def test_more_in_a_transaction_that_settled_a_call_is_nothing_new(watch) -> None:
    payment, _ = await watch.settle()
    watch.chain.lies[payment.tx_hash] = lambda facts: replace(
        facts, logs=(*facts.logs, transfer_log(TOKEN, PAYER, PAYEE, 15))
    )
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units) == (PaymentState.FINAL, 10)


async def test_a_displaced_block_says_nothing(watch) -> None:
    payment = await watch.record()
    watch.chain.lies[payment.tx_hash] = lambda facts: replace(
        facts, canonical_hash=bytes(32), succeeded=False
    )
    await watch.check(5)
    assert await watch.read(payment) == payment


async def test_a_silent_chain_changes_nothing(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1)
    await watch.check()
    watch.chain.take_away(CHAIN)
    await watch.check(5)
    assert await watch.read(payment) == payment
    assert watch.gone == []


async def test_a_gone_payment_comes_back_when_it_lies_deep_enough(watch) -> None:
    payment = await watch.record()
    await watch.consume(payment, 4)
    watch.chain.reorg(CHAIN, 1)
    await watch.check(2)
    watch.chain.mine(CHAIN, watch.transaction("tx"))
    await watch.check()
    assert await watch.state(payment) is PaymentState.GONE
    watch.chain.bury(CHAIN, 1)
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units, found.taken_units) == (PaymentState.UNFINAL, 10, 4)
    assert await watch.book.debts(PAYER) == ()
    assert (await watch.book.audit()).is_balanced


async def test_a_gone_payment_comes_back_with_what_it_is_worth_now(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1, watch.transaction("tx", 7))
    watch.chain.bury(CHAIN, 1)
    await watch.check(3)
    found = await watch.read(payment)
    assert (found.state, found.value_units) == (PaymentState.UNFINAL, 7)


async def test_a_gone_payment_that_fails_again_stays_away(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1, watch.transaction("tx", succeeded=False))
    watch.chain.bury(CHAIN, 5)
    await watch.check(6)
    assert await watch.state(payment) is PaymentState.GONE
    assert len(watch.gone) == 1


async def test_one_batch_at_a_time_and_all_have_their_turn(watch) -> None:
    watch.watcher = watch.make(watch_batch_max=2)
    payments = [await watch.record(f"tx{number}") for number in range(5)]
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert watch.chain.questions == 2
    await watch.check(2)
    assert [await watch.state(payment) for payment in payments] == [PaymentState.FINAL] * 5


async def test_a_dead_chain_is_asked_a_little_and_holds_nobody_up(watch) -> None:
    watch.watcher = watch.make(watch_batch_max=4, watch_in_flight_max=1)
    for number in range(8):
        await watch.record(f"dead{number}", OTHER)
    await watch.record("unknown", UNKNOWN)
    payment = await watch.record("alive")
    watch.chain.bury(CHAIN, 3)
    watch.chain.take_away(OTHER)
    await watch.check(3)
    assert await watch.state(payment) is PaymentState.FINAL
    assert watch.chain.asked["fetch_facts", OTHER] == 3  # one for each batch that holds any
    assert watch.chain.asked["fetch_facts", UNKNOWN] == 0


async def test_nodes_that_disagree_on_one_payment_hold_up_no_other(watch) -> None:
    watch.watcher = watch.make(watch_in_flight_max=1)
    disputed, other = await watch.record("disputed"), await watch.record("other")
    watch.chain.disputed.add(disputed.tx_hash)
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert await watch.state(other) is PaymentState.FINAL
    assert await watch.state(disputed) is PaymentState.UNFINAL
    watch.chain.disputed.clear()
    await watch.check()
    assert await watch.state(disputed) is PaymentState.FINAL


async def test_one_bad_payment_does_not_stop_the_others(watch) -> None:
    bad, good = await watch.record("bad"), await watch.record("good")

    def lie(facts: Any) -> Any:
        raise ZeroDivisionError

    watch.chain.lies[bad.tx_hash] = lie
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert await watch.state(good) is PaymentState.FINAL
    assert await watch.state(bad) is PaymentState.UNFINAL


async def test_no_more_than_a_few_questions_are_in_flight(watch) -> None:
    watch.watcher = watch.make(watch_in_flight_max=3)
    for number in range(9):
        await watch.record(f"tx{number}")
    watch.chain.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(watch.check())
        for _ in range(50):
            await asyncio.sleep(0)
        assert watch.chain.questions == 3
        watch.chain.gate.set()
    assert watch.chain.questions == 9


async def test_books_that_are_away_are_named(watch) -> None:
    watch.book.away = True
    with pytest.raises(StorageUnavailable):
        await watch.check()


async def test_it_runs_through_failures_until_it_is_cancelled(watch) -> None:
    payment = await watch.record()
    watch.chain.bury(CHAIN, 3)
    slept: list[float] = []
    is_final = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        watch.book.away = len(slept) < 3
        if not watch.book.away and await watch.state(payment) is PaymentState.FINAL:
            is_final.set()
        await asyncio.sleep(0)

    watch.book.away = True
    watcher = watch.make(sleep)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        await is_final.wait()
        task.cancel()
    assert task.cancelled()
    assert set(slept) == {DEFAULT_LIMITS.watch_interval_s}
    assert len(slept) >= 3


async def test_two_checks_with_another_leader_between_them_are_not_in_a_row(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1)
    checked = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        checked.release()
        await asyncio.sleep(0 if is_second else 3600)

    watcher, is_second = watch.make(sleep), False
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for _ in range(3):  # three times it leads for one check
            task = group.create_task(watcher.run())
            await checked.acquire()
            task.cancel()
            await asyncio.wait([task])
        assert await watch.state(payment) is PaymentState.UNFINAL
        is_second = True
        task = group.create_task(watcher.run())
        await checked.acquire()
        await checked.acquire()
        task.cancel()
    assert await watch.state(payment) is PaymentState.GONE


# ---- One node's word, and that of several: one is enough for 10 units.


@pytest.fixture
def by_value() -> Watch:
    watch = Watch()
    watch.watcher = watch.make(rules=replace(rules_of(CHAIN), agreement_above=(("USDC", 10_000),)))
    return watch


@pytest.mark.parametrize("units", [10, 11])
async def test_nothing_is_final_on_one_nodes_word(by_value, units: int) -> None:
    payment = await by_value.record(units=units)
    by_value.chain.bury(CHAIN, 5)
    by_value.chain.leave_one(CHAIN)
    await by_value.check()
    assert await by_value.state(payment) is PaymentState.UNFINAL
    by_value.chain.bring_back(CHAIN)
    await by_value.check()
    assert await by_value.state(payment) is PaymentState.FINAL
    assert set(by_value.chain.trusts) == {Trust.AGREED}


async def test_what_one_node_has_invented_is_found_by_the_others(by_value) -> None:
    """However small, and although that node says that it is final."""
    payment = await by_value.record(units=10)
    await by_value.consume(payment, 4)
    by_value.chain.bury(CHAIN, 5)
    by_value.chain.rumours[payment.tx_hash] = lambda facts: facts
    by_value.chain.lies[payment.tx_hash] = lambda facts: replace(facts, logs=())
    await by_value.check(times=2)
    assert await by_value.state(payment) is PaymentState.GONE
    assert [debt.units for debt in await by_value.book.debts(PAYER)] == [4]


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda facts: replace(facts, succeeded=False), id="it failed"),
        pytest.param(lambda facts: replace(facts, logs=()), id="it moved nothing"),
        pytest.param(
            lambda facts: replace(facts, logs=(transfer_log(TOKEN, PAYER, PAYEE, 9),)), id="it moved less"
        ),
    ],
)
async def test_one_node_alone_takes_nothing_away(by_value, lie) -> None:
    payment = await by_value.record(units=10)
    by_value.chain.rumours[payment.tx_hash] = lie
    await by_value.check(times=5)
    assert await by_value.state(payment) is PaymentState.UNFINAL
    assert by_value.gone == []
    by_value.chain.lies[payment.tx_hash] = lie
    await by_value.check(times=5)
    assert await by_value.state(payment) is PaymentState.GONE


async def test_one_node_alone_brings_nothing_large_back(by_value) -> None:
    payment = await by_value.record(units=10)
    by_value.chain.reorg(CHAIN, 1)
    await by_value.check(times=2)
    assert await by_value.state(payment) is PaymentState.GONE
    by_value.chain.mine(CHAIN, by_value.transaction("tx", 10))
    by_value.chain.bury(CHAIN, 1)
    more = (transfer_log(TOKEN, PAYER, PAYEE, 10_000),)
    by_value.chain.rumours[payment.tx_hash] = lambda facts: replace(facts, logs=more)
    await by_value.check()
    found = await by_value.read(payment)
    assert (found.state, found.value_units) == (PaymentState.UNFINAL, 10)
