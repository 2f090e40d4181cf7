"""Moves what is left of a payment channel back to the wallet: by a refund of the gateway, or by a withdrawal of the wallet itself, which needs no gateway.

A refund costs the wallet nothing: a voucher over the charged sum asks the gateway to pay out the rest. A withdrawal is two transactions of the wallet, with the
delay of the channel between them, in which the payee can claim what it is owed. Each reads the chain first, so a repeated command does nothing twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tollway.chain.channel_contract import encode_finalize_withdraw, encode_initiate_withdraw
from tollway.client.call_io import (
    GatewayResponse,
    NodeError,
    NodeIo,
    NodeResult,
    NodeUnavailable,
    NoResponse,
    SignedTransfer,
    UnsignedTransfer,
)
from tollway.client.channel_offer import (
    OfferedChannel,
    read_channel_offers,
    read_charge,
    read_correction,
)
from tollway.client.channel_payment import (
    REPEAT_VOUCHER_CODES,
    fetch_state,
    is_same_channel,
    read_withdrawal,
)
from tollway.client.errors import (
    CannotPay,
    FeeAboveMax,
    GatewayRefused,
    GatewayResponseInvalid,
    GatewayUnreachable,
    NodeUnreachable,
    PaymentPending,
    PaymentRefused,
)
from tollway.client.fee_limit import NetworkFee, limit_fee
from tollway.client.finality import parse_quantity
from tollway.client.own_channel import (
    OwnChannel,
    PendingVoucher,
    VoucherRefused,
    Withdrawal,
    heal_channel,
)
from tollway.client.quote import Cap
from tollway.client.response_rules import RepeatWait
from tollway.client.transfer import (
    Patience,
    check_gas_funds,
    check_node,
    estimate_gas,
    fetch_fee,
    native_asset,
    query_number,
)
from tollway.client.x402 import read_receipt
from tollway.ids import ChainId, TxHash
from tollway.payments.channels import SETTLEMENT_CONTRACT

SENDS_MAX = 60


class ChannelIo(NodeIo, Protocol):
    """What a refund and a withdrawal do outside of themselves."""

    async def send_refund(self, proof: str | None) -> GatewayResponse | NoResponse:
        """Sends a request to the refund URL of the channel, with this payment or without one."""

    async def sleep(self, seconds: float) -> None: ...

    async def sign_refund(self, offer: OfferedChannel, channel: OwnChannel) -> str:
        """Signs a request for all that is left."""

    async def sign_transfer(self, unsigned: UnsignedTransfer) -> SignedTransfer:
        """Signs a transaction. Nothing is sent."""

    async def find_next_nonce(self, chain_id: ChainId, pending: int) -> int:
        """Finds the next nonce on that chain by the wallet's store; 0 without any."""

    async def record_channel(self, channel: OwnChannel) -> None:
        """Records a channel."""


# ---- The refund of the gateway.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRefund:
    """A refund that the gateway has sent. `amount`: base units; None where its receipt names none. `is_seen`: the wallet's own node shows it."""

    channel: OwnChannel
    amount: int | None
    transaction: TxHash | None
    is_seen: bool


async def refund_channel(
    io: ChannelIo, channel: OwnChannel, patience: Patience, *, has_node: bool
) -> ChannelRefund:
    """Asks the gateway for all that is left of a channel. Raises a `CallerFailure`."""
    offer = await _fetch_offer(io, channel, patience)
    for _ in range(2):
        response = await _send(io, await io.sign_refund(offer, channel), patience)
        if read_charge(response.headers) is not None:
            return await _end_refund(io, channel, response, has_node=has_node)
        correction = read_correction(response.headers)
        if correction is None or not is_same_channel(correction.offer, channel):
            raise GatewayRefused(response.status, response.problem or {})
        offer = correction.offer
        totals = await fetch_state(io, channel) if has_node else None
        asked = PendingVoucher(
            request=b"",
            proof="",
            ceiling=channel.charged,
            price=0,
            signed_before=channel.ceiling,
            has_deposit=False,
        )
        healed = heal_channel(replace(channel, pending=asked), correction, totals, is_doubtful=False)
        if isinstance(healed, VoucherRefused):
            raise PaymentRefused(
                f"The gateway asks for another voucher of the channel {channel.id}, and none is signed: {healed.reason}. tollway wallet withdraw works without "
                "the gateway.",
                transaction=None,
                reason=response.code,
            )
        channel = healed
        await io.record_channel(channel)
    raise PaymentRefused(
        f"The gateway refuses the voucher of the channel {channel.id} that its own report asks for. tollway wallet withdraw works without the gateway.",
        transaction=None,
        reason=response.code,
    )


async def _fetch_offer(io: ChannelIo, channel: OwnChannel, patience: Patience) -> OfferedChannel:
    response = await _send(io, None, patience)
    offers = read_channel_offers(response.headers, response.problem or {})
    same = [offer for offer in offers if is_same_channel(offer, channel)]
    if response.status == 402 and same:
        return same[0]
    if response.problem is not None and response.status != 402:
        raise GatewayRefused(response.status, response.problem)
    raise GatewayResponseInvalid(
        f"The gateway {channel.gateway} has no refund for the channel {channel.id}. tollway wallet withdraw works without the gateway."
    )


async def _send(io: ChannelIo, proof: str | None, patience: Patience) -> GatewayResponse:
    """Sends the same request until the response is a decision: a refund that was sent twice is done once."""
    wait = RepeatWait(patience=patience)
    for sent in range(1, SENDS_MAX + 1):
        outcome = await io.send_refund(proof)
        if isinstance(outcome, NoResponse):
            raise GatewayUnreachable(outcome.detail, is_sent=outcome.is_sent)
        pause_s = wait.next_pause_s(outcome) if outcome.code in REPEAT_VOUCHER_CODES else None
        if pause_s is None or sent == SENDS_MAX:
            return outcome
        await io.sleep(pause_s)
    raise AssertionError("the last request ends the loop before")


async def _end_refund(
    io: ChannelIo, channel: OwnChannel, response: GatewayResponse, *, has_node: bool
) -> ChannelRefund:
    """Only the wallet's own node shows that the money is back: until then a refund counts as spent."""
    receipt = read_receipt(response.headers)
    amount = None if receipt is None or receipt.amount is None else int(receipt.amount)
    balance, is_seen = channel.charged, False
    if has_node:
        balance = (await fetch_state(io, channel)).balance
        is_seen = balance < channel.balance
    moved = channel.balance - balance if is_seen else 0
    refunded = replace(
        channel, balance=balance, returned=channel.returned + moved, pending=None, withdrawal=None
    )
    await io.record_channel(refunded)
    return ChannelRefund(
        channel=refunded,
        amount=amount,
        transaction=None if receipt is None else receipt.transaction,
        is_seen=is_seen,
    )


# ---- The withdrawal of the wallet.


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawalPlan:
    """The next transaction of a withdrawal, not signed. `amount`: base units that it moves, or may move after the delay. `is_end`: it pays them out. `fee`: its maximum."""

    channel: OwnChannel
    amount: int
    is_end: bool
    unsigned: UnsignedTransfer
    fee: NetworkFee


async def plan_withdrawal(io: ChannelIo, channel: OwnChannel, max_fee: Cap | None) -> WithdrawalPlan:
    """Reads the chain and plans the next step: to begin the withdrawal of what is not owed, or to end one whose delay is over. Raises `CannotPay`, `FeeAboveMax`,
    `NodeUnreachable`, and `PaymentPending` while the delay runs. Signs and sends nothing."""
    asset = channel.asset
    await check_node(io, asset.chain_id)
    state = await fetch_state(io, channel)
    begun = read_withdrawal(channel, state)
    if begun is not None:
        channel = replace(channel, balance=state.balance, withdrawal=begun)
        await io.record_channel(channel)
        await _check_delay(io, channel, begun)
        amount = min(begun.amount, state.balance - state.total_claimed)
        calldata = encode_finalize_withdraw(channel.config)
    else:
        amount = state.balance - max(state.total_claimed, channel.charged)
        if amount <= 0:
            await io.record_channel(replace(channel, balance=state.balance, withdrawal=None))
            raise CannotPay(f"Nothing is left in the channel {channel.id}.")
        calldata = encode_initiate_withdraw(channel.config, base_units=amount)
    gas = await estimate_gas(io, asset.chain_id, channel.config.payer, SETTLEMENT_CONTRACT, 0, calldata)
    fee = await fetch_fee(io, asset.chain_id, gas)
    excess = limit_fee(asset, amount, max_fee).find_excess(fee)
    if excess is not None:
        raise FeeAboveMax(f"{excess}.")
    await check_gas_funds(io, native_asset(asset.chain_id), fee.max_wei, channel.config.payer)
    pending = await query_number(
        io, asset.chain_id, "eth_getTransactionCount", str(channel.config.payer), "pending"
    )
    unsigned = UnsignedTransfer(
        chain_id=asset.chain_id,
        nonce=max(pending, await io.find_next_nonce(asset.chain_id, pending)),
        to=SETTLEMENT_CONTRACT,
        value=0,
        calldata=calldata,
        gas=gas,
        fee_max_wei=fee.price_wei,
        tip_wei=fee.tip_wei,
    )
    return WithdrawalPlan(
        channel=channel, amount=amount, is_end=begun is not None, unsigned=unsigned, fee=fee
    )


async def _check_delay(io: NodeIo, channel: OwnChannel, begun: Withdrawal) -> None:
    head = await io.query_node(channel.asset.chain_id, "eth_getBlockByNumber", "latest", False)
    block = head.result if isinstance(head, NodeResult) else None
    now_s = parse_quantity(block.get("timestamp")) if isinstance(block, Mapping) else None
    if now_s is None:
        raise NodeUnreachable(f"The node of chain {channel.asset.chain_id} gives no block.")
    if now_s < begun.ready_s:
        raise PaymentPending(
            f"The withdrawal from the channel {channel.id} has begun, and its delay ends in {begun.ready_s - now_s} seconds. Run the same command after that."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnChannel:
    """A channel after a transaction of its withdrawal, by the wallet's own node."""

    channel: OwnChannel
    transaction: TxHash


async def send_withdrawal(io: ChannelIo, plan: WithdrawalPlan, patience: Patience) -> WithdrawnChannel:
    """Signs and sends the transaction of a plan, and waits until it is mined. Raises `CannotPay` where it was reverted or the node refuses it, and
    `PaymentPending` where it is not mined in time."""
    channel, chain_id = plan.channel, plan.channel.asset.chain_id
    signed = await io.sign_transfer(plan.unsigned)
    await _broadcast(io, chain_id, signed)
    for _ in range(max(1, int(patience.wait_s / patience.poll_s))):
        found = await io.query_node(chain_id, "eth_getTransactionReceipt", str(signed.tx_hash))
        receipt = found.result if isinstance(found, NodeResult) else None
        if isinstance(receipt, Mapping) and receipt.get("transactionHash") == str(signed.tx_hash):
            break
        await io.sleep(patience.poll_s)
    else:
        raise PaymentPending(
            f"The transaction {signed.tx_hash} of the withdrawal is not mined yet. Run the same command later: it reads the chain first.",
            transaction=signed.tx_hash,
        )
    if parse_quantity(receipt.get("status")) != 1:
        raise CannotPay(
            f"The transaction {signed.tx_hash} of the withdrawal was reverted. Nothing was moved.",
            transaction=signed.tx_hash,
        )
    state = await fetch_state(io, channel)
    after = replace(
        channel,
        balance=state.balance,
        returned=channel.returned + max(0, channel.balance - state.balance),
        withdrawal=read_withdrawal(channel, state),
    )
    await io.record_channel(after)
    return WithdrawnChannel(channel=after, transaction=signed.tx_hash)


async def _broadcast(io: NodeIo, chain_id: ChainId, signed: SignedTransfer) -> None:
    """Broadcasts a transaction. Raises `CannotPay` with the node's refusal."""
    outcome = await io.query_node(chain_id, "eth_sendRawTransaction", "0x" + signed.raw.hex())
    match outcome:
        case NodeError(message=message):
            raise CannotPay(f"The node of chain {chain_id} refuses the transaction: {message}")
        case NodeUnavailable(detail=detail):
            raise NodeUnreachable(
                f"It is unknown whether the transaction {signed.tx_hash} was sent: {detail}. Run the same command later: it reads the chain first."
            )
