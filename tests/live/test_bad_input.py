"""Bad input at a real server: each kind has its code and status, and takes nothing: the payment that was sent with it
still buys a call."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from eth_account import Account
from eth_account.messages import encode_defunct
from yarl import URL

from tests.kit.gateway_cluster import API, PRICE_UNITS, plain, sign_text
from tests.kit.gateway_process import poll

pytestmark = pytest.mark.asyncio(loop_scope="module")

CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
MIB = 1024 * 1024
FLAT_KIB = 48 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A gateway, a listing, and a caller whose valid payment is sent with every bad request."""

    cluster: Any
    gateway: Any
    provider: Any
    caller: Any
    stranger: Any
    api_id: str
    good_tx: Any

    @property
    def good(self) -> list[tuple[str, str]]:
        return plain(self.caller, self.good_tx)

    async def call(self, headers: Any, rest: str = "/quote/ETH", *, api_id: str = "", **options: Any) -> Any:
        return await self.cluster.call(self.gateway, api_id or self.api_id, rest, headers=headers, **options)

    async def credit(self, tx_hash: Any = None) -> int:
        shown = await self.cluster.payment(self.gateway, self.caller, tx_hash or self.good_tx)
        return int(shown["credit"])

    async def check_unburnt(self, before: int) -> None:
        """Checks that nothing was taken and that the same payment buys a call."""
        assert await self.credit() == before
        reply = await self.call(self.good)
        assert (reply.status, reply.state) == (200, "charged"), reply.body
        assert await self.credit() == before - PRICE_UNITS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(cluster: Any) -> AsyncIterator[Harness]:
    settings = {
        "TOLLWAY_LIMIT_UPLOAD_BYTES_MAX": str(MIB),
        "TOLLWAY_LIMIT_REGISTRATIONS_PER_HOUR": "100000",
        "TOLLWAY_LIMIT_CHUNK_IDLE_S": "1",
    }
    async with cluster.gateway(settings=settings) as gateway:
        provider, caller, stranger = await cluster.wallets(3)
        api_id = await cluster.publish(gateway, provider)
        good_tx = await cluster.send_tokens(caller, provider.address, 1_000 * PRICE_UNITS)
        harness = Harness(
            cluster=cluster,
            gateway=gateway,
            provider=provider,
            caller=caller,
            stranger=stranger,
            api_id=api_id,
            good_tx=good_tx,
        )
        assert (await harness.call(harness.good)).status == 200
        yield harness
        assert gateway.is_running
        report = await cluster.audit(gateway)
        assert report.wrong == ()


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_burnt(harness: Harness) -> AsyncIterator[None]:
    """Runs around every test: checks that exactly the calls which the test declares by `taken` were taken, and that
    the rest still buys calls."""
    before = await harness.credit()
    yield
    assert harness.gateway.is_running, harness.gateway.read_log()[-4000:]
    await harness.check_unburnt(before)


# ---- What shows the payment.

Headers = list[tuple[str, str]]


def _tx(harness: Harness, text: str) -> Headers:
    return [("X-Payment-Tx", text), ("X-Signature", sign_text(harness.caller, str(harness.good_tx)))]


def _signature(harness: Harness, text: str) -> Headers:
    return [("X-Payment-Tx", str(harness.good_tx)), ("X-Signature", text)]


def _high_s(signature: str) -> str:
    raw = bytes.fromhex(signature[2:])
    s, v = CURVE_ORDER - int.from_bytes(raw[32:64], "big"), 55 - raw[64]
    return "0x" + (raw[:32] + s.to_bytes(32, "big") + bytes([v])).hex()


BAD_PROOFS: dict[str, tuple[Callable[[Harness], Headers], int, str]] = {
    "hash missing": (lambda s: s.good[1:], 400, "invalid_request"),
    "signature missing": (lambda s: s.good[:1], 400, "invalid_request"),
    "hash twice": (lambda s: [s.good[0], *s.good], 400, "invalid_request"),
    "signature twice": (lambda s: [s.good[1], *s.good], 400, "invalid_request"),
    "hash empty": (lambda s: _tx(s, ""), 400, "invalid_request"),
    "hash short": (lambda s: _tx(s, str(s.good_tx)[:-1]), 400, "invalid_request"),
    "hash long": (lambda s: _tx(s, str(s.good_tx) + "0"), 400, "invalid_request"),
    "hash unprefixed": (lambda s: _tx(s, str(s.good_tx)[2:]), 400, "invalid_request"),
    "hash of no hex": (lambda s: _tx(s, "0x" + "g" * 64), 400, "invalid_request"),
    "two hashes in one": (lambda s: _tx(s, f"{s.good_tx}, {s.good_tx}"), 400, "invalid_request"),
    "hash of nothing": (lambda s: plain(s.caller, secrets.token_bytes(32)), 400, "invalid_request"),
    "signature empty": (lambda s: _signature(s, "0x"), 400, "invalid_request"),
    "signature high-s": (lambda s: _signature(s, _high_s(s.good[1][1])), 400, "invalid_request"),
    "signature too long": (lambda s: _signature(s, "0x" + "11" * 4_097), 400, "invalid_request"),
    "signature of 64 bytes": (lambda s: _signature(s, s.good[1][1][:-2]), 403, "payer_mismatch"),
    "signature of another wallet": (
        lambda s: _signature(s, sign_text(s.stranger, str(s.good_tx))),
        403,
        "payer_mismatch",
    ),
    "signature over another hash": (
        lambda s: _signature(s, sign_text(s.caller, "0x" + "ab" * 32)),
        403,
        "payer_mismatch",
    ),
    "two rails": (lambda s: [*s.good, ("X-PAYMENT", "e30=")], 400, "invalid_request"),
    "control header named in Connection": (
        lambda s: [*s.good, ("Connection", "X-Payment-Tx")],
        400,
        "invalid_request",
    ),
    "maximum below the price": (
        lambda s: [*s.good, ("Tollway-Max-Price", "0.009")],
        412,
        "price_above_max",
    ),
    # The ledger has this payment, so the header is wrong; a 402 would request a second payment.
    "network of another chain": (
        lambda s: [*s.good, ("X-Payment-Network", "eip155:1")],
        400,
        "invalid_request",
    ),
    "network of no chain": (lambda s: [*s.good, ("X-Payment-Network", "mars")], 400, "invalid_request"),
}


@pytest.mark.parametrize("item", BAD_PROOFS)
async def test_refuses_a_bad_proof(harness: Harness, item: str) -> None:
    make, status, code = BAD_PROOFS[item]
    before = harness.cluster.provider.seen_total
    reply = await harness.call(make(harness))
    assert (reply.status, reply.code) == (status, code), reply.body
    assert harness.cluster.provider.seen_total == before
    if status != 402:
        assert not reply.asks_for_money


@pytest.mark.parametrize("spell", [lambda t: "0x" + t[2:].upper(), lambda t: "0X" + t[2:].upper()])
async def test_a_hash_counts_in_any_case(harness: Harness, spell: Any) -> None:
    tx_hash = await harness.cluster.send_tokens(harness.caller, harness.provider.address, PRICE_UNITS)
    headers = plain(harness.caller, tx_hash)
    assert (await harness.call(_with_tx(headers, spell(str(tx_hash))))).status == 200
    again = await harness.call(headers)  # upper and lower case are one payment
    assert (again.status, again.code) == (409, "payment_already_used")


def _with_tx(headers: Headers, text: str) -> Headers:
    return [("X-Payment-Tx", text), *headers[1:]]


async def test_both_texts_of_the_plain_form_count(harness: Harness) -> None:
    tx_hash = await harness.cluster.send_tokens(harness.caller, harness.provider.address, PRICE_UNITS)
    signed = Account.sign_message(encode_defunct(primitive=bytes(tx_hash)), harness.caller.key)
    headers = [("X-Payment-Tx", str(tx_hash)), ("X-Signature", "0x" + bytes(signed.signature).hex())]
    assert (await harness.call(headers)).status == 200


# ---- What the transaction is.


async def test_a_pending_transaction_is_neither_refused_nor_answered_with_402(harness: Harness) -> None:
    driver = harness.cluster.driver
    await driver.rpc("evm_setAutomine", False)
    try:
        token = harness.cluster.playground.token
        tx_hash = await driver.send_token(
            key=harness.caller.key, token=token, to=harness.provider.address, amount=PRICE_UNITS
        )
        reply = await harness.call(plain(harness.caller, tx_hash))
        assert (reply.status, reply.code) == (409, "payment_pending")
        assert int(reply.headers["Retry-After"]) > 0
        assert not reply.asks_for_money
        await driver.mine()
    finally:
        await driver.rpc("evm_setAutomine", True)
    assert (await harness.call(plain(harness.caller, tx_hash))).status == 200


async def test_an_unknown_transaction_is_pending(harness: Harness) -> None:
    tx_hash = type(harness.good_tx)(secrets.token_bytes(32))
    reply = await harness.call(plain(harness.caller, tx_hash))
    assert (reply.status, reply.code) == (409, "payment_pending")
    assert not reply.asks_for_money


async def test_a_failed_transaction_buys_nothing(harness: Harness) -> None:
    tx_hash = await harness.cluster.send_tokens(harness.caller, harness.provider.address, 2**100)
    reply = await harness.call(plain(harness.caller, tx_hash))
    assert (reply.status, reply.code) == (402, "payment_verification_failed")
    assert reply.json["reason"] == "transaction_failed"


async def test_a_transaction_to_another_wallet_buys_nothing(harness: Harness) -> None:
    tx_hash = await harness.cluster.send_tokens(harness.caller, harness.stranger.address, PRICE_UNITS)
    reply = await harness.call(plain(harness.caller, tx_hash))
    assert (reply.status, reply.code) == (402, "payment_verification_failed")
    assert reply.json["reason"] == "wrong_recipient"


async def test_an_underpayment_is_repaired_by_sending_the_difference(harness: Harness) -> None:
    cluster = harness.cluster
    caller = await cluster.wallet()
    small = await cluster.send_tokens(caller, harness.provider.address, PRICE_UNITS - 3_000)
    reply = await harness.call(plain(caller, small))
    assert (reply.status, reply.code) == (402, "payment_insufficient")
    assert (reply.json["available"], reply.json["missing"]) == ("0.007", "0.003")
    assert reply.json["payment"]["options"]
    rest = await cluster.send_tokens(caller, harness.provider.address, 3_000)
    assert (await harness.call(plain(caller, rest))).status == 200
    for tx_hash in (small, rest):
        spent = await harness.call(plain(caller, tx_hash))
        assert (spent.status, spent.code) == (409, "payment_already_used")
        assert not spent.asks_for_money


# ---- What is called.


async def test_unknown_paused_and_retired_listings_return_no_402(harness: Harness) -> None:
    cluster = harness.cluster
    paused = await cluster.publish(harness.gateway, harness.provider, status="paused")
    retired = await cluster.publish(harness.gateway, harness.provider)
    gone = await cluster.control(harness.gateway, harness.provider, "DELETE", f"/apis/{retired}")
    assert gone.status == 204
    for api_id, status, code in [
        ("api_doesnotexist", 404, "api_not_found"),
        (paused, 503, "api_paused"),
        (retired, 410, "api_retired"),
    ]:
        for headers in (harness.good, []):
            reply = await harness.call(headers, api_id=api_id)
            assert (reply.status, reply.code) == (status, code)
            assert not reply.asks_for_money


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/apis?page=0", 422, "validation_failed"),
        ("/apis?page=x", 422, "validation_failed"),
        ("/apis?limit=10000", 422, "validation_failed"),
        ("/apis?limit=%D9%A1", 422, "validation_failed"),
        ("/apis?colour=red", 422, "validation_failed"),
        ("/apis?sort=price", 422, "validation_failed"),
        ("/history?limit=10000", 422, "validation_failed"),
        ("/history?colour=red", 422, "validation_failed"),
        ("/history?offset=-1", 422, "validation_failed"),
        ("/payments/0x12", 400, "invalid_request"),
        ("/nothing", 404, "route_not_found"),
    ],
)
async def test_refuses_bad_queries(harness: Harness, path: str, status: int, code: str) -> None:
    reply = await harness.cluster.control(harness.gateway, harness.caller, "GET", path)
    assert (reply.status, reply.code) == (status, code), reply.body
    if status == 422:
        name = path.partition("?")[2].partition("=")[0]
        assert [error["parameter"] for error in reply.json["errors"]] == [name]


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"pricePerRequest": price}, "/pricePerRequest")
        for price in ("1e3", "-1", "01", "0.0000000001", "NaN", "", " 1", "1.", ".5", 0.01, None, "\u0661")
    ),
    ({"endpoint": "http://user:word@127.0.0.1/"}, "/endpoint"),
    ({"endpoint": "file:///etc/passwd"}, "/endpoint"),
    ({"endpoint": "http://127.0.0.1/?a=b"}, "/endpoint"),
    ({"endpoint": "not a url"}, "/endpoint"),
    ({"name": ""}, "/name"),
    ({"colour": "red"}, "/colour"),
]


@pytest.mark.parametrize(("fields", "pointer"), BAD_FIELDS, ids=lambda value: str(value)[:40])
async def test_refuses_bad_listings(harness: Harness, fields: dict[str, Any], pointer: str) -> None:
    cluster = harness.cluster
    reply = await cluster.control(harness.gateway, harness.provider, "POST", "/apis", cluster.draft(**fields))
    assert reply.status == 422, reply.body
    assert reply.code in ("validation_failed", "endpoint_not_allowed")
    assert [error["pointer"] for error in reply.json["errors"]] == [pointer]


async def test_private_addresses_are_refused_unless_allowed(harness: Harness) -> None:
    cluster = harness.cluster
    async with cluster.gateway(settings={"TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "false"}) as strict:
        for endpoint in (
            cluster.provider.base_url,
            "http://10.0.0.1/",
            "http://169.254.169.254/latest",
            "http://[::1]/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://localhost/",
        ):
            draft = cluster.draft(endpoint=endpoint)
            reply = await cluster.control(strict, harness.provider, "POST", "/apis", draft)
            assert (reply.status, reply.code) == (422, "endpoint_not_allowed"), endpoint
            assert "127.0.0.1" not in reply.json["detail"]


# ---- Bodies, paths and heads.


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_refuses_a_body_over_the_limit(harness: Harness, is_chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(64 * 1024)

    content: Any = pieces() if is_chunked else bytes(MIB + 1)
    with contextlib.suppress(
        OSError, ValueError
    ):  # the gateway may close the connection before it reads the rest
        reply = await harness.call(harness.good, "/echo/large", method="POST", content=content)
        assert (reply.status, reply.code) == (413, "payload_too_large")
        assert not reply.asks_for_money


@pytest.mark.parametrize(
    "rest",
    [
        "/%2e%2e/secret",
        "/a/%2E%2e/%2e%2e/b",
        "/%252e%252e/secret",
        "/..%2f..%2fetc",
        "/a/../../b",
        "/%5c..%5c",
        "/null%00",
    ],
)
async def test_refuses_a_path_that_climbs(harness: Harness, rest: str) -> None:
    before = harness.cluster.provider.seen_total
    reply = await harness.call(harness.good, rest)
    assert (reply.status, reply.code) == (400, "invalid_request"), reply.body
    assert harness.cluster.provider.seen_total == before


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"openapi":{"paths":['])
async def test_a_json_bomb_is_refused_and_the_gateway_serves_on(harness: Harness, opening: bytes) -> None:
    bomb = opening * (1_900_000 // len(opening))
    reply = await harness.cluster.control(harness.gateway, harness.provider, "POST", "/apis", bomb)
    assert (reply.status, reply.code) == (400, "invalid_request")
    for path in ("/auth/nonce", "/auth/session"):
        url = f"{harness.gateway.base_url}{API}{path}"
        headers = [("Content-Type", "application/json")]
        reply = await harness.cluster.send(url, method="POST", headers=headers, content=bomb)
        assert reply.status in (400, 413), (path, reply.body)
    assert harness.gateway.is_running


async def test_a_megabyte_of_header_is_refused(harness: Harness) -> None:
    statuses = set()
    for name in ("X-Payment-Tx", "X-Anything"):
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(harness.gateway.base_url).port)
        try:
            writer.write(f"GET {API}/gateway/{harness.api_id}/quote/ETH HTTP/1.1\r\nHost: x\r\n".encode())
            writer.write(f"{name}: ".encode() + b"a" * MIB + b"\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            async with asyncio.timeout(10):
                try:
                    statuses.add((await reader.readline()).split(b" ")[1:2][0])
                except (ConnectionError, IndexError):
                    statuses.add(b"cut")
        finally:
            writer.close()
    assert statuses <= {b"400", b"431", b"cut"}


# ---- Upstreams that misbehave.


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class BadUpstream:
    """A server that sends the same bytes for each request, in pieces, and then closes the connection."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.count = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "BadUpstream":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await poll(lambda: not self._open, deadline_s=10, what="the end of all connections")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.count += 1
            await self._answer(reader, writer)
            await writer.drain()
        writer.close()
        self._open.discard(writer)


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the gateway closes the connection


async def _talk_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


async def _ask_money(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 402 Payment Required\r\nPAYMENT-REQUIRED: e30=\r\nContent-Length: 2\r\n\r\n{}")


async def _promise_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    await writer.drain()
    writer.write(b"a")
    await writer.drain()
    await reader.read()  # until the gateway closes the connection


async def _send_a_long_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * MIB + b"\r\n\r\n")


async def _lie_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhello")


BAD_UPSTREAMS: dict[str, tuple[Any, int, set[str], str]] = {
    "resets": (_reset, 504, {"upstream_timeout", "upstream_bad_response"}, "held"),
    "says nothing": (_hang, 504, {"upstream_timeout"}, "held"),
    "talks garbage": (_talk_garbage, 502, {"upstream_bad_response"}, "held"),
    "sends a long head": (_send_a_long_head, 502, {"upstream_bad_response"}, "held"),
    "has two lengths": (_lie_twice, 502, {"upstream_bad_response"}, "held"),
    "asks for money": (_ask_money, 502, {"upstream_payment_required"}, "released"),
}


async def _buy_at(harness: Harness, upstream: BadUpstream) -> tuple[str, Any, Any, Any]:
    cluster = harness.cluster
    provider, caller = await cluster.wallets(2)
    api_id = await cluster.publish(harness.gateway, provider, endpoint=upstream.url, timeoutSeconds=1)
    upstream.count = 0  # publishing has probed the endpoint
    tx_hash = await cluster.send_tokens(caller, provider.address, PRICE_UNITS)
    return api_id, provider, caller, tx_hash


@pytest.mark.parametrize("kind", BAD_UPSTREAMS)
async def test_a_bad_upstream_has_its_code_and_its_state(harness: Harness, kind: str) -> None:
    answer, status, codes, state = BAD_UPSTREAMS[kind]
    cluster = harness.cluster
    async with BadUpstream(answer) as upstream:
        api_id, provider, caller, tx_hash = await _buy_at(harness, upstream)
        reply = await harness.call(plain(caller, tx_hash), "/x", api_id=api_id, method="POST")
        assert reply.status == status, reply.body
        assert reply.code in codes
        assert (reply.state, upstream.count) == (state, 1)
        assert not reply.asks_for_money
        assert "127.0.0.1:" + upstream.url.rpartition(":")[2] not in reply.body.decode()
        shown = await cluster.payment(harness.gateway, caller, tx_hash)
        assert int(shown["credit"]) == (PRICE_UNITS if state == "released" else 0)
        (call,) = await cluster.history(harness.gateway, caller)
        assert call["payment"]["state"] == state
        if state == "released":
            return
        resolution = f"/history/{call['id']}/resolution"
        released = await cluster.control(
            harness.gateway, provider, "POST", resolution, {"outcome": "released"}
        )
        assert released.status == 200, (
            released.body
        )  # the provider releases the call, and the payment is credit again
        shown = await cluster.payment(harness.gateway, caller, tx_hash)
        assert int(shown["credit"]) == PRICE_UNITS


async def test_an_upstream_that_refuses_takes_nothing(harness: Harness) -> None:
    async with BadUpstream(_reset) as upstream:
        pass  # the port has no listener any more
    api_id, _, caller, tx_hash = await _buy_at(harness, upstream)
    reply = await harness.call(plain(caller, tx_hash), "/x", api_id=api_id)
    assert (reply.status, reply.code) == (502, "upstream_unreachable")
    assert reply.json["paymentState"] == "released"
    assert await harness.cluster.history(harness.gateway, caller) == []
    shown = await harness.cluster.payment(harness.gateway, caller, tx_hash)
    assert int(shown["credit"]) == PRICE_UNITS


@pytest.mark.parametrize("answer", [_promise_more, _trickle], ids=["lies about its length", "trickles"])
async def test_a_cut_answer_is_visibly_broken_and_may_be_repeated_once(harness: Harness, answer: Any) -> None:
    async with BadUpstream(answer) as upstream:
        api_id, _, caller, tx_hash = await _buy_at(harness, upstream)
        for _ in range(2):  # the second request is the only repeat, under the same claim
            with pytest.raises(Exception, match=r"."):
                await harness.call(plain(caller, tx_hash), "/x", api_id=api_id)
        last = await harness.call(plain(caller, tx_hash), "/x", api_id=api_id)
        assert (last.status, last.code) == (409, "payment_already_used")
        assert upstream.count == 2
        (call,) = await harness.cluster.history(harness.gateway, caller)
        assert call["payment"]["state"] == "charged"


async def test_a_quarter_of_a_gibibyte_streams_through_flat_memory(harness: Harness) -> None:
    size, cluster = 256 * MIB, harness.cluster
    tx_hash = await cluster.send_tokens(harness.caller, harness.provider.address, PRICE_UNITS)
    before = harness.gateway.memory_kib()
    got = 0
    url = f"{harness.gateway.base_url}{API}/gateway/{harness.api_id}/bytes/{size}"
    async with cluster.session.get(url, headers=dict(plain(harness.caller, tx_hash))) as response:
        assert response.status == 200
        async for chunk in response.content.iter_any():
            got += len(chunk)
    assert got == size
    assert harness.gateway.memory_kib() - before < FLAT_KIB


async def test_answers_of_problems_are_json_with_all_members(harness: Harness) -> None:
    reply = await harness.call([])
    assert reply.status == 402
    wanted = {
        "type",
        "title",
        "status",
        "detail",
        "instance",
        "code",
        "requestId",
        "retryable",
        "paymentState",
    }
    assert wanted <= set(json.loads(reply.body))
