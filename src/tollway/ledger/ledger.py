"""The ports of the ledger, and their records. `storage` implements them in SQL, the tests have a model in memory. Both pass one contract
suite, and both decide a batch of claims with the same pure function (`ledger/claims.py`).

Each module depends on the ports that it needs: `Ledger` (calls of the pipeline), `SettlementLedger` (settlements of calls),
`PaymentLedger` (payments), `Finality` (changes by a reorganisation), `GasLedger` (nonces and transactions of gas keys),
`OperatorLedger` and `Readiness` (records of the operator and of the gateways), `StoredResponses`; `CallHistory` is in
`ledger/history.py`.

Invariants. A claim and its call row are one durable transaction. A close is written before the caller receives the head, and the next
durable commit flushes it. Every move names the state and the epoch that it expects; a move that finds others is *fenced* and must
stop. taken(payment) = the sum of the prices of the calls that take from it, at any time.

All payments of a block become final together. A reorganisation can move a transfer to another transaction: the money was paid once,
so this creates no debt. A nonce of a gas key is taken in the transaction that stores the attempt signed with it. Stored responses are
limited in size and time and encrypted at rest; losing one costs a repeat, never money.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tollway.audit_log import AuditOrigin
from tollway.chain.channel_contract import ChannelConfig
from tollway.ids import Address, CallId, ChainId, ChannelId, ListingId, TxHash
from tollway.ledger.channels import (
    Channel,
    ChannelActivity,
    ChannelClaim,
    ChannelFacts,
    ChannelRefusal,
    ClaimableChannel,
    OpenClaim,
    Receiver,
    UnsettledReceiver,
)
from tollway.ledger.records import (
    Authorization,
    AuthorizationKey,
    AuthorizedCall,
    CallState,
    Cover,
    Delivery,
    KeyedCall,
    KeyTaken,
    NewPayment,
    OpenCall,
    Payment,
    Rail,
    RecordedTransaction,
    RepeatsOpenCall,
    SettledTransfer,
    SettlementAttempt,
    Usage,
)
from tollway.per_call_record import per_call_record


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceUnavailable:
    """A refused attempt: another transaction has the nonce of this key, or it is not the next one. Nothing changed."""

    next_nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRecord:
    """How many transactions were signed for payers with that code (contract wallets, delegated accounts), and how many of them reverted."""

    signed: int
    reverted: int


class GasLedger(Protocol):
    """The nonces and transactions of gas keys."""

    async def next_nonce(self, chain_id: ChainId, sender: Address) -> int:
        """0 for an unused sequence."""
        ...

    async def raise_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        """Raises the next nonce to at least `nonce`, where the chain is ahead of the ledger. Returns the next nonce."""
        ...

    async def lower_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        """Lowers the next nonce to `nonce`, where the chain is behind the ledger and no open attempt has that nonce or a later one. Returns
        the next nonce."""
        ...

    async def add_attempt(
        self, attempt: SettlementAttempt, *, is_filling: bool = False
    ) -> bool | NonceUnavailable:
        """Stores a further attempt of a call in `settling`, durable. Its nonce is the next one of its key, or that of an earlier attempt of
        the same call. False where the call is not `settling` any more. `is_filling`: fills a gap in the sequence. Allowed in any state
        of the call, but only with the nonce of an earlier attempt of the call, or with a passed nonce without an open attempt; False
        otherwise."""
        ...

    async def attempts_of(self, call_id: CallId) -> tuple[SettlementAttempt, ...]:
        """All attempts to settle that call, oldest first."""
        ...

    async def open_attempts(
        self, chain_id: ChainId, sender: Address, *, limit: int
    ) -> tuple[SettlementAttempt, ...]:
        """The order is by nonce, and the oldest attempt of a nonce comes first."""
        ...

    async def mark_mined(self, chain_id: ChainId, sender: Address, *, below: int) -> None: ...

    async def reopen(self, chain_id: ChainId, sender: Address, *, since_nonce: int, since_ms: int) -> None:
        """Reopens the attempts from `since_nonce` on that were made since `since_ms`: their nonces are not known to be mined any more."""
        ...

    async def record_cost(self, attempt: SettlementAttempt, *, cost_wei: int) -> None:
        """Records the actual cost of a mined attempt, for the budget of the listing."""
        ...

    async def gas_spent_wei(self, chain_id: ChainId, *, since_ms: int) -> Mapping[ListingId, int]:
        """The actual or maximum cost of settlements since then, by listing, without zeros. Attempts of one nonce count once."""
        ...

    # ---- Payers with code: attempts with a `code_hash`.

    async def record_wallet_cost(
        self, attempt: SettlementAttempt, *, cost_wei: int, is_reverted: bool
    ) -> None:
        """Records the cost of a mined attempt and whether it reverted, where its payer has code; else does nothing."""
        ...

    async def wallet_gas_wei(self, chain_id: ChainId, *, since_ms: int) -> Mapping[ListingId, int]:
        """The part of `gas_spent_wei` for payers with code."""
        ...

    async def reverting_codes(self, chain_id: ChainId, *, since_ms: int) -> Mapping[bytes, CodeRecord]:
        """The records of the codes that have reverted since then, by code hash."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinalBlock:
    """`is_agreed`: the receipts of all its payments were read again since they were recorded (`mark_checked`); not compared by equality."""

    chain_id: ChainId
    number: int
    block_hash: bytes
    is_agreed: bool = field(compare=False)


class Finality(Protocol):
    """The finality of payments, and the changes by a reorganisation."""

    async def unfinal_blocks(
        self, chain_id: ChainId, *, after: UnfinalBlock | None, limit: int
    ) -> tuple[UnfinalBlock, ...]:
        """The blocks after `after` that have `unfinal` payments, each once, by number and hash."""
        ...

    async def unfinal_in(
        self, block: UnfinalBlock, *, after_id: int, limit: int, is_unchecked_only: bool = False
    ) -> tuple[Payment, ...]:
        """The `unfinal` payments of that block with an id above `after_id`, by id. `is_unchecked_only`: only payments whose receipts were
        not read again since they were recorded, raised or returned to the chain."""
        ...

    async def gone_payments(
        self, chain_id: ChainId, *, after_id: int, limit: int, now_ms: int
    ) -> tuple[Payment, ...]:
        """The payments that became `gone` less than a day ago and have an id above `after_id`, by id."""
        ...

    async def finish_block(self, block: UnfinalBlock, *, is_checked_only: bool, now_ms: int) -> int:
        """Moves all payments of that block from `unfinal` to `final`, in one statement. Returns their number. Disputed payments stay
        `unfinal` until `free_disputed`: as `final` they would stay held for ever.

        `is_checked_only`: only payments whose receipts were read again. Written, not flushed: a lost write is repeated later."""
        ...

    async def mark_checked(
        self, payment_ids: Sequence[int], *, block_number: int, block_hash: bytes, now_ms: int
    ) -> None:
        """The receipts of these payments were read again and confirm that block. Changes only `unfinal` payments. Written, not flushed."""
        ...

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        """Records that the transaction left the chain. One small commit ends the spending; then its charged calls become `reorged`, in commits of at most
        `moved_calls_max` calls. Returns the debt in ledger units. Where it raises, or its process ends, `continue_moves` does the rest."""
        ...

    async def continue_moves(self, chain_id: ChainId, *, now_ms: int) -> int:
        """Moves the charged calls of gone payments that a `mark_gone` has left, and pays the debts of accounts that have unspent credit, in commits
        as those of `mark_gone`. Returns the new debt in ledger units."""
        ...

    async def hold_disputed(self, payment_ids: Sequence[int]) -> int:
        """Holds payments about which nodes disagree: their credit cannot be spent until `free_disputed`. Changes only `unfinal` payments
        that are not held yet. Returns their number."""
        ...

    async def held_unfinal(self, chain_id: ChainId, *, limit: int) -> tuple[Payment, ...]:
        """The `unfinal` payments that are held because nodes disagree. Empty while balances are held after a restore: the operator's
        release frees them then."""
        ...

    async def free_disputed(self, payment_ids: Sequence[int]) -> int:
        """Frees disputed payments about which nodes agree again; none while balances are held after a restore. Returns their number."""
        ...

    async def authorizations_in(self, payment_id: int, *, limit: int) -> tuple[AuthorizedCall, ...]: ...

    async def move_transfer(
        self, call_id: CallId, *, before: TxHash, transfer: SettledTransfer, now_ms: int
    ) -> bool:
        """Moves the transfer of a call's authorisation from the transaction `before` to another one, in one durable commit. Its units and
        the parts on them move from one payment to the other. A `gone` payment of the new transaction returns, and arriving units pay
        debts first. False where the ledger has no such transfer in `before`."""
        ...


POSTPONED_MS_MAX = 960_000
"""The maximum delay of the next check of an unfinished settlement."""


@per_call_record
class Claim:
    """A request to take `price_units` from a payment and to open a call in `forwarding`, owned by this gateway, epoch 1.

    `payment_id` None: a free call, which takes nothing (payer, asset and the other payment members may be None), or one that
    `authorization` pays.
    `digest`: 32 bytes over payer, listing, method, target and body, which identify the request. `UNKNOWN_DIGEST` while the hash of the
    body is not known.
    `nonce`: of a bound signature; counts once per transaction, for a claim or for a call that runs again, unless its call ends `released`.
    `is_first_price`: the price is valid only while nothing was taken from the payment.
    `is_plain`: the proof has a plain signature. `ends_plain`: it has a bound one, so plain signatures of the payment end with this claim.
    `decimals`: of the asset, as its contract counts.
    `authorization`: pays this call instead of a payment, with its `cover`. Its amount is exactly `price_units`.
    `client_network`: a keyed hash of the network of the request.
    `metering`: the formulas of a metered call (`registry.metering.write_formulas`), whose maximum is `price`.
    `channel`: the voucher that pays this call; with the `authorization` of a deposit where the channel has too little, and then that moves more than the price.
    `tags`: of the listing, for the policy of the payer's owner.
    `is_separate_call`: opens a new call although the same request has an open one, because that call could not be reopened.
    """

    call_id: CallId
    listing_id: ListingId
    listing_name: str
    provider: Address
    payer: Address | None
    method: str
    path: str
    digest: bytes
    price: str
    price_units: int
    currency: str
    payment_id: int | None
    chain_id: ChainId | None
    asset: str | None
    decimals: int
    tx_hash: TxHash | None
    pay_to: Address | None
    nonce: bytes | None
    ends_plain: bool
    is_plain: bool
    is_first_price: bool = False
    idempotency_key: str | None
    request_id: str
    created_ms: int
    authorization: Authorization | None = None
    cover: Cover | None = None
    client_network: bytes | None = None
    is_separate_call: bool = False
    metering: str | None = None
    channel: ChannelClaim | None = None
    tags: tuple[str, ...] = ()


@per_call_record
class Claimed:
    """A granted claim: the price is taken, durably. `remaining_units`: the credit left on the claimed payment. `rail`: first call or credit.

    `before`: only of a reopened call: the state to which it returns where its repeat is not sent completely. It is not released then,
    because an earlier run was sent.
    """

    epoch: int
    remaining_units: int
    rail: Rail
    before: CallState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """A refused claim: too little credit. Nothing changed. `remaining_units`: the available units of the claimed payment and its siblings.
    `held_units`: the units of the claimed payment that running and unknown calls hold, and those of `is_payment_held`. They may come back,
    so the caller need not pay again. `is_payment_held`: held siblings have the missing units.
    """

    remaining_units: int
    held_units: int = 0
    is_payment_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceUsed:
    """A refused claim or reopen: the bound signature has paid for a call or has run one again, or its call is still running (`state`)."""

    call_id: CallId
    state: CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainEnded:
    """A refused claim: a plain signature, after a bound signature has ended the plain form of the payment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unspendable:
    """A refused claim: the payment is held (after a restore, or because nodes disagree about it), or gone from the chain."""

    is_held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InDebt:
    """A refused claim: the payer owes `units` to this payee in this asset on this chain, and has no credit there to pay them: `claim` pays debts from
    unspent credit before it refuses. Nothing else changed."""

    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinalLimit:
    """A refused claim: the payer has spent the maximum of unfinal value that the operator allows. Nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFirst:
    """A refused claim: its price is only for the first call of a payment, and the payment has paid for a call. Nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationTaken:
    """A refused claim: the authorisation pays another call, or an earlier claim of the same request. Nothing changed."""

    call_id: CallId
    state: CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCovered:
    """A refused claim: the balance does not cover this authorisation and the pending ones, `held_units`. Nothing changed."""

    held_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExceeded:
    """A refused claim: the policy of the owner to whom the payer's wallet is bound does not cover it. Nothing changed.

    `limit`: the member of the policy that is used up, with what is left of it in 10^-9 of `currency`. `until_ms`: when the refusal may end; None where time alone does not
    end it."""

    reason: Literal["no_policy_in_force", "other_currency", "target_not_allowed", "limit"]
    limit: str | None = None
    left_nano: int = 0
    currency: str | None = None
    until_ms: int | None = None


Refusal = Exhausted | NonceUsed | PlainEnded | Unspendable | InDebt | UnfinalLimit | NotFirst
ClaimOutcome = (
    Claimed
    | Refusal
    | BudgetExceeded
    | AuthorizationTaken
    | NotCovered
    | ChannelRefusal
    | KeyTaken
    | RepeatsOpenCall
)


@per_call_record
class Finish:
    """The end of a response body. Written lazily: a crash may lose it, unless the response was cut. `is_cut`: the upstream cut the
    response, so the same request may be repeated until one more response has begun. `usage`: of a metered call; then the write is tried again until it
    succeeds, or until recovery has ended the call with its base."""

    call_id: CallId
    epoch: int
    delivery: Delivery
    request_bytes: int
    response_bytes: int
    completed_ms: int
    is_cut: bool = False
    usage: Usage | None = None


@per_call_record
class Close:
    """The move out of `forwarding`: to `consumed`, `released` or `unknown`; with `Ledger.settle` to `settling`.

    `consumed` without an upstream status: the repeat of a consumed call was not sent completely, and the results of its first run stay
    written. `finish`: given where the whole body arrived before the close; one write has both. `usage`: of a metered call, where it is known at the head. `is_metered`: the end of the body decides the price of the call. `provider`, `payer`: of the call, for the events of
    webhooks.
    """

    call_id: CallId
    epoch: int
    after: CallState
    http_status: int | None
    upstream_status: int | None
    latency_ms: int
    upstream_latency_ms: int | None
    error: str | None
    finish: Finish | None = None
    usage: Usage | None = None
    is_metered: bool = False
    provider: Address | None = None
    payer: Address | None = None

    @property
    def known_usage(self) -> Usage | None:
        return self.usage if self.finish is None else self.finish.usage


@per_call_record
class Closed:
    """A written close. `remaining_units`: the credit left on the claimed payment; None for a free call. `is_reorged`: the payment left its chain before, so
    a charged call is a debt. `moved_ms`: when the state was written; None where the statement does not return it, which is never so for
    a call that an authorisation pays. `announced`: the announced sum of the channel after the end of this call; None for another call."""

    remaining_units: int | None
    is_reorged: bool = False
    announced: int | None = None
    moved_ms: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """A refused move: another gateway, or recovery, has moved this call. The calling gateway must stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMoney:
    """A call without an end, or a payment that is not spendable. `id`: of the call, or the hash of the transaction. `asset` (`Asset.key`), `chain_id`, `payer` None: of a call
    of a free API. `units`: ledger units of the asset."""

    is_call: bool
    id: str
    payer: Address | None
    chain_id: ChainId | None
    asset: str | None
    units: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of checking the balance equation. `wrong`: a line for each payment that differs from the sum of its calls, and for each
    call that holds more or less than its state requires. `held_calls`: `unknown` and `settling`, oldest first. `held`: the same calls, then the held payments, with what
    each holds.

    `closed_periods`: the closed hours and days that were compared with their calls; `wrong_periods` has lines about the sums that differ,
    `wrong_period_starts` the start of each such period, in milliseconds.
    `marked_periods` wait for their next write and were not compared."""

    payments: int
    calls: int
    wrong: tuple[str, ...]
    held_calls: tuple[CallId, ...]
    held_payments: tuple[str, ...]
    closed_periods: int = 0
    marked_periods: int = 0
    wrong_periods: tuple[str, ...] = ()
    wrong_period_starts: tuple[int, ...] = ()
    held: tuple["HeldMoney", ...] = ()

    @property
    def is_balanced(self) -> bool:
        return not self.wrong

    @property
    def is_right(self) -> bool:
        """The ledger balances, and its closed periods equal their calls."""
        return self.is_balanced and not self.wrong_periods


class PaymentLedger(Protocol):
    async def find_payments(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        """Includes payments on every chain and by every payer."""
        ...

    async def find_transaction(self, tx_hash: TxHash) -> RecordedTransaction:
        """The payments of a transaction and the other facts that verification needs, read at one time."""
        ...

    async def record_payments(
        self, payments: Sequence[NewPayment], *, now_ms: int, based_on: RecordedTransaction | None = None
    ) -> tuple[Payment, ...]:
        """Adds the payments that are not recorded yet (key: chain, hash, asset, payer, payee) and returns all of them. A `gone` payment
        that is mined again returns, and its calls leave their debt. A payment read again with a higher value is raised
        (`is_worth_more`), never lowered. Arriving value first pays the debts of the payer to the payee, oldest call first, in commits of
        at most `moved_calls_max` calls; a claim, or `continue_moves`, pays what an early end has left.

        `based_on`: the facts of the verification. Where the database has been replaced by an older one since, nothing is written
        (`StorageUnavailable`)."""
        ...


class SettlementLedger(Protocol):
    """The calls that an authorisation pays, and their settlement."""

    def shared_ms(self) -> int:
        """The time of the clock that all gateways of this ledger share, as of the last renewal. Times in the ledger are of that clock."""
        ...

    async def find_authorized_call(self, key: AuthorizationKey) -> AuthorizedCall | None:
        """The newest call that claimed this authorisation. The call holds it unless it is `released`."""
        ...

    async def has_open_deployment(self, call: CallId, *, chain_id: ChainId, payer: Address) -> bool:
        """Whether the transaction of another `settling` call of this wallet deploys it: it is stored, and the signature of the call is wrapped (ERC-6492)."""
        ...

    async def find_call_authorization(self, call_id: CallId) -> AuthorizedCall | None:
        """The call with its authorisation; None where no authorisation pays it, or its authorisation pays a later call."""
        ...

    async def close(self, close: Close) -> Closed | Fenced:
        """Moves a call of this gateway out of `forwarding`. Written, not flushed, when it returns.

        `released` returns the price to the payment; in `unknown` the price stays taken. A repeat of a consumed call that got no head
        returns to `consumed`, and may run again up to `attempts_max`. A close with an upstream response is retried for
        `close_patience_s`. Where it raises `StorageUnavailable`, the gateway must drop that response: a close to `consumed` is then
        written by `decide_dropped_call` as soon as the store accepts writes, and before this gateway claims, reopens or looks up
        that call."""
        ...

    async def settle(
        self, close: Close, *, attempt: SettlementAttempt | None, digest: bytes | None
    ) -> Closed | Fenced | NonceUnavailable:
        """`forwarding` -> `settling` (`close.after`), durable: the response costs, and money may move from here on. `attempt`: the signed
        transaction, whose nonce is taken in the same commit; None where there is none yet. `digest`: replaces the digest of the claim
        where the hash of the body is known only now. Retried and dropped like `close`."""
        ...

    async def conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        """Ends `settling`, durable. `transfer`: the settled transfer, recorded as a payment; None: there is none and there will be none, and
        the call is `released`. For the waiting gateway (`is_orphaned` False; its own call and epoch): `consumed`. For settlement
        recovery (`is_orphaned` True; an orphaned call, or one that is `unknown` and unpaid): `consumed` where its response is stored,
        where its provider charged it (`resolve`), or where the same request may run again (lost: one more run); else `released`, and the payment is credit. Returns the new
        state; None: another move was first. `now_ms`: of the shared clock; the row of the call then has exactly this time. For the waiting
        gateway it is retried and dropped like `close`."""
        ...

    async def mark_orphaned(self, call_id: CallId, *, epoch: int, usage: Usage | None = None) -> bool:
        """Leaves a settlement to settlement recovery: this gateway stops waiting for it (also after `settle` or `conclude` raised). `usage`: of a metered
        call whose response was read meanwhile; the deposit pays that price.
        `recover` does the same for settlements of dead gateways."""
        ...

    async def unsettled(self, *, limit: int) -> tuple[AuthorizedCall, ...]:
        """The orphaned calls in `settling`, and the calls that are `unknown` and unpaid for longer than the hold, without postponed ones;
        least recently checked first. No transaction is signed for an unknown call: it may not have cost anything."""
        ...

    async def postpone(self, call_id: CallId, *, until_ms: int) -> None:
        """Excludes a call from `unsettled` until then, because there is nothing to do for it. A time further ahead than `POSTPONED_MS_MAX` is
        ignored: since it was written, the clock was set back."""
        ...


class Ledger(SettlementLedger, Protocol):
    """The calls. A claim that raises `StorageUnavailable` has an unknown outcome: nothing was sent, so recovery releases the call once its owner is
    seen again or found dead."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        """Takes the price and opens the call in one durable transaction, grouped with other claims.

        The sum of all granted claims on a payment never exceeds its value. Where the claimed payment has credit left, but less than
        the price, the difference comes from other payments of the same payer, payee and asset whose own credit is below the price,
        oldest first. A debt of the account is paid from its unspent credit before the claim is decided. Of all claims with one idempotency key of one wallet, one is granted, until its call is released or expires
        (`response_ttl_s`). A claim with a safe method and without a key gets `RepeatsOpenCall` where the newest call of the same request
        on that payment is `unknown`, or its response was cut and no repeat has delivered it.
        """
        ...

    def finish(self, finish: Finish) -> None:
        """Records the end of the response body. Returns at once; a later batch writes it."""
        ...

    async def finish_cut(self, finish: Finish) -> None:
        """Records the end of a response body that the upstream cut (`is_cut`). Returns when it is durable, so that a repeat at any gateway finds the
        cut, or after `cut_wait_s`: then it is written as soon as the store accepts writes. That is before this gateway claims, reopens or looks up
        that call. Raises nothing. A cancelled caller withdraws nothing."""
        ...

    async def find_open_call(self, payment_id: int, digest: bytes) -> OpenCall | None:
        """The newest call of the same request on that payment that has no outcome (`forwarding` or `unknown`), or whose response was cut
        and not delivered by a repeat."""
        ...

    async def find_exhausted(self, claim: Claim) -> Exhausted | NonceUsed | None:
        """The refusal of `claim` by a payment without credit. None: the claim may be granted, or is refused for another reason. Only reads,
        so that a spent payment is refused before the gateway connects to the upstream."""
        ...

    async def find_keyed_call(
        self, payer: Address, idempotency_key: str, *, since_ms: int
    ) -> KeyedCall | None:
        """The newest call of that payer with that key that was created at `since_ms` or later and is not released."""
        ...

    async def reopen(
        self,
        call_id: CallId,
        *,
        epoch: int,
        now_ms: int,
        is_plain: bool = False,
        nonce: bytes | None = None,
    ) -> Claimed | Fenced | NonceUsed:
        """Moves an `unknown` call, or a consumed call with a cut response, to `forwarding` under the same claim: epoch + 1, attempts + 1,
        durable, at most `attempts_max` times. `epoch`: the expected epoch. A plain signature (`is_plain`) is refused after a bound
        signature has ended the plain form of the payment. `nonce`: of a bound signature for the payment of the call. It counts as the
        nonce of a claim does: it is refused where another call holds it, it is held by this call from then on, and it ends the plain
        form of the payment."""
        ...

    async def spending_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        """The newest call comes first."""
        ...

    async def resolve(self, call_id: CallId, outcome: CallState, *, now_ms: int) -> CallState | None:
        """Ends an `unknown` call as its provider decides: `released` or `consumed`. Returns the new state; None where the call is not `unknown`.
        `consumed` for a call whose authorisation has not moved its money is `settling`, and the call is orphaned: settlement recovery
        settles it, and it ends `consumed` only with the transfer."""
        ...


class ChannelLedger(Protocol):
    """The channels: what is on their chain, and what their calls have taken."""

    async def find_channel(self, chain_id: ChainId, channel_id: ChannelId) -> Channel | None: ...

    async def open_channel(
        self,
        chain_id: ChainId,
        channel_id: ChannelId,
        config: ChannelConfig,
        facts: ChannelFacts,
        *,
        decimals: int,
        now_ms: int,
    ) -> Channel:
        """The channel in the ledger; added where it is not there yet. A new one begins with the claimed sum of the chain as its announced sum. `decimals`: of its token."""
        ...

    async def renew_channel(self, key: int, facts: ChannelFacts, *, now_ms: int) -> Channel:
        """Writes what the chain says of a channel, in one durable commit; nothing where an earlier block says it than the one that is written. A balance below what the
        calls of the channel hold makes the newest of them `reorged`, until the rest is covered; a higher one makes them `consumed` again, the oldest
        first. A withdrawal in sight closes the channel to calls, until it has ended."""
        ...


class ChannelClaimLedger(Protocol):
    """The claims of channels on their chain."""

    async def find_channel_by_key(self, key: int) -> Channel | None: ...

    async def list_claimable(
        self, chain_id: ChainId, *, unclaimed_max: int, limit: int
    ) -> tuple[ClaimableChannel, ...]:
        """The channels with money to claim that are in no open claim, the dearest first. `unclaimed_max`: what a payer may owe, in units of the currency (`is_held_up`)."""
        ...

    async def add_claim(self, claim: OpenClaim, attempt: SettlementAttempt) -> bool | NonceUnavailable:
        """Stores a claim and its signed transaction in one durable commit, which takes the nonce. From here on its vouchers are published, and announced. False where one of its
        channels is in another open claim, or has a call that has begun below an announced ceiling."""
        ...

    async def list_open_claims(self, chain_id: ChainId) -> tuple[OpenClaim, ...]: ...

    async def list_watched(self, chain_id: ChainId, *, after_key: int, limit: int) -> tuple[Channel, ...]:
        """The channels that hold money on their chain, or owe some there, by key."""
        ...

    async def find_watched(
        self, chain_id: ChainId, channel_ids: Collection[ChannelId]
    ) -> tuple[Channel, ...]:
        """Those of these channels that `list_watched` lists, by key. Reads no other channel."""
        ...

    async def note_look(self, chain_id: ChainId, *, now_ms: int) -> None:
        """Records that all channels of the network were looked at."""
        ...

    async def read_look_ms(self, chain_id: ChainId) -> int | None: ...

    async def find_activity(self, key: int) -> ChannelActivity: ...

    async def mark_refused(self, receiver: Receiver, *, now_ms: int) -> None:
        """Records that the settle of a receiver fails. Its channels take no call meanwhile."""
        ...

    async def clear_refused(self, receiver: Receiver) -> None: ...

    async def list_refused(self) -> Mapping[Receiver, int]:
        """The receivers of all networks whose settle fails, with when the first one failed."""
        ...

    async def mark_unused(self, key: int, since_ms: int | None) -> None:
        """Records since when no listing can use a channel; None: one can."""
        ...

    async def list_unused(self, chain_id: ChainId, *, before_ms: int, limit: int) -> tuple[Channel, ...]:
        """The channels that are unused since then or longer and may be refunded: they hold money beyond their calls, no call, claim or withdrawal has them, and no refund began since
        then. The dearest first."""
        ...

    async def drain_channel(self, key: int) -> None:
        """The channel takes no call any more. What it holds is still claimed and refunded."""
        ...

    async def list_unsettled(self, chain_id: ChainId) -> tuple[UnsettledReceiver, ...]:
        """The receivers for whom more is claimed than is known as paid out."""
        ...

    async def mark_settled(self, totals: Mapping[int, int]) -> None:
        """Records that the contract has paid out these claimed sums of channels, by their keys. A lower sum than the recorded one changes nothing."""
        ...

    async def close_claim(self, claim_id: CallId, *, now_ms: int) -> None:
        """Ends a claim: its transaction is mined, or can never be. `renew_channel` has written what the chain says of its channels."""
        ...


class Readiness(Protocol):
    """The record of the times at which a gateway was ready."""

    async def mark_ready(self, *, now_ms: int) -> None:
        """Records that the gateway is ready now. The age of a payment does not count between records more than a minute apart."""
        ...

    async def downtime_ms(self, *, since_ms: int, now_ms: int) -> int: ...


class OperatorLedger(Protocol):
    """The operator's view of the ledger. Each change is recorded as an audit entry of `origin`, in the same transaction."""

    async def audit(self) -> AuditReport: ...

    async def release_held(self, *, origin: AuditOrigin) -> int:
        """A payment about which nodes disagree is held again by a later check. Returns the number of payments."""
        ...

    async def admit(self, tx_hash: TxHash, *, origin: AuditOrigin) -> None:
        """Admits a transaction although it is too old, or mined before a restore."""
        ...

    async def unbind_wallet(self, wallet: Address, *, origin: AuditOrigin) -> Address | None:
        """Ends that a wallet has an owner, and its policy. Returns that owner; None where it had none."""
        ...

    async def mark_restored(self, *, origin: AuditOrigin) -> None:
        """Records a restore of an older database: holds every balance in it until `release_held`."""
        ...

    async def rewrite_periods(self, starts_ms: Sequence[int], *, origin: AuditOrigin) -> int:
        """The gateway that leads writes the closed hours and days that begin then again from their calls. Returns their number."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response for repeats: status, headers as sent to the caller without the headers about the call, and body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = field(repr=False)


class StoredResponses(Protocol):
    async def keep(
        self, call_id: CallId, answer: StoredResponse, *, payer: Address, provider: Address, now_ms: int
    ) -> bool:
        """Stores a response durably, and deletes others where a limit requires it: of this payer or provider, or of those that hold most. Responses of the
        last hour whose payer holds less than an equal share stay. False where it exceeds a limit alone, or no other may be deleted."""
        ...

    async def find(self, call_id: CallId, *, now_ms: int) -> StoredResponse | None:
        """The response of that call, where it is stored, not older than 24 hours, and sealed with a key that the gateway has."""
        ...

    async def prune(self, *, now_ms: int) -> int:
        """Returns the number of deleted responses."""
        ...
