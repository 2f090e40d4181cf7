"""Pays a call by a transfer (rail `tx`): chooses among the offers of a 402, signs, stores, broadcasts, and waits until the payment is
confirmed. Sub-flows of `flow`.

The gateway's numbers are compared with what the caller allows before anything is signed. The order is fixed: sign, store on disk,
and only then send. After a crash the same bytes are sent again; a second payment to the same payee is not signed while the first
one can still be mined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Literal, assert_never

from tollway.chain.networks import describe_network
from tollway.client.call_io import (
    CallIo,
    GatewayResponse,
    NodeError,
    NodeIo,
    NodeResult,
    NodeUnavailable,
    NonceTaken,
    OverBudget,
    PaidAlready,
    PaymentProgress,
    PaymentQuote,
    SignedAuthorization,
    Stored,
    Transfer,
    TransferState,
    UnsignedTransfer,
)
from tollway.client.errors import (
    BudgetExhausted,
    CannotPay,
    FeeAboveMax,
    NodeUnreachable,
    PaymentPending,
    PaymentRefused,
    PolicyExceeded,
    PriceAboveMax,
)
from tollway.client.fee_limit import GAS_MAX, NetworkFee, limit_fee, native_symbol
from tollway.client.finality import (
    approve_in_budget,
    is_finally_reverted,
    parse_quantity,
    repeat_in_budget,
)
from tollway.client.owner_policy import PolicyCheck
from tollway.client.quote import DEFAULT_MAX_PRICE, KNOWN_ASSETS, Cap, TransferOffer, is_symbol, to_atto
from tollway.errors import Code
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.money import Asset, format_decimal

NONCE_TRIES_MAX = 32  # each lost try is a payment of another call of this wallet
TIP_FALLBACK_WEI = 10**9
REBROADCAST_EVERY = 8
UINT256_MAX = 2**256 - 1

_TRANSFER = keccak256(b"transfer(address,uint256)")[:4]
_BALANCE_OF = keccak256(b"balanceOf(address)")[:4]
_DECIMALS = keccak256(b"decimals()")[:4]
_SYMBOL = keccak256(b"symbol()")[:4]
_SYMBOL_BYTES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a call waits for its payment. The seconds of its pauses count, not a clock. `chain_wait_s`: for a gateway that reports its chain away
    (`chain_unavailable`); an outage of a node is seldom over within a call."""

    poll_s: float = 1.0
    wait_s: float = 180.0
    chain_wait_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentSource:
    """The payer, its chains, and its assets besides the presets.

    `chains`: those with a node. `signing_chains`: those where authorisations may be signed without a node.
    """

    payer: Address
    chains: frozenset[ChainId]
    gateway: str
    assets: Mapping[tuple[ChainId, Address | None], Asset]
    signing_chains: frozenset[ChainId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTransfer:
    """A stored payment. `is_new` False: it was stored before, is unresolved, and goes to the same payee. `is_reserved`: a running
    call made the payment for itself."""

    transfer: Transfer
    is_new: bool
    is_reserved: bool = False


# ---- Before anything is signed.


async def verify_asset(io: NodeIo, offer: TransferOffer, source: PaymentSource) -> Asset | None:
    """The offered asset, where a source other than the gateway describes it equally; else None."""
    known = await find_asset(io, offer.chain_id, offer.token, source)
    # The domain is for authorisations only, and the store of payments does not keep it.
    return offer.asset if known is not None and replace(known, domain=None) == offer.asset else None


async def find_asset(
    io: NodeIo, chain_id: ChainId, token: Address | None, source: PaymentSource
) -> Asset | None:
    """The asset by a source other than the gateway: the caller, a preset, or the token's contract. None: no source."""
    key = (chain_id, token)
    known = source.assets.get(key) or KNOWN_ASSETS.get(key)
    if known is None and token is not None and chain_id in source.chains:
        known = await _fetch_token(io, chain_id, token)
    return known


async def _fetch_token(io: NodeIo, chain_id: ChainId, token: Address) -> Asset | None:
    decimals = await eth_call(io, chain_id, token, _DECIMALS)
    symbol = _decode_symbol(await eth_call(io, chain_id, token, _SYMBOL))
    number = int.from_bytes(decimals, "big")
    if len(decimals) != 32 or number > 36 or symbol is None:
        return None
    return Asset(chain_id=chain_id, token=token, symbol=symbol, decimals=number)


def _decode_symbol(result: bytes) -> str | None:
    """Decodes an ABI string, or the bytes32 of old tokens. None: no valid symbol."""
    raw = result.rstrip(b"\0")
    if len(result) >= 64 and int.from_bytes(result[:32], "big") == 32:
        length = int.from_bytes(result[32:64], "big")
        if length > _SYMBOL_BYTES_MAX:
            return None
        raw = result[64 : 64 + length]
    try:
        symbol = raw.decode("ascii")
    except UnicodeDecodeError:
        return None
    return symbol if is_symbol(symbol) else None


def explain_missing_node(chain_id: ChainId, source: PaymentSource) -> str:
    """The chain without a node, and the chains of the configured nodes."""
    served = ", ".join(describe_network(one) for one in sorted(source.chains))
    configured = f", and the configured nodes serve {served}" if served else ""
    return f"no node is configured for {describe_network(chain_id)}{configured}"


def explain_shortfall(asset: Asset, due: int, balance: int, payer: Address) -> str:
    """The amount due, the balance, and the payment that funds the wallet: amount, network and address."""
    due_text, has, missing = (
        format_decimal(units, decimals=asset.decimals) for units in (due, balance, due - balance)
    )
    network = describe_network(asset.chain_id)
    return (
        f"{due_text} {asset.symbol} on {network} is due, and the wallet holds {has}; "
        f"send at least {missing} {asset.symbol} on {network} to {payer}"
    )


async def fetch_balance(io: NodeIo, asset: Asset, holder: Address) -> int:
    """The balance of `holder`, in base units."""
    if asset.token is None:
        return await query_number(io, asset.chain_id, "eth_getBalance", str(holder), "latest")
    result = await eth_call(io, asset.chain_id, asset.token, _BALANCE_OF + bytes(12) + holder)
    return int.from_bytes(result, "big") if len(result) == 32 else 0


# ---- Signing and storing.


async def make_transfer(
    io: CallIo,
    asset: Asset,
    offer: TransferOffer,
    amount: int,
    source: PaymentSource,
    tried: frozenset[TxHash],
    max_fee: Cap | None = None,
) -> StoredTransfer:
    """Signs and stores a payment; returns it, or the stored payment that replaces it.

    It does not broadcast the payment. Raises `CannotPay`, `FeeAboveMax`, `BudgetExhausted` and `NodeUnreachable`; then nothing
    was spent.
    """
    if not 0 < amount <= UINT256_MAX:
        raise CannotPay("The amount is out of range.")
    chain_id = asset.chain_id
    await check_node(io, chain_id)
    to, value, calldata = build_transaction(asset, offer.pay_to, amount)
    gas = await estimate_gas(io, chain_id, source.payer, to, value, calldata)
    fee = await fetch_fee(io, chain_id, gas)
    quote = _build_quote(asset, offer, amount, fee, max_fee)
    await check_gas_funds(io, native_asset(chain_id), value + fee.max_wei, source.payer)
    await approve_in_budget(io, quote)
    for _ in range(NONCE_TRIES_MAX):
        pending = await query_number(io, chain_id, "eth_getTransactionCount", str(source.payer), "pending")
        stored = await io.find_next_nonce(chain_id, pending)
        if stored > pending:  # the node lacks earlier transactions, without which it never mines the next one
            await _broadcast_unsent(io, chain_id)
        nonce = max(pending, stored)
        unsigned = UnsignedTransfer(
            chain_id=chain_id,
            nonce=nonce,
            to=to,
            value=value,
            calldata=calldata,
            gas=gas,
            fee_max_wei=fee.price_wei,
            tip_wei=fee.tip_wei,
        )
        signed = await io.sign_transfer(unsigned)
        transfer = Transfer(
            tx_hash=signed.tx_hash,
            raw=signed.raw,
            asset=asset,
            payer=source.payer,
            pay_to=offer.pay_to,
            gateway=source.gateway,
            amount=amount,
            rest=amount,
            nonce=nonce,
            confirmations=offer.confirmations,
            state=TransferState.STORED,
            fee_max_wei=fee.max_wei,
        )
        kept = await _store(io, transfer, offer.amount, tried)
        if kept is not None:
            return kept
    raise CannotPay("Other processes of this wallet keep taking its nonces. Try again.")


async def check_node(io: NodeIo, chain_id: ChainId) -> None:
    """Raises `CannotPay` where the node that is configured for a chain serves another one."""
    served = await query_number(io, chain_id, "eth_chainId")
    if served != chain_id:
        raise CannotPay(
            f"The node that is configured for {describe_network(chain_id)} serves {describe_network(ChainId(served))}. "
            "Correct its URL in rpc_urls (--rpc, TOLLWAY_RPC)."
        )


async def check_gas_funds(io: NodeIo, native: Asset, due_wei: int, payer: Address) -> None:
    """Raises `CannotPay` where the wallet does not hold what a transaction can cost."""
    funds = await fetch_balance(io, native, payer)
    if funds < due_wei:
        reason = explain_shortfall(native, due_wei, funds, payer)
        raise CannotPay(f"This wallet cannot pay for gas: {reason}.")


def _build_quote(
    asset: Asset, offer: TransferOffer, amount: int, fee: NetworkFee, max_fee: Cap | None
) -> PaymentQuote:
    """The payment for the caller's approval. Raises `FeeAboveMax`."""
    limit = limit_fee(asset, amount, max_fee)
    if (excess := limit.find_excess(fee)) is not None:
        raise FeeAboveMax(f"{excess}.")
    return PaymentQuote(
        rail="tx",
        asset=asset,
        amount=amount,
        pay_to=offer.pay_to,
        fee_max_wei=fee.max_wei,
        fee_limit_wei=limit.fee_wei,
    )


async def _store(
    io: CallIo, transfer: Transfer, price: int, tried: frozenset[TxHash]
) -> StoredTransfer | None:
    outcome = await repeat_in_budget(io, partial(io.store_transfer, transfer, price, tried))
    match outcome:
        case Stored():
            return StoredTransfer(transfer=transfer, is_new=True)
        case PaidAlready(transfer=earlier, is_reserved=is_reserved):
            return StoredTransfer(transfer=earlier, is_new=False, is_reserved=is_reserved)
        case NonceTaken():
            return None
        case OverBudget():
            raise BudgetExhausted(outcome.explain(transfer))
        case _:
            assert_never(outcome)


def build_transaction(asset: Asset, pay_to: Address, amount: int) -> tuple[Address, int, bytes]:
    """Recipient, value and calldata of the transaction that moves `amount` to `pay_to`."""
    if asset.token is None:
        return pay_to, amount, b""
    return asset.token, 0, _TRANSFER + bytes(12) + pay_to + amount.to_bytes(32, "big")


def native_asset(chain_id: ChainId) -> Asset:
    return Asset(chain_id=chain_id, token=None, symbol=native_symbol(chain_id), decimals=18)


async def estimate_gas(
    io: NodeIo, chain_id: ChainId, payer: Address, to: Address, value: int, calldata: bytes
) -> int:
    call_object = {"from": str(payer), "to": str(to), "value": hex(value), "data": "0x" + calldata.hex()}
    estimate = await query_number(io, chain_id, "eth_estimateGas", call_object)
    gas = estimate + estimate // 4  # a balance slot may become non-zero meanwhile, which costs more
    if gas > GAS_MAX:
        raise FeeAboveMax(f"The transfer would use {gas} gas; the limit of a payment is {GAS_MAX}.")
    return gas


async def fetch_fee(io: NodeIo, chain_id: ChainId, gas: int) -> NetworkFee:
    """Tip and maximum fee per gas (EIP-1559). Twice the base fee is enough for six full blocks in a row."""
    block = await _query(io, chain_id, "eth_getBlockByNumber", "latest", False)
    base = block.get("baseFeePerGas") if isinstance(block, Mapping) else None
    if not isinstance(base, str):
        raise CannotPay(f"Chain {chain_id} has no EIP-1559 fees.")
    tip = await io.query_node(chain_id, "eth_maxPriorityFeePerGas")
    tip_wei = TIP_FALLBACK_WEI  # many nodes lack the method
    if isinstance(tip, NodeResult):
        tip_wei = _parse_number(tip.result)
    return NetworkFee(
        chain_id=chain_id, gas=gas, price_wei=2 * _parse_number(base) + tip_wei, tip_wei=tip_wei
    )


# ---- After the payment is stored.


async def wait_for_confirmation(io: CallIo, transfer: Transfer, patience: Patience) -> TransferState:
    """Waits until a stored payment is confirmed or can never be. Broadcasts the stored bytes repeatedly.

    Raises `PaymentPending` after `patience`: the payment stays stored and the next call continues with it.
    """
    if transfer.state is not TransferState.STORED:
        return transfer.state
    polls = max(1, int(patience.wait_s / patience.poll_s))
    for poll in range(polls):
        state, confirmations = await read_transfer_state(io, transfer)
        if state is TransferState.STORED:
            raise PaymentPending(
                f"Your chain node reports that the payment {transfer.tx_hash} of {transfer.describe()} was reverted. That "
                "counts once its block is final; until then the payment counts as spent, and its payee is not paid "
                "again. Repeat the call later.",
                transaction=transfer.tx_hash,
            )
        if state is not None:
            # The rest of a confirmed payment is not changed: another call may have spent it meanwhile.
            rest = None if state is TransferState.CONFIRMED else 0
            await io.record_transfer_state(transfer.tx_hash, state, rest)
            return state
        if poll % REBROADCAST_EVERY == 0:
            await broadcast(io, transfer)
        if confirmations is not None:
            await io.report_progress(_build_progress(transfer, confirmations))
        if poll % REBROADCAST_EVERY == 0:
            continue  # a quick chain may have mined it already
        await io.sleep(patience.poll_s)
    raise PaymentPending(
        f"The payment {transfer.tx_hash} of {transfer.describe()} has not enough confirmations yet. "
        "Repeat the call later; it continues with this payment.",
        transaction=transfer.tx_hash,
    )


def _build_progress(transfer: Transfer, confirmations: int) -> PaymentProgress:
    return PaymentProgress(
        payment=transfer,
        confirmations=confirmations,
        confirmations_needed=transfer.confirmations,
    )


async def broadcast(io: NodeIo, transfer: Transfer) -> str | None:
    """Sends the stored bytes. The response does not count ("already known", none at all): the receipt decides.

    Returns the node's refusal, for messages.
    """
    outcome = await io.query_node(transfer.chain_id, "eth_sendRawTransaction", "0x" + transfer.raw.hex())
    return outcome.message if isinstance(outcome, NodeError) else None


async def _broadcast_unsent(io: CallIo, chain_id: ChainId) -> None:
    earlier = await io.find_unsent_transfers(chain_id)
    for transfer in earlier:
        await broadcast(io, transfer)


async def resume_transfers(io: NodeIo, transfers: Sequence[Transfer]) -> None:
    """Broadcasts every stored payment without a receipt again, after a start. Waits for nothing."""
    for transfer in sorted(transfers, key=lambda t: (t.chain_id, t.nonce)):
        if transfer.state is not TransferState.STORED:
            continue
        receipt = await io.query_node(transfer.chain_id, "eth_getTransactionReceipt", str(transfer.tx_hash))
        if isinstance(receipt, NodeResult) and receipt.result is None:
            await broadcast(io, transfer)


async def read_transfer_state(io: NodeIo, transfer: Transfer) -> tuple[TransferState | None, int | None]:
    """Reads the state of a stored transfer and its confirmations from the chain; each None while it is uncertain, also where the node is away.
    `STORED`: the receipt is reverted, and its block is not final."""
    outcome = await io.query_node(transfer.chain_id, "eth_getTransactionReceipt", str(transfer.tx_hash))
    if not isinstance(outcome, NodeResult):
        return None, None
    if outcome.result is None:
        return (await _find_replacement(io, transfer)), 0
    receipt = outcome.result
    if not isinstance(receipt, Mapping) or receipt.get("transactionHash") != str(transfer.tx_hash):
        return None, None
    head = await io.query_node(transfer.chain_id, "eth_blockNumber")
    if not isinstance(head, NodeResult):
        return None, None
    mined, now_at, status = (
        parse_quantity(value) for value in (receipt.get("blockNumber"), head.result, receipt.get("status"))
    )
    if mined is None or now_at is None:
        return None, None
    confirmations = max(0, now_at - mined + 1)
    if confirmations < transfer.confirmations:
        return None, confirmations
    if status == 0:
        is_final = await is_finally_reverted(io, transfer.chain_id, transfer.tx_hash)
        return (TransferState.FAILED if is_final else TransferState.STORED), confirmations
    return (TransferState.CONFIRMED if status == 1 else None), confirmations


async def _find_replacement(io: NodeIo, transfer: Transfer) -> TransferState | None:
    """`REPLACED` where a payment without a receipt can never be mined: a *finalized* block holds its nonce.

    The receipt is read again after the count, because a new block can arrive between the two requests.
    """
    counted = await io.query_node(
        transfer.chain_id, "eth_getTransactionCount", str(transfer.payer), "finalized"
    )
    taken = parse_quantity(counted.result) if isinstance(counted, NodeResult) else None
    if taken is None or taken <= transfer.nonce:
        return None
    again = await io.query_node(transfer.chain_id, "eth_getTransactionReceipt", str(transfer.tx_hash))
    is_gone = isinstance(again, NodeResult) and again.result is None
    return TransferState.REPLACED if is_gone else None


# ---- Requests to a node before anything is signed: a failure ends the flow.


async def _query(io: NodeIo, chain_id: ChainId, method: str, *params: object) -> object:
    outcome = await io.query_node(chain_id, method, *params)
    match outcome:
        case NodeResult(result=result):
            return result
        case NodeError(message=message):
            raise CannotPay(f"The node of chain {chain_id} refuses {method}: {message}")
        case NodeUnavailable(detail=detail):
            raise NodeUnreachable(f"The node of chain {chain_id} gives no usable response: {detail}.")
        case _:
            assert_never(outcome)


async def query_number(io: NodeIo, chain_id: ChainId, method: str, *params: object) -> int:
    return _parse_number(await _query(io, chain_id, method, *params))


async def eth_call(io: NodeIo, chain_id: ChainId, to: Address, calldata: bytes) -> bytes:
    call_object = {"to": str(to), "data": "0x" + calldata.hex()}
    result = await _query(io, chain_id, "eth_call", call_object, "latest")
    try:
        return bytes.fromhex(str(result).removeprefix("0x"))
    except ValueError as exc:
        raise NodeUnreachable(f"The node of chain {chain_id} returns an invalid result of eth_call.") from exc


def _parse_number(quantity: object) -> int:
    """Parses a number of a node. Raises `NodeUnreachable` for an invalid one."""
    number = parse_quantity(quantity)
    if number is None:
        raise NodeUnreachable("The node returns an invalid number.")
    return number


RailChoice = Literal["auto", "tx", "x402", "channel"]
RAILS: tuple[RailChoice, ...] = ("auto", "tx", "x402", "channel")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """The caller's limits and choices for one call. `max_fee`: the maximum network fee of one payment, in the native
    currency; None: the presets. `prepay`: the number of calls that one new payment covers, on `tx`.

    `max_deposit`: the maximum of one deposit into a channel. `is_repeatable`: the request may be sent twice (a safe method, or an idempotency key).
    """

    max_price: Cap
    max_fee: Cap | None = None
    max_deposit: Cap = DEFAULT_MAX_PRICE
    prepay: int = 1
    patience: Patience = field(default_factory=Patience)
    is_repeatable: bool = False
    rail: RailChoice = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class InsufficientCredit:
    """The rest of a payment is less than the price. `missing` None: the gateway names no missing amount."""

    transfer: Transfer
    missing: int | None
    response: GatewayResponse


def exceeds_call(
    amount: int, asset: Asset, signed: Sequence[Transfer | SignedAuthorization], rules: CallRules
) -> bool:
    """Whether this payment, with all signed payments of the same call that can move money, exceeds `max_price` times
    `prepay`. Each payment counts as a share of the maximum in its own currency."""
    share = Fraction(0)
    for part, part_asset in ((amount, asset), *((entry.amount, entry.asset) for entry in signed)):
        cap = rules.max_price.atto_for(part_asset.symbol)
        if not cap:
            return True
        share += Fraction(to_atto(part, part_asset), cap)
    return share > rules.prepay


MAX_PRICE_REACHED = "a second signature for this call would exceed max_price"


async def make_payment(
    io: CallIo,
    offers: Sequence[TransferOffer],
    insufficient: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer] = (),
    rejected: Sequence[SignedAuthorization] = (),
) -> StoredTransfer:
    """Chooses an offer, signs a payment and stores it.

    `insufficient`: the response to a payment whose rest is less than the price. `paid`: the earlier transfers of this call;
    then only a difference can be paid. `rejected`:
    authorisations of this call that the gateway refused, and can still settle.
    """
    if paid:
        return await _pay_difference(io, offers, insufficient, source, rules, tried, paid, rejected)
    reasons: list[str] = []
    is_fee_above, policy = False, PolicyCheck(io)
    exceeded: PolicyExceeded | None = None
    if not offers:
        raise CannotPay("The gateway offers no transfer that this wallet can make.")
    for offer in _order_offers(offers, insufficient):
        asset = await _check_offer(io, offer, source, rules, reasons)
        if asset is None:
            continue
        amount = _amount_due(offer, asset, insufficient, rules)
        if rejected and exceeds_call(amount, asset, rejected, rules):
            reasons.append(MAX_PRICE_REACHED)
            continue
        balance = await fetch_balance(io, asset, source.payer)
        if balance < amount:
            reasons.append(explain_shortfall(asset, amount, balance, source.payer))
            continue
        refusal = await policy.find_refusal(offer.amount, asset)
        if refusal is not None:  # another currency may be covered
            exceeded = exceeded or refusal
            continue
        try:
            return await make_transfer(io, asset, offer, amount, source, tried, rules.max_fee)
        except FeeAboveMax as failure:  # another network may cost less
            reasons.append(failure.detail.rstrip("."))
            is_fee_above = True
    if exceeded is not None:
        if not reasons:
            raise exceeded
        reasons.append(exceeded.detail.rstrip("."))
    kind = FeeAboveMax if is_fee_above else CannotPay
    raise kind("This wallet cannot pay the call: " + "; ".join(reasons) + ".")


async def _pay_difference(
    io: CallIo,
    offers: Sequence[TransferOffer],
    insufficient: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer],
    rejected: Sequence[SignedAuthorization],
) -> StoredTransfer:
    """Pays the difference to a payment of this call: to the same payee, in the same asset, and both together within the limit."""
    last = paid[-1]
    if len(paid) > 1:
        raise _refuse_second_payment(last, "another difference")
    asset, total = last.asset, sum(transfer.amount for transfer in paid)
    same = [offer for offer in offers if (offer.asset, offer.pay_to) == (asset, last.pay_to)]
    if insufficient is None or insufficient.transfer.tx_hash != last.tx_hash or not same:
        raise _refuse_second_payment(last, "other terms than it was paid by")
    due = same[0].amount * rules.prepay - total if insufficient.missing is None else insufficient.missing
    if due <= 0 or exceeds_call(due, asset, (*paid, *rejected), rules):
        raise _refuse_second_payment(
            last, f"{format_decimal(max(due, 0), decimals=asset.decimals)} {asset.symbol} more"
        )
    balance = await fetch_balance(io, asset, source.payer)
    if balance < due:
        reason = explain_shortfall(asset, due, balance, source.payer)
        raise CannotPay(f"This wallet cannot pay the difference: {reason}.", transaction=last.tx_hash)
    try:
        return await make_transfer(io, asset, same[0], due, source, tried, rules.max_fee)
    except FeeAboveMax as failure:
        raise FeeAboveMax(failure.detail, transaction=last.tx_hash) from failure


def _refuse_second_payment(last: Transfer, what: str) -> PaymentRefused:
    return PaymentRefused(
        f"This call has paid {last.describe()} ({last.tx_hash}), and the gateway requests {what}. Nothing more was paid.",
        transaction=last.tx_hash,
        reason=Code.PAYMENT_INSUFFICIENT.value,
    )


def _order_offers(
    offers: Sequence[TransferOffer], insufficient: InsufficientCredit | None
) -> list[TransferOffer]:
    """The offers in the gateway's order; the asset and payee of a payment with a rest come first."""
    if insufficient is None:
        return list(offers)
    transfer = insufficient.transfer
    return sorted(
        offers, key=lambda o: (o.chain_id, o.token, o.pay_to) != (*_token_of(transfer), transfer.pay_to)
    )


def _token_of(transfer: Transfer) -> tuple[object, object]:
    return transfer.asset.chain_id, transfer.asset.token


async def _check_offer(
    io: CallIo, offer: TransferOffer, source: PaymentSource, rules: CallRules, reasons: list[str]
) -> Asset | None:
    """The asset to pay in; None with a reason added to `reasons`. Raises `PriceAboveMax`: every offer has the same price."""
    if offer.chain_id not in source.chains:
        reasons.append(
            f"{explain_missing_node(offer.chain_id, source)}; add one to rpc_urls (--rpc, TOLLWAY_RPC)"
        )
        return None
    asset = await verify_asset(io, offer, source)
    if asset is None:
        reasons.append(f"the gateway describes {offer.symbol} on chain {offer.chain_id} wrongly")
        return None
    cap = rules.max_price.atto_for(asset.symbol)
    if cap is None or to_atto(offer.amount, asset) > cap:
        price = format_decimal(offer.amount, decimals=asset.decimals)
        limit = "nothing" if cap is None else rules.max_price.text_for(asset.symbol)
        price = f"up to {price}" if offer.is_maximum else price
        raise PriceAboveMax(f"The call costs {price} {asset.symbol}; allowed in {asset.symbol}: {limit}.")
    return asset


def _amount_due(
    offer: TransferOffer, asset: Asset, insufficient: InsufficientCredit | None, rules: CallRules
) -> int:
    """The price of `prepay` calls; or only the difference, where there is some credit and one call is to be paid.

    A difference is never more than the whole price, because `missing` comes from the gateway.
    """
    if (
        insufficient is None
        or rules.prepay > 1
        or insufficient.transfer.asset != asset
        or insufficient.transfer.pay_to != offer.pay_to
    ):
        return offer.amount * rules.prepay
    missing = insufficient.missing
    return offer.amount if missing is None else min(missing, offer.amount)
