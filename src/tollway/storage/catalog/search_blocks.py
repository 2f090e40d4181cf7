"""The index of the search: which visible listings have which feature, in blocks of `BLOCK_SIZE` listings.

A feature is the stem of a word, a tag, a network, a currency, or a step of the success rate. A row has the listings of one block with one feature, as bits: block and
place are the listing's row number, divided by `BLOCK_SIZE`. Features of the success rate have listings that are not visible, too. A search reads the blocks of its features from the newest on, and joins them here, the same on both databases.
Of a frequent word it reads some blocks; of words that are rare, or rarely in one listing, at most a row for each feature and block of the catalog.

Call `change_features` after the transaction has written `listing_total`: the lock on its row orders the writers of one block.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice, product

from sqlalchemy import Connection, and_, bindparam, delete, func, select

from tollway.ids import ChainId
from tollway.registry.search_rank import list_stems
from tollway.storage.catalog.catalog_tables import block_table, listing_table
from tollway.storage.engine.statements import Prepared, Within, insert_for

BLOCK_SIZE = 4_096
_BITS_BYTES = BLOCK_SIZE // 8
NUMBERED_MAX = 32
"""A block with at most this number of listings is stored as their places, two bytes each."""
_WINDOW_MIN, _WINDOW_MAX = 16, 256
"""How many blocks the first read of a search has, and the largest one. Each read has twice as many as the one before."""

Bits = int
"""The listings of one block: bit n is set for the listing at place n."""


# ---- Features.


def tag_feature(tag: str) -> str:
    """`tag`: folded. A feature that is no stem has a colon, which no stem has."""
    return f"tag:{tag}"


def network_feature(chain_id: ChainId | int) -> str:
    return f"network:{chain_id}"


def currency_feature(currency: str) -> str:
    return f"currency:{currency}"


RATE_STEP_PPM = 50_000


def rate_feature(success_ppm: int) -> str:
    return f"rate:{success_ppm // RATE_STEP_PPM}"


def list_rate_features(least_ppm: int) -> tuple[tuple[str, ...], bool]:
    """The features of the listings with at least this success rate, and whether they have no other listings."""
    steps = range(least_ppm // RATE_STEP_PPM, 1_000_000 // RATE_STEP_PPM + 1)
    return tuple(f"rate:{step}" for step in steps), least_ppm % RATE_STEP_PPM == 0


def list_features(weights: str, *, tags: Iterable[str], networks: Iterable[int], currency: str) -> set[str]:
    return {
        *list_stems(weights),
        *map(tag_feature, tags),
        *map(network_feature, networks),
        currency_feature(currency),
    }


# ---- One block.


def parse_bits(stored: bytes) -> Bits:
    if len(stored) == _BITS_BYTES:
        return int.from_bytes(stored, "little")
    bits = 0
    for place in struct.unpack(f"<{len(stored) // 2}H", stored):
        bits |= 1 << place
    return bits


def format_bits(bits: Bits) -> bytes:
    if bits.bit_count() > NUMBERED_MAX:
        return bits.to_bytes(_BITS_BYTES, "little")
    places = sorted(list_places(bits))
    return struct.pack(f"<{len(places)}H", *places)


def list_places(bits: Bits) -> Iterator[int]:
    """The highest first."""
    text = f"{bits:b}"  # ten times as fast as arithmetic
    at = text.find("1")
    while at >= 0:
        yield len(text) - 1 - at
        at = text.find("1", at + 1)


def collect_blocks(seqs: Iterable[int]) -> dict[int, Bits]:
    """The listings with these row numbers, by block."""
    blocks: dict[int, Bits] = {}
    for seq in seqs:
        block, place = divmod(seq, BLOCK_SIZE)
        blocks[block] = blocks.get(block, 0) | 1 << place
    return blocks


def list_newest(blocks: Iterable[tuple[int, Bits]], *, skip: int = 0) -> Iterator[int]:
    """The row numbers of the listings of blocks, newest first, without the first `skip`. `blocks`: the newest first."""
    for block, bits in blocks:
        count = bits.bit_count()
        if count > skip:
            yield from (block * BLOCK_SIZE + place for place in islice(list_places(bits), skip, None))
        skip = max(0, skip - count)


# ---- Reading.

_FOUND = select(block_table.c.feature, block_table.c.block, block_table.c.listings).where(
    Within(block_table.c.feature, "features")
)
_ROWS = Prepared(_FOUND.where(Within(block_table.c.block, "blocks")))
_WINDOW_ROWS = Prepared(
    _FOUND.where(block_table.c.block >= bindparam("first"), block_table.c.block < bindparam("end"))
)


class FeatureBlocks:
    """The rows of the index that one search reads, each once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.windows = list(_list_windows(connection.scalar(select(func.max(listing_table.c.seq))) or 0))
        """All blocks of the catalog, the newest first."""
        self._listings: dict[tuple[str, int], Bits] = {}
        self._whole: set[tuple[str, range]] = set()

    def read(self, features: Collection[str], window: range, blocks: Collection[int] | None = None) -> None:
        """Reads ahead, for `select`. `blocks`: of the window; None for all of them."""
        known = self._listings
        missing = [
            feature
            for feature in features
            if (feature, window) not in self._whole
            and (blocks is None or any((feature, block) not in known for block in blocks))
        ]
        if not missing:
            return
        if blocks is None:
            rows = _WINDOW_ROWS.fetch(self._connection, features=missing, first=window.start, end=window.stop)
            self._whole.update((feature, window) for feature in missing)
        else:
            rows = _ROWS.fetch(self._connection, features=missing, blocks=list(blocks))
            known.update(dict.fromkeys(product(missing, blocks), 0))
        known.update(((feature, block), parse_bits(stored)) for feature, block, stored in rows)

    def select(
        self, features: Collection[str], window: range, blocks: Collection[int] | None = None
    ) -> dict[int, Bits]:
        """The listings with some of the features, by block."""
        self.read(features, window, blocks)
        listings = (
            (block, self._listings.get((feature, block), 0))
            for feature in features
            for block in (window if blocks is None else blocks)
        )
        found: dict[int, Bits] = {}
        for block, bits in listings:
            if bits:
                found[block] = found.get(block, 0) | bits
        return found


def _list_windows(last_seq: int) -> Iterator[range]:
    end, size = last_seq // BLOCK_SIZE + 1, _WINDOW_MIN
    while end > 0:
        yield range(max(0, end - size), end)
        end, size = end - size, min(2 * size, _WINDOW_MAX)


# ---- Writing.

_ROWS_OF_BLOCK = Prepared(
    select(block_table.c.feature, block_table.c.listings).where(
        Within(block_table.c.feature, "features"), block_table.c.block == bindparam("block_number")
    )
)
_HELD = Prepared(select(block_table.c.feature).where(Within(block_table.c.feature, "features")).distinct())
_EMPTY_ROWS = delete(block_table).where(
    and_(block_table.c.feature == bindparam("of_feature"), block_table.c.block == bindparam("of_block"))
)


def change_features(
    connection: Connection, seq: int, *, before: Collection[str], after: Collection[str]
) -> list[str]:
    """Sets the features of a listing. Returns those that no listing has any more."""
    block, place = divmod(seq, BLOCK_SIZE)
    changed = sorted(set(before) ^ set(after))
    if not changed:
        return []
    rows = _ROWS_OF_BLOCK.fetch(connection, features=changed, block_number=block)
    stored = {feature: parse_bits(listings) for feature, listings in rows}
    bits = {feature: stored.get(feature, 0) & ~(1 << place) for feature in changed}
    bits |= {feature: bits[feature] | 1 << place for feature in changed if feature in after}
    _write_rows(connection, block, {feature: one for feature, one in bits.items() if one})
    empty = [feature for feature, one in bits.items() if not one]
    if not empty:
        return []
    connection.execute(_EMPTY_ROWS, [{"of_feature": feature, "of_block": block} for feature in empty])
    held = {row[0] for row in _HELD.fetch(connection, features=empty)}
    return [feature for feature in empty if feature not in held]


def _write_rows(connection: Connection, block: int, bits: Mapping[str, Bits]) -> None:
    if not bits:
        return
    statement = insert_for(connection, block_table)
    statement = statement.on_conflict_do_update(
        index_elements=["feature", "block"], set_={"listings": statement.excluded.listings}
    )
    rows = [
        {"feature": feature, "block": block, "listings": format_bits(one)} for feature, one in bits.items()
    ]
    connection.execute(statement, rows)
