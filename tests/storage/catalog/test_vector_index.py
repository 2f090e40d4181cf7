"""The vectors of a catalog in memory: what is near is found, what was removed is not."""

import numpy as np
import pytest

from tollway.registry.meaning import PROPOSED_MAX, SIMILARITY_MIN
from tollway.registry.word_vectors import DIMENSIONS, Vector, to_bits
from tollway.storage.catalog.vector_index import VectorIndex


def draw_vectors(count: int, seed: int = 1) -> list[Vector]:
    drawn = np.random.default_rng(seed).standard_normal((count, DIMENSIONS), np.float32)
    return [row / np.linalg.norm(row) for row in drawn]


def find(index: VectorIndex, vector: Vector) -> list[int]:
    return [one.seq for one in index.find_nearest(vector)]


@pytest.fixture(params=[65_536, 8], ids=["one block", "many blocks"])
def index(request: pytest.FixtureRequest) -> VectorIndex:
    return VectorIndex(block_size=request.param)


def test_an_empty_index_finds_nothing(index: VectorIndex) -> None:
    assert find(index, draw_vectors(1)[0]) == []


def test_each_vector_finds_its_listing_first(index: VectorIndex) -> None:
    vectors = draw_vectors(50)
    index.replace({seq: to_bits(vector) for seq, vector in enumerate(vectors, 1)})
    assert [find(index, vector)[0] for vector in vectors] == list(range(1, 51))


def test_what_is_not_similar_enough_is_not_found(index: VectorIndex) -> None:
    vector, other = draw_vectors(2)
    index.replace({1: to_bits(-vector), 2: to_bits(other)})
    assert find(index, vector) == []
    similar = vector + other
    found = index.find_nearest(similar / np.linalg.norm(similar))
    assert [one.seq for one in found] == [2]
    assert found[0].similarity >= SIMILARITY_MIN


def test_a_listing_is_as_near_as_its_nearest_vector_and_found_once(index: VectorIndex) -> None:
    vectors = draw_vectors(6)
    index.replace({1: b"".join(map(to_bits, vectors)), 2: to_bits(draw_vectors(1, seed=2)[0])})
    assert len(index) == 7
    assert [find(index, vector) for vector in vectors] == [[1]] * 6


def test_a_replaced_listing_is_found_by_its_new_vectors_alone(index: VectorIndex) -> None:
    old, new, kept = draw_vectors(3)
    index.replace({1: to_bits(old), 2: to_bits(kept)})
    index.replace({1: to_bits(new)})
    assert (find(index, old), find(index, new), find(index, kept)) == ([], [1], [2])
    assert len(index) == 2


def test_a_removed_listing_is_not_found_and_leaves_its_place(index: VectorIndex) -> None:
    vectors = draw_vectors(16)
    index.replace({seq: to_bits(vector) for seq, vector in enumerate(vectors, 1)})
    size = len(index._blocks)
    index.replace(dict.fromkeys(range(1, 9), b""))
    assert len(index) == 8
    assert [find(index, vector) for vector in vectors[:8]] == [[]] * 8
    index.replace({seq + 100: to_bits(vector) for seq, vector in enumerate(vectors[:8], 1)})
    assert [find(index, vector) for vector in vectors[:8]] == [[seq] for seq in range(101, 109)]
    assert len(index._blocks) == size


def test_a_listing_that_is_unknown_can_be_removed(index: VectorIndex) -> None:
    index.replace({7: b""})
    assert len(index) == 0


def test_one_text_a_thousand_times_is_proposed_a_bounded_number_of_times(index: VectorIndex) -> None:
    vector = draw_vectors(1)[0]
    index.replace({seq: to_bits(vector) for seq in range(1, 1_001)})
    found = find(index, vector)
    assert len(found) == PROPOSED_MAX
    assert found == sorted(found, reverse=True)  # of equal ones the newest
