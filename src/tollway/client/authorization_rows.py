"""Authorisations in the wallet's payment store: the SQL of `client/spending.py` that is about them.

Every function works inside the transaction of its caller, and commits nothing. A proof is kept while it is open only:
it is worth money to whoever reads it.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence

from tollway.client.quote import units_to_atto
from tollway.client.steps import AuthorizationState, SignedAuthorization
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

LEASE_MS = 600_000
"""Longer than any call takes: until then an open authorisation is left to the process that signed it."""

AUTHORIZATION_SCHEMA = """
CREATE TABLE signed_authorization (
  nonce TEXT PRIMARY KEY, proof TEXT NOT NULL, chain_id INTEGER NOT NULL, token TEXT NOT NULL, symbol TEXT NOT NULL,
  decimals INTEGER NOT NULL, payer TEXT NOT NULL, pay_to TEXT NOT NULL, gateway TEXT NOT NULL, amount TEXT NOT NULL,
  valid_before INTEGER NOT NULL, state TEXT NOT NULL, tx_hash TEXT, request TEXT NOT NULL,
  leased_until_ms INTEGER NOT NULL, created_ms INTEGER NOT NULL);
CREATE INDEX authorization_by_request ON signed_authorization (payer, request) WHERE state = 'open'
"""
SCHEMA_RELEASED = """
CREATE INDEX authorization_by_end ON signed_authorization (payer, valid_before) WHERE state = 'released'
"""
"""Up to version 4 `released` did not count as spent. From here on it does; no row is changed for that."""

RELEASED_MAX = 64
"""How many released authorisations one look at a chain takes up."""

_AUTHORIZATION_COLUMNS = "nonce, proof, chain_id, token, symbol, decimals, payer, pay_to, gateway, amount, valid_before, state, tx_hash"


class UnreadableRow(Exception):
    """A row holds what this version does not know: an earlier or later one wrote it, or the file is damaged."""


def insert_authorization(
    connection: sqlite3.Connection, signed: SignedAuthorization, *, request: bytes, now_ms: int
) -> None:
    asset = signed.asset
    connection.execute(
        f"INSERT INTO signed_authorization ({_AUTHORIZATION_COLUMNS}, request, leased_until_ms, created_ms)"  # noqa: S608 - our own column list
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            signed.nonce.hex(),
            signed.proof,
            asset.chain_id,
            str(asset.token),
            asset.symbol,
            asset.decimals,
            str(signed.payer),
            str(signed.pay_to),
            signed.gateway,
            str(signed.amount),
            signed.valid_before,
            signed.state.value,
            None,
            request.hex(),
            now_ms + LEASE_MS,
            now_ms,
        ),
    )


def lease_open_authorization(
    connection: sqlite3.Connection,
    payer: Address,
    *,
    request: bytes,
    left: Iterable[bytes],
    now_ms: int,
) -> SignedAuthorization | None:
    """The oldest open one of that request which nobody is using; it is the asker's for the time of a lease."""
    freed = {nonce.hex() for nonce in left}
    rows = connection.execute(
        f"SELECT leased_until_ms, {_AUTHORIZATION_COLUMNS} FROM signed_authorization"  # noqa: S608 - our own column list
        " WHERE payer = ? AND request = ? AND state = 'open' ORDER BY created_ms, rowid",
        (str(payer), request.hex()),
    )
    for leased_until_ms, *row in rows.fetchall():
        if leased_until_ms <= now_ms or row[0] in freed:
            connection.execute(
                "UPDATE signed_authorization SET leased_until_ms = ? WHERE nonce = ?",
                (now_ms + LEASE_MS, row[0]),
            )
            return _read_authorization(row)
    return None


def record_authorization_state(
    connection: sqlite3.Connection, nonce: bytes, state: AuthorizationState, tx_hash: TxHash | None
) -> bool:
    """What became of an open one; `OPEN` ends its lease. A released one can only be found expired or charged. Every
    other outcome is kept; False then."""
    is_open = state is AuthorizationState.OPEN
    is_by_chain = state in (AuthorizationState.EXPIRED, AuthorizationState.CHARGED)
    changed = connection.execute(
        "UPDATE signed_authorization SET state = ?, tx_hash = ?, leased_until_ms = 0,"
        " proof = CASE WHEN ? THEN proof ELSE '' END"
        " WHERE nonce = ? AND (state = 'open' OR (state = 'released' AND ?))",
        (state.value, None if tx_hash is None else str(tx_hash), is_open, nonce.hex(), is_by_chain),
    )
    return changed.rowcount == 1


def sum_spent_authorizations(connection: sqlite3.Connection, payer: Address, symbol: str) -> int:
    """What they have moved or may move, in 10^-18 of the currency. That a gateway releases one changes nothing."""
    rows = connection.execute(  # prices repeat: few groups, however many calls
        "SELECT amount, decimals, count(*) FROM signed_authorization"
        " WHERE payer = ? AND symbol = ? AND state NOT IN ('expired', 'unsent') GROUP BY amount, decimals",
        (str(payer), symbol),
    )
    try:
        return sum(
            count * units_to_atto(int(amount), decimals=int(decimals)) for amount, decimals, count in rows
        )
    except (ValueError, TypeError) as exc:
        raise UnreadableRow(f"an amount of its authorisations cannot be read: {exc}") from exc


def select_released_authorizations(
    connection: sqlite3.Connection, payer: Address, *, chains: Iterable[ChainId], now_s: int
) -> tuple[SignedAuthorization, ...]:
    """Released ones whose time is over by our clock, oldest first: at most `RELEASED_MAX`."""
    rows = connection.execute(
        f"SELECT {_AUTHORIZATION_COLUMNS} FROM signed_authorization WHERE payer = ? AND state = 'released'"  # noqa: S608 - our own column list
        " AND valid_before <= ? AND chain_id IN (SELECT value FROM json_each(?)) ORDER BY valid_before LIMIT ?",
        (str(payer), now_s, json.dumps(sorted(chains)), RELEASED_MAX),
    )
    return tuple(_read_authorization(row) for row in rows)


def select_authorizations(connection: sqlite3.Connection, payer: Address) -> tuple[SignedAuthorization, ...]:
    """Oldest first."""
    rows = connection.execute(
        f"SELECT {_AUTHORIZATION_COLUMNS} FROM signed_authorization WHERE payer = ? ORDER BY created_ms, rowid",  # noqa: S608 - our own column list
        (str(payer),),
    )
    return tuple(_read_authorization(row) for row in rows)


def _read_authorization(row: Sequence[object]) -> SignedAuthorization:
    try:
        return _parse_authorization(row)
    except (ValueError, TypeError) as exc:
        raise UnreadableRow(f"its row of authorisation {str(row[0])[:66]} cannot be read: {exc}") from exc


def _parse_authorization(row: Sequence[object]) -> SignedAuthorization:
    nonce, proof, chain_id, token, symbol, decimals, payer, pay_to, gateway = row[:9]
    amount, valid_before, state, tx_hash = row[9:]
    return SignedAuthorization(
        nonce=bytes.fromhex(str(nonce)),
        proof=str(proof),
        asset=Asset(
            chain_id=ChainId(int(str(chain_id))),
            token=Address.parse(str(token)),
            symbol=str(symbol),
            decimals=int(str(decimals)),
        ),
        payer=Address.parse(str(payer)),
        pay_to=Address.parse(str(pay_to)),
        gateway=str(gateway),
        amount=int(str(amount)),
        valid_before=int(str(valid_before)),
        state=AuthorizationState(str(state)),
        tx_hash=None if tx_hash is None else TxHash.parse(str(tx_hash)),
    )
