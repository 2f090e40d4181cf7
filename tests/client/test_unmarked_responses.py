"""A response without a payment state to a request that carried a payment: the gateway did not write it, so the outcome is unknown. Both clients, and
the tools of an agent."""

import json

import httpx
import pytest

from tests.client.conftest import do
from tollway.client import AsyncTollwayClient, GatewayUnreachable
from tollway.client.agent_tools import AgentTools, find_tool

API, CHAIN = "api_1", 84532
GATEWAY = "https://gateway.test"


class Proxy:
    """A proxy before the gateway, which answers paid requests itself. `is_passing`: the gateway gets the request all the same. `left`: how many
    paid requests it answers so."""

    def __init__(self, gateway, *, status=502, is_passing=True, left=10**9, headers=None, content=b"<html>"):
        self.gateway, self.is_passing, self.left = gateway, is_passing, left
        self.status, self.headers, self.content = status, headers or {"content-type": "text/html"}, content
        self.proofs: list[str] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        proof = request.headers.get("payment-signature") or request.headers.get("x-signature")
        if request.url.host == "node.test" or proof is None:
            return self.gateway.handle(request)
        self.proofs.append(proof)
        if self.left <= 0:
            return self.gateway.handle(request)
        self.left -= 1
        if self.is_passing:
            self.gateway.handle(request)
        return httpx.Response(self.status, content=self.content, headers=self.headers)


@pytest.fixture
def make(make, gateway):
    gateway.offer_authorizations()
    return lambda proxy, rail="x402": make(transport=httpx.MockTransport(proxy.handle), rail=rail)


PROBLEM = {"content-type": "application/problem+json"}
JSON = b'{"title": "Bad gateway", "status": 502}'


@pytest.mark.parametrize("rail", ["x402", "tx"])
@pytest.mark.parametrize(
    "answer",
    [
        {"status": 502},
        {"status": 504},
        {"status": 503, "headers": {"retry-after": "1"}},
        {"status": 200, "content": b"welcome to this network"},
        {"status": 204, "content": b""},
        {"status": 302, "headers": {"location": "https://login.example"}},
        {"status": 402, "content": b"pay me"},
        {"status": 403},
        {"status": 502, "headers": PROBLEM, "content": JSON},
        {"status": 200, "headers": {"tollway-payment-state": "paid"}},
    ],
    ids=lambda answer: (
        f"{answer['status']}-{len(answer.get('headers', {}))}{len(answer.get('content', b''))}"
    ),
)
async def test_the_outcome_of_a_paid_request_without_a_payment_state_is_unknown(make, gateway, rail, answer):
    proxy = Proxy(gateway, **answer)
    with pytest.raises(GatewayUnreachable) as caught:
        await do(make(proxy, rail).call(API, "/a", method="POST", content=b"order"))
    failure = caught.value
    assert (failure.is_sent, failure.code) == (True, "gateway_unreachable")
    assert f"status {answer['status']}" in failure.detail
    assert "/history" in failure.detail
    assert (len(proxy.proofs), gateway.served) == (1, 1)  # an unsafe request is sent once
    client = make(proxy, rail)
    if rail == "x402":
        assert [signed.state for signed in await do(client.authorizations())] == ["open"]
    else:
        (paid,) = await do(client.payments())
        assert failure.transaction == paid.tx_hash


@pytest.mark.parametrize("rail", ["x402", "tx"])
async def test_a_safe_request_is_sent_again_with_the_same_proof_and_finds_its_outcome(make, gateway, rail):
    proxy = Proxy(gateway, is_passing=False, left=2)
    response = await do(make(proxy, rail).call(API, "/a"))
    assert (response.status_code, response.payment.state) == (200, "charged")
    assert (len(proxy.proofs), len(set(proxy.proofs)), gateway.served) == (3, 1, 1)


async def test_the_next_run_sends_the_same_authorisation(make, gateway):
    proxy = Proxy(gateway, is_passing=False)
    with pytest.raises(GatewayUnreachable):
        await do(make(proxy).call(API, "/a", method="POST", content=b"order"))
    proxy.left = 0
    response = await do(make(proxy).call(API, "/a", method="POST", content=b"order"))
    assert (response.status_code, response.payment.state) == (200, "charged")
    assert (len(set(proxy.proofs)), gateway.served) == (1, 1)


@pytest.mark.parametrize("status", [200, 502])
async def test_a_request_without_a_payment_pays_nothing_whatever_comes_back(make, gateway, status):
    def answer(_request):
        return httpx.Response(status, text="a proxy")

    gateway.answers = [answer]
    response = await do(make(Proxy(gateway)).call(API, "/a"))
    assert (response.status_code, response.payment.state, response.payment.rail) == (status, "none", None)
    assert gateway.served == 0


async def test_a_stream_without_a_payment_state_is_no_response(make, gateway):
    client = make(Proxy(gateway, status=200, content=b"captive portal"))
    stream = client.stream(API, "/a", method="POST", content=b"order")
    enter = stream.__aenter__ if isinstance(client, AsyncTollwayClient) else stream.__enter__
    with pytest.raises(GatewayUnreachable):
        await do(enter())


async def test_the_tools_of_an_agent_say_that_the_outcome_is_unknown(gateway, client_options):
    gateway.offer_authorizations()
    proxy = Proxy(gateway)
    client_options["transport"] = httpx.MockTransport(proxy.handle)
    async with AsyncTollwayClient(GATEWAY, **client_options, budget="5 USDC") as client:
        tools, tool = AgentTools.for_client(client), find_tool("call_api")
        assert tool is not None
        call = {"apiId": API, "path": "/a", "method": "POST", "body": "order"}
        result = await tools.run_tool(tool, call)
        error = result.document["error"]
        assert (result.is_error, error["code"]) == (True, "gateway_unreachable")
        assert "exactly the same arguments" in error["advice"]
        assert "othing was paid" not in json.dumps(result.document)
        assert [signed.state for signed in client.authorizations()] == ["open"]
        assert len(set(proxy.proofs)) == 1
