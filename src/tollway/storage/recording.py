"""A transaction of a chain on its way into the ledger: what it knows of it before it is judged, and what it holds once it was.

Plain functions over a connection; `book_reader` and `book_store` run them. They judge nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from tollway.errors import StorageUnavailable
from tollway.identifiers import TxHash
from tollway.ledger.call import NewPayment, Payment, RecordedTransaction
from tollway.storage.operator_notes import find_operator_records, held_before_ms
from tollway.storage.payment_store import find_payments, record_payments


@dataclass(frozen=True, slots=True)
class Recording:
    """What one transaction holds, and what that was judged by. The same as another of its payments, whenever each was seen."""

    payments: tuple[NewPayment, ...]
    based_on: RecordedTransaction | None
    now_ms: int = field(compare=False)


def find_transaction(connection: Connection, tx_hash: TxHash) -> RecordedTransaction:
    is_admitted, held_before = find_operator_records(connection, tx_hash)
    payments = find_payments(connection, tx_hash)
    return RecordedTransaction(payments=payments, is_admitted=is_admitted, held_before_ms=held_before)


def record_each(connection: Connection, recordings: Sequence[Recording]) -> list[tuple[Payment, ...]]:
    """What several transactions of chains hold, in one of ours. Raises `StorageUnavailable`, and writes nothing, where one
    was judged without knowing that the database is an older one."""
    recorded = [record_payments(connection, one.payments, now_ms=one.now_ms) for one in recordings]
    judged = [one.based_on for one in recordings if one.based_on is not None]
    if judged:
        # Looked at last: from the first row on, `mark_restored` waits for us, and then holds what we wrote.
        held_before = held_before_ms(connection)
        if any(held_before not in (None, one.held_before_ms) for one in judged):
            raise StorageUnavailable("The database was found to be an older one meanwhile; ask again.")
    return recorded
