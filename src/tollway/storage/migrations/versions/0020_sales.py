"""Closed hours and days beside the ledger: sums of calls, the periods that are closed, and the marks of late moves."""

import sqlalchemy as sa
from alembic import op

revision = "0020_sales"
down_revision = "0019_operator_act"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for name in ("sales_hour", "sales_day"):
        op.create_table(
            name,
            sa.Column("provider", sa.LargeBinary(20), nullable=False),
            sa.Column("start_ms", sa.BigInteger(), nullable=False),
            sa.Column("listing_id", sa.String(64), nullable=False),
            sa.Column("chain_id", sa.BigInteger(), nullable=False),
            sa.Column("asset", sa.String(42), nullable=False),
            sa.Column("currency", sa.String(32), nullable=False),
            sa.Column("decimals", sa.Integer(), nullable=False),
            sa.Column("state", sa.String(10), nullable=False),
            sa.Column("calls", sa.BigInteger(), nullable=False),
            sa.Column("high_units", sa.BigInteger(), nullable=False),
            sa.Column("low_units", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint(
                *("provider", "start_ms", "listing_id", "chain_id", "asset"),
                *("currency", "decimals", "state"),
                name=f"pk_{name}",
            ),
            sqlite_with_rowid=False,
        )
        op.create_index(f"ix_{name}_start", name, ["start_ms"])
    op.create_table(
        "sales_closed",
        sa.Column("step", sa.String(4), nullable=False),
        sa.Column("start_ms", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("written_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("step", "start_ms", name="pk_sales_closed"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sales_mark",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("hour_ms", sa.BigInteger(), nullable=False),
        sa.Column("marked_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sales_mark"),
    )
    op.create_index("ix_sales_mark_hour", "sales_mark", ["hour_ms"])


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
