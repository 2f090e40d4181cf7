"""What several nodes tell about one transaction, weighed: when facts count, and when "not mined" does. Pure.

A node may lag behind its siblings, so "not mined" counts only when every node says so that can be reached. Head and
finality may differ between honest nodes; the lowest is taken.
"""

from dataclasses import dataclass, field, replace

from tollway.chain.answers import BlockHeader, MinedTransaction
from tollway.chain.reader import ChainFacts, NotMined
from tollway.identifiers import ChainId, TxHash


@dataclass(slots=True, kw_only=True)
class TransactionVotes:
    """Of one transaction. `needed`: how many nodes must tell the same."""

    chain_id: ChainId
    needed: int
    reports: list[ChainFacts] = field(default_factory=list)
    unseen: list[NotMined] = field(default_factory=list)
    agreed: ChainFacts | None = None

    def needs_another_node(self, *, is_deferred: bool) -> bool:
        """Whether one more node is to be asked. One that failed just now is not waited for to say "not mined"."""
        if self.agreed is not None:
            return False
        return not (is_deferred and not self.reports and len(self.unseen) >= self.needed)

    def add(self, answer: ChainFacts | NotMined) -> None:
        if isinstance(answer, NotMined):
            self.unseen.append(answer)
        else:
            self.reports.append(answer)
            self.agreed = _find_agreement(self.reports, self.needed)

    @property
    def is_disputed(self) -> bool:
        """Enough nodes have answered, and nothing can be said all the same."""
        return self.outcome is None and len(self.reports) + len(self.unseen) >= self.needed

    @property
    def outcome(self) -> ChainFacts | NotMined | None:
        """None: nothing can be said."""
        if self.agreed is not None or self.reports or len(self.unseen) < self.needed:
            return self.agreed
        return NotMined(chain_id=self.chain_id, is_pending=any(answer.is_pending for answer in self.unseen))


@dataclass(slots=True, kw_only=True)
class BlockVotes:
    """What nodes tell of one height: a hash each, or that their chain has no block so high. `needed`: how many must tell
    the same hash."""

    needed: int
    reports: list[bytes] = field(default_factory=list)
    unseen: int = 0

    def needs_another_node(self, *, is_deferred: bool) -> bool:
        """Whether one more node is to be asked. One that failed just now is not waited for to say that there is none."""
        if self.agreed is not None:
            return False
        return not (is_deferred and not self.reports and self.unseen >= self.needed)

    def add(self, block_hash: bytes | None) -> None:
        if block_hash is None:
            self.unseen += 1
        else:
            self.reports.append(block_hash)

    @property
    def agreed(self) -> bytes | None:
        return next((one for one in self.reports if self.reports.count(one) >= self.needed), None)

    @property
    def is_missing(self) -> bool:
        """Every node that answered says that its chain is not so long, and they are enough."""
        return not self.reports and self.unseen >= self.needed

    @property
    def is_disputed(self) -> bool:
        is_open = self.agreed is None and not self.is_missing
        return is_open and len(self.reports) + self.unseen >= self.needed


def _find_agreement(reports: list[ChainFacts], needed: int) -> ChainFacts | None:
    """The facts that the newest answer shares with enough others, seen from the most cautious of them."""
    alike = [facts for facts in reports if _strip_progress(facts) == _strip_progress(reports[-1])]
    if len(alike) < needed:
        return None
    slowest = min(alike, key=lambda facts: facts.head_number)
    return replace(slowest, finalized_number=min(facts.finalized_number for facts in alike))


def _strip_progress(facts: ChainFacts) -> ChainFacts:
    """Without what honest nodes may differ in; not all of them tell the fee."""
    return replace(facts, head_number=0, head_time=0, finalized_number=0, fee_wei=None)


def assemble_facts(
    chain_id: ChainId,
    tx_hash: TxHash,
    mined: MinedTransaction,
    *,
    block: BlockHeader,
    head: BlockHeader,
    finalized_number: int,
) -> ChainFacts:
    """`block`: what the chain has now at the transaction's height."""
    # The block may have arrived after the head was read; it is then the head itself.
    if block.number > head.number:
        head = block
    return ChainFacts(
        chain_id=chain_id,
        tx_hash=tx_hash,
        succeeded=mined.succeeded,
        sender=mined.sender,
        recipient=mined.recipient,
        value=mined.value,
        logs=mined.logs,
        block_number=mined.block_number,
        block_hash=mined.block_hash,
        block_time=block.time,
        canonical_hash=block.block_hash,
        head_number=head.number,
        head_time=head.time,
        finalized_number=finalized_number,
        fee_wei=mined.fee_wei,
    )
