"""The event `budget.reached`: the first refusal by each limit and window of a policy, for its owner and its agent, on SQLite and on PostgreSQL."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contracts.test_webhook_events import Ledger, open_ledger
from tests.kit.budgets import OTHER_OWNER, OWNER, bind, policy_of, store
from tests.kit.ledger_records import NOW_MS, PAYER, claim_on
from tests.kit.ledger_steps import learn_terms
from tests.kit.sql_ledger import SqlLedger
from tests.kit.storage_faults import FaultyLedger
from tests.kit.webhooks import WebhookHarness
from tollway.ids import Address
from tollway.ledger.ledger import BudgetExceeded, Claimed
from tollway.storage.engine.database import Database
from tollway.web.http.query import format_time
from tollway.webhooks.events import EventType

pytestmark = pytest.mark.dialects

REACHED = EventType.BUDGET_REACHED
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(database) as it:
        yield it


async def watch(webhooks: WebhookHarness, *wallets: Address) -> list[Any]:
    return [await webhooks.activate(wallet, types=(REACHED,)) for wallet in wallets]


async def refuse(ledger: Any, payment: Any, units: int = 5, **fields: Any) -> BudgetExceeded:
    refused = await ledger.books.claim(claim_on(payment, units, **fields))
    assert isinstance(refused, BudgetExceeded), refused
    return refused


async def announce(ledger: Any, refused: BudgetExceeded) -> None:
    """What a gateway does that refuses a call before its claim."""
    budget = await ledger.books.find_binding(PAYER)
    await ledger.books.announce_refusal(budget, refused, now_ms=ledger.webhooks.now_ms)


def both(state: str) -> list[tuple[str, Address, str]]:
    return sorted((REACHED.value, wallet, state) for wallet in (OWNER, PAYER))


@pytest.mark.parametrize(
    ("members", "fields", "state"),
    [
        ({"maxPerCall": "0.000004"}, {}, "maxPerCall"),
        ({"maxPerHour": "0.000004"}, {}, "maxPerHour"),
        ({"maxPerDay": "0.000004"}, {}, "maxPerDay"),
        ({"maxPerMonth": "0.000004"}, {}, "maxPerMonth"),
        ({"maxTotal": "0.000004"}, {}, "maxTotal"),
        ({"maxTotal": "1"}, {"currency": "EURC"}, "other_currency"),
        ({"maxTotal": "1", "deny": ("api:api_1",)}, {}, "target_not_allowed"),
        ({"maxTotal": "1", "not_after": NOW_MS // 1000}, {}, "no_policy_in_force"),
    ],
)
async def test_the_first_refusal_is_one_event_of_the_owner_and_of_the_agent(
    ledger: Ledger, members: dict[str, Any], fields: dict[str, Any], state: str
) -> None:
    await watch(ledger.webhooks, OWNER, PAYER, OTHER_OWNER)
    payment = await ledger.pay()
    await bind(ledger.books, policy_of(**members))
    for _ in range(3):
        await announce(ledger, await refuse(ledger, payment, **fields))
    assert await ledger.take() == both(state)


async def test_a_call_within_the_policy_has_no_event(ledger: Ledger) -> None:
    await watch(ledger.webhooks, OWNER, PAYER)
    await bind(ledger.books, policy_of(maxPerDay="0.000005"))
    assert isinstance(await ledger.books.claim(claim_on(await ledger.pay(), 5)), Claimed)
    assert await ledger.take() == []


async def test_refusals_of_one_batch_are_one_event(ledger: Ledger) -> None:
    payment = await ledger.pay()
    await learn_terms(ledger.books)
    await watch(ledger.webhooks, OWNER)
    await bind(ledger.books, policy_of(maxPerDay="0.000004", maxPerCall="0.000003"))
    await asyncio.gather(*(ledger.books.claim(claim_on(payment, 5)) for _ in range(6)))
    assert [state for _, _, state in await ledger.take()] == ["maxPerDay"]
    await asyncio.gather(*(ledger.books.claim(claim_on(payment, 4)) for _ in range(6)))
    assert [state for _, _, state in await ledger.take()] == ["maxPerCall"]


async def test_the_next_window_and_the_next_policy_have_events_of_their_own(ledger: Ledger) -> None:
    await watch(ledger.webhooks, OWNER)
    payment = await ledger.pay()
    await bind(ledger.books, policy_of(maxPerHour="0.000004"))
    for nonce in (1, 2):
        for _ in range(2):
            for _ in range(3):
                await announce(ledger, await refuse(ledger, payment))
            assert [state for _, _, state in await ledger.take()] == ["maxPerHour"]
            ledger.webhooks.now_ms += HOUR_MS
            await ledger.webhooks.store.refresh()
        await store(ledger.books, policy_of(maxPerHour="0.000003", nonce=nonce + 1))
    await ledger.books.revoke_policy(OWNER, PAYER, nonce=9, is_unbinding=False, now_ms=ledger.webhooks.now_ms)
    for _ in range(2):
        await refuse(ledger, payment)
    assert [state for _, _, state in await ledger.take()] == ["no_policy_in_force"]


async def test_a_webhook_that_comes_later_gets_the_next_refusal(ledger: Ledger) -> None:
    payment = await ledger.pay()
    await bind(ledger.books, policy_of(maxTotal="0"))
    await announce(ledger, await refuse(ledger, payment))
    await watch(ledger.webhooks, OWNER)
    assert await ledger.take() == []
    await announce(ledger, await refuse(ledger, payment))
    assert [wallet for _, wallet, _ in await ledger.take()] == [OWNER]


async def test_the_message_names_policy_limit_and_end_of_the_window(ledger: Ledger) -> None:
    (endpoint,) = await watch(ledger.webhooks, OWNER)
    await bind(ledger.books, policy_of(maxPerDay="0.000004", nonce=7))
    await refuse(ledger, await ledger.pay())
    # The next policy changes nothing of what the event says.
    await store(ledger.books, policy_of(maxPerDay="0", nonce=8))
    await ledger.webhooks.outbox.spread_events()
    message = json.loads((await ledger.webhooks.begin(endpoint)).body)
    day_ms = NOW_MS - NOW_MS % DAY_MS
    assert message["type"] == "budget.reached"
    assert message["data"] == {
        "endpointId": endpoint.id,
        "wallet": str(OWNER),
        "owner": str(OWNER),
        "agent": str(PAYER),
        "nonce": 7,
        "reason": "limit",
        "limit": "maxPerDay",
        "resetsAt": format_time(day_ms + DAY_MS),
    }


async def test_a_refusal_by_a_policy_that_is_replaced_by_then_has_no_event(ledger: Ledger) -> None:
    await watch(ledger.webhooks, OWNER)
    await bind(ledger.books, policy_of(maxTotal="0"))
    budget = await ledger.books.find_binding(PAYER)
    await store(ledger.books, policy_of(maxTotal="1", nonce=2))
    refused = BudgetExceeded(reason="limit", limit="maxTotal", currency="USDC")
    await ledger.books.announce_refusal(budget, refused, now_ms=ledger.webhooks.now_ms)
    assert await ledger.take() == []


async def test_two_gateways_that_refuse_at_once_write_one_event(database: Database, ledger: Ledger) -> None:
    """Before claims and by claims."""
    await watch(ledger.webhooks, OWNER, PAYER)
    payment = await ledger.pay()
    await bind(ledger.books, policy_of(maxPerDay="0.000004"))
    other: Any = SqlLedger(
        database,
        owner_id="two",
        now_ms=ledger.webhooks.read_now_ms,
        shared_clock=lambda connection, now_ms: ledger.webhooks.now_ms,
        events=ledger.webhooks.events,
    )
    writing = asyncio.get_running_loop().create_task(other.run())
    await other.open()
    budget = await other.find_binding(PAYER)
    until_ms = NOW_MS - NOW_MS % DAY_MS + DAY_MS
    refused = BudgetExceeded(
        reason="limit", limit="maxPerDay", left_nano=4_000, currency="USDC", until_ms=until_ms
    )
    both_books = (ledger.books, other)
    await asyncio.gather(
        *(one.claim(claim_on(payment, 5)) for one in both_books for _ in range(5)),
        *(
            one.announce_refusal(budget, refused, now_ms=ledger.webhooks.now_ms)
            for one in both_books
            for _ in range(5)
        ),
    )
    other.stop()
    await writing
    assert await ledger.take() == both("maxPerDay")


async def test_a_batch_whose_commit_got_no_answer_writes_its_event_once(database: Database) -> None:
    webhooks = WebhookHarness(database)
    await webhooks.store.refresh()
    it = FaultyLedger(database, events=webhooks.events)
    await it.ledger.open()
    await watch(webhooks, OWNER)
    payment = await it.pay(100)
    await bind(it.ledger, policy_of(maxTotal="0"))
    answers = iter([True])
    it.database.fail_after = lambda: next(answers, False)
    await asyncio.gather(*(it.ledger.claim(claim_on(payment, 5)) for _ in range(2)), return_exceptions=True)
    assert isinstance(await it.ledger.claim(claim_on(payment, 5)), BudgetExceeded)
    assert [(event.type, event.state) for event in await webhooks.new_events()] == [
        (REACHED.value, "maxTotal")
    ]
    await it.close()
