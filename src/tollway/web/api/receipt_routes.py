"""`GET /api/v2/history/{callId}/receipt`: the signed receipt of a call, on every rail and in every state with an end. Read only.

A receipt is made of the row of the call and of its refund alone, so the same state always gives the same bytes. A call that still runs has no receipt yet (409).
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router

from tollway.errors import Code, Problem, refuse
from tollway.gateway.receipts import call_url
from tollway.identity.did_document import key_id
from tollway.ledger.history import JoinedCredit
from tollway.ledger.records import CallRecord, CallRefund, CallState
from tollway.money import Asset
from tollway.payments.call_receipt import (
    CHARGED,
    VERSION,
    read_authority,
    sign_call_receipt,
    sign_credit_note,
)
from tollway.web.api.context import WebContext
from tollway.web.api.history_routes import (
    NO_CALL,
    BookParameters,
    claim_state_json,
    find_call,
    find_call_asset,
    http_status,
    name_quantities,
    payment_state,
)
from tollway.web.http.query import read_query

HELD = "held"
_RUNNING = frozenset({CallState.FORWARDING, CallState.SETTLING})
RETRY_AFTER_S = 2
RECEIPT_PATH = "/api/v2/history/{call_id}/receipt"


def receipt_router(context: WebContext, *, path: str = RECEIPT_PATH, refusal: Problem = NO_CALL) -> Router:
    """The route. `path` has the parameter `call_id`. `refusal`: of a call of other wallets."""

    async def show_receipt(request: Request) -> JSONResponse:
        caller = await context.authenticate(request)
        named = read_query(BookParameters, request.scope["query_string"]).wallet
        owner = await context.book_access.resolve_wallet(caller.address, named)
        call = await find_call(context.call_history, request.path_params["call_id"], owner, refusal=refusal)
        check_ended(call, now_ms=context.shared_ms(), wait_s=context.limits.receipt_wait_s)
        return JSONResponse(await _write_receipt(context, call))

    return Router([Route(path, show_receipt, methods=["GET"])])


def check_ended(call: CallRecord, *, now_ms: int, wait_s: int) -> None:
    """Raises Refusal (409, with Retry-After) for a call that runs, that settles, or whose response may still be read.

    The end of a response is written after the charge, and a crash may lose it, so nothing waits for it longer than `wait_s`.
    """
    is_read = call.http_status is None or call.delivery is not None or call.state is CallState.UNKNOWN
    is_open_debt = call.state is CallState.REORGED and call.quantities == ""
    is_running = call.state in _RUNNING or call.is_unmeasured or is_open_debt
    if not is_running and (is_read or now_ms - call.moved_ms >= wait_s * 1000):
        return
    raise refuse(
        code=Code.IDEMPOTENCY_IN_PROGRESS,
        detail="This call is still running, so it has no receipt yet. Ask for the receipt again after Retry-After.",
        reason="call_running",
        retry_after_s=RETRY_AFTER_S,
        call_id=call.id,
        payment_state=payment_state(call),
    )


async def _write_receipt(context: WebContext, call: CallRecord) -> dict[str, Any]:
    asset = find_call_asset(call, context.find_asset)
    fields = describe_call(call, asset, context)
    document = sign_call_receipt(
        fields,
        kid=key_id(read_authority(context.origin) or ""),
        has_x402=is_relayed(call) and fields["state"] == CHARGED,
        sign=context.receipt_signer.sign,
    )
    if asset is not None and call.refund is not None and fields["state"] == CHARGED:
        note = describe_refund(call.refund, fields, asset)
        document["creditNote"] = sign_credit_note(note, sign=context.receipt_signer.sign)
    if asset is not None and fields["state"] in (CHARGED, HELD):
        limit = context.limits.joined_transfers_max
        joined = await context.call_history.joined_credit(call.id, limit=limit)
        if joined:
            document["alsoFrom"] = [_joined_json(one, asset) for one in joined]
    # It changes when the contract moves money, long after the state of the call: so it is not signed.
    return {**document, **claim_state_json(call)}


def is_relayed(call: CallRecord) -> bool:
    """Whether the caller got the answer of the upstream, not a problem of the gateway."""
    return call.upstream_status is not None and call.http_status is not None


def describe_call(call: CallRecord, asset: Asset | None, context: WebContext) -> Mapping[str, str | int]:
    """The 23 fields. An absent value is "" or 0. `price`: of a metered call its maximum. `amount`: what is taken for the call now, so 0 where the price came back or is owed."""
    state = payment_state(call)
    taken_units = call.due_units if state in (CHARGED, HELD) else 0
    return {
        "version": VERSION,
        "network": "" if asset is None else asset.network,
        "resourceUrl": call_url(context.public_url, call.listing_id, call.path),
        "payer": "" if call.payer is None else str(call.payer),
        "issuedAt": call.moved_ms // 1000,
        "transaction": "" if call.tx_hash is None else str(call.tx_hash),
        "gateway": context.origin,
        "callId": call.id,
        "apiId": call.listing_id,
        "operation": f"{call.method} {call.path or '/'}",
        "payee": "" if call.pay_to is None else str(call.pay_to),
        "asset": "" if asset is None else asset.caip19,
        "decimals": call.decimals,
        "currency": call.currency,
        "price": call.price,
        "amount": "0" if asset is None else str(asset.to_base_units(taken_units)),
        "quantities": ";".join(f"{unit}={quantity}" for unit, quantity in name_quantities(call)),
        "rail": call.rail.value,
        "channel": "" if call.channel_id is None else "0x" + call.channel_id.hex(),
        "state": state,
        "httpStatus": http_status(call) or 0,
        "createdAt": call.created_ms // 1000,
        "completedAt": _completed_s(call, wait_s=context.limits.receipt_wait_s),
    }


def describe_refund(
    refund: CallRefund, receipt: Mapping[str, str | int], asset: Asset
) -> Mapping[str, str | int]:
    """The fields of the credit note of a call. `issuedAt`: the second of the refund, so the same refund always has the same note."""
    return {
        **receipt,
        "amount": str(asset.to_base_units(refund.units)),
        "kind": "credit" if refund.is_credit else "transfer",
        "transaction": str(refund.tx_hash),
        "issuedAt": refund.created_ms // 1000,
    }


def _completed_s(call: CallRecord, *, wait_s: int) -> int:
    """The second in which the response ended; 0 for a call without an outcome. An end later than `wait_s` after the charge is not waited for, and
    would change a receipt that was given before: the receipt then names the moment of the charge."""
    if call.state is CallState.UNKNOWN or call.completed_ms is None:
        return 0
    is_late = call.completed_ms - call.moved_ms >= wait_s * 1000
    return (call.moved_ms if is_late else call.completed_ms) // 1000


def _joined_json(joined: JoinedCredit, asset: Asset) -> dict[str, str]:
    return {"transaction": str(joined.tx_hash), "amount": str(asset.to_base_units(joined.units))}
