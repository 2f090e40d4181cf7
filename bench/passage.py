"""CPU of one call from the ASGI door to its answer, by itself: no server, no socket, no books, nobody beside it.

    python bench/passage.py [unpaid|credit] [--calls 1000] [--rounds 15] [--urls 1] [--operations 0] [--no-mpp]
                            [--profile FILE]

The real rooms, wired as `frontage` wires them; the books and the upstream answer at once from memory. What is told is
CPU time of this process alone, so that it hardly depends on what else runs; the least of the rounds is the one that was
disturbed least. `--urls`: how many different ones are asked for in turn. `--operations`: the listing has a document of so
many, and each is asked for at a path of its own.
Every answer has to have the status that is asked for.
"""

import argparse
import asyncio
import cProfile
import json
import secrets
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.kit`

import uvloop

from tests.kit.accounts import CHAIN, Buyer, FakeChains
from tests.kit.gateway import CALLS, PAY_TO, PROVIDER, PUBLIC_URL, RULES, USDC
from tests.kit.gateway_settlement import SmallSettlement, Stores
from tests.kit.listings import sample_listing
from tests.kit.memory_catalog import MemoryCatalog
from tests.model.ledger import MemoryBook
from tollway.entropy import Entropy
from tollway.gateway.cashier import Cashier
from tollway.gateway.forward import Passage
from tollway.gateway.meters import Meters
from tollway.gateway.serve import Gateway, GatewayName
from tollway.gateway.upstream_signature import UpstreamSigner
from tollway.identifiers import ListingId, TxHash, keccak256
from tollway.identity.notary import Notary
from tollway.identity.signatures import SignatureJudge, transaction_digests
from tollway.ledger.book import Claim, Claimed, Close, Closed, Finish
from tollway.ledger.call import NewPayment, Rail
from tollway.limits import DEFAULT_LIMITS
from tollway.outbound.answer_head import HeadLimits, parse_head
from tollway.outbound.upstream import Progress, UpstreamRequest
from tollway.payments.till import Till
from tollway.rates import Rates
from tollway.registry.listing import Shelf
from tollway.web.app import build_app
from tollway.web.call_routes import CallRoutes
from tollway.web.load_gauge import LoadGauge
from tollway.web.middleware import read_client_address, read_request_id
from tollway.web.terms_wire import TermsWire

HOST = "gw.example.com"
LIMITS = DEFAULT_LIMITS
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nServer: bench\r\n\r\n"
BODY = b'{"symbol":"ETH","price":"3141.59"}'
HEAD_LIMITS = HeadLimits(head_bytes=65_536, line_bytes=8_192, field_bytes=8_192, headers=100)
PARAMETER = {"name": "currency", "in": "query", "schema": {"type": "string", "enum": ["USD", "EUR"]}}


def now_ms() -> int:
    return int(time.time() * 1000)


class QuickBook:
    """Payments are the twin's; claims are granted and closes taken without writing anything."""

    def __init__(self, book: MemoryBook) -> None:
        self._book = book

    def __getattr__(self, name: str) -> Any:
        return getattr(self._book, name)

    async def claim(self, claim: Claim) -> Claimed:
        return Claimed(epoch=1, rest_units=1_000_000, rail=Rail.CREDIT)

    async def close(self, close: Close) -> Closed:
        return Closed(rest_units=1_000_000)

    def finish(self, finish: Finish) -> None: ...


class QuickResponse:
    def __init__(self) -> None:
        head = parse_head(HEAD % len(BODY), method="GET", limits=HEAD_LIMITS)
        self.status, self.headers = head.status, head.headers
        self._rest: bytes = BODY
        self.body_wholly_sent = True

    @property
    def is_read(self) -> bool:
        return not self._rest

    async def read_chunk(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None: ...


class QuickDialer:
    """Every upstream answers before it is asked."""

    async def send(
        self, request: UpstreamRequest, *, before_send: Any, head_deadline_s: float, progress: Progress
    ) -> QuickResponse:
        request.check_writable()
        await before_send()
        progress.sent = progress.body_handed_over = progress.body_wholly_sent = True
        return QuickResponse()


class Door:
    """The ASGI application, and one listing behind it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.book = MemoryBook(now_ms=now_ms, limits=LIMITS)
        self.catalog = MemoryCatalog()
        self.settling = SmallSettlement(
            RULES,
            stores=Stores.in_memory(self.book, limits=LIMITS),
            limits=LIMITS,
            now_ms=now_ms,
            host=HOST,
        )
        self._notary = Notary.derive(b"\x07" * 32)
        self._challenger = None if options.no_mpp else self.settling.challenger
        self._names = Entropy()
        self._gauge = LoadGauge(limits=LIMITS, clock=time.monotonic, read_memory_bytes=lambda: 0)
        self.app = build_app(
            call_app=self._calls(),
            routers=[],
            public_url=PUBLIC_URL,
            limits=LIMITS,
            clock=time.monotonic,
            entropy=secrets.token_bytes,
            gauge=self._gauge,
        )

    def _calls(self) -> CallRoutes:
        return CallRoutes(
            self._gateway(),
            terms=TermsWire(
                {CHAIN: RULES},
                public_url=PUBLIC_URL,
                challenger=self._challenger,
                notary=self._notary,
                offer_valid_s=LIMITS.price_memory_s,
                now_ms=now_ms,
                entropy=self._names.take,
            ),
            limits=LIMITS,
            public_url=PUBLIC_URL,
            now_ms=now_ms,
            request_id_of=lambda scope: read_request_id(scope["headers"], entropy=self._names.take),
            client_address_of=lambda scope: read_client_address(scope, ()),
            note_outcome=lambda outcome: None,
            gauge=self._gauge,
        )

    def _gateway(self) -> Gateway:
        book: Any = QuickBook(self.book)
        dialer: Any = QuickDialer()
        rules = {CHAIN: RULES}
        meters = Meters(limits=LIMITS, rates=Rates())
        chains = FakeChains()
        till = Till(
            book=book,
            chains=chains,
            rules=rules,
            judge_of_signatures=SignatureJudge(chains, limits=LIMITS),
            meter=meters,
            limits=LIMITS,
            now_ms=now_ms,
            find_older_terms=self._find_older_terms,
        )
        return Gateway(
            name=GatewayName(origin=PUBLIC_URL, host=HOST, allow_private=True, is_bound_required=False),
            catalog=self.catalog,
            book=book,
            till=till,
            cashier=Cashier(
                book=book,
                answers=self.settling.answers,
                settlement=self.settling.settlement,
                challenger=self._challenger,
                notary=self._notary,
                rules=rules,
                limits=LIMITS,
                public_url=PUBLIC_URL,
                now_ms=now_ms,
                entropy=self._names.take,
            ),
            passage=Passage(
                dialer=dialer,
                book=book,
                limits=LIMITS,
                now_ms=now_ms,
                public_url=PUBLIC_URL,
                name=HOST,
                signer=UpstreamSigner.derive([b"\x07" * 32]),
                entropy=self._names.take,
            ),
            meters=meters,
            limits=LIMITS,
            is_blocked=lambda wallet: False,
            now_ms=now_ms,
            entropy=self._names.take,
        )

    async def _find_older_terms(self, shelf: Shelf, moment_ms: int) -> Shelf:
        return shelf

    async def furnish(self) -> list[dict[str, Any]]:
        """Publishes the listing; the requests that are made in turn."""
        count = self._options.operations
        paths = {f"/quote/{number}": {"get": {"parameters": [PARAMETER]}} for number in range(count)}
        listing = sample_listing(
            provider=PROVIDER,
            id=ListingId("api_0123456789abcdef01234567"),
            name="Quotes",
            description="The price of a coin in a currency, fresh to the second.",
            tags=("finance", "crypto"),
            endpoint="http://127.0.0.1:18080/base",
            pay_to=PAY_TO,
            openapi={"openapi": "3.1.0", "paths": paths} if count else None,
            created_ms=now_ms() - 86_400_000,
        )
        await self.catalog.publish(listing)
        headers = await self._headers()
        many = max(self._options.urls, 1)
        return [
            scope_of(f"{CALLS}{listing.id}/quote/{number % count if count else 'ETH'}", number, many, headers)
            for number in range(max(many, count))
        ]

    async def _headers(self) -> list[tuple[bytes, bytes]]:
        plain = [(b"host", HOST.encode()), (b"user-agent", b"bench"), (b"accept", b"*/*")]
        if self._options.kind == "unpaid":
            return plain
        buyer = Buyer.named("buyer")
        new = NewPayment(
            chain_id=CHAIN,
            tx_hash=TxHash(keccak256(b"bench")),
            asset=USDC.key,
            payer=buyer.address,
            payee=PAY_TO,
            value_units=10**12,
            block_number=100,
            block_hash=b"\x01" * 32,
            block_time=now_ms() // 1000,
            is_final=True,
        )
        await self.book.record_payments([new], now_ms=now_ms())
        self.book.rows.payments[1] = replace(self.book.rows.payments[1], taken_units=1)
        signature = buyer.sign(transaction_digests(new.tx_hash)[0])
        return [
            *plain,
            (b"x-payment-tx", str(new.tx_hash).encode()),
            (b"x-signature", signature.encode()),
        ]


def scope_of(path: str, number: int, many: int, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"" if many == 1 else b"number=%d" % number,
        "headers": headers,
        "client": ("203.0.113.5", 40_000),
    }


class Caller:
    """Asks one request after another, and keeps the last answer."""

    def __init__(self, app: Any, scopes: list[dict[str, Any]], *, status: int) -> None:
        self._app = app
        self._scopes = scopes
        self._status = status
        self._next = 0
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self, count: int) -> None:
        for _ in range(count):
            self.sent = []
            scope = dict(self._scopes[self._next % len(self._scopes)])
            self._next += 1
            await self._app(scope, self.receive, self.send)
            if self.sent[0]["status"] != self._status:
                raise RuntimeError(f"answered {self.sent}")


async def run(options: argparse.Namespace) -> dict[str, Any]:
    door = Door(options)
    scopes = await door.furnish()
    async with door.settling.running():
        caller = Caller(door.app, scopes, status=402 if options.kind == "unpaid" else 200)
        await caller.ask(500)  # what is made once is made
        profile = cProfile.Profile() if options.profile else None
        if profile:
            profile.enable()
        found = []
        for _ in range(options.rounds):
            before = time.process_time()
            await caller.ask(options.calls)
            found.append((time.process_time() - before) / options.calls * 1e6)
            await asyncio.sleep(0)
        if profile:
            profile.disable()
            profile.dump_stats(options.profile)
    head, *body = caller.sent
    return {
        "kind": options.kind,
        "cpuUs": {"least": round(min(found), 1), "median": round(statistics.median(found), 1)},
        "answerBytes": sum(len(one["body"]) for one in body),
        "headBytes": sum(len(name) + len(value) + 4 for name, value in head["headers"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("unpaid", "credit"))
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--urls", type=int, default=1)
    parser.add_argument("--operations", type=int, default=0)
    parser.add_argument("--no-mpp", action="store_true")
    parser.add_argument("--profile", help="where cProfile writes what took the time")
    print(json.dumps(uvloop.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
