"""The commands of providers against the routes of listings, served over loopback."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router
from typer.testing import CliRunner, Result

from tests.kit.gateway import serve_app
from tests.kit.ledger_records import operator_origin
from tests.kit.listing_routes import BODY, ListingRoutesHarness, open_listing_routes
from tests.kit.metering import TOKENS, sample_metering
from tests.kit.routes import ALICE, authenticate_as
from tollway.cli import own_listings
from tollway.cli.inputs import read_wallet
from tollway.cli.main import make_app
from tollway.cli.own_listings import OwnListings
from tollway.cli.provider import REPLACED_MEMBERS, describe_trial
from tollway.cli.published import DRY_RUN_LINES_MAX, describe_dry_run, list_next_steps
from tollway.client import create_key_file
from tollway.identity.authenticator import Identity
from tollway.identity.http_signatures import encode_base64url
from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.registry.draft import ListingBody
from tollway.registry.listing_patch import KEPT_MEMBERS
from tollway.registry.moderation import restore_listing, suspend_listing
from tollway.registry.quality import Quality, Reputation

OPERATIONS = [
    {"method": "GET", "path": "/a", "pricePerRequest": "0.5"},
    {"method": "POST", "path": "/b", "pricePerRequest": "0.7"},
]
FULL: dict[str, Any] = {
    "description": "of today",
    "payTo": "0x" + "bb" * 20,
    "tags": ["weather", "sun"],
    "operations": OPERATIONS,
    "otherPaths": "refuse",
    "chargeOn": "answered",
    "timeoutSeconds": 9,
    "forwardHeaders": ["X-Trace"],
    "upstreamAuth": {"in": "header", "name": "X-Key", "value": "s3cret"},
    "openapi": {"openapi": "3.1.0", "paths": {"/a": {"get": {}}}},
    "signature": "bound",
    "rateLimit": {"calls": 3, "perSeconds": 60},
    "status": "paused",
    "forwardSignature": "none",
}
"""Every member with another value than its default."""
TRIAL = {
    "status": 200,
    "headers": {"content-type": "text/plain"},
    "body": "hello",
    "isCut": False,
    "latencyMs": 12,
    "callId": "call_1",
    "wouldCharge": True,
    "price": "0.01",
    "currency": "USDC",
}


@dataclass
class Setup:
    """The routes behind a real server, and a function that runs a command against them."""

    harness: ListingRoutesHarness
    url: str
    key_file: Path
    posted: list[tuple[str, Any]] = field(default_factory=list)
    trial: dict[str, Any] = field(default_factory=lambda: dict(TRIAL))
    sales: list[dict[str, Any]] = field(default_factory=list)
    wallet: Address = ALICE

    @property
    def environment(self) -> dict[str, str]:
        return {"TOLLWAY_GATEWAY": self.url, "TOLLWAY_KEY_FILE": str(self.key_file)}

    async def run(self, *words: str, **env: str) -> Result:
        environment = {**self.environment, **env}
        return await asyncio.to_thread(CliRunner().invoke, make_app(), list(words), env=environment)

    async def run_on_terminal(self, *words: str, typed: str = "") -> tuple[int, str]:
        """The exit code and what the terminal shows, of a process whose streams are a terminal. `typed`: the answer to a question."""
        return await asyncio.to_thread(self._run_on_terminal, words, typed)

    def _run_on_terminal(self, words: tuple[str, ...], typed: str) -> tuple[int, str]:
        main, terminal = pty.openpty()
        env = {**os.environ, **self.environment, "COLUMNS": "200", "NO_COLOR": "1"}
        command = [sys.executable, "-c", "from tollway.cli import main; main()", *words]
        with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=env) as process:
            os.close(terminal)
            os.write(main, typed.encode())
            shown = b""
            try:
                while chunk := os.read(main, 65_536):
                    shown += chunk
            except OSError:  # the other end is closed
                pass
        os.close(main)
        return process.returncode, shown.decode().replace("\r\n", "\n")


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    create_key_file(tmp_path / "key")
    structlog.configure(processors=[drop_event])
    async with open_setup(tmp_path / "key") as setup:
        yield setup


def drop_event(logger: Any, name: str, event: Any) -> Any:
    """The routes run in this process, whose output is that of the command."""
    raise structlog.DropEvent


@asynccontextmanager
async def open_setup(key_file: Path) -> AsyncIterator[Setup]:
    async def authenticate(request: Request) -> Identity:
        await request.body()
        assert {"signature-input", "x-test-wallet"} & set(request.headers)
        return await authenticate_as(setup.wallet)(request)

    async def keep(request: Request) -> JSONResponse:
        setup.posted.append((request.url.path, json.loads(await request.body())))
        return JSONResponse(setup.trial)

    async def sum_sales(request: Request) -> JSONResponse:
        await authenticate(request)
        return JSONResponse({"sales": setup.sales, "totals": [], "isLowerBound": False})

    others = Router(
        [
            Route("/api/v2/sales", sum_sales, methods=["GET"]),
            Route("/api/v2/apis/{apiId}/trial", keep, methods=["POST"]),
            Route("/api/v2/history/{callId}/resolution", keep, methods=["POST"]),
        ]
    )
    async with (
        open_listing_routes(lambda _: others, authenticate=authenticate) as harness,
        serve_app(harness.app, limits=Limits()) as port,
    ):
        setup = Setup(harness, f"http://127.0.0.1:{port}", key_file)
        yield setup


# ---- Publish.


async def test_publish_takes_every_member_as_an_option(setup: Setup, tmp_path: Path) -> None:
    secret, document = tmp_path / "secret", tmp_path / "openapi.json"
    secret.write_text("s3cret\n")
    document.write_text(json.dumps(FULL["openapi"]))
    words = [
        *(
            "--name",
            "Weather",
            "--price",
            "0.01",
            "--currency",
            "USDC",
            "--endpoint",
            "https://api.example.com",
        ),
        *("--description", "of today", "--pay-to", FULL["payTo"], "--network", "eip155:8453"),
        *("--method", "GET", "--method", "POST", "--tag", "weather", "--tag", "sun"),
        *("--operation", "GET /a=0.5", "--operation", "post /b = 0.7", "--other-paths", "refuse"),
        *("--openapi", str(document), "--secret-file", str(secret), "--secret-header", "X-Key"),
        *("--timeout", "9", "--charge-on", "answered", "--rate", "3/60", "--forward-header", "X-Trace"),
        *("--signature", "bound", "--forward-signature", "none"),
    ]
    done = await setup.run("listing", "publish", *words)
    assert done.exit_code == 0, done.output
    listing = await setup.harness.stored(json.loads(done.stdout)["id"])
    assert (listing.name, listing.price.text, listing.timeout_s) == ("Weather", "0.01", 9)
    assert [(one.method, one.path, one.price.text) for one in listing.operations] == [
        ("GET", "/a", "0.5"),
        ("POST", "/b", "0.7"),
    ]
    assert listing.upstream_auth is not None
    assert (listing.upstream_auth.name, listing.upstream_auth.value) == ("X-Key", "s3cret")
    assert (listing.openapi, listing.methods, listing.tags) == (
        FULL["openapi"],
        ("GET", "POST"),
        ("weather", "sun"),
    )
    assert listing.rate_limit is not None
    assert (listing.rate_limit.calls, listing.rate_limit.per_s) == (3, 60)
    assert (listing.signature, listing.forward_signature, listing.other_paths) == ("bound", "none", "refuse")
    assert "s3cret" not in done.output


async def test_publish_takes_options_over_a_file_and_a_document_by_url(setup: Setup, tmp_path: Path) -> None:
    file, url = tmp_path / "listing.toml", "https://docs.example.com/o.json"
    file.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in BODY.items()))
    setup.harness.documents[url] = json.dumps(FULL["openapi"]).encode()
    done = await setup.run("listing", "publish", "-f", str(file), "--price", "0.5", "--openapi", url)
    shown = json.loads(done.stdout)
    assert (shown["name"], shown["pricePerRequest"], shown["openapiUrl"]) == ("Weather", "0.5", url)
    assert shown["openapi"] == FULL["openapi"]


async def test_a_dry_run_creates_nothing(setup: Setup) -> None:
    words = [
        "--name",
        "Weather",
        "--price",
        "0.01",
        "--currency",
        "USDC",
        "--endpoint",
        "https://api.example.com",
    ]
    done = await setup.run("listing", "publish", *words, "--dry-run")
    assert json.loads(done.stdout)["dryRun"] is True
    assert (await setup.harness.send("GET", "/api/v2/apis")).json()["total"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to publish"),
        (["--operation", "GET /a"], 'write an operation as "GET /cities/{city}=0.05"'),
        (["--rate", "fast"], "write a rate as CALLS/SECONDS"),
        (["--secret-file", "none"], "none cannot be read"),
        (["--openapi", "none.json"], "none.json cannot be read"),
        (["--metering", "none.json"], "none.json cannot be read"),
        (["--secret-header", "a", "--secret-query", "b"], "not both"),
        (["--file", "none.json"], "none.json cannot be read"),
    ],
)
async def test_refuses_options_that_cannot_be_read(setup: Setup, words: list[str], said: str) -> None:
    done = await setup.run("listing", "publish", *words)
    assert done.exit_code == 2
    assert said in json.loads(done.stderr)["error"]["detail"]


def test_a_dry_run_is_ten_lines_at_most_without_the_text_of_a_provider_among_ours() -> None:
    entry = {"method": "GET", "path": "/q/{s}", "price": "0.01 USDC", "leftOut": []}
    schema = {"properties": {"s": {"type": "string"}}, "required": ["s"]}
    preview = {
        **BODY,
        "name": "Rain\n  GET /free\x1b[2J" + "n" * 200,
        "payTo": "0x1",
        "networks": ["eip155:1"],
        "status": "active",
        "dryRun": True,
        "agent": {"operations": [{**entry, "inputSchema": schema}, *[entry] * 8], "operationsLeftOut": 3},
    }
    lines = describe_dry_run(preview)
    assert len(lines) == DRY_RUN_LINES_MAX
    assert lines[1].startswith("Rain GET /free\ufffd[2Jn")
    assert lines[1].endswith("…, 0.010 USDC a call, active")
    assert lines[2:6] == [
        "paid to 0x1 on eip155:1",
        "calls go to https://api.example.com/v1/",
        "  GET /q/{s}  0.01 USDC  s* string",
        "  GET /q/{s}  0.01 USDC",
    ]
    assert lines[8:] == [
        "  and 8 more operations",
        "--json prints all members, and the document that agents read",
    ]
    assert describe_dry_run({"agent": "no", "networks": 3})[-1] == lines[-1]


@pytest.mark.parametrize(
    ("members", "command"),
    [
        ({}, "tollway listing test api_1"),
        ({"operations": OPERATIONS}, "tollway listing test api_1 /a"),
        ({"operations": OPERATIONS[1:]}, "tollway listing test api_1 /b -X POST"),
        ({"operations": [{"method": "GET", "path": "/a;reboot/{b}"}]}, "tollway listing test api_1 '/a;reboot/{b}'"),
        ({"operations": ["no"]}, "tollway listing test api_1"),
    ],
)  # fmt: skip
def test_the_next_step_tests_an_operation(members: dict[str, Any], command: str) -> None:
    lines = list(list_next_steps({"id": "api_1", **members}, gateway="https://g.example"))
    assert lines == [
        "Next:",
        "  its page      https://g.example/apis/api_1",
        "  prove it      tollway listing verify api_1 --show",
        f"  test a call   {command}",
    ]


@pytest.mark.process
async def test_a_terminal_shows_the_next_steps_of_a_new_listing(setup: Setup) -> None:
    words = ["--name", "W", "--price", "0.01", "--currency", "USDC", "--endpoint", BODY["endpoint"]]
    setup.harness.open_hosts.add("api.example.com")
    exit_code, shown = await setup.run_on_terminal("listing", "publish", *words)
    assert exit_code == 0
    assert f"its page      {setup.url}/apis/api_" in shown
    assert "Your API answers everybody" in shown
    _, shown = await setup.run_on_terminal("listing", "publish", *words, "--dry-run")
    assert shown.startswith("Nothing was created. The listing would be:\nW, 0.01 USDC a call, active\n")


# ---- List.


async def test_the_list_has_price_state_and_calls_and_the_suspended_ones(setup: Setup) -> None:
    await setup.harness.publish(name="Of another wallet")
    setup.wallet = read_wallet(setup.key_file).address
    paused = await setup.harness.publish(status="paused", name="=Paused")
    unused, suspended = [
        await setup.harness.publish(name=name) for name in ("Suspended before its first call", "Suspended")
    ]
    origin = operator_origin(1, reason="under review")
    for one in (unused, suspended):
        await suspend_listing(setup.harness.stores.catalog, ListingId(one["id"]), origin=origin)
    setup.sales = [
        {"apiId": one["id"], "apiName": one["name"], "calls": calls}
        for one, calls in (
            (paused, 2),
            ({"id": "api_retired", "name": "Retired"}, 9),
            (suspended, 4),
            (paused, 5),
        )
    ]
    shown = json.loads((await setup.run("listing", "list")).stdout)
    assert [tuple(row.values())[1:] for row in shown["listings"]] == [
        ("=Paused", "0.010", "USDC", "paused", 7),
        ("Suspended", "0.010", "USDC", "suspended", 4),
        ("Suspended before its first call", "0.010", "USDC", "suspended", 0),
    ]
    assert (shown["total"], shown["isLowerBound"]) == (3, False)
    lines = (await setup.run("listing", "list", "--csv")).stdout.splitlines()
    assert lines[0] == "id,name,pricePerRequest,currency,state,calls30d"
    assert lines[1] == f"{paused['id']},'=Paused,0.010,USDC,paused,7"
    assert (await setup.run("listing", "list", "--csv", "--json")).exit_code == 2


async def test_the_list_has_every_page(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_listings, "PAGE_LISTINGS_MAX", 1)
    setup.wallet = read_wallet(setup.key_file).address
    oldest, _ = [await setup.harness.publish(name=name) for name in ("A", "B")]
    sold = Reputation(quality=Quality(calls=100, success_ppm=1_000_000, p50_ms=1, p95_ms=1), verified_ms=1)
    await setup.harness.stores.set_reputation(oldest["id"], sold)  # other lists begin with it
    shown = json.loads((await setup.run("listing", "list")).stdout)
    assert [row["name"] for row in shown["listings"]] == ["B", "A"]


def test_a_terminal_shows_each_listing_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": "api_1", "name": "Rain\nfree\x1b[2J", "pricePerRequest": "0.01", "currency": "USDC"}
    listings = [{**row, "state": "active", "calls30d": 3}]
    own_listings.print_own_listings(OwnListings(listings=listings, total=2_000, is_lower_bound=True))
    _, line, *foot = capsys.readouterr().out.splitlines()
    assert line == "api_1   active 0.01 USDC 3            Rain free\ufffd[2J"
    assert (
        " ".join(" ".join(foot).split())
        == "the newest 1 of 2000 in all; calls are at least these; tollway show ID explains one"
    )
    own_listings.print_own_listings(OwnListings(listings=[], total=0, is_lower_bound=False))
    assert capsys.readouterr().out.startswith("No listings. Publish one:")


# ---- Edit.


async def test_an_edit_changes_what_it_names_and_nothing_else(setup: Setup) -> None:
    """An update with a price alone needs name, currency and endpoint, and sets operations, description, tags and timeout to their
    defaults."""
    created = await setup.harness.publish(**FULL)
    before = await setup.harness.stored(created["id"])
    done = await setup.run("listing", "edit", created["id"], "--price", "0.02")
    assert done.exit_code == 0, done.output
    after = await setup.harness.stored(created["id"])
    assert after == replace(before, price=after.price, revision=2, updated_ms=after.updated_ms)
    assert after.price.text == "0.02"
    assert json.loads(done.stdout)["changes"] == {"pricePerRequest": {"before": "0.010", "after": "0.02"}}


async def test_an_update_that_names_a_price_alone_wipes_the_rest(setup: Setup) -> None:
    """What `edit` prevents: PUT sets every absent member to its default. It warns about operations."""
    created = await setup.harness.publish(**FULL)
    body = {**BODY, "pricePerRequest": "0.02"}
    answer = await setup.harness.send("PUT", f"/api/v2/apis/{created['id']}", body)
    assert (answer.json()["operations"], answer.json()["tags"]) == ([], [])
    assert [one["code"] for one in answer.json()["warnings"]] == ["operations_dropped"]


@pytest.mark.parametrize(
    ("words", "member", "value"),
    [
        (
            ["--operation", "GET /c=2"],
            "operations",
            [{"method": "GET", "path": "/c", "pricePerRequest": "2"}],
        ),
        (["--clear", "rateLimit"], "rateLimit", None),
        (["--clear", "tags"], "tags", []),
        (["--timeout", "20"], "timeoutSeconds", 20),
        (["--rate", "5/10"], "rateLimit", {"calls": 5, "perSeconds": 10}),
        (["--description", ""], "description", ""),
    ],
)
async def test_an_edit_replaces_or_clears_a_member(
    setup: Setup, words: list[str], member: str, value: object
) -> None:
    created = await setup.harness.publish(**FULL)
    done = await setup.run("listing", "edit", created["id"], *words)
    shown = json.loads(done.stdout)
    assert (list(shown["changes"]), shown[member]) == ([member], value)


async def test_an_edit_replaces_the_secret_and_prints_none(setup: Setup, tmp_path: Path) -> None:
    created = await setup.harness.publish(**FULL)
    (tmp_path / "secret").write_text("n3w")
    done = await setup.run("listing", "edit", created["id"], "--secret-file", str(tmp_path / "secret"))
    auth = (await setup.harness.stored(created["id"])).upstream_auth
    assert auth is not None
    assert (auth.name, auth.value) == ("X-Key", "n3w")
    assert "n3w" not in done.output
    assert list(json.loads(done.stdout)["changes"]) == ["upstreamAuth"]


async def test_a_formula_comes_from_a_file_and_an_edit_prints_its_parts(setup: Setup, tmp_path: Path) -> None:
    created = await setup.harness.publish(**FULL)
    (tmp_path / "formula.json").write_text(json.dumps(TOKENS))
    words = [
        "listing",
        "edit",
        created["id"],
        "--price",
        "0.02",
        "--metering",
        str(tmp_path / "formula.json"),
    ]
    done = await setup.run(*words)
    assert json.loads(done.stdout)["metering"] == TOKENS, done.output
    assert (await setup.harness.stored(created["id"])).metering == sample_metering()
    done = await setup.run("listing", "edit", created["id"], "--clear", "metering")
    assert json.loads(done.stdout)["changes"]["metering"] == {"before": TOKENS, "after": None}
    (tmp_path / "formula.json").write_text("[]")
    done = await setup.run(*words)
    assert done.exit_code == 2
    assert "must contain one object: the formula of a metered price" in done.stderr


async def test_an_edit_replaces_the_document_from_a_file(setup: Setup, tmp_path: Path) -> None:
    created = await setup.harness.publish(**FULL)
    before = await setup.harness.stored(created["id"])
    document = {"openapi": "3.1.0", "paths": {"/b": {"post": {"summary": None}}}}
    (tmp_path / "o.json").write_text(json.dumps(document))
    done = await setup.run("listing", "edit", created["id"], "--openapi", str(tmp_path / "o.json"))
    after = await setup.harness.stored(created["id"])
    assert after == replace(before, openapi=document, revision=2, updated_ms=after.updated_ms), done.output
    both = ["--openapi", str(tmp_path / "o.json"), "--price", "1"]
    assert (await setup.run("listing", "edit", created["id"], *both)).exit_code == 2


def test_the_members_that_put_resets_are_those_of_the_body() -> None:
    assert set(ListingBody.member_names()) - set(KEPT_MEMBERS) == REPLACED_MEMBERS


async def test_a_dry_run_or_no_change_sends_nothing(setup: Setup) -> None:
    created = await setup.harness.publish()
    dry = await setup.run("listing", "edit", created["id"], "--price", "0.02", "--dry-run")
    assert json.loads(dry.stdout)["changes"]["pricePerRequest"]["after"] == "0.02"
    same = await setup.run("listing", "edit", created["id"], "--price", "0.010")
    assert json.loads(same.stdout)["changes"] == {}
    assert (await setup.run("listing", "edit", created["id"])).exit_code == 2
    assert (await setup.harness.stored(created["id"])).revision == 1


async def test_an_edit_that_another_overtakes_says_what_has_changed(setup: Setup) -> None:
    created = await setup.harness.publish()
    listing = await setup.harness.stored(created["id"])

    async def overtake() -> None:
        await setup.harness.stores.catalog.revise(replace(listing, tags=("new",)), expected_revision=1)

    setup.harness.stores.database.before_write = overtake
    done = await setup.run("listing", "edit", created["id"], "--price", "0.02")
    assert done.exit_code == 1
    error = json.loads(done.stderr)["error"]
    assert (error["code"], "+ new" in error["detail"]) == ("precondition_failed", True)
    after = await setup.harness.stored(created["id"])
    assert (after.price, after.tags) == (listing.price, ("new",))


async def test_a_refused_edit_names_each_member(setup: Setup) -> None:
    created = await setup.harness.publish()
    done = await setup.run("listing", "edit", created["id"], "--price", "x", "--timeout", "0")
    assert done.exit_code == 1
    errors = json.loads(done.stderr)["error"]["problem"]["errors"]
    assert [one["pointer"] for one in errors] == ["/pricePerRequest", "/timeoutSeconds"]


@pytest.mark.process
@pytest.mark.parametrize(("typed", "price", "code"), [("y\n", "0.02", 0), ("n\n", "0.010", 1)])
async def test_a_terminal_shows_the_difference_and_asks(
    setup: Setup, typed: str, price: str, code: int
) -> None:
    created = await setup.harness.publish(operations=OPERATIONS)
    words = ["--price", "0.02", "--operation", "GET /a=0.6"]
    exit_code, shown = await setup.run_on_terminal("listing", "edit", created["id"], *words, typed=typed)
    assert exit_code == code, shown
    for line in (
        "0.010 → 0.02",
        "  - GET /a 0.5",
        "  + GET /a 0.6",
        "  - POST /b 0.7",
        "Change the listing?",
    ):
        assert line in shown
    assert shown.count("warning: operations:") == 1  # once, before the question
    assert shown.index("warning: operations: The edit drops") < shown.index("Change the listing?")
    assert (await setup.harness.stored(created["id"])).price.text == price


@pytest.mark.process
async def test_a_terminal_reads_before_the_question_which_operations_keep_their_price(setup: Setup) -> None:
    created = await setup.harness.publish(operations=OPERATIONS)
    _, shown = await setup.run_on_terminal("listing", "edit", created["id"], "--price", "0.02", typed="n\n")
    words = " ".join(shown.split())
    said = "which they keep: GET /a 0.5 USDC, POST /b 0.7 USDC."
    assert words.index(said) < words.index("Change the listing?")
    assert words.endswith("Nothing was changed.")


@pytest.mark.process
async def test_a_terminal_shows_the_new_secret_of_forwarded_calls_once(setup: Setup) -> None:
    created = await setup.harness.publish()
    words = ("--forward-signature", "hmac-sha256", "--yes")
    _, shown = await setup.run_on_terminal("listing", "edit", created["id"], *words)
    listing = await setup.harness.stored(created["id"])
    assert listing.forward_secret is not None
    secret = encode_base64url(listing.forward_secret)
    assert secret in shown
    assert "Shown once." in shown
    _, later = await setup.run_on_terminal("listing", "edit", created["id"], "--price", "0.02", *words)
    assert secret not in later


@pytest.mark.process
async def test_with_yes_a_terminal_does_not_ask(setup: Setup) -> None:
    created = await setup.harness.publish()
    exit_code, shown = await setup.run_on_terminal(
        "listing", "edit", created["id"], "--price", "0.02", "--yes"
    )
    assert (exit_code, "?" in shown) == (0, False)


# ---- Pause, resume, retire.


async def test_pause_and_resume_change_the_status_alone(setup: Setup) -> None:
    created = await setup.harness.publish(tags=["a"])
    for command, status in (("pause", "paused"), ("pause", "paused"), ("resume", "active")):
        done = await setup.run("listing", command, created["id"])
        assert (done.exit_code, json.loads(done.stdout)["status"]) == (0, status)
        listing = await setup.harness.stored(created["id"])
        assert (listing.status, listing.tags) == (status, ("a",))
    assert listing.revision == 3


@pytest.mark.process
async def test_resume_of_a_suspended_listing_names_the_suspension(setup: Setup) -> None:
    created = await setup.harness.publish()
    origin = operator_origin(1, reason="under review")
    await suspend_listing(setup.harness.stores.catalog, ListingId(created["id"]), origin=origin)
    _, shown = await setup.run_on_terminal("listing", "resume", created["id"])
    assert " ".join(shown.split()).endswith(
        'is suspended by the operator, and its calls stay refused. The reason: "under review". '
        "Ask the operator; its own status is active."
    )
    done = json.loads((await setup.run("listing", "resume", created["id"])).stdout)
    assert done["suspension"]["reason"] == "under review"
    await restore_listing(setup.harness.stores.catalog, ListingId(created["id"]), origin=operator_origin(2))
    _, shown = await setup.run_on_terminal("listing", "resume", created["id"])
    assert " ".join(shown.split()).endswith("is active.")


@pytest.mark.process
async def test_an_edit_of_a_suspended_listing_does_not_ask_to_wait(setup: Setup) -> None:
    created = await setup.harness.publish()
    origin = operator_origin(1, reason="under review")
    await suspend_listing(setup.harness.stores.catalog, ListingId(created["id"]), origin=origin)
    exit_code, shown = await setup.run_on_terminal("listing", "edit", created["id"], "--name", "x")
    assert exit_code == 1
    assert " ".join(shown.split()) == (
        'The operator has suspended this API. The reason of the operator: "under review".'
    )


async def test_retire_ends_a_listing(setup: Setup) -> None:
    created = await setup.harness.publish()
    done = await setup.run("listing", "retire", created["id"])
    assert json.loads(done.stdout) == {"id": created["id"], "state": "retired"}
    again = await setup.run("listing", "retire", created["id"])
    assert (again.exit_code, json.loads(again.stderr)["error"]["code"]) == (1, "api_retired")


@pytest.mark.process
async def test_retire_asks_on_a_terminal(setup: Setup) -> None:
    created = await setup.harness.publish()
    exit_code, shown = await setup.run_on_terminal("listing", "retire", created["id"], typed="n\n")
    assert (exit_code, "Retire the listing?" in shown) == (1, True)
    assert (await setup.harness.stored(created["id"])).retired_ms is None


# ---- Test.


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ([], {"method": "GET", "path": "", "headers": {}}),
        (["quote?x=1"], {"method": "GET", "path": "/quote?x=1", "headers": {}}),
        (
            ["/quote", "-d", "{}", "-H", "Content-Type: application/json"],
            {
                "method": "POST",
                "path": "/quote",
                "headers": {"Content-Type": "application/json"},
                "body": "{}",
            },
        ),
        (["/quote", "-X", "DELETE"], {"method": "DELETE", "path": "/quote", "headers": {}}),
    ],
)
async def test_a_trial_call_sends_what_the_options_name(
    setup: Setup, words: list[str], sent: dict[str, Any]
) -> None:
    done = await setup.run("listing", "test", "api_1", *words)
    assert (done.exit_code, json.loads(done.stdout)) == (0, TRIAL)
    assert setup.posted == [("/api/v2/apis/api_1/trial", sent)]


async def test_a_trial_that_the_upstream_refuses_has_an_exit_code(setup: Setup) -> None:
    setup.trial["status"] = 500
    assert (await setup.run("listing", "test", "api_1")).exit_code == 1


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, ["The upstream answered 200 in 12 ms; a caller would pay 0.01 USDC.", "text/plain:", "hello"]),
        (
            {"status": 500, "wouldCharge": False, "body": ""},
            ["The upstream answered 500 in 12 ms; a caller would pay nothing."],
        ),
        (
            {"body": None, "bodyBase64": "AAA=", "isCut": True},
            [
                "The upstream answered 200 in 12 ms; a caller would pay 0.01 USDC.",
                "The body is no text; --json prints it in base64.",
                "The body is longer; the gateway returns its first 64 KiB.",
            ],
        ),
        (
            {"body": "", "warnings": [{"detail": "No caller gets \x1b[31mx."}, "no object", {}]},
            [
                "The upstream answered 200 in 12 ms; a caller would pay 0.01 USDC.",
                "warning: No caller gets \ufffd[31mx.",
                "warning:",
            ],
        ),
    ],
)
def test_a_trial_on_a_terminal(changes: dict[str, Any], lines: list[str]) -> None:
    assert list(describe_trial({**TRIAL, **changes})) == lines


# ---- Held calls.


@pytest.mark.parametrize(("option", "outcome"), [("--charge", "consumed"), ("--release", "released")])
async def test_a_provider_decides_a_held_call(setup: Setup, option: str, outcome: str) -> None:
    done = await setup.run("history", "resolve", "call_1", option)
    assert done.exit_code == 0, done.output
    assert setup.posted == [("/api/v2/history/call_1/resolution", {"outcome": outcome})]


@pytest.mark.parametrize("words", [[], ["--charge", "--release"]])
async def test_a_decision_is_one_of_two(setup: Setup, words: list[str]) -> None:
    assert (await setup.run("history", "resolve", "call_1", *words)).exit_code == 2
    assert setup.posted == []
