"""What counts against a balance is found by chain, and includes calls that may run again."""

import sqlalchemy as sa
from alembic import op

revision = "0006_settled_by_chain"
down_revision = "0005_authorizations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_authorization_settled", "authorization")
    settled = sa.text("settled_block IS NOT NULL")
    op.create_index(
        "ix_authorization_settled",
        "authorization",
        ["payer", "chain_id", "settled_block"],
        sqlite_where=settled,
        postgresql_where=settled,
    )
    op.drop_index("ix_call_moving", "call")
    moving = sa.text("state IN ('forwarding', 'settling', 'unknown') AND rail IN ('x402', 'mpp')")
    op.create_index("ix_call_moving", "call", ["payer"], sqlite_where=moving, postgresql_where=moving)


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
