"""Which payments are not final yet, by their blocks, and what a look at a block changes for all of them. Synchronous.

Statements that change several payments lock them by ascending id, as claims do. The blocks are read by jumps along an
index, one for each block: a block may hold hundreds of payments, and an hour of them is a million rows.
"""

from collections.abc import Sequence

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    LargeBinary,
    ScalarSelect,
    Select,
    bindparam,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    update,
)

from tollway.identifiers import ChainId
from tollway.ledger.block_finality import UnfinalBlock
from tollway.ledger.call import Payment, PaymentState
from tollway.storage.book_rows import parse_payment
from tollway.storage.book_tables import GONE, HELD, UNFINAL, payment_table
from tollway.storage.operator_notes import IS_RESTORED

GONE_RECHECK_MS = 86_400_000
"""For a day after a transaction left the chain it is looked for again."""
NEVER_MS = 0
"""`checked_ms` of a payment whose receipt was not read again since it was recorded, raised or came back."""

_IDS_MAX = 1_000
"""Rows named in one statement; both drivers have a maximum of parameters."""
_BEFORE_ALL = (-1, b"")
_other = payment_table.alias("other")


def unfinal_blocks(
    connection: Connection, *, chain_id: ChainId, after: UnfinalBlock | None, limit: int
) -> tuple[UnfinalBlock, ...]:
    number, block_hash = _BEFORE_ALL if after is None else (after.number, after.block_hash)
    parameters = {"chain_id": chain_id, "number": number, "hash": block_hash, "limit": limit}
    return tuple(
        UnfinalBlock(
            chain_id=chain_id,
            number=row.block_number,
            block_hash=bytes(row.block_hash),
            is_agreed=row.checked_ms > NEVER_MS,
        )
        for row in connection.execute(_BLOCKS, parameters)
    )


def _first_after(number: ColumnElement[int], block_hash: ColumnElement[bytes]) -> ScalarSelect[int]:
    """The payment that stands first in the next block: of those in it, the one that was checked least recently."""
    row = payment_table.alias("row")
    return (
        select(row.c.id)
        .where(
            text("row.state = 'unfinal'"),
            row.c.chain_id == bindparam("chain_id"),
            tuple_(row.c.block_number, row.c.block_hash) > tuple_(number, block_hash),
        )
        .order_by(row.c.block_number, row.c.block_hash, row.c.checked_ms, row.c.id)
        .limit(1)
        .correlate_except(row)
        .scalar_subquery()
    )


def _blocks_query() -> Executable:
    first, following = payment_table.alias("first"), payment_table.alias("following")
    number, block_hash = bindparam("number", type_=BigInteger), bindparam("hash", type_=LargeBinary)
    start = select(
        first.c.block_number, first.c.block_hash, first.c.checked_ms, literal_column("1").label("place")
    ).where(first.c.id == _first_after(number, block_hash))
    block: CTE = start.cte("block", recursive=True)
    behind = block.join(following, following.c.id == _first_after(block.c.block_number, block.c.block_hash))
    step = (
        select(following.c.block_number, following.c.block_hash, following.c.checked_ms, block.c.place + 1)
        .select_from(behind)
        .where(block.c.place < bindparam("limit", type_=BigInteger))
    )
    blocks = block.union_all(step)
    return select(blocks.c.block_number, blocks.c.block_hash, blocks.c.checked_ms).order_by(blocks.c.place)


_BLOCKS = _blocks_query()


def unfinal_in(
    connection: Connection, *, block: UnfinalBlock, after_id: int, limit: int, is_unchecked_only: bool
) -> tuple[Payment, ...]:
    columns = payment_table.c
    query = select(payment_table).where(text(UNFINAL), *_in_block(columns, block), columns.id > after_id)
    if is_unchecked_only:
        query = query.where(columns.checked_ms <= NEVER_MS)
    return _read(connection, query.order_by(columns.id).limit(limit))


def gone_payments(
    connection: Connection, *, chain_id: ChainId, after_id: int, limit: int, now_ms: int
) -> tuple[Payment, ...]:
    columns = payment_table.c
    query = select(payment_table).where(
        text(GONE),
        columns.chain_id == chain_id,
        columns.gone_ms > now_ms - GONE_RECHECK_MS,
        columns.id > after_id,
    )
    return _read(connection, query.order_by(columns.id).limit(limit))


def finish_block(connection: Connection, *, block: UnfinalBlock, is_checked_only: bool, now_ms: int) -> int:
    # What is held by a dispute is freed while it is unfinal, or never.
    is_free = or_(~_other.c.is_held, IS_RESTORED)
    of_block = select(_other.c.id).where(
        text("other.state = 'unfinal'"), *_in_block(_other.c, block), is_free
    )
    if is_checked_only:
        of_block = of_block.where(_other.c.checked_ms > NEVER_MS)
    final = {"state": PaymentState.FINAL.value, "checked_ms": now_ms}
    return connection.execute(_update_in_order(of_block, **final)).rowcount


def mark_checked(
    connection: Connection, *, payment_ids: Sequence[int], block_number: int, block_hash: bytes, now_ms: int
) -> None:
    place = {"block_number": block_number, "block_hash": block_hash, "checked_ms": now_ms}
    for ids in _payment_id_chunks(payment_ids):
        unfinal = select(_other.c.id).where(_other.c.id.in_(ids), text("other.state = 'unfinal'"))
        connection.execute(_update_in_order(unfinal, **place))


def hold_disputed(connection: Connection, *, payment_ids: Sequence[int]) -> int:
    held = 0
    for ids in _payment_id_chunks(payment_ids):
        spendable = select(_other.c.id).where(
            _other.c.id.in_(ids), text("other.state = 'unfinal'"), ~_other.c.is_held
        )
        held += connection.execute(_update_in_order(spendable, is_held=True)).rowcount
    return held


def held_unfinal(connection: Connection, *, chain_id: ChainId, limit: int) -> tuple[Payment, ...]:
    columns = payment_table.c
    query = select(payment_table).where(text(HELD), columns.chain_id == chain_id, ~IS_RESTORED)
    return _read(connection, query.order_by(columns.id).limit(limit))


def free_disputed(connection: Connection, *, payment_ids: Sequence[int]) -> int:
    """What is held while no restore is unreleased is held by `hold_disputed` alone."""
    freed = 0
    columns = payment_table.c
    for ids in _payment_id_chunks(payment_ids):
        # Locked first: from then on `mark_restored` waits for us, and the next statement sees what it wrote before.
        rows = select(columns.id).where(columns.id.in_(ids), columns.is_held).order_by(columns.id)
        locked = connection.execute(rows.with_for_update()).scalars().all()
        if locked:
            freeing = update(payment_table).where(columns.id.in_(locked), ~IS_RESTORED)
            freed += connection.execute(freeing.values(is_held=False)).rowcount
    return freed


def _update_in_order(ids: Select[int], **values: object) -> Executable:
    in_order = ids.order_by(_other.c.id).with_for_update()
    return update(payment_table).where(payment_table.c.id.in_(in_order)).values(**values)


def _in_block(columns: object, block: UnfinalBlock) -> tuple[ColumnElement[bool], ...]:
    return (
        columns.chain_id == block.chain_id,  # type: ignore[attr-defined]  # of the table, or of another name of it
        columns.block_number == block.number,  # type: ignore[attr-defined]
        columns.block_hash == block.block_hash,  # type: ignore[attr-defined]
    )


def _read(connection: Connection, query: Select[tuple[object, ...]]) -> tuple[Payment, ...]:
    return tuple(map(parse_payment, connection.execute(query)))


def _payment_id_chunks(ids: Sequence[int]) -> list[list[int]]:
    ordered = sorted(set(ids))
    return [ordered[start : start + _IDS_MAX] for start in range(0, len(ordered), _IDS_MAX)]
