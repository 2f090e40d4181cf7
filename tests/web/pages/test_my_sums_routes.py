"""`/my` and `/my/spending`: what the pages show equals the sums of `/api/v2`, by asset, for the reader and for wallets that have named it."""

import re
from dataclasses import replace
from decimal import Decimal

import pytest

from tests.kit.listings import sample_listing
from tests.kit.pages import PageReader
from tests.kit.signed_in import (
    DAY_MS,
    MIXED,
    NOW_MS,
    OTHER,
    READER,
    SELLER,
    THIRD,
    SignedInHarness,
    open_signed_in,
)
from tollway.ledger.sales import SpendingQuery
from tollway.limits import DEFAULT_LIMITS
from tollway.web.http.query import parse_time
from tollway.web.pages.my_sums_routes import start_of_month
from tollway.web.pages.my_sums_views import SUM_ROWS_MAX


def rows_of(text: str) -> list[list[str]]:
    """The cells of the table of spending."""
    body = (
        text.partition('class="cards-below book labelled sums-table"')[2]
        .partition("<tbody>")[2]
        .partition("</tbody>")[0]
    )
    return [
        [" ".join(PageReader(cell).text.split()) for cell in row.replace("<td", "\0<td").split("\0")]
        for row in body.split("<tr>")[1:]
    ]


# ---- Both halves.


def halves_of(words: str) -> tuple[str, str]:
    """The halves of `/my`, behind its navigation."""
    _, calling, selling = re.split("My calls|My APIs", words.partition("Month 20")[2])
    return calling, selling


async def test_an_empty_half_is_one_line(harness: SignedInHarness) -> None:
    await harness.sign_in()
    words = (await harness.read("/my")).words
    assert "No call this month." in words
    assert "This wallet sells no API." in words
    assert "Credit left" not in words


async def test_the_halves_have_the_money_of_the_month_by_asset(harness: SignedInHarness) -> None:
    last_month = start_of_month(NOW_MS) - 1
    native = {"asset": "native", "currency": "ETH", "decimals": 18}
    await harness.services.write_calls(
        *MIXED,
        {**MIXED[0], "created_ms": last_month, "price_units": 70_000, "taken_units": 70_000},
        {**MIXED[0], **native, "price_units": 5_000_000, "taken_units": 5_000_000},
    )
    await harness.services.record_payment(30_000)  # it pays the debt of the reorged call first
    await harness.sign_in()
    words = (await harness.read("/my")).words
    calling, selling = halves_of(words)
    assert "0.03 USDC charged this month, on Sandbox" in calling
    assert "0.005 ETH charged this month" in calling
    assert "7 calls: 0.01 USDC released, 0.01 USDC held" in calling
    assert "Credit left 0.02 USDC" in calling
    assert "1 call without an outcome" in calling
    assert "This wallet sells no API." in selling
    await harness.sign_in(SELLER)
    calling, selling = halves_of((await harness.read("/my")).words)
    assert "No call this month." in calling
    assert "0.03 USDC charged this month" in selling
    assert "1 call to decide" in selling


async def test_the_same_days_of_the_month_before_are_a_line_and_a_sum(harness: SignedInHarness) -> None:
    """Today is the 15th of January: the days from the 16th of December on are not compared."""
    december = start_of_month(start_of_month(NOW_MS) - 1)
    before = [
        {**MIXED[0], "created_ms": december + day * DAY_MS, "price_units": 70_000, "taken_units": 70_000}
        for day in (0, 14, 15, 30)
    ]
    await harness.services.write_calls(*MIXED, *before)
    await harness.sign_in()
    page = (await harness.browser.get("/my")).text
    assert "(0.14 in the same days of the month before)" in PageReader(page).words
    assert page.count('<path class="before"') == 1
    assert "the month before" in PageReader(page.partition('class="legend"')[2].partition("</ul>")[0]).words
    spending = (await harness.browser.get("/my/spending")).text
    assert spending.count('<path class="before"') == 1
    await harness.sign_in(THIRD)
    await harness.services.write_calls({**MIXED[0], "payer": THIRD.address})
    assert 'class="before"' not in (await harness.browser.get("/my")).text


async def test_the_overview_of_each_side_begins_with_its_half_and_has_the_chart_of_it(
    harness: SignedInHarness,
) -> None:
    await harness.services.write_calls(*MIXED, *({**one, "provider": READER.address} for one in MIXED))
    await harness.sign_in()
    charts = ("Calls by day", "Calls of your APIs by day")
    for path, shown, hidden in (("/my", *charts), ("/my/selling", *reversed(charts))):
        words = (await harness.read(path)).words
        assert shown in words
        assert hidden not in words
    assert words.index("charged this month") < words.index("Credit left")
    assert "0.04 USDC charged this month" in words


async def test_listings_that_are_not_proved_are_counted(harness: SignedInHarness) -> None:
    for number in range(2):
        await harness.catalog.publish(
            sample_listing(provider=SELLER.address, id=f"api_{number}", created_ms=number + 1)
        )
    await harness.sign_in(SELLER)
    assert "2 APIs, 2 not proved" in (await harness.read("/my")).words


async def test_the_calling_half_of_a_wallet_that_named_the_reader(harness: SignedInHarness) -> None:
    await harness.services.write_calls(*MIXED)
    await harness.sign_in(OTHER)
    await harness.read(f"/my?wallet={READER.address}", 404)
    await harness.name_viewer(READER, OTHER)
    await harness.sign_in(OTHER)
    page = await harness.read(f"/my?wallet={READER.address}")
    assert "0.02 USDC charged this month" in page.words
    assert f"/my/calls?status=unknown&wallet={READER.address}" in page.addresses


@pytest.mark.parametrize(
    ("now", "start"),
    [
        ("2027-01-15T08:00:00.000Z", "2027-01-01T00:00:00.000Z"),
        ("2027-01-01T00:00:00.000Z", "2027-01-01T00:00:00.000Z"),
        ("2028-02-29T23:59:59.999Z", "2028-02-01T00:00:00.000Z"),
    ],
)
def test_a_month_begins_in_utc(now: str, start: str) -> None:
    assert start_of_month(parse_time(now)) == parse_time(start)


# ---- Spending.


@pytest.mark.parametrize("group", ["day", "api", "provider", "wallet"])
async def test_every_grouping_adds_up_to_the_sums_of_the_ledger(harness: SignedInHarness, group: str) -> None:
    moved = [{**one, "created_ms": NOW_MS - number * DAY_MS} for number, one in enumerate(MIXED)]
    await harness.services.write_calls(*moved)
    await harness.sign_in()
    answer = await harness.browser.get(f"/my/spending?groupBy={group}")
    rows = rows_of(answer.text)
    query = SpendingQuery(
        wallet=READER.address, step="day", from_ms=NOW_MS - 40 * DAY_MS, to_ms=NOW_MS + DAY_MS
    )
    sums = (await harness.services.period_books.spending(query)).rows
    assert sum(int(row[2]) for row in rows) == sum(one.calls for row in sums for one in row.by_state.values())
    for column, state in enumerate(("charged", "released", "held", "reorged"), start=3):
        units = sum(row.by_state[state].units for row in sums if state in row.by_state)  # type: ignore[index]  # the states are a literal
        shown = sum(Decimal(row[column]) for row in rows if row[column] != "–")
        assert shown == Decimal(units) / 10**6
        assert shown > 0


async def test_days_are_in_the_period_of_the_form(harness: SignedInHarness) -> None:
    await harness.services.write_calls(
        *({**MIXED[0], "created_ms": NOW_MS - number * DAY_MS} for number in range(5))
    )
    await harness.sign_in()
    rows = rows_of((await harness.browser.get("/my/spending?from=2027-01-12&to=2027-01-14")).text)
    assert [row[0] for row in rows] == ["2027-01-14", "2027-01-13", "2027-01-12"]
    words = (await harness.read("/my/spending?from=2026-01-01&to=2026-01-03")).words
    assert "No call from 2026-01-01 to 2026-01-03" in words


async def test_an_owner_sees_the_agents_that_named_her_and_no_other(harness: SignedInHarness) -> None:
    """Also after a permission is withdrawn."""
    agents = (READER, SELLER)
    for agent in (*agents, THIRD):
        await harness.services.write_calls({**MIXED[0], "payer": agent.address})
    for agent in agents:
        await harness.name_viewer(agent, OTHER)
    await harness.sign_in(OTHER)
    answer = await harness.browser.get("/my/spending?groupBy=wallet")
    assert {row[0] for row in rows_of(answer.text)} == {str(one.address) for one in agents}
    assert str(THIRD.address) not in answer.text
    await harness.read(f"/my/spending?wallet={THIRD.address}", 404)
    one = await harness.browser.get(f"/my/spending?groupBy=wallet&wallet={READER.address}")
    assert [row[0] for row in rows_of(one.text)] == [str(READER.address)]
    await harness.sign_in(READER)
    await harness.post("/my/wallets/withdrawal", {"address": str(OTHER.address)})
    await harness.sign_in(OTHER)
    answer = await harness.browser.get("/my/spending?groupBy=wallet")
    assert [row[0] for row in rows_of(answer.text)] == [str(SELLER.address)]
    await harness.read(f"/my/spending?wallet={READER.address}", 404)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("groupBy=colour", "groupBy"),
        ("from=yesterday", "from"),
        ("from=2020-01-01", "from"),
        ("from=2027-01-10&to=2027-01-01", "from"),
        ("wallet=0x12", "wallet"),
        ("colour=red", "colour"),
    ],
)
async def test_a_filter_that_is_not_understood_is_marked(
    harness: SignedInHarness, query: str, field: str
) -> None:
    await harness.name_viewer(READER, OTHER)
    await harness.sign_in(OTHER)
    page = await harness.read(f"/my/spending?{query}", 422)
    assert "The filter was not understood" in page.words
    assert f"error-{field}" in page.ids or f"{field}:" in page.words


async def test_a_table_has_a_bound_and_says_what_is_left_out(harness: SignedInHarness) -> None:
    await harness.services.write_calls(
        *({**MIXED[0], "listing_id": f"api_{number}"} for number in range(SUM_ROWS_MAX + 2))
    )
    await harness.sign_in()
    answer = await harness.browser.get("/my/spending?groupBy=api")
    assert len(rows_of(answer.text)) == SUM_ROWS_MAX
    assert "2 more rows are left out" in answer.text


async def test_sums_of_too_many_calls_are_lower_bounds() -> None:
    async with open_signed_in(replace(DEFAULT_LIMITS, spending_calls_max=2)) as harness:
        await harness.services.write_calls(
            *({**MIXED[0], "created_ms": NOW_MS - number * DAY_MS} for number in range(5))
        )
        await harness.sign_in()
        assert "are lower bounds" in (await harness.read("/my/spending")).words
        assert "At least 2 calls" in (await harness.read("/my")).words


async def test_a_page_reads_as_many_calls_as_one_question_and_says_what_is_left_out() -> None:
    """Otherwise one view of an owner with ten agents would cost ten questions."""
    async with open_signed_in(replace(DEFAULT_LIMITS, spending_calls_max=3)) as harness:
        agents = (SELLER, THIRD)
        for payer in (READER, *agents):
            await harness.services.write_calls(*({**MIXED[0], "payer": payer.address} for _ in range(2)))
        for agent in agents:
            await harness.name_viewer(agent, READER)
        await harness.sign_in()
        answer = await harness.browser.get("/my/spending?groupBy=wallet")
        words = PageReader(answer.text).words
        assert len(rows_of(answer.text)) == 2
        assert "These are the first wallets" in words
        table = answer.text.partition("<table")[2]
        (left_out,) = (agent.address for agent in agents if str(agent.address) not in table)
        named = await harness.browser.get(f"/my/spending?groupBy=wallet&wallet={left_out}")
        assert len(rows_of(named.text)) == 1


async def test_words_of_providers_are_escaped(harness: SignedInHarness) -> None:
    hostile = '"><script>alert(1)</script>\u202e'
    await harness.services.write_calls({**MIXED[0], "listing_name": hostile})
    await harness.sign_in()
    page = await harness.browser.get("/my/spending?groupBy=api")
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text
    assert not PageReader(page.text).handlers
