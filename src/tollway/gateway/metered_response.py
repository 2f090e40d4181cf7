"""Measures the response of a metered call: the memory for its body, what it reports (`gateway.usage`), and the price that follows."""

import asyncio
from collections import Counter
from collections.abc import Callable

from tollway.errors import Code, Problem, Refusal, UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.rail import CallPayment
from tollway.gateway.usage import UsageReader
from tollway.ledger.records import Usage
from tollway.limits import Limits
from tollway.outbound.client import UpstreamExchange
from tollway.rate_limits.limiter import client_bucket
from tollway.registry.metering import BASE, Measured, compute_cost, write_measured


def price_header(payment: CallPayment, state: str) -> tuple[bytes, bytes]:
    """The price of a metered call: `Tollway-Price` once it is charged, and until then `Tollway-Price-Max`. `state`: as in `Tollway-Payment-State`."""
    if state != "charged" or payment.actual_units is None or payment.asset is None:
        return b"tollway-price-max", f"{payment.price.text} {payment.currency}".encode()
    price = payment.asset.format_units(payment.actual_units)
    return b"tollway-price", f"{price} {payment.currency}".encode()


class MeteredBodies:
    """The memory for copies of JSON bodies of metered calls, in a process. Each call reserves one copy before its claim: no caller pays its maximum because the
    gateway had no memory to measure its call."""

    def __init__(self, *, limits: Limits) -> None:
        self._copies_left = limits.metered_bodies_bytes_max // limits.metered_body_bytes_max
        self._copies_scarce, self._copies_share = (self._copies_left - 1) // 2, self._copies_left // 4
        self._held: Counter[str] = Counter()

    def take_copy(self, client_address: str) -> "CopyReservation":
        """Raises Refusal where no memory is left, and for an address that holds its share while half of the memory is taken: one caller of slow responses
        refuses no other."""
        client = client_bucket(client_address)
        has_share = self._held[client] >= self._copies_share
        if not self._copies_left or (has_share and self._copies_left <= self._copies_scarce):
            raise Refusal(COPIES_EXHAUSTED)
        self._copies_left -= 1
        self._held[client] += 1
        return CopyReservation(self, client)

    def give_back(self, client: str) -> None:
        self._copies_left += 1
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]


class CopyReservation:
    """The memory of one copy. `give_back` may be called more than once."""

    __slots__ = ("_bodies", "_client")

    def __init__(self, bodies: MeteredBodies, client: str) -> None:
        self._bodies: MeteredBodies | None = bodies
        self._client = client

    def give_back(self) -> None:
        bodies, self._bodies = self._bodies, None
        if bodies is not None:
            bodies.give_back(self._client)


COPIES_EXHAUSTED = Problem(
    code=Code.OVERLOADED,
    detail="The gateway measures as many responses of metered calls as it can. Nothing was sent or taken; send the request again after Retry-After.",
    reason="metered_calls",
    retry_after_s=1,
    payment_state="none",
)


class Meter:
    """Measures the response of one metered call that costs, and prices the call once (`CallPayment.actual_units`).

    `read`: what was read before the head; `body`: the whole body, where that is it. `is_ended`: the whole body was measured. `usage`: None until the price is known."""

    __slots__ = (
        "_count_cost",
        "_count_usage",
        "_parse_bytes_max",
        "_parsing",
        "_payment",
        "_reader",
        "_reservation",
        "is_ended",
        "read",
        "usage",
    )

    def __init__(
        self,
        payment: CallPayment,
        reader: UsageReader,
        *,
        reservation: CopyReservation | None,
        limits: Limits,
        count_usage: Callable[[str], None],
        count_cost: Callable[[int], None] | None = None,
    ) -> None:
        """`reservation`: for the copy of a JSON body; the meter gives it back. `count_cost`: counts the price of a measured call. `count_usage`: counts the kind of each result: `measured`, `clamped`, `absent` or `base`."""
        self._payment = payment
        self._reader = reader
        self._reservation = reservation
        self._parse_bytes_max = limits.metered_parse_bytes_max
        self._count_usage = count_usage
        self._count_cost = count_cost
        self._parsing: asyncio.Future[None] | None = None
        self.is_ended = False
        self.read = b""
        self.usage: Usage | None = None
        if not reader.is_copying:
            self._give_back_reservation()

    @property
    def body(self) -> bytes | None:
        return self.read if self.usage is not None else None

    async def read_short(self, upstream: UpstreamExchange, length: int, *, within_s: float) -> None:
        """Reads a body before its head goes to the caller, and prices the call. Without a price where the upstream cuts the body, or where it takes longer than `within_s`."""
        read, elapsed_s = bytearray(), asyncio.get_running_loop().time
        until_s = elapsed_s() + within_s
        try:
            while not self.is_ended and elapsed_s() < until_s:
                chunk = await upstream.read_chunk() if length else b""
                read += chunk
                await self.add(chunk, is_last=upstream.is_read)
        except (UpstreamBadResponse, UpstreamTimeout):
            pass  # the stream meets the same failure, and cuts the response visibly
        self.read = bytes(read)
        if self.is_ended:
            self.take_price()

    async def add(self, chunk: bytes, *, is_last: bool) -> None:
        """Adds the next bytes. `is_last`: the whole body has arrived; so it has with an empty chunk."""
        if self.is_ended:
            return
        is_last = is_last or not chunk
        if self._reader.count_parsed(chunk, is_last=is_last) <= self._parse_bytes_max:
            self._measure(chunk, is_last)
            if not self._reader.is_copying:  # it has ended, or is too large
                self._give_back_reservation()
            return
        # Shielded: a thread does not stop with its caller, and one thread at a time measures.
        loop = asyncio.get_running_loop()
        self._parsing = loop.run_in_executor(None, self._measure, chunk, is_last)
        await asyncio.shield(self._parsing)

    def _measure(self, chunk: bytes, is_last: bool) -> None:
        self._reader.add(chunk)
        if is_last:
            self._reader.end()
            self.is_ended = True

    async def end(self, *, is_cut: bool, is_interrupted: bool) -> Usage | None:
        """Prices the call at the end of its stream.

        | end of the body | what counts |
        |---|---|
        | it arrived whole | what it reported |
        | the upstream cut it, or a shutdown or a defect of the gateway | the base |
        | its caller left or takes nothing, and the gateway read no further | what was reported until then |
        """
        if self._parsing is not None:
            await asyncio.wait((self._parsing,))
        if not self.is_ended and (is_cut or is_interrupted):
            self._take(BASE)
        else:
            self.take_price()
        self._give_back_reservation()
        return self.usage

    def take_price(self) -> None:
        """Prices the call by what was reported until now."""
        self._take(self._reader.measure())

    def _take(self, measured: Measured) -> None:
        payment = self._payment
        if self.usage is not None:
            return
        assert payment.asset is not None, "a metered call costs"
        cost = compute_cost(
            payment.formulas, measured, max_units=payment.units, decimals=payment.asset.decimals
        )
        payment.actual_units = cost.units
        if cost.units == 0:
            payment.active.count_free()
        if self._count_cost is not None and measured.by_formula:
            self._count_cost(cost.units)
        self.usage = Usage(actual_units=cost.units, quantities=write_measured(measured))
        if cost.quantities is None:
            self._count_usage("absent" if measured.by_formula else "base")
        else:
            self._count_usage("clamped" if cost.is_clamped else "measured")

    def _give_back_reservation(self) -> None:
        if self._reservation is not None:
            self._reservation.give_back()
