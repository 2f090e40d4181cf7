"""Refunds: a provider gives the price of charged calls back, by a transfer to their payer or as credit. The rules are pure; `RefundLedger` is the port.

Money that was paid is at `payTo`, so it comes back from there or from the wallet of the provider. A `payTo` may be the wallet of another provider, or be named
by several: a transfer of it may be the refund of a call of theirs, and then it refunds no call of this provider. One transfer refunds calls of one payer, in the order in which the
provider names them, each up to its price, and only once. It is never a payment: its value belongs to its refunds. A refund changes neither the state of
a call nor what the call takes of its payments. A transfer that leaves its chain takes its refunds back; when it is mined again they return, except
where the call has another refund by then.

A credit is a payment of the payer to the payee of the call, at the price of the call, whose hash is no transaction (`credit_hash`): claims spend it as any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tollway.ids import Address, CallId, TxHash, keccak256
from tollway.ledger.records import CallRecord, CallState, NewPayment, Rail, RecordedTransaction


class RefundFault(StrEnum):
    """Why calls cannot be refunded so. Public (`reason` of a problem)."""

    FREE_CALL = "free_call"
    NOT_CHARGED = "not_charged"
    ALREADY_REFUNDED = "already_refunded"
    DIFFERENT_PAYERS = "different_payers"
    ABOVE_PRICE = "above_price"
    BELOW_CALLS = "below_calls"
    ANOTHER_PROVIDER = "another_provider"
    ON_CHANNEL = "on_channel"
    RESTORED = "restored"
    UNSPENDABLE = "unspendable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsRefunded:
    """The units that each call got back, in the order of the request."""

    units: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRefundable:
    """`call_id`: the first call that the fault is of."""

    fault: RefundFault
    call_id: CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferUsed:
    """The transfer is a payment, or it has refunded other calls."""


RefundOutcome = CallsRefunded | NotRefundable | TransferUsed


def find_refund_fault(calls: Sequence[CallRecord]) -> NotRefundable | None:
    """Why these calls, which are not empty, cannot be refunded by one transfer; None where they can."""
    first = calls[0]
    for call in calls:
        fault = _find_fault(call)
        if fault is None and _account_of(call) != _account_of(first):
            fault = RefundFault.DIFFERENT_PAYERS
        if fault is not None:
            return NotRefundable(fault=fault, call_id=call.id)
    return None


def find_credit_fault(call: CallRecord, *, held_before_ms: int | None) -> NotRefundable | None:
    """Why this call cannot be given back as credit, which is final at once. The price of a call on a channel may still be unclaimed. A restored database may
    miss an earlier credit of a call of before the restore."""
    if call.rail is Rail.CHANNEL:
        return NotRefundable(fault=RefundFault.ON_CHANNEL, call_id=call.id)
    if held_before_ms is not None and call.created_ms <= held_before_ms:
        return NotRefundable(fault=RefundFault.RESTORED, call_id=call.id)
    return None


def _find_fault(call: CallRecord) -> RefundFault | None:
    if call.rail is Rail.NONE or (call.due_units == 0 and not call.is_unmeasured):
        return RefundFault.FREE_CALL
    if call.state is not CallState.CONSUMED or call.is_unmeasured:
        return RefundFault.NOT_CHARGED
    return None if call.refund is None else RefundFault.ALREADY_REFUNDED


def _account_of(call: CallRecord) -> tuple[object, ...]:
    return call.payer, call.chain_id, call.asset, call.pay_to


def divide_transfer(calls: Sequence[CallRecord], value_units: int) -> CallsRefunded | NotRefundable:
    """What each call gets of a transfer: its price, in their order, until nothing is left. Each call gets something, and all of it is used."""
    divided: list[int] = []
    for call in calls:
        units = min(call.due_units, value_units - sum(divided))
        if units == 0:
            return NotRefundable(fault=RefundFault.BELOW_CALLS, call_id=call.id)
        divided.append(units)
    if sum(divided) < value_units:
        return NotRefundable(fault=RefundFault.ABOVE_PRICE, call_id=calls[0].id)
    return CallsRefunded(units=tuple(divided))


def credit_hash(call_id: CallId) -> TxHash:
    """What stands for the transaction of the credit that a call gave back. No transaction has it, because no transaction begins with these bytes."""
    return TxHash(keccak256(b"tollway refund credit " + call_id.encode()))


class RefundLedger(Protocol):
    """Each method is atomic. Refunds are never deleted."""

    async def read_refundable(self, call_ids: Sequence[CallId]) -> tuple[CallRecord, ...]:
        """The calls in that order; without those that do not exist."""
        ...

    async def find_senders(self, call: CallRecord) -> tuple[Address, ...]:
        """The wallets whose transfers refund the call: its provider, then `payTo` where no other provider can refund this payer by it."""
        ...

    async def is_spendable(self, call: CallRecord) -> bool:
        """Whether credit of the account of this call pays calls of its provider now: at the listing of the call, also where its `payTo` has changed since, or at one
        of the same `payTo`. It needs the currency and the network."""
        ...

    async def find_refunded(self, payment_id: int) -> tuple[CallId, ...]:
        """The calls that a transfer refunds, where it is on its chain."""
        ...

    async def record_refund(
        self,
        transfer: NewPayment,
        call_ids: Sequence[CallId],
        *,
        based_on: RecordedTransaction,
        now_ms: int,
    ) -> RefundOutcome:
        """Refunds the calls by this verified transfer, once: a repeat with the same calls has the same outcome and changes nothing. Of two requests at once
        for one transfer, or for one call, one is granted. Raises `StorageUnavailable` where a restore was recorded after `based_on`."""
        ...

    async def record_credit(self, call_id: CallId, *, now_ms: int) -> RefundOutcome:
        """Gives the price of the call back as credit. A repeat has the same outcome and changes nothing. Raises `StorageUnavailable` where a restore was
        recorded meanwhile."""
        ...
