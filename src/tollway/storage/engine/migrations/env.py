"""Runs migrations on the connection of `storage.engine.migration_run`, inside its transaction."""

from alembic import context

from tollway.storage.engine.database import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # Also on SQLite, where the engine begins its transactions itself.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
