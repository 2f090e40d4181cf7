"""Who stands around a small gateway: a wallet with a key, and a chain that knows what it was given."""

from dataclasses import dataclass, field

import coincurve

from tollway.chain.reader import ChainFacts, ContractAnswer, NotMined, Trust
from tollway.errors import ChainUnavailable
from tollway.identifiers import Address, ChainId, TxHash, keccak256

CHAIN = ChainId(84532)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buyer:
    """A wallet with a key."""

    key: coincurve.PrivateKey = field(repr=False)

    @classmethod
    def named(cls, name: str) -> "Buyer":
        return cls(key=coincurve.PrivateKey(keccak256(name.encode())))

    @property
    def address(self) -> Address:
        return Address(keccak256(self.key.public_key.format(compressed=False)[1:])[12:])

    def sign(self, digest: bytes) -> str:
        return "0x" + self.key.sign_recoverable(digest, hasher=None).hex()


class FakeChains:
    """A chain reader that knows what it was given. `away`: no node answers. `lookups` counts questions."""

    chain_ids = (CHAIN,)

    def __init__(self) -> None:
        self.facts: dict[TxHash, ChainFacts] = {}
        self.away = False
        self.lookups = 0

    async def fetch_facts(
        self, chain_id: ChainId, tx_hash: TxHash, *, trust: Trust = Trust.AGREED
    ) -> ChainFacts | NotMined:
        self.lookups += 1
        if self.away:
            raise ChainUnavailable
        return self.facts.get(tx_hash) or NotMined(chain_id=chain_id, is_pending=False)

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
        if self.away:
            raise ChainUnavailable
        return ContractAnswer(reverted=True, payload=b"")

    async def fetch_code_size(self, chain_id: ChainId, address: Address) -> int:
        return 0

    async def check_chain(self, chain_id: ChainId) -> None:
        if self.away:
            raise ChainUnavailable
