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
from tollway.entropy import Entropy
from tollway.gateway.cashier import Cashier
from tollway.gateway.forward import Passage
from tollway.gateway.meters import Meters
from tollway.gateway.replays import ClientNetworks
from tollway.gateway.serve import Gateway, GatewayName
from tollway.gateway.upstream_signature import UpstreamSigner
from tollway.identifiers import Address, ChainId, ListingId
from tollway.identity.authenticator import Authenticator, Identity
from tollway.identity.front_desk import FrontDesk
from tollway.identity.http_signature import SignedRequest
from tollway.identity.notary import Notary
from tollway.identity.public_origin import PublicOrigin
from tollway.money import Asset
from tollway.outbound.dialer import Dialer
from tollway.outbound.inquirer import Inquirer
from tollway.payments.sighting import Lookout
from tollway.payments.till import Till
from tollway.rates import Rates
from tollway.registry.draft_rules import DraftRules
from tollway.reputation import Reputation
from tollway.settings import Settings
from tollway.storage.book_store import BookStore
from tollway.storage.catalog_store import CatalogStore
from tollway.storage.creation_store import CreationStore
from tollway.storage.moderation_store import ModerationStore
from tollway.storage.session_store import SqlSessions
from tollway.telemetry import Metrics
from tollway.treasury import Treasury, make_challenger
from tollway.web.app import build_app
from tollway.web.authentication import Wallet, make_challenge, wallet_dependency
from tollway.web.bazaar_routes import BazaarDesk, bazaar_router
from tollway.web.call_routes import CallRoutes
from tollway.web.creation_desk import CreationDesk
from tollway.web.did_routes import did_router
from tollway.web.discovery_routes import DocumentDesk, discovery_router
from tollway.web.health_routes import health_router
from tollway.web.history_routes import history_router, x402_history_router
from tollway.web.key_directory_routes import key_directory_router
from tollway.web.listing_routes import ListingDesk, endpoint_judge, listing_router
from tollway.web.listing_wire import ListingShape
from tollway.web.load_gauge import LoadGauge
from tollway.web.mcp_desk import McpDesk
from tollway.web.mcp_routes import mcp_router
from tollway.web.middleware import parse_proxies, read_client_address, read_request_id
from tollway.web.nonce_meter import NonceMeter
from tollway.web.ownership_routes import OwnershipDesk, ownership_router
from tollway.web.shop_window import ShopWindow
from tollway.web.signin_routes import signin_router
from tollway.web.site_routes import SiteDesk, site_router
from tollway.web.terms_wire import TermsWire


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """What the house has opened, or will have when the first request comes."""

    settings: Settings
    rules: dict[ChainId, ChainRules]
    catalog: CatalogStore
    creations: CreationStore
    book: BookStore
    sessions: SqlSessions
    moderation: ModerationStore
    chains: RpcReader
    dialer: Dialer
    inquirer: Inquirer
    meters: Meters
    rates: Rates
    till: Till
    treasury: Treasury
    reputation: Reputation
    desk: FrontDesk
    metrics: Metrics
    gauge: LoadGauge
    check_ready: Callable[[], Awaitable[Mapping[str, bool]]]


class Frontage:
    """Built once, by the house."""

    def __init__(self, rooms: Rooms, *, origin: PublicOrigin, now_ms: Callable[[], int]) -> None:
        self._rooms = rooms
        self._origin = origin
        self._now_ms = now_ms
        self._names = Entropy()
        self._settings = rooms.settings
        self._limits = rooms.settings.limits
        keys = [key.reveal() for key in rooms.settings.secret_keys]  # the house made one where there was none
        self._notaries = [Notary.derive(key) for key in keys]
        self._notary = self._notaries[0]
        self._signer = UpstreamSigner.derive(keys)
        self._networks = ClientNetworks.derive(keys)
        self._challenger = make_challenger(keys, origin) if rooms.settings.mpp else None
        self._authenticator = Authenticator(
            rooms.sessions,
            rooms.desk,
            origin=origin,
            limits=self._limits,
            now_ms=now_ms,
            rates=rooms.rates,
        )

    def build(self) -> ASGIApp:
        rooms, settings, limits = self._rooms, self._settings, self._limits
        wallet = wallet_dependency(self._authenticator, body_bytes_max=limits.control_body_bytes_max)
        nonce_meter = NonceMeter(limits=limits, rates=rooms.rates)
        calls, listing_desk = self._calls(), self._listing_desk(wallet)
        return build_app(
            call_app=calls,
            routers=[
                listing_router(listing_desk),
                history_router(
                    statement=rooms.book,
                    book=rooms.book,
                    wallet=wallet,
                    lookup=Lookout(rooms.chains, meter=rooms.meters).sight,
                    find_asset=self._find_asset,
                    now_ms=self._now_ms,
                ),
                x402_history_router(
                    statement=rooms.book,
                    wallet=wallet,
                    find_asset=self._find_asset,
                    now_ms=self._now_ms,
                ),
                bazaar_router(self._bazaar_desk()),
                discovery_router(self._document_desk()),
                mcp_router(self._mcp_desk(calls, listing_desk.shape, wallet)),
                signin_router(rooms.desk, nonce_meter, limits=limits),
                health_router(rooms.check_ready),
                ownership_router(self._ownership_desk(wallet)),
                did_router(authority=self._origin.authority, signers=[one.address for one in self._notaries]),
                key_directory_router(
                    self._signer,
                    authority=self._origin.authority,
                    now_ms=self._now_ms,
                    entropy=self._names.take,
                ),
                site_router(self._site_desk()),
            ],
            public_url=settings.public_url,
            limits=limits,
            clock=time.monotonic,
            entropy=secrets.token_bytes,
            gauge=rooms.gauge,
            challenge=make_challenge(
                rooms.desk, nonce_meter, origin=self._origin, chain_ids=tuple(rooms.rules)
            ),
            metrics=rooms.metrics,
            trusted_proxies=settings.trusted_proxies,
        )

    def _gateway(self) -> Gateway:
        rooms, settings, limits = self._rooms, self._settings, self._limits
        return Gateway(
            name=GatewayName(
                origin=str(self._origin),
                host=self._origin.authority,
                allow_private=settings.allow_private_endpoints,
                is_bound_required=settings.require_bound_signature,
            ),
            catalog=rooms.catalog,
            book=rooms.book,
            till=rooms.till,
            cashier=Cashier(
                book=rooms.book,
                answers=rooms.treasury.answers,
                settlement=rooms.treasury.settlement,
                challenger=self._challenger,
                is_x402=settings.x402,
                notary=self._notary,
                networks=self._networks,
                prove_wallet=self._prove_caller,
                rules=rooms.rules,
                limits=limits,
                public_url=settings.public_url,
                now_ms=self._now_ms,
                entropy=self._names.take,
            ),
            passage=Passage(
                dialer=rooms.dialer,
                book=rooms.book,
                limits=limits,
                now_ms=self._now_ms,
                public_url=settings.public_url,
                name=self._origin.authority,
                signer=self._signer,
                entropy=self._names.take,
                note_upstream_s=rooms.metrics.upstream_seconds.observe,
                tally=rooms.reputation.tally,
                breaker=rooms.reputation.breaker,
            ),
            meters=rooms.meters,
            limits=limits,
            is_blocked=rooms.moderation.is_blocked,
            now_ms=self._now_ms,
            entropy=self._names.take,
            is_verified=rooms.reputation.ownerships.is_verified if settings.require_ownership else None,
        )

    async def _prove_caller(self, request: SignedRequest) -> Address:
        return (await self._authenticator.authenticate_call(request)).address

    def _calls(self) -> CallRoutes:
        rooms, settings, limits = self._rooms, self._settings, self._limits
        proxies = parse_proxies(settings.trusted_proxies)
        count = cache(rooms.metrics.calls.labels)  # outcomes are few
        return CallRoutes(
            self._gateway(),
            terms=TermsWire(
                rooms.rules,
                public_url=settings.public_url,
                challenger=self._challenger,
                is_x402=settings.x402,
                notary=self._notary,
                offer_valid_s=limits.price_memory_s,
                now_ms=self._now_ms,
                entropy=self._names.take,  # a salt is no secret: it only makes a challenge one of its kind
            ),
            limits=limits,
            public_url=settings.public_url,
            now_ms=self._now_ms,
            request_id_of=lambda scope: read_request_id(scope["headers"], entropy=self._names.take),
            client_address_of=lambda scope: read_client_address(scope, proxies),
            note_outcome=lambda outcome: count(outcome).inc(),
            gauge=rooms.gauge,
        )

    def _ownership_desk(self, wallet: Callable[[Request], Awaitable[Identity]]) -> OwnershipDesk:
        rooms = self._rooms
        return OwnershipDesk(
            catalog=rooms.catalog,
            ownerships=rooms.reputation.ownerships,
            checker=rooms.reputation.checker,
            authenticate=wallet,
            is_blocked=rooms.moderation.is_blocked,
            rates=rooms.rates,
            limits=self._limits,
            now_ms=self._now_ms,
        )

    def _listing_desk(self, wallet: Callable[[Request], Awaitable[Identity]]) -> ListingDesk:
        rooms, settings = self._rooms, self._settings
        return ListingDesk(
            catalog=rooms.catalog,
            rules=DraftRules(
                assets=self._shape().assets,
                main_networks=frozenset(
                    chain_id for chain_id, rules in rooms.rules.items() if rules.kind == "main"
                ),
                allow_private_endpoints=settings.allow_private_endpoints,
                judge_endpoint=endpoint_judge(allow_private=settings.allow_private_endpoints),
            ),
            shape=self._shape(),
            limits=settings.limits,
            authenticate=wallet,
            probe=rooms.dialer.probe,
            creations=CreationDesk(rooms.creations, limits=settings.limits, entropy=secrets.token_bytes),
            is_blocked=rooms.moderation.is_blocked,
            allowlist=settings.allowlist if settings.registration == "allowlist" else None,
            now_ms=self._now_ms,
            entropy=secrets.token_bytes,
            rates=rooms.rates,
            is_unprotected=rooms.inquirer.is_unprotected,
            fetch_document=rooms.inquirer.fetch_document,
            find_holder=rooms.reputation.ownerships.find_holder if settings.require_ownership else None,
        )

    def _mcp_desk(self, calls: ASGIApp, shape: ListingShape, wallet: Wallet) -> McpDesk:
        rooms, settings = self._rooms, self._settings
        return McpDesk(
            catalog=rooms.catalog,
            shape=shape,
            statement=rooms.book,
            call_app=calls,
            wallet=wallet,
            find_asset=self._find_asset,
            now_ms=self._now_ms,
            public_url=settings.public_url,
            origin=str(self._origin),
            body_bytes_max=self._limits.control_body_bytes_max,
            origins=settings.mcp_origins,
        )

    def _shape(self) -> ListingShape:
        rules = self._rooms.rules
        return ListingShape(
            public_url=self._settings.public_url,
            assets=tuple(asset for one in rules.values() for asset in one.assets),
            confirmations_for=lambda asset, units: rules[asset.chain_id].confirmations_for(asset, units),
            is_offered=self._is_x402_offered,
        )

    def _bazaar_desk(self) -> BazaarDesk:
        return BazaarDesk(
            catalog=self._rooms.catalog,
            rules=self._rooms.rules,
            is_offered=self._is_x402_offered,
            public_url=self._settings.public_url,
        )

    def _document_desk(self) -> DocumentDesk:
        rooms, settings = self._rooms, self._settings
        return DocumentDesk(
            catalog=rooms.catalog,
            shape=self._shape(),
            bazaar=self._bazaar_desk(),
            limits=settings.limits,
            is_mpp_offered=self._is_mpp_offered,
            is_bound_required=settings.require_bound_signature,
            ticks_ms=ticks_ms,
        )

    def _site_desk(self) -> SiteDesk:
        settings = self._settings
        window = ShopWindow(self._rooms.catalog, self._shape(), is_mpp_offered=self._is_mpp_offered)
        return SiteDesk(
            catalog=self._rooms.catalog,
            window=window,
            site=Site(public_url=settings.public_url, version=__version__, contact=settings.contact),
            now_ms=self._now_ms,
            ticks_ms=ticks_ms,
        )

    def _is_mpp_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        return self._settings.mpp and self._rooms.treasury.settlement.is_offered(asset, units, listing_id)

    def _is_x402_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        return self._settings.x402 and self._rooms.treasury.settlement.is_offered(asset, units, listing_id)

    def _find_asset(self, chain_id: ChainId, key: str) -> Asset | None:
        assets = self._rooms.rules[chain_id].assets if chain_id in self._rooms.rules else ()
        return next((asset for asset in assets if asset.key == key), None)
