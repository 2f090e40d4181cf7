"""Channels in SQL: the port `ChannelLedger`. What the chain says of a channel is its balance (`storage.ledger.channel_balance`)."""

from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from tollway.chain.channel_contract import SETTLEMENT_CONTRACT, ChannelConfig
from tollway.ids import ChainId, ChannelId, TxHash
from tollway.ledger.channels import (
    Channel,
    ChannelFacts,
    ChannelName,
    count_lost_claims,
    read_facts,
)
from tollway.ledger.claims import check_units
from tollway.ledger.records import NewPayment
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.ledger.channel_balance import fit_calls
from tollway.storage.ledger.channel_rows import find_channels, insert_channel, read_channels
from tollway.storage.ledger.locked_rows import LockedRows
from tollway.storage.ledger.payments import find_payment_id, insert_payment


class ChannelStore:
    """Implements `ChannelLedger`."""

    def __init__(self, database: Database, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._database = database
        self._calls_max = limits.moved_calls_max

    async def find_channel(self, chain_id: ChainId, channel_id: ChannelId) -> Channel | None:
        name = ChannelName(chain_id, channel_id)
        found = await self._database.read(partial(find_channels, names=[name]))
        return found.get(name)

    async def open_channel(
        self,
        chain_id: ChainId,
        channel_id: ChannelId,
        config: ChannelConfig,
        facts: ChannelFacts,
        *,
        decimals: int,
        now_ms: int,
    ) -> Channel:
        _check_facts(facts)
        name = ChannelName(chain_id, channel_id)
        work = partial(_open, name=name, config=config, facts=facts, decimals=decimals, now_ms=now_ms)
        return await write_retried(self._database, work)

    async def renew_channel(self, key: int, facts: ChannelFacts, *, now_ms: int) -> Channel:
        _check_facts(facts)
        # A balance that falls by many calls is written in several transactions; each leaves the sums right.
        work = partial(_renew, key=key, facts=facts, calls_max=self._calls_max, now_ms=now_ms)
        while True:
            renewed = await write_retried(self._database, work)
            if renewed.is_whole:
                return renewed.channel


@dataclass(frozen=True, slots=True)
class _Renewed:
    channel: Channel
    is_whole: bool


def _check_facts(facts: ChannelFacts) -> None:
    """Raises ValueError for what the contract never says: an amount beyond the range of a balance, or more claimed than there is."""
    for units in (facts.balance, facts.total_claimed, facts.withdrawal_amount):
        check_units(units)
    if facts.total_claimed > facts.balance:
        raise ValueError("a channel has never claimed more than its balance")


def _open(
    connection: Connection,
    *,
    name: ChannelName,
    config: ChannelConfig,
    facts: ChannelFacts,
    decimals: int,
    now_ms: int,
) -> Channel:
    found = find_channels(connection, [name])
    if name in found:
        return found[name]
    balance = _payment_of(name, config, facts, now_ms)
    # Of two gateways that open a channel, the second waits here for the first one's payment.
    if insert_payment(connection, balance, now_ms, is_authorized=True, is_escrow=True):
        payment_id = find_payment_id(connection, balance)
        insert_channel(
            connection, name, config, facts, payment_id=payment_id, decimals=decimals, now_ms=now_ms
        )
    return find_channels(connection, [name])[name]


def _payment_of(name: ChannelName, config: ChannelConfig, facts: ChannelFacts, now_ms: int) -> NewPayment:
    return NewPayment(
        chain_id=name.chain_id,
        tx_hash=TxHash(name.channel_id),
        asset="0x" + config.token.hex(),
        payer=config.payer,
        payee=SETTLEMENT_CONTRACT,
        value_units=facts.balance - facts.total_claimed,
        block_number=facts.block_number,
        block_hash=bytes(32),
        block_time=now_ms // 1000,
        is_final=True,
    )


def _renew(connection: Connection, *, key: int, facts: ChannelFacts, calls_max: int, now_ms: int) -> _Renewed:
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments(one.payment_id for one in read_channels(connection, [key]).values())
    locked_rows.channels.load([key])
    channel = read_facts(locked_rows.channels.find(key), facts)
    if channel is None:
        return _Renewed(locked_rows.channels.find(key), is_whole=True)
    locked_rows.channels.put(channel)
    is_whole = fit_calls(connection, locked_rows, key, calls_max=calls_max, now_ms=now_ms)
    if is_whole:
        locked_rows.channels.put(count_lost_claims(locked_rows.channels.find(key)))
    locked_rows.write()
    return _Renewed(locked_rows.channels.find(key), is_whole=is_whole)
