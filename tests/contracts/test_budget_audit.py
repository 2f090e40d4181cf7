"""The audit of budgets: what each has counted is the sum of its calls, and each call counts what it costs. On SQLite and on PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy import text

from tests.contracts.conftest import Ledgers
from tests.contracts.test_metered_calls import METERING, charge, metered_claim, usage_of
from tests.kit.budgets import OTHER_OWNER, OWNER, bind, policy_of, store
from tests.kit.clocks import Clock
from tests.kit.ledger_channels import open_channel, open_deposit
from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
)
from tests.kit.ledger_steps import learn_terms, pay, settle
from tollway.ids import Address
from tollway.ledger.ledger import Claimed
from tollway.ledger.records import CallState
from tollway.storage.engine.database import Database

pytestmark = pytest.mark.dialects

HOUR_MS = 3_600_000
STRANGER = Address(b"\x55" * 20)
ALL = "hour day month total"


async def spend_in_each_way(ledgers: Ledgers) -> Any:
    """A bound wallet with a call in each state that counts, of this hour and of the one before, and calls that count nowhere."""
    ledger = await ledgers.gateway("one")
    payment = await pay(ledger, 1_000)
    strangers = await pay(ledger, 100, "stranger", payer=STRANGER)
    await bind(ledger, policy_of(maxTotal="1"))
    await learn_terms(ledger)

    async def claim(claim: Any) -> Any:
        assert isinstance(await ledger.claim(claim), Claimed), claim
        return claim

    await ledger.close(close_of(await claim(claim_on(payment, 50))))
    await store(ledger, policy_of(maxTotal="1", currency="EURC", nonce=2))
    await store(ledger, policy_of(maxTotal="1", nonce=3))
    early = await claim(claim_on(payment, 2))
    await ledger.close(close_of(await claim(claim_on(payment, 3))))
    await ledgers.set_clocks(NOW_MS + HOUR_MS, ledger)
    await claim(claim_on(payment, 4))
    await ledger.close(close_of(early, CallState.RELEASED))
    held = await claim(claim_on(payment, 5))
    await ledger.close(close_of(held, CallState.UNKNOWN, http_status=None, upstream_status=None))
    measured = await claim(metered_claim(payment))
    await charge(ledger, measured)
    ledger.finish(finish_of(measured, usage=usage_of(2)))
    await claim(claim_on(strangers, 7))
    await claim(claim_on(None))
    paid = await claim(authorized_claim(authorization_of(6)))
    await settle(ledger, paid)
    channel = await open_channel(ledger, balance=1_000)
    deposit = await open_deposit(ledger, channel, price_units=20, price="0.00002", metering=METERING)
    await settle(ledger, deposit, None, is_metered=True, usage=usage_of(2))
    return ledger


@pytest.fixture
async def ledger(database: Database) -> Any:
    ledgers = Ledgers(database, Clock(NOW_MS))
    yield await spend_in_each_way(ledgers)
    await ledgers.close()


async def test_the_audit_finds_nothing_wrong_in_what_a_ledger_counts(ledger: Any) -> None:
    assert (await ledger.audit()).wrong == ()
    bound = await ledger.find_binding(PAYER)
    assert bound.total_nano > bound.hour.spent_nano > 0
    await ledger.revoke_policy(OWNER, PAYER, nonce=9, is_unbinding=True, now_ms=NOW_MS)
    assert (await ledger.audit()).wrong == ()
    await bind(ledger, policy_of(maxTotal="1", owner=OTHER_OWNER))
    assert (await ledger.audit()).wrong == ()


@pytest.mark.parametrize(
    ("statement", "windows", "calls"),
    [
        ("UPDATE budget SET total_nano = total_nano + 1", "total", 0),
        ("UPDATE budget SET hour_nano = hour_nano - 1", "hour", 0),
        ("UPDATE budget SET day_nano = 0", "day", 0),
        ("UPDATE budget SET month_nano = -month_nano", "month", 0),
        ("UPDATE budget SET total_nano = 9223372036854775807", "total", 0),
        ("UPDATE call SET budget_nano = 1 WHERE state = 'unknown'", ALL, 1),
        ("UPDATE call SET budget_nano = 9223372036854775807 WHERE state = 'unknown'", ALL, 1),
        ("UPDATE call SET budget_nano = NULL, budget_ms = NULL WHERE state = 'unknown'", ALL, 0),
        ("UPDATE call SET budget_ms = 0 WHERE state = 'unknown'", ALL, 0),
        ("UPDATE call SET state = 'released' WHERE state = 'unknown'", "", 1),
        ("UPDATE call SET budget_nano = 1000 WHERE state = 'released'", "day month total", 1),
    ],
)
async def test_the_audit_names_what_a_budget_counts_wrong(
    database: Database, ledger: Any, statement: str, windows: str, calls: int
) -> None:
    changed = await database.write(lambda connection: connection.execute(text(statement)).rowcount)
    assert changed == 1
    wrong = (await ledger.audit()).wrong
    budget = f"the budget of {OWNER} for {PAYER} has counted "
    named = [line.split(" in its ")[1].split(",")[0] for line in wrong if line.startswith(budget)]
    assert named == windows.split()
    assert len([line for line in wrong if line.endswith(" of its budget")]) == calls
