"""The contract of `GasLedger`: nonces without gaps, open transactions, their cost."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import (
    CHAIN,
    GAS_KEY,
    NOW_MS,
    attempt_of,
    authorization_of,
    authorized_claim,
    close_of,
)
from tollway.ids import Address, ChainId, ListingId
from tollway.ledger.ledger import Claimed, Closed, CodeRecord, NonceUnavailable
from tollway.ledger.records import CallState, SettlementAttempt

LISTING = ListingId("api_1")
OTHER_KEY = Address(b"\xee" * 20)


async def settling(ledger: Any, nonce: int, **fields: Any) -> SettlementAttempt:
    """The attempt of a new call in `settling`."""
    claim = authorized_claim(authorization_of())
    assert isinstance(await ledger.claim(claim), Claimed)
    attempt = attempt_of(claim, nonce, **fields)
    close = close_of(claim, CallState.SETTLING)
    assert isinstance(await ledger.settle(close, attempt=attempt, digest=None), Closed)
    return attempt


def bump_of(attempt: SettlementAttempt, name: str, **fields: Any) -> SettlementAttempt:
    claim = authorized_claim(authorization_of(), call_id=attempt.call_id)
    return attempt_of(claim, attempt.nonce, name, **{"created_ms": NOW_MS + 1, **fields})


@pytest.fixture
def gas(ledgers: Any, ledger: Any) -> Any:
    return ledgers.gas()


async def test_the_nonces_of_a_new_signer_begin_at_zero_and_increase_by_one(ledger: Any, gas: Any) -> None:
    assert await gas.next_nonce(CHAIN, GAS_KEY) == 0
    await settling(ledger, 0)
    await settling(ledger, 1)
    assert await gas.next_nonce(CHAIN, GAS_KEY) == 2
    assert await gas.next_nonce(ChainId(1), GAS_KEY) == 0
    assert await gas.next_nonce(CHAIN, OTHER_KEY) == 0


async def test_raising_a_nonce_never_lowers_it(ledger: Any, gas: Any) -> None:
    assert await gas.raise_nonce(CHAIN, GAS_KEY, 7) == 7
    assert await gas.raise_nonce(CHAIN, GAS_KEY, 3) == 7
    assert await gas.next_nonce(CHAIN, GAS_KEY) == 7
    assert await gas.next_nonce(CHAIN, OTHER_KEY) == 0
    claim = authorized_claim(authorization_of())
    await ledger.claim(claim)
    close = close_of(claim, CallState.SETTLING)
    taken = await ledger.settle(close, attempt=attempt_of(claim, 0), digest=None)
    assert taken == NonceUnavailable(next_nonce=7)
    assert isinstance(await ledger.settle(close, attempt=attempt_of(claim, 7), digest=None), Closed)
    assert await gas.next_nonce(CHAIN, GAS_KEY) == 8


async def test_a_nonce_is_lowered_only_without_open_transactions_above_it(ledger: Any, gas: Any) -> None:
    attempt = await settling(ledger, 0)
    await gas.raise_nonce(CHAIN, GAS_KEY, 7)
    assert await gas.lower_nonce(CHAIN, GAS_KEY, 0) == 7
    assert await gas.lower_nonce(CHAIN, GAS_KEY, 9) == 7
    assert await gas.lower_nonce(CHAIN, OTHER_KEY, 3) == 0
    assert await gas.lower_nonce(CHAIN, GAS_KEY, 1) == 1
    assert await gas.next_nonce(CHAIN, GAS_KEY) == 1
    await gas.mark_mined(CHAIN, GAS_KEY, below=1)
    assert await gas.lower_nonce(CHAIN, GAS_KEY, 0) == 0
    await gas.raise_nonce(CHAIN, GAS_KEY, 1)
    await gas.reopen(CHAIN, GAS_KEY, since_nonce=0, since_ms=attempt.created_ms)
    assert await gas.lower_nonce(CHAIN, GAS_KEY, 0) == 1
    await settling(ledger, 1)


async def test_a_passed_nonce_without_a_transaction_can_be_filled_once(ledger: Any, gas: Any) -> None:
    await gas.raise_nonce(CHAIN, GAS_KEY, 2)
    above, other = await settling(ledger, 2), await settling(ledger, 3)
    filler = bump_of(replace(above, nonce=1), "filler")
    assert await ledger.add_attempt(filler) == NonceUnavailable(next_nonce=4)
    assert await ledger.add_attempt(filler, is_filling=True) is True
    assert (
        await ledger.add_attempt(filler, is_filling=True) is True
    )  # the same entry again, after its response was lost
    rival = bump_of(replace(other, nonce=1), "rival")
    assert await ledger.add_attempt(rival, is_filling=True) is False
    assert await gas.next_nonce(CHAIN, GAS_KEY) == 4
    waiting = await gas.open_attempts(CHAIN, GAS_KEY, limit=9)
    assert [one.tx_hash for one in waiting] == [filler.tx_hash, above.tx_hash, other.tx_hash]


async def test_keepers_that_fill_at_once_fill_once(ledger: Any, gas: Any) -> None:
    await gas.raise_nonce(CHAIN, GAS_KEY, 1)
    above = [await settling(ledger, nonce) for nonce in range(1, 6)]
    fillers = [bump_of(replace(one, nonce=0), f"filler {one.nonce}") for one in above]
    filled = await asyncio.gather(*(ledger.add_attempt(one, is_filling=True) for one in fillers))
    assert sorted(filled) == [False] * 4 + [True]


async def test_raising_and_settling_at_once_leave_no_hole(ledger: Any, gas: Any) -> None:
    await asyncio.gather(settling(ledger, 0), *(gas.raise_nonce(CHAIN, GAS_KEY, 0) for _ in range(5)))
    assert await gas.next_nonce(CHAIN, GAS_KEY) == 1


async def test_open_attempts_are_listed_by_nonce_and_age_until_their_nonce_is_mined(
    ledger: Any, gas: Any
) -> None:
    first = await settling(ledger, 0)
    second = await settling(ledger, 1)
    bump = bump_of(first, "bump")
    assert await ledger.add_attempt(bump) is True
    await settling(ledger, 0, sender=OTHER_KEY)
    assert await gas.open_attempts(CHAIN, GAS_KEY, limit=9) == (first, bump, second)
    assert await gas.open_attempts(CHAIN, GAS_KEY, limit=1) == (first,)
    assert await gas.open_attempts(ChainId(1), GAS_KEY, limit=9) == ()
    await gas.mark_mined(CHAIN, GAS_KEY, below=0)
    assert len(await gas.open_attempts(CHAIN, GAS_KEY, limit=9)) == 3
    await gas.mark_mined(CHAIN, GAS_KEY, below=1)
    assert await gas.open_attempts(CHAIN, GAS_KEY, limit=9) == (second,)
    assert len(await gas.open_attempts(CHAIN, OTHER_KEY, limit=9)) == 1
    assert await ledger.attempts_of(first.call_id) == (first, bump)


async def test_settling_for_a_listing_costs_what_it_may_cost_until_it_is_known(ledger: Any, gas: Any) -> None:
    first = await settling(ledger, 0, fee_max_wei=1_000)
    second = await settling(ledger, 1, fee_max_wei=2_000, created_ms=NOW_MS + 5)
    await settling(ledger, 2, fee_max_wei=9_000, listing_id=ListingId("api_2"))
    await settling(ledger, 0, fee_max_wei=9_000, chain_id=ChainId(1))

    async def spent(since_ms: int = NOW_MS) -> Any:
        return (await gas.gas_spent_wei(CHAIN, since_ms=since_ms)).get(LISTING, 0)

    assert await spent() == 3_000
    assert await spent(NOW_MS + 1) == 2_000
    assert await spent(NOW_MS + 6) == 0
    bump = bump_of(first, "bump", fee_max_wei=1_500, created_ms=NOW_MS)
    await ledger.add_attempt(bump)
    assert await spent() == 3_500  # attempts of one nonce count once
    await gas.record_cost(bump, cost_wei=700)
    assert await spent() == 2_700
    await gas.record_cost(second, cost_wei=5)
    assert await spent() == 705


async def test_the_costs_of_a_day_add_up_beyond_64_bits(ledger: Any, gas: Any) -> None:
    for nonce in range(3):
        await settling(ledger, nonce, fee_max_wei=2**62 + 1)
    assert await gas.gas_spent_wei(CHAIN, since_ms=0) == {LISTING: 3 * (2**62 + 1)}


async def test_the_cost_of_a_network_is_summed_by_listing(ledger: Any, gas: Any) -> None:
    assert await gas.gas_spent_wei(CHAIN, since_ms=0) == {}
    other = ListingId("api_2")
    for nonce, listing_id in enumerate((LISTING, other, LISTING)):
        await settling(ledger, nonce, fee_max_wei=10**nonce, listing_id=listing_id)
    await settling(ledger, 0, fee_max_wei=7, sender=OTHER_KEY)
    await settling(ledger, 0, fee_max_wei=9_000, chain_id=ChainId(1))
    assert await gas.gas_spent_wei(CHAIN, since_ms=0) == {LISTING: 108, other: 10}
    assert await gas.gas_spent_wei(CHAIN, since_ms=NOW_MS + 1) == {}


async def test_what_a_deep_reorganisation_has_taken_back_is_open_again(ledger: Any, gas: Any) -> None:
    attempts = [await settling(ledger, nonce, created_ms=NOW_MS + nonce) for nonce in range(4)]
    foreign = await settling(ledger, 0, sender=OTHER_KEY)
    for key in (GAS_KEY, OTHER_KEY):
        await gas.mark_mined(CHAIN, key, below=3)
    await gas.reopen(CHAIN, GAS_KEY, since_nonce=1, since_ms=NOW_MS)
    assert await gas.open_attempts(CHAIN, GAS_KEY, limit=9) == tuple(attempts[1:])
    await gas.mark_mined(CHAIN, GAS_KEY, below=3)
    await gas.reopen(CHAIN, GAS_KEY, since_nonce=0, since_ms=NOW_MS + 2)
    assert await gas.open_attempts(CHAIN, GAS_KEY, limit=9) == tuple(attempts[2:])
    assert await gas.open_attempts(CHAIN, OTHER_KEY, limit=9) == ()
    await gas.reopen(CHAIN, OTHER_KEY, since_nonce=0, since_ms=0)
    assert await gas.open_attempts(CHAIN, OTHER_KEY, limit=9) == (foreign,)


async def test_the_cost_of_payers_with_code_is_separate_and_their_reverts_count_by_code(
    ledger: Any, gas: Any
) -> None:
    ours, theirs = b"\x01" * 32, b"\x02" * 32
    await settling(ledger, 0, fee_max_wei=1_000)
    first = await settling(ledger, 1, fee_max_wei=2_000, code_hash=ours)
    second = await settling(ledger, 2, fee_max_wei=2**62 + 1, code_hash=ours, created_ms=NOW_MS + 5)
    third = await settling(ledger, 3, fee_max_wei=2**62 + 1, code_hash=theirs, listing_id=ListingId("api_2"))
    await settling(ledger, 0, fee_max_wei=9_000, code_hash=ours, chain_id=ChainId(1))
    told = {LISTING: 2**62 + 2_001, "api_2": 2**62 + 1}
    assert await gas.wallet_gas_wei(CHAIN, since_ms=NOW_MS) == told
    assert await gas.wallet_gas_wei(CHAIN, since_ms=NOW_MS + 1) == {LISTING: 2**62 + 1}
    assert await gas.reverting_codes(CHAIN, since_ms=NOW_MS) == {}
    bump = bump_of(first, "bump", fee_max_wei=3_000)
    await ledger.add_attempt(bump)
    await gas.record_wallet_cost(bump, cost_wei=700, is_reverted=True)
    await gas.record_wallet_cost(third, cost_wei=70, is_reverted=False)
    await gas.record_wallet_cost(replace(first, nonce=0), cost_wei=7, is_reverted=True)  # of a plain wallet
    assert await gas.wallet_gas_wei(CHAIN, since_ms=NOW_MS) == {LISTING: 2**62 + 701, "api_2": 70}
    assert await gas.reverting_codes(CHAIN, since_ms=NOW_MS) == {ours: CodeRecord(signed=2, reverted=1)}
    assert await gas.reverting_codes(CHAIN, since_ms=second.created_ms) == {}


async def test_a_nonce_that_is_taken_again_belongs_to_what_was_signed_last(ledger: Any, gas: Any) -> None:
    first = await settling(ledger, 0, fee_max_wei=500, code_hash=b"\x01" * 32)
    await gas.record_wallet_cost(first, cost_wei=400, is_reverted=True)
    await gas.mark_mined(CHAIN, GAS_KEY, below=1)
    await gas.lower_nonce(CHAIN, GAS_KEY, 0)
    await settling(ledger, 0, fee_max_wei=900, code_hash=b"\x02" * 32)
    assert await gas.wallet_gas_wei(CHAIN, since_ms=0) == {LISTING: 900}
    assert await gas.reverting_codes(CHAIN, since_ms=0) == {}
