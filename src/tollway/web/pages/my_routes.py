"""The pages of a signed-in reader about calls, payments and viewers: `/my/calls`, the ticket of a call, `/my/credit`, `/my/wallets`. And the way in: `/signin`, `/signout`.

Each page asks the same store as its sister under `/api/v2` and shows what that answers to the reader's wallet. The cookie counts on these paths alone. A GET changes
nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlencode

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.errors import Code, Problem, Refusal
from tollway.identity.sessions import SIGN_IN_PAGE_PATH
from tollway.identity.viewers import DAY_MS
from tollway.ids import Address
from tollway.ledger.history import CallHistory, HistoryPage, HistoryQuery, ListedPayment, PaymentQuery
from tollway.ledger.records import (
    SETTLED_RAILS,
    CallRecord,
    CallState,
    Payment,
    is_charged_by_provider,
)
from tollway.money import LEDGER_DECIMALS_MAX, format_decimal
from tollway.web.api.auth_routes import charge_sign_in, client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.history_routes import (
    HistoryFilters,
    PaymentFilters,
    call_json,
    call_status,
    decide_call,
    find_call,
    find_sold_call,
    http_status,
    is_held_by_restore,
    name_quantities,
    parse_transaction,
    payment_members,
)
from tollway.web.api.viewer_routes import parse_viewer, read_until
from tollway.web.http.problems import status_of
from tollway.web.http.query import (
    QueryModel,
    errors_by_parameter,
    format_time,
    parse_time,
    parsed,
    read_form_query,
    read_query,
)
from tollway.web.pages.my_views import (
    PLACE_FIELDS,
    ROWS_MAX,
    ListLinks,
    ListPages,
    choose_wallet,
    link_book,
    link_call,
    link_payment,
    list_steps,
    stamp_of,
    view_amounts,
)
from tollway.web.pages.page_session import (
    PAGE_COOKIE,
    Fields,
    PageAccess,
    Reader,
    read_field,
    read_signed_message,
    redirect_to,
)
from tollway.web.pages.public_views import name_network
from tollway.web.pages.refund_pages import describe_refund_form

HOME = "/my"
SIGNED = "signed"
"""The parameter of `/signin` after its form: without a session there, the browser did not keep the cookie."""
SUGGESTED_DAYS = 365
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
F = TypeVar("F", bound=QueryModel)
_LOCAL_PATH = re.compile(r"/my(?:[/?][A-Za-z0-9_.~!$&'()*+,;=:@%/?-]*)?")


def my_router(context: WebContext, access: PageAccess) -> Router:
    """The routes. `context`: its requests are authenticated by `access`."""
    pages = BookPages(context, access)
    door = SignInPages(context, access)
    return Router(
        [
            Route(SIGN_IN_PAGE_PATH, door.show_sign_in, methods=["GET"]),
            Route(SIGN_IN_PAGE_PATH, door.sign_in, methods=["POST"]),
            access.form("/signout", door.sign_out),
            access.page("/my/calls", pages.list_calls),
            access.page("/my/calls/{call_id}", pages.show_call),
            access.form("/my/calls/{call_id}/resolution", pages.resolve),
            access.page("/my/credit", pages.list_payments),
            access.page("/my/credit/{transaction}", pages.show_payment),
            access.page("/my/wallets", pages.show_wallets),
            access.form("/my/wallets", pages.allow_viewer),
            access.form("/my/wallets/withdrawal", pages.withdraw_viewer),
            access.form("/my/wallets/refusal", pages.decline_wallet),
        ]
    )


class SignInPages:
    """The way in and out. Many tasks may call its handlers at once."""

    def __init__(self, context: WebContext, access: PageAccess) -> None:
        self._context = context
        self._access = access

    async def show_sign_in(self, request: Request) -> Response:
        """The form; or the way back for a reader with a session. `signed`: the browser comes from a form that opened one."""
        there = choose_destination(request.query_params.get("to", ""))
        if await self._access.find_reader(request) is not None:
            return redirect_to(there)
        return self._access.renderer.respond_private(
            request,
            "signin.j2",
            account=None,
            destination=there,
            uri=self._access.sign_in.uri,
            is_cookie_lost=SIGNED in request.query_params,
        )

    async def sign_in(self, request: Request) -> Response:
        """Opens a session for the wallet that signed the message. The form needs the origin and the single-use nonce of the message."""
        await charge_sign_in(self._context.sign_in_limit, "page", request)
        fields = await self._access.read_first_form(request)
        message, signature = read_signed_message(fields)
        session = await self._access.sign_in.open_session(
            text=message,
            signature=signature,
            client_address=client_address_of(request),
            replaced=PAGE_COOKIE.read(request),
        )
        there = choose_destination(read_field(fields, "to"))
        # The page of the sign-in sees whether the browser kept the cookie, and leads on.
        response = redirect_to(f"{SIGN_IN_PAGE_PATH}?{urlencode({SIGNED: 'yes', 'to': there})}")
        response.headers["Set-Cookie"] = PAGE_COOKIE.set(session.token, max_age_s=session.expires_in_s)
        return response

    async def sign_out(self, request: Request, reader: Reader, fields: Fields) -> Response:
        await self._access.sign_in.close_session(reader.token)
        response = redirect_to("/")
        response.headers["Set-Cookie"] = PAGE_COOKIE.clear()
        return response


def choose_destination(path: str) -> str:
    """The page after a sign-in: a path of the signed-in pages, and no other address."""
    # A browser resolves dot segments, also encoded ones: such a path could lead to the response of an API.
    segments = unquote(path.partition("?")[0]).split("/")
    is_own = _LOCAL_PATH.fullmatch(path) and not {".", ".."} & set(segments)
    return path if is_own else HOME


class BookPages:
    """The handlers of the pages about calls, payments and viewers. Many tasks may call them at once."""

    def __init__(self, context: WebContext, access: PageAccess) -> None:
        self._context = context
        self._history = context.call_history
        self._respond = access.respond

    # ---- Calls.

    async def list_calls(self, request: Request, reader: Reader) -> Response:
        form = ListForm.read(request, now_ms=self._context.now_ms())
        filters, errors = form.parse(HistoryFilters)
        page, owner = HistoryPage(calls=(), total=0), reader.address
        pages = ListPages(newer=None, older=None)
        if filters is not None:
            owner = await self._context.book_access.resolve_wallet(reader.address, filters.wallet)
            query = {**dict(filters), "wallet": owner, "to_ms": form.bound(filters.to_ms)}
            page, pages = await read_call_page(
                self._history, HistoryQuery(**query, limit=ROWS_MAX), form.links("/my/calls")
            )
        return self._respond(
            request,
            reader,
            "my_calls.j2",
            status=status_of_form(errors),
            **await self._form_records(reader, form, errors, path="/my/calls"),
            rows=page.calls,
            link_call=partial(link_call, wallet=other_wallet(owner, reader)),
            http_status=http_status,
            stamp_of=stamp_of,
            total=page.total,
            is_lower_bound=page.is_lower_bound,
            pages=pages,
            export=form.export("/my/calls.csv"),
        )

    async def show_call(self, request: Request, reader: Reader) -> Response:
        owner = await self._find_owner(request, reader)
        call = await find_call(self._history, request.path_params["call_id"], owner, refusal=NOT_YOUR_CALL)
        can_resolve = call.provider == reader.address and call.state is CallState.UNKNOWN
        wallet, profiles = other_wallet(owner, reader), self._context.profiles
        profile = None if call.chain_id is None else profiles.get(call.chain_id)
        return self._respond(
            request,
            reader,
            "my_call.j2",
            call=call,
            steps=list_steps(call),
            stamp=stamp_of(call),
            status_name=call_status(call),
            quantities=name_quantities(call),
            came_back=format_decimal(
                call.price_units - call.due_units, decimals=min(call.decimals, LEDGER_DECIMALS_MAX)
            ),
            http_status=http_status(call),
            network=None if call.chain_id is None else name_network(call.chain_id, profiles),
            transaction_href=None
            if profile is None or call.tx_hash is None
            else profile.link_transaction(call.tx_hash),
            block=await self._find_block(call),
            refund=call_json(call, self._context.find_asset).get("refund"),
            refund_href=None
            if profile is None or call.refund is None
            else profile.link_transaction(call.refund.tx_hash),
            refund_form=await describe_refund_form(call, reader.address, self._context),
            is_credit=call.rail not in SETTLED_RAILS or call.tx_hash is not None,
            is_settling=is_charged_by_provider(call.state, call.upstream_status),
            can_resolve=can_resolve,
            charge_fault=await self._context.held_calls.find_charge_fault(
                call, client_address=client_address_of(request)
            )
            if can_resolve
            else None,
            calls_href=link_book("/my/calls", wallet, role="provider" if call.provider == owner else "payer"),
            receipt_href=link_book(f"{link_call(call.id, None)}/receipt", wallet),
        )

    async def _find_block(self, call: CallRecord) -> int | None:
        """The block of the transaction of a call."""
        if call.payer is None or call.tx_hash is None:
            return None
        payments = await self._history.payments_in(call.payer, call.tx_hash)
        return next((one.block_number for one in payments if one.chain_id == call.chain_id), None)

    async def resolve(self, request: Request, reader: Reader, fields: Fields) -> Response:
        """The provider's decision about a call without an outcome. The second form of the page confirms it."""
        outcome = read_field(fields, "outcome")
        if outcome not in ("consumed", "released") or read_field(fields, "confirmed") != "yes":
            raise Refusal(_NO_OUTCOME)
        call_id = request.path_params["call_id"]
        call = await find_sold_call(self._history, call_id, reader.address, refusal=NOT_YOUR_CALL)
        await decide_call(
            self._context.held_calls,
            self._history,
            call,
            CallState(outcome),
            client_address=client_address_of(request),
        )
        return redirect_to(link_call(call.id, None))

    # ---- Payments.

    async def list_payments(self, request: Request, reader: Reader) -> Response:
        form = ListForm.read(request, now_ms=self._context.now_ms())
        filters, errors = form.parse(PaymentFilters)
        rows: tuple[ListedPayment, ...] = ()
        owner, pages = reader.address, ListPages(newer=None, older=None)
        if filters is not None:
            owner = await self._context.book_access.resolve_wallet(reader.address, filters.wallet)
            fields = {**dict(filters), "wallet": owner, "to_ms": form.bound(filters.to_ms)}
            query = PaymentQuery(**fields, limit=ROWS_MAX)
            rows = await self._history.read_payments(query)
            last = await self._history.find_last_payment(query)
            pages = form.links("/my/credit").by_place(
                here=query.before,
                newer=await self._history.find_newer_payment_place(query),
                older=None if last is None else last.place,
            )
        described = [
            self._describe(one.payment, is_restored=one.is_restored, is_held_by_call=one.has_unknown_call)
            for one in rows
        ]
        return self._respond(
            request,
            reader,
            "my_credit.j2",
            status=status_of_form(errors),
            **await self._form_records(reader, form, errors, path="/my/credit"),
            rows=described,
            amounts=view_amounts(described, self._context.find_asset),
            **self._payment_functions(other_wallet(owner, reader)),
            pages=pages,
            export=form.export("/my/credit.csv"),
        )

    async def show_payment(self, request: Request, reader: Reader) -> Response:
        owner = await self._find_owner(request, reader)
        tx_hash = parse_transaction(request.path_params["transaction"])
        payments = await self._history.payments_in(owner, tx_hash)
        if not payments:
            raise Refusal(_NO_PAYMENT)
        is_restored = await is_held_by_restore(payments, self._context.payment_ledger)
        wallet = other_wallet(owner, reader)
        shown = []
        for payment in payments:
            unknown = await self._history.unknown_calls(payment.id, limit=1)
            row = self._describe(payment, is_restored=is_restored, is_held_by_call=bool(unknown))
            shown.append((row, await self._history.calls_of(payment.id, limit=ROWS_MAX)))
        return self._respond(
            request,
            reader,
            "my_payment.j2",
            payments=shown,
            **self._payment_functions(wallet),
            link_call=partial(link_call, wallet=wallet),
            calls_max=ROWS_MAX,
            payments_href=link_book("/my/credit", wallet),
        )

    def _describe(
        self, payment: Payment, *, is_restored: bool, is_held_by_call: bool
    ) -> tuple[Payment, Mapping[str, str | None]]:
        """A payment and its members under `/api/v2`."""
        find_asset = self._context.find_asset
        return payment, payment_members(
            payment, find_asset, is_restored=is_restored, is_held_by_call=is_held_by_call
        )

    def _payment_functions(self, wallet: Address | None) -> Mapping[str, Any]:
        """`wallet`: whose books have the payments, None for the reader's own."""
        profiles = self._context.profiles
        return {
            "find_asset": self._context.find_asset,
            "profiles": profiles,
            "name_network": partial(name_network, profiles=profiles),
            "link_payment": partial(link_payment, wallet=wallet),
        }

    # ---- Viewers.

    async def show_wallets(self, request: Request, reader: Reader) -> Response:
        return await self._respond_wallets(request, reader)

    async def allow_viewer(self, request: Request, reader: Reader, fields: Fields) -> Response:
        given = {name: read_field(fields, name) for name in ("address", "until")}
        try:
            viewer = parse_viewer(given["address"], reader.address)
            until_ms = read_until(
                {"until": end_of_day(given["until"])},
                now_ms=self._context.now_ms(),
                days_max=self._context.limits.viewer_days_max,
            )
            await self._context.book_access.allow(
                reader.address, viewer, until_ms=until_ms, client_address=client_address_of(request)
            )
        except Refusal as refusal:
            if refusal.problem.code is not Code.VALIDATION_FAILED:
                raise
            errors = _errors_by_field(refusal.problem)
            return await self._respond_wallets(request, reader, given=given, errors=errors)
        return redirect_to("/my/wallets")

    async def withdraw_viewer(self, request: Request, reader: Reader, fields: Fields) -> Response:
        viewer = parse_viewer(read_field(fields, "address"), reader.address)
        await self._context.book_access.withdraw(reader.address, viewer)
        return redirect_to("/my/wallets")

    async def decline_wallet(self, request: Request, reader: Reader, fields: Fields) -> Response:
        wallet = parse_viewer(read_field(fields, "address"), reader.address)
        await self._context.book_access.decline(reader.address, wallet)
        return redirect_to("/my/wallets")

    async def _respond_wallets(
        self,
        request: Request,
        reader: Reader,
        *,
        given: Mapping[str, str] | None = None,
        errors: Mapping[str, str] | None = None,
    ) -> Response:
        viewers = await self._context.book_access.list_viewers(reader.address)
        wallets, are_more = await self._context.book_access.list_menu(reader.address)
        days_max = self._context.limits.viewer_days_max
        suggested = suggest_until(self._context.now_ms(), days_max=days_max)
        return self._respond(
            request,
            reader,
            "my_wallets.j2",
            status=status_of_form(errors or {}),
            viewers=viewers,
            wallets=wallets,
            are_more=are_more,
            days_max=days_max,
            suggested_until=suggested,
            given=given or {"address": "", "until": suggested},
            errors=errors or {},
        )

    # ---- What they share.

    async def _find_owner(self, request: Request, reader: Reader) -> Address:
        """Whose books a page shows: the reader's, or those of the wallet in `wallet`, which has named the reader."""
        named = request.query_params.get("wallet")
        if not named:
            return reader.address
        try:
            return await self._context.book_access.resolve_wallet(reader.address, Address.parse(named))
        except ValueError as exc:
            raise Refusal(_NO_WALLET) from exc

    async def _form_records(
        self, reader: Reader, form: "ListForm", errors: Mapping[str, str], *, path: str
    ) -> Mapping[str, Any]:
        """What the form of a list holds. `wallets`: whose books the reader may read. `all_href`: the list of that wallet without a filter."""
        wallets, _ = await self._context.book_access.list_menu(reader.address)
        chosen = form.given.get("wallet", str(reader.address))
        return {
            "given": form.given,
            "errors": errors,
            "wallets": choose_wallet(reader.address, [one.wallet for one in wallets], chosen),
            "has_filters": bool(form.keep("apiId", "status", "from", "to")),
            "all_href": f"{path}?{urlencode({'role': 'payer', **form.keep('role', 'wallet')})}",
        }


async def read_call_page(
    history: CallHistory, query: HistoryQuery, links: ListLinks
) -> tuple[HistoryPage, ListPages]:
    """A page of calls, and the addresses of the pages beside it."""
    page = await history.history(replace(query, limit=query.limit + 1))
    calls = page.calls[: query.limit]
    pages = links.by_place(
        here=query.before,
        newer=None if query.before is None else await history.find_newer_place(query),
        older=calls[-1].id if len(page.calls) > query.limit else None,
    )
    return replace(page, calls=calls), pages


@dataclass(frozen=True, slots=True, kw_only=True)
class ListForm:
    """The form of a list and its place in the list. `given`: the fields that are not empty, with days as `YYYY-MM-DD` in UTC. `as_of_ms`: the moment of the first page."""

    given: Mapping[str, str]
    as_of_ms: int

    @classmethod
    def read(cls, request: Request, *, now_ms: int) -> "ListForm":
        pairs = read_form_query(request.scope["query_string"])
        as_of = pairs.pop("asOf", "")
        moment = read_query(ListMoment, urlencode({"asOf": as_of}).encode() if as_of else b"")
        as_of_ms = now_ms if moment.as_of_ms is None else min(moment.as_of_ms, now_ms)
        return cls(given=pairs, as_of_ms=as_of_ms)

    def parse(self, model: type[F]) -> tuple[F | None, Mapping[str, str]]:
        """The filter of the list under `/api/v2`; None, with a sentence for each field, where it would refuse these."""
        try:
            return read_query(model, urlencode(self.as_query()).encode()), {}
        except Refusal as refusal:
            return None, errors_by_parameter(refusal.problem)

    def links(self, path: str) -> ListLinks:
        return ListLinks(self.given, path=path, as_of_ms=self.as_of_ms)

    def bound(self, to_ms: int | None) -> int:
        """The end of the list: that of the filter, and not after the first page."""
        return self.as_of_ms if to_ms is None else min(to_ms, self.as_of_ms)

    def export(self, path: str) -> str:
        """The path of the file with the same filter, from its first row on."""
        query = urlencode({name: text for name, text in self.as_query().items() if name not in PLACE_FIELDS})
        return f"{path}?{query}" if query else path

    def keep(self, *names: str) -> Mapping[str, str]:
        """These fields, those that are not empty."""
        return {name: self.given[name] for name in names if name in self.given}

    def as_query(self) -> Mapping[str, str]:
        """The fields as the parameters of `/api/v2`: a day begins at its first and ends at its last millisecond in UTC."""
        query = dict(self.given)
        if _DAY.fullmatch(query.get("from", "")):
            query["from"] += "T00:00:00.000Z"
        if "to" in query:
            query["to"] = end_of_day(query["to"])
        return query


def suggest_until(now_ms: int, *, days_max: int) -> str:
    """The day until which the command of the page lets the reader read: a year from now, or the last day that the gateway allows to its end."""
    return format_time(now_ms + min(SUGGESTED_DAYS, max(days_max - 1, 0)) * DAY_MS)[:10]


def end_of_day(text: str) -> str:
    """The last millisecond of a day in UTC; another text as it is."""
    return f"{text}T23:59:59.999Z" if _DAY.fullmatch(text) else text


class ListMoment(QueryModel):
    """The moment of the first page of a list."""

    as_of_ms: Annotated[int | None, parsed(parse_time)] = Field(None, alias="asOf")


def other_wallet(owner: Address, reader: Reader) -> Address | None:
    """The wallet whose books the reader sees; None for its own."""
    return None if owner == reader.address else owner


def status_of_form(errors: Mapping[str, str]) -> int:
    return status_of(Code.VALIDATION_FAILED) if errors else 200


def _errors_by_field(problem: Problem) -> Mapping[str, str]:
    """The sentences of a refused form, by the name of the field; under an empty name what belongs to none."""
    if not problem.errors:
        return {"": problem.detail}
    return {
        (error.pointer or f"/{error.parameter or ''}").removeprefix("/"): error.detail
        for error in reversed(problem.errors)
    }


NOT_YOURS = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="There is no such page for this wallet. To read the books of another wallet, let it name you: `tollway wallet show-to` there, or its page /my/wallets.",
)
"""The refusal of `wallet` on a page. `/api/v2` says 403 `not_viewer` to a program that has signed in with its key; a page has a link that was shared or
guessed, and says the same of a wallet without calls as of every address that leads nowhere."""
NOT_YOUR_CALL = Problem(
    code=Code.CALL_NOT_FOUND,
    detail="The wallet of this session has no such call. Check the id. The call is shown to the wallet that paid it, to its provider, and to wallets that these let read their books.",
)
_NO_OUTCOME = Problem(
    code=Code.VALIDATION_FAILED,
    detail="The form names no outcome, or it was not confirmed. Open the page of the call and choose one.",
)
_NO_PAYMENT = Problem(
    code=Code.PAYMENT_NOT_FOUND,
    detail="The ledger has no payment of this wallet in this transaction. A payment is recorded when a call shows it first.",
)
_NO_WALLET = Problem(
    code=Code.VALIDATION_FAILED, detail="`wallet` is no address of a wallet. It has 0x and 40 hex digits."
)
