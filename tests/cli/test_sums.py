"""`listing earnings` and `wallet spending`: one table for each asset, states by themselves, CSV without formulas."""

import csv
import io
import json
from decimal import Decimal

import pytest

from tests.kit.terminal import run_commands, split_commands
from tollway.cli.sums import BAR_WIDTH, draw_bar, format_channels, format_csv, format_tables

NOTHING = {"calls": 0, "units": "0", "amount": "0"}
USDC = {
    "network": "eip155:84532",
    "asset": "eip155:84532/erc20:0x036cbd53842c5426634e7929541ec2318f3dcf7e",
    "currency": "USDC",
    "calls": 5,
    "charged": {"calls": 2, "units": "20000", "amount": "0.02"},
    "released": {"calls": 1, "units": "10000", "amount": "0.01"},
    "held": {"calls": 2, "units": "40000", "amount": "0.04"},
    "reorged": NOTHING,
}
ETHER = {**USDC, "network": "eip155:1", "asset": "eip155:1/slip44:60", "currency": "ETH", "released": NOTHING}
START = {"start": "2026-11-23T00:00:00.000Z", "apiId": "api_1"}
FOUND = {
    "step": "day",
    "isLowerBound": False,
    "sales": [{**START, "apiName": "=HYPERLINK(1)\x1b[2J", **USDC}, {**START, "apiName": None, **ETHER}],
    "totals": [ETHER, USDC],
}
CHANNEL_MONEY = {
    **{name: USDC[name] for name in ("network", "asset", "currency")},
    "channels": 2,
    "withdrawing": 1,
    "unclaimed": {"units": "9", "amount": "0.000009"},
    "claimed": {"units": "0", "amount": "0"},
    "settled": {"units": "4999999999999999", "amount": "4999999999.999999"},
    "lost": {"units": "0", "amount": "0"},
}


def test_earnings_and_spending_are_signed_and_name_their_range(run, gateway):
    assert (
        run("listing", "earnings", "--by", "hour", "--api", "api_1", "--since", "2026-11-23").exit_code == 0
    )
    assert gateway.seen[-1][1] == "/api/v2/sales?step=hour&from=2026-11-23T00%3A00%3A00Z&apiId=api_1"
    assert "signature-input" in gateway.seen[-1][2]
    assert run("wallet", "spending", "--group", "provider", "--until", "2026-11-23T08:00:00Z").exit_code == 0
    assert gateway.seen[-1][1] == "/api/v2/spending?step=day&to=2026-11-23T08%3A00%3A00Z&groupBy=provider"
    assert run("wallet", "spending", "--csv", "--json").exit_code == 2


def test_json_is_the_answer_of_the_gateway_and_csv_has_a_line_for_each_state(run, gateway):
    gateway.sums = FOUND
    assert json.loads(run("listing", "earnings").stdout) == FOUND
    rows = list(csv.DictReader(io.StringIO(run("listing", "earnings", "--csv").stdout, newline="")))
    assert [(row["currency"], row["state"], row["calls"], row["units"], row["amount"]) for row in rows] == [
        ("USDC", "charged", "2", "20000", "0.02"),
        ("USDC", "released", "1", "10000", "0.01"),
        ("USDC", "held", "2", "40000", "0.04"),
        ("ETH", "charged", "2", "20000", "0.02"),
        ("ETH", "held", "2", "40000", "0.04"),
    ]
    assert rows[0]["name"].startswith("'=HYPERLINK(1)")
    assert "\x1b" not in rows[0]["name"]


def test_earnings_say_where_the_money_of_channels_is(run, gateway):
    gateway.sums = {**FOUND, "sales": [], "totals": [], "channels": [CHANNEL_MONEY]}
    assert [line.plain.strip() for line in format_channels(gateway.sums)] == [
        "Payment channels, USDC on eip155:84532, so far",
        "unclaimed 0.000009, claimed 0, settled 4999999999.999999, lost 0",
        "payers who withdraw: 1",
    ]
    rows = list(csv.DictReader(io.StringIO(run("listing", "earnings", "--csv").stdout, newline="")))
    assert [(row["start"], row["group"], row["state"], row["calls"], row["units"]) for row in rows] == [
        ("", "channels", "unclaimed", "", "9"),
        ("", "channels", "settled", "", "4999999999999999"),
    ]


@pytest.mark.process
def test_a_terminal_gets_a_table_for_each_asset_with_bars_and_totals(gateway, environment, tmp_path):
    more = {"isLowerBound": True, "completeFrom": "2026-11-20T00:00:00.000Z"}
    gateway.sums = {**FOUND, **more, "channels": [CHANNEL_MONEY]}
    ((code, shown),) = split_commands(
        run_commands([["listing", "earnings"]], {**environment, "HOME": str(tmp_path)})
    )
    assert code == 0, shown
    assert max(map(len, shown)) <= 80
    text = "\n".join(shown)
    assert text.index("ETH on eip155:1") < text.index("USDC on eip155:84532")
    assert "█" * BAR_WIDTH in text
    assert "released 0.01 (1), held 0.04 (2)" in text
    assert "--until 2026-11-20T00:00:00.000Z" in text
    assert text.index("settled 4999999999.999999") > text.index("USDC on eip155:84532")


REFUNDED = {
    "refunded": {"calls": 1, "units": "5000", "amount": "0.005"},
    "net": {"units": "15000", "amount": "0.015"},
}


def test_what_came_back_stands_beside_the_charges_with_the_net(run, gateway):
    """On a line of its own in CSV, and below its row and its total in a table. Without a refund there is neither."""
    gateway.sums = {**FOUND, "sales": [{**row, **REFUNDED} for row in FOUND["sales"][:1]]}
    rows = list(csv.DictReader(io.StringIO(run("listing", "earnings", "--csv").stdout, newline="")))
    found = [(row["state"], row["calls"], row["units"], row["amount"]) for row in rows]
    assert found[-2:] == [("refunded", "1", "5000", "0.005"), ("net", "", "15000", "0.015")]
    lines = [
        str(line)
        for line in format_tables({**FOUND, "totals": [{**USDC, **REFUNDED}]}, gateway.sums["sales"])
    ]
    told = "refunded 0.005 (1), net 0.015, released 0.01 (1), held 0.04 (2)"
    assert [line.strip() for line in lines].count(told) == 2
    assert "net" not in "".join(map(str, format_tables(FOUND, FOUND["sales"])))


def test_a_pipe_gets_no_bar(run, gateway):
    gateway.sums = FOUND
    assert "█" not in run("listing", "earnings").stdout + run("listing", "earnings", "--csv").stdout


@pytest.mark.parametrize(
    ("amount", "largest", "length"),
    [("0", "0", 0), ("0", "5", 0), ("0.000001", "5", 1), ("5", "5", BAR_WIDTH)],
)
def test_a_bar_is_in_proportion_and_never_empty_for_money(amount, largest, length):
    assert len(draw_bar(Decimal(amount), Decimal(largest))) == length


@pytest.mark.parametrize("odd", [None, 7, "x", {"calls": "many", "amount": "NaN"}, {"amount": []}])
def test_a_gateway_that_sends_other_types_breaks_nothing(odd):
    found = {
        **FOUND,
        "totals": [{**USDC, "charged": odd}, {"asset": odd}],
        "channels": [odd, {"unclaimed": odd}],
    }
    rows = [{**START, **USDC, "charged": odd, "start": odd, "calls": odd}]
    assert list(format_tables(found, rows))
    assert list(format_csv(found, rows))
    assert list(format_channels(found))
