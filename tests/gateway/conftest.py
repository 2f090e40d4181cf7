"""A gateway with the default limits, and its payer. A test file that tests other limits has a `gateway` fixture of its own."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.payer import Payer


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as it:
        yield it


@pytest.fixture
def payer(gateway: InProcessGateway) -> Payer:
    """With money for ten calls of a listing at 0.01 USDC."""
    return Payer.funded(gateway, 100_000)
