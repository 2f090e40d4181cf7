"""Problems as pages: the status of the JSON problem, its headers beside those that a page has of its own, and HTML for a person.

For GET, HEAD and POST on the paths of pages, every problem is a page for a client that accepts HTML. Elsewhere, gateway calls included, only those with status 402, 404
or 410 are, for a browser that navigates (`is_navigation`); every other request gets the JSON bytes. A response of an API is no problem, and never a page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Scope

from tollway.errors import FieldError, Problem
from tollway.web.http.page_response import (
    IS_PAGE,
    accepts_html,
    is_navigation,
    is_page_path,
    reader_of,
)
from tollway.web.http.problems import (
    PROBLEM_KINDS,
    find_retry,
    instance_of,
    problem_name,
    request_id_of,
)
from tollway.web.pages.kept_call import KeptCall
from tollway.web.pages.renderer import HTML, PageRenderer

SHOWN_STATUSES = frozenset({402, 404, 410})
"""Statuses that a navigating browser gets as a page on every other path."""
NAME_LENGTH_MAX = 120  # of an API, on the page of a 402
VARY = b"Accept, Sec-Fetch-Dest, Sec-Fetch-Mode"  # the request headers that choose between page and JSON

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedApi:
    """The API of a 402, and its price for this request. `call`: the request that the link carries into the form of the API; None: no form can send it."""

    id: str
    name: str
    price: str
    is_metered: bool
    currency: str
    call: KeptCall | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemView:
    """What the page of a problem shows. `name`: of its documentation, `/problems/{name}`. `again`: the target of the link "Try again"; None without one."""

    status: int
    title: str
    detail: str
    code: str
    name: str
    errors: Sequence[FieldError]
    request_id: str
    call_id: str | None
    retry_after_s: int | None
    again: str | None
    quoted: QuotedApi | None


class ProblemPages:
    """Renders problems as pages. It reads no storage, so it also renders the problem that storage is unavailable. It names the wallet of a session that the route has
    found; it says nothing of the session elsewhere."""

    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer

    def render(
        self,
        problem: Problem,
        scope: Scope,
        *,
        status: int,
        headers: Headers,
        request_id: str | None = None,
        quoted: QuotedApi | None = None,
    ) -> tuple[Headers, bytes] | None:
        """The headers and body of the page; None where this request gets the JSON problem, which has `headers`. `request_id` None: that of the middleware."""
        if not is_shown_as_page(scope, status):
            return None
        body = self._renderer.render(
            scope,
            "problem.j2",
            account=reader_of(scope),
            problem=view_problem(
                problem,
                scope,
                status=status,
                request_id=request_id or request_id_of(scope),
                quoted=quoted,
            ),
        ).encode()
        kept = [
            (name, value)
            for name, value in headers
            if name not in (b"content-type", b"content-length", b"cache-control", b"vary")
            and not name.startswith(b"access-control-")  # no other origin reads a page
        ]
        page_headers = {
            **self._renderer.headers(),
            "Content-Type": HTML,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
        }
        names = {name.lower().encode() for name in page_headers}
        kept = [(name, value) for name, value in kept if name not in names]
        scope.setdefault("state", {})[IS_PAGE] = True
        return [
            *kept,
            *((name.lower().encode(), value.encode("latin-1")) for name, value in page_headers.items()),
            (b"vary", VARY),
        ], body


def is_shown_as_page(scope: Scope, status: int) -> bool:
    """Whether this request gets a problem with this status as a page."""
    if scope["method"] in ("GET", "HEAD", "POST") and is_page_path(scope["path"]):
        return accepts_html(scope)
    return status in SHOWN_STATUSES and is_navigation(scope)


def view_problem(
    problem: Problem, scope: Scope, *, status: int, request_id: str, quoted: QuotedApi | None = None
) -> ProblemView:
    """The view of a problem. A link can repeat GET and HEAD only, and a path that begins with two slashes would lead it to another host."""
    kind = PROBLEM_KINDS[problem.code]
    query = scope.get("query_string", b"").decode("latin-1")
    path = instance_of(scope)
    is_retryable, retry_after_s = find_retry(problem)
    may_link = scope["method"] in ("GET", "HEAD") and not path.startswith("//")
    return ProblemView(
        status=status,
        title=kind.title,
        detail=problem.detail,
        code=problem.code.value,
        name=problem_name(problem.code),
        errors=problem.errors,
        request_id=request_id,
        call_id=problem.call_id,
        retry_after_s=retry_after_s,
        again=(f"{path}?{query}" if query else path) if may_link and is_retryable else None,
        quoted=quoted,
    )
