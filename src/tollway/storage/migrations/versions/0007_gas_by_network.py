"""What settling has cost on a network in a day is one question, answered by an index alone."""

from alembic import op

revision = "0007_gas_by_network"
down_revision = "0006_settled_by_chain"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_settlement_attempt_listing_time", "settlement_attempt")
    op.create_index(
        "ix_settlement_attempt_spent",
        "settlement_attempt",
        ["chain_id", "created_ms", "listing_id", "sender", "nonce", "cost_wei"],
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
