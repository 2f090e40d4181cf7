"""A Flask application that serves only calls of the gateway.

Run it with `flask --app flask_app run --port 8000` or `gunicorn flask_app:app`.
"""

import os

from flask import Flask, request

from tollway.client import ForwardedVerifier
from tollway.client.wsgi import WsgiForwardedMiddleware

app = Flask(__name__)
app.wsgi_app = WsgiForwardedMiddleware(  # type: ignore[method-assign] # how Flask takes middleware
    app.wsgi_app,
    ForwardedVerifier(
        os.environ["GATEWAY"],  # such as https://gateway.example.com
        endpoint=os.environ["ENDPOINT"],  # the endpoint of the listing, such as https://api.example.com/v1
        api_ids=[os.environ["API_ID"]],  # the ids of your own listings, and no others
    ),
    open_paths={"/healthz", "/.well-known/tollway-verification"},
)


@app.get("/healthz")
def check_health() -> dict[str, bool]:
    return {"ok": True}


@app.route("/v1/quote", methods=["GET", "POST"])
def quote() -> dict[str, object]:
    call = request.environ["tollway.forwarded"]
    return {"call": call.call_id, "payer": call.payer, "bytes": len(request.get_data())}
