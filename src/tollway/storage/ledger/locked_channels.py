"""The channels of one transaction: read under the locks of their payments, changed in memory, and written once by `LockedRows.write`.

The payment of a channel is worth its balance, and at least what its calls hold: an open call keeps its units until it ends, also where the balance has fallen below them.
"""

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import Connection

from tollway.ids import CallId
from tollway.ledger.channels import Channel, move_call
from tollway.ledger.records import CallState, Parts, Payment
from tollway.money import UNITS_MAX
from tollway.storage.engine.outage import ValueRefused
from tollway.storage.ledger.channel_rows import read_channels, write_channels

_OPEN = (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN)
_CHARGED = (CallState.CONSUMED, CallState.REORGED)


class LockedChannels:
    """`payments`: the locked payments of the transaction, which change with the channels. `worth`: those whose value has changed."""

    def __init__(self, connection: Connection, payments: dict[int, Payment]) -> None:
        self._connection = connection
        self._payments = payments
        self._rows: dict[int, Channel] = {}
        self._changed: set[int] = set()
        self.worth: set[int] = set()

    def load(self, keys: Iterable[int]) -> None:
        """Reads channels whose payments are locked; on SQLite also before."""
        missing = [key for key in keys if key not in self._rows]
        if missing:
            self._rows |= read_channels(self._connection, missing)

    def keep(self, channels: Iterable[Channel]) -> None:
        """Takes channels that were read before the locks. SQLite only."""
        for channel in channels:
            self._rows.setdefault(channel.key, channel)

    def find(self, key: int) -> Channel:
        """A loaded channel, with what its calls owe after the moves so far."""
        channel = self._rows[key]
        taken_units = channel.start_units + self._payments[channel.payment_id].taken_units
        return channel if taken_units == channel.taken_units else replace(channel, taken_units=taken_units)

    def put(self, channel: Channel) -> None:
        """Keeps a changed channel, with the value of its payment."""
        payment = self._payments[channel.payment_id]
        value_units = max(channel.facts.balance - channel.start_units, payment.taken_units)
        if value_units > UNITS_MAX:
            raise ValueRefused("the balance of a channel is at most 2^63 - 1")
        self._rows[channel.key] = channel
        self._changed.add(channel.key)
        if value_units != payment.value_units:
            self._payments[payment.id] = replace(payment, value_units=value_units)
            self.worth.add(payment.id)

    def payment_ids(self) -> list[int]:
        return [channel.payment_id for channel in self._rows.values()]

    def cover(self, key: int, parts: Parts, *, held_units: int) -> Parts:
        """The part of a charged call that the balance covers beside the other calls: it may have fallen while the call was open. `held_units`: of this call until now."""
        channel = self.find(key)
        others_units = channel.taken_units - held_units
        units = min(sum(parts.values()), max(0, channel.facts.balance - others_units))
        return {channel.payment_id: units} if units else {}

    def move_call(self, key: int, call_id: CallId, after: CallState, *, lacking_units: int) -> None:
        """After a move of a call and its units. `lacking_units`: of this call, before they count as lacking."""
        channel = self.find(key)
        charged_units = channel.taken_units + channel.lacking_units
        if after in _CHARGED:
            charged_units += lacking_units
        moved = move_call(channel, call_id, after, charged_units=charged_units)
        if after in _OPEN:
            # The row of the channel has the call, and not its state.
            self._rows[key] = moved
        else:
            self.put(moved)

    def add_lacking(self, key: int, units: int) -> None:
        """What a call lacks is no debt: the next balance of its channel pays it."""
        channel = self.find(key)
        self.put(replace(channel, lacking_units=channel.lacking_units + units))

    def write(self) -> None:
        write_channels(self._connection, [self._rows[key] for key in sorted(self._changed)])
        self._changed.clear()
