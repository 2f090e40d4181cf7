"""The rows of budgets in SQL: read, locked, counted and given back.

A row that is bound counts the calls of its wallet. It is locked after every other row of a transaction of the ledger: payments, calls, nonces, debts, budgets by agent. A
claim finds whether its payer is bound in a statement that it makes anyway (`find_debts_and_bound`, `channel_rows.find_claimed_channels`, the guards of plain
claims), so the claim of a wallet without an owner costs no statement more. The look-up takes no lock: a binding that is committed a moment later counts from the next
claim on. What the row says is read under its lock.

`call.budget_nano` is what a call counts, and `call.budget_ms` the moment by which it counts; both are NULL for the calls of other wallets. `reached`: what a refusal has
announced, separated by spaces.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    Table,
    Text,
    bindparam,
    literal_column,
    select,
    text,
    update,
)

from tollway.ids import Address, ChainId
from tollway.ledger.budgets import Budget, SpendingWindow, month_start_ms, reached_key
from tollway.ledger.claims import CreditAccount
from tollway.ledger.ledger import BudgetExceeded
from tollway.ledger.sales import DAY_MS, HOUR_MS, floor_to
from tollway.spending_policy import read_policy
from tollway.storage.engine.database import metadata, partial_index
from tollway.storage.engine.statements import Prepared, Within
from tollway.storage.ledger.ledger_tables import account_debt_table
from tollway.storage.webhooks.webhook_events import EventLog, write_events
from tollway.webhooks.events import EventType, NewEvent, budget_subject

BOUND = "bound_ms IS NOT NULL"

budget_table = Table(
    "budget",
    metadata,
    Column("owner", LargeBinary(20), primary_key=True),
    Column("agent", LargeBinary(20), primary_key=True),
    Column("network", Text, nullable=False),
    Column("nonce", BigInteger, nullable=False),
    Column("accepted_nonce", BigInteger),
    Column("policy", Text),
    Column("signature", Text),
    Column("stored_ms", BigInteger, nullable=False),
    Column("bound_ms", BigInteger),
    Column("currency", Text, nullable=False),
    Column("since_ms", BigInteger, nullable=False, server_default="0"),
    Column("last_ms", BigInteger, nullable=False, server_default="0"),
    *(
        Column(f"{window}_{part}", BigInteger, nullable=False, server_default="0")
        for window in ("hour", "day", "month")
        for part in ("ms", "nano")
    ),
    Column("total_nano", BigInteger, nullable=False, server_default="0"),
    Column("reached", Text, nullable=False, server_default=""),
    # One owner a wallet: of two acceptances, the database refuses the second.
    partial_index("uq_budget_bound", BOUND, "agent", unique=True),
    partial_index("ix_budget_pending", "bound_ms IS NULL", "agent", "stored_ms"),
)

BUDGET_COLUMNS = tuple(budget_table.columns.keys())
_COUNTERS = ("last_ms", "hour_ms", "hour_nano", "day_ms", "day_nano", "month_ms", "month_nano", "total_nano")


def find_debts_and_bound(
    connection: Connection, payers: Collection[Address]
) -> tuple[dict[CreditAccount, int], set[Address]]:
    """The debts of these payers in units, by credit account, and those of them that are bound to an owner. Takes no locks."""
    debts: dict[CreditAccount, int] = {}
    bound: set[Address] = set()
    if not payers:
        return debts, bound
    for payer, payee, asset, chain_id, units in _DEBTS_AND_BOUND.fetch(connection, payers=list(payers)):
        if payee is None:
            bound.add(Address(payer))
        else:
            debts[CreditAccount(ChainId(chain_id), asset, Address(payer), Address(payee))] = units
    return debts, bound


def lock_budgets(connection: Connection, agents: Collection[Address]) -> list[Budget]:
    """The budgets to which these wallets are bound, locked by ascending wallet. Comes after every other lock of the transaction."""
    if not agents:
        return []
    return list(map(parse_budget, _LOCK.fetch(connection, agents=sorted(agents))))


def write_counters(connection: Connection, budgets: Iterable[Budget]) -> None:
    """Writes what these budgets have counted. They are locked."""
    rows = [{"at_owner": one.owner, "at_agent": one.agent, **counters_of(one)} for one in budgets]
    if rows:
        _COUNT.run(connection, rows)


def counters_of(budget: Budget) -> dict[str, int]:
    """The columns of what a budget has counted."""
    return {
        "last_ms": budget.last_ms,
        "hour_ms": budget.hour.start_ms,
        "hour_nano": budget.hour.spent_nano,
        "day_ms": budget.day.start_ms,
        "day_nano": budget.day.spent_nano,
        "month_ms": budget.month.start_ms,
        "month_nano": budget.month.spent_nano,
        "total_nano": budget.total_nano,
    }


def announce_refusals(
    connection: Connection, refused: Iterable[tuple[Budget, BudgetExceeded]], log: EventLog, *, at_ms: int
) -> None:
    """Writes the events of refusals that these budgets, which are locked, have not announced, and remembers them. Writes nothing where neither wallet gets them."""
    events: list[NewEvent] = []
    reached: dict[tuple[Address, Address], Budget] = {}
    for budget, refusal in refused:
        wallets = (budget.owner, budget.agent)
        made = log.make_events(
            EventType.BUDGET_REACHED,
            wallets,
            subject=budget_subject(budget, until_ms=refusal.until_ms),
            state=refusal.limit or refusal.reason,
            at_ms=at_ms,
        )
        if made:
            events += made
            reached[wallets] = reached.get(wallets, budget).reach(reached_key(refusal))
    if reached:
        _REACH.run(
            connection,
            [
                {"at_owner": owner, "at_agent": agent, "reached": " ".join(budget.reached)}
                for (owner, agent), budget in reached.items()
            ],
        )
    write_events(connection, events)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """What a call counts no more. `at_ms`: its `budget_ms`."""

    agent: Address
    at_ms: int
    nano: int


def give_back(connection: Connection, given: Iterable[GivenBack]) -> None:
    """Takes from the budgets what calls count no more: from the total, and from each window that has not ended. Counters that began again since give nothing back."""
    rows = [
        {
            "at_agent": one.agent,
            "at_ms": one.at_ms,
            "at_hour": floor_to(HOUR_MS, one.at_ms),
            "at_day": floor_to(DAY_MS, one.at_ms),
            "at_month": month_start_ms(one.at_ms),
            "nano": one.nano,
        }
        for one in sorted(given, key=lambda one: one.agent)
    ]
    if rows:
        _GIVE_BACK.run(connection, rows)


def parse_budget(row: Sequence[Any]) -> Budget:
    """A row with `BUDGET_COLUMNS`."""
    own = dict(zip(BUDGET_COLUMNS, row, strict=True))
    hour, day, month = (
        SpendingWindow(start_ms=own[f"{window}_ms"], spent_nano=own[f"{window}_nano"])
        for window in ("hour", "day", "month")
    )
    return Budget(
        owner=Address(own["owner"]),
        agent=Address(own["agent"]),
        network=own["network"],
        nonce=own["nonce"],
        accepted_nonce=own["accepted_nonce"],
        policy=None if own["policy"] is None else read_policy(own["policy"]),
        signature=own["signature"],
        stored_ms=own["stored_ms"],
        bound_ms=own["bound_ms"],
        currency=own["currency"],
        since_ms=own["since_ms"],
        last_ms=own["last_ms"],
        hour=hour,
        day=day,
        month=month,
        total_nano=own["total_nano"],
        reached=tuple(own["reached"].split()),
    )


_DEBTS_AND_BOUND = Prepared(
    select(*(account_debt_table.c[name] for name in ("payer", "payee", "asset", "chain_id", "units")))
    .where(Within(account_debt_table.c.payer, "payers"), account_debt_table.c.units > literal_column("0"))
    .union_all(
        select(budget_table.c.agent, *(literal_column("NULL") for _ in range(4))).where(
            Within(budget_table.c.agent, "payers"), text(BOUND)
        )
    )
)
_LOCK = Prepared(
    select(*(budget_table.c[name] for name in BUDGET_COLUMNS))
    .where(Within(budget_table.c.agent, "agents"), text(BOUND))
    .order_by(budget_table.c.agent)
    .with_for_update()
)


def _update_budget(names: Iterable[str]) -> Prepared:
    columns = budget_table.c
    at = (columns.owner == bindparam("at_owner"), columns.agent == bindparam("at_agent"))
    return Prepared(update(budget_table).where(*at).values({name: bindparam(name) for name in names}))


_COUNT = _update_budget(_COUNTERS)
_REACH = _update_budget(("reached",))
_GIVE_BACK = Prepared(
    text(
        "UPDATE budget SET total_nano = total_nano - :nano,"
        " hour_nano = hour_nano - CASE WHEN hour_ms = :at_hour THEN :nano ELSE 0 END,"
        " day_nano = day_nano - CASE WHEN day_ms = :at_day THEN :nano ELSE 0 END,"
        " month_nano = month_nano - CASE WHEN month_ms = :at_month THEN :nano ELSE 0 END"
        " WHERE agent = :at_agent AND bound_ms IS NOT NULL AND since_ms <= :at_ms"
    ).bindparams(
        bindparam("at_agent", type_=LargeBinary(20)),
        *(bindparam(name, type_=BigInteger) for name in ("nano", "at_ms", "at_hour", "at_day", "at_month")),
    )
)
