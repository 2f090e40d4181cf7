"""The stored vectors of listings, for search by meaning: marks what is to be embedded, stores vectors, and reads those that changed.

A write of a listing marks it as due, in its transaction, on every gateway. The numbers of changes are drawn under the lock of one row, which is held until the commit:
a gateway that has read a number has read every lower one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, bindparam, select, update

from tollway.registry.listing import Listing
from tollway.storage.catalog.catalog_tables import (
    document_table,
    listing_vector_table,
    read_document,
    read_listings,
    total_table,
)

EMBEDDED_AT_ONCE = 20
"""Listings that one transaction embeds. It is small, because the thread that embeds takes time from the event loop."""
READ_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DueListing:
    """A listing that is to be embedded, by its row number. `document`: the text of its OpenAPI document."""

    seq: int
    revision: int
    listing: Listing
    document: str | None

    def parse_document(self) -> Listing:
        """The listing with its document, which takes time for a long one."""
        return replace(self.listing, openapi=read_document(self.document))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedVectors:
    """The vectors of some listings by row number, and the number of the last change among them."""

    bits: Mapping[int, bytes]
    change: int


def mark_vectors(connection: Connection, seq: int, *, revision: int, is_shown: bool) -> None:
    """Marks the listing as due; removes its vectors when it is not visible. In the transaction that writes the listing, after its row of `listing_total`."""
    table = listing_vector_table
    values: dict[str, object] = {"due_revision": revision}
    if not is_shown:
        values = {"due_revision": None, "bits": b"", "change": _take_changes(connection, 1)}
    marked = connection.execute(update(table).where(table.c.listing_seq == seq).values(values))
    if marked.rowcount == 0 and is_shown:
        connection.execute(table.insert().values(listing_seq=seq, bits=b"", change=0, due_revision=revision))


def read_due(connection: Connection) -> list[DueListing]:
    due, document = listing_vector_table.c, document_table.c
    statement = (
        select(due.listing_seq, due.due_revision, document.openapi)
        .select_from(listing_vector_table.outerjoin(document_table, document.listing_seq == due.listing_seq))
        .where(due.due_revision.is_not(None))
        .order_by(due.listing_seq)
        .limit(EMBEDDED_AT_ONCE)
    )
    rows = connection.execute(statement).all()
    listings = read_listings(connection, [row.listing_seq for row in rows])
    return [
        DueListing(
            seq=row.listing_seq,
            revision=row.due_revision,
            listing=listings[row.listing_seq][0],
            document=row.openapi,
        )
        for row in rows
    ]


_WRITE_BITS = (
    update(listing_vector_table)
    .where(
        listing_vector_table.c.listing_seq == bindparam("of_seq"),
        # An edit since the read has marked another revision.
        listing_vector_table.c.due_revision == bindparam("of_revision"),
    )
    .values(bits=bindparam("new_bits"), change=bindparam("new_change"), due_revision=None)
)


def write_vectors(connection: Connection, embedded: Sequence[tuple[DueListing, bytes]]) -> None:
    """Stores the vectors of each listing that has not been edited since `read_due`."""
    first = _take_changes(connection, len(embedded))
    rows = [
        {"of_seq": due.seq, "of_revision": due.revision, "new_bits": bits, "new_change": first + place}
        for place, (due, bits) in enumerate(embedded)
    ]
    connection.execute(_WRITE_BITS, rows)


def read_changes(connection: Connection, *, since: int) -> ChangedVectors | None:
    """The vectors that changed after change `since`, the oldest changes first, at most `READ_AT_ONCE`. None: there are no later ones."""
    changed = listing_vector_table.c
    statement = (
        select(changed.listing_seq, changed.bits, changed.change)
        .where(changed.change > since)
        .order_by(changed.change)
        .limit(READ_AT_ONCE)
    )
    rows = connection.execute(statement).all()
    if not rows:
        return None
    return ChangedVectors(bits={row.listing_seq: bytes(row.bits) for row in rows}, change=rows[-1].change)


def _take_changes(connection: Connection, count: int) -> int:
    """The first of so many new numbers of changes. The row stays locked until the commit."""
    total = total_table.c.vector_changes
    last = connection.scalar(update(total_table).values(vector_changes=total + count).returning(total))
    assert last is not None
    return int(last) - count + 1
