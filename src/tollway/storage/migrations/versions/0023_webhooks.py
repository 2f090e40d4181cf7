"""Webhooks: endpoints, new events, messages, deliveries, and the number that gateways poll."""

import sqlalchemy as sa
from alembic import op

revision = "0023_webhooks"
down_revision = "0022_admin_session"
branch_labels = None
depends_on = None

_PENDING = "state = 'pending'"
_WAITING = "state = 'pending' AND message_id IS NULL"
_SETTLED = "state <> 'pending'"
_UNCONFIRMED = "state = 'unconfirmed'"


def upgrade() -> None:
    _create_endpoint()
    _create_event()
    _create_message()
    _create_delivery()
    op.create_table(
        "webhook_generation",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_generation"),
    )
    op.execute("INSERT INTO webhook_generation (id, number) VALUES (1, 1)")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")


def _index(name: str, table: str, *columns: str, where: str) -> None:
    op.create_index(name, table, list(columns), sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _create_endpoint() -> None:
    op.create_table(
        "webhook_endpoint",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("reason", sa.String(32)),
        sa.Column("secret_sealed", sa.LargeBinary()),
        sa.Column("challenge", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("active_from_ms", sa.BigInteger()),
        sa.Column("gap_from_ms", sa.BigInteger()),
        sa.Column("gap_to_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoint"),
    )
    op.create_index("ix_webhook_endpoint_wallet", "webhook_endpoint", ["wallet"])
    _index("ix_webhook_endpoint_unconfirmed", "webhook_endpoint", "due_ms", where=_UNCONFIRMED)


def _create_event() -> None:
    op.create_table(
        "webhook_event",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("state", sa.String(12)),
        sa.Column("units", sa.BigInteger()),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_event"),
    )


def _create_message() -> None:
    op.create_table(
        "webhook_message",
        sa.Column("endpoint_id", sa.String(64), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("first_ms", sa.BigInteger(), nullable=False),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_ms", sa.BigInteger()),
        sa.Column("last_status", sa.Integer()),
        sa.Column("last_error", sa.Text()),
        sa.PrimaryKeyConstraint("endpoint_id", "id", name="pk_webhook_message"),
    )
    _index("ix_webhook_message_due", "webhook_message", "due_ms", where=_PENDING)
    _index("ix_webhook_message_open", "webhook_message", "endpoint_id", where=_PENDING)
    _index("ix_webhook_message_settled", "webhook_message", "last_ms", where=_SETTLED)


def _create_delivery() -> None:
    op.create_table(
        "webhook_delivery",
        sa.Column("endpoint_id", sa.String(64), nullable=False),
        sa.Column("event_id", sa.String(64), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("message_id", sa.String(64)),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("settled_ms", sa.BigInteger()),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("endpoint_id", "event_id", name="pk_webhook_delivery"),
    )
    _index("ix_webhook_delivery_waiting", "webhook_delivery", "endpoint_id", "event_id", where=_WAITING)
    _index("ix_webhook_delivery_pending", "webhook_delivery", "endpoint_id", where=_PENDING)
    _index("ix_webhook_delivery_settled", "webhook_delivery", "settled_ms", where=_SETTLED)
    op.create_index("ix_webhook_delivery_state", "webhook_delivery", ["endpoint_id", "state", "event_id"])
    op.create_index("ix_webhook_delivery_message", "webhook_delivery", ["endpoint_id", "message_id"])
