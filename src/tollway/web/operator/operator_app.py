"""The admin address: `/metrics` for scrapers, and the operator's pages behind a check of `Host` and a session.

The public listener never serves these pages and never reads their cookie. `Host` must be this address, `localhost` or one of `admin_hosts`: a name that a
stranger's page points at this address (DNS rebinding) gets 403. Scrapers come by address, so `/metrics` does not look at `Host`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollway.audit_log import REASON_LENGTH_MAX
from tollway.errors import Code, Problem, Refusal, TollwayError
from tollway.identity.admin_sessions import ENTRY_PATH, AdminSession, AdminSignIn
from tollway.observability.telemetry import bind_request, unbind_request
from tollway.web.http.middleware import read_request_id
from tollway.web.http.problems import FORBIDDEN, instance_of, render_problem, request_id_of, status_of
from tollway.web.pages.page_problems import view_problem
from tollway.web.pages.page_session import Fields, SessionCookie, make_form_token, read_form
from tollway.web.pages.renderer import PageRenderer, Section

ADMIN_COOKIE = SessionCookie(name="__Host-tollway-admin", same_site="Strict")
NONCE_PATH = "/admin/api/nonce"
SESSION_PATH = "/admin/api/session"
"""The routes of wallets that sign in."""
OPEN_PATHS = (ENTRY_PATH, NONCE_PATH, SESSION_PATH, "/favicon.svg")
FORM_BYTES_MAX = 8_192
FORM_DEADLINE_S = 10.0
"""For a whole body, from the first read."""
NO_STORE = {"Cache-Control": "no-store"}
SECTIONS = tuple(
    Section(href=href, label=label)
    for href, label in (
        ("/", "Overview"),
        ("/chains", "Chains"),
        ("/gas", "Gas"),
        ("/calls", "Open calls"),
        ("/listings", "Listings"),
        ("/wallets", "Wallets"),
        ("/books", "Books"),
        ("/audit-log", "Audit log"),
    )
)

_log = structlog.get_logger(__name__)
_DEFECT = Problem(
    code=Code.INTERNAL_ERROR,
    detail="The gateway failed and logged the error, with the id of this request and its traceback.",
)
_PORT = re.compile(r"[0-9]{1,5}")
Handler = Callable[[Request], Awaitable[Response]]


class AdminHosts:
    """The names under which the admin address may be opened."""

    def __init__(self, *, listen_host: str, port: int, names: Collection[str]) -> None:
        own = {listen_host, "localhost", "127.0.0.1", "[::1]"}
        self._exact = frozenset(f"{name}:{port}".lower() for name in own)
        self._names = frozenset(name.lower() for name in names)

    def is_allowed(self, scope: Scope) -> bool:
        """Exactly one `Host` field, with one of the names. A name of the settings may have any port: a proxy of the operator stands before it."""
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        name, _, port = hosts[0].rpartition(":")
        without_port = name if name and _PORT.fullmatch(port) else hosts[0]
        return hosts[0] in self._exact or without_port in self._names


class AdminApp:
    """The ASGI application of the admin address. `pages`: the routes behind a session. `public_url`: where the pages of the problems are."""

    def __init__(
        self,
        *,
        metrics: ASGIApp,
        pages: ASGIApp,
        hosts: AdminHosts,
        sign_in: AdminSignIn,
        renderer: PageRenderer,
        public_url: str,
        entropy: Callable[[int], bytes],
        form_deadline_s: float = FORM_DEADLINE_S,
    ) -> None:
        self._metrics = metrics
        self._form_deadline_s = form_deadline_s
        self._pages = pages
        self._hosts = hosts
        self._sign_in = sign_in
        self._renderer = renderer
        self._public_url = public_url
        self._entropy = entropy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") == "/metrics":
            await self._metrics(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = read_request_id(scope, entropy=self._entropy)
        state["public_url"] = self._public_url
        before = bind_request(request_id)
        try:
            await self._respond(scope, receive, send)
        finally:
            unbind_request(before)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        receive = _within(self._form_deadline_s, receive)
        request = Request(scope, receive)
        is_started = False
        plain_send = _without_sniffing(send)

        async def watching_send(message: Message) -> None:
            nonlocal is_started
            is_started = is_started or message["type"] == "http.response.start"
            await plain_send(message)

        try:
            response = await self._open(request)
            if response is None:
                await self._pages(scope, receive, watching_send)
                return
        except TollwayError as error:
            response = explain_problem(request, error.problem)
        except ClientDisconnect:
            return  # no client is left to answer
        except Exception as exc:
            _log.error("unhandled_error", path=instance_of(scope), is_started=is_started, exc_info=exc)
            if is_started or "renderer" not in scope["state"]:
                raise
            response = explain_problem(request, _DEFECT)
        await response(scope, receive, watching_send)

    async def _open(self, request: Request) -> Response | None:
        """None where the request may reach the pages; their handlers find the session in its state."""
        if not self._hosts.is_allowed(request.scope):
            # A plain text: this name is not trusted with a page.
            return Response(
                "This address is not opened under this name. Add the name to admin_hosts.\n",
                status_code=FORBIDDEN,
                media_type="text/plain",
            )
        state = request.scope.setdefault("state", {})
        # The policy of a page names its origin. `http:` covers `https:` of the same host, which a proxy of the operator may serve.
        state["renderer"] = self._renderer.with_origin(f"http://{request.headers['host'].lower()}")
        path = request.scope["path"]
        if path in OPEN_PATHS or path.startswith("/ui/"):
            return None
        token = ADMIN_COOKIE.read(request)
        session = None if token is None else await self._sign_in.find_session(token)
        if session is None or token is None:
            status = status_of(Code.AUTHENTICATION_REQUIRED)
            return respond_entry(request, code="", has_wallets=self._sign_in.has_wallets, status=status)
        state["session"], state["session_token"] = session, token
        return None


def _within(deadline_s: float, receive: Receive) -> Receive:
    """Ends a body that has not arrived whole in time, with a Refusal where it is read."""
    ends_s: float | None = None
    is_whole = False

    async def receive_in_time() -> Message:
        nonlocal ends_s, is_whole
        if is_whole:
            return await receive()
        if ends_s is None:
            ends_s = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(ends_s):
                message = await receive()
        except TimeoutError:
            raise Refusal(_TOO_SLOW) from None
        is_whole = not message.get("more_body", False)
        return message

    return receive_in_time


_TOO_SLOW = Problem(
    code=Code.INVALID_REQUEST,
    detail="The form arrived too slowly, and nothing was changed. Send it again over a faster connection.",
    reason="too_slow",
)


def _without_sniffing(send: Send) -> Send:
    """Each response has `nosniff`, so that no browser takes JSON or text for a page."""

    async def adding_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if all(name != b"x-content-type-options" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"x-content-type-options", b"nosniff")]}
        await send(message)

    return adding_send


def respond_page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **records: Any,
) -> Response:
    """A page of the operator, in the frame of its session. Templates write the hidden token of a form by `form_token(route)`."""
    state = request.scope["state"]
    renderer: PageRenderer = state["renderer"]
    session, token = state.get("session"), state.get("session_token")
    return renderer.respond_private(
        request,
        template,
        account=session.actor if isinstance(session, AdminSession) else None,
        status=status,
        headers=headers,
        form_token=partial(make_form_token, token or ""),
        reason_max=REASON_LENGTH_MAX,
        **records,
    )


def respond_entry(request: Request, *, code: str, has_wallets: bool, status: int = 200) -> Response:
    """The page of the sign-in. `code`: of a link; `has_wallets`: whether wallets may sign in."""
    wallets = {"nonce_path": NONCE_PATH, "session_path": SESSION_PATH} if has_wallets else None
    return respond_page(request, "admin_enter.j2", status=status, code=code, wallets=wallets)


def explain_problem(request: Request, problem: Problem) -> Response:
    """The page of a refused or failed request, with what to do next."""
    state = request.scope["state"]
    status = status_of(problem.code)
    view = view_problem(problem, request.scope, status=status, request_id=request_id_of(request.scope))
    headers = {} if view.retry_after_s is None else {"Retry-After": str(view.retry_after_s)}
    return respond_page(
        request,
        "admin_problem.j2",
        status=status,
        headers=headers,
        problem=view,
        # A commit whose result never came may have been written (503); a defect may come after it (500).
        is_unchanged=request.method == "POST" and status < status_of(Code.INTERNAL_ERROR),
        is_unknown=request.method == "POST"
        and status >= status_of(Code.INTERNAL_ERROR)
        and "session" in state,
        public_url=state["public_url"],
    )


def guarded(handler: Handler) -> Handler:
    """The handler, with its refusals and failures as pages."""
    return partial(_guard, handler, explain_problem)


def guarded_json(handler: Handler, *, public_url: str) -> Handler:
    """The handler, with its refusals and failures as JSON problems (RFC 9457)."""
    return partial(_guard, handler, partial(_render_json, public_url))


async def _guard(
    handler: Handler, explain: Callable[[Request, Problem], Response], request: Request
) -> Response:
    try:
        return await handler(request)
    except TollwayError as error:
        return explain(request, error.problem)


def _render_json(public_url: str, request: Request, problem: Problem) -> Response:
    status, headers, body = render_problem(
        problem,
        public_url=public_url,
        request_id=request_id_of(request.scope),
        instance=instance_of(request.scope),
    )
    response = Response(body, status_code=status)
    response.raw_headers = headers
    return response


# ---- Forms of these pages.


def origins_of(request: Request) -> tuple[str, str]:
    """The origins of a form on this host."""
    host = request.headers["host"].lower()
    return f"http://{host}", f"https://{host}"


def session_of(request: Request) -> AdminSession:
    """The session of a request that reached a page behind one."""
    session: AdminSession = request.scope["state"]["session"]
    return session


async def read_first_form(request: Request) -> Fields:
    """The fields of a form that opens a session: it has no form token yet."""
    return await read_form(
        request, session_token=None, route="", origins=origins_of(request), bytes_max=FORM_BYTES_MAX
    )


async def read_admin_form(request: Request, route: str) -> Fields:
    """The fields of a form that posts to `route` in this session. Raises Refusal where `read_form` does."""
    return await read_form(
        request,
        session_token=request.scope["state"]["session_token"],
        route=route,
        origins=origins_of(request),
        bytes_max=FORM_BYTES_MAX,
    )


def read_one(fields: Fields, name: str) -> str:
    """The value of a field that occurs once; empty without it. Raises Refusal for a repeated field."""
    values = fields.get(name, ())
    if len(values) > 1:
        raise refuse_form(f"The form has the field {name} more than once.")
    return values[0] if values else ""


def refuse_form(detail: str) -> Refusal:
    return Refusal(Problem(code=Code.INVALID_REQUEST, detail=detail))
