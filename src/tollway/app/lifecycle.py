"""The composition root: builds a gateway from its settings, opens its parts in order, and closes them in reverse order.

`App` owns the task group of the background tasks: renewal of this gateway's lease, recovery, the watcher of payments, settlement, pruning. It decides nothing
about a call.
"""

import asyncio
import contextlib
import gc
import platform
import signal
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import structlog
from prometheus_client import make_asgi_app
from starlette.types import ASGIApp

from tollway import __version__
from tollway.app.admin_wiring import build_admin_app
from tollway.app.asgi_wiring import AsgiBuilder
from tollway.app.channel_keys import check_channel_keys
from tollway.app.control_workers import ControlWorkers
from tollway.app.parts import GatewayParts
from tollway.app.runtime import BackgroundTaskGroup, now_ms
from tollway.app.service_notifier import READY, STOPPING, ServiceNotifier
from tollway.audit_log import AuditOrigin
from tollway.chain.nodes import AWAY_INTERVAL_S
from tollway.config.settings import Settings
from tollway.config.values import Listen
from tollway.errors import SettingsInvalid, StorageUnavailable
from tollway.ids import TxHash
from tollway.ledger.sales import DAY_MS
from tollway.observability.background import TaskName, run_all
from tollway.observability.recent_metrics import SAMPLE_INTERVAL_S
from tollway.observability.telemetry import change_log_level, observe_log_events
from tollway.storage.engine.advisory_locks import require_exclusion
from tollway.storage.engine.database import ProcessLock, SqliteDatabase
from tollway.storage.engine.leadership import Duty, Leadership
from tollway.storage.engine.migrate import find_revision
from tollway.web.http.server import HttpServer, reserved_ports, serve_all
from tollway.web.pages.demo_wallet import DemoWallet

_log = structlog.get_logger(__name__)

PRUNE_INTERVAL_S = 300.0
SIGN_IN_NONCE_KEPT_MS = 2 * 3600 * 1000
"""How long a used sign-in nonce is kept after its end: a clock that was set back, here or at another gateway, must not accept its signature again."""
SCHEMA_INTERVAL_S = 10.0
AUDIT_LOG_INTERVAL_S = 2.0
MODERATION_INTERVAL_S = 0.5  # a block reaches every gateway within a second
VECTORS_INTERVAL_S = 1.0
READINESS_INTERVAL_S = 20.0
DELAY_INTERVAL_S = 1.0
DEBUG_S = 600.0
CLOSE_DEADLINE_S = 3.0  # for the outcomes of calls whose connections were just closed: a few commits
GC_THRESHOLDS = (2_000, 10, 100)
"""New objects between two collections of the youngest generation, and how many of each generation before one of the next. A call leaves no cycles, and with Python's default
of 700 objects collections took 15 of its 700 µs. What a flood leaves in cycles is freed at once, while no thread runs Python: 20,000 such objects take 10 to 40 ms."""

_NO_TRANSACTION = TxHash(
    32
)  # no payment has this hash; the look-up only shows whether the database is readable


class App(GatewayParts):
    """The composition root of one gateway. `async with App(settings) as app:` opens it; its exit completes the ledger's writes, then closes.

    `demo_wallet`: of a demo, for its pages. Raises SettingsInvalid for one beside any network but the sandbox. `abandon_channels`: of an operator who gives up what channels
    without a key still owe.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        demo_wallet: DemoWallet | None = None,
        abandon_channels: AuditOrigin | None = None,
        config: Path | None = None,
        control_listener: int | None = None,
    ) -> None:
        """`config`: the settings file, for control workers. `control_listener`: of a control worker (`ControlApp`)."""
        super().__init__(settings)
        self.control_workers = self._make_control_workers(config)
        self._abandon_channels = abandon_channels
        self._can_write = True  # `ledger.open` writes; after it each renewal of the lease updates this
        self._is_stopping = False
        self.is_debug = False
        self._debug_end: asyncio.TimerHandle | None = None
        self._stack = contextlib.AsyncExitStack()
        self._servers: tuple[HttpServer, ...] = ()
        self._asgi = AsgiBuilder(
            self,
            check_ready=self.check_ready,
            check_traffic=self.check_traffic,
            demo_wallet=demo_wallet,
            is_control=control_listener is not None,
        )
        self.asgi_app = self._asgi.build()
        listen = self.settings.listen if control_listener is None else self.settings.control_listen
        self.server = self._make_server(self.asgi_app, listen, listener=control_listener)

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
        await require_exclusion(self.database)
        await self.schema.prepare()
        await self._set_build()
        await self.chains.open()
        self._stack.push_async_callback(self.chains.close)
        # A node of another chain is an error of the settings; a node that is down is not. Before the ledger opens: its row makes this process a gateway.
        if problems := await self.node_health.find_wrong_chain_nodes():
            raise SettingsInvalid([f"networks: {problem}" for problem in problems])
        self._stack.push_async_callback(self.http_client.close)
        if self.span_queue is not None:
            self.span_queue.open()
            self._stack.push_async_callback(asyncio.to_thread, self.span_queue.close)
        await self.settlement_services.open()
        self._stack.push_async_callback(self.settlement_services.close)
        await self._check_channel_keys()
        await self.ledger.open()
        await self.fleet_view.record_build()
        tasks = await self._start_views()
        recovery_interval_s = self.settings.limits.recovery_interval_s
        tasks.start_periodic(TaskName.CALL_RECOVERY, recovery_interval_s, self._recover)
        tasks.start_periodic(TaskName.SESSION_PRUNING, PRUNE_INTERVAL_S, self._prune)
        tasks.start_periodic(TaskName.AUDIT_ENTRY_LOG, AUDIT_LOG_INTERVAL_S, self.audit_log.log_new)
        tasks.start_periodic(TaskName.READINESS_NOTE, READINESS_INTERVAL_S, self._record_readiness)
        delays = self.background[TaskName.LOOP_DELAY]
        tasks.start(delays.name, partial(delays.repeat_on_demand, self._measure_delay))
        tasks.start_periodic(TaskName.METRIC_SAMPLES, SAMPLE_INTERVAL_S, self.recent_metrics.sample)
        tasks.start(TaskName.WATCHER_ELECTION, partial(self._leadership(Duty.WATCHER).lead, self._watch))
        self.settlement_services.start(tasks, recovery_leadership=self._leadership(Duty.SWEEPER))
        self.reputation_services.start(tasks, lead=self._leadership)
        self.webhook_services.start(tasks, lead=self._leadership)
        writing = tasks.start(TaskName.LEDGER_WRITER, self.ledger.run)
        self._stack.push_async_callback(self._stop_writing, writing)

    async def _start_views(self) -> BackgroundTaskGroup:
        """Starts what keeps this process's view of its database and its chains up to date. A control worker needs it too."""
        await self._refresh_wallets()
        await self.webhook_services.store.refresh()
        if self.meaning_search is not None:
            self._stack.callback(self.meaning_search.close)
        tasks = await self._stack.enter_async_context(BackgroundTaskGroup(self.background))
        await self._open_shared_rates(tasks)
        if self.meaning_search is not None:
            tasks.start_periodic(TaskName.SEARCH_VECTORS, VECTORS_INTERVAL_S, self.meaning_search.refresh)
        tasks.start_periodic(TaskName.LEASE_RENEWAL, self.settings.limits.owner_renew_s, self._renew)
        tasks.start_periodic(TaskName.CHAIN_CHECK, AWAY_INTERVAL_S, self.node_health.check_due)
        tasks.start_periodic(TaskName.SCHEMA_CHECK, SCHEMA_INTERVAL_S, self.schema.watch)
        tasks.start_periodic(TaskName.BLOCKED_WALLETS, MODERATION_INTERVAL_S, self._refresh_wallets)
        return tasks

    async def _open_shared_rates(self, tasks: BackgroundTaskGroup) -> None:
        if self.redis_windows is None:
            return
        await self.redis_windows.open()
        self._stack.push_async_callback(self.redis_windows.close)
        windows, writer = self.redis_windows, self.background[TaskName.SHARED_RATES_WRITER]
        retry_s = self.settings.limits.shared_rates_retry_s
        tasks.start_periodic(TaskName.SHARED_RATES_CHECK, retry_s, windows.check_server)
        tasks.start(writer.name, partial(writer.repeat_on_demand, windows.send_pending))

    async def _check_channel_keys(self) -> None:
        """Before the ledger opens: its row makes this process a gateway."""
        channels = self.settlement_services.channels
        if channels is not None:
            await check_channel_keys(
                channels.totals,
                self.audit_log,
                knows=channels.refunds.knows,
                rules=self.rules,
                abandon=self._abandon_channels,
            )

    def _leadership(self, duty: Duty) -> Leadership:
        leading = self.metrics.leading.labels(duty.label)  # from now on the series is 0

        def on_change(duty: Duty, leads: bool) -> None:
            leading.set(leads)
            self.fleet_view.note_leading(duty, leads)

        return Leadership(
            self.database,
            duty=duty,
            limits=self.settings.limits,
            on_change=on_change,
            count_lost=self.node_health.count_lost,
            owner_id=self.ledger.owner_id,
            task=self.background[TaskName(f"{duty.label}_election")],
        )

    async def _watch(self) -> None:
        """The work of the leader of the watcher's duty: the watcher, and the figures of the fleet."""
        watcher, figures = (
            self.background[name] for name in (TaskName.PAYMENT_CHECK, TaskName.FLEET_FIGURES)
        )
        reading = partial(figures.repeat, self.settings.limits.figures_interval_s, self._read_figures)
        try:
            await run_all([partial(watcher.supervise, self.watcher.run), partial(figures.supervise, reading)])
        finally:
            self.metrics.set_figures(None)  # the next leader exposes them

    def _on_restore(self) -> None:
        super()._on_restore()
        if self.control_workers is not None:
            self.control_workers.renew()

    async def _read_figures(self) -> None:
        try:
            figures, reader = await self.fleet_figures.read(), self.channel_figures
            if reader is not None:
                figures = replace(figures, channels=await reader.read())
            self.metrics.set_figures(figures)
        except StorageUnavailable:
            self.metrics.set_figures(None)
            raise

    async def _measure_delay(self) -> None:
        read_clock_s = asyncio.get_running_loop().time
        due_s = read_clock_s() + DELAY_INTERVAL_S
        await asyncio.sleep(DELAY_INTERVAL_S)
        self.metrics.loop_delay_seconds.observe(max(0.0, read_clock_s() - due_s))

    async def _set_build(self) -> None:
        schema = await find_revision(self.database) or "none"
        self.metrics.build.clear()
        self.metrics.build.set(1, __version__, platform.python_version(), self.database.dialect, schema)

    async def _stop_writing(self, writing: asyncio.Task[None]) -> None:
        """Ends the calls that outlived the drain, records their state, and completes the ledger's writes before the database closes."""
        await self.http_client.close()
        await self.ledger.wait_closed(timeout_s=CLOSE_DEADLINE_S)
        self.background[TaskName.LEDGER_WRITER].expect_end()
        self.ledger.stop()
        await asyncio.wait([writing], timeout=self.settings.limits.drain_deadline_s)

    def _lock_database(self) -> None:
        """The kernel frees the lock when the process dies."""
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

    def _make_control_workers(self, config: Path | None) -> ControlWorkers | None:
        if not self.settings.control_workers:
            return None
        return ControlWorkers(
            self.settings.control_workers,
            listen=self.settings.control_listen,
            config=config,
            stop_s=self.settings.drain_notice_s + self.settings.limits.drain_deadline_s + CLOSE_DEADLINE_S,
        )

    def reserve_ports(self) -> None:
        """Keeps the ports of this gateway until it serves; a second call has no effect. `run` calls it before the app opens: a gateway that cannot listen must
        write no row, which others would count as a gateway until its lease ends. Raises PortTaken."""
        if not self._servers:
            admin = self.settings.admin_listen
            others = () if admin is None else (self._make_server(self.build_admin_app(), admin),)
            self._servers = (self.server, *others)
            self._stack.enter_context(reserved_ports(self._servers))
            if self.control_workers is not None:
                self._stack.enter_context(self.control_workers.reserve())

    async def serve(self, notifier: ServiceNotifier | None = None) -> None:
        """Serves until `stop`, then finishes the calls in flight within `drain_deadline_s`. `notifier` reports when the port accepts connections."""
        settings = self.settings
        self.reserve_ports()
        freeze_objects()
        _log.info("listening", address=str(settings.listen), public_url=settings.public_url)
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(self._report(notifier)) if notifier is not None else None
            workers = self.control_workers
            if workers is not None:
                group.create_task(self.background[TaskName.CONTROL_WORKERS].supervise(workers.run))
            try:
                await serve_all(self._servers)
            finally:
                if reporting is not None:
                    reporting.cancel()
                if workers is not None:
                    self.background[TaskName.CONTROL_WORKERS].expect_end()
                    workers.stop()

    def _make_server(self, app: ASGIApp, listen: Listen, *, listener: int | None = None) -> HttpServer:
        return HttpServer(
            app, host=listen.host, port=listen.port, limits=self.settings.limits, listener=listener
        )

    def build_admin_app(self) -> ASGIApp:
        metrics = make_asgi_app(self.metrics.registry)
        return build_admin_app(self, metrics, web=self._asgi.context, check_ready=self.check_ready)

    async def _report(self, notifier: ServiceNotifier) -> None:
        """Readiness once, then the watchdog, from this event loop: a loop that stands still is restarted, a gateway whose database is away is not."""
        await self.server.wait_up()
        notifier.notify(READY)
        interval_s = notifier.watchdog_interval_s
        if interval_s is not None:
            watchdog = self.background[TaskName.SERVICE_WATCHDOG]
            await watchdog.supervise(partial(watchdog.repeat, interval_s, notifier.notify_watchdog))

    def stop(self) -> None:
        """Ends `serve`. For `drain_notice_s` the listener stays open and `/readyz?for=traffic` fails, so that balancers send no more requests. A second call ends the
        notice."""
        notice_s = 0.0 if self._is_stopping else self.settings.drain_notice_s
        self._is_stopping = True
        if self.control_workers is not None:
            self.background[TaskName.CONTROL_WORKERS].expect_end()
            self.control_workers.stop()  # each has the same notice
        if not notice_s:
            self.server.stop()
            return
        _log.info("draining", notice_s=notice_s)
        asyncio.get_running_loop().call_later(notice_s, self.server.stop)

    async def check_ready(self) -> Mapping[str, bool]:
        """The checks of `/readyz`: those of `check_traffic`, no background task has ended, the nodes of each network serve its chain, and
        each control worker serves. Without these the gateway still serves their paths."""
        checks = {**self.node_health.checks, "background": not self.background.ended}
        if self.control_workers is not None:
            checks["control_workers"] = self.control_workers.are_ready
        return {**checks, **await self.check_traffic()}

    async def check_traffic(self) -> Mapping[str, bool]:
        """The checks of `/readyz?for=traffic`: the gateway is not stopping, has capacity for requests, and the ledger is readable and writable. Without its chains a
        gateway still serves credit, free calls, the catalog and history."""
        checks = {"serving": not self._is_stopping, "load": not self.shedder.is_full()}
        try:
            await self.payments.find_payments(_NO_TRANSACTION)
            checks["storage"] = self._can_write and self.schema.is_served
        except StorageUnavailable:
            checks["storage"] = False
        return checks

    def toggle_debug(self) -> None:
        """SIGUSR1: logs at `debug` for `DEBUG_S`, or ends that early."""
        if self._debug_end is not None:
            self._debug_end.cancel()
            self._debug_end = None
        self.is_debug = self._asgi.call_observer.is_debug = not self.is_debug
        level = "debug" if self.is_debug else self.settings.log_level
        change_log_level(level)
        _log.warning("log_level_changed", now=level, for_s=DEBUG_S if self.is_debug else None)
        if self.is_debug:
            self._debug_end = asyncio.get_running_loop().call_later(DEBUG_S, self.toggle_debug)

    # ---- Beside the requests.

    async def _renew(self) -> None:
        """Renews the lease, the one durable write that every gateway makes all the time. Where it fails, no call can be claimed either."""
        try:
            await self.ledger.renew_ownership(now_ms=now_ms())
        except StorageUnavailable:
            self._can_write = False
            raise
        self._can_write = True

    async def _recover(self) -> None:
        if recovered := await self.ledger.recover(now_ms=now_ms()):
            _log.info("calls_recovered", count=recovered)

    async def _refresh_wallets(self) -> None:
        await self.moderation.refresh()
        await self.budgets.refresh()

    async def _prune(self) -> None:
        await self.fleet_view.record_build()
        await self.sessions.prune(now_ms=self.ledger.shared_ms() - SIGN_IN_NONCE_KEPT_MS)
        await self.viewers.prune(now_ms=self.ledger.shared_ms())
        kept_ms = self.settings.limits.pending_budget_days * DAY_MS
        await self.budgets.prune_pending(before_ms=self.ledger.shared_ms() - kept_ms)
        await self.creations.prune()

    async def _record_readiness(self) -> None:
        if all((await self.check_ready()).values()):
            await self.operator_ledger.mark_ready(now_ms=now_ms())


def freeze_objects() -> None:
    """Takes the objects that exist now out of later collections: they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def run(
    settings: Settings, *, abandon_channels: AuditOrigin | None = None, config: Path | None = None
) -> None:
    """`tollway gateway serve`: opens the app, serves until SIGINT or SIGTERM, closes in order."""
    notifier = ServiceNotifier.from_environment()
    app = App(settings, abandon_channels=abandon_channels, config=config)
    app.reserve_ports()
    async with app:
        observe_log_events(app.metrics.count_log_event)

        def stop() -> None:
            notifier.notify(STOPPING)
            app.stop()

        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, app.toggle_debug)
        await app.serve(notifier)
    _log.info("closed")
