"""Reads a response while it arrives."""

import os

from tollway.client import TollwayClient, Wallet

CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")

with (
    TollwayClient(
        os.environ["TOLLWAY_GATEWAY"],
        wallet=Wallet.from_environment(os.environ),
        rpc_urls={int(CHAIN): NODE},
    ) as client,
    client.stream(os.environ["API_ID"], "/stream?count=3&interval=0") as response,
):
    print(response.status_code, response.payment.state)
    for line in response.iter_lines():
        if line:
            print(line)
