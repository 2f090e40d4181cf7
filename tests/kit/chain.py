"""Chains in memory: the model of `chain/rpc.py`. A test scripts the blocks, the transactions and the faults.

It responds as a correct node, unless the test makes it unavailable; `tests/payments` and the tests of the watcher use
it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tests.kit.chain_blocks import (
    CHANNEL_GAS,
    CONFIRMED,
    DEPLOYMENT_GAS,
    NO_ANSWER,
    REVERTED,
    TRANSFER_GAS,
    Block,
    FactoryCall,
    MemoryBlocks,
    SentTransaction,
    Transaction,
    Wallet,
    authorization_log,
    cancellation_log,
    parse_sent,
    settlement_logs,
    transfer_log,
)
from tests.kit.chain_channels import answer_collector
from tollway.chain.channel_contract import CHANNEL_TOPICS, DEPOSIT_COLLECTOR, SETTLEMENT_CONTRACT
from tollway.chain.multicall import MULTICALL3
from tollway.chain.nodes import NodeObserver, NodeStatus
from tollway.chain.port import (
    AccountFacts,
    AuthorizationFacts,
    BlockHashes,
    ChainFacts,
    ChainTip,
    ContractResult,
    Disputed,
    EscrowFacts,
    Fees,
    Log,
    NotMined,
    Quorum,
    SendRefused,
)
from tollway.errors import ChainUnavailable, NodesDisagree
from tollway.ids import Address, ChainId, ChannelId, TxHash, keccak256
from tollway.observability.metric_table import NodeOutcome

__all__ = [
    "NO_ANSWER",
    "REVERTED",
    "Block",
    "MemoryChain",
    "Transaction",
    "authorization_log",
    "transfer_log",
]

THIRD_PARTY = Address(b"\x57" * 20)
"""Who sends what is not ours."""

_FIRST_BLOCK_S = 1_795_000_000
_CODE_HASH = keccak256(b"the code of a proxy")


class MemoryChain:
    """A `WatchedChain`. `asked` counts the questions that reached a chain, by (method, chain id);
    `trusts`: whose word was asked for, question by question. `unconfirmed`: what a lone node tells of a transaction.
    `disputed`: transactions of which no two nodes tell the same; `disputed_heights`: blocks of which they do not.
    `heights_read`: how many blocks were asked for their hash. `has_no_final_tag`: nodes know no `finalized` block.

    `barrier`: when it is set to an unset event, every look-up waits for it, so that a test can pile callers up.
    `channels_lag`: how many blocks the node that is asked about a channel is behind.
    `is_automining`: what is sent is in the next block at once; otherwise `mine_sent` or `drop_sent` decides.
    `broadcasts`: every raw transaction that reached a node, in order. `loses_send_responses`: nodes take what is sent, and their
    answer is lost. `observer`: gets each request, as one of a node.
    """

    def __init__(self, *chain_ids: ChainId, finality_depth: int = 10, block_time_s: int = 2) -> None:
        self._finality_depth = finality_depth
        self._block_time_s = block_time_s
        self._salt = 0
        self._chains: dict[ChainId, MemoryBlocks] = {}
        for chain_id in chain_ids:
            self._chains[chain_id] = MemoryBlocks(
                chain_id=chain_id, blocks=[self._block(chain_id, 0, _FIRST_BLOCK_S, ())]
            )
        self.requests: Counter[tuple[str, ChainId]] = Counter()
        self.trusts: list[Quorum] = []
        self.barrier: asyncio.Event | None = None
        self.observer: NodeObserver | None = None
        self.lies: dict[TxHash, Callable[[ChainFacts], ChainFacts]] = {}
        self.disputed: set[TxHash] = set()
        self.disputed_heights: set[int] = set()
        self.heights_read = 0
        self.has_no_final_tag = False
        self.unconfirmed: dict[TxHash, Callable[[ChainFacts], ChainFacts]] = {}
        self._lone: set[ChainId] = set()
        self.is_automining = True
        self.channels_lag = 0
        self.loses_send_responses = False
        self.broadcasts: list[bytes] = []
        self.resent: list[bytes] = []

    # ---- The script: blocks.

    def mine(self, chain_id: ChainId, *transactions: Transaction, time: int | None = None) -> Block:
        """One more block. Its time is the last block's and a little, unless it is given."""
        chain = self._chains[chain_id]
        for transaction in transactions:
            chain.pool.pop(transaction.tx_hash, None)
        last = chain.blocks[-1]
        block_time = last.time + self._block_time_s if time is None else time
        block = self._block(chain_id, last.number + 1, block_time, transactions)
        chain.blocks.append(block)
        return block

    def bury(self, chain_id: ChainId, blocks: int) -> None:
        """Empty blocks on top."""
        for _ in range(blocks):
            self.mine(chain_id)

    def reorg(self, chain_id: ChainId, depth: int, *transactions: Transaction) -> None:
        """Replaces the last `depth` blocks by others of the same times; the oldest holds the given transactions."""
        chain = self._chains[chain_id]
        lost = chain.blocks[-depth:]
        del chain.blocks[-depth:]
        for position, block in enumerate(lost):
            self.mine(chain_id, *(transactions if position == 0 else ()), time=block.time)

    def pend(self, chain_id: ChainId, transaction: Transaction) -> None:
        """A transaction that waits to be mined."""
        self._chains[chain_id].pool[transaction.tx_hash] = transaction

    def deploy(
        self,
        chain_id: ChainId,
        address: Address,
        wallet: Wallet = lambda calldata: NO_ANSWER,
        *,
        code_hash: bytes = _CODE_HASH,
    ) -> None:
        """Code at an address, the same as everywhere unless its hash is given."""
        self._chains[chain_id].code[address] = wallet
        self._chains[chain_id].code_hashes[address] = code_hash

    def remove_code(self, chain_id: ChainId, address: Address) -> None:
        """A delegated account ends its delegation (EIP-7702)."""
        del self._chains[chain_id].code[address]

    def add_factory(
        self,
        chain_id: ChainId,
        factory: Address,
        calldata: bytes,
        *,
        wallet: Address,
        answer: Wallet = lambda calldata: CONFIRMED,
        is_lenient: bool = False,
    ) -> None:
        """A factory that makes this wallet when it gets this calldata. The wallet pays nothing before."""
        made = FactoryCall(wallet=wallet, answer=answer, is_lenient=is_lenient)
        self._chains[chain_id].factory_calls[factory, calldata] = made

    def remove_multicall(self, chain_id: ChainId) -> None:
        self._chains[chain_id].has_multicall = False

    def remove_channel_contracts(self, chain_id: ChainId) -> None:
        self._chains[chain_id].has_channels = False

    def block_owner(self, chain_id: ChainId, token: Address, owner: Address) -> None:
        """The token pays this owner nothing out of a channel: a settlement or a refund to it reverts."""
        self._chains[chain_id].blocked.add((token, owner))

    def unblock_owner(self, chain_id: ChainId, token: Address, owner: Address) -> None:
        self._chains[chain_id].blocked.discard((token, owner))

    def disconnect(self, *chain_ids: ChainId) -> None:
        """No node of these chains answers any more."""
        for chain_id in chain_ids:
            self._chains[chain_id].is_away = True

    def leave_one_node(self, chain_id: ChainId) -> None:
        """All nodes of this chain but one are away: nothing can be agreed on."""
        self._lone.add(chain_id)

    def reconnect(self, *chain_ids: ChainId) -> None:
        for chain_id in chain_ids:
            self._chains[chain_id].is_away = False
            self._lone.discard(chain_id)

    def mines_at_once(self, chain_id: ChainId) -> bool:
        """Whether every node shows a transaction in a block as soon as it is sent."""
        chain = self._chains[chain_id]
        is_disturbed = chain.is_away or chain.send_refusal is not None or chain_id in self._lone
        is_doubted = self.lies or self.unconfirmed or self.disputed or self.disputed_heights
        return self.is_automining and not is_disturbed and not self.loses_send_responses and not is_doubted

    def head(self, chain_id: ChainId) -> Block:
        return self._chains[chain_id].blocks[-1]

    @property
    def request_count(self) -> int:
        """How many questions reached any chain."""
        return self.requests.total()

    # ---- The script: authorisations and gas.

    def fund(self, chain_id: ChainId, token: Address, owner: Address, base_units: int) -> None:
        """The owner has that much of the token, before all that the blocks say."""
        self._chains[chain_id].funds[token, owner] = base_units

    def balance(self, chain_id: ChainId, token: Address, owner: Address) -> int:
        return self._chains[chain_id].balance(token, owner)

    def fund_gas(self, chain_id: ChainId, gas_key: Address, wei: int) -> None:
        """What a gas key has, before all that it spends in blocks; one ether unless it is said."""
        self._chains[chain_id].gas_balances_wei[gas_key] = wei

    def set_fees(self, chain_id: ChainId, *, base_fee_wei: int, tip_wei: int) -> None:
        chain = self._chains[chain_id]
        chain.base_fee_wei, chain.tip_wei = base_fee_wei, tip_wei

    def refuse_transfer(
        self, chain_id: ChainId, payer: Address, nonce: bytes, answer: ContractResult = REVERTED
    ) -> None:
        """The token refuses this authorisation, in simulation and in a block: a bad signature, a blocked payer."""
        self._chains[chain_id].refused[payer, nonce] = answer

    def revert_transfer(self, chain_id: ChainId, payer: Address, nonce: bytes) -> None:
        """This authorisation passes every simulation and reverts in its block."""
        self._chains[chain_id].doomed.add((payer, nonce))

    def allow_transfer(self, chain_id: ChainId, payer: Address, nonce: bytes) -> None:
        """Takes both back."""
        self._chains[chain_id].refused.pop((payer, nonce), None)
        self._chains[chain_id].doomed.discard((payer, nonce))

    def refuse_sends(self, chain_id: ChainId, refusal: SendRefused | None) -> None:
        """Every node refuses what is sent, until it is called with None."""
        self._chains[chain_id].send_refusal = refusal

    def sent(self, chain_id: ChainId) -> tuple[SentTransaction, ...]:
        """What waits in the pool, oldest first."""
        return tuple(self._chains[chain_id].sent.values())

    def mine_sent(self, chain_id: ChainId, *tx_hashes: TxHash) -> Block:
        """One block of what was sent: these, or all whose turn it is."""
        chain = self._chains[chain_id]
        block_time = chain.blocks[-1].time + self._block_time_s
        block = self.mine(chain_id, *chain.execute(tx_hashes, block_time=block_time))
        chain.forget_mined()
        return block

    def drop_sent(self, chain_id: ChainId, *tx_hashes: TxHash) -> None:
        """The pool forgets these, or all that was sent."""
        chain = self._chains[chain_id]
        for tx_hash in tx_hashes or tuple(chain.sent):
            del chain.sent[tx_hash]

    def settle_by_third_party(
        self,
        chain_id: ChainId,
        token: Address,
        *,
        payer: Address,
        payee: Address,
        base_units: int,
        nonce: bytes,
    ) -> TxHash:
        """Another account sends that authorisation, in a separate block."""
        logs = settlement_logs(token, payer=payer, payee=payee, base_units=base_units, nonce=nonce)
        return self._mine_foreign(chain_id, token, logs)

    def cancel_authorization(
        self, chain_id: ChainId, token: Address, *, payer: Address, nonce: bytes
    ) -> TxHash:
        """The payer takes it back: its state is "used", and nothing moved."""
        return self._mine_foreign(chain_id, token, (cancellation_log(token, payer, nonce),))

    def call_channels(self, chain_id: ChainId, calldata: bytes, *, sender: Address = THIRD_PARTY) -> TxHash:
        """Another account than a gas key calls the settlement contract, in a separate block: a payer withdraws, anyone deposits or settles."""
        self._salt += 1
        tx_hash = TxHash(keccak256(b"channel:%d:%d" % (chain_id, self._salt)))
        chain = self._chains[chain_id]
        block_time = chain.blocks[-1].time + self._block_time_s
        called = chain.call_channels(calldata, tx_hash=tx_hash, sender=sender, block_time=block_time)
        self.mine(chain_id, called, time=block_time)
        return tx_hash

    def simulate_channels(self, chain_id: ChainId, calldata: bytes, *, sender: Address) -> ContractResult:
        """An `eth_call` of the settlement contract in the name of that account."""
        chain = self._chains[chain_id]
        block_time = chain.blocks[-1].time
        return chain.simulate_sent(SETTLEMENT_CONTRACT, calldata, block_time=block_time, sender=sender)

    def _mine_foreign(self, chain_id: ChainId, token: Address, logs: tuple[Log, ...]) -> TxHash:
        self._salt += 1
        tx_hash = TxHash(keccak256(b"foreign:%d:%d" % (chain_id, self._salt)))
        self.mine(chain_id, Transaction(tx_hash=tx_hash, sender=THIRD_PARTY, recipient=token, logs=logs))
        return tx_hash

    # ---- The port.

    @property
    def chain_ids(self) -> tuple[ChainId, ...]:
        return tuple(self._chains)

    async def fetch_facts(
        self, chain_id: ChainId, tx_hash: TxHash, *, quorum: Quorum = Quorum.AGREED
    ) -> ChainFacts | NotMined:
        chain = await self._ask_trusted("fetch_facts", chain_id, quorum)
        return self._look_up(chain_id, chain, tx_hash, quorum)

    async def fetch_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], *, quorum: Quorum = Quorum.AGREED
    ) -> dict[TxHash, ChainFacts | NotMined]:
        chain = await self._ask_trusted("fetch_receipts", chain_id, quorum)
        return {tx_hash: self._look_up(chain_id, chain, tx_hash, quorum) for tx_hash in tx_hashes}

    async def review_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash]
    ) -> dict[TxHash, ChainFacts | NotMined | Disputed]:
        chain = await self._ask_trusted("review_receipts", chain_id, Quorum.AGREED)
        return {
            tx_hash: Disputed()
            if tx_hash in self.disputed
            else self._look_up(chain_id, chain, tx_hash, Quorum.AGREED)
            for tx_hash in tx_hashes
        }

    async def fetch_tip(self, chain_id: ChainId) -> ChainTip:
        chain = await self._ask_trusted("fetch_tip", chain_id, Quorum.AGREED)
        head = chain.blocks[-1]
        final = None if self.has_no_final_tag else max(0, head.number - self._finality_depth)
        return ChainTip(head_number=head.number, head_time=head.time, finalized_number=final)

    async def fetch_block_hashes(self, chain_id: ChainId, numbers: Sequence[int]) -> BlockHashes:
        chain = await self._ask_trusted("fetch_block_hashes", chain_id, Quorum.AGREED)
        self.heights_read += len(set(numbers))
        return BlockHashes(
            known={
                number: chain.blocks[number].block_hash if 0 <= number < len(chain.blocks) else None
                for number in numbers
                if number not in self.disputed_heights
            },
            disputed=frozenset(numbers) & self.disputed_heights,
        )

    async def call_contract(
        self,
        chain_id: ChainId,
        *,
        to: Address | None,
        calldata: bytes,
        gas: int,
        bytes_max: int,
        deadline_s: float,
    ) -> ContractResult:
        chain = await self._ask("call_contract", chain_id)
        if to == MULTICALL3:
            answer = chain.call_multicall(calldata)
            return replace(answer, payload=answer.payload[:bytes_max])
        if to == SETTLEMENT_CONTRACT:
            answer = chain.simulate_sent(to, calldata, block_time=chain.blocks[-1].time)
            return replace(answer, payload=answer.payload[:bytes_max])
        if to == DEPOSIT_COLLECTOR and chain.has_channels:
            return answer_collector(calldata)
        wallet = None if to is None else chain.code.get(to)
        answer = NO_ANSWER if wallet is None else wallet(calldata)
        return replace(answer, payload=answer.payload[:bytes_max])

    async def fetch_code_size(self, chain_id: ChainId, address: Address) -> int:
        chain = await self._ask("fetch_code_size", chain_id)
        if address in (SETTLEMENT_CONTRACT, DEPOSIT_COLLECTOR):
            return 100 if chain.has_channels else 0
        has_code = chain.has_multicall if address == MULTICALL3 else chain.has_code(address)
        return 100 if has_code else 0

    async def check_chain(self, chain_id: ChainId) -> None:
        await self._ask("check_chain", chain_id)

    def list_nodes(self, chain_id: ChainId) -> tuple[NodeStatus, ...]:
        return ()

    async def fetch_authorization(
        self,
        chain_id: ChainId,
        *,
        token: Address,
        payer: Address,
        nonce: bytes,
        sender: Address,
        calldata: bytes,
        gas: int,
        to: Address | None = None,
        valid_after: int = 0,
        quorum: Quorum = Quorum.AGREED,
    ) -> AuthorizationFacts:
        chain = await self._ask_trusted("fetch_authorization", chain_id, quorum)
        head = chain.blocks[-1]
        moment = head.time if valid_after < head.time else head.time + self._block_time_s
        simulation = chain.simulate_sent(to or token, calldata, block_time=moment, sender=sender)
        needed = {MULTICALL3: DEPLOYMENT_GAS, SETTLEMENT_CONTRACT: CHANNEL_GAS}.get(to or token, TRANSFER_GAS)
        return AuthorizationFacts(
            chain_id=chain_id,
            head_number=head.number,
            head_time=head.time,
            code_size=100 if chain.has_code(payer) else 0,
            code_hash=chain.code_hashes.get(payer, _CODE_HASH) if chain.has_code(payer) else None,
            balance=chain.balance(token, payer),
            is_used=chain.find_use(token, payer, nonce) is not None,
            simulation=simulation,
            gas_estimate=None if simulation.reverted else needed,
        )

    async def fetch_channel(
        self,
        chain_id: ChainId,
        channel: ChannelId,
        *,
        confirmations: int = 1,
        quorum: Quorum = Quorum.AGREED,
    ) -> EscrowFacts:
        chain = await self._ask_trusted("fetch_channel", chain_id, quorum)
        if not chain.has_channels:
            raise ChainUnavailable(
                f"No node of eip155:{chain_id} gave a usable response. Send the same request again after Retry-After."
            )
        head = chain.blocks[-1 - self.channels_lag]
        state = chain.channel_book(height=head.number).state(channel)
        confirmed = chain.channel_book(height=max(0, head.number - confirmations + 1)).state(channel)
        return EscrowFacts(
            chain_id=chain_id,
            head_number=head.number,
            head_time=head.time,
            state=state,
            confirmed_balance=min(state.balance, confirmed.balance),
        )

    async def fetch_changed_channels(
        self, chain_id: ChainId, *, from_block: int, to_block: int
    ) -> frozenset[ChannelId]:
        chain = await self._ask_trusted("fetch_changed_channels", chain_id, Quorum.AGREED)
        if to_block >= len(chain.blocks):
            raise ChainUnavailable(
                f"No node of eip155:{chain_id} gave a usable response. Send the same request again after Retry-After."
            )
        return frozenset(
            ChannelId(log.topics[1])
            for block in chain.blocks[from_block : to_block + 1]
            for transaction in block.transactions
            for log in transaction.effective_logs
            if log.address == SETTLEMENT_CONTRACT and log.topics[0] in CHANNEL_TOPICS
        )

    async def find_authorization_use(
        self,
        chain_id: ChainId,
        *,
        token: Address,
        payer: Address,
        nonce: bytes,
        from_block: int,
        quorum: Quorum = Quorum.AGREED,
    ) -> TxHash | None:
        chain = await self._ask_trusted("find_authorization_use", chain_id, quorum)
        return chain.find_use(token, payer, nonce, from_block=from_block)

    async def fetch_fees(self, chain_id: ChainId) -> Fees:
        chain = await self._ask("fetch_fees", chain_id)
        return Fees(chain_id=chain_id, base_fee_wei=chain.base_fee_wei, tip_wei=chain.tip_wei)

    async def fetch_account(self, chain_id: ChainId, address: Address) -> AccountFacts:
        chain = await self._ask("fetch_account", chain_id)
        return AccountFacts(balance_wei=chain.gas_left_wei(address), mined_nonce=chain.mined_nonce(address))

    async def send_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        chain = await self._ask("send_transaction", chain_id)
        self.broadcasts.append(raw)
        refusal = chain.send_refusal or chain.take(parse_sent(raw))
        if refusal is None and self.is_automining:
            self.mine_sent(chain_id)
        if self.loses_send_responses:
            raise ChainUnavailable(
                f"No node of eip155:{chain_id} gave a usable response. Send the same request again after Retry-After."
            )
        return refusal

    async def resend_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        self.resent.append(raw)
        return await self.send_transaction(chain_id, raw)

    async def _ask_trusted(self, method: str, chain_id: ChainId, quorum: Quorum) -> MemoryBlocks:
        self.trusts.append(quorum)
        chain = await self._ask(method, chain_id)
        if quorum is Quorum.AGREED and chain_id in self._lone:
            raise ChainUnavailable(
                f"No node of eip155:{chain_id} gave a usable response. Send the same request again after Retry-After."
            )
        return chain

    async def _ask(self, method: str, chain_id: ChainId) -> MemoryBlocks:
        self.requests[method, chain_id] += 1
        if self.barrier is not None:
            await self.barrier.wait()
        chain = self._chains.get(chain_id)
        if self.observer is not None:
            outcome: NodeOutcome = "error" if chain is None or chain.is_away else "ok"
            self.observer.count_request(chain_id, 1, outcome, 0.0, [(method, [])])
        if chain is None or chain.is_away:
            raise ChainUnavailable(
                f"No node of eip155:{chain_id} gave a usable response. Send the same request again after Retry-After."
            )
        return chain

    def _look_up(
        self, chain_id: ChainId, chain: MemoryBlocks, tx_hash: TxHash, quorum: Quorum
    ) -> ChainFacts | NotMined:
        found = chain.find(tx_hash)
        if found is None:
            is_pending = tx_hash in chain.pool or tx_hash in chain.sent
            return NotMined(chain_id=chain_id, is_pending=is_pending)
        block, transaction = found
        head = chain.blocks[-1]
        facts = ChainFacts(
            chain_id=chain_id,
            tx_hash=transaction.tx_hash,
            succeeded=transaction.succeeded,
            sender=transaction.sender,
            recipient=transaction.recipient,
            value=transaction.value,
            logs=transaction.effective_logs,
            block_number=block.number,
            block_hash=block.block_hash,
            block_time=block.time,
            canonical_hash=block.block_hash,
            head_number=head.number,
            head_time=head.time,
            finalized_number=max(0, head.number - self._finality_depth),
            fee_wei=transaction.fee_wei,
        )
        if quorum is Quorum.AGREED and tx_hash in self.disputed:
            raise NodesDisagree(
                f"No node of eip155:{chain_id} gave a usable response. Send the same request again after Retry-After."
            )
        if quorum is Quorum.ONE and tx_hash in self.unconfirmed:
            return self.unconfirmed[tx_hash](facts)
        return self.lies[tx_hash](facts) if tx_hash in self.lies else facts

    def _block(self, chain_id: ChainId, number: int, time: int, transactions: Iterable[Transaction]) -> Block:
        self._salt += 1
        block_hash = keccak256(b"%d:%d:%d" % (chain_id, number, self._salt))
        return Block(number=number, block_hash=block_hash, time=time, transactions=tuple(transactions))
