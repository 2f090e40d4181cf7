"""Every maximum and deadline of the gateway, with its default and its reason. Units stand last in each name.

An operator sets those of `Limits` under `[limits]` in the settings file, or as `TOLLWAY_LIMIT_` and the name in capitals. Those of `FixedLimits` are constants of
the code: no hardware, money or policy of an operator asks for another value. Objects take both as one value by constructor.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLimits:
    # Requests.
    bound_body_bytes_max: int = 1 * MIB  # read ahead where a bound signature gives no bodyHash
    held_bodies_bytes_max: int = 32 * MIB  # all bodies read whole; the first 64 KiB of each are not counted
    body_rate_window_s: float = 10.0  # a body that came faster than the least rate may pause for so long
    control_body_deadline_s: float = 60.0  # a body of the control plane, from its first byte to its last
    write_stall_s: float = 30.0  # a client that takes no byte for this long is cut off

    # Free calls.
    free_wallets_per_day: int = (
        3  # new wallets of a client address that begin them at a listing, in a UTC day
    )

    # Caches of requests, in bytes of their heads. An entry of 2 KiB takes about 6 KiB of memory.
    remembered_bytes_max: int = 2 * KIB  # of one entry; a longer head is parsed and decided each time
    decisions_bytes_max: int = 4 * MIB
    proofs_bytes_max: int = 4 * MIB

    # Exports. One row of a file has less than a KiB.
    exports_at_once_max: int = 8
    exports_per_wallet_max: int = 2
    export_rate_bytes_min: int = 16 * KIB  # a second, on average; a slower reader is cut off
    export_grace_s: float = 30.0
    export_deadline_s: float = 900.0  # one page of a file, however fast its reader is
    export_wait_s: float = 15.0  # for a slot; meanwhile the second file of another wallet ends

    # Metrics.
    figures_interval_s: float = 15.0  # between two reads of the figures of the fleet, by the leader

    # Viewers.
    viewers_max: int = 50  # that one wallet names
    viewer_days_max: int = 400  # a year and a month; without a renewal a permission ends
    viewed_wallets_max: int = 1_000  # in the list of a viewer; `wallet` reads the others too
    menu_wallets_max: int = 15  # in a menu or a page of a viewer
    permissions_per_hour: int = 20  # that one wallet gives or renews. Per address: five times as many

    # Budgets.
    pending_budgets_max: int = 100  # policies of one owner that no agent has accepted
    pending_budget_days: int = 7  # then such a policy is deleted
    owned_budgets_max: int = 1_000  # in the list of an owner
    policies_per_hour: int = 60  # that one wallet stores, accepts or revokes. Per address: five times as many

    # Upstreams.
    connection_age_s: float = 300.0  # the address of a pooled connection is checked again this often
    dial_failures_max: int = 5  # in a row; then the origin is down until a probe reaches it
    dial_pause_s: float = 10.0  # from a failed dial to the next probe, while the origin is requested
    unsafe_reuse_idle_s: float = 1.0  # POST and PATCH reuse a pooled connection that was idle for less

    # Chain nodes.
    rpc_response_bytes_max: int = 8 * MIB
    watch_interval_s: float = 10.0  # between two checks of the payments that are not final
    watch_batch_max: int = 200  # payments read from the ledger at once, where their block has changed
    watch_in_flight_max: int = 8  # requests for receipts; the rest of `rpc_in_flight_max` serves callers
    disputed_looks_max: int = 6  # checks in a row at which nodes disagree; then the payment is held
    chain_check_interval_s: float = 60.0  # between two checks of the chain and the newest block of every node
    chain_away_s: float = 30.0  # a leader without nodes for so long gives way; a restart takes less

    # Settling authorisations.
    settlement_gas_max: int = 400_000  # of one transfer, with a contract wallet's own check
    deployment_gas_max: int = 800_000  # of one transfer whose transaction also deploys the paying wallet
    gas_refresh_s: float = 10.0  # between two reads of gas prices and of the balances of gas keys
    sweep_interval_s: float = 2.0  # between two rounds of settlement recovery
    channel_claim_interval_s: float = 60.0  # between two rounds of claims of channels
    sweep_batch_max: int = 100
    sweep_in_flight_max: int = 8
    fee_bump_after_s: float = 30.0  # a transaction that waits longer is replaced with higher fees
    settlement_attempts_max: int = 8  # transactions signed for one call, replacements included
    facilitator_deadline_s: float = 10.0
    facilitator_response_bytes_max: int = 64 * KIB

    # Rates.
    creation_keys_max: int = 1_000  # idempotency keys of created listings, per wallet
    ownership_checks_per_hour: int = 60  # per wallet. Per address: five times as many
    trials_per_hour: int = 60  # trial calls of a provider, per wallet. Per address: five times as many
    failed_calls_window_s: int = 600
    failed_calls_wait_s: float = 10.0  # for a call in flight to end, where too many are beside failed ones
    shared_rates_deadline_s: float = 0.1  # one response of the rate server; then each gateway counts alone
    shared_rates_retry_s: float = 1.0  # between two checks of a rate server that is away

    # Receipts.
    receipt_wait_s: int = (
        600  # for the end of a response; then a receipt names the moment of the charge instead
    )
    joined_transfers_max: int = 100  # listed beside a receipt

    # Ownership of endpoints, and quality of listings.
    ownership_deadline_s: float = 10.0  # one check of an origin: its file, its document and its name
    ownership_file_bytes_max: int = 16 * KIB
    ownership_recheck_s: float = 86_400.0
    ownership_failures_max: int = 7  # checks in a row without a proof; then the ownership ends
    quality_flush_s: float = 2.0  # between two writes of the counts; a crash loses so much

    # Pages.
    page_session_ttl_s: int = 43_200
    page_session_idle_s: int = 7_200  # a page session that opened no page for so long has ended

    # Webhooks.
    webhooks_max: int = 10  # endpoints of a wallet
    webhooks_unconfirmed_max: int = 20  # of one client address
    webhooks_per_hour: int = (
        60  # endpoints registered and events sent again, per wallet: each calls its server
    )
    webhook_deadline_s: float = 15.0  # one attempt, to the head of its response
    webhook_response_bytes_max: int = 4 * KIB  # of a response to a challenge; other bodies are not read
    webhook_origin_interval_s: float = 1.0  # between two requests to an origin
    webhook_in_flight_max: int = 64  # attempts at once, of all endpoints; a quarter of them are challenges
    webhook_in_flight_per_wallet_max: int = 4
    webhook_in_flight_per_address_max: int = 8  # of endpoints that one client address registered
    webhook_in_flight_per_origin_max: int = 4  # to an origin that answers
    webhook_poll_s: float = 0.5  # between two looks at the set of active endpoints, and at the outbox
    webhook_events_max: int = 100_000  # new events not copied to endpoints yet; then every webhook stops
    webhook_pending_max: int = 10_000  # events that wait for one endpoint; then it stops

    # The ledger, and the responses that it stores.
    claim_batch_max: int = 4_096
    moved_calls_max: int = 500  # calls that one transaction moves after a reorganisation
    close_patience_s: float = 10.0  # a response waits so long for its close to commit; then it is dropped
    cut_wait_s: float = (
        1.0  # a response that its upstream cut stays open so long for the write of the cut; then it breaks
    )
    unknown_hold_s: int = 86_400  # an unknown call releases its price after this
    attempts_max: int = 3
    sales_interval_s: float = 60.0  # between two rounds that close hours and write late ones again
    sum_rows_max: int = 5_000  # rows of one answer of sums: about 2 MB of JSON
    live_calls_max: int = 20_000  # calls of hours that are not closed, read by one question about sales
    spending_calls_max: int = 50_000  # calls read by one question about spending
    answers_per_provider_bytes_max: int = 256 * MIB  # stored responses of one provider's APIs
    creation_responses_bytes_max: int = 256 * MIB
    response_reading_s: float = 60.0  # under an idempotency key; then a repeat gets "not stored"
    response_collect_s: float = 30.0  # reading a response to its end while its caller waits for "unknown"

    # Upstreams.
    upstream_headers_max: int = 500

    # Responses of metered calls.
    metered_body_bytes_max: int = 1 * MIB  # a larger JSON body reports no usage
    metered_bodies_bytes_max: int = 64 * MIB  # all copies; without memory a call is refused before its claim
    metered_event_bytes_max: int = 256 * KIB  # of a stream; a larger event reports no usage
    metered_parse_bytes_max: int = (
        64 * KIB
    )  # JSON that is parsed between two other calls; more is parsed in a thread
    metered_rest_bytes_max: int = 8 * MIB  # read after the caller has left, for the usage at the end

    # Several gateways.
    owner_lease_s: float = 30.0  # a gateway that has not renewed for this long counts as dead
    owner_renew_s: float = 3.0  # at most half of the lease, or a living gateway counts as dead
    recovery_interval_s: float = 10.0
    leader_poll_s: float = 1.0  # less than the leader's lease, or no gateway leads for long
    leader_lease_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(FixedLimits):
    # Inbound requests. granian's parser refuses beyond `headers_bytes_max` and 100 headers with a bare 431.
    request_line_bytes_max: int = 8 * KIB
    header_bytes_max: int = 8 * KIB
    payment_header_bytes_max: int = 16 * KIB
    headers_bytes_max: int = 32 * KIB
    headers_max: int = 100
    refused_body_bytes_max: int = 256 * KIB  # dropped after an early refusal; then the connection closes
    header_deadline_s: float = 10.0  # also the keep-alive idle time: one timer in granian
    body_rate_bytes_min: int = 1 * KIB  # a second, once `body_rate_grace_s` has passed
    body_rate_grace_s: float = 5.0
    upload_bytes_max: int = 32 * MIB  # request body on its way to an upstream
    control_body_bytes_max: int = 2 * MIB  # request body of the control plane
    buffer_bytes: int = 64 * KIB  # per connection, each way

    # Concurrency.
    connections_max: int = 10_000
    memory_bytes_max: int = 0  # 0: not configured; at 95 % of it every request is refused
    in_flight_max: int = 5_000  # requests; at 95 % of it every further request is refused
    in_flight_per_address_max: int = 200
    in_flight_per_origin_max: int = 256

    # Upstreams.
    dns_deadline_s: float = 5.0
    connect_deadline_s: float = 10.0
    chunk_idle_s: float = 30.0
    upstream_head_bytes_max: int = 64 * KIB
    probe_interval_s: float = 0.0  # 0: not configured; else idle upstreams in use are probed this often

    # Chain nodes.
    rpc_deadline_s: float = 2.0
    rpc_in_flight_max: int = 64
    lookups_per_minute: int = 30  # per client address and per signer; only requests sent to a node count
    erc1271_gas: int = 200_000
    erc1271_deadline_s: float = 2.0
    erc1271_bytes_max: int = 4 * KIB

    # Settling authorisations.
    settle_wait_s: float = 20.0  # for the receipt, while the caller waits; then the outcome is unknown
    settle_wait_s_max: float = 90.0  # for the blocks on top of it too; what needs longer is not offered

    # Rates. A client address has five times the rate of a wallet, and over all listings five times that of one.
    free_calls_per_minute: int = 60  # per client address and listing
    registrations_per_hour: int = 100  # per wallet; only created listings count
    edits_per_hour: int = 600  # of listings, per wallet
    signed_requests_per_minute: int = 300  # to the control plane, per wallet
    authenticated_requests_per_minute: int = 300  # to the control plane and the pages, per wallet
    nonces_per_minute: int = 60  # sign-in nonces per client address
    failed_calls_per_window: int = 20  # per wallet and per address, on one listing

    # Proofs.
    nonce_ttl_s: int = 300
    signed_request_ttl_s: int = 300
    session_ttl_s: int = 86_400
    payment_age_s: int = 86_400  # first presentation after the payment's block
    price_memory_s: int = 600
    payee_memory_s: int = 86_400

    # Stored responses of upstreams, for repeats of the same request.
    response_bytes_max: int = 256 * KIB
    responses_per_payer_bytes_max: int = 64 * MIB
    responses_bytes_max: int = 1024 * MIB
    response_ttl_s: int = 86_400

    drain_deadline_s: float = 30.0


DEFAULT_LIMITS = Limits()
