"""The same request again after its deposit was undecided: it gets the response that waited for the deposit, and pays nothing more."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.channel_sales import ChannelCaller, ChannelSales
from tests.kit.gateway import open_gateway
from tests.kit.payer import has_terms
from tests.kit.upstream import plain
from tollway.ledger.records import CallState
from tollway.payments.channel_wire import ChannelReason

PRICE = 10_000
DEPOSIT = 1_000_000
FUNDS = 10**8


@pytest.fixture
async def gateway() -> AsyncIterator[ChannelSales]:
    limits: dict[str, Any] = {"settle_wait_s": 0.2, "lookups_per_minute": 1_000}
    async with open_gateway(kind=ChannelSales, **limits) as small:
        assert isinstance(small, ChannelSales)
        await small.channel_networks.refresh()
        await small.publish()
        yield small


@pytest.fixture
async def unmined(gateway: ChannelSales) -> ChannelCaller:
    """After a first call whose caller has left before its deposit was mined."""
    caller = ChannelCaller.funded(gateway, FUNDS)
    gateway.upstream.answer = plain(b"the paid answer")
    gateway.stop_mining()
    answer = await ask(caller)
    assert (answer.status, answer.problem["code"]) == (503, "payment_outcome_unknown")
    gateway.upstream.answer = plain(b"another answer")
    return caller


async def ask(caller: ChannelCaller, *, ceiling: int = PRICE, content: bytes = b"{}") -> Exchange:
    return await caller.open(DEPOSIT, ceiling=ceiling, method="POST", chunks=[content])


@pytest.fixture
async def undecided(gateway: ChannelSales, unmined: ChannelCaller) -> ChannelCaller:
    """The same, and it is mined now."""
    await gateway.recover_chain()
    return unmined


async def test_the_same_deposit_gets_the_response_that_waited_for_it(
    gateway: ChannelSales, undecided: ChannelCaller
) -> None:
    for _ in range(2):
        again = await ask(undecided)
        assert (again.status, again.body) == (200, b"the paid answer")
        assert again.headers["idempotency-replayed"] == "true"
        assert not has_terms(again)
    assert (gateway.served, gateway.transfers, len(await gateway.history())) == (1, 1, 1)
    assert (await undecided.channel()).announced == PRICE


async def test_a_deposit_that_is_mined_while_its_request_waits_asks_for_no_payment(
    gateway: ChannelSales, unmined: ChannelCaller
) -> None:
    gateway.while_paused = gateway.recover_chain
    waited = await ask(unmined)
    assert (waited.status, waited.problem["code"]) == (503, "payment_outcome_unknown")
    assert not has_terms(waited)
    again = await ask(unmined)
    assert (again.status, again.body, gateway.served) == (200, b"the paid answer", 1)


async def test_a_call_without_an_answer_for_this_request_does_not_stand_before_the_next_voucher(
    gateway: ChannelSales, unmined: ChannelCaller
) -> None:
    """The call of the deposit has ended while this request waited, and its transfer has left the chain: its response is given to no one."""
    (call,) = gateway.ledger.rows.calls.values()

    async def leave_chain() -> None:
        await gateway.recover_chain()
        call.state = CallState.REORGED

    gateway.while_paused = leave_chain
    answer = await ask(unmined, ceiling=2 * PRICE)
    assert (answer.status, answer.body, gateway.served) == (200, b"another answer", 2)


async def test_a_body_that_is_not_compared_is_paid_by_its_own_voucher(
    gateway: ChannelSales, unmined: ChannelCaller
) -> None:
    gateway.while_paused = gateway.recover_chain
    answer = await ask(unmined, ceiling=2 * PRICE, content=bytes(gateway.limits.bound_body_bytes_max + 1))
    assert (answer.status, answer.body, gateway.served) == (200, b"another answer", 2)


async def test_the_next_voucher_beside_the_deposit_gets_it_too_and_is_not_stored(
    gateway: ChannelSales, undecided: ChannelCaller
) -> None:
    again = await ask(undecided, ceiling=2 * PRICE)
    assert (again.status, again.body, gateway.served) == (200, b"the paid answer", 1)
    channel = await undecided.channel()
    assert channel.candidate is not None
    assert (channel.candidate.ceiling, channel.announced) == (PRICE, PRICE)


async def test_another_request_is_paid_by_its_own_voucher(
    gateway: ChannelSales, undecided: ChannelCaller
) -> None:
    other = await ask(undecided, ceiling=2 * PRICE, content=b"[]")
    assert (other.status, other.body, gateway.served) == (200, b"another answer", 2)
    assert (await undecided.channel()).announced == 2 * PRICE


def publish_voucher(caller: ChannelCaller) -> None:
    rows = caller.gateway.ledger.rows
    (name,) = rows.channels
    rows.channels[name] = replace(rows.channels[name], published=PRICE)


def sign_by_another(content: Any) -> None:
    forged = "0x" + bytes(64).hex() + "1b"
    content["payload"]["voucher"]["signature"] = forged


@pytest.mark.parametrize(
    ("before", "edit", "reason"),
    [
        (publish_voucher, lambda content: None, ChannelReason.CUMULATIVE_MISMATCH),
        (lambda caller: None, sign_by_another, ChannelReason.VOUCHER_SIGNATURE),
    ],
    ids=["a public voucher", "a voucher of another key"],
)
async def test_a_deposit_that_the_chain_shows_opens_nothing_alone(
    gateway: ChannelSales,
    undecided: ChannelCaller,
    before: Callable[[ChannelCaller], None],
    edit: Callable[[Any], None],
    reason: ChannelReason,
) -> None:
    before(undecided)
    payload = undecided.signer.deposit(DEPOSIT, ceiling=PRICE)
    answer = await undecided.pay(payload, method="POST", chunks=[b"{}"], edit=edit)
    assert (answer.status, answer.problem["reason"]) == (402, reason.value)
    assert b"the paid answer" not in answer.body
    assert gateway.served == 1
