"""The rules of channels: which voucher is granted, what a head charges, which vouchers are kept, what a claim shows, and what the chain changes."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_channels import config_of, facts_of, voucher_of
from tests.kit.ledger_records import CHAIN
from tollway.ids import CallId, ChannelId
from tollway.ledger.channels import (
    CallPlace,
    CeilingMismatch,
    Channel,
    ChannelBusy,
    ChannelClaim,
    ChannelClosed,
    ChannelFull,
    ChannelState,
    ClaimMarks,
    Vouchers,
    add_deposit,
    announce_charge,
    claimable_units,
    count_lost_claims,
    decide_claim_state,
    decide_voucher,
    move_call,
    move_deposit,
    read_facts,
    remove_deposit,
    reserve_channel,
    spread_units,
    store_voucher,
)
from tollway.ledger.records import CallState, ClaimState

CALL, OTHER = CallId("call_1"), CallId("call_2")


def channel_of(**fields: Any) -> Channel:
    """A channel of 1,000 at block 100, of which calls have taken 300; 300 are announced."""
    defaults: dict[str, Any] = {
        "key": 1,
        "id": b"\x01" * 32,
        "chain_id": CHAIN,
        "config": config_of(),
        "payment_id": 1,
        "decimals": 6,
        "start_units": 0,
        "balance_units": 1_000,
        "taken_units": 300,
        "announced": 300,
        "published": 0,
        "spent": None,
        "waiting": None,
        "candidate": None,
        "facts": facts_of(1_000),
        "state": ChannelState.OPEN,
        "reserved_call": None,
        "reserved_state": None,
    }
    return Channel(**{**defaults, **fields})


def shown(
    ceiling: int, *, step_units: int = 10, deposit_units: int = 0, unclaimed_max: int = 10**6
) -> ChannelClaim:
    return ChannelClaim(
        channel_id=ChannelId(b"\x01" * 32),
        voucher=voucher_of(ceiling),
        step_units=step_units,
        deposit_units=deposit_units,
        unclaimed_max=unclaimed_max,
    )


MISMATCH = CeilingMismatch(channel=channel_of())
DECISIONS = (
    ("announced and price", {}, shown(310), None),
    ("announced and a dearer price that counts", {}, shown(330, step_units=30), None),
    ("one less", {}, shown(309), MISMATCH),
    ("one more", {}, shown(311), MISMATCH),
    ("all of the balance", {"announced": 990}, shown(1_000), None),
    ("more than the balance", {"announced": 991}, shown(1_001), CeilingMismatch),
    ("with a deposit", {"announced": 991}, shown(1_001, deposit_units=1), None),
    ("claimed already", {"facts": facts_of(1_000, total_claimed=310)}, shown(310), CeilingMismatch),
    ("at the maximum", {}, shown(310, unclaimed_max=310), None),
    ("beyond the maximum", {}, shown(310, unclaimed_max=309), ChannelFull(unclaimed_units=310)),
    (
        "what is claimed counts no more",
        {"facts": facts_of(1_000, total_claimed=200)},
        shown(310, unclaimed_max=110),
        None,
    ),
    (
        "with a withdrawal",
        {"state": ChannelState.WITHDRAWING},
        shown(310),
        ChannelClosed(state=ChannelState.WITHDRAWING),
    ),
    ("at its end", {"state": ChannelState.DRAINING}, shown(310), ChannelClosed(state=ChannelState.DRAINING)),
    *(
        (
            f"while a call is {state}",
            {"reserved_call": CALL, "reserved_state": state},
            shown(310),
            ChannelBusy(call_id=CALL, state=state),
        )
        for state in (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN)
    ),
    (
        "while it is refunded",
        {"reserved_call": CALL},
        shown(310),
        ChannelBusy(call_id=CALL, state=CallState.FORWARDING),
    ),
)


@pytest.mark.parametrize(
    ("fields", "claim", "outcome"), [row[1:] for row in DECISIONS], ids=[row[0] for row in DECISIONS]
)
def test_a_voucher_is_the_announced_sum_and_the_price(
    fields: dict[str, Any], claim: ChannelClaim, outcome: Any
) -> None:
    channel = channel_of(**fields)
    owed_units = channel.taken_units - channel.facts.total_claimed
    decided = decide_voucher(channel, claim, price_units=10, owed_units=owed_units)
    assert decided == outcome or (outcome is CeilingMismatch and isinstance(decided, outcome))


def test_a_head_announces_what_calls_owe_and_never_less() -> None:
    announced = [announce_charge(channel_of(), taken_units=units) for units in (299, 300, 301)]
    assert announced == [300, 300, 301]


def test_the_vouchers_of_calls_at_a_fixed_price() -> None:
    """The newest is the candidate; it is spent with the next claim."""
    kept = Vouchers(spent=None, waiting=None, candidate=None)
    for ceiling, announced in ((10, 0), (20, 10), (30, 20)):
        kept = store_voucher(kept, voucher_of(ceiling), announced=announced)
    assert kept == Vouchers(spent=voucher_of(20), waiting=None, candidate=voucher_of(30))


def test_a_metered_channel_keeps_a_voucher_to_claim_with() -> None:
    """Each ceiling is ahead of what is announced: the lowest waits until it is not."""
    kept = Vouchers(spent=None, waiting=None, candidate=None)
    seen = []
    for ceiling, announced in ((20, 0), (23, 3), (26, 6), (42, 22), (45, 25)):
        kept = store_voucher(kept, voucher_of(ceiling), announced=announced)
        seen.append(tuple(one and one.ceiling for one in (kept.spent, kept.waiting, kept.candidate)))
    assert seen == [(None, None, 20), (None, 20, 23), (None, 20, 26), (20, 26, 42), (20, 26, 45)]


@pytest.mark.parametrize(
    ("fields", "open_units", "total"),
    [
        ({}, 0, None),
        ({"candidate": voucher_of(301)}, 0, None),
        ({"candidate": voucher_of(300)}, 0, 300),
        ({"spent": voucher_of(200), "candidate": voucher_of(310)}, 0, 200),
        ({"spent": voucher_of(200), "waiting": voucher_of(290), "candidate": voucher_of(310)}, 0, 290),
        ({"candidate": voucher_of(300)}, 100, 200),
        ({"candidate": voucher_of(300), "facts": facts_of(1_000, total_claimed=299)}, 0, 300),
        ({"candidate": voucher_of(300), "facts": facts_of(1_000, total_claimed=300)}, 0, None),
        ({"candidate": voucher_of(300), "facts": facts_of(1_000, total_claimed=200)}, 100, None),
    ],
)
def test_a_claim_shows_what_ended_calls_owe_under_an_announced_ceiling(
    fields: dict[str, Any], open_units: int, total: int | None
) -> None:
    claimable = claimable_units(channel_of(**fields), open_units=open_units)
    assert (None if claimable is None else claimable[0]) == total
    assert claimable is None or claimable[0] <= claimable[1].ceiling <= 300


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, (290, 290)),
        ({"state": ChannelState.WITHDRAWING}, (300, 310)),
        ({"state": ChannelState.DRAINING}, (300, 310)),
        ({"state": ChannelState.WITHDRAWING, "spent": voucher_of(300)}, (300, 300)),
        ({"state": ChannelState.WITHDRAWING, "waiting": voucher_of(305)}, (300, 305)),
        ({"state": ChannelState.WITHDRAWING, "reserved_call": CALL}, (290, 290)),
        ({"state": ChannelState.WITHDRAWING, "candidate": voucher_of(299)}, (299, 299)),
    ],
)
def test_a_channel_that_takes_no_call_shows_its_newest_voucher_where_it_must(
    fields: dict[str, Any], shown: tuple[int, int]
) -> None:
    vouchers = {"spent": voucher_of(290), "candidate": voucher_of(310)}
    claimable = claimable_units(channel_of(**{**vouchers, **fields}), open_units=0)
    assert claimable is not None
    assert (claimable[0], claimable[1].ceiling) == shown


@pytest.mark.parametrize(("deposit_units", "taken"), [(0, 310), (500, 300)])
def test_a_granted_claim_reserves_the_channel(deposit_units: int, taken: int) -> None:
    reserved = reserve_channel(channel_of(), shown(310, deposit_units=deposit_units), CALL, price_units=10)
    assert (reserved.reserved_call, reserved.reserved_state) == (CALL, CallState.FORWARDING)
    assert (reserved.candidate, reserved.taken_units, reserved.announced) == (voucher_of(310), taken, 300)


RESERVED = channel_of(reserved_call=CALL, reserved_state=CallState.FORWARDING)


@pytest.mark.parametrize(
    ("after", "announced", "reserved"),
    [
        (CallState.CONSUMED, 310, None),
        (CallState.REORGED, 310, None),
        (CallState.RELEASED, 300, None),
        (CallState.UNKNOWN, 300, CallState.UNKNOWN),
        (CallState.SETTLING, 300, CallState.SETTLING),
        (CallState.FORWARDING, 300, CallState.FORWARDING),
    ],
)
def test_the_end_of_a_call_ends_its_reservation(
    after: CallState, announced: int, reserved: CallState | None
) -> None:
    moved = move_call(RESERVED, CALL, after, charged_units=310)
    assert (moved.announced, moved.reserved_state) == (announced, reserved)
    assert moved.reserved_call == (None if reserved is None else CALL)
    assert move_call(RESERVED, OTHER, after, charged_units=310) == RESERVED


@pytest.mark.parametrize(
    ("before", "facts", "after"),
    [
        (ChannelState.OPEN, {}, ChannelState.OPEN),
        (ChannelState.OPEN, {"withdrawal_since_s": 1}, ChannelState.WITHDRAWING),
        (ChannelState.WITHDRAWING, {}, ChannelState.OPEN),
        (ChannelState.DRAINING, {}, ChannelState.DRAINING),
        (ChannelState.DRAINING, {"withdrawal_since_s": 1}, ChannelState.DRAINING),
    ],
)
def test_a_withdrawal_in_sight_closes_a_channel(
    before: ChannelState, facts: dict[str, Any], after: ChannelState
) -> None:
    for block_number in (100, 101):
        seen = facts_of(900, refund_nonce=1, block_number=block_number, **facts)
        channel = read_facts(channel_of(state=before), seen)
        assert channel is not None
        assert (channel.facts, channel.balance_units, channel.state) == (seen, 900, after)
    assert read_facts(channel_of(state=before), facts_of(900, block_number=99, **facts)) is None


@pytest.mark.parametrize(
    ("fields", "total_claimed", "outcome"),
    [
        ({}, 300, None),
        ({"taken_units": 250}, 300, None),
        ({}, 301, (1, 301, 301)),
        ({"state": ChannelState.DRAINING, "taken_units": 250}, 300, (50, 300, 300)),
        ({"start_units": 40, "taken_units": 250}, 400, (190, 400, 400)),
    ],
    ids=[
        "claimed whole",
        "a call is given back",
        "beyond what is announced",
        "after a restore",
        "with a start",
    ],
)
def test_calls_that_a_restore_has_lost_count_as_claimed_before(
    fields: dict[str, Any], total_claimed: int, outcome: tuple[int, int, int] | None
) -> None:
    channel = channel_of(facts=facts_of(1_000, total_claimed=total_claimed), **fields)
    counted = count_lost_claims(channel)
    if outcome is None:
        assert counted == channel
        return
    assert (counted.start_units, counted.taken_units, counted.announced) == outcome
    assert counted.state is ChannelState.DRAINING


def test_a_deposit_counts_once() -> None:
    later = add_deposit(channel_of(), 50, block_number=101)
    assert (later.balance_units, later.facts) == (1_050, facts_of(1_050, block_number=101))
    assert add_deposit(channel_of(), 50, block_number=100) == channel_of()
    moved = move_deposit(later, block_number=105)
    assert (moved.balance_units, moved.facts.block_number) == (1_050, 105)
    assert move_deposit(moved, block_number=103) == moved


@pytest.mark.parametrize(
    ("units", "block_number", "counted_block", "balance", "known_block"),
    [
        (50, 100, -1, 950, 99),
        (50, 90, -1, 950, 89),
        (50, 90, 95, 950, 95),
        (50, 90, 200, 950, 100),
        (50, 101, -1, 1_000, 100),
        (1_001, 100, -1, 0, 99),
    ],
    ids=[
        "its block",
        "an earlier one",
        "another deposit",
        "a later deposit",
        "never counted",
        "more than there is",
    ],
)
def test_a_deposit_that_leaves_its_chain_lowers_the_balance(
    units: int, block_number: int, counted_block: int, balance: int, known_block: int
) -> None:
    claimed = channel_of(facts=facts_of(1_000, total_claimed=300))
    channel = remove_deposit(claimed, units, block_number=block_number, counted_block=counted_block)
    assert (channel.balance_units, channel.facts.balance) == (balance, balance)
    assert channel.facts.block_number == known_block
    assert channel.facts.total_claimed == min(300, balance)
    again = add_deposit(channel, units, block_number=known_block + 1)
    assert again.balance_units == balance + units


def test_units_go_to_the_first_until_none_is_left() -> None:
    assert spread_units([5, 3, 4], 7) == [5, 2, 0]
    assert spread_units([5], 0) == [0]
    assert spread_units([5, 3], 100) == [5, 3]
    assert spread_units([], 7) == []


@pytest.mark.parametrize(
    ("state", "due_units", "place", "expected"),
    [
        (CallState.CONSUMED, 10, (1, CALL), ClaimState.SETTLED),
        (CallState.CONSUMED, 10, (2, CALL), ClaimState.SETTLED),
        (CallState.CONSUMED, 10, (2, OTHER), ClaimState.CLAIMED),
        (CallState.CONSUMED, 10, (4, CALL), ClaimState.CLAIMED),
        (CallState.CONSUMED, 10, (5, CALL), ClaimState.UNCLAIMED),
        (CallState.CONSUMED, 0, (1, CALL), None),
        (CallState.REORGED, 10, (1, CALL), ClaimState.LOST),
        (CallState.RELEASED, 10, (1, CALL), None),
        (CallState.UNKNOWN, 10, (1, CALL), None),
    ],
)
def test_the_price_of_a_call_is_where_the_sums_of_the_chain_say(
    state: CallState, due_units: int, place: CallPlace, expected: ClaimState | None
) -> None:
    marks = ClaimMarks(claimed=(4, CALL), settled=(2, CALL))
    assert decide_claim_state(state, due_units=due_units, place=place, marks=marks) is expected


def test_a_call_that_was_not_searched_has_no_state_unless_a_sum_covers_it() -> None:
    unknown = ClaimMarks(claimed=None, settled=None, searched_from=(3, CALL))
    states = [
        decide_claim_state(CallState.CONSUMED, due_units=10, place=(ms, CALL), marks=unknown) for ms in (2, 3)
    ]
    assert states == [None, ClaimState.UNCLAIMED]
    known = replace(unknown, claimed=(4, CALL))
    state = decide_claim_state(CallState.CONSUMED, due_units=10, place=(2, CALL), marks=known)
    assert state is ClaimState.CLAIMED


def test_a_signature_is_in_no_representation() -> None:
    assert "signature" not in repr(replace(RESERVED, candidate=voucher_of(310)))
