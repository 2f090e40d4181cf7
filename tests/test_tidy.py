"""The house style, as far as a machine can see it. The tables below are ratchets: they may only get shorter."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tollway"
TESTS = ROOT / "tests"

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700
BANNED_NAMES = frozenset(
    {"utils", "util", "helpers", "helper", "common", "core", "base", "manager", "services"}
)

LONG_FUNCTIONS: dict[str, int] = {}
"""`file:function` -> lines that it may have."""

LONG_FILES: dict[str, int] = {}
"""file -> lines that it may have."""

TESTED_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "app/test_lifecycle.py": ("app/runtime.py", "app/wiring.py", "app/wiring.py"),
    "app/test_lifecycle_imports.py": ("cli/operator_line.py",),
    "discovery/test_site_openapi.py": (
        "discovery/site_openapi.py",
        "discovery/site_contract.py",
        "discovery/site_operations.py",
    ),
    "gateway/test_problems_authorizations.py": ("gateway/problems.py",),
    "cli/test_demo_run_printer.py": ("sandbox/tour.py",),
    "payments/test_settlement.py": ("payments/settlement.py",),
    "contracts/test_ledger_store.py": (
        "ledger/ledger.py",
        "ledger/history.py",
        "storage/history.py",
        "storage/locked_rows.py",
        "storage/ledger_store.py",
        "storage/ledger_tables.py",
        "storage/group_commit.py",
        "storage/recovery.py",
        "storage/payments.py",
        "storage/ledger_batch.py",
    ),
    "contracts/test_catalog_search_plans.py": (
        "storage/catalog_search.py",
        "storage/history.py",
        "storage/statements.py",
    ),
    "contracts/test_history_totals.py": ("storage/history.py",),
    "contracts/test_authorizations.py": (
        "ledger/records.py",
        "storage/authorizations.py",
        "storage/ledger_tables.py",
    ),
    "contracts/test_leadership.py": ("storage/leadership.py",),
    "contracts/test_database_outages.py": ("storage/postgres.py",),
    "contracts/test_statements.py": ("storage/statements.py",),
    "contracts/test_recovery.py": ("storage/recovery.py",),
    "contracts/test_recovery_restore_detection.py": ("storage/recovery.py",),
    "contracts/test_idempotency_open_calls.py": ("ledger/records.py", "storage/idempotency.py"),
    "contracts/test_payments_exhausted.py": ("storage/payments.py",),
    "cli/test_operator_backups.py": ("storage/backup.py",),
    "web/test_mcp.py": ("web/mcp_gateway.py", "web/mcp_tools.py"),
    "contracts/test_idempotency_keys.py": (
        "ledger/records.py",
        "storage/idempotency.py",
        "storage/postgres.py",
    ),
    "contracts/test_settlement.py": ("storage/settlement.py",),
    "contracts/test_payments_finality.py": ("ledger/ledger.py", "storage/payments.py"),
    "contracts/test_settlement_reorg.py": ("ledger/ledger.py", "storage/settlement.py"),
    "contracts/test_gas_store.py": ("ledger/ledger.py", "storage/gas_store.py"),
    "contracts/test_idempotency_responses.py": ("ledger/ledger.py", "storage/idempotency.py"),
    "contracts/test_key_rotation.py": ("storage/key_rotation.py",),
    "contracts/test_catalog.py": (
        "registry/catalog.py",
        "registry/quality.py",
        "storage/catalog_tables.py",
        "storage/catalog_search.py",
    ),
    "contracts/test_ownerships.py": ("storage/reputation_store.py",),
    "contracts/test_quality.py": ("registry/quality.py", "storage/reputation_store.py"),
    "contracts/test_creations.py": ("registry/catalog.py", "storage/creation_store.py"),
    "contracts/test_sessions.py": ("identity/sessions.py", "storage/identity_store.py"),
    "contracts/test_migrate.py": ("storage/migrate.py", "storage/migration_run.py"),
    "chain/test_rpc.py": ("chain/nodes.py", "chain/requests.py", "chain/port.py"),
    "gateway/test_access_rates.py": ("chain/port.py",),
    "registry/test_draft.py": (
        "registry/draft.py",
        "registry/object_reader.py",
        "registry/text.py",
        "registry/header_names.py",
    ),
    "cli/test_demo_run.py": ("cli/demo_run.py",),
    "cli/test_caller.py": (
        "cli/output.py",
        "cli/inputs.py",
    ),
    "cli/test_main.py": ("cli/agent_line.py",),
    "client/test_client.py": (
        "client/client.py",
        "client/driver.py",
        "client/errors.py",
        "client/responses.py",
    ),
    "client/test_flow.py": ("client/transfer.py", "client/steps.py", "client/transfer.py"),
    "gateway/test_proxy.py": ("gateway/messages.py", "gateway/proxy.py"),
    "outbound/test_http1.py": ("outbound/http1.py",),
    "outbound/test_client.py": ("outbound/client.py",),
    "config/test_settings.py": ("config/values.py", "config/networks.py"),
    "web/test_site_routes_health.py": ("web/problems.py",),
    "web/test_listing_routes.py": ("web/listing_routes.py", "web/listing_json.py"),
    "web/test_site_routes.py": ("web/site_routes.py", "web/site_routes.py"),
    "web/test_auth_routes.py": ("web/auth_routes.py", "web/admission.py"),
}
"""Test file -> the ports and parts of a room that are only ever used together and that it covers."""

JSON_LOADED_BY: dict[str, str] = {
    "client/wallet.py": "the owner's own keystore",
    "identity/signatures.py": "an artifact of our own",
    "identity/siwe.py": "brackets are counted before",
    "sandbox/chain.py": "a chain node that we started",
    "sandbox/tour.py": "the demo's own gateway and provider",
    "storage/catalog_tables.py": "our own rows; what is in them was parsed by web/json.py",
    "web/json.py": "nesting is measured before",
}
"""Who may use `json.loads` and why. A library of ours lifts Python's recursion limit, and then deep nesting kills the
process; everybody else uses `web.json` or `pydantic_core.from_json`, which refuse it."""

NETWORKED_BY: dict[str, tuple[str, str]] = {
    "chain/nodes.py": ("aiohttp", "nodes that the operator names"),
    "chain/requests.py": ("aiohttp", "nodes that the operator names"),
    "chain/rpc.py": ("aiohttp", "nodes that the operator names"),
    "payments/facilitator.py": ("aiohttp", "the facilitator that the operator names"),
    "storage/database.py": ("asyncpg", "the operator's own database"),
    "storage/postgres.py": ("asyncpg", "the operator's own database"),
    "rate_limits/redis_windows.py": ("redis", "the operator's own server for rates"),
    "web/server.py": (
        "asyncio.open_connection socket",
        "its own door: listens there, and knocks to see that it is open",
    ),
    "web/gateway_app.py": ("socket", "looks at the callers' own sockets, and opens none"),
    "sandbox/chain.py": ("aiohttp", "the demo's chain node"),
    "sandbox/provider.py": ("aiohttp", "the demo's provider, a server"),
    "sandbox/tour.py": ("httpx", "the demo's own caller"),
}
"""Who may reach a network beside `outbound/`, with what, and where it leads. Everything that somebody else may name is
fetched through `outbound/`. The command line and the client run on their user's side."""

NETWORK_MODULES = frozenset(
    (
        *("aiohttp", "aiohttp_socks", "asyncpg", "dns", "ftplib", "grpc", "http.client", "httpcore", "httpx"),
        *("imaplib", "nntplib", "poplib", "psycopg", "pycurl", "redis", "requests", "smtplib", "socket"),
        *("ssl", "telnetlib", "tornado", "urllib.request", "urllib3", "valkey", "web3", "websocket"),
        *("websockets", "xmlrpc"),
    )
)
NETWORK_CALLS = frozenset(
    (
        *("open_connection", "open_unix_connection", "create_connection", "create_unix_connection"),
        *("create_datagram_endpoint", "sock_connect", "getaddrinfo", "gethostbyname", "urlopen"),
    )
)
"""Of an event loop or a module, whoever calls them."""


def modules() -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "migrations" not in path.relative_to(PACKAGE).parts:
            yield path


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_a_module_says_what_it_does_and_keeps_its_size(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not tree.body or ast.get_docstring(tree), (
        "a module starts with what the room does and must never do"
    )
    assert line_count(path) <= LONG_FILES.get(name_of(path), FILE_LINES_MAX), (
        "look for the second noun inside"
    )
    for function in functions(tree):
        lines = (function.end_lineno or 0) - function.lineno + 1
        most = LONG_FUNCTIONS.get(f"{name_of(path)}:{function.name}", FUNCTION_LINES_MAX)
        assert lines <= most, f"{function.name} has {lines} lines"


LATE_IMPORTS = {
    "app/lifecycle.py": 1,
    "outbound/dns.py": 1,
    "registry/openapi.py": 1,
    "storage/migrate.py": 1,
    "web/mcp.py": 1,
}
"""What most starts never need is loaded by those that do: redis to share windows, alembic to change tables."""


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_a_module_imports_at_its_top(path: Path) -> None:
    if path.parent.name in ("cli", "client"):
        return  # these load optional extras late
    tree = ast.parse(path.read_text())
    late = [
        node.lineno
        for function in functions(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert len(late) == LATE_IMPORTS.get(name_of(path), 0), late


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_a_status_is_known_to_one_module_only(path: Path) -> None:
    """The status of every failure stands in web/problems.py; routes name at most the success that they are."""
    if path.parent.name != "web" or path.name == "problems.py":
        return
    found = re.findall(
        r"status(?:_code)?\s*=\s*[45][0-9]{2}\b|\"status\":\s*[45][0-9]{2}\b", path.read_text()
    )
    assert found == []


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_every_429_names_its_rate(path: Path) -> None:
    """`RateLimit` and `RateLimit-Policy` are made from what `describe_rate` says; without it a 429 would have neither."""
    bare = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
            told = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            is_429 = told.get("code") in ("Code.RATE_LIMITED", "Code.FAILED_CALL_BUDGET_EXHAUSTED")
            if is_429 and not told.get("members", "").startswith("describe_rate("):
                bare.append(node.lineno)
    assert bare == []


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_json_from_outside_is_parsed_by_what_nesting_cannot_crash(path: Path) -> None:
    found = re.findall(r"\bjson\.loads?\(|\.json\(\)", path.read_text())
    assert found == [] or name_of(path) in JSON_LOADED_BY


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_only_the_way_out_reaches_a_network(path: Path) -> None:
    if path.parent.name in ("outbound", "cli", "client"):
        return
    may_use, _ = NETWORKED_BY.get(name_of(path), ("", ""))
    assert find_networking(ast.parse(path.read_text())) == set(may_use.split())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import urllib.request", "urllib.request"),
        ("from urllib.request import urlopen", "urllib.request"),
        ("from urllib import request", "urllib.request"),
        ("from http import client as one", "http.client"),
        ("def f():\n    import httpx", "httpx"),
        ("import aiohttp.web", "aiohttp"),
        ("from dns.asyncresolver import resolve", "dns"),
        ("loop.create_connection(f)", "asyncio.create_connection"),
        ("from asyncio import open_connection", "asyncio.open_connection"),
        ("__import__('socket')", "__import__"),
        ("importlib.import_module('socket')", "import_module"),
        ("from http import HTTPStatus\nfrom urllib.parse import quote", ""),
    ],
)
def test_a_network_is_seen_however_it_is_reached(text: str, found: str) -> None:
    assert find_networking(ast.parse(text)) == set(found.split())


def find_networking(tree: ast.Module) -> set[str]:
    """What of a module leads to a network; also a module that is loaded by a name that nobody can see."""
    found: set[str | None] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {_network_module(one.name) for one in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {_network_module(f"{module}.{one.name}") for one in names}
                found |= {
                    f"asyncio.{one.name}"
                    for one in names
                    if one.name in NETWORK_CALLS and module == "asyncio"
                }
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in NETWORK_CALLS:
                found.add(f"asyncio.{name}")
            case ast.Call(
                func=ast.Attribute(attr="import_module" as name) | ast.Name(id="__import__" as name)
            ):
                found.add(name)
    return {name for name in found if name}


def _network_module(name: str) -> str | None:
    parts = name.split(".")
    return next((known for known in (".".join(parts[:2]), parts[0]) if known in NETWORK_MODULES), None)


def test_names_say_something_and_are_addresses() -> None:
    names = [path.stem for path in modules() if path.name not in ("__init__.py", "__main__.py")]
    assert BANNED_NAMES.isdisjoint({*names, *(path.parent.name for path in modules())})
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_module_has_a_test_file_named_after_it() -> None:
    covered = {name for test, names in TESTED_ELSEWHERE.items() if (TESTS / test).exists() for name in names}
    missing = set()
    for path in modules():
        name = name_of(path)
        is_exempt = path.name in ("__init__.py", "__main__.py")
        has_own = (TESTS / Path(name).parent / f"test_{path.name}").exists()
        if not (is_exempt or has_own or name in covered):
            missing.add(name)
    assert sorted(missing) == [], "new modules come with their tests"
