"""Which URLs name a server for shared windows, and that a refused one is not shown."""

import pytest

from tollway.rate_limits.redis_url import parse_redis_url


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
def test_a_url_that_can_be_used_is_taken_as_it_is(url: str) -> None:
    assert parse_redis_url(url) == url


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
def test_a_url_that_cannot_be_used_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="must be redis://") as refused:
        parse_redis_url(url)
    assert "pa55" not in str(refused.value)
