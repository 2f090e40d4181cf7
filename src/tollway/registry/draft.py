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
from tollway.registry.form import Form
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
from tollway.registry.offered_operations import has_documented
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
    form = Form(body)
    form.refuse_unknown(_FIELDS)
    name = _name(form)
    currency = read_currency(form, rules)
    networks = read_networks(form, rules, currency)
    decimals_max = find_decimals_max(rules, currency, networks)
    price = read_price(form, decimals_max, is_required=True)
    endpoint = read_endpoint(form, rules)
    methods = read_methods(form)
    operations = read_operations(form, decimals_max, methods)
    forward_headers = read_forward_headers(form)
    draft = Draft(
        name=name or "",
        description=_description(form),
        endpoint=endpoint or "",
        price=price or Price.from_nano(0),
        currency=currency or "",
        pay_to=read_pay_to(form, rules),
        networks=networks,
        methods=methods,
        tags=_tags(form),
        operations=operations,
        other_paths=cast(Literal["serve", "refuse"], _choice(form, "otherPaths", ("serve", "refuse"))),
        charge_on=ChargeOn(_choice(form, "chargeOn", tuple(ChargeOn))),
        timeout_s=_timeout(form),
        forward_headers=forward_headers,
        upstream_auth=read_upstream_auth(form, rules, previous, endpoint=endpoint, forwarded=forward_headers),
        openapi=read_openapi(form, previous),
        openapi_url=read_openapi_url(form, previous),
        is_document_wanted=_is_given(form, "openapiUrl") and not _is_given(form, "openapi"),
        signature=cast(Literal["any", "bound"], _choice(form, "signature", ("any", "bound"))),
        rate_limit=_rate_limit(form),
        status=cast(Literal["active", "paused"], _choice(form, "status", ("active", "paused"))),
    )
    is_known = not draft.is_document_wanted and not any(one.pointer == "/openapi" for one in form.errors)
    conflict = find_nothing_served(draft) if is_known and not form.has("operations") else None
    if conflict is not None:
        form.refuse("otherPaths", conflict.code, conflict.detail)
    # The stand-ins above (an empty name, a zero price) never leave: each of them has an error beside it.
    return tuple(form.errors) or draft


def find_nothing_served(draft: Draft) -> FieldError | None:
    """A listing that refuses every path but its operations', and has none: neither priced nor documented."""
    is_open = draft.other_paths == "serve" or bool(draft.operations)
    if is_open or has_documented(draft.openapi, draft.methods):
        return None
    detail = "without operations, priced or in the document, nothing would be served"
    return FieldError(code="conflict", detail=detail, pointer="/otherPaths")


def open_listing(draft: Draft, *, listing_id: ListingId, provider: Address, now_ms: int) -> Listing:
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


def _is_given(form: Form, name: str) -> bool:
    return form.has(name) and not form.is_null(name)


def _choice(form: Form, name: str, options: tuple[str, ...]) -> str:
    """The first option is the default."""
    return (form.choice(name, options) if form.has(name) else None) or options[0]


def _clean(form: Form, pointer: str, text: str, *, is_multiline: bool = False) -> bool:
    unclean = find_unclean(text, is_multiline=is_multiline)
    if unclean is not None:
        form.refuse_at(pointer, "bad_character", f"must not hold control or invisible characters ({unclean})")
    return unclean is None


def _name(form: Form) -> str | None:
    name = form.required_text("name", length_max=NAME_LENGTH_MAX)
    if name is not None and _clean(form, "/name", name) and not name.strip():
        form.refuse("name", "too_short", "must not be blank")
    return name


def _description(form: Form) -> str:
    if not form.has("description"):
        return ""
    description = form.text("description", length_max=DESCRIPTION_LENGTH_MAX) or ""
    _clean(form, "/description", description, is_multiline=True)
    return description


def _tags(form: Form) -> tuple[str, ...]:
    if not form.has("tags"):
        return ()
    tags = form.texts("tags", count_max=TAGS_MAX, length_max=TAG_LENGTH_MAX) or []
    for pointer, tag in tags:
        if _clean(form, pointer, tag) and tag != tag.strip():
            form.refuse_at(pointer, "tag", "must not begin or end with a space")
    return tuple(tag for _, tag in tags)


def _timeout(form: Form) -> int:
    if not form.has("timeoutSeconds"):
        return TIMEOUT_S_DEFAULT
    return form.whole("timeoutSeconds", least=1, most=TIMEOUT_S_MAX) or TIMEOUT_S_DEFAULT


def _rate_limit(form: Form) -> RateLimit | None:
    if not _is_given(form, "rateLimit"):
        return None
    limit = form.form("rateLimit")
    if limit is None:
        return None
    limit.refuse_unknown(("calls", "perSeconds"))
    calls = limit.whole("calls", least=1, most=RATE_CALLS_MAX)
    per_s = limit.whole("perSeconds", least=1, most=RATE_PER_S_MAX)
    return RateLimit(calls=calls, per_s=per_s) if calls and per_s else None
