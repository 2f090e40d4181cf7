"""The vectors of all listings of a catalog, in the memory of a gateway: 36 bytes each. A search reads all of them, four milliseconds for a million.

First the number of different bits selects some hundred vectors, then the numbers of the query order those. Blocks of a fixed size: the index grows without a copy.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tollway.registry.meaning import PROPOSED_MAX, SIMILARITY_MIN, Proposed
from tollway.registry.word_vectors import BYTES, DIMENSIONS, Vector, to_bits

BLOCK_SIZE = 65_536
NEAREST = 400
"""How many of the nearest vectors by bits are ordered by similarity."""

DIFFERING_MAX = 128
"""A vector with more different bits has no similarity."""

_COLUMNS = BYTES // 8
_FREE = -1


class _Block:
    """`bits`: one row for each eighth byte, so that a column is read in one go. `seqs`: the listing of each vector; `_FREE` where there is none, `free` times."""

    def __init__(self, size: int) -> None:
        self.bits = np.zeros((_COLUMNS, size), np.uint64)
        self.seqs = np.full(size, _FREE, np.int32)
        self.free = size

    def remove(self, seqs: NDArray[np.int32]) -> None:
        self.seqs[np.isin(self.seqs, seqs)] = _FREE
        self.free = int(np.count_nonzero(self.seqs == _FREE))

    def add(self, seqs: NDArray[np.int32], bits: NDArray[np.uint64]) -> int:
        """Adds as many of the vectors as it has room for, and returns their number."""
        places = np.flatnonzero(self.seqs == _FREE)[: len(seqs)]
        count = len(places)
        self.bits[:, places] = bits[:count].T
        self.seqs[places] = seqs[:count]
        self.free -= count
        return count

    def count_differing(self, query: NDArray[np.uint64], counts: NDArray[np.uint8]) -> None:
        """Writes the number of different bits of each vector. 256 becomes 0: such a vector is found to be the least similar later."""
        np.bitwise_count(self.bits[0] ^ query[0], out=counts)
        for column, word in zip(self.bits[1:], query[1:], strict=True):
            counts += np.bitwise_count(column ^ word)
        if self.free:
            counts[self.seqs == _FREE] = DIFFERING_MAX + 1


class VectorIndex:
    """Used from one thread at a time."""

    def __init__(self, *, block_size: int = BLOCK_SIZE) -> None:
        self._block_size = block_size
        self._blocks: list[_Block] = []
        self._held = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        """The number of vectors."""
        return sum(self._block_size - block.free for block in self._blocks)

    def replace(self, vectors: Mapping[int, bytes]) -> None:
        """Sets the vectors of listings: `BYTES` bytes for each vector; none removes the listing."""
        changed = np.fromiter(vectors, np.int32, len(vectors))
        held = self._take_held(changed)
        if len(held):
            for block in self._blocks:
                block.remove(held)
        seqs = np.repeat(changed, [len(bits) // BYTES for bits in vectors.values()])
        bits = np.frombuffer(b"".join(vectors.values()), np.uint64).reshape(-1, _COLUMNS)
        self._held[seqs] = True
        for block in self._blocks:
            if len(seqs) and block.free:
                count = block.add(seqs, bits)
                seqs, bits = seqs[count:], bits[count:]
        while len(seqs):
            self._blocks.append(_Block(self._block_size))
            count = self._blocks[-1].add(seqs, bits)
            seqs, bits = seqs[count:], bits[count:]

    def find_nearest(self, vector: Vector) -> tuple[Proposed, ...]:
        """The listings that are similar enough, the most similar first."""
        if not self._blocks:
            return ()
        query = np.frombuffer(to_bits(vector), np.uint64)
        counts = np.empty((len(self._blocks), self._block_size), np.uint8)
        for block, row in zip(self._blocks, counts, strict=True):
            block.count_differing(query, row)
        similarity: dict[int, float] = {}
        for number, places in self._select_nearest(counts):
            block = self._blocks[number]
            columns = np.ascontiguousarray(block.bits[:, places].T)
            signs = np.unpackbits(columns.view(np.uint8), axis=1).astype(np.float32) * 2 - 1
            scores = signs @ vector / DIMENSIONS**0.5
            for seq, score in zip(block.seqs[places].tolist(), scores.tolist(), strict=True):
                similarity[seq] = max(score, similarity.get(seq, score))
        proposed = [Proposed(seq, score) for seq, score in similarity.items() if score >= SIMILARITY_MIN]
        return tuple(sorted(proposed, key=lambda one: (-one.similarity, -one.seq))[:PROPOSED_MAX])

    def _take_held(self, changed: NDArray[np.int32]) -> NDArray[np.int32]:
        """The listings among `changed` that have vectors; they have none from now on."""
        most = int(changed.max(initial=0))
        if most >= len(self._held):
            self._held = np.concatenate([self._held, np.zeros(most + BLOCK_SIZE, np.bool_)])
        held = changed[self._held[changed]]
        self._held[held] = False
        return held

    def _select_nearest(self, counts: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """The number of each block and its nearest vectors, about `NEAREST` in all: those with at most a number of different bits, found by halving."""
        low, high = 0, DIFFERING_MAX
        while low < high:
            middle = (low + high) // 2
            if np.count_nonzero(counts <= middle) >= NEAREST:
                high = middle
            else:
                low = middle + 1
        left = 2 * NEAREST
        for number, row in enumerate(counts):
            places = np.flatnonzero(row <= low)[:left]
            left -= len(places)
            if len(places):
                yield number, places
