"""The pages of a signed-in reader about sums: `/my` and `/my/selling` with what it calls and what it sells this month, and `/my/spending`. Read only.

The sums are those of `GET /api/v2/spending` and `GET /api/v2/sales`. A viewer reads the spending of a wallet that has named it, and the sales of its own listings alone.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from tollway.errors import Refusal
from tollway.ids import Address
from tollway.ledger.history import HistoryQuery, HistoryRole, PaymentQuery
from tollway.ledger.sales import DAY_MS, GroupSum, PeriodSums, SalesQuery, SpendingQuery, SumGroup, ceil_to
from tollway.registry.catalog import ListingQuery
from tollway.web.api.budget_routes import budget_json
from tollway.web.api.context import WebContext
from tollway.web.api.history_routes import BookParameters
from tollway.web.api.sums_routes import RangeParameters, read_range
from tollway.web.http.query import errors_by_parameter, format_time
from tollway.web.pages.budget_pages import list_limits
from tollway.web.pages.my_routes import HOME, ListForm, status_of_form
from tollway.web.pages.my_sums_views import (
    DAY_ROWS_MAX,
    SUM_ROWS_MAX,
    PeriodBefore,
    PeriodView,
    SpendingGroup,
    SpendingView,
    link_groups,
    sum_credit,
    view_groups,
    view_money_charts,
    view_period,
)
from tollway.web.pages.my_views import choose_wallet
from tollway.web.pages.page_session import PageAccess, Reader
from tollway.web.pages.public_views import name_network

SELLING = "/my/selling"
"""The same page as `/my`, with the sales first."""
PAYMENTS_SUMMED_MAX = 200
"""Payments that the credit of `/my` is summed over, the newest first."""
WALLETS_SUMMED_MAX = 10
"""Wallets that one page of spending sums over. Each is a question to the ledger of its own, and no further one begins once they have read as many calls as one question may."""
_GROUP_OF: Mapping[SpendingGroup, SumGroup] = {
    "day": "wallet",
    "api": "api",
    "provider": "provider",
    "wallet": "wallet",
}


Q = TypeVar("Q", SalesQuery, SpendingQuery)


class HomeFilters(BookParameters):
    """The query of `/my` and `/my/selling`."""


class SpendingFilters(RangeParameters, BookParameters):
    """The query of `/my/spending`: that of `GET /spending`, which has no group `day`."""

    group: SpendingGroup = Field("day", alias="groupBy")


def my_sums_router(context: WebContext, access: PageAccess) -> Router:
    pages = SumPages(context, access)
    return Router(
        [
            access.page(HOME, pages.show_home),
            access.page(SELLING, pages.show_home),
            access.page("/my/spending", pages.show_spending),
        ]
    )


class SumPages:
    """The handlers. Many tasks may call them at once."""

    def __init__(self, context: WebContext, access: PageAccess) -> None:
        self._context = context
        self._respond = access.respond

    # ---- Both halves.

    async def show_home(self, request: Request, reader: Reader) -> Response:
        context = self._context
        now_ms = context.now_ms()
        form = ListForm.read(request, now_ms=now_ms)
        filters, errors = form.parse(HomeFilters)
        named = None if filters is None else filters.wallet
        payer = await context.book_access.resolve_wallet(reader.address, named)
        from_ms, to_ms = start_of_month(now_ms), ceil_to(DAY_MS, now_ms + 1)
        payments = await context.call_history.read_payments(
            PaymentQuery(wallet=payer, limit=PAYMENTS_SUMMED_MAX + 1)
        )
        return self._respond(
            request,
            reader,
            "my_home.j2",
            status=status_of_form(errors),
            errors=errors,
            is_selling=request.scope["path"] == SELLING,
            month=format_time(from_ms)[:7],
            payer=str(payer),
            is_own=payer == reader.address,
            wallets=await self._list_wallets(reader, str(payer)),
            calling=await self._read_calling(payer, from_ms=from_ms, to_ms=to_ms),
            selling=await self._read_selling(reader.address, from_ms=from_ms, to_ms=to_ms),
            credit=sum_credit(payments[:PAYMENTS_SUMMED_MAX], context.find_asset),
            name_network=partial(name_network, profiles=context.profiles),
            is_credit_lower_bound=len(payments) > PAYMENTS_SUMMED_MAX,
            calls_held=await self._count_held(payer, "payer"),
            sales_held=await self._count_held(reader.address, "provider"),
            listings=(
                await context.catalog.search(ListingQuery(provider=reader.address, limit=1, sort="newest"))
            ).total,
            listings_unproved=(
                await context.catalog.search(
                    ListingQuery(provider=reader.address, verified=False, limit=1, sort="newest")
                )
            ).total,
        )

    async def _read_calling(self, payer: Address, *, from_ms: int, to_ms: int) -> PeriodView:
        query = SpendingQuery(wallet=payer, step="day", from_ms=from_ms, to_ms=to_ms, group_by="wallet")
        return await self._view_period(query, self._context.period_books.spending)

    async def _read_selling(self, provider: Address, *, from_ms: int, to_ms: int) -> PeriodView:
        query = SalesQuery(wallet=provider, step="day", from_ms=from_ms, to_ms=to_ms)
        return await self._view_period(query, self._context.period_books.sales)

    async def _view_period(self, query: Q, read: Callable[[Q], Awaitable[PeriodSums]]) -> PeriodView:
        """The sums of the month, and of the same days of the month before."""
        sums = await read(query)
        from_ms = start_of_month(query.from_ms - 1)
        to_ms = min(query.from_ms, from_ms + query.to_ms - query.from_ms)
        return view_period(
            sums.rows,
            self._context.profiles,
            from_ms=query.from_ms,
            to_ms=query.to_ms,
            is_lower_bound=sums.complete_from_ms is not None,
            before=await read_before(read, query, from_ms=from_ms, to_ms=to_ms),
        )

    async def _count_held(self, wallet: Address, role: HistoryRole) -> int:
        query = HistoryQuery(wallet=wallet, role=role, status="unknown", limit=1)
        return (await self._context.call_history.history(query)).total

    # ---- Spending.

    async def show_spending(self, request: Request, reader: Reader) -> Response:
        context = self._context
        now_ms = context.now_ms()
        form = ListForm.read(request, now_ms=now_ms)
        filters, errors = form.parse(SpendingFilters)
        found = None
        if filters is not None:
            try:
                from_ms, to_ms = read_range(filters, now_ms=now_ms, oldest_hour_ms=0)
                found = await self._read_spending(reader, filters, from_ms=from_ms, to_ms=to_ms)
            except Refusal as refusal:
                errors = errors_by_parameter(refusal.problem)
                if not errors:
                    raise
        named = None if filters is None else filters.wallet
        return self._respond(
            request,
            reader,
            "my_spending.j2",
            budget=await self._find_budget(reader, named or reader.address),
            list_limits=list_limits,
            status=status_of_form(errors),
            given=form.given,
            errors=errors,
            wallets=await self._list_wallets(reader, form.given.get("wallet", "")),
            has_filters=bool(form.keep("wallet", "from", "to")),
            links=link_groups(form.given, _GROUP_OF),
            found=found,
            name_network=partial(name_network, profiles=context.profiles),
        )

    async def _find_budget(self, reader: Reader, wallet: Address) -> Mapping[str, Any] | None:
        """The budget to which a wallet is bound, for its owner and for the wallet itself."""
        found = await self._context.budgets.find_binding(wallet)
        if found is None or reader.address not in (found.owner, found.agent):
            return None
        return budget_json(found, now_ms=self._context.shared_ms())

    async def _read_spending(
        self, reader: Reader, filters: SpendingFilters, *, from_ms: int, to_ms: int
    ) -> SpendingView:
        wallets, are_more = await self._choose_wallets(reader, filters.wallet)
        rows: list[GroupSum] = []
        earlier: list[GroupSum] | None = []
        start_ms = max(0, 2 * from_ms - to_ms)
        complete_from_ms = wallets_summed = calls = 0
        for wallet in wallets:
            if calls >= self._context.limits.spending_calls_max:
                break
            query = SpendingQuery(
                wallet=wallet,
                step=filters.step,
                from_ms=from_ms,
                to_ms=to_ms,
                group_by=_GROUP_OF[filters.group],
            )
            sums = await self._context.period_books.spending(query)
            rows.extend(sums.rows)
            wallets_summed += 1
            calls += sum(one.calls for row in sums.rows for one in row.by_state.values())
            complete_from_ms = max(complete_from_ms, sums.complete_from_ms or 0)
            before = await read_before(
                self._context.period_books.spending, query, from_ms=start_ms, to_ms=from_ms
            )
            earlier = None if before is None or earlier is None else [*earlier, *before.rows]
        profiles = self._context.profiles
        groups = view_groups(rows, filters.group, profiles, step=filters.step)
        rows_max = DAY_ROWS_MAX if filters.group == "day" else SUM_ROWS_MAX
        return SpendingView(
            group=filters.group,
            from_day=format_time(from_ms)[:10],
            to_day=format_time(to_ms - 1)[:10],
            rows=groups[:rows_max],
            rows_left_out=max(0, len(groups) - rows_max),
            totals=view_groups(rows, "", profiles),
            charts=view_money_charts(
                rows,
                step=filters.step,
                from_ms=from_ms,
                to_ms=to_ms,
                before=None
                if earlier is None
                else PeriodBefore(rows=earlier, from_ms=start_ms, to_ms=from_ms),
            ),
            wallets_summed=wallets_summed,
            are_more_wallets=are_more or wallets_summed < len(wallets),
            complete_from=format_time(complete_from_ms) if complete_from_ms else None,
        )

    async def _choose_wallets(
        self, reader: Reader, named: Address | None
    ) -> tuple[tuple[Address, ...], bool]:
        """The wallet that the form names, or the reader and those that have named it, the newest first; and whether there are more."""
        if named is not None:
            return (await self._context.book_access.resolve_wallet(reader.address, named),), False
        found, are_more = await self._context.book_access.list_menu(reader.address)
        wallets = (reader.address, *(one.wallet for one in found))
        return wallets[:WALLETS_SUMMED_MAX], are_more or len(wallets) > WALLETS_SUMMED_MAX

    async def _list_wallets(self, reader: Reader, chosen: str) -> tuple[tuple[str, bool], ...]:
        found, _ = await self._context.book_access.list_menu(reader.address)
        return choose_wallet(reader.address, [one.wallet for one in found], chosen)


async def read_before(
    read: Callable[[Q], Awaitable[PeriodSums]], query: Q, *, from_ms: int, to_ms: int
) -> PeriodBefore | None:
    """The sums of the period before that of the query; None where they are a lower bound, which nothing is compared with, and for hours, which are kept as days later."""
    if query.step == "hour":
        return None
    sums = await read(replace(query, from_ms=from_ms, to_ms=to_ms))
    if sums.complete_from_ms is not None:
        return None
    return PeriodBefore(rows=sums.rows, from_ms=from_ms, to_ms=to_ms)


def start_of_month(now_ms: int) -> int:
    """The first millisecond of the month of this moment, in UTC."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return int(datetime(now.year, now.month, 1, tzinfo=UTC).timestamp()) * 1000
