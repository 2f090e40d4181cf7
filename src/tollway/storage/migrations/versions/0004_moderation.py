"""Whom the operator does not serve: blocked wallets."""

import sqlalchemy as sa
from alembic import op

revision = "0004_moderation"
down_revision = "0003_identity"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "wallet_block",
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("wallet", name="pk_wallet_block"),
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
