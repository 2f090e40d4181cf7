"""Looks up transactions on their chains: one request to the nodes for many callers, within the quota of each caller.

The module returns the facts of a chain; it verifies and records nothing. When a look-up is cancelled, the next waiting caller
repeats it: the disconnect of one caller never refuses another. `TransactionStatusReader` reads the status of a transaction that is
not in the ledger yet, for `GET /payments/{transaction}`.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tollway.chain.port import ChainFacts, ChainReader, LookupQuota, NotMined, Quorum
from tollway.errors import ChainUnavailable, Code, describe_rate, refuse
from tollway.ids import Address, ChainId, TxHash


class LookupCharge:
    """The quota charge of one request, taken at its first request to a chain. One object per request."""

    def __init__(self, quota: LookupQuota, *, client_address: str, signer: str) -> None:
        self._quota = quota
        self._client_address = client_address
        self._signer = signer
        self._is_taken = False
        self._is_kept = False
        self._lock = asyncio.Lock()  # several networks are read at once under one charge

    async def take(self) -> None:
        """Raises `Refusal` (`rate_limited`)."""
        async with self._lock:
            if not self._is_taken:
                await self._charge()

    async def _charge(self) -> None:
        wait_s = await self._quota.charge(client_address=self._client_address, signer=self._signer)
        if wait_s is not None:
            raise refuse(
                code=Code.RATE_LIMITED,
                detail="Too many transactions were looked up on the chain for this address or wallet.",
                retry_after_s=wait_s,
                payment_state="none",
                members=describe_rate("lookups", limit=self._quota.lookups_per_minute, window_s=60),
            )
        self._is_taken = True

    def give_back(self) -> None:
        """Returns the charge of a look-up that found a valid payment, unless it is kept: the limit is for worthless proofs."""
        if self._is_taken and not self._is_kept:
            self._is_taken = False
            self._quota.give_back(client_address=self._client_address, signer=self._signer)

    def keep(self) -> None:
        self._is_kept = True

    def count_unresolved(self) -> None:
        """Counts the look-up as unresolved: the chain or the ledger did not respond."""
        if self._is_taken:
            self._is_taken = False
            self._quota.count_unresolved(client_address=self._client_address, signer=self._signer)


_LookupKey = tuple[ChainId, TxHash, Quorum]


class TransactionLookup:
    """Single-flight look-ups: all callers of one transaction wait for the result of the same request."""

    def __init__(self, chains: ChainReader) -> None:
        self._chains = chains
        self._flights: dict[_LookupKey, asyncio.Future[ChainFacts | NotMined | None]] = {}

    async def fetch(
        self, chain_id: ChainId, tx_hash: TxHash, charge: LookupCharge, *, quorum: Quorum = Quorum.AGREED
    ) -> ChainFacts | NotMined:
        """Raises `ChainUnavailable`, and `Refusal` when `charge` raises it. Waiting for another caller's look-up is not charged."""
        key = (chain_id, tx_hash, quorum)
        while (flight := self._flights.get(key)) is not None:
            found = await asyncio.shield(flight)
            if found is not None:
                return found
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        try:
            await charge.take()
            found = await self._chains.fetch_facts(chain_id, tx_hash, quorum=quorum)
        except ChainUnavailable as exc:
            flight.set_exception(ChainUnavailable(problem=exc.problem))
            flight.exception()  # retrieved here: there may be no other waiting caller
            raise
        except BaseException:
            flight.set_result(None)  # this caller left, or has no quota: the next waiting caller fetches
            raise
        finally:
            del self._flights[key]
        flight.set_result(found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatus:
    """The status of one transaction. `unseen`: on no chain, or mined and never presented here. `chain_id`: the chain that has it."""

    state: Literal["unseen", "pending", "refused"]
    reason: str | None = None
    chain_id: ChainId | None = None


class TransactionStatusReader:
    """Reads one transaction from every configured chain."""

    def __init__(self, chains: ChainReader, *, quota: LookupQuota) -> None:
        self._chains = chains
        self._quota = quota

    async def read_status(self, tx_hash: TxHash, payer: Address) -> TransactionStatus | None:
        """None when a chain did not respond and no other chain has the transaction. Raises `Refusal` (`rate_limited`)."""
        wait_s = await self._quota.charge(client_address=f"wallet {payer}", signer=str(payer))
        if wait_s is not None:
            raise refuse(
                code=Code.RATE_LIMITED,
                detail="Too many transactions were looked up on the chain for this wallet.",
                retry_after_s=wait_s,
                members=describe_rate("lookups", limit=self._quota.lookups_per_minute, window_s=60),
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
    read = list(statuses)
    found = [status for status in read if status is not None and status.chain_id is not None]
    if found:
        return found[0]
    return None if None in read or not read else _UNSEEN
