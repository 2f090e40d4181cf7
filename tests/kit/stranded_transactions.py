"""Sends again what anvil strands (1.7.1): for tests in which many transactions of one key are under way at once.

anvil reads the account's nonce first and puts the transaction into its pool later. When the block with the nonce before
is mined in between, the transaction waits in the queue for a predecessor that has left the pool: no block takes it, nor
any that follows it, and a repeat gets "already imported". Of 9 transactions sent at once this befalls about one round in
500 on busy cores. A gateway then waits out its settlement (20 s) and replaces the transaction 10 s later.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from tollway.sandbox.chain import ChainDriver, RpcRefused

LOOK_S = 0.25


@contextlib.asynccontextmanager
async def resend_stranded(driver: ChainDriver) -> AsyncIterator[None]:
    """Checks the pool while the context is open. Repeats the request to a node without a response."""

    is_over = asyncio.Event()

    async def look() -> None:
        before: frozenset[str] = frozenset()
        while not is_over.is_set():
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, RpcRefused):
                before = await resend_stranded_once(driver, before)
            await asyncio.sleep(LOOK_S)

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
        try:
            yield
        finally:
            is_over.set()
            looking.cancel()


async def resend_stranded_once(driver: ChainDriver, before: frozenset[str]) -> frozenset[str]:
    """One look. Returns the hashes of the transactions that look stranded; those that were in `before` too, and what
    waits behind them, leave the pool and are sent again."""
    if int((await driver.rpc("txpool_status"))["queued"], 16) == 0:
        return frozenset()
    stranded: set[str] = set()
    for sender, queued in (await driver.rpc("txpool_content"))["queued"].items():
        nonce = str(int(await driver.rpc("eth_getTransactionCount", sender, "latest"), 16))
        if nonce not in queued:
            continue  # a gap: it waits for a nonce that has not been sent
        if queued[nonce]["hash"] in before:
            await _resend(driver, sender)
        else:
            stranded.add(queued[nonce]["hash"])
    return frozenset(stranded)


async def _resend(driver: ChainDriver, sender: str) -> None:
    """Everything of this sender: the pool knows no other way to let go of a queued transaction."""
    content = await driver.rpc("txpool_content")
    known = {int(nonce): one for pool in content.values() for nonce, one in pool.get(sender, {}).items()}
    raws = [await driver.rpc("eth_getRawTransactionByHash", known[nonce]["hash"]) for nonce in sorted(known)]
    await driver.rpc("anvil_removePoolTransactions", sender)
    for raw in raws:
        with contextlib.suppress(RpcRefused):  # mined meanwhile, or sent again by its gateway
            await driver.rpc("eth_sendRawTransaction", raw)
