"""The response of an export: its head, its pages, its pace, and how it ends when something fails."""

import asyncio
import csv
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Message

from tests.kit.asgi_exchange import Exchange
from tests.kit.csv_exports import PUBLIC_URL, WALLET_HEADER, export_app, fetch, read_rows
from tests.web.api.test_history_routes import CALL, FREE, NOW_MS, PAYER, PAYMENT, STRANGER, TX, USDC
from tollway.errors import StorageUnavailable
from tollway.ids import CallId
from tollway.ledger.history import HistoryQuery, LastPayment, ListedPayment, PaymentPlace, PaymentQuery
from tollway.ledger.records import CallRecord
from tollway.limits import DEFAULT_LIMITS
from tollway.web.api.export_rows import CALL_COLUMNS, PAYMENT_COLUMNS
from tollway.web.api.exports import CHUNK_ROWS

ROWS = 3 * CHUNK_ROWS


def call(number: int) -> CallRecord:
    return replace(CALL, id=CallId(f"call_{number:06}"), created_ms=NOW_MS - number)


class FakeHistory:
    """Calls and payments of one wallet, newest first. `fails_at`: the number of the chunk that the database refuses."""

    def __init__(self, rows: int = 0, *, fails_at: int | None = None) -> None:
        self.rows = [call(number) for number in range(rows)]
        self.listed = [
            ListedPayment(payment=PAYMENT, recorded_ms=NOW_MS, is_restored=False, has_unknown_call=False)
        ]
        self.fails_at = fails_at
        self.chunks: list[HistoryQuery] = []

    def _after(self, query: HistoryQuery) -> list[CallRecord]:
        ids = [one.id for one in self.rows]
        return self.rows if query.before is None else self.rows[ids.index(query.before) + 1 :]

    async def find_last_call(self, query: HistoryQuery) -> CallRecord | None:
        rows = self._after(query)
        return rows[query.limit - 1] if len(rows) > query.limit else None

    async def read_calls(self, query: HistoryQuery) -> tuple[CallRecord, ...]:
        await asyncio.sleep(0)  # as each read of a database, it lets other tasks run
        if len(self.chunks) == self.fails_at:
            raise StorageUnavailable
        self.chunks.append(query)
        return tuple(self._after(query)[: query.limit])

    async def find_last_payment(self, query: PaymentQuery) -> LastPayment | None:
        if query.before is None and query.limit == 1:
            return LastPayment(payment=PAYMENT, place=PaymentPlace(tx_hash=TX, number=3))
        return None

    async def read_payments(self, query: PaymentQuery) -> tuple[ListedPayment, ...]:
        return () if query.before or query.after else tuple(self.listed)


def make_app(history: FakeHistory, **options: Any) -> Any:
    return export_app(history, now_ms=NOW_MS, find_asset=lambda *_: USDC, **options)


async def test_the_head_names_the_file_and_its_format() -> None:
    response = await fetch(make_app(FakeHistory()), "/api/v2/history.csv", PAYER)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert (
        response.headers["content-disposition"]
        == 'attachment; filename="tollway-history-20261121T091500Z.csv"'
    )
    assert "link" not in response.headers
    assert response.text == ",".join(CALL_COLUMNS) + "\r\n"


async def test_a_row_has_the_amount_as_a_decimal_and_in_units() -> None:
    history = FakeHistory()
    history.rows = [CALL, replace(FREE, id=CallId("call_0"), created_ms=NOW_MS - 1)]
    paid, free = await read_rows(make_app(history), "history.csv", PAYER)
    assert (paid["amount"], paid["units"], paid["currency"], paid["state"]) == (
        *("0.01", "10000", "USDC"),
        "charged",
    )
    assert (paid["createdAt"], paid["completedAt"]) == (
        "2026-11-21T09:15:00.007Z",
        "2026-11-21T09:15:00.038Z",
    )
    assert (free["amount"], free["units"], free["asset"], free["state"]) == ("0", "", "", "none")


async def test_cells_that_a_spreadsheet_would_run_are_disarmed_and_quoted() -> None:
    history = FakeHistory()
    history.rows = [replace(CALL, listing_name='=cmd|"/c calc"!A1', path="@SUM(1,2)", idempotency_key="-1+2")]
    text = (await fetch(make_app(history), "/api/v2/history.csv", PAYER)).text
    assert '"\'=cmd|""/c calc""!A1"' in text
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert (row["apiName"], row["path"], row["idempotencyKey"]) == (
        *('\'=cmd|"/c calc"!A1', "'@SUM(1,2)"),
        "'-1+2",
    )


async def test_a_payment_has_its_times_and_both_forms_of_its_amounts() -> None:
    (row,) = await read_rows(make_app(FakeHistory()), "payments.csv", PAYER)
    assert list(row) == list(PAYMENT_COLUMNS)
    assert (row["amount"], row["units"], row["credit"], row["creditUnits"]) == (
        *("0.03", "30000"),
        *("0.02", "20000"),
    )
    assert (row["minedAt"], row["recordedAt"]) == ("1970-01-01T00:00:01.000Z", "2026-11-21T09:15:00.007Z")


async def test_link_names_the_next_page_of_the_same_query() -> None:
    app = make_app(FakeHistory(3))
    path = "/api/v2/history.csv?from=2020-01-01T00:00:00Z&status=failed&limit=2"
    response = await fetch(app, path, PAYER)
    url, _, query = response.links["next"]["url"].partition("?")
    assert url == f"{PUBLIC_URL}/api/v2/history.csv"
    assert set(query.split("&")) == {
        *("from=2020-01-01T00%3A00%3A00.000Z", "to=2026-11-21T09%3A15%3A00.007Z"),
        *("status=failed", "limit=2", "before=call_000001"),
    }
    assert len(await read_rows(app, "history.csv?limit=2", PAYER)) == 3
    payments = await fetch(app, "/api/v2/payments.csv?limit=1&role=provider", PAYER)
    assert f"before={TX}.3" in payments.links["next"]["url"]
    assert "role=provider" in payments.links["next"]["url"]


@pytest.mark.parametrize("given", ["", "?to=2100-01-01T00:00:00Z"])
@pytest.mark.parametrize("path", ["/api/v2/history.csv", "/api/v2/payments.csv"])
async def test_a_file_ends_at_the_shared_time(path: str, given: str) -> None:
    """The time that all gateways share is the time of the rows."""
    app = make_app(FakeHistory(3), shared_ms=lambda: 1_700_000_000_000)
    response = await fetch(app, path + given, PAYER)
    assert response.status_code == 200
    assert "20231114T221320Z" in response.headers["Content-Disposition"]


async def test_an_earlier_end_of_the_query_stays() -> None:
    response = await fetch(
        make_app(FakeHistory(3)), "/api/v2/history.csv?to=2026-01-01T00:00:00Z&limit=1", PAYER
    )
    assert "to=2026-01-01T00%3A00%3A00.000Z" in response.links["next"]["url"]
    assert "20260101T000000Z" in response.headers["content-disposition"]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("limit=0", "limit"),
        ("limit=100001", "limit"),
        ("offset=5", "offset"),
        ("to=yesterday", "to"),
        ("role=auditor", "role"),
        ("status=charged", "status"),
    ],
)
async def test_refuses_what_the_list_refuses_before_it_begins(query: str, parameter: str) -> None:
    response = await fetch(make_app(FakeHistory()), f"/api/v2/history.csv?{query}", PAYER)
    assert (response.status_code, response.json()["errors"][0]["parameter"]) == (422, parameter)


async def test_a_place_of_a_payment_is_a_hash_with_a_number() -> None:
    for before in ("x", "0x12", f"{TX}.", f"{TX}.-1", f"{TX}.1.2"):
        response = await fetch(make_app(FakeHistory()), f"/api/v2/payments.csv?before={before}", PAYER)
        assert response.status_code == 422, before


async def test_head_reads_no_rows() -> None:
    history = FakeHistory(ROWS)
    response = await fetch(make_app(history), "/api/v2/history.csv?limit=1", PAYER, method="HEAD")
    assert (response.status_code, response.content, history.chunks) == (200, b"", [])
    assert "next" in response.links


# ---- The stream, message by message.


def open_exchange(path: str = "/api/v2/history.csv", *, raw_query: bytes = b"") -> Exchange:
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": raw_query,
        "headers": [(WALLET_HEADER.encode(), PAYER.hex().encode())],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("gw.example.com", 443),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    return Exchange(scope, [], is_open=False)


def body_of(sent: list[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


async def test_rows_are_read_in_chunks_and_the_last_message_ends_the_file() -> None:
    history = FakeHistory(ROWS)
    exchange = open_exchange()
    await make_app(history)(exchange.scope, exchange.receive, exchange.send)
    assert exchange.is_ended
    assert body_of(exchange.sent).count(b"\r\n") == ROWS + 1
    assert {query.limit for query in history.chunks} == {CHUNK_ROWS}
    assert len(history.chunks) == 4


async def test_a_database_that_fails_before_the_first_row_is_a_problem() -> None:
    response = await fetch(make_app(FakeHistory(ROWS, fails_at=0)), "/api/v2/history.csv", PAYER)
    assert (response.status_code, response.json()["code"]) == (503, "storage_unavailable")


@pytest.mark.parametrize("fails_at", [1, 2])
async def test_a_database_that_fails_later_breaks_the_response(fails_at: int) -> None:
    exchange = open_exchange()
    app = make_app(FakeHistory(ROWS, fails_at=fails_at))
    await app(exchange.scope, exchange.receive, exchange.send)
    assert exchange.is_started
    assert not exchange.is_ended
    assert body_of(exchange.sent).count(b"\r\n") == fails_at * CHUNK_ROWS + 1


async def test_a_client_that_disconnects_stops_the_reading() -> None:
    history = FakeHistory(ROWS)
    exchange = open_exchange()

    async def leave_at_the_first_row(message: Message) -> None:
        await exchange.send(message)
        if message["type"] == "http.response.body":
            exchange.leave()
            await asyncio.Event().wait()

    await make_app(history)(exchange.scope, exchange.receive, leave_at_the_first_row)
    assert len(history.chunks) == 1
    assert not exchange.is_ended


async def test_the_next_chunk_waits_for_the_client() -> None:
    history = FakeHistory(ROWS)
    exchange, may_go_on = open_exchange(), asyncio.Event()

    async def stall(message: Message) -> None:
        await exchange.send(message)
        if message["type"] == "http.response.body":
            await may_go_on.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(make_app(history)(exchange.scope, exchange.receive, stall))
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(history.chunks) == 1
        may_go_on.set()
    assert len(history.chunks) == 4


@pytest.mark.parametrize(
    "limits",
    [
        {"write_stall_s": 0.01},
        {"export_grace_s": 0.01, "export_rate_bytes_min": 1 << 40},
    ],
    ids=["stalled", "below-the-rate"],
)
async def test_a_client_that_takes_too_little_is_cut_off(limits: dict[str, Any]) -> None:
    exchange = open_exchange()

    async def stall(message: Message) -> None:
        await exchange.send(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    app = make_app(FakeHistory(ROWS), limits=replace(DEFAULT_LIMITS, **limits))
    await app(exchange.scope, exchange.receive, stall)
    assert exchange.is_started
    assert not exchange.is_ended


async def test_time_that_the_gateway_needs_is_not_the_clients() -> None:
    """The clock moves only while rows are read: more than the client may take."""
    now = [0.0]
    history = FakeHistory(ROWS)
    read = history.read_calls

    async def read_slowly(query: HistoryQuery) -> tuple[CallRecord, ...]:
        now[0] += 200
        return await read(query)

    history.read_calls = read_slowly  # type: ignore[method-assign]
    exchange = open_exchange()
    await make_app(history, clock=lambda: now[0])(exchange.scope, exchange.receive, exchange.send)
    assert exchange.is_ended


async def test_a_wallet_and_a_gateway_write_few_files_at_once() -> None:
    limits = replace(DEFAULT_LIMITS, exports_per_wallet_max=1, exports_at_once_max=2, export_wait_s=0.01)
    app = make_app(FakeHistory(ROWS), limits=limits)
    held: list[asyncio.Task[None]] = []
    may_go_on = asyncio.Event()

    def hold(exchange: Exchange) -> Callable[[Message], Any]:
        async def send(message: Message) -> None:
            await exchange.send(message)
            await may_go_on.wait()

        return send

    async with asyncio.TaskGroup() as group:
        first = open_exchange()
        held.append(group.create_task(app(first.scope, first.receive, hold(first))))
        for _ in range(20):
            await asyncio.sleep(0)
        mine = await fetch(app, "/api/v2/history.csv", PAYER)
        assert (mine.status_code, mine.json()["reason"]) == (503, "exports")
        assert mine.headers["retry-after"] == "10"
        second = open_exchange()
        second.scope["headers"] = [(WALLET_HEADER.encode(), STRANGER.hex().encode())]
        held.append(group.create_task(app(second.scope, second.receive, hold(second))))
        for _ in range(20):
            await asyncio.sleep(0)
        other = await fetch(app, "/api/v2/payments.csv", USDC.token or PAYER)
        assert (other.status_code, other.json()["reason"]) == (503, "exports")
        may_go_on.set()
    assert (await fetch(app, "/api/v2/history.csv", PAYER)).status_code == 200
