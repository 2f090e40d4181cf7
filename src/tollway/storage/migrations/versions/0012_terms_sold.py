"""What a version of the terms sold, beside its price: which paths and methods, and whether the listing was open. A version
that is in force gets what its listing says; of those that have ended it is not known, so they set no price any more.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012_terms_sold"
down_revision = "0011_client_networks"
branch_labels = None
depends_on = None

_FILL = """
UPDATE listing_terms SET
    other_paths = (SELECT other_paths FROM listing WHERE listing.seq = listing_terms.listing_seq),
    methods = (SELECT methods FROM listing WHERE listing.seq = listing_terms.listing_seq),
    status = (
        SELECT CASE WHEN retired_ms IS NOT NULL THEN 'retired'
            WHEN suspended_ms IS NOT NULL THEN 'suspended' ELSE status END
        FROM listing WHERE listing.seq = listing_terms.listing_seq
    )
WHERE until_ms IS NULL
"""


def upgrade() -> None:
    for name, kind in (
        ("other_paths", sa.String(10)),
        ("methods", sa.Text()),
        ("described", sa.Text()),
        ("status", sa.String(10)),
    ):
        op.add_column("listing_terms", sa.Column(name, kind))
    op.execute(_FILL)


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
