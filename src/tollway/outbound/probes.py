"""Requests that the gateway itself sends to a provider's server, through the client and its policy: fetches a document, checks whether an
endpoint is unprotected, reads the proofs of the owner of an origin, and sends the messages of webhooks. No paid call.

It follows no link in what it reads. `registry/ownership.py` decides what a proof means.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic_core import from_json

from tollway.errors import (
    ChainUnavailable,
    EndpointNotAllowed,
    Refusal,
    TollwayError,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.identity.signatures import SignatureVerifier, eip191_digest, parse_signature
from tollway.ids import Address, ChainId
from tollway.limits import MIB, Limits
from tollway.outbound.client import HttpClient
from tollway.outbound.http1 import format_fields
from tollway.outbound.policy import Endpoint, is_literal, parse_endpoint
from tollway.registry.ownership import (
    METHODS,
    Challenge,
    Method,
    OwnershipClaim,
    find_signatures,
    make_content,
)
from tollway.registry.text import join_lines
from tollway.webhooks.schedule import TIMEOUT, UNREACHABLE, Response

DOCUMENT_BYTES_MAX = 4 * MIB
"""Of a provider's OpenAPI document; the one of OpenAI has 3.4 MB."""
PROBE_BYTES_MAX = MIB
DOCUMENT_DEADLINE_S = 10.0
PROBE_DEADLINE_S = 3.0

LOCATION_CHARACTERS_MAX = 300
"""The characters of the target of a redirect that a refusal names."""

_SUCCESS, _REDIRECTS = range(200, 300), range(300, 400)


class Fetcher:
    def __init__(self, http_client: HttpClient) -> None:
        self._http_client = http_client

    async def fetch_document(self, url: str) -> bytes:
        """Fetches a document of at most `DOCUMENT_BYTES_MAX`, such as an OpenAPI description. Raises `EndpointNotAllowed` for a URL that may not be
        dialled, and an Upstream failure where there is no such document."""
        document = await self._http_client.fetch(
            url, bytes_max=DOCUMENT_BYTES_MAX, deadline_s=DOCUMENT_DEADLINE_S
        )
        if document.status in _SUCCESS:
            return document.body
        detail = f"The server responded with status {document.status}."
        if document.status in _REDIRECTS and document.location:
            target = join_lines(document.location)[:LOCATION_CHARACTERS_MAX]
            detail = f"The server responded with status {document.status} and the location {target}. Give the URL of the document itself."
        raise UpstreamBadResponse(detail)

    async def is_unprotected(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint responds with 2xx to a request without the listing's secret."""
        try:
            document = await self._http_client.fetch(
                endpoint.href, bytes_max=PROBE_BYTES_MAX, deadline_s=PROBE_DEADLINE_S
            )
        except TollwayError:
            return False
        return document.status in _SUCCESS


async def post_webhook(
    http_client: HttpClient,
    url: str,
    *,
    headers: Iterable[tuple[str, str]],
    body: bytes,
    bytes_max: int,
    deadline_s: float,
) -> Response:
    """Sends one message of a webhook. Every outcome is a value: an attempt that gets no response has failed."""
    try:
        posted = await http_client.post(
            url, fields=format_fields(headers), body=body, bytes_max=bytes_max, deadline_s=deadline_s
        )
    except EndpointNotAllowed:
        return Response(error="not_allowed")
    except UpstreamTimeout:
        return Response(error=TIMEOUT)
    except UpstreamBadResponse:
        return Response(error="bad_response")
    except (UpstreamUnreachable, Refusal):
        return Response(error=UNREACHABLE)
    retry_after = [value for name, value in posted.headers if name.lower() == b"retry-after"]
    return Response(
        status=posted.status,
        retry_after=retry_after[0].decode("latin-1") if len(retry_after) == 1 else None,
        body=posted.body,
    )


EvidenceState = Literal["proved", "not_found", "other_line", "unreachable"]
"""The result of one method. `other_line`: not found, but the line of another listing is there. `unreachable`: its server, or a chain that verifies its
signature, did not respond."""

_FOUND = 200


class TxtLookup(Protocol):
    async def find_texts(self, name: str) -> tuple[str, ...] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipEvidence:
    of: Mapping[Method, EvidenceState]

    @property
    def proved(self) -> tuple[Method, ...]:
        return tuple(method for method in METHODS if self.of.get(method) == "proved")


class OwnershipChecker:
    """`gateway`: the public origin that proofs are for."""

    def __init__(
        self,
        *,
        http_client: HttpClient,
        txt_records: TxtLookup,
        verifier: SignatureVerifier,
        gateway: str,
        limits: Limits,
    ) -> None:
        self._http_client = http_client
        self._txt_records = txt_records
        self._verifier = verifier
        self._gateway = gateway
        self._limits = limits

    def challenge(self, claim: OwnershipClaim) -> Challenge:
        endpoint = parse_endpoint(claim.endpoint, allow_private=True)  # the client checks what is dialled
        origin, host = "", None
        if isinstance(endpoint, Endpoint):
            origin = endpoint.origin
            host = None if is_literal(endpoint.host) else endpoint.host.removesuffix(".")
        return Challenge(
            listing_id=claim.listing_id,
            origin=origin,
            host=host,
            provider=claim.provider,
            pay_to=claim.pay_to,
            networks=claim.networks,
            content=make_content(self._gateway, provider=claim.provider, origin=origin),
        )

    async def find_evidence(self, challenge: Challenge) -> OwnershipEvidence:
        if not challenge.origin:
            return OwnershipEvidence(of={})
        checks = {
            "wellKnown": self._check_file,
            "dns": self._check_name,
            "signature": self._check_document,
        }
        async with asyncio.TaskGroup() as group:
            tasks = {method: group.create_task(checks[method](challenge)) for method in METHODS}
        return OwnershipEvidence(of={method: task.result() for method, task in tasks.items()})

    async def _check_file(self, challenge: Challenge) -> EvidenceState:
        body = await self._fetch(challenge.file_url, bytes_max=self._limits.ownership_file_bytes_max)
        if not isinstance(body, bytes):
            return body
        return _find_line(challenge, body.decode("utf-8-sig", "replace").splitlines())

    async def _check_name(self, challenge: Challenge) -> EvidenceState:
        if challenge.dns_name is None:
            return "not_found"
        texts = await self._txt_records.find_texts(challenge.dns_name)
        if texts is None:
            return "unreachable"
        return _find_line(challenge, texts)

    async def _check_document(self, challenge: Challenge) -> EvidenceState:
        body = await self._fetch(challenge.document_url, bytes_max=PROBE_BYTES_MAX)
        if not isinstance(body, bytes):
            return body
        try:
            document: Any = from_json(body)
        except ValueError:
            return "not_found"
        digest = eip191_digest(challenge.origin.encode())
        try:
            async with asyncio.timeout(self._limits.ownership_deadline_s):
                for text in find_signatures(document):
                    if await self._is_signed(text, digest, challenge.pay_to, challenge.networks):
                        return "proved"
        except (ChainUnavailable, TimeoutError):
            return "unreachable"
        return "not_found"

    async def _is_signed(
        self, text: str, digest: bytes, signer: Address, networks: tuple[ChainId, ...]
    ) -> bool:
        try:
            signature = parse_signature(text)
        except ValueError:
            return False
        return await self._verifier.is_signed_by(signer, digest, signature, networks)

    async def _fetch(self, url: str, *, bytes_max: int) -> bytes | Literal["not_found", "unreachable"]:
        try:
            document = await self._http_client.fetch(
                url, bytes_max=bytes_max, deadline_s=self._limits.ownership_deadline_s
            )
        except UpstreamBadResponse:
            return "not_found"  # a proof is never that long, nor cut
        except (EndpointNotAllowed, UpstreamUnreachable, UpstreamTimeout, Refusal):
            return "unreachable"
        return document.body if document.status == _FOUND else "not_found"


def _find_line(challenge: Challenge, lines: Sequence[str]) -> EvidenceState:
    if challenge.is_met_by(lines):
        return "proved"
    return "other_line" if challenge.is_another_met_by(lines) else "not_found"
