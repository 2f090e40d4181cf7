"""Every entry of the operator is a row of its change's transaction, with author, target, time and reason: on both dialects. Restores, admitted
transactions and the readiness of the gateways: in memory too."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from structlog.testing import capture_logs

from tests.kit.budgets import bind, policy_of
from tests.kit.ledger_records import NOW_MS, claim_on, new_payment, operator_origin, tx_hash
from tests.kit.listings import sample_listing
from tests.kit.narrowing import existing, of_type
from tollway.audit_log import AuditAction, AuditEntry, AuditOrigin, RecordedAuditEntry
from tollway.errors import StorageUnavailable
from tollway.ids import Address
from tollway.ledger.ledger import Claimed, Unspendable
from tollway.registry.listing import Listing
from tollway.registry.moderation import restore_listing, suspend_listing
from tollway.storage.accounts.identity_store import ModerationStore
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.catalog_tables import listing_table
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.ledger.budget_store import BudgetStore
from tollway.storage.ledger.ledger_tables import payment_table
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.storage.operator.operator_writes import (
    LOGGED_MAX,
    AuditLogStore,
    OperatorStore,
    audit_entry_table,
    record_audit_entry,
)

ALICE = Address(b"a" * 20)
LISTING = sample_listing(provider=ALICE)
TX = tx_hash("old")


class Stores:
    """The stores whose changes are entries, over one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.entries = AuditLogStore(database)
        self.moderation = ModerationStore(database)
        self.budgets = BudgetStore(database)
        self.ledger = OperatorStore(database, now_ms=lambda: NOW_MS)
        self.catalog = self.open_catalog()

    def open_catalog(self, now_ms: int = 0) -> CatalogStore:
        sealer = Sealer(b"\x07" * 32, entropy=os.urandom)
        return CatalogStore(self.database, sealer=sealer, now_ms=lambda: now_ms)

    async def prepare(self) -> None:
        await self.catalog.publish(LISTING)
        await PaymentLedgerStore(self.database).record_payments([new_payment(10)], now_ms=NOW_MS)

    async def suspend(self, origin: AuditOrigin) -> Listing:
        return of_type(Listing, await suspend_listing(self.catalog, LISTING.id, origin=origin))

    async def list_audit_entries(self) -> list[tuple[str, str]]:
        return [(entry.kind, entry.target) for entry in await self.entries.list_audit_entries(limit=20)]


@pytest.fixture
async def stores(database: Database) -> Stores:
    stores = Stores(database)
    await stores.prepare()
    return stores


Change = Callable[[Stores, AuditOrigin], Awaitable[Any]]


async def block(stores: Stores, origin: AuditOrigin) -> Any:
    return await stores.moderation.block(ALICE, origin=origin)


CHANGES: dict[str, tuple[Change | None, Change, AuditAction, str]] = {
    "suspend": (None, lambda on, why: on.suspend(why), AuditAction.SUSPEND_LISTING, LISTING.id),
    "restore": (
        lambda on, why: on.suspend(why),
        lambda on, why: restore_listing(on.catalog, LISTING.id, origin=why),
        AuditAction.RESTORE_LISTING,
        LISTING.id,
    ),
    "block": (None, block, AuditAction.BLOCK_WALLET, str(ALICE)),
    "unblock": (
        block,
        lambda on, why: on.moderation.unblock(ALICE, origin=why),
        AuditAction.UNBLOCK_WALLET,
        str(ALICE),
    ),
    "unbind": (
        lambda on, why: bind(on.budgets, policy_of(maxTotal="1", agent=ALICE)),
        lambda on, why: on.ledger.unbind_wallet(ALICE, origin=why),
        AuditAction.UNBIND_WALLET,
        str(ALICE),
    ),
    "admit": (None, lambda on, why: on.ledger.admit(TX, origin=why), AuditAction.ADMIT_TRANSACTION, str(TX)),
    "release": (
        lambda on, why: on.ledger.mark_restored(origin=why),
        lambda on, why: on.ledger.release_held(origin=why),
        AuditAction.RELEASE_BALANCES,
        "ledger",
    ),
}
"""The change before, the change, and its entry. A second such change changes nothing."""


async def test_a_change_is_one_act_and_a_repeat_that_changes_nothing_is_none(stores: Stores) -> None:
    for name, (before, change, kind, target) in CHANGES.items():
        if before is not None:
            await before(stores, operator_origin(1))
        earlier = await stores.list_audit_entries()
        for at_ms in (2, 3):
            await change(stores, operator_origin(at_ms, reason="because"))
        assert await stores.list_audit_entries() == [(kind, target), *earlier], name
        (newest,) = await stores.entries.list_audit_entries(limit=1)
        assert newest.origin == AuditOrigin(actor="alice@desk.example", at_ms=2, reason="because"), name


async def test_each_hold_after_a_restore_is_an_act(stores: Stores) -> None:
    for _ in range(2):
        await stores.ledger.mark_restored(origin=operator_origin())
    assert await stores.list_audit_entries() == [("hold_balances", "ledger")] * 2


async def test_a_change_whose_act_cannot_be_written_is_undone(stores: Stores) -> None:
    for name, (before, change, _, _) in CHANGES.items():
        if before is not None:
            await before(stores, operator_origin(1))
        earlier = await read_state(stores)
        async with refused_acts(stores.database):
            with pytest.raises(StorageUnavailable):
                await change(stores, operator_origin(2))
        assert await read_state(stores) == earlier, name


class refused_acts:
    """Within it the database refuses rows of `audit_entry`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __aenter__(self) -> None:
        await self._rename("audit_entry", "audit_entry_away")

    async def __aexit__(self, *_: object) -> None:
        await self._rename("audit_entry_away", "audit_entry")

    async def _rename(self, old: str, new: str) -> None:
        await self._database.write(
            lambda connection: connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")
        )


async def read_state(stores: Stores) -> Any:
    entry = existing(await stores.open_catalog(now_ms=NOW_MS).find(LISTING.id))
    held = await stores.database.read(lambda connection: connection.scalar(select(payment_table.c.is_held)))
    blocked = [block.wallet for block in await stores.moderation.list_blocked()]
    return entry.listing.suspended_ms, held, blocked, await stores.list_audit_entries()


async def test_the_reason_of_a_suspension_is_read_with_the_listing(stores: Stores) -> None:
    revised = await stores.suspend(operator_origin(5, reason="under review"))
    assert revised.suspended_reason == "under review"
    entry = existing(await stores.open_catalog().find(LISTING.id))
    assert (entry.listing.suspended_ms, entry.listing.suspended_reason) == (5, "under review")
    (suspended,) = await stores.catalog.list_suspended()
    assert suspended.reason == "under review"
    await restore_listing(stores.catalog, LISTING.id, origin=operator_origin(6, reason="checked"))
    entry = existing(await stores.open_catalog().find(LISTING.id))
    assert (entry.listing.suspended_ms, entry.listing.suspended_reason) == (None, "")


async def test_a_suspension_by_the_release_before_has_no_reason_of_an_older_one(stores: Stores) -> None:
    await stores.suspend(operator_origin(5, reason="under review"))
    again = update(listing_table).values(suspended_ms=9)
    await stores.database.write(lambda connection: connection.execute(again))
    entry = existing(await stores.open_catalog().find(LISTING.id))
    assert (entry.listing.suspended_ms, entry.listing.suspended_reason) == (9, "")


async def test_acts_are_listed_newest_first_by_page_and_target(stores: Stores) -> None:
    for at_ms in range(1, 6):
        await stores.moderation.block(ALICE, origin=operator_origin(at_ms))
        await stores.moderation.unblock(ALICE, origin=operator_origin(at_ms))
    await stores.ledger.admit(TX, origin=operator_origin(9))
    entries = await stores.entries.list_audit_entries(limit=4)
    kinds = "admit_transaction unblock_wallet block_wallet unblock_wallet"
    assert [entry.kind for entry in entries] == kinds.split()
    older = await stores.entries.list_audit_entries(limit=20, before_id=entries[-1].id)
    assert [entry.origin.at_ms for entry in older] == [4, 3, 3, 2, 2, 1, 1]
    (admitted,) = await stores.entries.list_audit_entries(limit=20, target=str(TX))
    assert admitted.kind == "admit_transaction"


async def test_of_all_gateways_one_logs_an_act(stores: Stores) -> None:
    await stores.suspend(operator_origin(5, reason="under review"))
    await stores.ledger.admit(TX, origin=operator_origin(6))
    others = [AuditLogStore(stores.database) for _ in range(4)]
    with capture_logs() as logs:
        assert sum(await asyncio.gather(*(other.log_new() for other in others))) == 2
        assert await stores.entries.log_new() == 0
    by_action = {line["action"]: line for line in logs}
    assert len(logs) == 2
    written = {"event": "audit_entry", "log_level": "info", "actor": "alice@desk.example", "entry_id": 0}
    entry = {"action": "suspend_listing", "target": LISTING.id, "reason": "under review", "at_ms": 5}
    assert by_action["suspend_listing"] | {"entry_id": 0} == written | entry
    assert by_action["admit_transaction"]["target"] == str(TX)


async def test_one_run_logs_a_bounded_number_of_acts(stores: Stores) -> None:
    entry = AuditEntry(kind=AuditAction.ADMIT_TRANSACTION, target=str(TX), origin=operator_origin())

    def record(connection: Any) -> None:
        for _ in range(LOGGED_MAX + 1):
            record_audit_entry(connection, entry)

    await stores.database.write(record)
    with capture_logs():
        assert [await stores.entries.log_new() for _ in range(3)] == [LOGGED_MAX, 1, 0]


async def test_an_act_of_a_later_version_is_listed_by_its_text(stores: Stores) -> None:
    row = {"at_ms": 1, "actor": "bob@desk", "action": "paint_gateway", "target": "blue", "reason": ""}
    await stores.database.write(lambda connection: connection.execute(insert(audit_entry_table), row))
    (entry,) = await stores.entries.list_audit_entries(limit=1)
    assert entry == RecordedAuditEntry(
        id=entry.id, kind="paint_gateway", target="blue", origin=AuditOrigin(actor="bob@desk", at_ms=1)
    )


async def paid(ledger: Any, value_units: int, name: str = "tx") -> Any:
    (payment,) = await ledger.record_payments([new_payment(value_units, name)], now_ms=NOW_MS)
    return payment


async def test_balances_are_held_after_a_restore_until_released(ledger: Any) -> None:
    payment = await paid(ledger, 10)
    assert (await ledger.find_transaction(tx_hash("a"))).held_before_ms is None
    await ledger.mark_restored(origin=operator_origin())
    assert (await ledger.find_transaction(tx_hash("a"))).held_before_ms == NOW_MS
    assert await ledger.claim(claim_on(payment)) == Unspendable(is_held=True)
    assert (await ledger.audit()).held_payments == (str(payment.tx_hash),)
    later = await paid(ledger, 10, "later")
    assert isinstance(await ledger.claim(claim_on(later)), Claimed)
    assert await ledger.release_held(origin=operator_origin()) == 1
    assert (await ledger.find_transaction(tx_hash("a"))).held_before_ms is None
    assert isinstance(await ledger.claim(claim_on(payment)), Claimed)


async def test_an_admitted_transaction_is_remembered(ledger: Any) -> None:
    await ledger.admit(tx_hash("a"), origin=operator_origin())
    await ledger.admit(tx_hash("a"), origin=operator_origin())
    assert (await ledger.find_transaction(tx_hash("a"))).is_admitted
    assert not (await ledger.find_transaction(tx_hash("b"))).is_admitted


async def test_downtime_is_the_time_between_notes_that_are_far_apart(ledger: Any) -> None:
    assert await ledger.downtime_ms(since_ms=0, now_ms=NOW_MS) == 0
    for ms in (0, 60_000, 160_000, 160_001, 100):
        await ledger.mark_ready(now_ms=NOW_MS + ms)
    at = {"now_ms": NOW_MS + 200_000}
    assert await ledger.downtime_ms(since_ms=NOW_MS - 1, **at) == 100_000
    assert await ledger.downtime_ms(since_ms=NOW_MS + 100_000, **at) == 60_000
    assert await ledger.downtime_ms(since_ms=NOW_MS + 170_000, **at) == 0
    assert await ledger.downtime_ms(since_ms=NOW_MS + 150_000, now_ms=NOW_MS + 300_001) == 10_000 + 140_000
