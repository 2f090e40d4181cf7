"""The ticket of a held call that an authorisation pays: what its provider can decide, and how the call ends."""

from collections.abc import AsyncIterator
from importlib.resources import files

import pytest

from tests.kit.ledger_records import authorized_claim, close_of
from tests.kit.pages import RULES, PageReader
from tests.kit.payer import AuthorizationSigner
from tests.kit.signed_in import SELLER, USDC, SignedInHarness, open_signed_in
from tollway.ledger.ledger import Claim, Claimed
from tollway.ledger.records import CallRecord, CallState
from tollway.payments.held_calls import ChargeFault

ROUTE = "/my/calls/{call_id}/resolution"
VALID_S = 60
CHARGE = "It was served: take the price"
RELEASE = "It was not: give it back"


@pytest.fixture
async def harness() -> AsyncIterator[SignedInHarness]:
    async with open_signed_in() as harness:
        await harness.sign_in(SELLER)
        yield harness


async def hold(harness: SignedInHarness) -> Claim:
    """A call by authorisation whose upstream sent no response in time."""
    services, chain_id = harness.services, RULES.chain_id
    now_s = services.now_ms // 1000
    signer = AuthorizationSigner(asset=USDC, payee=SELLER.address, valid_before=now_s + VALID_S)
    services.chain.mine(chain_id, time=now_s)
    assert USDC.token is not None
    services.chain.fund(chain_id, USDC.token, signer.address, 10**9)
    claim = authorized_claim(signer.authorize(), block_number=1, provider=SELLER.address)
    assert isinstance(await services.ledger.claim(claim), Claimed)
    await services.ledger.close(close_of(claim, CallState.UNKNOWN, upstream_status=None))
    return claim


async def record_of(harness: SignedInHarness, claim: Claim) -> CallRecord:
    found = await harness.services.call_history.find_call(claim.call_id)
    assert found is not None
    return found


async def post(harness: SignedInHarness, claim: Claim, outcome: str) -> tuple[int, str]:
    """The status, and the words of the page."""
    fields = {"outcome": outcome, "confirmed": "yes"}
    answer = await harness.post(f"/my/calls/{claim.call_id}/resolution", fields, route=ROUTE)
    return answer.status_code, PageReader(answer.text).words


async def test_a_charge_settles_and_the_ticket_says_so_until_the_transfer(harness: SignedInHarness) -> None:
    claim = await hold(harness)
    path = f"/my/calls/{claim.call_id}"
    words = (await harness.read(path)).words
    assert CHARGE in words
    assert RELEASE in words
    for _ in range(2):  # the same decision again changes nothing
        assert (await post(harness, claim, "consumed"))[0] == 303
        words = (await harness.read(path)).words
        assert "its signed payment is being settled" in words
        assert "Decide this call" not in words
    assert (await post(harness, claim, "released"))[0] == 412
    assert (await record_of(harness, claim)).state is CallState.SETTLING
    await harness.services.settlement.gas_budget.refresh()
    for _ in range(2):
        await harness.services.settlement.sweep()
    record = await record_of(harness, claim)
    assert record.state is CallState.CONSUMED
    transaction = str(record.tx_hash)
    assert f"{transaction[:10]}…{transaction[-6:]}" in (await harness.read(path)).words


async def test_a_held_call_whose_authorisation_is_over_can_only_be_given_back(
    harness: SignedInHarness,
) -> None:
    claim = await hold(harness)
    harness.services.now_ms += VALID_S * 1000
    words = (await harness.read(f"/my/calls/{claim.call_id}")).words
    assert "It can only be given back: the signed payment was valid for a limited time" in words
    assert CHARGE not in words
    assert RELEASE in words
    status, words = await post(harness, claim, "consumed")
    assert status == 412
    assert "It can only be released" in words
    assert (await record_of(harness, claim)).state is CallState.UNKNOWN
    assert (await post(harness, claim, "released"))[0] == 303
    assert (await record_of(harness, claim)).state is CallState.RELEASED


async def test_a_cancelled_authorisation_can_only_be_given_back(harness: SignedInHarness) -> None:
    claim = await hold(harness)
    assert USDC.token is not None
    payer, nonce = claim.authorization.payer, claim.authorization.nonce  # type: ignore[union-attr]  # it has one
    harness.services.chain.cancel_authorization(RULES.chain_id, USDC.token, payer=payer, nonce=nonce)
    words = (await harness.read(f"/my/calls/{claim.call_id}")).words
    assert "the payer has cancelled the signed payment" in words
    assert CHARGE not in words


def test_the_ticket_has_a_sentence_for_each_reason() -> None:
    template = (files("tollway.web") / "pages/templates/my_call.j2").read_text()
    assert all(f'"{fault.value}": _(' in template for fault in ChargeFault)
