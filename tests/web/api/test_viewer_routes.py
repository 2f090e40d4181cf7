"""`/viewers`: permissions by HTTP; and `wallet=` on the routes that read the books of a wallet."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.kit.budgets import bind, policy_of
from tests.kit.routes import RouteHarness
from tests.model.ledger import MemoryLedger
from tests.web.api.test_history_routes import (
    CALL,
    NOW_MS,
    PAYER,
    PAYMENT,
    PROVIDER,
    STRANGER,
    TX,
    FakeRecords,
    ask,
)
from tollway.errors import Refusal
from tollway.identity.viewers import BookAccess, Viewer
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.rate_limits.limiter import RateLimiter
from tollway.web.api.viewer_routes import viewer_router
from tollway.web.http.query import format_time

DAY_MS = 86_400_000
UNTIL = format_time(NOW_MS + DAY_MS)


class MemoryViewers:
    """The permissions of a test."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Address, Address], Viewer] = {}

    async def put(self, viewer: Viewer, *, most: int) -> Viewer | None:
        if len([one for one in self.rows if one[0] == viewer.wallet]) >= most:
            return None
        self.rows[viewer.wallet, viewer.viewer] = viewer
        return viewer

    async def delete(self, wallet: Address, viewer: Address) -> None:
        self.rows.pop((wallet, viewer), None)

    async def find(self, wallet: Address, viewer: Address, *, now_ms: int) -> Viewer | None:
        return self.rows.get((wallet, viewer))

    async def accept(self, wallet: Address, viewer: Address, *, now_ms: int) -> None:
        self.rows[wallet, viewer] = replace(self.rows[wallet, viewer], accepted_ms=now_ms)

    async def list_viewers(self, wallet: Address, *, now_ms: int) -> tuple[Viewer, ...]:
        return tuple(one for one in self.rows.values() if one.wallet == wallet)

    async def list_wallets(self, viewer: Address, *, now_ms: int, limit: int) -> tuple[Viewer, ...]:
        accepted = [one for one in self.rows.values() if one.viewer == viewer and one.accepted_ms]
        return tuple(accepted)[:limit]


class Site(RouteHarness):
    """The routes over one set of permissions."""

    def __init__(self) -> None:
        self.store = MemoryViewers()
        self.ledger = MemoryLedger(now_ms=lambda: NOW_MS)
        self.access = BookAccess(
            self.store,
            self.ledger,
            limits=DEFAULT_LIMITS,
            now_ms=lambda: NOW_MS,
            rate_limiter=RateLimiter(),
        )
        super().__init__(book_access=self.access, now_ms=lambda: NOW_MS)
        self.open(viewer_router)

    async def ask(
        self, method: str, path: str = "/viewers", wallet: Address | None = PAYER, json: Any = None
    ) -> httpx.Response:
        return await self.send(method, "/api/v2" + path, json, wallet=wallet)


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_permission_is_in_the_lists_of_both_wallets_until_it_is_deleted(site: Site) -> None:
    put = await site.ask("PUT", f"/viewers/{STRANGER}", json={"until": UNTIL})
    shown = {"address": str(STRANGER), "since": format_time(NOW_MS), "until": UNTIL}
    assert (put.status_code, put.json()) == (200, shown)
    assert (await site.ask("GET")).json() == {"viewers": [shown], "wallets": []}
    assert (await site.ask("GET", wallet=STRANGER)).json() == {"viewers": [], "wallets": []}
    await site.access.resolve_wallet(STRANGER, PAYER)
    other = await site.ask("GET", wallet=STRANGER)
    assert other.json() == {"viewers": [], "wallets": [{**shown, "address": str(PAYER)}]}
    for _ in range(2):
        assert (await site.ask("DELETE", f"/viewers/{STRANGER}")).status_code == 204
    assert (await site.ask("GET", wallet=STRANGER)).json() == {"viewers": [], "wallets": []}


async def test_a_viewer_declines_what_it_got(site: Site) -> None:
    await site.ask("PUT", f"/viewers/{STRANGER}", json={"until": UNTIL})
    await site.ask("PUT", f"/viewers/{STRANGER}", wallet=PROVIDER, json={"until": UNTIL})
    for wallet in (PAYER, PROVIDER):
        await site.access.resolve_wallet(STRANGER, wallet)
    for _ in range(2):
        assert (await site.ask("DELETE", f"/viewers/of/{PAYER}", wallet=STRANGER)).status_code == 204
    assert set(site.store.rows) == {(PROVIDER, STRANGER)}
    assert (await site.ask("GET")).json()["viewers"] == []
    with pytest.raises(Refusal):
        await site.access.resolve_wallet(STRANGER, PAYER)
    assert (await site.ask("DELETE", f"/viewers/of/{STRANGER}", wallet=STRANGER)).status_code == 422
    assert (await site.ask("DELETE", f"/viewers/of/{PAYER}", wallet=None)).status_code == 401


async def test_permissions_have_a_rate_by_wallet_and_by_address(site: Site) -> None:
    """20 an hour for a wallet, 100 for an address; a renewal counts, and a body that is refused does not."""
    assert (await site.ask("PUT", f"/viewers/{STRANGER}", json={})).status_code == 422
    for _ in range(20):
        assert (await site.ask("PUT", f"/viewers/{STRANGER}", json={"until": UNTIL})).status_code == 200
    refused = await site.ask("PUT", f"/viewers/{STRANGER}", json={"until": UNTIL})
    assert refused.status_code == 429
    assert refused.headers["ratelimit-policy"] == '"permissions";q=20;w=3600'
    for number in range(1, 5):
        wallet = Address(bytes([number]) * 20)
        for _ in range(20):
            put = await site.ask("PUT", f"/viewers/{STRANGER}", wallet, json={"until": UNTIL})
            assert put.status_code == 200
    refused = await site.ask("PUT", f"/viewers/{STRANGER}", Address(b"\x09" * 20), json={"until": UNTIL})
    assert refused.headers["ratelimit-policy"] == '"permissions-address";q=100;w=3600'
    assert (await site.ask("DELETE", f"/viewers/{STRANGER}")).status_code == 204


async def test_a_viewer_cannot_delete_or_renew_what_another_wallet_gave(site: Site) -> None:
    await site.ask("PUT", f"/viewers/{STRANGER}", json={"until": UNTIL})
    await site.ask("DELETE", f"/viewers/{PAYER}", wallet=STRANGER)
    await site.ask("PUT", f"/viewers/{PAYER}", wallet=STRANGER, json={"until": UNTIL})
    assert set(site.store.rows) == {(PAYER, STRANGER), (STRANGER, PAYER)}


@pytest.mark.parametrize(
    ("path", "body", "place", "code"),
    [
        (f"/viewers/{STRANGER}", {}, "/until", "required"),
        (f"/viewers/{STRANGER}", {"until": "tomorrow"}, "/until", "malformed"),
        (f"/viewers/{STRANGER}", {"until": 5}, "/until", "type"),
        (f"/viewers/{STRANGER}", {"until": format_time(NOW_MS)}, "/until", "out_of_range"),
        (f"/viewers/{STRANGER}", {"until": "9000-01-01T00:00:00Z"}, "/until", "out_of_range"),
        (
            f"/viewers/{STRANGER}",
            {"until": format_time(NOW_MS + DEFAULT_LIMITS.viewer_days_max * DAY_MS + 1)},
            "/until",
            "out_of_range",
        ),
        (f"/viewers/{STRANGER}", {"until": UNTIL, "role": "admin"}, "/role", "unknown_field"),
        ("/viewers/0x12", {"until": UNTIL}, "address", "malformed"),
        (f"/viewers/{PAYER}", {"until": UNTIL}, "address", "own_wallet"),
        (f"/viewers/{STRANGER}?days=3", {"until": UNTIL}, "days", "unknown"),
    ],
)
async def test_refuses_what_is_no_permission_and_stores_nothing(
    site: Site, path: str, body: Any, place: str, code: str
) -> None:
    response = await site.ask("PUT", path, json=body)
    (error,) = response.json()["errors"]
    assert response.status_code == 422
    assert (error.get("pointer", error.get("parameter")), error["code"]) == (place, code)
    assert site.store.rows == {}


async def test_the_longest_permission_is_allowed(site: Site) -> None:
    until = format_time(NOW_MS + DEFAULT_LIMITS.viewer_days_max * DAY_MS)
    assert (await site.ask("PUT", f"/viewers/{STRANGER}", json={"until": until})).status_code == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_without_a_proof_nothing_is_read_or_changed(site: Site, method: str) -> None:
    path = "/viewers" if method == "GET" else f"/viewers/{STRANGER}"
    response = await site.ask(method, path, wallet=None, json={"until": "x"})
    assert (response.status_code, response.json()["code"]) == (401, "authentication_required")


# ---- `wallet=`.

READS = ["/history", "/history/call_1", "/payments", f"/payments/{TX}"]


@pytest.mark.parametrize("path", READS)
async def test_a_viewer_reads_the_books_of_the_wallet_that_named_it(path: str) -> None:
    records = FakeRecords([CALL], [PAYMENT])
    named = f"{path}?wallet={str(PAYER).lower()}"
    own = await ask(records, path)
    read = await ask(records, named, wallet=STRANGER, readable=[PAYER])
    assert (own.status_code, read.status_code) == (200, 200)
    assert read.json() == own.json()
    assert all(query.wallet == PAYER for query in [*records.queries, *records.payment_queries])


@pytest.mark.parametrize("path", READS)
async def test_another_wallet_gets_the_same_refusal_whatever_exists(path: str) -> None:
    records = FakeRecords([CALL], [PAYMENT])
    refused = await ask(records, f"{path}?wallet={PAYER}", wallet=STRANGER)
    unknown = await ask(FakeRecords(), f"{path}?wallet={Address(b'u' * 20)}", wallet=STRANGER)
    for response in (refused, unknown):
        assert (response.status_code, response.json()["code"]) == (403, "not_viewer")
    assert refused.json()["detail"] == unknown.json()["detail"]
    assert (records.queries, records.payment_queries) == ([], [])


async def test_a_viewer_of_one_wallet_reads_no_call_of_another() -> None:
    response = await ask(
        FakeRecords([CALL]), f"/history/call_1?wallet={PROVIDER}", wallet=STRANGER, readable=[PROVIDER]
    )
    assert response.status_code == 200  # as its provider
    response = await ask(
        FakeRecords([CALL]), f"/history/call_1?wallet={STRANGER}", wallet=PAYER, readable=[STRANGER]
    )
    assert (response.status_code, response.json()["code"]) == (404, "call_not_found")


async def test_a_viewer_decides_no_call() -> None:
    response = await ask(
        FakeRecords([CALL]),
        f"/history/call_1/resolution?wallet={PROVIDER}",
        wallet=STRANGER,
        readable=[PROVIDER],
        method="POST",
        body=b'{"outcome":"released"}',
    )
    assert (response.status_code, response.json()["code"]) == (404, "call_not_found")


async def test_a_wallet_with_a_wrong_checksum_is_no_wallet() -> None:
    wrong = str(Address(b"\xab" * 20)).swapcase().replace("0X", "0x")
    response = await ask(FakeRecords(), f"/history?wallet={wrong}", wallet=STRANGER)
    assert (response.status_code, response.json()["errors"][0]["parameter"]) == (422, "wallet")


async def test_the_owner_of_a_bound_wallet_is_in_both_lists_and_cannot_be_removed(site: Site) -> None:
    await bind(site.ledger, policy_of(owner=STRANGER, agent=PAYER, maxTotal="1"), NOW_MS)
    since = {"since": format_time(NOW_MS), "until": None}
    await site.ask("PUT", f"/viewers/{STRANGER}", json={"until": UNTIL})
    for _ in range(2):
        viewer, wallet = {"address": str(STRANGER), **since}, {"address": str(PAYER), **since}
        assert (await site.ask("GET")).json() == {"viewers": [viewer], "wallets": []}
        assert (await site.ask("GET", wallet=STRANGER)).json() == {"viewers": [], "wallets": [wallet]}
        await site.ask("DELETE", f"/viewers/{STRANGER}")
        await site.ask("DELETE", f"/viewers/of/{PAYER}", wallet=STRANGER)
    assert await site.access.resolve_wallet(STRANGER, PAYER) == PAYER
