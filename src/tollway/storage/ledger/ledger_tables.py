"""The tables of the ledger: payments, calls, authorisations, settlement transactions; and the parser of payments.

This module defines columns; `ledger/` decides their meaning. `payment.taken_units` is always the sum of the units that calls hold of the
payment: `call.taken_units` for the payment of the call's proof, `call_topup.units` for a further payment. The decision under lock
keeps that equation; the CHECK is a second defence. No index begins with `created_ms`: PostgreSQL would walk it for the history of one
wallet and filter.

The row of a call is narrow, because every call writes it and its indexes. Columns that calls share (listing, method, price, asset) are
in `call_terms`; `call_records.select_records` reads both tables as one record. The transaction of a call is that of its payment; the call has a copy
only beside a nonce, which counts once in a transaction.

A channel has a row of `payment` for its balance (`ledger/channels`): its id stands for the hash of a transaction, and the settlement contract is its payee. A
deposit has one as every settled transfer has, to be watched until it is final. Both are `is_escrow`: never credit, in no list of payments, not held after a
restore. `call.channel_id` is the key of the channel, from the claim on. `payment_id` of a call with a deposit is NULL until the deposit is concluded.
A row of `channel` changes under the lock of its payment only.

A transfer by which a provider gave prices back has a row of `payment` too, to be watched (`is_refund`): `taken_units` is the sum of its rows in `call_refund`. It is
always equal to its value, so a refund is never credit. A credit that a provider gave is a payment like any other: its hash is no transaction, and it is final.

Of a metered call `price_units` is its maximum, `actual_units` its price once that is known, and `quantities` the text of what was measured
(`registry.metering.write_measured`); empty until then. Both are NULL at a fixed price. A call owes `due_units`: the actual price, else the maximum.

Amounts and times of an authorisation are `uint256`, so they are text. Costs of settlement are in wei, capped to a signed 64-bit
column: nine ether for one transaction is beyond every budget.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Row,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    func,
)

from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.records import Payment, PaymentState
from tollway.storage.engine.database import add_statement, metadata, partial_index

RowId = BigInteger().with_variant(Integer, "sqlite")
"""A row number that SQLite assigns."""

COUNTING_NONCE = "nonce IS NOT NULL AND state <> 'released'"
MOVING = "state IN ('forwarding', 'settling', 'unknown') AND payment_id IS NULL AND rail IN ('x402', 'mpp', 'channel')"
"""A call that an authorisation pays and whose transfer may still happen, now or when the call runs again."""
UNPAID = "payment_id IS NULL AND rail IN ('x402', 'mpp', 'channel')"
"""A call that an authorisation has not paid yet."""
REPEATABLE = "state IN ('forwarding', 'unknown') OR cut = 'cut'"
"""A call that the same request may find running or may run again. The index and the query have the same literal text."""

FAILED = (
    "state = 'released'"
    " OR (state IN ('consumed', 'reorged') AND (upstream_status IS NULL OR upstream_status >= 400))"
)
"""A call that ended without success, for the history. The index and the query have the same literal text."""
UNKNOWN = "state = 'unknown'"
UNMEASURED = "quantities = '' AND state IN ('consumed', 'reorged')"
"""A charged call whose price is not known yet: its response has not ended. The index and the queries have the same literal text."""
UNFINAL = "state = 'unfinal'"
GONE = "state = 'gone'"
HELD = "is_held AND state = 'unfinal'"
"""Payments that may still leave their chain, payments that left it, and payments that cannot be spent until they are final. The indexes and
the queries have the same literal texts."""

BY_TRANSFER = "sqlite_autoindex_payment_1"
"""The name that SQLite gives the index of `uq_payment_transfer`."""

payment_table = Table(
    "payment",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("chain_id", BigInteger, nullable=False),
    Column("tx_hash", LargeBinary(32), nullable=False),
    Column("asset", String(42), nullable=False),
    Column("payer", LargeBinary(20), nullable=False),
    Column("payee", LargeBinary(20), nullable=False),
    Column("value_units", BigInteger, nullable=False),
    Column("taken_units", BigInteger, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("state", String(10), nullable=False),
    Column("block_number", BigInteger, nullable=False),
    Column("block_hash", LargeBinary(32), nullable=False),
    Column("block_time", BigInteger, nullable=False),
    Column("is_plain_ended", Boolean, nullable=False),
    Column("is_held", Boolean, nullable=False),
    Column("is_authorized", Boolean, nullable=False, server_default=false()),
    Column("is_escrow", Boolean, nullable=False, server_default=false()),
    Column("is_refund", Boolean, nullable=False, server_default=false()),
    Column("recorded_ms", BigInteger, nullable=False),
    Column("checked_ms", BigInteger, nullable=False),
    Column("gone_ms", BigInteger),
    CheckConstraint("taken_units >= 0 AND taken_units <= value_units", name="taken_within_value"),
    CheckConstraint("NOT is_refund OR taken_units = value_units", name="refund_taken"),
    UniqueConstraint("tx_hash", "chain_id", "asset", "payer", "payee", name="uq_payment_transfer"),
    Index("ix_payment_account", "payer", "payee", "asset", "chain_id"),
    Index("ix_payment_payer_time", "payer", "block_time", "id"),
    Index("ix_payment_payee_time", "payee", "block_time", "id"),
    *(
        partial_index(f"ix_payment_{name}", predicate, *columns)
        for name, predicate, columns in (
            ("unfinal", UNFINAL, ("chain_id", "block_number", "block_hash", "checked_ms", "id")),
            # Without `taken_units`: every claim changes it, and PostgreSQL would write a new index entry for each claim.
            ("unfinal_payer", UNFINAL, ("payer", "chain_id", "asset")),
            ("gone", GONE, ("chain_id", "gone_ms")),
            ("held", HELD, ("chain_id", "id")),
        )
    ),
)

channel_table = Table(
    "channel",
    metadata,
    Column("key", RowId, primary_key=True, autoincrement=True),
    Column("chain_id", BigInteger, nullable=False),
    Column("channel_id", LargeBinary(32), nullable=False),
    Column("payment_id", BigInteger, ForeignKey("payment.id", name="fk_channel_payment"), nullable=False),
    Column("payer", LargeBinary(20), nullable=False),
    Column("payer_authorizer", LargeBinary(20), nullable=False),
    Column("receiver", LargeBinary(20), nullable=False),
    Column("receiver_authorizer", LargeBinary(20), nullable=False),
    Column("token", LargeBinary(20), nullable=False),
    Column("decimals", Integer, nullable=False),
    Column("withdraw_delay", BigInteger, nullable=False),
    Column("salt", LargeBinary(32), nullable=False),
    Column("state", String(12), nullable=False),
    Column("start_units", BigInteger, nullable=False),
    Column("lacking_units", BigInteger, nullable=False),
    Column("announced", BigInteger, nullable=False),
    Column("published", BigInteger, nullable=False),
    Column("spent_ceiling", BigInteger),
    Column("spent_signature", LargeBinary(65)),
    Column("waiting_ceiling", BigInteger),
    Column("waiting_signature", LargeBinary(65)),
    Column("candidate_ceiling", BigInteger),
    Column("candidate_signature", LargeBinary(65)),
    Column("balance", BigInteger, nullable=False),
    Column("total_claimed", BigInteger, nullable=False),
    Column("refund_nonce", BigInteger, nullable=False),
    Column("withdrawal_amount", BigInteger, nullable=False),
    Column("withdrawal_since_s", BigInteger, nullable=False),
    Column("block_number", BigInteger, nullable=False),
    Column("reserved_call", String(64)),
    Column("opened_ms", BigInteger, nullable=False),
    Column("unused_since_ms", BigInteger),
    Column("settled", BigInteger, nullable=False),
    UniqueConstraint("channel_id", "chain_id", name="uq_channel_id"),
    Index("uq_channel_payment_id", "payment_id", unique=True),
    Index("ix_channel_payer", "payer", "chain_id", "token"),
    Index("ix_channel_receiver", "receiver", "token", "chain_id"),
    partial_index("ix_channel_reserved", "reserved_call IS NOT NULL", "reserved_call"),
    partial_index("ix_channel_unused", "unused_since_ms IS NOT NULL", "chain_id", "unused_since_ms"),
)
"""One row for each channel. `balance` to `block_number`: the chain, at that block (`ledger.channels.ChannelFacts`). `reserved_call`: the open call that has the channel;
without a foreign key, because the call has one. `settled`: the claimed sum that the contract has paid out, as far as is known; only `mark_settled` changes it, without the
lock."""

call_terms_table = Table(
    "call_terms",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("listing_id", String(64), nullable=False),
    Column("listing_name", Text, nullable=False),
    Column("method", String(32), nullable=False),
    Column("price", String(40), nullable=False),
    Column("currency", String(32), nullable=False),
    Column("chain_id", BigInteger),
    Column("asset", String(42)),
    Column("decimals", Integer, nullable=False),
    Column("pay_to", LargeBinary(20)),
    Column("metering", Text),
)
"""The columns that calls share, one row for each set of values. Rows never change. The id is a hash of the content (`storage.ledger.call_terms`)."""

call_table = Table(
    "call",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("terms_id", BigInteger, ForeignKey("call_terms.id", name="fk_call_terms"), nullable=False),
    Column("listing_key", BigInteger, nullable=False),
    Column("provider", LargeBinary(20), nullable=False),
    Column("payer", LargeBinary(20)),
    Column("payment_id", BigInteger, ForeignKey("payment.id", name="fk_call_payment")),
    Column("channel_id", BigInteger, ForeignKey("channel.key", name="fk_call_channel")),
    Column("state", String(10), nullable=False),
    Column("rail", String(10), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("cut", String(10), nullable=False),
    Column("clock_releases", Boolean, nullable=False),
    Column("needs_locks", Boolean, nullable=False, server_default=false()),
    Column("price_units", BigInteger, nullable=False),
    Column("actual_units", BigInteger),
    Column("quantities", Text),
    Column("taken_units", BigInteger, nullable=False),
    Column("http_status", Integer),
    Column("upstream_status", Integer),
    Column("request_bytes", BigInteger),
    Column("response_bytes", BigInteger),
    Column("latency_ms", BigInteger),
    Column("upstream_latency_ms", BigInteger),
    Column("delivery", String(10)),
    Column("created_ms", BigInteger, nullable=False),
    Column("moved_ms", BigInteger, nullable=False),
    Column("completed_ms", BigInteger),
    Column("owner_id", String(64), nullable=False),
    Column("path", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("nonce", LargeBinary(32)),
    Column("nonce_tx_hash", LargeBinary(32)),
    Column("nonce_chain_id", BigInteger),
    Column("idempotency_key", Text),
    Column("error", Text),
    Column("budget_nano", BigInteger),
    Column("budget_ms", BigInteger),
    CheckConstraint("taken_units >= 0 AND taken_units <= price_units", name="taken_within_price"),
    CheckConstraint(
        "actual_units IS NULL OR (actual_units >= 0 AND actual_units <= price_units)",
        name="actual_within_price",
    ),
    CheckConstraint("(actual_units IS NULL) = (coalesce(quantities, '') = '')", name="actual_measured"),
    # Without `id`, which orders only calls of one millisecond: it would double the length of an entry, and each call writes five entries.
    Index("ix_call_payer_time", "payer", "created_ms"),
    Index("ix_call_provider_time", "provider", "created_ms"),
    Index("ix_call_payment_time", "payment_id", "created_ms"),
    Index("ix_call_payer_listing", "payer", "listing_key", "created_ms"),
    Index("ix_call_provider_listing", "provider", "listing_key", "created_ms"),
    # The partial indexes come after the full ones that begin with the same columns: SQLite searches the newest.
    partial_index("uq_call_nonce", COUNTING_NONCE, "nonce", "nonce_tx_hash", "nonce_chain_id", unique=True),
    # The predicates are literal in the indexes and in the queries: else neither planner would use these indexes.
    partial_index("ix_call_repeatable", REPEATABLE, "payment_id", "digest"),
    partial_index("ix_call_forwarding", "state = 'forwarding'", "owner_id"),
    partial_index("ix_call_unknown", "state = 'unknown'", "moved_ms"),
    partial_index("ix_call_settling", "state = 'settling'", "owner_id"),
    partial_index("ix_call_unmeasured", UNMEASURED, "payment_id"),
    partial_index("ix_call_keyed", "idempotency_key IS NOT NULL", "payer", "idempotency_key", "created_ms"),
    partial_index("ix_call_moving", MOVING, "payer"),
    *(
        partial_index(f"ix_call_{owner}_{name}", predicate, *(owner, "created_ms", "listing_key", *extra))
        for owner in ("payer", "provider")
        # The index has the columns of its predicate, because SQLite evaluates the predicate again.
        for name, predicate, extra in (
            ("failed", FAILED, ("state", "upstream_status")),
            ("unknown", UNKNOWN, ()),
        )
    ),
    partial_index("ix_call_reorged", "state = 'reorged'", "payer", "created_ms", "id"),
)

repeat_nonce_table = Table(
    "repeat_nonce",
    metadata,
    Column("nonce", LargeBinary(32), nullable=False),
    Column("tx_hash", LargeBinary(32), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("call_id", String(64), ForeignKey("call.id", name="fk_repeat_nonce_call"), nullable=False),
    PrimaryKeyConstraint("nonce", "tx_hash", "chain_id", name="pk_repeat_nonce"),
)
"""Each counts as `call.nonce` does: while its call is not released. Kept as long as the calls."""

topup_table = Table(
    "call_topup",
    metadata,
    Column("call_id", String(64), ForeignKey("call.id", name="fk_call_topup_call"), primary_key=True),
    Column(
        "payment_id", BigInteger, ForeignKey("payment.id", name="fk_call_topup_payment"), primary_key=True
    ),
    Column("units", BigInteger, nullable=False),
    CheckConstraint("units > 0", name="units_positive"),
    Index("ix_call_topup_payment_id", "payment_id"),
)

call_refund_table = Table(
    "call_refund",
    metadata,
    Column("call_id", String(64), ForeignKey("call.id", name="fk_call_refund_call"), primary_key=True),
    Column(
        "payment_id", BigInteger, ForeignKey("payment.id", name="fk_call_refund_payment"), primary_key=True
    ),
    Column("payer", LargeBinary(20), nullable=False),
    Column("provider", LargeBinary(20), nullable=False),
    Column("called_ms", BigInteger, nullable=False),
    Column("units", BigInteger, nullable=False),
    Column("is_credit", Boolean, nullable=False),
    Column("is_reversed", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    CheckConstraint("units > 0", name="units_positive"),
    Index("ix_call_refund_payment", "payment_id"),
    Index("ix_call_refund_payer", "payer", "called_ms"),
    Index("ix_call_refund_provider", "provider", "called_ms"),
    partial_index("uq_call_refund_in_force", "NOT is_reversed", "call_id", unique=True),
)
"""The refunds of calls; never deleted. `is_reversed`: the transfer left its chain, so the call is not refunded by it. A call has one refund in force. `payer`,
`provider` and `called_ms` (its `created_ms`) are those of the call, for the sums of a wallet."""

account_debt_table = Table(
    "account_debt",
    metadata,
    Column("payer", LargeBinary(20), primary_key=True),
    Column("payee", LargeBinary(20), primary_key=True),
    Column("asset", String(42), primary_key=True),
    Column("chain_id", BigInteger, primary_key=True, autoincrement=False),
    Column("units", BigInteger, nullable=False),
    partial_index("ix_account_debt_owed", "units > 0", "chain_id"),
    sqlite_with_rowid=False,
)
"""The debt of each credit account: the sum of what its `reorged` calls lack of their prices. Each transaction that moves such a call or changes its
parts changes the sum (`storage.ledger.locked_rows`), and the audit compares them. Without a CHECK: PostgreSQL evaluates it on the sum
before the lock of the row, which another transaction may have changed since."""

call_total_table = Table(
    "call_total",
    metadata,
    Column("wallet", LargeBinary(20), primary_key=True),
    Column("role", String(10), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("calls", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The number of calls of a wallet as payer and as provider: the sum over its slots (see `history`). On PostgreSQL a trigger counts the calls of gateways of
every release. On SQLite a gateway counts them in batches, up to the row `mark`."""
add_statement(
    call_total_table,
    "INSERT INTO call_total (wallet, role, slot, calls) VALUES (x'', 'mark', 0, 0)",
    dialect="sqlite",
)

# A wallet has 256 rows, and each session counts in one of them, so that two transactions rarely wait for each other and a sum reads few rows
# for any number of sessions. A deadlock of two transactions is rolled back and tried again.
add_statement(
    call_table,
    """CREATE FUNCTION count_calls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO call_total AS kept (wallet, role, slot, calls)
    SELECT counted.wallet, counted.role, pg_backend_pid() % 256, count(*)
    FROM (
        SELECT provider AS wallet, 'provider' AS role FROM fresh
        UNION ALL SELECT payer, 'payer' FROM fresh WHERE payer IS NOT NULL
    ) AS counted
    GROUP BY counted.wallet, counted.role ORDER BY counted.wallet, counted.role
    ON CONFLICT (wallet, role, slot) DO UPDATE SET calls = kept.calls + excluded.calls;
    RETURN NULL;
END
$$""",
    dialect="postgresql",
)
add_statement(
    call_table,
    """CREATE TRIGGER tr_call_total AFTER INSERT ON call REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION count_calls()""",
    dialect="postgresql",
)

owner_table = Table(
    "gateway_owner",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("started_ms", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    Column("boot_mark", String(64), nullable=False),
)

admission_table = Table(
    "admission",
    metadata,
    Column("tx_hash", LargeBinary(32), primary_key=True),
    Column("admitted_ms", BigInteger, nullable=False),
)

readiness_table = Table(
    "readiness",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("ready_ms", BigInteger, nullable=False),
)
"""One row: the last moment at which a gateway was ready."""

outage_table = Table(
    "outage",
    metadata,
    Column("from_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("to_ms", BigInteger, nullable=False),
)

restore_table = Table(
    "restore",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("noted_ms", BigInteger, nullable=False),
    Column("released_ms", BigInteger),
)

generation_table = Table(
    "generation",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
"""One row, raised at each start and in each recovery. A mark beside the database with a higher number means a restore."""


audit_run_table = Table(
    "audit_run",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("ended_ms", BigInteger, nullable=False),
    Column("differences", Integer, nullable=False),
)
"""One row: the end of the last audit, and how many differences it found."""

backup_run_table = Table(
    "backup_run",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("ended_ms", BigInteger, nullable=False),
)
"""One row: the end of the last backup by the command."""


channel_claim_table = Table(
    "channel_claim",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("chain_id", BigInteger, nullable=False),
    Column("is_refund", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    partial_index("ix_channel_claim_open", "ended_ms IS NULL", "chain_id"),
)
"""One row for each transaction that claims channels. Its attempts are in `settlement_attempt`, under its id in place of a call."""

channel_claim_row_table = Table(
    "channel_claim_row",
    metadata,
    Column(
        "claim_id",
        String(64),
        ForeignKey("channel_claim.id", name="fk_channel_claim_row_claim"),
        primary_key=True,
    ),
    Column(
        "channel_id",
        BigInteger,
        ForeignKey("channel.key", name="fk_channel_claim_row_channel"),
        primary_key=True,
    ),
    Column("ceiling", BigInteger, nullable=False),
    Column("signature", LargeBinary(65), nullable=False),
    Column("total", BigInteger, nullable=False),
    Index("ix_channel_claim_row_channel", "channel_id"),
)

channel_refused_table = Table(
    "channel_refused",
    metadata,
    Column("chain_id", BigInteger, primary_key=True, autoincrement=False),
    Column("receiver", LargeBinary(20), primary_key=True),
    Column("token", LargeBinary(20), primary_key=True),
    Column("refused_ms", BigInteger, nullable=False),
)
"""One row for each receiver whose settle fails in simulation: the token pays it nothing. The row goes when nothing is left to settle."""

channel_look_table = Table(
    "channel_look",
    metadata,
    Column("chain_id", BigInteger, primary_key=True, autoincrement=False),
    Column("looked_ms", BigInteger, nullable=False),
)
"""When all channels of a network were looked at last."""

authorization_table = Table(
    "authorization",
    metadata,
    Column("nonce", LargeBinary(32), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("asset", String(42), nullable=False),
    Column("payer", LargeBinary(20), nullable=False),
    Column("call_id", String(64), ForeignKey("call.id", name="fk_authorization_call"), nullable=False),
    Column("payee", LargeBinary(20), nullable=False),
    Column("base_units", String(78), nullable=False),
    Column("valid_after", String(78), nullable=False),
    Column("valid_before", String(78), nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("dialect", String(10), nullable=False),
    Column("challenge_id", Text, nullable=False),
    Column("seen_block", BigInteger, nullable=False),
    Column("is_adrift", Boolean, nullable=False),
    Column("looked_ms", BigInteger, nullable=False),
    Column("tx_hash", LargeBinary(32)),
    Column("settled_block", BigInteger),
    Column("client_network", LargeBinary(16)),
    Column("channel_id", BigInteger, ForeignKey("channel.key", name="fk_authorization_channel")),
    Column("deposit_salt", LargeBinary(32)),
    PrimaryKeyConstraint("nonce", "chain_id", "asset", "payer", name="pk_authorization"),
    Index("uq_authorization_call_id", "call_id", unique=True),
    partial_index("ix_authorization_deposit", "channel_id IS NOT NULL", "channel_id"),
    partial_index("ix_authorization_adrift", "is_adrift", "looked_ms"),
    partial_index(
        "ix_authorization_settled", "settled_block IS NOT NULL", "payer", "chain_id", "settled_block"
    ),
)

attempt_table = Table(
    "settlement_attempt",
    metadata,
    Column("tx_hash", LargeBinary(32), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("call_id", String(64), nullable=False),
    Column("listing_id", String(64), nullable=False),
    Column("sender", LargeBinary(20), nullable=False),
    Column("nonce", BigInteger, nullable=False),
    Column("raw", LargeBinary, nullable=False),
    Column("fee_max_wei", String(78), nullable=False),
    Column("cost_wei", BigInteger, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("tx_hash", "chain_id", name="pk_settlement_attempt"),
    Index("ix_settlement_attempt_call_id", "call_id"),
    Index(
        "ix_settlement_attempt_spent",
        *("chain_id", "created_ms", "listing_id", "sender", "nonce", "cost_wei"),
    ),
    partial_index("ix_settlement_attempt_open", "is_open", "sender", "chain_id", "nonce"),
)

wallet_gas_table = Table(
    "wallet_gas",
    metadata,
    Column("sender", LargeBinary(20), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("nonce", BigInteger, nullable=False),
    Column("code_hash", LargeBinary(32), nullable=False),
    Column("listing_id", String(64), nullable=False),
    Column("cost_wei", BigInteger, nullable=False),
    Column("is_reverted", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("sender", "chain_id", "nonce", name="pk_wallet_gas"),
    Index("ix_wallet_gas_spent", *("chain_id", "created_ms", "listing_id", "cost_wei")),
    Index("ix_wallet_gas_code", *("chain_id", "created_ms", "code_hash", "is_reverted")),
)
"""One row for each nonce of a settlement for a payer with code, whose gas has its own share of the budgets."""

settlement_nonce_table = Table(
    "gas_lane",
    metadata,
    Column("sender", LargeBinary(20), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("next_nonce", BigInteger, nullable=False),
    PrimaryKeyConstraint("sender", "chain_id", name="pk_gas_lane"),
)


def due_units(calls: FromClause = call_table) -> ColumnElement[int]:
    """What a call takes in a state that takes its price."""
    return func.coalesce(calls.c.actual_units, calls.c.price_units)


PAYMENT_COLUMNS = (
    "id",
    "chain_id",
    "tx_hash",
    "asset",
    "payer",
    "payee",
    "value_units",
    "taken_units",
    "state",
    "block_number",
    "block_hash",
    "block_time",
    "is_plain_ended",
    "is_held",
    "calls",
    "is_authorized",
    "is_escrow",
    "is_refund",
)


def parse_payment(row: Row[Any]) -> Payment:
    """Parses a row with other columns or another order by `parse_payment_row`."""
    return parse_payment_row([getattr(row, name) for name in PAYMENT_COLUMNS])


def parse_payment_row(row: Sequence[Any]) -> Payment:
    """Parses the columns `PAYMENT_COLUMNS`. The value of a gone payment is what its calls hold of it, so nothing remains to spend."""
    (
        payment_id,
        chain_id,
        tx_hash,
        asset,
        payer,
        payee,
        value_units,
        taken_units,
        state_name,
        block_number,
        block_hash,
        block_time,
        is_plain_ended,
        is_held,
        calls,
        is_authorized,
        is_escrow,
        is_refund,
    ) = row
    state = PaymentState(state_name)
    return Payment(
        id=payment_id,
        chain_id=ChainId(chain_id),
        tx_hash=TxHash(tx_hash),
        asset=asset,
        payer=Address(payer),
        payee=Address(payee),
        value_units=taken_units if state is PaymentState.GONE else value_units,
        taken_units=taken_units,
        state=state,
        block_number=block_number,
        block_hash=bytes(block_hash),
        block_time=block_time,
        is_plain_ended=bool(is_plain_ended),
        is_held=bool(is_held),
        calls=calls,
        is_authorized=bool(is_authorized),
        is_escrow=bool(is_escrow),
        is_refund=bool(is_refund),
    )
