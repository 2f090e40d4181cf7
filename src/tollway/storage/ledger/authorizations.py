"""Authorisations in SQL: the call of an authorisation, the authorisations that count against a balance, the queue of settlement recovery (`take_unsettled`).

Plain functions over a connection; `ledger_batch`, `settlement`, `recovery` and `ledger_store` run them, and `ledger/claims` decides.
On PostgreSQL, claims on one wallet's balance take an advisory lock before every other lock of a batch; SQLite has one writer.
"""

from collections import namedtuple
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    exists,
    insert,
    literal_column,
    or_,
    select,
    text,
    update,
)

from tollway.ids import Address, CallId, ChainId, ListingId, TxHash
from tollway.ledger.channels import ChannelName
from tollway.ledger.claims import (
    CreditAccount,
    KnownAuthorization,
    PayerAccount,
    channel_name,
    payer_account_of,
)
from tollway.ledger.ledger import POSTPONED_MS_MAX, Claim
from tollway.ledger.records import (
    Authorization,
    AuthorizationKey,
    AuthorizedCall,
    CallState,
    ChannelDeposit,
    Dialect,
    Usage,
)
from tollway.payments.deployment import is_wrapped
from tollway.storage.engine.advisory_locks import take_advisory_locks
from tollway.storage.engine.statements import Prepared, Within
from tollway.storage.ledger.channel_rows import read_channels
from tollway.storage.ledger.idempotency import has_stored_response
from tollway.storage.ledger.ledger_tables import (
    MOVING,
    attempt_table,
    authorization_table,
    call_table,
    call_terms_table,
)
from tollway.storage.ledger.locked_rows import check_count, usage_columns

LOCK_SPACE = 0x70757273


def find_authorized_call(
    connection: Connection, key: AuthorizationKey, *, responded_since_ms: int
) -> AuthorizedCall | None:
    rows = _FIND_AUTHORIZED.fetch(
        connection,
        nonce=key.nonce,
        chain_id=key.chain_id,
        asset=key.asset,
        payer=key.payer,
        responded_since_ms=responded_since_ms,
    )
    return _parse_each(connection, [_AuthorizedRow(*rows[0])])[0] if rows else None


def read_authorized(
    connection: Connection, *, which: ColumnElement[bool], limit: int, responded_since_ms: int
) -> tuple[AuthorizedCall, ...]:
    query = _authorized_query(responded_since_ms).where(which).order_by(call_table.c.id).limit(limit)
    return tuple(_parse_each(connection, connection.execute(query).all()))


def take_unsettled(
    connection: Connection, *, limit: int, now_ms: int, hold_ms: int, responded_since_ms: int
) -> tuple[AuthorizedCall, ...]:
    """Takes orphaned calls, and calls that were unknown for `hold_ms`, from the queue of settlement recovery, the least recently checked first,
    and puts them to its end. `looked_ms` is the next check of a postponed call, and the last check of another one."""
    columns, calls = authorization_table.c, call_table.c
    # These times were written before the clock was set back.
    too_far = update(authorization_table).where(
        columns.looked_ms > now_ms + POSTPONED_MS_MAX, text("is_adrift")
    )
    connection.execute(too_far.values(looked_ms=now_ms))
    in_order = (
        select(columns.looked_ms, columns.call_id)
        .where(columns.looked_ms <= now_ms)
        .order_by(columns.looked_ms, columns.call_id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=authorization_table)
    )
    orphaned = in_order.where(text("is_adrift"))
    overdue = in_order.join(call_table, calls.id == columns.call_id).where(
        _is_unknown(), calls.moved_ms <= now_ms - hold_ms, columns.settled_block.is_(None)
    )
    rows = [tuple(row) for query in (orphaned, overdue) for row in connection.execute(query)]
    ids = [call_id for _, call_id in sorted(rows)[:limit]]
    if not ids:
        return ()
    connection.execute(update(authorization_table).where(columns.call_id.in_(ids)).values(looked_ms=now_ms))
    query = _authorized_query(responded_since_ms).where(columns.call_id.in_(ids))
    found = {one.call_id: one for one in _parse_each(connection, connection.execute(query).all())}
    return tuple(found[call_id] for call_id in ids)


def postpone(connection: Connection, *, call_id: CallId, until_ms: int) -> None:
    columns = authorization_table.c
    unknown = select(call_table.c.id).where(call_table.c.id == call_id, _is_unknown())
    at = update(authorization_table).where(
        columns.call_id == call_id, or_(columns.is_adrift, columns.call_id.in_(unknown))
    )
    connection.execute(at.values(looked_ms=until_ms))


def find_account(connection: Connection, call_id: CallId) -> CreditAccount:
    columns = authorization_table.c
    row = connection.execute(
        select(columns.chain_id, columns.asset, columns.payer, columns.payee).where(
            columns.call_id == call_id
        )
    ).one()
    return CreditAccount(ChainId(row.chain_id), row.asset, Address(row.payer), Address(row.payee))


def lock_wallets(
    connection: Connection, claims: Iterable[Claim], *, limited: Collection[PayerAccount] = frozenset()
) -> None:
    """Locks the balances of the claims' wallets and of `limited`, and what the payers of channels owe, until the end of the transaction: claims of other gateways on
    them wait."""
    wallets = {payer_account_of(one.authorization.key) for one in claims if one.authorization is not None}
    owing = {one.payer for one in claims if one.channel is not None and one.payer is not None}
    names = [f"{one.chain_id}:{one.asset}:{one.payer.hex()}".encode() for one in wallets.union(limited)]
    names += [payer.hex().encode() for payer in owing]
    take_advisory_locks(connection, names, space=LOCK_SPACE)


def find_known(connection: Connection, claims: Sequence[Claim]) -> list[KnownAuthorization]:
    """The known authorisations among those of the claims, and all that may count against the balances of the claims."""
    authorized = [claim for claim in claims if claim.authorization is not None]
    if not authorized:
        return []
    keys = [claim.authorization.key for claim in authorized if claim.authorization is not None]
    # Several searches by index, because one search with OR would walk the table. The order matters: on PostgreSQL each search sees
    # the commits before its beginning, so a call that is concluded between two searches is found by the later one. In another
    # order it could be in neither, and its units would count as available.
    rows = [
        # May also find authorisations of other payers with the same nonce; they do no harm.
        *_KNOWN_OF_KEYS.fetch(connection, nonces=list({key.nonce for key in keys})),
        *_KNOWN_MOVING.fetch(connection, payers=list({key.payer for key in keys})),
        *_fetch_settled_since(connection, authorized),
    ]
    return list({one.key: one for one in map(_parse_known, rows)}.values())


def _fetch_settled_since(connection: Connection, claims: Iterable[Claim]) -> list[Sequence[Any]]:
    """Transfers after the balances of these claims were read. A search for each chain, because block numbers of chains differ."""
    payers: dict[ChainId, set[Address]] = {}
    seen_block: dict[ChainId, int] = {}
    for claim in claims:
        assert claim.authorization is not None
        assert claim.cover is not None
        key, block_number = claim.authorization.key, claim.cover.block_number
        payers.setdefault(key.chain_id, set()).add(key.payer)
        seen_block[key.chain_id] = min(block_number, seen_block.get(key.chain_id, block_number))
    return [
        row
        for chain_id, block_number in seen_block.items()
        for row in _KNOWN_SETTLED.fetch(
            connection, payers=list(payers[chain_id]), chain_id=chain_id, block_number=block_number
        )
    ]


def _select_known() -> Select[Any]:
    columns, calls = authorization_table.c, call_table.c
    return select(
        columns.nonce,
        columns.chain_id,
        columns.asset,
        columns.payer,
        columns.call_id,
        columns.settled_block,
        columns.valid_before,
        columns.channel_id,
        columns.base_units,
        calls.state,
        calls.price_units,
    ).join(call_table, calls.id == columns.call_id)


def has_open_deployment(
    connection: Connection, *, call_id: CallId, chain_id: ChainId, payer: Address
) -> bool:
    columns, calls, attempts = authorization_table.c, call_table.c, attempt_table.c
    query = (
        select(columns.signature)
        .join(call_table, calls.id == columns.call_id)
        .where(calls.payer == payer, text(MOVING), calls.state == CallState.SETTLING.value)
        .where(columns.chain_id == chain_id, calls.id != call_id)
        .where(exists(select(attempts.call_id).where(attempts.call_id == calls.id)))
    )
    return any(is_wrapped(bytes(signature)) for signature in connection.scalars(query))


_KNOWN_OF_KEYS = Prepared(_select_known().where(Within(authorization_table.c.nonce, "nonces")))
# The texts are literal, for the indexes.
_KNOWN_MOVING = Prepared(_select_known().where(Within(call_table.c.payer, "payers"), text(MOVING)))
_KNOWN_SETTLED = Prepared(
    _select_known().where(
        Within(authorization_table.c.payer, "payers"),
        authorization_table.c.chain_id == bindparam("chain_id"),
        text("settled_block IS NOT NULL"),
        authorization_table.c.settled_block > bindparam("block_number"),
    )
)


def _parse_known(row: Sequence[Any]) -> KnownAuthorization:
    (
        nonce,
        chain_id,
        asset,
        payer,
        call_id,
        settled_block,
        valid_before,
        channel_id,
        base_units,
        state,
        price_units,
    ) = row
    return KnownAuthorization(
        key=AuthorizationKey(ChainId(chain_id), asset, Address(payer), nonce),
        call_id=call_id,
        state=CallState(state),
        price_units=price_units,
        settled_block=settled_block,
        valid_before=int(valid_before),
        deposit_units=0 if channel_id is None else int(base_units),
    )


def write_claimed(
    connection: Connection,
    claims: Iterable[Claim],
    known: Iterable[KnownAuthorization],
    channel_keys: Mapping[ChannelName, int],
) -> None:
    """Writes the authorisations of granted claims. A known authorisation moves from its released call to the new one. `channel_keys`: of the channels of deposits."""
    before = {one.key: one.call_id for one in known}
    fresh, moved = [], []
    for claim in claims:
        if claim.authorization is None:
            continue
        row, earlier = _claimed_row(claim, channel_keys), before.get(claim.authorization.key)
        if earlier is None:
            fresh.append(row)
        else:
            moved.append({**row, "at_call": earlier})
    if fresh:
        _ADD_CLAIMED.run(connection, fresh)
    # One statement for each, because the count of changed rows proves that no other transaction moved the authorisation.
    for row in moved:
        at = update(authorization_table).where(
            authorization_table.c.call_id == row.pop("at_call"), authorization_table.c.tx_hash.is_(None)
        )
        check_count(connection.execute(at.values(row)).rowcount, 1)


_ADD_CLAIMED = Prepared(
    insert(authorization_table).values(
        {name: bindparam(name) for name in authorization_table.columns.keys()}  # noqa: SIM118
    )
)


def lock_authorization(connection: Connection, call_id: CallId) -> None:
    """Comes before the locks of payments and calls: a transaction that concludes takes them in the same order."""
    columns = authorization_table.c
    connection.execute(select(columns.call_id).where(columns.call_id == call_id).with_for_update()).all()


def mark_orphaned(
    connection: Connection, call_id: CallId, *, epoch: int, owner_id: str, usage: Usage | None = None
) -> bool:
    calls = call_table.c
    is_own = and_(calls.id == call_id, calls.epoch == epoch, calls.owner_id == owner_id)
    if not _mark_orphaned(connection, [call_id], is_own):
        return False
    if usage is not None:
        # Under the lock of the authorisation no other transaction ends the call.
        unmeasured = update(call_table).where(calls.id == call_id, calls.quantities == "")
        connection.execute(unmeasured.values(usage_columns(usage)))
    return True


def mark_calls_orphaned(connection: Connection, call_ids: Collection[CallId]) -> frozenset[CallId]:
    """Gives the calls that are still settling to settlement recovery, and returns them."""
    if not call_ids:
        return frozenset()
    return _mark_orphaned(connection, call_ids, call_table.c.id.in_(call_ids))


def _mark_orphaned(connection: Connection, call_ids: Collection[CallId], which: Any) -> frozenset[CallId]:
    """Locks the authorisations first and reads the calls after that: a transaction that concludes holds the same locks."""
    columns, calls = authorization_table.c, call_table.c
    locked = select(columns.call_id).where(columns.call_id.in_(call_ids), ~columns.is_adrift)
    ids = list(connection.execute(locked.order_by(columns.call_id).with_for_update()).scalars())
    still = select(calls.id).where(which, calls.id.in_(ids), calls.state == CallState.SETTLING.value)
    settling = list(connection.execute(still).scalars())
    if settling:
        at = update(authorization_table).where(columns.call_id.in_(settling))
        # Due at once, because the call may have been postponed while it was unknown.
        connection.execute(at.values(is_adrift=True, looked_ms=0))
    return frozenset(settling)


def _authorized_query(responded_since_ms: int | BindParameter[int]) -> Select[Any]:
    columns, calls, terms = authorization_table.c, call_table.c, call_terms_table.c
    query = select(
        *(column for column in columns if column.name not in ("tx_hash", "looked_ms")),
        columns.tx_hash.label("transfer"),
        terms.listing_id,
        terms.method,
        calls.digest,
        calls.state,
        calls.epoch,
        calls.attempts,
        terms.price,
        calls.price_units,
        calls.cut,
        calls.created_ms,
        calls.moved_ms,
        calls.idempotency_key,
        has_stored_response(columns.call_id, since_ms=responded_since_ms).label("has_stored_response"),
    )
    return query.join(call_table, calls.id == columns.call_id).join(
        call_terms_table, terms.id == calls.terms_id
    )


def _find_query() -> Select[Any]:
    columns = authorization_table.c
    names = ("nonce", "chain_id", "asset", "payer")
    query = _authorized_query(bindparam("responded_since_ms"))
    return query.where(*(columns[name] == bindparam(name) for name in names))


_FIND_AUTHORIZED = Prepared(_find_query())
_AuthorizedRow = namedtuple("_AuthorizedRow", _find_query().selected_columns.keys())  # type: ignore[misc]  # read from the query


def _parse_each(connection: Connection, rows: Sequence[Any]) -> list[AuthorizedCall]:
    """Reads the channels of deposits; none for other authorisations."""
    keys = {row.channel_id for row in rows if row.channel_id is not None}
    channels = read_channels(connection, keys)
    found = []
    for row in rows:
        call = _parse_authorized(row)
        if row.channel_id is not None:
            channel = channels[row.channel_id]
            deposit = ChannelDeposit(
                config=channel.config, channel_id=channel.id, salt=bytes(row.deposit_salt)
            )
            call = replace(call, authorization=replace(call.authorization, deposit=deposit))
        found.append(call)
    return found


def _parse_authorized(row: Any) -> AuthorizedCall:
    state = CallState(row.state)
    return AuthorizedCall(
        authorization=Authorization(
            chain_id=ChainId(row.chain_id),
            token=Address(bytes.fromhex(row.asset[2:])),
            payer=Address(row.payer),
            payee=Address(row.payee),
            base_units=int(row.base_units),
            valid_after=int(row.valid_after),
            valid_before=int(row.valid_before),
            nonce=bytes(row.nonce),
            signature=bytes(row.signature),
            dialect=Dialect(row.dialect),
            challenge_id=row.challenge_id,
        ),
        call_id=CallId(row.call_id),
        listing_id=ListingId(row.listing_id),
        method=row.method,
        digest=bytes(row.digest),
        state=state,
        epoch=row.epoch,
        attempts=row.attempts,
        price=row.price,
        price_units=row.price_units,
        is_orphaned=bool(row.is_adrift),
        is_lost=state is CallState.CONSUMED and row.cut == "cut",
        has_stored_response=bool(row.has_stored_response),
        seen_block=row.seen_block,
        transfer=None if row.transfer is None else TxHash(row.transfer),
        created_ms=row.created_ms,
        moved_ms=row.moved_ms,
        idempotency_key=row.idempotency_key,
        client_network=None if row.client_network is None else bytes(row.client_network),
    )


def _claimed_row(claim: Claim, channel_keys: Mapping[ChannelName, int]) -> dict[str, object]:
    authorization, cover = claim.authorization, claim.cover
    assert authorization is not None
    assert cover is not None
    shown, deposit = claim.channel, authorization.deposit
    return {
        "nonce": authorization.nonce,
        "chain_id": authorization.chain_id,
        "asset": authorization.asset,
        "payer": authorization.payer,
        "call_id": claim.call_id,
        "payee": authorization.payee,
        "base_units": str(authorization.base_units),
        "valid_after": str(authorization.valid_after),
        "valid_before": str(authorization.valid_before),
        "signature": authorization.signature,
        "dialect": authorization.dialect.value,
        "challenge_id": authorization.challenge_id,
        "seen_block": cover.block_number,
        "is_adrift": False,
        "looked_ms": 0,
        "tx_hash": None,
        "settled_block": None,
        "client_network": claim.client_network,
        "channel_id": None if shown is None else channel_keys[channel_name(claim, shown)],
        "deposit_salt": None if deposit is None else deposit.salt,
    }


def _is_unknown() -> ColumnElement[bool]:
    return call_table.c.state == literal_column("'unknown'")
