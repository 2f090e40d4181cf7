"""Problems as pages: the same status and headers as the JSON problem, in the frame of the pages, where a person reads them.

On the paths of pages every problem is a page for a client that accepts HTML. Elsewhere, gateway calls included, only 402, 404 and 410 are, and only for a browser that
navigates (`is_navigation`); every other request gets the JSON bytes. Responses that an API has sent never come here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Scope

from tollway.errors import FieldError, Problem
from tollway.web.http.page_response import IS_PAGE, accepts_html, is_navigation, is_page_path
from tollway.web.http.problems import (
    PROBLEM_KINDS,
    instance_of,
    is_retryable,
    problem_name,
    request_id_of,
    retry_delay_of,
)
from tollway.web.pages.kept_call import KeptCall
from tollway.web.pages.renderer import HTML, PageRenderer

SHOWN_STATUSES = frozenset({402, 404, 410})
"""The statuses that a browser which navigates gets as a page outside of the pages."""
NAME_LENGTH_MAX = 120
VARY = b"Accept, Sec-Fetch-Dest, Sec-Fetch-Mode"

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedApi:
    """The API of a 402: its price for this request, and the call that the page of the API keeps; None for one that no form can send."""

    id: str
    name: str
    price: str
    currency: str
    call: KeptCall | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemView:
    """What the page of a problem shows. `again`: the path to try again, where that can help; `name`: of its page under `/problems/`."""

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
    """Renders problems in the frame of the pages, from memory: also while storage is away."""

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
        """The headers and the body in place of those of the JSON problem; None where this request gets the JSON. `request_id`: None for the one of the middleware."""
        if not is_shown_as_page(scope, status):
            return None
        body = self._renderer.render(
            scope,
            "problem.j2",
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
            and not name.startswith(b"access-control-")
        ]
        own = {
            **self._renderer.headers(),
            "Content-Type": HTML,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
        }
        names = {name.lower().encode() for name in own}
        kept = [(name, value) for name, value in kept if name not in names]
        scope.setdefault("state", {})[IS_PAGE] = True
        return [
            *kept,
            *((name.lower().encode(), value.encode("latin-1")) for name, value in own.items()),
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
    kind = PROBLEM_KINDS[problem.code]
    query = scope.get("query_string", b"").decode("latin-1")
    path = instance_of(scope) + (f"?{query}" if query else "")
    return ProblemView(
        status=status,
        title=kind.title,
        detail=problem.detail,
        code=problem.code.value,
        name=problem_name(problem.code),
        errors=problem.errors,
        request_id=request_id,
        call_id=problem.call_id,
        retry_after_s=retry_delay_of(problem),
        again=path if is_retryable(problem) and scope["method"] in ("GET", "HEAD") else None,
        quoted=quoted,
    )
