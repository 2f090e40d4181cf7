"""What is known of listings beside their words: quality measured from paid calls, and proved ownership."""

import sqlalchemy as sa
from alembic import op

revision = "0010_standing"
down_revision = "0009_scale"
branch_labels = None
depends_on = None

_SEQ = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_quality()
    _create_ownership()
    op.create_index("ix_listing_provider_currency", "listing", ["provider", "currency", "is_shown", "seq"])


def _create_quality() -> None:
    op.create_table(
        "listing_quality_day",
        sa.Column("listing_id", sa.String(64), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("listing_id", "day", "bucket", name="pk_listing_quality_day"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_listing_quality_day_day", "listing_quality_day", ["day"])
    op.create_table(
        "listing_quality",
        sa.Column("listing_seq", _SEQ, nullable=False, autoincrement=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("success_ppm", sa.Integer(), nullable=False),
        sa.Column("p50_ms", sa.BigInteger()),
        sa.Column("p95_ms", sa.BigInteger()),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("listing_seq", name="pk_listing_quality"),
        sa.ForeignKeyConstraint(["listing_seq"], ["listing.seq"], name="fk_listing_quality_listing"),
    )
    op.create_index("ix_listing_quality_success", "listing_quality", ["success_ppm", "listing_seq"])
    op.create_index("ix_listing_quality_stale", "listing_quality", ["day", "listing_seq"])


def _create_ownership() -> None:
    op.create_table(
        "listing_ownership",
        sa.Column("listing_seq", _SEQ, nullable=False, autoincrement=False),
        sa.Column("origin", sa.String(300), nullable=False),
        sa.Column("method", sa.String(20)),
        sa.Column("signer", sa.LargeBinary(20)),
        sa.Column("verified_ms", sa.BigInteger()),
        sa.Column("checked_ms", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("listing_seq", name="pk_listing_ownership"),
        sa.ForeignKeyConstraint(["listing_seq"], ["listing.seq"], name="fk_listing_ownership_listing"),
    )
    verified = sa.text("verified_ms IS NOT NULL")
    for name, columns in (
        ("origin", ["origin", "listing_seq"]),
        ("due", ["checked_ms", "listing_seq"]),
        ("verified", ["listing_seq"]),
    ):
        op.create_index(
            f"ix_listing_ownership_{name}",
            "listing_ownership",
            columns,
            sqlite_where=verified,
            postgresql_where=verified,
        )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
