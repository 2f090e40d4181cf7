"""Builds the application of the public address from the parts of the gateway.

It creates the collaborators of the routes and of a call, and hands them to each other; it decides nothing about a call.
"""

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp

from tollway import __version__
from tollway.app.page_wiring import make_page_renderer, page_routers
from tollway.app.parts import GatewayParts
from tollway.app.runtime import RandomPool, now_ms, ticks_ms
from tollway.chain.networks import find_asset
from tollway.chain.nodes import read_head_times
from tollway.gateway.access import AccessControl
from tollway.gateway.authorization_payment import AuthorizationRail
from tollway.gateway.call_observer import CallObserver
from tollway.gateway.channel_offers import ChannelOffers, join_requirements
from tollway.gateway.channel_payment import ChannelRail
from tollway.gateway.decisions import DecisionMemory
from tollway.gateway.free_calls import FreeRail
from tollway.gateway.idempotency import ClientNetworks, Idempotency
from tollway.gateway.pipeline import CallPipeline
from tollway.gateway.proxy import Proxy
from tollway.gateway.rail import ClockAndEntropy, PaymentRail, StoreResponse
from tollway.gateway.receipts import ReceiptWriter
from tollway.gateway.request_signing import UpstreamSigner
from tollway.gateway.transaction_payment import TransactionRail
from tollway.gateway.trial import TrialCalls, store_nothing
from tollway.identity.authenticator import Authenticator
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.signatures import ReceiptSigner
from tollway.identity.siwe import PublicOrigin
from tollway.identity.viewers import BookAccess
from tollway.ids import Address, ListingId
from tollway.money import Asset, Price
from tollway.payments.channel_terms import has_channels
from tollway.payments.mpp import Challenger
from tollway.payments.pricing import OperationPrice
from tollway.payments.transaction_lookup import TransactionStatusReader
from tollway.registry.draft import DraftRules
from tollway.registry.listing import Listing
from tollway.storage.accounts.identity_store import SqlPageSessions
from tollway.web.api.auth_routes import (
    challenge_headers,
    make_wallet_dependency,
    make_wallet_quota,
    signin_router,
    to_signed_request,
)
from tollway.web.api.budget_routes import budget_router
from tollway.web.api.catalog_routes import catalog_router
from tollway.web.api.channel_routes import RefundParts, channel_router
from tollway.web.api.context import WebContext
from tollway.web.api.discovery_routes import bazaar_router, discovery_router
from tollway.web.api.exports import export_router
from tollway.web.api.history_routes import history_router, x402_history_router
from tollway.web.api.idempotent_create import IdempotentCreate
from tollway.web.api.listing_edits import make_endpoint_check
from tollway.web.api.listing_json import IsOffered, ListingEncoder, is_never_offered, read_channels
from tollway.web.api.listing_routes import listing_router
from tollway.web.api.mcp import mcp_router
from tollway.web.api.misdirected import misdirected_router
from tollway.web.api.network_routes import network_router
from tollway.web.api.ownership_routes import ownership_router
from tollway.web.api.provider_documents import ProviderDocuments
from tollway.web.api.receipt_routes import receipt_router
from tollway.web.api.refund_routes import refund_router
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
from tollway.web.http.middleware import is_trusted_peer, parse_proxies, read_client_address, read_request_id
from tollway.web.http.problems import status_of
from tollway.web.http.read_turns import ReadTurns
from tollway.web.pages.demo_wallet import DemoWallet
from tollway.web.pages.page_problems import ProblemPages

CheckReady = Callable[[], Awaitable[Mapping[str, bool]]]
"""The checks of `/readyz` by name: True where all is well."""


class AsgiBuilder:
    """Builds once. `context`: the collaborators of the routes. `call_observer`: of all calls."""

    def __init__(
        self,
        parts: GatewayParts,
        *,
        check_ready: CheckReady,
        check_traffic: CheckReady,
        demo_wallet: DemoWallet | None,
        is_control: bool = False,
    ) -> None:
        """`is_control`: of a control worker, which serves no calls."""
        self._is_control = is_control
        self._parts = parts
        self._check_ready, self._check_traffic = check_ready, check_traffic
        self._origin = origin = parts.origin
        self._random = RandomPool()
        self._settings = settings = parts.settings
        self._limits = settings.limits
        self.call_observer = CallObserver(
            parts.metrics.call_seconds,
            call_log=settings.call_log,
            log_wallets=settings.log_wallets,
            status_of=status_of,
        )
        keys = [
            key.get_secret_value() for key in settings.secret_keys
        ]  # `ensure_secret_key` made the first one
        self._receipt_signers = [ReceiptSigner.derive(key) for key in keys]
        self._receipt_signer = self._receipt_signers[0]
        self._signer = UpstreamSigner.derive(keys)
        self._networks = ClientNetworks.derive(keys)
        self._mpp_challenger = make_mpp_challenger(keys, origin) if settings.mpp else None
        self._demo_wallet = demo_wallet
        self._pages = make_page_renderer(settings, parts.rules, origin=origin, demo_wallet=demo_wallet)
        self._problem_pages = None if self._pages is None else ProblemPages(self._pages)
        self._authenticator = Authenticator(
            parts.sessions,
            parts.sign_in,
            origin=origin,
            limits=self._limits,
            now_ms=now_ms,
            rate_limiter=parts.rate_limiter,
        )
        self._channel_rail: ChannelRail | None = None  # `_pipeline` makes it
        self.context = self._make_context()

    def build(self) -> ASGIApp:
        parts, settings, context = self._parts, self._settings, self.context
        return build_app(
            call_app=None if self._is_control else context.call_app,
            routers=[
                *self._routers_of_payments(),
                listing_router(context),
                history_router(context),
                export_router(context),
                receipt_router(context),
                refund_router(context),
                x402_history_router(context),
                sums_router(context),
                viewer_router(context),
                budget_router(context),
                bazaar_router(context),
                discovery_router(context),
                signin_router(context),
                health_router(self._check_ready, self._check_traffic, has_pages=context.has_pages),
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
                    now_ms=now_ms,
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
            shedder=parts.shedder,
            read_turns=context.read_turns,
            challenge=partial(
                challenge_headers,
                sign_in=parts.sign_in,
                rate_limit=context.sign_in_limit,
                origin=self._origin,
                chain_ids=tuple(parts.rules),
            ),
            metrics=parts.metrics,
            trusted_proxies=settings.trusted_proxies,
            problem_pages=self._problem_pages,
        )

    def _routers_of_payments(self) -> list[Router]:
        """What pays or settles beside the calls. A control worker refuses it."""
        if self._is_control:
            return [misdirected_router()]
        channels = self._parts.settlement_services.channels
        if channels is None:
            return [mcp_router(self.context)]
        parts = RefundParts(ledger=channels.ledger, networks=channels.networks, refunds=channels.refunds)
        return [mcp_router(self.context), channel_router(self.context, parts)]

    def _page_routers(self) -> list[Router]:
        if self._pages is None:
            return []
        sessions = SqlPageSessions(self._parts.database)
        return page_routers(
            self.context,
            self._pages,
            sessions=sessions,
            viewers=self._parts.viewers,
            demo_wallet=self._demo_wallet,
        )

    def _make_context(self) -> WebContext:
        parts, settings, limits = self._parts, self._settings, self._limits
        settlement, reputation = parts.settlement_services.settlement, parts.reputation_services
        allowed = {"x402": settings.x402, "mpp": settings.mpp}
        settled_rails = {rail: settlement.is_offered for rail, is_allowed in allowed.items() if is_allowed}
        if parts.settlement_services.channels is not None:
            settled_rails["channel"] = self._is_deposit_offered
        encoder = self._make_listing_encoder(settled_rails.get("x402", is_never_offered))
        return WebContext(
            public_url=settings.public_url,
            origin=str(self._origin),
            version=__version__,
            operator=settings.operator,
            limits=limits,
            allow_private=settings.allow_private_endpoints,
            has_pages=settings.web_pages,
            is_bound_required=settings.require_bound_signature,
            allowlist=settings.allowlist if settings.registration == "allowlist" else None,
            mcp_origins=settings.mcp_origins,
            now_ms=now_ms,
            shared_ms=parts.ledger.shared_ms,
            ticks_ms=ticks_ms,
            clock=time.monotonic,
            entropy=secrets.token_bytes,
            authenticate=make_wallet_dependency(
                self._authenticator,
                body_bytes_max=limits.control_body_bytes_max,
                quota=make_wallet_quota(limits=limits, rate_limiter=parts.rate_limiter),
            ),
            is_session_open=self._is_session_open,
            sign_in=parts.sign_in,
            sign_in_limit=SignInRateLimit(limits=limits, rate_limiter=parts.rate_limiter),
            rate_limiter=parts.rate_limiter,
            find_block=parts.moderation.find_block,
            rules=parts.rules,
            profiles={network.rules.chain_id: network.profile for network in settings.networks},
            find_asset=partial(find_asset, parts.rules),
            away_s=parts.node_health.away_s,
            settled_rails=settled_rails,
            withdrawn_since_ms=lambda: settlement.withdrawn_since_ms,
            is_mpp_offered=settled_rails.get("mpp", is_never_offered),
            look_up_transaction=TransactionStatusReader(parts.chains, quota=parts.call_limits).read_status,
            catalog=parts.catalog,
            encoder=encoder,
            quality=reputation.quality,
            draft_rules=self._make_draft_rules(encoder.assets),
            creations=IdempotentCreate(parts.creations, limits=limits, entropy=secrets.token_bytes),
            documents=ProviderDocuments(parts.fetcher.fetch_document),
            check_endpoint=parts.http_client.check_endpoint,
            find_addresses=parts.http_client.find_addresses,
            is_unprotected=parts.fetcher.is_unprotected,
            read_heads=partial(read_head_times, parts.chains),
            requires_ownership=settings.require_ownership,
            ownerships=reputation.ownerships,
            ownership_checker=reputation.checker,
            trials=self._make_trials(),
            call_app=self._gateway_app(),
            call_history=parts.call_history,
            payment_ledger=parts.payments,
            period_books=parts.period_books,
            held_calls=parts.settlement_services.held_calls,
            refunds=parts.refunds,
            book_access=BookAccess(
                parts.viewers, parts.budgets, limits=limits, now_ms=now_ms, rate_limiter=parts.rate_limiter
            ),
            budgets=parts.budgets,
            read_turns=ReadTurns(),
            receipt_signer=self._receipt_signer,
            webhooks=parts.webhook_services.store,
        )

    def _make_start_trace(self) -> StartTrace | None:
        sampler, proxies = self._parts.trace_sampler, parse_proxies(self._settings.trusted_proxies)
        if sampler is None:
            return None
        return make_start_trace(sampler, lambda scope: is_trusted_peer(scope, proxies))

    def _pipeline(self) -> CallPipeline:
        parts, settings, limits = self._parts, self._settings, self._limits
        receipts = ReceiptWriter(
            public_url=settings.public_url, receipt_signer=self._receipt_signer, now_ms=now_ms
        )
        idempotency = Idempotency(
            ledger=parts.ledger,
            stored_responses=parts.settlement_services.stored_responses,
            rules=parts.rules,
            limits=limits,
            receipts=receipts,
            public_url=settings.public_url,
            now_ms=now_ms,
            networks=self._networks,
            prove_wallet=self._authenticate_caller,
        )
        clock, access = self._make_clock(), self._make_access()
        transactions = TransactionRail(
            ledger=parts.ledger,
            transaction_verifier=parts.transaction_verifier,
            idempotency=idempotency,
            limits=limits,
            origin=str(self._origin),
            is_bound_required=settings.require_bound_signature,
            clock=clock,
        )
        authorizations = AuthorizationRail(
            ledger=parts.ledger,
            settlement=parts.settlement_services.settlement,
            idempotency=idempotency,
            receipts=receipts,
            challenger=self._mpp_challenger,
            rules=parts.rules,
            limits=limits,
            networks=self._networks,
            clock=clock,
            is_x402=settings.x402,
            has_channels=parts.settlement_services.channels is not None,
        )
        channels = self._make_channel_rail(idempotency, clock)
        find_requirements = authorizations.find_requirements
        rails: tuple[PaymentRail, ...] = (transactions, authorizations)
        self._channel_rail = channels
        if channels is not None:
            find_requirements = partial(join_requirements, authorizations, channels.offers)
            rails = (transactions, channels, authorizations)
        return CallPipeline(
            host=self._origin.authority,
            allow_private=settings.allow_private_endpoints,
            catalog=parts.catalog,
            rails=rails,
            free_rail=self._make_free_rail(idempotency, access, clock),
            idempotency=idempotency,
            access=access,
            decisions=DecisionMemory(limits=limits),
            observer=self.call_observer,
            proxy=self._make_proxy(idempotency.store_response),
            limits=limits,
            find_requirements=find_requirements,
            is_verified=self._find_verification(),
        )

    def _make_channel_rail(self, idempotency: Idempotency, clock: ClockAndEntropy) -> ChannelRail | None:
        parts, services = self._parts, self._parts.settlement_services
        channels = services.channels
        if channels is None:
            return None
        return ChannelRail(
            ledger=parts.ledger,
            channel_ledger=channels.ledger,
            offers=ChannelOffers(
                chains=channels.networks,
                settlement=services.settlement,
                rules=parts.rules,
                channel_rules=channels.networks.rules,
                limits=self._limits,
            ),
            idempotency=idempotency,
            limits=self._limits,
            clock=clock,
            public_url=self._settings.public_url,
        )

    def _make_clock(self) -> ClockAndEntropy:
        return ClockAndEntropy(now_ms=now_ms, entropy=self._random.take_bytes)

    def _make_access(self) -> AccessControl:
        parts = self._parts
        return AccessControl(
            parts.call_limits,
            limits=self._limits,
            find_block=parts.moderation.find_block,
            now_ms=now_ms,
            bindings=parts.budgets,
        )

    def _find_verification(self) -> Callable[[ListingId], Awaitable[bool]] | None:
        """Whether the ownership of a listing is proved; None where the operator does not require the proof."""
        ownerships = self._parts.reputation_services.ownerships
        return ownerships.is_verified if self._settings.require_ownership else None

    def _make_proxy(self, store_response: StoreResponse) -> Proxy:
        parts = self._parts
        return Proxy(
            http_client=parts.http_client,
            store_response=store_response,
            limits=self._limits,
            now_ms=now_ms,
            public_url=self._settings.public_url,
            name=self._origin.authority,
            signer=self._signer,
            entropy=self._random.take_bytes,
            observe_upstream_s=parts.metrics.upstream_seconds.observe,
            tally=parts.reputation_services.tally,
            breaker=parts.reputation_services.breaker,
            count_usage=parts.metrics.metered_responses.add,
        )

    def _make_free_rail(
        self, idempotency: Idempotency, access: AccessControl, clock: ClockAndEntropy
    ) -> FreeRail:
        return FreeRail(
            ledger=self._parts.ledger,
            free_calls=self._parts.free_calls,
            idempotency=idempotency,
            access=access,
            prove_wallet=self._authenticate_caller,
            limits=self._limits,
            clock=clock,
        )

    async def _authenticate_caller(self, request: SignedRequest) -> Address:
        return (await self._authenticator.authenticate_call(request)).address

    async def _is_session_open(self, request: Request) -> bool:
        return await self._authenticator.is_session_open(to_signed_request(request, body=b""))

    def _gateway_app(self) -> GatewayApp:
        parts, settings, limits = self._parts, self._settings, self._limits
        return GatewayApp(
            self._pipeline(),
            payment_required=PaymentRequiredRenderer(
                parts.rules,
                public_url=settings.public_url,
                challenger=self._mpp_challenger,
                is_x402=settings.x402,
                receipt_signer=self._receipt_signer,
                offer_valid_s=limits.price_memory_s,
                now_ms=now_ms,
                entropy=self._random.take_bytes,  # the salt is not secret; it makes each challenge unique
            ),
            limits=limits,
            public_url=settings.public_url,
            now_ms=now_ms,
            read_request_id=partial(read_request_id, entropy=self._random.take_bytes),
            read_client_address=partial(
                read_client_address, trusted_proxies=parse_proxies(settings.trusted_proxies)
            ),
            count_outcome=parts.metrics.calls.add,
            count_refusal=parts.metrics.refusals.add,
            start_trace=self._make_start_trace(),
            shedder=parts.shedder,
            problem_pages=self._problem_pages,
        )

    def _make_draft_rules(self, assets: tuple[Asset, ...]) -> DraftRules:
        allow_private = self._settings.allow_private_endpoints
        rules = self._parts.rules
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
            ledger=self._parts.ledger,
            access=self._make_access(),
            limits=self._limits,
            clock=self._make_clock(),
            is_verified=self._find_verification(),
        )

    def _make_listing_encoder(self, is_offered: IsOffered) -> ListingEncoder:
        rules = self._parts.rules
        return ListingEncoder(
            public_url=self._settings.public_url,
            assets=tuple(asset for one in rules.values() for asset in one.assets),
            confirmations_for=lambda asset, units: rules[asset.chain_id].confirmations_for(asset, units),
            is_offered=is_offered,
            find_channels=self._find_channels,
        )

    def _find_channels(self, listing: Listing, price: Price) -> Mapping[Asset, Mapping[str, Any]]:
        if self._channel_rail is None:
            return {}
        terms = listing.current_terms(since_ms=listing.updated_ms)
        priced = OperationPrice(terms=terms, price=price)
        return read_channels(self._channel_rail.offers.find_requirements(priced, listing))

    def _is_deposit_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        """Whether a deposit of this value could open a channel now."""
        channels = self._parts.settlement_services.channels
        return (
            channels is not None
            and has_channels(asset)
            and channels.networks.is_available(asset.chain_id)
            and self._parts.settlement_services.settlement.is_offered(asset, units, listing_id)
        )


def make_mpp_challenger(secret_keys: Sequence[bytes], origin: PublicOrigin) -> Challenger:
    """The MPP challenger. All gateways of one public URL make and accept the same challenges; the first key makes them."""
    secret, *others = [hmac.digest(key, b"tollway mpp challenge", "sha256") for key in secret_keys]
    return Challenger(secret=secret, realm=origin.authority, other_secrets=tuple(others))
