"""Writes plain claims and plain ends of calls with guarded statements, without reading the rows first.

On PostgreSQL a batch of claims is one statement, and a batch of ends is one statement. On SQLite each claim and each end is one guarded UPDATE,
and the calls of a batch are one INSERT, inside the writer's transaction. Both databases use the same texts of the guards.

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
  *An open repeat*: a call is `forwarding` before it is `unknown`, and then the same request is another call; its caller gets the unknown
  outcome after the commit, and a later statement sees it. *A nonce*: the index decides between claims; `nonces` says why no nonce of a
  call that runs again is missed.

An end does not lock the payment, but it must not miss that the payment left the chain. So the transaction that makes a payment gone sets `needs_locks` in
each forwarding call that holds units of it, under the lock of the call's row, and `ledger_batch` decides such an end with the payment locked
(`storage.gone_payments`).
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from tollway.ids import Address, CallId
from tollway.ledger.claims import PAYMENT_GUARDS, NonceKey, nonce_key
from tollway.ledger.ledger import Claim, Claimed, Close, Closed
from tollway.ledger.records import CallState, PaymentState, Rail
from tollway.ledger.sales import HOUR_MS, UNMARKED_MS
from tollway.money import UNITS_MAX
from tollway.storage.call_terms import TermsReference
from tollway.storage.ledger_tables import COUNTING_NONCE, REPEATABLE
from tollway.storage.statements import fetch_text, run_text
from tollway.storage.webhook_events import HAS_ENDPOINT, NO_EVENTS, EventLog
from tollway.webhooks.events import EventType, NewEvent

_GUARDS = {
    "payer matches": "p.payer = w.payer",
    "not gone": "p.state <> 'gone'",
    "not held": "NOT p.is_held",
    "plain form counts": "NOT (w.has_plain_proof AND p.is_plain_ended)",
    "one form of proof": "NOT (w.has_plain_proof AND w.has_bound_proof)",
    "whole sum covered": "w.units <= p.value_units - p.taken_units",
    "no debt": (
        "(SELECT 1 FROM account_debt o WHERE o.payer = p.payer AND o.payee = p.payee AND o.asset = p.asset"
        " AND o.chain_id = p.chain_id AND o.units > 0) IS NULL"
    ),
    "no open repeat": "p.id NOT IN (SELECT payment_id FROM repeating)",
    "nonce not used": "p.id NOT IN (SELECT payment_id FROM replaying)",
}
"""`PAYMENT_GUARDS` in SQL: `p` is the payment, `w` the demand of the batch on it."""
_REPEATED = f"""SELECT 1 FROM call c WHERE c.payment_id = a.payment_id AND c.digest = a.digest
          AND ({REPEATABLE}) AND c.state <> 'forwarding' LIMIT 1"""  # noqa: S608 - predicates of ours
_CLAIMED = f"""SELECT 1 FROM call c WHERE c.nonce = a.nonce AND c.nonce_tx_hash = a.nonce_tx_hash
          AND c.nonce_chain_id = a.nonce_chain_id AND ({COUNTING_NONCE}) LIMIT 1"""  # noqa: S608 - predicates of ours
_RUN_AGAIN = """SELECT 1 FROM repeat_nonce r JOIN call h ON h.id = r.call_id WHERE r.nonce = a.nonce
          AND r.tx_hash = a.nonce_tx_hash AND r.chain_id = a.nonce_chain_id AND h.state <> 'released' LIMIT 1"""
_REPLAYED = f"SELECT coalesce(({_CLAIMED}), ({_RUN_AGAIN}))"
"""The look-ups of a claim `a`: an open call of the same request, and a call that holds its nonce."""

_NEW_CALL = (
    ("id", "text"),
    ("terms_id", "bigint"),
    ("listing_key", "bigint"),
    ("provider", "bytea"),
    ("payer", "bytea"),
    ("payment_id", "bigint"),
    ("price_units", "bigint"),
    ("path", "text"),
    ("digest", "bytea"),
    ("request_id", "text"),
    ("nonce", "bytea"),
    ("nonce_tx_hash", "bytea"),
    ("nonce_chain_id", "bigint"),
    ("created_ms", "bigint"),
)
"""The columns of a claim for the row of its call, in the order of `_new_call_row`."""
_DEBIT = (
    ("payment_id", "bigint"),
    ("payer", "bytea"),
    ("units", "bigint"),
    ("calls", "bigint"),
    ("has_plain_proof", "boolean"),
    ("has_bound_proof", "boolean"),
    ("first_id", "text"),
)
"""The total demand of the claims of one payment, in the order of `_PaymentDebit.row`. `first_id`: the id of the first call."""
_OPENED = {
    **{name: f"a.{name}" for name, _ in _NEW_CALL},
    "state": "'forwarding'",
    "rail": (
        "CASE WHEN a.payment_id IS NULL THEN 'none' WHEN d.calls = 0 AND a.id = d.first_id THEN 'tx'"
        " ELSE 'credit' END"
    ),
    "taken_units": "a.price_units",
    "owner_id": "{owner_id}",
    "epoch": "1",
    "attempts": "1",
    "cut": "''",
    "clock_releases": "true",
    "moved_ms": "{now_ms}",
}
"""The row of a new call."""


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
        columns = (*_transpose(new_calls, len(_NEW_CALL)), *_transpose(in_order, len(_DEBIT)))
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
        nonce = nonce_key(claim)
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
        nonce = nonce_key(claim)
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
    """True when one statement may write this end: it is charged, so it releases no units, and it has a response of the upstream."""
    return close.after is CallState.CONSUMED and close.upstream_status is not None


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
        outcomes = [
            _close_one(connection, (owner_id, now_ms, *_ended_row(close, now_ms=now_ms, ahead_ms=ahead_ms)))
            for close in closes
        ]
        written = {close.call_id for close, outcome in zip(closes, outcomes, strict=True) if outcome}
        if noted := [_noted_row(event) for event in charged if event.subject in written]:
            run_text(connection, _NOTE_EACH, noted)
        return outcomes
    ended = [_ended_row(close, now_ms=now_ms, ahead_ms=ahead_ms) for close in sorted(closes, key=_call_id_of)]
    if charged:
        columns = (*_transpose(ended, len(_ENDED)), *_transpose(list(map(_noted_row, charged)), len(_NOTED)))
        rows = fetch_text(connection, _CLOSE_NOTED, (owner_id, now_ms, *columns))
    elif len(ended) == 1:
        rows = fetch_text(connection, _CLOSE_ONE, (owner_id, now_ms, *ended[0]))
    else:
        rows = fetch_text(connection, _CLOSE_MANY, (owner_id, now_ms, *_transpose(ended, len(_ENDED))))
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


_NOTED = (
    ("id", "text"),
    ("wallet", "bytea"),
    ("type", "text"),
    ("subject", "text"),
    ("state", "text"),
    ("at_ms", "bigint"),
)
"""The columns of the event of an end, in the order of `_noted_row`."""
_IS_CHARGE = "{call}.rail <> 'none' AND {call}.cut <> 'repeated'"
"""The end charges the call for the first time (`webhooks.events.call_event_of`)."""


def _noted_row(event: NewEvent) -> tuple[Any, ...]:
    return (event.id, event.wallet, event.type.value, event.subject, event.state, event.at_ms)


def _close_one(connection: Connection, ended: tuple[Any, ...]) -> Closed | None:
    for (rest_units,) in fetch_text(connection, _CLOSE_EACH, ended):
        return Closed(remaining_units=rest_units)
    return None


def _call_id_of(close: Close) -> CallId:
    return close.call_id


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


_ENDED = (
    ("id", "text"),
    ("epoch", "integer"),
    ("http_status", "integer"),
    ("upstream_status", "integer"),
    ("latency_ms", "bigint"),
    ("upstream_latency_ms", "bigint"),
    ("error", "text"),
    ("completed_ms", "bigint"),
    ("delivery", "text"),
    ("request_bytes", "bigint"),
    ("response_bytes", "bigint"),
)
"""The columns of an end, in the order of `_ended_row`."""
_END_GUARDS = (
    "c.state = 'forwarding'",
    "c.epoch = e.epoch",
    "c.owner_id = $1::text",
    # A call that an authorisation pays is settled first.
    "c.rail IN ('none', 'tx', 'credit')",
    "NOT c.needs_locks",
    # A later end marks the hour of its call (`ledger.sales`).
    f"c.created_ms / {HOUR_MS} * {HOUR_MS} + {HOUR_MS + UNMARKED_MS} > $2::bigint",
)
"""`c` is the call, `e` its end."""
_OF_BODY = ("delivery", "request_bytes", "response_bytes")
"""Columns that only an end with a finish changes."""


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


# ---- The texts. `$1` is the owner, `$2` the moment.


def _from_arrays(columns: Sequence[tuple[str, str]], first: int) -> str:
    """A relation from arrays: one row for each member. `first`: the number of the first parameter."""
    arrays = ", ".join(f"${first + place}::{kind}[]" for place, (_, kind) in enumerate(columns))
    return f"SELECT * FROM unnest({arrays}) AS given({', '.join(name for name, _ in columns)})"  # noqa: S608 - names of ours


def _from_values(columns: Sequence[tuple[str, str]], first: int) -> str:
    """A relation of one row from values. `first`: the number of the first parameter."""
    values = (f"${first + place}::{kind} AS {name}" for place, (name, kind) in enumerate(columns))
    return f"SELECT {', '.join(values)}"


_OWNER, _NOW, _FIRST = "$1::text", "$2::bigint", 3


def _claim_text(*, is_alone: bool) -> str:
    relation = _from_values if is_alone else _from_arrays
    guards = " AND ".join(_GUARDS[name] for name in PAYMENT_GUARDS)
    values = {name: value.format(owner_id=_OWNER, now_ms=_NOW) for name, value in _OPENED.items()}
    opened = f"""INSERT INTO call ({", ".join(values)})
        SELECT {", ".join(values.values())}
        FROM new_calls a LEFT JOIN {{debited}} d ON d.id = a.payment_id
        WHERE d.id IS NOT NULL OR a.payment_id IS NULL"""  # noqa: S608 - names of ours
    # The UPDATE of one payment waits for the lock itself. Several payments are locked first, by ascending id, and their balances
    # are assigned from the locked rows: a relative update would be computed from the old rows and fail the CHECK. A payment is debited
    # for the calls that were inserted, without those whose nonce another transaction has used since the look-up.
    many = f"""
      locked AS MATERIALIZED (
        SELECT p.id, p.taken_units, p.calls, p.is_plain_ended, w.has_bound_proof, w.first_id
        FROM debits w JOIN payment p ON p.id = w.payment_id WHERE {guards}
        ORDER BY p.id FOR NO KEY UPDATE OF p),
      opened AS (
        {opened.format(debited="locked")}
        ON CONFLICT (nonce, nonce_tx_hash, nonce_chain_id) WHERE {COUNTING_NONCE} DO NOTHING
        RETURNING id, payment_id, price_units),
      granted AS (
        SELECT payment_id, sum(price_units)::bigint AS units, count(*) AS calls, array_agg(id) AS call_ids
        FROM opened GROUP BY payment_id),
      debited AS (
        UPDATE payment p SET taken_units = l.taken_units + g.units, calls = l.calls + g.calls,
          is_plain_ended = l.is_plain_ended OR l.has_bound_proof
        FROM locked l JOIN granted g ON g.payment_id = l.id WHERE p.id = l.id
        RETURNING p.id, p.value_units - p.taken_units AS rest_units, l.calls AS calls_before, g.call_ids)"""  # noqa: S608 - names of ours
    alone = f"""
      debited AS (
        UPDATE payment p SET taken_units = p.taken_units + w.units, calls = p.calls + 1,
          is_plain_ended = p.is_plain_ended OR w.has_bound_proof
        FROM debits w WHERE p.id = w.payment_id AND {guards}
        RETURNING p.id, p.value_units - p.taken_units AS rest_units, p.calls - 1 AS calls, w.first_id),
      opened AS ({opened.format(debited="debited")})"""  # noqa: S608 - names of ours
    columns = "id, rest_units, calls, NULL::text[]" if is_alone else "id, rest_units, calls_before, call_ids"
    return f"""
    WITH new_calls AS MATERIALIZED ({relation(_NEW_CALL, _FIRST)}),
      debits AS MATERIALIZED ({relation(_DEBIT, _FIRST + len(_NEW_CALL))}),
      repeating AS MATERIALIZED (
        SELECT a.payment_id FROM new_calls a WHERE ({_REPEATED}) = 1),
      replaying AS MATERIALIZED (
        SELECT a.payment_id FROM new_calls a WHERE ({_REPLAYED}) = 1),{alone if is_alone else many}
    SELECT {columns} FROM debited"""  # noqa: S608 - names of ours


def _close_text(*, is_alone: bool) -> str:
    relation = _from_values if is_alone else _from_arrays
    return f"""
    WITH moved AS (
      UPDATE call c SET {_END_VALUES}
      FROM ({relation(_ENDED, _FIRST)}) e
      WHERE {_END_CONDITION}
      RETURNING c.id, c.payment_id)
    SELECT m.id, {_REST_UNITS}
    FROM moved m LEFT JOIN payment p ON p.id = m.payment_id"""  # noqa: S608 - names of ours


def _close_noted_text() -> str:
    """The statement of ends that also writes their events."""
    names = ", ".join(name for name, _ in _NOTED)
    noted = ", ".join(f"n.{name}" for name, _ in _NOTED)
    return f"""
    WITH moved AS (
      UPDATE call c SET {_END_VALUES}
      FROM ({_from_arrays(_ENDED, _FIRST)}) e
      WHERE {_END_CONDITION}
      RETURNING c.id, c.payment_id, c.rail, c.cut),
    noted AS (
      INSERT INTO webhook_event ({names})
      SELECT {noted} FROM ({_from_arrays(_NOTED, _FIRST + len(_ENDED))}) n JOIN moved m ON m.id = n.subject
      WHERE {_IS_CHARGE.format(call="m")} AND {HAS_ENDPOINT.format(wallet="n.wallet")})
    SELECT m.id, {_REST_UNITS}
    FROM moved m LEFT JOIN payment p ON p.id = m.payment_id"""  # noqa: S608 - names of ours


def _write_end_values() -> str:
    values = {name: f"e.{name}" for name, _ in _ENDED if name not in ("id", "epoch")}
    values |= {name: f"coalesce(e.{name}, c.{name})" for name in _OF_BODY}
    written = ", ".join(f"{name} = {value}" for name, value in values.items())
    return f"state = 'consumed', moved_ms = {_NOW}, {written}"


_END_VALUES = _write_end_values()
_END_CONDITION = " AND ".join(("c.id = e.id", *_END_GUARDS))
_REST_UNITS = f"CASE p.state WHEN '{PaymentState.GONE.value}' THEN 0 ELSE p.value_units - p.taken_units END"

_CLAIM_ONE, _CLAIM_MANY = _claim_text(is_alone=True), _claim_text(is_alone=False)
_CLOSE_ONE, _CLOSE_MANY = _close_text(is_alone=True), _close_text(is_alone=False)
_CLOSE_NOTED = _close_noted_text()


# ---- The texts of SQLite: values in place of relations, and indexes by name, because SQLite keeps no statistics.


def _for_sqlite(sql: str, given: Sequence[str], *, first: int) -> str:
    """Rewrites a text for SQLite. `given`: the columns of `a`, `w` and `e` that are parameters, in order. `first`: the number of the first."""
    numbers = {name: first + place for place, name in enumerate(given)}
    sql = re.sub(r"\$(\d+)::\w+", r"?\1", sql)
    return re.sub(r"\b[awe]\.(\w+)", lambda named: f"?{numbers[named[1]]}", sql)


_DEBIT_EACH_COLUMNS = (
    "payment_id",
    "payer",
    "units",
    "has_plain_proof",
    "has_bound_proof",
    "digest",
    "nonce",
    "nonce_tx_hash",
    "nonce_chain_id",
)
"""The demand of a claim on its payment, in the order of `_debit`."""
_LOOK_UPS = {
    "no open repeat": ("ix_call_repeatable", f"({_REPEATED}) IS NULL"),
    "nonce not used": ("uq_call_nonce", f"({_REPLAYED}) IS NULL"),
}
"""The guards that look up calls, each with its index."""


def _write_debit() -> str:
    looked_up = {
        name: guard.replace("FROM call c ", f"FROM call c INDEXED BY {index} ")
        for name, (index, guard) in _LOOK_UPS.items()
    }
    guards = " AND ".join({**_GUARDS, **looked_up}[name] for name in PAYMENT_GUARDS)
    sql = f"""
    UPDATE payment AS p SET taken_units = p.taken_units + w.units, calls = p.calls + 1,
      is_plain_ended = p.is_plain_ended OR w.has_bound_proof
    WHERE p.id = w.payment_id AND {guards}
    RETURNING value_units - taken_units, calls - 1"""  # noqa: S608 - names of ours
    return _for_sqlite(sql, _DEBIT_EACH_COLUMNS, first=1)


def _write_open() -> str:
    opened = {name: value.format(owner_id=_OWNER, now_ms=_NOW) for name, value in _OPENED.items()}
    values = {**opened, "rail": "a.rail"}
    sql = f"INSERT INTO call ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608 - names of ours
    return _for_sqlite(sql, [*(name for name, _ in _NEW_CALL), "rail"], first=_FIRST)


def _write_close() -> str:
    sql = f"""
    UPDATE call AS c SET {_END_VALUES} WHERE {_END_CONDITION}
    RETURNING (SELECT {_REST_UNITS} FROM payment p WHERE p.id = payment_id)"""  # noqa: S608 - names of ours
    return _for_sqlite(sql, [name for name, _ in _ENDED], first=_FIRST)


def _write_note() -> str:
    names = ", ".join(name for name, _ in _NOTED)
    values = ", ".join(f"?{number}" for number in range(1, len(_NOTED) + 1))
    number_of = {name: number for number, (name, _) in enumerate(_NOTED, 1)}
    return (
        f"INSERT INTO webhook_event ({names}) SELECT {values} FROM call c"  # noqa: S608 - names of ours
        f" WHERE c.id = ?{number_of['subject']} AND {_IS_CHARGE.format(call='c')}"
        f" AND {HAS_ENDPOINT.format(wallet='?' + str(number_of['wallet']))}"
    )


_DEBIT_EACH, _OPEN_EACH, _CLOSE_EACH = _write_debit(), _write_open(), _write_close()
_NOTE_EACH = _write_note()
