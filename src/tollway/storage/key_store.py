"""Idempotency keys in SQL: which call a key of a wallet has named. Plain functions over a connection; never writes.

On PostgreSQL claims under one key take turns by an advisory lock, taken after those of wallets and before any row: what
`find_named` reads in the same transaction then stays true until its end. Who is granted is decided in `ledger/claims`.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, Select, literal_column, select, text, tuple_

from tollway.identifiers import Address, CallId, ChainId, ListingId
from tollway.ledger.authorization import AuthorizationKey
from tollway.ledger.book import Claim
from tollway.ledger.call import CallState
from tollway.ledger.claims import key_name
from tollway.ledger.keyed_calls import KeyedCall, KeyName
from tollway.storage.answer_store import has_answer
from tollway.storage.authorization_tables import authorization_table
from tollway.storage.book_tables import call_table
from tollway.storage.turns import take_turns

_LOCK_SPACE = 0x6B657973  # any constant of ours
_NAMES_AT_ONCE = 256
"""PostgreSQL plans a search for each."""


def lock_keys(connection: Connection, claims: Iterable[Claim]) -> None:
    """Lets other gateways wait that claim under the same keys, until this transaction has ended."""
    names = filter(None, map(key_name, claims))
    take_turns(connection, (name.payer + name.key.encode() for name in names), space=_LOCK_SPACE)


def find_named(
    connection: Connection, claims: Iterable[Claim], *, since_ms: int, answered_since_ms: int
) -> dict[KeyName, KeyedCall]:
    """What the keys of these claims have named. Their locks are taken."""
    names = sorted({name for name in map(key_name, claims) if name is not None})
    columns = call_table.c
    found: dict[KeyName, KeyedCall] = {}
    for start in range(0, len(names), _NAMES_AT_ONCE):
        some = [(bytes(name.payer), name.key) for name in names[start : start + _NAMES_AT_ONCE]]
        query = (
            _keyed_query(since_ms, answered_since_ms)
            .where(tuple_(columns.payer, columns.idempotency_key).in_(some))
            .order_by(columns.created_ms, columns.id)  # of several the newest stays
        )
        for row in connection.execute(query):
            found[KeyName(Address(row.payer), row.idempotency_key)] = _parse_keyed(row)
    return found


def find_keyed(
    connection: Connection, payer: Address, idempotency_key: str, *, since_ms: int, answered_since_ms: int
) -> KeyedCall | None:
    columns = call_table.c
    query = (
        _keyed_query(since_ms, answered_since_ms)
        .where(columns.payer == payer, columns.idempotency_key == idempotency_key)
        .order_by(columns.created_ms.desc(), columns.id.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    return None if row is None else _parse_keyed(row)


def _keyed_query(since_ms: int, answered_since_ms: int) -> Select[Any]:
    columns, authorizations = call_table.c, authorization_table.c
    return (
        select(
            columns.id,
            columns.payer,
            columns.idempotency_key,
            columns.listing_id,
            columns.digest,
            columns.state,
            columns.epoch,
            columns.price,
            columns.price_units,
            columns.payment_id,
            columns.cut,
            columns.delivery,
            columns.moved_ms,
            authorizations.chain_id.label("authorized_chain"),
            authorizations.asset.label("authorized_asset"),
            authorizations.nonce.label("authorized_nonce"),
            has_answer(columns.id, since_ms=answered_since_ms).label("has_answer"),
        )
        .outerjoin(authorization_table, authorizations.call_id == columns.id)
        .where(
            columns.created_ms >= since_ms,
            columns.state != literal_column("'released'"),
            text("idempotency_key IS NOT NULL"),  # literal, for the index
        )
    )


def _parse_keyed(row: Row[Any]) -> KeyedCall:
    state, authorization = CallState(row.state), None
    if row.authorized_nonce is not None:
        authorization = AuthorizationKey(
            ChainId(row.authorized_chain),
            row.authorized_asset,
            Address(row.payer),
            bytes(row.authorized_nonce),
        )
    return KeyedCall(
        call_id=CallId(row.id),
        listing_id=ListingId(row.listing_id),
        digest=bytes(row.digest),
        state=state,
        epoch=row.epoch,
        price=row.price,
        price_units=row.price_units,
        payment_id=row.payment_id,
        moved_ms=row.moved_ms,
        authorization=authorization,
        has_answer=bool(row.has_answer),
        is_lost=state is CallState.CONSUMED and row.cut == "cut",
        is_delivered=row.delivery is not None,
    )
