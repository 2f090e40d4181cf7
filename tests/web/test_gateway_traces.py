"""Traces of calls: stories and their span trees, what a provider and a log line get, and that nothing personal is an attribute."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.payer import Payer
from tests.kit.upstream import hang_up, plain, raw
from tests.test_call_trace import SAMPLED, SPAN, THEIRS, Sink, make_sampler
from tollway.call_trace import ATTRIBUTES, FinishedTrace, parse_traceparent
from tollway.money import Price

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


def list_steps(trace: FinishedTrace) -> list[str]:
    root = trace.spans[0]
    assert root.name == NAME
    assert all(span.parent_id == root.span_id for span in trace.spans[1:])
    assert all(span.end_ns is not None for span in trace.spans)
    return [span.name for span in trace.spans[1:]]


async def buy_with_transaction(gateway: InProcessGateway) -> Any:
    payment = await gateway.pay(3 * PRICE)
    return await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))


async def buy_with_authorization(gateway: InProcessGateway) -> Any:
    payer = Payer(wallet=gateway.wallet, gateway=gateway)
    payer.fund(10 * PRICE)
    return await payer.buy("GET", "/quote")


async def fail_upstream(gateway: InProcessGateway) -> Any:
    gateway.upstream.answer = hang_up
    return await buy_with_transaction(gateway)


def last_context(gateway: InProcessGateway) -> str | None:
    return gateway.upstream.arrived[-1].find("traceparent")


async def buy_a_stream(gateway: InProcessGateway) -> Any:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    gateway.upstream.answer = raw(head + b"5\r\nhello\r\n0\r\n\r\n")
    return await buy_with_transaction(gateway)


PAID = ["tollway.proof", "tollway.price", "tollway.dial", "tollway.claim", "upstream"]
STORIES: dict[str, tuple[Any, int, list[str], dict[str, Any]]] = {
    "without payment": (
        lambda gateway: gateway.ask(),
        402,
        ["tollway.proof"],
        {"error.type": "payment_required"},
    ),
    "unknown API": (
        lambda gateway: gateway.ask(listing="api_none"),
        404,
        ["tollway.proof"],
        {"error.type": "api_not_found", "tollway.listing.id": "api_none"},
    ),
    "free": (
        lambda gateway: gateway.ask(listing="api_free"),
        200,
        [*PAID, "tollway.close"],
        {"tollway.rail": "none", "tollway.listing.id": "api_free"},
    ),
    "transaction": (
        buy_with_transaction,
        200,
        [*PAID, "tollway.close"],
        {"tollway.rail": "tx", "tollway.outcome": "charged", "tollway.payment.state": "charged"},
    ),
    "authorization": (
        buy_with_authorization,
        200,
        [*PAID, "tollway.settle"],
        {"tollway.rail": "x402", "tollway.outcome": "charged"},
    ),
    "stream": (buy_a_stream, 200, [*PAID, "tollway.close", "tollway.stream"], {"tollway.outcome": "charged"}),
    "upstream fails": (
        fail_upstream,
        504,
        [*PAID, "tollway.close"],
        {"tollway.outcome": "held", "error.type": "upstream_timeout"},
    ),
}


@pytest.mark.parametrize("story", STORIES)
async def test_a_call_has_the_spans_of_its_steps(gateway: InProcessGateway, story: str) -> None:
    act, status, steps, attributes = STORIES[story]
    sink = trace_all(gateway)
    answer = await act(gateway)
    assert answer.status == status
    trace = sink.traces[-1]
    found = list_steps(trace)
    assert list(dict.fromkeys(found)) == steps
    root = trace.spans[0]
    assert root.attributes["http.response.status_code"] == status
    assert root.attributes["http.request.method"] == "GET"
    assert attributes.items() <= root.attributes.items()
    assert root.is_error is (status >= 500)


@pytest.mark.parametrize("story", STORIES)
async def test_no_attribute_names_a_wallet_a_path_or_a_secret(gateway: InProcessGateway, story: str) -> None:
    sink = trace_all(gateway)
    await STORIES[story][0](gateway)
    for trace in sink.traces:
        for span in trace.spans:
            assert set(span.attributes) <= ATTRIBUTES
            text = str([span.name, *span.attributes.values()]).lower()
            assert "0x" not in text
            assert "/quote" not in text


async def test_a_stream_has_its_bytes_and_its_end(gateway: InProcessGateway) -> None:
    sink = trace_all(gateway)
    await buy_a_stream(gateway)
    span = sink.traces[0].spans[-1]
    assert span.attributes == {"tollway.stream.bytes": 5, "tollway.stream.delivery": "complete"}


async def test_the_provider_gets_the_span_of_its_request(gateway: InProcessGateway) -> None:
    sink = trace_all(gateway)
    await buy_with_transaction(gateway)
    (trace,) = sink.traces
    (upstream,) = [span for span in trace.spans if span.name == "upstream"]
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
