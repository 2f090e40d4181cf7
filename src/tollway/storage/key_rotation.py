"""Which key each encrypted value is sealed with, and sealing it again with the key in use. For a change of the key while
gateways serve: small steps, each a transaction of its own, that wait for no row lock and change nothing but the sealed value.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Connection, Select, select, update

from tollway.storage.catalog_store import secret_label
from tollway.storage.catalog_tables import listing_table
from tollway.storage.database import Database
from tollway.storage.encryption import SealAge, Sealer
from tollway.storage.idempotency import answer_table, response_label

LOST_NAMED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncryptedColumn:
    """A column of sealed values. `page_size`: how many are taken out at once."""

    key: Column[Any]
    sealed: Column[Any]
    more: Sequence[Column[Any]] = ()
    label: Callable[[Any], bytes]
    page_size: int


_SECRETS = _EncryptedColumn(
    key=listing_table.c.id,
    sealed=listing_table.c.auth_sealed,
    more=(listing_table.c.auth_location, listing_table.c.auth_name),
    label=lambda row: secret_label(row.key, row.auth_location, row.auth_name),
    page_size=100,
)
_ANSWERS = _EncryptedColumn(
    key=answer_table.c.call_id,
    sealed=answer_table.c.sealed,
    label=lambda row: response_label(row.key),
    page_size=16,  # of 256 KiB each
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealCount:
    """How many stand under the key in use, under an older one, and under none that is known; the ids of some of these."""

    current: int = 0
    older: int = 0
    lost: int = 0
    lost_ids: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSurvey:
    """`secrets`: of listings. `answers`: stored for repeats."""

    secrets: SealCount
    answers: SealCount

    @property
    def older(self) -> int:
        return self.secrets.older + self.answers.older


class KeyRotation:
    """Over the tables of one database. Several may work at once."""

    def __init__(self, database: Database, *, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def survey(self, *, answers_max: int | None = None) -> SealSurvey:
        """Opens everything once. `answers_max`: of the stored answers no more than about so many."""
        secrets = await self._count(_SECRETS, None)
        return SealSurvey(secrets=secrets, answers=await self._count(_ANSWERS, answers_max))

    async def reseal(self) -> int:
        """How many were sealed anew. What a gateway was busy with is left; a survey finds it."""
        resealed = 0
        for column in (_SECRETS, _ANSWERS):
            async for rows in self._read_pages(column):
                older = [row.key for row in rows if self._find_age(column, row) is SealAge.OLDER]
                if older:
                    resealed += await self._database.write(_Reseal(column, older, self._sealer))
        return resealed

    async def _count(self, column: _EncryptedColumn, at_most: int | None) -> SealCount:
        ages: Counter[SealAge] = Counter()
        lost_ids: list[str] = []
        async for rows in self._read_pages(column):
            for row in rows:
                age = self._find_age(column, row)
                ages[age] += 1
                if age is SealAge.LOST and len(lost_ids) < LOST_NAMED_MAX:
                    lost_ids.append(row.key)
            if at_most is not None and ages.total() >= at_most:
                break
        return SealCount(
            current=ages[SealAge.CURRENT],
            older=ages[SealAge.OLDER],
            lost=ages[SealAge.LOST],
            lost_ids=tuple(lost_ids),
        )

    async def _read_pages(self, column: _EncryptedColumn) -> AsyncIterator[Sequence[Any]]:
        """All of it, a few at a time, in the order of their keys."""
        last = ""
        while True:
            rows = await self._database.read(_Page(column, after=last))
            if rows:
                yield rows
            if len(rows) < column.page_size:
                return
            last = rows[-1].key

    def _find_age(self, column: _EncryptedColumn, row: Any) -> SealAge:
        return self._sealer.find_age(bytes(row.sealed), label=column.label(row))


@dataclass(frozen=True, slots=True)
class _Page:
    column: _EncryptedColumn
    after: str

    def __call__(self, connection: Connection) -> Sequence[Any]:
        column = self.column
        query = _select(column).where(column.sealed.is_not(None), column.key > self.after)
        return connection.execute(query.order_by(column.key).limit(column.page_size)).all()


@dataclass(frozen=True, slots=True)
class _Reseal:
    """The work of one step. It waits for no row that somebody is busy with, so it stands in nobody's way for long, and
    looks at each row again: its provider may have set another secret since."""

    column: _EncryptedColumn
    keys: Sequence[str]
    sealer: Sealer

    def __call__(self, connection: Connection) -> int:
        column, sealer = self.column, self.sealer
        query = _select(column).where(column.sealed.is_not(None), column.key.in_(self.keys))
        resealed = 0
        for row in connection.execute(query.with_for_update(skip_locked=True)).all():
            sealed, label = bytes(row.sealed), column.label(row)
            if sealer.find_age(sealed, label=label) is not SealAge.OLDER:
                continue
            fresh = sealer.seal(sealer.open(sealed, label=label), label=label)
            change = update(column.key.table).where(column.key == row.key).values({column.sealed: fresh})
            resealed += connection.execute(change).rowcount
        return resealed


def _select(column: _EncryptedColumn) -> Select[Any]:
    return select(column.key.label("key"), column.sealed.label("sealed"), *column.more)
