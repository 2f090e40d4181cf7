"""`tollway history`: a table that fits 80 columns, and one call whole with what to do."""

import json
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import pytest

from tests.kit.terminal import run_commands, split_commands
from tollway.cli.history import (
    advise,
    describe_hold,
    describe_state,
    format_age,
    format_charge,
    format_time,
    read_calls,
)

CALL_ID = "call_" + "0" * 25 + "1"
HELD = {
    "id": "call_" + "0" * 25 + "2",
    "apiId": "api_1",
    "apiName": "Quotes of everything that has a price",
    "provider": "0x" + "22" * 20,
    "payer": "0x" + "33" * 20,
    "method": "POST",
    "path": "/quote",
    "status": "unknown",
    "httpStatus": 504,
    "price": "0.010000",
    "currency": "USDC",
    "payment": {
        "state": "held",
        "rail": "tx",
        "network": "eip155:84532",
        "transaction": "0x" + "ab" * 32,
        "payTo": "0x" + "22" * 20,
        "heldUntil": "2026-11-24T19:53:11.123Z",
    },
    "latencyMs": 1200,
    "error": "upstream_timeout",
    "createdAt": "2026-11-23T19:53:11.123Z",
    "completedAt": "2026-11-23T19:53:41.123Z",
}
CHARGED = {
    **HELD,
    "id": CALL_ID,
    "status": "succeeded",
    "httpStatus": 200,
    "error": None,
    "payment": {**HELD["payment"], "state": "charged", "heldUntil": None},
}


def test_history_is_signed(run, gateway):
    done = run("history", "--api", "api_1", "--limit", "5")
    assert json.loads(done.stdout) == {"calls": [], "total": 0}
    assert gateway.seen[-1][1] == "/api/v2/history?apiId=api_1&limit=5&offset=0"
    assert "signature-input" in gateway.seen[-1][2]


@pytest.mark.parametrize(
    ("limit", "held", "sizes"),
    [
        (50, 500, [50]),
        (200, 500, [200]),
        (201, 500, [200, 1]),
        (1_000, 3_000, [200] * 5),
        (1_000, 450, [200, 200, 200]),
        (1_000, 0, [200]),
    ],
)
def test_a_long_list_is_read_page_by_page(limit, held, sizes):
    calls, asked = [{"id": f"call_{number}"} for number in range(held)], []

    def fetch(request):
        query = dict(parse_qsl(request.path.partition("?")[2]))
        asked.append(query)
        start = int(query["before"].removeprefix("call_")) + 1 if "before" in query else int(query["offset"])
        page = calls[start : start + int(query["limit"])]
        return {"calls": page, "total": held, "limit": int(query["limit"]), "offset": int(query["offset"])}

    shown = {"api_id": "api_1"}
    found = read_calls(fetch, shown, limit=limit, offset=0)
    assert found["calls"] == calls[:limit]
    assert (found["total"], found["offset"]) == (held, 0)
    assert [int(query["limit"]) for query in asked] == sizes
    assert {query["apiId"] for query in asked} == {"api_1"}
    with pytest.raises(ValueError, match="at most 1,000"):
        read_calls(fetch, shown, limit=1_001, offset=0)


def test_held_calls_are_those_of_unknown_outcome(run, gateway):
    assert run("history", "--held", "--role", "provider").exit_code == 0
    assert gateway.seen[-1][1] == "/api/v2/history?limit=50&offset=0&status=unknown&role=provider"
    assert run("history", "--held", "--status", "failed").exit_code == 2


def test_one_call_is_the_record_of_the_gateway(run, gateway):
    gateway.call = HELD
    assert json.loads(run("history", HELD["id"]).stdout) == HELD
    assert gateway.seen[-1][1] == f"/api/v2/history/{HELD['id']}"


@pytest.fixture
def lines(gateway, environment, tmp_path):
    def go(*words, **env):
        ((code, shown),) = split_commands(
            run_commands([words], {**environment, "HOME": str(tmp_path), **env})
        )
        assert code == 0, shown
        return shown

    return go


RELEASED = {
    **CHARGED,
    "id": "call_" + "0" * 25 + "3",
    "method": "GET",
    "path": "/nowhere/" + "x" * 90,
    "status": "failed",
    "httpStatus": 404,
    "payment": {**HELD["payment"], "state": "released", "heldUntil": None},
}


@pytest.mark.process
def test_the_table_fits_80_columns_and_names_time_call_state_charge_listing_and_request(gateway, lines):
    gateway.calls = [HELD, CHARGED, RELEASED]
    shown = lines("history")
    assert max(map(len, shown)) <= 80
    assert shown[0].split() == ["time", "(UTC)", "call", "state", "charged", "listing"]
    assert shown[1].startswith(f"11-23 19:53 {HELD['id']} held      not yet       Quotes")
    assert shown[2] == "    POST /quote · HTTP 504"
    assert shown[3].startswith(f"11-23 19:53 {CALL_ID} succeeded 0.010000 USDC Quotes")
    assert shown[4] == "    POST /quote · HTTP 200"
    assert shown[5].startswith(f"11-23 19:53 {RELEASED['id']} failed    0 USDC        Quotes")
    assert shown[6].startswith("    GET /nowhere/xxx")
    told = " ".join(" ".join(shown[7:]).split())
    assert f"{HELD['id']}: 0.010000 USDC is held until 2026-11-24 19:53:11 UTC" in told
    assert "Do not pay again." in told
    assert CALL_ID not in told


@pytest.mark.parametrize(
    ("state", "charge"),
    [
        ("charged", "0.010000 USDC"),
        ("reorged", "0.010000 USDC"),
        ("held", "not yet"),
        ("released", "0 USDC"),
        ("none", "0 USDC"),
        (None, "0 USDC"),
    ],
)
def test_a_call_is_charged_its_price_or_nothing(state, charge):
    assert format_charge({**HELD, "payment": {"state": state}}) == charge


@pytest.mark.process
def test_one_call_is_shown_whole_with_what_to_do(gateway, lines):
    gateway.call = HELD
    shown = lines("history", HELD["id"])
    assert max(map(len, shown)) <= 80
    read = {line[:11].strip(): line[11:].strip() for line in shown}
    for name, value in (
        ("call", HELD["id"]),
        ("state", "held"),
        ("price", "0.010000 USDC"),
        ("listing", "Quotes of everything that has a price (api_1)"),
        ("request", "POST /quote"),
        ("response", "504"),
        ("payer", HELD["payer"]),
        ("transaction", HELD["payment"]["transaction"]),
        ("held until", "2026-11-24 19:53:11 UTC"),
        ("began", "2026-11-23 19:53:11 UTC"),
        ("ended", "2026-11-23 19:53:41 UTC"),
    ):
        assert read[name] == value
    assert "Do not pay again." in " ".join(shown)


@pytest.mark.parametrize(
    ("status", "state", "told"),
    [
        ("succeeded", "charged", ""),
        ("pending", "held", "in progress"),
        ("unknown", "held", "Do not pay again"),
        ("failed", "released", "came back"),
        ("succeeded", "reorged", "owed to the provider"),
        ("failed", "none", ""),
        ("succeeded", {"odd": 1}, ""),
    ],
)
def test_advice_by_state(status, state, told):
    advice = advise({**HELD, "status": status, "payment": {"state": state}})
    assert (told in advice) if told else advice == ""


def test_a_hold_without_an_end_names_no_time():
    text = describe_hold({**HELD, "payment": {"state": "held"}})
    assert text.startswith("0.010000 USDC is held: the API got the request")


def test_only_an_unknown_call_is_called_held():
    assert describe_state(HELD) == "held"
    assert describe_state({**HELD, "status": "pending"}) == "pending"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("2026-11-23T19:53:11.123Z", "2026-11-23 19:53:11 UTC"),
        ("2026-11-23T20:53:11+01:00", "2026-11-23 19:53:11 UTC"),
        ("soon", "soon"),
        (None, ""),
        (7, ""),
    ],
)
def test_times(given, told):
    assert format_time(given) == told


@pytest.mark.process
def test_held_calls_have_their_amount_age_payer_and_sum(gateway, lines):
    gateway.calls = [HELD, {**HELD, "id": CALL_ID, "price": "0.02"}]
    shown = lines("history", "--held")
    assert max(map(len, shown)) <= 80
    assert shown[0].startswith("0.010000 USDC  ")
    assert shown[0].endswith(HELD["id"])
    assert shown[1].strip() == f"payer {HELD['payer']}"
    assert "held until 2026-11-24 19:53:11 UTC" in shown[2]
    assert "2 calls hold 0.030000 USDC on eip155:84532" in " ".join(shown)


@pytest.mark.parametrize(
    ("value", "age"),
    [
        ("2026-11-23T19:53:11.123Z", "7 min"),
        ("2026-11-23T16:48:11.123Z", "3 h 12 min"),
        ("2026-11-20T16:48:11.123Z", "3 d 3 h"),
        ("2026-11-24T00:00:00.000Z", "0 min"),
        ("soon", ""),
        (None, ""),
    ],
)
def test_an_age_is_days_hours_or_minutes(value, age):
    assert format_age(value, now=datetime(2026, 11, 23, 20, 0, 20, tzinfo=UTC)) == age


SETTLING = {**HELD, "status": "pending", "payment": {**HELD["payment"], "rail": "x402", "heldUntil": None}}


@pytest.mark.process
def test_a_charge_that_is_being_settled_says_so(gateway, lines):
    gateway.call = SETTLING
    told = " ".join(lines("history", "resolve", HELD["id"], "--charge"))
    assert "The signed payment is being settled" in told
    assert "Read the call again in a few seconds: tollway history CALL." in told
    assert "The call is in progress" not in told
    assert "The call is in progress" in " ".join(lines("history", HELD["id"]))


# ---- Metered calls.

METERED = {
    **CHARGED,
    "price": "0.00005",
    "priceMax": "0.01",
    "quantities": [{"unit": "prompt token", "quantity": 40}, {"unit": "completion token", "quantity": 7}],
}
MEASURING = {
    **METERED,
    "price": "0.01",
    "quantities": None,
    "payment": {**CHARGED["payment"], "state": "held"},
}


@pytest.mark.process
def test_one_metered_call_shows_its_price_its_maximum_and_what_it_used(lines, gateway):
    gateway.call = METERED
    shown = [" ".join(line.split()) for line in lines("history", CALL_ID)]
    assert {
        "price 0.00005 USDC",
        "at most 0.01 USDC",
        "used prompt token 40, completion token 7",
    } <= set(shown)


@pytest.mark.process
def test_the_list_shows_the_maximum_of_metered_calls(lines, gateway):
    gateway.calls = [METERED, CHARGED]
    shown = lines("history")
    assert [line.strip() for line in shown if "HTTP 200" in line] == [
        "POST /quote · HTTP 200 · at most 0.01 USDC",
        "POST /quote · HTTP 200",
    ]
    assert any("0.00005 USDC" in line for line in shown)


def test_a_metered_call_that_streams_holds_its_maximum_without_a_doubt():
    assert describe_hold(MEASURING) == (
        "0.01 USDC is held until the response ends: then the call costs what it has used, and the rest comes back."
    )


# ---- Calls on channels.

ON_CHANNEL = {
    **CHARGED,
    "payment": {
        **CHARGED["payment"],
        "rail": "channel",
        "transaction": None,
        "channel": "0x" + "cd" * 32,
        "claimState": "unclaimed",
    },
}
LOST = {**ON_CHANNEL, "payment": {**ON_CHANNEL["payment"], "state": "reorged", "claimState": "lost"}}
HELD_ON_CHANNEL = {**HELD, "payment": {**HELD["payment"], "rail": "channel"}}


@pytest.mark.process
def test_a_call_on_a_channel_shows_its_channel_and_where_its_price_is(lines, gateway):
    gateway.call = ON_CHANNEL
    shown = [" ".join(line.split()) for line in lines("history", CALL_ID)]
    assert {"rail channel", "money in the channel, not claimed yet"} <= set(shown)
    assert f"channel {ON_CHANNEL['payment']['channel']}" in " ".join(shown)


@pytest.mark.process
def test_the_list_shows_where_the_price_of_a_call_on_a_channel_is(lines, gateway):
    gateway.calls = [LOST, ON_CHANNEL, CHARGED]
    assert [line.strip() for line in lines("history") if "HTTP 200" in line] == [
        "POST /quote · HTTP 200 · lost",
        "POST /quote · HTTP 200 · unclaimed",
        "POST /quote · HTTP 200",
    ]


def test_advice_about_a_channel_names_neither_credit_nor_a_debt():
    assert "Only a further deposit into this channel pays it." in advise(LOST)
    told = advise(HELD_ON_CHANNEL)
    assert "the voucher of this call pays the repeat" in told
    assert "credit" not in told
