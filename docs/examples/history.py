"""Reads what a wallet has called and paid: by the gateway's books and by its own."""

import os
from datetime import UTC, datetime, timedelta

from tollway.client import TollwayClient, Wallet

API_ID = os.environ["API_ID"]
CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")

with TollwayClient(
    os.environ["TOLLWAY_GATEWAY"],
    wallet=Wallet.from_environment(os.environ),
    rpc_urls={int(CHAIN): NODE},
    rail="tx",
) as client:
    client.call(API_ID, "/quote/ETH")
    client.call(API_ID, "/status/500")  # fails, and is not charged

    page = client.history(api_id=API_ID, since=datetime.now(UTC) - timedelta(days=1), limit=10)
    for call in page.calls:
        print(call.method, call.path, call.http_status, call.status, call.payment.state, call.price)
    newest = client.find_call(page.calls[0].id)
    print(newest.created_at.tzinfo, newest.latency_ms is not None)

    for transfer in client.payments():  # this machine's own record
        status = client.payment(str(transfer.tx_hash))  # the gateway's
        print(transfer.describe(), transfer.state, "left", status.credit, status.state)
    print("spent:", [amount.describe() for amount in client.spending().total])
