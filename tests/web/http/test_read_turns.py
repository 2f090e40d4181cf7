"""Turns of the expensive reads: two at once of all kinds, fair by kind and by holder, from the arrival or the proof of the wallet to the start of the response."""

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message, Receive, Scope, Send

from tollway.ids import Address
from tollway.web.http.read_turns import (
    READS_AT_ONCE,
    Holder,
    ReadKind,
    ReadLimit,
    ReadTurns,
    enter_turn,
    kind_of_read,
    leave_turn,
)

MANY, FEW, OTHER = Address(b"\x01" * 20), Address(b"\x02" * 20), Address(b"\x03" * 20)
BOOKS = (
    *("/api/v2/history", "/api/v2/history.csv", "/api/v2/history/call_1", "/api/v2/history/call_1/receipt"),
    *("/api/v2/payments", "/api/v2/payments.csv", "/api/v2/payments/0x01", "/api/v2/spending"),
    *("/api/v2/sales", "/api/v2/viewers", "/api/v2/webhooks", "/api/v2/webhooks/wh_1/deliveries"),
    *("/x402/history", "/x402/history/call_1", "/my", "/my/calls", "/my/spending", "/my/apis/api_1"),
)


CATALOG = (
    *("/api/v2/apis", "/api/v2/apis/api_1", "/api/v2/apis/api_1/openapi.json", "/api/v2/facets"),
    *("/x402/discovery/search", "/x402/discovery/resources"),
    *("/openapi.json", "/llms.txt", "/.well-known/api-catalog", "/sitemap.xml"),
)
OTHER_KINDS: tuple[ReadKind, ...] = ("catalog", "searches", "exports", "pages")
PAGES = ("/", "/apis/api_1", "/providers/0x01", "/docs", "/docs/operations/x", "/status", "/problems/x")


class BookApp:
    """Proves the wallet that a request names, reads until `finish` is set, starts its response, and ends it when `is_read` is set."""

    def __init__(self) -> None:
        self.reading: list[Address] = []
        self.begun: list[Address] = []
        self.most = 0
        self.finish = asyncio.Event()
        self.is_read = asyncio.Event()
        self.failure: Exception | None = None
        self.leaves_early = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wallet: Address = scope["wallet"]
        await enter_turn(scope, wallet)
        await enter_turn(scope, wallet)  # a second proof takes no second turn
        self.begun.append(wallet)
        self.reading.append(wallet)
        self.most = max(self.most, len(self.reading))
        if self.leaves_early:
            leave_turn(scope)
        await self.finish.wait()
        self.reading.remove(wallet)
        if self.failure is not None:
            raise self.failure
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.is_read.wait()
        await send({"type": "http.response.body", "body": b""})


async def ask(
    app: ReadLimit, wallet: Address, path: str = BOOKS[0], method: str = "GET", *, address: str = "192.0.2.1"
) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise NotImplementedError

    state = {"client_address": address}
    await app(
        {"type": "http", "method": method, "path": path, "wallet": wallet, "state": state}, receive, send
    )
    return sent


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def app() -> BookApp:
    return BookApp()


@pytest.fixture
def limited(app: BookApp) -> ReadLimit:
    return ReadLimit(app, turns=ReadTurns())


def test_two_reads_are_built_at_once() -> None:
    assert READS_AT_ONCE == 2


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_no_more_than_two_books_are_read_at_once(method: str) -> None:
    failing = []
    for path in BOOKS:
        app = BookApp()
        limited = ReadLimit(app, turns=ReadTurns())
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(ask(limited, wallet, path, method))
                for wallet in (MANY, FEW, OTHER)
                for _ in range(13)
            ]
            await settle()
            reading = list(app.reading)
            app.is_read.set()
            app.finish.set()
        if (reading, app.most) != ([MANY, FEW], 2) or any(len(task.result()) != 2 for task in tasks):
            failing.append(path)
    assert failing == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_all_kinds_together_have_as_many_turns_as_one_kind(method: str) -> None:
    app = BookApp()
    limited = ReadLimit(app, turns=ReadTurns())
    paths = [*BOOKS, *CATALOG, *PAGES]
    async with asyncio.TaskGroup() as group:
        for number, path in enumerate(paths):
            wallet, address = Address(bytes([number]) * 20), f"192.0.2.{number}"
            group.create_task(ask(limited, wallet, path, method, address=address))
        await settle()
        assert len(app.reading) == READS_AT_ONCE
        app.is_read.set()
        app.finish.set()
    assert (len(app.begun), app.most) == (len(paths), READS_AT_ONCE)


@pytest.mark.parametrize("path", [*CATALOG, *PAGES])
async def test_a_client_address_has_one_turn_of_reads_without_a_wallet(
    app: BookApp, limited: ReadLimit, path: str
) -> None:
    app.is_read.set()
    async with asyncio.TaskGroup() as group:
        for wallet in (MANY, FEW, OTHER, MANY):
            group.create_task(ask(limited, wallet, path))
        await settle()
        assert len(app.reading) == 1
        group.create_task(ask(limited, OTHER, path, address="192.0.2.2"))
        await settle()
        assert len(app.reading) == 2
        app.finish.set()
    assert len(app.begun) == 5


async def test_kinds_that_wait_take_turns_in_rotation() -> None:
    """Fifty readers of books, each of another wallet, delay a list by one turn of books."""
    turns, order = ReadTurns(at_once=1), list[str]()

    async def read(kind: ReadKind, holder: Holder) -> None:
        async with turns.turn(kind, holder):
            order.append(kind)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(read("books", Address(bytes([number]) * 20)))
        await settle()
        for kind in OTHER_KINDS:
            for number in range(2):
                group.create_task(read(kind, f"192.0.2.{number} {kind}"))
    later = order[next(place for place, kind in enumerate(order) if kind != "books") :]
    assert later[:9] == [*OTHER_KINDS, "books", *OTHER_KINDS]
    assert len(order) == 58
    assert turns.waiting == 0


async def test_a_wallet_has_one_turn_at_once(app: BookApp, limited: ReadLimit) -> None:
    app.is_read.set()
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(ask(limited, MANY))
        await settle()
        assert app.reading == [MANY]
        app.finish.set()
    assert app.most == 1
    assert len(app.begun) == 40


async def test_wallets_take_turns_in_rotation(app: BookApp, limited: ReadLimit) -> None:
    """A wallet with forty readers delays another one by two turns at most."""
    app.is_read.set()
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(ask(limited, MANY))
        await settle()
        for wallet in (FEW, FEW, OTHER, OTHER):
            group.create_task(ask(limited, wallet))
        await settle()
        app.finish.set()
    assert app.begun[:5] == [MANY, FEW, MANY, FEW, OTHER]
    assert app.begun.index(OTHER, 5) <= 7
    assert len(app.begun) == 44


async def test_a_slow_client_holds_no_turn(app: BookApp, limited: ReadLimit) -> None:
    app.finish.set()
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(ask(limited, MANY))
        await settle()
        assert len(app.begun) == 5, "each response has started, none has ended"
        app.is_read.set()


async def test_a_request_that_waits_for_another_server_leaves_its_turn(
    app: BookApp, limited: ReadLimit
) -> None:
    app.leaves_early = True
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(ask(limited, MANY))
        await settle()
        assert len(app.reading) == 5
        app.is_read.set()
        app.finish.set()
    app.leaves_early = False
    assert len(await ask(limited, MANY)) == 2
    assert app.most == 5


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v2/webhooks"),
        ("PUT", "/api/v2/viewers/0x01"),
        ("POST", "/my/wallets"),
        ("POST", "/mcp"),
        ("POST", "/api/v2/apis"),
        ("PUT", "/api/v2/apis/api_1"),
        ("GET", "/api/v2/auth/nonce"),
        ("GET", "/healthz"),
    ],
)
async def test_other_requests_do_not_wait(app: BookApp, limited: ReadLimit, method: str, path: str) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(ask(limited, MANY, path, method))
        await settle()
        assert len(app.reading) == 5
        app.is_read.set()
        app.finish.set()


def test_an_encoded_path_is_the_path_that_the_router_reads() -> None:
    scope = {"type": "http", "method": "GET", "path": "/api/v2/history", "raw_path": b"/api/v2/%68istory"}
    assert kind_of_read(scope) == "books"


async def test_failed_and_cancelled_reads_leave_their_turns(app: BookApp, limited: ReadLimit) -> None:
    app.failure = OSError()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(limited, wallet)) for wallet in (MANY, MANY, FEW, FEW, OTHER)]
        await settle()
        for task in tasks:  # two have a turn, three wait for one
            task.cancel()
    app.finish.set()
    for _ in range(3):
        with pytest.raises(OSError):
            await ask(limited, MANY)
    app.failure = None
    app.is_read.set()
    assert len(await ask(limited, FEW)) == 2


async def test_a_failed_and_a_cancelled_read_without_a_wallet_leave_their_turns(
    app: BookApp, limited: ReadLimit
) -> None:
    app.failure = OSError()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(ask(limited, OTHER, CATALOG[0], address=f"192.0.2.{number}"))
            for number in (1, 1, 2, 2, 3)
        ]
        await settle()
        for task in tasks:
            task.cancel()
    app.finish.set()
    for _ in range(3):
        with pytest.raises(OSError):
            await ask(limited, OTHER, CATALOG[0])
    app.failure = None
    app.is_read.set()
    assert len(await ask(limited, FEW)) == 2


@pytest.mark.parametrize("cancels", [lambda task: task.cancel(), lambda task: None])
async def test_a_turn_that_is_given_to_a_cancelled_reader_is_not_lost(
    cancels: Callable[[asyncio.Task[None]], object],
) -> None:
    turns = ReadTurns(at_once=1)
    await turns.acquire("books", MANY)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(turns.acquire("catalog", FEW))
        await settle()
        turns.release(MANY)
        cancels(waiting)  # after the turn was given, before the reader runs
    if not waiting.cancelled():
        turns.release(FEW)
    async with turns.turn("searches", OTHER):
        pass


async def receive_nothing() -> Message:
    return {"type": "http.disconnect"}


async def send_nothing(message: Message) -> None: ...
