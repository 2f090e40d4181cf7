"""Idempotency keys in the wallet's payment store: the SQL of `client/spending.py` that is about them.

A key belongs to one request from before it is sent until its answer has been handed over. Whoever asks for the same
request meanwhile, also after a crash, is told the same key; so a gateway sees one call, and takes one price.

Every function works inside the transaction of its caller, and commits nothing.
"""

import sqlite3

from tollway.ids import Address

IDEMPOTENCY_KEY_KEPT_MS = 20 * 3_600_000
"""Gateways know a key for 24 hours after its call began. Beyond that it would protect nothing."""

IDEMPOTENCY_KEY_SCHEMA = """
CREATE TABLE kept_key (
  payer TEXT NOT NULL, request TEXT NOT NULL, idempotency_key TEXT NOT NULL, created_ms INTEGER NOT NULL,
  PRIMARY KEY (payer, request));
CREATE INDEX kept_key_by_age ON kept_key (created_ms)
"""


def keep_idempotency_key(
    connection: sqlite3.Connection, payer: Address, *, request: bytes, fresh: str, now_ms: int
) -> str:
    """The key of that request; `fresh` where it has none."""
    connection.execute("DELETE FROM kept_key WHERE created_ms <= ?", (now_ms - IDEMPOTENCY_KEY_KEPT_MS,))
    connection.execute(
        "INSERT INTO kept_key (payer, request, idempotency_key, created_ms) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (str(payer), request.hex(), fresh, now_ms),
    )
    row = connection.execute(
        "SELECT idempotency_key FROM kept_key WHERE payer = ? AND request = ?", (str(payer), request.hex())
    ).fetchone()
    return str(row[0])


def drop_idempotency_key(connection: sqlite3.Connection, payer: Address, *, request: bytes, key: str) -> None:
    """That key alone: the request may have another by now."""
    connection.execute(
        "DELETE FROM kept_key WHERE payer = ? AND request = ? AND idempotency_key = ?",
        (str(payer), request.hex(), key),
    )
