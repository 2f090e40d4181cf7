"""A FastAPI application that serves only calls of the gateway.

Run it with `uvicorn fastapi_app:app --port 8000`.
"""

import os

from fastapi import FastAPI, Request

from tollway.client import ForwardedVerifier
from tollway.client.asgi import AsgiForwardedMiddleware

app = FastAPI()
app.add_middleware(
    AsgiForwardedMiddleware,
    verifier=ForwardedVerifier(
        os.environ["GATEWAY"],  # such as https://gateway.example.com
        endpoint=os.environ["ENDPOINT"],  # the endpoint of the listing, such as https://api.example.com/v1
        api_ids=[os.environ["API_ID"]],  # the ids of your own listings, and no others
    ),
    open_paths={"/healthz", "/.well-known/tollway-verification"},
)


@app.get("/healthz")
async def check_health() -> dict[str, bool]:
    return {"ok": True}


@app.api_route("/v1/quote", methods=["GET", "POST"])
async def quote(request: Request) -> dict[str, object]:
    call = request.scope["tollway.forwarded"]
    return {"call": call.call_id, "payer": call.payer, "bytes": len(await request.body())}
