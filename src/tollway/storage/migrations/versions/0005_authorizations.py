"""Authorisations, the transactions that settle them, the lanes of the gas keys, and stored answers."""

import sqlalchemy as sa
from alembic import op

revision = "0005_authorizations"
down_revision = "0004_moderation"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _widen_books()
    _create_authorization()
    _create_attempt()
    _create_answer()


def _widen_books() -> None:
    op.add_column(
        "payment", sa.Column("is_authorized", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    settling = sa.text("state = 'settling'")
    op.create_index(
        "ix_call_settling", "call", ["owner_id"], sqlite_where=settling, postgresql_where=settling
    )
    moving = sa.text("state IN ('forwarding', 'settling') AND rail IN ('x402', 'mpp')")
    op.create_index("ix_call_moving", "call", ["payer"], sqlite_where=moving, postgresql_where=moving)
    keyed = sa.text("idempotency_key IS NOT NULL")
    op.create_index(
        "ix_call_keyed",
        "call",
        ["payer", "idempotency_key", "created_ms", "id"],
        sqlite_where=keyed,
        postgresql_where=keyed,
    )


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
        sa.ForeignKeyConstraint(["call_id"], ["call.id"], name="fk_authorization_call"),
        sa.PrimaryKeyConstraint("nonce", "chain_id", "asset", "payer", name="pk_authorization"),
    )
    op.create_index("uq_authorization_call_id", "authorization", ["call_id"], unique=True)
    adrift, settled = sa.text("is_adrift"), sa.text("settled_block IS NOT NULL")
    op.create_index(
        "ix_authorization_adrift",
        "authorization",
        ["looked_ms"],
        sqlite_where=adrift,
        postgresql_where=adrift,
    )
    op.create_index(
        "ix_authorization_settled",
        "authorization",
        ["payer", "settled_block"],
        sqlite_where=settled,
        postgresql_where=settled,
    )


def _create_attempt() -> None:
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
    op.create_index("ix_settlement_attempt_call_id", "settlement_attempt", ["call_id"])
    op.create_index(
        "ix_settlement_attempt_listing_time", "settlement_attempt", ["listing_id", "chain_id", "created_ms"]
    )
    is_open = sa.text("is_open")
    op.create_index(
        "ix_settlement_attempt_open",
        "settlement_attempt",
        ["sender", "chain_id", "nonce"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
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
    op.create_index("ix_answer_payer_time", "answer", ["payer", "created_ms", "call_id", "bytes"])
    op.create_index("ix_answer_time", "answer", ["created_ms", "call_id", "bytes"])


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
