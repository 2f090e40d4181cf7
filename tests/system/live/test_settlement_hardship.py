"""Gas keys without balance or used by other software, and rising fees, while calls paid by authorisation are settled:
each is settled once in the end, and its response waits for that."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.node_proxy import SEND
from tests.system.live.proxied_listing import ProxiedListing, assert_undecided, open_proxied_listing
from tollway.sandbox.chain import START_ETH_WEI

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trouble(cluster: Any) -> AsyncIterator[ProxiedListing]:
    async with open_proxied_listing(cluster, TEST_LIMIT_FEE_BUMP_AFTER_S="0.5") as trouble:
        yield trouble


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def mended(trouble: ProxiedListing) -> AsyncIterator[None]:
    await trouble.wait_offered()
    yield
    trouble.line.mend()


# ---- Gas.


async def test_a_gas_key_that_runs_dry_settles_once_it_is_filled(trouble: ProxiedListing) -> None:
    driver, gas = trouble.cluster.driver, trouble.gas
    calls = [await trouble.sign("/echo/dry-", method=method) for method in ("GET", "POST", "GET")]
    await driver.set_native_balance(gas.address, 1)

    replies = await asyncio.gather(*(call.send() for call in calls))

    for reply in replies:
        assert_undecided(reply)
    await driver.set_native_balance(gas.address, START_ETH_WEI)
    for call in calls:
        answered = await trouble.wait_served(call)
        assert (answered.headers["Idempotency-Replayed"], call.seen) == ("true", 1)
        await trouble.check_settled(call)


async def test_a_nonce_used_elsewhere_with_the_same_key_is_given_up(trouble: ProxiedListing) -> None:
    driver, gas = trouble.cluster.driver, trouble.gas
    for _ in range(3):
        await driver.wait_receipt(await driver.send_native(key=gas.key, to=gas.address, value=1))
    call = await trouble.sign("/echo/foreign-")

    reply = await call.send()

    if reply.status != 200:
        assert_undecided(reply)
        assert (await trouble.wait_served(call)).headers["Idempotency-Replayed"] == "true"
    assert call.seen == 1
    await trouble.check_settled(call)


async def test_a_transaction_that_is_too_cheap_for_every_node_is_offered_more(
    trouble: ProxiedListing,
) -> None:
    """No pool has the transaction, so no node reports it as pending."""
    driver = trouble.cluster.driver
    call = await trouble.sign("/echo/cheap-")
    trouble.line.cut_at(SEND, is_heard=False)
    assert_undecided(await call.send())
    price_wei = int(await driver.rpc("eth_gasPrice"), 16)
    await driver.rpc("anvil_setNextBlockBaseFeePerGas", hex(4 * price_wei))
    await driver.mine(1)

    trouble.line.mend()
    answered = await trouble.wait_served(call)

    assert (answered.headers["Idempotency-Replayed"], call.seen) == ("true", 1)
    await trouble.check_settled(call)
