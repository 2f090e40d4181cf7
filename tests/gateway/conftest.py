"""Whom the passage serves. `gate` is each file's own: it sets the limits that the file is about."""

import pytest

from tests.kit.gateway import SmallGateway
from tests.kit.payer import SmallPayer


@pytest.fixture
def payer(gate: SmallGateway) -> SmallPayer:
    """With money for ten calls of a listing at 0.01 USDC."""
    payer = SmallPayer(buyer=gate.buyer, gate=gate)
    payer.fund(100_000)
    return payer
