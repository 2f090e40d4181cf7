"""Claims of one bound wallet at two gateways at once, on each rail, with every end of a call, while its owner changes the policy."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from tests.kit.budgets import OWNER, bind, policy_of, store
from tests.kit.clocks import Clock
from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
)
from tests.kit.ledger_steps import learn_terms, pay
from tests.kit.sql_ledger import SqlLedger
from tollway.ledger.ledger import BudgetExceeded, Claim, Claimed
from tollway.ledger.records import CallState, Usage
from tollway.money import format_decimal
from tollway.storage.engine.database import Database

PRICE_MAX_UNITS = 40
METERING = '[["0.000001","max",true,[["token","0.000000001",1,{"json":"/n"}]]]]'
LOOKS_EVERY = 10


@dataclass(kw_only=True)
class Crowd:
    """What happened. `overspent`: the sums, in units, that were above the limit of the day when the rows were read."""

    limit_units: int
    granted: int = 0
    refused: int = 0
    total_units: int = 0
    counted_units: int = 0
    overspent: list[int] = field(default_factory=list)


async def run_crowd(database: Database, *, calls: int, seed: int) -> Crowd:
    """Half of what the claims want is allowed in a day. Calls end charged, released, unknown, or with a measured price below their maximum."""
    rolls = random.Random(seed)
    crowd = Crowd(limit_units=calls * PRICE_MAX_UNITS // 4)
    async with _gateways(database) as gateways:
        payments = [await pay(gateways[0], 10**9, f"crowd {number}") for number in range(4)]
        policies = _policies(crowd.limit_units)
        await bind(gateways[0], next(policies))
        for gateway in gateways:
            await learn_terms(gateway)

        async def call(number: int) -> None:
            gateway, claim = rolls.choice(gateways), _claim(rolls, payments)
            outcome = await gateway.claim(claim)
            if isinstance(outcome, BudgetExceeded):
                crowd.refused += 1
                return
            assert isinstance(outcome, Claimed), outcome
            crowd.granted += 1
            await _end(gateway, claim, rolls)
            if number % LOOKS_EVERY == 0:
                await _look(database, crowd)

        async def change_policy() -> None:
            for policy in policies:
                await asyncio.sleep(0)
                await store(rolls.choice(gateways), policy)

        async with asyncio.TaskGroup() as group:
            group.create_task(change_policy())
            for number in range(calls):
                group.create_task(call(number))
        for gateway in gateways:
            await gateway.claim(claim_on(None))  # behind the last finish
    await _look(database, crowd)
    crowd.counted_units = await _sum(database, "SELECT total_nano / 1000 FROM budget")
    return crowd


@contextlib.asynccontextmanager
async def _gateways(database: Database) -> AsyncIterator[list[SqlLedger]]:
    clock = Clock(NOW_MS)
    gateways = [
        SqlLedger(database, owner_id=name, now_ms=clock, shared_clock=lambda connection, now_ms: NOW_MS)
        for name in ("one", "two")
    ]
    tasks = [asyncio.get_running_loop().create_task(gateway.run()) for gateway in gateways]
    for gateway in gateways:
        await gateway.open()
    yield gateways
    for gateway in gateways:
        gateway.stop()
    await asyncio.gather(*tasks)


def _policies(limit_units: int) -> Any:
    """Twenty policies. The limit of the day is one of three, and never above the first."""
    for nonce in range(1, 21):
        units = limit_units // (1, 2, 4)[nonce % 3]
        members = {"maxPerDay": format_decimal(units, decimals=6), "maxTotal": "1000"}
        yield policy_of(owner=OWNER, agent=PAYER, nonce=nonce, **members)


def _claim(rolls: random.Random, payments: list[Any]) -> Claim:
    units, kind = rolls.randint(1, PRICE_MAX_UNITS), rolls.random()
    if kind < 0.2:
        return authorized_claim(authorization_of(units))
    if kind < 0.5:
        return claim_on(rolls.choice(payments), units, metering=METERING)
    if kind < 0.6:
        return claim_on(rolls.choice(payments), units, idempotency_key=str(rolls.random()))
    return claim_on(rolls.choice(payments), units)


async def _end(gateway: SqlLedger, claim: Claim, rolls: random.Random) -> None:
    kind = rolls.random()
    if claim.authorization is not None or kind < 0.4:
        await gateway.close(close_of(claim, CallState.RELEASED))
    elif kind < 0.6:
        await gateway.close(close_of(claim, CallState.UNKNOWN, http_status=None, upstream_status=None))
        if rolls.random() < 0.5:
            await gateway.resolve(claim.call_id, CallState.RELEASED, now_ms=NOW_MS)
    elif claim.metering is not None:
        await gateway.close(close_of(claim, is_metered=True))
        usage = Usage(actual_units=rolls.randint(0, claim.price_units), quantities="[[1]]")
        gateway.finish(finish_of(claim, usage=usage))
    else:
        await gateway.close(close_of(claim))


async def _look(database: Database, crowd: Crowd) -> None:
    crowd.total_units = await _sum(
        database,
        "SELECT sum(coalesce(actual_units, price_units)) FROM call"
        " WHERE payer = (SELECT agent FROM budget) AND state <> 'released'",
    )
    if crowd.total_units > crowd.limit_units:
        crowd.overspent.append(crowd.total_units)


async def _sum(database: Database, query: str) -> int:
    found = await database.read(lambda connection: connection.execute(text(query)).scalar())
    return int(found or 0)
