"""Repeats a call without paying twice: the idempotency key names the call, also after a crash."""

import os
import time

from tollway.client import CallerFailure, CallResponse, TollwayClient, Wallet

API_ID, ORDER = os.environ["API_ID"], {"order": 17}
CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")
TRIES_MAX = 5


def call_once(client: TollwayClient) -> CallResponse:
    """One order: the same key for the same request until it is dropped. The key is on disk."""
    key = client.keep_key(API_ID, "/echo", json=ORDER)
    for _ in range(TRIES_MAX):
        try:
            response = client.call(API_ID, "/echo", json=ORDER, idempotency_key=key)
        except CallerFailure as failure:
            if not failure.is_retryable:
                raise
            time.sleep(2)
        else:
            print(response.payment.call_id, response.headers.get("Idempotency-Replayed", "false"))
            return response
    raise TimeoutError("the gateway did not answer")


with TollwayClient(
    os.environ["TOLLWAY_GATEWAY"],
    wallet=Wallet.from_environment(os.environ),
    rpc_urls={int(CHAIN): NODE},
) as client:
    call_once(client)
    call_once(client)  # the stored response; nothing is paid
    order_key = client.keep_key(API_ID, "/echo", json=ORDER)
    if order_key is not None:
        client.drop_key(order_key, API_ID, "/echo", json=ORDER)
    call_once(client)  # a new order
