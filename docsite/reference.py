"""The reference pages that only the documentation site has, written from the tables of the code when the site is built. Each function returns one page of Markdown.

Tables of pages that are in the repository too: `written.py`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from deploy.prometheus.build import ALERTS
from docsite.written import describe_aliases, escape, write_table
from tollway.cli.commands import COMMANDS, EXTRA_PACKAGES, ROLES
from tollway.registry.openapi import METHODS
from tollway.web.http.contract import CONTRACT_PATH, Site, load_contract

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = "\nThis page is written from the code when the site is built.\n"


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


def write_commands() -> str:
    parts = []
    for role in ROLES:
        parts.append(f"## {role.title}\n")
        for name, row in COMMANDS.items():
            first = name.split()[0]
            if first not in role.words:
                continue
            module, _, function = row.target.partition(":")
            options = list(_list_options(getattr(import_module(module), function)))
            extra = f" Needs `pip install 'tollway[{first}]'`." if first in EXTRA_PACKAGES else ""
            short = describe_aliases(name)
            table = "\n" + write_table(("option", "meaning"), options) if options else ""
            parts.append(
                f"### tollway {name}\n\n{escape(row.help)}{extra}{short}\n\n```sh\n{row.example}\n```\n{table}"
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
    "alerts.md": write_alerts,
    "commands.md": write_commands,
    "contract.md": write_contract,
}
"""File of `reference/` -> what writes it."""


def write_index() -> str:
    titles = {name: write().splitlines()[0].removeprefix("# ") for name, write in PAGES.items()}
    lines = "".join(f"- [{title}]({name})\n" for name, title in titles.items())
    return f"# Reference\n{WRITTEN}\n{lines}"
