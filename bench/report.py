"""What was found -> the table with its goals, as Markdown. Every goal has its row, reached or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PEAK_GROWTH_KIB_MAX = 10 * 1024
"""A body of 100 MiB may move the gateway's peak by a tenth of itself; a buffered one would move it by all."""

ELSEWHERE = (
    "`GET /apis`, search and `GET /history` over a million listings and ten million calls: `bench/scale.py`",
    "resident memory after a million paid calls: `bench/memory.py`",
    "one, two and four gateways on one PostgreSQL: `bench/nodes.py`",
    "settled calls (x402, MPP): `bench/settled_calls.py`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure beside its goal. `is_reached` None: it could not be measured here."""

    title: str
    figure: str
    spread: str
    goal: str
    is_reached: bool | None


Found = Mapping[str, Any]
NOT_MEASURED = "not measured here"


def judge(found: Found) -> list[Row]:
    return [
        *judge_ratios(found.get("ratios", {})),
        *judge_delays(found.get("added", {})),
        *judge_streams(found.get("streaming", {})),
        *judge_presentation(found.get("firstPresentation", {})),
        *judge_start(found.get("start", {})),
    ]


RATIOS = (
    ("paid calls on credit, SQLite, plain signature / Envoy", "sqlite plain / envoy", 0.35),
    ("paid calls on credit, SQLite, bound signature / Envoy", "sqlite bound / envoy", 0.35),
    ("paid calls on credit, PostgreSQL, plain signature / Envoy", "postgres plain / envoy", 0.25),
    ("paid calls on credit, PostgreSQL, bound signature / Envoy", "postgres bound / envoy", 0.25),
    (
        "paid calls on credit, SQLite, plain signature / x402 middleware as deployed",
        "sqlite plain / x402 deployed",
        30,
    ),
    (
        "paid calls on credit, SQLite, bound signature / x402 middleware as deployed",
        "sqlite bound / x402 deployed",
        30,
    ),
    (
        "paid calls on credit, SQLite, plain signature / x402 middleware, all in one process",
        "sqlite plain / x402",
        30,
    ),
    (
        "paid calls on credit, SQLite, bound signature / x402 middleware, all in one process",
        "sqlite bound / x402",
        30,
    ),
    ("unpaid 402s / x402 middleware, all in one process", "402 / x402 402", 3),
)
BESIDE = (
    ("paid calls on credit, SQLite, plain signature / nginx", "sqlite plain / nginx"),
    (
        "paid calls on credit, PostgreSQL, plain signature / x402 middleware as deployed",
        "postgres plain / x402 deployed",
    ),
    ("Envoy / x402 middleware, all in one process: no gateway behind a proxy can be more", "envoy / x402"),
    ("Envoy / nginx, both plain proxies", "envoy / nginx"),
)


def judge_ratios(ratios: Found) -> list[Row]:
    rows = []
    for title, name, least in RATIOS:
        ratio = ratios.get(name)
        rows.append(
            Row(
                title=title,
                figure=NOT_MEASURED if ratio is None else f"{ratio['median']:.3g} ×",
                spread=show_spread(ratio),
                goal=f"≥ {least} ×",
                is_reached=None if ratio is None else ratio["median"] >= least,
            )
        )
    return rows


def judge_delays(added: Found) -> list[Row]:
    rows = []
    for name in ("sqlite plain", "sqlite bound", "postgres plain", "postgres bound"):
        for percentile, most in (("p50", 0.5), ("p99", 2.0)):
            found = added.get(name)
            number = None if found is None else found[percentile + "Ms"]
            rows.append(
                Row(
                    title=f"added at one connection, {name}, {percentile}, beyond one bare commit",
                    figure=NOT_MEASURED if number is None else f"{number['median']:.2f} ms",
                    spread=show_spread(number, " ms"),
                    goal=f"≤ {most} ms",
                    is_reached=None if number is None else number["median"] <= most,
                )
            )
    return rows


def judge_streams(streaming: Found) -> list[Row]:
    ratio, first = streaming.get("overNginx"), streaming.get("firstByteAddedMs")
    growth = streaming.get("peakGrowthKiB")
    return [
        Row(
            title="100 MiB through a paid call / nginx, throughput",
            figure=NOT_MEASURED if ratio is None else f"{ratio['median']:.2f} ×",
            spread=show_spread(ratio),
            goal="≥ 0.6 ×",
            is_reached=None if ratio is None else ratio["median"] >= 0.6,
        ),
        Row(
            title="its first byte, after the direct one",
            figure=NOT_MEASURED if first is None else f"{first['median']:.2f} ms",
            spread=show_spread(first, " ms"),
            goal="≤ 5 ms",
            is_reached=None if first is None else first["median"] <= 5,
        ),
        Row(
            title="the gateway's memory over all these streams, growth of its peak",
            figure=NOT_MEASURED if growth is None else f"{growth / 1024:.1f} MiB",
            spread="",
            goal=f"flat: ≤ {PEAK_GROWTH_KIB_MAX // 1024} MiB",
            is_reached=None if growth is None else growth <= PEAK_GROWTH_KIB_MAX,
        ),
    ]


def judge_presentation(first: Found) -> list[Row]:
    trips, beyond = first.get("roundTrips"), first.get("beyondRoundTripsMs")
    return [
        Row(
            title="first presentation of a payment, RPC round trips",
            figure=NOT_MEASURED if trips is None else f"{trips['median']:.0f}",
            spread=show_spread(trips, digits=0),
            goal="≤ 3",
            is_reached=None if trips is None else trips["median"] <= 3,
        ),
        Row(
            title="first presentation, beyond those round trips",
            figure=NOT_MEASURED if beyond is None else f"{beyond['median']:.2f} ms",
            spread=show_spread(beyond, " ms"),
            goal="≤ 5 ms",
            is_reached=None if beyond is None else beyond["median"] <= 5,
        ),
    ]


def judge_start(start: Found) -> list[Row]:
    rows = []
    for title, name, unit, most in (
        ("start to ready, no database yet", "freshS", " s", 2),
        ("start to ready, database there", "againS", " s", 2),
        ("resident memory, idle", "idleMiB", " MiB", 150),
    ):
        number = start.get(name)
        rows.append(
            Row(
                title=title,
                figure=NOT_MEASURED if number is None else f"{number['median']:.4g}{unit}",
                spread=show_spread(number, unit),
                goal=f"≤ {most}{unit}",
                is_reached=None if number is None else number["median"] <= most,
            )
        )
    return rows


def show_spread(number: Found | None, unit: str = "", *, digits: int = 2) -> str:
    if number is None:
        return ""
    return f"{number['min']:.{digits}f} to {number['max']:.{digits}f}{unit}"


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
        f"{run['payers']} payers; load by {run['load']}, upstream {run['upstream']}; {run['tookS']:.0f} s in all. "
        "How to read this: [measuring](../../docs/measuring.md).",
        "",
        *(f"- {note}" for note in found["notes"]),
        "",
        "## Goals",
        "",
        "| measured | median | least and most of the rounds | goal | reached |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {r.title} | {r.figure} | {r.spread} | {r.goal} | {show_verdict(r)} |" for r in rows]
    lines += ["", "Measured elsewhere:", "", *(f"- {text}" for text in ELSEWHERE)]
    lines += write_throughput(found.get("throughput", {}), found.get("ratios", {}))
    lines += write_delays(found.get("latency", {}), found.get("added", {}))
    lines += write_streams(found.get("streaming", {}))
    lines += write_rest(found)
    return "\n".join(lines) + "\n"


def show_verdict(row: Row) -> str:
    if row.is_reached is None:
        return "-"
    return "yes" if row.is_reached else "**no**"


def write_throughput(throughput: Found, ratios: Found) -> list[str]:
    lines = [
        "",
        "## Answers per second",
        "",
        "`its core`: how much of its core it took; `others`: what else ran there, the system's work for its packets "
        "included; `load's core`: how full the other one was. A rate is the rival's own as long as its core was the full "
        "one, and full of itself.",
        "",
        "| | median | min | max | p50 ms | p99 ms | its core | others | load's core | CPU us an answer |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, told in throughput.items():
        lines.append(
            f"| {name} | {told['perSecond']:,.0f} | {told['min']:,.0f} | {told['max']:,.0f} | {told['p50Ms']:.2f} "
            f"| {told['p99Ms']:.2f} | {told['ownCore']:.2f} | {told['othersOnItsCore']:.2f} "
            f"| {told['loadCore']:.2f} | {told['cpuUsPerAnswer']:.1f} |"
        )
    beside = [(title, ratios[name]) for title, name in BESIDE if name in ratios]
    if beside:
        lines += ["", "Ratios without a goal:", ""]
        lines += [f"- {title}: {ratio['median']:.3g} × ({show_spread(ratio)})" for title, ratio in beside]
    return lines


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


def write_rest(found: Found) -> list[str]:
    lines = ["", "## First presentation, start", "", "| | median | min | max |", "|---|---|---|---|"]
    for group in ("firstPresentation", "start"):
        for name, told in found.get(group, {}).items():
            if isinstance(told, Mapping):
                lines.append(f"| {name} | {told['median']} | {told['min']} | {told['max']} |")
    lines += ["", "## Versions", ""]
    lines += [", ".join(f"{name} {version}" for name, version in found["versions"].items()) + "."]
    return lines
