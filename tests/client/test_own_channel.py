"""The rules of the next voucher: a row for each case."""

from dataclasses import replace
from typing import Any

import pytest

from tests.client.test_channel_offer import ENTRY, headers
from tests.client.test_channel_table import ASSET, HELD, PENDING
from tests.kit.channel_payer import ChannelPayer
from tollway.chain.port import EscrowState
from tollway.client.channel_offer import (
    ChannelCharge,
    ChannelCorrection,
    ChannelReport,
    ShownVoucher,
    read_channel_offers,
)
from tollway.client.own_channel import (
    OwnChannel,
    VoucherPlan,
    VoucherRefused,
    apply_charge,
    heal_channel,
    plan_voucher,
)

PAYER = ChannelPayer()
CHANNEL = OwnChannel(
    id=PAYER.channel_id,
    config=PAYER.config,
    asset=ASSET,
    gateway="http://gw",
    balance=1_000,
    charged=300,
    ceiling=300,
)
(OFFER,) = read_channel_offers(headers(ENTRY), {})


@pytest.mark.parametrize(
    ("changes", "plan"),
    [
        ({}, VoucherPlan(ceiling=600)),
        ({"balance": 600}, VoucherPlan(ceiling=600)),
        ({"balance": 599}, VoucherPlan(ceiling=600, deposit=500)),
        ({"balance": 0}, VoucherPlan(ceiling=600, deposit=600)),
        ({"balance": 0, "deposit": HELD}, VoucherPlan(ceiling=600, deposit=300_000, is_resent=True)),
        ({"balance": 0, "deposit": replace(HELD, amount=599)}, VoucherPlan(ceiling=600, deposit=600)),
        ({"balance": 1_000, "deposit": HELD}, VoucherPlan(ceiling=600)),
        ({"balance": 0, "charged": 5_000}, None),
    ],
)
def test_the_next_voucher_covers_what_was_charged_and_the_call(changes: dict[str, Any], plan: object) -> None:
    found = plan_voucher(replace(CHANNEL, **changes), price=300, deposit_min=500, deposit_max=1_000)
    assert found == plan if plan is not None else isinstance(found, VoucherRefused)


@pytest.mark.parametrize(
    ("charge", "charged"),
    [
        (ChannelCharge(charged=300, total=600, balance=None), 600),
        (ChannelCharge(charged=0, total=300, balance=None), 300),
        (ChannelCharge(charged=123, total=None, balance=None), 423),
        (ChannelCharge(charged=None, total=None, balance=None), 300),
        (ChannelCharge(charged=301, total=601, balance=None), 300),  # above the maximum of the call
        (ChannelCharge(charged=123, total=600, balance=None), 300),  # its own sum is another one
        (ChannelCharge(charged=123, total=422, balance=None), 300),
    ],
)
def test_a_charge_counts_within_the_maximum_and_with_the_same_sum(
    charge: ChannelCharge, charged: int
) -> None:
    sent = replace(CHANNEL, pending=PENDING, deposit=HELD)
    settled = apply_charge(sent, charge)
    assert (settled.charged, settled.calls, settled.is_certain) == (charged, 1, True)
    assert settled.balance == 301_000


def test_a_voucher_alone_leaves_a_deposit_in_flight() -> None:
    sent = replace(CHANNEL, pending=replace(PENDING, has_deposit=False), deposit=HELD)
    settled = apply_charge(sent, ChannelCharge(charged=300, total=600, balance=None))
    assert (settled.balance, settled.deposit) == (1_000, HELD)


def correct(charged: int, signed: int | None, *, balance: int = 1_000, claimed: int = 0) -> ChannelCorrection:
    voucher = None if signed is None else ShownVoucher(ceiling=signed, signature=PAYER.sign_voucher(signed))
    report = ChannelReport(channel_id=CHANNEL.id, balance=balance, total_claimed=claimed, charged=charged)
    return ChannelCorrection(offer=OFFER, report=report, voucher=voucher)


def by_node(balance: int, total_claimed: int) -> EscrowState:
    return EscrowState(
        balance=balance,
        total_claimed=total_claimed,
        withdrawal=0,
        withdrawal_initiated_at=0,
        refund_nonce=0,
    )


SENT = replace(CHANNEL, pending=PENDING, ceiling=600)
"""300 are charged; the pending voucher is over 600, and 300 was the highest before it."""


@pytest.mark.parametrize(
    ("correction", "totals", "healed"),
    [
        (correct(300, 600), None, (300, 1_000)),
        (correct(200, None), None, (200, 1_000)),  # less than this wallet knows of needs no proof
        (correct(450, 500), None, (450, 1_000)),  # another store of this wallet signed it
        (correct(600, 900), None, (600, 1_000)),
        (correct(600, 600), None, None),  # the voucher of this call
        (correct(450, 449), None, None),
        (correct(450, None), None, None),
        (correct(450, None), by_node(900, 350), (350, 900)),
        (correct(450, 500), by_node(900, 451), None),
        (correct(450, 500, claimed=451), None, None),
        (correct(450, 500, claimed=451), by_node(900, 0), (450, 900)),
        (correct(450, 500, balance=999), None, None),
        (correct(450, 500, balance=1_001), None, (450, 1_001)),
        (ChannelCorrection(offer=OFFER, report=None, voucher=None), None, None),
        (
            ChannelCorrection(offer=OFFER, report=None, voucher=None),
            by_node(7, 3),
            (3, 7),
        ),
    ],
)
def test_a_corrective_402_counts_with_its_proof(
    correction: ChannelCorrection, totals: EscrowState | None, healed: tuple[int, int] | None
) -> None:
    found = heal_channel(SENT, correction, totals, is_doubtful=False)
    if healed is None:
        assert isinstance(found, VoucherRefused)
        return
    assert isinstance(found, OwnChannel)
    assert (found.charged, found.balance, found.pending) == (*healed, None)


def test_a_foreign_signature_is_no_proof() -> None:
    stranger = replace(PAYER, account=PAYER.authorizer)
    shown = ShownVoucher(ceiling=500, signature=stranger.sign_voucher(500))
    found = heal_channel(SENT, replace(correct(450, 500), voucher=shown), None, is_doubtful=False)
    assert isinstance(found, VoucherRefused)


def test_after_a_request_without_a_response_the_voucher_of_the_call_is_a_proof() -> None:
    found = heal_channel(SENT, correct(600, 600), None, is_doubtful=True)
    assert isinstance(found, OwnChannel)
    assert found.charged == 600


def test_a_voucher_of_an_earlier_call_that_a_claim_has_announced_is_a_proof() -> None:
    """The earlier call has cost nothing of its maximum, so this call signs the same ceiling again."""
    sent = replace(SENT, pending=replace(PENDING, signed_before=600))
    found = heal_channel(sent, correct(600, 600, claimed=300), None, is_doubtful=False)
    assert isinstance(found, OwnChannel)
    assert (found.charged, found.ceiling, found.pending) == (600, 600, None)


def test_a_balance_with_the_deposit_ends_its_flight() -> None:
    sent = replace(SENT, deposit=HELD)
    for balance, deposit in ((300_999, HELD), (301_000, None)):
        found = heal_channel(sent, correct(300, 600, balance=balance), None, is_doubtful=False)
        assert isinstance(found, OwnChannel)
        assert found.deposit == deposit
