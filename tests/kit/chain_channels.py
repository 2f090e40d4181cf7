"""The settlement contract of payment channels in memory: `ChannelBook` is its storage at one block, `ChannelRun` executes calldata on it.

The storage is computed from the events of the blocks, so a reorg reverts it. Calldata is decoded by the ABI of the `x402` package. Vouchers,
claims and refunds need their signatures, by ECDSA; the authorisation of a deposit follows the rules of `chain_blocks`, which check no signature.
`tests/contracts/test_channel_rules.py` runs the same rules on a real EVM.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eth_abi.abi import decode, encode
from eth_utils.abi import function_abi_to_4byte_selector, get_abi_input_types
from x402.mechanisms.evm.batch_settlement.abi import BATCH_SETTLEMENT_ABI

from tollway.chain import channel_contract as contract
from tollway.chain.channel_contract import (
    DEPOSIT_COLLECTOR,
    SETTLEMENT_CONTRACT,
    ChannelConfig,
    ChannelEvent,
    ClaimRow,
    ContractError,
)
from tollway.chain.port import ContractResult, EscrowState, Log
from tollway.chain.tokens import TRANSFER_TOPIC
from tollway.identity.signatures import recover
from tollway.ids import ZERO_ADDRESS, Address, ChainId, ChannelId, keccak256
from tollway.payments.channels import (
    channel_id,
    claim_batch_digest,
    deposit_nonce,
    refund_digest,
    voucher_digest,
)

_PAD = bytes(12)
_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
_CONFIG = "(address,address,address,address,address,uint40,bytes32)"
_CREATED_TOPIC = keccak256(f"ChannelCreated(bytes32,{_CONFIG})".encode())
_CLOSED_TOPIC = keccak256(f"ChannelClosed(bytes32,{_CONFIG})".encode())
_NO_STATE = EscrowState(balance=0, total_claimed=0, withdrawal=0, withdrawal_initiated_at=0, refund_nonce=0)
_FUNCTIONS = {
    bytes(function_abi_to_4byte_selector(entry)): (entry["name"], get_abi_input_types(entry))  # type: ignore[arg-type]  # plain dicts
    for entry in BATCH_SETTLEMENT_ABI
    if entry["type"] == "function"
}

PullDeposit = Callable[["DepositPull"], tuple[Log, ...]]
"""The token's part of a deposit: the logs of the transfer to the collector. Raises `ChannelRevert`."""


class ChannelRevert(Exception):
    """The contract reverts; `payload` is its revert data."""

    def __init__(self, error: ContractError | None = None, payload: bytes = b"") -> None:
        super().__init__(error or payload)
        self.payload = payload if error is None else contract.ERROR_SELECTORS[error]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepositPull:
    """What the collector asks of the token."""

    token: Address
    payer: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes


@dataclass(slots=True)
class ChannelBook:
    """The contract's storage. `configs`: of the channels that had a deposit."""

    chain_id: ChainId
    states: dict[ChannelId, EscrowState] = field(default_factory=dict)
    receivers: dict[tuple[Address, Address], tuple[int, int]] = field(default_factory=dict)
    configs: dict[ChannelId, ChannelConfig] = field(default_factory=dict)

    def state(self, channel: ChannelId) -> EscrowState:
        return self.states.get(channel, _NO_STATE)

    def totals(self, receiver: Address, token: Address) -> tuple[int, int]:
        """Claimed and settled."""
        return self.receivers.get((receiver, token), (0, 0))

    def use_refund_nonce(self, channel: ChannelId) -> None:
        state = self.state(channel)
        self.states[channel] = replace(state, refund_nonce=state.refund_nonce + 1)

    def apply(self, log: Log, *, time: int) -> None:
        """One log of a receipt."""
        if log.address == SETTLEMENT_CONTRACT and log.topics[0] == _CREATED_TOPIC:
            (fields,) = decode([_CONFIG], log.payload)
            self.configs[ChannelId(log.topics[1])] = _read_config(fields)
        for event in contract.parse_channel_events([log]):
            self._apply_event(event, time)

    def _apply_event(self, event: ChannelEvent, time: int) -> None:
        if isinstance(event, contract.ReceiverSettled):
            claimed, settled = self.totals(event.receiver, event.token)
            self.receivers[event.receiver, event.token] = claimed, settled + event.base_units
            return
        state = self.state(event.channel_id)
        match event:
            case contract.ChannelDeposited():
                state = replace(state, balance=state.balance + event.base_units)
            case contract.ChannelClaimed():
                config = self.configs[event.channel_id]
                claimed, settled = self.totals(config.receiver, config.token)
                self.receivers[config.receiver, config.token] = claimed + event.base_units, settled
                state = replace(state, total_claimed=event.total_claimed)
            case contract.ChannelRefunded():
                left = max(0, state.withdrawal - event.base_units)
                begun = state.withdrawal_initiated_at if left else 0
                balance = state.balance - event.base_units
                state = replace(state, balance=balance, withdrawal=left, withdrawal_initiated_at=begun)
            case contract.WithdrawInitiated():
                state = replace(state, withdrawal=event.base_units, withdrawal_initiated_at=time)
            case contract.WithdrawFinalized():
                balance = state.balance - event.base_units
                state = replace(state, balance=balance, withdrawal=0, withdrawal_initiated_at=0)
        self.states[event.channel_id] = state


@dataclass(slots=True, kw_only=True)
class ChannelRun:
    """One transaction or `eth_call` at the contract. `logs` and `refunds` are what it leaves in its block. `blocked`: (token, owner) to whom the
    token pays nothing."""

    book: ChannelBook
    sender: Address
    time: int
    pull: PullDeposit
    blocked: Collection[tuple[Address, Address]] = ()
    logs: list[Log] = field(default_factory=list)
    refunds: list[ChannelId] = field(default_factory=list)

    def run(self, calldata: bytes) -> bytes:
        """Returns what the function returns. Raises `ChannelRevert`."""
        if calldata == contract.EIP712_DOMAIN_CALL:
            return contract.encode_domain(self.book.chain_id)
        name, kinds = _FUNCTIONS.get(calldata[:4], ("", []))
        run = getattr(self, f"_run_{name}", None)
        if run is None:
            raise ChannelRevert
        returned = run(*decode(kinds, calldata[4:]))
        return returned if isinstance(returned, bytes) else b""

    # ---- Views and batches.

    def _run_channels(self, channel: bytes) -> bytes:
        state = self.book.state(ChannelId(channel))
        return encode(["uint128", "uint128"], [state.balance, state.total_claimed])

    def _run_pendingWithdrawals(self, channel: bytes) -> bytes:
        state = self.book.state(ChannelId(channel))
        return encode(["uint128", "uint40"], [state.withdrawal, state.withdrawal_initiated_at])

    def _run_refundNonce(self, channel: bytes) -> bytes:
        return encode(["uint256"], [self.book.state(ChannelId(channel)).refund_nonce])

    def _run_receivers(self, receiver: str, token: str) -> bytes:
        totals = self.book.totals(Address.parse(receiver), Address.parse(token))
        return encode(["uint128", "uint128"], totals)

    def _run_multicall(self, calls: Sequence[bytes]) -> bytes:
        return encode(["bytes[]"], [[self.run(call) for call in calls]])

    # ---- Deposit.

    def _run_deposit(
        self, fields: tuple[Any, ...], base_units: int, collector: str, collected: bytes
    ) -> None:
        config = _read_config(fields)
        parties = (config.payer, config.receiver, config.receiver_authorizer, config.token)
        _require(ZERO_ADDRESS not in parties, ContractError.INVALID_CHANNEL)
        _require(
            config.withdraw_delay in contract.WITHDRAW_DELAYS_S, ContractError.WITHDRAW_DELAY_OUT_OF_RANGE
        )
        _require(base_units > 0, ContractError.ZERO_DEPOSIT)
        _require(Address.parse(collector) != ZERO_ADDRESS, ContractError.INVALID_COLLECTOR)
        if Address.parse(collector) != DEPOSIT_COLLECTOR:
            raise ChannelRevert
        channel = channel_id(config, self.book.chain_id)
        state = self.book.state(channel)
        total = state.balance + base_units
        _require(total <= contract.CHANNEL_AMOUNT_MAX, ContractError.DEPOSIT_OVERFLOW)
        valid_after, valid_before, salt, _ = decode(["uint256", "uint256", "uint256", "bytes"], collected)
        asked = DepositPull(
            token=config.token,
            payer=config.payer,
            base_units=base_units,
            valid_after=valid_after,
            valid_before=valid_before,
            nonce=deposit_nonce(channel, salt.to_bytes(32, "big")),
        )
        self.logs += self.pull(asked)
        self._pay(config.token, DEPOSIT_COLLECTOR, SETTLEMENT_CONTRACT, base_units)
        if state.balance == state.total_claimed == 0:
            self._emit(_CREATED_TOPIC, channel, payload=encode([_CONFIG], [fields]))
        sender = _PAD + self.sender
        self._emit(contract.DEPOSITED_TOPIC, channel, sender, numbers=(base_units, total))

    # ---- Claim and settle.

    def _run_claim(self, claims: Sequence[Any]) -> None:
        rows = [_read_claim(claim) for claim in claims]
        _require(bool(rows), ContractError.EMPTY_BATCH)
        for row in rows:
            is_receiver = self.sender in (row.config.receiver, row.config.receiver_authorizer)
            _require(is_receiver, ContractError.NOT_AUTHORIZED_TO_CLAIM)
            self._claim(row)

    def _run_claimWithSignature(self, claims: Sequence[Any], signature: bytes) -> None:
        rows = [_read_claim(claim) for claim in claims]
        _require(bool(rows), ContractError.EMPTY_BATCH)
        authorizer = rows[0].config.receiver_authorizer
        digest = claim_batch_digest(self.book.chain_id, rows)
        _require(_recover(digest, signature) == authorizer, ContractError.INVALID_SIGNATURE)
        for row in rows:
            is_same = row.config.receiver_authorizer == authorizer
            _require(is_same, ContractError.NOT_RECEIVER_AUTHORIZER)
            self._claim(row)

    def _claim(self, row: ClaimRow) -> None:
        channel = channel_id(row.config, self.book.chain_id)
        state = self.book.state(channel)
        if row.total_claimed <= state.total_claimed:
            return
        _require(row.total_claimed <= row.ceiling, ContractError.CLAIM_EXCEEDS_CEILING)
        _require(row.total_claimed <= state.balance, ContractError.CLAIM_EXCEEDS_BALANCE)
        _require(len(row.signature) == 65, ContractError.ECDSA_INVALID_LENGTH)
        is_low = int.from_bytes(row.signature[32:64], "big") <= _HALF_ORDER
        _require(is_low, ContractError.ECDSA_INVALID_S)
        signer = _recover(voucher_digest(self.book.chain_id, channel, row.ceiling), row.signature)
        _require(signer is not None, ContractError.ECDSA_INVALID_SIGNATURE)
        signers = (row.config.payer_authorizer, row.config.payer)
        expected = next(one for one in signers if one != ZERO_ADDRESS)
        _require(signer == expected, ContractError.INVALID_SIGNATURE)
        numbers = (row.total_claimed - state.total_claimed, row.total_claimed)
        self._emit(contract.CLAIMED_TOPIC, channel, _PAD + self.sender, numbers=numbers)

    def _run_settle(self, receiver: str, token: str) -> None:
        payee, asset = Address.parse(receiver), Address.parse(token)
        claimed, settled = self.book.totals(payee, asset)
        if claimed == settled:
            return
        self._pay(asset, SETTLEMENT_CONTRACT, payee, claimed - settled)
        topics = (_PAD + payee, _PAD + asset, _PAD + self.sender)
        self._emit(contract.SETTLED_TOPIC, *topics, numbers=(claimed - settled,))

    # ---- Refund and withdraw.

    def _run_refund(self, fields: tuple[Any, ...], base_units: int) -> None:
        config = _read_config(fields)
        is_receiver = self.sender in (config.receiver, config.receiver_authorizer)
        _require(is_receiver, ContractError.NOT_AUTHORIZED_TO_REFUND)
        self._refund(config, base_units)

    def _run_refundWithSignature(
        self, fields: tuple[Any, ...], base_units: int, nonce: int, signature: bytes
    ) -> None:
        config = _read_config(fields)
        channel = channel_id(config, self.book.chain_id)
        _require(nonce == self.book.state(channel).refund_nonce, ContractError.INVALID_REFUND_NONCE)
        digest = refund_digest(self.book.chain_id, channel, nonce=nonce, amount=base_units)
        is_signed = _recover(digest, signature) == config.receiver_authorizer
        _require(is_signed, ContractError.INVALID_SIGNATURE)
        self._refund(config, base_units)

    def _refund(self, config: ChannelConfig, base_units: int) -> None:
        _require(base_units > 0, ContractError.ZERO_REFUND)
        channel = channel_id(config, self.book.chain_id)
        self.book.use_refund_nonce(channel)
        self.refunds.append(channel)
        state = self.book.state(channel)
        refunded = min(base_units, state.balance - state.total_claimed)
        if refunded == 0:
            return
        self._emit(contract.REFUNDED_TOPIC, channel, _PAD + self.sender, numbers=(refunded,))
        self._emit_if_closed(config, channel)
        self._pay(config.token, SETTLEMENT_CONTRACT, config.payer, refunded)

    def _run_initiateWithdraw(self, fields: tuple[Any, ...], base_units: int) -> None:
        config = _read_config(fields)
        is_payer = self.sender in (config.payer, config.payer_authorizer)
        _require(is_payer, ContractError.INVALID_CHANNEL)
        _require(base_units > 0, ContractError.NOTHING_TO_WITHDRAW)
        channel = channel_id(config, self.book.chain_id)
        state = self.book.state(channel)
        _require(not state.withdrawal_initiated_at, ContractError.WITHDRAWAL_ALREADY_PENDING)
        free = state.balance - state.total_claimed
        _require(base_units <= free, ContractError.WITHDRAW_AMOUNT_EXCEEDS_AVAILABLE)
        numbers = (base_units, self.time + config.withdraw_delay)
        self._emit(contract.WITHDRAW_INITIATED_TOPIC, channel, numbers=numbers)

    def _run_finalizeWithdraw(self, fields: tuple[Any, ...]) -> None:
        config = _read_config(fields)
        is_payer = self.sender in (config.payer, config.payer_authorizer)
        _require(is_payer, ContractError.NOT_AUTHORIZED_TO_FINALIZE)
        channel = channel_id(config, self.book.chain_id)
        state = self.book.state(channel)
        _require(bool(state.withdrawal_initiated_at), ContractError.WITHDRAWAL_NOT_PENDING)
        is_over = self.time >= state.withdrawal_initiated_at + config.withdraw_delay
        _require(is_over, ContractError.WITHDRAW_DELAY_NOT_ELAPSED)
        withdrawn = min(state.withdrawal, state.balance - state.total_claimed)
        self._emit(contract.WITHDRAW_FINALIZED_TOPIC, channel, _PAD + self.sender, numbers=(withdrawn,))
        self._emit_if_closed(config, channel)
        if withdrawn:
            self._pay(config.token, SETTLEMENT_CONTRACT, config.payer, withdrawn)

    # ---- Logs.

    def _emit_if_closed(self, config: ChannelConfig, channel: ChannelId) -> None:
        state = self.book.state(channel)
        if state.balance == state.total_claimed == 0:
            self._emit(_CLOSED_TOPIC, channel, payload=contract.encode_config(config))

    def _emit(self, *topics: bytes, numbers: tuple[int, ...] = (), payload: bytes = b"") -> None:
        content = payload + b"".join(number.to_bytes(32, "big") for number in numbers)
        log = Log(address=SETTLEMENT_CONTRACT, topics=topics, payload=content, removed=False)
        self.logs.append(log)
        self.book.apply(log, time=self.time)

    def _pay(self, token: Address, sender: Address, recipient: Address, base_units: int) -> None:
        if (token, recipient) in self.blocked:
            raise ChannelRevert
        topics = (TRANSFER_TOPIC, _PAD + sender, _PAD + recipient)
        payload = base_units.to_bytes(32, "big")
        self.logs.append(Log(address=token, topics=topics, payload=payload, removed=False))


def answer_collector(calldata: bytes) -> ContractResult:
    """The deposit collector, called by anyone but the settlement contract."""
    if calldata == contract.COLLECTS_FOR_CALL:
        return ContractResult(reverted=False, payload=_PAD + SETTLEMENT_CONTRACT)
    return ContractResult(reverted=True, payload=keccak256(b"OnlyX402BatchSettlement()")[:4])


def _require(is_met: bool, error: ContractError) -> None:
    if not is_met:
        raise ChannelRevert(error)


def _recover(digest: bytes, signature: bytes) -> Address | None:
    """A signature that ends with 0 or 1 is none: `ecrecover` takes 27 and 28 only."""
    return recover(digest, signature) if signature[64:] in (b"\x1b", b"\x1c") else None


def _read_config(fields: Sequence[Any]) -> ChannelConfig:
    payer, payer_authorizer, receiver, receiver_authorizer, token = map(Address.parse, fields[:5])
    return ChannelConfig(
        payer=payer,
        payer_authorizer=payer_authorizer,
        receiver=receiver,
        receiver_authorizer=receiver_authorizer,
        token=token,
        withdraw_delay=fields[5],
        salt=fields[6],
    )


def _read_claim(claim: Sequence[Any]) -> ClaimRow:
    (fields, ceiling), signature, total_claimed = claim
    return ClaimRow(
        config=_read_config(fields), ceiling=ceiling, signature=signature, total_claimed=total_claimed
    )
