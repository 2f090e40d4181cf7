"""Calls several APIs at once with asyncio. The asynchronous client has the methods of the synchronous one."""

import asyncio
import os

from tollway.client import AsyncTollwayClient, Wallet

API_ID = os.environ["API_ID"]
CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")


async def main() -> None:
    async with AsyncTollwayClient(
        os.environ["TOLLWAY_GATEWAY"],
        wallet=Wallet.from_environment(os.environ),
        rpc_urls={int(CHAIN): NODE},
    ) as client:
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(client.call(API_ID, f"/quote/{name}")) for name in ("ETH", "BTC", "SOL")
            ]
        for call in calls:
            print(call.result().json()["symbol"], call.result().payment.state)
        async with client.stream(API_ID, "/stream?count=2&interval=0") as response:
            async for line in response.aiter_lines():
                if line:
                    print(line)
        print((await client.history(limit=1)).total, "calls")


asyncio.run(main())
