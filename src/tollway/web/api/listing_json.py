"""Listings as JSON: the seven fields of a list, the details, the payment options, the links of a page and the entity tags."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from tollway.ids import ListingId
from tollway.money import Asset, Price
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.x402 import requirement_json
from tollway.registry.catalog import ListingMatch, ListingPage, ListingQuery
from tollway.registry.listing import (
    ConfirmationsFor,
    Listing,
    PaymentOption,
    list_payment_options,
    write_members,
)
from tollway.registry.listing_warnings import ListingWarning
from tollway.registry.metering import OfferedPrice, offer
from tollway.registry.quality import Quality, Reputation, list_costs
from tollway.web.http.json import encode_visible_json
from tollway.web.http.problems import OK
from tollway.web.http.query import format_time

T = TypeVar("T")

TX_HEADERS = ("X-Payment-Tx", "X-Signature")
X402_VERSION, X402_HEADER = 2, "PAYMENT-SIGNATURE"

DOCUMENTS = (
    ("agent", "describedby", "application/json"),
    ("discovery", "service-meta", "application/json"),
    ("openapi", "service-desc", "application/openapi+json"),
    ("llms", "service-doc", "text/markdown"),
)
"""The documents of a listing: their names in `links`, their link relations and their media types."""


IsOffered = Callable[[Asset, int, ListingId], bool]
"""Whether an amount in ledger units of an asset can be settled now for a listing (`Settlement.is_offered`)."""


FindChannels = Callable[[Listing, Price], Mapping[Asset, Mapping[str, Any]]]
"""The channels that can be opened now for a price of a listing: `extra` of the requirement, by asset."""


def is_never_offered(asset: Asset, units: int, listing_id: ListingId) -> bool:
    return False


def find_no_channels(listing: Listing, price: Price) -> Mapping[Asset, Mapping[str, Any]]:
    return {}


def read_channels(requirements: Iterable[PaymentRequirement]) -> dict[Asset, Mapping[str, Any]]:
    """The channels among the requirements of a 402, for the options of the same price."""
    return {one.asset: requirement_json(one)["extra"] for one in requirements if one.channel is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingEncoder:
    """An encoder of listings. `public_url` without a final slash.

    `is_offered`: whether an authorisation can be settled now; False by default. `find_channels`: those that can be opened now; none by default.
    """

    public_url: str
    assets: tuple[Asset, ...]
    confirmations_for: ConfirmationsFor
    is_offered: IsOffered = is_never_offered
    find_channels: FindChannels = find_no_channels

    def url_of(self, listing_id: str) -> str:
        return f"{self.public_url}/api/v2/apis/{listing_id}"

    def item(self, found: ListingMatch, *, has_match: bool) -> dict[str, Any]:
        """One element of a list: exactly the seven fields; `pricing` of a metered price; and `match` for a query with words."""
        item = _summary_fields(found.listing)
        if found.listing.metering is not None:
            item["pricing"] = offer(found.listing).to_json(found.listing.currency)
        if has_match:
            item["match"] = list(found.match)
        return item

    def details(self, listing: Listing, reputation: Reputation) -> dict[str, Any]:
        """All public members. Of the upstream secret only whether it is set."""
        return {
            **_summary_fields(listing),
            **write_members(listing),
            "pricing": self.pricing(listing),
            "quality": {**quality_json(reputation.quality), **_costs_json(listing, reputation.quality)},
            "verified": reputation.is_verified,
            "links": self.links(listing),
            "createdAt": format_time(listing.created_ms),
            "updatedAt": format_time(listing.updated_ms),
            "revision": listing.revision,
            **_suspension_member(listing),
        }

    def pricing(self, listing: Listing) -> dict[str, Any]:
        offered = offer(listing)
        return {**offered.to_json(listing.currency), "options": self.options(listing, offered)}

    def options(self, listing: Listing, offered: OfferedPrice) -> list[dict[str, Any]]:
        """All ways to pay that price of the listing."""
        options = list_payment_options(
            listing,
            offered,
            assets=self.assets,
            confirmations_for=self.confirmations_for,
            timeout_s=listing.timeout_s,
            is_offered=lambda asset, units: self.is_offered(asset, units, listing.id),
            channels=self.find_channels(listing, offered.price),
        )
        return [option_json(option) for option in options]

    def links(self, listing: Listing) -> dict[str, str]:
        """The URLs of the listing, its gateway and its documents."""
        url = self.url_of(listing.id)
        return {
            "self": url,
            "gateway": f"{self.public_url}/api/v2/gateway/{listing.id}",
            "discovery": f"{url}/discovery",
            "agent": f"{url}/agent",
            "openapi": f"{url}/openapi.json",
            "llms": f"{url}/llms.txt",
            "mcp": f"{self.public_url}/mcp/{listing.id}",
            "ownership": f"{url}/ownership",
        }

    def link_header(self, listing: Listing) -> str:
        """The `Link` header of the details (RFC 8288, RFC 8631): the documents by relation."""
        links = self.links(listing)
        return ", ".join(
            f'<{links[name]}>; rel="{rel}"; type="{media_type}"' for name, rel, media_type in DOCUMENTS
        )


def _suspension_member(listing: Listing) -> dict[str, Any]:
    """The member of a suspended listing. Only the responses to its provider's edits have it: every other request is refused."""
    if listing.suspended_ms is None:
        return {}
    return {
        "suspension": {"since": format_time(listing.suspended_ms), "reason": listing.suspended_reason or None}
    }


def _summary_fields(listing: Listing) -> dict[str, Any]:
    return {
        "id": listing.id,
        "name": listing.name,
        "provider": str(listing.provider),
        "pricePerRequest": listing.price.text,
        "currency": listing.currency,
        "endpoint": listing.endpoint,
        "description": listing.description,
    }


def quality_json(quality: Quality | None) -> dict[str, Any]:
    """The measured quality; all members null without enough paid calls. The rate is a number from 0 to 1, rounded down
    to six decimals: it is 1 only without a failure."""
    if quality is None:
        return {"calls30d": None, "successRate30d": None, "p50Ms": None, "p95Ms": None}
    return {
        "calls30d": quality.calls,
        "successRate30d": quality.success_ppm / 1_000_000,
        "p50Ms": quality.p50_ms,
        "p95Ms": quality.p95_ms,
    }


def _costs_json(listing: Listing, quality: Quality | None) -> dict[str, Any]:
    """What metered calls cost in practice, as shares of their maximum, for each operation that is sold so; without a member where too few were measured. `method` and
    `path` are null for the price of the listing."""
    costs = [
        {
            "method": None if operation is None else operation.method,
            "path": None if operation is None else operation.path,
            "calls30d": share.calls,
            "meanShare": share.mean_percent / 100,
            "p95Share": share.p95_percent / 100,
        }
        for operation, share in list_costs(listing, quality)
    ]
    return {"costs": costs} if costs else {}


def option_json(option: PaymentOption) -> dict[str, Any]:
    """One payment option, the same in details, in a 402 and in agent documents. A native asset has no `token`."""
    if option.rail == "tx":
        return {
            "rail": "tx",
            **_amount_json(option),
            "confirmations": option.confirmations,
            "headers": list(TX_HEADERS),
        }
    domain = option.asset.domain
    named = {"name": domain.name, "version": domain.version} if domain else {}
    return {
        "rail": option.rail,
        "version": X402_VERSION,
        "header": X402_HEADER,
        **_amount_json(option),
        "maxTimeoutSeconds": option.max_timeout_s,
        "extra": named if option.channel is None else dict(option.channel),
    }


def _amount_json(option: PaymentOption) -> dict[str, Any]:
    asset = option.asset
    token = {} if asset.token is None else {"token": str(asset.token)}
    return {
        "network": asset.network,
        "chainId": asset.chain_id,
        "asset": asset.caip19,
        **token,
        "symbol": asset.symbol,
        "decimals": asset.decimals,
        "amount": str(option.amount_base_units),
        "payTo": str(option.pay_to),
    }


def warnings_json(warnings: Iterable[ListingWarning]) -> list[dict[str, str]]:
    return [{"code": one.code, "detail": one.detail, "pointer": one.pointer} for one in warnings]


SLICE_LISTINGS = 10
"""Listings of a page that are written before other requests run: less than a millisecond of the event loop."""


async def write_in_slices(found: Sequence[ListingMatch], write: Callable[[ListingMatch], T]) -> list[T]:
    """What `write` makes of each listing. Other requests run between two slices."""
    written = [write(one) for one in found[:SLICE_LISTINGS]]
    for start in range(SLICE_LISTINGS, len(found), SLICE_LISTINGS):
        await asyncio.sleep(0)
        written += [write(one) for one in found[start : start + SLICE_LISTINGS]]
    return written


async def page_json(encoder: ListingEncoder, page: ListingPage, query: ListingQuery) -> dict[str, Any]:
    has_match = query.words is not None
    content: dict[str, Any] = {
        "apis": await write_in_slices(page.found, partial(encoder.item, has_match=has_match)),
        "total": page.total,
        "page": query.page,
        "limit": query.limit,
    }
    if page.is_lower_bound:
        content["totalIsLowerBound"] = True
    return content if query.words is None else {**content, **words_json(page)}


def words_json(page: ListingPage) -> dict[str, Any]:
    """How the words of a search were understood."""
    return {
        "totalAll": page.total_all,
        "words": list(page.words),
        "corrections": [{"word": one.word, "replacement": one.replacement} for one in page.corrections],
    }


def page_links(url: str, given: Sequence[tuple[str, str]], page: ListingPage, query: ListingQuery) -> str:
    """The `Link` header of a page (RFC 8288). `given`: the request's parameters; each link has them, with its own `page`.

    There is no `last` when the total is only a lower bound.
    """
    last = max(1, -(-page.total // query.limit))
    numbers = {"first": 1}
    if query.page > 1:
        numbers["prev"] = query.page - 1 if page.is_lower_bound else min(query.page - 1, last)
    if query.page < last or (page.is_lower_bound and len(page.found) == query.limit):
        numbers["next"] = query.page + 1
    if not page.is_lower_bound:
        numbers["last"] = last
    kept = [(name, value) for name, value in given if name != "page"]

    def link(number: int) -> str:
        return url + "?" + urlencode([*kept, ("page", str(number))], quote_via=quote)

    return ", ".join(f'<{link(number)}>; rel="{rel}"' for rel, number in numbers.items())


def render_json(content: Mapping[str, Any]) -> bytes:
    return encode_visible_json(content).encode()


def json_response(
    content: Mapping[str, Any], *, status: int = OK, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(render_json(content), status_code=status, media_type="application/json", headers=headers)


def etag_response(request: Request, body: bytes, media_type: str, headers: Mapping[str, str]) -> Response:
    """A response with the header ETag; a 304 if the client has that content."""
    known = request.headers.get("if-none-match")
    if known is not None and has_etag(known, headers["ETag"], same=is_same_content):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def etag_of(listing: Listing, body: bytes) -> str:
    """A strong validator: the revision and a digest of the content, which depends on the operator's settings too."""
    return f'"r{listing.revision}-{hashlib.sha256(body).hexdigest()[:16]}"'


def has_etag(header: str, etag: str, *, same: Callable[[str, str], bool]) -> bool:
    """Whether a list of entity tags (RFC 9110 §13.1) contains this one, compared by `same`; `*` matches any."""
    return any(tag == "*" or same(tag, etag) for tag in (part.strip() for part in header.split(",")))


def is_same_content(tag: str, etag: str) -> bool:
    """The comparison of If-None-Match: weak."""
    return tag.removeprefix("W/") == etag


def is_same_revision(tag: str, etag: str) -> bool:
    """The comparison of If-Match: strong, by the revision only. A change of the operator's settings changes the content and
    must not refuse a provider's edit."""
    return tag.partition("-")[0] == etag.partition("-")[0]
