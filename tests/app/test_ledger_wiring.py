"""The files of a wallet's books end at the time that all gateways share, which is the time of the rows."""

from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from tests.kit.csv_exports import read_own_books
from tests.kit.listings import find_block_in
from tests.web.test_exports import FakeHistory
from tests.web.test_history_routes import PAYER
from tollway.app.ledger_wiring import book_file_routers
from tollway.identity.authenticator import Identity
from tollway.limits import DEFAULT_LIMITS
from tollway.web.book_turns import BookTurns

SHARED_MS = 1_700_000_000_000
SHARED_TIME = "20231114T221320Z"


@pytest.mark.parametrize("given", ["", "?to=2100-01-01T00:00:00Z"])
@pytest.mark.parametrize("path", ["/api/v2/history.csv", "/api/v2/payments.csv"])
async def test_a_file_ends_at_the_shared_time(path: str, given: str) -> None:
    async def authenticate(_request: Request) -> Identity:
        return Identity(address=PAYER, method="session", chain_id=None)

    async def is_session_open(_request: Request) -> bool:
        return True

    services: Any = SimpleNamespace(
        settings=SimpleNamespace(limits=DEFAULT_LIMITS, public_url="https://gateway.example"),
        call_history=FakeHistory(3),
        ledger=SimpleNamespace(shared_ms=lambda: SHARED_MS),
        moderation=SimpleNamespace(find_block=find_block_in([])),
    )
    routers = book_file_routers(
        services,
        wallet=authenticate,
        is_session_open=is_session_open,
        book_turns=BookTurns(),
        access=cast(Any, SimpleNamespace(resolve_wallet=read_own_books)),
        find_asset=lambda _chain_id, _key: None,
        receipt_signer=cast(Any, None),
    )
    app = Starlette(routes=[route for router in routers for route in router.routes])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="https://gateway.example") as client:
        response = await client.get(path + given)
    assert response.status_code == 200
    assert SHARED_TIME in response.headers["Content-Disposition"]
