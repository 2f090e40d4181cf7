"""Finds an API: search, details, price, and the document that a model reads."""

import os

from tollway.client import TollwayClient

with TollwayClient(os.environ["TOLLWAY_GATEWAY"]) as client:  # reading needs no wallet
    page = client.search("quotes", currency="USDC", max_price="0.05", limit=5)
    print(f"{page.total} found")
    for api in page.apis:
        print(api.id, api.name, api.price_per_request, api.currency, "matches", ", ".join(api.match))

    listing = client.show(page.apis[0].id)
    print("verified owner:", listing.is_verified, "success rate:", listing.quality.success_rate)
    if listing.pricing is not None:
        for option in listing.pricing.options:
            print(f"{option.amount} base units of {option.symbol} on {option.network} by {option.rail}")

    described = client.describe(listing.id)
    print("operations:", [f"{one.method} {one.path}" for one in described.operations])
    print(len(described.text), "characters for the model")
