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
from tollway.rates import Rates
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing
from tollway.registry.moderation import BLOCKED
from tollway.registry.ownership import DOCUMENT_MEMBERS, Challenge, Ownership, Ownerships, Stake
from tollway.shares import Share
from tollway.web.authentication import client_address_of
from tollway.web.json_body import find_unknown, parse_json_object
from tollway.web.listing_finder import find_listing, find_shown_listing
from tollway.web.listing_routes import HasAddress
from tollway.web.listing_wire import render_json
from tollway.web.wire import Query, format_time

CHECKS_MAX = 3
"""A check of a listing that is edited meanwhile is made again of what it is then."""

_SIGNATURE_POINTER = f"/{DOCUMENT_MEMBERS[0]}/ownershipProofs"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipDesk:
    """The collaborators of the routes. `authenticate` reads the body and proves a wallet, or raises Refusal."""

    catalog: Catalog
    ownerships: Ownerships
    checker: OwnershipChecker
    authenticate: Callable[[Request], Awaitable[HasAddress]]
    is_blocked: Callable[[Address], bool]
    rates: Rates
    limits: Limits
    now_ms: Callable[[], int]


def ownership_router(desk: OwnershipDesk) -> APIRouter:
    """Two routes: anybody may read, the provider may have it checked."""
    routes = OwnershipRoutes(desk)
    router = APIRouter(prefix="/api/v2", tags=["registry"])
    router.add_api_route("/apis/{apiId}/ownership", routes.show, methods=["GET"])
    router.add_api_route("/apis/{apiId}/ownership", routes.check, methods=["POST"])
    return router


class OwnershipRoutes:
    """Safe to call from many tasks at once."""

    def __init__(self, desk: OwnershipDesk) -> None:
        self._desk = desk
        # Each calls a server that somebody has named.
        self._share = Share(
            "ownership-checks",
            "ownership checks",
            amount=desk.limits.ownership_checks_per_hour,
            every="hour",
            rates=desk.rates,
            namespace="ownership",
        )

    async def show(self, request: Request) -> Response:
        Query(request.scope["query_string"], known=()).finish()
        listing = await find_shown_listing(self._desk.catalog, _listing_id(request))
        challenge = self._desk.checker.challenge(Stake.of(listing))
        known = await self._desk.ownerships.find(listing.id)
        return _answer(ownership_json(challenge, known))

    async def check(self, request: Request) -> Response:
        desk = self._desk
        provider = (await desk.authenticate(request)).address
        await self._find_own(request, provider)
        Query(request.scope["query_string"], known=()).finish()
        _refuse_members(await request.body())
        await self._share.charge(provider, client_address=client_address_of(request))
        for _ in range(CHECKS_MAX):
            listing = await self._find_own(request, provider)
            challenge = desk.checker.challenge(Stake.of(listing))
            sights = await desk.checker.find_evidence(challenge)
            known = await desk.ownerships.note(
                challenge,
                sights.proved,
                now_ms=desk.now_ms(),
                failures_max=desk.limits.ownership_failures_max,
            )
            if known is not None:
                return _answer({**ownership_json(challenge, known), "checks": sights.of})
        raise Refusal(_OVERTAKEN)

    async def _find_own(self, request: Request, provider: Address) -> Listing:
        listing = await find_listing(self._desk.catalog, _listing_id(request))
        if listing.provider != provider:
            detail = "Only the wallet that published this API may have its ownership checked."
            raise Refusal(Problem(code=Code.NOT_PROVIDER, detail=detail))
        if self._desk.is_blocked(provider):
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
        "verifiedAt": _time(None if known is None else known.verified_ms),
        "checkedAt": _time(None if known is None else known.checked_ms),
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


def _time(ms: int | None) -> str | None:
    return None if ms is None else format_time(ms)


def _answer(content: Mapping[str, Any]) -> Response:
    return Response(
        render_json(content), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


def _refuse_members(raw: bytes) -> None:
    """A check has nothing to be told. An empty object is what some clients send for that."""
    given = parse_json_object(raw) if raw.strip() else {}
    if given:
        problem = Problem(
            code=Code.VALIDATION_FAILED, detail="A check takes no members.", errors=find_unknown(given, ())
        )
        raise Refusal(problem)


_OVERTAKEN = Problem(
    code=Code.PRECONDITION_FAILED,
    detail="The API was changed at the same moment. Read it and try again.",
)
