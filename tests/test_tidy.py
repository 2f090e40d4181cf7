"""The house style, as far as a machine can see it. The tables below are ratchets: they may only get shorter."""

import ast
import configparser
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from tollway.cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tollway"
TESTS = ROOT / "tests"

FUNCTION_LINES_MAX = 70
FILE_LINES_USUAL = range(60, 701)
BANNED_NAMES = frozenset(
    {"utils", "util", "helpers", "helper", "common", "core", "base", "manager", "services"}
)

METAPHORS = frozenset(
    {
        *(
            "adrift",
            "cargo",
            "cashier",
            "chore",
            "crowd",
            "desk",
            "drawer",
            "house",
            "manager",
            "passage",
            "purse",
        ),
        *(
            "room",
            "shelf",
            "shipment",
            "showroom",
            "stencil",
            "stray",
            "street",
            "tank",
            "teller",
            "till",
            "trip",
        ),
    }
)
"""Words of a shop, a street or a theatre: a class is named with the words of the protocol, of accounting or of software."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*")

LONG_FUNCTIONS: dict[str, int] = {}
"""`file:function` -> lines that it may have."""

LONG_FILES: dict[str, str] = {
    "client/client.py": "the client, in one class for both kinds of code: what it offers, in the order in which a program uses it",
    "ledger/ledger.py": "the ports of the ledger and their records: one promise for the SQL, the model and every reader",
    "client/records.py": "one record for each response of the gateway",
    "client/store.py": "the one file of a wallet: its payments, its authorisations and its keys share a budget and each transaction",
    "web/calls/gateway_app.py": "the ASGI application of calls: one request, its response and its stream",
    "ledger/claims.py": "what a claim is and whether it is granted, on every rail, in one order",
    "config/settings.py": "the settings, their reader and the rules between them",
    "payments/gas.py": "what gas costs and may cost: prices, budgets, the reserve of claims and the keys, for one decision about an offer",
    "web/http/problems.py": "one row for each code: its status, its title and its page",
    "storage/ledger/ledger_batch.py": "one transaction of the ledger: its locks in one order, then every kind of entry",
    "storage/ledger/group_commit.py": "the one writer of the ledger: its queue, its batches, and what becomes of an entry after each failure",
}
"""File of more than 700 lines -> why it is one idea."""

SHORT_FILES: dict[str, str] = {
    "app/search_extra.py": "the one place that loads the extra for search by meaning",
    "discovery/example_responses.py": "how much of a provider's example is read, for the page of an API",
    "observability/alert_limits.py": "thresholds for two readers that import nothing else of each other: the table of alerts and the operator's pages",
    "cli/csv_output.py": "where a CSV file goes, for every command with --csv",
    "client/issuers.py": "the one place where the environment decides which certificates a client trusts",
    "cli/main.py": "the entry point: whatever is imported before it runs delays Ctrl-C and every command",
    "csv_text.py": "the one place where a cell of a CSV file is disarmed, for the exports of the gateway and of the commands",
    "payments/orphans.py": "the settlements that no call waits for",
    "web/api/kept_sums.py": "the cache before the sums of the ledger, for the routes and the pages of sums",
    "web/operator/open_calls.py": "an open call for an operator; the page of the call shows callers and providers something else",
    "ledger/free_calls.py": "the free calls of a wallet and the port of their store, for the rail and the store",
    "per_call_record.py": "the one place where a record is not frozen at run time",
    "rate_limits/redis_url.py": "config parses the URL without loading redis or the library of windows",
    "storage/ledger/commit_traces.py": "what a trace says about commits, for the writer and its two queues",
    "storage/engine/migration_run.py": "the one module that imports alembic (11 MiB), which most starts do not need",
    "web/api/misdirected.py": "the refusal of paths that pay, at control workers alone",
    "web/pages/messages.py": "the one module that knows the syntax trees of Jinja2",
}
"""File of less than 60 lines -> why it is an idea of its own."""

PURE_COUNT = 83
"""How many modules the contract of pure modules lists: one that is joined with another stays pure."""

TESTED_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "web/operator/test_operator_app.py": ("app/admin_wiring.py",),
    "app/test_lifecycle.py": ("app/parts.py",),
    "app/test_wiring.py": ("app/asgi_wiring.py",),
    "web/operator/test_operator_routes.py": ("observability/fleet.py", "web/operator/operator_context.py"),
    "cli/test_doctor.py": ("app/doctor_findings.py",),
    "deploy/test_alerts.py": ("observability/alert_limits.py",),
    "chain/test_rpc.py": ("chain/port.py",),
    "cli/test_operator_backups.py": ("cli/run_records.py", "storage/operator/backup.py"),
    "client/test_client.py": ("client/control.py", "client/errors.py"),
    "client/test_records.py": ("client/record_reader.py",),
    "cli/test_refund.py": ("client/refund_transfer.py",),
    "client/test_owner_budget.py": ("client/owner_policy.py",),
    "client/test_flow.py": (
        "client/call_io.py",
        "client/transfer.py",
    ),
    "config/test_settings.py": (
        "config/networks.py",
        "config/values.py",
    ),
    "contracts/test_free_call_store.py": ("ledger/free_calls.py",),
    "contracts/test_refunds.py": ("storage/ledger/refund_rows.py",),
    "contracts/test_budgets.py": ("storage/ledger/budget_rows.py", "storage/ledger/budget_store.py"),
    "contracts/test_catalog.py": ("storage/catalog/catalog_tables.py",),
    "contracts/test_catalog_search.py": (
        "storage/catalog/catalog_facets.py",
        "storage/catalog/word_search.py",
    ),
    "contracts/test_claim_states.py": ("storage/ledger/channel_money.py",),
    "contracts/test_channel_store.py": (
        "storage/ledger/channel_rows.py",
        "storage/ledger/locked_channels.py",
    ),
    "contracts/test_closed_periods.py": ("ledger/sales.py", "storage/ledger/sales_tables.py"),
    "contracts/test_creations.py": ("storage/catalog/creation_store.py",),
    "contracts/test_ledger_batch.py": ("storage/ledger/batch_wait.py",),
    "contracts/test_ledger_store.py": ("storage/ledger/ledger_audit.py", "storage/ledger/ledger_tables.py"),
    "contracts/test_migrate.py": ("storage/engine/migration_run.py",),
    "contracts/test_moderation.py": ("storage/accounts/identity_store.py",),
    "contracts/test_operator_writes.py": ("audit_log.py",),
    "contracts/test_ownerships.py": ("storage/catalog/reputation_store.py",),
    "contracts/test_plain_writes.py": ("storage/ledger/statement_queues.py",),
    "contracts/test_webhook_outbox.py": (
        "storage/webhooks/webhook_store.py",
        "storage/webhooks/webhook_tables.py",
        "webhooks/endpoints.py",
    ),
    "gateway/test_call_observer.py": ("gateway/phase_timer.py",),
    "gateway/test_metered_calls.py": ("gateway/metered_response.py",),
    "gateway/test_proxy.py": ("gateway/messages.py",),
    "registry/test_draft.py": ("registry/header_names.py",),
    "contracts/test_history.py": ("storage/ledger/call_records.py", "storage/ledger/payment_list.py"),
    "contracts/test_viewers.py": ("storage/accounts/viewer_store.py",),
    "web/api/test_exports.py": ("web/api/export_rows.py",),
    "web/pages/test_assets.py": ("web/pages/renderer.py",),
    "web/http/test_page_response.py": ("web/pages/page_problems.py",),
    "web/pages/test_public_routes.py": ("web/pages/public_views.py",),
    "web/api/test_trial_routes.py": ("gateway/trial.py",),
    "cli/test_provider.py": ("cli/listing_inputs.py", "cli/own_listings.py", "cli/published.py"),
    "web/pages/test_my_routes.py": ("app/page_wiring.py", "web/pages/my_views.py"),
    "web/pages/test_my_sums_routes.py": ("web/pages/my_sums_views.py",),
    "web/api/test_listing_routes.py": ("web/api/context.py", "web/api/listing_edits.py"),
    "web/pages/test_selling_routes.py": ("web/pages/listing_form.py", "web/pages/selling_views.py"),
}
"""Test file -> modules without a test file of their own (`test_<module>*.py`, beside it or in `contracts/`) that it covers."""

JSON_LOADED_BY: dict[str, str] = {
    "client/receipts.py": "pydantic_core has parsed the text before, so its nesting is bounded",
    "client/wallet.py": "the owner's own keystore",
    "identity/signatures.py": "an artifact of our own",
    "identity/siwe.py": "brackets are counted before",
    "registry/metering.py": "the formulas and quantities that the ledger has stored",
    "sandbox/chain.py": "a chain node that we started",
    "sandbox/tour.py": "the demo's own gateway and provider",
    "storage/catalog/catalog_tables.py": "our own rows; what is in them was parsed by web/http/json.py",
    "web/http/json.py": "nesting is measured before",
}
"""Who may use `json.loads` and why. A library of ours lifts Python's recursion limit, and then deep nesting kills the
process; everybody else uses `web.http.json` or `pydantic_core.from_json`, which refuse it."""

NETWORKED_BY: dict[str, tuple[str, str]] = {
    "chain/nodes.py": ("aiohttp", "nodes that the operator names"),
    "chain/requests.py": ("aiohttp", "nodes that the operator names"),
    "chain/rpc.py": ("aiohttp", "nodes that the operator names"),
    "payments/facilitator.py": ("aiohttp", "the facilitator that the operator names"),
    "storage/engine/postgres.py": ("asyncpg", "the operator's own database"),
    "rate_limits/redis_windows.py": ("redis", "the operator's own server for rates"),
    "app/otlp.py": ("requests", "the collector of traces that the operator names"),
    "app/service_notifier.py": ("socket", "the socket of systemd, a path or a name of this machine"),
    "web/http/server.py": (
        "asyncio.open_connection socket",
        "its own door: listens there, and knocks to see that it is open",
    ),
    "web/calls/gateway_app.py": ("socket", "looks at the callers' own sockets, and opens none"),
    "sandbox/anvil_binary.py": ("httpx", "the npm registry that the user's npm names, for the chain node"),
    "sandbox/chain.py": ("aiohttp", "the demo's chain node"),
    "sandbox/provider.py": ("aiohttp", "the demo's provider, a server"),
    "sandbox/qr_codes.py": ("aiohttp", "what that server sells"),
    "sandbox/completions.py": ("aiohttp", "what that server sells by the token"),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module of the package, read and parsed once for all rules. `name`: its path below the package."""

    name: str
    text: str
    tree: ast.Module

    @property
    def path(self) -> Path:
        return PACKAGE / self.name

    @property
    def package(self) -> str:
        return self.path.parent.name

    @property
    def line_count(self) -> int:
        return len(self.text.splitlines())


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "migrations" not in path.relative_to(PACKAGE).parts:
            text = path.read_text(encoding="utf-8")
            found.append(Module(name=path.relative_to(PACKAGE).as_posix(), text=text, tree=ast.parse(text)))
    return tuple(found)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_a_module_says_what_it_does() -> None:
    """A module starts with what it does and must never do."""
    assert [one.name for one in modules() if one.tree.body and not ast.get_docstring(one.tree)] == []


def test_a_module_of_an_unusual_size_says_why_it_is_one_idea() -> None:
    """The tables have every module with fewer or more lines than usual, and no other."""
    unusual = {
        one.name
        for one in modules()
        if one.path.name not in ("__init__.py", "__main__.py") and one.line_count not in FILE_LINES_USUAL
    }
    assert unusual == set(LONG_FILES) | set(SHORT_FILES)


def test_a_function_keeps_its_size() -> None:
    long = []
    for one in modules():
        for function in functions(one.tree):
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > LONG_FUNCTIONS.get(f"{one.name}:{function.name}", FUNCTION_LINES_MAX):
                long.append(f"{one.name}:{function.name} has {lines} lines")
    assert long == []


LATE_IMPORTS = {
    "__init__.py": 1,
    "app/parts.py": 1,
    "app/search_extra.py": 1,
    "app/span_queue.py": 1,
    "outbound/dns.py": 1,
    "registry/openapi.py": 1,
    "registry/search_tokens.py": 1,
    "storage/catalog/meaning_search.py": 2,
    "storage/engine/database.py": 1,
    "storage/engine/migrate.py": 1,
    "web/api/mcp.py": 1,
}
"""What most starts never need is loaded by those that do: redis to share windows, alembic to change tables, the driver
of PostgreSQL, numpy to search by meaning, the stemmer to search."""


def test_a_module_imports_at_its_top() -> None:
    late = {}
    for one in modules():
        if one.package in ("cli", "client"):
            continue  # these load optional extras late
        count = sum(
            isinstance(node, ast.Import | ast.ImportFrom)
            for function in functions(one.tree)
            for node in ast.walk(function)
        )
        if count:
            late[one.name] = count
    assert late == LATE_IMPORTS


def test_a_status_is_known_to_one_module_only() -> None:
    """The status of every failure stands in web/http/problems.py; routes name at most the success that they are."""
    status = re.compile(r"status(?:_code)?\s*=\s*[45][0-9]{2}\b|\"status\":\s*[45][0-9]{2}\b")
    found = {
        one.name: status.findall(one.text)
        for one in modules()
        if one.package == "web" and one.path.name != "problems.py" and status.search(one.text)
    }
    assert found == {}


def test_every_429_names_its_rate() -> None:
    """`RateLimit` and `RateLimit-Policy` are made from what `describe_rate` says; without it a 429 would have neither."""
    bare = []
    for one in modules():
        for node in ast.walk(one.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Problem", "refuse")
            ):
                told = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                is_429 = told.get("code") in ("Code.RATE_LIMITED", "Code.FAILED_CALL_BUDGET_EXHAUSTED")
                if is_429 and not told.get("members", "").startswith("describe_rate("):
                    bare.append(f"{one.name}:{node.lineno}")
    assert bare == []


def test_json_from_outside_is_parsed_by_what_nesting_cannot_crash() -> None:
    used = re.compile(r"\bjson\.loads?\(|\.json\(\)")
    found = {one.name for one in modules() if used.search(one.text)}
    assert found - set(JSON_LOADED_BY) == set()


def test_only_the_way_out_reaches_a_network() -> None:
    """Each module outside `outbound` uses exactly what its row of the table names."""
    wrong = {}
    for one in modules():
        if one.package not in ("outbound", "cli", "client"):
            may_use, _ = NETWORKED_BY.get(one.name, ("", ""))
            used = find_networking(one.tree)
            if used != set(may_use.split()):
                wrong[one.name] = used
    assert wrong == {}


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
    """The parts of a module that lead to a network, modules loaded by a computed name included."""
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


def test_a_package_or_module_is_named_after_what_it_does() -> None:
    names = {one.path.stem for one in modules()} | {one.package for one in modules()}
    assert BANNED_NAMES.isdisjoint(names)


def test_the_name_of_a_class_is_unique_and_no_metaphor() -> None:
    classes = [
        (node.name, one.name) for one in modules() for node in one.tree.body if isinstance(node, ast.ClassDef)
    ]
    count = Counter(name for name, _ in classes)
    assert [row for row in classes if count[row[0]] > 1] == []
    assert [row for row in classes if METAPHORS & {word.lower() for word in WORD.findall(row[0])}] == []


def test_every_module_has_a_test_file_named_after_it() -> None:
    covered = {name for names in TESTED_ELSEWHERE.values() for name in names}
    missing = set()
    for module in modules():
        name, stem = module.name, module.path.stem
        folders = (TESTS / Path(name).parent, TESTS / "contracts")
        own = [
            test
            for folder in folders
            for pattern in (f"test_{stem}.py", f"test_{stem}_*.py")
            for test in folder.glob(pattern)
        ]
        if not own and module.path.name not in ("__init__.py", "__main__.py"):
            missing.add(name)
    assert missing == covered, "a new module comes with its tests; what has tests of its own needs no row"


def test_every_wait_of_the_tests_has_a_deadline() -> None:
    """A wait for a process or thread anywhere, and for an event in a test itself. A double may wait as long as its test runs."""
    found = {
        path.relative_to(TESTS).as_posix(): lines
        for path in sorted(TESTS.rglob("*.py"))
        if (lines := list(find_endless_waits(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {}, "take until, bounded, run_program, run_threads or DEADLINE_S of tests/kit/waits.py"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("process.communicate()", [1]),
        ("process.communicate(timeout=1)", []),
        ("subprocess.run(command, check=True)", [1]),
        ("subprocess.run(command, timeout=1)", []),
        ("thread.join()", [1]),
        ("','.join(names)", []),
        ("self._process.wait()", [1]),
        ("async def end(): await bounded(process.wait())", []),
        ("async def end():\n async with asyncio.timeout(1):\n  await process.communicate()", []),
        ("async def test_x(): await event.wait()", [1]),
        ("async def test_x(): await bounded(event.wait())", []),
        ("async def test_x():\n async def double(): await event.wait()", []),
        ("async def test_x():\n while not is_done:\n  await asyncio.sleep(0)", [2]),
        ("async def test_x(): await until(lambda: is_done)", []),
    ],
)
def test_a_wait_without_a_deadline_is_found(text: str, found: list[int]) -> None:
    assert list(find_endless_waits(ast.parse(text))) == found


def find_endless_waits(node: ast.AST, *, is_test: bool = False) -> Iterator[int]:
    """The lines of these waits below a node."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            is_test = name.startswith("test_")
        case ast.AsyncWith(items=items) if any("timeout(" in ast.unparse(item) for item in items):
            return
        case ast.Call(func=ast.Name(id="bounded") | ast.Attribute(attr="wait_for")):
            return
        case ast.While(
            body=[ast.Expr(value=ast.Await(value=ast.Call(func=ast.Attribute(attr="sleep"))))]
        ) if is_test:
            yield node.lineno
        case ast.Await(value=ast.Call(func=ast.Attribute(attr="wait" | "acquire" | "readline"), args=[])):
            if is_test:
                yield node.lineno
        case ast.Call(func=ast.Attribute(value=waited, attr=attr), args=args, keywords=keywords):
            is_endless = {
                "communicate": True,
                "join": not args,
                "wait": not args and "process" in ast.unparse(waited),
                "run": ast.unparse(waited) == "subprocess",
            }
            if is_endless.get(attr, False) and not {"timeout", None} & {one.arg for one in keywords}:
                yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from find_endless_waits(child, is_test=is_test)


def test_every_row_of_the_tables_is_about_a_file() -> None:
    known = {one.name for one in modules()}
    for table in (LONG_FILES, SHORT_FILES, JSON_LOADED_BY, NETWORKED_BY, LATE_IMPORTS):
        assert set(table) <= known
    assert [test for test in TESTED_ELSEWHERE if not (TESTS / test).exists()] == []


def test_no_pure_module_is_lost() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    listed = contracts["importlinter:contract:pure"]["source_modules"].split()
    assert len(listed) == len(set(listed)) == PURE_COUNT


COSTS_MAX = {"route": 114, "page": 285, "command": 146, "listing field": 6}
"""What one more thing costs, by what those of today cost: lines of code for a route of the API, for a page with its template and for a command; files
of a field of listings (`forwardSignature`), without the gateway that obeys it. A change lowers a number, or says here why it raises one: `publish` prints ten
lines of a dry run and the next steps, `search` says how it understood the words (command, from 151); each page describes itself and names the operator (page,
from 245); the page of an API has examples, a filter and what a click does, and a list of APIs has rows of what a reader compares, charts have
their ticks, values and the period before, and the operator's overview its trends (page, from 246); forwarded calls may be signed with a shared secret, an audit says what each held call holds
(command, from 153); a call without a path lists the operations with a command to type, and `show` writes such a command for each; a formula comes from a file, and prices say "up to" (command, from 145); a provider
reads its own suspended listings (route, from 108); the editor finds the document of an address, marks the row of a wrong price and shows a new secret once, and a page
says which listing has proved an endpoint (route, from 107; page, from 267); prices by use are said as a maximum with their formula, and records have what was used (route, from 108; command, from 149);
the editor has formulas in rows, for the listing and for operations (page, from 271); a channel has a refund, which the contract of the API did not list (route, from 109);
the money of channels stands on tickets, sales and chains (page, from 277), and the demo pays over one (command, from 140); a provider refunds calls: by a transfer that a wallet of the browser
or the command sends, with its amount shown first (route, from 112; page; command); the alerts of channels have findings (page, from 283)."""


def test_one_more_thing_costs_no_more_than_today() -> None:
    contract = yaml.safe_load((PACKAGE / "web/http/openapi.yaml").read_text())
    operations = sum(len(METHODS & item.keys()) for item in contract["paths"].values())
    templates = list((PACKAGE / "web/pages/templates").glob("*.j2"))
    pages = [path for path in templates if "{% extends" in path.read_text() and "base" not in path.name]
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.yaml"), *templates]
    costs = {
        "route": count_lines("web/api/*.py") // operations,
        "page": count_lines("web/pages/*.py", "web/operator/*.py", "web/pages/templates/*.j2") // len(pages),
        "command": count_lines("cli/*.py") // len(COMMANDS),
        "listing field": sum(
            re.search(r"\b(forward_signature|forwardSignature)\b", path.read_text()) is not None
            for path in sources
            if not path.is_relative_to(PACKAGE / "gateway")
        ),
    }
    assert [(name, cost) for name, cost in costs.items() if cost > COSTS_MAX[name]] == []


def count_lines(*patterns: str) -> int:
    return sum(len(path.read_text().splitlines()) for pattern in patterns for path in PACKAGE.glob(pattern))


METHODS = {"get", "post", "put", "patch", "delete", "head"}
