"""The middleware: refuses ambiguous and oversized heads and bodies, ends slow ones, discards unread ones."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kit.waits import until
from tollway.errors import Code, Refusal
from tollway.limits import Limits
from tollway.web.http.admission import BODY_RESERVATION, BodyBudget
from tollway.web.http.middleware import (
    BodyLimits,
    RequestHeadCheck,
    RequestId,
    parse_proxies,
    read_client_address,
)

LIMITS = Limits(
    control_body_bytes_max=1_000,
    refused_body_bytes_max=500,
    body_rate_bytes_min=1_000,
    body_rate_grace_s=0.05,
    request_line_bytes_max=100,
    header_bytes_max=100,
    payment_header_bytes_max=200,
    headers_bytes_max=400,
    headers_max=10,
)


HOST = (b"host", b"gw.example.com")


def make_scope(
    *, headers: Sequence[tuple[bytes, bytes]] = (), host: bool = True, **more: Any
) -> dict[str, Any]:
    """A request with a `Host`, unless the headers hold one or `host` is False."""
    has_host = not host or any(name == b"host" for name, _ in headers)
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/x",
        "raw_path": b"/x",
        "query_string": b"",
        "headers": [*headers] if has_host else [HOST, *headers],
        "client": ("127.0.0.1", "1"),
        "state": {"client_address": "127.0.0.1"},
        **more,
    }


class Wire:
    """The server's side of one request. After the last message of its script the client sends nothing more."""

    def __init__(self, *chunks: bytes, is_ended: bool = True) -> None:
        self.script: list[dict[str, Any]] = [
            {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
        ]
        if is_ended:
            self.script.append({"type": "http.request", "body": b"", "more_body": False})
        self.sent: list[dict[str, Any]] = []

    @classmethod
    def broken_off(cls, *chunks: bytes) -> "Wire":
        """The client disconnects in the middle, or breaks the framing: the server sends the same message for both."""
        wire = cls(*chunks, is_ended=False)
        wire.script.append({"type": "http.disconnect"})
        return wire

    async def receive(self) -> dict[str, Any]:
        if not self.script:
            await asyncio.Event().wait()
        return self.script.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


async def answer_app(scope: Any, receive: Any, send: Any) -> None:
    """Responds without reading the body."""
    await send({"type": "http.response.start", "status": 422, "headers": []})
    await send({"type": "http.response.body", "body": b"no"})


async def reading_app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await answer_app(scope, receive, send)


REFUSED_HEADS = [
    ("two hosts", {"headers": [(b"host", b"a"), (b"host", b"a")]}),
    ("no host", {"host": False}),
    *(
        (f"host {value!r}", {"headers": [(b"host", value)]})
        for value in (
            b"",
            b" ",
            b"a b",
            b"a/b",
            b"user@a",
            b"a:80x",
            b"a:b:c",
            b"[::1",
            b"::1",
            b"a\x00",
            b"\xc3\xa9",
            b"%zz",
            b"a?b",
            b"a#b",
        )
    ),
    ("a bad host of HTTP/1.0", {"http_version": "1.0", "headers": [(b"host", b"a/b")]}),
    ("two authorizations", {"headers": [(b"authorization", b"a"), (b"authorization", b"b")]}),
    ("an underscore", {"headers": [(b"x_payment_tx", b"a")]}),
    ("a nominated control header", {"headers": [(b"connection", b"X-Payment-Tx")]}),
    ("too many headers", {"headers": [(b"a%d" % n, b"") for n in range(10)]}),
    ("a large header", {"headers": [(b"a", b"x" * 101)]}),
    ("a large payment header", {"headers": [(b"payment-signature", b"x" * 201)]}),
    ("large headers", {"headers": [(b"a%d" % n, b"x" * 90) for n in range(5)]}),
    ("a long line", {"query_string": b"x" * 100}),
    ("CONNECT", {"method": "CONNECT"}),
    ("an asterisk", {"method": "OPTIONS", "path": "*", "raw_path": b"*"}),
    ("an authority", {"path": "host:80", "raw_path": b"host:80"}),
]


@pytest.mark.parametrize(("name", "more"), REFUSED_HEADS, ids=[name for name, _ in REFUSED_HEADS])
async def test_refuses_a_head(name: str, more: dict[str, Any]) -> None:
    wire = Wire()
    await RequestHeadCheck(answer_app, limits=LIMITS, public_url="https://gw.example.com")(
        make_scope(**more), wire.receive, wire.send
    )
    assert wire.sent[0]["status"] == 400
    assert json.loads(wire.sent[1]["body"])["code"] == "invalid_request"


ACCEPTED_HEADS = [
    {},
    {"http_version": "1.0", "host": False},
    {"http_version": "1", "headers": [(b"host", b"")]},  # as granian says it
    *(
        {"headers": [(b"host", value)]}
        for value in (
            b"a",
            b"A.example:8402",
            b"127.0.0.1:",
            b"[::1]:80",
            b"[::1]",
            b"xn--bcher-kva.example",
            b"a_b",
            b"%61",
        )
    ),
    {"headers": [(b"payment-signature", b"x" * 150)]},
    {"headers": [(b"accept", b"a"), (b"accept", b"b")]},
    {"headers": [(b"connection", b"keep-alive")]},
]


@pytest.mark.parametrize("more", ACCEPTED_HEADS)
async def test_accepts_a_head(more: dict[str, Any]) -> None:
    wire = Wire()
    await RequestHeadCheck(answer_app, limits=LIMITS, public_url="https://gw.example.com")(
        make_scope(**more), wire.receive, wire.send
    )
    assert wire.sent[0]["status"] == 422


def bounded(app: Any, budget: BodyBudget | None = None) -> BodyLimits:
    clock = asyncio.get_running_loop().time
    return BodyLimits(app, limits=LIMITS, clock=clock, budget=budget or BodyBudget(LIMITS))


def posting(length: int | None = None, **more: Any) -> dict[str, Any]:
    head = (b"transfer-encoding", b"chunked") if length is None else (b"content-length", b"%d" % length)
    return make_scope(method="POST", headers=[head, *more.pop("headers", [])], **more)


async def run(app: Any, scope: dict[str, Any], wire: Wire) -> str:
    try:
        await bounded(app)(scope, wire.receive, wire.send)
    except Refusal as refusal:
        return refusal.problem.code.value
    return "answered"


@pytest.mark.parametrize(
    ("scope", "wire", "outcome"),
    [
        (posting(1_000), Wire(b"x" * 1_000), "answered"),
        (posting(1_001), Wire(), "payload_too_large"),
        (posting(), Wire(b"x" * 600, b"x" * 400), "answered"),
        (posting(), Wire(b"x" * 600, b"x" * 401), "payload_too_large"),
        (posting(10), Wire(b"x", is_ended=False), "invalid_request"),
        (posting(), Wire(is_ended=False), "invalid_request"),
        (posting(10), Wire.broken_off(b"x"), "invalid_request"),
        (posting(), Wire.broken_off(), "invalid_request"),
        (make_scope(), Wire(), "answered"),
    ],
)
async def test_limits_the_size_and_the_duration_of_a_body(
    scope: dict[str, Any], wire: Wire, outcome: str
) -> None:
    assert await run(reading_app, scope, wire) == outcome


@pytest.mark.parametrize(
    ("scope", "wire", "stays_open", "left"),
    [
        (posting(400), Wire(b"x" * 400), True, 0),
        (posting(), Wire(b"x" * 400), True, 0),
        (posting(), Wire(b"x" * 400, b"x" * 400, b"x" * 400), False, 2),
        (posting(900), Wire(b"x" * 900), False, 2),
        (posting(10), Wire(b"x", is_ended=False), False, 0),
        (posting(10, headers=[(b"expect", b"100-continue")]), Wire(b"x" * 10), False, 2),
        (posting(10), Wire.broken_off(b"x"), False, 0),
        (posting(headers=[(b"transfer-encoding", b"chunked")]), Wire(b"x"), False, 2),
        (make_scope(headers=[(b"transfer-encoding", b"gzip, chunked")]), Wire(b"x"), False, 2),
        (make_scope(), Wire(), True, 1),
    ],
)
async def test_discards_the_rest_of_a_body_after_an_early_response(
    scope: dict[str, Any], wire: Wire, stays_open: bool, left: int
) -> None:
    assert await run(answer_app, scope, wire) == "answered"
    assert (b"connection" not in wire.headers) is stays_open
    assert len(wire.script) == left


async def test_bodies_share_one_budget_until_their_requests_end() -> None:
    budget = BodyBudget(Limits(held_bodies_bytes_max=3_200, buffer_bytes=0))
    is_over = asyncio.Event()

    async def waiting_app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"][BODY_RESERVATION].prove()
        await receive()
        await is_over.wait()

    def begin(group: asyncio.TaskGroup, address: str) -> asyncio.Task[None]:
        scope, wire = posting(900, state={"client_address": address}), Wire(b"x" * 800)
        return group.create_task(bounded(waiting_app, budget)(scope, wire.receive, wire.send))

    async with asyncio.TaskGroup() as group:
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
            begin(group, address)
        await until(lambda: budget.reserved_bytes == 2_400)
        scope, wire = posting(900, state={"client_address": "192.0.2.4"}), Wire(b"x")
        with pytest.raises(Refusal) as refused:
            await bounded(waiting_app, budget)(scope, wire.receive, wire.send)
        assert (refused.value.problem.code, refused.value.problem.reason) == (Code.OVERLOADED, "bodies")
        is_over.set()
    assert budget.reserved_bytes == 0


class FakeTime:
    """A clock that moves only when a body waits for its next bytes."""

    def __init__(self, *parts: tuple[float, bytes]) -> None:
        self.now_s = 1_000.0
        self.parts = list(parts)

    def clock(self) -> float:
        return self.now_s

    async def receive(self) -> dict[str, Any]:
        wait_s, chunk = self.parts.pop(0)
        self.now_s += wait_s
        return {"type": "http.request", "body": chunk, "more_body": bool(self.parts)}


TIMED = Limits(body_rate_bytes_min=1_000)
FAST = (0.1, b"x" * 200_000)


@pytest.mark.parametrize(
    ("parts", "is_answered"),
    [
        ([FAST, (9.0, b"x"), (0.1, b"x")], True),
        ([FAST, (9.0, b"x"), (2.0, b"x"), (0.1, b"x")], False),
        ([FAST, *[(5.0, b"x" * 5_000)] * 11, (4.0, b"x" * 4_000)], True),
        ([FAST, *[(5.0, b"x" * 5_000)] * 12, (1.0, b"x")], False),
        ([*[(1.0, b"x" * 60_000)] * 30, (0.1, b"x")], True),
        ([*[(2.0, b"x" * 60_000)] * 31, (0.1, b"x")], False),
    ],
    ids=["pause", "longer pause", "a minute", "longer than a minute", "fast", "fast and long"],
)
async def test_a_body_keeps_its_rate_and_ends_within_a_minute(parts: Any, is_answered: bool) -> None:
    time = FakeTime(*parts)
    length = sum(len(chunk) for _, chunk in parts)
    wire = Wire()
    app = BodyLimits(reading_app, limits=TIMED, clock=time.clock, budget=BodyBudget(TIMED))
    if is_answered:
        await app(posting(length), time.receive, wire.send)
        assert wire.sent[0]["status"] == 422
        return
    with pytest.raises(Refusal) as refused:
        await app(posting(length), time.receive, wire.send)
    assert refused.value.problem.reason == "too_slow"


@pytest.mark.parametrize(("size", "is_immediate"), [(10, True), (11, False)])
async def test_a_long_body_waits_for_its_turn_and_a_short_one_does_not(size: int, is_immediate: bool) -> None:
    budget, heard = BodyBudget(Limits(buffer_bytes=10)), asyncio.Event()
    budget.next_delay_s(asyncio.get_running_loop().time() + 1_000)  # the last long body starts that late

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        heard.set()

    scope, wire = posting(size), Wire(b"x" * size)
    async with asyncio.TaskGroup() as group:
        request = group.create_task(bounded(app, budget)(scope, wire.receive, wire.send))
        await until(lambda: not wire.script)
        for _ in range(5):
            await asyncio.sleep(0)
        assert heard.is_set() is is_immediate
        request.cancel()


async def test_a_body_in_time_and_in_full_keeps_the_connection() -> None:
    wire = Wire(b"x" * 100)
    await run(reading_app, posting(100), wire)
    assert b"connection" not in wire.headers


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "spoofed, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("not-an-address", "198.51.100.1", "not-an-address"),
        # A socket that takes both families writes IPv4 peers as ::ffff:….
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("::ffff:203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1, ::ffff:10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "::ffff:198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "2001:DB8:0:0::1", "2001:db8::1"),
        ("::1", "198.51.100.1", "::1"),
    ],
)
def test_only_a_trusted_proxy_may_name_the_client(peer: str, forwarded: str, address: str) -> None:
    scope = make_scope(client=(peer, "1"), headers=[(b"x-forwarded-for", forwarded.encode())])
    assert read_client_address(scope, parse_proxies(["10.0.0.0/8"])) == address


@pytest.mark.parametrize("peer", ["203.0.113.9", "10.0.0.1", "127.0.0.1", "::1"])
def test_without_a_trusted_proxy_no_header_names_the_client(peer: str) -> None:
    names = (b"x-forwarded-for", b"forwarded", b"x-real-ip", b"true-client-ip", b"cf-connecting-ip", b"via")
    headers = list(itertools.product(names, (b"198.51.100.1", b"10.0.0.1", b"127.0.0.1, ::1")))
    found = [read_client_address(make_scope(client=(peer, "1"), headers=[one]), ()) for one in headers]
    assert [(*one, address) for one, address in zip(headers, found, strict=True) if address != peer] == []


@pytest.mark.parametrize("name", [b"forwarded", b"x-real-ip", b"true-client-ip", b"x-forwarded-host"])
def test_reads_only_x_forwarded_for_of_a_trusted_proxy(name: bytes) -> None:
    scope = make_scope(client=("10.0.0.1", "1"), headers=[(name, b"198.51.100.1")])
    assert read_client_address(scope, parse_proxies(["10.0.0.0/8"])) == "10.0.0.1"


def test_a_long_chain_of_hops_is_read_from_its_end() -> None:
    forwarded = ", ".join(f"198.51.100.{n % 250}" for n in range(5_000)) + ", 192.0.2.7, 10.0.0.2"
    scope = make_scope(client=("10.0.0.1", "1"), headers=[(b"x-forwarded-for", forwarded.encode())])
    assert read_client_address(scope, parse_proxies(["10.0.0.0/8"])) == "192.0.2.7"


async def test_the_id_is_in_the_state_of_the_request() -> None:
    scope = make_scope(headers=[(b"x-request-id", b"abcdefgh")])
    wire = Wire()
    await RequestId(answer_app, entropy=lambda size: bytes(size), trusted_proxies=())(
        scope, wire.receive, wire.send
    )
    assert scope["state"] == {"request_id": "abcdefgh", "client_address": "127.0.0.1"}
