"""Limits the price: per call, per client, and by a question before each payment."""

import os

from tollway.client import BudgetExhausted, PaymentQuote, PriceAboveMax, TollwayClient, Wallet

API_ID = os.environ["API_ID"]
CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")


class NotApproved(Exception):
    """The owner of the wallet does not want this payment."""


def approve(quote: PaymentQuote) -> None:
    """Runs before each signature; an exception stops the payment."""
    print(quote.describe())
    if quote.asset.symbol != "USDC":
        raise NotApproved


with TollwayClient(
    os.environ["TOLLWAY_GATEWAY"],
    wallet=Wallet.from_environment(os.environ),
    rpc_urls={int(CHAIN): NODE},
    max_price="0.05 USDC",  # of one call
    session_budget="0.02 USDC",  # of all that this client signs
    before_signing=approve,
) as client:
    try:
        client.call(API_ID, "/quote/ETH", max_price="0.001 USDC")
    except PriceAboveMax as failure:
        print("too expensive:", failure.detail)

    for symbol in ("ETH", "BTC", "SOL"):
        try:
            print(client.call(API_ID, f"/quote/{symbol}").payment.state)
        except BudgetExhausted as failure:
            print("budget:", failure.detail)
    print("signed:", [amount.describe() for amount in client.spending().session])
