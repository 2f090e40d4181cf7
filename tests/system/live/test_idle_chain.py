"""An idle chain: its head is old, and its next block is not.

Stock clients sign a `validAfter` ten minutes back, which is later than such a head. They are served; but nothing is
settled that the next block would refuse because of its time.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.authorization_payer import RECEIPTS, V1, V2, AuthorizationPayer
from tests.kit.gateway_cluster import PRICE_UNITS, GatewayCluster
from tollway.sandbox.chain import ChainDriver

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDLE_S = 3_600


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def payer(own_chain_cluster: GatewayCluster) -> AsyncIterator[AuthorizationPayer]:
    wallet, provider, gas = await own_chain_cluster.wallets(3)
    async with own_chain_cluster.gateway(settings={"TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}) as gateway:
        api_id = await own_chain_cluster.publish(gateway, provider)
        yield AuthorizationPayer(cluster=own_chain_cluster, gateway=gateway, api_id=api_id, signer=wallet)


async def fall_asleep(driver: ChainDriver, *, wakes_at: float) -> None:
    """Makes the head an hour old; the next block has the time `wakes_at`."""
    await driver.rpc("evm_setTime", int(time.time()) - IDLE_S)
    await driver.mine(1)
    await driver.rpc("evm_setTime", int(wakes_at))


async def read_head_age_s(driver: ChainDriver) -> float:
    head: dict[str, Any] = await driver.rpc("eth_getBlockByNumber", "latest", False)
    return time.time() - int(head["timestamp"], 16)


@pytest.mark.parametrize("dialect", [V1, V2])
async def test_a_stock_client_pays_on_a_chain_that_was_idle(payer: AuthorizationPayer, dialect: str) -> None:
    driver = payer.cluster.driver
    await fall_asleep(driver, wakes_at=time.time())
    assert await read_head_age_s(driver) > IDLE_S - 60
    before = await payer.balance()

    reply = await payer.pay(f"/echo/idle-{dialect[-1]}", dialect)

    assert (reply.status, reply.state) == (200, "charged"), reply.body
    assert RECEIPTS[dialect] in reply.headers
    assert await payer.balance() == before - PRICE_UNITS
    assert await read_head_age_s(driver) < IDLE_S / 2, "the transfer's block is of now"


async def test_an_idle_chain_settles_many_at_once(payer: AuthorizationPayer) -> None:
    await fall_asleep(payer.cluster.driver, wakes_at=time.time())
    before = await payer.balance()
    replies = await asyncio.gather(*(payer.pay(f"/echo/idle-many-{number}", V1) for number in range(8)))
    assert [reply.status for reply in replies] == [200] * 8
    assert await payer.balance() == before - 8 * PRICE_UNITS


async def test_nothing_is_settled_that_the_next_block_would_refuse(payer: AuthorizationPayer) -> None:
    """After an outage some chains make the missing blocks with their old times."""
    driver = payer.cluster.driver
    await fall_asleep(driver, wakes_at=time.time() - IDLE_S + 10)
    before = await payer.balance()

    reply = await payer.pay("/echo/outage", V1)

    assert (reply.status, reply.code) == (402, "payment_verification_failed")
    assert reply.json["reason"] == "invalid_exact_evm_payload_authorization_valid_after"
    assert payer.cluster.provider.count("/echo/outage") == 0
    assert await payer.balance() == before
    served = await payer.pay("/echo/outage", V1, valid_after=0)
    assert served.status == 200, "whoever signed no such moment is served on that chain as well"
    await fall_asleep(driver, wakes_at=time.time())
