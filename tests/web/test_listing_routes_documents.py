"""The document at an `openapiUrl`: fetched, parsed, checked. (Its routes are tested with the listings.)"""

import pytest

from tollway.errors import EndpointNotAllowed, Refusal, TollwayError, UpstreamBadResponse, UpstreamTimeout
from tollway.web.listing_edits import ProviderDocuments

URL = "https://api.example.com/openapi"


def documents(answer: bytes | TollwayError) -> ProviderDocuments:
    async def fetch(url: str) -> bytes:
        assert url == URL
        if isinstance(answer, TollwayError):
            raise answer
        return answer

    return ProviderDocuments(fetch)


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
        (b'{"a": 1, "a": 2}', "is not acceptable JSON: a member of an object appears twice"),
        (b'{"a":' * 10_000, "nests deeper than"),
        (b'{"a": 1,\n "b": 2,}', "is not JSON: Expecting property name enclosed in double quotes at line 2, column 9"),
        (b'{"a": [' + b"1," * 70_000 + b"1]}", "holds more than 65536 values"),
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
