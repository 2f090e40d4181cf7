"""Paid calls through the proxies of `deploy/`, each in front of a gateway process: the path and the signature over it, the address of the caller, large
headers, streams, and that no request is sent twice.

`tests/deploy/test_edges.py` compares their times with those of a settlement.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from tests.kit.edges import HOST, NAMES, prepare_edge, read_envoy_counter, run_edge, trust_everything
from tests.kit.gateway_cluster import API, PRICE_UNITS, GatewayCluster, Reply, bound
from tests.kit.gateway_cluster import plain as unbound
from tests.kit.gateway_process import poll
from tests.kit.ports import find_low_ports
from tests.kit.upstream import Arrived, hang_up, plain, run_upstream
from tests.kit.waits import DEADLINE_S, run_program
from tollway.limits import DEFAULT_LIMITS
from tollway.sandbox.chain import FundedAccount

pytestmark = pytest.mark.asyncio(loop_scope="module")

FREE_CALLS = 3
LONG_HEAD_S = 65.0


@dataclass(kw_only=True)
class Front:
    """One proxy, the gateway behind it, a provider's listings, and a caller. `address`: of loopback, from which a request leaves."""

    cluster: GatewayCluster
    gateway: Any
    port: int
    provider: FundedAccount
    caller: FundedAccount
    paid_id: str = ""
    free_id: str = ""

    @contextlib.asynccontextmanager
    async def open(
        self,
        target: str,
        *,
        method: str = "GET",
        headers: Any = (),
        address: str = "127.0.0.2",
        deadline_s: float = DEADLINE_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        connector = aiohttp.TCPConnector(local_addr=(address, 0), ssl=trust_everything(), force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(
                method,
                URL(f"https://127.0.0.1:{self.port}{target}", encoded=True),
                headers=[("Host", HOST), *headers],
                server_hostname=HOST,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=deadline_s),
            ) as response,
        ):
            yield response

    async def send(self, target: str, **options: Any) -> Reply:
        async with self.open(target, **options) as response:
            return Reply(status=response.status, headers=response.headers, body=await response.read())

    async def call(self, rest: str, *, api_id: str | None = None, **options: Any) -> Reply:
        return await self.send(f"{API}/gateway/{api_id or self.paid_id}{rest}", **options)

    async def pay(self, rest: str) -> list[tuple[str, str]]:
        """The headers of a payment for one request, bound to it."""
        tx_hash = await self.cluster.send_tokens(self.caller, self.provider.address, PRICE_UNITS)
        chain_id = self.cluster.driver.chain_id
        return bound(self.caller, tx_hash, self.gateway, self.paid_id, rest, chain_id=chain_id)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=NAMES)
async def front(
    cluster: GatewayCluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Front]:
    (port,) = find_low_ports(1)
    settings = {
        "TOLLWAY_TRUSTED_PROXIES": "127.0.0.1/32",
        "TOLLWAY_LIMIT_FREE_CALLS_PER_MINUTE": str(FREE_CALLS),
    }
    folder = tmp_path_factory.mktemp(request.param)
    async with cluster.gateway(settings=settings, public_url=f"https://{HOST}") as gateway:
        edge = prepare_edge(request.param, folder, port=port, gateway_port=gateway.port)
        provider, caller = await cluster.wallets(2)
        front = Front(cluster=cluster, gateway=gateway, port=port, provider=provider, caller=caller)
        front.paid_id = await cluster.publish(gateway, provider)
        front.free_id = await cluster.publish(gateway, provider, name="Free", pricePerRequest="0")
        async with run_edge(edge):
            yield front


@pytest.mark.parametrize(
    "rest", ["/echo/a%2Fb", "/echo//a/./b", "/echo/%7Euser?x=%20&y=a%2Fb", "/echo/a;b=1"]
)
async def test_a_bound_signature_covers_the_path_as_it_was_sent(front: Front, rest: str) -> None:
    reply = await front.call(rest, headers=await front.pay(rest))
    assert reply.status == 200, reply.body
    assert reply.state == "charged"
    assert front.cluster.provider.seen[-1].target == rest


@pytest.mark.parametrize("rest", ["/echo/a%2Fb", "/echo//a/./b"])
async def test_a_bound_signature_verifies_over_http_2(front: Front, rest: str) -> None:
    program = need_http2_curl()
    headers = [word for name, value in await front.pay(rest) for word in ("--header", f"{name}: {value}")]
    run = await run_program(
        *(program, "--silent", "--insecure", "--http2", "--path-as-is"),
        *(
            "--noproxy",
            "*",
            "--resolve",
            f"{HOST}:{front.port}:127.0.0.1",
            "--header",
            f"Host: {HOST}",
            *headers,
        ),
        *("--output", "/dev/null", "--write-out", "%{http_version} %{http_code}"),
        f"https://{HOST}:{front.port}{API}/gateway/{front.paid_id}{rest}",
    )
    assert run.output == "2 200"
    assert front.cluster.provider.seen[-1].target == rest


def need_http2_curl() -> str:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not on this machine")
    printed = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    if "HTTP2" not in printed.stdout:
        pytest.skip("this curl speaks no HTTP/2")
    return program


async def test_a_bound_signature_for_another_path_is_refused(front: Front) -> None:
    headers = await front.pay("/echo/a%2Fb")
    reply = await front.call("/echo/a/b", headers=headers)
    assert (reply.status, reply.code) == (403, "payer_mismatch")


async def test_the_terms_of_a_402_arrive_whole(front: Front) -> None:
    reply = await front.call("/quote/ETH")
    assert (reply.status, reply.code) == (402, "payment_required")
    assert reply.json["payment"]["amount"] == "0.01"
    assert reply.json["type"].startswith(f"https://{HOST}/")


async def test_a_header_with_the_longest_payment_reaches_the_gateway(front: Front) -> None:
    size = DEFAULT_LIMITS.payment_header_bytes_max - 200
    reply = await front.call("/quote/ETH", headers=[("PAYMENT-SIGNATURE", "A" * size)])
    assert (reply.status, reply.code) == (400, "payment_malformed")


async def test_the_address_that_a_stranger_writes_does_not_count(front: Front) -> None:
    """Each request names another client; they count as one, and a caller at another address has calls of its own."""
    statuses = [
        (
            await front.call(
                "/quote/ETH",
                api_id=front.free_id,
                headers=[("X-Forwarded-For", f"203.0.113.{number}")],
                address="127.0.0.3",
            )
        ).status
        for number in range(FREE_CALLS + 1)
    ]
    assert statuses == [200] * FREE_CALLS + [429]
    other = await front.call("/quote/ETH", api_id=front.free_id, address="127.0.0.4")
    assert other.status == 200


async def test_a_chunk_arrives_before_the_next_one_is_made(front: Front) -> None:
    """The upstream sends its second chunk after the caller has read the first one."""
    is_first_read = asyncio.Event()

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        async with asyncio.timeout(DEADLINE_S):
            await is_first_read.wait()
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")
        await writer.drain()

    async with run_upstream() as upstream:
        api_id = await front.cluster.publish(
            front.gateway, front.provider, endpoint=upstream.url, name="Stream", pricePerRequest="0"
        )
        upstream.answer = answer
        async with front.open(f"{API}/gateway/{api_id}/", address="127.0.0.5") as response:
            first = await response.content.readany()
            is_first_read.set()
            assert (response.status, first + await response.read()) == (200, b"firstsecond")
            assert first == b"first"


async def test_a_large_head_of_an_upstream_arrives(front: Front) -> None:
    async with run_upstream() as upstream:
        api_id = await front.cluster.publish(
            front.gateway, front.provider, endpoint=upstream.url, name="Large", pricePerRequest="0"
        )
        upstream.answer = plain(headers=tuple(f"X-Part-{number}: {'v' * 1_000}" for number in range(40)))
        reply = await front.call("/", api_id=api_id, address="127.0.0.6")
    assert reply.status == 200
    assert (
        sum(len(value) for name, value in reply.headers.items() if name.lower().startswith("x-part"))
        == 40_000
    )


OBEYED = (
    "X-Accel-Redirect: {again}",
    "X-Accel-Limit-Rate: 1",
    "X-Accel-Expires: 600",
    "X-Accel-Buffering: yes",
    "X-Accel-Charset: utf-16",
    "X-Sendfile: /etc/hostname",
    "X-Envoy-Immediate-Health-Check-Fail: 1",
    "X-Envoy-Degraded: 1",
    "CDN-Cache-Control: max-age=600",
    "Surrogate-Control: max-age=600",
    'Cache-Control: public, s-maxage=600, private="x"',
    'WWW-Authenticate: Basic realm="gateway"',
)
"""What an intermediary or a browser would do by. `{again}`: the path of the same call."""


async def test_an_api_does_not_steer_the_proxy(front: Front) -> None:
    """A payment of three prices: one call, one charge, one response."""
    async with run_upstream() as upstream:
        api_id = await front.cluster.publish(
            front.gateway, front.provider, endpoint=upstream.url, name="Steering"
        )
        upstream.arrived.clear()  # the probe of the publication
        again = f"{API}/gateway/{api_id}/again"
        upstream.answer = plain(
            b"the paid response", headers=tuple(line.replace("{again}", again) for line in OBEYED)
        )
        tx_hash = await front.cluster.send_tokens(front.caller, front.provider.address, 3 * PRICE_UNITS)
        reply = await front.call("/x", api_id=api_id, headers=unbound(front.caller, tx_hash))
        assert (reply.status, reply.body, reply.state) == (200, b"the paid response", "charged")
        assert [arrived.target for arrived in upstream.arrived] == ["/x"]
    payment = await front.cluster.payment(front.gateway, front.caller, tx_hash)
    assert len(payment["calls"]) == 1
    assert reply.headers["Cache-Control"] == "private"
    sent = {line.partition(":")[0].lower() for line in OBEYED} - {"cache-control"}
    assert not sent & {name.lower() for name in reply.headers}


async def test_nginx_obeys_no_header_of_a_response(cluster: GatewayCluster, tmp_path: Path) -> None:
    """A server that is no gateway stands behind it. The page of the redirect would be a second request."""
    (port,) = find_low_ports(1)
    async with run_upstream() as server:
        server.answer = plain(b"whole", headers=("X-Accel-Redirect: /other", "X-Accel-Charset: utf-16"))
        edge = prepare_edge("nginx", tmp_path, port=port, gateway_port=server.port)
        account = await cluster.wallet()
        front = Front(cluster=cluster, gateway=None, port=port, provider=account, caller=account)
        async with run_edge(edge):
            reply = await front.send("/paid")
    assert (reply.status, reply.body) == (200, b"whole")
    assert [arrived.target for arrived in server.arrived] == ["/paid"]
    assert reply.headers["Strict-Transport-Security"] == "max-age=31536000"


PAID_TARGETS = (
    "/api/v2/gateway/api_x",
    "/api/v2/gateway/api_x/a%2Fb/../../../c?q=%20",
    "/api/v2/channels/a/b/c/d",
    "/mcp",
    "/mcp/api_x",
)
CONTROL_TARGETS = (
    "/",
    "/apis/api_x",
    "/api/v2/apis?limit=3&x=/api/v2/gateway/",
    "/api/v2/gatewayx",
    "/openapi.json",
    "/x//api/v2/gateway/a%2Fb",
)


@pytest.mark.parametrize("name", NAMES)
async def test_what_pays_goes_to_the_gateway_and_the_rest_to_its_control_workers(
    cluster: GatewayCluster, tmp_path: Path, name: str
) -> None:
    """Two servers that are no gateways stand behind the proxy. Each path arrives as it was sent."""
    (port,) = find_low_ports(1)
    async with run_upstream() as gateway, run_upstream() as control:
        edge = prepare_edge(name, tmp_path, port=port, gateway_port=gateway.port, control_port=control.port)
        account = await cluster.wallet()
        front = Front(cluster=cluster, gateway=None, port=port, provider=account, caller=account)
        async with run_edge(edge):
            await poll(lambda: _is_served(front), what="the probes of the proxy")
            for target in (*PAID_TARGETS, *CONTROL_TARGETS):
                assert (await front.send(target)).status == 200
    paid, rest = (
        [one.target for one in server.arrived if "readyz" not in one.target] for server in (gateway, control)
    )
    assert (paid, rest) == ([*PAID_TARGETS], [*CONTROL_TARGETS])


async def _is_served(front: Front) -> bool:
    targets = ("/mcp?readyz", "/readyz")
    return all([(await front.send(target)).status == 200 for target in targets])


async def test_an_api_does_not_take_the_gateway_out_of_rotation(
    cluster: GatewayCluster, tmp_path: Path
) -> None:
    """Envoy counts such a response as a failed health check, and takes the gateway out until the next probe."""
    (port,) = find_low_ports(1)
    async with cluster.gateway(public_url=f"https://{HOST}") as gateway, run_upstream() as upstream:
        edge = prepare_edge("envoy", tmp_path, port=port, gateway_port=gateway.port)
        account = await cluster.wallet()
        front = Front(cluster=cluster, gateway=gateway, port=port, provider=account, caller=account)
        api_id = await cluster.publish(gateway, account, endpoint=upstream.url, pricePerRequest="0")
        upstream.answer = plain(headers=("X-Envoy-Immediate-Health-Check-Fail: 1",))
        async with run_edge(edge):
            replies = [await front.call("/x", api_id=api_id) for _ in range(3)]
            failures = await read_envoy_counter(edge, "cluster.tollway.health_check.passive_failure")
    assert [reply.status for reply in replies] == [200] * 3
    assert failures == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_that_got_no_response_is_not_sent_again(
    cluster: GatewayCluster, name: str, method: str, tmp_path: Path
) -> None:
    """The server behind the proxy ends the connection of each request but a probe."""
    (port,) = find_low_ports(1)
    async with run_upstream() as server:
        server.answer = _end_calls
        edge = prepare_edge(name, tmp_path, port=port, gateway_port=server.port)
        account = await cluster.wallet()
        front = Front(cluster=cluster, gateway=None, port=port, provider=account, caller=account)
        async with run_edge(edge):
            reply = await front.send("/paid", method=method)
    assert reply.status in (502, 503)
    assert [arrived.method for arrived in server.arrived if arrived.target == "/paid"] == [method]


@pytest.mark.skipif("RELEASE_TEST" not in os.environ, reason="more than a minute: run `make release-test`")
async def test_a_settlement_of_a_minute_is_not_cut(cluster: GatewayCluster, tmp_path: Path) -> None:
    """Longer than the limits that proxies have by default (15 s of Envoy, 60 s of nginx). The three wait at once."""
    account = await cluster.wallet()

    async def send(name: str, server_port: int) -> int:
        folder = tmp_path / name
        folder.mkdir()
        (port,) = find_low_ports(1)
        edge = prepare_edge(name, folder, port=port, gateway_port=server_port)
        front = Front(cluster=cluster, gateway=None, port=port, provider=account, caller=account)
        async with run_edge(edge):
            return (await front.send("/paid", deadline_s=LONG_HEAD_S + DEADLINE_S)).status

    async with run_upstream() as server:
        server.answer = _hold_head
        statuses = await asyncio.gather(*(send(name, server.port) for name in NAMES))
        assert [arrived.target for arrived in server.arrived].count("/paid") == len(NAMES)
    assert dict(zip(NAMES, statuses, strict=True)) == dict.fromkeys(NAMES, 200)


async def _hold_head(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    if arrived.target == "/paid":
        await asyncio.sleep(LONG_HEAD_S)
    await plain()(arrived, writer)


async def _end_calls(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    await (hang_up if arrived.target == "/paid" else plain())(arrived, writer)
