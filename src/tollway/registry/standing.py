"""What is known of a listing beside its own words: how its paid calls went, and whether its endpoint is the provider's.

Pure. Nothing here decides about a call.
"""

import math
from dataclasses import dataclass

RANK_WEIGHT_MIN, RANK_WEIGHT_SPAN = 0.5, 0.75
"""Relevance is multiplied by `RANK_WEIGHT_MIN + RANK_WEIGHT_SPAN * rate²`, for a success rate from 0 to 1: by 1.25 where no call failed,
by 1 at a rate of 0.82 and for a listing that is not measured, by 0.5 where every call failed. So measured quality decides
among listings that fit about as well, and never makes one fit that does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Measured from the paid calls of 30 days, without those that the provider paid for. `success_ppm`: millionths of
    the calls. The latencies are those of the upstream, of the calls that succeeded; None when none did."""

    calls: int
    success_ppm: int
    p50_ms: int | None
    p95_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reputation:
    """`quality` None: too few calls to say anything. `verified_ms`: when the ownership of the endpoint's origin was last
    proved; None when it is not, or not any more."""

    quality: Quality | None = None
    verified_ms: int | None = None

    @property
    def is_verified(self) -> bool:
        return self.verified_ms is not None


UNKNOWN_REPUTATION = Reputation()


def rank_weight(quality: Quality | None) -> float:
    """By what the relevance of a listing is multiplied."""
    return 1.0 if quality is None else rate_weight(quality.success_ppm)


def rate_weight(success_ppm: int) -> float:
    rate = success_ppm / 1_000_000
    return RANK_WEIGHT_MIN + RANK_WEIGHT_SPAN * rate * rate


def round_up_ppm(rate: float) -> int:
    """The least `success_ppm` that is not below a rate. Rounded first: 0.29 is no binary number."""
    return math.ceil(round(rate * 1_000_000, 6))
