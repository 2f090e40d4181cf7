"""Transcripts as text: exchanges written down so that they are the same in every run, read back and compared.

What no clock and no key decides gets a placeholder, numbered within its section: ids of listings, calls and requests, random
nonces, and signatures over those. JSON and base64 of JSON are written over several lines where that loses nothing.
"""

import base64
import binascii
import difflib
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.system.transcripts.wire import Answer

RECORDINGS = Path(__file__).parent / "recordings"
BODY_SHOWN_MAX = 400_000
LINE_WIDTH = 150

_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("api", r"\bapi_[0-9a-z]{26}\b"),
        ("call", r"\bcall_[0-9a-z]{26}\b"),
        ("request", r"\breq_[0-9a-f]{24}\b"),
        ("signature", r"\b0x[0-9a-f]{130}(?:01)?\b"),
        ("signature", r"(?<==:)[A-Za-z0-9+/]{86,88}={0,2}(?=:)"),
        ("challenge", r'(?<=Payment id=")[A-Za-z0-9_-]{43}(?=")'),
        ("challenge", r'(?<="id": ")[A-Za-z0-9_-]{43}(?=")'),
        ("challenge", r'(?<="challengeId": ")[A-Za-z0-9_-]{43}(?=")'),
        ("ownership", r"(?<=tollway-verification=)[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
        ("route", r'(?<="route": ")[0-9a-f]{32}(?=")'),
        ("salt", r'(?<="salt": ")[0-9a-f]{24}(?=")'),
        ("nonce", r'(?<=nonce=")[0-9a-f]{32}(?=")'),
        ("nonce", r'(?<="nonce": ")[0-9a-f]{32}(?=")'),
        ("etag", r'(?<=etag: ")[0-9a-f]{24}(?=")'),
        ("etag", r'(?<=If-None-Match: ")[0-9a-f]{24}(?=")'),
        ("etag", r'(?<="r\d-)[0-9a-f]{16}(?=")'),
        ("digest", r"(?<=sha-256=:)[A-Za-z0-9+/]{43}=(?=:)"),
    )
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_PROSE = re.compile(r'"(?:title|detail|error)": ?"(?:[^"\\]|\\.)*"')
_INNER_PROSE = re.compile(r'\\"(?:title|detail|error)\\": ?\\"(?:[^"\\]|\\\\.)*\\"')
"""The same in JSON that stands as text in JSON (tools over MCP)."""


class Names:
    """Placeholders of one section. `literals`: texts of this machine (ports), by what stands for them; `random`: texts without
    a shape of their own, by their kind."""

    def __init__(self, literals: dict[str, str], random: dict[str, str]) -> None:
        self._literals = literals
        self._random = random
        self._given: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def replace(self, text: str) -> str:
        for literal, name in self._literals.items():
            text = text.replace(literal, name)
        for value, kind in self._random.items():
            if value in text:
                text = text.replace(value, self.give(kind, value))
        for kind, pattern in _PATTERNS:
            text = pattern.sub(lambda match, kind=kind: self.give(kind, match[0]), text)
        return text

    def give(self, kind: str, value: str) -> str:
        if (kind, value) not in self._given:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._given[kind, value] = f"<{kind} {self._counts[kind]}>"
        return self._given[kind, value]


class Recorder:
    """The transcript of one family, as it is written."""

    def __init__(self, literals: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.exchanges = 0
        self._literals = literals
        self._random: dict[str, str] = {}
        self._names = Names(literals, self._random)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def begin_scene(self, title: str) -> None:
        self._names = Names(self._literals, self._random)
        self.lines += ["", "=" * 100, f"section: {title}", ""]

    def note(self, text: str) -> None:
        self.lines += [f"-- {self._names.replace(text)}", ""]

    def note_rows(self, rows: Sequence[str]) -> None:
        if rows:
            self.lines[-1:] = [*(f"  row {self._names.replace(row)}" for row in rows), ""]

    def learn(self, kind: str, value: str) -> None:
        """A random text that has no shape of its own, from where it was first told."""
        if value:
            self._random[value] = kind

    def learn_literal(self, literal: str, name: str) -> None:
        """A text of this machine, for all sections that follow."""
        self._literals[literal] = name

    def add(
        self,
        title: str,
        request: tuple[str, str, Sequence[tuple[str, str]], bytes],
        answer: Answer | None,
        *,
        upstream: Sequence[Any],
        rpc: dict[str, int] | None,
        rows: Sequence[str],
    ) -> None:
        self.exchanges += 1
        method, target, headers, body = request
        self.lines.append(f"## {self._names.replace(title)}")
        self._add_message("> ", f"{method} {target}", headers, body)
        if answer is None:
            self.lines.append("< (the caller leaves)")
        else:
            status = f"{answer.status}" if answer.status else "(no answer: the connection ends)"
            status = "".join(f"{one} " for one in answer.interim) + status
            self._add_message("< ", status, answer.headers, answer.body)
            if answer.is_broken and answer.status:
                self.lines.append("< (broken off)")
        for arrived in sorted(
            upstream, key=lambda one: (one.target, one.method)
        ):  # some are asked for at once
            self._add_message(
                "  upstream ", f"{arrived.method} {arrived.target}", arrived.headers, arrived.body
            )
            if not arrived.is_whole:
                self.lines.append("  upstream (broken off)")
        if rpc:
            self.lines.append("  rpc " + ", ".join(f"{name} {count}" for name, count in rpc.items()))
        self.lines += [f"  row {self._names.replace(row)}" for row in rows]
        self.lines.append("")

    def _add_message(self, mark: str, first: str, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        self.lines.append(mark + self._names.replace(first))
        for name, value in headers:
            value = "<date>" if name.lower() == "date" and mark == "< " else value
            self.lines += [f"{mark}{line}" for line in self._write(f"{name}: {value}").split("\n")]
        if body:
            self.lines.append(mark.rstrip())
            self.lines += [f"{mark}{line}" for line in self._write_body(body).split("\n")]

    def _write_body(self, body: bytes) -> str:
        if len(body) > BODY_SHOWN_MAX or b"\0" in body:
            return f"({len(body)} bytes, sha-256 {hashlib.sha256(body).hexdigest()})"
        text = body.decode("utf-8", "backslashreplace")
        pretty = write_json(text)
        if pretty is None:
            shown = re.sub(
                r"(.)\1{63,}", lambda m: f"({len(m[0])} times {m[1]})", text.replace("\r\n", "(crlf)\n")
            )
            return self._write(shown)
        return "json " + self._write(pretty)

    def _write(self, text: str) -> str:
        """Base64 of JSON opened, then placeholders."""
        return self._names.replace(_BASE64.sub(lambda match: open_base64(match[0]) or match[0], text))


def write_json(text: str) -> str | None:
    """The same JSON over several lines, if the text can be made of it again; else None."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if not isinstance(content, dict | list):
        return None
    for separators, is_ascii in (
        ((",", ":"), False),
        ((", ", ": "), True),
        ((",", ":"), True),
        ((", ", ": "), False),
    ):
        if json.dumps(content, separators=separators, ensure_ascii=is_ascii) == text:
            kind = ("" if separators[0] == "," else "spaced ") + (
                "ascii " if is_ascii and not text.isascii() else ""
            )
            return kind + lay_out(content)
    return None


def lay_out(content: Any, depth: int = 0) -> str:
    """JSON with a line for each member; what fits into one line stays in one."""
    whole = json.dumps(content, ensure_ascii=False)
    is_short = len(whole) + depth <= LINE_WIDTH and depth > 0
    if not isinstance(content, dict | list) or not content or is_short:
        return whole
    pad = " " * (depth + 1)
    if isinstance(content, dict):
        lines = [
            f"{json.dumps(name, ensure_ascii=False)}: {lay_out(value, depth + 1)}"
            for name, value in content.items()
        ]
        opening, closing = "{", "}"
    else:
        lines = [lay_out(value, depth + 1) for value in content]
        opening, closing = "[", "]"
    return opening + "\n" + ",\n".join(pad + line for line in lines) + "\n" + " " * depth + closing


def open_base64(text: str) -> str | None:
    """JSON in base64, told as such with its alphabet; None for anything that is not exactly that."""
    is_urlsafe = "-" in text or "_" in text
    bare = text.rstrip("=")
    try:
        raw = base64.b64decode(
            bare + "=" * (-len(bare) % 4), altchars=b"-_" if is_urlsafe else None, validate=True
        )
        inner = raw.decode("utf-8")
    except (ValueError, binascii.Error):
        return None
    if not inner.startswith("{"):
        return None
    pretty = write_json(inner)
    inner = _BASE64.sub(lambda match: open_base64(match[0]) or match[0], inner if pretty is None else pretty)
    padding = "padded" if text.endswith("=") else "unpadded" if len(bare) % 4 else "whole"
    return f"base64({padding} {inner})"


# ---- Reading back.


def path_of(family: str) -> Path:
    return RECORDINGS / f"{family}.txt"


def count_exchanges(family: str) -> int:
    return len(re.findall(r"(?m)^## ", path_of(family).read_text(encoding="utf-8")))


def find_codes() -> set[str]:
    """The error codes of problems that stand in the recordings. Those of single fields are not among them."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in RECORDINGS.glob("*.txt"))
    return set(re.findall(r'(?m)^< *(?:json )? ?"code": "([a-z_0-9]+)"', text))


def without_prose(text: str) -> str:
    """Without what people read in problems: `title` and `detail`, the copy of the detail in `error`, and lengths."""
    text = _INNER_PROSE.sub('"prose"', _PROSE.sub('"prose"', text))
    return re.sub(r"(?mi)^(<.*content-length:) \d+$", r"\1 -", text)


def compare(recorded: str, replayed: str, *, name: str, ignores_prose: bool = False) -> str:
    """A diff with the exchange that each difference belongs to; empty where there is none."""
    if ignores_prose:
        recorded, replayed = without_prose(recorded), without_prose(replayed)
    if recorded == replayed:
        return ""
    before, after = recorded.splitlines(), replayed.splitlines()
    told = [f"{name}: the transcript differs (- recorded, + now)"]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, low, high, new_low, new_high in matcher.get_opcodes():
        if tag == "equal":
            continue
        told.append(f"@@ {_place(before, low)}")
        told += [f"  {line}" for line in before[max(0, low - 2) : low]]
        told += [f"- {line}" for line in before[low:high]]
        told += [f"+ {line}" for line in after[new_low:new_high]]
        told += [f"  {line}" for line in before[high : high + 2]]
    return "\n".join(told)


def _place(lines: list[str], at: int) -> str:
    section = next((line for line in reversed(lines[: at + 1]) if line.startswith("section: ")), "")
    exchange = next((line for line in reversed(lines[: at + 1]) if line.startswith(("## ", "section: "))), "")
    return f"line {at + 1}, {section}, {exchange}"
