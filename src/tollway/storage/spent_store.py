"""What has been used up: the nonces of bound signatures, and payments that have nothing left. Reads only.

Plain functions over a connection; `posting` and `book_reader` run them. What follows is decided in `ledger/claims`.
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, select, text

from tollway.identifiers import CallId, ChainId, TxHash
from tollway.ledger.book import Claim, Exhausted, NonceUsed
from tollway.ledger.call import CallState
from tollway.ledger.claims import NonceKey, decide_claims, nonce_key
from tollway.storage.book_rows import PAYMENT_COLUMNS, parse_payment_row
from tollway.storage.book_tables import COUNTING_NONCE, call_table, payment_table
from tollway.storage.open_call_store import find_open_calls
from tollway.storage.payment_store import find_debts
from tollway.storage.statement_store import find_held_units
from tollway.storage.statements import Prepared, Within


def find_nonces(connection: Connection, claims: Sequence[Claim]) -> dict[NonceKey, NonceUsed]:
    """Who holds the nonces of these claims by now."""
    wanted = {key for key in map(nonce_key, claims) if key is not None}
    if not wanted:
        return {}
    found = _NONCES.fetch(
        connection,
        nonces=list({key.nonce for key in wanted}),
        tx_hashes=list({key.tx_hash for key in wanted}),
    )
    return {
        NonceKey(ChainId(chain_id), TxHash(tx_hash), bytes(nonce)): NonceUsed(
            call_id=CallId(call_id), state=CallState(state)
        )
        for call_id, state, chain_id, tx_hash, nonce in found
    }


_PAYMENT = Prepared(
    select(*(payment_table.c[name] for name in PAYMENT_COLUMNS)).where(
        payment_table.c.id == bindparam("payment_id")
    )
)
_NONCES = Prepared(
    select(
        call_table.c.id, call_table.c.state, call_table.c.chain_id, call_table.c.tx_hash, call_table.c.nonce
    ).where(
        Within(call_table.c.nonce, "nonces"), Within(call_table.c.tx_hash, "tx_hashes"), text(COUNTING_NONCE)
    )
)


def find_exhausted(connection: Connection, claims: Sequence[Claim]) -> list[Exhausted | NonceUsed | None]:
    """What each of these claims would hear if its payment surely has no rest; None where the ledger might grant it."""
    by_payment: dict[int | None, list[Claim]] = {}
    for claim in claims:
        if claim.price_units > 0:
            by_payment.setdefault(claim.payment_id, []).append(claim)
    outcomes: dict[CallId, Exhausted | NonceUsed] = {}
    for payment_id, claims_of_payment in by_payment.items():
        outcomes |= _find_exhausted_on(connection, payment_id, claims_of_payment)
    return [outcomes.get(claim.call_id) for claim in claims]


def _find_exhausted_on(
    connection: Connection, payment_id: int | None, claims: Sequence[Claim]
) -> dict[CallId, Exhausted | NonceUsed]:
    """Asks the same rules as a claim does, of a payment without any rest: then no other payment can help it out."""
    payments = list(map(parse_payment_row, _PAYMENT.fetch(connection, payment_id=payment_id)))
    payers = {claim.payer for claim in claims if claim.payer is not None}
    if not payers or any(payment.remaining_units > 0 for payment in payments):
        return {}
    decisions, _ = decide_claims(
        claims,
        payments=payments,
        nonces=find_nonces(connection, claims),
        keys={},
        repeats=find_open_calls(connection, claims),
        debts=find_debts(connection, payers),
        unfinal_max_nano={},
        unfinal_units={},
        now_ms=0,  # no authorisation is decided here
    )
    held_units = sum(find_held_units(connection, {payment.id for payment in payments}).values())
    outcomes: dict[CallId, Exhausted | NonceUsed] = {}
    for claim, decision in zip(claims, decisions, strict=True):
        if isinstance(decision.outcome, Exhausted):
            outcomes[claim.call_id] = replace(decision.outcome, held_units=held_units)
        elif isinstance(decision.outcome, NonceUsed):
            outcomes[claim.call_id] = decision.outcome
    return outcomes
