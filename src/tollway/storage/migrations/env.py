"""Runs migrations on the connection that `storage.migration_run` hands in, inside its transaction."""

from alembic import context

from tollway.storage.database import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # also on SQLite: our engine begins its transactions itself
)
with context.begin_transaction():
    context.run_migrations()
