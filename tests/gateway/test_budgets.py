"""Calls of a wallet that is bound to an owner, through the whole pipeline: what is refused, before what is asked, and that no refusal asks for money."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.kit.budgets import LedgerBindings, bind, policy_of, store
from tests.kit.channel_sales import ChannelCaller, ChannelSales
from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.payer import Payer, has_terms
from tests.kit.upstream import hang_up, plain
from tollway.client.call_io import GatewayResponse
from tollway.client.response_rules import CallResult, build_policy_exceeded
from tollway.ids import Address, TxHash, keccak256
from tollway.ledger.records import CallState
from tollway.spending_policy import SpendingPolicy


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as made:
        made.access.bindings = LedgerBindings(made.ledger)
        yield made


@pytest.fixture
async def channel() -> AsyncIterator[ChannelCaller]:
    """With a deposit of 1 USDC, at a gateway that sells calls for 0.01; one call is charged."""
    async with open_gateway(kind=ChannelSales, settle_wait_s=0.2) as made:
        assert isinstance(made, ChannelSales)
        made.access.bindings = LedgerBindings(made.ledger)
        await made.channel_networks.refresh()
        await made.publish()
        caller = ChannelCaller.funded(made, 10**8)
        assert (await caller.open(1_000_000, ceiling=10_000)).status == 200
        yield caller


def policy(gateway: InProcessGateway, agent: Address, **members: Any) -> SpendingPolicy:
    """A policy that is in force now."""
    return policy_of(agent=agent, not_after=gateway.now_ms // 1000 + 86_400, **members)


async def test_a_payment_buys_no_more_than_the_policy_allows(gateway: InProcessGateway) -> None:
    """Also by a remembered decision, which the third of these calls is."""
    await gateway.publish()
    payment = await gateway.pay(100_000)
    await bind(gateway.ledger, policy(gateway, payment.payer, maxPerDay="0.03"), gateway.now_ms)
    headers = gateway.plain_proof(payment.tx_hash)
    for _ in range(3):
        assert (await gateway.ask(headers=headers)).status == 200
    answer = await gateway.ask(headers=headers)
    problem = answer.problem
    assert (answer.status, problem["code"], problem["reason"]) == (403, "budget_exceeded", "limit")
    assert (problem["limit"], problem["left"], problem["currency"]) == ("maxPerDay", "0", "USDC")
    assert problem["retryable"] is True
    assert problem["resetsAt"].endswith("T00:00:00.000Z")
    day = problem["resetsAt"][:10]
    assert f"has left: 0 USDC of maxPerDay until {day} 00:00:00 UTC." in problem["detail"]
    read = build_policy_exceeded(
        CallResult(response=GatewayResponse(status=403, headers={}, problem=problem))
    )
    assert (read.reason, read.limit, read.left, read.currency) == ("limit", "maxPerDay", "0", "USDC")
    assert read.resets_at == datetime.fromisoformat(problem["resetsAt"])
    assert not has_terms(answer)
    assert len(gateway.upstream.arrived) == 3


async def test_revoking_holds_from_the_next_call_on(gateway: InProcessGateway) -> None:
    await gateway.publish()
    payment = await gateway.pay(100_000)
    headers = gateway.plain_proof(payment.tx_hash)
    for _ in range(3):
        assert (await gateway.ask(headers=headers)).status == 200
    bound = policy(gateway, payment.payer, maxTotal="1")
    await bind(gateway.ledger, bound, gateway.now_ms)
    assert (await gateway.ask(headers=headers)).status == 200
    await gateway.ledger.revoke_policy(
        bound.owner, bound.agent, nonce=2, is_unbinding=False, now_ms=gateway.now_ms
    )
    answer = await gateway.ask(headers=headers)
    assert (answer.status, answer.problem["reason"]) == (403, "no_policy_in_force")
    assert answer.problem["retryable"] is False
    await store(gateway.ledger, policy(gateway, payment.payer, maxTotal="1", nonce=3), gateway.now_ms)
    assert (await gateway.ask(headers=headers)).status == 200


async def test_a_new_payment_beyond_the_budget_is_refused_before_the_chain_is_asked(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    payer = gateway.sample_payment().payer
    await bind(gateway.ledger, policy(gateway, payer, maxPerCall="0.001"), gateway.now_ms)
    before = gateway.chain.requests.total()
    answer = await gateway.ask(headers=gateway.plain_proof(TxHash(keccak256(b"new"))))
    assert (answer.status, answer.problem["code"]) == (403, "budget_exceeded")
    assert not has_terms(answer)
    assert gateway.chain.requests.total() == before


async def test_an_authorization_beyond_the_budget_is_refused_before_the_chain_is_asked(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    payer = Payer.funded(gateway, 100_000)
    await bind(gateway.ledger, policy(gateway, payer.address, maxTotal="0.01"), gateway.now_ms)
    assert (await payer.buy()).status == 200
    before = gateway.chain.requests.total()
    answer = await payer.buy()
    assert (answer.status, answer.problem["code"]) == (403, "budget_exceeded")
    assert (answer.problem["paymentState"], answer.problem["limit"]) == ("none", "maxTotal")
    assert not has_terms(answer)
    assert gateway.chain.requests.total() == before
    assert isinstance(gateway.access.bindings, LedgerBindings)
    assert [one.limit for one in gateway.access.bindings.announced] == ["maxTotal"]


@pytest.mark.parametrize("rail", ["transaction", "credit", "authorization"])
async def test_a_price_in_another_currency_is_refused_before_the_chain_is_asked(
    gateway: InProcessGateway, rail: str
) -> None:
    """A limit in one currency says nothing about another, so it covers no call in it."""
    await gateway.publish()
    payer = Payer.funded(gateway, 100_000)
    proof, agent = TxHash(keccak256(b"new")), gateway.sample_payment().payer
    if rail == "credit":
        payment = await gateway.pay(100_000)
        proof, agent = payment.tx_hash, payment.payer
        assert (await gateway.ask(headers=gateway.plain_proof(proof))).status == 200
    if rail == "authorization":
        agent = payer.address
    served, before = len(gateway.upstream.arrived), gateway.chain.requests.total()
    await bind(gateway.ledger, policy(gateway, agent, maxTotal="9", currency="EURC"), gateway.now_ms)
    if rail == "authorization":
        answer = await payer.buy()
    else:
        answer = await gateway.ask(headers=gateway.plain_proof(proof))
    problem = answer.problem
    assert (answer.status, problem["code"], problem["reason"]) == (403, "budget_exceeded", "other_currency")
    assert (problem["currency"], problem["retryable"]) == ("EURC", False)
    assert not has_terms(answer)
    assert gateway.chain.requests.total() == before
    assert len(gateway.upstream.arrived) == served


@pytest.mark.parametrize("deposit", [None, 1_000_000], ids=["voucher", "deposit"])
async def test_a_voucher_in_another_currency_is_refused_before_the_chain_is_asked(
    channel: ChannelCaller, deposit: int | None
) -> None:
    gateway = channel.gateway
    agent, before = channel.signer.address, gateway.chain_requests
    await bind(gateway.ledger, policy(gateway, agent, maxTotal="9", currency="EURC"), gateway.now_ms)
    signer = channel.signs(deposit_salt=b"\x02" * 32)
    answer = await (signer.spend(20_000) if deposit is None else signer.open(deposit, ceiling=20_000))
    problem = answer.problem
    assert (answer.status, problem["code"], problem["reason"]) == (403, "budget_exceeded", "other_currency")
    assert not has_terms(answer)
    assert gateway.chain_requests == before
    assert gateway.served == 1


async def revoke_all(channel: ChannelCaller) -> None:
    """Binds the wallet, and revokes its policy."""
    ledger, now_ms = channel.gateway.ledger, channel.gateway.now_ms
    bound = policy(channel.gateway, channel.signer.address, maxTotal="1")
    await bind(ledger, bound, now_ms)
    await ledger.revoke_policy(bound.owner, bound.agent, nonce=2, is_unbinding=False, now_ms=now_ms)


@pytest.mark.parametrize(
    ("ceiling", "deposit", "name", "balance"),
    [
        pytest.param(20_000, None, 0, 1_000_000, id="good"),
        pytest.param(10_000, None, 0, 1_000_000, id="corrected"),
        pytest.param(20_000, None, 0, 10_000, id="above the balance"),
        pytest.param(20_000, 1_000_000, 0, 1_000_000, id="with a deposit"),
        pytest.param(10_000, None, 1, 0, id="new channel"),
    ],
)
async def test_a_voucher_beyond_the_budget_is_refused_before_the_chain_is_asked(
    channel: ChannelCaller, ceiling: int, deposit: int | None, name: int, balance: int
) -> None:
    """Also before the corrective 402, which asks for a voucher that no claim would grant."""
    gateway = channel.gateway
    await revoke_all(channel)
    rows = gateway.ledger.rows.channels
    for key, known in rows.items():
        rows[key] = replace(known, facts=replace(known.facts, balance=balance))
    before = gateway.chain_requests
    signer = channel.signs(salt=bytes([name] * 32), deposit_salt=b"\x02" * 32)
    answer = await (signer.spend(ceiling) if deposit is None else signer.open(deposit, ceiling=ceiling))
    assert (answer.status, answer.problem["code"]) == (403, "budget_exceeded")
    assert answer.problem["reason"] == "no_policy_in_force"
    assert not has_terms(answer)
    assert gateway.chain_requests == before
    assert gateway.served == 1


async def test_a_call_of_unknown_outcome_does_not_block_the_voucher_that_releases_it(
    channel: ChannelCaller,
) -> None:
    """What it counts is all that the day allows. The next voucher releases it, and buys a call with what came back."""
    gateway = channel.gateway
    await bind(gateway.ledger, policy(gateway, channel.signer.address, maxPerDay="0.01"), gateway.now_ms)
    gateway.upstream.answer = hang_up
    unknown = await channel.spend(20_000)
    assert (unknown.status, unknown.problem["paymentState"]) == (504, "held")
    gateway.upstream.answer = plain()
    assert (await channel.spend(20_000, target="/another")).status == 200
    states = {call.id: call.state for call in await gateway.history()}
    assert states[unknown.problem["callId"]] is CallState.RELEASED
    assert (await channel.spend(30_000)).problem["code"] == "budget_exceeded"


async def test_a_deposit_of_unknown_outcome_is_shown_again_beyond_the_limit(channel: ChannelCaller) -> None:
    """What its call counts is all that the day allows, and goes back by the same request."""
    gateway = channel.gateway
    await bind(gateway.ledger, policy(gateway, channel.signer.address, maxPerDay="0.01"), gateway.now_ms)
    again = channel.signs(deposit_salt=b"\x02" * 32)
    gateway.upstream.answer = hang_up
    assert (await again.open(1_000_000, ceiling=20_000)).problem["paymentState"] == "held"
    gateway.upstream.answer = plain()
    assert (await again.open(1_000_000, ceiling=20_000)).status == 200


async def test_a_listing_is_bought_by_its_tag(gateway: InProcessGateway) -> None:
    listing = await gateway.publish(tags=("quotes",))
    payment = await gateway.pay(100_000)
    headers = gateway.plain_proof(payment.tx_hash)
    for nonce, allow, status in (
        (1, ("tag:other",), 403),
        (2, ("tag:quotes",), 200),
        (3, (f"api:{listing.id}",), 200),
    ):
        one = policy(gateway, payment.payer, maxTotal="1", allow=allow, nonce=nonce)
        if nonce == 1:
            await bind(gateway.ledger, one, gateway.now_ms)
        await store(gateway.ledger, one, gateway.now_ms)
        assert (await gateway.ask(headers=headers)).status == status
