"""The node fails while a call paid by authorisation is settled, or its chain is reorganised afterwards. While the
transfer is possible no caller gets a 402; after it, the same request gets the stored response."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.node_proxy import SEND
from tests.kit.signed_calls import SignedCall, find_pending
from tests.system.live.proxied_listing import ProxiedListing, assert_undecided, open_proxied_listing
from tollway.ids import TxHash

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trouble(cluster: Any) -> AsyncIterator[ProxiedListing]:
    async with open_proxied_listing(cluster) as trouble:
        yield trouble


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def mended(trouble: ProxiedListing) -> AsyncIterator[None]:
    await trouble.wait_offered()
    yield
    trouble.line.mend()


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("is_heard", [True, False], ids=["heard", "unheard"])
async def test_a_node_that_dies_with_the_transaction_leaves_an_answer_to_be_fetched(
    trouble: ProxiedListing, method: str, is_heard: bool
) -> None:
    call = await trouble.sign("/echo/dies-", method=method)
    trouble.line.cut_at(SEND, is_heard=is_heard)

    assert_undecided(await call.send())
    assert trouble.line.is_cut
    assert_undecided(await call.send())
    assert len(await call.transfers()) == is_heard

    trouble.line.mend()
    answered = await trouble.wait_served(call)

    assert (answered.headers["Idempotency-Replayed"], call.seen) == ("true", 1)
    assert answered.json["method"] == method
    assert "PAYMENT-RESPONSE" in answered.headers
    await trouble.check_settled(call)


async def test_a_node_that_is_down_at_the_head_causes_no_second_402(trouble: ProxiedListing) -> None:
    call = await trouble.sign("/echo/down-")
    before = call.seen
    async with asyncio.TaskGroup() as group, trouble.cluster.holding():
        task = group.create_task(call.send())
        await poll(lambda: call.seen > before, what="a call under way")
        trouble.line.is_cut = True
    assert_undecided(task.result())
    assert await call.transfers() == []

    trouble.line.mend()
    answered = await trouble.wait_served(call)

    assert (answered.headers["Idempotency-Replayed"], call.seen) == ("true", before + 1)
    await trouble.check_settled(call)


async def test_an_answer_too_large_to_keep_is_fetched_anew_under_the_same_claim(
    trouble: ProxiedListing,
) -> None:
    size = 300_000
    call = await trouble.sign(f"/bytes/{size}?n=")
    before = call.seen
    trouble.line.cut_at(SEND, is_heard=True)
    assert_undecided(await call.send())

    trouble.line.mend()
    answered = await trouble.wait_served(call)

    assert (len(answered.body), call.seen) == (size, before + 2)
    assert "Idempotency-Replayed" not in answered.headers
    await trouble.check_settled(call)


async def test_without_a_node_nothing_new_is_sold_and_credit_still_buys(trouble: ProxiedListing) -> None:
    cluster, stall = trouble.cluster, trouble.stall
    fresh, credit = await trouble.sign("/echo/no-node-"), await trouble.sign("/echo/credit-")
    tx_hash = await cluster.send_tokens(credit.wallet, stall.provider.address, 2 * PRICE_UNITS)
    assert (await credit.spend(tx_hash)).status == 200
    trouble.line.is_cut = True

    refused = await fresh.send()

    assert (refused.status, refused.code, fresh.seen) == (503, "chain_unavailable", 0)
    assert not refused.asks_for_money
    assert (await credit.send(headers=plain(credit.wallet, tx_hash))).status == 200
    trouble.line.mend()
    await trouble.wait_offered()
    await trouble.wait_served(fresh)  # its authorisation was not used up
    await trouble.check_settled(fresh)


# ---- A chain that changes its mind.


async def wait_state(call: SignedCall, state: str) -> Any:
    async def find() -> Any:
        record = await call.record()
        return record["payment"]["state"] == state and record

    return await poll(find, what=f"the state {state}")


async def test_a_settlement_that_a_reorganisation_takes_back_is_owed_until_it_is_mined_again(
    trouble: ProxiedListing,
) -> None:
    cluster, driver = trouble.cluster, trouble.cluster.driver
    call = await trouble.sign("/echo/reorg-")
    await trouble.wait_served(call)
    (moved,) = await call.transfers()
    await driver.rpc("evm_setAutomine", False)
    try:
        await driver.reorg(1)
        assert await call.transfers() == []
        await wait_state(call, "reorged")
        next_one = trouble.stall.sign(call.wallet, "/echo/in-debt")
        refused = await next_one.send()
        assert (refused.status, refused.code, next_one.seen) == (403, "payer_in_debt", 0)
        repeat = await call.send()
        assert (repeat.status, repeat.code, call.seen) == (409, "payment_already_used", 1)
        await poll(lambda: is_waiting(trouble, moved), what="a transaction sent again")
    finally:
        await driver.rpc("evm_setAutomine", True)
        await driver.mine(1)
    await wait_state(call, "charged")
    assert await call.transfers() == [moved]
    await trouble.wait_served(next_one)
    assert call.seen == next_one.seen == 1
    await trouble.stall.check_ledger()
    assert len(await cluster.history(trouble.stall.gateways[0], call.wallet)) == 2


async def is_waiting(trouble: ProxiedListing, tx_hash: TxHash) -> bool:
    return tx_hash in await find_pending(trouble.cluster, trouble.gas.address)


async def test_a_settlement_that_only_changes_its_block_stays_paid(trouble: ProxiedListing) -> None:
    driver = trouble.cluster.driver
    call = await trouble.sign("/echo/moved-")
    await trouble.wait_served(call)
    (moved,) = await call.transfers()
    raw = await driver.rpc("eth_getRawTransactionByHash", str(moved))
    before = await driver.wait_receipt(moved)

    # One block later: alone, at the same height and in the same second, its block would have the same hash.
    await driver.mine(1)
    await driver.reorg(2, [(bytes.fromhex(raw[2:]), 1)])

    assert (await driver.wait_receipt(moved)).block_hash != before.block_hash
    again = trouble.stall.sign(call.wallet, "/echo/moved-next")
    await trouble.wait_served(again)
    assert (await call.record())["payment"]["state"] == "charged"
    await trouble.stall.check_ledger()
