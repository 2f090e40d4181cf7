"""The catalog: listings, their documents, terms, tags and networks, full text, and how many are shown."""

import sqlalchemy as sa
from alembic import op

revision = "0002_catalog"
down_revision = "0001_books"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_EXACT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    _create_listing()
    _create_terms()
    _create_filters()
    _create_search()


def _create_listing() -> None:
    op.create_table(
        "listing",
        sa.Column("seq", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("provider", sa.LargeBinary(20), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_key", _EXACT, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("price", sa.String(40), nullable=False),
        sa.Column("price_nano", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(32), nullable=False),
        sa.Column("pay_to", sa.LargeBinary(20), nullable=False),
        sa.Column("networks", sa.Text(), nullable=False),
        sa.Column("methods", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("operations", sa.Text(), nullable=False),
        sa.Column("other_paths", sa.String(10), nullable=False),
        sa.Column("charge_on", sa.String(10), nullable=False),
        sa.Column("timeout_s", sa.Integer(), nullable=False),
        sa.Column("forward_headers", sa.Text(), nullable=False),
        sa.Column("auth_location", sa.String(10)),
        sa.Column("auth_name", sa.Text()),
        sa.Column("auth_sealed", sa.LargeBinary()),
        sa.Column("openapi_url", sa.Text()),
        sa.Column("signature", sa.String(10), nullable=False),
        sa.Column("rate_calls", sa.Integer()),
        sa.Column("rate_per_s", sa.Integer()),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("retired_ms", sa.BigInteger()),
        sa.Column("suspended_ms", sa.BigInteger()),
        sa.Column("is_shown", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_listing"),
        sa.UniqueConstraint("id", name="uq_listing_id"),
        sa.CheckConstraint("price_nano >= 0", name=op.f("ck_listing_price_not_negative")),
        sa.CheckConstraint("revision >= 1", name=op.f("ck_listing_revision_positive")),
    )
    op.create_index("ix_listing_shown", "listing", ["is_shown", "seq"])
    op.create_index("ix_listing_name", "listing", ["is_shown", "name_key", "seq"])
    op.create_index("ix_listing_provider", "listing", ["provider", "is_shown", "seq"])
    op.create_index("ix_listing_currency", "listing", ["currency", "is_shown", "seq"])
    op.create_index("ix_listing_price", "listing", ["currency", "is_shown", "price_nano", "seq"])
    op.create_index("ix_listing_pay_to", "listing", ["pay_to", "is_shown", "provider"])


def _listing_seq(table: str) -> sa.Column[int]:
    key = sa.ForeignKey("listing.seq", name=f"fk_{table}_listing")
    return sa.Column("listing_seq", sa.BigInteger(), key, nullable=False)


def _create_terms() -> None:
    op.create_table(
        "listing_document",
        _listing_seq("listing_document"),
        sa.Column("openapi", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("listing_seq", name="pk_listing_document"),
    )
    op.create_table(
        "listing_terms",
        _listing_seq("listing_terms"),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("price", sa.String(40), nullable=False),
        sa.Column("price_nano", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(32), nullable=False),
        sa.Column("networks", sa.Text(), nullable=False),
        sa.Column("pay_to", sa.LargeBinary(20), nullable=False),
        sa.Column("operations", sa.Text(), nullable=False),
        sa.Column("charge_on", sa.String(10), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("listing_seq", "version", name="pk_listing_terms"),
        sa.CheckConstraint(
            "until_ms IS NULL OR until_ms >= since_ms", name=op.f("ck_listing_terms_ends_after_it_begins")
        ),
    )


def _create_filters() -> None:
    op.create_table(
        "listing_tag",
        sa.Column("tag", sa.Text(), nullable=False),
        _listing_seq("listing_tag"),
        sa.PrimaryKeyConstraint("tag", "listing_seq", name="pk_listing_tag"),
    )
    op.create_index("ix_listing_tag_listing", "listing_tag", ["listing_seq"])
    op.create_table(
        "listing_network",
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        _listing_seq("listing_network"),
        sa.PrimaryKeyConstraint("chain_id", "listing_seq", name="pk_listing_network"),
    )
    op.create_index("ix_listing_network_listing", "listing_network", ["listing_seq"])
    total = op.create_table(
        "listing_total",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("shown", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_listing_total"),
        sa.CheckConstraint("id = 1 AND shown >= 0", name=op.f("ck_listing_total_one_row")),
    )
    op.bulk_insert(total, [{"id": 1, "shown": 0}])


def _create_search() -> None:
    # The words come split and folded. FTS5's `ascii` tokenizer separates at ASCII punctuation and spaces only, so it
    # takes each of them whole, in any script.
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE listing_search USING fts5(name, description, tags, tokenize = 'ascii')"
        )
        return
    op.execute(
        "CREATE TABLE listing_search ("
        " listing_seq bigint NOT NULL CONSTRAINT pk_listing_search PRIMARY KEY"
        " CONSTRAINT fk_listing_search_listing REFERENCES listing (seq),"
        " words tsvector NOT NULL)"
    )
    op.execute("CREATE INDEX ix_listing_search_words ON listing_search USING gin (words)")
