"""200 payments a second, for some minutes of simulated time; `TORTURE=long` makes it an hour (720,000 payments).

Time passes only while the watcher sleeps. The test uses no real clock: it counts the requests and statements of a check, and measures the
age of the oldest check in simulated time.
"""

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import event, insert, select, text

from tests.kit.chain import MemoryChain, Transaction, transfer_log
from tests.kit.sql_ledger import SqlLedger
from tests.kit.waits import bounded
from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.records import PaymentState
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset
from tollway.payments.reorg_watcher import ReorgWatcher
from tollway.storage.engine.database import Database, SqliteDatabase
from tollway.storage.ledger.ledger_tables import payment_table

IS_LONG = os.environ.get("TORTURE") == "long"
PAYMENTS_PER_S = 200
BLOCK_S = 2
SECONDS = 3_600 if IS_LONG else 60
FINALITY_BLOCKS = 600 if IS_LONG else 10
REORG_BLOCKS = 3
INTERVAL_S = int(DEFAULT_LIMITS.watch_interval_s)

CHAIN = ChainId(8453)
PAYER, PAYEE, TOKEN = (Address(bytes([n]) * 20) for n in (1, 2, 3))
USDC = Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6)
RULES = ChainRules(chain_id=CHAIN, kind="main", confirmations=((0, 1),), assets=(USDC,))


def payment_hash(number: int) -> TxHash:
    return TxHash(number.to_bytes(32, "big"))


class Hour:
    """A chain with a block every two seconds, and a ledger that records all payments in it."""

    def __init__(self, database: Database, ledger: Any) -> None:
        self.database, self.ledger = database, ledger
        self.chain = MemoryChain(CHAIN, finality_depth=FINALITY_BLOCKS, block_time_s=BLOCK_S)
        self.now_s = 1_800_000_000
        self.ends_s = self.now_s + SECONDS
        self.oldest_look_s = 0.0
        self.statements: Counter[str] = Counter()
        self.recorded = 0
        self.reorgs = 0
        self.done = asyncio.Event()
        self.watcher = ReorgWatcher(
            ledger,
            ledger,
            self.chain,
            {CHAIN: RULES},
            limits=DEFAULT_LIMITS,
            now_ms=lambda: self.now_s * 1000,
            on_gone=lambda payment: None,
            sleep=self.sleep,
            clock=lambda: float(self.now_s),
        )

    async def sleep(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / BLOCK_S))):
            self.now_s += BLOCK_S
            await self.mine_payments()
            if self.recorded == PAYMENTS_PER_S * SECONDS // 2:
                await self.replace_blocks()
        self.oldest_look_s = max(self.oldest_look_s, self.watcher.check_age_s(CHAIN))
        if self.now_s >= self.ends_s:
            self.done.set()
            await asyncio.sleep(3600)

    async def mine_payments(self, hashes: list[TxHash] | None = None) -> None:
        block = self.chain.mine(CHAIN)
        count = PAYMENTS_PER_S * BLOCK_S
        rows = [
            {
                "chain_id": CHAIN,
                "tx_hash": payment_hash(self.recorded + number),
                "asset": USDC.key,
                "payer": PAYER,
                "payee": PAYEE,
                "value_units": 10,
                "taken_units": 10,
                "calls": 1,
                "state": PaymentState.UNFINAL.value,
                "block_number": block.number,
                "block_hash": block.block_hash,
                "block_time": block.time,
                "is_plain_ended": False,
                "is_held": False,
                "recorded_ms": self.now_s * 1000,
                "checked_ms": 0,
            }
            for number in range(count)
        ]
        await self.database.write(
            lambda connection: connection.execute(insert(payment_table), rows), flush=False
        )
        self.recorded += count

    async def replace_blocks(self) -> None:
        """Replaces the newest blocks by others with the same transactions."""
        count = PAYMENTS_PER_S * BLOCK_S * REORG_BLOCKS
        transactions = [
            Transaction(
                tx_hash=payment_hash(self.recorded - count + number),
                sender=PAYER,
                recipient=TOKEN,
                logs=(transfer_log(TOKEN, PAYER, PAYEE, 10),),
            )
            for number in range(count)
        ]
        self.chain.reorg(CHAIN, REORG_BLOCKS, *transactions)
        self.reorgs += 1

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self.watcher.run())
            await bounded(self.done.wait())
            watching.cancel()

    async def count_states(self) -> Counter[str]:
        query = select(payment_table.c.state, text("count(*)")).group_by(payment_table.c.state)
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        return Counter({row[0]: row[1] for row in rows})


async def test_at_200_payments_a_second_every_block_is_checked_in_time(database: Database) -> None:
    hour = Hour(database, SqlLedger(database, owner_id="one", now_ms=lambda: hour.now_s * 1000))
    await hour.run()
    states = await hour.count_states()
    looks = hour.chain.requests["fetch_tip", CHAIN]
    print(
        f"{hour.recorded} payments, {looks} looks, {hour.chain.requests}, {hour.chain.heights_read} heights; {states}"
    )

    # Final as soon as their block is: only the youngest are not, and none is lost.
    assert hour.recorded == PAYMENTS_PER_S * SECONDS
    assert states.keys() == {"final", "unfinal"}
    assert states["unfinal"] <= (FINALITY_BLOCKS * BLOCK_S + INTERVAL_S + BLOCK_S) * PAYMENTS_PER_S
    assert hour.oldest_look_s <= INTERVAL_S
    # Requests grow with the blocks and the checks, not with the payments.
    assert looks <= SECONDS // INTERVAL_S + 1
    assert hour.chain.requests["fetch_block_hashes", CHAIN] <= 2 * looks
    blocks = SECONDS // BLOCK_S
    rechecks = blocks * FINALITY_BLOCKS * BLOCK_S // 300
    assert hour.chain.heights_read <= 2 * blocks + looks + rechecks + FINALITY_BLOCKS
    # Receipts are read for the payments in replaced blocks only.
    assert hour.reorgs == 1
    moved = PAYMENTS_PER_S * BLOCK_S * REORG_BLOCKS
    assert hour.chain.requests["review_receipts", CHAIN] <= moved // 40 + REORG_BLOCKS
    assert hour.chain.requests["fetch_facts", CHAIN] == 0
    (block,) = [one.number for one in hour.chain._chains[CHAIN].blocks if one.transactions]
    in_block = select(text("count(*)")).where(payment_table.c.block_number == block)
    assert await database.read(lambda connection: connection.execute(in_block).scalar_one()) == moved


async def test_a_check_takes_five_reads_and_one_statement_for_each_final_block(sqlite_url: str) -> None:
    """The reads: gone payments with unmoved calls, payable debts, a page of blocks, gone payments to look for, held ones."""
    database = SqliteDatabase(Path(sqlite_url.removeprefix("sqlite:///")))
    statements: list[str] = []
    for engine in (database._write_engine, database._read_engine):
        event.listen(engine, "before_cursor_execute", lambda _c, _u, sql, *_: statements.append(sql))
    await database.open()
    hour = Hour(database, SqlLedger(database, owner_id="one", now_ms=lambda: hour.now_s * 1000))
    for _ in range(FINALITY_BLOCKS + 5):
        hour.now_s += BLOCK_S
        await hour.mine_payments()
    statements.clear()
    await hour.watcher.check_once()
    await database.close()
    assert sum(sql.startswith("UPDATE payment") for sql in statements) == 5
    assert sum("FROM payment" in sql and not sql.startswith("UPDATE") for sql in statements) == 5
