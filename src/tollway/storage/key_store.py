"""Idempotency keys in SQL: which call a key of a wallet has named. Plain functions over a connection; never writes.

On PostgreSQL claims under one key take turns by an advisory lock, taken after those of wallets and before any row: what
`find_keyed_calls` reads in the same transaction then stays true until its end. Who is granted is decided in `ledger/claims`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    LargeBinary,
    Select,
    String,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY

from tollway.identifiers import Address, CallId, ChainId, ListingId
from tollway.ledger.authorization import AuthorizationKey
from tollway.ledger.book import Claim
from tollway.ledger.call import CallState
from tollway.ledger.claims import key_name
from tollway.ledger.keyed_calls import KeyedCall, KeyName
from tollway.storage.answer_store import has_stored_response
from tollway.storage.authorization_tables import authorization_table
from tollway.storage.book_tables import call_table
from tollway.storage.statements import Prepared
from tollway.storage.turns import take_advisory_locks

_LOCK_SPACE = 0x6B657973  # any constant of ours


def lock_keys(connection: Connection, claims: Iterable[Claim]) -> None:
    """Lets other gateways wait that claim under the same keys, until this transaction has ended."""
    names = filter(None, map(key_name, claims))
    take_advisory_locks(connection, (name.payer + name.key.encode() for name in names), space=_LOCK_SPACE)


def find_keyed_calls(
    connection: Connection, claims: Iterable[Claim], *, since_ms: int, answered_since_ms: int
) -> dict[KeyName, KeyedCall]:
    """What the keys of these claims have named. Their locks are taken."""
    names = sorted({name for name in map(key_name, claims) if name is not None})
    if not names:
        return {}
    times = {"since_ms": since_ms, "answered_since_ms": answered_since_ms}
    if connection.dialect.name == "sqlite":
        rows = _KEYED_SQLITE.fetch(connection, names=[(name.payer, name.key) for name in names], **times)
    else:
        payers, keys = map(list, zip(*names, strict=True))
        rows = _KEYED_POSTGRES.fetch(connection, payers=payers, keys=keys, **times)
    # They come in order of time: of several the newest stays.
    return {
        KeyName(call_payer, call_key): call for call_payer, call_key, call in map(_parse_keyed_call, rows)
    }


def find_keyed_call(
    connection: Connection, payer: Address, idempotency_key: str, *, since_ms: int, answered_since_ms: int
) -> KeyedCall | None:
    rows = _KEYED_NEWEST.fetch(
        connection,
        payer=payer,
        idempotency_key=idempotency_key,
        since_ms=since_ms,
        answered_since_ms=answered_since_ms,
    )
    return _parse_keyed_call(rows[0])[2] if rows else None


def _keyed_query() -> Select[Any]:
    columns, authorizations = call_table.c, authorization_table.c
    answered_since_ms: Any = bindparam("answered_since_ms")
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
            has_stored_response(columns.id, since_ms=answered_since_ms).label("has_stored_response"),
        )
        .outerjoin(authorization_table, authorizations.call_id == columns.id)
        .where(
            columns.created_ms >= bindparam("since_ms"),
            columns.state != literal_column("'released'"),
            text("idempotency_key IS NOT NULL"),  # literal, for the index
        )
    )


def _keyed_join_query() -> Select[Any]:
    """PostgreSQL would plan a search for each member of a list; a join it plans once."""
    columns = call_table.c
    given = func.unnest(
        bindparam("payers", type_=ARRAY(LargeBinary)), bindparam("keys", type_=ARRAY(String))
    ).table_valued("payer", "key", name="named")
    named = given.render_derived()
    is_named = and_(named.c.payer == columns.payer, named.c.key == columns.idempotency_key)
    return _keyed_query().join(named, is_named)


_IN_TIME = (call_table.c.created_ms, call_table.c.id)
_KEYED_SQLITE = Prepared(
    _keyed_query()
    .where(tuple_(call_table.c.payer, call_table.c.idempotency_key).in_(bindparam("names", expanding=True)))
    .order_by(*_IN_TIME)
)
_KEYED_POSTGRES = Prepared(_keyed_join_query().order_by(*_IN_TIME))
_KEYED_NEWEST = Prepared(
    _keyed_query()
    .where(
        call_table.c.payer == bindparam("payer"),
        call_table.c.idempotency_key == bindparam("idempotency_key"),
    )
    .order_by(*(column.desc() for column in _IN_TIME))
    .limit(literal_column("1"))
)


def _parse_keyed_call(row: Sequence[Any]) -> tuple[Address, str, KeyedCall]:
    (
        call_id,
        payer_bytes,
        key,
        listing_id,
        digest,
        state_name,
        epoch,
        price,
        price_units,
        payment_id,
        cut,
        delivery,
        moved_ms,
        chain_id,
        asset,
        nonce,
        is_answered,
    ) = row
    payer, state = Address(payer_bytes), CallState(state_name)
    authorization = None
    if nonce is not None:
        authorization = AuthorizationKey(ChainId(chain_id), asset, payer, bytes(nonce))
    call = KeyedCall(
        call_id=CallId(call_id),
        listing_id=ListingId(listing_id),
        digest=bytes(digest),
        state=state,
        epoch=epoch,
        price=price,
        price_units=price_units,
        payment_id=payment_id,
        moved_ms=moved_ms,
        authorization=authorization,
        has_stored_response=bool(is_answered),
        is_lost=state is CallState.CONSUMED and cut == "cut",
        is_delivered=delivery is not None,
    )
    return payer, key, call
