"""A gateway with the default limits, for the files that test no other ones."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.gateway import InProcessGateway, open_gateway


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as it:
        yield it
