"""The tables of the catalog. Columns only; what they mean is decided in `registry/`.

`listing` holds every listing ever; `listing_tag`, `listing_network` and the full-text table hold only those that lists
show, so that a filter walks nothing else. `listing_search` differs by dialect (FTS5 or tsvector with GIN) and is made
by the migrations alone; its words are split by `registry/words.py`, never by the database.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from tollway.storage.database import metadata

_RowId = BigInteger().with_variant(Integer, "sqlite")
_Exact = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared code point by code point on both dialects, so that lists sort alike."""


def _listing_seq(name: str) -> Column[int]:
    key = ForeignKey("listing.seq", name=f"fk_{name}_listing")
    return Column("listing_seq", BigInteger, key, nullable=False)


listing_table = Table(
    "listing",
    metadata,
    Column("seq", _RowId, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False),
    Column("provider", LargeBinary(20), nullable=False),
    Column("name", Text, nullable=False),
    Column("name_key", _Exact, nullable=False),
    Column("description", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("price", String(40), nullable=False),
    Column("price_nano", BigInteger, nullable=False),
    Column("currency", String(32), nullable=False),
    Column("pay_to", LargeBinary(20), nullable=False),
    Column("networks", Text, nullable=False),
    Column("methods", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("operations", Text, nullable=False),
    Column("other_paths", String(10), nullable=False),
    Column("charge_on", String(10), nullable=False),
    Column("timeout_s", Integer, nullable=False),
    Column("forward_headers", Text, nullable=False),
    Column("auth_location", String(10)),
    Column("auth_name", Text),
    Column("auth_sealed", LargeBinary),
    Column("openapi_url", Text),
    Column("signature", String(10), nullable=False),
    Column("rate_calls", Integer),
    Column("rate_per_s", Integer),
    Column("status", String(10), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("retired_ms", BigInteger),
    Column("suspended_ms", BigInteger),
    Column("is_shown", Boolean, nullable=False),
    UniqueConstraint("id", name="uq_listing_id"),
    CheckConstraint("price_nano >= 0", name="price_not_negative"),
    CheckConstraint("revision >= 1", name="revision_positive"),
    Index("ix_listing_shown", "is_shown", "seq"),
    Index("ix_listing_name", "is_shown", "name_key", "seq"),
    Index("ix_listing_provider", "provider", "is_shown", "seq"),
    Index("ix_listing_provider_currency", "provider", "currency", "is_shown", "seq"),
    Index("ix_listing_currency", "currency", "is_shown", "seq"),
    Index("ix_listing_price", "currency", "is_shown", "price_nano", "seq"),
    Index("ix_listing_pay_to", "pay_to", "is_shown", "provider"),
    Index("ix_listing_payee", "pay_to", "is_shown", "seq"),
)

# Apart from the listing, because a page of a hundred listings must not read a hundred documents.
document_table = Table(
    "listing_document",
    metadata,
    _listing_seq("listing_document"),
    Column("openapi", Text, nullable=False),
    PrimaryKeyConstraint("listing_seq", name="pk_listing_document"),
)

terms_table = Table(
    "listing_terms",
    metadata,
    _listing_seq("listing_terms"),
    Column("version", BigInteger, nullable=False),
    Column("price", String(40), nullable=False),
    Column("price_nano", BigInteger, nullable=False),
    Column("currency", String(32), nullable=False),
    Column("networks", Text, nullable=False),
    Column("pay_to", LargeBinary(20), nullable=False),
    Column("operations", Text, nullable=False),
    Column("charge_on", String(10), nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger),
    # Null in a version that ended before these columns were there: what it sold is not known.
    Column("other_paths", String(10)),
    Column("methods", Text),
    Column("described", Text),
    Column("status", String(10)),
    PrimaryKeyConstraint("listing_seq", "version", name="pk_listing_terms"),
    CheckConstraint("until_ms IS NULL OR until_ms >= since_ms", name="ends_after_it_begins"),
)

tag_table = Table(
    "listing_tag",
    metadata,
    Column("tag", Text, nullable=False),
    _listing_seq("listing_tag"),
    PrimaryKeyConstraint("tag", "listing_seq", name="pk_listing_tag"),
    Index("ix_listing_tag_listing", "listing_seq"),
)

network_table = Table(
    "listing_network",
    metadata,
    Column("chain_id", BigInteger, nullable=False),
    _listing_seq("listing_network"),
    PrimaryKeyConstraint("chain_id", "listing_seq", name="pk_listing_network"),
    Index("ix_listing_network_listing", "listing_seq"),
)

# One row, written with every listing that comes or goes: a total without counting a table.
total_table = Table(
    "listing_total",
    metadata,
    Column("id", Integer, nullable=False),
    Column("shown", BigInteger, nullable=False),
    PrimaryKeyConstraint("id", name="pk_listing_total"),
    CheckConstraint("id = 1 AND shown >= 0", name="one_row"),
)
