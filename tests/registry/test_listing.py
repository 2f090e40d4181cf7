"""Charged responses, and the time in which a version of the terms counts."""

from dataclasses import replace

import pytest

from tests.kit.listings import sample_listing
from tollway.ids import Address
from tollway.registry.listing import ChargeOn, UpstreamAuth, is_charged

SUCCESSES = (200, 201, 204, 206, 299, 304)
ANSWERS = (300, 301, 307, 400, 404, 409, 410, 415, 422, 451, 499)
FAILURES = (100, 199, 401, 402, 403, 407, 408, 425, 429, 500, 502, 503, 599)


@pytest.mark.parametrize(
    ("charge_on", "charged"),
    [(ChargeOn.SUCCESS, SUCCESSES), (ChargeOn.ANSWERED, (*SUCCESSES, *ANSWERS))],
)
def test_the_statuses_that_are_charged(charge_on: ChargeOn, charged: tuple[int, ...]) -> None:
    """A success always, another answer of the API only where its provider charges for answers, a failure never."""
    statuses = (*SUCCESSES, *ANSWERS, *FAILURES)
    assert tuple(status for status in statuses if is_charged(charge_on, status)) == charged


@pytest.mark.parametrize(
    ("until_ms", "is_in_force"), [(None, True), (1_001, True), (1_000, True), (999, False)]
)
def test_terms_in_force_since(until_ms: int | None, is_in_force: bool) -> None:
    terms = replace(sample_listing(provider=Address(20)).current_terms(since_ms=0), until_ms=until_ms)
    assert terms.is_in_force_since(1_000) is is_in_force


def test_a_secret_masks_its_repr() -> None:
    assert "hush" not in repr(UpstreamAuth(location="header", name="X", value="hush"))
