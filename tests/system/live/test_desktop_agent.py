"""`tollway mcp` as a desktop program runs it: a process that the official MCP client uses over stdin and stdout in
both revisions of the protocol, at a running gateway and a real chain."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp import MCPError, StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

from tests.kit.budgets import policy_of
from tests.kit.gateway_cluster import PRICE_UNITS
from tests.kit.gateway_process import poll
from tollway.client import AsyncTollwayClient, GatewayRefused, Wallet, requests
from tollway.spending_policy import acceptance_digest, policy_digest, policy_members, unbinding_digest

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODES = ("legacy", "2026-07-28")
TOOLS = {"search_apis", "describe_api", "call_api", "my_calls", "wallet_status"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A gateway that settles, with one listing, and a wallet with its own folder for each agent."""

    cluster: Any
    gateway: Any
    api_id: str
    folder: Path

    @contextlib.asynccontextmanager
    async def agent(
        self, *words: str, mode: str = "legacy", payer: Any = None, **env: str
    ) -> AsyncIterator["Agent"]:
        payer = payer or await self.cluster.wallet()
        key_file = self.folder / f"{payer.address}.key"
        if not key_file.exists():
            key_file.touch(mode=0o600)
            key_file.write_text(payer.private_key)
        rpc = f"{self.cluster.driver.chain_id}={self.cluster.driver.rpc_url}"
        told = {
            "TOLLWAY_GATEWAY": self.gateway.base_url,
            "TOLLWAY_KEY_FILE": str(key_file),
            "TOLLWAY_RPC": rpc,
            "TOLLWAY_STORE": str(self.folder / f"{payer.address}.sqlite3"),
            "TOLLWAY_BUDGET": "5 USDC",
            **env,
        }
        log, pid_file = (self.folder / f"{payer.address}.{kind}" for kind in ("log", "pid"))
        start = "import os, pathlib, sys; pathlib.Path(sys.argv.pop(1)).write_text(str(os.getpid()))"
        command = StdioServerParameters(
            command=sys.executable,
            args=["-c", f"{start}; from tollway.cli import main; main()", str(pid_file), "mcp", *words],
            env=told,
        )
        with log.open("a") as errors:
            async with Client(stdio_client(command, errlog=errors), mode=mode) as client:
                yield Agent(client=client, payer=payer, log=log, pid_file=pid_file)

    async def balance(self, payer: Any) -> int:
        token = self.cluster.playground.token
        return int(await self.cluster.driver.call(token, "balanceOf", str(payer.address)))

    def served(self, rest: str) -> int:
        return sum(seen.target == rest for seen in self.cluster.provider.seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    client: Client
    payer: Any
    log: Path
    pid_file: Path
    told: list[str] = field(default_factory=list)

    async def use(self, name: str, **arguments: Any) -> tuple[bool, Any]:
        """Whether the tool succeeded, and its result."""
        result = await self.client.call_tool(name, arguments)
        text = result.content[0].text
        self.told.append(text)
        return not result.is_error, json.loads(text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Harness]:
    gas = await cluster.wallet()
    async with cluster.gateway(settings={"TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}) as gateway:
        provider = await cluster.wallet()
        api_id = await cluster.publish(
            gateway, provider, name="Quotes \u00e0 la carte", tags=["quotes"], description="Prices of coins."
        )
        yield Harness(
            cluster=cluster, gateway=gateway, api_id=api_id, folder=tmp_path_factory.mktemp("agents")
        )


@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_finds_pays_calls_and_sees_its_bill(harness: Harness, mode: str) -> None:
    async with harness.agent(mode=mode) as agent:
        assert {tool.name for tool in (await agent.client.list_tools()).tools} == TOOLS
        worked, found = await agent.use("search_apis", query="quotes", currency="USDC")
        assert worked
        (listed,) = found["apis"]
        assert (listed["apiId"], listed["price"]) == (harness.api_id, "0.01 USDC")
        worked, described = await agent.use("describe_api", apiId=listed["apiId"])
        assert worked
        assert "Prices of coins." in json.dumps(described["api"])
        worked, answer = await agent.use("call_api", apiId=listed["apiId"], path="/quote/ETH")
        assert worked
        assert (answer["status"], answer["body"]["symbol"]) == (200, "ETH")
        assert (answer["payment"]["state"], answer["payment"]["rail"]) == ("charged", "x402")
        worked, bill = await agent.use("my_calls")
        assert worked
        assert [call["id"] for call in bill["calls"]] == [answer["payment"]["callId"]]
        assert bill["calls"][0]["transaction"] == answer["payment"]["transaction"]
        _, status = await agent.use("wallet_status")
        assert status["spent"] == {"session": {"USDC": "0.01"}, "total": {"USDC": "0.01"}}
        assert status["wallet"] == str(agent.payer.address)
        secret = agent.payer.private_key.removeprefix("0x")
        assert secret not in "".join([*agent.told, agent.log.read_text()])


@pytest.mark.parametrize(
    ("words", "rail", "code", "said"),
    [
        (("--max-price", "0.009 USDC"), "tx", "price_above_max", "allowed in USDC: 0.009"),
        (
            ("--session-budget", "0.009 USDC"),
            "x402",
            "budget_exhausted",
            "limit of this session: 0 of 0.009 USDC",
        ),
        (("--budget", "0.009 USDC"), "tx", "budget_exhausted", "the budget: 0 of 0.009 USDC"),
    ],
)
async def test_above_a_limit_nothing_is_paid_and_the_result_has_the_reason(
    harness: Harness, words: tuple[str, ...], rail: str, code: str, said: str
) -> None:
    payer, target = await harness.cluster.wallet(), f"/quote/{code[:3]}{rail}"
    before = await harness.balance(payer)
    async with harness.agent(*words, "--rail", rail, payer=payer) as agent:
        for wish in ({}, {"maxPrice": "1 USDC"}):
            worked, told = await agent.use("call_api", apiId=harness.api_id, path=target, **wish)
            assert not worked
            assert (told["error"]["code"], said in told["error"]["detail"]) == (code, True)
            assert "Only the owner of this wallet can raise its limits" in told["error"]["advice"]
    assert (await harness.balance(payer), harness.served(target)) == (before, 0)


@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_an_agent_reads_what_its_owner_lets_it_spend_and_gets_no_more(
    harness: Harness, rail: str
) -> None:
    """And the owner reads the calls of the agent until it unbinds the wallet."""
    payer, owner, gateway = await harness.cluster.wallet(), await harness.cluster.wallet(), harness.gateway
    agent_wallet, owner_wallet = Wallet.from_key(payer.private_key), Wallet.from_key(owner.private_key)
    named: dict[str, Any] = {"owner": owner_wallet.address, "agent": agent_wallet.address}
    named["gateway"] = gateway.base_url
    policy = policy_of(**named, maxPerDay="0.015", not_after=int(time.time()) + 86_400)
    wish, stores = {"apiId": harness.api_id, "path": f"/quote/{rail}"}, harness.folder
    async with (
        AsyncTollwayClient(gateway.base_url, wallet=agent_wallet, store_path=stores / "a.sqlite3") as mine,
        AsyncTollwayClient(gateway.base_url, wallet=owner_wallet, store_path=stores / "o.sqlite3") as owners,
    ):
        signature = "0x" + owner_wallet.sign_digest(policy_digest(policy)).hex()
        put = requests.put_budget(str(payer.address), policy_members(policy), signature)
        await owners.fetch_document(put)
        assert await mine.budget() is None
        signature = "0x" + agent_wallet.sign_digest(acceptance_digest(**named, nonce=1)).hex()
        accept = requests.accept_owner(str(payer.address), str(owner.address), 1, signature)
        await mine.fetch_document(accept)
        async with harness.agent("--rail", rail, payer=payer) as agent:
            worked, told = await agent.use("call_api", **wish)
            assert worked, told
            _, status = await agent.use("wallet_status")
            (left,) = status["ownerBudget"]["left"]
            assert left.startswith("maxPerDay: 0.005 USDC left until ")
            worked, told = await agent.use("call_api", **wish)
            assert (worked, told["error"]["code"]) == (False, "budget_exceeded")
            assert (told["error"]["limit"], told["error"]["left"]) == ("maxPerDay", "0.005")
            assert "has left: 0.005 USDC of maxPerDay until" in told["error"]["detail"]
            (call,) = (await owners.history(wallet=str(payer.address))).calls
            assert (call.price, (await owners.budget(str(payer.address))).state) == ("0.01", "in_force")
            signature = "0x" + owner_wallet.sign_digest(unbinding_digest(**named, nonce=2)).hex()
            unbind = requests.delete_budget(str(payer.address), 2, signature, is_unbinding=True)
            await owners.fetch_document(unbind)
            with pytest.raises(GatewayRefused, match="may not read"):
                await owners.history(wallet=str(payer.address))
            worked, told = await agent.use("call_api", **wish)
            assert worked, told
            _, status = await agent.use("wallet_status")
            assert "ownerBudget" not in status


@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_a_program_that_cancels_and_repeats_pays_once(harness: Harness, rail: str) -> None:
    payer, target = await harness.cluster.wallet(), f"/slow?seconds=1.5&rail={rail}"
    before = await harness.balance(payer)
    async with harness.agent("--rail", rail, payer=payer) as agent:
        wish = {"apiId": harness.api_id, "path": target}
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(agent.client.call_tool("call_api", wish))
            await poll(lambda: harness.served(target), what="the call")
            asking.cancel()
        worked, told = await agent.use("call_api", **wish)
        assert (worked, told["body"]) == (True, {"seconds": 1.5})
        assert told["payment"]["state"] == "charged"
    assert await harness.balance(payer) == before - PRICE_UNITS
    (call,) = await harness.cluster.history(harness.gateway, payer, "&status=succeeded")
    assert call["payment"]["state"] == "charged"


@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_a_server_that_is_killed_over_a_call_pays_once(harness: Harness, rail: str) -> None:
    payer, target = await harness.cluster.wallet(), f"/slow?seconds=1.5&killed={rail}"
    before, wish = await harness.balance(payer), {"apiId": harness.api_id, "path": target}
    async with harness.agent("--rail", rail, payer=payer) as agent, asyncio.TaskGroup() as group:
        asking = group.create_task(_until_it_breaks(agent, wish))
        await poll(lambda: harness.served(target), what="the call")
        os.kill(int(agent.pid_file.read_text()), signal.SIGKILL)
        assert await asking
    async with harness.agent("--rail", rail, payer=payer) as agent:
        worked, told = await agent.use("call_api", **wish)
        assert (worked, told["body"]) == (True, {"seconds": 1.5})
        worked, again = await agent.use("call_api", **wish)
        assert worked
        assert again["payment"]["callId"] != told["payment"]["callId"], (
            "answered: the same again is another call"
        )
    assert await harness.balance(payer) == before - 2 * PRICE_UNITS


async def _until_it_breaks(agent: Agent, wish: dict[str, str]) -> bool:
    with pytest.raises(MCPError):
        await agent.client.call_tool("call_api", wish)
    return True


@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_a_repeat_under_a_kept_key_gets_the_stored_answer_and_moves_nothing(
    harness: Harness, rail: Any
) -> None:
    """The price is spent, also in the wallet's store, and the response was not delivered."""
    payer, target = await harness.cluster.wallet(), f"/quote/KEPT{rail}"
    before, driver = await harness.balance(payer), harness.cluster.driver
    options: dict[str, Any] = {"rail": rail, "store_path": harness.folder / f"{rail}.sqlite3"}
    options |= {
        "wallet": Wallet.from_key(payer.private_key),
        "rpc_urls": {driver.chain_id: driver.rpc_url},
    }
    bodies = []
    for _ in range(2):
        async with AsyncTollwayClient(harness.gateway.base_url, **options) as client:
            key = client.keep_key(harness.api_id, target)
            answer = await client.call(harness.api_id, target, idempotency_key=key)
            assert (answer.status_code, answer.payment.state) == (200, "charged")
            bodies.append((answer.content, answer.payment.call_id))
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert bodies[0] == bodies[1]
    assert (await harness.balance(payer), harness.served(target)) == (before - PRICE_UNITS, 1)


async def test_ctrl_c_ends_it_while_its_stdin_is_open(harness: Harness) -> None:
    async with harness.agent() as agent:
        await agent.use("wallet_status")
        pid = int(agent.pid_file.read_text())
        os.kill(pid, signal.SIGINT)
        await poll(lambda: not _is_alive(pid), what="its end")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second: the process ends between open and read
        return False
    return state != "Z"
