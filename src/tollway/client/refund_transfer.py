"""The transfer by which a provider refunds calls: read from the records of the calls, built, signed and stored here, sent once it is approved.

Amounts and wallets come from the gateway's records of the calls, so a person or a program approves them before anything is sent. The signed transfer is on the
disk before its first byte is sent, and a call has one: a repeat sends the same bytes again, until the chain shows that they can never move anything. The
transfer is no payment: no call spends it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from tollway.client.call_io import (
    NodeIo,
    NonceTaken,
    RefundedAlready,
    Stored,
    Transfer,
    TransferState,
    UnsignedTransfer,
)
from tollway.client.errors import CannotPay, FeeAboveMax, PaymentPending
from tollway.client.fee_limit import NetworkFee, limit_fee
from tollway.client.store import PaymentStore
from tollway.client.transfer import (
    NONCE_TRIES_MAX,
    PaymentSource,
    broadcast,
    build_transaction,
    check_gas_funds,
    check_node,
    estimate_gas,
    explain_shortfall,
    fetch_balance,
    fetch_fee,
    find_asset,
    native_asset,
    query_number,
    read_transfer_state,
)
from tollway.client.wallet import Wallet
from tollway.ids import REFUND_CALLS_MAX, Address, parse_network
from tollway.money import Asset


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundDue:
    """What calls of one payer cost, in base units of one asset, and the wallet that they paid."""

    asset: Asset
    amount: int
    payer: Address
    pay_to: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundTransfer:
    due: RefundDue
    unsigned: UnsignedTransfer
    fee: NetworkFee


def check_refund_calls(call_ids: Sequence[str]) -> None:
    """Raises ValueError for calls that no request of one transfer may name."""
    if len(call_ids) > REFUND_CALLS_MAX:
        raise ValueError(f"name at most {REFUND_CALLS_MAX} calls: one transfer refunds no more")
    twice = next((one for at, one in enumerate(call_ids) if one in call_ids[:at]), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice; a call is refunded once")


def read_refund_due(calls: Sequence[Mapping[str, Any]], *, sender: Address) -> RefundDue:
    """The transfer that refunds these records of `/history`, which are not empty. Raises ValueError where one transfer of `sender` cannot."""
    check_refund_calls([str(call.get("id")) for call in calls])
    due = [_read_call(call, sender=sender) for call in calls]
    first = due[0]
    for call, one in zip(calls, due, strict=True):
        if (one.asset, one.payer, one.pay_to) != (first.asset, first.payer, first.pay_to):
            raise ValueError(
                f"{call.get('id')} has another payer, payee or asset than {calls[0].get('id')}; refund it by a transfer of its own"
            )
    return RefundDue(
        asset=first.asset,
        amount=sum(one.amount for one in due),
        payer=first.payer,
        pay_to=first.pay_to,
    )


def _read_call(call: Mapping[str, Any], *, sender: Address) -> RefundDue:
    payment, name = call.get("payment"), call.get("id")
    if (
        not isinstance(payment, Mapping)
        or payment.get("state") != "charged"
        or call.get("refund") is not None
    ):
        raise ValueError(f"{name} is not charged, or it is refunded already: tollway history {name} shows it")
    try:
        payer, pay_to = Address.parse(str(call.get("payer"))), Address.parse(str(payment.get("payTo")))
        provider = Address.parse(str(call.get("provider")))
        asset, amount = _read_asset(call, payment), int(str(payment.get("amount")))
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"the record of {name} cannot be read: {exc}") from exc
    if sender not in (pay_to, provider):
        raise ValueError(f"{name} paid {pay_to}; only that wallet, or the provider {provider}, can refund it")
    if amount <= 0:
        raise ValueError(f"{name} was free")
    return RefundDue(asset=asset, amount=amount, payer=payer, pay_to=pay_to)


def _read_asset(call: Mapping[str, Any], payment: Mapping[str, Any]) -> Asset:
    """As the gateway describes it; `plan_refund` verifies it. The decimals follow from the price and the amount, which are of one value."""
    network, _, reference = str(payment.get("asset")).partition("/")
    kind, _, token = reference.partition(":")
    value, amount = str(call.get("price")), str(payment.get("amount"))
    return Asset(
        chain_id=parse_network(network),
        token=Address.parse(token) if kind == "erc20" else None,
        symbol=str(call.get("currency")),
        decimals=_find_decimals(value, int(amount)),
    )


def _find_decimals(price: str, amount: int) -> int:
    whole, _, fraction = price.partition(".")
    units, decimals = int(whole + fraction), len(fraction)
    while units < amount and decimals < 36:
        units, decimals = units * 10, decimals + 1
    if units != amount:
        raise ValueError("its price and its amount differ")
    return decimals


async def plan_refund(io: NodeIo, due: RefundDue, *, sender: Address) -> RefundTransfer:
    """The transfer without its nonce in the store, of an asset that a preset or its contract describes as the gateway does. Raises `CannotPay`, `FeeAboveMax` and `NodeUnreachable`; nothing is sent."""
    chain_id = due.asset.chain_id
    await check_node(io, chain_id)
    await _check_asset(io, due.asset, sender=sender)
    balance = await fetch_balance(io, due.asset, sender)
    if balance < due.amount:
        raise CannotPay(
            f"This wallet cannot refund: {explain_shortfall(due.asset, due.amount, balance, sender)}."
        )
    to, value, calldata = build_transaction(due.asset, due.payer, due.amount)
    fee = await fetch_fee(io, chain_id, await estimate_gas(io, chain_id, sender, to, value, calldata))
    excess = limit_fee(due.asset, due.amount, None).find_excess(fee)
    if excess is not None:
        raise FeeAboveMax(f"{excess}.")
    await check_gas_funds(io, native_asset(chain_id), value + fee.max_wei, sender)
    nonce = await query_number(io, chain_id, "eth_getTransactionCount", str(sender), "pending")
    unsigned = UnsignedTransfer(
        chain_id=chain_id,
        nonce=nonce,
        to=to,
        value=value,
        calldata=calldata,
        gas=fee.gas,
        fee_max_wei=fee.price_wei,
        tip_wei=fee.tip_wei,
    )
    return RefundTransfer(due=due, unsigned=unsigned, fee=fee)


async def _check_asset(io: NodeIo, asset: Asset, *, sender: Address) -> None:
    """As of every payment: a source other than the gateway describes the asset equally."""
    source = PaymentSource(payer=sender, chains=frozenset({asset.chain_id}), gateway="", assets={})
    if asset.token is None:
        known: Asset | None = native_asset(asset.chain_id)
    else:
        known = await find_asset(io, asset.chain_id, asset.token, source)
    if known is None or replace(known, domain=None) != asset:
        described = (
            "no token that can be read" if known is None else f"{known.symbol} with {known.decimals} decimals"
        )
        raise CannotPay(
            f"The gateway says that the calls cost {asset.symbol} with {asset.decimals} decimals, but {asset.token or 'the native currency'} is {described}."
        )


def sign_refund(
    store: PaymentStore, wallet: Wallet, planned: RefundTransfer, *, call_ids: Sequence[str], gateway: str
) -> Transfer:
    """Signs the transfer of a plan with the next nonce of the wallet, and stores it. Nothing is sent. Raises `CannotPay` where the store has a refund of a call."""
    due, unsigned = planned.due, planned.unsigned
    for _ in range(NONCE_TRIES_MAX):
        stored = store.next_nonce(payer=wallet.address, chain_id=unsigned.chain_id, pending=unsigned.nonce)
        nonce = max(unsigned.nonce, stored)
        signed = wallet.sign_transfer(replace(unsigned, nonce=nonce))
        refund = Transfer(
            tx_hash=signed.tx_hash,
            raw=signed.raw,
            asset=due.asset,
            payer=wallet.address,
            pay_to=due.payer,
            gateway=gateway,
            amount=due.amount,
            rest=0,
            nonce=nonce,
            confirmations=1,
            state=TransferState.STORED,
            fee_max_wei=planned.fee.max_wei,
            refunds=tuple(call_ids),
        )
        match store.store_refund(refund):
            case Stored():
                return refund
            case RefundedAlready(transfer=earlier):
                raise CannotPay(
                    f"Another process of this wallet has just refunded {' '.join(earlier.refunds)} by {earlier.tx_hash}. Run the same command again.",
                    transaction=earlier.tx_hash,
                )
            case NonceTaken():
                continue
            case outcome:
                assert_never(outcome)
    raise CannotPay("Other processes of this wallet keep taking its nonces. Try again.")


def find_signed_refund(store: PaymentStore, call_ids: Sequence[str]) -> Transfer | None:
    """The stored refund of exactly these calls that may have moved something. Raises ValueError where it refunds only some of them, or others too."""
    earlier = store.find_refund(call_ids)
    if earlier is not None and set(earlier.refunds) != set(call_ids):
        raise ValueError(
            f"the transfer {earlier.tx_hash} of this wallet refunds {' '.join(earlier.refunds)}; name exactly these calls to send it again, or only others"
        )
    return earlier


async def is_refund_alive(io: NodeIo, store: PaymentStore, refund: Transfer) -> bool:
    """Whether a stored refund is mined or can still be. False, recorded, only where a final block shows that it was reverted or that its nonce is used: then another
    transfer cannot be a second one. Raises `PaymentPending` while a revert is not final."""
    await check_node(io, refund.chain_id)
    state, _ = await read_transfer_state(io, refund)
    if state in (TransferState.FAILED, TransferState.REPLACED):
        store.record_state(refund.tx_hash, state, None)
        return False
    if state is TransferState.STORED:
        raise PaymentPending(
            f"The chain node reports that the refund {refund.tx_hash} was reverted. That counts once its block is final: run the same command later.",
            transaction=refund.tx_hash,
        )
    return True


async def send_refund(io: NodeIo, store: PaymentStore, refund: Transfer) -> str | None:
    """Sends the stored bytes, after those of earlier nonces. Returns the node's refusal, such as "already known"; the receipt decides, not this response."""
    for earlier in store.unresolved(refund.payer):
        if earlier.chain_id == refund.chain_id and earlier.nonce < refund.nonce:
            await broadcast(io, earlier)
    return await broadcast(io, refund)
