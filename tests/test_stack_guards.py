"""Eight ways in which the HTTP stack can be killed, put out of step, or made to send twice; each has a guard of ours and
a test that fails without it. The table keeps them together, so that no test is lost unnoticed.
"""

import ast
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """`guard`: where it stands. `tests`: `file::function`, below this folder."""

    name: str
    guard: str
    tests: tuple[str, ...]


TRAPS = (
    Trap(
        name="granian before 2.8.7 ends a stream that failed as if it were whole",
        guard="requirements/gateway.in pins it; CallRoutes leaves out the last message",
        tests=(
            "test_stack_guards.py::test_the_server_is_new_enough_to_cut_visibly",
            "web/http/test_server.py::test_an_incomplete_response_ends_without_its_end",
            "gateway/test_proxy.py::test_an_answer_cut_by_the_upstream_breaks_visibly",
        ),
    ),
    Trap(
        name="an answer's status outside 100 to 999 aborts the whole process",
        guard="UpstreamExchange.send takes 200 to 599 only",
        tests=(
            "web/http/test_server.py::test_the_next_request_on_the_connection_gets_its_response",
            "gateway/test_proxy.py::test_an_answer_that_is_no_http_is_502_and_held",
        ),
    ),
    Trap(
        name="a bad subprotocol in websocket.accept kills the worker",
        guard="HttpServer switches WebSocket off; the dispatcher closes one that arrives all the same",
        tests=(
            "web/http/test_server.py::test_an_upgrade_is_an_ordinary_call",
            "web/http/test_app.py::test_a_websocket_is_closed",
        ),
    ),
    Trap(
        name="a wrong length beside a single-message body goes out as it stands",
        guard="proxy._without_length",
        tests=(
            "web/http/test_server.py::test_the_next_request_on_the_connection_gets_its_response",
            "gateway/test_proxy.py::test_forwards_a_whole_body",
        ),
    ),
    Trap(
        name="HTTP clients repeat idempotent requests by themselves",
        guard="a client of our own: UpstreamExchange.send delivers once, and a connection begins one exchange at a time",
        tests=(
            "outbound/test_client.py::test_a_request_is_never_sent_twice",
            "outbound/test_client.py::test_a_connection_that_dies_during_the_claim_costs_no_second_claim",
        ),
    ),
    Trap(
        name="stray bytes on an idle connection become the next answer",
        guard="Connection.data_received, Connection.has_no_unread_bytes and ResponseParser.is_reusable",
        tests=(
            "outbound/test_client.py::test_unexpected_bytes_on_an_idle_connection_are_not_a_response",
            "outbound/test_http1.py::test_bytes_after_the_end_belong_to_no_response",
        ),
    ),
    Trap(
        name="a client's cookie jar carries cookies from one caller to another",
        guard="the way out keeps no cookies at all",
        tests=(
            "outbound/test_client.py::test_keeps_no_cookies_and_follows_no_redirect",
            "gateway/test_pipeline.py::test_the_next_callers_request_carries_no_cookie_of_the_upstream",
        ),
    ),
    Trap(
        name="granian has no deadline for request bodies and for readers that stand still",
        guard="IncomingBody's patience; CallRoutes' write_stall_s and HttpServer's kernel timer",
        tests=(
            "web/http/test_server.py::test_a_slow_body_is_refused_and_the_connection_ends",
            "web/http/test_server.py::test_a_client_that_reads_nothing_is_disconnected",
            "web/http/test_server.py::test_the_kernel_timers_apply_to_connections_accepted_before_them",
        ),
    ),
)


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_every_trap_of_the_stack_has_its_tests(trap: Trap) -> None:
    for test in trap.tests:
        file, _, name = test.partition("::")
        assert name in functions_of(TESTS / file), test


def test_the_server_is_new_enough_to_cut_visibly() -> None:
    assert tuple(int(part) for part in version("granian").split(".")[:3]) >= (2, 8, 7)
