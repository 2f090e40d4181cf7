"""The call pipeline: the one function that handles a paid call.

    find the listing -> read the proof -> a repeat? return its stored response -> route, price -> a proof where it costs
      -> check -> body -> verify -> connect -> claim, committed -> send -> capture -> stream

Every exit is a named outcome. The default refuses. No chain is asked, and no money is taken, before everything is checked that can be
refused for free. How a proof pays is the matter of its rail (`gateway.rail`): nothing here names one.
"""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial

from tollway.errors import Problem, Refusal, TollwayError
from tollway.gateway.access import AccessControl
from tollway.gateway.body import ForwardBody, check_size
from tollway.gateway.decisions import DecisionMemory, RequestDecision, find_key
from tollway.gateway.headers import check_control_headers, is_loop
from tollway.gateway.idempotency import Idempotency, Repeat
from tollway.gateway.messages import ClientGone, Disconnected, Outcome, ProxyRequest, ProxyResponse, Quote
from tollway.gateway.problems import (
    LOOP,
    NOT_FOUND,
    check_idempotency_key,
    check_listing,
    explain,
    explain_quoted,
    require_payment,
)
from tollway.gateway.proxy import Proxy
from tollway.gateway.rail import PaymentRail, Shown, read_proof, require
from tollway.gateway.routing import RequestSchemas, Route, Router
from tollway.ids import ListingId
from tollway.limits import Limits
from tollway.payments.pricing import OperationPrice, PaymentRequirement
from tollway.registry.catalog import Catalog
from tollway.registry.listing import CatalogEntry, Listing
from tollway.registry.ownership import UNVERIFIED


class CallPipeline:
    """Handles calls. One per process; safe to use from many tasks at once."""

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
        limits: Limits,
        find_requirements: Callable[[OperationPrice, Listing], tuple[PaymentRequirement, ...]],
        is_verified: Callable[[ListingId], Awaitable[bool]] | None = None,
    ) -> None:
        """`host`: the name of this gateway in Via and CDN-Loop. `rails`: each reads a request in turn. `free_rail`: of calls that cost
        nothing. `find_requirements`: what a 402 offers to sign. `is_verified`: whether the ownership of a listing is proved; given
        where only such listings are served."""
        self._host = host
        self._catalog = catalog
        self._rails = rails
        self._free_rail = free_rail
        self._idempotency = idempotency
        self._access = access
        self._proxy = proxy
        self._decisions = decisions
        self._limits = limits
        self._find_requirements = find_requirements
        self._is_verified = is_verified
        self._schemas = RequestSchemas()
        self._router = Router(wait_s=proxy.wait_s, allow_private=allow_private, schemas=self._schemas)

    async def handle(self, request: ProxyRequest) -> Outcome:
        """One call, from its headers to its outcome. A refusal, and a failure of storage, of a chain or of the upstream, is an
        outcome too: only a defect, and a cancellation, escape."""
        try:
            return await self._handle(request)
        except TollwayError as error:
            return explain(error)
        except ClientGone as gone:
            return Disconnected(payment_state=gone.payment_state)

    async def _handle(self, request: ProxyRequest) -> Outcome:
        # The same request with the same known payment is decided once.
        key = find_key(request)
        decision = await self._recall(key, request) or await self._decide(request)
        if not isinstance(decision, RequestDecision):
            return decision
        try:
            return await self._serve(key, request, decision)
        except Refusal as refusal:
            return explain_quoted(refusal, self._quote(request, decision.route), request)

    async def _decide(self, request: ProxyRequest) -> RequestDecision | Outcome:
        """The route of a request, the proof that it shows and the call that it repeats; or its stored response, or a 402."""
        self._check_headers(request)
        # 404. A suspended listing delivers not even a stored response.
        entry = await self._find_listing(request)
        # Two values: what is wrong with a proof counts only where a payment is required, and what is paid for and stored is
        # delivered for a closed listing too.
        shown = read_proof(request, self._rails)
        route = self._router.match(entry, request)
        repeat = await self._find_repeat(request, entry, shown, route)
        if repeat is not None and repeat.response is not None and repeat.is_deliverable:
            return require(repeat.response)
        # 410, 503, 405, 404, ownership.
        route = await self._check_route(route)
        if shown is None and not route.is_free:
            return require_payment(self._quote(request, route))
        return RequestDecision(route=route, shown=shown, repeat=repeat)

    async def _serve(
        self, key: Hashable | None, request: ProxyRequest, decision: RequestDecision
    ) -> ProxyResponse:
        route, repeat = decision.route, decision.repeat
        # A free call ignores a bad proof; else 400, 402, or the 409 of a repeat.
        rail, proof = self._choose_rail(decision)
        # Size, form of the key, required parameters.
        self._check_request(request, route)
        # The end of this context counts every outcome, refusals included.
        with self._access.enter(request, route.listing, is_settled_here=rail.is_settled_here) as active:
            payment = rail.open(request, route, proof, repeat, active)
            payment.fields, payment.verified = decision.fields, decision.verified
            # What the body does not decide is refused before the body is read.
            await payment.check()
            payment.body = await _load_body(rail, request, route, proof, repeat)
            # Facts -> rules -> price -> access. A contract's wallet has its key looked up only now.
            stored = await payment.verify()
            if stored is not None:
                return stored
            # A connection is held; every exit returns it or cuts it, but that of a response whose body streams.
            async with self._proxy.connect(payment) as upstream:
                # One durable commit, before the first byte. A stored response: another request was faster.
                stored = await payment.claim()
                if stored is not None:
                    return stored
                if decision.verified is None or payment.verified is None:
                    self._decisions.put(key, request, decision, payment)
                # Look at the connection once more, sign, send once, capture by the head, stream.
                return active.count_response(await self._proxy.exchange(upstream, payment))

    # ---- What the steps do.

    async def _recall(self, key: Hashable | None, request: ProxyRequest) -> RequestDecision | None:
        """The decision that is remembered of the same request. None: something that it follows has changed, and the request is decided
        anew."""
        known = self._decisions.find(key, request)
        if known is None or not isinstance(known.shown, tuple):
            return None
        route = self._router.renew(known.route, request)
        if route is None or await self._catalog.find(request.listing_id) is not route.entry:
            return None
        if self._is_verified is not None and not await self._is_verified(route.listing.id):
            return None
        rail, proof = known.shown
        if proof is None:
            proof = rail.read(request)
            if proof is None or isinstance(proof, Problem):
                return None
        elif route is known.route:
            return known
        return RequestDecision(route=route, shown=(rail, proof), fields=known.fields, verified=known.verified)

    def _check_headers(self, request: ProxyRequest) -> None:
        problem = check_control_headers(request.headers, limits=self._limits)
        if problem is not None:
            raise Refusal(problem)
        if is_loop(request.headers, self._host):
            raise Refusal(LOOP)

    async def _find_listing(self, request: ProxyRequest) -> CatalogEntry:
        entry = await self._catalog.find(request.listing_id)
        if entry is None or entry.listing.suspended_ms is not None:
            raise Refusal(check_listing(entry, request) or NOT_FOUND)
        return entry

    async def _find_repeat(
        self,
        request: ProxyRequest,
        entry: CatalogEntry,
        shown: Shown | Problem | None,
        route: Route | Problem,
    ) -> Repeat | None:
        if shown is None or isinstance(shown, Problem):
            return None
        rail, proof = shown
        is_free = isinstance(route, Route) and route.is_free
        return await self._idempotency.find(request, entry, rail, proof, is_free=is_free)

    async def _check_route(self, route: Route | Problem) -> Route:
        if isinstance(route, Problem):
            raise Refusal(route)
        if self._is_verified is not None and not await self._is_verified(route.listing.id):
            raise Refusal(UNVERIFIED)
        return route

    def _choose_rail(self, decision: RequestDecision) -> Shown:
        route, shown, repeat = decision.route, decision.shown, decision.repeat
        if repeat is not None and isinstance(repeat.response, Problem):
            raise Refusal(repeat.response)
        if route.is_free and (repeat is None or repeat.call is None):
            return self._free_rail, None
        if isinstance(shown, Problem):
            raise Refusal(shown)
        assert shown is not None  # a call that costs shows a proof
        return shown

    def _check_request(self, request: ProxyRequest, route: Route) -> None:
        problem = check_size(request.body, self._limits) or check_idempotency_key(request)
        if problem is None and not route.is_free:
            problem = self._check_parameters(request, route.listing)
        if problem is not None:
            raise Refusal(problem)

    def _check_parameters(self, request: ProxyRequest, listing: Listing) -> Problem | None:
        schema = self._schemas.find(listing)
        if schema is None:
            return None
        return schema.check(
            method=request.method,
            rest=request.target.rest,
            query=request.target.query,
            headers=request.headers,
            has_body=request.body.is_present and request.body.length != 0,
        )

    def _quote(self, request: ProxyRequest, route: Route) -> Quote:
        operation_price = route.operation_prices[0]
        return Quote(
            entry=route.entry,
            price=operation_price.price,
            expires_ms=request.received_ms + self._limits.price_memory_s * 1000,
            find_requirements=partial(self._find_requirements, operation_price, route.listing),
        )


async def _load_body(
    rail: PaymentRail, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None
) -> ForwardBody:
    """As the rail needs it, unless the look-up of a repeat has read it."""
    if repeat is not None and repeat.body is not None:
        return repeat.body
    return await rail.load_body(request, proof, route.listing)
