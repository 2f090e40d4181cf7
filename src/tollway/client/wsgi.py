"""A WSGI middleware for providers: it passes on only requests that the gateway forwarded for the provider's own listings.

    verifier = ForwardedVerifier("https://gateway.example.com", endpoint="https://api.example.com/v1", api_ids=["api_…"])
    application = WsgiForwardedMiddleware(application, verifier)      # any WSGI application
    app.wsgi_app = WsgiForwardedMiddleware(app.wsgi_app, verifier)    # Flask

The application finds the verified call in `environ["tollway.forwarded"]`: its id, its listing and the wallet that paid. The application runs after the
whole body has arrived and matches the signature. A refused request gets a problem document: 401, or 503 while the gateway's keys cannot be read.

The target of the request line comes from `RAW_URI` or `REQUEST_URI`, which Gunicorn, uWSGI, mod_wsgi and Werkzeug set. A server without them
gives only the decoded path: a call whose path has another encoding is then refused.
"""

import io
from collections.abc import Callable, Collection, Iterable
from typing import IO, Any
from urllib.parse import quote

from tollway.client.provider import (
    BODY_BYTES_MAX,
    FORWARDED_KEY,
    IDENTITY_HEADERS,
    OPEN_PATHS,
    ForwardedRefused,
    ForwardedVerifier,
    RefusedResponse,
)

WsgiEnvironment = dict[str, Any]
WsgiStart = Callable[..., Any]
WsgiApplication = Callable[[WsgiEnvironment, WsgiStart], Iterable[bytes]]

_PATH_SAFE = "/:@!$&'()*+,;=-._~"
_READ_BYTES = 64 * 1024


class WsgiForwardedMiddleware:
    """Passes on forwarded requests and refuses all others. One verifier serves all threads of a process."""

    def __init__(
        self,
        app: WsgiApplication,
        verifier: ForwardedVerifier,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        """`body_bytes_max`: of a body, which is kept in memory until it is checked. `open_paths`: decoded paths that need no signature; a request
        to them arrives without the headers that name a call."""
        self._app = app
        self._verifier = verifier
        self._body_bytes_max = body_bytes_max
        self._open_paths = frozenset(open_paths)

    def __call__(self, environ: WsgiEnvironment, start_response: WsgiStart) -> Iterable[bytes]:
        if _read_path(environ) in self._open_paths:
            return self._app(_remove_identity(environ), start_response)
        try:
            forwarded = self._verifier.verify_head(
                environ["REQUEST_METHOD"], _read_target(environ), _list_headers(environ)
            )
            body = self._read_body(environ)
            forwarded.check_body(body)
            self._verifier.accept(forwarded)
        except ForwardedRefused as refused:
            response = RefusedResponse.build(refused)
            start_response(f"{response.status} {response.reason}", list(response.headers))
            return [response.body if environ["REQUEST_METHOD"] != "HEAD" else b""]
        checked = {
            **environ,
            FORWARDED_KEY: forwarded,
            "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)),
        }
        return self._app(checked, start_response)

    def _read_body(self, environ: WsgiEnvironment) -> bytes:
        """The whole body. Raises ForwardedRefused above the maximum, and for a body that ends before its length."""
        text = environ.get("CONTENT_LENGTH") or ""
        stream: IO[bytes] = environ["wsgi.input"]
        if not text:
            # Only a server that ends the input itself (PEP 3333, extension `wsgi.input_terminated`) gives a chunked body to read.
            left = self._body_bytes_max + 1 if environ.get("wsgi.input_terminated") else 0
        elif text.isascii() and text.isdigit():
            left = min(int(text), self._body_bytes_max + 1)
        else:
            raise ForwardedRefused("malformed", "The length of the body is no number.")
        body = bytearray()
        while left > len(body):
            chunk = stream.read(min(left - len(body), _READ_BYTES))
            if not chunk:
                break
            body += chunk
        if len(body) > self._body_bytes_max:
            raise ForwardedRefused(
                "body_too_large", f"The body must have at most {self._body_bytes_max} bytes."
            )
        return bytes(body)


def _read_path(environ: WsgiEnvironment) -> str:
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return path.encode("latin-1").decode("utf-8", "replace")


def _read_target(environ: WsgiEnvironment) -> str:
    """Path and query as in the request line."""
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if raw:
        return str(raw)
    path = quote(
        (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1"), safe=_PATH_SAFE
    )
    query = environ.get("QUERY_STRING", "")
    return f"{path}?{query}" if query else path


def _list_headers(environ: WsgiEnvironment) -> list[tuple[str, str]]:
    headers = [(_write_name(name), str(value)) for name, value in environ.items() if name.startswith("HTTP_")]
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers.append((name.replace("_", "-").lower(), str(environ[name])))
    return headers


def _write_name(name: str) -> str:
    return name.removeprefix("HTTP_").replace("_", "-").lower()


def _remove_identity(environ: WsgiEnvironment) -> WsgiEnvironment:
    return {
        name: value
        for name, value in environ.items()
        if not (name.startswith("HTTP_") and _write_name(name) in IDENTITY_HEADERS)
    }
