"""The public pages: search, one API, one provider, what the gateway takes now, the reference, problems. Read only.

Each asks the same context as its sister under `/api/v2` and hands frozen records to a template; none sends a request to this gateway. Every page is whole without JavaScript.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.discovery.example_responses import write_example_response
from tollway.discovery.listing_view import ListingView
from tollway.discovery.operations import ApiOperation
from tollway.discovery.safe_text import clean_tags
from tollway.discovery.search_text import FILTERS, TAGS_NAMED_MAX
from tollway.errors import Code, Problem, Refusal
from tollway.ids import Address, ListingId
from tollway.registry.catalog import CatalogFacets, ListingPage, ListingQuery
from tollway.registry.listing import list_links
from tollway.registry.metering import offer
from tollway.registry.openapi import parse_yaml_object
from tollway.registry.quality import day_of, list_costs, summarise_days
from tollway.registry.text import join_lines
from tollway.web.api.context import WebContext
from tollway.web.api.discovery_routes import DocumentRoutes
from tollway.web.api.listing_edits import find_public_listing
from tollway.web.api.listing_routes import parse_listing_query
from tollway.web.api.network_routes import describe_networks, describe_status
from tollway.web.api.site_routes import format_links
from tollway.web.http.contract import CONTRACT_PATH
from tollway.web.http.problems import PROBLEM_KINDS, PROBLEM_PAGES, problem_name, status_of
from tollway.web.http.query import QueryModel, errors_by_parameter, read_form_query, read_query
from tollway.web.pages.call_form import WORDS, make_call_form
from tollway.web.pages.kept_call import TARGET_LENGTH_MAX, FilledCall, KeptCall, fill_call, keep_call
from tollway.web.pages.markdown import GUIDE_PATH, read_guides
from tollway.web.pages.public_views import (
    CHIPS_MAX,
    FILTERED_MIN,
    OPERATIONS_SHOWN_MAX,
    PLACEHOLDER_TAGS_MAX,
    describe,
    find_prices,
    fold_text,
    host_of,
    list_choices,
    list_proved_hosts,
    name_network,
    view_calls_by_day,
    view_results,
)
from tollway.web.pages.reference_views import Reference, describe_schema, name_schema, write_schema
from tollway.web.pages.renderer import PageRenderer
from tollway.web.pages.snippets import write_mcp_settings, write_snippets

NO_FACETS = CatalogFacets()
NO_RESULTS = ListingPage(found=(), total=0)


class ListingPageParameters(QueryModel):
    """The query of `/apis/{apiId}`. `operation`: the name of a tool of the listing. `method`, `target`: of the call that the form keeps, where
    the page of a 402 leads here (`page_kept_call`)."""

    operation: Annotated[str, Field(max_length=128)] | None = None
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    target: Annotated[str, Field(max_length=TARGET_LENGTH_MAX)] | None = None


def page_router(context: WebContext, renderer: PageRenderer) -> Router:
    routes = PageRoutes(context, renderer)
    return Router(
        [
            Route("/", routes.show_search, methods=["GET"]),
            Route("/apis/{apiId}", routes.show_listing, methods=["GET"]),
            Route("/providers/{address}", routes.show_provider, methods=["GET"]),
            Route("/status", routes.show_status, methods=["GET"]),
            Route("/docs", routes.show_reference, methods=["GET"]),
            Route(GUIDE_PATH + "{name}", routes.show_guide, methods=["GET"]),
            Route("/docs/operations/{name}", routes.show_operation, methods=["GET"]),
            Route("/docs/schemas/{name}", routes.show_schema, methods=["GET"]),
            Route("/problems", routes.list_problems, methods=["GET"]),
            Route("/problems/{name}", routes.show_problem, methods=["GET"]),
        ]
    )


class PageRoutes:
    """The handlers of the public pages. Many tasks may call them at once."""

    def __init__(self, context: WebContext, renderer: PageRenderer) -> None:
        self._context = context
        self._renderer = renderer
        self._catalog = context.catalog
        self._currencies = tuple(dict.fromkeys(asset.symbol for asset in context.encoder.assets))
        self._name_network = partial(name_network, profiles=context.profiles)
        self._links = format_links()
        self._documents = DocumentRoutes(context)
        self._reference: Reference | None = None
        self._guides = read_guides(renderer.operator.docs_url)

    # ---- Search.

    async def show_search(self, request: Request) -> Response:
        given = read_form_query(request.scope["query_string"])
        query = self._read_search(given)
        errors: dict[str, str] = {}
        page, status = NO_RESULTS, 200
        if isinstance(query, Problem):
            errors, status = errors_by_parameter(query), status_of(query.code)
        else:
            page = await self._catalog.search(query)
        words = given.get("q")
        has_words = words is not None and words.strip() != ""
        facets = await self._catalog.count_facets(words if has_words else None)
        is_empty = not errors and page.total == 0
        every = await self._catalog.count_facets(None) if is_empty and has_words else facets
        asked = query if isinstance(query, ListingQuery) else ListingQuery()
        return self._renderer.respond(
            request,
            "search.j2",
            status=status,
            given=given,
            words=join_lines(given.get("q", "")),
            choices=list_choices(given, facets, self._context.profiles),
            examples=", ".join(clean_tags([tag for tag, _ in facets.tags[:PLACEHOLDER_TAGS_MAX]])),
            found=page,
            tags=clean_tags([tag for tag, _ in every.tags[:TAGS_NAMED_MAX]]),
            has_filters=not FILTERS.isdisjoint(given),
            errors=errors,
            results=view_results(page, asked, list(given.items()), by_day=await self._count_calls(page)),
            chips_max=CHIPS_MAX,
            mcp=write_mcp_settings(
                self._context.public_url,
                self._context.profiles,
                max_price=f"0.05 {self._currencies[0]}" if self._currencies else "",
            ),
            **self._networks(),
            headers={"Link": self._links},
        )

    async def _count_calls(self, page: ListingPage) -> Mapping[ListingId, Sequence[int]]:
        found = [one.listing.id for one in page.found]
        if not found:
            return {}
        return await self._context.quality.count_by_day(found, today=day_of(self._context.now_ms()))

    def _networks(self) -> Mapping[str, Any]:
        """What a row says of networks: nothing where the gateway has one."""
        return {"name_network": self._name_network, "has_networks": len(self._context.profiles) > 1}

    def _read_search(self, given: Mapping[str, str]) -> ListingQuery | Problem:
        """The query of the form: that of `GET /apis`. Where the gateway has one currency, a price needs no other word for it."""
        asked = dict(given)
        if len(self._currencies) == 1 and ("maxPrice" in asked or asked.get("sort") in ("price", "-price")):
            asked.setdefault("currency", self._currencies[0])
        try:
            return parse_listing_query(urlencode(asked).encode())
        except Refusal as refusal:
            return refusal.problem

    # ---- One listing.

    async def show_listing(self, request: Request) -> Response:
        asked = read_query(ListingPageParameters, request.scope["query_string"])
        listing = await find_public_listing(self._catalog, ListingId(request.path_params["apiId"]))
        view = await self._documents.read_view(listing)
        filled = _fill_form(view, asked)
        operation = filled.operation
        today = day_of(self._context.now_ms())
        days = summarise_days(await self._context.quality.read_days(listing.id, today=today), today=today)
        chosen, shown = None if filled.is_whole else operation, view.operations[:OPERATIONS_SHOWN_MAX]
        description = describe(listing)
        target = asked.target if filled.is_whole and asked.target is not None else ""
        return self._renderer.respond(
            request,
            "listing.j2",
            api=listing,
            view=view,
            description=description,
            folded=fold_text(description),
            tags=clean_tags(listing.tags),
            provider_links=list_links(listing),
            host=host_of(listing),
            prices=find_prices(listing, view.operations),
            costs=list_costs(listing, view.quality),
            operations=shown,
            has_filter=len(shown) >= FILTERED_MIN,
            has_one_price=len({offer(one) for one in view.operations}) == 1,
            example=None if operation.is_any else write_example_response(operation),
            chosen=chosen,
            ways=view.options[view.quoted_price],
            profiles=self._context.profiles,
            name_network=self._name_network,
            links={name: url.removeprefix(view.public_url) for name, url in view.links.items()},
            chart=view_calls_by_day(days, series=("succeeded", "failed"), summary=""),
            calls=sum(day.calls for day in days),
            snippets=write_snippets(
                view, operation, target=asked.target if filled.values is not None else None
            ),
            form=make_call_form(view, operation, self._context.profiles, values=filled.values, target=target),
            words=WORDS,
            kept=KeptCall(method=operation.method, target=target) if filled.is_whole else None,
            operation=next((one for one in shown if one is chosen), shown[0]),
        )

    # ---- One provider.

    async def show_provider(self, request: Request) -> Response:
        try:
            provider = Address.parse(request.path_params["address"])
        except ValueError as exc:
            raise Refusal(_NO_PROVIDER) from exc
        given = {"page": page} if (page := read_form_query(request.scope["query_string"]).get("page")) else {}
        query = self._read_search({**given, "provider": str(provider)})
        if isinstance(query, Problem):
            raise Refusal(query)
        page_found = await self._catalog.search(query)
        return self._renderer.respond(
            request,
            "provider.j2",
            path=f"/providers/{provider}",
            provider=str(provider),
            hosts=list_proved_hosts(page_found.found),
            results=view_results(
                page_found, query, list(given.items()), by_day=await self._count_calls(page_found)
            ),
            **self._networks(),
        )

    # ---- The gateway.

    async def show_status(self, request: Request) -> Response:
        networks = zip(describe_status(self._context), describe_networks(self._context), strict=True)
        return self._renderer.respond(
            request, "status.j2", networks=tuple(networks), version=self._context.version
        )

    # ---- The reference.

    async def show_reference(self, request: Request) -> Response:
        reference = await self._read_reference()
        return self._renderer.respond(
            request,
            "reference.j2",
            groups=reference.groups,
            guides=tuple(self._guides.values()),
            guide_path=GUIDE_PATH,
            headers={"Link": self._links},
        )

    async def show_guide(self, request: Request) -> Response:
        guide = self._guides.get(request.path_params["name"])
        if guide is None:
            raise Refusal(_NO_GUIDE)
        return self._renderer.respond(request, "guide.j2", guide=guide)

    async def show_operation(self, request: Request) -> Response:
        operation = (await self._read_reference()).operations.get(request.path_params["name"])
        if operation is None:
            raise Refusal(_NO_REFERENCE)
        return self._renderer.respond(
            request,
            "reference_operation.j2",
            operation=operation,
            name_schema=name_schema,
            describe_schema=describe_schema,
            write_schema=write_schema,
        )

    async def show_schema(self, request: Request) -> Response:
        schema = (await self._read_reference()).schemas.get(request.path_params["name"])
        if schema is None:
            raise Refusal(_NO_REFERENCE)
        return self._renderer.respond(request, "reference_schema.j2", schema=schema)

    async def _read_reference(self) -> Reference:
        """The contract, read with the first request: an idle process needs neither it nor the parser."""
        if self._reference is None:
            self._reference = await asyncio.to_thread(read_reference)
        return self._reference

    # ---- Problems.

    async def list_problems(self, request: Request) -> Response:
        rows = [(problem_name(code), code.value, PROBLEM_KINDS[code]) for code in Code]
        return self._renderer.respond(request, "problems.j2", rows=rows)

    async def show_problem(self, request: Request) -> Response:
        name = request.path_params["name"]
        code = next((code for code in Code if problem_name(code) == name), None)
        if code is None:
            raise Refusal(_NO_PROBLEM)
        return self._renderer.respond(
            request,
            "problem_page.j2",
            code=code.value,
            kind=PROBLEM_KINDS[code],
            page=PROBLEM_PAGES[code],
        )


def read_reference() -> Reference:
    """Reads the file of the contract. It takes milliseconds: call it in a thread."""
    return Reference(parse_yaml_object(CONTRACT_PATH.read_bytes()), name_problem=problem_name)


def _fill_form(view: ListingView, asked: ListingPageParameters) -> FilledCall:
    """The operation of the form and its values: those of the call that the query names, else the example of an operation."""
    kept = None if asked.target is None else keep_call(asked.method, asked.target)
    if kept is not None:
        return fill_call(view.listing, view.operations, kept)
    return FilledCall(operation=_choose_operation(view.operations, asked.operation or None))


def _choose_operation(operations: tuple[ApiOperation, ...], wanted: str | None) -> ApiOperation:
    """The operation with that name; without one, the first. A listing has at least one."""
    found = next((one for one in operations if one.tool == wanted), None)
    if wanted is not None and found is None:
        raise Refusal(_NO_OPERATION)
    return found or operations[0]


_NO_PROVIDER = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="This is no address of a wallet. It has 0x and 40 hex digits.",
)
_NO_PROBLEM = Problem(
    code=Code.ROUTE_NOT_FOUND, detail="No problem has this name. See /problems for all names."
)
_NO_REFERENCE = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="The contract has no operation and no schema with this name. See /docs for all operations.",
)
_NO_GUIDE = Problem(code=Code.ROUTE_NOT_FOUND, detail="No guide has this name. See /docs for all guides.")
_NO_OPERATION = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="The API has no operation with this name. Its page without a query lists all of them.",
)
