"""Unmodified clients of x402, and the product's own, pay a listing over a channel of a running gateway, which claims it on the chain."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.clients import stock_clients as stock
from tests.kit.gateway_cluster import API
from tests.kit.gateway_process import ROOT, poll
from tests.kit.page_blocks import read_blocks
from tests.kit.ports import find_low_port
from tests.kit.signed_calls import LONG_LIVED
from tollway.client import AsyncTollwayClient, PaymentPending, Wallet
from tollway.sandbox import completions
from tollway.sandbox.chain import START_ETH_WEI

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRICE_UNITS = 300
FETCH, HTTPX = "pay_channel_fetch.mjs", "pay_channel_httpx.py"
CHANNELS = {
    **LONG_LIVED,
    "TEST_LIMIT_GAS_REFRESH_S": "0.5",
    "TOLLWAY_CHANNELS": "true",
    "TEST_LIMIT_SWEEP_INTERVAL_S": "0.2",
    "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "0.2",
}
UNCLAIMED = {**CHANNELS, "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "86400"}
"""After the first round the gateway claims nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    cluster: Any
    gateway: Any
    provider: Any
    api_id: str
    gas: Any

    def url(self, rest: str) -> str:
        return f"{self.gateway.public_url}{API}/gateway/{self.api_id}{rest}"

    async def refund_url(self, url: str) -> str:
        """Of the channel that an unpaid call of `url` offers."""
        async with self.cluster.session.get(url) as reply:
            offered = json.loads(base64.b64decode(reply.headers["PAYMENT-REQUIRED"]))
        one = next(one for one in offered["accepts"] if one["scheme"] == "batch-settlement")
        path = f"{one['network']}/{one['asset']}/{one['payTo']}/{one['extra']['receiverAuthorizer']}"
        return f"{self.gateway.public_url}{API}/channels/{path}"

    async def run(
        self, script: str, payer: Any, plan: list[dict[str, Any]], *, has_rpc: bool = True
    ) -> list[Any]:
        env = {"PAYER_KEY": payer.private_key}
        if has_rpc:
            env["RPC_URL"] = self.cluster.driver.rpc_url
        told = await stock.run_script(script, json.dumps(plan), env=env)
        return list(told["told"])

    async def wait_exact(self, *, is_offered: bool) -> None:
        """Returns once a 402 offers single authorisations, or channels alone: the gateway looks at the balance of its gas key from time to time."""
        dear = await self.cluster.publish(self.gateway, self.provider, pricePerRequest="1")
        url = self.url("/quote/ETH").replace(self.api_id, dear)
        schemes = ["exact"] * is_offered + ["batch-settlement"]

        async def is_so() -> bool:
            async with self.cluster.session.get(url) as reply:
                offered = json.loads(base64.b64decode(reply.headers["PAYMENT-REQUIRED"]))
            return [one["scheme"] for one in offered["accepts"]] == schemes

        await poll(is_so, what="the offers of a 402")

    async def balance(self, wallet: Any) -> int:
        return int(
            await self.cluster.driver.call(self.cluster.playground.token, "balanceOf", str(wallet.address))
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(cluster: Any) -> AsyncIterator[Harness]:
    async with run_harness(cluster, CHANNELS) as harness:
        yield harness


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unclaimed(cluster: Any) -> AsyncIterator[Harness]:
    """A gateway whose channels are not claimed, so that no voucher is public."""
    async with run_harness(cluster, UNCLAIMED) as harness:
        yield harness


@contextlib.asynccontextmanager
async def run_harness(cluster: Any, settings: dict[str, str]) -> AsyncIterator[Harness]:
    gas = await cluster.wallet()
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            cluster.gateway(settings={**settings, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key})
        )
        provider = await cluster.wallet()
        api_id = await cluster.publish(gateway, provider, pricePerRequest="0.0003")
        yield Harness(cluster=cluster, gateway=gateway, provider=provider, api_id=api_id, gas=gas)


async def test_the_lines_of_the_documentation_are_those_of_these_clients() -> None:
    page = (ROOT / "docs" / "callers-reference.md").read_text()
    blocks = {one.language: one.text for one in read_blocks(page) if one.runner and "BatchSettl" in one.text}
    for language, script in (("js", FETCH), ("python", HTTPX)):
        client = (stock.HERE / script).read_text()
        shown = blocks[language].replace("chain: base,", "chain: baseSepolia,").replace(":8453", ":84532")
        lines = [line.removesuffix(";").rpartition(" = ")[2] for line in shown.splitlines() if line]
        assert [line for line in lines if line not in client] == []


@pytest.mark.parametrize("script", [FETCH, HTTPX])
async def test_calls_cost_one_deposit_and_one_claim(harness: Harness, script: str) -> None:
    payer = await harness.cluster.wallet()
    before = await harness.balance(harness.provider)
    calls = 20
    told = await harness.run(script, payer, [{"url": harness.url("/quote/ETH"), "times": calls}])
    assert [one["status"] for one in told] == [200] * calls, told[:3]
    charged = [one["receipt"]["extra"]["chargedAmount"] for one in told]
    assert charged == [str(PRICE_UNITS)] * calls

    async def is_paid() -> bool:
        return await harness.balance(harness.provider) - before == calls * PRICE_UNITS

    await poll(is_paid, what="the claim of the channel")


async def test_a_restart_with_the_chain_in_sight_heals_and_without_it_moves_nothing(
    unclaimed: Harness,
) -> None:
    payer = await unclaimed.cluster.wallet()
    url = unclaimed.url("/quote/ETH")
    plan = [{"url": url, "times": 2}, {"url": url, "isRestarted": True, "times": 2}]
    told = await unclaimed.run(FETCH, payer, plan)
    assert [one["status"] for one in told] == [200] * 4
    assert told[2]["seen"] == [402, 402, 200]
    left = await unclaimed.balance(payer)
    (blind,) = await unclaimed.run(FETCH, payer, [{"url": url}], has_rpc=False)
    assert blind["status"] == 402
    assert await unclaimed.balance(payer) == left


@pytest.mark.parametrize("script", [FETCH, HTTPX])
async def test_an_open_channel_pays_on_while_the_gas_for_deposits_is_missing(
    unclaimed: Harness, script: str
) -> None:
    payer, other = await unclaimed.cluster.wallet(), await unclaimed.cluster.wallet()
    driver, url = unclaimed.cluster.driver, unclaimed.url("/quote/ETH")
    told = await unclaimed.run(script, payer, [{"url": url, "times": 2}])
    await driver.set_native_balance(unclaimed.gas.address, 0)
    await unclaimed.wait_exact(is_offered=False)
    told += await unclaimed.run(script, payer, [{"url": url, "times": 2}])
    (refused,) = await unclaimed.run(script, other, [{"url": url}])
    await driver.set_native_balance(unclaimed.gas.address, START_ETH_WEI)
    await unclaimed.wait_exact(is_offered=True)
    assert [one["status"] for one in told] == [200] * 4
    assert told[-1]["receipt"]["extra"]["channelState"]["chargedCumulativeAmount"] == str(4 * PRICE_UNITS)
    assert (refused["status"], json.loads(refused["body"])["reason"]) == (503, "gas")


async def test_a_lost_response_stays_charged_and_heals(unclaimed: Harness) -> None:
    payer = await unclaimed.cluster.wallet()
    url = unclaimed.url("/quote/ETH")
    plan = [{"url": url}, {"url": url, "losesReceipt": True}, {"url": url}]
    told = await unclaimed.run(FETCH, payer, plan)
    assert [one["status"] for one in told] == [200] * 3
    assert told[2]["receipt"]["extra"]["channelState"]["chargedCumulativeAmount"] == str(3 * PRICE_UNITS)


async def test_five_calls_at_once_on_one_channel(unclaimed: Harness) -> None:
    payer = await unclaimed.cluster.wallet()
    url = unclaimed.url("/quote/ETH")
    plan = [{"url": url}, {"url": url, "times": 5, "isParallel": True}, {"url": url}]
    told = await unclaimed.run(FETCH, payer, plan)
    assert told[0]["status"] == told[-1]["status"] == 200
    served = sum(one["status"] == 200 for one in told)
    assert told[-1]["receipt"]["extra"]["channelState"]["chargedCumulativeAmount"] == str(
        served * PRICE_UNITS
    )


async def test_two_listings_of_a_provider_share_a_channel(unclaimed: Harness) -> None:
    payer = await unclaimed.cluster.wallet()
    other = await unclaimed.cluster.publish(unclaimed.gateway, unclaimed.provider, pricePerRequest="0.001")
    second = unclaimed.url("/quote/ETH").replace(unclaimed.api_id, other)
    plan = [{"url": unclaimed.url("/quote/ETH")}, {"url": second}, {"url": unclaimed.url("/quote/ETH")}]
    told = await unclaimed.run(FETCH, payer, plan)
    assert [one["status"] for one in told] == [200] * 3, told
    assert [one["receipt"]["extra"]["channelState"]["chargedCumulativeAmount"] for one in told] == [
        "300",
        "1300",
        "1600",
    ]
    assert [bool(one["receipt"]["transaction"]) for one in told] == [True, False, False]


async def test_a_failed_call_costs_nothing_and_its_voucher_pays_the_next(unclaimed: Harness) -> None:
    payer = await unclaimed.cluster.wallet()
    good, bad = unclaimed.url("/quote/ETH"), unclaimed.url("/status/503")
    told = await unclaimed.run(FETCH, payer, [{"url": good}, {"url": bad}, {"url": good}])
    assert [one["status"] for one in told] == [200, 503, 200]
    assert told[2]["receipt"]["extra"]["channelState"]["chargedCumulativeAmount"] == "600"


async def test_a_refund_pays_back_what_no_call_took(unclaimed: Harness) -> None:
    """The rest of the deposit goes to the payer, what the calls cost to the provider; the next call deposits again and goes on counting."""
    payer = await unclaimed.cluster.wallet()
    before = await unclaimed.balance(payer)
    url = unclaimed.url("/quote/ETH")
    plan = [
        {"url": url, "times": 2},
        {"url": await unclaimed.refund_url(url), "isRefund": True},
        {"url": url},
    ]
    first, second, refunded, again = await unclaimed.run(FETCH, payer, plan)
    assert first["status"] == second["status"] == 200
    assert refunded["error"] is None, refunded
    assert refunded["refund"]["amount"] == str(300_000 - 2 * PRICE_UNITS)
    assert again["receipt"]["extra"]["channelState"]["chargedCumulativeAmount"] == str(3 * PRICE_UNITS)
    assert before - await unclaimed.balance(payer) == 2 * PRICE_UNITS + 300_000


async def test_a_refund_is_given_once_a_day(unclaimed: Harness) -> None:
    payer = await unclaimed.cluster.wallet()
    url = unclaimed.url("/quote/ETH")
    refund = {"url": await unclaimed.refund_url(url), "isRefund": True}
    told = await unclaimed.run(FETCH, payer, [{"url": url}, refund, {"url": url}, refund])
    assert told[1]["error"] is None, told[1]
    assert "429" in told[3]["error"]


METERING = {
    "base": "0",
    "absent": "max",
    "show": True,
    "parts": [
        {
            "unit": "token",
            "unitPrice": "0.0001",
            "per": 1,
            "quantity": {"json": "/usage/completion_tokens", "sse": "/usage/completion_tokens"},
        }
    ],
}


def complete(words: int, **options: Any) -> dict[str, Any]:
    """A call of so many tokens, 100 units each."""
    asked = {"messages": [{"role": "user", "content": "word " * words}], **options}
    return {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": json.dumps(asked)}


@contextlib.asynccontextmanager
async def run_completions() -> AsyncIterator[str]:
    """The URL of a server of the sandbox's completions."""
    app = web.Application()
    app.router.add_post(completions.PATH, completions.respond_completion)
    runner = web.AppRunner(app)
    await runner.setup()
    port = find_low_port()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("script", [FETCH, HTTPX])
async def test_a_metered_listing_charges_what_was_used(unclaimed: Harness, script: str) -> None:
    """Below, at and above the maximum of ten tokens. A stream charges its maximum at its head, and the following calls charge less until it is given back."""
    payer = await unclaimed.cluster.wallet()
    calls = [
        complete(3),
        complete(4),
        complete(10),
        complete(15),
        complete(2, **STREAMED),
        complete(5),
        complete(6),
    ]
    async with run_completions() as endpoint:
        api_id = await unclaimed.cluster.publish(
            unclaimed.gateway,
            unclaimed.provider,
            pricePerRequest="0.001",
            metering=METERING,
            endpoint=endpoint,
        )
        url = unclaimed.url(completions.PATH).replace(unclaimed.api_id, api_id)
        told = await unclaimed.run(script, payer, [{"url": url, **call} for call in calls])
    assert [one["status"] for one in told] == [200] * len(calls), told
    charged = [int(one["receipt"]["extra"]["chargedAmount"]) for one in told]
    used = [300, 400, 1_000, 1_000, 200, 500, 600]
    state = told[-1]["receipt"]["extra"]["channelState"]
    assert int(state["chargedCumulativeAmount"]) == sum(charged) == sum(used), told
    assert charged[4] > used[4]
    assert charged[5] < used[5]


# ---- The product's own client.


def own_options(harness: Harness, payer: Any, store_path: Path) -> dict[str, Any]:
    driver = harness.cluster.driver
    return {
        "wallet": Wallet.from_key(payer.private_key),
        "rpc_urls": {driver.chain_id: driver.rpc_url},
        "rail": "channel",
        "store_path": store_path,
    }


async def test_our_own_client_heals_a_lost_store_and_gets_its_rest_back(
    unclaimed: Harness, tmp_path: Path
) -> None:
    payer, root = await unclaimed.cluster.wallet(), unclaimed.gateway.base_url
    before = await unclaimed.balance(payer)
    for store, calls in (("first", 3), ("second", 2)):
        options = own_options(unclaimed, payer, tmp_path / store)
        async with AsyncTollwayClient(root, **options) as client:
            for _ in range(calls):
                answer = await client.call(unclaimed.api_id, "/quote/ETH")
                assert (answer.status_code, answer.payment.rail) == (200, "channel"), answer.text
            (channel,) = client.channels()
    assert (channel.charged, channel.balance) == (5 * PRICE_UNITS, 300_000)
    async with AsyncTollwayClient(root, **options) as client:
        refunded = await client.refund_channel(str(channel.id))
        assert (refunded.amount, refunded.is_seen) == (300_000 - 5 * PRICE_UNITS, True)
    assert before - await unclaimed.balance(payer) == 5 * PRICE_UNITS


async def test_calls_at_once_of_our_own_client_are_all_served(unclaimed: Harness, tmp_path: Path) -> None:
    payer = await unclaimed.cluster.wallet()
    options = own_options(unclaimed, payer, tmp_path / "store")
    async with AsyncTollwayClient(unclaimed.gateway.base_url, **options) as client:
        calls = (client.call(unclaimed.api_id, "/quote/ETH") for _ in range(5))
        answers = await asyncio.gather(*calls)
        (channel,) = client.channels()
    assert [answer.status_code for answer in answers] == [200] * 5
    assert (channel.charged, channel.calls) == (5 * PRICE_UNITS, 5)


async def test_our_own_client_follows_metered_calls_and_streams(unclaimed: Harness, tmp_path: Path) -> None:
    """It deposits once, heals nothing, and has the sums of the gateway after each call."""
    payer, used = await unclaimed.cluster.wallet(), (3, 15, 2, 5, 6)
    async with run_completions() as endpoint:
        api_id = await unclaimed.cluster.publish(
            unclaimed.gateway,
            unclaimed.provider,
            pricePerRequest="0.001",
            metering=METERING,
            endpoint=endpoint,
        )
        options = own_options(unclaimed, payer, tmp_path / "store")
        async with AsyncTollwayClient(unclaimed.gateway.base_url, **options) as client:
            for words in used:
                call = complete(words, **(STREAMED if words == 2 else {}))
                body = call.pop("body")
                answer = await client.call(api_id, completions.PATH, content=body, **call)
                assert (answer.status_code, answer.payment.rail) == (200, "channel"), answer.text
            (channel,) = client.channels()
    assert channel.charged == sum(100 * min(words, 10) for words in used)
    assert (channel.calls, channel.balance) == (len(used), 1_000_000)


async def test_our_own_client_begins_a_withdrawal_without_the_gateway(
    unclaimed: Harness, tmp_path: Path
) -> None:
    payer = await unclaimed.cluster.wallet()
    options = own_options(unclaimed, payer, tmp_path / "store")
    async with AsyncTollwayClient(unclaimed.gateway.base_url, **options) as client:
        assert (await client.call(unclaimed.api_id, "/quote/ETH")).status_code == 200
        (channel,) = client.channels()
    async with AsyncTollwayClient("http://127.0.0.1:1", **options) as client:
        plan = await client.plan_withdrawal(str(channel.id))
        assert (plan.amount, plan.is_end) == (300_000 - PRICE_UNITS, False)
        begun = (await client.send_withdrawal(plan)).channel.withdrawal
        assert begun is not None
        assert begun.amount == plan.amount
        with pytest.raises(PaymentPending, match="its delay ends in"):
            await client.plan_withdrawal(str(channel.id))


async def test_the_record_and_the_receipt_name_the_channel(unclaimed: Harness) -> None:
    payer = await unclaimed.cluster.wallet()
    (told,) = await unclaimed.run(FETCH, payer, [{"url": unclaimed.url("/quote/ETH")}])
    channel_id = told["receipt"]["extra"]["channelState"]["channelId"]
    reply = await unclaimed.cluster.control(unclaimed.gateway, payer, "GET", "/history")
    (call,) = reply.json["calls"]
    assert (call["payment"]["rail"], call["payment"]["channel"]) == ("channel", channel_id)
    assert (call["payment"]["transaction"], call["payment"]["state"]) == (None, "charged")
    receipt = await unclaimed.cluster.control(
        unclaimed.gateway, payer, "GET", f"/history/{call['id']}/receipt"
    )
    assert channel_id in json.dumps(receipt.json)


async def test_a_rail_that_is_open_is_named_wherever_rails_are(unclaimed: Harness) -> None:
    root = f"{unclaimed.gateway.public_url}{API}"
    async with unclaimed.cluster.session.get(f"{root}/networks") as reply:
        networks = (await reply.json())["networks"]
    (usdc,) = (one for one in networks[0]["assets"] if one["symbol"] == "USDC")
    assert "channel" in usdc["rails"]
    async with unclaimed.cluster.session.get(f"{root}/apis/{unclaimed.api_id}") as reply:
        options = (await reply.json())["pricing"]["options"]
    async with unclaimed.cluster.session.get(unclaimed.url("/quote/ETH")) as reply:
        assert (await reply.json())["payment"]["options"] == options
    (channel,) = (one for one in options if one["rail"] == "channel")
    assert channel["extra"]["minDeposit"] == "300000"


async def test_a_thousand_calls_cost_one_deposit_and_one_claim(cluster: Any) -> None:
    """What the provider gets on the chain is the sum of the calls. The gateway claims in its first round after a start."""
    calls = 1_000
    async with run_harness(cluster, UNCLAIMED) as harness:
        payer = await cluster.wallet()
        before = await harness.balance(harness.provider)
        told = await harness.run(FETCH, payer, [{"url": harness.url("/quote/ETH"), "times": calls}])
        assert [one["status"] for one in told] == [200] * calls
        assert {one["receipt"]["extra"]["chargedAmount"] for one in told} == {str(PRICE_UNITS)}
        await harness.gateway.stop()
        harness.gateway.start()
        await harness.gateway.wait_ready()

        async def is_paid() -> bool:
            return await harness.balance(harness.provider) - before == calls * PRICE_UNITS

        await poll(is_paid, what="the claim of the channel")
        sent = await cluster.driver.rpc("eth_getTransactionCount", str(harness.gas.address), "latest")
        assert int(sent, 16) == 2
