"""What an open call waits for, as a table."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS
from tests.web.api.test_history_routes import CALL
from tollway.ledger.records import CallState
from tollway.web.http.query import format_time
from tollway.web.operator.open_calls import call_json


@pytest.mark.parametrize(
    ("changes", "waits_for", "held_until"),
    [
        ({"state": CallState.SETTLING, "held_until_ms": None}, "transaction", None),
        ({"state": CallState.UNKNOWN, "held_until_ms": NOW_MS}, "deadline", format_time(NOW_MS)),
        ({"state": CallState.UNKNOWN, "held_until_ms": None}, "provider", None),
    ],
)
def test_an_open_call_names_what_it_waits_for(
    changes: dict[str, Any], waits_for: str, held_until: str | None
) -> None:
    found = call_json(replace(CALL, **changes))
    assert (found["waitsFor"], found["heldUntil"]) == (waits_for, held_until)
    assert (found["provider"], found["listing"]) == (str(CALL.provider), CALL.listing_id)
