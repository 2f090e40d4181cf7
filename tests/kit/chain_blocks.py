"""The state of one chain in memory: blocks, transactions, the pool, token balances and used authorisations. A `MemoryChain`
holds one for each chain id.

Token balances, used authorisations and account nonces are computed from the blocks, so a reorg reverts all of them.
Transactions are parsed from the bytes that a node gets, and judged by the rules of EIP-3009. Signatures of authorisations
are not checked: a test says which authorisations the token refuses. A wallet that a factory makes is no payer before its
deployment, which a reorg reverts too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eth_abi.abi import encode
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from tests.kit.chain_channels import ChannelBook, ChannelRevert, ChannelRun, DepositPull
from tollway.chain.channel_contract import DEPOSIT_COLLECTOR, SETTLEMENT_CONTRACT
from tollway.chain.multicall import MULTICALL3, ContractCall, parse_calls
from tollway.chain.port import ContractResult, Log, SendFault, SendRefused
from tollway.chain.tokens import (
    AUTHORIZATION_CANCELED_TOPIC,
    AUTHORIZATION_USED_TOPIC,
    ERC1271_MAGIC,
    TRANSFER_BY_BYTES_SELECTOR,
    TRANSFER_BY_VRS_SELECTOR,
    TRANSFER_TOPIC,
    compute_domain_separator,
    encode_authorization_state,
    encode_domain_separator,
    parse_transfers,
)
from tollway.ids import ZERO_ADDRESS, Address, ChainId, ChannelId, TxHash, keccak256
from tollway.money import Asset, TokenDomain

_WORD = 32
_STATE = encode_authorization_state(payer=ZERO_ADDRESS, nonce=bytes(32))[:4]
_PAD = bytes(12)
_GAS_BALANCE_WEI = 10**18
TRANSFER_GAS = 60_000
NO_ANSWER = ContractResult(reverted=False, payload=b"")
REVERTED = ContractResult(reverted=True, payload=b"")
CONFIRMED = ContractResult(reverted=False, payload=ERC1271_MAGIC.ljust(_WORD, b"\0"))
"""What an ERC-1271 wallet returns for a valid signature."""
DEPLOYMENT_GAS = 300_000
CHANNEL_GAS = 120_000

Wallet = Callable[[bytes], ContractResult]
"""A contract: calldata -> what an `eth_call` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What a receipt and its transaction say together; `value` in base units of the native currency. `nonce` only of
    what was sent through the port. `deployed`: the wallet that it deployed. `refunds`: the channels of which it used a refund nonce."""

    tx_hash: TxHash
    sender: Address
    recipient: Address | None
    value: int = 0
    logs: tuple[Log, ...] = ()
    succeeded: bool = True
    nonce: int | None = None
    fee_wei: int | None = None
    deployed: Address | None = None
    refunds: tuple[ChannelId, ...] = ()

    @property
    def effective_logs(self) -> tuple[Log, ...]:
        """A failed transaction leaves no log."""
        return self.logs if self.succeeded else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    number: int
    block_hash: bytes
    time: int
    transactions: tuple[Transaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedTransfer:
    """What the calldata of `transferWithAuthorization` says; its signature left out."""

    payer: Address
    payee: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTransaction:
    """A signed EIP-1559 transaction on its way."""

    tx_hash: TxHash
    sender: Address
    nonce: int
    recipient: Address
    calldata: bytes = field(repr=False)
    gas: int
    max_fee_wei: int
    tip_wei: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryCall:
    """What one call of a factory makes: a wallet, which answers so. `is_lenient`: a second call does nothing, where others revert."""

    wallet: Address
    answer: Wallet
    is_lenient: bool = False


@dataclass(slots=True)
class MemoryBlocks:
    """`refused` and `doomed`: authorisations, by (payer, nonce), that fail in simulation, or in their block only. `factory_calls`: by
    (factory, calldata). `has_multicall`, `has_channels`: Multicall3 and the contracts of payment channels have their code here. `blocked`: (token,
    owner) to whom the token pays nothing out of a channel."""

    chain_id: ChainId
    blocks: list[Block]
    pool: dict[TxHash, Transaction] = field(default_factory=dict)
    sent: dict[TxHash, SentTransaction] = field(default_factory=dict)
    code: dict[Address, Wallet] = field(default_factory=dict)
    code_hashes: dict[Address, bytes] = field(default_factory=dict)
    funds: dict[tuple[Address, Address], int] = field(default_factory=dict)
    gas_balances_wei: dict[Address, int] = field(default_factory=dict)
    refused: dict[tuple[Address, bytes], ContractResult] = field(default_factory=dict)
    doomed: set[tuple[Address, bytes]] = field(default_factory=set)
    factory_calls: dict[tuple[Address, bytes], FactoryCall] = field(default_factory=dict)
    has_multicall: bool = True
    has_channels: bool = True
    blocked: set[tuple[Address, Address]] = field(default_factory=set)
    base_fee_wei: int = 10**7
    tip_wei: int = 10**6
    send_refusal: SendRefused | None = None
    is_away: bool = False

    @property
    def mined(self) -> list[Transaction]:
        return [transaction for block in self.blocks for transaction in block.transactions]

    def find(self, tx_hash: TxHash) -> tuple[Block, Transaction] | None:
        for block in self.blocks:
            for transaction in block.transactions:
                if transaction.tx_hash == tx_hash:
                    return block, transaction
        return None

    def balance(self, token: Address, owner: Address, before: Sequence[Transaction] = ()) -> int:
        balance = self.funds.get((token, owner), 0)
        for transaction in (*self.mined, *before):
            for transfer in parse_transfers(transaction.effective_logs, token=token):
                balance += transfer.base_units * ((transfer.recipient == owner) - (transfer.sender == owner))
        return balance

    def gas_left_wei(self, gas_key: Address) -> int:
        spent = sum(t.fee_wei or 0 for t in self.mined if t.sender == gas_key)
        return self.gas_balances_wei.get(gas_key, _GAS_BALANCE_WEI) - spent

    def mined_nonce(self, sender: Address) -> int:
        return sum(t.sender == sender and t.nonce is not None for t in self.mined)

    def find_use(self, token: Address, payer: Address, nonce: bytes, *, from_block: int = 0) -> TxHash | None:
        """The transaction that used or cancelled an authorisation."""
        for block in self.blocks[from_block:]:
            for transaction in block.transactions:
                if _ends(transaction, token, payer, nonce):
                    return transaction.tx_hash
        return None

    def has_code(self, wallet: Address, before: Sequence[Transaction] = ()) -> bool:
        return wallet in self.code or any(
            t.deployed == wallet and t.succeeded for t in (*self.mined, *before)
        )

    def call_factory(
        self, call: ContractCall, before: Sequence[Transaction] = ()
    ) -> tuple[ContractResult, FactoryCall | None]:
        """The result, and what the call makes. An address without a factory accepts every call."""
        made = self.factory_calls.get((call.to, call.calldata))
        if made is None:
            return NO_ANSWER, None
        if self.has_code(made.wallet, before):
            return (NO_ANSWER if made.is_lenient else REVERTED), None
        return NO_ANSWER, made

    def call_multicall(self, calldata: bytes) -> ContractResult:
        """A factory and the check of its wallet, as an `eth_call`."""
        if not self.has_multicall:
            return NO_ANSWER
        deploying, asking = parse_calls(calldata)
        result, made = self.call_factory(deploying)
        if result.reverted:
            return REVERTED
        wallet = self.code.get(asking.to)
        if wallet is None and made is not None and made.wallet == asking.to:
            wallet = made.answer
        checked = NO_ANSWER if wallet is None else wallet(asking.calldata)
        return _return_calls(result, checked)

    def channel_book(self, before: Sequence[Transaction] = (), *, height: int | None = None) -> ChannelBook:
        """The storage of the settlement contract after the block of that height, or after `before` on top of all blocks."""
        book = ChannelBook(chain_id=self.chain_id)
        count = len(self.blocks) if height is None else height + 1
        mined = [(block.time, sent) for block in self.blocks[:count] for sent in block.transactions]
        for time, transaction in [*mined, *((self.blocks[-1].time, sent) for sent in before)]:
            for log in transaction.effective_logs:
                book.apply(log, time=time)
            for channel in transaction.refunds if transaction.succeeded else ():
                book.use_refund_nonce(channel)
        return book

    def start_channel_run(
        self,
        *,
        sender: Address,
        block_time: int,
        before: Sequence[Transaction] = (),
        is_mined: bool = False,
    ) -> ChannelRun:
        def pull(asked: DepositPull) -> tuple[Log, ...]:
            transfer = AuthorizedTransfer(
                payer=asked.payer,
                payee=DEPOSIT_COLLECTOR,
                base_units=asked.base_units,
                valid_after=asked.valid_after,
                valid_before=asked.valid_before,
                nonce=asked.nonce,
            )
            if is_mined and (asked.payer, asked.nonce) in self.doomed:
                raise ChannelRevert
            so_far = Transaction(
                tx_hash=TxHash(bytes(32)), sender=sender, recipient=None, logs=tuple(run.logs)
            )
            pulled = self.simulate(asked.token, transfer, block_time=block_time, before=(*before, so_far))
            if pulled.reverted:
                raise ChannelRevert(payload=pulled.payload)
            return settlement_logs(
                asked.token,
                payer=asked.payer,
                payee=DEPOSIT_COLLECTOR,
                base_units=asked.base_units,
                nonce=asked.nonce,
            )

        book = self.channel_book(before)
        run = ChannelRun(book=book, sender=sender, time=block_time, pull=pull, blocked=self.blocked)
        return run

    def simulate_sent(
        self,
        to: Address,
        calldata: bytes,
        *,
        block_time: int,
        before: Sequence[Transaction] = (),
        sender: Address = ZERO_ADDRESS,
    ) -> ContractResult:
        """A transfer by the token, or one within Multicall3; any call of the settlement contract of channels."""
        if to == SETTLEMENT_CONTRACT:
            if not self.has_channels:
                return NO_ANSWER
            run = self.start_channel_run(sender=sender, block_time=block_time, before=before)
            try:
                return ContractResult(reverted=False, payload=run.run(calldata))
            except ChannelRevert as exc:
                return ContractResult(reverted=True, payload=exc.payload)
        if to != MULTICALL3:
            transfer = parse_authorized_transfer(calldata)
            if transfer is None:
                return REVERTED
            return self.simulate(to, transfer, block_time=block_time, before=before)
        if not self.has_multicall:
            return NO_ANSWER
        deploying, paying = parse_calls(calldata)
        result, made = self.call_factory(deploying, before)
        if result.reverted:
            return REVERTED
        transfer = parse_authorized_transfer(paying.calldata)
        assert transfer is not None
        deployed = () if made is None else (_deployment_of(made),)
        paid = self.simulate(paying.to, transfer, block_time=block_time, before=(*before, *deployed))
        return REVERTED if paid.reverted else _return_calls(result, paid)

    def simulate(
        self,
        token: Address,
        transfer: AuthorizedTransfer,
        *,
        block_time: int,
        before: Sequence[Transaction] = (),
    ) -> ContractResult:
        """By the rules of EIP-3009, the transactions `before` it in its block counted in."""
        is_of_factory = any(made.wallet == transfer.payer for made in self.factory_calls.values())
        if is_of_factory and not self.has_code(transfer.payer, before):
            return REVERTED
        if (refusal := self.refused.get((transfer.payer, transfer.nonce))) is not None:
            return refusal
        is_good = (
            transfer.valid_after < block_time < transfer.valid_before
            and self.balance(token, transfer.payer, before) >= transfer.base_units
            and self.find_use(token, transfer.payer, transfer.nonce) is None
            and not any(_ends(t, token, transfer.payer, transfer.nonce) for t in before)
        )
        return NO_ANSWER if is_good else REVERTED

    def take(self, sent: SentTransaction) -> SendRefused | None:
        """Into the pool, or why not. A higher fee replaces what waits with the same nonce."""
        if self.find(sent.tx_hash) or sent.tx_hash in self.sent:
            return None
        if sent.nonce < self.mined_nonce(sent.sender):
            return SendRefused(reason="nonce too low", fault=SendFault.NONCE_TOO_LOW)
        if self.gas_left_wei(sent.sender) < sent.gas * sent.max_fee_wei:
            return SendRefused(reason="insufficient funds", fault=SendFault.INSUFFICIENT_FUNDS)
        if sent.max_fee_wei < self.base_fee_wei:
            return SendRefused(reason="fee below the base fee", fault=SendFault.UNDERPRICED)
        for rival in self.sent.values():
            if (rival.sender, rival.nonce) == (sent.sender, sent.nonce):
                if sent.max_fee_wei * 10 < rival.max_fee_wei * 11:
                    return SendRefused(reason="replacement underpriced", fault=SendFault.UNDERPRICED)
                del self.sent[rival.tx_hash]
                break
        self.sent[sent.tx_hash] = sent
        return None

    def execute(self, tx_hashes: Sequence[TxHash], *, block_time: int) -> list[Transaction]:
        """The next block's transactions: these, or all that were sent. A later nonce waits for the earlier ones."""
        wanted = [sent for sent in self.sent.values() if not tx_hashes or sent.tx_hash in tx_hashes]
        done: list[Transaction] = []
        for sent in sorted(wanted, key=lambda sent: sent.nonce):
            ahead = sum(transaction.sender == sent.sender for transaction in done)
            if sent.nonce == self.mined_nonce(sent.sender) + ahead:
                done.append(self._run(sent, block_time=block_time, before=done))
        return done

    def forget_mined(self) -> None:
        """What was sent and is mined, or can never be, leaves the pool."""
        for tx_hash, sent in tuple(self.sent.items()):
            if sent.nonce < self.mined_nonce(sent.sender):
                del self.sent[tx_hash]

    def _run(self, sent: SentTransaction, *, block_time: int, before: Sequence[Transaction]) -> Transaction:
        if sent.recipient == SETTLEMENT_CONTRACT:
            return self.call_channels(
                sent.calldata,
                tx_hash=sent.tx_hash,
                sender=sent.sender,
                block_time=block_time,
                before=before,
                nonce=sent.nonce,
                fee_wei=CHANNEL_GAS * min(sent.max_fee_wei, self.base_fee_wei + sent.tip_wei),
            )
        token, transfer, made = sent.recipient, parse_authorized_transfer(sent.calldata), None
        if sent.recipient == MULTICALL3 and sent.calldata:
            deploying, paying = parse_calls(sent.calldata)
            token, transfer = paying.to, parse_authorized_transfer(paying.calldata)
            _, made = self.call_factory(deploying, before)
        result = self.simulate_sent(sent.recipient, sent.calldata, block_time=block_time, before=before)
        logs: tuple[Log, ...] = ()
        if (
            transfer is not None
            and (transfer.payer, transfer.nonce) not in self.doomed
            and not result.reverted
        ):
            logs = settlement_logs(
                token,
                payer=transfer.payer,
                payee=transfer.payee,
                base_units=transfer.base_units,
                nonce=transfer.nonce,
            )
        return Transaction(
            tx_hash=sent.tx_hash,
            sender=sent.sender,
            recipient=sent.recipient,
            logs=logs,
            succeeded=bool(logs),
            nonce=sent.nonce,
            fee_wei=TRANSFER_GAS * min(sent.max_fee_wei, self.base_fee_wei + sent.tip_wei),
            deployed=made.wallet if made is not None and logs else None,
        )

    def call_channels(
        self,
        calldata: bytes,
        *,
        tx_hash: TxHash,
        sender: Address,
        block_time: int,
        before: Sequence[Transaction] = (),
        nonce: int | None = None,
        fee_wei: int | None = None,
    ) -> Transaction:
        """A transaction at the settlement contract, as its block has it. Without its code there it does nothing."""
        run = self.start_channel_run(sender=sender, block_time=block_time, before=before, is_mined=True)
        succeeded = True
        try:
            if self.has_channels:
                run.run(calldata)
        except ChannelRevert:
            succeeded = False
        return Transaction(
            tx_hash=tx_hash,
            sender=sender,
            recipient=SETTLEMENT_CONTRACT,
            logs=tuple(run.logs) if succeeded else (),
            succeeded=succeeded,
            nonce=nonce,
            fee_wei=fee_wei,
            refunds=tuple(run.refunds) if succeeded else (),
        )


def _deployment_of(made: FactoryCall) -> Transaction:
    return Transaction(
        tx_hash=TxHash(bytes(32)), sender=MULTICALL3, recipient=MULTICALL3, deployed=made.wallet
    )


def _return_calls(*results: ContractResult) -> ContractResult:
    """What `aggregate3` returns."""
    returned = encode(["(bool,bytes)[]"], [[(not one.reverted, one.payload) for one in results]])
    return ContractResult(reverted=False, payload=returned)


def parse_authorized_transfer(calldata: bytes) -> AuthorizedTransfer | None:
    """None for calldata of any other function."""
    if calldata[:4] not in (TRANSFER_BY_VRS_SELECTOR, TRANSFER_BY_BYTES_SELECTOR):
        return None
    words = [calldata[4 + _WORD * position :][:_WORD] for position in range(6)]
    return AuthorizedTransfer(
        payer=Address(words[0][12:]),
        payee=Address(words[1][12:]),
        base_units=int.from_bytes(words[2], "big"),
        valid_after=int.from_bytes(words[3], "big"),
        valid_before=int.from_bytes(words[4], "big"),
        nonce=words[5],
    )


def parse_sent(raw: bytes) -> SentTransaction:
    """Raises what eth_account raises on anything but a signed typed transaction."""
    fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
    return SentTransaction(
        tx_hash=TxHash(keccak256(raw)),
        sender=Address.parse(Account.recover_transaction(raw)),
        nonce=fields["nonce"],
        recipient=Address(bytes(fields["to"])),
        calldata=bytes(HexBytes(fields["data"])),
        gas=fields["gas"],
        max_fee_wei=fields["maxFeePerGas"],
        tip_wei=fields["maxPriorityFeePerGas"],
    )


def transfer_log(token: Address, payer: Address, payee: Address, base_units: int) -> Log:
    """The event of an ERC-20 transfer, as `token` reports it."""
    topics = (TRANSFER_TOPIC, _PAD + payer, _PAD + payee)
    return Log(address=token, topics=topics, payload=base_units.to_bytes(32, "big"), removed=False)


def authorization_log(token: Address, authorizer: Address, nonce: bytes = bytes(32)) -> Log:
    """The event of EIP-3009 that names the signer of the transfer beside it."""
    topics = (AUTHORIZATION_USED_TOPIC, _PAD + authorizer, nonce)
    return Log(address=token, topics=topics, payload=b"", removed=False)


def settlement_logs(
    token: Address, *, payer: Address, payee: Address, base_units: int, nonce: bytes
) -> tuple[Log, ...]:
    """Both events of one authorised transfer, in Circle's order."""
    return (authorization_log(token, payer, nonce), transfer_log(token, payer, payee, base_units))


def cancellation_log(token: Address, authorizer: Address, nonce: bytes) -> Log:
    """The event of an authorisation that its signer took back."""
    topics = (AUTHORIZATION_CANCELED_TOPIC, _PAD + authorizer, nonce)
    return Log(address=token, topics=topics, payload=b"", removed=False)


def _ends(transaction: Transaction, token: Address, payer: Address, nonce: bytes) -> bool:
    ways = (authorization_log(token, payer, nonce), cancellation_log(token, payer, nonce))
    return any(log in ways for log in transaction.effective_logs)


def authorizing_token(asset: Asset, domain: TokenDomain | None = None) -> Wallet:
    """Code to deploy at `asset.token`; under the asset's domain unless another is given. A token without any domain is
    one that takes no authorisations."""
    signed_under = domain or asset.domain

    def answer(calldata: bytes) -> ContractResult:
        if signed_under is None or asset.token is None:
            return REVERTED
        if calldata[:4] == _STATE:
            return ContractResult(reverted=False, payload=bytes(32))
        if calldata == encode_domain_separator():
            separator = compute_domain_separator(signed_under, chain_id=asset.chain_id, contract=asset.token)
            return ContractResult(reverted=False, payload=separator)
        return REVERTED

    return answer
