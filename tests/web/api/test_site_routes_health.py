"""Health and the pages of problems: ready only if every check passes, and a page for each code."""

from collections.abc import Mapping

import httpx
import pytest
from starlette.applications import Starlette

from tollway.errors import Code
from tollway.web.api.site_routes import health_router
from tollway.web.http.problems import PROBLEM_KINDS, PROBLEM_PAGES, install_handlers


async def ask(path: str, checks: Mapping[str, bool] | None = None) -> httpx.Response:
    async def readiness() -> Mapping[str, bool]:
        return checks or {}

    app = Starlette(routes=health_router(readiness, readiness).routes)
    install_handlers(app, "https://gw.example.com")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gw") as client:
        return await client.get(path)


@pytest.mark.parametrize(
    ("checks", "status", "code"),
    [
        ({"storage": True, "chain": True}, 200, None),
        ({"chain_8453": False, "storage": False}, 503, "storage_unavailable"),
        ({"storage": True, "chain_8453": False, "chain_10": True}, 503, "chain_unavailable"),
        ({"storage": True, "drain": False}, 503, "overloaded"),
    ],
)
async def test_is_ready_only_when_every_check_is(
    checks: dict[str, bool], status: int, code: str | None
) -> None:
    answer = await ask("/readyz", checks)
    assert answer.status_code == status
    assert answer.json()["checks"] == checks
    assert answer.json().get("code") == code


async def test_is_alive_without_its_dependencies() -> None:
    assert (await ask("/healthz", {"storage": False})).status_code == 200


async def test_the_type_of_every_problem_resolves_to_a_page() -> None:
    pages = {code: await ask("/problems/" + code.value.replace("_", "-")) for code in Code}
    assert [code for code, page in pages.items() if page.status_code != 200] == []
    assert [code for code, page in pages.items() if code.value not in page.text] == []
    assert [code for code, page in pages.items() if str(PROBLEM_KINDS[code].status) not in page.text] == []


def test_every_code_is_explained() -> None:
    assert set(PROBLEM_PAGES) == set(Code)
    assert all(page.meaning.endswith(".") and page.remedy.endswith(".") for page in PROBLEM_PAGES.values())


@pytest.mark.parametrize("name", ["nothing", "api_not_found", "<script>"])
async def test_an_unknown_kind_of_problem_is_a_404(name: str) -> None:
    assert (await ask(f"/problems/{name}")).status_code == 404


async def test_the_list_links_every_page() -> None:
    text = (await ask("/problems")).text
    assert all(f"/problems/{code.value.replace('_', '-')}" in text for code in Code)
