"""Adds the record of the operator's acts.

The release before neither reads nor writes it: its changes have no row.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019_operator_act"
down_revision = "0018_viewers"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "operator_act",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("act", sa.String(40), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("is_logged", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("id", name="pk_operator_act"),
    )
    op.create_index("ix_operator_act_target", "operator_act", ["target", "at_ms"])
    op.create_index(
        "ix_operator_act_unlogged",
        "operator_act",
        ["id"],
        sqlite_where=sa.text("NOT is_logged"),
        postgresql_where=sa.text("NOT is_logged"),
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
