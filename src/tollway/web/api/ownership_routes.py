"""The routes of the ownership of an endpoint: every client may read it, the provider may have it checked."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.errors import Code, Problem, Refusal, refuse
from tollway.ids import Address, ListingId
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.outbound.probes import OwnershipEvidence
from tollway.rate_limits.limiter import Quota
from tollway.registry.listing import Listing
from tollway.registry.ownership import DOCUMENT_MEMBERS, Challenge, Ownership, OwnershipClaim
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.listing_edits import find_listing, find_public_listing
from tollway.web.api.listing_json import json_response
from tollway.web.http.json import find_unknown_members, parse_json_object
from tollway.web.http.query import NoParameters, format_time_if, read_query

CHECKS_MAX = 3
"""Attempts of a check. When the listing is edited during a check, its new state is checked again."""

_SIGNATURE_POINTER = f"/{DOCUMENT_MEMBERS[0]}/ownershipProofs"


def ownership_router(context: WebContext) -> Router:
    """Two routes: every client may read the ownership, the provider may have it checked."""
    routes = OwnershipRoutes(context)
    path = "/api/v2/apis/{apiId}/ownership"
    return Router(
        [
            Route(path, routes.show_ownership, methods=["GET"]),
            Route(path, routes.check_ownership, methods=["POST"]),
        ]
    )


class OwnershipRoutes:
    """The handlers of the routes of ownership. Safe to call from many tasks at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._checks = OwnershipChecks(context)

    async def show_ownership(self, request: Request) -> Response:
        read_query(NoParameters, request.scope["query_string"])
        listing = await find_public_listing(self._context.catalog, _listing_id(request))
        return json_response(ownership_json(*await self._checks.read(listing)), headers=_NO_STORE)

    async def check_ownership(self, request: Request) -> Response:
        provider = (await self._context.authenticate(request)).address
        listing_id = _listing_id(request)
        await self._checks.find_own(listing_id, provider)
        read_query(NoParameters, request.scope["query_string"])
        _refuse_members(await request.body())
        checked = await self._checks.check(listing_id, provider, client_address=client_address_of(request))
        content = ownership_json(checked.challenge, checked.known)
        checks = {
            method: "not_found" if state == "other_line" else state
            for method, state in checked.evidence.of.items()
        }
        return json_response({**content, "checks": checks}, headers=_NO_STORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOwnership:
    """The result of a check. `evidence`: of each method."""

    challenge: Challenge
    known: Ownership
    evidence: OwnershipEvidence


class OwnershipChecks:
    """The checks of ownership that providers request, for the routes and the pages. Safe to call from many tasks at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        # Each check calls a server that a provider names.
        self._quota = Quota(
            "ownership-checks",
            "ownership checks",
            amount=context.limits.ownership_checks_per_hour,
            per="hour",
            rate_limiter=context.rate_limiter,
            namespace="ownership",
        )

    async def read(self, listing: Listing) -> tuple[Challenge, Ownership | None]:
        """What proves the ownership, and what the last check found."""
        challenge = self._context.ownership_checker.challenge(OwnershipClaim.of(listing))
        return challenge, await self._context.ownerships.find(listing.id)

    async def check(
        self, listing_id: ListingId, provider: Address, *, client_address: str
    ) -> CheckedOwnership:
        """Reads the proofs and writes the result. Raises Refusal, where `find_own` does and when the quota is used up."""
        context = self._context
        await self.find_own(listing_id, provider)
        await self._quota.charge(provider, client_address=client_address)
        for _ in range(CHECKS_MAX):
            listing = await self.find_own(listing_id, provider)
            challenge = context.ownership_checker.challenge(OwnershipClaim.of(listing))
            evidence = await context.ownership_checker.find_evidence(challenge)
            known = await context.ownerships.record_check(
                challenge,
                evidence.proved,
                now_ms=context.now_ms(),
                failures_max=context.limits.ownership_failures_max,
            )
            if known is not None:
                return CheckedOwnership(challenge=challenge, known=known, evidence=evidence)
        raise Refusal(_EDITED_MEANWHILE)

    async def find_own(self, listing_id: ListingId, provider: Address) -> Listing:
        """The listing of this provider. Raises Refusal for another wallet and for a blocked one."""
        listing = await find_listing(self._context.catalog, listing_id)
        if listing.provider != provider:
            detail = "Only the wallet that published this API may request a check of its ownership. Sign the request with that wallet."
            raise refuse(code=Code.NOT_PROVIDER, detail=detail)
        self._context.check_block(provider)
        return listing


async def find_other_owner(context: WebContext, listing: Listing) -> ListingId | None:
    """The listing with which another wallet has proved the origin of this one."""
    endpoint = parse_endpoint(listing.endpoint, allow_private=True)
    owner = await context.ownerships.find_owner(endpoint.origin) if isinstance(endpoint, Endpoint) else None
    return None if owner is None or owner.provider == listing.provider else owner.listing_id


def ownership_json(challenge: Challenge, known: Ownership | None) -> dict[str, Any]:
    """The ownership and the challenge that proves it. `method` and `verifiedAt` are those of a valid proof; else null."""
    is_verified = known is not None and known.is_verified
    return {
        "apiId": challenge.listing_id,
        "origin": challenge.origin,
        "state": "verified" if is_verified else "unverified",
        "method": known.method if known is not None and is_verified else None,
        "verifiedAt": format_time_if(None if known is None else known.verified_ms),
        "checkedAt": format_time_if(None if known is None else known.checked_ms),
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


_NO_STORE = {"Cache-Control": "no-store"}


def _refuse_members(raw: bytes) -> None:
    """Refuses a body with members: a check has none. Some clients send an empty object."""
    given = parse_json_object(raw) if raw.strip() else {}
    if given:
        problem = Problem(
            code=Code.VALIDATION_FAILED,
            detail="A check takes no members. Send an empty body.",
            errors=find_unknown_members(given, ()),
        )
        raise Refusal(problem)


_EDITED_MEANWHILE = Problem(
    code=Code.PRECONDITION_FAILED,
    detail="The API was changed at the same time. Read it and try again.",
)
