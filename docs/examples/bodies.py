"""Sends a body: JSON, a form, files, or bytes, as httpx sends them."""

import io
import os

from tollway.client import TollwayClient, Wallet

API_ID = os.environ["API_ID"]
CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")

with TollwayClient(
    os.environ["TOLLWAY_GATEWAY"],
    wallet=Wallet.from_environment(os.environ),
    rpc_urls={int(CHAIN): NODE},
) as client:
    first = client.call(API_ID, "/echo", params={"x": [1, 2]}, json={"a": 1})
    print(first.request.method, first.request.url.query.decode(), first.status_code)
    client.call(API_ID, "/echo", data={"name": "value"})
    report = io.BytesIO(b"date,amount\n")
    upload = client.call(
        API_ID,
        "/echo",
        data={"title": "Report"},
        files={"file": ("report.csv", report, "text/csv")},
        headers={"Accept": "application/json"},
        timeout=60.0,
    )
    print(upload.status_code, upload.request.headers["Content-Type"].partition(";")[0])
    print(client.call(API_ID, "/echo", method="PUT", content=b"bytes").status_code)
