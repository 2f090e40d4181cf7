"""The read port of the ledger: the calls and payments of a wallet. The store of the ledger implements it too."""

import re
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from tollway.ids import Address, CallId, ListingId, TxHash
from tollway.ledger.channels import ChannelMoney
from tollway.ledger.records import CallRecord, Payment

_NUMBER = re.compile(r"[0-9]{1,6}")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentPlace:
    """The place of a payment in the payments of a wallet: its transaction and, where the wallet has several payments in it, the number of the payment
    among them, oldest first. `number` None: after all of them. Its text is public: `0x…` or `0x….1`."""

    tx_hash: TxHash
    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        tx_hash, separator, number = text.partition(".")
        if separator and not _NUMBER.fullmatch(number):
            raise ValueError("must be a transaction hash, or a hash with a point and a number")
        return cls(tx_hash=TxHash.parse(tx_hash), number=int(number) if separator else None)

    def __str__(self) -> str:
        return f"{self.tx_hash}" if self.number is None else f"{self.tx_hash}.{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentQuery:
    """A query for the payments of one wallet, newest block first. `role`: the wallet paid them, or received them. `from_ms` and `to_ms`, both inclusive,
    are about the moment at which the ledger recorded a payment, by the shared time. The moment is taken before the commit: a set gets no further payment
    once `to_ms` is some time in the past."""

    wallet: Address
    role: HistoryRole = "payer"
    from_ms: int | None = None
    to_ms: int | None = None
    before: PaymentPlace | None = None
    after: Payment | None = None
    """The payment that was read last, for the next rows of the same page."""
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPayment:
    """The last payment of a page that has a page after it, and its public place."""

    payment: Payment
    place: PaymentPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPayment:
    """`is_restored`: held because the database was restored. `has_unknown_call`: a call without an outcome holds units of it."""

    payment: Payment
    recorded_ms: int
    is_restored: bool
    has_unknown_call: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCredit:
    """Units that a call holds of a payment other than the payment of its proof: credit of several transfers was joined."""

    tx_hash: TxHash
    units: int


class CallHistory(Protocol):
    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Reads one page. `total` is exact without filters, and up to 10,000 with them."""
        ...

    async def find_call(self, call_id: CallId) -> CallRecord | None: ...

    async def read_calls(self, query: HistoryQuery) -> tuple[CallRecord, ...]: ...

    async def sum_channels(self, receiver: Address) -> tuple[ChannelMoney, ...]:
        """The channels that pay a wallet, by network and token."""
        ...

    async def find_last_call(self, query: HistoryQuery) -> CallRecord | None:
        """Returns None for the last page. Reads index entries up to that call."""
        ...

    async def find_newer_place(self, query: HistoryQuery) -> CallId | None:
        """`before` of the page of newer calls that ends where the page of `query.before` begins. None: that is the first page, which has none."""
        ...

    async def read_payments(self, query: PaymentQuery) -> tuple[ListedPayment, ...]: ...

    async def find_last_payment(self, query: PaymentQuery) -> LastPayment | None:
        """Returns None for the last page."""
        ...

    async def find_newer_payment_place(self, query: PaymentQuery) -> PaymentPlace | None:
        """`before` of the page of newer payments that ends where the page of `query.before` begins. None: that is the first page, which has none."""
        ...

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]: ...

    async def calls_of(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]: ...

    async def unknown_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        """The `unknown` calls that hold units of the payment, newest first. Of more than `limit` calls, not always the newest."""
        ...

    async def joined_credit(self, call_id: CallId, *, limit: int) -> tuple[JoinedCredit, ...]:
        """The credit that was joined for a call, by payment in the order of their recording."""
        ...
