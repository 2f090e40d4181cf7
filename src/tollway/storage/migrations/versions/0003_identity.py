"""Who is at the door: nonces given out, sessions, request signatures already used."""

import sqlalchemy as sa
from alembic import op

revision = "0003_identity"
down_revision = "0002_catalog"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "signin_nonce",
        sa.Column("nonce", sa.String(128), nullable=False),
        sa.Column("uri", sa.Text()),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("nonce", name="pk_signin_nonce"),
    )
    op.create_index("ix_signin_nonce_expires_ms", "signin_nonce", ["expires_ms"])
    op.create_table(
        "session",
        sa.Column("token_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("address", sa.LargeBinary(20), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_session"),
    )
    op.create_index("ix_session_expires_ms", "session", ["expires_ms"])
    op.create_table(
        "signature_nonce",
        sa.Column("keyid", sa.String(128), nullable=False),
        sa.Column("nonce", sa.String(128), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("keyid", "nonce", name="pk_signature_nonce"),
    )
    op.create_index("ix_signature_nonce_expires_ms", "signature_nonce", ["expires_ms"])


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
