"""A listing whose gateway reads its node through a proxy that a test can cut: for settlements that a node failure
interrupts."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.kit.gateway_process import poll
from tests.kit.node_proxy import NodeProxy, run_node_proxy
from tests.kit.signed_calls import QUICK, PaidListing, SignedCall, count_sent

SETTINGS = {
    **QUICK,
    "TOLLWAY_LIMIT_SETTLE_WAIT_S": "1.5",
    "TEST_LIMIT_WATCH_INTERVAL_S": "0.1",
    "TEST_LIMIT_GAS_REFRESH_S": "1",
}
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedListing:
    """`listing` of one gateway; its node is behind `line`."""

    stall: PaidListing
    gas: Any
    line: NodeProxy

    @property
    def cluster(self) -> Any:
        return self.stall.cluster

    async def sign(self, name: str, *, method: str = "GET") -> SignedCall:
        """`name`: of a path of the provider. Each call has its own number."""
        body = b"{}" if method == "POST" else None
        wallet = await self.cluster.wallet()
        return self.stall.sign(wallet, f"{name}{next(_NUMBERS)}", method=method, body=body)

    async def wait_served(self, call: SignedCall) -> Any:
        """The response, as soon as a repeat gets it; until then each repeat gets an unknown outcome."""
        replies: list[Any] = []

        async def is_served() -> bool:
            replies.append(await call.send())
            return bool(replies[-1].status == 200)

        await poll(is_served, what="the answer that was paid for")
        for reply in replies[:-1]:
            assert_undecided(reply)
        return replies[-1]

    async def wait_offered(self) -> None:
        """Returns when the gateway has read its node again and offers the rail again."""

        async def is_offered() -> bool:
            reply = await self.cluster.call(self.stall.gateways[0], self.stall.api_id, "/echo/offer")
            return "PAYMENT-REQUIRED" in reply.headers

        await poll(is_offered, what="a 402 that takes signed payments")

    async def check_settled(self, call: SignedCall) -> None:
        """Checks one transfer, one record, and that the next call can be settled too."""
        (moved,) = await call.transfers()
        record = await call.record()
        assert (record["status"], record["payment"]["state"]) == ("succeeded", "charged")
        assert record["payment"]["transaction"] == str(moved)
        await self.wait_offered()
        sent = await count_sent(self.cluster, self.gas)
        await self.wait_served(await self.sign("/echo/next-"))
        assert await count_sent(self.cluster, self.gas) == sent + 1
        await self.stall.check_ledger()


def assert_undecided(reply: Any) -> None:
    assert (reply.status, reply.code) == (503, "payment_outcome_unknown"), reply.body
    assert not reply.asks_for_money
    assert reply.json["paymentState"] == "held"
    assert reply.json["call"].endswith(reply.json["callId"])


@asynccontextmanager
async def open_proxied_listing(cluster: Any, **settings: str) -> AsyncIterator[ProxiedListing]:
    gas = await cluster.wallet()
    async with run_node_proxy(cluster.session, cluster.driver.rpc_url) as line:
        env = {"TOLLWAY_RPC_SANDBOX": line.url, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
        async with cluster.gateway(settings={**SETTINGS, **env, **settings}) as gateway:
            yield ProxiedListing(stall=await PaidListing.open(cluster, [gateway]), gas=gas, line=line)
