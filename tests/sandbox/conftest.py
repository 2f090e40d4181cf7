"""A test chain of its own for each test of this folder (25 ms), furnished."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tollway.sandbox.anvil import Anvil, run_anvil
from tollway.sandbox.chain_driver import ChainDriver
from tollway.sandbox.playground import Playground, prepare_playground


@pytest.fixture
async def anvil() -> AsyncIterator[Anvil]:
    async with run_anvil() as anvil:
        yield anvil


@pytest.fixture
async def chain(anvil: Anvil) -> AsyncIterator[ChainDriver]:
    async with aiohttp.ClientSession() as session:
        yield ChainDriver(session, anvil.rpc_url, anvil.chain_id)


@pytest.fixture
async def playground(chain: ChainDriver) -> Playground:
    return await prepare_playground(chain)
