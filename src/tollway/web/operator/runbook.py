"""The runbooks of alerts, as the operator's pages show them.

A runbook is a Markdown file of `docs/runbooks`, which the package holds too. It has one shape: a title, headings, paragraphs, commands between fences, numbered steps;
within a line, `code` and links to other runbooks. Everything else stays the text that it is. No part is HTML: the template escapes each.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

FOLDER = Path(__file__).parents[1] / "pages" / "runbooks"

_NAME = re.compile(r"[A-Z][A-Za-z0-9]{1,63}")
_PART = re.compile(r"`(?P<code>[^`]+)`|\[(?P<text>[^\]]+)\]\((?P<name>[A-Z][A-Za-z0-9]{1,63})\.md\)")
_STEP = re.compile(r"\d+\. ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunbookPart:
    """A part of a line. `name`: the runbook that a link leads to; empty for others."""

    text: str
    is_code: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunbookBlock:
    """A heading, a paragraph, commands or numbered steps. `lines`: one for a heading or a paragraph, one for each step; the commands are one part."""

    kind: Literal["heading", "text", "commands", "steps"]
    lines: tuple[tuple[RunbookPart, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    """`name`: of its alert. `meaning`: its first paragraph."""

    name: str
    blocks: tuple[RunbookBlock, ...]

    @property
    def meaning(self) -> tuple[RunbookPart, ...]:
        return next((block.lines[0] for block in self.blocks if block.kind == "text"), ())


def read_runbooks(folder: Path = FOLDER) -> Mapping[str, Runbook]:
    """All runbooks by the names of their alerts, in the order of the alphabet. The index of the folder is left out."""
    found = {
        path.stem: parse_runbook(path.stem, path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.md"))
        if _NAME.fullmatch(path.stem) and path.stem != "README"
    }
    return MappingProxyType(found)


def parse_runbook(name: str, markdown: str) -> Runbook:
    """The title is left out: it is the name."""
    return Runbook(name=name, blocks=tuple(_parse_blocks(markdown.splitlines())))


def _parse_blocks(lines: Sequence[str]) -> Iterator[RunbookBlock]:
    commands: list[str] | None = None
    text: list[str] = []
    for line in [*lines, ""]:
        if commands is not None:
            if line.startswith("```"):
                part = RunbookPart(text="\n".join(commands), is_code=True)
                yield RunbookBlock(kind="commands", lines=((part,),))
                commands = None
            else:
                commands.append(line)
        elif line.strip() and not line.startswith(("#", "```")):
            text.append(line.strip())
        else:
            if text:
                yield _parse_text(text)
                text = []
            if line.startswith("```"):
                commands = []
            elif line.startswith("## "):
                yield RunbookBlock(kind="heading", lines=(parse_line(line[3:]),))


def _parse_text(lines: Sequence[str]) -> RunbookBlock:
    if not _STEP.match(lines[0]):
        return RunbookBlock(kind="text", lines=(parse_line(" ".join(lines)),))
    steps: list[str] = []
    for line in lines:
        start = _STEP.match(line)
        if start:
            steps.append(line[start.end() :])
        else:
            steps[-1] += f" {line}"
    return RunbookBlock(kind="steps", lines=tuple(parse_line(step) for step in steps))


def parse_line(line: str) -> tuple[RunbookPart, ...]:
    """The parts of a line, without its marks."""
    parts: list[RunbookPart] = []
    end = 0
    for found in _PART.finditer(line):
        if found.start() > end:
            parts.append(RunbookPart(text=line[end : found.start()]))
        code = found["code"]
        parts.append(
            RunbookPart(text=code, is_code=True)
            if code
            else RunbookPart(text=found["text"], name=found["name"])
        )
        end = found.end()
    if line[end:]:
        parts.append(RunbookPart(text=line[end:]))
    return tuple(parts)
