"""Server settings that can lose commits, and the modules that a gateway loads for its database."""

import sys
from dataclasses import replace

import pytest

from tests.kit.waits import run_program
from tollway.storage.operator.operator_reads import ServerSettings, find_risks

SAFE = ServerSettings(fsync=True, full_page_writes=True, standbys="", is_read_only=False, hosts=1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SAFE, []),
        (replace(SAFE, hosts=2, standbys="ANY 1 (a, b)"), []),
        (replace(SAFE, hosts=2), ["synchronous_standby_names is empty"]),
        (replace(SAFE, fsync=False), ["fsync is off"]),
        (replace(SAFE, full_page_writes=False), ["full_page_writes is off"]),
        (replace(SAFE, is_read_only=True, fsync=False), ["read-only", "fsync is off"]),
    ],
)
def test_lists_each_risk_of_the_settings(settings: ServerSettings, expected: list[str]) -> None:
    risks = list(find_risks(settings))
    assert len(risks) == len(expected)
    assert all(part in risk for part, risk in zip(expected, risks, strict=True))


@pytest.mark.process
async def test_a_gateway_on_sqlite_does_not_load_the_driver_of_postgresql() -> None:
    program = (
        "import sys, tollway.app.lifecycle, tollway.cli.operator\n"
        "from tollway.storage.engine.database import connect_database\n"
        "connect_database('sqlite:///books.sqlite3')\n"
        "print(sorted({'asyncpg', 'sqlalchemy.orm', 'tollway.storage.engine.postgres'} & set(sys.modules)))"
    )
    assert (await run_program(sys.executable, "-c", program)).output.strip() == "[]"
