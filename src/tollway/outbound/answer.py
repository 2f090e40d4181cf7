"""The way out, one answer as it arrives: bytes in, a head and the pieces of a body out.

No I/O: whoever reads the connection feeds it. It never takes a cut body for a whole one, nor bytes behind the end for a
part of it.
"""

from tollway.outbound.answer_head import (
    BODILESS_STATUSES,
    HEAD_END,
    ChunkedBody,
    HeadLimits,
    ResponseHead,
    ResponseMalformed,
    check_partial_head,
    parse_head,
)


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
