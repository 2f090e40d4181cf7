"""Adds the moment at which a viewer accepted a permission to read. Permissions that are not accepted are in none of the viewer's lists.

The release before reads all of them and writes no moment.
"""

import sqlalchemy as sa
from alembic import op

revision = "0029_viewer_acceptance"
down_revision = "0028_webhook_fairness"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("viewer", sa.Column("accepted_ms", sa.BigInteger(), nullable=True))
    op.create_index("ix_viewer_accepted", "viewer", ["viewer", "accepted_ms"], if_not_exists=True)


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
