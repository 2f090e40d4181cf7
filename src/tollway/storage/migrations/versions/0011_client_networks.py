"""Which network showed an authorisation first, as a keyed hash: what opens a stored answer beside a key or a signature."""

import sqlalchemy as sa
from alembic import op

revision = "0011_client_networks"
down_revision = "0010_standing"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("authorization", sa.Column("client_network", sa.LargeBinary(16)))


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
