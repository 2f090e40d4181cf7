"""A rail: one way to pay for a call. This module holds the interface between the pipeline and the rails, and the code that all rails share.

A rail reads its proof from a request and opens a `CallPayment` for the call. The pipeline calls the steps of the payment in this order:

    check -> (read the body) -> identify -> (look up the key) -> verify -> (connect) -> claim -> (send, head) -> capture
      -> (stream) -> finish

`capture` calls `Ledger.close`; the rail of authorisations overrides it with a settlement. A free call uses `FreeRail` (`gateway.free_calls`), which
takes no payment and writes a call row too. `build_claim` and `explain_claim` serve every rail.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, assert_never

from tollway.errors import Problem, Refusal
from tollway.gateway.access import ActiveCall
from tollway.gateway.body import EMPTY_BODY, ForwardBody
from tollway.gateway.headers import ForwardedFields
from tollway.gateway.idempotency import KeyReader, Repeat
from tollway.gateway.messages import Headers, ProxyRequest, ProxyResponse
from tollway.gateway.problems import (
    HELD,
    MORE_THAN_ONE_RAIL,
    NOT_COVERED,
    OTHER_CURRENCY,
    REORGED,
    REST_HELD,
    UNFINAL_LIMIT,
    already_used,
    authorization_used,
    check_rails,
    exceed_budget,
    in_debt_to,
    insufficient,
    nonce_used,
)
from tollway.gateway.routing import Route
from tollway.gateway.target import PATH_LENGTH_MAX
from tollway.identity.signatures import KEY_SIGNATURE_BYTES
from tollway.ids import Address, CallId, TxHash, format_id
from tollway.ledger.channels import CeilingMismatch, ChannelBusy, ChannelClosed, ChannelFull
from tollway.ledger.ledger import (
    AuthorizationTaken,
    BudgetExceeded,
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
from tollway.ledger.records import (
    Authorization,
    CallState,
    Cover,
    KeyTaken,
    Payment,
    Rail,
    RepeatsOpenCall,
    Usage,
)
from tollway.money import Asset, Price
from tollway.payments.proof import BOUND_REQUIRED, PARAMS_HEADER, SIGNATURE_HEADER, TX_HEADER
from tollway.payments.settlement import Undecided
from tollway.registry.listing import ChargeOn
from tollway.registry.metering import Metering, write_formulas

CALL_IDS_MAX = 10

CollectResponse = Callable[[], Awaitable[tuple[StoredResponse | None, Usage | None]]]
"""Reads the whole response of the upstream, and measures that of a metered call. (None, None) where it is too large, takes too long, or is cut."""


async def collect_nothing() -> tuple[None, None]:
    """Collects no response: there was no head."""
    return None, None


class StoreResponse(Protocol):
    """Stores the response of a call for a repeat. Raises nothing."""

    async def __call__(
        self, call_id: CallId, response: StoredResponse, *, payer: Address, provider: Address
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFailed:
    """The settlement failed and moved no money, so the response is dropped. `headers`: the failure in the dialect of the payment."""

    problem: Problem
    headers: Headers


CaptureOutcome = Closed | CaptureFailed | Undecided | Fenced
"""`Closed`: the ledger has the end of the call, charged or released. `Undecided`, `Fenced`: the end is not known yet."""


class PaymentRail(KeyReader, Protocol):
    """A rail. One per process; safe to use from many tasks at once."""

    is_settled_here: bool
    """Whether this gateway pays for the settlement."""

    def read(self, request: ProxyRequest) -> object | None:
        """Parses the proof of a request. A Problem where the proof is malformed; None where the request has no proof of this rail.
        Pure."""
        ...

    def name_signature(self, proof: object) -> str:
        """The kind of the proof's signature, for the trace of a sampled call."""
        ...

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> "CallPayment":
        """Opens the payment of one call, without any check. `repeat`: the earlier call of the same request, if the ledger has one."""
        ...


RailProof = tuple[PaymentRail, object]
"""A rail, and the proof that the rail has parsed."""


def read_proof(request: ProxyRequest, rails: tuple[PaymentRail, ...]) -> RailProof | Problem | None:
    """Reads the proof of a request, of at most one rail. A Problem where it cannot be read. The proof is not verified yet."""
    found = [(rail, proof) for rail in rails if (proof := rail.read(request)) is not None]
    if not found:
        return None
    rail, proof = found[0]
    has_transaction = any(request.find_header(name) is not None for name in _TRANSACTION_HEADERS)
    if isinstance(proof, Problem):
        # A rail cannot read two proofs of its own, so that case is checked here.
        return proof if has_transaction else check_rails(request) or proof
    return MORE_THAN_ONE_RAIL if len(found) > 1 else (rail, proof)


def name_signer(signature: bytes) -> Literal["key", "contract"]:
    """Whether the signature has the form of a key's. The wallet of such a signature may be a contract all the same."""
    return "key" if len(signature) == KEY_SIGNATURE_BYTES else "contract"


_TRANSACTION_HEADERS = (TX_HEADER, SIGNATURE_HEADER, PARAMS_HEADER)


class Verified(Protocol):
    """The result of verifying a request. The same request has the same result until `expires_ms`."""

    @property
    def expires_ms(self) -> float: ...


class CallPayment(ABC):
    """The payment of one call, from the proof to the captured price. Each step fills in more attributes.

    Set by `identify`: `payer`. Set by `verify`: `asset` (None: a free call), `price`, `units` (of the ledger), `currency`, `charge_on`, `formulas` (of a metered call, whose
    maximum are `price` and `units`). `actual_units`: the price of a metered call where it is known. Set by `claim`:
    `call_id` and `claimed`. Set by the pipeline: `is_verified`; by the proxy: `upstream_status`. `transaction`: the transaction that moved the money. `key`: the idempotency key of the request. `verified`
    and `fields`: cached results of an earlier call of the same request (`gateway.decisions`), set before `check`.
    """

    __slots__ = (
        "active",
        "actual_units",
        "asset",
        "body",
        "call_id",
        "charge_on",
        "claimed",
        "currency",
        "fields",
        "formulas",
        "is_verified",
        "key",
        "ledger",
        "payer",
        "price",
        "repeat",
        "request",
        "route",
        "transaction",
        "units",
        "upstream_status",
        "verified",
    )

    receipt_states: ClassVar[tuple[str, ...]] = ("charged",)
    """The payment states in which the response has a receipt. A channel says its charge also while the price of a stream is held."""

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
        self.formulas: tuple[Metering, ...] = ()
        self.actual_units: int | None = None
        self.transaction: TxHash | None = None
        self.call_id: CallId | None = None
        self.claimed: Claimed | None = None
        self.fields: ForwardedFields | None = None
        self.verified: Verified | None = None
        self.is_verified = False
        self.upstream_status: int | None = None

    @abstractmethod
    async def check(self) -> None:
        """Runs the checks that do not need the body, before it is read. Raises Refusal, ChainUnavailable, StorageUnavailable."""

    async def identify(self) -> tuple[Address, ...]:
        """Finds the payer, with the body: facts and rules. Takes nothing. Returns the wallets whose idempotency keys the proof opens and
        that were not looked up before. Raises Refusal, ChainUnavailable, StorageUnavailable."""
        return ()

    @abstractmethod
    async def verify(self) -> None:
        """Verifies the price and the access of the payer, or an earlier call that runs again (`repeat`). Takes nothing. Raises Refusal,
        ChainUnavailable, StorageUnavailable."""

    @abstractmethod
    async def claim(self) -> ProxyResponse | None:
        """Takes the price in one durable commit, or reopens an earlier call under its own claim. Called with a held connection.
        Returns the stored response where another request was faster. Raises Refusal: nothing was taken."""

    @property
    def rail_name(self) -> str:
        """The rail of the call for metrics and the log: that of the claim, and before it the one that the proof would use."""
        return self.default_rail if self.claimed is None else self.claimed.rail

    @property
    def default_rail(self) -> Rail:
        return Rail.NONE

    @property
    def charged_state(self) -> CallState:
        """The next state of the call after a response that costs."""
        return CallState.CONSUMED

    @property
    def is_ended_by_close(self) -> bool:
        """Whether the close also writes the end of a body that arrived whole with the head, so that `finish` is not called. False where
        the response must be stored before the call counts as delivered, and on a rail whose price depends on the body."""
        return self.key is None

    async def capture(self, close: Close, collect: CollectResponse) -> CaptureOutcome:
        """Writes the end of the call, as the status of the response decides it (`close`). Raises StorageUnavailable."""
        return await self.ledger.close(close)

    async def finish(self, finish: Finish) -> None:
        """Records the end of the body, complete or not. Raises nothing. The calling task may be cancelled, so a rail that waits for a
        write here must shield it. Only a cut response waits for its write: its caller may repeat the request at another gateway as
        soon as it sees the break."""
        if finish.is_cut:
            await self.ledger.finish_cut(finish)
        else:
            self.ledger.finish(finish)

    def write_receipt(self) -> tuple[bytes, bytes] | None:
        """The receipt header of a charged call; None where nothing was paid."""
        return None

    def remember(self) -> Verified | None:
        """Returns the result of `verify` for the cache of decisions; None where each call must verify again. Called once the claim is
        granted."""
        return None

    def drop_content(self) -> None:
        """Frees the bytes of the sent request while the response streams."""
        self.repeat = None
        if self.body.content is not None:
            self.body = replace(self.body, content=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAndEntropy:
    """The clock, and random bytes for ids. `entropy`: returns the given number of bytes."""

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
    """Builds the claim of a verified call of any rail. `digest` None: no other request repeats this one."""
    request, listing, asset = call.request, call.route.entry.listing, call.asset
    pay_to = None if payment is None else payment.payee
    entropy = clock.entropy(10)
    if request.trace is not None:
        # The id of a sampled call is drawn from the sampled part of all ids, so that later work on the call is traced too.
        entropy = request.trace.mark_entropy(entropy)
    return Claim(
        call_id=CallId(format_id("call", now_ms=clock.now_ms(), entropy=entropy)),
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
        metering=write_formulas(call.formulas) if call.formulas else None,
        tags=listing.tags,
    )


async def explain_claim(outcome: ClaimOutcome, claim: Claim, asset: Asset | None, ledger: Ledger) -> Problem:
    """Builds the problem for a claim that the ledger did not grant, on any rail. Raises StorageUnavailable."""
    authorization = claim.authorization
    match outcome:
        case Exhausted(is_payment_held=True):
            return REST_HELD
        case Exhausted(remaining_units=remaining, held_units=0) if remaining > 0 and asset is not None:
            return insufficient(claim, asset, remaining_units=remaining)
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
        case BudgetExceeded():
            return exceed_budget(outcome, payment_state="released" if claim.payment_id else "none")
        case NotFirst():
            return OTHER_CURRENCY
        case AuthorizationTaken(call_id=call_id, state=state):
            return authorization_used(call_id, state)
        case NotCovered():
            return NOT_COVERED
        case Exhausted() | InDebt() | Claimed() | KeyTaken() | RepeatsOpenCall():
            raise AssertionError("the rail handles a free claim, a granted claim and a repeat itself")
        case ChannelBusy() | CeilingMismatch() | ChannelClosed() | ChannelFull():
            raise AssertionError("the rail of channels handles the refusals of a channel itself")
        case _:
            assert_never(outcome)


def require(response: ProxyResponse | Problem) -> ProxyResponse:
    """Returns a stored response. Raises Refusal for a problem."""
    if isinstance(response, Problem):
        raise Refusal(response)
    return response
