"""The contract of `Ledger` for claims by authorisation."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import (
    NOW_MS,
    PAYEE,
    PAYER,
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    new_payment,
    transfer_in,
)
from tests.kit.ledger_steps import assert_balanced, conclude
from tollway.ids import Address
from tollway.ledger.ledger import (
    AuthorizationTaken,
    Claimed,
    Closed,
    Fenced,
    InDebt,
    NotCovered,
    UnfinalLimit,
)
from tollway.ledger.records import AuthorizedCall, CallState, Cover, Dialect, Rail

OTHER = Address(b"\x01" * 20)
HOUR_MS = 3_600_000


async def settle(ledger: Any, claim: Any, nonce: int | None = 0) -> None:
    attempt = None if nonce is None else attempt_of(claim, nonce)
    settled = await ledger.settle(close_of(claim, CallState.SETTLING), attempt=attempt, digest=None)
    assert settled == Closed(remaining_units=None)


async def bring(
    ledger: Any,
    to: CallState,
    price_units: int = 4,
    nonce: int | None = 0,
    payer: Address = PAYER,
    **fields: Any,
) -> Any:
    """Makes a call paid by an authorisation, in that state."""
    claim = authorized_claim(authorization_of(price_units, payer=payer), **fields)
    assert isinstance(await ledger.claim(claim), Claimed)
    if to in (CallState.SETTLING, CallState.CONSUMED, CallState.REORGED):
        await settle(ledger, claim, nonce)
        if to is not CallState.SETTLING:
            assert await conclude(ledger, claim, claim.call_id) is CallState.CONSUMED
        if to is CallState.REORGED:
            (payment,) = await ledger.find_payments(transfer_in(claim.call_id).tx_hash)
            await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    elif to is not CallState.FORWARDING:
        await ledger.close(close_of(claim, to))
    assert (await ledger.find_call(claim.call_id)).state is to
    return claim


@pytest.mark.parametrize(
    ("dialect", "rail"),
    [(Dialect.X402_V2, Rail.X402), (Dialect.X402_V1, Rail.X402), (Dialect.MPP, Rail.MPP)],
)
async def test_a_claim_by_authorisation_opens_a_call_that_takes_nothing_yet(
    ledger: Any, dialect: Dialect, rail: Rail
) -> None:
    authorization = authorization_of(4, dialect=dialect, challenge_id="challenge", valid_before=2**256 - 1)
    network = bytes(range(16))
    claim = authorized_claim(
        authorization, block_number=77, method="POST", idempotency_key="key", client_network=network
    )
    assert await ledger.claim(claim) == Claimed(epoch=1, remaining_units=0, rail=rail)
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.rail, record.tx_hash) == (CallState.FORWARDING, rail, None)
    assert (record.price_units, record.payer, record.pay_to, record.asset) == (4, PAYER, PAYEE, claim.asset)
    assert await ledger.find_authorized_call(authorization.key) == AuthorizedCall(
        authorization=authorization,
        call_id=claim.call_id,
        listing_id=claim.listing_id,
        method="POST",
        digest=claim.digest,
        state=CallState.FORWARDING,
        epoch=1,
        attempts=1,
        price="0.01",
        price_units=4,
        is_orphaned=False,
        is_lost=False,
        has_stored_response=False,
        seen_block=77,
        transfer=None,
        moved_ms=record.moved_ms,
        created_ms=claim.created_ms,
        idempotency_key="key",
        client_network=network,
    )
    await assert_balanced(ledger)


async def test_an_unknown_authorisation_is_not_found(ledger: Any) -> None:
    authorization = authorization_of()
    await ledger.claim(authorized_claim(authorization))
    assert await ledger.find_authorized_call(authorization_of().key) is None
    for other in ({"chain_id": 1}, {"asset": "0x" + "11" * 20}, {"payer": OTHER}, {"nonce": b"\x09" * 32}):
        assert await ledger.find_authorized_call(authorization.key._replace(**other)) is None


CONTRADICTIONS: list[dict[str, Any]] = [
    {"payment_id": 1},
    {"cover": None},
    {"authorization": None},
    {"payer": OTHER},
    {"pay_to": OTHER},
    {"chain_id": 1},
    {"asset": "native"},
    {"price_units": 3},
    {"price_units": 5},
    {"decimals": 18},
]


async def test_a_claim_that_contradicts_its_authorisation_is_refused(ledger: Any) -> None:
    for wrong in CONTRADICTIONS:
        claim = replace(authorized_claim(authorization_of(4)), **wrong)
        with pytest.raises(ValueError, match="authorisation"):
            await ledger.claim(claim)
        assert await ledger.find_call(claim.call_id) is None, wrong


async def test_base_units_of_a_fine_asset_are_its_ledger_units_to_the_last_digit(ledger: Any) -> None:
    claim = authorized_claim(authorization_of(4 * 10**9), price_units=4, decimals=18)
    assert isinstance(await ledger.claim(claim), Claimed)
    assert claim.authorization is not None
    found = await ledger.find_authorized_call(claim.authorization.key)
    assert found.authorization.base_units == 4 * 10**9


# One authorisation, one call


async def test_fifty_claims_of_one_authorisation_open_one_call(ledger: Any) -> None:
    authorization = authorization_of()
    claims = [authorized_claim(authorization) for _ in range(50)]
    outcomes = await asyncio.gather(*(ledger.claim(claim) for claim in claims))
    (winner,) = [
        claim.call_id for claim, one in zip(claims, outcomes, strict=True) if isinstance(one, Claimed)
    ]
    taken = AuthorizationTaken(call_id=winner, state=CallState.FORWARDING)
    assert sum(one == taken for one in outcomes) == 49
    assert (await ledger.audit()).calls == 1


async def test_an_authorisation_pays_no_second_call(ledger: Any) -> None:
    states = [state for state in CallState if state not in (CallState.RELEASED, CallState.REORGED)]
    for before in (*states, CallState.REORGED):  # the last one leaves a debt to the next claims
        claim = await bring(ledger, before, nonce=None)
        again = authorized_claim(claim.authorization)
        outcome = await ledger.claim(again)
        assert outcome == AuthorizationTaken(call_id=claim.call_id, state=before), before
        assert await ledger.find_call(again.call_id) is None, before
        await assert_balanced(ledger)


async def test_an_authorisation_of_a_released_call_may_pay_another(ledger: Any) -> None:
    claim = await bring(ledger, CallState.RELEASED)
    anew = replace(claim.authorization, signature=b"\x06" * 65)
    second = authorized_claim(anew, block_number=500, client_network=b"\x07" * 16)
    assert isinstance(await ledger.claim(second), Claimed)
    found = await ledger.find_authorized_call(anew.key)
    assert found.client_network == b"\x07" * 16
    assert (found.call_id, found.authorization, found.seen_block) == (second.call_id, anew, 500)
    assert await ledger.claim(authorized_claim(anew)) == AuthorizationTaken(
        call_id=second.call_id, state=CallState.FORWARDING
    )
    assert (await ledger.find_call(claim.call_id)).state is CallState.RELEASED
    await assert_balanced(ledger)


async def test_a_settlement_that_failed_finally_frees_the_authorisation(ledger: Any) -> None:
    claim = await bring(ledger, CallState.SETTLING)
    assert await conclude(ledger, claim, transfer=None) is CallState.RELEASED
    assert isinstance(await ledger.claim(authorized_claim(claim.authorization)), Claimed)


async def test_an_authorisation_that_moved_pays_nothing_else_although_its_call_is_released(
    ledger: Any,
) -> None:
    claim = await bring(ledger, CallState.SETTLING, method="POST")
    await ledger.mark_orphaned(claim.call_id, epoch=1)
    assert await conclude(ledger, claim, is_orphaned=True) is CallState.RELEASED
    again = await ledger.claim(authorized_claim(claim.authorization))
    assert again == AuthorizationTaken(call_id=claim.call_id, state=CallState.RELEASED)


# Cover


async def test_fifty_authorisations_buy_no_more_than_the_balance_covers(ledger: Any) -> None:
    claims = [authorized_claim(authorization_of(10), balance_units=79) for _ in range(50)]
    outcomes = await asyncio.gather(*(ledger.claim(claim) for claim in claims))
    assert sum(isinstance(one, Claimed) for one in outcomes) == 7
    assert sum(one == NotCovered(held_units=70) for one in outcomes) == 43
    assert (await ledger.audit()).calls == 7


async def test_what_runs_settles_or_may_run_again_counts_against_the_balance(ledger: Any) -> None:
    held_units = {
        CallState.FORWARDING: 4,
        CallState.SETTLING: 4,
        CallState.UNKNOWN: 4,
        CallState.RELEASED: 0,
        CallState.CONSUMED: 0,
    }
    for number, (before, units) in enumerate(held_units.items(), start=1):
        payer = Address(bytes([number]) * 20)
        await bring(ledger, before, nonce=None, payer=payer)
        dear = authorized_claim(authorization_of(20, payer=payer), balance_units=19, block_number=101)
        assert await ledger.claim(dear) == NotCovered(held_units=units), before
        just = replace(dear, cover=Cover(balance_units=20 + units, block_number=101))
        assert isinstance(await ledger.claim(just), Claimed), before


@pytest.mark.parametrize(("seconds", "is_counted"), [(59, True), (60, False)])
async def test_an_unknown_call_counts_until_its_authorisation_has_expired(
    ledgers: Any, ledger: Any, seconds: int, is_counted: bool
) -> None:
    """And a little longer, because a block time may be behind the clock of the batch, which decides."""
    claim = await bring(ledger, CallState.UNKNOWN)
    await ledgers.set_clocks((claim.authorization.valid_before + seconds) * 1000, ledger)
    outcome = await ledger.claim(authorized_claim(authorization_of(4), 4))
    assert outcome == NotCovered(held_units=4) if is_counted else isinstance(outcome, Claimed)


async def test_calls_that_run_again_were_covered_beside_each_other(ledger: Any) -> None:
    """Each call is sent and gets no response head; a balance of one price never has two running calls."""
    claims = [authorized_claim(authorization_of(4), 4) for _ in range(3)]
    running = 0
    for claim in claims:
        if isinstance(await ledger.claim(claim), Claimed):
            await ledger.close(close_of(claim, CallState.UNKNOWN))
    for claim in claims:
        running += isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    assert running == 1
    assert await ledger.claim(authorized_claim(authorization_of(4), 4)) == NotCovered(held_units=4)


@pytest.mark.parametrize(("block_number", "is_stale"), [(100, True), (101, False), (102, False)])
async def test_what_settled_after_the_balance_was_seen_counts_too(
    ledger: Any, block_number: int, is_stale: bool
) -> None:
    await bring(ledger, CallState.CONSUMED)  # its transfer is in block 101
    claim = authorized_claim(authorization_of(10), balance_units=13, block_number=block_number)
    outcome = await ledger.claim(claim)
    assert outcome == NotCovered(held_units=4) if is_stale else isinstance(outcome, Claimed)


async def test_credit_that_settled_after_the_balance_was_seen_counts_too(ledger: Any) -> None:
    claim = await bring(ledger, CallState.SETTLING, method="POST")
    await ledger.mark_orphaned(claim.call_id, epoch=1)
    assert await conclude(ledger, claim, is_orphaned=True) is CallState.RELEASED
    assert await ledger.claim(authorized_claim(authorization_of(10), balance_units=13)) == NotCovered(
        held_units=4
    )


async def test_another_wallet_asset_or_chain_has_a_balance_of_its_own(ledger: Any) -> None:
    await bring(ledger, CallState.FORWARDING)
    others: list[dict[str, Any]] = [{"chain_id": 1}, {"token": Address(b"\x02" * 20)}, {"payer": OTHER}]
    for other in others:
        claim = authorized_claim(authorization_of(10, **other), balance_units=10)
        assert isinstance(await ledger.claim(claim), Claimed), other


async def test_authorisations_to_every_payee_share_the_balance(ledger: Any) -> None:
    await bring(ledger, CallState.FORWARDING)
    claim = authorized_claim(authorization_of(10, payee=OTHER), balance_units=13)
    assert await ledger.claim(claim) == NotCovered(held_units=4)


async def test_two_gateways_never_promise_one_balance_twice(ledgers: Any, ledger: Any) -> None:
    """Each wallet covers two of six authorisations, which share no row."""
    both = (ledger, await ledgers.gateway("two"))
    for wallet in (Address(bytes([number]) * 20) for number in range(1, 16)):
        shown = [authorization_of(4, payer=wallet) for _ in range(6)]
        claims = [authorized_claim(one, balance_units=10) for one in shown]
        outcomes = await asyncio.gather(*(both[n % 2].claim(claim) for n, claim in enumerate(claims)))
        assert sum(isinstance(one, Claimed) for one in outcomes) == 2
        assert outcomes.count(NotCovered(held_units=8)) == 4
    await assert_balanced(ledger)


async def test_claims_that_race_with_a_conclusion_are_never_granted_on_a_stale_balance(ledger: Any) -> None:
    """The balance was 10 in block 100; 4 of it leave in block 101."""
    running = await bring(ledger, CallState.SETTLING)
    claims = [authorized_claim(authorization_of(3), balance_units=10) for _ in range(6)]
    outcomes = await asyncio.gather(
        *(ledger.claim(claim) for claim in claims[:3]),
        conclude(ledger, running),
        *(ledger.claim(claim) for claim in claims[3:]),
    )
    assert sum(isinstance(one, Claimed) for one in outcomes) == 2
    await assert_balanced(ledger)


# Debts and limits


async def test_a_payer_in_debt_is_refused_by_authorisation_in_the_same_account(ledger: Any) -> None:
    lost = await bring(ledger, CallState.REORGED)
    assert [debt.units for debt in await ledger.debts(PAYER)] == [4]
    assert await ledger.claim(authorized_claim(authorization_of())) == InDebt(units=4)
    elsewhere = authorized_claim(authorization_of(payee=OTHER))
    assert isinstance(await ledger.claim(elsewhere), Claimed)
    again = await ledger.claim(authorized_claim(lost.authorization))
    assert again == AuthorizationTaken(call_id=lost.call_id, state=CallState.REORGED)


async def test_unfinal_value_is_limited_for_authorisations_too(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one", unfinal_max_nano={"USDC": 10_000})
    (payment,) = await ledger.record_payments([new_payment(9, is_final=False)], now_ms=NOW_MS)
    assert isinstance(await ledger.claim(claim_on(payment, 3)), Claimed)
    await bring(ledger, CallState.CONSUMED, 4, 0)
    assert await ledger.claim(authorized_claim(authorization_of(4))) == UnfinalLimit()
    assert isinstance(await ledger.claim(authorized_claim(authorization_of(3))), Claimed)
    assert await ledger.claim(authorized_claim(authorization_of(1))) == UnfinalLimit()
    assert isinstance(await ledger.claim(authorized_claim(authorization_of(10, payer=OTHER))), Claimed)


# Moves


async def test_an_unsettled_call_ends_without_payment(ledger: Any) -> None:
    for after in (CallState.RELEASED, CallState.UNKNOWN):
        claim = await bring(ledger, CallState.FORWARDING)
        assert await ledger.close(close_of(claim, after)) == Closed(remaining_units=None)
        assert (await ledger.find_authorized_call(claim.authorization.key)).state is after
        await assert_balanced(ledger)


async def test_nothing_is_consumed_before_it_settled(ledger: Any) -> None:
    claim = await bring(ledger, CallState.FORWARDING)
    assert await ledger.close(close_of(claim, CallState.CONSUMED)) == Fenced()
    other = await bring(ledger, CallState.UNKNOWN)
    assert await ledger.resolve(other.call_id, CallState.RELEASED, now_ms=NOW_MS) is CallState.RELEASED
    await assert_balanced(ledger)


async def test_an_unknown_call_runs_again_under_its_authorisation_and_time_alone_never_releases_it(
    ledger: Any,
) -> None:
    claim = await bring(ledger, CallState.UNKNOWN)
    reopened = await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    assert reopened == Claimed(epoch=2, remaining_units=0, rail=Rail.X402, before=CallState.UNKNOWN)
    await ledger.close(close_of(claim, CallState.UNKNOWN, epoch=2))
    assert await ledger.recover(now_ms=NOW_MS + 25 * HOUR_MS) == 0  # its transfer may have happened
    assert (await ledger.find_authorized_call(claim.authorization.key)).state is CallState.UNKNOWN


async def test_a_cover_is_for_the_block_in_which_it_was_seen(ledger: Any) -> None:
    claim = replace(authorized_claim(authorization_of(5)), cover=Cover(balance_units=4, block_number=100))
    assert await ledger.claim(claim) == NotCovered(held_units=0)
