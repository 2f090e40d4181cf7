"""Whether a listing takes a call now; and where it leads then, and what each version of the terms asks for it.

In the order of the contract, and before any question of money. Nothing is asked of anybody, and nothing is dialled.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tollway.errors import Problem
from tollway.gateway.exchange import IncomingCall
from tollway.gateway.forward import build_target
from tollway.gateway.parameters import Manuals
from tollway.gateway.refusals import NO_OPERATION, UNREACHABLE, find_closed
from tollway.gateway.target import READ_TWICE, match_operation, other_readings
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.payments.terms import Tariff
from tollway.registry.listing import Listing, Operation, Shelf, Terms
from tollway.registry.path_reading import normal_path, only_of_method, pick

ENDPOINTS_KEPT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A call that its listing takes. `target`: path and query at `endpoint`. `tariffs`: the current one first."""

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

    def find(self, shelf: Shelf, call: IncomingCall) -> Opening | Problem:
        problem = find_closed(shelf, call, find_wait_s=self._find_wait_s)
        if problem is not None:
            return problem
        tariffs = _find_tariffs(shelf, call)
        if isinstance(tariffs, Problem):
            return tariffs
        if shelf.listing.other_paths == "refuse":
            problem = self._find_unsold(shelf.listing, call)
            if problem is not None:
                return problem
        endpoint = self._find_endpoint(shelf.listing)
        if isinstance(endpoint, EndpointRefused):
            return UNREACHABLE
        target = build_target(call, shelf.listing, endpoint)
        if isinstance(target, Problem):
            return target
        return Opening(shelf=shelf, endpoint=endpoint, target=target, tariffs=tariffs)

    def _find_unsold(self, listing: Listing, call: IncomingCall) -> Problem | None:
        """Only operations with a price, and those of the document, are served: as the path is written, and under every
        other reading that a server could give it."""
        method, rest = call.method, call.target.rest
        manual = self._manuals.find(listing)
        priced = only_of_method(listing.operations, method)
        is_described = manual is not None and manual.describes(method=method, rest=rest)
        if not is_described and pick(priced, normal_path(rest)) is None:
            return NO_OPERATION
        for reading in map(normal_path, other_readings(rest)):
            is_described = manual is not None and manual.can_be(method=method, reading=reading)
            if not is_described and pick(priced, reading, is_loose=True) is None:
                return READ_TWICE
        return None

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


def _find_tariffs(shelf: Shelf, call: IncomingCall) -> tuple[Tariff, ...] | Problem:
    """What each version of the terms asks for this very operation, the current one first."""
    current, *older = shelf.versions
    operation = match_operation(current.operations, call.method, call.target.rest)
    if isinstance(operation, Problem):
        return operation
    tariffs = [_tariff(current, operation)]
    for version in older:
        operation = match_operation(version.operations, call.method, call.target.rest)
        if not isinstance(operation, Problem):  # else it would not have been sold then
            tariffs.append(_tariff(version, operation))
    return tuple(tariffs)


def _tariff(version: Terms, operation: Operation | None) -> Tariff:
    return Tariff(terms=version, price=version.price if operation is None else operation.price)
