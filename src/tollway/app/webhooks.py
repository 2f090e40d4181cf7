"""The objects of webhooks of one gateway: the stores, the sender with its signatures, and their background tasks."""

import random
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial

from tollway.app.runtime import BackgroundTaskGroup
from tollway.chain.networks import ChainRules, find_asset
from tollway.config.settings import Settings
from tollway.gateway.request_signing import NONCE_BYTES, UpstreamSigner
from tollway.identity.http_signatures import encode_base64url
from tollway.ids import ChainId, format_id
from tollway.observability.background import BackgroundTasks, TaskName
from tollway.outbound.client import HttpClient
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.outbound.probes import post_webhook
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.leadership import Duty, Leadership
from tollway.storage.webhooks.webhook_events import EventLog
from tollway.storage.webhooks.webhook_outbox import WebhookOutbox
from tollway.storage.webhooks.webhook_store import WebhookStore
from tollway.web.http.query import format_time
from tollway.webhooks.sender import Delivered, WebhookSender

LISTINGS_INTERVAL_S = 1.0
DOWN_WINDOW_MS = 300_000
"""A listing has one event `listing.down` in this time, however often and at however many gateways its upstream goes down."""
ORIGINS_MAX = 1_000


class WebhookServices:
    """`events`: the log that the stores of the ledger write to."""

    def __init__(
        self,
        settings: Settings,
        *,
        database: Database,
        events: EventLog,
        sealer: Sealer,
        http_client: HttpClient,
        rules: Mapping[ChainId, ChainRules],
        now_ms: Callable[[], int],
        background: BackgroundTasks,
    ) -> None:
        self.events = events
        self._limits = limits = settings.limits
        self._background = background
        self._http_client = http_client
        self._now_ms = now_ms
        self._down: dict[str, None] = {}
        self._signer = UpstreamSigner.derive([key.get_secret_value() for key in settings.secret_keys])
        self.store = WebhookStore(
            database,
            events=events,
            sealer=sealer,
            ticks_s=time.monotonic,
            now_ms=now_ms,
            format_time=format_time,
            limits=limits,
        )
        self.outbox = WebhookOutbox(
            database,
            events=events,
            sealer=sealer,
            now_ms=now_ms,
            entropy=secrets.token_bytes,
            find_asset=partial(find_asset, rules),
            format_time=format_time,
            limits=limits,
        )
        self.sender = WebhookSender(
            self.outbox,
            post=partial(post_webhook, http_client),
            sign=self._sign,
            limits=limits,
            now_ms=now_ms,
            clock=time.monotonic,
            draw=random.random,
            make_id=self._make_id,
            format_time=format_time,
            task=background[TaskName.WEBHOOK_DELIVERY],
        )

    def note_down(self, origin: str) -> None:
        """Records that an upstream is down: its listings have the event soon after."""
        if len(self._down) < ORIGINS_MAX:
            self._down[origin] = None

    def start(self, tasks: BackgroundTaskGroup, *, lead: Callable[[Duty], Leadership]) -> None:
        """Starts the background tasks. Each gateway reads the endpoints and writes what is down; one gateway delivers for all."""
        self.follow(tasks)
        tasks.start_periodic(TaskName.WEBHOOK_LISTINGS, LISTINGS_INTERVAL_S, self._write_down)
        deliver = partial(self._background[TaskName.WEBHOOK_DELIVERY].supervise, self.sender.run)
        tasks.start(TaskName.WEBHOOKS_ELECTION, partial(lead(Duty.WEBHOOKS).lead, deliver))

    def follow(self, tasks: BackgroundTaskGroup) -> None:
        """Starts the task that reads the endpoints, without which no event is written."""
        tasks.start_periodic(TaskName.WEBHOOK_ENDPOINTS, self._limits.webhook_poll_s, self.store.refresh)

    async def _write_down(self) -> None:
        if not self._down:
            return
        origins = frozenset(self._down)

        def is_of_origin(url: str) -> bool:
            endpoint = parse_endpoint(url, allow_private=True)
            return isinstance(endpoint, Endpoint) and endpoint.origin in origins

        await self.outbox.note_down(is_of_origin=is_of_origin, window_ms=DOWN_WINDOW_MS)
        for origin in origins:
            self._down.pop(origin, None)

    def _sign(self, message: Delivered, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        nonces = [encode_base64url(secrets.token_bytes(NONCE_BYTES)) for _ in self._signer.keys]
        return self._signer.sign_webhook(
            url=message.url, headers=headers, body=message.body, created_s=message.timestamp_s, nonces=nonces
        )

    def _make_id(self) -> str:
        return format_id("evt", now_ms=self._now_ms(), entropy=secrets.token_bytes(10))
