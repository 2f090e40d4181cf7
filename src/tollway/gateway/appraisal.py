"""What a call that has ended says of its listing: that it succeeded and how fast, that it failed, or nothing. Pure.

It decides nothing about the call itself. A failure counts only where it is the upstream's own, or where it cost the
caller something: otherwise anybody could give a competitor a bad name for nothing.
"""

from tollway.errors import Code
from tollway.identifiers import Address
from tollway.registry.listing import ChargeOn, Listing, is_charged
from tollway.registry.quality_tally import FAILED, Bucket, bucket_of

_GOOD_BELOW = 400
_UPSTREAM_FAULTS = frozenset(
    {Code.UPSTREAM_TIMEOUT.value, Code.UPSTREAM_BAD_RESPONSE.value, Code.UPSTREAM_UNREACHABLE.value}
)


def classify(
    listing: Listing,
    payer: Address | None,
    *,
    payment_state: str,
    upstream_status: int | None,
    upstream_latency_ms: int | None,
    error: str | None,
) -> Bucket | None:
    """`payer`: of a paid call that repeats no other; None for any other call. `payment_state`: `charged`, `released` or
    `held`, where the call has ended. `upstream_status` None: no answer came, for the reason that `error` names.

    None for what says nothing: a call that was free, that its own provider paid for, or that repeats another; whose
    caller left, or whose gateway failed; and an answer that is the caller's own fault and that the caller did not pay.
    """
    if payer is None or payer in (listing.provider, listing.pay_to):
        return None
    if upstream_status is None:
        # With the price given back, the request was not whole: that is in the caller's power too.
        return FAILED if payment_state == "held" and error in _UPSTREAM_FAULTS else None
    if payment_state == "charged":
        return bucket_of(upstream_latency_ms or 0) if upstream_status < _GOOD_BELOW else FAILED
    return None if is_charged(ChargeOn.ANSWERED, upstream_status) else FAILED
