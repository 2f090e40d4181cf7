"""The door as it is wired: from the rooms to the ASGI application. The second half of the composition root.

It creates what only the door needs, and opens, closes and runs nothing.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache

from starlette.requests import Request
from starlette.types import ASGIApp

from tollway import __version__
from tollway.chain.rpc import RpcReader
from tollway.chain.rules import ChainRules
from tollway.clocks import ticks_ms
from tollway.discovery.site_openapi import Site
from tollway.entropy import RandomPool
from tollway.gateway.cashier import AuthorizationPayment
from tollway.gateway.forward import Proxy
from tollway.gateway.meters import CallRateLimits
from tollway.gateway.replays import ClientNetworks
from tollway.gateway.serve import CallPipeline, GatewayName
from tollway.gateway.upstream_signature import UpstreamSigner
from tollway.identifiers import Address, ChainId, ListingId
from tollway.identity.authenticator import Authenticator, Identity
from tollway.identity.front_desk import SignIn
from tollway.identity.http_signature import SignedRequest
from tollway.identity.notary import ReceiptSigner
from tollway.identity.public_origin import PublicOrigin
from tollway.money import Asset
from tollway.outbound.dialer import HttpClient
from tollway.outbound.inquirer import Fetcher
from tollway.payments.sighting import TransactionStatusReader
from tollway.payments.till import TransactionVerifier
from tollway.rates import RateLimiter
from tollway.registry.draft_rules import DraftRules
from tollway.reputation import ReputationServices
from tollway.settings import Settings
from tollway.storage.book_store import LedgerStore
from tollway.storage.catalog_store import CatalogStore
from tollway.storage.creation_store import CreationStore
from tollway.storage.moderation_store import ModerationStore
from tollway.storage.session_store import SqlSessions
from tollway.telemetry import Metrics
from tollway.treasury import SettlementServices, make_mpp_challenger
from tollway.web.app import build_app
from tollway.web.authentication import WalletDependency, make_challenge, make_wallet_dependency
from tollway.web.bazaar_routes import BazaarServices, bazaar_router
from tollway.web.call_routes import GatewayApp
from tollway.web.creation_desk import IdempotentCreate
from tollway.web.did_routes import did_router
from tollway.web.discovery_routes import DocumentServices, discovery_router
from tollway.web.health_routes import health_router
from tollway.web.history_routes import history_router, x402_history_router
from tollway.web.key_directory_routes import key_directory_router
from tollway.web.listing_routes import ListingServices, listing_router, make_endpoint_check
from tollway.web.listing_wire import ListingEncoder
from tollway.web.load_gauge import LoadShedder
from tollway.web.mcp_desk import McpServices
from tollway.web.mcp_routes import mcp_router
from tollway.web.middleware import parse_proxies, read_client_address, read_request_id
from tollway.web.nonce_meter import SignInRateLimit
from tollway.web.ownership_routes import OwnershipServices, ownership_router
from tollway.web.shop_window import FeaturedOperations
from tollway.web.signin_routes import signin_router
from tollway.web.site_routes import SiteServices, site_router
from tollway.web.terms_wire import PaymentRequiredRenderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The collaborators that `App` has built; they are open when the first request comes."""

    settings: Settings
    rules: dict[ChainId, ChainRules]
    catalog: CatalogStore
    creations: CreationStore
    ledger: LedgerStore
    sessions: SqlSessions
    moderation: ModerationStore
    chains: RpcReader
    http_client: HttpClient
    fetcher: Fetcher
    call_limits: CallRateLimits
    rate_limiter: RateLimiter
    transaction_verifier: TransactionVerifier
    settlement_services: SettlementServices
    reputation_services: ReputationServices
    sign_in: SignIn
    metrics: Metrics
    shedder: LoadShedder
    check_ready: Callable[[], Awaitable[Mapping[str, bool]]]


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
            key.reveal() for key in services.settings.secret_keys
        ]  # ensure_secret_key made one where there was none
        self._receipt_signers = [ReceiptSigner.derive(key) for key in keys]
        self._receipt_signer = self._receipt_signers[0]
        self._signer = UpstreamSigner.derive(keys)
        self._networks = ClientNetworks.derive(keys)
        self._mpp_challenger = make_mpp_challenger(keys, origin) if services.settings.mpp else None
        self._authenticator = Authenticator(
            services.sessions,
            services.sign_in,
            origin=origin,
            limits=self._limits,
            now_ms=now_ms,
            rate_limiter=services.rate_limiter,
        )

    def build(self) -> ASGIApp:
        services, settings, limits = self._services, self._settings, self._limits
        wallet = make_wallet_dependency(self._authenticator, body_bytes_max=limits.control_body_bytes_max)
        sign_in_rate_limit = SignInRateLimit(limits=limits, rate_limiter=services.rate_limiter)
        calls, listing_services = self._gateway_app(), self._listing_services(wallet)
        return build_app(
            call_app=calls,
            routers=[
                listing_router(listing_services),
                history_router(
                    call_history=services.ledger,
                    ledger=services.ledger,
                    wallet=wallet,
                    lookup=TransactionStatusReader(services.chains, quota=services.call_limits).read_status,
                    find_asset=self._find_asset,
                    now_ms=self._now_ms,
                ),
                x402_history_router(
                    call_history=services.ledger,
                    wallet=wallet,
                    find_asset=self._find_asset,
                    now_ms=self._now_ms,
                ),
                bazaar_router(self._bazaar_services()),
                discovery_router(self._document_services()),
                mcp_router(self._mcp_services(calls, listing_services.encoder, wallet)),
                signin_router(services.sign_in, sign_in_rate_limit, limits=limits),
                health_router(services.check_ready),
                ownership_router(self._ownership_services(wallet)),
                did_router(
                    authority=self._origin.authority, signers=[one.address for one in self._receipt_signers]
                ),
                key_directory_router(
                    self._signer,
                    authority=self._origin.authority,
                    now_ms=self._now_ms,
                    entropy=self._random.take_bytes,
                ),
                site_router(self._site_services()),
            ],
            public_url=settings.public_url,
            limits=limits,
            clock=time.monotonic,
            entropy=secrets.token_bytes,
            shedder=services.shedder,
            challenge=make_challenge(
                services.sign_in, sign_in_rate_limit, origin=self._origin, chain_ids=tuple(services.rules)
            ),
            metrics=services.metrics,
            trusted_proxies=settings.trusted_proxies,
        )

    def _pipeline(self) -> CallPipeline:
        services, settings, limits = self._services, self._settings, self._limits
        return CallPipeline(
            name=GatewayName(
                origin=str(self._origin),
                host=self._origin.authority,
                allow_private=settings.allow_private_endpoints,
                is_bound_required=settings.require_bound_signature,
            ),
            catalog=services.catalog,
            ledger=services.ledger,
            transaction_verifier=services.transaction_verifier,
            authorizations=AuthorizationPayment(
                ledger=services.ledger,
                stored_responses=services.settlement_services.stored_responses,
                settlement=services.settlement_services.settlement,
                challenger=self._mpp_challenger,
                is_x402=settings.x402,
                receipt_signer=self._receipt_signer,
                networks=self._networks,
                prove_wallet=self._authenticate_caller,
                rules=services.rules,
                limits=limits,
                public_url=settings.public_url,
                now_ms=self._now_ms,
                entropy=self._random.take_bytes,
            ),
            proxy=Proxy(
                http_client=services.http_client,
                ledger=services.ledger,
                limits=limits,
                now_ms=self._now_ms,
                public_url=settings.public_url,
                name=self._origin.authority,
                signer=self._signer,
                entropy=self._random.take_bytes,
                observe_upstream_s=services.metrics.upstream_seconds.observe,
                tally=services.reputation_services.tally,
                breaker=services.reputation_services.breaker,
            ),
            call_limits=services.call_limits,
            limits=limits,
            is_blocked=services.moderation.is_blocked,
            now_ms=self._now_ms,
            entropy=self._random.take_bytes,
            is_verified=services.reputation_services.ownerships.is_verified
            if settings.require_ownership
            else None,
        )

    async def _authenticate_caller(self, request: SignedRequest) -> Address:
        return (await self._authenticator.authenticate_call(request)).address

    def _gateway_app(self) -> GatewayApp:
        services, settings, limits = self._services, self._settings, self._limits
        proxies = parse_proxies(settings.trusted_proxies)
        count = cache(services.metrics.calls.labels)  # outcomes are few
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
                entropy=self._random.take_bytes,  # a salt is no secret: it only makes a challenge one of its kind
            ),
            limits=limits,
            public_url=settings.public_url,
            now_ms=self._now_ms,
            request_id_of=lambda scope: read_request_id(scope["headers"], entropy=self._random.take_bytes),
            client_address_of=lambda scope: read_client_address(scope, proxies),
            count_outcome=lambda outcome: count(outcome).inc(),
            shedder=services.shedder,
        )

    def _ownership_services(self, wallet: Callable[[Request], Awaitable[Identity]]) -> OwnershipServices:
        services = self._services
        return OwnershipServices(
            catalog=services.catalog,
            ownerships=services.reputation_services.ownerships,
            checker=services.reputation_services.checker,
            authenticate=wallet,
            is_blocked=services.moderation.is_blocked,
            rate_limiter=services.rate_limiter,
            limits=self._limits,
            now_ms=self._now_ms,
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
            creations=IdempotentCreate(
                services.creations, limits=settings.limits, entropy=secrets.token_bytes
            ),
            is_blocked=services.moderation.is_blocked,
            allowlist=settings.allowlist if settings.registration == "allowlist" else None,
            now_ms=self._now_ms,
            entropy=secrets.token_bytes,
            rate_limiter=services.rate_limiter,
            is_unprotected=services.fetcher.is_unprotected,
            fetch_document=services.fetcher.fetch_document,
            find_owner=services.reputation_services.ownerships.find_owner
            if settings.require_ownership
            else None,
        )

    def _mcp_services(self, calls: ASGIApp, encoder: ListingEncoder, wallet: WalletDependency) -> McpServices:
        services, settings = self._services, self._settings
        return McpServices(
            catalog=services.catalog,
            encoder=encoder,
            call_history=services.ledger,
            call_app=calls,
            wallet=wallet,
            find_asset=self._find_asset,
            now_ms=self._now_ms,
            public_url=settings.public_url,
            origin=str(self._origin),
            body_bytes_max=self._limits.control_body_bytes_max,
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
            now_ms=self._now_ms,
            ticks_ms=ticks_ms,
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
