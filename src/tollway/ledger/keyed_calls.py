"""Idempotency keys as the ledger knows them: one key of one wallet names one call, at every gateway. Pure.

Nothing here is a secret: who may ask for a key's call, and what he is told, is for the gateway to say.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tollway.identifiers import Address, CallId, ListingId
from tollway.ledger.authorization import AuthorizationKey
from tollway.ledger.call import CallState


class KeyName(NamedTuple):
    """Two wallets may use the same key."""

    payer: Address
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCall:
    """The call that an idempotency key of its payer named. Its price is that of its claim, whatever is asked by now.

    `payment_id`: the payment that was shown for it; `authorization`: what was to pay it instead, or has. `has_stored_response`: it
    is stored. `is_lost`: consumed, but its upstream cut the answer off, and no repeat has brought it again. `is_delivered`: how
    its answer reached the caller is written; until then somebody may still be reading it. `moved_ms`: its last move.
    """

    call_id: CallId
    listing_id: ListingId
    digest: bytes
    state: CallState
    epoch: int
    price: str
    price_units: int
    payment_id: int | None
    moved_ms: int
    authorization: AuthorizationKey | None = None
    has_stored_response: bool = False
    is_lost: bool = False
    is_delivered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTaken:
    """The idempotency key of this claim has named a call already, perhaps for another request. Nothing changed."""

    call: KeyedCall
