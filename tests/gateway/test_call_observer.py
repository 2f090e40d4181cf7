"""How calls end, observed: the phases that happened by rail, the codes of refusals, and one log line for a paid call."""

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.gateway import HOST, InProcessGateway, open_gateway
from tests.kit.payer import Payer
from tests.kit.upstream import hang_up, plain
from tollway.gateway.phase_timer import PhaseTimer
from tollway.money import Price

PRICE = 10_000


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish()
        small.upstream.answer = plain()
        yield small


def observed(gateway: InProcessGateway) -> dict[tuple[str, str], int]:
    """How often each phase of each rail was observed."""
    counts: dict[tuple[str, str], int] = {}
    for sample in gateway.call_seconds.collect().samples:
        if sample.name.endswith("_count") and sample.value:
            counts[sample.labels["rail"], sample.labels["phase"]] = int(sample.value)
    return counts


def ended(logs: Any) -> list[Any]:
    return [line for line in logs if line["event"] == "call_ended"]


def set_call_log(gateway: InProcessGateway, call_log: Any, *, log_wallets: bool = False) -> None:
    observer = gateway.pipeline._observer
    observer._call_log, observer._log_wallets = call_log, log_wallets


async def test_a_call_on_credit_has_its_phases_and_no_other(gateway: InProcessGateway) -> None:
    payment = await gateway.pay(3 * PRICE)
    for _ in range(3):
        assert (await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))).status == 200
    phases = ("read_head", "dial", "claim", "upstream", "close")
    assert observed(gateway) == {
        **{("tx", phase): 1 for phase in phases},
        **{("credit", phase): 2 for phase in phases},
    }


async def test_an_authorisation_has_the_chain_and_its_settlement(gateway: InProcessGateway) -> None:
    payer = Payer.funded(gateway, 10 * PRICE)
    assert (await payer.buy("GET", "/quote")).status == 200
    rails = {rail for rail, _ in observed(gateway)}
    assert len(rails) == 1
    assert {phase for _, phase in observed(gateway)} == {
        "read_head",
        "chain",
        "dial",
        "claim",
        "upstream",
        "settle",
    }


async def test_the_phase_in_which_a_call_failed_is_observed(gateway: InProcessGateway) -> None:
    payment = await gateway.pay(PRICE)
    gateway.upstream.answer = hang_up
    assert (await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))).status == 504
    assert ("tx", "upstream") in observed(gateway)


async def test_a_refusal_is_counted_by_its_code(gateway: InProcessGateway) -> None:
    await gateway.ask()
    await gateway.ask(listing="api_none")
    assert gateway.refusals == ["payment_required", "api_not_found"]
    assert observed(gateway) == {}


STORIES = {
    "charged": ("all", plain(), {"outcome": "charged", "status": 200, "upstream_status": 200}),
    "charged, failures alone": ("failures", plain(), None),
    "released": (
        "failures",
        plain(status=500),
        {"outcome": "released", "status": 500, "upstream_status": 500},
    ),
    "held": ("failures", hang_up, {"outcome": "held", "status": 504, "upstream_status": None}),
    "held, off": ("off", hang_up, None),
}


@pytest.mark.parametrize("story", STORIES)
async def test_a_paid_call_has_one_line(gateway: InProcessGateway, story: str) -> None:
    call_log, answer, expected = STORIES[story]
    set_call_log(gateway, call_log)
    payment = await gateway.pay(PRICE)
    gateway.upstream.answer = answer
    with capture_logs() as logs:
        told = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    lines = ended(logs)
    if expected is None:
        assert lines == []
        return
    (line,) = lines
    assert {name: line[name] for name in expected} == expected
    assert (line["call_id"], line["listing_id"]) == (told.headers["tollway-call-id"], "api_quotes")
    assert (line["rail"], line["price"], line["currency"], line["attempts"]) == ("tx", "0.01", "USDC", 1)
    assert line["network"].startswith("eip155:")
    assert set(line["ms"]) == {"read_head", "dial", "claim", "upstream", "close"}
    assert line["log_level"] == ("warning" if expected["outcome"] == "held" else "info")
    assert str(gateway.wallet.address) not in repr(line)
    assert HOST not in repr(line)


async def test_the_wallet_stands_on_the_line_where_the_operator_wants_it(gateway: InProcessGateway) -> None:
    set_call_log(gateway, "all", log_wallets=True)
    payment = await gateway.pay(PRICE)
    with capture_logs() as logs:
        await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    (line,) = ended(logs)
    assert line["payer"] == str(gateway.wallet.address)


async def test_a_failed_dial_of_a_verified_call_has_a_line_without_a_call_id(
    gateway: InProcessGateway,
) -> None:
    payment = await gateway.pay(PRICE)
    with socket.socket() as closed:  # bound, and not listening
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        await gateway.revise(gateway.sample("api_quotes"), endpoint=url)
        with capture_logs() as logs:
            told = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert told.status == 502, told.body
    (line,) = ended(logs)
    assert (line["call_id"], line["outcome"], line["code"]) == (None, "refused", "upstream_unreachable")


async def test_what_proves_nothing_and_what_is_free_writes_no_line(gateway: InProcessGateway) -> None:
    set_call_log(gateway, "all")
    await gateway.publish("api_free", price=Price.parse("0"))
    with capture_logs() as logs:
        await gateway.ask()
        assert (await gateway.ask(listing="api_free")).status == 200
        await gateway.ask(headers=[("X-Payment-Tx", "0x" + "12" * 32), ("X-Signature", "0x" + "34" * 65)])
    assert ended(logs) == []


def test_the_times_of_a_phase_that_begins_twice_are_added() -> None:
    moments = iter((1.0, 3.0, 6.0, 6.5))
    timer = PhaseTimer(lambda: next(moments), 0.0)
    timer.begin("chain")
    timer.begin("read_head")
    timer.begin("dial")
    timer.end()
    timer.end()
    assert timer.seconds == {"read_head": 1.0 + 3.0, "chain": 2.0, "dial": 0.5}
