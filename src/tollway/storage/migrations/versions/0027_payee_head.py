"""Adds the time of each network's head as a listing's payTo began.

The release before neither reads nor writes them: by it, a payment counts from the payTo's time by the gateway's clock.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027_payee_head"
down_revision = "0026_repeat_nonces"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "listing_payee_head",
        sa.Column("listing_seq", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("head_s", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["listing_seq"], ["listing.seq"], name="fk_listing_payee_head_listing"),
        sa.PrimaryKeyConstraint("listing_seq", "version", "chain_id", name="pk_listing_payee_head"),
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
