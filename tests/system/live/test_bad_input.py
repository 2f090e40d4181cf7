"""Bad input at a real server takes nothing: the payment that was sent with it still buys a call. The shapes of proofs and of
upstreams are rows of `payments/test_proof`, `gateway/test_pipeline` and `gateway/test_proxy`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from yarl import URL

from tests.kit.gateway_cluster import API, PRICE_UNITS, plain
from tests.kit.upstream import (
    Answerer,
    Arrived,
    raw,
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
    settings = {"TOLLWAY_LIMIT_REGISTRATIONS_PER_HOUR": "100000"}
    async with cluster.gateway(settings=settings) as gateway:
        provider, caller = await cluster.wallets(2)
        api_id = await cluster.publish(gateway, provider)
        good_tx = await cluster.send_tokens(caller, provider.address, 1_000 * PRICE_UNITS)
        harness = Harness(
            cluster=cluster,
            gateway=gateway,
            provider=provider,
            caller=caller,
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


CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"


@pytest.mark.parametrize("answer", [raw(CUT, close=True), trickle], ids=["lies about its length", "trickles"])
async def test_a_cut_answer_is_visibly_broken_and_may_be_repeated_once(
    cluster: Any, answer: Answerer
) -> None:
    """At a gateway of its own: it waits one second for the next part of a response."""
    async with (
        run_upstream() as upstream,
        cluster.gateway(settings={"TOLLWAY_LIMIT_CHUNK_IDLE_S": "1"}) as gateway,
    ):
        upstream.answer = answer
        provider, caller = await cluster.wallets(2)
        api_id = await cluster.publish(gateway, provider, endpoint=upstream.url)
        upstream.arrived.clear()  # publishing has probed the endpoint
        headers = plain(caller, await cluster.send_tokens(caller, provider.address, PRICE_UNITS))
        for _ in range(2):  # the second request is the only repeat, under the same claim
            with pytest.raises(Exception, match=r"."):
                await cluster.call(gateway, api_id, "/x", headers=headers)
        last = await cluster.call(gateway, api_id, "/x", headers=headers)
        assert (last.status, last.code) == (409, "payment_already_used")
        assert len(upstream.arrived) == 2
        (call,) = await cluster.history(gateway, caller)
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
