"""Payment by a signed authorisation (x402, MPP): from the header to the claim, and the settlement after the response head.

    check: requirement, where a body is still to be read -> (body) -> identify: requirement -> access of the wallet -> settlement
      possible? -> chain facts, cover -> (look up the key) -> (connect) -> claim -> (head) -> capture: settle

Requirements are built from the gateway's own records; the members of the presented payment are only compared with them. An
authorisation in the ledger never gets a quote, because its money may have moved. `payments.settlement` decides whether money moves.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import assert_never

from tollway.chain.networks import ChainRules
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.access import ActiveCall
from tollway.gateway.body import ForwardBody, too_large
from tollway.gateway.idempotency import (
    ClientNetworks,
    Idempotency,
    Repeat,
    explain_key_used,
    find_token_asset,
)
from tollway.gateway.messages import ProxyRequest, ProxyResponse
from tollway.gateway.problems import (
    RAIL_WITHDRAWN,
    authorization_public,
    authorization_used,
    check_held_price_max,
    may_quote,
)
from tollway.gateway.rail import (
    CaptureFailed,
    CaptureOutcome,
    ClockAndEntropy,
    CollectResponse,
    build_claim,
    explain_claim,
    name_signer,
    require,
)
from tollway.gateway.receipts import ReceiptWriter
from tollway.gateway.routing import Route
from tollway.gateway.settled_payment import SettledPayment, SettledRail
from tollway.ids import Address, ChainId
from tollway.ledger.budgets import cost_nano_of
from tollway.ledger.claims import rail_of
from tollway.ledger.ledger import (
    AuthorizationTaken,
    Claimed,
    Close,
    Closed,
    Fenced,
    Ledger,
)
from tollway.ledger.records import (
    UNKNOWN_DIGEST,
    Authorization,
    AuthorizationKey,
    AuthorizedCall,
    CallState,
    Cover,
    KeyedCall,
    KeyTaken,
    Rail,
)
from tollway.limits import Limits
from tollway.money import Price
from tollway.payments.authorization_check import match_requirement, parse_presented
from tollway.payments.channel_wire import names_channel
from tollway.payments.eip3009 import recover_signer
from tollway.payments.mpp import Challenger, ChallengeRoute
from tollway.payments.payment_required import encode_failure
from tollway.payments.pricing import (
    OperationPrice,
    PaymentRequirement,
    current_requirements,
    list_requirements,
)
from tollway.payments.settlement import (
    NotSettled,
    Settled,
    Settlement,
    Undecided,
)
from tollway.payments.wire import AuthorizationReason, PresentedAuthorization, explain_authorization
from tollway.registry.listing import CatalogEntry, Listing, RevisionCache

QUOTES_MAX = 4_096
_SETTLED = Closed(remaining_units=None)


METERED = explain_authorization(
    AuthorizationReason.SCHEME,
    "The price of this call is metered, and a signed payment cannot take less than was signed. Nothing was spent; pay by a transaction of your own, or "
    "with credit.",
)


class AuthorizationRail(SettledRail):
    """The rail of signed authorisations. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        settlement: Settlement,
        idempotency: Idempotency,
        receipts: ReceiptWriter,
        challenger: Challenger | None,
        rules: Mapping[ChainId, ChainRules],
        limits: Limits,
        networks: ClientNetworks,
        clock: ClockAndEntropy,
        is_x402: bool = True,
        has_channels: bool = False,
    ) -> None:
        """`challenger` None: MPP is off. `is_x402` False: x402 is off. `has_channels`: another rail reads the payments of channels."""
        super().__init__(
            ledger=ledger, settlement=settlement, idempotency=idempotency, limits=limits, clock=clock
        )
        self.receipts = receipts
        self.rules = rules
        self.networks = networks
        self._challenger = challenger
        self._is_x402 = is_x402
        self._has_channels = has_channels
        self._quotes: RevisionCache[tuple[PaymentRequirement, ...]] = RevisionCache(QUOTES_MAX)

    def find_requirements(
        self, operation_price: OperationPrice, listing: Listing
    ) -> tuple[PaymentRequirement, ...]:
        """The payment requirements of a 402: the current price, in every asset that can be settled now."""
        key = (operation_price.price.text, operation_price.formulas)
        quoted = self._quotes.find(listing, key)
        if quoted is None:
            quoted = current_requirements(operation_price, self.rules, timeout_s=listing.timeout_s)
            self._quotes.put(listing, key, quoted)
        return tuple([one for one in quoted if self.settlement.is_offered(one.asset, one.units, listing.id)])

    def list_requirements(self, route: Route) -> tuple[PaymentRequirement, ...]:
        """The requirements that an authorisation may meet: those of every price that is valid now."""
        return list_requirements(
            route.operation_prices,
            self.rules,
            timeout_s=route.listing.timeout_s,
            now_ms=self.clock.now_ms(),
            limits=self.limits,
        )

    def read(self, request: ProxyRequest) -> PresentedAuthorization | Problem | None:
        presented = parse_presented(
            request.headers,
            challenger=self._challenger,
            find_route=partial(build_challenge_route, request),
            now_s=self.clock.now_ms() // 1000,
            limits=self.limits,
            is_x402=self._is_x402,
        )
        is_refused = self._has_channels and isinstance(presented, Problem)
        return None if is_refused and names_channel(request.headers, self.limits) else presented

    def name_signature(self, proof: object) -> str:
        assert isinstance(proof, PresentedAuthorization)  # as `read` has parsed it
        return f"eip3009_{name_signer(proof.signature)}"

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> "AuthorizationPayment":
        assert isinstance(proof, PresentedAuthorization)  # as `read` has parsed it
        return AuthorizationPayment(self, request, route, proof, repeat, active)

    def find_deposit(self, proof: PresentedAuthorization) -> AuthorizationKey | None:
        return None

    async def find_key_wallets(
        self,
        request: ProxyRequest,
        entry: CatalogEntry,
        proof: PresentedAuthorization,
        body: ForwardBody | None,
    ) -> tuple[Address, ...]:
        """See `KeyReader`. Opens the keys of the payer only if the payer's key signed and the payee is that of a version of this listing:
        the payee of an authorisation has a copy of it, too. A body over the limit opens no key: no call with a key was granted with
        such a body."""
        if (request.body.length or 0) > self.limits.bound_body_bytes_max:
            return ()
        is_for_listing = any(
            version.pay_to == proof.payee and proof.chain_id in version.networks for version in entry.versions
        )
        return (proof.payer,) if is_for_listing and self.idempotency.is_signed_by_payer(proof) else ()


class AuthorizationPayment(SettledPayment):
    """The payment of one call by an authorisation."""

    __slots__ = (
        "_authorization",
        "_cover",
        "_earlier",
        "_lookup",
        "_moved_ms",
        "_rail",
        "_requirement",
        "proof",
    )

    def __init__(
        self,
        rail: AuthorizationRail,
        request: ProxyRequest,
        route: Route,
        proof: PresentedAuthorization,
        repeat: Repeat | None,
        active: ActiveCall,
    ) -> None:
        super().__init__(rail.ledger, request, route, repeat, active, key=rail.find_key(request, proof))
        self.proof = proof
        self._rail = rail
        self._lookup = active.hold_lookup(rail.settlement.open_lookup(request.client_address))
        self._requirement: PaymentRequirement | None = None
        self._authorization: Authorization | None = None
        self._cover: Cover | None = None
        self._earlier: AuthorizedCall | None = None
        self._moved_ms: int | None = None  # when the ledger wrote the state of the call

    @property
    def default_rail(self) -> Rail:
        return rail_of(self.proof.dialect)

    async def check(self) -> None:
        """See `CallPayment`. Refuses an authorisation that meets no requirement before its body is read."""
        bytes_max = self._rail.limits.bound_body_bytes_max
        if self.key is not None and (self.request.body.length or 0) > bytes_max:
            raise Refusal(too_large(bytes_max))
        is_unread = self.repeat is None or self.repeat.body is None
        if is_unread and self.request.body.is_present:
            self._match()
            # Only a body with a key is read whole, so that its bytes count.
            if self.key is not None and self._rail.idempotency.is_signed_by_payer(self.proof):
                self.request.body.prove()

    def _match(self) -> tuple[PaymentRequirement, Authorization]:
        """Finds the requirement that the authorisation meets. Raises Refusal where there is none."""
        requirements = self._rail.list_requirements(self.route)
        if not requirements and self.route.operation_prices[0].formulas:
            raise Refusal(METERED)
        matched = match_requirement(self.proof, requirements)
        if isinstance(matched, Problem):
            raise Refusal(matched)
        return matched

    # ---- Identify: the requirement, and whether it can be settled.

    async def identify(self) -> tuple[Address, ...]:
        repeat = self.repeat
        if repeat is not None and isinstance(repeat.call, AuthorizedCall):
            return ()
        requirement, authorization = self._match()
        self._choose(requirement, authorization)
        try:
            self._cover = await self._check_payer(requirement, authorization)
        except Refusal as refusal:
            raise await self._reconsider(refusal) from refusal
        payer = authorization.payer
        return () if self.key is None or (repeat is not None and payer in repeat.key_wallets) else (payer,)

    async def verify(self) -> None:
        repeat = self.repeat
        if repeat is not None and isinstance(repeat.call, AuthorizedCall):
            await self._verify_repeat(repeat.call, is_entitled=repeat.is_entitled)

    def _choose(self, requirement: PaymentRequirement, authorization: Authorization) -> None:
        asset = requirement.asset
        self.asset, self.currency, self.payer = asset, asset.symbol, authorization.payer
        self.price, self.units, self.charge_on = requirement.price, requirement.units, requirement.charge_on
        self._requirement, self._authorization = requirement, authorization

    async def _check_payer(self, requirement: PaymentRequirement, authorization: Authorization) -> Cover:
        """Checks access and the chain, and returns the cover. A wallet whose key signed has its access checked before the chain
        look-ups. A contract wallet has it checked after them: an unverified request must not use up the rate of a wallet. Raises
        Refusal."""
        domain = requirement.asset.domain
        is_signed = domain is not None and recover_signer(authorization, domain) == authorization.payer
        if is_signed:
            await self._check_access(requirement, authorization)
        cover = await self._check_chain(requirement, authorization)
        if isinstance(cover, Problem):
            raise Refusal(cover)
        if not is_signed:
            await self._check_access(requirement, authorization)
        return cover

    async def _check_access(self, requirement: PaymentRequirement, authorization: Authorization) -> None:
        cost_nano = cost_nano_of(requirement.units, decimals=requirement.asset.decimals)
        problem = await self.active.check_budget(
            authorization.payer, currency=requirement.asset.symbol, cost_nano=cost_nano
        ) or await self.active.check(authorization.payer, requirement.price, requirement.asset)
        if problem is not None:
            raise Refusal(problem)

    async def _reconsider(self, refusal: Refusal) -> Refusal:
        """Replaces a refusal that asks for a payment where another request has claimed the same authorisation during the chain
        look-ups: no further payment is required then."""
        problem = refusal.problem
        if problem.payment_state == "released":  # nothing was taken
            problem = replace(problem, payment_state="none")
        known = await self._rail.idempotency.find_known(self.proof) if may_quote(problem) else None
        return Refusal(problem if known is None else self._rail.idempotency.explain_known(known))

    async def _check_chain(
        self, requirement: PaymentRequirement, authorization: Authorization
    ) -> Cover | Problem:
        """Checks that the settlement would succeed on the chain now. Raises ChainUnavailable."""
        settlement, listing, chain_id = (
            self._rail.settlement,
            self.route.entry.listing,
            requirement.asset.chain_id,
        )
        if not settlement.is_offered(requirement.asset, requirement.units, listing.id):
            self._rail.check_reachable(chain_id)
            return RAIL_WITHDRAWN
        self.active.begin("chain")
        checked = await settlement.check(
            authorization,
            requirement,
            timeout_s=listing.timeout_s,
            lookup=self._lookup,
            listing_id=listing.id,
        )
        self.active.begin("read_head")
        return checked

    async def _verify_repeat(self, known: AuthorizedCall, *, is_entitled: bool) -> None:
        """Verifies a call that runs again under its own claim and at its price. `is_entitled`: the request proves more than a public
        authorisation."""
        authorization = known.authorization
        asset = find_token_asset(self._rail.rules, authorization)
        if asset is None:
            raise Refusal(authorization_used(known.call_id, known.state))
        requirement = PaymentRequirement(
            asset=asset,
            price=Price.parse(known.price),
            units=known.price_units,
            pay_to=authorization.payee,
            charge_on=self.route.operation_prices[0].terms.charge_on,
            max_timeout_s=self.route.entry.listing.timeout_s,
        )
        problem = check_held_price_max(
            self.request, asset, call_id=known.call_id, price=known.price, state=known.state
        )
        if problem is not None:
            raise Refusal(problem)
        if known.state is CallState.UNKNOWN:  # not settled yet, so the settlement must still be possible
            cover = await self._check_chain(requirement, authorization)
            # "Already used": the transfer is on the chain, sent by another account. The settlement will find that transfer.
            if isinstance(cover, Problem) and cover.code is not Code.PAYMENT_ALREADY_USED:
                # An earlier run was sent and its outcome is unknown, so no problem here may ask for a payment.
                raise Refusal(authorization_used(known.call_id, known.state) if may_quote(cover) else cover)
            if isinstance(cover, Problem) and not is_entitled:  # the authorisation is public on the chain
                raise Refusal(authorization_public(known.call_id, known.state))
        self._choose(requirement, authorization)
        self._earlier = known
        self.active.name_payer(authorization.payer)

    # ---- Claim, with a held connection.

    async def claim(self) -> ProxyResponse | None:
        if self._earlier is not None:
            return await self._reopen(self._earlier)
        rail, authorization, body_hash = self._rail, self._authorization, self.body.body_hash
        assert authorization is not None  # verified
        digest = (
            UNKNOWN_DIGEST if body_hash is None else self.request.digest_for(authorization.payer, body_hash)
        )
        claim = build_claim(
            self,
            rail.clock,
            digest=digest,
            authorization=authorization,
            cover=self._cover,
            client_network=rail.networks.hash(authorization.nonce, self.request.client_address),
        )
        outcome = await rail.ledger.claim(claim)
        match outcome:
            case Claimed():
                self.call_id, self.claimed = claim.call_id, outcome
                return None
            case AuthorizationTaken():
                raise Refusal(await rail.idempotency.explain_taken(outcome, authorization.key, digest))
            case KeyTaken(call=earlier):
                recorded = await rail.idempotency.find_keyed_response(
                    self.request, self.body, authorization.payer, earlier
                )
                return require(explain_key_used(recorded) if isinstance(recorded, KeyedCall) else recorded)
            case _:
                raise Refusal(await explain_claim(outcome, claim, self.asset, rail.ledger))

    async def _reopen(self, known: AuthorizedCall) -> ProxyResponse | None:
        rail = self._rail
        outcome = await rail.ledger.reopen(known.call_id, epoch=known.epoch, now_ms=rail.clock.now_ms())
        if not isinstance(outcome, Claimed):
            return require(
                await rail.idempotency.find_overtaken_authorization(self.request, self.body, self.key, known)
            )
        self.call_id, self.claimed, self.transaction = known.call_id, outcome, known.transfer
        return None

    # ---- Capture, after the head: settle a charged call. A transfer that has happened is not settled again.

    @property
    def charged_state(self) -> CallState:
        was_charged = self.claimed is not None and self.claimed.before is CallState.CONSUMED
        is_moved = was_charged or self.transaction is not None
        return CallState.CONSUMED if is_moved else CallState.SETTLING

    async def capture(self, close: Close, collect: CollectResponse) -> CaptureOutcome:
        if close.after is not CallState.SETTLING:
            closed = await self._rail.ledger.close(close)
            self._moved_ms = closed.moved_ms if isinstance(closed, Closed) else None
            return closed
        assert self._authorization is not None  # claimed
        outcome = await self.settle(self._rail, self._authorization, close, collect)
        match outcome:
            case Settled(transfer=transfer, moved_ms=moved_ms):
                self.transaction, self._moved_ms = transfer.tx_hash, moved_ms
                return _SETTLED
            case NotSettled(reason=reason):
                return self._explain_failed(reason)
            case Undecided() | Fenced():
                return outcome
            case _:
                assert_never(outcome)

    def _explain_failed(self, reason: str) -> CaptureFailed:
        authorization = self._authorization
        assert authorization is not None  # claimed
        problem = Problem(
            code=Code.PAYMENT_SETTLEMENT_FAILED,
            detail="The settlement failed and moved no money, so the gateway dropped the response. Correct the cause in `reason`, then pay "
            "again.",
            reason=reason,
            payment_state="released",
        )
        failure = encode_failure(
            authorization.dialect,
            network_chain_id=authorization.chain_id,
            payer=authorization.payer,
            reason=reason,
        )
        return CaptureFailed(problem=problem, headers=[] if failure is None else [failure])

    @property
    def is_ended_by_close(self) -> bool:
        """False: the settlement happens between the close and the end of the body."""
        return False

    def write_receipt(self) -> tuple[bytes, bytes] | None:
        if self.transaction is None or self._authorization is None:
            return None
        return self._rail.receipts.write_receipt(
            self.transaction,
            request=self.request,
            authorization=self._authorization,
            moved_ms=self._moved_ms,
        )


def build_challenge_route(request: ProxyRequest) -> ChallengeRoute:
    """The route that an MPP challenge is bound to."""
    return ChallengeRoute(api_id=request.listing_id, method=request.method, target=request.target.signed)
