"""The call pipeline: handles one call from its headers to its response.

    find the listing -> read the proof -> a repeat: return its stored response -> route and price -> require a proof if it costs
      -> check -> load the body -> identify the payer -> a repeat by its key -> verify -> connect -> claim (committed) -> send
      -> capture -> stream

A listing may change while a body arrives. After a slow body the call is decided again where it did, with the body in hand.

Every exit is a named outcome, and the default refuses. Checks that cost nothing come first; chain look-ups and the claim come after
them. Each rail (`gateway.rail`) implements its own payment steps, so this module names no rail.
"""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial

from tollway.errors import Code, Problem, Refusal, TollwayError
from tollway.gateway.access import AccessControl, ActiveCall
from tollway.gateway.body import ForwardBody, HeldBody, check_size, hold_body
from tollway.gateway.call_observer import CallObserver
from tollway.gateway.decisions import KNOWN_BY, DecisionMemory, RequestDecision, find_key
from tollway.gateway.free_calls import WALLET
from tollway.gateway.headers import check_control_headers, is_loop
from tollway.gateway.idempotency import Idempotency, Repeat, has_wallet_proof
from tollway.gateway.messages import (
    ClientGone,
    Disconnected,
    Outcome,
    ProblemResponse,
    ProxyRequest,
    ProxyResponse,
    Quote,
)
from tollway.gateway.problems import (
    KEY_HEADER,
    LOOP,
    NOT_FOUND,
    check_idempotency_key,
    check_listing,
    explain,
    explain_quoted,
    require_payment,
)
from tollway.gateway.proxy import Proxy
from tollway.gateway.rail import CallPayment, PaymentRail, RailProof, read_proof, require
from tollway.gateway.routing import RequestSchemas, Route, Router
from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.observability.call_trace import CallTrace
from tollway.payments.pricing import OperationPrice, PaymentRequirement
from tollway.registry.catalog import Catalog
from tollway.registry.listing import CatalogEntry, Listing
from tollway.registry.ownership import UNVERIFIED

SLOW_BODY_S = 1.0
"""A call that has waited so long, mostly for its body, follows a change of its listing since its decision. A change counts within a second
at every gateway, so a shorter wait is no older than the catalog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """The decision about a request was made before its body arrived, and its listing has changed since."""

    body: ForwardBody


class CallPipeline:
    """The pipeline of all calls of a process. Safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        host: str,
        allow_private: bool,
        catalog: Catalog,
        rails: tuple[PaymentRail, ...],
        free_rail: PaymentRail,
        idempotency: Idempotency,
        access: AccessControl,
        proxy: Proxy,
        decisions: DecisionMemory,
        observer: CallObserver,
        limits: Limits,
        find_requirements: Callable[[OperationPrice, Listing], tuple[PaymentRequirement, ...]],
        is_verified: Callable[[ListingId], Awaitable[bool]] | None = None,
    ) -> None:
        """`host`: the name of this gateway in Via and CDN-Loop. `rails`: the rails of paid calls, in the order in which they read a
        request. `free_rail`: the rail of calls that take no payment. `find_requirements`: the payment requirements that a 402 offers.
        `is_verified`: whether the ownership of a listing is proved; None where the gateway serves unproved listings too."""
        self._host = host
        self._catalog = catalog
        self._rails = rails
        self._free_rail = free_rail
        self._idempotency = idempotency
        self._access = access
        self._proxy = proxy
        self._decisions = decisions
        self._observer = observer
        self._limits = limits
        self._find_requirements = find_requirements
        self._is_verified = is_verified
        self._schemas = RequestSchemas()
        self._router = Router(wait_s=proxy.breaker.wait_s, allow_private=allow_private, schemas=self._schemas)

    async def handle(self, request: ProxyRequest) -> Outcome:
        """Handles one call and returns its outcome. Refusals and failures of storage, of a chain or of the upstream are outcomes.
        Only defects and cancellation raise."""
        started_s = self._access.clock()
        try:
            key = find_key(request) if KNOWN_BY in request.header_names else None
            outcome = await self._run(request, key, started_s)
            while isinstance(outcome, Outdated):
                request = hold_body(request, outcome.body)
                outcome = await self._run(request, None, started_s)
            return outcome
        except TollwayError as error:
            if error.problem.code is Code.INTERNAL_ERROR:  # a defect: what became of the price is not known
                raise
            _drop_frames(error)
            return explain(error)
        except ClientGone as gone:
            _drop_frames(gone)
            return Disconnected(payment_state=gone.payment_state)

    async def _run(self, request: ProxyRequest, key: Hashable | None, started_s: float) -> Outcome | Outdated:
        """Decides the route of a request, its proof, and the earlier call that it repeats; then pays for it. `key`: of a remembered
        decision; None where the request is decided anew."""
        decision = None if key is None else await self._find_decision(key, request)
        if decision is None:
            problem = check_control_headers(request.headers, limits=self._limits)
            if problem is None and b"cdn-loop" in request.header_names:
                problem = LOOP if is_loop(request.headers, self._host) else None
            if problem is not None:
                return ProblemResponse(problem=problem)
            entry = await self._catalog.find(request.listing_id)
            if entry is None:
                return ProblemResponse(problem=NOT_FOUND)
            if entry.listing.suspended_ms is not None:  # 410 or 503: it delivers no stored response either
                return ProblemResponse(problem=check_listing(entry, request) or NOT_FOUND)
            # `rail_proof` and `matched` may be problems that are raised later, or never: a free call ignores a bad proof, and a
            # stored response of a paused or retired listing is still delivered.
            rail_proof = read_proof(request, self._rails)
            if request.trace is not None:
                _trace_proof(request.trace, rail_proof)
            matched = self._router.match(entry, request)
            repeat = await self._find_repeat(request, entry, rail_proof, matched)
            read = None if repeat is None else repeat.body
            if read is not None and await self._is_outdated(request, entry, read, started_s):
                return Outdated(body=read)
            if repeat is not None and repeat.response is not None and repeat.is_deliverable:
                return require(repeat.response)
            # 410, 503, 405, 404, or 403 where ownership must be proved.
            route = await self._check_route(matched)
            if rail_proof is None and not route.is_free:
                if route.listing.free_calls is None or not has_wallet_proof(request):
                    return require_payment(self._quote(request, route))
                rail_proof = self._free_rail, WALLET
            # The problem of a bad proof (400, 402) or of a repeat (409). A free call ignores a bad proof.
            chosen = self._choose_rail(route, rail_proof, repeat)
            if isinstance(chosen, Problem):
                return explain_quoted(Refusal(chosen), self._quote(request, route), request)
            decision = RequestDecision(route=route, rail_proof=chosen, repeat=repeat)
        try:
            return await self._pay(request, key, decision, started_s)
        except Refusal as refusal:
            _drop_frames(refusal)
            return explain_quoted(refusal, self._quote(request, decision.route), request)

    async def _pay(
        self, request: ProxyRequest, key: Hashable | None, decision: RequestDecision, started_s: float
    ) -> ProxyResponse | Outdated:
        """Pays for and forwards a decided call. Raises `Refusal` where the call ends before the upstream's response."""
        route, repeat = decision.route, decision.repeat
        rail, proof = decision.rail_proof
        # Size of the body, form of the idempotency key, required parameters.
        self._check_request(request, route)
        # The exit of this context counts every outcome, refusals included.
        with ActiveCall(
            self._access, request, route.listing, is_settled_here=rail.is_settled_here, started_s=started_s
        ) as active:
            payment = rail.open(request, route, proof, repeat, active)
            payment.fields, payment.verified = decision.fields, decision.verified
            upstream = None
            try:
                # Every check that does not need the body.
                await payment.check()
                body = None if repeat is None else repeat.body  # where the look-up of the repeat has read it
                payment.body = body = body or await rail.load_body(request, proof, route.listing)
                # The prices of a remembered decision end at a moment, so it does not outlive a slow body.
                entry = None if decision.verified is not None else route.entry
                if request.body.is_present and await self._is_outdated(request, entry, body, started_s):
                    return Outdated(body=body)
                active.begin("read_head")
                # Facts -> rules. The key of a wallet that is known only now is looked up here.
                wallets = await payment.identify()
                response = await self._find_named_call(payment, proof, wallets) if wallets else None
                if response is None:
                    # Price -> access.
                    await payment.verify()
                    payment.is_verified = True
                    active.begin("dial")
                    upstream = self._proxy.connect(payment)
                    # Every exit returns the connection to the pool or closes it, except a response whose body still streams.
                    async with upstream:
                        active.begin("claim")
                        # One durable commit before the first byte is sent. A stored response: another request with the same key was faster.
                        response = await payment.claim()
                        if response is None:
                            if decision.verified is None or payment.verified is None:
                                self._decisions.put(key, request, decision, payment)
                            # Check the connection again, sign, send once, capture the price by the status, stream the body.
                            response = await self._proxy.exchange(upstream, payment)
                            active.count(response.payment_state)
            except BaseException as error:
                ended = self._proxy.explain_end(payment, error, upstream)
                self._observer.record(payment, response=None, error=ended)
                if ended is error:
                    raise
                raise ended from error
            self._observer.record(payment, response=response, error=None)
            return response

    # ---- The steps.

    async def _find_decision(self, key: Hashable, request: ProxyRequest) -> RequestDecision | None:
        """Returns the remembered decision of the same request. None where there is none, or where one of its inputs has changed: the
        request is then decided again."""
        known = self._decisions.find(key, request)
        if known is None:
            return None
        route = self._router.renew(known.route, request)
        if route is None or await self._catalog.find(request.listing_id) is not route.entry:
            return None
        if self._is_verified is not None and not await self._is_verified(route.listing.id):
            return None
        rail, remembered = known.rail_proof
        proof = rail.read(request) if remembered is None else remembered
        if proof is None or isinstance(proof, Problem):
            return None
        if request.trace is not None:
            _trace_proof(request.trace, (rail, proof))
        if route is known.route and proof is remembered:
            return known
        return RequestDecision(
            route=route, rail_proof=(rail, proof), fields=known.fields, verified=known.verified
        )

    async def _is_outdated(
        self, request: ProxyRequest, entry: CatalogEntry | None, body: ForwardBody, started_s: float
    ) -> bool:
        """Whether a call with a slow body must be decided again: the catalog has another entry than it was decided by. A call is decided
        again once: after that its body is in hand. A body that is too long to keep is not sent."""
        if self._access.clock() - started_s <= SLOW_BODY_S:
            return False
        if isinstance(request.body, HeldBody) or body.is_discarded:
            return False
        return await self._catalog.find(request.listing_id) is not entry

    async def _find_repeat(
        self,
        request: ProxyRequest,
        entry: CatalogEntry,
        rail_proof: RailProof | Problem | None,
        route: Route | Problem,
    ) -> Repeat | None:
        if rail_proof is None or isinstance(rail_proof, Problem):
            return None
        rail, proof = rail_proof
        is_free = isinstance(route, Route) and route.is_free
        return await self._idempotency.find(request, entry, rail, proof, is_free=is_free)

    async def _find_named_call(
        self, payment: CallPayment, proof: object, wallets: tuple[Address, ...]
    ) -> ProxyResponse | None:
        """The second look-up of an idempotency key, for wallets that are known only now: the payer of a contract wallet, or of a new
        payment. Returns a stored response. An earlier call that may run again becomes the repeat of the payment."""
        assert payment.key is not None  # `identify` names wallets for a key only
        found = await self._idempotency.find_by_key(
            payment.request, proof, payment.body, wallets, payment.key
        )
        if isinstance(found, ProxyResponse | Problem):
            return require(found)
        if found is not None:
            payment.repeat = Repeat(call=found, is_entitled=True)
        return None

    async def _check_route(self, route: Route | Problem) -> Route:
        if isinstance(route, Problem):
            raise Refusal(route)
        if self._is_verified is not None and not await self._is_verified(route.listing.id):
            raise Refusal(UNVERIFIED)
        return route

    def _choose_rail(
        self, route: Route, rail_proof: RailProof | Problem | None, repeat: Repeat | None
    ) -> RailProof | Problem:
        if repeat is not None and isinstance(repeat.response, Problem):
            return repeat.response
        if route.is_free and (repeat is None or repeat.call is None):
            return self._free_rail, None
        assert rail_proof is not None  # `_run` returned a 402 for a call that costs and has no proof
        return rail_proof

    def _check_request(self, request: ProxyRequest, route: Route) -> None:
        problem = check_size(request.body, self._limits) if request.body.is_present else None
        if problem is None and KEY_HEADER in request.header_names:
            problem = check_idempotency_key(request)
        if problem is None and not route.is_free and route.listing.openapi is not None:
            has_body = request.body.is_present and request.body.length != 0
            problem = self._schemas.check(request, route.listing, has_body=has_body)
        if problem is not None:
            raise Refusal(problem)

    def _quote(self, request: ProxyRequest, route: Route) -> Quote:
        operation_price = route.operation_prices[0]
        return Quote(
            entry=route.entry,
            price=operation_price.price,
            metering=next(iter(operation_price.formulas), None),
            expires_ms=request.received_ms + self._limits.price_memory_s * 1000,
            find_requirements=partial(self._find_requirements, operation_price, route.listing),
        )


def _drop_frames(error: BaseException | None) -> None:
    """Drops the frames of an exception that is handled, and of its causes. A frame that has its exception in a variable would keep the
    request, and the server its connection, until the garbage collector runs. Ends at an exception without frames."""
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _trace_proof(trace: CallTrace, rail_proof: RailProof | Problem | None) -> None:
    """Writes the kind of the signature on the current span."""
    kind = "none" if rail_proof is None else "unreadable"
    if isinstance(rail_proof, tuple):
        rail, proof = rail_proof
        kind = rail.name_signature(proof)
    trace.set("tollway.proof.kind", kind)
