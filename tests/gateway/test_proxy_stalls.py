"""A gateway that pauses between its claim and the first byte does not send the call afterwards."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, InProcessGateway, open_gateway
from tollway.ledger.ledger import Claim, ClaimOutcome

PRICE = 10_000
TARGET = "/orders"
KEY = [("Idempotency-Key", "one")]


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish()
        yield small


async def test_a_gateway_that_wakes_after_its_call_ran_elsewhere_sends_nothing(
    gateway: InProcessGateway,
) -> None:
    """It stood still between the claim and the first byte for so long that the others took it for dead."""
    ledger, claim = gateway.ledger, gateway.ledger.claim
    two = InProcessGateway(gateway.upstream, limits=gateway.limits, before=gateway)
    proof = [*await gateway.plain_payment(5 * PRICE), *KEY]
    elsewhere: list[Exchange] = []

    async def claim_and_stall(one: Claim) -> ClaimOutcome:
        vars(ledger)["claim"] = claim
        outcome = await claim(one)
        gateway.ticks_ms += int(gateway.limits.owner_lease_s * 1000)
        await ledger.another("two").recover(now_ms=NOW_MS)  # the lease of this one is expired
        elsewhere.append(await two.ask("POST", TARGET, proof, [b"{}"]))
        return outcome

    vars(ledger)["claim"] = claim_and_stall
    late = await gateway.ask("POST", TARGET, proof, [b"{}"])
    assert [one.status for one in elsewhere] == [200]
    assert (late.status, late.problem["code"]) == (503, "payment_outcome_unknown")
    assert len(gateway.upstream.arrived) == 1
    repeated = await gateway.ask("POST", TARGET, proof, [b"{}"])
    assert (repeated.status, repeated.headers["idempotency-replayed"]) == (200, "true")
    assert len(gateway.upstream.arrived) == 1
    await gateway.check_balanced()
    await two.http_client.close()


async def test_a_gateway_that_stood_still_gives_back_what_it_has_not_sent(gateway: InProcessGateway) -> None:
    proof = await gateway.plain_payment(5 * PRICE)
    ledger, claim = gateway.ledger, gateway.ledger.claim

    async def claim_and_stall(one: Claim) -> ClaimOutcome:
        vars(ledger)["claim"] = claim
        outcome = await claim(one)
        gateway.ticks_ms += int(gateway.limits.owner_lease_s * 1000)
        return outcome

    vars(ledger)["claim"] = claim_and_stall
    late = await gateway.ask("POST", TARGET, proof, [b"{}"])
    assert (late.status, late.problem["code"], late.problem["paymentState"]) == (
        503,
        "overloaded",
        "released",
    )
    assert gateway.upstream.arrived == []
    assert (await gateway.ask("POST", TARGET, proof, [b"{}"])).status == 200
    await gateway.check_balanced()
