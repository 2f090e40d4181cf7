"""The pages of a provider: its listings with their editor, ownership, pause and retirement, and its sales.

Each page asks the same service as its sister under `/api/v2` (`ListingEdits`, `OwnershipChecks`, `PeriodBooks`, `CallHistory`) and shows what that answers to the reader's
wallet. A form that is refused comes back with every field as it was sent.
"""

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.discovery.operations import list_operations
from tollway.discovery.requests import ToolRequest, example_arguments, make_request
from tollway.discovery.safe_text import clean_line
from tollway.errors import Code, EndpointNotAllowed, FieldError, Problem, Refusal
from tollway.gateway.trial import TrialResult
from tollway.identity.http_signatures import encode_base64url
from tollway.ids import CallId, ListingId
from tollway.ledger.history import HistoryQuery
from tollway.ledger.sales import PeriodSums, SalesQuery, SumState
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.outbound.probes import OwnershipEvidence
from tollway.registry.catalog import CreationResponse, ListingMatch
from tollway.registry.listing import Listing
from tollway.registry.listing_patch import parse_form
from tollway.registry.metering import offer
from tollway.registry.text import drop_refused_characters
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.history_routes import ID_LENGTH_MAX
from tollway.web.api.listing_edits import (
    DocumentSearch,
    ListingEdits,
    ListingWriter,
    WrittenListing,
    find_listing,
)
from tollway.web.api.listing_json import etag_of, render_json
from tollway.web.api.listing_routes import LIMIT_MAX
from tollway.web.api.ownership_routes import OwnershipChecks, find_other_owner
from tollway.web.api.sums_routes import SalesParameters, channel_sums_json, make_sales_query
from tollway.web.api.trial_routes import TrialRequests
from tollway.web.http.problems import status_of
from tollway.web.http.query import QueryModel, errors_by_parameter, format_time, read_query, whole_number
from tollway.web.pages.formula_form import (
    CHOSEN_CALL,
    OPERATION_FORMULAS_MAX,
    find_new_row,
    list_calls,
    list_formula_fields,
    show_formulas,
)
from tollway.web.pages.listing_form import (
    FORM_FIELDS,
    TABLE_CALL,
    TABLE_PRICE,
    FormValues,
    describe_document,
    describe_listing,
    group_errors,
    list_differences,
    list_price_rows,
    make_first_values,
    read_values,
    write_members,
)
from tollway.web.pages.my_routes import ListForm, read_call_page
from tollway.web.pages.my_sums_routes import read_before
from tollway.web.pages.my_views import NAME_LENGTH_MAX, ROWS_MAX, ListPages
from tollway.web.pages.page_session import Fields, PageAccess, Reader, read_field, redirect_to
from tollway.web.pages.public_views import name_network
from tollway.web.pages.renderer import HELD_SALES
from tollway.web.pages.selling_views import (
    CHOICES_MAX,
    LISTINGS_MAX,
    count_calls,
    name_networks,
    state_of,
    view_channels,
    view_sales,
    write_sales_csv,
)

LISTINGS = "/my/apis"
SALES = "/my/sales"
SALES_FILE = "/my/sales.csv"
KEY_BYTES = 16
LISTINGS_OFFSET_MAX = 10_000
PRICE_ROWS_MAX = 12
"""Operations in the table of the editor; a page has at most 20 kB."""
METHODS_OFFERED = ("GET", "POST", "PUT", "PATCH", "DELETE")
TRIAL_TEXT_MAX = 4_000
"""Characters of the response to a test call that its page shows."""
_NEW = "/my/apis/new"
_ONE = "/my/apis/{api_id}"


def selling_router(context: WebContext, access: PageAccess) -> Router:
    listings, sales = ListingPages(context, access), SalesPages(context, access)
    return Router(
        [
            access.page(LISTINGS, listings.list_listings),
            access.page(_NEW, listings.show_new),
            access.form(_NEW, listings.publish),
            access.page(_ONE, listings.show_listing),
            access.form(_ONE, listings.save),
            access.form(_ONE + "/status", listings.change_status),
            access.form(_ONE + "/retirement", listings.retire),
            access.form(_ONE + "/ownership", listings.check_ownership),
            access.form(_ONE + "/trial", listings.try_call),
            access.page(SALES, sales.show_sales),
            Route(SALES_FILE, sales.send_file, methods=["GET"]),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownForm:
    """What the editor shows of its form. `key`: the idempotency key of a new listing; `etag`: of the revision that the form shows. `differences`: the fields of
    a stored version that another request wrote since, beside those of the form. `checked`: the result of a dry run."""

    values: FormValues
    key: str = ""
    etag: str = ""
    errors: Mapping[str, str]
    checked: WrittenListing | None = None
    differences: list[tuple[str, str, str]] | None = None
    status: int = 200
    calls: Sequence[str] = ()
    """The operations of the table that was sent. An error of a row has its call as name."""
    search: DocumentSearch | None = None
    """Of a check without a document."""
    new_row: str = ""
    """The first field that a formula has not had before."""

    @property
    def focus(self) -> str:
        """The first field of the page, or row of its table, that has an error, else `new_row`: it gets the focus. Empty where there is none."""
        at, formulas_at = FORM_FIELDS.index("name"), FORM_FIELDS.index("operations")
        fields = (*FORM_FIELDS[at:formulas_at], *list_formula_fields(self.values), *FORM_FIELDS[formulas_at:])
        in_order = (*FORM_FIELDS[:at], *self.calls, *fields)
        return next((name for name in in_order if name in self.errors), self.new_row)

    @property
    def is_secret_lost(self) -> bool:
        """Whether a secret was typed, which no page holds."""
        return bool(self.values["upstreamAuth.value"] or self.values["upstreamAuth.again"])


class ListingPages:
    """The handlers of the pages about listings. Many tasks may call them at once."""

    def __init__(self, context: WebContext, access: PageAccess) -> None:
        self._context = context
        self._edits = ListingEdits(context)
        self._checks = OwnershipChecks(context)
        self._trials = TrialRequests(context)
        self._respond = access.respond

    async def list_listings(self, request: Request, reader: Reader) -> Response:
        offset = read_query(OwnListingParameters, request.scope["query_string"]).offset
        found = await self._context.catalog.list_own(reader.address, limit=LISTINGS_MAX + 1, offset=offset)
        query = make_sales_query(
            read_query(SalesParameters, b""), reader.address, now_ms=self._context.now_ms()
        )
        calls, held = count_calls(await self._context.period_books.sales(query))
        return self._respond(
            request,
            reader,
            "my_apis.j2",
            rows=found[:LISTINGS_MAX],
            calls=calls,
            held=held,
            state_of=state_of,
            is_retired=request.query_params.get("done") == "retired",
            pages=_link_listings(offset, has_more=len(found) > LISTINGS_MAX),
        )

    # ---- A new listing.

    async def show_new(self, request: Request, reader: Reader) -> Response:
        self._edits.check_publisher(reader.address)
        values = make_first_values(currency=self._list_currencies()[0])
        return self._respond_new(request, reader, ShownForm(values=values, key=_draw_key(), errors={}))

    async def publish(self, request: Request, reader: Reader, fields: Fields) -> Response:
        """Checks the form, or publishes it under the key that was drawn with it: a form that is sent twice makes one listing."""
        self._edits.check_publisher(reader.address)
        values: FormValues = read_values(fields)
        key, calls = read_field(fields, "key") or _draw_key(), fields.get(TABLE_CALL, ())
        if new_row := find_new_row(values, fields):
            form = ShownForm(values=values, key=key, errors={}, calls=calls[:PRICE_ROWS_MAX], new_row=new_row)
            return self._respond_new(request, reader, form)
        members, errors = write_members(values, previous=None)
        writer = self._writer(request, reader)
        search = None
        try:
            if errors or read_field(fields, "act") == "check":
                if not values["openapiUrl"] and not values["openapi"]:
                    search = await self._edits.find_document(values["endpoint"], writer)
                values, members = await self._describe(values, members, writer, search)
                preview = await self._edits.preview(members, writer)
                _refuse(errors)
                form = ShownForm(values=values, key=key, errors={}, checked=preview, search=search)
                return self._respond_new(request, reader, form)
            creations = self._context.creations
            begun = await creations.take(key, reader.address, body=render_json(members))
            if isinstance(begun, CreationResponse):
                return redirect_to(f"{LISTINGS}/{begun.listing_id}?done=published")
            async with creations.holding(begun):
                _, members = await self._describe(values, members, writer)
                written = await self._edits.publish(members, writer, begun=begun)
        except (Refusal, EndpointNotAllowed) as refused:
            problem = _problem_of(refused, errors)
            new_key = _draw_key() if problem.code is Code.IDEMPOTENCY_KEY_REUSED else key
            form = _refused_form(values, problem, calls=calls, key=new_key)
            return self._respond_new(request, reader, replace(form, search=search))
        return await self._respond_written(request, reader, written, done="published")

    async def _describe(
        self,
        values: FormValues,
        members: dict[str, Any],
        writer: ListingWriter,
        search: DocumentSearch | None = None,
    ) -> tuple[FormValues, dict[str, Any]]:
        """The form and its members with the document that was found, and with the name and the description that a form without a name has of its document."""
        document = members.get("openapi")
        if search is not None and search.url is not None:
            values = {**values, "openapiUrl": search.url}
            document = search.document
        elif values["name"]:
            return values, members
        elif document is None and values["openapiUrl"]:
            # A refusal has its place among the errors of the form, when the document is read for the listing.
            with contextlib.suppress(Refusal):
                document = await self._edits.read_document(values["openapiUrl"], writer)
        values = describe_document(values, document, host=_read_host(values["endpoint"]))
        given = {name: values[name] for name in ("name", "description", "openapiUrl") if values[name]}
        return values, {**members, **given, **({} if document is None else {"openapi": document})}

    def _respond_new(self, request: Request, reader: Reader, form: ShownForm) -> Response:
        return self._respond(
            request,
            reader,
            "my_api_form.j2",
            status=form.status,
            api=None,
            done="",
            secret="",
            owned_by=None,
            **self._form_records(form, None),
        )

    # ---- A listing of the reader.

    async def show_listing(self, request: Request, reader: Reader) -> Response:
        listing = await self._find_own(request, reader)
        form = ShownForm(values=describe_listing(listing), etag=etag_of(listing, b""), errors={})
        return await self._respond_listing(
            request, reader, listing, form, done=request.query_params.get("done", "")
        )

    async def save(self, request: Request, reader: Reader, fields: Fields) -> Response:
        """Checks the form, or writes it where the listing is still at the revision that the form shows."""
        listing = await self._find_own(request, reader)
        values, etag = read_values(fields, previous=listing), read_field(fields, "etag")
        if new_row := find_new_row(values, fields):
            calls = fields.get(TABLE_CALL, ())[:PRICE_ROWS_MAX]
            form = ShownForm(values=values, etag=etag, errors={}, calls=calls, new_row=new_row)
            return await self._respond_listing(request, reader, listing, form)
        members, errors = write_members(values, previous=listing)
        writer = self._writer(request, reader, if_match=etag or '"none"')
        try:
            self._edits.check_block(reader.address)
            if errors or read_field(fields, "act") == "check":
                preview = await self._edits.preview_patch(listing.id, members, writer, parse=parse_form)
                _refuse(errors)
                form = ShownForm(values=values, etag=etag, errors={}, checked=preview)
                return await self._respond_listing(request, reader, listing, form)
            written = await self._edits.patch(listing.id, members, writer, parse=parse_form)
        except (Refusal, EndpointNotAllowed) as refused:
            problem = _problem_of(refused, errors)
            if problem.code is not Code.PRECONDITION_FAILED:
                form = _refused_form(values, problem, calls=fields.get(TABLE_CALL, ()), etag=etag)
                return await self._respond_listing(request, reader, listing, form)
            listing = await self._find_own(request, reader)
            form = ShownForm(
                values=values,
                etag=etag_of(listing, b""),
                errors={},
                differences=list_differences(describe_listing(listing, calls=list_calls(values)), values),
                status=status_of(problem.code),
            )
            return await self._respond_listing(request, reader, listing, form)
        return await self._respond_written(request, reader, written, done="saved")

    async def change_status(self, request: Request, reader: Reader, fields: Fields) -> Response:
        status = read_field(fields, "status")
        if status not in ("active", "paused"):
            raise Refusal(_NO_STATUS)
        listing = await self._find_own(request, reader)
        self._edits.check_block(reader.address)
        await self._edits.patch(listing.id, {"status": status}, self._writer(request, reader))
        return redirect_to(f"{LISTINGS}/{listing.id}?done={'paused' if status == 'paused' else 'resumed'}")

    async def retire(self, request: Request, reader: Reader, fields: Fields) -> Response:
        """Ends a listing for good. The second form of the page confirms it."""
        if read_field(fields, "confirmed") != "yes":
            raise Refusal(_NOT_CONFIRMED)
        listing = await self._find_own(request, reader)
        await self._edits.retire(listing.id, self._writer(request, reader))
        return redirect_to(f"{LISTINGS}?done=retired")

    async def check_ownership(self, request: Request, reader: Reader, fields: Fields) -> Response:
        listing = await self._find_own(request, reader)
        checked = await self._checks.check(
            listing.id, reader.address, client_address=client_address_of(request)
        )
        form = ShownForm(values=describe_listing(listing), etag=etag_of(listing, b""), errors={})
        return await self._respond_listing(request, reader, listing, form, evidence=checked.evidence)

    async def try_call(self, request: Request, reader: Reader, fields: Fields) -> Response:
        """Sends one request to the API without a payment, and shows its response or the reason of its failure."""
        listing = await self._find_own(request, reader)
        method, path, body = (read_field(fields, name) for name in ("method", "path", "body"))
        members = {"method": method, "path": path, **({"body": body} if body else {})}
        shown = ShownTrial(method=method, path=path, body=body)
        try:
            entry = await self._trials.find_entry(listing.id, reader.address)
            result = await self._trials.run(request, entry, members)
            shown = replace(shown, result=result, text=_read_text(result))
        except (Refusal, EndpointNotAllowed) as refused:
            problem = _problem_of(refused, ())
            found = [f"{(error.pointer or '').removeprefix('/')} {error.detail}" for error in problem.errors]
            shown = replace(shown, refusal="; ".join(found) or problem.detail)
        form = ShownForm(values=describe_listing(listing), etag=etag_of(listing, b""), errors={})
        return await self._respond_listing(request, reader, listing, form, trial=shown)

    async def _respond_written(
        self, request: Request, reader: Reader, written: WrittenListing, *, done: str
    ) -> Response:
        """Leads to the page of the listing. Where the write made a secret, this response is that page, and the only one with the secret."""
        listing = written.listing
        if written.new_secret is None:
            return redirect_to(f"{LISTINGS}/{listing.id}?done={done}")
        form = ShownForm(values=describe_listing(listing), etag=etag_of(listing, b""), errors={})
        secret = encode_base64url(written.new_secret)
        return await self._respond_listing(request, reader, listing, form, done=done, secret=secret)

    async def _respond_listing(
        self,
        request: Request,
        reader: Reader,
        listing: Listing,
        form: ShownForm,
        *,
        done: str = "",
        secret: str = "",
        evidence: OwnershipEvidence | None = None,
        trial: "ShownTrial | None" = None,
    ) -> Response:
        challenge, known = await self._checks.read(listing)
        is_proved = known is not None and known.is_verified
        return self._respond(
            request,
            reader,
            "my_api_form.j2",
            status=form.status,
            api=listing,
            state=state_of(listing),
            document_operations=None
            if listing.openapi is None
            else sum(not one.is_any for one in list_operations(listing)),
            challenge=challenge,
            known=known,
            is_proved=is_proved,
            owned_by=None if is_proved else await find_other_owner(self._context, listing),
            evidence={} if evidence is None else evidence.of,
            done=done,
            secret=secret,
            trial=trial or _suggest_trial(listing),
            methods=METHODS_OFFERED,
            **self._form_records(form, listing),
        )

    # ---- What they share.

    async def _find_own(self, request: Request, reader: Reader) -> Listing:
        """The listing of the reader. Raises Refusal (404) for one of another wallet."""
        listing = await find_listing(self._context.catalog, ListingId(request.path_params["api_id"]))
        if listing.provider != reader.address:
            raise Refusal(_NOT_YOURS)
        return listing

    def _form_records(self, form: ShownForm, stored: Listing | None) -> dict[str, object]:
        """`price_rows`: the operations of the version that was checked, else of the stored one, else those that the form was sent with."""
        source = stored if form.checked is None else form.checked.listing
        known = () if source is None else list_operations(source)[:PRICE_ROWS_MAX]
        named = [(f"{one.method} {one.path}", one.summary) for one in known if not one.is_any]
        sent = [(call, "") for call in form.calls]
        formulas = (
            {
                f"{one.method} {one.path}": offer(one).describe(source.currency)
                for one in source.operations
                if one.metering is not None
            }
            if source is not None
            else {}
        )
        rows, rest = list_price_rows(form.values, dict([*sent, *named]).items(), formulas=formulas)
        metered = list_calls(form.values)
        return {
            "form": form,
            "price_rows": rows,
            "price_ids": {one.call: one.id for one in rows},
            "other_operations": rest,
            "table_fields": (TABLE_CALL, TABLE_PRICE),
            "formulas": show_formulas(form.values, {one.call: one.price for one in rows}),
            "formula_fields": list_formula_fields(form.values),
            "chosen_field": CHOSEN_CALL,
            "choices": [one.call for one in rows if one.call not in metered]
            if len(metered) < OPERATION_FORMULAS_MAX
            else [],
            "currencies": self._list_currencies(),
            "networks": name_networks(self._context.draft_rules, self._context.profiles),
            "name_network": partial(name_network, profiles=self._context.profiles),
            "sold": () if form.checked is None else list_operations(form.checked.listing),
            "sold_max": PRICE_ROWS_MAX,
        }

    def _list_currencies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(asset.symbol for asset in self._context.draft_rules.assets))

    def _writer(self, request: Request, reader: Reader, *, if_match: str | None = None) -> ListingWriter:
        return ListingWriter(
            provider=reader.address, client_address=client_address_of(request), if_match=if_match
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTrial:
    """A test call in the editor: its request, then its response (`text`: the shown part of its body, empty where it is no text) or why there is none."""

    method: str
    path: str
    body: str
    result: TrialResult | None = None
    text: str = ""
    refusal: str = ""


def _suggest_trial(listing: Listing) -> ShownTrial:
    """The example request of the first operation."""
    first = list_operations(listing)[0]
    arguments = None if first.is_any else example_arguments(first)
    made = None if arguments is None else make_request(first, arguments)
    if isinstance(made, ToolRequest):
        return ShownTrial(method=made.method, path=made.target, body=made.body.decode(errors="replace"))
    return ShownTrial(method="GET" if first.is_any else first.method, path=first.path, body="")


def _read_text(result: TrialResult) -> str:
    try:
        return drop_refused_characters(result.body.decode())[:TRIAL_TEXT_MAX]
    except UnicodeDecodeError:
        return ""


def _read_host(endpoint: str) -> str:
    """The host of an endpoint; the text itself where it has none, and is refused."""
    parsed = parse_endpoint(endpoint, allow_private=True)
    return parsed.host if isinstance(parsed, Endpoint) else endpoint


def _draw_key() -> str:
    return f"page-{secrets.token_hex(KEY_BYTES)}"


def _refuse(errors: tuple[FieldError, ...]) -> None:
    if errors:
        raise Refusal(Problem(code=Code.VALIDATION_FAILED, detail="The form has errors.", errors=errors))


def _problem_of(refused: Refusal | EndpointNotAllowed, errors: tuple[FieldError, ...]) -> Problem:
    """The problem of a refused form, with the errors of its own texts."""
    if isinstance(refused, EndpointNotAllowed):
        error = FieldError(code=refused.code.value, detail=str(refused), pointer="/endpoint")
        return Problem(code=refused.code, detail=str(refused), errors=(*errors, error))
    problem = refused.problem
    if not errors or errors == problem.errors:
        return problem
    return Problem(code=problem.code, detail=problem.detail, errors=(*errors, *problem.errors))


def _refused_form(
    values: FormValues, problem: Problem, *, calls: Sequence[str], key: str = "", etag: str = ""
) -> ShownForm:
    calls = calls[:PRICE_ROWS_MAX]
    errors = group_errors(problem.errors, values, calls=calls) if problem.errors else {"": problem.detail}
    return ShownForm(
        values=values, key=key, etag=etag, errors=errors, calls=calls, status=status_of(problem.code)
    )


class OwnListingParameters(QueryModel):
    """The query of `/my/apis`. The catalog has no cursor, so its pages are by offset. `done`: what the form before has done."""

    offset: Annotated[int, whole_number(0, LISTINGS_OFFSET_MAX)] = 0
    done: str = ""


def _link_listings(offset: int, *, has_more: bool) -> ListPages:
    """The pages beside that of `/my/apis` at this offset."""

    def link(start: int) -> str:
        return f"{LISTINGS}?offset={start}" if start else LISTINGS

    return ListPages(
        newer=link(max(0, offset - LISTINGS_MAX)) if offset else None,
        older=link(offset + LISTINGS_MAX) if has_more else None,
    )


_NOT_YOURS = Problem(code=Code.API_NOT_FOUND, detail="None of your APIs has this id. /my/apis lists them.")
_NO_STATUS = Problem(
    code=Code.VALIDATION_FAILED, detail="The form names no status. Open the page of the API and choose one."
)
_NOT_CONFIRMED = Problem(
    code=Code.VALIDATION_FAILED,
    detail="The retirement was not confirmed, and nothing was changed. Open the page of the API and confirm it.",
)


# ---- Sales.


class SalesPageParameters(SalesParameters):
    """The query of `/my/sales`: the parameters of `GET /sales`, and one state in place of all. `before`: the place in the list of held calls."""

    state: Literal["held"] | None = None
    before: Annotated[CallId, Field(max_length=ID_LENGTH_MAX)] | None = None


class SalesPages:
    """The handlers of the pages about sales. Many tasks may call them at once."""

    def __init__(self, context: WebContext, access: PageAccess) -> None:
        self._context = context
        self._access = access
        self._respond = access.respond

    async def show_sales(self, request: Request, reader: Reader) -> Response:
        now_ms = self._context.now_ms()
        form = ListForm.read(request, now_ms=now_ms)
        parameters, errors = form.parse(SalesPageParameters)
        query = None
        if parameters is not None:
            try:
                query = make_sales_query(parameters, reader.address, now_ms=now_ms)
            except Refusal as refusal:
                errors = errors_by_parameter(refusal.problem)
        if parameters is not None and query is not None and parameters.state == "held":
            return await self._show_held(request, reader, form, parameters)
        books = self._context.period_books
        sums = PeriodSums(rows=()) if query is None else await books.sales(query)
        before = None
        if query is not None and sums.rows:
            from_ms = max(0, 2 * query.from_ms - query.to_ms)
            before = await read_before(books.sales, query, from_ms=from_ms, to_ms=query.from_ms)
        listings = await self._list_listings(reader)
        profiles, kept = self._context.profiles, form.keep("step", "from", "to")
        return self._respond(
            request,
            reader,
            "my_sales.j2",
            status=status_of(Code.VALIDATION_FAILED) if errors else 200,
            **_form_records(form, listings, errors),
            assets=()
            if query is None
            else view_sales(sums, query, profiles, kept=kept, listings=listings, before=before),
            period=None if query is None else _describe_period(query),
            as_of=format_time(now_ms if sums.as_of_ms is None else min(now_ms, sums.as_of_ms)),
            complete_from=None if sums.complete_from_ms is None else format_time(sums.complete_from_ms),
            export=form.export(SALES_FILE),
            channels=view_channels(
                await self._context.call_history.sum_channels(reader.address),
                self._context.find_asset,
                profiles,
            ),
        )

    async def _show_held(
        self, request: Request, reader: Reader, form: ListForm, parameters: SalesPageParameters
    ) -> Response:
        """Calls without an outcome, which the provider decides on the page of each."""
        page, pages = await read_call_page(
            self._context.call_history,
            HistoryQuery(
                wallet=reader.address,
                role="provider",
                listing_id=parameters.listing_id,
                status="unknown",
                from_ms=parameters.from_ms,
                to_ms=form.bound(parameters.to_ms),
                before=parameters.before,
                limit=ROWS_MAX,
            ),
            form.links(SALES),
        )
        kept = form.keep("apiId", "from", "to")
        export = ListForm(given={"role": "provider", "status": "unknown", **kept}, as_of_ms=0)
        return self._respond(
            request,
            reader,
            "my_held.j2",
            current=HELD_SALES,
            **_form_records(form, await self._list_listings(reader), {}),
            rows=page.calls,
            total=page.total,
            is_lower_bound=page.is_lower_bound,
            pages=pages,
            export=export.export("/my/calls.csv"),
            sums_href=f"{SALES}?{urlencode(kept)}" if kept else SALES,
        )

    async def send_file(self, request: Request) -> Response:
        """The sums on the screen as CSV. Raises Refusal without a session, and for a filter that is not understood."""
        identity = await self._access.authenticate(request)
        now_ms = self._context.now_ms()
        parameters = read_query(SalesPageParameters, request.scope["query_string"])
        query = make_sales_query(parameters, identity.address, now_ms=now_ms)
        sums = await self._context.period_books.sales(query)
        only: SumState | None = parameters.state
        money = () if only else await self._context.call_history.sum_channels(identity.address)
        channels = channel_sums_json(money, self._context.find_asset)
        name = f"tollway-sales-{format_time(now_ms)[:19].replace(':', '')}Z.csv"
        return Response(
            "".join(write_sales_csv(sums, query, channels=channels, only=only)),
            media_type="text/csv; charset=utf-8; header=present",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    async def _list_listings(self, reader: Reader) -> tuple[ListingMatch, ...]:
        return await self._context.catalog.list_own(reader.address, limit=LIMIT_MAX, offset=0)


def _form_records(
    form: ListForm, listings: Sequence[ListingMatch], errors: Mapping[str, str]
) -> Mapping[str, Any]:
    """What the form of the sales holds. `apis`: id and name of those that it offers."""
    chosen = form.given.get("apiId", "")
    choices = [
        (one.listing.id, clean_line(one.listing.name, NAME_LENGTH_MAX) or one.listing.id)
        for one in listings[:CHOICES_MAX]
    ]
    if chosen and chosen not in dict(choices):
        choices.append((ListingId(chosen), clean_line(chosen, NAME_LENGTH_MAX)))
    kept = form.keep("apiId", "from", "to")
    return {
        "given": form.given,
        "errors": errors,
        "apis": choices,
        "has_filters": bool(kept),
        "held_href": f"{SALES}?{urlencode({'state': 'held', **kept})}",
    }


def _describe_period(query: SalesQuery) -> tuple[str, str]:
    """The first moment of the range, and the last millisecond in it."""
    return format_time(query.from_ms), format_time(query.to_ms - 1)
