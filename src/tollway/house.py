"""The composition root: settings -> rooms, wired, opened and closed in order. The only place that knows them all.

It owns the task group of everything that runs beside the requests: renewing this gateway's claim to be alive,
recovery, the chain watcher, the sweeping of old nonces. Nothing here decides anything about a call.
"""

import asyncio
import contextlib
import gc
import secrets
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog
from prometheus_client import CollectorRegistry, make_asgi_app

from tollway.background import BackgroundTasks, TaskName
from tollway.chain.roll_call import ABSENT_INTERVAL_S, RollCall
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.chain.rules import ChainRules
from tollway.chain.watcher import Watcher
from tollway.chores import Chores
from tollway.clocks import now_ms, ticks_ms
from tollway.errors import SettingsInvalid, StorageUnavailable
from tollway.frontage import Frontage, Rooms
from tollway.gateway.meters import Meters
from tollway.identifiers import ChainId, TxHash
from tollway.identity.front_desk import FrontDesk
from tollway.identity.public_origin import PublicOrigin, parse_origin
from tollway.identity.signatures import SignatureJudge
from tollway.ledger.call import Payment
from tollway.outbound.dialer import Dialer
from tollway.outbound.inquirer import Inquirer
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.till import Till
from tollway.rates import Rates
from tollway.registry.listing import Shelf
from tollway.reputation import Reputation
from tollway.settings import Settings, ensure_secret_key
from tollway.storage.book_store import BookStore
from tollway.storage.catalog_store import CatalogStore
from tollway.storage.creation_store import CreationStore
from tollway.storage.database import Database, ProcessLock, SqliteDatabase, connect_database
from tollway.storage.leadership import Duty, Leadership
from tollway.storage.moderation_store import ModerationStore
from tollway.storage.schema_keeper import SchemaKeeper
from tollway.storage.sealer import Sealer
from tollway.storage.session_store import SqlSessions
from tollway.telemetry import BackgroundFigures, Metrics
from tollway.treasury import Treasury, make_notes
from tollway.web.load_gauge import LoadGauge, read_resident_bytes
from tollway.web.server import HttpServer, check_port_free

if TYPE_CHECKING:
    from tollway.shared_windows import SharedWindows

_log = structlog.get_logger(__name__)

PRUNE_INTERVAL_S = 300.0
KEPT_AFTER_END_MS = 2 * 3600 * 1000
"""A nonce that was used must be known while any clock, set back or another gateway's, may let its signature count."""
SCHEMA_INTERVAL_S = 10.0
MODERATION_INTERVAL_S = 0.5  # a block reaches every gateway within a second
READY_NOTE_INTERVAL_S = 20.0
CUT_DEADLINE_S = 3.0  # for the outcomes of calls whose connections were just cut: a few commits

_NO_TRANSACTION = TxHash(32)  # any question to the books tells whether they answer


class House:
    """One gateway. `async with House(settings) as house:` opens every room; leaving closes them, losing nothing."""

    def __init__(self, settings: Settings) -> None:
        self.settings = ensure_secret_key(settings)
        self.database = self._connect_database()
        self.schema = SchemaKeeper(self.database)
        self._is_writing = True  # opening the books writes to them; from then on, the renewals tell
        self.rules: dict[ChainId, ChainRules] = {
            network.rules.chain_id: network.rules for network in settings.networks
        }
        self.metrics = Metrics(CollectorRegistry())
        self.background = BackgroundTasks()
        self.metrics.add_background(self._read_background)
        self._stack = contextlib.AsyncExitStack()
        self.shared_windows = self._make_shared_windows()
        self.rates = Rates(self.shared_windows)
        self._wire()

    # ---- Wiring: bottom up.

    def _wire(self) -> None:
        settings, limits = self.settings, self.settings.limits
        origin = parse_origin(settings.public_url)
        key, *others = [key.reveal() for key in settings.secret_keys]
        self.sealer = Sealer(key, others=others, entropy=secrets.token_bytes)
        self.catalog = CatalogStore(
            self.database, sealer=self.sealer, now_ms=now_ms, only_verified=settings.require_ownership
        )
        self.creations = CreationStore(self.database, now_ms=now_ms, limits=limits)
        self.book = self._make_book()
        self.sessions = SqlSessions(self.database)
        self.moderation = ModerationStore(self.database)
        self.chains = self._make_chains()
        self.roll_call = RollCall(self.chains, self.rules, limits=limits)
        self.dialer = self._make_dialer(origin)
        self.inquirer = Inquirer(self.dialer)
        self.reputation = Reputation(
            settings,
            database=self.database,
            dialer=self.dialer,
            chains=self.chains,
            now_ms=now_ms,
            background=self.background,
        )
        self.meters = Meters(limits=limits, rates=self.rates)
        judge = SignatureJudge(self.chains, limits=limits)
        self.till = Till(
            book=self.book,
            chains=self.chains,
            rules=self.rules,
            judge_of_signatures=judge,
            meter=self.meters,
            limits=limits,
            now_ms=now_ms,
            find_older_terms=self._find_older_terms,
            note_shown=lambda network, outcome: self.metrics.payments.labels(network, outcome).inc(),
        )
        self.treasury = Treasury(
            database=self.database,
            sealer=self.sealer,
            book=self.book,
            chains=self.chains,
            rules=self.rules,
            settlement_rules=self._settlement_rules(),
            limits=limits,
            now_ms=now_ms,
            rates=self.rates,
            background=self.background,
            notes=make_notes(self.metrics),
        )
        self.watcher = self._make_watcher()
        for chain_id, rules in self.rules.items():
            age = self.metrics.payment_look_age.labels(rules.network)
            age.set_function(partial(self.watcher.look_age_s, chain_id))
        self.desk = FrontDesk(
            self.sessions,
            judge,
            self.meters,
            origin=origin,
            limits=limits,
            now_ms=now_ms,
            entropy=secrets.token_bytes,
        )
        self.gauge = LoadGauge(limits=limits, clock=time.monotonic, read_memory_bytes=read_resident_bytes)
        self.metrics.calls_in_flight.set_function(lambda: self.gauge.running)
        self.metrics.upstreams_down.set_function(self.reputation.breaker.count_down)
        self.app = Frontage(self._rooms(), origin=origin, now_ms=now_ms).build()
        self.server = HttpServer(
            self.app, host=settings.listen.host, port=settings.listen.port, limits=limits
        )

    def _rooms(self) -> Rooms:
        return Rooms(
            settings=self.settings,
            rules=self.rules,
            catalog=self.catalog,
            creations=self.creations,
            book=self.book,
            sessions=self.sessions,
            moderation=self.moderation,
            chains=self.chains,
            dialer=self.dialer,
            inquirer=self.inquirer,
            meters=self.meters,
            rates=self.rates,
            till=self.till,
            treasury=self.treasury,
            reputation=self.reputation,
            desk=self.desk,
            metrics=self.metrics,
            gauge=self.gauge,
            check_ready=self.check_ready,
        )

    def _connect_database(self) -> Database:
        return connect_database(self.settings.database_url.reveal())

    def _make_shared_windows(self) -> "SharedWindows | None":
        settings, limits = self.settings, self.settings.limits
        if settings.rate_limit_url is None:
            return None
        from tollway.shared_windows import SharedWindows  # noqa: PLC0415 - loads redis, and most have none to ask

        assert settings.secret_key is not None
        return SharedWindows(
            settings.rate_limit_url.reveal(),
            namespace=settings.public_url,
            secret=settings.secret_key.reveal(),
            deadline_s=limits.shared_rates_deadline_s,
            retry_s=limits.shared_rates_retry_s,
            on_change=self.metrics.add_shared_rates(),
        )

    def _settlement_rules(self) -> dict[ChainId, SettlementRules]:
        networks = self.settings.networks if self.settings.x402 or self.settings.mpp else ()
        return {network.rules.chain_id: network.settlement for network in networks}

    def _make_chains(self) -> RpcReader:
        return RpcReader(
            {
                network.rules.chain_id: ChainEndpoints(
                    urls=tuple(url.reveal() for url in network.rpc_urls),
                    agreement_min=network.agreement_min,
                    is_by_value=network.rules.agreement_above is not None,
                )
                for network in self.settings.networks
            },
            limits=self.settings.limits,
            on_request=lambda count: self.metrics.rpc_requests.inc(),
        )

    def _make_watcher(self) -> Watcher:
        return Watcher(
            self.book,
            self.chains,
            self.rules,
            limits=self.settings.limits,
            now_ms=now_ms,
            on_gone=self._on_gone,
            task=self.background[TaskName.PAYMENT_CHECK],
        )

    def _make_book(self) -> BookStore:
        """A gateway that is to die at a named step puts its own books here, and its own dialer below."""
        return BookStore(
            self.database,
            owner_id=uuid.uuid4().hex,
            limits=self.settings.limits,
            now_ms=now_ms,
            ticks_ms=ticks_ms,
            unfinal_max_nano=self.settings.unfinal_spend_max_nano,
            on_batch=self.metrics.claims_batch_size.observe,
            on_lapse=self.metrics.lease_lapses.inc,
            on_setback=self._on_setback,
            writer=self.background[TaskName.BOOK_WRITER],
        )

    def _make_dialer(self, origin: PublicOrigin) -> Dialer:
        settings = self.settings
        return Dialer(
            limits=settings.limits,
            allow_private=settings.allow_private_endpoints,
            ticks_ms=ticks_ms,
            own_origins=frozenset({str(origin)}),
            own_listeners=frozenset(
                (listen.host, listen.port)
                for listen in filter(None, (settings.listen, settings.admin_listen))
            ),
        )

    async def _find_older_terms(self, shelf: Shelf, moment_ms: int) -> Shelf:
        return replace(shelf, versions=await self.catalog.terms_since(shelf.listing.id, moment_ms))

    def _on_setback(self) -> None:
        self.metrics.database_setbacks.inc()
        self.catalog.forget_shelves()

    def _on_gone(self, payment: Payment) -> None:
        self.till.forget_payer(payment.payer)

    # ---- Opening and closing.

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        self._lock_database()
        await self.database.open()
        self._stack.push_async_callback(self.database.close)
        await self.schema.prepare()
        await self.chains.open()
        self._stack.push_async_callback(self.chains.close)
        self._stack.push_async_callback(self.dialer.close)
        await self.treasury.open()
        self._stack.push_async_callback(self.treasury.close)
        await self.book.open()
        await self.moderation.refresh()
        if (
            strays := await self.roll_call.find_strays()
        ):  # a mistake in the settings; a node that is only away is not
            raise SettingsInvalid([f"networks: {stray}" for stray in strays])
        chores = await self._stack.enter_async_context(Chores(self.background))
        limits = self.settings.limits
        if self.shared_windows is not None:
            await self.shared_windows.open()
            self._stack.push_async_callback(self.shared_windows.close)
            windows, writer = self.shared_windows, self.background[TaskName.SHARED_RATES_WRITER]
            chores.every(TaskName.SHARED_RATES_CHECK, limits.shared_rates_retry_s, windows.mend)
            chores.start(writer.name, partial(writer.repeat_on_demand, windows.pass_on))
        watch = partial(self.background[TaskName.PAYMENT_CHECK].supervise, self.watcher.run)
        chores.every(TaskName.LEASE_RENEWAL, limits.owner_renew_s, self._renew)
        chores.every(TaskName.CALL_RECOVERY, limits.recovery_interval_s, self._recover)
        chores.every(TaskName.CHAIN_CHECK, ABSENT_INTERVAL_S, self.roll_call.ask)
        chores.every(TaskName.SESSION_PRUNING, PRUNE_INTERVAL_S, self._prune)
        chores.every(TaskName.SCHEMA_CHECK, SCHEMA_INTERVAL_S, self.schema.watch)
        chores.every(TaskName.BLOCKED_WALLETS, MODERATION_INTERVAL_S, self.moderation.refresh)
        chores.every(TaskName.READINESS_NOTE, READY_NOTE_INTERVAL_S, self._note_ready)
        chores.start(TaskName.WATCHER_ELECTION, partial(self._leadership(Duty.WATCHER).lead, watch))
        self.treasury.start(chores, sweeping=self._leadership(Duty.SWEEPER))
        self.reputation.start(chores, lead=self._leadership)
        writing = chores.start(TaskName.BOOK_WRITER, self.book.run)
        self._stack.push_async_callback(self._stop_writing, writing)

    def _leadership(self, duty: Duty) -> Leadership:
        gauge = self.metrics.leading.labels(duty.label)  # from now on it says 0
        return Leadership(
            self.database,
            duty=duty,
            limits=self.settings.limits,
            note=lambda _, leads: gauge.set(leads),
            count_lost=self.roll_call.count_lost,
            task=self.background[TaskName(f"{duty.label}_election")],
        )

    async def _stop_writing(self, writing: asyncio.Task[None]) -> None:
        """Calls that outlived the drain are cut and written as what they are, and everything that was promised is
        written before the database closes."""
        await self.dialer.close()
        await self.book.wait_closed(timeout_s=CUT_DEADLINE_S)
        self.background[TaskName.BOOK_WRITER].expect_end()
        self.book.stop()
        await asyncio.wait([writing], timeout=self.settings.limits.drain_deadline_s)

    def _lock_database(self) -> None:
        """One gateway process for a SQLite file; the kernel frees the lock when the process dies."""
        if not isinstance(self.database, SqliteDatabase):
            return
        try:
            lock = ProcessLock(Path(f"{self.database.path}.lock"))
        except OSError as exc:
            raise SettingsInvalid([f"database_url: cannot write {exc.filename}: {exc.strerror}"]) from exc
        if not lock.acquire():
            lock.release()
            raise SettingsInvalid([f"database_url: another gateway is serving from {self.database.path}"])
        self._stack.callback(lock.release)

    # ---- Serving.

    async def serve(self) -> None:
        """Serves until `stop`; calls in flight are finished first, at most `drain_deadline_s`."""
        settings = self.settings
        for door in filter(None, (settings.listen, settings.admin_listen)):
            check_port_free(door.host, door.port)
        # What lives until now lives for good: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        _log.info("listening", address=str(settings.listen), public_url=settings.public_url)
        if settings.admin_listen is None:
            await self.server.serve()
            return
        admin = HttpServer(
            make_asgi_app(self.metrics.registry),
            host=settings.admin_listen.host,
            port=settings.admin_listen.port,
            limits=settings.limits,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(admin.serve())
            try:
                await self.server.serve()
            finally:
                admin.stop()

    def stop(self) -> None:
        self.server.stop()

    async def check_ready(self) -> Mapping[str, bool]:
        """What `/readyz` shows: there is room, no background task has ended, the books can be read and written, and each network's nodes serve the chain they should."""
        is_running = not self.background.ended
        checks = {**self.roll_call.checks, "load": not self.gauge.is_full(), "background": is_running}
        try:
            await self.book.find_payments(_NO_TRANSACTION)
            checks["storage"] = self._is_writing and self.schema.is_served
        except StorageUnavailable:
            checks["storage"] = False
        return checks

    # ---- Beside the requests.

    async def _renew(self) -> None:
        """The one durable write that every gateway makes all the time: where it fails, no call could be claimed either."""
        try:
            await self.book.renew_ownership(now_ms=now_ms())
        except StorageUnavailable:
            self._is_writing = False
            raise
        self._is_writing = True

    def _read_background(self) -> Iterator[BackgroundFigures]:
        for task in self.background:
            yield BackgroundFigures(
                name=task.name.value,
                is_running=task.is_running,
                has_ended=task.has_ended,
                age_s=task.age_s,
                interval_s=task.interval_s,
                failures=task.failures,
            )

    async def _recover(self) -> None:
        if moved := await self.book.recover(now_ms=now_ms()):
            _log.info("calls_recovered", count=moved)

    async def _prune(self) -> None:
        await self.sessions.prune(now_ms=self.book.shared_ms() - KEPT_AFTER_END_MS)
        await self.creations.prune()

    async def _note_ready(self) -> None:
        if all((await self.check_ready()).values()):
            await self.book.note_ready(now_ms=now_ms())


async def run(settings: Settings) -> None:
    """`tollway serve`: opens the house, serves until SIGINT or SIGTERM, closes in order."""
    async with House(settings) as house:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, house.stop)
        await house.serve()
    _log.info("closed")
