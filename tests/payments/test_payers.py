"""Who stands behind a signature: keys before contracts, four contracts at most, each asked once for one request."""

import pytest

from tollway.errors import ChainUnavailable, Code, Refusal
from tollway.identifiers import ZERO_ADDRESS, Address, ListingId
from tollway.identity.signatures import SignatureJudge
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.payers import Payers, Showing


@pytest.fixture
def payers(stall):
    return Payers(SignatureJudge(stall.chain, limits=DEFAULT_LIMITS))


@pytest.fixture
def chain_id(stall):
    return stall.chain.chain_ids[0]


@pytest.fixture
def show(stall, chain_id):
    def show(proof):
        request = stall.request()
        return Showing(proof, request, ListingId("api_1"), chain_id=chain_id, meter=stall.meter)

    return show


STRANGERS = [Address(bytes([n]) * 20) for n in range(1, 9)]


async def test_a_key_is_found_among_many_without_any_chain(stall, payers, show, chain_id) -> None:
    everybody = [*STRANGERS, stall.caller.address, stall.caller.address]
    for proof in (
        stall.proof(stall.hash()),
        stall.proof(stall.hash(), is_raw=True),
        stall.bound(stall.hash()),
    ):
        assert await payers.find_signers(show(proof), chain_id, everybody) == (stall.caller.address,)
    assert stall.chain.questions == 0
    assert stall.meter.charged == []


async def test_nobody_is_asked_twice_for_one_request(stall, payers, show, chain_id) -> None:
    showing = show(stall.proof(stall.hash(), stall.thief))
    for _ in range(3):
        assert await payers.find_signers(showing, chain_id, STRANGERS) == ()
    assert stall.chain.asked == {("call_contract", chain_id): 8}
    assert len(stall.meter.charged) == 1


async def test_nobody_and_the_zero_address_are_never_asked(stall, payers, show, chain_id) -> None:
    showing = show(stall.proof(stall.hash()))
    assert await payers.find_signers(showing, chain_id, []) == ()
    assert await payers.find_signers(showing, chain_id, [ZERO_ADDRESS]) == ()
    assert stall.chain.questions == 0


async def test_an_outage_is_no_answer_and_is_not_remembered(stall, payers, show, chain_id) -> None:
    wallet = stall.deploy_wallet(stall.caller)
    showing = show(stall.proof(stall.hash()))
    stall.chain.take_away(chain_id)
    with pytest.raises(ChainUnavailable):
        await payers.find_signers(showing, chain_id, [wallet])
    stall.chain.bring_back(chain_id)
    assert await payers.find_signers(showing, chain_id, [wallet]) == (wallet,)


async def test_trust_ends_with_the_first_no(stall, payers, show, chain_id) -> None:
    wallet, tx_hash = stall.deploy_wallet(stall.caller), stall.hash()
    await payers.find_signers(show(stall.proof(tx_hash)), chain_id, [wallet])
    stall.meter.left = 0
    assert await payers.find_signers(show(stall.proof(tx_hash)), chain_id, [wallet]) == (wallet,)
    assert await payers.find_signers(show(stall.proof(tx_hash, stall.thief)), chain_id, [wallet]) == ()
    with pytest.raises(Refusal) as refused:
        await payers.find_signers(show(stall.proof(tx_hash)), chain_id, [wallet])
    assert refused.value.problem.code is Code.RATE_LIMITED


async def test_a_signature_that_no_wallet_could_read_asks_nobody(stall, payers, show, chain_id) -> None:
    wallet = stall.deploy_wallet(stall.caller)
    showing = show(stall.proof(stall.hash(), signature=b"\x01" * 5_000))
    assert await payers.find_signers(showing, chain_id, [wallet]) == ()
    assert stall.chain.questions == 0
