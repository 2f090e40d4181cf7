"""The paths that only a gateway's own process serves: they pay or settle. At a control worker each of them is refused, before anything is spent.

A proxy sends these prefixes to `listen`, and may send all others to `control_listen`.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.errors import Code, Problem, Refusal
from tollway.web.http.app import PAID_PREFIXES

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def misdirected_router() -> Router:
    async def refuse_misdirected(request: Request) -> Response:
        raise Refusal(MISDIRECTED)

    return Router(
        [Route(prefix + "{rest:path}", refuse_misdirected, methods=_METHODS) for prefix in PAID_PREFIXES]
    )


MISDIRECTED = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="This address serves the control plane only, and nothing was spent. The proxy in front of the gateway must send "
    f"{', '.join(PAID_PREFIXES)} to its address `listen`, not to `control_listen`.",
    payment_state="none",
)
