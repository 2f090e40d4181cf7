"""The documentation site: every name of the code has its place on a reference page, every page is in the navigation, and the site asks no other host."""

import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from deploy.prometheus.build import ALERTS
from docsite.build import CONFIG, NAVIGATION, ROOT, build, move_links, write_config, write_sources
from docsite.economics import CLAIM, DEPOSIT, format_dollars, list_prices
from tests.kit.deploy_programs import run_check
from tollway.cli.commands import COMMANDS
from tollway.registry.openapi import METHODS, parse_yaml_object
from tollway.web.http.contract import CONTRACT_PATH

DOCS_VENV = ROOT / ".venv-docs"
OTHER_HOSTS = re.compile(r'(?:src|href|data)="((?:https?:)?//[^"]+)"')
NAMES_A_PAGE = re.compile(r'\brel="(?:canonical|prev|next|alternate|me|author|license)"')
LOADED_BY_STYLE = re.compile(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^\"')\s]+)")
LOADED_BY_SCRIPT = re.compile(r"[\"'`](https?://[^\"'`/\s]+)")
SCRIPT_HOSTS = {
    "http://www.w3.org": "names of XML",
    "https://${e}": "a link in a text",
    "https://api.github.com": "asked on pages with `repo_url`",
    "https://unpkg.com": "asked on pages with a diagram or a program",
    "https://cdn.jsdelivr.net": "asked on pages with a program",
}
"""Hosts that a script of the theme names -> when it asks them. No page has these parts (`ASKING_PARTS`)."""
ASKING_PARTS = re.compile(
    r'class="[^"]*\b(?:mermaid|pyodide)\b|data-md-component="source"|<div class="md-header__source">\s*<a'
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    write_sources(folder)
    return folder


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("commands.md", [f"### tollway {name}\n" for name in COMMANDS]),
        (
            "contract.md",
            [
                f"## {method.upper()} "
                for item in parse_yaml_object(CONTRACT_PATH.read_bytes())["paths"].values()
                for method in item
                if method in METHODS
            ],
        ),
        ("alerts.md", [f"(../runbooks/{alert.name}.md)" for alert in ALERTS]),
        ("alerts.md", [f"`{alert.expression.replace('|', chr(92) + '|')}`" for alert in ALERTS]),
    ],
)
def test_a_reference_page_has_every_name(sources: Path, page: str, names: list[str]) -> None:
    text = (sources / "reference" / page).read_text()
    assert names
    assert [name for name in names if name not in text] == []


def test_the_contract_has_every_operation(sources: Path) -> None:
    document = parse_yaml_object(CONTRACT_PATH.read_bytes())
    count = sum(method in METHODS for item in document["paths"].values() for method in item)
    assert (sources / "reference" / "contract.md").read_text().count("\n## ") == count


def test_a_page_of_the_repository_is_a_page_of_the_site(sources: Path) -> None:
    own = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert own <= {path.relative_to(sources) for path in sources.rglob("*.md")}


def test_every_page_is_in_the_navigation(tmp_path: Path) -> None:
    pages = [path.name for path in (ROOT / "docs").glob("*.md")] + ["new.md"]
    write_config(tmp_path / "zensical.toml", pages)
    text = (tmp_path / "zensical.toml").read_text()
    assert [page for page in pages if f'"{page}"' not in text] == []
    assert tomllib.loads(text)["project"]["theme"]["font"] is False
    assert "nav" not in tomllib.loads(CONFIG.read_text())["project"]


def test_the_navigation_names_pages_that_exist(sources: Path) -> None:
    named = [page for _, pages in NAVIGATION for page in pages]
    assert [page for page in named if not (sources / page).exists()] == []
    assert len(named) == len(set(named))


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("operators.md", "[x](callers.md#a)", "[x](callers.md#a)"),
        ("threat-model.md", "[x](../SECURITY.md)", "[x](project/SECURITY.md)"),
        ("decisions/0001-bare-json-rpc.md", "[x](../operators.md)", "[x](../operators.md)"),
        ("project/CHANGELOG.md", "[x](docs/callers.md)", "[x](../callers.md)"),
        ("README.md", "[x](docs/callers.md#a)", "[x](callers.md#a)"),
        ("README.md", "[x](docs/README.md)", "[x](contents.md)"),
        ("README.md", "![x](docs/images/a.png)", "![x](images/a.png)"),
        ("contents.md", "[x](../README.md)", "[x](README.md)"),
        ("runbooks/README.md", "[x](../README.md)", "[x](../contents.md)"),
        ("project/CONTRIBUTING.md", "[`x`](tests/kit/README.md)", "`x`"),
        ("project/CONTRIBUTING.md", "[x](SECURITY.md)", "[x](../project/SECURITY.md)"),
        ("operators.md", "[x](https://example.com/a)", "[x](https://example.com/a)"),
        ("operators.md", "[x](#limits)", "[x](#limits)"),
        ("operators.md", "```sh\n[x](../src)\n```\n", "```sh\n[x](../src)\n```\n"),
    ],
)
def test_a_link_leads_to_its_place_in_the_site(page: str, link: str, moved: str) -> None:
    assert move_links(link, Path(page)) == moved


def test_the_readme_is_the_first_page(sources: Path) -> None:
    page = (sources / "README.md").read_text()
    assert page.startswith("# Tollway\n")
    assert "](images/ticket-1280-light.png)" in page
    assert "](contents.md)" in page


def test_a_search_leads_to_no_decision_no_runbook_and_not_to_the_changelog(sources: Path) -> None:
    hidden = {
        page.relative_to(sources).as_posix()
        for page in sources.rglob("*.md")
        if page.read_text().startswith("---\nsearch:\n  exclude: true\n---\n")
    }
    assert hidden == {
        *(f"decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("*.md")),
        *(f"runbooks/{path.name}" for path in (ROOT / "docs/runbooks").glob("*.md")),
        "project/CHANGELOG.md",
    }


def test_the_output_is_never_committed() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    run_check("git", "check-ignore", "--quiet", ".site/html/index.html", folder=ROOT)


def test_zensical_builds_the_site_and_no_page_asks_another_host() -> None:
    program = DOCS_VENV / "bin" / "zensical"
    if not program.exists():
        reason = "zensical is not in .venv-docs: `make docs` installs it"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    site = build(str(program))
    pages = list(site.rglob("*.html"))
    assert {"index.html", "running.html", "operators.html"} <= {page.name for page in pages}
    assert {url for page in pages for url in find_loaded(page.read_text())} == set()
    assert [page.name for page in pages if ASKING_PARTS.search(page.read_text())] == []
    styles = list(site.rglob("*.css"))
    assert styles
    assert {url for path in styles for url in LOADED_BY_STYLE.findall(path.read_text())} == set()
    scripts = list(site.rglob("*.js"))
    assert scripts
    hosts = {url for path in scripts for url in LOADED_BY_SCRIPT.findall(path.read_text())}
    assert hosts <= set(SCRIPT_HOSTS), hosts


@pytest.mark.parametrize(
    ("tag", "loaded"),
    [
        ('<script src="https://cdn.example/a.js">', ["https://cdn.example/a.js"]),
        ('<img alt="x" src="//rel.example/a.png">', ["//rel.example/a.png"]),
        (
            '<link rel="stylesheet" href="https://fonts.example/relay.css">',
            ["https://fonts.example/relay.css"],
        ),
        ('<link rel="canonical" href="https://docs.example/a.html">', []),
        ('<link rel="stylesheet" href="../assets/a.css">', []),
        ('<a href="https://example.com/">', []),
    ],
)
def test_what_a_page_loads_is_found(tag: str, loaded: list[str]) -> None:
    assert list(find_loaded(tag)) == loaded


def find_loaded(page: str) -> Iterator[str]:
    """The URLs of other hosts that a browser loads with a page. A link that only names a page (`rel` canonical, prev, next) loads nothing."""
    for tag in re.findall(r"<(?:script|link|img|iframe|source|video|audio|object|embed)\b[^>]*>", page):
        if not NAMES_A_PAGE.search(tag):
            yield from OTHER_HOSTS.findall(tag)


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0.0053955", "0.0054"), ("0.0000538", "0.000054"), ("1.029", "1.0"), ("2.055", "2.1"), ("21.4", "21")],
)
def test_a_price_in_the_documentation_has_two_digits(amount: str, text: str) -> None:
    assert format_dollars(Decimal(amount)) == text


def test_a_channel_costs_its_deposit_and_its_claim_over_a_thousand_calls() -> None:
    (row,) = (one for one in list_prices() if one[0] == "Ethereum")
    gas = DEPOSIT.gas + CLAIM.gas
    assert row[-1] == format_dollars(Decimal(10 * gas * 3_000) / 10**9 / 1_000)
