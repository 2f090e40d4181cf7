"""The embeddings: tokens as in the vocabulary's encoding, texts of like meaning near, and no input that fails."""

import importlib.metadata
import shutil
from pathlib import Path

import numpy as np
import pytest

from tollway.registry.meaning import WeightsUnusable
from tollway.registry.word_vectors import (
    BYTES,
    DIMENSIONS,
    PACKAGE,
    VERSION,
    VOCABULARY,
    WEIGHTS,
    WordVectors,
    load_word_vectors,
    read_word_vectors,
    to_bits,
)

TOKENS = {
    "the quick brown fox": (278, 4996, 17354, 1701, 29916),
    "embeddings": (8297, 29881, 886),
    "current price of ethereum": (1857, 8666, 310, 11314, 406, 398),
    "مرحبا": (29871, 30159, 30156, 30240, 30177, 30112),
    "0x1f": (29871, 29900, 29916, 29896, 29888),
    "😀": (29871, 243, 162, 155, 131),
}
"""Texts and their tokens, by the encoder of the vocabulary's authors."""


@pytest.fixture(scope="module")
def vectors() -> WordVectors:
    return load_word_vectors()


@pytest.mark.parametrize("text", TOKENS)
def test_words_have_the_tokens_of_the_vocabulary(vectors: WordVectors, text: str) -> None:
    found = tuple(token for word in text.split() for token in vectors.list_tokens(word))
    assert found == TOKENS[text]


def measure_similarity(vectors: WordVectors, left: str, right: str) -> float:
    one, other = vectors.embed(left), vectors.embed(right)
    assert one is not None
    assert other is not None
    return float(one @ other)


@pytest.mark.parametrize(
    ("question", "near", "far"),
    [
        ("when is high tide", "High and low water at ports", "Currency exchange rates"),
        ("convert euros to yen", "Currency exchange rates", "High and low water at ports"),
        ("side effects of ibuprofen", "Doses and interactions of medicines", "Positions of ships"),
    ],
)
def test_texts_of_like_meaning_are_nearer(vectors: WordVectors, question: str, near: str, far: str) -> None:
    assert measure_similarity(vectors, question, near) > 2 * measure_similarity(vectors, question, far)


@pytest.mark.parametrize("text", ["", "   ", "!!! ???", "\u200f\u202e", "-_/."])
def test_a_text_without_a_word_has_no_vector(vectors: WordVectors, text: str) -> None:
    assert vectors.embed(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "weather " * 1_300,
        "x" * 10_000,
        "مرحبا بالعالم",
        "שלום world",
        "天気予報",
        "😀🎉",
        "\ud800",
        "a\x00b",
        '"OR 1=1; --',
    ],
    ids=[
        "10 kB of words",
        "10 kB of one word",
        "right to left",
        "mixed",
        "without spaces",
        "emoji",
        "surrogate",
        "control",
        "SQL",
    ],
)
def test_every_text_has_a_vector_of_length_one_or_none(vectors: WordVectors, text: str) -> None:
    vector = vectors.embed(text)
    if vector is None:
        return
    assert vector.shape == (DIMENSIONS,)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert len(to_bits(vector)) == BYTES


def test_a_word_that_is_repeated_counts_once(vectors: WordVectors) -> None:
    stuffed = "flights to rome " + "cheap " * 1_000
    assert measure_similarity(vectors, "flights to rome cheap", stuffed) == pytest.approx(1, abs=1e-5)


def test_case_accents_and_width_do_not_count(vectors: WordVectors) -> None:
    assert measure_similarity(vectors, "Café PRICES", "cafe prices") == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", [WEIGHTS, VOCABULARY])
def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    folder = copy_package(tmp_path)
    (folder / name).unlink()
    with pytest.raises(WeightsUnusable, match=f"{name} cannot be read .No such file.*run: pip install"):
        read_word_vectors(folder)


@pytest.mark.parametrize("name", [WEIGHTS, VOCABULARY])
@pytest.mark.parametrize("is_shorter", [True, False])
def test_another_file_is_refused(tmp_path: Path, name: str, is_shorter: bool) -> None:
    """Stored vectors, and the least similarity, are of these weights and of this vocabulary."""
    path = copy_package(tmp_path) / name
    content = path.read_bytes()[:-1]
    path.write_bytes(content if is_shorter else content + b"x")
    with pytest.raises(
        WeightsUnusable, match=f"{name} is not the file of wordllama 0.2.2.post0; run: pip install"
    ):
        read_word_vectors(tmp_path)


def test_the_locked_version_is_the_one_that_is_read() -> None:
    assert importlib.metadata.version(PACKAGE) == VERSION


def copy_package(target: Path) -> Path:
    package = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(PACKAGE)))
    for name in (WEIGHTS, VOCABULARY):
        (target / name).parent.mkdir(parents=True)
        shutil.copyfile(package / name, target / name)
    return target
