"""HTTP/1.1 as bytes: formats the fields of a request, and parses responses into a head and the pieces of a body. No I/O.

Names, line ends and framing are checked by llhttp; what it accepts and could be read in two ways is refused here. A head that is not wholly valid is
refused. A cut body is never taken for a whole one, nor bytes behind its end for a part of it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from tollway.errors import Code, Problem, Refusal

HEAD_END = b"\r\n\r\n"
BODILESS_STATUSES = (204, 304)
_SWITCHING = 101
_FRAMING_SIZES = frozenset(map(len, (b"content-length", b"connection", b"transfer-encoding")))
_VERSIONS = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_CONTROLS = bytes(code for code in (*range(1, 32), 127) if code not in b"\t\r\n")
_CONTROLS_REPLACED = bytes.maketrans(
    _CONTROLS, b"@" * len(_CONTROLS)
)  # which is not for names, lengths and codings
_BARE_LF = re.compile(rb"(?<!\r)\n")
_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token (RFC 9110 §5.6.2)."""

FIELD_NAMES_KEPT = 2_048
FIELD_NAME_CHARS_KEPT = 64
"""What is known of a longer name is not kept: a caller chooses the names, and these many of 32 KiB are 64 MiB."""


def _is_field_name(text: str) -> bool:
    return FIELD_NAME.fullmatch(text) is not None


_is_kept_field_name = lru_cache(maxsize=FIELD_NAMES_KEPT)(_is_field_name)


Headers = tuple[tuple[bytes, bytes], ...]

UNWRITABLE = Problem(code=Code.INVALID_REQUEST, detail="The request cannot be written as HTTP.")


def format_fields(headers: Iterable[tuple[str, str]]) -> bytes:
    """Header fields as bytes of HTTP/1.1 (RFC 9112 §5), each with its line end. Raises Refusal for a name that is no token, and for a
    value with control characters."""
    lines: list[str] = []
    for name, value in headers:
        is_name = _is_kept_field_name if len(name) <= FIELD_NAME_CHARS_KEPT else _is_field_name
        if not is_name(name) or _BAD_VALUE.search(value) is not None:
            raise Refusal(UNWRITABLE)
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode()


class ResponseMalformed(Exception):
    """What came is no answer that can be trusted."""


@dataclass(slots=True, kw_only=True)
class HeadLimits:
    """`head_bytes`: of one answer, the interim ones before it included. `field_bytes`: one name with its value."""

    head_bytes: int
    line_bytes: int
    field_bytes: int
    headers: int


class ResponseHead:
    """A status and its headers. `length`: bytes of the body; None when it is chunked, or else goes on until the connection is
    closed. `is_keep_alive`: this side of the wire may keep the connection once the body is here.

    `fields`: what llhttp has found so far (`on_header`); a parsed head does not change any more. One object for both: one is
    made on the path of every call.
    """

    __slots__ = ("fields", "headers", "is_chunked", "is_keep_alive", "length", "status")

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.headers: Headers = ()
        self.length: int | None = None
        self.is_chunked = False
        self.is_keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value.rstrip(b" \t")))

    @property
    def is_interim(self) -> bool:
        return self.status < 200


def check_partial_head(partial_head: bytes | bytearray, *, seen: int) -> None:
    """Raises ResponseMalformed when no whole head can come of this any more; the first `seen` bytes were looked at."""
    prefix = bytes(partial_head[:9])
    if not any(version.startswith(prefix) for version in _VERSIONS) or _BARE_LF.search(partial_head, seen):
        raise ResponseMalformed("this is not HTTP/1.1")


def parse_head(head: bytes, *, method: str, limits: HeadLimits) -> ResponseHead:
    """One whole head, final or interim, the empty line included. Raises ResponseMalformed."""
    if not head.startswith(_VERSIONS):
        raise ResponseMalformed("this is not HTTP/1.1")
    if len(head) > limits.line_bytes and head.find(b"\r\n") > limits.line_bytes:
        raise ResponseMalformed("the status line is too long")
    try:
        parsed = _run_parser(head)
    except (HttpParserError, HttpParserUpgrade) as exc:
        raise ResponseMalformed(f"the head is not valid: {exc}") from exc
    if not 100 <= parsed.status <= 599 or parsed.status == _SWITCHING:
        raise ResponseMalformed("the status is none that was asked for")
    if len(parsed.headers) > limits.headers:
        raise ResponseMalformed("there are too many headers")
    if len(head) > limits.field_bytes:
        _check_fields(parsed.headers, limits.field_bytes)
    _frame(parsed, method=method, is_old=head[7:8] == b"0")
    return parsed


def _run_parser(head: bytes, *, is_lenient: bool = False) -> ResponseHead:
    """Control characters in values are let through, all but NUL, CR and LF (RFC 9110 §5.5). llhttp can be lenient about
    them only together with worse; so such a head has to be valid to its strict form with other characters in their place.
    """
    parsed = ResponseHead()
    parser = HttpResponseParser(parsed)  # a new one each time: nothing of one answer reaches the next
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


def _check_fields(headers: Headers, bytes_max: int) -> None:
    if any(len(name) + len(value) > bytes_max for name, value in headers):
        raise ResponseMalformed("a header is too long")


def _frame(head: ResponseHead, *, method: str, is_old: bool) -> None:
    """RFC 9112 §6.3 and §9.3. Two lengths, or a length beside chunks, have not come through the parser."""
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
        elif name == b"transfer-encoding":
            # We never said that we take another coding (RFC 9112 §7.4), and could not pass it on.
            if is_chunked or value.lower() != b"chunked":
                raise ResponseMalformed("the transfer coding is not chunked")
            is_chunked = True
    if method == "HEAD" or head.status in BODILESS_STATUSES or head.status < 200:
        length, is_chunked, has_framing = 0, False, True
    else:
        has_framing = length is not None or is_chunked
    head.length, head.is_chunked = length, is_chunked
    # An old server that sends chunks knows not what it does (RFC 9112 §6.1).
    head.is_keep_alive = has_framing and not is_closing and (not is_old or (is_kept and not is_chunked))


class _Chunks:
    __slots__ = ("is_whole", "last", "messages", "on_body", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.is_whole = False
        self.last = 0  # how many of the pieces were there at the end: those behind it are of another message
        self.messages = 0

    def on_message_begin(self) -> None:
        self.messages += 1

    def on_message_complete(self) -> None:
        if not self.is_whole:
            self.is_whole = True
            self.last = len(self.pieces)


class ChunkedBody:
    """Takes a chunked body apart. Trailers are dropped: nobody hears them, and nothing of them is kept."""

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
        """Bytes came after the end."""
        return self._chunks.messages > 1

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The pieces of the body in these bytes. Raises ResponseMalformed; then there are none."""
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
    """`head`: None until it is here. `buffered`: bytes that nobody has taken. `has_leftover`: there came more than the
    answer, so nobody can tell whose answer the next bytes are."""

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
        self._partial_head = b""  # of a head that is not whole
        self._head_bytes = 0
        self._between = 0  # bytes since the last one of a chunked body: sizes, extensions, trailers
        self._pieces: list[bytes] = []
        self._remaining: int | None = 0  # bytes of a body that has a length
        self._chunked: ChunkedBody | None = None
        self.head: ResponseHead | None = None
        self.buffered = 0
        self.is_whole = False
        self.has_leftover = False

    @property
    def is_reusable(self) -> bool:
        """All of it is here, nothing else is, and the upstream did not say that this was the last one."""
        return self.is_whole and not self.has_leftover and self.head is not None and self.head.is_keep_alive

    def feed(self, data: bytes) -> None:
        """The next bytes. Raises ResponseMalformed; what was good before them stays."""
        if self.is_whole:
            self.has_leftover = True
        elif self.head is None:
            self._feed_head(data)
        else:
            self._feed_body(data)

    def end(self, *, is_broken: bool) -> None:
        """The upstream says no more. A body that goes on until then is whole, unless the connection was broken."""
        if self.head is not None and self._remaining is None and self._chunked is None and not is_broken:
            self.is_whole = True

    def take_body(self) -> bytes:
        """All of the body that is here and was not taken; b"" when there is nothing."""
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
            # Interim heads count too: nobody may send them for ever.
            if self._head_bytes + (end if end >= 0 else len(data)) > self._limits.head_bytes:
                raise ResponseMalformed("the head is too long")
            if end < 0:
                if data:
                    check_partial_head(data, seen=seen)
                self._partial_head = data
                return
            end += len(HEAD_END)
            self._head_bytes += end
            head = parse_head(data[:end], method=self._method, limits=self._limits)
            data, seen = data[end:], 0
            if not head.is_interim:
                self._accept(head, data)

    def _accept(self, head: ResponseHead, rest: bytes) -> None:
        """More bytes than the answer has, in one piece with its head: its length is wrong, or it was split. What comes
        later than that only ends the connection. So does a body behind a head that has none by its method or status
        (RFC 9112 §6.3): servers make that mistake, the head is whole all the same, and the caller's price is not held."""
        may_have_body = self._method != "HEAD" and head.status not in BODILESS_STATUSES
        if head.length is not None and may_have_body and rest[head.length :].strip(b"\r\n"):
            raise ResponseMalformed("there is more than the answer")
        self.head = head
        self._partial_head = b""
        self._remaining = head.length
        if head.length == 0:
            self.is_whole = True
            self.has_leftover = bool(rest)
            return
        if head.is_chunked:
            self._chunked = ChunkedBody()
        if rest:
            self._feed_body(rest)

    def _feed_body(self, data: bytes) -> None:
        if self._chunked is not None:
            pieces = self._chunked.feed(data)
            for piece in pieces:
                self._append(piece)
            self._between = 0 if pieces else self._between + len(data)
            # No piece wakes a reader, so nobody else would end this before the deadline for the next one.
            if self._between > self._limits.head_bytes:
                raise ResponseMalformed("there is too much between two chunks")
            self.is_whole = self._chunked.is_whole
            self.has_leftover = self._chunked.has_leftover
            return
        if self._remaining is None:
            self._append(data)
            return
        if len(data) > self._remaining:
            self.has_leftover = True
            data = data[: self._remaining]
        self._append(data)
        self._remaining -= len(data)
        self.is_whole = not self._remaining

    def _append(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.buffered += len(piece)
