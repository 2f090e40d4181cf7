"""The baseline, from which migrations go on. `storage.engine.migrate` makes its tables from `baseline.*.sql`."""

revision = "0037_baseline"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    raise NotImplementedError("an empty database gets its tables from baseline.*.sql")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
