"""`/api/v2/apis/{apiId}/ownership`: how a provider proves that the endpoint is theirs, and a look at it now.

It decides nothing: what a proof is stands in `registry/ownership.py`, and only a check changes what is known.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from tollway.errors import Code, Problem, Refusal
from tollway.identifiers import Address, ListingId
from tollway.limits import Limits
from tollway.outbound.ownership_checker import OwnershipChecker
from tollway.rates import RateLimiter
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing
from tollway.registry.moderation import BLOCKED
from tollway.registry.ownership import DOCUMENT_MEMBERS, Challenge, Ownership, OwnershipClaim, Ownerships
from tollway.shares import Quota
from tollway.web.authentication import client_address_of
from tollway.web.json_body import find_unknown_members, parse_json_object
from tollway.web.listing_finder import find_listing, find_public_listing
from tollway.web.listing_routes import ProvenWallet
from tollway.web.listing_wire import render_json
from tollway.web.wire import QueryParameters, format_time

CHECKS_MAX = 3
"""A check of a listing that is edited meanwhile is made again of what it is then."""

_SIGNATURE_POINTER = f"/{DOCUMENT_MEMBERS[0]}/ownershipProofs"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipServices:
    """The collaborators of the routes. `authenticate` reads the body and proves a wallet, or raises Refusal."""

    catalog: Catalog
    ownerships: Ownerships
    checker: OwnershipChecker
    authenticate: Callable[[Request], Awaitable[ProvenWallet]]
    is_blocked: Callable[[Address], bool]
    rate_limiter: RateLimiter
    limits: Limits
    now_ms: Callable[[], int]


def ownership_router(services: OwnershipServices) -> APIRouter:
    """Two routes: anybody may read, the provider may have it checked."""
    routes = OwnershipRoutes(services)
    router = APIRouter(prefix="/api/v2", tags=["registry"])
    router.add_api_route("/apis/{apiId}/ownership", routes.show_ownership, methods=["GET"])
    router.add_api_route("/apis/{apiId}/ownership", routes.check_ownership, methods=["POST"])
    return router


class OwnershipRoutes:
    """Safe to call from many tasks at once."""

    def __init__(self, services: OwnershipServices) -> None:
        self._services = services
        # Each calls a server that somebody has named.
        self._quota = Quota(
            "ownership-checks",
            "ownership checks",
            amount=services.limits.ownership_checks_per_hour,
            per="hour",
            rate_limiter=services.rate_limiter,
            namespace="ownership",
        )

    async def show_ownership(self, request: Request) -> Response:
        QueryParameters(request.scope["query_string"], known=()).finish()
        listing = await find_public_listing(self._services.catalog, _listing_id(request))
        challenge = self._services.checker.challenge(OwnershipClaim.of(listing))
        known = await self._services.ownerships.find(listing.id)
        return _ownership_response(ownership_json(challenge, known))

    async def check_ownership(self, request: Request) -> Response:
        services = self._services
        provider = (await services.authenticate(request)).address
        await self._find_own_listing(request, provider)
        QueryParameters(request.scope["query_string"], known=()).finish()
        _refuse_members(await request.body())
        await self._quota.charge(provider, client_address=client_address_of(request))
        for _ in range(CHECKS_MAX):
            listing = await self._find_own_listing(request, provider)
            challenge = services.checker.challenge(OwnershipClaim.of(listing))
            sights = await services.checker.find_evidence(challenge)
            known = await services.ownerships.record_check(
                challenge,
                sights.proved,
                now_ms=services.now_ms(),
                failures_max=services.limits.ownership_failures_max,
            )
            if known is not None:
                return _ownership_response({**ownership_json(challenge, known), "checks": sights.of})
        raise Refusal(_EDITED_MEANWHILE)

    async def _find_own_listing(self, request: Request, provider: Address) -> Listing:
        listing = await find_listing(self._services.catalog, _listing_id(request))
        if listing.provider != provider:
            detail = "Only the wallet that published this API may have its ownership checked."
            raise Refusal(Problem(code=Code.NOT_PROVIDER, detail=detail))
        if self._services.is_blocked(provider):
            raise Refusal(BLOCKED)
        return listing


def ownership_json(challenge: Challenge, known: Ownership | None) -> dict[str, Any]:
    """What is known, and what proves it. `method` and `verifiedAt` stand for a proof that counts."""
    is_verified = known is not None and known.is_verified
    return {
        "apiId": challenge.listing_id,
        "origin": challenge.origin,
        "state": "verified" if is_verified else "unverified",
        "method": known.method if known is not None and is_verified else None,
        "verifiedAt": _format_time(None if known is None else known.verified_ms),
        "checkedAt": _format_time(None if known is None else known.checked_ms),
        "failures": 0 if known is None else known.failures,
        "challenge": {
            "wellKnown": {"url": challenge.file_url, "content": challenge.content},
            "dns": None
            if challenge.dns_name is None
            else {"name": challenge.dns_name, "value": challenge.content},
            "signature": {
                "url": challenge.document_url,
                "pointer": _SIGNATURE_POINTER,
                "message": challenge.origin,
                "signer": str(challenge.pay_to),
            },
        },
    }


def _listing_id(request: Request) -> ListingId:
    return ListingId(request.path_params["apiId"])


def _format_time(ms: int | None) -> str | None:
    return None if ms is None else format_time(ms)


def _ownership_response(content: Mapping[str, Any]) -> Response:
    return Response(
        render_json(content), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


def _refuse_members(raw: bytes) -> None:
    """A check has nothing to be told. An empty object is what some clients send for that."""
    given = parse_json_object(raw) if raw.strip() else {}
    if given:
        problem = Problem(
            code=Code.VALIDATION_FAILED,
            detail="A check takes no members.",
            errors=find_unknown_members(given, ()),
        )
        raise Refusal(problem)


_EDITED_MEANWHILE = Problem(
    code=Code.PRECONDITION_FAILED,
    detail="The API was changed at the same moment. Read it and try again.",
)
