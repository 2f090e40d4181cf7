"""An index over the payments that are not final yet, by wallet: what a wallet has spent of them is summed for each batch of
claims where the operator has set a maximum."""

import sqlalchemy as sa
from alembic import op

revision = "0015_unfinal_payer"
down_revision = "0014_finality"
branch_labels = None
depends_on = None

IS_UNFINAL = "state = 'unfinal'"


def upgrade() -> None:
    op.create_index(
        "ix_payment_unfinal_payer",
        "payment",
        ["payer", "chain_id", "asset"],
        sqlite_where=sa.text(IS_UNFINAL),
        postgresql_where=sa.text(IS_UNFINAL),
    )
