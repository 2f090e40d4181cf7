"""The money of channels on pages: the ticket of a call, and the sales of the wallet that channels pay."""

import csv
import io
from typing import Any

from tests.kit.ledger_channels import buy, config_of, end_call, facts_of, open_call, reread
from tests.kit.signed_in import NOW_MS, READER, SELLER, TEXTS, USDC, SignedInHarness
from tollway.ids import keccak256
from tollway.ledger.channels import Channel
from tollway.ledger.ledger import Claim
from tollway.ledger.records import CallState

PRICE_UNITS = 10_000
DEPOSIT_UNITS = 100_000


async def open_sold(harness: SignedInHarness, name: str = "channel") -> Channel:
    """A channel of the reader for the seller."""
    assert USDC.token is not None
    config = config_of(name, payer=READER.address, receiver=SELLER.address, token=USDC.token)
    ledger: Any = harness.services.ledger
    opened: Channel = await ledger.open_channel(
        USDC.chain_id,
        keccak256(b"id" + config.salt),
        config,
        facts_of(DEPOSIT_UNITS),
        decimals=6,
        now_ms=NOW_MS,
    )
    return opened


async def sell(harness: SignedInHarness, channel: Channel) -> Claim:
    # Before the clock of the pages: the default follows the number of claims in this process.
    return await buy(harness.services.ledger, channel, created_ms=NOW_MS, **TEXTS)


async def read_chain(
    harness: SignedInHarness, channel: Channel, balance: int = DEPOSIT_UNITS, **facts: Any
) -> None:
    ledger: Any = harness.services.ledger
    known = await reread(ledger, channel)
    seen = facts_of(balance, block_number=known.facts.block_number + 1, **facts)
    await ledger.renew_channel(channel.key, seen, now_ms=NOW_MS)


async def test_the_ticket_of_a_call_says_where_its_price_is(harness: SignedInHarness) -> None:
    ledger: Any = harness.services.ledger
    await harness.sign_in()
    channel = await open_sold(harness)
    first = await sell(harness, channel)
    path = f"/my/calls/{first.call_id}"
    page = await harness.read(path)
    assert "Paid by a payment channel" in page.words
    assert "Money in the channel, not claimed yet" in page.words
    await read_chain(harness, channel, total_claimed=PRICE_UNITS)
    assert "Money claimed, not paid out yet" in (await harness.read(path)).words
    await ledger.mark_settled({channel.key: PRICE_UNITS})
    assert "Money paid out to the provider" in (await harness.read(path)).words


async def test_the_ticket_of_a_lost_call_names_no_debt(harness: SignedInHarness) -> None:
    await harness.sign_in()
    channel = await open_sold(harness)
    call = await sell(harness, channel)
    await read_chain(harness, channel, 0)
    page = await harness.read(f"/my/calls/{call.call_id}")
    assert "REORGED" in page.words
    assert "Money lost" in page.words
    assert "Only a further deposit into this channel pays it." in page.words
    assert "The payer owes the price" not in page.words


async def test_sales_have_what_channels_pay_the_wallet(harness: SignedInHarness) -> None:
    ledger: Any = harness.services.ledger
    first, second = await open_sold(harness), await open_sold(harness, "second")
    for channel in (first, first, first, second):
        await sell(harness, channel)
    await read_chain(harness, first, total_claimed=2 * PRICE_UNITS)
    await ledger.mark_settled({first.key: PRICE_UNITS})
    await read_chain(harness, second, 0, withdrawal_amount=1, withdrawal_since_s=1)
    await harness.sign_in(SELLER)
    page = await harness.read("/my/sales")
    assert "Payment channels USDC on" in page.words
    assert "not claimed yet 0.01 USDC claimed, not paid out yet 0.01 paid out 0.01 lost 0.01" in page.words
    assert "1 payer withdraws what is left of a channel." in page.words
    file = await harness.read("/my/sales.csv")
    rows = [row for row in csv.DictReader(io.StringIO(file.text, newline="")) if not row["start"]]
    assert [(row["state"], row["currency"], row["amount"], row["units"]) for row in rows] == [
        ("unclaimed", "USDC", "0.01", "10000"),
        ("claimed", "USDC", "0.01", "10000"),
        ("settled", "USDC", "0.01", "10000"),
        ("lost", "USDC", "0.01", "10000"),
    ]
    held = (await harness.read("/my/sales.csv?state=held")).text
    assert "unclaimed" not in held


async def test_sales_of_a_wallet_that_no_channel_pays_name_none(harness: SignedInHarness) -> None:
    await sell(harness, await open_sold(harness))
    await harness.sign_in(READER)
    assert "Payment channels" not in (await harness.read("/my/sales")).words


async def test_a_held_call_can_only_be_given_back_and_its_price_stays_in_the_channel(
    harness: SignedInHarness,
) -> None:
    await harness.sign_in(SELLER)
    ledger: Any = harness.services.ledger
    call = await open_call(ledger, await open_sold(harness), created_ms=NOW_MS, **TEXTS)
    await end_call(ledger, call, CallState.UNKNOWN)
    path = f"/my/calls/{call.call_id}"
    page = await harness.read(path)
    assert "The next call on this channel releases it." in page.words
    assert "its voucher pays the next call on the channel" in page.words
    assert "It was served" not in page.words
    await ledger.resolve(call.call_id, CallState.RELEASED, now_ms=NOW_MS)
    assert "The price stays in the channel." in (await harness.read(path)).words


async def test_the_list_of_calls_says_where_the_price_of_each_is(harness: SignedInHarness) -> None:
    await harness.sign_in()
    channel = await open_sold(harness)
    await sell(harness, channel)
    await sell(harness, channel)
    await read_chain(harness, channel, total_claimed=PRICE_UNITS)
    page = await harness.read("/my/calls")
    assert page.words.count("charged · not claimed yet") == 1
    assert page.words.count("charged · claimed") == 1
