"""What a provider wants to publish: the body of create and update, read and judged. All problems are told at once.

Pure: it asks no network. Whether an endpoint may be dialled is judged by a function that the rules carry; whether it
answers is for the caller of this module to find out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from tollway.errors import FieldError
from tollway.identifiers import Address, ChainId, ListingId
from tollway.money import Price
from tollway.registry.draft_rules import DraftRules
from tollway.registry.form import ObjectReader
from tollway.registry.listing import ChargeOn, Listing, Operation, RateLimit, UpstreamAuth
from tollway.registry.offer_rules import (
    find_decimals_max,
    read_currency,
    read_methods,
    read_networks,
    read_operations,
    read_pay_to,
    read_price,
)
from tollway.registry.offered_operations import has_documented_operations
from tollway.registry.plain_text import find_unclean
from tollway.registry.upstream_rules import (
    read_endpoint,
    read_forward_headers,
    read_openapi,
    read_openapi_url,
    read_upstream_auth,
)

NAME_LENGTH_MAX = 120
DESCRIPTION_LENGTH_MAX = 4_000
TAGS_MAX, TAG_LENGTH_MAX = 5, 32
TIMEOUT_S_DEFAULT, TIMEOUT_S_MAX = 30, 300
RATE_CALLS_MAX, RATE_PER_S_MAX = 1_000_000, 86_400

_FIELDS = (
    "name",
    "pricePerRequest",
    "currency",
    "endpoint",
    "description",
    "payTo",
    "networks",
    "methods",
    "tags",
    "openapi",
    "openapiUrl",
    "operations",
    "otherPaths",
    "chargeOn",
    "timeoutSeconds",
    "forwardHeaders",
    "upstreamAuth",
    "signature",
    "rateLimit",
    "status",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A body that keeps every rule. `pay_to` None: the provider's own wallet.

    `is_document_wanted`: `openapi_url` was named without a document beside it, so it is to be fetched.
    """

    name: str
    description: str
    endpoint: str
    price: Price
    currency: str
    pay_to: Address | None
    networks: tuple[ChainId, ...]
    methods: tuple[str, ...]
    tags: tuple[str, ...]
    operations: tuple[Operation, ...]
    other_paths: Literal["serve", "refuse"]
    charge_on: ChargeOn
    timeout_s: int
    forward_headers: tuple[str, ...]
    upstream_auth: UpstreamAuth | None
    openapi: Mapping[str, Any] | None = field(repr=False)
    openapi_url: str | None
    is_document_wanted: bool
    signature: Literal["any", "bound"]
    rate_limit: RateLimit | None
    status: Literal["active", "paused"]


def parse_draft(
    body: object, rules: DraftRules, *, previous: Listing | None
) -> Draft | tuple[FieldError, ...]:
    """The body of a create (`previous` None) or of an update, or everything that is wrong with it.

    Absent fields take their default; in an update, absent `upstreamAuth`, `openapi` and `openapiUrl` stay as they are
    and `null` removes them.
    """
    if not isinstance(body, dict):
        return (FieldError(code="type", detail="the body must be a JSON object", pointer=""),)
    reader = ObjectReader(body)
    reader.refuse_unknown(_FIELDS)
    name = _name(reader)
    currency = read_currency(reader, rules)
    networks = read_networks(reader, rules, currency)
    decimals_max = find_decimals_max(rules, currency, networks)
    price = read_price(reader, decimals_max, is_required=True)
    endpoint = read_endpoint(reader, rules)
    methods = read_methods(reader)
    operations = read_operations(reader, decimals_max, methods)
    forward_headers = read_forward_headers(reader)
    draft = Draft(
        name=name or "",
        description=_description(reader),
        endpoint=endpoint or "",
        price=price or Price.from_nano(0),
        currency=currency or "",
        pay_to=read_pay_to(reader, rules),
        networks=networks,
        methods=methods,
        tags=_tags(reader),
        operations=operations,
        other_paths=cast(Literal["serve", "refuse"], _choice(reader, "otherPaths", ("serve", "refuse"))),
        charge_on=ChargeOn(_choice(reader, "chargeOn", tuple(ChargeOn))),
        timeout_s=_timeout(reader),
        forward_headers=forward_headers,
        upstream_auth=read_upstream_auth(
            reader, rules, previous, endpoint=endpoint, forwarded=forward_headers
        ),
        openapi=read_openapi(reader, previous),
        openapi_url=read_openapi_url(reader, previous),
        is_document_wanted=_is_given(reader, "openapiUrl") and not _is_given(reader, "openapi"),
        signature=cast(Literal["any", "bound"], _choice(reader, "signature", ("any", "bound"))),
        rate_limit=_rate_limit(reader),
        status=cast(Literal["active", "paused"], _choice(reader, "status", ("active", "paused"))),
    )
    is_known = not draft.is_document_wanted and not any(one.pointer == "/openapi" for one in reader.errors)
    conflict = find_nothing_served(draft) if is_known and not reader.has("operations") else None
    if conflict is not None:
        reader.refuse("otherPaths", conflict.code, conflict.detail)
    # The stand-ins above (an empty name, a zero price) never leave: each of them has an error beside it.
    return tuple(reader.errors) or draft


def find_nothing_served(draft: Draft) -> FieldError | None:
    """A listing that refuses every path but its operations', and has none: neither priced nor documented."""
    is_open = draft.other_paths == "serve" or bool(draft.operations)
    if is_open or has_documented_operations(draft.openapi, draft.methods):
        return None
    detail = "without operations, priced or in the document, nothing would be served"
    return FieldError(code="conflict", detail=detail, pointer="/otherPaths")


def create_listing(draft: Draft, *, listing_id: ListingId, provider: Address, now_ms: int) -> Listing:
    """A new listing from a draft."""
    return _to_listing(
        draft, listing_id=listing_id, provider=provider, created_ms=now_ms, updated_ms=now_ms, revision=1
    )


def edit_listing(draft: Draft, previous: Listing, *, now_ms: int) -> Listing:
    """The same listing after an update. A suspension by the operator outlives it."""
    return _to_listing(
        draft,
        listing_id=previous.id,
        provider=previous.provider,
        created_ms=previous.created_ms,
        updated_ms=now_ms,
        revision=previous.revision + 1,
        suspended_ms=previous.suspended_ms,
    )


def _to_listing(
    draft: Draft,
    *,
    listing_id: ListingId,
    provider: Address,
    created_ms: int,
    updated_ms: int,
    revision: int,
    suspended_ms: int | None = None,
) -> Listing:
    return Listing(
        id=listing_id,
        provider=provider,
        name=draft.name,
        description=draft.description,
        endpoint=draft.endpoint,
        price=draft.price,
        currency=draft.currency,
        pay_to=draft.pay_to or provider,
        networks=draft.networks,
        methods=draft.methods,
        tags=draft.tags,
        operations=draft.operations,
        other_paths=draft.other_paths,
        charge_on=draft.charge_on,
        timeout_s=draft.timeout_s,
        forward_headers=draft.forward_headers,
        upstream_auth=draft.upstream_auth,
        openapi=draft.openapi,
        openapi_url=draft.openapi_url,
        signature=draft.signature,
        rate_limit=draft.rate_limit,
        status=draft.status,
        created_ms=created_ms,
        updated_ms=updated_ms,
        revision=revision,
        suspended_ms=suspended_ms,
    )


def _is_given(reader: ObjectReader, name: str) -> bool:
    return reader.has(name) and not reader.is_null(name)


def _choice(reader: ObjectReader, name: str, options: tuple[str, ...]) -> str:
    """The first option is the default."""
    return (reader.one_of(name, options) if reader.has(name) else None) or options[0]


def _clean(reader: ObjectReader, pointer: str, text: str, *, is_multiline: bool = False) -> bool:
    unclean = find_unclean(text, is_multiline=is_multiline)
    if unclean is not None:
        reader.refuse_at(
            pointer, "bad_character", f"must not hold control or invisible characters ({unclean})"
        )
    return unclean is None


def _name(reader: ObjectReader) -> str | None:
    name = reader.required_text("name", length_max=NAME_LENGTH_MAX)
    if name is not None and _clean(reader, "/name", name) and not name.strip():
        reader.refuse("name", "too_short", "must not be blank")
    return name


def _description(reader: ObjectReader) -> str:
    if not reader.has("description"):
        return ""
    description = reader.text("description", length_max=DESCRIPTION_LENGTH_MAX) or ""
    _clean(reader, "/description", description, is_multiline=True)
    return description


def _tags(reader: ObjectReader) -> tuple[str, ...]:
    if not reader.has("tags"):
        return ()
    tags = reader.texts("tags", count_max=TAGS_MAX, length_max=TAG_LENGTH_MAX) or []
    for pointer, tag in tags:
        if _clean(reader, pointer, tag) and tag != tag.strip():
            reader.refuse_at(pointer, "tag", "must not begin or end with a space")
    return tuple(tag for _, tag in tags)


def _timeout(reader: ObjectReader) -> int:
    if not reader.has("timeoutSeconds"):
        return TIMEOUT_S_DEFAULT
    return reader.integer("timeoutSeconds", least=1, most=TIMEOUT_S_MAX) or TIMEOUT_S_DEFAULT


def _rate_limit(reader: ObjectReader) -> RateLimit | None:
    if not _is_given(reader, "rateLimit"):
        return None
    limit = reader.reader("rateLimit")
    if limit is None:
        return None
    limit.refuse_unknown(("calls", "perSeconds"))
    calls = limit.integer("calls", least=1, most=RATE_CALLS_MAX)
    per_s = limit.integer("perSeconds", least=1, most=RATE_PER_S_MAX)
    return RateLimit(calls=calls, per_s=per_s) if calls and per_s else None
