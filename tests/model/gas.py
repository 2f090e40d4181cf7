"""The nonces of gas keys in the ledger model: the counterpart of `storage.ledger.gas_store`, over the rows of a `MemoryLedger`."""

from collections import Counter

from tests.model.rows import MemoryAttempt, MemoryRows, MemoryWalletGas, add_attempt, attempts_of_call
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, ChainId, ListingId
from tollway.ledger.ledger import CodeRecord, NonceUnavailable
from tollway.ledger.records import SettlementAttempt


class MemoryGas:
    """Keeps the promises of `GasLedger`. `away` makes every method raise `StorageUnavailable`; `is_away_for_code` those about
    payers with code."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows
        self.away = False
        self.is_away_for_code = False

    async def next_nonce(self, chain_id: ChainId, sender: Address) -> int:
        self._answer()
        return self._rows.lanes.get((chain_id, sender), 0)

    async def raise_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        self._answer()
        lane = (chain_id, sender)
        self._rows.lanes[lane] = max(nonce, self._rows.lanes.get(lane, 0))
        return self._rows.lanes[lane]

    async def lower_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        self._answer()
        lane = (chain_id, sender)
        is_free = all(one.attempt.nonce < nonce for one in self._lane(chain_id, sender) if one.is_open)
        if is_free:
            self._rows.lanes[lane] = min(nonce, self._rows.lanes.get(lane, 0))
        return self._rows.lanes.get(lane, 0)

    async def add_attempt(
        self, attempt: SettlementAttempt, *, is_filling: bool = False
    ) -> bool | NonceUnavailable:
        self._answer()
        return add_attempt(self._rows, attempt, is_filling=is_filling)

    async def attempts_of(self, call_id: CallId) -> tuple[SettlementAttempt, ...]:
        self._answer()
        return attempts_of_call(self._rows, call_id)

    async def open_attempts(
        self, chain_id: ChainId, sender: Address, *, limit: int
    ) -> tuple[SettlementAttempt, ...]:
        self._answer()
        found = [one.attempt for one in self._lane(chain_id, sender) if one.is_open]
        found.sort(key=lambda one: (one.nonce, one.created_ms, one.tx_hash))
        return tuple(found[:limit])

    async def mark_mined(self, chain_id: ChainId, sender: Address, *, below: int) -> None:
        self._answer()
        for one in self._lane(chain_id, sender):
            one.is_open = one.is_open and one.attempt.nonce >= below

    async def reopen(self, chain_id: ChainId, sender: Address, *, since_nonce: int, since_ms: int) -> None:
        self._answer()
        for one in self._lane(chain_id, sender):
            if one.attempt.nonce >= since_nonce and one.attempt.created_ms >= since_ms:
                one.is_open = True

    async def record_cost(self, attempt: SettlementAttempt, *, cost_wei: int) -> None:
        self._answer()
        for one in self._lane(attempt.chain_id, attempt.sender):
            if one.attempt.nonce == attempt.nonce:
                one.cost_wei = cost_wei if one.attempt.tx_hash == attempt.tx_hash else 0

    async def gas_spent_wei(self, chain_id: ChainId, *, since_ms: int) -> dict[ListingId, int]:
        self._answer()
        of_nonce: dict[tuple[ListingId, Address, int], int] = {}
        for one in self._rows.attempts.values():
            attempt = one.attempt
            if attempt.chain_id == chain_id and attempt.created_ms >= since_ms:
                key = (attempt.listing_id, attempt.sender, attempt.nonce)
                of_nonce[key] = max(one.cost_wei, of_nonce.get(key, 0))
        spent: dict[ListingId, int] = {}
        for (listing_id, *_), wei in of_nonce.items():
            spent[listing_id] = spent.get(listing_id, 0) + wei
        return spent

    async def record_wallet_cost(
        self, attempt: SettlementAttempt, *, cost_wei: int, is_reverted: bool
    ) -> None:
        self._answer_of_wallets()
        found = self._rows.wallet_gas.get((attempt.chain_id, attempt.sender, attempt.nonce))
        if found is not None:
            found.cost_wei, found.is_reverted = cost_wei, is_reverted

    async def wallet_gas_wei(self, chain_id: ChainId, *, since_ms: int) -> dict[ListingId, int]:
        self._answer_of_wallets()
        spent: dict[ListingId, int] = {}
        for one in self._find_wallet_gas(chain_id, since_ms):
            listing_id = one.attempt.listing_id
            spent[listing_id] = spent.get(listing_id, 0) + one.cost_wei
        return spent

    async def reverting_codes(self, chain_id: ChainId, *, since_ms: int) -> dict[bytes, CodeRecord]:
        self._answer_of_wallets()
        found = self._find_wallet_gas(chain_id, since_ms)
        signed = Counter(one.code_hash for one in found)
        reverted = Counter(one.code_hash for one in found if one.is_reverted)
        return {code: CodeRecord(signed=signed[code], reverted=count) for code, count in reverted.items()}

    def _find_wallet_gas(self, chain_id: ChainId, since_ms: int) -> list[MemoryWalletGas]:
        return [
            one
            for one in self._rows.wallet_gas.values()
            if one.attempt.chain_id == chain_id and one.attempt.created_ms >= since_ms
        ]

    def _answer_of_wallets(self) -> None:
        self._answer()
        if self.is_away_for_code:
            raise StorageUnavailable

    def _lane(self, chain_id: ChainId, sender: Address) -> list[MemoryAttempt]:
        return [
            one
            for one in self._rows.attempts.values()
            if (one.attempt.chain_id, one.attempt.sender) == (chain_id, sender)
        ]

    def _answer(self) -> None:
        if self.away:
            raise StorageUnavailable
