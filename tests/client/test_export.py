"""CSV files page by page: one header line, only pages of this gateway, and never an incomplete file that looks complete."""

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tollway.client import AsyncTollwayClient, GatewayRefused, GatewayUnreachable, TollwayClient
from tollway.client.errors import GatewayResponseInvalid
from tollway.client.export import HEADER_BYTES_MAX, PAGE_BYTES_MAX, PAGES_MAX, CsvPages
from tollway.client.requests import export_page

GATEWAY = "https://gateway.test"
HEAD = "callId,amount"


class Files:
    """A gateway that serves pages. `broken_at`: the page that breaks off."""

    def __init__(self, pages: int, *, broken_at: int | None = None) -> None:
        self.pages = pages
        self.broken_at = broken_at
        self.seen: list[httpx.Request] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        number = int(request.url.params.get("before", 0))
        headers = {"content-type": "text/csv; charset=utf-8; header=present"}
        if number + 1 < self.pages:
            # Another host: only the query of the URL counts.
            target = f"https://elsewhere.test/api/v2/other?before={number + 1}&to=2026"
            headers["link"] = f'<{target}>; rel="next"'
        return httpx.Response(200, headers=headers, stream=self._stream(number))

    def _stream(self, number: int) -> Any:
        files = self

        class Parts(httpx.SyncByteStream, httpx.AsyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                yield b"call"
                yield f"{HEAD[4:]}\r\n".encode()
                if number == files.broken_at:
                    raise httpx.RemoteProtocolError("incomplete chunked read")
                yield f"call_{number},1\r\n".encode()

            async def __aiter__(self) -> Any:
                for part in iter(self):
                    yield part

        return Parts()


@pytest.fixture(params=[TollwayClient, AsyncTollwayClient], ids=["sync", "async"])
def make(request: Any, wallet: Any, store_path: Any) -> Any:
    def build(files: Files) -> Any:
        transport = httpx.MockTransport(files.handle)
        return request.param(GATEWAY, wallet=wallet, store_path=store_path, transport=transport)

    return build


async def read(parts: Any) -> bytes:
    if inspect.isasyncgen(parts):
        return b"".join([part async for part in parts])
    return b"".join(parts)


async def test_all_pages_are_one_file_with_one_header_line(make: Any) -> None:
    files = Files(3)
    text = await read(make(files).export_calls(since=datetime(2026, 11, 1, tzinfo=UTC), role="provider"))
    assert text.decode() == f"{HEAD}\r\ncall_0,1\r\ncall_1,1\r\ncall_2,1\r\n"
    first, second, _ = files.seen
    assert str(first.url) == f"{GATEWAY}/api/v2/history.csv?role=provider&from=2026-11-01T00%3A00%3A00.000Z"
    assert str(second.url) == f"{GATEWAY}/api/v2/history.csv?before=1&to=2026"
    for request in files.seen:
        assert request.headers["accept-encoding"] == "identity"
        assert "signature-input" in request.headers


async def test_payments_have_a_file_too(make: Any) -> None:
    files = Files(1)
    await read(make(files).export_payments(wallet="0x" + "22" * 20))
    assert files.seen[0].url.path == "/api/v2/payments.csv"
    assert files.seen[0].url.params["wallet"] == "0x" + "22" * 20


@pytest.mark.parametrize("broken_at", [0, 1])
async def test_a_transfer_that_breaks_off_raises(make: Any, broken_at: int) -> None:
    with pytest.raises(GatewayUnreachable):
        await read(make(Files(2, broken_at=broken_at)).export_calls())


async def test_a_refusal_is_that_of_the_gateway(make: Any) -> None:
    files = Files(1)
    files.handle = lambda _: httpx.Response(403, json={"code": "not_viewer", "detail": "No."})  # type: ignore[method-assign]
    with pytest.raises(GatewayRefused) as refused:
        await read(make(files).export_calls())
    assert refused.value.problem.code == "not_viewer"


async def test_an_older_gateway_has_no_such_file(make: Any) -> None:
    files = Files(1)
    files.handle = lambda _: httpx.Response(200, json={"calls": []})  # type: ignore[method-assign]
    with pytest.raises(GatewayResponseInvalid, match="no CSV file"):
        await read(make(files).export_calls())


async def test_a_misspelt_filter_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match="did you mean role"):
        make(Files(1)).export_calls(rle="payer")
    with pytest.raises(ValueError, match="time zone"):
        make(Files(1)).export_calls(until=datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused


# ---- A hostile gateway.


def page(link: str = "") -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/csv", "link": link})


def test_refuses_endless_lines_pages_and_files() -> None:
    pages = CsvPages(export_page("/history.csv"), clock=lambda: 0.0)
    pages.open_page(page())
    with pytest.raises(GatewayResponseInvalid, match="first line"):
        pages.feed(b"x" * (HEADER_BYTES_MAX + 1))
    pages = CsvPages(export_page("/history.csv"), clock=lambda: 0.0)
    pages.open_page(page())
    pages.feed(b"a\r\n")
    with pytest.raises(GatewayResponseInvalid, match="too long"):
        pages.feed(bytes(PAGE_BYTES_MAX))
    pages = CsvPages(export_page("/history.csv"), clock=lambda: 0.0)
    for number in range(PAGES_MAX - 1):
        pages.open_page(page(f"</x?before={number}>; rel=next"))
        pages.feed(b"a\r\n")
        pages.close_page()
    with pytest.raises(GatewayResponseInvalid, match="pages"):
        pages.open_page(page("</x?before=z>; rel=next"))


def test_refuses_a_page_that_names_itself_other_columns_and_no_header() -> None:
    pages = CsvPages(export_page("/history.csv?before=1"), clock=lambda: 0.0)
    with pytest.raises(GatewayResponseInvalid, match="same page"):
        pages.open_page(page('<https://x/api/v2/history.csv?before=1>; rel="next"'))
    pages = CsvPages(export_page("/history.csv"), clock=lambda: 0.0)
    pages.open_page(page("</x?before=1>; rel=next"))
    assert pages.feed(b"a,b\r\n1,2\r\n") == b"a,b\r\n1,2\r\n"
    pages.close_page()
    pages.open_page(page())
    with pytest.raises(GatewayResponseInvalid, match="columns changed"):
        pages.feed(b"b,a\r\n")
    pages.open_page(page())
    with pytest.raises(GatewayResponseInvalid, match="no header"):
        pages.close_page()


def test_a_page_has_a_deadline() -> None:
    now = [0.0]
    pages = CsvPages(export_page("/history.csv"), clock=lambda: now[0])
    pages.open_page(page())
    now[0] = 8_000.0
    with pytest.raises(GatewayResponseInvalid, match="too long"):
        pages.feed(b"a\r\n")
