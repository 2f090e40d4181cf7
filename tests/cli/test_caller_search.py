"""`tollway search` and `tollway show`: tables on a terminal, JSON for programs. Neither needs a key."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.kit.threaded_server import serve_in_thread
from tollway.cli.main import make_app

LISTED = {
    "name": "Rain\x1b[2J \u202eforecasts",
    "provider": "0x" + "22" * 20,
    "pricePerRequest": "0.01",
    "currency": "USDC",
    "endpoint": "https://x.test",
    "description": "[red]cheap[/red]",
    "match": ["name", "tags"],
}
MEASURED = {"calls30d": 12034, "successRate30d": 0.9981, "p50Ms": 120, "p95Ms": 480}
UNMEASURED = dict.fromkeys(MEASURED)
DETAILS = {
    "api_1": {"networks": ["eip155:8453", "eip155:84532"], "quality": MEASURED, "verified": True},
    "api_2": {"networks": ["eip155:8453\x1b[31m"], "quality": UNMEASURED, "verified": False},
}
AGENT = {
    "id": "api_1",
    "name": "Rain",
    "whenToUse": "to\nname  Sun",
    "payment": {
        "required": True,
        "options": [{"rail": "x402"}],
        "rails": [{"rail": "x402"}],
        "steps": "Sign",
    },
    "operations": [
        {
            "method": "GET",
            "path": "/rain",
            "price": "0.01 USDC",
            "example": {"target": "/rain?city=O'Hara&days=2"},
        }
    ],
}


class Registry(ThreadingHTTPServer):
    """Two listings, a third that is gone by the time one looks, and agent documents where `has_agent`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RegistryHandler)
        self.seen: list[str] = []
        self.has_agent = True
        self.is_empty = False
        """Whether a search with a filter or for `nothing` finds nothing."""

    def answer(self, path: str) -> tuple[int, Any]:
        name = path.removeprefix("/api/v2/apis").partition("?")[0].removeprefix("/")
        if path.startswith("/api/v2/facets"):
            return 200, {"tags": [{"tag": "data", "count": 2}, {"tag": "geo\x1b[2J", "count": 1}]}
        if not name and self.is_empty and ("tag=" in path or "nothing" in path):
            return 200, {"apis": [], "total": 0, "totalAll": 0, "words": ["rain"], "corrections": []}
        if not name:
            listed = [{"id": api_id, **LISTED} for api_id in ("api_1", "api_2", "api_gone")]
            return 200, {"apis": listed, "total": 3, "page": 1, "limit": 20}
        if name == "api_1/agent" and self.has_agent:
            return 200, AGENT
        if name.endswith("/agent") and (name == "api_9/agent" or not self.has_agent):
            return 404, {
                "code": "api_not_found" if name == "api_9/agent" else "route_not_found",
                "detail": "No.",
            }
        if name == "api_9":
            return 404, {"code": "api_not_found", "detail": "No."}
        return (200, {"id": name, **DETAILS[name]}) if name in DETAILS else (410, {"code": "api_retired"})


class RegistryHandler(BaseHTTPRequestHandler):
    server: Registry

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        status, document = self.server.answer(self.path)
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    with serve_in_thread(registry):
        yield registry


@pytest.fixture
def run(registry: Registry) -> Callable[..., Result]:
    url = f"http://127.0.0.1:{registry.server_address[1]}"
    env = {"TOLLWAY_GATEWAY": url, "TOLLWAY_KEY_FILE": "", "TOLLWAY_PRIVATE_KEY": "", "COLUMNS": "200"}
    return lambda *words: CliRunner().invoke(make_app(), list(words), env=env)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollway.cli.inputs.is_for_people", lambda as_json: not as_json)


def test_a_pipe_gets_the_page_as_the_gateway_wrote_it(run: Callable[..., Result], registry: Registry) -> None:
    done = run("search", "rain", "today")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == registry.answer("/api/v2/apis")[1]
    assert registry.seen == ["/api/v2/apis?q=rain%20today&page=1&limit=20"]


def test_every_filter_reaches_the_gateway(run: Callable[..., Result], registry: Registry) -> None:
    words = "--tag t --currency USDC --network eip155:1 --max-price 0.5 --min-success-rate 0.9 --verified --page 2 --provider 0xAb"
    assert run("search", *words.split(), "--sort", "price", "--limit", "5").exit_code == 0
    (seen,) = registry.seen
    assert set(seen.partition("?")[2].split("&")) == {
        "page=2",
        "limit=5",
        "tag=t",
        "currency=USDC",
        "network=eip155%3A1",
        "maxPrice=0.5",
        "minSuccessRate=0.9",
        "verified=true",
        "provider=0xAb",
        "sort=price",
    }


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_a_table_without_control_characters(run: Callable[..., Result]) -> None:
    shown = run("search", "rain").stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.splitlines() == [
        "api_1  Rain\ufffd[2J \ufffdforecasts",
        "    0.01 USDC · 99.81 % of 12034, 120 ms · ownership verified · eip155:8453, eip155:84532 · found in name, tags",
        "    [red]cheap[/red]",
        "api_2  Rain\ufffd[2J \ufffdforecasts",
        "    0.01 USDC · not measured · eip155:8453\ufffd[31m · found in name, tags",
        "    [red]cheap[/red]",
        "api_gone  Rain\ufffd[2J \ufffdforecasts",  # one that is gone takes nothing from the others
        "    0.01 USDC · not measured · found in name, tags",
        "    [red]cheap[/red]",
        "page 1, 3 in all; tollway show ID explains one",
    ]


# a search that finds nothing -> what to try
ADVISED = [
    (("nothing", "--limit", "5"), []),
    (
        ("rain", "--tag", "x"),
        ['Without the filters: "Rain[2J forecasts", "Rain[2J forecasts", "Rain[2J forecasts".'],
    ),
]


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_what_to_try_where_nothing_is_found(
    run: Callable[..., Result], registry: Registry
) -> None:
    registry.is_empty = True
    for words, closest in ADVISED:
        sentences = [
            'No API matches "rain".',
            *closest,
            'Try other words, such as the tags of this catalog: "data", "geo[2J".',
        ]
        shown = run("search", *words)
        assert (shown.exit_code, " ".join(shown.stdout.split())) == (0, " ".join(sentences))


def test_show_gives_a_program_every_field_of_the_listing(
    run: Callable[..., Result], registry: Registry
) -> None:
    given = json.loads(run("show", "api_1", "--json").stdout)
    assert given["networks"] == ["eip155:8453", "eip155:84532"]
    assert registry.seen == ["/api/v2/apis/api_1"]


def test_show_gives_a_pipe_what_a_call_needs(run: Callable[..., Result], registry: Registry) -> None:
    shown = json.loads(run("show", "api_1").stdout)
    assert list(shown) == ["id", "name", "operations", "payment"]
    assert shown["operations"] == AGENT["operations"]
    assert shown["payment"] == {"required": True, "options": [{"rail": "x402"}]}
    registry.has_agent = False
    assert json.loads(run("show", "api_1").stdout) == registry.answer("/api/v2/apis/api_1")[1]


@pytest.mark.usefixtures("terminal")
def test_show_outlines_the_listing_where_there_is_no_agent_document(
    run: Callable[..., Result], registry: Registry
) -> None:
    registry.has_agent = False
    assert "eip155:8453" in run("show", "api_1").stdout
    assert registry.seen == ["/api/v2/apis/api_1/agent", "/api/v2/apis/api_1"]


def test_an_unknown_listing_fails_with_the_code_of_the_gateway(run: Callable[..., Result]) -> None:
    done = run("show", "api_9")
    assert (done.exit_code, done.stdout) == (1, "")
    assert json.loads(done.stderr)["error"]["code"] == "api_not_found"


@pytest.mark.usefixtures("terminal")
def test_show_is_an_outline_in_which_no_text_makes_lines_of_its_own(
    run: Callable[..., Result],
) -> None:
    lines = run("show", "api_1").stdout.splitlines()
    assert "name  Rain" in lines
    assert "name  Sun" not in lines
    assert "  required  yes" in lines


@pytest.mark.usefixtures("terminal")
def test_show_begins_with_the_operations(run: Callable[..., Result]) -> None:
    lines = run("show", "api_1").stdout.splitlines()
    assert lines[:7] == [
        "id  api_1",
        "name  Rain",
        "operations",
        "  - method  GET",
        "    path  /rain",
        "    price  0.01 USDC",
        """    call  tollway call api_1 '/rain?city=O'"'"'Hara&days=2'""",
    ]


@pytest.mark.usefixtures("terminal")
def test_json_is_raw_on_a_terminal_too(run: Callable[..., Result]) -> None:
    assert json.loads(run("show", "api_1", "--json").stdout)["networks"] == ["eip155:8453", "eip155:84532"]
    assert json.loads(run("search", "--json").stdout)["apis"][0]["name"] == LISTED["name"]
