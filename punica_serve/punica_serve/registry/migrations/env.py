"""Run by Alembic for every command: on the connection that it was given, in the transaction that is open on it."""

from alembic import context

from punica_serve.registry.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
