"""Every port of the ledger over one database, as one object: what a contract suite, the simulation and the model share.

A gateway has one store for each port (`app/parts`). The model in memory (`tests/model`) is one object for all of them, so tests
that run on both name one ledger.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection

from tests.model.rows import Debt, debts_from
from tollway.ids import Address
from tollway.ledger.ledger import Claim
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.engine.database import Database
from tollway.storage.ledger.budget_store import BudgetStore
from tollway.storage.ledger.call_terms import TermsReference, terms_of, write_terms
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.debts import find_debts
from tollway.storage.ledger.finality import FinalityStore
from tollway.storage.ledger.gas_store import GasStore
from tollway.storage.ledger.history import HistoryStore
from tollway.storage.ledger.ledger_store import LedgerStore
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.storage.ledger.refunds import RefundStore
from tollway.storage.operator.operator_writes import OperatorStore
from tollway.storage.webhooks.webhook_events import NO_EVENTS


class SqlLedger(LedgerStore):
    """`LedgerStore`, and for every name that it does not have, the store that has it."""

    def __init__(
        self,
        database: Database,
        *,
        owner_id: str,
        now_ms: Callable[[], int],
        limits: Limits = DEFAULT_LIMITS,
        **options: Any,
    ) -> None:
        super().__init__(database, owner_id=owner_id, now_ms=now_ms, limits=limits, **options)
        events = options.get("events", NO_EVENTS)
        self._stores = (
            PaymentLedgerStore(database, limits=limits, events=events),
            FinalityStore(database, now_ms=self.shared_ms, limits=limits, events=events),
            OperatorStore(database, now_ms=self.shared_ms),
            HistoryStore(database, limits=limits),
            GasStore(database),
            ChannelClaimStore(database, limits=limits),
            RefundStore(database, limits=limits, events=events),
            BudgetStore(database, events=events),
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return next(getattr(store, name) for store in self._stores if hasattr(store, name))

    async def debts(self, payer: Address) -> tuple[Debt, ...]:
        """What that payer owes, by account."""
        return debts_from(await self._database.read(partial(find_debts, payers=[payer])))


def write_terms_of(connection: Connection, claims: Sequence[Claim]) -> list[TermsReference]:
    """Writes the terms of each of these claims; they stay."""
    terms = list(map(terms_of, claims))
    written = write_terms(connection, set(terms)) if terms else {}
    return [written[one] for one in terms]
