"""The admin address: who reaches the operator's pages, and under which names."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import structlog
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.kit.admin_pages import (
    ALICE,
    API,
    HOST,
    ORIGIN,
    PAGES,
    PAGES_BESIDE,
    SAME_ORIGIN,
    enter,
    list_audit_entries,
    make_code,
    open_browser,
    open_failing_browser,
    run_admin_app,
    send_form,
    sign_in,
)
from tests.kit.gateway import serve_app
from tollway.app.lifecycle import App
from tollway.errors import StorageUnavailable
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.operator.operator_writes import admin_code_table
from tollway.web.operator.operator_app import ADMIN_COOKIE, AdminApp, refuse_form


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.chdir(tmp_path)
    async with run_admin_app() as app:
        yield app


@pytest.fixture
async def browser(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with open_browser(app) as client:
        yield client


@pytest.mark.parametrize(
    "headers", [{}, {"cookie": f"{ADMIN_COOKIE.name}={'A' * 43}"}], ids=["no cookie", "unknown cookie"]
)
async def test_no_page_without_a_session(browser: httpx.AsyncClient, headers: dict[str, str]) -> None:
    paths = (*PAGES, *PAGES_BESIDE, *API, "/unknown")
    answers = {path: await browser.get(path, headers=headers) for path in paths}
    assert [path for path, answer in answers.items() if answer.status_code != 401] == []
    assert [path for path, answer in answers.items() if "tollway gateway admin link" not in answer.text] == []
    assert [path for path, answer in answers.items() if "Quotes" in answer.text] == []


@pytest.mark.parametrize("path", ["/admin/api/audit", "/admin/api/release", "/admin/api/wallets/block"])
async def test_no_change_without_a_session(app: App, browser: httpx.AsyncClient, path: str) -> None:
    answer = await browser.post(path, data={"do": "block", "address": str(ALICE)}, headers=SAME_ORIGIN)
    assert answer.status_code == 401
    assert await list_audit_entries(app) == []


async def test_a_code_counts_once_and_its_link_spends_nothing(app: App, browser: httpx.AsyncClient) -> None:
    code = await make_code(app)
    for _ in range(2):  # a program that loads links in advance
        shown = await browser.get(f"/enter?code={code}")
        assert shown.status_code == 200
        assert code in shown.text
    first, second = await enter(browser, code), await enter(browser, code)
    assert (first.status_code, second.status_code) == (303, 401)
    cookie = first.headers["set-cookie"]
    assert cookie.startswith("__Host-tollway-admin=")
    assert cookie.endswith("; Max-Age=28800; Path=/; Secure; HttpOnly; SameSite=Strict")
    assert "gateway admin link" in second.text


async def test_a_code_of_another_site_or_time_or_none_opens_nothing(
    app: App, browser: httpx.AsyncClient
) -> None:
    code = await make_code(app)
    cross = await browser.post("/enter", data={"code": code}, headers={"sec-fetch-site": "cross-site"})
    assert cross.status_code == 400
    for wrong in ("", "x", "A" * 43):
        assert (await enter(browser, wrong)).status_code == 401
    await app.database.write(
        lambda connection: connection.execute(admin_code_table.update().values(expires_ms=1))
    )
    assert (await enter(browser, code)).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (HOST, 401),
        ("localhost:9402", 401),
        ("LOCALHOST:9402", 401),
        ("[::1]:9402", 401),
        ("gw-admin.internal", 401),
        ("gw-admin.internal:8443", 401),
        ("gw-admin.internal:000000001", 403),
        ("evil.example", 403),
        ("evil.example:9402", 403),
        ("127.0.0.1.evil.example:9402", 403),
        ("127.0.0.1", 403),
        ("127.0.0.1:80", 403),
        ("gw-admin.internal.evil.example", 403),
        ("evil-gw-admin.internal", 403),
        ("", 403),
    ],
)
async def test_a_foreign_host_is_refused(browser: httpx.AsyncClient, host: str, status: int) -> None:
    for path in ("/", "/enter?code=x") if status == 403 else ("/",):
        answer = await browser.get(path, headers={"host": host})
        assert answer.status_code == status
    metrics = await browser.get("/metrics", headers={"host": host})
    assert metrics.status_code == 200
    assert "tollway_calls" in metrics.text


async def test_a_request_with_two_hosts_is_refused(browser: httpx.AsyncClient) -> None:
    for names in ((HOST, "evil.example"), ("evil.example", HOST), (HOST, HOST)):
        answer = await browser.get("/", headers=[("host", name) for name in names])
        assert answer.status_code == 403


async def test_no_response_is_sniffed(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    for path in (*PAGES, *API, "/unknown", "/admin/api/calls?state=x"):
        assert (await browser.get(path)).headers.get_list("x-content-type-options") == ["nosniff"]
    assert (await browser.get("/", headers={"host": "evil.example"})).headers[
        "x-content-type-options"
    ] == "nosniff"


async def test_the_public_listener_has_no_such_page_and_ignores_its_cookie(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    transport = httpx.ASGITransport(app.asgi_app)
    headers = {"cookie": browser.headers["cookie"], "accept": "text/html"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8402", headers=headers
    ) as public:
        for path in ("/books", "/audit-log", "/enter", "/admin/api/overview"):
            assert (await public.get(path)).status_code == 404


async def test_a_second_sign_in_ends_the_session_that_the_browser_had(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    first = browser.headers["cookie"]
    await sign_in(app, browser)
    assert browser.headers["cookie"] != first
    assert (await browser.get("/")).status_code == 200
    browser.headers["cookie"] = first
    assert (await browser.get("/")).status_code == 401


async def test_a_form_that_never_ends_is_refused_and_its_connection_ends(app: App) -> None:
    admin = app.build_admin_app()
    assert isinstance(admin, AdminApp)
    admin._form_deadline_s = 0.01
    async with serve_app(admin, limits=DEFAULT_LIMITS) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST /enter HTTP/1.1\r\nHost: {HOST}\r\nSec-Fetch-Site: same-origin\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4000\r\n\r\nc"
        )
        writer.write(head.encode())
        answer = await reader.read()  # to the end of the connection
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"too slowly" in answer


async def test_signing_out_ends_the_session_at_every_gateway(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    assert (await send_form(browser, "/", "/signout")).status_code == 303
    assert (await browser.get("/")).status_code == 401


async def test_scrapers_that_read_exemplars_get_the_trace_of_a_bucket(
    app: App, browser: httpx.AsyncClient
) -> None:
    observed = app.metrics.call_seconds.find("tx", "claim")
    observed.observe(0.02)
    observed.set_exemplar(0.02, trace_id="ab" * 16, at_s=1_800_000_000.0)
    answer = await browser.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    found = [
        (sample.labels["le"], sample.exemplar.labels, sample.exemplar.value)
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert found == [("0.025", {"trace_id": "ab" * 16}, 0.02)]
    plain = await browser.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert "ab" * 16 not in plain.text


# ---- Problems.


async def test_a_problem_has_its_title_code_and_request_id(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    answer = await browser.get("/unknown", headers={"x-request-id": "req_of_the_test"})
    assert answer.status_code == 404
    assert "<h1>Route not found</h1>" in answer.text
    assert "req_of_the_test" in answer.text
    assert '/problems/route-not-found"' in answer.text
    assert "Nothing was changed" not in answer.text


async def ask_failing_page(error: Exception, method: str = "GET", path: str = "/enter?a=b") -> httpx.Response:
    headers = {"x-request-id": "req_of_the_test", "cookie": f"{ADMIN_COOKIE.name}={'A' * 43}"}
    async with open_failing_browser(error) as client:
        return await client.request(method, path, headers=headers)


async def test_storage_that_is_away_is_a_page_that_says_when_to_try_again() -> None:
    answer = await ask_failing_page(StorageUnavailable("gone"))
    assert answer.status_code == 503
    assert answer.headers["retry-after"].isdigit()
    assert 'href="/enter?a=b">Try again</a>' in answer.text
    assert 'href="https://gw.example.com/problems/storage-unavailable"' in answer.text


async def test_try_again_leads_to_no_other_host() -> None:
    """A link with two slashes has a host, and storage fails before a route is found."""
    answer = await ask_failing_page(StorageUnavailable("gone"), path=f"{ORIGIN}//evil.example/a")
    assert answer.status_code == 503
    assert "evil.example" not in answer.text
    assert "Try again" not in answer.text


@pytest.mark.parametrize(
    ("error", "method", "is_unchanged", "is_unknown"),
    [
        (refuse_form("No address."), "POST", True, False),
        (StorageUnavailable("the commit has no result"), "POST", False, True),
        (ZeroDivisionError(), "POST", False, True),
        (StorageUnavailable("gone"), "GET", False, False),
        (refuse_form("No address."), "GET", False, False),
    ],
)
async def test_a_failed_change_is_no_promise_that_nothing_was_changed(
    error: Exception, method: str, is_unchanged: bool, is_unknown: bool
) -> None:
    """The database may have written a change whose commit had no result."""
    answer = await ask_failing_page(error, method, "/admin/api/admissions")
    assert ("Nothing was changed." in answer.text) is is_unchanged
    assert ("The change may have been made." in answer.text) is is_unknown


async def test_a_defect_is_a_page_with_the_request_id_of_the_log() -> None:
    with structlog.testing.capture_logs() as logs:
        answer = await ask_failing_page(ZeroDivisionError("a secret of the traceback"))
    assert answer.status_code == 500
    assert "req_of_the_test" in answer.text
    assert "secret" not in answer.text
    assert "internal_error" in answer.text
    assert [one["path"] for one in logs if one["event"] == "unhandled_error"] == ["/enter"]
