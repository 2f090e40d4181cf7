"""Webhooks over one database: the stores, endpoints that are active already, and what the outbox would send; and a sender whose receivers follow a script."""

import asyncio
import json
import os
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from sqlalchemy import select, text, update

from tests.kit.clocks import StoppedClock
from tests.kit.ledger_records import NOW_MS, PROVIDER
from tests.kit.narrowing import existing, of_type
from tests.kit.stores import make_sealer
from tests.kit.waits import until
from tollway.chain.networks import PRESETS
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import Asset
from tollway.storage.engine.database import Database
from tollway.storage.webhooks.webhook_events import EventLog, write_events
from tollway.storage.webhooks.webhook_outbox import WebhookOutbox
from tollway.storage.webhooks.webhook_store import WebhookStore
from tollway.storage.webhooks.webhook_tables import (
    NEW,
    delivery_table,
    endpoint_table,
    event_table,
    message_table,
)
from tollway.web.http.query import format_time
from tollway.webhooks.endpoints import DueChallenge, NewEndpoint, WebhookDelivery, WebhookEndpoint
from tollway.webhooks.events import EventType, NewEvent
from tollway.webhooks.messages import Echo
from tollway.webhooks.schedule import TIMEOUT, Response
from tollway.webhooks.sender import WebhookSender

USDC_ASSET = PRESETS["sandbox"].rules().assets[0]
ALL_TYPES = tuple(EventType)
URL = "https://owner.example/hooks"


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
            "network": "192.0.2.1",
            "challenge": f"echo {number}",
            "is_shared": True,
            "created_ms": self.now_ms,
        }
        new = NewEndpoint(wallet=wallet, types=tuple(types), **{**defaults, **fields})
        return of_type(WebhookEndpoint, await self.store.register(new, count_max=10))

    async def confirm(self, endpoint: WebhookEndpoint) -> None:
        """Makes an endpoint active, and the time that of its first event."""
        await self.echo(endpoint)
        self.now_ms += 5_000
        await self.store.refresh()

    async def echo(
        self,
        endpoint: WebhookEndpoint,
        echo: Echo = Echo.WALLET,
        response: Response = Response(status=200),  # noqa: B008 - frozen
    ) -> None:
        """Ends the challenge of an endpoint with this echo."""
        challenge = DueChallenge(
            endpoint_id=endpoint.id,
            wallet=endpoint.wallet,
            network="",
            origin=endpoint.origin,
            is_slow=False,
            url=endpoint.url,
            challenge="",
            tries=0,
        )
        await self.end_challenge(challenge, echo, response=response, next_ms=self.now_ms + 5_000)

    async def end_challenge(
        self,
        challenge: DueChallenge,
        echo: Echo,
        *,
        response: Response = Response(status=200),  # noqa: B008 - frozen
        next_ms: int | None = None,
    ) -> None:
        """Ends an attempt at a challenge whose receiver responded with this echo."""
        await self.outbox.end_challenge(
            challenge,
            response,
            echo=echo,
            sent_ms=self.now_ms,
            next_ms=next_ms,
            now_ms=self.now_ms,
        )

    def make_events(
        self, number: int = 1, *wallets: Address, units: int | None = None, subject: str = "1"
    ) -> list[NewEvent]:
        """So many credits of a payment for each wallet: of 0, 1, 2 … units, where `units` is not given."""
        return [
            event
            for index in range(number)
            for event in self.events.make_events(
                EventType.PAYMENT_CREDITED,
                wallets or (PROVIDER,),
                subject=subject,
                state="final",
                at_ms=self.now_ms,
                units=index if units is None else units,
            )
        ]

    async def write_events(self, events: list[NewEvent]) -> None:
        await self.database.write(lambda connection: write_events(connection, events))

    async def emit(self, number: int = 1, *wallets: Address) -> list[str]:
        """Writes so many credits, as a transaction of the ledger does, and copies them to the endpoints. Returns their ids."""
        events = self.make_events(number, *wallets)
        await self.write_events(events)
        while await self.outbox.spread_events():
            pass
        return [event.id for event in events]

    async def begin(self, endpoint: WebhookEndpoint) -> Any:
        return await self.outbox.begin_attempt(endpoint.id, now_ms=self.now_ms)

    async def end(self, attempt: Any, response: Response, *, next_ms: int | None = None) -> None:
        await self.outbox.end_attempt(attempt, response, next_ms=next_ms, now_ms=self.now_ms)

    async def send(self, endpoint: WebhookEndpoint, response: Response, *, next_ms: int | None = None) -> Any:
        """One attempt with its end."""
        attempt = existing(await self.begin(endpoint))
        await self.end(attempt, response, next_ms=next_ms)
        return attempt

    async def list_deliveries(self, endpoint: WebhookEndpoint, **query: Any) -> tuple[WebhookDelivery, ...]:
        """The deliveries that the owner of an endpoint sees, newest first."""
        options = {"state": None, "before": None, "limit": 10, **query}
        return existing(await self.store.deliveries_of(endpoint.wallet, endpoint.id, **options))

    async def activate(self, wallet: Address = PROVIDER, **fields: Any) -> WebhookEndpoint:
        endpoint = await self.register(wallet, **fields)
        await self.confirm(endpoint)
        return endpoint

    async def find(self, endpoint: WebhookEndpoint) -> WebhookEndpoint:
        return next(one for one in await self.store.list_of(endpoint.wallet) if one.id == endpoint.id)

    async def new_events(self) -> list[Any]:
        """The events that no endpoint has got yet."""
        return await self._read(select(event_table).where(text(NEW)).order_by(event_table.c.number))

    async def deliveries(self) -> list[Any]:
        """Each delivery with its event."""
        event = event_table.c
        query = (
            select(delivery_table, event.id.label("event_id"), event.type, event.data)
            .join(event_table, event.number == delivery_table.c.event_no)
            .order_by(delivery_table.c.event_no, delivery_table.c.endpoint_no)
        )
        return await self._read(query)

    async def count_rows(self) -> dict[str, int]:
        """The rows of each table that grows with events."""
        return {
            table.name: len(await self._read(select(table)))
            for table in (event_table, delivery_table, message_table)
        }

    async def messages(self) -> list[Any]:
        return await self._read(select(message_table).order_by(message_table.c.number))

    async def set_endpoint(self, endpoint: WebhookEndpoint, **values: Any) -> None:
        changed = update(endpoint_table).where(endpoint_table.c.id == endpoint.id).values(**values)
        await self.database.write(lambda connection: connection.execute(changed))

    async def _read(self, query: Any) -> list[Any]:
        return await self.database.read(lambda connection: list(connection.execute(query)))


class ScriptedReceivers:
    """The receivers of all URLs, without a network. A silent one responds to nothing, the others at once with an echo. `posted`: each URL with its message, in
    order."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.waiting: list[str] = []
        self._deadline = asyncio.Event()

    async def post(self, url: str, *, body: bytes, **_: Any) -> Response:
        message = json.loads(body)
        self.posted.append((url, message))
        if url not in self.silent:
            return Response(status=200, body=json.dumps(message["data"]).encode())
        self.waiting.append(url)
        await self._deadline.wait()
        return Response(error=TIMEOUT)

    def pass_deadline(self) -> None:
        """Ends every attempt that waits for a silent receiver."""
        self.waiting.clear()
        self._deadline.set()
        self._deadline = asyncio.Event()

    def types_of(self, url: str) -> list[str]:
        """The types of the messages that a URL got."""
        return [message["type"] for posted, message in self.posted if posted == url]


class ScriptedSending:
    """A sender over the stores, with scripted receivers and no time of its own: each round is begun by its test."""

    def __init__(self, database: Database, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.webhooks = WebhookHarness(database, limits=limits)
        self.receivers = ScriptedReceivers()
        self._tasks: set[asyncio.Task[None]] = set()
        numbers = count(1)
        self.sender = WebhookSender(
            self.webhooks.outbox,
            post=self.receivers.post,
            sign=lambda message, headers: [],
            limits=limits,
            now_ms=self.webhooks.read_now_ms,
            clock=self.webhooks.clock,
            draw=lambda: 0.5,
            make_id=lambda: f"evt_{next(numbers):026d}",
            format_time=format_time,
        )

    async def begin_round(self, *, after_s: float = 1.0) -> None:
        """One round, so much later, to the point where each attempt has ended or waits for a silent receiver."""
        self.webhooks.clock.s += after_s
        self.webhooks.now_ms += round(after_s * 1000)
        await self.sender.begin_round(self._start)
        await self.settle()

    async def settle(self) -> None:
        await until(lambda: len(self._tasks) <= len(self.receivers.waiting))

    async def pass_deadline(self, *, after_s: float = 15.0) -> None:
        """The deadline of all attempts that run."""
        self.webhooks.clock.s += after_s
        self.webhooks.now_ms += round(after_s * 1000)
        self.receivers.pass_deadline()
        await self.settle()

    async def emit(self, *wallets: Address) -> None:
        """One event of each wallet, as a transaction of the ledger writes it."""
        await self.webhooks.write_events(self.webhooks.make_events(1, *wallets, units=7))

    async def close(self) -> None:
        self.receivers.silent.clear()
        await self.pass_deadline()

    def _start(self, job: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
