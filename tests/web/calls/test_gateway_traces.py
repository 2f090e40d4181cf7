"""Traces of calls: the context that a provider gets, that of a stranger, log lines and exemplars. `tests/contracts/test_span_trees.py` has the spans."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.upstream import hang_up, plain
from tests.observability.test_call_trace import SAMPLED, SPAN, THEIRS, Sink, make_sampler
from tollway.money import Price
from tollway.observability.call_trace import parse_traceparent

PRICE = 10_000
NAME = "GET /api/v2/gateway/{apiId}"


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish()
        await small.publish("api_free", price=Price.parse("0"))
        small.upstream.answer = plain()
        yield small


def trace_all(gateway: InProcessGateway) -> Sink:
    sink = Sink()
    gateway.trace_sampler = make_sampler(sink)
    return sink


async def buy_with_transaction(gateway: InProcessGateway) -> Any:
    payment = await gateway.pay(3 * PRICE)
    return await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))


async def fail_upstream(gateway: InProcessGateway) -> Any:
    gateway.upstream.answer = hang_up
    return await buy_with_transaction(gateway)


def last_context(gateway: InProcessGateway) -> str | None:
    return gateway.upstream.arrived[-1].find("traceparent")


async def test_the_provider_gets_the_span_of_its_request(gateway: InProcessGateway) -> None:
    sink = trace_all(gateway)
    await buy_with_transaction(gateway)
    (trace,) = sink.traces
    (upstream,) = [span for span in trace.spans if span.name == "GET upstream"]
    context = parse_traceparent((last_context(gateway) or "").encode())
    assert context is not None
    assert (context.trace_id, context.span_id, context.is_sampled) == (trace.trace_id, upstream.span_id, True)
    assert upstream.kind == "client"


async def test_an_unsampled_call_passes_the_context_of_its_caller(gateway: InProcessGateway) -> None:
    await gateway.ask(listing="api_free", headers=[("traceparent", SAMPLED.decode())])
    assert last_context(gateway) == SAMPLED.decode()


@pytest.mark.parametrize(("is_proxied", "is_continued"), [(False, False), (True, True)])
async def test_the_context_of_a_stranger_is_a_link_and_that_of_a_proxy_is_continued(
    gateway: InProcessGateway, is_proxied: bool, is_continued: bool
) -> None:
    sink = trace_all(gateway)
    gateway.is_proxied = is_proxied
    await gateway.ask(listing="api_free", headers=[("traceparent", SAMPLED.decode())])
    (trace,) = sink.traces
    assert (trace.trace_id == THEIRS) is is_continued
    assert (trace.spans[0].parent_id == SPAN) is is_continued
    assert (trace.link is None) is is_continued


@pytest.mark.parametrize(("is_proxied", "is_traced"), [(False, False), (True, True)])
async def test_a_stranger_switches_no_trace_on(
    gateway: InProcessGateway, is_proxied: bool, is_traced: bool
) -> None:
    """Its sampled flag does not count, and its context goes to the provider as it came."""
    sink = Sink()
    gateway.trace_sampler = make_sampler(sink, ratio=0.01, drawn=0.5)
    gateway.is_proxied = is_proxied
    await gateway.ask(listing="api_free", headers=[("traceparent", SAMPLED.decode())])
    assert bool(sink.traces) is is_traced
    assert (last_context(gateway) == SAMPLED.decode()) is not is_traced


async def test_log_lines_of_a_sampled_call_have_its_ids_and_later_ones_do_not(
    gateway: InProcessGateway,
) -> None:
    sink = trace_all(gateway)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        await fail_upstream(gateway)
        gateway.trace_sampler = None
        await fail_upstream(gateway)
    traced, plain_line = [line for line in logs if line["event"] == "call_ended"]
    assert traced["trace_id"] == sink.traces[0].trace_id
    assert traced["span_id"] == sink.traces[0].spans[0].span_id
    assert "trace_id" not in plain_line


async def test_a_sampled_call_is_the_exemplar_of_its_phases_and_another_call_makes_no_object(
    gateway: InProcessGateway,
) -> None:
    await buy_with_transaction(gateway)
    histograms = [gateway.call_seconds.find("tx", phase) for phase in ("claim", "upstream", "close")]
    assert all(histogram._exemplars is None for histogram in histograms)
    sink = trace_all(gateway)
    await buy_with_transaction(gateway)
    for histogram in histograms:
        ((_, _, exemplar),) = [bucket for bucket in histogram.buckets if len(bucket) == 3]
        assert exemplar.labels == {"trace_id": sink.traces[0].trace_id}
        assert exemplar.value > 0
