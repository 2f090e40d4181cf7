"""What is asked of the books and changes nothing: payments, calls, debts, authorisations. Half of `BookStore`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tollway.identifiers import Address, CallId, TxHash
from tollway.ledger.authorization import AuthorizationKey, AuthorizedCall, SettlementAttempt
from tollway.ledger.book import Claim, Debt, Exhausted, NonceUsed
from tollway.ledger.call import CallRecord, Payment, Recorded
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
from tollway.storage.gathering import Gathering

T = TypeVar("T")


class _Request(NamedTuple):
    payment_id: int
    digest: bytes


class _Newest(NamedTuple):
    payment_id: int
    limit: int


class BookReader:
    """Keeps the promises of `Statement`, and those of `Book` that only read."""

    def __init__(
        self, database: Database, *, now_ms: Callable[[], int], limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._database = database
        self._now_ms = now_ms
        self._limits = limits
        # What each of a crowd asks when it shows one payment.
        self._payments: Gathering[TxHash, tuple[Payment, ...]] = Gathering(self._find_payments)
        self._repeats: Gathering[_Request, OpenCall | None] = Gathering(self._find_repeats)
        self._spent: Gathering[Claim, Exhausted | NonceUsed | None] = Gathering(self._find_spent)
        self._recorded: Gathering[TxHash, Recorded] = Gathering(self._find_recorded)
        self._spending: Gathering[_Newest, tuple[CallId, ...]] = Gathering(self._spending_calls)

    async def find_payments(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        return await self._payments.ask(tx_hash)

    async def find_repeat(self, payment_id: int, digest: bytes) -> OpenCall | None:
        return await self._repeats.ask(_Request(payment_id, digest))

    async def find_spent(self, claim: Claim) -> Exhausted | NonceUsed | None:
        return await self._spent.ask(claim)

    async def spending_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        return await self._spending.ask(_Newest(payment_id, limit))

    async def find_recorded(self, tx_hash: TxHash) -> Recorded:
        return await self._recorded.ask(tx_hash)

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

    async def find_authorized(self, key: AuthorizationKey) -> AuthorizedCall | None:
        since_ms = self._answered_since_ms()
        work = partial(authorization_store.find_authorized, key=key, answered_since_ms=since_ms)
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

    async def find_keyed(self, payer: Address, idempotency_key: str, *, since_ms: int) -> KeyedCall | None:
        work = partial(
            key_store.find_keyed,
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

    async def _find_repeats(self, requests: Sequence[_Request]) -> list[OpenCall | None]:
        return await self._read_each(
            [partial(open_call_store.find_repeat, **one._asdict()) for one in requests]
        )

    async def _find_spent(self, claims: Sequence[Claim]) -> list[Exhausted | NonceUsed | None]:
        return await self._database.read(partial(spent_store.find_spent, claims=claims))

    async def _find_recorded(self, tx_hashes: Sequence[TxHash]) -> list[Recorded]:
        return await self._read_each([partial(recording.find_recorded, tx_hash=one) for one in tx_hashes])

    async def _spending_calls(self, asked: Sequence[_Newest]) -> list[tuple[CallId, ...]]:
        return await self._read_each(
            [partial(statement_store.spending_calls, **one._asdict()) for one in asked]
        )

    def _answered_since_ms(self) -> int:
        """Answers stored after that are still kept."""
        return self._now_ms() - self._limits.answer_ttl_s * 1000
