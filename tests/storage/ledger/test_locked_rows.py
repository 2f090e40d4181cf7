"""The order in which one transaction writes its locked rows."""

from typing import Any

import pytest

from tollway.storage.ledger.locked_rows import LockedRows

NO_CONNECTION: Any = None
"""Without changes nothing is sent."""


def test_changes_are_written_once() -> None:
    rows = LockedRows(NO_CONNECTION)
    rows.write()
    with pytest.raises(AssertionError):
        rows.write()


def test_no_change_is_written_after_debits() -> None:
    """It would write the balances of before the debits."""
    rows = LockedRows(NO_CONNECTION)
    rows.write_debits([])
    with pytest.raises(AssertionError):
        rows.write()
