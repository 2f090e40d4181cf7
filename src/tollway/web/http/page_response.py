"""Responses for a browser: the marker that keeps CORS headers away from pages, content coding, and the rule that says where HTML replaces a JSON problem. Pure but for the marker."""

import re

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

IS_PAGE = "is_page"
"""A flag in `scope["state"]`: the response is a page or a file of one. `ResponseHeaders` adds no `access-control-*` to it."""

_PRIVATE_BY, _READER = "private_by", "page_reader"
CACHE_PRIVATE = b"private, no-store"
API_PROOFS, PAGE_PROOFS = b"Authorization, Signature, SIGN-IN-WITH-X", b"Cookie"
"""The request headers that prove a wallet: to the API, and to the pages."""

PAGE_PATHS = (
    *("/apis/", "/providers/", "/docs/guides/", "/docs/operations/", "/docs/schemas/"),
    *("/status", "/problems", "/my", "/signin", "/signout"),
)
"""Paths of pages, beside `/`. Their problems are HTML for every client that accepts HTML."""

_PROOFS = frozenset(
    {
        b"x-payment-tx",
        b"x-payment-network",
        b"x-signature",
        b"x-signature-params",
        b"payment-signature",
        b"x-payment",
        b"signature",
        b"signature-input",
        b"sign-in-with-x",
        b"authorization",
        b"idempotency-key",
    }
)
_STATUS_PROBLEM_MIN = 400
_REFUSED_CODING = re.compile(r";\s*q=0(?:\.0*)?\s*$")


class PageResponse(Response):
    """A response for a browser. It marks its request as one for a page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[IS_PAGE] = True
        await super().__call__(scope, receive, send)


_PRIVATE_PATHS = ("/my", "/signin", "/signout")


def mark_private(scope: Scope, proofs: bytes) -> None:
    """Marks the response as one for the wallet that the request proves, or fails to prove: no cache stores it (RFC 9111 §5.2.2). A proof outside of
    `Authorization` does not protect a response from shared caches (§3.5). `proofs`: the headers on which the response depends."""
    scope.setdefault("state", {})[_PRIVATE_BY] = proofs


def name_reader(scope: Scope, wallet: str) -> None:
    """Keeps the wallet of the session that the request shows, so that a problem of a private page names it."""
    scope.setdefault("state", {})[_READER] = wallet


def reader_of(scope: Scope) -> str | None:
    """The wallet that `name_reader` keeps. None for a request without a session, and on every public path, where no cookie is read."""
    return (scope.get("state") or {}).get(_READER)


class PrivateResponses:
    """Writes `Cache-Control` and `Vary` of each response that is marked as private, over those of its route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marking_send(message: Message) -> None:
            proofs = scope["state"].get(_PRIVATE_BY)
            if proofs is not None and message["type"] == "http.response.start":
                kept = [header for header in message.get("headers", ()) if header[0] != b"cache-control"]
                headers = [*kept, (b"cache-control", CACHE_PRIVATE), (b"vary", proofs)]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, marking_send)


def is_private_path(path: str) -> bool:
    """Whether the path belongs to a signed-in reader, or to the sign-in. Its files and preflights have no CORS headers, as its pages have none."""
    return path in _PRIVATE_PATHS or path.startswith("/my/")


def is_for_this_origin(path: str, status: int) -> bool:
    """Whether only pages of this origin may read the response: of a private path, and a problem of any page."""
    return is_private_path(path) or (status >= _STATUS_PROBLEM_MIN and is_page_path(path))


def is_page_path(path: str) -> bool:
    return path == "/" or any(
        path.startswith(prefix) if prefix.endswith("/") else path == prefix or path.startswith(prefix + "/")
        for prefix in PAGE_PATHS
    )


def is_navigation(scope: Scope) -> bool:
    """Whether a browser navigates to this URL, and shows the response to a person.

    All of: GET or HEAD, `Sec-Fetch-Mode: navigate`, `Sec-Fetch-Dest: document`, `text/html` in `Accept`, and no payment, signature, `Authorization` or
    `Idempotency-Key`. A program that sends the `Accept` of a browser does not send the first two.
    """
    if scope["method"] not in ("GET", "HEAD"):
        return False
    mode = target = accept = b""
    for name, value in scope["headers"]:
        if name in _PROOFS:
            return False
        if name == b"sec-fetch-mode":
            mode = value
        elif name == b"sec-fetch-dest":
            target = value
        elif name == b"accept":
            accept += b"," + value
    return mode == b"navigate" and target == b"document" and names_html(accept.decode("latin-1"))


def accepts_html(scope: Scope) -> bool:
    """Whether a client of a page reads HTML: its `Accept` names `text/html`. `*/*` is not enough."""
    accept = b",".join(value for name, value in scope["headers"] if name == b"accept")
    return names_html(accept.decode("latin-1"))


def names_html(accept: str) -> bool:
    return _names(accept, "text/html")


def accepts_gzip(accept_encoding: str) -> bool:
    return _names(accept_encoding, "gzip")


def _names(header: str, wanted: str) -> bool:
    """Whether a list of RFC 9110 §12.5 names a value, with a quality above zero."""
    return any(
        part.partition(";")[0].strip().lower() == wanted and not _REFUSED_CODING.search(part)
        for part in header.split(",")
    )
