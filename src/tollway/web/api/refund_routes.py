"""`POST /api/v2/history/{callId}/refund`: the provider of a call gives its price back, by a transfer that he sent or as credit at his listings.

A repeat of a request has the same answer. While the transfer is not mined, not deep enough or not readable, the answer is a problem that a repeat may end,
and nothing is recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import Route, Router

from tollway.errors import FieldError, Problem, refuse
from tollway.ids import REFUND_CALLS_MAX, CallId, TxHash
from tollway.ledger.records import CallRecord
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.history_routes import (
    ID_LENGTH_MAX,
    NO_CALL,
    RecordResponse,
    call_json,
    find_sold_call,
)
from tollway.web.http.json import find_unknown_members, parse_json_object
from tollway.web.http.problems import refuse_fields
from tollway.web.http.read_turns import leave_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefundRequest:
    """`transaction` None: as credit. `others`: further calls of the transfer."""

    transaction: TxHash | None
    others: tuple[CallId, ...] = ()


def refund_router(context: WebContext) -> Router:
    async def refund_call(request: Request) -> RecordResponse:
        caller = await context.authenticate(request)
        call = await find_sold_call(context.call_history, request.path_params["call_id"], caller.address)
        wanted = read_refund(await request.body())
        leave_turn(request.scope)  # the nodes of a chain may take seconds
        refunded = await refund_calls(context, call, wanted, client_address=client_address_of(request))
        return RecordResponse({"calls": [call_json(one, context.find_asset) for one in refunded]})

    return Router([Route("/api/v2/history/{call_id}/refund", refund_call, methods=["POST"])])


async def refund_calls(
    context: WebContext,
    call: CallRecord,
    wanted: CallRefundRequest,
    *,
    client_address: str,
    refusal: Problem = NO_CALL,
) -> Sequence[CallRecord]:
    """Refunds a call that its provider has asked for, and returns every refunded call. Raises Refusal: `refusal` for a call of another provider."""
    if wanted.transaction is None:
        return await context.refunds.give_credit(call)
    call_ids = dict.fromkeys((call.id, *wanted.others))
    calls = await context.refunds.read_calls(list(call_ids))
    if len(calls) < len(call_ids) or any(one.provider != call.provider for one in calls):
        own = {one.id for one in calls if one.provider == call.provider}
        missing = next(one for one in call_ids if one not in own)
        raise refuse(code=refusal.code, detail=refusal.detail, call_id=missing)
    return await context.refunds.refund(calls, wanted.transaction, client_address=client_address)


def read_refund(raw: bytes) -> CallRefundRequest:
    """The body: `{"transaction": "0x…", "calls": [...]}` or `{"credit": true}`. Raises Refusal (422) that names each field."""
    body = parse_json_object(raw)
    if "credit" in body:
        errors = list(find_unknown_members(body, ("credit",)))
        if body["credit"] is not True:
            errors.append(FieldError(code="unknown_value", detail="must be true", pointer="/credit"))
        if errors:
            raise refuse_fields(*errors)
        return CallRefundRequest(transaction=None)
    errors = list(find_unknown_members(body, ("transaction", "calls")))
    transaction = _parse_hash(body.get("transaction"))
    if transaction is None:
        detail = "must be the hash of a transaction, 0x and 64 hex digits; or send credit"
        errors.append(FieldError(code="invalid", detail=detail, pointer="/transaction"))
    others = body.get("calls", [])
    if not _is_list_of_ids(others):
        detail = f"must be a list of at most {REFUND_CALLS_MAX} ids of calls"
        errors.append(FieldError(code="invalid", detail=detail, pointer="/calls"))
    if errors:
        raise refuse_fields(*errors)
    return CallRefundRequest(transaction=transaction, others=tuple(CallId(one) for one in others))


def _parse_hash(value: Any) -> TxHash | None:
    try:
        return TxHash.parse(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _is_list_of_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) < REFUND_CALLS_MAX
        and all(isinstance(one, str) and 0 < len(one) <= ID_LENGTH_MAX for one in value)
    )
