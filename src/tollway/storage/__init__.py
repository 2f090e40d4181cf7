"""The stores in SQL, for SQLite and PostgreSQL.

A method of a store raises `StorageUnavailable`, and is safe to call from many tasks and, on PostgreSQL, from many gateways at once. A writer, a
queue or a cache belongs to one event loop. A function over a `Connection` is a part of its caller's transaction. `now_ms` of a store is the time
that all gateways share.
"""
