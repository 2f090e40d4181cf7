"""The composition root: what a whole gateway says of itself, what it refuses to start on, and that settings arrive."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from sqlalchemy import select, text
from structlog.testing import capture_logs

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.fixed_limits import load_with_fixed_limits
from tests.kit.ledger_records import NOW_MS, PAYER, claim_on, new_payment
from tests.kit.listings import sample_listing
from tests.kit.ports import find_free_port
from tests.kit.threaded_server import serve_in_thread
from tests.kit.upstream import plain, run_upstream, say_nothing
from tests.kit.waits import until
from tollway.app.lifecycle import DEBUG_S, App, run
from tollway.app.runtime import now_ms
from tollway.config.settings import Settings
from tollway.errors import EndpointNotAllowed, SettingsInvalid
from tollway.ids import ListingId
from tollway.ledger.ledger import Claimed, UnfinalLimit
from tollway.ledger.sales import HOUR_MS, floor_to
from tollway.money import Price
from tollway.observability.background import TaskName
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.registry.listing import Listing
from tollway.registry.ownership import OwnershipClaim
from tollway.storage.engine.database import Database, SqliteDatabase, connect_database
from tollway.storage.engine.migrate import upgrade
from tollway.storage.ledger.sales_tables import sales_closed_table
from tollway.storage.operator.operator_reads import record_audit
from tollway.web.api.listing_json import is_never_offered
from tollway.web.http.page_response import is_page_path
from tollway.web.http.server import reserve_port

NOBODY = "http://127.0.0.1:1"


def settings(folder: Path, **more: str) -> Settings:
    """A gateway of its own, whose only chain node is away."""
    given = {"RPC_SANDBOX": NOBODY, "DATABASE_URL": f"sqlite:///{folder}/books.sqlite3", **more}
    prefixed = {
        name if name.startswith("TEST_") else f"TOLLWAY_{name}": value for name, value in given.items()
    }
    return load_with_fixed_limits(prefixed)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(
        settings(
            tmp_path,
            UNFINAL_SPEND_MAX="USDC:0.000005",
            LIMIT_IN_FLIGHT_MAX="2",
            ALLOW_PRIVATE_ENDPOINTS="yes",
        )
    ) as app:
        yield app


async def ask(app: App, method: str, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app.asgi_app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8402") as client:
        return await client.request(method, path)


async def test_lives_without_its_chain_and_says_that_it_is_not_ready(app: App) -> None:
    assert (await ask(app, "GET", "/healthz")).status_code == 200
    answer = await ask(app, "GET", "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "chain_unavailable")
    (chain,) = [name for name in answer.json()["checks"] if name.startswith("chain_")]
    others = {"background": True, "serving": True, "load": True, "storage": True}
    assert answer.json()["checks"] == {chain: False, **others}
    assert answer.headers["retry-after"]


async def test_without_its_chain_it_takes_traffic(app: App) -> None:
    answer = await ask(app, "GET", "/readyz?for=traffic")
    assert (answer.status_code, answer.json()["checks"]) == (
        200,
        {"serving": True, "load": True, "storage": True},
    )
    answer = await ask(app, "GET", "/readyz?for=luck")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_the_files_of_a_wallet_end_at_the_clock_of_the_ledger(app: App) -> None:
    """It is the time of the rows; the clock of one gateway may differ."""
    assert app._asgi.context.shared_ms == app.ledger.shared_ms


@pytest.mark.parametrize("refused", ["x402", "mpp"])
async def test_a_rail_that_the_settings_refuse_is_never_offered(tmp_path: Path, refused: str) -> None:
    async with App(settings(tmp_path, **{refused.upper(): "no"})) as app:
        context = app._asgi.context
        offered = {"x402": context.encoder.is_offered, "mpp": context.is_mpp_offered}
        assert {"x402", "mpp"} - set(context.settled_rails) == {refused}
        assert [rail for rail, is_offered in offered.items() if is_offered is is_never_offered] == [refused]


async def test_before_the_listener_closes_balancers_have_the_notice(tmp_path: Path) -> None:
    async with App(settings(tmp_path, DRAIN_NOTICE_S="30")) as app:
        stopped: list[int] = []
        app.server.stop = lambda: stopped.append(1)  # type: ignore[method-assign]  # nothing serves here
        app.stop()
        answer = await ask(app, "GET", "/readyz?for=traffic")
        assert (answer.status_code, answer.json()["checks"]["serving"], stopped) == (503, False, [])
        app.stop()  # a second signal does not wait
        assert stopped == [1]


FOR_PEOPLE = {
    *("/", "/docs", "/docs/{}", "/favicon.svg", "/problems", "/problems/{}"),
    "/ui/{}/{}",
    *("/robots.txt", "/sitemap.xml", "/.well-known/security.txt"),
}
"""Pages and their files, which are not in the contract."""
OF_CHANNELS = ("get", "/api/v2/channels/{}/{}/{}/{}")
"""In the contract, and served with `channels = true` (`test_lifecycle_channels.py`)."""


async def test_the_contract_names_every_route_and_no_other(app: App) -> None:
    plane = app.asgi_app._lifespan_app  # type: ignore[attr-defined]
    served = {
        (method.lower(), re.sub(r"\{[^}]*\}", "{}", route.path))
        for route in plane.routes
        for method in route.methods - {"HEAD"}
    }
    document = (await ask(app, "GET", "/openapi.json")).json()
    declared = {
        (method, re.sub(r"\{[^}]*\}", "{}", path))
        for path, item in document["paths"].items()
        for method in set(item) - {"parameters"}
        if not path.startswith("/api/v2/gateway/")
    }
    contract = {
        (method, path) for method, path in served if path not in FOR_PEOPLE and not is_page_path(path)
    }
    assert declared == contract | {OF_CHANNELS}
    assert "/api/v2/gateway/{apiId}/{path}" in document["paths"]


async def test_a_full_gateway_is_not_ready_and_refuses_both_planes(app: App) -> None:
    assert app.shedder.enter("somebody") is None
    assert (await ask(app, "GET", "/readyz")).json()["checks"]["load"] is False
    for path in ("/api/v2/apis", "/api/v2/gateway/api_1"):
        answer = await ask(app, "GET", path)
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
        assert answer.headers["retry-after"] == "2"
    app.shedder.leave("somebody")
    assert (await ask(app, "GET", "/api/v2/apis")).json() == {
        "apis": [],
        "total": 0,
        "page": 1,
        "limit": 20,
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v2", 404, "route_not_found"),
        ("GET", "/apis", 404, "route_not_found"),
        ("GET", "/auth/nonce", 404, "route_not_found"),
        ("GET", "/api/v2/auth/nonce", 405, "method_not_allowed"),
        ("DELETE", "/api/v2/apis", 405, "method_not_allowed"),
        ("POST", "/api/v2/history", 405, "method_not_allowed"),
        ("GET", "/api/v2/apis/api_nothing", 404, "api_not_found"),
        ("GET", "/api/v2/apis/api_nothing/ownership", 404, "api_not_found"),
        ("POST", "/api/v2/apis/api_nothing/ownership", 401, "authentication_required"),
        ("PUT", "/api/v2/apis/api_nothing/ownership", 405, "method_not_allowed"),
        ("GET", "/api/v2/gateway/api_nothing", 404, "api_not_found"),
        ("GET", "/api/v2/gateway/", 404, "route_not_found"),
        ("GET", "/api/v2/history", 401, "authentication_required"),
        ("GET", "/api/v2/history/call_1", 401, "authentication_required"),
        ("GET", "/api/v2/payments", 401, "authentication_required"),
        ("POST", "/api/v2/history/call_1/resolution", 401, "authentication_required"),
        ("POST", "/api/v2/apis", 401, "authentication_required"),
        ("PUT", "/api/v2/apis/api_1", 401, "authentication_required"),
        ("DELETE", "/api/v2/apis/api_1", 401, "authentication_required"),
        ("DELETE", "/api/v2/auth/session", 401, "authentication_required"),
        ("GET", "/problems/nothing", 404, "route_not_found"),
        ("GET", "/metrics", 404, "route_not_found"),
    ],
)
async def test_every_refusal_is_a_problem(app: App, method: str, path: str, status: int, code: str) -> None:
    answer = await ask(app, method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"http://127.0.0.1:8402/problems/{code.replace('_', '-')}"
    assert answer.json()["requestId"] == answer.headers["x-request-id"]
    if status == 401:
        assert "erc8128" in answer.headers["www-authenticate"]
        assert "accept-signature" in answer.headers
    assert (await ask(app, "GET", f"/problems/{code.replace('_', '-')}")).status_code == 200


async def test_the_maximum_of_unfinal_value_reaches_the_ledger(app: App) -> None:
    (payment,) = await app.payments.record_payments([new_payment(10, is_final=False)], now_ms=NOW_MS)
    assert isinstance(await app.ledger.claim(claim_on(payment, 5)), Claimed)
    assert await app.ledger.claim(claim_on(payment, 1)) == UnfinalLimit()


async def test_where_ownership_is_required_nothing_is_listed_or_sold_before_it_is_proved(
    tmp_path: Path,
) -> None:
    given = settings(tmp_path, REQUIRE_OWNERSHIP="yes", ALLOW_PRIVATE_ENDPOINTS="yes")
    async with run_upstream() as upstream, App(given) as app:
        listing = free_listing(upstream.url)
        await app.catalog.publish(listing)
        assert (await ask(app, "GET", "/api/v2/apis")).json()["total"] == 0
        assert (await ask(app, "GET", "/api/v2/apis?verified=false")).json()["total"] == 0
        assert (await ask(app, "GET", "/api/v2/apis/api_free")).json()["verified"] is False
        answer = await ask(app, "GET", "/api/v2/gateway/api_free")
        assert (answer.status_code, answer.json()["code"]) == (403, "ownership_unverified")

        shown = (await ask(app, "GET", "/api/v2/apis/api_free/ownership")).json()
        assert (shown["origin"], shown["state"]) == (upstream.url, "unverified")
        upstream.answer = plain(shown["challenge"]["wellKnown"]["content"].encode())
        checker, keeper = app.reputation_services.checker, app.reputation_services.ownerships
        challenge = checker.challenge(OwnershipClaim.of(listing))
        evidence = await checker.find_evidence(challenge)
        await keeper.record_check(challenge, evidence.proved, now_ms=now_ms(), failures_max=7)

        assert (await ask(app, "GET", "/api/v2/apis")).json()["total"] == 1
        assert (await ask(app, "GET", "/api/v2/apis/api_free")).json()["verified"] is True
        assert (await ask(app, "GET", "/api/v2/gateway/api_free")).status_code == 200
        owner = await keeper.find_owner(upstream.url)
        assert owner is not None
        assert (owner.listing_id, owner.provider) == ("api_free", PAYER)


async def test_the_metrics_show_which_upstreams_are_down(app: App) -> None:
    for _ in range(app.settings.limits.dial_failures_max):
        app.reputation_services.breaker.record_failed("http://127.0.0.1:1")
    assert "tollway_upstreams_down 1.0" in generate_latest(app.metrics.registry).decode()


async def test_the_metrics_show_what_runs(app: App) -> None:
    await ask(app, "GET", "/api/v2/apis")
    app.shedder.enter("somebody")
    text = generate_latest(app.metrics.registry).decode()
    app.shedder.leave("somebody")
    assert "tollway_calls_in_flight 1.0" in text
    assert 'http_route="/api/v2/apis"' in text


async def test_a_gateway_that_is_alone_leads_in_everything(app: App) -> None:
    while True:
        text = generate_latest(app.metrics.registry).decode()
        if all(f'tollway_leading{{duty="{duty}"}} 1.0' in text for duty in ("sweeper", "watcher")):
            break
        await asyncio.sleep(0.001)


async def test_the_metrics_show_what_settles(tmp_path: Path) -> None:
    """Its chain is away: so are the signed payments, and the series say why."""
    gas_key = "0x" + "11" * 32
    async with App(settings(tmp_path, GAS_KEYS_SANDBOX=gas_key, TEST_LIMIT_SWEEP_INTERVAL_S="0.001")) as app:
        labels = 'network="eip155:84532",reason="gas_unknown"'
        text = generate_latest(app.metrics.registry).decode()
    assert f"tollway_rails_withdrawn{{{labels}}} 1.0" in text
    assert "tollway_calls_adrift 0.0" in text
    assert gas_key[2:] not in text


async def test_one_gateway_serves_from_a_sqlite_file_and_the_next_one_after_it(tmp_path: Path) -> None:
    async with App(settings(tmp_path)):
        with pytest.raises(SettingsInvalid, match="another gateway is serving"):
            await App(settings(tmp_path)).__aenter__()
    async with App(settings(tmp_path)):
        pass


@pytest.mark.parametrize("taken", ["LISTEN", "ADMIN_LISTEN"])
async def test_a_gateway_whose_port_is_in_use_refuses_before_it_opens_its_database(
    tmp_path: Path, taken: str
) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as another gateway listens
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        ports = {"LISTEN": find_free_port(), "ADMIN_LISTEN": find_free_port(), taken: holder.getsockname()[1]}
        more = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        with pytest.raises(SettingsInvalid, match=f"another process uses {more[taken]}.* another port"):
            await run(settings(tmp_path, PUBLIC_URL=f"http://127.0.0.1:{ports['LISTEN']}", **more))
    assert not (tmp_path / "books.sqlite3").exists()
    for port in ports.values():
        reserve_port("127.0.0.1", port).close()


async def test_of_two_gateways_that_start_at_once_one_has_the_port(tmp_path: Path) -> None:
    port = find_free_port()
    more = {"LISTEN": f"127.0.0.1:{port}", "PUBLIC_URL": f"http://127.0.0.1:{port}", "ADMIN_LISTEN": "off"}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = (App(settings(tmp_path / name, **more)) for name in ("one", "two"))
    first.reserve_ports()
    with pytest.raises(SettingsInvalid, match=f"another process uses 127.0.0.1:{port}"):
        second.reserve_ports()
    async with first:
        with pytest.raises(ConnectionRefusedError):  # no connection waits for a gateway that is not open yet
            await asyncio.open_connection("127.0.0.1", port)
        serving = asyncio.get_running_loop().create_task(first.serve())
        await first.server.wait_up()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        first.stop()
        await serving


async def test_a_call_that_outlives_the_drain_is_written_as_unknown(tmp_path: Path) -> None:
    port = find_free_port()
    more = {"LISTEN": f"127.0.0.1:{port}", "PUBLIC_URL": f"http://127.0.0.1:{port}", "ADMIN_LISTEN": "off"}
    given = settings(tmp_path, ALLOW_PRIVATE_ENDPOINTS="yes", LIMIT_DRAIN_DEADLINE_S="0.1", **more)
    async with run_upstream() as upstream:
        upstream.answer = say_nothing
        async with App(given) as app:
            await app.catalog.publish(free_listing(upstream.url))
            serving = asyncio.get_running_loop().create_task(app.serve())
            await app.server.wait_up()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/v2/gateway/api_free/ HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: len(upstream.arrived) == 1)
            app.stop()
            await serving
        writer.close()
    database = connect_database(f"sqlite:///{tmp_path}/books.sqlite3")
    left = await database.read(lambda c: c.execute(text("SELECT state FROM call")).scalars().all())
    await database.close()
    assert left == ["unknown"]


def free_listing(url: str) -> Listing:
    return sample_listing(
        id=ListingId("api_free"),
        provider=PAYER,
        name="Quotes",
        endpoint=url,
        price=Price.parse("0"),
        timeout_s=300,
        created_ms=now_ms(),
    )


async def test_refuses_a_database_of_a_newer_version(tmp_path: Path) -> None:
    database = connect_database(f"sqlite:///{tmp_path}/books.sqlite3")
    await database.open()
    await upgrade(database)
    await migrate_beyond_us(database)
    await database.close()
    with pytest.raises(SettingsInvalid, match="newer version"):
        await App(settings(tmp_path)).__aenter__()


async def test_a_read_only_database_makes_it_not_ready_until_it_is_writable(app: App) -> None:
    assert isinstance(app.database, SqliteDatabase)
    database = app.database
    for is_read_only in (True, False):
        await database._writer.run(partial(set_query_only, database, is_read_only=is_read_only))
        await app.background[TaskName.LEASE_RENEWAL].attempt(app._renew)
        answer = await ask(app, "GET", "/readyz")
        assert answer.json()["checks"]["storage"] is not is_read_only
        assert answer.json()["code"] == ("storage_unavailable" if is_read_only else "chain_unavailable")


def set_query_only(database: SqliteDatabase, *, is_read_only: bool) -> None:
    driver = database.connect_writer().connection.driver_connection
    assert driver is not None
    driver.execute(f"PRAGMA query_only={int(is_read_only)}").close()


async def test_tables_that_outgrow_a_running_gateway_make_it_not_ready(app: App) -> None:
    await migrate_beyond_us(app.database)
    while app.schema.is_served:  # a check of the gateway that began before the change may end after this one
        await app.schema.watch()
    assert (await ask(app, "GET", "/readyz")).json()["checks"]["storage"] is False


async def migrate_beyond_us(database: Database) -> None:
    revision = text("UPDATE alembic_version SET version_num = '9999_later'")
    floor = text("UPDATE schema_floor SET revision = '9999_later'")
    await database.write(lambda connection: (connection.execute(revision), connection.execute(floor)))


class Node(BaseHTTPRequestHandler):
    """A node of Ethereum: it returns chain id 1 for every request."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()
        answers = [{"jsonrpc": "2.0", "id": one["id"], "result": "0x1"} for one in asked]
        self.wfile.write(json.dumps(answers).encode())

    def log_message(self, *args: object) -> None: ...


async def test_refuses_to_start_on_a_node_of_another_chain(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Node)
    with (
        serve_in_thread(server),
        pytest.raises(SettingsInvalid, match="networks: node 1 of eip155:84532") as refused,
    ):
        await App(
            settings(tmp_path, RPC_SANDBOX=f"http://127.0.0.1:{server.server_port}/secret")
        ).__aenter__()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("address", ["127.0.0.1:8402", "127.0.0.1:9402"], ids=("public", "admin"))
async def test_no_call_leads_back_into_the_gateway(app: App, address: str) -> None:
    endpoint = parse_endpoint(f"http://{address}", allow_private=True)
    assert isinstance(endpoint, Endpoint)
    with pytest.raises(EndpointNotAllowed):
        await app.http_client.check_endpoint(endpoint)


async def test_no_call_leads_to_the_public_name_of_the_gateway(tmp_path: Path) -> None:
    app = App(settings(tmp_path, PUBLIC_URL="http://8.8.8.8:8402"))
    own, another = (
        parse_endpoint(f"http://{address}:8402", allow_private=False) for address in ("8.8.8.8", "8.8.4.4")
    )
    assert isinstance(own, Endpoint)
    assert isinstance(another, Endpoint)
    await app.http_client.check_endpoint(another)
    with pytest.raises(EndpointNotAllowed):
        await app.http_client.check_endpoint(own)


async def test_the_nodes_that_must_agree_reach_the_reader(tmp_path: Path) -> None:
    (network,) = settings(tmp_path).networks
    with pytest.raises(ValueError, match="agreement"):
        App(settings(tmp_path).model_copy(update={"networks": (replace(network, agreement_min=2),)}))


OLD_KEY, NEW_KEY = (sign * 2 + "00112233445566778899aabbccddee" * 2 for sign in ("1a", "2b"))


async def test_while_the_secret_key_changes_every_key_opens_and_is_published_and_the_first_is_in_use(
    tmp_path: Path,
) -> None:
    seals: list[bytes] = []

    async def serve(*keys: str) -> tuple[list[str], list[str]]:
        """Which keys are published, the first of them first: of offers and receipts, of forwarded calls."""
        async with App(settings(tmp_path, SECRET_KEY=" ".join(keys))) as app:
            assert all(app.sealer.open(seal, label=b"a") == b"secret" for seal in seals)
            seals.append(app.sealer.seal(b"secret", label=b"a"))
            signers = (await ask(app, "GET", "/.well-known/did.json")).json()["verificationMethod"]
            forwarding = await ask(app, "GET", "/.well-known/http-message-signatures-directory")
            return (
                [signer["blockchainAccountId"] for signer in signers],
                [key["kid"] for key in forwarding.json()["keys"]],
            )

    old, both, swapped = await serve(OLD_KEY), await serve(OLD_KEY, NEW_KEY), await serve(NEW_KEY, OLD_KEY)
    del seals[:2]  # what the old key has sealed is sealed anew before it goes
    new = await serve(NEW_KEY)
    for kind in (0, 1):
        assert len(old[kind]) == len(new[kind]) == 1
        assert both[kind] == [*old[kind], *new[kind]]
        assert swapped[kind] == [*new[kind], *old[kind]]


async def test_makes_its_own_secret_key_for_its_owner_alone(tmp_path: Path) -> None:
    App(settings(tmp_path))
    (key,) = tmp_path.glob("*.key")
    assert key.stat().st_mode & 0o077 == 0
    assert "Secret('**********')" in repr(settings(tmp_path))


async def test_debug_ends_by_itself_after_ten_minutes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    read_time = loop.time
    try:
        with capture_logs() as logs:
            app.toggle_debug()
            monkeypatch.setattr(loop, "time", lambda: read_time() + DEBUG_S - 1)
            await asyncio.sleep(0)
            assert app.is_debug
            monkeypatch.setattr(loop, "time", lambda: read_time() + DEBUG_S + 1)
            for _ in range(3):
                await asyncio.sleep(0)
            assert not app.is_debug
    finally:
        monkeypatch.undo()
    assert [(line["now"], line["for_s"]) for line in logs if line["event"] == "log_level_changed"] == [
        ("debug", 600.0),
        ("info", None),
    ]


async def test_sigusr1_logs_at_debug_until_it_comes_again(app: App) -> None:
    with capture_logs() as logs:
        app.toggle_debug()
        assert app.is_debug
        app.toggle_debug()
        assert not app.is_debug
    assert [(line["event"], line["now"], line["for_s"]) for line in logs] == [
        ("log_level_changed", "debug", 600.0),
        ("log_level_changed", "info", None),
    ]


async def test_the_metrics_have_the_build_and_the_figures_of_the_fleet(app: App) -> None:
    await until(lambda: app.background[TaskName.FLEET_FIGURES].has_succeeded)
    await until(lambda: app.background[TaskName.LOOP_DELAY].has_succeeded)
    text = generate_latest(app.metrics.registry).decode()
    assert re.search(
        r'tollway_build_info\{dialect="sqlite",python="3[^"]+",schema="0[^"]+",version="[^"]+"\} 1.0', text
    )
    assert 'tollway_calls_open{state="unknown"} 0.0' in text
    assert "tollway_secrets_stale 0.0" in text
    assert "tollway_sales_hours_behind 0.0" in text
    assert 'tollway_webhook_events{state="dead"} 0.0' in text
    assert "tollway_event_loop_delay_seconds_count" in text
    assert "process_resident_memory_bytes" in text


async def test_the_figures_of_the_fleet_are_read_again(tmp_path: Path) -> None:
    async with App(settings(tmp_path, TEST_LIMIT_FIGURES_INTERVAL_S="0.01")) as app:
        await until(lambda: app.background[TaskName.FLEET_FIGURES].has_succeeded)
        await record_audit(app.database, differences=1, now_ms=NOW_MS)
        line = "tollway_audit_differences 1.0"
        await until(lambda: line in generate_latest(app.metrics.registry).decode())
    assert line not in generate_latest(app.metrics.registry).decode()  # this gateway leads no more


async def test_hours_of_sales_are_closed_again_and_again(tmp_path: Path) -> None:
    async with App(settings(tmp_path, TEST_LIMIT_SALES_INTERVAL_S="0.01")) as app:
        task = app.background[TaskName.SALES_WRITER]
        await until(lambda: task.has_succeeded)
        call = call_record_row(1, created_ms=now_ms() - 3 * HOUR_MS)
        await app.database.write(lambda connection: insert_calls(connection, [call]))
        for _ in range(2):  # a round that ran meanwhile may have read before
            before_s = task.succeeded_s
            await until(lambda before_s=before_s: task.succeeded_s > before_s)
        closed = await app.database.read(
            lambda connection: connection.execute(select(sales_closed_table.c.start_ms)).scalars().all()
        )
        assert min(closed) == floor_to(HOUR_MS, call["created_ms"])
