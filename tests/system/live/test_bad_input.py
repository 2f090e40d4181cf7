"""Bad input at a real server: each kind has its code and status, and takes nothing: the payment that was sent with it
still buys a call."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from yarl import URL

from tests.kit.gateway_cluster import API, PRICE_UNITS, plain, sign_text
from tests.kit.upstream import (
    Answerer,
    Arrived,
    LoopbackUpstream,
    raw,
    reset_connection,
    run_upstream,
    say_nothing,
)
from tests.kit.waits import bounded

pytestmark = pytest.mark.asyncio(loop_scope="module")

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


# ---- What shows the payment. Every shape of these headers is a row of `payments/test_proof` and `gateway/test_pipeline`.

Headers = list[tuple[str, str]]


def signed_by_another(harness: Harness) -> Headers:
    return [
        ("X-Payment-Tx", str(harness.good_tx)),
        ("X-Signature", sign_text(harness.stranger, str(harness.good_tx))),
    ]


BAD_PROOFS: dict[str, tuple[Callable[[Harness], Headers], int, str]] = {
    "hash twice": (lambda s: [s.good[0], *s.good], 400, "invalid_request"),
    "signature of another wallet": (signed_by_another, 403, "payer_mismatch"),
    "control header named in Connection": (
        lambda s: [*s.good, ("Connection", "X-Payment-Tx")],
        400,
        "invalid_request",
    ),
    # The ledger has this payment, so the header is wrong; a 402 would request a second payment.
    "network of another chain": (
        lambda s: [*s.good, ("X-Payment-Network", "eip155:1")],
        400,
        "invalid_request",
    ),
}


@pytest.mark.parametrize("item", BAD_PROOFS)
async def test_refuses_a_bad_proof(harness: Harness, item: str) -> None:
    make, status, code = BAD_PROOFS[item]
    before = harness.cluster.provider.seen_total
    reply = await harness.call(make(harness))
    assert (reply.status, reply.code) == (status, code), reply.body
    assert harness.cluster.provider.seen_total == before
    assert not reply.asks_for_money


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


# ---- Heads.


async def test_a_megabyte_of_header_is_refused(harness: Harness) -> None:
    statuses = set()
    for name in ("X-Payment-Tx", "X-Anything"):
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(harness.gateway.base_url).port)
        try:
            writer.write(f"GET {API}/gateway/{harness.api_id}/quote/ETH HTTP/1.1\r\nHost: x\r\n".encode())
            writer.write(f"{name}: ".encode() + b"a" * MIB + b"\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            try:
                statuses.add((await bounded(reader.readline())).split(b" ")[1:2][0])
            except (ConnectionError, IndexError):
                statuses.add(b"cut")
        finally:
            writer.close()
    assert statuses <= {b"400", b"431", b"cut"}


# ---- Upstreams that misbehave.


async def trickle(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    await writer.drain()
    writer.write(b"a")
    await say_nothing(arrived, writer)


async def reset(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    reset_connection(writer.transport)


LONG_HEAD = b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * MIB + b"\r\n\r\n"
TWO_LENGTHS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhello"
A_402 = b"HTTP/1.1 402 Payment Required\r\nPAYMENT-REQUIRED: e30=\r\nContent-Length: 2\r\n\r\n{}"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"

BAD_UPSTREAMS: dict[str, tuple[Answerer, int, set[str], str]] = {
    "resets": (reset, 504, {"upstream_timeout", "upstream_bad_response"}, "held"),
    "says nothing": (say_nothing, 504, {"upstream_timeout"}, "held"),
    "talks garbage": (raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", close=True), 502, {"upstream_bad_response"}, "held"),
    "sends a long head": (raw(LONG_HEAD, close=True), 502, {"upstream_bad_response"}, "held"),
    "has two lengths": (raw(TWO_LENGTHS, close=True), 502, {"upstream_bad_response"}, "held"),
    "asks for money": (raw(A_402, close=True), 502, {"upstream_payment_required"}, "released"),
}  # fmt: skip


async def buy_at(harness: Harness, upstream: LoopbackUpstream) -> tuple[str, Any, Any, Any]:
    cluster = harness.cluster
    provider, caller = await cluster.wallets(2)
    api_id = await cluster.publish(harness.gateway, provider, endpoint=upstream.url, timeoutSeconds=1)
    upstream.arrived.clear()  # publishing has probed the endpoint
    tx_hash = await cluster.send_tokens(caller, provider.address, PRICE_UNITS)
    return api_id, provider, caller, tx_hash


@pytest.mark.parametrize("kind", BAD_UPSTREAMS)
async def test_a_bad_upstream_has_its_code_and_its_state(harness: Harness, kind: str) -> None:
    answer, status, codes, state = BAD_UPSTREAMS[kind]
    cluster = harness.cluster
    async with run_upstream() as upstream:
        upstream.answer = answer
        api_id, provider, caller, tx_hash = await buy_at(harness, upstream)
        reply = await harness.call(plain(caller, tx_hash), "/x", api_id=api_id, method="POST")
        assert reply.status == status, reply.body
        assert reply.code in codes
        assert (reply.state, len(upstream.arrived)) == (state, 1)
        assert not reply.asks_for_money
        assert f"127.0.0.1:{upstream.port}" not in reply.body.decode()
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
    async with run_upstream() as upstream:
        pass  # the port has no listener any more
    api_id, _, caller, tx_hash = await buy_at(harness, upstream)
    reply = await harness.call(plain(caller, tx_hash), "/x", api_id=api_id)
    assert (reply.status, reply.code) == (502, "upstream_unreachable")
    assert reply.json["paymentState"] == "released"
    assert await harness.cluster.history(harness.gateway, caller) == []
    shown = await harness.cluster.payment(harness.gateway, caller, tx_hash)
    assert int(shown["credit"]) == PRICE_UNITS


@pytest.mark.parametrize("answer", [raw(CUT, close=True), trickle], ids=["lies about its length", "trickles"])
async def test_a_cut_answer_is_visibly_broken_and_may_be_repeated_once(
    harness: Harness, answer: Answerer
) -> None:
    async with run_upstream() as upstream:
        upstream.answer = answer
        api_id, _, caller, tx_hash = await buy_at(harness, upstream)
        for _ in range(2):  # the second request is the only repeat, under the same claim
            with pytest.raises(Exception, match=r"."):
                await harness.call(plain(caller, tx_hash), "/x", api_id=api_id)
        last = await harness.call(plain(caller, tx_hash), "/x", api_id=api_id)
        assert (last.status, last.code) == (409, "payment_already_used")
        assert len(upstream.arrived) == 2
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
