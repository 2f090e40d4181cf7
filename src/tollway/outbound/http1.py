"""HTTP/1.1 as bytes: formats the fields of a request, and parses responses into a head and the pieces of a body. No I/O.

llhttp checks names, line ends and framing; input that it accepts and that has two readings is refused here. A head that is not wholly valid is
refused. A cut body never counts as a whole one, and bytes after its end never count as part of it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from tollway.errors import Code, Problem, Refusal

HEAD_END = b"\r\n\r\n"
BODILESS_STATUSES = (204, 304)
_SWITCHING = 101
_FRAMING_SIZES = frozenset(map(len, (b"content-length", b"connection", b"keep-alive", b"transfer-encoding")))
_VERSIONS = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_CONTROLS = bytes(code for code in (*range(1, 32), 127) if code not in b"\t\r\n")
_CONTROLS_REPLACED = bytes.maketrans(
    _CONTROLS, b"@" * len(_CONTROLS)
)  # "@" is valid in no name, length or coding
_KEEP_ALIVE_TIMEOUT = re.compile(rb"(?:^|[,\s])timeout\s*=\s*\"?([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_BARE_LF = re.compile(rb"(?<!\r)\n")
_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token (RFC 9110 §5.6.2)."""

FIELD_NAMES_KEPT = 2_048
FIELD_NAME_CHARS_KEPT = 64
"""The result for a longer name is not cached: the caller chooses the names, and 2,048 names of 32 KiB are 64 MiB."""


def _is_field_name(text: str) -> bool:
    return FIELD_NAME.fullmatch(text) is not None


_is_kept_field_name = lru_cache(maxsize=FIELD_NAMES_KEPT)(_is_field_name)


Headers = tuple[tuple[bytes, bytes], ...]

UNWRITABLE = Problem(code=Code.INVALID_REQUEST, detail="The request cannot be written as HTTP.")


def format_fields(headers: Iterable[tuple[str, str]]) -> bytes:
    """HTTP/1.1 (RFC 9112 §5). Raises Refusal for a name that is no token, and for a value with control characters."""
    lines: list[str] = []
    for name, value in headers:
        is_name = _is_kept_field_name if len(name) <= FIELD_NAME_CHARS_KEPT else _is_field_name
        if not is_name(name) or _BAD_VALUE.search(value) is not None:
            raise Refusal(UNWRITABLE)
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode()


class ResponseMalformed(Exception):
    """The bytes from the upstream are no valid response."""


class HeadTooLarge(ResponseMalformed):
    """The head of the response has more bytes or more fields than the gateway reads. The upstream's server may have sent it correctly."""


@dataclass(slots=True, kw_only=True)
class HeadLimits:
    """`head_bytes`: all heads of one response, the interim ones included; one field may fill them. `headers`: the fields of one head."""

    head_bytes: int
    line_bytes: int
    headers: int


class ResponseHead:
    """A status and its headers. `length`: bytes of the body; None where it is chunked, or ends with the
    connection. `is_keep_alive`: the connection may be kept once the body is read, for less than `idle_s_max` seconds.

    `fields`: the fields that llhttp has reported so far (`on_header`); a parsed head does not change any more. It is one object and not
    two, because every call makes one.
    """

    __slots__ = ("fields", "headers", "idle_s_max", "is_chunked", "is_keep_alive", "length", "status")

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.headers: Headers = ()
        self.length: int | None = None
        self.is_chunked = False
        self.is_keep_alive = False
        self.idle_s_max = inf

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value.rstrip(b" \t")))


def check_partial_head(partial_head: bytes | bytearray, *, seen: int) -> None:
    """Raises ResponseMalformed where these bytes cannot begin a valid head; the first `seen` bytes were checked before."""
    prefix = bytes(partial_head[:9])
    if not any(version.startswith(prefix) for version in _VERSIONS) or _BARE_LF.search(partial_head, seen):
        raise ResponseMalformed("this is not HTTP/1.1")


def parse_head(head: bytes, *, method: str, limits: HeadLimits) -> ResponseHead:
    """Parses one whole head, final or interim, the empty line included. Raises ResponseMalformed."""
    if not head.startswith(_VERSIONS):
        raise ResponseMalformed("this is not HTTP/1.1")
    if len(head) > limits.line_bytes and head.find(b"\r\n") > limits.line_bytes:
        raise HeadTooLarge("the status line is too long")
    try:
        parsed = _run_parser(head)
    except (HttpParserError, HttpParserUpgrade) as exc:
        raise ResponseMalformed(f"the head is not valid: {exc}") from exc
    if not 100 <= parsed.status <= 599 or parsed.status == _SWITCHING:
        raise ResponseMalformed("the status is not valid for this request")
    if len(parsed.headers) > limits.headers:
        raise HeadTooLarge("there are too many fields")
    _frame(parsed, method=method, is_old=head[7:8] == b"0")
    return parsed


def _run_parser(head: bytes, *, is_lenient: bool = False) -> ResponseHead:
    """Accepts control characters in values, except NUL, CR and LF (RFC 9110 §5.5). The lenient mode of llhttp that accepts them also
    accepts invalid heads; so such a head must first be valid in strict mode, with other characters in their place.
    """
    parsed = ResponseHead()
    parser = HttpResponseParser(parsed)  # a new one each time: no state of one response reaches the next
    if is_lenient:
        parser.set_dangerous_leniencies(lenient_headers=True)
    try:
        parser.feed_data(head)
    except HttpParserError:
        replaced = head.translate(_CONTROLS_REPLACED)
        if is_lenient or replaced == head:
            raise
        _run_parser(replaced)
        return _run_parser(head, is_lenient=True)
    parsed.status, parsed.headers = parser.get_status_code(), tuple(parsed.fields)
    return parsed


def _frame(head: ResponseHead, *, method: str, is_old: bool) -> None:
    """Sets the framing by RFC 9112 §6.3 and §9.3. llhttp has refused two lengths, and a length beside chunks."""
    length: int | None = None
    is_chunked = is_closing = is_kept = False
    for name, value in head.headers:
        if len(name) not in _FRAMING_SIZES:
            continue
        name = name.lower()
        if name == b"content-length":
            length = int(value)
        elif name == b"connection":
            tokens = value.lower()
            is_closing = is_closing or b"close" in tokens
            is_kept = is_kept or b"keep-alive" in tokens
        elif name == b"keep-alive":
            head.idle_s_max = _read_idle_s_max(value)
        elif name == b"transfer-encoding":
            # The gateway sends no TE field (RFC 9112 §7.4) and could not pass another coding on.
            if is_chunked or value.lower() != b"chunked":
                raise ResponseMalformed("the transfer coding is not chunked")
            is_chunked = True
    if method == "HEAD" or head.status in BODILESS_STATUSES or head.status < 200:
        length, is_chunked, has_framing = 0, False, True
    else:
        has_framing = length is not None or is_chunked
    head.length, head.is_chunked = length, is_chunked
    # Chunks from an HTTP/1.0 server are framing in error (RFC 9112 §6.1): the connection is not kept.
    head.is_keep_alive = has_framing and not is_closing and (not is_old or (is_kept and not is_chunked))


def _read_idle_s_max(value: bytes) -> float:
    """How long the connection may idle, from `Keep-Alive: timeout=N` (RFC 2068 §19.7.1.1): up to a second less than the server's own time, in which a
    request would reach it too late."""
    found = _KEEP_ALIVE_TIMEOUT.search(value)
    if found is None:
        return inf
    timeout_s = int(found[1])
    return timeout_s - min(1.0, timeout_s / 2)


class _Chunks:
    __slots__ = ("is_whole", "last", "messages", "on_body", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.is_whole = False
        self.last = 0  # the number of pieces at the end of the body: later pieces belong to another message
        self.messages = 0

    def on_message_begin(self) -> None:
        self.messages += 1

    def on_message_complete(self) -> None:
        if not self.is_whole:
            self.is_whole = True
            self.last = len(self.pieces)


class ChunkedBody:
    """Decodes a chunked body. Trailers are dropped."""

    __slots__ = ("_chunks", "_parser")

    def __init__(self) -> None:
        self._chunks = _Chunks()
        self._parser = HttpResponseParser(self._chunks)
        self._parser.feed_data(_CHUNKED_HEAD)

    @property
    def is_whole(self) -> bool:
        return self._chunks.is_whole

    @property
    def has_leftover(self) -> bool:
        return self._chunks.messages > 1

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The pieces of the body in these bytes. Raises ResponseMalformed, and then returns none of them."""
        chunks = self._chunks
        chunks.pieces.clear()
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as exc:
            if not chunks.is_whole:
                raise ResponseMalformed(f"the chunks are not valid: {exc}") from exc
            chunks.messages = 2
        return chunks.pieces[: chunks.last] if chunks.is_whole else chunks.pieces


class ResponseParser:
    """Parses one response. `head`: None until it has arrived. `buffered`: bytes of the body that were not taken yet. `has_leftover`: bytes
    arrived after the response, so the connection cannot be used again."""

    __slots__ = (
        "_between",
        "_chunked",
        "_head_bytes",
        "_limits",
        "_method",
        "_partial_head",
        "_pieces",
        "_remaining",
        "buffered",
        "has_leftover",
        "head",
        "is_whole",
    )

    def __init__(self, method: str, limits: HeadLimits) -> None:
        self._method = method
        self._limits = limits
        self._partial_head = b""  # the bytes of an incomplete head
        self._head_bytes = 0
        self._between = 0  # bytes since the last body byte of a chunked body: sizes, extensions, trailers
        self._pieces: list[bytes] = []
        self._remaining: int | None = 0  # bytes of a body that has a length
        self._chunked: ChunkedBody | None = None
        self.head: ResponseHead | None = None
        self.buffered = 0
        self.is_whole = False
        self.has_leftover = False

    @property
    def is_reusable(self) -> bool:
        return self.is_whole and not self.has_leftover and self.head is not None and self.head.is_keep_alive

    @property
    def has_begun(self) -> bool:
        return self.head is not None or self._head_bytes > 0 or bool(self._partial_head)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes. Raises ResponseMalformed; the valid part before them stays readable."""
        if self.is_whole:
            self.has_leftover = True
        elif self.head is None:
            self._feed_head(data)
        else:
            self._feed_body(data)

    def end(self, *, is_broken: bool) -> None:
        """The connection has ended. A body that lasts until then is whole, unless the connection was broken."""
        if self.head is not None and self._remaining is None and self._chunked is None and not is_broken:
            self.is_whole = True

    def take_body(self) -> bytes:
        """The part of the body that has arrived and was not taken yet; b"" where there is none."""
        pieces = self._pieces
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.buffered = 0
        return taken

    def _feed_head(self, data: bytes) -> None:
        partial_head = self._partial_head
        seen = max(0, len(partial_head) - len(HEAD_END) + 1)
        if partial_head:
            data = partial_head + data
        while self.head is None:
            end = data.find(HEAD_END, seen)
            # Interim heads count too, so an upstream cannot send them without end.
            if self._head_bytes + (end if end >= 0 else len(data)) > self._limits.head_bytes:
                raise HeadTooLarge("the head is too long")
            if end < 0:
                if data:
                    check_partial_head(data, seen=seen)
                self._partial_head = data
                return
            end += len(HEAD_END)
            self._head_bytes += end
            head = parse_head(data[:end], method=self._method, limits=self._limits)
            data, seen = data[end:], 0
            if head.status < 200:  # an interim response has no other use
                continue
            # More bytes than the response has, in one read with its head: its length is wrong, or it was split. Later bytes only end the
            # connection. So does a body after a head that has none by its method or status (RFC 9112 §6.3): some servers send one, the head
            # is valid all the same, and the caller's price is not held.
            may_have_body = self._method != "HEAD" and head.status not in BODILESS_STATUSES
            if head.length is not None and may_have_body and data[head.length :].strip(b"\r\n"):
                raise ResponseMalformed("there are more bytes than the response has")
            self.head = head
            self._partial_head = b""
            self._remaining = head.length
            if head.length == 0:
                self.is_whole = True
                self.has_leftover = bool(data)
                return
            if head.is_chunked:
                self._chunked = ChunkedBody()
            if data:
                self._feed_body(data)

    def _feed_body(self, data: bytes) -> None:
        if self._chunked is not None:
            pieces = self._chunked.feed(data)
            self._pieces += pieces
            self.buffered += sum(map(len, pieces))
            self._between = 0 if pieces else self._between + len(data)
            # Without a piece no reader wakes, so only this check ends the exchange before the deadline of the next piece.
            if self._between > self._limits.head_bytes:
                raise ResponseMalformed("there is too much between two chunks")
            self.is_whole = self._chunked.is_whole
            self.has_leftover = self._chunked.has_leftover
            return
        if self._remaining is not None:
            if len(data) > self._remaining:
                self.has_leftover = True
                data = data[: self._remaining]
            self._remaining -= len(data)
            self.is_whole = not self._remaining
        self._pieces.append(data)
        self.buffered += len(data)
