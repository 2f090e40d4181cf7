"""The ports of the ledger, and the records that pass through them. `storage` keeps them in SQL; the tests have a model in memory.
Both pass one contract suite, and both decide a batch of claims with the same pure function (`ledger/claims.py`).

A reader names the port that it needs: `Ledger` (the calls of the pipeline) and `SettlementLedger` (their settlements), `PaymentLedger`
(payments), `Finality` (what a reorganisation changes), `GasLedger` (nonces and transactions of gas keys), `OperatorLedger` and
`Readiness` (records of the operator and of the gateways), `StoredResponses`; `CallHistory` is in `ledger/history.py`.

Laws. A claim and its call row are one durable transaction. A close is written before its caller receives the head and flushed by
the next durable commit. Every move names the state and the epoch that it expects; a move that finds another is *fenced* and must
stop. taken(payment) = sum of the prices of the calls that take from it, at any moment.

A block decides the finality of all its payments. A reorganisation can move a transfer to another transaction: the same money was
paid once, so no debt follows. A nonce of a gas key is taken in the transaction that stores what is signed with it. Stored responses
are bounded in size and time and encrypted at rest; losing one costs a repeat, never money.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tollway.ids import Address, CallId, ChainId, ListingId, TxHash
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceUnavailable:
    """Another transaction has this key's nonce, or it is not the next one. Nothing changed."""

    next_nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRecord:
    """Transactions for payers with one and the same code (contract wallets, delegated accounts): how many were signed, and
    how many of them reverted in their block."""

    signed: int
    reverted: int


class GasLedger(Protocol):
    """Safe to use from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def next_nonce(self, chain_id: ChainId, sender: Address) -> int:
        """The nonce that the sequence's next transaction takes; 0 for a sequence that was never used."""
        ...

    async def raise_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        """Lets the sequence go on at `nonce` or later (the chain counts further than we do); returns what holds."""
        ...

    async def lower_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        """Lets the sequence go on at `nonce` again where nothing of ours waits with that nonce or a later one: the chain never
        counted as far as the sequence did. Returns what holds."""
        ...

    async def add_attempt(
        self, attempt: SettlementAttempt, *, is_filling: bool = False
    ) -> bool | NonceUnavailable:
        """Stores a further attempt of a call in `settling`, durable: the next nonce of its key, or a nonce that an
        earlier attempt of the same call has. False when the call is not `settling` any more. `is_filling`: in
        any state of the call, but only with such an earlier nonce, or with one that its sequence has passed and for which no
        call has anything that waits (otherwise False): the sequence waits for it."""
        ...

    async def attempts_of(self, call_id: CallId) -> tuple[SettlementAttempt, ...]:
        """Every attempt to settle that call, oldest first."""
        ...

    async def open_attempts(
        self, chain_id: ChainId, sender: Address, *, limit: int
    ) -> tuple[SettlementAttempt, ...]:
        """Attempts whose nonce is not known to be mined, by nonce, those of one nonce oldest first."""
        ...

    async def mark_mined(self, chain_id: ChainId, sender: Address, *, below: int) -> None:
        """Every nonce under `below` is mined: its attempts are closed."""
        ...

    async def reopen(self, chain_id: ChainId, sender: Address, *, since_nonce: int, since_ms: int) -> None:
        """From `since_nonce` on nothing is known to be mined any more: of what was made since then the attempts are
        open again."""
        ...

    async def record_cost(self, attempt: SettlementAttempt, *, cost_wei: int) -> None:
        """What a mined attempt really cost, for the listing's budget."""
        ...

    async def gas_spent_wei(self, chain_id: ChainId, *, since_ms: int) -> Mapping[ListingId, int]:
        """What settling has cost, or may cost, since then, by listing; only those that cost anything. Attempts of one
        nonce count once."""
        ...

    # ---- Payers with code: attempts with a `code_hash`.

    async def record_wallet_cost(
        self, attempt: SettlementAttempt, *, cost_wei: int, is_reverted: bool
    ) -> None:
        """What a mined attempt cost and whether it reverted, where its payer has code; otherwise nothing happens."""
        ...

    async def wallet_gas_wei(self, chain_id: ChainId, *, since_ms: int) -> Mapping[ListingId, int]:
        """The part of `gas_spent_wei` that settling for payers with code has cost, or may cost."""
        ...

    async def reverting_codes(self, chain_id: ChainId, *, since_ms: int) -> Mapping[bytes, CodeRecord]:
        """By code hash, of the codes that have reverted since then."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinalBlock:
    """A block that holds payments which are not final. `is_agreed`: the receipts of all of them were read again since
    they were recorded (`mark_checked`); not a part of what makes two of them equal."""

    chain_id: ChainId
    number: int
    block_hash: bytes
    is_agreed: bool = field(compare=False)


class Finality(Protocol):
    """Safe to call from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def unfinal_blocks(
        self, chain_id: ChainId, *, after: UnfinalBlock | None, limit: int
    ) -> tuple[UnfinalBlock, ...]:
        """The blocks of payments that are `unfinal`, each once, by number and hash; those behind `after`."""
        ...

    async def unfinal_in(
        self, block: UnfinalBlock, *, after_id: int, limit: int, is_unchecked_only: bool = False
    ) -> tuple[Payment, ...]:
        """The `unfinal` payments of that block by ascending id, above `after_id`. `is_unchecked_only`: those whose receipts
        were not read again since they were recorded, raised or came back."""
        ...

    async def gone_payments(
        self, chain_id: ChainId, *, after_id: int, limit: int, now_ms: int
    ) -> tuple[Payment, ...]:
        """Payments that are `gone` for less than a day, by ascending id, above `after_id`."""
        ...

    async def finish_block(self, block: UnfinalBlock, *, is_checked_only: bool, now_ms: int) -> int:
        """`unfinal` -> `final` for all payments of that block, in one statement. Returns how many. What is held because
        nodes disagree stays `unfinal` until `free_disputed`: it would be held for ever.

        `is_checked_only`: only those whose receipts were read again. Written, not flushed: what is lost is found again."""
        ...

    async def mark_checked(
        self, payment_ids: Sequence[int], *, block_number: int, block_hash: bytes, now_ms: int
    ) -> None:
        """The receipts of these payments were read again, and say that they are in that block. Changes only what is
        `unfinal`. Written, not flushed."""
        ...

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        """The transaction left the chain: value 0, its spent calls `reorged`. Returns the debt in ledger units."""
        ...

    async def hold_disputed(self, payment_ids: Sequence[int]) -> int:
        """Nodes disagree about these payments: what is unspent of them cannot be spent until `free_disputed`. Only what
        is `unfinal`, and is not held yet. Returns how many."""
        ...

    async def held_unfinal(self, chain_id: ChainId, *, limit: int) -> tuple[Payment, ...]:
        """The `unfinal` payments that are held because nodes disagree. None while balances are held after a restore:
        then the operator's release frees them."""
        ...

    async def free_disputed(self, payment_ids: Sequence[int]) -> int:
        """Nodes agree about these payments again. Frees nothing while balances are held after a restore. Returns how many."""
        ...

    async def authorizations_in(self, payment_id: int, *, limit: int) -> tuple[AuthorizedCall, ...]:
        """The calls whose authorisations made that payment, as far as the ledger knows."""
        ...

    async def move_transfer(
        self, call_id: CallId, *, before: TxHash, transfer: SettledTransfer, now_ms: int
    ) -> bool:
        """The authorisation of that call made its transfer there, and not in `before`. Its units go from one payment to
        the other, with what is held of them, in one durable commit; a payment there that was gone is back, and what
        arrives pays debts first. False when the ledger does not know that transfer in `before` (any more)."""
        ...


POSTPONED_MS_MAX = 960_000
"""The longest time until the next check of an unfinished settlement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Take `price_units` from a payment and open a call in `forwarding`, owned by this gateway, epoch 1.

    `payment_id` None: a free call, recorded but taking nothing (then payer, asset and the rest may be None).
    `digest`: 32 bytes over payer, listing, method, target and body: what makes two requests the same. While the body's
    hash is not known, `settled.UNRECOGNISABLE`.
    `nonce`: of a bound signature; counts once per transaction, unless its call ended `released`.
    `is_first_price`: the price holds only while nothing has been taken from the payment.
    `ends_plain`: the proof has a bound signature; the payment's plain form ends with this claim.
    `decimals`: of the asset itself, as its contract counts.
    `authorization`: what pays this call instead of a payment (then `payment_id` is None), with the `cover` that was
    seen for it. Its amount is `price_units` to the unit.
    `client_network`: a keyed hash of the network that showed the authorisation.
    `is_separate_call`: a call of its own, although the same request has one without an outcome: that one did not let itself be
    reopened.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The price is taken, durably. `remaining_units`: what the shown payment has left. `rail`: first call or credit.

    `before`: of a call that was reopened, the state to which it goes back when its repeat is not wholly sent. An
    earlier run was, so it is never released for that.
    """

    epoch: int
    remaining_units: int
    rail: Rail
    before: CallState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """Not enough left; nothing changed. `remaining_units`: what the shown payment and its siblings could still give.
    `held_units`: what calls that are running, or whose outcome is unknown, hold of the shown payment. It may come
    back, so no caller has to pay again because of it.
    """

    remaining_units: int
    held_units: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceUsed:
    """This bound signature already bought a call, or its call is still running (`state`)."""

    call_id: CallId
    state: CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainEnded:
    """A plain signature for a payment whose plain form a bound signature has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unspendable:
    """The payment is held, after a restore or because nodes disagree about it, or gone from the chain."""

    is_held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InDebt:
    """The payer owes this much to this payee in this asset on this chain. Nothing changed."""

    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinalLimit:
    """The payer has spent as much value that is not final yet as the operator allows. Nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFirst:
    """The price was that of a payment's first call, and the payment has bought something by now. Nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationTaken:
    """The authorisation pays another call (or this very one, presented again). Nothing changed."""

    call_id: CallId
    state: CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCovered:
    """The payer's balance does not cover this authorisation beside those that are on their way. Nothing changed.
    `held_units`: what those hold."""

    held_units: int


Refusal = Exhausted | NonceUsed | PlainEnded | Unspendable | InDebt | UnfinalLimit | NotFirst
ClaimOutcome = Claimed | Refusal | AuthorizationTaken | NotCovered | KeyTaken | RepeatsOpenCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What is known only when the answer has been streamed. Written lazily: a crash may lose it. `is_cut`: the upstream
    broke its answer off, so the same request may be repeated until one more answer has begun."""

    call_id: CallId
    epoch: int
    delivery: Delivery
    request_bytes: int
    response_bytes: int
    completed_ms: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """End of a forwarding: to `consumed`, `released` or `unknown`; with `Ledger.settle` to `settling`.

    `consumed` without an upstream status: the repeat of a consumed call was not wholly sent, and what its first run
    brought stays written. `finish`: of a body that is whole before the close is written; one write holds both.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """`remaining_units`: what the shown payment has left now; None for a free call."""

    remaining_units: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """Another gateway, or recovery, has moved this call. Stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The balance equation, checked. `wrong`: a line for each payment that differs from the sum of its calls, and for
    each call that holds more or less than its state says. `held_calls`: `unknown` and `settling`, oldest first."""

    payments: int
    calls: int
    wrong: tuple[str, ...]
    held_calls: tuple[CallId, ...]
    held_payments: tuple[str, ...]

    @property
    def is_balanced(self) -> bool:
        return not self.wrong


class PaymentLedger(Protocol):
    """The recorded payments. Safe to call from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def find_payments(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        """Every recorded payment of a transaction, on any chain, by any payer."""
        ...

    async def find_transaction(self, tx_hash: TxHash) -> RecordedTransaction:
        """Those, and what else a verdict on it rests on; as of one moment."""
        ...

    async def record_payments(
        self, payments: Sequence[NewPayment], *, now_ms: int, based_on: RecordedTransaction | None = None
    ) -> tuple[Payment, ...]:
        """Adds the payments that are not there yet (key: chain, hash, asset, payer, payee) and returns all of
        them. A payment that was `gone` and is mined again comes back, and the calls that it paid leave their
        debt. One that is read again with more is raised (`is_worth_more`), and never lowered. What its payer owes
        its payee is paid first from what arrives, oldest call first.

        `based_on`: where the database was found to be an older one since, nothing is written (`StorageUnavailable`)."""
        ...


class SettlementLedger(Protocol):
    """The calls that an authorisation pays. Safe to call from many tasks and, on PostgreSQL, from many gateways at once. Raises
    `StorageUnavailable`."""

    async def find_authorized_call(self, key: AuthorizationKey) -> AuthorizedCall | None:
        """The newest call that this authorisation was claimed for; it holds it unless it is `released`."""
        ...

    async def close(self, close: Close) -> Closed | Fenced:
        """Moves a call of this gateway out of `forwarding`. Written, not flushed, when it returns.

        `released` gives the price back. The price stays taken in `unknown`. A repeat of a consumed call that brought no head
        goes back to `consumed`, and may run again while `attempts_max` allows it. A close that has an upstream's answer behind it
        is tried again for `close_patience_s`. When it raises `StorageUnavailable`, its caller must drop that answer: a
        close to `consumed` is then written as `decide_dropped_call` says, as soon as the store takes writes again, and before
        this gateway claims, reopens or looks up that call."""
        ...

    async def settle(
        self, close: Close, *, attempt: SettlementAttempt | None, digest: bytes | None
    ) -> Closed | Fenced | NonceUnavailable:
        """`forwarding` -> `settling` (`close.after`), durable: the upstream's head costs, and from here on money may
        move. `attempt`: the signed transaction, its nonce taken in the same commit; None: there is none yet. `digest`:
        replaces the claim's, when the body's hash is known only now. Tried again, and dropped, as `close` is."""
        ...

    async def conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        """The end of `settling`, durable. `transfer`: the money moved there, and is recorded as a payment; None: it
        surely never will, and the call is `released`. The gateway that waits (`is_orphaned` False; its call and epoch,
        not orphaned): `consumed`. Settlement recovery (`is_orphaned` True; an orphaned call, or one that is `unknown` and
        unpaid): `consumed` when its answer is stored, or the same request may run again (then lost: it may once more);
        else `released`, and the payment is its payer's credit. Returns the new state; None: another move was first. Of
        the gateway that waits it is tried again, and dropped, as `close` is."""
        ...

    async def mark_orphaned(self, call_id: CallId, *, epoch: int) -> bool:
        """This gateway stops waiting for its settlement (also when `settle` or `conclude` raised); settlement recovery goes
        on. `recover` does the same for those of dead gateways."""
        ...

    async def unsettled(self, *, limit: int) -> tuple[AuthorizedCall, ...]:
        """The orphaned calls in `settling`, and those that are `unknown` and unpaid for longer than the hold; not those that
        are postponed; least recently checked first. No transaction is signed for an unknown call: it may never have cost."""
        ...

    async def postpone(self, call_id: CallId, *, until_ms: int) -> None:
        """That call is not `unsettled` before then: there is nothing to do for it. A moment further ahead than
        `POSTPONED_MS_MAX` counts for nothing: the clock that it was set by has been set back."""
        ...


class Ledger(SettlementLedger, Protocol):
    """The calls. Safe to call from many tasks and, on PostgreSQL, from many gateways at once. Every method raises
    `StorageUnavailable` when the store is away; a claim that raises it has an unknown outcome, which recovery settles:
    nothing was sent, so the call is released when its owner is next seen or found dead."""

    def shared_ms(self) -> int:
        """The time that all gateways of this ledger go by, as of the last renewal. Moments in them are of that clock."""
        ...

    async def claim(self, claim: Claim) -> ClaimOutcome:
        """Takes the price and opens the call in one durable transaction, grouped with other claims.

        Between any number of claims on one payment, the sum granted never exceeds its value. When the shown
        payment has something left but less than the price, the difference comes from the same payer's other
        payments to that payee in that asset whose own rest is below the price, oldest first. Of any number of
        claims under one idempotency key of one wallet, one is granted, until its call is released or forgotten
        (`answer_ttl_s`). A claim with a safe method and without a key gets the newest call of the same request on that payment
        when that one is `unknown`, or was cut short and no repeat has brought it again (`RepeatsOpenCall`).
        """
        ...

    def finish(self, finish: Finish) -> None:
        """Notes how the stream ended. Returns at once; written with a later batch."""
        ...

    async def find_open_call(self, payment_id: int, digest: bytes) -> OpenCall | None:
        """The newest call without an outcome (`forwarding` or `unknown`) of the same request on that payment, or
        a consumed one whose answer the upstream cut short and that no repeat has brought again."""
        ...

    async def find_exhausted(self, claim: Claim) -> Exhausted | NonceUsed | None:
        """Why `claim` would be refused by a payment that has nothing left. None: it may be granted, or has another
        fault. Only reads, so that a spent payment that is presented again dials no upstream."""
        ...

    async def find_keyed_call(
        self, payer: Address, idempotency_key: str, *, since_ms: int
    ) -> KeyedCall | None:
        """The newest call of that payer with that key, made at `since_ms` or later and not released."""
        ...

    async def reopen(
        self, call_id: CallId, *, epoch: int, now_ms: int, is_plain: bool = False
    ) -> Claimed | Fenced:
        """`unknown` (or a consumed call cut by its upstream) -> `forwarding` under the same claim: epoch + 1,
        attempts + 1, durable, at most `attempts_max` times; the caller must own the fenced epoch. A plain signature
        (`is_plain`) reopens nothing once a bound one has ended its payment's plain form."""
        ...

    async def spending_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        """The calls that take from a payment, newest first."""
        ...

    async def resolve(self, call_id: CallId, after: CallState, *, now_ms: int) -> bool:
        """The provider decides an `unknown` call: `released` or `consumed`. False when it is not unknown."""
        ...


class Readiness(Protocol):
    """When a gateway was ready. Safe to call from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def mark_ready(self, *, now_ms: int) -> None:
        """The gateway is ready now. A payment's age stands still between notes more than a minute apart."""
        ...

    async def downtime_ms(self, *, since_ms: int, now_ms: int) -> int:
        """For how long since that moment no gateway was ready."""
        ...


class OperatorLedger(Protocol):
    """The operator's view of the ledger. Safe to call from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def audit(self) -> AuditReport: ...

    async def release_held(self) -> int:
        """The operator lets balances held after a restore be spent again; what nodes still disagree about is held again
        some checks later. Returns how many."""
        ...

    async def admit(self, tx_hash: TxHash, *, now_ms: int) -> None:
        """The operator admits a transaction although it is too old, or mined before a restore."""
        ...

    async def mark_restored(self, *, now_ms: int) -> None:
        """The database was restored to an older moment: holds every balance in it until `release_held`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """Status, headers as they went (or would have gone) to the caller without those about the call, and the body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = field(repr=False)


class StoredResponses(Protocol):
    """Safe to use from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def keep(self, call_id: CallId, payer: Address, answer: StoredResponse, *, now_ms: int) -> bool:
        """Stores an answer durably and deletes older ones where a limit requires it. False when it is too large alone."""
        ...

    async def find(self, call_id: CallId, *, now_ms: int) -> StoredResponse | None:
        """The answer of that call, if it is kept and not older than 24 hours."""
        ...

    async def prune(self, *, now_ms: int) -> int:
        """Drops what is too old. Returns how many."""
        ...
