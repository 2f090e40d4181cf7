"""`GET /api/v2/sales` and `GET /api/v2/spending`: what the listings of a wallet earned and what a wallet spent, by hour or day. Read only.

Charged, released, held and reorged are four members of each row; `refunded` is what came back of the charged ones, and `net` the rest. Each row has one asset, and so has each total.
`channels` of sales is another view of the same money: where what was charged on channels that pay this wallet is now, whatever the range.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.routing import Route, Router

from tollway.errors import FieldError, Refusal
from tollway.ids import Address, ChainId, ListingId
from tollway.ledger.channels import ChannelMoney
from tollway.ledger.sales import (
    DAY_MS,
    HOURS_KEPT_MS,
    STEP_MS,
    SUM_STATES,
    AssetTotal,
    CallSum,
    GroupSum,
    PeriodSums,
    SalesQuery,
    SpendingQuery,
    Step,
    SumGroup,
    SumKey,
    SumQuery,
    SumState,
    add_by,
    ceil_to,
    floor_to,
)
from tollway.money import Asset
from tollway.web.api.context import FindAsset, WebContext
from tollway.web.api.history_routes import ID_LENGTH_MAX, BookParameters, RecordResponse
from tollway.web.http.problems import refuse_fields
from tollway.web.http.query import QueryModel, format_time, parse_time, parsed, read_query

STEPS_MAX: dict[Step, int] = {"hour": 31 * 24, "day": 366}
"""The longest range of a question, in steps."""
STEPS_DEFAULT: dict[Step, int] = {"hour": 24, "day": 30}
"""The range of a question without `from`."""
STATES: tuple[SumState, ...] = tuple(dict.fromkeys(SUM_STATES.values()))


class RangeParameters(QueryModel):
    """The parameters that both routes have, with the field names of their queries."""

    from_ms: Annotated[int | None, parsed(parse_time)] = Field(None, alias="from")
    to_ms: Annotated[int | None, parsed(parse_time)] = Field(None, alias="to")
    step: Step = "day"


class SalesParameters(RangeParameters):
    """The query of `GET /sales`."""

    listing_id: Annotated[ListingId, Field(max_length=ID_LENGTH_MAX)] | None = Field(None, alias="apiId")


class SpendingParameters(RangeParameters, BookParameters):
    """The query of `GET /spending`."""

    group_by: SumGroup = Field("api", alias="groupBy")


def sums_router(context: WebContext) -> Router:
    """The two routes. Viewers read spending, and no sales."""

    async def show_sales(request: Request) -> RecordResponse:
        caller = await context.authenticate(request)
        parameters = read_query(SalesParameters, request.scope["query_string"])
        query = make_sales_query(parameters, caller.address, now_ms=context.now_ms())
        sums = await context.period_books.sales(query)
        money = await context.call_history.sum_channels(caller.address)
        answer = sums_json("sales", query, sums, group_by="api", now_ms=context.now_ms())
        return RecordResponse({**answer, "channels": channel_sums_json(money, context.find_asset)})

    async def show_spending(request: Request) -> RecordResponse:
        caller = await context.authenticate(request)
        parameters = read_query(SpendingParameters, request.scope["query_string"])
        payer = await context.book_access.resolve_wallet(caller.address, parameters.wallet)
        from_ms, to_ms = read_range(parameters, now_ms=context.now_ms(), oldest_hour_ms=0)
        query = SpendingQuery(
            wallet=payer, step=parameters.step, from_ms=from_ms, to_ms=to_ms, group_by=parameters.group_by
        )
        sums = await context.period_books.spending(query)
        return RecordResponse(
            sums_json("spending", query, sums, group_by=parameters.group_by, now_ms=context.now_ms())
        )

    return Router(
        [
            Route("/api/v2/sales", show_sales, methods=["GET"]),
            Route("/api/v2/spending", show_spending, methods=["GET"]),
        ]
    )


def make_sales_query(parameters: SalesParameters, provider: Address, *, now_ms: int) -> SalesQuery:
    """The question about the sales of a provider. Raises Refusal as `read_range` does."""
    from_ms, to_ms = read_range(parameters, now_ms=now_ms, oldest_hour_ms=_oldest_hour(now_ms))
    return SalesQuery(
        wallet=provider,
        step=parameters.step,
        from_ms=from_ms,
        to_ms=to_ms,
        listing_id=parameters.listing_id,
    )


def _oldest_hour(now_ms: int) -> int:
    return floor_to(DAY_MS, now_ms - HOURS_KEPT_MS)


def read_range(parameters: RangeParameters, *, now_ms: int, oldest_hour_ms: int) -> tuple[int, int]:
    """The range in whole steps: `from` rounded down, `to` rounded up and not in it. Raises Refusal (422) that names the parameter. `oldest_hour_ms`: hours
    before it are kept as days only."""
    step, step_ms = parameters.step, STEP_MS[parameters.step]
    to_ms = now_ms if parameters.to_ms is None else parameters.to_ms
    end_ms = ceil_to(step_ms, to_ms)
    if parameters.from_ms is None:
        default_ms = end_ms - STEPS_DEFAULT[step] * step_ms
        return max(default_ms, min(oldest_hour_ms, end_ms) if step == "hour" else 0, 0), end_ms
    start_ms = floor_to(step_ms, parameters.from_ms)
    if parameters.from_ms > to_ms:
        before = "to" if parameters.to_ms is not None else "the present moment, which is the default of to"
        raise _refuse("from", "backwards", f"must be before {before}")
    if end_ms - start_ms > STEPS_MAX[step] * step_ms:
        longer = "; ask in parts, or with step=day" if step == "hour" else "; ask in parts"
        detail = f"must be at most {STEPS_MAX[step]} {step}s before to{longer}"
        raise _refuse("from", "range_too_long", detail)
    if step == "hour" and start_ms < oldest_hour_ms:
        detail = f"must not be before {format_time(oldest_hour_ms)} with step=hour: older hours are kept as days; use step=day"
        raise _refuse("from", "too_old", detail)
    return start_ms, max(end_ms, start_ms + step_ms)


def sums_json(
    member: str, query: SumQuery, sums: PeriodSums, *, group_by: SumGroup, now_ms: int
) -> dict[str, Any]:
    """The answer of both routes. `member`: the name of its list."""
    as_of_ms = now_ms if sums.as_of_ms is None else min(now_ms, sums.as_of_ms)
    answer: dict[str, Any] = {
        "step": query.step,
        "from": format_time(query.from_ms),
        "to": format_time(query.to_ms),
        "asOf": format_time(as_of_ms),
        "isLowerBound": sums.complete_from_ms is not None,
    }
    if sums.complete_from_ms is not None:
        answer["completeFrom"] = format_time(sums.complete_from_ms)
    answer[member] = [_row_json(row, group_by) for row in sums.rows]
    answer["totals"] = [_sum_json(key, total) for key, total in add_totals(sums.rows).items()]
    return answer


def channel_sums_json(money: Iterable[ChannelMoney], find_asset: FindAsset) -> list[dict[str, Any]]:
    """The money of channels by network and token, with a member for each claim state. `channels`: those that hold money; `withdrawing`: those whose payer withdraws. A token that
    is no longer configured is left out: its decimals are unknown."""
    found = []
    for one in money:
        asset = find_asset(one.chain_id, "0x" + one.token.hex())
        if asset is not None:
            found.append(
                {
                    **_asset_json(asset, asset.symbol),
                    "channels": one.channels,
                    "withdrawing": one.withdrawing,
                    **{state.value: _units_json(units, asset) for state, units in one.units_by_state.items()},
                }
            )
    return found


def add_totals(rows: Iterable[GroupSum]) -> dict[SumKey, AssetTotal]:
    """The sums of all rows, by asset, in the order of the answer."""
    totals = add_by(rows, lambda row: row.key)
    return dict(
        sorted(totals.items(), key=lambda item: (item[0].currency, item[0].chain_id or 0, repr(item[0])))
    )


def _row_json(row: GroupSum, group_by: SumGroup) -> dict[str, Any]:
    start = {"start": format_time(row.start_ms)}
    if group_by == "api":
        return {**start, "apiId": row.group, "apiName": row.name, **_sum_json(row.key, row.total)}
    return {**start, group_by: row.group, **_sum_json(row.key, row.total)}


def _sum_json(key: SumKey, total: AssetTotal) -> dict[str, Any]:
    asset = asset_of_sum(key)
    return {
        **_asset_json(asset, key.currency),
        "calls": total.calls,
        **{state: _state_json(total.of(state), asset) for state in STATES},
        "refunded": _state_json(total.refunded, asset),
        "net": _units_json(total.net_units, asset),
    }


def _asset_json(asset: Asset | None, currency: str) -> dict[str, Any]:
    return {
        "network": None if asset is None else asset.network,
        "asset": None if asset is None else asset.caip19,
        "currency": currency,
    }


def _state_json(one: CallSum, asset: Asset | None) -> dict[str, Any]:
    return {"calls": one.calls, **_units_json(one.units, asset)}


def _units_json(units: int, asset: Asset | None) -> dict[str, Any]:
    """`units`: base units of the asset; `amount`: the same as a decimal."""
    return {
        "units": "0" if asset is None else str(asset.to_base_units(units)),
        "amount": "0" if asset is None else asset.format_units(units),
    }


def asset_of_sum(key: SumKey) -> Asset | None:
    """The asset by the facts of its calls, so that a sum reads the same when the asset is no longer configured."""
    if key.chain_id is None or key.asset is None:
        return None
    token = None if key.asset == "native" else Address.parse(key.asset)
    return Asset(chain_id=ChainId(key.chain_id), token=token, symbol=key.currency, decimals=key.decimals)


def _refuse(parameter: str, code: str, detail: str) -> Refusal:
    return refuse_fields(FieldError(code=code, detail=detail, parameter=parameter))
