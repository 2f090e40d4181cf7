"""The sign-in to the operator's pages: the form of a link, the message of a wallet of `operators`, and the sign-out.

A code and a message each count once. Without wallets in `operators` the routes for a message do not exist. The origin of a message is the one that the browser states
in `Origin`: this host, on http or behind the operator's TLS.
"""

from starlette.requests import Request
from starlette.responses import Response

from tollway.errors import Code, Problem, Refusal
from tollway.identity.admin_sessions import ENTRY_PATH, SESSION_TTL_S, AdminSignIn
from tollway.identity.siwe import PublicOrigin, parse_origin
from tollway.limits import Limits
from tollway.registry.text import join_lines
from tollway.web.api.auth_routes import (
    charge_sign_in,
    client_address_of,
    read_nonce_request,
    respond_challenge,
)
from tollway.web.http.admission import SignInRateLimit
from tollway.web.operator.operator_app import (
    ADMIN_COOKIE,
    origins_of,
    read_admin_form,
    read_first_form,
    read_one,
    refuse_form,
    respond_entry,
    session_of,
)
from tollway.web.pages.page_session import is_from_origin, read_signed_message, redirect_to

SIGN_OUT = "/signout"


class AdminSignInPages:
    """The handlers of the sign-in. Many tasks may call them at once. `has_wallets` False: the routes for wallets do not exist."""

    def __init__(self, sign_in: AdminSignIn, rate_limit: SignInRateLimit, *, limits: Limits) -> None:
        self._sign_in = sign_in
        self.has_wallets = sign_in.has_wallets
        self._rate_limit = rate_limit
        self._limits = limits

    async def show_entry(self, request: Request) -> Response:
        """The form of a link. It spends nothing: browsers and chat programs load links in advance."""
        code = join_lines(request.query_params.get("code", ""))[:64]
        return respond_entry(request, code=code, has_wallets=self.has_wallets)

    async def enter(self, request: Request) -> Response:
        """Spends the code of a link."""
        fields = await read_first_form(request)
        token = await self._sign_in.open_session(read_one(fields, "code"))
        if token is None:
            raise Refusal(_CODE_SPENT)
        return await self._open(request, token)

    async def issue_nonce(self, request: Request) -> Response:
        """A nonce for a message of the admin origin, and the message to sign."""
        await charge_sign_in(self._rate_limit, "operator-nonce", request)
        origin = find_origin(request)
        nonce_request = await read_nonce_request(request, limits=self._limits, known=("address", "chainId"))
        return respond_challenge(await self._sign_in.create_challenge(origin), nonce_request)

    async def open_wallet_session(self, request: Request) -> Response:
        """Opens a session for a wallet of `operators` that signed the message."""
        await charge_sign_in(self._rate_limit, "operator-session", request)
        origin = find_origin(request)
        message, signature = read_signed_message(await read_first_form(request))
        token = await self._sign_in.open_wallet_session(
            origin=origin, text=message, signature=signature, client_address=client_address_of(request)
        )
        return await self._open(request, token)

    async def _open(self, request: Request, token: str) -> Response:
        """Gives the browser its new session, and ends the one that it had: it forgets that token, so nothing else can end it."""
        replaced = ADMIN_COOKIE.read(request)
        session = None if replaced is None else await self._sign_in.find_session(replaced)
        if session is not None:
            await self._sign_in.close_session(session)
        return redirect_to("/", {"Set-Cookie": ADMIN_COOKIE.set(token, max_age_s=SESSION_TTL_S)})

    async def sign_out(self, request: Request) -> Response:
        await read_admin_form(request, SIGN_OUT)
        await self._sign_in.close_session(session_of(request))
        return redirect_to(ENTRY_PATH, {"Set-Cookie": ADMIN_COOKIE.clear()})


def find_origin(request: Request) -> PublicOrigin:
    """The admin origin as the browser states it in `Origin`: this host, on http, or on https behind a proxy of the operator. Raises Refusal for any other origin."""
    text = request.headers.get("origin", "")
    try:
        if text in origins_of(request) and is_from_origin(request, origins_of(request)):
            return parse_origin(text)
    except ValueError:
        pass
    raise refuse_form("Send this request from a page of this address, with its Origin.")


_CODE_SPENT = Problem(
    code=Code.AUTHENTICATION_REQUIRED,
    detail="The link does not count: it is spent, or older than five minutes. Make another one: tollway gateway admin link",
)
