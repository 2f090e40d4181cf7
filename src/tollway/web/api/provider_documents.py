"""The OpenAPI documents that providers publish at an `openapiUrl`: fetched, parsed and cut to what a listing stores."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tollway.errors import (
    Code,
    EndpointNotAllowed,
    FieldError,
    Refusal,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
    refuse,
)
from tollway.registry.draft import fit_fetched_document
from tollway.registry.openapi import YamlRefused, parse_yaml_object
from tollway.web.http.json import VALUES_MAX, parse_json_object

FETCHED_VALUES_MAX = 4 * VALUES_MAX
"""Of a document at a URL, which may be four times as long as a body's."""
_GZIP = b"\x1f\x8b"


class ProviderDocuments:
    """The reader of OpenAPI documents at an `openapiUrl`. Safe to call from many tasks at once."""

    def __init__(self, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        """`fetch` bounds the length of a response; it raises `EndpointNotAllowed` and the failures of an upstream."""
        self._fetch = fetch
        self._semaphore = asyncio.Semaphore(1)

    async def read(self, url: str) -> Mapping[str, Any]:
        """The document at that URL as a listing stores it. Raises Refusal (`validation_failed`) when it cannot be fetched or listed."""
        try:
            raw = await self._fetch(url)
        except UpstreamBadResponse as exc:
            raise refuse_document(f"could not be fetched. {exc}") from exc
        except (EndpointNotAllowed, UpstreamUnreachable, UpstreamTimeout) as exc:
            raise refuse_document("could not be fetched") from exc
        # A long text takes seconds, and fifty times its memory: it is parsed in a thread, one at a time.
        async with self._semaphore:
            return await asyncio.to_thread(_read_document, raw)


def _read_document(raw: bytes) -> Mapping[str, Any]:
    document = fit_fetched_document(_parse_document(raw))
    if isinstance(document, str):
        raise refuse_document(document)
    return document


def _parse_document(raw: bytes) -> Mapping[str, Any]:
    if raw.startswith(_GZIP):
        raise refuse_document("is compressed (gzip). Serve it without Content-Encoding")
    if raw.lstrip()[:1] not in (b"{", b"["):
        try:
            return parse_yaml_object(raw, values_max=FETCHED_VALUES_MAX)
        except YamlRefused as exc:
            raise refuse_document(str(exc)) from exc
    try:
        return parse_json_object(raw, values_max=FETCHED_VALUES_MAX)
    except Refusal as exc:
        raise refuse_document(exc.problem.detail.removeprefix("the body ")) from exc


def refuse_document(detail: str) -> Refusal:
    """`detail`: a sentence whose subject is the document."""
    detail = detail.removesuffix(".")
    error = FieldError(code="openapi", detail=detail, pointer="/openapiUrl")
    return refuse(code=Code.VALIDATION_FAILED, detail=f"The document {detail}.", errors=(error,))
