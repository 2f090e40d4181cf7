"""The bench judges as it says: ratios round by round, every goal a row, no rate of refusals, no request sent twice."""

import asyncio
import importlib
import platform
import random
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eth_account import Account

from tests.kit.channel_payer import ChannelPayer
from tests.kit.payer import decode_header, encode_header
from tollway.client import Wallet
from tollway.identity.signatures import paid_call_digest, recover
from tollway.ids import ChainId, TxHash, keccak256
from tollway.payments.proof import Proof, parse_proof
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.ledger_audit import audit

BENCH = Path(__file__).parent.parent / "bench"
PROGRAMS = sorted(path.stem for path in BENCH.glob("*.py"))
HEAD = b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(autouse=True)
def bench_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only while one of these tests runs can the bench's modules be imported, or are they there."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in set(sys.modules) - known:
        if (BENCH / f"{name}.py").exists():
            del sys.modules[name]


def outcome(**given: Any) -> Any:
    from load import Outcome

    fields = {
        "seconds": 1.0,
        "answers": 100,
        "in_time": 100,
        "refused": 0,
        "broken": 0,
        "p50_us": 1.0,
        "p99_us": 2.0,
        "max_us": 3.0,
    }
    return Outcome(**{**fields, "is_exhausted": False, **given})


def cell(name: str, *rates: int, **given: Any) -> Any:
    from throughput import Cell, Sample

    made = Cell(name=name, port=1, child=SimpleNamespace(tell_end=lambda: ""), prepare=lambda _: [], **given)
    made.samples = [
        Sample(outcome=outcome(in_time=rate), own_share=1.0, others_share=0.0, load_share=0.5, cpu_us=1.0)
        for rate in rates
    ]
    return made


@pytest.mark.parametrize(
    ("is_optimised", "arguments", "is_refused"),
    [(False, (), True), (False, ("--slow-build",), False), (True, (), False)],
)
def test_a_python_without_optimisation_is_compared_where_this_is_said(
    monkeypatch: pytest.MonkeyPatch, is_optimised: bool, arguments: tuple[str, ...], is_refused: bool
) -> None:
    import run

    begun: list[Any] = []
    monkeypatch.setattr(run, "is_optimised_build", lambda: is_optimised)
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    monkeypatch.setattr(run, "measure", begun.append)
    monkeypatch.setattr(run.uvloop, "run", lambda _: sys.exit("measured"))
    with pytest.raises(SystemExit, match="--slow-build" if is_refused else "measured"):
        run.main()
    assert len(begun) == (0 if is_refused else 1)


def test_a_result_names_the_interpreter_and_its_build_and_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from machine import describe_packages

    options = "'--prefix=/opt/py' '--enable-optimizations' '--with-lto' 'LDFLAGS=-L/opt/py/lib -Wl,-s'"
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": options}.get)
    versions = describe_packages()
    assert versions["python"] == platform.python_version()
    assert versions["pythonBuild"] == f"{platform.python_compiler()} --enable-optimizations --with-lto"


def test_published_figures_begin_with_what_a_provider_would_run_instead() -> None:
    from report import FIRST, write_first

    figures = {name: summary(2.0) for _, name in FIRST}
    lines = write_first(figures, figures)
    assert [name.partition(" / ")[2] for _, name in FIRST] == [
        "x402 deployed",
        "x402",
        "x402 402",
        "envoy",
        "envoy",
    ]
    assert [line.split(" | ")[1] for line in lines if " × " in line] == ["2 × (2.00 to 2.00)"] * len(FIRST)
    assert write_first({}, {}) == []


def test_a_second_run_of_a_commit_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import run

    monkeypatch.setattr(run, "RESULTS", tmp_path)
    monkeypatch.setattr(run, "write_markdown", lambda found, rows: "")
    for mode in ("long form", "long form", "short form", "short form"):
        found = {"commit": {"commit": "c0ffee", "isDirty": False}}
        run.write_results(found | {"run": {"startedAt": "2026-11-29 20:00 UTC", "mode": mode}}, [])
    assert sorted(path.name for path in tmp_path.glob("*.md")) == [
        "2026-11-29-c0ffee-2-short.md",
        "2026-11-29-c0ffee-2.md",
        "2026-11-29-c0ffee-short.md",
        "2026-11-29-c0ffee.md",
    ]
    assert len(list(tmp_path.glob("*.json"))) == 4


def test_a_ratio_is_of_one_round_and_then_the_median() -> None:
    from throughput import compare

    # The machine was three times as fast in the last round: what matters is beside what.
    told = compare(cell("ours", 10, 20, 90), cell("theirs", 20, 50, 180))
    assert told == {"median": 0.5, "min": 0.4, "max": 0.5}


@pytest.mark.parametrize(
    ("given", "are_refused"),
    [
        ({"refused": 1}, False),
        ({"broken": 1}, False),
        ({"answers": 0}, False),
        ({"refused": 99}, True),
    ],
)
def test_a_rate_of_unexpected_responses_does_not_count(given: dict[str, int], are_refused: bool) -> None:
    with pytest.raises(RuntimeError):
        cell("ours", are_refused=are_refused)._check(outcome(**given))


def test_a_rate_of_402s_counts_where_402s_are_expected() -> None:
    cell("ours", are_refused=True)._check(outcome(refused=100))


def test_what_ran_out_of_requests_that_are_sent_once_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[int] = []
    ours = cell("ours", is_once=True)
    ours.prepare = lambda count: signed.append(count) or [b""]
    sample = cell("any", 1).samples[0]
    monkeypatch.setattr(
        "throughput.Cell._load",
        lambda *_, **__: replace(sample, outcome=outcome(is_exhausted=len(signed) < 2)),
    )
    ours.measure(None, tmp_path, connections=1, seconds=1)
    assert signed[1] == 2 * signed[0]


def test_every_goal_has_its_row_for_every_measurement() -> None:
    from report import judge

    rows = judge({})
    assert len(rows) == 20
    assert all(row.is_reached is None and row.goal for row in rows)


def test_every_reported_ratio_is_measured() -> None:
    from report import BESIDE, ENVOY_GOALS, FIRST, GOALS
    from run import COMPARED

    told = {goal.ratio for goal in ENVOY_GOALS} | {name for _, name in (*FIRST, *BESIDE)}
    told |= {goal.path[1] for goal in GOALS if goal.path[0] == "ratios"}
    assert told <= {f"{ours} / {theirs}" for ours, theirs in COMPARED}


def summary(median: float) -> dict[str, float]:
    return {"median": median, "min": median, "max": median}


@pytest.mark.parametrize(
    ("rate", "cpu", "is_reached"),
    [(0.17, 9.0, True), (0.169, 6.01, False), (0.1, 6.0, True), (0.3, None, None)],
)
def test_a_goal_beside_envoy_is_reached_by_rate_or_by_cpu(
    rate: float, cpu: float | None, is_reached: bool | None
) -> None:
    from report import judge

    found = {"ratios": {"sqlite plain / envoy": summary(rate)}}
    if cpu is not None:
        found["cpuRatios"] = {"sqlite plain / envoy": summary(cpu)}
    assert judge(found)[0].is_reached is is_reached


@pytest.mark.parametrize(
    ("found", "is_reached"),
    [
        ({"ratios": {"402 / x402 402": summary(3)}}, True),
        ({"ratios": {"402 / x402 402": summary(2.99)}}, False),
        ({"added": {"postgres plain": {"p50Ms": summary(1.8)}}}, True),
        ({"added": {"postgres plain": {"p50Ms": summary(1.81)}}}, False),
        ({"streaming": {"peakGrowthKiB": 10 * 1024}}, True),
        ({"streaming": {"peakGrowthKiB": 10 * 1024 + 1}}, False),
    ],
)
def test_a_goal_is_reached_or_not(found: dict[str, Any], is_reached: bool) -> None:
    from report import judge

    (row,) = (row for row in judge(found) if row.is_reached is not None)
    assert row.is_reached is is_reached


def test_cpu_is_compared_in_the_same_round_and_the_spread_is_of_the_best_and_the_worst() -> None:
    from throughput import compare_cpu, find_spread

    ours, theirs = cell("ours", 10, 20, 30), cell("theirs", 100, 104, 110)
    ours.samples = [replace(one, cpu_us=cpu) for one, cpu in zip(ours.samples, (4.0, 9.0, 16.0), strict=True)]
    theirs.samples = [
        replace(one, cpu_us=cpu) for one, cpu in zip(theirs.samples, (1.0, 3.0, 2.0), strict=True)
    ]
    assert compare_cpu(ours, theirs) == {"median": 4.0, "min": 3.0, "max": 8.0}
    assert find_spread(theirs) == pytest.approx(0.1)


def test_what_a_call_adds_is_beyond_the_direct_one_and_the_commit_of_its_round() -> None:
    from latency import Delay, Delays

    delays = Delays([], {})
    for number, base in enumerate((1.0, 5.0, 1.0)):
        delays._note("direct", Delay(p50=base, p99=base), lambda _: None)
        delays._note("commit", Delay(p50=0.5, p99=1.0), lambda _: None)
        delays._note("ours", Delay(p50=base + 0.75 + number, p99=base + 3), lambda _: None)
    added = delays.tell_added("ours", over="direct", beyond="commit")
    assert added["p50Ms"] == {"median": 1.25, "min": 0.25, "max": 2.25}
    assert added["p99Ms"]["median"] == 2


def test_round_trips_side_by_side_count_their_time_once() -> None:
    from first_calls import covered_s

    assert covered_s([(1.0, 2.0), (1.5, 3.0), (5.0, 6.0), (1.2, 1.3)]) == pytest.approx(3.0)


async def test_the_load_in_python_counts_answers_and_refusals_and_sends_nothing_twice() -> None:
    from load import ask

    seen: list[bytes] = []

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, received: bytes) -> None:
            seen.append(received)
            answer = HEAD % (402 if received.endswith(b"3\r\n\r\n") else 200)
            self.transport.write(answer[:20])
            self.transport.write(answer[20:])

    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        requests = [b"GET / HTTP/1.1\r\nA: %d\r\n\r\n" % number for number in range(10)]
        told = await ask(port, requests, connections=3, seconds=30, is_once=True)
    assert sorted(seen) == requests
    assert (told.answers, told.refused, told.broken, told.is_exhausted) == (10, 1, 0, True)


@pytest.mark.parametrize(("heads", "paths"), [("same", "same"), ("vary", "vary")])
def test_each_bound_request_is_signed_by_its_payer_for_itself_alone(heads: str, paths: str) -> None:
    from gateways import Payment, Ticket, sign_part
    from variety import vary_path

    payments = tuple(Payment(tx_hash=TxHash(keccak256(key)), key=key) for key in (b"\x01" * 32, b"\x02" * 32))
    ticket = Ticket(
        chain_id=84532, port=8402, api_id="api_1", payments=payments, heads=heads, paths=paths, first=6
    )
    requests = sign_part(ticket, 4)
    assert len(set(requests)) == 4
    for number, request in enumerate(requests):
        target = vary_path(paths, 6 + number)
        line, *lines = request.decode().split("\r\n")
        headers = [tuple(field.encode() for field in row.split(": ", 1)) for row in lines if row]
        proof = parse_proof([(name.lower(), value) for name, value in headers])
        assert isinstance(proof, Proof)
        assert proof.binding is not None
        digest = paid_call_digest(
            chain_id=ChainId(84532),
            gateway="http://127.0.0.1:8402",
            api_id="api_1",
            method="GET",
            target=target.encode(),
            body_hash=keccak256(b""),
            transaction=proof.tx_hash,
            valid_until=proof.binding.valid_until,
            nonce=proof.binding.nonce,
        )
        assert line == f"GET /api/v2/gateway/api_1{target} HTTP/1.1"
        assert str(recover(digest, proof.signature)) == Account.from_key(payments[number % 2].key).address


@pytest.mark.parametrize(
    ("heads", "differing"),
    [
        ("same", set()),
        ("full", set()),
        (
            "neutral",
            {"traceparent", "tracestate", "User-Agent", "Accept", "Accept-Encoding", "Accept-Language"},
        ),
        (
            "vary",
            {"traceparent", "tracestate", "User-Agent", "Accept", "Accept-Encoding", "Accept-Language"}
            | {"X-Session-Id"},
        ),
    ],
)
def test_what_differs_from_request_to_request_is_what_is_said(heads: str, differing: set[str]) -> None:
    from variety import vary_headers

    found = [dict(vary_headers(heads, number)) for number in range(1000)]
    assert {name for name in found[0] if len({one[name] for one in found}) > 1} == differing
    each = {name for name in found[0] if len({one[name] for one in found}) == 1000}
    assert each == differing & {"traceparent", "tracestate", "X-Session-Id"}


@pytest.mark.parametrize(
    ("paths", "differing"), [("same", (1, 1)), ("query", (1, 1000)), ("vary", (1000, 1000))]
)
def test_paths_and_queries_differ_as_is_said(paths: str, differing: tuple[int, int]) -> None:
    from variety import vary_path

    found = [vary_path(paths, number).partition("?") for number in range(1000)]
    assert (len({path for path, _, _ in found}), len({query for _, _, query in found})) == differing


def test_samples_are_shared_out_by_thread_and_by_function() -> None:
    from where import Node, parse_stacks

    raw = """\
thread (7): MainThread;main (/a/src/tollway/cli/main.py:3);call (/a/src/tollway/gateway/pipeline.py:9) 3
thread (7): MainThread;main (/a/src/tollway/cli/main.py:4);read (/v/lib/python3.11/site-packages/x/y.py:1) 1
thread (8) 5
thread (9): writer;run (/p/lib/python3.11/threading.py:982) 2
"""
    found = parse_stacks(raw)
    assert {number: (name, seen.total()) for number, (name, seen) in found.items()} == {
        7: ("MainThread", 4),
        9: ("writer", 2),
    }
    assert list(found[9][1]) == [("run (threading.py)",)]
    tree = Node()
    for frames, count in found[7][1].items():
        tree.add(frames, count)
    assert list(tree.write(2.0, 4.0)) == [
        "8.0 (itself 0.0) main (tollway/cli/main.py)",
        "  6.0 (itself 6.0) call (tollway/gateway/pipeline.py)",
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_can_be_imported(name: str) -> None:
    importlib.import_module(name)


async def test_the_rows_that_the_scale_bench_writes_fit_the_tables_and_their_sums_hold(
    tmp_path: Path,
) -> None:
    from scale_data import fill
    from scale_rows import Scale

    url = f"sqlite:///{tmp_path}/scale.sqlite3"
    await fill(url, Scale(seed=5, listings=200, calls=2_000, payments=200, channels=20))
    database = connect_database(url)
    await database.open()
    try:
        report = await database.read(audit)
    finally:
        await database.close()
    assert (report.calls, report.payments, report.wrong) == (2_000, 220, ())
    assert (report.wrong_periods, report.marked_periods) == ((), 0)
    assert report.closed_periods > 24 * 90
    assert len(report.held_payments) == 3


async def test_every_question_of_the_scale_bench_is_answered_and_every_round_runs(tmp_path: Path) -> None:
    from scale import ask
    from scale_data import fill
    from scale_plans import find_slowest, recorded
    from scale_questions import QUESTIONS, Side
    from scale_rounds import ROUNDS, time_round
    from scale_routes import routes_over
    from scale_rows import Scale

    url, scale = (
        f"sqlite:///{tmp_path}/scale.sqlite3",
        Scale(seed=5, listings=1_000, calls=2_000, payments=1_000, channels=100),
    )
    await fill(url, scale)
    database = connect_database(url)
    await database.open()
    try:
        side = Side(
            scale=scale,
            is_small=True,
            database=database,
            routes=routes_over(database, None),
            chance=random.Random(5),
        )
        for question in QUESTIONS:
            assert (await ask(side, question)).ms > 0, question.name
        for one in ROUNDS:
            told = await time_round(one, side)
            assert told["rows"] > 0, one.name
        async with recorded() as statements:
            await ask(side, QUESTIONS[0])
        slowest = await find_slowest(database, statements)
    finally:
        await database.close()
    assert slowest is not None
    assert "FROM listing" in slowest["statement"]
    assert any("listing" in line for line in slowest["plan"])


@pytest.mark.parametrize(
    "line",
    [
        "credit",
        "bound",
        "unpaid",
        "unpaid --no-mpp --operations=3",
        "credit --urls=3",
        "credit --operations=3 --paths=query",
        "credit --heads=full",
        "credit --unsigned",
        "credit --heads=neutral --paths=query",
        "credit --heads=vary --paths=vary",
        "bound --heads=vary --paths=vary",
        "credit --trace=0",
    ],
)
async def test_one_call_by_itself_is_measured(line: str) -> None:
    from passage import BODY, parse_options, run

    told = await run(parse_options([*line.split(), "--calls=2", "--rounds=2", "--warm-up=2"]))
    assert told["kind"] == line.split()[0]
    assert (told["answerBytes"] == len(BODY)) is (told["kind"] != "unpaid")
    assert told["cpuUs"]["least"] > 0
    assert told["spans"] == 0


@pytest.mark.parametrize("sink", ["", "--encoded"])
async def test_one_traced_call_by_itself_is_measured_with_all_its_spans(sink: str) -> None:
    from passage import parse_options, run

    calls = 600  # more spans than one batch
    told = await run(
        parse_options(["credit", "--trace=1", f"--calls={calls}", "--rounds=1", "--warm-up=1", *sink.split()])
    )
    assert told["spans"] == 7 * (calls + 1)


def test_a_caller_on_a_channel_signs_over_the_sum_that_the_gateway_announced() -> None:
    from flood_callers import ChannelCaller

    price, payer = 3, ChannelPayer()
    wallet = Wallet.from_key(bytes(payer.account.key))
    accepted = payer.payment({}, amount=price)["accepted"]
    required = {"x402Version": 2, "resource": {"url": "http://127.0.0.1/x"}, "accepts": [accepted]}
    state = {"channelId": str(payer.channel_id), "balance": "1000", "totalClaimed": "0"}

    def head(status: int, name: str, content: dict[str, Any]) -> str:
        return f"HTTP/1.1 {status} X\r\n{name}: {encode_header(content).decode()}\r\n\r\n"

    def ceiling(request: bytes) -> int:
        proof = request.decode().partition("PAYMENT-SIGNATURE: ")[2].partition("\r\n")[0]
        return int(decode_header(proof.encode())["payload"]["voucher"]["maxClaimableAmount"])

    value = encode_header(required).decode()
    caller = ChannelCaller.open(wallet, value, port=1, path="/x", balance=1_000)
    assert ceiling(caller.sign()) == price
    charged = {"chargedAmount": "2", "channelState": {**state, "chargedCumulativeAmount": "2"}}
    caller.apply(head(200, "PAYMENT-RESPONSE", {"success": True, "extra": charged}))
    assert ceiling(caller.sign()) == 2 + price
    told = {**accepted["extra"], "channelState": {**state, "chargedCumulativeAmount": "40"}}
    mismatch = {"error": "cumulative_amount_mismatch", "accepts": [{**accepted, "extra": told}]}
    caller.apply(head(402, "PAYMENT-REQUIRED", {**required, **mismatch}))
    assert ceiling(caller.sign()) == 40 + price


def test_a_ratio_beside_floods_is_of_the_medians_and_every_call_without_a_200_counts() -> None:
    from floods import compare, count_refused

    def round_of(p99: float, **statuses: int) -> dict[str, Any]:
        return {"statuses": statuses, "p50Ms": 1.0, "p99Ms": p99, "Cpup50Ms": 1.0, "Cpup99Ms": 2.0}

    told = compare(
        [round_of(2.0), round_of(4.0), round_of(3.0, **{"402": 1})], [round_of(9.0, **{"200": 5, "503": 2})]
    )
    assert (told["p99Ratio"], told["besidep99Ms"], count_refused(told)) == (3.0, 9.0, 3)
