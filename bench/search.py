"""How well and how fast the catalog's search finds. No gateway: the real store over a real database.

    python bench/search.py [--no-postgres] [--vectors 1000000]

`relevance`: the questions of the relevance set (`tests/kit/relevance.py`) by words alone and with meaning, and the time of a search. `vectors`: random vectors of so many
listings in memory, and the time of a search through all of them. `make bench` runs both as the stage `search`. JSON on standard output.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.kit`

from nodes import Server

from tests.kit.databases import migrate_database, open_database
from tests.kit.relevance import LIST_LENGTH, measure, read_listings, read_questions
from tollway.registry.catalog import ListingQuery
from tollway.registry.word_vectors import BYTES, load_word_vectors
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.meaning_search import MeaningSearch
from tollway.storage.catalog.vector_index import VectorIndex
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer

VECTORS = 1_000_000
VECTORS_AT_ONCE = 5_000
MIB = 1024 * 1024


async def measure_search(folder: Path, *, has_postgres: bool, vectors: int = VECTORS) -> dict[str, Any]:
    """The figures of both parts. `folder`: for the databases."""
    found: dict[str, Any] = {"vectors": measure_vectors(vectors), "relevance": {}}
    found["relevance"]["sqlite"] = await measure_relevance(f"sqlite:///{folder}/search.sqlite3")
    if has_postgres:
        (folder / "search-pg").mkdir()
        server = Server(folder / "search-pg")
        try:
            url = await server.make_database("search")
            found["relevance"]["postgresql"] = await measure_relevance(url)
        finally:
            server.close()
    return found


async def measure_relevance(url: str) -> dict[str, Any]:
    await migrate_database(url)
    async with open_database(url) as database:
        meaning = MeaningSearch(database)
        try:
            words = make_catalog(database)
            for listing in read_listings():
                await words.publish(listing)
            await meaning.refresh()
            await meaning.propose("weather")  # the first search reads the vectors
            with_meaning = make_catalog(database, meaning)
            return {"words": await judge(words), "meaning": await judge(with_meaning)}
        finally:
            meaning.close()


def make_catalog(database: Database, meaning: MeaningSearch | None = None) -> CatalogStore:
    sealer = Sealer(bytes(32), entropy=os.urandom)
    return CatalogStore(database, sealer=sealer, now_ms=lambda: time.time_ns() // 1_000_000, meaning=meaning)


async def judge(catalog: CatalogStore) -> dict[str, Any]:
    times_s: list[float] = []

    async def search(text: str) -> list[str]:
        started = time.perf_counter()
        page = await catalog.search(ListingQuery(words=text, sort="relevance", limit=LIST_LENGTH))
        times_s.append(time.perf_counter() - started)
        return [match.listing.id for match in page.found]

    found = await measure(search, read_questions())
    return {
        "hit1": round(found.hit_1, 3),
        "hit5": round(found.hit_5, 3),
        "ndcg10": round(found.ndcg_10, 3),
        "empty": round(found.empty, 3),
        **describe_times(times_s),
    }


def measure_vectors(count: int) -> dict[str, Any]:
    """Memory and time of `count` random vectors, a listing each."""
    chance = random.Random(7)
    question = load_word_vectors().embed("when is high tide")
    assert question is not None
    index, before, started = VectorIndex(), read_resident_bytes(), time.perf_counter()
    for start in range(1, count + 1, VECTORS_AT_ONCE):
        seqs = range(start, min(start + VECTORS_AT_ONCE, count + 1))
        index.replace({seq: chance.randbytes(BYTES) for seq in seqs})
    read_s = time.perf_counter() - started
    times_s, cpu_s = [], []
    for _ in range(100):
        started, cpu = time.perf_counter(), time.thread_time()
        index.find_nearest(question)
        cpu_s.append(time.thread_time() - cpu)
        times_s.append(time.perf_counter() - started)
    memory = (read_resident_bytes() - before) / MIB
    return {
        "count": len(index),
        "memoryMiB": round(memory, 1),
        "readS": round(read_s, 1),
        "cpuMs": round(statistics.median(cpu_s) * 1000, 2),
        **describe_times(times_s),
    }


def describe_times(times_s: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times_s, n=100)
    return {"p50Ms": round(cuts[49] * 1000, 2), "p99Ms": round(cuts[98] * 1000, 2)}


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-postgres", action="store_true")
    parser.add_argument("--vectors", type=int, default=VECTORS)
    parser.add_argument("--folder", help="where databases are made; not on tmpfs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="search-", dir=options.folder) as folder:
        measuring = measure_search(
            Path(folder), has_postgres=not options.no_postgres, vectors=options.vectors
        )
        print(json.dumps(asyncio.run(measuring), indent=1))


if __name__ == "__main__":
    main()
