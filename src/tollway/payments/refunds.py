"""Refunds of calls by their provider: the transfer is verified as a payment is, then the ledger records it.

The rules of payments decide (`transaction_rules`): the chain, the token, the depth for the value, the age, the nodes that must agree. Only the direction is the
other one: from `payTo` of the calls, or from their provider, to their payer, mined after the calls. A transaction that is not mined, not deep enough or not
readable is refused for now, and nothing is recorded.
"""

from collections.abc import Callable, Mapping, Sequence

from tollway.chain.networks import ChainRules, find_asset
from tollway.chain.port import ChainFacts, LookupQuota, NotMined
from tollway.errors import ChainUnavailable, Code, Problem, Refusal, StorageUnavailable, refuse
from tollway.ids import Address, CallId, ChainId, TxHash, format_network
from tollway.ledger.ledger import PaymentLedger
from tollway.ledger.records import CallRecord, NewPayment, Payment, PaymentState, RecordedTransaction
from tollway.ledger.refunds import (
    CallsRefunded,
    NotRefundable,
    RefundFault,
    RefundLedger,
    RefundOutcome,
    TransferUsed,
    credit_hash,
    find_credit_fault,
    find_refund_fault,
)
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.pricing import Payee
from tollway.payments.transaction_lookup import LookupCharge
from tollway.payments.transaction_rules import (
    PAYEE_SLACK_S,
    Accepted,
    NotThePayer,
    Refused,
    TransactionReason,
    VerificationInput,
    VerificationResult,
    explain_pending,
    explain_result,
    verify_transaction,
)
from tollway.payments.transaction_verifier import TransactionVerifier


class Refunds:
    """Used by the API and by the pages. Each method raises Refusal; `CallRecord`s are of one provider, who has proved his wallet."""

    def __init__(
        self,
        *,
        ledger: RefundLedger,
        payments: PaymentLedger,
        verifier: TransactionVerifier,
        rules: Mapping[ChainId, ChainRules],
        quota: LookupQuota,
        limits: Limits,
        now_ms: Callable[[], int],
        shared_ms: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._payments = payments
        self._verifier = verifier
        self._rules = rules
        self._quota = quota
        self._limits = limits
        self._now_ms = now_ms
        self._shared_ms = shared_ms

    async def read_calls(self, call_ids: Sequence[CallId]) -> tuple[CallRecord, ...]:
        """The calls in that order; without those that do not exist."""
        return await self._ledger.read_refundable(call_ids)

    async def refund(
        self, calls: Sequence[CallRecord], tx_hash: TxHash, *, client_address: str
    ) -> tuple[CallRecord, ...]:
        """Refunds the calls by this transaction, and returns them as they are then. Raises `ChainUnavailable` and `StorageUnavailable`: the outcome is then
        unknown, and the same request finds it."""
        call_ids = [call.id for call in calls]
        recorded = await self._payments.find_transaction(tx_hash)
        known = next((one for one in recorded.payments if _is_between(one, calls[0])), None)
        if known is not None and not (known.is_refund and known.state is PaymentState.GONE):
            if not known.is_refund or set(await self._ledger.find_refunded(known.id)) != set(call_ids):
                raise Refusal(_TRANSFER_USED)
            return await self.read_calls(call_ids)
        if known is None:
            _check(find_refund_fault(calls))
        transfer = await self._verify(calls, tx_hash, recorded, client_address=client_address)
        _check(
            await self._ledger.record_refund(transfer, call_ids, based_on=recorded, now_ms=self._shared_ms())
        )
        return await self.read_calls(call_ids)

    async def find_senders(self, call: CallRecord) -> tuple[Address, ...]:
        """The wallets whose transfers refund the call."""
        return await self._ledger.find_senders(call)

    async def find_credit_fault(self, call: CallRecord) -> RefundFault | None:
        """Why the call cannot be given back as credit; None where it can."""
        recorded = await self._payments.find_transaction(credit_hash(call.id))
        fault = find_refund_fault([call]) or find_credit_fault(call, held_before_ms=recorded.held_before_ms)
        if fault is None and not await self._ledger.is_spendable(call):
            fault = _unspendable(call)
        return None if fault is None else fault.fault

    async def give_credit(self, call: CallRecord) -> tuple[CallRecord, ...]:
        """Gives the price of the call back as credit, and returns the call as it is then. Credit that pays no call of the provider now is refused."""
        if call.refund is None and find_refund_fault([call]) is None:
            _check(None if await self._ledger.is_spendable(call) else _unspendable(call))
        _check(await self._ledger.record_credit(call.id, now_ms=self._shared_ms()))
        return await self.read_calls([call.id])

    async def _verify(
        self,
        calls: Sequence[CallRecord],
        tx_hash: TxHash,
        recorded: RecordedTransaction,
        *,
        client_address: str,
    ) -> NewPayment:
        call = calls[0]
        assert call.chain_id is not None
        assert call.asset is not None
        asset = find_asset(self._rules, call.chain_id, call.asset)
        if asset is None:
            raise ChainUnavailable(f"no node of {format_network(call.chain_id)} is configured for this asset")
        charge = LookupCharge(self._quota, client_address=client_address, signer=str(call.provider))

        async def verify(facts: ChainFacts) -> VerificationResult:
            given = await self._make_input(facts, call, asset, recorded)
            return verify_transaction(facts, given, _senders_of(call), limits=self._limits)

        try:
            result = await self._verifier.read_verified(call.chain_id, tx_hash, charge, verify)
        except (ChainUnavailable, StorageUnavailable):
            charge.count_unresolved()
            raise
        if not isinstance(result, Accepted):
            raise Refusal(_explain(result, tx_hash))
        charge.give_back()
        senders = _senders_of(call)
        transfer = min(result.payments, key=lambda payment: senders.index(payment.payer))
        if transfer.block_time < max(one.created_ms for one in calls) // 1000 - PAYEE_SLACK_S:
            raise Refusal(_refuse_transfer("before_call", "The transfer is older than the call."))
        return transfer

    async def _make_input(
        self,
        facts: ChainFacts,
        call: CallRecord,
        asset: Asset,
        recorded: RecordedTransaction,
    ) -> VerificationInput:
        assert call.payer is not None
        now_ms, held_before_ms = self._now_ms(), recorded.held_before_ms
        return VerificationInput(
            rules=self._rules[asset.chain_id],
            assets=(asset,),
            payees=(Payee(address=call.payer, since_s=0),),
            now_s=now_ms // 1000,
            age_credit_s=await self._verifier.read_age_credit_s(facts, now_ms),
            held_before_s=None if held_before_ms is None else held_before_ms // 1000,
            is_admitted=recorded.is_admitted,
        )


def _senders_of(call: CallRecord) -> tuple[Address, ...]:
    """The wallets that may send the transfer, the provider first, which always may. The ledger decides about another `payTo`."""
    senders = (call.provider,) if call.pay_to is None else (call.provider, call.pay_to)
    return tuple(dict.fromkeys(senders))


def _unspendable(call: CallRecord) -> NotRefundable:
    return NotRefundable(fault=RefundFault.UNSPENDABLE, call_id=call.id)


def _is_between(payment: Payment, call: CallRecord) -> bool:
    return (payment.chain_id, payment.asset, payment.payee) == (call.chain_id, call.asset, call.payer) and (
        payment.payer in _senders_of(call)
    )


def _check(outcome: RefundOutcome | None) -> None:
    match outcome:
        case None | CallsRefunded():
            return
        case TransferUsed():
            raise Refusal(_TRANSFER_USED)
        case NotRefundable():
            raise refuse(
                code=_CODES.get(outcome.fault, Code.CALL_NOT_REFUNDABLE),
                detail=_FAULTS[outcome.fault],
                reason=outcome.fault.value,
                call_id=outcome.call_id,
            )


def _explain(result: VerificationResult | NotMined, tx_hash: TxHash) -> Problem:
    match result:
        case NotMined():
            return explain_pending(
                f"Transaction {tx_hash} is not mined yet on the network of the call. Nothing is recorded: send the same request again.",
                reason="not_mined",
            )
        case NotThePayer():
            return _refuse_transfer("wrong_sender", "Neither payTo of the call nor its provider sent it.")
        case Refused(reason=reason):
            return _refuse_transfer(reason.value, _TRANSFER_DETAILS.get(reason, _OTHER_TRANSFER))
        case Accepted():
            raise AssertionError("it is accepted")
        case _:
            return explain_result(result)


def _refuse_transfer(reason: str, detail: str) -> Problem:
    return Problem(
        code=Code.REFUND_TRANSFER_REFUSED, detail=f"{detail} {_SEND}", reason=reason, payment_state="none"
    )


_SEND = (
    "Nothing is refunded: send the price in the asset of the call, on its network, from payTo to the payer."
)
_OTHER_TRANSFER = "The transaction moved nothing to the payer of the call that counts."
_TRANSFER_DETAILS = {
    TransactionReason.TRANSACTION_FAILED: "The transaction failed on the chain and moved nothing.",
    TransactionReason.WRONG_TOKEN: "The transaction moved another token.",
    TransactionReason.WRONG_RECIPIENT: "The transaction paid another wallet than the payer of the call.",
    TransactionReason.AUTHORIZATION_TRANSFER: "The transfer was made by a signed authorisation (EIP-3009), which is a payment.",
    TransactionReason.RETURNED: "The payer returned the value in the same transaction.",
}
_TRANSFER_USED = Problem(
    code=Code.REFUND_TRANSFER_USED,
    detail="This transfer is a payment, or it has refunded other calls. Each transfer refunds once: send another one.",
    payment_state="none",
)
_FAULTS = {
    RefundFault.FREE_CALL: "The call was free, so nothing can be refunded.",
    RefundFault.NOT_CHARGED: "The call is not charged now. Only a charged call is refunded; a held call is released instead.",
    RefundFault.ALREADY_REFUNDED: "The call is refunded already. Read the call for its refund.",
    RefundFault.DIFFERENT_PAYERS: "The calls have other payers, networks, assets or payees. Refund those of one payer and one payee by one transfer.",
    RefundFault.ABOVE_PRICE: "The transfer is above the price of the calls. Name all calls that it refunds, or send a transfer of at most their prices.",
    RefundFault.BELOW_CALLS: "The transfer is too small for this call. Name fewer calls.",
    RefundFault.ANOTHER_PROVIDER: "payTo of the call is the wallet of another provider here, or calls of another provider paid it for the same payer, so this transfer may be theirs. Send one from your own wallet, or give credit.",
    RefundFault.UNSPENDABLE: "No API of yours takes this credit now: that of the call is retired or suspended, or takes the currency on its network no longer, and no other one has its payTo. Send a transfer instead.",
    RefundFault.ON_CHANNEL: "The call was paid on a channel, whose money may not have moved yet, so it gets no credit. Send a transfer instead.",
    RefundFault.RESTORED: "The call is older than the restore of this gateway's database, which may miss an earlier credit. Ask the operator to release what the restore holds, or send a transfer.",
}
_CODES = {
    RefundFault.ABOVE_PRICE: Code.REFUND_TRANSFER_REFUSED,
    RefundFault.BELOW_CALLS: Code.REFUND_TRANSFER_REFUSED,
    RefundFault.ANOTHER_PROVIDER: Code.REFUND_TRANSFER_REFUSED,
    RefundFault.RESTORED: Code.PAYMENT_HELD,
}
