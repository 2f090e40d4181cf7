"""What the records of a metered call say: the history, its file, the receipt and the event name the price, its maximum and what was measured."""

from dataclasses import replace
from typing import Any

import pytest

from tests.web.api.test_history_routes import CALL, USDC
from tollway.errors import Refusal
from tollway.ledger.records import CallRecord, CallState, Delivery
from tollway.money import Price
from tollway.registry.metering import (
    BASE,
    Measured,
    MeteredPart,
    Metering,
    QuantitySource,
    write_formulas,
    write_measured,
)
from tollway.web.api.export_rows import CALL_COLUMNS, write_call
from tollway.web.api.history_routes import call_json, name_quantities
from tollway.web.api.receipt_routes import check_ended
from tollway.webhooks.events import call_data


def part(unit: str) -> MeteredPart:
    source = QuantitySource(json=f"/usage/{unit}_tokens")
    return MeteredPart(unit=f"{unit} token", unit_price_atto=10**12, per=1, source=source)


FORMULA = Metering(
    base=Price.parse("0.000003"), absent="max", shows_header=True, parts=(part("prompt"), part("completion"))
)
MEASURED = Measured(((40, 7),))
METERED = replace(
    CALL,
    state=CallState.CONSUMED,
    price="0.01",
    price_units=10_000,
    actual_units=50,
    metering=write_formulas((FORMULA,)),
    quantities=write_measured(MEASURED),
    delivery=Delivery.COMPLETE,
)
STREAMING = replace(METERED, actual_units=None, quantities="", delivery=None)


def cells(call: CallRecord) -> dict[str, str]:
    line = write_call(call, lambda *_: USDC).rstrip("\r\n")
    return dict(zip(CALL_COLUMNS, line.split(","), strict=True))


ROWS: list[tuple[CallRecord, dict[str, Any], str, str]] = [
    (
        METERED,
        {
            "price": "0.00005",
            "priceMax": "0.01",
            "quantities": [
                {"unit": "prompt token", "quantity": 40},
                {"unit": "completion token", "quantity": 7},
            ],
        },
        "charged",
        "50",
    ),
    (STREAMING, {"price": "0.01", "priceMax": "0.01", "quantities": None}, "held", "10000"),
    (
        replace(METERED, actual_units=10_000, quantities=write_measured(Measured((None,)))),
        {"price": "0.01", "priceMax": "0.01", "quantities": []},
        "charged",
        "10000",
    ),
    (
        replace(METERED, actual_units=3, quantities=write_measured(BASE)),
        {"price": "0.000003", "priceMax": "0.01", "quantities": []},
        "charged",
        "3",
    ),
    (
        replace(METERED, actual_units=0, quantities=write_measured(Measured(((0, 0),)))),
        {
            "price": "0",
            "priceMax": "0.01",
            "quantities": [
                {"unit": "prompt token", "quantity": 0},
                {"unit": "completion token", "quantity": 0},
            ],
        },
        "charged",
        "0",
    ),
]


each_row = pytest.mark.parametrize(("call", "members", "state", "amount"), ROWS)


@each_row
def test_a_record_names_the_price_its_maximum_and_the_quantities(
    call: CallRecord, members: dict[str, Any], state: str, amount: str
) -> None:
    record = call_json(call, lambda *_: USDC)
    assert {name: record[name] for name in members} == members
    assert (record["payment"]["state"], record["payment"]["amount"]) == (state, amount)


@each_row
def test_the_file_has_the_same_values(
    call: CallRecord, members: dict[str, Any], state: str, amount: str
) -> None:
    row = cells(call)
    assert (row["state"], row["units"], row["priceMax"]) == (state, amount, members["priceMax"])
    named = [f"{one['unit']}={one['quantity']}" for one in members["quantities"] or ()]
    assert row["quantities"] == ";".join(named)


def test_a_fixed_price_has_no_such_members() -> None:
    record = call_json(CALL, lambda *_: USDC)
    assert not {"priceMax", "quantities"} & record.keys()
    assert (cells(CALL)["priceMax"], cells(CALL)["quantities"]) == ("", "")


def test_an_event_names_the_price_that_was_taken() -> None:
    data = call_data(METERED, state="consumed", created_at="")
    assert (data["price"], data["payment"]["amount"]) == ("0.00005", "50")


@pytest.mark.parametrize("waited_ms", [0, 10**9])
@pytest.mark.parametrize(("state", "named"), [(CallState.CONSUMED, "held"), (CallState.REORGED, "reorged")])
def test_a_streaming_call_has_no_receipt_yet(state: CallState, named: str, waited_ms: int) -> None:
    streaming = replace(STREAMING, state=state)
    with pytest.raises(Refusal) as refused:
        check_ended(streaming, now_ms=STREAMING.moved_ms + waited_ms, wait_s=1)
    assert refused.value.problem.payment_state == named
    check_ended(replace(METERED, state=state), now_ms=METERED.moved_ms, wait_s=1)


def test_of_two_formulas_the_cheaper_one_names_the_quantities() -> None:
    dearer = replace(FORMULA, base=Price.parse("0.000004"))
    both = Measured(((40, 7), (40, 7)))
    call = replace(METERED, metering=write_formulas((dearer, FORMULA)), quantities=write_measured(both))
    assert name_quantities(call) == [("prompt token", 40), ("completion token", 7)]
