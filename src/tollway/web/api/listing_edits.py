"""Publishes, edits and retires listings: the checks of a draft, its limits, and its writes. Behind the routes of listings and the pages of their provider.

A change runs in this order: listing, permission, body, checks of the endpoint and of the document. The rules are in `registry`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tollway.errors import Code, EndpointNotAllowed, FieldError, Problem, Refusal, refuse
from tollway.identity.http_signatures import encode_base64url
from tollway.ids import Address, ListingId, format_id
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.registry.catalog import (
    NO_HEADS,
    Catalog,
    CreationBegun,
    CreationResponse,
    HeadTimes,
    Revised,
)
from tollway.registry.draft import (
    ENDPOINT_POLICY,
    Draft,
    EndpointFault,
    create_listing,
    edit_listing,
    find_nothing_served,
    parse_draft,
)
from tollway.registry.listing import Listing
from tollway.registry.listing_patch import parse_patch, warn_about_edit
from tollway.registry.listing_warnings import (
    ENDPOINT_UNPROTECTED,
    PAYTO_SHARED,
    ListingWarning,
    list_base_paths,
    list_warnings,
)
from tollway.registry.moderation import (
    check_registration,
    describe_suspension,
)
from tollway.registry.ownership import (
    DOCUMENT_PATH,
    OWNED_BY_ANOTHER,
    OWNED_WARNING,
    UNVERIFIED_WARNING,
)
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation
from tollway.web.api.context import WebContext
from tollway.web.api.idempotent_create import lost_key_refusal
from tollway.web.api.listing_json import (
    ListingEncoder,
    etag_of,
    has_etag,
    is_same_revision,
    render_json,
    warnings_json,
)
from tollway.web.http.admission import PublishingLimits
from tollway.web.http.problems import describe_errors

_NOT_FOUND = Problem(code=Code.API_NOT_FOUND, detail="No API has this id. GET /api/v2/apis lists all APIs.")
_RETIRED = Problem(code=Code.API_RETIRED, detail="The provider has retired this API.")


async def find_listing(catalog: Catalog, listing_id: ListingId) -> Listing:
    """The current listing, also a suspended one. Raises Refusal: `api_not_found`, `api_retired`."""
    entry = await catalog.find(listing_id)
    if entry is None:
        raise Refusal(_NOT_FOUND)
    if entry.listing.retired_ms is not None:
        raise Refusal(_RETIRED)
    return entry.listing


async def find_public_listing(catalog: Catalog, listing_id: ListingId) -> Listing:
    """The current listing, for every client. Raises Refusal: also `api_paused` for a listing that the operator has suspended."""
    listing = await find_listing(catalog, listing_id)
    if listing.suspended_ms is not None:
        detail = describe_suspension(listing)
        raise refuse(code=Code.API_PAUSED, detail=detail, reason="suspended", is_lasting=True)
    return listing


EDITS_MAX = 3
"""Attempts of an edit. When another edit comes first, the edit is tried again on the newer state; `If-Match` refuses it then."""

DRY_RUN_ID = ListingId("api_00000000000000000000000000")
"""The placeholder for the id in a dry run; its response has `id` null, and the agent document `{apiId}`."""


FORWARD_SECRET_BYTES = 32

_POLICY_REASONS = frozenset({"address", "port"})


def make_endpoint_check(*, allow_private: bool) -> Callable[[str], EndpointFault | None]:
    """`DraftRules.check_endpoint` by the outbound policy."""

    def check(endpoint: str) -> EndpointFault | None:
        parsed = parse_endpoint(endpoint, allow_private=allow_private)
        if isinstance(parsed, Endpoint):
            return None
        return EndpointFault(detail=parsed.detail, is_policy=parsed.reason in _POLICY_REASONS)

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingWriter:
    """The provider that writes a listing, and the address of its client, for limits. `if_match`: the entity tags of the revision that it read; None
    for any."""

    provider: Address
    client_address: str
    if_match: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenListing:
    """A listing as it was written, or as a dry run would write it. `addresses`: of its endpoint now; only a dry run looks them up.
    `new_secret`: the `forward_secret` that this write made, which no later response shows."""

    listing: Listing
    reputation: Reputation
    warnings: tuple[ListingWarning, ...]
    addresses: tuple[str, ...] = ()
    new_secret: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSearch:
    """A search for the OpenAPI document of an endpoint. `tried`: each URL with the reason why its document is not taken; `url`, `document`: of the one that is."""

    tried: Mapping[str, str]
    url: str | None = None
    document: Mapping[str, Any] | None = None


ParsePatch = Callable[..., Draft | tuple[FieldError, ...]]
"""`parse_patch`, or another function of its parameters."""


def render_written(encoder: ListingEncoder, written: WrittenListing) -> tuple[str, bytes]:
    """The entity tag and the body of the response to a write."""
    details = encoder.details(written.listing, written.reputation)
    etag = etag_of(written.listing, render_json(details))
    secret = {} if written.new_secret is None else {"forwardSecret": encode_base64url(written.new_secret)}
    return etag, render_json({**details, **secret, "warnings": warnings_json(written.warnings)})


class ListingEdits:
    """The changes of listings. Safe to call from many tasks at once. Every method raises Refusal."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._limits = PublishingLimits(limits=context.limits, rate_limiter=context.rate_limiter)

    # ---- A new listing.

    def check_publisher(self, provider: Address) -> None:
        """Raises Refusal for a wallet that may not publish here."""
        context = self._context
        problem = check_registration(
            provider, allowlist=context.allowlist, block=context.find_block(provider)
        )
        if problem is not None:
            raise Refusal(problem)

    async def preview(self, body: Mapping[str, Any], writer: ListingWriter) -> WrittenListing:
        """The listing that `publish` would write, with the id `DRY_RUN_ID`."""
        draft = await self._parse(body, writer, previous=None)
        listing = create_listing(
            draft, listing_id=DRY_RUN_ID, provider=writer.provider, now_ms=self._context.now_ms()
        )
        return await self._describe_preview(listing, UNKNOWN_REPUTATION)

    async def find_document(self, endpoint: str, writer: ListingWriter) -> DocumentSearch:
        """Looks for `/openapi.json` below the path of an endpoint, then at its origin. A document at the origin is that of the endpoint where one of its servers
        has the same path. Raises Refusal when the probes of the client address are used up."""
        parsed = parse_endpoint(endpoint, allow_private=self._context.draft_rules.allow_private_endpoints)
        tried: dict[str, str] = {}
        if isinstance(parsed, EndpointRefused):
            return DocumentSearch(tried=tried)
        for base_path in dict.fromkeys((parsed.base_path, "")):
            url = f"{parsed.origin}{base_path}{DOCUMENT_PATH}"
            try:
                document = await self.read_document(url, writer)
            except Refusal as refused:
                if refused.problem.code is not Code.VALIDATION_FAILED:
                    raise
                tried[url] = refused.problem.detail
                continue
            if base_path == parsed.base_path or parsed.base_path in list_base_paths(document):
                return DocumentSearch(tried=tried, url=url, document=document)
            tried[url] = f"The document has no server with the path `{parsed.base_path}`."
        return DocumentSearch(tried=tried)

    async def read_document(self, url: str, writer: ListingWriter) -> Mapping[str, Any]:
        """The document at that URL as a listing stores it. Raises Refusal (`validation_failed`, `rate_limited`)."""
        await self._limits.charge_probe(writer.client_address)
        return await self._context.documents.read(url)

    async def publish(
        self, body: Mapping[str, Any], writer: ListingWriter, *, begun: CreationBegun | None
    ) -> WrittenListing:
        """Writes a new listing; under its idempotency key where the request has one."""
        context = self._context
        draft = await self._parse(body, writer, previous=None)
        now_ms = context.now_ms()
        listing_id = ListingId(format_id("api", now_ms=now_ms, entropy=context.entropy(10)))
        listing = create_listing(draft, listing_id=listing_id, provider=writer.provider, now_ms=now_ms)
        listing = self._with_secret(listing, None)
        written = await self._describe(listing, UNKNOWN_REPUTATION)
        written = replace(written, new_secret=listing.forward_secret)
        await self._limits.charge(writer.provider, client_address=writer.client_address)
        heads = await self._read_heads(listing, None)
        if begun is None:
            await context.catalog.publish(listing, heads=heads)
            return written
        etag, content = render_written(context.encoder, written)
        location = context.encoder.url_of(listing.id)
        # A repeat describes the listing as it is then: a secret is not stored in the clear.
        kept = None if written.new_secret is not None else content
        answer = CreationResponse(listing_id=listing.id, location=location, etag=etag, body=kept)
        if not await context.catalog.publish_once(
            listing, under=begun, answer=context.creations.keep(answer), heads=heads
        ):
            raise lost_key_refusal()
        return written

    # ---- A change.

    async def find_own(self, listing_id: ListingId, provider: Address) -> Listing:
        """The current listing of this provider. Raises Refusal when another wallet published it."""
        listing = await find_listing(self._context.catalog, listing_id)
        if listing.provider != provider:
            detail = "Only the wallet that published this API may change it."
            raise refuse(code=Code.NOT_PROVIDER, detail=detail)
        return listing

    def check_block(self, provider: Address) -> None:
        """Raises Refusal for a wallet that the operator has blocked."""
        self._context.check_block(provider)

    async def replace(
        self,
        listing_id: ListingId,
        read_body: Callable[[], Awaitable[Mapping[str, Any]]],
        writer: ListingWriter,
    ) -> WrittenListing:
        """Writes the whole listing anew. `read_body` reads the body after the permission is checked."""
        for attempt in range(EDITS_MAX):
            previous = await self.find_own(listing_id, writer.provider)
            check_if_match(writer.if_match, previous)
            self.check_block(writer.provider)
            draft = await self._parse(await read_body(), writer, previous=previous)
            if attempt == 0:
                await self._limits.charge_edit(writer.provider, client_address=writer.client_address)
            written = await self._revise(draft, previous)
            if written is not None:
                return written
        raise _edited_meanwhile()

    async def preview_patch(
        self,
        listing_id: ListingId,
        patch: Mapping[str, Any],
        writer: ListingWriter,
        *,
        parse: ParsePatch = parse_patch,
    ) -> WrittenListing:
        """The listing that `patch` would write."""
        previous = await self.find_own(listing_id, writer.provider)
        draft = await self._merge(patch, writer, previous=previous, parse=parse)
        await self._limits.charge_probe(writer.client_address)
        listing = edit_listing(draft, previous, now_ms=self._context.now_ms())
        reputation = await self._context.catalog.reputation(listing.id)
        return await self._describe_preview(listing, reputation, previous=previous)

    async def patch(
        self,
        listing_id: ListingId,
        patch: Mapping[str, Any],
        writer: ListingWriter,
        *,
        parse: ParsePatch = parse_patch,
    ) -> WrittenListing:
        """Merges a patch onto the newest state; when another edit comes first, onto the state after it. A patch that changes nothing makes no revision."""
        for attempt in range(EDITS_MAX):
            previous = await self.find_own(listing_id, writer.provider)
            draft = await self._merge(patch, writer, previous=previous, parse=parse)
            if attempt == 0:
                await self._limits.charge_edit(writer.provider, client_address=writer.client_address)
            written = await self._revise(draft, previous, writes_same=False)
            if written is not None:
                return written
        raise _edited_meanwhile()

    async def retire(self, listing_id: ListingId, writer: ListingWriter) -> None:
        for _ in range(EDITS_MAX):
            previous = await self.find_own(listing_id, writer.provider)
            check_if_match(writer.if_match, previous)
            now_ms = self._context.now_ms()
            # A retired listing needs no secret, so it is deleted.
            retired = replace(previous, retired_ms=now_ms, updated_ms=now_ms, upstream_auth=None)
            outcome = await self._context.catalog.revise(retired, expected_revision=previous.revision)
            if isinstance(outcome, Revised):
                return
        raise _edited_meanwhile()

    async def _merge(
        self, patch: Mapping[str, Any], writer: ListingWriter, *, previous: Listing, parse: ParsePatch
    ) -> Draft:
        check_if_match(writer.if_match, previous)
        parsed = parse(patch, self._context.draft_rules, previous=previous)
        return await self._check_draft(parsed, writer, previous=previous)

    async def _revise(
        self, draft: Draft, previous: Listing, *, writes_same: bool = True
    ) -> WrittenListing | None:
        """Writes the next revision. None when another edit came first. `writes_same`: also without a change."""
        listing = edit_listing(draft, previous, now_ms=self._context.now_ms())
        listing = self._with_secret(listing, previous)
        if writes_same or not is_same_listing(listing, previous):
            heads = await self._read_heads(listing, previous)
            outcome = await self._context.catalog.revise(
                listing, expected_revision=previous.revision, heads=heads
            )
            if not isinstance(outcome, Revised):
                return None
            listing = outcome.listing
        else:
            listing = previous
        reputation = await self._context.catalog.reputation(listing.id)
        written = await self._describe(listing, reputation, previous=previous)
        is_new = listing.forward_secret != previous.forward_secret
        return replace(written, new_secret=listing.forward_secret) if is_new else written

    def _with_secret(self, listing: Listing, previous: Listing | None) -> Listing:
        """The listing with the secret of its forwarded calls: a new one where the write chooses it, else the stored one, also while no key decrypts it."""
        if not listing.has_shared_secret:
            return listing
        if previous is not None and previous.has_shared_secret:
            return replace(listing, forward_secret=previous.forward_secret)
        return replace(listing, forward_secret=self._context.entropy(FORWARD_SECRET_BYTES))

    async def _read_heads(self, listing: Listing, previous: Listing | None) -> HeadTimes:
        """The heads of the networks on which the write begins a `payTo`. Read before the write, so that every later block counts."""
        is_same = previous is not None and previous.pay_to == listing.pay_to
        known = previous.networks if previous is not None and is_same else ()
        begun = [chain_id for chain_id in listing.networks if chain_id not in known]
        return await self._context.read_heads(begun) if begun else NO_HEADS

    # ---- The checks of a draft.

    async def _parse(
        self, body: Mapping[str, Any], writer: ListingWriter, *, previous: Listing | None
    ) -> Draft:
        return await self._check_draft(
            parse_draft(body, self._context.draft_rules, previous=previous), writer, previous=previous
        )

    async def _check_draft(
        self, parsed: Draft | tuple[FieldError, ...], writer: ListingWriter, *, previous: Listing | None
    ) -> Draft:
        """The checks of a draft: its form, then its endpoint, then its document."""
        if isinstance(parsed, tuple):
            raise Refusal(_draft_problem(parsed))
        if (
            previous is None or previous.endpoint != parsed.endpoint
        ):  # a dead host name must not stop other edits
            endpoint = self._parse_endpoint(parsed)
            await self._limits.charge_probe(writer.client_address)
            await self._context.check_endpoint(endpoint)
            await self._refuse_owned_by_another(endpoint, writer.provider)
        if not parsed.is_document_wanted:
            return parsed
        assert parsed.openapi_url is not None
        return await self._with_document(parsed, parsed.openapi_url, writer)

    def _parse_endpoint(self, draft: Draft) -> Endpoint:
        allow_private = self._context.draft_rules.allow_private_endpoints
        endpoint = parse_endpoint(draft.endpoint, allow_private=allow_private)
        if isinstance(endpoint, EndpointRefused):
            raise EndpointNotAllowed(endpoint.detail)
        return endpoint

    async def _refuse_owned_by_another(self, endpoint: Endpoint, provider: Address) -> None:
        if self._context.requires_ownership and await self._is_owned_by_another(endpoint, provider):
            raise Refusal(OWNED_BY_ANOTHER)

    async def _is_owned_by_another(self, endpoint: Endpoint, provider: Address) -> bool:
        owner = await self._context.ownerships.find_owner(endpoint.origin)
        return owner is not None and owner.provider != provider

    async def _with_document(self, draft: Draft, url: str, writer: ListingWriter) -> Draft:
        document = await self.read_document(url, writer)
        found = replace(draft, openapi=document)
        conflict = find_nothing_served(
            other_paths=draft.other_paths,
            operations=draft.operations,
            openapi=document,
            methods=draft.methods,
        )
        if conflict is not None:
            raise Refusal(_draft_problem((conflict,)))
        return found

    async def _describe(
        self, listing: Listing, reputation: Reputation, *, previous: Listing | None = None
    ) -> WrittenListing:
        warnings = await self._list_warnings(listing, reputation)
        if previous is not None:
            warnings += warn_about_edit(listing, previous)
        return WrittenListing(listing=listing, reputation=reputation, warnings=warnings)

    async def _describe_preview(
        self, listing: Listing, reputation: Reputation, *, previous: Listing | None = None
    ) -> WrittenListing:
        written = await self._describe(listing, reputation, previous=previous)
        return replace(written, addresses=await self._find_addresses(listing))

    async def _find_addresses(self, listing: Listing) -> tuple[str, ...]:
        """The addresses that the gateway would call for this listing; empty where the host has none now."""
        allow_private = self._context.draft_rules.allow_private_endpoints
        endpoint = parse_endpoint(listing.endpoint, allow_private=allow_private)
        if isinstance(endpoint, EndpointRefused):
            return ()
        try:
            return tuple(await self._context.find_addresses(endpoint))
        except EndpointNotAllowed:
            return ()

    async def _list_warnings(self, listing: Listing, reputation: Reputation) -> tuple[ListingWarning, ...]:
        context = self._context
        found = list(list_warnings(listing, context.draft_rules.assets))
        if await context.catalog.is_payee_shared(listing.pay_to, listing.provider):
            found.append(PAYTO_SHARED)
        endpoint = parse_endpoint(listing.endpoint, allow_private=context.draft_rules.allow_private_endpoints)
        if isinstance(endpoint, Endpoint):
            if not listing.price.is_free and await context.is_unprotected(endpoint):
                found.append(ENDPOINT_UNPROTECTED)
            if not reputation.is_verified and await self._is_owned_by_another(endpoint, listing.provider):
                found.append(OWNED_WARNING)
        if context.requires_ownership and not reputation.is_verified:
            found.append(UNVERIFIED_WARNING)
        return tuple(found)


def check_if_match(wanted: str | None, listing: Listing) -> None:
    """Raises Refusal when `If-Match` names another revision."""
    if wanted is not None and not has_etag(wanted, etag_of(listing, b""), same=is_same_revision):
        detail = f"The API has changed; its revision is {listing.revision} now. Read it and send its ETag as If-Match."
        raise refuse(code=Code.PRECONDITION_FAILED, detail=detail)


def is_same_listing(listing: Listing, previous: Listing) -> bool:
    """Whether an edit changed nothing but the revision and its time."""
    return replace(listing, revision=previous.revision, updated_ms=previous.updated_ms) == previous


def _draft_problem(errors: tuple[FieldError, ...]) -> Problem:
    """The problem of a draft. When the outbound policy is its only error, the body is valid: that has a code of its own."""
    if all(error.code == ENDPOINT_POLICY for error in errors):
        return Problem(code=Code.ENDPOINT_NOT_ALLOWED, detail=errors[0].detail, errors=errors)
    return Problem(code=Code.VALIDATION_FAILED, detail=describe_errors(errors), errors=errors)


def _edited_meanwhile() -> Refusal:
    detail = "Another request changed the API at the same time. Read it and try again."
    return refuse(code=Code.PRECONDITION_FAILED, detail=detail)
