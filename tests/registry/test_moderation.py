"""The wallets that may publish: a table."""

import pytest

from tollway.errors import Code
from tollway.ids import Address
from tollway.registry.moderation import BlockedWallet, check_registration

ALICE, BOB = Address(b"a" * 20), Address(b"b" * 20)


@pytest.mark.parametrize(
    ("allowlist", "is_blocked", "code"),
    [
        (None, False, None),
        (None, True, Code.WALLET_BLOCKED),
        ((ALICE,), False, None),
        ((ALICE,), True, Code.WALLET_BLOCKED),
        ((BOB,), False, Code.NOT_PROVIDER),
        ((BOB,), True, Code.WALLET_BLOCKED),
        ((), False, Code.NOT_PROVIDER),
    ],
)
def test_registration_is_refused_by_block_and_allowlist(
    allowlist: tuple[Address, ...] | None, is_blocked: bool, code: Code | None
) -> None:
    block = BlockedWallet(wallet=ALICE, reason="", since_ms=1) if is_blocked else None
    problem = check_registration(ALICE, allowlist=allowlist, block=block)
    assert (problem.code if problem else None) == code
    assert (problem.reason if problem else None) == (
        "not_on_allowlist" if code is Code.NOT_PROVIDER else None
    )
