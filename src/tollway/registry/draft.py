"""The body of a listing's create and update: its rules, all its errors at once, and the warnings about a valid listing. Pure.

It sends no request. `DraftRules` holds what this gateway accepts; one of its functions checks whether an endpoint may be called. The caller of this module
checks whether the endpoint answers.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from tollway.errors import FieldError
from tollway.ids import ZERO_ADDRESS, Address, ChainId, ListingId, parse_network
from tollway.limits import MIB
from tollway.money import Asset, Price
from tollway.registry.header_names import is_header_name, is_reserved_header
from tollway.registry.listing import (
    ChargeOn,
    ForwardSignature,
    Listing,
    Operation,
    RateLimit,
    UpstreamAuth,
    has_documented_operations,
    list_unforwarded,
    payable_assets,
)
from tollway.registry.object_reader import ObjectReader
from tollway.registry.openapi import DOCUMENT_OPERATIONS_MAX, count_operations
from tollway.registry.paths import find_path_fault, path_shape
from tollway.registry.text import find_unclean

ENDPOINT_POLICY = "endpoint_not_allowed"
"""The code of the error that is about the outbound policy and not about the form of the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFault:
    """The reason why an endpoint cannot be listed. `is_policy`: its form is valid, but this gateway may not call it."""

    detail: str
    is_policy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRules:
    """What this gateway accepts in a listing. A currency is the symbol of an accepted asset; `assets` are in the operator's
    order of preference. `main_networks` are the default of a new listing, as far as they accept its currency."""

    assets: tuple[Asset, ...]
    main_networks: frozenset[ChainId]
    allow_private_endpoints: bool
    check_endpoint: Callable[[str], EndpointFault | None]

    def networks_of(self, currency: str) -> tuple[ChainId, ...]:
        """The networks on which a currency is accepted."""
        return tuple(dict.fromkeys(asset.chain_id for asset in self.assets if asset.symbol == currency))

    def default_networks(self, currency: str) -> tuple[ChainId, ...]:
        """The main networks that accept the currency; when there are none, the test networks that do."""
        accepted = self.networks_of(currency)
        return tuple(chain_id for chain_id in accepted if chain_id in self.main_networks) or accepted


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
    "forwardSignature",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A valid body. `pay_to` None: the provider's own wallet.

    `is_document_wanted`: the body has `openapi_url` and no document, so the caller must fetch the document.
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
    forward_signature: ForwardSignature


def parse_draft(
    body: object, rules: DraftRules, *, previous: Listing | None
) -> Draft | tuple[FieldError, ...]:
    """The body of a create (`previous` None) or of an update, or all its errors, at most `ERRORS_MAX`.

    Absent fields take their default. In an update, absent `upstreamAuth`, `openapi` and `openapiUrl` keep their values,
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
        forward_signature=cast(ForwardSignature, _choice(reader, "forwardSignature", ("ed25519", "none"))),
    )
    is_known = not draft.is_document_wanted and not any(one.pointer == "/openapi" for one in reader.errors)
    conflict = find_nothing_served(draft) if is_known and not reader.has("operations") else None
    if conflict is not None:
        reader.refuse("otherPaths", conflict.code, conflict.detail)
    # A draft with a substitute value (an empty name, a price of zero) is not returned: each of them has an error.
    return tuple(reader.errors) or draft


def find_nothing_served(draft: Draft) -> FieldError | None:
    """The error of a listing that serves only the paths of its operations and has no operation, priced or documented."""
    is_open = draft.other_paths == "serve" or bool(draft.operations)
    if is_open or has_documented_operations(draft.openapi, draft.methods):
        return None
    detail = (
        "must be serve, or the listing needs an operation, priced or in the document: it would serve no path"
    )
    return FieldError(code="conflict", detail=detail, pointer="/otherPaths")


def create_listing(draft: Draft, *, listing_id: ListingId, provider: Address, now_ms: int) -> Listing:
    """The new listing of a draft."""
    return _to_listing(
        draft, listing_id=listing_id, provider=provider, created_ms=now_ms, updated_ms=now_ms, revision=1
    )


def edit_listing(draft: Draft, previous: Listing, *, now_ms: int) -> Listing:
    """The listing after an update. A suspension by the operator stays."""
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
        forward_signature=draft.forward_signature,
        created_ms=created_ms,
        updated_ms=updated_ms,
        revision=revision,
        suspended_ms=suspended_ms,
    )


def _is_given(reader: ObjectReader, name: str) -> bool:
    return reader.has(name) and not reader.is_null(name)


def _choice(reader: ObjectReader, name: str, options: tuple[str, ...]) -> str:
    """The chosen option; the first one when the member is absent or wrong."""
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


PATH_LENGTH_MAX = 2_048
METHODS_MAX = 16
PRICED_OPERATIONS_MAX = 200
NETWORKS_MAX = 32

# Upper case only: methods are case-sensitive (RFC 9110 §9.1), and servers do not support `get`.
_METHOD = re.compile(r"[A-Z][A-Z0-9-]{0,31}")
_TUNNELS = frozenset({"CONNECT", "TRACE"})


def read_currency(reader: ObjectReader, rules: DraftRules) -> str | None:
    if not reader.has("currency"):
        reader.refuse("currency", "required", "is required")
        return None
    return reader.one_of("currency", tuple(dict.fromkeys(asset.symbol for asset in rules.assets)))


def read_networks(reader: ObjectReader, rules: DraftRules, currency: str | None) -> tuple[ChainId, ...]:
    if not reader.has("networks"):
        return rules.default_networks(currency) if currency else ()
    accepted = rules.networks_of(currency) if currency else ()
    networks = []
    texts = reader.texts("networks", count_max=NETWORKS_MAX, length_max=32)
    for pointer, text in texts or ():
        try:
            chain_id = parse_network(text)
        except ValueError as exc:
            reader.refuse_at(pointer, "network", str(exc))
            continue
        networks.append(chain_id)
        if currency and chain_id not in accepted:
            reader.refuse_at(pointer, "network", f"{currency} is not accepted on {text}")
    if reader.is_empty("networks"):
        reader.refuse("networks", "too_few", "must name at least one network")
    return tuple(networks)


def find_decimals_max(rules: DraftRules, currency: str | None, networks: tuple[ChainId, ...]) -> int | None:
    """The smallest number of decimals that the ledger keeps over the assets of the listing; None when it has no asset."""
    payable = payable_assets(rules.assets, currency=currency or "", networks=networks)
    return min((asset.ledger_decimals for asset in payable), default=None)


def read_price(reader: ObjectReader, decimals_max: int | None, *, is_required: bool) -> Price | None:
    if is_required and not reader.has("pricePerRequest"):
        reader.refuse("pricePerRequest", "required", "is required")
        return None
    price = reader.parsed("pricePerRequest", Price.parse, code="price", length_max=64)
    if price is not None and decimals_max is not None and price.decimals > decimals_max:
        reader.refuse("pricePerRequest", "price", f"must have at most {decimals_max} decimals")
    return price


def read_pay_to(reader: ObjectReader, rules: DraftRules) -> Address | None:
    if not reader.has("payTo"):
        return None
    pay_to = reader.parsed("payTo", Address.parse, code="address", length_max=64)
    if pay_to == ZERO_ADDRESS:
        reader.refuse("payTo", "address", "must not be the zero address: no key can spend from it")
    elif pay_to is not None and any(asset.token == pay_to for asset in rules.assets):
        reader.refuse("payTo", "address", "must be a wallet, not a token contract")
    return pay_to


def read_methods(reader: ObjectReader) -> tuple[str, ...]:
    if not reader.has("methods"):
        return ()
    methods = reader.texts("methods", count_max=METHODS_MAX, length_max=32) or []
    for pointer, method in methods:
        _check_method(reader, pointer, method)
    return tuple(method for _, method in methods)


def _check_method(reader: ObjectReader, pointer: str, method: str) -> None:
    if not _METHOD.fullmatch(method):
        reader.refuse_at(pointer, "method", "must be an HTTP method in upper case")
    elif method in _TUNNELS:
        reader.refuse_at(pointer, "method", f"{method} does not go through a gateway")


def read_operations(
    reader: ObjectReader, decimals_max: int | None, methods: tuple[str, ...]
) -> tuple[Operation, ...]:
    if not reader.has("operations"):
        return ()
    operations = []
    seen: set[tuple[str, str]] = set()
    for pointer, row in reader.readers("operations", count_max=PRICED_OPERATIONS_MAX) or ():
        operation = _operation(row, pointer, decimals_max)
        if operation is None:
            continue
        key = (operation.method, path_shape(operation.path))
        if key in seen:
            reader.refuse_at(pointer, "duplicate", "another operation has the same method and path")
        elif methods and operation.method not in methods:
            reader.refuse_at(f"{pointer}/method", "method", "is not among the listing's methods")
        seen.add(key)
        operations.append(operation)
    return tuple(operations)


def _operation(row: ObjectReader, pointer: str, decimals_max: int | None) -> Operation | None:
    row.refuse_unknown(("method", "path", "pricePerRequest"))
    method = row.required_text("method", length_max=32)
    path = row.required_text("path", length_max=PATH_LENGTH_MAX)
    price = read_price(row, decimals_max, is_required=True)
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


URL_LENGTH_MAX = 2_048
FORWARD_HEADERS_MAX, HEADER_NAME_LENGTH_MAX = 20, 128
SECRET_LENGTH_MAX = 4_096
DOCUMENT_BYTES_MAX = 1 * MIB

_OPENAPI_VERSION = re.compile(r"3\.[012](\.[0-9]+)?(-[0-9A-Za-z.-]+)?")
_DOCUMENT_URL = re.compile(
    r"https?://[A-Za-z0-9._~%\[\]:-]+(/[\x21-\x22\x24-\x7e]*)?(\?[\x21-\x22\x24-\x7e]*)?"
)
_QUERY_NAME = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def read_endpoint(reader: ObjectReader, rules: DraftRules) -> str | None:
    endpoint = reader.required_text("endpoint", length_max=URL_LENGTH_MAX)
    if endpoint is None:
        return None
    fault = rules.check_endpoint(endpoint)
    if fault is not None:
        reader.refuse("endpoint", ENDPOINT_POLICY if fault.is_policy else "endpoint", fault.detail)
    return endpoint


def read_forward_headers(reader: ObjectReader) -> tuple[str, ...]:
    if not reader.has("forwardHeaders"):
        return ()
    names = reader.texts("forwardHeaders", count_max=FORWARD_HEADERS_MAX, length_max=HEADER_NAME_LENGTH_MAX)
    for pointer, name in names or ():
        _check_header(reader, pointer, name)
    return tuple(name for _, name in names or ())


def _check_header(reader: ObjectReader, pointer: str, name: str) -> None:
    if not is_header_name(name):
        reader.refuse_at(pointer, "header", "must be a header name of letters, digits and -")
    elif is_reserved_header(name):
        reader.refuse_at(pointer, "header", f"{name} belongs to HTTP or to the gateway")


def read_upstream_auth(
    reader: ObjectReader,
    rules: DraftRules,
    previous: Listing | None,
    *,
    endpoint: str | None,
    forwarded: tuple[str, ...],
) -> UpstreamAuth | None:
    if reader.is_null("upstreamAuth"):
        return None
    if reader.has("upstreamAuth"):
        auth = _read_secret(reader)
    else:
        auth = previous.upstream_auth if previous is not None else None
    if auth is None:
        return None
    if auth.location == "header" and auth.name.lower() in {name.lower() for name in forwarded}:
        reader.refuse("forwardHeaders", "conflict", f"{auth.name} is set by upstreamAuth")
    is_plain = endpoint is not None and not endpoint.lower().startswith("https:")
    if is_plain and not rules.allow_private_endpoints:
        reader.refuse("endpoint", "endpoint", "must be https: the gateway sends the listing's secret there")
    return auth


def _read_secret(reader: ObjectReader) -> UpstreamAuth | None:
    auth = reader.reader("upstreamAuth")
    if auth is None:
        return None
    auth.refuse_unknown(("in", "name", "value"))
    location = auth.one_of("in", ("header", "query"))
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


def read_openapi(reader: ObjectReader, previous: Listing | None) -> Mapping[str, Any] | None:
    if not reader.has("openapi"):
        # The caller fetches the document of a new `openapiUrl`, which then replaces this one.
        return previous.openapi if previous is not None else None
    if reader.is_null("openapi"):
        return None
    document = reader.object("openapi")
    fault = find_document_fault(document) if document is not None else None
    if fault is not None:
        reader.refuse("openapi", "openapi", fault)
    return document


def find_document_fault(document: Mapping[str, Any]) -> str | None:
    """The reason why a document cannot be listed; None when it can. Its operations and schemas are not checked here: parts
    that cannot be read are left out later."""
    if "swagger" in document:
        return "is Swagger 2.0; convert it to OpenAPI 3.0 or later"
    version = document.get("openapi")
    if not isinstance(version, str) or not _OPENAPI_VERSION.fullmatch(version):
        return "must be an OpenAPI 3.0, 3.1 or 3.2 document (`openapi: 3.x`)"
    if not isinstance(document.get("paths", {}), Mapping):
        return "must have an object of paths"
    count = count_operations(document)
    if count > DOCUMENT_OPERATIONS_MAX:
        return f"must have at most {DOCUMENT_OPERATIONS_MAX} operations; it has {count}"
    try:
        size = len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
    except UnicodeEncodeError:
        return "must be text that UTF-8 can write"
    if size > DOCUMENT_BYTES_MAX:
        return f"must have at most {DOCUMENT_BYTES_MAX} bytes"
    return None


def read_openapi_url(reader: ObjectReader, previous: Listing | None) -> str | None:
    if not reader.has("openapiUrl"):
        return previous.openapi_url if previous is not None else None
    if reader.is_null("openapiUrl"):
        return None
    url = reader.text("openapiUrl", length_max=URL_LENGTH_MAX)
    if url is not None and not _DOCUMENT_URL.fullmatch(url):
        reader.refuse("openapiUrl", "url", "must be an absolute http(s) URL without user name and fragment")
    return url


HEADERS_NAMED_MAX = 5

_STOCK_PRICE_NANO_MAX = 10**9
"""Stock x402 clients pay at most one dollar a call by default."""

# The networks on which they accept USDC by default and for which a preset exists (x402 core 2.27, x402-py 2.25).
_STOCK_USDC_NETWORKS = frozenset(ChainId(number) for number in (1, 137, 8453, 42161, 84532, 421614))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingWarning:
    """A warning about a valid listing: `code` for machines, `detail` for people, `pointer` (RFC 6901) to the field."""

    code: str
    detail: str
    pointer: str


PAYTO_SHARED = ListingWarning(
    code="payto_shared",
    detail="A listing of another provider has the same payTo. A payment to this wallet can be used there too.",
    pointer="/payTo",
)
ENDPOINT_UNPROTECTED = ListingWarning(
    code="endpoint_unprotected",
    detail="The endpoint answers without the listing's secret, so callers can use it without payment. Require the secret there.",
    pointer="/endpoint",
)


def list_warnings(listing: Listing, assets: Iterable[Asset]) -> tuple[ListingWarning, ...]:
    """The warnings that depend on the listing and the accepted assets only."""
    return (*_warn_about_price(listing, assets), *_warn_about_headers(listing))


def _warn_about_headers(listing: Listing) -> tuple[ListingWarning, ...]:
    names = list_unforwarded(listing, most=HEADERS_NAMED_MAX)
    if not names:
        return ()
    detail = (
        f"The document requires or allows headers that forwardHeaders does not contain: {', '.join(names)}."
    )
    return (ListingWarning(code="header_not_forwarded", detail=detail, pointer="/forwardHeaders"),)


def _warn_about_price(listing: Listing, assets: Iterable[Asset]) -> tuple[ListingWarning, ...]:
    prices = [listing.price, *(operation.price for operation in listing.operations)]
    if all(price.is_free for price in prices):
        return ()
    found = []
    payable = payable_assets(assets, currency=listing.currency, networks=listing.networks)
    if not any(_is_stock(asset) for asset in payable):
        found.append(
            ListingWarning(
                code="unusual_currency",
                detail="Stock x402 clients do not pay in this currency on these networks by default.",
                pointer="/currency",
            )
        )
    elif _highest_price(prices).nano > _STOCK_PRICE_NANO_MAX:
        found.append(
            ListingWarning(
                code="price_above_client_default",
                detail="Stock x402 clients pay at most 1 dollar a call by default.",
                pointer="/pricePerRequest",
            )
        )
    return tuple(found)


def _is_stock(asset: Asset) -> bool:
    return asset.symbol == "USDC" and asset.token is not None and asset.chain_id in _STOCK_USDC_NETWORKS


def _highest_price(prices: Iterable[Price]) -> Price:
    return max(prices, key=lambda price: price.nano)
