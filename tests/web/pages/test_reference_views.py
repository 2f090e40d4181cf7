"""The reference: the contract as pages, complete, with links that lead somewhere."""

import html
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.kit.pages import BROWSER, PageHarness, PageReader
from tests.kit.routes import PUBLIC_URL
from tollway.registry.openapi import METHODS
from tollway.web.http.contract import CONTRACT_PATH, Site, load_contract
from tollway.web.http.problems import problem_name
from tollway.web.pages.reference_views import Reference


@pytest.fixture
async def reader() -> AsyncIterator[httpx.AsyncClient]:
    async with PageHarness().open_pages() as client:
        yield client


async def test_the_reference_has_every_operation_and_schema_of_the_contract(
    reader: httpx.AsyncClient,
) -> None:
    contract = load_contract(CONTRACT_PATH.read_bytes(), Site(public_url=PUBLIC_URL, version="1.2.3"))
    page = PageReader((await reader.get("/docs")).text)
    for path, item in contract["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                assert f"/docs/operations/{operation['operationId']}" in page.addresses
                answer = await reader.get(f"/docs/operations/{operation['operationId']}")
                assert f"{method.upper()} {path}" in html.unescape(answer.text)
                addresses = PageReader(answer.text).addresses
                found = [
                    await reader.get(one) for one in addresses if one.startswith(("/docs/s", "/problems/"))
                ]
                assert [one.status_code for one in found] == [200] * len(found)
    for name in contract["components"]["schemas"]:
        answer = await reader.get(f"/docs/schemas/{name}")
        assert (answer.status_code, len(answer.content) < 20_000) == (200, True)


async def test_an_operation_shows_what_the_contract_says(reader: httpx.AsyncClient) -> None:
    text = html.unescape((await reader.get("/docs/operations/createApi")).text)
    for word in ("session", "signedRequest", "signInWithX", "dryRun", "true | false", "Idempotency-Key"):
        assert word in text
    assert {"/docs/schemas/ListingDraft", "/problems/already-exists"} <= set(PageReader(text).addresses)
    assert "payer_in_debt" not in text
    assert "No sign-in is needed." in (await reader.get("/docs/operations/searchApis")).text


@pytest.mark.parametrize("path", ["/docs/operations/none", "/docs/schemas/none"])
async def test_the_reference_of_an_unknown_name_is_not_found(reader: httpx.AsyncClient, path: str) -> None:
    answer = await reader.get(path, headers=BROWSER)
    assert answer.status_code == 404
    assert "See /docs for all operations." in answer.text


def test_an_operation_without_a_group_is_in_one_named_by_its_path() -> None:
    document = {
        "tags": [{"name": "Registry"}],
        "paths": {
            "/api/v2/webhooks": {"get": {"operationId": "list", "responses": {}}},
            "/api/v2/apis": {"get": {"operationId": "search", "tags": ["Registry"], "responses": {}}},
        },
        "components": {"schemas": {}},
        "x-problem-sets": {},
    }
    assert [name for name, _ in Reference(document, name_problem=problem_name).groups] == [
        "Registry",
        "Webhooks",
    ]
