"""The reference pages of the documentation site, written from the tables of the code when the site is built.

Each function returns one page of Markdown. The meaning of a setting and of a limit is the row of `docs/operators.md`, whose names and defaults tests compare with
the code. A table without its row raises `ValueError`: the site has no page with a gap.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from deploy.prometheus.build import ALERTS
from tollway.cli.commands import COMMANDS, ROLES
from tollway.config.settings import LIMIT_PREFIX, OPERATOR_LIMITS, PREFIX, SETTING_NAMES
from tollway.errors import Code
from tollway.limits import DEFAULT_LIMITS
from tollway.log_events import GROUPS
from tollway.metric_table import SERIES
from tollway.registry.openapi import METHODS
from tollway.web.contract import CONTRACT_PATH, Site, load_contract
from tollway.web.problems import PROBLEM_KINDS, PROBLEM_PAGES

ROOT = Path(__file__).resolve().parents[1]
OPERATORS = ROOT / "docs" / "operators.md"
WRITTEN = "\nThis page is written from the code when the site is built.\n"


def write_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [list(heads), ["---"] * len(heads), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(cell.strip() or ' ' for cell in line)} |\n" for line in lines)


def read_rows(page: str, heading: str) -> dict[str, list[str]]:
    """The cells of the first table under a heading, by the first code word of each row."""
    part = page.split(f"\n{heading}\n", 1)[1]
    rows: dict[str, list[str]] = {}
    for line in part.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for name in re.findall(r"`([^`]+)`", cells[0]):
                rows[name] = cells[1:]
        elif rows:
            break
    return rows


def _meaning(rows: Mapping[str, Sequence[str]], name: str) -> str:
    if name not in rows:
        raise ValueError(f"docs/operators.md has no row for {name}")
    # The links of the row lead to sections of its own page.
    return re.sub(r"\]\((#[^)]*)\)", r"](../operators.md\1)", _move_links(rows[name][-1]))


def _move_links(text: str) -> str:
    return re.sub(r"\]\((?!https?:|#|mailto:)([^)]+)\)", r"](../\1)", text)


def write_settings() -> str:
    rows = read_rows(OPERATORS.read_text(), "## Settings")
    table = write_table(
        ("setting", "variable", "default", "meaning"),
        (
            (f"`{name}`", f"`{PREFIX}{name.upper()}`", rows[name][0], _meaning(rows, name))
            for name in SETTING_NAMES
        ),
    )
    return f"# Settings\n{WRITTEN}\nThe tables `networks` and `limits` of the file: [networks](../operators.md#networks), [limits](limits.md).\n\n{table}"


def write_limits() -> str:
    rows = read_rows(OPERATORS.read_text(), "## Limits")
    table = write_table(
        ("limit", "variable", "default", "what it bounds"),
        (
            (
                f"`{limit.name}`",
                f"`{PREFIX}{LIMIT_PREFIX}{limit.name.upper()}`",
                f"{getattr(DEFAULT_LIMITS, limit.name):g}",
                _meaning(rows, limit.name),
            )
            for limit in OPERATOR_LIMITS
        ),
    )
    return f"# Limits\n{WRITTEN}\n{table}"


def write_errors() -> str:
    parts = []
    for code in Code:
        kind, page = PROBLEM_KINDS[code], PROBLEM_PAGES[code]
        again = "yes" if kind.is_retryable else "no"
        parts.append(
            f"## {code.value}\n\n{kind.title}. HTTP status {kind.status}; the same request later can succeed: {again}.\n\n"
            f"{escape(page.meaning)}\n\n*What to do:* {escape(page.remedy)}\n"
        )
    return f"# Error codes\n{WRITTEN}\n" + "\n".join(parts)


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([<>*_\[\]|])", r"\\\1", text)


def write_metrics() -> str:
    table = write_table(
        ("series", "kind", "labels", "of", "says"),
        (
            (
                f"`{row.name}`",
                row.kind,
                " ".join(f"`{name}`" for name in row.label_names),
                row.scope,
                escape(row.says),
            )
            for row in SERIES.values()
        ),
    )
    return (
        f"# Metrics\n{WRITTEN}\n`/metrics` of `admin_listen`. `process`: of one gateway; `fleet`: what the database knows, exposed by the gateway that leads. "
        f"The [operator's page](../operators.md#monitoring) says when to act.\n\n{table}"
    )


def write_alerts() -> str:
    table = write_table(
        ("alert", "class", "for", "says", "expression"),
        (
            (
                f"[{alert.name}](../runbooks/{alert.name}.md)",
                alert.severity,
                format_duration(alert.after_s),
                escape(alert.summary),
                f"`{alert.expression.replace('|', chr(92) + '|')}`",
            )
            for alert in ALERTS
        ),
    )
    return f"# Alerts\n{WRITTEN}\nThe rules are in `deploy/prometheus/alerts.yaml`; each name leads to its runbook.\n\n{table}"


def format_duration(seconds: int) -> str:
    """`2 min`, `24 h`; `at once` for 0."""
    if seconds == 0:
        return "at once"
    return f"{seconds // 3600} h" if seconds % 3600 == 0 else f"{seconds // 60} min"


def write_log_events() -> str:
    parts = []
    for title, rows in GROUPS:
        table = write_table(
            ("event", "level", "fields", "what it means", "what to do"),
            (
                (
                    f"`{row.event}`",
                    ", ".join(row.levels),
                    ", ".join(f"`{name}`" for name in row.fields),
                    escape_outside_code(row.meaning),
                    escape_outside_code(row.action),
                )
                for row in sorted(rows, key=lambda row: row.event)
            ),
        )
        parts.append(f"## {title}\n\n{table}")
    return (
        f"# Log events\n{WRITTEN}\n[Log events](../log-events.md) says how a line looks and how lines are counted.\n\n"
        + "\n".join(parts)
    )


def escape_outside_code(text: str) -> str:
    """As `escape`, and what stands between backticks stays code."""
    return "`".join(part if number % 2 else escape(part) for number, part in enumerate(text.split("`")))


def write_commands() -> str:
    parts = []
    for role in ROLES:
        parts.append(f"## {role.title}\n")
        for row in (row for row in COMMANDS if row.role == role):
            module, _, function = row.target.partition(":")
            options = list(_list_options(getattr(import_module(module), function)))
            extra = f" Needs `pip install 'tollway[{row.extra}]'`." if row.extra else ""
            short = f" Short form: `tollway {row.alias}`." if row.alias else ""
            table = "\n" + write_table(("option", "meaning"), options) if options else ""
            parts.append(
                f"### tollway {row.name}\n\n{escape(row.help)}{extra}{short}\n\n```sh\n{row.example}\n```\n{table}"
            )
    return f"# Commands\n{WRITTEN}\n" + "\n".join(parts)


def _list_options(function: Callable[..., object]) -> Iterator[tuple[str, str]]:
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        for detail in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(detail, OptionInfo) and not detail.hidden:
                words = [
                    word for word in (detail.default, *(detail.param_decls or ())) if isinstance(word, str)
                ]
                shown = [word for word in words if word.startswith("-")] or [f"--{name.replace('_', '-')}"]
                yield " ".join(f"`{word}`" for word in shown), escape(detail.help or "")
            elif isinstance(detail, ArgumentInfo) and not detail.hidden:
                yield f"`{detail.metavar or name.upper()}`", escape(detail.help or "")


def write_contract() -> str:
    """The contract by operation, as a gateway publishes it without listings."""
    document = load_contract(
        CONTRACT_PATH.read_bytes(), Site(public_url="https://gateway.example.com", version="0")
    )
    parts = []
    for path, item in document["paths"].items():
        for method in (method for method in item if method in METHODS):
            parts.append(_write_operation(method.upper(), path, item[method], item.get("parameters", [])))
    return (
        f"# The contract by operation\n{WRITTEN}\nA gateway serves the same as `/openapi.json`.\n\n"
        + "\n".join(parts)
    )


def _write_operation(method: str, path: str, operation: Mapping[str, Any], shared: Sequence[Any]) -> str:
    lines = [f"## {method} {escape(path)}\n", f"{escape(operation.get('summary', ''))}\n"]
    if description := operation.get("description"):
        lines.append(f"{escape(description)}\n")
    parameters = [one for one in (*shared, *operation.get("parameters", ())) if "name" in one]
    if parameters:
        rows = ((f"`{one['name']}`", one["in"], escape(one.get("description", ""))) for one in parameters)
        lines.append(write_table(("parameter", "in", "meaning"), rows))
    if body := operation.get("requestBody"):
        kinds = ", ".join(f"`{kind}`" for kind in body.get("content", {})) or "any"
        lines.append(f"Body: {kinds}.\n")
    answers = (
        (f"`{status}`", _describe_response(response)) for status, response in operation["responses"].items()
    )
    lines.append(write_table(("status", "response"), answers))
    return "\n".join(lines)


def _describe_response(response: Mapping[str, Any]) -> str:
    if "$ref" in response:
        return f"`{response['$ref'].rpartition('/')[2]}`"
    return escape(" ".join(response.get("description", "").split()))


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": write_settings,
    "limits.md": write_limits,
    "errors.md": write_errors,
    "metrics.md": write_metrics,
    "alerts.md": write_alerts,
    "log-events.md": write_log_events,
    "commands.md": write_commands,
    "contract.md": write_contract,
}
"""File of `reference/` -> what writes it."""


def write_index() -> str:
    titles = {name: write().splitlines()[0].removeprefix("# ") for name, write in PAGES.items()}
    lines = "".join(f"- [{title}]({name})\n" for name, title in titles.items())
    return f"# Reference\n{WRITTEN}\n{lines}"
