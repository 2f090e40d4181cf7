"""The provider's document behind an `openapiUrl`: fetched once through the outbound dialer, read as JSON or YAML, judged.

It holds no document: what is read goes into the listing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tollway.errors import (
    Code,
    EndpointNotAllowed,
    FieldError,
    Problem,
    Refusal,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.registry.upstream_rules import find_document_fault
from tollway.registry.yaml_document import YamlRefused, parse_yaml_object
from tollway.web.json_body import parse_json_object


class ProviderDocuments:
    """Safe to call from many tasks at once."""

    def __init__(self, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        """`fetch` bounds what it reads; it raises `EndpointNotAllowed` and the failures of an upstream."""
        self._fetch = fetch
        self._yaml_semaphore = asyncio.Semaphore(1)

    async def read(self, url: str) -> Mapping[str, Any]:
        """Raises Refusal (`validation_failed`) when there is no such document, or it cannot be listed."""
        try:
            raw = await self._fetch(url)
        except (EndpointNotAllowed, UpstreamUnreachable, UpstreamBadResponse, UpstreamTimeout) as exc:
            raise refuse_document("could not be fetched") from exc
        document = await self._parse(raw)
        fault = find_document_fault(document)
        if fault is not None:
            raise refuse_document(fault)
        return document

    async def _parse(self, raw: bytes) -> Mapping[str, Any]:
        if raw.lstrip()[:1] in (b"{", b"["):
            try:
                return parse_json_object(raw)
            except Refusal as exc:
                raise refuse_document("could not be read as a JSON object") from exc
        # A long YAML text takes the better part of a second: beside the loop, and one at a time.
        async with self._yaml_semaphore:
            try:
                return await asyncio.to_thread(parse_yaml_object, raw)
            except YamlRefused as exc:
                raise refuse_document(str(exc)) from exc


def refuse_document(detail: str) -> Refusal:
    error = FieldError(code="openapi", detail=detail, pointer="/openapiUrl")
    return Refusal(Problem(code=Code.VALIDATION_FAILED, detail=f"The document {detail}.", errors=(error,)))
