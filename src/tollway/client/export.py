"""CSV files of the history and of the payments, page after page: as one file with one header line, in constant memory.

The gateway names the next page by `Link`. Only the query of that URL counts: the client signs and sends nothing to another address. A transfer that breaks off, and a
page that is no CSV file with the same header line, raise; the text until then is incomplete.
"""

import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from urllib.parse import urlsplit

import httpx

from tollway.client import requests
from tollway.client.call_io import ControlRequest
from tollway.client.driver import Driver
from tollway.client.errors import GatewayResponseInvalid
from tollway.client.exchange import Http, run_blocking
from tollway.client.requests import read_document
from tollway.client.responses import PROBLEM_BYTES_MAX, ResponseTooLong, build_unreachable

PAGES_MAX = 10_000
"""A thousand million rows."""
PAGE_BYTES_MAX = 256 * 1024 * 1024
PAGE_DEADLINE_S = 7_200.0
HEADER_BYTES_MAX = 4_096
_OK = 200
_NEXT = re.compile(r'<([^<>]*)>\s*;\s*rel="?next"?')


class CsvPages:
    """The pages of one file. `request`: the next one; None after the last page."""

    def __init__(self, first: ControlRequest, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.request: ControlRequest | None = first
        self._path = first.path.partition("?")[0]
        self._clock = clock
        self._header: bytes | None = None
        self._next: ControlRequest | None = None
        self._pages = 0
        self._begin_page()

    def _begin_page(self) -> None:
        self._head: bytes | None = b""
        self._size = 0
        self._until_s = self._clock() + PAGE_DEADLINE_S

    def open_page(self, response: httpx.Response) -> None:
        """Reads the head of a page. Raises `GatewayResponseInvalid` for one that is no CSV file."""
        if response.headers.get("content-type", "").partition(";")[0].strip() != "text/csv":
            raise GatewayResponseInvalid(
                "The gateway's response is no CSV file. The gateway may be older than this client."
            )
        self._pages += 1
        self._next = self._read_next(response.headers.get("link", ""))
        self._begin_page()

    def _read_next(self, link: str) -> ControlRequest | None:
        found = _NEXT.search(link)
        if found is None:
            return None
        if self._pages >= PAGES_MAX:
            raise GatewayResponseInvalid(
                f"The file has more than {PAGES_MAX} pages. Export a shorter period."
            )
        following = requests.export_page(f"{self._path}?{urlsplit(found[1]).query}")
        if self.request is not None and following.path == self.request.path:
            raise GatewayResponseInvalid("The gateway names the same page as the next one.")
        return following

    def feed(self, chunk: bytes) -> bytes:
        """The bytes of the file that a part of a page adds: all of the first page, and of the others all but the header line."""
        self._size += len(chunk)
        if self._size > PAGE_BYTES_MAX or self._clock() > self._until_s:
            raise GatewayResponseInvalid(
                "A page of the file is too long or takes too long. Export a shorter period."
            )
        if self._head is None:
            return chunk
        self._head += chunk
        line, end, rest = self._head.partition(b"\r\n")
        if not end:
            if len(line) > HEADER_BYTES_MAX:
                raise GatewayResponseInvalid("The first line of the file is too long.")
            return b""
        self._head = None
        if self._header is None:
            self._header = line
            return line + end + rest
        if line != self._header:
            raise GatewayResponseInvalid(
                "The columns changed between two pages of the file. Export it again."
            )
        return rest

    def close_page(self) -> None:
        """Call it when a page has ended. The next request follows."""
        if self._head is not None:
            raise GatewayResponseInvalid("A page of the file has no header line.")
        self.request = self._next


async def open_page(driver: Driver, http: Http, pages: CsvPages) -> httpx.Response:
    """Requests the next page, and reads its head. Raises `GatewayRefused`, and `GatewayResponseInvalid` for a response that is no page."""
    assert pages.request is not None
    response = await http.send(driver.build_control(pages.request))
    try:
        if response.status_code != _OK:
            content = await http.read(response, bytes_max=PROBLEM_BYTES_MAX)
            read_document(pages.request, response.status_code, content)
            raise GatewayResponseInvalid(
                f"The gateway responded with status {response.status_code} and no CSV file."
            )
        pages.open_page(response)
    except BaseException:
        await http.close(response)
        raise
    return response


def read_pages(driver: Driver, http: Http, first: ControlRequest) -> Iterator[bytes]:
    """The parts of the file. Raises `GatewayRefused` and `GatewayUnreachable`."""
    pages = CsvPages(first)
    while pages.request is not None:
        with _translated_failures(), contextlib.closing(run_blocking(open_page(driver, http, pages))) as page:
            yield from filter(None, map(pages.feed, page.iter_raw()))
        pages.close_page()


async def read_pages_async(driver: Driver, http: Http, first: ControlRequest) -> AsyncIterator[bytes]:
    """See `read_pages`."""
    pages = CsvPages(first)
    while pages.request is not None:
        with _translated_failures():
            page = await open_page(driver, http, pages)
            async with contextlib.aclosing(page):
                async for chunk in page.aiter_raw():
                    if part := pages.feed(chunk):
                        yield part
        pages.close_page()


@contextlib.contextmanager
def _translated_failures() -> Iterator[None]:
    try:
        yield
    except (httpx.TransportError, ResponseTooLong) as exc:
        raise build_unreachable(exc, transaction=None) from exc
