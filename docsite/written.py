"""Writes tables of pages from the code, in place: `python -m docsite.written`.

A part of a page between `<!-- written: NAME -->` and `<!-- end -->` is a table. Names, defaults, order and texts of its rows come from the code; only what a setting,
a limit or a key of a network means is text of the page, and stays. A name without such a text raises `ValueError`. A test compares each page with what is written.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Secret

from docsite.economics import CREDIT_CALLS, list_gas, list_prices
from tollway.chain.networks import PRESETS
from tollway.cli.commands import ALIASES, CALLERS, COMMANDS, EVERYBODY, OPERATORS, PROVIDERS, Role
from tollway.client import errors
from tollway.config.networks import NETWORK_MEMBERS
from tollway.config.settings import OPERATOR_LIMITS, Settings
from tollway.config.values import Listen
from tollway.errors import Code
from tollway.gateway.headers import EXPOSED_HEADERS
from tollway.ids import ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.observability.metric_table import SERIES
from tollway.observability.plain_metrics import describe
from tollway.payments.settlement_rules import settlement_defaults
from tollway.web.http.problems import PROBLEM_KINDS, PROBLEM_PAGES

DOCS = Path(__file__).resolve().parents[1] / "docs"
PART = re.compile(r"<!-- written: ([a-z-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
WRITTEN_PAGES = ("operators-reference.md", "callers-reference.md", "errors.md")


def write_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [list(heads), ["---"] * len(heads), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(cell.strip() or ' ' for cell in line)} |\n" for line in lines)


def write_settings(part: str) -> str:
    meanings = read_meanings(part)
    fields = ((str(field.validation_alias or name), field) for name, field in Settings.model_fields.items())
    return write_table(
        ("setting", "default", "meaning"),
        (
            (f"`{name}`", _show_default(field.get_default(call_default_factory=True)), meanings[name])
            for name, field in fields
            if name not in ("networks", "limits")
        ),
    )


def _show_default(value: Any) -> str:
    if isinstance(value, Secret):
        value = value.get_secret_value()
    if isinstance(value, Listen):
        value = f"{value.host}:{value.port}"
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, float):
        value = f"{value:g}"
    return f"`{value}`" if value is not None and value != "" and not _is_empty(value) else ""


def _is_empty(value: Any) -> bool:
    return hasattr(value, "__len__") and len(value) == 0


def write_networks(part: str) -> str:
    meanings = read_meanings(part)
    return write_table(("key", "meaning"), ((f"`{name}`", meanings[name]) for name in NETWORK_MEMBERS))


def write_presets(_: str) -> str:
    """What settling may cost, by preset, and on a main network without one."""
    names = ("settlement_min", "native_price", "gas_price_max_gwei", "gas_floor", "listing_gas_budget")
    known = [(f"`{preset.name}`", preset.chain_id, preset.kind) for preset in PRESETS.values()]
    rows = (
        (name, *(getattr(settlement_defaults(chain_id, kind), one) or "" for one in names))
        for name, chain_id, kind in (*known, ("another main network", ChainId(1 << 40), "main"))
    )
    return write_table(("preset", *(f"`{name}`" for name in names)), rows)


def write_gas(_: str) -> str:
    return write_table(("transaction", "gas", "bytes"), list_gas())


def write_least_prices(_: str) -> str:
    heads = ("transaction, one call", f"one of {CREDIT_CALLS}", "authorisation", "channel")
    return write_table(("network", "gas price", *heads), list_prices())


def write_limits(part: str) -> str:
    meanings = read_meanings(part)
    return write_table(
        ("limit", "default", "what it bounds"),
        ((f"`{limit.name}`", _show_limit(limit.name), meanings[limit.name]) for limit in OPERATOR_LIMITS),
    )


def _show_limit(name: str) -> str:
    value = getattr(DEFAULT_LIMITS, name)
    shown = f"{value:.10g}"
    if value == 0:
        return f"{shown} (not configured)"
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if "bytes" in name and value % size == 0:
            return f"{shown} ({value // size} {unit})"
    return shown


def write_series(_: str) -> str:
    rows = (
        (
            f"`{describe(row)}`",
            f"{row.scope} {row.kind}" if row.scope == "fleet" else row.kind,
            escape_outside_code(row.says),
        )
        for row in SERIES.values()
    )
    return write_table(("series", "kind", "says"), rows)


def write_errors(_: str) -> str:
    return write_table(
        ("code", "status", "retryable", "what it means", "what to do"),
        (
            (
                f"`{code.value}`",
                str(PROBLEM_KINDS[code].status),
                "yes" if PROBLEM_KINDS[code].is_retryable else "no",
                escape_outside_code(PROBLEM_PAGES[code].meaning),
                escape_outside_code(PROBLEM_PAGES[code].remedy),
            )
            for code in Code
        ),
    )


def write_exceptions(part: str) -> str:
    remedies = read_meanings(part)
    classes = (value for value in vars(errors).values() if inspect.isclass(value))
    own = (one for one in classes if issubclass(one, Exception) and one.__module__ == errors.__name__)
    return write_table(
        ("exception", "what happened", "what to do"),
        (
            (f"`{one.__name__}`", escape_outside_code(_first_sentence(one)), remedies[one.__name__])
            for one in own
            if not one.__subclasses__()
        ),
    )


def _first_sentence(one: type) -> str:
    return re.split(r"(?<=\.) ", " ".join((inspect.getdoc(one) or "").split()))[0]


def write_headers(part: str) -> str:
    meanings = read_meanings(part)
    return write_table(
        ("header", "what it says"), ((f"`{name}`", meanings[name]) for name in EXPOSED_HEADERS.split(", "))
    )


def write_commands(*roles: Role) -> Callable[[str], str]:
    def write(_: str) -> str:
        words = frozenset[str]().union(*(role.words for role in roles))
        return write_table(
            ("command", "what it does"),
            (
                (f"`tollway {name}`", f"{escape(row.help)}{describe_aliases(name)}")
                for name, row in COMMANDS.items()
                if name.split()[0] in words
            ),
        )

    return write


def describe_aliases(name: str) -> str:
    return "".join(f" Short form: `tollway {alias}`." for alias, words in ALIASES.items() if words == name)


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([<>*_\[\]|])", r"\\\1", text)


def escape_outside_code(text: str) -> str:
    """As `escape`, and what stands between backticks stays code."""
    return "`".join(part if number % 2 else escape(part) for number, part in enumerate(text.split("`")))


def read_meanings(part: str) -> "Meanings":
    """The last cell of each row of a table, by the name in its first cell."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines() if line.startswith("| `")]
    return Meanings({cells[0].strip().strip("`"): cells[-1].strip() for cells in rows})


class Meanings(dict[str, str]):
    def __missing__(self, name: str) -> str:
        raise ValueError(f"the page has no row for {name}")


PARTS: Mapping[str, Callable[[str], str]] = {
    "commands-of-operators": write_commands(OPERATORS),
    "commands-of-callers": write_commands(CALLERS, PROVIDERS, EVERYBODY),
    "settings": write_settings,
    "networks": write_networks,
    "presets": write_presets,
    "gas": write_gas,
    "least-prices": write_least_prices,
    "limits": write_limits,
    "series": write_series,
    "errors": write_errors,
    "exceptions": write_exceptions,
    "headers": write_headers,
}


def write_page(page: str) -> str:
    """The text of a page with its parts written anew."""
    return PART.sub(
        lambda part: f"<!-- written: {part[1]} -->\n\n{PARTS[part[1]](part[2])}\n<!-- end -->", page
    )


def main() -> None:
    for name in WRITTEN_PAGES:
        page = DOCS / name
        page.write_text(write_page(page.read_text()))


if __name__ == "__main__":
    main()
