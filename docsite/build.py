"""Builds the documentation site into `.site/html`: `make docs`.

The sources are the README, the pages of `docs/` and the Markdown files beside it, as they are. Links that leave `docs/` lead to copies within the site. Reference pages are
written from the code (`reference.py`). The output is never committed.
"""

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from docsite.reference import PAGES, ROOT, write_index

SITE = ROOT / ".site"
CONFIG = Path(__file__).with_name("zensical.toml")
PROJECT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
"""Files of the root that pages link to. In the site they stand in `project/`."""
INDEXES = ("decisions/README.md", "runbooks/README.md")
APART = ("reference/", "project/", "decisions/", "runbooks/")
"""Folders whose pages the navigation lists by itself, or by their index alone."""
NOT_SEARCHED = ("decisions/", "runbooks/", "project/CHANGELOG.md")
"""A search leads to guides and references. These pages are reached from their index, an alert, or the history."""
WITHOUT_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"
HOME, CONTENTS = "README.md", "contents.md"
"""The README of the repository is the first page of the site, and that of `docs/` a list of all pages."""
IMAGE = re.compile(r"(!\[[^\]]*\])\(docs/")
LINK = re.compile(r"(?<!!)(\[[^\]]*\])\(([^)\s]+)\)")
NAVIGATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Start", ("README.md", "questions.md", "tutorial.md", "contents.md", "features.md", "glossary.md")),
    (
        "Callers",
        (
            "calling.md",
            "callers.md",
            "pages.md",
            "recipes.md",
            "callers-reference.md",
            "errors.md",
            "accounting.md",
        ),
    ),
    ("Providers", ("selling.md", "providers.md", "metering.md", "webhooks.md", "response-headers.md")),
    (
        "Operators",
        (
            "operators.md",
            "running.md",
            "operators-reference.md",
            "gateway-behaviour.md",
            "runbooks/README.md",
            "log-events.md",
            "scaling.md",
            "measuring.md",
        ),
    ),
    (
        "Contributors",
        (
            "architecture.md",
            "testing.md",
            "threat-model.md",
            "scope.md",
            "decisions/README.md",
            "verify.md",
            "releasing.md",
            "package.md",
        ),
    ),
)
"""Pages that no section names are added to the last one, so none is left out."""


def write_sources(target: Path) -> None:
    """The pages that the site is built from."""
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("__pycache__"))
    (target / HOME).rename(target / CONTENTS)
    shutil.copy(ROOT / HOME, target / HOME)
    (target / "project").mkdir()
    for name in PROJECT_PAGES:
        shutil.copy(ROOT / name, target / "project" / name)
    (target / "reference").mkdir()
    (target / "reference" / "README.md").write_text(write_index())
    for name, write in PAGES.items():
        (target / "reference" / name).write_text(write())
    for page in target.rglob("*.md"):
        place = page.relative_to(target)
        front = WITHOUT_SEARCH if place.as_posix().startswith(NOT_SEARCHED) else ""
        page.write_text(front + move_links(page.read_text(), place))


def move_links(text: str, page: Path) -> str:
    """Links of the repository as links of the site. `page`: its place within the site. A target outside the site becomes plain text."""

    def move(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        moved = _find_place(path, page)
        return words[1:-1] if moved is None else f"{words}({moved}{mark}{anchor})"

    if page == Path(HOME):
        text = IMAGE.sub(r"\1(", text)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else LINK.sub(move, part) for number, part in enumerate(parts))


def _find_place(path: str, page: Path) -> str | None:
    """The relative path of a target within the site; None for one that is not in it."""
    if page.parts[0] == "reference":
        return path
    is_of_root = page.parts[0] == "project" or page == Path(HOME)
    home = ROOT if is_of_root else ROOT / "docs" / page.parent
    target = (home / path).resolve()
    up = "../" * (len(page.parts) - 1)
    if target in (ROOT / HOME, ROOT / "docs" / HOME, ROOT / "docs"):
        return f"{up}{HOME if target == ROOT / HOME else CONTENTS}"
    if target.is_relative_to(ROOT / "docs"):
        place = target.relative_to(ROOT / "docs")
        if target.is_dir():
            place = place / "README.md"
            if not (ROOT / "docs" / place).exists():
                return None
        return f"{up}{place}"
    if target.parent == ROOT and target.name in PROJECT_PAGES:
        return f"{up}project/{target.name}"
    return None


def write_config(target: Path, pages: Iterable[str]) -> None:
    """The configuration with the navigation."""
    named = {page for _, section in NAVIGATION for page in section}
    rest = tuple(sorted(page for page in pages if page not in named))
    sections: Mapping[str, tuple[str, ...]] = {**dict(NAVIGATION), "More": rest}
    lines = [
        f'  {{ "{title}" = [{", ".join(f"{chr(34)}{page}{chr(34)}" for page in section if page in set(pages))}] }},\n'
        for title, section in sections.items()
        if section
    ]
    reference = ", ".join(f'"reference/{name}"' for name in ("README.md", *PAGES))
    project = ", ".join(f'"project/{name}"' for name in PROJECT_PAGES if name.endswith(".md"))
    navigation = f'nav = [\n{"".join(lines)}  {{ "Reference" = [{reference}] }},\n  {{ "Project" = [{project}] }},\n]\n'
    text = CONFIG.read_text().replace("\n[project.theme]\n", f"\n{navigation}\n[project.theme]\n", 1)
    target.write_text(text)


def build(program: str) -> Path:
    """The folder with the site. Raises CalledProcessError, also for a link that leads nowhere."""
    shutil.rmtree(SITE, ignore_errors=True)
    SITE.mkdir()
    write_sources(SITE / "docs")
    pages = [page.relative_to(SITE / "docs").as_posix() for page in (SITE / "docs").rglob("*.md")]
    own = [page for page in pages if page.endswith(INDEXES) or not page.startswith(APART)]
    write_config(SITE / "zensical.toml", own)
    command = [program, "build", "--clean", "--strict", "--config-file", str(SITE / "zensical.toml")]
    subprocess.run(command, cwd=SITE, check=True)
    return SITE / "html"


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the documentation site.")
    parser.add_argument("--zensical", default="zensical", help="the program")
    print(f"the site is in {build(parser.parse_args().zensical)}")


if __name__ == "__main__":
    main()
