"""A server may have as many sockets open as the system grants."""

import resource
from collections.abc import Iterator

import pytest

from tollway.limits import DEFAULT_LIMITS
from tollway.web.http.server import OPEN_FILES_WANTED, HttpServer, raise_open_file_limit

FEW = 256


@pytest.fixture(autouse=True)
def few_files() -> Iterator[int]:
    """A low soft limit, as a shell or a service manager sets it. Yields the limit that a process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_raises_the_limit_as_far_as_allowed(few_files: int) -> None:
    assert raise_open_file_limit() == few_files
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files
    assert raise_open_file_limit() == few_files


async def test_a_server_raises_the_limit_before_it_listens(few_files: int) -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    HttpServer(app, host="127.0.0.1", port=1, limits=DEFAULT_LIMITS)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files
