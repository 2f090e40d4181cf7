"""What a provider wants to publish: the body of create and update, read and judged. All problems are told at once.

Pure: it asks no network. Whether an endpoint may be dialled is judged by a function that the rules carry; whether it
answers is for the caller of this module to find out.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from tollway.errors import FieldError
from tollway.identifiers import ZERO_ADDRESS, Address, ChainId, ListingId, parse_network
from tollway.limits import MIB
from tollway.money import Asset, Price
from tollway.registry.form import Form
from tollway.registry.listing import ChargeOn, Listing, Operation, RateLimit, UpstreamAuth
from tollway.registry.operation_path import find_path_fault, path_shape
from tollway.registry.plain_text import find_unclean
from tollway.registry.pricing import payable_assets
from tollway.registry.reserved import is_header_name, is_reserved_header

NAME_LENGTH_MAX = 120
DESCRIPTION_LENGTH_MAX = 4_000
URL_LENGTH_MAX = 2_048
METHODS_MAX = 16
TAGS_MAX, TAG_LENGTH_MAX = 5, 32
OPERATIONS_MAX = 200
FORWARD_HEADERS_MAX, HEADER_NAME_LENGTH_MAX = 20, 128
SECRET_LENGTH_MAX = 4_096
TIMEOUT_S_DEFAULT, TIMEOUT_S_MAX = 30, 300
RATE_CALLS_MAX, RATE_PER_S_MAX = 1_000_000, 86_400
DOCUMENT_BYTES_MAX = 1 * MIB
NETWORKS_MAX = 32

ENDPOINT_POLICY = "endpoint_not_allowed"
"""The code of the one error that is about the outbound policy and not about the form of the body."""

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

# Upper case, because methods are case-sensitive and nobody's API answers `get` (RFC 9110 §9.1).
_METHOD = re.compile(r"[A-Z][A-Z0-9-]{0,31}")
_TUNNELS = frozenset({"CONNECT", "TRACE"})
_OPENAPI_VERSION = re.compile(r"3\.[012](\.[0-9]+)?(-[0-9A-Za-z.-]+)?")
_DOCUMENT_URL = re.compile(
    r"https?://[A-Za-z0-9._~%\[\]:-]+(/[\x21-\x22\x24-\x7e]*)?(\?[\x21-\x22\x24-\x7e]*)?"
)
_QUERY_NAME = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFault:
    """Why an endpoint cannot be listed. `is_policy`: well written, but this gateway may not dial it."""

    detail: str
    is_policy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRules:
    """What this gateway accepts. A currency is the symbol of an accepted asset; `assets` stand in the operator's order
    of preference. `main_networks` are a new listing's default where it has any of them."""

    assets: tuple[Asset, ...]
    main_networks: frozenset[ChainId]
    allow_private_endpoints: bool
    judge_endpoint: Callable[[str], EndpointFault | None]

    def networks_of(self, currency: str) -> tuple[ChainId, ...]:
        """Where a currency is accepted."""
        return tuple(dict.fromkeys(asset.chain_id for asset in self.assets if asset.symbol == currency))

    def default_networks(self, currency: str) -> tuple[ChainId, ...]:
        """All of the main ones; on a gateway that has only test networks for that currency, those."""
        accepted = self.networks_of(currency)
        return tuple(chain_id for chain_id in accepted if chain_id in self.main_networks) or accepted


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
    currency = _currency(form, rules)
    networks = _networks(form, rules, currency)
    decimals_max = _decimals_max(rules, currency, networks)
    price = _price(form, decimals_max, is_required=True)
    endpoint = _endpoint(form, rules)
    methods = _methods(form)
    operations = _operations(form, decimals_max, methods)
    forward_headers = _forward_headers(form)
    draft = Draft(
        name=name or "",
        description=_description(form),
        endpoint=endpoint or "",
        price=price or Price.from_nano(0),
        currency=currency or "",
        pay_to=_pay_to(form, rules),
        networks=networks,
        methods=methods,
        tags=_tags(form),
        operations=operations,
        other_paths=_other_paths(form, operations),
        charge_on=ChargeOn(_choice(form, "chargeOn", tuple(ChargeOn))),
        timeout_s=_timeout(form),
        forward_headers=forward_headers,
        upstream_auth=_upstream_auth(form, rules, previous, endpoint=endpoint, forwarded=forward_headers),
        openapi=_openapi(form, previous),
        openapi_url=_openapi_url(form, previous),
        is_document_wanted=_is_given(form, "openapiUrl") and not _is_given(form, "openapi"),
        signature=cast(Literal["any", "bound"], _choice(form, "signature", ("any", "bound"))),
        rate_limit=_rate_limit(form),
        status=cast(Literal["active", "paused"], _choice(form, "status", ("active", "paused"))),
    )
    # The stand-ins above (an empty name, a zero price) never leave: each of them has an error beside it.
    return tuple(form.errors) or draft


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


def find_document_fault(document: Mapping[str, Any]) -> str | None:
    """Why this is no OpenAPI document that can be listed; None when it is one."""
    version = document.get("openapi")
    if not isinstance(version, str) or not _OPENAPI_VERSION.fullmatch(version):
        return "must be an OpenAPI 3.0, 3.1 or 3.2 document (`openapi: 3.x`)"
    size = len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
    if size > DOCUMENT_BYTES_MAX:
        return f"must have at most {DOCUMENT_BYTES_MAX} bytes"
    return None


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


def _currency(form: Form, rules: DraftRules) -> str | None:
    if not form.has("currency"):
        form.refuse("currency", "required", "is required")
        return None
    return form.choice("currency", tuple(dict.fromkeys(asset.symbol for asset in rules.assets)))


def _networks(form: Form, rules: DraftRules, currency: str | None) -> tuple[ChainId, ...]:
    if not form.has("networks"):
        return rules.default_networks(currency) if currency else ()
    accepted = rules.networks_of(currency) if currency else ()
    networks = []
    texts = form.texts("networks", count_max=NETWORKS_MAX, length_max=32)
    for pointer, text in texts or ():
        try:
            chain_id = parse_network(text)
        except ValueError as exc:
            form.refuse_at(pointer, "network", str(exc))
            continue
        networks.append(chain_id)
        if currency and chain_id not in accepted:
            form.refuse_at(pointer, "network", f"{currency} is not accepted on {text}")
    if texts == []:
        form.refuse("networks", "too_few", "must name at least one network")
    return tuple(networks)


def _decimals_max(rules: DraftRules, currency: str | None, networks: tuple[ChainId, ...]) -> int | None:
    """The least that the books keep over the assets the listing can be paid in; None when there are none."""
    payable = payable_assets(rules.assets, currency=currency or "", networks=networks)
    return min((asset.ledger_decimals for asset in payable), default=None)


def _price(form: Form, decimals_max: int | None, *, is_required: bool) -> Price | None:
    if is_required and not form.has("pricePerRequest"):
        form.refuse("pricePerRequest", "required", "is required")
        return None
    price = form.parsed("pricePerRequest", Price.parse, code="price", length_max=64)
    if price is not None and decimals_max is not None and price.decimals > decimals_max:
        form.refuse("pricePerRequest", "price", f"must have at most {decimals_max} decimals")
    return price


def _endpoint(form: Form, rules: DraftRules) -> str | None:
    endpoint = form.required_text("endpoint", length_max=URL_LENGTH_MAX)
    if endpoint is None:
        return None
    fault = rules.judge_endpoint(endpoint)
    if fault is not None:
        form.refuse("endpoint", ENDPOINT_POLICY if fault.is_policy else "endpoint", fault.detail)
    return endpoint


def _pay_to(form: Form, rules: DraftRules) -> Address | None:
    if not form.has("payTo"):
        return None
    pay_to = form.parsed("payTo", Address.parse, code="address", length_max=64)
    if pay_to == ZERO_ADDRESS:
        form.refuse("payTo", "address", "must not be the zero address: nobody can spend from it")
    elif pay_to is not None and any(asset.token == pay_to for asset in rules.assets):
        form.refuse("payTo", "address", "must be a wallet, not a token contract")
    return pay_to


def _methods(form: Form) -> tuple[str, ...]:
    if not form.has("methods"):
        return ()
    methods = form.texts("methods", count_max=METHODS_MAX, length_max=32) or []
    for pointer, method in methods:
        _check_method(form, pointer, method)
    return tuple(method for _, method in methods)


def _check_method(form: Form, pointer: str, method: str) -> None:
    if not _METHOD.fullmatch(method):
        form.refuse_at(pointer, "method", "must be an HTTP method in upper case")
    elif method in _TUNNELS:
        form.refuse_at(pointer, "method", f"{method} does not go through a gateway")


def _tags(form: Form) -> tuple[str, ...]:
    if not form.has("tags"):
        return ()
    tags = form.texts("tags", count_max=TAGS_MAX, length_max=TAG_LENGTH_MAX) or []
    for pointer, tag in tags:
        if _clean(form, pointer, tag) and tag != tag.strip():
            form.refuse_at(pointer, "tag", "must not begin or end with a space")
    return tuple(tag for _, tag in tags)


def _operations(form: Form, decimals_max: int | None, methods: tuple[str, ...]) -> tuple[Operation, ...]:
    if not form.has("operations"):
        return ()
    operations = []
    seen: set[tuple[str, str]] = set()
    for pointer, row in form.forms("operations", count_max=OPERATIONS_MAX) or ():
        operation = _operation(row, pointer, decimals_max)
        if operation is None:
            continue
        key = (operation.method, path_shape(operation.path))
        if key in seen:
            form.refuse_at(pointer, "duplicate", "another operation has the same method and path")
        elif methods and operation.method not in methods:
            form.refuse_at(f"{pointer}/method", "method", "is not among the listing's methods")
        seen.add(key)
        operations.append(operation)
    return tuple(operations)


def _operation(row: Form, pointer: str, decimals_max: int | None) -> Operation | None:
    row.refuse_unknown(("method", "path", "pricePerRequest"))
    method = row.required_text("method", length_max=32)
    path = row.required_text("path", length_max=URL_LENGTH_MAX)
    price = _price(row, decimals_max, is_required=True)
    if method == "HEAD":
        row.refuse("method", "method", "HEAD costs what GET costs")
    elif method is not None:
        _check_method(row, f"{pointer}/method", method)
    fault = find_path_fault(path) if path is not None else None
    if fault is not None:
        row.refuse("path", "path", fault)
    if method is None or path is None or price is None:
        return None
    return Operation(method=method, path=path, price=price)


def _other_paths(form: Form, operations: tuple[Operation, ...]) -> Literal["serve", "refuse"]:
    other_paths = _choice(form, "otherPaths", ("serve", "refuse"))
    if other_paths == "refuse" and not operations and not form.has("operations"):
        form.refuse("otherPaths", "conflict", "without operations, nothing would be served")
    return cast(Literal["serve", "refuse"], other_paths)


def _timeout(form: Form) -> int:
    if not form.has("timeoutSeconds"):
        return TIMEOUT_S_DEFAULT
    return form.whole("timeoutSeconds", least=1, most=TIMEOUT_S_MAX) or TIMEOUT_S_DEFAULT


def _forward_headers(form: Form) -> tuple[str, ...]:
    if not form.has("forwardHeaders"):
        return ()
    names = form.texts("forwardHeaders", count_max=FORWARD_HEADERS_MAX, length_max=HEADER_NAME_LENGTH_MAX)
    for pointer, name in names or ():
        _check_header(form, pointer, name)
    return tuple(name for _, name in names or ())


def _check_header(form: Form, pointer: str, name: str) -> None:
    if not is_header_name(name):
        form.refuse_at(pointer, "header", "must be a header name of letters, digits and -")
    elif is_reserved_header(name):
        form.refuse_at(pointer, "header", f"{name} belongs to HTTP or to the gateway")


def _upstream_auth(
    form: Form,
    rules: DraftRules,
    previous: Listing | None,
    *,
    endpoint: str | None,
    forwarded: tuple[str, ...],
) -> UpstreamAuth | None:
    if form.is_null("upstreamAuth"):
        return None
    if form.has("upstreamAuth"):
        auth = _read_upstream_auth(form)
    else:
        auth = previous.upstream_auth if previous is not None else None
    if auth is None:
        return None
    if auth.location == "header" and auth.name.lower() in {name.lower() for name in forwarded}:
        form.refuse("forwardHeaders", "conflict", f"{auth.name} is set by upstreamAuth")
    is_plain = endpoint is not None and not endpoint.lower().startswith("https:")
    if is_plain and not rules.allow_private_endpoints:
        form.refuse("endpoint", "endpoint", "must be https: the gateway sends the listing's secret there")
    return auth


def _read_upstream_auth(form: Form) -> UpstreamAuth | None:
    auth = form.form("upstreamAuth")
    if auth is None:
        return None
    auth.refuse_unknown(("in", "name", "value"))
    location = auth.choice("in", ("header", "query"))
    name = auth.required_text("name", length_max=HEADER_NAME_LENGTH_MAX)
    value = auth.required_text("value", length_max=SECRET_LENGTH_MAX)
    if location == "header" and name is not None:
        _check_header(auth, "/upstreamAuth/name", name)
    elif name is not None and not _QUERY_NAME.fullmatch(name):
        auth.refuse("name", "name", "must be letters, digits, and - . _ ~")
    if value is not None and not _SECRET.fullmatch(value):
        auth.refuse("value", "bad_character", "must be printable ASCII without spaces around it")
    if location is None or name is None or value is None:
        return None
    return UpstreamAuth(location=cast(Literal["header", "query"], location), name=name, value=value)


def _openapi(form: Form, previous: Listing | None) -> Mapping[str, Any] | None:
    if not form.has("openapi"):
        # A new address for the document is fetched by the caller, and replaces what was there.
        return previous.openapi if previous is not None else None
    if form.is_null("openapi"):
        return None
    document = form.object("openapi")
    fault = find_document_fault(document) if document is not None else None
    if fault is not None:
        form.refuse("openapi", "openapi", fault)
    return document


def _openapi_url(form: Form, previous: Listing | None) -> str | None:
    if not form.has("openapiUrl"):
        return previous.openapi_url if previous is not None else None
    if form.is_null("openapiUrl"):
        return None
    url = form.text("openapiUrl", length_max=URL_LENGTH_MAX)
    if url is not None and not _DOCUMENT_URL.fullmatch(url):
        form.refuse("openapiUrl", "url", "must be an absolute http(s) URL without user name and fragment")
    return url


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
