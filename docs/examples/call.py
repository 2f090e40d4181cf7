"""Calls an API and pays for it."""

import os

from tollway.client import TollwayClient, Wallet

CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")  # such as 84532=http://127.0.0.1:8545

with TollwayClient(
    os.environ["TOLLWAY_GATEWAY"],
    wallet=Wallet.from_environment(os.environ),  # TOLLWAY_PRIVATE_KEY or TOLLWAY_KEY_FILE
    rpc_urls={int(CHAIN): NODE},
    max_price="0.05 USDC",
) as client:
    response = client.call(os.environ["API_ID"], "/quote/ETH")  # an httpx response with its payment
    print(response.status_code, response.json()["symbol"])
    payment = response.payment
    print(payment.state, payment.price, "by", payment.rail, "as", payment.call_id)
