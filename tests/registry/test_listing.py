"""Charged responses, and the time in which a version of the terms counts."""

import pytest

from tollway.ids import Address, ChainId
from tollway.money import Price
from tollway.registry.listing import ChargeOn, Terms, UpstreamAuth, is_charged

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
    terms = Terms(
        price=Price.parse("1"),
        currency="USDC",
        networks=(ChainId(1),),
        pay_to=Address(20),
        operations=(),
        other_paths="serve",
        methods=(),
        described=(),
        status="active",
        charge_on=ChargeOn.SUCCESS,
        since_ms=0,
        until_ms=until_ms,
    )
    assert terms.is_in_force_since(1_000) is is_in_force


def test_a_secret_masks_its_repr() -> None:
    assert "hush" not in repr(UpstreamAuth(location="header", name="X", value="hush"))
