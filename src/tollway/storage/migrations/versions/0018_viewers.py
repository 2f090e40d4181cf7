"""Adds the wallets that may read the books of another one, and the order in which a payee lists its payments.

On PostgreSQL, create the index of a large table by hand before, CONCURRENTLY: the migration then leaves it as it is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018_viewers"
down_revision = "0017_page_session"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "viewer",
        sa.Column("wallet", sa.LargeBinary(20), primary_key=True),
        sa.Column("viewer", sa.LargeBinary(20), primary_key=True),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_viewer_viewer", "viewer", ["viewer", "since_ms"])
    op.create_index("ix_payment_payee_time", "payment", ["payee", "block_time", "id"], if_not_exists=True)


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
