"""Telemetry: lines that a machine can read, secrets masked by name and by look, and series with the public names."""

import io
import json
import logging
import os
from pathlib import Path
from typing import Literal

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from tollway.observability.telemetry import (
    MASK,
    Metrics,
    bind_request,
    configure_logging,
    redact,
    redact_entry,
    unbind_request,
)

SIGNATURE = "0x" + "ab" * 65
HASH = "0x" + "cd" * 32


@pytest.mark.parametrize(
    "name",
    ["secret_key", "other_secret_keys", "password", "private_key", "token", "access_token", "Authorization", "X-Signature", "cookie", "upstream_auth"],
)  # fmt: skip
def test_masks_by_name(name: str) -> None:
    assert redact_entry(None, "info", {name: "hush"}) == {name: MASK}


@pytest.mark.parametrize("name", ["event", "tokens_spent", "signature_kind", "request_id", "transaction"])
def test_leaves_other_names_alone(name: str) -> None:
    assert redact_entry(None, "info", {name: HASH}) == {name: HASH}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgresql://me:pa55@h/n", f"postgresql://{MASK}@h/n"),
        ("Authorization: Bearer abcdefghijkl", f"Authorization: Bearer {MASK}"),
        (f"got {SIGNATURE}.", f"got {MASK}."),
        (HASH, HASH),
        ({"a": [SIGNATURE], "token": 1}, {"a": [MASK], "token": MASK}),
        (5, 5),
    ],
)
def test_masks_by_look(value: object, shown: object) -> None:
    assert redact(value) == shown


def test_json_lines_carry_the_request_id_and_no_secret() -> None:
    stream = io.StringIO()
    configure_logging(style="json", stream=stream)
    before = bind_request("req_12345678")
    structlog.get_logger().info("call_closed", signature=SIGNATURE, price="0.01")
    unbind_request(before)
    structlog.get_logger().info("after")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["request_id"], first["price"]) == ("call_closed", "req_12345678", "0.01")
    assert first["signature"] == MASK
    assert "request_id" not in second


def test_a_traceback_is_part_of_its_line_and_redacted() -> None:
    stream = io.StringIO()
    configure_logging(style="json", stream=stream)
    try:
        raise RuntimeError(f"bad {SIGNATURE}")
    except RuntimeError as exc:
        structlog.get_logger().error("broken", exc_info=exc)
    (line,) = stream.getvalue().splitlines()
    assert "RuntimeError" in json.loads(line)["exception"]
    assert SIGNATURE not in line


def test_a_console_traceback_shows_no_local_variables() -> None:
    stream = io.StringIO()
    configure_logging(style="console", stream=stream)
    local_secret = "hush" + "-hush"
    try:
        raise RuntimeError(f"bad {len(local_secret)} {SIGNATURE}")
    except RuntimeError as exc:
        structlog.get_logger().error("broken", exc_info=exc)
    assert "RuntimeError" in stream.getvalue()
    assert "hush-hush" not in stream.getvalue()
    assert SIGNATURE not in stream.getvalue()


HOSTILE = "a\x1b[2J\u202eb\r\n2026-01-01 [info] forged\u2028\ud800c"


def test_a_console_obeys_no_text_and_begins_no_line_for_it() -> None:
    stream = io.StringIO()
    configure_logging(style="console", stream=stream)
    structlog.get_logger().info(HOSTILE, path=HOSTILE, short="a\x1b[2J\u202eb", nested={"a": [HOSTILE]})
    logging.getLogger("somebody").warning("of %s", HOSTILE)
    told = stream.getvalue()
    assert len(told.splitlines()) == 2
    assert set("\x1b\u202e\r\u2028\ud800").isdisjoint(told)


def test_no_line_of_a_console_traceback_looks_like_an_event() -> None:
    stream = io.StringIO()
    configure_logging(style="console", stream=stream)
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError as exc:
        structlog.get_logger().error("broken", exc_info=exc)
    first, *rest = stream.getvalue().splitlines()
    assert "broken" in first
    assert all(line.startswith("  ") for line in rest)
    assert set("\x1b\u202e\r\u2028\ud800").isdisjoint(stream.getvalue())


def test_lines_of_libraries_look_the_same() -> None:
    stream = io.StringIO()
    configure_logging(style="json", stream=stream)
    logging.getLogger("somebody").warning("at postgresql://me:pa55@h/n")
    line = json.loads(stream.getvalue())
    assert (line["level"], "pa55" in line["event"]) == ("warning", False)


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_line_for_the_journal_begins_with_its_priority(
    tmp_path: Path, style: Literal["json", "console"]
) -> None:
    with (tmp_path / "stream").open("w+") as stream:
        status = os.fstat(stream.fileno())
        configure_logging(style=style, stream=stream, journal=f"{status.st_dev}:{status.st_ino}")
        log = structlog.get_logger()
        log.info("listening")
        log.warning("rail_withdrawn")
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            log.exception("call_failed")
        logging.getLogger("somebody").error("of a library")
        stream.flush()
        lines = (tmp_path / "stream").read_text().splitlines()
    assert [line[:3] for line in (*lines[:3], lines[-1])] == ["<6>", "<4>", "<3>", "<3>"]
    assert all(line.startswith("<3>") for line in lines[2:])
    if style == "json":
        assert [json.loads(line[3:])["event"] for line in lines] == [
            "listening",
            "rail_withdrawn",
            "call_failed",
            "of a library",
        ]


@pytest.mark.parametrize("journal", [None, "", "1:2", "no numbers"])
def test_a_line_for_another_stream_has_no_priority(tmp_path: Path, journal: str | None) -> None:
    with (tmp_path / "stream").open("w") as stream:
        configure_logging(style="json", stream=stream, journal=journal)
        structlog.get_logger().error("storage_away")
    assert json.loads((tmp_path / "stream").read_text())["event"] == "storage_away"
    text = io.StringIO()
    configure_logging(style="json", stream=text, journal="1:2")
    structlog.get_logger().error("storage_away")
    assert text.getvalue().startswith("{")


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure_logging(level="error", style="console", stream=stream)
    structlog.get_logger().info("quiet")
    structlog.get_logger().error("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_series_have_their_public_names() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.calls.add("charged")
    metrics.claims_batch_size.observe(3)
    metrics.settlements.labels("eip155:84532", "settled").inc()
    metrics.settlement_seconds.labels("eip155:84532").observe(0.2)
    metrics.gas_key_balance.labels("eip155:84532", "0xab").set(500)
    metrics.gas_lane_length.labels("eip155:84532", "0xab").set(2)
    metrics.calls_adrift.set(3)
    metrics.database_setbacks.inc()
    metrics.rails_withdrawn.labels("eip155:84532", "gas_keys_low").set(1)
    metrics.add_shared_rates()(False)
    metrics.request_seconds.labels("GET", "/api/v2/apis", "200").observe(0.01)
    text = generate_latest(metrics.registry).decode()
    for name in ('tollway_calls_total{outcome="charged"} 1.0', "tollway_claims_batch_size_count 1.0",
                 "http_server_request_duration_seconds_bucket",
                 'tollway_settlements_total{network="eip155:84532",outcome="settled"} 1.0',
                 'tollway_settlement_duration_seconds_count{network="eip155:84532"} 1.0',
                 'tollway_gas_key_balance_wei{key="0xab",network="eip155:84532"} 500.0',
                 'tollway_gas_lane_length{key="0xab",network="eip155:84532"} 2.0',
                 "tollway_calls_adrift 3.0",
                 "tollway_database_setbacks_total 1.0",
                 "tollway_shared_rates_up 0.0",
                 'tollway_rails_withdrawn{network="eip155:84532",reason="gas_keys_low"} 1.0'):  # fmt: skip
        assert name in text
