"""What pages may cost paid calls: every read of a page takes a turn with the reads of the catalog, and no page has more rows than one page of the API."""

import re
from collections.abc import AsyncIterator

import pytest
from starlette.routing import Route

from tests.kit.ledger_records import new_payment
from tests.kit.listings import sample_listing
from tests.kit.pages import BROWSER, PageHarness
from tests.kit.signed_in import (
    DAY_MS,
    MIXED,
    NOW_MS,
    READER,
    RULES,
    SELLER,
    USDC,
    SignedInHarness,
    open_signed_in,
)
from tollway.ids import Address, ListingId
from tollway.web.api.listing_routes import LIMIT_MAX
from tollway.web.http.read_turns import kind_of_read

PROVIDER = Address(b"\xaa" * 20)
MORE_THAN_A_PAGE = LIMIT_MAX + 20
YEAR = "from=2026-01-16&to=2027-01-15"


@pytest.fixture
async def signed_in() -> AsyncIterator[SignedInHarness]:
    async with open_signed_in() as harness:
        yield harness


async def test_every_read_of_a_page_takes_a_turn(signed_in: SignedInHarness) -> None:
    routers = signed_in.page_routers
    routes = [one for router in routers for one in router.routes if isinstance(one, Route)]
    reads = {one.path for one in routes if "GET" in (one.methods or ())} - {"/ui/{mark}/{name}"}
    assert {"/", "/apis/{apiId}", "/status", "/problems", "/my", "/my/calls", "/signin"} <= reads
    for path in reads:
        sent = re.sub(r"\{\w+(:\w+)?\}", "some", path)
        for method in ("GET", "HEAD"):
            scope = {"type": "http", "method": method, "path": sent, "raw_path": sent.encode()}
            assert kind_of_read(scope) in ("pages", "books"), path


@pytest.mark.parametrize(
    "path", ["/api/v2/auth/nonce", "/healthz", "/readyz", "/api/v2/networks", "/ui/a/b.js"]
)
def test_what_a_machine_waits_for_takes_none(path: str) -> None:
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
    assert kind_of_read(scope) is None


async def test_a_list_of_listings_has_at_most_a_page_of_rows() -> None:
    harness = PageHarness()
    for number in range(MORE_THAN_A_PAGE):
        await harness.catalog.publish(
            sample_listing(provider=PROVIDER, id=ListingId(f"api_{number}"), name=f"Listing {number}")
        )
    async with harness.open_pages() as client:
        most = await client.get(f"/?limit={LIMIT_MAX}", headers=BROWSER)
        assert len(re.findall(r'<a href="/apis/api_\d+"', most.text)) == LIMIT_MAX
        for path in ("/", f"/providers/{PROVIDER}", f"/providers/{PROVIDER}?limit={MORE_THAN_A_PAGE}"):
            answer = await client.get(path, headers=BROWSER)
            assert answer.status_code == 200
            assert 0 < len(re.findall(r'<a href="/apis/api_\d+"', answer.text)) <= LIMIT_MAX
        refused = await client.get(f"/?limit={MORE_THAN_A_PAGE}", headers=BROWSER)
        assert refused.status_code == 422
        assert not re.search(r'<a href="/apis/api_\d+"', refused.text)


async def test_a_table_of_books_has_at_most_a_page_of_rows(signed_in: SignedInHarness) -> None:
    """Also a chart of a year, whose table has a row for each bar."""
    services = signed_in.services
    await services.write_calls(
        *(
            {**MIXED[0], "listing_id": f"api_{number}", "created_ms": NOW_MS - number * DAY_MS}
            for number in range(MORE_THAN_A_PAGE)
        )
    )
    await services.ledger.record_payments(
        [
            new_payment(
                number + 1,
                f"tx {number}",
                payer=READER.address,
                payee=SELLER.address,
                chain_id=RULES.chain_id,
                asset=USDC.key,
            )
            for number in range(MORE_THAN_A_PAGE)
        ],
        now_ms=services.now_ms,
    )
    await signed_in.sign_in()
    paths = ["/my", "/my/calls", "/my/credit", "/my/wallets"]
    paths += [f"/my/spending?groupBy={group}&{YEAR}" for group in ("day", "api", "provider", "wallet")]
    for path in paths:
        answer = await signed_in.browser.get(path)
        assert answer.status_code == 200, path
        tables = re.findall(r"<tbody>(.*?)</tbody>", answer.text, re.S)
        rows = [table.count("<tr") for table in tables]
        assert all(count <= LIMIT_MAX for count in rows), (path, rows)
        assert path in ("/my/wallets",) or max(rows) > 1, path
