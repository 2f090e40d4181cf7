"""Finds the signer: keys before contracts, at most four contracts, each called once per request."""

import pytest

from tollway.errors import ChainUnavailable, Code, Refusal
from tollway.identity.signatures import SignatureVerifier
from tollway.ids import ZERO_ADDRESS, Address, ListingId
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.transaction_verifier import PresentedProof, SignerCheck


@pytest.fixture
def payers(harness):
    return SignerCheck(SignatureVerifier(harness.chain, limits=DEFAULT_LIMITS))


@pytest.fixture
def chain_id(harness):
    return harness.chain.chain_ids[0]


@pytest.fixture
def show(harness, chain_id):
    def show(proof):
        request = harness.request()
        return PresentedProof(proof, request, ListingId("api_1"), chain_id=chain_id, quota=harness.quota)

    return show


STRANGERS = [Address(bytes([n]) * 20) for n in range(1, 9)]


async def test_a_key_is_found_among_many_without_any_chain(harness, payers, show, chain_id) -> None:
    everybody = [*STRANGERS, harness.caller.address, harness.caller.address]
    for proof in (
        harness.proof(harness.hash()),
        harness.proof(harness.hash(), is_raw=True),
        harness.bound(harness.hash()),
    ):
        assert await payers.find_signers(show(proof), chain_id, everybody) == (harness.caller.address,)
    assert harness.chain.request_count == 0
    assert harness.quota.charged == []


async def test_each_wallet_is_called_once_per_request(harness, payers, show, chain_id) -> None:
    presented = show(harness.proof(harness.hash(), harness.thief))
    for _ in range(3):
        assert await payers.find_signers(presented, chain_id, STRANGERS) == ()
    assert harness.chain.requests == {("call_contract", chain_id): 8}
    assert len(harness.quota.charged) == 1


async def test_no_payer_and_the_zero_address_are_never_called(harness, payers, show, chain_id) -> None:
    presented = show(harness.proof(harness.hash()))
    assert await payers.find_signers(presented, chain_id, []) == ()
    assert await payers.find_signers(presented, chain_id, [ZERO_ADDRESS]) == ()
    assert harness.chain.request_count == 0


async def test_an_outage_is_not_a_result_and_is_not_cached(harness, payers, show, chain_id) -> None:
    wallet = harness.deploy_wallet(harness.caller)
    presented = show(harness.proof(harness.hash()))
    harness.chain.disconnect(chain_id)
    with pytest.raises(ChainUnavailable):
        await payers.find_signers(presented, chain_id, [wallet])
    harness.chain.reconnect(chain_id)
    assert await payers.find_signers(presented, chain_id, [wallet]) == (wallet,)


async def test_one_refusal_ends_the_free_checks_of_a_wallet(harness, payers, show, chain_id) -> None:
    wallet, tx_hash = harness.deploy_wallet(harness.caller), harness.hash()
    await payers.find_signers(show(harness.proof(tx_hash)), chain_id, [wallet])
    harness.quota.left = 0
    assert await payers.find_signers(show(harness.proof(tx_hash)), chain_id, [wallet]) == (wallet,)
    assert await payers.find_signers(show(harness.proof(tx_hash, harness.thief)), chain_id, [wallet]) == ()
    with pytest.raises(Refusal) as refused:
        await payers.find_signers(show(harness.proof(tx_hash)), chain_id, [wallet])
    assert refused.value.problem.code is Code.RATE_LIMITED


async def test_an_impossible_signature_calls_no_wallet(harness, payers, show, chain_id) -> None:
    wallet = harness.deploy_wallet(harness.caller)
    presented = show(harness.proof(harness.hash(), signature=b"\x01" * 5_000))
    assert await payers.find_signers(presented, chain_id, [wallet]) == ()
    assert harness.chain.request_count == 0
