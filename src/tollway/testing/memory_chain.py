"""Chains in memory: the twin of `chain/rpc.py`. A test scripts the blocks, the transactions and the trouble.

It answers as an honest node would, unless it is told to be away; `tests/payments` and the watcher live on it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tollway.chain.reader import ChainFacts, ContractAnswer, Log, NotMined
from tollway.chain.tokens import AUTHORIZATION_USED_TOPIC, TRANSFER_TOPIC
from tollway.errors import ChainUnavailable
from tollway.identifiers import Address, ChainId, TxHash, keccak256

_PAD = bytes(12)
_FIRST_BLOCK_S = 1_795_000_000
NO_ANSWER = ContractAnswer(reverted=False, payload=b"")

Wallet = Callable[[bytes], ContractAnswer]
"""A contract: calldata -> what an `eth_call` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What a receipt and its transaction say together; `value` in base units of the native currency."""

    tx_hash: TxHash
    sender: Address
    recipient: Address | None
    value: int = 0
    logs: tuple[Log, ...] = ()
    succeeded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    number: int
    block_hash: bytes
    time: int
    transactions: tuple[Transaction, ...]


@dataclass(slots=True)
class _Chain:
    blocks: list[Block]
    pool: dict[TxHash, Transaction] = field(default_factory=dict)
    code: dict[Address, Wallet] = field(default_factory=dict)
    is_away: bool = False


class MemoryChain:
    """A `ChainReader`. `asked` counts the questions that reached a chain, by (method, chain id).

    `gate`: when it is set to an unset event, every look-up waits for it, so that a test can pile callers up.
    """

    def __init__(self, *chain_ids: ChainId, finality_depth: int = 10, block_time_s: int = 2) -> None:
        self._finality_depth = finality_depth
        self._block_time_s = block_time_s
        self._salt = 0
        self._chains: dict[ChainId, _Chain] = {}
        for chain_id in chain_ids:
            self._chains[chain_id] = _Chain(blocks=[self._block(chain_id, 0, _FIRST_BLOCK_S, ())])
        self.asked: Counter[tuple[str, ChainId]] = Counter()
        self.gate: asyncio.Event | None = None
        self.lies: dict[TxHash, Callable[[ChainFacts], ChainFacts]] = {}

    # ---- The script.

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
        self, chain_id: ChainId, address: Address, wallet: Wallet = lambda calldata: NO_ANSWER
    ) -> None:
        """Code at an address."""
        self._chains[chain_id].code[address] = wallet

    def take_away(self, *chain_ids: ChainId) -> None:
        """No node of these chains answers any more."""
        for chain_id in chain_ids:
            self._chains[chain_id].is_away = True

    def bring_back(self, *chain_ids: ChainId) -> None:
        for chain_id in chain_ids:
            self._chains[chain_id].is_away = False

    @property
    def questions(self) -> int:
        """How many questions reached any chain."""
        return self.asked.total()

    # ---- The port.

    @property
    def chain_ids(self) -> tuple[ChainId, ...]:
        return tuple(self._chains)

    async def fetch_facts(self, chain_id: ChainId, tx_hash: TxHash) -> ChainFacts | NotMined:
        chain = await self._ask("fetch_facts", chain_id)
        for block in chain.blocks:
            for transaction in block.transactions:
                if transaction.tx_hash == tx_hash:
                    facts = self._facts(chain_id, chain, block, transaction)
                    return self.lies[tx_hash](facts) if tx_hash in self.lies else facts
        return NotMined(chain_id=chain_id, is_pending=tx_hash in chain.pool)

    async def call_contract(
        self,
        chain_id: ChainId,
        *,
        to: Address | None,
        calldata: bytes,
        gas: int,
        bytes_max: int,
        deadline_s: float,
    ) -> ContractAnswer:
        chain = await self._ask("call_contract", chain_id)
        wallet = None if to is None else chain.code.get(to)
        answer = NO_ANSWER if wallet is None else wallet(calldata)
        return replace(answer, payload=answer.payload[:bytes_max])

    async def fetch_code_size(self, chain_id: ChainId, address: Address) -> int:
        chain = await self._ask("fetch_code_size", chain_id)
        return 100 if address in chain.code else 0

    async def check_chain(self, chain_id: ChainId) -> None:
        await self._ask("check_chain", chain_id)

    async def _ask(self, method: str, chain_id: ChainId) -> _Chain:
        self.asked[method, chain_id] += 1
        if self.gate is not None:
            await self.gate.wait()
        chain = self._chains.get(chain_id)
        if chain is None or chain.is_away:
            raise ChainUnavailable(f"no node of eip155:{chain_id} gave a usable answer")
        return chain

    def _facts(self, chain_id: ChainId, chain: _Chain, block: Block, transaction: Transaction) -> ChainFacts:
        head = chain.blocks[-1]
        return ChainFacts(
            chain_id=chain_id,
            tx_hash=transaction.tx_hash,
            succeeded=transaction.succeeded,
            sender=transaction.sender,
            recipient=transaction.recipient,
            value=transaction.value,
            logs=transaction.logs if transaction.succeeded else (),
            block_number=block.number,
            block_hash=block.block_hash,
            block_time=block.time,
            canonical_hash=block.block_hash,
            head_number=head.number,
            head_time=head.time,
            finalized_number=max(0, head.number - self._finality_depth),
        )

    def _block(self, chain_id: ChainId, number: int, time: int, transactions: Iterable[Transaction]) -> Block:
        self._salt += 1
        block_hash = keccak256(b"%d:%d:%d" % (chain_id, number, self._salt))
        return Block(number=number, block_hash=block_hash, time=time, transactions=tuple(transactions))


def transfer_log(token: Address, payer: Address, payee: Address, base_units: int) -> Log:
    """The event of an ERC-20 transfer, as `token` reports it."""
    topics = (TRANSFER_TOPIC, _PAD + payer, _PAD + payee)
    return Log(address=token, topics=topics, payload=base_units.to_bytes(32, "big"), removed=False)


def authorization_log(token: Address, authorizer: Address, nonce: bytes = bytes(32)) -> Log:
    """The event of EIP-3009 that says who signed the transfer beside it."""
    topics = (AUTHORIZATION_USED_TOPIC, _PAD + authorizer, nonce)
    return Log(address=token, topics=topics, payload=b"", removed=False)
