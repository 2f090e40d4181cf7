"""`/sales` and `/spending`: the members of a row, ranges in whole steps, and refusals that name the parameter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER, USDC
from tests.kit.routes import NamedBooks, authenticate_as, make_app, make_context, open_client
from tests.kit.stores import InlineDatabase
from tollway.client.record_reader import read_record
from tollway.client.records import SalesReport, SpendingReport
from tollway.ids import Address, ChainId
from tollway.ledger.channels import ChannelMoney
from tollway.ledger.sales import CLOSE_DELAY_MS, DAY_MS, HOUR_MS, floor_to
from tollway.money import Asset
from tollway.storage.ledger.closed_periods import ClosedPeriods
from tollway.storage.ledger.period_books import PeriodBookStore
from tollway.web.api.sums_routes import sums_router
from tollway.web.http.query import format_time

HOUR = floor_to(HOUR_MS, NOW_MS)
DAY = floor_to(DAY_MS, NOW_MS)
STRANGER, VIEWER = Address(b"\x09" * 20), Address(b"\x08" * 20)
CAIP19 = f"eip155:84532/erc20:{USDC}"
PAID = {"chain_id": 84532, "asset": USDC, "decimals": 6}
NOTHING = {"calls": 0, "units": "0", "amount": "0"}


async def open_database(*rows: dict[str, Any]) -> InlineDatabase:
    database = InlineDatabase()
    if rows:
        await database.write(lambda connection: insert_calls(connection, rows))
    return database


ASSET = Asset(chain_id=ChainId(84532), token=Address.parse(USDC), symbol="USDC", decimals=6)
MONEY = ChannelMoney(
    chain_id=ASSET.chain_id,
    token=Address.parse(USDC),
    channels=3,
    withdrawing=1,
    unclaimed_units=1,
    withdrawing_units=1,
    claimed_units=20_000,
    settled_units=0,
    lost_units=400,
)


@dataclass(frozen=True)
class Channels:
    """The sums of channels of one receiver."""

    money: Sequence[ChannelMoney] = ()
    receiver: Address = PROVIDER

    async def sum_channels(self, receiver: Address) -> tuple[ChannelMoney, ...]:
        return tuple(self.money) if receiver == self.receiver else ()


async def ask(
    database: InlineDatabase,
    path: str,
    *,
    wallet: Address | None = PROVIDER,
    now_ms: int = NOW_MS,
    channels: Sequence[ChannelMoney] = (),
) -> httpx.Response:
    context = make_context(
        period_books=PeriodBookStore(database),
        call_history=Channels(channels),
        assets=(ASSET,),
        authenticate=authenticate_as(wallet),
        book_access=NamedBooks([(VIEWER, PAYER)]),
        now_ms=lambda: now_ms,
    )
    async with open_client(make_app(context, sums_router(context))) as client:
        return await client.get("/api/v2" + path)


async def test_a_row_has_each_state_by_itself_with_its_asset() -> None:
    database = await open_database(
        call_record_row(1, created_ms=HOUR, price_units=10_000, **PAID),
        call_record_row(2, created_ms=HOUR, price_units=20_000, state="released", **PAID),
        call_record_row(3, created_ms=HOUR, price_units=40_000, state="unknown", **PAID),
        call_record_row(4, created_ms=HOUR, price_units=80_000, state="reorged", **PAID),
        call_record_row(
            5, created_ms=HOUR, price_units=5, chain_id=1, asset="native", currency="ETH", decimals=18
        ),
        call_record_row(6, created_ms=HOUR, price_units=0),
    )
    document = (await ask(database, "/sales?step=hour", now_ms=HOUR + 9)).json()
    usdc = {
        "network": "eip155:84532",
        "asset": CAIP19,
        "currency": "USDC",
        "calls": 4,
        "held": {"calls": 1, "units": "40000", "amount": "0.04"},
        "charged": {"calls": 1, "units": "10000", "amount": "0.01"},
        "released": {"calls": 1, "units": "20000", "amount": "0.02"},
        "reorged": {"calls": 1, "units": "80000", "amount": "0.08"},
        "refunded": NOTHING,
        "net": {"units": "10000", "amount": "0.01"},
    }
    ether = {
        "network": "eip155:1",
        "asset": "eip155:1/slip44:60",
        "currency": "ETH",
        "calls": 1,
        "held": NOTHING,
        "charged": {"calls": 1, "units": "5000000000", "amount": "0.000000005"},
        "released": NOTHING,
        "reorged": NOTHING,
        "refunded": NOTHING,
        "net": {"units": "5000000000", "amount": "0.000000005"},
    }
    free = {
        "network": None,
        "asset": None,
        "currency": "USDC",
        "calls": 1,
        "held": NOTHING,
        "charged": {"calls": 1, "units": "0", "amount": "0"},
        "released": NOTHING,
        "reorged": NOTHING,
        "refunded": NOTHING,
        "net": {"units": "0", "amount": "0"},
    }
    start = {"start": format_time(HOUR), "apiId": "api_1", "apiName": None}
    assert document == {
        "step": "hour",
        "from": format_time(HOUR - 23 * HOUR_MS),
        "to": format_time(HOUR + HOUR_MS),
        "asOf": format_time(HOUR + 9),
        "isLowerBound": False,
        "sales": [{**start, **ether}, {**start, **usdc}, {**start, **free}],
        "totals": [ether, free, usdc],
        "channels": [],
    }
    assert read_record(SalesReport, document).sales[1].released.amount == "0.02"


@pytest.mark.parametrize(
    ("group_by", "member"),
    [
        ("api", {"apiId": "api_1", "apiName": None}),
        ("provider", {"provider": str(PROVIDER)}),
        ("wallet", {"wallet": str(PAYER)}),
    ],
)
async def test_spending_is_grouped_by_what_was_asked(group_by: str, member: dict[str, Any]) -> None:
    database = await open_database(call_record_row(1, created_ms=HOUR, price_units=10_000, **PAID))
    document = (await ask(database, f"/spending?groupBy={group_by}", wallet=PAYER)).json()
    (row,) = document["spending"]
    assert {name: row[name] for name in ("start", *member)} == {"start": format_time(DAY), **member}
    assert row["charged"] == {"calls": 1, "units": "10000", "amount": "0.01"}
    assert read_record(SpendingReport, document).step == "day"


async def test_each_wallet_sees_its_own_sums_only() -> None:
    database = await open_database(call_record_row(1, created_ms=HOUR, **PAID))
    for path in ("/sales", "/spending", "/sales?apiId=api_1"):
        document = (await ask(database, path, wallet=STRANGER)).json()
        assert (document.get("sales", document.get("spending")), document["totals"]) == ([], [])
        assert (await ask(database, path, wallet=None)).status_code == 401
    assert (await ask(database, "/sales", wallet=PAYER)).json()["sales"] == []
    assert (await ask(database, "/spending", wallet=PROVIDER)).json()["spending"] == []


def at(ms: int) -> str:
    return format_time(ms)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("step=day", (DAY - 29 * DAY_MS, DAY + DAY_MS)),
        (f"step=day&to={at(DAY)}", (DAY - 30 * DAY_MS, DAY)),
        (f"step=hour&from={at(HOUR + 1)}&to={at(HOUR + 2)}", (HOUR, HOUR + HOUR_MS)),
        (f"step=hour&from={at(HOUR)}&to={at(HOUR)}", (HOUR, HOUR + HOUR_MS)),
        (f"step=hour&from={at(HOUR - 744 * HOUR_MS)}&to={at(HOUR)}", (HOUR - 744 * HOUR_MS, HOUR)),
        (f"from={at(DAY - 366 * DAY_MS)}&to={at(DAY)}", (DAY - 366 * DAY_MS, DAY)),
        ("from=1970-01-01T00:00:00Z&to=1970-01-02T00:00:00Z", (0, DAY_MS)),
        ("to=1970-01-02T00:00:00Z", (0, DAY_MS)),
        ("from=9998-12-31T00:00:00Z&to=9998-12-31T23:59:59.999Z", None),
    ],
)
async def test_a_range_is_of_whole_steps(query: str, expected: tuple[int, int] | None) -> None:
    for path in ("sales", "spending"):
        answer = await ask(await open_database(), f"/{path}?{query}")
        assert answer.status_code == 200, answer.text
        if expected is not None:
            assert (answer.json()["from"], answer.json()["to"]) == (at(expected[0]), at(expected[1]))


BOTH, SALES, SPENDING = ("/sales", "/spending"), ("/sales",), ("/spending",)


@pytest.mark.parametrize(
    ("paths", "query", "parameter", "code"),
    [
        (BOTH, f"from={at(DAY)}&to={at(DAY - 1)}", "from", "backwards"),
        (BOTH, f"from={at(NOW_MS + 1)}", "from", "backwards"),
        (BOTH, f"from={at(DAY - 367 * DAY_MS)}&to={at(DAY)}", "from", "range_too_long"),
        (BOTH, f"step=hour&from={at(HOUR - 745 * HOUR_MS)}&to={at(HOUR)}", "from", "range_too_long"),
        (SALES, f"step=hour&from={at(DAY - 91 * DAY_MS)}&to={at(DAY - 90 * DAY_MS)}", "from", "too_old"),
        (BOTH, "from=yesterday", "from", "malformed"),
        (BOTH, "to=2026-13-01T00:00:00Z", "to", "malformed"),
        (BOTH, "to=9999-01-01T00:00:00Z", "to", "malformed"),
        (BOTH, "step=week", "step", "unknown_value"),
        (SPENDING, "groupBy=day", "groupBy", "unknown_value"),
        (SALES, "groupBy=api", "groupBy", "unknown"),
        (SPENDING, "apiId=api_1", "apiId", "unknown"),
        (SALES, "apiId=" + "a" * 65, "apiId", "too_long"),
        (BOTH, "step=day&step=day", "step", "duplicate"),
    ],
)
async def test_a_bad_range_is_refused_and_its_parameter_named(
    paths: tuple[str, ...], query: str, parameter: str, code: str
) -> None:
    for path in paths:
        answer = await ask(await open_database(), f"{path}?{query}")
        assert answer.status_code == 422, answer.text
        problem = answer.json()
        assert problem["code"] == "validation_failed"
        assert [(error["parameter"], error["code"]) for error in problem["errors"]] == [(parameter, code)]


async def test_hours_of_the_last_90_days_can_be_asked() -> None:
    path = f"step=hour&from={at(DAY - 90 * DAY_MS)}&to={at(DAY - 89 * DAY_MS)}"
    assert (await ask(await open_database(), f"/sales?{path}")).status_code == 200
    old = f"step=hour&from={at(DAY - 400 * DAY_MS)}&to={at(DAY - 399 * DAY_MS)}"
    assert (await ask(await open_database(), f"/spending?{old}")).status_code == 200


async def test_sums_of_closed_hours_are_as_of_the_first_move_that_is_not_in_them() -> None:
    database = await open_database(call_record_row(1, created_ms=HOUR, **PAID))
    now_ms = HOUR + HOUR_MS + CLOSE_DELAY_MS
    await ClosedPeriods(database, read_clock=lambda connection: now_ms, ledger_ms=lambda: now_ms).write_due()
    assert (await ask(database, "/sales", now_ms=now_ms)).json()["asOf"] == at(now_ms)
    mark = f"INSERT INTO sales_mark (hour_ms, marked_ms) VALUES ({HOUR}, {now_ms - 7})"
    await database.write(lambda connection: connection.exec_driver_sql(mark))
    assert (await ask(database, "/sales", now_ms=now_ms)).json()["asOf"] == at(now_ms - 7)
    early = f"/sales?to={at(DAY - DAY_MS)}"
    assert (await ask(database, early, now_ms=now_ms)).json()["asOf"] == at(now_ms)


async def test_a_viewer_reads_the_spending_of_the_wallet_that_named_it_and_no_sales() -> None:
    database = await open_database(call_record_row(1, created_ms=HOUR, **PAID))
    path = f"/spending?wallet={PAYER}"
    assert (await ask(database, path, wallet=VIEWER)).json() == (
        await ask(database, "/spending", wallet=PAYER)
    ).json()
    assert (await ask(database, path, wallet=STRANGER)).status_code == 403
    assert (await ask(database, f"/sales?wallet={PAYER}", wallet=VIEWER)).status_code == 422


async def test_sales_say_where_the_money_of_channels_is_by_asset() -> None:
    """Whatever the range and the listing: no claim is of one call."""
    unknown = replace(MONEY, token=Address(b"\x05" * 20))
    database = await open_database()
    response = await ask(database, "/sales?apiId=api_1", channels=[MONEY, unknown])
    assert response.json()["channels"] == [
        {
            "network": "eip155:84532",
            "asset": CAIP19,
            "currency": "USDC",
            "channels": 3,
            "withdrawing": 1,
            "unclaimed": {"units": "1", "amount": "0.000001"},
            "claimed": {"units": "20000", "amount": "0.02"},
            "settled": {"units": "0", "amount": "0"},
            "lost": {"units": "400", "amount": "0.0004"},
        }
    ]
    (money,) = read_record(SalesReport, response.json()).channels
    assert (money.claimed.units, money.lost.amount) == (20_000, "0.0004")


async def test_only_the_wallet_that_channels_pay_sees_their_money() -> None:
    database = await open_database()
    assert (await ask(database, "/sales", wallet=PAYER, channels=[MONEY])).json()["channels"] == []
    assert "channels" not in (await ask(database, "/spending", wallet=PAYER, channels=[MONEY])).json()
