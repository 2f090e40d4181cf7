"""What the doctor says of a database server that would lose claims."""

from dataclasses import replace

import pytest

from tollway.storage.database import ServerSettings, find_risks

SAFE = ServerSettings(fsync=True, full_page_writes=True, standbys="", is_read_only=False, hosts=1)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (SAFE, []),
        (replace(SAFE, hosts=2, standbys="ANY 1 (a, b)"), []),
        (replace(SAFE, hosts=2), ["synchronous_standby_names is empty"]),
        (replace(SAFE, fsync=False), ["fsync is off"]),
        (replace(SAFE, full_page_writes=False), ["full_page_writes is off"]),
        (replace(SAFE, is_read_only=True, fsync=False), ["read-only", "fsync is off"]),
    ],
)
def test_each_risk_is_told(settings: ServerSettings, told: list[str]) -> None:
    risks = list(find_risks(settings))
    assert len(risks) == len(told)
    assert all(part in risk for part, risk in zip(told, risks, strict=True))
