"""Settlements in SQL: the part of a batch that moves calls to `settling` and out of it. Synchronous.

`ledger_batch` locks the rows of a settlement with all others, in one order: authorisations by call, payments, calls, nonces. The commit
that stores a transaction hash also takes its nonce. The commit that consumes or releases a call also records its transfer.
`finality` moves a transfer that a reorganisation put into another transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select, update

from tollway.ids import Address, CallId, ChainId, TxHash
from tollway.ledger.channels import announce_whole
from tollway.ledger.ledger import Close, Closed, Fenced, NonceUnavailable
from tollway.ledger.records import (
    CallState,
    NewPayment,
    PaymentState,
    SettledTransfer,
    SettlementAttempt,
    SettlementEnd,
    decide_settlement_end,
    is_charged_by_provider,
)
from tollway.storage.engine.statements import Prepared, Within
from tollway.storage.ledger.channel_balance import credit_deposit
from tollway.storage.ledger.gas_store import (
    SignerKey,
    is_attempt_stored,
    lock_nonces,
    write_attempts,
    write_nonces,
)
from tollway.storage.ledger.idempotency import has_stored_response
from tollway.storage.ledger.ledger_tables import authorization_table, call_table, call_terms_table
from tollway.storage.ledger.locked_rows import LockedCall, LockedRows, usage_columns
from tollway.storage.ledger.payments import (
    find_payment_id,
    insert_payment,
    payment_of_transfer,
    raise_payment,
)
from tollway.webhooks.events import EventType


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    close: Close
    attempt: SettlementAttempt | None
    digest: bytes | None

    @property
    def call_id(self) -> CallId:
        return self.close.call_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """A move from `settling`, or from `unknown` without a payment, to `consumed` or `released`. `transfer` None: there is no transfer and there
    will be none."""

    call_id: CallId
    epoch: int
    transfer: SettledTransfer | None
    is_orphaned: bool
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockedAuthorization:
    """An authorisation with a locked row, and the facts that decide the end of its call."""

    chain_id: ChainId
    asset: str
    payer: Address
    payee: Address
    is_orphaned: bool
    transfer: TxHash | None
    method: str
    digest: bytes
    has_stored_response: bool
    base_units: int
    channel_key: int | None
    payment_id: int | None = None

    def pay_with(self, transfer: SettledTransfer) -> NewPayment:
        """The payment of this transfer, with a value of 0."""
        return payment_of_transfer(
            transfer, chain_id=self.chain_id, asset=self.asset, payer=self.payer, payee=self.payee
        )


class BatchSettlement:
    """Call `lock_authorizations` before the other locks of the batch, `lock_nonces` after them."""

    def __init__(
        self,
        connection: Connection,
        locked_rows: LockedRows,
        *,
        owner_id: str,
        responded_since_ms: int,
        attempts_max: int,
    ) -> None:
        self._connection = connection
        self._locked_rows = locked_rows
        self._owner_id = owner_id
        self._responded_since_ms = responded_since_ms
        self._attempts_max = attempts_max
        self._authorizations: dict[CallId, _LockedAuthorization] = {}
        self._next_nonces: dict[SignerKey, int] = {}
        self._attempts: list[SettlementAttempt] = []
        self._ended: list[dict[str, object]] = []

    def lock_authorizations(self, concludes: Sequence[Conclude]) -> set[int]:
        """Locks the authorisations of the concludes and inserts missing payments with a value of 0. Returns the payments to lock with the other
        rows. Under these locks no other transaction moves the calls out of `settling`; an unknown call may still run again."""
        if not concludes:
            return set()
        by_call = {one.call_id: one for one in concludes}
        _LOCK_AUTHORIZATIONS.fetch(self._connection, call_ids=list(by_call))
        seen = self._locked_rows.read_calls(list(by_call))
        rows = _READ_AUTHORIZATIONS.fetch(
            self._connection, call_ids=list(by_call), responded_since_ms=self._responded_since_ms
        )
        self._authorizations = {row[0]: _parse_authorization(row) for row in rows}
        moved = {
            call_id: self._authorizations[call_id].pay_with(one.transfer)
            for call_id, one in by_call.items()
            if one.transfer is not None and call_id in seen and self._is_due(one, seen[call_id])
        }
        for _, call_id in sorted((new.tx_hash, call_id) for call_id, new in moved.items()):
            is_deposit = self._authorizations[call_id].channel_key is not None
            insert_payment(
                self._connection,
                moved[call_id],
                by_call[call_id].now_ms,
                is_authorized=True,
                is_escrow=is_deposit,
            )
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
        self, settle: Settle, call: LockedCall | None, *, is_retry: bool, moved_ms: int, **values: object
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
        if settle.digest is not None:
            values["digest"] = settle.digest
        usage = settle.close.known_usage if call.is_unmeasured else None
        if usage is not None:
            # Only a deposit pays a metered call: the call takes of it what it used.
            values |= usage_columns(usage)
        self._locked_rows.move(call, CallState.SETTLING, moved_ms=moved_ms, **values)
        return Closed(remaining_units=None)

    def conclude(self, conclude: Conclude, call: LockedCall | None, *, is_retry: bool) -> CallState | None:
        authorization = self._authorizations.get(conclude.call_id)
        if call is None or authorization is None:
            return None
        has_payment = conclude.transfer is None or authorization.payment_id is not None
        if not has_payment or not self._is_due(conclude, call):
            return call.state if is_retry and _is_concluded(conclude, call, authorization) else None
        end = decide_settlement_end(
            is_moved=conclude.transfer is not None,
            is_orphaned=conclude.is_orphaned,
            is_charged_by_provider=is_charged_by_provider(call.state, call.upstream_status),
            has_stored_response=authorization.has_stored_response,
            is_deposit=authorization.channel_key is not None,
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
        values: dict[str, object] = {"completed_ms": conclude.now_ms}
        # The caller of a call that is not orphaned has waited for the settlement, too.
        if not conclude.is_orphaned:
            values["latency_ms"] = (call.latency_ms or 0) + max(0, conclude.now_ms - call.moved_ms)
        is_bought = transfer is not None and end is not SettlementEnd.CREDIT
        if not is_bought and call.actual_units is not None:
            values |= {"actual_units": None, "quantities": ""}
        if transfer is None or authorization.payment_id is None:
            return self._locked_rows.move(call, CallState.RELEASED, moved_ms=conclude.now_ms, **values)
        if authorization.channel_key is not None:
            if is_bought and conclude.is_orphaned:
                self._announce_stored(authorization.channel_key, call)
            return self._record_deposit(call, authorization, transfer, end, values, moved_ms=conclude.now_ms)
        paid = replace(call, payment_id=authorization.payment_id)
        return self._record_transfer(paid, end, values, moved_ms=conclude.now_ms)

    def write(self) -> None:
        """Writes the settlements. Call it after every move of the batch is decided."""
        if not (self._attempts or self._next_nonces or self._ended):
            return
        write_attempts(self._connection, self._attempts)
        write_nonces(self._connection, self._next_nonces)
        if self._ended:
            _END.run(self._connection, self._ended)

    def _record_transfer(
        self, call: LockedCall, end: SettlementEnd, values: dict[str, object], *, moved_ms: int
    ) -> CallState:
        """Records the transfer in a payment. The call takes its units, or they stay credit."""
        payment_id = call.payment_id
        assert payment_id is not None
        is_bought = end is not SettlementEnd.CREDIT
        raise_payment(self._connection, self._locked_rows, payment_id, call.price_units, calls=int(is_bought))
        values["payment_id"] = payment_id
        if not is_bought:
            payment = self._locked_rows.payments[payment_id]
            if payment.state is not PaymentState.GONE:
                self._locked_rows.note_payment(
                    EventType.PAYMENT_CREDITED, payment, units=payment.value_units, at_ms=moved_ms
                )
            return self._locked_rows.move(call, CallState.RELEASED, moved_ms=moved_ms, **values)
        if end is SettlementEnd.LOST:
            values["cut"] = "cut"
        parts = {payment_id: call.price_units}
        self._locked_rows.set_parts(call, parts)
        return self._locked_rows.move(
            replace(call, parts=parts), CallState.CONSUMED, moved_ms=moved_ms, **values
        )

    def _announce_stored(self, key: int, call: LockedCall) -> None:
        """Announces what the stored response of a call says that it charges."""
        channels = self._locked_rows.channels
        channel = channels.find(key)
        if channel.reserved_call == call.id:
            channels.put(replace(channel, announced=announce_whole(channel, due_units=call.due_units)))

    def _record_deposit(
        self,
        call: LockedCall,
        authorization: _LockedAuthorization,
        transfer: SettledTransfer,
        end: SettlementEnd,
        values: dict[str, object],
        *,
        moved_ms: int,
    ) -> CallState:
        """Records the transfer in a payment of its own, and adds the deposit to the balance of the channel. The call takes its price of it, or nothing. Where the balance
        does not cover the price any more, because the chain says less since the claim, the call is `reorged`."""
        payment_id, key, locked_rows = authorization.payment_id, authorization.channel_key, self._locked_rows
        assert payment_id is not None
        assert key is not None
        raise_payment(self._connection, locked_rows, payment_id, authorization.base_units, calls=0)
        credit_deposit(
            self._connection,
            locked_rows,
            key,
            authorization.base_units,
            block_number=transfer.block_number,
            now_ms=moved_ms,
        )
        channel = locked_rows.channels.find(key)
        values["payment_id"] = channel.payment_id
        paid = replace(call, payment_id=channel.payment_id)
        if end is SettlementEnd.CREDIT:
            return locked_rows.move(paid, CallState.RELEASED, moved_ms=moved_ms, **values)
        parts = {channel.payment_id: call.due_units} if call.due_units else {}
        locked_rows.set_parts(paid, parts)
        return locked_rows.move(replace(paid, parts=parts), CallState.CONSUMED, moved_ms=moved_ms, **values)

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


_END = Prepared(
    update(authorization_table)
    .where(authorization_table.c.call_id == bindparam("at_call"))
    .values(is_adrift=False, tx_hash=bindparam("to_hash"), settled_block=bindparam("to_block"))
)
_LOCK_AUTHORIZATIONS = Prepared(
    select(authorization_table.c.call_id)
    .where(Within(authorization_table.c.call_id, "call_ids"))
    .order_by(authorization_table.c.call_id)
    .with_for_update()
)


def _select_authorizations() -> Select[Any]:
    columns = authorization_table.c
    return (
        select(
            columns.call_id,
            columns.chain_id,
            columns.asset,
            columns.payer,
            columns.payee,
            columns.is_adrift,
            columns.tx_hash,
            columns.base_units,
            columns.channel_id,
            call_terms_table.c.method,
            call_table.c.digest,
            has_stored_response(columns.call_id, since_ms=bindparam("responded_since_ms")),
        )
        .join(call_table, call_table.c.id == columns.call_id)
        .join(call_terms_table, call_terms_table.c.id == call_table.c.terms_id)
        .where(Within(columns.call_id, "call_ids"))
    )


_READ_AUTHORIZATIONS = Prepared(_select_authorizations())


def _parse_authorization(row: Sequence[Any]) -> _LockedAuthorization:
    (
        _,
        chain_id,
        asset,
        payer,
        payee,
        is_adrift,
        tx_hash,
        base_units,
        channel_key,
        method,
        digest,
        is_stored,
    ) = row
    return _LockedAuthorization(
        chain_id=ChainId(chain_id),
        asset=asset,
        payer=Address(payer),
        payee=Address(payee),
        is_orphaned=bool(is_adrift),
        transfer=None if tx_hash is None else TxHash(tx_hash),
        method=method,
        digest=digest,
        has_stored_response=bool(is_stored),
        base_units=int(base_units),
        channel_key=channel_key,
    )


def _is_concluded(conclude: Conclude, call: LockedCall, authorization: _LockedAuthorization) -> bool:
    """True when this conclude was committed before, and the gateway did not learn its outcome."""
    is_ended = call.state in (CallState.CONSUMED, CallState.RELEASED, CallState.REORGED)
    expected = None if conclude.transfer is None else conclude.transfer.tx_hash
    return is_ended and call.epoch == conclude.epoch and authorization.transfer == expected
