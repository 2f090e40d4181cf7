"""What a control worker refuses: each path that pays or settles, by every method, with a problem that says where the request belongs."""

import httpx
import pytest
from starlette.applications import Starlette

from tollway.web.api.misdirected import misdirected_router
from tollway.web.http.problems import install_handlers

PAID = (
    "/api/v2/gateway/api_x",
    "/api/v2/gateway/api_x/a%2Fb?c=d",
    "/api/v2/channels/a/b/c/d",
    "/mcp",
    "/mcp/api_x",
)
OTHERS = ("/", "/api/v2/apis", "/api/v2/gatewayx", "/api/v2/channelsx", "/x/mcp")


async def ask(method: str, path: str) -> httpx.Response:
    app = Starlette(routes=misdirected_router().routes)
    install_handlers(app, "https://gateway.example.com")
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        return await client.request(method, path)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", PAID)
async def test_what_pays_is_refused_and_sent_to_the_gateway(method: str, path: str) -> None:
    problem = (await ask(method, path)).json()
    assert (problem["code"], problem["status"], problem["paymentState"]) == ("route_not_found", 404, "none")
    assert "`listen`" in problem["detail"]


@pytest.mark.parametrize("path", OTHERS)
async def test_other_paths_are_not_its_own(path: str) -> None:
    assert "`listen`" not in (await ask("GET", path)).text
