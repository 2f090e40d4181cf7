"""The traces of a gateway as a collector gets them: an exporter of OpenTelemetry in memory, and its spans drawn as a tree.

`TracedGateways` opens whole gateways over a database of the contract suites, with everything traced that can be: calls, commits, chain requests, and the
work that moves calls later.
"""

import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from tests.kit.chain_blocks import Transaction, transfer_log
from tests.kit.gateway import CHAIN, PAY_TO, TOKEN, InProcessGateway
from tests.kit.payer import KeyWallet
from tests.kit.storage_faults import FaultyGateway, open_faulty_gateways
from tollway.app.observation import NodeMetrics
from tollway.app.otlp import OtlpExporter
from tollway.ids import TxHash, keccak256
from tollway.money import Price
from tollway.observability.call_trace import SPANS_MAX, FinishedTrace, TraceSampler
from tollway.observability.telemetry import Metrics
from tollway.payments.reorg_watcher import ReorgTraces, ReorgWatcher
from tollway.storage.engine.database import Database

WAIT_S = 2.0


class SpanTrees:
    """A `SpanSink` that exports at once. `traces`: the spans of each trace, its root first."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self._exporter = OtlpExporter(self._memory, instance_id="gw-1")
        self.traces: list[tuple[ReadableSpan, ...]] = []

    def add(self, trace: FinishedTrace) -> None:
        self._memory.clear()
        assert self._exporter.export([trace])
        self.traces.append(self._memory.get_finished_spans())

    def find(self, name: str) -> list[tuple[ReadableSpan, ...]]:
        """The traces whose root has that name."""
        return [trace for trace in self.traces if trace[0].name == name]


def draw(trace: Sequence[ReadableSpan]) -> list[str]:
    """The names as an indented tree. Equal neighbours, such as several requests to one chain, are drawn once."""
    lines: list[str] = []

    def draw_below(parent: ReadableSpan, depth: int) -> None:
        lines.append("  " * depth + parent.name)
        for span in trace:
            if span.parent is not None and span.parent.span_id == parent.context.span_id:
                before = list(lines)
                draw_below(span, depth + 1)
                if lines[len(before) :] == before[-(len(lines) - len(before)) :]:
                    lines[:] = before

    draw_below(trace[0], 0)
    return lines


def read_attributes(trace: Sequence[ReadableSpan], name: str) -> dict[str, Any]:
    """The attributes of the last span of that name."""
    return dict([span for span in trace if span.name == name][-1].attributes or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGateways:
    """Gateways of one database, the first of which serves. `watcher`: of the payments of its chain."""

    gateways: list[FaultyGateway]
    trees: SpanTrees
    watcher: ReorgWatcher

    @property
    def gateway(self) -> InProcessGateway:
        return self.gateways[0].gateway

    def mine_payment(self, units: int, *, wallet: KeyWallet | None = None) -> TxHash:
        """A transfer on the chain that no ledger has seen."""
        payer = (wallet or self.gateway.wallet).address
        tx_hash = TxHash(keccak256(b"mined %d" % len(self.trees.traces)))
        logs = (transfer_log(TOKEN, payer, PAY_TO, units),)
        transaction = Transaction(tx_hash=tx_hash, sender=payer, recipient=TOKEN, logs=logs)
        self.gateway.chain.mine(CHAIN, transaction, time=self.gateway.now_ms // 1000)
        return tx_hash


@asynccontextmanager
async def open_traced_gateways(
    database: Database, *, ratio: float = 1.0, random: float = 0.0, **limits: Any
) -> AsyncIterator[TracedGateways]:
    """Two gateways. `random`: what the sampler draws for each call."""
    trees = SpanTrees()
    sampler = TraceSampler(trees, ratio=ratio, random=lambda: random, entropy=os.urandom, now_ns=time.time_ns)
    async with open_faulty_gateways(database, ["one", "two"], traces=sampler, **limits) as gateways:
        first = gateways[0].gateway
        await first.publish("api_free", price=Price.parse("0"))
        first.chain.observer = NodeMetrics(Metrics(CollectorRegistry()))
        ledger = gateways[0].ledger
        watcher = ReorgWatcher(
            ledger,
            ledger,
            first.chain,
            first.rules,
            limits=first.limits,
            now_ms=gateways[0].clock,
            on_gone=lambda payment: None,
            traces=ReorgTraces(sampler, partial(ledger.spending_calls, limit=SPANS_MAX)),
        )
        yield TracedGateways(gateways=gateways, trees=trees, watcher=watcher)
