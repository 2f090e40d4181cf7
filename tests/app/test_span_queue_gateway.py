"""Traces of a gateway as it starts: off, on, and without the extra. `test_span_queue_collectors.py` has collectors that fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.observability.test_call_trace import Sink, start
from tollway.app.lifecycle import App
from tollway.app.observation import NodeMetrics
from tollway.chain.nodes import RpcCall
from tollway.config.settings import load_settings
from tollway.errors import SettingsInvalid
from tollway.ids import ChainId
from tollway.observability.call_trace import running_trace

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


@pytest.mark.process
def test_without_the_extra_the_settings_say_what_to_install(tmp_path: Path) -> None:
    problems, is_loaded = run_start(tmp_path, is_missing=True)[-2:]
    assert "pip install 'tollway[otel]'" in problems
    assert is_loaded == "False"


@pytest.mark.process
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
