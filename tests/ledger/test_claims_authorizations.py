"""The authorisations that count against a balance, and those that may be claimed."""

from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, authorization_of
from tollway.ids import Address, CallId
from tollway.ledger.claims import (
    EXPIRY_SLACK_S,
    KnownAuthorization,
    PendingAuthorizations,
    payer_account_of,
    rail_of,
)
from tollway.ledger.ledger import AuthorizationTaken, NotCovered
from tollway.ledger.records import CallState, Cover, Dialect, Rail

COVER = Cover(balance_units=10, block_number=100)
NOW_S = NOW_MS // 1000
EXPIRED = NOW_S - EXPIRY_SLACK_S


def known(authorization: Any = None, **fields: Any) -> KnownAuthorization:
    defaults: dict[str, Any] = {
        "key": (authorization or authorization_of()).key,
        "call_id": CallId("call_1"),
        "state": CallState.FORWARDING,
        "price_units": 4,
        "settled_block": None,
        "valid_before": NOW_S + 120,
    }
    return KnownAuthorization(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"state": CallState.FORWARDING}, True),
        ({"state": CallState.SETTLING}, True),
        ({"state": CallState.FORWARDING, "valid_before": EXPIRED}, True),
        ({"state": CallState.SETTLING, "valid_before": EXPIRED}, True),
        ({"state": CallState.UNKNOWN}, True),  # the same request may run again under it
        ({"state": CallState.UNKNOWN, "valid_before": EXPIRED + 1}, True),
        ({"state": CallState.UNKNOWN, "valid_before": EXPIRED}, False),
        ({"state": CallState.UNKNOWN, "settled_block": 100}, False),
        ({"state": CallState.RELEASED}, False),
        ({"state": CallState.CONSUMED, "settled_block": 100}, False),
        ({"state": CallState.CONSUMED, "settled_block": 101}, True),
        ({"state": CallState.REORGED, "settled_block": 101}, True),
        ({"state": CallState.RELEASED, "settled_block": 101}, True),  # credit by now, but it left the wallet
        ({"state": CallState.FORWARDING, "settled_block": 99}, False),  # the repeat of a lost one, long paid
        ({"state": CallState.FORWARDING, "settled_block": 101}, True),
    ],
)
def test_what_may_still_leave_or_left_unseen_counts(fields: dict[str, Any], counts: bool) -> None:
    authorization = authorization_of()
    covers = PendingAuthorizations([known(**fields)])
    assert covers.held_units(payer_account_of(authorization.key), COVER, now_s=NOW_S) == (4 if counts else 0)
    refusal = covers.refuse(authorization, cover=COVER, price_units=7, now_s=NOW_S)
    assert refusal == (NotCovered(held_units=4) if counts else None)
    assert covers.refuse(authorization, cover=COVER, price_units=6, now_s=NOW_S) is None


@pytest.mark.parametrize(
    ("state", "settled_block", "is_taken"),
    [
        *((state, None, state is not CallState.RELEASED) for state in CallState),
        *((state, 5, True) for state in CallState),
    ],
)
def test_an_authorisation_is_free_when_its_call_is_released_and_nothing_moved(
    state: CallState, settled_block: int | None, is_taken: bool
) -> None:
    authorization = authorization_of()
    covers = PendingAuthorizations([known(authorization, state=state, settled_block=settled_block)])
    taken = AuthorizationTaken(call_id=CallId("call_1"), state=state)
    refusal = covers.refuse(authorization, cover=COVER, price_units=1, now_s=NOW_S)
    assert refusal == (taken if is_taken else None)


def test_without_a_cover_nothing_is_covered() -> None:
    refusal = PendingAuthorizations([]).refuse(authorization_of(), cover=None, price_units=0, now_s=NOW_S)
    assert refusal == NotCovered(held_units=0)


def test_grants_count_for_those_that_come_after() -> None:
    covers = PendingAuthorizations([])
    first = authorization_of()
    for number in range(3):
        one = first if number == 0 else authorization_of()
        assert covers.refuse(one, cover=COVER, price_units=3, now_s=NOW_S) is None
        covers.grant(one, call_id=CallId(f"call_{number}"), price_units=3)
    assert covers.refuse(authorization_of(), cover=COVER, price_units=3, now_s=NOW_S) == NotCovered(
        held_units=9
    )
    assert covers.running_units(payer_account_of(first.key), now_s=NOW_S) == 9
    assert covers.refuse(first, cover=COVER, price_units=1, now_s=NOW_S) == AuthorizationTaken(
        call_id=CallId("call_0"), state=CallState.FORWARDING
    )


@pytest.mark.parametrize(
    "other", [{"chain_id": 1}, {"token": Address(b"\x01" * 20)}, {"payer": Address(b"\x01" * 20)}]
)
def test_a_balance_is_that_of_one_wallet_in_one_asset(other: dict[str, Any]) -> None:
    covers = PendingAuthorizations([known(authorization_of(**other), price_units=10)])
    assert covers.refuse(authorization_of(), cover=COVER, price_units=10, now_s=NOW_S) is None


def test_running_units_are_those_that_did_not_move_yet() -> None:
    wallet = payer_account_of(authorization_of().key)
    unknown = CallState.UNKNOWN
    covers = PendingAuthorizations(
        [
            known(),
            known(state=CallState.SETTLING),
            known(settled_block=500),
            known(state=unknown),
            known(state=unknown, valid_before=EXPIRED),
        ]
    )
    assert covers.running_units(wallet, now_s=NOW_S) == 12


def test_a_dialect_has_its_rail() -> None:
    rails = {dialect: rail_of(dialect) for dialect in Dialect}
    assert rails == {
        Dialect.X402_V2: Rail.X402,
        Dialect.X402_V1: Rail.X402,
        Dialect.MPP: Rail.MPP,
    }
