"""The documentation keeps up with the code: every setting, limit and error has its row, every command exists, and no link leads nowhere."""

import ast
import inspect
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.models import OptionInfo

from docsite.written import PARTS, WRITTEN_PAGES, write_page
from tests.kit.deploy_programs import run_check
from tests.kit.page_blocks import PageBlock, read_blocks
from tollway.chain.networks import PRESETS
from tollway.cli.commands import ALIASES, COMMANDS, GROUPS
from tollway.config.networks import ASSET_MEMBERS
from tollway.config.settings import (
    CLIENT_NAMES,
    LIMIT_PREFIX,
    OPERATOR_LIMITS,
    PREFIX,
    SETTING_NAMES,
    load_settings,
)
from tollway.config.values import gas_keys_name, rpc_name
from tollway.observability.metric_table import PROCESS_SERIES

ROOT = Path(__file__).parent.parent
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.exists())
COMMAND_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
"""The changelog and the decisions may name commands of their time."""
RUNBOOK_PAGES = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
UNCLEAR_WORDS = re.compile(
    r"\b(he|his|him|she|nobody|somebody|everybody|anybody|whoever|told|tells|asked|sign of life)\b",
    re.IGNORECASE,
)
COMMAND = re.compile(r"(?:^|[\s`(/])tollway ((?:[a-z][a-z-]*\b ?)+)([^`\n]*)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", WRITTEN_PAGES)
def test_a_page_has_the_tables_of_the_code(name: str) -> None:
    """Each name with its default, status or text, in the order of the code; a name without its row, and a row without its name, is refused."""
    page = (ROOT / "docs" / name).read_text()
    assert write_page(page) == page, "run: python -m docsite.written"


def test_every_table_of_the_code_has_its_page() -> None:
    pages = "".join((ROOT / "docs" / name).read_text() for name in WRITTEN_PAGES)
    assert [name for name in PARTS if pages.count(f"<!-- written: {name} -->") != 1] == []
    assert [f"`{key}`" for key in ASSET_MEMBERS if f"`{key}`" not in pages] == []
    assert [name for name in PROCESS_SERIES if f"`{name}`" not in pages] == []


def test_a_name_without_its_meaning_is_refused() -> None:
    page = "<!-- written: limits -->\n| `headers_max` | 1 | how many headers |\n<!-- end -->"
    with pytest.raises(ValueError, match="the page has no row for"):
        write_page(page)


def name_page(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_no_link_leads_nowhere() -> None:
    broken = [(name_page(page), target) for page in PAGES for target in find_broken_links(page)]
    assert broken == []


def find_broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        linked = (page.parent / path).resolve() if path else page
        if not (linked.exists() and (not anchor or linked.is_dir() or anchor in anchors(linked))):
            yield target


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_name_the_actor() -> None:
    """Rule: the noun of the protocol (caller, operator, gateway, request, response) in place of a pronoun for a person."""
    unclear = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        unclear += [(name_page(page), line) for line in text.splitlines() if UNCLEAR_WORDS.search(line)]
    assert unclear == []


def test_every_command_exists_with_its_options() -> None:
    wrong = [(name_page(page), command) for page in COMMAND_PAGES for command in find_wrong_commands(page)]
    assert wrong == []


def find_wrong_commands(page: Path) -> Iterator[str]:
    for words, rest in COMMAND.findall(page.read_text().replace("\\\n", " ")):
        command = find_command(words.split())
        if command is None:
            yield words
            continue
        options = find_options(find_function(command))
        text = re.split(r"#|\s\|\s|[;&]|\$\(", rest)[0]
        for name in re.findall(r"(?<!\S)(--[a-z-]+)", text):
            if name not in options:
                yield f"{command} {name}"


DEPLOY_NAMES = frozenset({"TOLLWAY_DOMAIN", "TOLLWAY_GATEWAYS", "TOLLWAY_IMAGE"})
"""Variables of Compose and of Caddy."""
TEST_NAMES = frozenset({"TOLLWAY_CHROMIUM"})
"""Variables of the tests."""


def variable_names() -> set[str]:
    """Every variable that the gateway or a command reads."""
    names = {
        *(name.upper() for name in SETTING_NAMES),
        *(LIMIT_PREFIX + limit.name.upper() for limit in OPERATOR_LIMITS),
        *(named(preset) for preset in PRESETS for named in (rpc_name, gas_keys_name)),
        *CLIENT_NAMES,
    }
    return {PREFIX + name for name in names} | DEPLOY_NAMES | TEST_NAMES


def test_every_variable_of_a_page_exists() -> None:
    known = variable_names() | {PREFIX + LIMIT_PREFIX.rstrip("_")}
    unknown = [
        (name_page(page), name)
        for page in [*COMMAND_PAGES, *RUNBOOK_PAGES]
        for name in re.findall(r"\bTOLLWAY_[A-Z0-9_]*[A-Z0-9]", page.read_text())
        if name not in known
    ]
    assert unknown == []


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_node_of_a_caller_is_written_with_its_chain(page: Path) -> None:
    """The programs of docs/examples take no URL alone, as the commands do: what one page exports runs what another page shows."""
    nodes = re.findall(r"\bTOLLWAY_RPC=[^\s`\"]+", page.read_text())
    assert [node for node in nodes if not re.fullmatch(r"TOLLWAY_RPC=[1-9][0-9]*=https?://\S+", node)] == []


def find_command(words: list[str]) -> str | None:
    """The command, or the group with a function, that begins with the most of these words."""
    words = [*ALIASES.get(words[0], words[0]).split(), *words[1:]]
    names = {*COMMANDS, *(name for name, group in GROUPS.items() if group.target)}
    starts = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((start for start in starts if start in names), None)


def find_function(command: str) -> Any:
    module, _, function = (COMMANDS.get(command) or GROUPS[command]).target.partition(":")
    return getattr(import_module(module), function)


def find_options(function: Any) -> set[str]:
    """The long options of a command, from the annotations of its function."""
    options = {"--help"}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        for detail in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(detail, OptionInfo):
                declared = [
                    one
                    for text in (detail.default, *(detail.param_decls or ()))
                    if isinstance(text, str)
                    for one in text.split("/")
                ]
                options |= {one for one in declared if one.startswith("--")} or {
                    f"--{name.replace('_', '-')}"
                }
    return options


def test_the_guides_say_that_an_endpoint_is_public() -> None:
    silent = [
        page
        for page in ("providers.md", "operators.md", "tutorial.md")
        if not re.search(r"`endpoint`[^.]* is public", (ROOT / "docs" / page).read_text())
    ]
    assert silent == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


def test_the_package_page_has_its_picture_and_no_relative_link() -> None:
    page = (ROOT / "docs" / "package.md").read_text()
    assert "402: " in page.split("```text\n")[1].split("```")[0]
    assert [target for target in LINK.findall(page) if not target.startswith("https://")] == []


WORDS_MAX = 40


def test_sentences_and_cells_are_short() -> None:
    """A cell of more words is a section, and a sentence of more words is two."""
    pages = [*COMMAND_PAGES, *RUNBOOK_PAGES]
    long = [(name_page(page), words) for page in pages for words in find_long_texts(page.read_text())]
    assert long == []


def find_long_texts(page: str) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$|<!--.*?-->|!\[.*?\]\(.*?\)", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    prose = "\n".join("" if line.startswith("|") else line for line in text.splitlines())
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |#)", prose)
    sentences = [
        one for part in paragraphs for one in re.split(r"(?<=[.:;!?])\**\s+", " ".join(part.split()))
    ]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    yield from (one for one in [*sentences, *cells] if len(one.split()) > WORDS_MAX)


def test_the_first_pages_are_short() -> None:
    """A page that is read before the first call or the first start. What is looked up stands in the pages of reference."""
    words = {"README.md": 800, "docs/callers.md": 3_000, "docs/operators.md": 4_000}
    long = {name: len((ROOT / name).read_text().split()) for name in words}
    assert {name: count for name, count in long.items() if count > words[name]} == {}


def test_the_pages_are_short_together() -> None:
    """All pages of the documentation but the decisions and the runbooks. A page that grows says elsewhere what it repeats. Prices by use are new (from
    66,000), and so are payment channels and the budgets of owners."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= 65_000


BLOCKS = [
    (page, block) for page in [*COMMAND_PAGES, *RUNBOOK_PAGES] for block in read_blocks(page.read_text())
]
SHOWN = frozenset({"text", "mermaid"})
"""Languages of blocks that are looked at."""
CHECKED = frozenset({"json", "toml"})
"""Languages of blocks that this file reads as their program does."""
PROGRAMS = frozenset({"sh", "console", "python", "js", "ts"})
RUNNERS = {
    "README.md": "tests/system/live/test_readme.py",
    "budgets.md": "tests/system/live/test_readme.py",
    "tutorial.md": "tests/system/live/test_tutorial.py",
    "running.md": "tests/system/live/test_running.py",
    "runbooks": "tests/system/live/test_runbooks.py",
}
"""Page, or folder of pages -> the test that runs its blocks."""
NOT_RUN = {
    "README.md": 1,
    "accounting.md": 2,
    "callers.md": 4,
    "callers-reference.md": 9,
    "measuring.md": 2,
    "operators.md": 3,
    "package.md": 2,
    "providers.md": 3,
    "recipes.md": 7,
    "running.md": 4,
    "scaling.md": 1,
    "tutorial.md": 3,
    "verify.md": 3,
}
"""Page -> how many of its blocks no test runs. A number may only fall; a new page says why in each block."""


def name_block(page: Path, block: PageBlock) -> str:
    return f"{page.relative_to(ROOT).as_posix()}:{block.line}"


def test_the_blocks_that_no_test_runs_are_counted() -> None:
    found = Counter(page.name for page, block in BLOCKS if block.why_not_run)
    assert found == NOT_RUN


def test_every_program_is_run_or_says_why_not() -> None:
    silent = [
        name_block(page, block)
        for page, block in BLOCKS
        if block.language in PROGRAMS
        and not block.why_not_run
        and not block.runner
        and RUNNERS.keys().isdisjoint((page.name, page.parent.name))
    ]
    assert silent == []
    assert {block.language for _, block in BLOCKS} <= SHOWN | CHECKED | PROGRAMS


def test_the_test_that_runs_a_block_reads_its_page() -> None:
    named = [*RUNNERS.items(), *((page.name, block.runner) for page, block in BLOCKS if block.runner)]
    assert [page for page, test in named if page not in (ROOT / test).read_text()] == []


def test_every_fence_begins_or_ends_a_block() -> None:
    """A fence within a list, or with an option behind its language, would be a block that no test finds."""
    wrong = []
    for page in COMMAND_PAGES:
        text = page.read_text()
        if len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) != 2 * len(read_blocks(text)):
            wrong.append(name_page(page))
    assert wrong == []


KEY = "5e" * 8 + "0123456789abcdef" * 3


def test_every_code_block_is_of_its_language(tmp_path: Path) -> None:
    """All blocks are read before the test fails, or before it is skipped for the blocks whose program is missing."""
    wrong, not_read = [], set()
    for number, (page, block) in enumerate(BLOCKS):
        if block.language in SHOWN | {"console"}:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            read_block(block, folder)
        except pytest.skip.Exception as exc:
            not_read.add(str(exc))
        except Exception as exc:
            wrong.append(f"{name_block(page, block)}: {exc}")
    assert wrong == []
    if not_read:
        pytest.skip("; ".join(sorted(not_read)))


def read_block(block: PageBlock, folder: Path) -> None:
    """Reads a block as its program does. Raises when it is not of its language."""
    match block.language:
        case "json":
            json.loads(block.text)
        case "python":
            compile(block.text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "toml":
            read_settings(block.text, folder)
        case "sh":
            check_syntax(["bash", "-n"], folder / "block.sh", block.text)
        case "js":
            check_syntax(["node", "--check"], folder / "block.mjs", block.text)
        case "ts":
            check_types(block.text, folder)
        case language:
            raise AssertionError(f"no test reads {language}")


GIVEN_TO_TYPESCRIPT = """
declare const apiId: string;
declare const process: { env: Record<string, string> };
"""
"""What a block leaves to its reader, and the one name of Node that it uses."""


def check_types(text: str, folder: Path) -> None:
    """The TypeScript compiler of the repository, with the types of the packages that the block imports."""
    modules = ROOT / "node_modules"
    if not (modules / "typescript").exists():
        pytest.skip("node_modules has no TypeScript: run `make install`")
    (folder / "node_modules").symlink_to(modules.resolve())
    (folder / "given.d.ts").write_text(GIVEN_TO_TYPESCRIPT)
    (folder / "block.mts").write_text(text)
    compiler = ("node", modules / "typescript/bin/tsc", "--noEmit", "--strict", "--noImplicitAny", "false")
    target = ("--target", "es2022", "--module", "nodenext", "--skipLibCheck")
    run_check(*compiler, *target, "given.d.ts", "block.mts", folder=folder)


def check_syntax(program: list[str], file: Path, text: str) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not on this machine")
    file.write_text(text)
    run_check(*program, file)


def read_settings(text: str, folder: Path) -> None:
    """As the gateway reads its file; the keys that it names are made."""
    (folder / "secret.key").write_text(KEY)
    for number, path in enumerate(re.findall(r'"(/[^"]*\.key)"', text), 1):
        key = folder / Path(path).name
        key.write_text(KEY if key.name == "secret.key" else f"0x{number:064x}")
        text = text.replace(path, str(key))
    for key in folder.glob("*.key"):
        key.chmod(0o600)
    settings = folder / "tollway.toml"
    settings.write_text(text)
    settings.chmod(0o600)
    variables = {} if "secret_key" in text else {"TOLLWAY_SECRET_KEY_FILE": str(folder / "secret.key")}
    load_settings(variables, config=settings)
