"""The body of a listing's create and update: its model, its rules, all its errors at once, and the warnings about a valid listing. Pure.

It sends no request. `DraftRules` holds what this gateway accepts; one of its functions checks whether an endpoint may be called. The caller of this module
checks whether the endpoint answers.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, Strict, ValidationInfo

from tollway.chain.channel_contract import DEPOSIT_COLLECTOR, SETTLEMENT_CONTRACT
from tollway.errors import FieldError
from tollway.ids import ZERO_ADDRESS, Address, ChainId, ListingId, parse_network
from tollway.limits import MIB
from tollway.money import Asset, Price
from tollway.registry.document_fit import fit_document, measure_document
from tollway.registry.header_names import is_header_name, is_reserved_header
from tollway.registry.listing import (
    ChargeOn,
    ForwardSignature,
    FreeCalls,
    Listing,
    ListingMembers,
    Operation,
    RateLimit,
    UpstreamAuth,
    has_documented_operations,
    moves_secret,
    payable_assets,
)
from tollway.registry.listing_fields import FIELDS
from tollway.registry.metering import Metering, list_usage_headers
from tollway.registry.metering_body import read_metering
from tollway.registry.openapi import DOCUMENT_OPERATIONS_MAX, count_operations
from tollway.registry.paths import find_path_fault, path_shape
from tollway.registry.text import (
    CONTACT_EXAMPLE,
    LINK_LENGTH_MAX,
    PAGE_EXAMPLE,
    find_refused_character,
    is_contact,
    is_page_url,
)
from tollway.validation import (
    RequestModel,
    WireError,
    add_value,
    check_members,
    context_of,
    in_range,
    list_errors,
    read_list,
    read_parsed,
    read_texts,
    to_field_error,
    value_error,
    value_errors,
)

ENDPOINT_POLICY = "endpoint_not_allowed"
"""The code of the error that is about the outbound policy and not about the form of the body."""

ERRORS_MAX = 100
NAME_LENGTH_MAX = 120
DESCRIPTION_LENGTH_MAX = 4_000
TAGS_MAX, TAG_LENGTH_MAX = 5, 32
TIMEOUT_S_DEFAULT, TIMEOUT_S_MAX = 30, 300
RATE_CALLS_MAX, RATE_PER_S_MAX = 1_000_000, 86_400
FREE_CALLS_MAX, FREE_PER_S_MAX = 1_000_000, 31_536_000
PATH_LENGTH_MAX = 2_048
METHODS_MAX, METHOD_LENGTH_MAX = 16, 32
PRICED_OPERATIONS_MAX = 200
NETWORKS_MAX, NETWORK_LENGTH_MAX = 32, 32
PRICE_LENGTH_MAX = ADDRESS_LENGTH_MAX = 64
URL_LENGTH_MAX = 2_048
FORWARD_HEADERS_MAX, HEADER_NAME_LENGTH_MAX = 20, 128
SECRET_LENGTH_MAX = 4_096
DOCUMENT_BYTES_MAX = 1 * MIB
DOCUMENT_VALUES_MAX = 65_000
"""Of a document that is shortened: with the other members of a listing it can be sent again as a body."""


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
        return tuple(dict.fromkeys(asset.chain_id for asset in self.assets if asset.symbol == currency))

    def default_networks(self, currency: str) -> tuple[ChainId, ...]:
        """The main networks that accept the currency; when there are none, the test networks that do."""
        accepted = self.networks_of(currency)
        return tuple(chain_id for chain_id in accepted if chain_id in self.main_networks) or accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft(ListingMembers):
    """A valid body. `pay_to` None: the provider's own wallet.

    `is_document_wanted`: the body has `openapi_url` and no document, so the caller must fetch the document.
    """

    pay_to: Address | None
    is_document_wanted: bool


def parse_draft(
    body: object, rules: DraftRules, *, previous: Listing | None, given: Mapping[str, Any] | None = None
) -> Draft | tuple[FieldError, ...]:
    """The body of a create (`previous` None) or of an update, or all its errors, at most `ERRORS_MAX`.

    Absent fields take their default. In an update, absent `upstreamAuth`, `openapi` and `openapiUrl` keep their values,
    and `null` removes them. An update that keeps the secret and moves the endpoint to another origin is refused. `given`: the members that the provider
    sent, where `body` has others too; None: `body`. Other errors are in the order of the fields of `ListingBody`.
    """
    if not isinstance(body, dict):
        return (FieldError(code="type", detail="the body must be a JSON object", pointer=""),)
    checked = check_members(
        ListingBody,
        body,
        rules=rules,
        check_between=lambda values: _check_between_members(values, body, rules, previous),
    )
    lost = () if previous is None else _find_lost_secret(body if given is None else given, previous)
    if checked.model is None:
        return (*lost, *(to_field_error(*error) for error in checked.errors))[:ERRORS_MAX]
    return lost or _to_draft(checked.model, rules, previous)


def _find_lost_secret(given: Mapping[str, Any], previous: Listing) -> tuple[FieldError, ...]:
    if not moves_secret(given, previous):
        return ()
    detail = (
        "must be given again: the endpoint moves to another origin, and the gateway sends the secret there"
    )
    return (FieldError(code="required", detail=detail, pointer="/upstreamAuth/value"),)


def find_nothing_served(
    *,
    other_paths: Literal["serve", "refuse"],
    operations: tuple[Operation, ...],
    openapi: Mapping[str, Any] | None,
    methods: tuple[str, ...],
) -> FieldError | None:
    """The error of a listing that serves only the paths of its operations and has no operation, priced or documented."""
    if other_paths == "serve" or operations or has_documented_operations(openapi, methods):
        return None
    detail = (
        "must be serve, or the listing needs an operation, priced or in the document: it would serve no path"
    )
    return FieldError(code="conflict", detail=detail, pointer="/otherPaths")


def create_listing(draft: Draft, *, listing_id: ListingId, provider: Address, now_ms: int) -> Listing:
    return _to_listing(
        draft, listing_id=listing_id, provider=provider, created_ms=now_ms, updated_ms=now_ms, revision=1
    )


def edit_listing(draft: Draft, previous: Listing, *, now_ms: int) -> Listing:
    """A suspension by the operator stays."""
    edited = _to_listing(
        draft,
        listing_id=previous.id,
        provider=previous.provider,
        created_ms=previous.created_ms,
        updated_ms=now_ms,
        revision=previous.revision + 1,
    )
    return replace(edited, suspended_ms=previous.suspended_ms, suspended_reason=previous.suspended_reason)


def _to_listing(
    draft: Draft,
    *,
    listing_id: ListingId,
    provider: Address,
    created_ms: int,
    updated_ms: int,
    revision: int,
) -> Listing:
    members = {field.attribute: getattr(draft, field.attribute) for field in FIELDS}
    return Listing(
        id=listing_id,
        provider=provider,
        **{**members, "pay_to": draft.pay_to or provider},
        created_ms=created_ms,
        updated_ms=updated_ms,
        revision=revision,
    )


# The members of the body, each with its rule. A rule reads the members above it in `Context.values`.


def _check_name(name: str) -> str:
    _refuse_unclean(name)
    if not name.strip():
        raise value_error("too_short", "must not be blank")
    return name


def _check_description(description: str) -> str:
    _refuse_unclean(description, is_multiline=True)
    return description


def _refuse_unclean(text: str, *, is_multiline: bool = False) -> None:
    unclean = find_refused_character(text, is_multiline=is_multiline)
    if unclean is not None:
        raise value_error("bad_character", f"must not hold control or invisible characters ({unclean})")


def _read_currency(value: object, info: ValidationInfo) -> str:
    symbols = tuple(dict.fromkeys(asset.symbol for asset in context_of(info).rules.assets))
    if not isinstance(value, str) or value not in symbols:
        raise value_error("unknown_value", "must be one of: " + ", ".join(symbols))
    return value


def _read_networks(value: object, info: ValidationInfo) -> tuple[ChainId, ...]:
    rules, currency = context_of(info).rules, context_of(info).values.get("currency")
    readable: list[ChainId] = []

    def parse(text: str) -> ChainId:
        try:
            chain_id = parse_network(text)
        except ValueError as exc:
            raise value_error("network", str(exc)) from exc
        readable.append(chain_id)
        add_value(info, tuple(readable))
        if currency is not None and chain_id not in rules.networks_of(currency):
            raise value_error("network", f"{currency} is not accepted on {text}")
        return chain_id

    networks = read_texts(value, None, parse, count_max=NETWORKS_MAX, length_max=NETWORK_LENGTH_MAX)
    if not networks:
        raise value_error("too_few", "must name at least one network")
    return networks


def _read_price(value: object, info: ValidationInfo) -> Price:
    return _parse_price(value, info, _find_decimals_max(info))


def _parse_price(value: object, info: ValidationInfo, decimals_max: int | None) -> Price:
    price = read_parsed(value, Price.parse, code="price", length_max=PRICE_LENGTH_MAX)
    add_value(info, price)
    if decimals_max is not None and price.decimals > decimals_max:
        raise value_error("price", f"must have at most {decimals_max} decimals")
    return price


def _find_decimals_max(info: ValidationInfo) -> int | None:
    """The smallest number of decimals that the ledger keeps over the assets of the listing; None when it has no asset."""
    rules, currency = context_of(info).rules, context_of(info).values.get("currency")
    if currency is None:
        return None
    # Networks that are absent from the body are in `info.data` with their default, refused ones are not.
    networks = context_of(info).values.get("networks", ())
    if not networks and "networks" in info.data:
        networks = rules.default_networks(currency)
    payable = payable_assets(rules.assets, currency=currency, networks=networks)
    return min((asset.ledger_decimals for asset in payable), default=None)


def _check_endpoint(endpoint: str, info: ValidationInfo) -> str:
    add_value(info, endpoint)
    fault = context_of(info).rules.check_endpoint(endpoint)
    if fault is not None:
        raise value_error(ENDPOINT_POLICY if fault.is_policy else "endpoint", fault.detail)
    return endpoint


# Upper case only: methods are case-sensitive (RFC 9110 §9.1), and servers do not support `get`.
_METHOD = re.compile(r"[A-Z][A-Z0-9-]{0,31}")
_TUNNELS = frozenset({"CONNECT", "TRACE"})


def _read_methods(value: object, info: ValidationInfo) -> tuple[str, ...]:
    return read_texts(value, info, _check_method, count_max=METHODS_MAX, length_max=METHOD_LENGTH_MAX)


def _check_method(method: str) -> str:
    if not _METHOD.fullmatch(method):
        raise value_error("method", "must be an HTTP method in upper case")
    if method in _TUNNELS:
        raise value_error("method", f"{method} does not go through a gateway")
    return method


def _read_tags(value: object, info: ValidationInfo) -> tuple[str, ...]:
    return read_texts(value, info, _check_tag, count_max=TAGS_MAX, length_max=TAG_LENGTH_MAX)


def _check_tag(tag: str) -> str:
    _refuse_unclean(tag)
    if tag != tag.strip():
        raise value_error("tag", "must not begin or end with a space")
    return tag


def _read_pay_to(value: object, info: ValidationInfo) -> Address:
    pay_to = read_parsed(value, Address.parse, code="address", length_max=ADDRESS_LENGTH_MAX)
    if pay_to == ZERO_ADDRESS:
        raise value_error("address", "must not be the zero address: no key can spend from it")
    if any(asset.token == pay_to for asset in context_of(info).rules.assets):
        raise value_error("address", "must be a wallet, not a token contract")
    if pay_to in (SETTLEMENT_CONTRACT, DEPOSIT_COLLECTOR):
        raise value_error("address", "must be a wallet, not a contract of payment channels")
    return pay_to


def _read_forward_headers(value: object, info: ValidationInfo) -> tuple[str, ...]:
    return read_texts(
        value, info, _check_header, count_max=FORWARD_HEADERS_MAX, length_max=HEADER_NAME_LENGTH_MAX
    )


def _check_header(name: str) -> str:
    if not is_header_name(name):
        raise value_error("header", "must be a header name of letters, digits and -")
    if is_reserved_header(name):
        raise value_error("header", f"{name} belongs to HTTP or to the gateway")
    return name


def _read_metering(value: object, info: ValidationInfo) -> Metering | None:
    """`price`, or `price_per_request` of an operation, stands above it."""
    values = context_of(info).values
    return read_metering(value, maximum=values.get("price", values.get("price_per_request")))


class OperationBody(RequestModel):
    """A priced operation. The rules of its method and path follow in `_read_operation`, after the errors of form."""

    method: Annotated[str, Strict(), Field(min_length=1, max_length=METHOD_LENGTH_MAX)]
    path: Annotated[str, Strict(), Field(min_length=1, max_length=PATH_LENGTH_MAX)]
    price_per_request: Annotated[
        Price, PlainValidator(lambda value, info: _parse_price(value, info, context_of(info).rules))
    ]
    metering: Annotated[Metering | None, PlainValidator(_read_metering)] = None


def _read_operations(value: object, info: ValidationInfo) -> tuple[Operation, ...]:
    methods, decimals_max = context_of(info).values.get("methods", ()), _find_decimals_max(info)
    operations: list[Operation] = []
    errors: list[WireError] = []
    seen: set[tuple[str, str]] = set()
    for index, row in enumerate(read_list(value, count_max=PRICED_OPERATIONS_MAX)):
        operation, wrong = _read_operation(row, decimals_max)
        if operation is not None:
            key = (operation.method, path_shape(operation.path))
            if key in seen:
                wrong.append(((), "duplicate", "another operation has the same method and path"))
            elif methods and operation.method not in methods:
                wrong.append((("method",), "method", "is not among the listing's methods"))
            seen.add(key)
            operations.append(operation)
        errors += [((index, *location), code, detail) for location, code, detail in wrong]
    if errors:
        raise value_errors(errors)
    return tuple(operations)


def _read_operation(row: object, decimals_max: int | None) -> tuple[Operation | None, list[WireError]]:
    """The operation, None where a member is missing or malformed, and all its errors."""
    if not isinstance(row, dict):
        return None, [((), "type", "must be an object")]
    checked = check_members(OperationBody, row, rules=decimals_max)
    method, path, errors = checked.values.get("method"), checked.values.get("path"), list(checked.errors)
    price = checked.values.get("price_per_request")
    if method == "HEAD":
        errors.append((("method",), "method", "HEAD costs what GET costs"))
    elif method is not None:
        errors += list_errors("method", _check_method, method)
    fault = None if path is None else find_path_fault(path)
    if fault is not None:
        errors.append((("path",), "path", fault))
    if method is None or path is None or price is None:
        return None, errors
    return Operation(method=method, path=path, price=price, metering=checked.values.get("metering")), errors


_QUERY_NAME = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class UpstreamAuthBody(RequestModel):
    """A secret for the upstream. The rules of its name and value follow in `_read_upstream_auth`, after the errors of form."""

    location: Literal["header", "query"] = Field(alias="in")
    name: Annotated[str, Strict(), Field(min_length=1, max_length=HEADER_NAME_LENGTH_MAX)]
    value: Annotated[str, Strict(), Field(min_length=1, max_length=SECRET_LENGTH_MAX)]


def _read_upstream_auth(members: object, info: ValidationInfo) -> UpstreamAuth | None:
    if members is None:
        return None
    if not isinstance(members, dict):
        raise value_error("type", "must be an object")
    checked = check_members(UpstreamAuthBody, {"in": None, **members})
    location, name, value = (checked.values.get(field) for field in ("location", "name", "value"))
    auth = None
    if checked.model is not None:
        auth = UpstreamAuth(
            location=checked.model.location, name=checked.model.name, value=checked.model.value
        )
        add_value(info, auth)
    errors = list(checked.errors)
    if location == "header" and name is not None:
        errors += list_errors("name", _check_header, name)
    elif name is not None and not _QUERY_NAME.fullmatch(name):
        errors.append((("name",), "name", "must be letters, digits, and - . _ ~"))
    if value is not None and not _SECRET.fullmatch(value):
        errors.append((("value",), "bad_character", "must be printable ASCII without spaces around it"))
    if errors:
        raise value_errors(errors)
    return auth


class RateLimitBody(RequestModel):
    """An absent member is an error of its type."""

    calls: Annotated[int, Strict(), AfterValidator(in_range(1, RATE_CALLS_MAX))]
    per_seconds: Annotated[int, Strict(), AfterValidator(in_range(1, RATE_PER_S_MAX))]


def _read_rate_limit(members: object) -> RateLimit | None:
    if members is None:
        return None
    if not isinstance(members, dict):
        raise value_error("type", "must be an object")
    checked = check_members(RateLimitBody, {"calls": None, "perSeconds": None, **members})
    if checked.model is None:
        raise value_errors(checked.errors)
    return RateLimit(calls=checked.model.calls, per_s=checked.model.per_seconds)


class FreeCallsBody(RequestModel):
    """An absent count is an error of its type."""

    count: Annotated[int, Strict(), AfterValidator(in_range(1, FREE_CALLS_MAX))]
    per_seconds: Annotated[int, Strict(), AfterValidator(in_range(1, FREE_PER_S_MAX))] | None = None


def _read_free_calls(members: object) -> FreeCalls | None:
    if members is None:
        return None
    if not isinstance(members, dict):
        raise value_error("type", "must be an object")
    checked = check_members(FreeCallsBody, {"count": None, **members})
    if checked.model is None:
        raise value_errors(checked.errors)
    return FreeCalls(count=checked.model.count, per_s=checked.model.per_seconds)


_OPENAPI_VERSION = re.compile(r"3\.[012](\.[0-9]+)?(-[0-9A-Za-z.-]+)?")
_DOCUMENT_URL = re.compile(
    r"https?://[A-Za-z0-9._~%\[\]:-]+(/[\x21-\x22\x24-\x7e]*)?(\?[\x21-\x22\x24-\x7e]*)?"
)


def _read_openapi(document: object) -> Mapping[str, Any] | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        raise value_error("type", "must be an object")
    fault = find_document_fault(document)
    if fault is not None:
        raise value_error("openapi", fault)
    return document


def _check_document_url(url: str) -> str:
    if not _DOCUMENT_URL.fullmatch(url):
        raise value_error("url", "must be an absolute http(s) URL without user name and fragment")
    return url


def _check_contact(text: str) -> str:
    if not is_contact(text):
        raise value_error("url", f"must be such as {CONTACT_EXAMPLE}, at most {LINK_LENGTH_MAX} characters")
    return text


def _check_page(text: str) -> str:
    if not is_page_url(text):
        raise value_error("url", f"must be such as {PAGE_EXAMPLE}, at most {LINK_LENGTH_MAX} characters")
    return text


class ListingBody(RequestModel):
    """The members of a create and of an update, in the order of their errors. Their names are those of `ListingMembers`."""

    name: Annotated[
        str, Strict(), Field(min_length=1, max_length=NAME_LENGTH_MAX), AfterValidator(_check_name)
    ]
    currency: Annotated[str, PlainValidator(_read_currency)]
    networks: Annotated[tuple[ChainId, ...], PlainValidator(_read_networks)] = ()  # empty: the default ones
    price: Annotated[Price, PlainValidator(_read_price), Field(alias="pricePerRequest")]
    metering: Annotated[Metering | None, PlainValidator(_read_metering)] = None
    endpoint: Annotated[
        str, Strict(), Field(min_length=1, max_length=URL_LENGTH_MAX), AfterValidator(_check_endpoint)
    ]
    methods: Annotated[tuple[str, ...], PlainValidator(_read_methods)] = ()
    operations: Annotated[tuple[Operation, ...], PlainValidator(_read_operations)] = ()
    forward_headers: Annotated[tuple[str, ...], PlainValidator(_read_forward_headers)] = ()
    description: Annotated[
        str, Strict(), Field(max_length=DESCRIPTION_LENGTH_MAX), AfterValidator(_check_description)
    ] = ""
    pay_to: Annotated[Address | None, PlainValidator(_read_pay_to)] = None
    tags: Annotated[tuple[str, ...], PlainValidator(_read_tags)] = ()
    other_paths: Literal["serve", "refuse"] = "serve"
    charge_on: ChargeOn = ChargeOn.SUCCESS
    timeout_s: Annotated[
        int, Strict(), AfterValidator(in_range(1, TIMEOUT_S_MAX)), Field(alias="timeoutSeconds")
    ] = TIMEOUT_S_DEFAULT
    upstream_auth: Annotated[UpstreamAuth | None, PlainValidator(_read_upstream_auth)] = None
    openapi: Annotated[Mapping[str, Any] | None, PlainValidator(_read_openapi)] = None
    openapi_url: (
        Annotated[str, Strict(), Field(max_length=URL_LENGTH_MAX), AfterValidator(_check_document_url)] | None
    ) = None
    signature: Literal["any", "bound"] = "any"
    rate_limit: Annotated[RateLimit | None, PlainValidator(_read_rate_limit)] = None
    free_calls: Annotated[FreeCalls | None, PlainValidator(_read_free_calls)] = None
    status: Literal["active", "paused"] = "active"
    forward_signature: ForwardSignature = "ed25519"
    contact: Annotated[str, Strict(), AfterValidator(_check_contact)] | None = None
    website: Annotated[str, Strict(), AfterValidator(_check_page)] | None = None
    terms_url: Annotated[
        Annotated[str, Strict(), AfterValidator(_check_page)] | None, Field(alias="terms")
    ] = None


def _check_between_members(
    values: Mapping[str, Any], body: Mapping[str, Any], rules: DraftRules, previous: Listing | None
) -> Iterator[tuple[str | None, WireError]]:
    """The errors of rules between members, each with the member after whose errors it stands. `values`: by field name."""
    auth = values.get("upstream_auth")
    if "upstreamAuth" not in body and previous is not None:
        auth = previous.upstream_auth
    if auth is not None:
        forwarded = {name.lower() for name in values.get("forward_headers", ())}
        if auth.location == "header" and auth.name.lower() in forwarded:
            detail = f"{auth.name} is set by upstreamAuth"
            yield "upstreamAuth", (("forwardHeaders",), "conflict", detail)
        is_https = values.get("endpoint", "https:").lower().startswith("https:")
        if not is_https and not rules.allow_private_endpoints:
            detail = "must be https: the gateway sends the listing's secret there"
            yield "upstreamAuth", (("endpoint",), "endpoint", detail)
    operations: tuple[Operation, ...] = values.get("operations", ())
    formulas = (values.get("metering"), *(one.metering for one in operations))
    usage = list_usage_headers(one for one in formulas if one is not None)
    for name in values.get("forward_headers", ()):
        if name.lower().encode() in usage:
            detail = f"{name} reports a quantity of metering: no caller may send it to the upstream"
            yield "forwardHeaders", (("forwardHeaders",), "conflict", detail)
    is_document_valid = "openapi" in values or "openapi" not in body
    if is_document_valid and not _is_document_wanted(body) and "operations" not in body:
        openapi = values.get("openapi")
        if "openapi" not in body and previous is not None:
            openapi = previous.openapi
        conflict = find_nothing_served(
            other_paths=values.get("other_paths", "serve"),
            operations=(),
            openapi=openapi,
            methods=values.get("methods", ()),
        )
        if conflict is not None:
            yield None, (("otherPaths",), conflict.code, conflict.detail)


def _is_document_wanted(body: Mapping[str, Any]) -> bool:
    return body.get("openapiUrl") is not None and body.get("openapi") is None


def _to_draft(body: ListingBody, rules: DraftRules, previous: Listing | None) -> Draft:
    members = {field.attribute: getattr(body, field.attribute) for field in FIELDS}
    if previous is not None:
        kept = [field.attribute for field in FIELDS if field.is_kept]
        members |= {name: getattr(previous, name) for name in kept if name not in body.model_fields_set}
    members["networks"] = body.networks or rules.default_networks(body.currency)
    return Draft(**members, is_document_wanted=body.openapi_url is not None and body.openapi is None)


def find_document_fault(document: Mapping[str, Any]) -> str | None:
    """Returns None for a valid document. Does not check operations and schemas: parts that cannot be read are left out later."""
    return find_form_fault(document) or find_size_fault(document)


def find_form_fault(document: Mapping[str, Any]) -> str | None:
    """Applies to a document of any length."""
    if "swagger" in document:
        return "is Swagger 2.0; convert it to OpenAPI 3.0 or later"
    version = document.get("openapi")
    if isinstance(version, int | float) and not isinstance(version, bool):
        return 'must have its version as text, and not as a number: write `openapi: "3.0.3"`'
    if not isinstance(version, str) or not _OPENAPI_VERSION.fullmatch(version):
        return "must be an OpenAPI 3.0, 3.1 or 3.2 document (`openapi: 3.x`)"
    if not isinstance(document.get("paths", {}), Mapping):
        return "must have an object of paths"
    count = count_operations(document)
    if count > DOCUMENT_OPERATIONS_MAX:
        return f"must have at most {DOCUMENT_OPERATIONS_MAX} operations; it has {count}"
    return None


def find_size_fault(document: Mapping[str, Any]) -> str | None:
    try:
        size, _ = measure_document(document)
    except UnicodeEncodeError:
        return "must be text that UTF-8 can write"
    return f"must have at most {DOCUMENT_BYTES_MAX} bytes" if size > DOCUMENT_BYTES_MAX else None


def fit_fetched_document(document: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """The document at an `openapiUrl` as it is stored (`fit_document`), or the reason why it cannot be listed. Run this in a thread."""
    fault = find_form_fault(document)
    if fault is not None:
        return fault
    try:
        fitted = fit_document(document, bytes_max=DOCUMENT_BYTES_MAX, values_max=DOCUMENT_VALUES_MAX)
    except UnicodeEncodeError:
        return "must be text that UTF-8 can write"
    size, _ = measure_document(fitted)
    if size > DOCUMENT_BYTES_MAX:
        return (
            f"has {size} bytes even without its examples, texts and schemas of bodies; at most {DOCUMENT_BYTES_MAX} are stored. "
            "Publish a document with fewer operations"
        )
    return fitted
