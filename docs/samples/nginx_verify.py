"""Verifies the head of each request for nginx (`auth_request`, see nginx.conf).

Run it with `python nginx_verify.py 8001`. One process, because it remembers the used nonces.
"""

import os
import sys
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

from tollway.client import ForwardedRefused, ForwardedVerifier

verifier = ForwardedVerifier(
    os.environ["GATEWAY"], endpoint=os.environ["ENDPOINT"], api_ids=[os.environ["API_ID"]]
)


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    headers = [
        (name.removeprefix("HTTP_").replace("_", "-"), value)
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    if environ.get("HTTP_X_VERIFY_LENGTH"):
        headers.append(("Content-Length", environ["HTTP_X_VERIFY_LENGTH"]))
    try:
        verifier.verify(environ["HTTP_X_VERIFY_METHOD"], environ["HTTP_X_VERIFY_TARGET"], headers, body=None)
    except (ForwardedRefused, KeyError) as refused:
        # nginx answers 500 for any status but 401 and 403.
        is_temporary = isinstance(refused, ForwardedRefused) and refused.is_temporary
        start_response("503 Service Unavailable" if is_temporary else "401 Unauthorized", [])
        return [b""]
    start_response("204 No Content", [])
    return [b""]


class ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), application, ThreadingServer).serve_forever()
