"""What is known of a listing beside its own words: how its paid calls went, and whether its endpoint is the provider's.

Pure. Nothing here decides about a call.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Measured from the paid calls of 30 days, without those that the provider paid for. `success_ppm`: millionths of
    the calls. The latencies are those of the upstream, of the calls that succeeded; None when none did."""

    calls: int
    success_ppm: int
    p50_ms: int | None
    p95_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`quality` None: too few calls to say anything. `verified_ms`: when the ownership of the endpoint's origin was last
    proved; None when it is not, or not any more."""

    quality: Quality | None = None
    verified_ms: int | None = None

    @property
    def is_verified(self) -> bool:
        return self.verified_ms is not None


UNKNOWN_STANDING = Standing()
