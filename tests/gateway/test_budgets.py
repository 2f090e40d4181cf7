"""Calls of a wallet that is bound to an owner, through the whole pipeline: what is refused, before what is asked, and that no refusal asks for money."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.budgets import bind, policy_of, store
from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.payer import Payer, has_terms
from tollway.ids import Address, TxHash, keccak256
from tollway.spending_policy import SpendingPolicy


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as made:
        made.access.find_binding = made.ledger.find_binding
        yield made


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
