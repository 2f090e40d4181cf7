"""Repeated requests in SQL: the stored response of a call, the call of an idempotency key, the open call of a request.

Stored responses are encrypted and bounded in size and time; `response_pool` deletes some for a new one.

On PostgreSQL, claims under one key take advisory locks, after those of wallets and before any row: the result of `find_keyed_calls`
is valid until the end of the transaction. A claim reads open calls under the lock of the payment, which the transaction that
opens, ends or reopens such a call holds too. `ledger/claims` decides.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import structlog
from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    String,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY

from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, ChainId, ListingId
from tollway.ledger.claims import key_name, request_name
from tollway.ledger.ledger import Claim, StoredResponse
from tollway.ledger.records import AuthorizationKey, CallState, KeyedCall, KeyName, OpenCall, RequestName
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.engine.advisory_locks import take_advisory_locks
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.statements import Prepared, Rows, insert_for
from tollway.storage.ledger.ledger_tables import REPEATABLE, authorization_table, call_table, call_terms_table
from tollway.storage.ledger.response_pool import (
    RECOUNT_MS,
    NoSpace,
    PooledResponse,
    PoolSums,
    make_space,
    read_sums,
    recount_bytes,
    stored_response_table,
)

_log = structlog.get_logger(__name__)


class ResponseStore:
    """Implements `StoredResponses`."""

    def __init__(self, database: Database, *, sealer: Sealer, limits: Limits = DEFAULT_LIMITS) -> None:
        self._database = database
        self._sealer = sealer
        self._limits = limits
        self._sums = PoolSums()
        self._is_loss_logged = False

    async def keep(
        self, call_id: CallId, answer: StoredResponse, *, payer: Address, provider: Address, now_ms: int
    ) -> bool:
        limits, plain = self._limits, encode_stored_response(answer)
        new = PooledResponse(call_id, bytes(payer), bytes(provider), len(plain), now_ms)
        if new.bytes > limits.response_bytes_max or PoolSums().is_over(new, limits):
            return False
        sums = await self._read_sums(new)
        is_over = sums.is_over(new, limits)
        sums.add(new)
        surplus = max(sums.total - limits.responses_bytes_max - sums.freeing, 0)
        sums.freeing += surplus
        sealed = self._sealer.seal(plain, label=response_label(call_id))
        work = _Keep(new, sealed, sums.copy() if is_over else None, surplus, limits)
        try:
            deleted = await write_retried(self._database, work)
        except NoSpace:
            sums.remove(new)
            return False
        except BaseException:
            sums.remove(new)
            raise
        finally:
            sums.freeing -= surplus
        for response in deleted:
            sums.remove(response)
        return True

    async def _read_sums(self, new: PooledResponse) -> PoolSums:
        """The sums, read again where they may have changed too much. Meanwhile other responses count on the earlier ones."""
        sums, limits = self._sums, self._limits
        is_old = abs(new.created_ms - sums.counted_ms) >= RECOUNT_MS and sums.is_over(new, limits)
        if sums.bytes_until_recount >= new.bytes and not is_old:
            sums.bytes_until_recount -= new.bytes
            return sums
        sums.bytes_until_recount, sums.counted_ms = recount_bytes(limits), new.created_ms
        count = partial(read_sums, now_ms=new.created_ms, limits=limits)
        try:
            self._sums = await self._database.read(count)
        except BaseException:
            sums.bytes_until_recount = 0
            raise
        return self._sums

    async def find(self, call_id: CallId, *, now_ms: int) -> StoredResponse | None:
        columns = stored_response_table.c
        query = select(columns.sealed).where(
            columns.call_id == call_id, columns.created_ms > self._oldest_ms(now_ms)
        )
        sealed = await self._database.read(lambda connection: connection.execute(query).scalar())
        if sealed is None:
            return None
        try:
            plain = self._sealer.open(bytes(sealed), label=response_label(call_id))
        except StorageUnavailable:
            # The same as a response that is not stored: a repeat must get the outcome of its call, which is paid.
            if not self._is_loss_logged:
                self._is_loss_logged = True
                _log.error("stored_response_lost", call_id=call_id)
            return None
        return decode_stored_response(plain)

    async def prune(self, *, now_ms: int) -> int:
        old = delete(stored_response_table).where(
            stored_response_table.c.created_ms <= self._oldest_ms(now_ms)
        )
        count = await self._database.write(lambda connection: connection.execute(old).rowcount, flush=False)
        if count:
            self._sums.bytes_until_recount = 0
        return count

    def _oldest_ms(self, now_ms: int) -> int:
        return now_ms - self._limits.response_ttl_s * 1000


@dataclass(frozen=True, slots=True)
class _Keep:
    """The transaction that stores a response. `sums`: where responses must be deleted for it. Returns those. It may run again."""

    new: PooledResponse
    sealed: bytes = field(repr=False)
    sums: PoolSums | None
    total_surplus: int
    limits: Limits

    def __call__(self, connection: Connection) -> list[PooledResponse]:
        deleted: list[PooledResponse] = []
        if self.sums is not None:
            deleted = make_space(
                connection, self.new, self.sums.copy(), total_surplus=self.total_surplus, limits=self.limits
            )
        row = {**self.new._asdict(), "sealed": self.sealed}
        insert = insert_for(connection, stored_response_table)
        changed = {name: insert.excluded[name] for name in row if name != "call_id"}
        connection.execute(insert.on_conflict_do_update(index_elements=["call_id"], set_=changed), row)
        return deleted


_LENGTH = struct.Struct(">I")


def encode_stored_response(answer: StoredResponse) -> bytes:
    """Status, header names and values, body: each with its length before it."""
    head = [part for header in answer.headers for part in header]
    parts = [str(answer.status).encode(), *head, answer.body]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def decode_stored_response(encoded: bytes) -> StoredResponse:
    parts: list[bytes] = []
    at = 0
    while at < len(encoded):
        (length,) = _LENGTH.unpack_from(encoded, at)
        at += _LENGTH.size + length
        parts.append(encoded[at - length : at])
    status, *head, body = parts
    headers = tuple(zip(head[::2], head[1::2], strict=True))
    return StoredResponse(status=int(status), headers=headers, body=body)


def has_stored_response(
    call_id: ColumnElement[str], *, since_ms: int | BindParameter[int]
) -> ColumnElement[bool]:
    columns = stored_response_table.c
    return exists(select(columns.call_id).where(columns.call_id == call_id, columns.created_ms > since_ms))


def response_label(call_id: CallId) -> bytes:
    return b"answer:" + call_id.encode()


_LOCK_SPACE = 0x6B657973


def lock_keys(connection: Connection, claims: Iterable[Claim]) -> None:
    """Locks the idempotency keys of the claims until the end of the transaction: claims of other gateways under them wait."""
    names = filter(None, map(key_name, claims))
    take_advisory_locks(connection, (name.payer + name.key.encode() for name in names), space=_LOCK_SPACE)


def find_keyed_calls(
    connection: Connection, claims: Iterable[Claim], *, since_ms: int, responded_since_ms: int
) -> dict[KeyName, KeyedCall]:
    """The calls of these claims' idempotency keys. Call it under `lock_keys`."""
    names = sorted({name for name in map(key_name, claims) if name is not None})
    if not names:
        return {}
    times = {"since_ms": since_ms, "responded_since_ms": responded_since_ms}
    if connection.dialect.name == "sqlite":
        rows = _KEYED_SQLITE.fetch(connection, names=[(name.payer, name.key) for name in names], **times)
    else:
        payers, keys = map(list, zip(*names, strict=True))
        rows = _KEYED_POSTGRES.fetch(connection, payers=payers, keys=keys, **times)
    # The rows are in order of time, so the newest call of a key stays.
    return {
        KeyName(call_payer, call_key): call for call_payer, call_key, call in map(_parse_keyed_call, rows)
    }


def find_keyed_call(
    connection: Connection, payer: Address, idempotency_key: str, *, since_ms: int, responded_since_ms: int
) -> KeyedCall | None:
    rows = _KEYED_NEWEST.fetch(
        connection,
        payer=payer,
        idempotency_key=idempotency_key,
        since_ms=since_ms,
        responded_since_ms=responded_since_ms,
    )
    return _parse_keyed_call(rows[0])[2] if rows else None


def _keyed_query() -> Select[Any]:
    columns, authorizations, terms = call_table.c, authorization_table.c, call_terms_table.c
    responded_since_ms: Any = bindparam("responded_since_ms")
    return (
        select(
            columns.id,
            columns.payer,
            columns.idempotency_key,
            terms.listing_id,
            columns.digest,
            columns.state,
            columns.epoch,
            terms.price,
            columns.price_units,
            terms.metering,
            columns.actual_units,
            columns.payment_id,
            columns.cut,
            columns.delivery,
            columns.moved_ms,
            authorizations.chain_id.label("authorized_chain"),
            authorizations.asset.label("authorized_asset"),
            authorizations.nonce.label("authorized_nonce"),
            has_stored_response(columns.id, since_ms=responded_since_ms).label("has_stored_response"),
        )
        .join(call_terms_table, terms.id == columns.terms_id)
        .outerjoin(authorization_table, authorizations.call_id == columns.id)
        .where(
            columns.created_ms >= bindparam("since_ms"),
            columns.state != literal_column("'released'"),
            # Literal, for the index.
            text("idempotency_key IS NOT NULL"),
        )
    )


def _keyed_join_query() -> Select[Any]:
    """A join with the keys, because PostgreSQL would plan a search for each member of a list."""
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
        metering,
        actual_units,
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
        metering=metering,
        actual_units=actual_units,
        payment_id=payment_id,
        moved_ms=moved_ms,
        authorization=authorization,
        has_stored_response=bool(is_answered),
        is_lost=state is CallState.CONSUMED and cut == "cut",
        is_delivered=delivery is not None,
    )
    return payer, key, call


_REPEATABLE_STATES = (CallState.FORWARDING.value, CallState.UNKNOWN.value, CallState.CONSUMED.value)

_COLUMNS = (
    "id",
    "payment_id",
    "digest",
    "state",
    "epoch",
    "attempts",
    "cut",
    "created_ms",
    "price_units",
    "actual_units",
)
_ID, _CREATED = map(_COLUMNS.index, ("id", "created_ms"))


def find_open_calls(connection: Connection, claims: Iterable[Claim]) -> dict[RequestName, OpenCall]:
    """The newest open call of each request, with one query. The payments are locked."""
    names = sorted({name for name in map(request_name, claims) if name is not None})
    if not names:
        return {}
    if connection.dialect.name == "sqlite":
        return _newest_of(_OPEN_SQLITE.fetch(connection, names=names))
    payment_ids, digests = map(list, zip(*names, strict=True))
    return _newest_of(_OPEN_POSTGRES.fetch(connection, payment_ids=payment_ids, digests=digests))


def find_open_call(connection: Connection, payment_id: int, digest: bytes) -> OpenCall | None:
    found = _newest_of(_OPEN_ONE.fetch(connection, payment_id=payment_id, digest=digest))
    return found.get(RequestName(payment_id, digest))


def _open_query() -> Select[Any]:
    own = (call_table.c[name] for name in _COLUMNS)
    query = select(*own, call_terms_table.c.price, call_terms_table.c.metering).join(
        call_terms_table, call_terms_table.c.id == call_table.c.terms_id
    )
    # Literal, for the index.
    return query.where(text(f"({REPEATABLE})"))


def _open_join_query() -> Select[Any]:
    """A join with the requests, because PostgreSQL would plan a search for each member of a list."""
    payment_ids = bindparam("payment_ids", type_=ARRAY(BigInteger))
    digests = bindparam("digests", type_=ARRAY(LargeBinary))
    named = (
        func.unnest(payment_ids, digests).table_valued("payment_id", "digest", name="named").render_derived()
    )
    columns = call_table.c
    return _open_query().join(
        named, and_(named.c.payment_id == columns.payment_id, named.c.digest == columns.digest)
    )


_OPEN_SQLITE = Prepared(
    _open_query().where(
        tuple_(call_table.c.payment_id, call_table.c.digest).in_(bindparam("names", expanding=True))
    )
)
_OPEN_POSTGRES = Prepared(_open_join_query())
_OPEN_ONE = Prepared(
    _open_query().where(
        call_table.c.payment_id == bindparam("payment_id"), call_table.c.digest == bindparam("digest")
    )
)


def _newest_of(rows: Rows) -> dict[RequestName, OpenCall]:
    """The newest call of each request. Sorted in memory: with an ORDER BY SQLite would walk every call of the payment."""
    found: dict[RequestName, OpenCall] = {}
    for row in sorted(rows, key=itemgetter(_CREATED, _ID)):
        call_id, payment_id, digest, state, epoch, attempts, cut, _, *priced = row
        price_units, actual_units, price, metering = priced
        if cut != "cut" or state in _REPEATABLE_STATES:
            found[RequestName(payment_id, bytes(digest))] = OpenCall(
                call_id=CallId(call_id),
                state=CallState(state),
                epoch=epoch,
                attempts=attempts,
                price=price,
                price_units=price_units,
                metering=metering,
                actual_units=actual_units,
            )
    return found
