"""The way back: an upstream's answer on its way to the caller, or into the store for later. Under limits both ways.

A body is never held whole, except one that is kept and small enough. What the answer means for the payment was decided
before.
"""

import asyncio
from collections.abc import Callable

from tollway.errors import UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.exchange import Headers, ProxyResponse
from tollway.gateway.headers import caller_headers
from tollway.gateway.trip import (
    STORED_HEADERS,
    ClaimedCall,
    ResponseRecorder,
    UpstreamCall,
    UpstreamResponseBody,
    call_headers,
)
from tollway.ledger.book import Ledger
from tollway.ledger.call import Delivery
from tollway.ledger.kept_answers import StoredResponse
from tollway.limits import Limits
from tollway.outbound.upstream import UpstreamResponse

_BODILESS = frozenset({204, 304})


class ResponseRelay:
    """One per process; safe to use from many tasks at once."""

    def __init__(self, *, ledger: Ledger, limits: Limits, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._limits = limits
        self._now_ms = now_ms

    async def start_response(
        self, upstream_call: UpstreamCall, claimed_call: ClaimedCall, response: UpstreamResponse, own: Headers
    ) -> ProxyResponse:
        """The head, with the body's first piece where it is short and whole already."""
        headers = self._caller_headers(upstream_call, response)
        recorder = None
        if claimed_call.store_response is not None:
            recorder = ResponseRecorder(
                claimed_call.store_response,
                status=response.status,
                headers=_without_length(headers) + _select_stored_headers(own),
                bytes_max=self._limits.answer_bytes_max,
            )
        headers += own
        body = UpstreamResponseBody(
            response,
            ledger=self._ledger,
            call=upstream_call.call,
            claimed_call=claimed_call,
            now_ms=self._now_ms,
            recorder=recorder,
        )
        if upstream_call.call.method == "HEAD" or response.status in _BODILESS:
            if recorder is not None:
                await recorder.add_chunk(b"")
            body.end(Delivery.COMPLETE, 0)
            return ProxyResponse(status=response.status, headers=headers)
        length = _find_length(headers)
        if length is None or length > self._limits.buffer_bytes:
            return ProxyResponse(status=response.status, headers=headers, rest=body)
        try:
            first = await body.read_chunk() if length else b""
            if len(first) == length:
                if recorder is not None or not response.is_read:
                    await body.read_chunk()  # the end, which frees the connection for the next call
                body.end(Delivery.COMPLETE, length)
                return ProxyResponse(status=response.status, headers=_without_length(headers), first=first)
        except (UpstreamBadResponse, UpstreamTimeout):
            first = b""  # the stream below meets the same failure and cuts the answer visibly
        return ProxyResponse(status=response.status, headers=headers, first=first, rest=body)

    async def collect(
        self, upstream_call: UpstreamCall, claimed_call: ClaimedCall, response: UpstreamResponse
    ) -> StoredResponse | None:
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
        headers = _without_length(self._caller_headers(upstream_call, response))
        headers += _select_stored_headers(
            call_headers(claimed_call, "charged", remaining_units=None)
        )  # given out once it is
        return StoredResponse(status=response.status, headers=tuple(headers), body=bytes(body))

    def _caller_headers(self, upstream_call: UpstreamCall, response: UpstreamResponse) -> Headers:
        listing = upstream_call.listing
        headers = caller_headers(
            response.headers,
            keep_length=True,  # taken off again where the body fits one message
            endpoint=upstream_call.endpoint,
            target=upstream_call.target,
            gateway_path=f"/api/v2/gateway/{listing.id}",
            secret=listing.upstream_auth,
        )
        return _keep_private(headers) if upstream_call.is_paid else headers


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


def _select_stored_headers(own: Headers) -> Headers:
    return [header for header in own if header[0] in STORED_HEADERS]


def _find_length(headers: Headers) -> int | None:
    return next((int(value) for name, value in headers if name == b"content-length"), None)


def _without_length(headers: Headers) -> Headers:
    """A wrong length beside a single message would go out as it stands; the server knows the right one."""
    return [header for header in headers if header[0] != b"content-length"]
