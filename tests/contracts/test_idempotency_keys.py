"""An idempotency key of a wallet has one call, also with many gateways at the same time."""

import asyncio
from dataclasses import replace
from typing import Any

from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    PROVIDER,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
    wait_finished,
)
from tests.kit.ledger_steps import pay, read_rest
from tollway.ids import Address
from tollway.ledger.ledger import Claimed, StoredResponse
from tollway.ledger.records import CallState, Delivery, KeyedCall, KeyTaken
from tollway.limits import DEFAULT_LIMITS

KEY = "one"
TTL_MS = DEFAULT_LIMITS.response_ttl_s * 1000
OTHER = Address(b"\x01" * 20)


def keyed(payment: Any, key: str | None = KEY, **fields: Any) -> Any:
    return claim_on(payment, 1, idempotency_key=key, **fields)


async def test_finds_the_call_of_a_key_and_what_it_holds(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = keyed(payment, created_ms=NOW_MS)
    await ledger.claim(claim)
    await ledger.claim(keyed(await pay(ledger, name="other", payer=OTHER)))
    await ledger.claim(keyed(payment, "another"))
    await ledger.close(close_of(claim, CallState.UNKNOWN))
    named = KeyedCall(
        call_id=claim.call_id,
        listing_id=claim.listing_id,
        digest=claim.digest,
        state=CallState.UNKNOWN,
        epoch=1,
        price=claim.price,
        price_units=1,
        payment_id=payment.id,
        moved_ms=NOW_MS,
    )
    assert await ledger.find_keyed_call(PAYER, KEY, since_ms=NOW_MS) == named
    assert await ledger.find_keyed_call(PAYER, KEY, since_ms=NOW_MS + 1) is None
    assert await ledger.find_keyed_call(PAYER, "nothing", since_ms=0) is None
    assert (await ledger.find_keyed_call(OTHER, KEY, since_ms=0)).call_id != claim.call_id


async def test_a_key_is_claimed_once_and_costs_nothing_more(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    first = keyed(payment)
    assert isinstance(await ledger.claim(first), Claimed)
    named = await ledger.find_keyed_call(PAYER, KEY, since_ms=0)
    for _ in range(2):
        assert await ledger.claim(keyed(payment)) == KeyTaken(call=named)
    assert await read_rest(ledger) == 99
    assert isinstance(await ledger.claim(keyed(payment, "another")), Claimed)
    assert isinstance(await ledger.claim(keyed(payment, None)), Claimed)
    assert isinstance(await ledger.claim(keyed(payment, None)), Claimed)


async def test_a_key_belongs_to_its_wallet_on_every_rail(ledger: Any) -> None:
    claim = keyed(await pay(ledger, 100))
    await ledger.claim(claim)
    other = keyed(await pay(ledger, name="second"))
    authorized = authorized_claim(authorization_of(), idempotency_key=KEY)
    for again in (other, authorized):
        outcome = await ledger.claim(again)
        assert isinstance(outcome, KeyTaken)
        assert outcome.call.call_id == claim.call_id
    assert await ledger.find_authorized_call(authorized.authorization.key) is None
    stranger = keyed(await pay(ledger, name="other", payer=OTHER))
    assert isinstance(await ledger.claim(stranger), Claimed)


async def test_the_call_of_a_key_names_the_authorisation_that_pays_it(ledger: Any) -> None:
    claim = authorized_claim(authorization_of(), idempotency_key=KEY)
    await ledger.claim(claim)
    outcome = await ledger.claim(authorized_claim(authorization_of(), idempotency_key=KEY))
    assert outcome == KeyTaken(call=await ledger.find_keyed_call(PAYER, KEY, since_ms=0))
    assert (outcome.call.payment_id, outcome.call.authorization) == (None, claim.authorization.key)


async def test_a_released_call_gives_its_key_back(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    first = keyed(payment)
    await ledger.claim(first)
    await ledger.close(close_of(first, CallState.RELEASED))
    assert await ledger.find_keyed_call(PAYER, KEY, since_ms=0) is None
    assert isinstance(await ledger.claim(keyed(payment)), Claimed)


async def test_a_later_released_call_hides_no_other_call_of_the_key(ledger: Any) -> None:
    """The order of arrival and the order of claims differ, because bodies take time to arrive."""
    payment = await pay(ledger, 100)
    late, early = keyed(payment, created_ms=NOW_MS + 5), keyed(payment, created_ms=NOW_MS)
    await ledger.claim(late)
    await ledger.close(close_of(late, CallState.RELEASED))
    assert isinstance(await ledger.claim(early), Claimed)
    assert (await ledger.find_keyed_call(PAYER, KEY, since_ms=0)).call_id == early.call_id
    assert isinstance(await ledger.claim(keyed(payment)), KeyTaken)


async def test_a_key_is_taken_until_its_call_is_released(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    for to in (CallState.FORWARDING, CallState.CONSUMED, CallState.UNKNOWN, CallState.RELEASED):
        claim = keyed(payment, to)
        await ledger.claim(claim)
        if to is not CallState.FORWARDING:
            await ledger.close(close_of(claim, to))
        is_taken = isinstance(await ledger.claim(keyed(payment, to)), KeyTaken)
        assert is_taken is (to is not CallState.RELEASED), to


async def test_a_key_is_deleted_with_its_response(ledgers: Any, ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await ledger.claim(keyed(payment, created_ms=NOW_MS))
    ledgers.clock.ms += TTL_MS
    assert isinstance(await ledger.claim(keyed(payment, created_ms=NOW_MS + TTL_MS)), KeyTaken)
    ledgers.clock.ms += 1
    assert isinstance(await ledger.claim(keyed(payment, created_ms=NOW_MS + TTL_MS + 1)), Claimed)


async def test_a_key_goes_before_every_other_refusal(ledger: Any) -> None:
    payment = await pay(ledger, 1)
    claim = keyed(payment, nonce=b"\x07" * 32, ends_plain=True)
    await ledger.claim(claim)
    await ledger.close(close_of(claim))
    again = replace(keyed(payment), nonce=claim.nonce, is_first_price=True)
    for repeat in (again, keyed(payment, is_plain=True), keyed(payment)):
        assert isinstance(await ledger.claim(repeat), KeyTaken)


async def test_a_free_call_has_no_wallet_whose_key_it_could_be(ledger: Any) -> None:
    for _ in range(2):
        assert isinstance(await ledger.claim(keyed(None)), Claimed)


async def test_a_key_is_still_taken_while_its_call_runs_again(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = keyed(payment)
    await ledger.claim(claim)
    await ledger.close(close_of(claim, CallState.UNKNOWN))
    await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    outcome = await ledger.claim(keyed(payment))
    assert isinstance(outcome, KeyTaken)
    assert (outcome.call.state, outcome.call.epoch) == (CallState.FORWARDING, 2)


FINISHES: list[tuple[dict[str, Any] | None, bool, bool]] = [
    (None, False, False),
    ({}, False, True),
    ({"delivery": Delivery.PARTIAL}, False, True),
    ({"delivery": Delivery.PARTIAL, "is_cut": True}, True, True),
]
"""The end of a body -> whether the response is lost, and whether it is delivered."""


async def test_the_call_of_a_key_has_the_end_of_its_response(ledgers: Any, ledger: Any) -> None:
    stored = StoredResponse(status=200, headers=(), body=b"")
    for finish, is_lost, is_delivered in FINISHES:
        claim = keyed(await pay(ledger, 100), f"key {finish}")
        await ledger.claim(claim)
        await ledger.close(close_of(claim))
        if finish is not None:
            ledger.finish(finish_of(claim, **finish))
            await wait_finished(ledger, claim.call_id)
        await ledgers.answers().keep(claim.call_id, stored, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
        call = await ledger.find_keyed_call(PAYER, f"key {finish}", since_ms=0)
        ended = (call.is_lost, call.is_delivered, call.has_stored_response)
        assert ended == (is_lost, is_delivered, True), finish


async def test_of_claims_under_one_key_at_two_gateways_one_is_granted(ledgers: Any, ledger: Any) -> None:
    """Each claim has another payment, so that they share only the key."""
    both = (ledger, await ledgers.gateway("two"))
    for round_number in range(15):
        claims = [keyed(await pay(ledger, 1, f"tx {round_number} {n}"), f"{round_number}") for n in range(4)]
        outcomes = await asyncio.gather(*(both[n % 2].claim(claim) for n, claim in enumerate(claims)))
        granted = [claim for claim, one in zip(claims, outcomes, strict=True) if isinstance(one, Claimed)]
        taken = {one.call.call_id for one in outcomes if isinstance(one, KeyTaken)}
        assert [claim.call_id for claim in granted] == list(taken)
    assert (await ledger.audit()).wrong == ()


async def test_of_claims_under_one_key_on_two_rails_one_is_granted(ledgers: Any, ledger: Any) -> None:
    both = (ledger, await ledgers.gateway("two"))
    claims = [keyed(await pay(ledger, 1, f"tx {n}")) for n in range(10)]
    claims += [authorized_claim(authorization_of(), idempotency_key=KEY) for _ in range(10)]
    outcomes = await asyncio.gather(*(both[n % 2].claim(claim) for n, claim in enumerate(claims)))
    assert sum(isinstance(outcome, Claimed) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, KeyTaken) for outcome in outcomes) == len(claims) - 1


async def test_many_keys_at_two_gateways_wait_for_each_other_and_never_for_ever(
    ledgers: Any, ledger: Any
) -> None:
    other = await ledgers.gateway("two")
    payments = [await pay(ledger, 50, f"tx {n}") for n in range(3)]
    claims = [keyed(payments[n % 3], f"key {n % 40}") for n in range(120)]
    outcomes = await asyncio.gather(
        *((ledger, other)[n // 60].claim(claim) for n, claim in enumerate(claims))
    )
    assert sum(isinstance(outcome, Claimed) for outcome in outcomes) == 40
    assert sum(isinstance(outcome, KeyTaken) for outcome in outcomes) == 80
