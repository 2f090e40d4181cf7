"""One fetch is enough to pay by x402 and to call: a caller that knows the agent document of a listing, and nothing else of this gateway, does it on a chain. With the
payment guide that the document links to, it pays by a transaction and over MCP, and reads its bill.
"""

import base64
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from tests.clients import agent_reader as reader
from tests.kit.gateway_process import poll
from tests.kit.listings import realistic_document
from tollway.discovery.agent_document import AGENT_BYTES_MAX
from tollway.ids import Address
from tollway.sandbox.provider import SAMPLE_DOCUMENT

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRICE_UNITS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A gateway that can settle, one listing of it, and the URL of its agent document."""

    cluster: Any
    gateway: Any
    provider: Any
    api_id: str

    async def fetch_agent(self) -> dict[str, Any]:
        reply = await self.cluster.send(f"{self.gateway.base_url}/api/v2/apis/{self.api_id}/agent")
        assert reply.status == 200
        assert len(reply.body) <= AGENT_BYTES_MAX
        agent: dict[str, Any] = reply.json
        return agent

    async def fetch_guide(self, agent: dict[str, Any]) -> dict[str, Any]:
        reply = await self.cluster.send(agent["origin"] + agent["links"]["guide"])
        assert reply.status == 200
        guide: dict[str, Any] = reply.json
        return guide

    async def send(self, agent: dict[str, Any], method: str, headers: dict[str, str]) -> Any:
        """The request of the first example with this method, with more headers."""
        request = read_example(agent, method)
        return await self.cluster.send(
            request.url,
            method=method,
            headers=list({**request.headers, **headers}.items()),
            content=request.body or None,
        )

    async def earned(self) -> int:
        token = self.cluster.playground.token
        return int(await self.cluster.driver.call(token, "balanceOf", str(self.provider.address)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(cluster: Any) -> AsyncIterator[Harness]:
    gas = await cluster.wallet()
    async with cluster.gateway(settings={"TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}) as gateway:
        provider = await cluster.wallet()
        api_id = await cluster.publish(gateway, provider, openapi=SAMPLE_DOCUMENT)
        yield Harness(cluster=cluster, gateway=gateway, provider=provider, api_id=api_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRequest:
    url: str
    headers: dict[str, str]
    body: bytes


def read_example(agent: dict[str, Any], method: str) -> ExampleRequest:
    """The request of the first example with this method."""
    operation = next(one for one in agent["operations"] if one["method"] == method)
    example = operation["example"]
    media_type = {"Content-Type": operation["bodyType"]} if "bodyType" in operation else {}
    return ExampleRequest(
        url=agent["interfaces"]["http"]["url"] + example["target"],
        headers={**media_type, **example.get("headers", {})},
        body=json.dumps(example["body"]).encode() if "body" in example else b"",
    )


async def fetch_with_x402(harness: Harness) -> dict[str, Any]:
    """The document after the first check of gas prices has enabled x402."""

    async def look() -> dict[str, Any] | None:
        agent = await harness.fetch_agent()
        return agent if any(rail["rail"] == "x402" for rail in agent["payment"]["rails"]) else None

    found: dict[str, Any] = await poll(look, what="the rail x402")
    return found


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_its_form_of_x402_pays_and_calls(harness: Harness, method: str) -> None:
    agent, payer = await fetch_with_x402(harness), await harness.cluster.wallet()
    before = await harness.earned()
    answer = await harness.send(agent, method, reader.pay_by_x402(agent, payer.private_key))
    assert answer.status == 200, answer.body
    receipt = json.loads(base64.b64decode(answer.headers["PAYMENT-RESPONSE"]))
    assert (receipt["success"], Address.parse(receipt["payer"])) == (True, payer.address)
    assert await harness.earned() - before == PRICE_UNITS


async def test_its_form_of_a_transaction_pays_for_several_calls(harness: Harness) -> None:
    agent, payer = await harness.fetch_agent(), await harness.cluster.wallet()
    option = reader.find_option(agent, "tx")
    assert option["chainId"] == harness.cluster.driver.chain_id
    assert Address.parse(option["token"]) == harness.cluster.playground.token.address
    before = await harness.earned()
    paid = await harness.cluster.send_tokens(payer, Address.parse(option["payTo"]), 2 * int(option["amount"]))
    guide = await harness.fetch_guide(agent)
    for method in ("GET", "POST"):
        request = read_example(agent, method)
        headers = reader.show_transaction(
            agent,
            payer.private_key,
            str(paid),
            method=method,
            url=request.url,
            body=request.body,
            guide=guide,
        )
        answer = await harness.send(agent, method, headers)
        assert answer.status == 200, answer.body
    assert answer.headers["Tollway-Credit-Remaining"] == "0 USDC"
    assert await harness.earned() - before == 2 * PRICE_UNITS


async def test_a_document_without_x402_has_the_form_of_a_transaction(harness: Harness) -> None:
    """A listing in a currency that no authorization pays."""
    api_id = await harness.cluster.publish(
        harness.gateway, harness.provider, openapi=SAMPLE_DOCUMENT, currency="ETH", pricePerRequest="0.0001"
    )
    listing = replace(harness, api_id=api_id)
    agent, payer = await listing.fetch_agent(), await harness.cluster.wallet()
    assert [rail["rail"] for rail in agent["payment"]["rails"]] == ["tx"]
    option = reader.find_option(agent, "tx")
    driver = harness.cluster.driver
    paid = await driver.send_native(
        key=payer.key, to=Address.parse(option["payTo"]), value=int(option["amount"])
    )
    await driver.wait_receipt(paid)
    url = read_example(agent, "GET").url
    headers = reader.show_transaction(agent, payer.private_key, str(paid), method="GET", url=url)
    answer = await listing.send(agent, "GET", headers)
    assert answer.status == 200, answer.body


async def test_the_guide_on_mcp_calls_the_same_operations(harness: Harness) -> None:
    agent, payer = await harness.fetch_agent(), await harness.cluster.wallet()
    guide = await harness.fetch_guide(agent)
    listed = await _ask_mcp(harness, agent, guide, "tools/list")
    assert [tool["name"] for tool in listed["tools"]] == [one["tool"] for one in agent["operations"]]
    operation = next(one for one in agent["operations"] if one["path"] == "/quote/{symbol}")
    option = reader.find_option(agent, "tx")
    paid = await harness.cluster.send_tokens(payer, Address.parse(option["payTo"]), int(option["amount"]))
    url = agent["interfaces"]["http"]["url"] + operation["example"]["target"]
    shown = reader.show_transaction(agent, payer.private_key, str(paid), method="GET", url=url, guide=guide)
    names = re.findall(r"payment[A-Z][A-Za-z]+", guide["mcp"]["payment"])
    arguments = {"symbol": "ETH", **dict(zip(names, shown.values(), strict=True))}
    told = await _ask_mcp(harness, agent, guide, "tools/call", name=operation["tool"], arguments=arguments)
    assert told.get("isError", False) is False, told
    assert "price" in json.dumps(told)


async def _ask_mcp(
    harness: Harness, agent: dict[str, Any], guide: dict[str, Any], method: str, **params: Any
) -> dict[str, Any]:
    """One request of the stateless revision."""
    revision = guide["mcp"]["revisions"][0]
    word = "io.modelcontextprotocol/"
    meta = {f"{word}protocolVersion": revision, f"{word}clientCapabilities": {}}
    content = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", revision),
        ("Mcp-Method", method),
        *([("Mcp-Name", params["name"])] if "name" in params else []),
    ]
    reply = await harness.cluster.send(
        agent["interfaces"]["mcp"]["url"],
        method="POST",
        headers=headers,
        content=json.dumps(content).encode(),
    )
    assert reply.status == 200, reply.body
    text = reply.body.decode()
    told = json.loads(text if text.startswith("{") else text.partition("data: ")[2].partition("\n")[0])
    result: dict[str, Any] = told["result"]
    return result


async def test_the_guide_on_signing_in_shows_the_bill(harness: Harness) -> None:
    agent, payer = await fetch_with_x402(harness), await harness.cluster.wallet()
    answer = await harness.send(agent, "GET", reader.pay_by_x402(agent, payer.private_key))
    told = (await harness.fetch_guide(agent))["history"]
    assert told["calls"] == agent["links"]["history"]
    nonce_path, session_path = re.findall(r"/api/v2/auth/[a-z]+", " ".join(told["auth"]))
    chain_id = agent["payment"]["options"][0]["chainId"]
    asked = await _post(harness, agent["origin"] + nonce_path, address=str(payer.address), chainId=chain_id)
    message = asked["message"]
    signature = reader.sign_text(payer.private_key, message)
    session = await _post(harness, agent["origin"] + session_path, message=message, signature=signature)
    bearer = [("Authorization", f"Bearer {session['accessToken']}")]
    history = await harness.cluster.send(agent["origin"] + told["calls"], headers=bearer)
    (call,) = history.json["calls"]
    assert call["id"] == answer.headers["Tollway-Call-Id"]
    assert (call["status"], call["price"]) == ("succeeded", "0.01")


async def _post(harness: Harness, url: str, **members: Any) -> dict[str, Any]:
    headers = [("Content-Type", "application/json")]
    reply = await harness.cluster.send(
        url, method="POST", headers=headers, content=json.dumps(members).encode()
    )
    assert reply.status in (200, 201), reply.body
    told: dict[str, Any] = reply.json
    return told


async def test_an_unpaid_call_leads_to_it(harness: Harness) -> None:
    agent = await harness.fetch_agent()
    unpaid = await harness.send(agent, "GET", {})
    assert unpaid.status == 402
    found = re.search(r'<([^<>]+)>; rel="describedby"', unpaid.headers["Link"])
    assert found is not None
    linked = (await harness.cluster.send(found[1])).json
    assert linked["interfaces"] == agent["interfaces"]


async def test_every_link_of_it_is_there(harness: Harness) -> None:
    agent = await harness.fetch_agent()
    for name, path in agent["links"].items():
        reply = await harness.cluster.send(agent["origin"] + path)
        assert reply.status == (401 if name == "history" else 200), name


async def test_every_operation_of_a_long_document_is_on_one_of_its_pages(harness: Harness) -> None:
    document = realistic_document(60)
    api_id = await harness.cluster.publish(harness.gateway, harness.provider, openapi=document)
    agent = await replace(harness, api_id=api_id).fetch_agent()
    whole = {one["tool"] for one in agent["operations"] if "leftOut" not in one}
    path, pages = agent["operationsAt"], 0
    while path is not None:
        reply = await harness.cluster.send(agent["origin"] + path)
        assert reply.status == 200
        assert len(reply.body) <= AGENT_BYTES_MAX
        whole |= {
            one["tool"] for one in reply.json["operations"] if {"inputSchema", "outputSchema"} <= set(one)
        }
        path, pages = reply.json.get("next"), pages + 1
    assert (len(whole), pages + 1) == (60, reply.json["pages"])


async def test_the_ledger_is_balanced(harness: Harness) -> None:
    report = await harness.cluster.audit(harness.gateway)
    assert (report.wrong, report.held_calls) == ((), ())
