"""An operator with a keyboard alone, over the pages of a whole gateway in this process: admits a transaction, and releases the balances that a restore holds."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.kit.admin_pages import TX, list_audit_entries, open_browser, run_admin_app, sign_in
from tests.kit.ledger_records import new_payment, operator_origin
from tests.system.browser.corner_site import open_admin
from tests.system.browser.watched_page import WatchedPage
from tollway.app.runtime import now_ms

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACTOR = "alice@gw-1 (page)"


async def write(watched: WatchedPage, field: str, text: str) -> None:
    await watched.tab_to(f"#{field}")
    await watched.page.keyboard.type(text)


async def test_the_keyboard_alone_admits_a_transaction_and_releases_held_balances(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with run_admin_app() as app, open_browser(app) as client:
        await app.payments.record_payments([new_payment(10)], now_ms=now_ms())
        await app.operator_ledger.mark_restored(origin=operator_origin(now_ms()))
        await sign_in(app, client)
        async with open_admin(browser, client) as watched:
            page = watched.page
            await watched.goto("/")
            tile = page.locator(".totals > div", has_text="Held payments")
            await expect(tile).to_contain_text("▲ above normal")

            await watched.push('nav a[href="/books"]')
            await page.wait_for_url("**/books")
            await write(watched, "transaction", str(TX))
            await write(watched, "admit-reason", "asked by the payer")
            await watched.push('[action="/admin/api/admissions"] button')
            await expect(page.get_by_text("admit_transaction")).to_be_visible()

            await watched.push('nav a[href="/books"]')
            await page.wait_for_url("**/books")
            await write(watched, "gateway", "another.example")
            await watched.push('[action="/admin/api/release"] button')
            await expect(page.locator("main")).to_contain_text("Nothing was changed.")
            await watched.push('nav a[href="/books"]')
            await page.wait_for_url("**/books")
            await write(watched, "gateway", app.settings.public_url.partition("://")[2])
            await write(watched, "release-reason", "the ledger balances")
            await watched.push('[action="/admin/api/release"] button')
            await expect(page.locator('[data-live="heldPayments"]')).to_have_text("0")
            await expect(page.locator('[action="/admin/api/release"]')).to_have_count(0)
            await watched.check()

            await watched.push('nav a[href="/"]')
            await expect(tile.locator(".outside")).to_be_hidden()
            await watched.check()
        entries = await list_audit_entries(app)
        assert entries[:2] == [
            ("release_balances", "ledger", ACTOR, "the ledger balances"),
            ("admit_transaction", str(TX), ACTOR, "asked by the payer"),
        ]
