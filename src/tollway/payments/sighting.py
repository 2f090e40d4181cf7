"""What the chains say about a transaction that the ledger does not know yet: for a payer who asks what became of it.

It judges nothing and records nothing; showing the transaction with a call is what does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tollway.chain.lookup_meter import LookupQuota
from tollway.chain.reader import ChainReader, NotMined
from tollway.errors import ChainUnavailable, Code, Problem, Refusal, describe_rate
from tollway.identifiers import Address, ChainId, TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatus:
    """`unseen`: known to no chain, or mined and never shown here. `chain_id`: where it was seen."""

    state: Literal["unseen", "pending", "refused"]
    reason: str | None = None
    chain_id: ChainId | None = None


class TransactionStatusReader:
    """Asks every configured chain about one transaction. Safe to use from many tasks at once."""

    def __init__(self, chains: ChainReader, *, quota: LookupQuota) -> None:
        self._chains = chains
        self._quota = quota

    async def read_status(self, tx_hash: TxHash, payer: Address) -> TransactionStatus | None:
        """None when not every chain could be asked and none knew it. Raises Refusal (`rate_limited`)."""
        wait_s = await self._quota.charge(client_address=f"wallet {payer}", signer=str(payer))
        if wait_s is not None:
            raise Refusal(
                Problem(
                    code=Code.RATE_LIMITED,
                    detail="Too many transactions were looked up on the chain for this wallet.",
                    retry_after_s=wait_s,
                    members=describe_rate("lookups", limit=self._quota.lookups_per_minute, window_s=60),
                )
            )
        statuses = [await self._read_status_on(chain_id, tx_hash) for chain_id in self._chains.chain_ids]
        return _choose_status(statuses)

    async def _read_status_on(self, chain_id: ChainId, tx_hash: TxHash) -> TransactionStatus | None:
        try:
            facts = await self._chains.fetch_facts(chain_id, tx_hash)
        except ChainUnavailable:
            return None
        if isinstance(facts, NotMined):
            return (
                TransactionStatus(state="pending", reason="not_mined", chain_id=chain_id)
                if facts.is_pending
                else _UNSEEN
            )
        if not facts.succeeded:
            return TransactionStatus(state="refused", reason="transaction_failed", chain_id=chain_id)
        return TransactionStatus(state="unseen", reason="not_shown", chain_id=chain_id)


_UNSEEN = TransactionStatus(state="unseen", reason="unknown_transaction")


def _choose_status(statuses: Iterable[TransactionStatus | None]) -> TransactionStatus | None:
    answers = list(statuses)
    found = [answer for answer in answers if answer is not None and answer.chain_id is not None]
    if found:
        return found[0]
    return None if None in answers or not answers else _UNSEEN
