"""The way back: an upstream's answer on its way to the caller, or into the store for later. Under limits both ways.

A body is never held whole, except one that is kept and small enough. What the answer means for the payment was decided
before.
"""

import asyncio
from collections.abc import Callable

from tollway.errors import UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.exchange import Answer, Headers
from tollway.gateway.headers import caller_headers
from tollway.gateway.trip import LASTING, Keeper, Shipment, Ticket, UpstreamBody, call_headers
from tollway.ledger.book import Book
from tollway.ledger.call import Delivery
from tollway.ledger.kept_answers import StoredAnswer
from tollway.limits import Limits
from tollway.outbound.upstream import UpstreamResponse

_BODILESS = frozenset({204, 304})


class Relay:
    """One per process; safe to use from many tasks at once."""

    def __init__(self, *, book: Book, limits: Limits, now_ms: Callable[[], int]) -> None:
        self._book = book
        self._limits = limits
        self._now_ms = now_ms

    async def begin(
        self, shipment: Shipment, ticket: Ticket, response: UpstreamResponse, own: Headers
    ) -> Answer:
        """The head, with the body's first piece where it is short and whole already."""
        headers = self._caller_headers(shipment, response)
        keeper = None
        if ticket.keep is not None:
            keeper = Keeper(
                ticket.keep,
                status=response.status,
                headers=_without_length(headers) + _lasting(own),
                bytes_max=self._limits.answer_bytes_max,
            )
        headers += own
        body = UpstreamBody(
            response,
            book=self._book,
            call=shipment.call,
            ticket=ticket,
            now_ms=self._now_ms,
            keeper=keeper,
        )
        if shipment.call.method == "HEAD" or response.status in _BODILESS:
            if keeper is not None:
                await keeper.take(b"")
            body.end(Delivery.COMPLETE, 0)
            return Answer(status=response.status, headers=headers)
        length = _find_length(headers)
        if length is None or length > self._limits.buffer_bytes:
            return Answer(status=response.status, headers=headers, rest=body)
        try:
            first = await body.read_chunk() if length else b""
            if len(first) == length:
                if keeper is not None or not response.is_read:
                    await body.read_chunk()  # the end, which frees the connection for the next call
                body.end(Delivery.COMPLETE, length)
                return Answer(status=response.status, headers=_without_length(headers), first=first)
        except (UpstreamBadResponse, UpstreamTimeout):
            first = b""  # the stream below meets the same failure and cuts the answer visibly
        return Answer(status=response.status, headers=headers, first=first, rest=body)

    async def collect(
        self, shipment: Shipment, ticket: Ticket, response: UpstreamResponse
    ) -> StoredAnswer | None:
        """The whole answer, for later; None when it is too large, takes too long, or breaks off. A caller waits."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.answer_collect_s):
                while chunk := await response.read_chunk():
                    body += chunk
                    if len(body) > self._limits.answer_bytes_max:
                        return None
        except (UpstreamBadResponse, UpstreamTimeout, TimeoutError):
            return None
        headers = _without_length(self._caller_headers(shipment, response))
        headers += _lasting(call_headers(ticket, "charged", rest_units=None))  # given out once it is
        return StoredAnswer(status=response.status, headers=tuple(headers), body=bytes(body))

    def _caller_headers(self, shipment: Shipment, response: UpstreamResponse) -> Headers:
        listing = shipment.listing
        headers = caller_headers(
            response.headers,
            keep_length=True,  # taken off again where the body fits one message
            endpoint=shipment.endpoint,
            target=shipment.target,
            gateway_path=f"/api/v2/gateway/{listing.id}",
            secret=listing.upstream_auth,
        )
        return _keep_private(headers) if shipment.is_paid else headers


def _keep_private(headers: Headers) -> Headers:
    """What one caller has paid for is not for a shared cache (RFC 9111 §5.2.2.7), whatever its upstream says."""
    return [
        (name, _private(value))
        if name == b"cache-control" and b"private" not in value.lower()
        else (name, value)
        for name, value in headers
    ]


def _private(value: bytes) -> bytes:
    directives = (directive.strip() for directive in value.split(b","))
    kept = [one for one in directives if not one.lower().startswith((b"public", b"s-maxage"))]
    return b", ".join([b"private", *kept])


def _lasting(own: Headers) -> Headers:
    return [header for header in own if header[0] in LASTING]


def _find_length(headers: Headers) -> int | None:
    return next((int(value) for name, value in headers if name == b"content-length"), None)


def _without_length(headers: Headers) -> Headers:
    """A wrong length beside a single message would go out as it stands; the server knows the right one."""
    return [header for header in headers if header[0] != b"content-length"]
