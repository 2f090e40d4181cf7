"""The tables of what is known of listings beside their words: measured quality, and proved ownership. Columns only."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    text,
)

from tollway.storage.database import metadata

IS_VERIFIED = "verified_ms IS NOT NULL"
"""Literal, in the index and in the query."""

quality_day_table = Table(
    "listing_quality_day",
    metadata,
    Column("listing_id", String(64), nullable=False),
    Column("day", Integer, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("calls", BigInteger, nullable=False),
    PrimaryKeyConstraint("listing_id", "day", "bucket", name="pk_listing_quality_day"),
    Index("ix_listing_quality_day_day", "day"),
    sqlite_with_rowid=False,
)
"""Paid calls of a listing by day since the epoch (UTC) and by how they ended (`registry/quality_tally.py` says what a
bucket is)."""

quality_table = Table(
    "listing_quality",
    metadata,
    Column(
        "listing_seq",
        BigInteger().with_variant(Integer, "sqlite"),
        ForeignKey("listing.seq", name="fk_listing_quality_listing"),
        nullable=False,
        autoincrement=False,
    ),
    Column("calls", BigInteger, nullable=False),
    Column("success_ppm", Integer, nullable=False),
    Column("p50_ms", BigInteger),
    Column("p95_ms", BigInteger),
    Column("day", Integer, nullable=False),
    PrimaryKeyConstraint("listing_seq", name="pk_listing_quality"),
    Index("ix_listing_quality_success", "success_ppm", "listing_seq"),
    Index("ix_listing_quality_stale", "day", "listing_seq"),
)
"""The sums of the last 30 days, as of `day`; only of listings with enough calls."""

ownership_table = Table(
    "listing_ownership",
    metadata,
    Column(
        "listing_seq",
        BigInteger().with_variant(Integer, "sqlite"),
        ForeignKey("listing.seq", name="fk_listing_ownership_listing"),
        nullable=False,
        autoincrement=False,
    ),
    Column("origin", String(300), nullable=False),
    Column("method", String(20)),
    Column("signer", LargeBinary(20)),
    Column("verified_ms", BigInteger),
    Column("checked_ms", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    PrimaryKeyConstraint("listing_seq", name="pk_listing_ownership"),
    Index(
        "ix_listing_ownership_origin",
        "origin",
        "listing_seq",
        sqlite_where=text(IS_VERIFIED),
        postgresql_where=text(IS_VERIFIED),
    ),
    Index(
        "ix_listing_ownership_due",
        "checked_ms",
        "listing_seq",
        sqlite_where=text(IS_VERIFIED),
        postgresql_where=text(IS_VERIFIED),
    ),
    Index(
        "ix_listing_ownership_verified",
        "listing_seq",
        sqlite_where=text(IS_VERIFIED),
        postgresql_where=text(IS_VERIFIED),
    ),
)
"""Listings whose ownership was ever checked; none of a retired one. `failures`: checks in a row that found no proof."""
