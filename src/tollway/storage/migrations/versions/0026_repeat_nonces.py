"""Adds the nonces of bound signatures that ran a call again.

The release before neither reads nor writes them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0026_repeat_nonces"
down_revision = "0025_account_debt"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "repeat_nonce",
        sa.Column("nonce", sa.LargeBinary(32), nullable=False),
        sa.Column("tx_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("call_id", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["call_id"], ["call.id"], name="fk_repeat_nonce_call"),
        sa.PrimaryKeyConstraint("nonce", "tx_hash", "chain_id", name="pk_repeat_nonce"),
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
