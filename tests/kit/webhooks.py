"""Webhooks over one database: the stores, endpoints that are active already, and what the outbox would send."""

import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from sqlalchemy import select, update

from tests.kit.ledger_records import NOW_MS, PROVIDER
from tests.kit.stores import make_sealer
from tollway.chain.networks import PRESETS
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import Asset
from tollway.storage.database import Database
from tollway.storage.webhook_events import EventLog
from tollway.storage.webhook_outbox import WebhookOutbox
from tollway.storage.webhook_store import WebhookStore
from tollway.storage.webhook_tables import delivery_table, endpoint_table, event_table, message_table
from tollway.web.query import format_time
from tollway.webhooks.endpoints import DueChallenge, NewEndpoint, WebhookEndpoint
from tollway.webhooks.events import EventType

USDC_ASSET = PRESETS["sandbox"].rules().assets[0]
ALL_TYPES = tuple(EventType)
URL = "https://owner.example/hooks"


class StoppedClock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def find_asset(chain_id: ChainId, key: str) -> Asset | None:
    return replace(USDC_ASSET, chain_id=chain_id) if key.startswith("0x") else None


class WebhookHarness:
    """The webhooks of one gateway. `now_ms`: the shared time."""

    def __init__(self, database: Database, *, limits: Limits = DEFAULT_LIMITS, now_ms: int = NOW_MS) -> None:
        self.database = database
        self.now_ms = now_ms
        self.clock = StoppedClock()
        self.events = EventLog(clock=self.clock)
        sealer = make_sealer()
        self.store = WebhookStore(
            database,
            events=self.events,
            sealer=sealer,
            ticks_s=self.clock,
            now_ms=self.read_now_ms,
            format_time=format_time,
            limits=limits,
        )
        self.outbox = WebhookOutbox(
            database,
            events=self.events,
            sealer=sealer,
            now_ms=self.read_now_ms,
            entropy=os.urandom,
            find_asset=find_asset,
            format_time=format_time,
            limits=limits,
        )
        self._numbers = count(1)

    def read_now_ms(self) -> int:
        return self.now_ms

    async def register(
        self, wallet: Address = PROVIDER, *, types: Iterable[EventType] = ALL_TYPES, **fields: Any
    ) -> WebhookEndpoint:
        """An endpoint that has not echoed its challenge yet."""
        number = next(self._numbers)
        defaults: dict[str, Any] = {
            "id": f"wh_{number:026d}",
            "url": URL,
            "origin": "https://owner.example",
            "challenge": f"echo {number}",
            "created_ms": self.now_ms,
        }
        new = NewEndpoint(wallet=wallet, types=tuple(types), **{**defaults, **fields})
        endpoint = await self.store.register(new, count_max=10)
        assert endpoint is not None
        return endpoint

    async def confirm(self, endpoint: WebhookEndpoint) -> None:
        """Makes an endpoint active, and the time that of its first event."""
        due: list[DueChallenge] = [
            one
            for one in await self.outbox.find_challenges(now_ms=self.now_ms, limit=100)
            if one.endpoint_id == endpoint.id
        ]
        await self.outbox.end_challenge(due[0], is_echoed=True, next_ms=None, now_ms=self.now_ms)
        self.now_ms += 5_000
        await self.store.refresh()

    async def activate(self, wallet: Address = PROVIDER, **fields: Any) -> WebhookEndpoint:
        endpoint = await self.register(wallet, **fields)
        await self.confirm(endpoint)
        return endpoint

    async def find(self, endpoint: WebhookEndpoint) -> WebhookEndpoint:
        return next(one for one in await self.store.list_of(endpoint.wallet) if one.id == endpoint.id)

    async def new_events(self) -> list[Any]:
        return await self._read(select(event_table).order_by(event_table.c.id))

    async def deliveries(self) -> list[Any]:
        return await self._read(select(delivery_table).order_by(delivery_table.c.event_id))

    async def messages(self) -> list[Any]:
        return await self._read(select(message_table).order_by(message_table.c.id))

    async def set_endpoint(self, endpoint: WebhookEndpoint, **values: Any) -> None:
        changed = update(endpoint_table).where(endpoint_table.c.id == endpoint.id).values(**values)
        await self.database.write(lambda connection: connection.execute(changed))

    async def _read(self, query: Any) -> list[Any]:
        return await self.database.read(lambda connection: list(connection.execute(query)))
