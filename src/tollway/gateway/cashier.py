"""The cashier: takes a call that is paid by a signed authorisation (x402, MPP), from the header to the claim.

    read -> known already, or its idempotency key? answer from the record -> match our own terms -> may this wallet? -> can it be settled?
      -> chain facts, verdict -> (dial) -> claim

What was shown decides nothing but itself: the terms are rebuilt from our own rows. An authorisation that is known to
the books is never answered with terms, because its money may have moved.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from tollway.chain.rules import ChainRules
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.gateway.exchange import Answer, Declined, IncomingCall, Offer
from tollway.gateway.receipt_writer import Receipts
from tollway.gateway.refusals import UNFINAL_LIMIT, check_held_price_max, decline, in_debt_to, may_ask
from tollway.gateway.replays import (
    ClientNetworks,
    Known,
    ProveWallet,
    Replays,
    find_token_asset,
    say_key_used,
)
from tollway.gateway.sale import PendingSettlement, Purchase, Sale, Settler
from tollway.gateway.signed_refusals import (
    NOT_COVERED,
    RAIL_WITHDRAWN,
    authorization_public,
    authorization_used,
)
from tollway.gateway.trip import ClaimRefused, Ticket
from tollway.identifiers import Address, CallId, ChainId, format_id, format_network
from tollway.identity.notary import Notary
from tollway.ledger.authorization import Authorization, AuthorizedCall, Cover, Dialect
from tollway.ledger.book import (
    AuthorizationTaken,
    Book,
    Claim,
    Claimed,
    Exhausted,
    InDebt,
    NonceUsed,
    NotCovered,
    NotFirst,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.call import CallState
from tollway.ledger.kept_answers import Answers
from tollway.ledger.keyed_calls import KeyedCall, KeyTaken
from tollway.ledger.open_calls import CallOpen
from tollway.ledger.settled import UNRECOGNISABLE
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.payments.authorization_reasons import AuthorizationReason, explain_authorization
from tollway.payments.eip3009 import recover_signer
from tollway.payments.junk_meter import AuthorizationLookup
from tollway.payments.mpp import Challenger, Route
from tollway.payments.presented import Presented, match_requirement, parse_presented
from tollway.payments.requirement import Requirement, current_requirements, list_requirements
from tollway.payments.settlement import Settlement
from tollway.payments.terms import Tariff
from tollway.registry.listing import Listing, Shelf
from tollway.registry.revision_memory import RevisionMemory

PATH_LENGTH_MAX = 2_048
QUOTES_KEPT = 4_096

CheckCustomer = Callable[[Address, Price, Asset], Awaitable[Problem | None]]
"""Whether this wallet may make this call now at that price: blocked, too dear, too many failures, too fast."""


class Cashier:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        book: Book,
        answers: Answers,
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
        notary: Notary | None = None,
    ) -> None:
        """`challenger` None: MPP is off. `is_x402` False: x402 is. `notary` None: receipts are not signed."""
        self._book = book
        self._receipts = Receipts(public_url=public_url, notary=notary, now_ms=now_ms)
        self.replays = Replays(
            book=book,
            answers=answers,
            rules=rules,
            limits=limits,
            receipts=self._receipts,
            public_url=public_url,
            now_ms=now_ms,
            networks=networks,
            prove_wallet=prove_wallet,
        )
        self._networks = networks
        self._settler = Settler(book=book, keep=self.replays.keep, settlement=settlement)
        self._settlement = settlement
        self._challenger = challenger
        self._is_x402 = is_x402
        self._rules = rules
        self._limits = limits
        self._now_ms = now_ms
        self._entropy = entropy
        self._quotes: RevisionMemory[tuple[Requirement, ...]] = RevisionMemory(QUOTES_KEPT)

    def quote(self, tariff: Tariff, listing: Listing) -> tuple[Requirement, ...]:
        """What a 402 offers: the current price, on every rail that can be settled now."""
        quoted = self._quotes.find(listing, tariff.price.text)
        if quoted is None:
            quoted = current_requirements(tariff, self._rules, timeout_s=listing.timeout_s)
            self._quotes.keep(listing, tariff.price.text, quoted)
        return tuple([one for one in quoted if self._settlement.is_offered(one.asset, one.units, listing.id)])

    def read(self, call: IncomingCall) -> Presented | Problem | None:
        """What the call shows on these rails; None when it shows nothing there."""
        presented = parse_presented(
            call.headers,
            challenger=self._challenger,
            route=find_route(call),
            now_s=self._now_ms() // 1000,
            limits=self._limits,
        )
        if isinstance(presented, Presented) and not self._is_x402 and presented.dialect is not Dialect.MPP:
            return explain_authorization(AuthorizationReason.SCHEME, "x402 is off at this gateway.")
        return presented

    async def find_known(self, presented: Presented) -> Known | None:
        """The call that holds this authorisation, or whose money it moved. Raises `StorageUnavailable`."""
        return await self.replays.find_known(presented)

    def check_unread(
        self,
        call: IncomingCall,
        presented: Presented,
        offer: Offer,
        tariffs: Sequence[Tariff],
        *,
        key: str | None,
    ) -> Declined | None:
        """Declines an authorisation that the books do not know and that meets none of our requirements: before the body is
        read, which decides nothing about that. None where its wallet's key may open the record first."""
        if key is not None and self._is_opener(presented, offer.shelf):
            return None
        matched = match_requirement(presented, self._requirements(offer.shelf.listing, tariffs))
        return decline(matched, offer, call) if isinstance(matched, Problem) else None

    async def admit(
        self,
        sale: Sale,
        tariffs: Sequence[Tariff],
        check_customer: CheckCustomer,
        lookup: AuthorizationLookup,
    ) -> "Answer | Declined | Admission":
        """Everything up to the claim. `lookup`: of this call, open until its outcome is known. Raises `ChainUnavailable` and
        `StorageUnavailable`: nothing was taken."""
        told = await self.find_repeat_outcome(sale, tariffs, lookup)
        if told is not None:
            return told
        matched = match_requirement(sale.presented, self._requirements(sale.listing, tariffs))
        if isinstance(matched, Problem):
            return decline(matched, sale.offer, sale.call)
        requirement, authorization = matched
        cover = await self._check_buyer(sale, requirement, authorization, check_customer, lookup)
        if isinstance(cover, Problem):
            return await self._refuse(cover, sale, authorization)
        if sale.key is not None and not self._is_opener(sale.presented, sale.offer.shelf):
            # A contract's wallet is known to have signed only now.
            told = await self._find_keyed(sale, sale.key, tariffs, lookup)
            if told is not None:
                return told
        purchase = Purchase(sale=sale, requirement=requirement, authorization=authorization)
        return Admission(payer=authorization.payer, take=partial(self._take, purchase, cover))

    def open_lookup(self, call: IncomingCall) -> AuthorizationLookup:
        return self._settlement.open_lookup(call.client_address)

    async def find_repeat_outcome(
        self, sale: Sale, tariffs: Sequence[Tariff], lookup: AuthorizationLookup
    ) -> "Answer | Declined | Admission | None":
        """What the same authorisation, or its idempotency key, brings. None: neither has named a call yet, as far as
        wallets with a key go."""
        if sale.known is not None:
            answer = await self.replays.answer(sale)
            return answer or await self._admit_again(
                sale, sale.known.call, tariffs, lookup, is_entitled=sale.is_entitled
            )
        if sale.key is None or not self._is_opener(sale.presented, sale.offer.shelf):
            return None
        return await self._find_keyed(sale, sale.key, tariffs, lookup)

    def _is_opener(self, presented: Presented, shelf: Shelf) -> bool:
        """Whether it opens its wallet's keys before it is known to pay: signed by the wallet's key, and for this
        listing, if only by terms of before. One for somebody else is in the hands of whoever was paid with it."""
        is_for_here = any(
            version.pay_to == presented.payee and presented.chain_id in version.networks
            for version in shelf.versions
        )
        return is_for_here and self.replays.is_by_payer(presented)

    async def _find_keyed(
        self, sale: Sale, key: str, tariffs: Sequence[Tariff], lookup: AuthorizationLookup
    ) -> "Answer | Declined | Admission | None":
        """Before anything that could ask for money: the call may be paid. One that runs again is paid by the
        authorisation that was claimed for it; the one that is shown now stays unused."""
        told = await self.replays.find_response_by_key(sale.call, sale.cargo, (sale.presented.payer,), key)
        if not isinstance(told, KeyedCall):
            return told
        known = None if told.authorization is None else await self._book.find_authorized(told.authorization)
        if known is None or (known.call_id, known.authorization.dialect) != (
            told.call_id,
            sale.presented.dialect,  # in which the answer would speak
        ):
            return say_key_used(told)
        return await self._admit_again(sale, known, tariffs, lookup, is_entitled=True)

    def _requirements(self, listing: Listing, tariffs: Sequence[Tariff]) -> tuple[Requirement, ...]:
        return list_requirements(
            tariffs,
            self._rules,
            timeout_s=listing.timeout_s,
            now_ms=self._now_ms(),
            limits=self._limits,
        )

    async def _check_buyer(
        self,
        sale: Sale,
        requirement: Requirement,
        authorization: Authorization,
        check_customer: CheckCustomer,
        lookup: AuthorizationLookup,
    ) -> Cover | Problem:
        """A wallet whose key signed is looked at before any chain is asked; a contract only once it is known to have
        signed: nobody may use up a wallet's rate in its name."""
        domain = requirement.asset.domain
        is_signed = domain is not None and recover_signer(authorization, domain) == authorization.payer
        check = partial(check_customer, authorization.payer, requirement.price, requirement.asset)
        problem = await check() if is_signed else None
        if problem is not None:
            return problem
        cover = await self._check(sale, requirement, authorization, lookup)
        problem = None if is_signed or isinstance(cover, Problem) else await check()
        return problem or cover

    async def _refuse(self, problem: Problem, sale: Sale, authorization: Authorization) -> Declined:
        """While the chain was asked, the same authorisation may have been claimed, or have paid; then nobody is asked
        to pay again."""
        if problem.payment_state == "released":  # nothing was taken that could be given back
            problem = replace(problem, payment_state="none")
        declined = decline(problem, sale.offer, sale.call)
        if declined.offer is None:
            return declined
        known = await self.replays.find_known(sale.presented)
        return declined if known is None else self.replays.say_known(known)

    async def _check(
        self, sale: Sale, requirement: Requirement, authorization: Authorization, lookup: AuthorizationLookup
    ) -> Cover | Problem:
        chain_id = requirement.asset.chain_id
        if not self._settlement.is_offered(requirement.asset, requirement.units, sale.listing.id):
            if not self._settlement.is_in_sight(chain_id):  # nobody is asked to pay otherwise for an outage
                raise ChainUnavailable(f"nothing is known of {format_network(chain_id)} at present")
            return RAIL_WITHDRAWN
        return await self._settlement.check(
            authorization,
            requirement,
            timeout_s=sale.listing.timeout_s,
            lookup=lookup,
            listing_id=sale.listing.id,
        )

    # ---- The claim, once a connection is held.

    async def _take(self, purchase: Purchase, cover: Cover) -> Ticket:
        """Claims the authorisation for this call. Raises ClaimRefused; then nothing was taken."""
        claim = self._claim_of(purchase, cover)
        outcome = await self._book.claim(claim)
        match outcome:
            case Claimed():
                return self._ticket(claim.call_id, outcome, purchase)
            case AuthorizationTaken(call_id=call_id, state=state):
                raise ClaimRefused(await self._say_taken(purchase, call_id, state, claim.digest))
            case KeyTaken(call=earlier):
                sale = purchase.sale
                told = await self.replays.answer_keyed(
                    sale.call, sale.cargo, purchase.authorization.payer, earlier
                )
                raise ClaimRefused(say_key_used(told) if isinstance(told, KeyedCall) else told)
            case NotCovered():
                raise ClaimRefused(decline(NOT_COVERED, purchase.sale.offer, purchase.sale.call))
            case UnfinalLimit():
                raise ClaimRefused(Declined(problem=replace(UNFINAL_LIMIT, payment_state="none")))
            case InDebt(units=units):
                authorization, asset = purchase.authorization, purchase.requirement.asset
                raise ClaimRefused(Declined(problem=in_debt_to(authorization.payee, asset, units)))
            case Exhausted() | NonceUsed() | PlainEnded() | Unspendable() | NotFirst() | CallOpen():
                raise AssertionError("no outcome of a claim on an authorisation")
            case _:
                assert_never(outcome)

    async def _say_taken(
        self, purchase: Purchase, call_id: CallId, state: CallState, digest: bytes
    ) -> Declined:
        """Somebody was faster with the same authorisation; mostly the same request, sent twice at once."""
        known = await self._book.find_authorized(purchase.authorization.key)
        if known is not None and known.digest == digest != UNRECOGNISABLE:
            return self.replays.say_running(known)
        return Declined(problem=authorization_used(call_id, state))

    def _claim_of(self, purchase: Purchase, cover: Cover) -> Claim:
        sale, requirement, authorization = purchase.sale, purchase.requirement, purchase.authorization
        call, listing, body_hash = sale.call, sale.listing, sale.cargo.body_hash
        return Claim(
            call_id=CallId(format_id("call", now_ms=self._now_ms(), entropy=self._entropy(10))),
            listing_id=listing.id,
            listing_name=listing.name,
            provider=listing.provider,
            payer=authorization.payer,
            method=call.method,
            path=call.target.rest[:PATH_LENGTH_MAX],
            digest=call.digest_for(authorization.payer, body_hash) if body_hash else UNRECOGNISABLE,
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
            idempotency_key=sale.key,
            request_id=call.request_id,
            created_ms=call.received_ms,
            authorization=authorization,
            cover=cover,
            client_network=self._networks.hash(authorization.nonce, call.client_address),
        )

    def _ticket(self, call_id: CallId, claimed: Claimed, purchase: Purchase) -> Ticket:
        requirement, authorization = purchase.requirement, purchase.authorization
        keep = None
        if purchase.sale.key is not None:
            keep = partial(self.replays.keep, call_id, authorization.payer)
        return Ticket(
            call_id=call_id,
            claimed=claimed,
            price=requirement.price,
            currency=requirement.asset.symbol,
            charge_on=requirement.charge_on,
            asset=requirement.asset,
            units=requirement.units,
            payer=authorization.payer,
            transaction=None,
            write_receipt=partial(self._receipts.write, call=purchase.sale.call, authorization=authorization),
            settling=PendingSettlement(self._settler, purchase, call_id, claimed.epoch),
            keep=keep,
        )

    # ---- The same proof again.

    async def _admit_again(
        self,
        sale: Sale,
        known: AuthorizedCall,
        tariffs: Sequence[Tariff],
        lookup: AuthorizationLookup,
        *,
        is_entitled: bool,
    ) -> "Declined | Admission":
        """The same request runs under the claim that it has, at the price that it had. `is_entitled`: it shows more than
        the authorisation."""
        authorization = known.authorization
        asset = find_token_asset(self._rules, authorization)
        if asset is None:
            return Declined(problem=authorization_used(known.call_id, known.state))
        requirement = Requirement(
            asset=asset,
            price=Price.parse(known.price),
            units=known.price_units,
            pay_to=authorization.payee,
            charge_on=tariffs[0].terms.charge_on,
            max_timeout_s=sale.listing.timeout_s,
        )
        too_dear = check_held_price_max(
            sale.call, asset, call_id=known.call_id, price=known.price, state=known.state
        )
        if too_dear is not None:
            return Declined(problem=too_dear)
        if known.state is CallState.UNKNOWN:  # its money has not moved yet, and must still be able to
            cover = await self._check(sale, requirement, authorization, lookup)
            # Somebody else has landed it: that is paid, as the settlement will find out.
            if isinstance(cover, Problem) and cover.code is not Code.PAYMENT_ALREADY_USED:
                return self._hold(cover, known)
            if isinstance(cover, Problem) and not is_entitled:  # the chain shows it to everybody
                return Declined(problem=authorization_public(known.call_id, known.state))
        purchase = Purchase(sale=sale, requirement=requirement, authorization=authorization)
        return Admission(payer=authorization.payer, take=partial(self._take_again, purchase, known))

    def _hold(self, problem: Problem, known: AuthorizedCall) -> Declined:
        """An earlier run was sent, and what it did is unknown: never a demand to pay again."""
        if may_ask(problem):
            problem = authorization_used(known.call_id, known.state)
        return Declined(problem=problem)

    async def _take_again(self, purchase: Purchase, known: AuthorizedCall) -> Ticket:
        outcome = await self._book.reopen(known.call_id, epoch=known.epoch, now_ms=self._now_ms())
        if not isinstance(outcome, Claimed):
            raise ClaimRefused(await self._say_overtaken(purchase.sale, known))
        ticket = self._ticket(known.call_id, outcome, purchase)
        return replace(ticket, transaction=known.transfer)

    async def _say_overtaken(self, sale: Sale, known: AuthorizedCall) -> Answer | Declined:
        """Somebody else was faster to run the call again, or it may not."""
        if sale.key is not None:
            payer = known.authorization.payer
            told = await self.replays.find_response_by_key(sale.call, sale.cargo, (payer,), sale.key)
            if isinstance(told, Answer | Declined):
                return told
        now = await self._book.find_authorized(known.authorization.key)
        if now is not None and now.state in (CallState.FORWARDING, CallState.SETTLING):
            return self.replays.say_running(now)
        return Declined(problem=authorization_used(known.call_id, known.state))


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A call that may be carried: `take` claims it, or reopens it, once a connection is held."""

    payer: Address
    take: Callable[[], Awaitable[Ticket]]


def find_route(call: IncomingCall) -> Route:
    """What an MPP challenge is bound to."""
    return Route(api_id=call.listing_id, method=call.method, target=call.target.signed)
