"""The words of listings in SQL, on both databases: written with a listing, completed and corrected for a search, and read for its rank.

`registry` splits, stems and weighs words; `search_blocks` knows which listing has which stem.
What a search costs is bounded by its words: for each one look-up of its spellings and some bounded counts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, delete, insert, select, text

from tollway.registry.catalog import Correction
from tollway.registry.listing import Listing
from tollway.registry.search_rank import (
    MISSPELLED_LENGTH_MAX,
    Term,
    can_be_misspelled,
    is_misspelling,
    list_spellings,
)
from tollway.registry.search_tokens import query_words, searched_words, stem
from tollway.storage.catalog.catalog_tables import IS_WORD, search_table, spelling_table
from tollway.storage.engine.statements import Prepared, Within, insert_for

COMPLETED_LENGTH_MIN = 3
"""The least length of a last word that also matches as the beginning of a word."""
COMPLETIONS_MAX = 6
COMPLETIONS_READ_MAX = 64
"""Words with the same beginning that are read; the shortest of them are used."""
CORRECTIONS_TRIED_MAX = 4
"""The most similar words whose listings are counted, for each unknown word."""
CORRECTED_WORDS_MAX = 4
SPELLINGS_READ_MAX = 64
LISTING_SPELLED_MAX = 200
"""The words of one listing whose misspellings are found: those of its name, its tags and its operations come first."""

PRUNED_READ_MAX = 500
"""Words with the same beginning as a stem that are read when its last listing goes."""

CountListings = Callable[[Sequence[Term]], Sequence[int]]
"""Counts the listings with each term, up to a maximum."""


# ---- Understanding a query.


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """The terms of a query, and of each the number of its listings, counted to a maximum. No terms: the query has no word."""

    terms: tuple[Term, ...] = ()
    counts: tuple[int, ...] = ()
    corrections: tuple[Correction, ...] = ()


def understand(connection: Connection, words: str, count_listings: CountListings) -> Understood:
    """Completes the last word of a query, and corrects words that no listing has."""
    terms = [Term(word=word, stems=(stem(word),)) for word in query_words(words)]
    terms[-1:] = [_complete(connection, last) for last in terms[-1:]]
    counts = list(count_listings(terms))
    corrections: list[Correction] = []
    for number, term in enumerate(terms):
        if counts[number] or len(corrections) >= CORRECTED_WORDS_MAX:
            continue
        found = _correct(connection, term.word, count_listings)
        if found is not None:
            terms[number], counts[number] = found
            corrections.append(Correction(word=term.word, replacement=terms[number].word))
    return Understood(terms=tuple(terms), counts=tuple(counts), corrections=tuple(corrections))


_COMPLETIONS = Prepared(
    select(spelling_table.c.word)
    .where(
        text(IS_WORD), spelling_table.c.word > bindparam("first"), spelling_table.c.word < bindparam("last")
    )
    .order_by(spelling_table.c.word)
    .limit(COMPLETIONS_READ_MAX)
)
_STEMMED = Prepared(
    select(spelling_table.c.word)
    .where(
        text(IS_WORD), spelling_table.c.word >= bindparam("first"), spelling_table.c.word < bindparam("last")
    )
    .order_by(spelling_table.c.word)
    .limit(PRUNED_READ_MAX)
)
_SPELLED = Prepared(
    select(spelling_table.c.word)
    .where(Within(spelling_table.c.spelling, "spellings"))
    .order_by(spelling_table.c.word)
    .limit(SPELLINGS_READ_MAX)
)
_KNOWN = Prepared(select(spelling_table.c.word).where(text(IS_WORD), Within(spelling_table.c.word, "words")))


def _complete(connection: Connection, term: Term) -> Term:
    if len(term.word) < COMPLETED_LENGTH_MIN:
        return term
    rows = _COMPLETIONS.fetch(connection, first=term.word, last=term.word + "\U0010ffff")
    words = sorted((row[0] for row in rows), key=lambda word: (len(word), word))
    stems = dict.fromkeys((*term.stems, *map(stem, words)))
    return Term(word=term.word, stems=tuple(stems)[: COMPLETIONS_MAX + 1])


def _correct(connection: Connection, word: str, count_listings: CountListings) -> tuple[Term, int] | None:
    """The similar word that most listings have, and their number."""
    if not can_be_misspelled(word):
        return None
    rows = _SPELLED.fetch(connection, spellings=list(list_spellings(word)))
    similar = {row[0] for row in rows if is_misspelling(word, row[0])}
    likely = sorted(similar, key=lambda one: (abs(len(one) - len(word)), one))
    found = [Term(word=one, stems=(stem(one),)) for one in likely[:CORRECTIONS_TRIED_MAX]]
    counted = zip(found, count_listings(found), strict=True)
    best = max(counted, key=lambda one: one[1], default=None)
    return None if best is None or best[1] == 0 else best


_WEIGHTS = Prepared(
    select(search_table.c.listing_seq, search_table.c.weights).where(
        Within(search_table.c.listing_seq, "seqs")
    )
)


def read_weights(connection: Connection, seqs: Sequence[int]) -> dict[int, str]:
    """The weights of the words of listings (`search_rank.weigh_words`)."""
    return {row[0]: row[1] for row in _WEIGHTS.fetch(connection, seqs=list(seqs))} if seqs else {}


# ---- Writing.


def write_weights(connection: Connection, seq: int, weights: str) -> None:
    connection.execute(insert(search_table).values(listing_seq=seq, weights=weights))


def take_weights(connection: Connection, seq: int) -> str:
    """Removes and returns the weights of a listing."""
    taken = delete(search_table).where(search_table.c.listing_seq == seq).returning(search_table.c.weights)
    return connection.scalar(taken) or ""


def write_spellings(connection: Connection, listing: Listing) -> None:
    """Adds the words of a listing that are new."""
    words = list_spelled_words(listing)
    known = {row[0] for row in _KNOWN.fetch(connection, words=list(words))} if words else set()
    rows = sorted(spelling_rows(word for word in words if word not in known))
    if rows:
        statement = insert_for(connection, spelling_table).on_conflict_do_nothing()
        connection.execute(statement, [{"spelling": spelling, "word": word} for spelling, word in rows])


def list_spelled_words(listing: Listing) -> tuple[str, ...]:
    """The words of a listing that are completed, and corrected if they are only letters."""
    name, description, tags, operations, _ = searched_words(listing)
    words = dict.fromkeys((*name, *tags, *operations, *description))
    spelled = (one for one in words if COMPLETED_LENGTH_MIN < len(one) <= MISSPELLED_LENGTH_MAX)
    return tuple(spelled)[:LISTING_SPELLED_MAX]


def spelling_rows(words: Iterable[str]) -> Iterable[tuple[str, str]]:
    for word in words:
        spellings = list_spellings(word) if can_be_misspelled(word) else (word,)
        yield from ((spelling, word) for spelling in spellings)


_ERASE = delete(spelling_table).where(
    and_(spelling_table.c.spelling == bindparam("of_spelling"), spelling_table.c.word == bindparam("of_word"))
)


def erase_spellings(connection: Connection, stems: Iterable[str]) -> None:
    """Removes the words with these stems, which no listing has any more. A stem is the beginning of its words but for its last letter: "city" is "citi"."""
    words: set[str] = set()
    for one in stems:
        first = one[:-1] or one
        found = _STEMMED.fetch(connection, first=first, last=first + "\U0010ffff")
        words.update(row[0] for row in found if stem(row[0]) == one)
    if words:
        rows = [{"of_spelling": one, "of_word": word} for one, word in sorted(spelling_rows(words))]
        connection.execute(_ERASE, rows)
