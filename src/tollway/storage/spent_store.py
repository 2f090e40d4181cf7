"""What has been used up: the nonces of bound signatures, and payments that have nothing left. Reads only.

Plain functions over a connection; `posting` and `book_reader` run them. What follows is decided in `ledger/claims`.
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, select, text

from tollway.identifiers import CallId, ChainId, TxHash
from tollway.ledger.book import Claim, Exhausted, NonceUsed
from tollway.ledger.call import CallState
from tollway.ledger.claims import NonceKey, decide_claims, nonce_key
from tollway.storage.book_rows import parse_payment
from tollway.storage.book_tables import COUNTING_NONCE, call_table, payment_table
from tollway.storage.open_call_store import find_repeats
from tollway.storage.payment_store import find_debts
from tollway.storage.statement_store import find_held


def find_nonces(connection: Connection, claims: Sequence[Claim]) -> dict[NonceKey, NonceUsed]:
    """Who holds the nonces of these claims by now."""
    wanted = {key for key in map(nonce_key, claims) if key is not None}
    if not wanted:
        return {}
    columns = call_table.c
    query = select(columns.id, columns.state, columns.chain_id, columns.tx_hash, columns.nonce).where(
        columns.nonce.in_({key.nonce for key in wanted}),
        columns.tx_hash.in_({key.tx_hash for key in wanted}),
        text(COUNTING_NONCE),
    )
    return {
        NonceKey(ChainId(row.chain_id), TxHash(row.tx_hash), bytes(row.nonce)): NonceUsed(
            call_id=CallId(row.id), state=CallState(row.state)
        )
        for row in connection.execute(query)
    }


def find_spent(connection: Connection, claim: Claim) -> Exhausted | NonceUsed | None:
    """Asks the same rules as a claim does, of a payment without any rest: then no other payment can help it out."""
    query = select(payment_table).where(payment_table.c.id == claim.payment_id)
    payments = [parse_payment(row) for row in connection.execute(query)]
    if claim.payer is None or any(payment.rest_units > 0 for payment in payments):
        return None
    (decision,), _ = decide_claims(
        [claim],
        payments=payments,
        nonces=find_nonces(connection, [claim]),
        keys={},
        repeats=find_repeats(connection, [claim]),
        debts=find_debts(connection, {claim.payer}),
        unfinal_max_nano={},
    )
    if isinstance(decision.outcome, Exhausted):
        held = find_held(connection, {payment.id for payment in payments})
        return replace(decision.outcome, held_units=sum(held.values()))
    return decision.outcome if isinstance(decision.outcome, NonceUsed) else None
