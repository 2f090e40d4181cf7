"""CPU of one call from the ASGI application to its response, by itself: no server, no socket, no ledger, nothing beside it.

    python bench/passage.py [unpaid|credit|bound] [--heads same|full|neutral|vary] [--paths same|query|vary]
                            [--calls 1000] [--rounds 15] [--urls 1] [--operations 0] [--no-mpp] [--unsigned] [--unobserved]
                            [--view-every 250] [--trace 0.01 [--encoded]] [--profile FILE]

The gateway of the tests (`tests.kit.gateway`); the ledger and the upstream respond at once from memory. The figures are
CPU time of this process alone, so they hardly depend on other processes; the smallest of the rounds was disturbed the
least. `bound`: each call has its own nonce and signature, made before the timing. `--heads`,
`--paths`: what differs from call to call, in the words of `variety.py`. `--urls`: how many different URLs are called in
turn. `--operations`: the listing has a document of so many, and each is called at its own path. `--unsigned`:
the listing has `forwardSignature: "none"`. `--unobserved`: without the times of phases, their metric and `call_ended`; the
difference is what observation takes. `--view-every`: after so many calls, one page of a catalog of 20 listings is
rendered in the same process; the time of the page is not counted, so the figure shows what it leaves to the calls.
At 0.25 ms a call, 250 calls are the pace of 1,000 views a minute. `--trace`: the share of calls that are traced, as with
`tracing = "otlp"`; their spans are dropped at the hand-over. `--encoded`: the spans are converted and encoded as the
export thread does it, in batches of 512, and not sent; what a gateway spends in all, without the network.
Every response must have the expected status.
"""

import argparse
import asyncio
import cProfile
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.kit`

import uvloop
from bound_calls import BoundCalls
from span_sinks import DroppedSpans, EncodedSpans
from variety import HEADS, PATHS, vary_headers, vary_path

from tests.kit.gateway import (
    CALLS,
    CHAIN,
    HOST,
    PAY_TO,
    PUBLIC_URL,
    SECRET,
    USDC,
    InProcessGateway,
    gateway_listing,
)
from tests.kit.listings import sample_listing
from tests.kit.pages import BROWSER, PageHarness
from tests.kit.payer import KeyWallet
from tests.kit.upstream import LoopbackUpstream
from tollway.app.runtime import RandomPool
from tollway.gateway.call_observer import CallObserver
from tollway.gateway.phase_timer import PhaseTimer
from tollway.identity.signatures import ReceiptSigner, transaction_digests
from tollway.ids import ListingId, TxHash, keccak256
from tollway.ledger.ledger import Claim, Claimed, Close, Closed, Finish
from tollway.ledger.records import NewPayment, Rail
from tollway.limits import DEFAULT_LIMITS
from tollway.observability.call_trace import TraceSampler
from tollway.outbound.client import UpstreamRequest
from tollway.outbound.http1 import HeadLimits, parse_head
from tollway.web.calls.gateway_traces import StartTrace, make_start_trace
from tollway.web.http.middleware import read_client_address, read_request_id

LIMITS = DEFAULT_LIMITS
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nServer: bench\r\n\r\n"
BODY = b'{"symbol":"ETH","price":"3141.59"}'
HEAD_LIMITS = HeadLimits(head_bytes=65_536, line_bytes=8_192, headers=100)
LISTING = "api_0123456789abcdef01234567"
HeaderPairs = list[tuple[bytes, bytes]]
PARAMETER = {"name": "currency", "in": "query", "schema": {"type": "string", "enum": ["USD", "EUR"]}}


def now_ms() -> int:
    return int(time.time() * 1000)


class QuickLedger:
    """Payments are the ledger model's; claims are granted and closes taken without writing anything."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def claim(self, claim: Claim) -> Claimed:
        return Claimed(epoch=1, remaining_units=1_000_000, rail=Rail.CREDIT)

    async def close(self, close: Close) -> Closed:
        return Closed(remaining_units=1_000_000)

    def finish(self, finish: Finish) -> None: ...


class QuickExchange:
    """The response is there as soon as the request is sent."""

    def __init__(self, request: UpstreamRequest) -> None:
        self._request = request
        self._rest: bytes = BODY
        self.is_reused = True
        self.is_sent = self.is_body_sent = self.is_body_handed_over = False

    async def __aenter__(self) -> Self:
        self._request.check_writable()
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def send(self, *, head_deadline_s: float, fields: bytes) -> None:
        self.is_sent = self.is_body_sent = self.is_body_handed_over = True
        head = parse_head(HEAD % len(BODY), method="GET", limits=HEAD_LIMITS)
        self.status, self.headers, self.length = head.status, head.headers, len(BODY)

    @property
    def is_read(self) -> bool:
        return not self._rest

    def take_whole(self, bytes_max: int) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    async def read_chunk(self) -> bytes:
        return self.take_whole(len(self._rest))

    def close(self) -> None: ...


class QuickHttpClient:
    """Every upstream responds at once."""

    def connect(self, request: UpstreamRequest) -> QuickExchange:
        return QuickExchange(request)


class QuickGateway(InProcessGateway):
    """The gateway of the tests with a real clock, a ledger that writes nothing, and an upstream that responds at
    once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = RandomPool()
        self.spans = EncodedSpans() if options.encoded else DroppedSpans()
        super().__init__(
            LoopbackUpstream(),
            limits=LIMITS,
            has_mpp=not options.no_mpp,
            receipt_signer=ReceiptSigner.derive(SECRET),
        )

    def _make_start_trace(self) -> StartTrace | None:
        if self._options.trace is None:
            return None
        sampler = TraceSampler(
            self.spans,
            ratio=self._options.trace,
            random=random.random,
            entropy=os.urandom,
            now_ns=time.time_ns,
        )
        return make_start_trace(sampler, lambda scope: False)

    def _clock(self) -> int:
        return now_ms()

    def _entropy(self, size: int) -> bytes:
        return self._random.take_bytes(size)

    def _make_http_client(self) -> Any:
        return QuickHttpClient()

    def _wrap_ledger(self, ledger: Any) -> Any:
        return QuickLedger(ledger)

    def _read_request_id(self, scope: Any) -> str:
        return read_request_id(scope, entropy=self._random.take_bytes)

    def _read_client_address(self, scope: Any) -> str:
        return read_client_address(scope, ())

    async def prepare(self) -> None:
        """Publishes the listing."""
        count = self._options.operations
        paths = {f"/quote/{number}": {"get": {"parameters": [PARAMETER]}} for number in range(count)}
        listing = replace(
            gateway_listing(LISTING, "http://127.0.0.1:18080"),
            description="The price of a coin in a currency, fresh to the second.",
            tags=("finance", "crypto"),
            openapi={"openapi": "3.1.0", "paths": paths} if count else None,
            forward_signature="none" if self._options.unsigned else "ed25519",
            created_ms=now_ms() - 86_400_000,
            updated_ms=now_ms() - 86_400_000,
        )
        await self.catalog.publish(listing)

    async def pay(self) -> TxHash:
        """A payment in the ledger with credit for all calls."""
        new = NewPayment(
            chain_id=CHAIN,
            tx_hash=TxHash(keccak256(b"bench")),
            asset=USDC.key,
            payer=self.wallet.address,
            payee=PAY_TO,
            value_units=10**12,
            block_number=100,
            block_hash=b"\x01" * 32,
            block_time=now_ms() // 1000,
            is_final=True,
        )
        await self.ledger.record_payments([new], now_ms=now_ms())
        self.ledger.rows.payments[1] = replace(self.ledger.rows.payments[1], taken_units=1)
        return new.tx_hash


@dataclass(slots=True, kw_only=True)
class Requests:
    """Scopes of requests, by their numbers. `tx_hash` None: they pay nothing."""

    options: argparse.Namespace
    wallet: KeyWallet
    tx_hash: TxHash | None
    _plain: HeaderPairs = field(default_factory=list)

    def write(self, first: int, count: int) -> list[dict[str, Any]]:
        return [self._write_one(number) for number in range(first, first + count)]

    @property
    def are_same_again(self) -> int | None:
        """How many requests differ before the first one is sent again; None: no two are the same."""
        options = self.options
        if options.kind == "bound" or options.heads in ("neutral", "vary") or options.paths != "same":
            return None
        return max(options.urls, options.operations, 1)

    def _write_one(self, number: int) -> dict[str, Any]:
        options = self.options
        path = f"/quote/{number % options.operations if options.operations else 'ETH'}"
        target = vary_path(options.paths, number, path)
        if options.urls > 1:
            target += f"?number={number % options.urls}"
        raw_path, _, query = (CALLS + LISTING + target).partition("?")
        return {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": raw_path,
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "headers": [*self._write_heads(number), *self._pay(target)],
            "client": ("203.0.113.5", 40_000),
        }

    def _write_heads(self, number: int) -> HeaderPairs:
        host = (b"host", HOST.encode())
        if self.options.heads == "same":
            return [host, (b"user-agent", b"bench"), (b"accept", b"*/*")]
        return [host, *encode(vary_headers(self.options.heads, number))]

    def _pay(self, target: str) -> HeaderPairs:
        if self.tx_hash is None:
            return []
        if self.options.kind == "bound":
            calls = BoundCalls(
                chain_id=int(CHAIN),
                origin=PUBLIC_URL,
                api_id=LISTING,
                tx_hash=self.tx_hash,
                key=self.wallet.key,
            )
            return encode(calls.sign(target))
        if not self._plain:
            signature = self.wallet.sign_hex(transaction_digests(self.tx_hash)[0])
            self._plain = encode((("x-payment-tx", str(self.tx_hash)), ("x-signature", signature)))
        return self._plain


def encode(headers: Iterable[tuple[str, str]]) -> HeaderPairs:
    """Encodes the headers as a server passes them: names in lower case."""
    return [(name.lower().encode(), value.encode()) for name, value in headers]


class Caller:
    """Sends one request after another, and keeps the last response."""

    def __init__(self, app: Any, *, status: int) -> None:
        self._app = app
        self._status = status
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self, scopes: Sequence[dict[str, Any]], count: int) -> None:
        """Sends so many requests, from the first scope on, in turn."""
        for number in range(count):
            self.sent = []
            await self._app(dict(scopes[number % len(scopes)]), self.receive, self.send)
            if self.sent[0]["status"] != self._status:
                raise RuntimeError(f"answered {self.sent}")


def do_nothing(*args: object, **kwargs: object) -> None: ...


async def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.unobserved:
        PhaseTimer.begin = PhaseTimer.end = CallObserver.record = do_nothing  # type: ignore[method-assign]
    gateway = QuickGateway(options)
    await gateway.prepare()
    tx_hash = None if options.kind == "unpaid" else await gateway.pay()
    requests = Requests(options=options, wallet=gateway.wallet, tx_hash=tx_hash)
    same_after, asked = requests.are_same_again, 0
    same = [] if same_after is None else requests.write(0, same_after)

    def write_next(count: int) -> list[dict[str, Any]]:
        nonlocal asked
        asked += count
        return same or requests.write(asked - count, count)

    async with gateway.settlement.running():
        caller = Caller(gateway.app, status=402 if options.kind == "unpaid" else 200)
        await caller.ask(write_next(options.warm_up), options.warm_up)  # fills the caches
        profile = cProfile.Profile() if options.profile else None
        found = []
        step = options.view_every or options.calls
        harness = await publish_pages()
        async with harness.open() as pages:
            for _ in range(options.rounds):
                scopes, spent_s = write_next(options.calls), 0.0
                for first in range(0, options.calls, step):
                    count = min(step, options.calls - first)
                    if options.view_every and (await pages.get("/", headers=BROWSER)).status_code != 200:
                        raise RuntimeError("the page was refused")
                    if profile:
                        profile.enable()
                    before_s = time.process_time()
                    await caller.ask(scopes if same else scopes[first:], count)
                    spent_s += time.process_time() - before_s
                    if profile:
                        profile.disable()
                found.append(spent_s / options.calls * 1e6)
                await asyncio.sleep(0)
        if profile:
            profile.dump_stats(options.profile)
    head, *body = caller.sent
    return {
        "kind": options.kind,
        "heads": options.heads,
        "paths": options.paths,
        "trace": options.trace,
        "spans": gateway.spans.spans,
        "cpuUs": {"least": round(min(found), 1), "median": round(statistics.median(found), 1)},
        "answerBytes": sum(len(one["body"]) for one in body),
        "headBytes": sum(len(name) + len(value) + 4 for name, value in head["headers"]),
    }


async def publish_pages() -> PageHarness:
    harness = PageHarness()
    for number in range(20):
        await harness.catalog.publish(
            sample_listing(provider=PAY_TO, id=ListingId(f"api_{number}"), name=f"Quotes {number}")
        )
    return harness


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line, unless others are given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("unpaid", "credit", "bound"))
    parser.add_argument("--heads", choices=HEADS, default="same")
    parser.add_argument("--paths", choices=PATHS, default="same")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=500, help="calls before the first round")
    parser.add_argument("--urls", type=int, default=1)
    parser.add_argument("--operations", type=int, default=0)
    parser.add_argument("--no-mpp", action="store_true")
    parser.add_argument("--unsigned", action="store_true", help="the upstream gets calls without a signature")
    parser.add_argument(
        "--unobserved", action="store_true", help="no times of phases, no metric of a call, no call_ended"
    )
    parser.add_argument("--view-every", type=int, default=0, help="calls between two views of a page")
    parser.add_argument(
        "--trace", type=float, help="the share of calls that are traced; without it tracing is off"
    )
    parser.add_argument("--encoded", action="store_true", help="spans are converted and encoded too")
    parser.add_argument("--profile", help="where cProfile writes what took the time")
    options = parser.parse_args(arguments)
    if options.operations and options.paths == "vary":
        parser.error("a document of operations knows its own paths only: --paths same or query")
    if options.urls > 1 and options.paths != "same":
        parser.error("--urls and --paths both write the query")
    return options


def main() -> None:
    print(json.dumps(uvloop.run(run(parse_options()))))


if __name__ == "__main__":
    main()
