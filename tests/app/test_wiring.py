"""What runs beside the calls: the gas tank looks, the follower follows, the sweeper finishes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.kit.payer import CHAIN, USDC
from tests.kit.settlement import LISTING, SettlementHarness, make_gas_key
from tests.kit.waits import DEADLINE_S, until
from tollway.app.asgi_wiring import make_mpp_challenger
from tollway.app.observation import make_settlement_metrics
from tollway.app.runtime import BackgroundTaskGroup
from tollway.app.wiring import SettlementServices
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, CallId
from tollway.ledger.ledger import StoredResponse
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.observability.background import BackgroundTasks
from tollway.observability.telemetry import Metrics
from tollway.payments.gas import NO_METRICS, SettlementMetrics
from tollway.payments.settlement import Settled, Undecided
from tollway.rate_limits.limiter import RateLimiter
from tollway.storage.engine.database import SqliteDatabase
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.leadership import Duty, Leadership
from tollway.storage.engine.migrate import upgrade

LIMITS = replace(DEFAULT_LIMITS, sweep_interval_s=0.01, gas_refresh_s=0.05)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(tmp_path / "books.sqlite3")
    await database.open()
    await upgrade(database)
    yield database
    await database.close()


def treasury_of(
    harness: SettlementHarness,
    database: SqliteDatabase,
    *,
    metrics: SettlementMetrics = NO_METRICS,
    now_ms: Callable[[], int] | None = None,
) -> SettlementServices:
    return SettlementServices(
        database=database,
        sealer=Sealer(b"k" * 32, entropy=bytes),
        ledger=harness.ledger,
        gas_ledger=harness.gas,
        chains=harness.chain,
        rules=harness.rules,
        settlement_rules={CHAIN: harness.settlement_rules},
        limits=LIMITS,
        now_ms=now_ms or harness.read_clock,
        rate_limiter=RateLimiter(),
        background=BackgroundTasks(),
        metrics=metrics,
    )


def recovery_leadership(database: SqliteDatabase) -> Leadership:
    return Leadership(database, duty=Duty.SWEEPER, limits=LIMITS, on_change=lambda duty, is_leading: None)


async def test_the_sweeper_looks_again_and_again(database: SqliteDatabase) -> None:
    async with SettlementHarness() as harness:
        call = await harness.claim()
        harness.chain.disconnect(CHAIN)
        assert await harness.settlement.settle(call.order()) == Undecided()
        await call.mark_orphaned()
        settlement_services = treasury_of(harness, database)
        await settlement_services.open()
        async with BackgroundTaskGroup() as tasks:
            settlement_services.start(tasks, recovery_leadership=recovery_leadership(database))
            looks = harness.chain.request_count
            await until(lambda: harness.chain.request_count >= looks + 3)
            harness.chain.reconnect(CHAIN)
            async with asyncio.timeout(DEADLINE_S):
                while await call.read_state() is not CallState.CONSUMED:
                    await asyncio.sleep(0.001)
        await settlement_services.close()


async def test_stored_answers_go_when_the_clock_that_all_gateways_share_says_so(
    database: SqliteDatabase,
) -> None:
    """One whose own clock is a week ahead must not throw away what the others keep."""
    async with SettlementHarness() as harness:
        settlement_services = treasury_of(
            harness, database, now_ms=lambda: harness.read_clock() + 7 * 86_400_000
        )
        call_id, answer = CallId("call_1"), StoredResponse(status=200, headers=(), body=b"kept")
        await settlement_services.stored_responses.keep(
            call_id,
            answer,
            payer=Address(b"\x01" * 20),
            provider=Address(b"\x02" * 20),
            now_ms=harness.ledger.shared_ms(),
        )
        await settlement_services._prune()
        assert (
            await settlement_services.stored_responses.find(call_id, now_ms=harness.ledger.shared_ms())
            == answer
        )


async def test_what_settles_is_counted(database: SqliteDatabase) -> None:
    metrics = Metrics(CollectorRegistry())
    async with SettlementHarness() as harness:
        settlement_services = treasury_of(harness, database, metrics=make_settlement_metrics(metrics))
        await settlement_services.open()
        async with BackgroundTaskGroup() as tasks:
            settlement_services.start(tasks, recovery_leadership=recovery_leadership(database))
            call = await harness.claim()
            assert isinstance(await settlement_services.settlement.settle(call.order()), Settled)
        await settlement_services.close()
    text = generate_latest(metrics.registry).decode()
    key = f'key="{make_gas_key().address}",network="eip155:84532"'
    for line in (
        'tollway_settlements_total{network="eip155:84532",outcome="settled"} 1.0',
        'tollway_settlement_duration_seconds_count{network="eip155:84532"} 1.0',
        f"tollway_gas_key_balance_wei{{{key}}}",
        f"tollway_gas_lane_length{{{key}}}",
        'tollway_rails_withdrawn{network="eip155:84532",reason="gas_keys_low"} 0.0',
    ):
        assert line in text


async def test_it_offers_and_settles_once_it_runs(database: SqliteDatabase) -> None:
    async with SettlementHarness() as harness:
        settlement_services = treasury_of(harness, database)
        assert not settlement_services.settlement.is_offered(USDC, 10_000, LISTING)
        await settlement_services.open()
        async with BackgroundTaskGroup() as tasks:
            settlement_services.start(tasks, recovery_leadership=recovery_leadership(database))
            await until(lambda: settlement_services.settlement.is_offered(USDC, 10_000, LISTING))
            call = await harness.claim()
            assert isinstance(await settlement_services.settlement.settle(call.order()), Settled)
        await settlement_services.close()


def test_gateways_of_one_url_and_one_key_know_each_others_challenges() -> None:
    here = parse_origin("https://gw.example.com")
    there = parse_origin("https://other.example.com")
    assert make_mpp_challenger([b"k" * 32], here) == make_mpp_challenger([b"k" * 32], here)
    assert make_mpp_challenger([b"k" * 32], here) != make_mpp_challenger([b"k" * 32], there)
    assert make_mpp_challenger([b"k" * 32], here) != make_mpp_challenger([b"j" * 32], here)


@pytest.mark.process
def test_the_first_key_makes_challenges_and_all_recognise_them() -> None:
    origin = parse_origin("https://gw.example.com")
    old, new = b"k" * 32, b"j" * 32
    changing = make_mpp_challenger([new, old], origin)
    assert changing.secret == make_mpp_challenger([new], origin).secret
    assert changing.other_secrets == (make_mpp_challenger([old], origin).secret,)
