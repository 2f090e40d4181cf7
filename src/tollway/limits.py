"""Every maximum and deadline of the gateway, with its default and its reason. Units stand last in each name.

The settings file overrides them under `[limits]`, by these names.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    # Inbound requests. granian's parser refuses beyond `head_bytes_max` and 100 headers with a bare 431.
    request_line_bytes_max: int = 8 * KIB
    header_bytes_max: int = 8 * KIB
    payment_header_bytes_max: int = 16 * KIB
    headers_bytes_max: int = 32 * KIB
    headers_max: int = 100
    refused_body_bytes_max: int = (
        256 * KIB
    )  # read and dropped after an early refusal, then the connection closes
    header_deadline_s: float = 10.0  # also the keep-alive idle time: one timer in granian
    body_rate_bytes_min: int = 1 * KIB  # a second, once `body_rate_grace_s` has passed
    body_rate_grace_s: float = 5.0
    upload_bytes_max: int = 32 * MIB  # request body on its way to an upstream
    control_body_bytes_max: int = 2 * MIB  # request body of the control plane
    bound_body_bytes_max: int = 1 * MIB  # read ahead when a bound signature gives no bodyHash
    held_bodies_bytes_max: int = 32 * MIB  # all bodies read whole; the first 64 KiB of each are free
    buffer_bytes: int = 64 * KIB  # per connection, each way
    write_stall_s: float = 30.0  # a caller that takes no byte for this long is cut off

    # Concurrency.
    connections_max: int = 10_000
    memory_bytes_max: int = 0  # 0: not configured; at 95 % of it nobody more is let in
    in_flight_max: int = 5_000  # requests; at 95 % of it nobody more is let in
    in_flight_per_address_max: int = 200
    catalog_reads_at_once: int = (
        8  # lists and documents of listings that are worked on; others wait their turn
    )
    in_flight_per_origin_max: int = 256

    # Upstreams.
    dns_deadline_s: float = 5.0
    connect_deadline_s: float = 10.0
    chunk_idle_s: float = 30.0
    upstream_head_bytes_max: int = 64 * KIB
    connection_age_s: float = 300.0  # a pooled connection is judged again at least this often
    dial_failures_max: int = 5  # in a row; then the origin is down until a probe reaches it
    dial_pause_s: float = 10.0  # from a dial that failed to the next probe, where somebody asks for it
    probe_interval_s: float = 0.0  # not configured; else upstreams in use are probed when nobody calls them
    unsafe_reuse_idle_s: float = 1.0  # POST and PATCH take a pooled connection only when it was idle for less

    # Chain nodes.
    rpc_deadline_s: float = 2.0
    rpc_in_flight_max: int = 64
    lookups_per_minute: int = 30  # per client address and per signer; only an RPC really asked counts
    erc1271_gas: int = 200_000
    erc6492_gas: int = 3_000_000  # makes the wallet inside the call: a constructor, not one question
    erc1271_deadline_s: float = 2.0
    erc1271_bytes_max: int = 4 * KIB
    rpc_answer_bytes_max: int = 8 * MIB
    watch_interval_s: float = 10.0  # between two looks at the payments that are not final yet
    watch_batch_max: int = (
        200  # payments that are read from the ledger at once, where their block has changed
    )
    watch_in_flight_max: int = 8  # requests for receipts; leaves most of `rpc_in_flight_max` to callers
    disputed_looks_max: int = 6  # looks in a row at which nodes disagree about a payment; then it is held

    # Settling authorisations.
    settle_wait_s: float = (
        20.0  # for the receipt, while the caller waits; then the outcome is told as unknown
    )
    settle_wait_s_max: float = 90.0  # for the blocks on top of it too; what needs longer is not offered
    authorization_validity_s_max: int = (
        86_400  # from now to `validBefore`: until then a call may stay undecided
    )
    settlement_gas_max: int = 400_000  # of one transfer; a contract wallet's own check is part of it
    gas_refresh_s: float = 10.0  # between two looks at gas prices and the balances of gas keys
    sweep_interval_s: float = 2.0  # between two looks at settlements that nobody waits for; mended within two
    sweep_batch_max: int = 100
    sweep_in_flight_max: int = 8
    fee_bump_after_s: float = 30.0  # a transaction that waits longer is offered more
    settlement_attempts_max: int = 8  # transactions signed for one call, fee bumps included
    facilitator_deadline_s: float = 10.0  # one answer of a facilitator by URL
    facilitator_answer_bytes_max: int = 64 * KIB

    # Rates.
    free_calls_per_minute: int = 60  # per client address and listing. Over all listings: five listings' share
    registrations_per_hour: int = (
        100  # per wallet; only created listings count. Per address: five wallets' share
    )
    creation_keys_max: int = 1_000  # idempotency keys of created listings, per wallet
    edits_per_hour: int = 600  # of listings, per wallet. Per address: five wallets' share
    ownership_checks_per_hour: int = 60  # asked for by a wallet. Per address: five wallets' share
    signed_requests_per_minute: int = (
        300  # to the control plane, per wallet. Per address: five wallets' share
    )
    nonces_per_minute: int = 60  # sign-in nonces per client address
    failed_calls_per_window: int = 20  # per wallet and per address, on one listing. Over all: five times
    failed_calls_window_s: int = 600
    failed_calls_wait_s: float = 10.0  # for a call in flight to end, where too many are beside failed ones
    shared_rates_deadline_s: float = (
        0.1  # one answer of the server that gateways share; then each counts alone
    )
    shared_rates_retry_s: float = 1.0  # between two looks at whether that server is there

    # Ownership of endpoints.
    ownership_deadline_s: float = 10.0  # one look at an origin: its file, its document and its name, together
    ownership_file_bytes_max: int = 16 * KIB
    ownership_recheck_s: float = 86_400.0
    ownership_failures_max: int = 7  # checks in a row that find no proof; then it is no more

    # Quality of listings.
    quality_flush_s: float = (
        2.0  # between two times that what was counted is written down; a crash loses so much
    )

    # Proofs.
    nonce_ttl_s: int = 300
    signed_request_ttl_s: int = 300
    session_ttl_s: int = 86_400
    bound_validity_s: int = 300
    payment_age_s: int = 86_400  # first presentation after the payment's block
    price_memory_s: int = 600
    payee_memory_s: int = 86_400
    payee_slack_s: int = 60  # clocks of chain and gateway may differ by this much

    # The ledger.
    claim_batch_max: int = 4_096
    close_patience_s: float = 10.0  # an answer waits so long for its close to be written; then it is dropped
    unknown_hold_s: int = 86_400  # an unknown call gives its price back after this
    attempts_max: int = 3

    # Stored answers of upstreams: what a repeat of the same request gets.
    answer_bytes_max: int = 256 * KIB
    answers_per_payer_bytes_max: int = 64 * MIB
    answers_bytes_max: int = 1024 * MIB
    answer_ttl_s: int = 86_400
    creation_answers_bytes_max: int = 256 * MIB
    creation_lease_s: float = 60.0  # a creation that takes longer has lost its idempotency key to a repeat
    creation_key_ttl_s: int = 86_400
    answer_reading_s: float = (
        60.0  # of one under an idempotency key; then its repeat hears that none is stored
    )
    answer_collect_s: float = 30.0  # reading an answer to its end while its caller waits for "unknown"

    # Life of the process.
    drain_deadline_s: float = 30.0
    owner_lease_s: float = 30.0  # a gateway that has not renewed for this long is dead to the others
    owner_renew_s: float = 3.0
    recovery_interval_s: float = 10.0
    leader_poll_s: float = 1.0  # how often one that leads makes sure, and the others look whether nobody does
    leader_lease_s: float = 10.0  # a leader that was silent for this long leads no more
    chain_away_s: float = 30.0  # without nodes for so long, a leader gives way; a restart takes less


DEFAULT_LIMITS = Limits()
