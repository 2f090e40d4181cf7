"""Who may publish: a table."""

from typing import Literal

import pytest

from tollway.errors import Code
from tollway.identifiers import Address
from tollway.registry.moderation import check_registration

ALICE, BOB = Address(b"a" * 20), Address(b"b" * 20)


@pytest.mark.parametrize(
    ("mode", "allowlist", "is_blocked", "code"),
    [
        ("open", (), False, None),
        ("open", (), True, Code.WALLET_BLOCKED),
        ("allowlist", (ALICE,), False, None),
        ("allowlist", (ALICE,), True, Code.WALLET_BLOCKED),
        ("allowlist", (BOB,), False, Code.OWNERSHIP_UNVERIFIED),
        ("allowlist", (), False, Code.OWNERSHIP_UNVERIFIED),
    ],
)
def test_who_may_publish(
    mode: Literal["open", "allowlist"], allowlist: tuple[Address, ...], is_blocked: bool, code: Code | None
) -> None:
    problem = check_registration(ALICE, mode=mode, allowlist=allowlist, is_blocked=is_blocked)
    assert (problem.code if problem else None) == code
