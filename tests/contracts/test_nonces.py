"""The nonce of a bound signature with which a call runs again: it counts once, as the nonce of a claim does."""

import asyncio
from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, claim_on, close_of, finish_of
from tests.kit.ledger_steps import pay
from tollway.ids import keccak256
from tollway.ledger.ledger import Claim, Claimed, Exhausted, Fenced, NonceUsed, PlainEnded
from tollway.ledger.records import CallState

DIGEST = keccak256(b"the request")
FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))
SILENT = {"http_status": None, "upstream_status": None}


def bound(payment: Any, nonce: bytes, **fields: Any) -> Claim:
    return claim_on(payment, 4, **{"digest": DIGEST, "nonce": nonce, "ends_plain": True, **fields})


async def run_unknown(ledger: Any, claim: Claim) -> Claim:
    """A call without an outcome."""
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.close(close_of(claim, CallState.UNKNOWN, **SILENT))
    return claim


async def learn_terms(ledger: Any) -> None:
    """Afterwards a claim without a reason against it is plain."""
    await ledger.claim(claim_on(await pay(ledger, 10, "of the terms"), 4))


async def reopen(ledger: Any, claim: Claim, nonce: bytes | None, *, epoch: int = 1, **fields: Any) -> Any:
    return await ledger.reopen(claim.call_id, epoch=epoch, now_ms=NOW_MS, nonce=nonce, **fields)


@pytest.mark.parametrize("key", [None, "key"], ids=["plain", "decided"])
async def test_a_nonce_that_ran_a_call_again_buys_no_other_call(ledger: Any, key: str | None) -> None:
    await learn_terms(ledger)
    payment = await pay(ledger, 100)
    claim = await run_unknown(ledger, bound(payment, FIRST))
    assert isinstance(await reopen(ledger, claim, SECOND), Claimed)
    running = await ledger.claim(bound(payment, SECOND, idempotency_key=key))
    assert running == NonceUsed(call_id=claim.call_id, state=CallState.FORWARDING)
    await ledger.close(close_of(claim, epoch=2))
    for nonce in (FIRST, SECOND):
        outcome = await ledger.claim(bound(payment, nonce, idempotency_key=key))
        assert outcome == NonceUsed(call_id=claim.call_id, state=CallState.CONSUMED)
    assert isinstance(await ledger.claim(bound(payment, THIRD)), Claimed)
    assert (await ledger.audit()).wrong == ()


async def test_a_used_nonce_is_found_on_a_spent_payment(ledger: Any) -> None:
    payment = await pay(ledger, 4)
    claim = await run_unknown(ledger, bound(payment, FIRST))
    await reopen(ledger, claim, SECOND)
    await ledger.close(close_of(claim, epoch=2))
    used = NonceUsed(call_id=claim.call_id, state=CallState.CONSUMED)
    assert await ledger.find_exhausted(bound(payment, SECOND)) == used
    assert await ledger.find_exhausted(bound(payment, THIRD)) == Exhausted(remaining_units=0)


async def test_the_nonce_of_another_call_runs_no_call_again(ledgers: Any) -> None:
    """The signed request of one call, in the hands of another caller, must not take the repeat of the next call."""
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    payment = await pay(one, 100)
    served = bound(payment, FIRST)
    await one.claim(served)
    await one.close(close_of(served))
    claim = await run_unknown(one, bound(payment, SECOND))
    assert await reopen(two, claim, FIRST) == NonceUsed(call_id=served.call_id, state=CallState.CONSUMED)
    third = await run_unknown(one, bound(payment, THIRD, digest=keccak256(b"another")))
    assert isinstance(await reopen(two, claim, b"\x04" * 32), Claimed)
    used = NonceUsed(call_id=claim.call_id, state=CallState.FORWARDING)
    assert await reopen(one, third, b"\x04" * 32) == used
    assert isinstance(await reopen(one, third, b"\x05" * 32), Claimed)
    assert (await one.audit()).wrong == ()


async def test_a_call_runs_again_with_its_own_nonces(ledger: Any) -> None:
    claim = await run_unknown(ledger, bound(await pay(ledger, 100), FIRST))
    assert isinstance(await reopen(ledger, claim, SECOND), Claimed)
    await ledger.close(close_of(claim, CallState.UNKNOWN, epoch=2, **SILENT))
    assert isinstance(await reopen(ledger, claim, SECOND, epoch=2), Claimed)


async def test_a_call_runs_again_with_the_nonce_of_its_claim(ledger: Any) -> None:
    claim = await run_unknown(ledger, bound(await pay(ledger, 100), FIRST))
    assert isinstance(await reopen(ledger, claim, FIRST), Claimed)


async def test_the_nonces_of_a_released_call_are_free(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = await run_unknown(ledger, bound(payment, FIRST))
    await reopen(ledger, claim, SECOND)
    await ledger.close(close_of(claim, CallState.UNKNOWN, epoch=2, **SILENT))
    assert await ledger.resolve(claim.call_id, CallState.RELEASED, now_ms=NOW_MS)
    other = await run_unknown(ledger, bound(payment, SECOND))
    third = await run_unknown(ledger, bound(payment, FIRST, digest=keccak256(b"another")))
    assert await ledger.resolve(other.call_id, CallState.RELEASED, now_ms=NOW_MS)
    # The row of the released call is replaced.
    assert isinstance(await reopen(ledger, third, SECOND), Claimed)
    used = NonceUsed(call_id=third.call_id, state=CallState.FORWARDING)
    assert await ledger.claim(bound(payment, SECOND)) == used


async def test_a_nonce_counts_in_its_transaction_only(ledger: Any) -> None:
    claim = await run_unknown(ledger, bound(await pay(ledger, 100), FIRST))
    await reopen(ledger, claim, SECOND)
    assert isinstance(await ledger.claim(bound(await pay(ledger, 100, "other"), SECOND)), Claimed)


@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_bound_signature_that_runs_a_call_again_ends_the_plain_form(
    ledger: Any, is_cut: bool
) -> None:
    await learn_terms(ledger)
    payment = await pay(ledger, 100)
    claim = claim_on(payment, 4, digest=DIGEST, is_plain=True)
    if is_cut:
        await ledger.claim(claim)
        await ledger.close(close_of(claim))
        ledger.finish(finish_of(claim, is_cut=True))
    else:
        await run_unknown(ledger, claim)
    assert isinstance(await reopen(ledger, claim, FIRST), Claimed)
    await ledger.close(close_of(claim, CallState.UNKNOWN, epoch=2, **SILENT))
    assert isinstance(await ledger.claim(claim_on(payment, 4, is_plain=True)), PlainEnded)
    assert isinstance(await reopen(ledger, claim, None, epoch=2, is_plain=True), Fenced)
    assert isinstance(await ledger.claim(bound(payment, SECOND, digest=keccak256(b"another"))), Claimed)
    assert (await ledger.audit()).wrong == ()


async def test_a_reopen_that_is_refused_takes_no_nonce(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = await run_unknown(ledger, bound(payment, FIRST))
    assert await reopen(ledger, claim, SECOND, epoch=2) == Fenced()
    other = bound(payment, SECOND, digest=keccak256(b"another"))
    assert isinstance(await ledger.claim(other), Claimed)


async def test_of_many_uses_of_one_nonce_at_two_gateways_one_counts(ledgers: Any) -> None:
    """Reopens of two calls, and claims under a key."""
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    await learn_terms(one)
    await learn_terms(two)
    for number in range(8):
        payment = await pay(one, 100, f"tx {number}")
        calls = [
            await run_unknown(one, bound(payment, FIRST)),
            await run_unknown(two, bound(payment, SECOND, digest=keccak256(b"another"))),
        ]
        outcomes = await asyncio.gather(
            *(reopen(at, claim, THIRD) for at, claim in zip((two, one), calls, strict=True)),
            *(at.claim(bound(payment, THIRD, idempotency_key="key")) for at in (one, two)),
        )
        granted = [one for one in outcomes if isinstance(one, Claimed)]
        assert len(granted) == 1, outcomes
    assert (await one.audit()).wrong == ()
