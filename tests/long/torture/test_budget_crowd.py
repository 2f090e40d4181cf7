"""Two gateways on one database, and the claims of one bound wallet at once, while its owner changes the policy: no day is overspent, whatever becomes of the calls."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.budget_crowd import run_crowd
from tests.kit.databases import open_database

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    async with open_database(url) as it:
        yield it


async def test_a_thousand_parallel_claims_never_overspend_a_day(torture: Any, database: Any) -> None:
    calls = torture.pick(short=1_000, long=10_000)
    crowd = await run_crowd(database, calls=calls, seed=torture.seed)
    assert crowd.overspent == []
    assert crowd.granted
    assert crowd.refused
    assert crowd.counted_units == crowd.total_units
    torture.tell(claims=calls, granted=crowd.granted, refused=crowd.refused, overspent=0)
