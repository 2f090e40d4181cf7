"""The stores of this release on the tables of the baseline, with the one later table that every claim reads: they refuse what those tables cannot
hold, nothing else fails, and all of it works after the migration."""

import pytest
from sqlalchemy import select

from tests.contracts.test_webhook_events import Ledger, ends, open_ledger
from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER, operator_origin
from tests.kit.stores import make_sealer
from tests.kit.webhooks import WebhookHarness
from tollway.errors import StorageUnavailable
from tollway.identity.sessions import SignInNonce
from tollway.ledger.records import CallState
from tollway.storage.database import Database
from tollway.storage.identity_store import SqlSessions
from tollway.storage.key_rotation import KeyRotation
from tollway.storage.ledger_tables import account_debt_table, call_table
from tollway.storage.migrate import upgrade
from tollway.storage.viewer_store import SqlViewers
from tollway.storage.webhook_events import STALE_S
from tollway.webhooks.events import EventType

CHARGED = (EventType.CALL_CHARGED, PROVIDER, CallState.CONSUMED.value)


@pytest.fixture
async def older(empty_database: Database) -> Database:
    await upgrade(empty_database, revision="0016_call_terms")
    await empty_database.write(account_debt_table.create)
    return empty_database


async def charge(ledger: Ledger, *, is_plain: bool) -> None:
    """One paid call, whose end is a plain statement or locks its rows."""
    claim = await ledger.claim(await ledger.pay(f"tx {is_plain} {ledger.webhooks.clock.s}"))
    await ledger.books.close(ends(claim, upstream_status=200 if is_plain else None))
    state = select(call_table.c.state).where(call_table.c.id == claim.call_id)
    database = ledger.webhooks.database
    assert await database.read(lambda connection: connection.scalar(state)) == CallState.CONSUMED.value


@pytest.mark.parametrize("is_plain", [True, False])
async def test_calls_are_charged_and_have_events_after_the_migration(older: Database, is_plain: bool) -> None:
    async with open_ledger(older) as ledger:
        webhooks = ledger.webhooks
        assert webhooks.events.is_idle
        await charge(ledger, is_plain=is_plain)
        webhooks.clock.s += 2 * STALE_S  # a database that was slow for a moment
        assert not webhooks.events.is_idle
        await charge(ledger, is_plain=is_plain)
        await upgrade(older)
        await charge(ledger, is_plain=is_plain)
        await webhooks.store.refresh()
        assert webhooks.events.is_idle
        await ledger.take()
        await webhooks.activate(PROVIDER)
        webhooks.clock.s += 1
        await charge(ledger, is_plain=is_plain)
        assert CHARGED in await ledger.take()


async def test_the_stale_set_of_a_gateway_counts_as_unknown_once_the_tables_exist(older: Database) -> None:
    async with open_ledger(older) as ledger:
        await upgrade(older)
        other = WebhookHarness(older)
        for wallet in (PROVIDER, PAYER):
            await other.activate(wallet)  # this gateway does not know them
        ledger.webhooks.clock.s += 2 * STALE_S
        await charge(ledger, is_plain=True)
        assert [event.type for event in await ledger.webhooks.new_events()].count("call.charged") == 2


async def test_webhooks_are_refused_and_their_sender_does_nothing(older: Database) -> None:
    async with open_ledger(older) as ledger:
        webhooks = ledger.webhooks
        assert not await webhooks.outbox.has_work(now_ms=NOW_MS)
        await webhooks.outbox.resume_stopped(now_ms=NOW_MS)
        await webhooks.outbox.prune(now_ms=NOW_MS)
        with pytest.raises(StorageUnavailable):
            await webhooks.register()


async def test_what_the_tables_hold_is_pruned(older: Database) -> None:
    sessions = SqlSessions(older)
    await sessions.issue_nonce(SignInNonce(nonce="n", uri=None, expires_ms=NOW_MS))
    assert await sessions.prune(now_ms=NOW_MS) == 1
    assert await SqlViewers(older).prune(now_ms=NOW_MS) == 0


async def test_the_values_that_the_tables_hold_are_counted_and_reencrypted(older: Database) -> None:
    rotation = KeyRotation(older, sealer=make_sealer())
    assert (await rotation.count()).secrets.total == 0
    assert (await rotation.reencrypt(origin=operator_origin())).reencrypted == 0
