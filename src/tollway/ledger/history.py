"""The read port of the ledger: the calls and payments of a wallet. The store of the ledger implements it too."""

from dataclasses import dataclass
from typing import Literal, Protocol

from tollway.ids import Address, CallId, ListingId, TxHash
from tollway.ledger.records import CallRecord, Payment

HistoryStatus = Literal["pending", "succeeded", "failed", "unknown"]
"""`pending`: forwarding or settling; `succeeded`: consumed, upstream status below 400; `failed`: any other consumed call, or
released; `unknown`. A reorged call keeps the status of its response."""

HistoryRole = Literal["payer", "provider"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """A query for the calls of one wallet, newest first by (createdAt, id). `to_ms` is inclusive; `before` continues after that call."""

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
    """A page of calls. `total`: of all pages; `is_lower_bound`: there are more."""

    calls: tuple[CallRecord, ...]
    total: int
    is_lower_bound: bool = False


class CallHistory(Protocol):
    """The read port. Raises `StorageUnavailable`."""

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Reads one page. `total` is exact without filters, and up to 10,000 with them."""
        ...

    async def find_call(self, call_id: CallId) -> CallRecord | None: ...

    async def payments_of(self, payer: Address, *, limit: int, offset: int) -> tuple[Payment, ...]: ...

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]: ...

    async def calls_of(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]: ...

    async def unknown_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        """The `unknown` calls that hold units of the payment, newest first. Of more than `limit` calls, not always the newest."""
        ...
