"""A storm over payment channels: callers who pay, deposit and ask for refunds while gateways are killed and blocks are replaced, and what ledger, upstream and chain say
afterwards. Loaded by `conftest.py`; `test_channels.py` runs it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.kit.channel_calls import PRICE_UNITS, ChannelCall, ChannelShop, PaidChannel
from tests.kit.gateway_process import GatewayProcess
from tests.kit.scripted_upstream import ScriptedUpstream
from tests.long.torture.measures import AT_ONCE, Pace, Progress

SHAPES = ("echo", "echo", "echo", "slow", "fail")
"""How the upstream behaves: see `ScriptedUpstream`."""
METHODS = ("GET", "POST", "POST with a key")
REFUND, ANOTHER = 0.05, 0.15
"""How often a caller asks for a refund, and opens another channel, instead of a call."""
TRIES = 40
REFUSED_PAUSE_S, BUSY_PAUSE_S = 0.02, 0.1
WAITING = {
    "channel_busy",
    "payment_outcome_unknown",
    "idempotency_in_progress",
    "storage_unavailable",
    "chain_unavailable",
    "overloaded",
    "upstream_unavailable",
}
"""Responses after which a caller sends the same again."""
USED = "payment_already_used"
"""The call of a key has ended and its response is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoad:
    cluster: Any
    processes: list[GatewayProcess]
    upstream: ScriptedUpstream
    shop: ChannelShop
    dice: random.Random
    channels: list[PaidChannel] = field(default_factory=list)
    answered: Progress = field(default_factory=Progress)
    told: Counter[str] = field(default_factory=Counter)
    served: list[tuple[PaidChannel, str]] = field(default_factory=list)
    """The calls whose response reached their caller with 200, by id."""

    @classmethod
    async def start(
        cls, cluster: Any, processes: list[GatewayProcess], upstream: ScriptedUpstream, *, dice: random.Random
    ) -> "ChannelLoad":
        shop = await ChannelShop.open(cluster, processes, endpoint=upstream.url)
        return cls(cluster=cluster, processes=processes, upstream=upstream, shop=shop, dice=dice)

    def open_channel(self, wallet: Any) -> PaidChannel:
        channel = self.shop.channel(wallet, path=f"/channel-{len(self.channels)}")
        self.channels.append(channel)
        return channel

    # ---- The storm.

    async def call_on(
        self, wallet: Any, dice: random.Random, is_over: Callable[[], bool], *, pace: Pace = AT_ONCE
    ) -> None:
        """One caller, one call after the other."""
        channel = self.open_channel(wallet)
        while not is_over():
            await pace.wait_turn()
            draw = dice.random()
            if draw < REFUND and channel.charged:
                await self.refund(channel)
            elif draw < ANOTHER:
                channel = self.open_channel(wallet)
            else:
                await self.pay(
                    channel, dice.choice(SHAPES), dice.choice(METHODS), seconds=dice.uniform(0.0, 0.2)
                )

    async def pay(self, channel: PaidChannel, shape: str, method: str, *, seconds: float = 0.0) -> None:
        """Until it is told how the call ended. After a corrective 402 whose sums it could check, a call that is not lost is not corrected again."""
        verb, *key = method.split(" with a ")
        number = sum(self.told.values()), self.dice.getrandbits(32)
        path = f"/{shape}/channel/{number[0]}-{number[1]}"
        options: dict[str, Any] = {"method": verb, "body": b"{}" if verb == "POST" else None}
        if key:
            options["key"] = f"key-{number[1]}-{number[0]}-of-a-call"
        call = channel.sign(path, **options)
        is_healed = False
        for _ in range(TRIES):
            reply = await self.ask(call, query=f"?s={seconds:.3f}")
            if reply is None:
                is_healed = False
            elif reply.status == 402:
                assert not is_healed, (channel.charged, reply.body)
                is_healed = await self.heal(channel, reply)
                call = channel.sign(path, **options)
            elif reply.code in WAITING:
                is_healed = False
                await asyncio.sleep(BUSY_PAUSE_S)
            else:
                assert reply.status in (200, 500) or reply.code == USED, (call.path, reply.status, reply.body)
                channel.take(reply, call)
                self.told[reply.code or str(reply.status)] += 1
                if reply.status == 200:
                    self.served.append((channel, reply.headers["Tollway-Call-Id"]))
                return

    async def ask(self, call: ChannelCall, *, query: str) -> Any:
        """The response of any gateway; None: none came."""
        gateway = self.dice.choice(self.processes)
        try:
            reply = await call.send(gateway, query=query, deadline_s=60.0)
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(REFUSED_PAUSE_S)  # no listener: the next gateway is starting
            return None
        except (aiohttp.ClientError, OSError):
            return None
        self.answered.add()
        return reply

    async def heal(self, channel: PaidChannel, reply: Any) -> bool:
        """Whether the corrective 402 proved its sums by a voucher. Without one the newest voucher is in a claim: until that is mined the chain says less."""
        has_voucher = await channel.heal(reply)
        self.told["corrected"] += 1
        if not has_voucher:
            await asyncio.sleep(BUSY_PAUSE_S)
        return has_voucher

    async def refund(self, channel: PaidChannel) -> None:
        for _ in range(TRIES):
            try:
                reply = await channel.refund(self.dice.choice(self.processes))
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(REFUSED_PAUSE_S)
                continue
            self.answered.add()
            if "PAYMENT-REQUIRED" in reply.headers:
                await self.heal(channel, reply)
            elif reply.code in WAITING:
                await asyncio.sleep(BUSY_PAUSE_S)
            else:
                self.told["refunded" if reply.status == 200 else "not refunded"] += 1
                break
        channel.balance, _ = await channel.read_chain()

    # ---- When it is over.

    async def finish(self) -> None:
        """Every channel pays one more call, so nothing of it is lost for its payer."""
        async with asyncio.TaskGroup() as group:
            for wallet in {channel.wallet.address for channel in self.channels}:
                group.create_task(self._finish(wallet))

    async def _finish(self, wallet: Any) -> None:
        for channel in self.channels:
            if channel.wallet.address == wallet:
                before = self.told["200"]
                await self.pay(channel, "echo", "GET")
                assert self.told["200"] > before, channel

    async def check(self) -> dict[str, int]:
        """Ledger, payers, upstream and chain agree. Gives what was charged and refunded, in base units."""
        charged: Counter[str] = Counter()
        states: dict[str, str] = {}
        wallets = {channel.wallet.address: channel.wallet for channel in self.channels}
        for wallet in wallets.values():
            for call in await self.cluster.history(self.processes[0], wallet):
                states[call["id"]] = call["payment"]["state"]
                assert states[call["id"]] in ("charged", "released"), call
                if states[call["id"]] == "charged":
                    charged[call["payment"]["channel"]] += PRICE_UNITS
        for channel, call_id in self.served:
            assert states[call_id] == "charged", (channel, call_id, states[call_id])
        wrong = [
            (key, charged[key], channel.charged)
            for channel in self.channels
            if charged[key := str(channel.signer.channel_id)] != channel.charged
        ]
        assert not wrong, f"charged in the ledger, charged by the caller: {wrong}"
        owed = sum(charged.values())
        assert owed == sum(channel.charged for channel in self.channels), "charged on a channel of no caller"
        found = await self.shop.wait_claimed([(channel, channel.charged) for channel in self.channels])
        balances: Counter[Any] = Counter()
        for channel, balance in zip(self.channels, found, strict=True):
            balances[channel.wallet.address] += balance
        for address, balance in balances.items():
            paid_in = await next(one for one in self.channels if one.wallet.address == address).paid_in()
            assert paid_in == balance, "a deposit or a refund was made twice"
        return {"charged": owed, "in_channels": sum(balances.values()) - owed}
