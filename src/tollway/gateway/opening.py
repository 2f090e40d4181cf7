"""Whether a listing takes a call now; and where it leads then, and what each version of the terms that sold it asks for it.

In the order of the contract, and before any question of money. Nothing is asked of anybody, and nothing is dialled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tollway.errors import Problem
from tollway.gateway.exchange import IncomingCall
from tollway.gateway.parameters import DescribedOperations, Manuals
from tollway.gateway.refusals import NO_OPERATION, UNREACHABLE, check_method, find_closed
from tollway.gateway.target import (
    READ_TWICE,
    add_query_secret,
    build_upstream_target,
    match_operation,
    other_readings,
)
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.payments.terms import Tariff
from tollway.registry.listing import Listing, Operation, Shelf, Terms
from tollway.registry.offered_operations import takes_method
from tollway.registry.path_reading import normal_path, only_of_method, pick
from tollway.registry.revision_memory import RevisionMemory

ENDPOINTS_KEPT = 10_000
OLD_DESCRIPTIONS_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A call that its listing takes. `target`: path and query at `endpoint`. `tariffs`: of each version of the terms that
    sells this call, the current one first."""

    shelf: Shelf
    endpoint: Endpoint
    target: str
    tariffs: tuple[Tariff, ...]

    @property
    def listing(self) -> Listing:
        return self.shelf.listing

    @property
    def is_free(self) -> bool:
        return self.tariffs[0].price.is_free


class Openings:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self, *, wait_s: Callable[[Endpoint], int | None], allow_private: bool, manuals: Manuals
    ) -> None:
        """`wait_s`: seconds until an upstream that is known to be down is tried again."""
        self._manuals = manuals
        self._wait_s = wait_s
        self._allow_private = allow_private
        self._endpoints: dict[str, Endpoint | EndpointRefused] = {}
        self._old_descriptions: RevisionMemory[DescribedOperations[bool]] = RevisionMemory(
            OLD_DESCRIPTIONS_KEPT
        )

    def find(self, shelf: Shelf, call: IncomingCall) -> Opening | Problem:
        problem = find_closed(shelf, call, find_wait_s=self._find_wait_s)
        if problem is not None:
            return problem
        current = _find_tariff(shelf.versions[0], call)
        if isinstance(current, Problem):
            return current
        if shelf.listing.other_paths == "refuse":
            manual = self._manuals.find(shelf.listing)
            described = None if manual is None else manual.operations
            problem = _find_unsold(shelf.listing.operations, described, call)
            if problem is not None:
                return problem
        endpoint = self._find_endpoint(shelf.listing)
        if isinstance(endpoint, EndpointRefused):
            return UNREACHABLE
        target = _build_target(call, shelf.listing, endpoint)
        if isinstance(target, Problem):
            return target
        tariffs = (current, *self._list_older_tariffs(shelf, call))
        return Opening(shelf=shelf, endpoint=endpoint, target=target, tariffs=tariffs)

    def _list_older_tariffs(self, shelf: Shelf, call: IncomingCall) -> list[Tariff]:
        """Of the versions that would have served this call. One that would have refused it has never sold it: its price
        is of other calls."""
        tariffs: list[Tariff] = []
        for place, version in enumerate(shelf.versions[1:]):
            if not version.is_for_sale or check_method(version.methods, call.method) is not None:
                continue
            tariff = _find_tariff(version, call)
            if isinstance(tariff, Problem):
                continue
            if version.other_paths == "refuse":
                described = self._find_old_description(shelf.listing, place, version)
                if _find_unsold(version.operations, described, call) is not None:
                    continue
            tariffs.append(tariff)
        return tariffs

    def _find_old_description(
        self, listing: Listing, place: int, version: Terms
    ) -> DescribedOperations[bool] | None:
        """`place` of that version among those of this state of the listing."""
        if not version.described:
            return None
        found = self._old_descriptions.find(listing, place)
        if found is None:
            found = self._old_descriptions.keep(listing, place, DescribedOperations())
            for method, path in version.described:
                if takes_method(version.methods, method):  # as the document of the current version is read
                    found.add(method=method, path=path, value=True)
        return found

    def _find_wait_s(self, listing: Listing) -> int | None:
        endpoint = self._find_endpoint(listing)
        return None if isinstance(endpoint, EndpointRefused) else self._wait_s(endpoint)

    def _find_endpoint(self, listing: Listing) -> Endpoint | EndpointRefused:
        """Parsed once per URL; policy was checked when it was listed, and is again at every socket."""
        endpoint = self._endpoints.get(listing.endpoint)
        if endpoint is None:
            if len(self._endpoints) >= ENDPOINTS_KEPT:
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


def _find_unsold(
    operations: Sequence[Operation], described: DescribedOperations[Any] | None, call: IncomingCall
) -> Problem | None:
    """Only operations with a price, and those of the document, are served: as the path is written, and under every
    other reading that a server could give it."""
    method, rest = call.method, call.target.rest
    priced = only_of_method(operations, method)
    is_described = described is not None and described.describes(method=method, rest=rest)
    if not is_described and pick(priced, normal_path(rest)) is None:
        return NO_OPERATION
    for reading in map(normal_path, other_readings(rest)):
        is_described = described is not None and described.can_be(method=method, reading=reading)
        if not is_described and pick(priced, reading, is_loose=True) is None:
            return READ_TWICE
    return None


def _find_tariff(version: Terms, call: IncomingCall) -> Tariff | Problem:
    """What a version of the terms asks for this very operation, if it sells it."""
    operation = match_operation(version.operations, call.method, call.target.rest)
    if isinstance(operation, Problem):
        return operation
    return Tariff(terms=version, price=version.price if operation is None else operation.price)
