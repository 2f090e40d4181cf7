"""How many objects of our classes one call makes, and how many functions of ours it enters, on each rail and both databases, with a whole gateway
behind its server, its writer and its background tasks.

A bound is what a call makes today (`tests/kit/object_counter.py` says what counts). Fewer is an improvement: lower
the number. The table of a failure names every class and every line that makes an instance of it.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.authorization_payer import V2, AuthorizationPayer
from tests.kit.counted_gateway import CountedGateway, run_counted_gateway
from tests.kit.object_counter import Creations, ObjectCounter

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPEATS = 8
"""The first calls of a process fill its caches, and what a gateway does by the clock may fall into any of them: of each measure, the least counts."""
CALLS = REPEATS * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most of each measure in one call. `in_call`: objects made outside of transactions; `in_transactions`: in the batches
    that write it. Here a batch has one call; under load calls share batches. `functions`, `modules` and `moves`: of the call and of what runs beside it."""

    in_call: int
    in_transactions: int
    functions: int
    modules: int
    moves: int

    def check(self, creations: list[Creations], name: str) -> None:
        for measure in fields(self):
            most = getattr(self, measure.name)
            least, found = min(
                ((measures_of(one)[measure.name], one) for one in creations), key=itemgetter(0)
            )
            assert least <= most, f"{name}: {least} {measure.name}, {most} at most\n{found.table}"


def measures_of(creations: Creations) -> dict[str, int]:
    in_call, in_transactions = creations.sums
    return {
        "in_call": in_call,
        "in_transactions": in_transactions,
        "functions": len(creations.functions),
        "modules": len(creations.modules),
        "moves": creations.moves,
    }


UNKNOWN = Bound(in_call=5, in_transactions=0, functions=37, modules=16, moves=28)
UNPAID = Bound(in_call=9, in_transactions=0, functions=81, modules=34, moves=63)
FREE = Bound(in_call=19, in_transactions=5, functions=201, modules=58, moves=200)
CREDIT_PLAIN = Bound(in_call=17, in_transactions=5, functions=200, modules=51, moves=197)
CREDIT_BOUND = Bound(in_call=21, in_transactions=6, functions=218, modules=54, moves=213)
AUTHORIZED = Bound(in_call=48, in_transactions=34, functions=575, modules=101, moves=660)

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


async def count_calls(
    served: CountedGateway,
    make_headers: Callable[[], Any],
    *,
    api_id: str | None = None,
    status: int = 200,
    finishes: int = 1,
) -> list[Creations]:
    """Several calls in sequence. Each is counted until its last write; its headers are signed before."""
    creations = []
    for _ in range(REPEATS):
        headers = make_headers()

        async def ask(headers: Any = headers) -> None:
            reply = await served.call(headers, api_id=api_id)
            assert reply.status == status, reply.body

        with OBJECTS.counting() as created:
            await served.count(ask, finishes=finishes)
        creations.append(created)
    print(*map(measures_of, creations), creations[-1].table, sep="\n")
    return creations


async def test_a_call_of_no_listing(served: CountedGateway) -> None:
    nowhere = "api_00000000000000000000000000"
    UNKNOWN.check(await count_calls(served, tuple, api_id=nowhere, status=404, finishes=0), "no listing")


async def test_an_unpaid_call(served: CountedGateway) -> None:
    UNPAID.check(await count_calls(served, tuple, status=402, finishes=0), "unpaid")


async def test_a_free_call(served: CountedGateway) -> None:
    FREE.check(await count_calls(served, tuple, api_id=served.free_id), "free")


async def test_a_call_on_credit_by_a_plain_proof(served: CountedGateway) -> None:
    tx_hash = await served.pay(CALLS)
    CREDIT_PLAIN.check(await count_calls(served, lambda: served.plain(tx_hash)), "plain proof")


async def test_a_call_on_credit_by_a_bound_proof(served: CountedGateway) -> None:
    tx_hash = await served.pay(CALLS)
    CREDIT_BOUND.check(await count_calls(served, lambda: served.bound(tx_hash)), "bound proof")


async def test_an_authorized_call(served: CountedGateway) -> None:
    payer = AuthorizationPayer(
        cluster=served.cluster, gateway=served, api_id=served.api_id, signer=served.caller
    )
    quotes = [await payer.quote("/quote/ETH") for _ in range(REPEATS)]
    AUTHORIZED.check(await count_calls(served, lambda: [payer.show(quotes.pop(), V2)]), "authorization")
