"""The read side of the ledger: a wallet's calls and payments. A port, kept by the same store as the ledger."""

from dataclasses import dataclass
from typing import Literal, Protocol

from tollway.ids import Address, CallId, ListingId, TxHash
from tollway.ledger.records import CallRecord, Payment

HistoryStatus = Literal["pending", "succeeded", "failed", "unknown"]
"""`pending`: forwarding or settling; `succeeded`: consumed, upstream below 400; `failed`: consumed otherwise, or
released; `unknown`. A reorged call keeps the status its answer gave it."""

HistoryRole = Literal["payer", "provider"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """Calls of one wallet, newest first by (createdAt, id). `to_ms` is inclusive; `before` goes on after that call."""

    wallet: Address
    role: HistoryRole = "payer"
    listing_id: ListingId | None = None
    status: HistoryStatus | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    before: CallId | None = None
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    calls: tuple[CallRecord, ...]
    total: int
    is_lower_bound: bool = False


class CallHistory(Protocol):
    """Raises `StorageUnavailable` when the store is away."""

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """`total` is exact without filters, and up to 10,000 with them."""
        ...

    async def find_call(self, call_id: CallId) -> CallRecord | None: ...

    async def payments_of(self, payer: Address, *, limit: int, offset: int) -> tuple[Payment, ...]: ...

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]: ...

    async def calls_of(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]: ...

    async def unknown_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        """Those whose outcome is unknown and that hold something of it, newest first; of more than `limit`, some."""
        ...
