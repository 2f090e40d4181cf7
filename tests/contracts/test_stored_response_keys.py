"""A stored response that no configured key opens: its call is paid, so a repeat gets a 409 with the id of the call, and no second charge."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import InProcessGateway
from tests.kit.ledger_records import wait_finished
from tests.kit.payer import Payer, has_terms
from tests.kit.storage_faults import FaultyGateway, open_faulty_gateways
from tests.kit.stores import make_sealer
from tollway.ids import CallId
from tollway.ledger.records import CallState, Dialect
from tollway.storage.engine.database import Database
from tollway.storage.ledger.response_pool import stored_response_table

PRICE = 10_000
TARGET = "/orders"
KEY = ("Idempotency-Key", "one")
DAY_MS = 86_400_000


@pytest.fixture
async def faulty(database: Database) -> AsyncIterator[FaultyGateway]:
    async with open_faulty_gateways(database, ["one"]) as (gateway,):
        yield gateway


async def prove(gateway: InProcessGateway, rail: str, method: str = "POST") -> list[Any]:
    if rail == "plain":
        payment = await gateway.pay(5 * PRICE)
        return [*gateway.plain_proof(payment.tx_hash)]
    payer = Payer.funded(gateway, 5 * PRICE)
    return [*payer.show(await payer.quote(method, TARGET), Dialect(rail))]


async def lose_key(database: Database) -> None:
    """Makes every stored response one that no configured key opens."""
    foreign = make_sealer(b"\x03" * 32).seal(b"", label=b"")
    await database.write(
        lambda connection: connection.execute(update(stored_response_table).values(sealed=foreign))
    )


def told(answer: Exchange) -> tuple[int, str, str, str]:
    assert not has_terms(answer)
    problem = answer.problem
    return answer.status, problem["code"], problem.get("reason"), problem["paymentState"]


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("rail", ["plain", *(dialect.value for dialect in Dialect)])
async def test_a_response_whose_key_is_gone_is_reported_as_paid_and_not_stored(
    faulty: FaultyGateway, database: Database, rail: str, method: str
) -> None:
    gateway = faulty.gateway
    shown = [*await prove(gateway, rail, method), KEY]
    body = [b"order"] if method == "POST" else []
    first = await gateway.ask(method, TARGET, shown, body)
    assert first.status == 200, first.body
    await wait_finished(gateway.ledger, CallId(first.headers["tollway-call-id"]))
    await lose_key(database)
    with capture_logs() as lines:
        for _ in range(3):
            again = await gateway.ask(method, TARGET, shown, body)
            assert told(again) == (409, "payment_already_used", "idempotency_key_used", "charged")
            assert again.problem["callId"] == first.headers["tollway-call-id"]
    assert [line["event"] for line in lines].count("stored_response_lost") == 1
    (call,) = await gateway.history()
    assert (call.state, gateway.served) == (CallState.CONSUMED, 1)


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_after_a_day_an_authorisation_of_a_lost_response_is_still_used(
    faulty: FaultyGateway, database: Database, dialect: Dialect
) -> None:
    """A key is free again after a day, as the key of every call; the authorisation has paid for good."""
    gateway = faulty.gateway
    shown = [*await prove(gateway, dialect.value), KEY]
    assert (await gateway.ask("POST", TARGET, shown, [b"order"])).status == 200
    await lose_key(database)
    faulty.clock.ms += DAY_MS + 1
    gateway.now_ms = faulty.clock.ms
    again = await gateway.ask("POST", TARGET, shown, [b"order"])
    assert told(again) == (409, "payment_already_used", "authorization_used", "charged")
    assert gateway.served == 1
