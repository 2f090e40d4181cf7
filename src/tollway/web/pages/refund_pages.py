"""The form of a ticket by which the provider of a call gives its price back: by a transfer from a browser wallet, by one that is sent, or as credit."""

import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from tollway.errors import Code, Problem, refuse
from tollway.ids import Address, TxHash
from tollway.ledger.records import CallRecord
from tollway.ledger.refunds import find_refund_fault
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.history_routes import find_call_asset, find_sold_call
from tollway.web.api.refund_routes import CallRefundRequest, refund_calls
from tollway.web.pages.call_form import describe_wallet_network
from tollway.web.pages.my_views import link_call
from tollway.web.pages.page_session import Fields, PageAccess, Reader, read_field, redirect_to

REFUND_PATH = "/my/calls/{call_id}/refund"


def refund_page_router(context: WebContext, access: PageAccess, *, refusal: Problem) -> Router:
    """The route. `context`: its requests are authenticated by `access`. `refusal`: of a call of other wallets."""

    async def refund(request: Request, reader: Reader, fields: Fields) -> Response:
        call_id = request.path_params["call_id"]
        call = await find_sold_call(context.call_history, call_id, reader.address, refusal=refusal)
        wanted = _read_form(fields)
        await refund_calls(context, call, wanted, client_address=client_address_of(request), refusal=refusal)
        return redirect_to(link_call(call.id, None))

    return Router([access.form(REFUND_PATH, refund)])


def _read_form(fields: Fields) -> CallRefundRequest:
    if read_field(fields, "credit") == "yes":
        return CallRefundRequest(transaction=None)
    try:
        return CallRefundRequest(transaction=TxHash.parse((read_field(fields, "transaction") or "").strip()))
    except ValueError as exc:
        detail = f"The hash of the transfer is not valid: {exc}. Go back and correct it."
        raise refuse(code=Code.INVALID_REQUEST, detail=detail) from exc


async def describe_refund_form(
    call: CallRecord, reader: Address, context: WebContext
) -> dict[str, object] | None:
    """The amount and the transfer of the form, for its module, and whether credit can be given; None where this reader cannot refund the call."""
    asset = find_call_asset(call, context.find_asset)
    if call.provider != reader or asset is None or find_refund_fault([call]) is not None:
        return None
    profile = context.profiles.get(asset.chain_id)
    transfer = {
        "chainId": asset.chain_id,
        "name": asset.network if profile is None else profile.name,
        "network": describe_wallet_network(asset.chain_id, profile),
        "token": None if asset.token is None else str(asset.token),
        "to": str(call.payer),
        "amount": str(asset.to_base_units(call.due_units)),
        "senders": sorted(str(one).lower() for one in await context.refunds.find_senders(call)),
    }
    return {
        "amount": f"{call.due_price} {call.currency}",
        "transfer": json.dumps(transfer),
        "has_credit": await context.refunds.find_credit_fault(call) is None,
    }
