"""Adds the codes and sessions of the operator's pages.

The release before neither reads nor writes them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022_admin_session"
down_revision = "0021_operator_runs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "admin_code",
        sa.Column("code_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("code_hash", name="pk_admin_code"),
    )
    op.create_table(
        "admin_session",
        sa.Column("token_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_admin_session"),
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
