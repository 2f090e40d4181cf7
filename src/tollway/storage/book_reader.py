"""What is asked of the ledger and changes nothing: payments, calls, debts, authorisations. Half of `LedgerStore`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tollway.identifiers import Address, CallId, TxHash
from tollway.ledger.authorization import AuthorizationKey, AuthorizedCall, SettlementAttempt
from tollway.ledger.book import Claim, Debt, Exhausted, NonceUsed
from tollway.ledger.call import CallRecord, Payment, RecordedTransaction
from tollway.ledger.keyed_calls import KeyedCall
from tollway.ledger.open_calls import OpenCall
from tollway.ledger.statement import HistoryPage, HistoryQuery
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage import (
    authorization_store,
    history_page,
    key_store,
    open_call_store,
    operator_notes,
    payment_store,
    recording,
    relocation_store,
    spent_store,
    statement_store,
)
from tollway.storage.database import Database, Work
from tollway.storage.gathering import BatchLoader

T = TypeVar("T")


class _RepeatQuery(NamedTuple):
    payment_id: int
    digest: bytes


class _NewestQuery(NamedTuple):
    payment_id: int
    limit: int


class LedgerReader:
    """Keeps the promises of `CallHistory`, and those of `Ledger` that only read."""

    def __init__(
        self, database: Database, *, now_ms: Callable[[], int], limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._database = database
        self._now_ms = now_ms
        self._limits = limits
        # What each of a crowd asks when it shows one payment.
        self._payments: BatchLoader[TxHash, tuple[Payment, ...]] = BatchLoader(self._find_payments)
        self._open_calls: BatchLoader[_RepeatQuery, OpenCall | None] = BatchLoader(self._find_open_calls)
        self._exhausted: BatchLoader[Claim, Exhausted | NonceUsed | None] = BatchLoader(self._find_exhausted)
        self._transactions: BatchLoader[TxHash, RecordedTransaction] = BatchLoader(self._find_transactions)
        self._spending: BatchLoader[_NewestQuery, tuple[CallId, ...]] = BatchLoader(self._spending_calls)

    async def find_payments(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        return await self._payments.load(tx_hash)

    async def find_open_call(self, payment_id: int, digest: bytes) -> OpenCall | None:
        return await self._open_calls.load(_RepeatQuery(payment_id, digest))

    async def find_exhausted(self, claim: Claim) -> Exhausted | NonceUsed | None:
        return await self._exhausted.load(claim)

    async def spending_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        return await self._spending.load(_NewestQuery(payment_id, limit))

    async def find_transaction(self, tx_hash: TxHash) -> RecordedTransaction:
        return await self._transactions.load(tx_hash)

    async def downtime_ms(self, *, since_ms: int, now_ms: int) -> int:
        work = partial(operator_notes.downtime_ms, since_ms=since_ms, now_ms=now_ms)
        return await self._database.read(work)

    async def debts(self, payer: Address) -> tuple[Debt, ...]:
        return await self._database.read(partial(payment_store.debts, payer=payer))

    async def history(self, query: HistoryQuery) -> HistoryPage:
        return await self._database.read(partial(history_page.history, query=query))

    async def find_call(self, call_id: CallId) -> CallRecord | None:
        return await self._database.read(partial(statement_store.find_call, call_id=call_id))

    async def payments_of(self, payer: Address, *, limit: int, offset: int) -> tuple[Payment, ...]:
        work = partial(statement_store.payments_of, payer=payer, limit=limit, offset=offset)
        return await self._database.read(work)

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]:
        return await self._database.read(partial(statement_store.payments_in, payer=payer, tx_hash=tx_hash))

    async def calls_of(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        work = partial(statement_store.calls_of, payment_id=payment_id, limit=limit)
        return await self._database.read(work)

    async def unknown_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        work = partial(statement_store.unknown_calls, payment_id=payment_id, limit=limit)
        return await self._database.read(work)

    async def find_authorized_call(self, key: AuthorizationKey) -> AuthorizedCall | None:
        since_ms = self._answered_since_ms()
        work = partial(authorization_store.find_authorized_call, key=key, answered_since_ms=since_ms)
        return await self._database.read(work)

    async def attempts_of(self, call_id: CallId) -> tuple[SettlementAttempt, ...]:
        return await self._database.read(partial(authorization_store.attempts_of, call_id=call_id))

    async def authorizations_in(self, payment_id: int, *, limit: int) -> tuple[AuthorizedCall, ...]:
        work = partial(
            relocation_store.authorizations_in,
            payment_id=payment_id,
            limit=limit,
            answered_since_ms=self._answered_since_ms(),
        )
        return await self._database.read(work)

    async def find_keyed_call(
        self, payer: Address, idempotency_key: str, *, since_ms: int
    ) -> KeyedCall | None:
        work = partial(
            key_store.find_keyed_call,
            payer=payer,
            idempotency_key=idempotency_key,
            since_ms=since_ms,
            answered_since_ms=self._answered_since_ms(),
        )
        return await self._database.read(work)

    # ---- What is asked together.

    async def _read_each(self, works: Sequence[Work[T]]) -> list[T]:
        return await self._database.read(lambda connection: [work(connection) for work in works])

    async def _find_payments(self, tx_hashes: Sequence[TxHash]) -> list[tuple[Payment, ...]]:
        return await self._read_each([partial(payment_store.find_payments, tx_hash=one) for one in tx_hashes])

    async def _find_open_calls(self, requests: Sequence[_RepeatQuery]) -> list[OpenCall | None]:
        return await self._read_each(
            [partial(open_call_store.find_open_call, **one._asdict()) for one in requests]
        )

    async def _find_exhausted(self, claims: Sequence[Claim]) -> list[Exhausted | NonceUsed | None]:
        return await self._database.read(partial(spent_store.find_exhausted, claims=claims))

    async def _find_transactions(self, tx_hashes: Sequence[TxHash]) -> list[RecordedTransaction]:
        return await self._read_each([partial(recording.find_transaction, tx_hash=one) for one in tx_hashes])

    async def _spending_calls(self, queries: Sequence[_NewestQuery]) -> list[tuple[CallId, ...]]:
        return await self._read_each(
            [partial(statement_store.spending_calls, **one._asdict()) for one in queries]
        )

    def _answered_since_ms(self) -> int:
        """Answers stored after that are still kept."""
        return self._now_ms() - self._limits.answer_ttl_s * 1000
