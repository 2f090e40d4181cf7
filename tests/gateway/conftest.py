"""Payers of the gateway tests. Each test file has its own `gateway` fixture with the limits that it tests."""

import pytest

from tests.kit.gateway import InProcessGateway
from tests.kit.payer import Payer


@pytest.fixture
def payer(gateway: InProcessGateway) -> Payer:
    """With money for ten calls of a listing at 0.01 USDC."""
    return Payer.funded(gateway, 100_000)
