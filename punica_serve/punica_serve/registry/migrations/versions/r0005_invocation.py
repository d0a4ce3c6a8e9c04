"""Adapters keep the tokens that invoke them, if they are activated ones."""

import sqlalchemy as sa
from alembic import op

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    op.add_column("adapters", sa.Column("invocation", sa.JSON, nullable=False, server_default="[]"))
