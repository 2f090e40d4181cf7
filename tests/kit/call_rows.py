"""Rows of calls, written past the ledger: as a gateway of another release writes them, or more than a test would claim."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER
from tollway.ids import CallId
from tollway.storage.ledger.call_terms import CallTerms, TermsReference, reference_of, write_terms
from tollway.storage.ledger.ledger_tables import account_debt_table, call_table

_TERMS = {
    "listing_id": "api_1",
    "listing_name": "Quotes",
    "method": "GET",
    "price": "1",
    "currency": "USDC",
    "chain_id": None,
    "asset": None,
    "decimals": 6,
    "pay_to": None,
    "metering": None,
}


def call_record_row(number: int, **changes: Any) -> dict[str, Any]:
    """A call with what it shares, for `insert_calls`; `number` orders them in time. Every column can be given."""
    row = {
        "id": CallId(f"call_{number}"),
        "provider": PROVIDER,
        "payer": PAYER,
        "path": "/quote",
        "digest": b"",
        "state": "consumed",
        "rail": "credit",
        "price_units": 1,
        "taken_units": 0,
        "request_id": "r",
        "owner_id": "one",
        "epoch": 1,
        "attempts": 1,
        "cut": "",
        "clock_releases": True,
        "created_ms": NOW_MS + number,
        "moved_ms": NOW_MS,
    }
    return row | _TERMS | changes


def insert_calls(connection: Connection, rows: Iterable[dict[str, Any]]) -> None:
    """Writes calls, their terms, and what `reorged` ones owe.

    The calls are returned, so that SQLAlchemy writes many rows with a statement: the trigger that counts calls writes its row anew for each
    statement, and PostgreSQL walks through all its versions of one transaction. A column that only some rows give is null in the others: SQLAlchemy would drop it.
    """
    rows = list(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    terms: dict[CallTerms, TermsReference] = {}
    calls = []
    for row in rows:
        shared = CallTerms(**{name: row[name] for name in _TERMS})
        terms[shared] = terms.get(shared) or reference_of(shared)
        own = {name: row.get(name) for name in columns if name not in _TERMS}
        calls.append({**own, **terms[shared]._asdict()})
    write_terms(connection, terms)
    connection.execute(insert(call_table).returning(call_table.c.id), calls)
    for row in rows:
        if row["state"] == "reorged" and row["pay_to"] is not None:
            _add_debt(connection, row)


def _add_debt(connection: Connection, row: dict[str, Any]) -> None:
    """The debt of an account is a kept sum."""
    debts = account_debt_table
    account = {
        "payer": row["payer"],
        "payee": row["pay_to"],
        "asset": row["asset"],
        "chain_id": row["chain_id"],
    }
    at_account = [debts.c[name] == value for name, value in account.items()]
    units = row["price_units"] - row["taken_units"]
    if connection.execute(select(debts.c.units).where(*at_account)).first() is None:
        connection.execute(insert(debts).values(units=units, **account))
    else:
        connection.execute(update(debts).where(*at_account).values(units=debts.c.units + units))
