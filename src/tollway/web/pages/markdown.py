"""Pages of the documentation that a gateway shows itself: the guides for people, and the runbooks of alerts for the operator.

A page is a Markdown file of `docs`, which the package holds too. It has one shape: a title, headings, paragraphs, commands between fences, numbered steps; within a
line, `code`, **strong text** and links to other pages. Everything else stays the text that it is. No part is HTML: the template escapes each.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

RUNBOOKS, GUIDES = (Path(__file__).with_name(name) for name in ("runbooks", "guides"))
GUIDE_NAMES = ("calling", "selling", "budgets", "questions")
GUIDE_PATH = "/docs/guides/"

_LINKED_PATHS = frozenset(
    {
        "/",
        "/status",
        *("/my/calls", "/my/credit", "/my/spending", "/my/budgets"),
        *("/my/apis/new", "/my/sales", "/my/webhooks"),
    }
)
"""Pages of the gateway that a guide names as code, and that lead there."""
_RUNBOOK = re.compile(r"[A-Z][A-Za-z0-9]{1,63}")
_PART = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<strong>[^*]+)\*\*|\[(?P<text>[^\]]+)\]\((?P<target>[A-Za-z][A-Za-z0-9-]{1,63}\.md(?:#[a-z0-9-]+)?)\)"
)
_REFERENCE = re.compile(r"(?<=[.?!])\s+\[[^\]]+\]\((?P<name>[a-z-]+)\.md(?:#[a-z0-9-]+)?\)\.")
"""A sentence that is a link and nothing else."""
_STEP = re.compile(r"\d+\. ")

Link = Callable[[str], str]
"""The address that a target leads to: of a link (`errors.md#held`), or a path in code (`/status`). Empty for none: its words stay text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownPart:
    """A part of a line. `href`: where it leads; empty for others."""

    text: str
    is_code: bool = False
    is_strong: bool = False
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownBlock:
    """A heading, a paragraph, commands or numbered steps. `lines`: one for a heading or a paragraph, one for each step; the commands are one part."""

    kind: Literal["heading", "text", "commands", "steps"]
    lines: tuple[tuple[MarkdownPart, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownPage:
    """`name`: of the file. `meaning`: its first paragraph."""

    name: str
    title: str
    blocks: tuple[MarkdownBlock, ...]

    @property
    def meaning(self) -> tuple[MarkdownPart, ...]:
        return next((block.lines[0] for block in self.blocks if block.kind == "text"), ())


def read_runbooks(folder: Path = RUNBOOKS) -> Mapping[str, MarkdownPage]:
    """All runbooks by the names of their alerts, in the order of the alphabet. The index of the folder is left out."""
    names = [path.stem for path in sorted(folder.glob("*.md")) if _RUNBOOK.fullmatch(path.stem)]
    return _read_pages(folder, [name for name in names if name != "README"], _link_runbook)


def read_guides(docs_url: str | None) -> Mapping[str, MarkdownPage]:
    """The guides by their names. `docs_url`: of the documentation site, where their links to other pages lead. None: such a link stays text, and a sentence that is
    nothing else is left out."""
    link = partial(_link_guide, docs_url=docs_url)
    return _read_pages(GUIDES, GUIDE_NAMES, link, leave_out=docs_url is None)


def _read_pages(
    folder: Path, names: Sequence[str], link: Link, *, leave_out: bool = False
) -> Mapping[str, MarkdownPage]:
    texts = {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in names}
    if leave_out:
        texts = {name: _REFERENCE.sub(_keep_guide, text) for name, text in texts.items()}
    return MappingProxyType({name: parse_page(name, text, link) for name, text in texts.items()})


def _keep_guide(found: re.Match[str]) -> str:
    return found[0] if found["name"] in GUIDE_NAMES else ""


def _link_runbook(target: str) -> str:
    name = target.removesuffix(".md")
    return f"/runbooks/{name}" if target != name and _RUNBOOK.fullmatch(name) else ""


def _link_guide(target: str, *, docs_url: str | None) -> str:
    name, _, rest = target.partition(".md")
    if name in GUIDE_NAMES:
        return GUIDE_PATH + name
    if target.startswith("/"):
        return target if target in _LINKED_PATHS else ""
    return "" if docs_url is None else f"{docs_url.removesuffix('/')}/{name}.html{rest}"


def parse_page(name: str, markdown: str, link: Link) -> MarkdownPage:
    lines = markdown.splitlines()
    title = lines[0].removeprefix("# ") if lines and lines[0].startswith("# ") else name
    return MarkdownPage(name=name, title=title, blocks=tuple(_parse_blocks(lines, link)))


def _parse_blocks(lines: Sequence[str], link: Link) -> Iterator[MarkdownBlock]:
    commands: list[str] | None = None
    text: list[str] = []
    for line in [*lines, ""]:
        if commands is not None:
            if line.startswith("```"):
                part = MarkdownPart(text="\n".join(commands), is_code=True)
                yield MarkdownBlock(kind="commands", lines=((part,),))
                commands = None
            else:
                commands.append(line)
        elif line.strip() and not line.startswith(("#", "```")):
            text.append(line.strip())
        else:
            if text:
                yield _parse_text(text, link)
                text = []
            if line.startswith("```"):
                commands = []
            elif line.startswith("## "):
                yield MarkdownBlock(kind="heading", lines=(parse_line(line[3:], link),))


def _parse_text(lines: Sequence[str], link: Link) -> MarkdownBlock:
    if not _STEP.match(lines[0]):
        return MarkdownBlock(kind="text", lines=(parse_line(" ".join(lines), link),))
    steps: list[str] = []
    for line in lines:
        start = _STEP.match(line)
        if start:
            steps.append(line[start.end() :])
        else:
            steps[-1] += f" {line}"
    return MarkdownBlock(kind="steps", lines=tuple(parse_line(step, link) for step in steps))


def parse_line(line: str, link: Link) -> tuple[MarkdownPart, ...]:
    """The parts of a line, without its marks."""
    parts: list[MarkdownPart] = []
    end = 0
    for found in _PART.finditer(line):
        if found.start() > end:
            parts.append(MarkdownPart(text=line[end : found.start()]))
        parts.append(_parse_part(found, link))
        end = found.end()
    if line[end:]:
        parts.append(MarkdownPart(text=line[end:]))
    return tuple(parts)


def _parse_part(found: re.Match[str], link: Link) -> MarkdownPart:
    if code := found["code"]:
        return MarkdownPart(text=code, is_code=True, href=link(code) if code.startswith("/") else "")
    if strong := found["strong"]:
        return MarkdownPart(text=strong, is_strong=True)
    return MarkdownPart(text=found["text"], href=link(found["target"]))
