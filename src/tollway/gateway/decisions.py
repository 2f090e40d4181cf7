"""A cache of decisions: the same request with the same known payment is decided once.

A decision is the part of a paid call that depends only on its inputs: the route, the rail and the proof, the payments that the proof
spends with their prices, and the header fields that go upstream. `INPUTS` lists how a cached decision depends on each input. These steps
run for every call: body and its size, rate limits, blocked wallets, connection, claim, signature, close.

A decision is stored when the second claim of the same request is granted, so a request without a granted claim, or one that is sent
once, takes no memory. A request with a long head is decided each time: a wallet that pays itself could otherwise fill the memory.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tollway.bounded_cache import BoundedCache
from tollway.gateway.headers import DECIDING, NO_CODING, ForwardedFields
from tollway.gateway.idempotency import Repeat
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.rail import CallPayment, RailProof, Verified
from tollway.gateway.routing import Route
from tollway.limits import Limits
from tollway.payments.proof import PARAMS_HEADER, SIGNATURE_HEADER, TX_HEADER

DECISIONS_MAX = 4_096
SEEN_MAX = 16_384
"""The maximum of requests of which only a hash is stored, until the same request comes again."""
PLAIN_VALUE_BYTES_MAX = 256
"""The value of a header that decides nothing is a part of the key where it is longer, or not printable ASCII: it may be refused."""


class Follows(StrEnum):
    """How a cached decision depends on an input."""

    KEY = "a part of the key"
    VERSION = "compared at each call with what the decision was made for"
    CALL = "read or checked at each call"
    NEVER = "a request that has it is decided anew, and not remembered"


INPUTS = MappingProxyType(
    {
        "method": Follows.KEY,
        "listing": Follows.KEY,
        "path": Follows.KEY,
        "names of query parameters": Follows.KEY,
        "values of query parameters": Follows.CALL,
        "plain signature": Follows.KEY,
        "bound signature": Follows.CALL,
        "names and order of the headers": Follows.KEY,
        "value of a header that decides": Follows.KEY,
        "value of another header": Follows.CALL,
        "value that may be refused": Follows.KEY,
        "header that Connection names": Follows.KEY,
        "header given twice": Follows.KEY,
        "Idempotency-Key": Follows.NEVER,
        "Tollway-Max-Price": Follows.NEVER,
        "body": Follows.CALL,
        "parameters that the document requires": Follows.CALL,
        "revision of the listing": Follows.VERSION,
        "known payment": Follows.VERSION,
        "time at which a price ends": Follows.VERSION,
        "ownership of the listing": Follows.CALL,
        "circuit breaker": Follows.CALL,
        "blocked wallet": Follows.CALL,
        "rate of the listing": Follows.CALL,
    }
)

KNOWN_BY = TX_HEADER
"""Only requests with this header have a cached decision."""
_NEVER = (b"idempotency-key", b"tollway-max-price")
_BOUND = frozenset({SIGNATURE_HEADER, PARAMS_HEADER})
_DECIDING_BESIDE_BOUND = DECIDING - _BOUND
_PLAIN_VALUE = re.compile(rb"(?!%s$)[\x20-\x7e]{0,%d}" % (NO_CODING, PLAIN_VALUE_BYTES_MAX))
"""Not `identity`, which decides whether `Accept-Encoding` is forwarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDecision:
    """The decision about one request, made before its payment is opened. `fields` and `verified`: results of an earlier call of the
    same request."""

    route: Route
    rail_proof: RailProof
    repeat: Repeat | None = None
    fields: ForwardedFields | None = None
    verified: Verified | None = None
    expires_ms: float = 0


class DecisionMemory:
    """An LRU cache of decisions, bounded by entries and by the bytes of their requests. One per process."""

    def __init__(self, *, limits: Limits) -> None:
        self._limits = limits
        self._known: BoundedCache[Hashable, RequestDecision] = BoundedCache(
            entries_max=DECISIONS_MAX,
            bytes_max=limits.decisions_bytes_max,
            entry_bytes_max=limits.remembered_bytes_max,
        )
        self._seen: dict[int, None] = {}

    def find(self, key: Hashable | None, request: ProxyRequest) -> RequestDecision | None:
        """Returns the decision of the same request while its prices are valid. The pipeline compares the other inputs. `key`: see
        `find_key`."""
        decision = None if key is None else self._known.find(key)
        if decision is None or request.received_ms >= decision.expires_ms:
            return None
        self._known.touch(key)
        return decision

    def put(
        self, key: Hashable | None, request: ProxyRequest, decision: RequestDecision, payment: CallPayment
    ) -> None:
        """Stores the decision of a call whose claim was granted, where the next call of the same request may use it."""
        if key is None or not self._is_seen(key):
            return
        verified = payment.remember()
        if verified is None or not self._is_small(request):
            return
        rail, proof = decision.rail_proof
        remembered = RequestDecision(
            route=decision.route,
            # A bound signature is read from each request.
            rail_proof=(rail, proof if request.find_header(PARAMS_HEADER) is None else None),
            fields=payment.fields,
            verified=verified,
            expires_ms=verified.expires_ms,
        )
        self._known.put(key, remembered, size_bytes=_count_bytes(request))

    def _is_seen(self, key: Hashable) -> bool:
        """Whether the same request came before. Records it."""
        number = hash(key)
        if number in self._seen:
            return True
        self._seen[number] = None
        if len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        return False

    def _is_small(self, request: ProxyRequest) -> bool:
        """Whether the headers stay within their limit for any values of the headers that are not a part of the key."""
        sizes = (len(name) + max(len(value), PLAIN_VALUE_BYTES_MAX) + 4 for name, value in request.headers)
        return sum(sizes) <= self._limits.headers_bytes_max


def _count_bytes(request: ProxyRequest) -> int:
    """The bytes of a request's head that its caller chooses: target and headers."""
    target = len(request.target.rest) + len(request.target.query)
    return target + sum(len(name) + len(value) for name, value in request.headers)


def find_key(request: ProxyRequest) -> Hashable | None:
    """The key of a request with `KNOWN_BY`: two requests with equal keys get the same decision. None for a header of
    `Follows.NEVER`."""
    if not request.header_names.isdisjoint(_NEVER):
        return None
    deciding = _DECIDING_BESIDE_BOUND if PARAMS_HEADER in request.header_names else DECIDING
    is_plain = _PLAIN_VALUE.fullmatch
    headers = tuple(
        [
            header if header[0] in deciding or is_plain(header[1]) is None else header[0]
            for header in request.headers
        ]
    )
    target = request.target
    names = tuple([part.partition("=")[0] for part in target.query.split("&")]) if target.query else ()
    return request.method, request.listing_id, target.rest, names, headers
