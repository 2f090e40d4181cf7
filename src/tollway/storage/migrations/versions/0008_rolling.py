"""Whose code may serve from these tables, and the keys under which listings were created."""

import sqlalchemy as sa
from alembic import op

revision = "0008_rolling"
down_revision = "0007_gas_by_network"
branch_labels = None
depends_on = None

FLOOR = "0007_gas_by_network"
"""The oldest revision whose code may serve here: this one only adds tables that the code before does not know."""


def upgrade() -> None:
    floor = op.create_table(
        "schema_floor",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schema_floor"),
        sa.CheckConstraint("id = 1", name=op.f("ck_schema_floor_one_row")),
    )
    op.bulk_insert(floor, [{"id": 1, "revision": FLOOR}])
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
    op.create_index("ix_creation_key_created_ms", "creation_key", ["created_ms"])


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
