"""The calls and payments of a wallet in the ledger: `/history`, `/payments`, and `/history` again for x402 clients.

Read only, except that a provider may resolve a call whose outcome is unknown. A response never contains a record of another wallet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router

from tollway.errors import Code, FieldError, Problem, Refusal, refuse
from tollway.identity.viewers import NOT_VIEWER
from tollway.ids import Address, CallId, ListingId, TxHash, format_network
from tollway.ledger.history import (
    CallHistory,
    HistoryQuery,
    HistoryRole,
    HistoryStatus,
    PaymentPlace,
    PaymentQuery,
)
from tollway.ledger.ledger import PaymentLedger
from tollway.ledger.records import CallRecord, CallState, Payment, PaymentState, is_charged_by_provider
from tollway.ledger.sales import SUM_STATES
from tollway.money import Asset
from tollway.payments.held_calls import ChargeFault, HeldCalls
from tollway.payments.transaction_lookup import TransactionStatus
from tollway.registry.metering import list_quantities
from tollway.web.api.auth_routes import client_address_of, make_x402_wallet_dependency
from tollway.web.api.context import FindAsset, WalletDependency, WebContext
from tollway.web.http.json import find_unknown_members, parse_json_object
from tollway.web.http.problems import status_of
from tollway.web.http.query import (
    QueryModel,
    format_time,
    parse_time,
    parsed,
    read_query,
    whole_number,
)
from tollway.web.http.read_turns import SLICE_ROWS, leave_turn

HISTORY_LIMIT_DEFAULT = 50
HISTORY_LIMIT_MAX = 200
OFFSET_MAX = 10_000
PAYMENTS_LIMIT_MAX = 100
CALLS_SHOWN_MAX = 100
"""The most calls of one payment in a response, newest first."""

ID_LENGTH_MAX = 64

_ERROR_STATUS_MIN = 400
_OK, _ACCEPTED = 200, 202


class RecordResponse(JSONResponse):
    """Records as JSON, encoded without Python code for each value: the bytes are those of `JSONResponse`."""

    def render(self, content: object) -> bytes:
        return to_json(content, inf_nan_mode="constants")


def history_router(context: WebContext) -> Router:
    """The five routes under `/api/v2`."""
    call_history, find_asset = context.call_history, context.find_asset
    resolve_wallet = context.book_access.resolve_wallet

    async def resolve_call(request: Request) -> RecordResponse:
        caller = await context.authenticate(request)
        call = await find_sold_call(call_history, request.path_params["call_id"], caller.address)
        outcome = _read_outcome(await request.body())
        decided = await decide_call(
            context.held_calls, call_history, call, outcome, client_address=client_address_of(request)
        )
        status = _ACCEPTED if decided.state is CallState.SETTLING else _OK
        return RecordResponse(call_json(decided, find_asset), status_code=status)

    async def list_payments(request: Request) -> RecordResponse:
        caller = await context.authenticate(request)
        given = dict(read_query(PaymentParameters, request.scope["query_string"]))
        query = PaymentQuery(wallet=await resolve_wallet(caller.address, given.pop("wallet")), **given)
        rows = [
            await _payment_json(one.payment, call_history, find_asset, is_restored=one.is_restored)
            for one in await call_history.read_payments(query)
        ]
        return RecordResponse({"payments": rows, "limit": query.limit, "offset": query.offset})

    async def show_payment(request: Request) -> RecordResponse:
        caller = await context.authenticate(request)
        named = read_query(BookParameters, request.scope["query_string"]).wallet
        tx_hash = parse_transaction(request.path_params["transaction"])
        payer = await resolve_wallet(caller.address, named)
        payments = await call_history.payments_in(payer, tx_hash)
        if not payments:
            leave_turn(request.scope)  # the nodes of a chain may take seconds
            return RecordResponse(
                _transaction_status_json(tx_hash, payer, await context.look_up_transaction(tx_hash, payer))
            )
        is_restored = await is_held_by_restore(payments, context.payment_ledger)
        first, *others = [
            await _payment_json(payment, call_history, find_asset, is_restored=is_restored)
            for payment in payments
        ]
        return RecordResponse({**first, "others": others} if others else first)

    return Router(
        [
            *_read_routes(context, "/api/v2", authenticate=context.authenticate),
            Route("/api/v2/history/{call_id}/resolution", resolve_call, methods=["POST"]),
            Route("/api/v2/payments", list_payments, methods=["GET"]),
            Route("/api/v2/payments/{transaction}", show_payment, methods=["GET"]),
        ]
    )


def x402_history_router(context: WebContext) -> Router:
    """`/x402/history` and `/x402/history/{callId}`: the two reads for x402 clients, which sign in only after a 402. They take no payment."""
    return Router(
        _read_routes(context, "/x402", authenticate=make_x402_wallet_dependency(context.authenticate))
    )


def _read_routes(context: WebContext, prefix: str, *, authenticate: WalletDependency) -> list[Route]:
    call_history, find_asset = context.call_history, context.find_asset
    resolve_wallet = context.book_access.resolve_wallet

    async def list_history(request: Request) -> RecordResponse:
        caller = await authenticate(request)
        given = read_query(HistoryParameters, request.scope["query_string"])
        owner = await resolve_wallet(caller.address, given.wallet)
        query = HistoryQuery(**{**dict(given), "wallet": owner})
        page = await history_json(query, call_history, find_asset=find_asset, now_ms=context.now_ms())
        return RecordResponse(page)

    async def show_call(request: Request) -> RecordResponse:
        caller = await authenticate(request)
        named = read_query(BookParameters, request.scope["query_string"]).wallet
        owner = await resolve_wallet(caller.address, named)
        call = await find_call(call_history, request.path_params["call_id"], owner)
        return RecordResponse(call_json(call, find_asset))

    return [
        Route(f"{prefix}/history", list_history, methods=["GET"]),
        Route(f"{prefix}/history/{{call_id}}", show_call, methods=["GET"]),
    ]


async def history_json(
    query: HistoryQuery, call_history: CallHistory, *, find_asset: FindAsset, now_ms: int
) -> dict[str, Any]:
    """One page of a wallet's calls, read and described in slices."""
    page = await call_history.history(replace(query, limit=min(query.limit, SLICE_ROWS)))
    slice_, described = page.calls, [call_json(call, find_asset) for call in page.calls]
    while len(slice_) == SLICE_ROWS and len(described) < query.limit:
        size = min(query.limit - len(described), SLICE_ROWS)
        slice_ = await call_history.read_calls(replace(query, before=slice_[-1].id, offset=0, limit=size))
        described += [call_json(call, find_asset) for call in slice_]
    answer: dict[str, Any] = {
        "calls": described,
        "total": page.total,
        "limit": query.limit,
        "offset": query.offset,
        "asOf": format_time(now_ms if query.to_ms is None else min(now_ms, query.to_ms)),
    }
    if page.is_lower_bound:
        answer["totalIsLowerBound"] = True
    return answer


def call_json(call: CallRecord, find_asset: FindAsset) -> dict[str, Any]:
    """A record of `/history`. The ledger stores neither bodies nor queries of calls."""
    return {
        "id": call.id,
        "apiId": call.listing_id,
        "apiName": call.listing_name,
        "provider": str(call.provider),
        "payer": _optional_text(call.payer),
        "method": call.method,
        "path": call.path,
        "status": call_status(call),
        "httpStatus": http_status(call),
        "upstreamStatus": call.upstream_status,
        "price": call.due_price,
        "currency": call.currency,
        **_metered_json(call),
        "payment": _call_payment_json(call, find_asset),
        **_refund_json(call, find_asset),
        "requestBytes": call.request_bytes,
        "responseBytes": call.response_bytes,
        "latencyMs": call.latency_ms,
        "upstreamLatencyMs": call.upstream_latency_ms,
        "idempotencyKey": call.idempotency_key,
        "requestId": call.request_id,
        "error": call.error,
        "createdAt": format_time(call.created_ms),
        "completedAt": None if call.completed_ms is None else format_time(call.completed_ms),
    }


def _metered_json(call: CallRecord) -> dict[str, Any]:
    """Of a metered call its maximum and what was measured. `quantities` is null until the response has ended, and empty where they are absent."""
    if call.metering is None:
        return {}
    named = [{"unit": unit, "quantity": quantity} for unit, quantity in name_quantities(call)]
    return {"priceMax": call.price, "quantities": named if call.quantities else None}


def name_quantities(call: CallRecord) -> list[tuple[str, int]]:
    if call.metering is None or call.quantities is None:
        return []
    return list_quantities(call.metering, call.quantities, max_units=call.price_units, decimals=call.decimals)


def call_status(call: CallRecord) -> HistoryStatus:
    """The state of the call on the wire. A reorged call keeps the state that its response gave it."""
    match call.state:
        case CallState.FORWARDING | CallState.SETTLING:
            return "pending"
        case CallState.UNKNOWN:
            return "unknown"
        case CallState.RELEASED:
            return "failed"
        case CallState.CONSUMED | CallState.REORGED:
            is_good = call.upstream_status is not None and call.upstream_status < _ERROR_STATUS_MIN
            return "succeeded" if is_good else "failed"


def payment_state(call: CallRecord) -> str:
    """The state of the payment of a call on the wire; `none` for a free call. A metered call holds its maximum until its price is known."""
    if call.is_unmeasured:
        return "held"
    return "none" if call.chain_id is None or call.asset is None else SUM_STATES[call.state]


def http_status(call: CallRecord) -> int | None:
    """The status of the response to the caller: the upstream's, or that of the gateway's problem."""
    if call.http_status is not None or call.error is None:
        return call.http_status
    return status_of(Code(call.error)) if call.error in set(Code) else None


def _call_payment_json(call: CallRecord, find_asset: FindAsset) -> dict[str, Any]:
    asset = find_call_asset(call, find_asset)
    return {
        "state": payment_state(call),
        "rail": call.rail.value,
        "network": None if asset is None else asset.network,
        "asset": None if asset is None else asset.caip19,
        "transaction": _optional_text(call.tx_hash),
        "amount": None if asset is None else str(asset.to_base_units(call.due_units)),
        "payTo": _optional_text(call.pay_to),
        **({} if call.channel_id is None else {"channel": "0x" + call.channel_id.hex()}),
        **claim_state_json(call),
        **_hold_json(call, asset),
    }


def claim_state_json(call: CallRecord) -> dict[str, Any]:
    """`claimState`: where the price of a call on a channel is."""
    return {} if call.claim_state is None else {"claimState": call.claim_state.value}


def _refund_json(call: CallRecord, find_asset: FindAsset) -> dict[str, Any]:
    """`refund`, where the provider gave something of the price back. The state of the payment stays."""
    asset = find_call_asset(call, find_asset)
    if call.refund is None or asset is None:
        return {}
    return {
        "refund": {
            "amount": str(asset.to_base_units(call.refund.units)),
            "value": asset.format_units(call.refund.units),
            "kind": "credit" if call.refund.is_credit else "transfer",
            "transaction": str(call.refund.tx_hash),
            "isFinal": call.refund.is_final,
            "createdAt": format_time(call.refund.created_ms),
        }
    }


def _hold_json(call: CallRecord, asset: Asset | None) -> dict[str, Any]:
    """`heldUntil`, where the price of an unknown call comes back by itself."""
    if asset is None or call.held_until_ms is None:
        return {}
    return {"heldUntil": format_time(call.held_until_ms)}


def find_call_asset(call: CallRecord, find_asset: FindAsset) -> Asset | None:
    """The asset that paid; None for a free call. The record itself describes an asset that is no longer configured."""
    if call.chain_id is None or call.asset is None:
        return None
    configured = find_asset(call.chain_id, call.asset)
    if configured is not None:
        return configured
    token = None if call.asset == "native" else Address.parse(call.asset)
    return Asset(chain_id=call.chain_id, token=token, symbol=call.currency, decimals=call.decimals)


async def is_held_by_restore(payments: Sequence[Payment], payment_ledger: PaymentLedger) -> bool:
    """Whether the payments of a transaction are held because the database was restored."""
    held = [payment for payment in payments if payment.is_held]
    if not held:
        return False
    return (await payment_ledger.find_transaction(held[0].tx_hash)).held_before_ms is not None


async def _payment_json(
    payment: Payment, call_history: CallHistory, find_asset: FindAsset, *, is_restored: bool
) -> dict[str, Any]:
    newest = await call_history.calls_of(payment.id, limit=CALLS_SHOWN_MAX)
    unknown: tuple[CallId, ...] = ()
    if payment.taken_units > 0:
        unknown = await call_history.unknown_calls(payment.id, limit=CALLS_SHOWN_MAX)
    members = payment_members(payment, find_asset, is_restored=is_restored, is_held_by_call=bool(unknown))
    return {**members, "calls": _list_calls(unknown, among=newest)}


def payment_members(
    payment: Payment, find_asset: FindAsset, *, is_restored: bool, is_held_by_call: bool
) -> dict[str, str | None]:
    """The members of a payment in a list and in a file, without its calls. `kind`: of credit that a provider gave back, for which nothing was paid."""
    asset = find_asset(payment.chain_id, payment.asset)
    network = format_network(payment.chain_id)
    # A gone payment has no credit, even while calls in flight hold units of it.
    credit_units = 0 if payment.state is PaymentState.GONE else payment.remaining_units
    return {
        "transaction": str(payment.tx_hash),
        "network": network,
        "asset": asset.caip19 if asset else f"{network}/{_asset_reference(payment.asset)}",
        "payer": str(payment.payer),
        "payee": str(payment.payee),
        "amount": str(asset.to_base_units(payment.value_units)) if asset else None,
        "credit": str(asset.to_base_units(credit_units)) if asset else None,
        "state": _payment_state(payment),
        "reason": _payment_reason(payment, is_restored=is_restored, is_held_by_call=is_held_by_call),
        **({"kind": "refund"} if payment.is_given_back else {}),
    }


def _payment_reason(payment: Payment, *, is_restored: bool, is_held_by_call: bool) -> str | None:
    """The reason for units that are neither charged nor available. `is_restored`: the payment is held because of a restore; otherwise it is held
    because nodes disagree."""
    if payment.is_held:
        return "held_after_restore" if is_restored else "held_by_dispute"
    if is_held_by_call and payment.state is not PaymentState.GONE:
        return "held_by_call"
    return None


def _list_calls(unknown: Sequence[CallId], *, among: Sequence[CallId]) -> list[CallId]:
    """All calls without an outcome, of any age, and the newest others up to `CALLS_SHOWN_MAX`."""
    left = CALLS_SHOWN_MAX - len(unknown)
    listed = {*unknown, *[call_id for call_id in among if call_id not in unknown][:left]}
    older = [call_id for call_id in unknown if call_id not in among]
    return [*(call_id for call_id in among if call_id in listed), *older]


def _asset_reference(key: str) -> str:
    return "slip44:60" if key == "native" else f"erc20:{key}"


def _payment_state(payment: Payment) -> str:
    if payment.state is PaymentState.GONE:
        return "reorged"
    return "credited" if payment.remaining_units > 0 else "spent"


def _transaction_status_json(
    tx_hash: TxHash, payer: Address, transaction_status: TransactionStatus | None
) -> dict[str, Any]:
    if transaction_status is None:
        detail = "The ledger has no payment of this wallet in this transaction, and the nodes of a chain are unavailable. Send the request again later."
        raise refuse(code=Code.PAYMENT_NOT_FOUND, detail=detail)
    return {
        "transaction": str(tx_hash),
        "network": None
        if transaction_status.chain_id is None
        else format_network(transaction_status.chain_id),
        "asset": None,
        "payer": str(payer),
        "payee": None,
        "amount": None,
        "credit": None,
        "state": transaction_status.state,
        "reason": transaction_status.reason,
        "calls": [],
    }


class BookParameters(QueryModel):
    """The query of a route that reads the books of a wallet. `wallet`: whose, where it has named the reader as its viewer; None: the reader's own."""

    wallet: Annotated[Address | None, parsed(Address.parse)] = None


class PaymentFilters(BookParameters):
    """The filter of the payments of a wallet, with the field names of `PaymentQuery`: one for the list and the file."""

    before: Annotated[PaymentPlace | None, parsed(PaymentPlace.parse)] = None
    role: HistoryRole = "payer"
    from_ms: Annotated[int | None, parsed(parse_time)] = Field(None, alias="from")
    to_ms: Annotated[int | None, parsed(parse_time)] = Field(None, alias="to")


class PaymentParameters(PaymentFilters):
    """The query of `GET /payments`."""

    limit: Annotated[int, whole_number(1, PAYMENTS_LIMIT_MAX)] = HISTORY_LIMIT_DEFAULT
    offset: Annotated[int, whole_number(0, OFFSET_MAX)] = 0


class HistoryFilters(BookParameters):
    """The filter of the calls of a wallet, with the field names of `HistoryQuery`: one for the list and the file."""

    listing_id: Annotated[ListingId, Field(max_length=ID_LENGTH_MAX)] | None = Field(None, alias="apiId")
    before: Annotated[CallId, Field(max_length=ID_LENGTH_MAX)] | None = None
    role: HistoryRole = "payer"
    status: HistoryStatus | None = None
    from_ms: Annotated[int | None, parsed(parse_time)] = Field(None, alias="from")
    to_ms: Annotated[int | None, parsed(parse_time)] = Field(None, alias="to")


class HistoryParameters(HistoryFilters):
    """The query of `GET /history`."""

    limit: Annotated[int, whole_number(1, HISTORY_LIMIT_MAX)] = HISTORY_LIMIT_DEFAULT
    offset: Annotated[int, whole_number(0, OFFSET_MAX)] = 0


def read_history_query(raw: bytes, wallet: Address) -> HistoryQuery:
    """The query of `GET /history` for the wallet's own calls. Raises Refusal: 422 naming each parameter, 403 for another `wallet`."""
    given = read_query(HistoryParameters, raw)
    if given.wallet not in (None, wallet):
        raise Refusal(NOT_VIEWER)
    return HistoryQuery(**{**dict(given), "wallet": wallet})


NO_CALL = Problem(
    code=Code.CALL_NOT_FOUND,
    detail="This wallet has no such call. Check the id, or sign in as the payer or the provider of the call.",
)


async def find_call(
    call_history: CallHistory, call_id: str, wallet: Address, *, refusal: Problem = NO_CALL
) -> CallRecord:
    """The call, if the wallet is its payer or its provider. Otherwise raises Refusal (404), as for a call that does not exist."""
    call = await call_history.find_call(CallId(call_id)) if len(call_id) <= ID_LENGTH_MAX else None
    if call is None or wallet not in (call.payer, call.provider):
        raise Refusal(refusal)
    return call


async def find_sold_call(
    call_history: CallHistory, call_id: str, provider: Address, *, refusal: Problem = NO_CALL
) -> CallRecord:
    """The call of a listing of this wallet. Raises Refusal: 404 as `find_call` does, and 403 for its payer."""
    call = await find_call(call_history, call_id, provider, refusal=refusal)
    if call.provider != provider:
        raise refuse(
            code=Code.NOT_PROVIDER,
            detail="Only the provider of the API can do this with the call. Sign the request with the provider's wallet.",
        )
    return call


async def decide_call(
    held_calls: HeldCalls,
    call_history: CallHistory,
    call: CallRecord,
    outcome: CallState,
    *,
    client_address: str,
) -> CallRecord:
    """Ends a held call, and returns it as it is then: `settling` while its authorisation is being settled. Raises Refusal (412) where it cannot be
    charged, and for a call that is not held, but not for a repeat of the same decision."""
    decided = await held_calls.resolve(call, outcome, client_address=client_address)
    if isinstance(decided, ChargeFault):
        raise refuse(code=Code.PRECONDITION_FAILED, detail=CHARGE_FAULTS[decided], reason=decided.value)
    after = await find_call(call_history, call.id, call.provider)
    if decided is None and not _is_decided_as(after, outcome):
        raise refuse(
            code=Code.PRECONDITION_FAILED,
            detail="This call is not held: it has an outcome, it is being settled, or its request runs again. Read the call for its state.",
            reason="not_unknown",
        )
    return after


_RELEASE_ONLY = "so the call cannot be charged any more. It can only be released; nothing was taken from the payer for it."
CHARGE_FAULTS: Mapping[ChargeFault, str] = {
    ChargeFault.EXPIRED: f"The signed payment of this call was valid for a limited time, which is over, {_RELEASE_ONLY}",
    ChargeFault.USED: f"The payer has cancelled the signed payment of this call or used its nonce for another transfer, {_RELEASE_ONLY}",
    ChargeFault.NOT_SETTLED: f"This gateway settles no signed payments in this currency on this network now, {_RELEASE_ONLY}",
    ChargeFault.ON_CHANNEL: "The voucher of this call pays the next call on its channel. It can only be released; nothing was taken from the payer for it.",
}
"""Why a held call can only be released."""


def _read_outcome(raw: bytes) -> CallState:
    body = parse_json_object(raw)
    errors = list(find_unknown_members(body, ("outcome",)))
    outcome = body.get("outcome")
    if outcome not in ("released", "consumed"):
        detail = "must be released or consumed"
        errors.append(FieldError(code="unknown_value", detail=detail, pointer="/outcome"))
    if errors:
        raise refuse(
            code=Code.VALIDATION_FAILED,
            detail="These fields are not valid: /outcome. Correct them; `errors` says how.",
            errors=tuple(errors),
        )
    return CallState(str(outcome))


def _is_decided_as(call: CallRecord, outcome: CallState) -> bool:
    """Whether the call is already resolved with this outcome, so that a repeated resolution changes nothing."""
    if is_charged_by_provider(call.state, call.upstream_status):
        return outcome is CallState.CONSUMED
    return call.state is outcome and call.upstream_status is None


def parse_transaction(text: str) -> TxHash:
    """Raises Refusal (400)."""
    try:
        return TxHash.parse(text)
    except ValueError as exc:
        raise refuse(code=Code.INVALID_REQUEST, detail=f"{exc}.") from exc


def _optional_text(value: Address | TxHash | None) -> str | None:
    return None if value is None else str(value)
