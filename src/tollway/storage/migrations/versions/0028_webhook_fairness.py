"""Makes the tables of webhooks anew: numbers as references, the data of an event once, and the client address that registered an endpoint.

No release has the tables that it drops. Code from before it cannot serve from the new ones, so the floor rises to this revision.
"""

import sqlalchemy as sa
from alembic import op

revision = "0028_webhook_fairness"
down_revision = "0027_payee_head"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NEW = "data IS NULL"
_PENDING = "state = 'pending'"
_SETTLED = "state <> 'pending'"
_UNCONFIRMED = "state = 'unconfirmed'"
_CONFIRMED = "state IN ('active', 'stopped')"
_DUE = "due_ms IS NOT NULL"


def upgrade() -> None:
    for table in ("webhook_delivery", "webhook_message", "webhook_event", "webhook_endpoint"):
        op.drop_table(table)
    _create_endpoint()
    _create_event()
    _create_message()
    _create_delivery()
    op.execute("UPDATE webhook_generation SET number = number + 1")
    floor = sa.table("schema_floor", sa.column("revision", sa.String(32)))
    op.execute(floor.update().values(revision=revision))


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")


def _index(name: str, table: str, *columns: str, where: str) -> None:
    op.create_index(name, table, list(columns), sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _create_endpoint() -> None:
    op.create_table(
        "webhook_endpoint",
        sa.Column("number", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("network", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("reason", sa.String(32)),
        sa.Column("secret_sealed", sa.LargeBinary()),
        sa.Column("challenge", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_ms", sa.BigInteger()),
        sa.Column("is_slow", sa.Boolean(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("active_from_ms", sa.BigInteger()),
        sa.Column("gap_from_ms", sa.BigInteger()),
        sa.Column("gap_to_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("number", name="pk_webhook_endpoint"),
        sqlite_autoincrement=True,
    )
    op.create_index("uq_webhook_endpoint_id", "webhook_endpoint", ["id"], unique=True)
    op.create_index("ix_webhook_endpoint_wallet", "webhook_endpoint", ["wallet"])
    _index("ix_webhook_endpoint_url", "webhook_endpoint", "url", where=_CONFIRMED)
    _index("ix_webhook_endpoint_unconfirmed", "webhook_endpoint", "network", where=_UNCONFIRMED)
    _index("ix_webhook_endpoint_due", "webhook_endpoint", "due_ms", where=_DUE)


def _create_event() -> None:
    op.create_table(
        "webhook_event",
        sa.Column("number", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("wallet", sa.LargeBinary(20), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("state", sa.String(12)),
        sa.Column("units", sa.BigInteger()),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.Text()),
        sa.PrimaryKeyConstraint("number", name="pk_webhook_event"),
    )
    op.create_index("uq_webhook_event_id", "webhook_event", ["id"], unique=True)
    _index("ix_webhook_event_new", "webhook_event", "number", where=_NEW)


def _create_message() -> None:
    op.create_table(
        "webhook_message",
        sa.Column("number", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("endpoint_no", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("first_ms", sa.BigInteger(), nullable=False),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_ms", sa.BigInteger()),
        sa.Column("last_status", sa.Integer()),
        sa.Column("last_error", sa.Text()),
        sa.PrimaryKeyConstraint("number", name="pk_webhook_message"),
    )
    op.create_index("ix_webhook_message_endpoint", "webhook_message", ["endpoint_no"])
    _index("ix_webhook_message_open", "webhook_message", "endpoint_no", "due_ms", where=_PENDING)
    _index("ix_webhook_message_settled", "webhook_message", "last_ms", where=_SETTLED)


def _create_delivery() -> None:
    op.create_table(
        "webhook_delivery",
        sa.Column("endpoint_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("event_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("message_no", sa.BigInteger()),
        sa.Column("settled_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("endpoint_no", "event_no", name="pk_webhook_delivery"),
    )
    op.create_index("ix_webhook_delivery_event", "webhook_delivery", ["event_no"])
    _index(
        "ix_webhook_delivery_pending",
        "webhook_delivery",
        "endpoint_no",
        "message_no",
        "event_no",
        where=_PENDING,
    )
    _index("ix_webhook_delivery_settled", "webhook_delivery", "settled_ms", where=_SETTLED)
    op.create_index("ix_webhook_delivery_state", "webhook_delivery", ["endpoint_no", "state", "event_no"])
