"""The session of a reader on the pages: its cookie, and the checks of every form that changes something.

A form counts with all three: the browser says that it comes from this origin (`Sec-Fetch-Site: same-origin`, or without that header an `Origin` equal to the public URL), the
cookie of an open session, and a hidden token of that session and route. A GET changes nothing. The cookie is read by the routes of signed-in pages and nowhere else: `/api/v2`,
`/x402`, `/mcp` and gateway calls ignore it. Sources: RFC 6265bis §4.1.3 (`__Host-`), Fetch Metadata Request Headers.
"""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tollway.errors import Code, Problem, Refusal
from tollway.identity.authenticator import Identity
from tollway.identity.page_sessions import PageSession, PageSignIn
from tollway.identity.sessions import SIGN_IN_PAGE_PATH
from tollway.ids import Address
from tollway.rate_limits.limiter import Quota
from tollway.web.api.auth_routes import admit_wallet, read_body
from tollway.web.http.page_response import PAGE_PROOFS, mark_private, name_reader
from tollway.web.pages.renderer import CACHE_NEVER, PageRenderer

FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
FIELDS_MAX = 400
"""Fields of one form: a listing has about thirty, and each operation a few."""
FORM_TYPE = "application/x-www-form-urlencoded"
_SIGNATURE = re.compile(r"0x(?:[0-9a-fA-F]{2}){1,4096}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCookie:
    """A cookie that holds the token of a session. `name` begins with `__Host-`: the browser sends it to this host alone, and no other host can set it."""

    name: str
    same_site: Literal["Lax", "Strict"]

    def read(self, request: Request) -> str | None:
        """The token; None without the cookie, and where it occurs more than once."""
        values = [
            value
            for line in request.headers.getlist("cookie")
            for name, _, value in (pair.strip().partition("=") for pair in line.split(";"))
            if name == self.name
        ]
        return values[0] if len(values) == 1 and values[0] else None

    def set(self, token: str, *, max_age_s: int) -> str:
        """The value of `Set-Cookie` that gives the token to the browser."""
        return f"{self.name}={token}; Max-Age={max_age_s}; {self._attributes}"

    def clear(self) -> str:
        """The value of `Set-Cookie` that deletes the cookie."""
        return f"{self.name}=; Max-Age=0; {self._attributes}"

    @property
    def _attributes(self) -> str:
        return f"Path=/; Secure; HttpOnly; SameSite={self.same_site}"


PAGE_COOKIE = SessionCookie(name="__Host-tollway", same_site="Lax")


def is_from_origin(request: Request, origins: Sequence[str]) -> bool:
    """Whether the browser says that a page of this origin sent the request. Without `Sec-Fetch-Site`, `Origin` must be one of `origins`."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin") in origins


def make_form_token(session_token: str, route: str) -> str:
    """The hidden token of the forms that post to `route` (a path pattern, such as `/my/apis/{apiId}`) in this session. The session token cannot be computed from it."""
    return hmac.new(session_token.encode(), f"form {route}".encode(), hashlib.sha256).hexdigest()


async def read_form(
    request: Request, *, session_token: str | None, route: str, origins: Sequence[str], bytes_max: int
) -> Mapping[str, Sequence[str]]:
    """The fields of a form, checked: each name with its values in their order, and no form token. `session_token` None: a form that opens a session has no form token.

    Raises Refusal: `invalid_request` for a form of another site, another encoding or another session, `payload_too_large`.
    """
    if not is_from_origin(request, origins):
        raise Refusal(
            _foreign("The form was sent from another site. Open the page on this site and send it again.")
        )
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise Refusal(_foreign(f"A form is sent as {FORM_TYPE}."))
    body = await read_body(request, bytes_max=bytes_max)
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError as exc:
        raise Refusal(
            _foreign(f"The form is not readable: it is no UTF-8, or it has more than {FIELDS_MAX} fields.")
        ) from exc
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    given = fields.pop(FORM_TOKEN, [])
    if session_token is not None:
        expected = make_form_token(session_token, route).encode()
        if len(given) != 1 or not hmac.compare_digest(given[0].encode(), expected):
            raise Refusal(
                _foreign("The form is of an older session. Load the page again and send it once more.")
            )
    return fields


def _foreign(detail: str) -> Problem:
    return Problem(code=Code.INVALID_REQUEST, detail=detail, reason="form_refused")


# ---- The routes of a signed-in reader.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The wallet that a page session proves. `token`: of the session; the tokens of its forms are made from it."""

    address: Address
    token: str = field(repr=False)


Fields = Mapping[str, Sequence[str]]
ShowPage = Callable[[Request, Reader], Awaitable[Response]]
ReadForm = Callable[[Request, Reader, Fields], Awaitable[Response]]


class PageAccess:
    """Makes the routes of signed-in pages. A page without a session leads to the sign-in and from there back; a form without one is refused, and changes nothing."""

    def __init__(
        self,
        sign_in: PageSignIn,
        renderer: PageRenderer,
        *,
        origins: Sequence[str],
        form_bytes_max: int,
        quota: Quota,
    ) -> None:
        """`quota`: of the requests of a wallet, as in `make_wallet_dependency`."""
        self.sign_in = sign_in
        self.renderer = renderer
        self._origins = origins
        self._form_bytes_max = form_bytes_max
        self._quota = quota

    def page(self, path: str, show: ShowPage) -> Route:
        """The route of a page. `show` gets the reader."""

        async def handle(request: Request) -> Response:
            reader = await self.find_reader(request)
            if reader is None:
                return redirect_to(_link_sign_in(request))
            return await show(request, reader)

        return Route(path, handle, methods=["GET"])

    def missing(self) -> Route:
        """The route of every other path below `/my`, after all routes: it is not found, and the problem names the wallet of the session."""

        async def handle(request: Request) -> Response:
            await self.find_reader(request)
            raise Refusal(_NO_PAGE)

        return Route("/my/{path:path}", handle, methods=["GET"])

    def form(self, path: str, change: ReadForm) -> Route:
        """The route of a form. `change` gets the reader and the fields. Raises Refusal without a session, and where `read_form` does."""

        async def handle(request: Request) -> Response:
            reader = await self.find_reader(request)
            if reader is None:
                raise Refusal(_SESSION_ENDED)
            fields = await read_form(
                request,
                session_token=reader.token,
                route=path,
                origins=self._origins,
                bytes_max=self._form_bytes_max,
            )
            return await change(request, reader, fields)

        return Route(path, handle, methods=["POST"])

    async def read_first_form(self, request: Request) -> Fields:
        """The fields of the form that opens a session: it has no form token yet."""
        return await read_form(
            request, session_token=None, route="", origins=self._origins, bytes_max=self._form_bytes_max
        )

    async def find_reader(self, request: Request) -> Reader | None:
        session, token = await self._find_session(request)
        return None if session is None else Reader(address=session.address, token=token)

    async def authenticate(self, request: Request) -> Identity:
        """The wallet of the session, for a file that a page links to. Raises Refusal (`session_expired`) without one."""
        session, _ = await self._find_session(request)
        if session is None:
            raise Refusal(_SESSION_ENDED)
        return Identity(address=session.address, method="session", chain_id=session.chain_id)

    async def has_session(self, request: Request) -> bool:
        """Whether the session of a request is still open. Counts nothing."""
        token = PAGE_COOKIE.read(request)
        return token is not None and await self.sign_in.find_session(token) is not None

    async def _find_session(self, request: Request) -> tuple[PageSession | None, str]:
        """The session of the cookie. Raises Refusal (429) beyond the quota of its wallet."""
        mark_private(request.scope, PAGE_PROOFS)
        token = PAGE_COOKIE.read(request)
        session = None if token is None else await self.sign_in.find_session(token)
        if session is not None:
            name_reader(request.scope, str(session.address))
            await admit_wallet(request, session.address, quota=self._quota)
        return session, token or ""

    def respond(
        self, request: Request, reader: Reader, template: str, *, status: int = 200, **records: Any
    ) -> Response:
        """A page of that reader. `form_token(path)` in its template makes the token of the form that posts to the route with that path."""
        return self.renderer.respond_private(
            request,
            template,
            status=status,
            account=str(reader.address),
            form_token=partial(make_form_token, reader.token),
            **records,
        )


def redirect_to(path: str, headers: Mapping[str, str] | None = None) -> RedirectResponse:
    """A 303: the browser reads the page at `path`."""
    return RedirectResponse(path, 303, headers={"Cache-Control": CACHE_NEVER, **(headers or {})})


def read_field(fields: Fields, name: str) -> str:
    """The only value of a field, without spaces around it; empty where the field is absent or occurs more than once."""
    values = fields.get(name, ())
    return values[0].strip() if len(values) == 1 else ""


def read_signed_message(fields: Fields) -> tuple[str, bytes]:
    """The text and the signature of the form of a sign-in. Raises Refusal (`invalid_signature`) without a signature in hex."""
    signature = read_field(fields, "signature")
    if not _SIGNATURE.fullmatch(signature):
        raise Refusal(_NO_SIGNATURE)
    text = fields.get("message", [""])[0].replace("\r\n", "\n")  # a form sends line breaks as CR LF
    return text, bytes.fromhex(signature[2:])


def _link_sign_in(request: Request) -> str:
    query = request.scope["query_string"].decode("latin-1")
    there = request.scope["path"] + (f"?{query}" if query else "")
    return f"{SIGN_IN_PAGE_PATH}?{urlencode({'to': there})}"


_NO_SIGNATURE = Problem(
    code=Code.INVALID_SIGNATURE,
    detail="The form has no signature. Open the page of the sign-in again and let your wallet sign the message.",
)
_NO_PAGE = Problem(
    code=Code.ROUTE_NOT_FOUND, detail="No page has this path. The navigation leads to all pages."
)
_SESSION_ENDED = Problem(
    code=Code.SESSION_EXPIRED,
    detail="The session of this page has ended, and nothing was changed. Sign in, then do it again.",
)
