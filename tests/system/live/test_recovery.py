"""The operator's commands as processes, beside a gateway that serves and after one that was stopped; and that an
audit leaves the ledger unchanged."""

import os
import signal
import time
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll

pytestmark = pytest.mark.asyncio(loop_scope="module")

YOUNG_S = 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def people(cluster: Any) -> list[Any]:
    return await cluster.wallets(2)


async def test_an_audit_during_service_leaves_the_ledger_unchanged(cluster: Any, people: list[Any]) -> None:
    provider, caller = people
    async with cluster.gateway() as gateway:
        api_id = await cluster.publish(gateway, provider)
        tx_hash = await cluster.send_tokens(caller, provider.address, 3 * PRICE_UNITS)
        first = await cluster.call(gateway, api_id, "/quote/ETH", headers=plain(caller, tx_hash))
        assert first.status == 200
        url = gateway.env["TOLLWAY_DATABASE_URL"]
        log = f"{url.removeprefix('sqlite:///')}-wal"
        inode = file_number(log)

        assert (await cluster.operate(gateway, "audit"))[1]["calls"] == 1

        assert file_number(log) == inode  # the reader did not delete the log as the last connection would
        second = await cluster.call(gateway, api_id, "/quote/ETH", headers=plain(caller, tx_hash))
        assert second.status == 200
        gateway.kill()
        assert await gateway.wait_ended() == -signal.SIGKILL

    exit_code, report = await cluster.operate(
        gateway, "audit"
    )  # the gateway is stopped, so the audit reads the file only
    assert (exit_code, report["balanced"], report["payments"], report["calls"]) == (0, True, 1, 2)


def file_number(path: str) -> int:
    return os.stat(path).st_ino


async def test_the_operator_admits_blocks_suspends_and_restores(cluster: Any, people: list[Any]) -> None:
    provider, caller = people
    old_tx = await cluster.send_tokens(caller, provider.address, 5_000 * PRICE_UNITS)
    mined_s = int(time.time())
    settings = {"TOLLWAY_LIMIT_PAYMENT_AGE_S": str(YOUNG_S)}
    async with cluster.gateway(settings=settings) as gateway:
        api_id = await cluster.publish(gateway, provider)
        headers = plain(caller, old_tx)

        async def call() -> Any:
            return await cluster.call(gateway, api_id, "/quote/BTC", headers=headers)

        await poll(lambda: time.time() > mined_s + YOUNG_S + 1, what="an old payment")
        refused = await call()
        assert (refused.status, refused.code) == (409, "payment_too_old")
        assert not refused.asks_for_money

        assert await change(cluster, gateway, "admit", str(old_tx)) == {
            "transaction": str(old_tx),
            "admitted": True,
        }
        assert (await call()).status == 200

        told = await change(cluster, gateway, "wallets", "block", str(caller.address))
        assert (told["blocked"], told["changed"]) == (True, True)
        blocked = await poll_code(call, "wallet_blocked")
        assert blocked.status == 403
        await change(cluster, gateway, "wallets", "unblock", str(caller.address))
        assert (await poll_code(call, None)).status == 200

        await change(cluster, gateway, "listings", "suspend", api_id)
        paused = await poll_code(call, "api_paused")
        assert paused.status == 503
        assert not paused.asks_for_money
        await change(cluster, gateway, "listings", "restore", api_id)
        assert (await poll_code(call, None)).status == 200

        assert (await cluster.audit(gateway)).wrong == ()


async def test_a_payment_admitted_while_the_gateway_was_stopped_counts_after_it(
    cluster: Any, people: list[Any]
) -> None:
    provider, caller = people
    old_tx = await cluster.send_tokens(caller, provider.address, PRICE_UNITS)
    mined_s = int(time.time())
    settings = {"TOLLWAY_LIMIT_PAYMENT_AGE_S": str(YOUNG_S)}
    async with cluster.gateway(settings=settings) as gateway:
        api_id = await cluster.publish(gateway, provider)
        await poll(lambda: time.time() > mined_s + YOUNG_S + 1, what="an old payment")
        refused = await cluster.call(gateway, api_id, "/quote/BTC", headers=plain(caller, old_tx))
        assert refused.code == "payment_too_old"
        assert await gateway.stop() == 0
    assert (await cluster.operate(gateway, "admit", str(old_tx)))[0] == 0
    url = gateway.env["TOLLWAY_DATABASE_URL"]
    async with cluster.gateway(database_url=url, settings=settings) as after:
        served = await cluster.call(after, api_id, "/quote/BTC", headers=plain(caller, old_tx))
        assert served.status == 200


async def change(cluster: Any, gateway: Any, *arguments: str) -> Any:
    exit_code, told = await cluster.operate(gateway, *arguments)
    assert exit_code == 0, told
    return told


async def poll_code(call: Any, code: str | None) -> Any:
    """The response to the call once the gateway has the change."""
    replies = []

    async def is_heard() -> bool:
        replies.append(await call())
        return bool(replies[-1].code == code)

    await poll(is_heard, what=f"the answer {code}")
    return replies[-1]
