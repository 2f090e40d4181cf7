"""The collaborators of the routes, in one record. A router takes the whole record and reads the members that its handlers need, so that a new route changes nothing here."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp

from tollway.chain.networks import ChainRules, NetworkProfile
from tollway.discovery.gateway_operator import GatewayOperator
from tollway.errors import Refusal
from tollway.gateway.trial import TrialCalls
from tollway.identity.authenticator import Identity
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import ReceiptSigner
from tollway.identity.viewers import BookAccess
from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.budgets import BudgetLedger
from tollway.ledger.history import CallHistory
from tollway.ledger.ledger import PaymentLedger
from tollway.ledger.sales import PeriodBooks
from tollway.limits import Limits
from tollway.money import Asset
from tollway.outbound.policy import Endpoint
from tollway.outbound.probes import OwnershipChecker
from tollway.payments.gas import WithdrawnRail
from tollway.payments.held_calls import HeldCalls
from tollway.payments.refunds import Refunds
from tollway.payments.transaction_lookup import TransactionStatus
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.catalog import Catalog, HeadTimes
from tollway.registry.draft import DraftRules
from tollway.registry.moderation import BlockedWallet, explain_block
from tollway.registry.ownership import Ownerships
from tollway.registry.quality import QualityRecords
from tollway.web.api.idempotent_create import IdempotentCreate
from tollway.web.api.listing_json import IsOffered, ListingEncoder
from tollway.web.api.provider_documents import ProviderDocuments
from tollway.web.http.admission import SignInRateLimit
from tollway.web.http.read_turns import ReadTurns
from tollway.webhooks.endpoints import Webhooks

WalletDependency = Callable[[Request], Awaitable[Identity]]
"""Authenticates the wallet of a request before the route validates anything: reads the body and proves the wallet, or raises Refusal."""

FindAsset = Callable[[ChainId, str], Asset | None]
"""The asset with this ledger key on a chain; None if it is no longer configured."""

LookUpTransaction = Callable[[TxHash, Address], Awaitable[TransactionStatus | None]]
"""Reads the status of a payer's transaction from the chains. None: a chain is unavailable, and no other chain has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebContext:
    """The collaborators of the routes, built once by `app`. The stores are open when the first request comes."""

    # The gateway. `public_url` has no final slash; `origin` is that of the public URL.
    public_url: str
    origin: str
    version: str
    operator: GatewayOperator
    limits: Limits
    allow_private: bool
    """Whether endpoints and webhooks may have private addresses."""
    has_pages: bool
    """Whether `page_router` serves `/` and `/docs`."""
    is_bound_required: bool
    """Whether the operator requires bound signatures for all listings."""
    allowlist: frozenset[Address] | None
    """The wallets that may publish; None: every wallet."""
    mcp_origins: frozenset[str]
    """Further web origins whose pages may use MCP; `*` allows any."""

    # Clocks and randomness.
    now_ms: Callable[[], int]
    shared_ms: Callable[[], int]
    """The clock that the gateways of one ledger share."""
    ticks_ms: Callable[[], int]
    """A monotonic clock in milliseconds."""
    clock: Callable[[], float]
    """A monotonic clock in seconds."""
    entropy: Callable[[int], bytes]

    # The wallet of a request.
    authenticate: WalletDependency
    is_session_open: Callable[[Request], Awaitable[bool]]
    """Whether a request that `authenticate` has passed would pass again."""
    sign_in: SignIn
    sign_in_limit: SignInRateLimit
    rate_limiter: RateLimiter
    find_block: Callable[[Address], BlockedWallet | None]

    # The networks, and what is settled on them now.
    rules: Mapping[ChainId, ChainRules]
    profiles: Mapping[ChainId, NetworkProfile]
    find_asset: FindAsset
    away_s: Callable[[ChainId], float | None]
    """How long a network has been away (`NodeHealth.away_s`)."""
    settled_rails: Mapping[str, IsOffered]
    """The rails of authorizations that the settings allow."""
    withdrawn_since_ms: Callable[[], Mapping[WithdrawnRail, int]]
    is_mpp_offered: IsOffered
    look_up_transaction: LookUpTransaction

    # Listings.
    catalog: Catalog
    encoder: ListingEncoder
    quality: QualityRecords
    draft_rules: DraftRules
    creations: IdempotentCreate
    documents: ProviderDocuments
    check_endpoint: Callable[[Endpoint], Awaitable[None]]
    """Resolves the host and checks its addresses, or raises `EndpointNotAllowed`."""
    find_addresses: Callable[[Endpoint], Awaitable[Sequence[str]]]
    """The addresses of an endpoint, for dry runs. Raises as `check_endpoint` does."""
    is_unprotected: Callable[[Endpoint], Awaitable[bool]]
    """Whether an endpoint answers a request without the listing's secret."""
    read_heads: Callable[[Sequence[ChainId]], Awaitable[HeadTimes]]
    """The time of the newest block of each network that responds. Raises nothing."""
    requires_ownership: bool
    """Whether a listing without a proof is neither listed nor called."""
    ownerships: Ownerships
    ownership_checker: OwnershipChecker
    trials: TrialCalls

    # Calls and payments.
    call_app: ASGIApp
    """The application of gateway calls, for MCP."""
    call_history: CallHistory
    payment_ledger: PaymentLedger
    period_books: PeriodBooks
    held_calls: HeldCalls
    refunds: Refunds
    book_access: BookAccess
    budgets: BudgetLedger
    read_turns: ReadTurns
    receipt_signer: ReceiptSigner
    webhooks: Webhooks

    def check_block(self, wallet: Address) -> None:
        """Raises Refusal for a wallet that the operator has blocked."""
        block = self.find_block(wallet)
        if block is not None:
            raise Refusal(explain_block(block))
