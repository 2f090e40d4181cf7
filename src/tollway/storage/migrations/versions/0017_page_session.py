"""Adds the sessions of pages.

The release before neither reads nor writes them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017_page_session"
down_revision = "0016_call_terms"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "page_session",
        sa.Column("token_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("address", sa.LargeBinary(20), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("used_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_page_session"),
    )
    op.create_index("ix_page_session_expires_ms", "page_session", ["expires_ms"])


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
