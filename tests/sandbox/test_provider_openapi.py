import json
import re

import aiohttp
import jsonschema
from openapi_spec_validator import validate

from tollway.sandbox.provider import SAMPLE_DOCUMENT, run_provider


def answer_schema(path: str, method: str, media_type: str = "application/json"):
    operation = SAMPLE_DOCUMENT["paths"][path][method]
    return operation["responses"]["200"]["content"][media_type]["schema"]


def test_the_document_is_valid_openapi():
    validate(json.loads(json.dumps(SAMPLE_DOCUMENT)))


async def test_the_provider_serves_its_document_and_matches_it():
    async with run_provider() as provider, aiohttp.ClientSession(provider.base_url) as http:
        async with http.get("/openapi.json") as shown:
            assert await shown.json() == SAMPLE_DOCUMENT
        async with http.get("/quote/ETH") as quote:
            jsonschema.validate(await quote.json(), answer_schema("/quote/{symbol}", "get"))
        async with http.post("/echo", json={"hello": "world"}) as echo:
            jsonschema.validate(await echo.json(), answer_schema("/echo", "post"))
        async with http.get("/stream", params={"count": "2", "interval": "0"}) as stream:
            assert stream.content_type == "text/event-stream"
            assert (await stream.text()).count("event: tick") == 2


def test_its_words_name_no_payment_and_no_gateway():
    assert not re.search(r"pay|gateway|tollway|402", json.dumps(SAMPLE_DOCUMENT), re.IGNORECASE)
