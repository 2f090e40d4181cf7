"""Calls that hold a price without an outcome, and the safe requests that may run them again, at every gateway. Pure.

Without an idempotency key nobody has named the call; what makes it the same is the payment and the digest. Who may ask,
and what he is told, is for the gateway to say.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tollway.identifiers import CallId
from tollway.ledger.call import CallState


class RequestName(NamedTuple):
    """The same request, shown with the same payment."""

    payment_id: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that holds a price without an outcome. Its price is that of its claim, whatever is asked by now."""

    call_id: CallId
    state: CallState
    epoch: int
    attempts: int
    price: str
    price_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatsOpenCall:
    """The same safe request has a call that waits to run again. Nothing changed: reopen that one, and where it does not
    let itself be reopened, claim a call of its own (`Claim.is_separate_call`)."""

    call: OpenCall
