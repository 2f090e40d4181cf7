"""What a call that has ended says of its listing: that it succeeded and how fast, that it failed, or nothing. Pure.

It decides nothing about the call itself. A failure counts only where it is the upstream's own, or where it cost the
caller something: otherwise anybody could give a competitor a bad name for nothing.
"""

from tollway.errors import Code
from tollway.gateway.trip import Ticket
from tollway.ledger.book import Close
from tollway.ledger.call import CallState
from tollway.registry.listing import ChargeOn, Listing, is_charged
from tollway.registry.quality_tally import FAILED, Bucket, bucket_of

_GOOD_BELOW = 400
_UPSTREAM_FAULTS = frozenset(
    {Code.UPSTREAM_TIMEOUT.value, Code.UPSTREAM_BAD_RESPONSE.value, Code.UPSTREAM_UNREACHABLE.value}
)


def appraise(listing: Listing, ticket: Ticket, close: Close, *, after: CallState) -> Bucket | None:
    """`after`: where the call has ended; for one that was settled, that is not what `close` says.

    None for what says nothing: a call that was free, that its own provider paid for, or that repeats another; whose
    caller left, or whose gateway failed; and an answer that is the caller's own fault and that the caller did not pay.
    """
    if ticket.asset is None or ticket.claimed.before is not None:
        return None
    if ticket.payer in (listing.provider, listing.pay_to):
        return None
    status = close.upstream_status
    if status is None:
        # With the price given back, the request was not whole: that is in the caller's power too.
        return FAILED if after is CallState.UNKNOWN and close.error in _UPSTREAM_FAULTS else None
    if after is CallState.CONSUMED:
        return bucket_of(close.upstream_latency_ms or 0) if status < _GOOD_BELOW else FAILED
    return None if is_charged(ChargeOn.ANSWERED, status) else FAILED
