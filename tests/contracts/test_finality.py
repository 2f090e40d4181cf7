"""The contract of `Finality` for payments in blocks: in memory, on SQLite, on PostgreSQL."""

import asyncio
from typing import Any

from sqlalchemy import event

from tests.kit.ledger_records import CHAIN, NOW_MS, claim_on, new_payment, operator_origin
from tests.kit.sql_ledger import SqlLedger
from tollway.ids import ChainId
from tollway.ledger.ledger import Claimed, UnfinalBlock, Unspendable
from tollway.ledger.records import Payment, PaymentState

HOUR_MS = 3_600_000


async def pay(
    ledger: Any, name: str, number: int = 5, block_hash: bytes = b"\x05" * 32, **fields: Any
) -> Payment:
    new = new_payment(
        10, name, **{"is_final": False, "block_number": number, "block_hash": block_hash, **fields}
    )
    (payment,) = await ledger.record_payments([new], now_ms=NOW_MS)
    return payment


async def read(ledger: Any, payment: Payment) -> Payment:
    (found,) = [one for one in await ledger.find_payments(payment.tx_hash) if one.id == payment.id]
    return found


async def ids_in(ledger: Any, block: UnfinalBlock, **asked: Any) -> list[int]:
    return [one.id for one in await ledger.unfinal_in(block, **{"after_id": 0, "limit": 9, **asked})]


async def test_lists_each_block_once_by_number_and_hash(ledger: Any) -> None:
    await pay(ledger, "a", 7)
    await pay(ledger, "b", 5, b"\x06" * 32)
    for name in "cde":
        await pay(ledger, name, 5)
    await pay(ledger, "final", 5, b"\x07" * 32, is_final=True)
    await pay(ledger, "elsewhere", 5, chain_id=ChainId(10))
    blocks = await ledger.unfinal_blocks(CHAIN, after=None, limit=9)
    places = [(5, b"\x05" * 32), (5, b"\x06" * 32), (7, b"\x05" * 32)]
    assert [(block.number, block.block_hash) for block in blocks] == places
    assert {block.chain_id for block in blocks} == {CHAIN}
    first = await ledger.unfinal_blocks(CHAIN, after=None, limit=2)
    assert first == blocks[:2]
    assert await ledger.unfinal_blocks(CHAIN, after=first[-1], limit=2) == blocks[2:]
    assert await ledger.unfinal_blocks(CHAIN, after=blocks[-1], limit=2) == ()
    assert await ledger.unfinal_blocks(ChainId(1), after=None, limit=2) == ()


async def test_the_payments_of_a_block_are_read_in_pages(ledger: Any) -> None:
    payments = [await pay(ledger, name) for name in "abc"]
    await pay(ledger, "other", 5, b"\x06" * 32)
    (block, _) = await ledger.unfinal_blocks(CHAIN, after=None, limit=9)
    ids = [payment.id for payment in payments]
    assert await ids_in(ledger, block) == ids
    assert await ids_in(ledger, block, limit=2) == ids[:2]
    assert await ids_in(ledger, block, after_id=ids[1]) == ids[2:]


async def test_one_statement_makes_all_payments_of_a_block_final(ledger: Any) -> None:
    payments = [await pay(ledger, name) for name in "abc"]
    other = await pay(ledger, "other", 5, b"\x06" * 32)
    gone = await pay(ledger, "gone")
    await ledger.mark_gone(gone.id, now_ms=NOW_MS)
    (block, _) = await ledger.unfinal_blocks(CHAIN, after=None, limit=9)
    assert await ledger.finish_block(block, is_checked_only=False, now_ms=NOW_MS) == 3
    assert {(await read(ledger, payment)).state for payment in payments} == {PaymentState.FINAL}
    assert (await read(ledger, other)).state is PaymentState.UNFINAL
    assert (await read(ledger, gone)).state is PaymentState.GONE
    assert await ledger.finish_block(block, is_checked_only=False, now_ms=NOW_MS) == 0


async def test_unchecked_payments_are_listed_and_stay_unfinal(ledger: Any) -> None:
    read_one, unread = await pay(ledger, "a"), await pay(ledger, "b")
    (block,) = await ledger.unfinal_blocks(CHAIN, after=None, limit=9)
    assert not block.is_agreed
    await ledger.mark_checked([read_one.id], block_number=5, block_hash=b"\x05" * 32, now_ms=NOW_MS)
    (block,) = await ledger.unfinal_blocks(CHAIN, after=None, limit=9)
    assert not block.is_agreed
    assert await ids_in(ledger, block, is_unchecked_only=True) == [unread.id]
    assert await ledger.finish_block(block, is_checked_only=True, now_ms=NOW_MS) == 1
    assert (await read(ledger, read_one)).state is PaymentState.FINAL
    assert (await read(ledger, unread)).state is PaymentState.UNFINAL
    await ledger.mark_checked([unread.id], block_number=5, block_hash=b"\x05" * 32, now_ms=NOW_MS)
    (block,) = await ledger.unfinal_blocks(CHAIN, after=None, limit=9)
    assert block.is_agreed


async def test_a_payment_that_is_raised_or_returns_is_read_again(ledger: Any) -> None:
    """One node may have been enough for the first record."""
    raised, back = await pay(ledger, "raised"), await pay(ledger, "back", 6)
    await ledger.mark_checked([raised.id], block_number=5, block_hash=b"\x05" * 32, now_ms=NOW_MS)
    await ledger.mark_checked([back.id], block_number=6, block_hash=b"\x05" * 32, now_ms=NOW_MS)
    assert [one.is_agreed for one in await ledger.unfinal_blocks(CHAIN, after=None, limit=9)] == [True, True]
    more = new_payment(15, "raised", is_final=False, block_number=5, block_hash=b"\x05" * 32)
    await ledger.record_payments([more], now_ms=NOW_MS + 1)
    await ledger.mark_gone(back.id, now_ms=NOW_MS)
    await pay(ledger, "back", 6)
    assert [one.is_agreed for one in await ledger.unfinal_blocks(CHAIN, after=None, limit=9)] == [
        False,
        False,
    ]


async def test_a_checked_payment_has_the_block_of_its_receipt(ledger: Any) -> None:
    moved, final, gone = (
        await pay(ledger, "moved"),
        await pay(ledger, "final", is_final=True),
        await pay(ledger, "gone"),
    )
    await ledger.mark_gone(gone.id, now_ms=NOW_MS)
    ids = [moved.id, final.id, gone.id]
    await ledger.mark_checked(ids, block_number=8, block_hash=b"\x08" * 32, now_ms=NOW_MS + 1)
    found = [await read(ledger, payment) for payment in (moved, final, gone)]
    assert [one.block_number for one in found] == [8, 5, 5]
    assert found[0].block_hash == b"\x08" * 32
    assert [one.state for one in found] == [PaymentState.UNFINAL, PaymentState.FINAL, PaymentState.GONE]


async def test_gone_payments_are_searched_for_a_day(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    gone = [await pay(ledger, name) for name in "abc"]
    for payment in gone[:2]:
        await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    await ledger.mark_gone(gone[2].id, now_ms=NOW_MS + 2 * HOUR_MS)
    ids = [payment.id for payment in gone]

    async def look(hours: int, after_id: int = 0, limit: int = 9) -> list[int]:
        now_ms = NOW_MS + hours * HOUR_MS
        found = await ledger.gone_payments(CHAIN, after_id=after_id, limit=limit, now_ms=now_ms)
        assert all(one.value_units == one.taken_units for one in found)
        return [one.id for one in found]

    assert await look(3) == ids
    assert await look(3, limit=2) == ids[:2]
    assert await look(3, after_id=ids[0]) == ids[1:]
    assert await look(25) == ids[2:]
    assert await look(27) == []
    assert await ledger.gone_payments(ChainId(10), after_id=0, limit=9, now_ms=NOW_MS) == ()


async def test_what_nodes_dispute_is_held_until_they_agree(ledger: Any) -> None:
    payment, other = await pay(ledger, "a"), await pay(ledger, "b")
    final = await pay(ledger, "final", is_final=True)
    assert await ledger.hold_disputed([payment.id, final.id]) == 1
    assert await ledger.hold_disputed([payment.id]) == 0
    assert await ledger.claim(claim_on(payment)) == Unspendable(is_held=True)
    for spendable in (other, final):
        assert isinstance(await ledger.claim(claim_on(spendable)), Claimed)
    assert [one.id for one in await ledger.held_unfinal(CHAIN, limit=9)] == [payment.id]
    assert await ledger.held_unfinal(ChainId(10), limit=9) == ()
    assert await ledger.free_disputed([payment.id, other.id]) == 1
    assert isinstance(await ledger.claim(claim_on(payment)), Claimed)
    assert await ledger.held_unfinal(CHAIN, limit=9) == ()


async def test_what_is_held_after_a_restore_is_freed_by_the_operator_alone(ledger: Any) -> None:
    disputed, other = await pay(ledger, "a"), await pay(ledger, "b")
    await ledger.hold_disputed([disputed.id])
    await ledger.mark_restored(origin=operator_origin())
    assert await ledger.held_unfinal(CHAIN, limit=9) == ()
    assert await ledger.free_disputed([disputed.id, other.id]) == 0
    for payment in (disputed, other):
        assert await ledger.claim(claim_on(payment)) == Unspendable(is_held=True)
    await ledger.release_held(origin=operator_origin())
    for payment in (disputed, other):
        assert isinstance(await ledger.claim(claim_on(payment)), Claimed)


async def test_a_block_is_finished_while_its_payments_are_spent(ledgers: Any) -> None:
    """Both lock several payments in one order, so that there is no deadlock and no lost update."""
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    payments = [await pay(one, f"tx{number}") for number in range(8)]
    (block,) = await one.unfinal_blocks(CHAIN, after=None, limit=9)
    ids = [payment.id for payment in payments]
    claims = [claim_on(payment) for payment in reversed(payments)]
    place = {"block_number": 5, "block_hash": b"\x05" * 32, "now_ms": NOW_MS}
    _, *outcomes = await asyncio.gather(
        two.mark_checked(ids, **place),
        *(one.claim(claim) for claim in claims[:4]),
        two.finish_block(block, is_checked_only=False, now_ms=NOW_MS),
        *(one.claim(claim) for claim in claims[4:]),
    )
    assert outcomes.pop(4) == 8
    assert all(isinstance(outcome, Claimed) for outcome in outcomes)
    found = [await read(one, payment) for payment in payments]
    assert {(payment.state, payment.taken_units) for payment in found} == {(PaymentState.FINAL, 1)}
    assert (await one.audit()).is_balanced


async def test_blocks_are_found_by_jumps_along_an_index(sqlite_url: str, open_database: Any) -> None:
    """One search for each block and one for its payments, for any number of payments."""
    plans: list[str] = []
    async with open_database(sqlite_url) as database:

        def explain(_c: Any, cursor: Any, sql: str, values: Any, *_: Any) -> None:
            if "payment" in sql and not sql.startswith("EXPLAIN"):
                rows = cursor.connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
                plans.append(" / ".join(row[3] for row in rows))

        for engine in (database._read_engine, database._write_engine):
            event.listen(engine, "before_cursor_execute", explain)
        ledger = SqlLedger(database, owner_id="one", now_ms=lambda: NOW_MS)
        block = UnfinalBlock(chain_id=CHAIN, number=5, block_hash=b"\x05" * 32, is_agreed=False)
        await ledger.unfinal_blocks(CHAIN, after=block, limit=9)
        await ledger.unfinal_in(block, after_id=0, limit=9)
        await ledger.finish_block(block, is_checked_only=False, now_ms=NOW_MS)
        await ledger.gone_payments(CHAIN, after_id=0, limit=9, now_ms=NOW_MS)
        await ledger.held_unfinal(CHAIN, limit=9)
    jump = "ix_payment_unfinal (chain_id=? AND (block_number,block_hash)>(?,?))"
    in_block = "ix_payment_unfinal (chain_id=? AND block_number=? AND block_hash=?"
    assert plans[0].count(jump) == 2
    assert [in_block in plan for plan in plans[1:3]] == [True, True]
    assert "ix_payment_gone (chain_id=? AND gone_ms>?" in plans[3]
    assert "ix_payment_held (chain_id=?" in plans[4]
    assert not any("SCAN payment" in plan or "SCAN other" in plan for plan in plans)


async def test_what_is_held_by_dispute_is_not_final_before_it_is_freed(ledgers: Any) -> None:
    """A check never frees a final payment."""
    ledger = await ledgers.gateway("one")
    held, other = await pay(ledger, "a"), await pay(ledger, "b")
    await ledger.hold_disputed([held.id])
    (block,) = await ledger.unfinal_blocks(CHAIN, after=None, limit=9)
    assert await ledger.finish_block(block, is_checked_only=False, now_ms=NOW_MS) == 1
    assert [(await read(ledger, one)).state for one in (held, other)] == [
        PaymentState.UNFINAL,
        PaymentState.FINAL,
    ]
    assert await ledger.free_disputed([held.id]) == 1
    assert await ledger.finish_block(block, is_checked_only=False, now_ms=NOW_MS) == 1
    assert isinstance(await ledger.claim(claim_on(held)), Claimed)


async def test_a_payment_that_left_its_chain_while_disputed_returns_spendable(ledger: Any) -> None:
    payment = await pay(ledger, "a")
    await ledger.hold_disputed([payment.id])
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    back = await pay(ledger, "a", 9, is_final=True)
    assert (back.state, back.is_held) == (PaymentState.FINAL, False)
    assert isinstance(await ledger.claim(claim_on(back)), Claimed)
