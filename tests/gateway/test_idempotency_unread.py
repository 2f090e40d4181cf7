"""A key that names no call needs no body, so a closed listing does not read it."""

import asyncio
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, InProcessGateway
from tests.kit.payer import Payer
from tests.kit.waits import until

KEY = ("Idempotency-Key", "k1")


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"retired_ms": NOW_MS}, 410), ({"status": "paused"}, 503), ({"methods": ("GET",)}, 405)],
)
async def test_a_closed_listing_refuses_an_authorisation_before_its_body_comes(
    gateway: InProcessGateway, changes: dict[str, Any], status: int
) -> None:
    listing = await gateway.publish()
    payer = Payer.funded(gateway, 100_000)
    shown = payer.show(await payer.quote("POST", "/quote"))
    await gateway.revise(listing, **changes)
    headers = [*shown, KEY, ("Expect", "100-continue")]
    request = gateway.open("POST", "/quote", headers, length=2_000, is_open=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run(request))
        await until(lambda: request.is_started)
        request.leave()
    assert (request.status, request.is_body_asked) == (status, False)
