"""What a settlement writes into the ledger, and what a reorganisation of the chain moves again. Synchronous.

`BatchSettlement` is the part of a batch that goes to `settling` and out of it; `ledger_batch` locks its rows with all others:
authorisations by call, payments, calls, nonces. A nonce is taken in the commit that stores its transaction hash. What moved is
recorded in the commit that consumes or releases its call.

When a reorganisation moves a transfer to another transaction, what its authorisation paid moves too, under locks in the same
order. The units of the authorisation leave one payment and arrive in the other; what calls hold of them goes along, the
authorisation's own call first, so that both balances stay right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, bindparam, select, update

from tollway.ids import Address, CallId, ChainId, TxHash
from tollway.ledger.ledger import Close, Closed, Fenced, NonceUnavailable
from tollway.ledger.records import (
    AUTHORIZED_RAILS,
    AuthorizedCall,
    CallState,
    NewPayment,
    PaymentState,
    SettledTransfer,
    SettlementAttempt,
    SettlementEnd,
    decide_settlement_end,
)
from tollway.storage.authorizations import read_authorized
from tollway.storage.gas_store import SignerKey, is_nonce_open, lock_nonces, write_attempts, write_nonces
from tollway.storage.idempotency import has_stored_response
from tollway.storage.ledger_tables import attempt_table, authorization_table, call_table, payment_table
from tollway.storage.locked_rows import LockedCall, LockedRows
from tollway.storage.payments import (
    CHUNK,
    find_debited_calls,
    find_payment_id,
    insert_payment,
    pay_debts,
    raise_payment,
    reinstate_payment,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """`forwarding` -> `settling`, with the transaction, if there is one yet."""

    close: Close
    attempt: SettlementAttempt | None
    digest: bytes | None

    @property
    def call_id(self) -> CallId:
        return self.close.call_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """`settling`, or `unknown` and unpaid, -> `consumed` or `released`. `transfer` None: nothing moved, and nothing will."""

    call_id: CallId
    epoch: int
    transfer: SettledTransfer | None
    is_orphaned: bool
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockedAuthorization:
    """An authorisation whose row is locked, with what the end of its call depends on."""

    chain_id: ChainId
    asset: str
    payer: Address
    payee: Address
    is_orphaned: bool
    transfer: TxHash | None
    method: str
    digest: bytes
    has_stored_response: bool
    payment_id: int | None = None


class BatchSettlement:
    """Belongs to one transaction. `lock_authorizations` comes before the other locks of the batch, `lock_nonces` after."""

    def __init__(
        self,
        connection: Connection,
        locked_rows: LockedRows,
        *,
        owner_id: str,
        answered_since_ms: int,
        attempts_max: int,
    ) -> None:
        self._connection = connection
        self._locked_rows = locked_rows
        self._owner_id = owner_id
        self._answered_since_ms = answered_since_ms
        self._attempts_max = attempts_max
        self._authorizations: dict[CallId, _LockedAuthorization] = {}
        self._next_nonces: dict[SignerKey, int] = {}
        self._attempts: list[SettlementAttempt] = []
        self._ended: list[dict[str, object]] = []
        self._credited_payments: list[int] = []

    def lock_authorizations(self, concludes: Sequence[Conclude]) -> set[int]:
        """Locks what is concluded, and adds the payments that are not there yet, worth nothing so far. Returns the
        payments to lock with the others. While these rows are locked nobody else moves their calls out of
        `settling`; an unknown one may run again meanwhile."""
        if not concludes:
            return set()
        by_call = {one.call_id: one for one in concludes}
        columns = authorization_table.c
        in_turn = select(columns.call_id).where(columns.call_id.in_(list(by_call))).order_by(columns.call_id)
        self._connection.execute(in_turn.with_for_update()).all()
        seen = self._locked_rows.read_calls(list(by_call))
        self._authorizations = self._read_authorizations(list(by_call))
        moved = {
            call_id: _new_payment(self._authorizations[call_id], one.transfer)
            for call_id, one in by_call.items()
            if one.transfer is not None and call_id in seen and self._is_due(one, seen[call_id])
        }
        for call_id, new in sorted(moved.items(), key=lambda item: (item[1].tx_hash, item[0])):
            insert_payment(self._connection, new, by_call[call_id].now_ms, is_authorized=True)
        for call_id, new in moved.items():
            payment_id = find_payment_id(self._connection, new)
            self._authorizations[call_id] = replace(self._authorizations[call_id], payment_id=payment_id)
        return {one.payment_id for one in self._authorizations.values() if one.payment_id is not None}

    def lock_nonces(self, settles: Sequence[Settle]) -> None:
        attempts = [one.attempt for one in settles if one.attempt is not None]
        if not attempts:
            return
        self._next_nonces = lock_nonces(self._connection, [(one.sender, one.chain_id) for one in attempts])

    def settle(
        self, settle: Settle, call: LockedCall | None, *, is_retry: bool, **values: object
    ) -> Closed | Fenced | NonceUnavailable:
        if call is None or call.owner_id != self._owner_id or call.epoch != settle.close.epoch:
            return Fenced()
        if call.state is not CallState.FORWARDING:
            is_done = is_retry and call.state is CallState.SETTLING and self._is_stored(settle.attempt)
            return Closed(remaining_units=None) if is_done else Fenced()
        if not call.is_unpaid:
            return Fenced()
        if settle.attempt is not None:
            taken = self._take_nonce(settle.attempt)
            if taken is not None:
                return taken
        digest = {} if settle.digest is None else {"digest": settle.digest}
        self._locked_rows.move(call, CallState.SETTLING, **values, **digest)
        return Closed(remaining_units=None)

    def conclude(self, conclude: Conclude, call: LockedCall | None, *, is_retry: bool) -> CallState | None:
        authorization = self._authorizations.get(conclude.call_id)
        if call is None or authorization is None:
            return None
        is_seen = conclude.transfer is None or authorization.payment_id is not None
        if not is_seen or not self._is_due(conclude, call):
            return call.state if is_retry and _is_concluded(conclude, call, authorization) else None
        ending = decide_settlement_end(
            is_moved=conclude.transfer is not None,
            is_orphaned=conclude.is_orphaned,
            has_stored_response=authorization.has_stored_response,
            method=authorization.method,
            digest=authorization.digest,
            runs_left=self._attempts_max - call.attempts,
        )
        transfer = conclude.transfer
        self._ended.append(
            {
                "at_call": call.id,
                "to_hash": None if transfer is None else transfer.tx_hash,
                "to_block": None if transfer is None else transfer.block_number,
            }
        )
        values: dict[str, object] = {"moved_ms": conclude.now_ms, "completed_ms": conclude.now_ms}
        if not conclude.is_orphaned:  # its caller has waited for the money, too
            values["latency_ms"] = (call.latency_ms or 0) + max(0, conclude.now_ms - call.moved_ms)
        if transfer is None or authorization.payment_id is None:
            return self._locked_rows.move(call, CallState.RELEASED, **values)
        values["tx_hash"] = transfer.tx_hash
        return self._record_transfer(replace(call, payment_id=authorization.payment_id), ending, values)

    def write(self, *, now_ms: int) -> None:
        """After every move of the batch is decided."""
        if not (self._credited_payments or self._attempts or self._next_nonces or self._ended):
            return
        pay_debts(self._connection, self._locked_rows, dict.fromkeys(self._credited_payments), now_ms=now_ms)
        write_attempts(self._connection, self._attempts)
        write_nonces(self._connection, self._next_nonces)
        if self._ended:
            self._connection.execute(_END, self._ended)

    def _record_transfer(
        self, call: LockedCall, ending: SettlementEnd, values: dict[str, object]
    ) -> CallState:
        """What moved is a payment, and this call takes it, or it is credit."""
        payment_id = call.payment_id
        assert payment_id is not None
        is_bought = ending is not SettlementEnd.CREDIT
        raise_payment(self._connection, self._locked_rows, payment_id, call.price_units, calls=int(is_bought))
        values["payment_id"] = payment_id
        if not is_bought:
            self._credited_payments.append(payment_id)
            return self._locked_rows.move(call, CallState.RELEASED, **values)
        if ending is SettlementEnd.LOST:
            values["cut"] = "cut"
        parts = {payment_id: call.price_units}
        self._locked_rows.set_parts(call, parts)
        return self._locked_rows.move(replace(call, parts=parts), CallState.CONSUMED, **values)

    def _is_due(self, conclude: Conclude, call: LockedCall) -> bool:
        authorization = self._authorizations.get(conclude.call_id)
        if authorization is None or call.epoch != conclude.epoch:
            return False
        if call.state is CallState.UNKNOWN:
            return conclude.is_orphaned and call.is_unpaid
        if call.state is not CallState.SETTLING or authorization.is_orphaned is not conclude.is_orphaned:
            return False
        return conclude.is_orphaned or call.owner_id == self._owner_id

    def _take_nonce(self, attempt: SettlementAttempt) -> NonceUnavailable | None:
        signer = (attempt.sender, attempt.chain_id)
        if attempt.nonce != self._next_nonces[signer]:
            return NonceUnavailable(next_nonce=self._next_nonces[signer])
        self._next_nonces[signer] += 1
        self._attempts.append(attempt)
        return None

    def _is_stored(self, attempt: SettlementAttempt | None) -> bool:
        return attempt is None or is_attempt_stored(self._connection, attempt)

    def _read_authorizations(self, call_ids: Sequence[CallId]) -> dict[CallId, _LockedAuthorization]:
        columns = authorization_table.c
        query = (
            select(
                columns.call_id,
                columns.chain_id,
                columns.asset,
                columns.payer,
                columns.payee,
                columns.is_adrift,
                columns.tx_hash,
                call_table.c.method,
                call_table.c.digest,
                has_stored_response(columns.call_id, since_ms=self._answered_since_ms).label(
                    "has_stored_response"
                ),
            )
            .join(call_table, call_table.c.id == columns.call_id)
            .where(columns.call_id.in_(call_ids))
        )
        return {
            CallId(row.call_id): _LockedAuthorization(
                chain_id=ChainId(row.chain_id),
                asset=row.asset,
                payer=Address(row.payer),
                payee=Address(row.payee),
                is_orphaned=row.is_adrift,
                transfer=None if row.tx_hash is None else TxHash(row.tx_hash),
                method=row.method,
                digest=bytes(row.digest),
                has_stored_response=bool(row.has_stored_response),
            )
            for row in self._connection.execute(query)
        }


def add_attempt(
    connection: Connection, *, attempt: SettlementAttempt, is_filling: bool
) -> bool | NonceUnavailable:
    """A transaction of its own. A nonce that an earlier attempt of this call has is a fee bump; to fill is also to take
    one below the signer's next nonce that no transaction has."""
    locked_rows = LockedRows(connection)
    call = locked_rows.lock_calls([attempt.call_id]).get(attempt.call_id)
    if call is None or (call.state is not CallState.SETTLING and not is_filling):
        return False
    if is_attempt_stored(connection, attempt):
        return True
    columns = attempt_table.c
    earlier = select(columns.tx_hash).where(
        columns.call_id == attempt.call_id,
        columns.chain_id == attempt.chain_id,
        columns.sender == attempt.sender,
        columns.nonce == attempt.nonce,
    )
    signer = (attempt.sender, attempt.chain_id)
    if connection.execute(earlier.limit(1)).first() is None:
        next_nonce = lock_nonces(connection, [signer])[signer]
        if is_filling:
            if attempt.nonce >= next_nonce or is_nonce_open(connection, attempt):
                return False
        elif attempt.nonce != next_nonce:
            return NonceUnavailable(next_nonce=next_nonce)
        else:
            write_nonces(connection, {signer: next_nonce + 1})
    write_attempts(connection, [attempt])
    return True


def is_attempt_stored(connection: Connection, attempt: SettlementAttempt) -> bool:
    columns = attempt_table.c
    query = select(columns.call_id).where(
        columns.tx_hash == attempt.tx_hash,
        columns.chain_id == attempt.chain_id,
        columns.call_id == attempt.call_id,
    )
    return connection.execute(query).first() is not None


_END = (
    update(authorization_table)
    .where(authorization_table.c.call_id == bindparam("at_call"))
    .values(is_adrift=False, tx_hash=bindparam("to_hash"), settled_block=bindparam("to_block"))
)


def _is_concluded(conclude: Conclude, call: LockedCall, authorization: _LockedAuthorization) -> bool:
    """This very conclusion was written, and only its answer was lost."""
    is_ended = call.state in (CallState.CONSUMED, CallState.RELEASED, CallState.REORGED)
    expected = None if conclude.transfer is None else conclude.transfer.tx_hash
    return is_ended and call.epoch == conclude.epoch and authorization.transfer == expected


def _new_payment(authorization: _LockedAuthorization, transfer: SettledTransfer | None) -> NewPayment:
    assert transfer is not None
    return NewPayment(
        chain_id=authorization.chain_id,
        tx_hash=transfer.tx_hash,
        asset=authorization.asset,
        payer=authorization.payer,
        payee=authorization.payee,
        value_units=0,
        block_number=transfer.block_number,
        block_hash=transfer.block_hash,
        block_time=transfer.block_time,
        is_final=transfer.is_final,
    )


def authorizations_in(
    connection: Connection, *, payment_id: int, limit: int, answered_since_ms: int
) -> tuple[AuthorizedCall, ...]:
    is_shown = call_table.c.payment_id == payment_id
    return read_authorized(connection, is_shown, limit=limit, answered_since_ms=answered_since_ms)


def move_transfer(
    connection: Connection, *, call_id: CallId, before: TxHash, transfer: SettledTransfer, now_ms: int
) -> bool:
    found = _lock_authorization(connection, call_id, before, transfer)
    if found is None or transfer.tx_hash == before:
        return False
    insert_payment(connection, found, now_ms, is_authorized=True)
    from_id = find_payment_id(connection, replace(found, tx_hash=before))
    to_id = find_payment_id(connection, found)
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments([from_id, to_id])
    if locked_rows.payments[to_id].state is PaymentState.GONE:
        locked_rows.payments[to_id] = reinstate_payment(
            connection, locked_rows.payments[to_id], found, now_ms
        )
    calls = _lock_calls(connection, locked_rows, call_id, from_id)
    own = calls.pop(call_id)
    is_bought = own.state is not CallState.RELEASED
    raise_payment(connection, locked_rows, to_id, own.price_units, calls=int(is_bought))
    left_units = _value_of(connection, from_id) - own.price_units
    own = locked_rows.set_payment(own, to_id, tx_hash=transfer.tx_hash)
    _move_units(locked_rows, own, own.price_units, from_id=from_id, to_id=to_id)
    for call in sorted(
        calls.values(), key=_is_paid_by_its_own
    ):  # what was bought for credit goes along first
        _move_units(
            locked_rows,
            call,
            locked_rows.payments[from_id].taken_units - left_units,
            from_id=from_id,
            to_id=to_id,
        )
    locked_rows.write()
    _write_transfer(connection, call_id, transfer, from_id=from_id, to_id=to_id, left_units=left_units)
    _pay_debts_from(connection, to_id, now_ms=now_ms)
    return True


def _lock_authorization(
    connection: Connection, call_id: CallId, before: TxHash, transfer: SettledTransfer
) -> NewPayment | None:
    """The payment that is made there, worth nothing so far; None when that call's money is not known in `before`."""
    columns = authorization_table.c
    query = select(columns.chain_id, columns.asset, columns.payer, columns.payee).where(
        columns.call_id == call_id, columns.tx_hash == before
    )
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        return None
    return NewPayment(
        chain_id=ChainId(row.chain_id),
        tx_hash=transfer.tx_hash,
        asset=row.asset,
        payer=Address(row.payer),
        payee=Address(row.payee),
        value_units=0,
        block_number=transfer.block_number,
        block_hash=transfer.block_hash,
        block_time=transfer.block_time,
        is_final=transfer.is_final,
    )


def _lock_calls(
    connection: Connection, locked_rows: LockedRows, call_id: CallId, from_id: int
) -> dict[CallId, LockedCall]:
    """That call, and all that hold something of the payment."""
    ids = sorted({call_id, *find_debited_calls(connection, from_id)})
    locked: dict[CallId, LockedCall] = {}
    for chunk in _chunks(ids):
        locked.update(locked_rows.lock_calls(chunk))
    return locked


def _is_paid_by_its_own(call: LockedCall) -> bool:
    return call.rail in AUTHORIZED_RAILS


def _move_units(locked_rows: LockedRows, call: LockedCall, units: int, *, from_id: int, to_id: int) -> None:
    """Lets a call hold up to so many units of the one payment that it held of the other."""
    moved_units = min(units, call.parts.get(from_id, 0))
    if moved_units <= 0:
        return
    parts = {
        **call.parts,
        from_id: call.parts[from_id] - moved_units,
        to_id: call.parts.get(to_id, 0) + moved_units,
    }
    locked_rows.set_parts(call, {key: held for key, held in parts.items() if held})


def _write_transfer(
    connection: Connection,
    call_id: CallId,
    transfer: SettledTransfer,
    *,
    from_id: int,
    to_id: int,
    left_units: int,
) -> None:
    """After the balances: neither payment may ever be taken beyond its value. What is held after a restore stays so."""
    payments, columns = payment_table.c, authorization_table.c
    connection.execute(update(payment_table).where(payments.id == from_id).values(value_units=left_units))
    was_held = select(payments.id).where(payments.id == from_id, payments.is_held).exists()
    connection.execute(update(payment_table).where(payments.id == to_id, was_held).values(is_held=True))
    connection.execute(
        update(authorization_table)
        .where(columns.call_id == call_id)
        .values(tx_hash=transfer.tx_hash, settled_block=transfer.block_number)
    )


def _pay_debts_from(connection: Connection, payment_id: int, *, now_ms: int) -> None:
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments([payment_id])
    pay_debts(connection, locked_rows, [payment_id], now_ms=now_ms)
    locked_rows.write()


def _value_of(connection: Connection, payment_id: int) -> int:
    """As it is written: a payment that is gone is shown without its value."""
    query = select(payment_table.c.value_units).where(payment_table.c.id == payment_id)
    return int(connection.execute(query).scalar_one())


def _chunks(ids: list[CallId]) -> Iterator[list[CallId]]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
