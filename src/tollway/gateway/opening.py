"""Whether a listing takes a call now; and where it leads then, and what each version of the terms that sold it asks for it.

In the order of the contract, and before any question of money. Nothing is asked of anybody, and nothing is dialled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tollway.errors import Problem
from tollway.gateway.exchange import IncomingCall
from tollway.gateway.parameters import DescribedOperations, RequestSchemas
from tollway.gateway.refusals import NO_OPERATION, UNREACHABLE, check_listing, check_method
from tollway.gateway.target import (
    AMBIGUOUS_PATH,
    add_query_secret,
    build_upstream_target,
    match_operation,
    other_readings,
)
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.payments.terms import OperationPrice
from tollway.registry.listing import CatalogEntry, Listing, Operation, Terms
from tollway.registry.offered_operations import accepts_method
from tollway.registry.path_reading import filter_by_method, find_most_specific, normal_path
from tollway.registry.revision_memory import RevisionCache

ENDPOINTS_MAX = 10_000
OLD_DESCRIPTIONS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A call that its listing takes. `target`: path and query at `endpoint`. `operation_prices`: of each version of the terms that
    sells this call, the current one first."""

    entry: CatalogEntry
    endpoint: Endpoint
    target: str
    operation_prices: tuple[OperationPrice, ...]

    @property
    def listing(self) -> Listing:
        return self.entry.listing

    @property
    def is_free(self) -> bool:
        return self.operation_prices[0].price.is_free


class Router:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self, *, wait_s: Callable[[Endpoint], int | None], allow_private: bool, schemas: RequestSchemas
    ) -> None:
        """`wait_s`: seconds until an upstream that is known to be down is tried again."""
        self._schemas = schemas
        self._wait_s = wait_s
        self._allow_private = allow_private
        self._endpoints: dict[str, Endpoint | EndpointRefused] = {}
        self._old_descriptions: RevisionCache[DescribedOperations[bool]] = RevisionCache(OLD_DESCRIPTIONS_MAX)

    def find(self, entry: CatalogEntry, call: IncomingCall) -> Route | Problem:
        problem = check_listing(entry, call, find_wait_s=self._find_origin_wait_s)
        if problem is not None:
            return problem
        current = _find_operation_price(entry.versions[0], call)
        if isinstance(current, Problem):
            return current
        if entry.listing.other_paths == "refuse":
            schema = self._schemas.find(entry.listing)
            described = None if schema is None else schema.operations
            problem = _check_is_served(entry.listing.operations, described, call)
            if problem is not None:
                return problem
        endpoint = self._find_endpoint(entry.listing)
        if isinstance(endpoint, EndpointRefused):
            return UNREACHABLE
        target = _build_target(call, entry.listing, endpoint)
        if isinstance(target, Problem):
            return target
        operation_prices = (current, *self._list_older_prices(entry, call))
        return Route(entry=entry, endpoint=endpoint, target=target, operation_prices=operation_prices)

    def _list_older_prices(self, entry: CatalogEntry, call: IncomingCall) -> list[OperationPrice]:
        """Of the versions that would have served this call. One that would have refused it has never sold it: its price
        is of other calls."""
        operation_prices: list[OperationPrice] = []
        for index, version in enumerate(entry.versions[1:]):
            if not version.is_active or check_method(version.methods, call.method) is not None:
                continue
            operation_price = _find_operation_price(version, call)
            if isinstance(operation_price, Problem):
                continue
            if version.other_paths == "refuse":
                described = self._find_old_description(entry.listing, index, version)
                if _check_is_served(version.operations, described, call) is not None:
                    continue
            operation_prices.append(operation_price)
        return operation_prices

    def _find_old_description(
        self, listing: Listing, index: int, version: Terms
    ) -> DescribedOperations[bool] | None:
        """`index` of that version among those of this state of the listing."""
        if not version.described:
            return None
        found = self._old_descriptions.find(listing, index)
        if found is None:
            found = self._old_descriptions.put(listing, index, DescribedOperations())
            for method, path in version.described:
                if accepts_method(version.methods, method):  # as the document of the current version is read
                    found.add(method=method, path=path, value=True)
        return found

    def _find_origin_wait_s(self, listing: Listing) -> int | None:
        endpoint = self._find_endpoint(listing)
        return None if isinstance(endpoint, EndpointRefused) else self._wait_s(endpoint)

    def _find_endpoint(self, listing: Listing) -> Endpoint | EndpointRefused:
        """Parsed once per URL; policy was checked when it was listed, and is again at every socket."""
        endpoint = self._endpoints.get(listing.endpoint)
        if endpoint is None:
            if len(self._endpoints) >= ENDPOINTS_MAX:
                self._endpoints.clear()
            endpoint = parse_endpoint(listing.endpoint, allow_private=self._allow_private)
            self._endpoints[listing.endpoint] = endpoint
        return endpoint


def _build_target(call: IncomingCall, listing: Listing, endpoint: Endpoint) -> str | Problem:
    """Path and query for the upstream, byte for byte, with the listing's secret parameter when it has one."""
    query, auth = call.target.query, listing.upstream_auth
    if auth is not None and auth.location == "query":
        query = add_query_secret(query, name=auth.name, value=auth.reveal())
    return build_upstream_target(endpoint, call.target.rest, query)


def _check_is_served(
    operations: Sequence[Operation], described: DescribedOperations[Any] | None, call: IncomingCall
) -> Problem | None:
    """Only operations with a price, and those of the document, are served: as the path is written, and under every
    other reading that a server could give it."""
    method, rest = call.method, call.target.rest
    priced = filter_by_method(operations, method)
    is_described = described is not None and described.describes(method=method, rest=rest)
    if not is_described and find_most_specific(priced, normal_path(rest)) is None:
        return NO_OPERATION
    for reading in map(normal_path, other_readings(rest)):
        is_described = described is not None and described.may_match(method=method, reading=reading)
        if not is_described and find_most_specific(priced, reading, is_loose=True) is None:
            return AMBIGUOUS_PATH
    return None


def _find_operation_price(version: Terms, call: IncomingCall) -> OperationPrice | Problem:
    """What a version of the terms asks for this very operation, if it sells it."""
    operation = match_operation(version.operations, call.method, call.target.rest)
    if isinstance(operation, Problem):
        return operation
    return OperationPrice(terms=version, price=version.price if operation is None else operation.price)
