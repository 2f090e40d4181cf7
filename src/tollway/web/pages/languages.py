"""The languages of the pages: a catalog of messages for each, and which one a request gets.

A catalog is a `.po` file of the folder `pages/locale`, named by its language (`de.po`, `pt-BR.po`). It is compiled in memory at the start, so that no file can be older than its
source. A message without a translation is shown in English, which is the text of the templates. `en.po` lists every message and translates none: a new language begins as its copy.
Sources: GNU gettext manual §10 (PO files) and §11.3 (MO files), RFC 4647 §3.4 (lookup), RFC 9110 §12.5.4 (Accept-Language).
"""

import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path

LOCALE = Path(__file__).parent / "locale"
ENGLISH = "en"
LANGUAGES_READ_MAX = 20
"""Languages of an `Accept-Language` that are looked at."""

_MAGIC = 0x950412DE
_KEYWORD = re.compile(r'(msgid_plural|msgid|msgstr(?:\[[0-9]\])?)\s+(".*")')
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_RANGE = re.compile(r"([A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*)\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?))?")


@lru_cache(maxsize=4)
def read_catalogs(folder: Path = LOCALE) -> Mapping[str, NullTranslations]:
    """The catalog of each language, read once in a process. Raises ValueError for a file that is no PO file."""
    return {path.stem: compile_catalog(path.read_text("utf-8")) for path in sorted(folder.glob("*.po"))}


def choose_language(*, chosen: str | None, accept_language: str, available: Collection[str]) -> str:
    """The language of a page: the one that the reader chose, else the first that the browser accepts, else English. `de-AT` finds `de`."""
    by_name = {name.lower(): name for name in available}
    for wanted in (*([chosen] if chosen else ()), *_rank_languages(accept_language)):
        name = wanted.lower()
        while name:
            if name in by_name:
                return by_name[name]
            name = name.rpartition("-")[0]
    return ENGLISH


def _rank_languages(header: str) -> list[str]:
    """The languages of an `Accept-Language`, the most wanted first; those with quality 0 and the wildcard are left out."""
    found = []
    for part in header.split(",")[:LANGUAGES_READ_MAX]:
        match = _RANGE.fullmatch(part.strip())
        if match is not None and (quality := float(match[2] or 1)) > 0:
            found.append((quality, match[1]))
    return [language for _, language in sorted(found, key=lambda one: -one[0])]


# ---- Catalogs.


@dataclass(slots=True)
class TranslatedMessage:
    """A message with its translations: one, or with `plural` one for each form of the language."""

    message: str = ""
    plural: str | None = None
    translations: list[str] = field(default_factory=list)
    is_fuzzy: bool = False


def compile_catalog(source: str) -> GNUTranslations:
    """The catalog of a PO file. Messages without a translation, or marked fuzzy, are left out. Raises ValueError that names the line."""
    texts: dict[str, str] = {}
    for entry in parse_catalog(source):
        if entry.translations and all(entry.translations) and not entry.is_fuzzy:
            key = entry.message if entry.plural is None else f"{entry.message}\0{entry.plural}"
            texts[key] = "\0".join(entry.translations)
    return GNUTranslations(BytesIO(_write_mo(texts)))


def parse_catalog(source: str) -> Iterator[TranslatedMessage]:
    """The entries of a PO file, the header (with an empty message) among them. Raises ValueError that names the line."""
    entry, part = TranslatedMessage(), ""
    for number, raw in enumerate(source.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            if part.startswith("msgstr"):
                yield entry
                entry, part = TranslatedMessage(), ""
            entry.is_fuzzy |= line.startswith("#,") and "fuzzy" in line
            continue
        match = _KEYWORD.fullmatch(line)
        if match is not None:
            if match[1] == "msgid" and part.startswith("msgstr"):
                yield entry
                entry = TranslatedMessage()
            part, line = match[1], match[2]
            if part.startswith("msgstr"):
                entry.translations.append("")
            elif part == "msgid_plural":
                entry.plural = ""
        _append(entry, part, _unquote(line, number))
    if part.startswith("msgstr"):
        yield entry


def _append(entry: TranslatedMessage, part: str, text: str) -> None:
    if part == "msgid":
        entry.message += text
    elif part == "msgid_plural":
        entry.plural = (entry.plural or "") + text
    elif entry.translations:
        entry.translations[-1] += text


def _unquote(line: str, number: int) -> str:
    match = _TEXT.fullmatch(line)
    if match is None:
        raise ValueError(f"line {number} is no line of a PO file: {line[:80]}")
    return re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[0]), match[1])


def quote_message(text: str) -> str:
    """The text as a string of a PO file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def write_catalog(header: Mapping[str, str], messages: Iterable[tuple[str, str | None]]) -> str:
    """A PO file that translates nothing."""
    lines = [
        'msgid ""',
        'msgstr ""',
        *(quote_message(f"{name}: {value}\n") for name, value in header.items()),
    ]
    for message, plural in messages:
        lines += ["", f"msgid {quote_message(message)}"]
        lines += (
            ['msgstr ""']
            if plural is None
            else [f"msgid_plural {quote_message(plural)}", 'msgstr[0] ""', 'msgstr[1] ""']
        )
    return "\n".join(lines) + "\n"


def _write_mo(texts: Mapping[str, str]) -> bytes:
    """The MO file of the translations: two tables of lengths and offsets, sorted by key, then the texts, each with a NUL."""
    pairs = sorted((key.encode(), value.encode()) for key, value in texts.items())
    table = 7 * 4
    offset = table + 16 * len(pairs)
    keys, values = b"", b""
    blob = b""
    for key, _ in pairs:
        keys += struct.pack("<II", len(key), offset + len(blob))
        blob += key + b"\0"
    for _, value in pairs:
        values += struct.pack("<II", len(value), offset + len(blob))
        blob += value + b"\0"
    head = struct.pack("<7I", _MAGIC, 0, len(pairs), table, table + 8 * len(pairs), 0, 0)
    return head + keys + values + blob
