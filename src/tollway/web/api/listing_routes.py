"""The routes of listings: list, publish, read, edit, retire.

A request runs in this order: authentication, listing, permission, body, checks of the endpoint. The rules are in `registry`. A response never contains the
upstream secret.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.errors import Code, refuse
from tollway.ids import Address, ChainId, ListingId, parse_network
from tollway.money import Price
from tollway.registry.catalog import ListingPage, ListingQuery, Sort
from tollway.registry.text import find_refused_character
from tollway.validation import WireError, value_error
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.discovery_routes import DocumentRoutes
from tollway.web.api.listing_edits import (
    DRY_RUN_ID,
    ListingEdits,
    ListingWriter,
    WrittenListing,
    find_public_listing,
    render_written,
)
from tollway.web.api.listing_json import (
    etag_of,
    etag_response,
    json_response,
    page_json,
    page_links,
    render_json,
    warnings_json,
)
from tollway.web.http.json import parse_json_object
from tollway.web.http.problems import CREATED, MERGE_PATCH_TYPE
from tollway.web.http.query import QueryModel, parsed, read_query, whole_number

PAGE_MAX = 1_000_000
LIMIT_DEFAULT, LIMIT_MAX = 20, 100
SEARCH_LENGTH_MAX = 256
TAG_LENGTH_MAX = CURRENCY_LENGTH_MAX = 32

_RATE = re.compile(r"0(?:\.[0-9]{1,9})?|1(?:\.0{1,9})?")


def _parse_rate(text: str) -> float:
    if not _RATE.fullmatch(text):
        raise ValueError("must be a number from 0 to 1, such as 0.95")
    return float(text)


def _check_plain_text(text: str) -> str:
    if not text or find_refused_character(text, is_multiline=False):
        raise value_error("malformed", "must be plain text")
    return text


Words = Annotated[
    str, Field(max_length=SEARCH_LENGTH_MAX), AfterValidator(lambda text: text if text.strip() else None)
]
"""The words of a search. Blank words count as absent."""
PageNumber = Annotated[int, whole_number(1, PAGE_MAX)]


class ListingParameters(QueryModel):
    """The query of `GET /apis`, with the field names of `ListingQuery`, and `suspended`: of the wallet that proves itself."""

    words: Words | None = Field(None, alias="q")
    price_nano_max: Annotated[int | None, parsed(lambda text: Price.parse(text).nano)] = Field(
        None, alias="maxPrice"
    )
    sort: Sort = "recommended"
    currency: (
        Annotated[str, Field(max_length=CURRENCY_LENGTH_MAX), AfterValidator(_check_plain_text)] | None
    ) = None
    verified: Annotated[Literal["true", "false"], AfterValidator(lambda text: text == "true")] | None = None
    page: PageNumber = 1
    limit: Annotated[int, whole_number(1, LIMIT_MAX)] = LIMIT_DEFAULT
    provider: Annotated[Address | None, parsed(Address.parse)] = None
    network: Annotated[ChainId | None, parsed(parse_network)] = None
    tag: Annotated[str, Field(max_length=TAG_LENGTH_MAX), AfterValidator(_check_plain_text)] | None = None
    min_success_rate: Annotated[float | None, parsed(_parse_rate)] = None
    suspended: Literal["true"] | None = None

    def as_query(self) -> ListingQuery:
        return ListingQuery(**{name: value for name, value in self if name != "suspended"})

    @classmethod
    def check_between(
        cls, given: Mapping[str, str], values: Mapping[str, Any]
    ) -> Iterator[tuple[str | None, WireError]]:
        sort = values.get("sort")
        if "currency" not in given:
            if "maxPrice" in given:
                yield "currency", (("maxPrice",), "needs_currency", "needs currency")
            if sort in ("price", "-price"):
                yield "currency", (("sort",), "needs_currency", "sorting by price needs currency")
        if sort == "relevance" and values.get("words") is None:
            yield "currency", (("sort",), "needs_q", "sorting by relevance needs q")
        if "suspended" in given and len(given) > 1:
            yield "suspended", (("suspended",), "alone", "suspended has no other parameter beside it")


def parse_listing_query(raw: bytes) -> ListingQuery:
    """The query of `GET /apis`. Raises Refusal (422) with all errors."""
    return read_query(ListingParameters, raw).as_query()


def listing_router(context: WebContext) -> Router:
    """`/api/v2/apis` and `/api/v2/apis/{apiId}`."""
    routes = ListingRoutes(context)
    return Router(
        [
            Route("/api/v2/apis", routes.list_listings, methods=["GET"]),
            Route("/api/v2/apis", routes.create, methods=["POST"]),
            Route("/api/v2/apis/{apiId}", routes.show_listing, methods=["GET"]),
            Route("/api/v2/apis/{apiId}", routes.update, methods=["PUT"]),
            Route("/api/v2/apis/{apiId}", routes.patch, methods=["PATCH"]),
            Route("/api/v2/apis/{apiId}", routes.retire, methods=["DELETE"]),
        ]
    )


class ListingRoutes:
    """The handlers of the routes of listings. Safe to call from many tasks at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._edits = ListingEdits(context)

    async def list_listings(self, request: Request) -> Response:
        raw: bytes = request.scope["query_string"]
        parameters = read_query(ListingParameters, raw)
        if parameters.suspended is not None:
            return await self._list_suspended(request)
        query = parameters.as_query()
        page = await self._context.catalog.search(query)
        given = parse_qsl(raw.decode("ascii", "replace"), keep_blank_values=True)
        link = page_links(f"{self._context.encoder.public_url}/api/v2/apis", given, page, query)
        content = await page_json(self._context.encoder, page, query)
        return json_response(content, headers={"Link": link})

    async def _list_suspended(self, request: Request) -> Response:
        """The listings of this wallet that the operator has suspended. A search leaves them out, and no other wallet reads them."""
        own = (await self._context.authenticate(request)).address
        found = await self._context.catalog.list_own(own, limit=LIMIT_MAX, offset=0, only_suspended=True)
        query, page = ListingQuery(limit=LIMIT_MAX), ListingPage(found=found, total=len(found))
        return json_response(await page_json(self._context.encoder, page, query))

    async def show_listing(self, request: Request) -> Response:
        listing_id = ListingId(request.path_params["apiId"])
        listing = await find_public_listing(self._context.catalog, listing_id)
        reputation = await self._context.catalog.reputation(listing.id)
        body = render_json(self._context.encoder.details(listing, reputation))
        headers = {
            "ETag": etag_of(listing, body),
            "Cache-Control": "no-cache",
            "Link": self._context.encoder.link_header(listing),
        }
        return etag_response(request, body, "application/json", headers)

    async def create(self, request: Request) -> Response:
        provider = (await self._context.authenticate(request)).address
        self._edits.check_publisher(provider)
        if read_query(DryRunParameters, request.scope["query_string"]).dry_run == "true":
            _check_media_type(request)
            body = parse_json_object(await request.body())
            written = await self._edits.preview(body, _writer(request, provider))
            return await self._preview_response(written, {"id": None, "links": {}})
        begun = await self._context.creations.begin(request, provider)
        if isinstance(begun, Response):
            return begun
        async with self._context.creations.holding(begun):
            _check_media_type(request)
            body = parse_json_object(await request.body())
            written = await self._edits.publish(body, _writer(request, provider), begun=begun)
            location = self._context.encoder.url_of(written.listing.id)
            return self._written_response(written, headers={"Location": location}, status=CREATED)

    async def update(self, request: Request) -> Response:
        provider = (await self._context.authenticate(request)).address

        async def read_body() -> Mapping[str, Any]:
            _check_media_type(request)
            return parse_json_object(await request.body())

        written = await self._edits.replace(_listing_id(request), read_body, _writer(request, provider))
        return self._written_response(written)

    async def patch(self, request: Request) -> Response:
        """A merge patch (RFC 7396)."""
        provider = (await self._context.authenticate(request)).address
        listing_id, writer = _listing_id(request), _writer(request, provider)
        await self._edits.find_own(listing_id, provider)
        self._edits.check_block(provider)
        is_dry_run = read_query(DryRunParameters, request.scope["query_string"]).dry_run == "true"
        _check_patch_type(request)
        patch = parse_json_object(await request.body())
        if is_dry_run:
            return await self._preview_response(
                await self._edits.preview_patch(listing_id, patch, writer), {}
            )
        return self._written_response(await self._edits.patch(listing_id, patch, writer))

    async def retire(self, request: Request) -> Response:
        provider = (await self._context.authenticate(request)).address
        await self._edits.retire(_listing_id(request), _writer(request, provider))
        return Response(status_code=204)

    # ---- The response.

    async def _preview_response(self, preview: WrittenListing, members: Mapping[str, Any]) -> Response:
        """The response to a dry run: the listing that is not written. `agent`: the document that agents will read, with `{apiId}` for the id of a listing
        that is not created."""
        written = {
            **self._context.encoder.details(preview.listing, preview.reputation),
            **members,
            "dryRun": True,
            "endpointAddresses": list(preview.addresses),
            "warnings": warnings_json(preview.warnings),
        }
        agent = render_json(await DocumentRoutes(self._context).describe_draft(preview.listing))
        written["agent"] = parse_json_object(agent.replace(DRY_RUN_ID.encode(), b"{apiId}"))
        return json_response(written)

    def _written_response(
        self, written: WrittenListing, *, headers: Mapping[str, str] = {}, status: int = 200
    ) -> Response:
        etag, body = render_written(self._context.encoder, written)
        headers = {**headers, "ETag": etag}
        return Response(body, status_code=status, media_type="application/json", headers=headers)


def _listing_id(request: Request) -> ListingId:
    return ListingId(request.path_params["apiId"])


def _writer(request: Request, provider: Address) -> ListingWriter:
    return ListingWriter(
        provider=provider,
        client_address=client_address_of(request),
        if_match=request.headers.get("if-match"),
    )


class DryRunParameters(QueryModel):
    """The query of `POST /apis` and `PATCH /apis/{apiId}`."""

    dry_run: Literal["true", "false"] = "false"


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        detail = "Send the body as application/json."
        raise refuse(code=Code.UNSUPPORTED_MEDIA_TYPE, detail=detail)


def _check_patch_type(request: Request) -> None:
    """RFC 7396 §4 gives the type no parameters. A body of another type may be a whole listing, which must not count as a patch."""
    if request.headers.get("content-type", "").strip().lower() != MERGE_PATCH_TYPE:
        detail = f"Send the patch as {MERGE_PATCH_TYPE}. PUT replaces the whole listing."
        raise refuse(code=Code.UNSUPPORTED_MEDIA_TYPE, detail=detail)
