"""The events of webhooks in the transactions that make them true.

An `EventLog` knows in memory which wallets get which types of events. A transaction that moves a call or a payment asks it; only for a wallet with
an active endpoint of that type a row is written, with one statement for all events of the transaction. So a paid call without an endpoint
costs nothing more.

Each gateway polls the set of active endpoints. A gateway whose set is older than `STALE_S` makes the events of all wallets, because it may not know
a new endpoint yet; the statement that writes them leaves out wallets without an active endpoint. An endpoint is active `ACTIVATION_MS` after its
challenge, which is longer, so no event from then on is missed.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, bindparam, cast, insert, select, text

from tollway.ids import Address, format_id
from tollway.storage.engine.statements import Prepared, insert_for
from tollway.storage.webhooks.webhook_tables import event_table
from tollway.webhooks.events import EventType, NewEvent

STALE_S = 3.0
ACTIVATION_MS = 5_000
_ID_BYTES = 10

_COLUMNS = ("id", "wallet", "type", "subject", "state", "units", "at_ms")
_read_columns = attrgetter(*_COLUMNS)
HAS_ENDPOINT = "EXISTS (SELECT 1 FROM webhook_endpoint w WHERE w.wallet = {wallet} AND w.state = 'active')"
_INSERT = Prepared(
    insert(event_table).from_select(
        _COLUMNS,
        select(*(cast(bindparam(name), event_table.c[name].type) for name in _COLUMNS)).where(
            text(HAS_ENDPOINT.format(wallet=":wallet")).bindparams(
                bindparam("wallet", type_=event_table.c.wallet.type)
            )
        ),
    )
)


class EventLog:
    """The wallets that get events, and the writer of event rows. Its set is replaced whole, so threads need no lock."""

    def __init__(
        self,
        *,
        entropy: Callable[[int], bytes] = os.urandom,
        clock: Callable[[], float] = time.monotonic,
        stale_s: float = STALE_S,
    ) -> None:
        """`clock`: monotonic seconds. `stale_s`: the age from which the set counts as unknown."""
        self._entropy = entropy
        self._clock = clock
        self._stale_s = stale_s
        self._read_s = -inf
        self._watched: frozenset[tuple[Address, EventType]] = frozenset()

    def set_watched(self, watched: Iterable[tuple[Address, EventType]], *, read_s: float) -> None:
        """Replaces the set. `read_s`: the moment at which its read began."""
        self._watched = frozenset(watched)
        self._read_s = read_s

    def keep_watched(self, *, read_s: float) -> None:
        self._read_s = read_s

    @property
    def is_idle(self) -> bool:
        """True when no wallet gets events: the usual case, decided without a look at the wallets."""
        return not self._watched and self._clock() - self._read_s <= self._stale_s

    @property
    def has_none_watched(self) -> bool:
        """The last read found no active endpoint."""
        return not self._watched

    @property
    def _is_stale(self) -> bool:
        return self._clock() - self._read_s > self._stale_s

    def is_watched(self, wallet: Address | None, kind: EventType) -> bool:
        return wallet is not None and ((wallet, kind) in self._watched or self._is_stale)

    def wallets_watching(self, kind: EventType) -> frozenset[Address]:
        """The wallets with an active endpoint of this type, as of the last read."""
        return frozenset(wallet for wallet, watched in self._watched if watched is kind)

    def make_events(
        self,
        kind: EventType,
        wallets: Iterable[Address | None],
        *,
        subject: str,
        state: str | None,
        at_ms: int,
        units: int | None = None,
    ) -> list[NewEvent]:
        """The events for those of the wallets that get this type, one for each wallet."""
        if self.is_idle:
            return []
        return [
            NewEvent(
                id=format_id("evt", now_ms=at_ms, entropy=self._entropy(_ID_BYTES)),
                wallet=wallet,
                type=kind,
                subject=subject,
                state=state,
                units=units,
                at_ms=at_ms,
            )
            for wallet in dict.fromkeys(wallets)
            if wallet is not None and self.is_watched(wallet, kind)
        ]


def write_events(connection: Connection, events: Sequence[NewEvent]) -> None:
    """Runs one statement; none without an event."""
    if events:
        _INSERT.run(connection, [event_row(event) for event in events])


def write_events_once(connection: Connection, events: Sequence[NewEvent]) -> None:
    """Writes the events whose ids no event has yet: several gateways make the same ones."""
    if events:
        row = insert_for(connection, event_table).on_conflict_do_nothing()
        connection.execute(row, [event_row(event) for event in events])


def event_row(event: NewEvent) -> dict[str, Any]:
    return dict(zip(_COLUMNS, _read_columns(event), strict=True))


NO_EVENTS = EventLog(stale_s=inf)
"""The log of a store without webhooks."""
