"""A funded test chain for each test of this folder; it starts in 25 ms."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tollway.sandbox.chain import Anvil, ChainDriver, Playground, prepare_playground, run_anvil


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
