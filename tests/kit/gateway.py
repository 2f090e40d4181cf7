"""A whole gateway in one process, for tests of the passage: the real rooms over in-memory twins, in front of an
upstream on loopback. A call runs through the real ASGI door, without a socket in front (`ask`).
"""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.kit.accounts import CHAIN, Buyer, FakeChains
from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway_settlement import SmallSettlement, Stores
from tests.kit.listings import sample_listing
from tests.kit.memory_catalog import MemoryCatalog
from tests.kit.memory_sessions import MemorySessions
from tests.kit.upstream import LoopbackUpstream, run_upstream
from tests.model.ledger import MemoryBook
from tollway.chain.rules import PRESETS, ChainRules
from tollway.gateway.breaker import Breaker
from tollway.gateway.cashier import Cashier
from tollway.gateway.forward import Passage
from tollway.gateway.meters import Meters
from tollway.gateway.replays import ClientNetworks
from tollway.gateway.serve import Gateway, GatewayName
from tollway.gateway.upstream_signature import UpstreamSigner
from tollway.identifiers import Address, ChainId, ListingId, TxHash, keccak256
from tollway.identity.authenticator import Authenticator
from tollway.identity.front_desk import FrontDesk
from tollway.identity.http_signature import SignedRequest
from tollway.identity.public_origin import parse_origin
from tollway.identity.signatures import SignatureJudge, paid_call_digest, transaction_digests
from tollway.ledger.call import CallRecord, NewPayment, Payment
from tollway.ledger.statement import HistoryQuery
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.outbound.dialer import Dialer
from tollway.payments.proof import Binding, format_binding
from tollway.payments.till import Till
from tollway.rates import Rates
from tollway.registry.listing import Listing, Shelf
from tollway.registry.quality_tally import QualityTally
from tollway.web.app import build_app
from tollway.web.call_routes import CallRoutes
from tollway.web.load_gauge import LoadGauge
from tollway.web.terms_wire import TermsWire

PUBLIC_URL = "https://gw.example.com"
NOW_MS = 1_800_000_000_000
RULES = PRESETS["local"].rules()
USDC = RULES.assets[0]
PROVIDER = Address(b"\xcc" * 20)
PAY_TO = Address(b"\xbb" * 20)
CALLS = "/api/v2/gateway/"

HeaderPairs = Sequence[tuple[str, str]]


class SmallGateway:
    """Everything at hand. `now_ms` is the clock; set it forward as needed."""

    def __init__(
        self,
        upstream: LoopbackUpstream,
        *,
        limits: Limits,
        is_bound_required: bool = False,
        rates: Rates | None = None,
        before: "SmallGateway | None" = None,
        only_verified: bool = False,
        stores: Stores | None = None,
    ) -> None:
        """`before`: a gateway whose catalog goes on here, and its books where there are no other `stores`. `only_verified`:
        sells what is `verified`. `stores`: in a database; then `before` is a gateway beside this one, on the same chain."""
        self.now_ms = NOW_MS
        self.upstream = upstream
        self.limits = limits
        book = before.book if before else MemoryBook(now_ms=self._clock, limits=limits)
        street = before.settling.street if before and stores else None
        is_beside = stores is not None
        stores = stores or Stores.in_memory(book, limits=limits)
        self.book: MemoryBook = stores.book
        self.catalog: MemoryCatalog = before.catalog if before else MemoryCatalog()
        self.chains = FakeChains()
        self.blocked: set[Address] = set()
        self.verified: set[ListingId] = set()
        self.outcomes: list[str] = []
        self.upstream_s: list[float] = []
        self.tally = QualityTally()
        self.buyer = Buyer.named("buyer")
        self._numbers = itertools.count(1_000_000 if before and is_beside else 1)
        self.ticks_ms = 0
        self.dialer = self._make_dialer()
        self.meters = Meters(limits=limits, rates=rates or Rates())
        self._open_desk()
        self.rules: dict[ChainId, ChainRules] = {CHAIN: RULES}
        self.till = Till(
            book=self.book,
            chains=self.chains,
            rules=self.rules,
            judge_of_signatures=SignatureJudge(self.chains, limits=limits),
            meter=self.meters,
            limits=limits,
            now_ms=self._clock,
            find_older_terms=self._find_older_terms,
        )
        self.breaker = Breaker(limits=limits)
        self.signer = UpstreamSigner.derive([b"\x07" * 32])
        self.passage = self._make_passage()
        self.settling: SmallSettlement = SmallSettlement(
            RULES, stores=stores, limits=limits, now_ms=self._clock, host="gw.example.com", street=street
        )
        self.cashier = Cashier(
            book=self.book,
            answers=self.settling.answers,
            settlement=self.settling.settlement,
            challenger=self.settling.challenger,
            rules=self.rules,
            limits=limits,
            public_url=PUBLIC_URL,
            now_ms=self._clock,
            entropy=self._entropy,
            networks=ClientNetworks.derive([b"\x07" * 32]),
            prove_wallet=self._prove_wallet,
        )
        self.gateway = self._make_gateway(is_bound_required, only_verified)
        self._open_door()

    def _make_dialer(self) -> Dialer:
        return Dialer(
            limits=self.limits,
            allow_private=True,
            lookup=lambda host, port: ["127.0.0.1"],
            ticks_ms=lambda: self.ticks_ms,
        )

    def _open_desk(self) -> None:
        """What proves wallets: `desk` gives out nonces and sessions."""
        sessions, origin = MemorySessions(), parse_origin(PUBLIC_URL)
        judge = SignatureJudge(self.chains, limits=self.limits)
        self.desk = FrontDesk(
            sessions,
            judge,
            self.meters,
            origin=origin,
            limits=self.limits,
            now_ms=self._clock,
            entropy=self._entropy,
        )
        self.authenticator = Authenticator(
            sessions,
            self.desk,
            origin=origin,
            limits=self.limits,
            now_ms=self._clock,
            rates=self.meters.rates,
        )

    async def _prove_wallet(self, request: SignedRequest) -> Address:
        return (await self.authenticator.authenticate_call(request)).address

    def _make_passage(self) -> Passage:
        return Passage(
            dialer=self.dialer,
            book=self.book,
            limits=self.limits,
            now_ms=self._clock,
            public_url=PUBLIC_URL,
            name="gw.example.com",
            signer=self.signer,
            entropy=self._entropy,
            note_upstream_s=self.upstream_s.append,
            breaker=self.breaker,
            tally=self.tally,
        )

    def _make_gateway(self, is_bound_required: bool, only_verified: bool) -> Gateway:
        async def is_verified(listing_id: ListingId) -> bool:
            return listing_id in self.verified

        name = GatewayName(
            origin=PUBLIC_URL,
            host="gw.example.com",
            allow_private=True,
            is_bound_required=is_bound_required,
        )
        return Gateway(
            name=name,
            catalog=self.catalog,
            book=self.book,
            till=self.till,
            cashier=self.cashier,
            passage=self.passage,
            meters=self.meters,
            limits=self.limits,
            is_blocked=self.blocked.__contains__,
            now_ms=self._clock,
            entropy=self._entropy,
            is_verified=is_verified if only_verified else None,
        )

    def _open_door(self) -> None:
        self.gauge = LoadGauge(limits=self.limits, clock=lambda: 0.0, read_memory_bytes=lambda: 0)
        self.calls = CallRoutes(
            self.gateway,
            terms=TermsWire(
                self.rules,
                public_url=PUBLIC_URL,
                challenger=self.settling.challenger,
                now_ms=self._clock,
                entropy=self._entropy,
            ),
            limits=self.limits,
            public_url=PUBLIC_URL,
            now_ms=self._clock,
            request_id_of=lambda scope: "req_test",
            client_address_of=lambda scope: str(scope["client"][0]),
            note_outcome=self.outcomes.append,
            gauge=self.gauge,
        )
        self.app = build_app(
            call_app=self.calls,
            routers=[],
            public_url=PUBLIC_URL,
            limits=self.limits,
            clock=lambda: self.now_ms / 1000,
            entropy=self._entropy,
            gauge=self.gauge,
        )

    def _clock(self) -> int:
        return self.now_ms

    def _entropy(self, size: int) -> bytes:
        return keccak256(next(self._numbers).to_bytes(8, "big"))[:size]

    async def _find_older_terms(self, shelf: Shelf, moment_ms: int) -> Shelf:
        return replace(shelf, versions=await self.catalog.terms_since(shelf.listing.id, moment_ms))

    # ---- What is for sale.

    async def publish(self, name: str = "api_quotes", **changes: Any) -> Listing:
        """A listing of 0.01 USDC a call, on sale for a day; every field can be given."""
        listing = replace(self.sample(name), **changes)
        await self.catalog.publish(listing)
        return listing

    async def revise(self, listing: Listing, **changes: Any) -> Listing:
        changed = replace(listing, updated_ms=self.now_ms, **changes)
        await self.catalog.revise(changed, expected_revision=listing.revision)
        return replace(changed, revision=listing.revision + 1)

    def sample(self, name: str) -> Listing:
        born_ms = NOW_MS - 86_400_000
        return sample_listing(
            id=ListingId(name),
            provider=PROVIDER,
            name="Quotes",
            endpoint=self.upstream.url + "/base",
            pay_to=PAY_TO,
            networks=(CHAIN,),
            timeout_s=5,
            created_ms=born_ms,
        )

    # ---- Who pays.

    async def pay(self, units: int = 10_000, *, buyer: Buyer | None = None, age_s: int = 0) -> Payment:
        """A payment that the books know already: `units` of a millionth USDC."""
        new = self.sample_payment(
            value_units=units,
            payer=(buyer or self.buyer).address,
            block_time=self.now_ms // 1000 - age_s,
        )
        (payment,) = await self.book.record_payments([new], now_ms=self.now_ms)
        return payment

    def sample_payment(self, **changes: Any) -> NewPayment:
        """An accepted payment that is not recorded yet; every field can be given."""
        number = next(self._numbers)
        new = NewPayment(
            chain_id=CHAIN,
            tx_hash=TxHash(keccak256(b"tx" + number.to_bytes(8, "big"))),
            asset=USDC.key,
            payer=self.buyer.address,
            payee=PAY_TO,
            value_units=10_000,
            block_number=100 + number,
            block_hash=b"\x01" * 32,
            block_time=self.now_ms // 1000,
            is_final=True,
        )
        return replace(new, **changes)

    def plain_proof(
        self, tx_hash: TxHash, *, buyer: Buyer | None = None, is_raw: bool = False
    ) -> HeaderPairs:
        digest = transaction_digests(tx_hash)[1 if is_raw else 0]
        return [("X-Payment-Tx", str(tx_hash)), ("X-Signature", (buyer or self.buyer).sign(digest))]

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
        buyer: Buyer | None = None,
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
            ("X-Signature", (buyer or self.buyer).sign(digest)),
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
        pairs = [("host", "gw.example.com"), *framing, *headers]
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
        """Until the gateway is done with it."""
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

    # ---- What became of it.

    async def history(self, buyer: Buyer | None = None) -> tuple[CallRecord, ...]:
        """The payer's calls, newest first."""
        wallet = (buyer or self.buyer).address
        page = await self.book.history(HistoryQuery(wallet=wallet, role="payer", limit=100, offset=0))
        return page.calls

    async def rest_units(self, payment: Payment) -> int:
        (now,) = [one for one in await self.book.find_payments(payment.tx_hash) if one.id == payment.id]
        return now.rest_units

    async def check_balanced(self) -> None:
        report = await self.book.audit()
        assert report.is_balanced, report.wrong


@asynccontextmanager
async def open_gateway(
    *,
    is_bound_required: bool = False,
    rates: Rates | None = None,
    only_verified: bool = False,
    **limits: Any,
) -> AsyncIterator[SmallGateway]:
    """A gateway and its upstream. `limits` replace the defaults; waits for networks are short."""
    short: dict[str, Any] = {"connect_deadline_s": 5.0, "dns_deadline_s": 5.0, "drain_deadline_s": 3.0}
    async with run_upstream() as upstream:
        gate = SmallGateway(
            upstream,
            limits=replace(DEFAULT_LIMITS, **{**short, **limits}),
            is_bound_required=is_bound_required,
            rates=rates,
            only_verified=only_verified,
        )
        try:
            async with gate.settling.running():
                yield gate
        finally:
            await gate.dialer.close()
