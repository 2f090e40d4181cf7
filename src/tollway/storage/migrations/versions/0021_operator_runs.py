"""One row each for the last audit and the last backup, which metrics expose."""

import sqlalchemy as sa
from alembic import op

revision = "0021_operator_runs"
down_revision = "0020_sales"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_run",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=False),
        sa.Column("differences", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_run"),
    )
    op.create_table(
        "backup_run",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_backup_run"),
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
