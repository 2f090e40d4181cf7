"""Fills an empty, migrated database with the rows of `scale_rows`, as fast as it takes them: `executemany` into SQLite,
`COPY` into PostgreSQL, secondary indexes and triggers taken away first and made again from their own definitions.

Hours and days are closed as the gateway closes them: from the calls, by the same sums.

    python bench/scale_data.py sqlite:///big.sqlite3 --listings 1000000 --calls 10000000 --payments 1000000 --channels 100000
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import asyncpg
from scale_channels import CLAIM_COLUMNS, CLAIM_ROW_COLUMNS, Claims, channel_rows
from scale_rows import END_MS, START_MS, Scale, Spent, call_rows, listing, mix, payment_rows
from scale_standing import (
    DOCUMENT_COLUMNS,
    OWNERSHIP_COLUMNS,
    QUALITY_COLUMNS,
    document_row,
    ownership_row,
    quality_row,
)

from tollway.ledger.sales import DAY_MS, HOUR_MS, HOURS_KEPT_MS, STEP_MS, closable_until, floor_to
from tollway.registry.search_rank import weigh_words
from tollway.registry.search_tokens import fold
from tollway.storage.catalog.catalog_tables import is_shown, listing_table, listing_values, terms_values
from tollway.storage.catalog.catalog_words import list_spelled_words, spelling_rows
from tollway.storage.catalog.search_blocks import BLOCK_SIZE, format_bits, list_features, rate_feature
from tollway.storage.engine.database import connect_database, sqlite_module
from tollway.storage.engine.migrate import upgrade
from tollway.storage.ledger.call_terms import CallTerms, reference_of
from tollway.storage.ledger.ledger_tables import call_table, channel_table, payment_table
from tollway.storage.ledger.sales_tables import CALL_KEY, CALL_SUMS, KEY_COLUMNS, SALES_TABLES, SUM_COLUMNS

CHUNK = 5 * BLOCK_SIZE
LISTING_COLUMNS = tuple(column.name for column in listing_table.columns)
CALL_COLUMNS = tuple(column.name for column in call_table.columns)
PAYMENT_COLUMNS = tuple(column.name for column in payment_table.columns)
CHANNEL_COLUMNS = tuple(column.name for column in channel_table.columns)
TERMS_COLUMNS = [
    "listing_seq",
    "version",
    "price",
    "price_nano",
    "currency",
    "networks",
    "pay_to",
    "operations",
    "other_paths",
    "methods",
    "described",
    "charge_on",
    "status",
    "since_ms",
    "until_ms",
]
TOPUP_COLUMNS = ("call_id", "payment_id", "units")
LOADED = (
    "listing",
    "listing_terms",
    "listing_tag",
    "listing_network",
    "listing_quality",
    "listing_ownership",
    "listing_document",
    "listing_search",
    "search_block",
    "search_spelling",
    "listing_vector",
    "call_terms",
    "call",
    "call_topup",
    "payment",
    "channel",
    "channel_claim",
    "channel_claim_row",
    "sales_hour",
    "sales_day",
)
TOTALS = (
    "DELETE FROM call_total",
    "INSERT INTO call_total (wallet, role, slot, calls)"
    " SELECT provider, 'provider', 0, count(*) FROM call GROUP BY provider"
    " UNION ALL SELECT payer, 'payer', 0, count(*) FROM call WHERE payer IS NOT NULL GROUP BY payer",
    "INSERT INTO account_debt (payer, payee, asset, chain_id, units)"
    " SELECT c.payer, t.pay_to, t.asset, t.chain_id, CAST(sum(coalesce(c.actual_units, c.price_units) - c.taken_units"
    " - coalesce(h.units, 0)) AS BIGINT)"
    " FROM call c JOIN call_terms t ON t.id = c.terms_id"
    " LEFT JOIN (SELECT call_id, sum(units) AS units FROM call_topup GROUP BY call_id) h ON h.call_id = c.id"
    " WHERE c.state = 'reorged' AND c.channel_id IS NULL GROUP BY c.payer, t.pay_to, t.asset, t.chain_id",
    "UPDATE listing_total SET shown = (SELECT count(*) FROM listing WHERE is_shown),"
    " vector_changes = (SELECT max(change) FROM listing_vector)",
)

MARK = "INSERT INTO call_total (wallet, role, slot, calls) SELECT x'', 'mark', 0, max(rowid) FROM call"
"""On SQLite: up to there calls are counted."""

HOURS_UNTIL_MS = closable_until(END_MS) - HOUR_MS
"""The last hour that is due stays open, so that a round has one to close."""
DAYS_UNTIL_MS = floor_to(DAY_MS, END_MS - HOURS_KEPT_MS)

Rows = Iterable[tuple[Any, ...]]

_TERMS_OF, _COLUMNS_OF = itemgetter(*CallTerms._fields), itemgetter(*CALL_COLUMNS)
_NO_VALUES: dict[str, Any] = dict.fromkeys(CALL_COLUMNS)


class ListingRows:
    """The rows of every table about listings, chunk by chunk."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._spelled: set[str] = set()
        self._blocks: dict[tuple[str, int], int] = {}

    def chunks(self) -> Iterator[dict[str, list[tuple[Any, ...]]]]:
        for start in range(0, self._scale.listings + 1, CHUNK):
            rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in LISTING_TABLES}
            self._blocks.clear()
            for seq in range(max(1, start), min(start + CHUNK, self._scale.listings + 1)):
                self._add(rows, seq)
            rows["search_block"] += [
                (feature, block, format_bits(bits)) for (feature, block), bits in sorted(self._blocks.items())
            ]
            yield rows

    def _add(self, rows: dict[str, list[tuple[Any, ...]]], seq: int) -> None:
        one = listing(self._scale, seq)
        values = {**listing_values(one), "seq": seq, "auth_sealed": None, "forward_sealed": None}
        rows["listing"].append(tuple(values[name] for name in LISTING_COLUMNS))
        terms = {**terms_values(one.current_terms(since_ms=one.created_ms)), "listing_seq": seq, "version": 1}
        rows["listing_terms"].append(tuple(terms[name] for name in TERMS_COLUMNS))
        known = {
            "listing_quality": quality_row(self._scale, seq),
            "listing_ownership": ownership_row(self._scale, seq, one),
            "listing_document": document_row(seq),
        }
        for table, row in known.items():
            if row is not None:
                rows[table].append(row)
        block, place = divmod(seq, BLOCK_SIZE)
        if known["listing_quality"] is not None:
            success_ppm = dict(zip(QUALITY_COLUMNS, known["listing_quality"], strict=True))["success_ppm"]
            feature = rate_feature(success_ppm)
            self._blocks[feature, block] = self._blocks.get((feature, block), 0) | 1 << place
        if not is_shown(one):
            return
        tags = sorted({fold(tag) for tag in one.tags})
        rows["listing_tag"] += [(tag, seq) for tag in tags]
        rows["listing_network"] += [(chain_id, seq) for chain_id in one.networks]
        rows["listing_vector"].append((seq, random_vector(self._scale, seq), seq))
        weights = weigh_words(one)
        rows["listing_search"].append((seq, weights))
        for feature in list_features(weights, tags=tags, networks=one.networks, currency=one.currency):
            self._blocks[feature, block] = self._blocks.get((feature, block), 0) | 1 << place
        new = [word for word in list_spelled_words(one) if word not in self._spelled]
        self._spelled.update(new)
        rows["search_spelling"] += spelling_rows(new)


def random_vector(scale: Scale, seq: int) -> bytes:
    """In place of the vector of the listing's texts, which would take half an hour for a million."""
    return b"".join(mix(scale.seed + 10 + part, seq).to_bytes(8, "little") for part in range(4))


class LedgerRows:
    """The rows of calls, of their terms, of their top-ups, and of payments, after the taken units are known."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._terms: dict[CallTerms, dict[str, int]] = {}
        self._spent = Spent.none(scale)
        self.topups: list[tuple[Any, ...]] = []

    def calls(self) -> Iterator[tuple[Any, ...]]:
        for row, topup in call_rows(self._scale, self._spent):
            if topup is not None:
                self.topups.append(topup)
            terms = CallTerms(*_TERMS_OF(row))
            reference = self._terms.get(terms)
            if reference is None:
                reference = self._terms[terms] = reference_of(terms)._asdict()
            yield _COLUMNS_OF(_NO_VALUES | row | reference)

    def terms(self) -> Iterator[tuple[Any, ...]]:
        for terms, reference in self._terms.items():
            yield reference["terms_id"], *terms

    def payments(self) -> Iterator[tuple[Any, ...]]:
        for row in payment_rows(self._scale, self._spent):
            yield tuple(row[name] for name in PAYMENT_COLUMNS)

    def channels(self) -> Iterator[dict[str, list[tuple[Any, ...]]]]:
        """The rows of channels by table, chunk by chunk; the claims come last."""
        claims, every = Claims(self._scale), channel_rows(self._scale, self._spent)
        while chunk := list(islice(every, CHUNK)):
            for one in chunk:
                claims.add(one)
            yield {
                "payment": [tuple(one.payment[name] for name in PAYMENT_COLUMNS) for one in chunk],
                "channel": [tuple(one.channel[name] for name in CHANNEL_COLUMNS) for one in chunk],
            }
        claims.finish()
        yield {"channel_claim": claims.claims, "channel_claim_row": claims.rows}


CHANNEL_TABLES: dict[str, Iterable[str]] = {
    "payment": PAYMENT_COLUMNS,
    "channel": CHANNEL_COLUMNS,
    "channel_claim": CLAIM_COLUMNS,
    "channel_claim_row": CLAIM_ROW_COLUMNS,
}


def write_closing() -> Iterator[str]:
    """The statements that close the hours and days of all calls."""
    first_ms, days_ms = floor_to(HOUR_MS, START_MS), DAYS_UNTIL_MS
    ranges = (("day", 0, days_ms, floor_to(DAY_MS, first_ms)), ("hour", days_ms, HOURS_UNTIL_MS, days_ms))
    for step, from_ms, until_ms, start_ms in ranges:
        step_ms = STEP_MS[step]
        start = f"c.created_ms / {step_ms} * {step_ms} AS start_ms"
        yield (
            f"INSERT INTO {SALES_TABLES[step].name} ({', '.join((*KEY_COLUMNS, *SUM_COLUMNS))})"
            f" SELECT c.provider AS provider, {start}, t.listing_id AS listing_id, {CALL_KEY}, {CALL_SUMS}"
            f" FROM call c JOIN call_terms t ON t.id = c.terms_id"
            f" WHERE c.created_ms >= {from_ms} AND c.created_ms < {until_ms} GROUP BY 1, 2, 3, 4, 5, 6, 7, 8"
        )
        starts = [f"('{step}', {at_ms}, 1, {END_MS})" for at_ms in range(start_ms, until_ms, step_ms)]
        yield f"INSERT INTO sales_closed (step, start_ms, version, written_ms) VALUES {', '.join(starts)}"


def chunked(rows: Rows) -> Iterator[list[tuple[Any, ...]]]:
    every = iter(rows)
    while chunk := list(islice(every, CHUNK)):
        yield chunk


def fill_sqlite(path: Path, scale: Scale, tell: Callable[[str], None]) -> None:
    connection = sqlite_module.connect(str(path), isolation_level=None)
    run = connection.execute
    for pragma in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-1000000", "foreign_keys=OFF"):
        run(f"PRAGMA {pragma}")
    later = run(
        "SELECT type, name, sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL"
        f" AND tbl_name IN {LOADED}"
    ).fetchall()
    for kind, name, _ in later:
        run(f"DROP {kind} {name}")

    def insert(table: str, columns: Iterable[str], rows: Rows) -> None:
        names = list(columns)
        marks = ", ".join("?" * len(names))
        for chunk in chunked(rows):
            run("BEGIN")
            connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", chunk)
            run("COMMIT")

    for rows in ListingRows(scale).chunks():
        for table, columns in LISTING_TABLES.items():
            insert(table, columns, rows[table])
    tell("listings")
    ledger_rows = LedgerRows(scale)
    insert("call", CALL_COLUMNS, ledger_rows.calls())
    insert("call_terms", ("id", *CallTerms._fields), ledger_rows.terms())
    insert("call_topup", TOPUP_COLUMNS, ledger_rows.topups)
    insert("payment", PAYMENT_COLUMNS, ledger_rows.payments())
    for rows in ledger_rows.channels():
        for table in rows:
            insert(table, CHANNEL_TABLES[table], rows[table])
    tell("calls, payments and channels")
    for sql in write_closing():
        run(sql)
    tell("closed periods")
    for _, _, sql in later:
        run(sql)
    for sql in (*TOTALS, MARK):
        run(sql)
    run("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    tell("indexes")


LISTING_TABLES: dict[str, Iterable[str]] = {
    "listing": LISTING_COLUMNS,
    "listing_terms": TERMS_COLUMNS,
    "listing_tag": ("tag", "listing_seq"),
    "listing_network": ("chain_id", "listing_seq"),
    "listing_quality": QUALITY_COLUMNS,
    "listing_ownership": OWNERSHIP_COLUMNS,
    "listing_document": DOCUMENT_COLUMNS,
    "search_spelling": ("spelling", "word"),
    "listing_search": ("listing_seq", "weights"),
    "search_block": ("feature", "block", "listings"),
    "listing_vector": ("listing_seq", "bits", "change"),
}


async def fill_postgres(url: str, scale: Scale, tell: Callable[[str], None]) -> None:
    connection = await asyncpg.connect(url)
    run = connection.execute
    # Foreign keys and triggers rest, for this session alone.
    await run("SET session_replication_role = replica")
    await run("SET maintenance_work_mem = '1GB'")
    later = await connection.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY($1::text[]) AND NOT EXISTS"
        " (SELECT FROM pg_constraint WHERE conname = indexname)",
        LOADED,
    )
    for row in later:
        await run(f"DROP INDEX {row['indexname']}")

    async def copy(table: str, columns: Iterable[str], rows: Rows) -> None:
        await connection.copy_records_to_table(table, columns=list(columns), records=rows)

    for rows in ListingRows(scale).chunks():
        for table, columns in LISTING_TABLES.items():
            await copy(table, columns, rows[table])
    tell("listings")
    ledger_rows = LedgerRows(scale)
    for chunk in chunked(ledger_rows.calls()):
        await copy("call", CALL_COLUMNS, chunk)
    await copy("call_terms", ("id", *CallTerms._fields), ledger_rows.terms())
    await copy("call_topup", TOPUP_COLUMNS, ledger_rows.topups)
    await copy("payment", PAYMENT_COLUMNS, ledger_rows.payments())
    for rows in ledger_rows.channels():
        for table in rows:
            await copy(table, CHANNEL_TABLES[table], rows[table])
    tell("calls, payments and channels")
    await run("ANALYZE call")  # so that the sums are not planned for a few rows
    for sql in write_closing():
        await run(sql)
    tell("closed periods")
    for row in later:
        await run(row["indexdef"])
    for sql in (
        *TOTALS,
        "SELECT setval(pg_get_serial_sequence('listing', 'seq'), (SELECT max(seq) FROM listing))",
        "SELECT setval(pg_get_serial_sequence('payment', 'id'), (SELECT max(id) FROM payment))",
        "SELECT setval(pg_get_serial_sequence('channel', 'key'), (SELECT greatest(max(key), 1) FROM channel))",
        "VACUUM ANALYZE",  # as autovacuum has done when tables are that large
    ):
        await run(sql)
    await connection.close()
    tell("indexes")


async def fill(url: str, scale: Scale, tell: Callable[[str], None] = lambda step: None) -> None:
    """Migrates the database at `url` and fills it."""
    database = connect_database(url)
    await database.open()
    await upgrade(database)
    await database.close()
    if url.startswith("sqlite"):
        await asyncio.to_thread(fill_sqlite, Path(url.removeprefix("sqlite:///")), scale, tell)
    else:
        await fill_postgres(url, scale, tell)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="sqlite:///file or postgresql://…, an empty database")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--listings", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--payments", type=int, default=1_000_000, help="even")
    parser.add_argument("--channels", type=int, default=100_000)
    options = parser.parse_args()
    if options.payments % 2:
        sys.exit("payments come in pairs: give an even number")
    scale = Scale(
        seed=options.seed,
        listings=options.listings,
        calls=options.calls,
        payments=options.payments,
        channels=options.channels,
    )
    began = time.monotonic()

    def tell(step: str) -> None:
        print(json.dumps({"step": step, "seconds": round(time.monotonic() - began, 1)}), flush=True)

    asyncio.run(fill(options.url, scale, tell))


if __name__ == "__main__":
    main()
