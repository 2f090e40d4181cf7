"""The document at an `openapiUrl`: fetched, parsed, checked. (Its routes are tested with the listings.)"""

import json
import threading
from typing import Any

import pytest

from tests.kit.listings import PROVIDER, sample_listing
from tollway.errors import EndpointNotAllowed, Refusal, TollwayError, UpstreamBadResponse, UpstreamTimeout
from tollway.limits import MIB
from tollway.registry.document_fit import LEFT_OUT
from tollway.registry.listing_warnings import list_warnings
from tollway.registry.openapi import ProviderDocument
from tollway.storage.catalog.catalog_tables import write_document
from tollway.web.api.provider_documents import ProviderDocuments

URL = "https://api.example.com/openapi"


def documents(answer: bytes | TollwayError) -> ProviderDocuments:
    async def fetch(url: str) -> bytes:
        assert url == URL
        if isinstance(answer, TollwayError):
            raise answer
        return answer

    return ProviderDocuments(fetch)


def too_long_at_its_shortest() -> bytes:
    parameters = [{"name": f"parameter_{number}", "in": "query"} for number in range(30)]
    paths = {f"/things/{number}": {"get": {"parameters": parameters}} for number in range(1_500)}
    return json.dumps({"openapi": "3.1.0", "paths": paths}).encode()


def long_document() -> bytes:
    """Of the shape of published ones: two megabytes of examples in extensions and of texts."""
    samples = {"curl": "curl https://api.example.com/v1/things\n" * 200, "python": "import things\n" * 200}
    operation = {
        "summary": "A thing",
        "description": "It does a thing. " * 100,
        "x-samples": samples,
        "responses": {"200": {"description": "OK"}},
    }
    paths = {f"/things/{number}": {"get": operation} for number in range(200)}
    return json.dumps({"openapi": "3.1.0", "paths": paths}, indent=2).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"openapi": "3.1.0", "paths": {}}',
        b'\n  {"openapi": "3.1.0", "paths": {}}',
        b"openapi: 3.1.0\npaths: {}\n",
        b"---\nopenapi: '3.1.0'\npaths:\n  {}\n",
    ],
)
async def test_reads_json_and_yaml(raw: bytes) -> None:
    assert await documents(raw).read(URL) == {"openapi": "3.1.0", "paths": {}}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (EndpointNotAllowed("no"), "could not be fetched"),
        (UpstreamTimeout("late"), "could not be fetched"),
        (UpstreamBadResponse("The server responded with status 404."), "could not be fetched. The server responded with status 404"),
        (b"", "must be an object"),
        (b"[1]", "must be a JSON object"),
        (b'{"a": 1, "a": 2}', 'is not acceptable JSON: a member of an object appears twice: "a"'),
        (b'{"a":' * 10_000, "nests deeper than"),
        (b'{"a": 1,\n "b": 2,}', "is not JSON: Expecting property name enclosed in double quotes at line 2, column 9"),
        (b'{"a": [' + b"1," * 262_144 + b"1]}", "holds more than 262144 values"),
        (b"a: [" + b"1," * 262_144 + b"1]", "has more than 262144 values"),
        (b"\x1f\x8b\x08\x00", "is compressed (gzip). Serve it without Content-Encoding"),
        (b'{"openapi": "3.1.0", "info": {"title": "\\ud800"}}', "UTF-8"),
        (too_long_at_its_shortest(), "even without its examples, texts and schemas of bodies; at most 1048576 are stored"),
        (b"a: b\n  c: d: e", "is not YAML: mapping values are not allowed in this context at line 2, column 4"),
        (b"a: *b", "the alias *b, which names nothing before it"),
        (b"openapi: 3.0\npaths: {}", 'write `openapi: "3.0.3"`'),
        (b'{"openapi": 3.1}', 'write `openapi: "3.0.3"`'),
        (b'{"openapi": "4.0.0"}', "3.0, 3.1 or 3.2"),
        (b"swagger: '2.0'\npaths: {}", "Swagger 2.0"),
        (b"openapi: 3.0.0\npaths: [1]", "object of paths"),
        ("\n".join(["openapi: 3.0.0", "paths:", *(f"  /a{at}: {{get: {{}}}}" for at in range(2_001))]).encode(), "2001"),
    ],
    ids=str,
)  # fmt: skip
async def test_says_what_is_wrong(answer: bytes | TollwayError, said: str) -> None:
    with pytest.raises(Refusal) as refused:
        await documents(answer).read(URL)
    (error,) = refused.value.problem.errors
    assert (error.code, error.pointer) == ("openapi", "/openapiUrl")
    assert said in error.detail


async def test_a_long_document_is_stored_short_and_whole_in_what_is_read() -> None:
    raw = long_document()
    assert len(raw) > 2 * MIB
    found = await documents(raw).read(URL)
    assert len(write_document(found)) <= MIB
    assert LEFT_OUT not in found
    assert [one.path for one in ProviderDocument(found).operations] == [
        f"/things/{number}" for number in range(200)
    ]


async def test_what_a_shortened_document_lost_is_said() -> None:
    operation = {
        "description": "y" * 4_000,
        "parameters": [{"name": "q", "in": "query", "example": "x" * 4_000}],
    }
    paths = {f"/things/{number}": {"get": operation} for number in range(400)}
    found = await documents(json.dumps({"openapi": "3.1.0", "paths": paths}).encode()).read(URL)
    (warning,) = [
        one
        for one in list_warnings(sample_listing(provider=PROVIDER, openapi=found), ())
        if one.code == "document_shortened"
    ]
    assert warning.pointer == "/openapiUrl"
    assert "Left out: examples, texts beyond 300 characters. Every operation stays" in warning.detail


class Raw(bytes):
    """A document that remembers the threads that read it."""

    threads: set[int]

    def lstrip(self, *given: Any) -> bytes:
        self.threads.add(threading.get_ident())
        return super().lstrip(*given)


@pytest.mark.parametrize("text", [b'{"openapi": "3.1.0"}', b"openapi: 3.1.0"])
async def test_no_document_is_parsed_in_the_event_loop(text: bytes) -> None:
    raw = Raw(text)
    raw.threads = set()
    await documents(raw).read(URL)
    assert raw.threads
    assert threading.get_ident() not in raw.threads
