"""Alembic runs this for every command, on the given connection and its open transaction."""

from alembic import context

from punica_serve.registry.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
