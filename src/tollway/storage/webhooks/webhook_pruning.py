"""Deletes the deliveries and messages of webhooks that have ended: old ones, and those of a removed endpoint. An event goes with its last delivery.

A run finds rows by an index in read transactions and deletes them in small ones, so no writer waits for long. It repeats while a page is full: a busy
gateway ends as many deliveries as it makes. A row that its owner sends again between the two is pending, and stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from sqlalchemy import Column, Connection, Row, Select, Table, delete, exists, select, text, tuple_

from tollway.storage.engine.database import Database, write_retried
from tollway.storage.webhooks.webhook_tables import SETTLED, delivery_table, event_table, message_table
from tollway.webhooks.endpoints import DeliveryState

DELIVERED_KEPT_MS = 7 * 86_400_000
DEAD_KEPT_MS = 30 * 86_400_000
PRUNE_MAX = 1_000
ROUNDS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """A table with rows of endpoints. `key`: its primary key. `settled_ms`: when a row got its last state."""

    table: Table
    key: tuple[Column[Any], ...]
    settled_ms: Column[Any]


DELIVERIES = Prunable(
    table=delivery_table,
    key=(delivery_table.c.event_no, delivery_table.c.endpoint_no),
    settled_ms=delivery_table.c.settled_ms,
)
MESSAGES = Prunable(table=message_table, key=(message_table.c.number,), settled_ms=message_table.c.last_ms)
KEPT_MS = {DeliveryState.DELIVERED: DELIVERED_KEPT_MS, DeliveryState.DEAD: DEAD_KEPT_MS}

Key = tuple[int, ...]


async def prune_settled(database: Database, *, now_ms: int) -> None:
    for rows, (state, kept_ms) in product((DELIVERIES, MESSAGES), KEPT_MS.items()):
        from_ms = 0
        for _ in range(ROUNDS_MAX):
            find = partial(find_settled, rows=rows, state=state, from_ms=from_ms, until_ms=now_ms - kept_ms)
            if found := await database.read(find):
                named = [tuple(row)[1:] for row in found]
                await write_retried(database, partial(delete_settled, rows=rows, named=named), flush=False)
            if len(found) < PRUNE_MAX:
                break
            from_ms = found[-1].settled_ms


async def delete_settled_of(database: Database, endpoint_no: int) -> None:
    """Deletes the settled rows of a removed endpoint, the first `ROUNDS_MAX` pages. The others are pruned by their age."""
    for rows in (DELIVERIES, MESSAGES):
        for _ in range(ROUNDS_MAX):
            page = partial(_delete_page, rows=rows, endpoint_no=endpoint_no)
            if await write_retried(database, page, flush=False) < PRUNE_MAX:
                break


def find_settled(
    connection: Connection, rows: Prunable, state: DeliveryState, *, from_ms: int, until_ms: int
) -> list[Row[Any]]:
    """The oldest rows of a state from one moment up to another: the moment, and the key."""
    query: Select[Any] = (
        select(rows.settled_ms.label("settled_ms"), *rows.key)
        .where(
            text(SETTLED),
            rows.table.c.state == state.value,
            rows.settled_ms >= from_ms,
            rows.settled_ms < until_ms,
        )
        .order_by(rows.settled_ms)
        .limit(PRUNE_MAX)
    )
    return list(connection.execute(query))


def delete_settled(connection: Connection, rows: Prunable, *, named: Iterable[Key]) -> None:
    keys = sorted(named)
    events = sorted({key[0] for key in keys}) if rows is DELIVERIES else []
    if events:
        # Of two transactions that delete the last deliveries of an event, the later one sees that there are none.
        locked = select(event_table.c.number).where(event_table.c.number.in_(events))
        connection.execute(locked.order_by(event_table.c.number).with_for_update()).all()
    connection.execute(delete(rows.table).where(tuple_(*rows.key).in_(keys), text(SETTLED)))
    if events:
        is_delivered = exists().where(delivery_table.c.event_no == event_table.c.number)
        connection.execute(delete(event_table).where(event_table.c.number.in_(events), ~is_delivered))


def _delete_page(connection: Connection, rows: Prunable, *, endpoint_no: int) -> int:
    is_of_endpoint = rows.table.c.endpoint_no == endpoint_no
    page = select(*rows.key).where(is_of_endpoint, text(SETTLED)).limit(PRUNE_MAX)
    named = [tuple(row) for row in connection.execute(page)]
    if named:
        delete_settled(connection, rows, named=named)
    return len(named)
