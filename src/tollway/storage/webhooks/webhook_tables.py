"""The tables of webhooks: endpoints, events, messages and deliveries.

An event has a row without data until the gateway that delivers has copied it: it then has its data, once, and a delivery for each endpoint that gets
it. A delivery refers to its endpoint and its event by number. An event without a delivery is deleted.

A delivery without a message waits for its first attempt. A message has one or several deliveries of an endpoint, and these never change. Its body is
not stored: it is made of the rows of the endpoint, of the message (`first_ms`) and of its events, which do not change either while it is pending. Code
that changes the form of a body must keep the old form for the messages that are pending.

`due_ms` of an endpoint is the one schedule of the sender: the time of its next challenge, or the time from which it has a message to send.

A transaction locks in this order: events, endpoints by id, messages, deliveries, the generation. A transaction that changes messages or deliveries that are
pending holds the lock of their endpoint, so no two such transactions wait for each other. Pruning locks the events of the settled deliveries that it
deletes, so that one of two transactions that delete the last deliveries of an event deletes the event too.
"""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, String, Table, Text

from tollway.storage.engine.database import add_statement, metadata, partial_index
from tollway.storage.ledger.ledger_tables import RowId

NEW = "data IS NULL"
PENDING = "state = 'pending'"
OPEN = "webhook_message.state = 'pending'"
WAITING = "state = 'pending' AND message_no IS NULL"
SETTLED = "state <> 'pending'"
UNCONFIRMED = "state = 'unconfirmed'"
CONFIRMED = "state IN ('active', 'stopped')"
_DUE = "due_ms IS NOT NULL"
"""The indexes and the queries have the same literal texts."""


endpoint_table = Table(
    "webhook_endpoint",
    metadata,
    Column("number", RowId, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False),
    Column("wallet", LargeBinary(20), nullable=False),
    Column("network", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("types", Text, nullable=False),
    Column("state", String(12), nullable=False),
    Column("reason", String(32)),
    Column("secret_sealed", LargeBinary),
    Column("challenge", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("challenge_ms", BigInteger),
    Column("challenge_status", Integer),
    Column("challenge_error", String(32)),
    Column("due_ms", BigInteger),
    Column("is_slow", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("active_from_ms", BigInteger),
    Column("gap_from_ms", BigInteger),
    Column("gap_to_ms", BigInteger),
    Index("uq_webhook_endpoint_id", "id", unique=True),
    Index("ix_webhook_endpoint_wallet", "wallet"),
    partial_index("ix_webhook_endpoint_url", CONFIRMED, "url"),
    partial_index("ix_webhook_endpoint_unconfirmed", UNCONFIRMED, "network"),
    partial_index("ix_webhook_endpoint_due", _DUE, "due_ms"),
    sqlite_autoincrement=True,
)
"""`number` is never used again: deliveries of a removed endpoint may still have it. `types`: separated by spaces. `network`: the client address that registered
the endpoint, as rates count it. `tries`: of its challenge. `challenge_ms`, `challenge_status`, `challenge_error`: the time of the last one, its response, and why that does not confirm. `is_slow`: the last attempt had no response within its deadline."""

event_table = Table(
    "webhook_event",
    metadata,
    Column("number", RowId, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False),
    Column("wallet", LargeBinary(20), nullable=False),
    Column("type", String(32), nullable=False),
    Column("subject", String(160), nullable=False),
    Column("state", String(32)),
    Column("units", BigInteger),
    Column("at_ms", BigInteger, nullable=False),
    Column("data", Text),
    Index("uq_webhook_event_id", "id", unique=True),
    partial_index("ix_webhook_event_new", NEW, "number"),
)

message_table = Table(
    "webhook_message",
    metadata,
    Column("number", RowId, primary_key=True, autoincrement=True),
    Column("endpoint_no", BigInteger, nullable=False),
    Column("id", String(64), nullable=False),
    Column("state", String(12), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger),
    Column("last_status", Integer),
    Column("last_error", Text),
    Index("ix_webhook_message_endpoint", "endpoint_no"),
    partial_index("ix_webhook_message_open", PENDING, "endpoint_no", "due_ms"),
    partial_index("ix_webhook_message_settled", SETTLED, "last_ms"),
)

delivery_table = Table(
    "webhook_delivery",
    metadata,
    Column("endpoint_no", BigInteger, primary_key=True, autoincrement=False),
    Column("event_no", BigInteger, primary_key=True, autoincrement=False),
    Column("state", String(12), nullable=False),
    Column("message_no", BigInteger),
    Column("settled_ms", BigInteger),
    Index("ix_webhook_delivery_event", "event_no"),
    partial_index("ix_webhook_delivery_pending", PENDING, "endpoint_no", "message_no", "event_no"),
    partial_index("ix_webhook_delivery_settled", SETTLED, "settled_ms"),
    Index("ix_webhook_delivery_state", "endpoint_no", "state", "event_no"),
)

generation_table = Table(
    "webhook_generation",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
"""One row, raised by each change of the set of active endpoints. Gateways poll it."""
add_statement(generation_table, "INSERT INTO webhook_generation (id, number) VALUES (1, 1)")
