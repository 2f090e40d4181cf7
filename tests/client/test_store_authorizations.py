"""Authorisations in the payment store: counted until released, leased to one call at a time, with one final state."""

from dataclasses import replace

import pytest

from tests.kit.call_io import PAYER, USDC, build_authorization, build_transfer
from tollway.client.call_io import (
    AuthorizationState,
    OverBudget,
    Stored,
)
from tollway.client.quote import Cap
from tollway.client.store import LEASE_MS, PaymentStore
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId, TxHash

TRANSFER = build_transfer(
    tx_hash=TxHash(b"\x03" * 32), pay_to=Address(b"\x33" * 20), nonce=0, confirmations=1
)
OPEN, REQUEST = AuthorizationState.OPEN, b"\x0e" * 32
RELEASED, ABANDONED = AuthorizationState.RELEASED, AuthorizationState.ABANDONED
EXPIRED, CHARGED = AuthorizationState.EXPIRED, AuthorizationState.CHARGED


@pytest.mark.parametrize("state", list(AuthorizationState))
def test_an_authorisation_counts_as_spent_until_it_can_never_be_settled(store, state):
    budget = Cap.parse("0.01 USDC")
    assert store.store_authorization(build_authorization(1), request=REQUEST, budget=budget) == Stored()
    store.record_authorization(build_authorization(1).nonce, state, None)
    is_free = state in (AuthorizationState.EXPIRED, AuthorizationState.UNSENT)
    second = store.store_authorization(build_authorization(2), request=REQUEST, budget=budget)
    assert (second == Stored()) is is_free
    assert isinstance(store.store(TRANSFER, budget=budget), OverBudget)
    store.record_authorization(build_authorization(2).nonce, AuthorizationState.EXPIRED, None)
    assert (store.store(TRANSFER, budget=budget) == Stored()) is is_free


def test_an_authorisation_that_the_budget_refuses_leaves_nothing(store):
    store.store_authorization(build_authorization(3, amount=10_000), request=REQUEST, budget=None)
    told = store.store_authorization(build_authorization(1), request=REQUEST, budget=Cap.parse("0.015 USDC"))
    assert told == OverBudget(spent_atto=10**16, budget_atto=15 * 10**15)
    assert [signed.nonce for signed in store.list_authorizations(PAYER)] == [build_authorization(3).nonce]


def test_an_open_authorisation_is_for_the_same_request_and_one_asker_at_a_time(store_path):
    clock = [1_700_000_000_000]
    store = PaymentStore(store_path, now_ms=lambda: clock[0])
    first = build_authorization(1)
    store.store_authorization(first, request=REQUEST, budget=None)

    def ask(request=REQUEST, payer=PAYER, left=()):
        return store.lease_authorization(payer=payer, request=request, left=left)

    assert ask() is None  # the call that signed it still has the lease
    assert ask(left=(first.nonce,)) == first
    assert ask() is None
    store.record_authorization(first.nonce, OPEN, None)
    assert ask(request=b"\x0f" * 32) is None
    assert ask(payer=Address(b"\x02" * 20)) is None
    assert ask() == first
    assert ask() is None
    clock[0] += LEASE_MS  # its process is gone
    assert ask() == first


@pytest.mark.parametrize("before", [RELEASED, ABANDONED])
@pytest.mark.parametrize("state", list(AuthorizationState))
def test_only_the_chain_decides_about_one_that_the_gateway_or_its_owner_ended(store, before, state):
    signed = build_authorization(1)
    store.store_authorization(signed, request=REQUEST, budget=None)
    assert store.record_authorization(signed.nonce, before, None)
    is_by_chain = state in (EXPIRED, CHARGED)
    assert store.record_authorization(signed.nonce, state, None) is is_by_chain
    (kept,) = store.list_authorizations(PAYER)
    assert kept.state is (state if is_by_chain else before)
    assert store.lease_authorization(payer=PAYER, request=REQUEST) is None


@pytest.mark.parametrize("state", [RELEASED, CHARGED])
@pytest.mark.parametrize("end", [OPEN, RELEASED, CHARGED])
def test_one_that_is_sent_again_keeps_its_state_and_its_proof_until_a_run_gets_the_outcome(store, state, end):
    first = build_authorization(1)
    store.store_authorization(first, request=REQUEST, budget=None)
    assert store.record_authorization(first.nonce, state, None, is_sent_again=True)
    left = store.lease_authorization(payer=PAYER, request=REQUEST)
    assert left == replace(first, state=state)
    for closed in (ABANDONED, AuthorizationState.UNSENT):
        assert not store.record_authorization(first.nonce, closed, None)
    store.record_authorization(first.nonce, end, None)
    (kept,) = store.list_authorizations(PAYER)
    assert kept.state is (CHARGED if end is CHARGED else state)
    assert store.lease_authorization(payer=PAYER, request=REQUEST) == (left if end is OPEN else None)
    assert store.spent(PAYER) == {"USDC": 10**16}


def test_a_new_authorisation_of_the_request_replaces_one_that_was_to_be_sent_again(store):
    for number, state in ((1, RELEASED), (2, OPEN), (3, RELEASED)):
        request = b"\x0f" * 32 if number == 3 else REQUEST
        store.store_authorization(build_authorization(number), request=request, budget=None)
        store.record_authorization(build_authorization(number).nonce, state, None, is_sent_again=True)
    assert [signed.proof for signed in store.list_authorizations(PAYER)] == ["", "proof 2", "proof 3"]


@pytest.mark.parametrize("state", list(AuthorizationState))
def test_those_that_count_and_have_no_outcome_on_the_chain_are_asked_about(store_path, state):
    store = PaymentStore(store_path, now_ms=lambda: 1_700_000_090_000)
    for number in (1, 2):
        store.store_authorization(build_authorization(number), request=REQUEST, budget=None)
        store.record_authorization(build_authorization(number).nonce, state, None)
    is_found = state in (OPEN, RELEASED, ABANDONED)
    chains = [USDC.chain_id]
    found = store.find_lapsed_authorizations(payer=PAYER, chains=chains)
    assert [signed.nonce[0] for signed in found] == ([1, 2] if is_found else [])
    found = store.find_lapsed_authorizations(payer=PAYER, chains=chains, nonce=build_authorization(2).nonce)
    assert [signed.nonce[0] for signed in found] == ([2] if is_found else [])


def test_they_are_recalled_when_their_time_is_over_on_these_chains_the_oldest_first(store_path):
    now_s = [1_700_000_000]
    store = PaymentStore(store_path, now_ms=lambda: now_s[0] * 1000)
    for number, state in enumerate((RELEASED, OPEN, CHARGED), start=1):
        signed = build_authorization(number, valid_before=now_s[0] + 100 - number)
        store.store_authorization(signed, request=REQUEST, budget=None)
        store.record_authorization(signed.nonce, state, None)

    def recall(*chains):
        return [
            signed.nonce[0]
            for signed in store.find_lapsed_authorizations(
                payer=PAYER, chains=[ChainId(chain) for chain in chains]
            )
        ]

    now_s[0] += 97
    assert recall(84532) == []
    now_s[0] += 1
    assert recall(84532) == [2]
    now_s[0] += 1
    assert (recall(84532, 1), recall(1), recall()) == ([2, 1], [], [])


def test_an_outcome_is_kept_and_the_proof_is_not(store):
    first, paid = build_authorization(1, proof="secret" * 1_000), TxHash(b"\x0a" * 32)
    store.store_authorization(first, request=REQUEST, budget=None)
    store.record_authorization(first.nonce, AuthorizationState.CHARGED, paid)
    for state in (OPEN, AuthorizationState.RELEASED):
        store.record_authorization(first.nonce, state, None)
    assert not store.abandon_authorization(first.nonce)
    (kept,) = store.list_authorizations(PAYER)
    assert kept == replace(first, state=AuthorizationState.CHARGED, tx_hash=paid, proof="")
    assert store.lease_authorization(payer=PAYER, request=REQUEST) is None
    assert b"secret" not in store.path.read_bytes()


def test_the_same_nonce_is_never_stored_twice(store):
    store.store_authorization(build_authorization(1), request=REQUEST, budget=None)
    with pytest.raises(StorageUnavailable):
        store.store_authorization(build_authorization(1), request=REQUEST, budget=None)
