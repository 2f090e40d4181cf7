"""The examples of the documentation run against a gateway and a chain, each with a wallet of its own, and print what they promise."""

import asyncio
import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_process import clean_environment, listens, poll
from tests.kit.ports import find_low_port
from tests.kit.signed_calls import QUICK
from tests.kit.waits import DEADLINE_S
from tollway.client import AsyncTollwayClient, Wallet

FOLDER = Path(__file__).parents[3] / "docs" / "examples"
QUOTE = "Pays 0.01 USDC to 0x"

PRINTED: dict[str, tuple[str, ...]] = {
    "search.py": (
        "1 found",
        "Quotes 0.01 USDC matches name",
        "verified owner: False success rate: None",
        "10000 base units of USDC on eip155:",
        "by tx",
        "by x402",
        "characters for the model",
    ),
    "call.py": ("200 ETH", "charged 0.01 USDC by x402 as call_"),
    "cap.py": (
        "too expensive: ",
        QUOTE,
        "charged",
        "charged",
        "budget: This payment of 0.01 USDC would exceed the limit of this session: 0.02 of 0.02 USDC",
        "signed: ['0.02 USDC']",
    ),
    "bodies.py": ("POST x=1&x=2 200", "200 multipart/form-data", "200"),
    "stream.py": ("200 charged", "id: 1", "id: 2", "id: 3"),
    "retry.py": ("call_", " false", "call_", " true", "call_", " false"),
    "prepay.py": ("tx 0.02 USDC", "credit 0.01 USDC", "credit 0 USDC"),
    "history.py": (
        "GET /status/500 500 failed released 0.01",
        "GET /quote/ETH 200 succeeded charged 0.01",
        "UTC True",
        "0.01 USDC confirmed left 0 spent",
        "0.01 USDC confirmed left 10000 credited",
        "spent: ['0.02 USDC']",
    ),
    "wallets.py": ("new wallet: 0x", "paid: charged by 0x", "no money: "),
    "async_calls.py": ("ETH charged", "BTC charged", "SOL charged", "id: 1", "id: 2", "4 calls"),
}
"""Example -> parts of its output, in this order."""

AGENT_TOOLS = "['call_api', 'describe_api', 'my_calls', 'search_apis', 'wallet_status']"
AGENTS = ("agents/langchain_tools.py", "agents/mcp_client.py", "agents/openai_agents.py")
"""The examples of agent frameworks. Each prints the names of its tools and the result of a call."""

RUN = {**PRINTED} | dict.fromkeys(AGENTS, (AGENT_TOOLS, "200 charged"))


class ExampleStage:
    """A gateway with one listing of the sample provider, paid by both rails."""

    def __init__(self, cluster: Any, gateway: Any, api_id: str) -> None:
        self.cluster = cluster
        self.gateway = gateway
        self.api_id = api_id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(cluster: Any) -> Any:
    provider, gas = await cluster.wallets(2)
    settings = {**QUICK, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    async with cluster.gateway(settings=settings) as gateway:
        yield ExampleStage(cluster, gateway, await cluster.publish(gateway, provider))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", RUN)
async def test_an_example_prints_what_it_promises(
    stage: ExampleStage, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caller, driver = await stage.cluster.wallet(), stage.cluster.driver
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOLLWAY_GATEWAY", stage.gateway.base_url)
    monkeypatch.setenv("TOLLWAY_PRIVATE_KEY", caller.private_key)
    monkeypatch.setenv("TOLLWAY_RPC", f"{driver.chain_id}={driver.rpc_url}")
    monkeypatch.setenv("API_ID", stage.api_id)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    printed = await asyncio.to_thread(run_example, FOLDER / name)
    place = 0
    for part in RUN[name]:
        assert part in printed[place:], printed
        place = printed.index(part, place) + len(part)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_api_behind_the_middleware_is_paid_through_the_gateway_and_by_no_other_way(
    stage: ExampleStage, tmp_path: Path
) -> None:
    cluster, port = stage.cluster, find_low_port()
    provider, payer = await cluster.wallets(2)
    endpoint = f"http://127.0.0.1:{port}/v1"
    api_id = await cluster.publish(stage.gateway, provider, endpoint=endpoint)
    settings = {"GATEWAY": stage.gateway.base_url, "ENDPOINT": endpoint, "API_ID": api_id}
    sample = FOLDER.parent / "samples" / "plain_wsgi.py"
    process = subprocess.Popen(
        [sys.executable, str(sample), str(port)], env=clean_environment(settings), cwd=tmp_path
    )
    try:
        await poll(lambda: listens(port), what="the sample")
        options = {"wallet": Wallet.from_key(payer.private_key), "store_path": tmp_path / "store"}
        rpc_urls = {cluster.driver.chain_id: cluster.driver.rpc_url}
        async with AsyncTollwayClient(stage.gateway.base_url, rpc_urls=rpc_urls, **options) as client:
            paid = await client.call(api_id, "/quote?x=%20a", json={"a": 1})
            streamed = await client.call(api_id, "/quote", content=b"x" * 200_000)
        direct = await cluster.send(f"{endpoint}/quote", method="POST", content=b"{}")
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
    assert (paid.status_code, paid.payment.state) == (200, "charged")
    assert paid.json() == {"call": paid.payment.call_id, "payer": str(payer.address), "bytes": 7}
    assert (streamed.status_code, streamed.json()["bytes"]) == (200, 200_000)
    assert (direct.status, direct.code) == (401, "signature_missing")


def run_example(path: Path) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def test_every_example_is_run_and_listed() -> None:
    names = {path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("**/*.py")}
    assert names == {*PRINTED, *AGENTS}
    page = (FOLDER.parent / "recipes.md").read_text()
    assert [name for name in names if f"(examples/{name})" not in page] == []
