"""The books: payments, calls, their owners, what the operator let in, when no gateway was ready."""

import sqlalchemy as sa
from alembic import op

revision = "0001_books"
down_revision = None
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_payment()
    _create_call()
    _create_call_topup()
    _create_house_tables()


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
        sa.PrimaryKeyConstraint("id", name="pk_payment"),
        sa.CheckConstraint(
            "taken_units >= 0 AND taken_units <= value_units", name=op.f("ck_payment_taken_within_value")
        ),
        sa.UniqueConstraint("tx_hash", "chain_id", "asset", "payer", "payee", name="uq_payment_transfer"),
    )
    op.create_index("ix_payment_purse", "payment", ["payer", "payee", "asset", "chain_id"])
    op.create_index("ix_payment_payer_time", "payment", ["payer", "block_time", "id"])
    op.create_index("ix_payment_state_checked", "payment", ["state", "checked_ms"])


def _create_call() -> None:
    op.create_table(
        "call",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("listing_id", sa.String(64), nullable=False),
        sa.Column("listing_name", sa.Text(), nullable=False),
        sa.Column("provider", sa.LargeBinary(20), nullable=False),
        sa.Column("payer", sa.LargeBinary(20)),
        sa.Column("method", sa.String(32), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("rail", sa.String(10), nullable=False),
        sa.Column("price", sa.String(40), nullable=False),
        sa.Column("price_units", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(32), nullable=False),
        sa.Column("payment_id", sa.BigInteger()),
        sa.Column("taken_units", sa.BigInteger(), nullable=False),
        sa.Column("chain_id", sa.BigInteger()),
        sa.Column("asset", sa.String(42)),
        sa.Column("decimals", sa.Integer(), nullable=False),
        sa.Column("tx_hash", sa.LargeBinary(32)),
        sa.Column("pay_to", sa.LargeBinary(20)),
        sa.Column("nonce", sa.LargeBinary(32)),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("owner_id", sa.String(64), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("cut", sa.String(10), nullable=False),
        sa.Column("clock_releases", sa.Boolean(), nullable=False),
        sa.Column("http_status", sa.Integer()),
        sa.Column("upstream_status", sa.Integer()),
        sa.Column("request_bytes", sa.BigInteger()),
        sa.Column("response_bytes", sa.BigInteger()),
        sa.Column("latency_ms", sa.BigInteger()),
        sa.Column("upstream_latency_ms", sa.BigInteger()),
        sa.Column("delivery", sa.String(10)),
        sa.Column("error", sa.Text()),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("moved_ms", sa.BigInteger(), nullable=False),
        sa.Column("completed_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_call"),
        sa.ForeignKeyConstraint(["payment_id"], ["payment.id"], name="fk_call_payment"),
        sa.CheckConstraint(
            "taken_units >= 0 AND taken_units <= price_units", name=op.f("ck_call_taken_within_price")
        ),
    )
    op.create_index("ix_call_payer_time", "call", ["payer", "created_ms", "id"])
    op.create_index("ix_call_provider_time", "call", ["provider", "created_ms", "id"])
    op.create_index("ix_call_payment_time", "call", ["payment_id", "created_ms", "id"])
    has_nonce = sa.text("nonce IS NOT NULL AND state <> 'released'")
    op.create_index(
        "uq_call_nonce",
        "call",
        ["nonce", "tx_hash", "chain_id"],
        unique=True,
        sqlite_where=has_nonce,
        postgresql_where=has_nonce,
    )
    is_repeatable = sa.text("state IN ('forwarding', 'unknown') OR cut = 'cut'")
    op.create_index(
        "ix_call_repeatable",
        "call",
        ["payment_id", "digest"],
        sqlite_where=is_repeatable,
        postgresql_where=is_repeatable,
    )
    for state, column in (("forwarding", "owner_id"), ("unknown", "moved_ms"), ("reorged", "payer")):
        is_there = sa.text(f"state = '{state}'")
        op.create_index(
            f"ix_call_{state}", "call", [column], sqlite_where=is_there, postgresql_where=is_there
        )


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
    op.create_index("ix_call_topup_payment_id", "call_topup", ["payment_id"])


def _create_house_tables() -> None:
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


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
