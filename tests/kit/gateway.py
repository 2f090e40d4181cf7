"""A whole gateway in one process: the real pipeline, the real catalog in SQLite, the ledger model, a chain in memory, and an
upstream on loopback.

`open_gateway` gives one. `ask` sends a request through the real ASGI application, without a socket; `serve` puts the
application behind the real server.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

from starlette.types import ASGIApp, Scope

from tests.kit.asgi_exchange import Exchange, HeaderPairs
from tests.kit.chain import MemoryChain
from tests.kit.chain_blocks import authorizing_token
from tests.kit.listings import find_block_in, sample_listing
from tests.kit.payer import KeyWallet
from tests.kit.ports import find_low_port
from tests.kit.settlement import MinedRules, SettlementServices
from tests.kit.stores import InlineDatabase, open_catalog
from tests.kit.upstream import LoopbackUpstream, run_upstream
from tests.kit.waits import DEADLINE_S
from tests.model.gas import MemoryGas
from tests.model.ledger import MemoryLedger
from tests.model.stored_responses import MemoryAnswers
from tollway.chain.networks import PRESETS, ChainRules
from tollway.chain.signer import GasKey
from tollway.gateway.access import AccessControl
from tollway.gateway.authorization_payment import AuthorizationRail
from tollway.gateway.call_observer import CallLog, CallObserver
from tollway.gateway.call_rates import CallRateLimits
from tollway.gateway.circuit_breaker import CircuitBreaker
from tollway.gateway.decisions import DecisionMemory, RequestDecision
from tollway.gateway.free_calls import FreeRail
from tollway.gateway.idempotency import ClientNetworks, Idempotency
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.pipeline import CallPipeline
from tollway.gateway.proxy import Proxy
from tollway.gateway.rail import CallPayment, ClockAndEntropy, PaymentRail
from tollway.gateway.receipts import ReceiptWriter
from tollway.gateway.request_signing import UpstreamSigner
from tollway.gateway.transaction_payment import TransactionRail
from tollway.identity.authenticator import Authenticator
from tollway.identity.http_signatures import SignedRequest, signature_headers
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import (
    ReceiptSigner,
    SignatureVerifier,
    paid_call_digest,
    transaction_digests,
)
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId, ListingId, TxHash, keccak256
from tollway.ledger.history import HistoryQuery
from tollway.ledger.records import CallRecord, NewPayment, Payment
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.observability.call_trace import CallTrace, TraceSampler
from tollway.observability.plain_metrics import PlainHistograms
from tollway.outbound.client import HttpClient
from tollway.payments.mpp import Challenger
from tollway.payments.pricing import OperationPrice, PaymentRequirement
from tollway.payments.proof import Binding, format_binding
from tollway.payments.transaction_verifier import TransactionVerifier
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.catalog import NO_HEADS, HeadTimes
from tollway.registry.listing import CatalogEntry, Listing
from tollway.registry.quality import QualityTally
from tollway.storage.accounts.identity_store import SqlSessions
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.ledger.free_call_store import SqlFreeCalls
from tollway.web.calls.gateway_app import GatewayApp
from tollway.web.calls.gateway_traces import StartTrace, make_start_trace
from tollway.web.calls.payment_required import PaymentRequiredRenderer
from tollway.web.http.admission import LoadShedder
from tollway.web.http.app import build_app
from tollway.web.http.problems import status_of
from tollway.web.http.server import HttpServer
from tollway.web.pages.assets import read_assets
from tollway.web.pages.page_problems import ProblemPages
from tollway.web.pages.renderer import PageRenderer

PUBLIC_URL = "https://gw.example.com"
HOST = "gw.example.com"
NOW_MS = 1_800_000_000_000
RULES = PRESETS["sandbox"].rules()
CHAIN = RULES.chain_id
USDC = RULES.assets[0]
assert USDC.token is not None
TOKEN: Address = USDC.token
PROVIDER = Address(b"\xcc" * 20)
PAY_TO = Address(b"\xbb" * 20)
CALLS = "/api/v2/gateway/"
SECRET = b"\x07" * 32
GAS_KEY = GasKey.parse("11" * 32)
ETHER = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The stores of one ledger: the model's, or those of a database."""

    ledger: Any
    stored_responses: Any
    gas: Any

    @classmethod
    def of_model(cls, ledger: MemoryLedger, *, limits: Limits) -> Self:
        return cls(
            ledger=ledger,
            stored_responses=MemoryAnswers(ledger.rows, limits=limits),
            gas=MemoryGas(ledger.rows),
        )


OpenRails = Callable[["InProcessGateway"], tuple[PaymentRail, ...]]


def _open_none(gateway: "InProcessGateway") -> tuple[PaymentRail, ...]:
    return ()


class CountedDecisions(DecisionMemory):
    """`decided`: calls that were granted after a decision of their own, not a remembered one."""

    decided = 0

    def put(
        self, key: Hashable | None, request: ProxyRequest, decision: RequestDecision, payment: CallPayment
    ) -> None:
        self.decided += 1
        super().put(key, request, decision, payment)


@cache
def _problem_pages() -> ProblemPages:
    renderer = PageRenderer(read_assets(), public_url=PUBLIC_URL, test_money="all", now_ms=lambda: NOW_MS)
    return ProblemPages(renderer)


class InProcessGateway:
    """Every part is an attribute. `now_ms` is the clock; a test sets it forward. `outcomes`: of every call, as counted. `refusals`: the codes."""

    call_log: CallLog = "failures"
    monotonic: Callable[[], float] = staticmethod(itertools.count(0.0, 1e-6).__next__)
    """The clock of a call's phases and of its wait for its body. Each look at it is a microsecond later: a machine that pauses makes no body slow."""
    transaction_rail_kind: type[TransactionRail] = TransactionRail

    def __init__(
        self,
        upstream: LoopbackUpstream,
        *,
        limits: Limits,
        is_bound_required: bool = False,
        rate_limiter: RateLimiter | None = None,
        before: "InProcessGateway | None" = None,
        only_verified: bool = False,
        has_mpp: bool = True,
        has_x402: bool = True,
        receipt_signer: ReceiptSigner | None = None,
        stores: Stores | None = None,
        open_further_rails: OpenRails = _open_none,
        traces: TraceSampler | None = None,
    ) -> None:
        """`traces`: samples calls, and their settlement recovery. `open_further_rails`: rails beside those of the product, read after them. `receipt_signer`: it signs offers and receipts. `before`: a gateway whose catalog, chain and, without `stores`, whose ledger this one shares. `only_verified`:
        it sells the listings in `verified` alone. `stores`: of a ledger in a database."""
        self.now_ms = NOW_MS
        self.upstream = upstream
        self.limits = limits
        ledger = before.ledger if before else MemoryLedger(now_ms=self._clock, limits=limits)
        self._numbers = itertools.count(1_000_000 if before and stores else 1)
        stores = stores or Stores.of_model(ledger, limits=limits)
        self.ledger: MemoryLedger = self._wrap_ledger(stores.ledger)
        self.stored_responses = stores.stored_responses
        self.database: InlineDatabase = before.database if before else InlineDatabase()
        self.catalog: CatalogStore = (
            before.catalog if before else open_catalog(self.database, now_ms=self._clock)
        )
        self.chain: MemoryChain = before.chain if before else self._make_chain()
        self.blocked: set[Address] = set()
        self.trace_sampler = traces
        self.is_proxied = False
        self.verified: set[ListingId] = set()
        self.outcomes: list[str] = []
        self.refusals: list[str] = []
        self.upstream_s: list[float] = []
        self.usage_kinds: list[str] = []
        self.tally = QualityTally()
        self.wallet = KeyWallet.named("buyer")
        self.ticks_ms = 0
        self.http_client = self._make_http_client()
        self.call_limits = CallRateLimits(limits=limits, rate_limiter=rate_limiter or RateLimiter())
        self._open_sign_in()
        self.rules: dict[ChainId, ChainRules] = {CHAIN: RULES}
        self.transaction_verifier = TransactionVerifier(
            payments=self.ledger,
            readiness=self.ledger,
            chains=self.chain,
            rules=self.rules,
            signature_verifier=SignatureVerifier(self.chain, limits=limits),
            quota=self.call_limits,
            limits=limits,
            now_ms=self._clock,
            find_older_terms=self._find_older_terms,
            find_payee_heads=self.catalog.list_payee_heads,
        )
        self.breaker = CircuitBreaker(limits=limits)
        self.signer = UpstreamSigner.derive([SECRET])
        self.challenger = Challenger(secret=SECRET, realm=HOST) if has_mpp else None
        self.receipt_signer = receipt_signer
        self._has_x402 = has_x402
        self.settlement = self._make_settlement(stores)
        self._make_rails(is_bound_required)
        self._further_rails = open_further_rails(self)
        self.pipeline = self._make_pipeline(only_verified)
        self._build_app()

    def _make_chain(self) -> MemoryChain:
        chain = MemoryChain(CHAIN)
        chain.fund_gas(CHAIN, GAS_KEY.address, ETHER)
        chain.mine(CHAIN, time=self.now_ms // 1000)
        for asset in RULES.assets:
            if asset.token is not None and asset.domain is not None:
                chain.deploy(CHAIN, asset.token, authorizing_token(asset))
        return chain

    def _make_settlement(self, stores: Stores) -> SettlementServices:
        return SettlementServices(
            MinedRules(
                chain=self.chain,
                chain_id=CHAIN,
                gas_keys=(GAS_KEY,),
                min_nano=10**6,
                gas_price_max_wei=500 * 10**9,
                gas_floor_wei=ETHER // 1000,
                listing_budget_wei=ETHER,
                network_budget_wei=10 * ETHER,
                block_time_s=0.01,
            ),
            ledger=stores.ledger,
            gas=stores.gas,
            chains=self.chain,
            rules=self.rules,
            limits=self.limits,
            now_ms=self._clock,
            traces=self.trace_sampler,
            pause_min_s=0.001,
            pause_max_s=0.01,
        )

    def _make_http_client(self) -> HttpClient:
        return HttpClient(
            limits=self.limits,
            allow_private=True,
            lookup=lambda host, port: ["127.0.0.1"],
            ticks_ms=lambda: self.ticks_ms,
        )

    def _open_sign_in(self) -> None:
        """What proves wallets: `sign_in` issues nonces and sessions."""
        sessions, origin = SqlSessions(self.database), parse_origin(PUBLIC_URL)
        verifier = SignatureVerifier(self.chain, limits=self.limits)
        self.sign_in = SignIn(
            sessions,
            verifier,
            self.call_limits,
            origin=origin,
            limits=self.limits,
            now_ms=self._clock,
            entropy=self._entropy,
        )
        self.authenticator = Authenticator(
            sessions,
            self.sign_in,
            origin=origin,
            limits=self.limits,
            now_ms=self._clock,
            rate_limiter=self.call_limits.rate_limiter,
        )

    async def _prove_wallet(self, request: SignedRequest) -> Address:
        return (await self.authenticator.authenticate_call(request)).address

    def _make_rails(self, is_bound_required: bool) -> None:
        receipts = ReceiptWriter(
            public_url=PUBLIC_URL, receipt_signer=self.receipt_signer, now_ms=self._clock
        )
        networks = ClientNetworks.derive([SECRET])
        self.decisions = CountedDecisions(limits=self.limits)
        self.claim_clock = ClockAndEntropy(now_ms=self._clock, entropy=self._entropy)
        self.idempotency = Idempotency(
            ledger=self.ledger,
            stored_responses=self.stored_responses,
            rules=self.rules,
            limits=self.limits,
            receipts=receipts,
            public_url=PUBLIC_URL,
            now_ms=self._clock,
            networks=networks,
            prove_wallet=self._prove_wallet,
        )
        self.transaction_rail = self.transaction_rail_kind(
            ledger=self.ledger,
            transaction_verifier=self.transaction_verifier,
            idempotency=self.idempotency,
            limits=self.limits,
            origin=PUBLIC_URL,
            is_bound_required=is_bound_required,
            clock=self.claim_clock,
        )
        self.authorization_rail = AuthorizationRail(
            ledger=self.ledger,
            settlement=self.settlement.settlement,
            idempotency=self.idempotency,
            receipts=receipts,
            challenger=self.challenger,
            rules=self.rules,
            limits=self.limits,
            networks=networks,
            clock=self.claim_clock,
            is_x402=self._has_x402,
        )

    def _make_proxy(self) -> Proxy:
        return Proxy(
            http_client=self.http_client,
            store_response=self.idempotency.store_response,
            limits=self.limits,
            now_ms=self._clock,
            public_url=PUBLIC_URL,
            name=HOST,
            signer=self.signer,
            entropy=self._entropy,
            observe_upstream_s=self.upstream_s.append,
            breaker=self.breaker,
            tally=self.tally,
            count_usage=self.usage_kinds.append,
        )

    def _list_rails(self) -> tuple[PaymentRail, ...]:
        return (self.transaction_rail, self.authorization_rail, *self._further_rails)

    def _find_requirements(
        self, operation_price: OperationPrice, listing: Listing
    ) -> tuple[PaymentRequirement, ...]:
        return self.authorization_rail.find_requirements(operation_price, listing)

    def _make_pipeline(self, only_verified: bool) -> CallPipeline:
        async def is_verified(listing_id: ListingId) -> bool:
            return listing_id in self.verified

        self.access = AccessControl(
            self.call_limits,
            limits=self.limits,
            find_block=find_block_in(self.blocked),
            now_ms=self._clock,
            clock=self.monotonic,
        )
        return CallPipeline(
            host=HOST,
            allow_private=True,
            catalog=self.catalog,
            rails=self._list_rails(),
            free_rail=self.make_free_rail(),
            idempotency=self.idempotency,
            access=self.access,
            decisions=self.decisions,
            observer=self._make_observer(),
            proxy=self._make_proxy(),
            limits=self.limits,
            find_requirements=self._find_requirements,
            is_verified=is_verified if only_verified else None,
        )

    def make_free_rail(self) -> FreeRail:
        return FreeRail(
            ledger=self.ledger,
            free_calls=SqlFreeCalls(self.database),
            idempotency=self.idempotency,
            access=self.access,
            prove_wallet=self._prove_wallet,
            limits=self.limits,
            clock=self.claim_clock,
        )

    def _make_observer(self) -> CallObserver:
        self.call_seconds = PlainHistograms("tollway_call_duration_seconds")
        return CallObserver(self.call_seconds, call_log=self.call_log, log_wallets=False, status_of=status_of)

    def start_trace(self, scope: Scope) -> CallTrace | None:
        """No call is traced, unless `trace_sampler` is set. Every peer is a trusted proxy where `is_proxied`."""
        if self.trace_sampler is None:
            return None
        return make_start_trace(self.trace_sampler, lambda scope: self.is_proxied)(scope)

    def _build_app(self) -> None:
        self.shedder = LoadShedder(limits=self.limits, clock=time.monotonic, read_memory_bytes=lambda: 0)
        self.calls = GatewayApp(
            self.pipeline,
            payment_required=PaymentRequiredRenderer(
                self.rules,
                public_url=PUBLIC_URL,
                challenger=self.challenger,
                receipt_signer=self.receipt_signer,
                offer_valid_s=self.limits.price_memory_s,
                now_ms=self._clock,
                entropy=self._entropy,
            ),
            limits=self.limits,
            public_url=PUBLIC_URL,
            now_ms=self._clock,
            read_request_id=self._read_request_id,
            read_client_address=self._read_client_address,
            count_outcome=self.outcomes.append,
            count_refusal=self.refusals.append,
            start_trace=self._make_start_trace(),
            shedder=self.shedder,
            problem_pages=_problem_pages(),
        )
        self.app = build_app(
            call_app=self.calls,
            routers=[],
            public_url=PUBLIC_URL,
            limits=self.limits,
            clock=lambda: self.now_ms / 1000,
            entropy=self._entropy,
            shedder=self.shedder,
            problem_pages=_problem_pages(),
        )

    # ---- What a measurement replaces.

    def _make_start_trace(self) -> StartTrace | None:
        return lambda scope: self.start_trace(scope)

    def _wrap_ledger(self, ledger: Any) -> Any:
        return ledger

    def _read_request_id(self, scope: Scope) -> str:
        return "req_test"

    def _read_client_address(self, scope: Scope) -> str:
        return str(scope["client"][0])

    def _clock(self) -> int:
        return self.now_ms

    def _entropy(self, size: int) -> bytes:
        return keccak256(next(self._numbers).to_bytes(8, "big"))[:size]

    async def _find_older_terms(self, entry: CatalogEntry, moment_ms: int) -> CatalogEntry:
        return replace(entry, versions=await self.catalog.terms_since(entry.listing.id, moment_ms))

    # ---- Listings.

    async def publish(
        self, name: str = "api_quotes", *, heads: HeadTimes = NO_HEADS, **changes: Any
    ) -> Listing:
        """A listing of 0.01 USDC a call, on sale for a day; every field can be given. `heads`: of its networks as it is published."""
        listing = replace(self.sample(name), **changes)
        await self.catalog.publish(listing, heads=heads)
        return listing

    async def revise(self, listing: Listing, *, heads: HeadTimes = NO_HEADS, **changes: Any) -> Listing:
        changed = replace(listing, updated_ms=self.now_ms, **changes)
        await self.catalog.revise(changed, expected_revision=listing.revision, heads=heads)
        return replace(changed, revision=listing.revision + 1)

    def sample(self, name: str) -> Listing:
        return gateway_listing(name, self.upstream.url)

    # ---- Payments and proofs.

    async def pay(self, units: int = 10_000, *, wallet: KeyWallet | None = None, age_s: int = 0) -> Payment:
        """A payment that the ledger knows: `units` of a millionth USDC."""
        new = self.sample_payment(
            value_units=units,
            payer=(wallet or self.wallet).address,
            block_time=self.now_ms // 1000 - age_s,
        )
        (payment,) = await self.ledger.record_payments([new], now_ms=self.now_ms)
        return payment

    def sample_payment(self, **changes: Any) -> NewPayment:
        """An accepted payment that is not recorded yet; every field can be given."""
        number = next(self._numbers)
        new = NewPayment(
            chain_id=CHAIN,
            tx_hash=TxHash(keccak256(b"tx" + number.to_bytes(8, "big"))),
            asset=USDC.key,
            payer=self.wallet.address,
            payee=PAY_TO,
            value_units=10_000,
            block_number=100 + number,
            block_hash=b"\x01" * 32,
            block_time=self.now_ms // 1000,
            is_final=True,
        )
        return replace(new, **changes)

    def plain_proof(
        self, tx_hash: TxHash, *, wallet: KeyWallet | None = None, is_raw: bool = False
    ) -> HeaderPairs:
        digest = transaction_digests(tx_hash)[1 if is_raw else 0]
        return [("X-Payment-Tx", str(tx_hash)), ("X-Signature", (wallet or self.wallet).sign_hex(digest))]

    async def plain_payment(
        self, units: int = 10_000, *, wallet: KeyWallet | None = None, age_s: int = 0
    ) -> HeaderPairs:
        """The plain form of a new payment that the ledger knows."""
        payment = await self.pay(units, wallet=wallet, age_s=age_s)
        return self.plain_proof(payment.tx_hash, wallet=wallet)

    def bound_proof(
        self,
        tx_hash: TxHash,
        *,
        method: str = "GET",
        target: str = "",
        body: bytes = b"",
        promises: bool = False,
        listing: str = "api_quotes",
        nonce: bytes | None = None,
        valid_for_s: int = 60,
        wallet: KeyWallet | None = None,
    ) -> HeaderPairs:
        """The bound form. `promises`: `bodyHash` is named, so that the body may be streamed."""
        binding = Binding(
            valid_until=self.now_ms // 1000 + valid_for_s,
            nonce=nonce or self._entropy(32),
            body_hash=keccak256(body) if promises else None,
        )
        digest = paid_call_digest(
            chain_id=CHAIN,
            gateway=PUBLIC_URL,
            api_id=listing,
            method=method,
            target=target.encode(),
            body_hash=keccak256(body),
            transaction=tx_hash,
            valid_until=binding.valid_until,
            nonce=binding.nonce,
        )
        return [
            ("X-Payment-Tx", str(tx_hash)),
            ("X-Signature", (wallet or self.wallet).sign_hex(digest)),
            ("X-Signature-Params", format_binding(binding)),
        ]

    # ---- Calls.

    def open(
        self,
        method: str = "GET",
        target: str = "",
        headers: HeaderPairs = (),
        chunks: Sequence[bytes] = (),
        *,
        listing: str = "api_quotes",
        client: str = "203.0.113.5",
        is_chunked: bool = False,
        is_open: bool = False,
        length: int | None = None,
    ) -> Exchange:
        """A request that is not sent yet. `is_open`: its body goes on after `chunks`."""
        path, _, query = target.partition("?")
        framing: list[tuple[str, str]] = []
        if is_chunked:
            framing = [("transfer-encoding", "chunked")]
        elif chunks or length is not None:
            framing = [("content-length", str(sum(map(len, chunks)) if length is None else length))]
        pairs = [("host", HOST), *framing, *headers]
        raw_path = (CALLS + listing + path).encode()
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": raw_path.decode(),
            "raw_path": raw_path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
            "client": (client, 40_000),
        }
        return Exchange(scope, chunks, is_open=is_open)

    async def run(self, exchange: Exchange) -> Exchange:
        """Returns once the gateway is done with it."""
        await self.calls(exchange.scope, exchange.receive, exchange.send)
        return exchange

    async def ask(
        self,
        method: str = "GET",
        target: str = "",
        headers: HeaderPairs = (),
        chunks: Sequence[bytes] = (),
        **more: Any,
    ) -> Exchange:
        return await self.run(self.open(method, target, headers, chunks, **more))

    def sign_call(
        self,
        method: str = "GET",
        path: str = "api_quotes",
        query: str = "",
        *,
        body: bytes = b"",
        wallet: KeyWallet | None = None,
        nonce: str = "n-1",
    ) -> HeaderPairs:
        """The headers of ERC-8128 for a call. `path`: from the id of the listing on."""
        wallet, now_s = wallet or self.wallet, self.now_ms // 1000
        request = SignedRequest(
            method=method, raw_path=f"{CALLS}{path}".encode(), query=query.encode(), headers=(), body=body
        )
        return signature_headers(
            request,
            origin=parse_origin(PUBLIC_URL),
            address=wallet.address,
            chain_id=CHAIN,
            created=now_s,
            expires=now_s + 60,
            nonce=nonce,
            sign=wallet.sign,
        )

    # ---- State.

    async def history(self, wallet: KeyWallet | None = None) -> tuple[CallRecord, ...]:
        """The payer's calls, newest first."""
        payer = (wallet or self.wallet).address
        page = await self.ledger.history(HistoryQuery(wallet=payer, role="payer", limit=100, offset=0))
        return page.calls

    async def remaining_units(self, payment: Payment) -> int:
        (now,) = [one for one in await self.ledger.find_payments(payment.tx_hash) if one.id == payment.id]
        return now.remaining_units

    @property
    def served(self) -> int:
        """How many requests have reached the upstream."""
        return len(self.upstream.arrived)

    @property
    def earned(self) -> int:
        """What the provider has received on the chain, in base units."""
        return self.chain.balance(CHAIN, TOKEN, PAY_TO)

    @property
    def transfers(self) -> int:
        """How many transactions the gateway has sent."""
        return len(set(self.chain.broadcasts))

    def stop_mining(self) -> None:
        """What is sent stays in the pool."""
        self.chain.is_automining = False

    async def recover_chain(self) -> None:
        """The chain answers and mines again, and recovery looks at what is left."""
        self.chain.reconnect(CHAIN)
        self.chain.is_automining = True
        self.chain.mine_sent(CHAIN)
        await self.settlement.sweep()

    async def pass_time(self, ms: int) -> None:
        """With a block and a look at the gas key, so that authorisations are taken."""
        self.now_ms += ms
        self.chain.mine(CHAIN, time=self.now_ms // 1000)
        await self.settlement.gas_budget.refresh()

    async def check_balanced(self) -> None:
        report = await self.ledger.audit()
        assert report.is_balanced, report.wrong


@asynccontextmanager
async def open_gateway(
    *,
    is_bound_required: bool = False,
    rate_limiter: RateLimiter | None = None,
    only_verified: bool = False,
    open_further_rails: OpenRails = _open_none,
    receipt_signer: ReceiptSigner | None = None,
    kind: type[InProcessGateway] = InProcessGateway,
    **limits: Any,
) -> AsyncIterator[InProcessGateway]:
    """A gateway and its upstream. `open_further_rails`, `receipt_signer`: see `InProcessGateway`. `limits` replace the defaults; a machine that pauses
    ends no dial."""
    patient: dict[str, Any] = {
        "connect_deadline_s": DEADLINE_S,
        "dns_deadline_s": DEADLINE_S,
        "drain_deadline_s": 3.0,
    }
    async with run_upstream() as upstream:
        gateway = kind(
            upstream,
            limits=replace(DEFAULT_LIMITS, **{**patient, **limits}),
            is_bound_required=is_bound_required,
            rate_limiter=rate_limiter,
            only_verified=only_verified,
            open_further_rails=open_further_rails,
            receipt_signer=receipt_signer,
        )
        try:
            async with gateway.settlement.running():
                yield gateway
        finally:
            await gateway.http_client.close()
            await gateway.database.close()


def gateway_listing(name: str = "api_quotes", upstream_url: str = "http://127.0.0.1:1") -> Listing:
    """0.01 USDC a call, published a day ago."""
    return sample_listing(
        id=ListingId(name),
        provider=PROVIDER,
        name="Quotes",
        endpoint=upstream_url + "/base",
        pay_to=PAY_TO,
        networks=(CHAIN,),
        timeout_s=5,
        created_ms=NOW_MS - 86_400_000,
    )


@asynccontextmanager
async def serve(gateway: InProcessGateway) -> AsyncIterator[int]:
    """The port of loopback at which the real server serves this gateway."""
    async with serve_app(gateway.app, limits=gateway.limits) as port:
        yield port


@asynccontextmanager
async def serve_app(app: ASGIApp, *, limits: Limits) -> AsyncIterator[int]:
    """The port of loopback at which the real server serves this application."""
    port = find_low_port()
    server = HttpServer(app, host="127.0.0.1", port=port, limits=limits)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        try:
            await server.wait_up()
            yield port
        finally:
            server.stop()
