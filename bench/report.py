"""Turns the results of a run into the table of goals, as Markdown. Every goal has its row, reached or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PEAK_GROWTH_KIB_MAX = 10 * 1024
"""A body of 100 MiB may move the gateway's peak by a tenth of itself; a buffered one would move it by all."""

ELSEWHERE = (
    "resident memory after a million paid calls: `bench/memory.py`",
    "settled calls (x402, MPP): `bench/settled_calls.py`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure beside its goal. `cpu`: CPU per response in relation to Envoy, where that is a goal too. `beyond`: a
    target above the goal. `is_reached` None: it could not be measured here."""

    title: str
    figure: str
    spread: str
    goal: str
    is_reached: bool | None
    cpu: str = ""
    beyond: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyGoal:
    """`ratio`: its name among the ratios. Reached by rate or by CPU; `cpu_max` is of a Python 3.13 built with optimisation, and `rate_min` its inverse."""

    title: str
    ratio: str
    rate_min: float
    cpu_max: float
    beyond: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A minimum or a maximum of a figure. `path`: its place in the results."""

    title: str
    path: tuple[str, ...]
    limit: float
    unit: str
    is_least: bool = False
    beyond: str = ""
    scale: float = 1.0


Found = Mapping[str, Any]
NOT_MEASURED = "not measured here"
_SAME, _VARIED = "the same requests", "no two requests the same"
ENVOY_GOALS = (
    EnvoyGoal(
        title=f"paid calls on credit, SQLite, plain signature, {_SAME} / Envoy",
        ratio="sqlite plain / envoy",
        rate_min=0.17,
        cpu_max=6.0,
        beyond=0.35,
    ),
    EnvoyGoal(
        title=f"paid calls on credit, SQLite, plain signature, {_VARIED} / Envoy",
        ratio="sqlite plain varied / envoy varied",
        rate_min=0.17,
        cpu_max=6.0,
        beyond=0.35,
    ),
    EnvoyGoal(
        title=f"paid calls on credit, SQLite, bound signature, {_SAME} but for nonce and signature / Envoy",
        ratio="sqlite bound / envoy",
        rate_min=0.13,
        cpu_max=7.5,
        beyond=0.25,
    ),
    EnvoyGoal(
        title=f"paid calls on credit, SQLite, bound signature, {_VARIED} / Envoy",
        ratio="sqlite bound varied / envoy varied",
        rate_min=0.13,
        cpu_max=7.5,
        beyond=0.25,
    ),
    EnvoyGoal(
        title=f"paid calls on credit, PostgreSQL, plain signature, {_SAME} / Envoy",
        ratio="postgres plain / envoy",
        rate_min=0.15,
        cpu_max=6.5,
        beyond=0.25,
    ),
    EnvoyGoal(
        title=f"paid calls on credit, PostgreSQL, plain signature, {_VARIED} / Envoy",
        ratio="postgres plain varied / envoy varied",
        rate_min=0.15,
        cpu_max=6.5,
        beyond=0.25,
    ),
)
GOALS = (
    Goal(
        title="paid calls on credit, SQLite, plain signature / x402 middleware as deployed",
        path=("ratios", "sqlite plain / x402 deployed"),
        limit=30,
        unit=" ×",
        is_least=True,
    ),
    Goal(
        title="paid calls on credit, SQLite, plain signature / x402 middleware, all in one process",
        path=("ratios", "sqlite plain / x402"),
        limit=2,
        unit=" ×",
        is_least=True,
    ),
    Goal(
        title="added at one connection, SQLite, plain, p50, beyond one bare commit",
        path=("added", "sqlite plain", "p50Ms"),
        limit=0.8,
        unit=" ms",
        beyond="0.5 ms",
    ),
    Goal(
        title="added at one connection, PostgreSQL, plain, p50, beyond one bare commit",
        path=("added", "postgres plain", "p50Ms"),
        limit=1.8,
        unit=" ms",
        beyond="1 ms",
    ),
    Goal(
        title="100 MiB through a paid call / nginx, throughput",
        path=("streaming", "overNginx"),
        limit=0.7,
        unit=" ×",
        is_least=True,
    ),
    Goal(
        title="its first byte, after the direct one",
        path=("streaming", "firstByteAddedMs"),
        limit=3,
        unit=" ms",
    ),
    Goal(
        title="the gateway's memory over all these streams, growth of its peak (flat)",
        path=("streaming", "peakGrowthKiB"),
        limit=PEAK_GROWTH_KIB_MAX / 1024,
        unit=" MiB",
        scale=1 / 1024,
    ),
    Goal(
        title="unpaid 402s / x402 middleware, all in one process",
        path=("ratios", "402 / x402 402"),
        limit=3,
        unit=" ×",
        is_least=True,
    ),
    Goal(
        title="first presentation of a payment, beyond its RPC round trips",
        path=("firstPresentation", "beyondRoundTripsMs"),
        limit=5,
        unit=" ms",
    ),
    Goal(title="start to ready, no database yet", path=("start", "freshS"), limit=1.5, unit=" s"),
    Goal(title="resident memory, idle", path=("start", "idleMiB"), limit=110, unit=" MiB"),
)
MEASURED_BY = (
    Row(
        title="ordinary calls' p99 while a flood lasts, each kind / the quiet p99",
        figure="`make attack`",
        spread="",
        goal="≤ 5 ×, none refused",
        beyond="2 ×",
        is_reached=None,
    ),
    Row(
        title="`GET /apis` and search with 1,000,000 listings, `GET /history` with 10,000,000 calls / with 1,000",
        figure="`bench/scale.py`",
        spread="",
        goal="p50 and p99 ≤ 2 ×",
        is_reached=None,
    ),
    Row(
        title="nodes 1 → 2 → 4 on one PostgreSQL",
        figure="`bench/nodes.py`",
        spread="",
        goal="never slower than one; work per call in the database constant; ≥ 3,000/s on two cores",
        is_reached=None,
    ),
)
FIRST = (
    ("the x402 middleware as deployed: facilitator and upstream by HTTP", "sqlite plain / x402 deployed"),
    (
        "the x402 middleware, all in one process: it verifies, settles, writes and fetches nothing",
        "sqlite plain / x402",
    ),
    ("the same, unpaid requests (402)", "402 / x402 402"),
    ("Envoy as a plain proxy, the limit of a gateway behind it", "sqlite plain / envoy"),
    ("the same, Tollway on PostgreSQL", "postgres plain / envoy"),
)
"""The comparisons that published figures begin with: what a provider would run instead, then the limit."""
BESIDE = (
    ("paid calls on credit, PostgreSQL, bound signature / Envoy", "postgres bound / envoy"),
    ("paid calls on credit, SQLite, plain signature / nginx", "sqlite plain / nginx"),
    (
        "paid calls on credit, SQLite, plain signature: no two requests the same / the same",
        "sqlite plain varied / sqlite plain",
    ),
    ("Envoy: no two requests the same / the same", "envoy varied / envoy"),
    (
        "paid calls on credit, SQLite, bound signature / x402 middleware as deployed",
        "sqlite bound / x402 deployed",
    ),
    (
        "paid calls on credit, PostgreSQL, plain signature / x402 middleware as deployed",
        "postgres plain / x402 deployed",
    ),
    ("Envoy / x402 middleware, all in one process: no gateway behind a proxy can be more", "envoy / x402"),
    ("Envoy / nginx, both plain proxies", "envoy / nginx"),
)


def judge(found: Found) -> list[Row]:
    """The rows in the order of the goals: beside Envoy first, then the rest, then the figures of other benchmarks."""
    beside_envoy = [judge_beside_envoy(goal, found) for goal in ENVOY_GOALS]
    return [*beside_envoy, *(judge_one(goal, found) for goal in GOALS), *MEASURED_BY]


def judge_beside_envoy(goal: EnvoyGoal, found: Found) -> Row:
    rate, cpu = (found.get(told, {}).get(goal.ratio) for told in ("ratios", "cpuRatios"))
    is_measured = rate is not None and cpu is not None
    return Row(
        title=goal.title,
        figure=f"{rate['median']:.3g} ×" if is_measured else NOT_MEASURED,
        spread=show_spread(rate),
        cpu=f"{cpu['median']:.2f} × ({show_spread(cpu)})" if is_measured else "",
        goal=f"≥ {goal.rate_min:g} × or CPU ≤ {goal.cpu_max:g} ×",
        beyond=f"{goal.beyond:g} ×",
        is_reached=(rate["median"] >= goal.rate_min or cpu["median"] <= goal.cpu_max)
        if is_measured
        else None,
    )


def judge_one(goal: Goal, found: Found) -> Row:
    number: Any = found
    for name in goal.path:
        number = None if number is None else number.get(name)
    told = f"{'≥' if goal.is_least else '≤'} {goal.limit:g}{goal.unit}"
    if number is None:
        return Row(
            title=goal.title, figure=NOT_MEASURED, spread="", goal=told, beyond=goal.beyond, is_reached=None
        )
    median = (number["median"] if isinstance(number, Mapping) else number) * goal.scale
    return Row(
        title=goal.title,
        figure=f"{median:.3g}{goal.unit}",
        spread=show_spread(number, goal.unit) if isinstance(number, Mapping) else "",
        goal=told,
        beyond=goal.beyond,
        is_reached=median >= goal.limit if goal.is_least else median <= goal.limit,
    )


def show_spread(number: Found | None, unit: str = "") -> str:
    return "" if number is None else f"{number['min']:.2f} to {number['max']:.2f}{unit}"


def write_markdown(found: Found, rows: Sequence[Row]) -> str:
    run, machine = found["run"], found["machine"]
    commit = found["commit"]
    state = "with changes that are not in it" if commit["isDirty"] else "clean"
    lines = [
        f"# Bench of {run['startedAt']}, {run['mode']}",
        "",
        f"Commit `{commit['commit']}`, {state}. {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"databases on {machine['databasesOn']}; load of the machine before: {machine['loadBefore']}.",
        f"{run['rounds']} rounds, {run['seconds']} s for each figure, {run['connections']} connections, "
        f"{run['payers']} payers; varied requests by `--heads {run['varied']['heads']} --paths {run['varied']['paths']}`; load by {run['load']}, upstream {run['upstream']}; {run['tookS']:.0f} s in all. "
        "How to read this: [measuring](../../docs/measuring.md).",
        "",
        *(f"- {note}" for note in found["notes"]),
        *write_first(found.get("ratios", {}), found.get("cpuRatios", {})),
        "",
        "## Goals",
        "",
        "| measured | median | least and most of the rounds | CPU ÷ Envoy's | goal | reached | beyond it |",
        "|---|---|---|---|---|---|---|",
    ]
    is_quiet = found.get("envoySpread", {}).get("isQuiet", True)
    lines += [
        f"| {r.title} | {r.figure} | {r.spread} | {r.cpu} | {r.goal} | {show_verdict(r, is_quiet=is_quiet)} "
        f"| {r.beyond} |"
        for r in rows
    ]
    lines += ["", "Measured elsewhere:", "", *(f"- {text}" for text in ELSEWHERE)]
    lines += write_throughput(
        found.get("throughput", {}), found.get("ratios", {}), found.get("cpuRatios", {})
    )
    lines += write_delays(found.get("latency", {}), found.get("added", {}))
    lines += write_streams(found.get("streaming", {}))
    lines += write_search(found.get("search", {}))
    lines += write_rest(found)
    return "\n".join(lines) + "\n"


def write_first(ratios: Found, cpu_ratios: Found) -> list[str]:
    rows = [
        f"| {title} | {ratios[name]['median']:.3g} × ({show_spread(ratios[name])}) "
        f"| {cpu_ratios[name]['median']:.3g} × ({show_spread(cpu_ratios[name])}) |"
        for title, name in FIRST
        if name in ratios
    ]
    if not rows:
        return []
    heads = ["| a paid call on credit beside | responses per second | CPU per response |", "|---|---|---|"]
    return ["", "## Beside other programs", "", *heads, *rows]


def show_verdict(row: Row, *, is_quiet: bool) -> str:
    if row.is_reached is None:
        return "-"
    if not row.is_reached:
        return "**no**"
    return "yes" if is_quiet else "not quiet"


def write_throughput(throughput: Found, ratios: Found, cpu_ratios: Found) -> list[str]:
    lines = [
        "",
        "## Answers per second",
        "",
        "`its core`: how much of its core it took; `others`: what else ran there, the system's work for its packets "
        "included; `load's core`: how full the other one was. A rate is the rival's own as long as its core was the full "
        "one, and full of itself. `database's`: CPU of the database server's processes for each answer, beside that of the gateway.",
        "",
        "| | median | min | max | p50 ms | p99 ms | its core | others | load's core | CPU us an answer | ÷ Envoy's | database's |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    envoy = throughput.get("envoy")
    for name, told in throughput.items():
        over = "" if envoy is None else f"{told['cpuUsPerAnswer'] / envoy['cpuUsPerAnswer']:.2f}"
        lines.append(
            f"| {name} | {told['perSecond']:,.0f} | {told['min']:,.0f} | {told['max']:,.0f} | {told['p50Ms']:.2f} "
            f"| {told['p99Ms']:.2f} | {told['ownCore']:.2f} | {told['othersOnItsCore']:.2f} "
            f"| {told['loadCore']:.2f} | {told['cpuUsPerAnswer']:.1f} | {over} | {told.get('databaseCpuUsPerAnswer', '')} |"
        )
    beside = [(title, name) for title, name in BESIDE if name in ratios]
    if beside:
        lines += ["", "Ratios without a goal:", ""]
        lines += [f"- {title}: {show_both(ratios[name], cpu_ratios[name])}" for title, name in beside]
    return lines


def show_both(rate: Found, cpu: Found) -> str:
    return f"{rate['median']:.3g} × ({show_spread(rate)}), CPU {cpu['median']:.3g} × ({show_spread(cpu)})"


def write_delays(latency: Found, added: Found) -> list[str]:
    lines = [
        "",
        "## One connection",
        "",
        "Medians of the rounds' percentiles, ms. `added`: over the direct call in the same round, and for the gateway "
        "beyond the bare commit as well.",
        "",
        "| | p50 | p99 | added p50 | added p99 |",
        "|---|---|---|---|---|",
    ]
    for name, told in latency.items():
        more = added.get(name)
        cells = ["", ""] if more is None else [f"{more[p]['median']:.3f}" for p in ("p50Ms", "p99Ms")]
        lines.append(
            f"| {name} | {told['p50Ms']['median']:.3f} | {told['p99Ms']['median']:.3f} | {cells[0]} | {cells[1]} |"
        )
    return lines


def write_streams(streaming: Found) -> list[str]:
    lines = ["", "## 100 MiB", "", "| | MiB/s | min | max | first byte ms |", "|---|---|---|---|---|"]
    for name, told in streaming.get("streams", {}).items():
        rate = told["mibPerSecond"]
        lines.append(
            f"| {name} | {rate['median']:,.0f} | {rate['min']:,.0f} | {rate['max']:,.0f} "
            f"| {told['firstByteMs']['median']:.2f} |"
        )
    memory = streaming.get("gatewayMemory")
    if memory:
        told = ", ".join(f"{name[:-3]} {kib / 1024:.1f} MiB" for name, kib in memory.items())
        lines += ["", f"The gateway's memory: {told}."]
    return lines


def write_search(found: Found) -> list[str]:
    if not found:
        return []
    vectors = found["vectors"]
    return [
        "",
        "## Search",
        "",
        "| | hit@1 | hit@5 | nDCG@10 | nothing found of what nothing answers | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {database}, {'words alone' if name == 'words' else 'with meaning'} | {told['hit1']} | {told['hit5']} | {told['ndcg10']} "
            f"| {told['empty']} | {told['p50Ms']} | {told['p99Ms']} |"
            for database, both in found["relevance"].items()
            for name, told in both.items()
        ),
        "",
        f"{vectors['count']:,} vectors: {vectors['memoryMiB']} MiB, {vectors['p50Ms']} ms a search at p50 and {vectors['p99Ms']} ms at p99 ({vectors['cpuMs']} ms of CPU), "
        f"{vectors['readS']} s to read them.",
    ]


def write_rest(found: Found) -> list[str]:
    lines = ["", "## First presentation, start", "", "| | median | min | max |", "|---|---|---|---|"]
    for group in ("firstPresentation", "start"):
        for name, told in found.get(group, {}).items():
            if isinstance(told, Mapping):
                lines.append(f"| {name} | {told['median']} | {told['min']} | {told['max']} |")
    lines += ["", "## Versions", ""]
    lines += [", ".join(f"{name} {version}" for name, version in found["versions"].items()) + "."]
    return lines
