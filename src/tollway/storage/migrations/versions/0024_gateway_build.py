"""Adds the release of each gateway: its name, version and newest tables.

The release before neither reads nor writes them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0024_gateway_build"
down_revision = "0023_webhooks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gateway_build",
        sa.Column("owner_id", sa.String(64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("schema_revision", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", name="pk_gateway_build"),
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
