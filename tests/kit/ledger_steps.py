"""Steps of a test of the ledger: pay, open, settle, look. `ledger`: in memory or over a database, so its type is `Any`."""

from typing import Any

from tests.kit.clocks import Clock
from tests.kit.ledger_records import (
    NOW_MS,
    PROVIDER,
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    new_payment,
    transfer_in,
    tx_hash,
)
from tollway.ledger.ledger import Claim, Claimed
from tollway.ledger.records import CallState, Payment
from tollway.limits import DEFAULT_LIMITS


async def pay(ledger: Any, value_units: int = 10, name: str = "tx", **fields: Any) -> Payment:
    """Records a payment; its transaction is made of `name`."""
    payment: Payment
    (payment,) = await ledger.record_payments([new_payment(value_units, name, **fields)], now_ms=NOW_MS)
    return payment


async def learn_terms(ledger: Any, *currencies: str) -> None:
    """Afterwards this gateway knows the terms of such calls, paid and free: a claim with other terms is never plain."""
    payment = await pay(ledger, 10, "of another payer", payer=PROVIDER)
    for currency in currencies or ("USDC",):
        await ledger.claim(claim_on(payment, currency=currency))
        await ledger.claim(claim_on(None, currency=currency))


async def read_rest(ledger: Any, name: str = "tx") -> int:
    """The units left of the payment with that name."""
    payment: Payment
    (payment,) = await ledger.find_payments(tx_hash(name))
    return payment.remaining_units


async def read_state(ledger: Any, claim: Claim) -> CallState:
    found: CallState = (await ledger.find_call(claim.call_id)).state
    return found


async def open_authorized(ledger: Any, price_units: int = 4, **fields: Any) -> Claim:
    """A call that an authorisation of its own pays."""
    claim = authorized_claim(authorization_of(price_units), **fields)
    assert isinstance(await ledger.claim(claim), Claimed)
    return claim


async def settle(ledger: Any, claim: Claim, nonce: int | None = 0, **fields: Any) -> Any:
    """Moves a call to settling, with a transaction at that nonce; on None without one."""
    attempt = None if nonce is None else attempt_of(claim, nonce)
    return await ledger.settle(close_of(claim, CallState.SETTLING, **fields), attempt=attempt, digest=None)


async def conclude(ledger: Any, claim: Claim, name: str = "settled", **fields: Any) -> Any:
    """Ends a settlement by the transfer of that name, in epoch 1, with its caller waiting."""
    options = {"epoch": 1, "transfer": transfer_in(name), "is_orphaned": False, "now_ms": NOW_MS}
    return await ledger.conclude(claim.call_id, **{**options, **fields})


async def outlive(shared: Clock, *living: Any) -> None:
    """Lets a whole lease pass in which only these gateways renew, without a gap. `shared`: the clock of the database."""
    for _ in range(10):
        shared.ms += int(DEFAULT_LIMITS.owner_lease_s * 100)
        for ledger in living:
            await ledger.renew_ownership(now_ms=NOW_MS)


async def assert_balanced(ledger: Any) -> None:
    assert (await ledger.audit()).wrong == ()
