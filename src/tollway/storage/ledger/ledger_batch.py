"""Writes one batch of ledger entries in one transaction. Synchronous.

An entry is one write about one call:

- `Claim` takes the price and starts the first run of a call. `Reopen` starts a further run of a call that is still open, under its claim.
- `Close` ends a run: it moves the call out of `forwarding`. `Settle` moves it to `settling`; `Conclude` moves it from there to its end.
- `Drop` ends a run whose upstream response reached no caller, because the ledger could not be written in time.
- `Finish` records how the delivery of the response body ended. It changes no state. With a usage it writes the price of a metered call, too.

The batch writes closes, settlements, reopens, finishes, then claims.

`ledger/` decides which claim is granted; this module locks the rows, calls the decision and writes its result. After a failure of unknown
outcome a batch runs again for the same entries (`is_retry`): an entry that is already written gets the outcome of the first time.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, insert, select, update

from tollway.ids import Address, CallId
from tollway.ledger.budgets import BatchSpending
from tollway.ledger.channels import ChannelName, reserve_channel
from tollway.ledger.claims import (
    CreditAccount,
    Decision,
    NonceKey,
    PayerAccount,
    channel_name,
    decide_claims,
    find_limited_accounts,
    find_short_accounts,
    is_claim_alone_plain,
)
from tollway.ledger.ledger import (
    Claim,
    Claimed,
    ClaimOutcome,
    Close,
    Closed,
    Exhausted,
    Fenced,
    Finish,
    NonceUnavailable,
    NonceUsed,
)
from tollway.ledger.records import (
    CallState,
    Delivery,
    Interruption,
    PaymentState,
    Rail,
    Usage,
    decide_dropped_call,
)
from tollway.ledger.sales import HOUR_MS, floor_to, is_hour_unmarked
from tollway.observability.metric_table import CommitKind
from tollway.storage.engine.statements import Prepared
from tollway.storage.ledger.authorizations import find_known, lock_wallets, write_claimed
from tollway.storage.ledger.budget_rows import (
    announce_refusals,
    find_debts_and_bound,
    lock_budgets,
    write_counters,
)
from tollway.storage.ledger.call_terms import CallTerms, KnownTerms, TermsReference, terms_of, write_terms
from tollway.storage.ledger.channel_rows import find_claimed_channels, sum_unclaimed, write_channels
from tollway.storage.ledger.history import find_returnable_units
from tollway.storage.ledger.idempotency import find_keyed_calls, find_open_calls, lock_keys
from tollway.storage.ledger.ledger_tables import call_table, call_terms_table, payment_table
from tollway.storage.ledger.locked_rows import (
    ADD_TOPUPS,
    LockedCall,
    LockedRows,
    payment_ids_of,
    topup_rows,
    write_marks,
)
from tollway.storage.ledger.nonces import find_nonces, take_nonce
from tollway.storage.ledger.payments import sum_unfinal_of
from tollway.storage.ledger.plain_writes import grant_plain_claims, is_plain_close, write_plain_closes
from tollway.storage.ledger.refund_rows import has_refund
from tollway.storage.ledger.settlement import BatchSettlement, Conclude, Settle
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog

NO_CHANNELS: Mapping[ChannelName, int] = MappingProxyType({})
SIBLINGS_MAX = 256
"""How many small payments of one credit account may complete the price of a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopen:
    """Runs an open call again under its claim. `is_plain`: the proof has a plain signature. `nonce`: of a bound signature."""

    call_id: CallId
    epoch: int
    is_plain: bool = False
    nonce: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopened:
    """The outcome of a granted reopen. `before`: the state to which the call returns when its caller has left."""

    claimed: Claimed
    before: CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Ends a call whose upstream response reached no caller, because the end of the call was not written in time. `close`: that end, to
    `consumed` or `settling`; None when the call was already in `settling`."""

    call_id: CallId
    epoch: int
    close: Close | None


Move = Close | Reopen | Settle | Conclude | Drop | Finish
_MOVES = (Close, Reopen, Settle, Conclude, Drop)


Entry = Claim | Move
Outcome = ClaimOutcome | Closed | Fenced | Reopened | NonceUnavailable | CallState | None


OpenKey = tuple[CallId, int]


def opened_key(entry: Entry) -> OpenKey | None:
    if isinstance(entry, Claim):
        return (entry.call_id, 1)
    if isinstance(entry, Reopen):
        return (entry.call_id, entry.epoch + 1)
    return None


def close_unsent(call_id: CallId, epoch: int, after: CallState) -> Close:
    return Close(
        call_id=call_id,
        epoch=epoch,
        after=after,
        http_status=None,
        upstream_status=None,
        latency_ms=0,
        upstream_latency_ms=None,
        error="caller_left",
    )


def ended_key(entry: Entry) -> OpenKey | None:
    match entry:
        case Close() | Conclude() | Drop():
            return (entry.call_id, entry.epoch)
        case Settle():
            return (entry.call_id, entry.close.epoch)
        case Finish(usage=Usage()):
            return (entry.call_id, entry.epoch)
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """The settings of all batches of one gateway. `response_ttl_ms`: how long a stored response is kept."""

    owner_id: str
    attempts_max: int
    unfinal_max_nano: Mapping[str, int]
    response_ttl_ms: int


class AccountsShort(Exception):
    """The decision needs the other payments of `accounts`. Nothing was written; run the batch again with these accounts, so that all
    locks are taken in one order."""

    def __init__(self, accounts: Set[CreditAccount]) -> None:
        self.accounts = accounts
        super().__init__()


class LedgerBatch:
    """One batch in one transaction. A transaction that is tried again needs a new batch."""

    def __init__(
        self,
        connection: Connection,
        rules: BatchRules,
        *,
        now_ms: int,
        ahead_ms: int,
        is_retry: bool,
        others: Set[CallId],
        retried: Set[CallId],
        accounts: Set[CreditAccount],
        known_terms: KnownTerms,
        events: EventLog = NO_EVENTS,
    ) -> None:
        """`now_ms`: the time of the shared clock. `ahead_ms`: how far the shared clock is ahead of this gateway's clock, which stamps the begin and
        the end of calls. `others`: calls whose next run, if it exists on a retry, does not belong to the requests of this batch.
        `retried`: calls whose end may have been committed by an earlier batch. `accounts`: accounts of which all payments are
        locked. `known_terms`: terms with a committed row; `new_terms` has those that this batch wrote, known after its commit."""
        self._connection = connection
        self._rules = rules
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self._is_retry = is_retry
        self._others = others
        self._retried = retried
        self._accounts = accounts
        self._known_terms = known_terms
        self.new_terms: dict[CallTerms, TermsReference] = {}
        # Responses that were stored after this moment are still kept.
        self._responded_since_ms = now_ms - rules.response_ttl_ms
        self._events = events
        self._locked_rows: LockedRows  # of the latest `_lock`
        # None until a call of the batch is settled.
        self._settlement: BatchSettlement | None = None
        self._outcomes: dict[CallId, Outcome] = {}
        self._channel_keys: Mapping[ChannelName, int] = NO_CHANNELS
        self._bound_payers: set[Address] = set()
        # None until the payer of a claim is bound to an owner.
        self._spending: BatchSpending | None = None

    def run(self, entries: Sequence[Entry]) -> list[Outcome]:
        """Writes the entries and returns their outcomes, in order. No call has two entries besides its finish."""
        moves: list[Move] = [entry for entry in entries if isinstance(entry, _MOVES)]
        # The usage of a run that another entry of the batch ends does not count: the price comes from the next run, or is the base.
        moved = {move.call_id for move in moves}
        finishes = [entry for entry in entries if isinstance(entry, Finish)]
        moves += [entry for entry in finishes if entry.usage is not None and entry.call_id not in moved]
        finishes = [entry for entry in finishes if entry.usage is None]
        claims = [entry for entry in entries if isinstance(entry, Claim)]
        # SQLite needs no locks, so plain entries are written without reading their rows. A retry reads them: they may be written.
        writes_plain = self._connection.dialect.name == "sqlite" and not self._is_retry
        if writes_plain:
            moves = self._write_plain_closes(moves)
        locked_claims = () if writes_plain else claims
        calls = self._lock(moves, locked_claims) if moves or locked_claims else {}
        for move in moves:
            self._outcomes[move.call_id] = self._move(move, calls.get(move.call_id))
        if self._settlement is not None:
            self._settlement.write()
        if moves:
            self._locked_rows.write(payers={claim.payer for claim in claims if claim.payer is not None})
        if finishes:
            write_finishes(self._connection, finishes, ahead_ms=self._ahead_ms)
        if self._is_retry:
            self._find_claimed(claims)
        if writes_plain:
            claims = self._grant_plain_claims(claims)
            if claims:
                # Reads the rows again that the moves have changed.
                self._lock((), claims)
        if undecided := [claim for claim in claims if claim.call_id not in self._outcomes]:
            self._claim(undecided)
        return [None if isinstance(entry, Finish) else self._outcomes[entry.call_id] for entry in entries]

    def _write_plain_closes(self, moves: Sequence[Move]) -> list[Move]:
        plain = [move for move in moves if isinstance(move, Close) and is_plain_close(move)]
        if not plain:
            return list(moves)
        outcomes = write_plain_closes(
            self._connection,
            plain,
            owner_id=self._rules.owner_id,
            now_ms=self._now_ms,
            ahead_ms=self._ahead_ms,
            events=self._events,
        )
        for close, outcome in zip(plain, outcomes, strict=True):
            if outcome is not None:
                self._outcomes[close.call_id] = outcome
        return [move for move in moves if move.call_id not in self._outcomes]

    def _grant_plain_claims(self, claims: Sequence[Claim]) -> list[Claim]:
        """Grants plain claims and returns the remaining claims. Runs after the moves and the finishes: a claim must see the units that they release
        and the responses that they cut."""
        limited = self._rules.unfinal_max_nano
        plain: list[Claim] = []
        terms: list[TermsReference] = []
        for claim in claims:
            is_plain = is_claim_alone_plain(claim, limited) and is_hour_unmarked(
                claim.created_ms + self._ahead_ms, now_ms=self._now_ms
            )
            its = self._known_terms.find(terms_of(claim)) if is_plain else None
            if its is not None:
                plain.append(claim)
                terms.append(its)
        if not plain:
            return list(claims)
        outcomes = grant_plain_claims(
            self._connection,
            plain,
            terms,
            owner_id=self._rules.owner_id,
            now_ms=self._now_ms,
            ahead_ms=self._ahead_ms,
        )
        for claim, outcome in zip(plain, outcomes, strict=True):
            if outcome is not None:
                self._outcomes[claim.call_id] = outcome
        return [claim for claim in claims if claim.call_id not in self._outcomes]

    def _lock(self, moves: Sequence[Move], claims: Sequence[Claim]) -> dict[CallId, LockedCall]:
        """Locks every row that the batch may change, in one order: wallets, keys, authorisations, payments, calls, nonces."""
        self._locked_rows = LockedRows(self._connection, shared_ms=self._now_ms, events=self._events)
        lock_wallets(self._connection, claims, limited=self._limited(claims))
        lock_keys(self._connection, claims)
        concludes = [one for one in moves if isinstance(one, Conclude)]
        settled = self._open_settlement().lock_authorizations(concludes) if concludes else set()
        presented = {claim.payment_id for claim in claims if claim.payment_id is not None}
        others = presented | settled | self._sibling_ids(claims)
        shown = [(claim, claim.channel) for claim in claims if claim.channel is not None]
        if shown:
            # A channel never gets another payment, so its look-up needs no lock.
            found, self._bound_payers = find_claimed_channels(
                self._connection, {channel_name(*one) for one in shown}
            )
            self._channel_keys = {name: one.key for name, one in found.items()}
            others |= {one.payment_id for one in found.values()}
            if self._connection.dialect.name == "sqlite":
                self._locked_rows.channels.keep(found.values())
        calls = self._locked_rows.lock_with_payments([move.call_id for move in moves], others=others)
        if self._channel_keys:
            self._locked_rows.channels.load(self._channel_keys.values())
        short = find_short_accounts(claims, self._locked_rows.payments)
        if not short <= self._accounts:
            raise AccountsShort(short | self._accounts)
        settles = [one for one in moves if isinstance(one, Settle)]
        if settles:
            self._open_settlement().lock_nonces(settles)
        return calls

    def _open_settlement(self) -> BatchSettlement:
        if self._settlement is None:
            self._settlement = BatchSettlement(
                self._connection,
                self._locked_rows,
                owner_id=self._rules.owner_id,
                responded_since_ms=self._responded_since_ms,
                attempts_max=self._rules.attempts_max,
            )
        return self._settlement

    def _move(self, move: Move, call: LockedCall | None) -> Outcome:
        is_retry = self._is_retry or move.call_id in self._retried
        match move:
            case Close():
                return self._close(move, call, is_retry=is_retry)
            case Drop():
                return self._drop(move, call)
            case Reopen():
                return self._reopen(move, call)
            case Settle():
                return self._open_settlement().settle(
                    move, call, is_retry=is_retry, moved_ms=self._now_ms, **self._end_values(move.close)
                )
            case Conclude():
                return self._open_settlement().conclude(move, call, is_retry=is_retry)
            case Finish():
                self._measure(move, call)
                return None

    def _sibling_ids(self, claims: Sequence[Claim]) -> set[int]:
        columns = payment_table.c
        found: set[int] = set()
        price_max = max((claim.price_units for claim in claims), default=0)
        for account in self._accounts:
            rest = columns.value_units - columns.taken_units
            query = (
                select(columns.id)
                .where(_is_of_account(account), columns.state != PaymentState.GONE.value)
                .where(rest > 0, rest < price_max)
                # Held ones complete no price; the decision only needs to know that they are there.
                .order_by(columns.is_held, columns.block_number, columns.id)
                .limit(SIBLINGS_MAX)
            )
            found.update(self._connection.execute(query).scalars())
        return found

    def _close(self, close: Close, call: LockedCall | None, *, is_retry: bool) -> Closed | Fenced:
        if call is None or call.owner_id != self._rules.owner_id or call.epoch != close.epoch:
            return Fenced()
        if call.state is not CallState.FORWARDING:
            is_done = is_retry and call.state in (close.after, CallState.REORGED)
            if not is_done:
                return Fenced()
            return self._closed(call, call.state, moved_ms=call.moved_ms)
        if close.after is CallState.CONSUMED and call.is_unpaid:
            return Fenced()
        values = self._end_values(close)
        may_run_again = call.cut == "repeated" and call.attempts < self._rules.attempts_max
        if close.after is CallState.CONSUMED and close.upstream_status is None and may_run_again:
            # The repeat has brought no response either, so the call may run again.
            values["cut"] = "cut"
        is_measured = call.is_unmeasured and close.after is CallState.CONSUMED
        usage = close.known_usage if is_measured else None
        state = self._locked_rows.move(call, close.after, usage, moved_ms=self._now_ms, **values)
        return self._closed(call, state, moved_ms=self._now_ms)

    def _measure(self, finish: Finish, call: LockedCall | None) -> None:
        """Writes the end of a body and the price that it decides, once: a repeat keeps the price of the first run."""
        if call is None or call.epoch != finish.epoch:
            return
        values = _finish_values(finish, ahead_ms=self._ahead_ms)
        is_charged = call.state in (CallState.CONSUMED, CallState.REORGED)
        if finish.is_cut and call.cut == "" and call.state is CallState.CONSUMED:
            values["cut"] = "cut"
        if is_charged and call.is_unmeasured and finish.usage is not None:
            self._locked_rows.measure(call, finish.usage, moved_ms=self._now_ms, **values)
        else:
            self._locked_rows.change(call, **values)

    def _closed(self, call: LockedCall, state: CallState, *, moved_ms: int) -> Closed:
        return Closed(
            remaining_units=self._remaining_of(call),
            is_reorged=state is CallState.REORGED,
            announced=None
            if call.channel_key is None
            else self._locked_rows.channels.find(call.channel_key).announced,
            moved_ms=moved_ms,
        )

    def _drop(self, drop: Drop, call: LockedCall | None) -> Closed | Fenced:
        """Ends the call by the rule `decide_dropped_call`. A call in `settling` is left to recovery, which marks it orphaned."""
        if call is None or call.owner_id != self._rules.owner_id or call.epoch != drop.epoch:
            return Fenced()
        request = self._connection.execute(_REQUEST.where(call_table.c.id == call.id)).one()
        runs_left = self._rules.attempts_max - call.attempts
        after = decide_dropped_call(
            call.state, method=request.method, digest=bytes(request.digest), runs_left=runs_left
        )
        # Another error means that the provider has decided the call.
        is_ours = request.error == (None if drop.close is None else drop.close.error)
        if after is None or (call.state is CallState.CONSUMED and not is_ours):
            return Fenced()
        if request.is_refunded:  # it keeps its charge
            return Fenced()
        values = (
            {} if call.state is CallState.CONSUMED or drop.close is None else self._end_values(drop.close)
        )
        values |= {
            "http_status": None,
            "error": Interruption.ANSWER_DROPPED.value,
            "completed_ms": self._now_ms,
            # A committed close may have written these sizes, but the body reached no caller.
            "request_bytes": None,
            "response_bytes": None,
        }
        if after is CallState.CONSUMED:
            self._locked_rows.change(call, cut="cut", delivery=Delivery.PARTIAL.value, **values)
        else:
            self._locked_rows.move(call, after, moved_ms=self._now_ms, delivery=None, **values)
        return Closed(remaining_units=self._remaining_of(call))

    def _end_values(self, close: Close) -> dict[str, object]:
        """The columns of a call that an end writes. A consumed call whose repeat was not sent keeps the columns of its first run."""
        now_ms = self._now_ms
        if close.after is CallState.CONSUMED and close.upstream_status is None:
            return {"completed_ms": now_ms}
        # The moment of the response head: a finish replaces it at the end of the body, but may never be written.
        is_ended = close.after in (CallState.RELEASED, CallState.CONSUMED)
        ended: dict[str, object] = {"completed_ms": now_ms} if is_ended else {}
        if close.finish is not None:
            ended = _finish_values(close.finish, ahead_ms=self._ahead_ms)
        return {
            "http_status": close.http_status,
            "upstream_status": close.upstream_status,
            "latency_ms": close.latency_ms,
            "upstream_latency_ms": close.upstream_latency_ms,
            "error": close.error,
            **ended,
        }

    def _reopen(self, reopen: Reopen, call: LockedCall | None) -> Reopened | Fenced | NonceUsed:
        if call is None:
            return Fenced()
        owner_id = self._rules.owner_id
        may_be_own = self._is_retry and call.id not in self._others
        if may_be_own and (call.state, call.epoch, call.owner_id) == (
            CallState.FORWARDING,
            reopen.epoch + 1,
            owner_id,
        ):
            # The row does not keep which state it was; a call that was ever consumed stays charged.
            before = CallState.CONSUMED if call.cut == "repeated" else CallState.UNKNOWN
            return self._reopened(call, reopen, before=before)
        if call.epoch != reopen.epoch or not self._is_repeatable(call, is_plain=reopen.is_plain):
            return Fenced()
        # Read under the lock of the call, which a refund takes too.
        if call.state is CallState.CONSUMED and _REFUNDS.fetch(self._connection, refunded_id=call.id):
            return Fenced()
        used = None if reopen.nonce is None else self._take_nonce(call, reopen.nonce)
        if used is not None:
            return used
        cut = "repeated" if call.state is CallState.CONSUMED else call.cut
        self._locked_rows.move(
            call,
            CallState.FORWARDING,
            epoch=call.epoch + 1,
            attempts=call.attempts + 1,
            owner_id=owner_id,
            cut=cut,
            delivery=None,
            completed_ms=None,
            moved_ms=self._now_ms,
        )
        return self._reopened(call, reopen, before=call.state)

    def _take_nonce(self, call: LockedCall, nonce: bytes) -> NonceUsed | None:
        """Also ends the plain form of the payment of a call that runs again. Returns the other call that holds the nonce."""
        payment = self._locked_rows.payments[call.payment_id or 0]
        used = take_nonce(self._connection, NonceKey(payment.chain_id, payment.tx_hash, nonce), call.id)
        if used is None:
            self._locked_rows.end_plain(payment.id)
        return used

    def _is_repeatable(self, call: LockedCall, *, is_plain: bool) -> bool:
        presented = self._locked_rows.payments.get(call.payment_id or 0)
        if is_plain and presented is not None and presented.is_plain_ended:
            return False
        is_open = call.state is CallState.UNKNOWN or (call.state is CallState.CONSUMED and call.cut == "cut")
        payments = (self._locked_rows.payments[key] for key in payment_ids_of(call))
        is_paid = all(one.state is not PaymentState.GONE and not one.is_held for one in payments)
        return is_open and is_paid and call.attempts < self._rules.attempts_max

    def _reopened(self, call: LockedCall, reopen: Reopen, *, before: CallState) -> Reopened:
        remaining_units = self._remaining_of(call) or 0
        return Reopened(
            claimed=Claimed(
                epoch=reopen.epoch + 1, remaining_units=remaining_units, rail=Rail(call.rail), before=before
            ),
            before=before,
        )

    def _remaining_of(self, call: LockedCall) -> int | None:
        if call.channel_key is not None:
            channel = self._locked_rows.channels.find(call.channel_key)
            return max(0, channel.balance_units - channel.announced)
        return (
            None if call.payment_id is None else self._locked_rows.payments[call.payment_id].remaining_units
        )

    def _find_claimed(self, claims: Sequence[Claim]) -> None:
        """Finds the claims of a batch that was committed although its answer was lost. Compares the request with its id."""
        columns = call_table.c
        by_id = {claim.call_id: claim for claim in claims}
        query = select(columns.id, columns.epoch, columns.rail, columns.digest, columns.request_id).where(
            columns.id.in_(list(by_id)),
            columns.state == CallState.FORWARDING.value,
            columns.owner_id == self._rules.owner_id,
        )
        for row in self._connection.execute(query):
            claim = by_id[CallId(row.id)]
            if (bytes(row.digest), row.request_id) == (claim.digest, claim.request_id):
                payment = self._locked_rows.payments.get(claim.payment_id or 0)
                self._outcomes[claim.call_id] = Claimed(
                    epoch=row.epoch,
                    remaining_units=payment.remaining_units if payment else 0,
                    rail=Rail(row.rail),
                )

    def _claim(self, claims: Sequence[Claim]) -> None:
        known = find_known(self._connection, claims)
        # After `find_known`: an authorisation that is concluded in between counts twice, never zero times.
        unfinal_units = sum_unfinal_of(self._connection, {one.payer for one in self._limited(claims)})
        nonces = find_nonces(self._connection, claims)
        # A voucher is granted whatever its payer owes.
        of_credit = {one.payer for one in claims if one.payer is not None and one.channel is None}
        debts, bound = find_debts_and_bound(self._connection, of_credit)
        bound |= self._bound_payers
        if bound:
            self._spending = BatchSpending(lock_budgets(self._connection, bound), now_ms=self._now_ms)
        decisions, debits = decide_claims(
            claims,
            payments=self._locked_rows.payments.values(),
            nonces=nonces,
            keys=find_keyed_calls(
                self._connection,
                claims,
                since_ms=self._responded_since_ms,
                responded_since_ms=self._responded_since_ms,
            ),
            repeats=find_open_calls(self._connection, claims),
            debts=debts,
            unfinal_max_nano=self._rules.unfinal_max_nano,
            unfinal_units=unfinal_units,
            now_ms=self._now_ms,
            authorizations=known,
            channels={name: self._locked_rows.channels.find(key) for name, key in self._channel_keys.items()},
            unclaimed_nano=sum_unclaimed(self._connection, _payers_of_channels(claims))
            if self._channel_keys
            else {},
            spending=self._spending,
        )
        self._locked_rows.write_debits(debits)
        if self._spending is not None:
            write_counters(self._connection, self._spending.changed())
            refused = self._spending.refused()
            announce_refusals(self._connection, refused, self._events, at_ms=self._now_ms)
        granted = [one for one in decisions if isinstance(one.outcome, Claimed)]
        if granted:
            references = self._find_terms(granted)
            if self._channel_keys:
                self._open_channel_calls(granted, references)
            else:
                _OPEN_CALLS.run(self._connection, list(map(self._call_row, granted, references)))
            write_claimed(self._connection, [one.claim for one in granted], known, self._channel_keys)
            self._mark_late_claims([one.claim for one in granted])
        topups = [
            row for one in decisions for row in topup_rows(one.claim.call_id, one.claim.payment_id, one.parts)
        ]
        if topups:
            ADD_TOPUPS.run(self._connection, topups)
        self._outcomes.update({one.claim.call_id: one.outcome for one in decisions})
        if any(isinstance(one.outcome, Exhausted) for one in decisions):
            self._add_held(decisions)

    def _open_channel_calls(self, granted: Sequence[Decision], references: Sequence[TermsReference]) -> None:
        """Writes the calls of a batch with vouchers, and the channels that they reserve."""
        rows, reserved = [], []
        for decision, terms in zip(granted, references, strict=True):
            claim, shown = decision.claim, decision.claim.channel
            key = None
            if shown is not None:
                key = self._channel_keys[channel_name(claim, shown)]
                channel = self._locked_rows.channels.find(key)
                reserved.append(reserve_channel(channel, shown, claim.call_id, price_units=claim.price_units))
            rows.append({**self._call_row(decision, terms), "channel_id": key})
        _OPEN_CHANNEL_CALLS.run(self._connection, rows)
        write_channels(self._connection, reserved)

    def _mark_late_claims(self, claims: Sequence[Claim]) -> None:
        """Marks the hours of requests whose claim comes minutes after they arrived: a slow upload."""
        began = [claim.created_ms + self._ahead_ms for claim in claims]
        late = [began_ms for began_ms in began if not is_hour_unmarked(began_ms, now_ms=self._now_ms)]
        hours = {floor_to(HOUR_MS, began_ms) for began_ms in late}
        if hours:
            write_marks(self._connection, dict.fromkeys(hours, self._now_ms))

    def _find_terms(self, granted: Sequence[Decision]) -> list[TermsReference]:
        """Writes the terms that this gateway does not know."""
        terms = [terms_of(one.claim) for one in granted]
        unknown = {one for one in terms if self._known_terms.find(one) is None}
        if unknown:
            self.new_terms = write_terms(self._connection, unknown)
        return [self._known_terms.find(one) or self.new_terms[one] for one in terms]

    def _limited(self, claims: Sequence[Claim]) -> frozenset[PayerAccount]:
        unfinal_max_nano = self._rules.unfinal_max_nano
        return find_limited_accounts(claims, unfinal_max_nano) if unfinal_max_nano else frozenset()

    def _add_held(self, decisions: Sequence[Decision]) -> None:
        """Adds to the held units of each `Exhausted` those that calls without an outcome hold of its payment."""
        short = {one.claim.payment_id for one in decisions if isinstance(one.outcome, Exhausted)}
        held = find_returnable_units(self._connection, {key for key in short if key is not None})
        for one in decisions:
            if isinstance(one.outcome, Exhausted):
                held_units = one.outcome.held_units + held.get(one.claim.payment_id or 0, 0)
                self._outcomes[one.claim.call_id] = replace(one.outcome, held_units=held_units)

    def _call_row(self, decision: Decision, terms: TermsReference) -> dict[str, object]:
        claim, outcome = decision.claim, decision.outcome
        assert isinstance(outcome, Claimed)
        counted = None if self._spending is None else self._spending.count_of(claim)
        return {
            "id": claim.call_id,
            "terms_id": terms.terms_id,
            "listing_key": terms.listing_key,
            "provider": claim.provider,
            "payer": claim.payer,
            "path": claim.path,
            "digest": claim.digest,
            "state": CallState.FORWARDING.value,
            "rail": outcome.rail.value,
            "price_units": claim.price_units,
            "quantities": None if claim.metering is None else "",
            "payment_id": claim.payment_id,
            "taken_units": decision.parts.get(claim.payment_id or 0, 0),
            "nonce": claim.nonce,
            "nonce_tx_hash": None if claim.nonce is None else claim.tx_hash,
            "nonce_chain_id": None if claim.nonce is None else claim.chain_id,
            "idempotency_key": claim.idempotency_key,
            "request_id": claim.request_id,
            "owner_id": self._rules.owner_id,
            "epoch": outcome.epoch,
            "attempts": 1,
            "cut": "",
            "clock_releases": True,
            "created_ms": claim.created_ms + self._ahead_ms,
            "moved_ms": self._now_ms,
            "budget_nano": None if counted is None else counted.nano,
            "budget_ms": None if counted is None else counted.at_ms,
        }


def write_finishes(connection: Connection, finishes: Sequence[Finish], *, ahead_ms: int) -> None:
    rows = [
        {
            "at_id": finish.call_id,
            "at_epoch": finish.epoch,
            "is_cut": finish.is_cut,
            **_finish_values(finish, ahead_ms=ahead_ms),
        }
        for finish in finishes
    ]
    _FINISH.run(connection, rows)


def _payers_of_channels(claims: Sequence[Claim]) -> set[Address]:
    return {claim.payer for claim in claims if claim.payer is not None and claim.channel is not None}


def _is_of_account(account: CreditAccount) -> ColumnElement[bool]:
    columns = payment_table.c
    return and_(
        columns.payer == account.payer,
        columns.payee == account.payee,
        columns.asset == account.asset,
        columns.chain_id == account.chain_id,
    )


_CUT_NOW = and_(bindparam("is_cut"), call_table.c.cut == "", call_table.c.state == CallState.CONSUMED.value)
_FINISH = Prepared(
    update(call_table)
    .where(call_table.c.id == bindparam("at_id"), call_table.c.epoch == bindparam("at_epoch"))
    .values(
        delivery=bindparam("delivery"),
        request_bytes=bindparam("request_bytes"),
        response_bytes=bindparam("response_bytes"),
        completed_ms=bindparam("completed_ms"),
        cut=case((_CUT_NOW, "cut"), else_=call_table.c.cut),
    )
)


_REQUEST = select(
    call_terms_table.c.method, call_table.c.digest, call_table.c.error, has_refund().label("is_refunded")
).join(call_terms_table, call_terms_table.c.id == call_table.c.terms_id)
_REFUNDS = Prepared(select(call_table.c.id).where(call_table.c.id == bindparam("refunded_id"), has_refund()))

_WRITTEN_LATER = {
    *("actual_units", "channel_id", "needs_locks", "http_status", "upstream_status", "request_bytes"),
    *("response_bytes", "latency_ms", "upstream_latency_ms", "delivery", "error", "completed_ms"),
}
_OPENED = tuple(name for name in call_table.columns.keys() if name not in _WRITTEN_LATER)  # noqa: SIM118
_OPEN_CALLS = Prepared(insert(call_table).values({name: bindparam(name) for name in _OPENED}))
_OPEN_CHANNEL_CALLS = Prepared(
    insert(call_table).values({name: bindparam(name) for name in (*_OPENED, "channel_id")})
)


def _finish_values(finish: Finish, *, ahead_ms: int) -> dict[str, object]:
    return {
        "delivery": finish.delivery.value,
        "request_bytes": finish.request_bytes,
        "response_bytes": finish.response_bytes,
        "completed_ms": finish.completed_ms + ahead_ms,
    }


def find_commit_kind(entries: Sequence[Entry]) -> CommitKind:
    """The entry of a batch that matters most: money moves, then claims, then ends."""
    if any(isinstance(entry, Settle | Conclude) for entry in entries):
        return "settle"
    if any(isinstance(entry, Claim | Reopen) for entry in entries):
        return "claim"
    return "close" if any(isinstance(entry, Close) for entry in entries) else "other"
