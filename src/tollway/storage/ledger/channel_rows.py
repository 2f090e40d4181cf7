"""The rows of channels in SQL: read by name, by key or by payer; written whole.

A row changes under the lock of its payment only, so it is read without a lock once that payment is locked. `ledger_batch` writes it with a claim, `locked_rows` with the
end of a call, `channel_store` with what the chain says.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)

from tollway.chain.channel_contract import ChannelConfig
from tollway.ids import Address, CallId, ChainId, ChannelId
from tollway.ledger.channels import Channel, ChannelFacts, ChannelName, ChannelState, Voucher
from tollway.ledger.records import CallState
from tollway.money import LEDGER_DECIMALS_MAX
from tollway.storage.engine.statements import Prepared, Within
from tollway.storage.ledger.budget_rows import BOUND, budget_table
from tollway.storage.ledger.ledger_tables import call_table, channel_table, payment_table

_CONFIG = ("payer", "payer_authorizer", "receiver", "receiver_authorizer", "token", "withdraw_delay", "salt")
_FACTS = ("total_claimed", "refund_nonce", "withdrawal_amount", "withdrawal_since_s", "block_number")
_VOUCHERS = ("spent", "waiting", "candidate")
_IDENTITY = ("key", "chain_id", "channel_id", "payment_id", "decimals")
_SUMS = ("start_units", "lacking_units", "announced", "published")
_KEPT = ("unused_since_ms",)  # written apart
_READ = (
    *_IDENTITY,
    *_CONFIG,
    "state",
    *_SUMS,
    *(f"{name}_{part}" for name in _VOUCHERS for part in ("ceiling", "signature")),
    "balance",
    *_FACTS,
    "reserved_call",
    *_KEPT,
)
_WRITTEN = tuple(name for name in _READ if name not in (*_IDENTITY, *_CONFIG, *_KEPT))


def find_channels(connection: Connection, names: Collection[ChannelName]) -> dict[ChannelName, Channel]:
    """A channel on another chain may have the same id, so the chain is compared here."""
    if not names:
        return {}
    rows = _BY_ID.fetch(connection, channel_ids=sorted({name.channel_id for name in names}))
    found = {channel.name: channel for channel in map(_parse, rows)}
    return {name: found[name] for name in names if name in found}


def find_claimed_channels(
    connection: Connection, names: Collection[ChannelName]
) -> tuple[dict[ChannelName, Channel], set[Address]]:
    """The same, and the payers of these channels that are bound to an owner (`budget_rows`)."""
    rows = _CLAIMED.fetch(connection, channel_ids=sorted({name.channel_id for name in names}))
    found = {channel.name: (channel, bool(row[-1])) for row in rows for channel in (_parse(row),)}
    wanted = {name: found[name] for name in names if name in found}
    bound = {channel.config.payer for channel, is_bound in wanted.values() if is_bound}
    return {name: channel for name, (channel, _) in wanted.items()}, bound


def read_channels(connection: Connection, keys: Collection[int]) -> dict[int, Channel]:
    if not keys:
        return {}
    return {one.key: one for one in map(_parse, _BY_KEY.fetch(connection, keys=sorted(keys)))}


def insert_channel(
    connection: Connection,
    name: ChannelName,
    config: ChannelConfig,
    facts: ChannelFacts,
    *,
    payment_id: int,
    decimals: int,
    now_ms: int,
) -> None:
    """What is claimed already counts as taken and announced. Its payment is inserted before."""
    state = ChannelState.WITHDRAWING if facts.withdrawal_since_s else ChannelState.OPEN
    row = {
        "chain_id": name.chain_id,
        "channel_id": name.channel_id,
        "payment_id": payment_id,
        "decimals": decimals,
        **{part: getattr(config, part) for part in _CONFIG},
        "state": state.value,
        "start_units": facts.total_claimed,
        "lacking_units": 0,
        "announced": facts.total_claimed,
        "published": 0,
        **_facts_values(facts),
        "opened_ms": now_ms,
        "settled": facts.total_claimed,
    }
    connection.execute(insert(channel_table), row)


def sum_unclaimed(connection: Connection, payers: Collection[Address]) -> dict[Address, int]:
    """What each payer owes on all channels beyond what is claimed on their chains, in 10^-9 of the currency. A call whose deposit is not concluded owes its price already."""
    found: dict[Address, int] = {}
    for payer, decimals, units in _UNCLAIMED.fetch(connection, payers=sorted(payers)) if payers else ():
        nano = int(units) * 10 ** (LEDGER_DECIMALS_MAX - decimals)
        found[Address(payer)] = found.get(Address(payer), 0) + nano
    return found


def write_channels(connection: Connection, channels: Iterable[Channel]) -> None:
    """Writes what may change of these channels. The payment of each is locked."""
    rows = [_written_row(channel) for channel in channels]
    if rows:
        _WRITE.run(connection, rows)


def _written_row(channel: Channel) -> dict[str, object]:
    row: dict[str, object] = {
        "at_key": channel.key,
        "state": channel.state.value,
        **{name: getattr(channel, name) for name in _SUMS},
        "reserved_call": channel.reserved_call,
        **_facts_values(channel.facts),
    }
    for name in _VOUCHERS:
        voucher: Voucher | None = getattr(channel, name)
        row[f"{name}_ceiling"] = None if voucher is None else voucher.ceiling
        row[f"{name}_signature"] = None if voucher is None else voucher.signature
    return row


def _facts_values(facts: ChannelFacts) -> dict[str, object]:
    return {"balance": facts.balance, **{name: getattr(facts, name) for name in _FACTS}}


def _select_channels() -> Select[Any]:
    own, payments, calls = channel_table.c, payment_table.c, call_table.c
    return (
        select(*(own[name] for name in _READ), payments.taken_units, calls.state)
        .join(payment_table, payments.id == own.payment_id)
        .outerjoin(call_table, calls.id == own.reserved_call)
    )


_BY_ID = Prepared(_select_channels().where(Within(channel_table.c.channel_id, "channel_ids")))
_BY_KEY = Prepared(_select_channels().where(Within(channel_table.c.key, "keys")))


def _unclaimed_query() -> Select[Any]:
    """By the index of the payer: two look-ups by key for each of its channels."""
    own, payments, calls = channel_table.c, payment_table.c, call_table.c
    units = own.start_units + payments.taken_units - own.total_claimed
    nothing = literal_column("0", type_=BigInteger)
    owed = case((units > nothing, units), else_=nothing) + func.coalesce(calls.price_units, nothing)
    return (
        select(own.payer, own.decimals, func.sum(owed))
        .join(payment_table, payments.id == own.payment_id)
        .outerjoin(call_table, and_(calls.id == own.reserved_call, calls.payment_id.is_(None)))
        .where(Within(own.payer, "payers"))
        .group_by(own.payer, own.decimals)
    )


_UNCLAIMED = Prepared(_unclaimed_query())
_IS_BOUND = exists(
    select(budget_table.c.agent).where(budget_table.c.agent == channel_table.c.payer, text(BOUND))
)
_CLAIMED = Prepared(
    _select_channels().add_columns(_IS_BOUND).where(Within(channel_table.c.channel_id, "channel_ids"))
)
_WRITE = Prepared(
    update(channel_table)
    .where(channel_table.c.key == bindparam("at_key"))
    .values({name: bindparam(name) for name in _WRITTEN})
)


def _parse(row: Sequence[Any]) -> Channel:
    own = dict(zip(_READ, row, strict=False))
    taken_units, reserved_state = row[len(_READ) : len(_READ) + 2]
    return Channel(
        key=own["key"],
        id=ChannelId(own["channel_id"]),
        chain_id=ChainId(own["chain_id"]),
        config=parse_config(own),
        payment_id=own["payment_id"],
        decimals=own["decimals"],
        **{name: own[name] for name in _SUMS},
        balance_units=own["balance"],
        taken_units=own["start_units"] + taken_units,
        spent=_parse_voucher(own, "spent"),
        waiting=_parse_voucher(own, "waiting"),
        candidate=_parse_voucher(own, "candidate"),
        facts=ChannelFacts(balance=own["balance"], **{name: own[name] for name in _FACTS}),
        state=ChannelState(own["state"]),
        reserved_call=None if own["reserved_call"] is None else CallId(own["reserved_call"]),
        reserved_state=None if reserved_state is None else CallState(reserved_state),
        unused_since_ms=own["unused_since_ms"],
    )


def parse_config(own: dict[str, Any]) -> ChannelConfig:
    return ChannelConfig(
        payer=Address(own["payer"]),
        payer_authorizer=Address(own["payer_authorizer"]),
        receiver=Address(own["receiver"]),
        receiver_authorizer=Address(own["receiver_authorizer"]),
        token=Address(own["token"]),
        withdraw_delay=own["withdraw_delay"],
        salt=bytes(own["salt"]),
    )


def _parse_voucher(own: dict[str, Any], name: str) -> Voucher | None:
    ceiling = own[f"{name}_ceiling"]
    return None if ceiling is None else Voucher(ceiling=ceiling, signature=bytes(own[f"{name}_signature"]))
