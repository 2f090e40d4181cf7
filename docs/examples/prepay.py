"""Pays for several calls with one transaction, and reads what is left."""

import os

from tollway.client import TollwayClient, Wallet

CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")

with TollwayClient(
    os.environ["TOLLWAY_GATEWAY"],
    wallet=Wallet.from_environment(os.environ),
    rpc_urls={int(CHAIN): NODE},
    rail="tx",  # a transaction; "x402" pays one call by an authorisation, without gas
    max_fee="0.01 ETH",
) as client:
    for symbol in ("ETH", "BTC", "SOL"):
        payment = client.call(os.environ["API_ID"], f"/quote/{symbol}", prepay=3).payment
        print(payment.rail, payment.credit_remaining)
