"""Adds the debt of each credit account as a kept sum, and orders the index of reorged calls by time.

The release before moves calls without changing that sum, so it may not serve from these tables: the floor rises to this revision.
"""

import sqlalchemy as sa
from alembic import op

revision = "0025_account_debt"
down_revision = "0024_gateway_build"
branch_labels = None
depends_on = None

_OWED = "units > 0"
_REORGED = "state = 'reorged'"
_FILL = """
INSERT INTO account_debt (payer, payee, asset, chain_id, units)
SELECT c.payer, t.pay_to, t.asset, t.chain_id,
  CAST(sum(c.price_units - c.taken_units - coalesce(h.units, 0)) AS BIGINT)
FROM call c
JOIN call_terms t ON t.id = c.terms_id
LEFT JOIN (SELECT call_id, sum(units) AS units FROM call_topup GROUP BY call_id) h ON h.call_id = c.id
WHERE c.state = 'reorged'
GROUP BY c.payer, t.pay_to, t.asset, t.chain_id
"""


def upgrade() -> None:
    op.create_table(
        "account_debt",
        sa.Column("payer", sa.LargeBinary(20), nullable=False),
        sa.Column("payee", sa.LargeBinary(20), nullable=False),
        sa.Column("asset", sa.String(42), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("payer", "payee", "asset", "chain_id", name="pk_account_debt"),
        sqlite_with_rowid=False,
        if_not_exists=True,
    )
    owed = sa.text(_OWED)
    op.create_index(
        "ix_account_debt_owed",
        "account_debt",
        ["chain_id"],
        sqlite_where=owed,
        postgresql_where=owed,
        if_not_exists=True,
    )
    reorged = sa.text(_REORGED)
    op.drop_index("ix_call_reorged", "call", if_exists=True)
    op.create_index(
        "ix_call_reorged",
        "call",
        ["payer", "created_ms", "id"],
        sqlite_where=reorged,
        postgresql_where=reorged,
        if_not_exists=True,
    )
    op.execute(_FILL)
    floor = sa.table("schema_floor", sa.column("revision", sa.String(32)))
    op.execute(floor.update().values(revision=revision))


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
