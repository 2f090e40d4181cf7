"""Routing: checks that a listing serves a call, builds the upstream URL, and finds the price of the call in each version of the terms. Pure.

The checks run in the order of the HTTP contract, before any payment check. The provider's OpenAPI document decides which operations
exist and what a request must contain. The document is untrusted: no content of it raises, and an unclear rule is not enforced. A
request is refused only where the document clearly requires a missing part.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import unquote_plus

from tollway.errors import Code, FieldError, Problem
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.problems import NO_OPERATION, UNREACHABLE, check_listing, check_method
from tollway.gateway.target import (
    AMBIGUOUS_PATH,
    build_upstream_target,
    match_operation,
    other_readings,
)
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.payments.pricing import OperationPrice, price_operation
from tollway.registry.listing import (
    CatalogEntry,
    Listing,
    Operation,
    RevisionCache,
    Terms,
    accepts_method,
    digest_operation,
    is_offered,
)
from tollway.registry.openapi import DocumentOperation, DocumentParameter, ProviderDocument, walk_operations
from tollway.registry.paths import PathTree, filter_by_method, find_most_specific, loose_path, normal_path

REQUEST_SCHEMAS_MAX = 1_000

_PLAIN_TYPES = ("string", "number", "integer", "boolean", "array")
_PLAIN_STYLES = (None, "form", "spaceDelimited", "pipeDelimited")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredParts:
    """The required parts of a request to one operation."""

    query: tuple[str, ...]
    headers: tuple[str, ...]
    has_body: bool


T = TypeVar("T")


class DescribedOperations(Generic[T]):
    """An index of the operations in a document, each with a value, by method and path."""

    def __init__(self) -> None:
        self._exact: dict[str, PathTree[T]] = {}
        self._loose: dict[str, PathTree[bool]] = {}

    def add(self, *, method: str, path: str, value: T) -> None:
        """`path`: the template as the document writes it."""
        normal = normal_path(path)
        self._exact.setdefault(method, PathTree()).add(normal, value)
        self._loose.setdefault(method, PathTree()).add(loose_path(normal).casefold(), True)

    def find(self, *, method: str, path: str) -> T | None:
        """`path` in normal form."""
        tree = self._exact.get(method)
        found = None if tree is None else tree.find(path)
        if found is None and method == "HEAD":  # an operation with GET has HEAD too (RFC 9110 §9.3.2)
            return self.find(method="GET", path=path)
        return found

    def describes(self, *, method: str, rest: str) -> bool:
        return self.find(method=method, path=normal_path(rest)) is not None

    def may_match(self, *, method: str, reading: str) -> bool:
        """Whether a server that ignores case and decodes the path could match that reading of it to an operation."""
        verbs = ("HEAD", "GET") if method == "HEAD" else (method,)
        trees = (self._loose.get(verb) for verb in verbs)
        return any(tree is not None and tree.find(reading.casefold()) is not None for tree in trees)


class RequestSchema:
    """The required parts of requests, from the document of one listing."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._document = ProviderDocument(listing.openapi or {})
        self._required: dict[tuple[str, str], RequiredParts] = {}
        self.operations: DescribedOperations[DocumentOperation] = DescribedOperations()
        for operation in self._document.operations:
            if accepts_method(listing.methods, operation.method):
                self.operations.add(method=operation.method, path=operation.path, value=operation)

    def check(
        self,
        *,
        method: str,
        rest: str,
        query: str,
        headers: Sequence[tuple[bytes, bytes]],
        has_body: bool = True,
    ) -> Problem | None:
        """Refuses (`validation_failed`) a request without a required part. An operation that the document does not describe passes."""
        operation = self.operations.find(method=method.upper(), path=normal_path(rest))
        if operation is None:
            return None
        required = self._read(operation)
        named = {unquote_plus(part.partition("=")[0]) for part in query.split("&")}
        sent = {name.decode("latin-1").lower() for name, _ in headers}
        missing = [name for name in required.query if name not in named]
        missing += [name for name in required.headers if name.lower() not in sent]
        lacks_body = required.has_body and not has_body
        if not missing and not lacks_body:
            return None
        detail = "required by the provider's API document"
        errors = [FieldError(code="required", detail=detail, parameter=name) for name in missing]
        if lacks_body:
            missing.append("the request body")
            errors.append(FieldError(code="required", detail=detail, pointer=""))
        return Problem(
            code=Code.VALIDATION_FAILED,
            detail=f"The request lacks: {', '.join(missing)}. Nothing was paid or sent. Add what is missing, then send the request again.",
            errors=tuple(errors),
            payment_state="none",
        )

    # ---- Reading the document.

    def _read(self, operation: DocumentOperation) -> RequiredParts:
        """Reads the required parts on the first call of an operation, because most operations of a document are never called."""
        key = (operation.method, operation.path)
        required = self._required.get(key)
        if required is None:
            needed = [one for one in self._document.list_parameters(operation) if self._is_needed(one)]
            body = self._document.resolve(operation.content.get("requestBody"))
            required = self._required[key] = RequiredParts(
                query=tuple(one.name for one in needed if one.place == "query"),
                headers=tuple(one.name for one in needed if one.place == "header"),
                has_body=body is not None and body.get("required") is True,
            )
        return required

    def _is_needed(self, parameter: DocumentParameter) -> bool:
        if not parameter.is_required or not is_offered(self._listing, parameter):
            return False
        if parameter.place != "query":
            return parameter.place == "header"
        # An object is spread over several parameter names, and `content` allows any encoding: neither can be checked by name.
        schema = self._document.resolve(parameter.content.get("schema"))
        kind = schema.get("type") if schema is not None else None
        return kind in _PLAIN_TYPES and parameter.content.get("style") in _PLAIN_STYLES


class RequestSchemas:
    """A cache of request schemas, one per revision of a listing. One per process; safe to use from many tasks at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], RequestSchema] = {}

    def find(self, listing: Listing) -> RequestSchema | None:
        """None for a listing without a document."""
        if listing.openapi is None:
            return None
        key = (listing.id, listing.revision)
        schema = self._known.get(key)
        if schema is None:
            if len(self._known) >= REQUEST_SCHEMAS_MAX:
                self._known.clear()
            schema = self._known[key] = RequestSchema(listing)
        return schema

    def check(self, request: ProxyRequest, listing: Listing, *, has_body: bool) -> Problem | None:
        """Checks what the document of the listing requires of a request."""
        schema = self.find(listing)
        if schema is None:
            return None
        return schema.check(
            method=request.method,
            rest=request.target.rest,
            query=request.target.query,
            headers=request.headers,
            has_body=has_body,
        )


ENDPOINTS_MAX = 10_000
OLD_DESCRIPTIONS_MAX = 256
PRICES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A call that its listing serves. `target`: path and query at `endpoint`. `operation_prices`: one of each version of the terms that
    serves this call, the current version first. `is_free`: by the current version."""

    entry: CatalogEntry
    listing: Listing
    endpoint: Endpoint
    target: str
    operation_prices: tuple[OperationPrice, ...]
    is_free: bool


class Router:
    """Matches requests to routes. One per process; safe to use from many tasks at once."""

    def __init__(
        self, *, wait_s: Callable[[str], int | None], allow_private: bool, schemas: RequestSchemas
    ) -> None:
        """`wait_s`: seconds until an upstream origin that is down is tried again; None where it may be connected to now."""
        self._schemas = schemas
        self._wait_s = wait_s
        self._allow_private = allow_private
        self._endpoints: dict[str, Endpoint | EndpointRefused] = {}
        self._old_descriptions: RevisionCache[DescribedOperations[bool]] = RevisionCache(OLD_DESCRIPTIONS_MAX)
        self._prices: RevisionCache[OperationPrice] = RevisionCache(PRICES_MAX)

    def match(self, entry: CatalogEntry, request: ProxyRequest) -> Route | Problem:
        """The route of a request at a listing, or the problem of a request without one: 410, 503, 405, 404, in this order."""
        listing = entry.listing
        endpoint = self._find_endpoint(listing)
        find_wait_s: Callable[[], int | None] = _never_wait
        if isinstance(endpoint, Endpoint):
            find_wait_s = partial(self._wait_s, endpoint.origin)
        problem = check_listing(entry, request, find_wait_s=find_wait_s)
        if problem is not None:
            return problem
        current = self._find_price(entry, 0, request)
        if isinstance(current, Problem):
            return current
        if listing.other_paths == "refuse":
            schema = self._schemas.find(listing)
            described = None if schema is None else schema.operations
            problem = _check_is_served(listing.operations, described, request)
            if problem is not None:
                return problem
        if isinstance(endpoint, EndpointRefused):
            return UNREACHABLE
        called = request.target
        target = build_upstream_target(endpoint, called.rest, called.query, secret=listing.upstream_auth)
        if isinstance(target, Problem):
            return target
        older = self._list_older_prices(entry, request) if len(entry.versions) > 1 else ()
        return Route(
            entry=entry,
            listing=listing,
            endpoint=endpoint,
            target=target,
            operation_prices=(current, *older),
            is_free=current.price.is_free,
        )

    def renew(self, route: Route, request: ProxyRequest) -> Route | None:
        """Adapts a route of the same listing, method and path to the query of this request. None where it must be matched again: the
        upstream is down, or the query is invalid."""
        if self._wait_s(route.endpoint.origin) is not None:
            return None
        called, secret = request.target, route.listing.upstream_auth
        target = build_upstream_target(route.endpoint, called.rest, called.query, secret=secret)
        if isinstance(target, Problem):
            return None
        return route if target == route.target else replace(route, target=target)

    def _list_older_prices(self, entry: CatalogEntry, request: ProxyRequest) -> list[OperationPrice]:
        """The prices of the older versions that would have served this call. A version that would have refused it has no price for it."""
        operation_prices: list[OperationPrice] = []
        for index, version in enumerate(entry.versions[1:]):
            if not version.is_active or check_method(version.methods, request.method) is not None:
                continue
            operation_price = self._find_price(entry, index + 1, request)
            if isinstance(operation_price, Problem):
                continue
            if version.other_paths == "refuse":
                described = self._find_old_description(entry.listing, index, version)
                if _check_is_served(version.operations, described, request) is not None:
                    continue
            operation_prices.append(operation_price)
        return operation_prices

    def _find_price(self, entry: CatalogEntry, index: int, request: ProxyRequest) -> OperationPrice | Problem:
        """The price of this operation in a version of the terms, or a problem. `index`: the position of the version in this revision of
        the listing."""
        version = entry.versions[index]
        operation = None
        if version.operations:
            operation = match_operation(version.operations, request.method, request.target.rest)
        if isinstance(operation, Problem):
            return operation
        key = index if operation is None else (index, operation.method, operation.path)
        found = self._prices.find(entry.listing, key)
        if found is None or found.terms is not version:
            found = self._prices.put(entry.listing, key, price_operation(version, operation))
        return found

    def _find_old_description(
        self, listing: Listing, index: int, version: Terms
    ) -> DescribedOperations[bool] | None:
        """The described operations of an older version. `index`: its position among the older versions of this revision."""
        if not version.described and not version.described_digests:
            return None
        found = self._old_descriptions.find(listing, index)
        if found is None:
            found = self._old_descriptions.put(listing, index, DescribedOperations())
            for method, path in _list_operations(listing, version):
                if accepts_method(version.methods, method):  # the same rule as for the current version
                    found.add(method=method, path=path, value=True)
        return found

    def _find_endpoint(self, listing: Listing) -> Endpoint | EndpointRefused:
        """Parses each URL once. The address policy is checked at publication and again at every connection."""
        endpoint = self._endpoints.get(listing.endpoint)
        if endpoint is None:
            if len(self._endpoints) >= ENDPOINTS_MAX:
                self._endpoints.clear()
            endpoint = parse_endpoint(listing.endpoint, allow_private=self._allow_private)
            self._endpoints[listing.endpoint] = endpoint
        return endpoint


def _list_operations(listing: Listing, version: Terms) -> Iterator[tuple[str, str]]:
    """The described operations of an older version. Of those that it records by digest, the ones that the present document has: no other
    is served now."""
    yield from version.described
    digests = frozenset(version.described_digests)
    if digests and listing.openapi is not None:
        for operation in walk_operations(listing.openapi):
            if digest_operation(operation.method, operation.path) in digests:
                yield operation.method, operation.path


def _never_wait() -> None:
    """An endpoint that the policy refuses has no upstream to wait for."""


def _check_is_served(
    operations: Sequence[Operation], described: DescribedOperations[Any] | None, request: ProxyRequest
) -> Problem | None:
    """Refuses a path that matches no priced operation and no operation of the document, as written or in any other reading that a server
    could apply."""
    method, rest = request.method, request.target.rest
    priced = filter_by_method(operations, method)
    is_described = described is not None and described.describes(method=method, rest=rest)
    if not is_described and find_most_specific(priced, normal_path(rest)) is None:
        return NO_OPERATION
    for reading in map(normal_path, other_readings(rest)):
        is_described = described is not None and described.may_match(method=method, reading=reading)
        if not is_described and find_most_specific(priced, reading, is_loose=True) is None:
            return AMBIGUOUS_PATH
    return None
