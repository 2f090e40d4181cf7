"""The pages of a wallet that has signed in, a provider or a caller."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.signed_in import SignedInHarness, open_signed_in


@pytest.fixture
async def harness() -> AsyncIterator[SignedInHarness]:
    async with open_signed_in() as it:
        yield it
