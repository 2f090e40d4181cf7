"""The slots of the sender: each limit, and the window of an origin."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.narrowing import existing
from tests.kit.webhooks import StoppedClock
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.webhooks.endpoints import DueChallenge, DueEndpoint
from tollway.webhooks.slots import ORIGIN_KEPT_S, SendingSlots

LIMITS = replace(DEFAULT_LIMITS, webhook_in_flight_max=16)


class Slots:
    """Slots with a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.slots = SendingSlots(limits=LIMITS, clock=self.clock)
        self._number = 0

    def take(self, *, is_challenge: bool = False, **fields: Any) -> DueEndpoint | None:
        """A slot for a new endpoint, of a wallet, a network and an origin of its own."""
        self._number += 1
        number = self._number
        values: dict[str, Any] = {
            "endpoint_id": f"wh_{number}",
            "wallet": Address(number.to_bytes(20, "big")),
            "network": f"192.0.2.{number}",
            "origin": f"https://host{number}.example",
            "is_slow": False,
            **fields,
        }
        due = DueEndpoint(**values)
        if is_challenge:
            due = DueChallenge(**values, url=values["origin"], challenge="echo", tries=0)
        return due if self.slots.take(due) else None

    def count(self, **fields: Any) -> int:
        """How many slots of this kind there are."""
        taken = 0
        while self.take(**fields) is not None:
            taken += 1
        return taken


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 16),
        ({"is_challenge": True}, 4),
        ({"is_challenge": True, "is_slow": True}, 2),
        ({"is_slow": True}, 8),
        ({"wallet": Address(b"\x01" * 20)}, 4),
        ({"network": "198.51.100.1"}, 8),
        ({"origin": "https://one.example"}, 1),
    ],
    ids=("all", "challenges", "slow challenges", "slow", "wallet", "address", "origin"),
)
def test_each_limit_has_its_slots(slots: Slots, fields: dict[str, Any], most: int) -> None:
    assert slots.count(**fields) == most


def test_other_kinds_have_their_slots_where_one_limit_is_reached(slots: Slots) -> None:
    assert slots.count(is_challenge=True) == 4
    assert slots.count(is_slow=True) == 8
    assert slots.count() == 4
    assert slots.slots.is_full


def test_a_slot_that_is_given_back_is_free_again(slots: Slots) -> None:
    one = Address(b"\x01" * 20)
    taken = [slots.take(wallet=one) for _ in range(4)]
    assert slots.take(wallet=one) is None
    assert taken[0] is not None
    slots.slots.free(taken[0], has_responded=True)
    assert slots.count(wallet=one) == 1


def test_a_challenge_has_one_slot(slots: Slots) -> None:
    due = existing(slots.take(is_challenge=True))
    slots.clock.s += 5
    again = replace(due, origin="https://elsewhere.example")
    assert not slots.slots.take(again)
    slots.slots.free(due, has_responded=False)
    assert slots.slots.take(again)


# ---- The window of an origin.

ORIGIN = {"origin": "https://shared.example"}


def run(slots: Slots, *, has_responded: bool, is_slow: bool = False) -> None:
    """One attempt at the origin."""
    slots.clock.s += 1
    due = existing(slots.take(**ORIGIN, is_slow=is_slow))
    slots.slots.free(due, has_responded=has_responded)


def count_at_origin(slots: Slots, **fields: Any) -> int:
    """How many attempts run at once at the origin, one a second."""
    taken = 0
    while True:
        slots.clock.s += 1
        if slots.take(**ORIGIN, **fields) is None:
            return taken
        taken += 1


def test_an_origin_gets_one_request_in_an_interval(slots: Slots) -> None:
    for _ in range(3):
        run(slots, has_responded=True)
    assert slots.take(**ORIGIN) is None
    slots.clock.s += 0.999
    assert slots.take(**ORIGIN) is None
    slots.clock.s += 0.001
    assert slots.take(**ORIGIN) is not None


@pytest.mark.parametrize(("answers", "window"), [(0, 1), (1, 2), (2, 3), (3, 4), (9, 4)])
def test_an_origin_that_answers_has_more_attempts_at_once(slots: Slots, answers: int, window: int) -> None:
    for _ in range(answers):
        run(slots, has_responded=True)
    assert count_at_origin(slots) == window


def test_an_origin_without_a_response_for_a_minute_has_one_again(slots: Slots) -> None:
    for _ in range(5):
        run(slots, has_responded=True)
    run(slots, has_responded=False)
    slots.clock.s += ORIGIN_KEPT_S
    run(slots, has_responded=False)
    assert count_at_origin(slots) == 1


def test_a_wallet_leaves_a_slot_of_an_origin_to_others(slots: Slots) -> None:
    for _ in range(5):
        run(slots, has_responded=True)
    assert count_at_origin(slots, wallet=Address(b"\x01" * 20)) == 3
    assert count_at_origin(slots) == 1


def test_a_slow_endpoint_has_a_slot_beside_those_that_answer(slots: Slots) -> None:
    assert count_at_origin(slots, is_slow=True) == 1
    assert count_at_origin(slots) == 1
    assert ORIGIN["origin"] in slots.slots.list_taken(after=None).origins


def test_what_has_no_free_slot_is_listed(slots: Slots) -> None:
    one, network = Address(b"\x01" * 20), "198.51.100.1"
    assert slots.count(wallet=one) == 4
    assert slots.count(network=network) == 8
    slots.clock.s += 5
    assert slots.take(**ORIGIN) is not None
    taken = slots.slots.list_taken(after=one)
    assert (taken.wallets, taken.networks, taken.after) == ({one}, {network}, one)
    assert ORIGIN["origin"] in taken.origins


def test_an_idle_origin_is_forgotten(slots: Slots) -> None:
    for _ in range(5):
        run(slots, has_responded=True)
    slots.clock.s += ORIGIN_KEPT_S
    slots.slots.forget_idle()
    assert count_at_origin(slots) == 4
    other = Slots()
    for _ in range(5):
        run(other, has_responded=True)
    other.clock.s += ORIGIN_KEPT_S + 0.1
    other.slots.forget_idle()
    assert count_at_origin(other) == 1
