"""What calls, and the work that moves them later, look like at a collector of OpenTelemetry: a table of stories and their span trees, on each database."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.contracts.conftest import outlive
from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import CHAIN
from tests.kit.ledger_records import claim_on, close_of
from tests.kit.narrowing import existing
from tests.kit.payer import Payer
from tests.kit.span_trees import SpanTrees, TracedGateways, draw, open_traced_gateways, read_attributes
from tests.kit.storage_faults import FaultyLedger
from tests.kit.upstream import Answerer, hang_up, plain, raw, say_nothing
from tests.kit.waits import until
from tests.observability.test_call_trace import make_sampler
from tollway.errors import StorageUnavailable
from tollway.ids import format_network, read_id_entropy
from tollway.observability.call_trace import ATTRIBUTES, running_trace
from tollway.storage.engine.database import Database

PRICE = 10_000
ROOT = "GET /api/v2/gateway/{apiId}"
UPSTREAM = "GET upstream"
NODE = f"chain {format_network(CHAIN)}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SAMPLED_PART = 0.01
BEYOND_COLUMN = 2**70  # larger than an integer column of either database


async def call_on_credit(gateways: TracedGateways) -> Exchange:
    """The second call: the first one wrote the terms of the listing, so a plain statement writes this one where the database has such."""
    payment = await gateways.gateway.pay(3 * PRICE)
    proof = gateways.gateway.plain_proof(payment.tx_hash)
    await gateways.gateway.ask(headers=proof)
    return await gateways.gateway.ask(headers=proof)


async def show_a_new_payment(gateways: TracedGateways) -> Exchange:
    tx_hash = gateways.mine_payment(PRICE)
    return await gateways.gateway.ask(headers=gateways.gateway.plain_proof(tx_hash))


async def show_no_payment(gateways: TracedGateways) -> Exchange:
    unknown = gateways.gateway.sample_payment().tx_hash
    return await gateways.gateway.ask(headers=gateways.gateway.plain_proof(unknown))


async def sign_the_request(gateways: TracedGateways) -> Exchange:
    payment = await gateways.gateway.pay(PRICE)
    return await gateways.gateway.ask(headers=gateways.gateway.bound_proof(payment.tx_hash))


async def repeat_with_a_key(gateways: TracedGateways) -> Exchange:
    payment = await gateways.gateway.pay(PRICE)
    headers = [*gateways.gateway.plain_proof(payment.tx_hash), ("Idempotency-Key", "once")]
    await gateways.gateway.ask(headers=headers)
    return await gateways.gateway.ask(headers=headers)


async def sign_an_authorization(gateways: TracedGateways) -> Exchange:
    return await make_payer(gateways).buy("GET", "/quote")


async def call_on_new_payment(gateways: TracedGateways) -> Exchange:
    payment = await gateways.gateway.pay(PRICE)
    return await gateways.gateway.ask(headers=gateways.gateway.plain_proof(payment.tx_hash))


async def leave_a_stream(gateways: TracedGateways) -> Exchange:
    gateway = gateways.gateway
    gateway.upstream.answer = raw(CHUNKED + b"5\r\nhello\r\n")
    payment = await gateway.pay(PRICE)
    exchange = gateway.open(headers=gateway.plain_proof(payment.tx_hash))
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run(exchange))
        await until(lambda: exchange.is_started and exchange.body == b"hello")
        exchange.leave()
    return exchange


def make_payer(gateways: TracedGateways) -> Payer:
    payer = Payer(wallet=gateways.gateway.wallet, gateway=gateways.gateway)
    payer.fund(10 * PRICE)
    return payer


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One call, its tree below the root, and the attributes of some of its spans. A value of None: the attribute has some value. `upstream`:
    its response, where it is not the usual one."""

    act: Callable[[TracedGateways], Awaitable[Exchange]] = call_on_new_payment
    upstream: Answerer | None = None
    status: int
    tree: list[str]
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)


COMMIT = {"tollway.commit.entries": 1, "tollway.commit.wait_us": None, "tollway.commit.write_us": None}
SENT = ["tollway.dial", "tollway.claim", UPSTREAM]
PRICED = ["tollway.proof", "tollway.price"]
PAID = [*PRICED, *SENT, "tollway.close"]
STORIES: dict[str, Story] = {
    "unpaid": Story(
        act=lambda gateways: gateways.gateway.ask(),
        status=402,
        tree=["tollway.proof"],
        attributes={
            ROOT: {"error.type": "payment_required"},
            "tollway.proof": {"tollway.proof.kind": "none"},
        },
    ),
    "unreadable proof": Story(
        act=lambda gateways: gateways.gateway.ask(headers=[("X-Payment-Tx", "junk"), ("X-Signature", "0x")]),
        status=400,
        tree=["tollway.proof"],
        attributes={"tollway.proof": {"tollway.proof.kind": "unreadable"}},
    ),
    "no such payment": Story(
        act=show_no_payment,
        status=409,
        tree=["tollway.proof", NODE, "tollway.price"],
        attributes={
            "tollway.proof": {"tollway.proof.kind": "plain_key"},
            NODE: {"tollway.methods": "fetch_facts", "tollway.node": 1, "tollway.outcome": "ok"},
        },
    ),
    "free": Story(
        act=lambda gateways: gateways.gateway.ask(listing="api_free"),
        status=200,
        tree=PAID,
        attributes={
            ROOT: {"tollway.rail": "none", "tollway.listing.id": "api_free"},
            "tollway.dial": {"tollway.dial.reused": False, "tollway.dial.addresses": 1},
        },
    ),
    "on known credit": Story(
        act=call_on_credit,
        status=200,
        tree=PAID,
        attributes={
            ROOT: {"tollway.outcome": "charged", "tollway.call.id": None, "tollway.rail": None},
            "tollway.dial": {"tollway.dial.reused": True},
            "tollway.claim": COMMIT,
            "tollway.close": COMMIT,
        },
    ),
    "a new payment": Story(
        act=show_a_new_payment,
        status=200,
        tree=["tollway.proof", NODE, "tollway.price", *SENT, "tollway.close"],
        attributes={ROOT: {"tollway.outcome": "charged", "tollway.rail": "tx"}, "tollway.claim": COMMIT},
    ),
    "a bound signature": Story(
        act=sign_the_request,
        status=200,
        tree=PAID,
        attributes={"tollway.proof": {"tollway.proof.kind": "bound_key"}},
    ),
    "a repeat": Story(
        act=repeat_with_a_key,
        status=200,
        tree=["tollway.proof"],
        attributes={"tollway.proof": {"tollway.proof.kind": "plain_key"}},
    ),
    "an authorisation": Story(
        act=sign_an_authorization,
        status=200,
        tree=[*PRICED, NODE, "tollway.price", *SENT, "tollway.settle", f"  {NODE}", "  tollway.receipt"],
        attributes={
            ROOT: {"tollway.rail": "x402", "tollway.outcome": "charged"},
            "tollway.proof": {"tollway.proof.kind": "eip3009_key"},
            "tollway.settle": {
                "tollway.network": format_network(CHAIN),
                "tollway.settle.attempts": 1,
                "tollway.settle.fee_bumps": 0,
            },
            "tollway.receipt": {"tollway.outcome": "mined"},
        },
    ),
    "an unpaid error": Story(
        upstream=plain(b"no", status=500),
        status=500,
        tree=PAID,
        attributes={ROOT: {"tollway.outcome": "released"}, UPSTREAM: {"http.response.status_code": 500}},
    ),
    "a lost upstream": Story(
        upstream=hang_up,
        status=504,
        tree=PAID,
        attributes={
            ROOT: {"tollway.outcome": "held", "error.type": "upstream_timeout"},
            UPSTREAM: {"server.address": "127.0.0.1"},
        },
    ),
    "a stream": Story(
        upstream=raw(CHUNKED + b"5\r\nhello\r\n", b"1\r\n!\r\n0\r\n\r\n"),
        status=200,
        tree=[*PAID, "tollway.stream"],
        attributes={
            "tollway.stream": {
                "tollway.stream.bytes": 6,
                "tollway.stream.delivery": "complete",
                "tollway.stream.ended_by": "upstream",
                "tollway.stream.first_chunk_us": None,
                "tollway.stream.last_chunk_us": None,
            }
        },
    ),
    "a cut stream": Story(
        upstream=raw(CHUNKED + b"5\r\nhello\r\n", close=True),
        status=200,
        tree=[*PAID, "tollway.stream"],
        attributes={
            "tollway.stream": {"tollway.stream.delivery": "partial", "tollway.stream.ended_by": "upstream"}
        },
    ),
    "a stream that its client leaves": Story(
        act=leave_a_stream,
        status=200,
        tree=[*PAID, "tollway.stream"],
        attributes={
            "tollway.stream": {
                "tollway.stream.bytes": 5,
                "tollway.stream.delivery": "partial",
                "tollway.stream.ended_by": "client",
            }
        },
    ),
}


@pytest.mark.parametrize("name", STORIES)
async def test_a_call_has_the_tree_of_its_story(database: Database, name: str) -> None:
    story = STORIES[name]
    async with open_traced_gateways(database) as gateways:
        if story.upstream is not None:
            gateways.gateway.upstream.answer = story.upstream
        answer = await story.act(gateways)
        assert answer.status == story.status
        trace = gateways.trees.traces[-1]
        assert draw(trace) == [ROOT, *(f"  {line}" for line in story.tree)]
        for span, expected in story.attributes.items():
            found = read_attributes(trace, span)
            assert expected.keys() <= found.keys(), span
            known = {key: value for key, value in expected.items() if value is not None}
            assert known.items() <= found.items(), span
        check_nothing_personal(gateways)


def check_nothing_personal(gateways: TracedGateways) -> None:
    """No attribute is a wallet, a hash, a path or a secret."""
    for trace in gateways.trees.traces:
        for span in trace:
            attributes = dict(span.attributes or {})
            assert attributes.keys() <= ATTRIBUTES
            text = str([span.name, *attributes.values()]).lower()
            assert "0x" not in text
            assert "/quote" not in text


# ---- Work that moves a call after its request: a trace of its own, tied to the call by `tollway.call.id`.


async def leave_a_settlement(gateways: TracedGateways) -> str:
    """A call whose transaction is not mined while its caller waits."""
    gateways.gateway.stop_mining()
    answer = await make_payer(gateways).buy("GET", "/quote")
    assert (answer.status, answer.problem["code"]) == (503, "payment_outcome_unknown")
    (call,) = gateways.trees.traces[-1:]
    return str(read_attributes(call, ROOT)["tollway.call.id"])


async def test_settlement_recovery_has_a_trace_of_the_call_that_it_ends(database: Database) -> None:
    async with open_traced_gateways(database, settle_wait_s=0.05) as gateways:
        call_id = await leave_a_settlement(gateways)
        await gateways.gateway.settlement.sweep()
        assert gateways.trees.find("tollway.settlement_recovery") == []  # it only waited
        await gateways.gateway.recover_chain()
        (trace,) = gateways.trees.find("tollway.settlement_recovery")
        assert draw(trace) == ["tollway.settlement_recovery", f"  {NODE}"]
        found = read_attributes(trace, "tollway.settlement_recovery")
        assert found == {
            "tollway.call.id": call_id,
            "tollway.listing.id": "api_quotes",
            "tollway.network": format_network(CHAIN),
            "tollway.outcome": "consumed",
            "tollway.settle.attempts": 1,
            "tollway.settle.fee_bumps": 0,
        }
        calls = gateways.trees.find(ROOT)
        (call,) = [one for one in calls if "tollway.settle" in {span.name for span in one}]
        assert call[0].context.trace_id != trace[0].context.trace_id
        check_nothing_personal(gateways)


async def test_the_reorg_watcher_has_a_trace_of_each_payment_that_left_with_its_calls(
    database: Database,
) -> None:
    async with open_traced_gateways(database) as gateways:
        answer = await show_a_new_payment(gateways)
        gateways.gateway.chain.reorg(CHAIN, 1)
        await gateways.watcher.check_once()
        assert gateways.trees.find("tollway.reorg_watcher") == []  # once is not enough
        await gateways.watcher.check_once()
        (trace,) = gateways.trees.find("tollway.reorg_watcher")
        assert draw(trace) == ["tollway.reorg_watcher", "  tollway.call"]
        assert read_attributes(trace, "tollway.reorg_watcher") == {
            "tollway.network": format_network(CHAIN),
            "error.type": "not_mined",
        }
        moved = {"tollway.call.id": answer.headers["tollway-call-id"], "tollway.outcome": "gone"}
        assert read_attributes(trace, "tollway.call") == moved
        await gateways.watcher.check_once()
        assert len(gateways.trees.find("tollway.reorg_watcher")) == 1
        check_nothing_personal(gateways)


async def test_recovery_has_a_trace_of_the_calls_that_a_dead_gateway_left(database: Database) -> None:
    async with open_traced_gateways(database) as gateways:
        one, two = gateways.gateways
        gateway = gateways.gateway
        gateway.upstream.answer = say_nothing
        payment = await gateway.pay(PRICE)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(gateway.ask(headers=gateway.plain_proof(payment.tx_hash)))
            await until(lambda: gateway.served == 1)
            await outlive(one.clock, two.ledger)
            assert await two.ledger.recover(now_ms=one.clock.ms) == 1
            assert await two.ledger.recover(now_ms=one.clock.ms) == 0
            gateway.upstream.stop()
            await asked
        (trace,) = gateways.trees.find("tollway.recovery")
        assert draw(trace) == ["tollway.recovery", "  tollway.call"]
        (call,) = gateways.trees.find(ROOT)
        assert read_attributes(trace, "tollway.call") == {
            "tollway.call.id": read_attributes(call, ROOT)["tollway.call.id"],
            "tollway.outcome": "unknown",
            "error.type": "gateway_died",
        }


@pytest.mark.parametrize("is_sampled", [True, False])
async def test_work_on_a_call_is_traced_where_the_call_was(database: Database, is_sampled: bool) -> None:
    """Nothing is stored: the id of a sampled call is in the sampled part of all ids, and the id of this other call is not."""
    drawn = 0.0 if is_sampled else 1.0
    async with open_traced_gateways(
        database, ratio=SAMPLED_PART, random=drawn, settle_wait_s=0.05
    ) as gateways:
        gateway = gateways.gateway
        gateway.stop_mining()
        await make_payer(gateways).buy("GET", "/quote")
        (call,) = await gateway.history()
        assert (read_id_entropy(call.id) < SAMPLED_PART * 2**30) is is_sampled
        await gateway.recover_chain()
        assert len(gateways.trees.find("tollway.settlement_recovery")) == int(is_sampled)
        assert bool(gateways.trees.find(ROOT)) is is_sampled


async def test_an_unsampled_call_adds_nothing_to_what_the_writer_holds(database: Database) -> None:
    async with open_traced_gateways(database, ratio=SAMPLED_PART, random=1.0) as gateways:
        await call_on_credit(gateways)
        assert existing(gateways.gateways[0].ledger._group_commit._traces)._entries == {}
        assert gateways.trees.traces == []


async def test_the_writer_names_the_trace_of_an_entry_that_it_cannot_write(database: Database) -> None:
    """It runs outside of the context of the call."""
    trees = SpanTrees()
    sampler = make_sampler(trees)
    trace = existing(sampler.start(ROOT, None, is_trusted=False))
    faulty = FaultyLedger(database, traces=sampler)
    await faulty.ledger.open()
    try:
        odd = claim_on(None)
        with running_trace(trace), capture_logs() as logs:  # without the fields of the context
            trace.begin("tollway.claim")
            await faulty.ledger.claim(odd)
            trace.begin("tollway.close")
            with pytest.raises(StorageUnavailable):
                await faulty.ledger.close(close_of(odd, http_status=BEYOND_COLUMN))
        (line,) = [line for line in logs if line["event"] == "ledger_entry_refused"]
        assert (line["trace_id"], line["span_id"]) == (trace.trace_id, trace.root.span_id)
        (spans,) = trees.traces
        assert read_attributes(spans, "tollway.claim").keys() == COMMIT.keys()
        assert "tollway.commit.write_us" not in read_attributes(spans, "tollway.close")
    finally:
        await faulty.close()
