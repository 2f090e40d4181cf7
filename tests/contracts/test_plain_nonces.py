"""Plain claims with one nonce, and plain claims that no column can add up: they are decided, and the other claims of their statement are granted.

Counts statements: a claim of another caller must not wait for a second one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.databases import open_database
from tests.kit.ledger_records import NOW_MS, PROVIDER, claim_on
from tests.kit.ledger_steps import learn_terms, pay
from tests.kit.sql_ledger import write_terms_of
from tests.kit.storage_faults import FaultyLedger, start
from tests.kit.waits import bounded, until, wait_blocked
from tollway.ledger.ledger import Claimed, Exhausted, NonceUsed
from tollway.money import UNITS_MAX
from tollway.storage.engine.database import Database
from tollway.storage.ledger.plain_writes import grant_plain_claims

NONCE = b"\x09" * 32
OTHERS = 20

pytestmark = [pytest.mark.postgres, pytest.mark.dialects]


@contextlib.asynccontextmanager
async def open_gateway(url: str, owner_id: str) -> AsyncIterator[tuple[FaultyLedger, Database]]:
    """Its claims are plain from now on."""
    async with open_database(url) as database:
        gateway = FaultyLedger(database, owner_id)
        await gateway.ledger.open()
        await learn_terms(gateway.ledger)
        gateway.sizes.clear()
        yield gateway, database
        await gateway.close()
        assert (await gateway.ledger.audit()).wrong == ()


async def test_one_nonce_twice_in_a_batch_leaves_the_others_in_their_statement(postgres_url: str) -> None:
    async with open_gateway(postgres_url, "one") as (gateway, _):
        payments = [await pay(gateway.ledger, 10, f"tx {number}") for number in range(OTHERS)]
        shared = await pay(gateway.ledger, 10, "of the pair")
        pair = [claim_on(shared, 2, nonce=NONCE, digest=b"\x05" * 32) for _ in range(2)]
        claims = [pair[0], *(claim_on(one) for one in payments), pair[1], claim_on(shared, 2)]
        outcomes = await asyncio.gather(*map(gateway.ledger.claim, claims))
        assert [type(one) for one in outcomes] == [Claimed] * (OTHERS + 1) + [NonceUsed, Claimed]
        # The second claim of the pair, and no other, in a transaction of the writer.
        assert gateway.sizes == [OTHERS + 3, 1]


async def test_a_nonce_that_another_gateway_takes_meanwhile_costs_its_own_claim(postgres_url: str) -> None:
    async with (
        open_gateway(postgres_url, "one") as (one, database),
        open_gateway(postgres_url, "two") as (two, _),
    ):
        payments = [await pay(one.ledger, 10, f"tx {number}") for number in range(OTHERS)]
        shared = await pay(one.ledger, 10, "of the pair")
        fields: dict[str, Any] = {"nonce": NONCE, "digest": b"\x05" * 32}
        late = [claim_on(shared, 2, **fields), *(claim_on(one) for one in payments), claim_on(shared, 2)]

        def take(connection: Any) -> list[Any]:
            """The claim of the other gateway, as it stands before its commit."""
            first = [claim_on(shared, 2, **fields)]
            terms = write_terms_of(connection, first)
            taken = grant_plain_claims(connection, first, terms, owner_id="two", now_ms=NOW_MS, ahead_ms=0)
            begun.set()
            while not may_commit.is_set():
                connection.exec_driver_sql("SELECT pg_sleep(0.01)")
            return taken

        begun, may_commit = asyncio.Event(), asyncio.Event()
        taking = start(two.database.write(take))
        await bounded(begun.wait())
        asking = [start(one.ledger.claim(claim)) for claim in late]
        await wait_blocked(database)
        may_commit.set()
        assert [type(granted) for granted in await taking] == [Claimed]
        outcomes = await asyncio.gather(*asking)
        assert [type(one) for one in outcomes] == [NonceUsed] + [Claimed] * (OTHERS + 1)
        assert one.sizes == [OTHERS + 2, 1]
        assert outcomes[-1].remaining_units == 6


async def test_a_demand_beyond_a_column_is_decided(postgres_url: str) -> None:
    """Not clipped: a payment of the largest value must not cover three times its value."""
    async with open_gateway(postgres_url, "one") as (gateway, _):
        half = 2**62
        payment = await pay(gateway.ledger, UNITS_MAX)
        other = await pay(gateway.ledger, 10, "other", payer=PROVIDER)
        claims = [claim_on(payment, half) for _ in range(6)]
        outcomes = await asyncio.gather(*(gateway.ledger.claim(one) for one in [*claims, claim_on(other)]))
        assert [type(one) for one in outcomes] == [Claimed] + [Exhausted] * 5 + [Claimed]
        await until(lambda: gateway.sizes == [7, 6])
