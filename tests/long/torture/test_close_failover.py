"""PostgreSQL is restarted, or its standby takes over, between the upstream's heads and the closes of their calls.
Responses wait for the new server; those that cannot wait are dropped, and their callers have one repeat. No call is
paid twice or for nothing."""

from typing import Any

import pytest

from tests.kit.ports import find_low_port
from tests.kit.postgres_pair import run_pair
from tests.kit.storage_faults import ConcurrentCalls, open_faulty_gateways
from tests.kit.waits import until
from tollway.storage.engine.database import connect_database

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

BACK_S = 60.0


@pytest.mark.parametrize("patience_s", [BACK_S, 0.0], ids=["waits", "drops"])
@pytest.mark.parametrize("how", ["restart", "failover"])
async def test_a_server_replaced_between_head_and_close_loses_no_response(
    torture: Any, how: str, patience_s: float
) -> None:
    async with run_pair(find_low_port) as pair:
        await pair.replicate()
        database = connect_database(pair.url)

        async def trouble() -> None:
            await until(gateways[0].ledger._group_commit.has_late)  # the first try has failed
            if how == "restart":
                await pair.primary.start()
            else:
                pair.promote()

        try:
            async with open_faulty_gateways(
                database, ["one", "two"], close_patience_s=patience_s, retry_s=0.1
            ) as gateways:
                calls = ConcurrentCalls(gateways=gateways)
                await calls.prepare()
                end = pair.primary.stop if how == "restart" else pair.primary.kill
                answers = await calls.run_during(trouble, before=end)
                await calls.write_late_closes()
                dropped = await calls.retry_dropped(answers, at=1)
                assert (dropped == 0) is (patience_s > 0)
                await calls.check(dropped=dropped)
                torture.tell(calls=len(answers), dropped=dropped)
        finally:
            await database.close()
