"""Payments that are not final are found by their blocks."""

import sqlalchemy as sa
from alembic import op

revision = "0014_finality"
down_revision = "0013_wallet_gas"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_payment_state_checked", "payment")
    for name, predicate, columns in (
        ("unfinal", "state = 'unfinal'", ["chain_id", "block_number", "block_hash", "checked_ms", "id"]),
        ("gone", "state = 'gone'", ["chain_id", "gone_ms"]),
        ("held", "is_held AND state = 'unfinal'", ["chain_id", "id"]),
    ):
        op.create_index(
            f"ix_payment_{name}",
            "payment",
            columns,
            sqlite_where=sa.text(predicate),
            postgresql_where=sa.text(predicate),
        )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
