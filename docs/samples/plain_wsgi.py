"""A WSGI application without a framework that serves only calls of the gateway.

Run it with `python plain_wsgi.py 8000`, or under any WSGI server.
"""

import json
import os
import sys
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

from tollway.client import ForwardedVerifier
from tollway.client.wsgi import WsgiForwardedMiddleware


def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    call = environ["tollway.forwarded"]
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"call": call.call_id, "payer": call.payer, "bytes": len(body)}).encode()]


application = WsgiForwardedMiddleware(
    serve,
    ForwardedVerifier(os.environ["GATEWAY"], endpoint=os.environ["ENDPOINT"], api_ids=[os.environ["API_ID"]]),
)


class ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), application, ThreadingServer).serve_forever()
