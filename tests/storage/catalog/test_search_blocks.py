"""The blocks of the index of the search: their form, and how they are read and written, over SQLite in memory."""

import pytest
from sqlalchemy import Connection, select

from tests.kit.listings import PROVIDER, sample_listing
from tests.kit.stores import InlineDatabase
from tollway.storage.catalog.catalog_tables import block_table, listing_table, listing_values
from tollway.storage.catalog.search_blocks import (
    BLOCK_SIZE,
    NUMBERED_MAX,
    FeatureBlocks,
    change_features,
    collect_blocks,
    format_bits,
    list_newest,
    parse_bits,
)

SETS: list[tuple[str, list[int], int]] = [
    ("the first place", [0], 2),
    ("the last place", [BLOCK_SIZE - 1], 2),
    ("as many as are stored by number", list(range(7, 7 + NUMBERED_MAX)), 2 * NUMBERED_MAX),
    ("more of them", list(range(7, 8 + NUMBERED_MAX)), BLOCK_SIZE // 8),
    ("all", list(range(BLOCK_SIZE)), BLOCK_SIZE // 8),
]


@pytest.mark.parametrize(("places", "size"), [one[1:] for one in SETS], ids=[one[0] for one in SETS])
def test_a_block_is_stored_as_numbers_or_as_bits(places: list[int], size: int) -> None:
    bits = collect_blocks(places)[0]
    stored = format_bits(bits)
    assert (len(stored), parse_bits(stored)) == (size, bits)
    assert list(list_newest([(0, bits)])) == places[::-1]


def test_listings_are_listed_newest_first_across_blocks() -> None:
    seqs = [3, 5, BLOCK_SIZE - 1, BLOCK_SIZE, 4 * BLOCK_SIZE + 9]
    blocks = sorted(collect_blocks(seqs).items(), reverse=True)
    for skip in range(len(seqs) + 2):
        assert list(list_newest(blocks, skip=skip)) == seqs[::-1][skip:]


@pytest.fixture
def database() -> InlineDatabase:
    return InlineDatabase()


def insert_last(connection: Connection, seq: int) -> None:
    """A listing with this row number, so that the catalog ends there."""
    values = listing_values(sample_listing(provider=PROVIDER))
    connection.execute(listing_table.insert().values(**values, seq=seq))


async def test_every_block_is_read_once_and_the_newest_first(database: InlineDatabase) -> None:
    seqs = [1, 20 * BLOCK_SIZE + 1, 300 * BLOCK_SIZE + 7]

    def work(connection: Connection) -> None:
        insert_last(connection, seqs[-1])
        for seq in seqs:
            change_features(connection, seq, before=(), after=["often"])
        change_features(connection, 2, before=(), after=["rare"])
        blocks = FeatureBlocks(connection)
        assert [block for window in blocks.windows for block in reversed(window)] == list(range(300, -1, -1))
        newest, *_ = blocks.windows
        assert blocks.select(["often"], newest) == {300: 1 << 7}
        everywhere = [blocks.select(["often", "rare"], window) for window in blocks.windows]
        assert {block: bits for found in everywhere for block, bits in found.items()} == {
            300: 1 << 7,
            20: 1 << 1,
            0: 1 << 1 | 1 << 2,
        }
        assert blocks.select(["seldom"], newest, [299]) == {}
        connection.execute(block_table.delete())
        assert [blocks.select(["often", "rare"], window) for window in blocks.windows] == everywhere
        assert blocks.select(["seldom"], newest, [299]) == {}
        assert blocks.select(["seldom"], newest, [299, 300]) == {}

    await database.write(work)


async def test_a_feature_without_a_listing_has_no_row(database: InlineDatabase) -> None:
    def work(connection: Connection) -> None:
        assert change_features(connection, 1, before=(), after=["a", "b"]) == []
        assert change_features(connection, BLOCK_SIZE, before=(), after=["a"]) == []
        assert change_features(connection, 1, before=["a", "b"], after=["c"]) == ["b"]
        rows = connection.execute(select(block_table.c.feature, block_table.c.block)).all()
        assert sorted(map(tuple, rows)) == [("a", 1), ("c", 0)]
        assert change_features(connection, 1, before=["c"], after=["c"]) == []

    await database.write(work)
