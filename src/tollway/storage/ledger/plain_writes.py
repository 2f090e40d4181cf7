"""Writes plain claims and plain ends of calls with guarded statements, without reading the rows first.

On PostgreSQL a batch of claims is one statement, and a batch of ends is one statement. On SQLite each claim and each end is one guarded UPDATE,
and the calls of a batch are one INSERT, inside the writer's transaction. The statements are the files of the folder `sql`; a test compares their
conditions with `PAYMENT_GUARDS`.

The statement of claims is a filter before `decide_claims` (`ledger/claims`). It grants claims that pass every guard of `PAYMENT_GUARDS`
and refuses none. On PostgreSQL it grants all claims of a payment or none, except those whose nonce another claim of the batch, or another
statement at the same time, has; on SQLite it grants them in order up to the first that does not pass. The statement of ends moves calls from `forwarding` to `consumed`. `ledger_batch` locks the rows of all other entries and decides them.

On SQLite no other transaction writes at the same time, so every guard sees the current rows. On PostgreSQL, under READ COMMITTED, a statement
that waited for the lock of a row checks its conditions again on the newest version of that row only; it sees every other table as
of its beginning. So each guard is one of three things:

- A column of the locked row: of the payment its payer, state, hold, plain form and balance; of the call its state, epoch, owner, rail
  and `needs_locks`.
- A unique index: the nonce. The call of that claim is not inserted and its price not taken, and `ledger_batch` decides it.
- A look-up that is harmless when it is late. *A debt* arises under the lock of another payment, never of the payment in the proof;
  `decide_claims` does not see a debt either that is committed a moment later, and a debt takes no units from earlier payments of its payer.
  *An owner*: a policy counts from the first claim after the commit of its binding; the claims of a bound wallet lock its budget in `ledger_batch`.
  *An open repeat*: a call is `forwarding` before it is `unknown`, and then the same request is another call; its caller gets the unknown
  outcome after the commit, and a later statement sees it. *A nonce*: the index decides between claims; `nonces` says why no nonce of a
  call that runs again is missed.

An end does not lock the payment, but it must not miss that the payment left the chain. So the transaction that makes a payment gone sets `needs_locks` in
each forwarding call that holds units of it, under the lock of the call's row, and `ledger_batch` decides such an end with the payment locked
(`storage.ledger.gone_payments`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from tollway.ids import Address, CallId
from tollway.ledger.claims import NonceKey, nonce_key
from tollway.ledger.ledger import Claim, Claimed, Close, Closed
from tollway.ledger.records import CallState, Rail
from tollway.money import UNITS_MAX
from tollway.storage.engine.statements import fetch_text, run_text
from tollway.storage.ledger.call_terms import TermsReference
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog
from tollway.webhooks.events import EventType, NewEvent


def _read_statement(name: str) -> str:
    text = files("tollway.storage.ledger").joinpath("sql", name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


_CLAIM_ONE = _read_statement("claim_one.postgresql.sql")
_CLAIM_MANY = _read_statement("claim_many.postgresql.sql")
_CLOSE_ONE = _read_statement("close_one.postgresql.sql")
_CLOSE_MANY = _read_statement("close_many.postgresql.sql")
_CLOSE_NOTED = _read_statement("close_noted.postgresql.sql")
_DEBIT_EACH = _read_statement("debit.sqlite.sql")
_OPEN_EACH = _read_statement("open.sqlite.sql")
_CLOSE_EACH = _read_statement("close.sqlite.sql")
_NOTE_EACH = _read_statement("note.sqlite.sql")
_CALL_WIDTH, _DEBIT_WIDTH, _END_WIDTH, _EVENT_WIDTH = 14, 7, 11, 6
"""How many parameters of a statement a call, a demand, an end and an event have: as many as their rows, in one order with the files."""


@dataclass(slots=True, kw_only=True)
class _PaymentDebit:
    """The total demand of one batch on one payment. `payer`: None when the claims name different payers."""

    payment_id: int
    payer: Address | None
    claims: list[Claim] = field(default_factory=list)
    units: int = 0
    has_plain_proof: bool = False
    has_bound_proof: bool = False

    def add(self, claim: Claim) -> None:
        self.claims.append(claim)
        self.units += claim.price_units
        self.has_plain_proof = self.has_plain_proof or claim.is_plain
        self.has_bound_proof = self.has_bound_proof or claim.ends_plain
        if claim.payer != self.payer:
            self.payer = None

    @property
    def row(self) -> tuple[Any, ...]:
        return (
            self.payment_id,
            self.payer,
            self.units,
            len(self.claims),
            self.has_plain_proof,
            self.has_bound_proof,
            self.claims[0].call_id,
        )

    def grant(
        self, *, rest_units: int, calls_before: int, call_ids: Collection[str] | None
    ) -> dict[CallId, Claimed]:
        """The outcomes of the granted claims as if they were granted in order. `rest_units`: the remaining units after the last one. `call_ids`: the
        granted ones; None for all."""
        granted: dict[CallId, Claimed] = {}
        claims = [one for one in self.claims if call_ids is None or one.call_id in call_ids]
        left_units = rest_units + sum(one.price_units for one in claims)
        for claim in claims:
            left_units -= claim.price_units
            is_first = calls_before == 0 and claim is self.claims[0]
            rail = Rail.TX if is_first else Rail.CREDIT
            granted[claim.call_id] = Claimed(epoch=1, remaining_units=left_units, rail=rail)
        return granted


def grant_plain_claims(
    connection: Connection,
    claims: Sequence[Claim],
    terms: Sequence[TermsReference],
    *,
    owner_id: str,
    now_ms: int,
    ahead_ms: int,
) -> list[Claimed | None]:
    """Grants plain claims. Returns an outcome for each, in order; None for a claim that is neither granted nor refused.

    `claims`: each passes its own guards (`is_claim_alone_plain`). `terms`: their references, committed. `now_ms`: the time of the shared clock.
    `ahead_ms`: how far the shared clock is ahead of this gateway's clock. One statement on PostgreSQL, none where no claim is left for it.
    Raises `IntegrityError` for the whole batch when a row of `terms` is missing; on PostgreSQL also for a claim alone when another
    transaction used its nonce."""
    if connection.dialect.name == "sqlite":
        return _grant_each(connection, claims, terms, owner_id=owner_id, now_ms=now_ms, ahead_ms=ahead_ms)
    debits = _add_up(claims)
    demanded = {claim.call_id for debit in debits.values() for claim in debit.claims}
    new_calls = [
        _new_call_row(claim, its, ahead_ms=ahead_ms)
        for claim, its in zip(claims, terms, strict=True)
        if claim.payment_id is None or claim.call_id in demanded
    ]
    if not new_calls:
        return [None] * len(claims)
    if len(new_calls) == 1 and debits:
        (alone,) = debits.values()
        rows = fetch_text(connection, _CLAIM_ONE, (owner_id, now_ms, *new_calls[0], *alone.row))
    else:
        # Ascending ids: every transaction locks payments in this order.
        in_order = [debits[payment_id].row for payment_id in sorted(debits)]
        columns = (*_transpose(new_calls, _CALL_WIDTH), *_transpose(in_order, _DEBIT_WIDTH))
        rows = fetch_text(connection, _CLAIM_MANY, (owner_id, now_ms, *columns))
    granted: dict[CallId, Claimed] = {
        claim.call_id: Claimed(epoch=1, remaining_units=0, rail=Rail.NONE)
        for claim in claims
        if claim.payment_id is None
    }
    for payment_id, rest_units, calls_before, call_ids in rows:
        granted |= debits[payment_id].grant(
            rest_units=rest_units, calls_before=calls_before, call_ids=call_ids
        )
    return [granted.get(claim.call_id) for claim in claims]


def _add_up(claims: Sequence[Claim]) -> dict[int, _PaymentDebit]:
    """The demands of one statement on the payments, by payment. Left out, for the decision: the second claim of a nonce, because the rows of a statement
    have no order in which the index would refuse it, and all claims on a payment whose sum no column of an amount can hold."""
    debits: dict[int, _PaymentDebit] = {}
    nonces: set[NonceKey] = set()
    for claim in claims:
        nonce = None if claim.nonce is None else nonce_key(claim)
        if claim.payment_id is None or nonce in nonces:
            continue
        if nonce is not None:
            nonces.add(nonce)
        if claim.payment_id not in debits:
            debits[claim.payment_id] = _PaymentDebit(payment_id=claim.payment_id, payer=claim.payer)
        debits[claim.payment_id].add(claim)
    return {payment_id: debit for payment_id, debit in debits.items() if debit.units <= UNITS_MAX}


def _grant_each(
    connection: Connection,
    claims: Sequence[Claim],
    terms: Sequence[TermsReference],
    *,
    owner_id: str,
    now_ms: int,
    ahead_ms: int,
) -> list[Claimed | None]:
    """SQLite: grants in order. After a claim that is not granted, no further claim of its payment is granted."""
    granted: list[Claimed | None] = []
    opened: list[tuple[Any, ...]] = []
    left: set[int | None] = set()
    # Of calls that are written below, after the look-ups.
    nonces: set[NonceKey | None] = set()
    for claim, its in zip(claims, terms, strict=True):
        nonce = None if claim.nonce is None else nonce_key(claim)
        is_left = claim.payment_id in left or nonce in nonces
        outcome = None if is_left else _debit(connection, claim)
        granted.append(outcome)
        if outcome is None:
            left.add(claim.payment_id)
            continue
        if nonce is not None:
            nonces.add(nonce)
        opened.append((owner_id, now_ms, *_new_call_row(claim, its, ahead_ms=ahead_ms), outcome.rail.value))
    if opened:
        run_text(connection, _OPEN_EACH, opened)
    return granted


def _debit(connection: Connection, claim: Claim) -> Claimed | None:
    """SQLite: takes the price from the payment. None: a guard failed, and no units are taken."""
    if claim.payment_id is None:
        return Claimed(epoch=1, remaining_units=0, rail=Rail.NONE)
    nonce = claim.nonce
    debits = (
        claim.payment_id,
        claim.payer,
        claim.price_units,
        claim.is_plain,
        claim.ends_plain,
        claim.digest,
        nonce,
        None if nonce is None else claim.tx_hash,
        None if nonce is None else claim.chain_id,
    )
    for rest_units, calls_before in fetch_text(connection, _DEBIT_EACH, debits):
        rail = Rail.TX if calls_before == 0 else Rail.CREDIT
        return Claimed(epoch=1, remaining_units=rest_units, rail=rail)
    return None


def is_plain_close(close: Close) -> bool:
    """True when one statement may write this end: it is charged at a fixed price, so it releases no units, and it has a response of the
    upstream."""
    return close.after is CallState.CONSUMED and close.upstream_status is not None and not close.is_metered


def write_plain_closes(
    connection: Connection,
    closes: Sequence[Close],
    *,
    owner_id: str,
    now_ms: int,
    ahead_ms: int,
    events: EventLog = NO_EVENTS,
) -> list[Closed | None]:
    """Writes plain ends of calls that this gateway forwards. Returns an outcome for each, in order; None for an end that is neither written nor
    refused. The remaining units of the payment are as of the beginning of the statement. Writes an event for each written end that a
    wallet gets: on PostgreSQL in the same statement, on SQLite with one more."""
    charged = [] if events.is_idle else _charged_events(closes, events, now_ms=now_ms)
    if connection.dialect.name == "sqlite":
        outcomes: list[Closed | None] = []
        for close in closes:
            its = _ended_row(close, now_ms=now_ms, ahead_ms=ahead_ms)
            rows = fetch_text(connection, _CLOSE_EACH, (owner_id, now_ms, *its))
            outcomes.append(Closed(remaining_units=rows[0][0]) if rows else None)
        written = {close.call_id for close, outcome in zip(closes, outcomes, strict=True) if outcome}
        if noted := [_noted_row(event) for event in charged if event.subject in written]:
            run_text(connection, _NOTE_EACH, noted)
        return outcomes
    ended = [
        _ended_row(close, now_ms=now_ms, ahead_ms=ahead_ms)
        for close in sorted(closes, key=attrgetter("call_id"))
    ]
    if charged:
        columns = (*_transpose(ended, _END_WIDTH), *_transpose(list(map(_noted_row, charged)), _EVENT_WIDTH))
        rows = fetch_text(connection, _CLOSE_NOTED, (owner_id, now_ms, *columns))
    elif len(ended) == 1:
        rows = fetch_text(connection, _CLOSE_ONE, (owner_id, now_ms, *ended[0]))
    else:
        rows = fetch_text(connection, _CLOSE_MANY, (owner_id, now_ms, *_transpose(ended, _END_WIDTH)))
    moved = {call_id: Closed(remaining_units=rest_units) for call_id, rest_units in rows}
    return [moved.get(close.call_id) for close in closes]


def _charged_events(closes: Sequence[Close], events: EventLog, *, now_ms: int) -> list[NewEvent]:
    """The events of plain ends, before it is known which of them are written."""
    return [
        event
        for close in closes
        for event in events.make_events(
            EventType.CALL_CHARGED,
            (close.provider, close.payer),
            subject=close.call_id,
            state=CallState.CONSUMED.value,
            at_ms=now_ms,
        )
    ]


def _noted_row(event: NewEvent) -> tuple[Any, ...]:
    return (event.id, event.wallet, event.type.value, event.subject, event.state, event.at_ms)


def _transpose(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _new_call_row(claim: Claim, terms: TermsReference, *, ahead_ms: int) -> tuple[Any, ...]:
    nonce = claim.nonce
    return (
        claim.call_id,
        terms.terms_id,
        terms.listing_key,
        claim.provider,
        claim.payer,
        claim.payment_id,
        claim.price_units,
        claim.path,
        claim.digest,
        claim.request_id,
        nonce,
        None if nonce is None else claim.tx_hash,
        None if nonce is None else claim.chain_id,
        claim.created_ms + ahead_ms,
    )


def _ended_row(close: Close, *, now_ms: int, ahead_ms: int) -> tuple[Any, ...]:
    finish = close.finish
    body: tuple[Any, ...] = (now_ms, None, None, None)
    if finish is not None:
        completed_ms = finish.completed_ms + ahead_ms
        body = (completed_ms, finish.delivery.value, finish.request_bytes, finish.response_bytes)
    return (
        close.call_id,
        close.epoch,
        close.http_status,
        close.upstream_status,
        close.latency_ms,
        close.upstream_latency_ms,
        close.error,
        *body,
    )
