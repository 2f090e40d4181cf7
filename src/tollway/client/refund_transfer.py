"""The transfer by which a provider refunds calls: read from the records of the calls, built and signed here, sent once it is approved.

Amounts and wallets come from the gateway's records of the calls, so a person or a program approves them before anything is sent. The transfer is no
payment: it is not in the store of payments, and no call spends it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tollway.client.call_io import NodeError, NodeIo, UnsignedTransfer
from tollway.client.errors import CannotPay, FeeAboveMax
from tollway.client.fee_limit import NetworkFee, limit_fee
from tollway.client.transfer import (
    PaymentSource,
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
)
from tollway.ids import REFUND_CALLS_MAX, Address, ChainId, parse_network
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
    """The unsigned transfer, of an asset that a preset or its contract describes as the gateway does. Raises `CannotPay`, `FeeAboveMax` and `NodeUnreachable`; nothing is sent."""
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


async def send_raw(io: NodeIo, chain_id: ChainId, raw: bytes) -> str | None:
    """Sends the signed bytes. Returns the node's refusal; the receipt decides, not this response."""
    outcome = await io.query_node(chain_id, "eth_sendRawTransaction", "0x" + raw.hex())
    return outcome.message if isinstance(outcome, NodeError) else None
