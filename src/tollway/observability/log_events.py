"""The catalogue of log events: level, fields, meaning, and what the operator does. `docs/log-events.md` is written from it, and the metric of log events has these
values of its label. A test compares it with the calls of the loggers in the sources.

Every line also has `timestamp`, `level`, `event`, and `request_id` where a request caused it.
"""

from dataclasses import dataclass

NOTHING = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One event. `levels`: each level at which it is written. `fields`: those that a line can have. `action`: the operator's next step."""

    event: str
    levels: tuple[str, ...]
    fields: tuple[str, ...]
    meaning: str
    action: str


def _row(event: str, levels: str, fields: str, meaning: str, action: str = NOTHING) -> LogEvent:
    return LogEvent(
        event=event,
        levels=tuple(levels.split()),
        fields=tuple(fields.split()),
        meaning=meaning,
        action=action,
    )


_PROCESS = (
    _row("listening", "info", "address public_url", "The gateway accepts connections."),
    _row("draining", "info", "notice_s", "The gateway stops: `/readyz?for=traffic` fails, and the listener closes after `notice_s`."),
    _row("closed", "info", "", "The gateway has stopped; the ledger's writes are complete."),
    _row("log_level_changed", "warning", "now for_s", "SIGUSR1 changed the level of the log.", "send SIGUSR1 again to end it earlier"),
    _row("background_task_failed", "warning", "task failures error at", "A run of a background task failed: the first, second, fourth, eighth in a row.", "read `error` and `at`; act when `failures` grows"),
    _row("background_task_recovered", "info", "task failures", "A background task runs well again, after that many failures."),
    _row("background_task_ended", "error", "task hint error at", "A background task ended by itself; the gateway is not ready.", "restart this gateway and report the line"),
    _row("service_manager_away", "warning", "state error", "The service manager does not take a notification.", "check `NOTIFY_SOCKET` of the unit"),
    _row("control_worker_ready", "info", "pid", "A control worker serves at `control_listen`."),
    _row("control_worker_ended", "warning", "pid exit_code retry_s", "A control worker ended by itself; another one starts after `retry_s`.", "read its lines above"),
    _row("shared_rates_up", "info", "", "The rate server answers: all gateways count together."),
    _row("shared_rates_away", "warning", "cause retry_s", "The rate server does not answer: this gateway counts alone.", "check the server of `rate_limit_url`"),
)  # fmt: skip

_REQUESTS = (
    _row("request", "info", "method path status duration_ms client", "A request of the control plane ended. A gateway call has `call_ended` instead."),
    _row("call_ended", "info warning debug", "call_id listing_id rail network outcome status upstream_status price currency ms attempts payer code", "A paid call ended. `ms` has its phases; `outcome` is `charged`, `released`, `held` or `refused`.", "for `held`: `tollway history` of the call; else nothing"),
    _row("call_failed", "error", "request_id api_id exc_info", "A defect ended a gateway call.", "report the traceback; read the call's record before another payment"),
    _row("internal_error", "error", "path exc_info", "A route of the control plane raised an error that has no answer of its own.", "report the traceback"),
    _row("unhandled_error", "error", "path is_started exc_info", "A defect ended a request of the control plane.", "report the traceback"),
    _row("export_broken", "warning", "errors", "The database failed while a file was sent; the file ends early, and its client sees that.", "see `storage_away`"),
    _row("audit_entry", "info", "entry_id action actor at_ms reason target", "An entry of the operators' audit log, from any gateway or command: the row of `tollway admin log`."),
    _row("span_export_failed", "warning", "error", "The collector of traces does not take spans; they are dropped.", "check the collector of `OTEL_EXPORTER_OTLP_ENDPOINT`"),
    _row("span_export_back", "info", "", "The collector of traces takes spans again."),
    _row("response_not_kept", "warning", "call_id", "A response could not be stored for a repeat: the call stays charged, a repeat gets a 409.", "see `storage_away`"),
    _row("upstream_down", "info", "origin", "A provider's server does not answer; its calls are refused until a probe reaches it."),
    _row("upstream_back", "info", "origin", "A probe reached that server; its calls are forwarded again."),
    _row("probe_failed", "error", "origin error at", "A defect ended a probe.", "report the line"),
    _row("webhook_attempt_failed", "warning", "origin error at", "The end of an attempt of a webhook could not be written; the attempt is made again.", "see `storage_away`"),
    _row("webhook_event_unreadable", "error", "event_id error at", "A defect: the call, payment or listing of an event cannot be read. Its webhooks get a gap in its place.", "report the line"),
    _row("webhook_dead", "info", "endpoint message", "The last attempt of a webhook's message failed; its owner can send its events again."),
    _row("ownership_ended", "info", "listing origin", "The proof of ownership was missing too often; the listing counts as unproved."),
    _row("ownership_look_failed", "error", "origin error at", "A defect ended the check of a proof.", "report the line"),
)  # fmt: skip

_STORAGE = (
    _row("storage_away", "error", "use cause detail database", "The database cannot be read or written. Calls that need it are refused; nothing is lost.", "runbook StorageAway; `cause` names the reason"),
    _row("storage_back", "info", "use cause away_s database", "The database answers again."),
    _row("ledger_batch_failed", "warning", "entries error", "A batch of the ledger failed; its entries are tried alone.", "see `storage_away`"),
    _row("ledger_entry_failed", "error", "call_id error", "One entry of the ledger cannot be written for now; the end of a call is tried again.", "act when it repeats: disk, locks, connections"),
    _row("ledger_entry_refused", "error", "call_id error", "The database refuses one entry; its call is not charged.", "report the line"),
    _row("ledger_entry_too_late", "warning", "call_id", "A record of the end of a body came after the ledger had closed; it is lost, the price is not."),
    _row("calls_recovered", "info", "count", "Calls of a dead gateway were moved out of `forwarding`."),
    _row("owner_lease_lapsed", "warning", "silent_s", "This gateway did not renew its lease in time; another gateway may have recovered its calls.", "runbook LeaseLapsed"),
    _row("leadership_gained", "info", "duty", "This gateway does that duty for all."),
    _row("leadership_ended", "info", "duty", "This gateway no longer does that duty."),
    _row("leadership_lost", "warning error", "duty detail", "The session that holds the lock of a duty is lost. As an error: a pooler shares sessions.", "as an error: take the pooler out of `database_url`"),
    _row("leadership_given_way", "info", "duty networks_away", "The duty went to a gateway that reaches more networks."),
    _row("leadership_handicap", "info", "duty networks_away", "The leader reaches fewer or more networks than before."),
    _row("database_went_back", "error", "reason hint", "The database is older than this gateway's last writes: every balance is held.", "runbook DatabaseWentBack"),
    _row("database_restored", "error", "database hint", "The SQLite file is an older copy: every balance is held.", "runbook DatabaseWentBack"),
    _row("schema_ahead", "warning", "hint", "The tables are newer than this gateway; it can serve.", "replace this gateway"),
    _row("schema_serviceable", "warning", "hint", "The tables are one release old; what they cannot hold is refused.", "`tollway gateway migrate`"),
    _row("schema_not_served", "error", "state hint", "The tables do not fit this gateway; it is not ready.", "run a gateway of the version of the tables"),
    _row("stored_response_lost", "error", "call_id", "No configured secret key opens a stored response, so a repeat of its call gets a 409.", "`tollway gateway secrets`, and the missing key"),
    _row("listing_secret_lost", "error", "listing advice", "No configured secret key opens the secret of a listing; its calls fail.", "`tollway gateway secrets`, and the missing key"),
)  # fmt: skip

_CHAINS = (
    _row("rpc_batch_refused", "warning", "node reason batch_max", "A node refused a JSON-RPC batch; it gets at most so many calls in one request for ten minutes.", "use a node that accepts batches of 100"),
    _row("rpc_node_failed", "warning", "node reason", "A node did not answer as it must; other nodes come first for a while.", "act when it repeats: runbook NodeBad"),
    _row("rpc_node_recovered", "info", "node", "That node answers again."),
    _row("chain_not_ready", "warning", "chain_id detail", "Too few nodes of a network answer; `/readyz` fails.", "runbook ChainAway"),
    _row("chain_ready", "info", "chain_id", "The network can be read again."),
    _row("chain_unavailable", "warning", "chain_id detail", "The watcher cannot read a network; written once for each outage.", "runbook ChainAway"),
    _row("blocks_disputed", "warning", "chain_id lowest count", "Nodes report different blocks at one height.", "runbook NodeDisagrees"),
    _row("payment_disputed", "warning", "transaction", "Nodes report different facts about a payment.", "runbook NodeDisagrees"),
    _row("payments_held", "warning", "chain_id count transaction", "Payments that nodes dispute cannot be spent.", "runbook NodeDisagrees"),
    _row("payments_freed", "info", "chain_id count", "The nodes agree; these payments can be spent."),
    _row("payment_moves_continued", "warning", "chain_id debt_units", "A gateway ended while it moved the calls of a payment that left its chain; this one moved the rest.", ""),
    _row("payment_gone", "warning", "transaction reason debt_units", "A payment left its chain. Calls that it paid are a debt of the payer.", "compare the confirmations of that network with the reorganisation"),
    _row("payment_back", "info", "transaction block_number", "A payment that had left its chain was mined again."),
    _row("payment_moved", "info", "before transaction", "Another transaction carried out the authorisation of a call."),
    _row("payment_worth_more", "info", "transaction units", "In its new block a payment moved more."),
    _row("payment_check_failed", "error", "transaction error at", "A defect ended the check of a payment.", "report the line"),
    _row("authorization_unseen", "warning", "call_id detail", "Nodes did not return the logs that show who used an authorisation; it is tried again."),
    _row("gas_unknown", "warning", "chain_id detail", "Fees or gas keys of a network cannot be read.", "runbook ChainAway"),
    _row("wallet_gas_unknown", "warning", "", "The gas budget of wallets with code cannot be read; they are not served meanwhile."),
    _row("gas_key_low", "warning", "chain_id address balance_wei", "The balance of a gas key is below its floor.", "runbook GasKeyLow"),
    _row("token_takes_no_authorizations", "error", "chain_id token fault", "A token refuses the authorisations that the settings describe.", "correct `eip712` of the asset"),
    _row("rail_withdrawn", "warning", "chain_id reason subject", "Signed payments are not offered there now.", "runbook RailWithdrawn"),
    _row("rail_is_back", "info", "chain_id reason subject", "Signed payments are offered there again."),
)  # fmt: skip

_SETTLEMENT = (
    _row("settlement_ended", "info", "call_id network outcome transaction reason", "A settlement ended while its caller waited."),
    _row("settlement_adrift", "info", "call_id", "A settlement is undecided and its caller has its 503; recovery finishes it."),
    _row("settlement_swept", "info", "call_id state transaction", "Recovery finished an undecided settlement."),
    _row("settlement_send_refused", "warning", "call_id transaction fault reason", "A node refused a signed transaction.", "for `insufficient_funds`: runbook GasKeysLow"),
    _row("settlement_send_unclear", "warning", "call_id detail", "It is not known whether a node has the transaction; it is sent again."),
    _row("settlement_resend_failed", "error", "call_id exc_info", "A defect ended a repeated send; recovery goes on.", "report the traceback"),
    _row("settlement_fee_bumped", "info", "call_id transaction", "A transaction that was not mined was replaced by one with higher fees."),
    _row("sweep_postponed", "warning", "call_id detail", "Recovery could not decide a settlement; it tries again.", "runbook SettlementsUndecided when it repeats"),
    _row("sweep_without_network", "warning", "call_id chain_id", "A settlement waits on a network that the settings no longer have.", "configure the network until it is decided"),
    _row("sweep_failed", "error", "call_id error at", "A defect ended the recovery of a call.", "report the line"),
    _row("lane_unseen", "warning", "chain_id address detail", "The transactions of a gas key cannot be read.", "runbook ChainAway"),
    _row("lane_failed", "error", "chain_id address error at", "A defect ended the check of a gas key's transactions.", "report the line"),
    _row("lane_went_back", "warning", "chain_id address nonce", "The chain counts fewer transactions of a gas key than the ledger; the ledger follows."),
    _row("lane_gap_too_wide", "error", "chain_id address nonce waiting", "Too many nonces of a gas key were never signed to be filled.", "runbook NonceQueueGrows"),
    _row("lane_nonce_filled", "warning", "chain_id address nonce", "A nonce that was never signed was filled, so that later transactions are mined."),
    _row("lane_waits_at_ceiling", "warning", "chain_id address nonce transaction", "A transaction waits because higher fees are above `gas_price_max_gwei`.", "runbook NonceQueueGrows"),
    _row("facilitator_unclear", "warning", "detail", "The facilitator did not answer clearly; the chain decides.", "ask the facilitator when it repeats"),
    _row("facilitator_says_failed", "warning", "reason", "The facilitator reports a failure; the chain decides.", "ask the facilitator when it repeats"),
)  # fmt: skip

_CHANNELS = (
    _row("channels_available", "info", "network", "The contracts of channels are on this network."),
    _row("channels_unseen", "warning", "network detail", "The channels of a network could not be read.", "runbook ChannelsUnwatched"),
    _row("channel_state_changed", "warning", "channel network state unclaimed", "A withdrawal of a channel began or ended, or the channel is drained.", "for `withdrawing`: runbook ChannelWithdrawal"),
    _row("channel_claims_unseen", "warning", "network detail", "A round of claims could not reach its chain; the next one tries again.", "runbook ChainAway"),
    _row("channel_claim_sent", "info", "claim network channels transaction", "A transaction that claims channels was stored and sent."),
    _row("channel_claim_refused", "warning", "channel units", "The claim of a channel fails in simulation; the channel is left out and read again.", "runbook ChannelClaimsFail when it repeats"),
    _row("channel_settle_refused", "warning", "receiver token", "The token refuses to pay a receiver, whose channels take no call until it does.", "runbook ChannelClaimsFail"),
    _row("channel_claim_ended", "info", "claim is_mined", "A claim is mined, or can never be."),
    _row("channel_unused", "info", "channel network is_unused", "No listing can use a channel any more, or one can again. A day later it is refunded."),
    _row("channel_refund_refused", "warning", "channel network reason", "The gateway could not refund a channel that no listing can use; it tries again.", "read its channel on the chain when it repeats"),
    _row("channels_abandoned", "warning", "authorizer unclaimed", "`--abandon-channels` gave up what channels of a missing key owe."),
    _row("channel_refunded", "info", "channel units transaction", "A payer got back what a channel held beyond its calls."),
)  # fmt: skip

GROUPS = (
    ("The process", _PROCESS),
    ("Requests and calls", _REQUESTS),
    ("Database and leadership", _STORAGE),
    ("Chains and payments", _CHAINS),
    ("Settlement", _SETTLEMENT),
    ("Channels", _CHANNELS),
)

LOG_EVENTS: tuple[LogEvent, ...] = tuple(row for _, rows in GROUPS for row in rows)
