"""What ends an export while it runs: the session, the permission or a block of the wallet, another wallet that waits for a slot, and the deadline. Each end is visible."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Message

from tests.kit.asgi_exchange import Exchange
from tests.kit.csv_exports import WALLET_HEADER, fetch
from tests.kit.listings import find_block_in
from tests.web.api.test_exports import FakeHistory, make_app, open_exchange
from tests.web.api.test_history_routes import PAYER, STRANGER
from tollway.errors import Code, Problem, Refusal
from tollway.identity.viewers import NOT_VIEWER
from tollway.ids import Address
from tollway.ledger.history import HistoryQuery
from tollway.ledger.records import CallRecord
from tollway.limits import DEFAULT_LIMITS
from tollway.web.api.exports import CHUNK_ROWS, ExportSlot, ExportSlots
from tollway.web.http.loop_share import ControlPlaneShare, LoopShare
from tollway.web.http.read_turns import ReadLimit, ReadTurns

ROWS = 4 * CHUNK_ROWS
THIRD = Address(b"\x03" * 20)
LIMITS = replace(DEFAULT_LIMITS, exports_at_once_max=3, exports_per_wallet_max=2)


class EndingAccess:
    """What lets a wallet read; each part can end. `asked`: how often the permission was asked for."""

    def __init__(self) -> None:
        self.is_session_open = self.is_viewer = True
        self.blocked: set[Address] = set()
        self.asked = 0

    async def resolve_wallet(self, reader: Address, named: Address | None) -> Address:
        self.asked += 1
        if not self.is_viewer:
            raise Refusal(NOT_VIEWER)
        return named or reader

    def make_app(self, history: FakeHistory, **options: Any) -> Any:
        return make_app(
            history,
            book_access=self,
            open_sessions=lambda: self.is_session_open,
            find_block=find_block_in(self.blocked),
            **options,
        )


def end_session(access: EndingAccess) -> None:
    access.is_session_open = False


def withdraw_viewer(access: EndingAccess) -> None:
    access.is_viewer = False


def block_wallet(access: EndingAccess) -> None:
    access.blocked.add(PAYER)


def count_rows(exchange: Exchange) -> int:
    """Rows of calls, without the line of the columns."""
    return b"".join(one.get("body", b"") for one in exchange.sent).count(b"\r\n") - 1


def exchange_of(wallet: Address) -> Exchange:
    exchange = open_exchange()
    exchange.scope["headers"] = [(WALLET_HEADER.encode(), wallet.hex().encode())]
    return exchange


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("end", [end_session, withdraw_viewer, block_wallet])
@pytest.mark.parametrize("chunks", [1, 3])
async def test_an_export_ends_visibly_with_what_allowed_it(
    end: Callable[[EndingAccess], None], chunks: int
) -> None:
    access, history = EndingAccess(), FakeHistory(ROWS)
    read = history.read_calls

    async def read_and_end(query: HistoryQuery) -> tuple[CallRecord, ...]:
        rows = await read(query)
        if len(history.chunks) == chunks:
            end(access)
        return rows

    history.read_calls = read_and_end  # type: ignore[method-assign]
    exchange = open_exchange()
    await access.make_app(history)(exchange.scope, exchange.receive, exchange.send)
    assert exchange.status == 200
    assert count_rows(exchange) == chunks * CHUNK_ROWS
    assert not exchange.is_ended


@pytest.mark.parametrize("end", [end_session, withdraw_viewer, block_wallet])
async def test_what_has_ended_begins_no_export(end: Callable[[EndingAccess], None]) -> None:
    access, history = EndingAccess(), FakeHistory(ROWS)
    end(access)
    refused = await fetch(access.make_app(history), "/api/v2/history.csv", PAYER)
    assert refused.status_code in (401, 403)
    assert history.chunks == []


async def test_access_is_asked_for_before_each_further_chunk() -> None:
    access = EndingAccess()
    answer = await fetch(access.make_app(FakeHistory(ROWS)), "/api/v2/history.csv", PAYER)
    assert answer.text.count("\r\n") == ROWS + 1
    assert access.asked == 1 + ROWS // CHUNK_ROWS


async def test_a_page_has_a_deadline_however_fast_its_reader_is() -> None:
    now = [0.0]
    history = FakeHistory(ROWS)
    read = history.read_calls

    async def read_late(query: HistoryQuery) -> tuple[CallRecord, ...]:
        now[0] += DEFAULT_LIMITS.export_deadline_s / 2
        return await read(query)

    history.read_calls = read_late  # type: ignore[method-assign]
    exchange = open_exchange()
    await make_app(history, clock=lambda: now[0])(exchange.scope, exchange.receive, exchange.send)
    assert not exchange.is_ended
    assert 0 < count_rows(exchange) < ROWS


async def test_the_rows_of_an_export_count_as_time_of_the_control_plane() -> None:
    now_s = 0.0
    history = FakeHistory(ROWS)
    share, spent = LoopShare(lambda: now_s), list[float]()
    share.spend = spent.append  # type: ignore[method-assign]
    read = history.read_calls

    async def read_slowly(query: HistoryQuery) -> tuple[CallRecord, ...]:
        nonlocal now_s
        now_s += 1.0
        return await read(query)

    history.read_calls = read_slowly  # type: ignore[method-assign]
    exchange = open_exchange()
    app = ControlPlaneShare(make_app(history), share=share, unpaced=())
    await app(exchange.scope, exchange.receive, exchange.send)
    assert exchange.is_ended
    assert now_s > 1.0
    assert sum(spent) == now_s


async def test_exports_take_turns_with_other_reads_of_books() -> None:
    """Two exports that open at the same moment hold no turn while they wait for one."""
    turns = ReadTurns()
    app = make_app(FakeHistory(ROWS), read_turns=turns)
    others = [THIRD, Address(b"\x04" * 20)]
    for wallet in others:
        await turns.acquire("books", wallet)
    exchanges = [exchange_of(wallet) for wallet in (PAYER, STRANGER)]
    async with asyncio.TaskGroup() as group:
        for one in exchanges:
            group.create_task(app(one.scope, one.receive, one.send))
        await settle()
        assert turns.waiting == 2
        assert not any(one.is_started for one in exchanges)
        for wallet in others:
            turns.release(wallet)
    assert all(one.is_ended for one in exchanges)


async def test_exports_that_open_together_hold_no_turn_while_they_wait_for_one() -> None:
    turns = ReadTurns()
    app = ReadLimit(make_app(FakeHistory(ROWS), read_turns=turns), turns=turns)
    exchanges = [exchange_of(wallet) for wallet in (PAYER, STRANGER, THIRD)]
    async with asyncio.TaskGroup() as group:
        for one in exchanges:
            group.create_task(app(one.scope, one.receive, one.send))
    assert all(one.is_ended for one in exchanges)


# ---- Slots.


async def test_a_wallet_keeps_one_slot_while_another_wallet_waits() -> None:
    access, history = EndingAccess(), FakeHistory(ROWS)
    app = access.make_app(history, limits=LIMITS)
    may_go_on = asyncio.Event()

    def hold(exchange: Exchange) -> Callable[[Message], Any]:
        async def send(message: Message) -> None:
            await exchange.send(message)
            if message["type"] == "http.response.body":
                await may_go_on.wait()

        return send

    first, second, other, waiting = (exchange_of(one) for one in (PAYER, PAYER, STRANGER, THIRD))
    async with asyncio.TaskGroup() as group:
        for one in (first, second, other):
            group.create_task(app(one.scope, one.receive, hold(one)))
            await settle()
        group.create_task(app(waiting.scope, waiting.receive, waiting.send))
        await settle()
        assert not waiting.is_started
        may_go_on.set()
    assert (first.is_ended, other.is_ended, waiting.is_ended) == (True, True, True)
    assert count_rows(waiting) == ROWS
    assert not second.is_ended, "the second file of one wallet ends, visibly"
    assert count_rows(second) == CHUNK_ROWS


async def enter(slots: ExportSlots, stack: AsyncExitStack, wallet: Address) -> ExportSlot:
    slot = ExportSlot(wallet)
    await stack.enter_async_context(slots.enter(slot))
    return slot


async def test_a_wallet_has_two_slots_while_none_waits() -> None:
    slots = ExportSlots(LIMITS)
    async with AsyncExitStack() as stack:
        taken = [await enter(slots, stack, wallet) for wallet in (PAYER, PAYER, STRANGER)]
        assert not any(slot.has_to_end for slot in taken)
        for wallet in (PAYER, STRANGER):  # a wallet with a slot waits for none
            with pytest.raises(Refusal) as refused:
                await enter(slots, stack, wallet)
            assert refused.value.problem.reason == "exports"
        assert slots.running == 3
    assert slots.running == 0


async def test_a_wallet_that_waits_too_long_is_refused() -> None:
    slots = ExportSlots(replace(LIMITS, exports_at_once_max=1, export_wait_s=0.01))
    async with AsyncExitStack() as stack:
        only = await enter(slots, stack, PAYER)
        with pytest.raises(Refusal) as refused:
            await enter(slots, stack, STRANGER)
        problem: Problem = refused.value.problem
        assert (problem.code, problem.reason) == (Code.OVERLOADED, "exports")
        assert not only.has_to_end, "the only slot of a wallet does not end"
    async with AsyncExitStack() as stack:
        await enter(slots, stack, STRANGER)
    assert slots.running == 0


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_slot_of_a_client_that_left_is_not_lost(is_given: bool) -> None:
    slots = ExportSlots(replace(LIMITS, exports_at_once_max=1))
    async with AsyncExitStack() as held, AsyncExitStack() as left, asyncio.TaskGroup() as group:
        await enter(slots, held, PAYER)
        waiting = group.create_task(enter(slots, left, STRANGER))
        await settle()
        if is_given:
            await held.aclose()
        waiting.cancel()
        await settle()
        if not is_given:
            await held.aclose()
        assert slots.running == 0
        await enter(slots, held, THIRD)
    assert slots.running == 0
