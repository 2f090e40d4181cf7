"""A rail: one way to pay a call. What the pipeline knows of it, and what all rails share.

A rail reads its proof from a request, and opens a `CallPayment` for the call. The pipeline drives that through its steps:

    check -> (read the body) -> verify -> (connect) -> claim -> (send, head) -> capture -> (stream) -> finish

A rail captures with `Ledger.close` unless it says otherwise; the one for authorisations settles. A free call is on the rail `FreeRail`,
which takes nothing and writes a row too. The claim is built here, once, and so is the reason why the ledger did not grant one.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from tollway.errors import Problem, Refusal
from tollway.gateway.access import AccessControl, ActiveCall
from tollway.gateway.body import EMPTY_BODY, ForwardBody, load_plain
from tollway.gateway.headers import ForwardedFields
from tollway.gateway.idempotency import KeyReader, Repeat
from tollway.gateway.messages import Headers, ProxyRequest, ProxyResponse
from tollway.gateway.problems import (
    HELD,
    MORE_THAN_ONE_RAIL,
    NOT_COVERED,
    OTHER_CURRENCY,
    REORGED,
    UNFINAL_LIMIT,
    already_used,
    authorization_used,
    check_rails,
    find_idempotency_key,
    in_debt_to,
    insufficient,
    nonce_used,
)
from tollway.gateway.routing import Route
from tollway.ids import Address, CallId, TxHash, format_id
from tollway.ledger.ledger import (
    AuthorizationTaken,
    Claim,
    Claimed,
    ClaimOutcome,
    Close,
    Closed,
    Exhausted,
    Fenced,
    Finish,
    InDebt,
    Ledger,
    NonceUsed,
    NotCovered,
    NotFirst,
    PlainEnded,
    StoredResponse,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.records import Authorization, CallState, Cover, KeyTaken, Payment, RepeatsOpenCall
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.payments.proof import BOUND_REQUIRED, PARAMS_HEADER, SIGNATURE_HEADER, TX_HEADER
from tollway.payments.settlement import Undecided
from tollway.registry.listing import CatalogEntry, ChargeOn, Listing

PATH_LENGTH_MAX = 2_048
CALL_IDS_MAX = 10

CollectResponse = Callable[[], Awaitable[StoredResponse | None]]
"""Reads the response of the upstream to its end; None where it is too large, takes too long, or breaks off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFailed:
    """The payment surely moved no money, so the response is dropped. `headers`: what the dialect of the payment says of it."""

    problem: Problem
    headers: Headers


CaptureOutcome = Closed | CaptureFailed | Undecided | Fenced
"""`Closed`: the ledger holds the end that the head decided, charged or released. `Undecided`, `Fenced`: the ledger cannot say yet."""


class PaymentRail(KeyReader, Protocol):
    """One per process; safe to use from many tasks at once."""

    is_settled_here: bool
    """Its money moves at this gateway's expense."""

    def read(self, request: ProxyRequest) -> object | None:
        """The proof that a request shows on this rail, as the rail parses it; a Problem where it is malformed; None where it shows
        none. Pure."""
        ...

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> "CallPayment":
        """The payment of one call. `repeat`: what the ledger holds of the same request. Nothing is checked yet."""
        ...


Shown = tuple[PaymentRail, object]
"""A rail, and the proof that it has read."""


def read_proof(request: ProxyRequest, rails: tuple[PaymentRail, ...]) -> Shown | Problem | None:
    """What the request shows, at most one proof; a Problem where it cannot be read. Whether it counts is not known yet."""
    shown = [(rail, proof) for rail in rails if (proof := rail.read(request)) is not None]
    if not shown:
        return None
    rail, proof = shown[0]
    has_transaction = any(request.find_header(name) is not None for name in _TRANSACTION_HEADERS)
    if isinstance(proof, Problem):
        # One rail may be shown twice, which it cannot read.
        return proof if has_transaction else check_rails(request) or proof
    return MORE_THAN_ONE_RAIL if len(shown) > 1 else (rail, proof)


_TRANSACTION_HEADERS = (TX_HEADER, SIGNATURE_HEADER, PARAMS_HEADER)


class Verified(Protocol):
    """What a rail has found about a request, and finds again until `expires_ms`."""

    @property
    def expires_ms(self) -> float: ...


class CallPayment(ABC):
    """How one call is paid: it learns more at each step, from the proof to the captured price.

    From `verify` on: `payer`, `asset` (None: a free call), `price`, `units` in the ledger, `currency`, `charge_on`. From
    `claim` on: `call_id` and `claimed`. `transaction`: where the money has moved. `key`: the request's idempotency key. `verified` and
    `fields`: what an earlier call of the same request has found (`gateway.decisions`), set before `check`.
    """

    __slots__ = (
        "active",
        "asset",
        "body",
        "call_id",
        "charge_on",
        "claimed",
        "currency",
        "fields",
        "key",
        "ledger",
        "payer",
        "price",
        "repeat",
        "request",
        "route",
        "transaction",
        "units",
        "verified",
    )

    def __init__(
        self,
        ledger: Ledger,
        request: ProxyRequest,
        route: Route,
        repeat: Repeat | None,
        active: ActiveCall,
        *,
        key: str | None,
    ) -> None:
        self.ledger = ledger
        self.request = request
        self.route = route
        self.repeat = repeat
        self.active = active
        self.key = key
        self.body: ForwardBody = EMPTY_BODY
        self.payer: Address | None = None
        self.asset: Asset | None = None
        self.price: Price = route.operation_prices[0].price
        self.currency: str = route.operation_prices[0].terms.currency
        self.charge_on: ChargeOn = route.operation_prices[0].terms.charge_on
        self.units = 0
        self.transaction: TxHash | None = None
        self.call_id: CallId | None = None
        self.claimed: Claimed | None = None
        self.fields: ForwardedFields | None = None
        self.verified: Verified | None = None

    @abstractmethod
    async def check(self) -> None:
        """Refuses what the body does not decide, before the body is read. Raises Refusal, ChainUnavailable, StorageUnavailable."""

    @abstractmethod
    async def verify(self) -> ProxyResponse | None:
        """Facts, rules, price and access, once the body is here: everything up to the claim, and nothing is taken. A response: the
        one that was stored for this very request. Raises Refusal, ChainUnavailable, StorageUnavailable."""

    @abstractmethod
    async def claim(self) -> ProxyResponse | None:
        """Takes the price durably, or runs a call again under the claim that it has; a connection is held meanwhile. A response:
        another request was faster, and its response is stored. Raises Refusal: nothing was taken."""

    @property
    def charged_state(self) -> CallState:
        """Where a head that costs moves the call."""
        return CallState.CONSUMED

    @property
    def is_ended_by_close(self) -> bool:
        """Where the whole body is here with the head, the close writes the end of the body too, and `finish` is not called. Not where a
        response is stored before the call counts as delivered, and not on a rail whose price depends on the body."""
        return self.key is None

    async def capture(self, close: Close, collect: CollectResponse) -> CaptureOutcome:
        """Writes the end that the head of the response has decided (`close`). Raises StorageUnavailable."""
        return await self.ledger.close(close)

    async def finish(self, finish: Finish) -> None:
        """Records the end of the body, whole or not. Raises nothing. Its caller may be cancelled: a rail that waits here for its own
        write shields that."""
        self.ledger.finish(finish)

    def write_receipt(self) -> tuple[bytes, bytes] | None:
        """The header that says of a charged call how it was paid; None where nothing was paid."""
        return None

    def remember(self) -> Verified | None:
        """What `verify` has found, for the next call of the same request; None where that is verified anew. Asked once the claim is
        granted."""
        return None

    def drop_content(self) -> None:
        """The request is sent: its bytes are not kept while the response streams."""
        self.repeat = None
        if self.body.content is not None:
            self.body = replace(self.body, content=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAndEntropy:
    """The time, and random bytes for ids. `entropy`: as many bytes as it is asked for."""

    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]


def build_claim(
    call: CallPayment,
    clock: ClockAndEntropy,
    *,
    digest: bytes | None,
    payment: Payment | None = None,
    nonce: bytes | None = None,
    is_plain: bool = False,
    is_first_price: bool = False,
    authorization: Authorization | None = None,
    cover: Cover | None = None,
    client_network: bytes | None = None,
) -> Claim:
    """The claim of a verified call on any rail. `digest` None: no other request is the same as this one."""
    request, listing, asset = call.request, call.route.entry.listing, call.asset
    pay_to = None if payment is None else payment.payee
    return Claim(
        call_id=CallId(format_id("call", now_ms=clock.now_ms(), entropy=clock.entropy(10))),
        listing_id=listing.id,
        listing_name=listing.name,
        provider=listing.provider,
        payer=call.payer,
        method=request.method,
        path=request.target.rest[:PATH_LENGTH_MAX],
        digest=digest or clock.entropy(32),
        price=call.price.text,
        price_units=call.units,
        currency=call.currency,
        payment_id=None if payment is None else payment.id,
        chain_id=None if asset is None else asset.chain_id,
        asset=None if asset is None else asset.key,
        decimals=0 if asset is None else asset.decimals,
        tx_hash=None if payment is None else payment.tx_hash,
        pay_to=pay_to if authorization is None else authorization.payee,
        nonce=nonce,
        ends_plain=nonce is not None,
        is_plain=is_plain,
        is_first_price=is_first_price,
        idempotency_key=call.key,
        request_id=request.request_id,
        created_ms=request.received_ms,
        authorization=authorization,
        cover=cover,
        client_network=client_network,
    )


async def explain_claim(outcome: ClaimOutcome, claim: Claim, asset: Asset | None, ledger: Ledger) -> Problem:
    """Why the ledger did not grant a claim, on any rail. Raises StorageUnavailable."""
    authorization = claim.authorization
    match outcome:
        case Exhausted(remaining_units=rest, held_units=0) if rest > 0 and asset is not None:
            return insufficient(claim, asset, remaining_units=rest)
        case Exhausted(held_units=held) if claim.payment_id is not None:
            calls = await ledger.spending_calls(claim.payment_id, limit=CALL_IDS_MAX)
            return already_used(calls, is_unsettled=held > 0)
        case NonceUsed(call_id=call_id, state=state):
            return nonce_used(call_id, state)
        case PlainEnded():
            return BOUND_REQUIRED
        case Unspendable(is_held=is_held):
            return HELD if is_held else REORGED
        case InDebt(units=units) if asset is not None:
            return in_debt_to(claim.pay_to, asset, units)
        case UnfinalLimit():
            return UNFINAL_LIMIT if authorization is None else replace(UNFINAL_LIMIT, payment_state="none")
        case NotFirst():
            return OTHER_CURRENCY
        case AuthorizationTaken(call_id=call_id, state=state):
            return authorization_used(call_id, state)
        case NotCovered():
            return NOT_COVERED
        case Exhausted() | InDebt() | Claimed() | KeyTaken() | RepeatsOpenCall():
            raise AssertionError("a claim without a price, a grant, and a repeat are decided by the rail")
        case _:
            assert_never(outcome)


def require(response: ProxyResponse | Problem) -> ProxyResponse:
    """A stored response. Raises Refusal where the record has a problem instead."""
    if isinstance(response, Problem):
        raise Refusal(response)
    return response


class FreeRail:
    """Calls that cost nothing: recorded, and limited by client address. No proof is read, and no key is opened, here."""

    is_settled_here = False

    def __init__(
        self, *, ledger: Ledger, access: AccessControl, limits: Limits, clock: ClockAndEntropy
    ) -> None:
        self.ledger = ledger
        self.access = access
        self.clock = clock
        self._limits = limits

    def read(self, request: ProxyRequest) -> None:
        return None

    def find_key(self, request: ProxyRequest, proof: object) -> str | None:
        return find_idempotency_key(request)

    async def load_body(self, request: ProxyRequest, proof: object, listing: Listing) -> ForwardBody:
        return await load_plain(request.body, limits=self._limits)

    async def find_key_wallets(
        self, request: ProxyRequest, entry: CatalogEntry, proof: object, body: ForwardBody | None
    ) -> tuple[Address, ...]:
        return ()

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> CallPayment:
        return FreeCall(self, request, route, repeat, active)


class FreeCall(CallPayment):
    """Takes nothing, and writes a row all the same."""

    __slots__ = ("_rail",)

    def __init__(
        self, rail: FreeRail, request: ProxyRequest, route: Route, repeat: Repeat | None, active: ActiveCall
    ) -> None:
        super().__init__(rail.ledger, request, route, repeat, active, key=find_idempotency_key(request))
        self._rail = rail

    async def check(self) -> None:
        problem = await self._rail.access.check_free(self.request, self.route.listing)
        if problem is not None:
            raise Refusal(problem)

    async def verify(self) -> None:
        return None

    async def claim(self) -> None:
        claim = build_claim(self, self._rail.clock, digest=None)
        outcome = await self._rail.ledger.claim(claim)
        assert isinstance(outcome, Claimed)  # it takes nothing that could run out
        self.call_id, self.claimed = claim.call_id, outcome
