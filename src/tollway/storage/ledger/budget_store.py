"""The policies of owners in SQL. `ledger/budgets` decides what a change makes of a row; this module locks the row and writes it."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, delete, func, select, text, update

from tollway.ids import Address
from tollway.ledger.budgets import (
    BoundToAnother,
    Budget,
    NoBudget,
    NonceTooLow,
    TooManyPending,
    bind_wallet,
    reached_key,
    replace_policy,
    revoke,
)
from tollway.ledger.ledger import BudgetExceeded
from tollway.spending_policy import SpendingPolicy, write_policy
from tollway.storage.engine.advisory_locks import take_advisory_locks
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.statements import insert_for
from tollway.storage.ledger.budget_rows import (
    BOUND,
    BUDGET_COLUMNS,
    announce_refusals,
    budget_table,
    counters_of,
    parse_budget,
)
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog
from tollway.webhooks.events import EventType

_LOCK_SPACE = 0x6275_6467
"""The advisory locks of the owners whose pending policies are counted, and of the agents that accept an owner."""


class BudgetStore:
    """Implements `BudgetLedger`."""

    def __init__(self, database: Database, *, events: EventLog = NO_EVENTS) -> None:
        """`events`: makes the webhook events of refusals."""
        self._database = database
        self._events = events
        self._bound: frozenset[Address] = frozenset()

    async def refresh(self) -> None:
        """Reads which wallets are bound, for `find_known_binding`."""
        query = select(budget_table.c.agent).where(text(BOUND))
        read = self._database.read(lambda connection: connection.execute(query).scalars().all())
        self._bound = frozenset(map(Address, await read))

    async def find_known_binding(self, agent: Address) -> Budget | None:
        """The same as `find_binding` for a wallet that was bound at the last `refresh`, and None without a read for every other one: a claim decides about those."""
        return await self.find_binding(agent) if agent in self._bound else None

    async def find_budget(self, owner: Address, agent: Address) -> Budget | None:
        return await self._database.read(partial(_find, owner=owner, agent=agent))

    async def find_binding(self, agent: Address) -> Budget | None:
        return await self._database.read(partial(_find_binding, agent=agent))

    async def list_budgets(self, agent: Address, *, limit: int) -> tuple[Budget, ...]:
        columns = budget_table.c
        query = _select().where(columns.agent == agent)
        bound = query.where(text(BOUND))
        pending = query.where(text("bound_ms IS NULL"), columns.policy.is_not(None))
        pending = pending.order_by(columns.stored_ms.desc(), columns.owner).limit(limit)
        return await self._database.read(
            lambda connection: (*_parse(connection.execute(bound)), *_parse(connection.execute(pending)))
        )

    async def list_owned(self, owner: Address, *, limit: int) -> tuple[Budget, ...]:
        columns = budget_table.c
        query = _select().where(columns.owner == owner).order_by(columns.stored_ms.desc(), columns.agent)
        return await self._database.read(lambda connection: _parse(connection.execute(query.limit(limit))))

    async def list_bound(self, owner: Address, *, limit: int) -> tuple[Budget, ...]:
        columns = budget_table.c
        query = _select().where(columns.owner == owner, text(BOUND))
        query = query.order_by(columns.bound_ms.desc(), columns.agent).limit(limit)
        return await self._database.read(lambda connection: _parse(connection.execute(query)))

    async def store_policy(
        self, policy: SpendingPolicy, signature: str, *, pending_max: int, now_ms: int
    ) -> Budget | NonceTooLow | TooManyPending | BoundToAnother:
        work = partial(_store, policy=policy, signature=signature, pending_max=pending_max, now_ms=now_ms)
        return await write_retried(self._database, work)

    async def accept_owner(
        self, agent: Address, owner: Address, *, nonce: int, now_ms: int
    ) -> Budget | NoBudget | BoundToAnother | NonceTooLow:
        work = partial(_accept, agent=agent, owner=owner, nonce=nonce, now_ms=now_ms)
        return await write_retried(self._database, work)

    async def revoke_policy(
        self, owner: Address, agent: Address, *, nonce: int, is_unbinding: bool, now_ms: int
    ) -> Budget | NoBudget | NonceTooLow:
        work = partial(
            _revoke, owner=owner, agent=agent, nonce=nonce, is_unbinding=is_unbinding, now_ms=now_ms
        )
        return await write_retried(self._database, work)

    async def announce_refusal(self, budget: Budget, refused: BudgetExceeded, *, now_ms: int) -> None:
        """Writes the event of a refusal before a claim, once for each limit and window of a policy."""
        is_new = reached_key(refused) not in budget.reached
        wallets = (budget.owner, budget.agent)
        if is_new and any(self._events.is_watched(one, EventType.BUDGET_REACHED) for one in wallets):
            work = partial(_announce, budget=budget, refused=refused, log=self._events, now_ms=now_ms)
            await write_retried(self._database, work)

    async def prune_pending(self, *, before_ms: int) -> int:
        return await self._database.write(partial(_prune, before_ms=before_ms), flush=False)


def unbind(connection: Connection, agent: Address) -> Budget | None:
    """Ends that a wallet has an owner, without the owner. Returns the budget to which it was bound."""
    bound = _find_binding(connection, agent=agent, is_locked=True)
    if bound is not None:
        at = update(budget_table).where(_is_of(bound.owner, agent))
        connection.execute(at.values(bound_ms=None, policy=None, signature=None))
    return bound


def _store(
    connection: Connection, *, policy: SpendingPolicy, signature: str, pending_max: int, now_ms: int
) -> Budget | NonceTooLow | TooManyPending | BoundToAnother:
    take_advisory_locks(connection, [policy.owner], space=_LOCK_SPACE)
    known = _find(connection, owner=policy.owner, agent=policy.agent, is_locked=True)
    after = replace_policy(known, policy, signature, now_ms=now_ms)
    if not isinstance(after, Budget) or after is known:
        return after
    if after.bound_ms is None and (known is None or known.policy is None):
        columns = budget_table.c
        pending = select(func.count()).where(
            columns.owner == policy.owner, columns.bound_ms.is_(None), columns.policy.is_not(None)
        )
        if (connection.scalar(pending) or 0) >= pending_max:
            return TooManyPending()
    values = {
        "network": after.network,
        "nonce": after.nonce,
        "policy": write_policy(policy),
        "signature": signature,
        "stored_ms": after.stored_ms,
        "currency": after.currency,
        "since_ms": after.since_ms,
        "reached": "",
        **counters_of(after),
    }
    columns = budget_table.c
    new = insert_for(connection, budget_table).values(owner=after.owner, agent=after.agent, **values)
    connection.execute(new.on_conflict_do_update(index_elements=[columns.owner, columns.agent], set_=values))
    return after


def _accept(
    connection: Connection, *, agent: Address, owner: Address, nonce: int, now_ms: int
) -> Budget | NoBudget | BoundToAnother | NonceTooLow:
    take_advisory_locks(connection, [agent], space=_LOCK_SPACE)
    known = _find(connection, owner=owner, agent=agent, is_locked=True)
    bound = _find_binding(connection, agent=agent)
    last = select(func.max(budget_table.c.last_ms)).where(budget_table.c.agent == agent)
    last_ms = connection.scalar(last) or 0
    after = bind_wallet(known, bound, last_ms=last_ms, nonce=nonce, now_ms=now_ms)
    if isinstance(after, Budget) and after is not known:
        values = {"accepted_nonce": nonce, "bound_ms": now_ms, "since_ms": after.since_ms, "reached": ""}
        at = update(budget_table).where(_is_of(owner, agent))
        connection.execute(at.values(**values, **counters_of(after)))
    return after


def _announce(
    connection: Connection, *, budget: Budget, refused: BudgetExceeded, log: EventLog, now_ms: int
) -> None:
    locked = _find(connection, owner=budget.owner, agent=budget.agent, is_locked=True)
    is_same = locked is not None and (locked.nonce, locked.bound_ms) == (budget.nonce, budget.bound_ms)
    if locked is not None and is_same and reached_key(refused) not in locked.reached:
        announce_refusals(connection, [(locked, refused)], log, at_ms=now_ms)


def _revoke(
    connection: Connection, *, owner: Address, agent: Address, nonce: int, is_unbinding: bool, now_ms: int
) -> Budget | NoBudget | NonceTooLow:
    known = _find(connection, owner=owner, agent=agent, is_locked=True)
    after = revoke(known, nonce=nonce, is_unbinding=is_unbinding, now_ms=now_ms)
    if isinstance(after, Budget):
        values = {"nonce": nonce, "policy": None, "signature": None, "stored_ms": now_ms, "reached": ""}
        at = update(budget_table).where(_is_of(owner, agent))
        connection.execute(at.values(bound_ms=after.bound_ms, **values))
    return after


def _prune(connection: Connection, *, before_ms: int) -> int:
    columns = budget_table.c
    # A row without a policy keeps the nonce of a revocation.
    is_pending = and_(text("bound_ms IS NULL"), columns.policy.is_not(None))
    old = and_(is_pending, columns.stored_ms < before_ms)
    deleted = connection.execute(delete(budget_table).where(old, columns.accepted_nonce.is_(None))).rowcount
    once_bound = update(budget_table).where(old)
    return deleted + connection.execute(once_bound.values(policy=None, signature=None)).rowcount


def _find(
    connection: Connection, *, owner: Address, agent: Address, is_locked: bool = False
) -> Budget | None:
    return _fetch_one(connection, _select().where(_is_of(owner, agent)), is_locked=is_locked)


def _find_binding(connection: Connection, *, agent: Address, is_locked: bool = False) -> Budget | None:
    query = _select().where(budget_table.c.agent == agent, text(BOUND))
    return _fetch_one(connection, query, is_locked=is_locked)


def _fetch_one(connection: Connection, query: Select[Any], *, is_locked: bool) -> Budget | None:
    found = _parse(connection.execute(query.with_for_update() if is_locked else query))
    return found[0] if found else None


def _select() -> Select[Any]:
    return select(*(budget_table.c[name] for name in BUDGET_COLUMNS))


def _is_of(owner: Address, agent: Address) -> Any:
    return and_(budget_table.c.owner == owner, budget_table.c.agent == agent)


def _parse(rows: Iterable[Row[Any]]) -> tuple[Budget, ...]:
    return tuple(parse_budget(tuple(row)) for row in rows)
