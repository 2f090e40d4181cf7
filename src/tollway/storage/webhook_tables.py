"""The tables of webhooks: endpoints, new events, messages and deliveries.

An event waits in `webhook_event` until the gateway that delivers has copied it to the endpoints of its wallet (`webhook_delivery`). A delivery
without a message waits for its first attempt. A message has the body of one or several deliveries and never changes; its body is emptied when it
is delivered or has failed for good, because each delivery keeps its own data.

A transaction locks in this order: new events, endpoints by id, messages, deliveries, the generation. A transaction that changes messages or deliveries that are
pending holds the lock of their endpoint, so no two such transactions wait for each other. Pruning deletes settled rows of one table in a transaction.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Table, Text, text

from tollway.storage.database import metadata

PENDING = "state = 'pending'"
WAITING = "state = 'pending' AND message_id IS NULL"
SETTLED = "state <> 'pending'"
UNCONFIRMED = "state = 'unconfirmed'"
"""The indexes and the queries have the same literal texts."""


def _partial(name: str, predicate: str, *columns: str) -> Index:
    return Index(name, *columns, sqlite_where=text(predicate), postgresql_where=text(predicate))


endpoint_table = Table(
    "webhook_endpoint",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("wallet", LargeBinary(20), nullable=False),
    Column("url", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("types", Text, nullable=False),
    Column("state", String(12), nullable=False),
    Column("reason", String(32)),
    Column("secret_sealed", LargeBinary),
    Column("challenge", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("active_from_ms", BigInteger),
    Column("gap_from_ms", BigInteger),
    Column("gap_to_ms", BigInteger),
    Index("ix_webhook_endpoint_wallet", "wallet"),
    _partial("ix_webhook_endpoint_unconfirmed", UNCONFIRMED, "due_ms"),
)
"""`types`: separated by spaces. `due_ms`: of the next challenge."""

event_table = Table(
    "webhook_event",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("wallet", LargeBinary(20), nullable=False),
    Column("type", String(32), nullable=False),
    Column("subject", String(64), nullable=False),
    Column("state", String(12)),
    Column("units", BigInteger),
    Column("at_ms", BigInteger, nullable=False),
)

message_table = Table(
    "webhook_message",
    metadata,
    Column("endpoint_id", String(64), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("state", String(12), nullable=False),
    Column("body", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger),
    Column("last_status", Integer),
    Column("last_error", Text),
    _partial("ix_webhook_message_due", PENDING, "due_ms"),
    _partial("ix_webhook_message_open", PENDING, "endpoint_id"),
    _partial("ix_webhook_message_settled", SETTLED, "last_ms"),
)

delivery_table = Table(
    "webhook_delivery",
    metadata,
    Column("endpoint_id", String(64), primary_key=True),
    Column("event_id", String(64), primary_key=True),
    Column("type", String(32), nullable=False),
    Column("state", String(12), nullable=False),
    Column("message_id", String(64)),
    Column("at_ms", BigInteger, nullable=False),
    Column("settled_ms", BigInteger),
    Column("data", Text, nullable=False),
    _partial("ix_webhook_delivery_waiting", WAITING, "endpoint_id", "event_id"),
    _partial("ix_webhook_delivery_pending", PENDING, "endpoint_id"),
    _partial("ix_webhook_delivery_settled", SETTLED, "settled_ms"),
    Index("ix_webhook_delivery_state", "endpoint_id", "state", "event_id"),
    Index("ix_webhook_delivery_message", "endpoint_id", "message_id"),
)

generation_table = Table(
    "webhook_generation",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
"""One row, raised by each change of the set of active endpoints. Gateways poll it."""
