"""The baseline: makes every table, index and trigger.

It replaces the baseline 0015, which had one wide table of calls. An older database is refused (`storage.migrate`): this version neither
reads nor migrates it.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0016_call_terms"
down_revision = None
branch_labels = None
depends_on = None

FLOOR = "0016_call_terms"
"""The oldest revision whose code may serve from these tables."""

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_EXACT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""A text that both dialects compare by code point."""

_FAILED = (
    "state = 'released'"
    " OR (state IN ('consumed', 'reorged') AND (upstream_status IS NULL OR upstream_status >= 400))"
)
_MOVING = "state IN ('forwarding', 'settling', 'unknown') AND rail IN ('x402', 'mpp')"
_REPEATABLE = "state IN ('forwarding', 'unknown') OR cut = 'cut'"


def upgrade() -> None:
    _create_payment()
    _create_call_terms()
    _create_call()
    _create_call_topup()
    _create_operator_tables()
    _create_listing()
    _create_terms()
    _create_filters()
    _create_search()
    _create_identity()
    _create_authorization()
    _create_settlement()
    _create_answer()
    _create_floor()
    _create_creation_key()
    _create_call_total()
    _create_quality()
    _create_ownership()


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")


def _index(
    name: str, table: str, columns: Sequence[str], *, where: str | None = None, unique: bool = False
) -> None:
    """Makes an index. The order of the indexes matters: SQLite has no statistics of its tables, so of two indexes that begin with the same columns
    it uses the newer one."""
    condition = None if where is None else sa.text(where)
    op.create_index(
        name, table, list(columns), unique=unique, sqlite_where=condition, postgresql_where=condition
    )


# Payments and calls


def _create_payment() -> None:
    op.create_table(
        "payment",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("tx_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("asset", sa.String(42), nullable=False),
        sa.Column("payer", sa.LargeBinary(20), nullable=False),
        sa.Column("payee", sa.LargeBinary(20), nullable=False),
        sa.Column("value_units", sa.BigInteger(), nullable=False),
        sa.Column("taken_units", sa.BigInteger(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.Column("block_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("block_time", sa.BigInteger(), nullable=False),
        sa.Column("is_plain_ended", sa.Boolean(), nullable=False),
        sa.Column("is_held", sa.Boolean(), nullable=False),
        sa.Column("recorded_ms", sa.BigInteger(), nullable=False),
        sa.Column("checked_ms", sa.BigInteger(), nullable=False),
        sa.Column("gone_ms", sa.BigInteger()),
        sa.Column("is_authorized", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("id", name="pk_payment"),
        sa.CheckConstraint(
            "taken_units >= 0 AND taken_units <= value_units", name=op.f("ck_payment_taken_within_value")
        ),
        sa.UniqueConstraint("tx_hash", "chain_id", "asset", "payer", "payee", name="uq_payment_transfer"),
    )
    _index("ix_payment_purse", "payment", ("payer", "payee", "asset", "chain_id"))
    _index("ix_payment_payer_time", "payment", ("payer", "block_time", "id"))
    unfinal, unfinal_columns = "state = 'unfinal'", ("block_number", "block_hash", "checked_ms", "id")
    _index("ix_payment_unfinal", "payment", ("chain_id", *unfinal_columns), where=unfinal)
    _index("ix_payment_gone", "payment", ("chain_id", "gone_ms"), where="state = 'gone'")
    _index("ix_payment_held", "payment", ("chain_id", "id"), where="is_held AND state = 'unfinal'")
    _index("ix_payment_unfinal_payer", "payment", ("payer", "chain_id", "asset"), where=unfinal)


def _create_call_terms() -> None:
    op.create_table(
        "call_terms",
        sa.Column("id", _ROW_ID, autoincrement=False, nullable=False),
        sa.Column("listing_id", sa.String(64), nullable=False),
        sa.Column("listing_name", sa.Text(), nullable=False),
        sa.Column("method", sa.String(32), nullable=False),
        sa.Column("price", sa.String(40), nullable=False),
        sa.Column("currency", sa.String(32), nullable=False),
        sa.Column("chain_id", sa.BigInteger()),
        sa.Column("asset", sa.String(42)),
        sa.Column("decimals", sa.Integer(), nullable=False),
        sa.Column("pay_to", sa.LargeBinary(20)),
        sa.PrimaryKeyConstraint("id", name="pk_call_terms"),
    )


def _create_call() -> None:
    """Makes the table of calls. SQLite decodes a row from its beginning, so the columns in the predicates of the indexes come first, and long
    columns that are read seldom come last. `actual_units` and `channel_id` are for metered calls and for channels; nothing writes
    them yet."""
    op.create_table(
        "call",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("terms_id", sa.BigInteger(), nullable=False),
        sa.Column("listing_key", sa.BigInteger(), nullable=False),
        sa.Column("provider", sa.LargeBinary(20), nullable=False),
        sa.Column("payer", sa.LargeBinary(20)),
        sa.Column("payment_id", sa.BigInteger()),
        sa.Column("channel_id", sa.BigInteger()),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("rail", sa.String(10), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("cut", sa.String(10), nullable=False),
        sa.Column("clock_releases", sa.Boolean(), nullable=False),
        sa.Column("needs_locks", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("price_units", sa.BigInteger(), nullable=False),
        sa.Column("actual_units", sa.BigInteger()),
        sa.Column("taken_units", sa.BigInteger(), nullable=False),
        sa.Column("http_status", sa.Integer()),
        sa.Column("upstream_status", sa.Integer()),
        sa.Column("request_bytes", sa.BigInteger()),
        sa.Column("response_bytes", sa.BigInteger()),
        sa.Column("latency_ms", sa.BigInteger()),
        sa.Column("upstream_latency_ms", sa.BigInteger()),
        sa.Column("delivery", sa.String(10)),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("moved_ms", sa.BigInteger(), nullable=False),
        sa.Column("completed_ms", sa.BigInteger()),
        sa.Column("owner_id", sa.String(64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("nonce", sa.LargeBinary(32)),
        sa.Column("nonce_tx_hash", sa.LargeBinary(32)),
        sa.Column("nonce_chain_id", sa.BigInteger()),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_call"),
        sa.ForeignKeyConstraint(["terms_id"], ["call_terms.id"], name="fk_call_terms"),
        sa.ForeignKeyConstraint(["payment_id"], ["payment.id"], name="fk_call_payment"),
        sa.CheckConstraint(
            "taken_units >= 0 AND taken_units <= price_units", name=op.f("ck_call_taken_within_price")
        ),
        sa.CheckConstraint(
            "actual_units IS NULL OR (actual_units >= 0 AND actual_units <= price_units)",
            name=op.f("ck_call_actual_within_price"),
        ),
    )
    _create_call_indexes()


def _create_call_indexes() -> None:
    for owner, column in (("payer", "payer"), ("provider", "provider"), ("payment", "payment_id")):
        _index(f"ix_call_{owner}_time", "call", (column, "created_ms"))
    for owner in ("payer", "provider"):
        _index(f"ix_call_{owner}_listing", "call", (owner, "listing_key", "created_ms"))
    # The partial indexes come after the full ones that begin with the same columns: SQLite searches the newest.
    counting = "nonce IS NOT NULL AND state <> 'released'"
    nonce = ("nonce", "nonce_tx_hash", "nonce_chain_id")
    _index("uq_call_nonce", "call", nonce, where=counting, unique=True)
    _index("ix_call_repeatable", "call", ("payment_id", "digest"), where=_REPEATABLE)
    _index("ix_call_forwarding", "call", ("owner_id",), where="state = 'forwarding'")
    _index("ix_call_unknown", "call", ("moved_ms",), where="state = 'unknown'")
    _index("ix_call_reorged", "call", ("payer",), where="state = 'reorged'")
    _index("ix_call_settling", "call", ("owner_id",), where="state = 'settling'")
    keyed = ("payer", "idempotency_key", "created_ms")
    _index("ix_call_keyed", "call", keyed, where="idempotency_key IS NOT NULL")
    _index("ix_call_moving", "call", ("payer",), where=_MOVING)
    for owner in ("payer", "provider"):
        listed = (owner, "created_ms", "listing_key")
        _index(f"ix_call_{owner}_failed", "call", (*listed, "state", "upstream_status"), where=_FAILED)
        _index(f"ix_call_{owner}_unknown", "call", listed, where="state = 'unknown'")


def _create_call_topup() -> None:
    op.create_table(
        "call_topup",
        sa.Column("call_id", sa.String(64), nullable=False),
        sa.Column("payment_id", sa.BigInteger(), nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("call_id", "payment_id", name="pk_call_topup"),
        sa.ForeignKeyConstraint(["call_id"], ["call.id"], name="fk_call_topup_call"),
        sa.ForeignKeyConstraint(["payment_id"], ["payment.id"], name="fk_call_topup_payment"),
        sa.CheckConstraint("units > 0", name=op.f("ck_call_topup_units_positive")),
    )
    _index("ix_call_topup_payment_id", "call_topup", ("payment_id",))


def _create_operator_tables() -> None:
    """Makes the tables of gateways, admitted transactions, outages and restores."""
    op.create_table(
        "gateway_owner",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("boot_mark", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gateway_owner"),
    )
    op.create_table(
        "admission",
        sa.Column("tx_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("admitted_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tx_hash", name="pk_admission"),
    )
    op.create_table(
        "readiness",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("ready_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_readiness"),
    )
    op.create_table(
        "outage",
        sa.Column("from_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("to_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("from_ms", name="pk_outage"),
    )
    op.create_table(
        "restore",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("noted_ms", sa.BigInteger(), nullable=False),
        sa.Column("released_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_restore"),
    )
    op.create_table(
        "generation",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_generation"),
    )


# The catalog


def _create_listing() -> None:
    op.create_table(
        "listing",
        sa.Column("seq", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("provider", sa.LargeBinary(20), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_key", _EXACT, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("price", sa.String(40), nullable=False),
        sa.Column("price_nano", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(32), nullable=False),
        sa.Column("pay_to", sa.LargeBinary(20), nullable=False),
        sa.Column("networks", sa.Text(), nullable=False),
        sa.Column("methods", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("operations", sa.Text(), nullable=False),
        sa.Column("other_paths", sa.String(10), nullable=False),
        sa.Column("charge_on", sa.String(10), nullable=False),
        sa.Column("timeout_s", sa.Integer(), nullable=False),
        sa.Column("forward_headers", sa.Text(), nullable=False),
        sa.Column("auth_location", sa.String(10)),
        sa.Column("auth_name", sa.Text()),
        sa.Column("auth_sealed", sa.LargeBinary()),
        sa.Column("openapi_url", sa.Text()),
        sa.Column("signature", sa.String(10), nullable=False),
        sa.Column("rate_calls", sa.Integer()),
        sa.Column("rate_per_s", sa.Integer()),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("forward_signature", sa.String(10), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("retired_ms", sa.BigInteger()),
        sa.Column("suspended_ms", sa.BigInteger()),
        sa.Column("is_shown", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_listing"),
        sa.UniqueConstraint("id", name="uq_listing_id"),
        sa.CheckConstraint("price_nano >= 0", name=op.f("ck_listing_price_not_negative")),
        sa.CheckConstraint("revision >= 1", name=op.f("ck_listing_revision_positive")),
    )
    _index("ix_listing_shown", "listing", ("is_shown", "seq"))
    _index("ix_listing_name", "listing", ("is_shown", "name_key", "seq"))
    _index("ix_listing_provider", "listing", ("provider", "is_shown", "seq"))
    _index("ix_listing_currency", "listing", ("currency", "is_shown", "seq"))
    _index("ix_listing_price", "listing", ("currency", "is_shown", "price_nano", "seq"))
    _index("ix_listing_pay_to", "listing", ("pay_to", "is_shown", "provider"))
    _index("ix_listing_payee", "listing", ("pay_to", "is_shown", "seq"))
    _index("ix_listing_provider_currency", "listing", ("provider", "currency", "is_shown", "seq"))


def _listing_seq(table: str) -> sa.Column[int]:
    key = sa.ForeignKey("listing.seq", name=f"fk_{table}_listing")
    return sa.Column("listing_seq", sa.BigInteger(), key, nullable=False)


def _create_terms() -> None:
    op.create_table(
        "listing_document",
        _listing_seq("listing_document"),
        sa.Column("openapi", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("listing_seq", name="pk_listing_document"),
    )
    op.create_table(
        "listing_terms",
        _listing_seq("listing_terms"),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("price", sa.String(40), nullable=False),
        sa.Column("price_nano", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(32), nullable=False),
        sa.Column("networks", sa.Text(), nullable=False),
        sa.Column("pay_to", sa.LargeBinary(20), nullable=False),
        sa.Column("operations", sa.Text(), nullable=False),
        sa.Column("charge_on", sa.String(10), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger()),
        sa.Column("other_paths", sa.String(10)),
        sa.Column("methods", sa.Text()),
        sa.Column("described", sa.Text()),
        sa.Column("status", sa.String(10)),
        sa.PrimaryKeyConstraint("listing_seq", "version", name="pk_listing_terms"),
        sa.CheckConstraint(
            "until_ms IS NULL OR until_ms >= since_ms", name=op.f("ck_listing_terms_ends_after_it_begins")
        ),
    )


def _create_filters() -> None:
    op.create_table(
        "listing_tag",
        sa.Column("tag", sa.Text(), nullable=False),
        _listing_seq("listing_tag"),
        sa.PrimaryKeyConstraint("tag", "listing_seq", name="pk_listing_tag"),
    )
    _index("ix_listing_tag_listing", "listing_tag", ("listing_seq",))
    op.create_table(
        "listing_network",
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        _listing_seq("listing_network"),
        sa.PrimaryKeyConstraint("chain_id", "listing_seq", name="pk_listing_network"),
    )
    _index("ix_listing_network_listing", "listing_network", ("listing_seq",))
    total = op.create_table(
        "listing_total",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("shown", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_listing_total"),
        sa.CheckConstraint("id = 1 AND shown >= 0", name=op.f("ck_listing_total_one_row")),
    )
    op.bulk_insert(total, [{"id": 1, "shown": 0}])


def _create_search() -> None:
    # The words are split and folded before. FTS5's `ascii` tokenizer separates at ASCII punctuation and spaces only, so it does not split
    # them, in any script.
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE listing_search USING fts5(name, description, tags, tokenize = 'ascii')"
        )
        return
    op.execute(
        "CREATE TABLE listing_search ("
        " listing_seq bigint NOT NULL CONSTRAINT pk_listing_search PRIMARY KEY"
        " CONSTRAINT fk_listing_search_listing REFERENCES listing (seq),"
        " words tsvector NOT NULL)"
    )
    op.execute("CREATE INDEX ix_listing_search_words ON listing_search USING gin (words)")


# Sessions, used nonces, blocked wallets


def _create_identity() -> None:
    op.create_table(
        "signin_nonce",
        sa.Column("nonce", sa.String(128), nullable=False),
        sa.Column("uri", sa.Text()),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("nonce", name="pk_signin_nonce"),
    )
    op.create_table(
        "session",
        sa.Column("token_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("address", sa.LargeBinary(20), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_session"),
    )
    op.create_table(
        "signature_nonce",
        sa.Column("keyid", sa.String(128), nullable=False),
        sa.Column("nonce", sa.String(128), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("keyid", "nonce", name="pk_signature_nonce"),
    )
    for table in ("signin_nonce", "session", "signature_nonce"):
        _index(f"ix_{table}_expires_ms", table, ("expires_ms",))
    op.create_table(
        "wallet_block",
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("wallet", name="pk_wallet_block"),
    )


# Authorisations and what settles them


def _create_authorization() -> None:
    op.create_table(
        "authorization",
        sa.Column("nonce", sa.LargeBinary(32), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("asset", sa.String(42), nullable=False),
        sa.Column("payer", sa.LargeBinary(20), nullable=False),
        sa.Column("call_id", sa.String(64), nullable=False),
        sa.Column("payee", sa.LargeBinary(20), nullable=False),
        sa.Column("base_units", sa.String(78), nullable=False),
        sa.Column("valid_after", sa.String(78), nullable=False),
        sa.Column("valid_before", sa.String(78), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("dialect", sa.String(10), nullable=False),
        sa.Column("challenge_id", sa.Text(), nullable=False),
        sa.Column("seen_block", sa.BigInteger(), nullable=False),
        sa.Column("is_adrift", sa.Boolean(), nullable=False),
        sa.Column("looked_ms", sa.BigInteger(), nullable=False),
        sa.Column("tx_hash", sa.LargeBinary(32)),
        sa.Column("settled_block", sa.BigInteger()),
        sa.Column("client_network", sa.LargeBinary(16)),
        sa.ForeignKeyConstraint(["call_id"], ["call.id"], name="fk_authorization_call"),
        sa.PrimaryKeyConstraint("nonce", "chain_id", "asset", "payer", name="pk_authorization"),
    )
    _index("uq_authorization_call_id", "authorization", ("call_id",), unique=True)
    _index("ix_authorization_adrift", "authorization", ("looked_ms",), where="is_adrift")
    _index(
        "ix_authorization_settled",
        "authorization",
        ("payer", "chain_id", "settled_block"),
        where="settled_block IS NOT NULL",
    )


def _create_settlement() -> None:
    op.create_table(
        "settlement_attempt",
        sa.Column("tx_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("call_id", sa.String(64), nullable=False),
        sa.Column("listing_id", sa.String(64), nullable=False),
        sa.Column("sender", sa.LargeBinary(20), nullable=False),
        sa.Column("nonce", sa.BigInteger(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("fee_max_wei", sa.String(78), nullable=False),
        sa.Column("cost_wei", sa.BigInteger(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["call_id"], ["call.id"], name="fk_settlement_attempt_call"),
        sa.PrimaryKeyConstraint("tx_hash", "chain_id", name="pk_settlement_attempt"),
    )
    _index("ix_settlement_attempt_call_id", "settlement_attempt", ("call_id",))
    _index(
        "ix_settlement_attempt_open", "settlement_attempt", ("sender", "chain_id", "nonce"), where="is_open"
    )
    spent = ("chain_id", "created_ms", "listing_id", "sender", "nonce", "cost_wei")
    _index("ix_settlement_attempt_spent", "settlement_attempt", spent)
    op.create_table(
        "wallet_gas",
        sa.Column("sender", sa.LargeBinary(20), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("nonce", sa.BigInteger(), nullable=False),
        sa.Column("code_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("listing_id", sa.String(64), nullable=False),
        sa.Column("cost_wei", sa.BigInteger(), nullable=False),
        sa.Column("is_reverted", sa.Boolean(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sender", "chain_id", "nonce", name="pk_wallet_gas"),
    )
    _index("ix_wallet_gas_spent", "wallet_gas", ("chain_id", "created_ms", "listing_id", "cost_wei"))
    _index("ix_wallet_gas_code", "wallet_gas", ("chain_id", "created_ms", "code_hash", "is_reverted"))
    op.create_table(
        "gas_lane",
        sa.Column("sender", sa.LargeBinary(20), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("next_nonce", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sender", "chain_id", name="pk_gas_lane"),
    )


def _create_answer() -> None:
    op.create_table(
        "answer",
        sa.Column("call_id", sa.String(64), nullable=False),
        sa.Column("payer", sa.LargeBinary(20), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("call_id", name="pk_answer"),
    )
    _index("ix_answer_payer_time", "answer", ("payer", "created_ms", "call_id", "bytes"))
    _index("ix_answer_time", "answer", ("created_ms", "call_id", "bytes"))


# Rolling upgrades, and the keys under which listings were created


def _create_floor() -> None:
    floor = op.create_table(
        "schema_floor",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schema_floor"),
        sa.CheckConstraint("id = 1", name=op.f("ck_schema_floor_one_row")),
    )
    op.bulk_insert(floor, [{"id": 1, "revision": FLOOR}])


def _create_creation_key() -> None:
    op.create_table(
        "creation_key",
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(32), nullable=False),
        sa.Column("claim", sa.LargeBinary(16), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("listing_id", sa.String(64)),
        sa.Column("location", sa.Text()),
        sa.Column("etag", sa.Text()),
        sa.Column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("wallet", "idempotency_key", name="pk_creation_key"),
    )
    _index("ix_creation_key_created_ms", "creation_key", ("created_ms",))


# Totals of calls


def _create_call_total() -> None:
    """Makes the totals of calls. On PostgreSQL a trigger counts the calls of gateways of every release. On SQLite a gateway counts them in batches, up
    to a mark."""
    total = op.create_table(
        "call_total",
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("wallet", "role", "slot", name="pk_call_total"),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "sqlite":
        op.bulk_insert(total, [{"wallet": b"", "role": "mark", "slot": 0, "calls": 0}])
        return
    op.execute(_POSTGRESQL_FUNCTION)
    op.execute(_POSTGRESQL_TRIGGER)


# A wallet has 256 rows, and each session counts in one of them, so that two transactions rarely wait for each other and a sum reads few rows
# for any number of sessions. A deadlock of two transactions is rolled back and tried again.
_POSTGRESQL_FUNCTION = """
CREATE FUNCTION count_calls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO call_total AS kept (wallet, role, slot, calls)
    SELECT told.wallet, told.role, pg_backend_pid() % 256, count(*)
    FROM (
        SELECT provider AS wallet, 'provider' AS role FROM fresh
        UNION ALL SELECT payer, 'payer' FROM fresh WHERE payer IS NOT NULL
    ) AS told
    GROUP BY told.wallet, told.role ORDER BY told.wallet, told.role
    ON CONFLICT (wallet, role, slot) DO UPDATE SET calls = kept.calls + excluded.calls;
    RETURN NULL;
END
$$
"""
_POSTGRESQL_TRIGGER = """
CREATE TRIGGER tr_call_total AFTER INSERT ON call REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION count_calls()
"""


# Reputation: quality measured from paid calls, and proved ownership


def _create_quality() -> None:
    op.create_table(
        "listing_quality_day",
        sa.Column("listing_id", sa.String(64), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("listing_id", "day", "bucket", name="pk_listing_quality_day"),
        sqlite_with_rowid=False,
    )
    _index("ix_listing_quality_day_day", "listing_quality_day", ("day",))
    op.create_table(
        "listing_quality",
        sa.Column("listing_seq", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("success_ppm", sa.Integer(), nullable=False),
        sa.Column("p50_ms", sa.BigInteger()),
        sa.Column("p95_ms", sa.BigInteger()),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("listing_seq", name="pk_listing_quality"),
        sa.ForeignKeyConstraint(["listing_seq"], ["listing.seq"], name="fk_listing_quality_listing"),
    )
    _index("ix_listing_quality_success", "listing_quality", ("success_ppm", "listing_seq"))
    _index("ix_listing_quality_stale", "listing_quality", ("day", "listing_seq"))


def _create_ownership() -> None:
    op.create_table(
        "listing_ownership",
        sa.Column("listing_seq", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("origin", sa.String(300), nullable=False),
        sa.Column("method", sa.String(20)),
        sa.Column("signer", sa.LargeBinary(20)),
        sa.Column("verified_ms", sa.BigInteger()),
        sa.Column("checked_ms", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("listing_seq", name="pk_listing_ownership"),
        sa.ForeignKeyConstraint(["listing_seq"], ["listing.seq"], name="fk_listing_ownership_listing"),
    )
    for name, columns in (
        ("origin", ("origin", "listing_seq")),
        ("due", ("checked_ms", "listing_seq")),
        ("verified", ("listing_seq",)),
    ):
        _index(
            f"ix_listing_ownership_{name}",
            "listing_ownership",
            columns,
            where="verified_ms IS NOT NULL",
        )
