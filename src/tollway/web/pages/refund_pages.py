"""The form of a ticket by which the provider of a call gives its price back: by a transfer from a browser wallet, by one that is sent, or as credit."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from tollway.errors import Code, refuse
from tollway.ids import TxHash
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.history_routes import find_sold_call
from tollway.web.api.refund_routes import RefundRequest, refund_calls
from tollway.web.pages.my_routes import NOT_YOUR_CALL
from tollway.web.pages.my_views import link_call
from tollway.web.pages.page_session import Fields, PageAccess, Reader, read_field, redirect_to

REFUND_PATH = "/my/calls/{call_id}/refund"


def refund_page_router(context: WebContext, access: PageAccess) -> Router:
    """The route. `context`: its requests are authenticated by `access`."""

    async def refund(request: Request, reader: Reader, fields: Fields) -> Response:
        call_id = request.path_params["call_id"]
        call = await find_sold_call(context.call_history, call_id, reader.address, refusal=NOT_YOUR_CALL)
        wanted = _read_form(fields)
        await refund_calls(
            context, call, wanted, client_address=client_address_of(request), refusal=NOT_YOUR_CALL
        )
        return redirect_to(link_call(call.id, None))

    return Router([access.form(REFUND_PATH, refund)])


def _read_form(fields: Fields) -> RefundRequest:
    if read_field(fields, "credit") == "yes":
        return RefundRequest(transaction=None)
    try:
        return RefundRequest(transaction=TxHash.parse((read_field(fields, "transaction") or "").strip()))
    except ValueError as exc:
        detail = f"The hash of the transfer is not valid: {exc}. Go back and correct it."
        raise refuse(code=Code.INVALID_REQUEST, detail=detail) from exc
