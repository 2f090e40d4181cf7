"""The space of stored responses: how much each payer and each provider holds, and which responses are deleted for a new one.

A payer has a maximum, a provider has one, and all responses together have one. A payer at its maximum loses its own oldest responses. A full provider, and
the account (a payer or a provider) that holds most where all are full, lose their oldest ones. A response of the last hour is not deleted for another payer's
while its payer holds less than an equal share: the bytes held divided by the number of payers. So wallets that call their own APIs delete each other's responses.
Where no response may be deleted, the new one is not stored.

The account is the provider and not the `payTo`, because a listing of any provider can name any `payTo`.

The sums are read from indexes when a process stores its first response, and again after so many bytes that no maximum is exceeded by much; between two
reads the process counts its own changes. With several gateways the sums can exceed a maximum for a moment.
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    cast,
    delete,
    func,
    or_,
    select,
)

from tollway.limits import Limits
from tollway.storage.engine.database import metadata

stored_response_table = Table(
    "stored_response",
    metadata,
    Column("call_id", String(64), nullable=False),
    Column("payer", LargeBinary(20), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("provider", LargeBinary(20), nullable=False),
    PrimaryKeyConstraint("call_id", name="pk_stored_response"),
    # All contain the sizes, so that their sum reads no response.
    Index("ix_stored_response_time", "created_ms", "call_id", "bytes"),
    Index("ix_stored_response_payer", "payer", "created_ms", "call_id", "bytes", "provider"),
    Index("ix_stored_response_provider", "provider", "created_ms", "call_id", "bytes", "payer"),
)

PROTECTED_MS = 3_600_000
AHEAD_PART = 64
"""Where a maximum is reached, this part of it is freed ahead. When this process has added as much of the maximum of all, it reads the sums again."""
RECOUNT_MS = 60_000
"""Before a deletion the sums are read again when they are older: other gateways store and delete too."""
ACCOUNTS_MAX = 16_384
"""The payers, and the providers, of which the sums are known. The others hold less than each of these."""
DELETE_BATCH_MAX = 500
"""Where this many responses are deleted for one, no further ones are deleted ahead."""
PAGE = 64
SEARCHES_MAX = 256
"""Searches for one response in accounts of any kind. After them only payers are searched: the largest has no protected response."""
UNPROTECTED_MAX = 1_000


class PooledResponse(NamedTuple):
    call_id: str
    payer: bytes
    provider: bytes
    bytes: int
    created_ms: int


class Account(NamedTuple):
    role: Literal["payer", "provider"]
    wallet: bytes


class NoSpace(Exception):
    """Too few responses may be deleted for the new one. Ends its transaction."""


@dataclass(slots=True, kw_only=True)
class PoolSums:
    """The bytes of all responses and of each account. `oldest_ms`: the first response of an account, when the sums were read. `freeing`: the bytes that
    transactions delete for responses that are counted already."""

    held: dict[Account, int] = field(default_factory=dict)
    oldest_ms: dict[Account, int] = field(default_factory=dict)
    total: int = 0
    payers: int = 0
    freeing: int = 0
    counted_ms: int = 0
    bytes_until_recount: int = 0

    def copy(self) -> Self:
        return replace(self, held=dict(self.held), oldest_ms=dict(self.oldest_ms))

    def add(self, response: PooledResponse) -> None:
        self.total += response.bytes
        for account in _accounts(response):
            if account not in self.held:
                self.payers += account.role == "payer"
                self.oldest_ms[account] = response.created_ms
            self.held[account] = self.held.get(account, 0) + response.bytes

    def remove(self, response: PooledResponse) -> None:
        self.total -= response.bytes
        for account in _accounts(response):
            left = self.held.get(account, 0) - response.bytes
            if left > 0:
                self.held[account] = left
            elif self.held.pop(account, None) is not None:
                self.payers -= account.role == "payer"
                del self.oldest_ms[account]

    def is_over(self, response: PooledResponse, limits: Limits) -> bool:
        """Whether a maximum would be exceeded with this response, which is not counted yet."""
        return self.total + response.bytes > limits.responses_bytes_max or any(
            self.held.get(account, 0) + response.bytes > _bytes_max(account, limits)
            for account in _accounts(response)
        )

    def find_unprotected(self) -> list[bytes]:
        """The payers that hold an equal share or more, at most `UNPROTECTED_MAX`, the largest first."""
        share = self.total // max(self.payers, 1)
        of_payers = [
            (held, account.wallet)
            for account, held in self.held.items()
            if account.role == "payer" and held >= share
        ]
        return [wallet for _, wallet in heapq.nlargest(UNPROTECTED_MAX, of_payers)]


def read_sums(connection: Connection, *, now_ms: int, limits: Limits) -> PoolSums:
    sums = PoolSums(counted_ms=now_ms, bytes_until_recount=recount_bytes(limits))
    for role in _ROLES:
        wallet, size = stored_response_table.c[role], func.sum(stored_response_table.c.bytes)
        query = (
            select(
                wallet,
                cast(size, BigInteger),
                func.min(stored_response_table.c.created_ms),
                func.count().over(),
                cast(func.sum(size).over(), BigInteger),
            )
            .where(wallet.is_not(None))
            .group_by(wallet)
            .order_by(size.desc())
            .limit(ACCOUNTS_MAX)
        )
        for found, held, oldest_ms, count, total in connection.execute(query):
            account = Account(role, bytes(found))
            sums.held[account], sums.oldest_ms[account] = held, oldest_ms
            if role == "payer":
                sums.payers, sums.total = count, int(total)
    return sums


def recount_bytes(limits: Limits) -> int:
    return limits.responses_bytes_max // AHEAD_PART


def make_space(
    connection: Connection, new: PooledResponse, sums: PoolSums, *, total_surplus: int, limits: Limits
) -> list[PooledResponse]:
    """Deletes responses until `new` fits, and returns them. `sums`: a copy that counts `new`; it changes. `total_surplus`: the bytes that this transaction
    frees of all. Raises NoSpace."""
    space = _Space(connection, new, sums)
    for account in _accounts(new):
        surplus = sums.held[account] - _bytes_max(account, limits)
        if surplus > 0:
            space.free_account(account, surplus, limits)
    freed = sum(response.bytes for response in space.deleted)
    if total_surplus > freed:
        space.free_largest(total_surplus - freed, ahead=recount_bytes(limits), limits=limits)
    return space.deleted


class _Space:
    def __init__(self, connection: Connection, new: PooledResponse, sums: PoolSums) -> None:
        self._connection = connection
        self._new = new
        self._sums = sums
        self._protected_since_ms = new.created_ms - PROTECTED_MS
        self.deleted: list[PooledResponse] = []

    def free_account(self, account: Account, surplus: int, limits: Limits) -> None:
        """Frees space of an account that is at its maximum. The equal share is that of the payers of this provider."""
        unprotected, ahead = [self._new.payer], _bytes_max(account, limits) // AHEAD_PART
        if account.role == "provider":
            unprotected += self._find_unprotected(account)
        if self._delete_oldest(account, surplus, unprotected, ahead=ahead) < surplus:
            raise NoSpace

    def free_largest(self, surplus: int, *, ahead: int, limits: Limits) -> None:
        """Frees space of the accounts that hold most, one after the other, each down to the next one."""
        unprotected = [self._new.payer, *self._sums.find_unprotected()]
        before, goal = self._sums.total, surplus + ahead
        step = limits.responses_bytes_max // 1024
        heap = [(-held, self._sums.oldest_ms[it], it) for it, held in self._sums.held.items()]
        heapq.heapify(heap)
        searches = 0
        while heap:
            freed = before - self._sums.total
            if freed >= goal or (freed >= surplus and len(self.deleted) >= DELETE_BATCH_MAX):
                return
            counted, oldest_ms, account = heapq.heappop(heap)
            held = self._sums.held.get(account, 0)
            if held != -counted:  # smaller by now, with another account
                if held:
                    heapq.heappush(heap, (-held, oldest_ms, account))
                continue
            if searches >= SEARCHES_MAX and account.role == "provider":
                continue
            searches += 1
            next_held = -heap[0][0] if heap else 0
            amount = min(goal - freed, max(held - next_held, step, 1))
            if self._delete_oldest(account, amount, unprotected):
                heapq.heappush(heap, (-self._sums.held.get(account, 0), oldest_ms, account))
        if before - self._sums.total < surplus:
            raise NoSpace

    def _delete_oldest(
        self, account: Account, amount: int, unprotected: Collection[bytes], *, ahead: int = 0
    ) -> int:
        """Deletes the oldest responses of the account that are not protected, until `amount` bytes are free, and `ahead` further ones while the batch is
        small. Returns the freed bytes."""
        columns, wallet = stored_response_table.c, stored_response_table.c[account.role]
        query = (
            select(columns.call_id, columns.payer, columns.provider, columns.bytes, columns.created_ms)
            .where(wallet == account.wallet)
            .order_by(columns.created_ms, columns.call_id)
            .limit(PAGE)
            # Skips rows that another gateway has locked: it deletes them.
            .with_for_update(skip_locked=True)
        )
        if account.role == "provider":
            query = query.where(
                or_(columns.created_ms <= self._protected_since_ms, columns.payer.in_(unprotected))
            )
        elif account.wallet not in unprotected:
            query = query.where(columns.created_ms <= self._protected_since_ms)
        freed = 0
        while freed < amount or (freed < amount + ahead and len(self.deleted) < DELETE_BATCH_MAX):
            chosen: list[PooledResponse] = []
            for call_id, payer, provider, size, created_ms in self._connection.execute(query).all():
                if freed >= amount + ahead:
                    break
                chosen.append(PooledResponse(call_id, bytes(payer), bytes(provider), size, created_ms))
                freed += size
            if not chosen:
                break
            ids = [response.call_id for response in chosen]
            self._connection.execute(delete(stored_response_table).where(columns.call_id.in_(ids)))
            for response in chosen:
                self._sums.remove(response)
            self.deleted += chosen
        return freed

    def _find_unprotected(self, provider: Account) -> list[bytes]:
        """The payers that hold an equal share or more of this provider's responses, with the new one."""
        columns = stored_response_table.c
        size = cast(func.sum(columns.bytes), BigInteger)
        query = select(columns.payer, size).where(columns.provider == provider.wallet).group_by(columns.payer)
        held = {bytes(payer): size for payer, size in self._connection.execute(query)}
        held[self._new.payer] = held.get(self._new.payer, 0) + self._new.bytes
        share = sum(held.values()) // len(held)
        largest = heapq.nlargest(UNPROTECTED_MAX, ((size, payer) for payer, size in held.items()))
        return [payer for size, payer in largest if size >= share]


_ROLES: tuple[Literal["payer", "provider"], ...] = ("payer", "provider")


def _accounts(response: PooledResponse) -> tuple[Account, Account]:
    return Account("payer", response.payer), Account("provider", response.provider)


def _bytes_max(account: Account, limits: Limits) -> int:
    if account.role == "payer":
        return limits.responses_per_payer_bytes_max
    return limits.answers_per_provider_bytes_max
