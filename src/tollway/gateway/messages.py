"""One request and its response, independent of the server's protocol: what the web server hands to the pipeline, and what the pipeline returns."""

from collections.abc import Callable, KeysView, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from tollway.errors import Problem, Refusal
from tollway.gateway.target import Target
from tollway.ids import Address, ListingId
from tollway.ledger.records import Delivery
from tollway.money import Price
from tollway.payments.pricing import PaymentRequirement
from tollway.registry.listing import CatalogEntry

Headers = list[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The caller closed the connection before its request was whole. `payment_state`: of the call, where its price was taken."""

    def __init__(self, payment_state: str = "none") -> None:
        self.payment_state = payment_state
        super().__init__(payment_state)


class RequestBody(Protocol):
    """The body as it comes in. `length` is None when the caller did not say; `is_present` False when there is none.

    `is_broken`: it ended before its end, by the caller's doing.
    """

    is_present: bool
    length: int | None
    bytes_read: int
    is_broken: bool

    async def read_chunk(self) -> bytes:
        """The next bytes; b"" once, at the end. Raises ClientGone, and Refusal when it comes too slowly."""
        ...

    def reserve(self, size: int) -> None:
        """So many bytes of it are kept until the call is over. Raises Refusal where too much is held already."""
        ...

    async def has_disconnected(self) -> bool:
        """Whether the caller is known to be gone; False while the body is not wholly here, which tells by itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """A request as it was parsed; nothing of it is checked yet. Header names in lower case."""

    method: str
    listing_id: ListingId
    target: Target
    headers: Sequence[tuple[bytes, bytes]]
    body: RequestBody
    client_address: str
    request_id: str
    received_ms: int
    _named: dict[bytes, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", dict(reversed(self.headers)))

    @property
    def header_names(self) -> KeysView[bytes]:
        return self._named.keys()

    def find_header(self, name: bytes) -> bytes | None:
        """The first of that name."""
        return self._named.get(name)

    def public_url(self, base: str) -> str:
        """The URL that was asked for, byte for byte, under the gateway's public one."""
        return f"{base}/api/v2/gateway/{self.listing_id}{self.target.signed}"

    def digest_for(self, payer: Address, body_hash: bytes) -> bytes:
        """What makes two requests the same: payer, listing, method, target bytes and body."""
        parts = [payer, body_hash]
        for part in (self.listing_id.encode(), self.method.encode(), self.target.signed.encode()):
            parts += len(part).to_bytes(4, "big"), part
        return sha256(b"".join(parts)).digest()


class ResponseBody(Protocol):
    """The rest of an upstream's answer, on its way."""

    async def read_chunk(self) -> bytes:
        """The next bytes; b"" once, at the true end. Raises UpstreamBadResponse or UpstreamTimeout when it is cut."""
        ...

    @property
    def is_recorded(self) -> bool:
        """It is being stored for a repeat: read on although its caller is gone, within limits."""
        ...

    async def end(self, delivery: Delivery, response_bytes: int) -> None:
        """Called once, however it ends: frees the connection and records in the ledger what reached the caller."""
        ...


@dataclass(slots=True, kw_only=True)
class ProxyResponse:
    """The upstream's answer. `first`: the part of the body that came with the head; `rest` None when that is all. `payment_state`: of the
    call; None for a stored response, which is the answer of another run."""

    status: int
    headers: Headers
    first: bytes = b""
    rest: ResponseBody | None = None
    payment_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The terms that an unpaid call is answered with. `requirements`: what an authorisation (x402, MPP) would have to
    say, in the listing's order of preference; empty where none can be settled now."""

    entry: CatalogEntry
    price: Price
    expires_ms: int
    find_requirements: Callable[[], tuple[PaymentRequirement, ...]] = tuple
    _requirements: list[tuple[PaymentRequirement, ...]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def requirements(self) -> tuple[PaymentRequirement, ...]:
        """Worked out only where somebody is asked to pay: most calls are not. Once, so that all of an answer says the
        same."""
        if not self._requirements:
            self._requirements.append(self.find_requirements())
        return self._requirements[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResponse:
    """The gateway itself answers. `quote` only with codes that may ask for money (the law about 402)."""

    problem: Problem
    quote: Quote | None = None
    headers: Headers = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The request ended before its end, and with it the call. Mostly the caller is gone; what is left of a connection
    with broken framing is told so."""

    payment_state: str = "none"


Outcome = ProxyResponse | ProblemResponse | Disconnected


class CallRefused(Refusal):
    """A refusal with what the response says beside its problem: the quote of a 402; the call, its price and its state."""

    def __init__(
        self, problem: Problem, *, quote: Quote | None = None, headers: Headers | None = None
    ) -> None:
        super().__init__(problem)
        self.quote = quote
        self.headers: Headers = headers or []
