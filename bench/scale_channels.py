"""The channels of `scale_rows`, with the payments that have their balances and with their claims. Pure.

Six of ten channels are spent and claimed, three of twenty have something to claim, at any scale. A claim has `ROWS_MAX` channels of one network, and the last
one of each network is open. Each call has ended, so what a channel announced is what its calls owe.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scale_rows import SPAN_MS, START_MS, PairCredit, Scale, Spent, channel_account, mix

from tollway.chain.channel_contract import SETTLEMENT_CONTRACT
from tollway.ids import Address, ChainId, format_id
from tollway.ledger.channels import ChannelState
from tollway.ledger.records import PaymentState
from tollway.payments.channel_claims import ROWS_MAX
from tollway.payments.channels import WITHDRAW_DELAY_S

AUTHORIZER = Address(b"\xac" * 20)
CLAIM_COLUMNS = ("id", "chain_id", "is_refund", "created_ms", "ended_ms")
CLAIM_ROW_COLUMNS = ("claim_id", "channel_id", "ceiling", "signature", "total")
SIGNATURE = b"\x51" * 65
WITHDRAWING_EVERY, UNUSED_EVERY = 500, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRows:
    """One channel: the row of its payment, its own, and the sums that claims showed of it, the older first. `open_total`: what the open claim shows."""

    payment: dict[str, Any]
    channel: dict[str, Any]
    claimed: tuple[int, ...]
    open_total: int | None


def channel_rows(scale: Scale, spent: Spent) -> Iterator[ChannelRows]:
    """Every channel, by key, after all calls are made."""
    for key in range(1, scale.channels + 1):
        yield _channel(scale, key, channel_account(scale, key), spent)


def _channel(scale: Scale, key: int, paid: PairCredit, spent: Spent) -> ChannelRows:
    payment_id, draw = scale.payment_of(key), mix(scale.seed + 21, key)
    taken = spent.taken[payment_id]
    kind = draw % 20
    is_claimable = kind >= 17
    claimed = taken * 2 // 3 if is_claimable else taken
    balance = taken if kind < 12 and taken else taken + 20 * paid.price_units
    opened_ms = _moment_ms(scale, key)
    is_withdrawing = key % WITHDRAWING_EVERY == 3 and balance > claimed
    token = paid.asset.token
    assert token is not None
    channel_id = b"".join(mix(scale.seed + 22 + part, key).to_bytes(8, "big") for part in range(4))
    channel = {
        "key": key,
        "chain_id": paid.asset.chain_id,
        "channel_id": channel_id,
        "payment_id": payment_id,
        "payer": paid.payer,
        "payer_authorizer": paid.payer,
        "receiver": paid.listing.pay_to,
        "receiver_authorizer": AUTHORIZER,
        "token": token,
        "decimals": paid.asset.decimals,
        "withdraw_delay": WITHDRAW_DELAY_S["main"],
        "salt": channel_id,
        "state": (ChannelState.WITHDRAWING if is_withdrawing else ChannelState.OPEN).value,
        "start_units": 0,
        "lacking_units": 0,
        "announced": taken,
        "published": claimed,
        "spent_ceiling": max(claimed, taken * 9 // 10) or None,
        "spent_signature": SIGNATURE if taken else None,
        "waiting_ceiling": None,
        "waiting_signature": None,
        "candidate_ceiling": taken or None,
        "candidate_signature": SIGNATURE if taken else None,
        "balance": balance,
        "total_claimed": claimed,
        "refund_nonce": 0,
        "withdrawal_amount": balance - claimed if is_withdrawing else 0,
        "withdrawal_since_s": opened_ms // 1000 if is_withdrawing else 0,
        "block_number": 20_000_000,
        "reserved_call": None,
        "opened_ms": opened_ms,
        "unused_since_ms": opened_ms if key % UNUSED_EVERY == 7 else None,
        "settled": claimed,
    }
    payment = {
        "id": payment_id,
        "chain_id": paid.asset.chain_id,
        "tx_hash": channel_id,
        "asset": paid.asset.key,
        "payer": paid.payer,
        "payee": SETTLEMENT_CONTRACT,
        "value_units": balance,
        "taken_units": taken,
        "calls": spent.calls[payment_id],
        "state": PaymentState.FINAL.value,
        "block_number": 20_000_000,
        "block_hash": bytes(32),
        "block_time": opened_ms // 1000,
        "is_plain_ended": False,
        "is_held": False,
        "is_authorized": True,
        "is_escrow": True,
        "is_refund": False,
        "recorded_ms": opened_ms,
        "checked_ms": opened_ms,
        "gone_ms": None,
    }
    sums = (claimed // 2, claimed) if draw >> 8 & 1 else (claimed,)
    return ChannelRows(
        payment=payment,
        channel=channel,
        claimed=tuple(total for total in sums if total),
        open_total=taken if taken > claimed else None,
    )


def _moment_ms(scale: Scale, key: int) -> int:
    return START_MS + (key - 1) * SPAN_MS // (scale.channels + 1)


class Claims:
    """The claims of the channels that `add` is given, by key. `claims` and `rows`: in the order of `CLAIM_COLUMNS` and `CLAIM_ROW_COLUMNS`."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._filling: dict[tuple[ChainId, int], list[tuple[int, int]]] = {}
        self._last: dict[ChainId, list[tuple[int, int]]] = {}
        self.claims: list[tuple[Any, ...]] = []
        self.rows: list[tuple[Any, ...]] = []

    def add(self, one: ChannelRows) -> None:
        key, chain_id = one.channel["key"], one.channel["chain_id"]
        for place, total in enumerate(one.claimed):
            filling = self._filling.setdefault((chain_id, place), [])
            filling.append((key, total))
            if len(filling) == ROWS_MAX:
                self._write(chain_id, filling, is_open=False)
        if one.open_total is not None:
            last = self._last.setdefault(chain_id, [])
            last.append((key, one.open_total))
            del last[:-ROWS_MAX]

    def finish(self) -> None:
        for (chain_id, _), filling in self._filling.items():
            self._write(chain_id, filling, is_open=False)
        for chain_id, last in self._last.items():
            self._write(chain_id, last, is_open=True)

    def _write(self, chain_id: ChainId, filling: list[tuple[int, int]], *, is_open: bool) -> None:
        if not filling:
            return
        created_ms = _moment_ms(self._scale, filling[-1][0]) + 3_600_000
        number = len(self.claims)
        entropy = mix(self._scale.seed + 30, number).to_bytes(8, "big") + number.to_bytes(2, "big")
        claim_id = format_id("claim", now_ms=created_ms, entropy=entropy[-10:])
        ended_ms = None if is_open else created_ms + 30_000
        self.claims.append((claim_id, chain_id, False, created_ms, ended_ms))
        self.rows += [(claim_id, key, total, SIGNATURE, total) for key, total in filling]
        filling.clear()
