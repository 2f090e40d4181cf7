"""Static word embeddings: a text becomes a vector of 256 numbers, and texts of like meaning have like vectors.

The weights and the vocabulary are two files inside the package `wordllama`, which the extra `tollway[search]` installs. This module reads the files; it never imports
that package, whose own loader needs ten more packages. A vector is the mean of the rows of a text's tokens, each token once: a repeated word adds nothing.

Tokens are those of the vocabulary's byte-pair encoding (SentencePiece): the pieces of a word merge in pairs, the pair with the lowest number first.
"""

import hashlib
import importlib.metadata
import itertools
import os
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from tollway.registry.meaning import REINSTALL, WeightsUnusable
from tollway.registry.search_tokens import split_words

PACKAGE = "wordllama"
VERSION = "0.2.2.post0"
VOCABULARY, WEIGHTS = "tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors"
FILES = {
    VOCABULARY: "bf467c9e0f536bda271283c6ef85eb1a943e3196b621c8a912d64953b205df83",
    WEIGHTS: "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
}
"""The files and their SHA-256. Stored vectors, and the least similarity, are of these: other files need another column of vectors."""

DIMENSIONS = 256
BYTES = DIMENSIONS // 8
WORDS_MAX = 512
"""Further words of a text are ignored."""
_CACHED_WORDS = 16_384
_ROW = 2 * DIMENSIONS
"""The bytes of a row of the weights: half-precision floats."""
_WORD_BEGIN = "\u2581"

Vector = NDArray[np.float32]


class WordVectors:
    """The embeddings. The vocabulary is in memory. The weights stay in their file, 16 MiB that the operating system caches: a text needs few of their rows. `weights`: the
    descriptor of that file; `start`: of its first row."""

    def __init__(self, weights: int, start: int, vocabulary: dict[str, int]) -> None:
        self._weights, self._start, self._vocabulary = weights, start, vocabulary
        self._bytes = [vocabulary[f"<0x{number:02X}>"] for number in range(256)]
        self.list_tokens = lru_cache(_CACHED_WORDS)(self._list_tokens)

    def embed(self, text: str) -> Vector | None:
        """The vector of a text, of length 1. None when the text has no word, or nothing but words without a direction."""
        words = split_words(text)[:WORDS_MAX]
        tokens = list(dict.fromkeys(token for word in words for token in self.list_tokens(word)))
        if not tokens:
            return None
        rows = b"".join(os.pread(self._weights, _ROW, self._start + token * _ROW) for token in tokens)
        vector: Vector = np.frombuffer(rows, "<f2").reshape(-1, DIMENSIONS).mean(axis=0, dtype=np.float32)
        length = float(np.linalg.norm(vector))
        return vector / length if length > 0 else None

    def embed_bits(self, texts: Iterable[str]) -> bytes:
        """The bits of the vectors of these texts, `BYTES` for each text that has a vector."""
        return b"".join(to_bits(vector) for vector in map(self.embed, texts) if vector is not None)

    def _list_tokens(self, word: str) -> tuple[int, ...]:
        pieces = [_WORD_BEGIN, *word]
        known = self._vocabulary
        while len(pieces) > 1:
            pairs = (known.get(left + right) for left, right in itertools.pairwise(pieces))
            merged = min(
                ((number, place) for place, number in enumerate(pairs) if number is not None), default=None
            )
            if merged is None:
                break
            place = merged[1]
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        tokens: list[int] = []
        for piece in pieces:
            number = known.get(piece)
            tokens += (
                [number]
                if number is not None
                else [self._bytes[byte] for byte in piece.encode(errors="replace")]
            )
        return tuple(tokens)


def to_bits(vector: Vector) -> bytes:
    """The signs of a vector, `BYTES` bytes. The share of equal bits of two vectors estimates their angle."""
    return np.packbits(vector > 0).tobytes()


@cache
def load_word_vectors() -> WordVectors:
    """Those of the installed package, read once in a process, which takes a third of a second. Raises WeightsUnusable."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as exc:
        raise WeightsUnusable(f"{PACKAGE} is not installed; {REINSTALL}") from exc
    return read_word_vectors(Path(str(package.locate_file(PACKAGE))))


def read_word_vectors(folder: Path) -> WordVectors:
    """Reads the two files in the folder of the package. Raises WeightsUnusable."""
    with _open_file(folder, VOCABULARY) as vocabulary:
        known = from_json(vocabulary.read())["model"]["vocab"]
    # The format safetensors: the length of a header, the header, the rows of the one matrix.
    with _open_file(folder, WEIGHTS) as weights:
        header_bytes = int.from_bytes(weights.read(8), "little")
        return WordVectors(os.dup(weights.fileno()), 8 + header_bytes, known)


def _open_file(folder: Path, name: str) -> BinaryIO:
    """One of `FILES`, at its start."""
    path = folder / name
    try:
        file = path.open("rb")
        found = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
    except OSError as exc:
        raise WeightsUnusable(f"{path} cannot be read ({exc.strerror}); {REINSTALL}") from exc
    if found != FILES[name]:
        file.close()
        raise WeightsUnusable(f"{path} is not the file of {PACKAGE} {VERSION}; {REINSTALL}")
    return file
