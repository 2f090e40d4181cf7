"""What a history of many calls is read by: indexes for its filters, and kept totals. On PostgreSQL a trigger counts them,
so that gateways of the release before keep them as well; on SQLite they are counted in lots, up to a mark. And the listings that pay one wallet, by age.

Everything that adds calls waits while this runs: by estimate some ten seconds for each million calls.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009_scale"
down_revision = "0008_rolling"
branch_labels = None
depends_on = None

FAILED = (
    "state = 'released'"
    " OR (state IN ('consumed', 'reorged') AND (upstream_status IS NULL OR upstream_status >= 400))"
)


def upgrade() -> None:
    for owner in ("payer", "provider"):
        op.create_index(f"ix_call_{owner}_listing", "call", [owner, "listing_id", "created_ms", "id"])
        ended = (("failed", FAILED, ("state", "upstream_status")), ("unknown", "state = 'unknown'", ()))
        for name, predicate, told in ended:
            op.create_index(
                f"ix_call_{owner}_{name}",
                "call",
                [owner, "created_ms", "id", "listing_id", *told],
                sqlite_where=sa.text(predicate),
                postgresql_where=sa.text(predicate),
            )
    op.create_index("ix_listing_payee", "listing", ["pay_to", "is_shown", "seq"])
    _create_total()


def _create_total() -> None:
    op.create_table(
        "call_total",
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("wallet", "role", "slot", name="pk_call_total"),
        sqlite_with_rowid=False,
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if not is_sqlite:
        # The trigger first: it waits for whoever is writing calls, so that what follows counts all of them.
        op.execute(_POSTGRESQL_FUNCTION)
        op.execute(_POSTGRESQL_TRIGGER)
    op.execute(
        "INSERT INTO call_total (wallet, role, slot, calls)"
        " SELECT provider, 'provider', 0, count(*) FROM call GROUP BY provider"
        " UNION ALL SELECT payer, 'payer', 0, count(*) FROM call WHERE payer IS NOT NULL GROUP BY payer"
    )
    if is_sqlite:  # up to there they are counted
        op.execute(
            "INSERT INTO call_total (wallet, role, slot, calls)"
            " SELECT x'', 'mark', 0, coalesce(max(rowid), 0) FROM call"
        )


# Of a wallet's 256 rows each session counts in one, so that two transactions hardly ever wait for each other, and the sum
# is one of few rows however many sessions there were. Two that do meet, crosswise, are rolled back and done again.
_POSTGRESQL_FUNCTION = """
CREATE FUNCTION count_calls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO call_total AS kept (wallet, role, slot, calls)
    SELECT told.wallet, told.role, pg_backend_pid() % 256, count(*)
    FROM (
        SELECT provider AS wallet, 'provider' AS role FROM fresh
        UNION ALL SELECT payer, 'payer' FROM fresh WHERE payer IS NOT NULL
    ) AS told
    GROUP BY told.wallet, told.role ORDER BY told.wallet, told.role
    ON CONFLICT (wallet, role, slot) DO UPDATE SET calls = kept.calls + excluded.calls;
    RETURN NULL;
END
$$
"""
_POSTGRESQL_TRIGGER = """
CREATE TRIGGER tr_call_total AFTER INSERT ON call REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION count_calls()
"""


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
