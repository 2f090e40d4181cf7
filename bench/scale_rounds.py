"""The rounds of a gateway and of its operator over the whole ledger, in turn at both sizes: what each reads or writes in the database, with its chain in memory.

A round that only reads is timed three times, and the least counts.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scale_channels import AUTHORIZER
from scale_plans import find_slowest, recorded
from scale_questions import Side
from scale_routes import CHAINS, RULES
from scale_rows import END_MS, TOKENS
from sqlalchemy import Connection

from tollway.chain.port import ChainTip
from tollway.ids import ChainId, ChannelId
from tollway.ledger.channels import Channel, ChannelFacts
from tollway.ledger.ledger import UnfinalBlock
from tollway.payments.channel_claims import CHANNELS_MAX
from tollway.payments.channel_watch import ChannelWatch
from tollway.payments.reorg_watcher import BLOCKS_PER_PAGE, HELD_MAX
from tollway.storage.engine.database import SqliteDatabase
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.channel_totals import ChannelTotalsStore
from tollway.storage.ledger.closed_periods import ClosedPeriods
from tollway.storage.ledger.debts import find_payable_accounts
from tollway.storage.ledger.finality import FinalityStore
from tollway.storage.ledger.gone_payments import find_unmoved
from tollway.storage.ledger.ledger_audit import audit
from tollway.storage.operator.backup import back_up
from tollway.storage.operator.operator_reads import read_figures

UNCLAIMED_MAX, WITHDRAWALS_MAX, PAGE = 5, 10_000, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """`run` returns how many of `rows` it has read or written. `is_repeated`: it changes nothing. `is_explained`: its slowest statement is worth a plan."""

    name: str
    rows: str
    run: Callable[[Side], Awaitable[int]]
    is_repeated: bool = True
    is_explained: bool = True


class UnsoundLedger(Exception):
    """The filled rows are wrong: no figure of them counts."""


async def time_round(one: Round, side: Side) -> dict[str, Any]:
    times = []
    for _ in range(3 if one.is_repeated else 1):
        began = time.perf_counter()
        rows = await one.run(side)
        times.append(time.perf_counter() - began)
    return {"rows": rows, "seconds": round(min(times), 4)}


async def explain_round(one: Round, side: Side) -> dict[str, Any] | None:
    if not (one.is_repeated and one.is_explained):
        return None
    async with recorded() as statements:
        await one.run(side)
    return await find_slowest(side.database, statements)


# ---- The channels.


class _WatchedLedger:
    """The channels of the database, and their facts as the chain has them: the same."""

    def __init__(self, store: ChannelClaimStore) -> None:
        self._store = store
        self.facts: dict[ChannelId, ChannelFacts] = {}
        self.looks = 0

    async def list_watched(self, chain_id: ChainId, *, after_key: int, limit: int) -> tuple[Channel, ...]:
        found = await self._store.list_watched(chain_id, after_key=after_key, limit=limit)
        self.facts = {one.id: one.facts for one in found}
        self.looks += len(found)
        return found

    async def note_look(self, chain_id: ChainId, *, now_ms: int) -> None: ...


async def _watch_channels(side: Side) -> int:
    ledger: Any = _WatchedLedger(ChannelClaimStore(side.database))

    async def fetch_channel(chain_id: ChainId, channel_id: ChannelId, asset: Any) -> ChannelFacts:
        return ledger.facts[channel_id]

    async def fetch_tip(chain_id: ChainId) -> ChainTip:
        return ChainTip(head_number=20_000_000, head_time=END_MS // 1000, finalized_number=None)

    async def fetch_changed_channels(chain_id: ChainId, **_: int) -> frozenset[ChannelId]:
        return frozenset()

    networks: Any = SimpleNamespace(
        rules=dict.fromkeys(CHAINS, SimpleNamespace(withdraw_delay=86_400)),
        is_deployed=lambda chain_id: True,
        count_deposit_blocks=lambda chain_id, asset: 1,
        fetch_channel=fetch_channel,
    )
    chains: Any = SimpleNamespace(fetch_tip=fetch_tip, fetch_changed_channels=fetch_changed_channels)
    watch = ChannelWatch(ledger=ledger, chains=chains, networks=networks, rules=RULES, now_ms=lambda: END_MS)
    await watch.run_once()
    return int(ledger.looks)


async def _choose_claims(side: Side) -> int:
    store = ChannelClaimStore(side.database)
    for chain_id in CHAINS:
        await store.list_open_claims(chain_id)
        await store.list_unsettled(chain_id)
        await store.list_claimable(chain_id, unclaimed_max=UNCLAIMED_MAX, limit=CHANNELS_MAX)
        await store.list_unused(chain_id, before_ms=END_MS, limit=CHANNELS_MAX)
    return side.scale.channels


async def _sum_channels(side: Side) -> int:
    store = ChannelTotalsStore(side.database)
    await store.list_totals()
    await store.list_withdrawals(limit=WITHDRAWALS_MAX)
    await store.find_unclaimed_since_ms()
    for chain_id in CHAINS:
        for token in filter(None, TOKENS.values()):
            await store.count_unclaimed(chain_id, token, units_min=1, authorizers=[AUTHORIZER])
    return side.scale.channels


# ---- The payments and the calls.


async def _watch_payments(side: Side) -> int:
    """What a check of the watcher reads while no block has changed: unfinal, held and gone payments, and debts."""
    store, rows = FinalityStore(side.database, now_ms=lambda: END_MS), 0
    for chain_id in CHAINS:

        def read_moves(connection: Connection, chain_id: ChainId = chain_id) -> None:
            find_unmoved(connection, chain_id)
            find_payable_accounts(connection, chain_id)

        await side.database.read(read_moves)
        after: UnfinalBlock | None = None
        while page := await store.unfinal_blocks(chain_id, after=after, limit=BLOCKS_PER_PAGE):
            for block in page:
                rows += len(await store.unfinal_in(block, after_id=0, limit=PAGE))
            after = page[-1]
        await store.held_unfinal(chain_id, limit=HELD_MAX)
        await store.gone_payments(chain_id, after_id=0, limit=PAGE, now_ms=END_MS)
    return rows


async def _close_hour(side: Side) -> int:
    periods = ClosedPeriods(side.database, read_clock=lambda _: END_MS, ledger_ms=lambda: END_MS)
    await periods.write_due()
    return 1


async def _read_figures(side: Side) -> int:
    figures = await side.database.read(
        lambda connection: read_figures(connection, now_ms=END_MS, secrets_stale=0)
    )
    return sum(count for count, _ in figures.open_calls.values())


async def _audit(side: Side) -> int:
    report = await side.database.read(audit, is_long=True)
    if not report.is_right:
        raise UnsoundLedger(f"the audit finds {(*report.wrong, *report.wrong_periods)[:3]}")
    return report.calls


async def _back_up(side: Side) -> int:
    """The copy, its check and its audit."""
    assert isinstance(side.database, SqliteDatabase)
    target = Path(f"{side.database.path}.backup")
    try:
        return (await back_up(side.database.path, target)).size_bytes
    finally:
        target.unlink(missing_ok=True)


ROUNDS = [
    Round(name="channels: whole look", rows="channels with money", run=_watch_channels),
    Round(name="channels: choose claims and refunds", rows="channels", run=_choose_claims),
    Round(name="channels: figures and gas", rows="channels", run=_sum_channels),
    Round(name="payments: check", rows="unfinal payments", run=_watch_payments),
    Round(name="figures of the fleet", rows="open calls", run=_read_figures),
    Round(name="close an hour", rows="hours", run=_close_hour, is_repeated=False),
    Round(name="audit", rows="calls", run=_audit, is_repeated=False),
    Round(name="backup with its audit", rows="bytes", run=_back_up, is_repeated=False),
]
