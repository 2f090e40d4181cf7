"""The request and response records of the pipeline, independent of the server: the input of `CallPipeline.handle`, and its outcomes."""

from collections.abc import Callable, KeysView, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from tollway.errors import Problem, Refusal
from tollway.gateway.target import Target
from tollway.ids import Address, ListingId
from tollway.ledger.records import Delivery
from tollway.money import Price
from tollway.observability.call_trace import CallTrace
from tollway.payments.pricing import PaymentRequirement
from tollway.per_call_record import per_call_record
from tollway.registry.listing import CatalogEntry
from tollway.registry.metering import Metering

Headers = list[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The caller closed the connection before its request was complete. `payment_state`: the state of the payment, where the price was
    taken."""

    def __init__(self, payment_state: str = "none") -> None:
        self.payment_state = payment_state
        super().__init__(payment_state)


class RequestBody(Protocol):
    """The incoming body. `length`: the declared length; None without one. `is_present`: whether the request has a body.

    `is_broken`: the caller cut the body before its end.
    """

    is_present: bool
    length: int | None
    bytes_read: int
    is_broken: bool

    async def read_chunk(self) -> bytes:
        """Reads the next bytes; b"" once, at the end. Raises ClientGone, and Refusal where the body is too slow."""
        ...

    def prove(self) -> None:
        """Call it once a proof of a wallet is verified: buffered bytes then count apart from those of requests without a proof."""
        ...

    def reserve(self, size: int) -> None:
        """Reserves memory for `size` bytes until the call ends. Raises Refusal where the memory limit is reached."""
        ...

    async def has_disconnected(self) -> bool:
        """Whether the caller has closed the connection. False while the body is incomplete: reading it raises ClientGone then."""
        ...


@per_call_record
class ProxyRequest:
    """A parsed request; its content is not checked yet. Header names are in lower case. `trace`: of a call that is sampled."""

    method: str
    listing_id: ListingId
    target: Target
    headers: Sequence[tuple[bytes, bytes]]
    body: RequestBody
    client_address: str
    request_id: str
    received_ms: int
    trace: CallTrace | None = None
    header_names: KeysView[bytes] = field(init=False, repr=False, compare=False)
    find_header: Callable[[bytes], bytes | None] = field(init=False, repr=False, compare=False)
    """The value of the first header of that name."""

    def __post_init__(self) -> None:
        named = dict(reversed(self.headers))
        object.__setattr__(self, "header_names", named.keys())
        object.__setattr__(self, "find_header", named.get)

    def public_url(self, base: str) -> str:
        """The URL of the request under the public URL of the gateway; path and query byte for byte."""
        return f"{base}/api/v2/gateway/{self.listing_id}{self.target.signed}"

    def digest_for(self, payer: Address, body_hash: bytes) -> bytes:
        """The digest that identifies a request: SHA-256 over payer, body hash, listing, method and target bytes."""
        parts = [payer, body_hash]
        for part in (self.listing_id.encode(), self.method.encode(), self.target.signed.encode()):
            parts += len(part).to_bytes(4, "big"), part
        return sha256(b"".join(parts)).digest()


class ResponseBody(Protocol):
    """The streaming rest of an upstream's response."""

    async def read_chunk(self) -> bytes:
        """Reads the next bytes; b"" once, at the end of the body. Raises UpstreamBadResponse or UpstreamTimeout where it is cut."""
        ...

    @property
    def read_on_s(self) -> float:
        """The seconds for which the server reads the body on, although the caller has left, at most `metered_rest_bytes_max` of it: it is stored for a repeat,
        or its end decides the price. 0: not at all."""
        ...

    async def end(self, delivery: Delivery, response_bytes: int, *, is_interrupted: bool) -> None:
        """Called once at every end of the stream: releases the connection and records in the ledger how much reached the caller. `is_interrupted`: a shutdown
        or a defect of the gateway ends it."""
        ...


@dataclass(slots=True, kw_only=True)
class ProxyResponse:
    """A response to the caller. `first`: the first part of the body; `rest`: the streaming rest, or None. `payment_state`: the state of the
    call's payment; None for a stored response, which another run of the call has counted."""

    status: int
    headers: Headers
    first: bytes = b""
    rest: ResponseBody | None = None
    payment_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The terms in the 402 of an unpaid call. `requirements`: the payment requirements of an authorisation (x402, MPP), in the listing's
    order of preference; empty where none can be settled now, and of a metered price. `metering`: its formula; `price` is then the maximum."""

    entry: CatalogEntry
    price: Price
    expires_ms: int
    metering: Metering | None = None
    find_requirements: Callable[[], tuple[PaymentRequirement, ...]] = tuple
    _requirements: list[tuple[PaymentRequirement, ...]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def requirements(self) -> tuple[PaymentRequirement, ...]:
        """Computed on first access, because most calls need no quote. Computed once, so that all parts of a response agree."""
        if not self._requirements:
            self._requirements.append(self.find_requirements())
        return self._requirements[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResponse:
    """A problem of the gateway as the response. `quote`: only with codes that may ask for a payment (`problems.may_quote`)."""

    problem: Problem
    quote: Quote | None = None
    headers: Headers = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The request was cut, and the call with it. Mostly the caller has left; else the framing of its body was broken."""

    payment_state: str = "none"


Outcome = ProxyResponse | ProblemResponse | Disconnected


class CallRefused(Refusal):
    """A refusal whose response has more than its problem: the headers of a claimed call. `is_corrective`: its headers are terms of their own, for a channel, so
    that it gets no quote."""

    def __init__(
        self, problem: Problem, *, headers: Headers | None = None, is_corrective: bool = False
    ) -> None:
        super().__init__(problem)
        self.headers: Headers = headers or []
        self.is_corrective = is_corrective
