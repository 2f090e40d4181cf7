"""The requests that a provider gets from two gateways on one database: paid calls of every kind, each signed by the
gateway, and verified with the keys that either gateway publishes."""

import asyncio
import contextlib
import itertools
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.authorization_payer import DIALECTS, AuthorizationPayer
from tests.kit.gateway_cluster import PRICE_UNITS, bound, plain
from tests.kit.signed_calls import QUICK
from tollway.client.provider import Forwarded, ForwardedVerifier

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.postgres]

_PATHS = (f"/echo/forwarded-{number}" for number in itertools.count(1))


class Harness:
    """A provider with a listing, a funded caller, two gateways on one database."""

    def __init__(self, cluster: Any, gateways: list[Any]) -> None:
        self.cluster = cluster
        self.gateways = gateways
        self.api_id = ""
        self.shopper: Any = None
        self.provider: Any = None

    async def open(self) -> None:
        self.provider, self.shopper = await self.cluster.wallets(2)
        self.api_id = await self.cluster.publish(self.gateways[0], self.provider)
        # Each verifier reads its keys from another gateway and receives calls through both.
        self.verifiers = [
            ForwardedVerifier(
                gateway.base_url, endpoint=self.cluster.provider.base_url, api_ids=[self.api_id]
            )
            for gateway in self.gateways
        ]

    async def judge(self, path: str, body: bytes = b"") -> list[Forwarded]:
        (seen,) = (seen for seen in self.cluster.provider.seen if seen.path == path)
        return [
            await asyncio.to_thread(verifier.verify, seen.method, seen.target, seen.headers, body)
            for verifier in self.verifiers
        ]

    def check(self, judged: list[Forwarded], reply: Any) -> None:
        assert reply.status == 200, reply.body
        for forwarded in judged:
            assert forwarded.call_id == reply.headers["Tollway-Call-Id"]
            assert (forwarded.api_id, forwarded.payer) == (self.api_id, str(self.shopper.address))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(cluster: Any) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        gas = await cluster.wallet()
        options = {
            "database_url": await cluster.make_postgres(),
            "settings": {**QUICK, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key},
        }
        first = await stack.enter_async_context(cluster.gateway(**options))
        second = cluster.gateway(**options, public_url=first.public_url)
        harness = Harness(cluster, [first, await stack.enter_async_context(second)])
        await harness.open()
        yield harness


@pytest.mark.parametrize("position", [0, 1])
async def test_a_call_paid_by_a_transaction(harness: Harness, position: int) -> None:
    tx_hash = await harness.cluster.send_tokens(harness.shopper, harness.provider.address, 2 * PRICE_UNITS)
    gateway, path = harness.gateways[position], next(_PATHS)
    rest, chain_id = f"{path}?x=%20", harness.cluster.driver.chain_id
    headers = bound(harness.shopper, tx_hash, gateway, harness.api_id, rest, chain_id=chain_id)
    reply = await harness.cluster.call(gateway, harness.api_id, rest, headers=headers)
    harness.check(await harness.judge(path), reply)


@pytest.mark.parametrize("position", [0, 1])
async def test_a_body_that_was_read_first(harness: Harness, position: int) -> None:
    tx_hash = await harness.cluster.send_tokens(harness.shopper, harness.provider.address, PRICE_UNITS)
    path, body = next(_PATHS), b'{"order": 1}'
    reply = await harness.cluster.call(
        harness.gateways[position],
        harness.api_id,
        path,
        method="POST",
        headers=plain(harness.shopper, tx_hash),
        content=body,
    )
    judged = await harness.judge(path, body)
    harness.check(judged, reply)
    assert {forwarded.covers for forwarded in judged} == {"digest"}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_paid_by_an_authorisation(harness: Harness, dialect: str) -> None:
    path = next(_PATHS)
    payer = AuthorizationPayer(
        cluster=harness.cluster, gateway=harness.gateways[0], api_id=harness.api_id, signer=harness.shopper
    )
    reply = await payer.call(path, [payer.show(await payer.quote(path), dialect)])
    harness.check(await harness.judge(path), reply)
