"""CSV files of the history and of the payments, page after page: as one file with one header line, in constant memory.

The gateway names the next page by `Link`. Only the query of that URL counts: the client signs and sends nothing to another address. A transfer that breaks off, and a
page that is no CSV file with the same header line, raise; the text until then is incomplete.
"""

import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal, Protocol
from urllib.parse import urlsplit

import httpx

from tollway.client import requests
from tollway.client.call_io import ControlRequest
from tollway.client.errors import AnswerMalformed
from tollway.client.requests import read_document
from tollway.client.responses import PROBLEM_BYTES_MAX, ResponseTooLong, build_unreachable

PAGES_MAX = 10_000
"""A thousand million rows."""
PAGE_BYTES_MAX = 256 * 1024 * 1024
PAGE_DEADLINE_S = 7_200.0
HEADER_BYTES_MAX = 4_096
_OK = 200
_NEXT = re.compile(r'<([^<>]*)>\s*;\s*rel="?next"?')

CallStatus = Literal["pending", "succeeded", "failed", "unknown"]
Role = Literal["payer", "provider"]


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
        """Reads the head of a page. Raises `AnswerMalformed` for one that is no CSV file."""
        if response.headers.get("content-type", "").partition(";")[0].strip() != "text/csv":
            raise AnswerMalformed(
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
            raise AnswerMalformed(f"The file has more than {PAGES_MAX} pages. Export a shorter period.")
        following = requests.export_page(f"{self._path}?{urlsplit(found[1]).query}")
        if self.request is not None and following.path == self.request.path:
            raise AnswerMalformed("The gateway names the same page as the next one.")
        return following

    def feed(self, chunk: bytes) -> bytes:
        """The bytes of the file that a part of a page adds: all of the first page, and of the others all but the header line."""
        self._size += len(chunk)
        if self._size > PAGE_BYTES_MAX or self._clock() > self._until_s:
            raise AnswerMalformed(
                "A page of the file is too long or takes too long. Export a shorter period."
            )
        if self._head is None:
            return chunk
        self._head += chunk
        line, end, rest = self._head.partition(b"\r\n")
        if not end:
            if len(line) > HEADER_BYTES_MAX:
                raise AnswerMalformed("The first line of the file is too long.")
            return b""
        self._head = None
        if self._header is None:
            self._header = line
            return line + end + rest
        if line != self._header:
            raise AnswerMalformed("The columns changed between two pages of the file. Export it again.")
        return rest

    def close_page(self) -> None:
        """Call it when a page has ended. The next request follows."""
        if self._head is not None:
            raise AnswerMalformed("A page of the file has no header line.")
        self.request = self._next


class ControlBuilder(Protocol):
    """Builds the HTTP request of a control request, signed where it must be."""

    def build_control(self, control_request: ControlRequest) -> httpx.Request: ...


def read_pages(http: httpx.Client, driver: ControlBuilder, first: ControlRequest) -> Iterator[bytes]:
    """The parts of the file. Raises `GatewayRefused` and `GatewayUnreachable`."""
    pages = CsvPages(first)
    while pages.request is not None:
        try:
            response = http.send(driver.build_control(pages.request), stream=True)
            try:
                if response.status_code != _OK:
                    problem = _ProblemBody(response)
                    for chunk in () if problem.is_read else response.iter_raw():
                        problem.add(chunk)
                    problem.refuse(pages.request)
                pages.open_page(response)
                yield from filter(None, map(pages.feed, response.iter_raw()))
            finally:
                response.close()
        except (httpx.TransportError, ResponseTooLong) as exc:
            raise build_unreachable(exc, transaction=None) from exc
        pages.close_page()


async def read_pages_async(
    http: httpx.AsyncClient, driver: ControlBuilder, first: ControlRequest
) -> AsyncIterator[bytes]:
    """See `read_pages`."""
    pages = CsvPages(first)
    while pages.request is not None:
        try:
            response = await http.send(driver.build_control(pages.request), stream=True)
            try:
                if response.status_code != _OK:
                    problem = _ProblemBody(response)
                    if not problem.is_read:
                        async for chunk in response.aiter_raw():
                            problem.add(chunk)
                    problem.refuse(pages.request)
                pages.open_page(response)
                async for chunk in response.aiter_raw():
                    if part := pages.feed(chunk):
                        yield part
            finally:
                await response.aclose()
        except (httpx.TransportError, ResponseTooLong) as exc:
            raise build_unreachable(exc, transaction=None) from exc
        pages.close_page()


class _ProblemBody:
    """The body of a refusal, bounded."""

    def __init__(self, response: httpx.Response) -> None:
        # A transport that reads ahead, such as httpx.MockTransport, has the content already.
        self.is_read = response.is_stream_consumed
        self._content = response.content if self.is_read else b""
        self._status = response.status_code

    def add(self, chunk: bytes) -> None:
        self._content += chunk
        if len(self._content) > PROBLEM_BYTES_MAX:
            raise ResponseTooLong

    def refuse(self, request: ControlRequest) -> None:
        """Raises `GatewayRefused`, and `AnswerMalformed` for a 2xx that is no file."""
        read_document(request, self._status, self._content)
        raise AnswerMalformed(f"The gateway responded with status {self._status} and no CSV file.")
