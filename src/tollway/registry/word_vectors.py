"""Static word embeddings: a text becomes a vector of 256 numbers, and texts of like meaning have like vectors.

The weights and the vocabulary are two files inside the package `wordllama`, which the extra `tollway[search]` installs. This module reads the files; it never imports
that package, whose own loader needs ten more packages. A vector is the mean of the rows of a text's tokens, each token once: a repeated word adds nothing.

Tokens are those of the vocabulary's byte-pair encoding (SentencePiece): the pieces of a word merge in pairs, the pair with the lowest number first.
"""

import hashlib
import importlib.metadata
import itertools
import json
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tollway.registry.meaning import REINSTALL, WeightsUnusable
from tollway.registry.search_tokens import split_words

PACKAGE = "wordllama"
WEIGHTS, VOCABULARY = "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"
WEIGHTS_SHA256 = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
"""Stored vectors and `SIMILARITY_MIN` fit these weights only."""

DIMENSIONS = 256
BYTES = DIMENSIONS // 8
WORDS_MAX = 512
"""Further words of a text are ignored."""
_CACHED_WORDS = 16_384
_WORD_BEGIN = "\u2581"

Vector = NDArray[np.float32]


class WordVectors:
    """The embeddings, in memory: 16 MiB of weights, which the operating system shares between processes, and the vocabulary."""

    def __init__(self, weights: NDArray[np.float16], vocabulary: dict[str, int]) -> None:
        self._weights, self._vocabulary = weights, vocabulary
        self._bytes = [vocabulary[f"<0x{number:02X}>"] for number in range(256)]
        self.list_tokens = lru_cache(_CACHED_WORDS)(self._list_tokens)

    def embed(self, text: str) -> Vector | None:
        """The vector of a text, of length 1. None when the text has no word, or nothing but words without a direction."""
        words = dict.fromkeys(split_words(text)[:WORDS_MAX])
        tokens = list(dict.fromkeys(token for word in words for token in self.list_tokens(word)))
        if not tokens:
            return None
        vector: Vector = self._weights[tokens].astype(np.float32).mean(axis=0)
        length = float(np.linalg.norm(vector))
        return vector / length if length > 0 else None

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
    weights = folder / WEIGHTS
    try:
        with weights.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != WEIGHTS_SHA256:
                raise WeightsUnusable(f"{weights} has other weights than {PACKAGE} 0.2.2; {REINSTALL}")
            file.seek(0)
            header_bytes = int.from_bytes(file.read(8), "little")
            shape = json.loads(file.read(header_bytes))["embedding.weight"]["shape"]
        vocabulary = json.loads((folder / VOCABULARY).read_bytes())["model"]["vocab"]
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise WeightsUnusable(f"the files in {folder} cannot be read ({exc}); {REINSTALL}") from exc
    # The format safetensors: the length of a header, the header, the rows of the one matrix.
    matrix = np.memmap(weights, np.float16, "r", offset=8 + header_bytes, shape=tuple(shape))
    return WordVectors(matrix, vocabulary)
