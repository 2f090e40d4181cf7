"""Payments that are not final: gone only after two checks in a row, and brought back by the rules."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import Block, MemoryChain, Transaction, authorization_log, transfer_log
from tests.kit.ledger_records import (
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    operator_origin,
)
from tests.kit.waits import bounded
from tests.model.ledger import MemoryLedger
from tollway.chain.networks import ChainRules
from tollway.chain.port import Quorum
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.ledger.ledger import Claimed, Unspendable
from tollway.ledger.records import (
    Authorization,
    CallState,
    NewPayment,
    Payment,
    PaymentState,
    SettledTransfer,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import Asset
from tollway.payments.reorg_watcher import CHECKS_WITHOUT_LOGS_MAX, RECEIPTS_AT_ONCE, ReorgWatcher

CHAIN, OTHER, UNKNOWN = ChainId(84532), ChainId(10), ChainId(5)
PAYER, PAYEE, TOKEN = (Address(bytes([n]) * 20) for n in (1, 2, 3))


def rules_of(chain_id: ChainId) -> ChainRules:
    usdc = Asset(chain_id=chain_id, token=TOKEN, symbol="USDC", decimals=6)
    return ChainRules(chain_id=chain_id, kind="test", confirmations=((0, 2),), assets=(usdc,))


class Watch:
    """A watcher over scripted chains. The final block is three blocks behind the head."""

    def __init__(self, kind: type[MemoryChain] = MemoryChain, **limits: Any) -> None:
        self.now_s = 1_800_000_000
        self.chain = kind(CHAIN, OTHER, finality_depth=3)
        self.ledger = MemoryLedger(now_ms=self.now_ms)
        self.gone: list[Payment] = []
        self.watcher = self.make(**limits)

    def make(
        self,
        sleep: Any = asyncio.sleep,
        *,
        rules: ChainRules | None = None,
        is_alone: bool = False,
        **limits: Any,
    ) -> ReorgWatcher:
        others = {} if is_alone else {OTHER: rules_of(OTHER)}
        return ReorgWatcher(
            self.ledger,
            self.ledger,
            self.chain,
            {CHAIN: rules or rules_of(CHAIN), **others},
            limits=replace(DEFAULT_LIMITS, **limits) if limits else Limits(),
            now_ms=self.now_ms,
            on_gone=self.gone.append,
            sleep=sleep,
            clock=lambda: float(self.now_s),
        )

    def make_by_value(self, **limits: Any) -> ReorgWatcher:
        """One node is enough for 10 units."""
        return self.make(rules=replace(rules_of(CHAIN), agreement_above=(("USDC", 10_000),)), **limits)

    def now_ms(self) -> int:
        return self.now_s * 1000

    def transaction(self, name: str, units: int = 10, **fields: Any) -> Transaction:
        logs = (transfer_log(TOKEN, PAYER, PAYEE, units),)
        tx_hash = TxHash(keccak256(name.encode()))
        return Transaction(
            **{"tx_hash": tx_hash, "sender": PAYER, "recipient": TOKEN, "logs": logs, **fields}
        )

    async def record(
        self, name: str = "tx", chain_id: ChainId = CHAIN, units: int = 10, at: Block | None = None
    ) -> Payment:
        """A payment that is mined, one block deep, and in the ledger. `at`: the existing block that has it."""
        transaction = self.transaction(name, units)
        number, block_hash, block_time = 1, b"\x01" * 32, self.now_s
        if chain_id in self.chain.chain_ids:
            block = at or self.chain.mine(chain_id, transaction)
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
        (payment,) = await self.ledger.record_payments((new,), now_ms=self.now_ms())
        return payment

    async def check(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += 10
            await self.watcher.check_once()

    async def read(self, payment: Payment) -> Payment:
        (found,) = [p for p in await self.ledger.find_payments(payment.tx_hash) if p.id == payment.id]
        return found

    async def state(self, payment: Payment) -> PaymentState:
        return (await self.read(payment)).state

    async def consume(self, payment: Payment, units: int) -> None:
        claim = claim_on(payment, units)
        claimed = await self.ledger.claim(claim)
        assert isinstance(claimed, Claimed)
        await self.ledger.close(close_of(claim, CallState.CONSUMED))

    def settlement(self, authorization: Authorization, name: str = "settled", **fields: Any) -> Transaction:
        used = authorization_log(TOKEN, PAYER, authorization.nonce)
        logs = (used, transfer_log(TOKEN, PAYER, PAYEE, authorization.base_units))
        return self.transaction(name, **{"logs": logs, "sender": PAYEE, **fields})

    async def settle(self, units: int = 10, **fields: Any) -> tuple[Payment, Authorization]:
        """A call paid by an authorisation that was settled one block deep."""
        authorization = authorization_of(units, token=TOKEN, payer=PAYER, payee=PAYEE)
        claim = authorized_claim(authorization, **fields)
        assert isinstance(await self.ledger.claim(claim), Claimed)
        closing = close_of(claim, CallState.SETTLING)
        await self.ledger.settle(closing, attempt=attempt_of(claim), digest=None)
        transaction = self.settlement(authorization)
        block = self.chain.mine(CHAIN, transaction)
        transfer = SettledTransfer(
            tx_hash=transaction.tx_hash,
            block_number=block.number,
            block_hash=block.block_hash,
            block_time=block.time,
        )
        await self.ledger.conclude(
            claim.call_id, epoch=1, transfer=transfer, is_orphaned=False, now_ms=self.now_ms()
        )
        (payment,) = await self.ledger.find_payments(transaction.tx_hash)
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
    assert [debt.units for debt in await watch.ledger.debts(PAYER)] == [10]
    watch.chain.mine(CHAIN, watch.settlement(authorization))
    watch.chain.bury(CHAIN, 1)
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units, found.taken_units) == (PaymentState.UNFINAL, 10, 10)
    assert await watch.ledger.debts(PAYER) == ()
    assert (await watch.ledger.audit()).is_balanced


def land(watch: Watch, authorization: Authorization, payee: Address = PAYEE) -> TxHash:
    """The authorisation makes its transfer in a transaction that is not in the ledger."""
    return watch.chain.settle_by_third_party(
        CHAIN,
        TOKEN,
        payer=PAYER,
        payee=payee,
        base_units=authorization.base_units,
        nonce=authorization.nonce,
    )


async def test_a_transfer_moved_to_another_transaction_is_never_a_debt(watch) -> None:
    """The transaction was replaced at a higher price, or another account sent it first: it paid once, and there is no debt."""
    payment, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    elsewhere = land(watch, authorization)
    await watch.check(2)
    assert [gone.id for gone in watch.gone] == [payment.id]
    for _ in range(2):
        await watch.check()
        assert await watch.ledger.debts(PAYER) == ()
    (there,) = await watch.ledger.find_payments(elsewhere)
    assert (there.state, there.value_units, there.taken_units) == (PaymentState.UNFINAL, 10, 10)
    held = await watch.ledger.find_authorized_call(authorization.key)
    assert (held.state, held.transfer) == (CallState.CONSUMED, elsewhere)
    assert (await watch.read(payment)).value_units == 0
    watch.chain.bury(CHAIN, 3)
    await watch.check(2)
    assert await watch.state(there) is PaymentState.FINAL
    assert (await watch.ledger.audit()).is_balanced


async def test_a_later_failed_transaction_of_a_moved_transfer_is_no_debt(watch) -> None:
    _, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    land(watch, authorization)
    watch.chain.mine(CHAIN, watch.settlement(authorization, succeeded=False, logs=()))
    await watch.check(4)
    assert await watch.ledger.debts(PAYER) == ()


async def test_a_debt_ends_when_the_transfer_is_deep_enough_in_another_transaction(watch) -> None:
    payment, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    await watch.check(2)
    assert [debt.units for debt in await watch.ledger.debts(PAYER)] == [10]
    elsewhere = land(watch, authorization)
    await watch.check()
    assert await watch.state(payment) is PaymentState.GONE
    assert await watch.ledger.debts(PAYER) != ()
    watch.chain.bury(CHAIN, 1)
    await watch.check()
    held = await watch.ledger.find_authorized_call(authorization.key)
    assert (held.state, held.transfer) == (CallState.CONSUMED, elsewhere)
    assert await watch.ledger.debts(PAYER) == ()
    assert (await watch.ledger.audit()).is_balanced


async def test_a_deposit_comes_back_at_the_depth_of_its_own_value(watch, monkeypatch) -> None:
    """The call that it came with costs less."""
    find = watch.ledger.authorizations_in

    async def find_cheaper(payment_id: int, *, limit: int) -> Any:
        return tuple(replace(call, price_units=1) for call in await find(payment_id, limit=limit))

    monkeypatch.setattr(watch.ledger, "authorizations_in", find_cheaper)
    watch.watcher = watch.make(rules=replace(rules_of(CHAIN), confirmations=((0, 1), (5_000, 3))))
    _, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    await watch.check(2)
    elsewhere = land(watch, authorization)
    await watch.check()
    assert await watch.ledger.debts(PAYER) != ()
    watch.chain.bury(CHAIN, 2)
    await watch.check()
    assert await watch.ledger.debts(PAYER) == ()
    held = await watch.ledger.find_authorized_call(authorization.key)
    assert (held.state, held.transfer) == (CallState.CONSUMED, elsewhere)


async def test_a_transfer_that_moves_back_and_forth_is_followed(watch) -> None:
    payment, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    land(watch, authorization)
    await watch.check(4)
    watch.chain.reorg(CHAIN, 1, watch.settlement(authorization))
    await watch.check(4)
    found = await watch.read(payment)
    assert (found.state, found.value_units, found.taken_units) == (PaymentState.UNFINAL, 10, 10)
    assert await watch.ledger.debts(PAYER) == ()
    assert (await watch.ledger.audit()).is_balanced


async def test_an_authorisation_with_another_end_leaves_the_debt(watch) -> None:
    _, authorization = await watch.settle()
    watch.chain.reorg(CHAIN, 1)
    land(watch, authorization, payee=Address(b"\x09" * 20))
    await watch.check(4)
    assert [debt.units for debt in await watch.ledger.debts(PAYER)] == [10]


class Logless(MemoryChain):
    """Nodes that return transactions but no logs."""

    async def find_authorization_use(self, chain_id: ChainId, **_: Any) -> TxHash | None:
        raise ChainUnavailable("no logs here")


async def test_nodes_without_logs_delay_a_debt_and_do_not_cancel_it() -> None:
    watch = Watch(Logless)
    payment, _ = await watch.settle()
    other = await watch.record("other")
    watch.chain.reorg(CHAIN, 2, watch.transaction("other"))
    await watch.check(CHECKS_WITHOUT_LOGS_MAX - 1)
    assert await watch.state(payment) is PaymentState.UNFINAL
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert await watch.state(payment) is PaymentState.GONE
    assert await watch.state(other) is PaymentState.FINAL
    assert [debt.units for debt in await watch.ledger.debts(PAYER)] == [10]
    await watch.check()  # the other payment is credit of the same account
    assert await watch.ledger.debts(PAYER) == ()


async def test_no_authorisation_is_searched_for_a_payment_by_transaction(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1)
    await watch.check(3)
    assert await watch.state(payment) is PaymentState.GONE
    assert watch.chain.requests["find_authorization_use", CHAIN] == 0


async def test_the_search_includes_blocks_below_that_of_the_claim(watch) -> None:
    """The reorganisation removed the head of the claim with the settlement."""
    watch.chain.bury(CHAIN, 5)
    _, authorization = await watch.settle(block_number=watch.chain.head(CHAIN).number)
    watch.chain.reorg(CHAIN, 4, watch.settlement(authorization, "elsewhere"))
    await watch.check(4)
    assert await watch.ledger.debts(PAYER) == ()


async def test_a_settled_payment_is_not_confirmed_by_a_plain_transfer(watch) -> None:
    payment, _ = await watch.settle()
    watch.chain.reorg(CHAIN, 1, watch.transaction("settled"))
    await watch.check(2)
    assert await watch.state(payment) is PaymentState.GONE


async def test_a_payment_by_transaction_is_not_confirmed_by_an_authorised_transfer(watch) -> None:
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
    asked = watch.chain.request_count
    await watch.check()
    assert watch.chain.request_count == asked  # final payments are left alone


async def test_a_payment_is_gone_after_two_checks(watch) -> None:
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
    assert [debt.units for debt in await watch.ledger.debts(PAYER)] == [4]
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
    assert [debt.units for debt in await watch.ledger.debts(PAYER)] == [7]
    assert (await watch.ledger.audit()).is_balanced


async def test_a_pending_transaction_counts_as_missing(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1)
    watch.chain.pend(CHAIN, watch.transaction("tx"))
    await watch.check(2)
    assert await watch.state(payment) is PaymentState.GONE


async def test_the_two_checks_must_be_in_a_row(watch) -> None:
    payment = await watch.record()
    for _ in range(3):
        watch.chain.reorg(CHAIN, 1)
        await watch.check()
        watch.chain.mine(CHAIN, watch.transaction("tx"))
        await watch.check()
    assert await watch.state(payment) is PaymentState.UNFINAL


async def test_a_move_to_another_block_is_recorded(watch) -> None:
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
async def test_a_transaction_mined_again_must_pay_again(watch, changed) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1, watch.transaction("tx", **changed))
    await watch.check()
    assert await watch.state(payment) is PaymentState.UNFINAL
    await watch.check()
    assert await watch.state(payment) is PaymentState.GONE
    assert len(watch.gone) == 1


async def test_a_higher_value_found_later_is_added(by_value) -> None:
    """One node returned some of the logs at the verification; more nodes return all of them."""
    payment = await by_value.record()
    more = (transfer_log(TOKEN, PAYER, PAYEE, 10), transfer_log(TOKEN, PAYER, PAYEE, 15))
    by_value.chain.lies[payment.tx_hash] = lambda facts: replace(facts, logs=more)
    await by_value.check()
    found = await by_value.read(payment)
    assert (found.state, found.value_units) == (PaymentState.UNFINAL, 10)  # its block is not deep enough yet
    by_value.chain.bury(CHAIN, 3)
    await by_value.check()
    found = await by_value.read(payment)
    assert (found.state, found.value_units) == (PaymentState.FINAL, 25)


async def test_a_further_transfer_in_a_settling_transaction_adds_nothing(watch) -> None:
    payment, _ = await watch.settle()
    watch.chain.lies[payment.tx_hash] = lambda facts: replace(
        facts, logs=(*facts.logs, transfer_log(TOKEN, PAYER, PAYEE, 15))
    )
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    found = await watch.read(payment)
    assert (found.state, found.value_units) == (PaymentState.FINAL, 10)


async def test_a_displaced_block_changes_nothing(watch) -> None:
    payment = await watch.record()
    watch.chain.lies[payment.tx_hash] = lambda facts: replace(
        facts, canonical_hash=bytes(32), succeeded=False
    )
    await watch.check(5)
    assert await watch.read(payment) == payment


async def test_a_chain_without_a_response_changes_nothing(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1)
    await watch.check()
    watch.chain.disconnect(CHAIN)
    await watch.check(5)
    assert await watch.read(payment) == payment
    assert watch.gone == []


async def test_a_gone_payment_comes_back_when_it_is_deep_enough(watch) -> None:
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
    assert await watch.ledger.debts(PAYER) == ()
    assert (await watch.ledger.audit()).is_balanced


async def test_a_gone_payment_comes_back_with_its_new_value(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1, watch.transaction("tx", 7))
    watch.chain.bury(CHAIN, 1)
    await watch.check(3)
    found = await watch.read(payment)
    assert (found.state, found.value_units) == (PaymentState.UNFINAL, 7)


async def test_a_gone_payment_that_fails_again_stays_gone(watch) -> None:
    payment = await watch.record()
    watch.chain.reorg(CHAIN, 1, watch.transaction("tx", succeeded=False))
    watch.chain.bury(CHAIN, 5)
    await watch.check(6)
    assert await watch.state(payment) is PaymentState.GONE
    assert len(watch.gone) == 1


async def test_all_payments_are_read_one_batch_at_a_time(watch) -> None:
    """A check reads every payment of a changed block again."""
    watch.watcher = watch.make(watch_batch_max=2)
    transactions = [watch.transaction(f"tx{number}") for number in range(5)]
    block = watch.chain.mine(CHAIN, *transactions)
    payments = [await watch.record(f"tx{number}", at=block) for number in range(5)]
    watch.chain.reorg(CHAIN, 1, *transactions)
    pages: list[int] = []
    read = watch.ledger.unfinal_in

    async def count(block: Any, **asked: Any) -> Any:
        page = await read(block, **asked)
        pages.append(len(page))
        return page

    watch.ledger.unfinal_in = count
    await watch.check()
    assert pages == [2, 2, 1]
    assert {(await watch.read(payment)).block_hash for payment in payments} == {
        watch.chain.head(CHAIN).block_hash
    }
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert [await watch.state(payment) for payment in payments] == [PaymentState.FINAL] * 5


async def test_gone_payments_are_read_in_batches(watch) -> None:
    watch.watcher = watch.make(watch_batch_max=2)
    payments = [await watch.record(f"tx{number}") for number in range(5)]
    watch.chain.reorg(CHAIN, 5)
    await watch.check(2)
    assert [await watch.state(payment) for payment in payments] == [PaymentState.GONE] * 5
    watch.chain.mine(CHAIN, *(watch.transaction(f"tx{number}") for number in range(5)))
    watch.chain.bury(CHAIN, 1)
    await watch.check(3)
    assert [await watch.state(payment) for payment in payments] == [PaymentState.UNFINAL] * 5


async def test_an_unchanged_block_confirms_its_payments_without_reading_receipts(watch) -> None:
    names = [f"tx{number}" for number in range(50)]
    block = watch.chain.mine(CHAIN, *map(watch.transaction, names))
    payments = [await watch.record(name, at=block) for name in names]
    await watch.check()
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert {await watch.state(payment) for payment in payments} == {PaymentState.FINAL}
    assert watch.chain.requests == {("fetch_tip", CHAIN): 2, ("fetch_block_hashes", CHAIN): 2}


async def test_blocks_below_an_unchanged_newest_block_are_not_read(watch) -> None:
    """A chain that has a block has all that were below it; when it has another one, all of them are read."""
    watch.chain = MemoryChain(CHAIN, finality_depth=500)
    watch.watcher = watch.make()
    payments = [await watch.record(f"tx{number}") for number in range(30)]
    await watch.check()
    assert watch.chain.heights_read == 30
    await watch.check(5)
    assert watch.chain.heights_read == 30 + 5
    lost = [watch.transaction(f"tx{number}") for number in range(20, 30)]
    watch.chain.reorg(CHAIN, 10, *lost)
    await watch.check()
    assert len({(await watch.read(payment)).block_hash for payment in payments}) == 20 + 1
    watch.chain.heights_read = 0
    await watch.check(30)  # five minutes
    assert watch.chain.heights_read >= 21 + 29


async def test_an_unchanged_block_resets_the_missed_checks_of_its_payments(watch) -> None:
    payment = await watch.record()
    there = watch.chain._chains[CHAIN].blocks
    for _ in range(3):
        block = there[-1]
        watch.chain.reorg(CHAIN, 1)
        await watch.check()
        there[-1] = block
        await watch.check()
    assert await watch.state(payment) is PaymentState.UNFINAL


async def test_without_a_final_tag_depth_decides(watch) -> None:
    watch.chain.has_no_final_tag = True
    watch.watcher = watch.make(rules=replace(rules_of(CHAIN), finality_depth=7))
    payment = await watch.record()
    watch.chain.bury(CHAIN, 6)
    await watch.check()
    assert await watch.state(payment) is PaymentState.UNFINAL
    watch.chain.bury(CHAIN, 1)
    await watch.check()
    assert await watch.state(payment) is PaymentState.FINAL


async def test_depth_does_not_count_once_nodes_have_named_a_final_block(watch) -> None:
    """A chain may be without finality for hours, and a node that restarts has no final block for a while."""
    watch.watcher = watch.make(rules=replace(rules_of(CHAIN), finality_depth=7))
    payment = await watch.record()
    await watch.check()
    watch.chain.has_no_final_tag = True
    watch.chain.bury(CHAIN, 20)
    await watch.check()
    assert await watch.state(payment) is PaymentState.UNFINAL


async def test_a_dead_chain_gets_few_requests_and_delays_no_other(watch) -> None:
    watch.watcher = watch.make(watch_batch_max=4, watch_in_flight_max=1)
    for number in range(8):
        await watch.record(f"dead{number}", OTHER)
    await watch.record("unknown", UNKNOWN)
    payment = await watch.record("alive")
    watch.chain.bury(CHAIN, 3)
    watch.chain.disconnect(OTHER)
    await watch.check(3)
    assert await watch.state(payment) is PaymentState.FINAL
    assert {
        method: count for (method, chain_id), count in watch.chain.requests.items() if chain_id == OTHER
    } == {
        "fetch_tip": 3  # one for each check
    }
    assert all(chain_id != UNKNOWN for _, chain_id in watch.chain.requests)


async def test_a_dispute_about_one_block_delays_no_other_block(watch) -> None:
    disputed, other = await watch.record("disputed"), await watch.record("other")
    watch.chain.disputed_heights.add(disputed.block_number)
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert await watch.state(other) is PaymentState.FINAL
    assert await watch.state(disputed) is PaymentState.UNFINAL
    watch.chain.disputed_heights.clear()
    await watch.check()
    assert await watch.state(disputed) is PaymentState.FINAL


async def test_one_bad_payment_does_not_stop_the_others(watch) -> None:
    bad, good = await watch.record("bad"), await watch.record("good")
    watch.chain.reorg(CHAIN, 2, watch.transaction("bad"), watch.transaction("good"))
    watch.chain.lies[bad.tx_hash] = lambda facts: replace(facts, logs=None)  # parsed wrongly
    await watch.check()
    watch.chain.bury(CHAIN, 3)
    await watch.check()
    assert await watch.state(good) is PaymentState.FINAL
    assert await watch.state(bad) is PaymentState.UNFINAL


async def test_few_requests_are_in_flight(watch) -> None:
    watch.watcher = watch.make(watch_in_flight_max=3)
    names = [f"tx{number}" for number in range(5 * RECEIPTS_AT_ONCE)]
    block = watch.chain.mine(CHAIN, *map(watch.transaction, names))
    for name in names:
        await watch.record(name, at=block)
    watch.chain.reorg(CHAIN, 1, *map(watch.transaction, names))
    review, gate, running = watch.chain.review_receipts, asyncio.Event(), []

    async def wait(*asked: Any) -> Any:
        running.append(1)
        await gate.wait()
        return await review(*asked)

    watch.chain.review_receipts = wait
    async with asyncio.TaskGroup() as group:
        group.create_task(watch.check())
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(running) == 3
        gate.set()
    assert len(running) == 5


# ---- Payments about which nodes disagree.


async def spendable(watch: Watch, payment: Payment) -> bool:
    outcome = await watch.ledger.claim(claim_on(await watch.read(payment), 1))
    assert isinstance(outcome, Claimed) or outcome == Unspendable(is_held=True)
    return isinstance(outcome, Claimed)


async def test_a_payment_in_a_disputed_block_is_held_after_some_checks_and_freed_on_agreement(
    watch,
) -> None:
    watch.watcher = watch.make(disputed_looks_max=3)
    payment, other = await watch.record(), await watch.record("other")
    watch.chain.disputed_heights.add(payment.block_number)
    await watch.check(2)
    assert await spendable(watch, payment)
    await watch.check()
    assert not await spendable(watch, payment)
    assert await spendable(watch, other)
    assert await watch.state(payment) is PaymentState.UNFINAL
    watch.chain.disputed_heights.clear()
    await watch.check()
    assert await spendable(watch, payment)


async def test_only_disputed_checks_in_a_row_count(watch) -> None:
    watch.watcher = watch.make(disputed_looks_max=3)
    payment = await watch.record()
    for _ in range(3):
        watch.chain.disputed_heights.add(payment.block_number)
        await watch.check(2)
        watch.chain.disputed_heights.clear()
        await watch.check()
    assert await spendable(watch, payment)


@pytest.mark.parametrize("kind", ["nodes disagree", "a block that their own chain does not have"])
async def test_a_payment_with_a_disputed_receipt_is_held_and_freed(by_value, kind: str) -> None:
    by_value.watcher = by_value.make_by_value(disputed_looks_max=3)
    payment = await by_value.record()
    if kind == "nodes disagree":
        by_value.chain.disputed.add(payment.tx_hash)
    else:
        by_value.chain.lies[payment.tx_hash] = lambda facts: replace(facts, canonical_hash=bytes(32))
    by_value.chain.bury(CHAIN, 5)
    await by_value.check(2)
    assert await spendable(by_value, payment)
    await by_value.check()
    assert not await spendable(by_value, payment)
    assert await by_value.state(payment) is PaymentState.UNFINAL  # although its block is final
    by_value.chain.disputed.clear()
    by_value.chain.lies.clear()
    await by_value.check()
    assert await by_value.state(payment) is PaymentState.FINAL
    assert await spendable(by_value, payment)


async def test_a_payment_held_after_a_restore_is_not_freed_by_agreeing_nodes(watch) -> None:
    watch.watcher = watch.make(disputed_looks_max=1)
    payment = await watch.record()
    watch.chain.disputed_heights.add(payment.block_number)
    await watch.check()
    await watch.ledger.mark_restored(origin=operator_origin(watch.now_ms()))
    watch.chain.disputed_heights.clear()
    watch.chain.bury(CHAIN, 5)
    await watch.check()
    assert await watch.state(payment) is PaymentState.FINAL
    assert not await spendable(watch, payment)
    await watch.ledger.release_held(origin=operator_origin())
    assert await spendable(watch, payment)


# ---- The age of the last complete check.


async def test_the_check_age_is_that_of_the_last_complete_check(watch) -> None:
    slept = asyncio.Semaphore(0)
    await watch.record()
    assert watch.watcher.check_age_s(CHAIN) == 0  # it does not lead

    async def sleep(seconds: float) -> None:
        slept.release()
        await asyncio.sleep(0 if watch.now_s < ends_s else 3600)

    watcher, ends_s = watch.make(sleep), watch.now_s
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        await bounded(slept.acquire())
        watch.now_s += 7
        assert watcher.check_age_s(CHAIN) == 7
        task.cancel()
    assert watcher.check_age_s(CHAIN) == 0

    watch.chain.disconnect(CHAIN)
    watcher, ends_s = watch.make(sleep), watch.now_s
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        await bounded(slept.acquire())
        watch.now_s += 60
        assert (watcher.check_age_s(CHAIN), watcher.check_age_s(OTHER)) == (60, 60)
        task.cancel()


async def test_a_check_longer_than_the_interval_is_followed_by_the_next_at_once(watch) -> None:
    """Nothing waits while payments do."""
    slept: list[float] = []
    took_s = 4

    class Slow(MemoryChain):
        async def fetch_tip(self, chain_id: ChainId) -> Any:
            watch.now_s += took_s
            return await super().fetch_tip(chain_id)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise ZeroDivisionError
        nonlocal took_s
        took_s = 25

    watch.chain = Slow(CHAIN)
    await watch.record()
    watcher = watch.make(sleep, is_alone=True)
    with pytest.raises(ZeroDivisionError):
        await watcher.run()
    assert slept == [DEFAULT_LIMITS.watch_interval_s - 4, 0]


async def test_an_unavailable_ledger_raises(watch) -> None:
    watch.ledger.away = True
    with pytest.raises(StorageUnavailable):
        await watch.check()


async def test_it_runs_through_failures_until_it_is_cancelled(watch) -> None:
    payment = await watch.record()
    watch.chain.bury(CHAIN, 3)
    slept: list[float] = []
    is_final = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        watch.ledger.away = len(slept) < 3
        if not watch.ledger.away and await watch.state(payment) is PaymentState.FINAL:
            is_final.set()
        await asyncio.sleep(0)

    watch.ledger.away = True
    watcher = watch.make(sleep)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        await bounded(is_final.wait())
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

    watcher, is_second = watch.make(sleep, is_alone=True), False
    async with asyncio.TaskGroup() as group:
        for _ in range(3):  # three times it leads for one check
            task = group.create_task(watcher.run())
            await bounded(checked.acquire())
            task.cancel()
            await asyncio.wait([task])
        assert await watch.state(payment) is PaymentState.UNFINAL
        is_second = True
        task = group.create_task(watcher.run())
        await bounded(checked.acquire())
        await bounded(checked.acquire())
        task.cancel()
    assert await watch.state(payment) is PaymentState.GONE


# ---- One node's word, and that of several: one is enough for 10 units.


@pytest.fixture
def by_value() -> Watch:
    watch = Watch()
    watch.watcher = watch.make_by_value()
    return watch


@pytest.mark.parametrize("units", [10, 11])
async def test_one_nodes_response_makes_nothing_final(by_value, units: int) -> None:
    payment = await by_value.record(units=units)
    by_value.chain.bury(CHAIN, 5)
    by_value.chain.leave_one_node(CHAIN)
    await by_value.check()
    assert await by_value.state(payment) is PaymentState.UNFINAL
    by_value.chain.reconnect(CHAIN)
    await by_value.check()
    assert await by_value.state(payment) is PaymentState.FINAL
    assert set(by_value.chain.trusts) == {Quorum.AGREED}


async def test_an_invented_payment_of_one_node_is_found_by_the_others(by_value) -> None:
    """The payment is small, and the node reports it as final."""
    payment = await by_value.record(units=10)
    await by_value.consume(payment, 4)
    by_value.chain.bury(CHAIN, 5)
    by_value.chain.unconfirmed[payment.tx_hash] = lambda facts: facts
    by_value.chain.lies[payment.tx_hash] = lambda facts: replace(facts, logs=())
    await by_value.check(times=2)
    assert await by_value.state(payment) is PaymentState.GONE
    assert [debt.units for debt in await by_value.ledger.debts(PAYER)] == [4]


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
async def test_one_node_alone_makes_no_payment_gone(by_value, lie) -> None:
    payment = await by_value.record(units=10)
    by_value.chain.unconfirmed[payment.tx_hash] = lie
    await by_value.check(times=5)
    assert await by_value.state(payment) is PaymentState.UNFINAL
    assert by_value.gone == []


async def test_one_node_alone_brings_no_large_payment_back(by_value) -> None:
    payment = await by_value.record(units=10)
    by_value.chain.reorg(CHAIN, 1)
    await by_value.check(times=2)
    assert await by_value.state(payment) is PaymentState.GONE
    by_value.chain.mine(CHAIN, by_value.transaction("tx", 10))
    by_value.chain.bury(CHAIN, 1)
    more = (transfer_log(TOKEN, PAYER, PAYEE, 10_000),)
    by_value.chain.unconfirmed[payment.tx_hash] = lambda facts: replace(facts, logs=more)
    await by_value.check()
    found = await by_value.read(payment)
    assert (found.state, found.value_units) == (PaymentState.UNFINAL, 10)


async def test_a_payment_that_is_held_in_a_block_with_an_unread_one_is_freed(by_value) -> None:
    by_value.watcher = by_value.make_by_value(disputed_looks_max=1)
    block = by_value.chain.mine(CHAIN, *map(by_value.transaction, ("tx", "other")))
    payment = await by_value.record("tx", at=block)
    await by_value.check()  # reads its receipt
    by_value.chain.disputed_heights.add(payment.block_number)
    await by_value.check()
    assert not await spendable(by_value, payment)
    by_value.chain.disputed_heights.clear()
    await by_value.record("other", at=block)
    by_value.chain.bury(CHAIN, 5)
    await by_value.check(3)
    assert await by_value.state(payment) is PaymentState.FINAL
    assert await spendable(by_value, payment)
