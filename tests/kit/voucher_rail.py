"""A rail that no product has: vouchers over counters in memory, with a maximum that the end of the body lowers.

It proves the seam of `gateway.rail`: it is added to a gateway, and the pipeline and the proxy do not change. Its code is what a
metered rail needs: a claim takes the maximum, `capture` keeps or gives it back by the head, and `finish` lowers it to what the body
costs, once, under the epoch of the call.

The counter holds the money, and the ledger holds the call. The call's row names the payer and the maximum, and takes nothing: its rail
is `none`, and its `price_units` are 0, because a row that costs units without a payment behind it is a debt. In a product both are written in
one commit; here a process that dies loses its counters.
"""

import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.kit.gateway import SECRET, USDC, InProcessGateway, open_gateway
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.access import ActiveCall
from tollway.gateway.body import ForwardBody, load_hashed
from tollway.gateway.idempotency import Idempotency, Repeat, explain_key_used
from tollway.gateway.messages import ProxyRequest, ProxyResponse
from tollway.gateway.problems import (
    OTHER_CURRENCY,
    already_used,
    check_held_price_max,
    find_idempotency_key,
)
from tollway.gateway.rail import (
    CallPayment,
    CaptureOutcome,
    ClockAndEntropy,
    CollectResponse,
    PaymentRail,
    build_claim,
    explain_claim,
    require,
)
from tollway.gateway.routing import Route
from tollway.ids import Address, CallId
from tollway.ledger.ledger import Claimed, Close, Closed, Fenced, Finish, Ledger
from tollway.ledger.records import AuthorizationKey, CallState, KeyedCall, KeyTaken
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.payments.pricing import find_lowest_price
from tollway.registry.listing import CatalogEntry, Listing

VOUCHER_HEADER = b"x-voucher"
_FORM = re.compile(rb"(0x[0-9a-f]{40});([1-9][0-9]{0,17});([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Voucher:
    """The permission to take at most `units_max` from the counter of `wallet`, for each call that shows it."""

    wallet: Address
    units_max: int
    mac: bytes


def sign_voucher(wallet: Address, units_max: int) -> bytes:
    return hmac.digest(SECRET, f"{wallet.hex()};{units_max}".encode(), "sha256")


def format_voucher(wallet: Address, units_max: int) -> str:
    """The value of `X-Voucher`."""
    return f"0x{wallet.hex()};{units_max};{sign_voucher(wallet, units_max).hex()}"


def parse_voucher(value: bytes) -> Voucher | None:
    """None: malformed."""
    match = _FORM.fullmatch(value)
    if match is None:
        return None
    return Voucher(
        wallet=Address(bytes.fromhex(match[1][2:].decode())),
        units_max=int(match[2]),
        mac=bytes.fromhex(match[3].decode()),
    )


# ---------------------------------------------------------------------- the counters


@dataclass(slots=True, kw_only=True)
class Hold:
    """What one call has taken. `epoch`: of the run that may move it. `is_final`: the end of the body has decided `units`."""

    wallet: Address
    units_min: int
    units: int
    epoch: int
    is_charged: bool = False
    is_final: bool = False


async def _commit_at_once() -> None:
    """A counter in memory waits for no disk."""


class VoucherCounter:
    """A balance for each wallet, and what calls hold of it. Units move between the two, and are never lost."""

    def __init__(self, *, commit: Callable[[], Awaitable[None]] = _commit_at_once) -> None:
        """`commit`: what a final price waits for."""
        self._commit = commit
        self._balances: dict[Address, int] = {}
        self._holds: dict[CallId, Hold] = {}

    def fund(self, wallet: Address, units: int) -> None:
        self._balances[wallet] = self._balances.get(wallet, 0) + units

    def find_balance(self, wallet: Address) -> int | None:
        """None: the wallet has no counter."""
        return self._balances.get(wallet)

    def find_hold(self, call_id: CallId) -> Hold | None:
        """None: the call was never claimed here, or is released."""
        return self._holds.get(call_id)

    def list_open(self, wallet: Address) -> tuple[CallId, ...]:
        """The calls that may still give back a part of what they hold."""
        return tuple(
            call_id for call_id, hold in self._holds.items() if hold.wallet == wallet and not hold.is_final
        )

    def sum_holds(self, wallet: Address) -> int:
        """What the calls of a wallet hold, those that are charged included."""
        return sum(hold.units for hold in self._holds.values() if hold.wallet == wallet)

    def take(self, call_id: CallId, wallet: Address, *, units_min: int, units: int) -> bool:
        """Between any number of calls, the sum taken never exceeds the balance. False: nothing changed."""
        if self._balances.get(wallet, 0) < units:
            return False
        self._balances[wallet] -= units
        self._holds[call_id] = Hold(wallet=wallet, units_min=units_min, units=units, epoch=1)
        return True

    def give_back(self, call_id: CallId, *, epoch: int) -> None:
        hold = self._find(call_id, epoch)
        if hold is not None:
            del self._holds[call_id]
            self._balances[hold.wallet] += hold.units

    def charge(self, call_id: CallId, *, epoch: int) -> None:
        hold = self._find(call_id, epoch)
        if hold is not None:
            hold.is_charged = True

    def reopen(self, call_id: CallId, *, epoch: int) -> None:
        """The call runs again: from here on its earlier run moves nothing."""
        self._holds[call_id].epoch = epoch

    async def lower(self, call_id: CallId, *, epoch: int, units: int) -> None:
        """Fixes the price of a charged call within its limits, once, and gives the rest back."""
        await self._commit()
        hold = self._find(call_id, epoch)
        if hold is None or not hold.is_charged or hold.is_final:
            return
        actual_units = min(max(units, hold.units_min), hold.units)
        self._balances[hold.wallet] += hold.units - actual_units
        hold.units, hold.is_final = actual_units, True

    def _find(self, call_id: CallId, epoch: int) -> Hold | None:
        hold = self._holds.get(call_id)
        return None if hold is None or hold.epoch != epoch else hold


# ---------------------------------------------------------------------- the rail


class VoucherRail:
    """Vouchers over the counters of one gateway, in one asset. A byte of the response costs one unit."""

    is_settled_here = False

    def __init__(
        self,
        *,
        ledger: Ledger,
        idempotency: Idempotency,
        counter: VoucherCounter,
        asset: Asset,
        limits: Limits,
        clock: ClockAndEntropy,
    ) -> None:
        self.ledger = ledger
        self.idempotency = idempotency
        self.counter = counter
        self.asset = asset
        self.limits = limits
        self.clock = clock

    def read(self, request: ProxyRequest) -> Voucher | Problem | None:
        values = [value for name, value in request.headers if name == VOUCHER_HEADER]
        if not values:
            return None
        return MALFORMED if len(values) > 1 else parse_voucher(values[0]) or MALFORMED

    def name_signature(self, proof: object) -> str:
        return "voucher"

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> "VoucherPayment":
        assert isinstance(proof, Voucher)  # as `read` has parsed it
        return VoucherPayment(self, request, route, proof, repeat, active)

    def find_deposit(self, proof: Voucher) -> AuthorizationKey | None:
        return None

    def find_key(self, request: ProxyRequest, proof: Voucher) -> str | None:
        return find_idempotency_key(request)

    async def load_body(self, request: ProxyRequest, proof: Voucher, listing: Listing) -> ForwardBody:
        """A body under a key is read first, of any length, so that its repeat is recognised."""
        is_whole = find_idempotency_key(request) is not None
        return await load_hashed(request.body, is_whole=is_whole, limits=self.limits)

    async def find_key_wallets(
        self, request: ProxyRequest, entry: CatalogEntry, proof: Voucher, body: ForwardBody | None
    ) -> tuple[Address, ...]:
        return (proof.wallet,) if self.is_known(proof) else ()

    def is_known(self, voucher: Voucher) -> bool:
        """Made by the kit, for a wallet that has a counter."""
        is_signed = hmac.compare_digest(voucher.mac, sign_voucher(voucher.wallet, voucher.units_max))
        return is_signed and self.counter.find_balance(voucher.wallet) is not None

    def check_balance(self, voucher: Voucher) -> Problem | None:
        """Why the counter does not give the maximum now. It asks for money only where no call can give anything back."""
        if (self.counter.find_balance(voucher.wallet) or 0) >= voucher.units_max:
            return None
        open_calls = self.counter.list_open(voucher.wallet)
        return already_used(open_calls, is_unsettled=True) if open_calls else SPENT


class VoucherPayment(CallPayment):
    """One call that shows a voucher. Its price, until the body has ended, is the voucher's maximum."""

    __slots__ = ("_earlier", "_rail", "_units_min", "voucher")

    def __init__(
        self,
        rail: VoucherRail,
        request: ProxyRequest,
        route: Route,
        voucher: Voucher,
        repeat: Repeat | None,
        active: ActiveCall,
    ) -> None:
        super().__init__(rail.ledger, request, route, repeat, active, key=rail.find_key(request, voucher))
        self.voucher = voucher
        self._rail = rail
        self._units_min = 0
        self._earlier: KeyedCall | None = None

    async def check(self) -> None:
        if not self._rail.is_known(self.voucher):
            raise Refusal(UNKNOWN_VOUCHER)

    async def verify(self) -> None:
        earlier = None if self.repeat is None else self.repeat.call
        self.asset, self.currency = self._rail.asset, self._rail.asset.symbol
        if isinstance(earlier, KeyedCall):
            self._verify_repeat(earlier)
            return
        self._choose_price()
        problem = self._rail.check_balance(self.voucher) or await self.active.check(
            self.voucher.wallet, self.price, self._rail.asset
        )
        if problem is not None:
            raise Refusal(problem)

    def _choose_price(self) -> None:
        """The listing's price is the minimum, and must be within the voucher's maximum, which is claimed."""
        asset, voucher = self._rail.asset, self.voucher
        lowest = find_lowest_price(
            self.route.operation_prices,
            asset,
            now_ms=self._rail.clock.now_ms(),
            limits=self._rail.limits,
            first_call_block_s=None,
        )
        if lowest is None:
            raise Refusal(OTHER_CURRENCY)
        self._units_min = lowest.price.units_in(asset)
        if self._units_min > voucher.units_max:
            raise Refusal(TOO_SMALL)
        self.payer, self.charge_on = voucher.wallet, lowest.terms.charge_on
        self.price, self.units = Price.parse(asset.format_units(voucher.units_max)), voucher.units_max

    def _verify_repeat(self, earlier: KeyedCall) -> None:
        """Under the claim that it has; one that another rail has paid does not run again here."""
        hold = self._rail.counter.find_hold(earlier.call_id)
        if hold is None:
            raise Refusal(explain_key_used(earlier))
        problem = check_held_price_max(
            self.request,
            self._rail.asset,
            call_id=earlier.call_id,
            price=earlier.price,
            state=earlier.state,
        )
        if problem is not None:
            raise Refusal(problem)
        self.payer = self.active.payer = self.voucher.wallet
        self.price, self.units = Price.parse(earlier.price), hold.units
        self._earlier = earlier

    async def claim(self) -> ProxyResponse | None:
        """The counter gives the maximum first, so that no call is opened that it cannot pay; then the ledger opens the call."""
        if self._earlier is not None:
            return await self._reopen(self._earlier)
        rail, wallet, body_hash = self._rail, self.voucher.wallet, self.body.body_hash
        digest = None if body_hash is None else self.request.digest_for(wallet, body_hash)
        claim = replace(build_claim(self, rail.clock, digest=digest), price_units=0)
        if not rail.counter.take(claim.call_id, wallet, units_min=self._units_min, units=self.units):
            raise Refusal(rail.check_balance(self.voucher) or SPENT)
        try:
            outcome = await rail.ledger.claim(claim)
        except BaseException:  # nothing is sent: the recovery releases what the ledger holds
            rail.counter.give_back(claim.call_id, epoch=1)
            raise
        if isinstance(outcome, Claimed):
            self.call_id, self.claimed = claim.call_id, outcome
            return None
        rail.counter.give_back(claim.call_id, epoch=1)
        if not isinstance(outcome, KeyTaken):
            raise Refusal(await explain_claim(outcome, claim, self.asset, rail.ledger))
        recorded = await rail.idempotency.find_keyed_response(self.request, self.body, wallet, outcome.call)
        return require(explain_key_used(recorded) if isinstance(recorded, KeyedCall) else recorded)

    async def _reopen(self, earlier: KeyedCall) -> ProxyResponse | None:
        rail, call_id = self._rail, earlier.call_id
        outcome = await rail.ledger.reopen(call_id, epoch=earlier.epoch, now_ms=rail.clock.now_ms())
        if not isinstance(outcome, Claimed):
            return require(
                await rail.idempotency.find_overtaken_response(
                    self.request, self.body, self.payer, self.key, earlier
                )
            )
        rail.counter.reopen(call_id, epoch=outcome.epoch)
        self.call_id, self.claimed = call_id, outcome
        return None

    async def capture(self, close: Close, collect: CollectResponse) -> CaptureOutcome:
        """Where the ledger cannot say how the call ended, the counter keeps what it holds."""
        outcome = await self._rail.ledger.close(close)
        if isinstance(outcome, Fenced):
            return outcome
        counter = self._rail.counter
        if close.after is CallState.RELEASED:
            counter.give_back(close.call_id, epoch=close.epoch)
        elif close.after is CallState.CONSUMED:
            counter.charge(close.call_id, epoch=close.epoch)
        return Closed(remaining_units=counter.find_balance(self.voucher.wallet))

    @property
    def is_ended_by_close(self) -> bool:
        return False  # the bytes of the body decide the price

    async def finish(self, finish: Finish) -> None:
        """A byte that reached the caller costs one unit; the call never costs less than its listing asks, nor more than the
        maximum."""
        await super().finish(finish)
        await self._rail.counter.lower(finish.call_id, epoch=finish.epoch, units=finish.response_bytes)


MALFORMED = Problem(
    code=Code.PAYMENT_MALFORMED,
    detail="X-Voucher is not a wallet, a maximum and a code.",
    payment_state="none",
)
UNKNOWN_VOUCHER = Problem(
    code=Code.PAYMENT_VERIFICATION_FAILED,
    detail="This voucher is not known.",
    reason="unknown_voucher",
    payment_state="none",
)
TOO_SMALL = Problem(
    code=Code.PAYMENT_INSUFFICIENT,
    detail="The maximum of this voucher is below the price of the call.",
    reason="voucher_too_small",
    payment_state="released",
)
SPENT = replace(TOO_SMALL, detail="The counter of this voucher is spent.", reason="voucher_spent")


@asynccontextmanager
async def open_voucher_gateway(
    *, commit: Callable[[], Awaitable[None]] = _commit_at_once, **limits: Any
) -> AsyncIterator[tuple[InProcessGateway, VoucherRail]]:
    """A gateway with the rails of the product and this one. `commit`: see `VoucherCounter`."""
    opened: list[VoucherRail] = []

    def open_rail(gateway: InProcessGateway) -> tuple[PaymentRail, ...]:
        rail = VoucherRail(
            ledger=gateway.ledger,
            idempotency=gateway.idempotency,
            counter=VoucherCounter(commit=commit),
            asset=USDC,
            limits=gateway.limits,
            clock=gateway.claim_clock,
        )
        opened.append(rail)
        return (rail,)

    async with open_gateway(open_further_rails=open_rail, **limits) as gateway:
        yield gateway, opened[0]
