"""How many objects of our classes one call makes, and how many functions of ours it enters, on each rail and both databases, with a whole gateway
behind its server, its writer and its background tasks.

A bound is what a call makes today (`tests/kit/object_counter.py` says what counts). Fewer is an improvement: lower
the number. The table of a failure names every class and every line that makes an instance of it.
"""

import operator
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.authorization_payer import V2, AuthorizationPayer
from tests.kit.counted_gateway import CountedGateway, run_counted_gateway
from tests.kit.object_counter import Creations, ObjectCounter

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPEATS = 8
"""The first calls of a process fill its caches, and what a gateway does by the clock may fall into any of them: the least counts."""
CALLS = REPEATS * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most objects that one call makes. `in_call`: outside of transactions; `in_transactions`: in the batches
    that write it. Here a batch has one call; under load calls share batches. `functions`, `modules` and `moves`: of the call and of what runs beside it."""

    in_call: int
    in_transactions: int
    functions: int
    modules: int
    moves: int

    def allow_early_looks(self, creations: Creations) -> "Bound":
        """The bound of a call that polled for its receipt too early, once or several times."""
        looks = creations.count_made("chain.responses.UnminedTransaction")
        return replace(self, in_call=self.in_call + looks * EARLY_LOOK)

    def check(self, creations: Creations, name: str) -> None:
        in_call, in_transactions = creations.sums
        assert in_call <= self.in_call, f"{name}: {self.in_call} in the call at most\n{creations.table}"
        assert in_transactions <= self.in_transactions, (
            f"{name}: {self.in_transactions} in its transactions at most\n{creations.table}"
        )
        entered = len(creations.functions), len(creations.modules), creations.moves
        allowed = self.functions, self.modules, self.moves
        assert all(map(operator.le, entered, allowed)), (
            f"{name}: functions, modules and moves are {allowed} at most\n{creations.table}"
        )


UNKNOWN = Bound(in_call=5, in_transactions=0, functions=37, modules=16, moves=60)
UNPAID = Bound(in_call=9, in_transactions=0, functions=81, modules=34, moves=80)
FREE = Bound(in_call=19, in_transactions=7, functions=224, modules=59, moves=280)
CREDIT_PLAIN = Bound(in_call=17, in_transactions=7, functions=225, modules=54, moves=280)
CREDIT_BOUND = Bound(in_call=21, in_transactions=8, functions=243, modules=57, moves=300)
AUTHORIZED = Bound(in_call=48, in_transactions=37, functions=650, modules=104, moves=1_100)

EARLY_LOOK = 5
"""Objects of one look for a receipt before the chain has mined it. The chain and the clock decide how often a call looks."""

OBJECTS = ObjectCounter()


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
async def served(cluster: Any, request: pytest.FixtureRequest) -> AsyncIterator[CountedGateway]:
    with OBJECTS.watching():
        async with run_counted_gateway(cluster, request.param) as gateway:
            yield gateway


async def count_least(
    served: CountedGateway,
    make_headers: Callable[[], Any],
    *,
    api_id: str | None = None,
    status: int = 200,
    finishes: int = 1,
) -> Creations:
    """Of several calls in sequence, the one with the fewest objects. Each is counted until its last write; its
    headers are signed before."""
    creations = []
    for _ in range(REPEATS):
        headers = make_headers()

        async def ask(headers: Any = headers) -> None:
            reply = await served.call(headers, api_id=api_id)
            assert reply.status == status, reply.body

        with OBJECTS.counting() as created:
            await served.count(ask, finishes=finishes)
        creations.append(created)
    # The two sums together: a call that polls early for its receipt may be the only one that compiles no statement.
    least = min(creations, key=lambda created: (sum(created.sums), len(created.functions)))
    print(least.table)
    return least


async def test_a_call_of_no_listing(served: CountedGateway) -> None:
    nowhere = "api_00000000000000000000000000"
    UNKNOWN.check(await count_least(served, tuple, api_id=nowhere, status=404, finishes=0), "no listing")


async def test_an_unpaid_call(served: CountedGateway) -> None:
    UNPAID.check(await count_least(served, tuple, status=402, finishes=0), "unpaid")


async def test_a_free_call(served: CountedGateway) -> None:
    FREE.check(await count_least(served, tuple, api_id=served.free_id), "free")


async def test_a_call_on_credit_by_a_plain_proof(served: CountedGateway) -> None:
    tx_hash = await served.pay(CALLS)
    CREDIT_PLAIN.check(await count_least(served, lambda: served.plain(tx_hash)), "plain proof")


async def test_a_call_on_credit_by_a_bound_proof(served: CountedGateway) -> None:
    tx_hash = await served.pay(CALLS)
    CREDIT_BOUND.check(await count_least(served, lambda: served.bound(tx_hash)), "bound proof")


async def test_an_authorized_call(served: CountedGateway) -> None:
    payer = AuthorizationPayer(
        cluster=served.cluster, gateway=served, api_id=served.api_id, signer=served.caller
    )
    quotes = [await payer.quote("/quote/ETH") for _ in range(REPEATS)]
    least = await count_least(served, lambda: [payer.show(quotes.pop(), V2)])
    AUTHORIZED.allow_early_looks(least).check(least, "authorization")
