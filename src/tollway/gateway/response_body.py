"""The body of an upstream's response: the stream to the caller, the record of its end, and the copy for a repeat."""

from collections.abc import Awaitable, Callable

from tollway.errors import UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.messages import Headers, ResponseBody
from tollway.gateway.metered_response import Meter, price_header
from tollway.gateway.rail import CallPayment
from tollway.ledger.ledger import Finish, StoredResponse
from tollway.ledger.records import Delivery, Usage
from tollway.limits import Limits
from tollway.outbound.client import UpstreamExchange

CALLER_WAIT_MS_MAX = 5_000
"""The longest time that a response waits for its caller's socket, in all, before a cut by the upstream counts as caused by that wait: upstreams
end a connection that takes no bytes for a while, and a response that takes too long. Such a cut allows no repeat, else a caller that
stalls on purpose gets most of a large response twice for one price."""


class UpstreamBody:
    """The streaming body of a response (`ResponseBody`). `recorder` and `meter` get the whole body before `read_chunk` returns its end."""

    __slots__ = (
        "_given_ms",
        "_is_cut",
        "_is_ended",
        "_limits",
        "_meter",
        "_now_ms",
        "_payment",
        "_recorder",
        "_upstream",
        "_waited_ms",
    )

    def __init__(
        self,
        upstream: UpstreamExchange,
        payment: CallPayment,
        *,
        now_ms: Callable[[], int],
        limits: Limits,
        recorder: "ResponseRecorder | None" = None,
        meter: Meter | None = None,
    ) -> None:
        """`now_ms`: also measures how long the response waits for its caller: from the return of a chunk to the request for the next one."""
        self._upstream = upstream
        self._payment = payment
        self._now_ms = now_ms
        self._limits = limits
        self._recorder = recorder
        self._meter = meter
        self._is_cut = False
        self._is_ended = False
        self._waited_ms = 0
        self._given_ms = now_ms()

    async def read_chunk(self) -> bytes:
        self._waited_ms += max(0, self._now_ms() - self._given_ms)
        try:
            chunk = await self._upstream.read_chunk()
        except (UpstreamBadResponse, UpstreamTimeout):
            # A caller that cuts its own upload cuts this connection too, and so does one that takes nothing; neither allows a repeat.
            is_by_caller = self._payment.request.body.is_broken or self._waited_ms > CALLER_WAIT_MS_MAX
            self._is_cut = not is_by_caller
            raise
        if self._meter is not None:
            await self._meter.add(chunk, is_last=self._upstream.is_read)
            if self._meter.is_ended and self._recorder is not None:
                self._meter.take_price()
                self._recorder.set_price(price_header(self._payment, "charged"))
        if self._recorder is not None:
            await self._recorder.add_chunk(chunk)
        self._given_ms = self._now_ms()
        return chunk

    @property
    def read_on_s(self) -> float:
        if self._meter is not None and not self._meter.is_ended:
            return self._payment.route.listing.timeout_s
        is_recorded = self._recorder is not None and self._recorder.is_open
        return self._limits.response_collect_s if is_recorded else 0

    async def end(self, delivery: Delivery, response_bytes: int, *, is_interrupted: bool) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._upstream.close()
        usage = None
        if self._meter is not None:
            usage = await self._meter.end(is_cut=self._is_cut, is_interrupted=is_interrupted)
        finish = build_finish(
            self._payment, delivery, response_bytes, now_ms=self._now_ms(), is_cut=self._is_cut, usage=usage
        )
        await self._payment.finish(finish)


async def read_first(upstream: UpstreamExchange, length: int) -> bytes | None:
    """Reads the first chunk of a body, and its end where that is the whole body. None where the body was cut: the stream then meets the
    same failure and cuts the response visibly."""
    try:
        first = await upstream.read_chunk() if length else b""
        if len(first) == length and not upstream.is_read:
            await upstream.read_chunk()  # reading the end returns the connection to the pool
    except (UpstreamBadResponse, UpstreamTimeout):
        return None
    return first


def build_finish(
    payment: CallPayment,
    delivery: Delivery,
    response_bytes: int,
    *,
    now_ms: int,
    is_cut: bool = False,
    usage: Usage | None = None,
) -> Finish:
    assert payment.call_id is not None  # claimed
    assert payment.claimed is not None
    return Finish(
        call_id=payment.call_id,
        epoch=payment.claimed.epoch,
        delivery=delivery,
        is_cut=is_cut,
        request_bytes=payment.request.body.bytes_read,
        response_bytes=response_bytes,
        completed_ms=now_ms,
        usage=usage,
    )


_: type[ResponseBody] = UpstreamBody


class ResponseRecorder:
    """A copy of a response body that streams. Stores the response at its end, unless it is too large."""

    __slots__ = ("_body", "_bytes_max", "_headers", "_status", "_store_response")

    def __init__(
        self,
        store_response: Callable[[StoredResponse], Awaitable[None]],
        *,
        status: int,
        headers: Headers,
        bytes_max: int,
    ) -> None:
        self._store_response = store_response
        self._status = status
        self._headers = tuple(headers)
        self._bytes_max = bytes_max
        self._body: bytearray | None = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether it takes more chunks, or is storing the response."""
        return self._body is not None

    def set_price(self, price: tuple[bytes, bytes]) -> None:
        """Stores the price of the call in place of its maximum."""
        kept = (header for header in self._headers if header[0] not in (b"tollway-price-max", price[0]))
        self._headers = (*kept, price)

    async def add_chunk(self, chunk: bytes) -> None:
        """Adds the next bytes; b"" once, at the end of the body, stores the response."""
        if self._body is None:
            return
        if chunk:
            self._body += chunk
            if len(self._body) > self._bytes_max:
                self._body = None
            return
        try:
            await self._store_response(
                StoredResponse(status=self._status, headers=self._headers, body=bytes(self._body))
            )
        finally:
            self._body = None
