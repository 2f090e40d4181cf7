"""Settlements in the group commit: one commit for many, lost answers, callers that leave, gateways that race."""

import asyncio
import re
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.util import await_only

from tests.kit.ledger_records import (
    NOW_MS,
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    transfer_in,
    tx_hash,
)
from tests.kit.storage_faults import FaultyLedger, once, start
from tests.kit.waits import DEADLINE_S, until
from tollway.errors import StorageUnavailable
from tollway.ids import Address
from tollway.ledger.ledger import AuthorizationTaken, Claimed, Closed, Fenced, NonceUnavailable, NotCovered
from tollway.ledger.records import CallState
from tollway.storage.engine.database import Database, connect_database
from tollway.storage.ledger.authorizations import find_known

SETTLED = Closed(remaining_units=None)


@pytest.fixture
def ledger(faulty_ledger: FaultyLedger) -> FaultyLedger:
    return faulty_ledger


async def opened(ledger: FaultyLedger, **fields: Any) -> Any:
    claim = authorized_claim(authorization_of(4), **fields)
    assert isinstance(await ledger.ledger.claim(claim), Claimed)
    return claim


async def settle(ledger: FaultyLedger, claim: Any, nonce: int = 0) -> Any:
    close = close_of(claim, CallState.SETTLING)
    return await ledger.ledger.settle(close, attempt=attempt_of(claim, nonce), digest=None)


async def settling(ledger: FaultyLedger, nonce: int = 0, **fields: Any) -> Any:
    claim = await opened(ledger, **fields)
    assert await settle(ledger, claim, nonce) == SETTLED
    return claim


async def conclude(ledger: FaultyLedger, claim: Any, name: str = "settled", **fields: Any) -> Any:
    options = {"epoch": 1, "transfer": transfer_in(name), "is_orphaned": False, "now_ms": NOW_MS}
    return await ledger.ledger.conclude(claim.call_id, **{**options, **fields})


async def states(ledger: FaultyLedger) -> list[str]:
    query = text("SELECT state FROM call ORDER BY created_ms")
    found: list[str] = await ledger.database.read(lambda c: list(c.execute(query).scalars()))
    return found


async def orphaned_ids(ledger: FaultyLedger) -> list[str]:
    return [one.call_id for one in await ledger.ledger.unsettled(limit=99)]


async def test_many_settlements_and_conclusions_share_a_commit_that_is_flushed(ledger: FaultyLedger) -> None:
    claims = [await opened(ledger) for _ in range(10)]
    ledger.sizes.clear()
    ledger.database.flushed.clear()
    await asyncio.gather(*(settle(ledger, claim, n) for n, claim in enumerate(claims)))
    await asyncio.gather(*(conclude(ledger, claim, f"tx {n % 3}") for n, claim in enumerate(claims)))
    assert (ledger.sizes, ledger.database.flushed) == ([10, 10], [True, True])
    assert await states(ledger) == ["consumed"] * 10
    values = [(await ledger.ledger.find_payments(tx_hash(f"tx {n}")))[0].value_units for n in range(3)]
    assert values == [16, 12, 12]


async def test_claims_settlements_and_conclusions_of_one_batch_see_each_other(ledger: FaultyLedger) -> None:
    running, ending = await opened(ledger), await settling(ledger)
    late = authorized_claim(authorization_of(4), balance_units=11)
    begun = ledger.database.begun
    ledger.database.before.clear()
    plug = start(ledger.ledger.claim(claim_on(None)))
    await until(lambda: ledger.database.begun > begun)
    jobs = [
        start(settle(ledger, running, 1)),
        start(conclude(ledger, ending)),
        start(ledger.ledger.claim(late)),
    ]
    await asyncio.sleep(0)
    ledger.database.before.set()
    outcomes = await asyncio.gather(*jobs)
    await plug
    assert ledger.sizes[-1] == 3
    assert outcomes == [SETTLED, CallState.CONSUMED, NotCovered(held_units=8)]


async def test_a_settlement_with_a_lost_answer_is_read_and_not_repeated(ledger: FaultyLedger) -> None:
    claims = [await opened(ledger) for _ in range(3)]
    ledger.database.fail_after = once()
    outcomes = await asyncio.gather(
        settle(ledger, claims[0], 0), settle(ledger, claims[1], 1), settle(ledger, claims[2], 7)
    )
    assert outcomes == [SETTLED, SETTLED, NonceUnavailable(next_nonce=2)]
    assert await states(ledger) == ["settling", "settling", "forwarding"]
    assert len(await ledger.ledger.attempts_of(claims[0].call_id)) == 1
    assert await ledger.ledger.recover(now_ms=NOW_MS) == 0


async def test_a_settlement_that_lost_its_answer_is_not_taken_for_another(ledger: FaultyLedger) -> None:
    """The call settles with one transaction; a transaction that was not stored must not be broadcast."""
    claim = await settling(ledger)
    ledger.database.fail_before = once()
    assert await settle(ledger, claim, 1) == Fenced()


@pytest.mark.parametrize("name", ["settled", None])
async def test_a_conclude_with_a_lost_answer_is_read_and_not_repeated(
    ledger: FaultyLedger, name: str | None
) -> None:
    claim = await settling(ledger)
    transfer = None if name is None else transfer_in(name)
    ends = CallState.RELEASED if transfer is None else CallState.CONSUMED
    ledger.database.fail_after = once()
    assert await conclude(ledger, claim, transfer=transfer) is ends
    payments = await ledger.ledger.find_payments(tx_hash("settled"))
    assert [one.value_units for one in payments] == ([] if transfer is None else [4])
    ledger.database.fail_before = once()
    assert await conclude(ledger, claim, "another") is None


async def test_a_claim_with_a_lost_answer_is_read_and_not_repeated(ledger: FaultyLedger) -> None:
    claims = [authorized_claim(authorization_of(4), balance_units=8) for _ in range(3)]
    ledger.database.fail_after = once()
    outcomes = await asyncio.gather(*(ledger.ledger.claim(claim) for claim in claims))
    assert [type(one) for one in outcomes] == [Claimed, Claimed, NotCovered]
    assert await states(ledger) == ["forwarding"] * 2


async def test_one_bad_settlement_does_not_fail_the_others(ledger: FaultyLedger) -> None:
    first, second, third = [await opened(ledger) for _ in range(3)]
    await settle(ledger, first)
    twin = attempt_of(second, 1, f"{first.call_id} 0")  # the hash of the transaction of another call
    close = close_of(second, CallState.SETTLING)
    outcomes = await asyncio.gather(
        ledger.ledger.settle(close, attempt=twin, digest=None),
        settle(ledger, third, 1),
        conclude(ledger, first),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], StorageUnavailable)
    assert outcomes[1:] == [SETTLED, CallState.CONSUMED]
    await ledger.ledger.recover(now_ms=NOW_MS)
    assert await states(ledger) == ["consumed", "unknown", "settling"]


# Calls without a waiting caller


@pytest.mark.parametrize("gate", ["before", "after"])
async def test_a_settlement_of_a_caller_that_left_is_orphaned_soon(ledger: FaultyLedger, gate: str) -> None:
    claim = await opened(ledger)
    getattr(ledger.database, gate).clear()
    begun = ledger.database.begun
    job = start(settle(ledger, claim))
    await until(lambda: ledger.database.begun > begun)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    getattr(ledger.database, gate).set()
    await ledger.ledger.claim(claim_on(None))
    assert (await states(ledger))[0] == "settling"
    assert await orphaned_ids(ledger) == []
    assert await ledger.ledger.recover(now_ms=NOW_MS) == 1
    assert await orphaned_ids(ledger) == [claim.call_id]


async def test_a_settlement_of_unknown_outcome_is_marked_orphaned_by_its_caller(ledger: FaultyLedger) -> None:
    claim = await opened(ledger)
    ledger.database.fail_after = ledger.disconnect_after_commit
    with pytest.raises(StorageUnavailable):
        await settle(ledger, claim)
    with pytest.raises(StorageUnavailable):
        await ledger.ledger.mark_orphaned(claim.call_id, epoch=1)
    ledger.reconnect()
    assert await states(ledger) == ["settling"]
    await ledger.ledger.wait_closed(timeout_s=60)
    assert await ledger.ledger.recover(now_ms=NOW_MS) == 1
    assert await orphaned_ids(ledger) == [claim.call_id]


async def test_a_settlement_whose_caller_left_before_it_was_written_moves_nothing(
    ledger: FaultyLedger,
) -> None:
    claim = await opened(ledger)
    job = start(settle(ledger, claim))
    await asyncio.sleep(0)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    await ledger.ledger.claim(claim_on(None))
    assert (await states(ledger))[0] == "unknown"
    assert await ledger.ledger.attempts_of(claim.call_id) == ()


async def test_a_settlement_that_was_not_written_has_no_other_end_than_unknown(ledger: FaultyLedger) -> None:
    """Its response was dropped when its caller got the failure."""
    claim = await opened(ledger)
    ledger.database.is_away = True
    with pytest.raises(StorageUnavailable):
        await settle(ledger, claim)
    ledger.reconnect()
    with pytest.raises(StorageUnavailable):  # it waits behind the late end, which is written first
        await ledger.ledger.close(close_of(claim, CallState.RELEASED))
    assert await ledger.ledger.close(close_of(claim, CallState.RELEASED)) == Fenced()
    assert await states(ledger) == ["unknown"]


async def test_a_settlement_that_was_not_written_and_is_given_up_becomes_unknown(
    ledger: FaultyLedger,
) -> None:
    claim = await opened(ledger)
    ledger.database.is_away = True
    with pytest.raises(StorageUnavailable):
        await settle(ledger, claim)
    ledger.reconnect()
    assert await ledger.ledger.mark_orphaned(claim.call_id, epoch=1) is False
    assert await ledger.ledger.recover(now_ms=NOW_MS) == 0  # it was written before recovery ran
    assert await states(ledger) == ["unknown"]


async def test_a_conclude_without_a_database_leaves_the_call_to_settlement_recovery(
    ledger: FaultyLedger,
) -> None:
    claim = await settling(ledger)
    ledger.database.is_away = True
    with pytest.raises(StorageUnavailable):
        await conclude(ledger, claim)
    ledger.reconnect()
    assert await ledger.ledger.recover(now_ms=NOW_MS) == 1
    assert await orphaned_ids(ledger) == [claim.call_id]
    assert await conclude(ledger, claim, is_orphaned=True) is CallState.CONSUMED
    assert (await ledger.ledger.find_authorized_call(claim.authorization.key)).is_lost


async def test_the_shutdown_waits_for_settlements_but_not_for_orphaned_ones(ledger: FaultyLedger) -> None:
    first, second = await settling(ledger, 0), await settling(ledger, 1)
    waiting = start(ledger.ledger.wait_closed(timeout_s=60))
    await conclude(ledger, first)
    assert not waiting.done()
    await ledger.ledger.mark_orphaned(second.call_id, epoch=1)
    await waiting


async def test_settlements_are_written_while_the_ledger_stops(ledger: FaultyLedger) -> None:
    claim = await opened(ledger)
    begun = ledger.database.begun
    ledger.database.before.clear()
    plug = start(ledger.ledger.claim(claim_on(None)))
    await until(lambda: ledger.database.begun > begun)
    ledger.ledger.stop()
    job = start(settle(ledger, claim))
    await asyncio.sleep(0)
    ledger.database.before.set()
    assert await job == SETTLED
    await plug


async def test_the_settlements_of_another_stopped_gateway_are_orphaned(database: Database) -> None:
    dead, living = FaultyLedger(database, "dead"), FaultyLedger(database, "living")
    for one in (dead, living):
        await one.ledger.renew_ownership(now_ms=NOW_MS)
    claim = await settling(dead)
    await dead.close()
    if database.dialect == "postgresql":  # there a lease must end first; the contract of recovery tests that
        await database.write(
            lambda c: c.execute(text("UPDATE gateway_owner SET seen_ms = 0 WHERE id = 'dead'"))
        )
        living.ledger._lease._steady_from_ms = 0
    assert await living.ledger.recover(now_ms=NOW_MS) == 1
    assert await orphaned_ids(living) == [claim.call_id]
    await living.close()


# Gateways that race


async def test_fifty_authorisations_at_two_gateways_buy_what_the_balance_covers(
    pair: list[FaultyLedger],
) -> None:
    for number in range(4):
        payer = Address(bytes([number + 1]) * 20)
        claims = [authorized_claim(authorization_of(10, payer=payer), balance_units=79) for _ in range(50)]
        outcomes = await asyncio.gather(*(pair[n % 2].ledger.claim(claim) for n, claim in enumerate(claims)))
        kinds = [type(one) for one in outcomes]
        assert (kinds.count(Claimed), kinds.count(NotCovered)) == (7, 43)


async def test_one_authorisation_at_two_gateways_opens_one_call(pair: list[FaultyLedger]) -> None:
    for _ in range(4):
        authorization = authorization_of(10)
        outcomes = await asyncio.gather(
            *(ledger.ledger.claim(authorized_claim(authorization)) for ledger in pair * 25)
        )
        kinds = [type(one) for one in outcomes]
        assert (kinds.count(Claimed), kinds.count(AuthorizationTaken)) == (1, 49)


async def test_two_gateways_with_one_signer_take_every_nonce_once(pair: list[FaultyLedger]) -> None:
    """All gateways of a database share a gas key; the later one reads the next nonce again."""

    async def settle_some(ledger: FaultyLedger) -> None:
        for _ in range(10):
            claim, nonce = await opened(ledger), 0
            while isinstance(outcome := await settle(ledger, claim, nonce), NonceUnavailable):
                nonce = outcome.next_nonce
            assert outcome == SETTLED

    await asyncio.gather(*(settle_some(ledger) for ledger in pair * 2))
    query = text("SELECT nonce FROM settlement_attempt ORDER BY nonce")
    nonces = await pair[0].database.read(lambda c: list(c.execute(query).scalars()))
    assert nonces == list(range(40))


async def test_two_gateways_conclude_into_one_payment_without_loss(pair: list[FaultyLedger]) -> None:
    settled = [(ledger, await settling(ledger, n)) for n, ledger in enumerate(pair * 8)]
    done = await asyncio.gather(*(conclude(ledger, claim) for ledger, claim in settled))
    assert done == [CallState.CONSUMED] * 16
    (payment,) = await pair[0].ledger.find_payments(tx_hash("settled"))
    assert (payment.value_units, payment.taken_units, payment.calls) == (64, 64, 16)


async def test_claims_at_one_gateway_and_conclusions_at_another_never_overspend(
    pair: list[FaultyLedger],
) -> None:
    """The balance was 40 in block 100; ten settlements of 4 leave it in block 101."""
    running = [await settling(pair[0], n) for n in range(10)]
    fresh = [authorized_claim(authorization_of(4), balance_units=40) for _ in range(10)]
    outcomes = await asyncio.gather(
        *(conclude(pair[0], claim) for claim in running),
        *(pair[1].ledger.claim(claim) for claim in fresh),
    )
    assert outcomes[10:] == [NotCovered(held_units=40)] * 10


class Barrier:
    """Stops the n-th statement of a kind until the test continues it."""

    def __init__(self, database: Any, kind: str, *, stop_before: int = 1) -> None:
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.begun = 0
        self._engine = database._engine.sync_engine
        self._kind = re.compile(kind, re.DOTALL)
        self._stop_before = stop_before

    def __enter__(self) -> "Barrier":
        event.listen(self._engine, "before_cursor_execute", self._pause)
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        event.remove(self._engine, "before_cursor_execute", self._pause)

    def _pause(self, _connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if not self._kind.search(sql):
            return
        self.begun += 1
        if self.begun == self._stop_before:
            self.reached.set()
            await_only(self.go_on.wait())


@pytest.mark.postgres
@pytest.mark.parametrize("stop_before", [1, 2, 3])
async def test_what_is_concluded_while_another_gateway_decides_counts(
    postgres_url: str, stop_before: int
) -> None:
    """The balance was 4 in block 100, and leaves it in block 101. On PostgreSQL each statement of a claim sees the
    commits before its beginning, so the conclusion commits before each of the statements that search for counting
    authorisations."""
    database = connect_database(postgres_url)
    desks = [FaultyLedger(database, "one"), FaultyLedger(database, "two")]
    try:
        ending = await settling(desks[0])
        kind = "base_units, call.state, call.price_units"
        with Barrier(database, kind, stop_before=stop_before) as searches:
            claiming = start(desks[1].ledger.claim(authorized_claim(authorization_of(4), balance_units=4)))
            async with asyncio.timeout(DEADLINE_S):
                await searches.reached.wait()
            assert await conclude(desks[0], ending) is CallState.CONSUMED
            searches.go_on.set()
            assert await claiming == NotCovered(held_units=4)
        assert searches.begun == 3
    finally:
        for ledger in desks:
            await ledger.close()
        await database.close()


@pytest.mark.postgres
async def test_a_conclude_that_read_the_call_before_it_was_unknown_is_tried_again(
    postgres_url: str,
) -> None:
    """The conclude has prepared no payment, and the transfer must not be lost."""
    database = connect_database(postgres_url)
    desks = [FaultyLedger(database, "one"), FaultyLedger(database, "two")]
    try:
        claim = await opened(desks[0])
        with Barrier(database, "FROM call.*FOR UPDATE") as locks:
            concluding = start(conclude(desks[1], claim, is_orphaned=True))
            async with asyncio.timeout(DEADLINE_S):
                await locks.reached.wait()
            await desks[0].ledger.close(close_of(claim, CallState.UNKNOWN))
            locks.go_on.set()
            assert await concluding is None
        assert await states(desks[0]) == ["unknown"]
        assert await conclude(desks[1], claim, is_orphaned=True) is CallState.CONSUMED
    finally:
        for ledger in desks:
            await ledger.close()
        await database.close()


async def test_a_claim_on_one_chain_does_not_load_the_history_of_another(
    database: Database, ledger: FaultyLedger
) -> None:
    """The block numbers of two chains are unrelated."""
    for nonce in range(20):
        claim = await settling(ledger, nonce, block_number=300_000_000)
        await conclude(ledger, claim, f"tx {nonce}", transfer=transfer_in(block_number=300_000_001))
    far = authorized_claim(authorization_of(4), block_number=300_000_001)
    near = authorized_claim(authorization_of(4, chain_id=1), block_number=20_000_000)
    assert await database.read(lambda c: find_known(c, [far, near])) == []
    stale = authorized_claim(authorization_of(4), block_number=300_000_000)
    assert len(await database.read(lambda c: find_known(c, [near, far, stale]))) == 20


async def test_settlement_recovery_and_a_gateway_that_gives_up_conclude_once(
    pair: list[FaultyLedger],
) -> None:
    for number in range(5):
        claim, name = await settling(pair[0], number, method="POST"), f"tx {number}"
        await asyncio.gather(
            pair[0].ledger.mark_orphaned(claim.call_id, epoch=1),
            conclude(pair[0], claim, name),
            *(conclude(ledger, claim, name, is_orphaned=True) for ledger in pair * 2),
        )
        await conclude(pair[1], claim, name, is_orphaned=True)
        (payment,) = await pair[0].ledger.find_payments(tx_hash(name))
        assert payment.value_units == 4


async def test_the_audit_finds_an_authorised_call_that_took_without_paying(
    database: Database, ledger: FaultyLedger
) -> None:
    claim = await settling(ledger)
    for wrong in ("state = 'consumed'", "taken_units = 1"):
        await database.write(
            lambda c, wrong=wrong: c.execute(text(f"UPDATE call SET {wrong} WHERE id = '{claim.call_id}'"))
        )
        assert len((await ledger.ledger.audit()).wrong) == 1
        await database.write(lambda c: c.execute(text("UPDATE call SET state = 'settling', taken_units = 0")))
