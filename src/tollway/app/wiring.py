"""The gateway's object graph above the stores: settlement, reputation of listings, and the ASGI application. Built by `app/lifecycle.py`.

It creates collaborators and hands them to each other; it decides nothing about a call. Settlement keys live in `SettlementServices` only.
"""

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp

from tollway import __version__
from tollway.app.ledger_wiring import ledger_routers
from tollway.app.page_wiring import make_page_renderer, signed_in_routers
from tollway.app.runtime import BackgroundTaskGroup, RandomPool, ticks_ms
from tollway.app.webhooks import WebhookServices
from tollway.background import BackgroundTasks, TaskName, run_all
from tollway.call_trace import TraceSampler
from tollway.chain.networks import ChainRules
from tollway.chain.nodes import ChainsWithNodes, NodeHealth, read_head_times
from tollway.chain.port import ChainReader
from tollway.chain.rpc import RpcReader
from tollway.config.settings import Settings
from tollway.gateway.access import AccessControl
from tollway.gateway.authorization_payment import AuthorizationRail
from tollway.gateway.call_observer import CallObserver
from tollway.gateway.call_rates import CallRateLimits
from tollway.gateway.circuit_breaker import CircuitBreaker, HealthCheck
from tollway.gateway.decisions import DecisionMemory
from tollway.gateway.idempotency import ClientNetworks, Idempotency
from tollway.gateway.pipeline import CallPipeline
from tollway.gateway.proxy import Proxy
from tollway.gateway.rail import ClockAndEntropy, FreeRail, StoreResponse
from tollway.gateway.receipts import ReceiptWriter
from tollway.gateway.request_signing import UpstreamSigner
from tollway.gateway.transaction_payment import TransactionRail
from tollway.gateway.trial import TrialCalls, store_nothing
from tollway.identity.authenticator import Authenticator, Identity
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import ReceiptSigner, SignatureVerifier
from tollway.identity.siwe import PublicOrigin, parse_origin
from tollway.ids import Address, ChainId, ListingId
from tollway.ledger.ledger import GasLedger, Ledger
from tollway.ledger.sales import PeriodBooks
from tollway.limits import Limits
from tollway.money import Asset
from tollway.outbound.client import HttpClient
from tollway.outbound.dns import TxtRecords
from tollway.outbound.probes import Fetcher, OwnershipChecker
from tollway.payments.facilitator import FacilitatorClient, HttpFacilitatorTransport
from tollway.payments.gas import NO_METRICS, GasBudget, SettlementMetrics
from tollway.payments.held_calls import HeldCalls
from tollway.payments.mpp import Challenger
from tollway.payments.receipts import ReceiptPoller
from tollway.payments.settlement import Orphans, Settlement
from tollway.payments.settlement_recovery import SettlementRecovery
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.transaction_verifier import TransactionVerifier
from tollway.payments.transactions import TransactionReplacer
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.draft import DraftRules
from tollway.registry.ownership import Challenge, Method
from tollway.registry.ownership_recheck import OwnershipRecheck
from tollway.registry.quality import QualityTally
from tollway.registry.quality_recorder import REFRESH_INTERVAL_S, QualityRecorder
from tollway.storage.catalog_store import CatalogStore
from tollway.storage.closed_periods import ClosedPeriods
from tollway.storage.creation_store import CreationStore
from tollway.storage.database import Database
from tollway.storage.encryption import Sealer
from tollway.storage.history import HistoryStore
from tollway.storage.idempotency import ResponseStore
from tollway.storage.identity_store import ModerationStore, SqlPageSessions, SqlSessions
from tollway.storage.leadership import Duty, Leadership
from tollway.storage.ledger_store import LedgerStore
from tollway.storage.payments import PaymentLedgerStore
from tollway.storage.recovery import read_shared_clock
from tollway.storage.reputation_store import OwnershipStore, QualityStore
from tollway.storage.viewer_store import SqlViewers
from tollway.telemetry import Metrics
from tollway.web.admission import LoadShedder, SignInRateLimit
from tollway.web.app import build_app
from tollway.web.auth_routes import (
    WalletDependency,
    make_challenge,
    make_wallet_dependency,
    make_wallet_quota,
    signin_router,
    to_signed_request,
)
from tollway.web.book_turns import BookTurns
from tollway.web.catalog_routes import CatalogServices, catalog_router
from tollway.web.contract import Site
from tollway.web.discovery_routes import BazaarServices, DocumentServices, bazaar_router, discovery_router
from tollway.web.gateway_app import GatewayApp
from tollway.web.gateway_traces import StartTrace, make_start_trace
from tollway.web.idempotent_create import IdempotentCreate
from tollway.web.listing_edits import ListingEdits, ListingServices, make_endpoint_check
from tollway.web.listing_json import ListingEncoder
from tollway.web.listing_routes import listing_router
from tollway.web.mcp import mcp_router
from tollway.web.mcp_gateway import McpServices
from tollway.web.middleware import is_trusted_peer, parse_proxies, read_client_address, read_request_id
from tollway.web.network_routes import NetworkServices, network_router
from tollway.web.ownership_routes import OwnershipChecks, OwnershipServices, ownership_router
from tollway.web.page_assets import asset_router
from tollway.web.page_problems import ProblemPages
from tollway.web.page_routes import PageServices, page_router
from tollway.web.payment_required import PaymentRequiredRenderer
from tollway.web.problems import status_of
from tollway.web.selling_routes import ProviderServices
from tollway.web.site_routes import (
    FeaturedOperations,
    SiteServices,
    did_router,
    health_router,
    key_directory_router,
    site_router,
)
from tollway.web.trial_routes import TrialServices, trial_router
from tollway.web.webhook_routes import WebhookRouteServices, webhook_router

PRUNE_INTERVAL_S = 300.0


class SettlementServices:
    """The objects that settle authorisations, one per gateway. `settlement_rules`: of the networks that accept authorisations."""

    def __init__(
        self,
        *,
        database: Database,
        sealer: Sealer,
        ledger: Ledger,
        gas_ledger: GasLedger,
        chains: ChainsWithNodes,
        rules: Mapping[ChainId, ChainRules],
        settlement_rules: Mapping[ChainId, SettlementRules],
        limits: Limits,
        now_ms: Callable[[], int],
        rate_limiter: RateLimiter,
        background: BackgroundTasks,
        metrics: SettlementMetrics = NO_METRICS,
        traces: TraceSampler | None = None,
    ) -> None:
        self._background = background
        self._ledger = ledger
        self._limits = limits
        self._chains, self._rules, self._now_ms = chains, rules, now_ms
        self._metrics = metrics
        self._facilitator_http = HttpFacilitatorTransport(limits=limits)
        self.stored_responses = ResponseStore(database, sealer=sealer, limits=limits)
        facilitators = self._make_facilitators(settlement_rules)
        self.gas_budget = gas_budget = GasBudget(
            rules=settlement_rules,
            assets=[asset for one in rules.values() for asset in one.assets],
            chains=chains,
            gas_ledger=gas_ledger,
            limits=limits,
            clock=time.monotonic,
            now_ms=now_ms,
            facilitators=facilitators,
            metrics=metrics,
            task=background[TaskName.GAS_CHECK],
        )
        self._receipt_poller = ReceiptPoller(chains, tuple(rules), task=background[TaskName.RECEIPT_POLLING])
        self._orphans = Orphans(ledger)
        replacer = TransactionReplacer(gas_ledger, chains, gas_budget, limits=limits, now_ms=now_ms)
        self.settlement = Settlement(
            ledger=ledger,
            gas_ledger=gas_ledger,
            chains=chains,
            rules=rules,
            gas_budget=gas_budget,
            replacer=replacer,
            receipt_poller=self._receipt_poller,
            facilitators=facilitators,
            orphans=self._orphans,
            limits=limits,
            now_ms=now_ms,
            rate_limiter=rate_limiter,
            metrics=metrics,
        )
        self._settlement_recovery = SettlementRecovery(
            ledger=ledger,
            gas_ledger=gas_ledger,
            chains=chains,
            rules=rules,
            gas_budget=gas_budget,
            replacer=replacer,
            facilitators=facilitators,
            limits=limits,
            now_ms=now_ms,
            metrics=metrics,
            traces=traces,
        )

    @cached_property
    def held_calls(self) -> HeldCalls:
        """The decisions of providers about held calls."""
        return HeldCalls(
            ledger=self._ledger,
            chains=self._chains,
            rules=self._rules,
            gas_budget=self.gas_budget,
            open_lookup=self.settlement.open_lookup,
            limits=self._limits,
            now_ms=self._now_ms,
        )

    def _make_facilitators(
        self, settlement_rules: Mapping[ChainId, SettlementRules]
    ) -> dict[ChainId, FacilitatorClient]:
        return {
            chain_id: FacilitatorClient(one.facilitator, self._facilitator_http)
            for chain_id, one in settlement_rules.items()
            if one.facilitator is not None
        }

    async def open(self) -> None:
        """Reads the gas prices, so that the first 402 offers what can be settled. A chain that is unavailable may come back later."""
        await self._facilitator_http.open()
        await self.gas_budget.refresh()

    async def close(self) -> None:
        await self._facilitator_http.close()

    def start(self, tasks: BackgroundTaskGroup, *, recovery_leadership: Leadership) -> None:
        """Starts the background tasks. Each gateway marks its own orphaned settlements; one gateway recovers those of all."""
        sweep = partial(self._background[TaskName.SETTLEMENT_SWEEP].supervise, self._sweep)
        tasks.start(TaskName.GAS_CHECK, self.gas_budget.run)
        tasks.start(TaskName.RECEIPT_POLLING, self._receipt_poller.run)
        tasks.start_periodic(
            TaskName.SETTLEMENT_HANDOVER, self._limits.sweep_interval_s, self._orphans.mark_due
        )
        tasks.start(TaskName.SWEEPER_ELECTION, partial(recovery_leadership.lead, sweep))
        tasks.start_periodic(TaskName.ANSWER_PRUNING, PRUNE_INTERVAL_S, self._prune)

    async def _sweep(self) -> None:
        task = self._background[TaskName.SETTLEMENT_SWEEP]
        try:
            await task.repeat(self._limits.sweep_interval_s, self._settlement_recovery.run_once)
        finally:
            self._metrics.orphaned(0)  # the next leader counts them

    async def _prune(self) -> None:
        await self.stored_responses.prune(now_ms=self._ledger.shared_ms())


def make_mpp_challenger(secret_keys: Sequence[bytes], origin: PublicOrigin) -> Challenger:
    """The MPP challenger. All gateways of one public URL make and accept the same challenges; the first key makes them."""
    secret, *others = [hmac.digest(key, b"tollway mpp challenge", "sha256") for key in secret_keys]
    return Challenger(secret=secret, realm=origin.authority, other_secrets=tuple(others))


OWNERSHIP_INTERVAL_S = 60.0
"""Between two reads of the proofs that are due for a check."""
HEALTH_CHECK_RESTART_S = 1.0
"""The health check runs until the gateway stops. After a failure it starts again."""


class ReputationServices:
    """The objects of quality, ownership, closed hours and upstream health, one per gateway. `tally`: counts of outcomes of paid calls. `ownerships`: stored proofs of the owners of
    endpoints; `checker` finds them. `breaker`: the upstreams that are down."""

    def __init__(
        self,
        settings: Settings,
        *,
        database: Database,
        http_client: HttpClient,
        chains: ChainReader,
        now_ms: Callable[[], int],
        ledger_ms: Callable[[], int],
        background: BackgroundTasks,
        webhooks: WebhookServices,
    ) -> None:
        self._background = background
        self._limits = limits = settings.limits
        self.breaker = CircuitBreaker(limits=limits, on_down=webhooks.note_down)
        self._prober = HealthCheck(
            self.breaker,
            check_connection=http_client.check_connection,
            task=background[TaskName.UPSTREAM_PROBES],
        )
        self.ownerships = OwnershipStore(database, now_ms=now_ms, events=webhooks.events)
        self.checker = OwnershipChecker(
            http_client=http_client,
            txt_records=TxtRecords(settings.name_servers, deadline_s=limits.dns_deadline_s),
            verifier=SignatureVerifier(chains, limits=limits),
            gateway=str(parse_origin(settings.public_url)),
            limits=limits,
        )
        self._ownership_recheck = OwnershipRecheck(
            self.ownerships,
            challenge=self.checker.challenge,
            check=self._check_ownership,
            limits=limits,
            now_ms=now_ms,
        )
        self._closed_periods = ClosedPeriods(
            database,
            read_clock=lambda connection: read_shared_clock(connection, now_ms()),
            ledger_ms=ledger_ms,
        )
        self.tally = QualityTally()
        self.quality = QualityStore(database)
        self._quality_recorder = QualityRecorder(self.quality, tally=self.tally, now_ms=now_ms)

    def start(self, tasks: BackgroundTaskGroup, *, lead: Callable[[Duty], Leadership]) -> None:
        """Starts the background tasks. `lead`: makes the leadership of a duty."""
        tasks.start(TaskName.QUALITY_WRITER, self._keep_quality)
        tasks.start_periodic(TaskName.UPSTREAM_PROBES, HEALTH_CHECK_RESTART_S, self._prober.run)
        tasks.start(TaskName.REPUTATION_ELECTION, partial(lead(Duty.REPUTATION).lead, self._run_elected))

    async def _keep_quality(self) -> None:
        task = self._background[TaskName.QUALITY_WRITER]
        try:
            await task.repeat(self._limits.quality_flush_s, self._quality_recorder.write_counts)
        finally:
            await self._quality_recorder.finish()

    async def _run_elected(self) -> None:
        """The work that one gateway does for all."""
        ownership_s = min(OWNERSHIP_INTERVAL_S, self._limits.ownership_recheck_s)
        rounds = (
            (TaskName.QUALITY_RENEWAL, REFRESH_INTERVAL_S, self._quality_recorder.refresh_sums),
            (TaskName.OWNERSHIP_CHECK, ownership_s, self._ownership_recheck.check_due),
            (TaskName.SALES_WRITER, self._limits.sales_interval_s, self._closed_periods.write_due),
        )
        tasks = ((self._background[name], interval_s, job) for name, interval_s, job in rounds)
        await run_all(
            [
                partial(task.supervise, partial(task.repeat, interval_s, job))
                for task, interval_s, job in tasks
            ]
        )

    async def _check_ownership(self, challenge: Challenge) -> tuple[Method, ...]:
        return (await self.checker.find_evidence(challenge)).proved


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The collaborators that `App` has built; they are open when the first request comes."""

    settings: Settings
    rules: dict[ChainId, ChainRules]
    catalog: CatalogStore
    creations: CreationStore
    ledger: LedgerStore
    payments: PaymentLedgerStore
    call_history: HistoryStore
    period_books: PeriodBooks
    sessions: SqlSessions
    page_sessions: SqlPageSessions
    moderation: ModerationStore
    viewers: SqlViewers
    chains: RpcReader
    http_client: HttpClient
    fetcher: Fetcher
    call_limits: CallRateLimits
    rate_limiter: RateLimiter
    transaction_verifier: TransactionVerifier
    settlement_services: SettlementServices
    reputation_services: ReputationServices
    webhook_services: WebhookServices
    sign_in: SignIn
    metrics: Metrics
    shedder: LoadShedder
    trace_sampler: TraceSampler | None
    node_health: NodeHealth
    check_ready: Callable[[], Awaitable[Mapping[str, bool]]]
    check_traffic: Callable[[], Awaitable[Mapping[str, bool]]]
    is_debug: Callable[[], bool]


class AsgiBuilder:
    """Builds the ASGI application, once."""

    def __init__(self, services: Services, *, origin: PublicOrigin, now_ms: Callable[[], int]) -> None:
        self._services = services
        self._origin = origin
        self._now_ms = now_ms
        self._random = RandomPool()
        self._settings = services.settings
        self._limits = services.settings.limits
        keys = [
            key.get_secret_value() for key in services.settings.secret_keys
        ]  # `ensure_secret_key` made the first one
        self._receipt_signers = [ReceiptSigner.derive(key) for key in keys]
        self._receipt_signer = self._receipt_signers[0]
        self._signer = UpstreamSigner.derive(keys)
        self._networks = ClientNetworks.derive(keys)
        self._mpp_challenger = make_mpp_challenger(keys, origin) if services.settings.mpp else None
        self._pages = make_page_renderer(self._settings, services.rules, origin=origin)
        self._problem_pages = None if self._pages is None else ProblemPages(self._pages)
        self._authenticator = Authenticator(
            services.sessions,
            services.sign_in,
            origin=origin,
            limits=self._limits,
            now_ms=now_ms,
            rate_limiter=services.rate_limiter,
        )
        self._wallet_quota = make_wallet_quota(limits=self._limits, rate_limiter=services.rate_limiter)
        self._book_turns = BookTurns()

    def build(self) -> ASGIApp:
        services, settings, limits = self._services, self._settings, self._limits
        wallet = make_wallet_dependency(
            self._authenticator, body_bytes_max=limits.control_body_bytes_max, quota=self._wallet_quota
        )
        sign_in_rate_limit = SignInRateLimit(limits=limits, rate_limiter=services.rate_limiter)
        calls, listing_services = self._gateway_app(), self._listing_services(wallet)
        ownership_services = self._ownership_services(wallet)
        selling = ProviderServices(
            listings=listing_services,
            edits=ListingEdits(listing_services),
            checks=OwnershipChecks(ownership_services),
        )
        return build_app(
            call_app=calls,
            routers=[
                listing_router(listing_services, selling.edits),
                *ledger_routers(
                    services,
                    held_calls=services.settlement_services.held_calls,
                    wallet=wallet,
                    is_session_open=self._is_session_open,
                    book_turns=self._book_turns,
                    find_asset=self._find_asset,
                    receipt_signer=self._receipt_signer,
                    now_ms=self._now_ms,
                ),
                bazaar_router(self._bazaar_services()),
                discovery_router(self._document_services()),
                mcp_router(self._mcp_services(calls, listing_services.encoder, wallet)),
                signin_router(services.sign_in, sign_in_rate_limit, limits=limits),
                health_router(services.check_ready, services.check_traffic, has_pages=settings.web_pages),
                ownership_router(ownership_services, selling.checks),
                trial_router(self._trial_services(wallet)),
                webhook_router(self._webhook_services(wallet)),
                did_router(
                    authority=self._origin.authority,
                    signers=[
                        *(one.address for one in self._receipt_signers),
                        *settings.retired_receipt_signers,
                    ],
                ),
                key_directory_router(
                    self._signer,
                    authority=self._origin.authority,
                    now_ms=self._now_ms,
                    entropy=self._random.take_bytes,
                ),
                site_router(self._site_services()),
                network_router(self.network_services()),
                catalog_router(self._catalog_services()),
                *self._page_routers(sign_in_rate_limit, selling),
            ],
            public_url=settings.public_url,
            limits=limits,
            clock=time.monotonic,
            entropy=secrets.token_bytes,
            shedder=services.shedder,
            book_turns=self._book_turns,
            challenge=make_challenge(
                services.sign_in, sign_in_rate_limit, origin=self._origin, chain_ids=tuple(services.rules)
            ),
            metrics=services.metrics,
            trusted_proxies=settings.trusted_proxies,
            problem_pages=self._problem_pages,
        )

    def _page_routers(self, rate_limit: SignInRateLimit, selling: ProviderServices) -> list[Router]:
        if self._pages is None:
            return []
        public = PageServices(
            renderer=self._pages,
            documents=self._document_services(),
            networks=self.network_services(),
            quality=self._services.reputation_services.quality,
            currencies=tuple(dict.fromkeys(asset.symbol for asset in self._listing_encoder().assets)),
            now_ms=self._now_ms,
        )
        return [
            page_router(public),
            asset_router(self._pages.assets),
            *signed_in_routers(
                self._services,
                public,
                held_calls=self._services.settlement_services.held_calls,
                origin=self._origin,
                rate_limit=rate_limit,
                quota=self._wallet_quota,
                book_turns=self._book_turns,
                find_asset=self._find_asset,
                receipt_signer=self._receipt_signer,
                selling=selling,
                entropy=secrets.token_bytes,
            ),
        ]

    def _make_start_trace(self) -> StartTrace | None:
        sampler, proxies = self._services.trace_sampler, parse_proxies(self._settings.trusted_proxies)
        if sampler is None:
            return None
        return make_start_trace(sampler, lambda scope: is_trusted_peer(scope, proxies))

    def _pipeline(self) -> CallPipeline:
        services, settings, limits = self._services, self._settings, self._limits
        receipts = ReceiptWriter(
            public_url=settings.public_url, receipt_signer=self._receipt_signer, now_ms=self._now_ms
        )
        idempotency = Idempotency(
            ledger=services.ledger,
            stored_responses=services.settlement_services.stored_responses,
            rules=services.rules,
            limits=limits,
            receipts=receipts,
            public_url=settings.public_url,
            now_ms=self._now_ms,
            networks=self._networks,
            prove_wallet=self._authenticate_caller,
        )
        clock, access = self._make_clock(), self._make_access()
        transactions = TransactionRail(
            ledger=services.ledger,
            transaction_verifier=services.transaction_verifier,
            idempotency=idempotency,
            limits=limits,
            origin=str(self._origin),
            is_bound_required=settings.require_bound_signature,
            clock=clock,
        )
        authorizations = AuthorizationRail(
            ledger=services.ledger,
            settlement=services.settlement_services.settlement,
            idempotency=idempotency,
            receipts=receipts,
            challenger=self._mpp_challenger,
            rules=services.rules,
            limits=limits,
            networks=self._networks,
            clock=clock,
            is_x402=settings.x402,
        )
        return CallPipeline(
            host=self._origin.authority,
            allow_private=settings.allow_private_endpoints,
            catalog=services.catalog,
            rails=(transactions, authorizations),
            free_rail=FreeRail(ledger=services.ledger, access=access, limits=limits, clock=clock),
            idempotency=idempotency,
            access=access,
            decisions=DecisionMemory(limits=limits),
            observer=CallObserver(
                services.metrics.call_seconds,
                call_log=settings.call_log,
                log_wallets=settings.log_wallets,
                status_of=status_of,
                is_debug=services.is_debug,
            ),
            proxy=self._make_proxy(idempotency.store_response),
            limits=limits,
            find_requirements=authorizations.find_requirements,
            is_verified=self._find_verification(),
        )

    def _make_clock(self) -> ClockAndEntropy:
        return ClockAndEntropy(now_ms=self._now_ms, entropy=self._random.take_bytes)

    def _make_access(self) -> AccessControl:
        services = self._services
        return AccessControl(
            services.call_limits,
            limits=self._limits,
            find_block=services.moderation.find_block,
            now_ms=self._now_ms,
        )

    def _find_verification(self) -> Callable[[ListingId], Awaitable[bool]] | None:
        """Whether the ownership of a listing is proved; None where the operator does not require the proof."""
        ownerships = self._services.reputation_services.ownerships
        return ownerships.is_verified if self._settings.require_ownership else None

    def _make_proxy(self, store_response: StoreResponse) -> Proxy:
        services = self._services
        return Proxy(
            http_client=services.http_client,
            store_response=store_response,
            limits=self._limits,
            now_ms=self._now_ms,
            public_url=self._settings.public_url,
            name=self._origin.authority,
            signer=self._signer,
            entropy=self._random.take_bytes,
            observe_upstream_s=services.metrics.upstream_seconds.observe,
            tally=services.reputation_services.tally,
            breaker=services.reputation_services.breaker,
        )

    async def _authenticate_caller(self, request: SignedRequest) -> Address:
        return (await self._authenticator.authenticate_call(request)).address

    async def _is_session_open(self, request: Request) -> bool:
        return await self._authenticator.is_session_open(to_signed_request(request, body=b""))

    def _gateway_app(self) -> GatewayApp:
        services, settings, limits = self._services, self._settings, self._limits
        proxies = parse_proxies(settings.trusted_proxies)
        return GatewayApp(
            self._pipeline(),
            payment_required=PaymentRequiredRenderer(
                services.rules,
                public_url=settings.public_url,
                challenger=self._mpp_challenger,
                is_x402=settings.x402,
                receipt_signer=self._receipt_signer,
                offer_valid_s=limits.price_memory_s,
                now_ms=self._now_ms,
                entropy=self._random.take_bytes,  # the salt is not secret; it makes each challenge unique
            ),
            limits=limits,
            public_url=settings.public_url,
            now_ms=self._now_ms,
            request_id_of=lambda scope: read_request_id(scope["headers"], entropy=self._random.take_bytes),
            client_address_of=lambda scope: read_client_address(scope, proxies),
            count_outcome=services.metrics.calls.add,
            count_refusal=services.metrics.refusals.add,
            start_trace=self._make_start_trace(),
            shedder=services.shedder,
            problem_pages=self._problem_pages,
        )

    def _ownership_services(self, wallet: Callable[[Request], Awaitable[Identity]]) -> OwnershipServices:
        services = self._services
        return OwnershipServices(
            catalog=services.catalog,
            ownerships=services.reputation_services.ownerships,
            checker=services.reputation_services.checker,
            authenticate=wallet,
            find_block=services.moderation.find_block,
            rate_limiter=services.rate_limiter,
            limits=self._limits,
            now_ms=self._now_ms,
        )

    def _trial_services(self, wallet: Callable[[Request], Awaitable[Identity]]) -> TrialServices:
        services = self._services
        trials = TrialCalls(
            host=self._origin.authority,
            allow_private=self._settings.allow_private_endpoints,
            proxy=self._make_proxy(store_nothing),
            ledger=services.ledger,
            access=self._make_access(),
            limits=self._limits,
            clock=self._make_clock(),
            is_verified=self._find_verification(),
        )
        return TrialServices(
            catalog=services.catalog,
            trials=trials,
            authenticate=wallet,
            find_block=services.moderation.find_block,
            rate_limiter=services.rate_limiter,
            limits=self._limits,
            now_ms=self._now_ms,
        )

    def _webhook_services(self, wallet: Callable[[Request], Awaitable[Identity]]) -> WebhookRouteServices:
        services = self._services
        return WebhookRouteServices(
            webhooks=services.webhook_services.store,
            authenticate=wallet,
            check_endpoint=services.http_client.check_endpoint,
            find_block=services.moderation.find_block,
            allow_private=self._settings.allow_private_endpoints,
            rate_limiter=services.rate_limiter,
            limits=self._limits,
            now_ms=services.ledger.shared_ms,
            entropy=secrets.token_bytes,
        )

    def _listing_services(self, wallet: Callable[[Request], Awaitable[Identity]]) -> ListingServices:
        services, settings = self._services, self._settings
        return ListingServices(
            catalog=services.catalog,
            rules=DraftRules(
                assets=self._listing_encoder().assets,
                main_networks=frozenset(
                    chain_id for chain_id, rules in services.rules.items() if rules.kind == "main"
                ),
                allow_private_endpoints=settings.allow_private_endpoints,
                check_endpoint=make_endpoint_check(allow_private=settings.allow_private_endpoints),
            ),
            encoder=self._listing_encoder(),
            limits=settings.limits,
            authenticate=wallet,
            check_endpoint=services.http_client.check_endpoint,
            find_addresses=services.http_client.find_addresses,
            creations=IdempotentCreate(
                services.creations, limits=settings.limits, entropy=secrets.token_bytes
            ),
            find_block=services.moderation.find_block,
            allowlist=settings.allowlist if settings.registration == "allowlist" else None,
            now_ms=self._now_ms,
            entropy=secrets.token_bytes,
            rate_limiter=services.rate_limiter,
            is_unprotected=services.fetcher.is_unprotected,
            fetch_document=services.fetcher.fetch_document,
            read_heads=partial(read_head_times, services.chains),
            describe_draft=self._document_services().describe_draft,
            find_owner=services.reputation_services.ownerships.find_owner
            if settings.require_ownership
            else None,
        )

    def _mcp_services(self, calls: ASGIApp, encoder: ListingEncoder, wallet: WalletDependency) -> McpServices:
        services, settings = self._services, self._settings
        return McpServices(
            catalog=services.catalog,
            encoder=encoder,
            call_history=services.call_history,
            call_app=calls,
            wallet=wallet,
            find_asset=self._find_asset,
            now_ms=self._now_ms,
            public_url=settings.public_url,
            origin=str(self._origin),
            body_bytes_max=self._limits.control_body_bytes_max,
            book_turns=self._book_turns,
            origins=settings.mcp_origins,
        )

    def _listing_encoder(self) -> ListingEncoder:
        rules = self._services.rules
        return ListingEncoder(
            public_url=self._settings.public_url,
            assets=tuple(asset for one in rules.values() for asset in one.assets),
            confirmations_for=lambda asset, units: rules[asset.chain_id].confirmations_for(asset, units),
            is_offered=self._is_x402_offered,
        )

    def _bazaar_services(self) -> BazaarServices:
        return BazaarServices(
            catalog=self._services.catalog,
            rules=self._services.rules,
            is_offered=self._is_x402_offered,
            public_url=self._settings.public_url,
        )

    def _document_services(self) -> DocumentServices:
        services, settings = self._services, self._settings
        return DocumentServices(
            catalog=services.catalog,
            encoder=self._listing_encoder(),
            bazaar=self._bazaar_services(),
            limits=settings.limits,
            is_mpp_offered=self._is_mpp_offered,
            is_bound_required=settings.require_bound_signature,
            ticks_ms=ticks_ms,
        )

    def _site_services(self) -> SiteServices:
        settings = self._settings
        featured_operations = FeaturedOperations(
            self._services.catalog, self._listing_encoder(), is_mpp_offered=self._is_mpp_offered
        )
        return SiteServices(
            catalog=self._services.catalog,
            featured_operations=featured_operations,
            site=Site(public_url=settings.public_url, version=__version__, contact=settings.contact),
            limits=settings.limits,
            now_ms=self._now_ms,
            ticks_ms=ticks_ms,
            has_pages=settings.web_pages,
        )

    def _catalog_services(self) -> CatalogServices:
        return CatalogServices(
            catalog=self._services.catalog,
            quality=self._services.reputation_services.quality,
            now_ms=self._now_ms,
            ticks_ms=ticks_ms,
        )

    def network_services(self) -> NetworkServices:
        services, settings = self._services, self._settings
        allowed = {"x402": settings.x402, "mpp": settings.mpp}
        is_offered = services.settlement_services.settlement.is_offered
        return NetworkServices(
            rules=services.rules,
            profiles={network.rules.chain_id: network.profile for network in settings.networks},
            away_s=services.node_health.away_s,
            settled_rails={rail: is_offered for rail, is_allowed in allowed.items() if is_allowed},
            withdrawn_since_ms=lambda: services.settlement_services.settlement.withdrawn_since_ms,
            version=__version__,
            now_ms=self._now_ms,
        )

    def _is_mpp_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        return self._settings.mpp and self._services.settlement_services.settlement.is_offered(
            asset, units, listing_id
        )

    def _is_x402_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        return self._settings.x402 and self._services.settlement_services.settlement.is_offered(
            asset, units, listing_id
        )

    def _find_asset(self, chain_id: ChainId, key: str) -> Asset | None:
        assets = self._services.rules[chain_id].assets if chain_id in self._services.rules else ()
        return next((asset for asset in assets if asset.key == key), None)
