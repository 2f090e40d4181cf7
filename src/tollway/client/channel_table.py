"""The channels of the wallet in its payment store: statements over a connection of `client/store.py`, each part of one transaction of the caller.

A row is written as a whole. Its only writer is the call, or the command, that holds the channel's lock.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict

from pydantic_core import from_json

from tollway.client.own_channel import HeldDeposit, OwnChannel, PendingVoucher, Withdrawal
from tollway.client.quote import units_to_atto
from tollway.ids import Address, ChainId, ChannelId
from tollway.money import Asset
from tollway.payments.channels import ChannelConfig

CHANNEL_SCHEMA = """
CREATE TABLE channel (
  channel_id TEXT PRIMARY KEY, chain_id INTEGER NOT NULL, token TEXT NOT NULL, symbol TEXT NOT NULL, decimals INTEGER NOT NULL,
  payer TEXT NOT NULL, pay_to TEXT NOT NULL, authorizer TEXT NOT NULL, withdraw_delay INTEGER NOT NULL, salt TEXT NOT NULL,
  gateway TEXT NOT NULL, balance TEXT NOT NULL, charged TEXT NOT NULL, ceiling TEXT NOT NULL, calls INTEGER NOT NULL,
  returned TEXT NOT NULL, deposit TEXT, request TEXT, pending TEXT, withdrawal TEXT, created_ms INTEGER NOT NULL);
CREATE INDEX channel_by_request ON channel (payer, request) WHERE request IS NOT NULL
"""
"""`deposit`, `pending` and `withdrawal` are JSON, NULL without one; `request` is the call of the pending voucher."""

_COLUMNS = "channel_id, chain_id, token, symbol, decimals, payer, pay_to, authorizer, withdraw_delay, salt, gateway, balance, charged, ceiling, calls, returned, deposit, request, pending, withdrawal"


def write_channel(connection: sqlite3.Connection, channel: OwnChannel, *, now_ms: int) -> None:
    """Inserts or replaces the row."""
    config, asset, pending = channel.config, channel.asset, channel.pending
    connection.execute(
        f"INSERT INTO channel ({_COLUMNS}, created_ms) VALUES ({', '.join('?' * 20)}, ?)"  # noqa: S608 - our own column list
        " ON CONFLICT (channel_id) DO UPDATE SET balance = excluded.balance, charged = excluded.charged, ceiling = excluded.ceiling,"
        " calls = excluded.calls, returned = excluded.returned, deposit = excluded.deposit, request = excluded.request,"
        " pending = excluded.pending, withdrawal = excluded.withdrawal, gateway = excluded.gateway",
        (
            str(channel.id),
            asset.chain_id,
            str(config.token),
            asset.symbol,
            asset.decimals,
            str(config.payer),
            str(config.receiver),
            str(config.receiver_authorizer),
            config.withdraw_delay,
            config.salt.hex(),
            channel.gateway,
            str(channel.balance),
            str(channel.charged),
            str(channel.ceiling),
            channel.calls,
            str(channel.returned),
            _encode(channel.deposit),
            None if pending is None else pending.request.hex(),
            _encode(pending),
            _encode(channel.withdrawal),
            now_ms,
        ),
    )


def select_channel(connection: sqlite3.Connection, channel_id: ChannelId) -> OwnChannel | None:
    found = _select(connection, "channel_id = ?", (str(channel_id),))
    return found[0] if found else None


def select_channels(connection: sqlite3.Connection, payer: Address) -> tuple[OwnChannel, ...]:
    """All channels of a wallet, oldest first."""
    return _select(connection, "payer = ?", (str(payer),))


def select_pending_channel(
    connection: sqlite3.Connection, payer: Address, *, request: bytes
) -> OwnChannel | None:
    """The channel whose pending voucher is for that request."""
    found = _select(connection, "payer = ? AND request = ?", (str(payer), request.hex()))
    return found[0] if found else None


def sum_returned(connection: sqlite3.Connection, payer: Address, symbol: str) -> int:
    """What refunds and withdrawals have moved back, in 10^-18 of the currency: deposits less by this sum are spent."""
    rows = connection.execute(
        "SELECT returned, decimals FROM channel WHERE payer = ? AND symbol = ?", (str(payer), symbol)
    )
    return sum(units_to_atto(int(returned), decimals=int(decimals)) for returned, decimals in rows)


def count_payee_calls(connection: sqlite3.Connection, payer: Address, pay_to: Address) -> int:
    """The calls that this wallet has paid to a payee, on every rail, by its records."""
    row = connection.execute(
        "SELECT (SELECT coalesce(sum(served), 0) FROM transfer WHERE payer = ?1 AND pay_to = ?2)"
        " + (SELECT count(*) FROM signed_authorization WHERE payer = ?1 AND pay_to = ?2 AND state = 'charged')"
        " + (SELECT coalesce(sum(calls), 0) FROM channel WHERE payer = ?1 AND pay_to = ?2)",
        (str(payer), str(pay_to)),
    ).fetchone()
    return int(row[0])


def _encode(part: HeldDeposit | PendingVoucher | Withdrawal | None) -> str | None:
    if part is None:
        return None
    members = asdict(part)
    return json.dumps(
        {name: value.hex() if isinstance(value, bytes) else value for name, value in members.items()}
    )


def _select(connection: sqlite3.Connection, where: str, values: Sequence[object]) -> tuple[OwnChannel, ...]:
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM channel WHERE {where} ORDER BY created_ms, rowid",  # noqa: S608 - conditions of this module
        values,
    )
    return tuple(_read_channel(row) for row in rows)


def _read_channel(row: Sequence[object]) -> OwnChannel:
    try:
        return _parse_channel(row)
    except (ValueError, KeyError, TypeError) as exc:
        raise sqlite3.DataError(f"its row of channel {str(row[0])[:66]} cannot be read: {exc}") from exc


def _parse_channel(row: Sequence[object]) -> OwnChannel:
    channel_id, chain_id, token, symbol, decimals, payer, pay_to, authorizer, delay, salt, gateway = row[:11]
    balance, charged, ceiling, calls, returned, deposit, _request, pending, withdrawal = row[11:]
    asset = Asset(
        chain_id=ChainId(int(str(chain_id))),
        token=Address.parse(str(token)),
        symbol=str(symbol),
        decimals=int(str(decimals)),
    )
    return OwnChannel(
        id=ChannelId.parse(str(channel_id)),
        config=ChannelConfig(
            payer=Address.parse(str(payer)),
            payer_authorizer=Address.parse(str(payer)),
            receiver=Address.parse(str(pay_to)),
            receiver_authorizer=Address.parse(str(authorizer)),
            token=Address.parse(str(token)),
            withdraw_delay=int(str(delay)),
            salt=bytes.fromhex(str(salt)),
        ),
        asset=asset,
        gateway=str(gateway),
        balance=int(str(balance)),
        charged=int(str(charged)),
        ceiling=int(str(ceiling)),
        calls=int(str(calls)),
        returned=int(str(returned)),
        deposit=None if deposit is None else _parse_deposit(str(deposit)),
        pending=None if pending is None else _parse_pending(str(pending)),
        withdrawal=None if withdrawal is None else Withdrawal(**from_json(str(withdrawal))),
    )


def _parse_deposit(text: str) -> HeldDeposit:
    members = from_json(text)
    return HeldDeposit(**{**members, "nonce": bytes.fromhex(members["nonce"])})


def _parse_pending(text: str) -> PendingVoucher:
    members = from_json(text)
    return PendingVoucher(**{**members, "request": bytes.fromhex(members["request"])})
