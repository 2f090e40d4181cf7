"""Reads what the response of a metered call reports of its use. Pure and synchronous: no clock, no I/O.

A part of a formula names where its quantity stands (`registry.metering.QuantitySource`): a response header, a JSON pointer (RFC 6901) into a JSON body or
into the events of a stream (the Content-Type decides), or the bytes of the body as the gateway forwards it. A quantity is a non-negative integer of at
most 18 digits, as a JSON number or as a string of digits. Everything else is absent, never a guess: a fraction, an exponent, a sign, a boolean, a name
that stands twice in an object on the way, a header that is sent twice or as a list. A body with a coding, of another type, or too large reports nothing
at a pointer. A response without a body (HEAD, 204, 304) reports 0 everywhere.

Of the events of a stream the last one that has the pointer counts, for each pointer alone, and nothing is added up. An event that is too large to be
read makes every pointer absent, until a later event has it.

A body without a length and without chunks ends with its connection. That is complete (RFC 9112 §6.3), and cannot be told from a cut (§8): such a body is
whole where its JSON is, or where its last event has ended. Else it was cut, and takes the base.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from tollway.gateway.headers import RawHeaders
from tollway.limits import Limits
from tollway.registry.metering import BASE, QUANTITY_DIGITS_MAX, Measured, Metering, QuantitySource

_BODILESS = frozenset({204, 304})
_JSON_TYPE = re.compile(r"(?:application|text)/json|[^/;,\s]+/[^/;,\s]+\+json")
_EVENT_STREAM = "text/event-stream"
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
_OTHER_LINE = re.compile(rb"(?<=\n)(?!data)[^\n]++\n")
_EMPTY_LINES = re.compile(rb"\n{3,}+")
_REFUSED_JSON = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}|(?<![0-9])[0-9]{4000,}+")
"""Surrogates, and numbers of more digits than `from_json` reads."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
POINTERS_KEPT = 1_000
SHORT_LINE_BYTES = 16
VALUES_MAX = 262_144
"""The most values of a JSON text. A value of two bytes costs Python a hundred bytes; a body of a MiB with embeddings has 100,000."""

B = TypeVar("B", bytes, bytearray)

_MISSING: Final = object()
_UNREADABLE: Final = object()
"""In place of a JSON value that is no quantity, or that its object has twice."""


class UsageReader:
    """The reader of one response. It takes the body in chunks of any size: the result is the same for every split.

    `add` and `end` parse JSON, which may take milliseconds (`count_parsed`). They may run in a thread, one at a time."""

    __slots__ = (
        "_body_bytes",
        "_copy",
        "_copy_bytes_max",
        "_events",
        "_form",
        "_formulas",
        "_found",
        "_headers",
        "_is_bodiless",
        "_is_cut",
        "_lasts_until_close",
        "_names",
        "_pointers",
    )

    def __init__(
        self,
        formulas: Sequence[Metering],
        *,
        method: str,
        status: int,
        headers: RawHeaders,
        limits: Limits,
        lasts_until_close: bool = False,
    ) -> None:
        """`headers`: as the upstream sent them. `lasts_until_close`: the body ends with its connection."""
        self._formulas = formulas
        self._headers = headers
        self._is_bodiless = method == "HEAD" or status in _BODILESS
        self._lasts_until_close = lasts_until_close
        self._is_cut = False
        self._body_bytes = 0
        self._found: dict[str, int | None] = {}  # pointer -> its quantity; None where it is there and is none
        self._form = form = None if self._is_bodiless else _find_form(headers)
        sources = [part.source for formula in formulas for part in formula.parts]
        found = (_find_pointer(source, form) for source in sources)
        self._pointers = tuple(dict.fromkeys(pointer for pointer in found if pointer is not None))
        self._names = tuple(map(_find_name, self._pointers))
        self._copy = bytearray() if self._pointers and form == "json" else None
        self._copy_bytes_max = limits.metered_body_bytes_max
        self._events = None
        if self._pointers and form == "sse":
            self._events = EventReader(event_bytes_max=limits.metered_event_bytes_max)

    @property
    def is_copying(self) -> bool:
        """Whether it keeps the body in memory, of at most `metered_body_bytes_max`, to parse it at its end."""
        return self._copy is not None

    def count_parsed(self, chunk: bytes, *, is_last: bool) -> int:
        """The most bytes of JSON that are parsed when `chunk` is added, and after it the end where it `is_last`."""
        if self._copy is not None:
            return len(self._copy) + len(chunk) if is_last else 0
        return 0 if self._events is None else self._events.held_bytes + len(chunk)

    def add(self, chunk: bytes) -> None:
        self._body_bytes += len(chunk)
        if self._copy is not None:
            self._copy += chunk
            if len(self._copy) > self._copy_bytes_max:
                self._copy = None  # too large: its pointers stay absent
        elif self._events is not None:
            for event in self._events.add(chunk):
                self._read_event(event)

    def end(self) -> None:
        """The whole body was added. An event that is not complete does not count."""
        copy, self._copy = self._copy, None
        if self._events is not None:
            self._is_cut = self._lasts_until_close and not self._events.is_between_events
        if copy is not None:
            document = _parse(copy)
            self._is_cut = self._lasts_until_close and not isinstance(document, dict | list)
            for pointer in self._pointers:
                self._found[pointer] = _read_quantity(_find_value(document, pointer))

    def _read_event(self, event: bytes | None) -> None:
        if event is not None and b"\\u" not in event and not any(name in event for name in self._names):
            return  # most events report no usage, and are not parsed
        document = _UNREADABLE if event is None else _parse(event)
        for pointer in self._pointers:
            value = _find_value(document, pointer)
            if value is not _MISSING and value is not None:  # `"usage": null` is an event without usage
                self._found[pointer] = _read_quantity(value)

    def measure(self) -> Measured:
        """What was reported so far. Before `end` a JSON body reports nothing; the last usage of a stream, and the bytes so far, count. `BASE` for a body that was cut."""
        if self._is_cut:
            return BASE
        measured = []
        for formula in self._formulas:
            quantities = [self._measure(part.source) for part in formula.parts]
            whole = tuple(quantity for quantity in quantities if quantity is not None)
            measured.append(whole if len(whole) == len(quantities) else None)
        return Measured(tuple(measured))

    def _measure(self, source: QuantitySource) -> int | None:
        if self._is_bodiless:
            return 0
        if source.is_bytes:
            return self._body_bytes
        if source.header is not None:
            return _read_header(self._headers, source.header)
        pointer = _find_pointer(source, self._form)
        return None if pointer is None else self._found.get(pointer)


def reads_json(formulas: Iterable[Metering]) -> bool:
    """Whether a quantity stands in a JSON body, so that the body is copied."""
    return any(part.source.json is not None for formula in formulas for part in formula.parts)


# ---- The head.


def _find_form(headers: RawHeaders) -> str | None:
    """`json` or `sse`; None for a body in which no pointer is read: of another type, or with a coding."""
    types = [value for name, value in headers if name.lower() == b"content-type"]
    codings = [value for name, value in headers if name.lower() == b"content-encoding"]
    if len(types) != 1 or any(value.strip().lower() not in (b"", b"identity") for value in codings):
        return None
    media_type = types[0].partition(b";")[0].strip().lower().decode("latin-1")
    if media_type == _EVENT_STREAM:
        return "sse"
    return "json" if _JSON_TYPE.fullmatch(media_type) else None


def _find_pointer(source: QuantitySource, form: str | None) -> str | None:
    if form == "json":
        return source.json
    return source.sse if form == "sse" else None


def _read_header(headers: RawHeaders, name: str) -> int | None:
    wanted = name.lower().encode()
    values = [value for found, value in headers if found.lower() == wanted]
    return _read_quantity(values[0].strip(b" \t").decode("latin-1")) if len(values) == 1 else None


# ---- Values.


def _read_quantity(value: object) -> int | None:
    """None where it is no quantity."""
    if type(value) is int:  # no boolean; `_read_integer` has checked its digits
        return value
    if isinstance(value, str) and len(value) <= QUANTITY_DIGITS_MAX and value.isascii() and value.isdigit():
        return int(value)
    return None


def _parse(text: bytes | bytearray) -> object:
    """The JSON value; `_MISSING` for a text that is no JSON, `_UNREADABLE` for an object that is broken or nested too deeply, and for too many values."""
    text = text.removeprefix(_BOM)
    if text.count(b",") + text.count(b"[") + text.count(b"{") > VALUES_MAX:
        return _UNREADABLE
    try:
        # Before `json`, which counts names: a library of the gateway raises Python's recursion limit, and then deep nesting kills the process.
        _check_nesting(bytes(text))
        return _DECODER.decode(text.decode())
    except ValueError:
        return _UNREADABLE if text.lstrip().startswith(b"{") else _MISSING


def _check_nesting(text: bytes) -> None:
    """Raises ValueError for a text that is no JSON or nested too deeply. The half of a character that ends a cut text, and a very long number, are JSON:
    they stand in what a caller wrote, and must not hide the usage beside them."""
    try:
        from_json(text, cache_strings="keys")
    except ValueError:
        from_json(_REFUSED_JSON.sub(_replace_refused, text), cache_strings="keys")


def _replace_refused(found: re.Match[bytes]) -> bytes:
    """After a backslash that is escaped, too, the text stays JSON."""
    return rb"\u0020" if found[0].startswith(b"\\") else b"1"


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        built.update((name, _UNREADABLE) for name, count in counts.items() if count > 1)
    return built


def _read_integer(text: str) -> object:
    return int(text) if len(text) <= QUANTITY_DIGITS_MAX and text[0] != "-" else _UNREADABLE


def _refuse_number(text: str) -> object:
    return _UNREADABLE


_DECODER = json.JSONDecoder(
    object_pairs_hook=_build_object,
    parse_int=_read_integer,
    parse_float=_refuse_number,
    parse_constant=_refuse_number,
)


def _find_value(document: object, pointer: str) -> object:
    """The value at a JSON pointer, `_MISSING` without one, `_UNREADABLE` where a name on the way is there twice."""
    value = document
    for token in _split_pointer(pointer):
        if isinstance(value, dict):
            value = value.get(token, _MISSING)
        elif isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
            value = value[int(token)]
        elif value is not _UNREADABLE:
            return _MISSING
    return value


@lru_cache(maxsize=POINTERS_KEPT)
def _split_pointer(pointer: str) -> tuple[str, ...]:
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


@lru_cache(maxsize=POINTERS_KEPT)
def _find_name(pointer: str) -> bytes:
    """A name that each text with this pointer has, unless it is written with an escape `\\u`; empty where none is known."""
    plain = [token for token in _split_pointer(pointer) if _PLAIN_NAME.fullmatch(token)]
    return plain[-1].encode() if plain else b""


# ---- Event streams.


class EventReader:
    """Splits an event stream (WHATWG HTML §9.2.6) into the data of its events. `event_bytes_max`: of the data of one event. Other lines may be longer."""

    __slots__ = (
        "_bytes_max",
        "_data",
        "_data_bytes",
        "_has_ended_event",
        "_is_after_cr",
        "_is_first_line",
        "_is_too_large",
        "_line",
        "_line_is_dropped",
    )

    def __init__(self, *, event_bytes_max: int) -> None:
        self._bytes_max = event_bytes_max
        self._line = bytearray()
        self._line_is_dropped = False
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._is_too_large = False
        self._is_after_cr = False
        self._has_ended_event = False
        self._is_first_line = True

    @property
    def is_between_events(self) -> bool:
        """Whether an event has ended, and no other has data."""
        is_begun = self._line or self._line_is_dropped or self._data or self._is_too_large
        return self._has_ended_event and not is_begun

    @property
    def held_bytes(self) -> int:
        return len(self._line) + self._data_bytes

    def add(self, chunk: bytes) -> list[bytes | None]:
        """The data of the events that end in this chunk, in their order; None as soon as an event is too large, in its place."""
        events: list[bytes | None] = []
        if self._is_after_cr and chunk.startswith(b"\n"):  # the second half of a CRLF
            self._is_after_cr = False
            chunk = chunk[1:]
        if not chunk:
            return events
        self._is_after_cr = chunk.endswith(b"\r")
        if chunk.count(b"\n") + chunk.count(b"\r") > len(chunk) // SHORT_LINE_BYTES:
            # A flood of short lines: those that hold no data, and empty ones after the end of an event, never reach the loop.
            # With one form of a line end: the CR before a dropped line and the LF after it would be one end of a line.
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            chunk = _EMPTY_LINES.sub(b"\n\n", _OTHER_LINE.sub(b"", chunk))
        *ended, rest = _LINE_END.split(chunk)
        for piece in ended:
            self._keep(piece, events)
            self._end_line(events)
        self._keep(rest, events)
        return events

    def _keep(self, piece: bytes, events: list[bytes | None]) -> None:
        if self._line_is_dropped:
            return
        self._line += piece
        if len(self._line) > self._bytes_max:
            if self._take_bom(self._line).startswith(b"data"):
                self._drop(events)
            self._line_is_dropped = True
            self._line.clear()

    def _end_line(self, events: list[bytes | None]) -> None:
        line, is_dropped = bytes(self._line), self._line_is_dropped
        self._line.clear()
        self._line_is_dropped = False
        line = self._take_bom(line)
        self._is_first_line = False
        if is_dropped:
            return
        if not line:
            if self._data and not self._is_too_large:
                events.append(b"\n".join(self._data))
            self._has_ended_event = True
            self._data, self._data_bytes, self._is_too_large = [], 0, False
            return
        name, _, value = line.partition(b":")
        if name == b"data" and not self._is_too_large:
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._bytes_max:
                self._drop(events)

    def _take_bom(self, line: B) -> B:
        return line.removeprefix(_BOM) if self._is_first_line else line

    def _drop(self, events: list[bytes | None]) -> None:
        """The event at hand is too large: its data is dropped up to its end."""
        if not self._is_too_large:
            events.append(None)
        self._data, self._data_bytes, self._is_too_large = [], 0, True
