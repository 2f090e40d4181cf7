"""The counter: prices a call with the payments that were shown, and claims it in the books once a connection is held.

It takes a price or says why not. It sends nothing, and asks no chain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from tollway.errors import Code, Problem
from tollway.gateway.cargo import Cargo
from tollway.gateway.exchange import Declined, IncomingCall, Offer
from tollway.gateway.receipt_writer import write_plain_receipt
from tollway.gateway.refusals import (
    BOUND_REQUIRED,
    GONE,
    HELD,
    OTHER_CURRENCY,
    UNFINAL_LIMIT,
    already_used,
    check_held_price_max,
    check_price_max,
    decline,
    find_idempotency_key,
    in_debt_to,
    insufficient,
    nonce_used,
)
from tollway.gateway.replays import Replays, say_key_used
from tollway.gateway.trip import ClaimRefused, Ticket
from tollway.identifiers import Address, CallId, format_id
from tollway.ledger.book import (
    AuthorizationTaken,
    Book,
    Claim,
    Claimed,
    ClaimOutcome,
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
from tollway.ledger.keyed_calls import KeyedCall, KeyTaken
from tollway.ledger.open_calls import CallOpen, OpenCall
from tollway.ledger.settled import SAFE_METHODS
from tollway.limits import Limits
from tollway.money import Price
from tollway.payments.proof import Proof
from tollway.payments.terms import Due, Tariff, find_due
from tollway.payments.till import Tender, Till
from tollway.registry.listing import Listing

PATH_LENGTH_MAX = 2_048
CALL_IDS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidRequest:
    """One call that shows a transaction. Its body is not read."""

    call: IncomingCall
    listing: Listing
    proof: Proof
    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(PaidRequest):
    """The same with its body, ready to be claimed."""

    cargo: Cargo


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """A call priced with one of the payments that were shown. `is_first_price`: only while it has bought nothing."""

    tender: Tender
    due: Due
    is_first_price: bool = False


class Counter:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        book: Book,
        till: Till,
        replays: Replays,
        limits: Limits,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._book = book
        self._till = till
        self._replays = replays
        self._limits = limits
        self._now_ms = now_ms
        self._entropy = entropy

    def price(self, tenders: Sequence[Tender], tariffs: Sequence[Tariff]) -> list[Purchase]:
        """What the call costs with each payment, by the terms rule; those that can give it first.

        A payment that has bought nothing yet may have a lower price for its first call. Many callers may show it at
        once, so the books grant that price to one of them, and the price of now stands behind it for the others.
        """
        purchases: list[Purchase] = []
        for tender in tenders:
            now = self._find_due(tariffs, tender, first_block_s=None)
            if tender.is_first:
                first = self._find_due(tariffs, tender, first_block_s=tender.payment.block_time)
                if first is not None and first != now:
                    purchases.append(Purchase(tender=tender, due=first, is_first_price=True))
            if now is not None:
                purchases.append(Purchase(tender=tender, due=now))
        return sorted(purchases, key=lambda one: one.tender.payment.rest_units < one.due.units)

    def _find_due(
        self, tariffs: Sequence[Tariff], tender: Tender, *, first_block_s: int | None
    ) -> Due | None:
        return find_due(
            tariffs,
            tender.asset,
            now_ms=self._now_ms(),
            limits=self._limits,
            first_block_s=first_block_s,
        )

    def price_again(self, earlier: KeyedCall, tender: Tender, tariffs: Sequence[Tariff]) -> Purchase:
        """A call that runs again costs what it did, whatever is asked by now."""
        due = Due(
            asset=tender.asset,
            price=Price.parse(earlier.price),
            units=earlier.price_units,
            charge_on=tariffs[0].terms.charge_on,
        )
        return Purchase(tender=tender, due=due)

    async def check_spent(self, order: Order, purchases: Sequence[Purchase]) -> Declined | None:
        """Refuses what payments without any rest surely cannot buy, before their upstream is dialled for nothing."""
        if any(purchase.tender.payment.rest_units > 0 for purchase in purchases):
            return None
        refused: list[tuple[Purchase, ClaimOutcome]] = []
        for purchase in purchases:
            claim = self._claim_of(order, purchase)
            outcome = await self._book.find_spent(claim)
            if outcome is None:
                return None
            refused.append((purchase, outcome))
        return await self._explain(order, *max(refused, key=_weigh))

    async def find_held(self, order: Order, purchases: Sequence[Purchase]) -> OpenCall | Declined | None:
        """The call that this request without a key runs again, where its price decides whether `Tollway-Max-Price` allows
        the request: it costs what it did. Reads the books only for a request whose current price is above that maximum."""
        if find_idempotency_key(order.call) is not None:
            return None
        for purchase in purchases:
            due = purchase.due
            too_dear = check_price_max(order.call, due.price, due.asset)
            if too_dear is None or too_dear.code is not Code.PRICE_ABOVE_MAX:
                return None
            held = await self._find_open(self._claim_of(order, purchase))
            if held is not None:
                return self._check_held(order, purchase, held) or held
        return None

    def _check_held(self, order: Order, purchase: Purchase, held: OpenCall | KeyedCall) -> Declined | None:
        problem = check_held_price_max(
            order.call, purchase.due.asset, call_id=held.call_id, price=held.price, state=held.state
        )
        return None if problem is None else Declined(problem=problem)

    async def take(self, order: Order, purchases: Sequence[Purchase]) -> Ticket:
        """Takes the price from the first payment that can give it. Raises ClaimRefused; then nothing was taken."""
        refused: list[tuple[Purchase, ClaimOutcome]] = []
        dear: Problem | None = None
        for purchase in purchases:
            claim = self._claim_of(order, purchase)
            too_dear = check_price_max(order.call, purchase.due.price, purchase.due.asset)
            if too_dear is not None:  # a held call may cost less; or a first price was not to be had any more
                ticket = None
                if claim.idempotency_key is None:
                    ticket = await self._run_again(order, claim, purchase)
                if ticket is not None:
                    return ticket
                dear = too_dear
                continue
            payment = purchase.tender.payment
            outcome = await self._book.claim(claim)
            if isinstance(outcome, CallOpen):
                ticket = await self._run_open(order, outcome.call, purchase, is_plain=claim.is_plain)
                if ticket is not None:
                    return ticket
                # Somebody runs it already, or it will not run any more: this is another call.
                outcome = await self._book.claim(replace(claim, is_anew=True))
            if isinstance(outcome, Claimed):
                self._till.note_spent(payment)
                is_keyed = claim.idempotency_key is not None
                return self._ticket(claim.call_id, outcome, purchase, is_keyed=is_keyed)
            self._till.forget(order.proof.tx_hash)
            if isinstance(outcome, KeyTaken):
                return await self._run_keyed(order, purchases, outcome.call)
            if isinstance(outcome, Exhausted | NonceUsed):
                ticket = await self._run_again(order, claim, purchase)
                if ticket is not None:
                    return ticket
            refused.append((purchase, outcome))
            if not isinstance(outcome, Exhausted | NotFirst | InDebt):
                break
        if dear is not None and all(isinstance(outcome, NotFirst) for _, outcome in refused):
            raise ClaimRefused(Declined(problem=dear))
        raise ClaimRefused(await self._explain(order, *max(refused, key=_weigh)))

    async def _run_again(self, order: Order, claim: Claim, purchase: Purchase) -> Ticket | None:
        """The same request as one without an outcome runs under the claim that it has; only a safe method may."""
        open_call = await self._find_open(claim)
        if open_call is None:
            return None
        return await self._run_open(order, open_call, purchase, is_plain=claim.is_plain)

    async def _find_open(self, claim: Claim) -> OpenCall | None:
        if claim.method not in SAFE_METHODS or claim.payment_id is None:
            return None
        open_call = await self._book.find_repeat(claim.payment_id, claim.digest)
        return None if open_call is None or open_call.state is CallState.FORWARDING else open_call

    async def _run_open(
        self, order: Order, open_call: OpenCall, purchase: Purchase, *, is_plain: bool
    ) -> Ticket | None:
        """Raises ClaimRefused where the call holds a price above the request's maximum."""
        too_dear = self._check_held(order, purchase, open_call)
        if too_dear is not None:
            raise ClaimRefused(too_dear)
        return await self._reopen(open_call, purchase, is_plain=is_plain, is_keyed=False)

    async def _run_keyed(self, order: Order, purchases: Sequence[Purchase], earlier: KeyedCall) -> Ticket:
        """The call that the key has named runs under the claim that it has, where it may; else what it says. Raises
        ClaimRefused."""
        payer = purchases[0].tender.payment.payer
        if not await self._till.find_openers(order.proof, order.offer.shelf, (payer,)):
            raise ClaimRefused(Declined(problem=BOUND_REQUIRED))
        told = await self._replays.answer_keyed(order.call, order.cargo, payer, earlier)
        if not isinstance(told, KeyedCall):
            raise ClaimRefused(told)
        shown = next((one for one in purchases if one.tender.payment.id == told.payment_id), None)
        if shown is None:  # another payment of that wallet is for another call
            raise ClaimRefused(say_key_used(told))
        return await self.take_again(order, shown, told)

    async def take_again(self, order: Order, purchase: Purchase, earlier: KeyedCall) -> Ticket:
        """Runs the call that a key has named under the claim that it has. Raises ClaimRefused."""
        is_plain = order.proof.binding is None
        ticket = await self._reopen(earlier, purchase, is_plain=is_plain, is_keyed=True)
        if ticket is None:
            payer, key = purchase.tender.payment.payer, find_idempotency_key(order.call)
            raise ClaimRefused(
                await self._replays.answer_overtaken(order.call, order.cargo, payer, key, earlier)
            )
        return ticket

    async def _reopen(
        self, open_call: OpenCall | KeyedCall, purchase: Purchase, *, is_plain: bool, is_keyed: bool
    ) -> Ticket | None:
        """At the price that it had."""
        outcome = await self._book.reopen(
            open_call.call_id, epoch=open_call.epoch, now_ms=self._now_ms(), is_plain=is_plain
        )
        if not isinstance(outcome, Claimed):
            return None
        ticket = self._ticket(open_call.call_id, outcome, purchase, is_keyed=is_keyed)
        units = open_call.price_units
        receipt = partial(
            write_plain_receipt, payer=purchase.tender.payment.payer, asset=purchase.tender.asset
        )
        return replace(
            ticket,
            price=Price.parse(open_call.price),
            units=units,
            write_receipt=partial(receipt, units=units),
        )

    def _ticket(self, call_id: CallId, claimed: Claimed, purchase: Purchase, *, is_keyed: bool) -> Ticket:
        payment, asset, units = purchase.tender.payment, purchase.tender.asset, purchase.due.units
        return Ticket(
            call_id=call_id,
            claimed=claimed,
            price=purchase.due.price,
            currency=purchase.tender.asset.symbol,
            charge_on=purchase.due.charge_on,
            asset=purchase.tender.asset,
            units=purchase.due.units,
            payer=payment.payer,
            transaction=payment.tx_hash,
            write_receipt=partial(write_plain_receipt, payer=payment.payer, asset=asset, units=units),
            keep=partial(self._replays.keep, call_id, payment.payer) if is_keyed else None,
        )

    def _claim_of(self, order: Order, purchase: Purchase) -> Claim:
        call, listing, payment = order.call, order.listing, purchase.tender.payment
        binding = order.proof.binding
        return Claim(
            call_id=self._new_call_id(),
            listing_id=listing.id,
            listing_name=listing.name,
            provider=listing.provider,
            payer=payment.payer,
            method=call.method,
            path=call.target.rest[:PATH_LENGTH_MAX],
            digest=self._digest_of(order, payment.payer),
            price=purchase.due.price.text,
            price_units=purchase.due.units,
            currency=purchase.tender.asset.symbol,
            payment_id=payment.id,
            chain_id=payment.chain_id,
            asset=payment.asset,
            decimals=purchase.tender.asset.decimals,
            tx_hash=payment.tx_hash,
            pay_to=payment.payee,
            nonce=None if binding is None else binding.nonce,
            ends_plain=binding is not None,
            is_plain=binding is None,
            is_first_price=purchase.is_first_price,
            idempotency_key=find_idempotency_key(call),
            request_id=call.request_id,
            created_ms=call.received_ms,
        )

    async def take_free(self, call: IncomingCall, listing: Listing, tariff: Tariff) -> Ticket:
        """A call that takes nothing is recorded all the same."""
        claim = self._free_claim(call, listing, tariff)
        outcome = await self._book.claim(claim)
        assert isinstance(outcome, Claimed)  # it takes nothing that could run out
        return Ticket(
            call_id=claim.call_id,
            claimed=outcome,
            price=tariff.price,
            currency=tariff.terms.currency,
            charge_on=tariff.terms.charge_on,
            asset=None,
            units=0,
            payer=None,
            transaction=None,
        )

    def _free_claim(self, call: IncomingCall, listing: Listing, tariff: Tariff) -> Claim:
        return Claim(
            call_id=self._new_call_id(),
            listing_id=listing.id,
            listing_name=listing.name,
            provider=listing.provider,
            payer=None,
            method=call.method,
            path=call.target.rest[:PATH_LENGTH_MAX],
            digest=self._entropy(32),
            price=tariff.price.text,
            price_units=0,
            currency=tariff.terms.currency,
            payment_id=None,
            chain_id=None,
            asset=None,
            decimals=0,
            tx_hash=None,
            pay_to=None,
            nonce=None,
            ends_plain=False,
            is_plain=False,
            idempotency_key=find_idempotency_key(call),
            request_id=call.request_id,
            created_ms=call.received_ms,
        )

    def _digest_of(self, order: Order, payer: Address) -> bytes:
        """A streamed body that nobody promised is never the same as another."""
        return order.call.digest_for(payer, order.cargo.body_hash or self._entropy(32))

    def _new_call_id(self) -> CallId:
        return CallId(format_id("call", now_ms=self._now_ms(), entropy=self._entropy(10)))

    async def _explain(self, order: Order, purchase: Purchase, outcome: ClaimOutcome) -> Declined:
        """Why the books did not grant a claim."""
        payment, asset, due = purchase.tender.payment, purchase.tender.asset, purchase.due
        match outcome:
            case Exhausted(rest_units=rest, held_units=0) if rest > 0:
                return Declined(problem=insufficient(payment, asset, due, rest_units=rest), offer=order.offer)
            case Exhausted(held_units=held):
                calls = await self._book.spending_calls(payment.id, limit=CALL_IDS_SHOWN)
                return Declined(problem=already_used(calls, is_unsettled=held > 0))
            case NonceUsed(call_id=call_id, state=state):
                return Declined(problem=nonce_used(call_id, state))
            case PlainEnded():
                return Declined(problem=BOUND_REQUIRED)
            case Unspendable(is_held=is_held):
                return Declined(problem=HELD if is_held else GONE)
            case InDebt(units=units):
                return Declined(problem=in_debt_to(payment.payee, asset, units))
            case UnfinalLimit():
                return Declined(problem=UNFINAL_LIMIT)
            case NotFirst():
                return decline(OTHER_CURRENCY, order.offer, order.call)
            case Claimed() | AuthorizationTaken() | NotCovered() | KeyTaken() | CallOpen():
                raise AssertionError("no refusal of a claim on a payment")
            case _:
                assert_never(outcome)


def _weigh(refused: tuple[Purchase, ClaimOutcome]) -> tuple[int, bool, int]:
    """Which of several refusals is told: what only the payer can mend, then the payment that comes nearest. One that
    is held goes before one that is short, because only the latter may ask for money."""
    match refused[1]:
        case NotFirst():
            return (0, False, 0)
        case Exhausted(rest_units=rest, held_units=held):
            return (1, held > 0, rest)
        case _:
            return (2, False, 0)
