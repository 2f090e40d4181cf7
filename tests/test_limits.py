"""Every limit has its promised default, is read by the code, and is held by a test that is named here."""

import ast
import asyncio
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.kit.gateway import CALLS, open_gateway, serve
from tollway.limits import DEFAULT_LIMITS, KIB, MIB, FixedLimits, Limits
from tollway.money import Price
from tollway.payments.proof import BOUND_VALIDITY_S
from tollway.payments.transaction_rules import PAYEE_SLACK_S
from tollway.registry.catalog import CREATION_KEY_TTL_S

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src" / "tollway"

HELD_BY = {
    "request_line_bytes_max": "web/test_middleware.py::test_refuses_a_head",
    "header_bytes_max": "web/test_middleware.py::test_refuses_a_head",
    "payment_header_bytes_max": "web/test_middleware.py::test_refuses_a_head",
    "headers_bytes_max": "web/test_middleware.py::test_refuses_a_head",
    "headers_max": "web/test_middleware.py::test_refuses_a_head",
    "refused_body_bytes_max": "web/test_gateway_app.py::test_discards_the_rest_of_a_refused_body_up_to_a_limit",
    "header_deadline_s": "test_limits.py::test_a_head_that_does_not_come_ends_the_connection",
    "body_rate_bytes_min": "web/test_gateway_app.py::"
    "test_a_stalled_body_is_too_slow_and_a_fast_one_earns_time",
    "body_rate_grace_s": "web/test_gateway_app.py::test_a_stalled_body_is_too_slow_and_a_fast_one_earns_time",
    "body_rate_window_s": "web/test_admission_bodies.py::test_a_body_that_came_fast_may_pause_for_the_window_only",
    "control_body_deadline_s": "web/test_middleware.py::test_a_body_keeps_its_rate_and_ends_within_a_minute",
    "upload_bytes_max": "gateway/test_body.py::test_a_stream_over_the_limit_is_refused_before_the_byte_that_is_too_much",
    "control_body_bytes_max": "web/test_middleware.py::test_limits_the_size_and_the_duration_of_a_body",
    "bound_body_bytes_max": "gateway/test_body.py::"
    "test_a_bound_body_without_a_promise_has_a_limit_that_names_the_parameter",
    "held_bodies_bytes_max": "web/test_admission_bodies.py::"
    "test_reserves_until_the_budget_is_full_and_again_after_a_release",
    "buffer_bytes": "gateway/test_body.py::test_a_large_or_endless_body_is_streamed_chunk_by_chunk",
    "remembered_bytes_max": "gateway/test_decisions.py::test_a_request_with_a_long_head_is_decided_each_time",
    "decisions_bytes_max": "gateway/test_decisions.py::test_the_memory_of_decisions_is_bounded_by_bytes",
    "proofs_bytes_max": "payments/test_proof.py::test_parsed_proofs_are_kept_within_their_bytes",
    "write_stall_s": "web/test_gateway_app.py::test_a_stalled_write_ends_the_stream",
    "exports_at_once_max": "web/test_exports.py::test_a_wallet_and_a_gateway_write_few_files_at_once",
    "exports_per_wallet_max": "web/test_exports.py::test_a_wallet_and_a_gateway_write_few_files_at_once",
    "export_rate_bytes_min": "web/test_exports.py::test_a_client_that_takes_too_little_is_cut_off",
    "export_grace_s": "web/test_exports.py::test_a_client_that_takes_too_little_is_cut_off",
    "export_deadline_s": "web/test_exports_end.py::test_a_page_has_a_deadline_however_fast_its_reader_is",
    "export_wait_s": "web/test_exports_end.py::test_a_wallet_that_waits_too_long_is_refused",
    "menu_wallets_max": "contracts/test_viewers.py::test_limits_of_both_lists",
    "permissions_per_hour": "web/test_viewer_routes.py::test_permissions_have_a_rate_by_wallet_and_by_address",
    "viewers_max": "contracts/test_viewers.py::test_limits_of_both_lists",
    "viewed_wallets_max": "contracts/test_viewers.py::test_limits_of_both_lists",
    "viewer_days_max": "web/test_viewer_routes.py::test_the_longest_permission_is_allowed",
    "connections_max": "test_limits.py::test_no_more_connections_are_served_than_allowed",
    "memory_bytes_max": "web/test_admission_load.py::test_memory_is_full_at_95_percent",
    "in_flight_max": "web/test_admission_load.py::test_admits_until_95_percent_of_the_requests_are_in_flight",
    "in_flight_per_address_max": "web/test_admission_load.py::test_an_address_has_a_limit_that_leaves_others_alone",
    "in_flight_per_origin_max": "outbound/test_client.py::test_calls_in_flight_per_origin_are_limited",
    "dns_deadline_s": "outbound/test_pool_address_guard.py::test_resolution_has_a_deadline",
    "connect_deadline_s": "outbound/test_client.py::test_a_connect_that_hangs_is_unreachable",
    "chunk_idle_s": "outbound/test_client.py::test_a_body_that_stops_is_a_timeout",
    "upstream_head_bytes_max": "outbound/test_client.py::test_a_head_that_is_too_large_is_refused_by_that_name",
    "upstream_headers_max": "outbound/test_client.py::test_a_head_that_is_too_large_is_refused_by_that_name",
    "connection_age_s": "outbound/test_client.py::test_connections_are_reused_within_one_generation_only",
    "unsafe_reuse_idle_s": "outbound/test_client.py::test_an_unsafe_method_takes_no_connection_that_idled",
    "dial_failures_max": "gateway/test_circuit_breaker.py::test_opens_after_failures_in_a_row_of_that_origin_only",
    "dial_pause_s": "gateway/test_circuit_breaker.py::test_stays_down_after_its_pause_until_a_probe_has_reached_it",
    "probe_interval_s": "gateway/test_circuit_breaker.py::"
    "test_upstreams_in_use_are_probed_only_where_the_operator_wants_it",
    "rpc_deadline_s": "chain/test_nodes.py::test_a_hanging_node_is_cancelled_at_the_deadline",
    "rpc_in_flight_max": "chain/test_nodes.py::test_no_more_requests_are_in_flight_than_allowed",
    "lookups_per_minute": "gateway/test_access_rates.py::test_look_ups_count_per_address_and_per_signer",
    "erc1271_gas": "payments/test_authorization_onchain_precheck.py::test_a_wallet_with_code_is_called_within_its_limits",
    "erc1271_deadline_s": "payments/test_authorization_onchain_precheck.py::test_a_wallet_with_code_is_called_within_its_limits",
    "erc1271_bytes_max": "payments/test_authorization_onchain_precheck.py::test_a_wallet_with_code_is_called_within_its_limits",
    "rpc_answer_bytes_max": "chain/test_nodes.py::test_an_http_fault_is_unusable_and_trips_the_breaker",
    "watch_interval_s": "payments/test_reorg_watcher.py::test_it_runs_through_failures_until_it_is_cancelled",
    "watch_batch_max": "payments/test_reorg_watcher.py::test_all_payments_are_read_one_batch_at_a_time",
    "disputed_looks_max": "payments/test_reorg_watcher.py::"
    "test_a_payment_in_a_disputed_block_is_held_after_some_checks_and_freed_on_agreement",
    "watch_in_flight_max": "payments/test_reorg_watcher.py::test_few_requests_are_in_flight",
    "settle_wait_s": "payments/test_settlement.py::test_a_transaction_not_mined_by_the_deadline_is_undecided",
    "settle_wait_s_max": "payments/test_settlement.py::test_a_depth_beyond_the_deadline_is_not_offered",
    "settlement_gas_max": "payments/test_settlement.py::test_gas_is_limited_in_simulation_and_in_what_is_signed",
    "deployment_gas_max": "payments/test_settlement_deployments.py::test_the_simulation_has_the_gas_of_a_deployment",
    "gas_refresh_s": "payments/test_gas.py::test_nothing_is_offered_from_a_stale_state",
    "sweep_interval_s": "app/test_wiring.py::test_the_sweeper_looks_again_and_again",
    "sweep_batch_max": "payments/test_settlement_recovery.py::test_recovery_reads_a_batch_and_reaches_every_call",
    "sweep_in_flight_max": "payments/test_settlement_recovery.py::test_few_calls_are_recovered_at_the_same_time",
    "fee_bump_after_s": "payments/test_transactions_replacer.py::test_a_transaction_that_waits_too_long_is_replaced",
    "settlement_attempts_max": "payments/test_settlement_recovery.py::test_a_call_gets_a_limited_number_of_nonces",
    "facilitator_deadline_s": "payments/test_facilitator_transport.py::"
    "test_a_hanging_facilitator_is_unavailable_and_gets_one_request",
    "facilitator_answer_bytes_max": "payments/test_facilitator_transport.py::test_a_response_has_a_maximum_size",
    "free_calls_per_minute": "gateway/test_access_rates.py::test_free_calls_count_per_address_and_listing",
    "registrations_per_hour": "web/test_listing_routes.py::"
    "test_creates_per_wallet_and_hour_are_limited_and_only_created_listings_count",
    "edits_per_hour": "web/test_listing_routes.py::test_edits_per_wallet_and_hour_are_limited_and_only_valid_ones_count",
    "signed_requests_per_minute": "identity/test_authenticator.py::"
    "test_a_wallet_and_an_address_sign_so_many_requests_and_no_more",
    "authenticated_requests_per_minute": "web/test_wallet_quota.py::"
    "test_every_proof_of_a_wallet_counts_in_one_quota",
    "receipt_wait_s": "web/test_receipt_routes.py::test_an_end_that_is_never_written_is_waited_for_ten_minutes",
    "joined_transfers_max": "web/test_receipt_routes.py::test_a_maximum_of_joined_transfers_is_listed",
    "creation_keys_max": "contracts/test_creations.py::test_a_wallet_has_a_maximum_number_of_keys",
    "ownership_checks_per_hour": "web/test_ownership_routes.py::test_checks_per_wallet_and_hour_are_limited",
    "trials_per_hour": "web/test_trial_routes.py::test_trials_per_wallet_and_hour_are_limited",
    "nonces_per_minute": "web/test_auth_routes.py::test_is_metered_per_client",
    "failed_calls_per_window": "gateway/test_access_failures.py::test_bears_so_many_failures_of_a_key_and_no_more",
    "failed_calls_window_s": "gateway/test_access_failures.py::test_bears_so_many_failures_of_a_key_and_no_more",
    "failed_calls_wait_s": "gateway/test_access_failures.py::test_waits_for_one_to_end_but_not_for_ever",
    "shared_rates_deadline_s": "rate_limits/test_redis_windows.py::test_a_server_that_hangs_causes_one_wait",
    "shared_rates_retry_s": "rate_limits/test_redis_windows.py::test_a_gateway_checks_periodically_whether_its_server_is_back",
    "ownership_deadline_s": "outbound/test_probes_ownership.py::"
    "test_an_origin_that_hangs_is_left_at_the_deadline",
    "ownership_file_bytes_max": "outbound/test_probes_ownership.py::test_the_file_has_our_line",
    "ownership_recheck_s": "registry/test_ownership_recheck.py::test_an_origin_is_checked_after_a_day",
    "ownership_failures_max": "registry/test_ownership_recheck.py::"
    "test_a_proof_stays_while_it_is_found_and_ends_after_its_failures",
    "webhooks_max": "web/test_webhook_routes.py::test_an_eleventh_webhook_is_refused",
    "webhooks_unconfirmed_max": "web/test_webhook_routes.py::test_one_address_has_twenty_unconfirmed_webhooks",
    "webhooks_per_hour": "web/test_webhook_routes.py::test_webhooks_per_wallet_and_hour_are_limited",
    "webhook_deadline_s": "webhooks/test_sender.py::test_a_receiver_that_never_responds_is_left_at_the_deadline",
    "webhook_answer_bytes_max": "webhooks/test_sender.py::"
    "test_a_receiver_without_an_echo_is_tried_five_times_and_disabled",
    "webhook_origin_interval_s": "webhooks/test_sender.py::test_an_origin_gets_one_request_a_second",
    "webhook_in_flight_max": "webhooks/test_sender.py::test_few_requests_run_at_once",
    "webhook_in_flight_per_wallet_max": "webhooks/test_slots.py::test_each_limit_has_its_slots",
    "webhook_in_flight_per_address_max": "webhooks/test_slots.py::test_each_limit_has_its_slots",
    "webhook_in_flight_per_origin_max": "webhooks/test_slots.py::"
    "test_an_origin_that_answers_has_more_attempts_at_once",
    "webhook_poll_s": "app/test_webhooks.py::test_the_set_of_active_endpoints_is_read_again_and_again",
    "webhook_events_max": "contracts/test_webhook_outbox.py::"
    "test_beyond_the_maximum_of_new_events_every_endpoint_stops_until_they_are_gone",
    "webhook_pending_max": "contracts/test_webhook_outbox.py::"
    "test_beyond_the_maximum_an_endpoint_stops_and_its_gap_is_known",
    "nonce_ttl_s": "identity/test_sessions.py::test_a_message_is_good_for_five_minutes",
    "signed_request_ttl_s": "identity/test_http_signatures.py::test_the_window_is_300_seconds_at_most",
    "session_ttl_s": "identity/test_sessions.py::test_a_session_ends_after_a_day",
    "page_session_ttl_s": "identity/test_page_sessions.py::test_a_session_ends_by_disuse_and_by_age",
    "page_session_idle_s": "identity/test_page_sessions.py::test_a_session_ends_by_disuse_and_by_age",
    "payment_age_s": "payments/test_transaction_rules.py::test_a_payment_counts_for_a_day_of_readiness",
    "price_memory_s": "payments/test_pricing.py::test_a_call_costs_the_lowest_paid_price_of_ten_minutes",
    "payee_memory_s": "payments/test_pricing.py::test_a_payee_counts_from_a_day_before_the_block",
    "claim_batch_max": "contracts/test_ledger_batch.py::test_a_batch_carries_so_many_at_most",
    "moved_calls_max": "contracts/test_gone_payments.py::"
    "test_a_reorganisation_and_a_return_move_all_calls_in_small_transactions",
    "close_patience_s": "contracts/test_ledger_batch_dropped_responses.py::test_the_retries_of_a_close_end",
    "cut_wait_s": "contracts/test_cut_responses.py::"
    "test_while_the_database_is_away_the_break_waits_for_its_limit_and_the_cut_for_the_database",
    "unknown_hold_s": "contracts/test_ledger_store.py::test_an_unknown_call_gives_its_price_back_after_its_time",
    "attempts_max": "contracts/test_ledger_store.py::test_a_call_is_attempted_three_times_at_most",
    "answer_bytes_max": "contracts/test_idempotency_responses.py::test_an_answer_that_is_too_large_alone_is_not_kept",
    "answers_per_payer_bytes_max": "contracts/test_idempotency_responses.py::test_the_oldest_response_of_a_payer_is_deleted_first",
    "answers_per_provider_bytes_max": "contracts/test_response_pool.py::test_many_payers_of_a_few_apis_delete_the_responses_of_these_apis",
    "answers_bytes_max": "contracts/test_idempotency_responses.py::test_the_oldest_response_of_all_is_deleted_at_the_total_maximum",
    "answer_ttl_s": "contracts/test_idempotency_responses.py::test_an_answer_is_kept_for_a_day",
    "creation_answers_bytes_max": "contracts/test_creations.py::test_the_oldest_answers_go_and_their_keys_stay",
    "answer_reading_s": "gateway/test_idempotency_keys.py::test_a_response_that_is_read_for_too_long_is_reported_as_not_stored",
    "answer_collect_s": "gateway/test_proxy_response.py::test_an_answer_that_trickles_is_not_waited_for",
    "drain_deadline_s": "web/test_server.py::test_a_stop_waits_no_longer_than_its_deadline",
    "owner_lease_s": "contracts/test_recovery.py::test_a_gateway_that_renews_is_alive_with_any_clock_of_its_own",
    "owner_renew_s": "live/test_kill.py::test_a_running_gateway_ends_the_calls_of_a_killed_one",
    "quality_flush_s": "live/test_quality.py::test_a_stop_loses_nothing_that_was_counted",
    "recovery_interval_s": "live/test_kill.py::test_a_running_gateway_ends_the_calls_of_a_killed_one",
    "leader_poll_s": "contracts/test_leadership.py::test_another_takes_over_when_the_leader_is_gone",
    "leader_lease_s": "contracts/test_leadership.py::test_a_leader_that_stalls_loses_its_lead_to_another",
    "figures_interval_s": "app/test_lifecycle.py::test_the_figures_of_the_fleet_are_read_again",
    "sales_interval_s": "app/test_lifecycle.py::test_hours_of_sales_are_closed_again_and_again",
    "sum_rows_max": "contracts/test_closed_periods.py::test_beyond_the_limit_of_rows_whole_periods_are_missing",
    "live_calls_max": "contracts/test_closed_periods.py::"
    "test_beyond_the_limit_of_calls_the_older_periods_are_lower_bounds",
    "spending_calls_max": "web/test_my_sums_routes.py::test_sums_of_too_many_calls_are_lower_bounds",
    "chain_check_interval_s": "chain/test_nodes_health.py::"
    "test_between_full_checks_only_networks_that_are_away_are_checked",
    "chain_away_s": "chain/test_nodes_health.py::test_a_network_counts_as_lost_once_it_was_away_for_so_long",
}

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
    "answer_bytes_max": 256 * KIB,
    "answers_per_payer_bytes_max": 64 * MIB,
    "answers_bytes_max": 1024 * MIB,
    "answer_ttl_s": 24 * 3600,
    "recovery_interval_s": 10,
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
    texts = {
        file: (TESTS / file).read_text() for file in {test.partition("::")[0] for test in HELD_BY.values()}
    }
    missing = [
        (entry.name, HELD_BY[entry.name])
        for entry in fields(Limits)
        for file, _, test in [HELD_BY[entry.name].partition("::")]
        if not re.search(rf"def {test}\(", texts[file])
    ]
    assert missing == []


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
    async with open_gateway(header_deadline_s=0.3) as gateway, serve(gateway) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await reader.read() == b""
        writer.close()


async def test_no_more_connections_are_served_than_allowed() -> None:
    async with open_gateway(connections_max=1) as gateway, serve(gateway) as port, asyncio.timeout(20):
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
