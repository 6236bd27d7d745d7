"""Alembic's entry point: runs on the connection that db.schema passes."""

from alembic import context

from db.schema import METADATA, ours

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    include_name=ours,
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
