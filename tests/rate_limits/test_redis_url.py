"""The URLs of a server for shared windows; an error does not contain the URL."""

import pytest

from tollway.rate_limits.redis_url import parse_redis_url
from tollway.rate_limits.redis_windows import RedisWindows


@pytest.mark.parametrize(
    "url",
    [
        "redis://cache.example",
        "redis://cache.example:6380/3",
        "rediss://me:pa55@cache.example/0",
        "valkey://[::1]:6379",
        "valkeys://:pa55@cache.example?db=2",
        "unix:///run/valkey.sock?db=1",
    ],
)
async def test_a_usable_url_is_accepted_unchanged_and_makes_a_client(url: str) -> None:
    assert parse_redis_url(url) == url
    RedisWindows(url, namespace="n", secret=b"", deadline_s=60.0, retry_s=1.0)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "cache.example:6379",
        "http://me:pa55@cache.example",
        "redis://",
        "redis://me:pa55@cache.example/name",
        "redis://me:pa55@cache.example:port",
        "redis://me:pa55@cache.example?socket_timeout=1",
        "redis://me:pa55@cache.example?db=x",
        "unix://me:pa55@",
        "redis+cluster://me:pa55@cache.example",
    ],
)
def test_an_unusable_url_is_refused_without_its_text(url: str) -> None:
    with pytest.raises(ValueError, match="must be redis://") as refused:
        parse_redis_url(url)
    assert "pa55" not in str(refused.value)
