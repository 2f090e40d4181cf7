"""Traces of settlements: what a sampled call counts while it waits, and the traces of recovery, which a check that changes nothing does not have."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from tests.kit.payer import CHAIN
from tests.kit.settlement import HASTY, SettlementHarness
from tests.kit.waits import until
from tests.observability.test_call_trace import Sink, make_sampler
from tollway.chain.port import SendFault, SendRefused
from tollway.ids import Address, format_network
from tollway.ledger.records import CallState
from tollway.observability.call_trace import FinishedTrace

ELSEWHERE = Address(b"\xee" * 20)


class TracedSettlement(SettlementHarness):
    def __init__(self, *, ratio: float = 1.0, settle_wait_s: float = HASTY.settle_wait_s) -> None:
        self.sink = Sink()
        self.sampler = make_sampler(self.sink, ratio=ratio)
        super().__init__(limits=replace(HASTY, settle_wait_s=settle_wait_s), traces=self.sampler)
        self.chain.is_automining = False

    async def sweep_traced(self) -> list[FinishedTrace]:
        """The traces of one round."""
        before = len(self.sink.traces)
        await self.sweep()
        return self.sink.traces[before:]


@pytest.fixture
async def harness() -> AsyncIterator[TracedSettlement]:
    async with TracedSettlement() as harness:
        yield harness


async def test_recovery_says_how_it_ended_the_call(harness: TracedSettlement) -> None:
    call = await harness.leave_orphaned()
    assert await harness.sweep_traced() == []  # it only waits
    call.land(payee=ELSEWHERE)
    (trace,) = await harness.sweep_traced()
    assert await call.read_state() is CallState.RELEASED
    root = trace.spans[0]
    assert (root.name, root.kind, root.parent_id) == ("tollway.settlement_recovery", "internal", None)
    assert root.attributes == {
        "tollway.call.id": call.claim.call_id,
        "tollway.listing.id": "api_1",
        "tollway.network": format_network(CHAIN),
        "tollway.outcome": "released",
        "tollway.settle.attempts": 1,
        "tollway.settle.fee_bumps": 0,
    }


async def test_recovery_says_that_it_sent_a_transaction_and_counts_replacements(
    harness: TracedSettlement,
) -> None:
    call = await harness.claim(harness.payer(valid_before=harness.now_ms // 1000 + 3_600))
    harness.chain.disconnect(CHAIN)
    await call.leave_orphaned()
    assert await harness.sweep_traced() == []  # the chain is away: tried again
    harness.chain.reconnect(CHAIN)
    harness.chain.refuse_sends(CHAIN, SendRefused(fault=SendFault.OTHER, reason="busy"))
    with capture_logs(processors=[merge_contextvars]) as logs:
        (sent,) = await harness.sweep_traced()
    harness.chain.refuse_sends(CHAIN, None)
    assert {line.get("trace_id") for line in logs} == {sent.trace_id}
    with capture_logs(processors=[merge_contextvars]) as logs:
        assert await harness.sweep_traced() == []
    assert all("trace_id" not in line for line in logs)  # it would name a trace that does not exist
    assert sent.spans[0].attributes["tollway.outcome"] == "sent"
    harness.pass_time(harness.limits.fee_bump_after_s)
    await harness.gas_budget.refresh()
    assert await harness.sweep_traced() == []
    harness.chain.mine_sent(CHAIN)
    with capture_logs(processors=[merge_contextvars]) as logs:
        (ended,) = await harness.sweep_traced()
    found = ended.spans[0].attributes
    assert (found["tollway.outcome"], found["tollway.settle.attempts"]) == ("consumed", 1)
    assert found["tollway.settle.fee_bumps"] == 1
    (line,) = [line for line in logs if line["event"] == "settlement_swept"]
    assert line["trace_id"] == ended.trace_id


async def test_a_defect_of_recovery_is_an_error_of_its_trace(harness: TracedSettlement) -> None:
    call = await harness.leave_orphaned()

    async def fail(call_id: object) -> object:
        raise RuntimeError("a bug")

    harness.gas.attempts_of = fail  # type: ignore[method-assign,assignment]  # the fake's own hook
    (trace,) = await harness.sweep_traced()
    assert trace.spans[0].is_error
    assert trace.spans[0].attributes["tollway.outcome"] == "failed"
    assert trace.spans[0].attributes["tollway.call.id"] == call.claim.call_id


async def test_a_call_that_is_not_sampled_has_no_trace_of_recovery() -> None:
    async with TracedSettlement(ratio=0.0) as harness:
        call = await harness.leave_orphaned()
        harness.chain.mine_sent(CHAIN)
        assert await harness.sweep_traced() == []
        assert await call.read_state() is CallState.CONSUMED


async def test_a_sampled_call_counts_the_replacements_of_its_transaction_while_it_waits() -> None:
    async with TracedSettlement(settle_wait_s=20.0) as harness:
        call = await harness.claim()
        trace = harness.sampler.start("GET /x", None, is_trusted=False)
        assert trace is not None
        trace.begin("tollway.settle")
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(harness.settlement.settle(call.order(), trace=trace))
            await until(lambda: len(harness.chain.broadcasts) == 1)
            harness.pass_time(harness.limits.fee_bump_after_s)
            await harness.gas_budget.refresh()
            assert await harness.sweep_traced() == []
            settling.cancel()
        trace.finish()
        settle, receipt = harness.sink.traces[-1].spans[1:]
        assert settle.attributes == {
            "tollway.network": format_network(CHAIN),
            "tollway.settle.attempts": 1,
            "tollway.settle.fee_bumps": 1,
        }
        assert (receipt.name, receipt.parent_id) == ("tollway.receipt", settle.span_id)
        assert receipt.attributes == {"tollway.outcome": "not_mined"}
        assert harness.settlement._replacer.traced == {}
