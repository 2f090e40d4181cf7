"""`GET /api/v2/history.csv` and `/payments.csv`: the lists of `web/api/history_routes.py` as files, with the same filter.

A page has at most `PAGE_ROWS_MAX` rows; `Link` with `rel="next"` names the next one. All pages of a file have the same `to`, the moment of the first request unless
the query has an earlier one. Rows are read in chunks of `CHUNK_ROWS`, each in a short read of the database, and the next chunk is read when the client has taken the
last one. So neither memory nor a transaction grows with the file. Before each further chunk the gateway asks again for the session, the permission and a block of
the wallet. An end of one of them, as a failure after the head, ends the response without its last chunk: the client sees a broken transfer and never a file that
looks complete.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from tollway.csv_text import csv_line
from tollway.errors import Code, Problem, Refusal, StorageUnavailable
from tollway.ids import Address
from tollway.ledger.history import HistoryQuery, PaymentQuery
from tollway.limits import Limits
from tollway.web.api.context import FindAsset, WebContext
from tollway.web.api.export_rows import CALL_COLUMNS, PAYMENT_COLUMNS, write_call, write_payment
from tollway.web.api.history_routes import HistoryFilters, PaymentFilters
from tollway.web.http.loop_share import run_in_share
from tollway.web.http.query import QueryModel, format_time, read_query, whole_number
from tollway.web.http.read_turns import leave_turn

PAGE_ROWS_MAX = 100_000
CHUNK_ROWS = 200
"""Rows that are read at once."""
ROWS_AT_ONCE = 20
"""Rows that are written before other requests run: less than a millisecond of the event loop."""
RETRY_S = 10
MEDIA_TYPE = "text/csv; charset=utf-8; header=present"

_log = structlog.get_logger(__name__)


class CallExportParameters(HistoryFilters):
    """The query of `GET /history.csv`. `limit`: rows of a page."""

    limit: Annotated[int, whole_number(1, PAGE_ROWS_MAX)] = PAGE_ROWS_MAX


class PaymentExportParameters(PaymentFilters):
    """The query of `GET /payments.csv`. `limit`: rows of a page."""

    limit: Annotated[int, whole_number(1, PAGE_ROWS_MAX)] = PAGE_ROWS_MAX


CALLS_PATH, PAYMENTS_PATH = "/api/v2/history.csv", "/api/v2/payments.csv"


def export_router(
    context: WebContext, *, calls_path: str = CALLS_PATH, payments_path: str = PAYMENTS_PATH
) -> Router:
    """The two routes. `wallet` authenticates the request before anything is validated. Each router has slots of its own."""
    slots = ExportSlots(context.limits)

    async def export_calls(request: Request) -> Response:
        caller = await context.authenticate(request)
        given = read_query(CallExportParameters, request.scope["query_string"])
        reading = _ExportReading(context, request, caller.address, named=given.wallet)
        owner = await reading.check_access()
        as_of_ms = _as_of(given.to_ms, context.shared_ms())
        query = HistoryQuery(**{**dict(given), "wallet": owner, "to_ms": as_of_ms})

        async def open_page() -> CsvPage:
            last = await context.call_history.find_last_call(query)
            place = None if last is None else (last.created_ms, last.id)
            before = None if last is None else last.id
            return CsvPage(
                name=_file_name("history", as_of_ms),
                columns=CALL_COLUMNS,
                chunks=_read_calls(reading, query, last_place=place),
                next_url=before and _next_url(context, calls_path, given, before=before, to_ms=as_of_ms),
            )

        return CsvResponse(open_page, slots=slots, reading=reading, context=context)

    async def export_payments(request: Request) -> Response:
        caller = await context.authenticate(request)
        given = read_query(PaymentExportParameters, request.scope["query_string"])
        reading = _ExportReading(context, request, caller.address, named=given.wallet)
        owner = await reading.check_access()
        as_of_ms = _as_of(given.to_ms, context.shared_ms())
        query = PaymentQuery(**{**dict(given), "wallet": owner, "to_ms": as_of_ms})

        async def open_page() -> CsvPage:
            last = await context.call_history.find_last_payment(query)
            place = None if last is None else (last.payment.block_time, last.payment.id)
            before = None if last is None else str(last.place)
            return CsvPage(
                name=_file_name("payments", as_of_ms),
                columns=PAYMENT_COLUMNS,
                chunks=_read_payments(reading, query, last_place=place),
                next_url=before and _next_url(context, payments_path, given, before=before, to_ms=as_of_ms),
            )

        return CsvResponse(open_page, slots=slots, reading=reading, context=context)

    return Router(
        [
            Route(calls_path, export_calls, methods=["GET"]),
            Route(payments_path, export_payments, methods=["GET"]),
        ]
    )


def _as_of(to_ms: int | None, now_ms: int) -> int:
    return now_ms if to_ms is None else min(to_ms, now_ms)


def _file_name(kind: str, as_of_ms: int) -> str:
    moment = datetime.fromtimestamp(as_of_ms / 1000, UTC)
    return f"tollway-{kind}-{moment:%Y%m%dT%H%M%SZ}.csv"


def _next_url(context: WebContext, path: str, given: QueryModel, *, before: str, to_ms: int) -> str:
    """The URL of the next page: the same query, with `before` and `to`."""
    fields = type(given).model_fields
    query = {fields[name].alias or name: getattr(given, name) for name in given.model_fields_set}
    if isinstance(query.get("from"), int):
        query["from"] = format_time(query["from"])
    query |= {"before": before, "to": format_time(to_ms)}
    return f"{context.public_url}{path}?{urlencode(query, quote_via=quote)}"


# ---- Rows.


class _ExportReading:
    """What one export reads for its wallet, as long as the wallet may. `slot`: set when the export has one."""

    def __init__(
        self, context: WebContext, request: Request, wallet: Address, *, named: Address | None
    ) -> None:
        self.context = context
        self.request = request
        self.wallet = wallet
        self.slot = ExportSlot(wallet)
        self._named = named

    async def check_access(self) -> Address:
        """The wallet whose books are read. Raises Refusal when the session, the permission or the slot has ended, and for a blocked wallet."""
        if self.slot.has_to_end:
            raise Refusal(_SLOT_ENDED)
        if not await self.context.is_session_open(self.request):
            raise Refusal(_SESSION_ENDED)
        self.context.check_block(self.wallet)
        return await self.context.book_access.resolve_wallet(self.wallet, self._named)

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self.context.read_turns.turn("exports", self.wallet)


R = TypeVar("R")


async def _write_rows(rows: Sequence[R], write: Callable[[R, FindAsset], str], find_asset: FindAsset) -> str:
    """The lines of a chunk. Other requests run between two slices."""
    lines: list[str] = []
    for start in range(0, len(rows), ROWS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        lines += [write(row, find_asset) for row in rows[start : start + ROWS_AT_ONCE]]
    return "".join(lines)


async def _read_calls(
    reading: _ExportReading, query: HistoryQuery, *, last_place: tuple[int, str] | None
) -> AsyncGenerator[str]:
    """The lines of a page, chunk by chunk. `last_place`: of its last call; None for the last page."""
    context = reading.context
    chunk = replace(query, limit=min(CHUNK_ROWS, query.limit))
    while True:
        async with reading.turn():
            calls = await context.call_history.read_calls(chunk)
            own = [one for one in calls if last_place is None or (one.created_ms, one.id) >= last_place]
            lines = await _write_rows(own, write_call, context.find_asset)
        if lines:
            yield lines
        if len(own) < chunk.limit:
            return
        await reading.check_access()
        chunk = replace(chunk, before=own[-1].id)


async def _read_payments(
    reading: _ExportReading, query: PaymentQuery, *, last_place: tuple[int, int] | None
) -> AsyncGenerator[str]:
    """See `_read_calls`."""
    context = reading.context
    chunk = replace(query, limit=min(CHUNK_ROWS, query.limit))
    while True:
        async with reading.turn():
            payments = await context.call_history.read_payments(chunk)
            own = [
                one
                for one in payments
                if last_place is None or (one.payment.block_time, one.payment.id) >= last_place
            ]
            lines = await _write_rows(own, write_payment, context.find_asset)
        if lines:
            yield lines
        if len(own) < chunk.limit:
            return
        await reading.check_access()
        chunk = replace(chunk, after=own[-1].payment)


# ---- The response.


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvPage:
    """One page of a file. `next_url`: of the page after it."""

    name: str
    columns: Sequence[str]
    chunks: AsyncGenerator[str]
    next_url: str | None

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-disposition", f'attachment; filename="{self.name}"'.encode()),
        ]
        if self.next_url is not None:
            headers.append((b"link", f'<{self.next_url}>; rel="next"'.encode()))
        return headers


class ExportSlot:
    """The slot of one export. `has_to_end`: another wallet waits for it; the export ends at its next chunk."""

    __slots__ = ("has_to_end", "wallet")

    def __init__(self, wallet: Address) -> None:
        self.wallet = wallet
        self.has_to_end = False


class ExportSlots:
    """A limit of the files that are written at once, in all and for one wallet. While wallets without a slot wait for one, every other wallet keeps one: the newest
    of its further exports ends. For one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_wallet: dict[Address, list[ExportSlot]] = {}
        self._waiting: OrderedDict[Address, asyncio.Future[None]] = OrderedDict()
        self.running = 0

    @asynccontextmanager
    async def enter(self, slot: ExportSlot) -> AsyncIterator[None]:
        """Waits up to `export_wait_s` for a slot. Raises Refusal (503) without one, and at once for a wallet that has as many as it may."""
        wallet = slot.wallet
        mine = len(self._by_wallet.get(wallet, ()))
        if mine >= self._limits.exports_per_wallet_max or wallet in self._waiting:
            raise Refusal(_too_many("This wallet reads as many exports at once as one wallet may."))
        if self.running < self._limits.exports_at_once_max:
            self.running += 1
        elif mine:
            raise Refusal(_ALL_TAKEN)
        else:
            await self._wait(wallet)
        self._by_wallet.setdefault(wallet, []).append(slot)
        try:
            yield
        finally:
            self._by_wallet[wallet].remove(slot)
            if not self._by_wallet[wallet]:
                del self._by_wallet[wallet]
            self._release()

    async def _wait(self, wallet: Address) -> None:
        """Waits until another export gives its slot."""
        given = self._waiting[wallet] = asyncio.get_running_loop().create_future()
        self._end_one()
        try:
            async with asyncio.timeout(self._limits.export_wait_s):
                await given
        except (TimeoutError, asyncio.CancelledError) as exc:
            self._waiting.pop(wallet, None)
            if given.done() and not given.cancelled():  # given in the moment of the end
                self._release()
            if isinstance(exc, TimeoutError):
                raise Refusal(_ALL_TAKEN) from exc
            raise

    def _release(self) -> None:
        """Gives the slot to the wallet that waits longest."""
        while self._waiting:
            _, given = self._waiting.popitem(last=False)
            if not given.done():
                given.set_result(None)
                return
        self.running -= 1

    def _end_one(self) -> None:
        """Has an export end whose wallet has another one."""
        for slots in self._by_wallet.values():
            kept = [slot for slot in slots if not slot.has_to_end]
            if len(kept) > 1:
                kept[-1].has_to_end = True
                return


def _too_many(what: str) -> Problem:
    return Problem(
        code=Code.OVERLOADED,
        detail=f"{what} Send the request again after Retry-After.",
        reason="exports",
        retry_after_s=RETRY_S,
        payment_state="none",
    )


_ALL_TAKEN = _too_many("The gateway writes as many exports at once as it can.")
_SLOT_ENDED = _too_many("Another wallet waits for a slot, and this wallet has a second one.")
_SESSION_ENDED = Problem(code=Code.SESSION_EXPIRED, detail="The session has ended. Sign in again.")


class CsvResponse(Response):
    """Streams one page. Until its first rows are read, a failure is a problem response; after that the response breaks off."""

    def __init__(
        self,
        open_page: Callable[[], Awaitable[CsvPage]],
        *,
        slots: ExportSlots,
        reading: _ExportReading,
        context: WebContext,
    ) -> None:
        super().__init__()
        self._open_page = open_page
        self._slots = slots
        self._reading = reading
        self._limits = context.limits
        self._clock = context.clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leave_turn(scope)  # each chunk takes a turn of its own
        async with self._slots.enter(self._reading.slot):
            async with self._reading.turn():
                page = await self._open_page()
            first = csv_line(page.columns)
            if scope["method"] == "HEAD":
                await self._send_head(page, send)
                await send({"type": "http.response.body", "body": b""})
                return
            async with aclosing(page.chunks) as chunks:
                first += await anext(chunks, "")
                await self._send_head(page, send)
                if await self._stream(first, chunks, scope, receive, send):
                    await send({"type": "http.response.body", "body": b""})

    async def _send_head(self, page: CsvPage, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": page.headers()})

    async def _stream(
        self, first: str, chunks: AsyncIterator[str], scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """True when every row was sent. Otherwise no final message follows, and the server closes the connection."""
        errors: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                flow = group.create_task(run_in_share(scope, partial(self._send_rows, first, chunks, send)))
                watcher = group.create_task(_wait_disconnect(receive))
                watcher.add_done_callback(lambda _: flow.cancel())
                flow.add_done_callback(lambda _: watcher.cancel())
        except* (StorageUnavailable, TimeoutError) as failed:
            errors = [type(one).__name__ for one in failed.exceptions]
        except* Refusal as ended:
            errors = [one.problem.code.value for one in ended.exceptions if isinstance(one, Refusal)]
        if errors or flow.cancelled():
            _log.warning("export_broken", errors=errors or ["ClientGone"])
            return False
        return True

    async def _send_rows(self, first: str, chunks: AsyncIterator[str], send: Send) -> None:
        pace = _Pace(self._limits, self._clock)
        await pace.send(first.encode(), send)
        async for text in chunks:
            await pace.send(text.encode(), send)


class _Pace:
    """Sends pieces to a client, and raises TimeoutError for a client that takes nothing for `write_stall_s`, or less than `export_rate_bytes_min` on average.
    Only the time in which the gateway waits for the client counts; but no page takes longer than `export_deadline_s`."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._waited_s = 0.0
        self._sent = 0
        self._ends_s = clock() + limits.export_deadline_s

    async def send(self, content: bytes, send: Send) -> None:
        most = self._limits.buffer_bytes
        for start in range(0, len(content), most):
            piece = content[start : start + most]
            began_s = self._clock()
            if began_s >= self._ends_s:
                raise TimeoutError
            async with asyncio.timeout(self._time_left_s()):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            self._waited_s += self._clock() - began_s
            self._sent += len(piece)

    def _time_left_s(self) -> float:
        limits = self._limits
        earned_s = limits.export_grace_s + self._sent / limits.export_rate_bytes_min
        left_s = min(earned_s - self._waited_s, self._ends_s - self._clock())
        return min(limits.write_stall_s, max(0.0, left_s))


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
