"""A call that is paid by a signed authorisation (x402, MPP), from the header to the claim and to the settlement after the head.

    read -> known already, or its idempotency key? respond from the record -> match our own requirement -> may this wallet? -> can it be settled?
      -> chain facts, check -> (connect) -> claim -> (head) -> settle

The presented payment decides nothing but itself: requirements are rebuilt from our own rows. An authorisation that the ledger knows
is never answered with a quote, because its money may have moved. Whether money moves is decided by `payments.settlement`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from tollway.chain.networks import ChainRules
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.gateway.idempotency import (
    AuthorizedRequest,
    ClaimedAuthorization,
    ClientNetworks,
    Idempotency,
    ProveWallet,
    explain_key_used,
    find_token_asset,
)
from tollway.gateway.messages import IncomingCall, ProblemResponse, ProxyResponse, Quote
from tollway.gateway.problems import (
    NOT_COVERED,
    RAIL_WITHDRAWN,
    UNFINAL_LIMIT,
    authorization_public,
    authorization_used,
    check_held_price_max,
    in_debt_to,
    may_quote,
    refuse_call,
)
from tollway.gateway.proxy import ClaimedCall, ClaimRefused
from tollway.gateway.receipts import ReceiptWriter
from tollway.identity.signatures import ReceiptSigner
from tollway.ids import Address, CallId, ChainId, format_id, format_network
from tollway.ledger.ledger import (
    AuthorizationTaken,
    Claim,
    Claimed,
    Close,
    Exhausted,
    InDebt,
    Ledger,
    NonceUsed,
    NotCovered,
    NotFirst,
    PlainEnded,
    StoredResponse,
    StoredResponses,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.records import (
    UNKNOWN_DIGEST,
    Authorization,
    AuthorizedCall,
    CallState,
    Cover,
    Dialect,
    KeyedCall,
    KeyTaken,
    RepeatsOpenCall,
)
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.payments.authorization_check import PresentedAuthorization, match_requirement, parse_presented
from tollway.payments.authorization_onchain import AuthorizationLookup
from tollway.payments.eip3009 import recover_signer
from tollway.payments.mpp import Challenger, ChallengeRoute
from tollway.payments.payment_required import encode_failure
from tollway.payments.pricing import (
    OperationPrice,
    PaymentRequirement,
    current_requirements,
    list_requirements,
)
from tollway.payments.settlement import Settlement, SettlementOrder, SettlementOutcome
from tollway.payments.wire import AuthorizationReason, explain_authorization
from tollway.registry.listing import CatalogEntry, Listing, RevisionCache

StoreResponse = Callable[[CallId, Address, StoredResponse], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedAuthorizedRequest(AuthorizedRequest):
    """The same, and what it is sold for."""

    listing: Listing
    quote: Quote


@dataclass(slots=True, kw_only=True)
class VerifiedAuthorization:
    """`is_recognisable`: the ledger knows the digest of its body. One that streams may not have ended at the head."""

    request: QuotedAuthorizedRequest
    requirement: PaymentRequirement
    authorization: Authorization
    is_recognisable: bool = False


class AuthorizationSettler:
    """One per process; safe to use from many tasks at once."""

    def __init__(self, *, ledger: Ledger, store_response: StoreResponse, settlement: Settlement) -> None:
        self._ledger = ledger
        self._store_response = store_response
        self._settlement = settlement

    async def settle(self, verified: VerifiedAuthorization, close: Close) -> SettlementOutcome:
        request, authorization = verified.request, verified.authorization
        body_hash = request.body.final_hash
        digest = None if body_hash is None else request.call.digest_for(authorization.payer, body_hash)
        verified.is_recognisable = digest is not None
        order = SettlementOrder(
            authorization=authorization,
            asset=verified.requirement.asset,
            close=close,
            listing_id=request.listing.id,
            digest=digest,
        )
        return await self._settlement.settle(order)

    async def leave_orphaned(
        self, verified: VerifiedAuthorization, call_id: CallId, epoch: int, answer: StoredResponse | None
    ) -> None:
        """An answer is kept for whoever shows the same again; where the ledger does not know what the same would be, it
        would be kept for nobody, and the money is better the payer's credit."""
        if answer is not None and verified.is_recognisable:
            await self._store_response(call_id, verified.authorization.payer, answer)
        await self._ledger.mark_orphaned(call_id, epoch=epoch)


class AuthorizationCapture:
    """See `Settling`."""

    __slots__ = ("_call_id", "_epoch", "_settler", "_verified")

    def __init__(
        self, settler: AuthorizationSettler, verified: VerifiedAuthorization, call_id: CallId, epoch: int
    ) -> None:
        self._settler = settler
        self._verified = verified
        self._call_id = call_id
        self._epoch = epoch

    async def settle(self, close: Close) -> SettlementOutcome:
        return await self._settler.settle(self._verified, close)

    async def leave_orphaned(self, answer: StoredResponse | None) -> None:
        await self._settler.leave_orphaned(self._verified, self._call_id, self._epoch, answer)

    def refuse(self, reason: str) -> ProblemResponse:
        authorization = self._verified.authorization
        problem = Problem(
            code=Code.PAYMENT_SETTLEMENT_FAILED,
            detail="The payment surely did not move any money, so the answer was dropped.",
            reason=reason,
            payment_state="released",
        )
        failure = encode_failure(
            authorization.dialect,
            network_chain_id=authorization.chain_id,
            payer=authorization.payer,
            reason=reason,
        )
        headers = [] if failure is None else [failure]
        return ProblemResponse(problem=problem, quote=self._verified.request.quote, headers=headers)


PATH_LENGTH_MAX = 2_048
QUOTES_MAX = 4_096

CheckAccess = Callable[[Address, Price, Asset], Awaitable[Problem | None]]
"""Whether this wallet may make this call now at that price: blocked, too dear, too many failures, too fast."""


class AuthorizationPayment:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        stored_responses: StoredResponses,
        settlement: Settlement,
        challenger: Challenger | None,
        rules: Mapping[ChainId, ChainRules],
        limits: Limits,
        public_url: str,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
        networks: ClientNetworks,
        prove_wallet: ProveWallet,
        is_x402: bool = True,
        receipt_signer: ReceiptSigner | None = None,
    ) -> None:
        """`challenger` None: MPP is off. `is_x402` False: x402 is. `receipt_signer` None: receipts are not signed."""
        self._ledger = ledger
        self._receipts = ReceiptWriter(public_url=public_url, receipt_signer=receipt_signer, now_ms=now_ms)
        self.idempotency = Idempotency(
            ledger=ledger,
            stored_responses=stored_responses,
            rules=rules,
            limits=limits,
            receipts=self._receipts,
            public_url=public_url,
            now_ms=now_ms,
            networks=networks,
            prove_wallet=prove_wallet,
        )
        self._networks = networks
        self._settler = AuthorizationSettler(
            ledger=ledger, store_response=self.idempotency.store_response, settlement=settlement
        )
        self._settlement = settlement
        self._challenger = challenger
        self._is_x402 = is_x402
        self._rules = rules
        self._limits = limits
        self._now_ms = now_ms
        self._entropy = entropy
        self._quotes: RevisionCache[tuple[PaymentRequirement, ...]] = RevisionCache(QUOTES_MAX)

    def find_requirements(
        self, operation_price: OperationPrice, listing: Listing
    ) -> tuple[PaymentRequirement, ...]:
        """What a 402 offers: the current price, on every rail that can be settled now."""
        quoted = self._quotes.find(listing, operation_price.price.text)
        if quoted is None:
            quoted = current_requirements(operation_price, self._rules, timeout_s=listing.timeout_s)
            self._quotes.put(listing, operation_price.price.text, quoted)
        return tuple([one for one in quoted if self._settlement.is_offered(one.asset, one.units, listing.id)])

    def read(self, call: IncomingCall) -> PresentedAuthorization | Problem | None:
        """What the call shows on these rails; None when it shows nothing there."""
        presented = parse_presented(
            call.headers,
            challenger=self._challenger,
            route=build_challenge_route(call),
            now_s=self._now_ms() // 1000,
            limits=self._limits,
        )
        if (
            isinstance(presented, PresentedAuthorization)
            and not self._is_x402
            and presented.dialect is not Dialect.MPP
        ):
            return explain_authorization(AuthorizationReason.SCHEME, "x402 is off at this gateway.")
        return presented

    async def find_known(self, presented: PresentedAuthorization) -> ClaimedAuthorization | None:
        """The call that holds this authorisation, or whose money it moved. Raises `StorageUnavailable`."""
        return await self.idempotency.find_known(presented)

    def check_unread(
        self,
        call: IncomingCall,
        presented: PresentedAuthorization,
        quote: Quote,
        operation_prices: Sequence[OperationPrice],
        *,
        key: str | None,
    ) -> ProblemResponse | None:
        """Declines an authorisation that the ledger does not know and that meets none of our requirements: before the body is
        read, which decides nothing about that. None where its wallet's key may open the record first."""
        if key is not None and self._opens_keys(presented, quote.entry):
            return None
        matched = match_requirement(presented, self._requirements(quote.entry.listing, operation_prices))
        return refuse_call(matched, quote, call) if isinstance(matched, Problem) else None

    async def verify(
        self,
        request: QuotedAuthorizedRequest,
        operation_prices: Sequence[OperationPrice],
        check_access: CheckAccess,
        lookup: AuthorizationLookup,
    ) -> "ProxyResponse | ProblemResponse | PendingClaim":
        """Everything up to the claim. `lookup`: of this call, open until its outcome is known. Raises `ChainUnavailable` and
        `StorageUnavailable`: nothing was taken."""
        recorded = await self.find_repeat_outcome(request, operation_prices, lookup)
        if recorded is not None:
            return recorded
        matched = match_requirement(request.presented, self._requirements(request.listing, operation_prices))
        if isinstance(matched, Problem):
            return refuse_call(matched, request.quote, request.call)
        requirement, authorization = matched
        cover = await self._check_payer(request, requirement, authorization, check_access, lookup)
        if isinstance(cover, Problem):
            return await self._refuse(cover, request, authorization)
        if request.key is not None and not self._opens_keys(request.presented, request.quote.entry):
            # A contract's wallet is known to have signed only now.
            recorded = await self._find_keyed(request, request.key, operation_prices, lookup)
            if recorded is not None:
                return recorded
        verified = VerifiedAuthorization(
            request=request, requirement=requirement, authorization=authorization
        )
        return PendingClaim(payer=authorization.payer, claim=partial(self._claim, verified, cover))

    def open_lookup(self, call: IncomingCall) -> AuthorizationLookup:
        return self._settlement.open_lookup(call.client_address)

    async def find_repeat_outcome(
        self,
        request: QuotedAuthorizedRequest,
        operation_prices: Sequence[OperationPrice],
        lookup: AuthorizationLookup,
    ) -> "ProxyResponse | ProblemResponse | PendingClaim | None":
        """What the same authorisation, or its idempotency key, brings. None: neither has named a call yet, as far as
        wallets with a key go."""
        if request.known is not None:
            answer = await self.idempotency.find_response(request)
            return answer or await self._verify_repeat(
                request, request.known.call, operation_prices, lookup, is_entitled=request.is_entitled
            )
        if request.key is None or not self._opens_keys(request.presented, request.quote.entry):
            return None
        return await self._find_keyed(request, request.key, operation_prices, lookup)

    def _opens_keys(self, presented: PresentedAuthorization, entry: CatalogEntry) -> bool:
        """Whether it opens its wallet's keys before it is known to pay: signed by the wallet's key, and for this
        listing, if only by terms of before. One for somebody else is in the hands of whoever was paid with it."""
        is_for_here = any(
            version.pay_to == presented.payee and presented.chain_id in version.networks
            for version in entry.versions
        )
        return is_for_here and self.idempotency.is_signed_by_payer(presented)

    async def _find_keyed(
        self,
        request: QuotedAuthorizedRequest,
        key: str,
        operation_prices: Sequence[OperationPrice],
        lookup: AuthorizationLookup,
    ) -> "ProxyResponse | ProblemResponse | PendingClaim | None":
        """Before anything that could ask for money: the call may be paid. One that runs again is paid by the
        authorisation that was claimed for it; the one that is shown now stays unused."""
        recorded = await self.idempotency.find_response_by_key(
            request.call, request.body, (request.presented.payer,), key
        )
        if not isinstance(recorded, KeyedCall):
            return recorded
        known = (
            None
            if recorded.authorization is None
            else await self._ledger.find_authorized_call(recorded.authorization)
        )
        if known is None or (known.call_id, known.authorization.dialect) != (
            recorded.call_id,
            request.presented.dialect,  # in which the answer would speak
        ):
            return explain_key_used(recorded)
        return await self._verify_repeat(request, known, operation_prices, lookup, is_entitled=True)

    def _requirements(
        self, listing: Listing, operation_prices: Sequence[OperationPrice]
    ) -> tuple[PaymentRequirement, ...]:
        return list_requirements(
            operation_prices,
            self._rules,
            timeout_s=listing.timeout_s,
            now_ms=self._now_ms(),
            limits=self._limits,
        )

    async def _check_payer(
        self,
        request: QuotedAuthorizedRequest,
        requirement: PaymentRequirement,
        authorization: Authorization,
        check_access: CheckAccess,
        lookup: AuthorizationLookup,
    ) -> Cover | Problem:
        """A wallet whose key signed is looked at before any chain is asked; a contract only once it is known to have
        signed: nobody may use up a wallet's rate in its name."""
        domain = requirement.asset.domain
        is_signed = domain is not None and recover_signer(authorization, domain) == authorization.payer
        check = partial(check_access, authorization.payer, requirement.price, requirement.asset)
        problem = await check() if is_signed else None
        if problem is not None:
            return problem
        cover = await self._check(request, requirement, authorization, lookup)
        problem = None if is_signed or isinstance(cover, Problem) else await check()
        return problem or cover

    async def _refuse(
        self, problem: Problem, request: QuotedAuthorizedRequest, authorization: Authorization
    ) -> ProblemResponse:
        """While the chain was asked, the same authorisation may have been claimed, or have paid; then nobody is asked
        to pay again."""
        if problem.payment_state == "released":  # nothing was taken that could be given back
            problem = replace(problem, payment_state="none")
        refusal = refuse_call(problem, request.quote, request.call)
        if refusal.quote is None:
            return refusal
        known = await self.idempotency.find_known(request.presented)
        return refusal if known is None else self.idempotency.explain_known(known)

    async def _check(
        self,
        request: QuotedAuthorizedRequest,
        requirement: PaymentRequirement,
        authorization: Authorization,
        lookup: AuthorizationLookup,
    ) -> Cover | Problem:
        chain_id = requirement.asset.chain_id
        if not self._settlement.is_offered(requirement.asset, requirement.units, request.listing.id):
            if not self._settlement.is_reachable(chain_id):  # nobody is asked to pay otherwise for an outage
                raise ChainUnavailable(f"nothing is known of {format_network(chain_id)} at present")
            return RAIL_WITHDRAWN
        return await self._settlement.check(
            authorization,
            requirement,
            timeout_s=request.listing.timeout_s,
            lookup=lookup,
            listing_id=request.listing.id,
        )

    # ---- The claim, once a connection is held.

    async def _claim(self, verified: VerifiedAuthorization, cover: Cover) -> ClaimedCall:
        """Claims the authorisation for this call. Raises ClaimRefused; then nothing was taken."""
        claim = self._build_claim(verified, cover)
        outcome = await self._ledger.claim(claim)
        match outcome:
            case Claimed():
                return self._build_claimed_call(claim.call_id, outcome, verified)
            case AuthorizationTaken(call_id=call_id, state=state):
                raise ClaimRefused(await self._explain_taken(verified, call_id, state, claim.digest))
            case KeyTaken(call=earlier):
                request = verified.request
                recorded = await self.idempotency.find_keyed_response(
                    request.call, request.body, verified.authorization.payer, earlier
                )
                raise ClaimRefused(
                    explain_key_used(recorded) if isinstance(recorded, KeyedCall) else recorded
                )
            case NotCovered():
                raise ClaimRefused(refuse_call(NOT_COVERED, verified.request.quote, verified.request.call))
            case UnfinalLimit():
                raise ClaimRefused(ProblemResponse(problem=replace(UNFINAL_LIMIT, payment_state="none")))
            case InDebt(units=units):
                authorization, asset = verified.authorization, verified.requirement.asset
                raise ClaimRefused(ProblemResponse(problem=in_debt_to(authorization.payee, asset, units)))
            case Exhausted() | NonceUsed() | PlainEnded() | Unspendable() | NotFirst() | RepeatsOpenCall():
                raise AssertionError("no outcome of a claim on an authorisation")
            case _:
                assert_never(outcome)

    async def _explain_taken(
        self, verified: VerifiedAuthorization, call_id: CallId, state: CallState, digest: bytes
    ) -> ProblemResponse:
        """Somebody was faster with the same authorisation; mostly the same request, sent twice at once."""
        known = await self._ledger.find_authorized_call(verified.authorization.key)
        if known is not None and known.digest == digest != UNKNOWN_DIGEST:
            return self.idempotency.explain_running(known)
        return ProblemResponse(problem=authorization_used(call_id, state))

    def _build_claim(self, verified: VerifiedAuthorization, cover: Cover) -> Claim:
        request, requirement, authorization = verified.request, verified.requirement, verified.authorization
        call, listing, body_hash = request.call, request.listing, request.body.body_hash
        return Claim(
            call_id=CallId(format_id("call", now_ms=self._now_ms(), entropy=self._entropy(10))),
            listing_id=listing.id,
            listing_name=listing.name,
            provider=listing.provider,
            payer=authorization.payer,
            method=call.method,
            path=call.target.rest[:PATH_LENGTH_MAX],
            digest=call.digest_for(authorization.payer, body_hash) if body_hash else UNKNOWN_DIGEST,
            price=requirement.price.text,
            price_units=requirement.units,
            currency=requirement.asset.symbol,
            payment_id=None,
            chain_id=authorization.chain_id,
            asset=requirement.asset.key,
            decimals=requirement.asset.decimals,
            tx_hash=None,
            pay_to=authorization.payee,
            nonce=None,
            ends_plain=False,
            is_plain=False,
            idempotency_key=request.key,
            request_id=call.request_id,
            created_ms=call.received_ms,
            authorization=authorization,
            cover=cover,
            client_network=self._networks.hash(authorization.nonce, call.client_address),
        )

    def _build_claimed_call(
        self, call_id: CallId, claimed: Claimed, verified: VerifiedAuthorization
    ) -> ClaimedCall:
        requirement, authorization = verified.requirement, verified.authorization
        store_response = None
        if verified.request.key is not None:
            store_response = partial(self.idempotency.store_response, call_id, authorization.payer)
        return ClaimedCall(
            call_id=call_id,
            claimed=claimed,
            price=requirement.price,
            currency=requirement.asset.symbol,
            charge_on=requirement.charge_on,
            asset=requirement.asset,
            units=requirement.units,
            payer=authorization.payer,
            transaction=None,
            write_receipt=partial(
                self._receipts.write_receipt, call=verified.request.call, authorization=authorization
            ),
            capture=AuthorizationCapture(self._settler, verified, call_id, claimed.epoch),
            store_response=store_response,
        )

    # ---- The same proof again.

    async def _verify_repeat(
        self,
        request: QuotedAuthorizedRequest,
        known: AuthorizedCall,
        operation_prices: Sequence[OperationPrice],
        lookup: AuthorizationLookup,
        *,
        is_entitled: bool,
    ) -> "ProblemResponse | PendingClaim":
        """The same request runs under the claim that it has, at the price that it had. `is_entitled`: it shows more than
        the authorisation."""
        authorization = known.authorization
        asset = find_token_asset(self._rules, authorization)
        if asset is None:
            return ProblemResponse(problem=authorization_used(known.call_id, known.state))
        requirement = PaymentRequirement(
            asset=asset,
            price=Price.parse(known.price),
            units=known.price_units,
            pay_to=authorization.payee,
            charge_on=operation_prices[0].terms.charge_on,
            max_timeout_s=request.listing.timeout_s,
        )
        price_problem = check_held_price_max(
            request.call, asset, call_id=known.call_id, price=known.price, state=known.state
        )
        if price_problem is not None:
            return ProblemResponse(problem=price_problem)
        if known.state is CallState.UNKNOWN:  # its money has not moved yet, and must still be able to
            cover = await self._check(request, requirement, authorization, lookup)
            # Somebody else has landed it: that is paid, as the settlement will find out.
            if isinstance(cover, Problem) and cover.code is not Code.PAYMENT_ALREADY_USED:
                return self._explain_held(cover, known)
            if isinstance(cover, Problem) and not is_entitled:  # the chain shows it to everybody
                return ProblemResponse(problem=authorization_public(known.call_id, known.state))
        verified = VerifiedAuthorization(
            request=request, requirement=requirement, authorization=authorization
        )
        return PendingClaim(payer=authorization.payer, claim=partial(self._reopen, verified, known))

    def _explain_held(self, problem: Problem, known: AuthorizedCall) -> ProblemResponse:
        """An earlier run was sent, and what it did is unknown: never a demand to pay again."""
        if may_quote(problem):
            problem = authorization_used(known.call_id, known.state)
        return ProblemResponse(problem=problem)

    async def _reopen(self, verified: VerifiedAuthorization, known: AuthorizedCall) -> ClaimedCall:
        outcome = await self._ledger.reopen(known.call_id, epoch=known.epoch, now_ms=self._now_ms())
        if not isinstance(outcome, Claimed):
            raise ClaimRefused(await self._explain_overtaken(verified.request, known))
        claimed_call = self._build_claimed_call(known.call_id, outcome, verified)
        return replace(claimed_call, transaction=known.transfer)

    async def _explain_overtaken(
        self, request: QuotedAuthorizedRequest, known: AuthorizedCall
    ) -> ProxyResponse | ProblemResponse:
        """Somebody else was faster to run the call again, or it may not."""
        if request.key is not None:
            payer = known.authorization.payer
            recorded = await self.idempotency.find_response_by_key(
                request.call, request.body, (payer,), request.key
            )
            if isinstance(recorded, ProxyResponse | ProblemResponse):
                return recorded
        now = await self._ledger.find_authorized_call(known.authorization.key)
        if now is not None and now.state in (CallState.FORWARDING, CallState.SETTLING):
            return self.idempotency.explain_running(now)
        return ProblemResponse(problem=authorization_used(known.call_id, known.state))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingClaim:
    """A call that may be forwarded: `claim` claims it, or reopens it, once a connection is held."""

    payer: Address
    claim: Callable[[], Awaitable[ClaimedCall]]


def build_challenge_route(call: IncomingCall) -> ChallengeRoute:
    """What an MPP challenge is bound to."""
    return ChallengeRoute(api_id=call.listing_id, method=call.method, target=call.target.signed)
