"""The gateway's object graph above the stores: settlement, reputation of listings, and the ASGI application. Built by `app/lifecycle.py`.

It creates collaborators and hands them to each other; it decides nothing about a call. Settlement keys live in `SettlementServices` only.
"""

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp

from tollway import __version__
from tollway.app.page_wiring import make_page_renderer, page_routers
from tollway.app.runtime import BackgroundTaskGroup, RandomPool, ticks_ms
from tollway.app.webhooks import WebhookServices
from tollway.chain.networks import ChainRules
from tollway.chain.nodes import ChainsWithNodes, read_head_times
from tollway.chain.port import ChainReader
from tollway.config.settings import Settings
from tollway.gateway.access import AccessControl
from tollway.gateway.authorization_payment import AuthorizationRail
from tollway.gateway.call_observer import CallObserver
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
from tollway.identity.authenticator import Authenticator
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.signatures import ReceiptSigner, SignatureVerifier
from tollway.identity.siwe import PublicOrigin, parse_origin
from tollway.identity.viewers import BookAccess
from tollway.ids import Address, ChainId, ListingId
from tollway.ledger.ledger import GasLedger, Ledger
from tollway.limits import Limits
from tollway.money import Asset
from tollway.observability.background import BackgroundTasks, TaskName, run_all
from tollway.observability.call_trace import TraceSampler
from tollway.outbound.client import HttpClient
from tollway.outbound.dns import TxtRecords
from tollway.outbound.probes import OwnershipChecker
from tollway.payments.facilitator import FacilitatorClient, HttpFacilitatorTransport
from tollway.payments.gas import NO_METRICS, GasBudget, SettlementMetrics
from tollway.payments.held_calls import HeldCalls
from tollway.payments.mpp import Challenger
from tollway.payments.receipts import ReceiptPoller
from tollway.payments.settlement import Orphans, Settlement
from tollway.payments.settlement_recovery import SettlementRecovery
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.transaction_lookup import TransactionStatusReader
from tollway.payments.transactions import TransactionReplacer
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.draft import DraftRules
from tollway.registry.ownership import Challenge, Method
from tollway.registry.ownership_recheck import OwnershipRecheck
from tollway.registry.quality import QualityTally
from tollway.registry.quality_recorder import REFRESH_INTERVAL_S, QualityRecorder
from tollway.storage.accounts.identity_store import SqlPageSessions
from tollway.storage.catalog.reputation_store import OwnershipStore, QualityStore
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.leadership import Duty, Leadership
from tollway.storage.ledger.closed_periods import ClosedPeriods
from tollway.storage.ledger.idempotency import ResponseStore
from tollway.storage.ledger.recovery import read_shared_clock
from tollway.web.api.auth_routes import (
    make_challenge,
    make_wallet_dependency,
    make_wallet_quota,
    signin_router,
    to_signed_request,
)
from tollway.web.api.catalog_routes import catalog_router
from tollway.web.api.context import WebContext
from tollway.web.api.discovery_routes import bazaar_router, discovery_router
from tollway.web.api.exports import export_router
from tollway.web.api.history_routes import history_router, x402_history_router
from tollway.web.api.idempotent_create import IdempotentCreate
from tollway.web.api.listing_edits import make_endpoint_check
from tollway.web.api.listing_json import IsOffered, ListingEncoder, is_never_offered
from tollway.web.api.listing_routes import listing_router
from tollway.web.api.mcp import mcp_router
from tollway.web.api.network_routes import network_router
from tollway.web.api.ownership_routes import ownership_router
from tollway.web.api.provider_documents import ProviderDocuments
from tollway.web.api.receipt_routes import receipt_router
from tollway.web.api.site_routes import (
    did_router,
    health_router,
    key_directory_router,
    site_router,
)
from tollway.web.api.sums_routes import sums_router
from tollway.web.api.trial_routes import trial_router
from tollway.web.api.viewer_routes import viewer_router
from tollway.web.api.webhook_routes import webhook_router
from tollway.web.calls.gateway_app import GatewayApp
from tollway.web.calls.gateway_traces import StartTrace, make_start_trace
from tollway.web.calls.payment_required import PaymentRequiredRenderer
from tollway.web.http.admission import SignInRateLimit
from tollway.web.http.app import build_app
from tollway.web.http.book_turns import BookTurns
from tollway.web.http.middleware import is_trusted_peer, parse_proxies, read_client_address, read_request_id
from tollway.web.http.problems import status_of
from tollway.web.pages.page_problems import ProblemPages

if TYPE_CHECKING:  # the app builds this module's objects
    from tollway.app.lifecycle import App

PRUNE_INTERVAL_S = 300.0


class SettlementServices:
    """`settlement_rules`: of the networks that accept authorisations."""

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
        tasks.start_periodic(TaskName.RESPONSE_PRUNING, PRUNE_INTERVAL_S, self._prune)

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


class AsgiBuilder:
    """Builds once. `context`: the collaborators of the routes."""

    def __init__(self, app: "App", *, origin: PublicOrigin, now_ms: Callable[[], int]) -> None:
        self._app = app
        self._origin = origin
        self._now_ms = now_ms
        self._random = RandomPool()
        self._settings = settings = app.settings
        self._limits = settings.limits
        keys = [
            key.get_secret_value() for key in settings.secret_keys
        ]  # `ensure_secret_key` made the first one
        self._receipt_signers = [ReceiptSigner.derive(key) for key in keys]
        self._receipt_signer = self._receipt_signers[0]
        self._signer = UpstreamSigner.derive(keys)
        self._networks = ClientNetworks.derive(keys)
        self._mpp_challenger = make_mpp_challenger(keys, origin) if settings.mpp else None
        self._pages = make_page_renderer(settings, app.rules, origin=origin)
        self._problem_pages = None if self._pages is None else ProblemPages(self._pages)
        self._authenticator = Authenticator(
            app.sessions,
            app.sign_in,
            origin=origin,
            limits=self._limits,
            now_ms=now_ms,
            rate_limiter=app.rate_limiter,
        )
        self.context = self._make_context()

    def build(self) -> ASGIApp:
        app, settings, context = self._app, self._settings, self.context
        return build_app(
            call_app=context.call_app,
            routers=[
                listing_router(context),
                history_router(context),
                export_router(context),
                receipt_router(context),
                x402_history_router(context),
                sums_router(context),
                viewer_router(context),
                bazaar_router(context),
                discovery_router(context),
                mcp_router(context),
                signin_router(context),
                health_router(app.check_ready, app.check_traffic, has_pages=context.has_pages),
                ownership_router(context),
                trial_router(context),
                webhook_router(context),
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
                site_router(context),
                network_router(context),
                catalog_router(context),
                *self._page_routers(),
            ],
            public_url=settings.public_url,
            limits=self._limits,
            clock=time.monotonic,
            entropy=secrets.token_bytes,
            shedder=app.shedder,
            book_turns=context.book_turns,
            challenge=make_challenge(
                app.sign_in, context.sign_in_limit, origin=self._origin, chain_ids=tuple(app.rules)
            ),
            metrics=app.metrics,
            trusted_proxies=settings.trusted_proxies,
            problem_pages=self._problem_pages,
        )

    def _page_routers(self) -> list[Router]:
        if self._pages is None:
            return []
        sessions = SqlPageSessions(self._app.database)
        return page_routers(self.context, self._pages, sessions=sessions, viewers=self._app.viewers)

    def _make_context(self) -> WebContext:
        app, settings, limits = self._app, self._settings, self._limits
        settlement, reputation = app.settlement_services.settlement, app.reputation_services
        allowed = {"x402": settings.x402, "mpp": settings.mpp}
        settled_rails = {rail: settlement.is_offered for rail, is_allowed in allowed.items() if is_allowed}
        encoder = self._make_listing_encoder(settled_rails.get("x402", is_never_offered))
        return WebContext(
            public_url=settings.public_url,
            origin=str(self._origin),
            version=__version__,
            contact=settings.contact,
            limits=limits,
            allow_private=settings.allow_private_endpoints,
            has_pages=settings.web_pages,
            is_bound_required=settings.require_bound_signature,
            allowlist=settings.allowlist if settings.registration == "allowlist" else None,
            mcp_origins=settings.mcp_origins,
            now_ms=self._now_ms,
            shared_ms=app.ledger.shared_ms,
            ticks_ms=ticks_ms,
            clock=time.monotonic,
            entropy=secrets.token_bytes,
            authenticate=make_wallet_dependency(
                self._authenticator,
                body_bytes_max=limits.control_body_bytes_max,
                quota=make_wallet_quota(limits=limits, rate_limiter=app.rate_limiter),
            ),
            is_session_open=self._is_session_open,
            sign_in=app.sign_in,
            sign_in_limit=SignInRateLimit(limits=limits, rate_limiter=app.rate_limiter),
            rate_limiter=app.rate_limiter,
            find_block=app.moderation.find_block,
            rules=app.rules,
            profiles={network.rules.chain_id: network.profile for network in settings.networks},
            find_asset=self._find_asset,
            away_s=app.node_health.away_s,
            settled_rails=settled_rails,
            withdrawn_since_ms=lambda: settlement.withdrawn_since_ms,
            is_mpp_offered=settled_rails.get("mpp", is_never_offered),
            look_up_transaction=TransactionStatusReader(app.chains, quota=app.call_limits).read_status,
            catalog=app.catalog,
            encoder=encoder,
            quality=reputation.quality,
            draft_rules=self._make_draft_rules(encoder.assets),
            creations=IdempotentCreate(app.creations, limits=limits, entropy=secrets.token_bytes),
            documents=ProviderDocuments(app.fetcher.fetch_document),
            check_endpoint=app.http_client.check_endpoint,
            find_addresses=app.http_client.find_addresses,
            is_unprotected=app.fetcher.is_unprotected,
            read_heads=partial(read_head_times, app.chains),
            find_owner=reputation.ownerships.find_owner if settings.require_ownership else None,
            ownerships=reputation.ownerships,
            ownership_checker=reputation.checker,
            trials=self._make_trials(),
            call_app=self._gateway_app(),
            call_history=app.call_history,
            payment_ledger=app.payments,
            period_books=app.period_books,
            held_calls=app.settlement_services.held_calls,
            book_access=BookAccess(
                app.viewers, limits=limits, now_ms=self._now_ms, rate_limiter=app.rate_limiter
            ),
            book_turns=BookTurns(),
            receipt_signer=self._receipt_signer,
            webhooks=app.webhook_services.store,
        )

    def _make_start_trace(self) -> StartTrace | None:
        sampler, proxies = self._app.trace_sampler, parse_proxies(self._settings.trusted_proxies)
        if sampler is None:
            return None
        return make_start_trace(sampler, lambda scope: is_trusted_peer(scope, proxies))

    def _pipeline(self) -> CallPipeline:
        app, settings, limits = self._app, self._settings, self._limits
        receipts = ReceiptWriter(
            public_url=settings.public_url, receipt_signer=self._receipt_signer, now_ms=self._now_ms
        )
        idempotency = Idempotency(
            ledger=app.ledger,
            stored_responses=app.settlement_services.stored_responses,
            rules=app.rules,
            limits=limits,
            receipts=receipts,
            public_url=settings.public_url,
            now_ms=self._now_ms,
            networks=self._networks,
            prove_wallet=self._authenticate_caller,
        )
        clock, access = self._make_clock(), self._make_access()
        transactions = TransactionRail(
            ledger=app.ledger,
            transaction_verifier=app.transaction_verifier,
            idempotency=idempotency,
            limits=limits,
            origin=str(self._origin),
            is_bound_required=settings.require_bound_signature,
            clock=clock,
        )
        authorizations = AuthorizationRail(
            ledger=app.ledger,
            settlement=app.settlement_services.settlement,
            idempotency=idempotency,
            receipts=receipts,
            challenger=self._mpp_challenger,
            rules=app.rules,
            limits=limits,
            networks=self._networks,
            clock=clock,
            is_x402=settings.x402,
        )
        return CallPipeline(
            host=self._origin.authority,
            allow_private=settings.allow_private_endpoints,
            catalog=app.catalog,
            rails=(transactions, authorizations),
            free_rail=FreeRail(ledger=app.ledger, access=access, limits=limits, clock=clock),
            idempotency=idempotency,
            access=access,
            decisions=DecisionMemory(limits=limits),
            observer=CallObserver(
                app.metrics.call_seconds,
                call_log=settings.call_log,
                log_wallets=settings.log_wallets,
                status_of=status_of,
                is_debug=lambda: app.is_debug,
            ),
            proxy=self._make_proxy(idempotency.store_response),
            limits=limits,
            find_requirements=authorizations.find_requirements,
            is_verified=self._find_verification(),
        )

    def _make_clock(self) -> ClockAndEntropy:
        return ClockAndEntropy(now_ms=self._now_ms, entropy=self._random.take_bytes)

    def _make_access(self) -> AccessControl:
        app = self._app
        return AccessControl(
            app.call_limits,
            limits=self._limits,
            find_block=app.moderation.find_block,
            now_ms=self._now_ms,
        )

    def _find_verification(self) -> Callable[[ListingId], Awaitable[bool]] | None:
        """Whether the ownership of a listing is proved; None where the operator does not require the proof."""
        ownerships = self._app.reputation_services.ownerships
        return ownerships.is_verified if self._settings.require_ownership else None

    def _make_proxy(self, store_response: StoreResponse) -> Proxy:
        app = self._app
        return Proxy(
            http_client=app.http_client,
            store_response=store_response,
            limits=self._limits,
            now_ms=self._now_ms,
            public_url=self._settings.public_url,
            name=self._origin.authority,
            signer=self._signer,
            entropy=self._random.take_bytes,
            observe_upstream_s=app.metrics.upstream_seconds.observe,
            tally=app.reputation_services.tally,
            breaker=app.reputation_services.breaker,
        )

    async def _authenticate_caller(self, request: SignedRequest) -> Address:
        return (await self._authenticator.authenticate_call(request)).address

    async def _is_session_open(self, request: Request) -> bool:
        return await self._authenticator.is_session_open(to_signed_request(request, body=b""))

    def _gateway_app(self) -> GatewayApp:
        app, settings, limits = self._app, self._settings, self._limits
        proxies = parse_proxies(settings.trusted_proxies)
        return GatewayApp(
            self._pipeline(),
            payment_required=PaymentRequiredRenderer(
                app.rules,
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
            count_outcome=app.metrics.calls.add,
            count_refusal=app.metrics.refusals.add,
            start_trace=self._make_start_trace(),
            shedder=app.shedder,
            problem_pages=self._problem_pages,
        )

    def _make_draft_rules(self, assets: tuple[Asset, ...]) -> DraftRules:
        allow_private = self._settings.allow_private_endpoints
        rules = self._app.rules
        return DraftRules(
            assets=assets,
            main_networks=frozenset(chain_id for chain_id, one in rules.items() if one.kind == "main"),
            allow_private_endpoints=allow_private,
            check_endpoint=make_endpoint_check(allow_private=allow_private),
        )

    def _make_trials(self) -> TrialCalls:
        return TrialCalls(
            host=self._origin.authority,
            allow_private=self._settings.allow_private_endpoints,
            proxy=self._make_proxy(store_nothing),
            ledger=self._app.ledger,
            access=self._make_access(),
            limits=self._limits,
            clock=self._make_clock(),
            is_verified=self._find_verification(),
        )

    def _make_listing_encoder(self, is_offered: IsOffered) -> ListingEncoder:
        rules = self._app.rules
        return ListingEncoder(
            public_url=self._settings.public_url,
            assets=tuple(asset for one in rules.values() for asset in one.assets),
            confirmations_for=lambda asset, units: rules[asset.chain_id].confirmations_for(asset, units),
            is_offered=is_offered,
        )

    def _find_asset(self, chain_id: ChainId, key: str) -> Asset | None:
        assets = self._app.rules[chain_id].assets if chain_id in self._app.rules else ()
        return next((asset for asset in assets if asset.key == key), None)
