"""Adds the provider of a stored response, so that one provider's responses have a maximum.

The release before writes rows without it; they count for their payer alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0030_response_providers"
down_revision = "0029_viewer_acceptance"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("answer", sa.Column("provider", sa.LargeBinary(20), nullable=True))
    own = ["created_ms", "call_id", "bytes"]
    # Serves the queries of the index that it replaces, too.
    op.create_index("ix_answer_payer", "answer", ["payer", *own, "provider"], if_not_exists=True)
    op.create_index("ix_answer_provider", "answer", ["provider", *own, "payer"], if_not_exists=True)
    op.drop_index("ix_answer_payer_time", "answer")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
