"""The call pipeline: the one function that handles a paid call.

    find the listing -> paid and stored? return it -> closed? 404, 410, 503, 405 -> free, and no repeat? forward -> no proof? 402
      -> transaction: ledger or chain facts, rules, price -> connect -> claim, committed -> send -> close, written -> stream
    a signed authorisation instead: ledger, our own requirement, simulation, cover -> connect -> claim -> send -> settle -> stream

Every exit is a named outcome. The default refuses. No chain is asked, and no money is taken, before everything is checked that can be
refused for free.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from tollway.errors import Code, Problem
from tollway.gateway.access import AccessControl, ActiveCall, CallRateLimits
from tollway.gateway.authorization_payment import AuthorizationPayment, PendingClaim, QuotedAuthorizedRequest
from tollway.gateway.body import ForwardBody, check_size, load_compared, load_hashed, load_plain, too_large
from tollway.gateway.headers import check_control_headers, is_loop
from tollway.gateway.idempotency import (
    AuthorizedRequest,
    ClaimedAuthorization,
    UnreadAuthorizedRequest,
    is_deliverable,
)
from tollway.gateway.messages import (
    BodyRefused,
    ClientGone,
    Disconnected,
    IncomingCall,
    Outcome,
    ProblemResponse,
    ProxyResponse,
    Quote,
)
from tollway.gateway.problems import (
    LOOP,
    NOT_FOUND,
    check_idempotency_key,
    check_listing,
    find_idempotency_key,
    payment_required,
    refuse_call,
)
from tollway.gateway.proxy import Proxy, UpstreamCall
from tollway.gateway.routing import RequestSchemas, Route, Router
from tollway.gateway.transaction_payment import (
    LoadedTransactionRequest,
    TransactionClaims,
    TransactionPayment,
    TransactionRequest,
)
from tollway.ids import Address, ListingId
from tollway.ledger.ledger import Ledger
from tollway.limits import Limits
from tollway.payments.authorization_check import PresentedAuthorization, is_late
from tollway.payments.authorization_onchain import AuthorizationLookup
from tollway.payments.proof import TX_HEADER
from tollway.payments.transaction_verifier import TransactionVerifier
from tollway.registry.catalog import Catalog
from tollway.registry.listing import CatalogEntry, Listing
from tollway.registry.ownership import UNVERIFIED

_AuthorizationProof = AuthorizedRequest | PresentedAuthorization | Problem | None
"""What a call shows on the rails of authorisations. `AuthorizedRequest`: the ledger knows it, and its body is read to be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayName:
    """What a gateway says of itself. `origin`: that of the public URL; `host`: its name in Via and CDN-Loop."""

    origin: str
    host: str
    allow_private: bool
    is_bound_required: bool


class CallPipeline:
    """Serves calls. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        name: GatewayName,
        catalog: Catalog,
        ledger: Ledger,
        transaction_verifier: TransactionVerifier,
        authorizations: AuthorizationPayment,
        proxy: Proxy,
        call_limits: CallRateLimits,
        limits: Limits,
        is_blocked: Callable[[Address], bool],
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
        is_verified: Callable[[ListingId], Awaitable[bool]] | None = None,
    ) -> None:
        """`is_verified`: whose ownership is proved, where only those are served."""
        self._name = name
        self._is_verified = is_verified
        self._catalog = catalog
        self._authorizations = authorizations
        self._proxy = proxy
        self._limits = limits
        self._schemas = RequestSchemas()
        self._router = Router(wait_s=proxy.wait_s, allow_private=name.allow_private, schemas=self._schemas)
        self._access = AccessControl(call_limits, limits=limits, is_blocked=is_blocked, now_ms=now_ms)
        self._now_ms = now_ms
        self._claims = TransactionClaims(
            ledger=ledger,
            transaction_verifier=transaction_verifier,
            idempotency=authorizations.idempotency,
            limits=limits,
            now_ms=now_ms,
            entropy=entropy,
        )
        self._transactions = TransactionPayment(
            transaction_verifier=transaction_verifier,
            claims=self._claims,
            idempotency=authorizations.idempotency,
            limits=limits,
            origin=name.origin,
            is_bound_required=name.is_bound_required,
            now_ms=now_ms,
        )

    async def handle(self, call: IncomingCall) -> Outcome:
        """One call, from its headers to its outcome. Raises StorageUnavailable and ChainUnavailable: nothing taken."""
        problem = check_control_headers(call.headers, limits=self._limits)
        if problem is not None:
            return ProblemResponse(problem=problem)
        if is_loop(call.headers, self._name.host):
            return ProblemResponse(problem=LOOP)
        entry = await self._catalog.find(call.listing_id)
        if entry is None or entry.listing.suspended_ms is not None:
            return ProblemResponse(problem=check_listing(entry, call) or NOT_FOUND)
        try:
            return await self._handle_listed(entry, call)
        except ClientGone:
            return Disconnected()
        except BodyRefused as refused:
            return ProblemResponse(problem=refused.problem)

    async def _handle_listed(self, entry: CatalogEntry, call: IncomingCall) -> Outcome:
        """What was paid for and is stored is given out whatever its listing has become; everything else is for an open
        one."""
        authorized = await self._find_authorization(call)
        recorded = (
            await self._authorizations.idempotency.find_response(authorized)
            if isinstance(authorized, AuthorizedRequest)
            else None
        )
        if recorded is not None and is_deliverable(recorded):
            return recorded
        route = self._router.find(entry, call)
        if self._is_verified is not None and isinstance(route, Route):
            route = route if await self._is_verified(route.listing.id) else UNVERIFIED
        if isinstance(route, Problem):
            return await self._transactions.find_paid_response(call, entry) or ProblemResponse(problem=route)
        if isinstance(authorized, UnreadAuthorizedRequest):
            # A free call is served all the same, unless its key names the paid call that it shows.
            key = _find_key(call, authorized.presented)
            if not route.is_free or (key is not None and key == authorized.known.call.idempotency_key):
                return authorized.recorded
            authorized = authorized.presented
        if route.is_free:
            return await self._handle_free(call, route, authorized)
        return recorded or await self._handle_transaction(call, route, authorized)

    async def _find_authorization(self, call: IncomingCall) -> _AuthorizationProof | UnreadAuthorizedRequest:
        if call.find_header(TX_HEADER) is not None:
            return None  # on another rail; or on two, which is told in its turn
        presented = self._authorizations.read(call)
        if not isinstance(presented, PresentedAuthorization):
            return presented
        known = await self._authorizations.find_known(presented)
        if known is None or check_size(call.body, self._limits) is not None:
            return presented
        recorded = self._authorizations.idempotency.find_unread_response(
            call, presented, known, key=_find_key(call, presented)
        )
        if recorded is not None:
            return UnreadAuthorizedRequest(presented=presented, known=known, recorded=recorded)
        body = await load_compared(call.body, limits=self._limits)
        authorized = _build_authorized_request(call, presented, body, known)
        return replace(authorized, is_entitled=await self._authorizations.idempotency.is_entitled(authorized))

    # ---- Paid.

    async def _handle_transaction(
        self, call: IncomingCall, route: Route, authorized: _AuthorizationProof
    ) -> Outcome:
        proof = self._transactions.read(call)
        if isinstance(proof, Problem):
            return ProblemResponse(problem=proof)
        if proof is None:
            return await self._handle_authorization(call, route, authorized)
        problem = self._check_request(call, route.listing)
        if problem is not None:
            return await self._transactions.find_paid_response(call, route.entry) or ProblemResponse(
                problem=problem
            )
        problem = self._transactions.check_form(proof, route.listing)
        if problem is not None:
            return ProblemResponse(problem=problem)
        listing, quote = route.listing, self._quote(call, route)
        checked = await self._transactions.check_proof(
            TransactionRequest(call=call, listing=listing, proof=proof, quote=quote)
        )
        if isinstance(checked, ProblemResponse):
            return checked
        body = await self._transactions.load_body(call, proof)
        if isinstance(body, Problem):
            return ProblemResponse(problem=body)
        request = LoadedTransactionRequest(call=call, listing=listing, proof=proof, quote=quote, body=body)
        with self._access.enter(call, listing) as active:
            verified = await self._transactions.verify(request, checked, route.operation_prices, active.check)
            return await self._forward(call, route, body, verified, active)

    def _quote(self, call: IncomingCall, route: Route) -> Quote:
        operation_price = route.operation_prices[0]
        return Quote(
            entry=route.entry,
            price=operation_price.price,
            expires_ms=call.received_ms + self._limits.price_memory_s * 1000,
            find_requirements=partial(self._authorizations.find_requirements, operation_price, route.listing),
        )

    async def _forward(
        self,
        call: IncomingCall,
        route: Route,
        body: ForwardBody,
        verified: ProxyResponse | ProblemResponse | PendingClaim,
        active: ActiveCall,
    ) -> Outcome:
        if not isinstance(verified, PendingClaim):
            return verified
        if body.is_discarded:  # a repeat that would have to run again
            return ProblemResponse(problem=too_large(self._limits.bound_body_bytes_max))
        upstream_call = _build_upstream_call(call, route, body, is_paid=True)
        outcome = await self._proxy.forward(upstream_call, verified.claim)
        active.record_outcome(verified.payer, outcome)
        return outcome

    # ---- Paid by an authorisation.

    async def _handle_authorization(
        self, call: IncomingCall, route: Route, authorized: _AuthorizationProof
    ) -> Outcome:
        quote = self._quote(call, route)
        if authorized is None:
            return ProblemResponse(problem=payment_required(quote), quote=quote)
        if isinstance(authorized, Problem):
            return refuse_call(authorized, quote, call)
        problem = self._check_request(call, route.listing)
        if problem is not None:
            return ProblemResponse(problem=problem)
        if isinstance(authorized, PresentedAuthorization) and call.body.is_present:
            key = _find_key(call, authorized)
            refusal = self._authorizations.check_unread(
                call, authorized, quote, route.operation_prices, key=key
            )
            if refusal is not None:
                return refusal
        request = await self._load_authorized_request(call, route, authorized)
        if isinstance(request, Problem):
            return ProblemResponse(problem=request)
        with (
            self._access.enter(call, route.listing, is_settled_here=True) as active,
            self._authorizations.open_lookup(call) as lookup,
        ):
            verified = await self._authorizations.verify(
                request, route.operation_prices, active.check, lookup
            )
            outcome = await self._forward(call, route, request.body, verified, active)
            _end_lookup(lookup, outcome)
            return outcome

    async def _load_authorized_request(
        self, call: IncomingCall, route: Route, authorized: AuthorizedRequest | PresentedAuthorization
    ) -> QuotedAuthorizedRequest | Problem:
        if isinstance(authorized, PresentedAuthorization):
            body = await load_hashed(
                call.body,
                is_whole=_find_key(call, authorized) is not None,
                limits=self._limits,
                is_late=partial(self._is_late, authorized, route.listing),
            )
            if isinstance(body, Problem):
                return body
            authorized = _build_authorized_request(call, authorized, body, None)
        return QuotedAuthorizedRequest(
            call=call,
            presented=authorized.presented,
            body=authorized.body,
            key=authorized.key,
            known=authorized.known,
            is_entitled=authorized.is_entitled,
            listing=route.listing,
            quote=self._quote(call, route),
        )

    def _is_late(self, presented: PresentedAuthorization, listing: Listing) -> bool:
        now_s = self._now_ms() / 1000
        return is_late(presented.valid_before, now_s=now_s, timeout_s=listing.timeout_s)

    # ---- What is checked before money is looked at.

    def _check_request(self, call: IncomingCall, listing: Listing) -> Problem | None:
        return (
            check_size(call.body, self._limits)
            or check_idempotency_key(call)
            or self._check_parameters(call, listing)
        )

    def _check_parameters(self, call: IncomingCall, listing: Listing) -> Problem | None:
        schema = self._schemas.find(listing)
        if schema is None:
            return None
        return schema.check(
            method=call.method,
            rest=call.target.rest,
            query=call.target.query,
            headers=call.headers,
            has_body=call.body.is_present and call.body.length != 0,
        )

    # ---- Free.

    async def _handle_free(
        self, call: IncomingCall, route: Route, authorized: _AuthorizationProof
    ) -> Outcome:
        request = await self._read_repeat(call, route, authorized)
        if isinstance(request, Problem):
            return ProblemResponse(problem=request)
        recorded = None if request is None else await self._handle_repeat(request, route)
        if recorded is not None:
            return recorded
        listing = route.listing
        problem = await self._access.check_free(call, listing)
        if problem is not None:
            return ProblemResponse(problem=problem)
        problem = check_size(call.body, self._limits) or check_idempotency_key(call)
        if problem is not None:
            return ProblemResponse(problem=problem)
        loaded = request or (authorized if isinstance(authorized, AuthorizedRequest) else None)
        body = await load_plain(call.body, limits=self._limits) if loaded is None else loaded.body
        if body.is_discarded:
            return ProblemResponse(problem=too_large(self._limits.bound_body_bytes_max))
        upstream_call = _build_upstream_call(call, route, body, is_paid=False)
        claim = partial(self._claims.claim_free, call, listing, route.operation_prices[0])
        return await self._proxy.forward(upstream_call, claim)

    async def _read_repeat(
        self, call: IncomingCall, route: Route, authorized: _AuthorizationProof
    ) -> LoadedTransactionRequest | QuotedAuthorizedRequest | Problem | None:
        """A free call that may repeat a paid one, from before: its key says so, and a payment says whose key it is."""
        if not isinstance(authorized, AuthorizedRequest | PresentedAuthorization):
            return await self._transactions.read_repeat(call, route.entry)
        presented = authorized.presented if isinstance(authorized, AuthorizedRequest) else authorized
        length = call.body.length or 0
        if _find_key(call, presented) is None or check_idempotency_key(call) is not None:
            return None
        if isinstance(authorized, PresentedAuthorization) and length > self._limits.bound_body_bytes_max:
            return None  # no such call was ever granted under a key
        request = await self._load_authorized_request(call, route, authorized)
        if (
            isinstance(request, QuotedAuthorizedRequest)
            and request.known is not None
            and request.known.call.idempotency_key != request.key
        ):
            return replace(request, known=None)  # of another call; the key may be of this one
        return request

    async def _handle_repeat(
        self, request: LoadedTransactionRequest | QuotedAuthorizedRequest, route: Route
    ) -> Outcome | None:
        is_settled_here = isinstance(request, QuotedAuthorizedRequest)
        with (
            self._access.enter(request.call, route.listing, is_settled_here=is_settled_here) as active,
            self._authorizations.open_lookup(request.call) as lookup,
        ):
            if isinstance(request, QuotedAuthorizedRequest):
                recorded = await self._authorizations.find_repeat_outcome(
                    request, route.operation_prices, lookup
                )
            else:
                recorded = await self._transactions.find_repeat_outcome(
                    request, route.operation_prices, active.check
                )
            if recorded is None:
                return None
            outcome = await self._forward(request.call, route, request.body, recorded, active)
            _end_lookup(lookup, outcome)
            return outcome


def _build_upstream_call(
    call: IncomingCall, route: Route, body: ForwardBody, *, is_paid: bool
) -> UpstreamCall:
    return UpstreamCall(
        call=call,
        listing=route.listing,
        endpoint=route.endpoint,
        target=route.target,
        body=body,
        is_paid=is_paid,
    )


def _end_lookup(lookup: AuthorizationLookup, outcome: Outcome) -> None:
    """A look-up counts, unless its call was charged now: a stored answer was charged before."""
    if isinstance(outcome, ProblemResponse) and outcome.problem.code in _UNRESOLVED:
        lookup.leave_unresolved()
    elif isinstance(outcome, Disconnected):
        if outcome.payment_state == "charged":
            lookup.give_back()
    else:
        headers = dict(outcome.headers)
        if headers.get(b"tollway-payment-state") == b"charged" and b"idempotency-replayed" not in headers:
            lookup.give_back()


_UNRESOLVED = frozenset({Code.CHAIN_UNAVAILABLE, Code.STORAGE_UNAVAILABLE})


def _find_key(call: IncomingCall, presented: PresentedAuthorization) -> str | None:
    return find_idempotency_key(call) or presented.identifier


def _build_authorized_request(
    call: IncomingCall,
    presented: PresentedAuthorization,
    body: ForwardBody,
    known: ClaimedAuthorization | None,
) -> AuthorizedRequest:
    return AuthorizedRequest(
        call=call, presented=presented, body=body, key=_find_key(call, presented), known=known
    )
