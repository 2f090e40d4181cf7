"""Traces of a whole gateway: off, on, and without the extra; a collector that is away or hangs holds up no call."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.kit.listings import sample_listing
from tests.kit.upstream import plain, run_upstream
from tests.test_call_trace import Sink, start
from tollway.app.lifecycle import App
from tollway.app.observation import NodeMetrics
from tollway.call_trace import running_trace
from tollway.chain.nodes import RpcCall
from tollway.config.settings import load_settings
from tollway.errors import SettingsInvalid
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Price

CALLS = 20
CALLS_SENT: list[RpcCall] = [("eth_call", []), ("eth_getBalance", []), ("eth_call", [])]
START = """
import sys
if {is_missing}:
    sys.modules["opentelemetry"] = None
from tollway.app.lifecycle import App
from tollway.config.settings import load_settings
from tollway.errors import SettingsInvalid
import asyncio

async def start():
    try:
        App(load_settings({{"TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1", "TOLLWAY_TRACING": "otlp"}}))
    except SettingsInvalid as exc:
        print(exc.problems)

asyncio.run(start())
print("opentelemetry" in sys.modules and sys.modules["opentelemetry"] is not None)
"""


def run_start(folder: Path, *, is_missing: bool) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", START.format(is_missing=is_missing)],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_without_the_extra_the_settings_say_what_to_install(tmp_path: Path) -> None:
    problems, is_loaded = run_start(tmp_path, is_missing=True)[-2:]
    assert "pip install 'tollway[otel]'" in problems
    assert is_loaded == "False"


def test_with_traces_the_gateway_loads_opentelemetry(tmp_path: Path) -> None:
    assert run_start(tmp_path, is_missing=False)[-1] == "True"


@pytest.mark.parametrize("value", ["-1", "1.5", "much"])
def test_a_ratio_is_a_share(value: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        load_settings({"TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1", "TOLLWAY_TRACE_RATIO": value})
    assert "TOLLWAY_TRACE_RATIO" in refused.value.problems[0]


def test_a_request_to_a_node_is_a_span_of_the_call_in_whose_context_it_runs(tmp_path: Path) -> None:
    app = App(
        load_settings(
            {
                "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
                "TOLLWAY_DATABASE_URL": f"sqlite:///{tmp_path}/a.sqlite3",
            }
        )
    )
    nodes, sink = NodeMetrics(app.metrics), Sink()
    trace = start(sink)
    nodes.count_request(ChainId(1), 2, "ok", 0.5, CALLS_SENT)  # of no call
    with running_trace(trace):
        nodes.count_request(ChainId(1), 2, "ok", 0.5, CALLS_SENT)
        trace.begin("tollway.settle")
        nodes.count_request(ChainId(1), 1, "timeout", 0.5, CALLS_SENT)
    trace.finish()
    _, first, settle, second = sink.traces[0].spans
    assert (first.name, first.kind, first.is_error) == ("chain eip155:1", "client", False)
    assert first.attributes == {
        "tollway.network": "eip155:1",
        "tollway.node": 2,
        "tollway.methods": "eth_call,eth_getBalance",
        "tollway.outcome": "ok",
    }
    assert second.attributes["tollway.outcome"] == "timeout"
    assert (second.parent_id, second.is_error) == (settle.span_id, True)


@pytest.fixture(params=["away", "hangs"])
def collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A port on which no collector listens, or one that accepts connections and never responds."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if request.param == "hangs":
            bound.listen()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{bound.getsockname()[1]}")
        yield request.param


async def test_a_collector_that_is_away_or_hangs_holds_up_no_call(collector: str, tmp_path: Path) -> None:
    settings = load_settings(
        {
            "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
            "TOLLWAY_DATABASE_URL": f"sqlite:///{tmp_path}/a.sqlite3",
            "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "yes",
            "TOLLWAY_TRACING": "otlp",
            "TOLLWAY_TRACE_RATIO": "1",
        }
    )
    async with run_upstream() as upstream, App(settings) as app:
        upstream.answer = plain()
        listing = sample_listing(
            provider=Address(b"a" * 20),
            id=ListingId("api_0123456789abcdef01234567"),
            endpoint=upstream.url,
            price=Price.parse("0"),
        )
        await app.catalog.publish(listing)
        transport = httpx.ASGITransport(app.asgi_app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8402") as client:
            for _ in range(CALLS):
                answer = await client.get(f"/api/v2/gateway/{listing.id}")
                assert answer.status_code == 200, answer.text
        assert len(upstream.arrived) == CALLS
        assert all(one.find("traceparent") for one in upstream.arrived)
        assert app.span_queue is not None
        waiting = app.span_queue._spans
        dropped = app.metrics.spans_dropped._value.get()
    # Every span waits, is in the export that stands still, or was dropped: none was sent, and no call knew.
    assert waiting + dropped > 0
    if collector == "hangs":
        assert dropped == 0
