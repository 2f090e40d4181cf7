"""The teller: takes a call that is paid by a transaction, from the proof to the claim.

    read -> its form -> its key opens no record? till (facts, verdict) -> its body -> its key? answer from the record -> may this
      wallet? -> price -> (dial) -> claim

A key is asked for before money, a budget or a chain is: the call may be paid. A call that it has named and that may run
again is sold at the price that it had, whatever its listing asks by now. Nothing here sends anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tollway.errors import Code, Problem
from tollway.gateway.cargo import EMPTY_BODY_HASH, Cargo, check_size, load_hashed, load_plain, load_promised
from tollway.gateway.cashier import Admission, CheckCustomer
from tollway.gateway.counter import Counter, Order, PaidRequest
from tollway.gateway.exchange import Answer, Declined, IncomingCall, Offer
from tollway.gateway.refusals import (
    BOUND_REQUIRED,
    OTHER_CURRENCY,
    check_idempotency_key,
    check_rails,
    decline,
    find_idempotency_key,
    may_ask,
)
from tollway.gateway.replays import Replays, is_coming, say_key_used
from tollway.identifiers import Address
from tollway.ledger.keyed_calls import KeyedCall
from tollway.limits import Limits
from tollway.money import Price
from tollway.payments.payers import Request, recover_wallets
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.terms import Tariff
from tollway.payments.till import Tender, Till
from tollway.registry.listing import Listing, Shelf

CLOCK_SLACK_S = 5  # callers' clocks run a little ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """What is known of a proof before the body is read. `openers`: the wallets whose idempotency keys it opens; `tenders`:
    the payments that it may spend. None: not looked for yet."""

    openers: tuple[Address, ...] | None = None
    tenders: tuple[Tender, ...] | None = None


class Teller:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        till: Till,
        counter: Counter,
        replays: Replays,
        limits: Limits,
        origin: str,
        is_bound_required: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """`origin`: that of the public URL, which a bound signature names."""
        self._till = till
        self._counter = counter
        self._replays = replays
        self._limits = limits
        self._origin = origin
        self._is_bound_required = is_bound_required
        self._now_ms = now_ms

    # ---- What is shown.

    def read(self, call: IncomingCall) -> Proof | Problem | None:
        """What the call shows on this rail; None when it shows nothing there."""
        proof = parse_proof(call.headers)
        if isinstance(proof, Problem):
            return proof
        return check_rails(call, has_proof=proof is not None) or proof

    def check_form(self, proof: Proof, listing: Listing) -> Problem | None:
        """The plain form where a bound one is asked for; a bound one outside its time."""
        if proof.binding is None:
            if listing.signature == "bound" or self._is_bound_required:
                return BOUND_REQUIRED
            return None
        now_s = self._now_ms() // 1000
        if proof.binding.valid_until < now_s:
            return Problem(
                code=Code.SIGNATURE_EXPIRED,
                detail="validUntil of X-Signature-Params has passed; sign the same call again.",
                payment_state="none",
            )
        if proof.binding.valid_until > now_s + self._limits.bound_validity_s + CLOCK_SLACK_S:
            return Problem(
                code=Code.SIGNATURE_EXPIRED,
                detail=f"validUntil lies more than {self._limits.bound_validity_s} seconds ahead.",
                reason="valid_until_too_far",
                payment_state="none",
            )
        return None

    async def prove(self, request: PaidRequest) -> Proved | Declined:
        """Everything about the proof that the body does not decide. Declined: the proof does not hold, whatever the body is.
        A signature over a body without its promised hash is judged by `admit`, and a key of its wallet opens the record
        first. Raises `ChainUnavailable` and `StorageUnavailable`: nothing was taken."""
        if _needs_body(request):
            return Proved()
        openers: tuple[Address, ...] = ()
        if find_idempotency_key(request.call) is not None:
            openers = await self._find_openers(request)
        if openers:
            return Proved(openers=openers)
        asked = self._request(request.call, request.proof, None)
        tenders = await self._till.tender(request.proof, request.offer.shelf, asked)
        if isinstance(tenders, Problem):
            return decline(tenders, request.offer, request.call)
        return Proved(openers=openers, tenders=tenders)

    async def load(self, call: IncomingCall, proof: Proof) -> Cargo | Problem:
        if proof.binding is None and find_idempotency_key(call) is not None:
            return await load_hashed(call.body, is_whole=True, limits=self._limits)
        if proof.binding is None:
            return await load_plain(call.body, limits=self._limits)
        return await load_promised(call.body, proof.binding.body_hash, limits=self._limits)

    async def read_repeat(self, call: IncomingCall, shelf: Shelf) -> Order | Problem | None:
        """A call that may repeat one, where it is not asked to pay. None: it does not, and nothing of its body is read.
        A problem: its body is spent."""
        proof = None if find_idempotency_key(call) is None else self.read(call)
        if (
            not isinstance(proof, Proof)
            or check_size(call.body, self._limits) is not None
            or check_idempotency_key(call) is not None
            or self.check_form(proof, shelf.listing) is not None
            or self._is_too_long(call, proof)
        ):
            return None
        offer = Offer(shelf=shelf, price=shelf.listing.price, expires_ms=call.received_ms)  # asks for nothing
        request = PaidRequest(call=call, listing=shelf.listing, proof=proof, offer=offer)
        if not _needs_body(request) and not await self._find_openers(request):
            return None
        cargo = await self.load(call, proof)
        if isinstance(cargo, Problem):
            return cargo
        return Order(call=call, listing=shelf.listing, proof=proof, offer=offer, cargo=cargo)

    # ---- What it gets.

    async def recall(self, call: IncomingCall, shelf: Shelf) -> Answer | Declined | None:
        """Of a call that its listing does not take any more: the answer that was paid for, or that it is coming."""
        order = await self.read_repeat(call, shelf)
        if not isinstance(order, Order):
            return None
        told, _ = await self._find_own(order)
        return told if isinstance(told, Answer | Declined) and is_coming(told) else None

    async def find_repeat_outcome(
        self, order: Order, tariffs: Sequence[Tariff], check_customer: CheckCustomer
    ) -> Answer | Declined | Admission | None:
        """What its idempotency key brings. None: that has named no call yet, as far as wallets with a key go."""
        told, _ = await self._find_own(order)
        if isinstance(told, KeyedCall):
            return await self._admit_again(order, told, tariffs, check_customer)
        return told

    async def admit(
        self, order: Order, proved: Proved, tariffs: Sequence[Tariff], check_customer: CheckCustomer
    ) -> Answer | Declined | Admission:
        """Everything up to the claim. Raises `ChainUnavailable` and `StorageUnavailable`: nothing was taken."""
        told, openers = await self._find_own(order, proved.openers)
        if told is None:
            proved = Proved(openers=openers, tenders=proved.tenders)
            return await self._admit_new(order, proved, tariffs, check_customer)
        if isinstance(told, KeyedCall):
            return await self._admit_again(order, told, tariffs, check_customer)
        return told

    async def _admit_new(
        self,
        order: Order,
        proved: Proved,
        tariffs: Sequence[Tariff],
        check_customer: CheckCustomer,
    ) -> Answer | Declined | Admission:
        """`proved.openers`: the wallets whose keys were looked for already."""
        tenders: tuple[Tender, ...] | Problem | None = proved.tenders
        if tenders is None:
            tenders = await self._find_tenders(order)
        if isinstance(tenders, Problem):
            return decline(tenders, order.offer, order.call)
        payer = tenders[0].payment.payer
        if payer not in (
            proved.openers or ()
        ):  # a contract's wallet, or a new payment: whose it is turns out only now
            told, _ = await self._find_keyed(order, (payer,))
            if isinstance(told, KeyedCall):
                return await self._admit_again(order, told, tariffs, check_customer)
            if told is not None:
                return told
        purchases = self._counter.price(tenders, tariffs)
        if not purchases:
            return decline(OTHER_CURRENCY, order.offer, order.call)
        spent = await self._counter.check_spent(order, purchases)
        if spent is not None:
            return spent
        held = await self._counter.find_held(order, purchases)
        if isinstance(held, Declined):
            return held
        due = purchases[0].due
        price = due.price if held is None else Price.parse(held.price)
        problem = await check_customer(payer, price, due.asset)
        if problem is not None:
            return decline(problem, order.offer, order.call)
        return Admission(payer=payer, take=partial(self._counter.take, order, purchases))

    async def _admit_again(
        self, order: Order, earlier: KeyedCall, tariffs: Sequence[Tariff], check_customer: CheckCustomer
    ) -> Declined | Admission:
        """Under the claim that it has. Nobody is asked to pay for it: it holds a price."""
        tenders = await self._find_tenders(order)
        if isinstance(tenders, Problem):
            return say_key_used(earlier) if may_ask(tenders) else Declined(problem=tenders)
        tender = next((one for one in tenders if one.payment.id == earlier.payment_id), None)
        if tender is None:  # another payment of that wallet is for another call
            return say_key_used(earlier)
        purchase = self._counter.price_again(earlier, tender, tariffs)
        problem = await check_customer(tender.payment.payer, purchase.due.price, purchase.due.asset)
        if problem is not None:
            held = say_key_used(earlier).problem
            problem = replace(problem, call_id=held.call_id, payment_state=held.payment_state)
            return Declined(problem=problem)
        take = partial(self._counter.take_again, order, purchase, earlier)
        return Admission(payer=tender.payment.payer, take=take)

    # ---- Whose key it is.

    async def _find_own(
        self, order: Order, openers: tuple[Address, ...] | None = None
    ) -> tuple[Answer | Declined | KeyedCall | None, tuple[Address, ...]]:
        """What the wallets get whose keys made the signature, and which of them open the record. Asks no chain. `openers`:
        where they are known already."""
        key = find_idempotency_key(order.call)
        if key is None:
            return None, ()
        if openers is None:
            openers = await self._find_openers(order)
        return await self._replays.find_response_by_key(order.call, order.cargo, openers, key), openers

    async def _find_openers(self, request: PaidRequest) -> tuple[Address, ...]:
        """The wallets whose keys made the signature and whose idempotency keys it opens. Asks no chain."""
        named, shelf = request.proof.chain_id, request.offer.shelf
        chain_ids = (
            (named,)
            if named is not None
            else dict.fromkeys(chain_id for version in shelf.versions for chain_id in version.networks)
        )
        cargo = request.cargo if isinstance(request, Order) else None
        asked = self._request(request.call, request.proof, cargo)
        wallets = recover_wallets(request.proof, asked, shelf.listing.id, chain_ids)
        return await self._till.find_openers(request.proof, shelf, wallets)

    async def _find_keyed(
        self, order: Order, signers: Sequence[Address]
    ) -> tuple[Answer | Declined | KeyedCall | None, tuple[Address, ...]]:
        key = find_idempotency_key(order.call)
        if key is None:
            return None, ()
        openers = await self._till.find_openers(order.proof, order.offer.shelf, signers)
        return await self._replays.find_response_by_key(order.call, order.cargo, openers, key), openers

    async def _find_tenders(self, order: Order) -> tuple[Tender, ...] | Problem:
        asked = self._request(order.call, order.proof, order.cargo)
        return await self._till.tender(order.proof, order.offer.shelf, asked)

    def _request(self, call: IncomingCall, proof: Proof, cargo: Cargo | None) -> Request:
        """`cargo` None: the body is not read, and the signature covers none, or its promised hash."""
        body_hash = None if proof.binding is None else proof.binding.body_hash
        if cargo is not None:
            body_hash = cargo.body_hash
        return Request(
            gateway=self._origin,
            method=call.method,
            target=call.target.signed.encode(),
            body_hash=body_hash or EMPTY_BODY_HASH,  # a plain signature covers no body
            client_address=call.client_address,
        )

    def _is_too_long(self, call: IncomingCall, proof: Proof) -> bool:
        """By its own word, to be read first. No such call was ever granted under a key."""
        is_promised = proof.binding is not None and proof.binding.body_hash is not None
        length = call.body.length
        return not is_promised and length is not None and length > self._limits.bound_body_bytes_max


def _needs_body(request: PaidRequest) -> bool:
    """Whether the signature covers a body whose hash is not promised: its signer is known only once that is read."""
    binding = request.proof.binding
    return binding is not None and binding.body_hash is None and request.call.body.is_present
