"""The cache of documents: one write per revision and lifetime, and a bound in bytes."""

import pytest

from tollway.web.api.discovery_routes import (
    CACHE_MS,
    CACHE_MS_MAX,
    CACHE_WRITE_TIMES,
    Document,
    DocumentCache,
)


class Writer:
    """Counts its writes. Each takes `takes_ms` on the clock of the cache."""

    def __init__(self, *, takes_ms: int = 0, size: int = 4) -> None:
        self.ticks_ms = 0
        self.written = 0
        self.takes_ms = takes_ms
        self.size = size

    async def write(self) -> Document:
        self.ticks_ms += self.takes_ms
        self.written += 1
        body = b"%d" % self.written + b"." * (self.size - 1)
        return Document(body=body, etag=f'"{self.written}"')

    def cache(self, *, bytes_max: int = 1_000) -> DocumentCache:
        return DocumentCache(ticks_ms=lambda: self.ticks_ms, bytes_max=bytes_max)


async def test_the_same_document_is_written_once_while_it_is_fresh() -> None:
    writer = Writer()
    cache = writer.cache()
    first = await cache.get_or_write("agent api_1", 1, writer.write)
    writer.ticks_ms += CACHE_MS - 1
    assert await cache.get_or_write("agent api_1", 1, writer.write) is first
    writer.ticks_ms += 1
    assert await cache.get_or_write("agent api_1", 1, writer.write) != first


async def test_a_new_revision_is_written_at_once() -> None:
    writer = Writer()
    cache = writer.cache()
    await cache.get_or_write("agent api_1", 1, writer.write)
    await cache.get_or_write("agent api_1", 2, writer.write)
    assert writer.written == 2


async def test_a_slow_document_is_cached_longer_up_to_a_limit() -> None:
    for takes_ms, fresh_ms in ((100, 100 * CACHE_WRITE_TIMES), (10_000, CACHE_MS_MAX)):
        writer = Writer(takes_ms=takes_ms)
        cache = writer.cache()
        await cache.get_or_write("agent api_1", 1, writer.write)
        writer.ticks_ms += fresh_ms - 1
        await cache.get_or_write("agent api_1", 1, writer.write)
        assert writer.written == 1
        writer.ticks_ms += 1
        await cache.get_or_write("agent api_1", 1, writer.write)
        assert writer.written == 2


async def test_the_least_recently_used_documents_are_dropped_first() -> None:
    writer = Writer(size=4)
    cache = writer.cache(bytes_max=8)
    for name in ("a", "b", "a", "c"):
        await cache.get_or_write(name, 1, writer.write)
    assert writer.written == 3
    await cache.get_or_write("a", 1, writer.write)
    assert writer.written == 3
    await cache.get_or_write("b", 1, writer.write)
    assert writer.written == 4


async def test_a_document_larger_than_the_cache_is_served_and_not_kept() -> None:
    writer = Writer(size=9)
    cache = writer.cache(bytes_max=8)
    assert len((await cache.get_or_write("a", 1, writer.write)).body) == 9
    await cache.get_or_write("a", 1, writer.write)
    assert writer.written == 2


async def test_a_failed_write_is_repeated() -> None:
    writer = Writer()
    cache = writer.cache()

    async def fail() -> Document:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        await cache.get_or_write("a", 1, fail)
    assert (await cache.get_or_write("a", 1, writer.write)).etag == '"1"'
