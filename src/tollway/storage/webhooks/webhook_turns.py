"""The endpoints whose challenge or message is due, in the order of their turns.

The order is a round robin: endpoints that are not slow before slow ones; the first endpoint of each wallet, then the second of each; among wallets, those
behind the wallet at which the last round ended. The endpoint of a wallet that waits longest is its first one. Of a wallet, an origin and a network no more
rows are returned than attempts may run at once, so rows that cannot begin do not fill the page.

The query reads the range of `ix_webhook_endpoint_due` that is due, and sorts it: its cost grows with the endpoints that are due, not with the events that
wait for them.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, func, literal, select, text

from tollway.limits import Limits
from tollway.storage.webhooks.webhook_tables import CONFIRMED, UNCONFIRMED, endpoint_table
from tollway.webhooks.endpoints import Taken

_endpoint = endpoint_table.c
_NEEDED = (
    *(_endpoint.number, _endpoint.id, _endpoint.wallet, _endpoint.network, _endpoint.origin),
    *(_endpoint.is_slow, _endpoint.due_ms),
)


def find_challenged(
    connection: Connection, *, limits: Limits, now_ms: int, limit: int, taken: Taken
) -> list[Row[Any]]:
    return _find(connection, UNCONFIRMED, limits=limits, now_ms=now_ms, limit=limit, taken=taken)


def find_sending(
    connection: Connection, *, limits: Limits, now_ms: int, limit: int, taken: Taken
) -> list[Row[Any]]:
    return _find(connection, CONFIRMED, limits=limits, now_ms=now_ms, limit=limit, taken=taken)


def _find(
    connection: Connection, states: str, *, limits: Limits, now_ms: int, limit: int, taken: Taken
) -> list[Row[Any]]:
    due: Any = _number_turns(states, now_ms=now_ms, taken=taken).subquery("due")
    is_past: ColumnElement[int] = literal(0)
    if taken.after is not None:
        is_past = case((due.c.wallet <= bytes(taken.after), 1), else_=0)
    order = (due.c.is_slow, due.c.turn, is_past, due.c.wallet)
    of_wallet = due.c.turn <= limits.webhook_in_flight_per_wallet_max
    placed: Any = (
        select(
            due.c.number,
            due.c.network,
            *(column.label(f"turn_{place}") for place, column in enumerate(order)),
            func.row_number().over(partition_by=due.c.origin, order_by=order).label("place"),
        )
        .where(of_wallet)
        .subquery("placed")
    )
    order = tuple(placed.c[f"turn_{place}"] for place in range(len(order)))
    seated: Any = (
        select(placed, func.row_number().over(partition_by=placed.c.network, order_by=order).label("seat"))
        .where(placed.c.place <= max(2, limits.webhook_in_flight_per_origin_max))
        .subquery("seated")
    )
    order = tuple(seated.c[f"turn_{place}"] for place in range(len(order)))
    query = (
        select(endpoint_table)
        .join(seated, seated.c.number == _endpoint.number)
        .where(seated.c.seat <= limits.webhook_in_flight_per_address_max)
        .order_by(*order)
        .limit(limit)
    )
    return list(connection.execute(query))


def _number_turns(states: str, *, now_ms: int, taken: Taken) -> Select[Any]:
    """The due endpoints, each with its turn among those of its wallet."""
    turn = func.row_number().over(
        partition_by=_endpoint.wallet, order_by=(_endpoint.is_slow, _endpoint.due_ms, _endpoint.number)
    )
    query = select(*_NEEDED, turn.label("turn")).where(_endpoint.due_ms <= now_ms, text(states))
    for column, names in (
        (_endpoint.origin, taken.origins),
        (_endpoint.wallet, [bytes(wallet) for wallet in taken.wallets]),
        (_endpoint.network, taken.networks),
    ):
        if names:
            query = query.where(column.not_in(sorted(names)))
    return query
