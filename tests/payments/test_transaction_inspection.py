"""A look at one transaction: every chain is read anew, the ledger is compared, and nothing changes."""

import asyncio
from typing import Any

import pytest

from tests.kit.narrowing import of_type
from tests.payments.conftest import MAIN, SECOND, TEST, TOKEN
from tollway.chain.port import ChainFacts, NotMined
from tollway.errors import ChainUnavailable, Code, Refusal
from tollway.ids import TxHash
from tollway.ledger.records import Payment
from tollway.payments.transaction_inspection import TransactionInspector, list_transfers, recheck
from tollway.payments.transaction_rules import NoLongerPays, NotCanonical, StillPays

READER = "operator alice@gw-1"


@pytest.fixture
def inspector(harness: Any) -> TransactionInspector:
    lookup = harness.transaction_verifier.lookup
    return TransactionInspector(lookup, harness.ledger, rules=harness.rules, quota=harness.quota)


async def record(harness: Any, tx_hash: TxHash) -> Payment:
    found: Payment = (await harness.find_spendable(harness.proof(tx_hash)))[0].payment
    return found


async def test_every_chain_is_read_and_each_that_is_away_says_so(
    harness: Any, inspector: TransactionInspector
) -> None:
    tx_hash = harness.pay()
    harness.chain.disconnect(SECOND)
    found = await inspector.inspect(tx_hash, reader=READER)
    facts = of_type(ChainFacts, found.answers[MAIN])
    assert facts.tx_hash == tx_hash
    assert isinstance(found.answers[SECOND], ChainUnavailable)
    assert found.answers[TEST] == NotMined(chain_id=TEST, is_pending=False)
    assert found.recorded.payments == ()


async def test_a_look_is_charged_once_and_bounded(harness: Any, inspector: TransactionInspector) -> None:
    await inspector.inspect(harness.hash(), reader=READER)
    assert harness.quota.charged == [(READER, READER)]
    assert harness.quota.given_back == []
    harness.quota.left = 0
    asked = harness.chain.request_count
    with pytest.raises(Refusal) as refused:
        await inspector.inspect(harness.hash(), reader=READER)
    assert refused.value.problem.code is Code.RATE_LIMITED
    assert harness.chain.request_count == asked


async def test_a_look_shares_the_read_of_the_verifier(harness: Any, inspector: TransactionInspector) -> None:
    tx_hash = harness.pay()
    harness.chain.barrier = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(inspector.inspect(tx_hash, reader=READER)) for _ in range(5)]
        for _ in range(10):
            await asyncio.sleep(0)
        harness.chain.barrier.set()
    assert len({look.result().answers[MAIN].block_hash for look in looks}) == 1  # type: ignore[union-attr]
    assert harness.chain.request_count == len(harness.rules)


async def test_a_look_records_and_changes_nothing(harness: Any, inspector: TransactionInspector) -> None:
    unrecorded = harness.pay()
    await inspector.inspect(unrecorded, reader=READER)
    assert (await harness.ledger.find_transaction(unrecorded)).payments == ()
    tx_hash = harness.pay(units=20_000)
    payment = await record(harness, tx_hash)
    harness.chain.reorg(MAIN, 2)
    await inspector.inspect(tx_hash, reader=READER)
    assert (await harness.ledger.find_transaction(tx_hash)).payments == (payment,)


async def test_a_recorded_payment_is_compared_with_its_chain(
    harness: Any, inspector: TransactionInspector
) -> None:
    tx_hash = harness.pay(units=20_000, depth=3)
    payment = await record(harness, tx_hash)

    async def look() -> StillPays | NotCanonical | NoLongerPays | None:
        return recheck(await inspector.inspect(tx_hash, reader=READER), payment, harness.rules)

    still = of_type(StillPays, await look())
    assert (still.payment.value_units, still.is_deep) == (20_000, True)
    harness.chain.disconnect(MAIN)
    assert await look() is None
    harness.chain.reconnect(MAIN)
    harness.chain.reorg(MAIN, 3)
    assert await look() == NoLongerPays(reason="not_mined")


async def test_transfers_are_those_of_the_currencies_of_the_gateway(
    harness: Any, inspector: TransactionInspector
) -> None:
    caller, thief, provider = (one.address for one in (harness.caller, harness.thief, harness.provider))
    logs = (harness.transfer(caller, 7), harness.transfer(thief, 9))
    tx_hash = harness.mine(*logs, recipient=provider, value=5)
    facts = of_type(ChainFacts, (await inspector.inspect(tx_hash, reader=READER)).answers[MAIN])
    found = list_transfers(facts, harness.rules[MAIN])
    assert [(one.asset.token, one.sender, one.recipient, one.base_units) for one in found] == [
        (TOKEN, caller, provider, 7),
        (TOKEN, thief, provider, 9),
        (None, caller, provider, 5),
    ]
    failed = harness.mine(*logs, recipient=provider, value=5, succeeded=False)
    facts = of_type(ChainFacts, (await inspector.inspect(failed, reader=READER)).answers[MAIN])
    assert list_transfers(facts, harness.rules[MAIN]) == ()
