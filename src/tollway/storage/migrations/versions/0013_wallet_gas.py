"""What settling for payers with code has cost, and which of their codes reverted."""

import sqlalchemy as sa
from alembic import op

revision = "0013_wallet_gas"
down_revision = "0012_terms_sold"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
    op.create_index("ix_wallet_gas_spent", "wallet_gas", ["chain_id", "created_ms", "listing_id", "cost_wei"])
    op.create_index(
        "ix_wallet_gas_code", "wallet_gas", ["chain_id", "created_ms", "code_hash", "is_reverted"]
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
