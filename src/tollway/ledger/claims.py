"""Decides a batch of claims, in order, against the current payments and authorisations. Pure.

`decide_claims` alone decides which claims are granted. The ledger in SQL calls it with the rows locked, the test model in memory
calls it too. Greedy: a claim without enough credit is refused, and a smaller claim after it may still be granted. The default refuses.

`is_plain_claim` is a filter in front of it. `decide_claims` would grant every claim that passes the filter, so one SQL statement may
grant it (`storage/ledger/plain_writes`). The filter refuses no claim: every other claim goes to `decide_claims`.

A balance on the chain is read at a block. Authorisations count against it while their calls run, settle or may run again, and if
they were settled after that block. So fifty authorisations on one balance pay for no more than it covers. A call that runs again
needs no cover of its own, because its authorisation has counted since its first claim.

A voucher pays from the balance of its channel (`ledger/channels.decide_voucher`); no other payment helps. A deposit is an authorisation that moves more
than its call costs: all of it counts against the balance on the chain.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tollway.ids import METHOD_LENGTH_MAX, Address, CallId, ChainId, TxHash, is_storable
from tollway.ledger.budgets import NO_SPENDING, BatchSpending
from tollway.ledger.channels import (
    Channel,
    ChannelBusy,
    ChannelClaim,
    ChannelName,
    ChannelState,
    decide_voucher,
    reserve_channel,
)
from tollway.ledger.ledger import (
    AuthorizationTaken,
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
from tollway.ledger.records import (
    SAFE_METHODS,
    Authorization,
    AuthorizationKey,
    CallState,
    Cover,
    Dialect,
    KeyedCall,
    KeyName,
    KeyTaken,
    OpenCall,
    Parts,
    Payment,
    PaymentState,
    Rail,
    RepeatsOpenCall,
    RequestName,
)
from tollway.money import LEDGER_DECIMALS_MAX, UNITS_MAX, nano_to_units

HOLDING = frozenset({CallState.FORWARDING, CallState.SETTLING})
"""States in which an unsettled authorisation counts against its payer's balance."""
EXPIRY_SLACK_S = 60
"""Block times come from other clocks: the next block may have an earlier time than the gateway's clock."""


class PayerAccount(NamedTuple):
    """The account whose balance covers authorisations: the payer, on one chain, in one asset."""

    chain_id: ChainId
    asset: str
    payer: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAuthorization:
    """An authorisation in the ledger, with the state of the call that claimed it last.

    `settled_block`: the block of its transfer; None before the settlement. `valid_before`: unix seconds. `deposit_units`: what it moves, where it is a
    deposit; another one moves the price.
    """

    key: AuthorizationKey
    call_id: CallId
    state: CallState
    price_units: int
    settled_block: int | None
    valid_before: int
    deposit_units: int = 0

    @property
    def moved_units(self) -> int:
        return self.deposit_units or self.price_units

    @property
    def is_free(self) -> bool:
        """Whether it may pay another call: its call is released, and it was not settled."""
        return self.state is CallState.RELEASED and self.settled_block is None

    def counts_against(self, cover: Cover, *, now_s: int) -> bool:
        if self.settled_block is not None:
            return self.settled_block > cover.block_number
        return self.may_move(now_s=now_s)

    def may_move(self, *, now_s: int) -> bool:
        """Whether it may still be settled. An unknown call may run again until its authorisation expires."""
        if self.settled_block is not None:
            return False
        is_open = self.state is CallState.UNKNOWN and now_s < self.valid_before + EXPIRY_SLACK_S
        return is_open or self.state in HOLDING


def payer_account_of(key: AuthorizationKey) -> PayerAccount:
    return PayerAccount(key.chain_id, key.asset, key.payer)


def rail_of(dialect: Dialect) -> Rail:
    return Rail.MPP if dialect is Dialect.MPP else Rail.X402


class PendingAuthorizations:
    def __init__(self, known: Iterable[KnownAuthorization]) -> None:
        self._wallets: dict[PayerAccount, dict[AuthorizationKey, KnownAuthorization]] = {}
        for one in known:
            self._put(one)

    def refuse(
        self, authorization: Authorization, *, cover: Cover | None, price_units: int, now_s: int
    ) -> AuthorizationTaken | NotCovered | None:
        """Returns the refusal of an authorisation, or None where it may be claimed. Without a cover it is refused."""
        wallet = payer_account_of(authorization.key)
        known = self._wallets.get(wallet, {}).get(authorization.key)
        if known is not None and not known.is_free:
            return AuthorizationTaken(call_id=known.call_id, state=known.state)
        held_units = self.held_units(wallet, cover, now_s=now_s) if cover is not None else 0
        moved_units = price_units if authorization.deposit is None else authorization.base_units
        if cover is None or cover.balance_units < moved_units + held_units:
            return NotCovered(held_units=held_units)
        return None

    def held_units(self, wallet: PayerAccount, cover: Cover, *, now_s: int) -> int:
        known = self._wallets.get(wallet, {}).values()
        return sum(one.moved_units for one in known if one.counts_against(cover, now_s=now_s))

    def running_units(self, wallet: PayerAccount, *, now_s: int) -> int:
        known = self._wallets.get(wallet, {}).values()
        return sum(one.price_units for one in known if one.may_move(now_s=now_s))

    def grant(self, authorization: Authorization, *, call_id: CallId, price_units: int) -> None:
        self._put(
            KnownAuthorization(
                key=authorization.key,
                call_id=call_id,
                state=CallState.FORWARDING,
                price_units=price_units,
                settled_block=None,
                valid_before=authorization.valid_before,
                deposit_units=0 if authorization.deposit is None else authorization.base_units,
            )
        )

    def _put(self, known: KnownAuthorization) -> None:
        self._wallets.setdefault(payer_account_of(known.key), {})[known.key] = known


class CreditAccount(NamedTuple):
    """The account of prepaid credit: payer, payee, chain and asset. Payments of one account supplement each other."""

    chain_id: ChainId
    asset: str
    payer: Address
    payee: Address


class NonceKey(NamedTuple):
    chain_id: ChainId
    tx_hash: TxHash
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    claim: Claim
    outcome: ClaimOutcome
    parts: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Debit:
    """The change of one payment by the whole batch: the sum of its granted claims."""

    payment_id: int
    taken_before_units: int
    taken_units: int
    calls: int
    is_plain_ended: bool


def decide_claims(
    claims: Sequence[Claim],
    *,
    payments: Iterable[Payment],
    nonces: Mapping[NonceKey, NonceUsed],
    keys: Mapping[KeyName, KeyedCall],
    repeats: Mapping[RequestName, OpenCall],
    debts: Mapping[CreditAccount, int],
    unfinal_max_nano: Mapping[str, int],
    unfinal_units: Mapping[PayerAccount, int],
    now_ms: int,
    authorizations: Iterable[KnownAuthorization] = (),
    channels: Mapping[ChannelName, Channel] = MappingProxyType({}),
    unclaimed_nano: Mapping[Address, int] = MappingProxyType({}),
    spending: BatchSpending | None = None,
) -> tuple[tuple[Decision, ...], tuple[Debit, ...]]:
    """Decides each claim as if the claims before it were already written.

    `payments`: the claimed payments, and every payment of the accounts of `find_short_accounts`.
    `nonces`: the calls that hold the nonces of these claims.
    `keys`: the calls that the idempotency keys of these claims name, except released and expired ones.
    `repeats`: the newest call of each of these requests that has no outcome, or whose response was cut.
    `debts`: the debts of the payers of these claims. The ledger pays them from unspent credit before it returns an `InDebt`.
    `unfinal_max_nano`: per currency, the maximum that one payer may spend of unfinal payments in one asset; a currency without an
    entry has no maximum. `unfinal_units`: the units taken from all unfinal payments of each account of `find_limited_accounts`.
    `now_ms`: the time of the batch, by the clock that all gateways share; the clock of a single gateway decides nothing.
    `authorizations`: the claimed authorisations that are known, and all authorisations of their wallets that run, settle, may run
    again, or were settled after the block of their cover. `channels`: those of the claims, as they are now. Their payments are among `payments`.
    `unclaimed_nano`: what each payer of these channels owes on all channels beyond what is claimed, in 10^-9 of the currency.
    `spending`: the budgets of the payers that are bound to an owner; None where none is. It counts what is granted.
    """
    batch = _BatchDecision(
        payments,
        nonces,
        keys,
        repeats,
        debts,
        unfinal_max_nano,
        unfinal_units,
        now_ms,
        PendingAuthorizations(authorizations),
        channels,
        unclaimed_nano,
        NO_SPENDING if spending is None else spending,
    )
    decisions = tuple(batch.decide(claim) for claim in claims)
    return decisions, batch.debits()


def find_short_accounts(claims: Sequence[Claim], payments: Mapping[int, Payment]) -> frozenset[CreditAccount]:
    """The credit accounts in which a claimed payment has credit left, but not enough for all claims on it."""
    wanted: dict[int, int] = {}
    for claim in claims:
        if claim.payment_id is not None and claim.payment_id in payments:
            wanted[claim.payment_id] = wanted.get(claim.payment_id, 0) + claim.price_units
    return frozenset(
        credit_account_of(payments[payment_id])
        for payment_id, units in wanted.items()
        if 0 < payments[payment_id].remaining_units < units
    )


def find_limited_accounts(
    claims: Iterable[Claim], unfinal_max_nano: Mapping[str, int]
) -> frozenset[PayerAccount]:
    return frozenset(
        PayerAccount(claim.chain_id, claim.asset, claim.payer)
        for claim in claims
        if claim.currency in unfinal_max_nano
        and claim.payer is not None
        and claim.chain_id is not None
        and claim.asset is not None
    )


def _payer_account_of_payment(payment: Payment) -> PayerAccount:
    return PayerAccount(payment.chain_id, payment.asset, payment.payer)


def credit_account_of(payment: Payment) -> CreditAccount:
    return CreditAccount(payment.chain_id, payment.asset, payment.payer, payment.payee)


def find_account(claim: Claim) -> CreditAccount:
    assert claim.chain_id is not None
    assert claim.asset is not None
    assert claim.payer is not None
    assert claim.pay_to is not None
    return CreditAccount(claim.chain_id, claim.asset, claim.payer, claim.pay_to)


def channel_name(claim: Claim, shown: ChannelClaim) -> ChannelName:
    assert claim.chain_id is not None
    return ChannelName(claim.chain_id, shown.channel_id)


def nonce_key(claim: Claim) -> NonceKey | None:
    if claim.nonce is None or claim.chain_id is None or claim.tx_hash is None:
        return None
    return NonceKey(claim.chain_id, claim.tx_hash, claim.nonce)


def key_name(claim: Claim) -> KeyName | None:
    """The name of the claim's idempotency key. None without one, and for a free call, which has no wallet."""
    if claim.payer is None or claim.idempotency_key is None:
        return None
    return KeyName(claim.payer, claim.idempotency_key)


def request_name(claim: Claim) -> RequestName | None:
    """The name of the request, under which a claim may repeat an open call. None for a claim with a key, which names its own call, and
    for an unsafe method, which must not reach its upstream twice without a key."""
    if claim.payment_id is None or claim.idempotency_key is not None or claim.is_separate_call:
        return None
    return RequestName(claim.payment_id, claim.digest) if claim.method in SAFE_METHODS else None


def check_claim(claim: Claim) -> None:
    """Raises ValueError for a claim with contradictory members, a price beyond the range of a balance, or a value beyond its column.

    Runs before the claim joins a batch: SQLite stores a text longer than its column, PostgreSQL fails the whole batch."""
    for name, length_max in TEXT_LENGTH_MAX.items():
        text = getattr(claim, name)
        if text is None:
            continue
        if length_max is not None and len(text) > length_max:
            raise ValueError(f"{name} has at most {length_max} characters")
        if not is_storable(text):
            raise ValueError(f"{name} holds a character that no text column can hold")
    if not 0 <= (claim.decimals or 0) <= _INTEGER_MAX:
        raise ValueError("decimals do not fit their column")
    for number in (claim.price_units, claim.chain_id, claim.payment_id, claim.created_ms):
        if number is not None and not 0 <= number <= UNITS_MAX:
            raise ValueError("a price, a chain, a payment and a moment lie between 0 and 2^63 - 1")
    authorization = claim.authorization
    if (authorization is None) != (claim.cover is None) or (authorization and claim.payment_id is not None):
        raise ValueError("a call is paid by a payment, or by an authorisation with its cover")
    if authorization is not None and not is_storable(authorization.challenge_id):
        raise ValueError("challenge_id holds a character that no text column can hold")
    if claim.channel is not None:
        _check_channel(claim, claim.channel)
        return
    if authorization is None:
        return
    if authorization.deposit is not None:
        raise ValueError("a deposit pays with the voucher of its channel")
    named = (claim.chain_id, claim.asset, claim.payer, claim.pay_to)
    if named != (authorization.chain_id, authorization.asset, authorization.payer, authorization.payee):
        raise ValueError("the claim and its authorisation name different payments")
    if authorization.base_units != claim.price_units * 10 ** max(0, claim.decimals - LEDGER_DECIMALS_MAX):
        raise ValueError("an authorisation pays the price to the unit")


def _check_channel(claim: Claim, shown: ChannelClaim) -> None:
    """The units of a channel are those of its token, so the claim and the deposit count alike."""
    if claim.nonce is not None or claim.is_plain or claim.ends_plain or claim.is_first_price:
        raise ValueError("a voucher has no proof of a transaction")
    if None in (claim.payer, claim.chain_id, claim.asset, claim.pay_to):
        raise ValueError("a channel names its payer, chain, token and receiver")
    if claim.decimals > LEDGER_DECIMALS_MAX:
        raise ValueError(f"the token of a channel has at most {LEDGER_DECIMALS_MAX} decimals")
    for units in (shown.voucher.ceiling, shown.deposit_units, shown.unclaimed_max):
        check_units(units)
    authorization = claim.authorization
    if authorization is None:
        if claim.payment_id is None or shown.deposit_units:
            raise ValueError("a voucher alone names the payment of its channel, and no deposit")
        return
    deposit = authorization.deposit
    if deposit is None or shown.deposit_units == 0:
        raise ValueError("beside a voucher an authorisation pays a deposit")
    if (authorization.base_units, deposit.channel_id) != (shown.deposit_units, shown.channel_id):
        raise ValueError("the claim and its deposit name different channels or amounts")
    config = deposit.config
    named = (claim.chain_id, claim.asset, claim.payer, claim.payer, claim.pay_to, authorization.token)
    paid = (authorization.chain_id, authorization.asset, authorization.payer, config.payer)
    if named != (*paid, config.receiver, config.token):
        raise ValueError("the claim and its deposit name different accounts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCase:
    """The input of `PAYMENT_GUARDS`: one payment, and the claims of one batch on it; on SQLite, one claim.

    `payment`: None where no payment has that id. `payer`: the payer of all these claims. `units`: the sum of their prices.
    `has_plain_proof`, `has_bound_proof`: one of the claims has such a signature. `debt_units`: of the payment's credit account.
    `has_open_repeat`: an earlier call of one of these requests on that payment is `unknown`, or its response was cut and no repeat has
    delivered it. `is_nonce_used`: another call holds a nonce of these claims. `is_bound`: the payer's wallet has an owner, whose policy counts."""

    payment: Payment | None
    payer: Address
    units: int
    has_plain_proof: bool = False
    has_bound_proof: bool = False
    debt_units: int = 0
    has_open_repeat: bool = False
    is_nonce_used: bool = False
    is_bound: bool = False


PAYMENT_GUARDS: Mapping[str, Callable[[PlainCase, Payment], bool]] = MappingProxyType(
    {
        "payer matches": lambda case, payment: payment.payer == case.payer,
        "not gone": lambda case, payment: payment.state is not PaymentState.GONE,
        "not held": lambda case, payment: not payment.is_held,
        "plain form counts": lambda case, payment: not (case.has_plain_proof and payment.is_plain_ended),
        "one form of proof": lambda case, payment: not (case.has_plain_proof and case.has_bound_proof),
        "whole sum covered": lambda case, payment: payment.remaining_units >= case.units,
        "no debt": lambda case, payment: case.debt_units == 0,
        "no open repeat": lambda case, payment: not case.has_open_repeat,
        "nonce not used": lambda case, payment: not case.is_nonce_used,
        "no owner": lambda case, payment: not case.is_bound,
    }
)
"""Guards of plain claims that read the ledger. Calls in `forwarding` do not count against a claim."""


def is_claim_alone_plain(claim: Claim, limited: Collection[str]) -> bool:
    """The guards of a plain claim that read only the claim and the currencies whose unfinal value has a maximum. A free call needs no other guard."""
    return (
        claim.authorization is None
        and claim.channel is None
        and claim.metering is None
        and claim.idempotency_key is None
        and not claim.is_first_price
        and claim.currency not in limited
    )


def is_plain_claim(claim: Claim, case: PlainCase | None, *, limited: Collection[str]) -> bool:
    """Whether one SQL statement may grant this claim, together with all claims of its batch on that payment: `decide_claims` would grant
    them in any order. `case`: None for a free call; on SQLite it contains only this claim, and the payment after the claims before it.
    `limited`: the currencies whose unfinal value has a maximum."""
    if not is_claim_alone_plain(claim, limited):
        return False
    if claim.payment_id is None or case is None:
        return claim.payment_id is None
    payment = case.payment
    return payment is not None and all(holds(case, payment) for holds in PAYMENT_GUARDS.values())


TEXT_LENGTH_MAX = {
    "call_id": 64,
    "listing_id": 64,
    "listing_name": None,
    "method": METHOD_LENGTH_MAX,
    "path": None,
    "price": 40,
    "currency": 32,
    "asset": 42,
    "idempotency_key": None,
    "metering": None,
    "request_id": 128,
}
"""The maximum of characters per text member of a claim, equal to the columns of `call`. None: no maximum."""
_INTEGER_MAX = 2**31 - 1


def check_units(units: int) -> None:
    """Raises ValueError outside the range of a balance."""
    if not 0 <= units <= UNITS_MAX:
        raise ValueError("an amount of ledger units lies between 0 and 2^63 - 1")


class _PaymentBalance:
    __slots__ = ("calls", "is_plain_ended", "payment", "taken_units")

    def __init__(self, payment: Payment) -> None:
        self.payment = payment
        self.taken_units = payment.taken_units
        self.calls = payment.calls
        self.is_plain_ended = payment.is_plain_ended

    @property
    def remaining_units(self) -> int:
        return self.payment.value_units - self.taken_units

    @property
    def is_spendable(self) -> bool:
        return self.payment.state is not PaymentState.GONE and not self.payment.is_held


class _BatchDecision:
    def __init__(
        self,
        payments: Iterable[Payment],
        nonces: Mapping[NonceKey, NonceUsed],
        keys: Mapping[KeyName, KeyedCall],
        repeats: Mapping[RequestName, OpenCall],
        debts: Mapping[CreditAccount, int],
        unfinal_max_nano: Mapping[str, int],
        unfinal_units: Mapping[PayerAccount, int],
        now_ms: int,
        authorizations: PendingAuthorizations,
        channels: Mapping[ChannelName, Channel],
        unclaimed_nano: Mapping[Address, int],
        spending: BatchSpending,
    ) -> None:
        self._spending = spending
        self._authorizations = authorizations
        self._channels = channels
        self._unclaimed_nano = dict(unclaimed_nano)
        self._balances = {payment.id: _PaymentBalance(payment) for payment in payments}
        self._nonces = dict(nonces)
        self._keys = dict(keys)
        self._repeats = dict(repeats)
        self._debts = debts
        self._unfinal_max_nano = unfinal_max_nano
        self._unfinal_units = dict(unfinal_units)
        self._now_ms = now_ms
        self._touched: dict[int, _PaymentBalance] = {}
        self._accounts: dict[
            CreditAccount, list[_PaymentBalance]
        ] = {}  # filled when the first claim needs siblings

    def decide(self, claim: Claim) -> Decision:
        """A repeat gets the earlier call and pays nothing. While an earlier call without a key is running, the same request is a new call."""
        # There are two kinds of repeats, and the price of both is taken already. A key names its call until that is released or expires.
        # A safe request without a key repeats only a call without an outcome, or with a cut response.
        name = key_name(claim)
        earlier = None if name is None else self._keys.get(name)
        if earlier is not None:
            return _refused(claim, KeyTaken(call=earlier))
        request = request_name(claim)
        waiting = None if request is None else self._repeats.get(request)
        if waiting is not None and waiting.state is not CallState.FORWARDING:
            return _refused(claim, RepeatsOpenCall(call=waiting))
        decision = self._decide(claim)
        if isinstance(decision.outcome, Claimed):
            # The claims after it see it.
            self._spending.grant(claim)
            if name is not None:
                self._keys[name] = _keyed_call(claim, self._now_ms)
            if claim.payment_id is not None and self._repeats:
                self._repeats.pop(RequestName(claim.payment_id, claim.digest), None)
        return decision

    def _decide(self, claim: Claim) -> Decision:
        if claim.channel is not None:
            return self._decide_channel(claim, claim.channel)
        if claim.authorization is not None:
            return self._decide_authorized(claim, claim.authorization)
        if claim.payment_id is None:
            return _granted(claim, {}, remaining_units=0, rail=Rail.NONE)
        claimed = self._balances.get(claim.payment_id)
        if claimed is None or claimed.payment.payer != claim.payer:
            return _refused(claim, Unspendable(is_held=False))
        refusal = self._refuse_proof(claim, claimed) or self._spending.refuse(claim)
        if refusal is not None:
            return _refused(claim, refusal)
        parts = self._collect_parts(claim, claimed)
        if isinstance(parts, Exhausted):
            return _refused(claim, parts)
        if self._is_beyond_unfinal(claim, parts):
            return _refused(claim, UnfinalLimit())
        return self._grant(claim, claimed, parts)

    def _decide_authorized(self, claim: Claim, authorization: Authorization) -> Decision:
        price_units, now_s = claim.price_units, self._now_ms // 1000
        refusal = self._authorizations.refuse(
            authorization, cover=claim.cover, price_units=price_units, now_s=now_s
        )
        if isinstance(refusal, AuthorizationTaken):
            return _refused(claim, refusal)
        beyond_budget = self._spending.refuse(claim)
        if beyond_budget is not None:
            return _refused(claim, beyond_budget)
        account = CreditAccount(
            authorization.chain_id, authorization.asset, authorization.payer, authorization.payee
        )
        debt_units = self._debts.get(account, 0)
        if debt_units > 0:
            return _refused(claim, InDebt(units=debt_units))
        if refusal is not None:
            return _refused(claim, refusal)
        is_limited = claim.currency in self._unfinal_max_nano
        if is_limited and self._is_beyond_unfinal_authorized(claim, payer_account_of(authorization.key)):
            return _refused(claim, UnfinalLimit())
        self._authorizations.grant(authorization, call_id=claim.call_id, price_units=price_units)
        return _granted(claim, {}, remaining_units=0, rail=rail_of(authorization.dialect))

    def _decide_channel(self, claim: Claim, shown: ChannelClaim) -> Decision:
        """A deposit that pays another call comes first: its call answers a repeat, and the voucher beside it is that of the first time."""
        authorization, refusal = claim.authorization, None
        if authorization is not None:
            refusal = self._authorizations.refuse(
                authorization,
                cover=claim.cover,
                price_units=claim.price_units,
                now_s=self._now_ms // 1000,
            )
            if isinstance(refusal, AuthorizationTaken):
                return _refused(claim, refusal)
        name = channel_name(claim, shown)
        channel = self._channels.get(name)
        if channel is None or channel.config.payer != claim.payer or channel.config.receiver != claim.pay_to:
            return _refused(claim, Unspendable(is_held=False))
        if authorization is None and claim.payment_id != channel.payment_id:
            return _refused(claim, Unspendable(is_held=False))
        is_unknown = channel.reserved_state is CallState.UNKNOWN
        if is_unknown and channel.reserved_call is not None and channel.state is ChannelState.OPEN:
            # The next voucher releases this call, and what it counts goes back to the budget.
            return _refused(claim, ChannelBusy(call_id=channel.reserved_call, state=CallState.UNKNOWN))
        beyond_budget = self._spending.refuse(claim)
        if beyond_budget is not None:
            return _refused(claim, beyond_budget)
        nano_per_unit = 10 ** (LEDGER_DECIMALS_MAX - claim.decimals)
        owed_nano = self._unclaimed_nano.get(channel.config.payer, 0)
        of_voucher = decide_voucher(
            channel, shown, price_units=claim.price_units, owed_units=-(-owed_nano // nano_per_unit)
        )
        if of_voucher is not None or refusal is not None:
            return _refused(claim, of_voucher or refusal or Unspendable(is_held=False))
        reserved = reserve_channel(channel, shown, claim.call_id, price_units=claim.price_units)
        self._channels = {**self._channels, name: reserved}
        self._unclaimed_nano[channel.config.payer] = owed_nano + claim.price_units * nano_per_unit
        return self._grant_channel(claim, reserved, ceiling=shown.voucher.ceiling)

    def _grant_channel(self, claim: Claim, channel: Channel, *, ceiling: int) -> Decision:
        if claim.authorization is not None:
            self._authorizations.grant(
                claim.authorization, call_id=claim.call_id, price_units=claim.price_units
            )
            left_units = channel.balance_units + claim.authorization.base_units - ceiling
            return _granted(claim, {}, remaining_units=left_units, rail=Rail.CHANNEL)
        balance = self._balances[channel.payment_id]
        balance.calls += 1
        balance.taken_units += claim.price_units
        self._touched[channel.payment_id] = balance
        parts = {channel.payment_id: claim.price_units}
        return _granted(claim, parts, remaining_units=channel.balance_units - ceiling, rail=Rail.CHANNEL)

    def debits(self) -> tuple[Debit, ...]:
        return tuple(
            Debit(
                payment_id=payment_id,
                taken_before_units=balance.payment.taken_units,
                taken_units=balance.taken_units,
                calls=balance.calls,
                is_plain_ended=balance.is_plain_ended,
            )
            for payment_id, balance in sorted(self._touched.items())
        )

    def _refuse_proof(self, claim: Claim, claimed: _PaymentBalance) -> ClaimOutcome | None:
        key = nonce_key(claim) if self._nonces else None
        if key is not None and key in self._nonces:
            return self._nonces[key]
        if not claimed.is_spendable:
            return Unspendable(is_held=claimed.payment.state is not PaymentState.GONE)
        if claim.is_plain and claimed.is_plain_ended:
            return PlainEnded()
        debt_units = self._debts.get(credit_account_of(claimed.payment), 0) if self._debts else 0
        if debt_units > 0:
            return InDebt(units=debt_units)
        if claim.is_first_price and claimed.taken_units > 0:
            return NotFirst()
        return None

    def _collect_parts(self, claim: Claim, claimed: _PaymentBalance) -> Parts | Exhausted:
        """The parts that make up the price. Where they do not, the refusal: held siblings that would complete the price are its `held_units`,
        because they are there, and the payer must not be asked for them again."""
        if claimed.remaining_units >= claim.price_units:
            return {claimed.payment.id: claim.price_units}
        if claimed.remaining_units <= 0:
            return Exhausted(remaining_units=0)
        parts = {claimed.payment.id: claimed.remaining_units}
        missing, held_units = claim.price_units - claimed.remaining_units, 0
        for sibling in self._list_account(credit_account_of(claimed.payment)):
            if sibling is claimed or not self._may_supplement(sibling, claim):
                continue
            if sibling.payment.is_held:
                held_units += sibling.remaining_units
                continue
            parts[sibling.payment.id] = min(missing, sibling.remaining_units)
            missing -= parts[sibling.payment.id]
            if missing == 0:
                return parts
        is_held = held_units >= missing
        return Exhausted(
            remaining_units=sum(parts.values()),
            held_units=held_units if is_held else 0,
            is_payment_held=is_held,
        )

    def _list_account(self, account: CreditAccount) -> list[_PaymentBalance]:
        if not self._accounts:
            in_turn = sorted(
                self._balances.values(), key=lambda one: (one.payment.block_number, one.payment.id)
            )
            for balance in in_turn:
                self._accounts.setdefault(credit_account_of(balance.payment), []).append(balance)
        return self._accounts[account]

    def _may_supplement(self, sibling: _PaymentBalance, claim: Claim) -> bool:
        """Whether a sibling payment may supply the missing units, now or once it is held no more. A sibling that covers the price alone is a
        prepayment of its own. The plain signature of another payment does not open a sibling whose plain form has ended."""
        if claim.is_plain and sibling.is_plain_ended:
            return False
        is_gone = sibling.payment.state is PaymentState.GONE
        return not is_gone and 0 < sibling.remaining_units < claim.price_units

    def _is_beyond_unfinal(self, claim: Claim, parts: Parts) -> bool:
        if claim.currency not in self._unfinal_max_nano:
            return False
        claimed = self._balances[next(iter(parts))].payment
        added = sum(units for payment_id, units in parts.items() if self._is_unfinal(payment_id))
        unfinal_units = self._unfinal_units.get(_payer_account_of_payment(claimed), 0)
        return added > 0 and self._is_too_much(claim, unfinal_units + added)

    def _is_beyond_unfinal_authorized(self, claim: Claim, wallet: PayerAccount) -> bool:
        """Whether the claim exceeds the maximum. A settlement is not final at once, so this authorisation and the pending ones count."""
        moving_units = self._authorizations.running_units(wallet, now_s=self._now_ms // 1000)
        unfinal_units = self._unfinal_units.get(wallet, 0) + moving_units
        return self._is_too_much(claim, unfinal_units + claim.price_units)

    def _is_too_much(self, claim: Claim, units: int) -> bool:
        max_nano = self._unfinal_max_nano.get(claim.currency)
        return max_nano is not None and units > nano_to_units(max_nano, decimals=claim.decimals)

    def _is_unfinal(self, payment_id: int) -> bool:
        return self._balances[payment_id].payment.state is PaymentState.UNFINAL

    def _grant(self, claim: Claim, claimed: _PaymentBalance, parts: Parts) -> Decision:
        rail = Rail.TX if claimed.calls == 0 else Rail.CREDIT
        claimed.calls += 1
        claimed.is_plain_ended = claimed.is_plain_ended or claim.ends_plain
        self._touched[claimed.payment.id] = claimed
        for payment_id, units in parts.items():
            balance = self._balances[payment_id]
            balance.taken_units += units
            self._touched[payment_id] = balance
            if self._is_unfinal(payment_id):
                wallet = _payer_account_of_payment(balance.payment)
                self._unfinal_units[wallet] = self._unfinal_units.get(wallet, 0) + units
        key = nonce_key(claim)
        if key is not None:
            self._nonces[key] = NonceUsed(call_id=claim.call_id, state=CallState.FORWARDING)
        return _granted(claim, parts, remaining_units=claimed.remaining_units, rail=rail)


def _keyed_call(claim: Claim, now_ms: int) -> KeyedCall:
    return KeyedCall(
        call_id=claim.call_id,
        listing_id=claim.listing_id,
        digest=claim.digest,
        state=CallState.FORWARDING,
        epoch=1,
        price=claim.price,
        price_units=claim.price_units,
        payment_id=claim.payment_id,
        moved_ms=now_ms,
        authorization=None if claim.authorization is None else claim.authorization.key,
    )


def _granted(claim: Claim, parts: Parts, *, remaining_units: int, rail: Rail) -> Decision:
    return Decision(
        claim=claim, outcome=Claimed(epoch=1, remaining_units=remaining_units, rail=rail), parts=parts
    )


def _refused(claim: Claim, outcome: ClaimOutcome) -> Decision:
    return Decision(claim=claim, outcome=outcome, parts={})
