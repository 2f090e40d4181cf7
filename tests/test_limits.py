"""Every limit has its promised default, is read by the code, and is held by a named test."""

import ast
import asyncio
from dataclasses import fields
from pathlib import Path

import pytest

from tests.kit.gateway import CALLS, open_gateway, serve
from tests.long.guards.breaking import is_defined
from tests.long.guards.registry import read_held
from tollway.limits import DEFAULT_LIMITS, KIB, MIB, FixedLimits, Limits
from tollway.money import Price
from tollway.payments.proof import BOUND_VALIDITY_S
from tollway.payments.transaction_rules import PAYEE_SLACK_S
from tollway.registry.catalog import CREATION_KEY_TTL_S

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src" / "tollway"

HELD_BY = dict(row for row in read_held() if not row[0][0].isupper())
"""Limit -> the test that holds it, of `tests/long/guards/rows/held.txt`."""

PROMISED = {
    "request_line_bytes_max": 8 * KIB,
    "header_bytes_max": 8 * KIB,
    "payment_header_bytes_max": 16 * KIB,
    "headers_bytes_max": 32 * KIB,
    "headers_max": 100,
    "refused_body_bytes_max": 256 * KIB,
    "header_deadline_s": 10,
    "body_rate_bytes_min": 1 * KIB,
    "body_rate_grace_s": 5,
    "upload_bytes_max": 32 * MIB,
    "control_body_bytes_max": 2 * MIB,
    "bound_body_bytes_max": 1 * MIB,
    "held_bodies_bytes_max": 32 * MIB,
    "buffer_bytes": 64 * KIB,
    "connections_max": 10_000,
    "in_flight_per_address_max": 200,
    "in_flight_per_origin_max": 256,
    "dns_deadline_s": 5,
    "connect_deadline_s": 10,
    "chunk_idle_s": 30,
    "upstream_head_bytes_max": 64 * KIB,
    "connection_age_s": 5 * 60,
    "unsafe_reuse_idle_s": 1,
    "rpc_deadline_s": 2,
    "rpc_in_flight_max": 64,
    "lookups_per_minute": 30,
    "free_calls_per_minute": 60,
    "free_wallets_per_day": 3,
    "registrations_per_hour": 100,
    "nonces_per_minute": 60,
    "failed_calls_per_window": 20,
    "failed_calls_window_s": 10 * 60,
    "failed_calls_wait_s": 10,
    "erc1271_gas": 200_000,
    "erc1271_deadline_s": 2,
    "erc1271_bytes_max": 4 * KIB,
    "nonce_ttl_s": 5 * 60,
    "signed_request_ttl_s": 300,
    "session_ttl_s": 24 * 3600,
    "payment_age_s": 24 * 3600,
    "price_memory_s": 10 * 60,
    "payee_memory_s": 24 * 3600,
    "unknown_hold_s": 24 * 3600,
    "attempts_max": 3,
    "response_bytes_max": 256 * KIB,
    "responses_per_payer_bytes_max": 64 * MIB,
    "responses_bytes_max": 1024 * MIB,
    "response_ttl_s": 24 * 3600,
    "recovery_interval_s": 10,
    "metered_body_bytes_max": 1 * MIB,
    "metered_bodies_bytes_max": 64 * MIB,
    "metered_event_bytes_max": 256 * KIB,
    "metered_parse_bytes_max": 64 * KIB,
    "metered_rest_bytes_max": 8 * MIB,
}
"""What the contract promises; the other limits are our own."""


CONSTANTS = {
    "BOUND_VALIDITY_S": (BOUND_VALIDITY_S, 300),
    "CREATION_KEY_TTL_S": (CREATION_KEY_TTL_S, 24 * 3600),
    "PAYEE_SLACK_S": (PAYEE_SLACK_S, 60),
}
"""What the contract promises of limits that are constants beside their use."""


def test_the_promised_defaults() -> None:
    assert {name: getattr(DEFAULT_LIMITS, name) for name in PROMISED} == PROMISED


def test_the_promised_constants() -> None:
    assert all(value == promised for value, promised in CONSTANTS.values())


def test_an_operator_sets_as_many_limits_as_the_documentation_can_explain() -> None:
    assert 30 <= len(fields(Limits)) - len(fields(FixedLimits)) <= 48


def test_a_gateway_renews_its_lease_and_its_lead_in_time() -> None:
    """A lease must not end between two renewals: another gateway would take over calls that are alive."""
    assert DEFAULT_LIMITS.owner_renew_s * 2 <= DEFAULT_LIMITS.owner_lease_s
    assert DEFAULT_LIMITS.leader_poll_s < DEFAULT_LIMITS.leader_lease_s


def test_every_limit_is_held_by_a_test() -> None:
    assert [name for name, test in HELD_BY.items() if not is_defined(f"tests/{test}")] == []


def test_every_limit_is_read_and_none_is_named_that_is_gone() -> None:
    read = {
        node.attr
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    names = {entry.name for entry in fields(Limits)}
    assert names <= read
    assert set(HELD_BY) == names


# ---- What only the server itself can hold.


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: gw.example.com\r\n\r\n".encode()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: "], ids=("nothing", "half a head"))
async def test_a_head_that_does_not_come_ends_the_connection(said: bytes) -> None:
    async with open_gateway(header_deadline_s=0.3) as gateway, serve(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await reader.read() == b""
        writer.close()


async def test_no_more_connections_are_served_than_allowed() -> None:
    async with open_gateway(connections_max=1) as gateway, serve(gateway) as port:
        await gateway.publish(price=Price.parse("0"))
        first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in (first, second):
            writer.write(request(CALLS + "api_quotes"))
        assert (await first[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await second[0].readuntil(b"\r\n")
        assert len(gateway.upstream.arrived) == 1
        first[1].close()
        assert (await second[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        second[1].close()
