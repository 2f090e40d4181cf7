"""The fields of a listing that its provider sets, in one table. Pure.

Its readers: the JSON of a listing (`registry.listing`), the drafts of a body, a patch and a form (`registry.draft`, `registry.listing_patch`), the columns
(`storage.catalog.catalog_tables`), the form of its page (`web.pages.listing_form`), the options of `publish` and `edit` and the difference that `edit` prints
(`cli.listing_inputs`, `cli.listing_changes`). Each reader has one table by `Kind`: what it does with a value of that kind.

One more field is a row here, an attribute of `listing.ListingMembers`, a rule in `draft.ListingBody`, a property in `web/http/openapi.yaml`, a control in
`my_api_form.j2` and an attribute of `client.records.ListingDetails`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """How a value is written. The kinds from `PRICE` on have a function of their own in most readers, and one field each."""

    TEXT = auto()
    LINES = auto()  # a text of several lines
    URL = auto()  # a text, or None
    CHOICE = auto()  # one of a few words
    NUMBER = auto()
    WORDS = auto()  # a list of texts without spaces
    PHRASES = auto()  # a list of texts
    PRICE = auto()
    CURRENCY = auto()
    ADDRESS = auto()
    NETWORKS = auto()
    OPERATIONS = auto()
    METERING = auto()
    RATE_LIMIT = auto()
    FREE_CALLS = auto()
    SECRET = auto()
    DOCUMENT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingField:
    """One field. `member`: its name in JSON. `attribute`: its name in records, and of its column. `options`: of the commands, each with its help, in the
    spelling of a parameter. `is_kept`: an update that leaves the member out keeps its value; without it the member takes its default."""

    member: str
    attribute: str
    kind: Kind
    options: Mapping[str, str]
    is_kept: bool = False


def _field(
    member: str, attribute: str, kind: Kind, options: Mapping[str, str] = {}, *, is_kept: bool = False
) -> ListingField:
    return ListingField(member=member, attribute=attribute, kind=kind, options=options, is_kept=is_kept)


FIELDS = (
    _field("name", "name", Kind.TEXT, {"name": "The name of the API."}),
    _field("pricePerRequest", "price", Kind.PRICE, {"price": "Per request, such as 0.01."}),
    _field("currency", "currency", Kind.CURRENCY, {"currency": "USDC, ETH, …"}),
    _field("endpoint", "endpoint", Kind.TEXT, {"endpoint": "The URL that the gateway calls. It is public."}),
    _field("description", "description", Kind.LINES, {"description": "Plain text."}),
    _field("payTo", "pay_to", Kind.ADDRESS, {"pay_to": "The wallet that receives payments."}),
    _field("networks", "networks", Kind.NETWORKS, {"network": "eip155:…, repeatable."}),
    _field("methods", "methods", Kind.WORDS, {"method": "GET, POST, …, repeatable. Default: any."}),
    _field("tags", "tags", Kind.PHRASES, {"tag": "Repeatable."}),
    _field(
        "openapi",
        "openapi",
        Kind.DOCUMENT,
        {"openapi": "The OpenAPI document: a file, or the URL from which the gateway reads it."},
        is_kept=True,
    ),
    _field("openapiUrl", "openapi_url", Kind.URL, is_kept=True),  # the option of `openapi` sets it too
    _field(
        "metering",
        "metering",
        Kind.METERING,
        {"metering": "The formula of a price by use, a JSON file; the price is then the maximum of a call."},
    ),
    _field(
        "operations",
        "operations",
        Kind.OPERATIONS,
        {"operation": 'A price of its own: "GET /cities/{city}=0.05", repeatable.'},
    ),
    _field(
        "otherPaths",
        "other_paths",
        Kind.CHOICE,
        {"other_paths": "serve, or refuse: only operations are served."},
    ),
    _field(
        "chargeOn",
        "charge_on",
        Kind.CHOICE,
        {"charge_on": "success, or answered: also for most 4xx of the upstream."},
    ),
    _field(
        "timeoutSeconds",
        "timeout_s",
        Kind.NUMBER,
        {"timeout": "Seconds until the upstream must have answered."},
    ),
    _field(
        "forwardHeaders",
        "forward_headers",
        Kind.WORDS,
        {"forward_header": "A request header that goes upstream, repeatable."},
    ),
    _field(
        "upstreamAuth",
        "upstream_auth",
        Kind.SECRET,
        {
            "secret_file": "The file with the secret that the gateway sends upstream.",
            "secret_header": "The header that carries the secret.",
            "secret_query": "The query parameter that carries the secret.",
        },
        is_kept=True,
    ),
    _field(
        "signature",
        "signature",
        Kind.CHOICE,
        {"signature": "any, or bound: only signatures that cover the request."},
    ),
    _field(
        "rateLimit",
        "rate_limit",
        Kind.RATE_LIMIT,
        {"rate": "Calls of one payer: 100/60 is 100 calls in 60 seconds."},
    ),
    _field(
        "freeCalls",
        "free_calls",
        Kind.FREE_CALLS,
        {"free_calls": "Free calls of each wallet: 10, or 10/86400 for 10 in each 86400 seconds."},
    ),
    _field("status", "status", Kind.CHOICE),
    _field(
        "forwardSignature",
        "forward_signature",
        Kind.CHOICE,
        {
            "forward_signature": "ed25519; hmac-sha256 with a secret that is shown once; or none: forwarded calls are not signed."
        },
    ),
    _field("contact", "contact", Kind.URL, {"contact": "mailto:… or https://…, public."}),
    _field("website", "website", Kind.URL, {"website": "https://…, public."}),
    _field("terms", "terms_url", Kind.URL, {"terms": "The https URL of your terms, public."}),
)
"""In the order of the JSON of a listing: member, attribute, kind, options with their help."""


def in_order(members: Iterable[str]) -> tuple[ListingField, ...]:
    """All fields: the named ones in that order, then the others in the order of the table."""
    first = [_BY_MEMBER[member] for member in members]
    return (*first, *(field for field in FIELDS if field not in first))


_BY_MEMBER = {field.member: field for field in FIELDS}


# ---- Orders of their own. A field that one of them does not name comes last.

BY_COLUMN = in_order(
    (
        *("name", "description", "endpoint", "pricePerRequest", "currency", "payTo", "networks", "methods"),
        *("tags", "operations", "otherPaths", "chargeOn", "timeoutSeconds", "forwardHeaders", "upstreamAuth"),
        *("openapi", "openapiUrl"),
    )
)
BY_OPTION = in_order(
    (
        *("name", "pricePerRequest", "currency", "endpoint", "description", "payTo", "networks", "methods"),
        *("tags", "operations", "otherPaths", "openapi", "upstreamAuth", "timeoutSeconds", "chargeOn"),
        *("rateLimit", "forwardHeaders"),
    )
)
BY_DIFFERENCE = in_order(
    (
        *("name", "description", "pricePerRequest", "currency", "endpoint", "payTo", "networks", "methods"),
        *("tags", "operations", "otherPaths", "openapi", "openapiUrl", "upstreamAuth", "timeoutSeconds"),
        *("chargeOn", "forwardHeaders", "signature", "forwardSignature"),
    )
)
BY_PAGE = in_order(
    (
        *("endpoint", "openapiUrl", "pricePerRequest", "currency"),
        *("name", "description", "tags", "website", "contact", "terms"),
        *("metering", "operations", "otherPaths", "chargeOn", "payTo", "networks"),
        *("methods", "timeoutSeconds", "forwardHeaders", "upstreamAuth", "forwardSignature"),
        *("signature", "rateLimit", "freeCalls", "status"),
        *("openapi",),
    )
)
