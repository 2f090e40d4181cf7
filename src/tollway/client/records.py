"""The results of the client as records: listings, calls, payments and ownership, parsed from the gateway's JSON. Pure.

A record has the members of the HTTP contract under the names of Python: `pricePerRequest` is `price_per_request`. Members that this
version does not know are left out. A required member that is missing or has another type raises `GatewayResponseInvalid` with its place.

Ids, addresses, networks and hashes are the texts of the gateway. Amounts in base units are integers, prices are decimal strings, times are
`datetime` in UTC.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tollway.client.record_reader import read_record


def _named(name: str) -> dict[str, str]:
    return {"name": name}


# ---- Listings.


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPrice:
    """A metered price in a page of results: at most `amount`; `formula` has the price in words."""

    amount: str
    currency: str
    mode: str
    formula: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedApi:
    """A listing in a page of results. `match`: the fields that matched the words of a search. `pricing`: of a metered price; None for a fixed one."""

    id: str
    name: str
    provider: str
    price_per_request: str
    currency: str
    endpoint: str
    description: str
    match: tuple[str, ...] = ()
    pricing: ListedPrice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WordCorrection:
    """A word that no listing has, and the word that was searched in its place."""

    word: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """A page of listings. `total`: of all pages; a lower bound where `is_total_lower_bound`. With words, `total_all`: the listings that have all of
    them; `words`: the words that were searched."""

    apis: tuple[ListedApi, ...]
    total: int
    page: int
    limit: int
    is_total_lower_bound: bool = field(default=False, metadata=_named("totalIsLowerBound"))
    total_all: int | None = None
    words: tuple[str, ...] = ()
    corrections: tuple[WordCorrection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityPlace:
    """Where a response states a quantity: in a header, at JSON pointers in its body and in the events of a stream, or as the bytes of its body."""

    header: str | None = None
    json_pointer: str | None = field(default=None, metadata=_named("json"))
    sse: str | None = None
    is_bytes: bool = field(default=False, metadata=_named("bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaPart:
    """One summand: `unit_price` for each `per` units."""

    unit: str
    unit_price: str
    quantity: QuantityPlace
    per: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFormula:
    """The formula of a price by use. `absent`: what a call costs whose response reports no usage, `max` or `base`. `show`: callers get the usage header too."""

    parts: tuple[FormulaPart, ...]
    base: str = "0"
    absent: str = "max"
    show: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOperation:
    """The price of one operation of a listing. `path`: a template such as `/v1/cities/{city}`. `metering`: of a price by use, whose maximum is `price_per_request`."""

    method: str
    path: str
    price_per_request: str
    metering: PriceFormula | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedPayment:
    """One way to pay one call. `amount` in base units of the asset; `token` None: the native currency."""

    rail: str
    network: str
    chain_id: int
    asset: str
    symbol: str
    decimals: int
    amount: int
    pay_to: str
    token: str | None = None
    confirmations: int | None = None
    max_timeout_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceQuote:
    """The price of a call as the gateway quotes it now, with every way to pay it. `mode` `metered`: `amount` is the maximum, and `formula` the price in words."""

    amount: str
    currency: str
    mode: str = "fixed"
    formula: str | None = None
    options: tuple[OfferedPayment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """What the calls of a metered price cost in practice, as shares of their maximum. `method` None: of the price of the listing."""

    calls: int = field(metadata=_named("calls30d"))
    mean_share: float
    p95_share: float
    method: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredQuality:
    """The quality of the paid calls of the last 30 days; None until there are enough of them. `success_rate` from 0 to 1. `costs`: of metered prices with enough calls."""

    calls: int | None = field(default=None, metadata=_named("calls30d"))
    success_rate: float | None = field(default=None, metadata=_named("successRate30d"))
    p50_ms: int | None = None
    p95_ms: int | None = None
    costs: tuple[MeasuredCost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PayerRate:
    """The maximum of calls of one payer in a window."""

    calls: int
    per_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCallOffer:
    """The first `count` calls of a wallet that proves itself cost nothing; with `per_seconds` in each period of so many seconds."""

    count: int
    per_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSecret:
    """The place of the secret that the gateway adds to upstream requests. The gateway never shows its value."""

    location: str = field(metadata=_named("in"))
    name: str
    is_set: bool = field(metadata=_named("set"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingLinks:
    """The URLs of a listing and of its documents."""

    listing: str | None = field(default=None, metadata=_named("self"))
    gateway: str | None = None
    discovery: str | None = None
    agent: str | None = None
    openapi: str | None = None
    llms: str | None = None
    mcp: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingNotice:
    """A warning about a listing that was accepted. `pointer`: the member that it is about."""

    code: str
    detail: str
    pointer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingDetails:
    """A listing with its terms. `warnings`: of a listing that was published or changed just now. `etag`: its entity tag, for `update` and `patch`."""

    id: str
    name: str
    provider: str
    price_per_request: str
    currency: str
    endpoint: str
    description: str
    pay_to: str | None = None
    networks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    metering: PriceFormula | None = None
    operations: tuple[ListedOperation, ...] = ()
    other_paths: str = "serve"
    charge_on: str = "success"
    timeout_seconds: int | None = None
    forward_headers: tuple[str, ...] = ()
    upstream_auth: UpstreamSecret | None = None
    openapi_url: str | None = None
    signature: str = "any"
    rate_limit: PayerRate | None = None
    free_calls: FreeCallOffer | None = None
    status: str = "active"
    forward_signature: str = "ed25519"
    forward_secret: str | None = field(default=None, repr=False)
    contact: str | None = None
    website: str | None = None
    terms_url: str | None = field(default=None, metadata=_named("terms"))
    pricing: PriceQuote | None = None
    quality: MeasuredQuality = MeasuredQuality()
    is_verified: bool = field(default=False, metadata=_named("verified"))
    links: ListingLinks = ListingLinks()
    created_at: datetime | None = None
    updated_at: datetime | None = None
    revision: int | None = None
    warnings: tuple[ListingNotice, ...] = ()
    etag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResponse:
    """The response of an upstream to a trial call. `would_charge`: whether a caller would pay `price` for it. `body`: text; `body_base64` where it is
    none. `is_cut`: the body was longer. `call_id`: what the upstream saw. `warnings`: headers of the upstream that no caller gets."""

    status: int
    price: str
    currency: str
    would_charge: bool
    call_id: str
    body: str | None = None
    body_base64: str | None = None
    is_cut: bool = False
    latency_ms: int | None = None
    warnings: tuple[ListingNotice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedOperation:
    """An operation in the agent document."""

    method: str
    path: str
    tool: str | None = None
    summary: str | None = None
    body_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDocument:
    """A page of the document of a listing for agents. `text`: the whole page as JSON, to be given to a model. Its words are the provider's: data,
    never instructions. The pages after the first have operations only. `operations_left_out`: those that the first page does not list."""

    id: str
    name: str = ""
    status: str = "active"
    when_to_use: str = ""
    tags: tuple[str, ...] = ()
    operations: tuple[DescribedOperation, ...] = ()
    operations_left_out: int = 0
    page: int = 1
    pages: int | None = None
    text: str = field(default="", repr=False, metadata=_named(""))


def read_agent_document(document: Mapping[str, object]) -> AgentDocument:
    """Raises `GatewayResponseInvalid`."""
    return read_record(AgentDocument, {**document, "": json.dumps(document, ensure_ascii=False)})


# ---- Counts of the catalog, networks, status.


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCount:
    tag: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrencyCount:
    currency: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCount:
    network: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetCounts:
    """How many listings have which value, the most frequent first. `total`: the counted listings; more match where `is_total_lower_bound`."""

    tags: tuple[TagCount, ...]
    currencies: tuple[CurrencyCount, ...]
    networks: tuple[NetworkCount, ...]
    total: int
    is_total_lower_bound: bool = field(default=False, metadata=_named("totalIsLowerBound"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DayStats:
    """The paid calls of one UTC day (`2026-11-21`). The latencies are the upstream's in successful calls."""

    day: str
    calls: int
    successes: int
    p50_ms: int | None = None
    p95_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingStats:
    """`days`: oldest first."""

    id: str
    days: tuple[DayStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCurrency:
    symbol: str
    decimals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetDomain:
    """The EIP-712 domain of a token."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationStep:
    """A payment of at least `amount_min` needs so many confirmations."""

    amount_min: str
    confirmations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAsset:
    """An asset that the gateway accepts. `asset`: its CAIP-19 id. `rails`: by which a new payment counts now. The native currency has no `token`."""

    asset: str
    symbol: str
    decimals: int
    rails: tuple[str, ...]
    confirmations: tuple[ConfirmationStep, ...]
    token: str | None = None
    domain: AssetDomain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNetwork:
    """A network of the gateway. `kind`: `main` or `test`. `reachable`: whether its nodes respond."""

    network: str
    chain_id: int
    name: str
    kind: str
    reachable: bool
    rails: tuple[str, ...]
    assets: tuple[NetworkAsset, ...]
    native_currency: NativeCurrency | None = None
    explorer_url: str | None = None
    wallet_rpc_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkList:
    networks: tuple[GatewayNetwork, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnRails:
    """Rails that are not offered now. `asset`: of one asset only; None for all assets of the network."""

    rails: tuple[str, ...]
    reason: str
    since: datetime
    asset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkStatus:
    network: str
    chain_id: int
    name: str
    reachable: bool
    rails: tuple[str, ...]
    withdrawn: tuple[WithdrawnRails, ...]
    unreachable_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    version: str
    networks: tuple[NetworkStatus, ...]
    as_of: datetime


# ---- Calls and payments.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPayment:
    """The payment of a call in the history. `state`: none, charged, released, held or reorged. `amount` in base units. `held_until`: when the price of
    a call of unknown outcome comes back by itself."""

    state: str
    rail: str | None = None
    network: str | None = None
    asset: str | None = None
    transaction: str | None = None
    amount: int | None = None
    pay_to: str | None = None
    held_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredQuantity:
    """What the response of a metered call reported of one unit."""

    unit: str
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call in the history. `status`: pending, succeeded, failed or unknown. `error`: the gateway's code where it refused the call.

    `price_max`: of a metered call, whose `price` is this maximum until its response has ended. `quantities`: what the response reported; empty where that
    is absent, None until the price is known and for a fixed price. `channel`: the id of the payment channel of its rail."""

    id: str
    api_id: str
    status: str
    method: str
    path: str
    price: str
    currency: str
    payment: RecordedPayment
    created_at: datetime
    api_name: str | None = None
    provider: str | None = None
    payer: str | None = None
    http_status: int | None = None
    upstream_status: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    latency_ms: int | None = None
    upstream_latency_ms: int | None = None
    idempotency_key: str | None = None
    request_id: str | None = None
    error: str | None = None
    completed_at: datetime | None = None
    price_max: str | None = None
    quantities: tuple[MeasuredQuantity, ...] | None = None
    channel: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPage:
    """A page of the history, newest first. `as_of`: pages with `until=as_of` are stable while new calls arrive."""

    calls: tuple[RecordedCall, ...]
    total: int
    limit: int
    offset: int
    as_of: datetime
    is_total_lower_bound: bool = field(default=False, metadata=_named("totalIsLowerBound"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptFields:
    """The signed fields of a receipt, as the gateway states them. Times are unix seconds; `amount` is in base units of `asset`; absent values are empty
    or 0. `state`: `charged`, `held`, `released`, `reorged` or `none`. Of two receipts of one call the one with the later `issued_at` counts."""

    version: int
    network: str
    resource_url: str
    payer: str
    issued_at: int
    transaction: str
    gateway: str
    call_id: str
    api_id: str
    operation: str
    payee: str
    asset: str
    decimals: int
    currency: str
    price: str
    amount: int
    quantities: str
    rail: str
    channel: str
    state: str
    http_status: int
    created_at: int
    completed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTransfer:
    """Credit of another transaction that was joined for a call. Not signed."""

    transaction: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedReceipt:
    """The receipt of a call, not verified. `fields`: what is signed. `document`: the whole as JSON."""

    fields: ReceiptFields = field(metadata=_named("payload"))
    signature: str
    kid: str = ""
    also_from: tuple[JoinedTransfer, ...] = ()
    document: str = field(default="", repr=False, metadata=_named(""))


def read_receipt(document: Mapping[str, object]) -> SignedReceipt:
    """Raises `GatewayResponseInvalid`."""
    return read_record(SignedReceipt, {**document, "": json.dumps(document, ensure_ascii=False)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSum:
    """Calls in one state, and the sum of their prices: `units` in base units of the asset, `amount` as an exact decimal text."""

    calls: int
    units: int
    amount: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetSum:
    """What is left of the charges after refunds, as in `StateSum`."""

    units: int
    amount: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetSum:
    """Calls of one asset by state; `calls`: in all four states. `refunded`: what came back of the charged calls, which stay charged. `asset` None: calls of free
    listings."""

    currency: str
    calls: int
    charged: StateSum
    released: StateSum
    held: StateSum
    reorged: StateSum
    refunded: StateSum | None = None
    net: NetSum | None = None
    network: str | None = None
    asset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodSum(AssetSum):
    """The same of the hour or the day that begins at `start`, and of one listing, provider or wallet."""

    start: datetime
    api_id: str | None = None
    api_name: str | None = None
    provider: str | None = None
    wallet: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRange:
    """The range and the moment of sums. `start` and `end`: whole steps, without `end`. Where `is_lower_bound`, steps before `complete_from` are lower
    bounds or missing: ask again with `until=complete_from`. `totals`: of all rows, one for each asset."""

    step: str
    start: datetime = field(metadata=_named("from"))
    end: datetime = field(metadata=_named("to"))
    as_of: datetime
    is_lower_bound: bool
    totals: tuple[AssetSum, ...]
    complete_from: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSum:
    """Money of one asset in base units, and as a decimal."""

    units: int
    amount: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSum:
    """Where the money of channels that pay the wallet is, of one asset, for every range. `channels`: those that hold money; `withdrawing`: those whose payer withdraws."""

    network: str
    asset: str
    currency: str
    channels: int
    withdrawing: int
    unclaimed: UnitSum
    claimed: UnitSum
    settled: UnitSum
    lost: UnitSum


@dataclass(frozen=True, slots=True, kw_only=True)
class SalesReport(SumRange):
    """What listings earned, newest step first."""

    sales: tuple[PeriodSum, ...]
    channels: tuple[ChannelSum, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingReport(SumRange):
    """What a wallet spent, newest step first."""

    spending: tuple[PeriodSum, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentStatus:
    """A payment in the gateway's ledger. `state`: unseen, pending, credited, spent, reorged or refused. `amount` and `credit` in base units;
    `calls`: ids of the calls that it paid. `kind`: `refund` for credit that a provider gave back for a call, without a payment."""

    transaction: str
    state: str
    network: str | None = None
    asset: str | None = None
    payer: str | None = None
    payee: str | None = None
    amount: int | None = None
    credit: int | None = None
    reason: str | None = None
    kind: str | None = None
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentPage:
    """A page of the payments of a wallet in the gateway's ledger, newest first."""

    payments: tuple[PaymentStatus, ...]
    limit: int
    offset: int


# ---- Viewers.


@dataclass(frozen=True, slots=True, kw_only=True)
class BookViewer:
    """A permission to read books. `address`: of the other wallet. `until` None: it is the owner, as long as the wallet is bound."""

    address: str
    since: datetime
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerList:
    """`viewers`: the wallets that may read the books of this one. `wallets`: those whose books this one may read and has read, the newest 1,000."""

    viewers: tuple[BookViewer, ...]
    wallets: tuple[BookViewer, ...]
    is_wallets_cut: bool = field(default=False, metadata=_named("walletsAreMore"))


# ---- Budgets.


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """A policy as its owner signed it: limits are decimal texts in `currency`, and empty for none; `allow` and `deny` name `api:ID`, `provider:0x…` or `tag:TAG`, and an empty
    `allow` is every API. `not_before` and `not_after` in unix seconds."""

    currency: str
    max_per_call: str = ""
    max_per_hour: str = ""
    max_per_day: str = ""
    max_per_month: str = ""
    max_total: str = ""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    not_before: int = 0
    not_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLeft:
    """What is left of a limit: `amount`, a decimal text in the currency of the policy. `resets_at`: when its hour, day or month ends; None for `maxPerCall` and `maxTotal`."""

    limit: str
    amount: str
    resets_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentSums:
    """What counts in the hour, the day and the month of the response (UTC), and in all since the wallet was bound: decimal texts."""

    hour: str
    day: str
    month: str
    total: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WalletBudget:
    """What an owner lets the wallet `agent` spend at a gateway, and what is left. `state`: `in_force`, `not_yet`, `expired`, `revoked`, or `pending` until the agent accepts.
    While `is_bound`, the wallet buys nothing in any state but `in_force`. `policy`: None once it is revoked. `left`: of each limit, from the shortest to the longest."""

    owner: str
    agent: str
    state: str
    is_bound: bool
    spent: SpentSums
    policy: PolicyTerms | None = None
    left: tuple[LimitLeft, ...] = ()
    bound_at: datetime | None = None

    def describe_left(self) -> tuple[str, ...]:
        """Such as `maxPerDay: 4.2 USDC left until 2026-11-22 00:00:00 UTC`; nothing without a policy."""
        currency = "" if self.policy is None else self.policy.currency
        ends = (
            "" if one.resets_at is None else f" until {one.resets_at:%Y-%m-%d %H:%M:%S} UTC"
            for one in self.left
        )
        return tuple(
            f"{one.limit}: {one.amount} {currency} left{end}"
            for one, end in zip(self.left, ends, strict=True)
        )

    def describe_end(self) -> str | None:
        """When the policy ends, such as `2027-07-01 00:00:00 UTC`; None without one, and for a time that no calendar has."""
        try:
            end = None if self.policy is None else datetime.fromtimestamp(self.policy.not_after, UTC)
        except (ValueError, OverflowError, OSError):
            end = None
        return None if end is None else f"{end:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetList:
    """The budgets of an owner; or of a wallet, the one to which it is bound first."""

    budgets: tuple[WalletBudget, ...]

    @property
    def bound(self) -> WalletBudget | None:
        """The one to which the wallet of the request is bound."""
        return next((one for one in self.budgets if one.is_bound), None)


# ---- Ownership.


@dataclass(frozen=True, slots=True, kw_only=True)
class WellKnownProof:
    """A file that proves the ownership: its URL and the line that it must contain."""

    url: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsProof:
    """A TXT record that proves the ownership."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureProof:
    """A signature that proves the ownership: of `message`, by `signer`, at `pointer` in the OpenAPI document at `url`."""

    url: str
    pointer: str
    signer: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipChallenge:
    """The ways to prove the ownership; one is enough."""

    well_known: WellKnownProof | None = None
    dns: DnsProof | None = None
    signature: SignatureProof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipStatus:
    """The ownership of a listing's endpoint. `state` is `verified` with a valid proof; `method` and `verified_at` are those of the proof."""

    origin: str
    state: str
    method: str | None = None
    verified_at: datetime | None = None
    checked_at: datetime | None = None
    failures: int = 0
    challenge: OwnershipChallenge | None = None


# ---- Webhooks.


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSecret:
    """The secret of a webhook's signature `v1`. `value`: only in the response of its creation."""

    scheme: str
    set: bool = True
    value: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookGap:
    """A range of time whose events a webhook did not get: read them from the history. `to_at` None: it has not ended."""

    from_at: datetime = field(metadata=_named("from"))
    to_at: datetime | None = field(default=None, metadata=_named("to"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookStatus:
    """A webhook of this wallet. It gets every event from `active_from` on. `gap`: the last one. `pending`, `dead`: its events that wait, and that failed
    for good."""

    id: str
    url: str
    types: tuple[str, ...]
    state: str
    reason: str | None = None
    secret: WebhookSecret | None = None
    active_from: datetime | None = None
    gap: WebhookGap | None = None
    pending: int = 0
    dead: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookList:
    """All webhooks of a wallet. `limit`: how many it may have."""

    webhooks: tuple[WebhookStatus, ...]
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStatus:
    """The delivery of an event. `state`: `pending`, `delivered` or `dead`. `message_id`: the `webhook-id` of the message that has it."""

    event_id: str
    type: str
    timestamp: datetime
    state: str
    attempts: int
    message_id: str | None = None
    next_attempt_at: datetime | None = None
    last_attempt_at: datetime | None = None
    last_status: int | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPage:
    """Deliveries of a webhook, newest event first."""

    deliveries: tuple[DeliveryStatus, ...]
