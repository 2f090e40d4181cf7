"""Payment over a channel (x402 `batch-settlement`): from the voucher to the claim, and the charge at the response head.

    check: the config meets the terms, the payer signed -> (body) -> identify: the channel in the ledger, or on its chain -> (look up the key)
      -> verify: access, the turn of this call, the ceiling, the deposit -> (connect) -> claim -> (head) -> capture: close, or settle the deposit

The voucher raises a cumulative sum, so its ceiling says which calls its payer knows of. Where that is not what the ledger says, the payer gets the
corrective 402: the only 402 that follows a valid payment. It asks for another signature over money that is in the channel already, and the voucher that
was shown is not stored. A deposit is an authorisation, and settles as one (`payments.settlement`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, assert_never

from tollway.errors import Code, Problem, Refusal
from tollway.gateway.access import ActiveCall
from tollway.gateway.body import ForwardBody, too_large
from tollway.gateway.channel_offers import ChannelOffers, is_signed_by_payer
from tollway.gateway.idempotency import Idempotency, Repeat, explain_key_used
from tollway.gateway.messages import CallRefused, ProxyRequest, ProxyResponse
from tollway.gateway.problems import (
    BUSY_CHANNEL,
    DEPOSITS_WITHDRAWN,
    DRAINING_CHANNEL,
    RAIL_WITHDRAWN,
    UNCLAIMED_MAX,
    WITHDRAWING_CHANNEL,
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
    require,
)
from tollway.gateway.routing import Route
from tollway.gateway.settled_payment import SettledPayment, SettledRail
from tollway.ids import Address, CallId, ChainId, TxHash
from tollway.ledger.budgets import cost_nano_of
from tollway.ledger.channels import (
    CeilingMismatch,
    Channel,
    ChannelBusy,
    ChannelClaim,
    ChannelClosed,
    ChannelFacts,
    ChannelFull,
    ChannelState,
    Voucher,
    announce_whole,
)
from tollway.ledger.ledger import (
    AuthorizationTaken,
    ChannelLedger,
    Claim,
    Claimed,
    Close,
    Closed,
    Fenced,
    Ledger,
    StoredResponse,
)
from tollway.ledger.records import (
    UNKNOWN_DIGEST,
    Authorization,
    AuthorizationKey,
    AuthorizedCall,
    CallState,
    ChannelDeposit,
    Cover,
    Dialect,
    KeyedCall,
    KeyTaken,
    OpenCall,
    Rail,
    RepeatsOpenCall,
    Usage,
)
from tollway.limits import Limits
from tollway.money import UNITS_MAX, Asset, Price
from tollway.payments.channel_terms import (
    encode_charge,
    encode_corrective,
    find_deposit_floor,
)
from tollway.payments.channel_wire import (
    ChannelReason,
    PresentedChannelPayment,
    SignedDeposit,
    SignedVoucher,
    explain_channel,
    explain_deposit,
    names_channel,
    parse_channel_payment,
)
from tollway.payments.channels import DEPOSIT_COLLECTOR, deposit_nonce
from tollway.payments.pricing import OperationPrice, PaymentRequirement, find_lowest_price
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.payments.wire import decode_object
from tollway.payments.x402 import PAYMENT_HEADER
from tollway.registry.listing import SETTLEMENT_MARGIN_S, CatalogEntry
from tollway.registry.metering import read_formulas

TURN_WAIT_S = 2.0
TURN_POLL_S = 0.05
"""A call waits for its turn on the channel for this long, and looks this often. It holds no connection and no lock meanwhile."""


class ChannelRail(SettledRail):
    """The rail of channels. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        channel_ledger: ChannelLedger,
        offers: ChannelOffers,
        idempotency: Idempotency,
        limits: Limits,
        clock: ClockAndEntropy,
        public_url: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(
            ledger=ledger,
            settlement=offers.settlement,
            idempotency=idempotency,
            limits=limits,
            clock=clock,
        )
        self.channel_ledger = channel_ledger
        self.offers = offers
        self.public_url = public_url
        self.sleep = sleep

    # ---- The proof of a request.

    def read(self, request: ProxyRequest) -> PresentedChannelPayment | Problem | None:
        if not names_channel(request.headers, self.limits):
            return None
        value = request.find_header(PAYMENT_HEADER) or b""
        try:
            return parse_channel_payment(decode_object(value, bytes_max=self.limits.payment_header_bytes_max))
        except Refusal as refusal:
            return refusal.problem

    def name_signature(self, proof: object) -> str:
        return "voucher_key"

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> "ChannelPayment":
        assert isinstance(proof, PresentedChannelPayment)  # as `read` has parsed it
        return ChannelPayment(self, request, route, proof, repeat, active)

    def find_deposit(self, proof: PresentedChannelPayment) -> AuthorizationKey | None:
        if not isinstance(proof.request, SignedDeposit):
            return None
        voucher = proof.voucher
        nonce = deposit_nonce(voucher.channel_id, proof.request.salt)
        asset = "0x" + voucher.config.token.hex()
        return AuthorizationKey(voucher.chain_id, asset, voucher.config.payer, nonce)

    async def find_key_wallets(
        self,
        request: ProxyRequest,
        entry: CatalogEntry,
        proof: PresentedChannelPayment,
        body: ForwardBody | None,
    ) -> tuple[Address, ...]:
        """See `KeyReader`. A voucher that may have stood in a transaction is public, so it opens nothing."""
        if (request.body.length or 0) > self.limits.bound_body_bytes_max or not is_signed_by_payer(proof):
            return ()
        voucher = proof.voucher
        channel = await self.channel_ledger.find_channel(voucher.chain_id, voucher.channel_id)
        return (voucher.config.payer,) if is_private(voucher, channel) else ()


def is_private(voucher: SignedVoucher, channel: Channel | None) -> bool:
    """Whether no transaction has made the voucher public. Of a channel that the ledger does not have, that is not known: another gateway may have claimed it."""
    return channel is not None and voucher.ceiling > channel.published


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedDeposit:
    authorization: Authorization
    cover: Cover


class ChannelPayment(SettledPayment):
    """The payment of one call over a channel."""

    __slots__ = (
        "_before",
        "_channel",
        "_counting",
        "_deposit",
        "_earlier",
        "_is_undecided",
        "_lookup",
        "_rail",
        "_step_units",
        "proof",
    )

    def __init__(
        self,
        rail: ChannelRail,
        request: ProxyRequest,
        route: Route,
        proof: PresentedChannelPayment,
        repeat: Repeat | None,
        active: ActiveCall,
    ) -> None:
        super().__init__(rail.ledger, request, route, repeat, active, key=rail.find_key(request, proof))
        self.proof = proof
        self._rail = rail
        self._lookup = active.hold_lookup(rail.settlement.open_lookup(request.client_address))
        self._channel: Channel | None = None
        self._counting: Sequence[OperationPrice] = ()
        self._deposit: _CheckedDeposit | None = None
        self._earlier: KeyedCall | None = None
        self._is_undecided = False
        self._step_units = 0
        self._before = 0  # the announced sum before this call

    @property
    def default_rail(self) -> Rail:
        return Rail.CHANNEL

    receipt_states: ClassVar[tuple[str, ...]] = ("charged", "held")

    @property
    def chain_id(self) -> ChainId:
        return self.proof.voucher.chain_id

    # ---- Check: the config, the terms, the signature. Pure.

    async def check(self) -> None:
        bytes_max = self._rail.limits.bound_body_bytes_max
        if self.key is not None and (self.request.body.length or 0) > bytes_max:
            raise Refusal(too_large(bytes_max))
        judged = self._rail.offers.judge(
            self.proof,
            self.route,
            received_ms=self.request.received_ms,
            now_ms=self._rail.clock.now_ms(),
        )
        if isinstance(judged, Problem):
            raise Refusal(judged)
        self.asset, self._counting = judged
        self.currency, self.payer = self.asset.symbol, self.proof.voucher.config.payer
        if self.request.body.is_present:
            self.request.body.prove()

    # ---- Identify: the channel.

    async def identify(self) -> tuple[Address, ...]:
        voucher, repeat = self.proof.voucher, self.repeat
        self._channel = await self._rail.channel_ledger.find_channel(voucher.chain_id, voucher.channel_id)
        if self.key is None or (repeat is not None and repeat.call is not None):
            return ()
        payer, channel = voucher.config.payer, self._channel
        is_known = repeat is not None and payer in repeat.key_wallets
        return (payer,) if is_private(voucher, channel) and not is_known else ()

    # ---- Verify: access, the turn, the ceiling, the deposit.

    async def verify(self) -> None:
        assert self.asset is not None  # `check` sets both
        assert self.payer is not None
        lowest = self._find_lowest(self.asset)
        self._choose(lowest)
        is_metered = bool(self.formulas)
        problem = await self.active.check(self.payer, self.price, self.asset, is_metered=is_metered)
        if problem is None and self.formulas and any(formula.base.is_free for formula in self.formulas):
            problem = await self.active.check_free_rate()
        if problem is not None:
            raise Refusal(problem)
        repeat = self.repeat
        if repeat is not None and isinstance(repeat.call, KeyedCall):
            await self._verify_repeat(repeat.call)
            return
        channel = await self._take_turn()
        if isinstance(self.proof.request, SignedDeposit):
            self._deposit = await self._check_deposit(self.proof.request, channel)
        if channel is None:
            channel = await self._open_channel()
        await self._check_ceiling(channel)
        deposit_units = 0 if self._deposit is None else self._deposit.authorization.base_units
        ceiling = self.proof.voucher.ceiling
        if ceiling > channel.balance_units + deposit_units:
            # Another account may have deposited: the balance is read again, once.
            await self._check_budget(channel)
            channel = await self._renew_channel(channel)
            if ceiling > channel.balance_units + deposit_units:
                raise self._correct(channel)
        self._channel = channel

    def _find_lowest(self, asset: Asset) -> OperationPrice:
        lowest = find_lowest_price(
            self.route.operation_prices,
            asset,
            now_ms=self._rail.clock.now_ms(),
            limits=self._rail.limits,
            first_call_block_s=None,
        )
        return self._counting[0] if lowest is None else lowest

    def _choose(self, operation_price: OperationPrice) -> None:
        assert self.asset is not None
        self.price, self.units = operation_price.price, operation_price.price.units_in(self.asset)
        self.charge_on, self.formulas = operation_price.terms.charge_on, operation_price.formulas

    async def _take_turn(self) -> Channel | None:
        """Waits until no other call has the channel. Raises Refusal after `TURN_WAIT_S`."""
        voucher, ledger = self.proof.voucher, self._rail.channel_ledger
        channel = self._channel
        for _ in range(round(TURN_WAIT_S / TURN_POLL_S)):
            if channel is None or channel.reserved_call is None:
                return channel
            if channel.reserved_state is CallState.UNKNOWN:
                return channel
            await self._rail.sleep(TURN_POLL_S)
            channel = await ledger.find_channel(voucher.chain_id, voucher.channel_id)
        if channel is not None and channel.reserved_call is not None:
            raise Refusal(self._explain_busy(channel.reserved_call, channel.reserved_state))
        return channel

    def _explain_busy(self, call_id: CallId, state: CallState | None) -> Problem:
        if state is CallState.SETTLING:
            return Problem(
                code=Code.PAYMENT_OUTCOME_UNKNOWN,
                detail="The deposit of an earlier call on this channel is not decided yet. Send the same request again after Retry-After; do not deposit again.",
                retry_after_s=5,
                payment_state="held",
                call_id=call_id,
                members={"call": f"{self._rail.public_url}/api/v2/history/{call_id}"},
            )
        return replace(BUSY_CHANNEL, call_id=call_id)

    async def _check_budget(self, channel: Channel | None) -> None:
        """Precedes each look at the chain and each corrective 402, and nothing else: a repeat gets its call beyond the limit, and the claim decides. Raises Refusal."""
        assert self.asset is not None  # `check` sets both
        assert self.payer is not None
        cost_nano = cost_nano_of(self.units, decimals=self.asset.decimals)
        if channel is not None and channel.reserved_state is CallState.UNKNOWN:
            cost_nano = 0  # the claim may release that call, and what it counts goes back
        problem = await self.active.check_budget(self.payer, currency=self.asset.symbol, cost_nano=cost_nano)
        if problem is not None:
            raise Refusal(problem)

    async def _check_ceiling(self, channel: Channel) -> None:
        """The voucher adds a maximum that counts. The call costs the lowest one."""
        assert self.asset is not None
        step_units = self.proof.voucher.ceiling - channel.announced
        if all(one.price.units_in(self.asset) != step_units for one in self._counting):
            await self._check_budget(channel)
            raise self._correct(channel)
        self._step_units, self._before = step_units, channel.announced

    def _correct(self, channel: Channel) -> Refusal:
        """The corrective 402. A private voucher only where the request shows a private one: anyone can show a public one."""
        assert self.asset is not None
        reason = ChannelReason.CUMULATIVE_MISMATCH
        if self.proof.voucher.ceiling <= channel.facts.total_claimed:
            reason = ChannelReason.BELOW_CLAIMED
        listing = self.route.entry.listing
        requirement = self._rail.offers.describe(channel, self._counting[0], listing, self.asset)
        header = encode_corrective(
            requirement,
            channel,
            url=self.request.public_url(self._rail.public_url),
            reason=reason.value,
            shows_voucher=self.proof.voucher.ceiling > channel.published,
        )
        return CallRefused(explain_channel(reason), headers=[header], is_corrective=True)

    # ---- The channel on its chain.

    async def _open_channel(self) -> Channel:
        voucher, rail = self.proof.voucher, self._rail
        await self._check_budget(None)
        facts = await self._fetch_facts()
        if facts.balance == 0 and self._deposit is None:
            raise Refusal(explain_channel(ChannelReason.NOT_FOUND))
        assert self.asset is not None
        return await rail.channel_ledger.open_channel(
            voucher.chain_id,
            voucher.channel_id,
            voucher.config,
            facts,
            decimals=self.asset.decimals,
            now_ms=rail.ledger.shared_ms(),
        )

    async def _renew_channel(self, channel: Channel) -> Channel:
        facts = await self._fetch_facts()
        return await self._rail.channel_ledger.renew_channel(
            channel.key, facts, now_ms=self._rail.ledger.shared_ms()
        )

    async def _fetch_facts(self) -> ChannelFacts:
        refusal = await self._lookup.take(str(self.payer))
        if refusal is not None:
            raise Refusal(refusal)
        self.active.begin("chain")
        assert self.asset is not None
        facts = await self._rail.offers.chains.fetch_channel(
            self.chain_id, self.proof.voucher.channel_id, self.asset
        )
        self.active.begin("read_head")
        return facts

    # ---- The deposit.

    async def _check_deposit(self, deposit: SignedDeposit, channel: Channel | None) -> _CheckedDeposit | None:
        """Checks that the deposit would settle now. None where the ledger has this deposit already: the voucher alone counts then."""
        rail, asset, voucher = self._rail, self.asset, self.proof.voucher
        assert asset is not None
        authorization = self._build_authorization(deposit)
        known = await rail.ledger.find_authorized_call(authorization.key)
        if known is not None and not (known.state is CallState.RELEASED and known.transfer is None):
            if known.state is CallState.SETTLING:
                raise Refusal(self._explain_busy(known.call_id, known.state))
            if known.transfer is not None or known.state is CallState.FORWARDING:
                if self._may_be_answered(known):
                    raise Refusal(self._explain_busy(known.call_id, CallState.SETTLING))
                return None
        await self._check_budget(channel)
        rules = rail.offers.channel_rules[self.chain_id]
        cost_units = rules.cost_units(asset, rail.offers.chains.gas_price_wei(self.chain_id) or 0)
        floor = find_deposit_floor(self.units, cost_units=cost_units)
        balance = 0 if channel is None else channel.balance_units
        if deposit.base_units < min(floor, UNITS_MAX) or voucher.ceiling > balance + deposit.base_units:
            detail = f"The deposit is {deposit.base_units}, and at least {max(floor, voucher.ceiling - balance)} base units are needed."
            if voucher.ceiling <= balance + deposit.base_units:
                raise Refusal(explain_channel(ChannelReason.DEPOSIT_TOO_SMALL, detail))
            raise Refusal(explain_channel(ChannelReason.EXCEEDS_BALANCE, detail))
        checked = await self._check_settlement(authorization)
        if isinstance(checked, Problem):
            raise Refusal(checked)
        return checked

    def _may_be_answered(self, known: AuthorizedCall) -> bool:
        """Whether the call of this deposit ended while this request waited for its turn, and its response may be that of this request: the same request again
        gets it (`idempotency`)."""
        if known.state is not CallState.CONSUMED or not known.has_stored_response:
            return False
        body_hash = self.body.body_hash
        if body_hash is None or not is_private(self.proof.voucher, self._channel):
            return False
        return self.request.digest_for(known.authorization.payer, body_hash) == known.digest

    async def _check_settlement(self, authorization: Authorization) -> _CheckedDeposit | Problem:
        """Checks on its chain that the deposit would settle now."""
        rail, asset, listing = self._rail, self.asset, self.route.entry.listing
        assert asset is not None
        requirement = PaymentRequirement(
            asset=asset,
            price=self.price,
            units=authorization.base_units,
            pay_to=DEPOSIT_COLLECTOR,
            charge_on=self.charge_on,
            max_timeout_s=listing.timeout_s + SETTLEMENT_MARGIN_S,
        )
        settlement, units = rail.settlement, authorization.base_units
        if not rail.offers.chains.is_available(self.chain_id) or not settlement.is_worth(asset, units):
            return RAIL_WITHDRAWN
        if not settlement.is_offered(asset, units, listing.id):
            rail.check_reachable(self.chain_id)
            return DEPOSITS_WITHDRAWN
        self.active.begin("chain")
        checked = await settlement.check(
            authorization,
            requirement,
            timeout_s=listing.timeout_s,
            lookup=self._lookup,
            listing_id=listing.id,
        )
        self.active.begin("read_head")
        if isinstance(checked, Problem):
            return explain_deposit(checked)
        return _CheckedDeposit(authorization=authorization, cover=checked)

    def _build_authorization(self, deposit: SignedDeposit) -> Authorization:
        voucher = self.proof.voucher
        return Authorization(
            chain_id=voucher.chain_id,
            token=voucher.config.token,
            payer=voucher.config.payer,
            payee=DEPOSIT_COLLECTOR,
            base_units=deposit.base_units,
            valid_after=deposit.valid_after,
            valid_before=deposit.valid_before,
            nonce=deposit_nonce(voucher.channel_id, deposit.salt),
            signature=deposit.signature,
            dialect=Dialect.X402_V2,
            deposit=ChannelDeposit(config=voucher.config, channel_id=voucher.channel_id, salt=deposit.salt),
        )

    # ---- Claim, with a held connection.

    async def _verify_repeat(self, earlier: KeyedCall) -> None:
        """A call that runs again under its own claim: its price is held already, and no voucher is stored. A deposit of it that has not settled settles with this run."""
        self._check_held_price(earlier)
        if self._channel is None:
            raise Refusal(explain_key_used(earlier))
        self._deposit = await self._check_held_deposit(earlier)
        self._earlier, self._before = earlier, self._channel.announced

    def _check_held_price(self, earlier: OpenCall | KeyedCall) -> None:
        assert self.asset is not None  # `check` has it
        problem = check_held_price_max(
            self.request,
            self.asset,
            call_id=earlier.call_id,
            price=earlier.price,
            state=earlier.state,
            is_metered=earlier.metering is not None,
        )
        if problem is not None:
            raise Refusal(problem)

    async def _check_held_deposit(self, earlier: KeyedCall) -> _CheckedDeposit | None:
        if earlier.authorization is None:
            return None
        known = await self._rail.ledger.find_authorized_call(earlier.authorization)
        if known is None or known.call_id != earlier.call_id or known.transfer is not None:
            return None
        checked = await self._check_settlement(known.authorization)
        if isinstance(checked, Problem):
            # The outcome of the earlier run is not known, so no problem here may ask for a payment.
            if may_quote(checked):
                raise Refusal(authorization_used(known.call_id, known.state))
            raise Refusal(replace(checked, call_id=known.call_id, payment_state="held"))
        return checked

    async def claim(self) -> ProxyResponse | None:
        if self._earlier is not None:
            if await self._reopen(self._earlier):
                return None
            raise Refusal(explain_key_used(self._earlier))
        claim = self._build_claim()
        outcome = await self._rail.ledger.claim(claim)
        if isinstance(outcome, RepeatsOpenCall):
            self._check_held_price(outcome.call)
            if await self._reopen(outcome.call):
                return None
            outcome = await self._rail.ledger.claim(replace(claim, is_separate_call=True))
        if isinstance(outcome, ChannelBusy | AuthorizationTaken) and outcome.state is CallState.UNKNOWN:
            # The next voucher ends a call of unknown outcome: it takes nothing.
            await self._rail.ledger.resolve(
                outcome.call_id, CallState.RELEASED, now_ms=self._rail.ledger.shared_ms()
            )
            outcome = await self._rail.ledger.claim(claim)
        match outcome:
            case Claimed():
                self.call_id, self.claimed = claim.call_id, outcome
                return None
            case ChannelBusy(call_id=call_id, state=state):
                raise Refusal(self._explain_busy(call_id, state))
            case CeilingMismatch(channel=channel):
                raise self._correct(channel)
            case ChannelClosed(state=state):
                raise Refusal(WITHDRAWING_CHANNEL if state is ChannelState.WITHDRAWING else DRAINING_CHANNEL)
            case ChannelFull():
                raise Refusal(UNCLAIMED_MAX)
            case KeyTaken(call=earlier):
                assert self.payer is not None
                recorded = await self._rail.idempotency.find_keyed_response(
                    self.request, self.body, self.payer, earlier
                )
                return require(explain_key_used(recorded) if isinstance(recorded, KeyedCall) else recorded)
            case _:
                raise Refusal(await explain_claim(outcome, claim, self.asset, self._rail.ledger))

    def _build_claim(self) -> Claim:
        channel, voucher, deposit, asset = self._channel, self.proof.voucher, self._deposit, self.asset
        assert channel is not None  # verified
        assert asset is not None
        assert self.payer is not None
        body_hash = self.body.body_hash
        digest = UNKNOWN_DIGEST if body_hash is None else self.request.digest_for(self.payer, body_hash)
        claim = build_claim(
            self,
            self._rail.clock,
            digest=digest,
            authorization=None if deposit is None else deposit.authorization,
            cover=None if deposit is None else deposit.cover,
        )
        rules = self._rail.offers.channel_rules[self.chain_id]
        return replace(
            claim,
            pay_to=voucher.config.receiver,
            payment_id=channel.payment_id if deposit is None else None,
            channel=ChannelClaim(
                channel_id=voucher.channel_id,
                voucher=Voucher(ceiling=voucher.ceiling, signature=voucher.signature),
                step_units=self._step_units,
                deposit_units=0 if deposit is None else deposit.authorization.base_units,
                unclaimed_max=rules.unclaimed_max_units(asset),
            ),
        )

    async def _reopen(self, earlier: OpenCall | KeyedCall) -> bool:
        outcome = await self._rail.ledger.reopen(
            earlier.call_id, epoch=earlier.epoch, now_ms=self._rail.clock.now_ms()
        )
        if not isinstance(outcome, Claimed):
            return False
        self.price, self.units = Price.parse(earlier.price), earlier.price_units
        self.formulas = () if earlier.metering is None else read_formulas(earlier.metering)
        self.actual_units = earlier.actual_units
        self.call_id, self.claimed = earlier.call_id, outcome
        return True

    # ---- Capture, after the head: the close charges; a deposit settles first.

    @property
    def charged_state(self) -> CallState:
        return CallState.CONSUMED if self._deposit is None else CallState.SETTLING

    async def capture(self, close: Close, collect: CollectResponse) -> CaptureOutcome:
        if close.after is not CallState.SETTLING:
            return await self._record_end(await self._rail.ledger.close(close))
        deposit = self._deposit
        assert deposit is not None  # the state of a call with a deposit

        async def collect_charged() -> tuple[StoredResponse | None, Usage | None]:
            # The stored response is delivered only once the deposit is concluded, which charges this call.
            self._is_undecided = True
            return await collect()

        outcome = await self.settle(self._rail, deposit.authorization, close, collect_charged)
        match outcome:
            case Settled(transfer=transfer, moved_ms=moved_ms):
                self.transaction = transfer.tx_hash
                return await self._record_end(Closed(remaining_units=None, moved_ms=moved_ms))
            case NotSettled(reason=reason):
                problem = explain_channel(ChannelReason.DEPOSIT_FAILED)
                return CaptureFailed(
                    problem=replace(problem, reason=reason, payment_state="released"), headers=[]
                )
            case Undecided() | Fenced():
                return outcome
            case _:
                assert_never(outcome)

    def _expect_charge(self, channel: Channel, deposit: _CheckedDeposit) -> Channel:
        """The channel after recovery has concluded the deposit. No other call announces anything before: this one has it."""
        return replace(
            channel,
            announced=announce_whole(
                channel, due_units=self.units if self.actual_units is None else self.actual_units
            ),
            balance_units=channel.balance_units + deposit.authorization.base_units,
        )

    async def _record_end(self, closed: Closed | Fenced) -> Closed | Fenced:
        """Reads the announced sum after the end of the call, for the headers."""
        if isinstance(closed, Fenced):
            return closed
        channel = self._channel
        if channel is None or closed.announced is None:
            voucher = self.proof.voucher
            channel = await self._rail.channel_ledger.find_channel(voucher.chain_id, voucher.channel_id)
        else:
            channel = replace(channel, announced=closed.announced)
        if channel is None:
            return closed
        self._channel = channel
        return replace(closed, remaining_units=max(0, channel.balance_units - channel.announced))

    @property
    def is_ended_by_close(self) -> bool:
        return self.key is None and self._deposit is None

    def write_receipt(self) -> tuple[bytes, bytes] | None:
        channel, deposit = self._channel, self._deposit
        if channel is None:
            return None
        if self._is_undecided and deposit is not None:
            channel = self._expect_charge(channel, deposit)
        settled: tuple[TxHash, int] | None = None
        if deposit is not None and self.transaction is not None:
            settled = (self.transaction, deposit.authorization.base_units)
        charged = min(max(0, channel.announced - self._before), self._step_units or self.units)
        return encode_charge(channel, charged=charged, deposit=settled, extensions=None)
