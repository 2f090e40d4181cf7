"""The parts of a gateway below its applications: stores, chains, ledger, settlement, rules of access. Nothing is opened here; `app/lifecycle.py` opens them."""

import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from tollway.app.channel_figures import ChannelFiguresReader
from tollway.app.channel_wiring import ChannelParts
from tollway.app.fleet_view import FleetView
from tollway.app.observation import NodeMetrics, make_settlement_metrics
from tollway.app.runtime import now_ms, ticks_ms
from tollway.app.search_extra import make_meaning_search
from tollway.app.span_queue import make_tracing
from tollway.app.webhooks import WebhookServices
from tollway.app.wiring import ReputationServices, SettlementServices
from tollway.chain.networks import ChainRules
from tollway.chain.nodes import NodeHealth
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.config.settings import Settings, ensure_secret_key
from tollway.config.values import Listen
from tollway.errors import SettingsInvalid
from tollway.gateway.call_rates import CallRateLimits
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import SignatureVerifier
from tollway.identity.siwe import PublicOrigin, parse_origin
from tollway.ids import ChainId, format_network
from tollway.ledger.records import Payment
from tollway.observability.background import BackgroundTasks, TaskName
from tollway.observability.call_trace import SPANS_MAX
from tollway.observability.recent_metrics import RecentMetrics
from tollway.observability.telemetry import BackgroundTaskStatus, Metrics
from tollway.outbound.client import HttpClient
from tollway.outbound.probes import Fetcher
from tollway.payments.channel_networks import make_channel_rules
from tollway.payments.refunds import Refunds
from tollway.payments.reorg_watcher import ReorgTraces, ReorgWatcher
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.transaction_verifier import TransactionVerifier
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.listing import CatalogEntry
from tollway.storage.accounts.identity_store import ModerationStore, SqlSessions
from tollway.storage.accounts.viewer_store import SqlViewers
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.creation_store import CreationStore
from tollway.storage.engine.database import Database, connect_database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.migrate import SchemaCheck
from tollway.storage.ledger.budget_store import BudgetStore
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.channel_totals import ChannelTotalsStore
from tollway.storage.ledger.finality import FinalityStore
from tollway.storage.ledger.free_call_store import SqlFreeCalls
from tollway.storage.ledger.gas_store import GasStore
from tollway.storage.ledger.history import HistoryStore
from tollway.storage.ledger.ledger_store import LedgerStore
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.storage.ledger.period_books import PeriodBookStore
from tollway.storage.ledger.refunds import RefundStore
from tollway.storage.operator.operator_reads import FleetFiguresStore
from tollway.storage.operator.operator_writes import AuditLogStore, OperatorStore
from tollway.storage.webhooks.webhook_events import EventLog
from tollway.web.api.kept_sums import KeptSums
from tollway.web.http.admission import LoadShedder, read_resident_bytes

if TYPE_CHECKING:
    from tollway.rate_limits.redis_windows import RedisWindows


class GatewayParts:
    """The object graph of one gateway, made bottom up from its settings. Its applications (`asgi_wiring`, `admin_wiring`) take what they need from it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = ensure_secret_key(settings)
        self.database = self._connect_database()
        self.schema = SchemaCheck(self.database)
        self.rules: dict[ChainId, ChainRules] = {
            network.rules.chain_id: network.rules for network in settings.networks
        }
        self.metrics = Metrics(CollectorRegistry())
        self.recent_metrics = RecentMetrics(self.metrics, clock=time.monotonic)
        self._add_metrics()
        self.background = BackgroundTasks()
        self.metrics.add_background(self._read_background)
        self.redis_windows = self._make_redis_windows()
        self.rate_limiter = RateLimiter(self.redis_windows)
        self._wire()
        self.channel_figures = self._make_channel_figures()

    def _add_metrics(self) -> None:
        metrics, outages = self.metrics, self.database.outages
        metrics.add_storage(lambda: not outages.is_away, outages.read_away_s)
        for network in self.settings.networks:
            metrics.add_network(
                network.rules.network,
                nodes=len(network.rpc_urls),
                block_time_s=network.settlement.block_time_s,
                gas_keys=[str(key.address) for key in network.settlement.gas_keys],
            )

    def _wire(self) -> None:
        settings, limits, origin = self.settings, self.settings.limits, parse_origin(self.settings.public_url)
        self.origin = origin
        key, *others = [key.get_secret_value() for key in settings.secret_keys]
        self.sealer = Sealer(key, others=others, entropy=secrets.token_bytes)
        self.events = EventLog()
        self.span_queue, self.trace_sampler = make_tracing(settings, self.metrics)
        self.meaning_search = make_meaning_search(self.database)
        self.catalog = CatalogStore(
            self.database,
            sealer=self.sealer,
            now_ms=now_ms,
            only_verified=settings.require_ownership,
            events=self.events,
            meaning=self.meaning_search,
        )
        self._open_stores()
        self.chains = self._make_chains()
        self.node_health = NodeHealth(self.chains, self.rules, limits=limits)
        self.fleet_view = self._make_fleet_view()
        self.http_client = self._make_http_client(origin)
        self.fetcher = Fetcher(self.http_client)
        self._make_reputation()
        self.call_limits = CallRateLimits(limits=limits, rate_limiter=self.rate_limiter)
        verifier = SignatureVerifier(self.chains, limits=limits)
        self.transaction_verifier = TransactionVerifier(
            payments=self.payments,
            readiness=self.operator_ledger,
            chains=self.chains,
            rules=self.rules,
            signature_verifier=verifier,
            quota=self.call_limits,
            limits=limits,
            now_ms=now_ms,
            find_older_terms=self._load_older_terms,
            find_payee_heads=self.catalog.list_payee_heads,
            on_outcome=lambda network, outcome: self.metrics.payments.labels(network, outcome).inc(),
        )
        self.refunds = self._make_refunds()
        self.settlement_services = SettlementServices(
            database=self.database,
            sealer=self.sealer,
            ledger=self.ledger,
            gas_ledger=GasStore(self.database),
            chains=self.chains,
            rules=self.rules,
            settlement_rules=self._settlement_rules(),
            limits=limits,
            now_ms=now_ms,
            rate_limiter=self.rate_limiter,
            background=self.background,
            metrics=make_settlement_metrics(self.metrics),
            traces=self.trace_sampler,
            channels=self._make_channel_parts(),
        )
        self.watcher = self._make_watcher()
        for chain_id, rules in self.rules.items():
            self.metrics.payment_look_age.labels(rules.network).set_function(
                partial(self.watcher.check_age_s, chain_id)
            )
        self.sign_in = SignIn(
            self.sessions,
            verifier,
            self.call_limits,
            origin=origin,
            limits=limits,
            now_ms=now_ms,
            entropy=secrets.token_bytes,
        )
        self._watch_load()

    def _watch_load(self) -> None:
        self.shedder = LoadShedder(
            limits=self.settings.limits, clock=time.monotonic, read_memory_bytes=read_resident_bytes
        )
        self.metrics.calls_in_flight.set_function(lambda: self.shedder.running)
        self.metrics.upstreams_down.set_function(self.reputation_services.breaker.count_down)

    def _make_refunds(self) -> Refunds:
        return Refunds(
            ledger=RefundStore(self.database, limits=self.settings.limits, events=self.events),
            payments=self.payments,
            verifier=self.transaction_verifier,
            rules=self.rules,
            quota=self.call_limits,
            limits=self.settings.limits,
            now_ms=now_ms,
            shared_ms=self.ledger.shared_ms,
        )

    def _make_fleet_view(self) -> FleetView:
        windows = self.redis_windows
        return FleetView(
            self.settings,
            database=self.database,
            owner_id=self.ledger.owner_id,
            chains=self.chains,
            metrics=self.metrics,
            recent_metrics=self.recent_metrics,
            figures=self.fleet_figures,
            read_background=self._read_background,
            is_shared_rates_up=None if windows is None else lambda: windows.is_up,
            now_ms=self.ledger.shared_ms,
        )

    def _make_reputation(self) -> None:
        """Webhooks, and ownership and quality of listings, which write events of webhooks."""
        settings = self.settings
        self.webhook_services = WebhookServices(
            settings,
            database=self.database,
            events=self.events,
            sealer=self.sealer,
            http_client=self.http_client,
            rules=self.rules,
            now_ms=self.ledger.shared_ms,
            background=self.background,
        )
        self.reputation_services = ReputationServices(
            settings,
            database=self.database,
            http_client=self.http_client,
            chains=self.chains,
            now_ms=now_ms,
            ledger_ms=self.ledger.shared_ms,
            background=self.background,
            webhooks=self.webhook_services,
        )

    def _open_stores(self) -> None:
        self.creations = CreationStore(self.database, now_ms=now_ms, limits=self.settings.limits)
        self.ledger = self._make_ledger()
        self.payments = PaymentLedgerStore(self.database, limits=self.settings.limits, events=self.events)
        self.call_history = HistoryStore(self.database, limits=self.settings.limits)
        self.period_books = KeptSums(
            PeriodBookStore(self.database, limits=self.settings.limits),
            clock=time.monotonic,
            now_ms=self.ledger.shared_ms,
        )
        self.operator_ledger = OperatorStore(self.database, now_ms=self.ledger.shared_ms)
        self.sessions = SqlSessions(self.database)
        self.viewers = SqlViewers(self.database)
        self.free_calls = SqlFreeCalls(self.database)
        self.budgets = BudgetStore(self.database, events=self.events)
        self.moderation = ModerationStore(self.database)
        self.audit_log = AuditLogStore(self.database)
        self.fleet_figures = FleetFiguresStore(
            self.database,
            sealer=self.sealer,
            has_other_keys=len(self.settings.secret_keys) > 1,
            now_ms=self.ledger.shared_ms,
        )

    def _connect_database(self) -> Database:
        return connect_database(self.settings.database_url.get_secret_value())

    def _make_redis_windows(self) -> "RedisWindows | None":
        settings, limits = self.settings, self.settings.limits
        if settings.rate_limit_url is None:
            return None
        try:
            from tollway.rate_limits.redis_windows import RedisWindows  # noqa: PLC0415 - loads redis, which most gateways do not use
        except ModuleNotFoundError as exc:
            raise SettingsInvalid(
                [
                    "rate_limit_url: the packages for shared rates are not installed; run: pip install 'tollway[redis]'"
                ]
            ) from exc

        assert settings.secret_key is not None
        return RedisWindows(
            settings.rate_limit_url.get_secret_value(),
            namespace=settings.public_url,
            secret=settings.secret_key.get_secret_value(),
            deadline_s=limits.shared_rates_deadline_s,
            retry_s=limits.shared_rates_retry_s,
            on_change=self.metrics.add_shared_rates(),
        )

    def _settlement_rules(self) -> dict[ChainId, SettlementRules]:
        networks = self.settings.networks if self.settings.x402 or self.settings.mpp else ()
        return {network.rules.chain_id: network.settlement for network in networks}

    def _make_channel_parts(self) -> ChannelParts | None:
        if not self.settings.channels or not self.settings.x402:
            return None
        return ChannelParts(
            ledger=ChannelClaimStore(self.database),
            totals=ChannelTotalsStore(self.database),
            rules=make_channel_rules(self.rules, self._settlement_rules()),
            keys=[key.get_secret_value() for key in self.settings.secret_keys],
            origin=str(self.origin),
            find_payee_terms=self.catalog.find_payee_terms,
        )

    def _make_channel_figures(self) -> ChannelFiguresReader | None:
        channels = self.settlement_services.channels
        if channels is None:
            return None
        networks = channels.networks

        def read_look_ages_s() -> Mapping[tuple[str, ...], float]:
            ages = {chain_id: networks.find_look_age_s(chain_id) for chain_id in networks.rules}
            return {(format_network(chain_id),): age for chain_id, age in ages.items() if age is not None}

        delays_s: dict[str, int] = {
            format_network(one.chain_id): one.withdraw_delay for one in networks.rules.values()
        }
        self.metrics.add_channels(delays_s, read_look_ages_s)
        return ChannelFiguresReader(
            channels.totals,
            networks,
            rules=self.rules,
            claim_reserve_wei=self.settlement_services.gas_budget.claim_reserve_wei,
            now_ms=self.ledger.shared_ms,
        )

    def _make_chains(self) -> RpcReader:
        return RpcReader(
            {
                network.rules.chain_id: ChainEndpoints(
                    urls=tuple(url.get_secret_value() for url in network.rpc_urls),
                    agreement_min=network.agreement_min,
                    is_by_value=network.rules.agreement_above is not None,
                )
                for network in self.settings.networks
            },
            limits=self.settings.limits,
            on_request=lambda count: self.metrics.rpc_requests.inc(),
            observer=NodeMetrics(self.metrics),
        )

    def _make_watcher(self) -> ReorgWatcher:
        return ReorgWatcher(
            self.payments,
            FinalityStore(
                self.database,
                now_ms=self.ledger.shared_ms,
                limits=self.settings.limits,
                events=self.events,
            ),
            self.chains,
            self.rules,
            limits=self.settings.limits,
            now_ms=now_ms,
            on_gone=self._on_gone,
            task=self.background[TaskName.PAYMENT_CHECK],
            traces=self._make_reorg_traces(),
        )

    def _make_reorg_traces(self) -> ReorgTraces | None:
        if self.trace_sampler is None:
            return None
        return ReorgTraces(self.trace_sampler, partial(self.ledger.spending_calls, limit=SPANS_MAX))

    def _make_ledger(self) -> LedgerStore:
        """Test gateways override this and `_make_http_client`."""
        return LedgerStore(
            self.database,
            owner_id=uuid.uuid4().hex,
            limits=self.settings.limits,
            now_ms=now_ms,
            ticks_ms=ticks_ms,
            unfinal_max_nano=self.settings.unfinal_spend_max_nano,
            on_batch=self.metrics.claims_batch_size.observe,
            commit_seconds=self.metrics.commit_seconds,
            on_lapse=self.metrics.lease_lapses.add,
            on_restore=self._on_restore,
            writer=self.background[TaskName.LEDGER_WRITER],
            events=self.events,
            traces=self.trace_sampler,
        )

    def _make_http_client(self, origin: PublicOrigin) -> HttpClient:
        settings = self.settings
        return HttpClient(
            limits=settings.limits,
            allow_private=settings.allow_private_endpoints,
            ticks_ms=ticks_ms,
            own_origins=frozenset({str(origin)}),
            own_listeners=frozenset(
                (listen.host, listen.port)
                for listen in filter(None, (settings.listen, settings.admin_listen, self._control_listen()))
            ),
        )

    def _control_listen(self) -> Listen | None:
        return self.settings.control_listen if self.settings.control_workers else None

    async def _load_older_terms(self, entry: CatalogEntry, moment_ms: int) -> CatalogEntry:
        return replace(entry, versions=await self.catalog.terms_since(entry.listing.id, moment_ms))

    def _on_restore(self) -> None:
        self.metrics.database_setbacks.inc()
        self.catalog.clear_cache()

    def _on_gone(self, payment: Payment) -> None:
        self.metrics.reorgs.add(format_network(payment.chain_id))
        self.transaction_verifier.forget_payer(payment.payer)

    def _read_background(self) -> Iterator[BackgroundTaskStatus]:
        for task in self.background:
            yield BackgroundTaskStatus(
                name=task.name.value,
                is_running=task.is_running,
                has_ended=task.has_ended,
                age_s=task.age_s,
                interval_s=task.interval_s,
                failures=task.failures,
            )
