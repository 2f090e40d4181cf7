"""The calls of channels in records, files and receipts: the id of the channel, and where the price of the call is on the chain."""

import csv
import io
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.history_rows import CALL, USDC
from tests.web.api.test_receipt_routes import receipt_of
from tollway.ids import ChainId
from tollway.ledger.records import CallRecord, CallState, ClaimState, Rail
from tollway.web.api.export_rows import CALL_COLUMNS, write_call
from tollway.web.api.history_routes import call_json

CHANNEL_ID = bytes(range(32))
ON_CHANNEL = replace(CALL, rail=Rail.CHANNEL, tx_hash=None, channel_id=CHANNEL_ID)


def find_asset(chain_id: ChainId, asset: str) -> Any:
    return USDC


def payment_of(call: CallRecord) -> dict[str, Any]:
    payment: dict[str, Any] = call_json(call, find_asset)["payment"]
    return payment


def row_of(call: CallRecord) -> dict[str, str]:
    (row,) = csv.DictReader(io.StringIO(write_call(call, find_asset)), fieldnames=CALL_COLUMNS)
    return row


@pytest.mark.parametrize("state", list(ClaimState))
async def test_a_charged_call_on_a_channel_says_where_its_price_is(state: ClaimState) -> None:
    call = replace(ON_CHANNEL, claim_state=state)
    channel = "0x" + CHANNEL_ID.hex()
    assert (payment_of(call)["channel"], payment_of(call)["claimState"]) == (channel, state.value)
    assert (row_of(call)["channel"], row_of(call)["claimState"]) == (channel, state.value)
    receipt = await receipt_of(call)
    assert (receipt["payload"]["channel"], receipt["claimState"]) == (channel, state.value)


async def test_only_the_unsigned_part_of_a_receipt_changes_when_the_contract_moves_money() -> None:
    charged, claimed = [
        await receipt_of(replace(ON_CHANNEL, claim_state=state))
        for state in (ClaimState.UNCLAIMED, ClaimState.CLAIMED)
    ]
    assert charged.pop("claimState") == "unclaimed"
    assert claimed.pop("claimState") == "claimed"
    assert charged == claimed


@pytest.mark.parametrize(
    "call", [CALL, replace(ON_CHANNEL, state=CallState.RELEASED)], ids=["a transaction", "a released call"]
)
async def test_a_call_without_such_a_state_has_no_member_of_it(call: CallRecord) -> None:
    assert "claimState" not in payment_of(call)
    assert row_of(call)["claimState"] == ""
    assert "claimState" not in await receipt_of(call)
