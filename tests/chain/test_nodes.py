import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web
from structlog.testing import capture_logs

from tests.kit.chain import MemoryChain
from tests.kit.scripted_node import hang
from tests.kit.waits import bounded
from tollway.chain.nodes import (
    BATCH_MAX_S,
    BREAKER_S,
    NodeHealth,
    RpcNode,
    WrongChain,
    open_session,
    read_head_times,
)
from tollway.chain.requests import read_head
from tollway.chain.responses import UnusableResponse, parse_block
from tollway.errors import ChainMismatch, ChainUnavailable
from tollway.ids import ChainId
from tollway.limits import DEFAULT_LIMITS, Limits

CHAIN = ChainId(84532)
LIMITS = Limits(rpc_response_bytes_max=4096, rpc_in_flight_max=2)
ASK_HEAD = [("eth_getBlockByNumber", ["latest", False])]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as session:
        yield session


def make(url: str, *, clock: Clock | None = None, on_request: Callable[[int], None] | None = None) -> RpcNode:
    return RpcNode(
        url, chain_id=CHAIN, position=1, limits=LIMITS, clock=clock or Clock(), on_request=on_request
    )


async def read(node: RpcNode, session: aiohttp.ClientSession, *, deadline_s: float = 5.0) -> list[object]:
    async with node.attempt(deadline_s):
        return await node.send_batch(session, ASK_HEAD)  # type: ignore[arg-type]


async def test_reads_the_chain_id_in_the_same_round_trip(script, url, session) -> None:
    counts: list[int] = []
    assert await read(make(url, on_request=counts.append), session) == [script.block(10)]
    assert script.batches == [["eth_getBlockByNumber", "eth_chainId"]]
    assert counts == [2]


async def test_a_batch_may_be_answered_in_any_order(script, url, session) -> None:
    script.bend = lambda answers: answers[::-1]
    assert await read(make(url), session) == [script.block(10)]


Http = Callable[[web.Request], Awaitable[web.StreamResponse]]


def respond(**members: object) -> Http:
    async def http(_: web.Request) -> web.Response:
        return web.Response(**members)  # type: ignore[arg-type]

    return http


async def reset(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def cut_short(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"[")
    assert request.transport is not None
    request.transport.abort()
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b" " * 1024)
    except (ConnectionError, aiohttp.ClientError):
        return response


def honest(*, status: int = 200, bend: Callable[[bytes], bytes] = bytes, **headers: str) -> Http:
    """A correct JSON-RPC response in a faulty HTTP response."""

    async def http(request: web.Request) -> web.Response:
        calls = json.loads(await request.read())
        body = json.dumps([{"id": call["id"], "result": hex(CHAIN)} for call in calls]).encode()
        return web.Response(status=status, body=bend(body), headers=headers)

    return http


async def test_the_correct_response_is_usable(script, url, session) -> None:
    script.http = honest()
    assert await read(make(url), session) == [hex(CHAIN)]


@pytest.mark.parametrize(
    "http",
    [
        pytest.param(honest(status=500), id="500"),
        pytest.param(honest(status=429), id="429"),
        pytest.param(honest(status=401), id="401"),
        pytest.param(respond(status=204), id="204"),
        pytest.param(respond(text="<html>", content_type="text/html"), id="HTML"),
        pytest.param(respond(body=b""), id="empty"),
        pytest.param(
            honest(bend=lambda body: body.replace(b'"id": ', b'"id": 9')), id="ids of another batch"
        ),
        pytest.param(honest(bend=lambda body: body + b" " * 5000), id="oversized"),
        pytest.param(honest(bend=gzip.compress, **{"Content-Encoding": "gzip"}), id="gzip"),
        pytest.param(endless, id="endless"),
        pytest.param(cut_short, id="cut short"),
        pytest.param(reset, id="reset"),
    ],
)
async def test_an_http_fault_is_unusable_and_trips_the_breaker(script, url, session, http) -> None:
    script.http = http
    node = make(url)
    with pytest.raises(UnusableResponse):
        await read(node, session)
    assert node.is_deferred


async def test_a_redirect_is_not_followed(script, url, make_node, session) -> None:
    target, target_url = await make_node()
    script.http = respond(status=307, headers={"Location": target_url})
    with pytest.raises(UnusableResponse):
        await read(make(url), session)
    assert target.batches == []


async def test_proxies_of_the_environment_are_not_used(script, url, make_node, session, monkeypatch) -> None:
    proxy, proxy_url = await make_node()
    monkeypatch.setenv("HTTP_PROXY", proxy_url)
    monkeypatch.setenv("http_proxy", proxy_url)
    await read(make(url), session)
    assert (len(script.batches), len(proxy.batches)) == (1, 0)


async def test_a_hanging_node_is_cancelled_at_the_deadline(script, url, session) -> None:
    script.http = hang
    with pytest.raises(UnusableResponse, match="deadline"):
        await read(make(url), session, deadline_s=0.05)


async def test_a_node_of_another_chain_is_unusable(script, url, session) -> None:
    script.answers["eth_chainId"] = "0x1"
    with pytest.raises(WrongChain):
        await read(make(url), session)


HEAD, FINAL, CODE = (
    ("eth_getBlockByNumber", ["latest", False]),
    ("eth_getBlockByNumber", ["finalized", False]),
    ("eth_getCode", ["0x" + "00" * 20, "latest"]),
)


def refuse_by_status(calls: list[dict[str, Any]]) -> web.Response:
    return web.Response(status=413, text="batch too large")


def refuse_by_error(calls: list[dict[str, Any]]) -> web.Response:
    return web.json_response(
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no batches"}}
    )


def refuse_each(calls: list[dict[str, Any]]) -> web.Response:
    error = {"code": -32005, "message": "too many"}
    return web.json_response([{"jsonrpc": "2.0", "id": call["id"], "error": error} for call in calls])


@pytest.mark.parametrize("refuse", [refuse_by_status, refuse_by_error, refuse_each])
@pytest.mark.parametrize(("batch_max", "requests"), [(4, 1), (3, 1 + 2), (2, 1 + 2), (1, 1 + 1 + 4)])
async def test_a_node_that_refuses_a_batch_gets_smaller_ones(
    script, url, session, refuse, batch_max: int, requests: int
) -> None:
    script.answers["eth_getCode"] = "0x60"
    script.batch_max, script.refuse_batch = batch_max, refuse
    node = make(url)
    calls = [HEAD, FINAL, CODE]
    for expected in (requests, 1 if batch_max == 4 else 4 // (2 if batch_max > 1 else 1)):
        script.batches.clear()
        async with node.attempt(5.0):
            assert await node.send_batch(session, calls) == [script.block(10), script.block(3), "0x60"]
        assert len(script.batches) == expected
    assert node.status.batch_max == (None if batch_max == 4 else 2 if batch_max > 1 else 1)


async def test_the_chain_id_is_read_before_a_smaller_batch_is_sent(script, url, session) -> None:
    script.answers["eth_chainId"] = "0x1"
    script.batch_max = 1
    with pytest.raises(WrongChain):
        await read(make(url), session)
    assert script.batches == [["eth_getBlockByNumber", "eth_chainId"], ["eth_chainId"]]


async def test_a_refused_batch_is_tried_whole_again_after_a_while(script, url, session) -> None:
    script.batch_max = 1
    clock = Clock()
    node = make(url, clock=clock)
    await read(node, session)
    script.batches.clear()
    clock.now += BATCH_MAX_S
    script.batch_max = None
    await read(node, session)
    assert script.batches == [["eth_getBlockByNumber", "eth_chainId"]]
    assert node.status.batch_max is None


async def test_a_node_that_refuses_single_calls_too_is_unusable_for_its_first_reason(
    script, url, session
) -> None:
    script.batch_max = 0
    node = make(url)
    with pytest.raises(UnusableResponse, match="HTTP status 400"):
        await read(node, session)
    assert script.batches == [["eth_getBlockByNumber", "eth_chainId"], ["eth_chainId"]]
    assert node.status.batch_max is None


@pytest.mark.parametrize("status", [401, 404, 429, 500, 502, 503])
async def test_a_fault_of_another_kind_is_no_refused_batch(script, url, session, status: int) -> None:
    script.http = respond(status=status)
    with pytest.raises(UnusableResponse):
        await read(make(url), session)
    assert len(script.batches) == 1


async def test_no_more_requests_are_in_flight_than_allowed(script, url, session) -> None:
    waiting = 0
    two_wait, release = asyncio.Event(), asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        nonlocal waiting
        if request.path != "/probe":
            waiting += 1
            if waiting == LIMITS.rpc_in_flight_max:
                two_wait.set()
            await release.wait()
        return await honest()(request)

    script.http = hold
    node = make(url)
    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(read(node, session))
        await bounded(two_wait.wait())
        for _ in range(3):  # all other pending events are handled before these return
            await read(make(url + "probe"), session)
        assert waiting == LIMITS.rpc_in_flight_max
        release.set()
    assert waiting == 6


async def test_a_pooled_connection_that_the_node_closed_is_tried_once_more(session) -> None:
    connections = 0

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        calls = json.loads(await reader.readexactly(length))
        body = json.dumps([{"id": call["id"], "result": hex(CHAIN)} for call in calls]).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await reader.readuntil(b"\r\n\r\n")  # takes the second request and hangs up on it
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    node = make(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert await read(node, session) == [hex(CHAIN)]
    assert await read(node, session) == [hex(CHAIN)]
    assert connections == 2
    await session.close()
    server.close()


async def test_a_node_that_always_disconnects_gets_two_requests(script, url, session) -> None:
    script.http = reset
    with pytest.raises(UnusableResponse):
        await read(make(url), session)
    assert len(script.batches) == 2


async def test_a_transaction_is_sent_once_even_when_the_node_disconnects(script, url, session) -> None:
    script.http = reset
    node = make(url)
    with pytest.raises(UnusableResponse):
        async with node.attempt(5.0):
            await node.send_batch(session, [("eth_sendRawTransaction", ["0x02"])], sends_max=1)
    assert len(script.batches) == 1


async def test_a_failed_node_comes_last_and_recovers_with_its_first_response(script, url, session) -> None:
    clock = Clock()
    node = make(url, clock=clock)
    assert not node.is_deferred
    script.http = respond(status=502)
    with pytest.raises(UnusableResponse):
        await read(node, session)
    assert node.is_deferred
    clock.now += BREAKER_S
    assert not node.is_deferred
    script.http = None
    async with node.attempt(1.0):
        assert node.is_deferred  # one asker finds out; the others go elsewhere meanwhile
        await node.send_batch(session, [])
    assert not node.is_deferred


@pytest.mark.parametrize(
    "path", ["v3/SECRET-KEY", "?key=SECRET-KEY", "#SECRET-KEY"], ids=["path", "query", "fragment"]
)
@pytest.mark.parametrize("user", ["", "SECRET-USER:SECRET-PASSWORD@"], ids=["no user", "user"])
async def test_secrets_of_the_url_reach_no_log_and_no_error(
    script, url, session, path: str, user: str
) -> None:
    node = make(url.replace("//", "//" + user) + path)
    dead = make(f"http://{user}127.0.0.1:1/{path}")
    script.http = respond(status=403)
    with structlog.testing.capture_logs() as logs:
        for each in (node, dead):
            with pytest.raises(UnusableResponse) as caught:
                await read(each, session)
            assert "SECRET" not in f"{caught.value} {each!r} {each.label}"
            assert caught.value.__cause__ is None
    assert [entry["event"] for entry in logs] == ["rpc_node_failed"] * 2
    assert "SECRET" not in str(logs)


@pytest.mark.parametrize("outcome", ["ok", "error", "timeout", "other_chain"])
async def test_each_request_has_one_outcome(script, url, session, seen, outcome: str) -> None:
    if outcome == "error":
        script.http = honest(status=503)
    elif outcome == "timeout":
        script.http = hang
    elif outcome == "other_chain":
        script.answers["eth_chainId"] = "0x1"
    node = RpcNode(
        url, chain_id=CHAIN, position=2, limits=LIMITS, clock=Clock(), on_request=None, observer=seen
    )
    with contextlib.suppress(UnusableResponse):
        await read(node, session, deadline_s=0.05 if outcome == "timeout" else 5.0)
    assert seen.outcomes == [(CHAIN, 2, outcome)]
    assert seen.seconds == [0.05 if outcome == "timeout" else 0.0]
    assert seen.methods == [("eth_getBlockByNumber",)]  # known at the deadline, too


async def test_a_node_keeps_its_newest_block_and_its_last_outage(script, url, session) -> None:
    clock = Clock()
    node = make(url, clock=clock)
    assert (node.status.head_number, node.status.failure, node.status.failed_s) == (None, "", None)
    await read_head(node, session)
    block = parse_block(script.block(10))
    assert (node.status.head_number, node.status.head_time_s) == (10, block.time)
    script.http = respond(status=503)
    for _ in range(2):  # the outage began with the first of them
        with pytest.raises(UnusableResponse):
            await read(node, session)
        clock.now += 3
    status = node.status
    assert (status.failure, status.failed_s, status.is_deferred) == (
        "the node returned HTTP status 503",
        6.0,
        True,
    )
    assert (status.position, status.host, status.head_number) == (1, "127.0.0.1", 10)
    clock.now += BREAKER_S
    assert not node.status.is_deferred


# ---- The health of networks: the last check counts; a node of another chain, an absence and a lasting absence are distinguished.


BASE, OTHER = ChainId(8453), ChainId(10)
HEALTH_LIMITS = replace(DEFAULT_LIMITS, chain_away_s=30.0)


class Chains:
    """Nodes that serve, are away, or serve another chain."""

    def __init__(self) -> None:
        self.faults: dict[ChainId, Callable[[], Exception]] = {}
        self.asked: list[ChainId] = []
        self.now_s = 1_000.0

    async def check_chain(self, chain_id: ChainId) -> None:
        self.asked.append(chain_id)
        if chain_id in self.faults:
            raise self.faults[chain_id]()


@pytest.fixture
def chains() -> Chains:
    return Chains()


@pytest.fixture
def health(chains: Chains) -> NodeHealth:
    return NodeHealth(chains, [BASE, OTHER], limits=HEALTH_LIMITS, clock=lambda: chains.now_s)  # type: ignore[arg-type]


def make_mismatch() -> Exception:
    exc = ChainMismatch()
    exc.add_note("node 1 of eip155:8453: it serves chain 1")
    return exc


async def test_the_last_check_of_each_network_counts(chains, health) -> None:
    assert health.checks == {"chain_8453": False, "chain_10": False}
    chains.faults[OTHER] = ChainUnavailable
    with capture_logs() as logs:
        await health.find_wrong_chain_nodes()
    assert health.checks == {"chain_8453": True, "chain_10": False}
    events = [(line["event"], line["chain_id"]) for line in logs]
    assert events == [("chain_ready", BASE), ("chain_not_ready", OTHER)]
    chains.faults = {BASE: ChainUnavailable}
    await health.find_wrong_chain_nodes()
    assert health.checks == {"chain_8453": False, "chain_10": True}


async def test_only_nodes_of_another_chain_are_listed(chains, health) -> None:
    chains.faults = {BASE: make_mismatch, OTHER: ChainUnavailable}
    assert await health.find_wrong_chain_nodes() == ["node 1 of eip155:8453: it serves chain 1"]
    assert not any(health.checks.values())


async def test_a_network_counts_as_lost_once_it_was_away_for_so_long(chains, health) -> None:
    await health.find_wrong_chain_nodes()
    chains.faults[OTHER] = ChainUnavailable
    for now_s, lost in ((1_000.0, 0), (1_029.9, 0), (1_030.0, 1), (1_300.0, 1)):
        chains.now_s = now_s
        await health.find_wrong_chain_nodes()
        assert health.count_lost() == lost, now_s
    chains.faults[BASE] = make_mismatch  # nodes of another chain read nothing of this one
    await health.find_wrong_chain_nodes()
    chains.now_s += 30
    assert health.count_lost() == 2
    chains.faults = {}
    await health.check_due()
    assert health.count_lost() == 0


async def test_an_interrupted_absence_starts_again(chains, health) -> None:
    for now_s, faults in ((1_000.0, {}), (1_010.0, {OTHER: ChainUnavailable}), (1_020.0, {})):
        chains.now_s, chains.faults = now_s, dict(faults)
        await health.find_wrong_chain_nodes()
    chains.now_s, chains.faults = 1_030.0, {OTHER: ChainUnavailable}
    await health.find_wrong_chain_nodes()
    chains.now_s = 1_045.0
    assert health.count_lost() == 0


async def test_a_network_that_was_never_served_is_lost_from_the_start(chains, health) -> None:
    assert health.count_lost() == 2
    chains.faults[OTHER] = ChainUnavailable
    await health.find_wrong_chain_nodes()
    assert health.count_lost() == 1


async def test_between_full_checks_only_networks_that_are_away_are_checked(chains, health) -> None:
    chains.faults[OTHER] = ChainUnavailable
    await health.check_due()
    assert chains.asked == [BASE, OTHER]
    chains.faults = {BASE: ChainUnavailable}
    with capture_logs() as logs:
        for now_s, asked in ((1_010.0, [OTHER]), (1_020.0, []), (1_059.9, []), (1_060.0, [BASE, OTHER])):
            chains.now_s = now_s
            chains.asked.clear()
            await health.check_due()
            assert chains.asked == asked, now_s
    events = [(line["event"], line["chain_id"]) for line in logs]
    assert events == [("chain_ready", OTHER), ("chain_not_ready", BASE)]
    assert health.checks == {"chain_8453": False, "chain_10": True}


async def test_the_time_away_begins_with_the_first_failed_check(chains, health) -> None:
    assert health.away_s(BASE) == float("inf")
    await health.find_wrong_chain_nodes()
    assert health.away_s(BASE) is None
    chains.faults[BASE] = ChainUnavailable
    for now_s, away_s in ((1_010.0, 0.0), (1_040.0, 30.0)):
        chains.now_s = now_s
        await health.find_wrong_chain_nodes()
        assert health.away_s(BASE) == away_s
    assert health.away_s(OTHER) is None


async def test_the_heads_of_networks_that_respond_are_read_at_once() -> None:
    chains = MemoryChain(BASE, OTHER)
    for chain_id, time in ((BASE, 1_900_000_000), (OTHER, 1_800_000_000)):
        chains.mine(chain_id, time=time)
    strange = ChainId(1)
    assert await read_head_times(chains, (BASE, OTHER, BASE, strange)) == {
        BASE: 1_900_000_000,
        OTHER: 1_800_000_000,
    }
    chains.disconnect(OTHER)
    assert await read_head_times(chains, (BASE, OTHER)) == {BASE: 1_900_000_000}
    chains.barrier = asyncio.Event()
    assert await read_head_times(chains, (BASE, OTHER), deadline_s=0) == {}
