"""The words of listings in SQL, on both databases: written with a listing, completed and corrected for a search, matched and read.

`registry` splits, stems and weighs words. The databases only know which listing has which stem (FTS5, or a tsvector without positions).
What a search costs is bounded by its words: for each one look-up of its spellings and some bounded counts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Text,
    bindparam,
    cast,
    column,
    delete,
    insert,
    literal,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

from tollway.registry.catalog import Correction
from tollway.registry.listing import Listing
from tollway.registry.search_rank import (
    MISSPELLED_LENGTH_MAX,
    Term,
    can_be_misspelled,
    is_misspelling,
    list_spellings,
    list_stems,
    weigh_words,
)
from tollway.registry.search_tokens import query_words, searched_words, stem
from tollway.storage.catalog.catalog_tables import IS_WORD, spelling_table
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

fts_table = table("listing_search", column("rowid", BigInteger), column("words"), column("weights"))
vector_table = table(
    "listing_search", column("listing_seq", BigInteger), column("words", TSVECTOR), column("weights")
)

CountListings = Callable[[Connection, Term], int]
"""Counts the listings with a term, up to a maximum."""


# ---- Understanding a query.


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """The terms of a query, and of each the number of its listings, counted to a maximum. No terms: the query has no word."""

    terms: tuple[Term, ...] = ()
    counts: tuple[int, ...] = ()
    corrections: tuple[Correction, ...] = ()


def understand(connection: Connection, words: str, count_listings: CountListings) -> Understood:
    """Completes the last word of a query, and corrects words that no listing has."""
    terms: list[Term] = []
    counts: list[int] = []
    corrections: list[Correction] = []
    meant = query_words(words)
    for number, word in enumerate(meant):
        term = Term(word=word, stems=(stem(word),))
        if number == len(meant) - 1:
            term = _complete(connection, term)
        count = count_listings(connection, term)
        if count == 0 and len(corrections) < CORRECTED_WORDS_MAX:
            found = _correct(connection, word, count_listings)
            if found is not None:
                term, count = found
                corrections.append(Correction(word=word, replacement=term.word))
        terms.append(term)
        counts.append(count)
    return Understood(terms=tuple(terms), counts=tuple(counts), corrections=tuple(corrections))


_COMPLETIONS = Prepared(
    select(spelling_table.c.word)
    .where(
        text(IS_WORD), spelling_table.c.word > bindparam("first"), spelling_table.c.word < bindparam("last")
    )
    .order_by(spelling_table.c.word)
    .limit(COMPLETIONS_READ_MAX)
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
    counted = [(count_listings(connection, term), term) for term in found]
    best = max(counted, key=lambda one: one[0], default=None)
    return None if best is None or best[0] == 0 else (best[1], best[0])


# ---- Matching.


def match_terms(
    terms: Sequence[Term], *, needs_all: bool, is_sqlite: bool
) -> tuple[FromClause, ColumnElement[int], ColumnElement[bool]]:
    """The table, its row number, and the condition: the listing has all terms, or some. Each stem is quoted; stems contain no quotes."""
    if is_sqlite:
        wanted = literal(_join(terms, '"', " OR ", " AND " if needs_all else " OR "), Text)
        condition: ColumnElement[bool] = literal_column("listing_search").op("MATCH", is_comparison=True)(
            wanted
        )
        return fts_table, fts_table.c.rowid, condition
    query = cast(literal(_join(terms, "'", " | ", " & " if needs_all else " | "), Text), TSQUERY)
    condition = vector_table.c.words.op("@@", is_comparison=True)(query)
    return vector_table, vector_table.c.listing_seq, condition


def _join(terms: Sequence[Term], quote: str, either: str, between: str) -> str:
    groups = (either.join(f"{quote}{one}{quote}" for one in term.stems) for term in terms)
    return between.join(f"({group})" for group in groups)


_FTS_WEIGHTS = Prepared(
    select(fts_table.c.rowid, fts_table.c.weights).where(Within(fts_table.c.rowid, "seqs"))
)
_VECTOR_WEIGHTS = Prepared(
    select(vector_table.c.listing_seq, vector_table.c.weights).where(
        Within(vector_table.c.listing_seq, "seqs")
    )
)


def read_weights(connection: Connection, seqs: Sequence[int]) -> dict[int, str]:
    """The weights of the words of listings (`search_rank.weigh_words`)."""
    if not seqs:
        return {}
    statement = _FTS_WEIGHTS if connection.dialect.name == "sqlite" else _VECTOR_WEIGHTS
    return {row[0]: row[1] for row in statement.fetch(connection, seqs=list(seqs))}


# ---- Writing.


def write_search(connection: Connection, seq: int, listing: Listing) -> None:
    weights = weigh_words(listing)
    stems = list_stems(weights)
    if connection.dialect.name == "sqlite":
        row = {"rowid": seq, "words": " ".join(stems), "weights": weights}
        connection.execute(insert(fts_table).values(row))
    else:
        statement = text(
            "INSERT INTO listing_search (listing_seq, words, weights) VALUES (:seq, CAST(:words AS tsvector), :weights)"
        )
        connection.execute(statement, {"seq": seq, "words": to_vector(stems), "weights": weights})


def write_spellings(connection: Connection, listing: Listing) -> None:
    """Adds the words of a listing that are new. Call it before the transaction writes `listing_total`, which every publication does: together with the
    order of the rows this keeps publications and edits at the same time from waiting for each other in a circle."""
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


def erase_search(connection: Connection, seq: int) -> None:
    if connection.dialect.name == "sqlite":
        connection.execute(delete(fts_table).where(fts_table.c.rowid == seq))
    else:
        connection.execute(delete(vector_table).where(vector_table.c.listing_seq == seq))


def to_vector(stems: Iterable[str]) -> str:
    """The text of a tsvector without positions. Stems contain no quotes."""
    return " ".join(f"'{one}'" for one in stems)
