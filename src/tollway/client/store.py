"""The wallet's payment store: every payment, every refund of calls and every authorisation that the wallet signed, and the idempotency keys of requests in
progress, in one SQLite file that several processes can share.

A payment is flushed to the disk before its first byte is sent. This write decides whether the payment is allowed
(budget, nonce, no unresolved payment to the same payee). The store uses no network.

SQLite with a rollback journal and `synchronous=EXTRA`: safe between processes with every SQLite version, and a commit that returned
survives a loss of power. The file holds signed transactions and open authorisations, so only its owner can read it. The proof of an
authorisation is stored only until its request has the outcome, because every reader could settle an open one.

An idempotency key belongs to one request from before it is sent until its response has been delivered. The same request in between,
also after a crash, gets the same key; so a gateway sees one call and takes one price.
"""

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pydantic_core import from_json

from tollway.client.call_io import (
    UNRESOLVED,
    WORTHLESS,
    AuthorizationState,
    NonceTaken,
    OverBudget,
    PaidAlready,
    PaymentQuote,
    RefundedAlready,
    SignedAuthorization,
    Stored,
    StoreOutcome,
    Transfer,
    TransferState,
)
from tollway.client.channel_table import (
    CHANNEL_SCHEMA,
    count_payee_calls,
    select_channel,
    select_channels,
    select_pending_channel,
    sum_returned,
    write_channel,
)
from tollway.client.errors import StoreUnusable
from tollway.client.own_channel import OwnChannel
from tollway.client.quote import Cap, to_atto, units_to_atto
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId, ChannelId, TxHash
from tollway.money import Asset

LEASE_MS = 600_000
"""The lease of an authorisation with a proof, longer than any call: until its end only the process that signed the authorisation uses it."""

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
"""Up to version 4 `released` did not count as spent. From this version on it does; no row changes for that."""

SCHEMA_LAPSED = """
DROP INDEX authorization_by_end;
CREATE INDEX authorization_by_end ON signed_authorization (payer, valid_before)
  WHERE state IN ('open', 'released', 'abandoned');
DROP INDEX authorization_by_request;
CREATE INDEX authorization_by_request ON signed_authorization (payer, request) WHERE proof <> ''
"""
"""Up to version 6 the chain was read about released authorisations only, and only open ones had their proof. No row changes."""

LAPSED_MAX = 64
"""The maximum of authorisations that one check of the chains reads."""

_AUTHORIZATION_COLUMNS = "nonce, proof, chain_id, token, symbol, decimals, payer, pay_to, gateway, amount, valid_before, state, tx_hash"


class UnreadableRow(Exception):
    """A row cannot be parsed: another version wrote it, or the file is damaged."""


def insert_authorization(
    connection: sqlite3.Connection, signed: SignedAuthorization, *, request: bytes, now_ms: int
) -> None:
    """Inserts a new authorisation of that request. The request sends no earlier one again, except an open one."""
    connection.execute(
        "UPDATE signed_authorization SET proof = '' WHERE payer = ? AND request = ? AND proof <> '' AND state <> 'open'",
        (str(signed.payer), request.hex()),
    )
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


def lease_unanswered_authorization(
    connection: sqlite3.Connection,
    payer: Address,
    *,
    request: bytes,
    left: Iterable[bytes],
    now_ms: int,
) -> SignedAuthorization | None:
    """Leases the authorisation that the next run of that request sends: one that still has its proof and that no call uses; open ones
    first, then the oldest. None where there is none.

    One that the chain shows as used has its proof until the gateway names the outcome: its call has paid, and must not pay again.
    """
    freed = {nonce.hex() for nonce in left}
    rows = connection.execute(
        f"SELECT leased_until_ms, {_AUTHORIZATION_COLUMNS} FROM signed_authorization"  # noqa: S608 - our own column list
        " WHERE payer = ? AND request = ? AND proof <> '' ORDER BY state <> 'open', created_ms, rowid",
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
    connection: sqlite3.Connection,
    nonce: bytes,
    state: AuthorizationState,
    tx_hash: TxHash | None,
    *,
    is_sent_again: bool = False,
) -> bool:
    """Records the state of an open authorisation; `OPEN` ends its lease. A released or abandoned one can only become expired or charged.
    False: it has another state, which stays. `is_sent_again`: its proof stays, for the next run of its request."""
    is_by_chain = state in (AuthorizationState.EXPIRED, AuthorizationState.CHARGED)
    is_kept = is_sent_again or state is AuthorizationState.OPEN
    text = None if tx_hash is None else str(tx_hash)
    changed = connection.execute(
        "UPDATE signed_authorization SET state = ?, tx_hash = ?, leased_until_ms = 0,"
        " proof = CASE WHEN ? THEN proof ELSE '' END"
        " WHERE nonce = ? AND (state = 'open' OR (state IN ('released', 'abandoned') AND ?))",
        (state.value, text, is_kept, nonce.hex(), is_by_chain),
    )
    if changed.rowcount == 1:
        return True
    if state in (AuthorizationState.OPEN, AuthorizationState.RELEASED, AuthorizationState.CHARGED):
        connection.execute(  # the end of a run that sent one again which was no longer open
            "UPDATE signed_authorization SET tx_hash = coalesce(?, tx_hash), leased_until_ms = 0,"
            " proof = CASE WHEN ? THEN proof ELSE '' END WHERE nonce = ? AND proof <> ''",
            (text, is_kept, nonce.hex()),
        )
    return False


def sum_spent_authorizations(connection: sqlite3.Connection, payer: Address, symbol: str) -> int:
    """The sum that authorisations have moved or can move, in 10^-18 of the currency. Released ones count."""
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


def select_lapsed_authorizations(
    connection: sqlite3.Connection,
    payer: Address,
    *,
    chains: Iterable[ChainId],
    nonce: bytes | None,
    now_s: int,
) -> tuple[SignedAuthorization, ...]:
    """Open, released and abandoned authorisations whose `valid_before` has passed by the local clock, oldest first: at most `LAPSED_MAX`.
    `nonce`: only this one."""
    rows = connection.execute(
        f"SELECT {_AUTHORIZATION_COLUMNS} FROM signed_authorization"  # noqa: S608 - our own column list
        " WHERE payer = ?1 AND state IN ('open', 'released', 'abandoned') AND valid_before <= ?2"
        " AND chain_id IN (SELECT value FROM json_each(?3)) AND (?4 IS NULL OR nonce = ?4) ORDER BY valid_before LIMIT ?5",
        (
            str(payer),
            now_s,
            json.dumps(sorted(chains)),
            None if nonce is None else nonce.hex(),
            LAPSED_MAX,
        ),
    )
    return tuple(_read_authorization(row) for row in rows)


def select_authorizations(connection: sqlite3.Connection, payer: Address) -> tuple[SignedAuthorization, ...]:
    """All authorisations of a wallet, oldest first."""
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


IDEMPOTENCY_KEY_KEPT_MS = 20 * 3_600_000
"""Gateways keep a key for 24 hours after its call began. An older key protects nothing."""

IDEMPOTENCY_KEY_SCHEMA = """
CREATE TABLE kept_key (
  payer TEXT NOT NULL, request TEXT NOT NULL, idempotency_key TEXT NOT NULL, created_ms INTEGER NOT NULL,
  PRIMARY KEY (payer, request));
CREATE INDEX kept_key_by_age ON kept_key (created_ms)
"""


def keep_idempotency_key(
    connection: sqlite3.Connection, payer: Address, *, request: bytes, fresh: str, now_ms: int
) -> str:
    """The key of that request; stores `fresh` where it has none."""
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
    """Drops exactly this key: the request may have another one by now."""
    connection.execute(
        "DELETE FROM kept_key WHERE payer = ? AND request = ? AND idempotency_key = ?",
        (str(payer), request.hex(), key),
    )


BUSY_TIMEOUT_S = 10.0
DEFAULT_FOLDER = ".tollway"
_TEMPORARY_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EINTR}
)
_TEMPORARY_SQLITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
    }
)
SCHEMA_VERSION = 9

_SCHEMA = """
CREATE TABLE transfer (
  tx_hash TEXT PRIMARY KEY, raw BLOB NOT NULL, chain_id INTEGER NOT NULL, token TEXT, symbol TEXT NOT NULL,
  decimals INTEGER NOT NULL, payer TEXT NOT NULL, pay_to TEXT NOT NULL, gateway TEXT NOT NULL, amount TEXT NOT NULL,
  rest TEXT NOT NULL, nonce INTEGER NOT NULL, confirmations INTEGER NOT NULL, state TEXT NOT NULL,
  created_ms INTEGER NOT NULL);
CREATE INDEX transfer_by_payee ON transfer (payer, gateway, pay_to);
CREATE TABLE payee (
  gateway TEXT NOT NULL, api_id TEXT NOT NULL, pay_to TEXT NOT NULL, PRIMARY KEY (gateway, api_id, pay_to));
CREATE UNIQUE INDEX one_transfer_per_nonce ON transfer (chain_id, payer, nonce) WHERE state <> 'replaced';
"""
# The nonce of an abandoned transfer can be used again: of two transactions with one nonce, at most one is ever mined.
_SCHEMA_2 = """
ALTER TABLE transfer ADD COLUMN served INTEGER NOT NULL DEFAULT 0;
DROP INDEX one_transfer_per_nonce;
CREATE UNIQUE INDEX one_transfer_per_nonce ON transfer (chain_id, payer, nonce)
  WHERE state NOT IN ('replaced', 'abandoned');
"""
_MIGRATIONS = (
    _SCHEMA,
    _SCHEMA_2,
    AUTHORIZATION_SCHEMA,
    IDEMPOTENCY_KEY_SCHEMA,
    SCHEMA_RELEASED,
    "ALTER TABLE transfer ADD COLUMN fee_max TEXT",
    SCHEMA_LAPSED,
    CHANNEL_SCHEMA,
    "ALTER TABLE transfer ADD COLUMN refunds TEXT",
)
"""The statements of each version, from the one before."""
_TRANSFER_COLUMNS = "tx_hash, raw, chain_id, token, symbol, decimals, payer, pay_to, gateway, amount, rest, nonce, confirmations, state, fee_max, refunds"
"""`refunds`: the calls of a refund, as JSON; NULL for a payment. Both are in one table, because they share the nonces of a wallet."""


class PaymentStore:
    """The payment store of a wallet. Safe to use from many threads and processes at once: every method is one transaction.

    Raises `StorageUnavailable` where the file cannot be read or written now, and `StoreUnusable` where a retry cannot help.
    """

    def __init__(self, path: Path, *, now_ms: Callable[[], int]) -> None:
        self.path = path
        self._now_ms = now_ms

    def store(
        self,
        transfer: Transfer,
        *,
        budget: Cap | None,
        price: int = 0,
        tried: frozenset[TxHash] = frozenset(),
    ) -> StoreOutcome:
        """Stores a signed payment, or returns why it must not be made. After `Stored` it is on the disk.

        A payment is not needed where another payment has credit for a call of `price` (a payment for several calls; one for
        a single call belongs to that call), and where an unresolved payment goes to the same payee.
        """
        with self._transaction() as connection:
            earlier = _select_payee_transfers(connection, transfer.payer, transfer.gateway, transfer.pay_to)
            for entry in earlier:
                is_shared = entry.asset == transfer.asset and entry.amount >= 2 * price > 0
                is_credit = is_shared and entry.rest >= price and entry.tx_hash not in tried
                if entry.state in UNRESOLVED or is_credit:
                    return PaidAlready(transfer=entry)
            if _restore_abandoned(connection, transfer):
                return Stored()
            over = _check_budget(connection, transfer.payer, transfer.asset, transfer.amount, budget)
            if over is not None:
                return over
            try:
                _insert_transfer(connection, transfer, now_ms=self._now_ms())
            except sqlite3.IntegrityError:
                return NonceTaken()
        return Stored()

    def store_refund(self, refund: Transfer) -> Stored | RefundedAlready | NonceTaken:
        """Stores a signed refund, or returns why it must not be sent. After `Stored` it is on the disk. A call has one refund, of any wallet of this store, unless
        the chain shows that it moved nothing. No budget limits it, and it is in no list of payments."""
        with self._transaction() as connection:
            earlier = _select_refund(connection, refund.refunds)
            if earlier is not None:
                return RefundedAlready(transfer=earlier)
            try:
                _insert_transfer(connection, refund, now_ms=self._now_ms())
            except sqlite3.IntegrityError:
                return NonceTaken()
        return Stored()

    def find_refund(self, call_ids: Sequence[str]) -> Transfer | None:
        """The refund of one of these calls that is mined or can still be."""
        with self._transaction() as connection:
            return _select_refund(connection, call_ids)

    def find_excess(
        self, quote: PaymentQuote, *, payer: Address, gateway: str, budget: Cap | None
    ) -> OverBudget | None:
        """`OverBudget` where this payment, which is not signed yet, exceeds the budget. None for a transfer to a payee with an earlier one that is
        unresolved or has credit, because a second one may not be needed: `store` decides."""
        if budget is None:
            return None
        with self._transaction() as connection:
            earlier = _select_payee_transfers(connection, payer, gateway, quote.pay_to)
            if quote.rail == "tx" and any(entry.state in UNRESOLVED or entry.rest > 0 for entry in earlier):
                return None
            return _check_budget(connection, payer, quote.asset, quote.moved, budget)

    def find_payments(
        self, *, payer: Address, gateway: str, api_id: str, payees: Sequence[Address]
    ) -> tuple[Transfer, ...]:
        """The payments of this wallet that can pay a call of this listing. `payees`, where given, are stored as the listing's payees.

        Credit first, the largest rest first; then unresolved payments.
        """
        with self._transaction() as connection:
            if payees:
                connection.execute("DELETE FROM payee WHERE gateway = ? AND api_id = ?", (gateway, api_id))
                connection.executemany(
                    "INSERT INTO payee (gateway, api_id, pay_to) VALUES (?, ?, ?)",
                    [(gateway, api_id, str(payee)) for payee in payees],
                )
            found = _select_transfers(
                connection,
                "payer = ? AND gateway = ? AND state IN ('stored', 'confirmed', 'refused') AND rest <> '0' AND"
                " pay_to IN (SELECT pay_to FROM payee WHERE payee.gateway = ? AND api_id = ?)",
                (str(payer), gateway, gateway, api_id),
            )
        order = (TransferState.CONFIRMED, TransferState.STORED, TransferState.REFUSED)
        return tuple(
            sorted(found, key=lambda t: (order.index(t.state), -to_atto(t.rest, t.asset), t.tx_hash))
        )

    def find_last_exhausted(self, *, payer: Address, gateway: str, api_id: str) -> tuple[Transfer, ...]:
        """The newest payment to a payee of this listing that has paid calls and has no rest; none or one."""
        with self._transaction() as connection:
            found = _select_transfers(
                connection,
                "payer = ? AND gateway = ? AND state = 'confirmed' AND rest = '0' AND served > 0 AND"
                " pay_to IN (SELECT pay_to FROM payee WHERE payee.gateway = ? AND api_id = ?)",
                (str(payer), gateway, gateway, api_id),
            )
        return found[-1:]

    def next_nonce(self, *, payer: Address, chain_id: ChainId, pending: int) -> int:
        """The next nonce of the wallet: the lowest nonce from `pending` on whose transfer was abandoned, because no later one can be
        mined before it; else the highest nonce in the store plus one, mined ones included, because the node's count may be
        older; 0 without any."""
        with self._transaction() as connection:
            given_up, highest = connection.execute(
                "SELECT min(nonce) FILTER (WHERE state = 'abandoned' AND nonce >= ? AND NOT EXISTS (SELECT 1"
                "  FROM transfer AS other WHERE other.payer = transfer.payer AND other.chain_id = transfer.chain_id"
                "  AND other.nonce = transfer.nonce AND other.state NOT IN ('replaced', 'abandoned'))),"
                " max(nonce) FILTER (WHERE state NOT IN ('replaced', 'abandoned')) FROM transfer WHERE payer = ? AND chain_id = ?",
                (pending, str(payer), chain_id),
            ).fetchone()
        if given_up is not None:
            return int(given_up)
        return 0 if highest is None else int(highest) + 1

    def record_state(
        self, tx_hash: TxHash, state: TransferState, rest: int | None, *, is_served: bool = False
    ) -> None:
        """Records the state of a payment, and whether it paid a call. An abandoned payment stays abandoned."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE transfer SET state = ?, rest = coalesce(?, rest), served = served + ?"
                " WHERE tx_hash = ? AND state <> 'abandoned'",
                (state.value, None if rest is None else str(rest), int(is_served), str(tx_hash)),
            )

    def count_served(self, tx_hash: TxHash) -> int:
        """The number of calls that this payment has paid, by the records of this wallet's processes."""
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT served FROM transfer WHERE tx_hash = ?", (str(tx_hash),)
            ).fetchone()
        return 0 if row is None else int(row[0])

    def unresolved(self, payer: Address) -> tuple[Transfer, ...]:
        """Stored payments and refunds that are not known to be mined, by chain and nonce: a later nonce is never mined before an earlier one."""
        with self._transaction() as connection:
            found = [
                transfer
                for which in (_PAYMENTS, _REFUNDS)
                for transfer in _select_transfers(
                    connection, "payer = ? AND state = 'stored'", (str(payer),), which=which
                )
            ]
        return tuple(sorted(found, key=lambda transfer: (transfer.chain_id, transfer.nonce)))

    def list_transfers(self, payer: Address) -> tuple[Transfer, ...]:
        """Every payment of that wallet, in the order in which they were signed."""
        with self._transaction() as connection:
            return _select_transfers(connection, "payer = ?", (str(payer),))

    def abandon(self, tx_hash: TxHash) -> bool:
        """Abandons a payment that the gateway refuses or that is never mined. It still counts against the budget,
        and its payee can be paid again, with its nonce. A person must decide this: if the payment is mined later, it has
        bought nothing. False for a refund: only the chain ends it."""
        with self._transaction() as connection:
            changed = connection.execute(
                f"UPDATE transfer SET state = 'abandoned' WHERE tx_hash = ? AND state IN ('stored', 'refused') AND {_PAYMENTS}",  # noqa: S608 - a constant of this module
                (str(tx_hash),),
            )
        return changed.rowcount == 1

    # ---- Authorisations.

    def store_authorization(
        self, signed: SignedAuthorization, *, request: bytes, budget: Cap | None
    ) -> Stored | OverBudget:
        """Stores an authorisation within the budget. After `Stored` it is on the disk. `request`: the digest of
        the call that it pays."""
        with self._transaction() as connection:
            over = _check_budget(connection, signed.payer, signed.asset, signed.amount, budget)
            if over is not None:
                return over
            insert_authorization(connection, signed, request=request, now_ms=self._now_ms())
        return Stored()

    def lease_authorization(
        self, *, payer: Address, request: bytes, left: Iterable[bytes] = ()
    ) -> SignedAuthorization | OwnChannel | None:
        """Leases an authorisation that the next run of that request sends again, and that no running call uses; without one, the channel with the pending
        voucher of that request. `left`: nonces that ended calls of this process left without an outcome."""
        with self._transaction() as connection:
            leased = lease_unanswered_authorization(
                connection, payer, request=request, left=left, now_ms=self._now_ms()
            )
            return leased or select_pending_channel(connection, payer, request=request)

    def find_lapsed_authorizations(
        self, *, payer: Address, chains: Iterable[ChainId], nonce: bytes | None = None
    ) -> tuple[SignedAuthorization, ...]:
        """Open, released and abandoned authorisations on these chains whose `valid_before` has passed by the local clock, oldest
        first, at most `LAPSED_MAX`. `nonce`: only this one."""
        with self._transaction() as connection:
            return select_lapsed_authorizations(
                connection, payer, chains=chains, nonce=nonce, now_s=self._now_ms() // 1000
            )

    def record_authorization(
        self,
        nonce: bytes,
        state: AuthorizationState,
        tx_hash: TxHash | None,
        *,
        is_sent_again: bool = False,
    ) -> bool:
        """Records the state of an authorisation; `OPEN` leaves it to the next run of its request, and `is_sent_again` does so in any
        state. False: it has an outcome already, which stays."""
        with self._transaction() as connection:
            return record_authorization_state(connection, nonce, state, tx_hash, is_sent_again=is_sent_again)

    def list_authorizations(self, payer: Address) -> tuple[SignedAuthorization, ...]:
        """Every authorisation of that wallet, oldest first; only those that the next run of their request sends have their proof."""
        with self._transaction() as connection:
            return select_authorizations(connection, payer)

    def abandon_authorization(self, nonce: bytes) -> bool:
        """Abandons an open authorisation: its request can be paid again. It counts as spent until the chain shows it unused."""
        with self._transaction() as connection:
            return record_authorization_state(connection, nonce, AuthorizationState.ABANDONED, None)

    # ---- Channels.

    def find_channel(self, channel_id: ChannelId) -> OwnChannel | None:
        with self._transaction() as connection:
            return select_channel(connection, channel_id)

    def list_channels(self, payer: Address) -> tuple[OwnChannel, ...]:
        """Every channel of that wallet, oldest first."""
        with self._transaction() as connection:
            return select_channels(connection, payer)

    def count_calls(self, payer: Address, pay_to: Address) -> int:
        """The calls that this wallet has paid to a payee, on every rail."""
        with self._transaction() as connection:
            return count_payee_calls(connection, payer, pay_to)

    def store_voucher(
        self,
        channel: OwnChannel,
        deposit: SignedAuthorization | None,
        *,
        request: bytes,
        budget: Cap | None,
    ) -> Stored | OverBudget:
        """Stores a channel with its pending voucher, and the authorisation of a new deposit within the budget. After `Stored` both are on the disk."""
        with self._transaction() as connection:
            if deposit is not None:
                over = _check_budget(connection, deposit.payer, deposit.asset, deposit.amount, budget)
                if over is not None:
                    return over
                insert_authorization(connection, deposit, request=request, now_ms=self._now_ms())
            write_channel(connection, channel, now_ms=self._now_ms())
        return Stored()

    def record_channel(
        self,
        channel: OwnChannel,
        *,
        deposit: bytes | None = None,
        state: AuthorizationState = AuthorizationState.CHARGED,
        tx_hash: TxHash | None = None,
    ) -> None:
        """Records a channel, and the state of the deposit with that nonce."""
        with self._transaction() as connection:
            write_channel(connection, channel, now_ms=self._now_ms())
            if deposit is not None:
                record_authorization_state(connection, deposit, state, tx_hash)

    def lock_channel(self, channel_id: ChannelId) -> int | None:
        """Locks a channel for one call, over all processes: its vouchers follow each other. Returns the descriptor for `unlock_channel`; None where
        another call has it. The system unlocks it when a process ends."""
        path = self.path.with_name(f"{self.path.name}-{channel_id.hex()[:16]}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            kind = StorageUnavailable if _is_temporary(exc) else StoreUnusable
            raise kind(f"The lock {path} of a payment channel cannot be opened: {exc}") from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def unlock_channel(self, descriptor: int) -> None:
        """Unlocks a channel, also where a forked process has a copy of the descriptor."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    # ---- Spent amounts, and requests in progress.

    def spent(self, payer: Address) -> dict[str, int]:
        """The amounts that count against a budget, by currency, in 10^-18."""
        with self._transaction() as connection:
            symbols = connection.execute(
                "SELECT symbol FROM transfer WHERE payer = ?1 AND refunds IS NULL UNION SELECT symbol FROM signed_authorization"
                " WHERE payer = ?1 ORDER BY symbol",
                (str(payer),),
            ).fetchall()
            return {symbol: _sum_spent(connection, payer, symbol) for (symbol,) in symbols}

    def keep_key(self, *, payer: Address, request: bytes, fresh: str) -> str:
        """The idempotency key of a request that is running or ended without a response; else `fresh`, which becomes
        its key. `request`: its digest."""
        with self._transaction() as connection:
            return keep_idempotency_key(
                connection, payer, request=request, fresh=fresh, now_ms=self._now_ms()
            )

    def drop_key(self, *, payer: Address, request: bytes, key: str) -> None:
        """Drops the key of a request whose response was delivered: the same request is then another call."""
        with self._transaction() as connection:
            drop_idempotency_key(connection, payer, request=request, key=key)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction on a connection of its own: payments are rare, and threads share nothing."""
        try:
            connection = self._connect()
            try:
                connection.execute("BEGIN IMMEDIATE")
                _prepare(connection)
                yield connection
                connection.execute("COMMIT")
            finally:
                connection.close()  # rolls back what was not committed
        except (sqlite3.Error, OSError, UnreadableRow) as exc:
            kind = StorageUnavailable if _is_temporary(exc) else StoreUnusable
            raise kind(f"The payment store {self.path} cannot be used: {exc}") from exc

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.parent.name == DEFAULT_FOLDER:
            _restrict_mode(self.path.parent, 0o700)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        for name in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                _restrict_mode(self.path.with_name(self.path.name + name), 0o600)
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("PRAGMA synchronous=EXTRA")
            connection.execute("PRAGMA secure_delete=ON")  # overwrites a dropped proof in the file
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def _restrict_mode(path: Path, mode: int) -> None:
    """Removes the permissions of other users: the file holds signed transactions and open authorisations."""
    if stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        path.chmod(mode)


def _is_temporary(failure: Exception) -> bool:
    """Whether a retry can succeed without a repair of the file."""
    if isinstance(failure, OSError):
        return failure.errno in _TEMPORARY_ERRORS
    code = getattr(failure, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _TEMPORARY_SQLITE


def _prepare(connection: sqlite3.Connection) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise sqlite3.DatabaseError("it was written by a newer version of tollway")
    if version == SCHEMA_VERSION:
        return
    for script in _MIGRATIONS[version:]:
        for statement in script.split(";"):
            if statement.strip():
                connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _restore_abandoned(connection: sqlite3.Connection, transfer: Transfer) -> bool:
    """Restores an abandoned payment with the same bytes, which is counted already; False where there is none."""
    changed = connection.execute(
        "UPDATE transfer SET state = 'stored' WHERE tx_hash = ? AND state = 'abandoned'",
        (str(transfer.tx_hash),),
    )
    return changed.rowcount == 1


def _select_payee_transfers(
    connection: sqlite3.Connection, payer: Address, gateway: str, pay_to: Address
) -> tuple[Transfer, ...]:
    """The transfers to a payee that a further one may not be needed beside."""
    return _select_transfers(
        connection,
        "payer = ? AND gateway = ? AND pay_to = ? AND state IN ('stored', 'refused', 'confirmed')",
        (str(payer), gateway, str(pay_to)),
    )


def _check_budget(
    connection: sqlite3.Connection, payer: Address, asset: Asset, amount: int, budget: Cap | None
) -> OverBudget | None:
    """`OverBudget` where this amount and all that the store counts as spent in that currency exceed the budget."""
    if budget is None:
        return None
    limit = budget.atto_for(asset.symbol) or 0
    spent = _sum_spent(connection, payer, asset.symbol)
    if spent + to_atto(amount, asset) <= limit:
        return None
    return OverBudget(spent_atto=spent, budget_atto=limit)


def _sum_spent(connection: sqlite3.Connection, payer: Address, symbol: str) -> int:
    earlier = _select_transfers(
        connection,
        "payer = ? AND symbol = ? AND state NOT IN (SELECT value FROM json_each(?))",
        (str(payer), symbol, _encode_states(WORTHLESS)),
    )
    spent = sum(to_atto(entry.amount, entry.asset) for entry in earlier)
    signed = sum_spent_authorizations(connection, payer, symbol)
    return spent + signed - min(signed, sum_returned(connection, payer, symbol))


def _insert_transfer(connection: sqlite3.Connection, transfer: Transfer, *, now_ms: int) -> None:
    asset = transfer.asset
    connection.execute(
        f"INSERT INTO transfer ({_TRANSFER_COLUMNS}, created_ms) VALUES ({', '.join('?' * 16)}, ?)",  # noqa: S608 - our own column list
        (
            str(transfer.tx_hash),
            transfer.raw,
            asset.chain_id,
            None if asset.token is None else str(asset.token),
            asset.symbol,
            asset.decimals,
            str(transfer.payer),
            str(transfer.pay_to),
            transfer.gateway,
            str(transfer.amount),
            str(transfer.rest),
            transfer.nonce,
            transfer.confirmations,
            transfer.state.value,
            None if transfer.fee_max_wei is None else str(transfer.fee_max_wei),
            json.dumps(transfer.refunds) if transfer.refunds else None,
            now_ms,
        ),
    )


_PAYMENTS, _REFUNDS = "refunds IS NULL", "refunds IS NOT NULL"


def _select_transfers(
    connection: sqlite3.Connection, where: str, values: Sequence[object], *, which: str = _PAYMENTS
) -> tuple[Transfer, ...]:
    """The payments of a condition, oldest first. `which`: the refunds instead."""
    rows = connection.execute(
        f"SELECT {_TRANSFER_COLUMNS} FROM transfer WHERE {where} AND {which} ORDER BY created_ms, rowid",  # noqa: S608 - conditions of this module
        values,
    )
    return tuple(_read_transfer(row) for row in rows)


def _select_refund(connection: sqlite3.Connection, call_ids: Sequence[str]) -> Transfer | None:
    """The oldest refund of one of these calls that moved something or may."""
    found = _select_transfers(
        connection,
        "state NOT IN (SELECT value FROM json_each(?)) AND EXISTS (SELECT 1 FROM json_each(transfer.refunds) AS own"
        " WHERE own.value IN (SELECT value FROM json_each(?)))",
        (_encode_states(WORTHLESS), json.dumps(list(call_ids))),
        which=_REFUNDS,
    )
    return found[0] if found else None


def _read_transfer(row: Sequence[object]) -> Transfer:
    try:
        return _parse_transfer(row)
    except (ValueError, TypeError) as exc:
        raise UnreadableRow(f"its row of payment {str(row[0])[:66]} cannot be read: {exc}") from exc


def _parse_transfer(row: Sequence[object]) -> Transfer:
    tx_hash, raw, chain_id, token, symbol, decimals, payer, pay_to, gateway = row[:9]
    amount, rest, nonce, confirmations, state, fee_max, refunds = row[9:]
    if not isinstance(raw, bytes):
        raise TypeError("a signed transaction must be bytes")
    return Transfer(
        tx_hash=TxHash.parse(str(tx_hash)),
        raw=raw,
        asset=Asset(
            chain_id=ChainId(int(str(chain_id))),
            token=None if token is None else Address.parse(str(token)),
            symbol=str(symbol),
            decimals=int(str(decimals)),
        ),
        payer=Address.parse(str(payer)),
        pay_to=Address.parse(str(pay_to)),
        gateway=str(gateway),
        amount=int(str(amount)),
        rest=int(str(rest)),
        nonce=int(str(nonce)),
        confirmations=int(str(confirmations)),
        state=TransferState(str(state)),
        fee_max_wei=None if fee_max is None else int(str(fee_max)),
        refunds=() if refunds is None else tuple(str(one) for one in from_json(str(refunds))),
    )


def _encode_states(states: Iterable[TransferState]) -> str:
    return "[" + ",".join(f'"{state.value}"' for state in sorted(states)) + "]"
